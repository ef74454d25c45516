//! Five characters that tell apart what would have the same name.

/// How many characters.
pub const LENGTH: usize = 5;
/// No vowels, no look-alikes: as Kubernetes does for generated names.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The suffix of a text: FNV-1a, because names must be the same for every release. Against accidents, not
/// against who looks for two texts of one suffix.
pub fn of(text: &str) -> String {
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut suffix = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        let place = usize::try_from(hash % ALPHABET.len() as u64).unwrap_or(0);
        suffix.push(char::from(ALPHABET[place]));
        hash /= ALPHABET.len() as u64;
    }
    suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_never_changes_between_releases() {
        assert_eq!(of("5f8c"), "7fkcz");
        assert_eq!(of(""), of(""));
        assert_ne!(of("a"), of("b"));
    }
}
