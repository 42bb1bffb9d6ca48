// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of operations on memory that is given by address, on a fake kernel.

use kfabric_uapi as abi;

use crate::tests::{device, pair_with, Pair, SOON};
use crate::*;

/// Registers a buffer.
///
/// # Safety
///
/// The buffer outlives the region, and is not used while an operation may change it.
unsafe fn register(domain: &Domain, buffer: &mut [u8], access: Access) -> Region {
    let attr = RegionAttr::new(access);
    // SAFETY: by the caller's contract.
    unsafe { domain.register_raw(buffer.as_mut_ptr(), buffer.len(), &attr) }.unwrap()
}

/// Sends from three pieces, and by injection, into two pieces. The buffers are the program's own.
fn pieces_arrive(rings: bool) {
    let (fake, device) = device();
    let (mut from, mut to) = (*b"..hello..world..", [b'-'; 32]);
    let at = (from.as_ptr(), to.as_ptr());
    let Pair {
        a,
        a_cq,
        b,
        b_cq,
        domain,
    } = pair_with(&device, rings, rings);
    assert_eq!(a.has_rings(), Some(rings));
    assert_eq!(b.has_rings(), Some(rings));
    // SAFETY: the buffers live until the end, and are read when no operation is posted.
    let (source, target) = unsafe {
        (
            register(&domain, &mut from, Access::SEND),
            register(&domain, &mut to, Access::RECV),
        )
    };
    assert_eq!(target.address(), at.1.expose_provenance() as u64);
    let before = fake.0.lock().unwrap().calls.len();
    // SAFETY: pieces of registered regions; the payload is a constant.
    unsafe {
        let piece = |at| Piece::of(&target, at, 6);
        b.post_raw(&RawOp::recv(&[piece(at.1.add(4)), piece(at.1.add(20))]).context(1))
            .unwrap();
        b.post_raw(&RawOp::recv(&[Piece::of(&target, at.1, 3)]).context(2))
            .unwrap();
        b.post_raw(&RawOp::recv(&[]).context(3)).unwrap();
        let none = Piece::unregistered(std::ptr::null(), 0);
        let parts = [
            Piece::of(&source, at.0.add(2), 5),
            none,
            Piece::of(&source, at.0.add(9), 5),
        ];
        a.post_raw(&RawOp::send(&parts).context(4).data(5)).unwrap();
        let payload = [b"a".as_slice(), b"bc"].map(|x| Piece::unregistered(x.as_ptr(), x.len()));
        a.post_raw(&RawOp::send(&payload).inject().context(6))
            .unwrap();
        a.post_raw(&RawOp::send(&[none]).context(7)).unwrap();
    }
    if rings {
        assert_eq!(fake.0.lock().unwrap().calls.len(), before);
    } else {
        assert_eq!(fake.0.lock().unwrap().calls.len(), before + 6);
    }
    for (context, len, data) in [(1, 10, Some(5)), (2, 3, None), (3, 0, None)] {
        let came = b_cq.wait(SOON).unwrap().ok().unwrap();
        assert_eq!(
            (came.context(), came.len(), came.data()),
            (context, len, data)
        );
    }
    for context in [4, 7] {
        assert_eq!(a_cq.wait(SOON).unwrap().ok().unwrap().context(), context);
    }
    source.close().unwrap();
    target.close().unwrap();
    assert_eq!(&to, b"abc-hellow----------orld--------");
}

#[test]
fn raw_pieces_through_the_kernel_arrive() {
    pieces_arrive(false);
}

#[test]
fn raw_pieces_through_rings_arrive() {
    pieces_arrive(true);
}

