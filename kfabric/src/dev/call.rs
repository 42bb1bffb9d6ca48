// SPDX-License-Identifier: GPL-2.0
//! Which ioctl does what.
//!
//! [`dispatch`] copies the structure in, a handler works on the copy, and the copy goes out. What
//! a handler made it says in [`Made`]; if the way out fails, that is undone, so that a call that
//! fails changes nothing.

use kernel::{
    fs::file::FileDescriptorReservation,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::{
    auth,
    file::File,
    fops,
    keys,
    list,
    submit,
    table::{
        Entry,
        Object, //
    },
    user, //
};
use crate::{
    auth::{
        admit,
        ask::{
            self,
            Question, //
        },
        grant,
        Under,
        Want, //
    },
    cntr::{
        Cntr,
        Counts, //
    },
    cq::Cq,
    ep::{
        Endpoint, //
        EpAttr,
    },
    eq::Eq,
    errno::enotconn,
    fabric::{
        Domain,
        Fabric, //
    },
    memory::Memory,
    object::name_str,
    pep::PassiveEp,
    provider::KeyValue,
    pure::{
        copysize::CopyPlan,
        rights, //
    },
    region::{
        Key,
        Region,
        Unders, //
    },
    registry,
    rings::End,
    sys,
    uapi::*,
};

/// What a call made that must not stay if its answer cannot be delivered.
pub(super) enum Made {
    /// Nothing, and there is no answer: the call is done.
    Done,
    /// Nothing, but there is an answer.
    Nothing,
    /// A change of a counter.
    Counted(Arc<Cntr>, Counts),
    /// An object.
    Object(u64),
    /// An object and its descriptor.
    Queue(u64, FileDescriptorReservation, fops::QueueFile),
    /// A descriptor of what was there before.
    Descriptor(FileDescriptorReservation, fops::QueueFile),
    /// Objects.
    Objects(KVec<u64>),
    /// A key on a slot.
    Assigned(Arc<Key>, KeyValue),
    /// Keys on slots.
    ManyAssigned(KVVec<keys::Given>),
    /// A grant.
    Granted(u64),
    /// The agent has a question.
    Asked(Arc<Question>),
}

impl Made {
    /// Lets the answer go out, where there is one; takes back what was made if it does not. The
    /// same for all calls, and compiled once.
    #[inline(never)]
    fn settle(self, file: &File, arg: u64, answer: &[u8], plan: &CopyPlan) -> Result {
        if let Made::Done = self {
            return Ok(());
        }
        let answered = user::answer(arg, answer, plan);
        match &answered {
            Ok(()) => self.deliver(),
            Err(_) => self.undo(file),
        }
        answered
    }

    fn deliver(self) {
        if let Made::Queue(_, fd, file) | Made::Descriptor(fd, file) = self {
            fd.fd_install(file.into_file());
        }
    }

    pub(super) fn undo(&self, file: &File) {
        match self {
            // Nobody sees the descriptor.
            Made::Done | Made::Nothing | Made::Descriptor(..) => {}
            Made::Counted(cntr, by) => cntr.update(|c| {
                c.value = c.value.wrapping_sub(by.value);
                c.errors = c.errors.wrapping_sub(by.errors);
            }),
            Made::Object(handle) | Made::Queue(handle, ..) => {
                let _ = file.close(*handle);
            }
            Made::Objects(handles) => {
                for handle in handles {
                    let _ = file.close(*handle);
                }
            }
            Made::Assigned(key, value) => key.take_back(value),
            Made::ManyAssigned(given) => {
                for slot in given {
                    slot.key.take_back(&slot.value.get());
                }
            }
            Made::Granted(id) => grant::withdraw(*id),
            Made::Asked(question) => ask::put_back(question),
        }
    }
}

/// Runs one ioctl.
pub(super) fn dispatch(file: &File, cmd: u32, arg: u64) -> Result {
    // Direction and number decide; the size in the number is only that of the first version.
    const MASK: u32 = 0xc000_ffff;
    macro_rules! calls {
        ($($ty:ty => $handler:expr,)*) => {
            $(
                if cmd & MASK == <$ty>::NR & MASK {
                    return run::<$ty>(file, arg, $handler);
                }
            )*
        };
    }
    calls! {
        Submit => submit::submit,
        KeyAssign => keys::assign,
        ObjectCall2 => keys::revoke,
        KeyAssignMany => keys::assign_many,
        KeyRevokeMany => keys::revoke_many,
        GetInfo => get_info,
        FabricOpen => fabric_open,
        DomainOpen => domain_open,
        EqOpen => eq_open,
        CqOpen => cq_open,
        CntrOpen => cntr_open,
        PepOpen => pep_open,
        EpOpen => ep_open,
        Bind => bind,
        ObjectCall => enable,
        Listen => listen,
        Connect => connect,
        Accept => accept,
        Reject => reject,
        Shutdown => shutdown,
        GetName => get_name,
        CntrCtl => cntr_ctl,
        CntrWait => cntr_wait,
        RegionReg => region_reg,
        KeyAlloc => keys::alloc,
        Cancel => cancel,
        AtomicQuery => submit::query_atomic,
        EpRings => rings,
        EpWake => wake,
        Close => close,
        ObjList => list::list,
        AuthMode => auth::mode,
        GrantAdd => auth::grant_add,
        GrantChange => auth::grant_change,
        GrantRevoke => auth::grant_revoke,
        GrantList => auth::grant_list,
        AgentOpen => auth::agent_open,
        AgentNext => auth::agent_next,
        AgentAnswer => auth::agent_answer,
    }
    if cmd & MASK == EqRead::NR & MASK {
        return eq_read(file, arg);
    }
    Err(ENOTTY)
}

fn run<T: Ioctl>(file: &File, arg: u64, handler: fn(&File, &mut T) -> Result<Made>) -> Result {
    let (mut call, plan) = user::read_call::<T>(arg)?;
    // Where the answer cannot go, nothing is begun. (A program that unmaps the place meanwhile
    // is left with the undoing below.)
    user::write_call(arg, &call, &plan)?;
    let made = handler(file, &mut call)?;
    made.settle(file, arg, call.as_bytes(), &plan)
}

/// An error as the interface has it in structures: a positive errno; 0: none.
#[inline(never)]
pub(super) fn errno(result: Result) -> u32 {
    result.map_or_else(|e| e.to_errno().unsigned_abs(), |()| 0)
}

/// Refuses flags and reserved fields that are not zero.
pub(super) fn zero(values: &[u32]) -> Result {
    if values.iter().any(|value| *value != 0) {
        return Err(EINVAL);
    }
    Ok(())
}

macro_rules! getter {
    ($name:ident, $variant:ident, $ty:ty) => {
        pub(super) fn $name(file: &File, handle: u64) -> Result<Arc<$ty>> {
            match file.table.get(handle)? {
                Object::$variant(object) => Ok(object),
                _ => Err(ENOENT),
            }
        }
    };
}

getter!(fabric, Fabric, Fabric);
getter!(domain, Domain, Domain);
getter!(eq, Eq, Eq);
getter!(cntr, Cntr, Cntr);
getter!(pep, Pep, PassiveEp);
getter!(ep, Ep, Endpoint);
getter!(region, Region, Region);
getter!(key, Key, Key);

fn get_info(file: &File, call: &mut GetInfo) -> Result<Made> {
    zero(&[call.flags])?;
    // CAST: A `u32` fits.
    let entry_size = call.entry_size as usize;
    let first = size_of::<InfoEntry>();
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    user::check_entry_size::<InfoEntry>(call.entry_size)?;
    let hints = if call.hints == 0 {
        None
    } else {
        Some(user::read_struct::<InfoEntry>(call.hints, entry_size, first)?.0)
    };
    if let Some(hints) = &hints {
        name_str(&hints.prov_name)?;
        name_str(&hints.fabric_name)?;
        name_str(&hints.domain_name)?;
        check_addr(&hints.src_addr)?;
        check_addr(&hints.dest_addr)?;
    }
    let found = registry::getinfo(&file.net, hints.as_ref())?;
    // CAST: A `u32` fits.
    for (i, entry) in found.iter().take(call.count as usize).enumerate() {
        user::write_entry(call.entries, call.entry_size, i, entry.as_bytes())?;
    }
    call.count = u32::try_from(found.len()).map_err(|_| EOVERFLOW)?;
    Ok(Made::Nothing)
}

fn fabric_open(file: &File, call: &mut FabricOpen) -> Result<Made> {
    zero(&[call.flags])?;
    let fabric = Fabric::open(
        file.net.clone(),
        name_str(&call.prov_name)?,
        name_str(&call.fabric_name)?,
    )?;
    call.handle = file.publish(Object::Fabric(fabric), 0)?;
    Ok(Made::Object(call.handle))
}

fn domain_open(file: &File, call: &mut DomainOpen) -> Result<Made> {
    zero(&[call.flags, call.reserved, call.reserved2])?;
    let key = auth::read_key(call.auth_key, call.auth_key_size)?;
    let fabric = fabric(file, call.fabric)?;
    let domain = Domain::open_for_program(&fabric, name_str(&call.name)?, key.as_ref())?;
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
    call.handle = file.publish(Object::Domain(domain), call.fabric)?;
    Ok(Made::Object(call.handle))
}

/// Gives a queue its descriptor, not yet visible to the program.
fn with_fd(file: &File, handle: u64, queue: fops::Queue) -> Result<(Made, i32)> {
    let made = descriptor(queue).inspect_err(|_| {
        let _ = file.close(handle);
    });
    made.map(|(fd, queue, number)| (Made::Queue(handle, fd, queue), number))
}

/// A descriptor, with its number, that is not yet visible to the program.
fn descriptor(queue: fops::Queue) -> Result<(FileDescriptorReservation, fops::QueueFile, i32)> {
    let fd = FileDescriptorReservation::get_unused_fd_flags(kernel::bindings::O_CLOEXEC)?;
    let number = i32::try_from(fd.reserved_fd()).map_err(|_| EMFILE)?;
    Ok((fd, fops::QueueFile::new(queue)?, number))
}

fn eq_open(file: &File, call: &mut EqOpen) -> Result<Made> {
    zero(&[call.flags])?;
    let eq = Eq::open(&fabric(file, call.fabric)?, call.depth, None)?;
    call.handle = file.publish(Object::Eq(eq.clone()), call.fabric)?;
    let (made, fd) = with_fd(file, call.handle, fops::Queue::Eq(eq))?;
    call.fd = fd;
    Ok(made)
}

fn cq_open(file: &File, call: &mut CqOpen) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    let cq = Cq::open(&domain(file, call.domain)?, call.depth, call.format, None)?;
    call.entries = cq.entries();
    call.map_size = cq.ring().raw().1 as u64;
    call.handle = file.publish(Object::Cq(cq.clone()), call.domain)?;
    let (made, fd) = with_fd(file, call.handle, fops::Queue::Cq(cq))?;
    call.fd = fd;
    Ok(made)
}

