//! Where a GPU is plugged in, as the kernel's log names it: without the function, which is 0.

use std::fmt;

/// PCI domain, bus and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

impl PciAddress {
    /// Reads `0000:1b:00`, `0000:1b:00.0` or NVML's `00000000:1B:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let device = match rest.split_once('.') {
            Some((device, function)) => {
                hexadecimal(function, 1)?;
                device
            }
            None => rest,
        };
        Some(Self {
            domain: hexadecimal(domain, 8)?,
            bus: u8::try_from(hexadecimal(bus, 2)?).ok()?,
            device: u8::try_from(hexadecimal(device, 2)?).ok()?,
        })
    }
}

/// Digits only: a sign is none.
fn hexadecimal(text: &str, most: usize) -> Option<u32> {
    let is_number =
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok())?
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
        } = self;
        write!(formatter, "{domain:04x}:{bus:02x}:{device:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_of_writing_an_address_are_the_same_address() {
        let written = ["0000:1b:00", "0000:1b:00.0", "00000000:1B:00.0"];
        for text in written {
            let address = PciAddress::parse(text).unwrap();
            assert_eq!(address.to_string(), "0000:1b:00", "{text}");
        }
        let large = PciAddress::parse("00010000:3f:1f").unwrap();
        assert_eq!(large.to_string(), "10000:3f:1f");
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in [
            "",
            ":",
            "::",
            "0000:1b",
            "0000:1b:00:00",
            "+000:1b:00",
            "0000:1b:000",
            "0000:g0:00",
            "000000000:1b:00",
            "0000:1b:00.",
            "0000:1b:00.00",
            "0000:1b:00.0.0",
            "ä:1b:00",
        ] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}
