//! A list that a controller is receiving, and that is old by the time it has come.
//!
//! The controller lists without a resourceVersion (`ListSemantic::MostRecent`), so every list is a consistent read: never
//! older than the moment at which it was asked for, whichever API server answers. A watch cache that lags cannot
//! answer it. What remains, and is simulated:
//!
//! * a list is a **snapshot**, and comes later: page by page, object by object, while other kinds' watches go on. The watch
//!   that follows begins where the list was read, not where it had come;
//! * kinds are listed **apart**: two lists, and the watches after them, stand at different moments;
//! * a replica watches from its **start**, long before it leads. What it was told by then, it is told first; the lists of
//!   its takeover close these watches, and what they had still to say is dropped;
//! * while a list comes the history may be **compacted**: its next page, or the watch after it, is answered 410 Gone.
//!   Then it is read anew, and what was told of the first one stands until the second one ends.

use std::collections::{BTreeSet, VecDeque};

use muster_cluster::object::{Change, Kind, Object, ObjectKey};
use muster_protocol::EffectId;

use crate::api_server::{ApiServer, Place};

/// Objects that are told at a time.
const PAGE: usize = 4;

/// A list that is being received.
#[derive(Debug)]
pub struct Listing {
    /// What has not been told yet.
    objects: VecDeque<Object>,
    /// All that the list names.
    keys: BTreeSet<ObjectKey>,
    /// Where the watch begins after it.
    place: Place,
    /// The effect that asked for it, if one did.
    pub asked_by: Option<EffectId>,
}

impl Listing {
    /// The list as it is now.
    pub fn read(kind: Kind, api: &ApiServer, asked_by: Option<EffectId>) -> Self {
        let objects: VecDeque<Object> = api.objects(kind).cloned().collect();
        Self {
            keys: objects.iter().map(Object::key).collect(),
            objects,
            place: api.watch(kind),
            asked_by,
        }
    }

    /// The next page. Once it was the last, the end of the list too, and from where to watch.
    pub fn receive(&mut self, api: &ApiServer) -> (Vec<Change>, Option<Place>) {
        if api.is_gone(self.place) {
            *self = Self::read(self.place.kind, api, self.asked_by);
        }
        let page = self.objects.len().min(PAGE);
        let mut changes: Vec<Change> = self.objects.drain(..page).map(Change::Applied).collect();
        if !self.objects.is_empty() {
            return (changes, None);
        }
        let keys = std::mem::take(&mut self.keys);
        changes.push(Change::ListedKeys(self.place.kind, keys));
        (changes, Some(self.place))
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{Gang, GangSpec};

    use super::*;
    use crate::api_server::{Precondition, key};

    fn gangs(count: usize) -> ApiServer {
        let mut api = ApiServer::default();
        for number in 0..count {
            let mut gang = Gang::new(&format!("g-{number}"), GangSpec::default());
            gang.metadata.namespace = Some("ml".to_owned());
            api.create(gang).unwrap();
        }
        api
    }

    #[test]
    fn a_list_is_as_it_was_when_it_was_read_and_the_watch_goes_on_from_there() {
        let mut api = gangs(PAGE + 1);
        let mut listing = Listing::read(Kind::Gang, &api, None);
        let (first, place) = listing.receive(&api);
        assert_eq!((first.len(), place), (PAGE, None));
        let last = key(Kind::Gang, "ml", &format!("g-{PAGE}"));
        api.delete(&last, Precondition::default()).unwrap();
        let (second, place) = listing.receive(&api);
        assert!(matches!(&second[0], Change::Applied(object) if object.key() == last));
        assert!(matches!(&second[1], Change::ListedKeys(_, keys) if keys.contains(&last)));
        let event = api.next_event(place.unwrap()).unwrap();
        assert!(matches!(event.change(), Change::Deleted(gone) if gone == last));
    }

    #[test]
    fn a_list_whose_history_is_compacted_is_read_anew() {
        let mut api = gangs(PAGE + 1);
        let mut listing = Listing::read(Kind::Gang, &api, None);
        listing.receive(&api);
        let last = key(Kind::Gang, "ml", &format!("g-{PAGE}"));
        api.delete(&last, Precondition::default()).unwrap();
        api.compact();
        let (anew, place) = listing.receive(&api);
        assert_eq!(anew.len(), PAGE + 1, "{anew:?}");
        assert!(matches!(&anew[PAGE], Change::ListedKeys(_, keys) if !keys.contains(&last)));
        assert!(api.next_event(place.unwrap()).is_none());
    }
}
