// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demo: two nodes and one file, with keys that are assigned and revoked.
//!
//! Run one instance on each of two nodes. The environment variables `KFI_NODE` (1 or 2), `KFI_ADDR`
//! (the node's own address) and `KFI_PEER` (the other node's) tell them apart. Node 1 pins a file's
//! page cache, and assigns keys as node 2 requests them (`exporter`). Node 2 reads through these
//! keys, and checks that accesses beyond a key are refused (`reader`). `KFI_DEMO_FILE` names
//! another file.
//!
//! Each step is printed with its measured figure. The exit status is 0 only if every step
//! succeeded.

#![forbid(unsafe_code)]

mod exporter;
mod reader;
mod steps;

use std::net::IpAddr;
use std::process::ExitCode;

use kfi::error::{Failure, Result};

/// Port of the demo.
const PORT: u16 = 7472;

/// Addresses of the two nodes.
struct Nodes {
    own: IpAddr,
    peer: IpAddr,
}

fn address(name: &str) -> Result<IpAddr> {
    let value = std::env::var(name)
        .map_err(|_| Failure::Usage(format!("the environment variable {name} is not set")))?;
    let found = kfabric::resolve(&value, 0).map_err(|source| Failure::Fabric {
        what: "resolve",
        source,
    })?;
    Ok(found.ip())
}

fn run() -> Result<()> {
    let nodes = Nodes {
        own: address("KFI_ADDR")?,
        peer: address("KFI_PEER")?,
    };
    match std::env::var("KFI_NODE").as_deref() {
        Ok("1") => exporter::run(&nodes),
        Ok("2") => reader::run(&nodes),
        _ => Err(Failure::Usage("KFI_NODE must be 1 or 2".to_owned())),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            kfi::say::complain(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
