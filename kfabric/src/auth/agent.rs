// SPDX-License-Identifier: GPL-2.0
//! The agent and its upcalls.
//!
//! An upcall stays on the board until the agent has answered or no task waits for the answer. Equal
//! upcalls of a process are merged. A waiter holds no lock, and searches for a grant again when it
//! is woken.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    auth_key::AuthKey,
    grant::{
        self,
        NewGrant, //
    },
    trace::Verdict,
    Caller, //
};
use crate::{
    base::{
        errno::{
            ealready,
            enokey,
            estale, //
        },
        name::set_name,
        share::current_payer, //
    },
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

/// Upcalls that may wait, at most, in all.
const QUESTIONS_MAX: usize = 16_384;
/// Upcalls for which one user [pays](current_payer) that may wait, at most, so that no user fills the board.
const USER_QUESTIONS_MAX: usize = QUESTIONS_MAX / 4;
/// Denials that are remembered, at most.
const DENIALS_MAX: usize = 1024;

/// Time that the agent has to answer, and time that a denial is remembered, both in milliseconds;
/// and upcalls of one process that may wait, at most.
pub(crate) static TIMEOUT_MS: AtomicU32 = AtomicU32::new(10_000);
pub(crate) static DENY_MS: AtomicU32 = AtomicU32::new(1_000);
pub(crate) static ASKS: AtomicU32 = AtomicU32::new(64);

/// State of an upcall.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The agent has not read the upcall.
    Waiting,
    /// The agent has read the upcall.
    Asked,
    /// A grant may cover the caller now.
    Look,
    /// The agent has denied the upcall.
    Denied,
    /// The agent has closed its file.
    Nobody,
}

/// An upcall.
#[pin_data]
pub(crate) struct Question {
    id: u64,
    process: Arc<Process>,
    task: sys_auth::Asker,
    told: sys_auth::Told,
    netns: u64,
    /// The user in whose number of upcalls this one counts.
    payer: u32,
    key: AuthKey,
    rights: u32,
    domain: [u8; KFI_NAME_MAX],
    until: u64,
    /// An [`At`], and the number of waiters: both change under the board's lock.
    at: AtomicU32,
    waiters: AtomicU32,
    #[pin]
    settled: Steps,
}

impl At {
    const ALL: [At; 5] = [At::Waiting, At::Asked, At::Look, At::Denied, At::Nobody];
}

