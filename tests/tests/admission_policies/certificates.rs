//! What becomes of the Secrets with our authorities, as "Certificates" in the chart's README says it. A user creates pods all
//! the while, and kube-scheduler goes on with what it read at its start.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{Pod, PodSpec, Secret},
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    gangs, install,
    kubernetes::{self, Answer, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use crate::{
    extender,
    identities::User,
    taken_away::{put_back, take_away},
};

/// The programs whose authority is in a Secret; the Secret is `PROGRAM-ca`.
const PROGRAMS: [&str; 2] = ["muster-webhook", "muster-extender"];
/// Key of the authorities in such a Secret.
const AUTHORITIES: &str = "authorities.json";
/// Key of what clients trust.
const BUNDLE: &str = "ca.crt";
/// What is healed is healed in 5 s; the rest is for a machine that is busy.
const HEALED: Duration = Duration::from_secs(20);
/// Between two pods.
const PACE: Duration = Duration::from_millis(200);
const DAY_SECONDS: i64 = 24 * 60 * 60;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = scenarios![
        pods_are_taken_while_both_secrets_are_emptied_deleted_and_filled_by_others,
        after_both_secrets_were_restored_from_a_backup_pods_and_gangs_go_on,
    ];
    let rotated =
        scenarios![no_pod_is_refused_while_the_webhooks_authority_gives_way_to_its_successor];
    all.extend(rotated.into_iter().map(Scenario::without_gangs));
    all
}

async fn pods_are_taken_while_both_secrets_are_emptied_deleted_and_filled_by_others(
    cluster: &mut Cluster,
) -> Result<()> {
    builders::team_of_sixteen(&cluster.client(), "healed").await?;
    let creator = Creator::start(cluster, "healed-pods").await?;
    let stored = Stored::of(cluster);
    let before = stored.read().await?;
    creator
        .creates_while(Box::pin(async {
            stored.empty().await?;
            stored.wait_until_healed(&before).await?;

            let log = Log::from_now(cluster)?;
            let mut taken = Vec::new();
            for name in secret_names() {
                taken.push(take_away(&stored.secrets, &name).await?);
            }
            log.wait_for("does not exist, and this program may not create it")
                .await?;
            for mut secret in taken {
                secret.data = None;
                put_back(&stored.secrets, secret).await?;
            }
            stored.wait_until_healed(&before).await?;

            let somebody_elses = json!({"password": ByteString(b"hers".to_vec())});
            let garbage = json!({AUTHORITIES: ByteString(b"none".to_vec())});
            let mut foreign = Data::new();
            for (data, told) in [
                (somebody_elses, "this Secret is somebody else's"),
                (garbage, "empty the Secret and it is filled again"),
            ] {
                let log = Log::from_now(cluster)?;
                stored.overwrite(&data).await?;
                foreign = stored.read().await?;
                log.wait_for(told).await?;
            }
            run_gang(cluster, "healed").await?;
            ensure!(stored.read().await? == foreign, "it was written over");
            // As the log says.
            stored.empty().await?;
            stored.wait_until_healed(&before).await?;
            Ok(())
        }))
        .await
}

/// The successor is made, issues, and is alone: a year in three steps. The API server looks at the server's certificate
/// again each time it gets another bundle.
async fn no_pod_is_refused_while_the_webhooks_authority_gives_way_to_its_successor(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let creator = Creator::start(cluster, "rotated-pods").await?;
    let stored = Stored::of(cluster);
    let old = stored.bundle().await?;
    creator
        .creates_while(Box::pin(async {
            for (number, days, expected) in [(0, 250, 2), (1, 2, 2), (1, 40, 1)] {
                let log = Log::from_now(cluster)?;
                stored.set_age(number, days * DAY_SECONDS).await?;
                log.wait_for_of(PROGRAMS[0], "the serving certificate was renewed")
                    .await?;
                stored.wait_until_trusted(&client, expected).await?;
            }
            Ok(())
        }))
        .await?;
    let new = stored.bundle().await?;
    ensure!(old != new, "it is the old authority");
    Ok(())
}

