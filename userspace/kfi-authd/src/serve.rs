// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon: it hears the kernel, the socket and signals, one after the other.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use kfabric::{Device, Errno};
use kfauth::{cgroup_id, netns_cookie, Agent, Grants, Next, Process, Question, Setting, Terms};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::decide::{decide, Ask, Decision, World};
use crate::event;
use crate::notify;
use crate::policy::Policy;
use crate::requests;
use crate::socket::{Connection, Socket};

/// Questions in a row that are answered before anything else is looked at.
const ROW: usize = 64;

/// What the daemon is told when it starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy file.
    pub policy: PathBuf,
    /// Where the socket is to be.
    pub socket: PathBuf,
}

/// Why it does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The policy.
    #[error(transparent)]
    Policy(#[from] crate::policy::PolicyError),
    /// The device.
    #[error("{what}: {source}")]
    Device {
        /// What was being done.
        what: &'static str,
        /// What it says.
        source: kfabric::Error,
    },
    /// The socket.
    #[error("{}: {source}", path.display())]
    Socket {
        /// Its file.
        path: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// Waiting, or signals.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What failed.
        source: nix::Error,
    },
}

/// This machine's network namespaces.
pub(crate) struct Here;

impl World for Here {
    fn netns(&self, path: &Path) -> Option<u64> {
        let cookie = netns_cookie(path);
        if let Err(e) = &cookie {
            event!(Warning, "network namespace {}: {e}", path.display());
        }
        cookie.ok()
    }
}

/// The daemon at work.
struct Daemon {
    options: Options,
    policy: Policy,
    agent: Agent,
    grants: Grants,
    socket: Socket,
    connections: Vec<Connection>,
}

/// Runs until it is told to end (`SIGTERM`, `SIGINT`) or another agent takes over. Grants stay.
///
/// # Errors
///
/// When it cannot start, or its device fails.
pub fn run(options: &Options) -> Result<(), Failure> {
    let system = |what| move |source| Failure::System { what, source };
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
        mask.add(signal);
    }
    mask.thread_block().map_err(system("block signals"))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&mask, flags).map_err(system("signalfd"))?;

    // The policy first: with a bad one a former agent is left in its place.
    let policy = Policy::load(&options.policy)?;
    let device = |what| move |source| Failure::Device { what, source };
    let file = Device::open().map_err(device("open"))?;
    let agent = Agent::open(&file).map_err(device("become the agent"))?;
    let socket = Socket::bind(&options.socket, policy.agent.socket_gid).map_err(|source| {
        Failure::Socket {
            path: options.socket.clone(),
            source,
        }
    })?;
    let mut daemon = Daemon {
        options: options.clone(),
        grants: Grants::of(&file),
        policy,
        agent,
        socket,
        connections: Vec::new(),
    };
    daemon.in_force("started");
    notify::tell("READY=1");
    let ended = daemon.serve(&signals);
    notify::tell("STOPPING=1");
    ended
}

