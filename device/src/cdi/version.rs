//! Which version of the driver counts: that of the kernel's module. Libraries of another do not work with it.

use std::{fs, path::Path};

/// The version of the kernel's module (`/proc/driver/nvidia/version`); `None` while it is not loaded.
pub(crate) fn of_kernel(proc: &Path) -> Option<String> {
    let text = fs::read_to_string(proc.join("driver/nvidia/version")).ok()?;
    // `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:17:54 UTC 2025`, open modules alike.
    let first = text.lines().next()?;
    first
        .split_whitespace()
        .find(|word| is_version(word))
        .map(str::to_owned)
}

/// Whether this is how NVIDIA numbers its drivers: `580.65.06`, `550.54`.
pub(super) fn is_version(text: &str) -> bool {
    let mut parts = text.split('.');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.contains('.') && parts.all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_and_open_modules_tell_their_version() {
        for text in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:17:54 UTC 2025\nGCC version:  gcc version 12.2.0\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22-I3)\n",
        ] {
            let proc = tempfile::tempdir().unwrap();
            fs::create_dir_all(proc.path().join("driver/nvidia")).unwrap();
            fs::write(proc.path().join("driver/nvidia/version"), text).unwrap();
            assert_eq!(of_kernel(proc.path()).as_deref(), Some("580.65.06"));
        }
        assert_eq!(of_kernel(Path::new("/nonexistent-muster")), None);
    }
}
