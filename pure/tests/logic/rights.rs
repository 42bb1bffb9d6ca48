// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::rights::{
    has_remote, key_within, needs_write, op_allowed, valid_key_access, valid_region_access, Use,
    ALL, LOCAL, READ, RECV, REMOTE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, SEND, WRITE,
};

/// Returns every subset of the seven rights.
fn subsets() -> impl Iterator<Item = u64> {
    const RIGHTS: [u64; 7] = [
        SEND,
        RECV,
        READ,
        WRITE,
        REMOTE_READ,
        REMOTE_WRITE,
        REMOTE_ATOMIC,
    ];
    (0..128u32).map(|mask| {
        let chosen = (0..7).filter(|bit| mask & (1 << bit) != 0);
        chosen.map(|bit| RIGHTS[bit]).sum()
    })
}

#[test]
fn values_are_libfabrics() {
    assert_eq!(
        [
            READ,
            WRITE,
            RECV,
            SEND,
            REMOTE_READ,
            REMOTE_WRITE,
            REMOTE_ATOMIC
        ],
        [0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x10]
    );
    assert_eq!(LOCAL | REMOTE, ALL);
    assert_eq!(LOCAL & REMOTE, 0);
}

/// Returns whether `access` has both rights that atomics require, or no right for atomics.
fn complete(access: u64) -> bool {
    access & REMOTE_ATOMIC == 0 || access & REMOTE_READ != 0 && access & REMOTE_WRITE != 0
}

#[test]
fn every_combination_of_region_rights() {
    for region in subsets() {
        assert_eq!(valid_region_access(region), region != 0 && complete(region));
        assert!(!valid_region_access(region | 1));
        assert!(!valid_region_access(region | 1 << 63));
        let changed = [RECV, READ, REMOTE_WRITE];
        assert_eq!(
            needs_write(region),
            changed.iter().any(|right| region & right != 0)
        );
        assert_eq!(
            has_remote(region),
            region & (REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC) != 0
        );
        for (what, right) in [
            (Use::Send, SEND),
            (Use::Recv, RECV),
            (Use::Read, READ),
            (Use::Write, WRITE),
        ] {
            assert_eq!(op_allowed(what, region), region & right != 0);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many rounds")]
fn every_combination_of_key_and_region() {
    for key in subsets() {
        let remote_only = key & LOCAL == 0 && key != 0 && complete(key);
        assert_eq!(valid_key_access(key), remote_only);
        for region in subsets() {
            assert_eq!(key_within(key, region), remote_only && key & region == key);
            assert!(!key_within(key | 1, region | 1));
            // A key that permits writes never belongs to a read-only mapping.
            if key_within(key, region) && needs_write(key) {
                assert!(needs_write(region));
            }
        }
    }
}