impl Question {
    /// Creates the current task's upcall, with one waiter.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    fn new(
        caller: &Caller,
        domain: &str,
        key: &AuthKey,
        rights: u32,
        wait: &Wait,
    ) -> Result<Arc<Self>> {
        // UNACCOUNTED: The agent's answer keeps it beyond the caller. Bounded per user.
        let process = Arc::new(Process::current(), GFP_KERNEL)?;
        let mut name = [0; KFI_NAME_MAX];
        set_name(&mut name, domain);
        Arc::pin_init(
            pin_init!(Self {
                id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
                process,
                task: caller.task,
                told: sys_auth::Told::current(caller.task.cgroup),
                netns: caller.netns,
                payer: current_payer(),
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
    }

    fn at(&self) -> At {
        // CAST: The index is below the number of states.
        At::ALL
            .get(self.at.load(Ordering::Relaxed) as usize)
            .copied()
            .unwrap_or(At::Nobody)
    }

    fn set(&self, at: At) {
        let index = At::ALL.iter().position(|one| *one == at).unwrap_or(0);
        // CAST: The index is below the number of states.
        self.at.store(index as u32, Ordering::Relaxed);
    }

    /// Sets the upcall's final state and wakes all its waiters.
    fn conclude(&self, at: At) {
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

    /// Returns the requester's pid in the current task's namespace; 0 if it has none there.
    pub(crate) fn pid(&self) -> u32 {
        self.process.number()
    }

    /// Fills in the upcall for the agent, except the auth key's bytes.
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

    /// The requester's further attributes.
    pub(crate) fn told(&self) -> &sys_auth::Told {
        &self.told
    }

    /// The auth key.
    pub(crate) fn key(&self) -> &AuthKey {
        &self.key
    }
}

/// A file that is, or was, the agent's.
#[pin_data]
pub(crate) struct Seat {
    process: Process,
    current: AtomicBool,
    #[pin]
    wait: WaitQueue,
}

impl Seat {
    /// Creates a seat for the current task.
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

    /// The wait queue on which the agent polls.
    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Returns whether the seat is the agent's.
    pub(crate) fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire)
    }

    /// Returns whether an upcall waits for this agent.
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

/// A denial that is remembered.
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
    /// Ordered by age.
    questions: KVVec<Arc<Question>>,
    denials: KVVec<Denial>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static BOARD: Mutex<Board> = Board {
        agent: None,
        questions: KVVec::new(),
        denials: KVVec::new(),
    };
}

/// The id of the latest upcall.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Board {
    /// Returns the oldest upcall that the agent has not read.
    fn next(&self) -> Option<&Arc<Question>> {
        self.questions.iter().find(|q| q.at() == At::Waiting)
    }

    fn remove(&mut self, question: &Question) -> Option<Arc<Question>> {
        let at = self.questions.iter().position(|q| q.id == question.id)?;
        self.questions.remove(at).ok()
    }

    /// Sets the final state of all `wanted` upcalls and removes them from the board.
    fn conclude_all(&mut self, at: At, wanted: impl Fn(&Question) -> bool) {
        let mut i = 0;
        while i < self.questions.len() {
            if !wanted(&self.questions[i]) {
                i += 1;
                continue;
            }
            // A waiter holds a reference, so that this drops no upcall.
            if let Ok(question) = self.questions.remove(i) {
                question.conclude(at);
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

    /// Remembers a denial; replaces the oldest one if the list is full.
    fn deny(&mut self, question: &Question, until: u64) {
        if self.denials.len() >= DENIALS_MAX {
            // Drop the oldest denial.
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
        // Cannot fail: `reserve` made room for all, and the list is below its limit.
        let _ = self.denials.push_within_capacity(denial);
    }
}

/// Initialises the board.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, at module load.
    unsafe { BOARD.init() }
}

/// Makes room on the board for all upcalls and denials, so that none allocates with the board
/// locked.
///
/// # Errors
///
/// - `ENOMEM` if there is no memory.
pub(super) fn reserve() -> Result {
    // UNACCOUNTED: The lists belong to the module.
    let questions = KVVec::with_capacity(QUESTIONS_MAX, GFP_KERNEL)?;
    // UNACCOUNTED: As above.
    let denials = KVVec::with_capacity(DENIALS_MAX, GFP_KERNEL)?;
    let mut board = BOARD.lock();
    board.questions = questions;
    board.denials = denials;
    Ok(())
}

/// Frees the board.
pub(super) fn exit() {
    let mut board = BOARD.lock();
    let denials = core::mem::replace(&mut board.denials, KVVec::new());
    board.questions = KVVec::new();
    drop(board);
    drop(denials);
}

/// Forgets denials whose time is over, and schedules the worker for the earliest remaining one.
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

/// Time limit of one call, for all its upcalls together.
pub(super) struct Wait {
    until: u64,
}

impl Wait {
    /// Starts the time limit now.
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

/// Makes an upcall for the current task's use of `key`, and waits for the answer. `changes` is the
/// value of [`grant::changes`] from before the search for a grant. `Ok` means that a grant may
/// cover the task now.
///
/// # Errors
///
/// The verdict and its errno.
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

/// Puts an upcall on the board, or joins an equal one. `None` if a grant was added meanwhile.
fn put(
    caller: &Caller,
    domain: &str,
    key: &AuthKey,
    rights: u32,
    changes: u64,
    wait: &Wait,
) -> Result<Option<Arc<Question>>, (Verdict, Error)> {
    // Allocated when the board has room, without its lock. Then the board is examined again.
    let mut made: Option<Arc<Question>> = None;
    let payer = current_payer();
    loop {
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
            of_user += usize::from(question.payer == payer);
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
        let Some(question) = made.take() else {
            drop(board);
            let question = Question::new(caller, domain, key, rights, wait);
            made = Some(question.map_err(|e| (Verdict::Busy, e))?);
            continue;
        };
        // Cannot fail: `reserve` made room for all, and the list is below its limit.
        let _ = board.questions.push_within_capacity(question.clone());
        drop(board);
        agent.wait.wake_all();
        return Ok(Some(question));
    }
}

/// Makes all waiters for an auth key search for a grant again.
pub(crate) fn look(key: &AuthKey) {
    BOARD
        .lock()
        .conclude_all(At::Look, |question| question.key.is(key));
}

/// Makes `seat` the agent's. The new agent gets all unanswered upcalls of the former one.
///
/// # Errors
///
/// - `EALREADY` if `seat` is the agent's already.
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

/// Releases `seat` when its file is closed. If it was the agent's, all waiting upcalls fail.
pub(crate) fn leave(seat: &Seat) {
    let mut board = BOARD.lock();
    if !seat.current.swap(false, Ordering::AcqRel) {
        return;
    }
    let agent = board.agent.take();
    board.conclude_all(At::Nobody, |_| true);
    drop(board);
    drop(agent);
}

/// Returns the agent's pid in the current task's namespace (0: none there), and the number of
/// unanswered upcalls. The pid is `None` if there is no agent.
pub(crate) fn agent() -> (Option<u32>, usize) {
    let board = BOARD.lock();
    let pid = board.agent.as_ref().map(|seat| seat.process.number());
    (pid, board.questions.len())
}

/// Returns the next upcall for `seat` and marks it as read.
///
/// # Errors
///
/// - `ESTALE` if `seat` is not the agent's.
/// - `EAGAIN` if no upcall waits.
pub(crate) fn next(seat: &Seat) -> Result<Arc<Question>> {
    let board = BOARD.lock();
    seat.check()?;
    let question = board.next().ok_or(EAGAIN)?;
    question.set(At::Asked);
    Ok(question.clone())
}

/// Makes an upcall readable again that could not be copied to the agent.
pub(crate) fn put_back(question: &Question) {
    let board = BOARD.lock();
    if question.at() == At::Asked {
        question.set(At::Waiting);
        if let Some(agent) = &board.agent {
            agent.wait.wake_all();
        }
    }
}

/// Applies the agent's answer; returns the id of the grant, or 0 for a denial.
///
/// # Errors
///
/// The errors of [`grant::add`]; the upcall stays on the board. And:
///
/// - `ESTALE` if `seat` is not the agent's.
/// - `ENOENT` if there is no such upcall.
/// - `EINVAL` if the answer is malformed, or its rights do not cover the upcall's.
pub(crate) fn answer(seat: &Seat, call: &AgentAnswer) -> Result<u64> {
    let mut room = None;
    loop {
        match answer_with(seat, call, room)? {
            Some(id) => return Ok(id),
            None => room = Some(grant::Room::new()?),
        }
    }
}

/// Applies the agent's answer as [`answer`] does, without an allocation. `None` if the grant needs
/// memory, and `room` has too little or is `None`.
fn answer_with(seat: &Seat, call: &AgentAnswer, room: Option<grant::Room>) -> Result<Option<u64>> {
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
        question.conclude(At::Denied);
        drop(board);
        drop(gone);
        grant::wake_at(until);
        return Ok(Some(0));
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
    let Some(room) = room else {
        return Ok(None);
    };
    let new = NewGrant {
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
        answered: Some((question.process.clone(), task.uid)),
    };
    let Ok(id) = grant::add_with(new, room)? else {
        return Ok(None);
    };
    // Other waiters that the grant certainly covers find it too, without a grant for each.
    board.conclude_all(At::Look, |other| {
        let theirs = &other.task;
        other.key.is(&question.key)
            && rights & other.rights == other.rights
            && (!of(KFI_MATCH_UID) || theirs.uid == task.uid)
            && (!of(KFI_MATCH_GID) || theirs.gid == task.gid)
            && (!of(KFI_MATCH_CGROUP) || theirs.cgroup == task.cgroup)
            && (!of(KFI_MATCH_NETNS) || other.netns == question.netns)
            && (!of(KFI_MATCH_PROCESS) || theirs.process == task.process)
    });
    Ok(Some(id))
}
