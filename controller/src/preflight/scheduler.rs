//! kube-scheduler's configuration: that it starts, and that it asks Muster's extender as it must.
//!
//! What the extender's entry must say, and why, stands in [`crate::scheduler_config::extender`], which writes one that is right.

use std::time::Duration;

use muster_api::keys;
use muster_cluster::managed::ManagedPods;
use serde_json::Value;

use super::{
    control_plane::ControlPlane,
    extender_fields,
    finding::{Finding, Reason},
    installation::Installation,
    reading::Reading,
};
use crate::scheduler_config::{safety, target::DEFAULT_SCHEDULER};

/// How long an extender that hangs may hold up everybody.
const TIMEOUT: Duration = Duration::from_secs(1);
/// kube-scheduler's own, where nothing is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The extender answers within 300 ms, or says that it cannot.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(500);
/// From here on the extender's scores outweigh the sum of all plugins.
const LEAST_WEIGHT: i64 = 20;
/// The path that the extender answers under.
const PATH: &str = "/scheduler";
/// Units of a duration as Go writes it, in seconds; one that begins as another does comes first.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("\u{3bc}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];
/// What writes a right one.
const WRITES: &str = "muster-controller scheduler-config writes an entry that is right";

/// A configuration as it was given: none, or what could not be read, or what was.
pub type Given = Option<Result<Value, String>>;

