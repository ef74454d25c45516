//! What is done about faults by commands of the administrator: shell scripts here, which do to the mock library's state what a reset does to a GPU.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use crate::node::Node;

const FAULT: &str = "gpu.muster.dev/fault";
/// The kernel's log, which tells of no fault.
const LOG: &str = "6,0,1,-;NVRM: loading\n";

/// The command that runs a script of this name, in the directory of the node, with further words.
fn command(node_path: &Path, words: &[&str]) -> serde_json::Value {
    let script = node_path.display().to_string();
    let all = ["/bin/sh", script.as_str()].into_iter();
    let all: Vec<&str> = all.chain(words.iter().copied()).collect();
    serde_json::json!(all)
}

/// The lines that scripts have written into a file of the node.
fn lines(node: &Node, file: &str) -> Vec<String> {
    let text = fs::read_to_string(node.path(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Whether the process with this id is there, and no zombie.
fn lives(pid: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ"));
    environment.is_ok_and(|variables| !variables.is_empty())
}

/// A node with a command that resets GPUs; the script is written by whoever knows what it is to do.
async fn with_reset(words: &[&str]) -> Node {
    let mut node = Node::new().await;
    fs::create_dir_all(node.path("proc")).unwrap();
    fs::write(node.path("kmsg"), LOG).unwrap();
    node.api.permit(1, &serde_json::json!([]));
    node.api.remediate("Allowed");
    let reset = command(&node.path("reset.sh"), words);
    let remedies = serde_json::json!({"reset": {"command": reset, "settleSeconds": 1}});
    node.flags.push(format!("--remedies={remedies}"));
    node
}

#[tokio::test]
async fn a_gpu_is_reset_once_the_controller_allows_it_and_its_fault_is_over() {
    let mut node = with_reset(&["{uuid}", "{index}", "{pci}"]).await;
    let (healthy, state) = (node.other_state("healthy", |_| {}), node.path("nvml.json"));
    let script = format!(
        "echo \"$*\" >> {}; mv {} {}; echo it is reset\n",
        node.path("called").display(),
        healthy.display(),
        state.display()
    );
    fs::write(node.path("reset.sh"), script).unwrap();
    node.api.remediate("Withheld");
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    node.eventually("the controller is told", || {
        !node.api.told_faults().is_empty()
    })
    .await;
    assert!(lines(&node, "called").is_empty(), "nobody has allowed it");
    node.crash();
    node.api.remediate("Allowed");
    node.start().await;
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
    let called = lines(&node, "called");
    assert_eq!(called.len(), 1, "{called:?}");
    assert!(
        called[0].starts_with(&format!("{sick} 1 0000:")),
        "{called:?}"
    );
    let event = ("Node", "node-0", "GpuReset");
    let event = (event.0.to_owned(), event.1.to_owned(), event.2.to_owned());
    node.eventually("people are told", || node.api.events().contains(&event))
        .await;
    assert!(node.log().contains("it is reset"), "{}", node.log());
    assert!(
        !node
            .path(&format!("state/claims/{sick}.hook.json"))
            .exists()
    );
}

#[tokio::test]
async fn after_two_resets_in_vain_the_gpu_is_one_to_be_exchanged_however_often_the_driver_starts() {
    let mut node = with_reset(&["{uuid}"]).await;
    let script = format!("echo called >> {}\n", node.path("called").display());
    fs::write(node.path("reset.sh"), script).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    for resets in 1..=2 {
        node.eventually("it is reset, and that is kept", || {
            let kept = fs::read_to_string(node.path("state/faults.json")).unwrap_or_default();
            let is_kept = kept.contains(&format!("\"resets\":{resets}"));
            let mark = node.path(&format!("state/claims/{sick}.hook.json"));
            lines(&node, "called").len() == resets && is_kept && !mark.exists()
        })
        .await;
        node.crash();
        node.start().await;
    }
    let retired = ("gpu-1".to_owned(), "Retire".to_owned());
    node.eventually("it is to be exchanged", || {
        node.api.told_faults().contains(&retired)
    })
    .await;
    assert_eq!(lines(&node, "called").len(), 2, "no third one");
}

#[tokio::test]
async fn a_reset_that_outlives_its_driver_is_ended_and_counts_and_nobody_gets_the_gpu_meanwhile() {
    let mut node = with_reset(&["{uuid}"]).await;
    let (healthy, state) = (node.other_state("healthy", |_| {}), node.path("nvml.json"));
    let called = node.path("called");
    // The first hangs.
    let script = format!(
        "first=$(test -s {called} || echo yes)\necho $$ >> {called}\nif [ -n \"$first\" ]; then sleep 1000; fi\nmv {healthy} {state}\n",
        called = called.display(),
        healthy = healthy.display(),
        state = state.display()
    );
    fs::write(node.path("reset.sh"), script).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("the reset runs", || lines(&node, "called").len() == 1)
        .await;
    node.crash();
    let first = lines(&node, "called").remove(0);
    assert!(lives(&first), "it outlives the driver");
    let mark = node.path(&format!("state/claims/{sick}.hook.json"));
    assert!(mark.exists(), "the GPU is kept");
    node.start().await;
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
    node.eventually("it was reset again", || lines(&node, "called").len() == 2)
        .await;
    assert!(!lives(&first), "what was left is ended");
    node.eventually("the GPU is free", || !mark.exists()).await;
}

#[tokio::test]
async fn a_gpu_that_a_monitor_has_open_is_not_reset_and_the_monitor_is_named() {
    let mut node = with_reset(&["{uuid}"]).await;
    let (healthy, state) = (node.other_state("healthy", |_| {}), node.path("nvml.json"));
    let script = format!(
        "echo called >> {}; mv {} {}\n",
        node.path("called").display(),
        healthy.display(),
        state.display()
    );
    fs::write(node.path("reset.sh"), script).unwrap();
    fs::remove_file(node.path("kmsg")).unwrap();
    let monitor = node.path("proc/4242");
    fs::create_dir_all(monitor.join("fd")).unwrap();
    symlink("/usr/bin/nv-hostengine", monitor.join("exe")).unwrap();
    symlink("/dev/nvidia1", monitor.join("fd/7")).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("nobody would hear of other faults", || {
        node.log()
            .contains("the kernel's log cannot be read, which")
    })
    .await;
    fs::write(node.path("kmsg"), LOG).unwrap();
    node.eventually("it says who has it open", || {
        node.log().contains("process 4242 (/usr/bin/nv-hostengine)")
    })
    .await;
    assert!(lines(&node, "called").is_empty());
    fs::remove_dir_all(&monitor).unwrap();
    node.eventually("it is reset", || lines(&node, "called").len() == 1)
        .await;
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
}

#[tokio::test]
async fn where_there_is_no_command_the_controller_is_told_that_nothing_would_be_reset() {
    let mut node = Node::new().await;
    node.api.permit(1, &serde_json::json!([]));
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("the controller is told", || {
        node.api.hindered() == ["gpu-1"]
    })
    .await;
}

#[tokio::test]
async fn a_command_that_cannot_be_run_would_reset_nothing_until_a_driver_looks_anew() {
    let mut node = with_reset(&["{uuid}"]).await;
    let script = node.path("reset.sh");
    let called = node.path("called");
    let cannot = format!("echo called >> {}; exit 127\n", called.display());
    fs::write(&script, cannot).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("the controller is told", || {
        node.api.hindered() == ["gpu-1"]
    })
    .await;
    assert_eq!(lines(&node, "called").len(), 1, "it was tried");
    node.crash();
    node.api.remediate("Withheld");
    node.start().await;
    // Nobody has the GPU open, and it may not be reset.
    node.eventually("it would be reset", || node.api.hindered().is_empty())
        .await;
    assert_eq!(lines(&node, "called").len(), 1, "it was not tried again");
    let retold = ("gpu-1".to_owned(), "Reset".to_owned());
    assert!(node.api.told_faults().contains(&retold));
}

#[tokio::test]
async fn that_a_monitor_has_a_gpu_open_is_told_without_leave_and_taken_back_once_it_has_ended() {
    let mut node = with_reset(&["{uuid}"]).await;
    node.api.remediate("Withheld");
    let script = format!("echo called >> {}\n", node.path("called").display());
    fs::write(node.path("reset.sh"), script).unwrap();
    let monitor = node.path("proc/4242");
    fs::create_dir_all(monitor.join("fd")).unwrap();
    symlink("/usr/bin/nv-hostengine", monitor.join("exe")).unwrap();
    symlink("/dev/nvidia1", monitor.join("fd/7")).unwrap();
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    // It is refused for 10 s before that.
    let told = || node.api.hindered() == ["gpu-1"];
    node.eventually_within(Duration::from_mins(1), "the controller is told", told)
        .await;
    assert!(node.log().contains("process 4242 (/usr/bin/nv-hostengine)"));
    fs::remove_dir_all(&monitor).unwrap();
    node.eventually("it would be reset", || node.api.hindered().is_empty())
        .await;
    assert!(lines(&node, "called").is_empty(), "nobody has allowed it");
    let gpu_is_marked = node
        .path(&format!("state/claims/{sick}.hook.json"))
        .exists();
    assert!(!gpu_is_marked, "it was only looked at");
}

#[tokio::test]
async fn a_fault_is_not_over_before_the_command_finds_the_gpu_in_order() {
    let mut node = Node::new().await;
    let script = format!("echo broken; test -e {}\n", node.path("in-order").display());
    fs::write(node.path("check.sh"), script).unwrap();
    let check = command(&node.path("check.sh"), &["{uuid}"]);
    let remedies = serde_json::json!({"validation": {"command": check}});
    node.flags.push(format!("--remedies={remedies}"));
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    node.change(|state| state.card(&sick).recovery_action = 0);
    node.eventually("the command says no", || {
        let log = node.log();
        log.contains("did not find it in order") && log.contains("broken")
    })
    .await;
    assert_eq!(node.api.tainted(FAULT), ["gpu-1"]);
    // It would be asked again after a minute, and is at once by a driver that starts anew.
    node.crash();
    fs::write(node.path("in-order"), "").unwrap();
    node.start().await;
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
}

#[tokio::test]
async fn a_check_of_an_idle_gpu_gives_way_to_a_claim_and_what_it_finds_is_a_fault() {
    let mut node = Node::new().await;
    let script = format!(
        "echo $$ $1 >> {}; test -e {} && exit 3; sleep 1000\n",
        node.path("begun").display(),
        node.path("broken").display()
    );
    fs::write(node.path("check.sh"), script).unwrap();
    let check = command(&node.path("check.sh"), &["{index}"]);
    let remedies = serde_json::json!({"deepCheck": {"command": check, "everySeconds": 1}});
    node.flags.push(format!("--remedies={remedies}"));
    node.start().await;
    node.eventually("a check runs", || lines(&node, "begun").len() == 1)
        .await;
    let begun = lines(&node, "begun").remove(0);
    let (pid, index) = begun.split_once(' ').unwrap();
    let device = format!("gpu-{index}");
    node.api.allocate("wants", &[&device]);
    let prepared = node.prepare("wants").await;
    assert_eq!(prepared.error, "", "{}", node.log());
    assert!(!lives(pid), "it was ended for the claim");
    assert_eq!(node.unprepare("wants").await, "");
    assert!(node.api.tainted(FAULT).is_empty(), "that was no finding");
    fs::write(node.path("broken"), "").unwrap();
    node.crash();
    node.start().await;
    // One of them: should the command be at fault, the node has the other.
    node.eventually("what is out of order is out of use", || {
        node.api.tainted(FAULT).len() == 1
    })
    .await;
    let text = fs::read_to_string(node.path("state/faults.json")).unwrap();
    assert!(text.contains("check failed with exit status 3"), "{text}");
}

#[tokio::test]
async fn what_is_wrong_with_the_commands_is_told_and_nothing_starts() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_muster-dra-driver"));
    command.args([
        "--node-name=node-0",
        r#"--remedies={"reset":{"command":["reset"]}}"#,
    ]);
    let ended = tokio::task::spawn_blocking(move || command.output());
    let output = ended.await.unwrap().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(told.contains("no absolute path"), "{told}");
}
