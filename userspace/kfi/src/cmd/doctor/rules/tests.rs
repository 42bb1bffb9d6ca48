// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the rules.

use std::net::IpAddr;

use super::super::facts::{Address, Auth, Caller, Discipline, Link, Options, Port};
use super::super::path::{Answer, Request, Seen};
use super::*;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A host without a finding.
fn well() -> Facts {
    Facts {
        loaded: vec!["kverbs", "kshm", "kfabric"],
        kernel: Kernel {
            release: "7.2.12+deb13-amd64".to_owned(),
            kfabric: Some(true),
            rxe: Some(true),
            dkms: true,
            headers: true,
            source: true,
            signing: Signing::Optional,
        },
        node: Some(Node {
            mode: 0o660,
            group: "rdma".to_owned(),
            member: false,
        }),
        group_exists: true,
        device: "/dev/kfabric".into(),
        number: Some("10:250".to_owned()),
        opened: true,
        abi: Some(uapi::KFI_ABI_VERSION),
        caller: Caller {
            user: "alice".to_owned(),
            memlock: Some(8 << 20),
            unlimited: false,
        },
        ports: Some(vec![Port {
            device: "rxe0".to_owned(),
            port: 1,
            state: "ACTIVE".to_owned(),
            netdev: Some("eth0".to_owned()),
            soft: true,
        }]),
        links: Some(vec![Link {
            name: "eth0".to_owned(),
            flags: vec!["UP".to_owned(), "LOWER_UP".to_owned()],
            mtu: 4200,
            queue: 1000,
            addresses: vec![Address {
                local: OWN.to_string(),
                prefix: 24,
            }],
            disciplines: Some(vec![discipline("noqueue", None)]),
        }]),
        auth: Some(Auth {
            enforce: false,
            agent: false,
            grants: 0,
            policy: false,
        }),
        ..Facts::default()
    }
}

fn discipline(kind: &str, parent: Option<&str>) -> Discipline {
    Discipline {
        kind: kind.to_owned(),
        parent: parent.map(str::to_owned),
        options: Options::default(),
    }
}

fn link(facts: &mut Facts) -> &mut Link {
    &mut facts.links.as_mut().unwrap()[0]
}

fn port(facts: &mut Facts) -> &mut Port {
    &mut facts.ports.as_mut().unwrap()[0]
}

fn node(facts: &mut Facts) -> &mut Node {
    facts.node.as_mut().unwrap()
}

/// Makes the host one on which no module is loaded yet.
fn idle(facts: &mut Facts) {
    facts.loaded.clear();
    (facts.opened, facts.abi, facts.number, facts.auth) = (false, None, None, None);
}

fn reachable() -> Seen {
    Seen {
        own: Ok(OWN),
        short: Answer::Arrived,
        length: 4176,
        long: Answer::Arrived,
        fits: None,
        request: Request::Answered,
    }
}

fn worst(findings: &[Finding]) -> &Finding {
    findings.iter().max_by_key(|finding| finding.level).unwrap()
}

/// Checks the worst finding: its level, its check, and the beginning of its command, with the label
/// that is printed.
fn expect(findings: &[Finding], level: Level, check: &str, command: &str) {
    let found = worst(findings);
    assert_eq!((found.level, found.check), (level, check), "{found:?}");
    let (mend, check) = (&found.mend, &found.check_command);
    let printed = match (mend, check) {
        (Some(mend), None) => format!("mend: {mend}"),
        (None, Some(check)) => format!("check: {check}"),
        (None, None) => String::new(),
        (Some(_), Some(_)) => panic!("{found:?}"),
    };
    assert!(printed.starts_with(command), "{printed}");
}

/// Checks the worst finding of a host that differs from a well one.
fn host_with(change: impl FnOnce(&mut Facts), level: Level, check: &str, command: &str) {
    let mut facts = well();
    change(&mut facts);
    expect(&host(&facts), level, check, command);
}

