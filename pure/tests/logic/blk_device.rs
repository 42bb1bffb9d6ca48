// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::blk::cache::{Effect, Unflushed};
use kfabric_pure::blk::device::{
    identity, read_done, write_done, Carry, Limits, Op, Request, Said, Uuid, DEPTH, DONE, DONE_MAX,
    INLINE_MAX, KEEP_ROOM, LEN_MAX, PAST_CACHE, REPLY, REQUEST,
};
use kfabric_pure::blk::{Broken, Geometry, Welcome, MESSAGE_MAX};
use proptest::prelude::*;

/// Limits of possible devices, with blocks of 512 bytes to 4 KiB.
pub(crate) fn limits() -> impl Strategy<Value = Limits> {
    let bytes = || (0..1u32 << 12).prop_map(|n| n << 12);
    (
        any::<(bool, bool, bool)>(),
        12..=20u32,
        (bytes(), bytes(), bytes(), bytes()),
        1..64u32,
    )
        .prop_map(
            |((cache, fua, rotational), physical, sizes, grains)| Limits {
                cache,
                fua,
                rotational,
                physical: 1 << physical,
                io_min: sizes.0,
                io_opt: sizes.1,
                discard: sizes.2,
                granularity: grains << 12,
                zeroes: sizes.3,
            },
        )
}

const GEOMETRY: Geometry = Geometry {
    capacity: 1 << 30,
    block_shift: 12,
    chunk_shift: 30,
};

const LIMITS: Limits = Limits {
    cache: true,
    fua: true,
    rotational: false,
    physical: 4096,
    io_min: 4096,
    io_opt: 0,
    discard: 1 << 20,
    granularity: 4096,
    zeroes: 1 << 21,
};

const KEY: Carry = Carry::Key { key: 7, addr: 9 };

fn request(op: Op, pos: u64, len: u32, carry: Carry) -> Request {
    Request {
        op,
        flags: 0,
        number: 5,
        pos,
        len,
        carry,
        alone: true,
    }
}

#[test]
fn what_may_be_asked_for() {
    let message = Carry::Message;
    for good in [
        request(Op::Read, 0, 4096, message),
        request(Op::Write, 1 << 40, INLINE_MAX, message),
        request(Op::Read, 4096, LEN_MAX, KEY),
        request(Op::Write, 4096, 4096, KEY),
        request(Op::Flush, 0, 0, message),
        request(Op::Discard, 4096, 1 << 20, message),
        request(Op::Zeroes, 4096, 1 << 21, message),
    ] {
        assert_eq!(good.check(&GEOMETRY, &LIMITS), Ok(()), "{good:?}");
    }
    for bad in [
        request(Op::Read, 0, 0, message),
        request(Op::Read, 0, 0, KEY),
        request(Op::Read, 512, 4096, message),
        request(Op::Write, 0, 512, message),
        request(Op::Write, 0, INLINE_MAX + 4096, message),
        request(Op::Write, 0, LEN_MAX + 4096, KEY),
        request(Op::Read, 0, 0u32.wrapping_sub(4096), KEY),
        request(Op::Flush, 0, 4096, message),
        request(Op::Flush, 4096, 0, message),
        request(Op::Flush, 0, 0, KEY),
        request(Op::Discard, 0, (1 << 20) + 4096, message),
        request(Op::Discard, 0, 4096, KEY),
        request(Op::Discard, 0, 0, message),
        request(Op::Zeroes, 0, (1 << 21) + 4096, message),
    ] {
        let refused = Err(Broken::Message);
        assert_eq!(bad.check(&GEOMETRY, &LIMITS), refused, "{bad:?}");
    }
    let none = Limits {
        discard: 0,
        zeroes: 0,
        ..LIMITS
    };
    for op in [Op::Discard, Op::Zeroes] {
        let request = request(op, 0, 4096, message);
        assert_eq!(request.check(&GEOMETRY, &none), Err(Broken::Message));
    }
}

#[test]
fn where_it_ends() {
    let inside =
        |pos: u64, len: u32, capacity: u64| request(Op::Read, pos, len, KEY).inside(capacity);
    assert!(inside(0, 4096, 4096));
    assert!(!inside(4096, 4096, 4096));
    assert!(!inside(0, 8192, 4096));
    assert!(!inside(0u64.wrapping_sub(4096), 8192, 1 << 30));
    assert!(inside(4096, 0, 4096));
}

