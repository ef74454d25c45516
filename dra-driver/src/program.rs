//! The program: flags, and who is started in which order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::{Parser, builder::NonEmptyStringValueParser};
use kube::{Api, Client, runtime::watcher};
use muster_api::NodeDevices;
use muster_cluster::managed::ManagedPods;
use muster_device::{
    Backend, BackendConfig, LibrarySource,
    cdi::DriverRoot,
    faults::{Catalogue, CatalogueError},
};
use muster_serve::{
    Condition, ExtendedResourcesArgs, Program, Readiness, ServeArgs,
    watch::{self, WatchEvent, WatchMetrics},
};
use tokio::sync::{mpsc, watch as value};

use crate::{
    bypass::{self, look::Places, remembered::Remembered, sight::Trusted, watcher::Settings},
    bystanders::Bystanders,
    containers::{self, DriverSettings},
    driver::{Driver, Handle, World},
    enumerate,
    faults::{
        self,
        remedy::{self, others::Others, running::Checks, settings::Remedies, tell::Teller},
    },
    hardware::Hardware,
    kubelet::{health::Health, serve},
    kubernetes::Kubernetes,
    leftover_slices::LeftoverSlices,
    metrics::DriverMetrics,
    mig::{
        self,
        apply::{self, Layouts},
        notices,
    },
    orphans,
    prepare::{Config, Input},
    probe::Prober,
    slices::publisher::{self, Memory, Publisher, Withheld},
};

/// Publishes the GPUs of a node and prepares the claims on them.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-dra-driver", version)]
pub struct Args {
    #[command(flatten)]
    serve: ServeArgs,

    /// Name of the node; the name of its pool, too.
    #[arg(long, env = "NODE_NAME", value_parser = NonEmptyStringValueParser::new())]
    node_name: String,

