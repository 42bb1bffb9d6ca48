// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi auth`: grants of auth keys, and the mode.
//!
//! An administrator works straight on the device; with `--daemon` it is kfi-authd that is asked, by
//! whoever may use its socket.

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
    /// Ask kfi-authd by its socket instead of the device
    #[arg(long, global = true, value_name = "SOCKET", num_args = 0..=1, require_equals = true, default_missing_value = SOCKET)]
    pub daemon: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub what: What,
}

/// What `kfi auth` can do.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Show the grants: whom they cover, limits and use, and when they end
    List,
    /// Install a grant, and print its number
    Grant(GrantArgs),
    /// Change a grant's limits, all of them, or its end
    Change(ChangeArgs),
    /// Take grants back: their endpoints are closed and their keys revoked when it returns
    Revoke(RevokeArgs),
    /// Ask kfi-authd what its policy says of a process; nothing is given
    Check(CheckArgs),
    /// Show the mode and the agent, or set the mode
    Mode(ModeArgs),
}

/// Which auth key. Its bytes are never an argument: everybody sees those.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct KeyArgs {
    /// The auth key in this file, as its bytes or as `hex:` and digits; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The auth key that kfi-authd's policy calls so
    #[arg(short = 'n', long, value_name = "NAME")]
    pub key: Option<String>,
}

/// How much a grant allows at once.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Bytes in regions, such as 64G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub pinned: Option<u64>,
    /// Keys
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: Option<u32>,
    /// Endpoints
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub endpoints: Option<u32>,
}

/// Options of `kfi auth grant`. Of whom it is for, all must be true.
#[derive(Debug, Args)]
pub struct GrantArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub key: KeyArgs,
    /// For this user, by number
    #[arg(long)]
    pub uid: Option<u32>,
    /// For this group, by number
    #[arg(long)]
    pub gid: Option<u32>,
    /// For this control group and those below: its path from the hierarchy's root
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    /// For this network namespace: a file, such as /run/netns/NAME
    #[arg(long, value_name = "PATH")]
    pub netns: Option<String>,
    /// For this process
    #[arg(long)]
    pub pid: Option<u32>,
    /// To do this: endpoints, keys; all of it if nothing is said
    #[arg(long, value_name = "RIGHT,…", value_delimiter = ',')]
    pub rights: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub limits: LimitArgs,
    /// For so long, such as 90s, 8h or 7d; without end if nothing is said
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub lifetime: Option<Duration>,
}

/// Options of `kfi auth change`.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// The grant
    pub grant: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub limits: LimitArgs,
    /// No limits any more
    #[arg(long, conflicts_with_all = ["pinned", "keys", "endpoints"])]
    pub unlimited: bool,
    /// For so long from now on; 0 is without end
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub lifetime: Option<Duration>,
}

/// Options of `kfi auth revoke`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct RevokeArgs {
    /// The grants; one that is over is passed over
    pub grants: Vec<u64>,
    /// All that an agent has given
    #[arg(long)]
    pub answered: bool,
    /// All there are
    #[arg(long)]
    pub all: bool,
}

/// Options of `kfi auth check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub key: KeyArgs,
    /// The process; the one that runs kfi if nothing is said
    #[arg(long)]
    pub pid: Option<u32>,
    /// To do this: endpoints, keys; all of it if nothing is said
    #[arg(long, value_name = "RIGHT,…", value_delimiter = ',')]
    pub rights: Vec<String>,
}

/// Options of `kfi auth mode`.
#[derive(Debug, Args)]
pub struct ModeArgs {
    /// open: no grant is needed; enforce: nothing without one
    pub mode: Option<Mode>,
    /// How long an agent has for an answer
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// For how long a denial is remembered
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub deny: Option<Duration>,
    /// Questions of one process that may wait
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
    /// For the daemon, which knows names.
    fn to_ref(&self) -> Result<KeyRef> {
        match &self.key {
            Some(name) => Ok(KeyRef::Name(name.clone())),
            None => Ok(KeyRef::Hex(self.bytes()?)),
        }
    }

    /// For the device, which does not.
    fn bytes(&self) -> Result<AuthKey> {
        match &self.key_file {
            Some(path) if path == Path::new("-") => {
                Ok(AuthKey::from_reader(std::io::stdin().lock())?)
            }
            Some(path) => Ok(AuthKey::from_file(path)?),
            None => Err(Failure::Usage(
                "names of auth keys are kfi-authd's: add --daemon, or use --key-file".to_owned(),
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

/// Who is asked.
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
        let what = "for whom? --uid, --gid, --cgroup, --netns or --pid is wanted";
        return Err(Failure::Usage(what.to_owned()));
    }
    Ok(whom)
}

fn check(args: &CheckArgs, daemon: Option<&Path>, json: bool) -> Result<()> {
    // Only kfi-authd knows its policy.
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

/// Runs it.
///
/// # Errors
///
/// The kernel's or the daemon's; a file that cannot be read.
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
