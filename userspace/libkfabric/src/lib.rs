// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe Rust over `/dev/kfabric`, the kernel-mode libfabric.
//!
//! # Dependency
//!
//! Programs call this crate `kfabric`. The package has another name, because the kernel module's
//! crate is `kfabric`, too:
//!
//! ```toml
//! [dependencies]
//! kfabric = { package = "libkfabric", path = "…/userspace/libkfabric" }
//! ```
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
//! An object keeps the objects that it was opened on and those that are bound to it. So no object
//! is closed while another one uses it. Using an object after closing it does not compile: `close`
//! takes the object by value. If the kernel refuses to close an object (an operation still moves
//! the memory), `close` returns the object in [`Returned`]. Dropping an object closes it.
//!
//! Every object is `Send` and `Sync`: operations take `&self` and the kernel orders them.
//!
//! # Example
//!
//! Reads a peer's memory. The address and the key arrive as the connection's private data:
//!
//! ```no_run
//! # use libkfabric as kfabric;
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
//! A function blocks only if it takes a [`Duration`](std::time::Duration). [`EventQueue`] and
//! [`CompletionQueue`] are pollable ([`AsFd`](std::os::fd::AsFd)): use `poll`, `epoll`, io_uring or
//! any async runtime. Completions are read from shared memory, without a system call.
//!
//! # Where the `unsafe` is
//!
//! Only the private module `sys` contains `unsafe` code: system calls, mappings and the words of
//! the ring. All other modules forbid it. The device and peers change registered memory while the
//! program runs, so this crate never returns registered memory as a slice: [`Memory`] copies in and
//! out.
//!
//! Functions that are `unsafe` themselves are for memory that the program owns, given by address:
//! [`Domain::register_raw`], [`Endpoint::post_raw`] and [`Memory::from_raw_parts`].

#![deny(missing_docs, unsafe_code)]

mod addr;
mod atomic;
mod auth;
mod completion;
mod counter;
mod device;
mod domain;
mod endpoint;
mod errno;
mod error;
mod event;
mod fabric;
mod failure;
mod flags;
mod handle;
mod info;
mod memory;
mod object;
mod op;
mod provider_code;
mod raw;
mod region;
mod remote;
mod revoke;
mod rings;
#[allow(unsafe_code, reason = "the one layer that talks to the kernel")]
mod sys;
#[cfg(test)]
mod tests;
mod written;

pub use addr::resolve;
pub use atomic::{AtomicForm, AtomicOp, Integer};
pub use auth::key::AuthKey;
pub use auth::{netns_cookie, peer_groups};
pub use completion::{Completion, CompletionQueue, QueueWait, Taken};
pub use counter::{Counter, CounterValue, CounterWatch};
pub use device::{Device, DEVICE_ENV, DEVICE_PATH};
pub use domain::Domain;
pub use endpoint::{Endpoint, EndpointAttr, PassiveEndpoint};
pub use errno::Errno;
pub use error::{Error, Result, Returned};
pub use event::{ConnRequest, Event, EventQueue};
pub use fabric::Fabric;
pub use failure::{CompError, ConnFailure};
pub use flags::{Access, Bind, Caps, CompFlags, Format, MrMode, Persistence, Reach};
pub use info::{Hints, Info};
pub use memory::Memory;
pub use object::{Kind, LiveObject, ObjectId};
pub use op::{Batch, Op, Segment, Submitted};
pub use provider_code::{completion_text, connection_text};
pub use raw::{Piece, RawOp};
pub use region::{Assigned, Grant, Key, Region, RegionAttr, SubRegion};
pub use remote::RemoteMem;
pub use written::{Written, WrittenFull};

/// The structures and constants of the kernel interface, for calls that this crate does not wrap.
pub use kfabric_uapi as uapi;
