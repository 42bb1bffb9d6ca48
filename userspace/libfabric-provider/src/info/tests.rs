// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hints against offers, without a kernel.

use super::*;

const V1_18: u32 = 1 << 16 | 18;

/// An offer like that of kverbs.
fn entry() -> abi::InfoEntry {
    let mut entry = abi::InfoEntry {
        caps: u64::MAX,
        max_msg_size: 1 << 30,
        inject_size: 64,
        tx_size: 4096,
        rx_size: 4096,
        iov_limit: 4,
        rma_iov_limit: 1,
        cq_data_size: 4,
        mr_key_size: 4,
        protocol: abi::KFI_PROTO_RDMA_CM_IB_RC,
        ..Default::default()
    };
    entry.prov_name[..6].copy_from_slice(b"kverbs");
    entry.fabric_name[..4].copy_from_slice(b"rdma");
    entry.domain_name[..4].copy_from_slice(b"rxe0");
    entry
}

fn offer() -> Info {
    Info::from_raw(entry())
}

/// Hints with all parts.
struct Asked {
    info: fi_info,
    tx: fi_tx_attr,
    rx: fi_rx_attr,
    ep: fi_ep_attr,
    domain: fi_domain_attr,
    fabric: fi_fabric_attr,
}

impl Asked {
    /// Hints that most programs have: any capability, and the registration modes of the provider.
    fn new() -> Self {
        // SAFETY: zeroes are valid for these structures: null pointers and "any".
        let mut asked: Self = unsafe { std::mem::zeroed() };
        asked.domain.mr_mode = MR_MODE as c_int;
        asked
    }

    fn hints(&self) -> Hints<'_> {
        Hints {
            info: &self.info,
            tx: Some(&self.tx),
            rx: Some(&self.rx),
            ep: Some(&self.ep),
            domain: Some(&self.domain),
            fabric: Some(&self.fabric),
        }
    }
}

/// An info as hints.
///
/// # Safety
///
/// The parts of the info are null or whole.
unsafe fn hints_of(info: &fi_info) -> Hints<'_> {
    // SAFETY: as the caller vouches.
    unsafe {
        Hints {
            info,
            tx: info.tx_attr.as_ref(),
            rx: info.rx_attr.as_ref(),
            ep: info.ep_attr.as_ref(),
            domain: info.domain_attr.as_ref(),
            fabric: info.fabric_attr.as_ref(),
        }
    }
}

/// Returns whether the offer satisfies hints that `change` has made. The info of an accepted offer
/// must satisfy the hints again, and be accepted as hints itself, as ofi_rxm passes it.
fn accepts_version(version: u32, change: impl FnOnce(&mut Asked)) -> bool {
    let offer = offer();
    let mut asked = Asked::new();
    change(&mut asked);
    // SAFETY: the hints have no strings, or C strings; `make` returns a whole info.
    unsafe {
        if !satisfies(&offer, &asked.hints(), version) {
            return false;
        }
        let info = make(&offer, Some(&asked.hints()), version).expect("memory");
        let i = &*info;
        let again = hints_of(i);
        assert_eq!(i.caps & asked.info.caps, asked.info.caps);
        assert!(satisfies(&offer, &again, V1_18) || version != V1_18);
        free(info);
    }
    true
}

fn accepts(change: impl FnOnce(&mut Asked)) -> bool {
    accepts_version(V1_18, change)
}

#[test]
fn hints_without_parts_match() {
    let asked = Asked::new();
    let hints = Hints {
        tx: None,
        rx: None,
        ep: None,
        domain: None,
        fabric: None,
        ..asked.hints()
    };
    // SAFETY: hints without strings.
    assert!(unsafe { satisfies(&offer(), &hints, V1_18) });
    assert!(accepts(|_| ()));
}

