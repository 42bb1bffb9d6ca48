// SPDX-License-Identifier: GPL-2.0
//! The initiators that a subsystem allows: those with auth keys, and optionally all others.

use kernel::prelude::*;
use kfabric::{
    auth::AuthKey,
    pure::blk::{
        self,
        Name, //
    }, //
};

/// Initiators with an auth key, at most.
const HOSTS_MAX: usize = 256;

struct Host {
    client: Name,
    key: AuthKey,
}

/// The initiators that a subsystem allows.
pub(crate) struct Hosts {
    any: bool,
    list: KVec<Host>,
}

impl Hosts {
    /// Allows all initiators, without auth keys.
    pub(crate) fn new() -> Self {
        Self {
            any: true,
            list: KVec::new(),
        }
    }

    /// Returns whether initiators without an auth key are allowed.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Sets whether initiators without an auth key are allowed.
    pub(crate) fn set_any(&mut self, any: bool) {
        self.any = any;
    }

    /// Returns the initiators that have an auth key.
    pub(crate) fn clients(&self) -> impl Iterator<Item = &Name> {
        self.list.iter().map(|of| &of.client)
    }

    /// Returns the initiators' auth keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &AuthKey> {
        self.list.iter().map(|of| &of.key)
    }

    /// Returns whether a peer that has proven `key` may claim the name `client`.
    pub(crate) fn believes(&self, key: Option<&AuthKey>, client: &Name) -> bool {
        let owner = key.and_then(|key| self.list.iter().find(|of| of.key.is(key)));
        let keyed = self.clients().any(|of| of == client);
        blk::believes(owner.map(|of| &of.client), client, keyed, self.any)
    }

    /// Sets the auth key of initiator `client`.
    ///
    /// # Errors
    ///
    /// - `EEXIST` if another initiator has the key.
    /// - `ENOSPC` if the list is full.
    pub(crate) fn set(&mut self, client: Name, key: AuthKey) -> Result {
        let other = |of: &Host| of.client != client && of.key.is(&key);
        if self.list.iter().any(other) {
            return Err(EEXIST);
        }
        if let Some(of) = self.list.iter_mut().find(|of| of.client == client) {
            of.key = key;
            return Ok(());
        }
        if self.list.len() >= HOSTS_MAX {
            return Err(ENOSPC);
        }
        self.list.push(Host { client, key }, GFP_KERNEL)?;
        Ok(())
    }

    /// Removes the auth key of initiator `client`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the initiator has no auth key.
    pub(crate) fn remove(&mut self, client: &Name) -> Result {
        let at = self.list.iter().position(|of| of.client == *client);
        drop(self.list.remove(at.ok_or(ENOENT)?));
        Ok(())
    }
}
