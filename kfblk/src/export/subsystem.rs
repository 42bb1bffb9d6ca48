// SPDX-License-Identifier: GPL-2.0
//! Subsystems: what is exported, and to whom.

use core::ptr;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    fmt::Write,
    new_mutex,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kfabric::{
    auth::AuthKey,
    fabric::Domain,
    memory::Memory,
    pure::blk::{
        device::{
            identity,
            Uuid, //
        },
        Geometry,
        Hello,
        Name,
        QUEUES_MAX, //
    },
    region::Region,
    uapi::*, //
};

use super::{
    device::Device,
    hosts::Hosts,
    lane::Lane,
    port::Port,
    BLOCK_SHIFT,
    CHUNK_SHIFT, //
};
use crate::{
    config::{
        self,
        Item,
        Text, //
    },
    sys, //
};

/// Bytes that can be exported, at most: a key for each chunk, for each connection.
const SIZE_MAX: u64 = 1 << 40;
/// Pages that are allocated at a stretch.
const STRETCH: usize = 256;
/// Connections of a client, at most.
const CLIENT_LANES: usize = 4 * QUEUES_MAX as usize;
/// Connections of all clients, at most: a port has room for those of some subsystems.
const LANES_MAX: usize = 16 * CLIENT_LANES;

/// The memory as a device knows it.
struct Export {
    domain: Arc<Domain>,
    region: Arc<Region>,
}

/// Who was fenced.
struct Fenced {
    client: Name,
    /// Drawn anew each time: by it, and only by it, who is let in again finds something else.
    times: u64,
    /// It is not let in.
    out: bool,
}

struct Inner {
    size: u64,
    read_only: bool,
    memory: Option<Arc<Memory>>,
    /// The path of a device, which is exported instead of memory.
    path: Option<CString>,
    /// What its administrator knows that device by.
    uuid: Option<Uuid>,
    device: Option<Arc<Device>>,
    exports: KVec<Export>,
    lanes: KVec<Arc<Lane>>,
    hosts: Hosts,
    /// Where it is offered.
    ports: KVec<Arc<Port>>,
    /// Everybody who ever was.
    fenced: KVec<Fenced>,
    /// Of memory: drawn anew whenever it is enabled, for the contents are others then.
    instance: u64,
}

impl Inner {
    /// The memory, as `domain` knows it.
    fn export(&mut self, domain: &Arc<Domain>) -> Result<Arc<Region>> {
        let memory = self.memory.clone().ok_or(ENODEV)?;
        let known = self
            .exports
            .iter()
            .find(|export| Arc::ptr_eq(&export.domain, domain));
        if let Some(export) = known {
            return Ok(export.region.clone());
        }
        let access = KFI_REMOTE_READ | KFI_REMOTE_WRITE;
        let region = Region::register(domain, memory, access, true)?;
        let export = Export {
            domain: domain.clone(),
            region: region.clone(),
        };
        self.exports.push(export, GFP_KERNEL)?;
        Ok(region)
    }

    /// Looks how large the device is, and tells all clients if that is another size than before.
    fn measure(&self, device: &Device) {
        if device.revalidate() {
            for lane in &self.lanes {
                lane.news(device.capacity());
            }
        }
    }

    fn is_enabled(&self) -> bool {
        self.memory.is_some() || self.device.is_some()
    }
}

/// A subsystem: memory that has the same contents for as long as it is enabled.
#[pin_data]
pub(crate) struct Subsystem {
    name: Name,
    /// Held while it is enabled or disabled.
    #[pin]
    switch: Mutex<()>,
    #[pin]
    inner: Mutex<Inner>,
}

/// What a client that is let in gets.
pub(crate) struct Admitted {
    /// What the disk is like.
    pub(crate) geometry: Geometry,
    /// It is not to be written to.
    pub(crate) read_only: bool,
    /// What its keys are for; none for a device.
    pub(crate) region: Option<Arc<Region>>,
    /// What its requests are for.
    pub(crate) device: Option<Arc<Device>>,
    /// See [`Welcome::instance`](kfabric::pure::blk::Welcome::instance).
    pub(crate) instance: u64,
    /// Connections of an earlier time of the same session, which must have ended before it is told.
    pub(crate) stale: KVec<Arc<Lane>>,
}