#[test]
fn capabilities_beyond_the_offer_do_not_match() {
    assert!(accepts(|a| a.info.caps = abi::KFI_MSG));
    assert!(accepts(|a| a.info.caps = abi::KFI_RMA | abi::KFI_ATOMIC));
    assert!(accepts(|a| a.tx.caps = abi::KFI_MSG | abi::KFI_SEND));
    // FI_TAGGED, and bits that are the kernel's own: FI_PEER has one of these.
    for bit in [
        1 << 3,
        FI_SOURCE_ERR,
        abi::KFI_DYNAMIC_KEYS,
        abi::KFI_UNREGISTERED_RMA,
    ] {
        assert!(!accepts(|a| a.info.caps = abi::KFI_MSG | bit), "{bit:#x}");
        assert!(!accepts(|a| a.tx.caps = bit), "{bit:#x}");
        assert!(!accepts(|a| a.rx.caps = bit), "{bit:#x}");
    }
    // libfabric ignores bits of the other side, and those of a side are among the info's.
    assert!(accepts(|a| a.tx.caps = abi::KFI_RECV));
    assert!(accepts(|a| a.rx.caps = abi::KFI_SEND));
    let with = |tx, rx| {
        accepts(|a| {
            a.info.caps = abi::KFI_MSG;
            (a.tx.caps, a.rx.caps) = (tx, rx);
        })
    };
    assert!(with(abi::KFI_SEND, abi::KFI_MSG | abi::KFI_RECV));
    assert!(!with(abi::KFI_RMA, 0));
    assert!(!with(0, abi::KFI_REMOTE_READ));
}

#[test]
fn other_endpoint_types_and_protocols_do_not_match() {
    assert!(accepts(|a| a.ep.type_ = FI_EP_MSG));
    assert!(!accepts(|a| a.ep.type_ = FI_EP_RDM));
    assert!(!accepts(|a| a.ep.type_ = FI_EP_DGRAM));
    assert!(accepts(|a| a.ep.protocol = abi::KFI_PROTO_RDMA_CM_IB_RC));
    assert!(!accepts(|a| a.ep.protocol = FI_PROTO_SHM));
    assert!(!accepts(|a| a.ep.tx_ctx_cnt = usize::MAX));
    assert!(accepts(|a| a.info.addr_format = FI_SOCKADDR_IN));
    assert!(!accepts(|a| a.info.addr_format = 17));
}

#[test]
fn sizes_up_to_the_offer_match() {
    type Set = fn(&mut Asked, usize);
    let cases: [(Set, usize); 9] = [
        (|a, n| a.tx.size = n, 4096),
        (|a, n| a.rx.size = n, 4096),
        (|a, n| a.tx.inject_size = n, 64),
        (|a, n| a.tx.iov_limit = n, 4),
        (|a, n| a.rx.iov_limit = n, 4),
        (|a, n| a.tx.rma_iov_limit = n, 1),
        (|a, n| a.ep.max_msg_size = n, 1 << 30),
        (
            |a, n| {
                a.info.caps = abi::KFI_RMA;
                a.ep.max_order_raw_size = n;
            },
            1 << 30,
        ),
        (|a, n| a.domain.auth_key_size = n, 64),
    ];
    for (at, (set, most)) in cases.into_iter().enumerate() {
        assert!(accepts(|a| set(a, 1)), "{at}");
        assert!(accepts(|a| set(a, most)), "{at}");
        assert!(!accepts(|a| set(a, most + 1)), "{at}");
        assert!(!accepts(|a| set(a, usize::MAX)), "{at}");
    }
}

