//! `async-select`: window messages (`WSAAsyncSelect`), a window that nobody sees for each thread.
//!
//! # How it waits
//! Winsock posts a message to the window of the thread when there is news of a socket; the thread pumps its messages.
//! An event is reported once, and again after a call that found no more: edge-triggered. A listener reports to one
//! window at a time, so the threads take turns: the notified one accepts what is there and passes the turn on.
//!
//! # What it bounds
//! Three threads are started unless `threads` says otherwise. A queue takes 10,000 messages (`USERPostMessageLimit`),
//! then the system throws further ones away: a thread should have fewer connections than that.
//!
//! # What it costs
//! A message, with its way through the window system, for each piece of news; no call has to be made to learn what it
//! means. A desktop heap that services share bounds how many windows there are, not how many connections.
//!
//! # Where it differs
//! A client that connects during the turn of a busy thread waits for that thread, though others may be idle. Room to
//! send is reported only after a send was refused. A message that was posted for a socket closed meanwhile is
//! recognised by its number.

use std::io;
use std::time::Duration;
use tidegate_os::descriptor::BorrowedFd;

use tidegate_os::messages::{Messages, News, Subject};
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use crate::engine::readiness::{PollEvent, Poller, Source};
use crate::engine::worker::transport::Acceptor;
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};
use crate::policy::Policy;
use crate::proto::Token;

/// Whether it works here: makes a window.
pub(in crate::engine) fn probe() -> Availability {
    match Messages::new(1) {
        Ok(_) => Availability::Available("a message-only window for each thread".into()),
        Err(e) => {
            Availability::Unavailable(format!("no window can be made: {e}; use event-select or select"))
        }
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::readiness::start::<AsyncSelect>(config, Model::AsyncSelect)
}

/// A thread's window.
pub(crate) struct AsyncSelect {
    messages: Messages,
    news: Vec<(Subject, News)>,
}

impl Poller for AsyncSelect {
    type Listener = Acceptor;

    fn new(policy: &Policy) -> io::Result<Self> {
        Ok(Self { messages: Messages::new(policy.events_per_wait)?, news: Vec::new() })
    }

    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
        waker.wake_with(self.messages.wake_event());
        Ok(())
    }

    fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        self.messages.listen(&acceptor.listener)
    }

    fn unwatch_listener(&mut self, _: &Acceptor) {
        self.messages.stop_listening();
    }

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, wanted: Readiness) -> io::Result<()> {
        self.messages.add(fd, token.to_u64(), wanted)
    }

    fn change(&mut self, _: Token, _: BorrowedFd<'_>, _: Readiness) {
        // All events are reported from the start.
    }

    fn unwatch(&mut self, _: Token, fd: BorrowedFd<'_>) {
        self.messages.remove(fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        let waited = self.messages.wait(timeout, &mut self.news);
        into.extend(self.news.drain(..).map(|(subject, News { ready, ended })| PollEvent {
            source: match subject {
                Subject::Waker => Source::Waker,
                Subject::Listener => Source::Listener,
                Subject::Socket(number) => Source::Connection(Token::from_u64(number)),
            },
            ready,
            ended,
        }));
        waited
    }
}
