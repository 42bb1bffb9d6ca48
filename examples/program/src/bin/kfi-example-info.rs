// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the offers of providers.
//!
//! ```text
//! kfi-example-info [ADDRESS]
//! ```
//!
//! With an address, only offers that reach the address are listed.

#![forbid(unsafe_code)]

use kfabric::{Caps, Device, Hints};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut hints = Hints::new().caps(Caps::MSG | Caps::RMA);
    if let Some(address) = std::env::args().nth(1) {
        hints = hints.destination(&address, 0);
    }
    // The best offer is the first one.
    for offer in Device::open()?.info(&hints)? {
        let keys = match offer.caps().contains(Caps::DYNAMIC_KEYS) {
            true => "keys by assign and revoke",
            false => "one key for each region",
        };
        let source = offer.source().map(|at| at.ip().to_string());
        println!(
            "provider {}, device {}, address {}: {keys}",
            offer.provider(),
            offer.domain(),
            source.as_deref().unwrap_or("any")
        );
    }
    Ok(())
}
