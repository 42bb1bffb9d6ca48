// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demo: two nodes, one file, keys that come and go.
//!
//! Run at once on two nodes, each told who it is by the environment: `KFI_NODE` (1 or 2),
//! `KFI_ADDR` (its own address) and `KFI_PEER` (the other's). Node 1 pins a file's cached pages and
//! hands out keys as node 2 asks for them (`exporter`); node 2 reads by those keys, and checks that
//! what a key does not give is refused (`reader`). `KFI_DEMO_FILE` names another file.
//!
//! Every step is printed as it happens, with its measured figure. The exit status is 0 only if all
//! of it was as it should be.

#![forbid(unsafe_code)]

mod exporter;
mod reader;
mod steps;

use std::net::IpAddr;
use std::process::ExitCode;

use kfi::error::{Failure, Result};

/// Port of the demo.
const PORT: u16 = 7472;

/// What a node knows of the two.
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
        _ => Err(Failure::Usage("KFI_NODE is to be 1 or 2".to_owned())),
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
