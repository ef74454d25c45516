//! A small cluster and the gangs that its users submit, drawn from a seed.

use std::collections::BTreeSet;

use muster_api::{TierPreemption, keys};
use muster_protocol::OnCordon;

use crate::{fixtures::TIERS, random::Random};

pub(crate) mod apart;
mod owner;

pub use owner::{
    Counting, HARDSHIPS, Hardship, Hardships, JobShape, OwnerKind, Parent, Progress, Ranks,
};

/// What a run begins with, and what is submitted while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The nodes, in the order of their names.
    pub nodes: Vec<NodeShape>,
    /// The Teams; all are in one Cohort.
    pub teams: Vec<TeamShape>,
    /// What is submitted.
    pub gangs: Vec<GangShape>,
    /// What only an eviction puts right.
    pub hardships: Hardships,
    /// How long a Gang that ended is kept, in seconds.
    pub keep_ended_seconds: i64,
    /// Bytes of an intent up to which it stands whole in the Ledger; larger ones are proposed first.
    pub whole_intent_bytes: usize,
    /// What is done about gangs on what administrators drain.
    pub on_cordon: OnCordon,
}

/// What the chart ships: far above what these gangs need.
pub const WHOLE_INTENT_BYTES: usize = 32 * 1024;
/// As long as nothing runs here, by the clock of any leader: whoever is ended for it is ended too early.
const MAX_RUNTIME_SECONDS: u32 = 24 * 60 * 60;
/// About what a gang of two pods needs.
const MIDDLING_INTENT_BYTES: usize = 700;

/// A kind of GPUs. Each has a Flavor of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Product {
    /// Counted by a selector over devices.
    H100,
    /// Counted by a label of nodes.
    A100,
}

impl Product {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::H100, Self::A100];

    /// What its devices call themselves.
    pub fn name(self) -> &'static str {
        match self {
            Self::H100 => "H100",
            Self::A100 => "A100",
        }
    }

    /// Name of its Flavor.
    pub fn flavor(self) -> &'static str {
        match self {
            Self::H100 => "h100",
            Self::A100 => "a100",
        }
    }
}

/// A node with GPUs of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// Its name.
    pub name: String,
    /// Its leaf switch.
    pub leaf: String,
    /// Which GPUs it has.
    pub product: Product,
    /// How many.
    pub gpus: usize,
}

/// A Team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamShape {
    /// Its name.
    pub name: String,
    /// Its namespaces. The first has its name, and is the only one of a Team without fairness.
    pub namespaces: Vec<String>,
    /// How its namespaces take turns, if they do.
    pub fairness: Option<FairnessShape>,
    /// Its quota, at most one for each kind of GPUs, in the order in which Flavors are tried. It gets no other kind.
    pub quotas: Vec<QuotaShape>,
}

/// How the namespaces of a Team take turns by what they used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairnessShape {
    /// After how many seconds half of what was used counts.
    pub half_life_seconds: i64,
    /// How often what is held is looked at, in seconds.
    pub sampling_interval_seconds: i64,
}

/// What a Team may have of one kind of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaShape {
    /// The kind.
    pub product: Product,
    /// GPUs guaranteed to it.
    pub nominal_gpus: usize,
    /// GPUs that it may borrow; no limit without.
    pub borrowing_gpus: Option<usize>,
}

/// As the time of a gang that a script submits.
pub const BY_SCRIPT: u64 = u64::MAX;

/// A claim that its user makes, and that several pods of a gang name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedClaim {
    /// Its name. Another gang's is waited for while that gang holds it.
    pub name: String,
    /// How many pods name it: those of the lowest ranks.
    pub pods: usize,
    /// Its GPUs.
    pub gpus: usize,
}

