// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel for the unit tests: objects with parents, connections and messages inside one process.
//!
//! The fake keeps the kernel's promises that the library relies on: the order of closing, the
//! contents of events, the time of completions. It does not behave like a provider.

use core::mem::offset_of;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kfabric_uapi as abi;
use zerocopy::{FromBytes, IntoBytes};

use super::{Backend, Buf, BufData, Deadline, Mapping};
use crate::errno::Errno;

/// An object of the fake device.
#[derive(Default)]
struct Object {
    kind: u32,
    parent: u64,
    /// Objects in use, beside the parent.
    uses: Vec<u64>,
    context: u64,
    /// Event queue: events that are ready.
    events: VecDeque<(abi::EqRead, Vec<u8>)>,
    /// Completion queue: its memory, and the number of entries.
    ring: Option<(Mapping, u32)>,
    /// Endpoint: handle of the peer. Key slot: key value. Passive endpoint: port.
    number: u64,
    /// Endpoint: posted receives.
    receives: VecDeque<abi::OpEntry>,
    /// Endpoint or region: number of operations that use the object.
    busy: u32,
    /// Region: address of its memory.
    addr: u64,
    /// Endpoint: version of its rings, if opened with rings.
    rings: Option<u32>,
}

/// The objects of one fake device.
#[derive(Default)]
pub(crate) struct State {
    objects: BTreeMap<u64, Object>,
    last: u64,
    /// Numbers of all calls so far.
    pub(crate) calls: Vec<u32>,
    /// The rings of the connection. A test has at most one connection with rings.
    rings: Option<File>,
    /// Whether accepting endpoints get another version of rings than they ask for.
    pub(crate) newer_peer: bool,
    /// Versions of rings that opened endpoints asked for, `None` without rings.
    pub(crate) asked_rings: Vec<Option<u32>>,
    /// Number of a call that fails once, with the error.
    pub(crate) fail: Option<(u32, Errno)>,
}

impl State {
    fn open(&mut self, kind: u32, parent: u64, parent_kind: u32) -> Result<u64, Errno> {
        self.get(parent, parent_kind)?;
        self.last += 1;
        let handle = u64::from(kind) << 32 | self.last;
        self.objects.insert(
            handle,
            Object {
                kind,
                parent,
                ..Object::default()
            },
        );
        Ok(handle)
    }

    fn get(&mut self, handle: u64, kind: u32) -> Result<&mut Object, Errno> {
        if kind == 0 && handle == 0 {
            return Ok(self.objects.entry(0).or_default());
        }
        self.objects
            .get_mut(&handle)
            .filter(|o| o.kind == kind)
            .ok_or(Errno::ENOENT)
    }

    /// Assigns a key to a slot. Returns the key value and the address of the first byte.
    fn assign(&mut self, slot: u64, offset: u64) -> Result<(u64, u64), Errno> {
        self.last += 1;
        let value = self.last;
        let key = self.get(slot, abi::KFI_TYPE_KEY)?;
        if key.number != 0 {
            return Err(Errno::EBUSY);
        }
        key.number = value;
        let region = key.parent;
        let at = self.get(region, abi::KFI_TYPE_REGION)?.addr + offset;
        Ok((value, at))
    }

    /// Returns the slots of a region, of a domain or of the whole device.
    fn keys_of(&mut self, scope: u32, of: u64) -> Result<Vec<u64>, Errno> {
        match scope {
            abi::KFI_REVOKE_REGION => drop(self.get(of, abi::KFI_TYPE_REGION)?),
            abi::KFI_REVOKE_DOMAIN => drop(self.get(of, abi::KFI_TYPE_DOMAIN)?),
            _ => assert_eq!(of, 0),
        }
        let parent = |handle: u64| self.objects.get(&handle).map_or(0, |o| o.parent);
        let within = |o: &Object| match scope {
            abi::KFI_REVOKE_REGION => o.parent == of,
            abi::KFI_REVOKE_DOMAIN => parent(o.parent) == of,
            _ => true,
        };
        let keys = self
            .objects
            .iter()
            .filter(|(_, o)| o.kind == abi::KFI_TYPE_KEY);
        Ok(keys
            .filter(|(_, o)| within(o))
            .map(|(handle, _)| *handle)
            .collect())
    }

