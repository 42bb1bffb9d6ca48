// SPDX-License-Identifier: MIT OR Apache-2.0
//! How content that arrives takes a file's place.
//!
//! | at the target's place | what happens |
//! |---|---|
//! | nothing | a new file, of the umask's mode, appears when all content is there and right |
//! | a regular file | it is replaced then, and keeps mode, owner, ACL and extended attributes |
//! | a regular file that cannot be replaced like that (other links to it, another's, a mount point) | its content is overwritten then |
//! | a symbolic link | the file that it leads to is treated so; a link to nothing is refused |
//! | a device, a FIFO | it takes the content as it arrives |
//!
//! Content from a peer is never set-user-ID or set-group-ID, and has no file capabilities.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    fallocate, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, openat,
    renameat_with, statat, unlinkat, AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Uid,
    XattrFlags, CWD,
};
use rustix::io::Errno;

use crate::ending::OnSignal;
use crate::error::{Failure, OnFile, Result};

/// Bits of a mode that a file keeps when its content is a peer's: not set-user-ID, set-group-ID.
const KEPT: u32 = 0o1777;

/// Flags of an open that neither waits nor takes a terminal.
pub(crate) fn at_once() -> i32 {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    // CAST: Bits.
    flags.bits() as i32
}

/// What is at the target's place.
enum There {
    /// Nothing.
    Nothing,
    /// A regular file, open for writing.
    Regular(File),
    /// What takes bytes as they come.
    Stream(File),
}

/// A folder, and a name in it.
#[derive(Clone)]
struct Place {
    dir: Arc<OwnedFd>,
    name: OsString,
}

/// Where content is to go.
pub(crate) struct Target {
    /// As it was given, for messages.
    path: PathBuf,
    there: There,
    /// None: a regular file whose name is not known, or a stream.
    place: Option<Place>,
}

/// Content on its way to a target.
pub(crate) struct Unfinished {
    target: Target,
    /// What is written to.
    file: File,
    /// Where `file` lies; none: it has no name, or is the target itself.
    temp: Option<Temp>,
}

/// A file that is removed when dropped, or when a signal ends the program.
struct Temp {
    at: Place,
    undo: OnSignal,
    /// It has become the target.
    kept: bool,
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.kept {
            let _ = unlinkat(&self.at.dir, &self.at.name, AtFlags::empty());
        }
    }
}

fn folder(path: &Path) -> io::Result<Arc<OwnedFd>> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Arc::new(openat(CWD, path, flags, Mode::empty())?))
}

impl Place {
    fn of(path: &Path) -> Option<io::Result<Self>> {
        let name = path.file_name()?.to_owned();
        let dir = folder(path.parent()?);
        Some(dir.map(|dir| Self { dir, name }))
    }

    /// Where an open file lies, if that can be said.
    fn of_file(file: &File, meta: &Metadata) -> Option<Self> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let place = Self::of(&std::fs::read_link(link).ok()?)?.ok()?;
        place.is(meta).then_some(place)
    }

    /// Whether this file lies here.
    fn is(&self, meta: &Metadata) -> bool {
        let found = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| found.st_dev == meta.dev() && found.st_ino == meta.ino())
    }

    /// A new file beside it.
    fn beside(&self, mode: Mode) -> io::Result<(File, Temp)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            // Short: the target's own name may be as long as the file system allows.
            let name = OsString::from(format!(".kfi-{}-{attempt}", std::process::id()));
            let at = Self {
                dir: self.dir.clone(),
                name,
            };
            let undone = at.clone();
            let file = OnSignal::making(
                || openat(&at.dir, &at.name, flags, mode),
                move || {
                    let _ = unlinkat(&undone.dir, &undone.name, AtFlags::empty());
                },
            );
            match file {
                Err(Errno::EXIST) if attempt < 1000 => attempt += 1,
                Err(e) => return Err(e.into()),
                Ok((file, undo)) => {
                    let kept = false;
                    return Ok((file.into(), Temp { at, undo, kept }));
                }
            }
        }
    }
}

/// A file without a name, for content that has no other place yet.
pub(crate) fn spool() -> Result<File> {
    let dir = std::env::temp_dir();
    let place = Place {
        dir: folder(&dir).on_file("open", &dir)?,
        name: OsString::new(),
    };
    // The name goes at once.
    let (file, _temp) = place
        .beside(Mode::RUSR | Mode::WUSR)
        .on_file("create a file in", &dir)?;
    Ok(file)
}

