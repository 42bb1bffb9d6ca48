// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exported memory: a file's page cache, pinned for peers to read, or a device-dax device, pinned
//! for peers to read and write.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use kfabric::{Access, Domain, Memory, Reach, Region, RegionAttr};
use sha2::{Digest, Sha256};

use super::{dax, SEGMENT};
use crate::cmd::transfer::digest_words;
use crate::error::{During, Failure, OnFile, Result};
use crate::replace::at_once;

/// A pinned file or device, on one domain.
pub(super) struct Hosted {
    len: u64,
    segments: Vec<Region>,
    /// Digest of a file; a device's memory changes.
    digest: Option<[u64; 4]>,
    /// Writes to the device can be durable on this domain.
    writable: bool,
}

/// Reads all of `part`.
fn read_at(file: &File, part: &mut [u8], at: u64) -> std::io::Result<()> {
    file.read_exact_at(part, at).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => std::io::Error::other("it became shorter meanwhile"),
        _ => e,
    })
}

impl Hosted {
    /// Maps a file or a device-dax device and pins it, segment by segment; no byte is copied. On a
    /// domain with durable writes a `writable` device must be persistent memory.
    pub(super) fn open(domain: &Domain, path: &Path, writable: bool) -> Result<Self> {
        // Does not wait for a writer of a FIFO.
        let mut options = File::options();
        let file = options.read(true).custom_flags(at_once()).open(path);
        let file = file.on_file("open", path)?;
        let meta = file.metadata().on_file("look at", path)?;
        if let Some(len) = dax::device_len(&meta).on_file("look at", path)? {
            // Another domain lets peers read.
            let writable = writable && domain.durable() != Reach::No;
            return Self::device(domain, path, (meta.rdev(), len), writable);
        }
        if !meta.is_file() {
            return Err(Failure::Usage(format!(
                "{}: neither a regular file nor a device-dax device",
                path.display()
            )));
        }
        let len = meta.len();
        if len == 0 && (&file).read(&mut [0]).on_file("read", path)? != 0 {
            let why = "has content but no length, as files of /proc have";
            return Err(Failure::Usage(format!("{}: {why}", path.display())));
        }
        let mut hash = Sha256::new();
        let mut segments = Vec::new();
        if len > 0 {
            let size = usize::try_from(len)
                .map_err(|_| Failure::Usage(format!("{}: too large", path.display())))?;
            let memory = Arc::new(Memory::from_file(&file, size).during("map file")?);
            let step = usize::try_from(SEGMENT).unwrap_or(usize::MAX);
            let mut part = vec![0; 1 << 20];
            for at in (0..size).step_by(step) {
                let range = at..size.min(at + step);
                let attr = RegionAttr::new(Access::REMOTE_READ)
                    .range(range.clone())
                    .dynamic_keys();
                let region = domain
                    .register_with(memory.clone(), &attr)
                    .during("register")?;
                // Read the file, not the mapping: reading the mapping of a file that was truncated
                // raises SIGBUS.
                for from in range.clone().step_by(part.len()) {
                    let part = &mut part[..(range.end - from).min(1 << 20)];
                    read_at(&file, part, from as u64).on_file("read", path)?;
                    hash.update(part);
                }
                segments.push(region);
            }
        }
        Ok(Self {
            len,
            segments,
            digest: Some(digest_words(hash)),
            writable: false,
        })
    }

    /// Maps and pins a device-dax device.
    fn device(
        domain: &Domain,
        path: &Path,
        (device, len): (u64, u64),
        writable: bool,
    ) -> Result<Self> {
        let mut options = File::options();
        options.read(true).write(writable).custom_flags(at_once());
        let file = options.open(path).on_file("open", path)?;
        if file.metadata().on_file("look at", path)?.rdev() != device {
            let why = "another file now";
            return Err(Failure::Usage(format!("{}: {why}", path.display())));
        }
        let size = usize::try_from(len)
            .map_err(|_| Failure::Usage(format!("{}: too large", path.display())))?;
        let memory = match writable {
            true => Memory::from_file_shared(&file, size),
            false => Memory::from_file(&file, size),
        };
        let memory = Arc::new(memory.during("map device")?);
        let step = usize::try_from(SEGMENT).unwrap_or(usize::MAX);
        let mut segments = Vec::new();
        for at in (0..size).step_by(step) {
            let access = match writable {
                true => Access::REMOTE_READ | Access::REMOTE_WRITE,
                false => Access::REMOTE_READ,
            };
            let mut attr = RegionAttr::new(access)
                .range(at..size.min(at + step))
                .dynamic_keys();
            if writable {
                attr = attr.persistent();
            }
            let region = domain.register_with(memory.clone(), &attr);
            segments.push(region.during("register")?);
        }
        Ok(Self {
            len,
            segments,
            digest: None,
            writable,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn segment(&self, index: u64) -> Option<&Region> {
        self.segments.get(usize::try_from(index).ok()?)
    }

    /// Returns whether this is a device.
    pub(super) fn is_device(&self) -> bool {
        self.digest.is_none()
    }

    /// Returns whether a put can write the device durably.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the digest of a file.
    pub(super) fn digest(&self) -> Option<[u64; 4]> {
        self.digest
    }

    /// Adds the first `len` bytes of a segment to a digest.
    pub(super) fn hash(&self, index: u64, len: u64, hash: &mut Sha256) {
        let Some(region) = self.segment(index) else {
            return;
        };
        let len = region.len().min(usize::try_from(len).unwrap_or(usize::MAX));
        let mut part = vec![0; 1 << 20];
        for from in (0..len).step_by(part.len()) {
            let part = &mut part[..(len - from).min(1 << 20)];
            region.read_at(from, part);
            hash.update(part);
        }
    }
}
