// SPDX-License-Identifier: GPL-2.0
//! Cases of devices, queues, memory and keys.

use kernel::{
    page::Page,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    key::{
        Assignment,
        Key,
        Region, //
    },
    memory::Memory,
    objects::{
        cntr::Cntr,
        cq::Cq,
        domain::Domain,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    provider::{
        registry,
        KeyValue, //
    },
    sys::net::Net,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        LOCAL,
        REMOTE, //
    },
    check, check_eq,
    ktap::Outcome,
    shot::{
        Case,
        Shot, //
    },
    station::Station,
};

/// The cases.
pub(crate) const CASES: &[(&str, Case)] = &[
    ("getinfo", getinfo),
    ("Fabric::open", fabric_open),
    ("Domain::open", domain_open),
    ("Eq::open", eq_open),
    ("Cq::open", cq_open),
    ("Cntr::open", cntr_open),
    ("PassiveEp::open", pep_open),
    ("PassiveEp::listen", pep_listen),
    ("Memory::from_pages", from_pages),
    ("Region::register contiguous", register_contiguous),
    ("Region::register scattered", register_scattered),
    ("Region::register own key", register_own_key),
    ("Region::close", region_close),
    ("Key::alloc", key_alloc),
    ("Key::assign", key_assign),
    ("Key::assign first", key_assign_first),
    ("Key::assign_many", key_assign_many),
    ("Key::revoke", key_revoke),
    ("Key::revoke_many", key_revoke_many),
    ("Key::close", key_close),
    ("Domain::close", domain_close),
];

/// The size of a page in bytes.
const PAGE: usize = kernel::page::PAGE_SIZE;

fn provider(station: &Station) -> Result<&str> {
    kfabric::base::name::name_str(&station.info().prov_name)
}

fn getinfo(_: &Station, shot: &mut Shot) -> Outcome {
    let net = Net::current();
    let found = shot.call(|| registry::getinfo(&net, None))?;
    check!(!found.is_empty());
    Ok(())
}

fn fabric_open(station: &Station, shot: &mut Shot) -> Outcome {
    let name = kfabric::base::name::name_str(&station.info().fabric_name)?;
    let provider = provider(station)?;
    let fabric = shot.call(|| Fabric::open(Net::current(), provider, name))?;
    Ok(fabric.close()?)
}

fn domain_open(station: &Station, shot: &mut Shot) -> Outcome {
    let domain = shot.call(|| Domain::open(station.fabric(), station.domain.name()))?;
    Ok(domain.close()?)
}

fn domain_close(station: &Station, shot: &mut Shot) -> Outcome {
    let domain = Domain::open(station.fabric(), station.domain.name())?;
    shot.call(|| domain.close())
}

fn eq_open(station: &Station, shot: &mut Shot) -> Outcome {
    let eq = shot.call(|| Eq::open(station.fabric(), 100, None))?;
    Ok(eq.close()?)
}

fn cq_open(station: &Station, shot: &mut Shot) -> Outcome {
    let cq = shot.call(|| Cq::open(&station.domain, 100, KFI_CQ_FORMAT_DATA, None))?;
    check_eq!(cq.entries(), 128u32);
    Ok(cq.close()?)
}

fn cntr_open(station: &Station, shot: &mut Shot) -> Outcome {
    let cntr = shot.call(|| Cntr::open(&station.domain))?;
    Ok(cntr.close()?)
}

fn pep_open(station: &Station, shot: &mut Shot) -> Outcome {
    let eq = Eq::open(station.fabric(), 0, None)?;
    let addr = station.info().src_addr;
    let pep = shot.call(|| PassiveEp::open(station.fabric(), &eq, &addr, 0))?;
    pep.close();
    Ok(eq.close()?)
}

fn pep_listen(station: &Station, shot: &mut Shot) -> Outcome {
    let eq = Eq::open(station.fabric(), 0, None)?;
    let pep = PassiveEp::open(station.fabric(), &eq, &station.info().src_addr, 0)?;
    shot.call(|| pep.listen(0))?;
    pep.close();
    Ok(eq.close()?)
}

fn pages(count: usize) -> Result<KVVec<Page>> {
    let mut pages = KVVec::new();
    for _ in 0..count {
        pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
    }
    Ok(pages)
}

/// The call consumes the pages, also if it fails, so a second call needs other pages.
fn from_pages(_: &Station, shot: &mut Shot) -> Outcome {
    let mut given = Some(pages(8)?);
    let memory = match shot.once(|| Memory::from_pages(given.take().ok_or(EINVAL)?))? {
        Ok(memory) => memory,
        Err(_) => Memory::from_pages(pages(8)?)?,
    };
    check_eq!(memory.len(), 8 * PAGE);
    Ok(())
}