fn cntr_open(file: &File, call: &mut CntrOpen) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    let cntr = Cntr::open(&domain(file, call.domain)?)?;
    call.handle = file.publish(Object::Cntr(cntr), call.domain)?;
    Ok(Made::Object(call.handle))
}

/// Refuses an address that is none.
fn check_addr(addr: &SockAddr) -> Result {
    match (addr.len, u16::from_ne_bytes([addr.data[0], addr.data[1]])) {
        (0, 0) | (16, 2) | (28, 10) => Ok(()),
        // A service name, which has bytes.
        (28, 1) if addr.data[2] != 0 => Ok(()),
        _ => Err(EINVAL),
    }
}

/// Fetches what a passive endpoint listens under, and asks whether it may.
fn listen_under(file: &File, call: &PepOpen) -> Result<KVec<Under>> {
    // CAST: A `u32` fits.
    let count = call.auth_key_count as usize;
    if count > KFI_PEP_AUTH_KEYS_MAX || (count == 0) != (call.auth_keys == 0) {
        return Err(EINVAL);
    }
    let mut found: KVec<Under> = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    for index in 0..count {
        let mut one = AuthKeyRef::default();
        // CAST: Some bytes.
        let at = user::entry_at(call.auth_keys, size_of::<AuthKeyRef>() as u32, index);
        user::read_bytes(at, one.as_mut_bytes())?;
        zero(&[one.reserved])?;
        let key = auth::read_key(one.addr, one.size)?.ok_or(EINVAL)?;
        if found.iter().any(|other| other.number() == key.number()) {
            return Err(EINVAL);
        }
        found.push(Under::of(Some(&key)), GFP_KERNEL_ACCOUNT)?;
    }
    if count == 0 {
        // Nobody could be let in by it, and others not listen there.
        admit(&file.net, "", None, Want::endpoints(1))?;
    }
    for under in found.iter_mut() {
        under.lease = admit(&file.net, "", under.key.as_ref(), Want::endpoints(1))?;
    }
    Ok(found)
}

