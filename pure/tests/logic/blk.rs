// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::blk::{
    believes, next, read_table, write_table, Broken, Entry, Geometry, Hello, Name, Next, Question,
    Welcome, KEYS_MAX, MESSAGE_MAX, PERSISTENT, QUESTION_MAX, QUEUES_MAX, READ_ONLY, REVOKED,
    TABLE_MAX,
};
use proptest::prelude::*;

use crate::blk_device::limits;

fn hello() -> impl Strategy<Value = Hello> {
    let name = "[!-.0-~]{1,63}";
    (
        0..QUEUES_MAX,
        1..=QUEUES_MAX,
        any::<u32>(),
        any::<[u8; 16]>(),
        any::<u64>(),
        (name, name),
        any::<(bool, bool)>(),
    )
        .prop_map(
            |(queue, queues, epoch, session, disk, (client, subsystem), (commits, resumes))| {
                Hello {
                    queue: queue % queues,
                    queues,
                    epoch,
                    session,
                    disk,
                    client: Name::new(client.as_bytes()).unwrap(),
                    subsystem: Name::new(subsystem.as_bytes()).unwrap(),
                    commits,
                    resumes,
                }
            },
        )
}

fn geometry() -> impl Strategy<Value = Geometry> {
    (1..1u64 << 24, 9..=12u32, 12..=30u32).prop_map(|(blocks, block_shift, chunk_shift)| Geometry {
        capacity: blocks << block_shift,
        block_shift,
        chunk_shift,
    })
}

#[test]
fn names() {
    for bad in ["", "a/b", "a b", "a\n", "\u{e4}", &"x".repeat(64)] {
        assert_eq!(Name::new(bad.as_bytes()), Err(Broken::Name), "{bad:?}");
    }
    let longest = "x".repeat(63);
    assert_eq!(Name::new(longest.as_bytes()).unwrap().as_str(), longest);
    assert_eq!(Name::new(b"fe80::1%eth0").unwrap().as_str(), "fe80::1%eth0");
    assert_eq!(Name::new(b"x").unwrap().bytes()[..3], [b'x', 0, 0]);
    let number = |name: &[u8]| Name::new(name).unwrap().number();
    assert!(number(b"x") == number(b"x") && number(b"x") != number(b"y"));
}

#[test]
fn a_name_that_goes_on_behind_its_end_is_none() {
    let mut message = [0; QUESTION_MAX];
    let hello = Hello {
        queue: 0,
        queues: 1,
        epoch: 1,
        session: [0; 16],
        disk: 7,
        client: Name::new(b"c").unwrap(),
        subsystem: Name::new(b"s").unwrap(),
        commits: false,
        resumes: false,
    };
    let len = Question::Hello(hello).write(&mut message).unwrap();
    assert_eq!(len, QUESTION_MAX);
    assert_eq!(Question::read(&message), Ok(Question::Hello(hello)));
    *message.last_mut().unwrap() = 1;
    assert_eq!(Question::read(&message), Err(Broken::Name));
}

#[test]
fn hello_of_an_earlier_version_neither_commits_nor_resumes() {
    let hello = Hello {
        queue: 0,
        queues: 1,
        epoch: 1,
        session: [0; 16],
        disk: 7,
        client: Name::new(b"c").unwrap(),
        subsystem: Name::new(b"s").unwrap(),
        commits: true,
        resumes: true,
    };
    let mut message = [0; QUESTION_MAX];
    Question::Hello(hello).write(&mut message).unwrap();
    assert_eq!(Question::read(&message), Ok(Question::Hello(hello)));
    // An earlier version sends zero there.
    message[6] = 0;
    let earlier = Hello {
        commits: false,
        resumes: false,
        ..hello
    };
    assert_eq!(Question::read(&message), Ok(Question::Hello(earlier)));
}

#[test]
fn another_version_is_said() {
    let mut message = [0; MESSAGE_MAX];
    let len = Question::Keys(7).write(&mut message).unwrap();
    message[5] = 9;
    assert_eq!(Question::read(&message[..len]), Err(Broken::Version(9)));
}

