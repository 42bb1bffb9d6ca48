// SPDX-License-Identifier: MIT OR Apache-2.0
//! Telling the service manager how it is: sd_notify(3), as a datagram of our own.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells it, if there is one that listens. A daemon goes on without.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let send = || -> std::io::Result<()> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
    };
    if let Err(e) = send() {
        crate::event!(Warning, "cannot tell the service manager: {e}");
    }
}

/// What is told while a policy is loaded anew: since when, in microseconds of the monotonic clock.
pub fn reloading() -> String {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let usec = now.map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1000);
    format!("RELOADING=1\nMONOTONIC_USEC={usec}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn reloading_has_a_time() {
        let text = super::reloading();
        let (_, usec) = text.split_once("MONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
    }
}
