//! `WSAAsyncSelect`: a window that nobody sees, and a message to it for whatever is news of a socket.

use std::collections::VecDeque;
use std::io;
use std::os::windows::io::{AsRawSocket, AsSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use windows_sys::Win32::Foundation::{HWND, LPARAM, WAIT_FAILED, WPARAM};
use windows_sys::Win32::Networking::WinSock::{FD_CONNECT, WSAAsyncSelect};
use windows_sys::Win32::System::LibraryLoader::GetModuleHandleW;
use windows_sys::Win32::UI::WindowsAndMessaging::{
    CreateWindowExW, DefWindowProcW, DestroyWindow, DispatchMessageW, HWND_MESSAGE, MSG, MWMO_INPUTAVAILABLE,
    MsgWaitForMultipleObjectsEx, PM_REMOVE, PeekMessageW, PostMessageW, QS_ALLINPUT, RegisterClassW, WM_APP,
    WM_USER, WNDCLASSW,
};
use windows_sys::w;

use super::descriptor::{BorrowedFd, DescriptorMap, RawFd};
pub use super::network::News;
use super::network::{OF_CONNECTION, OF_LISTENER, settled_before};
use super::poll::Readiness;
use super::socket::Listener;
use super::winsock::{check, handle, milliseconds};

/// The message that wakes a thread.
const WAKE: u32 = WM_USER;
/// The message about a listener.
const ARRIVAL: u32 = WM_USER + 1;
/// Messages about sockets: as many kinds as an application may have, so that an old message is not taken for one about
/// a socket that was given the same handle later.
const FIRST: u32 = WM_APP;
const KINDS: u32 = 0xC000 - WM_APP;

/// Who has news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The thread was woken.
    Waker,
    /// The listener.
    Listener,
    /// A socket, by the number it was given.
    Socket(u64),
}

/// A message-only window, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageWindow(HWND);

// SAFETY: a handle of the system; only posting to it and naming it is done from other threads, which any thread may.
unsafe impl Send for MessageWindow {}
// SAFETY: as above.
unsafe impl Sync for MessageWindow {}

impl MessageWindow {
    fn new() -> io::Result<Self> {
        static CLASS: OnceLock<u16> = OnceLock::new();
        // SAFETY: the module of the program itself.
        let module = unsafe { GetModuleHandleW(std::ptr::null()) };
        let class = *CLASS.get_or_init(|| {
            let class = WNDCLASSW {
                lpfnWndProc: Some(DefWindowProcW),
                hInstance: module,
                lpszClassName: w!("tidegate"),
                ..WNDCLASSW::default()
            };
            // SAFETY: the structure and its strings outlive the call.
            unsafe { RegisterClassW(&raw const class) }
        });
        // SAFETY: an atom in place of a name (`MAKEINTATOM`; none makes the call fail), no title, no menu and no
        // parameter.
        let window = unsafe {
            let (name, none) = (std::ptr::without_provenance(class.into()), std::ptr::null_mut());
            CreateWindowExW(
                0,
                name,
                std::ptr::null(),
                0,
                0,
                0,
                0,
                0,
                HWND_MESSAGE,
                none,
                module,
                std::ptr::null(),
            )
        };
        if window.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(window)) }
    }

    /// Has news of a socket sent here as `message`; what is so already counts. Forgets what was set up before.
    fn hear(self, socket: BorrowedFd<'_>, message: u32, kinds: u32) -> io::Result<()> {
        // SAFETY: the socket is open for the call; a window that is gone is an error.
        check(unsafe { WSAAsyncSelect(handle(socket.as_raw_socket()), self.0, message, kinds as i32) })
    }

    /// Fails when the window is gone, or when 10,000 messages wait.
    fn post(self, message: u32, socket: WPARAM, news: LPARAM) -> io::Result<()> {
        // SAFETY: plain numbers.
        let posted = unsafe { PostMessageW(self.0, message, socket, news) };
        if posted == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The windows that take turns at a listener: Winsock notifies one window at a time.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<VecDeque<MessageWindow>>);

impl Turns {
    fn change(
        &self,
        listener: BorrowedFd<'_>,
        change: impl FnOnce(&mut VecDeque<MessageWindow>),
    ) -> io::Result<()> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut windows);
        match windows.front() {
            Some(&MessageWindow(first)) => MessageWindow(first).hear(listener, ARRIVAL, OF_LISTENER),
            None => Ok(()), // a thread that has left needs no notification
        }
    }
}

/// A thread's window and the sockets it hears of.
pub struct Messages {
    window: MessageWindow,
    woken: Arc<AtomicBool>,
    sockets: DescriptorMap<(u32, u64)>,
    listener: Option<Arc<Listener>>,
    /// The listener was notified of since its turn was passed on.
    reported: bool,
    next_kind: u32,
    most: usize,
}