#[test]
fn registration_modes_are_needed_for_remote_access() {
    let without = |bit: u64| (MR_MODE & !bit) as c_int;
    let modes = [
        abi::KFI_MR_VIRT_ADDR,
        abi::KFI_MR_ALLOCATED,
        abi::KFI_MR_PROV_KEY,
    ];
    for mode in modes {
        assert!(!accepts(|a| {
            a.info.caps = abi::KFI_RMA;
            a.domain.mr_mode = without(mode);
        }));
        // Messages alone need only FI_MR_LOCAL.
        assert!(accepts(|a| {
            a.info.caps = abi::KFI_MSG;
            a.domain.mr_mode = without(mode);
        }));
    }
    assert!(!accepts(|a| {
        a.info.caps = abi::KFI_MSG;
        a.domain.mr_mode = without(abi::KFI_MR_LOCAL);
    }));
    // FI_MR_BASIC, which says nothing about local memory, and programs of version 1.4.
    assert!(!accepts(|a| a.domain.mr_mode = 1));
    assert!(accepts(
        |a| a.domain.mr_mode = 1 | abi::KFI_MR_LOCAL as c_int
    ));
    assert!(accepts(|a| {
        a.domain.mr_mode = 1;
        a.info.mode = LOCAL_MR;
    }));
    for (mode, fits) in [(0, true), (1, true), (2, false)] {
        let old = accepts_version(1 << 16 | 4, |a| {
            a.domain.mr_mode = mode;
            a.info.mode = LOCAL_MR;
        });
        assert_eq!(old, fits, "{mode}");
        // Without the mode that such programs have for FI_MR_LOCAL.
        assert!(!accepts_version(1 << 16 | 4, |a| a.domain.mr_mode = mode));
    }
}

/// libfabric's check accepts these hints (`ofi_check_info()`).
#[test]
fn memory_that_no_peer_reaches_needs_only_the_local_mode() {
    let local = abi::KFI_MR_LOCAL as c_int;
    let initiator = abi::KFI_MSG | abi::KFI_RMA | abi::KFI_READ | abi::KFI_WRITE;
    let with = |caps, rx_caps| {
        accepts(|a| {
            a.info.caps = caps;
            a.rx.caps = rx_caps;
            a.domain.mr_mode = local;
        })
    };
    assert!(with(initiator, 0) && with(abi::KFI_MSG, 0) && with(0, 0));
    assert!(!with(initiator | abi::KFI_REMOTE_READ, 0));
    assert!(!with(abi::KFI_ATOMIC, 0));
    assert!(!with(0, abi::KFI_RMA | abi::KFI_REMOTE_WRITE));
    // The answer has the hints' mode, and no peer's access without the modes for it.
    let remote = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
    // SAFETY: `answer` passes a whole info.
    let read = |info: &fi_info| unsafe { (info.caps & remote, (*info.domain_attr).mr_mode) };
    let mode = |mode| move |a: &mut Asked| a.domain.mr_mode = mode;
    assert_eq!(answer(V1_18, mode(local), read), (0, local));
    assert_eq!(
        answer(V1_18, mode(MR_MODE as c_int), read),
        (remote, MR_MODE as c_int)
    );
    assert_eq!(answer(V1_18, mode(MR_BASIC), read), (remote, MR_BASIC));
}

/// The tests of libfabric want no answer with a mode that the hints lack (`validate_mr_modes()`).
#[test]
fn no_registration_modes_match_no_offer() {
    for caps in [0, abi::KFI_RMA, abi::KFI_MSG] {
        assert!(!accepts(|a| {
            (a.info.caps, a.info.mode) = (caps, LOCAL_MR);
            a.domain.mr_mode = 0;
        }));
    }
}

/// Hints may be a copy of another provider's info.
#[test]
fn numbers_that_libfabric_does_not_compare_match() {
    let sets: [fn(&mut Asked); 10] = [
        |a| a.domain.cq_cnt = 1 << 20,
        |a| a.domain.ep_cnt = 1 << 20,
        |a| a.domain.tx_ctx_cnt = 1 << 20,
        |a| a.domain.rx_ctx_cnt = 1 << 20,
        |a| a.domain.max_ep_tx_ctx = 2,
        |a| a.domain.max_ep_rx_ctx = 2,
        |a| a.domain.max_ep_stx_ctx = 1,
        |a| a.domain.max_ep_srx_ctx = 1,
        |a| a.domain.mr_key_size = 1,
        // Orders of one-sided operations, without these.
        |a| {
            a.info.caps = abi::KFI_MSG;
            a.ep.max_order_war_size = 1;
            (a.ep.max_order_raw_size, a.ep.max_order_waw_size) = (usize::MAX, usize::MAX);
        },
    ];
    for (at, set) in sets.into_iter().enumerate() {
        assert!(accepts(set), "{at}");
    }
    assert!(!accepts(|a| {
        a.info.caps = abi::KFI_RMA;
        a.ep.max_order_war_size = 1;
    }));
}

