// SPDX-License-Identifier: GPL-2.0
//! Fabrics (`fi_fabric(3)`): a provider, in one network namespace.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    base::{
        name::{
            name_str,
            Name, //
        },
        parent::{
            Children,
            Parent, //
        },
        share::{
            Portion,
            Share, //
        },
    },
    provider::{
        registry::{
            self,
            ProviderRef, //
        },
        Provider, //
    },
    sys::net::Net,
    uapi::{
        InfoEntry,
        KFI_AUTH_CM_DATA, //
    },
};

/// A provider, as seen from one network namespace.
pub struct Fabric {
    provider: ProviderRef,
    name: Name,
    net: Net,
    /// The limits of the user whose program opened the fabric, if the user has limits.
    share: Option<Share>,
    children: Children,
}

impl Parent for Fabric {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Fabric {
    /// Opens fabric `name` (empty: the first one) of `provider`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such provider, or it has no such fabric in this namespace.
    pub fn open(net: Net, provider: &str, name: &str) -> Result<Arc<Self>> {
        Self::make(net, provider, name, None)
    }

    /// As [`Fabric::open`], for a program of the current user.
    pub(crate) fn open_for_program(net: Net, provider: &str, name: &str) -> Result<Arc<Self>> {
        let share = Share::current(provider, "")?;
        Self::make(net, provider, name, share)
    }

    fn make(net: Net, provider: &str, name: &str, share: Option<Share>) -> Result<Arc<Self>> {
        let provider = registry::find(provider)?;
        if !name.is_empty() {
            let mut offered = KVec::new();
            provider
                .get()
                .getinfo(&net, &InfoEntry::default(), &mut offered)?;
            let is_it = |entry: &InfoEntry| name_str(&entry.fabric_name) == Ok(name);
            if !offered.iter().any(is_it) {
                return Err(ENOENT);
            }
        }
        let fabric = Self {
            provider,
            name: Name::new(name),
            net,
            share,
            children: Children::new(),
        };
        Ok(Arc::new(fabric, GFP_KERNEL_ACCOUNT)?)
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        self.provider.get()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Counts a connection request for the user whose program opened the fabric.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's maximum of requests wait already.
    pub(crate) fn count_request(&self) -> Result<Option<Portion>> {
        self.share.as_ref().map(Share::request).transpose()
    }

    /// The namespace that the fabric was opened from.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Application bytes in a connection request to a passive endpoint with or without an auth key:
    /// the maximum over the fabric's devices.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the list of devices cannot be allocated.
    pub(crate) fn request_size(&self, keyed: bool) -> Result<u32> {
        let mut offered = KVec::new();
        let all = InfoEntry::default();
        self.provider().getinfo(&self.net, &all, &mut offered)?;
        let any = self.name().is_empty();
        let ours = |entry: &&InfoEntry| any || name_str(&entry.fabric_name) == Ok(self.name());
        let sizes = offered.iter().filter(ours).map(|entry| entry.cm_data_size);
        Ok(cm_data_room(sizes.max().unwrap_or(0), keyed))
    }

    /// Closes the fabric; `EBUSY` if a domain, event queue or passive endpoint is open on it.
    pub fn close(&self) -> Result {
        self.children.close()
    }
}

/// Application bytes among a request's `size` bytes: an auth key's proof takes some.
pub(super) fn cm_data_room(size: u32, keyed: bool) -> u32 {
    // CAST: A small number.
    let room = KFI_AUTH_CM_DATA as u32;
    if keyed {
        size.min(room)
    } else {
        size
    }
}