/// Until a server has followed, its clients trust others: pods may be refused so long, and kube-scheduler is given what it
/// calls the extender with anew.
async fn after_both_secrets_were_restored_from_a_backup_pods_and_gangs_go_on(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "restored").await?;
    let creator = Creator::start(cluster, "restored-pods").await?;
    let stored = Stored::of(cluster);
    let log = Log::from_now(cluster)?;
    stored
        .overwrite(&json!({AUTHORITIES: foreign_authorities()?}))
        .await?;
    log.wait_for("the serving certificate was renewed").await?;
    stored.wait_until_trusted(&client, 1).await?;
    creator.wait_until_taken().await?;

    cluster.control_plane.stop_scheduler().await;
    let configuration = cluster.installation()?.scheduler_configuration().await?;
    let control_plane = &mut cluster.control_plane;
    control_plane.start_scheduler(Some(configuration)).await?;
    let asked_before = extender::requests(cluster).await?;
    creator
        .creates_while(Box::pin(run_gang(cluster, "restored")))
        .await?;
    let asked = extender::requests(cluster).await? - asked_before;
    ensure!(
        asked >= 2,
        "the extender was asked {asked} times about two pods"
    );
    Ok(())
}

/// A gang of two runs and finishes: kube-scheduler asks the extender about each of its pods.
async fn run_gang(cluster: &Cluster, namespace: &str) -> Result<()> {
    let client = cluster.client();
    let name = format!("gang-{}", Timestamp::now().as_millisecond());
    let workload = Workload {
        namespace,
        name: &name,
        ranks: 2,
        gpus: 1,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    gangs::wait_until_running(&client, namespace, &gangs::of_job(&name)).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, namespace, &name).await
}

/// An authority of the right form that no server of this cluster has made.
fn foreign_authorities() -> Result<ByteString> {
    let name = "another-cluster";
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let authority = json!({
        "commonName": name,
        "issuedAt": Timestamp::now().as_second(),
        "certificatePem": params.self_signed(&key)?.pem(),
        "keyPem": key.serialize_pem(),
    });
    Ok(ByteString(serde_json::to_vec(&[authority])?))
}

/// A user who creates pods that may hold devices, one after the other, in a namespace of nobody's Team: they wait.
struct Creator {
    pods: Api<Pod>,
    spec: PodSpec,
    number: Cell<u32>,
}

impl Creator {
    async fn start(cluster: &Cluster, namespace: &str) -> Result<Self> {
        builders::namespace(&cluster.client(), namespace, None).await?;
        let user = User::editor(cluster, namespace).await?;
        let ranks = RankProgram::new(cluster.programs().path("rank"), "/".into(), 1);
        let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
        Ok(Self {
            pods: Api::namespaced(user.client, namespace),
            spec: builders::with_claim(spec, "none"),
            number: Cell::new(0),
        })
    }

    /// Does something, and creates pods meanwhile: the first one that is refused is the end.
    async fn creates_while(&self, steps: impl Future<Output = Result<()>>) -> Result<()> {
        let before = self.number.get();
        tokio::select! {
            done = steps => done?,
            refused = self.create_until_refused() => refused?,
        }
        let created = self.number.get() - before;
        ensure!(created >= 5, "{created} pods were created");
        Ok(())
    }

