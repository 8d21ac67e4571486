//! TCP on one host without most of TCP: `SIO_LOOPBACK_FAST_PATH` of Windows 8 and Windows Server 2012.
//!
//! It is an option of each socket, and counts only where both ends of a connection have it: a listener takes it before
//! it listens, a dialling socket before it connects. After a refusal TCP works as before. Wine has none; so everything
//! here goes through the one call that it takes, for which the tests have one of their own.

/// How a socket's connections go, if their other end is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// All the way through TCP.
    Tcp,
    /// As short as the system can make it. Only Windows has such an option.
    Fast,
}

#[cfg(any(windows, test))]
mod ask {
    use std::io;

    use super::Loopback;

    /// `_WSAIOW(IOC_VENDOR, 16)` (`mstcpip.h`).
    pub(crate) const FAST_PATH: u32 = 0x9800_0010;

    /// Asks for the fast path; `control` is the call that does (`WSAIoctl`), with a code and its value.
    pub(crate) fn hasten(control: impl FnOnce(u32, u32) -> io::Result<()>) -> io::Result<()> {
        control(FAST_PATH, 1)
            .map_err(|e| io::Error::new(e.kind(), format!("this system has no loopback fast path ({e})")))
    }

    /// Asks for it if that is wanted, and only then does what it has to come before. A refusal is no failure: it comes
    /// back beside what was done.
    pub(crate) fn hasten_before<T>(
        how: Loopback,
        control: impl FnOnce(u32, u32) -> io::Result<()>,
        then: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(T, Option<io::Error>)> {
        let refused = match how {
            Loopback::Fast => hasten(control).err(),
            Loopback::Tcp => None,
        };
        then().map(|done| (done, refused))
    }
}

#[cfg(any(windows, test))]
pub(crate) use ask::{FAST_PATH, hasten_before};

#[cfg(windows)]
pub(crate) use ask::hasten;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::io;

    /// `WSAEOPNOTSUPP`.
    const REFUSED: i32 = 10045;

    /// What was done, in order.
    #[derive(Default)]
    struct Fake(RefCell<Vec<&'static str>>);

    impl Fake {
        fn control(&self, code: u32, on: u32) -> io::Result<()> {
            assert_eq!((code, on), (FAST_PATH, 1));
            self.0.borrow_mut().push("asked");
            Ok(())
        }

        fn refuse(&self) -> io::Result<()> {
            self.0.borrow_mut().push("refused");
            Err(io::Error::from_raw_os_error(REFUSED))
        }

        fn listen(&self) -> io::Result<u8> {
            self.0.borrow_mut().push("listened");
            Ok(7)
        }
    }

    #[test]
    fn it_is_asked_for_before_the_socket_listens() {
        let fake = Fake::default();
        let done = hasten_before(Loopback::Fast, |code, on| fake.control(code, on), || fake.listen());
        assert!(matches!(done, Ok((7, None))), "{done:?}");
        assert_eq!(*fake.0.borrow(), ["asked", "listened"]);
    }

    #[test]
    fn a_refused_caller_continues_and_gets_the_reason() {
        let fake = Fake::default();
        let done = hasten_before(Loopback::Fast, |_, _| fake.refuse(), || fake.listen());
        let (socket, refused) = done.unwrap();
        let refused = refused.unwrap().to_string();
        assert!(socket == 7 && refused.contains("no loopback fast path"), "{refused}");
        assert!(refused.contains(&REFUSED.to_string()), "{refused}");
        assert_eq!(*fake.0.borrow(), ["refused", "listened"]);
    }

    #[test]
    fn a_socket_that_cannot_listen_is_an_error_whatever_was_answered() {
        for refuses in [false, true] {
            let fake = Fake::default();
            let control = |code, on| if refuses { fake.refuse() } else { fake.control(code, on) };
            let done = hasten_before::<()>(Loopback::Fast, control, || Err(io::ErrorKind::AddrInUse.into()));
            assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn nobody_is_asked_for_what_is_not_wanted() {
        let fake = Fake::default();
        let done = hasten_before(Loopback::Tcp, |_, _| fake.refuse(), || fake.listen());
        assert!(matches!(done, Ok((7, None))));
        assert_eq!(*fake.0.borrow(), ["listened"]);
    }
}
