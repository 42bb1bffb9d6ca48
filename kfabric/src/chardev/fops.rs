// SPDX-License-Identifier: GPL-2.0
//! Entry points from C (`helpers.c`): the device's file operations.

use kernel::{
    bindings,
    ffi::{
        c_int,
        c_long,
        c_uint,
        c_ulong,
        c_void, //
    },
    fs::{
        File as KFile,
        LocalFile, //
    },
    seq_file::SeqFile,
    sync::Arc, //
};

use super::{
    calls::list,
    dispatch::dispatch,
    file::File, //
};
use crate::sys;

/// # Safety
///
/// `private` came from [`kf_dev_open`] and the file is open.
unsafe fn dev<'a>(private: *mut c_void) -> &'a File {
    // SAFETY: By the caller's contract it is the pointer of an `Arc` that the open file holds.
    unsafe { &*private.cast::<File>() }
}

/// Opens the device.
///
/// # Safety
///
/// Called by the device's open, with valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_dev_open(file: *mut bindings::file, private: *mut *mut c_void) -> c_int {
    // SAFETY: The file is being opened by this task alone.
    let kfile = unsafe { LocalFile::from_raw_file(file) };
    match File::open(kfile.cred()) {
        Ok(new) => {
            // SAFETY: By the caller's contract `private` is valid for a write.
            unsafe { private.write(Arc::into_raw(new).cast_mut().cast()) };
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// Releases the device's file.
///
/// # Safety
///
/// Called by the device's release, once, with the pointer that open stored.
#[no_mangle]
unsafe extern "C" fn kf_dev_release(private: *mut c_void) {
    // SAFETY: `kf_dev_open` stored the pointer of an `Arc` for this.
    File::release(unsafe { Arc::from_raw(private.cast::<File>()) });
}

/// Runs an ioctl.
///
/// # Safety
///
/// Called by the device's ioctl, with the pointer that open stored.
#[no_mangle]
unsafe extern "C" fn kf_dev_ioctl(private: *mut c_void, cmd: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: By the caller's contract `private` is the pointer that open stored.
    let file = unsafe { dev(private) };
    match dispatch(file, cmd, arg as u64) {
        Ok(()) => 0,
        Err(e) => c_long::from(e.to_errno() as isize),
    }
}

/// Polls the device: for upcalls, if the file is the agent's.
///
/// # Safety
///
/// Called by the device's poll, with the pointer that open stored, and valid pointers.
#[no_mangle]
unsafe extern "C" fn kf_dev_poll(
    private: *mut c_void,
    file: *mut bindings::file,
    table: *mut bindings::poll_table,
) -> bindings::__poll_t {
    // SAFETY: By the caller's contract `private` is the pointer that open stored.
    let Some(seat) = (unsafe { dev(private) }).seat.as_ref() else {
        return 0;
    };
    // SAFETY: The file is in use by this call, which does not change its position.
    let file = unsafe { KFile::from_raw_file(file) };
    // SAFETY: By the caller's contract the pointers are valid. The file holds the seat until its
    // release.
    unsafe { seat.wait().poll(file, table) };
    if !seat.is_current() {
        return bindings::POLLHUP;
    }
    if seat.has_question() {
        return bindings::POLLIN | bindings::POLLRDNORM;
    }
    0
}

/// Prints a file's fdinfo.
///
/// # Safety
///
/// Called by the device's show_fdinfo, with the pointer that open stored, and a valid `m`.
#[no_mangle]
unsafe extern "C" fn kf_dev_show_fdinfo(private: *mut c_void, m: *mut bindings::seq_file) {
    // SAFETY: By the caller's contract `private` is the pointer that open stored, and `m` is valid.
    let (file, m) = unsafe { (dev(private), SeqFile::from_raw(m)) };
    list::show(file, m);
}

crate::same_prototype!(
    sys:
    kf_dev_open, kf_dev_release, kf_dev_ioctl, kf_dev_poll, kf_dev_show_fdinfo,
);
