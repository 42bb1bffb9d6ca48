// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the tables of operations. libfabric calls most entries without a look, so an entry that is
//! missing is a jump to address 0.

use std::mem::offset_of;

use crate::cntr::Counter;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::eq::Eq;
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::mr::Mr;
use crate::object::Kind;
use crate::pep::Passive;
use crate::{atomic, cntr, cq, domain, ep, eq, fabric, fork, mr, pep, post};

/// Checks that a table has its type's size, and returns the offsets of its missing entries.
fn missing<T>(table: *const T) -> Vec<usize> {
    let words = size_of::<T>() / size_of::<usize>();
    // SAFETY: a table is a size, and pointers to functions or null, all of one word.
    let table = unsafe { std::slice::from_raw_parts(table.cast::<usize>(), words) };
    assert!(table[0] >= size_of::<T>());
    let entries = table.iter().enumerate().skip(1);
    let missing = entries.filter(|(_, entry)| **entry == 0);
    missing.map(|(at, _)| at * size_of::<usize>()).collect()
}

#[test]
fn tables_have_all_entries_that_libfabric_calls_without_a_look() {
    let fids = [
        Fabric::ops(),
        Domain::ops(),
        Eq::ops(),
        Cq::ops(),
        Counter::ops(),
        Mr::ops(),
        Endpoint::ops(),
        Passive::ops(),
    ];
    for ops in fids {
        let optional = [offset_of!(fi_ops, tostr), offset_of!(fi_ops, ops_set)];
        assert_eq!(missing(ops), optional);
    }
    let domain2 = [offset_of!(fi_ops_fabric, domain2)];
    assert_eq!(missing(fabric::OPS.get()), domain2);
    let optional = [
        offset_of!(fi_ops_domain, query_collective),
        offset_of!(fi_ops_domain, endpoint2),
    ];
    assert_eq!(missing(domain::OPS.get()), optional);
    let join = [offset_of!(fi_ops_cm, join)];
    assert_eq!(missing(ep::CM.get()), join);
    assert_eq!(missing(pep::CM.get()), join);
    let full = [
        missing(eq::OPS.get()),
        missing(cq::OPS.get()),
        missing(cntr::OPS.get()),
        missing(ep::OPS.get()),
        missing(pep::OPS.get()),
        missing(mr::OPS.get()),
        missing(post::MSG.get()),
        missing(post::RMA.get()),
        missing(post::TAGGED.get()),
        missing(atomic::OPS.get()),
        missing(fork::FID.get()),
        missing(fork::OPS.get()),
        missing(fork::CQ.get()),
        missing(fork::EQ.get()),
        missing(fork::COUNTER.get()),
    ];
    for (at, missing) in full.into_iter().enumerate() {
        assert_eq!(missing, [0usize; 0], "{at}");
    }
}