/// A gang that is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangShape {
    /// Name of its Job, or value of its label.
    pub name: String,
    /// Its Team.
    pub team: String,
    /// Its namespace, which is one of its Team's.
    pub namespace: String,
    /// Who makes its pods.
    pub owner: OwnerKind,
    /// Number of pods.
    pub pods: usize,
    /// With how many of them it may start at the least, if not with all only.
    pub min_count: Option<usize>,
    /// For how long an attempt runs at most, if it says so.
    pub max_runtime_seconds: Option<u32>,
    /// How often it is started anew after its own pods failed, if it says so.
    pub max_restarts: Option<u32>,
    /// The kind of GPUs that it asks for; any without.
    pub product: Option<Product>,
    /// GPUs that each pod has for itself; only where all share a claim may it have none.
    pub gpus_per_pod: usize,
    /// Claims that they are spread over, evenly.
    pub claims_per_pod: usize,
    /// What pods of it share.
    pub shared: Option<SharedClaim>,
    /// Which of the [tiers](crate::fixtures::TIERS) it asks for; the first is what it gets without asking.
    pub tier: usize,
    /// What its ranks do.
    pub ranks: Ranks,
    /// When it is submitted, in milliseconds of the run.
    pub submitted_at: u64,
}

impl Scenario {
    /// The scenario of a seed: every gang fits the empty cluster and its Team's limits on one kind of GPUs, with all its pods or as many as
    /// it may start with at the least.
    pub fn draw(random: &mut Random, hardships: &Hardships) -> Self {
        let nodes = nodes(random);
        let teams = teams(random, &nodes);
        let count = random.between(2, 5);
        let keep_ended_seconds = if random.one_in(3) { 60 } else { 3_600 };
        let mut gangs: Vec<GangShape> = (0..count)
            .map(|number| gang(random, number, &nodes, &teams, hardships))
            .collect();
        gangs.extend(guest(random, &gangs));
        let whole_intent_bytes = [0, MIDDLING_INTENT_BYTES, WHOLE_INTENT_BYTES][random.index(3)];
        Self {
            nodes,
            teams,
            gangs,
            hardships: hardships.clone(),
            keep_ended_seconds,
            whole_intent_bytes,
            on_cordon: OnCordon::Nothing,
        }
    }

    /// GPUs of a kind that the Cohort's members are guaranteed together: no more is ever in use.
    pub fn cohort_gpus(&self, product: Product) -> usize {
        self.teams
            .iter()
            .filter_map(|team| team.quota(product))
            .map(|quota| quota.nominal_gpus)
            .sum()
    }

    /// Most GPUs of a kind that a Team may use at a time.
    pub fn most_gpus(&self, team: &TeamShape, product: Product) -> usize {
        let all = self.cohort_gpus(product);
        team.quota(product).map_or(0, |quota| {
            quota
                .borrowing_gpus
                .map_or(all, |borrowing| all.min(quota.nominal_gpus + borrowing))
        })
    }
}

impl TeamShape {
    /// A Team with one namespace of its name, that is guaranteed so many GPUs of one kind, and may borrow whatever others do not use. It says nothing else.
    pub fn with_quota(name: &str, product: Product, nominal_gpus: usize) -> Self {
        Self {
            name: name.to_owned(),
            namespaces: vec![name.to_owned()],
            fairness: None,
            quotas: vec![QuotaShape {
                product,
                nominal_gpus,
                borrowing_gpus: None,
            }],
        }
    }

    /// Whether so many of its gangs are evicted where it uses more than it may that the others are within its limits. Some Teams say so, by
    /// what they are guaranteed.
    pub fn evicts(&self) -> bool {
        let nominal = self.quotas.iter().map(|quota| quota.nominal_gpus);
        nominal.sum::<usize>() % 2 == 0
    }

    /// What it may have of a kind of GPUs.
    pub fn quota(&self, product: Product) -> Option<&QuotaShape> {
        self.quotas.iter().find(|quota| quota.product == product)
    }
}

impl GangShape {
    /// A gang of so many pods with a GPU each, which says nothing else, in the namespace of its Team of that name. A script submits it.
    pub fn plain(name: &str, team: &str, owner: OwnerKind, pods: usize) -> Self {
        Self {
            name: name.to_owned(),
            team: team.to_owned(),
            namespace: team.to_owned(),
            owner,
            pods,
            min_count: None,
            max_runtime_seconds: None,
            max_restarts: None,
            product: None,
            gpus_per_pod: 1,
            claims_per_pod: 1,
            shared: None,
            tier: 0,
            ranks: Ranks::default(),
            submitted_at: BY_SCRIPT,
        }
    }

