//! The areas in which a gang might have its place if nothing ran, with how much of it each of their nodes holds.

use super::{
    Cluster, Request,
    capacity::Rules,
    index::IndexKey,
    node::NodeRecord,
    tree::{ROOT, Width},
};

/// A node that holds some of a gang if nothing runs there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roomy {
    pub(crate) slot: usize,
    /// How many of the gang's largest units.
    pub(crate) units: u64,
}

/// The widest areas that may hold a gang as a whole, each with the nodes that hold a largest unit of it and on which something
/// may be planned. It takes a look at each of them.
pub(crate) fn areas(cluster: &Cluster, request: &Request<'_>) -> Vec<Vec<Roomy>> {
    let tree = cluster.tree(request.topology);
    let Some((tree, class)) = tree.zip(request.demand.classes.first()) else {
        return Vec::new();
    };
    let required = request.wish.required.as_ref();
    let widest = tree
        .different_widths(required)
        .and_then(|all| all.last().copied());
    let Some((widest, resources)) = widest.zip(class.shape.resources()) else {
        return Vec::new();
    };
    let key = IndexKey {
        rules: Rules::of(request),
        topology: tree.topology.clone(),
        as_they_are: false,
        shape: class.shape.without_resources(),
    };
    let index = cluster.index(key, tree);
    let needed = class.units.len() as u64;
    let roomy = |slot: usize| {
        cluster.note_visits(1);
        let record = cluster.record(slot)?;
        let name = &record.node.name;
        if record.node.block.is_some() || cluster.is_reserved(name) || cluster.is_held_back(name) {
            return None;
        }
        // When it is opened nobody knows.
        if request.wish.closed.contains(name) {
            return None;
        }
        let times = record.empty.room.times(&resources).unwrap_or(0) as u64;
        let units = index.units_on(slot).min(times);
        (units > 0).then_some(Roomy { slot, units })
    };
    let areas: Vec<Vec<Roomy>> = match widest {
        Width::Node => {
            let members = index.members(tree, ROOT);
            let nodes = members.filter_map(|(_, slot)| roomy(slot));
            nodes.map(|node| vec![node]).collect()
        }
        Width::Depth(_) => {
            let ranks = index.tightest(widest, needed);
            let members = ranks.map(|rank| index.members(tree, rank.id));
            members
                .map(|members| members.filter_map(|(_, slot)| roomy(slot)).collect())
                .collect()
        }
    };
    cluster.keep(index);
    let holds = |area: &Vec<Roomy>| area.iter().map(|node| node.units).sum::<u64>() >= needed;
    areas.into_iter().filter(holds).collect()
}

/// How many units of each class of a gang a node holds if nothing runs there, on devices with which nothing is wrong; none where it is
/// closed to the gang.
pub(crate) fn units_if_empty(record: &NodeRecord, request: &Request<'_>) -> Vec<usize> {
    let rules = Rules::of(request);
    let mut empty = record.empty.clone();
    empty.is_as_if_empty = false;
    let devices = record.node.devices.iter().enumerate();
    for (at, _) in devices.filter(|(_, device)| !device.healthy) {
        empty.free.remove(at);
    }
    let classes = request.demand.classes.iter();
    let units = classes.map(|class| {
        let resources = class.shape.resources();
        let capacity = resources.and_then(|resources| {
            let capacity = rules.capacity(record, &empty, &class.shape, &resources);
            capacity.ok()
        });
        capacity.map_or(0, |capacity| capacity.units)
    });
    units.collect()
}
