//! The model, and the engine with it, against the cases of Kueue's own tests: that both agree is not enough.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::quota::{
    self, BorrowWithinCohort, FairStrategy, PreemptionPolicy, PreemptionReason,
    ReclaimWithinCohort, Sharing, Weight, WithinTeam,
};
use serde_json::Value;

use crate::model::{
    Asking, Chosen, Contest, Limit, Name, Node, Nodes, Pair, Running, Tree, victims,
};
use crate::{kueue_cases, mirror};

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// In thousandths.
fn quantity(text: &str) -> i128 {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let number = format!("{whole}{fraction:0<3}");
    let thousandths: i128 = number.parse().expect("a decimal quantity of three places");
    match &text[digits.len()..] {
        "m" => thousandths / 1000,
        "" => thousandths,
        "k" => thousandths * 1000,
        "Mi" => thousandths << 20,
        "Gi" => thousandths << 30,
        other => panic!("suffix {other}"),
    }
}

/// Base units are thousandths of a CPU, else whole units.
fn base_units(resource: &str, amount: &Value) -> i128 {
    let amount = i128::from(amount.as_i64().expect("an integer"));
    if resource == "cpu" {
        amount
    } else {
        amount * 1000
    }
}

/// One case, its names as numbers of the same order.
struct Case<'a> {
    value: &'a Value,
    nodes: Vec<&'a str>,
    flavors: Vec<&'a str>,
    resources: Vec<&'a str>,
    uids: Vec<&'a str>,
}

