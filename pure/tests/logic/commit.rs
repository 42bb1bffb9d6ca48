// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages of a commit channel, and the queue of writes that wait for a commit.

use kfabric_pure::commit::*;
use kfabric_pure::proof::Mac;
use proptest::prelude::*;

const ENDS: Ends = Ends {
    initiator: End { qp: 17, psn: 4711 },
    target: End { qp: 18, psn: 815 },
    secret: 0xfeed << 64,
};

fn mac(text: &[u8]) -> Mac {
    let mut mac = Mac::default();
    for (i, byte) in text.iter().enumerate() {
        mac[i % 16] = mac[i % 16].rotate_left(3) ^ byte;
    }
    mac
}

fn check(text: &[u8], other: &Mac) -> bool {
    mac(text) == *other
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(key, addr, len)| Range { key, addr, len })
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![
        Just(Status::Durable),
        Just(Status::Unsupported),
        Just(Status::Revoked),
        Just(Status::Refused),
        Just(Status::Closing),
    ]
}

fn request(number: u64, ranges: &[Range]) -> Vec<u8> {
    let mut out = [0; REQUEST_MAX];
    let len = write_request(number, ranges, &mut out);
    out[..len].to_vec()
}

fn answer(number: u64, statuses: &[Status]) -> Vec<u8> {
    let mut out = [0; ANSWER_MAX];
    let len = write_answer(number, statuses, &mut out);
    out[..len].to_vec()
}

#[test]
fn refusal_is_no_hello_and_no_zeroes() {
    let mut padded = [0; 148];
    assert!(!is_refusal(&padded) && !is_refusal(&[]));
    padded[..REFUSAL.len()].copy_from_slice(&REFUSAL);
    assert!(is_refusal(&padded));
    assert_eq!(Hello::parse(&padded), Err(Malformed));
    assert!(!is_refusal(&Hello::welcome(&ENDS, 99, mac).write()));
}

#[test]
fn hello_names_its_connection_and_its_sender() {
    let hello = Hello::parse(&Hello::request(&ENDS, 99, mac).write()).unwrap();
    assert_eq!(hello.target(), 18);
    assert!(hello.is_request(&ENDS, 99, check));
    assert!(!hello.is_welcome(&ENDS, 99, check));
    assert!(!hello.is_request(&ENDS, 98, check), "another queue pair");
    assert!(!hello.is_request(&ENDS.swapped(), 99, check));
    let welcome = Hello::parse(&Hello::welcome(&ENDS, 99, mac).write()).unwrap();
    assert!(welcome.is_welcome(&ENDS, 99, check));
    assert!(!welcome.is_request(&ENDS, 99, check));
}

#[test]
fn hello_without_the_packet_numbers_is_refused() {
    let numbers: [fn(&mut Ends); 4] = [
        |ends| ends.initiator.psn ^= 1,
        |ends| ends.target.psn ^= 1,
        |ends| ends.initiator.qp ^= 1,
        |ends| ends.target.qp ^= 1,
    ];
    for change in numbers {
        let mut guess = ENDS;
        change(&mut guess);
        let hello = Hello::parse(&Hello::request(&guess, 99, mac).write()).unwrap();
        // Also if the MAC would be accepted.
        assert!(!hello.is_request(&ENDS, 99, |_, _| true));
    }
}

#[test]
fn hello_fits_a_connection_request() {
    const { assert!(HELLO_LEN <= kfabric_pure::wire::REQUEST_MAX) };
}

#[test]
fn unknown_versions_kinds_levels_and_counts_are_malformed() {
    let good = request(7, &[Range::default(); 2]);
    assert!(Request::parse(&good).is_ok());
    for (at, value) in [
        (0, 0),
        (0, 2),
        (1, 4),
        (1, 9),
        (2, 0),
        (2, 2),
        (3, 0),
        (3, 1),
        (3, 33),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(Request::parse(&bad), Err(Malformed), "byte {at} is {value}");
    }
    for len in 0..good.len() {
        assert_eq!(Request::parse(&good[..len]), Err(Malformed), "{len} bytes");
    }
    let mut many = good;
    many[3] = 33;
    many.resize(16 + 33 * 24, 0);
    assert_eq!(Request::parse(&many), Err(Malformed), "33 ranges");
}

