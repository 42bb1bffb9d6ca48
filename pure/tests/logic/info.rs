// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::info::{
    is_module_name, matches, name, negotiate, sort_by_rank, Attrs, Limit, Mismatch,
    FORMAT_SOCKADDR, FORMAT_SOCKADDR_IN, FORMAT_SOCKADDR_IN6, MR_LOCAL, MR_TARGET_MODES, MSG,
    MSG_DIRECTIONS, PRIMARY_CAPS, RMA, RMA_DIRECTIONS, RMA_TARGET, TAGGED,
};
use proptest::prelude::*;

use crate::addr::{v4, v6};

const READ: u64 = 1 << 8;
const RECV: u64 = 1 << 10;
const MULTI_RECV: u64 = 1 << 16;
const REMOTE_COMM: u64 = 1 << 51;
const DYNAMIC_KEYS: u64 = 1 << 40;
const VIRT_ADDR: u64 = 1 << 4;
const ALLOCATED: u64 = 1 << 5;
const PROV_KEY: u64 = 1 << 6;

/// Hints that constrain nothing.
const ANY: Attrs<'static> = Attrs {
    caps: 0,
    mode: u64::MAX,
    mr_mode: u64::MAX,
    max_msg_size: 0,
    inject_size: 0,
    tx_size: 0,
    rx_size: 0,
    iov_limit: 0,
    rma_iov_limit: 0,
    cq_data_size: 0,
    mr_key_size: 0,
    cm_data_size: 0,
    ep_type: 0,
    protocol: 0,
    addr_format: 0,
    prov_version: 0,
    api_version: 0,
    src_addr: &[],
    prov_name: &[],
    fabric_name: &[],
    domain_name: &[],
};

/// The offer of an RC provider such as kverbs.
fn offer(src_addr: &[u8]) -> Attrs<'_> {
    Attrs {
        caps: MSG | RMA | MSG_DIRECTIONS | RMA_DIRECTIONS | REMOTE_COMM | DYNAMIC_KEYS,
        mode: 0,
        mr_mode: MR_LOCAL | VIRT_ADDR | ALLOCATED | PROV_KEY,
        max_msg_size: 1 << 30,
        inject_size: 64,
        tx_size: 256,
        rx_size: 512,
        iov_limit: 4,
        rma_iov_limit: 1,
        cq_data_size: 4,
        mr_key_size: 4,
        cm_data_size: 55,
        ep_type: 1,
        protocol: 1,
        addr_format: FORMAT_SOCKADDR_IN,
        prov_version: 1 << 16 | 2,
        api_version: 2 << 16 | 1,
        src_addr,
        prov_name: b"kverbs\0\0",
        fabric_name: b"192.168.1.0/24\0",
        domain_name: b"rxe0\0junk",
    }
}

#[test]
fn module_name_is_short_and_plain() {
    for good in ["kverbs", "kshm", "a", "my_provider-2", "abcdefghijklmnop"] {
        assert!(is_module_name(good.as_bytes()), "{good}");
    }
    for bad in [
        "",
        "2fast",
        "-q",
        "_x",
        "Kverbs",
        "a b",
        "a/b",
        "..",
        "a.ko",
        "a*",
        "a[b]",
        "é",
        "abcdefghijklmnopq",
        "verbs;ofi_rxm",
        "^shm",
        "a\n",
        "a\0",
    ] {
        assert!(!is_module_name(bad.as_bytes()), "{bad:?}");
    }
}

#[test]
fn hints_that_constrain_nothing_match() {
    assert_eq!(matches(&offer(&[]), &ANY), Ok(()));
    assert_eq!(negotiate(&offer(&[]), &ANY), offer(&[]));
}

#[test]
fn versions() {
    let have = offer(&[]);
    let api = |api_version| matches(&have, &Attrs { api_version, ..ANY });
    assert_eq!(api(2 << 16), Ok(()));
    assert_eq!(api(2 << 16 | 1), Ok(()));
    assert_eq!(api(2 << 16 | 2), Err(Mismatch::ApiVersion));
    assert_eq!(api(3 << 16), Err(Mismatch::ApiVersion));
    assert_eq!(api(1 << 16 | 20), Ok(()));
    let prov = |prov_version| {
        matches(
            &have,
            &Attrs {
                prov_version,
                ..ANY
            },
        )
    };
    assert_eq!(prov(1 << 16 | 2), Ok(()));
    assert_eq!(prov(1 << 16 | 3), Err(Mismatch::ProvVersion));
}

