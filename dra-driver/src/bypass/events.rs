//! How a bypass is told: in words, and as Events.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::ObjectReference, events::v1::Event};
use muster_api::Reason;
use muster_cluster::text::{listed, truncate};
use muster_serve::event::Told;

use super::{
    origin::Origin,
    sight::{PodName, Seen},
};

/// What Events name as their reporter.
const REPORTER: &str = "muster.dev/dra-driver";
/// Longest note; the API takes 1,024 bytes.
const NOTE_BYTES: usize = 1_024;

/// All bypasses of one origin.
#[derive(Clone, Debug)]
pub struct Bypass<'a> {
    /// Whose they are.
    pub origin: &'a Origin,
    /// The pod's name, where there is a pod and it is known.
    pub pod: Option<&'a PodName>,
    /// Names of the devices.
    pub devices: BTreeSet<String>,
    /// Ids and programs of the processes.
    pub processes: BTreeSet<(u32, Option<String>)>,
    /// How long after its end the taints of its devices stay; `None`: they carry none.
    pub tainted_for: Option<Duration>,
}

impl Bypass<'_> {
    /// Adds processes on a device.
    pub fn add(&mut self, device: String, processes: &[Seen]) {
        self.devices.insert(device);
        let each = processes.iter();
        self.processes
            .extend(each.map(|seen| (seen.pid, seen.program.clone())));
    }

    /// For people.
    pub fn note(&self) -> String {
        let who = match (self.origin, self.pod) {
            (Origin::Pod(uid), Some(pod)) => format!("pod {pod} (UID {uid})"),
            (Origin::Pod(uid), None) => format!("the pod with UID {uid}"),
            (Origin::Node, _) => "something in no pod".to_owned(),
            (Origin::Unknown, _) => "somebody whose cgroups cannot be read".to_owned(),
            (Origin::Hidden, _) => "somebody who hid in cgroups too deep to be read".to_owned(),
        };
        let devices = listed(self.devices.iter().map(String::as_str));
        let processes: Vec<String> = self
            .processes
            .iter()
            .map(|(pid, program)| match program {
                // Anybody may call a program what they like.
                Some(program) => format!("{pid} ({})", program.escape_debug()),
                None => pid.to_string(),
            })
            .collect();
        let processes = listed(processes.iter().map(String::as_str));
        let consequence = self.tainted_for.map_or_else(String::new, |time| {
            let seconds = time.as_secs();
            format!("; nothing new is placed there until {seconds} s after they end")
        });
        let mut note = format!(
            "{who} uses {devices} by processes {processes}, which no claim and no device plugin explains{consequence}"
        );
        truncate(&mut note, NOTE_BYTES);
        note
    }

    /// An Event on the Node, and one on the pod where it is known.
    pub fn events(&self, node: &str, node_uid: &str, now: Timestamp) -> Vec<Event> {
        let about = |kind: &str, namespace: Option<&str>, name: &str, uid: &str| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let mut regarding = vec![about("Node", None, node, node_uid)];
        if let (Origin::Pod(uid), Some(pod)) = (self.origin, self.pod) {
            regarding.push(about("Pod", Some(&pod.namespace), &pod.name, uid));
        }
        let events = regarding.into_iter();
        events
            .map(|regarding| event(regarding, self.note(), node, now))
            .collect()
    }
}

fn event(regarding: ObjectReference, note: String, node: &str, now: Timestamp) -> Event {
    let told = Told {
        regarding,
        action: "Detection",
        reason: Reason::QuotaBypassDetected.to_string(),
        note,
        is_warning: true,
        reporter: REPORTER,
        instance: node,
    };
    told.at(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodName {
        PodName {
            namespace: "ml".to_owned(),
            name: "side".to_owned(),
        }
    }

    fn bypass<'a>(origin: &'a Origin, pod: Option<&'a PodName>) -> Bypass<'a> {
        let mut bypass = Bypass {
            origin,
            pod,
            devices: BTreeSet::new(),
            processes: BTreeSet::new(),
            tainted_for: Some(Duration::from_secs(45)),
        };
        let seen = |pid, program: Option<&str>| Seen {
            pid,
            gpu_instance: None,
            origin: origin.clone(),
            program: program.map(str::to_owned),
        };
        bypass.add("gpu-1".to_owned(), &[seen(7, Some("/bin/a"))]);
        bypass.add(
            "gpu-0".to_owned(),
            &[seen(7, Some("/bin/a")), seen(8, None)],
        );
        bypass
    }

    #[test]
    fn it_is_told_who_uses_what_by_which_processes() {
        let (of_pod, pod) = (Origin::Pod("u-1".to_owned()), pod());
        let (of_node, unknown) = (Origin::Node, Origin::Unknown);
        let hidden = Origin::Hidden;
        for (origin, pod, who) in [
            (&of_pod, Some(&pod), "pod ml/side (UID u-1)"),
            (&of_pod, None, "the pod with UID u-1"),
            (&of_node, None, "something in no pod"),
            (&unknown, None, "somebody whose cgroups cannot be read"),
            (
                &hidden,
                None,
                "somebody who hid in cgroups too deep to be read",
            ),
        ] {
            assert_eq!(
                bypass(origin, pod).note(),
                format!(
                    "{who} uses gpu-0, gpu-1 by processes 7 (/bin/a), 8, which no claim and no device plugin explains; nothing \
                     new is placed there until 45 s after they end"
                )
            );
        }
    }

    #[test]
    fn where_nothing_is_tainted_nothing_is_said_to_follow() {
        let origin = Origin::Node;
        let mut bypass = bypass(&origin, None);
        bypass.tainted_for = None;
        let note = bypass.note();
        assert!(note.ends_with("no device plugin explains"), "{note}");
    }

    #[test]
    fn what_a_program_is_called_stays_on_its_line() {
        let origin = Origin::Pod("u-1".to_owned());
        let mut bypass = bypass(&origin, None);
        let seen = Seen {
            pid: 9,
            gpu_instance: None,
            origin: origin.clone(),
            program: Some("/bin/\n\u{1b}[31mreason=Fine".to_owned()),
        };
        bypass.add("gpu-0".to_owned(), &[seen]);
        let note = bypass.note();
        assert!(!note.contains(['\n', '\u{1b}']), "{note}");
        assert!(note.contains("9 (/bin/\\n"), "{note}");
    }

    #[test]
    fn events_are_such_as_kubernetes_accepts_on_the_node_and_on_the_pod() {
        let (origin, pod) = (Origin::Pod("u-1".to_owned()), pod());
        let of_node = Origin::Node;
        let mut bypass = bypass(&origin, Some(&pod));
        bypass.add("x".repeat(2_000), &[]);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let node = "n".repeat(253);
        let events = bypass.events(&node, "n-1", now);
        let places: Vec<(&str, &str)> = events
            .iter()
            .map(|event| {
                let regarding = event.regarding.as_ref().unwrap();
                let namespace = event.metadata.namespace.as_deref().unwrap();
                (namespace, regarding.uid.as_deref().unwrap())
            })
            .collect();
        assert_eq!(places, [("default", "n-1"), ("ml", "u-1")]);
        for event in &events {
            assert_eq!(event.reason.as_deref(), Some("QuotaBypassDetected"));
            assert!(event.metadata.name.as_ref().unwrap().len() <= 253);
            assert!(event.note.as_ref().unwrap().len() <= NOTE_BYTES);
            assert!(event.reporting_instance.as_ref().unwrap().len() <= 128);
        }
        bypass.origin = &of_node;
        bypass.pod = None;
        assert_eq!(bypass.events(&node, "n-1", now).len(), 1);
    }
}
