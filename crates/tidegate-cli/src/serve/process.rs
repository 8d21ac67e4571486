//! All servers of this process: shared resources (signals, service manager, descriptors), and their stages in order.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context, anyhow};
use tidegate::system;

use super::how::failure;
use super::passed::assign;
use super::processors::Processors;
use super::stage::{Bound, PlannedServer};
use crate::label::Label;
use crate::life::{self, ExitReason, Up};
use crate::limits::{Want, shares};
use crate::log::note;
use crate::metrics::MetricsPages;
use crate::system::{Hangup, manager, signals};
use crate::usage;
use crate::{CommandResult, Failure};

/// Runs until a stop. If one server cannot start, or breaks, all stop.
pub fn run(mut plans: Vec<Box<dyn PlannedServer>>) -> CommandResult {
    check_handover_paths(&plans)?;
    // Before any thread starts, so that all of them stay there.
    let processors = Processors::of_all(plans.iter().map(|plan| plan.common().cpus.as_slice()))?;
    fit(&mut plans, &processors)?;
    tidegate_lab::process::end_with_the_lab().map_err(|e| Failure::Run(e.into()))?;
    let drain_delay = plans.iter().filter_map(|plan| plan.common().drain_delay).max();
    let mut pages = MetricsPages::default();
    let bound = bind(plans, &processors, &mut pages)?;
    pages.open().map_err(failure)?;
    let (words, received) = mpsc::channel();
    let hangups: Vec<_> = bound.iter().map(|(_, _, bound)| bound.hangup()).collect();
    let hangup = if hangups.contains(&Hangup::Reloads) { Hangup::Reloads } else { Hangup::Ends };
    signals::report(words.clone(), hangup).map_err(Failure::Run)?;
    let mut servers: Vec<Box<dyn Up>> = Vec::new();
    for (number, (label, cpus, bound)) in bound.into_iter().enumerate() {
        let server = processors.within(&cpus, || bound.start(number, &words, &pages));
        servers.push(server.map_err(|e| label.blame(e))?);
    }
    // From here on a successor finds these servers and not their predecessors, so everything likely to fail is done.
    for server in &servers {
        server.open_handover().map_err(|e| server.label().blame(e))?;
    }
    for server in &servers {
        for url in server.urls() {
            announce(&url)?;
        }
    }
    for server in &mut servers {
        server.relieve();
    }
    manager::notify_ready();
    let end = life::wait(&received, &mut servers);
    manager::notify_stopping();
    if let (ExitReason::Signal, Some(delay)) = (end, drain_delay) {
        life::let_balancers_look_away(delay, &mut servers);
    }
    // The probes are served until the end of the drain, unless successors serve them.
    let pages = Some(pages).filter(|_| end != ExitReason::Succeeded);
    servers.iter_mut().for_each(|server| server.stop(end));
    if let ExitReason::Broken(number) = end {
        return Err(broken(servers, number));
    }
    for server in servers {
        server.finish().map_err(Failure::Run)?;
    }
    drop(pages);
    Ok(ExitCode::SUCCESS)
}

/// Two servers with one hand-over path could not be distinguished.
fn check_handover_paths(plans: &[Box<dyn PlannedServer>]) -> Result<(), Failure> {
    let mut paths: Vec<&Path> = Vec::new();
    for path in plans.iter().filter_map(|plan| plan.handover()) {
        if paths.contains(&path) {
            let e = anyhow!("two servers have the handover path {}: give each its own", path.display());
            return Err(usage(e));
        }
        paths.push(path);
    }
    Ok(())
}

/// Makes the limits of all servers fit the descriptors they share.
fn fit(plans: &mut [Box<dyn PlannedServer>], processors: &Processors) -> Result<(), Failure> {
    if let Err(e) = system::raise_descriptor_limit() {
        note("descriptor-limit", &format!("the descriptor limit is unchanged: {e}"));
    }
    let limit = usize::try_from(system::descriptor_limit().0).unwrap_or(usize::MAX);
    let mut wants: Vec<Want> = Vec::new();
    for plan in &*plans {
        wants.push(processors.within(&plan.common().cpus, || Ok(plan.want()))?);
    }
    for (plan, share) in plans.iter_mut().zip(shares(limit, &wants)?) {
        let (label, cpus) = (plan.label().clone(), plan.common().cpus.clone());
        processors.within(&cpus, || plan.fit(share)).map_err(|e| label.blame(e))?;
    }
    Ok(())
}

type ReadyServer = (Label, Vec<usize>, Box<dyn Bound>);

fn bind(
    plans: Vec<Box<dyn PlannedServer>>,
    processors: &Processors,
    pages: &mut MetricsPages,
) -> Result<Vec<ReadyServer>, Failure> {
    let names: Vec<&str> = plans.iter().map(|plan| plan.label().name.as_str()).collect();
    let passed = assign(&names, manager::passed()?)?;
    let mut bound = Vec::new();
    for (plan, passed) in plans.into_iter().zip(passed) {
        let (label, cpus) = (plan.label().clone(), plan.common().cpus.clone());
        let server = processors.within(&cpus, || plan.bind(passed, pages));
        bound.push((label.clone(), cpus, server.map_err(|e| label.blame(e))?));
    }
    Ok(bound)
}

/// Prints one line to stdout for each address; parent processes wait for it.
fn announce(url: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "listening on {url}").and_then(|()| out.flush());
    said.context("cannot write to stdout").map_err(Failure::Run)
}

/// Stops the remaining servers after an I/O thread was lost.
fn broken(servers: Vec<Box<dyn Up>>, number: usize) -> Failure {
    let label = servers.get(number).map(|server| server.label().clone());
    tracing::error!(event = "broken", "an I/O thread ended unexpectedly; stopping all servers");
    drop(servers); // waits, at most for the drain timeouts
    let failure = Failure::Run(anyhow!(
        "an I/O thread ended unexpectedly and its connections are lost; restart, and report the errors logged above"
    ));
    match label {
        Some(label) => label.blame(failure),
        None => failure,
    }
}