    /// Number of live objects.
    pub(crate) fn count(&self) -> usize {
        self.objects.keys().filter(|handle| **handle != 0).count()
    }

    /// Marks an object as used by an operation, or as not used.
    pub(crate) fn hold(&mut self, handle: u64, busy: bool) {
        if let Some(object) = self.objects.get_mut(&handle) {
            object.busy = u32::from(busy);
        }
    }

    fn close(&mut self, handle: u64) -> Result<(), Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::ENOENT)?;
        let used = |(other, o): (&u64, &Object)| {
            *other != handle && (o.parent == handle || o.uses.contains(&handle))
        };
        if object.busy > 0 || self.objects.iter().any(used) {
            return Err(Errno::EBUSY);
        }
        self.objects.remove(&handle);
        Ok(())
    }

    fn queue_of(&self, ep: u64, kind: u32) -> Option<u64> {
        let uses = &self.objects.get(&ep)?.uses;
        uses.iter()
            .copied()
            .find(|used| self.objects.get(used).is_some_and(|o| o.kind == kind))
    }

    fn event(
        &mut self,
        eq: u64,
        event: u32,
        object: u64,
        err: u32,
        data: &[u8],
    ) -> Result<u64, Errno> {
        let context = self.objects.get(&object).map_or(0, |o| o.context);
        let connreq = match event {
            abi::KFI_CONNREQ => self.open(abi::KFI_TYPE_CONNREQ, object, abi::KFI_TYPE_PEP)?,
            _ => 0,
        };
        let read = abi::EqRead {
            event,
            object,
            context,
            connreq,
            err,
            ..abi::EqRead::default()
        };
        self.get(eq, abi::KFI_TYPE_EQ)?
            .events
            .push_back((read, data.to_vec()));
        Ok(connreq)
    }

    /// Adds an entry to an endpoint's completion queue.
    pub(crate) fn complete(&mut self, ep: u64, entry: abi::CqEntry) {
        let Some(cq) = self.queue_of(ep, abi::KFI_TYPE_CQ) else {
            return;
        };
        let Some((map, entries)) = self.objects.get(&cq).and_then(|o| o.ring.as_ref()) else {
            return;
        };
        let head = map
            .word32(offset_of!(abi::CqRing, head))
            .expect("within the ring");
        let at = head.load(Ordering::Relaxed);
        let slot = (at & (entries - 1)) as usize;
        let entry = abi::CqEntry { ep, ..entry };
        for (i, word) in entry.as_bytes().chunks_exact(8).enumerate() {
            let to = abi::KFI_CQ_RING_OFFSET + slot * size_of::<abi::CqEntry>() + i * 8;
            let value = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            map.word64(to)
                .expect("within the ring")
                .store(value, Ordering::Relaxed);
        }
        head.store(at.wrapping_add(1), Ordering::Release);
    }

    /// Answers `KFI_IOC_EP_RINGS`.
    fn rings(&mut self, call: &mut abi::EpRings) -> Result<(), Errno> {
        let (peer, rings) = {
            let ep = self.get(call.ep, abi::KFI_TYPE_EP)?;
            (ep.number, ep.rings)
        };
        call.fd = -1;
        if peer == 0 {
            return Ok(());
        }
        let both = rings.is_some()
            && self
                .get(peer, abi::KFI_TYPE_EP)
                .is_ok_and(|peer| peer.rings == rings);
        call.state = if both {
            abi::KFI_RINGS_SHARED
        } else {
            abi::KFI_RINGS_NONE
        };
        if both {
            let bytes = 2 * abi::KFI_RING_SIZE;
            let file = self
                .rings
                .get_or_insert_with(|| File::from(memfd(4096 + bytes)));
            call.fd = file.try_clone().expect("a descriptor").into_raw_fd();
            call.side = u32::from(call.ep > peer);
            (call.page_size, call.map_size) = (4096, bytes as u64);
        }
        Ok(())
    }

    /// Sets the alarm of an endpoint's completion queues.
    fn alarm(&self, ep: u64) {
        let Some(ep) = self.objects.get(&ep) else {
            return;
        };
        let rings = ep
            .uses
            .iter()
            .filter_map(|used| self.objects.get(used)?.ring.as_ref());
        for (map, _) in rings {
            let word = map.word32(offset_of!(abi::CqRing, alarm));
            word.expect("within the ring").store(1, Ordering::SeqCst);
        }
    }

    fn wake(&mut self, call: &abi::EpWake) -> Result<(), Errno> {
        let peer = self.get(call.ep, abi::KFI_TYPE_EP)?.number;
        self.alarm(match call.flags & abi::KFI_WAKE_SELF {
            0 => peer,
            _ => call.ep,
        });
        Ok(())
    }

    /// Marks the connection of the rings as ended.
    fn end_rings(&mut self, ep: u64) {
        let peer = self.objects.get(&ep).map_or(0, |ep| ep.number);
        if let Some(file) = &self.rings {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&1u32.to_ne_bytes(), 0).expect("room");
        }
        self.alarm(ep);
        self.alarm(peer);
    }

    /// The local memory of an operation.
    fn ranges(&mut self, op: &abi::OpEntry) -> Result<Vec<(*mut u8, usize)>, Errno> {
        if op.op >= abi::KFI_OP_ATOMIC || op.flags & abi::KFI_INJECT != 0 {
            return Ok(vec![(op.inject as *mut u8, op.inject_len as usize)]);
        }
        let iov = &op.iov[..op.iov_count as usize];
        let range = |iov: &abi::Iov| -> Result<_, Errno> {
            let at = match iov.region {
                abi::KFI_UNREGISTERED => 0,
                region => self.get(region, abi::KFI_TYPE_REGION)?.addr,
            };
            Ok(((at + iov.offset) as *mut u8, iov.len as usize))
        };
        iov.iter().map(range).collect()
    }

    fn submit(&mut self, ep: u64, op: &abi::OpEntry) -> Result<(), Errno> {
        let peer = self.get(ep, abi::KFI_TYPE_EP)?.number;
        if op.iov_count as usize > abi::KFI_IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let ranges = self.ranges(op)?;
        let len: usize = ranges.iter().map(|range| range.1).sum();
        let done = abi::CqEntry {
            context: op.context,
            len: len as u64,
            ..abi::CqEntry::default()
        };
        match op.op {
            abi::KFI_OP_RECV => self.get(ep, abi::KFI_TYPE_EP)?.receives.push_back(*op),
            _ if peer == 0 => return Err(Errno::ENOTCONN),
            abi::KFI_OP_SEND => {
                let receive = self.get(peer, abi::KFI_TYPE_EP)?.receives.pop_front();
                let receive = receive.ok_or(Errno::EAGAIN)?;
                let to = self.ranges(&receive)?;
                let room: usize = to.iter().map(|range| range.1).sum();
                assert!(len <= room, "the tests send what fits");
                // SAFETY: both lists are memory of live regions of this test, or the payload of this
                // call.
                unsafe { copy(&ranges, &to) };
                let data = op.flags & abi::KFI_REMOTE_CQ_DATA;
                let flags = abi::KFI_MSG | abi::KFI_RECV | data;
                let entry = abi::CqEntry {
                    context: receive.context,
                    flags,
                    data: op.data,
                    ..done
                };
                self.complete(peer, entry);
            }
            _ => {
                let key = op.key;
                let there = self
                    .objects
                    .values()
                    .find(|o| o.kind == abi::KFI_TYPE_KEY && o.number == key);
                if there.is_none() {
                    let err = Errno::EACCES.0 as u32;
                    self.complete(
                        ep,
                        abi::CqEntry {
                            err,
                            prov_errno: 10,
                            ..done
                        },
                    );
                    return Ok(());
                }
                let remote = [(op.remote_addr as *mut u8, len)];
                // SAFETY: the lists are memory of live regions of this test; the address comes from
                // an assignment.
                unsafe {
                    match op.op {
                        abi::KFI_OP_READ => copy(&remote, &ranges),
                        _ => copy(&ranges, &remote),
                    }
                }
            }
        }
        if op.op != abi::KFI_OP_RECV && op.flags & abi::KFI_INJECT == 0 {
            let flags = if op.op == abi::KFI_OP_SEND {
                abi::KFI_MSG | abi::KFI_SEND
            } else {
                abi::KFI_RMA
            };
            self.complete(ep, abi::CqEntry { flags, ..done });
        }
        Ok(())
    }
}

