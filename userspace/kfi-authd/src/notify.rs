// SPDX-License-Identifier: MIT OR Apache-2.0
//! Telling the service manager how it is: sd_notify(3), as a datagram of our own.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

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

/// The service manager's watchdog: it is told now and then that the daemon lives.
#[derive(Debug)]
pub struct Watchdog {
    /// Between two tellings, if there is a watchdog.
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// As the service manager wants it: half of what it waits for.
    pub fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let every = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 1);
        Self {
            every: every.map(|usec| Duration::from_micros(usec / 2)),
            next: Instant::now(),
        }
    }

    /// When it is to be told next.
    pub fn next(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Tells it, if it is time.
    pub fn beat(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        if now >= self.next {
            tell("WATCHDOG=1");
            self.next = now + every;
        }
    }
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
