// SPDX-License-Identifier: MIT OR Apache-2.0

//! One valid call of each kind, and the positions of the fields that tests make invalid.

use crate::buf::Buf;
use crate::harness::Env;
use crate::op;
use crate::pair::{own_info, Side, LOCAL, REMOTE};
use crate::raw::{hints, name_field, to_sockaddr, Cq, Dev};
use anyhow::Result;
use kfabric_uapi::*;
use std::mem::offset_of;
use zerocopy::FromZeros;

/// A file with an object of each kind, and handles of another file.
pub(in crate::tests) struct Fixture {
    pub(in crate::tests) side: Side,
    pub(in crate::tests) cq: Cq,
    pub(in crate::tests) cntr: u64,
    pub(in crate::tests) region: u64,
    /// A region without slots.
    slotless: u64,
    pub(in crate::tests) slot: u64,
    pub(in crate::tests) assigned: u64,
    pub(in crate::tests) pep: u64,
    /// An endpoint, opened with nothing bound.
    pub(in crate::tests) new_ep: u64,
    /// An endpoint, bound and not enabled.
    pub(in crate::tests) bound_ep: u64,
    /// An enabled endpoint.
    pub(in crate::tests) ep: u64,
    /// Handle of a closed counter.
    pub(in crate::tests) closed: u64,
    info: InfoEntry,
    hints: Box<InfoEntry>,
    room: Box<[u64; 4096]>,
    op: Box<[OpEntry; 1]>,
    entry: Box<[KeyEntry; 1]>,
    foreign: Option<Box<Fixture>>,
    _buf: Buf,
    address: SockAddr,
}

impl Fixture {
    pub(in crate::tests) fn new(env: &Env) -> Result<Self> {
        let mut own = Self::open(env, 0)?;
        // The other file's handles must not be valid here by chance, so they come after many
        // others.
        own.foreign = Some(Box::new(Self::open(env, 64)?));
        Ok(own)
    }

    fn open(env: &Env, before: u32) -> Result<Self> {
        let dev = Dev::open()?;
        let info = own_info(&dev, env)?;
        if before > 0 {
            let fabric = dev.fabric_open(&env.provider, "")?;
            for _ in 0..before {
                dev.eq_open(fabric, 0)?;
            }
        }
        let side = Side::on(dev, env)?;
        let dev = &side.dev;
        let cq = side.cq(16, 0)?;
        let d = side.domain.handle;
        let cntr = dev.cntr_open(d)?;
        let closed = dev.cntr_open(d)?;
        dev.close(closed)?;
        let buf = Buf::new(8192)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slotless = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = dev.key_alloc(region, 3)?;
        dev.key_assign(slots[1], 0, 100, REMOTE)?;
        let address = to_sockaddr(env.at(0));
        let pep = dev.pep_open(side.fabric, side.eq.handle, env.at(0), 0)?;
        let bare = EpOpen {
            domain: d,
            ..Default::default()
        };
        let new_ep = dev.ep_open(&bare)?.handle;
        let bound_ep = dev.ep_open(&bare)?.handle;
        dev.bind(bound_ep, side.eq.handle, 0)?;
        dev.bind(bound_ep, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
        let ep = side.endpoint(&Default::default(), &cq, 0)?.handle;
        let op = Box::new([op::recv(1, &[op::iov(region, 0, 64)])]);
        let entry = Box::new([KeyEntry {
            slot: slots[2],
            length: 64,
            access: KFI_REMOTE_READ,
            ..Default::default()
        }]);
        let wanted = Box::new(InfoEntry {
            prov_name: name_field(&env.provider),
            ..hints()
        });
        Ok(Self {
            side,
            cq,
            cntr,
            region,
            slotless,
            slot: slots[0],
            assigned: slots[1],
            pep,
            new_ep,
            bound_ep,
            ep,
            closed,
            info,
            hints: wanted,
            room: Box::new([0; 4096]),
            op,
            entry,
            foreign: None,
            _buf: buf,
            address,
        })
    }

    pub(in crate::tests) fn dev(&self) -> &Dev {
        &self.side.dev
    }

    /// Returns the slot that a batch assigns.
    pub(in crate::tests) fn batched(&self) -> u64 {
        self.entry[0].slot
    }

    fn other(&self) -> &Fixture {
        self.foreign.as_deref().unwrap_or(self)
    }

    fn room(&self) -> u64 {
        self.room.as_ptr() as u64
    }
}

/// A handle field of a call.
pub(in crate::tests) struct Handle {
    pub(in crate::tests) at: usize,
    /// True if zero stands for no handle.
    pub(in crate::tests) optional: bool,
    /// Handle of another type.
    pub(in crate::tests) wrong: u64,
    /// Another file's handle of the right type.
    pub(in crate::tests) foreign: u64,
}

/// A valid call.
pub(in crate::tests) struct Specimen {
    pub(in crate::tests) name: &'static str,
    pub(in crate::tests) nr: u32,
    pub(in crate::tests) bytes: Vec<u8>,
    /// Bytes of the structure's first version, which is still accepted.
    pub(in crate::tests) first: usize,
    /// Known flags.
    pub(in crate::tests) flags: u32,
    /// Reserved fields: offsets and lengths.
    pub(in crate::tests) reserved: &'static [(usize, usize)],
    /// Handle fields.
    pub(in crate::tests) handles: Vec<Handle>,
    /// Pointer fields.
    pub(in crate::tests) pointers: &'static [usize],
    /// True if the call opens an object.
    pub(in crate::tests) opens: bool,
    /// Whether the call may be made repeatedly.
    pub(in crate::tests) repeats: bool,
    /// Errnos that the call may return for want of a peer.
    pub(in crate::tests) may_fail: &'static [i32],
}

fn specimen<T: Ioctl>(mut arg: T) -> Specimen {
    let size = std::mem::size_of::<T>() as u32;
    arg.as_mut_bytes()[..4].copy_from_slice(&size.to_ne_bytes());
    Specimen {
        name: T::NAME,
        nr: T::NR,
        bytes: arg.as_bytes().to_vec(),
        first: T::MIN_SIZE,
        flags: 0,
        reserved: &[],
        handles: Vec::new(),
        pointers: &[],
        opens: false,
        repeats: false,
        may_fail: &[],
    }
}

impl Specimen {
    fn reserved(self, reserved: &'static [(usize, usize)]) -> Self {
        Self { reserved, ..self }
    }

