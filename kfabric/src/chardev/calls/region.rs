// SPDX-License-Identifier: GPL-2.0
//! The call on regions: `KFI_IOC_REGION_REG`.

use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};

use crate::{
    auth::{
        Authorization,
        ResourceRequest, //
    },
    base::errno::eopnotsupp,
    chardev::{
        admission::{
            admit_on,
            check_grants,
            read_auth_key, //
        },
        args::zero,
        file::File,
        handles::Object,
        undo::Undo, //
    },
    ep::Endpoint,
    key::{
        region::Authorizations,
        Region, //
    },
    memory::Memory,
    objects::domain::Domain,
    pure::{
        persist::Persistence,
        range,
        rights, //
    },
    uapi::*,
};

/// Checks the grants for a region, and for a key of its own if it gets one.
fn register_under(
    file: &File,
    call: &RegionReg,
    domain: &Arc<Domain>,
    ep: Option<&Endpoint>,
) -> Result<Authorizations> {
    let given = read_auth_key(call.auth_key, call.auth_key_size)?;
    let other = match ep {
        Some(ep) => ep.under().key.as_ref(),
        None => domain.auth(),
    };
    if let (Some(_), Some(key)) = (ep, &given) {
        if other.is_none_or(|other| !other.is(key)) {
            return Err(EINVAL);
        }
    }
    let key = given.or_else(|| other.cloned());
    let dynamic = call.flags & KFI_REGION_DYNAMIC_KEYS != 0;
    let own = !dynamic && rights::has_remote(call.access);
    let mut unders = Authorizations {
        memory: Authorization::of(key.as_ref()),
        own: Authorization::of(key.as_ref()),
    };
    // Without an auth key and without a key of its own, a region needs no grant.
    if key.is_some() || own {
        // A region pins whole pages.
        let pages = range::pages_spanned(call.addr, call.len, PAGE_SHIFT as u32).unwrap_or(0);
        let want = ResourceRequest::memory(pages << PAGE_SHIFT, 0);
        unders.memory = admit_on(file, domain, None, key.as_ref(), want)?;
    }
    if own {
        unders.own = admit_on(
            file,
            domain,
            None,
            key.as_ref(),
            ResourceRequest::memory(0, 1),
        )?;
    }
    Ok(unders)
}

pub(crate) fn region_reg(file: &File, call: &mut RegionReg) -> Result<Undo> {
    let known = KFI_REGION_DYNAMIC_KEYS | KFI_REGION_PMEM | KFI_REGION_DEVICE;
    zero(&[call.flags & !known, call.reserved, call.reserved2])?;
    if call.flags & KFI_REGION_DEVICE != 0 {
        return Err(eopnotsupp());
    }
    if !rights::valid_region_access(call.access) {
        return Err(EINVAL);
    }
    let domain = file.handles.domain(call.domain)?;
    let of = file.handles.optional_ep(call.ep)?;
    if of
        .as_ref()
        .is_some_and(|ep| !Arc::ptr_eq(ep.domain(), &domain))
    {
        return Err(EINVAL);
    }
    let addr = usize::try_from(call.addr).map_err(|_| EINVAL)?;
    let len = usize::try_from(call.len).map_err(|_| EINVAL)?;
    let unders = register_under(file, call, &domain, of.as_deref())?;
    let memory = Memory::pin_user(addr, len, rights::needs_write(call.access))?;
    if call.flags & KFI_REGION_PMEM != 0 {
        Region::check_durable(&domain, &memory)?;
    }
    call.persistence = match memory.persistence() {
        Persistence::None => KFI_PERSISTENCE_NONE,
        // The kernel tells of persistent caches only for block devices, which programs do not register.
        Persistence::Adr | Persistence::Eadr => KFI_PERSISTENCE_ADR,
        Persistence::DeviceFlush => KFI_PERSISTENCE_DEVICE,
    };
    let dynamic = call.flags & KFI_REGION_DYNAMIC_KEYS != 0;
    call.pages = memory.charged() as u64;
    let of = of.as_deref();
    let region = Region::register_under(&domain, of, memory, call.access, dynamic, unders)?;
    let key = region.key();
    call.key = key.key;
    call.remote_addr = key.remote_addr;
    call.handle = file.publish(Object::Region(region.clone()), call.domain)?;
    let undo = Undo::Object(call.handle);
    let own = region.own().map(|key| key.under());
    check_grants(
        file,
        undo,
        [Some(region.under()), own].into_iter().flatten(),
    )
}
