// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::kept::{Size, PAGES, REGIONS};

/// Adds regions of `pages` pages to a list until one does not fit. Returns their number, and the list.
fn fill(mut size: Size, pages: u32) -> (usize, Size) {
    let mut count = 0;
    while let Some(more) = size.with(pages) {
        (size, count) = (more, count + 1);
    }
    (count, size)
}

#[test]
fn list_takes_4096_regions_or_2_pow_20_pages() {
    assert_eq!(PAGES, 1 << 20);
    for (pages, most) in [(1, REGIONS), (256, REGIONS), (257, 4080), (16384, 64)] {
        let (count, full) = fill(Size::default(), pages);
        assert_eq!(count, most, "{pages} pages");
        // One region less: one fits again, and no second one.
        assert_eq!(fill(full.without(pages), pages), (1, full), "{pages} pages");
    }
}

#[test]
fn full_list_has_room_for_shorter_regions_only() {
    let (count, size) = fill(Size::default(), 16384);
    let size = size.without(16384);
    assert_eq!(count, 64);
    assert_eq!(fill(size, 512).0, 32);
    assert_eq!(fill(size.with(8192).unwrap(), 16384).0, 0);
}

#[test]
fn emptied_list_is_as_a_new_one() {
    let (count, mut size) = fill(Size::default(), 300);
    for _ in 0..count {
        size = size.without(300);
    }
    assert_eq!(size, Size::default());
}

#[test]
fn endless_page_list_does_not_fit() {
    assert_eq!(Size::default().with(u32::MAX), None);
}
