// SPDX-License-Identifier: GPL-2.0
//! The initiator of a connection: its name and session, and lines about it.

use core::sync::atomic::Ordering;
use kernel::{
    fmt::Write,
    prelude::*,
    sync::Arc, //
};
use kfabric::pure::blk::{
    Hello,
    Name, //
};

use super::Connection;
use crate::{
    attr::Text,
    export::{
        hosts::Hosts,
        subsystem::Subsystem, //
    },
    sys::{
        Counts,
        Log, //
    }, //
};

/// Identity of the initiator, from its hello, and the subsystem that it named.
pub(super) struct Client {
    pub(super) hello: Hello,
    pub(super) subsystem: Arc<Subsystem>,
}

impl Connection {
    /// Returns whether initiator `client` has this connection.
    pub(in crate::export) fn is_of(&self, client: &Name) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| of.hello.client == *client)
    }

    /// Returns whether `hosts` lets the peer claim the name `client`.
    pub(in crate::export) fn may_say(&self, hosts: &Hosts, client: &Name) -> bool {
        hosts.believes(self.auth.as_ref(), client)
    }

    /// Returns whether `hosts` lets the peer keep the name in its hello.
    pub(in crate::export) fn is_believed(&self, hosts: &Hosts) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| self.may_say(hosts, &of.hello.client))
    }

    /// Returns whether this connection's session is over: the disk of that name has a new session.
    fn is_former(&self, hello: &Hello) -> bool {
        self.client.as_ref().is_some_and(|of| {
            let of = &of.hello;
            of.client == hello.client && of.disk == hello.disk && of.session != hello.session
        })
    }

    /// Returns how many epochs later `hello` is, if it belongs to the same session.
    fn later(&self, hello: &Hello) -> Option<i32> {
        let of = &self.client.as_ref()?.hello;
        // CAST: Epochs wrap around. A distance of more than half the range is negative, which means
        // earlier.
        (of.client == hello.client && of.session == hello.session)
            .then(|| hello.epoch.wrapping_sub(of.epoch) as i32)
    }

    /// Returns whether the connection of `hello` replaces this one: it has a later epoch or
    /// session, or the same epoch and queue.
    pub(in crate::export) fn is_before(&self, hello: &Hello) -> bool {
        let earlier = self.later(hello).is_some_and(|later| {
            let same = |of: &Client| of.hello.queue == hello.queue;
            later > 0 || (later == 0 && self.client.as_ref().is_some_and(same))
        });
        earlier || self.is_former(hello)
    }

    /// Returns whether this connection is another session's than that of `hello`, and will not be
    /// closed or replaced.
    pub(in crate::export) fn is_rival(&self, hello: &Hello) -> bool {
        self.later(hello).is_none() && self.counts(hello) && !self.is_ending()
    }

    /// Returns whether this connection belongs to a later epoch than `hello`.
    pub(in crate::export) fn is_behind(&self, hello: &Hello) -> bool {
        self.later(hello).is_some_and(|later| later < 0)
    }

    /// Returns whether this connection counts against limits when `hello` arrives: it will not be
    /// closed or replaced.
    pub(in crate::export) fn counts(&self, hello: &Hello) -> bool {
        !self.doomed.load(Ordering::Acquire) && !self.is_before(hello)
    }

    /// Returns whether the initiator has named `subsystem`.
    pub(in crate::export) fn serves(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.client
            .as_ref()
            .is_some_and(|of| Arc::ptr_eq(&of.subsystem, subsystem))
    }

    /// Writes a line about the connection, once the initiator has sent its hello.
    pub(in crate::export) fn describe(&self, out: &mut Text<'_>) -> Result {
        if let Some(of) = self.client.as_ref() {
            let keys = self.service.as_ref().map_or(0, |of| of.keys());
            writeln!(
                out,
                "{} queue {} of {} epoch {} keys {}",
                of.hello.client.as_str(),
                of.hello.queue,
                of.hello.queues,
                of.hello.epoch,
                keys
            )?;
        }
        Ok(())
    }

    /// Returns the counters of the connection's requests. One-sided requests of memory-backed
    /// exports do not involve the target's processors, so they are not counted.
    pub(in crate::export) fn counters(&self) -> Counts {
        self.service
            .as_ref()
            .map_or(Counts::default(), |of| of.counts())
    }

    /// Returns the initiator's name, once its hello has arrived.
    pub(in crate::export) fn client(&self) -> Option<Name> {
        Some(self.client.as_ref()?.hello.client)
    }

    /// Writes a line of statistics.
    pub(in crate::export) fn describe_counters(&self, out: &mut Text<'_>) -> Result {
        if let Some(of) = self.client.as_ref() {
            let (client, queue) = (of.hello.client.as_str(), of.hello.queue);
            write!(out, "connection {client} queue {queue} ")?;
            self.counters().write(out)?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// Logs an event of the initiator, on its first connection only. The rate of such lines is
    /// limited.
    pub(super) fn log(&self, event: &str) {
        let first = |of: &&Client| of.hello.queue == 0;
        if let Some(of) = self.client.as_ref().filter(first) {
            if Log::Client.may() {
                pr_info!(
                    "export {}: client {} {}\n",
                    of.subsystem.name().as_str(),
                    of.hello.client.as_str(),
                    event
                );
            }
        }
    }
}
