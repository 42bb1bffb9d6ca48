// SPDX-License-Identifier: MIT OR Apache-2.0

//! Info entries of providers, and opening and closing objects (fabtests: `getinfo_test`).

use super::refused;
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx, Test, ONE, SMOKE};
use crate::pair::{own_info, Side, LOCAL};
use crate::raw::{field_text, from_sockaddr, hints, name_field, Dev};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::IpAddr;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("getinfo.without_hints_lists_own_device", lists_own_device).also(SMOKE),
    Test::alone("getinfo.with_hints_narrows_the_list", hints_narrow),
    Test::alone(
        "getinfo.with_short_array_returns_full_count",
        short_array_tells_count,
    ),
    Test::alone("getinfo.addresses_of_vlan_and_bond_are_listed", uppers)
        .seconds(10)
        .on(ONE),
    Test::alone("getinfo.addresses_of_ipv6_only_host_are_listed", ipv6_only)
        .seconds(10)
        .on(ONE),
    Test::alone(
        "getinfo.offer_of_a_port_without_link_ranks_lower",
        without_link,
    )
    .seconds(10)
    .on(ONE),
    Test::pair(
        "getinfo.iwarp_device_is_used_only_if_allowed",
        iwarp_allowed,
    )
    .verbs(),
    Test::alone("open.object_with_wrong_name_is_refused", wrong_names),
    Test::alone(
        "open.close_of_object_in_use_is_refused",
        close_order_is_kept,
    ),
    Test::alone(
        "open.handle_after_close_is_refused",
        closed_handles_stay_dead,
    ),
    Test::alone("open.objects_while_open_are_listed", objects_are_listed),
    Test::alone("open.fdinfo_of_open_file_shows_its_objects", fdinfo_tells),
];

fn lists_own_device(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let e = own_info(&dev, &ctx.env)?;
    ensure!(e.ep_type == KFI_EP_MSG, "endpoint type {}", e.ep_type);
    for cap in [
        KFI_MSG,
        KFI_RMA,
        KFI_READ,
        KFI_WRITE,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE,
        KFI_DYNAMIC_KEYS,
    ] {
        ensure!(
            e.caps & cap == cap,
            "capability {cap:#x} is missing in {:#x}",
            e.caps
        );
    }
    ensure!(e.max_msg_size >= 1 << 30, "max_msg_size {}", e.max_msg_size);
    ensure!(
        e.inject_size > 0 && e.inject_size as usize <= KFI_INJECT_MAX,
        "inject_size {}",
        e.inject_size
    );
    ensure!(
        e.iov_limit as usize == KFI_IOV_MAX,
        "iov_limit {}",
        e.iov_limit
    );
    // iWARP has no immediate data.
    let iwarp = e.protocol == KFI_PROTO_IWARP;
    let data = if iwarp { 0 } else { 4 };
    ensure!(e.cq_data_size == data && e.cm_data_size >= 16, "{e:?}");
    ensure!(e.tx_size > 0 && e.rx_size > 0, "{e:?}");
    ensure!(
        e.abi == KFI_ABI_VERSION && e.api_version >> 16 == KFI_API_VERSION >> 16,
        "{e:?}"
    );
    ensure!(field_text(&e.prov_name) == ctx.provider(), "{e:?}");
    ensure!(
        !field_text(&e.domain_name).is_empty() && !field_text(&e.fabric_name).is_empty(),
        "{e:?}"
    );
    Ok(())
}

/// The module parameter that allows iWARP devices.
const IWARP: &str = "/sys/module/kverbs/parameters/iwarp";

fn iwarp_allowed(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    if own_info(&dev, &ctx.env)?.protocol != KFI_PROTO_IWARP {
        return skip("the device's protocol is not iWARP");
    }
    ctx.barrier("known")?;
    if ctx.first() {
        let own = InfoEntry {
            domain_name: name_field(&ctx.env.dev),
            ..hints()
        };
        std::fs::write(IWARP, "N").context(IWARP)?;
        let hidden = refused_or_empty(&dev, &own, "a device that is not allowed");
        std::fs::write(IWARP, "Y").context(IWARP)?;
        hidden?;
    }
    ctx.barrier("allowed")?;
    own_info(&dev, &ctx.env).map(drop)
}

