//! Ctrl-C, Ctrl-Break and the closing of the console, as commands for running servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Sender;

use crate::life::ServerCommand;
use crate::system::Hangup;

/// The first is reported through `words`, the second ends the process with code 1. Changing the strategy or reloading
/// the certificate needs signals that Windows does not have.
pub fn report(words: Sender<ServerCommand>, _: Hangup) -> anyhow::Result<()> {
    let stopping = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        if stopping.swap(true, SeqCst) {
            std::process::exit(1);
        }
        let _ = words.send(ServerCommand::Stop); // who has stopped listening ends anyway
    })?;
    Ok(())
}

/// A flag set by the first of them; the second one ends the process with code 1.
pub fn flag_of_the_first() -> anyhow::Result<Arc<AtomicBool>> {
    let stopping = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopping);
    ctrlc::set_handler(move || {
        if flag.swap(true, SeqCst) {
            std::process::exit(1);
        }
    })?;
    Ok(stopping)
}

/// Calls `then` at the first Ctrl-C.
pub fn once(then: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let mut then = Some(then);
    ctrlc::set_handler(move || {
        if let Some(then) = then.take() {
            then();
        }
    })?;
    Ok(())
}
