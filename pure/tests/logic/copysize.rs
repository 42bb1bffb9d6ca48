// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::copysize::{check_tail, plan, CopyPlan, SizeError, SIZE_MAX};
use proptest::prelude::*;

/// Applies a plan as the dispatcher does: returns the kernel's copy of the caller's structure.
fn copy_in(user: &[u8], kernel: usize, min: usize) -> Result<Vec<u8>, SizeError> {
    let CopyPlan { copy, zero, tail } = plan(user.len(), kernel, min)?;
    check_tail(&user[copy..copy + tail])?;
    let mut copied = user[..copy].to_vec();
    copied.resize(copy + zero, 0);
    Ok(copied)
}

#[test]
fn sizes_below_equal_above() {
    let copied = |copy, zero, tail| Ok(CopyPlan { copy, zero, tail });
    assert_eq!(plan(15, 32, 16), Err(SizeError::TooSmall));
    assert_eq!(plan(0, 32, 16), Err(SizeError::TooSmall));
    assert_eq!(plan(16, 32, 16), copied(16, 16, 0));
    assert_eq!(plan(32, 32, 16), copied(32, 0, 0));
    assert_eq!(plan(40, 32, 16), copied(32, 0, 8));
    assert_eq!(plan(SIZE_MAX, 32, 16), copied(32, 0, SIZE_MAX - 32));
    assert_eq!(plan(SIZE_MAX + 1, 32, 16), Err(SizeError::TooLarge));
    assert_eq!(plan(usize::MAX, 32, 16), Err(SizeError::TooLarge));
}

#[test]
fn errors_are_the_documented_ones() {
    // EINVAL and E2BIG.
    assert_eq!(SizeError::TooSmall.errno(), 22);
    assert_eq!(SizeError::TooLarge.errno(), 7);
    assert_eq!(SizeError::UnknownTail.errno(), 7);
}

proptest! {
    #![proptest_config(crate::config())]

    /// For any bytes, the result is the caller's structure, cut or zero-extended to the kernel's
    /// size, or the documented error.
    #[test]
    fn any_structure(
        mut user in prop::collection::vec(any::<u8>(), 0..96),
        zero_from in 0..96usize,
        kernel in 8..64usize,
        min in 8..64usize,
    ) {
        let min = min.min(kernel);
        if let Some(tail) = user.get_mut(zero_from..) {
            tail.fill(0);
        }
        match copy_in(&user, kernel, min) {
            Ok(copied) => {
                prop_assert!(user.len() >= min);
                prop_assert_eq!(copied.len(), kernel);
                let mut expected = user.clone();
                let tail = expected.split_off(kernel.min(expected.len()));
                expected.resize(kernel, 0);
                prop_assert_eq!(copied, expected);
                prop_assert!(tail.iter().all(|byte| *byte == 0));
            }
            Err(SizeError::TooSmall) => prop_assert!(user.len() < min),
            Err(SizeError::TooLarge) => prop_assert!(user.len() > SIZE_MAX),
            Err(SizeError::UnknownTail) => {
                prop_assert!(user[kernel..].iter().any(|byte| *byte != 0));
            }
        }
    }

    /// For any three sizes nothing overflows, and the parts add up.
    #[test]
    fn parts_add_up(user: usize, kernel: usize, min: usize, small in 0..6000usize) {
        for user in [user, small] {
            if let Ok(CopyPlan { copy, zero, tail }) = plan(user, kernel, min) {
                prop_assert_eq!(copy + tail, user);
                prop_assert_eq!(copy + zero, kernel);
                prop_assert!(zero == 0 || tail == 0);
                prop_assert!(min <= user && user <= SIZE_MAX);
            }
        }
    }
}
