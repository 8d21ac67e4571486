//! The service manager, if there is one: the socket it passes (`LISTEN_FDS`), and what it is told (`NOTIFY_SOCKET`, `sd_notify(3)`).

use anyhow::{Context, anyhow};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidegate::system::descriptor::OwnedFd;

use crate::Failure;

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

/// The socket that the service manager passed.
pub fn passed() -> Result<Option<OwnedFd>, Failure> {
    let mut sockets = ListenFd::from_env();
    if sockets.len() > 1 {
        return Err(Failure::Usage(anyhow!("{} sockets were passed (LISTEN_FDS); pass one", sockets.len())));
    }
    if sockets.len() == 0 {
        return Ok(None);
    }
    // What is not of the kind stays there to be taken as another.
    if let Ok(Some(socket)) = sockets.take_tcp_listener(0) {
        return Ok(Some(socket.into()));
    }
    let socket = sockets.take_unix_listener(0);
    let socket = socket.context("what was passed (LISTEN_FDS) is neither a TCP nor a Unix stream socket");
    Ok(socket.map_err(Failure::Usage)?.map(OwnedFd::from))
}
