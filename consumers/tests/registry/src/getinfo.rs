// SPDX-License-Identifier: GPL-2.0
//! Tests of the list of providers, and of matching.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*, //
};
use kfabric::{
    base::name::{
        name_str,
        set_name, //
    },
    objects::{
        domain::Domain,
        fabric::Fabric, //
    },
    provider::registry,
    uapi::*,
};

use crate::{
    bench::{
        any,
        Bench,
        One,
        MODE, //
    },
    check, check_eq, check_err,
    fake::{
        ipv4,
        Spec,
        CM_DATA_SIZE,
        MAX_MSG_SIZE,
        TX_SIZE, //
    },
    ktap::{
        Failure,
        Outcome, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("providers_are_ranked", ranked),
    ("entries_are_completed", completed),
    ("hints_capabilities", capabilities),
    ("hints_modes", modes),
    ("hints_names", names),
    ("hints_addresses", addresses),
    ("hints_versions", versions),
    ("hints_limits", limits),
    ("wrong_provider_name", wrong_name),
    ("wrong_device_name", wrong_device),
    ("duplicate_name", duplicate),
    ("bad_names", bad_names),
    ("nested_getinfo", nested),
    ("failing_getinfo_hides_nobody", failing),
    ("unregister_one", unregister),
    ("kverbs_coexists", kverbs),
];

static D: Spec = Spec {
    name: "kfitest-d",
    version: 1,
    fabric: "kfitest-fabric-d",
    devices: &[("kfd0", 2, ipv4([192, 0, 2, 5], 0))],
    caps: KFI_MSG,
    mode: 0,
    mr_mode: 0,
};

fn ranked(bench: &Bench) -> Outcome {
    // Providers of equal rank are in the order of registration.
    let all = ["kfa0", "kfb0", "kfc0", "kfa1"];
    check!(bench.found(None)?.are(&all));
    check!(bench.found(Some(&any()))?.are(&all));
    Ok(())
}

fn completed(bench: &Bench) -> Outcome {
    let hints = InfoEntry {
        dest_addr: ipv4([192, 0, 2, 9], 99),
        ..any()
    };
    let found = bench.found(Some(&hints))?;
    let first = found.0.first().ok_or(ENOENT)?;
    check!(name_str(&first.prov_name)? == "kfitest-a");
    check!(name_str(&first.fabric_name)? == "kfitest-fabric-a");
    check_eq!(first.prov_version, 1 << 16 | 2);
    check_eq!(first.api_version, KFI_API_VERSION);
    check_eq!(first.abi, KFI_ABI_VERSION);
    check!(first.dest_addr == hints.dest_addr);
    check!(first.src_addr == ipv4([192, 0, 2, 1], 0));
    Ok(())
}

fn capabilities(bench: &Bench) -> Outcome {
    let with = |caps| InfoEntry { caps, ..any() };
    check!(bench
        .found(Some(&with(KFI_RMA)))?
        .are(&["kfa0", "kfc0", "kfa1"]));
    check!(bench
        .found(Some(&with(KFI_MSG | KFI_DYNAMIC_KEYS)))?
        .are(&["kfa0", "kfa1"]));
    check!(bench.found(Some(&with(KFI_ATOMIC)))?.are(&[]));
    // A capability that was not requested is not in the result.
    let found = bench.found(Some(&with(KFI_MSG)))?;
    check!(found.0.iter().all(|entry| entry.caps & KFI_RMA == 0));
    Ok(())
}

fn modes(bench: &Bench) -> Outcome {
    let none = InfoEntry { mode: 0, ..any() };
    check!(bench.found(Some(&none))?.are(&["kfa0", "kfb0", "kfa1"]));
    let enough = InfoEntry {
        mode: MODE,
        ..any()
    };
    check!(bench
        .found(Some(&enough))?
        .are(&["kfa0", "kfb0", "kfc0", "kfa1"]));
    // A target of one-sided operations must support all modes that the provider requires.
    let target = InfoEntry {
        caps: KFI_RMA,
        mr_mode: KFI_MR_LOCAL,
        ..any()
    };
    check!(bench.found(Some(&target))?.are(&["kfc0"]));
    // A sender need not support them.
    let sender = InfoEntry {
        caps: KFI_MSG,
        mr_mode: KFI_MR_LOCAL | KFI_MR_ALLOCATED,
        ..any()
    };
    check!(bench
        .found(Some(&sender))?
        .are(&["kfa0", "kfb0", "kfc0", "kfa1"]));
    let nothing = InfoEntry {
        caps: KFI_MSG,
        mr_mode: 0,
        ..any()
    };
    check!(bench.found(Some(&nothing))?.are(&["kfb0"]));
    Ok(())
}

fn names(bench: &Bench) -> Outcome {
    let mut hints = any();
    set_name(&mut hints.prov_name, "kfitest-b");
    check!(bench.found(Some(&hints))?.are(&["kfb0"]));
    set_name(&mut hints.prov_name, "KFITEST-B");
    check!(bench.found(Some(&hints))?.are(&["kfb0"]));
    let mut hints = any();
    set_name(&mut hints.fabric_name, "kfitest-fabric-a");
    check!(bench.found(Some(&hints))?.are(&["kfa0", "kfa1"]));
    set_name(&mut hints.domain_name, "kfa1");
    check!(bench.found(Some(&hints))?.are(&["kfa1"]));
    set_name(&mut hints.prov_name, "kfitest-b");
    check!(bench.found(Some(&hints))?.are(&[]));
    Ok(())
}

fn addresses(bench: &Bench) -> Outcome {
    let mut hints = InfoEntry {
        src_addr: ipv4([192, 0, 2, 2], 0),
        ..any()
    };
    check!(bench.found(Some(&hints))?.are(&["kfa1"]));
    hints.src_addr = ipv4([198, 51, 100, 1], 0);
    check!(bench.found(Some(&hints))?.are(&[]));
    let v6 = InfoEntry {
        addr_format: KFI_SOCKADDR_IN6,
        ..any()
    };
    check!(bench.found(Some(&v6))?.are(&[]));
    let either = InfoEntry {
        addr_format: KFI_SOCKADDR,
        ..any()
    };
    check!(!bench.found(Some(&either))?.0.is_empty());
    Ok(())
}

fn versions(bench: &Bench) -> Outcome {
    let api = |api_version| InfoEntry {
        api_version,
        ..any()
    };
    check!(!bench.found(Some(&api(1 << 16)))?.0.is_empty());
    check!(!bench.found(Some(&api(KFI_API_VERSION)))?.0.is_empty());
    check!(bench.found(Some(&api(KFI_API_VERSION + 1)))?.are(&[]));
    let newer = InfoEntry {
        prov_version: 2 << 16,
        ..any()
    };
    check!(bench.found(Some(&newer))?.are(&["kfb0"]));
    Ok(())
}

fn limits(bench: &Bench) -> Outcome {
    let fits = InfoEntry {
        max_msg_size: MAX_MSG_SIZE,
        tx_size: TX_SIZE / 2,
        cm_data_size: CM_DATA_SIZE,
        ..any()
    };
    let found = bench.found(Some(&fits))?;
    check_eq!(found.0.len(), 4);
    // The result has the requested size.
    check!(found.0.iter().all(|entry| entry.tx_size == TX_SIZE / 2));
    let too_long = InfoEntry {
        max_msg_size: MAX_MSG_SIZE + 1,
        ..any()
    };
    check!(bench.found(Some(&too_long))?.are(&[]));
    let too_many = InfoEntry {
        tx_size: TX_SIZE + 1,
        ..any()
    };
    check!(bench.found(Some(&too_many))?.are(&[]));
    Ok(())
}

fn wrong_name(bench: &Bench) -> Outcome {
    let open = |name| Fabric::open(bench.net.clone(), name, "");
    check_err!(open("kfitest-x"), ENOENT);
    check_err!(open("kfitest-"), ENOENT);
    check_err!(open("kfitest-aa"), ENOENT);
    check_err!(open(""), ENOENT);
    let mut hints = any();
    set_name(&mut hints.prov_name, "kfitest-x");
    check_err!(
        registry::getinfo(&bench.net, Some(&hints)),
        kfabric::base::errno::enodata()
    );
    Ok(())
}

fn wrong_device(bench: &Bench) -> Outcome {
    let fabric = Fabric::open(bench.net.clone(), "kfitest-a", "")?;
    check_err!(Domain::open(&fabric, "kfb0"), ENOENT);
    check_err!(Domain::open(&fabric, ""), ENOENT);
    // The failed opens keep no reference to the fabric.
    check_err!(Domain::open(&fabric, "kfa9"), ENOENT);
    fabric.close()?;
    // A fabric of another provider.
    check_err!(
        Fabric::open(bench.net.clone(), "kfitest-a", "kfitest-fabric-b"),
        ENOENT
    );
    let fabric = Fabric::open(bench.net.clone(), "kfitest-a", "kfitest-fabric-a")?;
    Domain::open(&fabric, "kfa0")?;
    Ok(())
}

fn duplicate(bench: &Bench) -> Outcome {
    static OTHER_A: Spec = Spec {
        name: "kfitest-a",
        devices: &[("other0", 9, ipv4([192, 0, 2, 6], 0))],
        ..D
    };
    check_err!(One::new(&OTHER_A, bench.module), EEXIST);
    // The first provider is still registered, and only it.
    check!(bench.found(None)?.are(&["kfa0", "kfb0", "kfc0", "kfa1"]));
    Ok(())
}

fn bad_names(bench: &Bench) -> Outcome {
    static EMPTY: Spec = Spec { name: "", ..D };
    static LONG: Spec = Spec {
        name: "a-name-of-thirty-two-characters-",
        ..D
    };
    check_err!(One::new(&EMPTY, bench.module), EINVAL);
    check_err!(One::new(&LONG, bench.module), EINVAL);
    Ok(())
}

fn nested(bench: &Bench) -> Outcome {
    bench.b.control.nested.store(true, Ordering::Release);
    let outer = registry::getinfo(&bench.net, None);
    bench.b.control.nested.store(false, Ordering::Release);
    let inner = bench.b.control.nested_found.load(Ordering::Relaxed);
    check_eq!(inner, outer?.len());
    Ok(())
}

fn failing(bench: &Bench) -> Outcome {
    let fail = &bench.b.control.getinfo_error;
    // CAST: An errno is a small number.
    fail.store(bindings::EIO as i32, Ordering::Relaxed);
    let found = bench.found(None);
    fail.store(0, Ordering::Relaxed);
    check!(found?.are(&["kfa0", "kfc0", "kfa1"]));
    check!(bench.found(None)?.are(&["kfa0", "kfb0", "kfc0", "kfa1"]));
    Ok(())
}

fn unregister(bench: &Bench) -> Outcome {
    let d = One::new(&D, bench.module)?;
    check!(bench
        .found(None)?
        .are(&["kfa0", "kfb0", "kfc0", "kfd0", "kfa1"]));
    drop(Fabric::open(bench.net.clone(), "kfitest-d", "")?);
    drop(d);
    check!(bench.found(None)?.are(&["kfa0", "kfb0", "kfc0", "kfa1"]));
    check_err!(Fabric::open(bench.net.clone(), "kfitest-d", ""), ENOENT);
    // The name can be used again.
    let d = One::new(&D, bench.module)?;
    drop(Fabric::open(bench.net.clone(), "kfitest-d", "")?);
    drop(d);
    Ok(())
}

fn kverbs(bench: &Bench) -> Outcome {
    let mut hints = any();
    set_name(&mut hints.prov_name, "kverbs");
    let entries = match registry::getinfo(&bench.net, Some(&hints)) {
        Ok(entries) => entries,
        Err(e) if e == kfabric::base::errno::enodata() => {
            return Err(Failure::skip("no device of kverbs here"));
        }
        Err(e) => return Err(e.into()),
    };
    check!(entries
        .iter()
        .all(|entry| name_str(&entry.prov_name) == Ok("kverbs")));
    let device = name_str(&entries[0].domain_name)?;
    let fabric = Fabric::open(
        bench.net.clone(),
        "kverbs",
        name_str(&entries[0].fabric_name)?,
    )?;
    Domain::open(&fabric, device)?.close()?;
    // The list contains both, by rank.
    let all = registry::getinfo(&bench.net, None)?;
    check!(all.is_sorted_by(|a, b| a.rank >= b.rank));
    check!(all.len() >= entries.len() + bench.found(None)?.0.len());
    Ok(())
}
