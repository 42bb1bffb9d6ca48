// SPDX-License-Identifier: GPL-2.0
//! Regions: memory registered for a device's local use, without remote rights (P1). iWARP hardware
//! requires that memory which receives the answer of a read has the right for peers to write.
//!
//! A region for peers alone uses no resource of the device: each key registers the memory itself.
//!
//! A region of few contiguous pieces is mapped and uses a protection domain's local key. This costs
//! next to nothing and serves endpoints of all groups of the domain. A registered region serves the
//! endpoints of its own group.
//!
//! Kernel memory in more pieces is covered by adjacent fast registrations, each of which is a scatter
//! entry. So is user memory that few of them cover, because the region's pages are pinned already.
//! Longer user memory gets one memory region of the device (`ib_reg_user_mr()`), which pins the pages
//! again, so that any part is one scatter entry. If the driver registers no user memory for the kernel
//! ([`registers_user`]), fast registrations cover that, too.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    ib::{
        device::{
            Device,
            Live, //
        },
        dma::{
            DmaMap,
            SgList, //
        },
        mr::{
            Access,
            Mr, //
        },
        wr::Sge, //
    },
    key::{
        fast::{
            QueueHold,
            Registration, //
        },
        full::user_mr,
        group::Group,
        policy::registers_user,
        slot::Key,
        window::{
            hidden_addr,
            Window, //
        }, //
    },
    limits::{
        IOV_LIMIT,
        PIECES,
        USER_PIECES, //
    },
    resource::{
        Class,
        Resource,
        Ticket, //
    },
};
use kfabric::{
    memory::Memory,
    provider::{
        GroupOps,
        KeyOps,
        RegionOps, //
    },
};

/// A part of a region that one scatter entry can cover.
struct Piece {
    /// Offset of the first byte from the region's start.
    start: usize,
    len: usize,
    /// Device address of the first byte.
    addr: u64,
    /// Key of the registration, or `None` if the piece is mapped and any group's local key is
    /// valid.
    lkey: Option<u32>,
}

/// Device resources of a region.
enum Hold {
    /// The region has no local use.
    Nothing,
    /// Mapped pieces.
    Mapped(DmaMap),
    /// A registration of user memory.
    User(Mr),
    /// Adjacent fast registrations, each with its scatter list.
    Fast(KVec<(Mr, Option<SgList>)>),
}

impl Hold {
    /// Frees the resources. `mem` is the region's memory.
    fn end(self, mem: &Arc<Memory>) {
        match self {
            Self::User(mr) => {
                let ended = mem.device_unregister(0, mem.len(), || mr.end());
                retire(ended, None, mem);
            }
            Self::Nothing => {}
            Self::Mapped(map) => drop(map),
            Self::Fast(all) => {
                for (mr, list) in all {
                    retire(mr.end(), list, mem);
                }
            }
        }
    }
}

/// Handles the result of ending a registration of `mem`. If the driver refused, the region keeps its
/// pages. Peers never had a right to the pages, except on iWARP hardware.
fn retire(ended: Result<(), (Error, Mr)>, list: Option<SgList>, mem: &Arc<Memory>) {
    if let Err((e, mr)) = ended {
        mr.park(e, false, list, Some(mem.clone()));
    }
}

/// The part of a region that ends when the device is removed.
#[pin_data]
pub(crate) struct Inner {
    #[pin]
    hold: Mutex<Option<Hold>>,
    mem: Arc<Memory>,
}

impl Inner {
    fn end(&self) {
        // Under the lock: a task that finds `None` then knows that no resource is left.
        let mut place = self.hold.lock();
        if let Some(hold) = place.take() {
            hold.end(&self.mem);
        }
    }
}

impl Resource for Inner {
    fn device_gone(&self) {
        self.end()
    }
}

/// Returns how many scatter entries a part of a region may take.
fn most_pieces(ib: &Device) -> u32 {
    (ib.max_sge() / IOV_LIMIT).clamp(1, PIECES)
}

/// A region of memory, mapped or registered for local use.
pub(crate) struct Region {
    group: Arc<Group>,
    inner: Arc<Inner>,
    /// Pieces in order, without gaps; none if the region has no local use.
    pieces: KVec<Piece>,
    ticket: Ticket,
}

