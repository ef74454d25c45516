//! What is decided, and why.

use std::fmt;

use crate::{
    amount::{Amount, FlavorResource, Resource},
    names::{
        ClaimUid, CohortName, FlavorName, GangUid, LevelName, NodeName, PodUid, TeamName,
        TopologyName,
    },
};

/// A decision. One that could not be carried out comes back as an observation
/// ([`crate::Update`]), never as a retry of the same words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The gang gets a charge and a placement. The engine counts them as held from now on, until
    /// [`crate::State::undo`] says that they could not be committed or the holds say otherwise.
    Admit(Admission),
    /// The gang waits; told whenever the explanation changed.
    Explain(Explanation),
}

/// Leave to start: what is charged and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The gang.
    pub gang: GangUid,
    /// Its attempt.
    pub attempt: i64,
    /// The Team that is charged.
    pub team: TeamName,
    /// Generation of the Team whose limits it was judged by.
    pub team_generation: i64,
    /// Its pods, rank by rank.
    pub pods: Vec<AdmittedPod>,
    /// The Topology by which it was placed, if its Flavor names one.
    pub topology: Option<TopologyName>,
    /// The narrowest level whose one domain holds the gang, if one does; `node` if a single node does.
    pub level: Option<LevelName>,
    /// Path of that domain, outermost first.
    pub domain: Vec<String>,
}

/// One pod of an admitted gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPod {
    /// The pod.
    pub uid: PodUid,
    /// Its node.
    pub node: NodeName,
    /// Its claims, with what each is charged.
    pub claims: Vec<AdmittedClaim>,
    /// What it is charged besides claims.
    pub charged: Vec<(FlavorName, Resource, Amount)>,
}

/// What a claim is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedClaim {
    /// The claim.
    pub uid: ClaimUid,
    /// The Flavor.
    pub flavor: FlavorName,
    /// Thousandths of a GPU.
    pub gpus: Amount,
    /// Bytes of memory.
    pub vram: Amount,
}

/// Why a gang waits, and how far it is from the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The gang.
    pub gang: GangUid,
    /// Its place in its Team's queue, from 1.
    pub position: usize,
    /// Why, with numbers.
    pub why: Why,
}

/// Who stands in the way: gangs that hold what is asked for, largest first, at most three named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocker {
    /// `namespace/name` of gangs.
    pub gangs: Vec<String>,
    /// How many more there are.
    pub more: usize,
}

/// Why a gang waits. Its text names the numbers; the edge maps each variant to one stable reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The Team is stopped.
    TeamStopped,
    /// The Cohorts above the Team form a cycle: nothing of that tree is admitted until it is cut.
    CohortCycle {
        /// A Cohort on the cycle, the first by name.
        cohort: CohortName,
    },
    /// A gang before it in the same Team does not fit and the Team is `StrictFifo`.
    BehindHead {
        /// `namespace/name` of the gang before.
        head: String,
    },
    /// Others use the quota.
    Quota {
        /// Of which Flavor and resource.
        of: FlavorResource,
        /// Asked for.
        asked: Amount,
        /// What the Team could get now, borrowing included.
        available: Amount,
        /// Of that, what it would borrow.
        borrowable: Amount,
        /// Who uses it.
        blocker: Blocker,
    },
    /// More than the Team may ever have.
    ExceedsMaxQuota {
        /// Of which Flavor and resource.
        of: FlavorResource,
        /// Asked for.
        asked: Amount,
        /// The most that it may ever have.
        most: Amount,
    },
    /// No quota of the Team names a resource that is asked for.
    NoQuotaForResource {
        /// The resource.
        resource: Resource,
        /// The Flavors that the Team has.
        flavors: Vec<FlavorName>,
    },
    /// Quota is there, free nodes are not.
    Placement {
        /// Pods of the gang.
        pods: usize,
        /// How many of them fit at best, in one domain of the required level if there is one.
        fit: usize,
        /// The required level.
        level: Option<LevelName>,
        /// Nodes looked at.
        nodes: usize,
        /// Why nodes were left out: cause and number, most frequent first.
        excluded: Vec<(String, usize)>,
        /// Who occupies the nodes.
        blocker: Blocker,
    },
    /// It would not fit on the empty cluster.
    PlacementImpossible {
        /// Pods of the gang.
        pods: usize,
        /// How many fit on the empty cluster.
        fit: usize,
        /// The required level.
        level: Option<LevelName>,
        /// Nodes looked at.
        nodes: usize,
        /// Why nodes were left out: cause and number, most frequent first.
        excluded: Vec<(String, usize)>,
    },
    /// What others gave up is not proved released yet.
    Release {
        /// Pods whose devices are not proved released.
        pods: usize,
        /// Who held them.
        blocker: Blocker,
    },
    /// A claim is held by another gang.
    ClaimShared {
        /// The claim.
        claim: ClaimUid,
        /// `namespace/name` of the holder.
        holder: String,
    },
    /// A number does not fit.
    Overflow,
}

impl fmt::Display for Blocker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gangs.is_empty() {
            return formatter.write_str("nobody");
        }
        formatter.write_str(&self.gangs.join(", "))?;
        if self.more > 0 {
            write!(formatter, " and {} more", self.more)?;
        }
        Ok(())
    }
}
