// SPDX-License-Identifier: GPL-2.0
//! A protection domain and what keys in it are made with.
//!
//! Memory is reachable only from queue pairs of its own group. Today a domain has one; with auth
//! keys it has one for each.

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    device::Device,
    ib::{
        device::Live,
        dma::SgList,
        keyq::KeyQueue,
        mr::{
            Access,
            Mr, //
        },
        pd::Pd, //
    },
    limits::FAST_PAGES,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
};
use kfabric::memory::Memory;

/// What fast registrations take turns with.
struct Registrar {
    /// Made with the first use, and again after a failure.
    queue: Option<KeyQueue>,
    /// Room for a window's pieces. Where DMA addresses are the processor's own nothing stays
    /// mapped, and one list does for all keys; elsewhere each key has its own.
    scratch: Option<SgList>,
}

/// The part that ends with the device.
#[pin_data]
struct Inner {
    #[pin]
    pd: Mutex<Option<Arc<Pd>>>,
    #[pin]
    registrar: Mutex<Registrar>,
    /// Regions whose keys are used up: a device that hands out what came back last would do so for
    /// ever.
    #[pin]
    worn: Mutex<KVec<Mr>>,
}

/// Worn regions that are kept.
const WORN: usize = 4096;

impl Resource for Inner {
    fn device_gone(&self) {
        {
            let mut registrar = self.registrar.lock();
            registrar.queue = None;
            registrar.scratch = None;
        }
        self.worn.lock().clear();
        // Under the lock, so that whoever finds nothing knows that nothing is left.
        *self.pd.lock() = None;
    }
}

/// A group. Everything in it holds it.
pub(crate) struct Group {
    device: Arc<Device>,
    inner: Arc<Inner>,
    ticket: Ticket,
    lkey: u32,
}

impl Group {
    /// Makes one.
    pub(crate) fn new(live: &Live<'_>, device: &Arc<Device>) -> Result<Arc<Self>> {
        let pd = Arc::new(Pd::new(live, device.ib())?, GFP_KERNEL)?;
        let lkey = pd.local_dma_lkey();
        let inner = Arc::pin_init(
            pin_init!(Inner {
                pd <- new_mutex!(Some(pd), "kverbs_pd"),
                registrar <- new_mutex!(Registrar { queue: None, scratch: None }, "kverbs_keyq"),
                worn <- new_mutex!(KVec::new(), "kverbs_worn"),
            }),
            GFP_KERNEL,
        )?;
        let ticket = device.resources.add(Class::Group, inner.clone())?;
        let group = Self {
            device: device.clone(),
            inner,
            ticket,
            lkey,
        };
        Ok(Arc::new(group, GFP_KERNEL)?)
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> Result<Arc<Pd>> {
        self.inner.pd.lock().clone().ok_or(ENODEV)
    }

    /// The local key for mapped memory.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Pages of one fast registration; 0: the device has none.
    pub(crate) fn fast_pages(&self) -> u32 {
        self.device.ib().max_fast_reg_pages().min(FAST_PAGES)
    }

    /// Keeps a region that has had all its keys from coming again, if there is room for it.
    pub(crate) fn keep_worn(&self, mr: Mr) {
        let mut worn = self.inner.worn.lock();
        if worn.len() < WORN {
            // What cannot be kept comes again.
            let _ = worn.push(mr, GFP_KERNEL);
        }
    }

    /// Whether a key needs a scatter list of its own.
    pub(crate) fn own_lists(&self) -> bool {
        !self.device.ib().uses_virt_dma()
    }

    /// Points `mr` at [offset, offset + len) of `mem`, which peers will know from `iova` on, with
    /// `access`, and returns when that is so.
    ///
    /// `list` is the key's own scatter list, if it has one.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: does not fit a fast registration. After any other the region may be in use by
    /// the device's queue no more, but must be ended.
    pub(crate) fn register(
        &self,
        live: &Live<'_>,
        mr: &mut Mr,
        list: Option<&mut SgList>,
        mem: &Arc<Memory>,
        window: Window,
        access: Access,
    ) -> Result {
        let mut guard = self.inner.registrar.lock();
        let registrar = &mut *guard;
        if registrar.queue.is_none() {
            registrar.queue = Some(KeyQueue::new(live, &self.pd()?)?);
        }
        let shared = list.is_none();
        let list = match list {
            Some(list) => list,
            None => {
                if registrar.scratch.is_none() {
                    let list = SgList::new(self.device.ib(), self.fast_pages() as usize + 1)?;
                    registrar.scratch = Some(list);
                }
                registrar.scratch.as_mut().ok_or(ENOMEM)?
            }
        };
        mr.aim(list, mem, window.offset, window.len, window.iova, access)?;
        let queue = registrar.queue.as_mut().ok_or(ENODEV)?;
        let result = queue.register(mr, access);
        if shared {
            // Undoes nothing here, but gives the memory back.
            list.unmap();
        }
        if result.is_err() {
            registrar.queue = None;
        }
        result
    }
}

/// Part of a memory, and the address that peers know its first byte by.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Bytes from the memory's start.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) len: usize,
    /// The address.
    pub(crate) iova: u64,
}

impl Drop for Group {
    fn drop(&mut self) {
        // Off the list only when it has ended: a device that goes meanwhile waits for that.
        self.inner.device_gone();
        self.device.resources.remove(self.ticket);
    }
}
