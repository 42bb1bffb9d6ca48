// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations on integers (`fi_atomic(3)`): the list of operations, and their results.
//!
//! Values are passed as `u64`; only the low [`Datatype::size`] bytes count.

/// Type of the values (`enum fi_datatype`): an integer of at most 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datatype {
    bytes: u32,
    signed: bool,
}

impl Datatype {
    /// Returns the type with libfabric's number: `FI_INT8` (0), `FI_UINT8`, … `FI_UINT64` (7).
    pub const fn new(number: u32) -> Option<Self> {
        if number > 7 {
            return None;
        }
        Some(Self {
            bytes: 1 << (number / 2),
            signed: number % 2 == 0,
        })
    }

    /// Returns the size of a value in bytes.
    pub const fn size(self) -> usize {
        // CAST: 8 at most.
        self.bytes as usize
    }

    /// Returns the mask of the bits that belong to a value.
    const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes)
    }

    /// Returns whether `a` is less than `b`.
    fn less(self, a: u64, b: u64) -> bool {
        // Flipping the sign bits of two signed values turns their order into the unsigned order.
        let flip = if self.signed {
            1 << (8 * self.bytes - 1)
        } else {
            0
        };
        (a ^ flip) & self.mask() < (b ^ flip) & self.mask()
    }
}

/// The operands and results of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `fi_atomic`: one operand, no result.
    Base,
    /// `fi_fetch_atomic`: the operation returns the old value.
    Fetch,
    /// `fi_compare_atomic`: the operation also takes a comparand, and returns the old value.
    Compare,
}

/// Operation codes (`enum fi_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The smaller value.
    Min,
    /// The larger value.
    Max,
    /// The sum, wrapping.
    Sum,
    /// The product, wrapping.
    Prod,
    /// Logical OR: 1 if either value is not 0, else 0.
    Lor,
    /// Logical AND: 1 if neither value is 0, else 0.
    Land,
    /// Bitwise OR.
    Bor,
    /// Bitwise AND.
    Band,
    /// Logical XOR: 1 if exactly one of the values is 0, else 0.
    Lxor,
    /// Bitwise XOR.
    Bxor,
    /// Reads the old value and stores nothing.
    Read,
    /// Stores the operand.
    Write,
    /// Stores the operand if the comparand is equal to the old value.
    Cswap,
    /// Stores the operand if the comparand is not equal to the old value.
    CswapNe,
    /// Stores the operand if the comparand is at most the old value.
    CswapLe,
    /// Stores the operand if the comparand is less than the old value.
    CswapLt,
    /// Stores the operand if the comparand is at least the old value.
    CswapGe,
    /// Stores the operand if the comparand is greater than the old value.
    CswapGt,
    /// Stores the bits of the operand that are set in the comparand.
    Mswap,
}

/// All operations, in the order of libfabric's numbers, from `FI_MIN` (0) on.
const OPS: [Op; 19] = [
    Op::Min,
    Op::Max,
    Op::Sum,
    Op::Prod,
    Op::Lor,
    Op::Land,
    Op::Bor,
    Op::Band,
    Op::Lxor,
    Op::Bxor,
    Op::Read,
    Op::Write,
    Op::Cswap,
    Op::CswapNe,
    Op::CswapLe,
    Op::CswapLt,
    Op::CswapGe,
    Op::CswapGt,
    Op::Mswap,
];

impl Op {
    /// Returns the operation with libfabric's number.
    pub fn new(number: u32) -> Option<Self> {
        OPS.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns whether the operation exists in `form`.
    ///
    /// Operations that compare exist only as [`Form::Compare`], and [`Op::Read`] only as
    /// [`Form::Fetch`]. All others exist as [`Form::Base`] and [`Form::Fetch`].
    pub fn has(self, form: Form) -> bool {
        match self {
            Self::Cswap
            | Self::CswapNe
            | Self::CswapLe
            | Self::CswapLt
            | Self::CswapGe
            | Self::CswapGt
            | Self::Mswap => form == Form::Compare,
            Self::Read => form == Form::Fetch,
            _ => form != Form::Compare,
        }
    }

    /// Returns whether the operation takes an operand.
    pub fn has_operand(self) -> bool {
        self != Self::Read
    }

    /// Returns the value that replaces `there`, or `None` if the old value stays.
    pub fn apply(self, ty: Datatype, there: u64, operand: u64, compare: u64) -> Option<u64> {
        let mask = ty.mask();
        let (there, operand, compare) = (there & mask, operand & mask, compare & mask);
        let (is, with) = (there != 0, operand != 0);
        let when = |holds: bool| holds.then_some(operand);
        let new = match self {
            Self::Min => when(ty.less(operand, there)),
            Self::Max => when(ty.less(there, operand)),
            Self::Sum => Some(there.wrapping_add(operand)),
            Self::Prod => Some(there.wrapping_mul(operand)),
            Self::Lor => Some(u64::from(is || with)),
            Self::Land => Some(u64::from(is && with)),
            Self::Bor => Some(there | operand),
            Self::Band => Some(there & operand),
            Self::Lxor => Some(u64::from(is != with)),
            Self::Bxor => Some(there ^ operand),
            Self::Read => None,
            Self::Write => Some(operand),
            Self::Cswap => when(compare == there),
            Self::CswapNe => when(compare != there),
            Self::CswapLe => when(!ty.less(there, compare)),
            Self::CswapLt => when(ty.less(compare, there)),
            Self::CswapGe => when(!ty.less(compare, there)),
            Self::CswapGt => when(ty.less(there, compare)),
            Self::Mswap => Some(operand & compare | there & !compare),
        };
        new.map(|new| new & mask)
    }
}
