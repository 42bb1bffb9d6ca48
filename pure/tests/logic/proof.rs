// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages by which peers prove to have an auth key.

use std::collections::BTreeSet;

use kfabric_pure::proof::{
    challenge, hello, is_fresh, made_at, proof, refusal, reply, Ends, Frame, NotFrame, COOKIE_NS,
    DATA_MAX,
};
use kfabric_pure::wire;
use proptest::prelude::*;

fn frame(kind: u8, nonce: [u8; 16], mac: [u8; 16], data: &[u8]) -> Frame<'_> {
    match kind {
        0 => Frame::Hello { nonce, mac },
        1 => Frame::Challenge { cookie: nonce, mac },
        2 => Frame::Proof {
            cookie: nonce,
            mac,
            data,
        },
        3 => Frame::Reply { mac, data },
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

    /// What is written is read, whatever pads it.
    #[test]
    fn written_is_read(
        kind in 0..5_u8,
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

    /// Nothing breaks the reader, and no plain message is taken for one of these.
    #[test]
    fn anything_is_read(message in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Frame::parse(&message);
    }

    /// A plain message is plain, at the sizes that the connection manager has.
    #[test]
    fn plain_is_plain(data in prop::collection::vec(any::<u8>(), 0..=wire::REPLY_MAX - 1)) {
        let mut out = [0; wire::REPLY_MAX];
        let len = wire::encode(&data, &mut out).unwrap();
        prop_assert_eq!(Frame::parse(&out[..len]), Err(NotFrame::Plain));
    }

    /// A MAC's text is another one where anything is another one.
    #[test]
    fn every_text_is_its_own(
        a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), qp in any::<u32>(), port in any::<u16>(),
    ) {
        prop_assume!(a != b);
        let ends = Ends::new(&v4([10, 0, 0, 1], port), &v4([10, 0, 0, 2], 9));
        let turned = Ends::new(&v4([10, 0, 0, 2], 9), &v4([10, 0, 0, 1], port));
        let texts = |ends: &Ends| [
            hello(ends, &a, qp), hello(ends, &b, qp), hello(ends, &a, !qp),
            challenge(ends, &a, &b), challenge(ends, &b, &a),
            proof(ends, &a, qp, &[]), proof(ends, &b, qp, &[]), proof(ends, &a, !qp, &[]),
            proof(ends, &a, qp, &[0]), proof(ends, &a, qp, &[0, 0]),
            reply(ends, &a, qp, &[]), reply(ends, &b, qp, &[]), reply(ends, &a, !qp, &[]),
            refusal(ends, &a, &[]), refusal(ends, &a, &[0]), refusal(ends, &b, &[]),
        ].map(|text| text.bytes().to_vec());
        let all: BTreeSet<_> = texts(&ends).into_iter().chain(texts(&turned)).collect();
        prop_assert_eq!(all.len(), 32);
    }
}

#[test]
fn another_version_is_told() {
    assert_eq!(Frame::parse(&[0xf2, 1]), Err(NotFrame::Version(2)));
    assert_eq!(Frame::parse(&[0xf1, 9]), Err(NotFrame::Broken));
    assert_eq!(Frame::parse(&[0xf1]), Err(NotFrame::Broken));
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
    let mut cookie = [0; 16];
    cookie[..8].copy_from_slice(&77_u64.to_be_bytes());
    assert_eq!(made_at(&cookie), 77);
    assert!(is_fresh(77, 77) && is_fresh(77, 77 + COOKIE_NS));
    assert!(!is_fresh(77, 78 + COOKIE_NS) && !is_fresh(77, 76));
}

#[test]
fn the_interface_says_how_much_data() {
    assert_eq!(DATA_MAX, 21);
}