fn pep_open(file: &File, call: &mut PepOpen) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    check_addr(&call.addr)?;
    if call.addr.len == 0 {
        return Err(EINVAL);
    }
    let fabric = fabric(file, call.fabric)?;
    let eq = eq(file, call.eq)?;
    let under = listen_under(file, call)?;
    let pep = PassiveEp::open_under(&fabric, &eq, &call.addr, call.context, under)?;
    call.handle = file.publish(Object::Pep(pep.clone()), call.fabric)?;
    pep.set_handle(call.handle);
    let made = Made::Object(call.handle);
    still(file, made, pep.auth().iter())
}

/// Undoes what was made under a grant that is over by now. Who ends what was made under it may not
/// have found this, and finds it from now on.
pub(super) fn still<'a>(
    file: &File,
    made: Made,
    under: impl Iterator<Item = &'a Under>,
) -> Result<Made> {
    for under in under {
        if let Err(e) = under.check() {
            made.undo(file);
            return Err(e);
        }
    }
    Ok(made)
}

fn ep_open(file: &File, call: &mut EpOpen) -> Result<Made> {
    zero(&[
        call.flags & !(KFI_EP_OWN_KEYS | KFI_EP_RINGS),
        call.reserved,
        call.reserved2,
        call.reserved3,
    ])?;
    check_addr(&call.src_addr)?;
    let key = auth::read_key(call.auth_key, call.auth_key_size)?;
    let domain = domain(file, call.domain)?;
    let request = match call.connreq {
        0 => None,
        handle => match file.table.get(handle)? {
            Object::Request(request) => Some(request),
            _ => return Err(ENOENT),
        },
    };
    let attr = EpAttr {
        tx_size: call.tx_size,
        rx_size: call.rx_size,
        iov_limit: call.iov_limit,
        src_addr: call.src_addr,
        context: call.context,
        own_keys: call.flags & KFI_EP_OWN_KEYS != 0,
        reuse_values: false,
    };
    let under = auth::under(file, &domain, key, domain.auth(), Want::endpoints(1))?;
    // Before a request is used up: nothing fails after that.
    let place = file.table.reserve()?;
    let rings = call.flags & KFI_EP_RINGS != 0;
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
        // Used up. Its handle goes whatever becomes of the answer.
        let _ = file.table.remove(call.connreq);
    }
    let made = Made::Object(call.handle);
    still(file, made, core::iter::once(ep.under()))
}