impl Messages {
    /// For the calling thread, whose messages it takes, `most` at once.
    pub fn new(most: usize) -> io::Result<Self> {
        Ok(Self {
            window: MessageWindow::new()?,
            woken: Arc::default(),
            sockets: DescriptorMap::default(),
            listener: None,
            reported: false,
            next_kind: 0,
            most: most.max(1),
        })
    }

    /// Wakes the thread that waits, from any thread.
    pub fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        let (window, woken) = (self.window, self.woken.clone());
        move || {
            if !woken.swap(true, Ordering::SeqCst) && window.post(WAKE, 0, 0).is_err() {
                // This one needs no message: nobody waits any more, or the thread has others to take before it sleeps.
                woken.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Hears of connections, in turn with other threads.
    pub fn listen(&mut self, listener: &Arc<Listener>) -> io::Result<()> {
        let me = self.window;
        listener.turns().change(listener.as_socket(), |windows| windows.push_back(me))?;
        self.listener = Some(listener.clone());
        Ok(())
    }

    /// Hears of them no more.
    pub fn stop_listening(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let me = self.window;
        // Fails only when the next one's window is gone, and then that one does not listen any more.
        let _ = listener.turns().change(listener.as_socket(), |windows| windows.retain(|&other| other != me));
    }

    /// Hears of a socket, under a number. To be [removed](Self::remove) before it is closed.
    pub fn add(&mut self, socket: BorrowedFd<'_>, number: u64, wanted: Readiness) -> io::Result<()> {
        let kind = FIRST + self.next_kind;
        self.next_kind = (self.next_kind + 1) % KINDS;
        self.window.hear(socket, kind, OF_CONNECTION)?;
        let before = settled_before(socket, wanted);
        if before.is_any() {
            self.window.post(kind, handle(socket.as_raw_socket()), FD_CONNECT as LPARAM)?;
        }
        self.sockets.insert(socket, (kind, number));
        Ok(())
    }

    /// Hears of a socket no more, which is about to be closed.
    pub fn remove(&mut self, socket: BorrowedFd<'_>) {
        self.sockets.remove(socket);
    }

    /// Waits, and appends who has news. None after the timeout.
    pub fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<(Subject, News)>) -> io::Result<()> {
        self.pass_on()?;
        let limit = milliseconds(timeout);
        // SAFETY: no handles; the queue of the calling thread.
        let waited = unsafe {
            MsgWaitForMultipleObjectsEx(0, std::ptr::null(), limit, QS_ALLINPUT, MWMO_INPUTAVAILABLE)
        };
        if waited == WAIT_FAILED {
            return Err(io::Error::last_os_error());
        }
        for _ in 0..self.most {
            let mut message = MSG::default();
            // SAFETY: writes one MSG, of any window of the calling thread.
            if unsafe { PeekMessageW(&raw mut message, std::ptr::null_mut(), 0, 0, PM_REMOVE) } == 0 {
                break;
            }
            into.extend(self.understand(&message));
        }
        Ok(())
    }

    /// Has the next thread notified of connections, and those that were left reported again.
    fn pass_on(&mut self) -> io::Result<()> {
        let me = self.window;
        match &self.listener {
            Some(listener) if std::mem::take(&mut self.reported) => {
                listener.turns().change(listener.as_socket(), |windows| {
                    if windows.front() == Some(&me) {
                        windows.rotate_left(1);
                    }
                })
            }
            _ => Ok(()),
        }
    }

    fn understand(&mut self, message: &MSG) -> Option<(Subject, News)> {
        let readable = News { ready: Readiness::READ, ended: false };
        match message.message {
            WAKE => {
                self.woken.store(false, Ordering::SeqCst);
                Some((Subject::Waker, readable))
            }
            ARRIVAL => {
                self.reported = true;
                self.listener.as_ref().map(|_| (Subject::Listener, readable))
            }
            kind if (FIRST..FIRST + KINDS).contains(&kind) => {
                let &(expected, number) = self.sockets.get(message.wParam as RawFd)?;
                // `WSAGETSELECTEVENT`: an error, in the high word, is found again on the socket.
                let news = News::from_bits(message.lParam as u32 & 0xFFFF);
                (expected == kind).then_some((Subject::Socket(number), news))
            }
            _ => {
                // SAFETY: a message that was just taken.
                unsafe { DispatchMessageW(message) };
                None
            }
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.stop_listening();
        // SAFETY: made by this thread: the loop that owns it does not leave its thread.
        unsafe { DestroyWindow(self.window.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the reason is, such as a queue that is full.
    #[test]
    fn a_wake_that_could_not_be_posted_does_not_stand_for_later_ones() {
        let messages = Messages::new(1).unwrap();
        let (wake, woken) = (messages.wake_event(), messages.woken.clone());
        wake();
        assert!(woken.load(Ordering::SeqCst), "once until it was seen");
        woken.store(false, Ordering::SeqCst);
        drop(messages);
        wake();
        assert!(!woken.load(Ordering::SeqCst));
    }
}
