// SPDX-License-Identifier: MIT OR Apache-2.0
//! A put in progress: each segment is received into memory, then written to a temporary file. The
//! temporary file replaces the target when the content is complete and verified.

use std::path::Path;
use std::sync::Arc;

use kfabric::{Access, Domain, Memory, Region, RegionAttr};
use sha2::{Digest, Sha256};

use super::SEGMENT;
use crate::cmd::transfer::digest_words;
use crate::error::{During, Failure, Result};
use crate::replace::{Target, Unfinished};

/// A put in progress.
pub(super) struct Incoming {
    file: Unfinished,
    hash: Sha256,
    total: u64,
    have: u64,
    segments: u64,
    memory: Option<Arc<Memory>>,
}

impl Incoming {
    pub(super) fn new(target: &Path, total: u64) -> Result<Self> {
        // Opening a FIFO would wait for its reader.
        let regular = match target.metadata() {
            Ok(meta) => meta.is_file(),
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        };
        if !regular {
            let what = format!("{}: not a regular file any more", target.display());
            return Err(Failure::Usage(what));
        }
        Ok(Self {
            file: Target::open(target)?.begin()?,
            hash: Sha256::new(),
            total,
            have: 0,
            segments: 0,
            memory: None,
        })
    }

    /// Index of the next segment.
    pub(super) fn next_segment(&self) -> u64 {
        self.segments
    }

    /// Memory for the next segment, registered for peers' writes.
    pub(super) fn segment(&mut self, domain: &Domain, len: u64) -> Result<Region> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let memory = match self.memory.take() {
            Some(memory) if memory.len() >= len => memory,
            _ => Arc::new(Memory::anonymous(len).during("allocate")?),
        };
        self.memory = Some(memory.clone());
        let attr = RegionAttr::new(Access::REMOTE_WRITE)
            .range(0..len)
            .dynamic_keys();
        domain.register_with(memory, &attr).during("register")
    }

    /// Writes a complete segment to the file.
    pub(super) fn take(&mut self, region: &Region) -> Result<()> {
        let mut part = vec![0; 1 << 20];
        for from in (0..region.len()).step_by(part.len()) {
            let part = &mut part[..(region.len() - from).min(1 << 20)];
            region.read_at(from, part);
            self.hash.update(&part);
            self.file.write(part)?;
        }
        self.have += region.len() as u64;
        self.segments += 1;
        debug_assert!(self.have == self.total || self.have == self.segments * SEGMENT);
        Ok(())
    }

    pub(super) fn complete(&self) -> bool {
        self.have == self.total
    }

    pub(super) fn digest(&self) -> [u64; 4] {
        digest_words(self.hash.clone())
    }

    /// Puts the file in place of the target.
    pub(super) fn commit(self) -> Result<()> {
        self.file.finish()
    }
}