fn rings(file: &File, call: &mut EpRings) -> Result<Made> {
    zero(&[call.flags])?;
    let ep = ep(file, call.ep)?;
    let (state, end) = ep.rings();
    (call.state, call.fd, call.side) = (state, -1, 0);
    // CAST: A page is that small.
    call.page_size = PAGE_SIZE as u32;
    call.map_size = 0;
    let Some(end) = end else {
        return Ok(Made::Nothing);
    };
    let (fd, mapped, number) = descriptor(fops::Queue::Rings(end.clone()))?;
    // CAST: 0 or 1.
    (call.fd, call.side) = (number, end.side() as u32);
    call.map_size = End::map_size() as u64;
    Ok(Made::Descriptor(fd, mapped))
}

fn wake(file: &File, call: &mut EpWake) -> Result<Made> {
    zero(&[call.flags & !KFI_WAKE_SELF])?;
    ep(file, call.ep)?.wake(call.flags & KFI_WAKE_SELF != 0)?;
    Ok(Made::Done)
}

fn bind(file: &File, call: &mut Bind) -> Result<Made> {
    zero(&[call.flags])?;
    let ep = ep(file, call.ep)?;
    match &file.table.get(call.object)? {
        Object::Eq(_) if call.bind_flags != 0 => return Err(EINVAL),
        Object::Eq(eq) => ep.bind_eq(eq)?,
        Object::Cq(cq) => ep.bind_cq(cq, call.bind_flags)?,
        Object::Cntr(cntr) => ep.bind_cntr(cntr, call.bind_flags)?,
        _ => return Err(ENOENT),
    }
    Ok(Made::Done)
}

