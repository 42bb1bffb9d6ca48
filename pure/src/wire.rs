// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Application data in connection messages, framed as libfabric's user-space verbs provider does.
//!
//! A request, an answer and a refusal each begin with one byte that states the length of the
//! application data, which may be 0. The connection manager passes the receiver a buffer of fixed
//! size, zero-padded after the message. If the connection manager itself refuses, there is no
//! private data. So the decoder trusts neither the length byte nor the length of the buffer.
//!
//! (Over native InfiniBand addresses, libfabric's provider puts a 36-byte header of rdma_cm in
//! front. Over IP addresses, the only ones used here, the kernel's rdma_cm adds and removes that
//! header.)

/// Maximum private data in a request over IP addresses, in bytes: the 92 bytes of the message less
/// rdma_cm's header.
pub const REQUEST_MAX: usize = 56;
/// Maximum private data in an answer, in bytes.
pub const REPLY_MAX: usize = 196;
/// Maximum private data in a refusal, in bytes.
pub const REJECT_MAX: usize = 148;
/// Maximum application data that libfabric's provider sends in any message, in bytes.
pub const LIBFABRIC_DATA_MAX: usize = REQUEST_MAX - HEADER;

/// Size of the length byte in front of the data.
pub const HEADER: usize = 1;
/// Maximum length that the length byte can state.
pub const DATA_MAX: usize = 255;

/// The data is too long, or the buffer is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Encodes `data` into `out` and returns the length of the message in bytes.
///
/// # Errors
///
/// - [`TooLong`] if the data does not fit into `out`, or exceeds [`DATA_MAX`]. `out` is unchanged.
pub fn encode(data: &[u8], out: &mut [u8]) -> Result<usize, TooLong> {
    let size = u8::try_from(data.len()).map_err(|_| TooLong)?;
    let (header, body) = out.split_first_mut().ok_or(TooLong)?;
    body.get_mut(..data.len())
        .ok_or(TooLong)?
        .copy_from_slice(data);
    *header = size;
    Ok(HEADER + data.len())
}

/// Returns the application data of a message; empty if the message has none.
///
/// If the length byte exceeds the message, all bytes of the message are returned.
pub fn decode(message: &[u8]) -> &[u8] {
    match message.split_first() {
        Some((&size, body)) => body.get(..usize::from(size)).unwrap_or(body),
        None => &[],
    }
}
