// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon: it hears the kernel, the socket and signals, one after the other.
//!
//! The loop itself waits for nothing else: what may take long is done beside it (`Work`), so that
//! one's revocation, or a path that does not answer, keeps no other's question waiting.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfabric::{Device, Errno};
use kfauth::protocol::Answer;
use kfauth::{netns_cookie, Agent, Grants, Next, Question, Setting, Terms};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::answers::{self, Answers, Given};
use crate::decide::{decide, Ask, Decision, World};
use crate::event;
use crate::notify::{self, Watchdog};
use crate::policy::{Policy, PolicyError};
use crate::requests;
use crate::socket::{refusal, Connection, Socket};
use crate::work::Work;

/// Questions in a row that are answered before anything else is looked at.
const ROW: usize = 64;
/// How long a decision may wait for all the files of network namespaces that it looks at.
const LOOK: Duration = Duration::from_millis(50);

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

/// Files that have not answered yet; each is set when it has.
type Silent = RefCell<HashMap<PathBuf, Arc<AtomicBool>>>;

/// As [`Here`], for a decision: a file that does not answer soon cannot be told.
struct Soon<'a> {
    silent: &'a Silent,
    /// What is left of [`LOOK`].
    left: Cell<Duration>,
}

impl World for Soon<'_> {
    fn netns(&self, path: &Path) -> Option<u64> {
        let mut silent = self.silent.borrow_mut();
        silent.retain(|_, answered| !answered.load(Ordering::Acquire));
        if silent.contains_key(path) {
            return None;
        }
        let answered = Arc::new(AtomicBool::new(false));
        let (send, receive) = channel();
        let (done, file) = (answered.clone(), path.to_owned());
        let look = move || {
            let _ = send.send(Here.netns(&file));
            done.store(true, Ordering::Release);
        };
        if let Err(e) = std::thread::Builder::new().spawn(look) {
            event!(Warning, "network namespace {}: {e}", path.display());
            return None;
        }
        let begun = Instant::now();
        let found = receive.recv_timeout(self.left.get());
        let left = self.left.get().saturating_sub(begun.elapsed());
        self.left.set(left);
        if found.is_err() {
            event!(Warning, "network namespace {}: no answer", path.display());
            silent.insert(path.to_owned(), answered);
        }
        found.ok().flatten()
    }
}

/// What was done beside the loop.
enum Done {
    /// A request of a connection.
    Request(u64, Answer),
    /// A policy was read.
    Policy(Result<Policy, PolicyError>),
    /// Answers were looked through, for a new policy or not.
    Answers(Answers, bool),
}

