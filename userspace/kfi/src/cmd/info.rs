// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi info`: the offers of providers, in the output formats of fi_info.

use std::collections::BTreeMap;
use std::fmt::Write;

use kfabric::{uapi, Caps, Device, Hints, MrMode, Reach};
use serde::Serialize;

use super::{print, print_json};
use crate::cli::Info as Args;
use crate::error::{During, Failure, Result};

/// Capabilities by libfabric's names. kfabric's own capabilities have the prefix `KFI_`.
const CAPS: &[(&str, Caps)] = &[
    ("FI_MSG", Caps::MSG),
    ("FI_RMA", Caps::RMA),
    ("FI_ATOMIC", Caps::ATOMIC),
    ("FI_READ", Caps::READ),
    ("FI_WRITE", Caps::WRITE),
    ("FI_RECV", Caps::RECV),
    ("FI_SEND", Caps::SEND),
    ("FI_REMOTE_READ", Caps::REMOTE_READ),
    ("FI_REMOTE_WRITE", Caps::REMOTE_WRITE),
    ("FI_LOCAL_COMM", Caps::LOCAL_COMM),
    ("FI_REMOTE_COMM", Caps::REMOTE_COMM),
    ("KFI_DYNAMIC_KEYS", Caps::DYNAMIC_KEYS),
    ("KFI_EP_KEYS", Caps::EP_KEYS),
    ("KFI_SINGLE_USE_KEYS", Caps::SINGLE_USE_KEYS),
    ("KFI_UNREGISTERED_RMA", Caps::UNREGISTERED_RMA),
    ("FI_RMA_PMEM", Caps::RMA_PMEM),
];

const MR_MODES: &[(&str, MrMode)] = &[
    ("FI_MR_LOCAL", MrMode::LOCAL),
    ("FI_MR_VIRT_ADDR", MrMode::VIRT_ADDR),
    ("FI_MR_ALLOCATED", MrMode::ALLOCATED),
    ("FI_MR_PROV_KEY", MrMode::PROV_KEY),
];

#[derive(Serialize)]
struct Offer {
    provider: String,
    fabric: String,
    domain: String,
    version: String,
    r#type: String,
    protocol: String,
    caps: Vec<String>,
    mr_mode: Vec<String>,
    mode: u64,
    addr_format: String,
    src_addr: Option<String>,
    dest_addr: Option<String>,
    max_msg_size: u64,
    inject_size: u64,
    tx_size: u32,
    rx_size: u32,
    iov_limit: u32,
    rma_iov_limit: u32,
    cq_data_size: u32,
    mr_key_size: u32,
    cm_data_size: u32,
    /// How writes become visible, and durable: `no`, `native` or `assisted`.
    visible: String,
    durable: String,
    /// How a key is revoked: `native`, `deregister` or `invalidate`.
    revocation: String,
    /// Maximum number of pages of a key by fast registration, if there is a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_key_pages: Option<u32>,
    api_version: String,
    rank: u32,
    /// MiB that devices may allocate for the objects of each user.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_mib: Option<u64>,
}

