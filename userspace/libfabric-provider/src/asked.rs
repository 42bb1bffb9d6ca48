// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of a passive endpoint's info. The infos of connection requests have
//! the same attributes, as if they were copies of that info.

use std::ffi::c_int;

use crate::ffi::*;
use crate::info::with_directions;
use crate::provider;

/// Attributes of the sends or of the receives.
#[derive(Clone, Copy)]
struct Direction {
    op_flags: u64,
    msg_order: u64,
    comp_order: u64,
    size: usize,
    iov_limit: usize,
}

/// Attributes of the domain.
#[derive(Clone, Copy)]
struct DomainWishes {
    threading: fi_threading,
    control_progress: fi_progress,
    data_progress: fi_progress,
    av_type: fi_av_type,
    mr_mode: c_int,
    data: usize,
}

/// Attributes of a passive endpoint's info.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// 0 for all.
    caps: u64,
    mode: u64,
    version: u32,
    tx: Option<Direction>,
    rx: Option<Direction>,
    domain: Option<DomainWishes>,
}

/// Copies the fields of [`Direction`] between structures of libfabric, which have the same names.
macro_rules! direction {
    ($from:expr) => {
        Direction {
            op_flags: $from.op_flags,
            msg_order: $from.msg_order,
            comp_order: $from.comp_order,
            size: $from.size,
            iov_limit: $from.iov_limit,
        }
    };
    ($from:expr => $to:expr) => {
        $to.op_flags = $from.op_flags;
        $to.msg_order = $from.msg_order;
        $to.comp_order = $from.comp_order;
        // Infos that a program has made itself may have no sizes.
        if $from.size != 0 {
            $to.size = $from.size;
        }
        if $from.iov_limit != 0 {
            $to.iov_limit = $from.iov_limit;
        }
    };
}

impl Asked {
    /// Reads the info of a passive endpoint.
    ///
    /// # Safety
    ///
    /// The info's parts are null or valid.
    pub(crate) unsafe fn of(info: &fi_info) -> Self {
        // SAFETY: as the caller vouches.
        unsafe {
            Self {
                caps: info.caps,
                mode: info.mode,
                version: info.fabric_attr.as_ref().map_or(0, |f| f.api_version),
                tx: info.tx_attr.as_ref().map(|tx| direction!(tx)),
                rx: info.rx_attr.as_ref().map(|rx| direction!(rx)),
                domain: info.domain_attr.as_ref().map(|domain| DomainWishes {
                    threading: domain.threading,
                    control_progress: domain.control_progress,
                    data_progress: domain.__bindgen_anon_1.data_progress,
                    av_type: domain.av_type,
                    mr_mode: domain.mr_mode,
                    data: domain.cq_data_size,
                }),
            }
        }
    }

    /// Gives the info of a connection request these attributes, and the names that libfabric gives
    /// the infos of `fi_getinfo`.
    ///
    /// # Safety
    ///
    /// `info` comes from [`crate::info::make`], and has no other owner yet.
    pub(crate) unsafe fn complete(self, info: &mut fi_info) {
        // SAFETY: `make` allocated all parts; the provider's structure lives for ever.
        let (tx, rx, domain, fabric, provider) = unsafe {
            (
                &mut *info.tx_attr,
                &mut *info.rx_attr,
                &mut *info.domain_attr,
                &mut *info.fabric_attr,
                &*provider(),
            )
        };
        // SAFETY: the provider's name is a C string.
        fabric.prov_name = unsafe { libc::strdup(provider.name) };
        fabric.prov_version = provider.version;
        fabric.api_version = self.version;
        if let Some(asked) = self.tx {
            direction!(asked => tx);
        }
        if let Some(asked) = self.rx {
            direction!(asked => rx);
        }
        if let Some(asked) = self.domain {
            let known = |value, made| if value == 0 { made } else { value };
            // SAFETY: `make` has set this member of the union, which has but one type.
            let progress = unsafe { domain.__bindgen_anon_1.data_progress };
            domain.threading = known(asked.threading, domain.threading);
            domain.control_progress = known(asked.control_progress, domain.control_progress);
            domain.__bindgen_anon_1.data_progress = known(asked.data_progress, progress);
            domain.av_type = asked.av_type;
            if asked.mr_mode != 0 {
                domain.mr_mode = asked.mr_mode;
            }
            if domain.cq_data_size == 0 {
                domain.cq_data_size = asked.data;
            }
        }
        if self.caps != 0 {
            let caps = with_directions(self.caps);
            info.caps &= caps;
            tx.caps &= caps;
            rx.caps &= caps;
            info.mode |= self.mode & FI_RX_CQ_DATA;
            rx.mode |= self.mode & FI_RX_CQ_DATA;
        }
    }
}