/// Everything about the configuration.
pub fn findings(
    given: &Given,
    devices: &ManagedPods,
    installation: Option<&Installation>,
) -> Vec<Finding> {
    let object = "--scheduler-config";
    let document = match given {
        Some(Ok(document)) => document,
        Some(Err(text)) => {
            let remedy = "Give the file that kube-scheduler is started with";
            return vec![Finding::new(
                Reason::SchedulerConfigInvalid,
                object,
                text,
                remedy,
            )];
        }
        None if installation.is_some_and(|installed| installed.has_scheduler) => {
            return vec![Finding::passed(
                object,
                "managed pods get the chart's own kube-scheduler, which the chart configures",
            )];
        }
        None => {
            return vec![Finding::new(
                Reason::NotGiven,
                object,
                "the API does not show kube-scheduler's configuration, so it was not looked at",
                "Give the file that kube-scheduler is started with by --scheduler-config",
            )];
        }
    };
    let mut findings = Vec::new();
    if let Err(refusal) = safety::check_alone(document) {
        findings.push(Finding::new(
            Reason::SchedulerConfigInvalid,
            object,
            refusal.to_string(),
            "Correct it, or Muster's pods are not scheduled, or nobody's are",
        ));
    }
    let extenders = document["extenders"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut ours = 0;
    for (position, entry) in extenders.iter().enumerate() {
        let url = entry["urlPrefix"].as_str().unwrap_or("(no urlPrefix)");
        let place = format!("extenders[{position}] ({url})");
        findings.extend(extender_fields::findings(entry, &place));
        if is_ours(entry, extenders) {
            ours += 1;
            findings.extend(of_ours(entry, &place));
        } else {
            findings.extend(of_other(entry, &place, devices));
        }
        if entry["bindVerb"]
            .as_str()
            .is_some_and(|verb| !verb.is_empty())
        {
            findings.push(Finding::new(
                Reason::ExtenderBinds,
                &place,
                "bindVerb is set: this extender binds Muster's pods in place of kube-scheduler, which allocates their claims",
                "Take bindVerb out, or run that extender in a scheduler of its own",
            ));
        }
    }
    findings.extend(extender_fields::managed_twice(extenders));
    if ours > 1 {
        findings.push(Finding::new(
            Reason::ExtenderNamedTwice,
            object,
            format!("{ours} extenders manage {} or end in {PATH}; kube-scheduler does not start with two of the same resource", keys::MARKER_RESOURCE),
            "Leave one of them",
        ));
    }
    // The chart's own kube-scheduler asks it; no managed pod comes to the cluster's.
    let asks =
        installation.is_some_and(|installed| installed.has_extender && !installed.has_scheduler);
    if ours == 0 && asks {
        findings.push(Finding::new(
            Reason::ExtenderNotNamed,
            object,
            format!(
                "none of {} extenders is Muster's: a gang that lost a place goes on binding until that is noticed",
                extenders.len()
            ),
            WRITES,
        ));
    }
    if ours > 0 && installation.is_some_and(|installed| !installed.has_extender) {
        findings.push(Finding::new(
            Reason::ExtenderNotInstalled,
            object,
            format!(
                "it names Muster's extender, and extender.enabled is false: a pod with the marker {} that is not bound yet stays so, since \
                 kube-scheduler asks where nobody answers",
                keys::MARKER_RESOURCE
            ),
            "Take the extender out of the configuration, and restart kube-scheduler; or set extender.enabled=true",
        ));
    }
    if ours > 0 {
        findings.extend(of_profiles(document, installation));
    }
    findings.extend(of_plugins(document));
    if findings.is_empty() {
        findings.push(Finding::passed(
            object,
            format!(
                "it starts, and {}",
                if ours == 0 {
                    "does not name Muster's extender yet"
                } else {
                    "names Muster's extender as it must"
                }
            ),
        ));
    }
    findings
}

/// Muster's own entry, if there is one.
pub fn ours(document: &Value) -> Option<&Value> {
    let all = document["extenders"].as_array()?;
    all.iter().find(|entry| is_ours(entry, all))
}

/// By the marker that it manages; where no entry does, by its path, which another extender may have too.
fn is_ours(entry: &Value, all: &[Value]) -> bool {
    let url = entry["urlPrefix"].as_str().unwrap_or_default();
    manages_marker(entry)
        || (url.trim_end_matches('/').ends_with(PATH) && !all.iter().any(manages_marker))
}

fn manages_marker(entry: &Value) -> bool {
    managed(entry).any(|resource| resource["name"] == keys::MARKER_RESOURCE)
}

fn managed(entry: &Value) -> impl Iterator<Item = &Value> {
    entry["managedResources"].as_array().into_iter().flatten()
}

fn of_ours(entry: &Value, place: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |reason, message: String, remedy: &str| {
        findings.push(Finding::new(reason, place, message, remedy));
    };
    let marker = keys::MARKER_RESOURCE;
    let names: Vec<&str> = managed(entry)
        .filter_map(|resource| resource["name"].as_str())
        .collect();
    if names != [marker] {
        let consequence = if names.is_empty() {
            "kube-scheduler asks it about every pod of the cluster, and all of them wait for it"
        } else {
            "it must be asked about Muster's pods, and about no others"
        };
        add(
            Reason::ExtenderResourcesWrong,
            format!("managedResources is [{}]: {consequence}", names.join(", ")),
            "Set managedResources: [{name: muster.dev/managed}]",
        );
    }
    if managed(entry).any(|resource| resource["ignoredByScheduler"] == true) {
        add(
            Reason::ExtenderResourcesWrong,
            "managedResources[].ignoredByScheduler is true: pods with a DRA-backed extended resource are never scheduled then".to_owned(),
            "Take ignoredByScheduler out",
        );
    }
    if entry["ignorable"] == true {
        add(
            Reason::ExtenderIgnorable,
            "ignorable is true: while the extender does not answer, its pods are bound without the last look".to_owned(),
            "Set ignorable: false",
        );
    }
    if entry["nodeCacheCapable"] != true {
        add(
            Reason::ExtenderNotCacheCapable,
            "nodeCacheCapable is not true: the extender is sent whole nodes, which it does not read, and scores by resources are zero".to_owned(),
            "Set nodeCacheCapable: true",
        );
    }
    for verb in ["filter", "preempt"] {
        let found = entry[format!("{verb}Verb")].as_str().unwrap_or_default();
        if found != verb {
            add(
                Reason::ExtenderVerbMissing,
                format!("{verb}Verb is {found:?}: the extender is not asked"),
                &format!("Set {verb}Verb: {verb}"),
            );
        }
    }
    of_tls(entry, &mut add);
    of_timeout(entry, &mut add);
    let weight = entry["weight"].as_i64().unwrap_or(0);
    if entry["prioritizeVerb"] != "prioritize" {
        add(
            Reason::ExtenderWeightLow,
            "prioritizeVerb is not prioritize: the extender's scores are not asked for".to_owned(),
            "Set prioritizeVerb: prioritize and weight: 20",
        );
    } else if weight < LEAST_WEIGHT {
        add(
            Reason::ExtenderWeightLow,
            format!(
                "weight is {weight}: from {LEAST_WEIGHT} on the extender's scores outweigh those of all plugins together"
            ),
            "Set weight: 20",
        );
    }
    findings
}

fn of_tls(entry: &Value, add: &mut impl FnMut(Reason, String, &str)) {
    let tls = &entry["tlsConfig"];
    let has = |fields: [&str; 2]| {
        fields
            .iter()
            .any(|field| tls[*field].as_str().is_some_and(|value| !value.is_empty()))
    };
    let url = entry["urlPrefix"].as_str().unwrap_or_default();
    let why = if !url.starts_with("https://") {
        Some("urlPrefix does not begin with https://, and the extender answers nothing else")
    } else if tls["insecure"] == true {
        Some("tlsConfig.insecure is true: kube-scheduler believes whoever answers there")
    } else if has(["caData", "caFile"]) {
        None
    } else if entry["enableHTTPS"] == true {
        Some(
            "enableHTTPS without a CA silently turns verification off: kube-scheduler believes whoever answers there",
        )
    } else {
        Some(
            "there is no CA: kube-scheduler goes by its machine's authorities, which do not know Muster's",
        )
    };
    if let Some(why) = why {
        add(Reason::ExtenderNotVerified, why.to_owned(), WRITES);
    }
    if !(has(["certData", "certFile"]) && has(["keyData", "keyFile"])) {
        add(
            Reason::ExtenderTlsFailed,
            "tlsConfig has no client certificate with its key, and the extender answers nobody without".to_owned(),
            WRITES,
        );
    }
}

fn of_timeout(entry: &Value, add: &mut impl FnMut(Reason, String, &str)) {
    let remedy = "Set httpTimeout: 1s";
    let timeout = match &entry["httpTimeout"] {
        Value::Null => Ok(DEFAULT_TIMEOUT),
        value => duration(value).map(|timeout| {
            if timeout.is_zero() {
                DEFAULT_TIMEOUT
            } else {
                timeout
            }
        }),
    };
    match timeout {
        Ok(timeout) if timeout > TIMEOUT => add(
            Reason::ExtenderTimeoutLong,
            format!(
                "httpTimeout is {} s: an extender that hangs holds up every pod of the cluster that long, in each attempt",
                timeout.as_secs_f64()
            ),
            remedy,
        ),
        Ok(timeout) if timeout < SHORTEST_TIMEOUT => add(
            Reason::ExtenderTimeoutShort,
            format!(
                "httpTimeout is {} s: the extender may take 0.3 s to answer, and the way comes on top",
                timeout.as_secs_f64()
            ),
            remedy,
        ),
        Ok(_) => {}
        Err(text) => add(
            Reason::SchedulerConfigInvalid,
            format!("httpTimeout {text} is no duration, and kube-scheduler does not start with it"),
            remedy,
        ),
    }
}

/// A duration as Go writes it, which is none of ISO 8601, and has no blanks. A negative one is of no use here.
fn duration(value: &Value) -> Result<Duration, String> {
    let text = value.as_str().ok_or_else(|| value.to_string())?;
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    seconds(text)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{text:?}"))
}

/// The sum of numbers with a unit each.
fn seconds(text: &str) -> Option<f64> {
    let mut rest = text;
    let mut sum = 0.0;
    loop {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let (factor, after) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((*factor, after.strip_prefix(*unit)?)))?;
        sum += number * factor;
        if after.is_empty() {
            return Some(sum);
        }
        rest = after;
    }
}

