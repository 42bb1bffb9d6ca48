// SPDX-License-Identifier: MIT OR Apache-2.0

//! Dropping rights, and using the rights that a process has over another.

use super::{check, Errno};

/// Becomes this user and group, without capabilities, and undebuggable.
///
/// # Errors
///
/// The errno of the failed call.
pub fn become_user(id: u32) -> Result<(), Errno> {
    become_member(id, &[])
}

/// Becomes this user and group, and a member of other groups.
///
/// # Errors
///
/// The errno of the failed call.
pub fn become_member(id: u32, groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: No memory is passed but a list of as many groups as are said.
    unsafe {
        check(i64::from(libc::setgroups(groups.len(), groups.as_ptr())))?;
        check(i64::from(libc::setresgid(id, id, id)))?;
        check(i64::from(libc::setresuid(id, id, id)))?;
        check(i64::from(libc::prctl(libc::PR_SET_DUMPABLE, 0)))?;
    }
    Ok(())
}

/// Sets the calling thread's command name.
///
/// # Errors
///
/// The errno of `prctl(2)`.
pub fn set_name(name: &std::ffi::CStr) -> Result<(), Errno> {
    // SAFETY: The name ends, and is only read.
    check(i64::from(unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr())
    }))
    .map(|_| ())
}

/// Moves the calling thread into new namespaces, as a container has them.
///
/// # Errors
///
/// The errno of `unshare(2)`.
pub fn unshare(flags: i32) -> Result<(), Errno> {
    // SAFETY: No memory is passed.
    check(i64::from(unsafe { libc::unshare(flags) })).map(|_| ())
}

/// Makes the kernel's own single copy between processes: `len` bytes from `from` here to `to`
/// there, or (`read`) the reverse. Returns the number of bytes copied.
///
/// # Errors
///
/// The errno of `process_vm_writev(2)`.
pub fn process_vm(
    pid: i32,
    read: bool,
    from: &super::Map,
    to: u64,
    len: usize,
) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: from.addr() as *mut _,
        iov_len: len.min(from.len()),
    };
    let remote = libc::iovec {
        iov_base: to as *mut _,
        iov_len: len,
    };
    // SAFETY: The local part is the mapping's, which is for bytes of any value; the kernel checks the
    // other.
    let n = unsafe {
        if read {
            libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
        } else {
            libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
        }
    };
    check(n as i64).map(|n| n as usize)
}