    fn pointers(self, pointers: &'static [usize]) -> Self {
        Self { pointers, ..self }
    }

    fn handle(mut self, at: usize, wrong: u64, foreign: u64) -> Self {
        self.handles.push(Handle {
            at,
            optional: false,
            wrong,
            foreign,
        });
        self
    }

    fn optional(mut self, at: usize, wrong: u64, foreign: u64) -> Self {
        self.handles.push(Handle {
            at,
            optional: true,
            wrong,
            foreign,
        });
        self
    }

    fn opens(self) -> Self {
        Self {
            opens: true,
            repeats: true,
            ..self
        }
    }

    fn repeats(self) -> Self {
        Self {
            repeats: true,
            ..self
        }
    }

    fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    fn may_fail(self, may_fail: &'static [i32]) -> Self {
        Self { may_fail, ..self }
    }
}

macro_rules! field {
    ($ty:ident . $field:ident, $len:literal) => {
        (offset_of!($ty, $field), $len)
    };
}

/// Returns a valid call of each kind, in an order in which all can be made.
pub(in crate::tests) fn specimens(f: &Fixture) -> Vec<Specimen> {
    let mut list = opening(f);
    list.extend(connecting(f));
    list.extend(using(f));
    list.extend(auth(f));
    list
}

fn opening(f: &Fixture) -> Vec<Specimen> {
    let o = f.other();
    let (fabric, domain, eq) = (f.side.fabric, f.side.domain.handle, f.side.eq.handle);
    let mut open_fabric = FabricOpen::new_zeroed();
    open_fabric
        .prov_name
        .copy_from_slice(&f.info.prov_name[..32]);
    open_fabric.fabric_name = f.info.fabric_name;
    let mut open_domain = DomainOpen::new_zeroed();
    open_domain.fabric = fabric;
    open_domain.name = f.info.domain_name;
    let entry_size = std::mem::size_of::<InfoEntry>() as u32;
    let hints = std::ptr::from_ref(&*f.hints) as u64;
    let place = f.room();
    vec![
        specimen(GetInfo {
            hints,
            entries: place,
            count: 8,
            entry_size,
            ..Default::default()
        })
        .reserved(&[field!(GetInfo.reserved, 8)])
        .pointers(&[offset_of!(GetInfo, hints), offset_of!(GetInfo, entries)])
        .repeats(),
        specimen(open_fabric).opens(),
        specimen(open_domain)
            .handle(offset_of!(DomainOpen, fabric), eq, o.side.fabric)
            .flags(KFI_DOMAIN_STRICT_KEYS)
            .reserved(&[
                field!(DomainOpen.reserved, 4),
                field!(DomainOpen.reserved2, 4),
            ])
            .opens(),
        specimen(EqOpen {
            fabric,
            ..Default::default()
        })
        .handle(offset_of!(EqOpen, fabric), eq, o.side.fabric)
        .opens(),
        specimen(CqOpen {
            domain,
            ..Default::default()
        })
        .handle(offset_of!(CqOpen, domain), fabric, o.side.domain.handle)
        .reserved(&[field!(CqOpen.reserved, 8)])
        .opens(),
        specimen(CntrOpen {
            domain,
            ..Default::default()
        })
        .handle(offset_of!(CntrOpen, domain), fabric, o.side.domain.handle)
        .reserved(&[field!(CntrOpen.reserved, 8)])
        .opens(),
        specimen(PepOpen {
            fabric,
            eq,
            addr: f.address,
            ..Default::default()
        })
        .handle(offset_of!(PepOpen, fabric), eq, o.side.fabric)
        .handle(offset_of!(PepOpen, eq), fabric, o.side.eq.handle)
        .opens(),
        specimen(EpOpen {
            domain,
            ..Default::default()
        })
        .handle(offset_of!(EpOpen, domain), fabric, o.side.domain.handle)
        .optional(offset_of!(EpOpen, connreq), eq, o.pep)
        .reserved(&[
            // Zero without KFI_EP_RINGS.
            field!(EpOpen.rings_version, 4),
            field!(EpOpen.reserved2, 4),
            field!(EpOpen.reserved3, 4),
        ])
        .flags(KFI_EP_OWN_KEYS | KFI_EP_RINGS | KFI_EP_STRICT_KEYS)
        .opens(),
        specimen(RegionReg {
            domain,
            addr: place,
            len: 4096,
            access: KFI_SEND,
            ..Default::default()
        })
        .handle(offset_of!(RegionReg, domain), fabric, o.side.domain.handle)
        .optional(offset_of!(RegionReg, ep), eq, o.new_ep)
        .flags(KFI_REGION_DYNAMIC_KEYS | KFI_REGION_PMEM | KFI_REGION_DEVICE)
        .reserved(&[
            field!(RegionReg.reserved, 4),
            field!(RegionReg.reserved2, 4),
        ])
        .opens(),
        specimen(KeyAlloc {
            region: f.region,
            count: 2,
            handles: place,
            ..Default::default()
        })
        .handle(offset_of!(KeyAlloc, region), domain, o.region)
        .optional(offset_of!(KeyAlloc, ep), domain, o.new_ep)
        .reserved(&[field!(KeyAlloc.reserved, 4)])
        .pointers(&[offset_of!(KeyAlloc, handles)])
        .repeats(),
    ]
}

fn connecting(f: &Fixture) -> Vec<Specimen> {
    let o = f.other();
    let eq = f.side.eq.handle;
    let place = f.room();
    let addr = f.address;
    vec![
        specimen(Bind {
            ep: f.new_ep,
            object: f.cntr,
            bind_flags: KFI_SEND,
            ..Default::default()
        })
        .handle(offset_of!(Bind, ep), eq, o.new_ep)
        .handle(offset_of!(Bind, object), f.side.domain.handle, o.cntr),
        specimen(ObjectCall {
            handle: f.bound_ep,
            ..Default::default()
        })
        .handle(offset_of!(ObjectCall, handle), eq, o.bound_ep),
        specimen(Listen {
            pep: f.pep,
            ..Default::default()
        })
        .handle(offset_of!(Listen, pep), f.ep, o.pep)
        .reserved(&[field!(Listen.reserved, 4)]),
        specimen(Connect {
            ep: f.ep,
            addr,
            param: place,
            param_len: 8,
            ..Default::default()
        })
        .handle(offset_of!(Connect, ep), f.pep, o.ep)
        .reserved(&[field!(Connect.reserved, 4)])
        .pointers(&[offset_of!(Connect, param)])
        // Port 0 of the own address: refused at once, or later by an event.
        .may_fail(&[libc::EINVAL, libc::EADDRNOTAVAIL, libc::ECONNREFUSED]),
        specimen(Accept {
            ep: f.ep,
            param: place,
            param_len: 8,
            ..Default::default()
        })
        .handle(offset_of!(Accept, ep), f.pep, o.ep)
        .reserved(&[field!(Accept.reserved, 4)])
        .may_fail(&[libc::EINVAL, libc::EISCONN, libc::EALREADY, libc::EBUSY]),
        // A valid call needs a request, which needs a peer: every handle here is wrong.
        specimen(Reject {
            connreq: f.ep,
            param: place,
            param_len: 8,
            ..Default::default()
        })
        .handle(offset_of!(Reject, connreq), f.pep, o.pep)
        .reserved(&[field!(Reject.reserved, 4)])
        .may_fail(&[libc::ENOENT]),
        specimen(Shutdown {
            ep: f.new_ep,
            ..Default::default()
        })
        .handle(offset_of!(Shutdown, ep), f.pep, o.ep)
        .may_fail(&[libc::ENOTCONN, libc::EINVAL]),
        specimen(GetName {
            handle: f.pep,
            ..Default::default()
        })
        .handle(offset_of!(GetName, handle), eq, o.pep)
        .reserved(&[field!(GetName.reserved, 4)])
        .repeats(),
    ]
}

/// Returns the calls about auth keys, which only an administrator may make.
fn auth(f: &Fixture) -> Vec<Specimen> {
    let place = f.room();
    vec![
        specimen(AuthMode::default())
            .reserved(&[field!(AuthMode.reserved, 8)])
            .flags(KFI_AUTH_SET_MODE | KFI_AUTH_SET_TIMEOUT | KFI_AUTH_SET_DENY | KFI_AUTH_SET_ASKS)
            .repeats()
            .may_fail(&[libc::EPERM]),
        // Expires at once, so that no grant is left.
        specimen(GrantAdd {
            auth_key: place,
            auth_key_size: 9,
            match_: KFI_MATCH_UID,
            rights: KFI_AUTH_EP,
            uid: 65_533,
            lifetime_ms: 1,
            ..Default::default()
        })
        .reserved(&[field!(GrantAdd.reserved, 4)])
        .repeats()
        .may_fail(&[libc::EPERM, libc::EBUSY]),
        specimen(GrantChange {
            flags: KFI_GRANT_LIFETIME,
            id: u64::MAX,
            lifetime_ms: 1,
            ..Default::default()
        })
        .flags(KFI_GRANT_LIFETIME | KFI_GRANT_LIMITS)
        .may_fail(&[libc::EPERM, libc::ENOENT]),
        specimen(GrantRevoke {
            id: u64::MAX,
            ..Default::default()
        })
        .reserved(&[field!(GrantRevoke.reserved, 8)])
        .may_fail(&[libc::EPERM, libc::ENOENT]),
        specimen(GrantList {
            entries: place,
            count: 8,
            entry_size: std::mem::size_of::<GrantInfo>() as u32,
            ..Default::default()
        })
        .reserved(&[field!(GrantList.reserved, 8)])
        .repeats()
        .may_fail(&[libc::EPERM]),
        specimen(AgentOpen::default())
            .reserved(&[field!(AgentOpen.reserved, 8)])
            .may_fail(&[libc::EPERM]),
        specimen(AgentNext {
            auth_key: place,
            ..Default::default()
        })
        .reserved(&[field!(AgentNext.reserved, 4)])
        // The other node may be the agent by now.
        .may_fail(&[libc::EPERM, libc::EAGAIN, libc::ESTALE, libc::EINVAL]),
        specimen(AgentAnswer {
            id: u64::MAX,
            ..Default::default()
        })
        .reserved(&[field!(AgentAnswer.reserved, 4)])
        .may_fail(&[libc::EPERM, libc::ENOENT, libc::ESTALE, libc::EINVAL]),
    ]
}

fn using(f: &Fixture) -> Vec<Specimen> {
    let o = f.other();
    let (domain, eq) = (f.side.domain.handle, f.side.eq.handle);
    let place = f.room();
    let ops = f.op.as_ptr() as u64;
    let op_size = std::mem::size_of::<OpEntry>() as u32;
    let info_size = std::mem::size_of::<ObjInfo>() as u32;
    vec![
        specimen(EqRead {
            eq,
            data: place,
            data_len: 1024,
            ..Default::default()
        })
        .handle(offset_of!(EqRead, eq), f.cq.handle, o.side.eq.handle)
        .flags(KFI_EQ_PEEK)
        .may_fail(&[libc::EAGAIN]),
        specimen(CntrCtl {
            cntr: f.cntr,
            ..Default::default()
        })
        .handle(offset_of!(CntrCtl, cntr), f.cq.handle, o.cntr)
        .reserved(&[field!(CntrCtl.reserved, 4)])
        .repeats(),
        specimen(CntrWait {
            cntr: f.cntr,
            deadline: u64::MAX,
            ..Default::default()
        })
        .handle(offset_of!(CntrWait, cntr), f.cq.handle, o.cntr)
        .reserved(&[field!(CntrWait.reserved, 8), field!(CntrWait.errors, 8)])
        .flags(KFI_CNTR_WAIT_CHANGE)
        .repeats(),
        specimen(KeyAssign {
            slot: f.slot,
            length: 64,
            access: KFI_REMOTE_READ,
            ..Default::default()
        })
        .handle(offset_of!(KeyAssign, slot), f.region, o.slot)
        .flags(KFI_KEY_ORDERED | KFI_KEY_SINGLE_USE),
        specimen(ObjectCall2 {
            handle: f.assigned,
            ..Default::default()
        })
        .handle(offset_of!(ObjectCall2, handle), f.region, o.assigned),
        specimen(KeyAssignMany {
            entries: f.entry.as_ptr() as u64,
            count: 1,
            entry_size: std::mem::size_of::<KeyEntry>() as u32,
            ..Default::default()
        })
        .flags(KFI_KEY_ORDERED | KFI_KEY_SINGLE_USE)
        .pointers(&[offset_of!(KeyAssignMany, entries)]),
        specimen(KeyRevokeMany {
            scope: KFI_REVOKE_REGION,
            object: f.slotless,
            ..Default::default()
        })
        .handle(offset_of!(KeyRevokeMany, object), domain, o.region)
        .repeats(),
        specimen(Submit {
            ep: f.ep,
            ops,
            count: 1,
            entry_size: op_size,
            ..Default::default()
        })
        .handle(offset_of!(Submit, ep), f.pep, o.ep)
        .pointers(&[offset_of!(Submit, ops)])
        // Connecting without a listener may have ended it by now.
        .may_fail(&[libc::ENOTCONN]),
        specimen(AtomicQuery {
            domain,
            op: KFI_OP_FETCH_ATOMIC,
            atomic_op: KFI_ATOMIC_SUM,
            datatype: KFI_UINT64,
            ..Default::default()
        })
        .handle(
            offset_of!(AtomicQuery, domain),
            f.closed,
            o.side.domain.handle,
        )
        .repeats()
        .may_fail(match o.side.domain.caps & KFI_ATOMIC {
            0 => &[libc::EOPNOTSUPP],
            _ => &[],
        }),
        specimen(EpRings {
            ep: f.ep,
            ..Default::default()
        })
        .handle(offset_of!(EpRings, ep), f.pep, o.ep)
        .repeats(),
        // The endpoint has no rings.
        specimen(EpWake {
            ep: f.ep,
            ..Default::default()
        })
        .handle(offset_of!(EpWake, ep), f.pep, o.ep)
        .flags(KFI_WAKE_SELF)
        .may_fail(&[libc::ENOTCONN]),
        specimen(Cancel {
            ep: f.ep,
            context: 1,
            ..Default::default()
        })
        .handle(offset_of!(Cancel, ep), f.pep, o.ep)
        .may_fail(&[libc::EOPNOTSUPP, libc::ENOENT, libc::ENOTCONN]),
        specimen(ObjList {
            entries: place,
            count: 8,
            entry_size: info_size,
            ..Default::default()
        })
        .reserved(&[field!(ObjList.reserved, 24)])
        .pointers(&[offset_of!(ObjList, entries)])
        .repeats(),
        // The domain has children, so the valid call is refused; the rest of the call is valid.
        specimen(Close {
            handle: domain,
            ..Default::default()
        })
        .handle(offset_of!(Close, handle), f.closed, o.slot)
        .may_fail(&[libc::EBUSY]),
    ]
}