    /// Directory that the kubelet watches for registration sockets.
    #[arg(
        long,
        env = "MUSTER_REGISTRATION_DIR",
        default_value = "/var/lib/kubelet/plugins_registry",
        value_name = "DIR"
    )]
    registration_dir: PathBuf,

    /// Directory of the DRA socket. The kubelet must find it under the same path.
    #[arg(
        long,
        env = "MUSTER_PLUGIN_DIR",
        default_value = "/var/lib/kubelet/plugins/gpu.muster.dev",
        value_name = "DIR"
    )]
    plugin_dir: PathBuf,

    /// Directory in which the container runtime looks for CDI files.
    #[arg(
        long,
        env = "MUSTER_CDI_DIR",
        default_value = "/var/run/cdi",
        value_name = "DIR"
    )]
    cdi_dir: PathBuf,

    /// Directory of the checkpoint. It must survive restarts and reboots.
    #[arg(
        long,
        env = "MUSTER_STATE_DIR",
        default_value = "/var/lib/muster",
        value_name = "DIR"
    )]
    state_dir: PathBuf,

    /// File with the boot id of the node.
    #[arg(
        long,
        env = "MUSTER_BOOT_ID_FILE",
        default_value = "/proc/sys/kernel/random/boot_id",
        value_name = "FILE"
    )]
    boot_id_file: PathBuf,

    /// NVIDIA's management library: a path, or a name that the loader finds. By default that of the kernel's version in the
    /// driver root, and without one `libnvidia-ml.so.1`. It is looked for each time it is opened.
    #[arg(long, env = "MUSTER_NVML_LIBRARY", value_name = "FILE")]
    nvml_library: Option<PathBuf>,

    /// The host's /proc.
    #[arg(
        long,
        env = "MUSTER_PROC_DIR",
        default_value = "/proc",
        value_name = "DIR"
    )]
    proc_dir: PathBuf,

    /// Where NVIDIA's driver is installed: `/` of the host, or that of the container that installs it, as this program
    /// sees it. Containers get its libraries and all else that they need of it. Without this they get device nodes only.
    #[arg(long, env = "MUSTER_DRIVER_ROOT", value_name = "DIR")]
    driver_root: Option<PathBuf>,

    /// The same directory, as the container runtime sees it; by default under the same path.
    #[arg(
        long,
        env = "MUSTER_DRIVER_ROOT_ON_HOST",
        value_name = "DIR",
        requires = "driver_root"
    )]
    driver_root_on_host: Option<PathBuf>,

    /// Where the hook that finishes containers is installed, under the same path on the host. Programs must be allowed to
    /// run from there, also those of other users.
    #[arg(
        long,
        env = "MUSTER_HOOK_DIR",
        default_value = "/opt/muster/bin",
        value_name = "DIR"
    )]
    hook_dir: PathBuf,

    /// The hook to install.
    #[arg(
        long,
        env = "MUSTER_HOOK_PROGRAM",
        default_value = "/muster-cdi-hook",
        value_name = "FILE"
    )]
    hook_program: PathBuf,

    /// Use the hooks of NVIDIA's container toolkit instead: path of nvidia-cdi-hook or nvidia-ctk on the host.
    #[arg(
        long,
        env = "MUSTER_TOOLKIT_HOOK",
        value_name = "FILE",
        requires = "driver_root"
    )]
    toolkit_hook: Option<PathBuf>,

    /// The host's /sys.
    #[arg(
        long,
        env = "MUSTER_SYS_DIR",
        default_value = "/sys",
        value_name = "DIR"
    )]
    sys_dir: PathBuf,

    /// The host's cgroups, where living containers of a pod are seen.
    #[arg(
        long,
        env = "MUSTER_CGROUP_DIR",
        default_value = "/sys/fs/cgroup",
        value_name = "DIR"
    )]
    cgroup_dir: PathBuf,

    /// Which resources stand for devices. While the node offers any of them, a device plugin hands out its GPUs, and none is published.
    #[command(flatten)]
    extended_resources: ExtendedResourcesArgs,

    /// The kubelet's socket that says what device plugins gave to containers. While one has what stands for devices, no GPU is
    /// published; nor any that was not, while the kubelet does not answer. Without this it is not asked.
    #[arg(long, env = "MUSTER_POD_RESOURCES_SOCKET", value_name = "FILE")]
    pod_resources_socket: Option<PathBuf>,

    /// The kubelet's directory of the logs of pods. Names of pods are read from the names in it.
    #[arg(
        long,
        env = "MUSTER_POD_LOGS_DIR",
        default_value = "/var/log/pods",
        value_name = "DIR"
    )]
    pod_logs_dir: PathBuf,

    /// Namespaces whose pods may use GPUs without a claim.
    #[arg(
        long = "trusted-namespace",
        env = "MUSTER_TRUSTED_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    trusted_namespaces: Vec<String>,

    /// Programs of the node itself, in no pod, that may use GPUs: absolute paths.
    #[arg(
        long = "trusted-program",
        env = "MUSTER_TRUSTED_PROGRAMS",
        value_delimiter = ',',
        value_name = "FILE"
    )]
    trusted_programs: Vec<String>,

    /// For how long nothing explains a process on a GPU until it is told as a bypass, and for how long it is gone until it is none.
    #[arg(
        long,
        env = "MUSTER_UNEXPLAINED_SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=3_600),
        value_name = "SECONDS"
    )]
    unexplained_seconds: u32,

    /// How GPUs are offered that can be cut into slices (MIG), as JSON: `mode` (Off, Static or Dynamic), `toggle` (Never or WhenIdle), `layout`,
    /// `layouts` and `nodes`, as the chart's value `driver.mig` has them.
    #[arg(
        long,
        env = "MUSTER_MIG",
        default_value = "{}",
        value_parser = mig::Settings::parse,
        value_name = "JSON"
    )]
    mig: mig::Settings,

    /// The kernel's log, in which the driver tells of faults. What cannot be read is tried again.
    #[arg(
        long,
        env = "MUSTER_KERNEL_LOG",
        default_value = "/dev/kmsg",
        value_name = "FILE"
    )]
    kernel_log: PathBuf,

    /// What XIDs mean, where that is to be other than in the table that ships: a JSON object of codes and classes (Info, App, Contained, Link,
    /// Unknown, Reset, Reboot, Retire, or Companion), e.g. {"109": "App"}.
    #[arg(
        long,
        env = "MUSTER_XID_CLASSES",
        default_value = "{}",
        value_parser = xid_classes,
        value_name = "JSON"
    )]
    xid_classes: Catalogue,

    /// What is done about GPUs with a fault, by commands of the administrator, as JSON: `reset`, `validation` and `deepCheck`, as the chart's values of the
    /// same names under `driver` have them. Without a command nothing of its kind is done. Commands run in the driver root, where there is one.
    #[arg(
        long,
        env = "MUSTER_REMEDIES",
        default_value = "{}",
        value_parser = Remedies::parse,
        value_name = "JSON"
    )]
    remedies: Remedies,

    /// Says to the driver that runs on this node that a GPU is in order, or that one that is not there any more does not come back, and ends with its
    /// answer. UUID of the GPU, name of its device, or its PCI address where only that is known. The state directory has to be the driver's.
    #[arg(long, value_name = "GPU")]
    mended: Option<String>,

    /// Prepare only what is permitted also while this node has never had a NodeDevices object that says so.
    #[arg(long, env = "MUSTER_ENFORCE_UNLESS_TOLD")]
    enforce_unless_told: bool,
}