fn of_other(entry: &Value, place: &str, devices: &ManagedPods) -> Vec<Finding> {
    let names: Vec<&str> = managed(entry)
        .filter_map(|resource| resource["name"].as_str())
        .collect();
    let mut findings = Vec::new();
    if let Some(name) = names.iter().find(|name| devices.stands_for_devices(name)) {
        findings.push(Finding::new(
            Reason::OtherExtenderManagesDevices,
            place,
            format!("it manages {name}, which stands for devices that Muster gives out"),
            "Take it out, or the resource out of the chart's managedResources",
        ));
    }
    if names.is_empty() && entry["ignorable"] != true {
        findings.push(Finding::new(
            Reason::OtherExtenderForAllPods,
            place,
            "it is asked about every pod, Muster's too, and none is bound while it does not answer",
            "Give it managedResources, or ignorable: true, if it can do without",
        ));
    }
    findings
}

fn of_profiles(document: &Value, installation: Option<&Installation>) -> Option<Finding> {
    let installed = installation?;
    let wanted = installed.scheduler_name.as_deref()?;
    let profiles = document["profiles"].as_array();
    let profiles = profiles.map_or(&[][..], Vec::as_slice);
    let has = |wanted: &str| {
        let mut names = profiles.iter().map(|profile| {
            profile["schedulerName"]
                .as_str()
                .unwrap_or(DEFAULT_SCHEDULER)
        });
        // Without any, kube-scheduler makes one.
        names.any(|name| name == wanted) || (profiles.is_empty() && wanted == DEFAULT_SCHEDULER)
    };
    // A file without the default name may be that of the chart's own, which has the profile that it needs.
    if installed.has_scheduler && has(wanted) && has(DEFAULT_SCHEDULER) {
        return Some(Finding::new(
            Reason::SchedulerNameTaken,
            "profiles",
            format!(
                "one has the schedulerName {wanted}, by which managed pods go to the chart's own kube-scheduler: both take them, and give \
                 one device away twice"
            ),
            "Take that profile out, or set scheduler.enabled=false",
        ));
    }
    if installed.has_scheduler || has(wanted) {
        return None;
    }
    Some(Finding::new(
        Reason::ProfileMissing,
        "profiles",
        format!(
            "none has the schedulerName {wanted}, which Muster's webhook gives to managed pods: they are never scheduled"
        ),
        "Add such a profile, or change schedulerName in the chart",
    ))
}