#[test]
fn unknown_statuses_are_malformed() {
    let mut bad = answer(7, &[Status::Durable]);
    for code in 5..=255 {
        bad[16] = code;
        assert_eq!(Answer::parse(&bad), Err(Malformed));
    }
}

#[test]
fn ranges_that_wrap_or_exceed_the_window_are_outside() {
    let range = |addr, len| Range { key: 1, addr, len };
    assert_eq!(range(1000, 24).within(1000, 24), Some(0));
    assert_eq!(range(1010, 14).within(1000, 24), Some(10));
    assert_eq!(range(1024, 0).within(1000, 24), Some(24));
    for (addr, len) in [
        (999, 2),
        (1000, 25),
        (1024, 1),
        (1025, 0),
        (1010, 1 << 63),
        (1010, u64::MAX),
        (u64::MAX, 2),
        (0, u64::MAX),
    ] {
        assert_eq!(
            range(addr, len).within(1000, 24),
            None,
            "{addr:#x} {len:#x}"
        );
    }
}

proptest! {
    #[test]
    fn requests_and_answers_arrive_as_sent(
        number in any::<u64>(),
        ranges in prop::collection::vec(range(), 1..=RANGES_MAX),
        statuses in prop::collection::vec(status(), 1..=RANGES_MAX),
    ) {
        let message = request(number, &ranges);
        let got = Request::parse(&message).unwrap();
        prop_assert_eq!(got.number(), number);
        prop_assert_eq!(got.ranges().collect::<Vec<_>>(), ranges);
        let message = answer(number, &statuses);
        let got = Answer::parse(&message).unwrap();
        prop_assert_eq!(got.number(), number);
        prop_assert_eq!(got.statuses().collect::<Vec<_>>(), statuses);
    }

    #[test]
    fn any_bytes_are_parsed_or_malformed(message in prop::collection::vec(any::<u8>(), 0..900)) {
        if let Ok(request) = Request::parse(&message) {
            prop_assert!((1..=RANGES_MAX).contains(&request.ranges().count()));
        }
        if let Ok(answer) = Answer::parse(&message) {
            prop_assert!((1..=RANGES_MAX).contains(&answer.statuses().count()));
        }
        if let Ok(hello) = Hello::parse(&message) {
            let is_lucky = hello.is_request(&ENDS, 1, |_, _| true);
            prop_assert!(!is_lucky);
        }
    }

    #[test]
    fn a_range_is_inside_exactly_if_each_byte_is(
        start in 0u64..100, window in 0u64..100, addr in 0u64..250, len in 0u64..250,
    ) {
        let range = Range { key: 0, addr, len };
        let inside = addr >= start && addr + len <= start + window;
        prop_assert_eq!(range.within(start, window), inside.then(|| addr - start));
    }

    /// Each write that was pushed leaves the queue once: by an answer, or cancelled. The writes of
    /// a COMMIT are the oldest ones.
    #[test]
    fn each_write_leaves_the_queue_once_and_in_order(
        steps in prop::collection::vec((0u8..5, 0u64..(40 << 20)), 1..200),
    ) {
        const SLOTS: usize = 64;
        let mut queue = Queue::new(vec![None; SLOTS]);
        let mut lens = vec![0; SLOTS];
        let (mut free, mut waiting, mut sent): (Vec<u32>, Vec<u32>, Vec<u32>) =
            ((0..SLOTS as u32).collect(), Vec::new(), Vec::new());
        let mut number = 0;
        for (step, len) in steps {
            match step {
                0 | 1 => {
                    let Some(slot) = free.pop() else { continue };
                    lens[slot as usize] = len;
                    prop_assert!(queue.push(slot));
                    waiting.push(slot);
                }
                2 => {
                    let mut ranges = [Range::default(); RANGES_MAX];
                    let of = |slot: u32| Range { key: slot.into(), addr: 0, len: lens[slot as usize] };
                    let begun = queue.begin(&mut ranges, of);
                    if !sent.is_empty() || waiting.is_empty() {
                        prop_assert!(begun.is_none());
                        continue;
                    }
                    let (next, count) = begun.unwrap();
                    prop_assert!(next > number);
                    number = next;
                    sent = waiting.drain(..count).collect();
                    let keys: Vec<u32> = ranges[..count].iter().map(|r| r.key as u32).collect();
                    prop_assert_eq!(&keys, &sent);
                    let sum: u64 = ranges[..count].iter().map(|r| r.len).sum();
                    prop_assert!(count == 1 || sum <= BYTES_MAX);
                }
                3 => {
                    let statuses = vec![Status::Durable; sent.len().max(1)];
                    let message = answer(number, &statuses);
                    let parsed = Answer::parse(&message).unwrap();
                    let mut done = Vec::new();
                    let result = queue.answered(&parsed, |slot, _| done.push(slot));
                    prop_assert_eq!(result.is_ok(), !sent.is_empty());
                    prop_assert_eq!(&done, &sent);
                    free.append(&mut sent);
                    // A second answer, and one with another number, change nothing.
                    prop_assert!(queue.answered(&parsed, |_, _| ()).is_err());
                    let wrong = answer(number + 1, &statuses);
                    prop_assert!(queue.answered(&Answer::parse(&wrong).unwrap(), |_, _| ()).is_err());
                }
                _ => {
                    let mut all = sent.clone();
                    all.append(&mut waiting.clone());
                    let mut gone: Vec<u32> = std::iter::from_fn(|| queue.cancel()).collect();
                    all.sort_unstable();
                    gone.sort_unstable();
                    prop_assert_eq!(gone, all);
                    free.append(&mut sent);
                    free.append(&mut waiting);
                }
            }
            prop_assert_eq!(queue.len(), sent.len() + waiting.len());
        }
    }
}