    /// The Job that makes its pods, if one does.
    pub fn job(&self) -> &JobShape {
        match &self.owner {
            OwnerKind::Job(job) => job,
            _ => &JobShape::PATIENT,
        }
    }

    /// With how many pods it may start at the least.
    fn least_pods(&self) -> usize {
        self.min_count.unwrap_or(self.pods)
    }

    /// All GPUs that it needs to start.
    fn gpus(&self) -> usize {
        self.least_pods() * self.gpus_per_pod + self.shared.as_ref().map_or(0, |shared| shared.gpus)
    }
}

/// Whether a gang fits the empty nodes of a kind, those of its pods that share a claim all on one node.
fn has_place(gang: &GangShape, nodes: &[NodeShape], product: Product) -> bool {
    let Some(shared) = &gang.shared else {
        return gang.least_pods() <= pods_that_fit(nodes, product, gang.gpus_per_pod);
    };
    let together = shared.pods * gang.gpus_per_pod + shared.gpus;
    let nodes = nodes.iter().filter(|node| node.product == product);
    // With at most one GPU of its own each, the other pods fit wherever something is left.
    let largest = nodes.clone().map(|node| node.gpus).max();
    let all: usize = nodes.map(|node| node.gpus).sum();
    gang.gpus_per_pod <= 1 && largest >= Some(together) && all >= gang.gpus()
}

fn pods_that_fit(nodes: &[NodeShape], product: Product, gpus_per_pod: usize) -> usize {
    let nodes = nodes.iter().filter(|node| node.product == product);
    nodes.map(|node| node.gpus / gpus_per_pod).sum()
}

/// Nodes of one kind of GPUs, or of two.
fn nodes(random: &mut Random) -> Vec<NodeShape> {
    let count = random.between(2, 4);
    let first = Product::ALL[random.index(Product::ALL.len())];
    let is_mixed = random.one_in(2);
    (0..count)
        .map(|number| NodeShape {
            name: format!("node-{number}"),
            leaf: format!("leaf-{}", number / 2),
            product: match number {
                0 => first,
                _ if !is_mixed => first,
                1 => other_than(first),
                _ => Product::ALL[random.index(Product::ALL.len())],
            },
            gpus: 2 * usize::from(random.one_in(3)) + 2,
        })
        .collect()
}

fn other_than(product: Product) -> Product {
    match product {
        Product::H100 => Product::A100,
        Product::A100 => Product::H100,
    }
}

/// Each kind of GPUs that there is has its own quota: with one Team, or both.
fn teams(random: &mut Random, nodes: &[NodeShape]) -> Vec<TeamShape> {
    let names = ["blue", "green"];
    let count = 1 + random.index(2);
    let mut teams: Vec<TeamShape> = names
        .iter()
        .take(count)
        .map(|name| TeamShape {
            name: (*name).to_owned(),
            namespaces: vec![(*name).to_owned()],
            fairness: None,
            quotas: Vec::new(),
        })
        .collect();
    let mut products: Vec<Product> = nodes
        .iter()
        .map(|node| node.product)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    random.shuffle(&mut products);
    let is_mixed = products.len() > 1;
    for product in products {
        let mut members: Vec<&mut TeamShape> = teams.iter_mut().collect();
        if is_mixed && members.len() > 1 && random.one_in(3) {
            members.swap_remove(random.index(members.len()));
        }
        let nodes = nodes.iter().filter(|node| node.product == product);
        share_out(random, product, nodes.map(|node| node.gpus).sum(), members);
    }
    for team in &mut teams {
        // Flavors are tried in another order by each Team.
        random.shuffle(&mut team.quotas);
    }
    let mut aside = aside(random);
    teams
        .into_iter()
        .map(|team| taking_turns(&mut aside, team))
        .collect()
}

