//! The two rules on which it rests that what is known of a fault falls only once that is mended (S7): a program that begins goes on from what
//! was remembered, and what is seen is added to what is known.
//!
//! Both are pure, so that the simulation of a driver runs the code that ships. Each can be broken on purpose, to show that the simulation sees it. Without
//! the cargo feature `injected-bugs` none can: nothing plants one, and [`FaultBugs`] says so at compile time. A program that ships never has the
//! feature.

use muster_device::faults::{Catalogue, Change, Device, FaultState, KnownAddresses, Observation};

/// A rule about faults that can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultBug {
    /// Who begins knows nothing of what was remembered.
    ForgottenAtStart,
    /// What a GPU had is forgotten with the next that is seen of it, however mild that is.
    LastEventWins,
}

impl FaultBug {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::ForgottenAtStart, Self::LastEventWins];
}

/// The rules that are broken: at most one, and none without the feature.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultBugs {
    #[cfg(feature = "injected-bugs")]
    planted: Option<FaultBug>,
}

impl FaultBugs {
    /// Breaks a rule.
    #[cfg(feature = "injected-bugs")]
    pub fn plant(bug: FaultBug) -> Self {
        Self { planted: Some(bug) }
    }

    /// Whether the rule is broken.
    #[cfg(feature = "injected-bugs")]
    fn has(self, bug: FaultBug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether the rule is broken: never.
    #[cfg(not(feature = "injected-bugs"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    fn has(self, _: FaultBug) -> bool {
        false
    }
}

/// What a program knows that begins on a machine with this boot id: what was remembered, if anything was.
pub fn begin(remembered: Option<FaultState>, boot_id: &str, bugs: FaultBugs) -> FaultState {
    let remembered = remembered.filter(|_| !bugs.has(FaultBug::ForgottenAtStart));
    let mut state = remembered.unwrap_or_default();
    state.begin_boot(boot_id);
    state
}

/// Adds what is seen of a device to what is known, and counts it if there is a rule about how often it comes. What of that is new.
pub fn see(
    state: &mut FaultState,
    catalogue: &Catalogue,
    known: &KnownAddresses,
    device: &Device,
    observation: Observation,
    now_unix_seconds: i64,
    bugs: FaultBugs,
) -> Change {
    if bugs.has(FaultBug::LastEventWins)
        && let Some(uuid) = known.uuid(device)
    {
        state.forget(uuid);
    }
    state.observe_by(catalogue, device, observation, known, now_unix_seconds)
}

#[cfg(test)]
mod tests {
    use muster_device::faults::{Cause, FaultClass, Scope};

    use super::*;

    #[test]
    fn s7_what_is_remembered_outlives_a_begin_and_what_is_milder() {
        let known = KnownAddresses([("GPU-0".to_owned(), None)].into());
        let device = Device::Uuid("GPU-0".to_owned());
        let catalogue = Catalogue::shipped();
        let none = FaultBugs::default();
        let mut state = begin(None, "one", none);
        let see = |state: &mut FaultState, class, xid| {
            let observation = Observation {
                class,
                scope: Scope::Gpu,
                cause: Cause::Xid(xid),
            };
            see(state, &catalogue, &known, &device, observation, 0, none)
        };
        let worst = |state: &FaultState| state.fault("GPU-0", None).map(|fault| fault.class);
        assert_eq!(see(&mut state, FaultClass::Reset, 48), Change::New);
        assert_eq!(see(&mut state, FaultClass::App, 13), Change::New);
        assert_eq!(worst(&state), Some(FaultClass::Reset));
        for boot in ["one", "two"] {
            let mut next = begin(Some(state.clone()), boot, none);
            assert_eq!(worst(&next), Some(FaultClass::Reset), "{boot}");
            see(&mut next, FaultClass::App, 13);
            assert_eq!(worst(&next), Some(FaultClass::Reset), "{boot}");
        }
    }
}