impl Region {
    /// Maps or registers `mem`, if the region `is_local`: operations of this side may use it. The core checks
    /// the access of each operation, and the device only whether it may write at all.
    pub(crate) fn new(
        live: &Live<'_>,
        group: &Arc<Group>,
        mem: &Arc<Memory>,
        is_local: bool,
    ) -> Result<Arc<Self>> {
        let (hold, pieces) = match is_local {
            true => Self::hold(live, group, mem)?,
            false => (Hold::Nothing, KVec::new()),
        };
        let inner = Arc::pin_init(
            pin_init!(Inner {
                hold <- new_mutex!(None, "kverbs_region"),
                mem: mem.clone(),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let inner = match inner {
            Ok(inner) => inner,
            Err(e) => {
                hold.end(mem);
                return Err(e);
            }
        };
        *inner.hold.lock() = Some(hold);
        let resource: Arc<dyn Resource> = inner.clone();
        let made = group
            .device()
            .resources
            .add(Class::Region, resource)
            .and_then(|ticket| {
                let region = Self {
                    group: group.clone(),
                    inner: inner.clone(),
                    pieces,
                    ticket,
                };
                Ok(Arc::new(region, GFP_KERNEL_ACCOUNT)?)
            });
        if made.is_err() {
            inner.end();
        }
        made
    }

    /// Returns how many memory regions of the device a region of a program's memory takes at most.
    pub(crate) fn slots(group: &Group, mem: &Memory) -> u64 {
        let pieces = most_pieces(group.device().ib()) as usize;
        match Self::fast_count(group, mem) {
            // CAST: A `u64` has as many bits.
            Some(count) if mem.segment_count(0, mem.len()) > pieces => count as u64,
            _ => 1,
        }
    }

    /// Returns how many fast registrations cover a program's memory, or `None` if the device registers the
    /// memory as a whole.
    fn fast_count(group: &Group, mem: &Memory) -> Option<usize> {
        let ib = group.device().ib();
        let count = mem
            .page_count()
            .div_ceil(group.fast_pages().max(1) as usize);
        let few = count <= most_pieces(ib) as usize && !ib.is_iwarp();
        (few || !registers_user(ib)).then_some(count)
    }

    fn hold(live: &Live<'_>, group: &Arc<Group>, mem: &Arc<Memory>) -> Result<(Hold, KVec<Piece>)> {
        let ib = group.device().ib();
        // The request of an iWARP read tells the peer the key of the memory that receives the answer.
        // That must not be the protection domain's, which covers all memory.
        let needs = ib.sinks_need_rights();
        let pieces = most_pieces(ib);
        if mem.segment_count(0, mem.len()) <= pieces as usize && !ib.is_iwarp() {
            // A mapping that the device cannot make in one piece has to be registered.
            if let Ok(map) = DmaMap::new(live, ib, mem) {
                let pieces = Self::mapped_pieces(&map)?;
                return Ok((Hold::Mapped(map), pieces));
            }
        }
        let access = if mem.writable() {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL_READ
        }
        .sink(needs);
        if mem.user().is_none() || !registers_user(ib) {
            return Self::covered(live, group, mem, access);
        }
        if Self::fast_count(group, mem).is_some() {
            // On failure, the device registers the memory itself, which needs less of a user's share.
            if let Ok(made) = Self::covered(live, group, mem, access) {
                return Ok(made);
            }
        }
        let mut pieces = KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?;
        let addr = hidden_addr(group, mem, 0);
        let mr = user_mr(live, group, mem, 0, mem.len(), addr, access)?;
        let piece = Piece {
            start: 0,
            len: mem.len(),
            addr,
            lkey: Some(mr.lkey()),
        };
        // Cannot fail: the capacity was reserved above.
        let _ = pieces.push_within_capacity(piece);
        Ok((Hold::User(mr), pieces))
    }

    fn mapped_pieces(map: &DmaMap) -> Result<KVec<Piece>> {
        let mut pieces = KVec::new();
        let mut start = 0;
        for (addr, len) in map.pieces() {
            let piece = Piece {
                start,
                len,
                addr,
                lkey: None,
            };
            pieces.push(piece, GFP_KERNEL_ACCOUNT)?;
            start += len;
        }
        Ok(pieces)
    }

    /// Covers memory with fast registrations. The errors are those of [`Region::cover`].
    fn covered(
        live: &Live<'_>,
        group: &Arc<Group>,
        mem: &Arc<Memory>,
        access: Access,
    ) -> Result<(Hold, KVec<Piece>)> {
        let _queue = QueueHold::new(group);
        let (mut all, mut pieces) = (KVec::new(), KVec::new());
        let covered = Self::cover(live, group, mem, access, &mut all, &mut pieces);
        let hold = Hold::Fast(all);
        match covered {
            Ok(()) => Ok((hold, pieces)),
            Err(e) => {
                hold.end(mem);
                Err(e)
            }
        }
    }

    /// Covers memory with fast registrations, which it adds to `all`. For a program's memory, each is
    /// charged.
    ///
    /// # Errors
    ///
    /// The caller must end the registrations in `all`.
    ///
    /// - `EMSGSIZE` if the device has no fast registrations, or a program's memory needs more than
    ///   [`USER_PIECES`].
    fn cover(
        live: &Live<'_>,
        group: &Group,
        mem: &Arc<Memory>,
        access: Access,
        all: &mut KVec<(Mr, Option<SgList>)>,
        pieces: &mut KVec<Piece>,
    ) -> Result {
        let pages = match u32::try_from(mem.page_count()) {
            Ok(all) => group.fast_pages().min(all),
            Err(_) => group.fast_pages(),
        };
        if pages == 0 {
            return Err(EMSGSIZE);
        }
        let window = pages as usize * kernel::page::PAGE_SIZE;
        let user = mem.user().is_some();
        if user && mem.page_count().div_ceil(pages as usize) > USER_PIECES {
            return Err(EMSGSIZE);
        }
        let pd = group.pd()?;
        let mut start = 0;
        while start < mem.len() {
            let into = (mem.page_offset() + start) % kernel::page::PAGE_SIZE;
            let len = (window - into).min(mem.len() - start);
            let charge = match user {
                true => pd.charge_pages(live, pages)?,
                false => None,
            };
            let mut mr = Mr::with_room(live, &pd, pages)?;
            mr.keep_charge(charge);
            let count = mem.segment_count(start, len);
            let list = group.own_lists();
            let list = list.then(|| SgList::new(group.device().ib(), count));
            let addr = hidden_addr(group, mem, start);
            let mut part = [Registration {
                mr,
                list: list.transpose()?,
                mem,
                window: Window {
                    offset: start,
                    len,
                    iova: addr,
                },
                page_size: kernel::page::PAGE_SIZE,
                access,
                posted: false,
            }];
            // Before the device may have the region.
            all.reserve(1, GFP_KERNEL_ACCOUNT)?;
            pieces.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let result = group.register(live, &mut part);
            let [Registration {
                mr, list, posted, ..
            }] = part;
            if let Err((_, e)) = result {
                // A posted region may be registered, so its pages stay until the device has ended it.
                if posted {
                    retire(mr.end(), list, mem);
                }
                return Err(e);
            }
            let piece = Piece {
                start,
                len,
                addr,
                lkey: Some(mr.lkey()),
            };
            // Cannot fail: the capacity was reserved above.
            let _ = all.push_within_capacity((mr, list));
            let _ = pieces.push_within_capacity(piece);
            start += len;
        }
        Ok(())
    }

    /// Returns whether fast registrations cover the region on an iWARP device.
    pub(crate) fn has_page_lists(&self) -> bool {
        self.mem().user().is_none() || !registers_user(self.group.device().ib())
    }

    /// Returns the region's memory.
    fn mem(&self) -> &Arc<Memory> {
        &self.inner.mem
    }

    /// Returns the scatter entry for [offset, offset + len), which lies inside and is not empty,
    /// for an endpoint in `group`. If it returns `None`, the caller uses [`Region::for_each_sge`].
    ///
    /// Context: any.
    #[inline(always)]
    pub(crate) fn single_sge(&self, group: &Arc<Group>, offset: usize, len: usize) -> Option<Sge> {
        let pieces: &[Piece] = &self.pieces;
        let next = pieces.partition_point(|piece| piece.start + piece.len <= offset);
        let piece = pieces.get(next)?;
        // Pieces have no gaps, so this one begins at or before the offset, and ends after it.
        let into = offset - piece.start;
        let inside = len != 0 && len <= piece.len - into;
        let lkey = match piece.lkey {
            None => group.lkey(),
            Some(lkey) if Arc::ptr_eq(&self.group, group) => lkey,
            Some(_) => return None,
        };
        // CAST: No operation is longer than 2^31 bytes.
        inside.then(|| Sge::new(piece.addr + into as u64, len as u32, lkey))
    }

    /// Calls `each` with the scatter entries for [offset, offset + len), which lies inside, for an
    /// endpoint in `group`.
    ///
    /// Context: any.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the region is registered in another group, or has no local use.
    /// - An error that `each` returns.
    #[inline(always)]
    pub(crate) fn for_each_sge(
        &self,
        group: &Arc<Group>,
        offset: usize,
        len: usize,
        mut each: impl FnMut(Sge) -> Result,
    ) -> Result {
        let pieces: &[Piece] = &self.pieces;
        let mapped = pieces.first().ok_or(EINVAL)?.lkey.is_none();
        if !mapped && !Arc::ptr_eq(&self.group, group) {
            return Err(EINVAL);
        }
        let next = pieces.partition_point(|piece| piece.start + piece.len <= offset);
        let (mut at, mut left) = (offset, len);
        for piece in pieces.iter().skip(next) {
            if left == 0 {
                break;
            }
            let into = at - piece.start;
            let len = left.min(piece.len - into);
            at += len;
            left -= len;
            // CAST: No operation is longer than 2^31 bytes.
            let bytes = len as u32;
            let lkey = piece.lkey.unwrap_or(group.lkey());
            each(Sge::new(piece.addr + into as u64, bytes, lkey))?;
        }
        Ok(())
    }
}

impl RegionOps for Region {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn alloc_key(self: Arc<Self>, group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>> {
        let group = self.group.or_given(group)?.clone();
        let mem = self.mem().clone();
        let key: KBox<dyn KeyOps> = KBox::new(Key::new(self, mem, group)?, GFP_KERNEL_ACCOUNT)?;
        Ok(key)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Remove the ticket last: a device removal in parallel waits until it is removed.
        self.inner.end();
        self.group.device().resources.remove(self.ticket);
    }
}
