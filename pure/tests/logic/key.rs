// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::key::{AssignOutcome, Death, KeyError, KeySlot, State, Window};

const WINDOW: Window = Window {
    offset: 4096,
    len: 100,
    access: 1 << 12,
    once: false,
};

fn assigned() -> KeySlot {
    let mut slot = KeySlot::new();
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.assigned(77), Ok(AssignOutcome::Valid));
    slot
}

#[test]
fn a_whole_life() {
    let mut slot = KeySlot::default();
    assert_eq!(slot.state(), State::Reserved);
    assert_eq!(slot.generation(), 1);
    assert!(!slot.may_be_reachable());
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.state(), State::Assigning(WINDOW));
    assert!(slot.may_be_reachable());
    assert_eq!(slot.assigned(77), Ok(AssignOutcome::Valid));
    assert_eq!(
        slot.state(),
        State::Assigned {
            grant: WINDOW,
            value: 77
        }
    );
    slot.begin_revoke().unwrap();
    assert!(slot.may_be_reachable());
    slot.revoked().unwrap();
    assert_eq!(slot.state(), State::Reserved);
    assert_eq!(slot.generation(), 2);
    slot.begin_assign(WINDOW).unwrap();
    slot.assign_failed().unwrap();
    assert_eq!(slot.state(), State::Reserved);
    slot.release().unwrap();
    assert_eq!(slot.state(), State::Freed);
}

/// Every call in every state succeeds with the given result, or fails without a change.
#[test]
fn every_call_in_every_state() {
    let assigning = {
        let mut slot = KeySlot::new();
        slot.begin_assign(WINDOW).unwrap();
        slot
    };
    let revoking = {
        let mut slot = assigned();
        slot.begin_revoke().unwrap();
        slot
    };
    let freed = {
        let mut slot = KeySlot::new();
        slot.release().unwrap();
        slot
    };
    use KeyError::{Assigned, Busy, Freed, NotAssigned, OutOfOrder};
    type Row = (
        KeySlot,
        Result<(), KeyError>,
        Result<AssignOutcome, KeyError>,
        Result<(), KeyError>,
        Result<(), KeyError>,
        Result<(), KeyError>,
        Result<(), KeyError>,
    );
    let out = Err(OutOfOrder);
    let rows: [Row; 5] = [
        (
            KeySlot::new(),
            Ok(()),
            Err(OutOfOrder),
            out,
            Err(NotAssigned),
            out,
            Ok(()),
        ),
        (
            assigning,
            Err(Busy),
            Ok(AssignOutcome::Valid),
            Ok(()),
            Err(Busy),
            out,
            Err(Busy),
        ),
        (
            assigned(),
            Err(Assigned),
            Err(OutOfOrder),
            out,
            Ok(()),
            out,
            Err(Assigned),
        ),
        (
            revoking,
            Err(Busy),
            Err(OutOfOrder),
            out,
            Err(Busy),
            Ok(()),
            Err(Busy),
        ),
        (
            freed,
            Err(Freed),
            Err(OutOfOrder),
            out,
            Err(Freed),
            out,
            Err(Freed),
        ),
    ];
    for (slot, begin_assign, finish, failed, begin_revoke, revoked, release) in rows {
        let unchanged_on_error = |after: KeySlot, failed: bool| {
            assert_eq!(after == slot, failed, "{:?}", slot.state());
        };
        let mut copy = slot.clone();
        assert_eq!(copy.begin_assign(WINDOW), begin_assign);
        unchanged_on_error(copy, begin_assign.is_err());
        let mut copy = slot.clone();
        assert_eq!(copy.assigned(1), finish);
        unchanged_on_error(copy, finish.is_err());
        let mut copy = slot.clone();
        assert_eq!(copy.assign_failed(), failed);
        unchanged_on_error(copy, failed.is_err());
        let mut copy = slot.clone();
        assert_eq!(copy.begin_revoke(), begin_revoke);
        unchanged_on_error(copy, begin_revoke.is_err());
        let mut copy = slot.clone();
        assert_eq!(copy.revoked(), revoked);
        unchanged_on_error(copy, revoked.is_err());
        let mut copy = slot.clone();
        assert_eq!(copy.release(), release);
        unchanged_on_error(copy, release.is_err());
    }
}

#[test]
fn death_in_every_state() {
    let mut slot = KeySlot::new();
    assert_eq!(slot.die(), Death::Freed);
    assert_eq!(slot.die(), Death::Freed);
    assert_eq!(slot.begin_assign(WINDOW), Err(KeyError::Freed));

    let mut slot = assigned();
    assert_eq!(slot.die(), Death::Revoke);
    assert_eq!(slot.die(), Death::Wait);
    assert_eq!(slot.begin_assign(WINDOW), Err(KeyError::Dying));
    slot.revoked().unwrap();
    assert_eq!(slot.die(), Death::Freed);

    let mut slot = KeySlot::new();
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.die(), Death::Wait);
    assert_eq!(slot.assigned(5), Ok(AssignOutcome::RevokeNow));
    assert!(slot.may_be_reachable());
    assert_eq!(slot.die(), Death::Wait);
    slot.revoked().unwrap();
    assert_eq!(slot.state(), State::Freed);

    let mut slot = KeySlot::new();
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.die(), Death::Wait);
    slot.assign_failed().unwrap();
    assert_eq!(slot.state(), State::Freed);
}