impl Daemon {
    fn serve(&mut self, signals: &SignalFd) -> Result<(), Failure> {
        loop {
            let mut fds = vec![
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.agent.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            ];
            for connection in &self.connections {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::POLLIN, connection.hears());
                flags.set(PollFlags::POLLOUT, connection.speaks());
                fds.push(PollFd::new(connection.as_fd(), flags));
            }
            // Of a line that is here already nothing more is heard.
            let timeout = match self.connections.iter().any(Connection::has_line) {
                true => PollTimeout::ZERO,
                false => PollTimeout::NONE,
            };
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(source) => {
                    return Err(Failure::System {
                        what: "poll",
                        source,
                    })
                }
            }
            drop(fds);
            while let Ok(Some(signal)) = signals.read_signal() {
                if signal.ssi_signo == Signal::SIGHUP as u32 {
                    self.reload();
                } else {
                    event!(Notice, "ends, as it is told to; grants stay");
                    return Ok(());
                }
            }
            if self.answer_all()? {
                event!(Notice, "another agent has taken over: ends");
                self.socket.leave();
                return Ok(());
            }
            self.hear_all();
        }
    }

    /// Answers what is asked, up to a row; whether another agent has taken over.
    fn answer_all(&self) -> Result<bool, Failure> {
        for _ in 0..ROW {
            match self.agent.next() {
                Ok(Next::Question(question)) => {
                    if self.answer(&question) {
                        return Ok(true);
                    }
                }
                Ok(Next::Nothing) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(source) => {
                    return Err(Failure::Device {
                        what: "take a question",
                        source,
                    })
                }
            }
        }
        Ok(false)
    }

    /// Answers a question; whether another agent has taken over.
    fn answer(&self, question: &Question) -> bool {
        let ask = ask(question);
        let decision = decide(&self.policy, &ask, &Here);
        let key = self.policy.find_key(&question.key);
        let key = key.map_or("unknown", |at| &self.policy.keys[at].name);
        let about = format!(
            "key={key} rights={} pid={} uid={} gid={} cgroup={} domain={} comm={:?}",
            question.rights,
            question.pid,
            question.uid,
            question.gid,
            ask.cgroup.as_deref().unwrap_or("?"),
            question.domain,
            question.comm,
        );
        let why = decision.why(&self.policy);
        let result = match decision {
            Decision::Allow {
                looks,
                rights,
                limits,
                lifetime,
                ..
            } => {
                let terms = Terms {
                    looks,
                    rights,
                    limits,
                    lifetime: Some(lifetime),
                };
                let given = self.agent.allow(question, &terms);
                if let Ok(grant) = &given {
                    event!(Info, "allow {about} grant={grant}: {why}");
                }
                given.map(|_| ())
            }
            Decision::Deny(_) => {
                event!(Notice, "deny {about}: {why}");
                self.agent.deny(question)
            }
        };
        let Err(e) = result else { return false };
        match e.errno() {
            Some(Errno::ESTALE) => return true,
            Some(Errno::ENOENT) => event!(Debug, "{about}: nobody waits for the answer any more"),
            _ => {
                event!(
                    Warning,
                    "deny {about}: {why}, but the grant cannot be made: {e}"
                );
                if let Err(e) = self.agent.deny(question) {
                    event!(Debug, "{about}: {e}");
                }
            }
        }
        false
    }

    /// Puts a policy's own settings into force, and says so.
    fn in_force(&self, how: &str) {
        if let Some(mode) = self.policy.agent.mode {
            let setting = Setting {
                mode: Some(mode),
                ..Setting::default()
            };
            if let Err(e) = self.grants.set(&setting) {
                event!(Error, "cannot set the mode {mode}: {e}");
            }
        }
        let mode = self
            .grants
            .rule()
            .map_or_else(|e| e.to_string(), |rule| rule.mode.to_string());
        event!(
            Notice,
            "{how}: {}: {} keys, {} jobs, mode {mode}",
            self.options.policy.display(),
            self.policy.keys.len(),
            self.policy.jobs.len(),
        );
    }

    /// Takes the policy anew, or keeps the old one.
    fn reload(&mut self) {
        notify::tell(&notify::reloading());
        match Policy::load(&self.options.policy) {
            Ok(policy) => {
                let group = policy.agent.socket_gid;
                if group != self.policy.agent.socket_gid {
                    if let Err(e) = self.socket.admit(group) {
                        event!(Error, "{}: {e}", self.options.socket.display());
                    }
                    // Whoever is there by the old group is there no more.
                    self.connections.retain(|there| there.peer.uid == 0);
                }
                self.policy = policy;
                self.in_force("reloaded");
            }
            Err(e) => {
                event!(Error, "{e}");
                event!(Error, "not reloaded: the old policy stays");
            }
        }
        notify::tell("READY=1");
    }

    fn hear_all(&mut self) {
        while let Some(mut connection) = self.socket.accept(self.connections.len()) {
            let peer = connection.peer;
            let root = nix::unistd::geteuid().as_raw();
            if ![0, root].contains(&peer.uid) && self.policy.agent.socket_gid.is_none() {
                event!(Notice, "pid {} of uid {} is refused", peer.pid, peer.uid);
                connection.refuse(
                    "this is for root and a group that the policy names",
                    "EPERM",
                );
            }
            self.connections.push(connection);
        }
        let (policy, grants) = (&self.policy, &self.grants);
        for connection in &mut self.connections {
            connection.hear(|peer, line| requests::answer(policy, grants, peer, line));
            connection.speak();
        }
        self.connections.retain(|connection| !connection.is_over());
    }
}

/// What the decision goes by: what the kernel tells, and from `/proc` what it does not.
fn ask(question: &Question) -> Ask<'_> {
    let process = question.process();
    let groups = process.as_ref().ok().and_then(|p| p.ids().ok());
    Ask {
        key: &question.key,
        rights: question.rights,
        uid: question.uid,
        gid: question.gid,
        groups: groups.map(|(_, _, groups)| groups).unwrap_or_default(),
        cgroup: process.ok().and_then(|p| cgroup(&p, question.cgroup)),
        netns: question.netns,
    }
}

/// The path of a process's control group, if it is still the one that the kernel says.
fn cgroup(process: &Process, id: u64) -> Option<String> {
    let path = process.cgroup().ok()?;
    (cgroup_id(&path).ok()? == id).then_some(path)
}
