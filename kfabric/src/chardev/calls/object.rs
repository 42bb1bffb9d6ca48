// SPDX-License-Identifier: GPL-2.0
//! The calls that open, bind, enable and close objects.
//!
//! Counters, regions and key slots have files of their own.

use kernel::prelude::*;
use zerocopy::IntoBytes;

use crate::{
    auth::{
        admit,
        Authorization,
        ResourceRequest, //
    },
    base::name::name_str,
    chardev::{
        admission::{
            admit_on,
            check_grants,
            read_auth_key, //
        },
        args::{
            check_addr,
            zero, //
        },
        file::File,
        handles::{
            Entry,
            Object, //
        },
        queue_file::{
            descriptor,
            Queue, //
        },
        undo::Undo,
        user, //
    },
    ep::{
        Endpoint,
        EpAttr, //
    },
    objects::{
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    uapi::*,
};

pub(crate) fn fabric_open(file: &File, call: &mut FabricOpen) -> Result<Undo> {
    zero(&[call.flags])?;
    let fabric = Fabric::open_for_program(
        file.net.clone(),
        name_str(&call.prov_name)?,
        name_str(&call.fabric_name)?,
    )?;
    call.handle = file.publish(Object::Fabric(fabric), 0)?;
    Ok(Undo::Object(call.handle))
}

pub(crate) fn domain_open(file: &File, call: &mut DomainOpen) -> Result<Undo> {
    zero(&[
        call.flags & !KFI_DOMAIN_STRICT_KEYS,
        call.reserved,
        call.reserved2,
    ])?;
    let strict = call.flags & KFI_DOMAIN_STRICT_KEYS != 0;
    let key = read_auth_key(call.auth_key, call.auth_key_size)?;
    let fabric = file.handles.fabric(call.fabric)?;
    let domain = Domain::open_for_program(&fabric, name_str(&call.name)?, key.as_ref(), strict)?;
    let attr = *domain.attr();
    call.caps = attr.caps;
    call.mr_mode = attr.mr_mode;
    call.max_msg_size = attr.max_msg_size;
    call.inject_size = attr.inject_size;
    call.max_tx_size = attr.max_tx_size;
    call.max_rx_size = attr.max_rx_size;
    call.iov_limit = attr.iov_limit;
    call.cm_data_size = domain.cm_data_size(key.is_some());
    call.max_keys = attr.max_keys;
    call.visible = attr.visible;
    call.durable = attr.durable;
    call.handle = file.publish(Object::Domain(domain), call.fabric)?;
    Ok(Undo::Object(call.handle))
}

/// Creates a queue's descriptor, which is not visible to the program yet.
fn with_fd(file: &File, handle: u64, queue: Queue) -> Result<(Undo, i32)> {
    let undo = descriptor(queue).inspect_err(|_| {
        let _ = file.close(handle);
    });
    undo.map(|(fd, queue, number)| (Undo::Queue(handle, fd, queue), number))
}

pub(crate) fn eq_open(file: &File, call: &mut EqOpen) -> Result<Undo> {
    zero(&[call.flags])?;
    let eq = Eq::open(&file.handles.fabric(call.fabric)?, call.depth, None)?;
    call.handle = file.publish(Object::Eq(eq.clone()), call.fabric)?;
    let (undo, fd) = with_fd(file, call.handle, Queue::Eq(eq))?;
    call.fd = fd;
    Ok(undo)
}

pub(crate) fn cq_open(file: &File, call: &mut CqOpen) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    let cq = Cq::open(
        &file.handles.domain(call.domain)?,
        call.depth,
        call.format,
        None,
    )?;
    call.entries = cq.entries();
    call.map_size = cq.ring().raw().1 as u64;
    call.handle = file.publish(Object::Cq(cq.clone()), call.domain)?;
    let (undo, fd) = with_fd(file, call.handle, Queue::Cq(cq))?;
    call.fd = fd;
    Ok(undo)
}