#[test]
fn who_is_believed() {
    let (one, other) = (Name::new(b"one").unwrap(), Name::new(b"other").unwrap());
    for any in [false, true] {
        for keyed in [false, true] {
            // The owner of an auth key is believed under its own name only.
            assert!(believes(Some(&one), &one, keyed, any));
            assert!(!believes(Some(&other), &one, keyed, any));
            assert_eq!(believes(None, &one, keyed, any), any && !keyed);
        }
    }
}

#[test]
fn when_to_give_up() {
    assert_eq!(next(600, 10, 0, 0), Next::Retry(0));
    assert_eq!(next(600, 10, 1000, 111), Next::Retry(10_000));
    // The last attempt is at the end of `loss_tmo`, however long the delay between two attempts is.
    assert_eq!(next(600, 10, 599_999, 111), Next::Retry(1));
    assert_eq!(next(10, 3600, 2000, 111), Next::Retry(8000));
    assert_eq!(next(600, 10, 600_000, 111), Next::GiveUp);
    assert_eq!(next(0, 10, 0, 0), Next::GiveUp);
    assert_eq!(next(-1, 10, u64::MAX, 111), Next::Retry(10_000));
    assert_eq!(next(-1, 10, 0, REVOKED), Next::GiveUp);
}

#[test]
fn disks_that_cannot_be() {
    let good = Geometry {
        capacity: 1 << 20,
        block_shift: 9,
        chunk_shift: 20,
    };
    assert_eq!(good.check(), Ok(()));
    for bad in [
        Geometry {
            capacity: 0,
            ..good
        },
        Geometry {
            capacity: 513,
            ..good
        },
        Geometry {
            capacity: !511,
            ..good
        },
        Geometry {
            block_shift: 8,
            ..good
        },
        Geometry {
            block_shift: 13,
            ..good
        },
        Geometry {
            block_shift: 64,
            ..good
        },
        Geometry {
            chunk_shift: 11,
            ..good
        },
        Geometry {
            chunk_shift: 64,
            ..good
        },
        Geometry {
            capacity: (KEYS_MAX + 1) << 12,
            chunk_shift: 12,
            ..good
        },
    ] {
        assert_eq!(bad.check(), Err(Broken::Geometry), "{bad:?}");
        let mut message = [0; MESSAGE_MAX];
        let welcome = Welcome {
            status: 0,
            flags: 0,
            geometry: bad,
            device: None,
            instance: 1,
            boot: 1,
            seq: 0,
        };
        let len = welcome.write(&mut message).unwrap();
        assert_eq!(Welcome::read(&message[..len]), Err(Broken::Geometry));
    }
}

