//! Which file is NVML's library.

use std::fs;

use muster_device::BackendError;
use nvidia_ml_mock::library;

use crate::machine::{Machine, VERSION, gpus};

#[test]
fn the_library_of_the_kernel_s_version_is_loaded_wherever_absolute_links_lead_in_the_root() {
    let machine = Machine::without_library();
    let name = format!("libnvidia-ml.so.{VERSION}");
    let file = machine.install("opt/driver", VERSION);
    machine.install("usr/lib/x86_64-linux-gnu", "590.10.01");
    // As Debian does.
    machine.link(
        &format!("usr/lib/x86_64-linux-gnu/{name}"),
        format!("/etc/alternatives/{name}"),
    );
    machine.link(
        &format!("etc/alternatives/{name}"),
        format!("/opt/driver/{name}"),
    );
    let backend = machine.backend();
    let listed = backend.gpus().unwrap();
    assert_eq!(listed.gpus.len(), 8);
    assert_eq!(listed.gpus[0].gpu.driver_version, VERSION);
    assert_eq!(backend.status().file, Some(file.canonicalize().unwrap()));
}

#[test]
fn the_library_is_loaded_from_where_the_root_s_loader_is_told_of_it() {
    let machine = Machine::without_library();
    let file = machine.install("usr/local/nvidia/lib64", VERSION);
    // As installers leave it where the system's own directories have nothing but links.
    let name = "libnvidia-ml.so.1";
    machine.link(
        &format!("usr/lib/{name}"),
        format!("/usr/local/nvidia/lib64/{name}"),
    );
    fs::create_dir_all(machine.root("etc/ld.so.conf.d")).unwrap();
    fs::write(
        machine.root("etc/ld.so.conf"),
        "include /etc/ld.so.conf.d/*.conf\n",
    )
    .unwrap();
    fs::write(
        machine.root("etc/ld.so.conf.d/nvidia.conf"),
        "/usr/local/nvidia/lib64\n",
    )
    .unwrap();
    let backend = machine.backend();
    assert_eq!(backend.gpus().unwrap().gpus.len(), 8);
    assert_eq!(backend.status().file, Some(file.canonicalize().unwrap()));
}

/// Programs of NVIDIA's name GPUs by it, and take the wrong one if it is another.
#[test]
fn the_index_of_a_gpu_is_nvml_s_whatever_its_place_in_pci_order_is() {
    let machine = Machine::new();
    let backend = machine.backend();
    let listed = gpus(&backend);
    let last = listed.last().unwrap();
    assert_eq!(backend.index(&last.uuid), Ok(7));
    // As NVML writes addresses.
    let first = format!("0000{}", last.pci_bus_id.to_uppercase());
    machine.change(|state| state.index_order = vec![first]);
    let backend = machine.backend();
    assert_eq!(gpus(&backend)[7].uuid, last.uuid, "in PCI order");
    assert_eq!(backend.index(&last.uuid), Ok(0));
    assert_eq!(backend.index(&listed[0].uuid), Ok(1));
    assert_eq!(
        backend.index("GPU-none"),
        Err(BackendError::Gone("GPU-none".to_owned()))
    );
}

#[test]
fn no_link_leads_out_of_the_root() {
    let machine = Machine::without_library();
    let name = format!("libnvidia-ml.so.{VERSION}");
    let outside = machine.path("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::copy(library().unwrap(), outside.join(&name)).unwrap();
    for target in [
        outside.join(&name),
        format!("../../../outside/{name}").into(),
    ] {
        let link = format!("usr/lib64/{name}");
        machine.link(&link, &target);
        let error = machine.backend().gpus().unwrap_err();
        let says_so = |cause: &str| cause.contains("is no library of 64 bits");
        assert!(
            matches!(&error, BackendError::Unavailable(cause) if says_so(cause)),
            "{}: {error}",
            target.display()
        );
        fs::remove_file(machine.root(&link)).unwrap();
    }
}

#[test]
fn a_root_without_the_version_that_the_kernel_has_is_told_with_both() {
    let machine = Machine::without_library();
    machine.install("usr/lib64", "570.86.15");
    let error = machine.backend().gpus().unwrap_err().to_string();
    assert!(
        error.contains("libnvidia-ml.so of version 570.86.15") && error.contains(VERSION),
        "{error}"
    );
}
