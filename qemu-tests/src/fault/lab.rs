// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starting state of the cases: an open device, and a connection to itself.

use crate::harness::Env;
use crate::pair::own_info;
use crate::raw::{field_text, Cq, Dev, Eq, Event};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// Time limit of steps that need the device; a kernel with every checker is slow.
pub const WAIT: Duration = Duration::from_secs(60);

/// An open device and its objects.
pub struct Lab {
    /// Flags of the endpoints that the lab opens.
    pub flags: u32,
    /// Node of the test.
    pub env: Env,
    /// Info entry of the device.
    pub info: InfoEntry,
    /// File of the device.
    pub dev: Dev,
    /// Handle of the fabric.
    pub fabric: u64,
    /// Handle of the domain.
    pub domain: u64,
    /// Event queue of endpoints.
    pub eq: Eq,
    /// Completion queue of endpoints.
    pub cq: Cq,
    /// Event queue of connection requests.
    pub door: Eq,
    /// Address of the listener.
    pub addr: SocketAddr,
}

/// Two endpoints of one file that are connected to each other.
pub struct Link {
    /// Handle of the connecting end.
    pub client: u64,
    /// Handle of the accepting end.
    pub server: u64,
}

impl Lab {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn open(env: &Env) -> Result<Self> {
        let dev = Dev::open()?;
        let info = own_info(&dev, env)?;
        let fabric = dev.fabric_open(&env.provider, &field_text(&info.fabric_name))?;
        let domain = dev
            .domain_open(fabric, &field_text(&info.domain_name))?
            .handle;
        let eq = dev.eq_open(fabric, 0)?;
        let cq = dev.cq_open(domain, 64, KFI_CQ_FORMAT_DATA)?;
        let door = dev.eq_open(fabric, 0)?;
        let pep = dev.pep_open(fabric, door.handle, env.at(0), 0)?;
        dev.listen(pep, 0)?;
        let addr = dev.getname(pep, false)?;
        Ok(Self {
            flags: 0,
            env: env.clone(),
            info,
            dev,
            fabric,
            domain,
            eq,
            cq,
            door,
            addr,
        })
    }

    /// Opens the domain once more.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn another_domain(&self) -> Result<u64> {
        let name = field_text(&self.info.domain_name);
        Ok(self.dev.domain_open(self.fabric, &name)?.handle)
    }

    /// Opens an endpoint, nothing bound; with `connreq`, to accept it.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn endpoint(&self, connreq: u64) -> Result<u64> {
        let want = EpOpen {
            flags: self.flags,
            domain: self.domain,
            connreq,
            tx_size: 8,
            rx_size: 8,
            ..Default::default()
        };
        Ok(self.dev.ep_open(&want)?.handle)
    }

    /// Opens an endpoint and binds its queues.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn bound(&self, connreq: u64) -> Result<u64> {
        let ep = self.endpoint(connreq)?;
        self.dev.bind(ep, self.eq.handle, 0)?;
        self.dev.bind(ep, self.cq.handle, KFI_TRANSMIT | KFI_RECV)?;
        Ok(ep)
    }

    /// Opens, binds and enables an endpoint.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn enabled(&self, connreq: u64) -> Result<u64> {
        let ep = self.bound(connreq)?;
        self.dev.enable(ep)?;
        Ok(ep)
    }

    /// Waits for an endpoint's event of this kind.
    ///
    /// # Errors
    ///
    /// If none comes, or another.
    pub fn event(&self, kind: u32) -> Result<Event> {
        let event = self
            .dev
            .eq_wait(&self.eq, WAIT)
            .with_context(|| format!("event {kind:#x}"))?;
        ensure!(
            event.raw.event == kind,
            "event {:?}, not {kind:#x}",
            event.raw
        );
        Ok(event)
    }

    /// Waits until a connecting endpoint gets its rejection. If the rejection may be lost (`lost`),
    /// the request is repeated and rejected again.
    ///
    /// # Errors
    ///
    /// If no rejection comes.
    pub fn refused(&self, lost: bool) -> Result<Event> {
        let end = std::time::Instant::now() + WAIT;
        while lost && std::time::Instant::now() < end {
            if sys::poll_in(self.eq.fd.as_fd(), Duration::from_millis(100))? {
                break;
            }
            if let Ok(again) = self.dev.eq_read(self.door.handle, 0) {
                self.dev.close(again.raw.connreq)?;
            }
        }
        self.event(KFI_CONN_ERROR)
    }

    /// Returns a connecting endpoint whose request is still in the listener's queue.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn knock(&self) -> Result<u64> {
        let client = self.enabled(0)?;
        self.dev.connect(client, self.addr, b"knock")?;
        let waits = sys::poll_in(self.door.fd.as_fd(), WAIT)?;
        ensure!(waits, "no request came");
        Ok(client)
    }

    /// Returns a connecting endpoint, and its request.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn request(&self) -> Result<(u64, u64)> {
        let client = self.knock()?;
        let event = self.dev.eq_read(self.door.handle, 0)?;
        Ok((client, event.raw.connreq))
    }

    /// Returns two connected endpoints.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn link(&self) -> Result<Link> {
        let (client, connreq) = self.request()?;
        let server = self.enabled(connreq)?;
        self.dev.accept(server, b"welcome")?;
        for _ in 0..2 {
            self.event(KFI_CONNECTED)?;
        }
        Ok(Link { client, server })
    }

    /// Closes both ends of a link, and takes their completions.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn unlink(&self, link: Link) -> Result<()> {
        self.dev.close(link.client)?;
        self.dev.close(link.server)?;
        self.drain();
        Ok(())
    }

    /// Takes all completions. Returns their number.
    pub fn drain(&self) -> usize {
        std::iter::from_fn(|| self.cq.read()).count()
    }
}
