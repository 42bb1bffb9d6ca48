// SPDX-License-Identifier: MIT OR Apache-2.0
//! What atomics do, and on what (`fi_atomic(3)`).
#![forbid(unsafe_code)]

use kfabric_uapi as abi;

mod sealed {
    pub trait Sealed {}
}

/// Integers of a machine's own byte order that atomics work on.
pub trait Integer: Copy + sealed::Sealed {
    /// `KFI_INT8` and the others.
    const DATATYPE: u32;
}

macro_rules! integers {
    ($($ty:ty = $number:ident,)*) => {
        $(
            impl sealed::Sealed for $ty {}
            impl Integer for $ty {
                const DATATYPE: u32 = abi::$number;
            }
        )*
    };
}

integers! {
    i8 = KFI_INT8,
    u8 = KFI_UINT8,
    i16 = KFI_INT16,
    u16 = KFI_UINT16,
    i32 = KFI_INT32,
    u32 = KFI_UINT32,
    i64 = KFI_INT64,
    u64 = KFI_UINT64,
}

/// What an atomic makes of a value (`enum fi_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Leaves the smaller one.
    Min = abi::KFI_ATOMIC_MIN,
    /// Leaves the larger one.
    Max = abi::KFI_ATOMIC_MAX,
    /// Adds, and wraps.
    Sum = abi::KFI_ATOMIC_SUM,
    /// Multiplies, and wraps.
    Prod = abi::KFI_ATOMIC_PROD,
    /// 1 if either is not 0.
    Lor = abi::KFI_ATOMIC_LOR,
    /// 1 if neither is 0.
    Land = abi::KFI_ATOMIC_LAND,
    /// Bits of either.
    Bor = abi::KFI_ATOMIC_BOR,
    /// Bits of both.
    Band = abi::KFI_ATOMIC_BAND,
    /// 1 if one of them is 0 and the other is not.
    Lxor = abi::KFI_ATOMIC_LXOR,
    /// Bits in which they differ.
    Bxor = abi::KFI_ATOMIC_BXOR,
    /// Only looks; takes no operands.
    Read = abi::KFI_ATOMIC_READ,
    /// Puts the operand there.
    Write = abi::KFI_ATOMIC_WRITE,
    /// Puts the operand there if what is compared with is equal to what is there.
    Cswap = abi::KFI_ATOMIC_CSWAP,
    /// … if it is not.
    CswapNe = abi::KFI_ATOMIC_CSWAP_NE,
    /// … if it is less or equal.
    CswapLe = abi::KFI_ATOMIC_CSWAP_LE,
    /// … if it is less.
    CswapLt = abi::KFI_ATOMIC_CSWAP_LT,
    /// … if it is greater or equal.
    CswapGe = abi::KFI_ATOMIC_CSWAP_GE,
    /// … if it is greater.
    CswapGt = abi::KFI_ATOMIC_CSWAP_GT,
    /// Puts those bits of the operand there that are set in what is compared with.
    Mswap = abi::KFI_ATOMIC_MSWAP,
}

/// What comes back of an atomic, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicForm {
    /// Nothing comes back ([`Op::atomic`](crate::Op::atomic)).
    Base = abi::KFI_OP_ATOMIC,
    /// What was there comes back ([`Op::fetch_atomic`](crate::Op::fetch_atomic)).
    Fetch = abi::KFI_OP_FETCH_ATOMIC,
    /// … and there is something to compare with ([`Op::compare_atomic`](crate::Op::compare_atomic)).
    Compare = abi::KFI_OP_COMPARE_ATOMIC,
}
