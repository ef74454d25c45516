//! The search for devices: the first ones that meet all requests together, in kube-scheduler's order.
//!
//! kube-scheduler takes for each request the first device that it can have, and goes back where what comes later finds
//! none: to the next device, then to the next alternative. Of the devices of one request only increasing places are tried: the
//! first set that it would find has them in that order, since they are all asked the same.

use std::sync::Arc;

use super::{asked::Constraint, node::OfNode};

/// Most devices that are looked at for one pod, so that no set of claims holds up the others for long. kube-scheduler gives
/// up after a time instead.
const MOST_TRIES: usize = 200_000;

/// A request of one of the claims that are allocated together.
pub(super) struct Request {
    /// The claim, as its place among them.
    pub(super) claim: usize,
    /// In which ways it can be met, the first ones first.
    pub(super) ways: Vec<Way>,
}

/// One way to meet a request.
pub(super) struct Way {
    /// As results name it: `request`, or `request/alternative`.
    pub(super) name: String,
    /// The places of the devices that match.
    pub(super) matching: Arc<[usize]>,
    /// How many of them.
    pub(super) count: usize,
}

/// Where the search is, and a choice that it made there.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Which request.
    request: usize,
    /// Which way to meet it.
    way: usize,
    /// How many devices it has already.
    has: usize,
    /// From which of the matching devices on the next one is looked for; of a choice, which one it is.
    next: usize,
}

/// A device that was chosen.
pub(super) struct Chosen {
    /// The claim that it is for.
    pub(super) claim: usize,
    /// For what, as results name it.
    pub(super) way: String,
    /// Its place.
    pub(super) place: usize,
}

/// What comes next.
enum Move {
    Take { matching: usize, place: usize },
    NextRequest,
    NextWay,
    Back,
}

struct Search<'a> {
    node: &'a mut OfNode,
    requests: &'a [Request],
    constraints: &'a [Constraint],
    /// The choices so far, each with the place of its device.
    chosen: Vec<(Cursor, usize)>,
    tries: usize,
}

/// Devices that meet all requests, in the order of these. The node is left as it was.
pub(super) fn search(
    node: &mut OfNode,
    requests: &[Request],
    constraints: &[Constraint],
) -> Option<Vec<Chosen>> {
    let mut search = Search {
        node,
        requests,
        constraints,
        chosen: Vec::new(),
        tries: 0,
    };
    let is_found = search.run();
    let chosen = std::mem::take(&mut search.chosen);
    for (_, place) in &chosen {
        search.node.give_back(*place);
    }
    if !is_found {
        return None;
    }
    let chosen = chosen.into_iter().filter_map(|(cursor, place)| {
        let request = requests.get(cursor.request)?;
        Some(Chosen {
            claim: request.claim,
            way: request.ways.get(cursor.way)?.name.clone(),
            place,
        })
    });
    Some(chosen.collect())
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        let mut cursor = Cursor::default();
        while cursor.request < self.requests.len() {
            if self.tries > MOST_TRIES {
                return false;
            }
            cursor = match self.next_move(cursor) {
                Move::Take { matching, place } => {
                    self.node.take(place);
                    let choice = Cursor {
                        next: matching,
                        ..cursor
                    };
                    self.chosen.push((choice, place));
                    Cursor {
                        has: cursor.has + 1,
                        next: matching + 1,
                        ..cursor
                    }
                }
                Move::NextRequest => Cursor {
                    request: cursor.request + 1,
                    ..Cursor::default()
                },
                Move::NextWay => Cursor {
                    way: cursor.way + 1,
                    next: 0,
                    ..cursor
                },
                Move::Back => {
                    let Some((choice, place)) = self.chosen.pop() else {
                        return false;
                    };
                    self.node.give_back(place);
                    Cursor {
                        next: choice.next + 1,
                        ..choice
                    }
                }
            };
        }
        true
    }

    fn next_move(&mut self, cursor: Cursor) -> Move {
        let requests = self.requests;
        let request = &requests[cursor.request];
        let Some(way) = request.ways.get(cursor.way) else {
            return Move::Back;
        };
        if cursor.has == way.count {
            return Move::NextRequest;
        }
        let missing = way.count - cursor.has;
        // Where fewer than are missing are left, none of them helps.
        let end = (way.matching.len() + 1).saturating_sub(missing);
        for matching in cursor.next..end {
            let place = way.matching[matching];
            self.tries += 1;
            if self.node.is_free(place) && self.meets_constraints(request.claim, way, place) {
                return Move::Take { matching, place };
            }
        }
        if cursor.has == 0 {
            Move::NextWay
        } else {
            Move::Back
        }
    }

    /// Whether the device agrees with those that were chosen already.
    fn meets_constraints(&self, claim: usize, way: &Way, place: usize) -> bool {
        let mut covering = self
            .constraints
            .iter()
            .filter(|constraint| constraint.covers(claim, &way.name));
        covering.all(|constraint| {
            let Some(value) = self.node.attribute(place, &constraint.attribute) else {
                return false;
            };
            let mut chosen = self.chosen.iter();
            // Those that are chosen agree with each other.
            let other = chosen.find(|(choice, _)| {
                let request = &self.requests[choice.request];
                constraint.covers(request.claim, &request.ways[choice.way].name)
            });
            other.is_none_or(|(_, other)| {
                self.node.attribute(*other, &constraint.attribute) == Some(value)
            })
        })
    }
}
