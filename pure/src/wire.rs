// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Application data in connection messages, framed as libfabric's user-space verbs provider does.
//!
//! A request, an answer and a refusal each begin with one byte that states the length of the
//! application data, which may be 0. The connection manager passes the receiver a buffer of fixed
//! size, zero-padded after the message. If the connection manager itself refuses, there is no
//! private data. So the decoder trusts neither the length byte nor the length of the buffer.
//!
//! Behind the application data, a request and an answer may have a [`Secret`]. Application data of up
//! to 43 bytes leave space for the secret in a request.
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

/// Number of bytes of a [`Secret`].
pub const SECRET: usize = 8;
/// Random bytes that each end of a connection chooses, behind the application data of its request or
/// answer. Only the two kernels learn them.
pub type Secret = [u8; SECRET];
/// The bytes in front of a secret.
const MARK: [u8; 4] = *b"kfs1";

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

/// Appends a secret to the message of `used` bytes in `out`, if it fits. Returns the length of the
/// message, which is `used` if the secret does not fit.
///
/// A receiver that does not know secrets ignores bytes behind the application data.
pub fn append_secret(out: &mut [u8], used: usize, secret: &Secret) -> usize {
    let Some(place) = out.get_mut(used..used + MARK.len() + SECRET) else {
        return used;
    };
    let (mark, rest) = place.split_at_mut(MARK.len());
    mark.copy_from_slice(&MARK);
    rest.copy_from_slice(secret);
    used + MARK.len() + SECRET
}

/// Returns the secret behind the application data of a message, if it has one.
pub fn secret(message: &[u8]) -> Option<Secret> {
    let used = HEADER + usize::from(*message.first()?);
    let rest = message.get(used..)?.strip_prefix(&MARK)?;
    rest.first_chunk().copied()
}
