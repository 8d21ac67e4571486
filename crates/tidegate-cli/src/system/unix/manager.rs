//! The service manager, if there is one: the sockets it passes (`LISTEN_FDS`), and what it is told (`NOTIFY_SOCKET`,
//! `sd_notify(3)`).

use anyhow::Context;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidegate::system::descriptor::OwnedFd;

use crate::Failure;
use crate::serve::Passed;

/// The server accepts.
pub fn tell_ready() {
    tell(NotifyState::Ready);
}

/// The server has begun to stop.
pub fn tell_stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    let told = sd_notify::notify(&[state]).context("the service manager could not be told");
    if let Err(e) = told {
        tracing::warn!(event = "notify-failed", "{e:#}");
    }
}

/// The sockets that the service manager passed, with their names (`sd_listen_fds_with_names(3)`).
pub fn passed() -> Result<Vec<Passed<OwnedFd>>, Failure> {
    let mut sockets = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').filter(|name| !name.is_empty()).map(str::to_owned);
    let mut passed = Vec::new();
    for at in 0..sockets.len() {
        passed.push(Passed { name: names.next(), socket: taken(&mut sockets, at).map_err(Failure::Usage)? });
    }
    Ok(passed)
}

fn taken(sockets: &mut ListenFd, at: usize) -> anyhow::Result<OwnedFd> {
    // What is not of the kind stays there to be taken as another.
    if let Ok(Some(socket)) = sockets.take_tcp_listener(at) {
        return Ok(socket.into());
    }
    let socket = sockets.take_unix_listener(at);
    let socket = socket.context("what was passed (LISTEN_FDS) is neither a TCP nor a Unix stream socket")?;
    socket.map(OwnedFd::from).context("a socket that was passed (LISTEN_FDS) was taken already")
}
