// SPDX-License-Identifier: MIT OR Apache-2.0

//! A peer that uses the connection manager directly: with any private data, and a queue pair that
//! does not exist.
//!
//! It uses `/dev/infiniband/rdma_cm` as `rdma/rdma_user_cm.h` defines it.

use crate::harness::guest::until;
use crate::pair::WAIT;
use crate::raw::to_sockaddr;
use anyhow::{bail, ensure, Context, Result};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const BIND_IP: u32 = 2;
const RESOLVE_IP: u32 = 3;
const RESOLVE_ROUTE: u32 = 4;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const REJECT: u32 = 9;
const GET_EVENT: u32 = 12;
const QUERY: u32 = 19;

/// Event kinds, from `enum rdma_cm_event_type`.
pub(in crate::tests) const ADDR_RESOLVED: u32 = 0;
pub(in crate::tests) const ROUTE_RESOLVED: u32 = 2;
pub(in crate::tests) const CONNECT_REQUEST: u32 = 4;
pub(in crate::tests) const REJECTED: u32 = 8;

/// `RDMA_PS_TCP`, and the type of a reliable connection.
const PORT_SPACE: u16 = 0x0106;
const QP_RC: u8 = 2;
/// Receive buffer size, at least that of `struct rdma_ucm_event_resp`.
const EVENT_MAX: usize = 512;

/// An identifier, or a listener with the identifiers of its requests.
pub(in crate::tests) struct RawCm {
    file: File,
    id: u32,
}

/// An event: its kind, its identifier, and the peer's queue pair and private data.
#[derive(Debug)]
pub(in crate::tests) struct CmEvent {
    pub(in crate::tests) kind: u32,
    pub(in crate::tests) id: u32,
    pub(in crate::tests) qp: u32,
    pub(in crate::tests) data: Vec<u8>,
}

