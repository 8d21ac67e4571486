//! Signals, as commands for running servers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::life::{ServerChange, ServerCommand};
use crate::limits::Strategy;
use crate::system::Hangup;

/// SIGTERM and SIGINT: the first is reported through `words`, the second ends the process with code 1. SIGUSR1 selects
/// the throughput strategy, SIGUSR2 the one of many connections. SIGHUP ends the process by default, unless files are
/// to be reloaded.
pub fn report(words: Sender<ServerCommand>, hangup: Hangup) -> anyhow::Result<()> {
    flag_of(&[SIGTERM, SIGINT])?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2])?;
    if hangup == Hangup::Reloads {
        signals.handle().add_signal(SIGHUP)?;
    }
    let word = |signal| match signal {
        SIGUSR1 => ServerCommand::Change(ServerChange::Strategy(Strategy::Throughput)),
        SIGUSR2 => ServerCommand::Change(ServerChange::Strategy(Strategy::Connections)),
        SIGHUP => ServerCommand::Change(ServerChange::Certificate),
        _ => ServerCommand::Stop,
    };
    let report =
        move || signals.forever().take_while(|&signal| words.send(word(signal)).is_ok()).for_each(drop);
    std::thread::Builder::new().name("tidegate-signals".into()).spawn(report)?;
    Ok(())
}

/// A flag set by the first SIGINT, SIGTERM or SIGHUP; the second one ends the process with code 1.
pub fn flag_of_the_first() -> anyhow::Result<Arc<AtomicBool>> {
    flag_of(&ending())
}

/// The signals that end a command other than a server. Under `nohup` SIGHUP stays ignored.
fn ending() -> Vec<i32> {
    let mut signals = vec![SIGTERM, SIGINT];
    if !tidegate_os::process::ignores_hangup() {
        signals.push(SIGHUP);
    }
    signals
}

fn flag_of(signals: &[i32]) -> anyhow::Result<Arc<AtomicBool>> {
    let stopping = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // In this order: the first signal finds the flag unset and sets it.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stopping))?;
        flag::register(signal, Arc::clone(&stopping))?;
    }
    Ok(stopping)
}

/// Calls `then` at the first SIGINT, SIGTERM or SIGHUP.
pub fn once(then: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new(ending())?;
    let wait = move || {
        if signals.forever().next().is_some() {
            then();
        }
    };
    std::thread::Builder::new().name("tidegate-signals".into()).spawn(wait)?;
    Ok(())
}
