// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file whose page cache is pinned for peers to read.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use kfabric::{Access, Domain, Memory, Region, RegionAttr};
use sha2::{Digest, Sha256};

use super::SEGMENT;
use crate::cmd::transfer::digest_words;
use crate::error::{During, Failure, OnFile, Result};
use crate::replace::at_once;

/// A pinned file, on one domain.
pub(super) struct Hosted {
    len: u64,
    segments: Vec<Region>,
    digest: [u64; 4],
}

/// Reads all of `part`.
fn read_at(file: &File, part: &mut [u8], at: u64) -> std::io::Result<()> {
    file.read_exact_at(part, at).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => std::io::Error::other("it became shorter meanwhile"),
        _ => e,
    })
}

impl Hosted {
    /// Maps a file and pins it, segment by segment; no byte is copied.
    pub(super) fn open(domain: &Domain, path: &Path) -> Result<Self> {
        // Does not wait for a writer of a FIFO.
        let mut options = File::options();
        let file = options.read(true).custom_flags(at_once()).open(path);
        let file = file.on_file("open", path)?;
        let meta = file.metadata().on_file("look at", path)?;
        if !meta.is_file() {
            return Err(Failure::Usage(format!(
                "{}: not a regular file",
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
            digest: digest_words(hash),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn segment(&self, index: u64) -> Option<&Region> {
        self.segments.get(usize::try_from(index).ok()?)
    }

    pub(super) fn digest(&self) -> [u64; 4] {
        self.digest
    }
}
