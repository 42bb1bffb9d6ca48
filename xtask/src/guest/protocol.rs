// SPDX-License-Identifier: MIT OR Apache-2.0

//! What xtask and a guest's first process say to each other.
//!
//! This file is compiled into both. A guest reads its [`Config`] from
//! `/kfi/guest-N.json`; then, over the virtio port [`SYS_PORT`], one JSON
//! object a line, it sends [`Event`]s and gets [`Order`]s:
//!
//! ```text
//! guest  booted, networks up, modules loaded      Ready
//! xtask  when all guests are                      Go
//! guest  a node's command ended                   Exit
//! xtask  when all commands have                   Finish
//! guest  looked for leftovers, unloaded modules   Done, and powers off
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The port for events and orders.
pub const SYS_PORT: &str = "kfi.sys";
/// The port on which a program in the guest asks something of its machine: a
/// line `link off`, `link on`, `freeze SECONDS` or `kill`, or `trace NAME` and
/// `trace` to write where each instruction lies that is executed between them
/// (to `trace.NAME` in the folder that is `/host`); answered by `ok` or
/// `error …` (`kill` by nothing).
pub const CTL_PORT: &str = "kfi.ctl";

/// The port a node's standard output or error goes to.
pub fn output_port(node: u8, stream: Stream) -> String {
    match stream {
        Stream::Out => format!("kfi.{node}.out"),
        Stream::Err => format!("kfi.{node}.err"),
    }
}

/// One of a command's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How many nodes there are, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// One node in one guest, its own peer.
    #[serde(rename = "1")]
    One,
    /// Two nodes, in two network namespaces of one guest.
    #[serde(rename = "netns")]
    Netns,
    /// Two nodes, a guest each.
    #[serde(rename = "2")]
    Two,
}

impl Topology {
    /// The name used on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Netns => "netns",
            Self::Two => "2",
        }
    }
}

/// What a guest is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// The topology it is part of.
    pub topology: Topology,
    /// The nodes in this guest.
    pub nodes: Vec<u8>,
    /// Module files in `/kfi/ko` to be loaded, in this order.
    pub load: Vec<String>,
    /// Every module of ours in `/kfi/ko`, in loading order: none of them may
    /// be loaded, or in use, at the end.
    pub ours: Vec<String>,
    /// The command.
    pub argv: Vec<String>,
    /// Each node's command gets a terminal.
    pub interactive: bool,
    /// The terminal's rows and columns.
    pub size: Option<(u16, u16)>,
    /// Whether a folder of the host is to be mounted at `/host`.
    pub host: bool,
    /// More of the command's environment.
    pub env: BTreeMap<String, String>,
}

/// What a guest tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Networks are up and modules loaded.
    Ready,
    /// It could not be made ready.
    Fault {
        /// Why.
        text: String,
    },
    /// A node's command ended.
    Exit {
        /// Which node's.
        node: u8,
        /// Its exit status, 128 + signal if one ended it.
        status: i32,
    },
    /// Leftovers have been looked for, the modules unloaded.
    Done {
        /// What was left that should not have been.
        left: Vec<String>,
        /// What was not as it should be when the modules were unloaded.
        unload: Vec<String>,
    },
}

/// What xtask orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum Order {
    /// Start the commands.
    Go,
    /// Look for leftovers, unload, power off.
    Finish,
}
