// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file whose cached pages are pinned, for peers to read.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use kfabric::{Access, Domain, Memory, Region, RegionAttr};
use sha2::{Digest, Sha256};

use super::SEGMENT;
use crate::cmd::transfer::digest_words;
use crate::error::{During, Failure, OnFile, Result};

/// A pinned file, on one domain.
pub(super) struct Hosted {
    len: u64,
    segments: Vec<Region>,
    digest: [u64; 4],
}

impl Hosted {
    /// Maps a file and pins it, segment by segment; no byte is copied.
    pub(super) fn open(domain: &Domain, path: &Path) -> Result<Self> {
        let file = File::open(path).on_file("open", path)?;
        let meta = file.metadata().on_file("look at", path)?;
        if !meta.is_file() {
            return Err(Failure::Usage(format!(
                "{}: not a regular file",
                path.display()
            )));
        }
        let len = meta.len();
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
                for from in (0..range.len()).step_by(part.len()) {
                    let part = &mut part[..(range.len() - from).min(1 << 20)];
                    region.read_at(from, part);
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
