// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Application data in connection messages, framed as libfabric's user-space verbs provider does.
//!
//! A request, an answer and a refusal carry one byte that says how many bytes of application data
//! follow. The connection manager hands the receiver a buffer of fixed size, padded behind what
//! was sent, and old or foreign peers send no byte at all; so the reader trusts neither the size
//! nor the buffer's length.

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
/// [`TooLong`]: the data does not fit into `out`, or is more than [`DATA_MAX`].
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