/// Copies the bytes of `from`, one range after the other, to `to`.
///
/// # Safety
///
/// The ranges of `from` are readable, and those of `to` writable.
unsafe fn copy(from: &[(*mut u8, usize)], to: &[(*mut u8, usize)]) {
    let bytes = |&(base, len): &(*mut u8, usize)| (0..len).map(move |i| base.wrapping_add(i));
    for (from, to) in from.iter().flat_map(bytes).zip(to.iter().flat_map(bytes)) {
        // SAFETY: by the caller's contract.
        unsafe { to.write(from.read()) };
    }
}

/// A fake device.
#[derive(Clone, Default)]
pub(crate) struct Fake(pub(crate) Arc<Mutex<State>>);

fn read<T: abi::Ioctl>(arg: &[u8]) -> T {
    T::read_from_bytes(arg).expect("a structure of that call")
}

fn input<'a>(bufs: &'a [Buf<'_>], at: usize) -> &'a [u8] {
    bufs.iter()
        .find(|b| b.at == at)
        .map_or(&[], |b| match &b.data {
            BufData::In(data) => data,
            BufData::Out(_) => panic!("an output where an input belongs"),
        })
}

fn output(bufs: &mut [Buf<'_>], at: usize, bytes: &[u8]) {
    for buf in bufs.iter_mut().filter(|b| b.at == at) {
        match &mut buf.data {
            BufData::Out(data) => data[..bytes.len()].copy_from_slice(bytes),
            BufData::In(_) => panic!("an input where an output belongs"),
        }
    }
}

/// Returns a descriptor that is always readable.
fn readable() -> i32 {
    File::open("/dev/null").expect("there is one").into_raw_fd()
}

fn memfd(len: usize) -> OwnedFd {
    // SAFETY: the name is a literal; the new descriptor has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), 0)) };
    let file = File::from(fd);
    file.set_len(len as u64).expect("room");
    file.into()
}

impl Backend for Fake {
    #[allow(clippy::too_many_lines, reason = "one arm for each call")]
    fn call(&self, nr: u32, arg: &mut [u8], bufs: &mut [Buf<'_>]) -> Result<(), Errno> {
        let mut state = self.0.lock().expect("no test panics in here");
        let s = &mut *state;
        s.calls.push(nr);
        if let Some((_, errno)) = s.fail.take_if(|(which, _)| *which == nr) {
            return Err(errno);
        }
        assert_eq!(
            u32::from_ne_bytes(arg[..4].try_into().expect("four bytes")) as usize,
            arg.len()
        );
        macro_rules! opens {
            ($ty:ident, $kind:expr, $parent:expr, $parent_kind:expr) => {{
                let mut call: abi::$ty = read(arg);
                call.handle = s.open($kind, $parent(&call), $parent_kind)?;
                call
            }};
        }
        match nr {
            abi::KFI_IOC_GETINFO => {
                let mut call: abi::GetInfo = read(arg);
                let mut info = abi::InfoEntry::default();
                info.prov_name[..4].copy_from_slice(b"fake");
                info.domain_name[..5].copy_from_slice(b"fake0");
                let there = 70;
                for n in 0..there.min(call.count) as usize {
                    let at = offset_of!(abi::GetInfo, entries);
                    let all: Vec<u8> = info.as_bytes().repeat(n + 1);
                    output(bufs, at, &all);
                }
                call.count = there;
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_FABRIC_OPEN => {
                let call = opens!(FabricOpen, abi::KFI_TYPE_FABRIC, |_: &abi::FabricOpen| 0, 0);
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_DOMAIN_OPEN => {
                let parent = |c: &abi::DomainOpen| c.fabric;
                let mut call = opens!(
                    DomainOpen,
                    abi::KFI_TYPE_DOMAIN,
                    parent,
                    abi::KFI_TYPE_FABRIC
                );
                (call.max_msg_size, call.inject_size) = (1 << 31, 64);
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_EQ_OPEN => {
                let parent = |c: &abi::EqOpen| c.fabric;
                let mut call = opens!(EqOpen, abi::KFI_TYPE_EQ, parent, abi::KFI_TYPE_FABRIC);
                call.fd = readable();
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_CQ_OPEN => {
                let parent = |c: &abi::CqOpen| c.domain;
                let mut call = opens!(CqOpen, abi::KFI_TYPE_CQ, parent, abi::KFI_TYPE_DOMAIN);
                call.entries = call.depth.max(1).next_power_of_two();
                let size = size_of::<abi::CqEntry>();
                let len = abi::KFI_CQ_RING_OFFSET + call.entries as usize * size;
                let fd = memfd(len);
                let map = Mapping::shared(fd.as_fd(), len)?;
                let header = [
                    (offset_of!(abi::CqRing, entries), call.entries),
                    (offset_of!(abi::CqRing, entry_size), size as u32),
                ];
                for (at, value) in header {
                    map.word32(at)
                        .expect("within the ring")
                        .store(value, Ordering::Relaxed);
                }
                s.get(call.handle, abi::KFI_TYPE_CQ)?.ring = Some((map, call.entries));
                call.fd = fd.into_raw_fd();
                call.map_size = len as u64;
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_PEP_OPEN => {
                let parent = |c: &abi::PepOpen| c.fabric;
                let call = opens!(PepOpen, abi::KFI_TYPE_PEP, parent, abi::KFI_TYPE_FABRIC);
                let pep = s.get(call.handle, abi::KFI_TYPE_PEP)?;
                pep.uses.push(call.eq);
                pep.context = call.context;
                pep.number = crate::addr::from_abi(&call.addr).map_or(0, |a| u64::from(a.port()));
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_EP_OPEN => {
                let parent = |c: &abi::EpOpen| c.domain;
                let asked: abi::EpOpen = read(arg);
                if asked.flags & abi::KFI_EP_RINGS == 0 && asked.rings_version != 0 {
                    return Err(Errno::EINVAL);
                }
                let mut call = opens!(EpOpen, abi::KFI_TYPE_EP, parent, abi::KFI_TYPE_DOMAIN);
                if call.connreq != 0 {
                    let from = s.get(call.connreq, abi::KFI_TYPE_CONNREQ)?.number;
                    s.objects.remove(&call.connreq);
                    s.get(call.handle, abi::KFI_TYPE_EP)?.number = from;
                }
                let newer = u32::from(s.newer_peer && call.connreq != 0);
                let ep = s.get(call.handle, abi::KFI_TYPE_EP)?;
                ep.context = call.context;
                let version = call.rings_version + newer;
                let flagged = call.flags & abi::KFI_EP_RINGS != 0;
                ep.rings = flagged.then_some(version);
                s.asked_rings.push(flagged.then_some(call.rings_version));
                (call.tx_size, call.rx_size, call.iov_limit) = (128, 128, 4);
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_BIND => {
                let call: abi::Bind = read(arg);
                s.get(call.ep, abi::KFI_TYPE_EP)?.uses.push(call.object);
            }
            abi::KFI_IOC_CONNECT => {
                let call: abi::Connect = read(arg);
                let port = crate::addr::from_abi(&call.addr).map_or(0, |a| u64::from(a.port()));
                let listens = |o: &Object| o.kind == abi::KFI_TYPE_PEP && o.number == port;
                let pep = s
                    .objects
                    .iter()
                    .find(|(_, o)| listens(o))
                    .map(|(handle, o)| (*handle, o.uses[0]));
                let data = input(bufs, offset_of!(abi::Connect, param)).to_vec();
                match pep {
                    Some((pep, eq)) => {
                        let request = s.event(eq, abi::KFI_CONNREQ, pep, 0, &data)?;
                        s.get(request, abi::KFI_TYPE_CONNREQ)?.number = call.ep;
                    }
                    None => {
                        let eq = s.queue_of(call.ep, abi::KFI_TYPE_EQ).ok_or(Errno::EINVAL)?;
                        let err = Errno::ECONNREFUSED.0 as u32;
                        s.event(eq, abi::KFI_CONN_ERROR, call.ep, err, &[])?;
                    }
                }
            }
            abi::KFI_IOC_ACCEPT => {
                let call: abi::Accept = read(arg);
                let peer = s.get(call.ep, abi::KFI_TYPE_EP)?.number;
                s.get(peer, abi::KFI_TYPE_EP)?.number = call.ep;
                let data = input(bufs, offset_of!(abi::Accept, param)).to_vec();
                for (ep, data) in [(call.ep, &[][..]), (peer, &data)] {
                    let eq = s.queue_of(ep, abi::KFI_TYPE_EQ).ok_or(Errno::EINVAL)?;
                    s.event(eq, abi::KFI_CONNECTED, ep, 0, data)?;
                    s.alarm(ep);
                }
            }
            abi::KFI_IOC_REJECT => {
                let call: abi::Reject = read(arg);
                let peer = s.get(call.connreq, abi::KFI_TYPE_CONNREQ)?.number;
                s.objects.remove(&call.connreq);
                let data = input(bufs, offset_of!(abi::Reject, param)).to_vec();
                if let Some(eq) = s.queue_of(peer, abi::KFI_TYPE_EQ) {
                    let err = Errno::ECONNREFUSED.0 as u32;
                    s.event(eq, abi::KFI_CONN_ERROR, peer, err, &data)?;
                }
            }
            abi::KFI_IOC_EQ_READ => {
                let call: abi::EqRead = read(arg);
                let events = &mut s.get(call.eq, abi::KFI_TYPE_EQ)?.events;
                let peek = call.flags & abi::KFI_EQ_PEEK != 0;
                let next = match peek {
                    true => events.front().cloned(),
                    false => events.pop_front(),
                };
                let (mut event, data) = next.ok_or(Errno::EAGAIN)?;
                output(bufs, offset_of!(abi::EqRead, data), &data);
                (event.size, event.eq, event.data_len) = (call.size, call.eq, data.len() as u32);
                event.flags = call.flags;
                if event.event == abi::KFI_CONNREQ {
                    let mut info = abi::InfoEntry::default();
                    info.prov_name[..4].copy_from_slice(b"fake");
                    info.dest_addr = crate::addr::to_abi("192.0.2.9:4".parse().ok());
                    output(bufs, offset_of!(abi::EqRead, info), info.as_bytes());
                }
                if peek {
                    event.connreq = 0;
                }
                arg.copy_from_slice(event.as_bytes());
            }
            abi::KFI_IOC_REGION_REG => {
                let parent = |c: &abi::RegionReg| c.domain;
                let mut call = opens!(
                    RegionReg,
                    abi::KFI_TYPE_REGION,
                    parent,
                    abi::KFI_TYPE_DOMAIN
                );
                s.get(call.handle, abi::KFI_TYPE_REGION)?.addr = call.addr;
                call.key = abi::KFI_KEY_NOTAVAIL;
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_KEY_ALLOC => {
                let call: abi::KeyAlloc = read(arg);
                if call.count == 0 || call.count > abi::KFI_KEY_ALLOC_MAX {
                    return Err(Errno::EINVAL);
                }
                let open = |_| s.open(abi::KFI_TYPE_KEY, call.region, abi::KFI_TYPE_REGION);
                let handles: Vec<u64> = (0..call.count).map(open).collect::<Result<_, _>>()?;
                output(bufs, offset_of!(abi::KeyAlloc, handles), handles.as_bytes());
            }
            abi::KFI_IOC_KEY_ASSIGN => {
                let mut call: abi::KeyAssign = read(arg);
                (call.key, call.remote_addr) = s.assign(call.slot, call.offset)?;
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_KEY_REVOKE => {
                let call: abi::ObjectCall2 = read(arg);
                s.get(call.handle, abi::KFI_TYPE_KEY)?.number = 0;
            }
            abi::KFI_IOC_KEY_ASSIGN_MANY => {
                let mut call: abi::KeyAssignMany = read(arg);
                let at = offset_of!(abi::KeyAssignMany, entries);
                let entries = bufs.iter_mut().find(|b| b.at == at);
                let Some(BufData::Out(entries)) = entries.map(|b| &mut b.data) else {
                    panic!("no list, or one that cannot be answered in");
                };
                for bytes in entries.chunks_exact_mut(size_of::<abi::KeyEntry>()) {
                    let mut entry = abi::KeyEntry::read_from_bytes(bytes).expect("an entry");
                    match s.assign(entry.slot, entry.offset) {
                        Ok(made) => (entry.key, entry.remote_addr) = made,
                        Err(errno) if call.done == 0 => return Err(errno),
                        Err(errno) => {
                            call.err = errno.0 as u32;
                            break;
                        }
                    }
                    bytes.copy_from_slice(entry.as_bytes());
                    call.done += 1;
                }
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_KEY_REVOKE_MANY => {
                let mut call: abi::KeyRevokeMany = read(arg);
                let listed = match call.scope {
                    abi::KFI_REVOKE_SLOTS => {
                        let slots = input(bufs, offset_of!(abi::KeyRevokeMany, slots));
                        let slot = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8"));
                        slots.chunks_exact(8).map(slot).collect()
                    }
                    scope => s.keys_of(scope, call.object)?,
                };
                for slot in listed {
                    let key = s.get(slot, abi::KFI_TYPE_KEY)?;
                    call.revoked += u64::from(std::mem::take(&mut key.number) != 0);
                    call.done += u32::from(call.scope == abi::KFI_REVOKE_SLOTS);
                }
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_SUBMIT => {
                let mut call: abi::Submit = read(arg);
                let ops = input(bufs, offset_of!(abi::Submit, ops)).to_vec();
                for bytes in ops.chunks_exact(size_of::<abi::OpEntry>()) {
                    let op = abi::OpEntry::read_from_bytes(bytes).expect("an operation");
                    match s.submit(call.ep, &op) {
                        Ok(()) => call.done += 1,
                        Err(errno) if call.done == 0 => return Err(errno),
                        Err(errno) => {
                            call.err = errno.0 as u32;
                            break;
                        }
                    }
                }
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_EP_RINGS => {
                let mut call: abi::EpRings = read(arg);
                s.rings(&mut call)?;
                arg.copy_from_slice(call.as_bytes());
            }
            abi::KFI_IOC_EP_WAKE => s.wake(&read(arg))?,
            abi::KFI_IOC_SHUTDOWN => s.end_rings(read::<abi::Shutdown>(arg).ep),
            abi::KFI_IOC_CLOSE => {
                let call: abi::Close = read(arg);
                if s.get(call.handle, abi::KFI_TYPE_EP).is_ok() {
                    s.end_rings(call.handle);
                }
                s.close(call.handle)?;
            }
            abi::KFI_IOC_ENABLE | abi::KFI_IOC_LISTEN => {}
            _ => return Err(Errno::ENOTTY),
        }
        Ok(())
    }

    fn take_fd(&self, fd: i32) -> Result<OwnedFd, Errno> {
        // SAFETY: the call just before made the descriptor for this caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        Mapping::shared(fd, len)
    }

    /// A completion queue's descriptor is readable while an entry is ready or the alarm is set.
    fn wait(&self, fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Errno> {
        let file = File::from(fd.try_clone_to_owned().expect("a descriptor"));
        if file.metadata().is_ok_and(|it| it.len() == 0) {
            return Ok(true);
        }
        let word = |at: usize| {
            use std::os::unix::fs::FileExt;
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, at as u64).expect("a ring");
            u32::from_ne_bytes(bytes)
        };
        let deadline = Deadline::after(timeout);
        loop {
            let [head, tail, alarm] = [
                offset_of!(abi::CqRing, head),
                offset_of!(abi::CqRing, tail),
                offset_of!(abi::CqRing, alarm),
            ]
            .map(word);
            if head != tail || alarm != 0 {
                return Ok(true);
            }
            if deadline.left().is_zero() {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn device_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