#[test]
fn completion_data_needs_its_mode() {
    assert!(!accepts(|a| a.domain.cq_data_size = 4));
    let with = |size| {
        accepts(|a| {
            a.info.mode = FI_RX_CQ_DATA;
            a.domain.cq_data_size = size;
        })
    };
    assert!(with(4) && !with(8));
    // Messages take a receive in any case.
    assert!(accepts(|a| {
        a.info.caps = abi::KFI_MSG;
        a.domain.cq_data_size = 4;
    }));
}

/// Returns the info for hints that `change` has made.
fn answer<R>(version: u32, change: impl FnOnce(&mut Asked), read: impl FnOnce(&fi_info) -> R) -> R {
    let mut asked = Asked::new();
    change(&mut asked);
    // SAFETY: the hints have no strings; `make` returns a whole info.
    unsafe {
        let info = make(&offer(), Some(&asked.hints()), version).expect("memory");
        let result = read(&*info);
        free(info);
        result
    }
}

#[test]
fn registration_mode_of_the_answer_has_only_bits_of_the_hints() {
    // SAFETY: `answer` passes a whole info.
    let mode = |info: &fi_info| unsafe { (*info.domain_attr).mr_mode };
    assert_eq!(answer(V1_18, |_| (), mode), MR_MODE as c_int);
    let only_local = |a: &mut Asked| {
        a.info.caps = abi::KFI_MSG;
        a.domain.mr_mode = abi::KFI_MR_LOCAL as c_int;
    };
    assert_eq!(answer(V1_18, only_local, mode), abi::KFI_MR_LOCAL as c_int);
    assert_eq!(answer(1 << 16, |a| a.domain.mr_mode = 0, mode), MR_BASIC);
    assert_eq!(answer(V1_18, |a| a.domain.mr_mode = 1, mode), MR_BASIC);
    assert_eq!(
        answer(1 << 16, |_| (), |info| info.mode & LOCAL_MR),
        LOCAL_MR
    );
}

#[test]
fn capabilities_and_modes_of_a_side_are_in_the_answer() {
    // SAFETY: `answer` passes a whole info.
    let caps = |info: &fi_info| unsafe { ((*info.tx_attr).caps, (*info.rx_attr).caps) };
    let (send, recv) = (abi::KFI_MSG | abi::KFI_SEND, abi::KFI_MSG | abi::KFI_RECV);
    let writes = abi::KFI_RMA | abi::KFI_WRITE;
    let set = |tx, rx| {
        move |a: &mut Asked| {
            a.info.caps = abi::KFI_MSG | abi::KFI_RMA;
            (a.tx.caps, a.rx.caps) = (tx, rx);
        }
    };
    let all = answer(V1_18, set(0, 0), caps);
    assert_eq!(all.0 & all.1, abi::KFI_MSG | abi::KFI_RMA);
    assert_eq!(
        answer(V1_18, set(abi::KFI_MSG, abi::KFI_MSG), caps),
        (send, recv)
    );
    assert_eq!(
        answer(V1_18, set(writes, abi::KFI_SEND), caps),
        (writes, all.1)
    );
    assert_eq!(answer(V1_18, set(abi::KFI_RECV, recv), caps), (all.0, recv));
    // A mode of a side takes the place of the info's.
    let with = |info, rx| {
        accepts(|a| {
            (a.info.mode, a.rx.mode) = (info, rx);
            a.domain.cq_data_size = 4;
        })
    };
    assert!(with(FI_RX_CQ_DATA, 0) && with(0, FI_RX_CQ_DATA));
    assert!(!with(FI_RX_CQ_DATA, FI_CONTEXT));
    let old = |tx, rx| {
        accepts_version(1 << 16 | 4, |a| {
            (a.info.mode, a.tx.mode, a.rx.mode) = (LOCAL_MR, tx, rx);
            a.domain.mr_mode = MR_BASIC;
        })
    };
    assert!(old(0, 0) && old(LOCAL_MR, LOCAL_MR));
    assert!(!old(FI_CONTEXT, 0) && !old(0, FI_CONTEXT));
    assert!(accepts(|a| a.domain.mode = u64::MAX));
}

