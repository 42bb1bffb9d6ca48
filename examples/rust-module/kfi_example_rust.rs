// SPDX-License-Identifier: GPL-2.0
//! kfi_example_rust: a small kernel consumer of kfabric. Loading the module connects two endpoints
//! within the host, writes to one side's memory through a key, revokes the key, and closes all.

use kernel::{
    page::Page,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::name,
    ep, key,
    memory::Memory,
    objects::{
        conn_request::Request,
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    op::OpKind,
    provider::registry,
    sys::net::Net,
    uapi::*,
};

/// The bytes that the client writes, and their place in the server's memory.
const TEXT: &[u8; 18] = b"hello from a peer!";
const OFFSET: usize = 100;

module! {
    type: Example,
    name: "kfi_example_rust",
    description: "A small consumer of kfabric in Rust",
    license: "GPL",
}

struct Example;
impl kernel::Module for Example {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // Step 1: ask for an offer of the provider within the host; open its fabric and domain.
        let net = Net::current();
        let mut hints = InfoEntry {
            caps: KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS,
            mr_mode: !0,
            ep_type: KFI_EP_MSG,
            addr_format: KFI_SOCKADDR_IN,
            ..InfoEntry::default()
        };
        name::set_name(&mut hints.prov_name, "kshm");
        let offers = registry::getinfo(&net, Some(&hints))?;
        let best = offers.first().ok_or(ENODEV)?;
        let fabric = Fabric::open(net, "kshm", name::name_str(&best.fabric_name)?)?;
        let domain = Domain::open(&fabric, name::name_str(&best.domain_name)?)?;
        exchange(&domain, &best.src_addr)?;
        // A parent refuses to close (`EBUSY`) while a child is open.
        domain.close()?;
        fabric.close()?;
        pr_info!("closed everything\n");
        Ok(Self)
    }
}

/// Runs the other steps. An early return drops the objects, which closes them, too.
fn exchange(domain: &Arc<Domain>, addr: &SockAddr) -> Result {
    // Step 2: listen, connect, accept. One event queue and one completion queue serve both sides.
    let eq = Eq::open(domain.fabric(), 0, None)?;
    let cq = Cq::open(domain, 16, KFI_CQ_FORMAT_DATA, None)?;
    let open = |request: Option<&Arc<Request>>| -> Result<Arc<ep::Endpoint>> {
        let ep = ep::Endpoint::open(domain, &ep::EpAttr::default(), request)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        Ok(ep)
    };
    let listener = PassiveEp::open(domain.fabric(), &eq, addr, 0)?;
    listener.listen(0)?;
    let client = open(None)?;
    client.connect(&listener.local_addr(), &[])?;
    let request = poll(|| eq.read())?.request;
    let server = open(request.as_ref())?;
    server.accept(&[])?;
    check(poll(|| eq.read())?.kind == KFI_CONNECTED)?;
    check(poll(|| eq.read())?.kind == KFI_CONNECTED)?;

    // Step 3: register a page of each side. A key opens a part of the server's page to peers.
    let register = |access: u64, dynamic_keys: bool| {
        let mut pages = KVVec::with_capacity(1, GFP_KERNEL)?;
        pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
        key::Region::register(domain, Memory::from_pages(pages)?, access, dynamic_keys)
    };
    let source = register(KFI_WRITE, false)?;
    let target = register(KFI_REMOTE_WRITE, true)?;
    source.memory().write(0, TEXT);
    let key = key::Key::alloc(&target)?;
    let value = key.assign(OFFSET as u64, TEXT.len() as u64, KFI_REMOTE_WRITE)?;

    // Step 4: write. A real server sends `value` to the client, for instance in a message.
    let write = || -> Result<u32> {
        let mut segs = ep::LocalMem::new();
        segs.push(OpKind::Write, source.clone(), 0, TEXT.len() as u64)?;
        client.post(ep::Post {
            kind: OpKind::Write,
            flags: 0,
            context: 1,
            data: 0,
            remote_addr: value.remote_addr,
            key: value.key,
            inject: &[],
            atomic: None,
            segs,
        })?;
        let mut done = [CqEntry::default()];
        poll(|| (cq.read(&mut done) == 1).then_some(done[0].err))
    };
    check(write()? == 0)?;
    let mut found = [0; TEXT.len()];
    target.memory().read(OFFSET, &mut found);
    check(found == *TEXT)?;
    pr_info!("wrote {} bytes through the key\n", TEXT.len());

    // Step 5: revoke. No byte moves through the key any more; an attempt ends the connection.
    key.revoke()?;
    check(write()? == EACCES.to_errno().unsigned_abs())?;
    pr_info!("the revoked key was refused\n");

    // Step 6: close, children first.
    key.close();
    target.close()?;
    source.close()?;
    client.close();
    server.close();
    listener.close();
    cq.close()?;
    eq.close()
}

/// Polls `look` until it returns a value. A driver gives its queues handlers instead and sleeps.
fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let look_again = |_| {
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
        look()
    };
    (0..10_000).find_map(look_again).ok_or(ETIMEDOUT)
}

fn check(holds: bool) -> Result {
    holds.then_some(()).ok_or(EIO)
}