/// Every third Team has two namespaces, or three, that take turns by what they used. Gangs run for seconds here and not for days, so
/// both times are shorter than an administrator may set them.
fn taking_turns(random: &mut Random, team: TeamShape) -> TeamShape {
    if !random.one_in(3) {
        return team;
    }
    let more = (1..=random.between(1, 2)).map(|number| format!("{}-{number}", team.name));
    TeamShape {
        namespaces: team.namespaces.iter().cloned().chain(more).collect(),
        fairness: Some(FairnessShape {
            half_life_seconds: [5, 20][random.index(2)],
            sampling_interval_seconds: 5,
        }),
        ..team
    }
}

/// Quota for all GPUs of a kind, or for two fewer, so that now quota and now place is what a gang waits for.
fn share_out(random: &mut Random, product: Product, gpus: usize, members: Vec<&mut TeamShape>) {
    let quota = gpus - 2 * usize::from(gpus > 2 && random.one_in(2));
    let mut left = quota;
    let count = members.len();
    for (number, team) in members.into_iter().enumerate() {
        let nominal_gpus = if number + 1 == count {
            left
        } else {
            random.index(left + 1)
        };
        left -= nominal_gpus;
        team.quotas.push(QuotaShape {
            product,
            nominal_gpus,
            borrowing_gpus: random.one_in(3).then(|| random.index(quota + 1)),
        });
    }
}

