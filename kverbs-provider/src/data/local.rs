// SPDX-License-Identifier: GPL-2.0
//! The local memory of an operation: scatter entries of registered memory, and the mapping of
//! borrowed pages.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    ib::{
        device::Device,
        dma,
        wr::{
            Sge,
            SgeList, //
        }, //
    },
    key::group::Group,
    region::Region, //
};
use kfabric::{
    ep::{
        OpToken,
        TokenSeg, //
    },
    op::OpKind, //
};

/// Maps the borrowed pages of an operation.
///
/// Locking: caller holds `DataPath::tx`, and the queue pair exists. A device removal takes that
/// lock before it proceeds.
///
/// # Errors
///
/// - `EAGAIN` if the device has no mapping resources left for now. No page is mapped then.
#[inline(always)]
pub(super) fn map_lent(device: &Device, token: &mut OpToken) -> Result {
    if !token.has_lent() {
        return Ok(());
    }
    let writes = token.kind() == OpKind::Read;
    dma::map_lent(device, token.lent_mut(), writes)
}

/// Unmaps the borrowed pages of an operation.
#[inline(always)]
pub(super) fn unmap_lent(device: &Device, token: &mut OpToken) {
    if token.has_lent() {
        let writes = token.kind() == OpKind::Read;
        dma::unmap_lent(device, token.lent_mut(), writes);
    }
}

/// Returns the region of a piece, if it is a region of this provider.
#[inline(always)]
fn region_of(seg: &TokenSeg) -> Option<&Region> {
    seg.region()?.as_any().downcast_ref()
}

/// Calls `each` with every scatter entry of an operation's local memory, for a connection in
/// `group`.
///
/// # Errors
///
/// - `EINVAL` if a region belongs to another provider, or is registered in another group.
/// - An error that `each` returns.
#[inline(always)]
pub(super) fn for_each_sge(
    group: &Arc<Group>,
    token: &OpToken,
    mut each: impl FnMut(Sge) -> Result,
) -> Result {
    for piece in token.lent() {
        each(Sge::new(piece.mapped, piece.len, group.lkey()))?;
    }
    for seg in token.segs() {
        let region = region_of(seg).ok_or(EINVAL)?;
        region.for_each_sge(group, seg.offset, seg.len, &mut each)?;
    }
    Ok(())
}

/// Returns whether siw would send other bytes than those of a message with several scatter entries
/// ([`Device::mixes_up_pieces`]).
pub(super) fn is_mixed_up(device: &Device, token: &OpToken) -> bool {
    let listed = |seg| region_of(seg).is_some_and(Region::has_page_lists);
    device.mixes_up_pieces() && token.segs().any(listed)
}

/// Copies up to `max` scatter entries of an operation into `sges`, and returns the total number.
///
/// # Errors
///
/// The errors of [`for_each_sge`].
pub(super) fn gather(
    group: &Arc<Group>,
    token: &OpToken,
    max: u32,
    sges: &mut SgeList<'_>,
) -> Result<u32> {
    // Fast path: most operations have a single entry.
    let single = token.only_seg().and_then(|seg| {
        let region = region_of(seg)?;
        region.single_sge(group, seg.offset, seg.len)
    });
    if let Some(sge) = single {
        sges.push(sge);
        return Ok(1);
    }
    let mut n: u32 = 0;
    for_each_sge(group, token, |sge| {
        if n < max {
            sges.push(sge);
        }
        n += 1;
        Ok(())
    })?;
    Ok(n)
}