fn number(names: &[&str], name: &str) -> u8 {
    let found = names.iter().position(|known| *known == name);
    u8::try_from(found.expect("a known name")).expect("few names")
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    names
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn uid(gang: &Value) -> &str {
    gang["uid"].as_str().unwrap_or_else(|| text(gang, "name"))
}

impl<'a> Case<'a> {
    fn new(case: &'a Value) -> Self {
        let queues = || Self::queues(case);
        let above = |queue: &'a Value| {
            queue["cohort"]
                .as_str()
                .or_else(|| queue["parent"].as_str())
        };
        let names = queues().map(|queue| text(queue, "name"));
        let nodes = sorted(names.chain(queues().filter_map(above)));
        let flavors =
            || queues().flat_map(|queue| list(&queue["resourceGroups"]).iter().flat_map(list));
        let resources = flavors().flat_map(|flavor| entries(&flavor["resources"]));
        Self {
            value: case,
            nodes,
            flavors: sorted(flavors().map(|flavor| text(flavor, "flavor"))),
            resources: sorted(resources.map(|(name, _)| name.as_str())),
            uids: sorted(list(&case["running"]).iter().map(uid)),
        }
    }

    fn queues(case: &'a Value) -> impl Iterator<Item = &'a Value> {
        let one = [&case["clusterQueue"], &case["lendingClusterQueue"]];
        let one = one.into_iter().filter(|queue| queue.is_object());
        let many = list(&case["clusterQueues"]).iter();
        one.chain(many).chain(list(&case["cohorts"]))
    }

    fn pair(&self, flavor: &str, resource: &str) -> Pair {
        Pair {
            flavor: number(&self.flavors, flavor),
            resource: number(&self.resources, resource),
        }
    }

    fn keyed(&self, key: &str) -> Pair {
        let (flavor, resource) = key.split_once('/').expect("flavor/resource");
        self.pair(flavor, resource)
    }

    fn node(&self, name: &str) -> Name {
        number(&self.nodes, name)
    }

    fn limits(&self, queue: &Value) -> BTreeMap<Pair, Limit> {
        let mut limits = BTreeMap::new();
        for flavor in list(&queue["resourceGroups"]).iter().flat_map(list) {
            for (resource, limit) in entries(&flavor["resources"]) {
                let amount = |key: &str| limit[key].as_str().map(quantity);
                let limit = Limit {
                    nominal: amount("nominal").unwrap_or_default(),
                    borrowing: amount("borrowingLimit"),
                    lending: amount("lendingLimit"),
                };
                limits.insert(self.pair(text(flavor, "flavor"), resource), limit);
            }
        }
        limits
    }

    fn tree(&self) -> Nodes {
        let implicit = || Node {
            parent: None,
            limits: BTreeMap::new(),
            weight: Weight::ONE.0,
            policy: None,
        };
        let names = self.nodes.iter();
        let mut nodes: Nodes = names.map(|name| (self.node(name), implicit())).collect();
        let cohorts = list(&self.value["cohorts"]);
        for queue in Self::queues(self.value) {
            let is_cohort = cohorts.iter().any(|cohort| std::ptr::eq(cohort, queue));
            let parent = queue[if is_cohort { "parent" } else { "cohort" }].as_str();
            let weight = queue["fairWeight"]
                .as_str()
                .map(|weight| quantity(weight) * 1_000_000);
            let node = Node {
                parent: parent.map(|parent| self.node(parent)),
                limits: self.limits(queue),
                weight: weight.map_or(Weight::ONE.0, |weight| {
                    u64::try_from(weight).expect("small")
                }),
                policy: (!is_cohort).then(|| policy(&queue["preemption"])),
            };
            nodes.insert(self.node(text(queue, "name")), node);
        }
        nodes
    }

    fn running(&self, gang: &Value) -> Running {
        let reserved = &gang["reserved"];
        let mut charges = Vec::new();
        if let Some(flavor) = reserved["flavor"].as_str() {
            for (resource, amount) in entries(&gang["requests"]) {
                charges.push((
                    self.pair(flavor, resource),
                    quantity(amount.as_str().expect("text")),
                ));
            }
        }
        for set in list(&reserved["podSets"]) {
            for (resource, charge) in entries(&set["flavors"]) {
                let (flavor, amount) = (charge[0].as_str(), charge[1].as_str());
                let pair = self.pair(flavor.expect("a flavor"), resource);
                charges.push((pair, quantity(amount.expect("a quantity"))));
            }
        }
        let is_evicted = |condition: &&Value| {
            text(condition, "type") == "Evicted" && text(condition, "status") == "True"
        };
        Running {
            uid: u32::from(number(&self.uids, uid(gang))),
            team: self.node(text(reserved, "clusterQueue")),
            priority: priority(gang),
            queued_at: gang["createdAtSec"].as_i64().unwrap_or_default(),
            admitted_at: gang["reservedAtSec"].as_i64(),
            is_ending: list(&gang["conditions"])
                .iter()
                .any(|found| is_evicted(&found)),
            charges,
        }
    }

    fn asking(&self) -> Asking {
        let incoming = &self.value["incoming"];
        let mut charges = Vec::new();
        let mut contested = BTreeSet::new();
        if let Some(flavor) = self.value["assignmentFlavor"].as_str() {
            for (resource, amount) in entries(&incoming["requests"]) {
                let pair = self.pair(flavor, resource);
                charges.push((pair, quantity(amount.as_str().expect("text"))));
                contested.insert(pair);
            }
        }
        for assignment in list(&self.value["assignment"]) {
            let sets = list(&incoming["podSets"]).iter();
            let mut sets = sets.filter(|set| text(set, "name") == text(assignment, "podSet"));
            let set = sets.next();
            let requests = set.map_or(&incoming["requests"], |set| &set["requests"]);
            let count = set.and_then(|set| set["count"].as_i64()).unwrap_or(1);
            for (resource, assigned) in entries(&assignment["flavors"]) {
                let pair = self.pair(text(assigned, "flavor"), resource);
                charges.push((pair, quantity(text(requests, resource)) * i128::from(count)));
                if text(assigned, "mode") == "Preempt" {
                    contested.insert(pair);
                }
            }
        }
        Asking {
            team: self.node(text(self.value, "targetCQ")),
            priority: priority(incoming),
            queued_at: incoming["createdAtSec"].as_i64().unwrap_or_default(),
            charges,
            contested,
        }
    }

    fn judge_preemption(&self, fair: bool) {
        let named = self.value["fairSharingStrategies"].as_array().map(|named| {
            let named = named.iter().map(|strategy| match strategy.as_str() {
                Some("LessThanOrEqualToFinalShare") => FairStrategy::LessThanOrEqualToFinalShare,
                Some("LessThanInitialShare") => FairStrategy::LessThanInitialShare,
                other => panic!("strategy {other:?}"),
            });
            named.collect::<Vec<_>>()
        });
        let strategies = named.unwrap_or_else(|| FairStrategy::DEFAULT.to_vec());
        let gangs = list(&self.value["running"]);
        let running: Vec<Running> = gangs.iter().map(|gang| self.running(gang)).collect();
        let (nodes, asking) = (self.tree(), self.asking());
        let contest = Contest {
            nodes: &nodes,
            running: &running,
            besides: &[],
            asking: &asking,
            has_place: &|_| true,
        };
        let chosen = victims(&contest, fair.then_some(strategies.as_slice()));
        let sharing = if fair {
            Sharing::Fair(&strategies)
        } else {
            Sharing::ByPriority
        };
        let gangs_there: Vec<_> = running.iter().map(mirror::running).collect();
        let decided = quota::victims(
            &mut mirror::tree(&nodes, &running),
            sharing,
            &gangs_there,
            &mirror::preemptor(&asking),
            &mut |_| true,
        );
        let decided: Vec<Chosen> = decided
            .iter()
            .map(|victim| (victim.position, victim.reason))
            .collect();
        assert_eq!(decided, chosen, "the engine and the model");
        if let Some(count) = self.value["wantCount"].as_u64() {
            assert_eq!(chosen.len() as u64, count, "{chosen:?}");
        }
        let told = chosen
            .iter()
            .filter(|(position, _)| !running[*position].is_ending);
        let told: BTreeMap<&str, &str> = told
            .map(|(position, reason)| (text(&gangs[*position], "name"), word(*reason)))
            .collect();
        let wanted = entries(&self.value["wantPreempted"]);
        let wanted: BTreeMap<&str, &str> = wanted
            .map(|(name, reason)| (name.as_str(), reason.as_str().expect("a reason")))
            .collect();
        assert_eq!(told, wanted);
    }

    fn judge_availability(&self) {
        let nodes = self.tree();
        let usage = entries(&self.value["usage"]).flat_map(|(team, amounts)| {
            let team = self.node(team);
            let amounts = entries(amounts);
            amounts.map(move |(key, amount)| (team, self.keyed(key), self.amount(key, amount)))
        });
        let tree = Tree::new(&nodes, usage);
        for (wanted, is_potential) in [("wantAvailable", false), ("wantPotentiallyAvailable", true)]
        {
            for (team, amounts) in entries(&self.value[wanted]) {
                for (key, amount) in entries(amounts) {
                    let (team, pair) = (self.node(team), self.keyed(key));
                    let decided = if is_potential {
                        tree.potentially_available(team, pair)
                    } else {
                        tree.team_available(team, pair)
                    };
                    assert_eq!(decided, self.amount(key, amount), "{wanted} {team} {key}");
                }
            }
        }
    }

    fn amount(&self, key: &str, amount: &Value) -> i128 {
        let resource = self.resources[usize::from(self.keyed(key).resource)];
        base_units(resource, amount)
    }

    fn judge_shares(&self) {
        let nodes = self.tree();
        let team = self.node(text(&self.value["clusterQueue"], "name"));
        let charges = entries(&self.value["usage"]).chain(entries(&self.value["flvResQ"]));
        let charges =
            charges.map(|(key, amount)| (team, self.keyed(key), self.amount(key, amount)));
        let tree = Tree::new(&nodes, charges);
        for wanted in list(&self.value["want"]) {
            let share = tree.share(self.node(text(wanted, "Name")));
            let dominant = share
                .dominant
                .map_or("", |number| self.resources[usize::from(number)]);
            let told = (dominant, share.thousandths(), share.is_borrowing);
            let value = wanted["DrValue"].as_i64().map(i128::from);
            let borrows = wanted["Borrowing"].as_bool().unwrap_or_default();
            assert_eq!(told, (text(wanted, "DrName"), value, borrows), "{wanted}");
        }
    }
}

fn priority(gang: &Value) -> i32 {
    let priority = gang["priority"].as_i64().unwrap_or_default();
    i32::try_from(priority).expect("a priority")
}

fn word(reason: PreemptionReason) -> &'static str {
    match reason {
        PreemptionReason::InTeam => "InClusterQueue",
        PreemptionReason::Reclaimed => "InCohortReclamation",
        PreemptionReason::FairShare => "InCohortFairSharing",
        PreemptionReason::ReclaimedWhileBorrowing => "InCohortReclaimWhileBorrowing",
    }
}

