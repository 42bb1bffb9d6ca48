// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the messages of the auth handshake.

use std::collections::BTreeSet;

use kfabric_pure::proof::{
    busy, carry, challenge, cookie, hello, is_fresh, made_at, proof, refusal, reply, spend, Cookie,
    Ends, Frame, NotFrame, Spend, COOKIE, COOKIE_NS, DATA_MAX, MAC, NONCE, VERSION,
};
use kfabric_pure::wire;
use proptest::prelude::*;

/// A cookie with the first bytes of `of`.
fn cut(of: &[u8; NONCE]) -> Cookie {
    *of.first_chunk().unwrap()
}

fn frame(kind: u8, nonce: [u8; 16], mac: [u8; 16], data: &[u8]) -> Frame<'_> {
    let cookie = cut(&nonce);
    match kind {
        0 => Frame::Hello { nonce, mac },
        1 => Frame::Challenge { cookie, mac },
        2 => Frame::Proof { cookie, mac, data },
        3 => Frame::Reply { mac, data },
        4 => Frame::Busy { mac },
        _ => Frame::Refusal { mac, data },
    }
}

fn v4(host: [u8; 4], port: u16) -> Vec<u8> {
    let mut raw = 2_u16.to_ne_bytes().to_vec();
    raw.extend(port.to_be_bytes());
    raw.extend(host);
    raw.resize(16, 0);
    raw
}

proptest! {
    #![proptest_config(crate::config())]

    /// A message is decoded as it was encoded, with any padding.
    #[test]
    fn written_is_read(
        kind in 0..6_u8,
        nonce in any::<[u8; 16]>(),
        mac in any::<[u8; 16]>(),
        data in prop::collection::vec(any::<u8>(), 0..=DATA_MAX),
        padding in 0..40_usize,
    ) {
        let mut out = [0; 256];
        let frame = frame(kind, nonce, mac, &data);
        let len = frame.write(&mut out).unwrap();
        prop_assert!(len <= wire::REQUEST_MAX);
        prop_assert_eq!(Frame::parse(&out[..len + padding]), Ok(frame));
        for short in 0..len {
            prop_assert_ne!(Frame::parse(&out[..short]), Ok(frame));
        }
        prop_assert!(frame.write(&mut [0; 256][..len - 1]).is_err());
    }

    /// Any bytes are decoded without a panic.
    #[test]
    fn anything_is_read(message in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Frame::parse(&message);
    }

    /// A plain message is recognised as plain, at each length that the connection manager has.
    #[test]
    fn plain_is_plain(data in prop::collection::vec(any::<u8>(), 0..=wire::REPLY_MAX - 1)) {
        let mut out = [0; wire::REPLY_MAX];
        let len = wire::encode(&data, &mut out).unwrap();
        prop_assert_eq!(Frame::parse(&out[..len]), Err(NotFrame::Plain));
    }

    /// A MAC's text differs whenever any of its inputs differs.
    #[test]
    fn every_text_is_its_own(
        a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), qp in any::<u32>(), port in any::<u16>(),
    ) {
        let (c, d) = (cut(&a), cut(&b));
        prop_assume!(a != b && c != d);
        let ends = Ends::new(&v4([10, 0, 0, 1], port), &v4([10, 0, 0, 2], 9));
        let turned = Ends::new(&v4([10, 0, 0, 2], 9), &v4([10, 0, 0, 1], port));
        let texts = |ends: &Ends| [
            hello(ends, &a, qp), hello(ends, &b, qp), hello(ends, &a, !qp),
            challenge(ends, &a, &d), challenge(ends, &b, &c),
            proof(ends, &c, qp, &[]), proof(ends, &d, qp, &[]), proof(ends, &c, !qp, &[]),
            proof(ends, &c, qp, &[0]), proof(ends, &c, qp, &[0, 0]),
            reply(ends, &a, qp, &[]), reply(ends, &b, qp, &[]), reply(ends, &a, !qp, &[]),
            refusal(ends, &a, &[]), refusal(ends, &a, &[0]), refusal(ends, &b, &[]),
            busy(ends, &a), busy(ends, &b),
        ].map(|text| text.bytes().to_vec());
        // The same addresses by other paths: either end's GID is another, or they are turned.
        let paths = [ends.between(a, b), ends.between(b, a), ends.between(a, a), ends.between(b, b)];
        let all: BTreeSet<_> = [ends, turned].iter().chain(&paths).flat_map(texts).collect();
        prop_assert_eq!(all.len(), 6 * 18);
    }
}

#[test]
fn another_version_is_told() {
    let mark = 0xf0 | VERSION;
    let other = VERSION - 1;
    assert_eq!(
        Frame::parse(&[0xf0 | other, 1]),
        Err(NotFrame::Version(other))
    );
    assert_eq!(Frame::parse(&[mark, 9]), Err(NotFrame::Broken));
    assert_eq!(Frame::parse(&[mark]), Err(NotFrame::Broken));
    assert_eq!(Frame::parse(&[]), Err(NotFrame::Plain));
}

