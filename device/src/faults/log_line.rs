//! Lines of the kernel's log, `/dev/kmsg`, about XIDs.
//!
//! A record is `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];MESSAGE`, then lines that begin with a blank; bytes that cannot be printed
//! are written as `\x0a`, so a message is one line. Programs may write to the log too: the kernel gives their records another facility than its
//! own, 0. So only records of that facility are believed, and only if the message begins as the driver's do: what a process is called stands
//! further behind. (The kernel keeps eight bits of a facility, so one that asks for 256 gets 0. To write at all takes root and the device, which
//! a container has only if it is privileged: who has both may do worse to a GPU than have it closed.)

use std::fmt;

use super::address::PciAddress;

/// Longest record that the kernel hands out (`PRINTK_MESSAGE_MAX`).
pub(super) const MOST_RECORD_BYTES: usize = 8_192;

/// A record of the kernel itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Its place among all records of this boot.
    pub(super) sequence: u64,
    /// Whether the kernel wrote it, and no program.
    pub(super) is_kernel: bool,
    pub(super) message: &'a str,
}

/// What the driver says of a GPU in the kernel's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidLine {
    /// Where the GPU is.
    pub address: PciAddress,
    /// The XID.
    pub xid: u32,
    /// The GPU instance that it is about; `None`: the whole GPU.
    pub gpu_instance: Option<u32>,
    /// Its compute instance; `None`: all of them.
    pub compute_instance: Option<u32>,
    /// What it says beside the code; only of XIDs 144 to 150.
    pub detail: Option<XidDetail>,
}

/// What the kernel's log says of an XID from 144 to 150 (NVLink from Blackwell on), and NVML's event does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct XidDetail {
    /// Whether it is fatal to the link.
    pub is_fatal: bool,
    /// The sub-code: bits 20 to 25 of the first of the numbers in brackets; `None`: it cannot be read.
    pub sub_code: Option<u32>,
}

impl fmt::Display for XidDetail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.is_fatal { "Fatal" } else { "Nonfatal" };
        match self.sub_code {
            Some(code) => write!(formatter, "{severity}, sub-code {code}"),
            None => formatter.write_str(severity),
        }
    }
}

/// Reads a record. `None` for anything else, however long.
pub(super) fn record(line: &[u8]) -> Option<Record<'_>> {
    if line.len() > MOST_RECORD_BYTES {
        return None;
    }
    // The kernel writes ASCII; what a program had it write may be anything.
    let text = str::from_utf8(line).ok()?;
    let (head, message) = text.split_once(';')?;
    let mut fields = head.split(',');
    let priority = number(fields.next()?)?;
    let sequence = number(fields.next()?)?;
    Some(Record {
        sequence,
        is_kernel: priority >> 3 == 0,
        message,
    })
}

/// Reads a message of the driver:
/// `NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 94, pid=7194, name=python3, Contained: ...`.
pub fn xid_line(message: &str) -> Option<XidLine> {
    let rest = message.strip_prefix("NVRM: Xid (")?;
    let (place, rest) = rest.split_once("): ")?;
    // Old drivers leave the prefix out.
    let place = place.strip_prefix("PCI:").unwrap_or(place);
    let mut words = place.split(' ');
    let address = PciAddress::parse(words.next()?)?;
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for word in words {
        // What a later driver adds does not make it another fault.
        match word.split_once(':') {
            Some(("GPU-I", id)) => gpu_instance = small(id),
            Some(("GPU-CI", id)) => compute_instance = small(id),
            _ => {}
        }
    }
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    // It ends there, or the message goes on behind a comma.
    let is_whole = matches!(rest.as_bytes().get(digits), None | Some(b',' | b' '));
    let xid = small(&rest[..digits]).filter(|_| is_whole)?;
    Some(XidLine {
        address,
        xid,
        gpu_instance,
        compute_instance,
        detail: detail(xid, &rest[digits..]),
    })
}