fn policy(value: &Value) -> PreemptionPolicy {
    let borrow = &value["BorrowWithinCohort"];
    let key = |upper: &str, lower: &str| borrow.get(upper).or_else(|| borrow.get(lower)).cloned();
    let highest =
        key("MaxPriorityThreshold", "maxPriorityThreshold").and_then(|value| value.as_i64());
    PreemptionPolicy {
        within_team: match text(value, "WithinClusterQueue") {
            "" | "Never" => WithinTeam::Never,
            "LowerPriority" => WithinTeam::LowerPriority,
            "LowerOrNewerEqualPriority" => WithinTeam::LowerOrNewerEqualPriority,
            other => panic!("within {other}"),
        },
        reclaim_within_cohort: match text(value, "ReclaimWithinCohort") {
            "" | "Never" => ReclaimWithinCohort::Never,
            "LowerPriority" => ReclaimWithinCohort::LowerPriority,
            "Any" => ReclaimWithinCohort::Any,
            other => panic!("reclaim {other}"),
        },
        borrow_within_cohort: match key("Policy", "policy").as_ref().and_then(Value::as_str) {
            None | Some("Never") => BorrowWithinCohort::Never,
            Some("LowerPriority") => BorrowWithinCohort::LowerPriority {
                highest: highest.map(|highest| i32::try_from(highest).expect("a priority")),
            },
            Some(other) => panic!("borrow {other}"),
        },
    }
}

#[test]
fn the_model_and_the_engine_decide_the_cases_of_kueue_as_kueue_does() {
    let Some(text) = kueue_cases::text() else {
        return;
    };
    let suites: Value = serde_json::from_str(&text).expect("the cases are JSON");
    let mut judged = 0;
    for suite in [
        "classical_preemption",
        "hierarchical_preemption",
        "fair_sharing_preemption",
        "quota_available",
        "dominant_resource_share",
    ] {
        for (name, case) in entries(&suites[suite]).filter(|(name, _)| !name.starts_with('_')) {
            println!("{suite}: {name}");
            let case = Case::new(case);
            match suite {
                "quota_available" => case.judge_availability(),
                "dominant_resource_share" => case.judge_shares(),
                _ => case.judge_preemption(suite.starts_with("fair")),
            }
            judged += 1;
        }
    }
    assert!(judged > 0, "the file has none of the suites");
    println!("{judged} cases");
}