/// What the program cannot work without.
struct Conditions {
    nvml: Condition,
    registered: Condition,
    published: Condition,
    acknowledged: Condition,
    slices_synced: Condition,
    node_devices_synced: Condition,
}

/// Runs until it is told to stop.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(gpu) = args.mended.clone() {
        let state_directory = args.state_dir.clone();
        let said = move || faults::mended::say(&state_directory, &gpu);
        let answer = tokio::task::spawn_blocking(said).await??;
        writeln!(io::stdout(), "{answer}")?;
        return Ok(());
    }
    let program =
        Program::start("muster-dra-driver", env!("CARGO_PKG_VERSION"), &args.serve).await?;
    let condition = |name| program.readiness.condition(name);
    let conditions = Conditions {
        nvml: condition("nvml"),
        registered: condition("registered with the kubelet"),
        published: condition("ResourceSlices published"),
        acknowledged: condition("checkpoint good"),
        slices_synced: condition("watch ResourceSlice"),
        node_devices_synced: condition("watch NodeDevices"),
    };
    start(&args, &program, conditions).await?;
    program.finish().await?;
    Ok(())
}

async fn start(args: &Args, program: &Program, conditions: Conditions) -> anyhow::Result<()> {
    make_directories(args)?;
    let boot_id = boot_id(&args.boot_id_file)?;
    let backend = Arc::new(Backend::new(BackendConfig {
        sysfs: args.sys_dir.clone(),
        proc: args.proc_dir.clone(),
        ..BackendConfig::new(args.library())
    }));
    let store = containers::store(&args.containers(), &args.state_dir)?;
    let write_client = program.write_client().await?;
    let watch_client = program.watch_client().await?;
    let kubernetes = Kubernetes::new(write_client.clone(), args.node_name.clone());
    let metrics = DriverMetrics::register(&program.metrics);
    let watch_metrics = WatchMetrics::register(&program.metrics);
    let shutdown = &program.shutdown;

    let (held_sender, held) = value::channel(BTreeSet::new());
    let checks = Checks::default();
    let prober = Prober::new(backend.clone(), args.cgroup_dir.clone())
        .with_checks(checks.clone())
        .with_bystanders(Bystanders {
            proc: args.proc_dir.clone(),
            pod_logs: args.pod_logs_dir.clone(),
            trusted: args.trusted(),
        });
    let (switchable_sender, switchable) = value::channel(BTreeSet::new());
    let hardware = Hardware::new(backend.clone()).with_switchable(switchable);
    let world = World {
        store: store.clone(),
        prober: prober.clone(),
        hardware: hardware.clone(),
        kubernetes: kubernetes.clone(),
    };
    let config = config(args, boot_id.clone());
    let instance = config.instance.clone();
    let driver = Driver::new(
        config,
        world,
        held_sender,
        conditions.acknowledged,
        metrics.clone(),
    );
    let handle = driver.handle();
    driver.spawn(shutdown);

    let (policy_sender, policy) = value::channel(None);
    let enumerated = enumerate::spawn(
        enumerate::Enumerator {
            backend: backend.clone(),
            store: store.clone(),
            boot_id: boot_id.clone(),
            driver: handle.clone(),
            policy: policy.clone(),
            switchable: switchable_sender,
            listed: conditions.nvml,
            metrics: metrics.clone(),
        },
        shutdown,
    );
    let follower = faults::policy::Follower {
        base: args.xid_classes.clone(),
        store: store.clone(),
        client: watch_client.clone(),
        metrics: watch_metrics.clone(),
        // Without it there is the last that was seen, or the table that ships.
        synced: Readiness::default().condition("watch FaultPolicy"),
    };
    let catalogue = follower.spawn(shutdown);
    let remembered = faults::memory::load(&store, &boot_id)
        .context("what is known of faulty GPUs cannot be read")?;
    let (faults_sender, seen_faults) = value::channel(remembered);
    let eye = faults::watcher::spawn(
        faults::watcher::Settings {
            backend: backend.clone(),
            store: store.clone(),
            catalogue,
            kernel_log: args.kernel_log.clone(),
            mended: faults::mended::directory(&args.state_dir),
            gpus: enumerated.gpus.clone(),
            faults: faults_sender,
            driver: handle.clone(),
            validates: args.remedies.validation().is_some(),
            metrics: metrics.clone(),
        },
        shutdown,
    );
    let (node_devices_sender, node_devices) = value::channel(None);
    let (hindered_sender, hindered) = value::channel(BTreeMap::new());
    let managed = ManagedPods::new(args.extended_resources.listed())?;
    remedy::spawn(
        remedy::Settings {
            remedies: args.remedies.clone(),
            tools: remedy::Tools {
                eye,
                store: store.clone(),
                boot_id: boot_id.clone(),
                instance,
                proc: args.proc_dir.clone(),
                root: args.driver_root.clone(),
                others: Others {
                    socket: args.pod_resources_socket.clone(),
                    managed: managed.clone(),
                },
                gpus: enumerated.gpus.clone(),
                checks,
                metrics: metrics.clone(),
                teller: Teller {
                    kubernetes: kubernetes.clone(),
                    gpus: enumerated.gpus.clone(),
                },
            },
            kubernetes: kubernetes.clone(),
            node_devices: node_devices.clone(),
            hindered: hindered_sender,
        },
        shutdown,
    );
    let health = Health {
        node: args.node_name.clone(),
        report: enumerated.report,
        faults: seen_faults.clone(),
    };
    serve::spawn(
        serve::Paths {
            registration_dir: &args.registration_dir,
            plugin_dir: &args.plugin_dir,
        },
        handle.clone(),
        health,
        conditions.registered,
        shutdown,
    )
    .await?;

    let (fences_sender, fences) = value::channel(None);
    let (fenced_sender, fenced) = value::channel(BTreeSet::new());
    let layouts = Layouts {
        backend: backend.clone(),
        store: store.clone(),
        boot_id: boot_id.clone(),
        kubernetes: kubernetes.clone(),
        gpus: enumerated.gpus.clone(),
        policy: policy.clone(),
        fences: fences_sender,
        fenced,
    };
    apply::spawn(layouts, shutdown);
    notices::spawn(
        enumerated.gpus.clone(),
        policy.clone(),
        kubernetes.clone(),
        shutdown,
    );

    let slices = LeftoverSlices {
        store: store.clone(),
        boot_id,
        prober,
        hardware,
        gpus: enumerated.gpus.clone(),
        policy,
    };
    let remembered = Remembered::load(&store);
    let (tainted_sender, bypassed) = value::channel(remembered.tainted());
    let settings = Settings {
        places: Places {
            backend,
            proc: args.proc_dir.clone(),
            pod_logs: args.pod_logs_dir.clone(),
            store: store.clone(),
            kubernetes: kubernetes.clone(),
            pod_resources_socket: args.pod_resources_socket.clone(),
            managed: managed.clone(),
        },
        grace: Duration::from_secs(u64::from(args.unexplained_seconds)),
        trusted: args.trusted(),
        remembered,
        gpus: enumerated.gpus.clone(),
        tainted: tainted_sender,
        metrics: metrics.clone(),
    };
    bypass::watcher::spawn(settings, shutdown);
    faults::telling::spawn(
        faults::telling::Settings {
            kubernetes: kubernetes.clone(),
            faults: seen_faults.clone(),
            gpus: enumerated.gpus.clone(),
            node_devices: node_devices.clone(),
            hindered,
        },
        shutdown,
    );
    let publisher = Publisher {
        node: args.node_name.clone(),
        client: write_client,
        kubernetes: kubernetes.clone(),
        store: store.clone(),
        managed,
        gpus: enumerated.gpus,
        held,
        bypassed,
        faults: seen_faults,
        mig: args.mig.clone(),
        policy: policy_sender,
        fences,
        fenced: fenced_sender,
        node_devices,
        published: conditions.published,
        pod_resources_socket: args.pod_resources_socket.clone(),
        failures: metrics.slice_failures.clone(),
        withheld: Withheld::default(),
        memory: Memory::default(),
    };
    publisher::spawn(
        publisher,
        watch_client.clone(),
        watch_metrics.clone(),
        conditions.slices_synced,
        shutdown,
    );
    watch_node_devices(
        &args.node_name,
        watch_client,
        watch_metrics,
        conditions.node_devices_synced,
        (handle.clone(), node_devices_sender),
        program,
    );
    orphans::spawn(store, kubernetes, slices, handle, shutdown);
    Ok(())
}

