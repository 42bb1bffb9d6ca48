// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi auth`: grants of auth keys, and the mode.
//!
//! By default an administrator's calls on the device. With `--daemon`, requests to kfi-authd, by
//! any user that may use its socket.

mod list;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use kfabric::Device;
use kfauth::protocol::{
    Answer, ChangeRequest, CheckRequest, GrantRequest, KeyRef, ProcessRef, Request, WhomRequest,
    SOCKET,
};
use kfauth::{
    parse_size, parse_time, time_text, AuthKey, Client, Grant, Grants, Limits, Mode, Process,
    Rights, Rule, Setting, Whom,
};

use super::{print, print_json};
use crate::error::{During, Failure, OnFile, Result};
use crate::say::printable;

/// Options of `kfi auth`.
#[derive(Debug, Args)]
pub struct Auth {
    /// Use kfi-authd's socket instead of the device
    #[arg(long, global = true, value_name = "SOCKET", num_args = 0..=1, require_equals = true, default_missing_value = SOCKET)]
    pub daemon: Option<PathBuf>,
    /// The command to run
    #[command(subcommand)]
    pub what: What,
}

/// The commands of `kfi auth`.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Show grants: processes covered, limits and use, and remaining lifetime
    List,
    /// Install a grant, and print its number
    Grant(GrantArgs),
    /// Replace a grant's limits, its lifetime, or both
    Change(ChangeArgs),
    /// Revoke grants: after the return their endpoints are closed and their keys revoked
    Revoke(RevokeArgs),
    /// Ask kfi-authd for its policy's decision on a process; changes nothing
    Check(CheckArgs),
    /// Show the mode and the agent, or set the mode
    Mode(ModeArgs),
}

/// The auth key. Its bytes are never an argument: all users can read arguments.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct KeyArgs {
    /// File with the auth key, as bytes or as `hex:` and digits; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Name of the auth key in kfi-authd's policy
    #[arg(short = 'n', long, value_name = "NAME")]
    pub key: Option<String>,
}

/// Limits of a grant.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Bytes in regions, such as 64G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub pinned: Option<u64>,
    /// Number of keys
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: Option<u32>,
    /// Number of endpoints
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub endpoints: Option<u32>,
}

/// Options of `kfi auth grant`. The grant covers processes that meet all conditions.
#[derive(Debug, Args)]
pub struct GrantArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub key: KeyArgs,
    /// Only this user, by number
    #[arg(long)]
    pub uid: Option<u32>,
    /// Only this group, by number
    #[arg(long)]
    pub gid: Option<u32>,
    /// Only this control group and those below: its path from the hierarchy's root
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    /// Only this network namespace: a file, such as /run/netns/NAME
    #[arg(long, value_name = "PATH")]
    pub netns: Option<String>,
    /// Only this process
    #[arg(long)]
    pub pid: Option<u32>,
    /// Rights: endpoints, keys; by default both
    #[arg(long, value_name = "RIGHT,…", value_delimiter = ',')]
    pub rights: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub limits: LimitArgs,
    /// Lifetime, such as 90s, 8h or 7d; by default unlimited
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub lifetime: Option<Duration>,
}

/// Options of `kfi auth change`.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Number of the grant
    pub grant: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub limits: LimitArgs,
    /// Remove all limits
    #[arg(long, conflicts_with_all = ["pinned", "keys", "endpoints"])]
    pub unlimited: bool,
    /// Lifetime from now on; 0 is unlimited
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub lifetime: Option<Duration>,
}

/// Options of `kfi auth revoke`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct RevokeArgs {
    /// Numbers of the grants; a grant that has ended is skipped
    pub grants: Vec<u64>,
    /// All grants that are answers of an agent
    #[arg(long)]
    pub answered: bool,
    /// All grants
    #[arg(long)]
    pub all: bool,
}

/// Options of `kfi auth check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub key: KeyArgs,
    /// The process; by default kfi itself
    #[arg(long)]
    pub pid: Option<u32>,
    /// Rights: endpoints, keys; by default both
    #[arg(long, value_name = "RIGHT,…", value_delimiter = ',')]
    pub rights: Vec<String>,
}

/// Options of `kfi auth mode`.
#[derive(Debug, Args)]
pub struct ModeArgs {
    /// open: no grant is needed; enforce: every use needs a grant
    pub mode: Option<Mode>,
    /// Time within which the agent must answer
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Time for which a denial is remembered
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub deny: Option<Duration>,
    /// Maximum number of upcalls of one process that may be pending
    #[arg(long, value_name = "COUNT")]
    pub asks: Option<u32>,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        Some(0) | None => Err("a limit is 1 at least; for no limit, leave it out".to_owned()),
        Some(size) => Ok(size),
    }
}