fn gang(
    random: &mut Random,
    number: u64,
    nodes: &[NodeShape],
    teams: &[TeamShape],
    hardships: &Hardships,
) -> GangShape {
    let scenario = Scenario {
        nodes: nodes.to_vec(),
        teams: teams.to_vec(),
        gangs: Vec::new(),
        hardships: Hardships::default(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
        on_cordon: OnCordon::Nothing,
    };
    let able: Vec<(&TeamShape, Product)> = teams
        .iter()
        .flat_map(|team| team.quotas.iter().map(move |quota| (team, quota.product)))
        .filter(|(team, product)| scenario.most_gpus(team, *product) > 0)
        .collect();
    // The kind that it is made to fit; whether it asks for it is another question.
    let (team, home) = random.pick(able).unwrap_or((&teams[0], nodes[0].product));
    let most = scenario.most_gpus(team, home);
    let gpus_per_pod = 1 + random.index(most.min(2));
    let fits = pods_that_fit(nodes, home, gpus_per_pod);
    let pods = 1 + random.index(4.min(fits).min(most / gpus_per_pod).max(1));
    let claims_per_pod = 1 + random.index(gpus_per_pod);
    let owner = owner::draw(random, hardships);
    let namespaces = &team.namespaces;
    let gang = GangShape {
        name: format!("gang-{number}"),
        team: team.name.clone(),
        namespace: namespaces[aside(random).index(namespaces.len())].clone(),
        owner,
        pods,
        min_count: None,
        // By a generator of another seed than that of the namespace, which is drawn at the same place.
        max_runtime_seconds: Random::new(aside(random).below(u64::MAX))
            .one_in(3)
            .then_some(MAX_RUNTIME_SECONDS),
        // So many that none runs out of them: what is looked at is that its Job bears with them.
        max_restarts: hardships
            .have(Hardship::BrokenDevices)
            .then_some(keys::MOST_RESTARTS),
        product: random.one_in(2).then_some(home),
        gpus_per_pod,
        claims_per_pod,
        shared: None,
        tier: if hardships.have(Hardship::Preemptions) {
            [0, 0, 1, 1, 2][aside(random).index(5)]
        } else {
            0
        },
        ranks: owner::draw_ranks(random, owner, hardships),
        submitted_at: random.below(20_000),
    };
    let sharing = sharing(random, &gang, nodes, most, home);
    let gang = sharing.unwrap_or(gang);
    let gang = if hardships.have(Hardship::FewerPods) {
        starting_with_fewer(&mut aside(random), gang)
    } else {
        gang
    };
    let guaranteed = team.quota(home).map_or(0, |quota| quota.nominal_gpus);
    let (_, _, preemption) = TIERS[gang.tier];
    // Whom nobody may preempt borrows nothing, and would wait for ever.
    let never_fits = preemption == TierPreemption::Never && gang.gpus() > guaranteed;
    GangShape {
        tier: if never_fits { 0 } else { gang.tier },
        ..gang
    }
}

/// Every other gang of a Job that counts what is done may start with fewer pods, and may have more than ever fit.
fn starting_with_fewer(random: &mut Random, gang: GangShape) -> GangShape {
    let is_counted =
        matches!(&gang.owner, OwnerKind::Job(job) if job.counting == Counting::Indexed);
    if !is_counted || gang.shared.is_some() || random.one_in(2) {
        return gang;
    }
    GangShape {
        min_count: Some(1 + random.index(gang.pods)),
        pods: gang.pods + random.index(4),
        ..gang
    }
}

/// Chance that leaves what is drawn next as it would be without.
fn aside(random: &Random) -> Random {
    Random::new(random.clone().below(u64::MAX))
}

/// Now and then pods of a gang share a claim, those of a Job all of them: they are equal. `None` where the gang would not
/// fit then.
fn sharing(
    random: &mut Random,
    gang: &GangShape,
    nodes: &[NodeShape],
    most_gpus: usize,
    home: Product,
) -> Option<GangShape> {
    if !gang.owner.is_finite() || !random.one_in(3) {
        return None;
    }
    let pods = gang.pods.max(2);
    let sharing = match gang.owner {
        OwnerKind::User => 2 + random.index(pods - 1),
        _ => pods,
    };
    let own = usize::from(sharing < pods || random.one_in(2));
    let gang = GangShape {
        pods,
        gpus_per_pod: own,
        claims_per_pod: own,
        shared: Some(SharedClaim {
            name: format!("{}-shared", gang.name),
            pods: sharing,
            gpus: 1 + random.index(2),
        }),
        ..gang.clone()
    };
    (gang.gpus() <= most_gpus && has_place(&gang, nodes, home)).then_some(gang)
}

/// Every other time a pod of another gang names a claim that a gang shares. It has to wait for that gang to end.
fn guest(random: &mut Random, gangs: &[GangShape]) -> Option<GangShape> {
    let host = gangs.iter().find(|gang| gang.shared.is_some())?;
    let shared = host.shared.as_ref()?;
    random.one_in(2).then(|| GangShape {
        name: "guest".to_owned(),
        pods: 1,
        gpus_per_pod: 0,
        claims_per_pod: 0,
        shared: Some(SharedClaim {
            pods: 1,
            ..shared.clone()
        }),
        submitted_at: random.below(20_000),
        ..host.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the gang fits the empty cluster and its Team's limits on GPUs of this kind.
    fn fits(scenario: &Scenario, gang: &GangShape, product: Product) -> bool {
        let team = scenario.teams.iter().find(|team| team.name == gang.team);
        let most = team.map_or(0, |team| scenario.most_gpus(team, product));
        gang.product.is_none_or(|wanted| wanted == product)
            && gang.gpus() <= most
            && has_place(gang, &scenario.nodes, product)
    }

    #[test]
    fn every_gang_fits_the_empty_cluster_and_the_limits_of_its_team() {
        let both = [Hardships::default(), Hardships::borne()];
        for (seed, hardships) in (0..500).flat_map(|seed| both.iter().map(move |it| (seed, it))) {
            let scenario = Scenario::draw(&mut Random::new(seed), hardships);
            for node in &scenario.nodes {
                assert!(scenario.cohort_gpus(node.product) >= 2, "seed {seed}");
            }
            for gang in &scenario.gangs {
                let mut products = Product::ALL.into_iter();
                assert!(
                    products.any(|product| fits(&scenario, gang, product)),
                    "seed {seed}: {gang:?}"
                );
            }
        }
    }

    #[test]
    fn gangs_that_may_start_with_fewer_pods_change_nothing_else_of_what_is_drawn() {
        let mut fewer = 0;
        for seed in 0..500 {
            let drawn = |hardships: &Hardships| Scenario::draw(&mut Random::new(seed), hardships);
            let without = drawn(&Hardships::borne().without(Hardship::FewerPods));
            let with = drawn(&Hardships::borne());
            assert_eq!(without.gangs.len(), with.gangs.len(), "seed {seed}");
            for (whole, gang) in without.gangs.iter().zip(&with.gangs) {
                assert_eq!(whole.min_count, None, "seed {seed}");
                if let Some(least) = gang.min_count {
                    assert!((1..=whole.pods).contains(&least), "seed {seed}: {gang:?}");
                    fewer += usize::from(least < gang.pods);
                }
                let as_whole = GangShape {
                    pods: whole.pods,
                    min_count: None,
                    tier: whole.tier,
                    ..gang.clone()
                };
                assert_eq!(*whole, as_whole, "seed {seed}");
            }
        }
        assert!(fewer > 100, "{fewer}");
    }

    #[test]
    fn every_mix_of_products_quotas_and_wishes_is_drawn() {
        let mut seen = BTreeSet::new();
        for seed in 0..500 {
            let scenario = Scenario::draw(&mut Random::new(seed), &Hardships::default());
            let products: BTreeSet<_> = scenario.nodes.iter().map(|node| node.product).collect();
            seen.insert(format!("{} products", products.len()));
            for team in &scenario.teams {
                let namespaces = team.namespaces.len();
                assert_eq!(namespaces > 1, team.fairness.is_some(), "seed {seed}");
                seen.insert(format!("{namespaces} namespaces"));
                let order: Vec<_> = team.quotas.iter().map(|quota| quota.product).collect();
                seen.insert(format!("quota of {order:?}"));
            }
            for gang in &scenario.gangs {
                let says = gang.max_runtime_seconds.is_some();
                seen.insert(format!("says for how long it runs: {says}"));
                let mut teams = scenario.teams.iter();
                let team = teams.find(|team| team.name == gang.team).unwrap();
                let number = team.namespaces.iter().position(|it| *it == gang.namespace);
                seen.insert(format!("a gang in namespace {}", number.unwrap()));
                let both = Product::ALL.into_iter();
                let fitting = both
                    .filter(|product| fits(&scenario, gang, *product))
                    .count();
                seen.insert(format!("asks for {:?}, fits {fitting}", gang.product));
                if let Some(shared) = &gang.shared {
                    let all = if shared.pods == gang.pods {
                        "all"
                    } else {
                        "some"
                    };
                    let own = gang.gpus_per_pod;
                    let whose = if gang.name == "guest" {
                        "another's"
                    } else {
                        "its own"
                    };
                    let owner = if gang.owner == OwnerKind::User {
                        "User"
                    } else {
                        "Job"
                    };
                    let shape = format!("{owner}: {all} share {whose}, {own} besides");
                    seen.insert(shape);
                }
            }
        }
        let expected = [
            "1 products",
            "2 products",
            "1 namespaces",
            "2 namespaces",
            "3 namespaces",
            "a gang in namespace 0",
            "a gang in namespace 1",
            "a gang in namespace 2",
            "quota of [H100]",
            "quota of [A100]",
            "quota of [H100, A100]",
            "quota of [A100, H100]",
            "says for how long it runs: false",
            "says for how long it runs: true",
            "asks for Some(H100), fits 1",
            "asks for Some(A100), fits 1",
            "asks for None, fits 1",
            "asks for None, fits 2",
            "Job: all share its own, 0 besides",
            "Job: all share its own, 1 besides",
            "User: all share its own, 0 besides",
            "User: all share its own, 1 besides",
            "User: some share its own, 1 besides",
            "Job: all share another's, 0 besides",
            "User: all share another's, 0 besides",
        ];
        for wanted in expected {
            assert!(seen.contains(wanted), "{wanted} is never drawn: {seen:?}");
        }
    }
}
