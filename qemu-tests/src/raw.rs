// SPDX-License-Identifier: MIT OR Apache-2.0

//! `/dev/kfabric` call by call.
//!
//! One method per ioctl, handles as bare numbers, no bookkeeping: a test can make any call in any
//! order, also an invalid one. Closing the [`Dev`] closes every object that was opened through it.

use crate::sys::{self, Errno, Map};
use kfabric_uapi::*;
use std::fmt;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros};

/// A refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Name of the call.
    pub call: &'static str,
    /// Errno of the call.
    pub errno: Errno,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)
    }
}

impl std::error::Error for CallError {}

/// Result of a call.
pub type Result<T> = std::result::Result<T, CallError>;

fn fail(call: &'static str) -> impl FnOnce(Errno) -> CallError {
    move |errno| CallError { call, errno }
}

/// Returns the device file's path; `KFABRIC_DEVICE` overrides it.
pub fn device_path() -> String {
    std::env::var("KFABRIC_DEVICE").unwrap_or_else(|_| "/dev/kfabric".into())
}

/// An open `/dev/kfabric`.
#[derive(Debug)]
pub struct Dev(OwnedFd);

impl AsFd for Dev {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event queue and its descriptor.
#[derive(Debug)]
pub struct Eq {
    /// Handle of the queue.
    pub handle: u64,
    /// Descriptor that polls readable while an event waits.
    pub fd: OwnedFd,
}

/// An event with its data.
#[derive(Clone, Debug)]
pub struct Event {
    /// The structure as the kernel filled it.
    pub raw: EqRead,
    /// The peer's application data, or an info entry's bytes for a request.
    pub data: Vec<u8>,
}

/// Returns hints of a caller that supports every registration mode and has no preference.
pub fn hints() -> InfoEntry {
    InfoEntry {
        mr_mode: KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_ALLOCATED | KFI_MR_PROV_KEY,
        ..Default::default()
    }
}

/// Copies a name into a NUL-padded field.
pub fn name_field<const N: usize>(name: &str) -> [u8; N] {
    let mut field = [0; N];
    field[..name.len()].copy_from_slice(name.as_bytes());
    field
}

/// Returns the text of a NUL-padded field.
pub fn field_text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Converts a socket address to the interface's form.
pub fn to_sockaddr(addr: SocketAddr) -> SockAddr {
    let mut out = SockAddr::default();
    match addr {
        SocketAddr::V4(a) => {
            out.len = 16;
            out.data[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            out.data[2..4].copy_from_slice(&a.port().to_be_bytes());
            out.data[4..8].copy_from_slice(&a.ip().octets());
        }
        SocketAddr::V6(a) => {
            out.len = 28;
            out.data[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            out.data[2..4].copy_from_slice(&a.port().to_be_bytes());
            out.data[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
            out.data[8..24].copy_from_slice(&a.ip().octets());
            out.data[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
        }
    }
    out
}

/// Converts a socket address from the interface's form; `None`: there is none, or it is malformed.
pub fn from_sockaddr(addr: &SockAddr) -> Option<SocketAddr> {
    let d = &addr.data;
    let family = i32::from(u16::from_ne_bytes([d[0], d[1]]));
    let port = u16::from_be_bytes([d[2], d[3]]);
    let ip = match (addr.len, family) {
        (16, libc::AF_INET) => IpAddr::V4(Ipv4Addr::new(d[4], d[5], d[6], d[7])),
        (28, libc::AF_INET6) => {
            let octets: [u8; 16] = d[8..24].try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

impl Dev {
    /// Opens the device file.
    ///
    /// # Errors
    ///
    /// The errno of `open(2)`.
    pub fn open() -> Result<Self> {
        match File::options().read(true).write(true).open(device_path()) {
            Ok(file) => Ok(Self(file.into())),
            Err(e) => Err(fail("open")(Errno(e.raw_os_error().unwrap_or(0)))),
        }
    }

    /// Takes a descriptor for an open `/dev/kfabric`, whether it is one or not.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Duplicates the descriptor of the open file.
    ///
    /// # Errors
    ///
    /// The errno of `dup(2)`.
    pub fn dup(&self) -> std::io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Makes a call, filling in the structure's size.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn call<T: Ioctl>(&self, arg: &mut T) -> Result<()> {
        let size = std::mem::size_of::<T>() as u32;
        arg.as_mut_bytes()[..4].copy_from_slice(&size.to_ne_bytes());
        let at = arg.as_mut_bytes().as_mut_ptr() as usize;
        sys::ioctl(self.as_fd(), T::NR, at).map_err(fail(T::NAME))?;
        Ok(())
    }

    /// Makes a call with raw bytes; on success they hold the kernel's answer.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn call_bytes(&self, nr: u32, arg: &mut [u8]) -> std::result::Result<(), Errno> {
        sys::ioctl(self.as_fd(), nr, arg.as_mut_ptr() as usize).map(|_| ())
    }

    /// Makes a call with any address.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn call_at(&self, nr: u32, at: usize) -> std::result::Result<(), Errno> {
        sys::ioctl(self.as_fd(), nr, at).map(|_| ())
    }

    /// Lists the providers' info entries.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn getinfo(&self, hints: Option<&InfoEntry>) -> Result<Vec<InfoEntry>> {
        let mut entries = vec![InfoEntry::default(); 64];
        loop {
            let mut arg = GetInfo {
                hints: hints.map_or(0, |h| std::ptr::from_ref(h) as u64),
                entries: entries.as_mut_ptr() as u64,
                count: entries.len() as u32,
                entry_size: std::mem::size_of::<InfoEntry>() as u32,
                ..Default::default()
            };
            self.call(&mut arg)?;
            let count = arg.count as usize;
            if count <= entries.len() {
                entries.truncate(count);
                return Ok(entries);
            }
            entries.resize(count, InfoEntry::default());
        }
    }

    /// Opens a fabric. Returns its handle.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn fabric_open(&self, provider: &str, name: &str) -> Result<u64> {
        let mut arg = FabricOpen::new_zeroed();
        arg.prov_name = name_field(provider);
        arg.fabric_name = name_field(name);
        self.call(&mut arg)?;
        Ok(arg.handle)
    }

    /// Opens a domain.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn domain_open(&self, fabric: u64, name: &str) -> Result<DomainOpen> {
        self.domain_open_with(fabric, name, 0)
    }

    /// Opens a domain with `flags`.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn domain_open_with(&self, fabric: u64, name: &str, flags: u32) -> Result<DomainOpen> {
        let mut arg = DomainOpen::new_zeroed();
        arg.flags = flags;
        arg.fabric = fabric;
        arg.name = name_field(name);
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Opens an event queue.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn eq_open(&self, fabric: u64, depth: u32) -> Result<Eq> {
        let mut arg = EqOpen {
            fabric,
            depth,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(Eq {
            handle: arg.handle,
            fd: sys::own_fd(arg.fd),
        })
    }

    /// Opens a completion queue and maps its ring.
    ///
    /// # Errors
    ///
    /// The errno of the call, or of `mmap(2)`.
    pub fn cq_open(&self, domain: u64, depth: u32, format: u32) -> Result<Cq> {
        let mut arg = CqOpen {
            domain,
            depth,
            format,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Cq::new(&arg)
    }

    /// Opens a counter. Returns its handle.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn cntr_open(&self, domain: u64) -> Result<u64> {
        let mut arg = CntrOpen {
            domain,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg.handle)
    }

    /// Opens a passive endpoint. Returns its handle.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn pep_open(&self, fabric: u64, eq: u64, addr: SocketAddr, context: u64) -> Result<u64> {
        let addr = to_sockaddr(addr);
        let mut arg = PepOpen {
            fabric,
            eq,
            addr,
            context,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg.handle)
    }

    /// Opens an endpoint with the attributes of `want`. Returns the attributes that it got.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn ep_open(&self, want: &EpOpen) -> Result<EpOpen> {
        let mut arg = *want;
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Binds a queue or counter to an endpoint.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn bind(&self, ep: u64, object: u64, bind_flags: u64) -> Result<()> {
        self.call(&mut Bind {
            ep,
            object,
            bind_flags,
            ..Default::default()
        })
    }

    /// Enables an endpoint.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn enable(&self, handle: u64) -> Result<()> {
        self.call(&mut ObjectCall {
            handle,
            ..Default::default()
        })
    }

    /// Starts listening.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn listen(&self, pep: u64, backlog: u32) -> Result<()> {
        self.call(&mut Listen {
            pep,
            backlog,
            ..Default::default()
        })
    }