#[test]
fn kind_without_directions_has_all_of_its_directions() {
    let rma = TRANSMITS & !abi::KFI_SEND | RECEIVES & !abi::KFI_RECV;
    for (caps, added) in [
        (0, 0),
        (abi::KFI_MSG, abi::KFI_SEND | abi::KFI_RECV),
        (abi::KFI_MSG | abi::KFI_SEND, 0),
        (abi::KFI_RMA, rma),
        (abi::KFI_ATOMIC, rma),
        (abi::KFI_MSG | abi::KFI_SEND | abi::KFI_RMA, rma),
        (abi::KFI_RMA | abi::KFI_READ, 0),
    ] {
        assert_eq!(with_directions(caps), caps | added, "{caps:#x}");
    }
}

/// The fields that newer libraries have behind those of `bindings.rs` are written under any library: of
/// several ones in a process, each reads what it knows.
#[test]
fn info_has_the_fields_of_any_libfabric() {
    let asked = Asked::new();
    // SAFETY: the hints have no strings; parts of an info have more bytes than their types.
    unsafe {
        let info = make(&offer(), Some(&asked.hints()), V1_18).expect("memory");
        let i = &*info;
        let behind = i.domain_attr.add(1).cast::<[u64; 2]>().read();
        assert_eq!(behind, [u64::MAX; 2]);
        let again = hints_of(i);
        assert!(satisfies(&offer(), &again, V1_18));
        assert_eq!((*i.domain_attr).mr_cnt, MR_COUNT);
        assert_eq!((*i.ep_attr).max_msg_size, 1 << 30);
        free(info);
    }
}

/// Values of the kernel that the plug-in passes as they are.
#[test]
fn constants_of_kernel_and_libfabric_are_equal_except_those_that_are_translated() {
    let equal = [
        (abi::KFI_MSG, u64::from(FI_MSG)),
        (abi::KFI_RMA, u64::from(FI_RMA)),
        (abi::KFI_ATOMIC, u64::from(FI_ATOMIC)),
        (abi::KFI_READ, u64::from(FI_READ)),
        (abi::KFI_WRITE, u64::from(FI_WRITE)),
        (abi::KFI_SEND, u64::from(FI_SEND)),
        (abi::KFI_RECV, u64::from(FI_RECV)),
        (abi::KFI_TRANSMIT, u64::from(FI_TRANSMIT)),
        (abi::KFI_REMOTE_READ, u64::from(FI_REMOTE_READ)),
        (abi::KFI_REMOTE_WRITE, u64::from(FI_REMOTE_WRITE)),
        (abi::KFI_RMA_PMEM, FI_RMA_PMEM),
        (abi::KFI_COMMIT_COMPLETE, u64::from(FI_COMMIT_COMPLETE)),
        (abi::KFI_DELIVERY_COMPLETE, u64::from(FI_DELIVERY_COMPLETE)),
        (abi::KFI_REMOTE_CQ_DATA, u64::from(FI_REMOTE_CQ_DATA)),
        (abi::KFI_COMPLETION, u64::from(FI_COMPLETION)),
        (abi::KFI_INJECT, u64::from(FI_INJECT)),
        (abi::KFI_SELECTIVE_COMPLETION, FI_SELECTIVE_COMPLETION),
        (abi::KFI_MR_LOCAL, u64::from(FI_MR_LOCAL)),
        (abi::KFI_MR_VIRT_ADDR, u64::from(FI_MR_VIRT_ADDR)),
        (abi::KFI_MR_ALLOCATED, u64::from(FI_MR_ALLOCATED)),
        (abi::KFI_MR_PROV_KEY, u64::from(FI_MR_PROV_KEY)),
        (abi::KFI_KEY_NOTAVAIL, u64::MAX),
        (abi::KFI_CONNREQ.into(), u64::from(FI_CONNREQ)),
        (abi::KFI_CONNECTED.into(), u64::from(FI_CONNECTED)),
        (abi::KFI_SHUTDOWN.into(), u64::from(FI_SHUTDOWN)),
        (
            abi::KFI_PROTO_RDMA_CM_IB_RC.into(),
            u64::from(FI_PROTO_RDMA_CM_IB_RC),
        ),
        (abi::KFI_UINT64.into(), u64::from(FI_UINT64)),
        (abi::KFI_ATOMIC_MSWAP.into(), u64::from(FI_MSWAP)),
    ];
    for (at, (kernel, ours)) in equal.into_iter().enumerate() {
        assert_eq!(kernel, ours, "{at}");
    }
    for ((kernel, ours), bit) in COMM.into_iter().zip([51, 52]) {
        assert_ne!(kernel, ours);
        assert_eq!(ours, 1 << bit);
    }
}

