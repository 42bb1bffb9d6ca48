// SPDX-License-Identifier: GPL-2.0
//! Subsystems: each exports memory or a block device, to the initiators that it allows.

mod attributes;

use core::ptr;
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    str::{
        CStr,
        CString, //
    },
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    auth::AuthKey,
    objects::domain::Domain,
    pure::blk::{
        device::{
            identity,
            Uuid, //
        },
        Geometry,
        Hello,
        Name,
        QUEUES_MAX,
        SESSION, //
    },
};

use super::{
    block::Device,
    connection::Connection,
    hosts::Hosts,
    memory::MemoryExport,
    pmem::Opened,
    port::Port,
    protocol::{
        Access,
        Backing,
        Export, //
    },
    take_ptr, //
};
use crate::{
    errno,
    sys::{
        self,
        Counts, //
    }, //
};

/// Connections of one initiator, at most.
const CLIENT_CONNECTIONS: usize = 4 * QUEUES_MAX as usize;
/// Connections of all initiators, at most: a port has capacity for several such subsystems.
const CONNECTIONS_MAX: usize = 16 * CLIENT_CONNECTIONS;
/// Connections without an auth key from one source address, at most, over all initiators.
const SOURCE_CONNECTIONS: usize = CONNECTIONS_MAX / 4;

/// A fence of an initiator; the entry stays after the initiator is admitted again.
struct Fenced {
    client: Name,
    /// Random, new at each fence: a readmitted initiator gets another [`Admitted::instance`].
    times: u64,
    /// The initiator is refused.
    out: bool,
}

struct Inner {
    size: u64,
    read_only: bool,
    /// The path of the exported block device; `None` for memory.
    path: Option<CString>,
    /// The block device is exported as persistent memory.
    pmem: bool,
    /// UUID by which the administrator identifies the block device.
    uuid: Option<Uuid>,
    /// The contents, while the subsystem is enabled.
    export: Option<Export>,
    connections: KVec<Arc<Connection>>,
    hosts: Hosts,
    /// Ports that offer the subsystem.
    ports: KVec<Arc<Port>>,
    /// All initiators that were ever fenced.
    fenced: KVec<Fenced>,
    /// Number of admitted connections.
    admitted: u64,
    /// Number of refused connections.
    refused: u64,
    /// Counters of connections that have ended.
    counts: Counts,
    /// Identity of the contents. For memory: random, new whenever the subsystem is enabled.
    instance: u64,
    /// The initiator and session that have last been admitted to persistent memory for writing.
    holder: Option<Holder>,
}

/// An initiator and its session.
type Holder = (Name, [u8; SESSION]);

impl Inner {
    /// Reads the block device's capacity, and announces a change to all initiators.
    fn measure(&self) {
        let changed = self.export.as_ref().and_then(|export| export.measure());
        if let Some(capacity) = changed {
            for connection in &self.connections {
                connection.announce(capacity);
            }
        }
    }

    fn is_enabled(&self) -> bool {
        self.export.is_some()
    }
}

/// A subsystem. Exported memory keeps its contents while the subsystem is enabled.
#[pin_data]
pub(crate) struct Subsystem {
    name: Name,
    /// Held while a task enables or disables the subsystem.
    #[pin]
    switch: Mutex<()>,
    #[pin]
    inner: Mutex<Inner>,
    /// Ends the export when its device fails.
    #[pin]
    work: Work<Subsystem>,
}

impl_has_work! {
    impl HasWork<Self> for Subsystem { self.work }
}

impl WorkItem for Subsystem {
    type Pointer = Arc<Subsystem>;

    fn run(this: Arc<Subsystem>) {
        this.end_failed();
    }
}

/// Result of the admission of an initiator.
pub(super) struct Admitted {
    /// Geometry of the export.
    pub(super) geometry: Geometry,
    /// The initiator must not write.
    pub(super) read_only: bool,
    /// Completed writes are durable only after a commit.
    pub(super) persistent: bool,
    /// Access to the export.
    pub(super) access: Access,
    /// See [`Welcome::instance`](kfabric::pure::blk::Welcome::instance).
    pub(super) instance: u64,
    /// Connections that this one replaces; they must end before the initiator gets its answer.
    pub(super) stale: KVec<Arc<Connection>>,
}

