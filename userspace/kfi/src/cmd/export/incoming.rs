// SPDX-License-Identifier: MIT OR Apache-2.0
//! A put on its way into a file: a segment of memory at a time, then into a temporary file that
//! takes the old one's place when all of it is there and right.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kfabric::{Access, Domain, Memory, Region, RegionAttr};
use sha2::{Digest, Sha256};

use super::SEGMENT;
use crate::cmd::transfer::{digest_words, TempFile};
use crate::error::{During, OnFile, Result};

/// A put on its way.
pub(super) struct Incoming {
    target: PathBuf,
    file: TempFile,
    hash: Sha256,
    total: u64,
    have: u64,
    segments: u64,
    memory: Option<Arc<Memory>>,
}

impl Incoming {
    pub(super) fn new(target: &Path, total: u64) -> Result<Self> {
        Ok(Self {
            target: target.to_owned(),
            file: TempFile::beside(target)?,
            hash: Sha256::new(),
            total,
            have: 0,
            segments: 0,
            memory: None,
        })
    }

    /// Index of the segment to come.
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

    /// Writes a full segment out.
    pub(super) fn take(&mut self, region: &Region) -> Result<()> {
        let mut part = vec![0; 1 << 20];
        for from in (0..region.len()).step_by(part.len()) {
            let part = &mut part[..(region.len() - from).min(1 << 20)];
            region.read_at(from, part);
            self.hash.update(&part);
            self.file
                .file()
                .write_all(part)
                .on_file("write", self.file.path())?;
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

    /// Puts the file in place.
    pub(super) fn commit(self) -> Result<()> {
        let file: &File = self.file.file();
        file.sync_all().on_file("write", self.file.path())?;
        self.file.persist(&self.target)
    }
}
