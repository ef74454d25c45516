//! UUIDs of GPUs and of MIG devices: always the same for the same thing, as on hardware.

/// UUID of the GPU at `pci_bus_id` of the machine with this `seed`: always the same, different for others.
pub fn uuid(seed: &str, pci_bus_id: &str) -> String {
    format!("GPU-{}", digits(&format!("{seed}\0{pci_bus_id}")))
}

/// UUID of a MIG device: of the GPU with that UUID, by the id of its GPU instance and the first of its compute slices. Hardware makes
/// it from the same facts, so it comes back when another device is made in its place, also one of another profile.
pub fn mig_uuid(gpu: &str, gpu_instance: u32, first_compute_slice: u32) -> String {
    let text = format!("{gpu}\0{gpu_instance}\0{first_compute_slice}");
    format!("MIG-{}", digits(&text))
}

fn digits(text: &str) -> String {
    let high = fnv(0xcbf2_9ce4_8422_2325, text.as_bytes());
    let low = fnv(high, text.as_bytes());
    let hex = format!("{high:016x}{low:016x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

/// FNV-1a.
fn fnv(basis: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(basis, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_differ_by_seed_and_by_slot_and_stay_the_same() {
        let one = uuid("node-0", "00000000:1B:00.0");
        assert_eq!(one, uuid("node-0", "00000000:1B:00.0"));
        assert_ne!(one, uuid("node-1", "00000000:1B:00.0"));
        assert_ne!(one, uuid("node-0", "00000000:43:00.0"));
        assert_eq!(one.len(), "GPU-00000000-0000-0000-0000-000000000000".len());
    }

    #[test]
    fn mig_devices_differ_by_gpu_and_by_place() {
        let one = mig_uuid("GPU-1", 9, 0);
        assert_eq!(one, mig_uuid("GPU-1", 9, 0));
        for other in [
            mig_uuid("GPU-2", 9, 0),
            mig_uuid("GPU-1", 10, 0),
            mig_uuid("GPU-1", 9, 1),
        ] {
            assert_ne!(one, other);
        }
        assert!(one.starts_with("MIG-"));
    }
}
