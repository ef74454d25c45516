//! Compiles the protocol definitions without `protoc`: protox parses them, tonic writes the code.

use std::{env, error::Error, fs, path::PathBuf};

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
    // Its package has the name of another one.
    let directory = PathBuf::from(env::var("OUT_DIR")?).join("pod_resources");
    fs::create_dir_all(&directory)?;
    let descriptors = protox::compile(["pod_resources_v1.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}
