// SPDX-License-Identifier: GPL-2.0
//! The table of ioctls, and the dispatch of one.
//!
//! [`copied`] copies the structure in, a handler of [`super::calls`] changes the copy, and
//! [`Undo::answer`] copies it out or undoes the handler's changes. Handlers do not import this
//! module; only the file operations do.

use core::mem::offset_of;
use kernel::prelude::*;

use super::{
    calls::{
        auth,
        conn,
        counter,
        info,
        key,
        key_assign_many,
        key_revoke_many,
        list,
        object,
        region,
        submit, //
    },
    file::File,
    undo::Undo,
    user, //
};
use crate::{
    pure::copysize::CopyPlan,
    uapi::*, //
};

/// Direction and number select the call. The size in the number is the first version's only.
const MASK: u32 = 0xc000_ffff;

/// A handler that copies its answer out itself: to the program's structure at an address, as the
/// plan says.
type Direct<T> = fn(&File, u64, &mut T, &CopyPlan) -> Result;

/// Returns the size of a field.
const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Makes `dispatch` of the table below. Each row also asserts that the ioctl exchanges the
/// structure, and that the structure's first version ends with the last member.
macro_rules! ioctls {
    ($(($nr:ident, $how:ident($function:path), $ty:ident, $last:ident),)*) => {
        /// Runs one ioctl.
        ///
        /// # Errors
        ///
        /// - `ENOTTY` if there is no such ioctl.
        /// - `EFAULT`, `EINVAL`, `E2BIG` if the structure cannot be copied in or out.
        /// - The handler's error.
        pub(super) fn dispatch(file: &File, cmd: u32, arg: u64) -> Result {
            $(
                const {
                    assert!(<$ty>::NR == $nr);
                    let last = size_of_field(|call: &$ty| &call.$last);
                    assert!(<$ty>::MIN_SIZE == offset_of!($ty, $last) + last);
                }
                if cmd & MASK == $nr & MASK {
                    return $how::<$ty>(file, arg, $function);
                }
            )*
            Err(ENOTTY)
        }
    };
}

// Ioctl, function, structure, last member of the structure's first version.
ioctls! {
    (KFI_IOC_SUBMIT, copied(submit::submit), Submit, err),
    (KFI_IOC_KEY_ASSIGN, copied(key::assign), KeyAssign, cq),
    (KFI_IOC_KEY_REVOKE, copied(key::revoke), ObjectCall2, handle),
    (KFI_IOC_KEY_ASSIGN_MANY, copied(key_assign_many::assign_many), KeyAssignMany, context),
    (KFI_IOC_KEY_REVOKE_MANY, copied(key_revoke_many::revoke_many), KeyRevokeMany, revoked),
    (KFI_IOC_GETINFO, copied(info::get_info), GetInfo, reserved),
    (KFI_IOC_FABRIC_OPEN, copied(object::fabric_open), FabricOpen, handle),
    (KFI_IOC_DOMAIN_OPEN, copied(object::domain_open), DomainOpen, max_keys),
    (KFI_IOC_EQ_OPEN, copied(object::eq_open), EqOpen, handle),
    (KFI_IOC_CQ_OPEN, copied(object::cq_open), CqOpen, reserved),
    (KFI_IOC_CNTR_OPEN, copied(counter::cntr_open), CntrOpen, reserved),
    (KFI_IOC_PEP_OPEN, copied(object::pep_open), PepOpen, handle),
    (KFI_IOC_EP_OPEN, copied(object::ep_open), EpOpen, handle),
    (KFI_IOC_BIND, copied(object::bind), Bind, bind_flags),
    (KFI_IOC_ENABLE, copied(object::enable), ObjectCall, handle),
    (KFI_IOC_LISTEN, copied(conn::listen), Listen, reserved),
    (KFI_IOC_CONNECT, copied(conn::connect), Connect, reserved),
    (KFI_IOC_ACCEPT, copied(conn::accept), Accept, reserved),
    (KFI_IOC_REJECT, copied(conn::reject), Reject, reserved),
    (KFI_IOC_SHUTDOWN, copied(conn::shutdown), Shutdown, ep),
    (KFI_IOC_GETNAME, copied(conn::get_name), GetName, addr),
    (KFI_IOC_CNTR_CTL, copied(counter::cntr_ctl), CntrCtl, errors),
    (KFI_IOC_CNTR_WAIT, copied(counter::cntr_wait), CntrWait, reserved),
    (KFI_IOC_REGION_REG, copied(region::region_reg), RegionReg, ep),
    (KFI_IOC_KEY_ALLOC, copied(key::alloc), KeyAlloc, ep),
    (KFI_IOC_CANCEL, copied(submit::cancel), Cancel, context),
    (KFI_IOC_ATOMIC_QUERY, copied(submit::query_atomic), AtomicQuery, count),
    (KFI_IOC_EP_RINGS, copied(conn::rings), EpRings, map_size),
    (KFI_IOC_EP_WAKE, copied(conn::wake), EpWake, ep),
    (KFI_IOC_CLOSE, copied(object::close), Close, handle),
    (KFI_IOC_OBJ_LIST, copied(list::list), ObjList, reserved),
    (KFI_IOC_AUTH_MODE, copied(auth::mode), AuthMode, reserved),
    (KFI_IOC_GRANT_ADD, copied(auth::grant_add), GrantAdd, id),
    (KFI_IOC_GRANT_CHANGE, copied(auth::grant_change), GrantChange, lifetime_ms),
    (KFI_IOC_GRANT_REVOKE, copied(auth::grant_revoke), GrantRevoke, reserved),
    (KFI_IOC_GRANT_LIST, copied(auth::grant_list), GrantList, reserved),
    (KFI_IOC_AGENT_OPEN, copied(auth::agent_open), AgentOpen, reserved),
    (KFI_IOC_AGENT_NEXT, copied(auth::agent_next), AgentNext, domain),
    (KFI_IOC_AGENT_ANSWER, copied(auth::agent_answer), AgentAnswer, grant),
    (KFI_IOC_EQ_READ, direct(conn::eq_read), EqRead, info),
}

/// Runs a handler on a copy of the structure.
fn copied<T: Ioctl>(file: &File, arg: u64, handler: fn(&File, &mut T) -> Result<Undo>) -> Result {
    let (mut call, plan) = user::read_call::<T>(arg)?;
    // Test the copy out before the call begins. If the program unmaps the memory meanwhile, the
    // changes are undone below.
    user::write_call(arg, &call, &plan)?;
    let undo = handler(file, &mut call)?;
    undo.answer(file, arg, call.as_bytes(), &plan)
}

/// Runs a handler on a copy of the structure, which the handler copies out itself.
fn direct<T: Ioctl>(file: &File, arg: u64, handler: Direct<T>) -> Result {
    let (mut call, plan) = user::read_call::<T>(arg)?;
    handler(file, arg, &mut call, &plan)
}
