//! The service manager, if there is one: the sockets it passes (`LISTEN_FDS`), and its notifications (`NOTIFY_SOCKET`,
//! `sd_notify(3)`).

use anyhow::Context;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidegate::system::descriptor::OwnedFd;

use crate::Failure;
use crate::system::Passed;

/// The server accepts.
pub fn notify_ready() {
    notify(NotifyState::Ready);
}

/// The server is stopping.
pub fn notify_stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    let notified = sd_notify::notify(&[state]).context("cannot notify the service manager");
    if let Err(e) = notified {
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
    // Sockets of another kind stay available to other callers.
    if let Ok(Some(socket)) = sockets.take_tcp_listener(at) {
        return Ok(socket.into());
    }
    let socket = sockets.take_unix_listener(at);
    let socket =
        socket.context("an inherited descriptor (LISTEN_FDS) is neither a TCP nor a Unix stream socket")?;
    socket.map(OwnedFd::from).context("an inherited socket (LISTEN_FDS) was already taken")
}
