//! The tier of a gang.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::batch::v1::Job;
use muster_api::{PriorityTier, PriorityTierSpec, Reason, Team};

use super::{
    declaration::{self, Declaring},
    forming::{Forming, NamespaceTeam},
};
use crate::formed::{PendingReason, Preemptible};

/// The tier of a gang.
pub(super) struct ResolvedTier {
    /// The tier that counts: the one that was named, else the Team's default, else the cluster's.
    pub(super) name: Option<String>,
    /// Its value; 0 without one.
    pub(super) value: i32,
    /// How a gang of it may be preempted.
    pub(super) preemptible: Preemptible,
}

impl Forming<'_, '_> {
    /// The tier that was named, be it one that there is or not: the Gang's, where it exists, since users change it there.
    pub(super) fn declared_tier(
        &self,
        declaring: &[Declaring<'_>],
        job: Option<&Job>,
    ) -> Result<Option<String>, PendingReason> {
        match self.gang {
            Some(gang) => Ok(gang.spec.tier.clone()),
            None => declaration::tier(declaring, job),
        }
    }

    /// The tier that counts.
    pub(super) fn tier(&self, declared: Option<&str>) -> Result<ResolvedTier, PendingReason> {
        let team = match &self.team {
            NamespaceTeam::Is(team) => Some(team.as_ref()),
            NamespaceTeam::Unnamed | NamespaceTeam::Unknown(_) => None,
        };
        let counts = tier_that_counts(declared, team, self.tiers)?;
        Ok(ResolvedTier {
            name: counts.map(|(name, _)| name.to_owned()),
            value: counts.map_or(0, |(_, tier)| tier.spec.value),
            preemptible: counts.map_or_else(Preemptible::default, |(_, tier)| {
                Preemptible::of(&tier.spec, team)
            }),
        })
    }
}

impl Preemptible {
    /// As a tier and a Team say.
    fn of(tier: &PriorityTierSpec, team: Option<&Team>) -> Self {
        let of_team = team.and_then(|team| team.spec.min_runtime_seconds);
        let notice = tier.notice_seconds;
        Self {
            when: tier.preemption,
            notice_seconds: notice
                .unwrap_or(PriorityTierSpec::DEFAULT_NOTICE_SECONDS)
                .clamp(0, PriorityTierSpec::MOST_NOTICE_SECONDS),
            min_runtime_seconds: tier.min_runtime_seconds.max(of_team).unwrap_or(0).max(0),
        }
    }
}

/// The tier that is named, else the Team's default, else the cluster's, if there is one.
fn tier_that_counts<'a>(
    declared: Option<&str>,
    team: Option<&Team>,
    tiers: &'a BTreeMap<String, Arc<PriorityTier>>,
) -> Result<Option<(&'a str, &'a PriorityTier)>, PendingReason> {
    let of_team = team.and_then(|team| team.spec.tiers.as_ref());
    let named = declared.or_else(|| of_team.and_then(|tiers| tiers.default.as_deref()));
    let Some(name) = named.or_else(|| default_tier(tiers)) else {
        return Ok(None);
    };
    let refuse = |why: String| {
        Err(PendingReason {
            reason: Reason::TierNotAllowed,
            details: why,
        })
    };
    let Some((name, tier)) = tiers.get_key_value(name) else {
        let known: Vec<_> = tiers.keys().map(String::as_str).collect();
        return refuse(format!(
            "there is no PriorityTier {name}; there are: {}",
            known.join(", ")
        ));
    };
    let allowed = of_team
        .map(|tiers| tiers.allowed.as_slice())
        .unwrap_or_default();
    if !allowed.is_empty() && !allowed.iter().any(|allowed| allowed == name) {
        let team = team
            .and_then(|team| team.metadata.name.as_deref())
            .unwrap_or_default();
        return refuse(format!(
            "Team {team} may not use tier {name}; it may use: {}",
            allowed.join(", ")
        ));
    }
    Ok(Some((name.as_str(), tier.as_ref())))
}

/// The tier marked as default: of several the highest value, then the first name.
pub(crate) fn default_tier(tiers: &BTreeMap<String, Arc<PriorityTier>>) -> Option<&str> {
    tiers
        .iter()
        .filter(|(_, tier)| tier.spec.default)
        .min_by_key(|(name, tier)| (std::cmp::Reverse(tier.spec.value), *name))
        .map(|(name, _)| name.as_str())
}
