// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::atomic::{Datatype, Form, Op};
use proptest::prelude::*;

/// Every operation, with libfabric's number.
fn ops() -> impl Iterator<Item = (u32, Op)> {
    (0..19).map(|n| (n, Op::new(n).unwrap()))
}

#[test]
fn numbers_are_libfabrics() {
    let of = |n| Op::new(n).unwrap();
    assert_eq!([of(0), of(2), of(9)], [Op::Min, Op::Sum, Op::Bxor]);
    assert_eq!([of(10), of(11)], [Op::Read, Op::Write]);
    assert_eq!(
        [of(12), of(14), of(18)],
        [Op::Cswap, Op::CswapLe, Op::Mswap]
    );
    assert_eq!(Op::new(19), None);
    let sizes: Vec<_> = (0..8).map(|n| Datatype::new(n).unwrap().size()).collect();
    assert_eq!(sizes, [1, 1, 2, 2, 4, 4, 8, 8]);
    assert_eq!(Datatype::new(8), None);
    assert_eq!(Datatype::new(u32::MAX), None);
}

#[test]
fn which_forms_there_are() {
    for (n, op) in ops() {
        let has = [Form::Base, Form::Fetch, Form::Compare].map(|form| op.has(form));
        let wanted = match n {
            12.. => [false, false, true],
            10 => [false, true, false],
            _ => [true, true, false],
        };
        assert_eq!(has, wanted, "{op:?}");
        assert_eq!(op.has_operand(), n != 10);
    }
}

/// The results of Rust's own integers.
macro_rules! by_type {
    ($number:expr, $ty:ty, $there:expr, $operand:expr, $compare:expr) => {{
        let (a, b, c) = ($there as $ty, $operand as $ty, $compare as $ty);
        let expected = |op: Op| -> Option<$ty> {
            match op {
                Op::Min => Some(a.min(b)),
                Op::Max => Some(a.max(b)),
                Op::Sum => Some(a.wrapping_add(b)),
                Op::Prod => Some(a.wrapping_mul(b)),
                Op::Lor => Some(<$ty>::from(a != 0 || b != 0)),
                Op::Land => Some(<$ty>::from(a != 0 && b != 0)),
                Op::Bor => Some(a | b),
                Op::Band => Some(a & b),
                Op::Lxor => Some(<$ty>::from((a != 0) != (b != 0))),
                Op::Bxor => Some(a ^ b),
                Op::Read => None,
                Op::Write => Some(b),
                Op::Cswap => (c == a).then_some(b),
                Op::CswapNe => (c != a).then_some(b),
                Op::CswapLe => (c <= a).then_some(b),
                Op::CswapLt => (c < a).then_some(b),
                Op::CswapGe => (c >= a).then_some(b),
                Op::CswapGt => (c > a).then_some(b),
                Op::Mswap => Some(b & c | a & !c),
            }
        };
        let ty = Datatype::new($number).unwrap();
        for (_, op) in ops() {
            let got = op.apply(ty, $there, $operand, $compare);
            // A `None` result leaves the old value, which counts as the new one.
            let after = got.map_or(a, |new| new as $ty);
            prop_assert_eq!(
                after,
                expected(op).unwrap_or(a),
                "{:?} {} {} {}",
                op,
                a,
                b,
                c
            );
            // No bit outside of the value's own bytes is set.
            prop_assert!(got.unwrap_or(0) <= u64::MAX >> (64 - <$ty>::BITS));
        }
    }};
}

/// Values, among them small ones, so that some are equal.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..4u64,
        (0..4u64).prop_map(|n| n.wrapping_neg())
    ]
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn results_are_those_of_integers(a in value(), b in value(), c in value()) {
        by_type!(0, i8, a, b, c);
        by_type!(1, u8, a, b, c);
        by_type!(2, i16, a, b, c);
        by_type!(3, u16, a, b, c);
        by_type!(4, i32, a, b, c);
        by_type!(5, u32, a, b, c);
        by_type!(6, i64, a, b, c);
        by_type!(7, u64, a, b, c);
    }
}
