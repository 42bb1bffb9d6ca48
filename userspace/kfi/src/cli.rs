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
  0  success
  1  the operation failed; the doctor has a finding
  2  wrong usage
  3  no kfabric device, no permission, or the device was removed
  4  no offer of a provider matches the request
  5  no connection: address, refusal, time-out, or the peer disconnected
  6  the data received differs from the data sent
  7  the policy denies the request (auth check)

Environment:
  KFABRIC_DEVICE  the device file, instead of /dev/kfabric

Errors go to standard error as `error: what: reason (ERRNO)`; a line `hint: …` follows if there is advice.";

/// Examples of each command, in its help and its manual page.
mod examples {
    pub(super) const KFI: &str = "\
Examples:
  kfi info
  kfi --json show";
    pub(super) const INFO: &str = "\
Examples:
  kfi info
  kfi info --provider kverbs --verbose
  kfi info --node 10.0.0.1 --caps msg,rma";
    pub(super) const SERVE: &str = "\
Examples:
  kfi serve --listen 10.0.0.1 &
  kfi ping 10.0.0.1";
    pub(super) const PING: &str = "\
Examples:
  kfi serve &
  kfi ping 10.0.0.1 --size 64,4K
  kfi ping 10.0.0.1 --operation read --bandwidth --size 64K --iterations 100";
    pub(super) const EXPORT: &str = "\
Examples:
  kfi export data.img --writable --port 7472 &
  kfi get 10.0.0.1 copy.img --port 7472
  kfi export /dev/dax0.0 --writable --port 7473 &";
    pub(super) const GET: &str = "\
Examples:
  kfi export data.img &
  kfi get 10.0.0.1 copy.img
  kfi get 10.0.0.1 - | sha256sum";
    pub(super) const PUT: &str = "\
Examples:
  kfi export data.img --writable &
  kfi put 10.0.0.1 new.img
  kfi export /dev/dax0.0 --writable --port 7473 &
  kfi put 10.0.0.1 new.img --port 7473 --durable";
    pub(super) const SHOW: &str = "\
Examples:
  kfi show
  kfi show keys
  kfi show --table --pid $$";
    pub(super) const COMPLETIONS: &str = "\
Examples:
  kfi completions bash >kfi.bash";
}

/// Returns the text after the options of `kfi --help`.
fn after() -> String {
    format!("{AFTER}\n\n{}", examples::KFI)
}

/// Shows, tests and uses kfabric, the kernel-mode libfabric.
#[derive(Debug, Parser)]
#[command(name = "kfi", version, after_help = after(), propagate_version = true)]
pub struct Cli {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The command to run
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `kfi`.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// List the offers of providers, as fi_info does
    Info(Info),
    /// Answer `kfi ping`
    Serve(Serve),
    /// Measure latency and bandwidth to a `kfi serve`
    Ping(Ping),
    /// Let peers read a file, or replace it, by one-sided operations
    Export(Export),
    /// Read a peer's exported file by one-sided reads
    Get(Get),
    /// Write a file into a peer's export by one-sided writes
    Put(Put),
    /// Show live objects and their owners
    Show(Show),
    /// Manage auth keys: grants of their use, limits, and the mode
    Auth(crate::cmd::auth::Auth),
    /// Remote block devices: export, connect, fence
    Blk(crate::cmd::blk::Blk),
    /// Find faults of the installation and of the path to a peer, and the commands that mend them
    Doctor(Doctor),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; created if missing
        dir: PathBuf,
    },
}

/// Options of `kfi info`.
#[derive(Debug, Default, Args)]
#[command(after_help = examples::INFO)]
pub struct Info {
    /// Only this provider
    #[arg(short, long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Only this endpoint type: FI_EP_MSG, or msg
    #[arg(short = 't', long = "ep_type", alias = "ep-type", value_name = "TYPE")]
    pub ep_type: Option<String>,
    /// Only offers with these capabilities, for example `FI_MSG|FI_RMA` or msg,rma
    #[arg(short, long, value_name = "CAP|CAP")]
    pub caps: Option<String>,
    /// Only this domain (device)
    #[arg(short, long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Only this fabric
    #[arg(short, long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Only offers that reach this address
    #[arg(short, long, value_name = "ADDRESS")]
    pub node: Option<String>,
    /// Port of the address to reach
    #[arg(short = 'P', long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Only offers with this local address
    #[arg(short, long, value_name = "ADDRESS")]
    pub source: Option<String>,
    /// Show all fields
    #[arg(short, long)]
    pub verbose: bool,
    /// Only the providers and their versions
    #[arg(short, long)]
    pub list: bool,
    /// Show the environment variables that kfi reads
    #[arg(short, long)]
    pub env: bool,
}

/// The address to listen on.
#[derive(Debug, Args)]
pub struct ListenArgs {
    /// Local address to listen on; by default all local addresses
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Port to listen on
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// Serve one connection, then exit
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub common: Common,
}

impl ListenArgs {
    /// The address, resolved; `None` for all local addresses.
    ///
    /// # Errors
    ///
    /// If the name cannot be resolved.
    pub fn address(&self) -> Result<Option<SocketAddr>> {
        let resolve = |name| kfabric::resolve(name, self.port).during("resolve");
        self.listen.as_deref().map(resolve).transpose()
    }
}

/// The peer to connect to.
#[derive(Debug, Args)]
pub struct PeerArgs {
    /// The peer's address or name
    #[arg(value_name = "ADDRESS")]
    pub peer: String,
    /// The peer's port
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub common: Common,
}

