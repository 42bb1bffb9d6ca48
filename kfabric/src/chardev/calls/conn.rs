// SPDX-License-Identifier: GPL-2.0
//! The calls on connections: listen, connect and answer, addresses, events, and rings.

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use zerocopy::IntoBytes;

use crate::{
    base::errno::enotconn,
    chardev::{
        args::{
            check_addr,
            zero, //
        },
        file::File,
        handles::Object,
        queue_file::{
            descriptor,
            Queue, //
        },
        undo::Undo,
        user, //
    },
    provider::ring_pair::End,
    pure::copysize::CopyPlan,
    uapi::*,
};

pub(crate) fn listen(file: &File, call: &mut Listen) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    file.handles.pep(call.pep)?.listen(call.backlog)?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn connect(file: &File, call: &mut Connect) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    check_addr(&call.addr)?;
    if call.addr.len == 0 {
        return Err(EINVAL);
    }
    let ep = file.handles.ep(call.ep)?;
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    ep.connect(&call.addr, data)?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn accept(file: &File, call: &mut Accept) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    let ep = file.handles.ep(call.ep)?;
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    ep.accept(data)?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn reject(file: &File, call: &mut Reject) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    let request = file.handles.request(call.connreq)?;
    let mut room = [0; KFI_CM_DATA_MAX];
    let data = user::read_buffer(call.param, call.param_len, &mut room)?;
    request.reject(data)?;
    let _ = file.handles.remove(call.connreq);
    Ok(Undo::NoAnswer)
}

pub(crate) fn shutdown(file: &File, call: &mut Shutdown) -> Result<Undo> {
    zero(&[call.flags])?;
    file.handles.ep(call.ep)?.shutdown()?;
    Ok(Undo::NoAnswer)
}

pub(crate) fn get_name(file: &File, call: &mut GetName) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    if call.peer > 1 {
        return Err(EINVAL);
    }
    call.addr = match (&file.handles.get(call.handle)?, call.peer) {
        (Object::Ep(ep), 0) => ep.local_addr(),
        (Object::Ep(ep), _) => ep.peer_addr(),
        (Object::Pep(pep), 0) => pep.local_addr(),
        (Object::Pep(_), _) => return Err(enotconn()),
        _ => return Err(ENOENT),
    };
    Ok(Undo::Nothing)
}

/// Removes an event after its answer was copied out: this call copies the answer itself.
pub(crate) fn eq_read(file: &File, arg: u64, call: &mut EqRead, plan: &CopyPlan) -> Result {
    if call.flags & !KFI_EQ_PEEK != 0 || call.reserved != 0 {
        return Err(EINVAL);
    }
    let eq = file.handles.eq(call.eq)?;
    let peek = call.flags & KFI_EQ_PEEK != 0;
    let (data, room, info) = (call.data, call.data_len, call.info);
    eq.read_with(|event| {
        let len = u32::try_from(event.data.len()).map_err(|_| EIO)?;
        if len > room {
            return Err(EMSGSIZE);
        }
        user::write_bytes(data, &event.data)?;
        if let (Some(request), true) = (&event.request, info != 0) {
            // The call has no size of the entry, so later fields are not for this call.
            let entry = request.info();
            user::write_bytes(info, entry.as_bytes().get(..super::info::FIRST).ok_or(EIO)?)?;
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
        user::write_call(arg, call, plan).inspect_err(|_| {
            // The request stays with its event.
            let _ = handle.map(|handle| file.handles.remove(handle));
        })?;
        Ok(!peek)
    })
}

pub(crate) fn rings(file: &File, call: &mut EpRings) -> Result<Undo> {
    zero(&[call.flags])?;
    let ep = file.handles.ep(call.ep)?;
    let (state, end) = ep.rings();
    (call.state, call.fd, call.side) = (state, -1, 0);
    // CAST: The page size is far below 2^32.
    call.page_size = PAGE_SIZE as u32;
    call.map_size = 0;
    let Some(end) = end else {
        return Ok(Undo::Nothing);
    };
    let (fd, mapped, number) = descriptor(Queue::Rings(end.clone()))?;
    // CAST: The side is 0 or 1.
    (call.fd, call.side) = (number, end.side() as u32);
    call.map_size = End::map_size() as u64;
    Ok(Undo::Descriptor(fd, mapped))
}

pub(crate) fn wake(file: &File, call: &mut EpWake) -> Result<Undo> {
    zero(&[call.flags & !KFI_WAKE_SELF])?;
    file.handles
        .ep(call.ep)?
        .wake(call.flags & KFI_WAKE_SELF != 0)?;
    Ok(Undo::NoAnswer)
}