impl Target {
    /// Looks what there is. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// What opening it for writing says; a name of no file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::NOCTTY.bits() as i32;
        let opened = File::options().write(true).custom_flags(flags).open(path);
        let (there, place) = match opened {
            Ok(file) => {
                let meta = file.metadata().on_file("look at", path)?;
                if meta.is_file() {
                    let place = Place::of_file(&file, &meta);
                    (There::Regular(file), place)
                } else {
                    (There::Stream(file), None)
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (There::Nothing, Some(Self::new_place(path)?))
            }
            Err(e) => return Err(e).on_file("write", path),
        };
        Ok(Self {
            path: path.to_owned(),
            there,
            place,
        })
    }

    /// Standard output.
    pub(crate) fn stdout() -> Result<Self> {
        let path = PathBuf::from("standard output");
        let out = io::stdout().as_fd().try_clone_to_owned();
        Ok(Self {
            there: There::Stream(out.on_file("write to", &path)?.into()),
            place: None,
            path,
        })
    }

    /// Where a file that does not exist will be.
    fn new_place(path: &Path) -> Result<Place> {
        let shown = path.display();
        if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            return Err(Failure::Usage(format!("{shown}: a link to nothing")));
        }
        let ends = |with: &str| path.as_os_str().as_bytes().ends_with(with.as_bytes());
        let place = match ends("/") || ends("/.") {
            true => None,
            false => Place::of(path),
        };
        let none = || Failure::Usage(format!("{shown}: not the name of a file"));
        let parent = path.parent().unwrap_or(path);
        place.ok_or_else(none)?.on_file("open", parent)
    }

    /// Whether content goes there as it arrives.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.there, There::Stream(_))
    }

    /// Gets ready to take content.
    ///
    /// # Errors
    ///
    /// When there is no place for it.
    pub(crate) fn begin(self) -> Result<Unfinished> {
        let (file, temp) = match (&self.there, &self.place) {
            (There::Stream(file), _) => (file.try_clone().on_file("write", &self.path)?, None),
            (There::Nothing, Some(place)) => {
                let mode = Mode::from_raw_mode(0o666);
                let (file, temp) = place.beside(mode).on_file("create", &self.path)?;
                (file, Some(temp))
            }
            // Nobody may read what is meant for a file that few may read.
            (There::Regular(_), Some(place)) => match place.beside(Mode::RUSR | Mode::WUSR) {
                Ok((file, temp)) => (file, Some(temp)),
                Err(e) if elsewhere(&e) => (spool()?, None),
                Err(e) => return Err(e).on_file("create a file beside", &self.path),
            },
            _ => (spool()?, None),
        };
        Ok(Unfinished {
            target: self,
            file,
            temp,
        })
    }
}

/// Whether a folder takes no new file, while one that is in it may be written.
fn elsewhere(e: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        e.kind(),
        K::PermissionDenied | K::ReadOnlyFilesystem | K::NotFound
    )
}

impl Unfinished {
    /// Adds content.
    ///
    /// # Errors
    ///
    /// What writing says.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file
            .write_all(data)
            .on_file("write", &self.target.path)
    }

    /// All of it is there: puts it in the target's place.
    ///
    /// # Errors
    ///
    /// The target is as it was, except if it could only be overwritten, and that failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let path = self.target.path.clone();
        self.put().on_file("replace", &path)
    }

    fn put(&mut self) -> io::Result<()> {
        if let There::Stream(file) = &self.target.there {
            // Errors of a device may come late.
            return match file.metadata()?.file_type().is_block_device() {
                true => file.sync_all(),
                false => Ok(()),
            };
        }
        self.file.sync_all()?;
        if let (There::Nothing, Some(temp), Some(place)) =
            (&self.target.there, &self.temp, &self.target.place)
        {
            match temp.become_new(place) {
                Ok(()) => return self.placed(),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            // Somebody else has made one meanwhile.
            match Target::open(&self.target.path) {
                Ok(now) if !now.is_stream() => self.target = now,
                _ => return Err(Errno::EXIST.into()),
            }
        }
        let There::Regular(old) = &self.target.there else {
            return Err(Errno::EXIST.into());
        };
        let meta = old.metadata()?;
        if let (Some(temp), Some(place)) = (&self.temp, &self.target.place) {
            let alone = meta.nlink() == 1 && place.is(&meta);
            if alone && Arc::ptr_eq(&temp.at.dir, &place.dir) && dress(&self.file, old, &meta) {
                // Its mode, owner and attributes are to be there as its content is.
                self.file.sync_all()?;
                if temp.become_old(place).is_ok() {
                    return self.placed();
                }
            }
        }
        let alone = OnSignal::undo(|| ());
        alone.keep(|| overwrite(&mut self.file, old, &meta))
    }

    /// The temporary file has become the target.
    fn placed(&mut self) -> io::Result<()> {
        if let Some(temp) = &mut self.temp {
            temp.kept = true;
        }
        Ok(())
    }
}

