// SPDX-License-Identifier: GPL-2.0
//! Who asks to use an auth key, and what is done with its bytes: `auth.c`.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    ffi::{
        c_ulong,
        c_void, //
    },
    prelude::*, //
};

use crate::{
    net::Net,
    sys, //
};

/// `struct kf_asker`: the current task as a grant looks at it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Asker {
    /// Inode number of its process's pidfd.
    pub(crate) process: u64,
    /// Id of its cgroup (v2).
    pub(crate) cgroup: u64,
    /// Effective uid.
    pub(crate) uid: u32,
    /// Effective gid.
    pub(crate) gid: u32,
    /// Command name.
    pub(crate) comm: [u8; 16],
}

impl Asker {
    /// The current task.
    pub(crate) fn current() -> Self {
        let mut asker = Self::default();
        // SAFETY: The structure is the C one, and ours.
        unsafe { sys::kf_auth_asker(&mut asker) };
        asker
    }
}

/// `struct kf_told`.
#[repr(C)]
pub(crate) struct RawTold {
    groups: *mut c_void,
    cgroup: *mut c_void,
    userns: u64,
}

/// What the agent is told of a task besides what is in [`Asker`], as it was when the task asked.
///
/// # Invariants
///
/// Filled in by `kf_auth_told()`, whose references it holds.
pub(crate) struct Told(RawTold);

// SAFETY: Sets of groups and cgroups are reference counted and used from any thread.
unsafe impl Send for Told {}
// SAFETY: As above; nothing in it changes.
unsafe impl Sync for Told {}

impl Told {
    /// The current task's. `cgroup` is the id of the cgroup that is meant: if the task has left it,
    /// the path is not known.
    pub(crate) fn current(cgroup: u64) -> Self {
        let mut raw = RawTold {
            groups: core::ptr::null_mut(),
            cgroup: core::ptr::null_mut(),
            userns: 0,
        };
        // SAFETY: The structure is the C one, and ours.
        unsafe { sys::kf_auth_told(&mut raw, cgroup) };
        // INVARIANT: It has just been filled in.
        Self(raw)
    }

    /// Inode number of the user namespace.
    pub(crate) fn userns(&self) -> u64 {
        self.0.userns
    }

    /// Whether the current task has the same supplementary groups.
    pub(crate) fn has_groups_of_current(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { sys::kf_auth_told_groups_current(&self.0) }
    }

    /// Copies supplementary groups, from the one at `from` on; how many there are in all.
    pub(crate) fn groups(&self, from: u32, out: &mut [u32]) -> u32 {
        let room = u32::try_from(out.len()).unwrap_or(u32::MAX);
        // SAFETY: By the type invariant, and there is room for as many as are said.
        unsafe { sys::kf_auth_told_groups(&self.0, from, out.as_mut_ptr(), room) }
    }

    /// The cgroup's path.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not known. `ENAMETOOLONG` if it does not fit.
    pub(crate) fn path<'a>(&self, room: &'a mut [u8]) -> Result<&'a [u8]> {
        // SAFETY: By the type invariant, and there are as many bytes as are said.
        let len =
            unsafe { sys::kf_auth_told_path(&self.0, room.as_mut_ptr(), room.len() as c_ulong) };
        to_result(len)?;
        room.get(..usize::try_from(len).unwrap_or(0)).ok_or(EIO)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we hold the references.
        unsafe { sys::kf_auth_told_put(&mut self.0) };
    }
}

/// Whether the current task is in a group.
pub(crate) fn in_group(gid: u32) -> bool {
    // SAFETY: No preconditions.
    unsafe { sys::kf_auth_in_group(gid) }
}

/// Whether the current task is in a cgroup, or in one below it.
pub(crate) fn in_cgroup(id: u64) -> bool {
    // SAFETY: No preconditions.
    unsafe { sys::kf_auth_in_cgroup(id) }
}

/// The cookie of a namespace, which no other ever has.
pub(crate) fn net_cookie(net: &Net) -> u64 {
    // SAFETY: The namespace is held.
    unsafe { sys::kf_auth_net_cookie(net.as_ptr()) }
}