/// Reads the auth keys that a passive endpoint listens with, and checks their grants.
fn listen_under(file: &File, call: &PepOpen) -> Result<KVec<Authorization>> {
    // CAST: A `u32` fits.
    let count = call.auth_key_count as usize;
    if count > KFI_PEP_AUTH_KEYS_MAX || (count == 0) != (call.auth_keys == 0) {
        return Err(EINVAL);
    }
    let mut found: KVec<Authorization> = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    for index in 0..count {
        let mut one = AuthKeyRef::default();
        // CAST: The structure is small.
        let at = user::entry_at(call.auth_keys, size_of::<AuthKeyRef>() as u32, index);
        user::read_bytes(at, one.as_mut_bytes())?;
        zero(&[one.reserved])?;
        let key = read_auth_key(one.addr, one.size)?.ok_or(EINVAL)?;
        if found.iter().any(|other| other.number() == key.number()) {
            return Err(EINVAL);
        }
        found.push(Authorization::of(Some(&key)), GFP_KERNEL_ACCOUNT)?;
    }
    if count == 0 {
        // In mode enforce, no peer could connect without an auth key, and the address would be in
        // use: fail here.
        admit(&file.net, "", None, ResourceRequest::endpoints(1))?;
    }
    for under in found.iter_mut() {
        under.lease = admit(
            &file.net,
            "",
            under.key.as_ref(),
            ResourceRequest::endpoints(1),
        )?;
    }
    Ok(found)
}

pub(crate) fn pep_open(file: &File, call: &mut PepOpen) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    check_addr(&call.addr)?;
    if call.addr.len == 0 {
        return Err(EINVAL);
    }
    let fabric = file.handles.fabric(call.fabric)?;
    let eq = file.handles.eq(call.eq)?;
    let under = listen_under(file, call)?;
    let pep = PassiveEp::open_under(&fabric, &eq, &call.addr, call.context, under)?;
    call.handle = file.publish(Object::Pep(pep.clone()), call.fabric)?;
    pep.set_handle(call.handle);
    let undo = Undo::Object(call.handle);
    check_grants(file, undo, pep.auth().iter())
}

pub(crate) fn ep_open(file: &File, call: &mut EpOpen) -> Result<Undo> {
    zero(&[
        call.flags & !(KFI_EP_OWN_KEYS | KFI_EP_RINGS | KFI_EP_STRICT_KEYS),
        call.reserved2,
        call.reserved3,
    ])?;
    let rings = match call.flags & KFI_EP_RINGS {
        0 => {
            zero(&[call.rings_version])?;
            None
        }
        _ => Some(call.rings_version),
    };
    check_addr(&call.src_addr)?;
    let key = read_auth_key(call.auth_key, call.auth_key_size)?;
    let domain = file.handles.domain(call.domain)?;
    let request = match call.connreq {
        0 => None,
        handle => Some(file.handles.request(handle)?),
    };
    let attr = EpAttr {
        tx_size: call.tx_size,
        rx_size: call.rx_size,
        iov_limit: call.iov_limit,
        src_addr: call.src_addr,
        context: call.context,
        own_keys: call.flags & KFI_EP_OWN_KEYS != 0,
        reuse_values: false,
        strict_values: call.flags & KFI_EP_STRICT_KEYS != 0,
    };
    let under = admit_on(
        file,
        &domain,
        key,
        domain.auth(),
        ResourceRequest::endpoints(1),
    )?;
    // Before a request is used up: nothing fails after that.
    let place = file.handles.reserve()?;
    let ep = Endpoint::open_under(&domain, &attr, request.as_ref(), under, rings)?;
    call.tx_size = ep.attr().tx_size;
    call.rx_size = ep.attr().rx_size;
    call.iov_limit = ep.attr().iov_limit;
    call.cm_data_size = ep.cm_data_size();
    let entry = Entry {
        object: Object::Ep(ep.clone()),
        parent: call.domain,
    };
    call.handle = place.insert(entry).inspect_err(|_| ep.close())?;
    ep.set_handle(call.handle);
    if request.is_some() {
        // The request is used up: its handle is removed even if the answer cannot be copied out.
        let _ = file.handles.remove(call.connreq);
    }
    let undo = Undo::Object(call.handle);
    check_grants(file, undo, core::iter::once(ep.under()))
}

pub(crate) fn bind(file: &File, call: &mut Bind) -> Result<Undo> {
    zero(&[call.flags])?;
    let ep = file.handles.ep(call.ep)?;
    match &file.handles.get(call.object)? {
        Object::Eq(_) if call.bind_flags != 0 => return Err(EINVAL),
        Object::Eq(eq) => ep.bind_eq(eq)?,
        Object::Cq(cq) => ep.bind_cq(cq, call.bind_flags)?,
        Object::Cntr(cntr) => ep.bind_cntr(cntr, call.bind_flags)?,
        _ => return Err(ENOENT),
    }
    Ok(Undo::NoAnswer)
}

pub(crate) fn enable(file: &File, call: &mut ObjectCall) -> Result<Undo> {
    zero(&[call.flags])?;
    file.handles.ep(call.handle)?.enable()?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn close(file: &File, call: &mut Close) -> Result<Undo> {
    zero(&[call.flags])?;
    file.close(call.handle)?;
    Ok(Undo::NoAnswer)
}
