//! What ships cannot be made to die by an environment variable.

/// The name of the variable is in the program exactly if the feature is.
#[test]
fn only_a_build_for_tests_knows_failpoints() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_muster-controller")).unwrap();
    let name = b"MUSTER_FAILPOINT";
    let knows = program.windows(name.len()).any(|window| window == name);
    assert_eq!(knows, cfg!(feature = "failpoints"));
}