/// `begin_take_back` revokes only the named key, never a later one.
#[test]
fn taking_back_is_of_one_key() {
    let mut slot = assigned();
    let before = slot.clone();
    assert_eq!(slot.begin_take_back(78), Err(KeyError::NotAssigned));
    assert_eq!(slot, before);
    slot.begin_take_back(77).unwrap();
    assert_eq!(slot.begin_take_back(77), Err(KeyError::Busy));
    slot.revoked().unwrap();
    assert_eq!(slot.begin_take_back(77), Err(KeyError::NotAssigned));
    // Another key is being assigned now, and its value does not matter: the call does not wait.
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.begin_take_back(77), Err(KeyError::NotAssigned));
    assert_eq!(slot.assigned(78), Ok(AssignOutcome::Valid));
    assert_eq!(slot.begin_take_back(77), Err(KeyError::NotAssigned));
    assert_eq!(slot.die(), Death::Revoke);
    assert_eq!(slot.begin_take_back(77), Err(KeyError::NotAssigned));
    assert_eq!(slot.begin_take_back(78), Err(KeyError::Busy));
    slot.revoked().unwrap();
    assert_eq!(slot.begin_take_back(78), Err(KeyError::Freed));
}

/// The slot's owner ends while the promised key is being made: `begin_take_back` waits until that
/// key is revoked.
#[test]
fn taking_back_waits_for_what_was_told() {
    let mut slot = KeySlot::new();
    slot.begin_assign(WINDOW).unwrap();
    slot.promise(77).unwrap();
    assert_eq!(slot.die(), Death::Wait);
    assert_eq!(slot.begin_take_back(77), Err(KeyError::Busy));
    assert_eq!(slot.assigned(77), Ok(AssignOutcome::RevokeNow));
    assert_eq!(slot.begin_take_back(77), Err(KeyError::Busy));
    assert_eq!(slot.begin_take_back(76), Err(KeyError::NotAssigned));
    slot.revoked().unwrap();
    assert_eq!(slot.begin_take_back(77), Err(KeyError::Freed));
}

/// A promised key is assigned, or the assignment fails; meanwhile no other party takes a step.
#[test]
fn promises_are_kept_or_ended() {
    let mut slot = KeySlot::new();
    assert_eq!(slot.promise(77), Err(KeyError::OutOfOrder));
    slot.begin_assign(WINDOW).unwrap();
    slot.promise(77).unwrap();
    assert!(slot.may_be_reachable());
    let promised = slot.clone();
    assert_eq!(slot.promise(78), Err(KeyError::OutOfOrder));
    assert_eq!(slot.begin_assign(WINDOW), Err(KeyError::Busy));
    assert_eq!(slot.begin_revoke(), Err(KeyError::Busy));
    assert_eq!(slot.begin_take_back(77), Err(KeyError::Busy));
    assert_eq!(slot.begin_take_back(76), Err(KeyError::NotAssigned));
    assert_eq!(slot.release(), Err(KeyError::Busy));
    assert_eq!(slot.revoked(), Err(KeyError::OutOfOrder));
    // A value other than the promised one is refused.
    assert_eq!(slot.assigned(78), Err(KeyError::OutOfOrder));
    assert_eq!(slot, promised);

    assert_eq!(slot.assigned(77), Ok(AssignOutcome::Valid));
    slot.begin_take_back(77).unwrap();

    let mut broken = promised.clone();
    broken.assign_failed().unwrap();
    assert_eq!(broken.state(), State::Reserved);

    let mut dying = promised;
    assert_eq!(dying.die(), Death::Wait);
    assert_eq!(dying.assigned(77), Ok(AssignOutcome::RevokeNow));
    dying.revoked().unwrap();
    assert_eq!(dying.state(), State::Freed);
}

#[test]
fn generations_end() {
    let mut slot = KeySlot::starting_at(u64::MAX - 1);
    slot.begin_assign(WINDOW).unwrap();
    assert_eq!(slot.assigned(1), Ok(AssignOutcome::Valid));
    slot.begin_revoke().unwrap();
    slot.revoked().unwrap();
    assert_eq!(slot.generation(), u64::MAX);
    assert_eq!(slot.begin_assign(WINDOW), Err(KeyError::Exhausted));
    assert_eq!(slot.begin_revoke(), Err(KeyError::NotAssigned));
    slot.release().unwrap();
}
