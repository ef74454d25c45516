//! The gate: what the reference is known to give on this trace. Unless it does, nothing is compared with it.
//!
//! The numbers are those of an earlier implementation of the same rules, by another hand. Quotas are counted in GPUs; there are no
//! nodes, no priorities, and who is stopped keeps its progress.

use anyhow::{Result, ensure};

use super::{counts::Sharing, summary::Summary};

/// How far a percentage may be off, in points.
const TOLERANCE: f64 = 1.0;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) gpus: u64,
    pub(crate) sharing: Sharing,
    pub(crate) reserved_percent: u64,
    /// GPUs that are held.
    pub(crate) allocated_percent: f64,
    /// GPUs that are idle though they are asked for.
    pub(crate) idle_while_pending_percent: f64,
}

const ALONE: Sharing = Sharing {
    borrowing: false,
    reclaim: false,
};
const BORROWS: Sharing = Sharing {
    borrowing: true,
    reclaim: false,
};
const RECLAIMS: Sharing = Sharing {
    borrowing: true,
    reclaim: true,
};

const fn row(
    gpus: u64,
    sharing: Sharing,
    reserved_percent: u64,
    allocated_percent: f64,
    idle_while_pending_percent: f64,
) -> Row {
    Row {
        gpus,
        sharing,
        reserved_percent,
        allocated_percent,
        idle_while_pending_percent,
    }
}

/// All rows.
pub(crate) const ROWS: [Row; 12] = [
    row(448, ALONE, 0, 70.1, 27.54),
    row(448, BORROWS, 0, 96.8, 0.25),
    row(448, RECLAIMS, 0, 96.8, 0.26),
    row(512, ALONE, 0, 68.2, 29.17),
    row(512, BORROWS, 0, 89.2, 0.24),
    row(512, RECLAIMS, 0, 89.3, 0.34),
    row(512, RECLAIMS, 10, 89.3, 0.36),
    row(640, ALONE, 0, 62.5, 34.91),
    row(640, BORROWS, 0, 71.4, 0.06),
    row(640, RECLAIMS, 0, 71.4, 0.07),
    row(1024, ALONE, 0, 44.4, 42.18),
    row(1024, RECLAIMS, 0, 44.7, 0.00),
];

impl Row {
    /// Fails unless the reference gave what it is known to give.
    pub(crate) fn check(&self, found: &Summary) -> Result<()> {
        for (what, found, wanted) in [
            ("allocated", found.allocated_percent, self.allocated_percent),
            (
                "idle while pending",
                found.idle_while_pending_percent,
                self.idle_while_pending_percent,
            ),
        ] {
            ensure!(
                (found - wanted).abs() <= TOLERANCE,
                "the reference gives {found:.2} % {what} at {} GPUs ({:?}, {} % reserved), and {wanted} % are known: it is wrong, or \
                 the trace is another one; nothing is compared with it",
                self.gpus,
                self.sharing,
                self.reserved_percent
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_is_more_than_a_point_off_is_refused() {
        let [row, ..] = ROWS;
        for (allocated, idle, passes) in [
            (0.99, -0.99, true),
            (-0.99, 0.99, true),
            (1.01, 0.0, false),
            (-1.01, 0.0, false),
            (0.0, 1.01, false),
            (0.0, -1.01, false),
            (f64::NAN, 0.0, false),
        ] {
            let found = Summary {
                allocated_percent: row.allocated_percent + allocated,
                idle_while_pending_percent: row.idle_while_pending_percent + idle,
                ..Summary::default()
            };
            assert_eq!(row.check(&found).is_ok(), passes, "{allocated} {idle}");
        }
    }
}
