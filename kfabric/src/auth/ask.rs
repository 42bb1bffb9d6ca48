// SPDX-License-Identifier: GPL-2.0
//! The agent, and what it is asked.
//!
//! A question lies on the board until it is answered, or nobody waits for the answer any more. Equal
//! questions of a process are one. Who waits holds no lock, and looks for a grant again when the
//! answer is there.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    grant::{
        self,
        Offer, //
    },
    key::AuthKey,
    seen::Verdict,
    Caller, //
};
use crate::{
    errno::{
        ealready,
        enokey,
        estale, //
    },
    object::set_name,
    pure::grant::Rule,
    sys::{
        auth::{
            self as sys_auth,
            now_ms,
            Process, //
        },
        steps::Steps,
        wait::WaitQueue, //
    },
    uapi::*,
};

/// Questions that may wait in all.
const QUESTIONS_MAX: usize = 16_384;
/// Questions of one user (effective uid) that may wait, so that no user fills the board.
const USER_QUESTIONS_MAX: usize = QUESTIONS_MAX / 4;
/// Denials that are remembered.
const DENIALS_MAX: usize = 1024;

/// How long the agent has, for how long a denial is remembered, both in milliseconds, and how many
/// questions of one process may wait.
pub(crate) static TIMEOUT_MS: AtomicU32 = AtomicU32::new(10_000);
pub(crate) static DENY_MS: AtomicU32 = AtomicU32::new(1_000);
pub(crate) static ASKS: AtomicU32 = AtomicU32::new(64);

/// Where a question is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nobody has it.
    Waiting,
    /// The agent has it.
    Asked,
    /// There may be a grant now.
    Look,
    /// The agent said no.
    Denied,
    /// There is no agent any more.
    Nobody,
}

/// A question.
#[pin_data]
pub(crate) struct Question {
    id: u64,
    process: Arc<Process>,
    task: sys_auth::Asker,
    told: sys_auth::Told,
    netns: u64,
    key: AuthKey,
    rights: u32,
    domain: [u8; KFI_NAME_MAX],
    until: u64,
    /// An [`At`], and who waits: both change under the board's lock.
    at: AtomicU32,
    waiters: AtomicU32,
    #[pin]
    settled: Steps,
}

impl At {
    const ALL: [At; 5] = [At::Waiting, At::Asked, At::Look, At::Denied, At::Nobody];
}

impl Question {
    fn at(&self) -> At {
        // CAST: One of few.
        At::ALL
            .get(self.at.load(Ordering::Relaxed) as usize)
            .copied()
            .unwrap_or(At::Nobody)
    }

    fn set(&self, at: At) {
        let index = At::ALL.iter().position(|one| *one == at).unwrap_or(0);
        // CAST: One of few.
        self.at.store(index as u32, Ordering::Relaxed);
    }

    /// It is over, and all who wait hear of it.
    fn settle(&self, at: At) {
        self.set(at);
        self.settled.take();
    }

    fn is_equal(&self, caller: &Caller, key: &AuthKey, rights: u32) -> bool {
        let (a, b) = (&self.task, &caller.task);
        a.process == b.process
            && (a.uid, a.gid, a.cgroup) == (b.uid, b.gid, b.cgroup)
            && self.netns == caller.netns
            && self.rights == rights
            && self.key.is(key)
            && self.told.has_groups_of_current()
    }

    /// The process's number as the current task sees it; 0: it does not.
    pub(crate) fn pid(&self) -> u32 {
        self.process.number()
    }

    /// Fills in what the agent is told, but the auth key's bytes.
    pub(crate) fn tell(&self, next: &mut AgentNext) {
        next.id = self.id;
        // CAST: At most `KFI_AUTH_KEY_MAX`.
        next.auth_key_size = self.key.bytes().len() as u32;
        next.rights = self.rights;
        next.process = self.task.process;
        next.pid = self.pid();
        next.uid = self.task.uid;
        next.gid = self.task.gid;
        next.left_ms = u32::try_from(self.until.saturating_sub(now_ms())).unwrap_or(u32::MAX);
        next.cgroup = self.task.cgroup;
        next.netns = self.netns;
        next.comm = self.task.comm;
        next.domain = self.domain;
        next.userns = self.told.userns();
        next.known = 0;
    }

    /// What the agent is told besides.
    pub(crate) fn told(&self) -> &sys_auth::Told {
        &self.told
    }

    /// The auth key.
    pub(crate) fn key(&self) -> &AuthKey {
        &self.key
    }
}

