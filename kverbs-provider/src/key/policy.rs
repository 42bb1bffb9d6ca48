// SPDX-License-Identifier: GPL-2.0
//! The policies of each driver: how a key made by fast registration is revoked, where the
//! administrator may choose (`/sys/module/kverbs/parameters/revoke`), how the device numbers its
//! regions, the sizes of its pages, whether it registers a program's memory for the kernel, and whether for keys.
//!
//! `docs/design/keys-on-devices.md` has the reasons.

use crate::{
    ib::{
        self,
        device::Device,
        raw, //
    },
    limits::{
        FAST_PAGES,
        LARGE_PAGE,
        WIDE_PAGES, //
    }, //
};
use kernel::page::PAGE_SIZE;
use kfabric::pure::key_ledger::RECORDS;

/// A way to revoke a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// The region is deregistered, and the next key needs another region.
    Deregister,
    /// A local invalidation (`IB_WR_LOCAL_INV`) of the key completes. The region gets the next key.
    Invalidate,
}

/// Returns whether a completed local invalidation by any queue pair is a fence on a driver's
/// devices. A driver that is not listed deregisters.
fn is_fence(driver: raw::rdma_driver_id) -> bool {
    matches!(
        driver,
        raw::rdma_driver_id_RDMA_DRIVER_MLX5
            | raw::rdma_driver_id_RDMA_DRIVER_MLX4
            | raw::rdma_driver_id_RDMA_DRIVER_BNXT_RE
            | raw::rdma_driver_id_RDMA_DRIVER_IRDMA
            | raw::rdma_driver_id_RDMA_DRIVER_QEDR
    )
}

/// Returns whether a device numbers its regions upwards, so that a freed index comes again only after
/// all others. Of the others, some hand out the same indices for ever.
pub(crate) fn counts_up(device: &Device) -> bool {
    matches!(
        device.policy_driver(),
        // `rxe_pool.c` (`xa_alloc_cyclic()`), and `mlx4_bitmap_alloc()`. siw begins at random in 2^24 (`siw_mr_add_mem()`).
        raw::rdma_driver_id_RDMA_DRIVER_RXE
            | raw::rdma_driver_id_RDMA_DRIVER_SIW
            | raw::rdma_driver_id_RDMA_DRIVER_MLX4
    )
}

/// Returns the number of key values that a user may draw at once: an eighth of those that can be in use
/// or rest. Within the time of a rest a user draws a quarter at most, and spends a third: a region that is
/// invalidated skips the last values of each half.
pub(crate) fn user_values(device: &Device) -> u32 {
    let indices = match counts_up(device) {
        true => device.max_mr(),
        false => device.max_resting(),
    };
    indices.clamp(1, RECORDS) * (256 / 8)
}

/// Returns whether a driver's `ib_reg_user_mr()` reads the caller's `udata`. The kernel has none: the
/// pointer is null.
fn reads_udata(driver: raw::rdma_driver_id) -> bool {
    matches!(
        driver,
        raw::rdma_driver_id_RDMA_DRIVER_IRDMA | raw::rdma_driver_id_RDMA_DRIVER_MTHCA
    )
}

/// Returns whether `ib_reg_user_mr()` works on a device. Whatever driver a test pretends, the device's
/// own is asked too.
pub(crate) fn registers_user(device: &Device) -> bool {
    !reads_udata(device.driver()) && !reads_udata(device.policy_driver())
}

/// Returns the kernel file that shows why keys by full registration are allowed on a driver's devices,
/// although rights cannot be given later. In a full registration the device chooses the value, so
/// peers have rights before kverbs knows whether the value is new.
fn allows_full(driver: raw::rdma_driver_id) -> Option<&'static str> {
    match driver {
        // `siw_mr_add_mem()` draws the index at random from 2^24. A value comes again only by chance, and
        // siw keeps fewer promises anyway (docs/devices.md).
        raw::rdma_driver_id_RDMA_DRIVER_SIW => Some("drivers/infiniband/sw/siw/siw_verbs.c"),
        _ => None,
    }
}

/// Returns whether keys of a device can have windows that only a full registration covers.
pub(crate) fn registers_keys(device: &Device) -> bool {
    let safe = device.opens() || allows_full(device.policy_driver()).is_some();
    safe && registers_user(device)
}

/// Returns the maximum number of pages of a key by fast registration. If the device
/// [has no others](registers_keys), no key of a program has more.
pub(crate) fn key_pages(device: &Device) -> u32 {
    let most = match registers_keys(device) {
        true => FAST_PAGES,
        false => WIDE_PAGES,
    };
    device.max_fast_reg_pages().min(most)
}

/// Returns the page sizes of a device's fast registrations that are larger than the kernel's pages, as a set of
/// powers of two. A driver that is not listed has none.
pub(crate) fn large_pages(device: &Device) -> u64 {
    let sizes = match device.policy_driver() {
        // The work request has the size of the pages: `set_reg_mkey_seg()` of mlx5, `set_reg_seg()` of mlx4,
        // `bnxt_re_build_reg_wqe()`, `qedr_prepare_reg()`, `ionic_prep_reg()`, `set_frmr_seg()` of hns.
        // `rxe_map_mr_sg()` divides the pages into those of the kernel.
        raw::rdma_driver_id_RDMA_DRIVER_MLX5
        | raw::rdma_driver_id_RDMA_DRIVER_MLX4
        | raw::rdma_driver_id_RDMA_DRIVER_BNXT_RE
        | raw::rdma_driver_id_RDMA_DRIVER_QEDR
        | raw::rdma_driver_id_RDMA_DRIVER_IONIC
        | raw::rdma_driver_id_RDMA_DRIVER_HNS
        | raw::rdma_driver_id_RDMA_DRIVER_RXE => device.page_sizes(),
        // `irdma_alloc_mr()` tells the firmware the length of the page list in pages of 4 KiB, and no kernel file
        // shows that a longer registration is valid. siw has no pages: its list has the pieces of the memory.
        _ => 0,
    };
    let larger = 2 * LARGE_PAGE - 2 * PAGE_SIZE;
    // CAST: A `u64` has as many bits.
    sizes & larger as u64
}

impl Revocation {
    /// Returns how `device` revokes keys now.
    pub(crate) fn of(device: &Device) -> Self {
        match ib::revoke() {
            _ if device.max_fast_reg_pages() == 0 => Self::Deregister,
            raw::kverbs_revoke_KVERBS_REVOKE_DEREGISTER => Self::Deregister,
            raw::kverbs_revoke_KVERBS_REVOKE_INVALIDATE => Self::Invalidate,
            _ if is_fence(device.policy_driver()) => Self::Invalidate,
            _ => Self::Deregister,
        }
    }
}
