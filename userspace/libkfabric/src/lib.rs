// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe Rust over `/dev/kfabric`, the kernel-mode libfabric.
//!
//! # Objects
//!
//! ```text
//! Device ─ Fabric ┬ Domain ┬ CompletionQueue, Counter
//!                 │        ├ Region ─ Key
//!                 │        └ Endpoint
//!                 ├ EventQueue
//!                 └ PassiveEndpoint
//! ```
//!
//! An object holds what it was opened on and what is bound to it, so nothing is closed under its
//! user, and using an object after closing it does not compile: `close` takes the object. Where the
//! kernel refuses to close (an operation still moves the memory), the object comes back in
//! [`Returned`]. Dropping an object closes it.
//!
//! Every object is `Send` and `Sync`: operations take `&self` and the kernel orders them.
//!
//! # Example
//!
//! Reads a peer's memory, whose address and key came as the connection's private data:
//!
//! ```no_run
//! use kfabric::*;
//! use std::time::Duration;
//!
//! # fn main() -> kfabric::Result<()> {
//! let wait = Duration::from_secs(10);
//! let device = Device::open()?;
//! let hints = Hints::new().caps(Caps::RMA).destination("192.0.2.7", 7471);
//! let Some(info) = device.info(&hints)?.into_iter().next() else {
//!     panic!("nothing reaches that address");
//! };
//! let fabric = device.fabric(&info)?;
//! let domain = fabric.domain(&info)?;
//! let events = fabric.event_queue(0)?;
//! let done = domain.completion_queue(0, Format::Data)?;
//! let buffer = domain.register(Memory::anonymous(4096)?, Access::READ)?;
//!
//! let ep = domain.endpoint(&EndpointAttr::default())?;
//! ep.bind_event_queue(&events)?;
//! ep.bind_completion_queue(&done, Bind::TRANSMIT | Bind::RECV)?;
//! ep.enable()?;
//! ep.connect(resolve("192.0.2.7", 7471)?, b"may I?")?;
//! let answer = events.wait(wait)?.connected()?;
//!
//! let number = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
//! let remote = RemoteMem { addr: number(0), key: number(8) };
//! ep.read(buffer.all(), remote, 1)?;
//! done.wait(wait)?.ok()?;
//! println!("{:?}", buffer.to_vec(0, 16));
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! Nothing blocks unless it takes a [`Duration`](std::time::Duration). [`EventQueue`] and
//! [`CompletionQueue`] are pollable ([`AsFd`](std::os::fd::AsFd)), for `poll`, `epoll`, io_uring
//! and every async runtime. Completions are read from shared memory, without a system call.
//!
//! # Where the `unsafe` is
//!
//! In the private module `sys`: system calls, mappings, the ring's words. Everything else forbids
//! it. Registered memory is changed by the device and by peers while the program runs, so it is
//! never lent as a slice: [`Memory`] copies in and out.

#![deny(missing_docs, unsafe_code)]

mod addr;
mod atomic;
mod auth;
mod completion;
mod counter;
mod device;
mod endpoint;
mod errno;
mod error;
mod event;
mod fabric;
mod flags;
mod info;
mod memory;
mod object;
mod op;
mod region;
mod rings;
mod sub;
#[allow(unsafe_code, reason = "the one layer that talks to the kernel")]
mod sys;
#[cfg(test)]
mod tests;

pub use addr::resolve;
pub use atomic::{AtomicForm, AtomicOp, Integer};
pub use auth::{netns_cookie, peer_groups, AuthKey};
pub use completion::{CompError, Completion, CompletionQueue};
pub use counter::{Counter, CounterValue};
pub use device::{Device, DEVICE_ENV, DEVICE_PATH};
pub use endpoint::{Endpoint, EndpointAttr, PassiveEndpoint};
pub use errno::Errno;
pub use error::{Error, ObjectId, Result, Returned};
pub use event::{ConnFailure, ConnRequest, Event, EventQueue};
pub use fabric::{Domain, Fabric};
pub use flags::{Access, Bind, Caps, CompFlags, Format, MrMode};
pub use info::{Hints, Info};
pub use memory::Memory;
pub use object::{Kind, LiveObject};
pub use op::{Batch, Op, RemoteMem, Segment, Submitted};
pub use region::{Assigned, Grant, Key, Region, RegionAttr};
pub use sub::SubRegion;

/// The interface's own numbers and structures, for what this crate does not wrap.
pub use kfabric_uapi as uapi;