fn enable(file: &File, call: &mut ObjectCall) -> Result<Made> {
    zero(&[call.flags])?;
    ep(file, call.handle)?.enable()?;
    Ok(Made::Done)
}

fn listen(file: &File, call: &mut Listen) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    pep(file, call.pep)?.listen(call.backlog)?;
    Ok(Made::Done)
}

fn connect(file: &File, call: &mut Connect) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    check_addr(&call.addr)?;
    if call.addr.len == 0 {
        return Err(EINVAL);
    }
    let ep = ep(file, call.ep)?;
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    ep.connect(&call.addr, data)?;
    Ok(Made::Done)
}

fn accept(file: &File, call: &mut Accept) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    let ep = ep(file, call.ep)?;
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    ep.accept(data)?;
    Ok(Made::Done)
}

fn reject(file: &File, call: &mut Reject) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    let Object::Request(request) = file.table.get(call.connreq)? else {
        return Err(ENOENT);
    };
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    request.reject(data)?;
    let _ = file.table.remove(call.connreq);
    Ok(Made::Done)
}

fn shutdown(file: &File, call: &mut Shutdown) -> Result<Made> {
    zero(&[call.flags])?;
    ep(file, call.ep)?.shutdown()?;
    Ok(Made::Done)
}

fn get_name(file: &File, call: &mut GetName) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    if call.peer > 1 {
        return Err(EINVAL);
    }
    call.addr = match (&file.table.get(call.handle)?, call.peer) {
        (Object::Ep(ep), 0) => ep.local_addr(),
        (Object::Ep(ep), _) => ep.peer_addr(),
        (Object::Pep(pep), 0) => pep.local_addr(),
        (Object::Pep(_), _) => return Err(enotconn()),
        _ => return Err(ENOENT),
    };
    Ok(Made::Nothing)
}

/// Takes an event once its answer has arrived: this call delivers by itself.
fn eq_read(file: &File, arg: u64) -> Result {
    let (mut call, plan) = user::read_call::<EqRead>(arg)?;
    if call.flags & !KFI_EQ_PEEK != 0 || call.reserved != 0 {
        return Err(EINVAL);
    }
    let eq = eq(file, call.eq)?;
    let peek = call.flags & KFI_EQ_PEEK != 0;
    let (data, room, info) = (call.data, call.data_len, call.info);
    eq.read_with(|event| {
        let len = u32::try_from(event.data.len()).map_err(|_| EIO)?;
        if len > room {
            return Err(EMSGSIZE);
        }
        user::write_bytes(data, &event.data)?;
        if let (Some(request), true) = (&event.request, info != 0) {
            user::write_bytes(info, request.info().as_bytes())?;
        }
        call.data_len = len;
        call.event = event.kind;
        call.object = event.object;
        call.context = event.context;
        call.err = event.err;
        call.prov_errno = event.prov_errno;
        call.connreq = 0;
        call.auth_index = event.request.as_ref().map_or(0, |of| of.auth_index());
        let handle = match (&event.request, peek) {
            (Some(request), false) => Some(file.publish_request(request.clone(), event.object)?),
            _ => None,
        };
        call.connreq = handle.unwrap_or(0);
        user::write_call(arg, &call, &plan).inspect_err(|_| {
            // The request stays with its event.
            let _ = handle.map(|handle| file.table.remove(handle));
        })?;
        Ok(!peek)
    })
}