/// So many bytes of zeroed memory. What there is not to spare is not asked for: who goes on asking has
/// others killed.
///
/// # Errors
///
/// `ENOMEM`. `EINTR`: the task is being killed.
fn pages(size: u64) -> Result<Arc<Memory>> {
    let count = usize::try_from(size).map_err(|_| EINVAL)? / PAGE_SIZE;
    if count > sys::spare_pages() {
        return Err(ENOMEM);
    }
    let mut pages = KVVec::with_capacity(count, GFP_KERNEL | __GFP_NOWARN)?;
    for i in 0..count {
        if i % STRETCH == 0 {
            sys::breathe()?;
            // Others take some meanwhile.
            if sys::spare_pages() == 0 {
                return Err(ENOMEM);
            }
        }
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN)?;
        pages.push(page, GFP_KERNEL)?;
    }
    Memory::from_pages(pages)
}

impl Subsystem {
    /// One that exports nothing yet.
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        let inner = Inner {
            size: 0,
            read_only: false,
            memory: None,
            path: None,
            uuid: None,
            device: None,
            exports: KVec::new(),
            lanes: KVec::new(),
            hosts: Hosts::new(),
            ports: KVec::new(),
            fenced: KVec::new(),
            instance: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                name,
                switch <- new_mutex!((), "kfblk_switch"),
                inner <- new_mutex!(inner, "kfblk_subsystem"),
            }),
            GFP_KERNEL,
        )
    }

    /// Its name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Whether a device is exported.
    pub(crate) fn is_device(&self) -> bool {
        self.inner.lock().device.is_some()
    }

    /// Lets a client in by `lane`, whose keys [`Subsystem::fence`] will find from then on.
    ///
    /// # Errors
    ///
    /// `EACCES`: it is not believed. `EKEYREVOKED`: it is fenced. `ENODEV`: nothing is exported now.
    /// `EDQUOT`: it has as many connections as a client may have, or all have. `ESTALE`: a later
    /// connection of its session has been let in. Else what registering says.
    pub(crate) fn admit(
        &self,
        domain: &Arc<Domain>,
        hello: &Hello,
        lane: &Arc<Lane>,
    ) -> Result<Admitted> {
        let mut inner = self.inner.lock();
        if !lane.may_say(&inner.hosts, &hello.client) {
            return Err(EACCES);
        }
        let mut instance = inner.instance;
        if let Some(fenced) = inner.fenced.iter().find(|of| of.client == hello.client) {
            if fenced.out {
                return Err(config::ekeyrevoked());
            }
            instance = instance.wrapping_add(fenced.times);
        }
        let (mut all, mut own) = (0, 0);
        for other in inner.lanes.iter().filter(|of| of.counts(hello)) {
            all += 1;
            own += usize::from(other.is_of(&hello.client));
        }
        if all >= LANES_MAX || own >= CLIENT_LANES {
            return Err(config::edquot());
        }
        let device = inner.device.clone();
        let region = match device {
            Some(_) => None,
            None => Some(inner.export(domain)?),
        };
        let mut stale = KVec::new();
        for other in &inner.lanes {
            if other.is_behind(hello) {
                return Err(config::estale());
            }
            // What a disk of that name, or one that has ended, has under way is not to land behind what
            // comes now.
            if other.is_before(hello) || (other.is_of(&hello.client) && other.is_ending()) {
                stale.push(other.clone(), GFP_KERNEL)?;
            }
        }
        inner.lanes.push(lane.clone(), GFP_KERNEL)?;
        let geometry = match &device {
            Some(device) => {
                inner.measure(device);
                device.geometry()
            }
            None => Geometry {
                capacity: inner.size,
                block_shift: BLOCK_SHIFT,
                chunk_shift: CHUNK_SHIFT,
            },
        };
        Ok(Admitted {
            geometry,
            read_only: match &device {
                Some(device) => device.is_read_only(),
                None => inner.read_only,
            },
            region,
            device,
            instance,
            stale,
        })
    }

    /// The client of `lane` was told that the device has `told` bytes: it hears of others from now on, and
    /// of what came meanwhile.
    pub(crate) fn welcomed(&self, lane: &Lane, told: u64) {
        let inner = self.inner.lock();
        lane.is_welcomed();
        let now = inner.device.as_ref().map(|device| device.capacity());
        if let Some(now) = now.filter(|now| *now != told) {
            lane.news(now);
        }
    }

    /// It is offered at `port`.
    pub(crate) fn add_port(&self, port: &Arc<Port>) -> Result {
        let mut inner = self.inner.lock();
        inner.ports.push(port.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// It is not any more.
    pub(crate) fn drop_port(&self, port: &Port) {
        let taken = config::take_ptr(&mut self.inner.lock().ports, port);
        drop(taken);
    }

    /// Adds the auth keys of its clients that are not in `keys` yet.
    pub(crate) fn add_keys(&self, keys: &mut KVec<AuthKey>) -> Result {
        for key in self.inner.lock().hosts.keys() {
            if !keys.iter().any(|of| of.is(key)) {
                keys.push(key.clone(), GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Changes whom it believes: when this returns nothing lands of who is not believed any more. Ports
    /// listen for whoever is believed, at once or as soon as they can.
    ///
    /// # Errors
    ///
    /// What `change` says. `ENOMEM`. Nothing was done then.
    fn believe(&self, change: impl FnOnce(&mut Hosts) -> Result) -> Result {
        let (lost, ports) = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let mut lost = KVec::with_capacity(inner.lanes.len(), GFP_KERNEL)?;
            let mut ports = KVec::with_capacity(inner.ports.len(), GFP_KERNEL)?;
            change(&mut inner.hosts)?;
            for lane in inner
                .lanes
                .iter()
                .filter(|of| !of.is_believed(&inner.hosts))
            {
                lost.push(lane.clone(), GFP_KERNEL)?;
            }
            for port in &inner.ports {
                ports.push(port.clone(), GFP_KERNEL)?;
            }
            (lost, ports)
        };
        Self::expel(lost);
        for port in ports {
            Port::renew(&port);
        }
        Ok(())
    }

    /// Ends connections, their keys first: that is what the caller waits for.
    fn expel(lanes: KVec<Arc<Lane>>) {
        for lane in &lanes {
            lane.revoke();
        }
        for lane in lanes {
            lane.doom();
        }
    }

    /// Forgets a connection that has ended.
    pub(crate) fn forget(&self, lane: &Lane) {
        let taken = config::take_ptr(&mut self.inner.lock().lanes, lane);
        drop(taken);
    }

    /// Whether it has anything on a device for which `which` says so.
    pub(crate) fn has_export(&self, which: impl Fn(&Domain) -> bool) -> bool {
        let inner = self.inner.lock();
        inner.exports.iter().any(|export| which(&export.domain))
    }

    /// Ends what it has on devices for which `which` says so.
    pub(crate) fn close_exports(&self, which: impl Fn(&Domain) -> bool) {
        loop {
            let taken = {
                let mut inner = self.inner.lock();
                let mut all = inner.exports.iter();
                let at = all.position(|export| which(&export.domain));
                at.and_then(|at| inner.exports.remove(at).ok())
            };
            if taken.is_none() {
                return;
            }
        }
    }

    /// Ends all connections, the last added first. Needs no memory.
    fn end_lanes(&self) {
        loop {
            // It stays in the list until its keys have ended: who fences waits for them too.
            let last = self.inner.lock().lanes.last().cloned();
            match last {
                Some(lane) => lane.end(),
                None => return,
            }
        }
    }

    fn enable(&self) -> Result {
        let _switch = self.switch.lock();
        let (size, path, read_only) = {
            let inner = self.inner.lock();
            if inner.is_enabled() {
                return Ok(());
            }
            let path = inner.path.as_deref().map(CString::try_from);
            (inner.size, path.transpose()?, inner.read_only)
        };
        if let Some(path) = path {
            let device = Device::open(&path, read_only, ptr::from_ref(self).cast())?;
            let mut inner = self.inner.lock();
            let name = self.name.as_str().as_bytes();
            inner.instance = identity(name, path.to_bytes(), inner.uuid.as_ref());
            inner.device = Some(device);
            return Ok(());
        }
        if size == 0 {
            return Err(EINVAL);
        }
        // Not under the lock that a fence takes: it may take long.
        let memory = pages(size)?;
        let mut inner = self.inner.lock();
        inner.instance = u64::from_ne_bytes(sys::random());
        inner.memory = Some(memory);
        Ok(())
    }

    /// Exports nothing any more: when this returns no peer reaches the memory.
    pub(crate) fn disable(&self) {
        let _switch = self.switch.lock();
        let (memory, device, exports) = {
            let mut inner = self.inner.lock();
            let exports = core::mem::take(&mut inner.exports);
            (inner.memory.take(), inner.device.take(), exports)
        };
        self.end_lanes();
        drop(exports);
        drop((memory, device));
    }

    /// Sets what only may be set while it is not enabled.
    fn set(&self, set: impl FnOnce(&mut Inner)) -> Result {
        // Who enables it has looked already.
        let _switch = self.switch.lock();
        let mut inner = self.inner.lock();
        if inner.is_enabled() {
            return Err(EBUSY);
        }
        set(&mut inner);
        Ok(())
    }

    /// Looks how large the device is, and tells all clients if that is another size than before.
    ///
    /// # Errors
    ///
    /// `ENODEV`: no device is exported now.
    fn revalidate(&self) -> Result {
        let inner = self.inner.lock();
        let device = inner.device.as_ref().ok_or(ENODEV)?;
        inner.measure(device);
        Ok(())
    }

    /// Ends everything that a client may do: when this returns, not a byte of it lands any more, and it
    /// is not let in again until it is admitted. What it had not done by then it never does, for it is
    /// let in as somebody else.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: nothing was done.
    fn fence(&self, client: Name) -> Result {
        let times = u64::from_ne_bytes(sys::random());
        let mut found = KVec::new();
        {
            let mut inner = self.inner.lock();
            found.reserve(inner.lanes.len(), GFP_KERNEL)?;
            match inner.fenced.iter_mut().find(|of| of.client == client) {
                Some(fenced) => {
                    fenced.times = times;
                    fenced.out = true;
                }
                None => {
                    let fenced = Fenced {
                        client,
                        times,
                        out: true,
                    };
                    inner.fenced.push(fenced, GFP_KERNEL)?;
                }
            }
            for lane in inner.lanes.iter().filter(|of| of.is_of(&client)) {
                found.push(lane.clone(), GFP_KERNEL)?;
            }
        }
        Self::expel(found);
        Ok(())
    }

    fn admit_again(&self, client: Name) -> Result {
        let mut inner = self.inner.lock();
        let fenced = inner
            .fenced
            .iter_mut()
            .find(|of| of.client == client && of.out);
        fenced.ok_or(ENOENT)?.out = false;
        Ok(())
    }
}

impl Item for Subsystem {
    fn end(this: &Arc<Self>) {
        this.disable();
    }

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        let inner = self.inner.lock();
        match attr {
            0 => writeln!(out, "{}", inner.size)?,
            1 => writeln!(out, "{}", u32::from(inner.read_only))?,
            2 => writeln!(out, "{}", u32::from(inner.is_enabled()))?,
            3 => out.list(&inner.lanes, |out, lane| lane.describe(out))?,
            4 => out.list(inner.fenced.iter().filter(|of| of.out), |out, of| {
                Ok(writeln!(out, "{}", of.client.as_str())?)
            })?,
            16 => {
                let path = inner.path.as_ref().and_then(|path| path.to_str().ok());
                writeln!(out, "{}", path.unwrap_or_default())?;
            }
            18 => writeln!(out, "{}", inner.uuid.as_ref().map_or("", Uuid::as_str))?,
            6 => writeln!(out, "{}", u32::from(inner.hosts.any()))?,
            8 => out.list(inner.hosts.clients(), |out, client| {
                Ok(writeln!(out, "{}", client.as_str())?)
            })?,
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        match attr {
            0 => {
                let size = config::size(text)?;
                let chunk = PAGE_SIZE as u64;
                if size == 0 || size > SIZE_MAX || size & (chunk - 1) != 0 {
                    return Err(EINVAL);
                }
                this.set(|inner| inner.size = size)?;
            }
            1 => {
                let read_only = config::flag(text)?;
                this.set(|inner| inner.read_only = read_only)?;
            }
            2 if config::flag(text)? => this.enable()?,
            2 => this.disable(),
            4 => this.fence(config::name(text)?)?,
            5 => this.admit_again(config::name(text)?)?,
            16 => {
                let path = match text {
                    "" => None,
                    path => Some(CString::try_from_fmt(fmt!("{path}"))?),
                };
                // Not one of whoever asks, but the same for all.
                if path.is_some() && !text.starts_with('/') {
                    return Err(EINVAL);
                }
                this.set(|inner| inner.path = path)?;
            }
            17 if config::flag(text)? => this.revalidate()?,
            18 => {
                let uuid = match text {
                    "" => None,
                    text => Some(Uuid::new(text.as_bytes()).map_err(|_| EINVAL)?),
                };
                this.set(|inner| inner.uuid = uuid)?;
            }
            6 => {
                let any = config::flag(text)?;
                this.believe(|hosts| {
                    hosts.set_any(any);
                    Ok(())
                })?;
            }
            7 => {
                let (client, key) = text.split_once(' ').unwrap_or((text, ""));
                let (client, key) = (config::name(client)?, config::key(key.trim())?);
                this.believe(|hosts| match key {
                    Some(key) => hosts.set(client, key),
                    None => hosts.remove(&client),
                })?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }
}
