// SPDX-License-Identifier: GPL-2.0
//! Environment of the tests: three registered fake providers, and helpers that make objects on
//! them.

use kernel::{
    bindings,
    page::Page,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    base::name::name_str,
    ep::{
        Endpoint,
        EpAttr,
        LocalMem,
        Post, //
    },
    key::Region,
    memory::Memory,
    objects::{
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric, //
    },
    op::OpKind,
    provider::registry::{
        self,
        Registration, //
    },
    sys::net::Net,
    uapi::*,
};

use crate::{
    check_eq,
    fake::{
        ipv4,
        Control,
        Fake,
        Spec, //
    },
    ktap::Outcome,
};

/// A mode that `kfitest-c` requires (`FI_CONTEXT`).
pub(crate) const MODE: u64 = 1 << 59;

const ALL_CAPS: u64 = KFI_MSG
    | KFI_RMA
    | KFI_SEND
    | KFI_RECV
    | KFI_READ
    | KFI_WRITE
    | KFI_REMOTE_READ
    | KFI_REMOTE_WRITE
    | KFI_LOCAL_COMM;

// The ranks are low, so that a program that asks for the best provider gets a real one.
static A: Spec = Spec {
    name: "kfitest-a",
    version: 1 << 16 | 2,
    fabric: "kfitest-fabric-a",
    devices: &[
        ("kfa0", 3, ipv4([192, 0, 2, 1], 0)),
        ("kfa1", 1, ipv4([192, 0, 2, 2], 0)),
    ],
    caps: ALL_CAPS | KFI_DYNAMIC_KEYS | KFI_SINGLE_USE_KEYS,
    mode: 0,
    mr_mode: KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_ALLOCATED | KFI_MR_PROV_KEY,
};
static B: Spec = Spec {
    name: "kfitest-b",
    version: 3 << 16,
    fabric: "kfitest-fabric-b",
    devices: &[("kfb0", 2, ipv4([192, 0, 2, 3], 0))],
    caps: KFI_MSG | KFI_SEND | KFI_RECV,
    mode: 0,
    mr_mode: 0,
};
static C: Spec = Spec {
    name: "kfitest-c",
    version: 1 << 16,
    fabric: "kfitest-fabric-c",
    devices: &[("kfc0", 2, ipv4([192, 0, 2, 4], 0))],
    caps: ALL_CAPS,
    mode: MODE,
    mr_mode: KFI_MR_LOCAL,
};

/// A registered provider, and the test's control of it.
pub(crate) struct One {
    // Dropped first, so that the provider is unregistered.
    _registration: Registration,
    /// Controls the provider's behaviour.
    pub(crate) control: Arc<Control>,
}

impl One {
    /// Registers a provider.
    pub(crate) fn new(spec: &'static Spec, module: &'static ThisModule) -> Result<Self> {
        let (provider, control) = Fake::make(spec)?;
        Ok(Self {
            _registration: Registration::new(provider, module)?,
            control,
        })
    }
}

/// The environment of the tests.
pub(crate) struct Bench {
    /// The network namespace of all look-ups.
    pub(crate) net: Net,
    /// The module of the tests.
    pub(crate) module: &'static ThisModule,
    /// The provider with all capabilities.
    pub(crate) a: One,
    /// The provider with messages only.
    pub(crate) b: One,
    /// The provider that requires a mode.
    _c: One,
    references: i32,
}

impl Bench {
    /// Registers the three providers.
    pub(crate) fn new(module: &'static ThisModule) -> Result<Self> {
        let mut bench = Self {
            net: Net::current(),
            module,
            a: One::new(&A, module)?,
            b: One::new(&B, module)?,
            _c: One::new(&C, module)?,
            references: 0,
        };
        bench.references = bench.references();
        Ok(bench)
    }

    /// Returns the number of references to this module.
    pub(crate) fn references(&self) -> i32 {
        // SAFETY: The module is our own, so it exists.
        unsafe { bindings::module_refcount(self.module.as_ptr()) }
    }

    /// Waits up to 5 s until this module has no other users.
    pub(crate) fn settle(&self) -> Outcome {
        for _ in 0..500 {
            if self.references() == self.references {
                break;
            }
            fsleep(Delta::from_millis(10));
        }
        check_eq!(self.references(), self.references);
        Ok(())
    }