#[test]
fn progress_and_handle_of_the_hints_are_in_the_answer() {
    for (wanted, given) in [
        (FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO),
        (FI_PROGRESS_AUTO, FI_PROGRESS_AUTO),
        (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL),
    ] {
        let mut pep = fid {
            fclass: FI_CLASS_PEP as usize,
            context: null_mut(),
            ops: null_mut(),
        };
        let at = &raw mut pep;
        let set = |a: &mut Asked| {
            a.domain.control_progress = wanted;
            a.domain.__bindgen_anon_1.data_progress = wanted;
            a.info.handle = at;
        };
        answer(V1_18, set, |info| {
            // SAFETY: `answer` passes a whole info.
            let domain = unsafe { &*info.domain_attr };
            assert_eq!(domain.control_progress, given);
            // SAFETY: both fields of the union have this type.
            assert_eq!(unsafe { domain.__bindgen_anon_1.data_progress }, given);
            assert_eq!(info.handle, at);
        });
    }
}

#[test]
fn capabilities_of_the_domain_and_orders_of_completions_are_checked() {
    assert!(accepts(|a| a.domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM));
    assert!(accepts(|a| a.tx.comp_order = COMPLETION_ORDER));
    assert!(!accepts(|a| a.domain.caps = 1 << 8 | abi::KFI_DYNAMIC_KEYS));
    let mut entry = entry();
    entry.protocol = abi::KFI_PROTO_SHM;
    entry.caps &= !abi::KFI_REMOTE_COMM;
    // SAFETY: hints without strings.
    let fits = |asked: &Asked| unsafe { satisfies(&Info::from_raw(entry), &asked.hints(), V1_18) };
    let mut asked = Asked::new();
    assert!(fits(&asked));
    asked.domain.caps = FI_LOCAL_COMM;
    assert!(fits(&asked));
    asked.domain.caps = FI_REMOTE_COMM;
    assert!(!fits(&asked));
    let mut asked = Asked::new();
    asked.rx.comp_order = 1;
    assert!(!fits(&asked));
}

#[test]
fn names_select_domain_and_fabric() {
    let named = |domain: &CStr, fabric: &CStr| {
        accepts(|a| {
            a.domain.name = domain.as_ptr().cast_mut();
            a.fabric.name = fabric.as_ptr().cast_mut();
        })
    };
    assert!(named(c"rxe0", c"kverbs/rdma"));
    assert!(named(c"RXE0", c"Kverbs/rdma"));
    assert!(!named(c"rxe", c"kverbs/rdma"));
    assert!(!named(c"rxe0", c"kshm/rdma"));
}