/// The cookie of the namespace behind a descriptor of the current task.
///
/// # Errors
///
/// `EBADF`: it is none.
pub(crate) fn netns_of(fd: i32) -> Result<u64> {
    let mut cookie = 0;
    // SAFETY: The place is ours.
    to_result(unsafe { sys::kf_auth_netns(fd, &mut cookie) })?;
    Ok(cookie)
}

/// The process behind a pidfd of the current task.
///
/// # Errors
///
/// `EBADF`: it is none. `ESRCH`: the process is gone.
pub(crate) fn process_of(fd: i32) -> Result<u64> {
    let mut process = 0;
    // SAFETY: The place is ours.
    to_result(unsafe { sys::kf_auth_pidfd(fd, &mut process) })?;
    Ok(process)
}

/// A process, which may be gone.
///
/// # Invariants
///
/// Holds a reference (`get_pid()`).
pub(crate) struct Process(NonNull<bindings::pid>);

// SAFETY: `struct pid` is reference counted and used from any thread.
unsafe impl Send for Process {}
// SAFETY: As above.
unsafe impl Sync for Process {}

impl Process {
    /// The current task's.
    pub(crate) fn current() -> Self {
        // SAFETY: No preconditions.
        let pid = unsafe { sys::kf_auth_pid() };
        // INVARIANT: The helper took a reference for us.
        // SAFETY: The current task's process has a `struct pid` until the task is gone.
        Self(unsafe { NonNull::new_unchecked(pid) })
    }

    /// Its number as the current task sees it; 0: it does not.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: By the type invariant.
        let number = unsafe { sys::kf_auth_pid_nr(self.0.as_ptr()) };
        u32::try_from(number).unwrap_or(0)
    }

    /// Whether it is gone.
    pub(crate) fn is_gone(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { sys::kf_auth_pid_gone(self.0.as_ptr()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we hold a reference.
        unsafe { sys::kf_auth_pid_put(self.0.as_ptr()) }
    }
}

/// Milliseconds since boot, also of those asleep.
pub(crate) fn now_ms() -> u64 {
    // SAFETY: No preconditions.
    unsafe { sys::kf_auth_now_ms() }
}

/// Has the worker look after grants in `ms` milliseconds, and not when it was to before.
pub(crate) fn kick(ms: u32) {
    // SAFETY: The worker is there while the module is: see `Worker`.
    unsafe { sys::kf_auth_kick(ms) }
}

/// The worker that looks after grants; dropping it waits for it.
pub(crate) struct Worker(());

impl Worker {
    /// Makes it. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Called once, and undone by drop.
        to_result(unsafe { sys::kf_auth_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and nobody kicks it any more: no file is open.
        unsafe { sys::kf_auth_exit() };
    }
}

/// A number that says nothing of `data` to who does not know this boot's secret.
pub(crate) fn hash(data: &[u8]) -> u64 {
    // SAFETY: As many bytes as are said.
    unsafe { sys::kf_auth_hash(data.as_ptr().cast(), data.len()) }
}

/// Whether two are the same, in a time that does not tell where they differ.
#[inline(never)]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // SAFETY: Both have as many bytes as are said.
    unsafe { sys::kf_auth_same(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) }
}

/// Zeroes, whether or not it is read again.
pub(crate) fn wipe(data: &mut [u8]) {
    // SAFETY: As many bytes as are said, and ours.
    unsafe { sys::kf_auth_wipe(data.as_mut_ptr().cast(), data.len()) }
}

/// HMAC-SHA256.
pub(crate) fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    // SAFETY: As many bytes as are said, and room for a digest.
    unsafe {
        sys::kf_auth_hmac(
            key.as_ptr().cast(),
            key.len(),
            data.as_ptr().cast(),
            data.len(),
            out.as_mut_ptr(),
        )
    };
    out
}

/// Fills with random bytes.
#[inline(never)]
pub fn random(data: &mut [u8]) {
    // SAFETY: As many bytes as are said, and ours.
    unsafe { sys::kf_auth_random(data.as_mut_ptr().cast(), data.len()) }
}

/// Nanoseconds since boot, also of those asleep.
#[inline(never)]
pub fn now_ns() -> u64 {
    // SAFETY: No preconditions.
    unsafe { sys::kf_auth_now_ns() }
}
