// SPDX-License-Identifier: MIT OR Apache-2.0

//! Structures of the ioctl interface as a program may pass them: any claimed size, any bytes after
//! those that the kernel knows. The target works as the kernel does, on a copy of the program's
//! memory that ends where the program's memory ends.
//!
//! Input: one byte that selects the structure; two with the claimed size; the bytes.

#![no_main]

use kfabric_pure::copysize::{check_tail, plan, SizeError, SIZE_MAX};
use kfabric_uapi::*;
use libfuzzer_sys::fuzz_target;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Copies a structure in, and back out.
fn one<T: FromBytes + IntoBytes + Immutable>(min: usize, claimed: usize, bytes: &[u8]) {
    let plan = match plan(claimed, size_of::<T>(), min) {
        Err(SizeError::TooSmall) => return assert!(claimed < min),
        Err(SizeError::TooLarge) => return assert!(claimed > SIZE_MAX),
        Err(SizeError::UnknownTail) => panic!("the plan does not look at the tail"),
        Ok(plan) => plan,
    };
    assert_eq!(plan.copy + plan.zero, size_of::<T>());
    assert_eq!(plan.copy + plan.tail, claimed);
    // EFAULT, if the program's memory ends before its structure.
    let Some(theirs) = bytes.get(..claimed) else {
        return;
    };
    let (known, tail) = theirs.split_at(plan.copy);
    let mut value = T::new_zeroed();
    value.as_mut_bytes()[..plan.copy].copy_from_slice(known);
    let fine = check_tail(tail).is_ok();
    assert_eq!(fine, tail.iter().all(|byte| *byte == 0));
    if !fine {
        return;
    }
    // The bytes copied out are the ones copied in, followed by zeroes.
    let out = value.as_bytes();
    assert_eq!(&out[..plan.copy], known);
    assert!(out[plan.copy..].iter().all(|byte| *byte == 0));
    // Every bit pattern is a valid value.
    match T::read_from_bytes(out) {
        Ok(again) => assert_eq!(again.as_bytes(), out),
        Err(_) => panic!("not a value"),
    }
}

fn call<T: Ioctl>(claimed: usize, bytes: &[u8]) {
    assert_eq!((T::NR >> 16) as usize & 0x3fff, T::MIN_SIZE);
    one::<T>(T::MIN_SIZE, claimed, bytes);
}

macro_rules! pick {
    ($which:expr, $claimed:expr, $bytes:expr; calls $($call:ident)*; entries $($entry:ident)*) => {{
        let all: &[fn(usize, &[u8])] = &[
            $(call::<$call>,)*
            $(|claimed, bytes| one::<$entry>(size_of::<$entry>(), claimed, bytes),)*
        ];
        all[usize::from($which) % all.len()]($claimed, $bytes)
    }};
}

fuzz_target!(|input: &[u8]| {
    let [which, low, high, bytes @ ..] = input else {
        return;
    };
    let claimed = usize::from(u16::from_le_bytes([*low, *high])) % (SIZE_MAX + 64);
    pick!(*which, claimed, bytes;
        calls GetInfo FabricOpen DomainOpen EqOpen CqOpen CntrOpen PepOpen EpOpen Bind Listen
            Connect Accept Reject Shutdown GetName EqRead CntrCtl CntrWait RegionReg KeyAlloc
            KeyAssign ObjectCall ObjectCall2 Submit Cancel Close ObjList;
        entries InfoEntry OpEntry ObjInfo CqEntry SockAddr);
});
