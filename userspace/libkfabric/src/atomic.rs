// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomic operations and their data types (`fi_atomic(3)`).
#![forbid(unsafe_code)]

use kfabric_uapi as abi;

mod sealed {
    pub trait Sealed {}
}

/// Integers in the machine's byte order that atomics work on.
pub trait Integer: Copy + sealed::Sealed {
    /// The `KFI_INT*` or `KFI_UINT*` constant.
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

/// The operator of an atomic (`enum fi_op`), applied to the peer's value and the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Keeps the smaller value.
    Min = abi::KFI_ATOMIC_MIN,
    /// Keeps the larger value.
    Max = abi::KFI_ATOMIC_MAX,
    /// Adds; wraps on overflow.
    Sum = abi::KFI_ATOMIC_SUM,
    /// Multiplies; wraps on overflow.
    Prod = abi::KFI_ATOMIC_PROD,
    /// Logical or: 1 if either value is not 0, else 0.
    Lor = abi::KFI_ATOMIC_LOR,
    /// Logical and: 1 if neither value is 0, else 0.
    Land = abi::KFI_ATOMIC_LAND,
    /// Bitwise or.
    Bor = abi::KFI_ATOMIC_BOR,
    /// Bitwise and.
    Band = abi::KFI_ATOMIC_BAND,
    /// Logical exclusive or: 1 if exactly one value is 0, else 0.
    Lxor = abi::KFI_ATOMIC_LXOR,
    /// Bitwise exclusive or.
    Bxor = abi::KFI_ATOMIC_BXOR,
    /// Reads the value; takes no operands.
    Read = abi::KFI_ATOMIC_READ,
    /// Stores the operand.
    Write = abi::KFI_ATOMIC_WRITE,
    /// Stores the operand if the comparand equals the value.
    Cswap = abi::KFI_ATOMIC_CSWAP,
    /// Stores the operand if the comparand does not equal the value.
    CswapNe = abi::KFI_ATOMIC_CSWAP_NE,
    /// Stores the operand if the comparand is less than or equal to the value.
    CswapLe = abi::KFI_ATOMIC_CSWAP_LE,
    /// Stores the operand if the comparand is less than the value.
    CswapLt = abi::KFI_ATOMIC_CSWAP_LT,
    /// Stores the operand if the comparand is greater than or equal to the value.
    CswapGe = abi::KFI_ATOMIC_CSWAP_GE,
    /// Stores the operand if the comparand is greater than the value.
    CswapGt = abi::KFI_ATOMIC_CSWAP_GT,
    /// Stores those bits of the operand that are set in the comparand.
    Mswap = abi::KFI_ATOMIC_MSWAP,
}

impl AtomicOp {
    /// Converts a `KFI_ATOMIC_*` constant, which has the value of libfabric's constant. `None` for
    /// any other number.
    pub fn from_abi(number: u32) -> Option<Self> {
        const ALL: [AtomicOp; 19] = [
            AtomicOp::Min,
            AtomicOp::Max,
            AtomicOp::Sum,
            AtomicOp::Prod,
            AtomicOp::Lor,
            AtomicOp::Land,
            AtomicOp::Bor,
            AtomicOp::Band,
            AtomicOp::Lxor,
            AtomicOp::Bxor,
            AtomicOp::Read,
            AtomicOp::Write,
            AtomicOp::Cswap,
            AtomicOp::CswapNe,
            AtomicOp::CswapLe,
            AtomicOp::CswapLt,
            AtomicOp::CswapGe,
            AtomicOp::CswapGt,
            AtomicOp::Mswap,
        ];
        ALL.into_iter().find(|op| *op as u32 == number)
    }
}

/// The form of an atomic: its results and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicForm {
    /// No result ([`Op::atomic`](crate::Op::atomic)).
    Base = abi::KFI_OP_ATOMIC,
    /// Returns the previous values ([`Op::fetch_atomic`](crate::Op::fetch_atomic)).
    Fetch = abi::KFI_OP_FETCH_ATOMIC,
    /// Returns the previous values, and takes comparands
    /// ([`Op::compare_atomic`](crate::Op::compare_atomic)).
    Compare = abi::KFI_OP_COMPARE_ATOMIC,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_an_operator_is_converted_back() {
        for number in 0..64 {
            match AtomicOp::from_abi(number) {
                Some(op) => assert_eq!(op as u32, number),
                None => assert!(number > abi::KFI_ATOMIC_MSWAP),
            }
        }
    }
}