fn cntr_ctl(file: &File, call: &mut CntrCtl) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    let cntr = cntr(file, call.cntr)?;
    let operand = call.value;
    let mut by = Counts::default();
    let mut update = |change: fn(&mut Counts, u64)| {
        cntr.update(|c| {
            let before = *c;
            change(c, operand);
            by.value = c.value.wrapping_sub(before.value);
            by.errors = c.errors.wrapping_sub(before.errors);
        });
    };
    match call.op {
        KFI_CNTR_READ => {}
        KFI_CNTR_ADD => update(|c, operand| c.value = c.value.wrapping_add(operand)),
        KFI_CNTR_SET => update(|c, operand| c.value = operand),
        KFI_CNTR_ADDERR => update(|c, operand| c.errors = c.errors.wrapping_add(operand)),
        KFI_CNTR_SETERR => update(|c, operand| c.errors = operand),
        _ => return Err(EINVAL),
    }
    let counts = cntr.read();
    call.value = counts.value;
    call.errors = counts.errors;
    Ok(Made::Counted(cntr, by))
}

fn cntr_wait(file: &File, call: &mut CntrWait) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    // The program's clock is its time namespace's.
    let deadline = sys::monotonic_here(call.deadline);
    cntr(file, call.cntr)?.wait(call.threshold, deadline)?;
    Ok(Made::Done)
}

/// The endpoint that something is to be bound to, if it is to one.
pub(super) fn own_ep(file: &File, handle: u64) -> Result<Option<Arc<Endpoint>>> {
    match handle {
        0 => Ok(None),
        handle => ep(file, handle).map(Some),
    }
}

/// Asks whether a region may be registered, and have a key of its own if it is to get one.
fn register_under(
    file: &File,
    call: &RegionReg,
    domain: &Arc<Domain>,
    ep: Option<&Endpoint>,
) -> Result<Unders> {
    let given = auth::read_key(call.auth_key, call.auth_key_size)?;
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
    let mut unders = Unders {
        memory: Under::of(key.as_ref()),
        own: Under::of(key.as_ref()),
    };
    // What no peer reaches and no auth key is named for takes no grant.
    if key.is_some() || own {
        let want = Want::memory(call.len, 0);
        unders.memory = auth::under(file, domain, None, key.as_ref(), want)?;
    }
    if own {
        unders.own = auth::under(file, domain, None, key.as_ref(), Want::memory(0, 1))?;
    }
    Ok(unders)
}

fn region_reg(file: &File, call: &mut RegionReg) -> Result<Made> {
    zero(&[call.flags & !KFI_REGION_DYNAMIC_KEYS, call.reserved])?;
    if !rights::valid_region_access(call.access) {
        return Err(EINVAL);
    }
    let domain = domain(file, call.domain)?;
    let of = own_ep(file, call.ep)?;
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
    let dynamic = call.flags & KFI_REGION_DYNAMIC_KEYS != 0;
    call.pages = memory.charged() as u64;
    let of = of.as_deref();
    let region = Region::register_under(&domain, of, memory, call.access, dynamic, unders)?;
    let key = region.key();
    call.key = key.key;
    call.remote_addr = key.remote_addr;
    call.handle = file.publish(Object::Region(region.clone()), call.domain)?;
    let made = Made::Object(call.handle);
    let own = region.own().map(|key| key.under());
    still(
        file,
        made,
        [Some(region.under()), own].into_iter().flatten(),
    )
}

fn cancel(file: &File, call: &mut Cancel) -> Result<Made> {
    zero(&[call.flags])?;
    ep(file, call.ep)?.cancel(call.context)?;
    Ok(Made::Done)
}

fn close(file: &File, call: &mut Close) -> Result<Made> {
    zero(&[call.flags])?;
    file.close(call.handle)?;
    Ok(Made::Done)
}