/// A file that is, or was, the agent.
#[pin_data]
pub(crate) struct Seat {
    process: Process,
    current: AtomicBool,
    #[pin]
    wait: WaitQueue,
}

impl Seat {
    /// One for the current task.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                process: Process::current(),
                current: AtomicBool::new(false),
                wait <- WaitQueue::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Where it polls.
    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Whether it is the agent.
    pub(crate) fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire)
    }

    /// Whether a question waits for it.
    pub(crate) fn has_question(&self) -> bool {
        self.is_current() && BOARD.lock().next().is_some()
    }

    fn check(&self) -> Result {
        if self.is_current() {
            return Ok(());
        }
        Err(estale())
    }
}

/// A no that is remembered.
struct Denial {
    key: AuthKey,
    process: u64,
    uid: u32,
    netns: u64,
    rights: u32,
    until: u64,
}

struct Board {
    agent: Option<Arc<Seat>>,
    /// By age.
    questions: KVVec<Arc<Question>>,
    denials: KVVec<Denial>,
    last: u64,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static BOARD: Mutex<Board> = Board {
        agent: None,
        questions: KVVec::new(),
        denials: KVVec::new(),
        last: 0,
    };
}

impl Board {
    /// The next question that nobody has.
    fn next(&self) -> Option<&Arc<Question>> {
        self.questions.iter().find(|q| q.at() == At::Waiting)
    }

    fn remove(&mut self, question: &Question) -> Option<Arc<Question>> {
        let at = self.questions.iter().position(|q| q.id == question.id)?;
        self.questions.remove(at).ok()
    }

    /// Settles all that are `wanted`; they are off the board.
    fn settle_all(&mut self, at: At, wanted: impl Fn(&Question) -> bool) {
        let mut i = 0;
        while i < self.questions.len() {
            if !wanted(&self.questions[i]) {
                i += 1;
                continue;
            }
            // Who waits holds it, so that nothing ends here.
            if let Ok(question) = self.questions.remove(i) {
                question.settle(at);
            }
        }
    }

    fn is_denied(&self, caller: &Caller, key: &AuthKey, rights: u32) -> bool {
        let now = now_ms();
        self.denials.iter().any(|d| {
            d.until > now
                && d.process == caller.task.process
                && d.uid == caller.task.uid
                && d.netns == caller.netns
                && d.rights == rights
                && d.key.is(key)
        })
    }

    /// Remembers a no, if there is room.
    fn deny(&mut self, question: &Question, until: u64) {
        if self.denials.len() >= DENIALS_MAX {
            // The oldest.
            drop(self.denials.remove(0));
        }
        let denial = Denial {
            key: question.key.clone(),
            process: question.task.process,
            uid: question.task.uid,
            netns: question.netns,
            rights: question.rights,
            until,
        };
        // Without memory it is asked again.
        // UNACCOUNTED: The list belongs to the board, not to a program.
        let _ = self.denials.push(denial, GFP_KERNEL);
    }
}

/// Readies the board.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe { BOARD.init() }
}

/// Gives back what the board holds.
pub(super) fn exit() {
    let mut board = BOARD.lock();
    let denials = core::mem::replace(&mut board.denials, KVVec::new());
    board.questions = KVVec::new();
    drop(board);
    drop(denials);
}

/// Forgets denials whose time is over, and has the worker come again for the rest: it was woken for
/// whatever was due first.
pub(super) fn forget() {
    let next = {
        let mut board = BOARD.lock();
        let now = now_ms();
        board.denials.retain(|denial| denial.until > now);
        board.denials.iter().map(|denial| denial.until).min()
    };
    if let Some(next) = next {
        grant::wake_at(next);
    }
}

/// How long one call waits, however often it asks.
pub(super) struct Wait {
    until: u64,
}

impl Wait {
    /// From now on.
    pub(super) fn new() -> Self {
        let timeout = TIMEOUT_MS.load(Ordering::Relaxed);
        Self {
            until: now_ms() + u64::from(timeout),
        }
    }

    /// Milliseconds that are left.
    fn left(&self) -> u32 {
        u32::try_from(self.until.saturating_sub(now_ms())).unwrap_or(u32::MAX)
    }
}

