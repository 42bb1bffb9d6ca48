// SPDX-License-Identifier: GPL-2.0
//! The connections of a disk: one for each queue, made and ended together.

use core::sync::atomic::Ordering;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kfabric::{
    base::name::name_str,
    objects::{
        domain::Domain,
        fabric::Fabric,
        waiter::Waiter, //
    },
    provider::registry,
    pure::blk::{
        Hello,
        Welcome, //
    },
};

use super::{
    connection::Address,
    enable::TIMEOUT_MS,
    protocol::AnyConnection,
    Disk,
    Run,
    State, //
};
use crate::{
    errno,
    offer,
    sys::{
        self,
        Block,
        Verdict, //
    }, //
};

/// Size of a page, in bytes.
// CAST: A page has far less than 4 GiB.
const PAGE: u32 = PAGE_SIZE as u32;

/// Limit for making all connections of a disk, in milliseconds. The last step, which may take 20 s
/// more (`PATIENCE_MS`), begins before it.
pub(super) const CONNECT_MS: i64 = 120_000;
/// As [`CONNECT_MS`], for all attempts to replace the connections. All requests wait meanwhile.
pub(super) const RENEW_MS: i64 = 20_000;

impl Disk {
    /// Makes the connections, one for each queue, by steps that begin within `limit` milliseconds.
    ///
    /// # Errors
    ///
    /// - `ECANCELED` if the disk's state has changed, or a task disables the disk and these connections
    ///   do not replace others that worked.
    /// - `ETIMEDOUT` if the connections took too long.
    /// - Errors of [`AnyConnection::connect`].
    pub(super) fn connect(
        &self,
        run: &mut Run,
        limit: i64,
    ) -> Result<(KVec<AnyConnection>, Welcome)> {
        let connected = self.connect_all(run, limit);
        let waiter = self.asking.lock().take();
        drop(waiter);
        connected
    }

    fn connect_all(&self, run: &mut Run, limit: i64) -> Result<(KVec<AnyConnection>, Welcome)> {
        let conf = run.conf.clone().ok_or(EINVAL)?;
        let net = run.net.clone().ok_or(EINVAL)?;
        let traddr = conf.traddr.as_ref().ok_or(EINVAL)?;
        let trsvcid = conf.trsvcid.as_ref().ok_or(EINVAL)?;
        let addr = sys::parse_addr(&net, traddr, trsvcid)?;
        let mut hints = offer::hints(conf.trtype.as_ref());
        hints.dest_addr = addr;
        let all = registry::getinfo(&net, Some(&hints))?;
        let info = all.first().ok_or_else(errno::enodata)?;
        let fabric = Fabric::open(
            net,
            name_str(&info.prov_name)?,
            name_str(&info.fabric_name)?,
        )?;
        let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
        let piece = domain.lent_max().ok_or_else(errno::eopnotsupp)?;
        match run.welcome {
            // The block layer needs segments of at least a page.
            None if piece < PAGE => return Err(errno::eopnotsupp()),
            None => run.piece = piece,
            // Waiting requests were cut for the previous device.
            Some(_) if run.protocol.properties().borrows_pages && piece < run.piece => {
                return Err(ENODEV)
            }
            Some(_) => {}
        }
        run.epoch = run.epoch.wrapping_add(1);
        let mut hello = Hello {
            queue: 0,
            queues: conf.queues,
            epoch: run.epoch,
            session: self.session,
            disk: self.called.number(),
            client: conf.client.ok_or(EINVAL)?,
            subsystem: conf.subsystem.ok_or(EINVAL)?,
            commits: true,
            resumes: run.welcome.is_some(),
        };
        let (state, since) = (self.state(), Instant::<Monotonic>::now());
        let go_on = |waiter: &Arc<Waiter>| -> Result {
            // Publish the waiter first: `give_up` changes the state, then wakes the published
            // waiter.
            let before = self.asking.lock().replace(waiter.clone());
            drop(before);
            // A task that disables the disk needs the renewed connections for its writeback.
            let is_disabled = self.is_disabled() && state != State::Renewing;
            if self.state() != state || is_disabled {
                return Err(errno::ecanceled());
            }
            if since.elapsed().as_millis() > limit {
                return Err(ETIMEDOUT);
            }
            Ok(())
        };
        let mut connections = KVec::with_capacity(conf.queues.into(), GFP_KERNEL)?;
        let mut first: Option<Welcome> = run.welcome;
        if let (Some(first), Some(block)) = (&mut first, run.block) {
            // The block device may have been resized since that answer.
            first.geometry.capacity = block.capacity();
        }
        for queue in 0..conf.queues {
            hello.queue = queue;
            let to = Address {
                domain: &domain,
                addr: &addr,
                auth: conf.auth.as_ref(),
            };
            let (connection, welcome) =
                AnyConnection::connect(&mut run.protocol, &to, &hello, &go_on)?;
            // Waiting requests are for this export, with these contents, and for an initiator that
            // is not fenced.
            if first.is_some_and(|first| !first.is_still(&welcome)) {
                return Err(errno::estale());
            }
            // A flush must not succeed after acknowledged writes were lost. No request is
            // outstanding.
            let lost = |first: Welcome| first.may_have_lost(&welcome) && self.unflushed.is_any();
            if first.is_some_and(lost) {
                pr_warn!(
                    "disk {}: its target has started again, and has lost what was not flushed\n",
                    self.called.as_str()
                );
                return Err(errno::estale());
            }
            first = Some(welcome);
            connections.push(connection, GFP_KERNEL)?;
        }
        Ok((connections, first.ok_or(EINVAL)?))
    }