fn hints_narrow(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let own = own_info(&dev, &ctx.env)?;
    let none = InfoEntry {
        prov_name: name_field("no-such-provider"),
        ..hints()
    };
    refused_or_empty(&dev, &none, "an unknown provider")?;
    let odd = InfoEntry {
        caps: 1 << 3,
        ..hints()
    };
    refused_or_empty(&dev, &odd, "a capability that no provider has")?;
    let odd = InfoEntry {
        domain_name: name_field("no-such-domain"),
        ..hints()
    };
    refused_or_empty(&dev, &odd, "an unknown domain")?;
    let odd = InfoEntry {
        ep_type: 3,
        ..hints()
    };
    refused_or_empty(&dev, &odd, "endpoint type RDM")?;
    let named = InfoEntry {
        domain_name: own.domain_name,
        ..hints()
    };
    let list = dev.getinfo(Some(&named))?;
    ensure!(!list.is_empty(), "its own domain name matches nothing");
    ensure!(
        list.iter().all(|e| e.domain_name == own.domain_name),
        "a domain that was not asked for"
    );
    for pair in list.windows(2) {
        ensure!(pair[0].rank >= pair[1].rank, "entries are not ranked");
    }
    let from = InfoEntry {
        src_addr: own.src_addr,
        ..hints()
    };
    let list = dev.getinfo(Some(&from))?;
    ensure!(
        list.iter().any(|e| e.domain_name == own.domain_name),
        "its own address matches nothing"
    );
    let ip = |e: &InfoEntry| from_sockaddr(&e.src_addr).map(|a| a.ip());
    ensure!(
        list.iter().all(|e| ip(e) == ip(&own)),
        "an address that was not asked for"
    );
    Ok(())
}

/// A network device with an RDMA device of its own. Both end with the value.
struct Card;

/// Name of the [`Card`]'s network device.
const CARD: &str = "kfi-card";
/// Name of the [`Card`]'s RDMA device.
const RDMA: &str = "rxe_card";
/// Name of an interface above the [`Card`].
const UPPER: &str = "kfi-upper";
/// Time limit for a change of addresses to reach the device's GID table.
const WAIT: Duration = Duration::from_secs(20);

impl Card {
    /// Makes a device without an IPv4 address.
    fn new() -> Result<Self> {
        ip(&["link", "add", CARD, "type", "dummy"])?;
        let card = Self;
        ip(&["link", "set", CARD, "up"])?;
        run(
            "rdma",
            &["link", "add", RDMA, "type", "rxe", "netdev", CARD],
        )?;
        Ok(card)
    }

