// SPDX-License-Identifier: GPL-2.0
//! Regions: memory as a device knows it for local use. None of what is made here has a remote
//! right (P1).
//!
//! Few contiguous pieces are mapped and named by a protection domain's own key, which costs
//! next to nothing, and serves endpoints of all groups of the domain. What is registered serves
//! those of its own group. User memory in more pieces gets a memory region of the device's
//! (`ib_reg_user_mr()`), so that any part of it is one scatter entry. Kernel memory in more pieces
//! is covered by fast registrations side by side.

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
    group::{
        Group,
        Registration,
        Window, //
    },
    ib::{
        device::Live,
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
    key::Key,
    limits::{
        PIECES,
        SOFT_PAGES, //
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

/// Part of a region that one scatter entry can name.
struct Piece {
    /// First byte, counted from the region's start.
    start: usize,
    len: usize,
    /// The device's address of it.
    addr: u64,
    /// The key of its registration; none: it is mapped, and any protection domain's own does.
    lkey: Option<u32>,
}

/// What the device holds of a region.
enum Hold {
    /// Mapped pieces.
    Mapped(DmaMap),
    /// A registration of user memory.
    User(Mr),
    /// Fast registrations side by side, each with its scatter list.
    Fast(KVec<(Mr, Option<SgList>)>),
}

/// The part that ends with the device.
#[pin_data]
pub(crate) struct Inner {
    #[pin]
    hold: Mutex<Option<Hold>>,
    mem: Arc<Memory>,
}

impl Inner {
    fn end(&self) {
        // Under the lock, so that whoever finds nothing knows that nothing is left.
        let mut place = self.hold.lock();
        let Some(hold) = place.take() else {
            return;
        };
        match hold {
            Hold::User(mr) => self.mem.device_unregister(0, self.mem.len(), || drop(mr)),
            Hold::Mapped(map) => drop(map),
            // Each region before its list: fields drop in order.
            Hold::Fast(all) => drop(all),
        }
    }
}

impl Resource for Inner {
    fn device_gone(&self) {
        self.end()
    }
}

/// A region.
pub(crate) struct Region {
    group: Arc<Group>,
    inner: Arc<Inner>,
    /// In order, without gaps.
    pieces: KVec<Piece>,
    ticket: Ticket,
}

/// Makes a registration of `len` bytes of user memory from `offset`, the first of which is known as
/// `iova`.
///
/// # Errors
///
/// `ENOMEM`: more than the device can register. Else what [`Memory::device_register`] says.
pub(crate) fn user_mr(
    live: &Live<'_>,
    group: &Group,
    mem: &Memory,
    offset: usize,
    len: usize,
    iova: u64,
    access: Access,
) -> Result<Mr> {
    let pages = (mem.page_offset() + offset) % kernel::page::PAGE_SIZE + len;
    let pages = pages.div_ceil(kernel::page::PAGE_SIZE);
    if group.device().ib().uses_virt_dma() && pages > SOFT_PAGES {
        return Err(ENOMEM);
    }
    let pd = group.pd()?;
    mem.device_register(offset, len, |addr| {
        Mr::user(live, &pd, addr as u64, len as u64, iova, access)
    })
}

/// The address that peers know the byte at `offset` of `mem` by.
///
/// For user memory that is the owner's own address. The kernel's addresses are nobody's business:
/// there it is the offset, with the in-page bits that registrations must keep.
pub(crate) fn remote_addr(mem: &Memory, offset: usize) -> u64 {
    match mem.user() {
        Some(addr) => (addr + offset) as u64,
        None => (mem.page_offset() + offset) as u64,
    }
}

/// The address that a registration knows the byte at `offset` of `mem` by which gives peers
/// nothing.
///
/// No key ever has such a one. rxe looks neither at rights nor at protection domains when a peer
/// repeats a read that was good once, but only whether number and address still are, and such a
/// registration may have a number that was a key's.
pub(crate) fn hidden_addr(group: &Group, mem: &Memory, offset: usize) -> u64 {
    let hidden = if group.device().ib().opens() {
        1 << 63
    } else {
        0
    };
    remote_addr(mem, offset) | hidden
}

impl Region {
    /// Maps `mem`.
    pub(crate) fn new(live: &Live<'_>, group: &Arc<Group>, mem: &Arc<Memory>) -> Result<Arc<Self>> {
        let (hold, pieces) = Self::hold(live, group, mem)?;
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
                if let Hold::User(mr) = hold {
                    mem.device_unregister(0, mem.len(), || drop(mr));
                }
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

    fn hold(live: &Live<'_>, group: &Group, mem: &Arc<Memory>) -> Result<(Hold, KVec<Piece>)> {
        if mem.segment_count(0, mem.len()) <= PIECES as usize {
            // A mapping that the device cannot do in one piece has to be registered.
            if let Ok(map) = DmaMap::new(live, group.device().ib(), mem) {
                let pieces = Self::mapped_pieces(&map)?;
                return Ok((Hold::Mapped(map), pieces));
            }
        }
        let access = if mem.writable() {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL_READ
        };
        if mem.user().is_none() {
            return Self::fast(live, group, mem, access);
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
        // There is room for it.
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

    /// Covers kernel memory with fast registrations.
    fn fast(
        live: &Live<'_>,
        group: &Group,
        mem: &Arc<Memory>,
        access: Access,
    ) -> Result<(Hold, KVec<Piece>)> {
        let pages = group.fast_pages();
        if pages == 0 {
            return Err(EMSGSIZE);
        }
        let window = pages as usize * kernel::page::PAGE_SIZE;
        let pd = group.pd()?;
        let mut all = KVec::new();
        let mut pieces = KVec::new();
        let mut start = 0;
        while start < mem.len() {
            let into = (mem.page_offset() + start) % kernel::page::PAGE_SIZE;
            let len = (window - into).min(mem.len() - start);
            let mr = Mr::fast(live, &pd, pages)?;
            let count = mem.segment_count(start, len);
            let list = SgList::new(group.device().ib(), count)?;
            let addr = hidden_addr(group, mem, start);
            let mut part = [Registration {
                mr,
                list: Some(list),
                mem,
                window: Window {
                    offset: start,
                    len,
                    iova: addr,
                },
                access,
                posted: false,
            }];
            group.register(live, &mut part).map_err(|(_, e)| e)?;
            let [Registration { mr, list, .. }] = part;
            let piece = Piece {
                start,
                len,
                addr,
                lkey: Some(mr.lkey()),
            };
            all.push((mr, list), GFP_KERNEL_ACCOUNT)?;
            pieces.push(piece, GFP_KERNEL_ACCOUNT)?;
            start += len;
        }
        Ok((Hold::Fast(all), pieces))
    }

    /// The memory.
    pub(crate) fn mem(&self) -> &Arc<Memory> {
        &self.inner.mem
    }

    /// The scatter entry for [offset, offset + len), which lies inside and is not empty, for an endpoint
    /// in `group`; none: it is to be asked for by [`Region::for_each_sge`]. Any context.
    #[inline(always)]
    pub(crate) fn single_sge(&self, group: &Arc<Group>, offset: usize, len: usize) -> Option<Sge> {
        let [piece] = &self.pieces[..] else {
            return None;
        };
        let inside = len != 0 && offset < piece.len && len <= piece.len - offset;
        let lkey = match piece.lkey {
            None => group.lkey(),
            Some(lkey) if Arc::ptr_eq(&self.group, group) => lkey,
            Some(_) => return None,
        };
        // CAST: No operation is longer than 2^31 bytes.
        inside.then(|| Sge::new(piece.addr + offset as u64, len as u32, lkey))
    }

    /// Calls `each` with the scatter entries for [offset, offset + len), which lies inside, for an
    /// endpoint in `group`. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is registered in another group. Else what `each` says.
    #[inline(always)]
    pub(crate) fn for_each_sge(
        &self,
        group: &Arc<Group>,
        offset: usize,
        len: usize,
        mut each: impl FnMut(Sge) -> Result,
    ) -> Result {
        let pieces: &[Piece] = &self.pieces;
        let mapped = pieces.first().is_some_and(|piece| piece.lkey.is_none());
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
        let key: KBox<dyn KeyOps> = KBox::new(Key::new(self, group)?, GFP_KERNEL_ACCOUNT)?;
        Ok(key)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Off the list only when it has ended: a device that goes meanwhile waits for that.
        self.inner.end();
        self.group.device().resources.remove(self.ticket);
    }
}
