// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::addr::Address;
use proptest::prelude::*;

/// A C `sockaddr_in`.
pub(crate) fn v4(host: [u8; 4], port: u16) -> Vec<u8> {
    let mut raw = 2u16.to_ne_bytes().to_vec();
    raw.extend(port.to_be_bytes());
    raw.extend(host);
    raw.resize(16, 0);
    raw
}

/// A C `sockaddr_in6`.
pub(crate) fn v6(host: [u8; 16], port: u16, scope: u32) -> Vec<u8> {
    let mut raw = 10u16.to_ne_bytes().to_vec();
    raw.extend(port.to_be_bytes());
    raw.extend([0; 4]);
    raw.extend(host);
    raw.extend(scope.to_ne_bytes());
    raw
}

fn serves(have: &[u8], want: &[u8]) -> bool {
    Address::parse(have).serves(&Address::parse(want))
}

#[test]
fn taken_apart() {
    assert_eq!(Address::parse(&[]), Address::None);
    assert_eq!(
        Address::parse(&v4([10, 0, 0, 1], 7471)),
        Address::V4 {
            host: [10, 0, 0, 1],
            port: 7471
        }
    );
    assert_eq!(
        Address::parse(&v6([9; 16], 1, 3)),
        Address::V6 {
            host: [9; 16],
            port: 1,
            scope: 3
        }
    );
    let short = &v6([9; 16], 1, 3)[..27];
    assert_eq!(Address::parse(short), Address::Unknown(short));
    assert_eq!(Address::parse(&[2]), Address::Unknown(&[2]));
}

#[test]
fn who_serves_whom() {
    let (a, b, any) = (v4([1; 4], 1), v4([2; 4], 1), v4([0; 4], 9));
    assert!(serves(&a, &[]));
    assert!(serves(&[], &[]));
    assert!(!serves(&[], &a));
    assert!(serves(&a, &v4([1; 4], 99)));
    assert!(!serves(&a, &b));
    assert!(serves(&a, &any));
    assert!(!serves(&any, &a));

    let (local, other) = (v6([0xfe; 16], 0, 2), v6([0xfe; 16], 0, 3));
    assert!(!serves(&local, &other));
    assert!(!serves(&local, &v6([0xfd; 16], 0, 2)));
    assert!(serves(&local, &v6([0xfe; 16], 0, 0)));
    assert!(serves(&local, &v6([0; 16], 0, 3)));
    assert!(!serves(&local, &a));
    assert!(!serves(&a, &v6([0; 16], 0, 0)));

    assert!(serves(&[7, 7, 7], &[7, 7, 7]));
    assert!(!serves(&[7, 7, 7], &[7, 7, 8]));
    assert!(!serves(&[7, 7, 7], &a));
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn any_bytes(
        a in prop::collection::vec(any::<u8>(), 0..40),
        b in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        prop_assert!(serves(&a, &a));
        prop_assert!(serves(&a, &[]));
        let _ = serves(&a, &b);
    }
}
