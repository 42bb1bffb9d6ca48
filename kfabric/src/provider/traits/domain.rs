// SPDX-License-Identifier: GPL-2.0
//! Domains: open devices, and their protection groups.

use core::any::Any;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    endpoint::{
        ConnRequestOps,
        EndpointAttr,
        EndpointOps, //
    },
    key::{
        KeyAssign,
        KeyCounts,
        KeyOps,
        KeyValues, //
    },
    proof::Proof,
    region::RegionOps,
    sinks::EndpointSink, //
};
use crate::{
    base::errno::eopnotsupp,
    memory::Memory,
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    },
    sys::net::Net, //
};

/// Capabilities and limits of a domain.
#[derive(Clone, Copy, Default)]
pub struct DomainAttr {
    /// `KFI_*` capabilities.
    pub caps: u64,
    /// `KFI_MR_*` modes that the domain requires.
    pub mr_mode: u64,
    /// Bytes in the longest operation.
    pub max_msg_size: u64,
    /// Bytes that may be injected, at most `KFI_INJECT_MAX`.
    pub inject_size: u32,
    /// Operations that a transmit side can hold.
    pub max_tx_size: u32,
    /// Receives that a receive side can hold.
    pub max_rx_size: u32,
    /// Scatter entries of one operation, at most `KFI_IOV_MAX`.
    pub iov_limit: u32,
    /// Bytes of remote completion data; 0 if operations cannot carry any.
    pub cq_data_size: u32,
    /// Application bytes in a connection request.
    pub cm_data_size: u32,
    /// Approximate number of keys that the device can hold.
    pub max_keys: u64,
    /// How a write reaches the target's processors before it completes, if the writer asks for it
    /// (`KFI_REACH_*`).
    pub visible: u32,
    /// How a write becomes durable before it completes, if the writer asks for it
    /// (`KFI_REACH_*`). If not `KFI_REACH_NO`, `caps` has `KFI_RMA_PMEM`.
    pub durable: u32,
    /// How a key is revoked (`KFI_REVOCATION_*`).
    pub revocation: u32,
    /// Maximum number of pages of a key by fast registration; `u32::MAX`: no limit. A program's key has more
    /// only on devices with full registrations.
    pub max_key_pages: u32,
}

/// An open device.
pub trait DomainOps: Send + Sync {
    /// Returns the domain's capabilities and limits.
    fn attr(&self) -> DomainAttr;

    /// Returns how many values one atomic of this kind can have; `None` if the device does not
    /// support it. Context: any.
    fn atomic(&self, _form: Form, _op: Op, _ty: Datatype) -> Option<usize> {
        None
    }

    /// Returns the size of the longest piece of borrowed pages
    /// ([`OpToken::lent`](crate::ep::OpToken::lent)), in bytes. `None` if one-sided operations do
    /// not accept borrowed pages.
    fn lent_max(&self) -> Option<u32> {
        None
    }

    /// Returns whether operations can complete inside a posting call of this endpoint or its peer.
    /// The poster can then be notified before the call returns.
    fn completes_in_post(&self) -> bool {
        false
    }

    /// Returns how many of the device's keys a region of this memory, a process's, with this access takes at
    /// most, apart from keys for peers.
    fn region_slots(&self, _mem: &Memory, _access: u64) -> u64 {
        0
    }

    /// Maps pinned memory for local use. Peers get no access by it (P1).
    ///
    /// `access` has the `KFI_*` access bits that the region may ever be used for. For user memory
    /// the caller is the owner's process ([`Memory::user`]). `group` is the protection group whose
    /// endpoints use the region; `None` for the domain's own. If the provider supports it,
    /// endpoints of the domain's other groups can use the region too.
    fn register(
        &self,
        mem: &Arc<Memory>,
        access: u64,
        group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>>;

    /// Creates a protection group. Peers of the group's endpoints can access the group's exports,
    /// and nothing else; no other peers can. Exports without a group are in the domain's own.
    ///
    /// With a `proof`, an endpoint of the group connects only to a peer whose kernel has proven
    /// that auth key. The provider proves the key to the peer in turn (see
    /// [`proof`](crate::pure::proof)). If the peer fails, the sink gets `EKEYREJECTED`.
    ///
    /// `values` says when a key value may be issued again. A group with [`KeyValues::Own`] has one
    /// endpoint and never another.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider cannot separate groups.
    fn group(
        &self,
        _proof: Option<Arc<dyn Proof>>,
        _values: KeyValues,
    ) -> Result<Arc<dyn GroupOps>> {
        Err(eopnotsupp())
    }

    /// Assigns keys to slots of this domain, in order, as a pipeline where the device can.
    ///
    /// The batch has at most [`CHAIN`](crate::key::CHAIN) slots. It has more than one only if they
    /// [chain](KeyOps::chains). The core has checked ranges and rights. No slot is in the
    /// batch twice, none has a key, and the core makes no other call on the slots meanwhile. When
    /// this returns the keys are valid everywhere.
    ///
    /// # Errors
    ///
    /// The number of slots, from the start, that have their keys, and the next slot's error. No
    /// later slot has a key, and no peer can access anything by a partly made one.
    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)>;

    /// Revokes the keys of slots of this domain, each as [`KeyOps::revoke`] does for a slot that gets
    /// another key. A provider may execute them together.
    ///
    /// No slot is listed twice, and the core makes no other call on the slots meanwhile.
    fn revoke_keys(&self, slots: &[&dyn KeyOps]) {
        slots.iter().for_each(|slot| slot.revoke(false));
    }

    /// Returns counts of the values of the domain's keys. Zeros if the provider accounts for none.
    /// Context: process; may sleep.
    fn key_counts(&self) -> KeyCounts {
        KeyCounts::default()
    }

    /// Defers operations posted later on the transmit sides of this domain's endpoints. They are
    /// accepted, and released when [`DomainOps::resume`] was called once for each call of this
    /// function before them. Called only if [`KeyOps::foresee`] succeeds.
    /// Does not sleep.
    fn hold(&self) {}

    /// Undoes one call of [`DomainOps::hold`].
    fn resume(&self) {}

    /// Creates an endpoint; with `request`, the accepting side of it. Peers can access the exports
    /// of `group` through the endpoint; without a group, the exports of the domain's own.
    ///
    /// On success the request is used up; on failure it is unchanged.
    fn endpoint(
        &self,
        net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>>;
}

/// A protection group of a domain: see [`DomainOps::group`]. Its members hold references to it.
pub trait GroupOps: Send + Sync {
    /// Lets the provider downcast to its own type.
    fn as_any(&self) -> &dyn Any;

    /// Returns whether the group, which has [values of its own](KeyValues::Own), has used up 7/8 of
    /// them. Context: any.
    fn is_worn(&self) -> bool {
        false
    }

    /// Returns whether the group has exhausted key values that a new group would have.
    fn is_exhausted(&self) -> bool {
        false
    }
}
