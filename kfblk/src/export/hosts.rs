// SPDX-License-Identifier: GPL-2.0
//! Whom a subsystem believes: clients that have auth keys, and whether there may be others.

use kernel::prelude::*;
use kfabric::{
    auth::AuthKey,
    pure::blk::{
        self,
        Name, //
    }, //
};

/// Clients with an auth key, at most.
const HOSTS_MAX: usize = 256;

struct Host {
    client: Name,
    key: AuthKey,
}

/// Whom a subsystem believes.
pub(crate) struct Hosts {
    any: bool,
    list: KVec<Host>,
}

impl Hosts {
    /// All that say they are somebody.
    pub(crate) fn new() -> Self {
        Self {
            any: true,
            list: KVec::new(),
        }
    }

    /// Whether clients without an auth key are believed.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Sets that.
    pub(crate) fn set_any(&mut self, any: bool) {
        self.any = any;
    }

    /// The clients that have one.
    pub(crate) fn clients(&self) -> impl Iterator<Item = &Name> {
        self.list.iter().map(|of| &of.client)
    }

    /// Their auth keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &AuthKey> {
        self.list.iter().map(|of| &of.key)
    }

    /// Whether a connection may say that it is `client`, whose peer has proven to have `key`.
    pub(crate) fn believes(&self, key: Option<&AuthKey>, client: &Name) -> bool {
        let owner = key.and_then(|key| self.list.iter().find(|of| of.key.is(key)));
        let keyed = self.clients().any(|of| of == client);
        blk::believes(owner.map(|of| &of.client), client, keyed, self.any)
    }

    /// From now on `client` has this one.
    ///
    /// # Errors
    ///
    /// `EEXIST`: another client has it. `ENOSPC`: there are enough.
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

    /// It has none any more.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it had none.
    pub(crate) fn remove(&mut self, client: &Name) -> Result {
        let at = self.list.iter().position(|of| of.client == *client);
        drop(self.list.remove(at.ok_or(ENOENT)?));
        Ok(())
    }
}
