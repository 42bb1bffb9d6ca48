// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Turns of users' channels, and the bound on requests for channels.

use kfabric_pure::turns::{
    can_wait, Place, Same, Then, Turn, Turns, CHANNELS, PENDING_MAX, PENDING_OF_HOST,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;

struct Channel {
    place: Place,
    user: usize,
    id: usize,
}

fn channel(user: usize, id: usize) -> Rc<Channel> {
    Rc::new(Channel {
        place: Place::new(),
        user,
        id,
    })
}

type Queue = Turns<Vec<Option<Rc<Channel>>>>;

/// Returns the queue of a user with members for `n` channels.
fn queue(n: usize) -> Queue {
    let mut turns = Turns::new(Vec::new());
    (0..n.div_ceil(CHANNELS)).for_each(|_| turns.enter());
    if let Some(n) = turns.missing() {
        turns.grow(vec![None; n]);
    }
    assert_eq!(turns.missing(), None);
    turns
}

/// The users' items run first in, first out, as the kernel's work queue does.
#[test]
fn a_user_with_thousands_of_channels_delays_another_by_one_turn() {
    const MANY: usize = 5000;
    let channels: Vec<_> = (0..MANY).map(|id| channel(0, id)).collect();
    let other = channel(1, 0);
    let mut users = [queue(MANY), queue(1)];
    let mut items = VecDeque::new();
    for one in &channels {
        users[0].ask(one.clone(), &one.place);
    }
    items.push_back(0);
    let mut waited = 0;
    let mut served = 0;
    users[1].ask(other.clone(), &other.place);
    items.push_back(1);
    for _ in 0..4 * MANY {
        let user = items.pop_front().expect("both users always wait");
        let next = users[user]
            .next(|c| &c.place)
            .expect("a queued item has a channel");
        assert_eq!(next.user, user);
        match user {
            0 => waited += 1,
            _ => {
                assert!(waited <= 1, "{waited} turns of the other user");
                (waited, served) = (0, served + 1);
            }
        }
        // The channel has more to do.
        users[user].ask(next.clone(), &next.place);
        items.push_back(user);
    }
    assert_eq!(served, 2 * MANY);
}

#[test]
fn the_channels_of_a_user_have_turns_in_the_order_in_which_they_ask() {
    let channels: Vec<_> = (0..7).map(|id| channel(0, id)).collect();
    let mut turns = queue(7);
    for one in &channels {
        turns.ask(one.clone(), &one.place);
        // A channel waits once.
        turns.ask(one.clone(), &one.place);
    }
    assert!(turns.end(&channels[3].place, |c| c.id == 3).is_some());
    turns.ask(channels[3].clone(), &channels[3].place);
    let ids: Vec<_> = std::iter::from_fn(|| turns.next(|c| &c.place))
        .map(|c| c.id)
        .collect();
    assert_eq!(ids, [0, 1, 2, 4, 5, 6]);
    assert_eq!(turns.end_turn(Turn::Over), Then::Idle);
}

/// A blocked channel does not delay the others, and all together do not keep a processor busy.
#[test]
fn a_user_pauses_only_while_all_of_its_channels_are_blocked() {
    let channels: Vec<_> = (0..3).map(|id| channel(0, id)).collect();
    let mut turns = queue(3);
    for one in &channels {
        turns.ask(one.clone(), &one.place);
    }
    let mut serve = |busy: usize| -> Vec<Then> {
        let turn = |_| {
            let next = turns.next(|c| &c.place).expect("a channel waits");
            turns.ask(next.clone(), &next.place);
            turns.end_turn(match next.id < busy {
                true => Turn::Blocked,
                false => Turn::More,
            })
        };
        (0..6).map(turn).collect()
    };
    assert_eq!(serve(0), [Then::Next; 6]);
    assert_eq!(serve(2), [Then::Next; 6]);
    let (next, wait) = (Then::Next, Then::Wait);
    assert_eq!(serve(3), [next, next, wait, next, next, wait]);
}

proptest! {
    /// Each channel that asks, and is not gone, has a turn, also while members come and go.
    #[test]
    fn no_turn_is_lost(steps in prop::collection::vec((0u8..5, 0usize..32), 1..300)) {
        let mut turns: Queue = Turns::new(Vec::new());
        let mut live: Vec<Rc<Channel>> = Vec::new();
        let mut wanted: VecDeque<usize> = VecDeque::new();
        let mut made = 0;
        for (step, at) in steps {
            let chosen = (!live.is_empty()).then(|| at % live.len().max(1));
            match (step, chosen) {
                (0, _) => {
                    turns.enter();
                    if let Some(n) = turns.missing() {
                        turns.grow(vec![None; n]);
                    }
                    prop_assert_eq!(turns.missing(), None);
                    live.push(channel(0, made));
                    made += 1;
                }
                (1 | 2, Some(at)) => {
                    let one = &live[at];
                    turns.ask(one.clone(), &one.place);
                    if !wanted.contains(&one.id) {
                        wanted.push_back(one.id);
                    }
                }
                (3, Some(at)) => {
                    let one = live.remove(at);
                    let gone = turns.end(&one.place, |c| c.id == one.id);
                    prop_assert_eq!(gone.is_some(), wanted.contains(&one.id));
                    wanted.retain(|id| *id != one.id);
                    prop_assert_eq!(turns.leave(), live.is_empty());
                }
                _ => {
                    let next = turns.next(|c| &c.place).map(|c| c.id);
                    prop_assert_eq!(next, wanted.pop_front());
                }
            }
            let idle = turns.end_turn(Turn::Over) == Then::Idle;
            prop_assert_eq!(idle, wanted.is_empty());
        }
    }
}

#[test]
fn one_host_leaves_places_for_requests_of_others() {
    let host = Same {
        host: true,
        ..Same::default()
    };
    let of = |own: usize, others: usize| {
        let own = std::iter::repeat_n(host, own);
        own.chain(std::iter::repeat_n(Same::default(), others))
    };
    assert!(can_wait(of(PENDING_OF_HOST - 1, 100)));
    assert!(!can_wait(of(PENDING_OF_HOST, 0)));
    assert!(can_wait(of(0, PENDING_OF_HOST)));
    assert!(can_wait(of(0, PENDING_MAX - 1)));
    assert!(!can_wait(of(0, PENDING_MAX)));
    let again = Same {
        connection: true,
        host: true,
    };
    assert!(!can_wait(std::iter::once(again)));
}
