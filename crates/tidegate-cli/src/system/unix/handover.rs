//! `serve --handover PATH`: a process that is started later takes the listening sockets of the one that runs, so that a
//! restart refuses nobody.
//!
//! ```text
//! successor                        the one that runs
//!     ── connect PATH ──────────────▶  same user? (both ends ask the kernel)
//!     ── "tidegate handover 1" ─────▶
//!     ◀─ model + sockets ────────────  goes on accepting
//!   starts accepting
//!   puts its own socket at PATH
//!     ── "ready" ───────────────────▶  drains, exits 0
//! ```
//!
//! Servers of datagrams give `udp/MODEL/PATH` for the model. Behind it stands the number of listening sockets, if it is
//! not one; that of the metrics, if there is one, comes last.
//!
//! The socket is made beside PATH and moved there when every server of the process accepts, so that whatever goes wrong
//! until then leaves the first as it is, and there is never none at PATH. In between both accept from the same socket.

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

/// Changes with the protocol: a successor that speaks another one is turned away.
const HELLO: &[u8] = b"tidegate handover 1";
const READY: &[u8] = b"ready";

/// How long one end waits for the other to say something. Starting 256 threads takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest message.
const MESSAGE_BYTES: usize = 64;

/// The connection to the one that runs.
pub type Line = UnixStream;

/// What the running server gave, and the connection to it.
pub struct Inheritance {
    stream: UnixStream,
    /// What it runs on, in words that a successor has to agree to.
    pub terms: String,
    /// Its listening sockets.
    pub listeners: Vec<OwnedFd>,
    /// The listening socket of its `--metrics`.
    pub metrics: Option<OwnedFd>,
}

impl Inheritance {
    /// Asks whoever runs behind `path`; `None` if nobody does.
    ///
    /// # Errors
    /// `path` is something else than a socket, or belongs to another user, or the answer makes no sense.
    pub fn ask(path: &Path) -> anyhow::Result<Option<Self>> {
        let shown = path.display();
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot look at {shown}")),
            Ok(there) if !there.file_type().is_socket() => {
                bail!("{shown} exists and is no socket; name another path for --handover");
            }
            Ok(_) => {}
        }
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            // Left over by a process that was killed.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot connect to {shown}")),
        };
        set_patience(&stream)?;
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

    /// Tells the running server that its successor accepts: it drains now.
    pub fn ready(stream: &UnixStream) -> io::Result<()> {
        send(stream, READY, &[])
    }

    /// The parts: the connection, the listening sockets, and that of the metrics.
    pub fn into_parts(self) -> (UnixStream, Vec<OwnedFd>, Option<OwnedFd>) {
        (self.stream, self.listeners, self.metrics)
    }
}

fn set_patience(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// What a running server has to give.
pub struct Estate {
    /// What it runs on, without spaces: the model, and behind `udp/` model and path.
    pub terms: String,
    /// The listening sockets, or those of datagrams; at least one.
    pub listeners: Vec<OwnedFd>,
    /// That of the metrics, if there is one.
    pub metrics: Option<OwnedFd>,
}

/// The socket by which a successor finds this process, at PATH once it is open. Removed when dropped, unless a
/// successor's stands there.
pub struct Door {
    path: PathBuf,
    /// Where it is made.
    beside: PathBuf,
    /// Device and inode of the socket.
    mark: (u64, u64),
}

impl Door {
    /// Makes a socket beside `path`, and answers on a thread of its own. `taken` is called once, when a successor
    /// accepts.
    ///
    /// # Errors
    /// The folder does not exist or may not be written.
    pub fn beside(path: &Path, estate: Estate, taken: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        // Nobody finds it with other rights.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let listener = UnixListener::bind(&beside)?;
        let made =
            std::fs::set_permissions(&beside, Permissions::from_mode(0o600)).and_then(|()| mark(&beside));
        let mark = made.inspect_err(|_| _ = std::fs::remove_file(&beside))?;
        let door = Self { path: path.into(), beside, mark };
        let giver =
            Giver { estate: Mutex::new(Some(Arc::new(estate))), taken: Mutex::new(Some(Box::new(taken))) };
        let answer = move || answer(&listener, &Arc::new(giver));
        std::thread::Builder::new().name("tidegate-handover".into()).spawn(answer)?;
        Ok(door)
    }

    /// Puts it at its path, in the place of one that is there.
    ///
    /// # Errors
    /// What is there cannot be replaced.
    pub fn open(&self) -> io::Result<()> {
        std::fs::rename(&self.beside, &self.path)
    }
}

/// Device and inode of what is at a path.
fn mark(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

impl Drop for Door {
    fn drop(&mut self) {
        for path in [&self.path, &self.beside] {
            if mark(path).is_ok_and(|there| there == self.mark) {
                let _ = std::fs::remove_file(path); // gone already is as good
            }
        }
    }
}

/// Callers that are answered at once. One more takes the place of the oldest, so that silent ones keep nobody waiting.
const MOST_CALLERS: usize = 8;

/// Answers callers side by side until a successor is ready.
fn answer(listener: &UnixListener, giver: &Arc<Giver>) {
    let mut callers: VecDeque<Caller> = VecDeque::new();
    loop {
        let caller = listener.accept().map_err(anyhow::Error::from);
        // The first caller after the successor, if one comes: until then the thread waits, and holds none of the
        // sockets.
        if giver.is_over() {
            return;
        }
        callers.retain(|caller| !caller.thread.is_finished());
        if callers.len() >= MOST_CALLERS
            && let Some(oldest) = callers.pop_front()
        {
            let _ = oldest.stream.shutdown(Shutdown::Both); // it may have gone just now
        }
        match caller.and_then(|(stream, _)| Caller::start(stream, giver.clone())) {
            Ok(caller) => callers.push_back(caller),
            Err(e) => {
                no_successor(&e);
                // Errors of accept (no descriptors) may last; a try now and then is enough.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn no_successor(e: &anyhow::Error) {
    note("handover-failed", &format!("no successor, serving on: {e:#}"));
}

/// Somebody at the door, and the thread that talks to it.
struct Caller {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl Caller {
    fn start(stream: UnixStream, giver: Arc<Giver>) -> anyhow::Result<Self> {
        ensure!(is_same_user(&stream)?, "somebody asked who runs as another user");
        set_patience(&stream)?;
        let stream = Arc::new(stream);
        let own = stream.clone();
        let talk = move || {
            if let Err(e) = giver.give(&own) {
                no_successor(&e);
            }
        };
        let thread = std::thread::Builder::new().name("tidegate-heir".into()).spawn(talk)?;
        Ok(Self { stream, thread })
    }
}

/// Gives to whoever asks, and goes to the first that is ready.
struct Giver {
    /// Until a successor is ready.
    estate: Mutex<Option<Arc<Estate>>>,
    taken: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Giver {
    fn is_over(&self) -> bool {
        self.estate.lock().unwrap_or_else(PoisonError::into_inner).is_none()
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
        self.estate.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken();
        Ok(())
    }

    fn send_estate(&self, stream: &UnixStream) -> anyhow::Result<()> {
        let estate = self.estate.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let estate = estate.context("another successor has taken over")?;
        let sockets: Vec<_> = estate.listeners.iter().chain(&estate.metrics).map(AsFd::as_fd).collect();
        let name = &estate.terms;
        let text = match estate.listeners.len() {
            1 => name.clone(), // as ever, so that versions with one address understand each other
            count => format!("{name} {count}"),
        };
        send(stream, text.as_bytes(), &sockets).context("the sockets could not be sent")
    }
}
