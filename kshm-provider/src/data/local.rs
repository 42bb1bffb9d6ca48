// SPDX-License-Identifier: GPL-2.0
//! Local memory of an operation.

use crate::{
    region::Region,
    sys::mem::{
        self,
        Piece, //
    }, //
};
use kfabric::ep::OpToken;

/// Returns the pieces of the local memory of `token`: `len` bytes from byte `from` on.
pub(super) fn local(token: &OpToken, from: u64, len: u64) -> impl Iterator<Item = Piece<'_>> {
    let lent = mem::lent_pieces(token.lent(), from as usize, len as usize);
    let mut skip = from as usize;
    let mut left = len as usize;
    let registered = token
        .segs()
        .filter_map(move |seg| {
            let past = skip.min(seg.len);
            skip -= past;
            let n = left.min(seg.len - past);
            left -= n;
            let region = seg.region()?.as_any().downcast_ref::<Region>()?;
            Some(mem::pieces(region.mem(), seg.offset + past, n))
        })
        .flatten();
    // An operation has only one kind of local memory, so one of the two iterators is empty.
    Iterator::chain(lent, registered)
}

/// Returns whether all local memory of an operation is registered with this provider.
pub(super) fn is_ours(token: &OpToken) -> bool {
    token.segs().all(|seg| {
        seg.region()
            .is_some_and(|region| region.as_any().is::<Region>())
    })
}