/// Checks the worst finding of a path from a well host that differs from a good path.
fn path_with(change: impl FnOnce(&mut Seen), level: Level, check: &str, command: &str) {
    let mut seen = reachable();
    change(&mut seen);
    expect(&path(&well(), PEER, &seen), level, check, command);
}

#[test]
fn well_host_and_path_have_no_finding() {
    assert_eq!(worst(&host(&well())).level, Level::Ok);
    assert_eq!(worst(&path(&well(), PEER, &reachable())).level, Level::Ok);
}

#[test]
fn host_after_boot_has_no_finding() {
    let mut facts = well();
    idle(&mut facts);
    let findings = host(&facts);
    let bad = |finding: &&Finding| finding.level >= Level::Warning;
    assert_eq!(findings.iter().find(bad), None);
    assert_eq!(findings[0].what, "kfabric loads on first use");
    let of = |check| findings.iter().find(|f| f.check == check).unwrap();
    assert_eq!(of("device").level, Level::Ok);
}

#[test]
fn module_that_cannot_load_is_found_with_what_is_missing() {
    use Level::{Error, Unknown};
    let with = |change: fn(&mut Facts), level, command: &str| {
        let all = |facts: &mut Facts| {
            idle(facts);
            change(facts);
        };
        host_with(all, level, "module", command);
    };
    with(|f| f.node = None, Error, "mend: modprobe kfabric");
    type Case = (fn(&mut Kernel), &'static str);
    let missing: [Case; 4] = [
        (|_| (), "mend: dkms autoinstall -k 7.2.12+deb13-amd64"),
        (
            |k| k.source = false,
            "mend: apt install linux-source-7.2 && dkms autoinstall -k 7.2.12+deb13-amd64",
        ),
        (
            |k| (k.headers, k.source) = (false, false),
            "mend: apt install linux-headers-7.2.12+deb13-amd64 linux-source-7.2 && dkms ",
        ),
        (|k| k.dkms = false, "mend: apt install ./kfabric-dkms_*.deb"),
    ];
    for (change, command) in missing {
        let all = |facts: &mut Facts| {
            idle(facts);
            facts.kernel.kfabric = Some(false);
            change(&mut facts.kernel);
        };
        host_with(all, Error, "module", command);
    }
    with(
        |f| f.kernel.signing = Signing::NotEnrolled,
        Error,
        "mend: mokutil --import /var/lib/dkms/mok.pub",
    );
    let mut facts = well();
    idle(&mut facts);
    facts.kernel.signing = Signing::Unknown;
    let found = host(&facts).remove(0);
    assert_eq!(found.level, Unknown);
    assert_eq!(
        found.check_command.as_deref(),
        Some("mokutil --test-key /var/lib/dkms/mok.pub")
    );
}

#[test]
fn each_fault_of_a_host_is_found_with_its_command() {
    use Level::{Error, Warning};
    host_with(
        |f| f.loaded = vec!["kshm", "kfabric"],
        Error,
        "module",
        "mend: modprobe kverbs",
    );
    host_with(
        |f| f.caller.memlock = Some(0),
        Error,
        "memlock",
        "mend: echo 'alice - memlock unlimited' >>/etc/security/limits.d/kfabric.conf",
    );
    host_with(
        |f| (f.caller.memlock, f.caller.user) = (Some(0), "1234".to_owned()),
        Error,
        "memlock",
        "mend: echo '1234:1234 - memlock",
    );
    host_with(
        |f| link(f).addresses.clear(),
        Error,
        "address",
        "check: ip address show dev eth0",
    );
    host_with(
        |f| f.auth.as_mut().unwrap().enforce = true,
        Error,
        "auth",
        "mend: systemctl start kfi-authd",
    );
    host_with(
        |f| (f.auth, f.socket) = (None, Socket::Dead),
        Warning,
        "auth",
        "mend: systemctl start kfi-authd",
    );
}

#[test]
fn version_of_the_interface_is_for_information() {
    let facts = Facts {
        abi: Some(99),
        ..well()
    };
    assert_eq!(worst(&host(&facts)).level, Level::Ok);
}

#[test]
fn stale_modules_are_replaced_after_their_units_stop() {
    let stale = |f: &mut Facts| f.stale.push("kshm");
    host_with(
        stale,
        Level::Warning,
        "version",
        "mend: modprobe -r kverbs kshm kfabric && modprobe -a kverbs kshm kfabric   # or reboot",
    );
    host_with(
        |f| {
            stale(f);
            f.units = vec!["kfi-export@a.service".to_owned(), "kfi-authd.service".to_owned()];
        },
        Level::Warning,
        "version",
        "mend: systemctl stop kfi-export@a.service kfi-authd.service && modprobe -r kverbs kshm kfabric && \
         modprobe -a kverbs kshm kfabric && systemctl start kfi-export@a.service kfi-authd.service",
    );
}

#[test]
fn refused_device_is_judged_by_mode_and_membership() {
    use Level::{Error, Warning};
    fn refused(facts: &mut Facts, errno: Errno) {
        (facts.opened, facts.refused) = (false, Some(errno));
    }
    let ruled = "mend: chgrp rdma /dev/kfabric && chmod 660 /dev/kfabric";
    host_with(
        |f| node(f).group = "root".to_owned(),
        Warning,
        "device",
        ruled,
    );
    let mend = "mend: gpasswd --add alice rdma";
    host_with(|f| refused(f, Errno::EACCES), Error, "device", mend);
    host_with(
        |f| {
            refused(f, Errno::EACCES);
            node(f).mode = 0o600;
        },
        Error,
        "device",
        ruled,
    );
    host_with(
        |f| {
            refused(f, Errno::EPERM);
            node(f).member = true;
        },
        Error,
        "device",
        "check: dmesg",
    );
    host_with(
        |f| refused(f, Errno::ENXIO),
        Error,
        "device",
        "check: ls -l /dev/kfabric",
    );
    host_with(
        |f| f.node = None,
        Error,
        "device",
        "mend: mknod -m 660 /dev/kfabric c 10 250 && chgrp rdma /dev/kfabric",
    );
    host_with(
        |f| (f.node, f.group_exists) = (None, false),
        Error,
        "device",
        "mend: groupadd --system rdma && mknod ",
    );
}

#[test]
fn port_that_is_down_is_judged_by_its_link() {
    use Level::{Error, Warning};
    fn down(facts: &mut Facts, flags: &[&str]) {
        port(facts).state = "DOWN".to_owned();
        link(facts).flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    host_with(|f| down(f, &[]), Error, "port", "mend: ip link set eth0 up");
    host_with(|f| down(f, &["UP"]), Error, "port", "check: ethtool eth0");
    host_with(
        |f| down(f, &["UP", "LOWER_UP"]),
        Error,
        "port",
        "check: rdma link show rxe0/1",
    );
    let none = |f: &mut Facts| f.ports = Some(Vec::new());
    let mend = "mend: rdma link add rxe0 type rxe netdev eth0";
    host_with(none, Warning, "port", mend);
    host_with(
        |f| {
            none(f);
            f.kernel.rxe = Some(false);
        },
        Warning,
        "port",
        "check: grep RDMA_RXE /boot/config-7.2.12+deb13-amd64",
    );
}

#[test]
fn short_queue_is_found_whatever_its_kind() {
    for (kind, limit, flow_limit) in [
        ("fq_codel", Some(10_240), None),
        ("pfifo", Some(10), None),
        ("pfifo_fast", None, None),
        ("fq", Some(10_000), Some(100)),
        ("fq", None, None),
        ("sfq", Some(127), None),
    ] {
        let change = |facts: &mut Facts| {
            let link = link(facts);
            link.queue = 10;
            let mut one = discipline(kind, None);
            (one.options.limit, one.options.flow_limit) = (limit, flow_limit);
            link.disciplines = Some(vec![one]);
        };
        let mend = "mend: tc qdisc replace dev eth0 root pfifo limit 10000   # until";
        host_with(change, Level::Warning, "queue", mend);
    }
}

#[test]
fn long_queue_of_fq_is_no_finding() {
    let mut facts = well();
    let mut one = discipline("fq", None);
    one.options.flow_limit = Some(10_000);
    link(&mut facts).disciplines = Some(vec![one]);
    assert_eq!(worst(&host(&facts)).level, Level::Ok);
}

#[test]
fn queues_of_a_card_stay_several() {
    let change = |facts: &mut Facts| {
        let queues = [":1", ":2", ":3"].map(|parent| discipline("fq_codel", Some(parent)));
        let all = [discipline("mq", None)].into_iter().chain(queues);
        link(facts).disciplines = Some(all.collect());
    };
    let mend = "mend: tc qdisc replace dev eth0 root handle 1: mq && for queue in $(seq 3); do ";
    host_with(change, Level::Warning, "queue", mend);
}

#[test]
fn each_fault_of_a_path_is_found_with_its_command() {
    use Level::{Error, Unknown};
    path_with(
        |s| (s.long, s.fits) = (Answer::Silence, Some(1500)),
        Error,
        "mtu",
        "mend: ip link set eth0 mtu 1500",
    );
    path_with(
        |s| s.long = Answer::Silence,
        Unknown,
        "mtu",
        "check: ping -M do -s 4148 192.0.2.2",
    );
    path_with(
        |s| s.request = Request::Silence,
        Error,
        "connect",
        "check: nft list ruleset   # on 192.0.2.2",
    );
    path_with(
        |s| s.short = Answer::Refused(Errno::EHOSTUNREACH),
        Error,
        "peer",
        "check: ip route get 192.0.2.2",
    );
}

#[test]
fn missing_route_is_judged_by_errno_and_networks() {
    use Level::Error;
    let none = |s: &mut Seen| s.own = Err(Errno::ENETUNREACH);
    path_with(
        none,
        Error,
        "route",
        "mend: ip route add 192.0.2.0/24 dev eth0",
    );
    path_with(
        |s| s.own = Err(Errno::EACCES),
        Error,
        "route",
        "check: ip route get 192.0.2.2",
    );
    let mut seen = reachable();
    none(&mut seen);
    let far = IpAddr::from([198, 51, 100, 7]);
    expect(
        &path(&well(), far, &seen),
        Error,
        "route",
        "check: ip route show",
    );
    let mut facts = well();
    link(&mut facts).flags.clear();
    let mend = "mend: ip link set eth0 up";
    expect(&path(&facts, PEER, &seen), Error, "route", mend);
}

#[test]
fn missing_grant_does_not_blame_the_peer() {
    for errno in [Errno::ENOKEY, Errno::EACCES, Errno::EKEYEXPIRED] {
        path_with(
            |s| s.request = Request::NeedsGrant(errno),
            Level::Unknown,
            "connect",
            "check: kfi auth mode",
        );
    }
    path_with(
        |s| s.request = Request::Broken("no address".to_owned()),
        Level::Unknown,
        "connect",
        "check: dmesg",
    );
}

#[test]
fn module_without_a_provider_is_loaded_and_makes_no_offer() {
    let facts = Facts {
        loaded: vec!["kfabric"],
        abi: None,
        ports: Some(Vec::new()),
        ..well()
    };
    let findings = host(&facts);
    let of = |check| findings.iter().find(|f| f.check == check).unwrap();
    assert_eq!(of("device").level, Level::Ok);
    assert_eq!(of("version").what, "no provider makes an offer");
    assert_eq!(of("module").mend.as_deref(), Some("modprobe kshm"));
}

#[test]
fn fact_that_cannot_be_read_is_unknown() {
    let facts = Facts {
        ports: None,
        auth: None,
        ..well()
    };
    let findings = host(&facts);
    let unknown: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.level == Level::Unknown)
        .map(|finding| finding.check)
        .collect();
    assert_eq!(unknown, ["port", "auth"]);
}