    /// Starts connecting.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn connect(&self, ep: u64, addr: SocketAddr, data: &[u8]) -> Result<()> {
        self.call(&mut Connect {
            ep,
            addr: to_sockaddr(addr),
            param: data.as_ptr() as u64,
            param_len: data.len() as u32,
            ..Default::default()
        })
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn accept(&self, ep: u64, data: &[u8]) -> Result<()> {
        self.call(&mut Accept {
            ep,
            param: data.as_ptr() as u64,
            param_len: data.len() as u32,
            ..Default::default()
        })
    }

    /// Rejects a connection request.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn reject(&self, connreq: u64, data: &[u8]) -> Result<()> {
        self.call(&mut Reject {
            connreq,
            param: data.as_ptr() as u64,
            param_len: data.len() as u32,
            ..Default::default()
        })
    }

    /// Shuts a connection down.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn shutdown(&self, ep: u64) -> Result<()> {
        self.call(&mut Shutdown {
            ep,
            ..Default::default()
        })
    }

    /// Returns the address of an endpoint, or of its peer.
    ///
    /// # Errors
    ///
    /// The call's errno; `EADDRNOTAVAIL` if the answer has no address.
    pub fn getname(&self, handle: u64, peer: bool) -> Result<SocketAddr> {
        let mut arg = GetName {
            handle,
            peer: u32::from(peer),
            ..Default::default()
        };
        self.call(&mut arg)?;
        from_sockaddr(&arg.addr).ok_or_else(|| fail("getname")(Errno(libc::EADDRNOTAVAIL)))
    }

    /// Takes an event without waiting.
    ///
    /// # Errors
    ///
    /// The call's errno: `EAGAIN` if none waits.
    pub fn eq_read(&self, eq: u64, flags: u32) -> Result<Event> {
        let mut data = vec![0u8; 4096];
        let mut raw = EqRead {
            flags,
            eq,
            data: data.as_mut_ptr() as u64,
            data_len: data.len() as u32,
            ..Default::default()
        };
        self.call(&mut raw)?;
        data.truncate(raw.data_len as usize);
        Ok(Event { raw, data })
    }

    /// Takes an event, waiting for it on the queue's descriptor.
    ///
    /// # Errors
    ///
    /// The call's errno; `ETIMEDOUT` if time is up.
    pub fn eq_wait(&self, eq: &Eq, timeout: Duration) -> Result<Event> {
        let end = Instant::now() + sys::patience(timeout);
        loop {
            match self.eq_read(eq.handle, 0) {
                Err(e) if e.errno.0 == libc::EAGAIN => {}
                other => return other,
            }
            let left = end.saturating_duration_since(Instant::now());
            if !sys::poll_in(eq.fd.as_fd(), left).map_err(fail("poll of an event queue"))? {
                return Err(fail("waiting for an event")(Errno(libc::ETIMEDOUT)));
            }
        }
    }

    /// Returns a counter's value and errors.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn cntr_read(&self, cntr: u64) -> Result<(u64, u64)> {
        let mut arg = CntrCtl {
            cntr,
            op: KFI_CNTR_READ,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok((arg.value, arg.errors))
    }

    /// Changes a counter.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn cntr_ctl(&self, cntr: u64, op: u32, value: u64) -> Result<()> {
        self.call(&mut CntrCtl {
            cntr,
            op,
            value,
            ..Default::default()
        })
    }

    /// Waits until a counter reaches `threshold`.
    ///
    /// # Errors
    ///
    /// The call's errno: `ETIMEDOUT`, `EIO`.
    pub fn cntr_wait(&self, cntr: u64, threshold: u64, timeout: Duration) -> Result<()> {
        let deadline = sys::monotonic_ns() + sys::patience(timeout).as_nanos() as u64;
        self.call(&mut CntrWait {
            cntr,
            threshold,
            deadline,
            ..Default::default()
        })
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn region_reg(
        &self,
        domain: u64,
        addr: u64,
        len: u64,
        access: u64,
        flags: u32,
    ) -> Result<RegionReg> {
        let mut arg = RegionReg {
            flags,
            domain,
            addr,
            len,
            access,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Registers memory with the attributes of `want`.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn call_region(&self, want: &RegionReg) -> Result<RegionReg> {
        let mut arg = *want;
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Reserves key slots. Returns their handles.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_alloc(&self, region: u64, count: u32) -> Result<Vec<u64>> {
        let mut handles = vec![0u64; count as usize];
        let at = handles.as_mut_ptr() as u64;
        self.call(&mut KeyAlloc {
            region,
            count,
            handles: at,
            ..Default::default()
        })?;
        Ok(handles)
    }

    /// Reserves key slots as [`Dev::key_alloc`] does, bound to an endpoint.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_alloc_for(&self, region: u64, ep: u64, count: u32) -> Result<Vec<u64>> {
        let mut handles = vec![0u64; count as usize];
        let at = handles.as_mut_ptr() as u64;
        self.call(&mut KeyAlloc {
            region,
            count,
            handles: at,
            ep,
            ..Default::default()
        })?;
        Ok(handles)
    }

    /// Assigns a key.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_assign(
        &self,
        slot: u64,
        offset: u64,
        length: u64,
        access: u64,
    ) -> Result<KeyAssign> {
        let mut arg = KeyAssign {
            slot,
            offset,
            length,
            access,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Revokes a key.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_revoke(&self, handle: u64) -> Result<()> {
        self.call(&mut ObjectCall2 {
            handle,
            ..Default::default()
        })
    }

    /// Assigns many keys. Returns the number assigned, and the errno that stopped the rest, or 0.
    ///
    /// # Errors
    ///
    /// The errno of the call, that is, of the first entry.
    pub fn key_assign_many(&self, entries: &mut [KeyEntry]) -> Result<(usize, i32)> {
        let mut arg = KeyAssignMany {
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<KeyEntry>() as u32,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok((arg.done as usize, arg.err as i32))
    }

    /// Assigns many keys without waiting for the device. Returns the same as
    /// [`Dev::key_assign_many`]. Unless `cq` is 0, it gets entries with `context` for failures.
    ///
    /// # Errors
    ///
    /// The errno of the call, that is, of the first entry.
    pub fn key_assign_ordered(
        &self,
        entries: &mut [KeyEntry],
        cq: u64,
        context: u64,
    ) -> Result<(usize, i32)> {
        let mut arg = KeyAssignMany {
            flags: KFI_KEY_ORDERED,
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<KeyEntry>() as u32,
            cq,
            context,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok((arg.done as usize, arg.err as i32))
    }

    /// Assigns a key without waiting for the device, as [`Dev::key_assign_ordered`] does.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_order(&self, want: &KeyEntry, cq: u64, context: u64) -> Result<KeyAssign> {
        let mut arg = KeyAssign {
            flags: KFI_KEY_ORDERED,
            slot: want.slot,
            offset: want.offset,
            length: want.length,
            access: want.access,
            cq,
            context,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Revokes the keys of slots. Returns the call's structure.
    ///
    /// # Errors
    ///
    /// The errno of the call, that is, of the first slot.
    pub fn key_revoke_slots(&self, slots: &[u64]) -> Result<KeyRevokeMany> {
        let mut arg = KeyRevokeMany {
            scope: KFI_REVOKE_SLOTS,
            count: slots.len() as u32,
            slots: slots.as_ptr() as u64,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg)
    }

    /// Revokes all keys of a region, of a domain or (`object` 0) of the file. Returns their number.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn key_revoke_all(&self, scope: u32, object: u64) -> Result<u64> {
        let mut arg = KeyRevokeMany {
            scope,
            object,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg.revoked)
    }

    /// Posts operations. Returns the number accepted, and the errno that stopped the rest, or 0.
    ///
    /// # Errors
    ///
    /// The errno of the call, that is, of the first operation.
    pub fn submit(&self, ep: u64, ops: &[OpEntry]) -> Result<(usize, i32)> {
        let mut arg = Submit {
            ep,
            ops: ops.as_ptr() as u64,
            count: ops.len() as u32,
            entry_size: std::mem::size_of::<OpEntry>() as u32,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok((arg.done as usize, arg.err as i32))
    }

    /// Queries an atomic of a domain. Returns the number of values per operation.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn query_atomic(&self, domain: u64, op: u32, what: u32, datatype: u32) -> Result<u64> {
        let mut arg = AtomicQuery {
            domain,
            op,
            atomic_op: what,
            datatype,
            ..Default::default()
        };
        self.call(&mut arg)?;
        Ok(arg.count)
    }

    /// Cancels a receive.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn cancel(&self, ep: u64, context: u64) -> Result<()> {
        self.call(&mut Cancel {
            ep,
            context,
            ..Default::default()
        })
    }

    /// Closes an object.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn close(&self, handle: u64) -> Result<()> {
        self.call(&mut Close {
            handle,
            ..Default::default()
        })
    }

    /// Lists live objects.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn obj_list(&self) -> Result<Vec<ObjInfo>> {
        let mut entries = vec![ObjInfo::new_zeroed(); 4096];
        let mut arg = ObjList {
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<ObjInfo>() as u32,
            ..Default::default()
        };
        self.call(&mut arg)?;
        entries.truncate(arg.count as usize);
        Ok(entries)
    }
}

/// A completion queue with its ring mapped.
pub struct Cq {
    /// Handle of the queue.
    pub handle: u64,
    /// Descriptor that polls readable while an entry waits.
    pub fd: OwnedFd,
    /// Number of entries of the ring.
    pub entries: u32,
    map: Map,
}

/// Offset of the program's index in the ring's first page.
const TAIL: usize = std::mem::offset_of!(CqRing, tail);

impl Cq {
    fn new(open: &CqOpen) -> Result<Self> {
        let fd = sys::own_fd(open.fd);
        let map =
            Map::file(fd.as_fd(), open.map_size as usize, true).map_err(fail("mmap of a ring"))?;
        Ok(Self {
            handle: open.handle,
            fd,
            entries: open.entries,
            map,
        })
    }

    /// Returns the ring's memory.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Returns the kernel's index.
    pub fn head(&self) -> u32 {
        self.map.load32(0)
    }

    /// Returns the program's index.
    pub fn tail(&self) -> u32 {
        self.map.load32(TAIL)
    }

    /// Sets the program's index, to a true or a false value.
    pub fn set_tail(&self, tail: u32) {
        self.map.store32(TAIL, tail);
    }

    /// Takes an entry if one waits.
    pub fn read(&self) -> Option<CqEntry> {
        let (head, tail) = (self.head(), self.tail());
        if head == tail {
            return None;
        }
        let size = std::mem::size_of::<CqEntry>();
        let at = KFI_CQ_RING_OFFSET + (tail & (self.entries - 1)) as usize * size;
        let mut bytes = [0u8; std::mem::size_of::<CqEntry>()];
        self.map.read(at, &mut bytes);
        self.set_tail(tail.wrapping_add(1));
        CqEntry::read_from_bytes(&bytes).ok()
    }

    /// Takes an entry, waiting for it on the queue's descriptor.
    ///
    /// # Errors
    ///
    /// The errno of `poll(2)`; `ETIMEDOUT` if time is up.
    pub fn wait(&self, timeout: Duration) -> Result<CqEntry> {
        let end = Instant::now() + sys::patience(timeout);
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry);
            }
            let left = end.saturating_duration_since(Instant::now());
            let there = sys::poll_in(self.fd.as_fd(), left);
            if !there.map_err(fail("poll of a completion queue"))? {
                return Err(fail("waiting for a completion")(Errno(libc::ETIMEDOUT)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_there_and_back() {
        for text in ["10.1.2.3:4711", "[fe80::1]:9", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_sockaddr(&to_sockaddr(addr)), Some(addr));
        }
        assert_eq!(from_sockaddr(&SockAddr::default()), None);
    }

    #[test]
    fn names_survive_the_way_there_and_back() {
        let field: [u8; 8] = name_field("rxe0");
        assert_eq!(field_text(&field), "rxe0");
        assert_eq!(field_text(b"full"), "full");
    }
}
