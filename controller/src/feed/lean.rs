//! Objects as their watches read them: without what nobody reads ([`Receive`]).

use muster_cluster::object::{
    Receive,
    unread::{Part, Unread},
};
use muster_serve::{
    fields::{self, Field, Fields},
    watch::{Decoded, decoded::Partial},
};
use serde::{Deserialize, Deserializer};

/// An object without what nobody reads of it.
#[derive(Clone, Debug)]
pub(super) struct Lean<K>(K);

impl<'de, K: Receive> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if K::UNREAD.is_empty() {
            return K::deserialize(deserializer).map(Self);
        }
        fields::read(deserializer, But(K::UNREAD)).map(Self)
    }
}

/// An object, or a list of objects, but for what is unread of it.
#[derive(Clone, Copy)]
struct But(&'static [Unread]);

impl Fields for But {
    const ARE_OF_LISTS: bool = true;

    fn field(self, name: &str) -> Field<Self> {
        match self.0.iter().find(|(unread, _)| *unread == name) {
            Some((_, Part::Whole)) => Field::PassedOver,
            Some((_, Part::Fields(below))) => Field::Within(Self(below)),
            None => Field::Read,
        }
    }
}

muster_serve::of_kind!(Lean<K>, |lean| lean.0.meta(), lean.0.meta_mut());

/// The object itself, as far as it could be read.
pub(super) fn unwrapped<K>(decoded: Decoded<Lean<K>>) -> Decoded<K> {
    match decoded {
        Decoded::Whole(Lean(object)) => Decoded::Whole(object),
        Decoded::Partial(partial) => {
            let Partial {
                metadata,
                object,
                missing,
            } = *partial;
            Decoded::Partial(Box::new(Partial {
                metadata,
                object: object.map(|Lean(object)| object),
                missing,
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
    use kube::Resource;
    use serde_json::{Value, json};

    use super::*;

    fn decoded<K: Resource + Receive>(object: &Value) -> Decoded<K> {
        unwrapped(serde_json::from_str(&object.to_string()).unwrap())
    }

    #[test]
    fn an_object_is_decoded_without_what_nobody_reads_of_it() {
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "managedFields": [{"manager": "x"}]},
            "spec": {"completions": 4, "template": {"spec": {"containers": "none", "restartPolicy": "OnFailure"}}},
        });
        let Decoded::Whole(job) = decoded::<Job>(&job) else {
            panic!("the containers of its template are nothing to anybody");
        };
        assert_eq!(job.metadata.name.as_deref(), Some("a"));
        let spec = job.spec.unwrap();
        assert_eq!(spec.completions, Some(4));
        let pods = spec.template.spec.unwrap();
        assert_eq!(pods.restart_policy.as_deref(), Some("OnFailure"));
    }

    #[test]
    fn all_is_read_but_what_is_passed_over() {
        let read = |object: &Value| {
            let Lean(pod) = serde_json::from_str::<Lean<Pod>>(&object.to_string()).unwrap();
            pod
        };
        let whole = |object: &Value| serde_json::from_value::<Pod>(object.clone()).unwrap();
        let all = json!({
            "metadata": {"name": "a", "labels": {"env": "b"}},
            "spec": {
                "nodeName": "n1", "dnsPolicy": "Default",
                "containers": [
                    {"name": "b", "env": [{"name": "A"}], "ports": [{"containerPort": 80}]},
                    {"name": "c", "image": "i", "command": ["d"]},
                ],
            },
            "status": {
                "phase": "Running", "podIP": "::1",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}],
            },
        });
        let expected = json!({
            "metadata": {"name": "a", "labels": {"env": "b"}},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "b", "ports": [{"containerPort": 80}]}, {"name": "c"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            },
        });
        assert_ne!(read(&all), whole(&all));
        assert_eq!(read(&all), whole(&expected));
        // In any order, with what is not known, and with what is not there.
        for spec in [
            json!(null),
            json!({"containers": null, "new": [{}]}),
            json!({}),
        ] {
            let pod = json!({"spec": spec, "metadata": {"name": "a"}});
            assert_eq!(read(&pod), whole(&pod), "{pod}");
        }
    }

    #[test]
    fn what_is_passed_over_is_never_wrong_and_all_else_is_as_it_was() {
        let what = |error: serde_json::Error| {
            let error = error.to_string();
            let end = error.find(" at line").unwrap_or(error.len());
            error[..end].to_owned()
        };
        let read = |object: Value| {
            let text = object.to_string();
            let seen: Result<Lean<Pod>, _> = serde_json::from_str(&text);
            let all: Result<Pod, _> = serde_json::from_str(&text);
            (seen.map(drop).map_err(what), all.map(drop).map_err(what))
        };
        let of_container = |container: Value| json!({"spec": {"containers": [container]}});
        let (seen, all) = read(of_container(json!({"name": "a", "env": 7})));
        assert!(seen.is_ok() && all.is_err(), "{seen:?}, {all:?}");
        for object in [
            of_container(json!({"name": 7})),
            of_container(json!("none")),
            json!({"spec": "none"}),
            json!({"spec": {"containers": {}}}),
            json!({"status": 7}),
            json!([]),
        ] {
            let (seen, all) = read(object.clone());
            assert!(seen.is_err(), "{object}");
            assert_eq!(seen, all, "{object}");
        }
        // The names of fields are text like any other.
        let odd = r#"{"s\u0070ec": {"c\u006fntainers": [{"\u0065nv": 7, "n\u0061me": "a"}]}}"#;
        let Lean(pod) = serde_json::from_str::<Lean<Pod>>(odd).unwrap();
        assert_eq!(pod.spec.unwrap().containers[0].name, "a");
    }

    /// The smallest part is left out, and named by its path, as of an object that is read whole.
    #[test]
    fn what_is_read_and_cannot_be_decoded_is_named() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {
            "nodeName": "n1", "containers": [{"name": "b", "env": 7}, {"name": "c", "ports": [{"hostPort": "x"}]}],
        }});
        let Decoded::Partial(partial) = decoded::<Pod>(&pod) else {
            panic!("it cannot be whole");
        };
        let missing = partial.missing.iter().map(|it| it.path.as_str());
        assert_eq!(
            missing.collect::<Vec<_>>(),
            ["spec.containers[1].ports[0].hostPort"]
        );
        let spec = partial.object.unwrap().spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("n1"));
        assert_eq!(spec.containers.len(), 2);
    }
}
