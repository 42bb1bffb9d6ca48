// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that is on its way through a ring, or a receive that waits for one.
#![forbid(unsafe_code)]

use std::sync::Arc;

use kfabric_pure::pipe::{Lie, Piece, Sender};
use kfabric_uapi as abi;
use kfabric_uapi::{Iov, OpEntry};

use crate::errno::Errno;
use crate::fabric::DomainInner;
use crate::flags::Access;
use crate::op::Local;
use crate::region::RegionInner;
use crate::sys::PipeMem;

/// A piece of its memory, which it keeps.
struct Part {
    region: Arc<RegionInner>,
    offset: usize,
    len: usize,
}

/// See the module.
pub(super) struct Message {
    pub(super) context: u64,
    /// `KFI_*` of its entry.
    pub(super) flags: u64,
    /// A success has a completion.
    pub(super) wanted: bool,
    /// Bytes, or room for them.
    pub(super) len: u64,
    /// Bytes that are in the ring.
    pub(super) done: u64,
    data: Option<u32>,
    /// It is the note of a write of so many bytes.
    pub(super) written: Option<u64>,
    parts: [Option<Part>; abi::KFI_IOV_MAX],
    inject: [u8; abi::KFI_INJECT_MAX],
}

impl Message {
    /// Of a send or a receive.
    ///
    /// # Errors
    ///
    /// What the kernel says of such an operation.
    pub(super) fn new(
        domain: &Arc<DomainInner>,
        entry: &OpEntry,
        local: &Local<'_>,
        iov_limit: u32,
    ) -> Result<Self, Errno> {
        let receives = entry.op == abi::KFI_OP_RECV;
        let needed = if receives { Access::RECV } else { Access::SEND };
        let iov = entry
            .iov
            .get(..entry.iov_count as usize)
            .ok_or(Errno::EINVAL)?;
        let mut parts = [const { None }; abi::KFI_IOV_MAX];
        let mut len = 0;
        for ((part, iov), region) in parts.iter_mut().zip(iov).zip(&local.regions) {
            let region = region.ok_or(Errno::EINVAL)?;
            *part = Some(Part::new(domain, region, iov, needed)?);
            len += iov.len;
        }
        let inject = entry.flags & abi::KFI_INJECT != 0;
        let with_data = entry.flags & abi::KFI_REMOTE_CQ_DATA != 0;
        let known =
            abi::KFI_COMPLETION | abi::KFI_INJECT | abi::KFI_REMOTE_CQ_DATA | abi::KFI_FENCE;
        if entry.flags & !known != 0
            || entry.iov_count > iov_limit
            || (inject && (receives || entry.iov_count != 0))
            || (with_data && receives)
        {
            return Err(Errno::EINVAL);
        }
        let data = match (with_data, u32::try_from(entry.data)) {
            (false, _) => None,
            (true, Ok(data)) => Some(data),
            (true, Err(_)) => return Err(Errno::EINVAL),
        };
        let mut payload = [0; abi::KFI_INJECT_MAX];
        if inject {
            let most = domain.inject_size().min(payload.len());
            if local.payload.len() > most {
                return Err(Errno(libc::EMSGSIZE));
            }
            payload[..local.payload.len()].copy_from_slice(local.payload);
            len = local.payload.len() as u64;
        }
        if len > domain.max_msg_size() {
            return Err(Errno(libc::EMSGSIZE));
        }
        Ok(Self {
            context: entry.context,
            flags: entry.flags,
            wanted: false,
            len,
            done: 0,
            data,
            written: None,
            parts,
            inject: payload,
        })
    }

    /// That a write of `len` bytes was made.
    pub(super) fn note(len: u64, data: u32) -> Self {
        Self {
            context: 0,
            flags: 0,
            wanted: false,
            len: 0,
            done: 0,
            data: Some(data),
            written: Some(len),
            parts: [const { None }; abi::KFI_IOV_MAX],
            inject: [0; abi::KFI_INJECT_MAX],
        }
    }