#[test]
fn flags_that_mean_nothing() {
    for (op, good) in [
        (Op::Read, 0),
        (Op::Write, PAST_CACHE),
        (Op::Flush, 0),
        (Op::Discard, 0),
        (Op::Zeroes, KEEP_ROOM),
    ] {
        for flags in 0..=255u8 {
            let mut request = request(op, 0, 4096, KEY);
            request.flags = flags;
            let read = Request::read(&request.write(), REQUEST as u64);
            assert_eq!(read.is_ok(), flags & !good == 0, "{op:?} {flags}");
        }
    }
    assert_eq!(Op::of(5), None);
}

#[test]
fn devices_that_cannot_be() {
    assert_eq!(LIMITS.check(12), Ok(()));
    for bad in [
        Limits {
            physical: 0,
            ..LIMITS
        },
        Limits {
            physical: 512,
            ..LIMITS
        },
        Limits {
            physical: 4097,
            ..LIMITS
        },
        Limits {
            physical: 1 << 21,
            ..LIMITS
        },
        Limits {
            discard: 512,
            ..LIMITS
        },
        Limits {
            granularity: 0,
            ..LIMITS
        },
        Limits {
            zeroes: 1,
            ..LIMITS
        },
        Limits {
            io_opt: 1,
            ..LIMITS
        },
    ] {
        assert_eq!(bad.check(12), Err(Broken::Geometry), "{bad:?}");
        let welcome = Welcome {
            status: 0,
            flags: 0,
            geometry: GEOMETRY,
            device: Some(bad),
            instance: 1,
            boot: 1,
            seq: 1,
        };
        let mut message = [0; MESSAGE_MAX];
        let len = welcome.write(&mut message).unwrap();
        assert_eq!(Welcome::read(&message[..len]), Err(Broken::Geometry));
    }
}

#[test]
fn what_is_still_the_same() {
    let device = Welcome {
        status: 0,
        flags: 0,
        geometry: GEOMETRY,
        device: Some(LIMITS),
        instance: identity(b"name", b"/dev/x", None),
        boot: 1,
        seq: 1,
    };
    let mut larger = device;
    larger.geometry.capacity *= 2;
    assert!(device.is_still(&device) && device.is_still(&larger));
    let mut memory = device;
    memory.device = None;
    let mut other = memory;
    other.geometry.capacity *= 2;
    assert!(memory.is_still(&memory) && !memory.is_still(&other));
    assert!(!memory.is_still(&device) && !device.is_still(&memory));
    let uuid = Uuid::new(b"12345678-9abc-def0-1234-56789abcdef0").unwrap();
    for another in [
        identity(b"name", b"/dev/y", None),
        identity(b"nam", b"e/dev/x", None),
        identity(b"name", b"/dev/x", Some(&uuid)),
    ] {
        let mut moved = device;
        moved.instance = another;
        assert!(!device.is_still(&moved));
    }
    // Another device at the same path. Within one run of the target, the sequence number shows
    // that.
    let another = Welcome { seq: 2, ..device };
    assert!(!device.is_still(&another));
    let mut again = Welcome { boot: 2, ..another };
    assert!(device.is_still(&again));
    again.geometry.capacity *= 2;
    assert!(device.is_still(&again) && !again.is_still(&device));
    let mut smaller = device;
    smaller.geometry.capacity /= 2;
    assert!(device.is_still(&smaller));
}

#[test]
fn uuids() {
    let small = "01234567-89ab-cdef-0123-456789abcdef";
    let large = small.to_uppercase();
    let read = |text: &str| Uuid::new(text.as_bytes());
    assert_eq!(read(small), read(&large));
    assert_eq!(read(&large).unwrap().as_str(), small);
    for bad in [
        "",
        &small[1..],
        &format!("{small}0"),
        &small.replace('-', "0"),
        &small.replace('a', "g"),
        "0123456789-ab-cdef-0123-456789abcdef",
    ] {
        assert_eq!(read(bad), Err(Broken::Name), "{bad}");
    }
}

#[test]
fn what_may_be_lost() {
    let device = Welcome {
        status: 0,
        flags: 0,
        geometry: GEOMETRY,
        device: Some(LIMITS),
        instance: 1,
        boot: 1,
        seq: 1,
    };
    let again = Welcome { boot: 2, ..device };
    assert!(device.is_still(&again));
    assert!(device.may_have_lost(&again) && !device.may_have_lost(&device));
    let through = |of: Welcome| Welcome {
        device: Some(Limits {
            cache: false,
            ..LIMITS
        }),
        ..of
    };
    assert!(!through(device).may_have_lost(&through(again)));
    // The contents of a memory-backed disk do not outlive the target.
    let memory = |of: Welcome| Welcome { device: None, ..of };
    assert!(!memory(device).is_still(&memory(again)));
}