/// Reads `, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004a4005 0x00000000 ...)`. Drivers before branch 575 write square brackets.
fn detail(xid: u32, rest: &str) -> Option<XidDetail> {
    if !(144..=150).contains(&xid) {
        return None;
    }
    let mut words = rest.trim_start_matches([',', ' ']).split_ascii_whitespace();
    let _unit = words.next()?;
    let is_fatal = match words.next()? {
        "Fatal" => true,
        "Nonfatal" => false,
        _ => return None,
    };
    let first = rest.split(['(', '[']).nth(1);
    let first = first.and_then(|numbers| numbers.split([' ', ')', ']']).next());
    let digits = first.and_then(|number| number.strip_prefix("0x"));
    let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    Some(XidDetail {
        is_fatal,
        sub_code: number.map(|number| (number >> 20) & 0x3f),
    })
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

fn small(text: &str) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str) -> Option<(String, u32, Option<u32>, Option<u32>)> {
        xid_line(message).map(|line| {
            (
                line.address.to_string(),
                line.xid,
                line.gpu_instance,
                line.compute_instance,
            )
        })
    }

    /// As an H200 wrote it (580.159.04, open kernel module), of a kernel of ours that wrote where there was nothing.
    #[test]
    fn a_record_of_a_real_card_is_read() {
        let line = b"4,360,28560697,c;NVRM: Xid (PCI:0000:00:06): 31, pid=462, name=gpu, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE \
            GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ 0x0_00001000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE";
        let record = record(line).unwrap();
        assert!(record.is_kernel);
        assert_eq!(record.sequence, 360);
        let expected = ("0000:00:06".to_owned(), 31, None, None);
        assert_eq!(told(record.message), Some(expected));
    }

    #[test]
    fn every_form_that_drivers_write_is_read() {
        let first = || "0000:3b:00".to_owned();
        for (message, expected) in [
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                (first(), 79, None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
                (first(), 94, Some(5), None),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
                (first(), 13, Some(1), Some(2)),
            ),
            (
                "NVRM: Xid (0000:3b:00): 14, Channel 00000001",
                (first(), 14, None, None),
            ),
            ("NVRM: Xid (PCI:0000:3b:00): 48", (first(), 48, None, None)),
        ] {
            assert_eq!(told(message), Some(expected), "{message}");
        }
    }

    #[test]
    fn what_is_no_message_of_the_driver_says_nothing() {
        for message in [
            "",
            "NVRM: Xid (",
            "NVRM: Xid (): 79",
            "NVRM: Xid (PCI:0000:3b:00) 79",
            "NVRM: Xid (PCI:0000:3b:00): ",
            "NVRM: Xid (PCI:0000:3b:00): -79, x",
            "NVRM: Xid (PCI:0000:3b:00): 79x",
            "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, x",
            "NVRM: Xid (PCI:zzzz:3b:00): 79, x",
            " NVRM: Xid (PCI:0000:3b:00): 79, x",
            "usb 1-1: Product: NVRM: Xid (PCI:0000:3b:00): 79, x",
            "NVRM: Xid (PCI:0000:3b:00): ü",
        ] {
            assert_eq!(told(message), None, "{message:?}");
        }
        // A process whose name looks like a message is part of that about it.
        let named = "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=NVRM: Xid (PCI:0000:4c:00): 79, x";
        assert_eq!(told(named), Some(("0000:3b:00".to_owned(), 13, None, None)));
    }

    #[test]
    fn what_is_said_beside_the_xids_of_nvlink_is_read() {
        let detail = |text: &str| {
            let line = xid_line(&format!("NVRM: Xid (PCI:0009:01:00): {text}"));
            line.unwrap().detail
        };
        let is = |is_fatal, sub_code| Some(XidDetail { is_fatal, sub_code });
        for (text, expected) in [
            (
                "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x025001c6 0x00000000 0x00000000)",
                is(true, Some(37)),
            ),
            (
                "145, RLW_REMAP Nonfatal XC1 i0 Link -1 (0x00000004 0x80000000)",
                is(false, Some(0)),
            ),
            (
                "149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x026001c6]",
                is(true, Some(38)),
            ),
            ("149, NETIR_LINK_EVT Fatal XC0", is(true, None)),
            ("149, NETIR_LINK_EVT Fatal XC0 (0xzz)", is(true, None)),
            ("149, NETIR_LINK_EVT Lethal XC0 (0x0)", None),
            ("149, NETIR_LINK_EVT", None),
            ("149", None),
            ("79, GPU Fatal (0x0)", None),
            ("143, A Fatal (0x0)", None),
            ("151, A Fatal (0x0)", None),
        ] {
            assert_eq!(detail(text), expected, "{text}");
        }
    }

    #[test]
    fn records_of_programs_are_told_from_those_of_the_kernel() {
        let text = b"4,1234,567890,-,caller=T1;NVRM: loaded";
        let expected = Record {
            sequence: 1_234,
            is_kernel: true,
            message: "NVRM: loaded",
        };
        assert_eq!(record(text), Some(expected));
        assert!(
            !record(b"12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, x")
                .unwrap()
                .is_kernel
        );
        for broken in [
            &b""[..],
            b";",
            b"4;x",
            b"4,;x",
            b"-4,1,2,-;x",
            b"4,99999999999999999999999,2,-;x",
            b"4,1,2,-",
            b"4,1,2,-;\xff\xfe",
            &[b'4'; MOST_RECORD_BYTES + 1],
        ] {
            assert_eq!(record(broken), None);
        }
    }

    #[test]
    fn no_bytes_whatsoever_break_it() {
        let whole = b"4,1,2,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 149, A Fatal (0x1";
        for at in 0..whole.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = whole.to_vec();
                bytes[at] = byte;
                for end in [at, bytes.len()] {
                    // It may say nothing, or something else; it must end.
                    let _ = record(&bytes[..end]).and_then(|record| xid_line(record.message));
                }
            }
        }
    }
}