#[test]
fn names() {
    let have = offer(&[]);
    let check = |want: Attrs<'_>| matches(&have, &want);
    assert_eq!(
        check(Attrs {
            prov_name: b"KVerbs\0x",
            ..ANY
        }),
        Ok(())
    );
    assert_eq!(
        check(Attrs {
            prov_name: b"kverb",
            ..ANY
        }),
        Err(Mismatch::ProvName)
    );
    assert_eq!(
        check(Attrs {
            domain_name: b"rxe0",
            fabric_name: b"192.168.1.0/24",
            ..ANY
        }),
        Ok(())
    );
    assert_eq!(
        check(Attrs {
            domain_name: b"rxe00",
            ..ANY
        }),
        Err(Mismatch::DomainName)
    );
    assert_eq!(
        check(Attrs {
            fabric_name: b"192.168.1.0",
            ..ANY
        }),
        Err(Mismatch::FabricName)
    );
    assert_eq!(name(b"\0x"), b"");
    assert_eq!(name(b"x"), b"x");
}

#[test]
fn types_and_formats() {
    let have = offer(&[]);
    let check = |want: Attrs<'_>| matches(&have, &want);
    assert_eq!(check(Attrs { ep_type: 1, ..ANY }), Ok(()));
    assert_eq!(check(Attrs { ep_type: 3, ..ANY }), Err(Mismatch::EpType));
    assert_eq!(check(Attrs { protocol: 9, ..ANY }), Err(Mismatch::Protocol));
    for (format, expected) in [
        (FORMAT_SOCKADDR, Ok(())),
        (FORMAT_SOCKADDR_IN, Ok(())),
        (FORMAT_SOCKADDR_IN6, Err(Mismatch::AddrFormat)),
        (4, Err(Mismatch::AddrFormat)),
    ] {
        let want = Attrs {
            addr_format: format,
            ..ANY
        };
        assert_eq!(check(want), expected);
    }
}

#[test]
fn source_addresses() {
    let ours = v4([192, 168, 1, 5], 0);
    let have = offer(&ours);
    let check = |src_addr: &[u8]| matches(&have, &Attrs { src_addr, ..ANY });
    assert_eq!(check(&v4([192, 168, 1, 5], 4791)), Ok(()));
    assert_eq!(check(&v4([0; 4], 4791)), Ok(()));
    assert_eq!(check(&v4([192, 168, 1, 6], 0)), Err(Mismatch::SrcAddr));
    assert_eq!(check(&v6([0; 16], 0, 0)), Err(Mismatch::SrcAddr));
}

#[test]
fn capabilities() {
    let have = offer(&[]);
    let check = |caps| matches(&have, &Attrs { caps, ..ANY });
    assert_eq!(check(MSG), Ok(()));
    assert_eq!(check(MSG | RMA | READ), Ok(()));
    assert_eq!(check(MSG | TAGGED), Err(Mismatch::Caps(TAGGED)));
    assert_eq!(check(MULTI_RECV), Err(Mismatch::Caps(MULTI_RECV)));
    // An offer without directions has all of them.
    let bare = Attrs {
        caps: MSG | RMA,
        ..have
    };
    let want = Attrs {
        caps: MSG | RMA | MSG_DIRECTIONS | RMA_DIRECTIONS,
        ..ANY
    };
    assert_eq!(matches(&bare, &want), Ok(()));
}

#[test]
fn required_modes() {
    let have = Attrs {
        mode: 1 << 52,
        ..offer(&[])
    };
    let check = |mode| matches(&have, &Attrs { mode, ..ANY });
    assert_eq!(check(0), Err(Mismatch::Mode(1 << 52)));
    assert_eq!(check(1 << 52), Ok(()));
}

#[test]
fn registration_modes_depend_on_what_is_asked() {
    let have = offer(&[]);
    let check = |caps, mr_mode| {
        let want = Attrs {
            caps,
            mr_mode,
            ..ANY
        };
        matches(&have, &want).map(|()| negotiate(&have, &want).mr_mode)
    };
    // A target needs all registration modes.
    assert_eq!(check(RMA, have.mr_mode), Ok(have.mr_mode));
    assert_eq!(
        check(RMA, MR_LOCAL | ALLOCATED),
        Err(Mismatch::MrMode(VIRT_ADDR | PROV_KEY))
    );
    // A caller that only sends or only initiates need not support the modes of targets.
    assert_eq!(check(MSG, MR_LOCAL | ALLOCATED), Ok(MR_LOCAL | ALLOCATED));
    assert_eq!(
        check(MSG | RMA | READ, MR_LOCAL | ALLOCATED),
        Ok(MR_LOCAL | ALLOCATED)
    );
    assert_eq!(check(MSG, 0), Err(Mismatch::MrMode(MR_LOCAL | ALLOCATED)));
    // Without `FI_MR_LOCAL` no mode is required of such a caller.
    let scalable = Attrs {
        mr_mode: VIRT_ADDR | PROV_KEY,
        ..have
    };
    let want = Attrs {
        caps: MSG,
        mr_mode: 0,
        ..ANY
    };
    assert_eq!(matches(&scalable, &want), Ok(()));
    assert_eq!(negotiate(&scalable, &want).mr_mode, 0);
}

