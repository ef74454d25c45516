//! Objects as their watches read them: without what nobody reads ([`Receive`]).

use muster_cluster::object::Receive;
use muster_serve::watch::{Decoded, decoded::Partial};
use serde::{Deserialize, Deserializer};

/// An object without what nobody reads of it.
#[derive(Clone, Debug)]
pub(super) struct Lean<K>(K);

impl<'de, K: Receive> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::receive(deserializer).map(Self)
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
            "spec": {"completions": 4, "template": "none"},
        });
        let Decoded::Whole(job) = decoded::<Job>(&job) else {
            panic!("its template is nothing to anybody");
        };
        assert_eq!(job.metadata.name.as_deref(), Some("a"));
        assert_eq!(job.spec.unwrap().completions, Some(4));
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
