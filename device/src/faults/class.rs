//! How bad a fault is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a fault asks for, from the mildest to the worst. Classes are combined by the worst of them; each of a device is remembered
/// by itself, because each is over by a proof of its own ([`super::Proof::heals`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FaultClass {
    /// Nothing: it is worth knowing.
    Info,
    /// Nothing of the hardware: an application ended by its own doing.
    App,
    /// Memory was lost, and whoever used it ended. The rest of the GPU goes on.
    Contained,
    /// NVLink: whoever needs it cannot go on.
    Link,
    /// Nobody knows: nothing new is placed there until a person has looked.
    Unknown,
    /// The GPU is of no use until it is reset.
    Reset,
    /// The GPU is of no use until the machine is started again.
    Reboot,
    /// The GPU is to be exchanged.
    Retire,
}

impl FaultClass {
    /// All of them, ascending.
    pub const ALL: [Self; 8] = [
        Self::Info,
        Self::App,
        Self::Contained,
        Self::Link,
        Self::Unknown,
        Self::Reset,
        Self::Reboot,
        Self::Retire,
    ];

    /// Its name: value of taints and labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "Info",
            Self::App => "App",
            Self::Contained => "Contained",
            Self::Link => "Link",
            Self::Unknown => "Unknown",
            Self::Reset => "Reset",
            Self::Reboot => "Reboot",
            Self::Retire => "Retire",
        }
    }

    /// The class of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// Whether nothing new is placed where it stands. The others are anomalies: they are told, and fade.
    pub fn is_fault(self) -> bool {
        self >= Self::Contained
    }

    /// Whether it is true of a slice alone where it is known which: what is true of an application, or of its memory, is; all else the
    /// slices of a GPU share.
    pub(super) fn is_of_slices(self) -> bool {
        match self {
            Self::Info | Self::App | Self::Contained | Self::Unknown => true,
            Self::Link | Self::Reset | Self::Reboot | Self::Retire => false,
        }
    }

    /// Whether the whole node is closed to what is new: what is to come costs all that runs there.
    pub fn closes_node(self) -> bool {
        self == Self::Reboot
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A class that a later version wrote is one that this version does not know, which is a class.
impl From<String> for FaultClass {
    fn from(name: String) -> Self {
        Self::named(&name).unwrap_or(Self::Unknown)
    }
}

impl From<FaultClass> for String {
    fn from(class: FaultClass) -> Self {
        class.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_are_read_by_their_names() {
        assert!(FaultClass::ALL.is_sorted());
        for class in FaultClass::ALL {
            let text = serde_json::to_string(&class).unwrap();
            assert_eq!(text, format!("\"{class}\""));
            assert_eq!(serde_json::from_str::<FaultClass>(&text).unwrap(), class);
        }
        let later: FaultClass = serde_json::from_str("\"Sinking\"").unwrap();
        assert_eq!(later, FaultClass::Unknown);
        assert!(later.is_fault());
    }
}
