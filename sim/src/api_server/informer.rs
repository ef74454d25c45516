//! A client's cache of what it watches, which lags behind the API server as every informer does.

use muster_cluster::object::{Kind, Object};

use super::{ApiServer, Place};

/// What a client knows. It decides by [`Informer::cache`], and its writes carry what stands there as preconditions.
#[derive(Debug)]
pub struct Informer {
    cache: ApiServer,
    places: Vec<Place>,
}

impl Informer {
    /// A client that watches these kinds from the beginning.
    pub fn new(kinds: &[Kind]) -> Self {
        Self {
            cache: ApiServer::default(),
            places: kinds.iter().copied().map(Place::start).collect(),
        }
    }

    /// What it knows; only for reading.
    pub fn cache(&self) -> &ApiServer {
        &self.cache
    }

    /// It begins anew with what there is now, and watches from there.
    pub fn list(&mut self, api: &ApiServer) {
        self.cache = ApiServer::default();
        for place in &mut self.places {
            *place = api.watch(place.kind);
            for object in api.objects(place.kind) {
                let version = object.metadata().resource_version.as_deref();
                let revision = version.and_then(|version| version.parse().ok());
                self.cache
                    .mirror(revision.unwrap_or_default(), &object.key(), Some(object));
            }
        }
    }

    /// Whether it has been told everything.
    pub fn is_current(&self, api: &ApiServer) -> bool {
        self.places
            .iter()
            .all(|place| api.next_event(*place).is_none())
    }

    /// Numbers of the watches that have something to tell.
    pub fn pending(&self, api: &ApiServer) -> Vec<usize> {
        (0..self.places.len())
            .filter(|number| api.next_event(self.places[*number]).is_some())
            .collect()
    }

    /// One of its watches tells so many changes.
    pub fn advance(&mut self, api: &ApiServer, number: usize, changes: usize) {
        for _ in 0..changes {
            let Some(event) = api.next_event(self.places[number]) else {
                return;
            };
            self.cache
                .mirror(event.revision, &event.key, event.object.as_ref());
            self.places[number] = self.places[number].after();
        }
    }

    /// What it wrote itself counts at once, before its watch tells it: the assume cache of kube-scheduler.
    pub fn assume(&mut self, written: &Object) {
        let version = written.metadata().resource_version.as_deref();
        let revision = version.and_then(|version| version.parse().ok());
        self.cache
            .mirror(revision.unwrap_or_default(), &written.key(), Some(written));
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{NodeDevices, NodeDevicesSpec};

    use super::*;
    use crate::api_server::{Precondition, key};

    #[test]
    fn what_was_assumed_is_not_undone_by_an_older_event() {
        let mut api = ApiServer::default();
        let mut informer = Informer::new(&[Kind::NodeDevices]);
        api.create(NodeDevices::new("n", NodeDevicesSpec::default()))
            .unwrap();
        assert!(!informer.is_current(&api));
        assert!(informer.cache().get::<NodeDevices>("", "n").is_none());
        let any = Precondition::default();
        let written = api
            .update::<NodeDevices>("", "n", any, |object| object.spec.enforce = true)
            .unwrap();
        informer.assume(&written);
        informer.advance(&api, 0, 1);
        let known = informer.cache().get::<NodeDevices>("", "n").unwrap();
        assert!(known.spec.enforce);
        api.delete_now(&key(Kind::NodeDevices, "", "n"), any)
            .unwrap();
        informer.advance(&api, 0, 9);
        assert!(informer.cache().get::<NodeDevices>("", "n").is_none());
        assert!(informer.is_current(&api));
    }
}
