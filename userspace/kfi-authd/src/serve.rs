// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon's main loop: the kernel's upcalls, the socket, and signals.
//!
//! The loop never blocks on anything else. Slow work runs on other threads (`Work`): neither a
//! revocation nor a path that does not respond delays another process's upcall.

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
use kfauth::{netns_cookie, Agent, Grants, Next, Question, Setting, Terms, HOST_USERNS};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::answers::{self, Answers, Given, Looked};
use crate::decide::{decide, Ask, Decision, World};
use crate::event;
use crate::notify::{self, Watchdog};
use crate::pace::Pace;
use crate::policy::{Policy, PolicyError};
use crate::requests;
use crate::socket::{refusal, Connection, Socket};
use crate::work::Work;

/// Maximum number of upcalls answered in a row, before other work.
const ROW: usize = 64;
/// Maximum time of one decision for all lookups of network namespaces.
const LOOK: Duration = Duration::from_millis(50);

/// Options of the daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the policy file.
    pub policy: PathBuf,
    /// Path of the socket.
    pub socket: PathBuf,
}

/// The failure for which the daemon does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The policy has faults.
    #[error(transparent)]
    Policy(#[from] crate::policy::PolicyError),
    /// A call on the device failed.
    #[error("{what}: {source}")]
    Device {
        /// The step that failed.
        what: &'static str,
        /// The library's error.
        source: kfabric::Error,
    },
    /// The socket failed.
    #[error("{}: {source}", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Waiting or signal handling failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The cause.
        source: nix::Error,
    },
}

/// Lookup of network namespaces on this machine.
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

/// Files whose lookup has not finished. Each flag is set when it has.
type Silent = RefCell<HashMap<PathBuf, Arc<AtomicBool>>>;

/// Like [`Here`], with a time limit: the namespace of a file that does not respond is unknown.
struct Soon<'a> {
    silent: &'a Silent,
    /// Time that remains of [`LOOK`].
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

/// The result of work on another thread.
enum Done {
    /// The answer to a request, with the number of its connection.
    Request(u64, Answer),
    /// A policy that was read.
    Policy(Result<Policy, PolicyError>),
    /// Answers that were revised. The flag says whether for a new policy.
    Answers(Answers, bool),
    /// Answers were to be looked through, for a new policy or not, and some were not.
    NotAnswers(bool),
}

/// State of the main loop.
struct Daemon {
    options: Options,
    policy: Arc<Policy>,
    agent: Agent,
    grants: Grants,
    socket: Socket,
    connections: Vec<Connection>,
    work: Work<Done>,
    /// Answers given, except those that are being revised.
    answers: Answers,
    /// Answers that are being revised by another thread; empty otherwise.
    looked: Looked,
    /// Whether answers are being revised; and the number that remained the last time.
    revising: bool,
    kept: usize,
    /// Whether a policy is being read; and whether to read it again afterwards.
    loading: bool,
    again: bool,
    /// Whether answers still have to be revised for the present policy.
    stricter: bool,
    silent: Silent,
    pace: Pace,
    watchdog: Watchdog,
}

