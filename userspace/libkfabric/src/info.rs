// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offers of providers, and hints for choosing among them.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use kfabric_uapi as abi;

use crate::addr;
use crate::error::{Error, Result};
use crate::flags::{Caps, MrMode};
use crate::object::{put_text, text};

/// One offer of a provider: a fabric, a domain on the fabric, and their capabilities and limits.
#[derive(Clone)]
pub struct Info {
    raw: Box<abi::InfoEntry>,
}

impl Info {
    pub(crate) fn new(raw: abi::InfoEntry) -> Self {
        Self { raw: Box::new(raw) }
    }

    /// Makes an offer of an entry, for tests of programs that choose among offers.
    pub fn from_raw(raw: abi::InfoEntry) -> Self {
        Self::new(raw)
    }

    /// Provider name.
    pub fn provider(&self) -> &str {
        str_of(&self.raw.prov_name)
    }

    /// Fabric name.
    pub fn fabric(&self) -> &str {
        str_of(&self.raw.fabric_name)
    }

    /// Domain name.
    pub fn domain(&self) -> &str {
        str_of(&self.raw.domain_name)
    }

    /// Capabilities of the offer.
    pub fn caps(&self) -> Caps {
        Caps::from_bits_retain(self.raw.caps)
    }

    /// Registration modes that the provider requires.
    pub fn mr_mode(&self) -> MrMode {
        MrMode::from_bits_retain(self.raw.mr_mode)
    }

    /// Source address, if the hints had an address.
    pub fn source(&self) -> Option<SocketAddr> {
        addr::from_abi(&self.raw.src_addr)
    }

    /// Destination address, if the hints had one.
    pub fn destination(&self) -> Option<SocketAddr> {
        addr::from_abi(&self.raw.dest_addr)
    }

    /// The provider's version: major, minor.
    pub fn version(&self) -> (u32, u32) {
        (self.raw.prov_version >> 16, self.raw.prov_version & 0xffff)
    }

    /// The entry as the kernel returned it, with all limits.
    pub fn raw(&self) -> &abi::InfoEntry {
        &self.raw
    }
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Info({}: {} on {})",
            self.provider(),
            self.domain(),
            self.fabric()
        )
    }
}

