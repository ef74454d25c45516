//! Muster as it ships: the chart as it is, its images in real containers, installed and used as the README, the guides and
//! the notes say, word for word.

mod by_memory;
mod bypass;
mod driver_root;
mod examples;
mod first_hour;
mod forced;
mod gang;
mod given;
mod gpu_operator;
mod install;
mod other_release;
mod scheduler;
mod side_doors;
mod toolkit;
mod uninstall;
mod upgrade;

use std::process::ExitCode;

use muster_tests::{
    containers::{machine::MachineOptions, suite},
    gpu_board::Board,
    lab_scenarios,
};

/// The machine of the control plane.
const CONTROL: &str = "control";
/// The machines with GPUs, eight each.
const GPU_MACHINES: [&str; 2] = ["gpu-0", "gpu-1"];
/// The one of them on which NVIDIA's container runtime is the default one.
const NVIDIA_MACHINE: &str = "gpu-1";

fn main() -> ExitCode {
    let mut machines = vec![MachineOptions {
        name: CONTROL.to_owned(),
        is_control_plane: true,
        ..MachineOptions::default()
    }];
    machines.extend(GPU_MACHINES.map(|name| MachineOptions {
        name: name.to_owned(),
        board: Some(Board::H100Nvswitch8),
        has_nvidia_runtime: name == NVIDIA_MACHINE,
        ..MachineOptions::default()
    }));
    let images = match examples::images() {
        Ok(images) => images,
        Err(error) => {
            eprintln!("shipped: the examples cannot be read: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut scenarios = lab_scenarios![Foundation:
        install::the_chart_installs_as_the_readme_says_into_a_restricted_namespace,
        install::every_pod_is_ready_from_its_image,
        scheduler::kube_scheduler_gets_the_extender_as_the_notes_say,
        install::helm_test_gives_a_pod_a_gpu,
    ];
    scenarios.extend(lab_scenarios![Core:
        gang::ranks_of_a_job_on_two_nodes_meet_over_the_pod_network,
        given::a_container_gets_its_gpus_and_the_driver_and_nothing_else,
        given::and_so_it_does_where_nvidias_runtime_is_the_default_one,
        given::an_image_without_glibc_gets_devices_and_files_and_no_cache_for_a_loader,
        side_doors::a_tenant_gets_no_gpu_by_a_side_door,
        gpu_operator::its_pods_are_taken_in_its_namespace_and_told_elsewhere_where_they_belong,
        examples::every_example_runs_word_for_word,
        install::pods_at_rest_are_measured,
    ]);
    scenarios.extend(lab_scenarios![Long:
        scheduler::an_existing_configuration_is_kept_and_gets_the_extender,
        upgrade::a_gang_runs_on_through_an_upgrade_and_a_rollback_and_no_pod_is_refused,
        upgrade::a_gang_runs_on_while_the_mode_changes_and_nothing_stays_gated,
        scheduler::a_second_scheduler_of_the_charts_has_every_pod_with_claims,
        gpu_operator::its_pods_are_taken_wherever_the_chart_is_told,
        bypass::a_pod_without_a_claim_that_uses_a_gpu_is_told_and_nothing_new_is_placed_there,
        driver_root::a_driver_that_a_container_installed_is_given_from_its_own_root,
        toolkit::containers_are_finished_by_its_hooks_where_the_operator_asks_for_them,
        by_memory::each_container_of_the_example_sees_what_it_asked_for_and_its_pod_whether_that_is_well,
    ]);
    scenarios.extend(lab_scenarios![Core:
        uninstall::an_uninstall_is_refused_while_claims_are_held_and_goes_through_afterwards,
    ]);
    // The last of all: they take away what the others stand on.
    scenarios.extend(lab_scenarios![Long:
        uninstall::a_later_install_goes_on_with_what_the_former_one_left,
        forced::what_a_forced_uninstall_leaves_the_guides_commands_let_go,
        other_release::another_release_in_another_namespace_runs_a_gang_and_refuses_a_second_beside_it,
        first_hour::nothing_of_muster_is_left_after_the_guides_commands,
        first_hour::the_guide_leads_to_a_gang_that_says_why_it_waits_word_for_word,
    ]);
    suite::run("shipped", machines, &images, scenarios)
}
