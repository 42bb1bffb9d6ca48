// SPDX-License-Identifier: GPL-2.0
//! What a provider implements, and what it may call.
//!
//! A provider knows hardware. It never sees a file descriptor, a uid or an auth grant: the core
//! has checked all of that, has pinned and charged the memory, has bounded every range, and has
//! reserved the completion before the provider is asked to do anything.
//!
//! # Who calls whom, and in which context
//!
//! * Control calls ([`Provider`], [`DomainOps`], [`RegionOps`], [`KeyOps`] and all of
//!   [`EndpointOps`] but `post` and `cancel`) come from process context and may sleep.
//! * [`EndpointOps::post`] and [`EndpointOps::cancel`] come from any context. They neither sleep
//!   (but for `post` where [`OpDesc::may_sleep`] says so), allocate, nor take a lock that a control
//!   call holds while it sleeps.
//! * A provider calls the sinks ([`ListenSink`], [`EndpointSink`], [`DomainSink`]) from process
//!   context, holding no lock of its own that a control call takes.
//! * [`OpToken::complete`](crate::op::OpToken::complete) may be called from any context.
//!
//! # Life and death
//!
//! Every object a provider hands out keeps what it needs alive by itself (`Arc`s to its device).
//! The core drops keys before their region, endpoints and regions before their domain, and holds
//! a reference on the provider's module until the last of them is gone.
//!
//! When a device goes away the provider ends all that it has on the device by itself (endpoints
//! are torn down and their operations completed with an error, keys are dead, mappings undone),
//! calls [`DomainSink::gone`], and from then on answers `ENODEV`. The objects stay until the core
//! drops them.

use core::any::Any;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    errno::eopnotsupp,
    memory::Memory,
    net::Net,
    op::{
        OpDesc,
        OpToken, //
    },
    pure::{
        atomic::{
            Datatype,
            Form,
            Op, //
        },
        proof::Mac, //
    },
    rings::Offer,
    uapi::{
        InfoEntry,
        SockAddr,
        KFI_KEY_NOTAVAIL, //
    },
};

/// A provider: one kind of hardware or transport, many devices.
///
/// Registered by [`Registration::new`](crate::registry::Registration::new).
pub trait Provider: Send + Sync {
    /// The name that hints and `fabric_open` match, e.g. `"kverbs"`.
    fn name(&self) -> &'static str;

    /// Version, major << 16 | minor. Of two providers of one name only the first is accepted.
    fn version(&self) -> u32;