fn register(
    station: &Station,
    shot: &mut Shot,
    count: usize,
    access: u64,
    dynamic: bool,
) -> Result<Arc<Region>, crate::ktap::Failure> {
    let memory = Memory::from_pages(pages(count)?)?;
    shot.call(|| Region::register(&station.domain, memory.clone(), access, dynamic))
}

fn register_contiguous(station: &Station, shot: &mut Shot) -> Outcome {
    let region = register(station, shot, 1, LOCAL, true)?;
    Ok(region.close()?)
}

/// In more pieces than can be mapped, unless the allocator returns contiguous pages: needs a
/// registration.
fn register_scattered(station: &Station, shot: &mut Shot) -> Outcome {
    let region = register(station, shot, 300, LOCAL | REMOTE, true)?;
    Ok(region.close()?)
}

fn register_own_key(station: &Station, shot: &mut Shot) -> Outcome {
    let region = register(station, shot, 2, LOCAL | REMOTE, false)?;
    check!(region.key().key != KFI_KEY_NOTAVAIL);
    Ok(region.close()?)
}

fn region_close(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::new(&station.domain, PAGE, REMOTE, false)?;
    shot.call(|| buffer.region.close())
}

fn key_alloc(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let key = shot.call(|| Key::alloc(&buffer.region))?;
    key.close();
    Ok(buffer.region.close()?)
}

fn key_assign(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, 4 * PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    let value = shot.call(|| key.assign(8, 2 * PAGE as u64, KFI_REMOTE_READ))?;
    check!(key.value() == Some(value));
    key.close();
    Ok(buffer.region.close()?)
}

/// The first key in its domain.
fn key_assign_first(station: &Station, shot: &mut Shot) -> Outcome {
    let domain = Domain::open(station.fabric(), station.domain.name())?;
    let buffer = Buffer::shared(&domain, PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    shot.call(|| key.assign(0, 64, KFI_REMOTE_READ))?;
    key.close();
    buffer.region.close()?;
    drop((key, buffer));
    Ok(domain.close()?)
}

/// Returns slots of a buffer.
fn slots(buffer: &Buffer, count: usize) -> Result<KVec<Arc<Key>>> {
    let mut keys = KVec::new();
    for _ in 0..count {
        keys.push(Key::alloc(&buffer.region)?, GFP_KERNEL)?;
    }
    Ok(keys)
}

fn one_page_each(keys: &[Arc<Key>]) -> Result<KVec<Assignment<'_>>> {
    let mut batch = KVec::new();
    for (i, key) in keys.iter().enumerate() {
        let one = Assignment {
            key,
            offset: (i * PAGE) as u64,
            len: PAGE as u64,
            access: KFI_REMOTE_READ,
            once: false,
            value: KeyValue::NONE,
        };
        batch.push(one, GFP_KERNEL)?;
    }
    Ok(batch)
}

/// After the call, exactly the slots it reported have keys; the others can be assigned afterwards.
fn key_assign_many(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, 5 * PAGE)?;
    let keys = slots(&buffer, 5)?;
    let mut batch = one_page_each(&keys)?;
    let mut done = keys.len();
    let _ = shot.once(|| {
        Key::assign_many(&mut batch).map_err(|(n, e)| {
            done = n;
            e
        })
    })?;
    for (i, key) in keys.iter().enumerate() {
        check!(key.value().is_some() == (i < done));
    }
    check!(Key::assign_many(&mut batch[done..]).is_ok());
    for (key, one) in keys.iter().zip(&batch) {
        check!(key.value() == Some(one.value));
        key.close();
    }
    Ok(buffer.region.close()?)
}

fn key_revoke_many(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, 3 * PAGE)?;
    let mut keys = slots(&buffer, 3)?;
    check!(Key::assign_many(&mut one_page_each(&keys)?).is_ok());
    let revoked = shot.once(|| Key::revoke_many(&mut keys).map_err(|(_, e)| e))??;
    check_eq!(revoked, 3);
    check!(keys.iter().all(|key| key.value().is_none()));
    check!(Key::assign_many(&mut one_page_each(&keys)?).is_ok());
    for key in &keys {
        key.close();
    }
    Ok(buffer.region.close()?)
}

/// A revoke never fails.
fn key_revoke(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    shot.once(|| key.revoke())??;
    check!(key.value().is_none());
    key.assign(0, 64, KFI_REMOTE_READ)?;
    key.close();
    Ok(buffer.region.close()?)
}

fn key_close(station: &Station, shot: &mut Shot) -> Outcome {
    let buffer = Buffer::shared(&station.domain, PAGE)?;
    let key = Key::alloc(&buffer.region)?;
    key.assign(0, 64, KFI_REMOTE_READ)?;
    shot.once(|| {
        key.close();
        Ok(())
    })??;
    check!(key.value().is_none());
    Ok(buffer.region.close()?)
}
