//! When nobody tries again: each time that no gang comes back takes as long as a run may.

use anyhow::{Result, ensure};

/// After so many times in a row that no gang came back, or nothing could be measured, nobody tries again: each may have taken [`super::RUN_LIMIT`], and what
/// starts a gang and clears it away may take as long once more.
pub(super) const MOST_IN_VAIN: u32 = 3;

/// How often in a row no gang came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InVain(u32);

impl InVain {
    /// Notes whether a gang came back this time. An error if it is not to be tried again; `what` is measured, and `last` was found last.
    pub(super) fn note(&mut self, is_back: bool, what: &str, last: &str) -> Result<()> {
        self.0 = if is_back { 0 } else { self.0 + 1 };
        ensure!(
            self.0 < MOST_IN_VAIN,
            "{what}: no gang came back, or nothing could be measured, {} times in a row; {last}",
            self.0
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_in_a_row_end_it_and_one_gang_that_comes_back_has_it_count_from_the_beginning() {
        for (came_back, ends_at) in [
            (&[false, false, false, true][..], Some(2)),
            (&[true, false, false, false][..], Some(3)),
            (&[false, false, true, false, false, true, false][..], None),
            (&[true, true, true, true][..], None),
        ] {
            let mut in_vain = InVain::default();
            let ended = came_back
                .iter()
                .position(|is_back| in_vain.note(*is_back, "a case", "what was last").is_err());
            assert_eq!(ended, ends_at, "{came_back:?}");
        }
    }

    #[test]
    fn the_error_says_what_it_was_about() {
        let mut in_vain = InVain(MOST_IN_VAIN - 1);
        let error = in_vain.note(false, "case 30:0", "UNFINISHED: run 3");
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            "case 30:0: no gang came back, or nothing could be measured, 3 times in a row; UNFINISHED: run 3"
        );
    }
}
