// SPDX-License-Identifier: GPL-2.0
//! Key slots, and the assignments of their keys.

use core::any::Any;

use kernel::prelude::*;

use crate::{
    base::errno::eopnotsupp,
    uapi::KFI_KEY_NOTAVAIL, //
};

/// Key value and address by which a peer accesses an assigned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: u64,
    /// The address of the range's first byte.
    pub remote_addr: u64,
}

impl KeyValue {
    /// The value of a slot without a key.
    pub const NONE: Self = Self {
        key: KFI_KEY_NOTAVAIL,
        remote_addr: 0,
    };
}

/// A requested assignment: an element of the batch of
/// [`DomainOps::assign_keys`](super::DomainOps::assign_keys).
pub struct KeyAssign<'a> {
    /// The slot.
    pub slot: &'a dyn KeyOps,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of peers (`KFI_REMOTE_*` bits).
    pub access: u64,
    /// The first operation that uses the key ends it: the second one fails, even if both arrive at
    /// once. Only if [`DomainAttr::caps`](super::DomainAttr::caps) has `KFI_SINGLE_USE_KEYS`.
    pub once: bool,
    /// Out: the key.
    pub value: KeyValue,
}

/// A key slot, which gets its keys by [`DomainOps::assign_keys`](super::DomainOps::assign_keys). The
/// core makes one call at a time on one slot, except [`renew`](Self::renew). The drop revokes the
/// key.
pub trait KeyOps: Send + Sync {
    /// Lets the provider downcast to its own type.
    fn as_any(&self) -> &dyn Any;

    /// Returns whether a key for [offset, offset + len) can be made in a batch, in bounded time. If
    /// not, because the assignment may wait for the program, the core assigns the key alone.
    fn chains(&self, _offset: u64, _len: u64) -> bool {
        true
    }

    /// Returns whether [`KeyOps::foresee`] is supported.
    fn foresees(&self) -> bool {
        false
    }

    /// Returns the key value of the next assignment, for a window that [chains](KeyOps::chains).
    /// The core's next call on the slot is that assignment, or [forget](KeyOps::forget).
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider cannot predict values or defer operations
    ///   ([`DomainOps::hold`](super::DomainOps::hold)).
    fn foresee(&self, _offset: u64, _len: u64) -> Result<KeyValue> {
        Err(eopnotsupp())
    }

    /// Discards the foreseen key value. It counts as spent, because the caller has passed it on.
    fn forget(&self) {}

    /// Returns whether the slot has a used-up single-use key.
    fn used(&self) -> bool {
        false
    }

    /// Revokes the key. After the return no byte is read or written through it (P3). Does nothing
    /// on a slot without a key. Cannot fail: if the hardware refuses, the provider ends the
    /// connection or the device.
    ///
    /// If `last`, the slot gets no key any more, so the provider keeps nothing for one.
    fn revoke(&self, last: bool);

    /// Refills the reserve of the slot if the last key has used it up
    /// ([`RegionOps::alloc_key`](super::RegionOps::alloc_key)).
    ///
    /// The core calls it after each [`KeyOps::revoke`] and each failed assignment, if the slot can
    /// get another key. It can run beside any other call on the slot. The refill is complete when
    /// this returns, and waits for no registration. If resources are short, the next assignment
    /// retries the refill.
    ///
    /// With `later` a worker refills, and the caller does not wait.
    fn renew(&self, _later: bool) {}
}

/// Rules for the key values of a protection group.
///
/// A value that was in a key is issued again in the group only after all others that the device
/// offers, and after a time of rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValues {
    /// The rule above holds.
    Again,
    /// The group gets no value twice. If the device offers no other, assignments fail.
    Strict,
    /// As `Strict`, and the values do not depend on other groups. Equal values of other groups are
    /// at other addresses. For kernel memory only.
    Own,
}

/// Counts of the values of a domain's keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyCounts {
    /// Values that were in a key, were returned to a caller or are in a slot's reserve.
    pub used: u64,
    /// Those of them that were used before by any domain: all others had been used, and had rested.
    pub reused: u64,
    /// Keys whose end left their memory region's index without a value.
    pub worn: u64,
    /// Values of all domains of the user that count in the user's budget. 0 if the user has none.
    pub spent: u64,
}
