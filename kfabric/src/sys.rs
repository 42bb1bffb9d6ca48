// SPDX-License-Identifier: GPL-2.0
//! The thin layer to C: everything unsafe that is not the device file's or the pinning's.
//!
//! C header: `helpers.h` beside this crate.

pub(crate) mod auth;
pub mod lock;
pub mod ring;
pub mod steps;
pub mod wait;
pub mod wq;

use core::marker::PhantomData;
use kernel::{
    bindings,
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_ulong,
        c_void, //
    },
    prelude::*, //
};

use auth::{
    Asker,
    RawTold, //
};

#[expect(
    improper_ctypes,
    reason = "bindgen's empty structures, behind pointers as in the kernel crate's own bindings"
)]
extern "C" {
    pub(crate) fn kf_dev_register() -> c_int;
    pub(crate) fn kf_dev_unregister();
    pub(crate) fn kf_queue_file(private: *mut c_void) -> *mut bindings::file;

    pub(crate) fn kf_spin_lock_irqsave(lock: *mut bindings::spinlock_t) -> c_ulong;
    pub(crate) fn kf_spin_trylock_irqsave(
        lock: *mut bindings::spinlock_t,
        flags: *mut c_ulong,
    ) -> bool;
    pub(crate) fn kf_spin_unlock_irqrestore(lock: *mut bindings::spinlock_t, flags: c_ulong);

    pub(crate) fn kf_current_net() -> *mut bindings::net;
    pub(crate) fn kf_init_net() -> *mut bindings::net;
    pub(crate) fn kf_get_net(net: *mut bindings::net) -> *mut bindings::net;
    pub(crate) fn kf_put_net(net: *mut bindings::net);
    pub(crate) fn kf_current_euid() -> u32;
    pub(crate) fn kf_net_is_root(net: *const bindings::net, uid: u32) -> bool;
    pub(crate) fn kf_net_may_bind(net: *mut bindings::net, port: u16) -> bool;

    pub(crate) fn kf_current_mm() -> *mut bindings::mm_struct;
    pub(crate) fn kf_mm_charge(
        mm: *mut bindings::mm_struct,
        pages: c_ulong,
        besides: c_ulong,
    ) -> bool;
    pub(crate) fn kf_mm_charge_unchecked(mm: *mut bindings::mm_struct, pages: c_ulong);
    pub(crate) fn kf_mm_uncharge(mm: *mut bindings::mm_struct, pages: c_ulong);
    pub(crate) fn kf_mm_gone(mm: *mut bindings::mm_struct) -> bool;
    pub(crate) fn kf_current_uid() -> c_uint;
    pub(crate) fn kf_monotonic_here(ns: i64) -> i64;
    pub(crate) fn kf_mm_grab(mm: *mut bindings::mm_struct);
    pub(crate) fn kf_mm_drop(mm: *mut bindings::mm_struct);
    pub(crate) fn kf_fatal_signal_pending() -> bool;
    pub(crate) fn kf_current_task() -> *mut bindings::task_struct;
    pub(crate) fn kf_cond_resched();
    pub(crate) fn kf_page_to_pfn(page: *const bindings::page) -> c_ulong;
    pub(crate) fn kf_alloc_block(order: c_uint) -> *mut bindings::page;
    pub(crate) fn kf_page_address(page: *const bindings::page) -> *mut c_void;
    pub(crate) fn kf_unpin_range(page: *mut bindings::page, npages: c_ulong, dirty: bool);

    pub(crate) fn kf_wait_init(head: *mut bindings::wait_queue_head);
    pub(crate) fn kf_wait_wake(head: *mut bindings::wait_queue_head);
    pub(crate) fn kf_wait_moved(head: *mut bindings::wait_queue_head, count: *const u64, seen: u64);
    pub(crate) fn kf_wait_moved_killable(
        head: *mut bindings::wait_queue_head,
        count: *const u64,
        seen: u64,
        ms: c_uint,
    ) -> c_int;
    pub(crate) fn kf_wait_ready(
        head: *mut bindings::wait_queue_head,
        ready: unsafe extern "C" fn(*const c_void) -> bool,
        arg: *const c_void,
        ms: c_int,
    ) -> c_int;
    pub(crate) fn kf_wait_poll(
        file: *mut bindings::file,
        head: *mut bindings::wait_queue_head,
        table: *mut bindings::poll_table,
    );

    pub(crate) fn kf_ring_alloc(size: c_ulong) -> *mut c_void;
    pub(crate) fn kf_ring_free(ring: *mut c_void);

    pub(crate) fn kf_task_comm(task: *mut bindings::task_struct, comm: *mut u8);
    pub(crate) fn kf_task_tgid(task: *mut bindings::task_struct) -> c_int;

    pub(crate) fn kf_wq_alloc() -> *mut bindings::workqueue_struct;
    pub(crate) fn kf_wq_free(wq: *mut bindings::workqueue_struct);
    fn kf_cpu_relax();
    fn kf_noio_save() -> c_uint;
    fn kf_noio_restore(flags: c_uint);

    pub(crate) fn kf_fault_init();
    pub(crate) fn kf_fault_exit();
    pub(crate) fn kf_fault_pin() -> c_int;
    pub(crate) fn kf_fault_device() -> c_int;
    pub(crate) fn kf_fault_answer() -> c_int;

    pub(crate) fn kf_auth_init() -> c_int;
    pub(crate) fn kf_auth_exit();
    pub(crate) fn kf_auth_kick(ms: c_uint);
    pub(crate) fn kf_auth_hash(data: *const c_void, len: c_ulong) -> u64;
    pub(crate) fn kf_auth_same(a: *const c_void, b: *const c_void, len: c_ulong) -> bool;
    pub(crate) fn kf_auth_wipe(data: *mut c_void, len: c_ulong);
    pub(crate) fn kf_auth_hmac(
        key: *const c_void,
        key_len: c_ulong,
        data: *const c_void,
        len: c_ulong,
        out: *mut u8,
    );
    pub(crate) fn kf_auth_random(data: *mut c_void, len: c_ulong);
    pub(crate) fn kf_auth_now_ms() -> u64;
    pub(crate) fn kf_auth_now_ns() -> u64;
    pub(crate) fn kf_auth_asker(asker: *mut Asker);
    pub(crate) fn kf_auth_told(told: *mut RawTold, cgroup: u64);
    pub(crate) fn kf_auth_told_put(told: *mut RawTold);
    pub(crate) fn kf_auth_told_groups_current(told: *const RawTold) -> bool;
    pub(crate) fn kf_auth_told_groups(
        told: *const RawTold,
        from: c_uint,
        out: *mut u32,
        room: c_uint,
    ) -> c_uint;
    pub(crate) fn kf_auth_told_path(told: *const RawTold, buf: *mut u8, len: c_ulong) -> c_int;
    pub(crate) fn kf_auth_in_group(gid: u32) -> bool;
    pub(crate) fn kf_auth_in_cgroup(id: u64) -> bool;
    pub(crate) fn kf_auth_net_cookie(net: *const bindings::net) -> u64;
    pub(crate) fn kf_auth_netns(fd: c_int, cookie: *mut u64) -> c_int;
    pub(crate) fn kf_auth_pidfd(fd: c_int, process: *mut u64) -> c_int;
    pub(crate) fn kf_auth_pid() -> *mut bindings::pid;
    pub(crate) fn kf_auth_pid_put(pid: *mut bindings::pid);
    pub(crate) fn kf_auth_pid_nr(pid: *mut bindings::pid) -> c_int;
    pub(crate) fn kf_auth_pid_gone(pid: *mut bindings::pid) -> bool;

    pub(crate) fn kf_trace_auth_decision(
        process: u64,
        uid: u32,
        key: u64,
        grant: u64,
        rights: u32,
        verdict: *const c_char,
        err: c_int,
    );
    pub(crate) fn kf_trace_key_assign(
        slot: *const c_void,
        generation: u64,
        offset: u64,
        len: u64,
        access: u64,
        key: u64,
        err: c_int,
    );
    pub(crate) fn kf_trace_key_revoke(slot: *const c_void, generation: u64, key: u64);
    pub(crate) fn kf_stats_init();
    pub(crate) fn kf_stats_exit();
    pub(crate) fn kf_stats_dir(name: *const c_char) -> *mut bindings::dentry;
    pub(crate) fn kf_stats_count(dir: *mut bindings::dentry, name: *const c_char, count: *mut u64);
    pub(crate) fn kf_stats_remove(dir: *mut bindings::dentry);
}