#[test]
fn raw_piece_without_its_region_is_refused() {
    let (_fake, device) = device();
    let mut memory = [7; 64];
    let at = memory.as_ptr();
    for rings in [false, true] {
        let Pair { a, domain, .. } = pair_with(&device, rings, rings);
        // SAFETY: the buffer lives until the end.
        let region = unsafe { register(&domain, &mut memory[8..], Access::LOCAL) };
        let refused = |op: RawOp<'_>, errno| {
            // SAFETY: each operation is refused, or carries bytes of `memory`.
            let error = unsafe { a.post_raw(&op) }.unwrap_err();
            assert_eq!(error, errno, "{op:?}");
        };
        let inside = Piece::of(&region, at.wrapping_add(8), 1);
        refused(RawOp::send(&[Piece::unregistered(at, 1)]), Errno::EINVAL);
        refused(RawOp::recv(&[Piece::unregistered(at, 1)]), Errno::EINVAL);
        refused(RawOp::send(&[Piece::of(&region, at, 1)]), Errno::EINVAL);
        refused(RawOp::send(&[inside; 5]), Errno::EINVAL);
        let half = [Piece::unregistered(at, 33); 2];
        refused(RawOp::send(&half).inject(), Errno::EMSGSIZE);
        if rings {
            // The fake kernel does not check ranges; rings do.
            let beyond = Piece::of(&region, at.wrapping_add(8), 57);
            refused(RawOp::send(&[beyond]), Errno::EINVAL);
            let attr = RegionAttr::new(Access::RECV);
            // SAFETY: the buffer lives until the end.
            let only = unsafe { domain.register_raw(at.cast_mut(), 8, &attr) }.unwrap();
            refused(RawOp::send(&[Piece::of(&only, at, 1)]), Errno(libc::EACCES));
        }
    }
    let (_other, other) = self::device();
    let Pair { domain, .. } = pair_with(&other, false, false);
    // SAFETY: the buffer lives until the end.
    let foreign = unsafe { register(&domain, &mut memory, Access::LOCAL) };
    let Pair { a, .. } = pair_with(&device, false, false);
    // SAFETY: the operation is refused.
    let error = unsafe { a.post_raw(&RawOp::send(&[Piece::of(&foreign, at, 1)])) };
    assert_eq!(error, Err(Errno::EINVAL));
    // SAFETY: there is no memory at the null address: the call is refused.
    let null =
        unsafe { domain.register_raw(std::ptr::null_mut(), 5, &RegionAttr::new(Access::LOCAL)) };
    assert!(matches!(null.unwrap_err(), Error::Argument { .. }));
}

#[test]
fn raw_one_sided_operations_take_pieces_and_operands() {
    let (_fake, device) = device();
    let Pair {
        a, a_cq, domain, ..
    } = pair_with(&device, false, false);
    let mut memory = *b"0123456789abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQR";
    let at = memory.as_ptr();
    let mut loose = [0u8; 4];
    let (three, four) = (3u64, 4u64);
    // SAFETY: the buffers live until the end. The test reads them between operations, and the fake
    // executes an operation when it is posted.
    unsafe {
        let region = register(&domain, &mut memory, Access::LOCAL | Access::REMOTE);
        let keys = region.alloc_keys(1).unwrap();
        let remote = keys[0].assign(16, 8, Access::REMOTE).unwrap();
        let piece = |at: *const u8| Piece::of(&region, at, 2);
        let parts = [piece(at), piece(at.add(4))];
        let ok = |op: &RawOp<'_>| {
            a.post_raw(op).unwrap();
            a_cq.wait(SOON).unwrap().ok().unwrap()
        };
        assert_eq!(ok(&RawOp::write(&parts, remote).context(9)).context(), 9);
        ok(&RawOp::read(
            &[Piece::unregistered(loose.as_mut_ptr(), 4)],
            remote,
        ));
        let payload = [Piece::unregistered(b"!".as_ptr(), 1)];
        a.post_raw(&RawOp::write(&payload, remote).inject())
            .unwrap();
        // The fake stores operands and comparands as they come.
        let [x, y] = [&three, &four].map(|n| Piece::unregistered((&raw const *n).cast(), 8));
        let there = RemoteMem {
            addr: remote.addr + 16,
            ..remote
        };
        ok(&RawOp::atomic(
            AtomicForm::Compare,
            AtomicOp::Cswap,
            abi::KFI_UINT64,
            &[x],
            &[y],
            &[Piece::of(&region, at.add(56), 8)],
            there,
        ));
        // A failed injected write has an entry, with the context of the operation.
        keys[0].revoke().unwrap();
        let sentinel = (&raw const three).expose_provenance() as u64;
        let failing = RawOp::write(&payload, remote).inject().context(sentinel);
        a.post_raw(&failing).unwrap();
        let failed = a_cq.wait(SOON).unwrap().error().unwrap();
        assert_eq!((failed.errno, failed.context), (Errno::EACCES, sentinel));
    }
    assert_eq!(&loose, b"0145");
    assert_eq!(&memory[16..20], b"!145");
    let stored = |at: usize| u64::from_ne_bytes(memory[at..at + 8].try_into().unwrap());
    assert_eq!((stored(32), stored(40)), (3, 4));
}