#[test]
fn what_is_not_flushed() {
    let of = Unflushed::default();
    let does = |op, flags| of.done(of.effect(op, flags));
    let flush = || of.effect(Op::Flush, 0);
    for (op, flags) in [
        (Op::Read, 0),
        (Op::Discard, 0),
        (Op::Write, PAST_CACHE),
        (Op::Flush, 0),
    ] {
        does(op, flags);
        assert!(!of.is_any(), "{op:?} {flags}");
    }
    for (op, flags) in [(Op::Write, 0), (Op::Zeroes, 0), (Op::Zeroes, KEEP_ROOM)] {
        does(op, flags);
        assert!(of.is_any(), "{op:?} {flags}");
        does(Op::Write, PAST_CACHE);
        assert!(of.is_any(), "{op:?} {flags}");
        does(Op::Flush, 0);
        assert!(!of.is_any(), "{op:?} {flags}");
    }
    // A write acknowledged while a flush is in flight is not covered, whenever the write was sent.
    let write = of.effect(Op::Write, 0);
    let first = flush();
    of.done(write);
    let second = flush();
    of.done(first);
    assert!(of.is_any());
    of.done(second);
    assert!(!of.is_any());
    // The earlier of two flushes may complete later.
    let first = flush();
    does(Op::Write, 0);
    of.done(flush());
    of.done(first);
    assert!(!of.is_any());
    // A failed flush covers nothing.
    does(Op::Write, 0);
    assert_eq!((flush(), of.is_any()), (Effect::Covers(6), true));
    of.forget();
    assert!(!of.is_any());
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn requests_come_back(
        op in 0..5u8,
        number: u32,
        pos: u64,
        len: u32,
        key in prop::option::of(any::<(u64, u64)>()),
        alone: bool,
        more in 1..u64::MAX,
    ) {
        let request = Request {
            op: Op::of(op).unwrap(),
            flags: 0,
            number,
            pos,
            len,
            carry: key.map_or(Carry::Message, |(key, addr)| Carry::Key { key, addr }),
            alone,
        };
        let whole = REQUEST as u64 + u64::from(request.behind());
        let head = request.write();
        prop_assert_eq!(Request::read(&head, whole), Ok(request));
        prop_assert!(Request::read(&head, whole.wrapping_add(more)).is_err());
    }

    #[test]
    fn answers_come_back(number: u32, status: u32, capacity: u64, more in 1..u64::MAX) {
        for said in [Said::Reply { number, status }, Said::News(capacity)] {
            let head = said.write();
            prop_assert_eq!(Said::read(&head, REPLY as u64), Ok(said));
            prop_assert!(Said::read(&head, (REPLY as u64).wrapping_add(more)).is_err());
        }
    }

    #[test]
    fn several_come_back(numbers in prop::collection::vec(any::<u32>(), 1..=DONE_MAX)) {
        let mut message = [0; DONE];
        let len = write_done(&mut message, &numbers).unwrap();
        prop_assert!(read_done(&message[..len]).unwrap().eq(numbers));
        for cut in [1, 2, 3] {
            prop_assert!(read_done(&message[..len - cut]).is_err());
        }
        let head = message.first_chunk().unwrap();
        prop_assert!(Said::read(head, len as u64).is_err());
    }

    #[test]
    fn what_is_wrong_is_refused(at in prop::sample::select(vec![0, 1, 2, 3, 5, 6, 7]), with in 1..=255u8, len: u64) {
        let mut head = request(Op::Write, 0, 4096, KEY).write();
        let mut reply = Said::News(4096).write();
        for head in [&mut head[..], &mut reply] {
            head[at] ^= with;
        }
        // Two bytes of each head are reserved and ignored.
        let silent = at >= 6;
        prop_assert_eq!(Request::read(&head, REQUEST as u64).is_ok(), silent);
        prop_assert_eq!(Said::read(&reply, REPLY as u64).is_ok(), silent);
        let _ = (Request::read(&head, len), Said::read(&reply, len));
    }
}

#[test]
fn not_several() {
    let mut message = [0; DONE];
    assert!(write_done(&mut message, &[7; DONE_MAX + 1]).is_err());
    let none = write_done(&mut message, &[]).unwrap();
    assert!(read_done(&message[..none]).is_err());
    let mut longer = [0; DONE + 4];
    write_done(&mut message, &[7; DONE_MAX]).unwrap();
    longer[..DONE].copy_from_slice(&message);
    assert!(read_done(&longer).is_err());
    assert!(read_done(&Said::News(1).write()).is_err());
}

#[test]
fn numbers_fit() {
    // A word has one bit for each request in flight.
    const { assert!(DEPTH <= 64) };
}
