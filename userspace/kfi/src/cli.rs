// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::error::{During, Result};
use crate::session::Select;
use crate::stats::parse_size;
use crate::wire::PORT;

const AFTER: &str = "\
Exit status:
  0  all was well
  1  the operation failed
  2  wrong usage
  3  no kfabric device, no permission, or the device went away
  4  nothing offered matches what was asked for
  5  no connection: address, refusal, time-out, peer gone
  6  data arrived that is not what was sent
  7  the policy denies it (auth check)

Environment:
  KFABRIC_DEVICE  the device file, instead of /dev/kfabric

Errors go to standard error as `error: what: reason (ERRNO)` with a line `hint: …` where there is one.";

/// Shows, tests and uses kfabric, the kernel-mode libfabric.
#[derive(Debug, Parser)]
#[command(name = "kfi", version, after_help = AFTER, propagate_version = true)]
pub struct Cli {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// List what providers offer, as fi_info does
    Info(Info),
    /// Answer `kfi ping`
    Serve(Serve),
    /// Measure latency and bandwidth to a `kfi serve`
    Ping(Ping),
    /// Let peers get a file's bytes, or put new ones, straight from or into memory
    Export(Export),
    /// Read a peer's exported file by one-sided reads
    Get(Get),
    /// Write a file into a peer's export by one-sided writes
    Put(Put),
    /// Show live objects and who owns them
    Show(Show),
    /// Auth keys: who may use which, and how much
    Auth(crate::cmd::auth::Auth),
    /// Remote block devices: export, connect, fence
    Blk(crate::cmd::blk::Blk),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; made if it is not there
        dir: PathBuf,
    },
}

/// Options of `kfi info`.
#[derive(Debug, Default, Args)]
pub struct Info {
    /// Only this provider
    #[arg(short, long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Only this endpoint type: FI_EP_MSG, or msg
    #[arg(short = 't', long = "ep_type", alias = "ep-type", value_name = "TYPE")]
    pub ep_type: Option<String>,
    /// Capabilities needed, for example `FI_MSG|FI_RMA` or msg,rma
    #[arg(short, long, value_name = "CAP|CAP")]
    pub caps: Option<String>,
    /// Only this domain (device)
    #[arg(short, long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Only this fabric
    #[arg(short, long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Only what reaches this address
    #[arg(short, long, value_name = "ADDRESS")]
    pub node: Option<String>,
    /// … at this port
    #[arg(short = 'P', long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Only what has this local address
    #[arg(short, long, value_name = "ADDRESS")]
    pub source: Option<String>,
    /// Everything there is to know
    #[arg(short, long)]
    pub verbose: bool,
    /// Only the providers and their versions
    #[arg(short, long)]
    pub list: bool,
    /// The environment variables that matter
    #[arg(short, long)]
    pub env: bool,
}

/// Where to listen.
#[derive(Debug, Args)]
pub struct ListenArgs {
    /// Local address to listen on; all of them if none is given
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Port
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// Serve one connection, then end
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub common: Common,
}

impl ListenArgs {
    /// The address, resolved; `None`: all of them.
    ///
    /// # Errors
    ///
    /// A name that cannot be resolved.
    pub fn address(&self) -> Result<Option<SocketAddr>> {
        let resolve = |name| kfabric::resolve(name, self.port).during("resolve");
        self.listen.as_deref().map(resolve).transpose()
    }
}

/// Whom to connect to.
#[derive(Debug, Args)]
pub struct PeerArgs {
    /// The peer's address or name
    #[arg(value_name = "ADDRESS")]
    pub peer: String,
    /// Port
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub common: Common,
}

impl PeerArgs {
    /// The peer, resolved.
    ///
    /// # Errors
    ///
    /// A name that cannot be resolved.
    pub fn address(&self) -> Result<SocketAddr> {
        kfabric::resolve(&self.peer, self.port).during("resolve")
    }
}

/// What every command on a connection takes.
#[derive(Debug, Args)]
pub struct Common {
    /// Use this provider; else the best that reaches the peer, and to listen all there are
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Use this domain (device)
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Give up when nothing happens for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

impl Common {
    /// Which provider and device.
    pub fn select(&self) -> Select {
        Select {
            provider: self.provider.clone(),
            domain: self.domain.clone(),
        }
    }

    /// How long to wait for anything.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.timeout.clamp(1, 1 << 31))
    }
}

/// Options of `kfi serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Most memory to register for one client, for example 64M or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub max_memory: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub listen: ListenArgs,
}

/// What `kfi ping` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Messages: half of a round trip; bandwidth one way
    Send,
    /// One-sided writes
    Write,
    /// One-sided reads
    Read,
}

/// Options of `kfi ping`.
#[derive(Debug, Args)]
pub struct Ping {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// What to measure
    #[arg(short = 'o', long, value_enum, default_value_t = Test::Send)]
    pub operation: Test,
    /// Measure bandwidth, with many operations under way, instead of latency
    #[arg(short, long)]
    pub bandwidth: bool,
    /// Bytes of one operation: a size such as 64, 4K, 1M, a list of them, or all
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "64")]
    pub size: String,
    /// Operations to measure
    #[arg(short = 'I', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub iterations: u64,
    /// Operations before the measurement
    #[arg(short, long, value_name = "COUNT", default_value_t = 10)]
    pub warmup: u64,
    /// Check that the data that arrives is what was sent
    #[arg(short = 'c', long)]
    pub verify: bool,
}

impl Ping {
    /// The sizes asked for.
    ///
    /// # Errors
    ///
    /// What is wrong with them, in words.
    pub fn sizes(&self) -> std::result::Result<Vec<u64>, String> {
        if self.size == "all" {
            return Ok((0..=22).map(|shift| 1 << shift).collect());
        }
        self.size.split(',').map(parse_size).collect()
    }
}

/// Options of `kfi export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The file
    pub file: PathBuf,
    /// Let peers put new content; each complete and verified put replaces the file
    #[arg(short, long)]
    pub writable: bool,
    /// Largest put to take, for example 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16G")]
    pub max_size: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub listen: ListenArgs,
}

/// Options of `kfi get`.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// Where to put it: a file, which is replaced when all is there and keeps its mode and owner; a
    /// device or a FIFO, which takes it as it comes; - is standard output
    pub file: PathBuf,
    /// Bytes of one read
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256K")]
    pub chunk: u64,
}

/// Options of `kfi put`.
#[derive(Debug, Args)]
pub struct Put {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// What to put: a regular file; - is standard input
    pub file: PathBuf,
    /// Bytes of one write
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256K")]
    pub chunk: u64,
}

/// What `kfi show` can show in more detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Key slots, and what the modules have counted of keys (where debugfs may be read)
    Keys,
}

/// Options of `kfi show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Only these, in more detail
    #[arg(value_enum)]
    pub what: Option<What>,
    /// Only objects of this process
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<u32>,
    /// A flat table instead of a tree
    #[arg(short, long)]
    pub table: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        let parse = |size: &str| {
            let cli = Cli::parse_from(["kfi", "ping", "192.0.2.1", "-S", size]);
            let Command::Ping(ping) = cli.command else {
                unreachable!("asked for ping")
            };
            ping.sizes()
        };
        assert_eq!(parse("1,4K"), Ok(vec![1, 4096]));
        assert_eq!(parse("all").map(|s| (s.len(), s[22])), Ok((23, 4 << 20)));
        assert!(parse("1,,2").is_err());
    }
}
