// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::{collections::VecDeque, sync::Arc};

use kfabric_pure::ring::FixedRing;
use proptest::prelude::*;

fn cells<T>(count: usize) -> Box<[Option<T>]> {
    (0..count).map(|_| None).collect()
}

#[test]
fn what_is_put_back_is_first() {
    let mut ring = FixedRing::new(cells(2));
    assert_eq!(ring.push_front('b'), Ok(()));
    assert_eq!(ring.push_front('a'), Ok(()));
    assert_eq!(ring.push_front('c'), Err('c'));
    assert_eq!(ring.pop(), Some('a'));
    assert_eq!(ring.push('c'), Ok(()));
    assert_eq!(ring.iter().collect::<String>(), "bc");
    let mut none = FixedRing::new(cells::<char>(0));
    assert_eq!(none.push_front('a'), Err('a'));
}

#[test]
fn first_in_first_out() {
    let mut ring = FixedRing::new(cells(2));
    assert_eq!(ring.capacity(), 2);
    assert!(ring.is_empty());
    assert_eq!(ring.push('a'), Ok(()));
    assert_eq!(ring.push('b'), Ok(()));
    assert!(ring.is_full());
    assert_eq!(ring.push('c'), Err('c'));
    assert_eq!(ring.peek(), Some(&'a'));
    assert_eq!(ring.len(), 2);
    assert_eq!(ring.pop(), Some('a'));
    assert_eq!(ring.push('c'), Ok(()));
    assert_eq!(ring.iter().collect::<String>(), "bc");
    if let Some(front) = ring.peek_mut() {
        *front = 'B';
    }
    assert_eq!(ring.pop(), Some('B'));
    assert_eq!(ring.pop(), Some('c'));
    assert_eq!(ring.pop(), None);
    assert_eq!(ring.peek(), None);
    assert_eq!(ring.peek_mut(), None);
}

#[test]
fn no_storage_no_room() {
    let mut ring = FixedRing::new(cells(0));
    assert!(ring.is_full() && ring.is_empty());
    assert_eq!(ring.push(1), Err(1));
    assert_eq!(ring.pop(), None);
    assert_eq!(ring.peek(), None);
    assert_eq!(ring.replace_storage(cells(1)).unwrap().len(), 0);
    assert_eq!(ring.push(1), Ok(()));
    assert_eq!(ring.pop(), Some(1));
}

#[test]
fn storage_may_be_a_vector_or_borrowed() {
    let mut owned = FixedRing::new(vec![None, None]);
    owned.push(1).unwrap();
    let mut array = [Some(7), None];
    let mut borrowed = FixedRing::new(array.as_mut_slice());
    assert!(borrowed.is_empty());
    borrowed.push(1).unwrap();
    assert_eq!(borrowed.pop(), owned.pop());
}

#[test]
fn too_small_a_storage_is_given_back_untouched() {
    let mut ring = FixedRing::new(cells(3));
    for item in 0..3 {
        ring.push(item).unwrap();
    }
    let small: Box<[_]> = Box::new([Some(9), None]);
    assert_eq!(*ring.replace_storage(small).unwrap_err(), [Some(9), None]);
    assert_eq!(ring.iter().copied().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn items_are_dropped_once() {
    let item = Arc::new(());
    let mut ring = FixedRing::new(cells(4));
    for _ in 0..3 {
        ring.push(item.clone()).unwrap();
    }
    drop(ring.pop());
    assert_eq!(Arc::strong_count(&item), 3);
    let old = ring.replace_storage(cells(8)).unwrap();
    assert!(old.iter().all(Option::is_none));
    assert_eq!(Arc::strong_count(&item), 3);
    drop(ring);
    assert_eq!(Arc::strong_count(&item), 1);
}

proptest! {
    #![proptest_config(crate::config())]

    /// Pushes, pops and new storage of any size agree with a `VecDeque`.
    #[test]
    fn agrees_with_a_model(
        start in 0..6usize,
        steps in prop::collection::vec((0..4u8, 0..10usize), 0..crate::STEPS),
    ) {
        let mut ring = FixedRing::new(cells(start));
        let mut model = VecDeque::new();
        let mut capacity = start;
        for (count, (step, size)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    let fits = model.len() < capacity;
                    prop_assert_eq!(ring.push(count), if fits { Ok(()) } else { Err(count) });
                    if fits {
                        model.push_back(count);
                    }
                }
                2 => prop_assert_eq!(ring.pop(), model.pop_front()),
                _ => match ring.replace_storage(cells(size)) {
                    Ok(old) => {
                        prop_assert_eq!(old.len(), capacity);
                        capacity = size;
                    }
                    Err(back) => {
                        prop_assert_eq!(back.len(), size);
                        prop_assert!(size < model.len());
                    }
                },
            }
            prop_assert_eq!(ring.len(), model.len());
            prop_assert_eq!(ring.capacity(), capacity);
            prop_assert_eq!(ring.peek(), model.front());
            prop_assert!(ring.iter().eq(model.iter()));
        }
    }
}