impl Subsystem {
    /// Makes a subsystem that is not enabled.
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        let inner = Inner {
            size: 0,
            read_only: false,
            path: None,
            pmem: false,
            uuid: None,
            export: None,
            connections: KVec::new(),
            hosts: Hosts::new(),
            ports: KVec::new(),
            fenced: KVec::new(),
            admitted: 0,
            refused: 0,
            counts: Counts::default(),
            instance: 0,
            holder: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                name,
                switch <- new_mutex!((), "kfblk_switch"),
                inner <- new_mutex!(inner, "kfblk_subsystem"),
                work <- new_work!("Subsystem::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the subsystem's name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns whether the subsystem is enabled with a block device.
    pub(super) fn is_block_backed(&self) -> bool {
        let inner = self.inner.lock();
        inner.export.as_ref().is_some_and(Export::is_block_backed)
    }

    /// Admits an initiator on `connection`. From then on [`Subsystem::fence`] finds the
    /// connection's keys.
    ///
    /// # Errors
    ///
    /// - `EACCES` if the initiator's auth key does not allow its name.
    /// - `EKEYREVOKED` if the initiator is fenced.
    /// - `ENODEV` if the subsystem is not enabled.
    /// - `EBUSY` if the export is persistent memory that may be written, and another session has a
    ///   connection. A flush covers the writes of one session.
    /// - `EDQUOT` if the limit of connections is reached: of the initiator, of its address without
    ///   an auth key, or of the subsystem.
    /// - `ESTALE` if a later connection of the initiator's session is admitted, or the disk reconnects
    ///   to persistent memory to which another session was admitted meanwhile.
    /// - `EPROTONOSUPPORT` if the export is persistent memory, and the initiator does not commit.
    /// - Errors of the registration.
    pub(super) fn admit(
        &self,
        domain: &Arc<Domain>,
        hello: &Hello,
        connection: &Arc<Connection>,
    ) -> Result<Admitted> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if !connection.may_say(&inner.hosts, &hello.client) {
            return Err(EACCES);
        }
        let mut instance = inner.instance;
        if let Some(fenced) = inner.fenced.iter().find(|of| of.client == hello.client) {
            if fenced.out {
                return Err(errno::ekeyrevoked());
            }
            instance = instance.wrapping_add(fenced.times);
        }
        let (mut all, mut own, mut near) = (0, 0, 0);
        for other in inner.connections.iter().filter(|of| of.counts(hello)) {
            all += 1;
            own += usize::from(other.is_of(&hello.client));
            near += usize::from(!other.is_proven() && other.source() == connection.source());
        }
        let crowded = near >= SOURCE_CONNECTIONS && !connection.is_proven();
        if all >= CONNECTIONS_MAX || own >= CLIENT_CONNECTIONS || crowded {
            return Err(errno::edquot());
        }
        let export = inner.export.as_mut().ok_or(ENODEV)?;
        if export.has_failed() {
            return Err(ENODEV);
        }
        if export.is_persistent() && !hello.commits {
            return Err(errno::eprotonosupport());
        }
        // A disk flushes its own writes alone, so no other disk may write meanwhile. Nor may a disk
        // go on after another one: its flushes would not cover that one's writes, and its requests
        // were meant for the earlier contents.
        let alone = export.is_persistent() && !export.is_read_only();
        let holder = alone.then_some((hello.client, hello.session));
        if alone && hello.resumes && inner.holder.is_some_and(|of| Some(of) != holder) {
            return Err(errno::estale());
        }
        if alone && inner.connections.iter().any(|of| of.is_rival(hello)) {
            return Err(EBUSY);
        }
        let access = export.access(domain)?;
        let mut stale = KVec::new();
        for other in &inner.connections {
            if other.is_behind(hello) {
                return Err(errno::estale());
            }
            // Late writes of a former disk of that name, or of a closing connection, must not
            // overwrite writes of this connection.
            let is_late = other.is_ending() && (alone || other.is_of(&hello.client));
            if other.is_before(hello) || is_late {
                stale.push(other.clone(), GFP_KERNEL)?;
            }
        }
        inner.connections.push(connection.clone(), GFP_KERNEL)?;
        inner.holder = holder;
        inner.measure();
        let export = inner.export.as_ref().ok_or(ENODEV)?;
        Ok(Admitted {
            geometry: export.geometry(),
            read_only: export.is_read_only(),
            persistent: export.is_persistent(),
            access,
            instance,
            stale,
        })
    }

    /// Records that the initiator of `connection` has its answer, with capacity `told`. From now
    /// on, it gets announcements. Announces the capacity now if it has changed meanwhile.
    pub(super) fn welcomed(&self, connection: &Connection, told: u64) {
        let inner = self.inner.lock();
        connection.is_welcomed();
        let now = inner.export.as_ref().map(|of| of.geometry().capacity);
        if let Some(now) = now.filter(|now| *now != told) {
            connection.announce(now);
        }
    }

    /// Counts an admitted or refused connection.
    pub(super) fn count(&self, admitted: bool) {
        let mut inner = self.inner.lock();
        match admitted {
            true => inner.admitted += 1,
            false => inner.refused += 1,
        }
    }

    /// Returns whether initiators without an auth key are admitted.
    pub(super) fn is_for_all(&self) -> bool {
        self.inner.lock().hosts.any()
    }

    /// Adds `port` to the ports that offer the subsystem.
    pub(super) fn add_port(&self, port: &Arc<Port>) -> Result {
        let mut inner = self.inner.lock();
        inner.ports.push(port.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Removes `port` from the ports that offer the subsystem.
    pub(super) fn drop_port(&self, port: &Port) {
        let taken = take_ptr(&mut self.inner.lock().ports, port);
        drop(taken);
    }

    /// Adds the auth keys of allowed initiators that are not in `keys` yet.
    pub(super) fn add_keys(&self, keys: &mut KVec<AuthKey>) -> Result {
        for key in self.inner.lock().hosts.keys() {
            if !keys.iter().any(|of| of.is(key)) {
                keys.push(key.clone(), GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Changes the allowed initiators. After the return, no write lands of an initiator that is no
    /// longer allowed. Ports then listen with the new auth keys, at once or as soon as they can.
    ///
    /// # Errors
    ///
    /// Nothing is changed on errors.
    ///
    /// - `ENOMEM` if an allocation before the change fails.
    /// - Errors of `change`.
    fn believe(&self, change: impl FnOnce(&mut Hosts) -> Result) -> Result {
        let (lost, ports) = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let mut lost = KVec::with_capacity(inner.connections.len(), GFP_KERNEL)?;
            let mut ports = KVec::with_capacity(inner.ports.len(), GFP_KERNEL)?;
            change(&mut inner.hosts)?;
            for connection in inner
                .connections
                .iter()
                .filter(|of| !of.is_believed(&inner.hosts))
            {
                lost.push(connection.clone(), GFP_KERNEL)?;
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

    /// Revokes the keys of all connections, and schedules their end. Waits for the revocations
    /// only.
    fn expel(connections: KVec<Arc<Connection>>) {
        for connection in &connections {
            connection.revoke();
        }
        for connection in connections {
            connection.doom();
        }
    }

    /// Removes a connection that has ended, and adds its counters to the subsystem's.
    pub(super) fn forget(&self, connection: &Connection) {
        let taken = {
            let mut inner = self.inner.lock();
            let taken = take_ptr(&mut inner.connections, connection);
            if taken.is_some() {
                inner.counts.add(&connection.counters());
            }
            taken
        };
        drop(taken);
    }

    /// Returns whether the memory is registered with a domain that `which` selects.
    pub(super) fn has_registration(&self, which: impl Fn(&Domain) -> bool) -> bool {
        let inner = self.inner.lock();
        let export = inner.export.as_ref();
        export.is_some_and(|export| export.is_registered(&which))
    }

    /// Ends the registrations with domains that `which` selects.
    pub(super) fn close_registrations(&self, which: impl Fn(&Domain) -> bool) {
        loop {
            let taken = {
                let mut inner = self.inner.lock();
                let export = inner.export.as_mut();
                export.and_then(|export| export.take_registration(&which))
            };
            if taken.is_none() {
                return;
            }
        }
    }

    /// Ends all connections, the last added first. Allocates no memory.
    fn end_connections(&self) {
        loop {
            // Listed until its keys are revoked, so that a concurrent fence waits for them too.
            let last = self.inner.lock().connections.last().cloned();
            match last {
                Some(connection) => connection.end(),
                None => return,
            }
        }
    }

    fn enable(this: &Arc<Self>) -> Result {
        let _switch = this.switch.lock();
        let (size, path, read_only, pmem) = {
            let inner = this.inner.lock();
            if inner.is_enabled() {
                return Ok(());
            }
            let path = inner.path.as_deref().map(CString::try_from);
            (inner.size, path.transpose()?, inner.read_only, inner.pmem)
        };
        // Opened or allocated without `inner`, because it may take long and a fence needs `inner`.
        let memory = match path {
            Some(path) if pmem => Self::open_pmem(this, &path, read_only)?,
            Some(path) => {
                let device = Device::open(&path, read_only, ptr::from_ref(&**this).cast())?;
                let mut inner = this.inner.lock();
                let name = this.name.as_str().as_bytes();
                inner.instance = identity(name, path.to_bytes(), inner.uuid.as_ref());
                inner.export = Some(Export::Block(device));
                return Ok(());
            }
            None if pmem => return Err(EINVAL),
            None => MemoryExport::new(size, read_only)?,
        };
        let mut inner = this.inner.lock();
        inner.instance = u64::from_ne_bytes(sys::random());
        inner.holder = None;
        inner.export = Some(Export::Memory(memory));
        Ok(())
    }

    /// Opens a block device as persistent memory. Logs why it cannot be exported.
    ///
    /// # Errors
    ///
    /// - `EIO` if the device has a known bad block, or its memory has failed.
    /// - Errors of [`Opened::new`] and of [`MemoryExport::of_device`].
    fn open_pmem(this: &Arc<Self>, path: &CStr, read_only: bool) -> Result<MemoryExport> {
        let opened = Opened::new(path, read_only, this);
        let export = opened.and_then(MemoryExport::of_device);
        let (name, path) = (this.name.as_str(), path.to_str().unwrap_or_default());
        match export {
            Err(e) if e == errno::ehwpoison() => {
                pr_warn!("export {name}: {path} has bad blocks\n");
                return Err(EIO);
            }
            Err(e) if e == errno::eopnotsupp() => pr_warn!(
                "export {name}: {path} is not persistent memory that processors can make durable; \
                 export it as a block device\n"
            ),
            _ => {}
        }
        export
    }

    /// Ends the export if its persistent memory has failed, or the memory's device is removed.
    fn end_failed(&self) {
        let _switch = self.switch.lock();
        let failed = {
            let mut inner = self.inner.lock();
            match inner.export.as_ref().is_some_and(Export::has_failed) {
                true => inner.export.take(),
                false => None,
            }
        };
        if failed.is_some() {
            pr_err!(
                "export {}: its persistent memory has failed or is removed; the export is disabled\n",
                self.name.as_str()
            );
            self.end_connections();
        }
        drop(failed);
    }

    /// Disables the subsystem: after the return, no peer accesses the memory or the block device.
    pub(super) fn disable(&self) {
        let _switch = self.switch.lock();
        let export = self.inner.lock().export.take();
        self.end_connections();
        drop(export);
    }

    /// Changes settings that are fixed while the subsystem is enabled.
    fn set(&self, set: impl FnOnce(&mut Inner)) -> Result {
        // A task that enables the subsystem has read the settings already.
        let _switch = self.switch.lock();
        let mut inner = self.inner.lock();
        if inner.is_enabled() {
            return Err(EBUSY);
        }
        set(&mut inner);
        Ok(())
    }

    /// Reads the block device's capacity, and announces a change to all initiators.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the subsystem is not enabled with a block device.
    fn revalidate(&self) -> Result {
        let inner = self.inner.lock();
        if !inner.export.as_ref().is_some_and(Export::is_block_backed) {
            return Err(ENODEV);
        }
        inner.measure();
        Ok(())
    }

    /// Fences an initiator: revokes its keys and stops its requests.
    ///
    /// After the return, none of its writes lands. The initiator is refused until it is admitted
    /// again. An admitted initiator sees another instance, so its old disk does not retry requests.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if an allocation fails; nothing is changed.
    fn fence(&self, client: Name) -> Result {
        let times = u64::from_ne_bytes(sys::random());
        let mut found = KVec::new();
        {
            let mut inner = self.inner.lock();
            found.reserve(inner.connections.len(), GFP_KERNEL)?;
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
            for connection in inner.connections.iter().filter(|of| of.is_of(&client)) {
                found.push(connection.clone(), GFP_KERNEL)?;
            }
        }
        let count = found.len();
        Self::expel(found);
        pr_notice!(
            "export {}: client {} fenced, {} connections ended\n",
            self.name.as_str(),
            client.as_str(),
            count
        );
        Ok(())
    }

    fn admit_again(&self, client: Name) -> Result {
        let mut inner = self.inner.lock();
        let fenced = inner
            .fenced
            .iter_mut()
            .find(|of| of.client == client && of.out);
        fenced.ok_or(ENOENT)?.out = false;
        drop(inner);
        pr_notice!(
            "export {}: client {} admitted\n",
            self.name.as_str(),
            client.as_str()
        );
        Ok(())
    }
}
