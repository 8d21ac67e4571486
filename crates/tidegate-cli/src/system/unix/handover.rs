//! `serve --handover PATH`: a process started later takes the listening sockets of the running one, so that a restart
//! refuses no client.
//!
//! ```text
//! successor                        predecessor
//!     ── connect PATH ──────────────▶  same user? (both ends ask the kernel)
//!     ── "tidegate handover 1" ─────▶
//!     ◀─ terms + sockets ────────────  goes on accepting
//!   starts accepting
//!   puts its own socket at PATH
//!     ── "ready" ───────────────────▶  drains, exits 0
//! ```
//!
//! A server of connections says `MODEL/SERVICE`, one of datagrams `udp/MODEL/PATH/SERVICE`; earlier versions left the
//! service out. After it is the number of listening sockets, if it is not one; that of the metrics, if there is one,
//! is last.
//!
//! The socket is created next to PATH and moved there when every server of the process accepts, so that an error until
//! then leaves the predecessor untouched, and there is always a socket at PATH. In between both accept from the same
//! socket.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tidegate::system::handover::{is_same_user, receive, send};

use crate::log::note;

/// Changes with the protocol: a successor with another version is rejected.
const HELLO: &[u8] = b"tidegate handover 1";
const READY: &[u8] = b"ready";

/// How long one end waits for a message of the other. Starting 256 threads takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Longest message.
const MESSAGE_BYTES: usize = 64;

/// The connection to the predecessor.
pub type HandoverStream = UnixStream;

/// What the predecessor sent, and the connection to it.
pub struct Inheritance {
    stream: UnixStream,
    /// Its model, which a successor must match.
    pub terms: String,
    /// Its listening sockets.
    pub listeners: Vec<OwnedFd>,
    /// The listening socket of its `--metrics`.
    pub metrics: Option<OwnedFd>,
}

impl Inheritance {
    /// Connects to the server that listens at `path`; `None` if there is none.
    ///
    /// # Errors
    /// `path` is not a socket, or belongs to another user, or the answer is invalid.
    pub fn ask(path: &Path) -> anyhow::Result<Option<Self>> {
        let shown = path.display();
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot inspect {shown}")),
            Ok(there) if !there.file_type().is_socket() => {
                bail!("{shown} exists and is not a socket; give another path for --handover");
            }
            Ok(_) => {}
        }
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            // Stale: left by a process that was killed.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot connect to {shown}")),
        };
        set_timeouts(&stream)?;
        ensure!(
            is_same_user(&stream)?,
            "the server behind {shown} runs as another user; run as the same one"
        );
        Self::take(stream).with_context(|| format!("the server behind {shown} did not hand over")).map(Some)
    }

    fn take(stream: UnixStream) -> anyhow::Result<Self> {
        send(&stream, HELLO, &[])?;
        let mut message = [0; MESSAGE_BYTES];
        let (n, descriptors) = receive(&stream, &mut message)?;
        let text = std::str::from_utf8(message.get(..n).unwrap_or_default())?;
        let (terms, count) = text.split_once(' ').unwrap_or((text, "1"));
        let count: usize = count.parse().with_context(|| format!("it answers {text:?}"))?;
        let mut listeners = descriptors;
        ensure!(count > 0 && count <= listeners.len(), "it sent {} of {count} sockets", listeners.len());
        let metrics = listeners.split_off(count).pop();
        Ok(Self { stream, terms: terms.to_owned(), listeners, metrics })
    }

    /// Tells the predecessor that its successor accepts, so that it drains.
    pub fn ready(stream: &UnixStream) -> io::Result<()> {
        send(stream, READY, &[])
    }

    /// The parts: the connection, the listening sockets, and that of the metrics.
    pub fn into_parts(self) -> (UnixStream, Vec<OwnedFd>, Option<OwnedFd>) {
        (self.stream, self.listeners, self.metrics)
    }
}