#[test]
fn info_has_sizes_and_keys_of_its_hints() {
    let mut key = *b"sixteen bytes or";
    let mut asked = Asked::new();
    asked.info.caps = abi::KFI_RMA;
    asked.tx.size = 7;
    asked.ep.auth_key = key.as_mut_ptr();
    asked.ep.auth_key_size = key.len();
    // SAFETY: the hints have no strings; the key has its size.
    unsafe {
        let info = make(&offer(), Some(&asked.hints()), V1_18).expect("memory");
        let i = &*info;
        let directions =
            abi::KFI_READ | abi::KFI_WRITE | abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
        assert_eq!(i.caps & directions, directions);
        assert_eq!(i.caps & (0xf << 40), 0);
        assert_eq!((*i.tx_attr).size, 7);
        assert_eq!((*i.rx_attr).size, 512);
        let ep = &*i.ep_attr;
        assert_ne!(ep.auth_key, key.as_mut_ptr());
        assert_eq!(hinted(ep.auth_key, ep.auth_key_size), Some(&key[..]));
        assert_eq!((*i.domain_attr).auth_key_size, 0);
        free(info);
    }
}

#[test]
fn rings_need_manual_progress_or_the_parameter() {
    let (auto, manual, open) = (FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_UNSPEC);
    for (by_user, progress, expected) in [
        (None, auto, false),
        (None, open, false),
        (None, manual, true),
        (Some(true), auto, false),
        (Some(true), open, true),
        (Some(true), manual, true),
        (Some(false), auto, false),
        (Some(false), open, false),
        (Some(false), manual, false),
    ] {
        assert_eq!(crate::rings(by_user, progress), expected, "{by_user:?}");
    }
    for (value, expected) in [("1", Some(true)), ("No", Some(false)), ("2", None)] {
        assert_eq!(crate::yes_or_no(value), expected);
    }
    for (value, expected) in [("1", Some(1)), (" 64", Some(64)), ("0", None), ("65", None)] {
        assert_eq!(crate::factor(value), expected);
    }
    for (value, expected) in [
        ("1", Some(1)),
        ("65536 ", Some(65536)),
        ("0", None),
        ("1k", None),
    ] {
        assert_eq!(crate::msg_size(value), expected);
    }
    for (by_user, expected) in [(None, 100), (Some(7), 7), (Some(101), 100)] {
        assert_eq!(crate::smaller(by_user, 100), expected);
    }
}

#[test]
fn info_with_rings_lacks_orders_after_sends() {
    let mut shm = entry();
    shm.protocol = abi::KFI_PROTO_SHM;
    let all = ORDER;
    let less = ORDER & !AFTER_SEND;
    for (entry, progress, asked_order, order) in [
        (shm, FI_PROGRESS_UNSPEC, 0, all),
        (shm, FI_PROGRESS_AUTO, 0, all),
        (shm, FI_PROGRESS_MANUAL, 0, less),
        (shm, FI_PROGRESS_MANUAL, 0x2, less),
        (shm, FI_PROGRESS_MANUAL, 0x4, all),
        (shm, FI_PROGRESS_MANUAL, 0x20, all),
        (self::entry(), FI_PROGRESS_MANUAL, 0, all),
    ] {
        let mut asked = Asked::new();
        asked.domain.__bindgen_anon_1.data_progress = progress;
        asked.rx.msg_order = asked_order;
        // SAFETY: the hints have no strings; `make` returns a whole info.
        unsafe {
            let info = make(&Info::from_raw(entry), Some(&asked.hints()), V1_18).expect("memory");
            assert_eq!((*(*info).tx_attr).msg_order, order);
            assert_eq!((*(*info).rx_attr).msg_order, order);
            free(info);
        }
    }
}