fn of_plugins(document: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let profiles = document["profiles"].as_array().into_iter().flatten();
    for (position, profile) in profiles.enumerate() {
        let configs = profile["pluginConfig"].as_array().into_iter().flatten();
        let timeouts = configs
            .filter(|config| config["name"] == "DynamicResources")
            .map(|config| &config["args"]["filterTimeout"]);
        for timeout in timeouts.filter(|timeout| !timeout.is_null()) {
            let object = format!("profiles[{position}]");
            match duration(timeout) {
                Ok(timeout) if timeout.is_zero() => findings.push(Finding::new(
                    Reason::FilterTimeoutOff,
                    object,
                    "DynamicResources.filterTimeout is 0: one claim that is hard to allocate holds up every pod of the cluster",
                    "Take filterTimeout out: 10 s are the default",
                )),
                Ok(_) => {}
                Err(text) => findings.push(Finding::new(
                    Reason::SchedulerConfigInvalid,
                    object,
                    format!("DynamicResources.filterTimeout {text} is no duration of 0 or more, and kube-scheduler does not start with it"),
                    "Take filterTimeout out: 10 s are the default",
                )),
            }
        }
    }
    if document["delayCacheUntilActive"] == true {
        findings.push(Finding::new(
            Reason::SchedulerCacheDelayed,
            "delayCacheUntilActive",
            "it is true: a scheduler that takes over first reads the whole cluster",
            "Set delayCacheUntilActive: false",
        ));
    }
    findings
}