    /// As the kernel has it: of a receive.
    pub(super) fn entry(&self) -> OpEntry {
        let mut entry = OpEntry {
            op: abi::KFI_OP_RECV,
            flags: self.flags,
            context: self.context,
            ..OpEntry::default()
        };
        for (iov, part) in entry.iov.iter_mut().zip(self.parts.iter().flatten()) {
            *iov = Iov {
                region: part.region.handle.raw(),
                offset: part.offset as u64,
                len: part.len as u64,
            };
            entry.iov_count += 1;
        }
        entry
    }

    /// Offset of its first byte in its region.
    pub(super) fn offset(&self) -> u64 {
        self.parts[0].as_ref().map_or(0, |part| part.offset as u64)
    }

    /// Calls `each` for the parts of `len` bytes from byte `from` on: region, offset there, bytes
    /// before it of these, bytes.
    fn each(
        &self,
        from: u64,
        len: u32,
        mut each: impl FnMut(&RegionInner, usize, usize, usize) -> bool,
    ) -> bool {
        // CAST: Within memory of this process, as it was checked.
        let (mut skip, mut left, mut before) = (from as usize, len as usize, 0);
        for part in self.parts.iter().flatten() {
            let past = skip.min(part.len);
            skip -= past;
            let n = left.min(part.len - past);
            if n != 0 {
                let at = part.region.first + part.offset + past;
                if !each(&part.region, at, before, n) {
                    return false;
                }
                left -= n;
                before += n;
            }
        }
        left == 0
    }

    /// Stores `len` bytes at `at` of the ring as those from byte `from` on; whether they have a place.
    pub(super) fn store(&self, ring: &PipeMem, at: u32, from: u64, len: u32) -> bool {
        self.each(from, len, |region, to, before, n| {
            // CAST: Less than a ring.
            let at = at + before as u32;
            let copy = |map: &_| ring.empty(at, map, to, n);
            region.memory.with_map(true, copy).is_some()
        })
    }

    fn load(&self, ring: &PipeMem, at: u32, from: u64, len: u32) {
        if self.flags & abi::KFI_INJECT != 0 {
            // CAST: Some bytes.
            let from = from as usize;
            let bytes = self.inject.get(from..from + len as usize);
            let _ = ring.fill_from(at, bytes.unwrap_or_default());
            return;
        }
        self.each(from, len, |region, of, before, n| {
            let at = at + before as u32;
            let copy = |map: &_| ring.fill(at, map, of, n);
            region.memory.with_map(false, copy).is_some()
        });
    }

    /// Puts it into the ring, as far as there is room; whether that is all of it.
    pub(super) fn put(&mut self, ring: &PipeMem, pipe: &mut Sender) -> Result<bool, Lie> {
        loop {
            let Some(len) = pipe.room(ring, self.len - self.done)? else {
                return Ok(false);
            };
            let piece = Piece {
                total: self.written.unwrap_or(self.len),
                at: self.done,
                len,
                data: self.data.filter(|_| self.done == 0),
                written: self.written.is_some(),
            };
            pipe.put(ring, &piece, |at, from, n| {
                self.load(ring, at, self.done + u64::from(from), n);
            });
            self.done += u64::from(len);
            if self.done == self.len {
                return Ok(true);
            }
        }
    }
}

impl Part {
    fn new(
        domain: &Arc<DomainInner>,
        region: &Arc<RegionInner>,
        iov: &Iov,
        needed: Access,
    ) -> Result<Self, Errno> {
        if !region.access.contains(needed) {
            return Err(Errno(libc::EACCES));
        }
        let fits = iov
            .offset
            .checked_add(iov.len)
            .is_some_and(|end| end <= region.len as u64);
        if !fits || !Arc::ptr_eq(domain, &region.domain) {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            region: region.clone(),
            // CAST: Inside the region.
            offset: iov.offset as usize,
            len: iov.len as usize,
        })
    }
}