fn xid_classes(text: &str) -> Result<Catalogue, CatalogueError> {
    Catalogue::shipped().with_overrides(text)
}

impl Args {
    /// The chart writes an empty list as one empty entry.
    fn trusted(&self) -> Trusted {
        let listed = |entries: &[String]| {
            let entries = entries.iter().filter(|entry| !entry.is_empty());
            entries.cloned().collect()
        };
        Trusted {
            namespaces: listed(&self.trusted_namespaces),
            programs: listed(&self.trusted_programs),
        }
    }

    fn library(&self) -> LibrarySource {
        match (&self.nvml_library, self.driver_root()) {
            (Some(file), _) => LibrarySource::File(file.clone()),
            (None, Some(root)) => LibrarySource::DriverRoot(root),
            (None, None) => LibrarySource::File("libnvidia-ml.so.1".into()),
        }
    }

    fn driver_root(&self) -> Option<DriverRoot> {
        let path = self.driver_root.as_ref()?;
        Some(DriverRoot {
            path: path.clone(),
            on_host: self.driver_root_on_host.as_ref().unwrap_or(path).clone(),
        })
    }

    fn containers(&self) -> containers::Settings {
        let driver = self.driver_root().map(|root| DriverSettings {
            root,
            toolkit_hook: self.toolkit_hook.clone(),
            hook_directory: self.hook_dir.clone(),
            hook_program: self.hook_program.clone(),
        });
        containers::Settings {
            cdi_directory: self.cdi_dir.clone(),
            proc: self.proc_dir.clone(),
            driver,
        }
    }
}