#[test]
fn welcome_with_unknown_or_contradictory_flags_is_refused() {
    // The number of a block-backed disk's flag, which this module writes by itself.
    const DEVICE: u32 = 2;
    for (flags, good) in [
        (READ_ONLY, true),
        (PERSISTENT, true),
        (PERSISTENT | READ_ONLY, true),
        (PERSISTENT | DEVICE, false),
        (8, false),
        (1 << 31, false),
    ] {
        let mut message = [0; MESSAGE_MAX];
        let len = Welcome::refusal(1).write(&mut message).unwrap();
        // The flags follow the head and the status.
        message[12..16].copy_from_slice(&flags.to_le_bytes());
        let read = Welcome::read(&message[..len]);
        assert_eq!(read.is_ok(), good, "{flags}: {read:?}");
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn questions_come_back(hello in hello(), first: u32) {
        for question in [Question::Hello(hello), Question::Keys(first)] {
            let mut message = [0; QUESTION_MAX];
            let len = question.write(&mut message).unwrap();
            prop_assert_eq!(Question::read(&message[..len]), Ok(question));
            for short in 0..len {
                prop_assert!(Question::read(&message[..short]).is_err());
                prop_assert!(question.write(&mut [0; QUESTION_MAX][..short]).is_err());
            }
        }
    }

    #[test]
    fn welcomes_come_back(
        status: u32,
        read_only: bool,
        geometry in geometry(),
        (instance, boot, seq) in any::<(u64, u64, u64)>(),
        device in prop::option::of(limits()),
    ) {
        prop_assume!(geometry.check().is_ok());
        prop_assume!(device.is_none_or(|limits| limits.check(geometry.block_shift).is_ok()));
        let flags = if read_only { READ_ONLY } else { 0 };
        let welcome = Welcome { status, flags, geometry, device, instance, boot, seq };
        let mut message = [0; MESSAGE_MAX];
        let len = welcome.write(&mut message).unwrap();
        prop_assert_eq!(Welcome::read(&message[..len]), Ok(welcome));
        prop_assert!(Welcome::read(&message[..=len]).is_err());
    }

    #[test]
    fn tables_come_back(
        first: u32,
        keys in prop::collection::vec(any::<(u64, u64)>(), 1..=TABLE_MAX),
    ) {
        let entries = keys.iter().map(|(key, addr)| Entry { key: *key, addr: *addr });
        let mut message = [0; MESSAGE_MAX];
        let len = write_table(&mut message, first, entries).unwrap();
        let mut got = Vec::new();
        let all = keys.len() as u64;
        let mut take = |message: &[u8], first, most| {
            got.clear();
            read_table(message, first, most, |entry| got.push((entry.key, entry.addr)))
        };
        prop_assert_eq!(take(&message[..len], first, all), Ok(keys.len() as u32));
        prop_assert!(take(&message[..len], first.wrapping_add(1), all).is_err());
        prop_assert!(take(&message[..len], first, all - 1).is_err());
        prop_assert!(take(&message[..len - 1], first, all).is_err());
        prop_assert!(take(&message[..len], first, all).is_ok());
        prop_assert_eq!(got, keys);
    }

    /// Hostile bytes cause no panic, and every accepted message is valid.
    #[test]
    fn hostile_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..MESSAGE_MAX), kind in 0..6u8) {
        for (to, from) in bytes.iter_mut().zip(*b"KBK1") {
            *to = from;
        }
        if let Some(head) = bytes.get_mut(4..6) {
            head.copy_from_slice(&[kind, 1]);
        }
        if let Ok(Question::Hello(hello)) = Question::read(&bytes) {
            prop_assert!(hello.queue < hello.queues);
        }
        if let Ok(welcome) = Welcome::read(&bytes) {
            prop_assert!(welcome.status != 0 || welcome.geometry.check().is_ok());
        }
        let mut n = 0;
        if let Ok(count) = read_table(&bytes, 0, 10, |_| n += 1) {
            prop_assert!(count == n && count <= 10);
        }
    }

    /// Chunks lie side by side and cover the disk, and each byte is within its chunk's window.
    #[test]
    fn places(geometry in geometry(), pos: u64, len in 1..1u64 << 20) {
        prop_assume!(geometry.check().is_ok());
        let pos = pos % geometry.capacity;
        let (start, size) = geometry.window(pos >> geometry.chunk_shift).unwrap();
        prop_assert!(start <= pos && pos - start < size);
        let inside = pos - start + len <= size;
        let place = geometry.place(pos, len);
        prop_assert_eq!(place.is_some(), inside);
        if let Some((chunk, at)) = place {
            prop_assert_eq!(chunk, pos >> geometry.chunk_shift);
            prop_assert_eq!(start + at, pos);
        }
        prop_assert_eq!(geometry.window(geometry.chunks()), None);
        let (start, size) = geometry.window(geometry.chunks() - 1).unwrap();
        prop_assert_eq!(start + size, geometry.capacity);
        prop_assert_eq!(geometry.place(pos, 0), None);
        prop_assert_eq!(geometry.place(geometry.capacity, 1), None);
        prop_assert_eq!(geometry.place(u64::MAX, 1), None);
    }
}
