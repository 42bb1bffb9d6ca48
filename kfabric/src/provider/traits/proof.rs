// SPDX-License-Identifier: GPL-2.0
//! The proof of an auth key.

use crate::pure::proof::Mac;

/// An auth key as a provider uses it: computes the proof for a peer's kernel, and checks the peer's
/// proof. The provider never gets the key's bytes.
pub trait Proof: Send + Sync {
    /// Returns the MAC of the auth key's length and `text`.
    fn prove(&self, text: &[u8]) -> Mac;

    /// Returns whether `mac` is the MAC of `text`, in a time that does not depend on the
    /// difference.
    fn check(&self, text: &[u8], mac: &Mac) -> bool;
}
