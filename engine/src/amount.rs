//! Amounts of resources, on checked integers: an overflow is an error, never a wrap.

use std::{fmt, sync::Arc};

use crate::names::FlavorName;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// GPUs, in thousandths; a whole GPU is 1000.
    Gpus,
    /// Device memory, in bytes.
    Vram,
    /// Cores, in thousandths.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// An extended resource, in units.
    Extended(Arc<str>),
}

impl fmt::Display for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Gpus => "gpus",
            Self::Vram => "vram",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Extended(name) => name,
        })
    }
}

/// A resource of a Flavor: the key of all quota arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlavorResource {
    /// The Flavor.
    pub flavor: FlavorName,
    /// The resource.
    pub resource: Resource,
}

/// An amount, in the unit that its [`Resource`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub i64);

/// What is charged of one resource of one Flavor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceCharge {
    /// The Flavor and resource.
    pub of: FlavorResource,
    /// How much of it.
    pub amount: Amount,
}

impl ResourceCharge {
    /// So much of a resource of a Flavor.
    pub fn new(flavor: FlavorName, resource: Resource, amount: Amount) -> Self {
        Self {
            of: FlavorResource { flavor, resource },
            amount,
        }
    }
}

/// A sum did not fit into 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an amount exceeds what can be counted")]
pub struct Overflow;

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// One whole GPU.
    pub const ONE_GPU: Self = Self(1000);

    /// The sum.
    #[allow(
        clippy::should_implement_trait,
        reason = "an operator could not return the error"
    )]
    pub fn add(self, other: Self) -> Result<Self, Overflow> {
        self.0.checked_add(other.0).map(Self).ok_or(Overflow)
    }

    /// The difference.
    pub fn subtract(self, other: Self) -> Result<Self, Overflow> {
        self.0.checked_sub(other.0).map(Self).ok_or(Overflow)
    }

    /// The product with a count.
    pub fn times(self, count: usize) -> Result<Self, Overflow> {
        let count = i64::try_from(count).map_err(|_| Overflow)?;
        self.0.checked_mul(count).map(Self).ok_or(Overflow)
    }
}