/// The daemon at work.
struct Daemon {
    options: Options,
    policy: Arc<Policy>,
    agent: Agent,
    grants: Grants,
    socket: Socket,
    connections: Vec<Connection>,
    work: Work<Done>,
    /// What has been allowed, but for what is just being looked through.
    answers: Answers,
    /// Whether answers are being looked through, and how many were left the last time.
    revising: bool,
    kept: usize,
    /// A policy is being read; another is to be read after it.
    loading: bool,
    again: bool,
    /// Answers are to be looked through for the policy in force, and then it is.
    stricter: bool,
    silent: Silent,
    watchdog: Watchdog,
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
    let work = Work::new().map_err(|source| Failure::Socket {
        path: PathBuf::from("a pair of sockets"),
        source,
    })?;
    let mut daemon = Daemon {
        options: options.clone(),
        grants: Grants::of(&file),
        policy: Arc::new(policy),
        agent,
        socket,
        connections: Vec::new(),
        work,
        answers: Answers::default(),
        revising: false,
        kept: 0,
        loading: false,
        again: false,
        stricter: false,
        silent: Silent::default(),
        watchdog: Watchdog::from_env(),
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
                PollFd::new(self.work.as_fd(), PollFlags::POLLIN),
            ];
            let now = Instant::now();
            if self.socket.rests(now).is_none() {
                fds.push(PollFd::new(self.socket.as_fd(), PollFlags::POLLIN));
            }
            for connection in &self.connections {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::POLLIN, connection.hears());
                flags.set(PollFlags::POLLOUT, connection.speaks());
                // One that hangs up while it is not heard would be reported for ever.
                if !flags.is_empty() {
                    fds.push(PollFd::new(connection.as_fd(), flags));
                }
            }
            match poll(&mut fds, self.patience(now)) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(source) => {
                    return Err(Failure::System {
                        what: "poll",
                        source,
                    })
                }
            }
            drop(fds);
            self.watchdog.beat(Instant::now());
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
            while let Some(done) = self.work.next() {
                self.done(done);
            }
            self.hear_all();
        }
    }

    /// How long there is nothing to do unless something comes.
    fn patience(&self, now: Instant) -> PollTimeout {
        // Of a line that is here already nothing more is heard.
        if self.connections.iter().any(Connection::has_line) {
            return PollTimeout::ZERO;
        }
        let ends = self.connections.iter().filter_map(Connection::deadline);
        let first = ends.chain(self.watchdog.next()).min();
        let first = first.map(|first| first.saturating_duration_since(now));
        let rest = self.socket.rests(now);
        let Some(left) = first.into_iter().chain(rest).min() else {
            return PollTimeout::NONE;
        };
        // A millisecond later rather than too early.
        let left = left.as_millis().saturating_add(1);
        PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
    }

    /// Answers what is asked, up to a row; whether another agent has taken over.
    fn answer_all(&mut self) -> Result<bool, Failure> {
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
    fn answer(&mut self, question: &Question) -> bool {
        let ask = ask(question);
        let world = Soon {
            silent: &self.silent,
            left: Cell::new(LOOK),
        };
        let decision = decide(&self.policy, &ask, &world);
        let key = self.policy.find_key(&question.key);
        let key = key.map_or("unknown", |at| &self.policy.keys[at].name);
        let about = format!(
            "key={key} rights={} pid={} uid={} gid={} cgroup={} domain={} comm={:?}",
            question.rights,
            question.pid,
            question.uid,
            question.gid,
            ask.cgroup.as_deref().unwrap_or(b"?").escape_ascii(),
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
                    let gave = answers::Terms {
                        looks,
                        rights,
                        limits,
                        lifetime,
                    };
                    self.answers.add(*grant, Given::new(&ask, gave));
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

    /// Has the policy read anew.
    fn reload(&mut self) {
        if self.loading || self.stricter {
            self.again = true;
            return;
        }
        notify::tell(&notify::reloading());
        self.loading = true;
        let failed = |path: &Path, what: &str| {
            let fault = crate::policy::Fault {
                line: 0,
                what: what.to_owned(),
            };
            Done::Policy(Err(PolicyError {
                path: path.to_owned(),
                faults: vec![fault],
            }))
        };
        let path = self.options.policy.clone();
        let panicked = failed(&path, "it could not be read");
        let read = move || Done::Policy(Policy::load(&path));
        if let Err(e) = self.work.start(panicked, read) {
            let failed = failed(&self.options.policy, &e.to_string());
            self.done(failed);
        }
    }

    /// Goes on with what was done beside the loop.
    fn done(&mut self, done: Done) {
        match done {
            Done::Request(id, answer) => {
                let mut connections = self.connections.iter_mut();
                // It may have been dropped meanwhile.
                if let Some(connection) = connections.find(|there| there.id() == id) {
                    connection.answered(&answer);
                }
            }
            Done::Policy(Ok(policy)) => {
                self.loading = false;
                let group = policy.agent.socket_gid;
                if group != self.policy.agent.socket_gid {
                    if let Err(e) = self.socket.admit(group) {
                        event!(Error, "{}: {e}", self.options.socket.display());
                    }
                    // Whoever is there by the old group is there no more.
                    self.connections.retain(|there| there.is_admitted(group));
                }
                self.policy = Arc::new(policy);
                self.in_force("reloaded");
                self.stricter = true;
                self.revise();
            }
            Done::Policy(Err(e)) => {
                self.loading = false;
                event!(Error, "{e}");
                event!(Error, "not reloaded: the old policy stays");
                let first = e.to_string();
                let first = first.lines().next().unwrap_or_default();
                self.reloaded(
                    &format!("not reloaded, the old policy stays: {first}"),
                    Errno::EINVAL,
                );
            }
            Done::Answers(mut answers, for_policy) => {
                self.revising = false;
                self.kept = answers.len();
                answers.join(std::mem::take(&mut self.answers));
                self.answers = answers;
                if for_policy {
                    self.stricter = false;
                    let (keys, jobs) = (self.policy.keys.len(), self.policy.jobs.len());
                    self.reloaded(&format!("{keys} keys, {jobs} jobs"), Errno(0));
                } else if self.stricter {
                    self.revise();
                }
            }
        }
    }

    /// Tells the service manager how reloading ended, and begins anew if it is to.
    fn reloaded(&mut self, status: &str, errno: Errno) {
        notify::tell(&format!("READY=1\nSTATUS={status}\nERRNO={}", errno.0));
        if std::mem::take(&mut self.again) {
            self.reload();
        }
    }

    /// Has the answers looked through: for the policy in force if that is new, else to forget those
    /// whose grants are gone.
    fn revise(&mut self) {
        if self.revising {
            return;
        }
        self.revising = true;
        let for_policy = self.stricter;
        let mut answers = std::mem::take(&mut self.answers);
        let (policy, grants) = (self.policy.clone(), self.grants.clone());
        let look = move || {
            match for_policy {
                true => answers.revise(&policy, &Here, &grants),
                false => answers.prune(&grants),
            }
            Done::Answers(answers, for_policy)
        };
        let failed = Done::Answers(Answers::default(), for_policy);
        if let Err(e) = self.work.start(failed, look) {
            event!(Error, "answers of the old policy stay: {e}");
            self.done(Done::Answers(Answers::default(), for_policy));
        }
    }

    fn hear_all(&mut self) {
        let group = self.policy.agent.socket_gid;
        self.socket.accept(&mut self.connections, group);
        let now = Instant::now();
        for connection in &mut self.connections {
            connection.hear();
            connection.expire(now);
            // One request of each at a time, so that they are answered in order, and each has a thread.
            if let Some(line) = connection.take_line() {
                let (policy, grants) = (self.policy.clone(), self.grants.clone());
                let (id, peer) = (connection.id(), connection.peer);
                let failed = Done::Request(id, refusal("the daemon failed", "EIO"));
                let answer =
                    move || Done::Request(id, requests::answer(&policy, &grants, peer, &line));
                if let Err(e) = self.work.start(failed, answer) {
                    connection.answered(&refusal(&e.to_string(), "EAGAIN"));
                }
            }
            connection.speak();
        }
        self.connections.retain(|connection| !connection.is_over());
        if self.answers.are_many(self.kept) {
            self.revise();
        }
    }
}

/// What the decision goes by: what the kernel tells, all of one moment.
fn ask(question: &Question) -> Ask<'_> {
    Ask {
        key: &question.key,
        rights: question.rights,
        uid: question.uid,
        gid: question.gid,
        groups: question.groups.clone(),
        cgroup: question.cgroup_path.clone(),
        netns: question.netns,
    }
}
