// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sockets below UDP: they see every packet of this network namespace, and send packets with
//! headers of the test's own.

use super::{check, own_fd, Errno};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Opens a socket that sees every packet, in and out, from the IP header on.
///
/// # Errors
///
/// The errno of `socket(2)`.
pub fn packet_socket() -> Result<OwnedFd, Errno> {
    // CAST: A protocol number has 16 bits.
    let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: No memory is involved.
    let fd = check(i64::from(unsafe {
        libc::socket(libc::AF_PACKET, kind, protocol)
    }))?;
    let fd = own_fd(fd as i32);
    // Buffer for packets that arrive between reads.
    let room: i32 = 8 << 20;
    // SAFETY: A valid descriptor and an option of the stated size.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const room).cast(),
            std::mem::size_of::<i32>() as u32,
        )
    };
    check(i64::from(r)).map(|_| fd)
}

/// Takes a packet, if one waits. Returns its length, and whether it is outgoing.
///
/// # Errors
///
/// The errno of `recvfrom(2)`.
pub fn take_packet(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<Option<(usize, bool)>, Errno> {
    // SAFETY: All zero is an address of no family.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = std::mem::size_of_val(&from) as u32;
    // SAFETY: A valid descriptor; the buffer and the address have the stated sizes.
    let r = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            buf.as_mut_ptr().cast(),
            buf.len(),
            0,
            (&raw mut from).cast(),
            &raw mut len,
        )
    };
    match check(r as i64) {
        Ok(n) => Ok(Some((
            n as usize,
            from.sll_pkttype == libc::PACKET_OUTGOING,
        ))),
        Err(Errno(libc::EAGAIN)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Opens a socket that sends IPv4 packets unchanged, header included.
///
/// # Errors
///
/// The errno of `socket(2)`.
pub fn raw_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: No memory is involved.
    let fd = check(i64::from(unsafe {
        libc::socket(libc::AF_INET, kind, libc::IPPROTO_RAW)
    }))?;
    Ok(own_fd(fd as i32))
}

/// Sends a packet that begins with its IPv4 header.
///
/// # Errors
///
/// The errno of `sendto(2)`.
pub fn send_packet(fd: BorrowedFd<'_>, to: Ipv4Addr, packet: &[u8]) -> Result<(), Errno> {
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(to.octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: A valid descriptor; packet and address have the stated sizes.
    let r = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const to).cast(),
            std::mem::size_of_val(&to) as u32,
        )
    };
    check(r as i64).map(|_| ())
}
