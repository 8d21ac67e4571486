//! A folder whose files are opened by name, and from which no name leads out.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::file::{Listed, Patience};

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
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// What the system says: it does not exist, is no folder, or may not be looked into.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        #[cfg(target_os = "linux")]
        if beneath(&fd, Path::new("."), Patience::Waits).is_ok() {
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
    /// With [`Patience::Never`] also [`io::ErrorKind::WouldBlock`]: the disk would have to be looked at, or perhaps.
    pub fn open_file(&self, name: &str, patience: Patience) -> io::Result<File> {
        let path = Path::new(if name.is_empty() { "." } else { name });
        match self.way {
            #[cfg(target_os = "linux")]
            Way::Beneath => beneath(&self.fd, path, patience).map(File::from),
            Way::Walk if patience == Patience::Never => Err(io::ErrorKind::WouldBlock.into()),
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
            let kind = if last { READ } else { OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC };
            here = openat(&here, part, kind | OFlags::NOFOLLOW, Mode::empty()).map_err(outside)?;
        }
        Ok(here.into())
    }

    /// What is in a folder inside, at most `most` of it, in no order.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::FileTooLarge`] if there is more.
    pub fn list(&self, name: &str, most: usize) -> io::Result<Vec<Listed>> {
        let folder = OwnedFd::from(self.open_file(name, Patience::Waits)?);
        let mut listed = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue }; // no URL leads to it
            if matches!(name, "." | "..") {
                continue;
            }
            if listed.len() == most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let is_folder = entry.file_type() == FileType::Directory;
            listed.push(Listed { name: name.into(), is_folder });
        }
        Ok(listed)
    }
}

#[cfg(target_os = "linux")]
fn beneath(folder: &OwnedFd, path: &Path, patience: Patience) -> io::Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if patience == Patience::Never {
        resolve |= ResolveFlags::CACHED; // Linux 5.12
    }
    // `openat2(2)`: EAGAIN also where somebody renames meanwhile, so that the way cannot be followed safely.
    let mut tries = if patience == Patience::Never { 1 } else { 16 };
    loop {
        tries -= 1;
        match openat2(folder, path, READ, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries > 0 => {}
            Err(Errno::INVAL) if patience == Patience::Never => return Err(io::ErrorKind::WouldBlock.into()),
            outcome => return outcome.map_err(outside),
        }
    }
}

/// Maps errors: a path that leaves the folder or loops is not found, a socket is unsupported.
fn outside(e: Errno) -> io::Error {
    match e {
        Errno::XDEV | Errno::LOOP | Errno::NOTDIR | Errno::NAMETOOLONG => io::ErrorKind::NotFound.into(),
        // `open(2)`: a Unix socket, or a device without hardware. BSD reports sockets as EOPNOTSUPP.
        Errno::NXIO | Errno::NODEV | Errno::OPNOTSUPP => io::ErrorKind::Unsupported.into(),
        e => e.into(),
    }
}

/// Reads what is in the page cache (`preadv2(2)`, RWF_NOWAIT).
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the disk would have to be read, or if this system cannot tell.
#[cfg(target_os = "linux")]
pub fn read_cached(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};
    match preadv2(file, &mut [io::IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT) {
        Ok(n) => Ok(n),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::WouldBlock.into()),
        Err(e) => Err(e.into()),
    }
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
    return Ok(rustix::fs::syncfs(file)?);
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
    return Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?);
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
    crate::unix::socket::is_exhaustion(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn text(folder: &Folder, name: &str) -> io::Result<String> {
        let mut text = String::new();
        folder.open_file(name, Patience::Waits)?.read_to_string(&mut text)?;
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
            let socket = outer.open_file("socket", Patience::Waits);
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