fn time(text: &str) -> std::result::Result<Duration, String> {
    parse_time(text)
}

impl KeyArgs {
    /// The auth key for the daemon, which knows names.
    fn to_ref(&self) -> Result<KeyRef> {
        match &self.key {
            Some(name) => Ok(KeyRef::Name(name.clone())),
            None => Ok(KeyRef::Hex(self.bytes()?)),
        }
    }

    /// The auth key for the device, which does not know names.
    fn bytes(&self) -> Result<AuthKey> {
        match &self.key_file {
            Some(path) if path == Path::new("-") => {
                Ok(AuthKey::from_reader(std::io::stdin().lock())?)
            }
            Some(path) => Ok(AuthKey::from_file(path)?),
            None => Err(Failure::Usage(
                "only kfi-authd knows names of auth keys: add --daemon, or use --key-file"
                    .to_owned(),
            )),
        }
    }
}

impl LimitArgs {
    fn limits(&self) -> Limits {
        Limits {
            pinned: self.pinned,
            keys: self.keys,
            endpoints: self.endpoints,
        }
    }
}

fn rights(names: &[String]) -> Result<Rights> {
    if names.is_empty() {
        return Ok(Rights::all());
    }
    let mut rights = Rights::empty();
    for name in names {
        rights |= name.parse().map_err(Failure::Usage)?;
    }
    Ok(rights)
}

/// The receiver of the requests.
enum Asked {
    Device(Grants),
    Daemon(Client),
}

impl Asked {
    fn open(args: &Auth) -> Result<Self> {
        Ok(match &args.daemon {
            Some(path) => Self::Daemon(Client::connect(path)?),
            None => Self::Device(Grants::of(&Device::open().during("open")?)),
        })
    }

