//! When a GPU moves, and what is told of what cannot be shown.

use muster_api::{NodeDevicesSpec, Permit};
use muster_device::{Listed, ListedGpu, MigInstance, Placement, cdi};
use muster_serve::Readiness;

use super::*;
use crate::{
    inventory::fixtures::{gpu, h100},
    mig::Toggle,
    mock_node::prepared,
    prepare::{RecordState, Unit, Write},
};

/// A publisher of a node whose kubelet and API server are asked nothing.
struct Node {
    publisher: Publisher,
    permits: value::Sender<Option<Arc<NodeDevices>>>,
    begin: Instant,
    root: tempfile::TempDir,
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Dynamic,
        toggle: Toggle::WhenIdle,
        ..Policy::default()
    }
}

/// Two H100 in MIG mode, of which this one is cut.
fn known(cut: Option<u32>) -> KnownGpus {
    let listed = |index: u32| {
        let mut gpu = gpu(&format!("GPU-{index}"), index, &format!("{index}"));
        gpu.mig = Some(h100(true));
        ListedGpu { gpu, silent: None }
    };
    let listed = Listed {
        gpus: (0..2).map(listed).collect(),
        unidentified: Vec::new(),
    };
    let slice = MigInstance {
        placement: Placement { start: 6, size: 1 },
        gpu_instance: 1,
        compute_instance: Some(0),
        is_divided: false,
        profile: 19,
        uuid: Some("MIG-1".to_owned()),
    };
    let instances = cut
        .iter()
        .map(|index| (format!("GPU-{index}"), vec![slice.clone()]))
        .collect();
    KnownGpus::default()
        .after("boot", &listed)
        .with_instances(&instances, |_, _| false)
}

/// The slices of that node as they were published while no GPU was cut.
fn slices() -> Slices {
    let contents = desired(&known(None), &policy(), &[], &Tainted::default()).contents;
    let pool = Pool {
        driver: keys::DRIVER.to_owned(),
        node: "node-0".to_owned(),
        node_uid: "n-1".to_owned(),
    };
    let created = plan(&pool, &contents, &[]).create.into_iter();
    let named = created.map(|mut slice| {
        let generated = slice.metadata.generate_name.take();
        let name = format!("{}abcde", generated.unwrap_or_default());
        slice.metadata.name = Some(name.clone());
        (name, slice)
    });
    named.collect()
}

impl Node {
    fn new() -> Self {
        muster_serve::tls::install_provider();
        let root = tempfile::tempdir().unwrap();
        let cdi = cdi::Directory::new(root.path(), "gpu.muster.dev", root.path());
        let store = Store::open(root.path().join("state"), cdi).unwrap();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let (permits, seen) = value::channel(None);
        let begin = Instant::now();
        let publisher = Publisher {
            node: "node-0".to_owned(),
            client: client.clone(),
            kubernetes: Kubernetes::new(client, "node-0".to_owned()),
            store,
            managed: ManagedPods::new(Vec::<String>::new()).unwrap(),
            gpus: value::channel(None).1,
            held: value::channel(BTreeSet::new()).1,
            bypassed: value::channel(BTreeSet::new()).1,
            faults: value::channel(FaultState::default()).1,
            mig: Settings::default(),
            policy: value::channel(None).0,
            fences: value::channel(None).1,
            fenced: value::channel(BTreeSet::new()).0,
            node_devices: seen,
            published: Readiness::default().condition("published"),
            pod_resources_socket: None,
            failures: Counter::default(),
            withheld: Withheld::default(),
            memory: Memory {
                moves: Moves::new(begin),
                ..Memory::default()
            },
        };
        Self {
            publisher,
            permits,
            begin,
            root,
        }
    }

    /// Says whether permits are enforced, and permits these claims.
    fn permit(&self, enforce: bool, claims: &[&str]) {
        let permit = |uid: &&str| Permit {
            claim_uids: vec![(*uid).to_owned()],
            ..Permit::default()
        };
        let spec = NodeDevicesSpec {
            enforce,
            permits: claims.iter().map(permit).collect(),
            ..NodeDevicesSpec::default()
        };
        let object = Arc::new(NodeDevices::new("node-0", spec));
        self.permits.send_replace(Some(object));
    }