    /// Links the connections to the disk's queues, so that requests use them.
    pub(super) fn install(
        this: &Arc<Self>,
        run: &mut Run,
        connections: KVec<AnyConnection>,
        block: Block,
    ) {
        this.has_completed.store(false, Ordering::Relaxed);
        this.has_lost.store(false, Ordering::Relaxed);
        for (queue, (connection, slot)) in connections.iter().zip(&this.slots).enumerate() {
            // CAST: There are at most `QUEUES_MAX` queues.
            connection.link(this, block, queue as u32);
            slot.put(connection);
        }
        run.connections = connections;
    }

    /// Handles completions and disconnects that came before [`Self::install`] linked the waiters.
    pub(super) fn look(this: &Arc<Self>, run: &Run) {
        for connection in &run.connections {
            connection.handle_earlier();
        }
        if run
            .connections
            .iter()
            .any(|connection| !connection.is_connected())
        {
            Self::lost(this);
        }
    }

    /// Returns the outcome of requests that are outstanding when their connection is lost.
    pub(super) fn verdict_of_loss(&self) -> Verdict {
        match self.has_served() {
            true => Verdict::Suspect,
            false => Verdict::Again,
        }
    }

    /// Holds requests back and closes the connections. On return, outstanding requests have ended with
    /// `verdict`. If the connections are replaced, first waits until the target has answered the
    /// requests, but no longer than [`TIMEOUT_MS`]: it accepts no new connection before.
    pub(super) fn drop_connections(&self, run: &mut Run, verdict: Verdict) {
        for slot in &self.slots {
            slot.clear();
        }
        if let Some(block) = run.block {
            block.quiesce();
        }
        let since = Instant::<Monotonic>::now();
        while verdict == Verdict::Renewed
            && run.connections.iter().any(AnyConnection::is_busy)
            && since.elapsed().as_millis() < TIMEOUT_MS.into()
        {
            fsleep(Delta::from_millis(1));
        }
        for connection in core::mem::take(&mut run.connections) {
            connection.close(verdict);
        }
        // The next connections report the capacity.
        self.capacity.store(0, Ordering::Relaxed);
    }
}