#[test]
fn returned_capabilities() {
    let have = offer(&[]);
    let caps = |caps| negotiate(&have, &Attrs { caps, ..ANY }).caps;
    let secondary = REMOTE_COMM | DYNAMIC_KEYS;
    assert_eq!(caps(0), have.caps);
    assert_eq!(caps(MSG), MSG | MSG_DIRECTIONS | secondary);
    assert_eq!(caps(RMA | READ), RMA | READ | secondary);
    assert_eq!(
        caps(MSG | RMA | REMOTE_COMM),
        MSG | RMA | MSG_DIRECTIONS | RMA_DIRECTIONS | secondary
    );
    // A capability without directions has those of the provider.
    let receiver = Attrs {
        caps: MSG | RECV,
        ..have
    };
    let want = Attrs { caps: MSG, ..ANY };
    assert_eq!(matches(&receiver, &want), Ok(()));
    assert_eq!(negotiate(&receiver, &want).caps, MSG | RECV);
    // Hints without capabilities that do not support the modes of targets get no target.
    let want = Attrs {
        mr_mode: MR_LOCAL | ALLOCATED,
        ..ANY
    };
    assert_eq!(matches(&have, &want), Ok(()));
    assert_eq!(negotiate(&have, &want).caps, have.caps & !RMA_TARGET);
}

#[test]
fn limits() {
    let have = offer(&[]);
    let check = |want: Attrs<'_>| matches(&have, &want);
    let most = Attrs {
        max_msg_size: have.max_msg_size,
        inject_size: have.inject_size,
        tx_size: have.tx_size,
        rx_size: have.rx_size,
        iov_limit: have.iov_limit,
        rma_iov_limit: have.rma_iov_limit,
        cq_data_size: have.cq_data_size,
        mr_key_size: have.mr_key_size,
        cm_data_size: have.cm_data_size,
        ..ANY
    };
    assert_eq!(check(most), Ok(()));
    for (want, limit) in [
        (
            Attrs {
                max_msg_size: most.max_msg_size + 1,
                ..ANY
            },
            Limit::MaxMsgSize,
        ),
        (
            Attrs {
                inject_size: most.inject_size + 1,
                ..ANY
            },
            Limit::InjectSize,
        ),
        (
            Attrs {
                tx_size: most.tx_size + 1,
                ..ANY
            },
            Limit::TxSize,
        ),
        (
            Attrs {
                rx_size: most.rx_size + 1,
                ..ANY
            },
            Limit::RxSize,
        ),
        (
            Attrs {
                iov_limit: most.iov_limit + 1,
                ..ANY
            },
            Limit::IovLimit,
        ),
        (
            Attrs {
                rma_iov_limit: most.rma_iov_limit + 1,
                ..ANY
            },
            Limit::RmaIovLimit,
        ),
        (
            Attrs {
                cq_data_size: most.cq_data_size + 1,
                ..ANY
            },
            Limit::CqDataSize,
        ),
        (
            Attrs {
                mr_key_size: most.mr_key_size + 1,
                ..ANY
            },
            Limit::MrKeySize,
        ),
        (
            Attrs {
                cm_data_size: most.cm_data_size + 1,
                ..ANY
            },
            Limit::CmDataSize,
        ),
    ] {
        assert_eq!(check(want), Err(Mismatch::TooLarge(limit)));
    }
    let some = Attrs {
        tx_size: 7,
        rx_size: 8,
        inject_size: 9,
        max_msg_size: 10,
        ..ANY
    };
    let got = negotiate(&have, &some);
    assert_eq!((got.tx_size, got.rx_size, got.inject_size), (7, 8, 9));
    assert_eq!(got.max_msg_size, have.max_msg_size);
    assert_eq!(got.iov_limit, have.iov_limit);
}

