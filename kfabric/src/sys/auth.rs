// SPDX-License-Identifier: GPL-2.0
//! The requester of an auth key's use, and the cryptography on its bytes: `auth.c`.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    ffi::c_ulong,
    prelude::*, //
};

use crate::sys::{
    self,
    net::Net, //
};

/// Attributes of the current task that grants match.
pub(crate) use sys::kf_asker as Asker;

impl Clone for Asker {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Asker {}

impl Asker {
    /// Reads the current task's attributes.
    pub(crate) fn current() -> Self {
        let mut asker = Self::default();
        // SAFETY: `asker` is a valid C structure that this function owns.
        unsafe { sys::kf_auth_asker(&mut asker) };
        asker
    }
}

/// Writes once to the log that the current program uses a short auth key.
pub(crate) fn say_short_key() {
    // SAFETY: The function reads the current task alone.
    unsafe { sys::kf_say_short_key() };
}

/// Further attributes of a requester for the agent, from the time of its upcall.
///
/// # Invariants
///
/// The value was filled in by `kf_auth_told()`, and owns the references in it.
pub(crate) struct Told(sys::kf_told);

// SAFETY: Sets of groups and cgroups are reference counted, and any thread may use them.
unsafe impl Send for Told {}
// SAFETY: Nothing in the value changes, so threads may share it.
unsafe impl Sync for Told {}

impl Told {
    /// Reads the current task's attributes. `cgroup` is the id of the requester's cgroup: if the
    /// task has left it, the path is unknown.
    pub(crate) fn current(cgroup: u64) -> Self {
        let mut raw = sys::kf_told::default();
        // SAFETY: `raw` is a valid C structure that this function owns.
        unsafe { sys::kf_auth_told(&mut raw, cgroup) };
        // INVARIANT: `kf_auth_told()` has just filled in the value.
        Self(raw)
    }

    /// Inode number of the user namespace.
    pub(crate) fn userns(&self) -> u64 {
        self.0.userns
    }

    /// Returns whether the current task has the same supplementary groups.
    pub(crate) fn has_groups_of_current(&self) -> bool {
        // SAFETY: By the type invariant the references are valid.
        unsafe { sys::kf_auth_told_groups_current(&self.0) }
    }

    /// Copies supplementary groups, from number `from` on; returns the number of all groups.
    pub(crate) fn groups(&self, from: u32, out: &mut [u32]) -> u32 {
        let room = u32::try_from(out.len()).unwrap_or(u32::MAX);
        // SAFETY: By the type invariant the references are valid; `out` has room for `room` groups.
        unsafe { sys::kf_auth_told_groups(&self.0, from, out.as_mut_ptr(), room) }
    }

    /// Writes the cgroup's path into `room`.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the path is unknown.
    /// - `ENAMETOOLONG` if the path does not fit.
    pub(crate) fn path<'a>(&self, room: &'a mut [u8]) -> Result<&'a [u8]> {
        // SAFETY: By the type invariant the references are valid; `room` has as many bytes as
        // passed.
        let len =
            unsafe { sys::kf_auth_told_path(&self.0, room.as_mut_ptr(), room.len() as c_ulong) };
        to_result(len)?;
        room.get(..usize::try_from(len).unwrap_or(0)).ok_or(EIO)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns the references.
        unsafe { sys::kf_auth_told_put(&mut self.0) };
    }
}

/// Returns whether the current task is in a group.
pub(crate) fn in_group(gid: u32) -> bool {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_auth_in_group(gid) }
}

/// Returns whether the current task is in a cgroup, or in one below it.
pub(crate) fn in_cgroup(id: u64) -> bool {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_auth_in_cgroup(id) }
}

/// Returns the cookie of a namespace, which no other namespace ever has.
pub(crate) fn net_cookie(net: &Net) -> u64 {
    // SAFETY: `net` holds the namespace.
    unsafe { sys::kf_auth_net_cookie(net.as_ptr()) }
}

/// Returns the cookie of the namespace behind a descriptor of the current task.
///
/// # Errors
///
/// - `EBADF` if the descriptor is no network namespace.
pub(crate) fn netns_of(fd: i32) -> Result<u64> {
    let mut cookie = 0;
    // SAFETY: `cookie` is valid for a write.
    to_result(unsafe { sys::kf_auth_netns(fd, &mut cookie) })?;
    Ok(cookie)
}

