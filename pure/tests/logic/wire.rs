// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::wire::{
    append_secret, decode, encode, secret, TooLong, DATA_MAX, HEADER, LIBFABRIC_DATA_MAX,
    REJECT_MAX, REPLY_MAX, REQUEST_MAX,
};
use proptest::prelude::*;

#[test]
fn no_data_is_one_zero_byte() {
    let mut out = [0xff; 4];
    assert_eq!(encode(&[], &mut out), Ok(1));
    assert_eq!(out, [0, 0xff, 0xff, 0xff]);
    assert_eq!(decode(&out), b"");
}

/// The bytes that libfabric's verbs provider sends for the same data.
#[test]
fn bytes_on_the_wire() {
    let mut out = [0; REQUEST_MAX];
    assert_eq!(encode(b"hello", &mut out), Ok(6));
    assert_eq!(out[..6], *b"\x05hello");
    assert_eq!(LIBFABRIC_DATA_MAX, 55);
    assert_eq!(encode(&[7; LIBFABRIC_DATA_MAX], &mut out), Ok(REQUEST_MAX));
    assert_eq!(encode(&[7; LIBFABRIC_DATA_MAX + 1], &mut out), Err(TooLong));
}

#[test]
fn hostile_sizes_and_nothing() {
    assert_eq!(decode(&[]), b"");
    assert_eq!(decode(&[255]), b"");
    assert_eq!(decode(&[255, 1, 2]), [1, 2]);
    assert_eq!(decode(&[1, 1, 2]), [1]);
    assert_eq!(decode(&[0; REJECT_MAX]), b"");
    assert_eq!(encode(&[], &mut []), Err(TooLong));
    assert_eq!(encode(&[0; DATA_MAX + 1], &mut [0; 1024]), Err(TooLong));
}

/// Up to 43 bytes of application data leave space for the secret in a request; ofi_rxm has 24.
#[test]
fn secret_follows_the_data_if_it_fits() {
    const SECRET: [u8; 8] = *b"01234567";
    for len in [0, 24, 43, 44, LIBFABRIC_DATA_MAX] {
        let data = vec![0xff; len];
        let mut out = [0; REQUEST_MAX];
        let used = encode(&data, &mut out).unwrap();
        let total = append_secret(&mut out, used, &SECRET);
        let fits = len <= 43;
        assert_eq!(total, if fits { used + 12 } else { used });
        assert_eq!(secret(&out), fits.then_some(SECRET));
        assert_eq!(secret(&out[..total]), fits.then_some(SECRET));
        assert_eq!(decode(&out), data);
    }
    assert_eq!(secret(&[]), None);
    assert_eq!(secret(&[255, b'k', b'f', b's', b'1']), None);
    assert_eq!(secret(&[0; REPLY_MAX]), None);
}

proptest! {
    #![proptest_config(crate::config())]

    /// Data is decoded as it was encoded, from a buffer padded like rdma_cm's.
    #[test]
    fn round_trip_through_padding(
        data in prop::collection::vec(any::<u8>(), 0..300),
        room in prop_oneof![Just(REQUEST_MAX), Just(REPLY_MAX), Just(REJECT_MAX), 0..300usize],
        padding: u8,
    ) {
        let mut buffer = vec![padding; room];
        match encode(&data, &mut buffer) {
            Ok(used) => {
                prop_assert_eq!(used, HEADER + data.len());
                prop_assert_eq!(decode(&buffer), &data);
                prop_assert_eq!(decode(&buffer[..used]), &data);
                prop_assert!(buffer[used..].iter().all(|byte| *byte == padding));
            }
            Err(TooLong) => {
                prop_assert!(data.len() > DATA_MAX || HEADER + data.len() > room);
                prop_assert!(buffer.iter().all(|byte| *byte == padding));
            }
        }
    }

    /// Any bytes decode to a part of themselves.
    #[test]
    fn any_bytes(message in prop::collection::vec(any::<u8>(), 0..300)) {
        let data = decode(&message);
        prop_assert!(message.len() >= data.len());
        if let Some((size, body)) = message.split_first() {
            prop_assert_eq!(data, &body[..body.len().min(usize::from(*size))]);
        }
    }
}
