//! What the kernel knows of a PCI device.

use std::{fs, path::Path};

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
}
