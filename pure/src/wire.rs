// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Application data in connection messages, framed as libfabric's user-space verbs provider does.
//!
//! A request, an answer and a refusal each carry one byte that says how many bytes of application
//! data follow, also when that is none. The connection manager hands the receiver a buffer of fixed
//! size, zero-padded behind what was sent, and nothing at all when it made up the refusal itself.
//! So the reader trusts neither the size nor the buffer's length.
//!
//! (Over native InfiniBand addresses that provider puts a 36-byte header of rdma_cm's before its
//! own. Over IP addresses, the only ones here, the kernel's rdma_cm adds and removes that.)

/// Private data that a peer finds in a request over IP addresses, at most: the 92 bytes of the
/// message less rdma_cm's header.
pub const REQUEST_MAX: usize = 56;
/// Private data of an answer, at most.
pub const REPLY_MAX: usize = 196;
/// Private data of a refusal, at most.
pub const REJECT_MAX: usize = 148;
/// Application data that libfabric's provider is willing to send in any of them.
pub const LIBFABRIC_DATA_MAX: usize = REQUEST_MAX - HEADER;

/// Bytes in front of the data.
pub const HEADER: usize = 1;
/// Bytes of data that the size byte can say.
pub const DATA_MAX: usize = 255;

/// The data, or the buffer for it, does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Frames `data` into `out` and returns how many bytes of it are the message.
///
/// # Errors
///
/// [`TooLong`]: the data does not fit into `out`, or is more than [`DATA_MAX`]. `out` is as it was.
pub fn encode(data: &[u8], out: &mut [u8]) -> Result<usize, TooLong> {
    let size = u8::try_from(data.len()).map_err(|_| TooLong)?;
    let (header, body) = out.split_first_mut().ok_or(TooLong)?;
    body.get_mut(..data.len())
        .ok_or(TooLong)?
        .copy_from_slice(data);
    *header = size;
    Ok(HEADER + data.len())
}

/// The application data in what came; nothing where there is none.
///
/// A size that says more than came is cut to what came.
pub fn decode(message: &[u8]) -> &[u8] {
    match message.split_first() {
        Some((&size, body)) => body.get(..usize::from(size)).unwrap_or(body),
        None => &[],
    }
}