    /// Lists every (device, address) it could serve from `net`, one entry each.
    ///
    /// It may use `hints` to save work (a destination address chooses a device by route); the
    /// core filters, fills in defaults and ranks afterwards. Fields it must fill: `caps`, `mode`,
    /// `mr_mode`, limits, `ep_type`, `protocol`, `addr_format`, `src_addr`, `fabric_name`,
    /// `domain_name`, `rank`. `prov_name`, versions and `dest_addr` are the core's.
    fn getinfo(&self, net: &Net, hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result;

    /// Opens the device `name` of `fabric` (empty: the provider's first fabric).
    ///
    /// # Errors
    ///
    /// `ENOENT`: no such fabric or device, or not visible from `net`.
    fn open_domain(
        &self,
        net: &Net,
        fabric: &str,
        name: &str,
        sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<dyn DomainOps>>;

    /// Prepares to listen on `addr` (port 0: any); requests arrive only after
    /// [`ListenerOps::listen`].
    fn listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>>;

    /// As [`Provider::listener`], for peers that have an auth key: requests arrive by
    /// [`ListenSink::proven`], when their kernel has proven to have one of `proofs` and ours has
    /// proven to have the same.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it cannot.
    fn proven_listener(
        &self,
        _net: &Net,
        _addr: &SockAddr,
        _proofs: KVec<Arc<dyn Proof>>,
        _sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        Err(eopnotsupp())
    }
}

/// An auth key as a provider has it: it proves to a peer's kernel that we have it, and checks what
/// that proves. The bytes stay the core's.
pub trait Proof: Send + Sync {
    /// The MAC of a text.
    fn prove(&self, text: &[u8]) -> Mac;

    /// Whether it is, in a time that does not tell how wrong it is.
    fn check(&self, text: &[u8], mac: &Mac) -> bool;
}

/// What a domain can do.
#[derive(Clone, Copy, Default)]
pub struct DomainAttr {
    /// `KFI_*` capabilities.
    pub caps: u64,
    /// `KFI_MR_*` modes it requires.
    pub mr_mode: u64,
    /// Bytes in the longest operation.
    pub max_msg_size: u64,
    /// Bytes that may be injected, at most `KFI_INJECT_MAX`.
    pub inject_size: u32,
    /// Operations that a transmit side may hold.
    pub max_tx_size: u32,
    /// Receives that a receive side may hold.
    pub max_rx_size: u32,
    /// Scatter entries of one operation, at most `KFI_IOV_MAX`.
    pub iov_limit: u32,
    /// Application bytes in a connection request.
    pub cm_data_size: u32,
    /// Keys that the device can hold, about.
    pub max_keys: u64,
}

/// An open device.
pub trait DomainOps: Send + Sync {
    /// What it can do.
    fn attr(&self) -> DomainAttr;

    /// How many values an atomic of this kind may have at once; `None` if the device does not do it.
    /// Any context.
    fn atomic(&self, _form: Form, _op: Op, _ty: Datatype) -> Option<usize> {
        None
    }

    /// Bytes in one piece of memory that is not registered
    /// ([`OpToken::lent`](crate::op::OpToken::lent)), at most, where one-sided operations take it.
    fn lent_max(&self) -> Option<u32> {
        None
    }

    /// Whether operations may complete inside a call that posts, of this endpoint or its peer's, so
    /// that who posts is told of them before the call returns.
    fn completes_in_post(&self) -> bool {
        false
    }

    /// Maps pinned memory for local use. No key, no remote reach (P1).
    ///
    /// `access` are the `KFI_*` access bits the region may ever be used for. For user memory the
    /// caller is the owner's process ([`Memory::user`]). `group`: the group whose endpoints are
    /// to use it; without one it is the domain's own. Endpoints of other groups of the domain may
    /// use it too where the provider can do that.
    fn register(
        &self,
        mem: &Arc<Memory>,
        access: u64,
        group: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<dyn RegionOps>>;

    /// Makes a group. What is exported in a group peers reach only by its endpoints, and by its
    /// endpoints they reach nothing else; what is not in any is in the domain's own.
    ///
    /// With a `proof` an endpoint of the group connects only to a peer whose kernel has proven to have
    /// that auth key, and has ours prove it ([`proof`](crate::pure::proof) says how). A peer that has
    /// not is `EKEYREJECTED` to the sink.
    ///
    /// A key's value never comes again. But one that `reuses` values has one endpoint in it and never
    /// another, and what a group of that kind has had as a value may come again in another one of that
    /// kind, at another address, where only that one's peer reaches anything by it.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it cannot keep any apart.
    fn group(&self, _proof: Option<Arc<dyn Proof>>, _reuses: bool) -> Result<Arc<dyn GroupOps>> {
        Err(eopnotsupp())
    }

    /// Gives slots of this domain their keys, in order, as a pipeline where the device can.
    ///
    /// They are [`CHAIN`](crate::key::CHAIN) at most, and more than one only of those that
    /// [chain](KeyOps::chains). The core has checked ranges and rights, that no slot is in the
    /// batch twice and that none has a key, and leaves the slots alone meanwhile. When it returns
    /// the keys are valid everywhere.
    ///
    /// # Errors
    ///
    /// How many from the start have their keys, and why the next one has none. Beyond those no
    /// slot has a key, nor can a peer reach anything by what may have come of it.
    fn assign_keys(&self, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)>;

    /// What is posted on the transmit sides of this domain's endpoints after this has returned is
    /// accepted and held, until [`DomainOps::resume`] was called as often as this was until then.
    /// Asked for only where [`KeyOps::foresee`] answers. Does not sleep.
    fn hold(&self) {}

    /// See [`DomainOps::hold`].
    fn resume(&self) {}

    /// Makes an endpoint; with `request`, the accepting side of it. `group`: what peers reach by
    /// it; without one that is what the domain's own group exports.
    ///
    /// On success the request is used up; on failure it is as before.
    fn endpoint(
        &self,
        net: &Net,
        attr: &mut EndpointAttr,
        request: Option<&Arc<dyn ConnRequestOps>>,
        group: Option<&Arc<dyn GroupOps>>,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<dyn EndpointOps>>;
}

/// A group of a domain: see [`DomainOps::group`]. What is in it keeps what it needs of it.
pub trait GroupOps: Send + Sync {
    /// For the provider to find its own type again.
    fn as_any(&self) -> &dyn Any;

    /// Whether some of the values that the device has for keys are used up in it, and are not while
    /// another one is new: it reuses them.
    fn is_worn(&self) -> bool {
        false
    }
}

/// How large an endpoint is to be. In: wanted. Out: what it got, no less.
#[derive(Clone, Copy, Default)]
pub struct EndpointAttr {
    /// Operations of the transmit side.
    pub tx_size: u32,
    /// Receives of the receive side.
    pub rx_size: u32,
    /// Scatter entries of one operation.
    pub iov_limit: u32,
    /// Bytes that may be injected.
    pub inject_size: u32,
    /// Address to connect from; `len` 0: by route.
    pub src_addr: SockAddr,
}

/// Memory as one device knows it. Dropping it ends the mapping; the core does so after all keys
/// and operations are over.
pub trait RegionOps: Send + Sync {
    /// For the provider to find its own type again.
    fn as_any(&self) -> &dyn Any;

    /// Reserves all that an assignment on the slot needs, so that none has to allocate or to make
    /// anything. Its keys are exported in `group`; without one in the region's.
    fn alloc_key(self: Arc<Self>, group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>>;
}

/// What a peer needs to reach an assigned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: u64,
    /// The address of the range's first byte.
    pub remote_addr: u64,
}

impl KeyValue {
    /// What there is where there is no key.
    pub const NONE: Self = Self {
        key: KFI_KEY_NOTAVAIL,
        remote_addr: 0,
    };
}

/// A key that a slot is to get: one of [`DomainOps::assign_keys`].
pub struct KeyAssign<'a> {
    /// The slot.
    pub slot: &'a dyn KeyOps,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of peers (`KFI_REMOTE_*` bits).
    pub access: u64,
    /// The key is to end with the first operation that is done by it: the second one finds none,
    /// even if both come at once. Only where [`DomainAttr::caps`] has `KFI_SINGLE_USE_KEYS`.
    pub once: bool,
    /// Out: the key.
    pub value: KeyValue,
}

/// A key slot. It gets its key by [`DomainOps::assign_keys`]. The core asks for one thing at a time
/// of one slot. Dropping it revokes.
pub trait KeyOps: Send + Sync {
    /// For the provider to find its own type again.
    fn as_any(&self) -> &dyn Any;

    /// Whether a key for [offset, offset + len) is made together with others, in bounded time. One
    /// that is not, because it may wait for the program, is asked for alone.
    fn chains(&self, _offset: u64, _len: u64) -> bool {
        true
    }

    /// Whether [`KeyOps::foresee`] answers.
    fn foresees(&self) -> bool {
        false
    }

    /// What the next assignment will give, for a window that [chains](KeyOps::chains). The core
    /// asks for that assignment, or to [forget](KeyOps::forget) it, before anything else.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it cannot know, or cannot hold operations ([`DomainOps::hold`]).
    fn foresee(&self, _offset: u64, _len: u64) -> Result<KeyValue> {
        Err(eopnotsupp())
    }

    /// What was foreseen is not to be, and is never to be given: somebody was told.
    fn forget(&self) {}

    /// Whether it had a key for one use, which is used up.
    fn used(&self) -> bool {
        false
    }

    /// Ends the key. After the return no byte is read or written through it (P3). Does nothing
    /// on a slot without a key. Cannot fail: where hardware refuses, the provider ends whatever
    /// stands between (the connection, the device).
    fn revoke(&self);

    /// Reserves anew what the last key used up, if it did ([`RegionOps::alloc_key`]). The core
    /// calls it behind each [`KeyOps::revoke`] and each failed assignment of a slot that may get
    /// another key; it may come beside anything else on the slot. What cannot be had the next
    /// assignment has to try to have. It is had when this returns, which waits for no registration.
    ///
    /// `later`: the caller is in a hurry, and a worker is to do it.
    fn renew(&self, _later: bool) {}
}

/// A queue pair and its connection.
///
/// Tokens: what [`EndpointOps::post`] accepted it completes exactly once, in whatever state. When
/// a connection ends the first failure keeps its own error; the rest gets `ECANCELED`.
pub trait EndpointOps: Send + Sync {
    /// Readies it to take receives. Once, before connect or accept.
    fn enable(&self) -> Result;

    /// Starts connecting; the outcome goes to the sink.
    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result;

    /// Accepts the request it was made with; the outcome goes to the sink.
    fn accept(&self, data: &[u8]) -> Result;

    /// Starts to end the connection; the sink hears of it. Nothing to do when there is none.
    fn shutdown(&self) -> Result;

    /// Posts one operation. Any context.
    ///
    /// # Errors
    ///
    /// Gives the token back. `EAGAIN`: full, try when something has completed. `ENOTCONN`.
    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), (Error, OpToken)>;

    /// Completes one posted receive of this context with `ECANCELED`.
    fn cancel(&self, _context: u64) -> Result {
        Err(eopnotsupp())
    }

    /// Its own address, as far as known (`len` 0: not yet).
    fn local_addr(&self) -> SockAddr;

    /// Its peer's address, as far as known.
    fn peer_addr(&self) -> SockAddr;

    /// Ends it for good, in bounded time: after the return every token is completed and every call
    /// of [`OpToken::complete`] has come back (a token holds queues, whose end may sleep), the sink
    /// is not called again, and no hardware is left. Idempotent.
    fn close(&self);
}

/// A listening address.
pub trait ListenerOps: Send + Sync {
    /// Starts to listen.
    fn listen(&self, backlog: u32) -> Result;

    /// The address, with the port chosen.
    fn local_addr(&self) -> SockAddr;

    /// Ends it: after the return the sink is not called again. Idempotent.
    fn close(&self);
}

/// A connection request that was not yet answered. Dropping it refuses it.
pub trait ConnRequestOps: Send + Sync {
    /// For the provider to find its own type again.
    fn as_any(&self) -> &dyn Any;

    /// Refuses, with application data for the peer. The request is used up.
    fn reject(&self, data: &[u8]) -> Result;
}

/// Where a listener delivers; the core implements it.
pub trait ListenSink: Send + Sync {
    /// A peer asks. `info` names the domain that an accepting endpoint must be opened on, and
    /// both addresses (`src_addr` ours, `dest_addr` the peer's).
    ///
    /// # Errors
    ///
    /// Nobody takes it (queue full, closing): the provider drops the request.
    fn request(&self, req: Arc<dyn ConnRequestOps>, info: &InfoEntry, data: &[u8]) -> Result;

    /// As [`ListenSink::request`], of a peer that has proven to have an auth key: the listener's
    /// `index`th.
    fn proven(
        &self,
        req: Arc<dyn ConnRequestOps>,
        info: &InfoEntry,
        data: &[u8],
        index: usize,
    ) -> Result;

    /// The device that the address is on is gone, and no request comes any more. Called at most once,
    /// and not after the listener was closed.
    fn gone(&self);
}

/// Where an endpoint tells of its connection; the core implements it.
pub trait EndpointSink: Send + Sync {
    /// Connected, with the peer's application data (connecting side). Called at most once.
    fn connected(&self, data: &[u8]);

    /// Connecting failed: positive errno (`ECONNREFUSED` when the peer refused, `ETIMEDOUT`,
    /// `EHOSTUNREACH`, …), the provider's code, the refuser's data. Instead of `connected`.
    fn conn_error(&self, err: u32, prov_errno: u32, data: &[u8]);

    /// The connection ended, by either side or by failure (then a positive errno). At most once,
    /// after `connected`.
    fn shutdown(&self, err: u32);

    /// For a provider that has both ends on this host: what it may [join](crate::rings::join) with
    /// the other end's, before it calls `connected` of either.
    fn rings(&self) -> Option<Arc<Offer>> {
        None
    }
}

/// Where a domain tells of its device; the core implements it.
pub trait DomainSink: Send + Sync {
    /// The device is gone; see the module's text. Called at most once.
    fn gone(&self);

    /// Whether a program opened the domain. What the provider makes of the device's for it is charged to
    /// the calling task's rdma cgroup then, as uverbs does. Consumers in the kernel are not charged: there
    /// the current task is not the one that uses the device.
    fn is_program(&self) -> bool {
        false
    }
}
