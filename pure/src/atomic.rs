// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomics on integers (`fi_atomic(3)`): which there are, and what each makes of a value.
//!
//! Values travel as `u64`, of which the low bytes count.

/// Type of the values (`enum fi_datatype`): the integers of at most 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datatype {
    bytes: u32,
    signed: bool,
}

impl Datatype {
    /// The one with libfabric's number: `FI_INT8` (0), `FI_UINT8`, … `FI_UINT64` (7).
    pub const fn new(number: u32) -> Option<Self> {
        if number > 7 {
            return None;
        }
        Some(Self {
            bytes: 1 << (number / 2),
            signed: number % 2 == 0,
        })
    }

    /// Bytes of a value.
    pub const fn size(self) -> usize {
        // CAST: 8 at most.
        self.bytes as usize
    }

    /// The bits of a value.
    const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes)
    }

    /// Compares two values.
    fn less(self, a: u64, b: u64) -> bool {
        // A signed value's order is that of the unsigned one with the sign turned.
        let flip = if self.signed {
            1 << (8 * self.bytes - 1)
        } else {
            0
        };
        (a ^ flip) & self.mask() < (b ^ flip) & self.mask()
    }
}

/// What an operation gives back, and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing comes back (`fi_atomic`).
    Base,
    /// What was there comes back (`fi_fetch_atomic`).
    Fetch,
    /// … and takes values to compare with, too (`fi_compare_atomic`).
    Compare,
}

/// What is done (`enum fi_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
    /// The sum, which wraps.
    Sum,
    /// The product, which wraps.
    Prod,
    /// 1 if either is not 0, else 0.
    Lor,
    /// 1 if neither is 0, else 0.
    Land,
    /// Bits of either.
    Bor,
    /// Bits of both.
    Band,
    /// 1 if one of them is 0 and the other is not, else 0.
    Lxor,
    /// Bits in which they differ.
    Bxor,
    /// Only looks.
    Read,
    /// Puts the operand there.
    Write,
    /// Puts the operand there if what to compare with is equal to what is there.
    Cswap,
    /// … if it is not.
    CswapNe,
    /// … if it is less or equal.
    CswapLe,
    /// … if it is less.
    CswapLt,
    /// … if it is greater or equal.
    CswapGe,
    /// … if it is greater.
    CswapGt,
    /// Puts those bits of the operand there that are set in what to compare with.
    Mswap,
}

/// In the order of libfabric's numbers, from `FI_MIN` (0) on.
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
    /// The one with libfabric's number.
    pub fn new(number: u32) -> Option<Self> {
        OPS.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether there is such an operation of a form: all but those that compare have the first two,
    /// but to only look without fetching is nothing.
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

    /// Whether it takes an operand.
    pub fn has_operand(self) -> bool {
        self != Self::Read
    }

    /// What takes the place of `there`; `None` if it is to stay.
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
