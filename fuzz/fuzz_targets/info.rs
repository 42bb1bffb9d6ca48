// SPDX-License-Identifier: MIT OR Apache-2.0

//! Matching of a caller's hints with a provider's offer.
//!
//! Input: an offer and hints, field by field, and ranks to sort.

#![no_main]

use kfabric_pure::info::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = run(&mut Unstructured::new(input));
});

/// Returns attributes that differ little from `near`, so that some match.
fn attrs<'a>(input: &mut Unstructured<'a>, near: &Attrs<'a>) -> Result<Attrs<'a>> {
    let mut made = *near;
    let of = |near: u64, input: &mut Unstructured<'a>| -> Result<u64> {
        Ok(match input.int_in_range(0..=3)? {
            0 => 0,
            1 => near & input.arbitrary::<u64>()?,
            2 => input.arbitrary()?,
            _ => near,
        })
    };
    made.caps = of(near.caps, input)?;
    made.mode = of(near.mode, input)?;
    made.mr_mode = of(near.mr_mode, input)?;
    made.max_msg_size = of(near.max_msg_size, input)?;
    made.inject_size = of(near.inject_size, input)?;
    for field in [
        &mut made.tx_size,
        &mut made.rx_size,
        &mut made.iov_limit,
        &mut made.rma_iov_limit,
        &mut made.cq_data_size,
        &mut made.mr_key_size,
        &mut made.cm_data_size,
        &mut made.ep_type,
        &mut made.protocol,
        &mut made.addr_format,
        &mut made.prov_version,
        &mut made.api_version,
    ] {
        *field = of((*field).into(), input)? as u32;
    }
    for field in [
        &mut made.src_addr,
        &mut made.prov_name,
        &mut made.fabric_name,
        &mut made.domain_name,
    ] {
        if input.ratio(1, 4)? {
            let len = input.int_in_range(0..=40)?.min(input.len());
            *field = input.bytes(len)?;
        }
    }
    Ok(made)
}

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let have = attrs(input, &Attrs::default())?;
    let want = attrs(input, &have)?;
    // A caller that requests nothing and supports all modes matches every offer.
    let any = Attrs {
        mode: u64::MAX,
        mr_mode: u64::MAX,
        ..Attrs::default()
    };
    assert_eq!(matches(&have, &any), Ok(()));

    match matches(&have, &want) {
        Err(reason) => assert!(!reason.field().is_empty()),
        Ok(()) => {
            let got = negotiate(&have, &want);
            assert_eq!(
                want.caps & PRIMARY_CAPS & !got.caps,
                0,
                "all that was asked for"
            );
            assert!(got.tx_size <= have.tx_size && got.rx_size <= have.rx_size);
            assert!(got.iov_limit <= have.iov_limit && got.inject_size <= have.inject_size);
            assert!(got.rma_iov_limit <= have.rma_iov_limit);
            assert_eq!(got.mr_mode & !have.mr_mode, 0);
        }
    }

    let mut ranks: Vec<(u32, usize)> = Vec::new();
    while !input.is_empty() && ranks.len() < 64 {
        ranks.push((input.arbitrary::<u8>()?.into(), ranks.len()));
    }
    let mut wanted = ranks.clone();
    wanted.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    sort_by_rank(&mut ranks, |(rank, _)| *rank);
    assert_eq!(ranks, wanted);
    Ok(())
}