    async fn create_until_refused(&self) -> Result<()> {
        loop {
            if let Answer::Refused(why) = self.create().await? {
                bail!("pod {} was refused: {why}", self.number.get());
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// What is taken has the gate, or a policy would have refused it.
    async fn create(&self) -> Result<Answer> {
        let number = self.number.get() + 1;
        self.number.set(number);
        let pod = builders::pod(&format!("steady-{number}"), &[], &[], &self.spec)?;
        kubernetes::create_or_be_refused(&self.pods, &pod).await
    }

    async fn wait_until_taken(&self) -> Result<()> {
        eventually("a pod is taken again", HEALED, async || {
            let answer = self.create().await?;
            Ok(Progress::when(answer == Answer::Taken, || {
                format!("{answer:?}")
            }))
        })
        .await
    }
}

/// What both Secrets hold.
type Data = Vec<Option<BTreeMap<String, ByteString>>>;

/// The webhook's first.
fn secret_names() -> [String; 2] {
    PROGRAMS.map(|program| format!("{program}-ca"))
}

/// The Secrets of the authorities, as an administrator treats them.
struct Stored {
    secrets: Api<Secret>,
}

impl Stored {
    fn of(cluster: &Cluster) -> Self {
        Self {
            secrets: Api::namespaced(cluster.client(), install::NAMESPACE),
        }
    }

    async fn read(&self) -> Result<Data> {
        let mut all = Vec::new();
        for name in secret_names() {
            all.push(self.secrets.get(&name).await?.data);
        }
        Ok(all)
    }

    async fn empty(&self) -> Result<()> {
        self.patch(&json!([{"op": "remove", "path": "/data"}]))
            .await
    }

    /// With this, and nothing beside it.
    async fn overwrite(&self, data: &Value) -> Result<()> {
        self.patch(&json!([{"op": "add", "path": "/data", "value": data}]))
            .await
    }

    async fn patch(&self, operations: &Value) -> Result<()> {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(operations.clone())?);
        for name in secret_names() {
            let params = PatchParams::default();
            self.secrets.patch(&name, &params, &patch).await?;
        }
        Ok(())
    }

    /// Waits until both hold what they held before.
    async fn wait_until_healed(&self, before: &Data) -> Result<()> {
        eventually("both Secrets are as before", HEALED, async || {
            let now = self.read().await?;
            // Keys do not belong into logs.
            Ok(Progress::when(now == *before, || {
                let keys = now.iter().map(|data| {
                    let keys = data.iter().flatten().map(|(key, _)| key.as_str());
                    keys.collect::<Vec<_>>()
                });
                format!("{:?}", keys.collect::<Vec<_>>())
            }))
        })
        .await
    }

    /// The bundle of the webhook's authorities.
    async fn bundle(&self) -> Result<Vec<u8>> {
        let [webhook, _] = secret_names();
        let data = self.secrets.get(&webhook).await?.data;
        let bundle = data.and_then(|mut data| data.remove(BUNDLE));
        Ok(bundle.context("the bundle")?.0)
    }

    /// Makes one of the webhook's authorities this old. Nobody else writes there while none is old enough for a change.
    async fn set_age(&self, number: usize, seconds: i64) -> Result<()> {
        let [webhook, _] = secret_names();
        let secret = self.secrets.get(&webhook).await?;
        let data = secret.data.unwrap_or_default();
        let stored = data.get(AUTHORITIES).context("the authorities")?;
        let mut authorities: Vec<Value> = serde_json::from_slice(&stored.0)?;
        let aged = authorities.get_mut(number);
        let aged = aged.with_context(|| format!("there is no authority {number}"))?;
        aged["issuedAt"] = json!(Timestamp::now().as_second() - seconds);
        let stored = ByteString(serde_json::to_vec(&authorities)?);
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {AUTHORITIES: stored},
        }));
        let params = PatchParams::default();
        self.secrets.patch(&webhook, &params, &patch).await?;
        Ok(())
    }

    /// Waits until the API server is to trust so many authorities, all of those that are stored.
    async fn wait_until_trusted(&self, client: &Client, expected: usize) -> Result<()> {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        eventually(
            "the webhooks' bundle is that of the Secret",
            LIMIT,
            async || {
                let stored = self.bundle().await?;
                let text = String::from_utf8(stored.clone())?;
                let authorities = text.matches("BEGIN CERTIFICATE").count();
                let (mutating, validating) = (
                    mutating.get("zz-muster").await?.webhooks,
                    validating.get("muster").await?.webhooks,
                );
                let first = mutating.into_iter().flatten().map(|it| it.client_config);
                let second = validating.into_iter().flatten().map(|it| it.client_config);
                let late = first
                    .chain(second)
                    .filter(|config| config.ca_bundle.as_ref().map(|it| &it.0) != Some(&stored))
                    .count();
                Ok(Progress::when(authorities == expected && late == 0, || {
                    format!("{authorities} authorities, {late} webhooks with another bundle")
                }))
            },
        )
        .await
    }
}

/// What both servers write into their logs from some time on.
struct Log {
    files: Vec<(&'static str, PathBuf, usize)>,
}

impl Log {
    fn from_now(cluster: &Cluster) -> Result<Self> {
        let files = PROGRAMS.map(|program| {
            let file = cluster.directory().join(format!("logs/{program}.log"));
            let written = fs::read(&file).with_context(|| file.display().to_string())?;
            anyhow::Ok((program, file, written.len()))
        });
        Ok(Self {
            files: files.into_iter().collect::<Result<_>>()?,
        })
    }

    /// Waits until both say this.
    async fn wait_for(&self, words: &str) -> Result<()> {
        for program in PROGRAMS {
            self.wait_for_of(program, words).await?;
        }
        Ok(())
    }

    /// Waits until this one says this.
    async fn wait_for_of(&self, program: &str, words: &str) -> Result<()> {
        let of_program = self.files.iter().find(|(name, ..)| *name == program);
        let (_, file, from) = of_program.context("a server")?;
        let what = format!("the log of {program} says {words:?}");
        eventually(&what, HEALED, async || {
            let said = since(file, *from)?;
            Ok(Progress::when(said.contains(words), || said))
        })
        .await
    }
}

fn since(file: &Path, from: usize) -> Result<String> {
    let written = fs::read(file)?;
    let since = written.get(from..).unwrap_or_default();
    Ok(String::from_utf8_lossy(since).into_owned())
}