    fn grant(&mut self, args: &GrantArgs) -> Result<u64> {
        let process = args.pid.map(|pid| {
            let process = Process::open(pid);
            process.on_file("find", Path::new(&format!("/proc/{pid}")))
        });
        let process = process.transpose()?;
        match self {
            Self::Device(grants) => {
                let key = args.key.bytes()?;
                let rights = rights(&args.rights)?;
                let limits = args.limits.limits();
                let whom = whom(args, process)?;
                let id = grants.add(&key, &whom, rights, &limits, args.lifetime);
                id.during("grant")
            }
            Self::Daemon(client) => {
                let request = Request::Grant(GrantRequest {
                    key: args.key.to_ref()?,
                    whom: WhomRequest {
                        uid: args.uid,
                        gid: args.gid,
                        cgroup: args.cgroup.clone(),
                        netns: args.netns.clone(),
                        process: process.as_ref().map(|held| ProcessRef {
                            pid: held.pid(),
                            id: held.id(),
                        }),
                    },
                    rights: args.rights.clone(),
                    limits: args.limits.limits(),
                    lifetime: args.lifetime.map(time_text),
                });
                match client.ask(&request)? {
                    Answer::Grant(id) => Ok(id),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }

    fn change(&mut self, args: &ChangeArgs) -> Result<()> {
        let limits = args.limits.limits();
        let limits = (args.unlimited || limits != Limits::default()).then_some(limits);
        if limits.is_none() && args.lifetime.is_none() {
            let what =
                "nothing to change: --pinned, --keys, --endpoints, --unlimited or --lifetime";
            return Err(Failure::Usage(what.to_owned()));
        }
        let lifetime = args.lifetime.map(|time| (!time.is_zero()).then_some(time));
        match self {
            Self::Device(grants) => {
                let changed = grants.change(args.grant, limits.as_ref(), lifetime);
                changed.during("change")
            }
            Self::Daemon(client) => {
                let unlimited = || "unlimited".to_owned();
                let request = Request::Change(ChangeRequest {
                    grant: args.grant,
                    limits,
                    lifetime: lifetime.map(|time| time.map_or_else(unlimited, time_text)),
                });
                match client.ask(&request)? {
                    Answer::Changed(_) => Ok(()),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }

    fn revoke(&mut self, ids: Vec<u64>) -> Result<u64> {
        match self {
            Self::Device(grants) => {
                let mut revoked = 0;
                for id in ids {
                    match grants.revoke(id) {
                        Ok(()) => revoked += 1,
                        Err(e) if e.errno() == Some(kfabric::Errno::ENOENT) => {}
                        Err(e) => return Err(e).during("revoke"),
                    }
                }
                Ok(revoked)
            }
            Self::Daemon(client) => match client.ask(&Request::Revoke { grants: ids })? {
                Answer::Revoked(revoked) => Ok(revoked),
                other => Err(unexpected(&other)),
            },
        }
    }

    fn list(&mut self) -> Result<Vec<Grant>> {
        match self {
            Self::Device(grants) => grants.list().during("list grants"),
            Self::Daemon(client) => match client.ask(&Request::List)? {
                Answer::Grants(grants) => Ok(grants),
                other => Err(unexpected(&other)),
            },
        }
    }

    fn rule(&mut self, args: &ModeArgs) -> Result<Rule> {
        match self {
            Self::Device(grants) => {
                let setting = Setting {
                    mode: args.mode,
                    timeout: args.timeout,
                    deny: args.deny,
                    asks: args.asks,
                };
                grants.set(&setting).during("mode")
            }
            Self::Daemon(client) => {
                if args.timeout.is_some() || args.deny.is_some() || args.asks.is_some() {
                    let what = "only the mode itself is set by the daemon";
                    return Err(Failure::Usage(what.to_owned()));
                }
                let request = args.mode.map_or(Request::Rule, Request::Mode);
                match client.ask(&request)? {
                    Answer::Rule(rule) => Ok(rule),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::Protocol {
        what: "ask kfi-authd",
        got: format!("{answer:?}"),
    }
}

fn whom(args: &GrantArgs, process: Option<Process>) -> Result<Whom> {
    let mut whom = Whom::new();
    if let Some(uid) = args.uid {
        whom = whom.uid(uid);
    }
    if let Some(gid) = args.gid {
        whom = whom.gid(gid);
    }
    if let Some(path) = &args.cgroup {
        whom = whom
            .cgroup(path)
            .on_file("find the control group", Path::new(path))?;
    }
    if let Some(path) = &args.netns {
        let path = Path::new(path);
        whom = whom.netns(path).on_file("open", path)?;
    }
    if let Some(process) = process {
        whom = whom.process(process);
    }
    if whom.looks().is_empty() {
        let what = "a grant needs a condition: --uid, --gid, --cgroup, --netns or --pid";
        return Err(Failure::Usage(what.to_owned()));
    }
    Ok(whom)
}

fn check(args: &CheckArgs, daemon: Option<&Path>, json: bool) -> Result<()> {
    // Only kfi-authd knows the policy.
    let mut client = Client::connect(daemon.unwrap_or(Path::new(SOCKET)))?;
    let request = Request::Check(CheckRequest {
        key: args.key.to_ref()?,
        pid: args.pid.unwrap_or_else(std::process::id),
        rights: args.rights.clone(),
    });
    let verdict = match client.ask(&request)? {
        Answer::Verdict(verdict) => verdict,
        other => return Err(unexpected(&other)),
    };
    if json {
        print_json(&verdict)?;
    } else if verdict.allowed {
        let limits = verdict.limits.unwrap_or_default();
        let lifetime = verdict.lifetime.as_deref().unwrap_or("unlimited");
        print(&format!(
            "allowed: {}, {limits} lifetime={}\n",
            printable(&verdict.why),
            printable(lifetime)
        ))?;
    }
    if verdict.allowed {
        return Ok(());
    }
    Err(Failure::Denied(verdict.why))
}

/// Runs `kfi auth`.
///
/// # Errors
///
/// The errors of the kernel or the daemon. Also if a file cannot be read.
pub fn run(args: &Auth, json: bool) -> Result<()> {
    if let What::Check(check_args) = &args.what {
        return check(check_args, args.daemon.as_deref(), json);
    }
    let mut asked = Asked::open(args)?;
    match &args.what {
        What::List => list::grants(&asked.list()?, json),
        What::Grant(args) => {
            let id = asked.grant(args)?;
            if json {
                return print_json(&serde_json::json!({ "grant": id }));
            }
            print(&format!("{id}\n"))
        }
        What::Change(args) => asked.change(args),
        What::Revoke(args) => {
            let mut ids = args.grants.clone();
            if args.answered || args.all {
                let there = asked.list()?;
                let wanted = there.iter().filter(|g| args.all || g.answered);
                ids.extend(wanted.map(|grant| grant.id));
            }
            let revoked = asked.revoke(ids)?;
            if json {
                return print_json(&serde_json::json!({ "revoked": revoked }));
            }
            print(&format!("{revoked} revoked\n"))
        }
        What::Mode(args) => list::rule(&asked.rule(args)?, json),
        What::Check(_) => Ok(()),
    }
}
