//! `run`: follows until it holds the lease, leads until it does not, then ends.
//!
//! **Ready** (`/readyz`) means that this replica could lead: it is started, and every watch has told its first list. A
//! follower is ready like a leader, so that a rollout waits for a replica that can take over, and the disruption budget
//! counts it; nobody sends it work, so readiness need not say who leads, nor whether anybody does. That is what the
//! metric `muster_leading` is for: it adds up to 1 over the replicas, and to 0 while nobody leads (an outage of
//! admissions, which a restart of what is ready would not end). A leader with `muster_leader_epoch` 0 is still taking
//! over.

use anyhow::Context;
use muster_protocol::Machine;
use muster_serve::{
    Program, Shutdown,
    lease::{self, Leadership},
};
use tokio::sync::watch;
use tokio_util::{context::TokioContext, sync::CancellationToken};

use crate::{
    args::RunArgs,
    ca_bundle::CaBundleKeeper,
    claim_templates, disruption_budgets, extender_probe,
    feed::{Feed, WatchBroken},
    leader::{Leader, Pace},
    metrics::ControllerMetrics,
    node_conditions,
    perform::Performer,
    scheduler_lease,
    workplace::Workplace,
};

/// Runs the controller until it is told to stop or must not lead any more.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    #[cfg(feature = "failpoints")]
    crate::failpoint::arm()?;
    let workplace = Workplace::open().context("a thread for the leader's work")?;
    let work = workplace.handle();
    let program =
        Program::start("muster-controller", env!("CARGO_PKG_VERSION"), &args.serve).await?;
    workplace.watch_over(&program.shutdown);
    let metrics = ControllerMetrics::register(&program.metrics);
    // What a client needs tasks for runs where the client was made.
    let watches = TokioContext::new(program.watch_client(), work.clone()).await?;
    let feed = {
        let _at_work = work.enter();
        Feed::open(&program.readiness, &program.metrics, watches)
    };
    let writes = TokioContext::new(program.write_client(), work.clone()).await?;
    let extender = extender_probe::spawn(&args.extender_ready_urls, &program.shutdown)
        .context("--extender-ready-url")?;

    // The lease is given up only after the work has ended, so it does not heed the signal itself; and it has a
    // client of its own, so that no flood of writes delays a renewal, here, where no poll does.
    let lease_stop = CancellationToken::new();
    let lease_client = program.write_client().await?;
    let (leadership, lease_task) =
        lease::spawn(lease_client, args.lease_settings(), lease_stop.clone())?;

    let machine = Machine::new(args.protocol_config()?);
    let keeper = CaBundleKeeper {
        authorities: args.webhook_authorities(writes.clone()),
        mutating: args.webhooks.mutating_configurations.clone(),
        validating: args.webhooks.validating_configurations.clone(),
    };
    let bundle_watches = TokioContext::new(program.watch_client(), work.clone()).await?;
    let shutdown = program.shutdown.clone();
    let lead = async move {
        let mut feed = feed;
        let mut leadership = leadership;
        if !follow(&mut feed, &mut leadership, &shutdown).await? {
            return Ok(());
        }
        shutdown.spawn_until_stopped(
            "keeper of the CA bundle",
            keeper.keep(writes.clone(), bundle_watches.clone()),
        );
        let (templates, waiting_for_templates, refused_templates) = claim_templates::Keeper::new();
        shutdown.spawn_until_stopped("keeper of claim templates", templates.keep(writes.clone()));
        let (conditions, node_conditions) = node_conditions::Keeper::new();
        shutdown.spawn_until_stopped(
            "keeper of conditions of Nodes",
            conditions.keep(writes.clone()),
        );
        let (budgets, guarded_gangs) =
            disruption_budgets::Keeper::new(args.moves_gangs(), args.identity.clone());
        shutdown.spawn_until_stopped(
            "keeper of disruption budgets",
            budgets.keep(writes.clone(), bundle_watches, feed.watch_metrics()),
        );
        let scheduler_is_away =
            scheduler_lease::spawn(writes.clone(), &args.scheduler_lease, &shutdown);
        let leader = Leader {
            feed,
            machine,
            performer: Performer::new(writes, args.identity),
            pace: Pace::new(args.kube_api_qps, args.kube_api_burst),
            metrics,
            leadership,
            extender,
            scheduler_is_away,
            waiting_for_templates,
            refused_templates,
            node_conditions,
            guarded_gangs,
            stop: shutdown.token().clone(),
        };
        Box::pin(leader.lead()).await
    };
    {
        let _at_work = work.enter();
        program.shutdown.spawn_essential("controller", lead);
    }

    let ended = program.finish().await;
    lease_stop.cancel();
    lease_task.await?;
    Ok(ended?)
}

/// Keeps the watches going until we lead: readiness says that this replica could take over. What is seen meanwhile is
/// dropped, because a leader reads everything again. False: told to stop first, or there is no election any more (which
/// ends the program).
async fn follow(
    feed: &mut Feed,
    leadership: &mut watch::Receiver<Leadership>,
    shutdown: &Shutdown,
) -> Result<bool, WatchBroken> {
    loop {
        tokio::select! {
            () = shutdown.requested() => return Ok(false),
            leads = leadership.wait_for(|leadership| *leadership == Leadership::Leader) => return Ok(leads.is_ok()),
            seen = feed.next() => drop(seen?),
        }
    }
}
