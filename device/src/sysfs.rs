//! What the kernel knows of a PCI device.

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
};

use crate::gpu::RdmaNic;

/// NUMA node of a device; `None` where the kernel does not know the device, or any affinity (-1).
pub(crate) fn numa_node(sysfs: &Path, pci_bus_id: &str) -> Option<u32> {
    let path = sysfs.join("bus/pci/devices").join(pci_bus_id);
    let text = fs::read_to_string(path.join("numa_node")).ok()?;
    text.trim().parse().ok()
}

/// Root complex of a device: the first part of its real path below `devices/`, e.g. `pci0000:15`.
/// Where the kernel does not know the device, its own bus counts as a root.
pub(crate) fn pcie_root(sysfs: &Path, pci_bus_id: &str) -> String {
    let real = fs::canonicalize(sysfs.join("bus/pci/devices").join(pci_bus_id)).ok();
    let root = real.as_deref().and_then(|path| {
        path.iter()
            .filter_map(|part| part.to_str())
            .find(|part| part.starts_with("pci"))
            .map(str::to_owned)
    });
    let bus = pci_bus_id.get(..7).unwrap_or(pci_bus_id);
    root.unwrap_or_else(|| format!("pci{bus}"))
}

/// The RDMA adapter with the most PCI bridges above it that are above this device, too; where none has any, one on the same NUMA node; of
/// equals the first by its PCI address, then by its port's name. `None` where there is neither.
///
/// Virtual functions are passed over: they are handed to containers, and vanish from here meanwhile.
pub(crate) fn nearest_rdma_nic(sysfs: &Path, pci_bus_id: &str) -> Option<RdmaNic> {
    let own = fs::canonicalize(sysfs.join("bus/pci/devices").join(pci_bus_id)).ok()?;
    let own_node = numa_node(sysfs, pci_bus_id);
    let entries = fs::read_dir(sysfs.join("class/infiniband")).ok()?;
    let found = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let device = fs::canonicalize(entry.path().join("device")).ok()?;
        if device.join("physfn").exists() {
            return None;
        }
        let pci_bus_id = device.file_name()?.to_str()?.to_owned();
        let shared_bridges = shared_bridges(&own, &device);
        let is_near =
            shared_bridges > 0 || (own_node.is_some() && numa_node(sysfs, &pci_bus_id) == own_node);
        is_near.then_some(RdmaNic {
            name,
            pci_bus_id,
            shared_bridges,
        })
    });
    found.min_by_key(|nic| {
        (
            Reverse(nic.shared_bridges),
            nic.pci_bus_id.clone(),
            nic.name.clone(),
        )
    })
}

/// How many of the parts that two devices' real paths begin with are of PCI: the root complex, and the bridges below it.
fn shared_bridges(one: &Path, other: &Path) -> u32 {
    let is_device = |part: &str| part.split(':').count() == 3 || part.starts_with("pci");
    let mut shared = PathBuf::new();
    let mut count = 0;
    for (part, same) in one.iter().zip(other.iter()) {
        if part != same {
            break;
        }
        shared.push(part);
        // What lies at the end of either path is a device, and no bridge.
        if shared == one || shared == other {
            break;
        }
        count += u32::from(part.to_str().is_some_and(is_device));
    }
    count
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn numa_node_and_root_are_read_from_the_kernel() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs
            .path()
            .join("devices/pci0000:15/0000:15:01.0/0000:1b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(sysfs.path().join("bus/pci/devices")).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        symlink(&device, sysfs.path().join("bus/pci/devices/0000:1b:00.0")).unwrap();

        assert_eq!(numa_node(sysfs.path(), "0000:1b:00.0"), Some(1));
        assert_eq!(pcie_root(sysfs.path(), "0000:1b:00.0"), "pci0000:15");

        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(sysfs.path(), "0000:1b:00.0"), None);
        assert_eq!(pcie_root(sysfs.path(), "0000:43:00.0"), "pci0000:43");
    }

    /// Puts a PCI device where the kernel shows it, at this path below its root complex, and an RDMA adapter of this name on it.
    fn device(sysfs: &Path, path: &str, numa_node: &str, adapter: Option<&str>) -> PathBuf {
        let device = sysfs.join("devices").join(path);
        let devices = sysfs.join("bus/pci/devices");
        let adapters = sysfs.join("class/infiniband");
        for directory in [&device, &devices, &adapters] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(device.join("numa_node"), numa_node).unwrap();
        symlink(&device, devices.join(device.file_name().unwrap())).unwrap();
        if let Some(name) = adapter {
            let of_adapter = device.join("infiniband").join(name);
            fs::create_dir_all(&of_adapter).unwrap();
            symlink(&device, of_adapter.join("device")).unwrap();
            symlink(&of_adapter, adapters.join(name)).unwrap();
        }
        device
    }

    #[test]
    fn the_nearest_rdma_nic_is_behind_the_same_switch_then_the_same_root_then_on_the_same_node() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = root.path();
        let nearest = |gpu: &str| {
            let nic = nearest_rdma_nic(sysfs, gpu);
            nic.map(|nic| (nic.name, nic.shared_bridges))
        };
        let switch = "pci0000:15/0000:15:01.0/0000:16:00.0";
        let gpu = "0000:18:00.0";
        device(sysfs, &format!("{switch}/0000:17:00.0/{gpu}"), "0\n", None);
        assert_eq!(nearest(gpu), None);
        assert_eq!(
            nearest("0000:ff:00.0"),
            None,
            "the kernel knows no such GPU"
        );
        device(sysfs, "pci0000:80/0000:81:00.0", "1\n", Some("mlx5_9"));
        assert_eq!(nearest(gpu), None, "it is on another node");
        device(sysfs, "pci0000:40/0000:41:00.0", "0\n", Some("mlx5_8"));
        assert_eq!(nearest(gpu), Some(("mlx5_8".to_owned(), 0)));
        device(
            sysfs,
            "pci0000:15/0000:15:02.0/0000:1a:00.0",
            "0\n",
            Some("mlx5_7"),
        );
        assert_eq!(nearest(gpu), Some(("mlx5_7".to_owned(), 1)));
        let other_port = format!("{switch}/0000:17:01.0");
        device(
            sysfs,
            &format!("{other_port}/0000:19:00.1"),
            "0\n",
            Some("mlx5_1"),
        );
        device(
            sysfs,
            &format!("{other_port}/0000:19:00.0"),
            "0\n",
            Some("mlx5_2"),
        );
        assert_eq!(nearest(gpu), Some(("mlx5_2".to_owned(), 3)));
        // A virtual function would be the first by its address.
        let function = device(
            sysfs,
            &format!("{switch}/0000:17:00.1/0000:12:00.1"),
            "0\n",
            Some("mlx5_0"),
        );
        assert_eq!(nearest(gpu), Some(("mlx5_0".to_owned(), 3)));
        symlink("../0000:19:00.0", function.join("physfn")).unwrap();
        fs::create_dir_all(function.with_file_name("0000:19:00.0")).unwrap();
        assert_eq!(nearest(gpu), Some(("mlx5_2".to_owned(), 3)));
    }
}