#[test]
fn addresses_of_an_offer_are_in_the_info_with_the_port_of_the_caller() {
    let mut entry = entry();
    let [own, peer]: [SocketAddr; 2] =
        ["10.77.0.2:0", "10.77.0.1:47593"].map(|text| text.parse().expect("an address"));
    for (to, addr) in [(&mut entry.src_addr, own), (&mut entry.dest_addr, peer)] {
        let (bytes, len) = addr::bytes(&addr);
        (to.len, to.data) = (len as u32, bytes);
    }
    // SAFETY: `make` returns a whole info, whose addresses have their lengths.
    unsafe {
        let info = make(&Info::from_raw(entry), None, V1_18).expect("memory");
        let i = &mut *info;
        set_source(i, Some(SocketAddr::from(([0, 0, 0, 0], 5))));
        let source = addr::from(i.src_addr, i.src_addrlen);
        assert_eq!(source, Some(SocketAddr::new(own.ip(), 5)));
        assert_eq!(addr::from(i.dest_addr, i.dest_addrlen), Some(peer));
        free(info);
    }
}

#[test]
fn link_local_addresses_are_offered_only_where_a_domain_has_no_other() {
    let offer = |domain: &[u8; 4], addr: &str| {
        let mut entry = entry();
        entry.domain_name[..4].copy_from_slice(domain);
        let (bytes, len) = addr::bytes(&addr.parse().unwrap());
        entry.src_addr.len = len as u32;
        entry.src_addr.data[..bytes.len()].copy_from_slice(&bytes);
        Info::from_raw(entry)
    };
    let all = [
        offer(b"rxe0", "[fe80::1]:0"),
        offer(b"rxe0", "[fd77::1]:0"),
        offer(b"rxe0", "10.1.1.1:0"),
        offer(b"rxe1", "[fe80::2]:0"),
    ];
    let mut left = all.to_vec();
    skip_link_local(&mut left);
    let left: Vec<String> = left
        .iter()
        .map(|o| o.source().unwrap().to_string())
        .collect();
    assert_eq!(left, ["[fd77::1]:0", "10.1.1.1:0", "[fe80::2]:0"]);
}

#[test]
fn keys_of_an_endpoint_are_not_offered_to_rxm() {
    let mut asked = Asked::new();
    asked.info.mode = FI_RX_CQ_DATA | FI_CONTEXT;
    assert!(!wants_own_keys(&asked.hints()));
    asked.domain.mr_mode = FI_MR_ENDPOINT as c_int;
    assert!(wants_own_keys(&asked.hints()));
    (asked.tx.size, asked.rx.size) = (128, 128);
    assert!(!wants_own_keys(&asked.hints()));
    asked.info.mode = FI_RX_CQ_DATA;
    assert!(wants_own_keys(&asked.hints()));
}

#[test]
fn later_address_of_a_name_adds_domains_that_no_earlier_one_lists() {
    let tried = std::cell::RefCell::new(Vec::new());
    // Address 2 reaches kshm, twice; 3 reaches kshm and a device.
    let list = |n: i32, listed: &[String]| {
        tried.borrow_mut().push(n);
        let all = match n {
            0 => return Err(libc::ENODATA),
            1 => vec![],
            2 => vec!["shm", "shm"],
            _ => vec!["shm", "rxe0"],
        };
        let new = |name: &&str| !listed.iter().any(|other| other == name);
        let all = all.into_iter().filter(new);
        Ok(all.map(|name| (name.to_owned(), (n, name))).collect())
    };
    let wanted = vec![(2, "shm"), (2, "shm"), (3, "rxe0")];
    assert_eq!(by_domain(vec![0, 1, 2, 3, 0], list), Ok(wanted));
    assert_eq!(*tried.borrow(), [0, 1, 2, 3, 0]);
    assert_eq!(by_domain(vec![0, 1], list), Ok(vec![]));
    assert_eq!(by_domain(vec![1, 0], list), Err(libc::ENODATA));
}