/// Asks the agent whether the current task may use `key`, and waits for the answer. `changes`:
/// [`grant::changes`] when it was found that no grant says so. `Ok`: there may be one now.
///
/// # Errors
///
/// What is said of it, and the errno.
pub(super) fn ask(
    caller: &Caller,
    domain: &str,
    key: &AuthKey,
    rights: u32,
    changes: u64,
    wait: &mut Wait,
) -> Result<(), (Verdict, Error)> {
    let left = wait.left();
    if left == 0 {
        return Err((Verdict::TimedOut, ETIMEDOUT));
    }
    let question = match put(caller, domain, key, rights, changes, wait)? {
        Some(question) => question,
        None => return Ok(()),
    };
    let killed = loop {
        let taken = question.settled.taken();
        let left = wait.left();
        if taken != 0 || left == 0 {
            break false;
        }
        if question.settled.wait_killable(0, left).is_err() {
            break true;
        }
    };
    let mut board = BOARD.lock();
    let withdrawn = match question.waiters.fetch_sub(1, Ordering::Relaxed) {
        1 => board.remove(&question),
        _ => None,
    };
    let at = question.at();
    drop(board);
    drop(withdrawn);
    match at {
        At::Look => Ok(()),
        At::Denied => Err((Verdict::Denied, EACCES)),
        At::Nobody => Err((Verdict::NoAgent, enokey())),
        _ if killed => Err((Verdict::Withdrawn, EINTR)),
        _ => Err((Verdict::TimedOut, ETIMEDOUT)),
    }
}

/// Puts a question on the board, or joins an equal one. `None`: a grant came meanwhile.
fn put(
    caller: &Caller,
    domain: &str,
    key: &AuthKey,
    rights: u32,
    changes: u64,
    wait: &Wait,
) -> Result<Option<Arc<Question>>, (Verdict, Error)> {
    let no_memory = |e: Error| (Verdict::Busy, e);
    let mut board = BOARD.lock();
    if grant::changes() != changes {
        return Ok(None);
    }
    if board.is_denied(caller, key, rights) {
        return Err((Verdict::Denied, EACCES));
    }
    let Some(agent) = board.agent.clone() else {
        return Err((Verdict::NoAgent, enokey()));
    };
    let (mut own, mut of_user, mut equal) = (0, 0, None);
    for question in &board.questions {
        of_user += usize::from(question.task.uid == caller.task.uid);
        if question.task.process != caller.task.process {
            continue;
        }
        own += 1;
        if question.is_equal(caller, key, rights) {
            equal = Some(question.clone());
            break;
        }
    }
    if let Some(question) = equal {
        question.waiters.fetch_add(1, Ordering::Relaxed);
        return Ok(Some(question));
    }
    if own >= ASKS.load(Ordering::Relaxed)
        || of_user >= USER_QUESTIONS_MAX
        || board.questions.len() >= QUESTIONS_MAX
    {
        return Err((Verdict::Busy, EAGAIN));
    }
    board
        .questions
        // UNACCOUNTED: A cgroup at its limit must not reclaim with the board locked. Bounded per user.
        .reserve(1, GFP_KERNEL)
        .map_err(|e| no_memory(e.into()))?;
    // UNACCOUNTED: As above.
    let process = Arc::new(Process::current(), GFP_KERNEL).map_err(|e| no_memory(e.into()))?;
    let mut name = [0; KFI_NAME_MAX];
    set_name(&mut name, domain);
    let id = board.last + 1;
    let question = Arc::pin_init(
        pin_init!(Question {
            id,
            process,
            task: caller.task,
            told: sys_auth::Told::current(caller.task.cgroup),
            netns: caller.netns,
            key: key.clone(),
            rights,
            domain: name,
            until: wait.until,
            at: AtomicU32::new(0),
            waiters: AtomicU32::new(1),
            settled <- Steps::new(),
        }),
        // UNACCOUNTED: As above.
        GFP_KERNEL,
    )
    .map_err(no_memory)?;
    board.last = id;
    // There is room.
    let _ = board.questions.push_within_capacity(question.clone());
    drop(board);
    agent.wait.wake_all();
    Ok(Some(question))
}

/// Has all who wait for an auth key look for a grant again.
pub(crate) fn look(key: &AuthKey) {
    BOARD
        .lock()
        .settle_all(At::Look, |question| question.key.is(key));
}

/// Makes `seat` the agent. What the former one has not answered it is asked.
///
/// # Errors
///
/// `EALREADY`: it is.
pub(crate) fn sit(seat: &Arc<Seat>) -> Result {
    let mut board = BOARD.lock();
    if seat.is_current() {
        return Err(ealready());
    }
    for question in &board.questions {
        question.set(At::Waiting);
    }
    seat.current.store(true, Ordering::Release);
    let former = board.agent.replace(seat.clone());
    if let Some(former) = &former {
        former.current.store(false, Ordering::Release);
    }
    drop(board);
    if let Some(former) = former {
        former.wait.wake_all();
    }
    seat.wait.wake_all();
    Ok(())
}

