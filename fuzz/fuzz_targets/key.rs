// SPDX-License-Identifier: MIT OR Apache-2.0

//! A key slot under any order of steps, also invalid ones. A key whose value was returned is
//! revoked before the slot has another key or is released.
//!
//! Input: the first generation, then one byte per step.

#![no_main]

use kfabric_pure::key::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let first = match input.int_in_range(0..=2)? {
        0 => 1,
        1 => u64::MAX - u64::from(input.arbitrary::<u8>()?),
        _ => input.arbitrary()?,
    };
    let mut slot = KeySlot::starting_at(first);
    // The key value that a peer may have, and that was not revoked.
    let mut told: Option<u64> = None;
    let mut dying = false;
    let mut value = 0;
    while !input.is_empty() {
        let (before, generation) = (slot.clone(), slot.generation());
        let well = match input.int_in_range(0..=6)? {
            0 => {
                let grant = Window {
                    offset: 0,
                    len: 1,
                    access: 1,
                    once: false,
                };
                let begun = slot.begin_assign(grant);
                assert!(begun.is_err() || (!dying && told.is_none()));
                begun.is_ok()
            }
            1 => {
                value += 1;
                match slot.assigned(value) {
                    Ok(AssignOutcome::Valid) => {
                        assert!(!dying && told.is_none());
                        told = Some(value);
                        true
                    }
                    Ok(AssignOutcome::RevokeNow) => {
                        assert!(dying);
                        true
                    }
                    Err(_) => false,
                }
            }
            2 => slot.assign_failed().is_ok(),
            3 => slot.begin_revoke().is_ok(),
            4 => {
                let revoked = slot.revoked().is_ok();
                if revoked {
                    told = None;
                    assert!(slot.generation() > generation || generation == u64::MAX);
                }
                revoked
            }
            5 => slot.release().is_ok(),
            _ => {
                dying = true;
                match slot.die() {
                    Death::Freed => assert_eq!(told, None),
                    Death::Revoke => assert!(told.is_some()),
                    Death::Wait => assert!(slot.may_be_reachable()),
                }
                true
            }
        };
        if !well {
            assert_eq!(slot, before, "a refused step changes nothing");
        }
        assert!(slot.generation() >= generation);
        match slot.state() {
            State::Assigned { value, .. } => assert_eq!(told, Some(value)),
            State::Revoking { value, .. } => assert_eq!(told, value),
            State::Reserved | State::Assigning(_) | State::Freed => assert_eq!(told, None),
            State::Promised { .. } => unreachable!("nothing is promised here"),
        }
        if told.is_some() {
            assert!(slot.may_be_reachable());
        }
    }
    Ok(())
}