/// Returns the number of a queue pair that does not exist. Each call returns another one, because a
/// repeated number is taken for a stale connection.
pub(in crate::tests) fn nobodys_qp() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x0080_0000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl RawCm {
    /// Creates an identifier.
    pub(in crate::tests) fn new() -> Result<Self> {
        let path = "/dev/infiniband/rdma_cm";
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .context(path)?;
        let mut cm = Self { file, id: 0 };
        let mut answer = [0u8; 4];
        // The user-chosen id: events of an identifier without one are not delivered.
        let mut cmd = 1u64.to_ne_bytes().to_vec();
        cmd.extend((answer.as_mut_ptr() as u64).to_ne_bytes());
        cmd.extend(PORT_SPACE.to_ne_bytes());
        cmd.extend([QP_RC, 0, 0, 0, 0, 0]);
        cm.command(CREATE_ID, &cmd, 4).context("creating")?;
        cm.id = u32::from_ne_bytes(answer);
        Ok(cm)
    }

    fn command(&mut self, number: u32, body: &[u8], answer: u16) -> Result<()> {
        let mut all = number.to_ne_bytes().to_vec();
        all.extend((body.len() as u16).to_ne_bytes());
        all.extend(answer.to_ne_bytes());
        all.extend(body);
        let done = self.file.write(&all)?;
        ensure!(
            done == all.len(),
            "command {number}: {done} bytes were taken"
        );
        Ok(())
    }

    /// Reads the next event.
    fn event(&mut self) -> Result<CmEvent> {
        let mut room = [0u8; EVENT_MAX];
        let at = (room.as_mut_ptr() as u64).to_ne_bytes();
        self.command(GET_EVENT, &at, EVENT_MAX as u16)?;
        let word =
            |at: usize| u32::from_ne_bytes([room[at], room[at + 1], room[at + 2], room[at + 3]]);
        // `struct rdma_ucm_conn_param` is at offset 20.
        let said = usize::from(room[284]).min(256);
        Ok(CmEvent {
            kind: word(12),
            id: word(8),
            qp: word(20),
            data: room[28..28 + said].to_vec(),
        })
    }

    /// Returns the identifier.
    pub(in crate::tests) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the own socket address and the peer's, as bytes.
    pub(in crate::tests) fn places(&mut self, id: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        // `struct rdma_ucm_query_addr_resp`: two sizes at offset 12, two addresses from offset 16
        // on.
        let mut room = [0u8; 288];
        let mut cmd = (room.as_mut_ptr() as u64).to_ne_bytes().to_vec();
        cmd.extend(id.to_ne_bytes());
        cmd.extend([0; 4]);
        self.command(QUERY, &cmd, room.len() as u16)
            .context("asking for the addresses")?;
        let size = |at: usize| usize::from(u16::from_ne_bytes([room[at], room[at + 1]])).min(128);
        let (ours, theirs) = (size(12), size(14));
        Ok((
            room[16..16 + ours].to_vec(),
            room[144..144 + theirs].to_vec(),
        ))
    }

    /// Waits for the next event of this kind; other events are dropped.
    pub(in crate::tests) fn wait_for(&mut self, kind: u32) -> Result<CmEvent> {
        loop {
            let event = self.next()?;
            if event.kind == kind {
                return Ok(event);
            }
        }
    }

    /// Waits for the next event, which must be of this kind.
    pub(in crate::tests) fn wait(&mut self, kind: u32) -> Result<CmEvent> {
        let event = self.next()?;
        if event.kind != kind {
            bail!("{event:?}, not {kind}");
        }
        Ok(event)
    }

    /// Waits for the next event.
    fn next(&mut self) -> Result<CmEvent> {
        use std::os::fd::AsFd;
        until("an event of the connection manager", WAIT, || {
            let step = std::time::Duration::from_millis(100);
            Ok(crate::sys::poll_in(self.file.as_fd(), step)?.then_some(()))
        })?;
        self.event()
    }

    /// Resolves address and route of a peer.
    pub(in crate::tests) fn resolve(&mut self, to: SocketAddr) -> Result<()> {
        self.resolve_from(&[], to)
    }

    /// Resolves address and route of a peer, from an own address (bytes of a socket address; empty:
    /// any).
    pub(in crate::tests) fn resolve_from(&mut self, from: &[u8], to: SocketAddr) -> Result<()> {
        let mut cmd = from.to_vec();
        cmd.resize(28, 0);
        cmd.extend(&to_sockaddr(to).data[..28]);
        cmd.extend(self.id.to_ne_bytes());
        cmd.extend(2000u32.to_ne_bytes());
        self.command(RESOLVE_IP, &cmd, 0).context("resolving")?;
        self.wait(ADDR_RESOLVED).context("the address")?;
        let mut cmd = self.id.to_ne_bytes().to_vec();
        cmd.extend(2000u32.to_ne_bytes());
        self.command(RESOLVE_ROUTE, &cmd, 0)
            .context("finding the route")?;
        self.wait(ROUTE_RESOLVED).context("the route").map(drop)
    }

    /// Encodes a `struct rdma_ucm_conn_param`.
    fn param(qp: u32, private: &[u8]) -> Vec<u8> {
        let mut param = vec![0u8; 272];
        param[..4].copy_from_slice(&qp.to_ne_bytes());
        param[8..8 + private.len()].copy_from_slice(private);
        // Length, SRQ flag, two depths, flow control, two retry counts, valid flag.
        param[264..].copy_from_slice(&[private.len() as u8, 0, 1, 1, 0, 7, 7, 1]);
        param
    }

    /// Sends a connection request.
    pub(in crate::tests) fn connect(&mut self, private: &[u8]) -> Result<()> {
        self.connect_as(nobodys_qp(), private)
    }

    /// Sends a connection request with this queue pair.
    pub(in crate::tests) fn connect_as(&mut self, qp: u32, private: &[u8]) -> Result<()> {
        let mut cmd = Self::param(qp, private);
        cmd.extend(self.id.to_ne_bytes());
        cmd.extend([0; 12]);
        self.command(CONNECT, &cmd, 0).context("connecting")
    }

    /// Listens at an address.
    pub(in crate::tests) fn listen(&mut self, at: SocketAddr) -> Result<()> {
        // `struct rdma_ucm_bind_ip`: no answer, address, identifier.
        let mut cmd = 0u64.to_ne_bytes().to_vec();
        cmd.extend(&to_sockaddr(at).data[..28]);
        cmd.extend(self.id.to_ne_bytes());
        self.command(BIND_IP, &cmd, 0).context("binding")?;
        let mut cmd = self.id.to_ne_bytes().to_vec();
        cmd.extend(16u32.to_ne_bytes());
        self.command(LISTEN, &cmd, 0).context("listening")
    }

    /// Accepts a connection request.
    pub(in crate::tests) fn accept(&mut self, request: u32, private: &[u8]) -> Result<()> {
        self.accept_as(nobodys_qp(), request, private)
    }

    /// Accepts a connection request with this queue pair.
    pub(in crate::tests) fn accept_as(
        &mut self,
        qp: u32,
        request: u32,
        private: &[u8],
    ) -> Result<()> {
        // With a user-chosen id, so that events are delivered.
        let mut cmd = 1u64.to_ne_bytes().to_vec();
        cmd.extend(Self::param(qp, private));
        cmd.extend(request.to_ne_bytes());
        cmd.extend([0; 12]);
        self.command(ACCEPT, &cmd, 0).context("accepting")
    }

    /// Rejects a connection request.
    pub(in crate::tests) fn reject(&mut self, request: u32, private: &[u8]) -> Result<()> {
        let mut cmd = request.to_ne_bytes().to_vec();
        // IB_CM_REJ_CONSUMER_DEFINED.
        cmd.extend([private.len() as u8, 28, 0, 0]);
        let mut data = private.to_vec();
        data.resize(256, 0);
        cmd.extend(data);
        self.command(REJECT, &cmd, 0).context("refusing")
    }

    /// Destroys a request's identifier.
    pub(in crate::tests) fn destroy(&mut self, request: u32) -> Result<()> {
        let mut answer = [0u8; 4];
        let mut cmd = (answer.as_mut_ptr() as u64).to_ne_bytes().to_vec();
        cmd.extend(request.to_ne_bytes());
        cmd.extend([0; 4]);
        self.command(DESTROY_ID, &cmd, 4).context("destroying")
    }
}
