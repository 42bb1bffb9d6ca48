// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by the subject of their calls.

pub mod authority;
pub mod blk;
pub mod connecting;
pub mod files;
pub mod memory;
pub mod opening;
pub mod operations;

use super::sweep::Case;

/// Returns every case of a program's calls, and of an administrator's.
pub fn all() -> Vec<&'static Case> {
    [
        files::CASES,
        opening::CASES,
        memory::CASES,
        connecting::CASES,
        operations::CASES,
        authority::CASES,
        blk::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_ioctl_has_a_case() {
        let cases = all();
        for (_, name) in kfabric_uapi::KFI_IOCTLS {
            assert!(cases.iter().any(|case| case.call == *name), "{name}");
        }
        for name in ["open", "close", "mmap", "poll"] {
            assert!(cases.iter().any(|case| case.call == name), "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for case in all() {
            assert!(seen.insert(case.name()), "{} is there twice", case.name());
        }
    }
}