    /// Waits until getinfo lists the RDMA device at `addr`, or until it no longer does.
    fn listed(&self, dev: &Dev, addr: &str, wanted: bool) -> Result<()> {
        let host: IpAddr = addr.parse()?;
        let hints = InfoEntry {
            domain_name: name_field(RDMA),
            ..hints()
        };
        let what = format!("{addr} is {}listed", if wanted { "" } else { "not " });
        until(&what, WAIT, || {
            let list = dev.getinfo(Some(&hints)).unwrap_or_default();
            let times = list
                .iter()
                .filter(|entry| from_sockaddr(&entry.src_addr).is_some_and(|at| at.ip() == host))
                .count();
            ensure!(times < 2, "{addr} is listed {times} times");
            Ok(((times == 1) == wanted).then_some(()))
        })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        for name in [UPPER, CARD] {
            let _ = ip(&["link", "delete", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    run("ip", args).map(drop)
}

/// Addresses of a VLAN over the device's interface, and of a bond that contains the interface.
fn uppers(ctx: &mut Ctx) -> Result<()> {
    // Both nodes are in one namespace.
    if !ctx.first() {
        return Ok(());
    }
    let dev = Dev::open()?;
    let card = Card::new()?;
    let (own, vlan, bond) = ("192.0.2.1", "198.51.100.1", "203.0.113.1");
    ip(&["addr", "add", &format!("{own}/24"), "dev", CARD])?;
    card.listed(&dev, own, true)?;
    ip(&[
        "link", "add", "link", CARD, "name", UPPER, "type", "vlan", "id", "5",
    ])?;
    ip(&["link", "set", UPPER, "up"])?;
    ip(&["addr", "add", &format!("{vlan}/24"), "dev", UPPER])?;
    card.listed(&dev, vlan, true)?;
    ip(&["link", "delete", UPPER])?;
    card.listed(&dev, vlan, false)?;
    card.listed(&dev, own, true)?;
    // Without a parameter the module makes a bond of its own.
    run("modprobe", &["bonding", "max_bonds=0"])?;
    ip(&[
        "link",
        "add",
        UPPER,
        "type",
        "bond",
        "mode",
        "active-backup",
    ])?;
    ip(&["addr", "flush", "dev", CARD])?;
    ip(&["link", "set", CARD, "down"])?;
    ip(&["link", "set", CARD, "master", UPPER])?;
    ip(&["link", "set", UPPER, "up"])?;
    ip(&["addr", "add", &format!("{bond}/24"), "dev", UPPER])?;
    card.listed(&dev, bond, true)?;
    card.listed(&dev, own, false)?;
    drop(card);
    run("modprobe", &["-r", "bonding"]).map(drop)
}

/// A host without IPv4.
fn ipv6_only(ctx: &mut Ctx) -> Result<()> {
    // Both nodes are in one namespace.
    if !ctx.first() {
        return Ok(());
    }
    let dev = Dev::open()?;
    let card = Card::new()?;
    let addr = "2001:db8::1";
    ip(&["addr", "add", &format!("{addr}/64"), "nodad", "dev", CARD])?;
    card.listed(&dev, addr, true)?;
    ip(&["addr", "flush", "dev", CARD])?;
    card.listed(&dev, addr, false)
}

/// An offer ranks lower while the interface has no carrier.
fn without_link(ctx: &mut Ctx) -> Result<()> {
    // Both nodes are in one namespace.
    if !ctx.first() {
        return Ok(());
    }
    let dev = Dev::open()?;
    let card = Card::new()?;
    let addr = "192.0.2.1";
    ip(&["addr", "add", &format!("{addr}/24"), "dev", CARD])?;
    card.listed(&dev, addr, true)?;
    let hints = InfoEntry {
        domain_name: name_field(RDMA),
        ..hints()
    };
    let ranks = |what: &str, right: &dyn Fn(u32) -> bool| {
        until(what, WAIT, || {
            let list = dev.getinfo(Some(&hints)).unwrap_or_default();
            Ok(list
                .first()
                .map(|entry| entry.rank)
                .filter(|&rank| right(rank)))
        })
    };
    let own = own_info(&dev, &ctx.env)?.rank;
    let before = ranks("it ranks as others", &|rank| rank >= own)?;
    ip(&["link", "set", CARD, "carrier", "off"])?;
    ranks("it ranks lower", &|rank| rank < before)?;
    ip(&["link", "set", CARD, "carrier", "on"])?;
    ranks("it ranks as before", &|rank| rank == before)?;
    Ok(())
}

fn refused_or_empty(dev: &Dev, wanted: &InfoEntry, what: &str) -> Result<()> {
    match dev.getinfo(Some(wanted)) {
        Ok(list) => ensure!(list.is_empty(), "{what}: {} entries", list.len()),
        Err(e) => {
            let errno = e.errno.0;
            ensure!(
                [libc::ENODATA, libc::ENOENT, libc::EINVAL].contains(&errno),
                "{what}: {e}"
            );
        }
    }
    Ok(())
}

fn short_array_tells_count(_: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let all = dev.getinfo(None)?.len() as u32;
    ensure!(all > 0, "nothing is offered");
    let mut arg = GetInfo {
        entry_size: std::mem::size_of::<InfoEntry>() as u32,
        ..Default::default()
    };
    dev.call(&mut arg).context("no room at all")?;
    ensure!(
        arg.count == all,
        "{} entries with no room, {all} with room",
        arg.count
    );
    Ok(())
}

fn wrong_names(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    refused(
        dev.fabric_open("no-such-provider", ""),
        libc::ENOENT,
        "an unknown provider",
    )?;
    refused(
        dev.fabric_open("", ""),
        libc::ENOENT,
        "an empty provider name",
    )?;
    // The provider knows its fabrics, so a wrong name is found when a domain is opened.
    let info = own_info(&dev, &ctx.env)?;
    let opened = dev.fabric_open(ctx.provider(), "no-such-fabric");
    let used = opened.and_then(|f| dev.domain_open(f, &field_text(&info.domain_name)));
    refused(used, libc::ENOENT, "an unknown fabric")?;
    let fabric = dev.fabric_open(ctx.provider(), "")?;
    refused(
        dev.domain_open(fabric, "no-such-domain"),
        libc::ENOENT,
        "an unknown domain",
    )?;
    Ok(())
}

fn close_order_is_kept(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = crate::buf::Buf::new(4096)?;
    let cq = side.cq(0, 0)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let slot = dev.key_alloc(region, 1)?[0];
    let cntr = dev.cntr_open(side.domain.handle)?;
    let ep = side.endpoint(&Default::default(), &cq, 0)?.handle;
    let domain = side.domain.handle;
    refused(
        dev.close(side.fabric),
        libc::EBUSY,
        "closing a fabric with children",
    )?;
    refused(
        dev.close(domain),
        libc::EBUSY,
        "closing a domain with children",
    )?;
    refused(
        dev.close(cq.handle),
        libc::EBUSY,
        "closing a bound completion queue",
    )?;
    refused(
        dev.close(side.eq.handle),
        libc::EBUSY,
        "closing a bound event queue",
    )?;
    dev.close(ep).context("endpoint")?;
    dev.close(slot).context("key slot")?;
    dev.close(region).context("region")?;
    dev.close(cntr).context("counter")?;
    dev.close(cq.handle).context("completion queue")?;
    dev.close(side.eq.handle).context("event queue")?;
    dev.close(domain).context("domain")?;
    dev.close(side.fabric).context("fabric")?;
    Ok(())
}

fn closed_handles_stay_dead(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let mut old = Vec::new();
    for _ in 0..100 {
        let cntr = dev.cntr_open(side.domain.handle)?;
        dev.close(cntr)?;
        ensure!(!old.contains(&cntr), "handle {cntr:#x} was given out twice");
        old.push(cntr);
    }
    let _live = dev.cntr_open(side.domain.handle)?;
    for cntr in old {
        refused(
            dev.cntr_read(cntr),
            libc::ENOENT,
            "reading a closed counter",
        )?;
        refused(dev.close(cntr), libc::ENOENT, "closing a closed counter")?;
    }
    Ok(())
}

fn objects_are_listed(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = crate::buf::Buf::new(8192)?;
    let region = side.reg(&buf, LOCAL)?;
    let me = std::process::id();
    let list = side.dev.obj_list()?;
    let mine = |kind| list.iter().find(|o| o.pid == me && o.kind == kind);
    let domain = mine(KFI_TYPE_DOMAIN).context("no domain is listed")?;
    ensure!(
        domain.handle == side.domain.handle && domain.parent == side.fabric,
        "{domain:?}"
    );
    let listed = mine(KFI_TYPE_REGION).context("no region is listed")?;
    ensure!(
        listed.handle == region.handle && listed.a == 8192 && listed.c == region.pages,
        "{listed:?}"
    );
    ensure!(
        field_text(&listed.comm).starts_with("kfi-tests"),
        "{listed:?}"
    );
    ensure!(
        mine(KFI_TYPE_FABRIC).is_some() && mine(KFI_TYPE_EQ).is_some(),
        "{list:?}"
    );
    side.dev.close(region.handle)?;
    let left = side.dev.obj_list()?;
    ensure!(
        !left
            .iter()
            .any(|o| o.pid == me && o.kind == KFI_TYPE_REGION),
        "a closed region is listed"
    );
    Ok(())
}

fn fdinfo_tells(ctx: &mut Ctx) -> Result<()> {
    use std::os::fd::{AsFd, AsRawFd};
    let side = Side::open(ctx)?;
    let fd = side.dev.as_fd().as_raw_fd();
    let before = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let buf = crate::buf::Buf::new(8192)?;
    let _region = side.reg(&buf, LOCAL)?;
    let after = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    ensure!(before != after, "a region changes nothing in {before:?}");
    ensure!(
        after.lines().count() > 4,
        "it says no more than any file's: {after:?}"
    );
    Ok(())
}