fn config(args: &Args, boot_id: String) -> Config {
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_nanos())
        .unwrap_or_default();
    // The process id alone is 1 in every container.
    let instance = format!("{}-{started}", std::process::id());
    Config {
        enforce_unless_told: args.enforce_unless_told,
        ..Config::new(instance, args.node_name.clone(), boot_id)
    }
}

/// The kubelet makes its own when it starts, which may be later; the container runtime's may be missing where no
/// other CDI vendor is installed.
fn make_directories(args: &Args) -> anyhow::Result<()> {
    for (flag, path, mode) in [
        ("--registration-dir", &args.registration_dir, 0o750),
        ("--plugin-dir", &args.plugin_dir, 0o750),
        ("--cdi-dir", &args.cdi_dir, 0o755),
    ] {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .with_context(|| format!("{flag} {}", path.display()))?;
    }
    Ok(())
}

fn boot_id(file: &Path) -> anyhow::Result<String> {
    let text =
        fs::read_to_string(file).with_context(|| format!("--boot-id-file {}", file.display()))?;
    let boot_id = text.trim();
    anyhow::ensure!(
        !boot_id.is_empty(),
        "--boot-id-file {} is empty",
        file.display()
    );
    Ok(boot_id.to_owned())
}

fn watch_node_devices(
    node: &str,
    client: Client,
    metrics: WatchMetrics,
    synced: Condition,
    (driver, permits): (Handle, value::Sender<Option<Arc<NodeDevices>>>),
    program: &Program,
) {
    let (sender, mut seen) = mpsc::channel(64);
    let api: Api<watch::Decoded<NodeDevices>> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let watch = watch::run(api, config, metrics, synced, sender, |seen| seen);
    let shutdown = &program.shutdown;
    shutdown.spawn_until_stopped("watch of NodeDevices", watch);
    shutdown.spawn_until_stopped("what is seen of NodeDevices", async move {
        while let Some(event) = seen.recv().await {
            let object = match event {
                WatchEvent::Applied(object) => Some(Arc::new(object)),
                WatchEvent::Deleted(_) => None,
                WatchEvent::Listed(objects) => objects.into_iter().next().map(Arc::new),
            };
            permits.send_replace(object.clone());
            driver.tell(Input::Observed(object));
        }
    });
}
