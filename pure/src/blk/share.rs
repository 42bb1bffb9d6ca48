// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shares of a target by source address: which connections a port keeps, and which get memory.
//!
//! A connection is a stranger until its peer has said which client it is. A stranger costs the target a
//! queue pair, and proves nothing. So each source address has a share of the strangers, and of all
//! connections. A newcomer beyond its address's share replaces the oldest stranger of that address. A
//! newcomer beyond the share of all replaces the oldest stranger of the address that has most strangers.

/// The address that connections are counted by: an IPv4 address, or the first half of an IPv6 address,
/// because one host may be given all addresses of a /64.
pub type Source = [u8; 8];

/// Returns the source of a host's address, which has 4 or 16 bytes.
pub fn source(host: &[u8]) -> Source {
    let mut source = [0; 8];
    for (to, from) in source.iter_mut().zip(host) {
        *to = *from;
    }
    source
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The peer has not said yet which client it is.
    Stranger,
    /// The connection was a stranger, and is being ended.
    Ending,
    /// The peer has said which client it is.
    Client,
}

/// The decision about a request to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The port accepts the request.
    Accept,
    /// The port accepts the request, and ends the connection of this index.
    InsteadOf(usize),
    /// The port refuses the request.
    Refuse,
}

/// Numbers of connections, at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All connections.
    pub all: usize,
    /// Connections of one source.
    pub of_source: usize,
    /// Strangers. As many again may be ending.
    pub strangers: usize,
    /// Strangers of one source. As many again may be ending.
    pub strangers_of_source: usize,
}

/// Decides about a request to connect from `from`, where `lanes` are the connections, oldest first.
pub fn decide(
    lanes: impl Iterator<Item = (Source, Stage)> + Clone,
    from: Source,
    limits: &Limits,
) -> Verdict {
    let (mut all, mut strange, mut ending) = (0, 0, 0);
    let (mut own, mut own_strange, mut own_ending) = (0, 0, 0);
    let mut oldest = None;
    for (index, (source, stage)) in lanes.clone().enumerate() {
        let ours = source == from;
        all += 1;
        own += usize::from(ours);
        match stage {
            Stage::Stranger => {
                strange += 1;
                own_strange += usize::from(ours);
                if ours && oldest.is_none() {
                    oldest = Some(index);
                }
            }
            Stage::Ending => {
                ending += 1;
                own_ending += usize::from(ours);
            }
            Stage::Client => {}
        }
    }
    if all >= limits.all || own >= limits.of_source || own_ending >= limits.strangers_of_source {
        return Verdict::Refuse;
    }
    // Connections end slower than requests come: until then only a source without strangers gets in.
    if ending >= limits.strangers && own_strange + own_ending > 0 {
        return Verdict::Refuse;
    }
    if own_strange >= limits.strangers_of_source {
        return oldest.map_or(Verdict::Refuse, Verdict::InsteadOf);
    }
    if strange >= limits.strangers {
        return heaviest(lanes).map_or(Verdict::Refuse, Verdict::InsteadOf);
    }
    Verdict::Accept
}

/// Returns the oldest stranger of the source that has most strangers.
fn heaviest(lanes: impl Iterator<Item = (Source, Stage)> + Clone) -> Option<usize> {
    let mut found = None;
    let mut most = 0;
    for (index, lane) in lanes.clone().enumerate() {
        if lane.1 != Stage::Stranger {
            continue;
        }
        let count = lanes.clone().filter(|of| *of == lane).count();
        if count > most {
            most = count;
            found = Some(index);
        }
    }
    found
}

/// Whether a connection gets `pages` of memory while the host can spare `spare`, and connections of the
/// same source have `own` times as many pages. The spare pages must be twice the pages that the source would
/// have then. So the first connection gets half of the spare memory at most, and all connections of a source
/// get a third of the memory that was spare before the first.
pub fn fits(spare: usize, pages: usize, own: usize) -> bool {
    let would_have = own.saturating_add(1);
    spare >= would_have.saturating_mul(pages).saturating_mul(2)
}
