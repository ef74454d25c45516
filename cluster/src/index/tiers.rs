//! Which gangs a change of a PriorityTier touches.

use muster_api::PriorityTier;

use super::{Index, store::Changed};
use crate::{
    formed::{FormedGang, GangKey},
    gangs::NamespaceTeam,
    links::Links,
    table::Table,
};

/// The tier that a gang uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum TierUse {
    /// The cluster's default.
    Default,
    /// One that exists.
    Known(String),
    /// One that does not exist: its reason lists those that do.
    Unknown,
}

/// Gangs by the tier that they use.
#[derive(Debug, Default)]
pub(super) struct TierUses {
    of_gang: Table<GangKey, TierUse>,
    gangs: Links<TierUse, GangKey>,
}

impl TierUses {
    fn set(&mut self, gang: &GangKey, used: Option<TierUse>) {
        if self.of_gang.get(gang) == used.as_ref() {
            return;
        }
        if let Some(old) = self.of_gang.remove(gang) {
            self.gangs.unlink(&old, gang);
        }
        if let Some(used) = used {
            self.gangs.link(used.clone(), gang.clone());
            self.of_gang.insert(gang.clone(), used);
        }
    }
}

impl Index {
    pub(super) fn tier_changed(&mut self, name: &str, changed: &Changed<PriorityTier>) {
        let [old, new] =
            [&changed.old, &changed.new].map(|tier| tier.as_ref().map(|tier| &tier.spec));
        if old == new {
            return;
        }
        let mut uses = vec![TierUse::Known(name.to_owned())];
        if changed.both().any(|tier| tier.spec.default) {
            uses.push(TierUse::Default);
        }
        if changed.old.is_none() || changed.new.is_none() {
            uses.push(TierUse::Unknown);
        }
        let gangs = uses.iter().flat_map(|used| self.tier_uses.gangs.of(used));
        self.touched.gangs.extend(gangs.cloned());
    }

    /// Notes which tier the gang uses: the one that it names, else its Team's default, else the cluster's.
    pub(super) fn note_tier_use(&mut self, key: &GangKey, formed: Option<&FormedGang>) {
        let used = formed.map(|formed| {
            let of_team = match self.namespace_team(&key.namespace) {
                NamespaceTeam::Is(team) => team.spec.tiers.as_ref().and_then(|t| t.default.clone()),
                NamespaceTeam::Unnamed | NamespaceTeam::Unknown(_) => None,
            };
            match formed.spec.tier.clone().or(of_team) {
                None => TierUse::Default,
                Some(name) if self.objects.priority_tiers.get(&name).is_some() => {
                    TierUse::Known(name)
                }
                Some(_) => TierUse::Unknown,
            }
        });
        self.tier_uses.set(key, used);
    }
}