/// A user's share of what devices allocate, where the provider has one.
fn user_mib(provider: &str) -> Option<u64> {
    let path = format!("/sys/module/{provider}/parameters/user_mib");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Names of the bits that are set. Bits without a name are shown as one number.
fn names(bits: u64, known: impl Iterator<Item = (&'static str, u64)>) -> Vec<String> {
    let mut left = bits;
    let mut out = Vec::new();
    for (name, bit) in known {
        if left & bit == bit && bit != 0 {
            out.push(name.to_owned());
            left &= !bit;
        }
    }
    if left != 0 {
        out.push(format!("{left:#x}"));
    }
    out
}

fn version(v: u32) -> String {
    format!("{}.{}", v >> 16, v & 0xffff)
}

fn ep_type(n: u32) -> String {
    match n {
        uapi::KFI_EP_MSG => "FI_EP_MSG".to_owned(),
        n => format!("{n}"),
    }
}

impl Offer {
    fn new(info: &kfabric::Info) -> Self {
        let raw = info.raw();
        Self {
            provider: info.provider().to_owned(),
            fabric: info.fabric().to_owned(),
            domain: info.domain().to_owned(),
            version: version(raw.prov_version),
            r#type: ep_type(raw.ep_type),
            protocol: match raw.protocol {
                uapi::KFI_PROTO_RDMA_CM_IB_RC => "FI_PROTO_RDMA_CM_IB_RC".to_owned(),
                uapi::KFI_PROTO_IWARP => "FI_PROTO_IWARP".to_owned(),
                uapi::KFI_PROTO_SHM => "FI_PROTO_SHM".to_owned(),
                n => format!("{n}"),
            },
            caps: names(raw.caps, CAPS.iter().map(|(n, c)| (*n, c.bits()))),
            mr_mode: names(raw.mr_mode, MR_MODES.iter().map(|(n, m)| (*n, m.bits()))),
            mode: raw.mode,
            addr_format: match raw.addr_format {
                uapi::KFI_SOCKADDR => "FI_SOCKADDR".to_owned(),
                uapi::KFI_SOCKADDR_IN => "FI_SOCKADDR_IN".to_owned(),
                uapi::KFI_SOCKADDR_IN6 => "FI_SOCKADDR_IN6".to_owned(),
                n => format!("{n}"),
            },
            src_addr: info.source().map(|a| a.to_string()),
            dest_addr: info.destination().map(|a| a.to_string()),
            max_msg_size: raw.max_msg_size,
            inject_size: raw.inject_size,
            tx_size: raw.tx_size,
            rx_size: raw.rx_size,
            iov_limit: raw.iov_limit,
            rma_iov_limit: raw.rma_iov_limit,
            cq_data_size: raw.cq_data_size,
            mr_key_size: raw.mr_key_size,
            cm_data_size: raw.cm_data_size,
            visible: Reach::from_abi(raw.visible).to_string(),
            durable: Reach::from_abi(raw.durable).to_string(),
            revocation: match raw.revocation {
                uapi::KFI_REVOCATION_NATIVE => "native".to_owned(),
                uapi::KFI_REVOCATION_DEREGISTER => "deregister".to_owned(),
                uapi::KFI_REVOCATION_INVALIDATE => "invalidate".to_owned(),
                n => format!("{n}"),
            },
            max_key_pages: Some(raw.max_key_pages).filter(|pages| *pages != u32::MAX),
            api_version: version(raw.api_version),
            rank: raw.rank,
            user_mib: user_mib(info.provider()),
        }
    }

    /// The default output of `fi_info`.
    fn stanza(&self) -> String {
        format!(
            "provider: {}\n    fabric: {}\n    domain: {}\n    version: {}\n    type: {}\n    protocol: {}\n",
            self.provider, self.fabric, self.domain, self.version, self.r#type, self.protocol
        )
    }

    /// The nested output of `fi_info -v`.
    fn verbose(&self) -> String {
        let list = |names: &[String]| format!("[ {} ]", names.join(", "));
        let none = || "(none)".to_owned();
        let mut t = String::from("---\nfi_info:\n");
        let mut line = |depth: usize, name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string cannot fail.
            let line = format!("{:width$}{name}: {value}", "", width = depth * 4);
            let _ = writeln!(t, "{}", line.trim_end());
        };
        line(1, "caps", &list(&self.caps));
        line(1, "mode", &format_args!("{:#x}", self.mode));
        line(1, "addr_format", &self.addr_format);
        line(1, "src_addr", &self.src_addr.clone().unwrap_or_else(none));
        line(1, "dest_addr", &self.dest_addr.clone().unwrap_or_else(none));
        line(1, "tx_attr", &"");
        line(2, "inject_size", &self.inject_size);
        line(2, "size", &self.tx_size);
        line(2, "iov_limit", &self.iov_limit);
        line(2, "rma_iov_limit", &self.rma_iov_limit);
        line(1, "rx_attr", &"");
        line(2, "size", &self.rx_size);
        line(2, "iov_limit", &self.iov_limit);
        line(1, "ep_attr", &"");
        line(2, "type", &self.r#type);
        line(2, "protocol", &self.protocol);
        line(2, "max_msg_size", &self.max_msg_size);
        line(1, "domain_attr", &"");
        line(2, "name", &self.domain);
        line(2, "mr_mode", &list(&self.mr_mode));
        line(2, "mr_key_size", &self.mr_key_size);
        line(2, "cq_data_size", &self.cq_data_size);
        line(2, "cm_data_size", &self.cm_data_size);
        line(2, "visible", &self.visible);
        line(2, "durable", &self.durable);
        line(2, "revocation", &self.revocation);
        if let Some(pages) = self.max_key_pages {
            line(2, "max_key_pages", &pages);
        }
        if let Some(mib) = self.user_mib {
            line(2, "user_mib", &mib);
        }
        line(1, "fabric_attr", &"");
        line(2, "name", &self.fabric);
        line(2, "prov_name", &self.provider);
        line(2, "prov_version", &self.version);
        line(2, "api_version", &self.api_version);
        line(1, "rank", &self.rank);
        t
    }
}

/// Reads capabilities such as `FI_MSG|FI_RMA`, `msg,rma` or `KFI_DYNAMIC_KEYS`.
fn parse_caps(text: &str) -> Result<Caps> {
    let mut caps = Caps::empty();
    for word in text.split(['|', ',', ' ']).filter(|w| !w.is_empty()) {
        let wanted = word.to_ascii_uppercase();
        let bare = |name: &str| {
            name.trim_start_matches('K')
                .trim_start_matches("FI_")
                .to_owned()
        };
        let found = CAPS.iter().find(|(name, _)| bare(name) == bare(&wanted));
        let (_, bit) = found.ok_or_else(|| {
            let known: Vec<&str> = CAPS.iter().map(|(name, _)| *name).collect();
            Failure::Usage(format!(
                "capability `{word}` is unknown; known are {}",
                known.join(", ")
            ))
        })?;
        caps |= *bit;
    }
    Ok(caps)
}

fn hints(args: &Args) -> Result<Hints> {
    let mut hints = Hints::new();
    if let Some(name) = &args.provider {
        hints = hints.provider(name);
    }
    if let Some(name) = &args.fabric {
        hints = hints.fabric(name);
    }
    if let Some(name) = &args.domain {
        hints = hints.domain(name);
    }
    if let Some(caps) = &args.caps {
        hints = hints.caps(parse_caps(caps)?);
    }
    if let Some(text) = &args.ep_type {
        let text = text.to_ascii_uppercase();
        hints = match text.trim_start_matches("FI_EP_") {
            "MSG" => hints.ep_type(uapi::KFI_EP_MSG),
            _ => {
                return Err(Failure::Usage(format!(
                    "endpoint type `{text}` is unknown; known is FI_EP_MSG"
                )))
            }
        };
    }
    if let Some(node) = &args.node {
        hints = hints.destination(node, args.port);
    }
    if let Some(node) = &args.source {
        hints = hints.source(node, 0);
    }
    Ok(hints)
}

/// Runs `kfi info`.
///
/// # Errors
///
/// - [`Failure::NoMatch`] if no offer matches.
///
/// Also those of the kernel.
pub fn run(args: &Args, json: bool) -> Result<()> {
    if args.env {
        return env(json);
    }
    let hints = hints(args)?;
    let device = Device::open().during("open")?;
    let infos = device.info(&hints).during("getinfo")?;
    if infos.is_empty() {
        return Err(Failure::NoMatch);
    }
    let offers: Vec<Offer> = infos.iter().map(Offer::new).collect();
    if args.list {
        let providers: BTreeMap<&str, &str> = offers
            .iter()
            .map(|o| (o.provider.as_str(), o.version.as_str()))
            .collect();
        if json {
            return print_json(&providers);
        }
        let lines = providers
            .iter()
            .map(|(name, version)| format!("{name}:\n    version: {version}\n"));
        return print(&lines.collect::<String>());
    }
    if json {
        return print_json(&offers);
    }
    let one = if args.verbose {
        Offer::verbose
    } else {
        Offer::stanza
    };
    let mut text = offers.iter().map(one).collect::<String>();
    if args.verbose {
        text.push_str(&limits(&|name| {
            std::fs::read_to_string(format!("/sys/module/kfabric/parameters/{name}")).ok()
        }));
    }
    print(&text)
}

/// The limits of one user, which hold for all without `CAP_SYS_RESOURCE`: parameters of the module.
fn limits(parameter: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = String::from("---\nuser_limits:\n");
    for (name, unit) in [
        ("user_slots", " % of the key slots of a device"),
        (
            "user_requests",
            " unanswered connection requests by a provider",
        ),
    ] {
        let value = parameter(name);
        let shown = match value.as_deref().map(str::trim) {
            None => "(unknown)".to_owned(),
            Some(value) => format!("{value}{unit}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {name}: {shown}");
    }
    text
}

fn env(json: bool) -> Result<()> {
    let value = std::env::var(kfabric::DEVICE_ENV).ok();
    if json {
        return print_json(&BTreeMap::from([(kfabric::DEVICE_ENV, value)]));
    }
    let value = value.unwrap_or_else(|| format!("not set, means {}", kfabric::DEVICE_PATH));
    print(&format!(
        "# {}: String\n# the device file\n# {value}\n",
        kfabric::DEVICE_ENV
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_caps_reads_names() {
        assert_eq!(parse_caps("FI_MSG|FI_RMA").unwrap(), Caps::MSG | Caps::RMA);
        assert_eq!(
            parse_caps("msg,dynamic_keys").unwrap(),
            Caps::MSG | Caps::DYNAMIC_KEYS
        );
        assert_eq!(parse_caps("KFI_DYNAMIC_KEYS").unwrap(), Caps::DYNAMIC_KEYS);
        assert!(matches!(parse_caps("FI_TELEPATHY"), Err(Failure::Usage(_))));
    }

    #[test]
    fn limits_of_a_user_are_shown() {
        let shown = limits(&|name| match name {
            "user_slots" => Some("25\n".to_owned()),
            _ => None,
        });
        assert!(shown.contains("user_slots: 25 % of the key slots of a device\n"));
        assert!(shown.contains("user_requests: (unknown)\n"));
    }

    #[test]
    fn names_of_unknown_bits_are_a_number() {
        let shown = names(0b110 | 1 << 60, CAPS.iter().map(|(n, c)| (*n, c.bits())));
        assert_eq!(shown, ["FI_MSG", "FI_RMA", "0x1000000000000000"]);
    }
}