#[test]
fn eight_wrong_keys_end_a_connection_and_two_revoked_ones_do_not() {
    let mut guesses = Refusals::default();
    let wrong: Vec<bool> = (1..=8).map(|key| guesses.refuse(key)).collect();
    assert_eq!(
        wrong,
        [false, false, false, false, false, false, false, true]
    );
    let mut revoked = Refusals::default();
    assert!((0..1000).all(|n| !revoked.refuse(n % 2)));
    assert!((0..4000).any(|n| revoked.refuse(n % 2)));
}

#[test]
fn durable_ranges_let_a_connection_forget_a_wrong_key_every_two_seconds() {
    let mut long = Refusals::default();
    for key in 1..1000 {
        assert!(!long.refuse(key));
        let now = 2 * u32::try_from(key).unwrap();
        (0..256).for_each(|_| long.succeed(|| now));
    }
    // A connection that must end stays so.
    let mut over = Refusals::default();
    assert!((1..=8).any(|key| over.refuse(key)));
    (0..1000).for_each(|now| over.succeed(|| now));
    assert!(over.is_over());
}

#[test]
fn durable_ranges_without_number_let_no_peer_guess_faster() {
    let mut guesses = Refusals::default();
    let guess = |key: u64| {
        let second = u32::try_from(key / 1000).unwrap();
        (0..1000).for_each(|_| guesses.succeed(|| second));
        guesses.refuse(key)
    };
    let tried = (1..1000).map(guess).take_while(|over| !over).count() + 1;
    assert!(tried <= 9, "{tried} guesses in a second");
}
