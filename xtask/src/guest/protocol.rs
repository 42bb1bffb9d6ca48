// SPDX-License-Identifier: MIT OR Apache-2.0

//! Protocol between xtask and a guest's first process, compiled into both.
//!
//! A guest reads its [`Config`] from `/kfi/guest-N.json`. Then it sends [`Event`]s and receives
//! [`Order`]s over the virtio port [`SYS_PORT`], one JSON object a line:
//!
//! ```text
//! guest  booted, networks up, modules loaded      Ready
//! xtask  when all guests are ready                Go
//! guest  a node's command ended                   Exit
//! xtask  when all commands have ended             Finish
//! guest  checked for leftovers, unloaded modules  Done, and powers off
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The port of events and orders.
pub const SYS_PORT: &str = "kfi.sys";
/// The port of control requests of programs in the guest, one a line.
///
/// - `link off`, `link on`, `freeze SECONDS`, `kill SECONDS`.
/// - `trace NAME` starts a trace of every executed instruction's address, in `trace.NAME` in the
///   folder `/host`; `trace` ends it.
///
/// The answer is `ok` or `error …`; a `kill` has no answer.
pub const CTL_PORT: &str = "kfi.ctl";

/// Returns the port of a node's standard output or error.
pub fn output_port(node: u8, stream: Stream) -> String {
    match stream {
        Stream::Out => format!("kfi.{node}.out"),
        Stream::Err => format!("kfi.{node}.err"),
    }
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Number and placement of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// One node in one guest, which is its own peer.
    #[serde(rename = "1")]
    One,
    /// Two nodes, in two network namespaces of one guest.
    #[serde(rename = "netns")]
    Netns,
    /// Two nodes, one guest each.
    #[serde(rename = "2")]
    Two,
}

impl Topology {
    /// Returns the name used on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Netns => "netns",
            Self::Two => "2",
        }
    }
}

/// The kind of RDMA device of each node: the value of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// Software RoCE.
    #[default]
    Rxe,
    /// Software iWARP.
    Siw,
}

impl Device {
    /// Returns the type of `rdma link`, which is the value of `--device` too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// Configuration of a guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// The topology of the run.
    pub topology: Topology,
    /// The nodes in this guest.
    pub nodes: Vec<u8>,
    /// The kind of RDMA device.
    pub device: Device,
    /// Module files of the kernel in `/kfi/ko` to load first. They stay loaded.
    pub kernel: Vec<String>,
    /// Module files in `/kfi/ko` to load, in this order.
    pub load: Vec<String>,
    /// All our modules in `/kfi/ko`, in loading order. At the end none of them may be loaded or in
    /// use.
    pub ours: Vec<String>,
    /// The command to run.
    pub argv: Vec<String>,
    /// Each node's command has a terminal.
    pub interactive: bool,
    /// Rows and columns of the terminal.
    pub size: Option<(u16, u16)>,
    /// Mount a folder of the host at `/host`.
    pub host: bool,
    /// Tags of file systems to mount under `/opt`.
    pub layers: Vec<String>,
    /// Additional environment variables of the command.
    pub env: BTreeMap<String, String>,
}

/// A message of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Networks are up and modules are loaded.
    Ready,
    /// The guest could not get ready.
    Fault {
        /// The reason.
        text: String,
    },
    /// A node's command has ended.
    Exit {
        /// The node of the command.
        node: u8,
        /// Exit status, or 128 + signal if a signal killed the command.
        status: i32,
    },
    /// The guest has checked for leftovers and unloaded the modules.
    Done {
        /// Leftovers that should not exist.
        left: Vec<String>,
        /// Faults found when the modules were unloaded.
        unload: Vec<String>,
    },
}

/// A message of xtask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum Order {
    /// Start the commands.
    Go,
    /// Check for leftovers, unload the modules, power off.
    Finish,
}
