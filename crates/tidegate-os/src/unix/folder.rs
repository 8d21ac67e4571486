//! A folder whose files are opened by name, and from which no name leads out.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::call::check;
#[cfg(target_os = "linux")]
use super::call::count;
use super::directory::Directory;
use crate::file::Listed;
use crate::terms::Blocking;

/// A folder. Names are relative to it, with `/` between their parts; an empty one is the folder itself.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    way: Way,
}

/// How names are kept inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The kernel does (`openat2(2)`, Linux 5.6): relative symbolic links may lead anywhere inside.
    #[cfg(target_os = "linux")]
    Beneath,
    /// Part by part, and no part may be a symbolic link.
    Walk,
}

/// For reading; a pipe is not waited for, and a terminal does not become ours.
const READ: libc::c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | LARGE;

/// Only a folder.
const FOLDER: libc::c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | LARGE;

/// Files of more than 2 GiB, on systems of 32 bits.
#[cfg(target_os = "linux")]
const LARGE: libc::c_int = libc::O_LARGEFILE;
#[cfg(not(target_os = "linux"))]
const LARGE: libc::c_int = 0;

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// What the system says: it does not exist, is no folder, or may not be looked into.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open_at(None, path.as_os_str(), FOLDER)?;
        #[cfg(target_os = "linux")]
        if beneath(&fd, Path::new("."), Blocking::Waits).is_ok() {
            return Ok(Self { fd, way: Way::Beneath });
        }
        Ok(Self { fd, way: Way::Walk })
    }

    /// What keeps names inside, for the log.
    #[must_use]
    pub fn confinement(&self) -> &'static str {
        match self.way {
            #[cfg(target_os = "linux")]
            Way::Beneath => "openat2 with RESOLVE_BENEATH",
            Way::Walk => "part by part, without symbolic links",
        }
    }

    /// The same, but part by part: as where the kernel has no `openat2`.
    #[must_use]
    pub fn walking(self) -> Self {
        Self { way: Way::Walk, ..self }
    }

    /// Opens a file or folder inside for reading.
    ///
    /// # Errors
    /// What the system says; a name that leads out is not found, and a Unix socket is [`io::ErrorKind::Unsupported`].
    /// With [`Blocking::Never`] also [`io::ErrorKind::WouldBlock`]: the disk would have to be looked at, or perhaps.
    pub fn open_file(&self, name: &str, blocking: Blocking) -> io::Result<File> {
        let path = Path::new(if name.is_empty() { "." } else { name });
        match self.way {
            #[cfg(target_os = "linux")]
            Way::Beneath => beneath(&self.fd, path, blocking).map(File::from),
            Way::Walk if blocking == Blocking::Never => Err(io::ErrorKind::WouldBlock.into()),
            Way::Walk => self.walk(path),
        }
    }

    fn walk(&self, path: &Path) -> io::Result<File> {
        let mut here = self.fd.try_clone()?;
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            let part = match part {
                std::path::Component::Normal(part) => part,
                std::path::Component::CurDir => OsStr::new("."),
                _ => return Err(io::ErrorKind::NotFound.into()),
            };
            let last = parts.peek().is_none();
            let kind = if last { READ } else { FOLDER };
            here = open_at(Some(here.as_fd()), part, kind | libc::O_NOFOLLOW).map_err(outside)?;
        }
        Ok(here.into())
    }

    /// What is in a folder inside, at most `most` of it, in no order.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::FileTooLarge`] if there is more.
    pub fn list(&self, name: &str, most: usize) -> io::Result<Vec<Listed>> {
        let folder = OwnedFd::from(self.open_file(name, Blocking::Waits)?);
        let mut listed = Vec::new();
        let mut folder = Directory::new(folder)?;
        while let Some(entry) = folder.next()? {
            let Ok(name) = entry.name.to_str() else { continue }; // no URL leads to it
            if matches!(name, "." | "..") {
                continue;
            }
            if listed.len() == most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            listed.push(Listed { name: name.into(), is_folder: entry.is_folder });
        }
        Ok(listed)
    }
}

/// A path as the system takes it.
fn c_path(path: &OsStr) -> io::Result<CString> {
    CString::new(path.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// `openat(2)`, of what is there already.
///
/// Without a folder, the path starts at the working directory.
fn open_at(folder: Option<BorrowedFd<'_>>, path: &OsStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let folder = folder.map_or(libc::AT_FDCWD, |folder| folder.as_raw_fd());
    // SAFETY: the path ends with a zero, and it and the folder outlive the call; the result is checked before it is
    // owned.
    let fd = check(unsafe { libc::openat(folder, path.as_ptr(), flags) })?;
    // SAFETY: openat just returned this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `openat2(2)`, which the C library has no function for.
#[cfg(target_os = "linux")]
fn open_at_by(folder: &OwnedFd, path: &OsStr, how: &libc::open_how) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let how_at = std::ptr::from_ref(how);
    // SAFETY: the path ends with a zero, `how_at` points to as many bytes as are said, and both outlive the call; the
    // result is checked before it is owned.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, folder.as_raw_fd(), path.as_ptr(), how_at, size_of_val(how))
    };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: openat2 just returned this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(target_os = "linux")]
fn beneath(folder: &OwnedFd, path: &Path, blocking: Blocking) -> io::Result<OwnedFd> {
    // SAFETY: integers only: all zeroes are a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = READ as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    if blocking == Blocking::Never {
        how.resolve |= libc::RESOLVE_CACHED; // Linux 5.12
    }
    // `openat2(2)`: EAGAIN also where somebody renames meanwhile, so that the way cannot be followed safely.
    let mut tries = if blocking == Blocking::Never { 1 } else { 16 };
    loop {
        tries -= 1;
        let opened = open_at_by(folder, path.as_os_str(), &how);
        match opened.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::EAGAIN) if tries > 0 => {}
            Some(libc::EINVAL) if blocking == Blocking::Never => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            _ => return opened.map_err(outside),
        }
    }
}

