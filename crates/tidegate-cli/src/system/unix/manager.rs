//! Tells the service manager, if there is one (`NOTIFY_SOCKET`, `sd_notify(3)`).

use anyhow::Context;
use sd_notify::NotifyState;

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
