//! What a machine must have for a lab. Building its programs is not part of it: their script installs what is missing.

use std::path::Path;

use super::cgroups;
use crate::preflight;

/// Why there can be no lab here, if so.
pub fn missing() -> Option<String> {
    if !preflight::is_root() {
        return Some("real containers take root".to_owned());
    }
    if !cfg!(target_arch = "x86_64") {
        return Some("the stand-ins for NVIDIA's driver are for x86_64".to_owned());
    }
    if !Path::new("/proc/sys/net/ipv4/ip_forward").exists() {
        return Some("/proc/sys/net is not there".to_owned());
    }
    cgroups::missing()
}

/// Whether a machine that lacks something is a failure: whoever is root can mend it. Others cannot, with `CI=true` or without.
pub fn must_run() -> bool {
    preflight::is_root()
}