/// Maps errors: a path that leaves the folder or loops is not found, a socket is unsupported.
fn outside(e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(libc::EXDEV | libc::ELOOP | libc::ENOTDIR | libc::ENAMETOOLONG) => {
            io::ErrorKind::NotFound.into()
        }
        // `open(2)`: a Unix socket, or a device without hardware. BSD reports sockets as EOPNOTSUPP.
        Some(libc::ENXIO | libc::ENODEV | libc::EOPNOTSUPP) => io::ErrorKind::Unsupported.into(),
        _ => e,
    }
}

/// Reads what is in the page cache (`preadv2(2)`, RWF_NOWAIT).
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the disk would have to be read, or if this system cannot tell.
#[cfg(target_os = "linux")]
pub fn read_cached(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let slice = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // The kernel puts the offset together from two halves; where one holds it all, the other is shifted out of it
    // (`pos_from_hilo` in fs/read_write.c). Old C libraries have no function for the call (glibc before 2.26).
    let (low, high) = (at as libc::c_ulong, (at >> 32) as libc::c_ulong);
    // SAFETY: `slice` describes `into`, which is borrowed exclusively, and both outlive the call.
    let n = unsafe {
        let slices = (&raw const slice, 1 as libc::c_ulong);
        libc::syscall(libc::SYS_preadv2, file.as_raw_fd(), slices.0, slices.1, low, high, libc::RWF_NOWAIT)
    };
    count(n as libc::ssize_t).map_err(|e| match e.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => io::ErrorKind::WouldBlock.into(),
        _ => e,
    })
}

/// Reads what is in the page cache: this system cannot tell what is.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`], always.
#[cfg(not(target_os = "linux"))]
pub fn read_cached(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// Writes everything to the disk that the file system of this file still holds back (`syncfs(2)`).
///
/// # Errors
/// The disk's, and [`io::ErrorKind::Unsupported`] where there is no such call.
pub fn write_back(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: no pointers, and the descriptor is borrowed for the call.
    return check(unsafe { libc::syncfs(file.as_raw_fd()) }).map(drop);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Drops what the page cache holds of a file, if the disk has it (`posix_fadvise(2)`, POSIX_FADV_DONTNEED). File
/// systems without a disk (tmpfs) keep it.
///
/// # Errors
/// The system's, and [`io::ErrorKind::Unsupported`] where there is no such call.
pub fn forget_cached(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: no pointers, and the descriptor is borrowed for the call. A length of 0 is up to the end.
    return match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    };
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A number that tells this file from others that had its name (`st_ino`).
pub fn identity(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

/// Whether nothing is left to open a file with: descriptors or memory.
pub fn is_exhausted(e: &io::Error) -> bool {
    crate::socket::is_exhaustion(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn text(folder: &Folder, name: &str) -> io::Result<String> {
        let mut text = String::new();
        folder.open_file(name, Blocking::Waits)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_on_a_disk_leaves_the_page_cache_once_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        let mut bytes = [0; 4096];
        assert_eq!(read_cached(&file, &mut bytes, 0).ok(), Some(4096), "it has just been written");
        write_back(&file).unwrap();
        forget_cached(&file).unwrap();
        let tmpfs = rustix::fs::statfs(&path).unwrap().f_type == 0x0102_1994;
        match read_cached(&file, &mut bytes, 0) {
            Err(e) => assert_eq!((e.kind(), tmpfs), (io::ErrorKind::WouldBlock, false)),
            Ok(n) => assert!(tmpfs && n == 4096, "{n} bytes are still there"),
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(outer.path().join("secret"), "secret").unwrap();
        std::fs::write(root.join("a/b/c"), "inside").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("/etc/passwd", root.join("absolute")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        symlink("a/b/c", root.join("in")).unwrap();
        for folder in [Folder::open(&root).unwrap(), Folder::open(&root).unwrap().walking()] {
            assert_eq!(text(&folder, "a/b/c").unwrap(), "inside");
            for name in [
                "../secret",
                "a/../../secret",
                "out",
                "absolute",
                "up/secret",
                "circle",
                "/etc/passwd",
                "none",
                "a/b/c/d",
            ] {
                assert!(
                    text(&folder, name).is_err_and(|e| e.kind() == io::ErrorKind::NotFound),
                    "{name} {folder:?}"
                );
            }
        }
        let _socket = std::os::unix::net::UnixListener::bind(outer.path().join("socket")).unwrap();
        for outer in [Folder::open(outer.path()).unwrap(), Folder::open(outer.path()).unwrap().walking()] {
            let socket = outer.open_file("socket", Blocking::Waits);
            assert_eq!(socket.unwrap_err().kind(), io::ErrorKind::Unsupported, "{outer:?}");
        }
        let folder = Folder::open(&root).unwrap();
        if folder.way != Way::Walk {
            assert_eq!(text(&folder, "in").unwrap(), "inside", "a link that stays inside");
        }
        let mut names: Vec<_> = folder.list("", 10).unwrap().into_iter().map(|one| one.name).collect();
        names.sort();
        assert_eq!(names, ["a", "absolute", "circle", "in", "out", "up"]);
        assert_eq!(folder.list("", 5).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