#[test]
fn reasons_name_their_field() {
    assert_eq!(Mismatch::Caps(1).field(), "caps");
    assert_eq!(Mismatch::TooLarge(Limit::TxSize).field(), "tx_size");
}

prop_compose! {
    fn small_attrs()(
        caps in prop_oneof![Just(0u64), any::<u64>(), Just(MSG), Just(RMA), Just(MSG | RMA)],
        mode in prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()],
        mr_mode in prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()],
        sizes in prop::array::uniform9(0..3u32),
        kinds in prop::array::uniform3(0..5u32),
        versions in prop::array::uniform2(0..3u32),
    ) -> Attrs<'static> {
        Attrs {
            caps,
            mode,
            mr_mode,
            max_msg_size: sizes[0].into(),
            inject_size: sizes[1].into(),
            tx_size: sizes[2],
            rx_size: sizes[3],
            iov_limit: sizes[4],
            rma_iov_limit: sizes[5],
            cq_data_size: sizes[6],
            mr_key_size: sizes[7],
            cm_data_size: sizes[8],
            ep_type: kinds[0],
            protocol: kinds[1],
            addr_format: kinds[2],
            prov_version: versions[0],
            api_version: versions[1],
            ..ANY
        }
    }
}

proptest! {
    #![proptest_config(crate::config())]

    /// The result satisfies the hints. It has nothing that the provider lacks, and no primary
    /// capability that was not requested.
    #[test]
    fn what_matches_is_what_was_asked(have in small_attrs(), want in small_attrs()) {
        // Few random pairs match, so the hints are weakened until this one does.
        let want = Attrs {
            mode: want.mode | have.mode,
            caps: want.caps & have.caps,
            ..want
        };
        let Ok(()) = matches(&have, &want) else {
            return Ok(());
        };
        let got = negotiate(&have, &want);
        prop_assert_eq!(matches(&got, &want), Ok(()));
        let directions = MSG_DIRECTIONS | RMA_DIRECTIONS;
        prop_assert_eq!(got.caps & !have.caps & !directions, 0);
        prop_assert_eq!(want.caps & !got.caps, 0);
        if want.caps != 0 {
            prop_assert_eq!(got.caps & PRIMARY_CAPS & !want.caps & !directions, 0);
        }
        prop_assert_eq!(got.mr_mode & !have.mr_mode, 0);
        prop_assert_eq!(got.mr_mode & !want.mr_mode & !MR_TARGET_MODES & (have.mr_mode & MR_LOCAL), 0);
        // The result, used as hints, matches and yields the same result.
        let again = Attrs { mode: u64::MAX, mr_mode: want.mr_mode | got.mr_mode, ..got };
        prop_assert_eq!(matches(&have, &again), Ok(()));
    }

    /// Weaker hints never match fewer offers.
    #[test]
    fn weaker_hints_match_more(have in small_attrs(), want in small_attrs()) {
        if matches(&have, &want).is_ok() {
            for weaker in [
                Attrs { caps: 0, ..want },
                Attrs { mode: u64::MAX, ..want },
                Attrs { mr_mode: u64::MAX, ..want },
                Attrs { tx_size: 0, rx_size: 0, max_msg_size: 0, ..want },
                Attrs { ep_type: 0, ..want },
                Attrs { protocol: 0, ..want },
                Attrs { addr_format: 0, ..want },
                Attrs { api_version: 0, prov_version: 0, ..want },
            ] {
                prop_assert_eq!(matches(&have, &weaker), Ok(()));
            }
        }
    }

    /// Any bytes are accepted as names and addresses.
    #[test]
    fn any_bytes(
        a in prop::collection::vec(any::<u8>(), 0..70),
        b in prop::collection::vec(any::<u8>(), 0..70),
    ) {
        let with = |raw| Attrs { prov_name: raw, fabric_name: raw, domain_name: raw, src_addr: raw, ..ANY };
        let (a, b) = (with(a.as_slice()), with(b.as_slice()));
        prop_assert_eq!(matches(&a, &a), Ok(()));
        let _ = matches(&a, &b);
    }

    #[test]
    fn sorting_is_stable(ranks in prop::collection::vec(0..5u32, 0..60)) {
        let mut items: Vec<_> = ranks.into_iter().enumerate().collect();
        let mut expected = items.clone();
        expected.sort_by_key(|(_, rank)| std::cmp::Reverse(*rank));
        sort_by_rank(&mut items, |(_, rank)| *rank);
        prop_assert_eq!(items, expected);
    }
}
