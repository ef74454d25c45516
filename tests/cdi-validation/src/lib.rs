//! The CDI files that the driver writes (`device/tests/golden`), read by the library of runtimes that are written in Rust. See `tests/specs.rs`.
