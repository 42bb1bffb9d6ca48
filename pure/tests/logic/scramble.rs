// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::scramble::Scramble;
use proptest::prelude::*;

/// The test vector of the cipher's authors.
#[test]
fn it_is_the_cipher() {
    let scramble = Scramble::new(0x1b1a_1918_1312_1110_0b0a_0908_0302_0100);
    assert_eq!(
        scramble.scramble(0x3b72_6574_7475_432d),
        0x8c6f_a548_454e_028b
    );
    assert_eq!(scramble.plain(0x8c6f_a548_454e_028b), 0x3b72_6574_7475_432d);
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn each_number_stands_for_one(secret: u128, number: u64) {
        let scramble = Scramble::new(secret);
        prop_assert_eq!(scramble.plain(scramble.scramble(number)), number);
        prop_assert_eq!(scramble.scramble(scramble.plain(number)), number);
    }
}