/// Returns the process behind a pidfd of the current task.
///
/// # Errors
///
/// - `EBADF` if the descriptor is no pidfd.
/// - `ESRCH` if the process has exited.
pub(crate) fn process_of(fd: i32) -> Result<u64> {
    let mut process = 0;
    // SAFETY: `process` is valid for a write.
    to_result(unsafe { sys::kf_auth_pidfd(fd, &mut process) })?;
    Ok(process)
}

/// A process, which may have exited.
///
/// # Invariants
///
/// The value owns a reference (`get_pid()`).
pub(crate) struct Process(NonNull<bindings::pid>);

// SAFETY: `struct pid` is reference counted, and any thread may use it.
unsafe impl Send for Process {}
// SAFETY: `struct pid` is reference counted, and threads may share it.
unsafe impl Sync for Process {}

impl Process {
    /// Returns the current task's process.
    pub(crate) fn current() -> Self {
        // SAFETY: The function has no preconditions.
        let pid = unsafe { sys::kf_auth_pid() };
        // INVARIANT: The helper took a reference, which the value owns.
        // SAFETY: The current task's process has a `struct pid` until the task has exited.
        Self(unsafe { NonNull::new_unchecked(pid) })
    }

    /// The process's pid in the current task's namespace; 0 if it has none there.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: By the type invariant the pointer is valid.
        let number = unsafe { sys::kf_auth_pid_nr(self.0.as_ptr()) };
        u32::try_from(number).unwrap_or(0)
    }

    /// Returns whether the process has exited.
    pub(crate) fn is_gone(&self) -> bool {
        // SAFETY: By the type invariant the pointer is valid.
        unsafe { sys::kf_auth_pid_gone(self.0.as_ptr()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns a reference.
        unsafe { sys::kf_auth_pid_put(self.0.as_ptr()) }
    }
}

/// Milliseconds since boot, including time in suspend.
pub(crate) fn now_ms() -> u64 {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_auth_now_ms() }
}

/// Schedules the worker in `ms` milliseconds, in place of its former schedule.
pub(crate) fn kick(ms: u32) {
    // SAFETY: The worker exists while the module is loaded: see `Worker`.
    unsafe { sys::kf_auth_kick(ms) }
}

/// The worker that examines grants; the drop waits for it.
pub(crate) struct Worker(());

impl Worker {
    /// Creates the worker. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: This is called once, and the drop undoes it.
        to_result(unsafe { sys::kf_auth_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: `new` created the worker. No file is open, so no caller schedules it.
        unsafe { sys::kf_auth_exit() };
    }
}

/// Returns a keyed hash of `data`, which discloses nothing without this boot's secret.
pub(crate) fn hash(data: &[u8]) -> u64 {
    // SAFETY: `data` has as many bytes as passed.
    unsafe { sys::kf_auth_hash(data.as_ptr().cast(), data.len()) }
}

/// Returns whether `a` and `b` are equal, in a time that does not depend on their difference.
#[inline(never)]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // SAFETY: Both slices have as many bytes as passed.
    unsafe { sys::kf_auth_same(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) }
}

/// Zeroes `data`; the compiler cannot omit the writes.
pub(crate) fn wipe(data: &mut [u8]) {
    // SAFETY: `data` has as many bytes as passed, with exclusive access.
    unsafe { sys::kf_auth_wipe(data.as_mut_ptr().cast(), data.len()) }
}

/// Returns the HMAC-SHA256 of the length of `key` in one byte, followed by `data`.
pub(crate) fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    // SAFETY: The slices have as many bytes as passed, and `out` has room for a digest.
    unsafe {
        sys::kf_auth_hmac(
            key.as_ptr().cast(),
            key.len(),
            data.as_ptr().cast(),
            data.len(),
            &mut out,
        )
    };
    out
}

/// Fills `data` with random bytes.
#[inline(never)]
pub fn random(data: &mut [u8]) {
    // SAFETY: `data` has as many bytes as passed, with exclusive access.
    unsafe { sys::kf_auth_random(data.as_mut_ptr().cast(), data.len()) }
}

/// Nanoseconds since boot, including time in suspend.
#[inline(never)]
pub fn now_ns() -> u64 {
    // SAFETY: The function has no preconditions.
    unsafe { sys::kf_auth_now_ns() }
}
