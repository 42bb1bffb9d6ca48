// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores content that arrives in place of a file.
//!
//! | target | effect |
//! |---|---|
//! | does not exist | a new file, with the umask's mode, appears when the content is complete and verified |
//! | a regular file | is replaced at that time; mode, owner, ACL and extended attributes stay |
//! | a regular file that cannot be replaced (it has other links, another owner, or is a mount point) | its content is overwritten at that time |
//! | a symbolic link | the file that the link leads to is the target; a dangling link is refused |
//! | a device or FIFO | gets the content as it arrives |
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

/// Mode bits that a file keeps when its content comes from a peer: all but set-user-ID and
/// set-group-ID.
const KEPT: u32 = 0o1777;

/// Flags of an open that neither blocks nor makes a terminal the controlling one.
pub(crate) fn at_once() -> i32 {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    // CAST: Flag bits.
    flags.bits() as i32
}

/// The file at the target's path.
enum There {
    /// No file.
    Nothing,
    /// A regular file, open for writing.
    Regular(File),
    /// A device, FIFO or pipe, which gets bytes as they arrive.
    Stream(File),
}

/// A directory, and a name in the directory.
#[derive(Clone)]
struct Place {
    dir: Arc<OwnedFd>,
    name: OsString,
}

/// The destination of content.
pub(crate) struct Target {
    /// The path as given, for messages.
    path: PathBuf,
    there: There,
    /// `None` for a stream, and for a regular file whose name is unknown.
    place: Option<Place>,
}

/// Content that is being written to a target.
pub(crate) struct Unfinished {
    target: Target,
    /// The file that the content is written to.
    file: File,
    /// The name of `file`; `None` if `file` has no name, or is the target itself.
    temp: Option<Temp>,
}

/// A temporary file: removed when dropped, or when a signal ends the program.
struct Temp {
    at: Place,
    undo: OnSignal,
    /// Whether the file has become the target.
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

    /// The place of an open file, if it can be determined.
    fn of_file(file: &File, meta: &Metadata) -> Option<Self> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let place = Self::of(&std::fs::read_link(link).ok()?)?.ok()?;
        place.is(meta).then_some(place)
    }

    /// Whether the file is at this place.
    fn is(&self, meta: &Metadata) -> bool {
        let found = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| found.st_dev == meta.dev() && found.st_ino == meta.ino())
    }

    /// Creates a temporary file in the same directory.
    fn beside(&self, mode: Mode) -> io::Result<(File, Temp)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            // A short name: the target's own name may be as long as the file system allows.
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

/// Creates a file without a name, for content that cannot be stored beside the target.
pub(crate) fn spool() -> Result<File> {
    let dir = std::env::temp_dir();
    let place = Place {
        dir: folder(&dir).on_file("open", &dir)?,
        name: OsString::new(),
    };
    // Dropping `_temp` removes the name at once.
    let (file, _temp) = place
        .beside(Mode::RUSR | Mode::WUSR)
        .on_file("create a file in", &dir)?;
    Ok(file)
}

impl Target {
    /// Examines the target, without changing it.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for writing, or `path` is not the name of a file.
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

    /// The target for standard output.
    pub(crate) fn stdout() -> Result<Self> {
        let path = PathBuf::from("standard output");
        let out = io::stdout().as_fd().try_clone_to_owned();
        Ok(Self {
            there: There::Stream(out.on_file("write to", &path)?.into()),
            place: None,
            path,
        })
    }

    /// The place of a file that does not exist yet.
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

    /// Whether content is written to the target as it arrives.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.there, There::Stream(_))
    }

    /// Prepares to take content.
    ///
    /// # Errors
    ///
    /// If no temporary file can be created.
    pub(crate) fn begin(self) -> Result<Unfinished> {
        let (file, temp) = match (&self.there, &self.place) {
            (There::Stream(file), _) => (file.try_clone().on_file("write", &self.path)?, None),
            (There::Nothing, Some(place)) => {
                let mode = Mode::from_raw_mode(0o666);
                let (file, temp) = place.beside(mode).on_file("create", &self.path)?;
                (file, Some(temp))
            }
            // The temporary file is readable for its owner only: the target may have few readers.
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

/// Whether the directory cannot take a new file, although files in it may be writable.
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
    /// If the write fails.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file
            .write_all(data)
            .on_file("write", &self.target.path)
    }

    /// Puts the complete content in place of the target.
    ///
    /// # Errors
    ///
    /// If that fails. The target is unchanged, except if it could only be overwritten and
    /// overwriting failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let path = self.target.path.clone();
        self.put().on_file("replace", &path)
    }

    fn put(&mut self) -> io::Result<()> {
        if let There::Stream(file) = &self.target.there {
            // A device may report write errors as late as here.
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
            // Another process has created the file meanwhile.
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
                // Owner, mode and attributes must be on disk before the rename, as the content is.
                self.file.sync_all()?;
                if temp.become_old(place).is_ok() {
                    return self.placed();
                }
            }
        }
        let alone = OnSignal::undo(|| ());
        alone.keep(|| overwrite(&mut self.file, old, &meta))
    }

    /// Marks the temporary file as the target.
    fn placed(&mut self) -> io::Result<()> {
        if let Some(temp) = &mut self.temp {
            temp.kept = true;
        }
        Ok(())
    }
}

impl Temp {
    /// Renames the file to a name that does not exist.
    fn become_new(&self, to: &Place) -> std::result::Result<(), Errno> {
        let (dir, name) = (&self.at.dir, &self.at.name);
        self.undo.keep(|| {
            match renameat_with(dir, name, &to.dir, &to.name, RenameFlags::NOREPLACE) {
                // The file system does not support `RENAME_NOREPLACE`.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    renameat_with(dir, name, &to.dir, &to.name, RenameFlags::empty())
                }
                renamed => renamed,
            }
        })
    }

    /// Renames the file over the old file.
    fn become_old(&self, to: &Place) -> std::result::Result<(), Errno> {
        let flags = RenameFlags::empty();
        let (dir, name) = (&self.at.dir, &self.at.name);
        self.undo
            .keep(|| renameat_with(dir, name, &to.dir, &to.name, flags))
    }
}

/// Copies owner, mode and extended attributes of the old file to the new one. Returns whether all
/// of them could be copied.
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

/// Whether an extended attribute describes the old content, so that it must not be copied.
fn of_content(name: &OsStr) -> bool {
    ["security.capability", "security.ima", "security.evm"]
        .iter()
        .any(|of| name == *of)
}

/// Copies extended attributes, and removes others. Returns whether both have the same afterwards.
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
    // Removes others, such as the default ACL of the directory.
    there
        .iter()
        .filter(|name| !wanted.contains(name))
        .all(|name| fremovexattr(new, name.as_os_str()).is_ok())
}

/// Names of a file's extended attributes; `None` if they cannot be read.
fn attributes(file: &File) -> Option<Vec<OsString>> {
    // Maximum length of a list (`XATTR_LIST_MAX`).
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
    // Maximum length of a value (`XATTR_SIZE_MAX`).
    let mut value = vec![0u8; 64 << 10];
    let len = fgetxattr(file, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Copies one file's content over another's.
fn overwrite(from: &mut File, to: &File, meta: &Metadata) -> io::Result<()> {
    let len = from.metadata()?.len();
    // Reserve the space before any old content is lost.
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