/// The file of `seat` is closed. If it was the agent there is none now, and nobody waits.
pub(crate) fn leave(seat: &Seat) {
    let mut board = BOARD.lock();
    if !seat.current.swap(false, Ordering::AcqRel) {
        return;
    }
    let agent = board.agent.take();
    board.settle_all(At::Nobody, |_| true);
    drop(board);
    drop(agent);
}

/// The agent's process as the current task sees it (0: it does not), and how many questions have no
/// answer. `None`: there is no agent.
pub(crate) fn agent() -> (Option<u32>, usize) {
    let board = BOARD.lock();
    let pid = board.agent.as_ref().map(|seat| seat.process.number());
    (pid, board.questions.len())
}

/// The next question for `seat`, which has it then.
///
/// # Errors
///
/// `ESTALE`: it is not the agent. `EAGAIN`: there is none.
pub(crate) fn next(seat: &Seat) -> Result<Arc<Question>> {
    let board = BOARD.lock();
    seat.check()?;
    let question = board.next().ok_or(EAGAIN)?;
    question.set(At::Asked);
    Ok(question.clone())
}

/// The agent could not be told after all.
pub(crate) fn put_back(question: &Question) {
    let board = BOARD.lock();
    if question.at() == At::Asked {
        question.set(At::Waiting);
        if let Some(agent) = &board.agent {
            agent.wait.wake_all();
        }
    }
}

/// The agent's answer; the id of the grant, if it is one.
///
/// # Errors
///
/// `ESTALE`: `seat` is not the agent. `ENOENT`: no such question. `EINVAL`: nonsense, or the rights do
/// not cover the question. What [`grant::add`] says; the question stays.
pub(crate) fn answer(seat: &Seat, call: &AgentAnswer) -> Result<u64> {
    let mut board = BOARD.lock();
    seat.check()?;
    let question = board
        .questions
        .iter()
        .find(|q| q.id == call.id && q.at() == At::Asked)
        .ok_or(ENOENT)?
        .clone();
    if call.verdict == KFI_AUTH_DENY {
        let until = now_ms() + u64::from(DENY_MS.load(Ordering::Relaxed));
        board.deny(&question, until);
        let gone = board.remove(&question);
        question.settle(At::Denied);
        drop(board);
        drop(gone);
        grant::wake_at(until);
        return Ok(0);
    }
    let rights = if call.rights == 0 {
        question.rights
    } else {
        call.rights
    };
    if rights & question.rights != question.rights {
        return Err(EINVAL);
    }
    let what = if call.match_ == 0 {
        KFI_MATCH_PROCESS
    } else {
        call.match_
    };
    let of = |bit: u32| what & bit != 0;
    let task = &question.task;
    let id = grant::add(Offer {
        key: question.key.clone(),
        rule: Rule {
            what,
            uid: if of(KFI_MATCH_UID) { task.uid } else { 0 },
            gid: if of(KFI_MATCH_GID) { task.gid } else { 0 },
            cgroup: if of(KFI_MATCH_CGROUP) { task.cgroup } else { 0 },
            netns: if of(KFI_MATCH_NETNS) {
                question.netns
            } else {
                0
            },
            process: if of(KFI_MATCH_PROCESS) {
                task.process
            } else {
                0
            },
        },
        rights,
        limits: crate::pure::grant::Limits {
            pinned: call.max_pinned,
            keys: call.max_keys,
            eps: call.max_eps,
        },
        lifetime: call.lifetime_ms,
        answered: Some(question.process.clone()),
    })?;
    // Whoever else it covers for certain finds it too, and none is made for each.
    board.settle_all(At::Look, |other| {
        let theirs = &other.task;
        other.key.is(&question.key)
            && rights & other.rights == other.rights
            && (!of(KFI_MATCH_UID) || theirs.uid == task.uid)
            && (!of(KFI_MATCH_GID) || theirs.gid == task.gid)
            && (!of(KFI_MATCH_CGROUP) || theirs.cgroup == task.cgroup)
            && (!of(KFI_MATCH_NETNS) || other.netns == question.netns)
            && (!of(KFI_MATCH_PROCESS) || theirs.process == task.process)
    });
    Ok(id)
}
