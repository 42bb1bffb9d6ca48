// SPDX-License-Identifier: MIT OR Apache-2.0

//! A handle table, and a program that uses any handle. A handle reaches the value that it was
//! issued for, and nothing once that value is removed.
//!
//! Input: first generations, then steps.

#![no_main]

use kfabric_pure::slot::{Handle, Slot};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;
use std::rc::Rc;

const CELLS: usize = 4;

fuzz_target!(|input: &[u8]| {
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let mut cells = Vec::new();
    for _ in 0..CELLS {
        cells.push(Slot::starting_at(match input.int_in_range(0..=2)? {
            0 => 1,
            1 => u32::MAX - u32::from(input.arbitrary::<u8>()? % 4),
            _ => input.arbitrary()?,
        }));
    }
    // Live values by handle, and all handles ever issued.
    let mut live: HashMap<u64, Rc<u64>> = HashMap::new();
    let mut ever: Vec<u64> = Vec::new();
    let mut values = 0u64;
    while !input.is_empty() {
        let raw = match input.int_in_range(0..=2)? {
            0 => input.arbitrary()?,
            1 if !ever.is_empty() => *input.choose(&ever)?,
            _ => Handle {
                index: input.int_in_range(0..=CELLS as u32)?,
                generation: input.arbitrary()?,
            }
            .pack(),
        };
        let handle = Handle::unpack(raw);
        assert_eq!(handle.pack(), raw);
        let Some(cell) = cells.get(handle.index as usize) else {
            assert!(!live.contains_key(&raw));
            continue;
        };
        match input.int_in_range(0..=2)? {
            0 => {
                let value = Rc::new(values);
                values += 1;
                match cell.publish(value.clone()) {
                    Ok(generation) => {
                        let raw = Handle {
                            generation,
                            ..handle
                        }
                        .pack();
                        assert!(generation != 0 && !ever.contains(&raw), "never used twice");
                        ever.push(raw);
                        live.insert(raw, value);
                    }
                    Err(back) => assert!(Rc::ptr_eq(&back, &value)),
                }
            }
            1 => {
                let found = cell.with(handle.generation, Rc::clone);
                assert_eq!(found, live.get(&raw).cloned());
            }
            _ => {
                let taken = cell.retire(handle.generation, || panic!("no reader is inside"));
                assert_eq!(taken, live.remove(&raw));
            }
        }
        let there = cell.with_current(|generation, value| (generation, value.clone()));
        assert_eq!(there.is_none(), cell.is_empty() || cell.is_exhausted());
        if let Some((generation, value)) = there {
            let raw = Handle {
                generation,
                ..handle
            }
            .pack();
            assert_eq!(live.get(&raw), Some(&value));
        }
    }
    drop(cells);
    assert!(live.values().all(|value| Rc::strong_count(value) == 1));
    Ok(())
}
