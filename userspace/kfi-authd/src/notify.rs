// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification of the service manager: sd_notify(3), implemented with a datagram socket.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Sends a state to the service manager, if there is one. A failure is logged.
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

/// The state of a policy reload that begins now, in microseconds of the monotonic clock.
pub fn reloading() -> String {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let usec = now.map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1000);
    format!("RELOADING=1\nMONOTONIC_USEC={usec}")
}

/// The service manager's watchdog: the daemon notifies it regularly.
#[derive(Debug)]
pub struct Watchdog {
    /// Time between two notifications; `None` without a watchdog.
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// Reads the watchdog's settings from the environment. Notifies it in half the time that it
    /// allows.
    pub fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let every = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 1);
        Self {
            every: every.map(|usec| Duration::from_micros(usec / 2)),
            next: Instant::now(),
        }
    }

    /// Time of the next notification.
    pub fn next(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Notifies the watchdog if the time has come.
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
    fn reloading_state_has_a_time() {
        let text = super::reloading();
        let (_, usec) = text.split_once("MONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
    }
}