impl Temp {
    /// Takes a name that nothing has.
    fn become_new(&self, to: &Place) -> std::result::Result<(), Errno> {
        let (dir, name) = (&self.at.dir, &self.at.name);
        self.undo.keep(|| {
            match renameat_with(dir, name, &to.dir, &to.name, RenameFlags::NOREPLACE) {
                // A file system that cannot promise it.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    renameat_with(dir, name, &to.dir, &to.name, RenameFlags::empty())
                }
                renamed => renamed,
            }
        })
    }

    /// Takes the old file's name.
    fn become_old(&self, to: &Place) -> std::result::Result<(), Errno> {
        let flags = RenameFlags::empty();
        let (dir, name) = (&self.at.dir, &self.at.name);
        self.undo
            .keep(|| renameat_with(dir, name, &to.dir, &to.name, flags))
    }
}

/// Gives a new file the owner, mode and extended attributes of the one that it replaces; whether it
/// has all of them.
fn dress(new: &File, old: &File, meta: &Metadata) -> bool {
    let Ok(own) = new.metadata() else {
        return false;
    };
    if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
        let owner = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
        if fchown(new, Some(owner.0), Some(owner.1)).is_err() {
            return false;
        }
    }
    fchmod(new, Mode::from_raw_mode(meta.mode() & KEPT)).is_ok() && same_attributes(new, old)
}

/// Whether an attribute says something of the content that was.
fn of_content(name: &OsStr) -> bool {
    ["security.capability", "security.ima", "security.evm"]
        .iter()
        .any(|of| name == *of)
}

fn same_attributes(new: &File, old: &File) -> bool {
    let (Some(wanted), Some(there)) = (attributes(old), attributes(new)) else {
        return false;
    };
    for name in &wanted {
        let Some(value) = attribute(old, name) else {
            return false;
        };
        let set = || fsetxattr(new, name.as_os_str(), &value, XattrFlags::empty());
        if attribute(new, name).as_ref() != Some(&value) && set().is_err() {
            return false;
        }
    }
    // Such as the access list that new files in the folder have.
    there
        .iter()
        .filter(|name| !wanted.contains(name))
        .all(|name| fremovexattr(new, name.as_os_str()).is_ok())
}

/// The names of a file's attributes.
fn attributes(file: &File) -> Option<Vec<OsString>> {
    // As long as a list may be (`XATTR_LIST_MAX`).
    let mut list = vec![0u8; 64 << 10];
    let len = match flistxattr(file, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(_) => return None,
    };
    let names = list.get(..len)?.split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let names = names.map(|name| OsStr::from_bytes(name).to_owned());
    Some(names.filter(|name| !of_content(name)).collect())
}

fn attribute(file: &File, name: &OsStr) -> Option<Vec<u8>> {
    // As long as a value may be (`XATTR_SIZE_MAX`).
    let mut value = vec![0u8; 64 << 10];
    let len = fgetxattr(file, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Copies one file's content over another's.
fn overwrite(from: &mut File, to: &File, meta: &Metadata) -> io::Result<()> {
    let len = from.metadata()?.len();
    // Before anything is lost.
    if len > 0 && fallocate(to, FallocateFlags::KEEP_SIZE, 0, len) == Err(Errno::NOSPC) {
        return Err(Errno::NOSPC.into());
    }
    if meta.mode() & 0o6000 != 0 {
        fchmod(to, Mode::from_raw_mode(meta.mode() & KEPT))?;
    }
    from.rewind()?;
    let mut to = to;
    to.rewind()?;
    io::copy(from, &mut to)?;
    to.set_len(len)?;
    to.sync_all()
}

#[cfg(test)]
mod tests;