fn set_timeouts(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

/// What a predecessor sends.
pub struct HandoverState {
    /// What it runs, without spaces: model and service, and behind `udp/` model, path and service.
    pub terms: String,
    /// The listening sockets, or those of datagrams; at least one.
    pub listeners: Vec<OwnedFd>,
    /// That of the metrics, if there is one.
    pub metrics: Option<OwnedFd>,
}

/// The socket at which a successor finds this process, at PATH once it is open. When it is dropped nothing is handed
/// over any more: the socket is removed, unless it is a successor's, and the descriptors of the listening sockets are
/// closed, so that a stop closes these sockets.
pub struct HandoverListener {
    giver: Arc<Giver>,
    path: PathBuf,
    /// Its temporary path.
    beside: PathBuf,
    /// Device and inode of the socket.
    mark: (u64, u64),
}

impl HandoverListener {
    /// Creates a socket next to `path`, and answers on a separate thread. `taken` is called once, when a successor
    /// accepts.
    ///
    /// # Errors
    /// The directory does not exist or is not writable.
    pub fn beside(
        path: &Path,
        state: HandoverState,
        taken: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        // It is not visible with other permissions.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let listener = UnixListener::bind(&beside)?;
        let made =
            std::fs::set_permissions(&beside, Permissions::from_mode(0o600)).and_then(|()| mark(&beside));
        let mark = made.inspect_err(|_| _ = std::fs::remove_file(&beside))?;
        let giver =
            Giver { state: Mutex::new(Some(Arc::new(state))), taken: Mutex::new(Some(Box::new(taken))) };
        let made = Self { giver: Arc::new(giver), path: path.into(), beside, mark };
        let giver = made.giver.clone();
        let answer = move || answer(&listener, &giver);
        std::thread::Builder::new().name("tidegate-handover".into()).spawn(answer)?;
        Ok(made)
    }

    /// Moves it to its path, replacing an existing one.
    ///
    /// # Errors
    /// The existing file cannot be replaced.
    pub fn open(&self) -> io::Result<()> {
        std::fs::rename(&self.beside, &self.path)
    }
}

/// Device and inode of a file.
fn mark(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

impl Drop for HandoverListener {
    fn drop(&mut self) {
        self.giver.close();
        for path in [&self.path, &self.beside] {
            if mark(path).is_ok_and(|there| there == self.mark) {
                let _ = std::fs::remove_file(path); // gone already is as good
            }
        }
    }
}

/// Maximum callers answered concurrently. One more replaces the oldest, so that silent ones block nobody.
const MOST_CALLERS: usize = 8;

/// Answers callers concurrently until a successor is ready.
fn answer(listener: &UnixListener, giver: &Arc<Giver>) {
    let mut callers: VecDeque<ConnectedSuccessor> = VecDeque::new();
    loop {
        let caller = listener.accept().map_err(anyhow::Error::from);
        // Unblocks the thread at the first caller after the successor or the stop; until then it waits, and holds none
        // of the sockets.
        if giver.is_over() {
            return;
        }
        callers.retain(|caller| !caller.thread.is_finished());
        if callers.len() >= MOST_CALLERS
            && let Some(oldest) = callers.pop_front()
        {
            let _ = oldest.stream.shutdown(Shutdown::Both); // it may have gone just now
        }
        match caller.and_then(|(stream, _)| ConnectedSuccessor::start(stream, giver.clone())) {
            Ok(caller) => callers.push_back(caller),
            Err(e) => {
                no_successor(&e);
                // Errors of accept (no descriptors) may last; retrying now and then is enough.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn no_successor(e: &anyhow::Error) {
    note("handover-failed", &format!("hand-over failed, still serving: {e:#}"));
}

/// A connected successor, and the thread that talks to it.
struct ConnectedSuccessor {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl ConnectedSuccessor {
    fn start(stream: UnixStream, giver: Arc<Giver>) -> anyhow::Result<Self> {
        ensure!(is_same_user(&stream)?, "the caller runs as another user");
        set_timeouts(&stream)?;
        let stream = Arc::new(stream);
        let own = stream.clone();
        let talk = move || {
            if let Err(e) = giver.give(&own) {
                no_successor(&e);
            }
        };
        let thread = std::thread::Builder::new().name("tidegate-successor".into()).spawn(talk)?;
        Ok(Self { stream, thread })
    }
}

/// Answers every successor; the first that is ready takes over.
struct Giver {
    /// Until a successor is ready, or the server stops.
    state: Mutex<Option<Arc<HandoverState>>>,
    taken: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Giver {
    fn is_over(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Closes the descriptors.
    fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn give(&self, stream: &UnixStream) -> anyhow::Result<()> {
        let mut message = [0; MESSAGE_BYTES];
        let (n, _) = receive(stream, &mut message).context("it said nothing")?;
        ensure!(message.get(..n) == Some(HELLO), "it speaks another version of the protocol");
        self.send_estate(stream)?;
        let (n, _) = receive(stream, &mut message).context("it did not get ready")?;
        ensure!(message.get(..n) == Some(READY), "it gave up before it accepted");
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = taken.context("another successor was ready before it")?;
        self.close();
        taken();
        Ok(())
    }

    fn send_estate(&self, stream: &UnixStream) -> anyhow::Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let state = state.context("it stops, or another successor has taken over")?;
        let sockets: Vec<_> = state.listeners.iter().chain(&state.metrics).map(AsFd::as_fd).collect();
        let name = &state.terms;
        let text = match state.listeners.len() {
            1 => name.clone(), // as ever, so that versions with one address understand each other
            count => format!("{name} {count}"),
        };
        send(stream, text.as_bytes(), &sockets).context("cannot send the sockets")
    }
}