    /// Records claim `c`.
    fn record(&self, state: RecordState) {
        let record = Record {
            state,
            ..prepared(Unit::whole("GPU-0"))
        };
        let store = &self.publisher.store;
        let lock = store.lock().unwrap();
        store.apply(&lock, &Write::PutRecord(record)).unwrap();
    }

    /// What is published so many seconds after the start; UUID of the GPU that stands first.
    async fn first(&mut self, known: &KnownGpus, second: u64) -> String {
        let now = self.begin + Duration::from_secs(second);
        let (policy, tainted, slices) = (policy(), Tainted::default(), slices());
        let contents = self
            .publisher
            .contents(known, &policy, &tainted, &slices, now)
            .await;
        let device = contents.iter().find_map(|it| it.devices().first());
        let attributes = device.unwrap().attributes.as_ref().unwrap();
        attributes["parentUUID"].string.clone().unwrap()
    }

    /// Whether the second GPU, which is cut, moves before the first then. What is published is never written here, so it has reason to each time.
    async fn moves(&mut self, second: u64) -> bool {
        let first = self.first(&known(Some(1)), second).await;
        first == "GPU-1"
    }
}

#[tokio::test]
async fn a_gpu_moves_once_a_minute_and_not_while_a_pod_may_be_waiting_for_devices() {
    let mut node = Node::new();
    assert!(!node.moves(60).await, "nobody says who waits");
    node.permit(false, &[]);
    assert!(!node.moves(60).await, "in Observe nobody can");
    node.permit(true, &["c"]);
    assert!(!node.moves(60).await, "c is permitted and not recorded");
    node.record(RecordState::Waiting);
    assert!(!node.moves(60).await, "nor is it by a call that goes on");
    node.record(RecordState::Prepared);
    assert!(!node.moves(59).await, "the minute is not over");
    assert!(node.moves(60).await, "what did not move used nothing up");
    assert!(!node.moves(60).await);
    assert!(!node.moves(119).await);
    node.permit(true, &["c", "d"]);
    assert!(!node.moves(120).await, "d is permitted and not recorded");
    node.permit(true, &["c"]);
    assert!(node.moves(120).await);
    // Whoever stands right does not move, and uses nothing up.
    assert_eq!(node.first(&known(Some(0)), 180).await, "GPU-0");
    assert!(node.moves(180).await);
    let file = node.root.path().join("state/node.json");
    std::fs::write(file, r#"{"schema":99}"#).unwrap();
    assert!(!node.moves(240).await, "what is recorded cannot be read");
}

#[test]
fn what_cannot_be_shown_is_told_once_and_again_when_it_is_other() {
    let mut memory = Memory::default();
    let cases: [(&[&str], bool); 7] = [
        (&[], false),
        (&["a"], true),
        (&["a"], false),
        (&["a", "b"], true),
        (&["b"], true),
        (&[], false),
        (&["b"], true),
    ];
    for (step, (left_out, is_told)) in cases.into_iter().enumerate() {
        let left_out: Vec<String> = left_out.iter().map(|it| (*it).to_owned()).collect();
        let told = memory.news_of(left_out.clone()).map(<[String]>::to_vec);
        assert_eq!(told, is_told.then_some(left_out), "step {step}");
    }
}

#[tokio::test]
async fn a_gpu_of_which_no_slice_can_be_shown_is_told_of() {
    let mut node = Node::new();
    let mut known = known(Some(0));
    let mig = known.gpus[0].gpu.mig.as_mut().unwrap();
    mig.profiles.retain(|profile| profile.name == "1g.10gb");
    mig.profiles[0].placements = (0..33).map(|start| Placement { start, size: 1 }).collect();
    node.first(&known, 0).await;
    let told = node.publisher.memory.left_out.clone();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("33 memory slices"), "{told:?}");
    assert!(told[1].contains("as the slices that exist"), "{told:?}");
    assert_eq!(node.publisher.memory.news_of(told), None, "it was told");
}
