// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kind of memory, from the properties of its pages.

use kfabric_pure::persist::{Facts, Persistence};
use proptest::prelude::*;

/// From the weakest to the strongest.
const EVERY: [Persistence; 4] = [
    Persistence::None,
    Persistence::DeviceFlush,
    Persistence::Adr,
    Persistence::Eadr,
];

fn facts() -> impl Strategy<Value = Facts> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(dax, for_files, described)| Facts {
        dax,
        for_files,
        described,
    })
}

fn all_facts() -> impl Iterator<Item = Facts> {
    (0..8).map(|bits| Facts {
        dax: bits & 1 != 0,
        for_files: bits & 2 != 0,
        described: bits & 4 != 0,
    })
}

#[test]
fn durable_needs_dax_pages_and_the_description() {
    for facts in all_facts() {
        let both = facts.dax && facts.described;
        assert_eq!(facts.kind().is_durable_by_cpu(), both, "{facts:?}");
    }
}

#[test]
fn kmem_and_reserved_memory_are_not_persistent() {
    let kmem = Facts {
        described: true,
        ..Facts::default()
    };
    assert_eq!(kmem.kind(), Persistence::None);
    let reserved = Facts {
        dax: true,
        ..Facts::default()
    };
    assert_eq!(reserved.kind(), Persistence::None);
}

#[test]
fn virtio_pmem_needs_the_device() {
    let facts = Facts {
        dax: true,
        for_files: true,
        described: false,
    };
    assert_eq!(facts.kind(), Persistence::DeviceFlush);
    assert_eq!(facts.kind().name(), "device-flush");
}

#[test]
fn joining_is_commutative_and_associative_and_never_stronger() {
    for a in EVERY {
        for b in EVERY {
            assert_eq!(a.and(b), b.and(a));
            assert_eq!(a.and(b), a.min(b));
            let durable = a.is_durable_by_cpu() && b.is_durable_by_cpu();
            assert_eq!(a.and(b).is_durable_by_cpu(), durable);
            let fence_suffices = a.has_persistent_caches() && b.has_persistent_caches();
            assert_eq!(a.and(b).has_persistent_caches(), fence_suffices);
            for c in EVERY {
                assert_eq!(a.and(b).and(c), a.and(b.and(c)));
            }
        }
    }
}

/// A driver that does not care for caches reports none, e.g. that of device-dax. That must not make
/// memory durable which is not.
#[test]
fn persistent_caches_change_the_kind_of_persistent_memory_alone() {
    assert!(EVERY.is_sorted());
    for kind in EVERY {
        assert_eq!(kind.with_caches(false), kind);
        let with = kind.with_caches(true);
        assert_eq!(with.is_durable_by_cpu(), kind.is_durable_by_cpu());
        assert_eq!(with.has_persistent_caches(), kind.is_durable_by_cpu());
    }
    assert_eq!(Persistence::Adr.with_caches(true).name(), "eadr");
}

/// Pages alone never tell that a write-back is unnecessary.
#[test]
fn pages_with_any_properties_need_the_write_back() {
    for facts in all_facts() {
        assert!(!facts.kind().has_persistent_caches(), "{facts:?}");
    }
}

proptest! {
    #[test]
    fn one_run_that_is_not_durable_makes_the_memory_not_durable(
        runs in prop::collection::vec(facts(), 1..20),
    ) {
        let first = runs[0].kind();
        let whole = runs.iter().fold(first, |kind, run| kind.and(run.kind()));
        let each = runs.iter().all(|run| run.kind().is_durable_by_cpu());
        prop_assert_eq!(whole.is_durable_by_cpu(), each);
    }
}