impl PeerArgs {
    /// The peer's address, resolved.
    ///
    /// # Errors
    ///
    /// If the name cannot be resolved.
    pub fn address(&self) -> Result<SocketAddr> {
        kfabric::resolve(&self.peer, self.port).during("resolve")
    }
}

/// Options of every command that uses a connection.
#[derive(Debug, Args)]
pub struct Common {
    /// Use this provider; by default the best one that reaches the peer, and for listening all
    /// providers
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Use this domain (device)
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Fail after so many seconds without progress
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

impl Common {
    /// The provider and device to use.
    pub fn select(&self) -> Select {
        Select {
            provider: self.provider.clone(),
            domain: self.domain.clone(),
        }
    }

    /// Timeout of each wait.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.timeout.clamp(1, 1 << 31))
    }
}

/// Options of `kfi serve`.
#[derive(Debug, Args)]
#[command(after_help = examples::SERVE)]
pub struct Serve {
    /// Maximum memory to register for one initiator, for example 64M or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub max_memory: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub listen: ListenArgs,
}

/// The operation that `kfi ping` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Messages: half of a round trip; for bandwidth, one direction
    Send,
    /// One-sided writes
    Write,
    /// One-sided reads
    Read,
}

/// Options of `kfi ping`.
#[derive(Debug, Args)]
#[command(after_help = examples::PING)]
pub struct Ping {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// The operation to measure
    #[arg(short = 'o', long, value_enum, default_value_t = Test::Send)]
    pub operation: Test,
    /// Measure bandwidth, with many operations outstanding, instead of latency
    #[arg(short, long)]
    pub bandwidth: bool,
    /// Bytes of one operation: a size such as 64, 4K or 1M, a list of sizes, or all
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "64")]
    pub size: String,
    /// Number of operations to measure
    #[arg(short = 'I', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub iterations: u64,
    /// Number of operations before the measurement
    #[arg(short, long, value_name = "COUNT", default_value_t = 10)]
    pub warmup: u64,
    /// Check that the data received equals the data sent
    #[arg(short = 'c', long)]
    pub verify: bool,
}

impl Ping {
    /// The sizes to measure.
    ///
    /// # Errors
    ///
    /// The fault of the argument, in words.
    pub fn sizes(&self) -> std::result::Result<Vec<u64>, String> {
        if self.size == "all" {
            return Ok((0..=22).map(|shift| 1 << shift).collect());
        }
        self.size.split(',').map(parse_size).collect()
    }
}

/// Options of `kfi export`.
#[derive(Debug, Args)]
#[command(after_help = examples::EXPORT)]
pub struct Export {
    /// The file to export, or a device-dax device
    pub file: PathBuf,
    /// Let peers replace the file; a put takes effect when it is complete and verified. A device is
    /// written in place (`kfi put --durable`), and must be persistent memory
    #[arg(short, long)]
    pub writable: bool,
    /// Maximum bytes of a put, for example 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16G")]
    pub max_size: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub listen: ListenArgs,
}

/// Options of `kfi get`.
#[derive(Debug, Args)]
#[command(after_help = examples::GET)]
pub struct Get {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// Where to store the content. A file is replaced when the content is complete, and keeps its
    /// mode and owner. A device or a FIFO gets the content as it arrives. - is standard output
    pub file: PathBuf,
    /// Bytes of one read
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256K")]
    pub chunk: u64,
}

/// Options of `kfi put`.
#[derive(Debug, Args)]
#[command(after_help = examples::PUT)]
pub struct Put {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub peer: PeerArgs,
    /// The file to put: a regular file; - is standard input
    pub file: PathBuf,
    /// Bytes of one write
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256K")]
    pub chunk: u64,
    /// Write into persistent memory: the peer exports a device-dax device (`kfi export --writable
    /// /dev/dax0.0`), and a put that succeeds survives a power failure of the peer. The device's bytes
    /// after the file stay as they are
    #[arg(long)]
    pub durable: bool,
}

/// Text after the options of `kfi doctor`, in its help and its page.
const DOCTOR: &str = "\
Each line is a check: `ok`, `unknown` (it could not be checked), `warning` (not everything works, or not well) or
`error`. Below a finding, `mend:` precedes the command that mends the fault. If the doctor cannot know the right
command, `check:` precedes a command that shows more. Commands of ip, tc, rdma, chgrp and chmod last until the next
boot. The exit status is 1 if there is a warning or an error.

With --peer, datagrams to an unused UDP port show whether packets as long as those of the RDMA device arrive. A
connection request to a service that no program offers shows whether the RDMA ports reach each other. No program of
the peer notices.

Examples:
  kfi doctor
  kfi doctor --peer 192.0.2.2";

/// Options of `kfi doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR)]
pub struct Doctor {
    /// Also check the path to this host
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Option<String>,
    /// Wait so many seconds for the answer to a connection request
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub timeout: u64,
}

/// Objects that `kfi show` can show in more detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Key slots, counts of the key values of each domain, and the modules' counters of keys (if debugfs is readable)
    Keys,
}

/// Options of `kfi show`.
#[derive(Debug, Args)]
#[command(after_help = examples::SHOW)]
pub struct Show {
    /// Only these objects, in more detail
    #[arg(value_enum)]
    pub what: Option<What>,
    /// Only objects of this process
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Print a flat table instead of a tree
    #[arg(short, long)]
    pub table: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_passes_clap_checks() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ping_sizes_read_lists_and_all() {
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
