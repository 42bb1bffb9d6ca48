// SPDX-License-Identifier: GPL-2.0
//! Keys: assigning a key to a part of a region, and revoking the key.
//!
//! A slot has one of the device's memory regions in reserve, large enough for a fast registration
//! of [`FAST_PAGES`](crate::limits::FAST_PAGES). A larger window needs a region of its own, in larger pages if
//! the memory is contiguous, or a full registration (`ib_reg_user_mr()` of the window), which only the owner
//! of user memory can request. For kernel memory, an assignment of a larger window fails with `EMSGSIZE`.
//!
//! An assignment of many slots posts a chain of fast registrations and waits once. Meanwhile the
//! assigner owns the slots' reserves, and holds no slot's lock.
//!
//! A revocation ends the key by the policy of the device's driver ([`policy`]). On hardware that is a
//! local invalidation: the region stays with the slot, for up to 97 keys. On rxe, an invalidation does
//! not wait for accesses in flight, and a deregistration does. There each key uses up a memory region.
//! After the key is revoked, the revocation obtains the next region, so that an assignment finds all
//! that it needs. If that fails, a worker tries again, and so does the next assignment.
//!
//! A key's value is as unpredictable as the device allows. A value is used again only after all
//! others and after a time of rest ([`key_values`]). Isolation rests on the group's protection domain.
//!
//! For a full registration the device chooses the value. The registration gives peers no access
//! until the value is known to be available ([`Mr::open`]), not even to the answer of a repeated read
//! ([`window::hidden_addr`]). If a device cannot change a registration's access later, an old value
//! is valid for a moment, until it is recognised as not available.
//!
//! One attack remains: a peer's "send with invalidate" ends its key. On rxe it ends any fast registration of the device
//! whose key the peer guesses, in any protection domain. The attack revokes a key; it never gives
//! access.
//!
//! | module | contents |
//! |---|---|
//! | [`slot`] | a key slot, its states and its reserve |
//! | [`assign`] | assignment of one slot or many |
//! | [`fast`], [`full`] | the two kinds of registration |
//! | [`revoke`], [`policy`] | revocation of one slot's key or many; each driver's way |
//! | [`window`] | a part of a memory, and its address for peers |
//! | [`key_values`] | sources of key values |
//! | [`group`] | protection groups, and the regions that they keep |
//! | [`index`] | the keys of a group by their values |
//! | [`write_back`] | writing bytes under a key back, for a peer's commit |
//! | [`deferred`] | holds of a domain's operations while ordered keys are assigned |
//!
//! [`Mr::open`]: crate::ib::mr::Mr::open

pub(crate) mod assign;
pub(crate) mod deferred;
pub(crate) mod fast;
pub(crate) mod full;
pub(crate) mod group;
mod index;
pub(crate) mod key_values;
pub(crate) mod policy;
pub(crate) mod revoke;
pub(crate) mod slot;
pub(crate) mod window;
pub(crate) mod write_back;
