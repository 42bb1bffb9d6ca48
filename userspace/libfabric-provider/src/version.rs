// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules of another version than the plug-in.

use std::sync::Once;

use kfabric::uapi::KFI_ABI_VERSION;
use kfabric::{Errno, Info};

use crate::core;

/// Returns the warning about a kernel whose interface has another version.
fn difference(offers: Result<&[Info], &kfabric::Error>) -> Option<&'static str> {
    let older =
        "the loaded kfabric modules are older than the libfabric plug-in: update the modules";
    match offers {
        Err(e) => match e.errno() {
            // An unknown call, or a structure with fields that the kernel does not know.
            Some(Errno::ENOTTY | Errno::E2BIG) => Some(older),
            _ => None,
        },
        Ok(offers) => match offers.first()?.raw().abi.cmp(&KFI_ABI_VERSION) {
            std::cmp::Ordering::Less => Some(older),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(
                "the loaded kfabric modules are newer than the libfabric plug-in: update the plug-in",
            ),
        },
    }
}

/// Warns once if the kernel's modules have another version.
pub(crate) fn check(offers: Result<&[Info], &kfabric::Error>) {
    static WARNED: Once = Once::new();
    if let Some(text) = difference(offers) {
        WARNED.call_once(|| core::warn(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_the_side_to_update() {
        let offers = |abi| {
            [Info::from_raw(kfabric::uapi::InfoEntry {
                abi,
                ..Default::default()
            })]
        };
        assert_eq!(difference(Ok(&offers(KFI_ABI_VERSION))), None);
        assert_eq!(difference(Ok(&[])), None);
        let text = |abi| difference(Ok(&offers(abi))).unwrap_or_default();
        assert!(text(KFI_ABI_VERSION - 1).ends_with("update the modules"));
        assert!(text(KFI_ABI_VERSION + 1).ends_with("update the plug-in"));
        let error = |errno| kfabric::Error::Open {
            path: "/dev/kfabric".into(),
            errno,
        };
        assert!(difference(Err(&error(Errno::ENOTTY))).is_some());
        assert!(difference(Err(&error(Errno::E2BIG))).is_some());
        assert_eq!(difference(Err(&error(Errno::ENODATA))), None);
    }
}