/// Runs the daemon until `SIGTERM` or `SIGINT`, or until another agent takes over. Grants stay.
///
/// # Errors
///
/// If the daemon cannot start, or its device fails.
pub fn run(options: &Options) -> Result<(), Failure> {
    let system = |what| move |source| Failure::System { what, source };
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
        mask.add(signal);
    }
    mask.thread_block().map_err(system("block signals"))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&mask, flags).map_err(system("signalfd"))?;

    // Loads the policy first: with a faulty one, a former agent stays in place.
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
        looked: Looked::default(),
        revising: false,
        kept: 0,
        loading: false,
        again: false,
        stricter: false,
        silent: Silent::default(),
        pace: Pace::default(),
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
                // A connection that is not polled for anything would report its hang-up in each
                // turn.
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
            let now = Instant::now();
            self.watchdog.beat(now);
            for (uid, more) in self.pace.over(now) {
                event!(Notice, "deny uid={uid}: {more} more questions in a second");
            }
            while let Ok(Some(signal)) = signals.read_signal() {
                if signal.ssi_signo == Signal::SIGHUP as u32 {
                    self.reload();
                } else {
                    event!(Notice, "ends on a signal; grants stay");
                    return Ok(());
                }
            }
            if self.answer_all()? {
                event!(Notice, "ends: another agent has taken over");
                self.socket.leave();
                return Ok(());
            }
            while let Some(done) = self.work.next() {
                self.done(done);
            }
            self.hear_all();
        }
    }

    /// Time until the next deadline.
    fn patience(&self, now: Instant) -> PollTimeout {
        // A line that has been read already makes no descriptor readable.
        if self.connections.iter().any(Connection::has_line) {
            return PollTimeout::ZERO;
        }
        let ends = self.connections.iter().filter_map(Connection::deadline);
        let first = ends
            .chain(self.watchdog.next())
            .chain(self.pace.next())
            .min();
        let first = first.map(|first| first.saturating_duration_since(now));
        let rest = self.socket.rests(now);
        let Some(left) = first.into_iter().chain(rest).min() else {
            return PollTimeout::NONE;
        };
        // One millisecond more, so that the deadline has passed when `poll` returns.
        let left = left.as_millis().saturating_add(1);
        PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
    }

    /// Answers pending upcalls, up to [`ROW`]. Returns whether another agent has taken over.
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

    /// Answers an upcall. Returns whether another agent has taken over.
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
                if self.pace.writes(question.uid, Instant::now()) {
                    event!(Notice, "deny {about}: {why}");
                }
                self.agent.deny(question)
            }
        };
        let Err(e) = result else { return false };
        match e.errno() {
            Some(Errno::ESTALE) => return true,
            Some(Errno::ENOENT) => event!(Debug, "{about}: the request is no longer waiting"),
            _ => {
                if self.pace.writes(question.uid, Instant::now()) {
                    event!(
                        Warning,
                        "deny {about}: {why}, but the grant cannot be made: {e}"
                    );
                }
                if let Err(e) = self.agent.deny(question) {
                    event!(Debug, "{about}: {e}");
                }
            }
        }
        false
    }

    /// Applies the policy's settings of the daemon, and logs the policy.
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

    /// Starts reading the policy again, on another thread.
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

    /// Handles the result of work on another thread.
    fn done(&mut self, done: Done) {
        match done {
            Done::Request(id, answer) => {
                let mut connections = self.connections.iter_mut();
                // The connection may have been dropped meanwhile.
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
                    // Drops connections that only the old group admitted.
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
            Done::NotAnswers(for_policy) => {
                self.revising = false;
                self.answers.join(self.looked.left());
                self.kept = self.answers.len();
                if for_policy {
                    self.stricter = false;
                    let what = "answers of the old policy stay: they could not be looked through";
                    event!(Error, "{what}");
                    self.reloaded(what, Errno::EAGAIN);
                } else if self.stricter {
                    self.revise();
                }
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

    /// Reports the end of a reload to the service manager, and starts another one if requested.
    fn reloaded(&mut self, status: &str, errno: Errno) {
        notify::tell(&format!("READY=1\nSTATUS={status}\nERRNO={}", errno.0));
        if std::mem::take(&mut self.again) {
            self.reload();
        }
    }

    /// Starts revising the answers on another thread: for the present policy if that is new,
    /// otherwise to forget answers whose grants have ended.
    fn revise(&mut self) {
        if self.revising {
            return;
        }
        self.revising = true;
        let for_policy = self.stricter;
        // Where they stay if no thread can be started, or one that looks at them panics.
        let looked = self.looked.begin(std::mem::take(&mut self.answers));
        let (policy, grants) = (self.policy.clone(), self.grants.clone());
        let look = move || {
            let answers = looked.run(|answers| match for_policy {
                true => answers.revise(&policy, &Here, &grants),
                false => answers.prune(&grants),
            });
            Done::Answers(answers, for_policy)
        };
        if let Err(e) = self.work.start(Done::NotAnswers(for_policy), look) {
            event!(Error, "no thread to look through answers: {e}");
            self.done(Done::NotAnswers(for_policy));
        }
    }

    fn hear_all(&mut self) {
        let group = self.policy.agent.socket_gid;
        self.socket.accept(&mut self.connections, group);
        let now = Instant::now();
        for connection in &mut self.connections {
            connection.hear();
            connection.expire(now);
            // At most one request per connection at a time: answers stay in order, and each request
            // has a thread.
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

/// The request in an upcall. The kernel took all attributes at one moment.
fn ask(question: &Question) -> Ask<'_> {
    Ask {
        key: &question.key,
        rights: question.rights,
        uid: question.uid,
        gid: question.gid,
        groups: question.groups.clone(),
        cgroup: question.cgroup_path.clone(),
        netns: question.netns,
        apart: question.userns != HOST_USERNS,
    }
}