#[test]
fn the_longest_data_has_room_in_a_text() {
    let ends = Ends::new(&[], &[]);
    let short = reply(&ends, &[0; 16], 1, &[]).bytes().len();
    let long = reply(&ends, &[0; 16], 1, &[0; 255]).bytes().len();
    assert_eq!(long, short + 255);
}

#[test]
fn a_cookie_ages() {
    assert!(is_fresh(77, 77) && is_fresh(77, 77 + COOKIE_NS));
    assert!(!is_fresh(77, 78 + COOKIE_NS) && !is_fresh(77, 76));
}

proptest! {
    #![proptest_config(crate::config())]

    /// The time of a cookie is found while the cookie is valid, at any uptime.
    #[test]
    fn fresh_cookie_has_its_time(
        made in any::<u64>(), age in 0..=COOKIE_NS, mac in any::<[u8; MAC]>(),
    ) {
        let made = made.min(u64::MAX - COOKIE_NS);
        prop_assert_eq!(made_at(&cookie(made, &mac), made + age), made);
    }

    /// A cookie whose low time is valid again has another time, and so another tag.
    #[test]
    fn old_cookie_has_another_time(
        made in 0..1_u64 << 60, turns in 1..1_u64 << 20, age in 0..=COOKIE_NS, mac in any::<[u8; MAC]>(),
    ) {
        let now = made + (turns << 40) + age;
        let found = made_at(&cookie(made, &mac), now);
        prop_assert_eq!(found, made + (turns << 40));
        prop_assert!(is_fresh(found, now));
    }

    /// A cookie of the future, as another host's clock makes it, is never fresh unless its low time is.
    #[test]
    fn any_cookie_is_at_most_a_turn_old(of in any::<[u8; NONCE]>(), now in 1_u64 << 40..) {
        let made = made_at(&cut(&of), now);
        prop_assert!(made <= now && now - made < 1 << 40);
    }
}

#[test]
fn a_cookie_carries_its_time_and_a_tag_of_64_bits() {
    let mac = [0xa5; MAC];
    let made = 0x0102_0304_0506_0708;
    let whole = cookie(made, &mac);
    assert_eq!(whole[..COOKIE - 8], [4, 5, 6, 7, 8]);
    assert_eq!(whole[COOKIE - 8..], mac[..8]);
    // Earlier than the first turn of the clock: no time of this boot.
    assert!(!is_fresh(made_at(&whole, 5), 5));
}

#[test]
fn the_interface_says_how_much_data() {
    assert_eq!(DATA_MAX, 24);
}

#[test]
fn gids_of_plain_addresses_are_those_of_roce() {
    let ends = Ends::new(&v4([10, 0, 0, 1], 5), &v4([10, 0, 0, 2], 9));
    let gid = |last: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
    assert_eq!(ends, ends.between(gid(1), gid(2)));
    assert_ne!(ends, ends.between(gid(3), gid(2)));
    assert_ne!(ends, ends.between(gid(1), gid(3)));
}

/// Connections of a job that starts, each at another time of the same second.
fn burst(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|i| 7_000_000_000 + i * 123_457)
}

#[test]
fn a_job_of_ten_thousand_ranks_connects_at_once() {
    let now = 10_000_000_000;
    let mut table = vec![0; 1 << 16];
    for made in burst(10_000) {
        assert_eq!(spend(&mut table, made, now), Spend::Good, "{made}");
    }
    // Each is good once.
    for made in burst(10_000) {
        assert_eq!(spend(&mut table, made, now), Spend::Spent, "{made}");
    }
    // All of them are too old later, and their places are free.
    let later = now + 2 * COOKIE_NS;
    for made in burst(10_000) {
        assert_eq!(spend(&mut table, made, later), Spend::Spent, "{made}");
        let fresh = made + 2 * COOKIE_NS;
        assert_eq!(spend(&mut table, fresh, later), Spend::Good, "{fresh}");
    }
}

#[test]
fn a_full_table_says_so_and_forgets_nothing() {
    let now = 10_000_000_000;
    let mut table = vec![0; 64];
    let outcomes: Vec<_> = burst(2000)
        .map(|made| (made, spend(&mut table, made, now)))
        .collect();
    let good = outcomes.iter().filter(|(_, spend)| *spend == Spend::Good);
    assert_eq!(good.count(), 64);
    let mut larger = vec![0; 1 << 14];
    assert!(carry(&table, &mut larger, now));
    for (made, before) in outcomes {
        let again = spend(&mut larger, made, now);
        match before {
            Spend::Good => assert_eq!(again, Spend::Spent),
            // It was not noted, so it is good still.
            _ => assert_eq!((before, again), (Spend::Full, Spend::Good)),
        }
    }
    assert!(!carry(&larger, &mut vec![0; 64], now));
    assert_eq!(spend(&mut [], 7_000_000_000, now), Spend::Full);
}