/// Lets others run in a loop that a program makes long, and ends it when the program is killed.
///
/// # Errors
///
/// `EINTR`: a fatal signal.
pub(crate) fn pause() -> Result {
    cond_resched();
    // SAFETY: No preconditions.
    if unsafe { kf_fatal_signal_pending() } {
        return Err(EINTR);
    }
    Ok(())
}

/// Lets others run. Only where sleeping is allowed.
pub(crate) fn cond_resched() {
    // SAFETY: No preconditions but that we may sleep, which callers see to.
    unsafe { kf_cond_resched() }
}

/// The current task, to be compared.
pub(crate) fn current_task() -> *mut bindings::task_struct {
    // SAFETY: No preconditions.
    unsafe { kf_current_task() }
}

/// A time of the current task's `CLOCK_MONOTONIC`, in nanoseconds, as the kernel's own clock has it. What
/// no clock reaches stays so.
pub(crate) fn monotonic_here(ns: u64) -> u64 {
    let Ok(there) = i64::try_from(ns) else {
        return ns;
    };
    // SAFETY: No preconditions.
    let here = unsafe { kf_monotonic_here(there) };
    // A time before the kernel's start has passed.
    u64::try_from(here).unwrap_or(0)
}

/// Spins politely.
pub(crate) fn cpu_relax() {
    // SAFETY: No preconditions.
    unsafe { kf_cpu_relax() }
}

/// While it lives, nothing that this task allocates is waited for by way of a block device: what it does
/// may be what one waits for.
pub struct NoIo(c_uint, PhantomData<*mut ()>);

impl NoIo {
    /// Begins.
    #[inline(never)]
    pub fn begin() -> Self {
        // SAFETY: No preconditions; the drop, in the same task, ends it.
        Self(unsafe { kf_noio_save() }, PhantomData)
    }
}

impl Drop for NoIo {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: What `begin` returned, in the same task.
        unsafe { kf_noio_restore(self.0) };
    }
}

pub use lock::IrqLock;