/// Borrows text from a NUL-padded array; empty if the text is not UTF-8.
fn str_of(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

/// Requirements for an offer. A field that is not set matches every offer.
///
/// ```
/// # use libkfabric as kfabric;
/// use kfabric::{Caps, Hints};
///
/// let hints = Hints::new().caps(Caps::MSG | Caps::RMA).provider("kverbs").destination("192.0.2.7", 7471);
/// # let _ = hints;
/// ```
#[derive(Clone, Debug)]
pub struct Hints {
    caps: Caps,
    mode: u64,
    mr_mode: MrMode,
    ep_type: u32,
    addr_format: u32,
    api_version: u32,
    max_msg_size: u64,
    tx_size: u32,
    rx_size: u32,
    provider: String,
    fabric: String,
    domain: String,
    source: Option<(String, u16)>,
    destination: Option<(String, u16)>,
}

impl Default for Hints {
    fn default() -> Self {
        Self::new()
    }
}

impl Hints {
    /// Makes hints that match every offer: no requirement, and every mode is accepted.
    pub fn new() -> Self {
        Self {
            caps: Caps::empty(),
            mode: u64::MAX,
            mr_mode: MrMode::all(),
            ep_type: 0,
            addr_format: 0,
            api_version: 0,
            max_msg_size: 0,
            tx_size: 0,
            rx_size: 0,
            provider: String::new(),
            fabric: String::new(),
            domain: String::new(),
            source: None,
            destination: None,
        }
    }

    /// Capabilities that the program needs.
    #[must_use]
    pub fn caps(mut self, caps: Caps) -> Self {
        self.caps = caps;
        self
    }

    /// Modes that the program supports; by default all.
    #[must_use]
    pub fn mode(mut self, mode: u64) -> Self {
        self.mode = mode;
        self
    }

    /// Registration modes that the program supports; by default all.
    #[must_use]
    pub fn mr_mode(mut self, mr_mode: MrMode) -> Self {
        self.mr_mode = mr_mode;
        self
    }

    /// Endpoint type, `KFI_EP_*`.
    #[must_use]
    pub fn ep_type(mut self, ep_type: u32) -> Self {
        self.ep_type = ep_type;
        self
    }

    /// Address format, `KFI_SOCKADDR*`.
    #[must_use]
    pub fn addr_format(mut self, addr_format: u32) -> Self {
        self.addr_format = addr_format;
        self
    }

    /// API version of the program: major << 16 | minor.
    #[must_use]
    pub fn api_version(mut self, api_version: u32) -> Self {
        self.api_version = api_version;
        self
    }

    /// Bytes that one operation must be able to transfer.
    #[must_use]
    pub fn max_msg_size(mut self, bytes: u64) -> Self {
        self.max_msg_size = bytes;
        self
    }

    /// Numbers of operations that the two sides of an endpoint must hold.
    #[must_use]
    pub fn sizes(mut self, tx: u32, rx: u32) -> Self {
        self.tx_size = tx;
        self.rx_size = rx;
        self
    }

    /// Name of the provider.
    #[must_use]
    pub fn provider(mut self, name: &str) -> Self {
        self.provider = name.to_owned();
        self
    }

    /// Name of the fabric.
    #[must_use]
    pub fn fabric(mut self, name: &str) -> Self {
        self.fabric = name.to_owned();
        self
    }

    /// Name of the domain (the device).
    #[must_use]
    pub fn domain(mut self, name: &str) -> Self {
        self.domain = name.to_owned();
        self
    }

    /// Local address: node and service of `fi_getinfo` with `FI_SOURCE`.
    #[must_use]
    pub fn source(mut self, node: &str, port: u16) -> Self {
        self.source = Some((node.to_owned(), port));
        self
    }

    /// The peer's address: node and service of `fi_getinfo`.
    #[must_use]
    pub fn destination(mut self, node: &str, port: u16) -> Self {
        self.destination = Some((node.to_owned(), port));
        self
    }

    /// Local address, as [`Hints::source`].
    #[must_use]
    pub fn source_addr(self, addr: SocketAddr) -> Self {
        self.source(&addr::host(&addr), addr.port())
    }

    /// The peer's address, as [`Hints::destination`].
    #[must_use]
    pub fn destination_addr(self, addr: SocketAddr) -> Self {
        self.destination(&addr::host(&addr), addr.port())
    }

    pub(crate) fn to_abi(&self) -> Result<abi::InfoEntry> {
        let mut raw = abi::InfoEntry {
            caps: self.caps.bits(),
            mode: self.mode,
            mr_mode: self.mr_mode.bits(),
            ep_type: self.ep_type,
            addr_format: self.addr_format,
            api_version: self.api_version,
            max_msg_size: self.max_msg_size,
            tx_size: self.tx_size,
            rx_size: self.rx_size,
            ..abi::InfoEntry::default()
        };
        let address = |node: &Option<(String, u16)>| -> Result<abi::SockAddr> {
            let addr = node
                .as_ref()
                .map(|(node, port)| addr::resolve(node, *port))
                .transpose()?;
            Ok(addr::to_abi(addr))
        };
        raw.src_addr = address(&self.source)?;
        raw.dest_addr = address(&self.destination)?;
        for (what, field, value) in [
            ("provider name", &mut raw.prov_name, &self.provider),
            ("fabric name", &mut raw.fabric_name, &self.fabric),
            ("domain name", &mut raw.domain_name, &self.domain),
        ] {
            if !put_text(field, value) {
                return Err(Error::Argument {
                    what,
                    why: format!("longer than {} bytes", field.len() - 1),
                });
            }
        }
        debug_assert_eq!(text(&raw.prov_name), self.provider);
        Ok(raw)
    }
}
