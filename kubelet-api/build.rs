//! Compiles the protocol definitions without `protoc`: protox parses them, tonic writes the code.

use std::error::Error;

const PROTOS: [&str; 5] = [
    "registration_v1.proto",
    "dra_v1.proto",
    "dra_v1beta1.proto",
    "health_v1.proto",
    "health_v1alpha1.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        // Answers that list claims are compared and logged in the order of their UIDs.
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
