// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::{
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering},
        Arc,
    },
    thread,
};

use kfabric_pure::gate::{Closing, Gate, NotIdle};
use proptest::prelude::*;

#[test]
fn open_gate_lets_in_and_out() {
    let gate = Gate::new();
    assert!(gate.enter());
    assert!(gate.enter());
    assert_eq!(gate.users(), 2);
    assert!(!gate.exit());
    assert!(!gate.exit());
    assert_eq!(gate.users(), 0);
    assert!(!gate.is_closed());
    assert!(!gate.is_drained());
}

#[test]
fn closing_an_empty_gate_drains_it_at_once() {
    let gate = Gate::default();
    assert_eq!(
        gate.close(),
        Closing {
            first: true,
            drained: true
        }
    );
    assert!(gate.is_drained());
    assert!(!gate.enter());
    assert_eq!(
        gate.close(),
        Closing {
            first: false,
            drained: true
        }
    );
}

#[test]
fn last_out_of_a_closed_gate_says_so() {
    let gate = Gate::new();
    assert!(gate.enter());
    assert!(gate.enter());
    assert_eq!(
        gate.close(),
        Closing {
            first: true,
            drained: false
        }
    );
    assert_eq!(
        gate.close(),
        Closing {
            first: false,
            drained: false
        }
    );
    assert!(!gate.exit());
    assert!(!gate.is_drained());
    assert!(gate.exit());
    assert!(gate.is_drained());
}

#[test]
fn exit_without_enter_changes_nothing() {
    let gate = Gate::new();
    assert!(!gate.exit());
    assert!(gate.enter());
    assert!(gate.close().first);
    assert!(gate.exit());
    assert!(!gate.exit());
    assert!(gate.is_drained());
}

proptest! {
    #![proptest_config(crate::config())]

    /// Any sequence of steps agrees with a counter and a flag.
    #[test]
    fn agrees_with_a_model(steps in prop::collection::vec(0..3u8, 0..64)) {
        let gate = Gate::new();
        let (mut users, mut closed) = (0u32, false);
        for step in steps {
            match step {
                0 => {
                    prop_assert_eq!(gate.enter(), !closed);
                    users += u32::from(!closed);
                }
                1 => {
                    prop_assert_eq!(gate.exit(), closed && users == 1);
                    users = users.saturating_sub(1);
                }
                _ => {
                    let closing = gate.close();
                    prop_assert_eq!(closing.first, !closed);
                    prop_assert_eq!(closing.drained, users == 0);
                    closed = true;
                }
            }
            prop_assert_eq!(gate.users(), users);
            prop_assert_eq!(gate.is_closed(), closed);
            prop_assert_eq!(gate.is_drained(), closed && users == 0);
        }
    }
}

/// Threads use a gate while it closes. After the drain no user is inside, and exactly one of the
/// users and the closer learned of the drain.
#[test]
fn nobody_inside_after_the_drain() {
    for _ in 0..if cfg!(miri) { 2 } else { 200 } {
        let gate = Arc::new(Gate::new());
        let drained = Arc::new(AtomicBool::new(false));
        let lasts = Arc::new(AtomicU32::new(0));
        let users: Vec<_> = (0..4)
            .map(|_| {
                let (gate, drained, lasts) = (gate.clone(), drained.clone(), lasts.clone());
                thread::spawn(move || {
                    while gate.enter() {
                        assert!(!drained.load(Ordering::SeqCst));
                        if gate.exit() {
                            drained.store(true, Ordering::SeqCst);
                            lasts.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        if gate.close().drained {
            drained.store(true, Ordering::SeqCst);
            lasts.fetch_add(1, Ordering::SeqCst);
        }
        for user in users {
            user.join().unwrap();
        }
        assert!(gate.is_drained());
        assert_eq!(lasts.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn closes_only_when_idle_if_asked_so() {
    let gate = Gate::new();
    assert!(gate.enter());
    assert_eq!(gate.close_if_idle(), Err(NotIdle::Inside));
    assert!(!gate.is_closed() && gate.enter());
    assert!(!gate.exit() && !gate.exit());
    assert_eq!(gate.close_if_idle(), Ok(()));
    assert!(gate.is_drained() && !gate.enter());
    assert_eq!(gate.close_if_idle(), Err(NotIdle::Closed));
}