    /// Returns our providers' entries that match, best first.
    pub(crate) fn found(&self, hints: Option<&InfoEntry>) -> Result<Found> {
        let entries = match registry::getinfo(&self.net, hints) {
            Ok(entries) => entries,
            Err(e) if e == kfabric::base::errno::enodata() => KVec::new(),
            Err(e) => return Err(e),
        };
        let mut ours = KVec::new();
        for entry in entries {
            if name_str(&entry.prov_name)?.starts_with("kfitest-") {
                ours.push(entry, GFP_KERNEL)?;
            }
        }
        Ok(Found(ours))
    }

    /// Opens the device of `kfitest-a` that the tests of objects use.
    pub(crate) fn domain(&self) -> Result<Arc<Domain>> {
        let fabric = Fabric::open(self.net.clone(), A.name, "")?;
        Domain::open(&fabric, "kfa0")
    }
}

/// Entries of our own providers.
pub(crate) struct Found(pub(crate) KVec<InfoEntry>);

impl Found {
    /// Returns whether the entries are those of these devices, in this order.
    pub(crate) fn are(&self, devices: &[&str]) -> bool {
        self.0.len() == devices.len()
            && self
                .0
                .iter()
                .zip(devices)
                .all(|(entry, device)| name_str(&entry.domain_name) == Ok(*device))
    }
}

/// Returns hints that match every provider.
pub(crate) fn any() -> InfoEntry {
    InfoEntry {
        mode: !0,
        mr_mode: !0,
        ..InfoEntry::default()
    }
}

/// Registers `count` new pages.
pub(crate) fn region(
    domain: &Arc<Domain>,
    count: usize,
    access: u64,
    dynamic: bool,
) -> Result<Arc<Region>> {
    let mut pages = KVVec::new();
    for _ in 0..count {
        pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
    }
    Region::register(domain, Memory::from_pages(pages)?, access, dynamic)
}

/// An endpoint with its queues; fields are dropped in this order.
pub(crate) struct Ends {
    /// The endpoint.
    pub(crate) ep: Arc<Endpoint>,
    /// Completion queue of both sides.
    pub(crate) cq: Arc<Cq>,
    /// Event queue.
    pub(crate) eq: Arc<Eq>,
}

impl Ends {
    /// Opens and binds an endpoint. `depth`: entries of the completion queue.
    pub(crate) fn new(domain: &Arc<Domain>, depth: u32) -> Result<Self> {
        let eq = Eq::open(domain.fabric(), 0, None)?;
        let cq = Cq::open(domain, depth, KFI_CQ_FORMAT_DATA, None)?;
        let attr = EpAttr {
            context: 77,
            iov_limit: 2,
            ..EpAttr::default()
        };
        let ep = Endpoint::open(domain, &attr, None)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        Ok(Self { ep, cq, eq })
    }

    /// Opens and connects an endpoint, and reads the event.
    pub(crate) fn connected(domain: &Arc<Domain>, depth: u32, control: &Control) -> Result<Self> {
        let ends = Self::new(domain, depth)?;
        ends.ep.enable()?;
        ends.ep.connect(&ipv4([192, 0, 2, 9], 1), &[])?;
        control.endpoint()?.sink.connected(&[]);
        ends.eq.read().ok_or(EIO)?;
        Ok(ends)
    }

    /// Posts an operation.
    pub(crate) fn post(&self, kind: OpKind, context: u64, segs: LocalMem) -> Result {
        self.ep.post(plain(kind, context, segs))
    }

    /// Reads a completion.
    pub(crate) fn completion(&self) -> Option<CqEntry> {
        let mut entries = [CqEntry::default()];
        (self.cq.read(&mut entries) == 1).then_some(entries[0])
    }
}

/// Returns an operation without flags and data.
pub(crate) fn plain(kind: OpKind, context: u64, segs: LocalMem) -> Post<'static> {
    Post {
        kind,
        flags: 0,
        context,
        data: 0,
        remote_addr: 0,
        key: 0,
        inject: &[],
        atomic: None,
        segs,
    }
}