/// Whether the cluster's own scheduler, where it is seen, is started with a configuration at all.
pub fn of_running(
    plane: &Reading<ControlPlane>,
    installation: Option<&Installation>,
) -> Vec<Finding> {
    let asks =
        installation.is_some_and(|installed| installed.has_extender && !installed.has_scheduler);
    if !asks {
        return Vec::new();
    }
    let replicas = plane.found.of("kube-scheduler");
    let without: Vec<&str> = replicas
        .iter()
        .filter(|replica| replica.flag("config").is_none())
        .map(|replica| replica.pod.as_str())
        .collect();
    let mut findings = Vec::new();
    if !without.is_empty() {
        findings.push(Finding::new(
            Reason::SchedulerWithoutConfig,
            "kube-scheduler",
            format!(
                "{} of {} replicas are started without --config ({}), so they do not ask Muster's extender",
                without.len(),
                replicas.len(),
                without.join(", ")
            ),
            "muster-controller scheduler-config prints the file and says where to put it; or set extender.enabled=false",
        ));
    } else if replicas.is_empty() && plane.unread.is_none() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "kube-scheduler",
            "it is no pod of kube-system, so how it is started was not looked at",
            "Make sure that it has a configuration with Muster's extender",
        ));
    }
    plane.or_passed(findings, || {
        Finding::passed(
            "kube-scheduler",
            format!(
                "its {} replicas are started with a configuration",
                replicas.len()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::control_plane::tests::control_plane;

    fn entry() -> Value {
        json!({"urlPrefix": "https://10.0.0.9:443/scheduler", "filterVerb": "filter", "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt", "weight": 20, "enableHTTPS": true, "httpTimeout": "1s", "nodeCacheCapable": true,
            "tlsConfig": {"caData": "YQ==", "certData": "YQ==", "keyData": "YQ=="},
            "managedResources": [{"name": "muster.dev/managed"}], "ignorable": false})
    }

    fn document(extenders: &[Value]) -> Value {
        json!({"profiles": [{"schedulerName": "default-scheduler"}], "extenders": extenders})
    }

    fn installed() -> Installation {
        Installation {
            has_extender: true,
            ..Installation::default()
        }
    }

    fn reasons(document: Value, installation: Option<&Installation>) -> Vec<Reason> {
        let devices = ManagedPods::new(["nvidia.com/gpu"]).unwrap();
        let found = findings(&Some(Ok(document)), &devices, installation);
        found.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn each_field_of_the_extender_that_is_wrong_is_told() {
        use Reason::*;
        for (pointer, value, expected) in [
            ("/weight", json!(20), Passed),
            ("/managedResources", json!([]), ExtenderResourcesWrong),
            (
                "/managedResources",
                json!([{"name": "muster.dev/managed"}, {"name": "a.b/c"}]),
                ExtenderResourcesWrong,
            ),
            (
                "/managedResources/0",
                json!({"name": "muster.dev/managed", "ignoredByScheduler": true}),
                ExtenderResourcesWrong,
            ),
            ("/ignorable", json!(true), ExtenderIgnorable),
            ("/nodeCacheCapable", json!(false), ExtenderNotCacheCapable),
            ("/nodeCacheCapable", json!(null), ExtenderNotCacheCapable),
            ("/filterVerb", json!(""), ExtenderVerbMissing),
            ("/preemptVerb", json!(null), ExtenderVerbMissing),
            ("/bindVerb", json!("bind"), ExtenderBinds),
            (
                "/urlPrefix",
                json!("http://10.0.0.9/scheduler"),
                ExtenderNotVerified,
            ),
            ("/tlsConfig/caData", json!(null), ExtenderNotVerified),
            ("/tlsConfig/insecure", json!(true), ExtenderNotVerified),
            ("/tlsConfig/keyData", json!(""), ExtenderTlsFailed),
            ("/httpTimeout", json!(null), ExtenderTimeoutLong),
            ("/httpTimeout", json!("0s"), ExtenderTimeoutLong),
            ("/httpTimeout", json!("1m30s"), ExtenderTimeoutLong),
            ("/httpTimeout", json!("100ms"), ExtenderTimeoutShort),
            ("/httpTimeout", json!("soon"), SchedulerConfigInvalid),
            ("/httpTimeout", json!(1), SchedulerConfigInvalid),
            ("/httpTimeout", json!("-1s"), SchedulerConfigInvalid),
            ("/httpTimeout", json!("PT1S"), SchedulerConfigInvalid),
            ("/httpTimeout", json!("1 s"), SchedulerConfigInvalid),
            ("/httpTimeout", json!("1 second"), SchedulerConfigInvalid),
            ("/httpTimeout", json!("1"), SchedulerConfigInvalid),
            ("/httpTimeout", json!(""), SchedulerConfigInvalid),
            ("/httpTimeout", json!("1000ms"), Passed),
            ("/httpTimeout", json!("0.5s500ms"), Passed),
            ("/httpTimeout", json!("500000\u{b5}s"), Passed),
            (
                "/httpTimeout",
                json!("9".repeat(400) + "h"),
                SchedulerConfigInvalid,
            ),
            ("/weight", json!(5), ExtenderWeightLow),
            ("/prioritizeVerb", json!(null), ExtenderWeightLow),
        ] {
            let mut entry = entry();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = entry.pointer_mut(parent).unwrap();
            match field.parse::<usize>() {
                Ok(position) => parent[position] = value.clone(),
                Err(_) => parent[field] = value.clone(),
            }
            let found = reasons(document(&[entry]), Some(&installed()));
            assert_eq!(found, [expected], "{pointer} {value}");
        }
    }

    #[test]
    fn an_extender_without_a_ca_is_not_verified_whichever_way_it_says_https() {
        for enable in [true, false] {
            let mut entry = entry();
            entry["enableHTTPS"] = json!(enable);
            entry["tlsConfig"]["caData"] = json!("");
            assert_eq!(
                reasons(document(&[entry]), None),
                [Reason::ExtenderNotVerified]
            );
        }
    }

    #[test]
    fn what_stands_beside_the_extender_is_told_too() {
        use Reason::*;
        let other = |more: Value| {
            let mut other = json!({"urlPrefix": "http://other/"});
            other
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            other
        };
        let with = |more: Value| document(&[other(more), entry()]);
        let mut disabled = document(&[entry()]);
        disabled["profiles"][0]["plugins"] =
            json!({"filter": {"disabled": [{"name": "DynamicResources"}]}});
        let mut no_limit = document(&[entry()]);
        no_limit["profiles"][0]["pluginConfig"] =
            json!([{"name": "DynamicResources", "args": {"filterTimeout": "0s"}}]);
        let mut no_duration = no_limit.clone();
        no_duration["profiles"][0]["pluginConfig"][0]["args"]["filterTimeout"] = json!("10 s");
        let mut misspelt = entry();
        misspelt["enableHttps"] = json!(true);
        let mut delayed = document(&[entry()]);
        delayed["delayCacheUntilActive"] = json!(true);
        let mut second = installed();
        second.scheduler_name = Some("gangs".to_owned());
        let with_own = Installation {
            has_scheduler: true,
            ..second.clone()
        };
        let mut default = installed();
        default.scheduler_name = Some("default-scheduler".to_owned());
        let mut no_profile = document(&[entry()]);
        no_profile["profiles"] = json!([]);
        let mut both_names = document(&[entry()]);
        both_names["profiles"] =
            json!([{"schedulerName": "default-scheduler"}, {"schedulerName": "gangs"}]);
        let mut only_its_own = document(&[entry()]);
        only_its_own["profiles"] = json!([{"schedulerName": "gangs"}]);
        let mut unnamed = document(&[entry()]);
        unnamed["profiles"] = json!([{"percentageOfNodesToScore": 50}]);
        for (document, installation, expected) in [
            (
                with(json!({"managedResources": [{"name": "a.b/c"}]})),
                installed(),
                Passed,
            ),
            (with(json!({})), installed(), OtherExtenderForAllPods),
            (with(json!({"ignorable": true})), installed(), Passed),
            (
                with(json!({"managedResources": [{"name": "nvidia.com/gpu"}]})),
                installed(),
                OtherExtenderManagesDevices,
            ),
            (
                with(json!({"ignorable": true, "bindVerb": "bind"})),
                installed(),
                ExtenderBinds,
            ),
            (
                document(&[entry(), entry()]),
                installed(),
                ExtenderNamedTwice,
            ),
            (document(&[]), installed(), ExtenderNotNamed),
            (document(&[]), Installation::default(), Passed),
            (
                document(&[entry()]),
                Installation::default(),
                ExtenderNotInstalled,
            ),
            (document(&[]), with_own.clone(), Passed),
            (document(&[entry()]), with_own.clone(), Passed),
            (both_names, with_own.clone(), SchedulerNameTaken),
            (only_its_own, with_own, Passed),
            (no_profile, second.clone(), ProfileMissing),
            (unnamed, default, Passed),
            (
                with(json!({"urlPrefix": "https://other/scheduler", "ignorable": true})),
                installed(),
                Passed,
            ),
            (disabled, installed(), SchedulerConfigInvalid),
            (no_limit, installed(), FilterTimeoutOff),
            (no_duration, installed(), SchedulerConfigInvalid),
            (document(&[misspelt]), installed(), SchedulerConfigInvalid),
            (
                with(json!({"ignorable": true, "prioritizeVerb": "prioritize"})),
                installed(),
                SchedulerConfigInvalid,
            ),
            (delayed, installed(), SchedulerCacheDelayed),
            (document(&[entry()]), second, ProfileMissing),
        ] {
            assert_eq!(
                reasons(document.clone(), Some(&installation)),
                [expected],
                "{document}"
            );
        }
    }

    #[test]
    fn no_configuration_is_too_hostile_to_be_told_about() {
        for hostile in [
            json!(null),
            json!([]),
            json!({"extenders": 7, "profiles": "x"}),
            json!({"extenders": [1, null, "x", [], {"managedResources": {"a": 1}, "urlPrefix": [], "tlsConfig": "x"}]}),
            json!({"profiles": [{"pluginConfig": [{"name": "DynamicResources", "args": 3}], "schedulerName": {}}]}),
        ] {
            assert!(!reasons(hostile.clone(), None).is_empty(), "{hostile}");
        }
    }

    #[test]
    fn a_configuration_that_was_not_given_or_not_read_is_no_pass() {
        let devices = ManagedPods::new(["nvidia.com/gpu"]).unwrap();
        let own = Installation {
            has_scheduler: true,
            ..installed()
        };
        for (given, installation, expected) in [
            (None, installed(), Reason::NotGiven),
            (None, own, Reason::Passed),
            (
                Some(Err("no YAML".to_owned())),
                installed(),
                Reason::SchedulerConfigInvalid,
            ),
        ] {
            let found = findings(&given, &devices, Some(&installation));
            assert_eq!((found.len(), found[0].reason), (1, expected), "{given:?}");
        }
    }

    #[test]
    fn a_scheduler_that_runs_without_a_configuration_does_not_ask() {
        for (plane, expected) in [
            (
                control_plane(&[("kube-scheduler", &["--kubeconfig=/a"])]),
                Some(Reason::SchedulerWithoutConfig),
            ),
            (
                control_plane(&[("kube-scheduler", &["--config=/a"])]),
                Some(Reason::Passed),
            ),
            (control_plane(&[]), Some(Reason::NotVisible)),
        ] {
            let found = of_running(&plane, Some(&installed()));
            assert_eq!(found.first().map(|finding| finding.reason), expected);
        }
        assert!(of_running(&control_plane(&[]), None).is_empty());
    }
}
