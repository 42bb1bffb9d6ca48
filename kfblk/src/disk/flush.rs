// SPDX-License-Identifier: GPL-2.0
//! Flushes of a disk on persistent memory: the marks of completed writes, and the commits of their
//! ranges.
//!
//! A write is visible at the target when it completes, and then marked. A flush commits all marked
//! ranges on one connection, whichever connection wrote them: a commit covers what was visible
//! before it. Flushes run in rounds, one round of a disk at a time. A flush that comes during a
//! round waits for the next one, because the round may have taken marks that the flush needs.
//!
//! All chunks of a new disk are marked: earlier disks of the export may have left writes that are
//! visible and not durable. So the first flush covers all that the disk can have read.

use core::{
    mem,
    mem::ManuallyDrop,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    impl_has_work,
    new_work,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    new_irqlock,
    pure::blk::{
        dirty::{
            Dirty,
            Range, //
        },
        Geometry,
        QUEUES_MAX, //
    },
    sys::IrqLock, //
};

use super::{
    enable::TIMEOUT_MS,
    one_sided::{
        self,
        DEPTH, //
    },
    protocol::AnyConnection,
    Disk, //
};
use crate::{
    errno,
    sys::{
        self,
        Block,
        Verdict, //
    }, //
};

/// Commits of a disk that are outstanding at once, at most.
pub(super) const COMMITS: u32 = 16;
/// Steps of a task that posts commits, before a work item continues. Commits of few bytes complete in
/// the post over kshm, so a task without a limit would post those of all chunks.
const TURN: u32 = 2 * COMMITS;

/// Pause before commits that the target has refused for the moment are repeated, in milliseconds.
const PAUSE_MS: i64 = 10;

/// Tags of flush requests, by queue: a bit for each tag.
type Tags = [u128; QUEUES_MAX as usize];

const _: () = assert!(DEPTH <= u128::BITS);

/// State of the rounds.
struct Rounds {
    /// Flushes of the running round.
    now: Tags,
    /// Flushes that wait for the next round.
    next: Tags,
    running: bool,
    /// The chunk from which on the round takes marks.
    at: u32,
    /// Outstanding commits.
    out: u32,
    /// How the round's flushes end, if a commit has failed.
    failed: Option<Verdict>,
    /// A task posts commits, or the work item will. Others leave this to it.
    busy: bool,
    /// References for the queued work item.
    later: Option<Later>,
    /// A task waits for the next round, without a request.
    asked: bool,
    /// A task waits for the running round, without a request.
    awaited: bool,
    /// How the round of [`Rounds::awaited`] has ended.
    result: Option<Verdict>,
    /// Number of commits that have succeeded.
    done: u64,
}

/// What the posting task does next.
enum Step {
    /// Post a commit.
    Commit(Range),
    /// End the flushes of the round that is over.
    End(Verdict),
    /// Nothing: a completion or a new flush goes on.
    Leave,
}

/// References for posting commits, and the queue whose connection posts them.
struct Later {
    disk: Arc<Disk>,
    block: Block,
    queue: u32,
}

/// The marks and rounds of a disk.
#[pin_data]
pub(super) struct Flusher {
    geometry: Geometry,
    ranges: KVVec<AtomicU32>,
    groups: KVVec<AtomicU64>,
    /// A write of this disk has completed.
    touched: AtomicBool,
    #[pin]
    rounds: IrqLock<Rounds>,
    #[pin]
    work: Work<Flusher>,
}

impl_has_work! {
    impl HasWork<Self> for Flusher { self.work }
}

impl WorkItem for Flusher {
    type Pointer = Arc<Flusher>;

    fn run(this: Arc<Flusher>) {
        let later = this.rounds.lock().later.take();
        if let Some(Later { disk, block, queue }) = later {
            this.turn(&disk, block, queue);
        }
    }
}

impl Flusher {
    /// Makes the marks of a disk. All are set, unless the disk is read-only: its keys allow no
    /// commit.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if an allocation fails.
    pub(super) fn new(geometry: Geometry, read_only: bool) -> Result<Arc<Self>> {
        let chunks = usize::try_from(geometry.chunks()).map_err(|_| EINVAL)?;
        // 4 MiB for the largest disk.
        let mut ranges = KVVec::with_capacity(chunks, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..chunks {
            ranges.push(AtomicU32::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        let words = Dirty::groups(chunks);
        let mut groups = KVVec::with_capacity(words, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..words {
            groups.push(AtomicU64::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        if !read_only {
            Dirty::new(&ranges, &groups).mark_all();
        }
        let rounds = Rounds {
            now: [0; QUEUES_MAX as usize],
            next: [0; QUEUES_MAX as usize],
            running: false,
            at: 0,
            out: 0,
            failed: None,
            busy: false,
            later: None,
            asked: false,
            awaited: false,
            result: None,
            done: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                geometry,
                ranges,
                groups,
                touched: AtomicBool::new(false),
                rounds <- new_irqlock!(rounds, "kfblk_rounds"),
                work <- new_work!("Flusher::work"),
            }),
            GFP_KERNEL,
        )
    }

    fn dirty(&self) -> Dirty<'_> {
        Dirty::new(&self.ranges, &self.groups)
    }

    /// Returns the range of a request's bytes, which are inside of a chunk.
    pub(super) fn range(&self, chunk: u64, at: u64, len: u64) -> Range {
        // CAST: A disk has at most `KEYS_MAX` chunks.
        Range::of(chunk as u32, at, len, self.geometry.chunk_shift)
    }

    /// Returns the first byte in its chunk and the number of bytes of a range.
    pub(super) fn bytes(&self, range: Range) -> Option<(u64, u64)> {
        let (_, window) = self.geometry.window(range.chunk.into())?;
        Some(range.bytes(self.geometry.chunk_shift, window))
    }

    /// Marks a completed write, before its request ends. Context: any.
    pub(super) fn written(&self, range: Range) {
        self.dirty().mark(range);
        // A read avoids writes to a shared cache line.
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Records the end of a commit. The caller then calls [`Flusher::go_on`]. Context: any.
    pub(super) fn committed(&self, range: Range, verdict: Verdict) {
        let failed = verdict != Verdict::Done;
        if failed {
            self.dirty().mark(range);
        }
        let mut rounds = self.rounds.lock();
        rounds.out = rounds.out.saturating_sub(1);
        match failed {
            true => rounds.failed = Some(verdict),
            false => rounds.done += 1,
        }
    }

    /// Adds a flush to the next round.
    fn add(&self, queue: u32, tag: u32) {
        // CAST: A `u32` fits.
        if let Some(tags) = self.rounds.lock().next.get_mut(queue as usize) {
            *tags |= 1 << tag;
        }
    }

    /// Becomes the task that posts commits. Returns whether there is no other.
    fn begin(&self) -> bool {
        !mem::replace(&mut self.rounds.lock().busy, true)
    }

    fn step(&self) -> Step {
        let mut rounds = self.rounds.lock();
        let wanted = rounds.asked || rounds.next.iter().any(|tags| *tags != 0);
        if !rounds.running && wanted {
            rounds.awaited = mem::take(&mut rounds.asked);
            rounds.now = mem::take(&mut rounds.next);
            rounds.running = true;
            rounds.at = 0;
            rounds.failed = None;
        }
        let commits = !cfg!(kfabric_seed_bug = "disk-early-flush");
        if commits && rounds.running && rounds.failed.is_none() && rounds.out < COMMITS {
            if let Some(range) = self.dirty().take(&mut rounds.at) {
                rounds.out += 1;
                return Step::Commit(range);
            }
        }
        if rounds.running && rounds.out == 0 {
            rounds.running = false;
            let verdict = rounds.failed.take().unwrap_or(Verdict::Done);
            if mem::take(&mut rounds.awaited) {
                rounds.result = Some(verdict);
            }
            return Step::End(verdict);
        }
        rounds.busy = false;
        Step::Leave
    }

    /// Takes the flushes of a queue in the round that is over. Locking: caller is the posting task, which
    /// alone begins the next round.
    fn take_ended(&self, queue: u32) -> u128 {
        let mut rounds = self.rounds.lock();
        // CAST: A `u32` fits.
        rounds.now.get_mut(queue as usize).map_or(0, mem::take)
    }

    /// Takes back a commit that could not be posted. Returns whether the posting task goes on.
    fn unposted(&self, range: Range, e: Error) -> bool {
        self.dirty().mark(range);
        let mut rounds = self.rounds.lock();
        rounds.out = rounds.out.saturating_sub(1);
        if e == EAGAIN && rounds.out != 0 {
            // The completion of an outstanding commit goes on.
            rounds.at = rounds.at.min(range.chunk);
            rounds.busy = false;
            return false;
        }
        let later = [EAGAIN, ENOENT, errno::enotconn()].contains(&e);
        rounds.failed = Some(if later {
            Verdict::Again
        } else {
            Verdict::Failed
        });
        true
    }

    /// Posts commits of the running round, and ends rounds. Returns when completions must come first.
    /// Context: any. Locking: caller holds no lock of the disk.
    pub(super) fn go_on(self: &Arc<Self>, disk: &Arc<Disk>, block: Block, queue: u32) {
        if self.begin() {
            self.turn(disk, block, queue);
        }
    }

    /// Posts commits and ends rounds, up to [`TURN`] steps. Then the work item continues. Context: any.
    /// Locking: caller is the posting task.
    fn turn(self: &Arc<Self>, disk: &Arc<Disk>, block: Block, queue: u32) {
        for _ in 0..TURN {
            match self.step() {
                Step::Commit(range) => {
                    if let Err(e) = self.post(disk, queue, range) {
                        if !self.unposted(range, e) {
                            return;
                        }
                    }
                }
                Step::End(verdict) => {
                    for queue in 0..QUEUES_MAX.into() {
                        end(block, queue, self.take_ended(queue), verdict);
                    }
                    disk.waiter.wake();
                }
                Step::Leave => return,
            }
        }
        let disk = disk.clone();
        self.rounds.lock().later = Some(Later { disk, block, queue });
        // Not queued yet: only the posting task queues the work, and the work is the posting task then.
        let _ = sys::requests().enqueue(self.clone());
    }

    /// Commits what the disk has written and not flushed. Waits as long as commits succeed, and repeats
    /// those that the target refuses for the moment. May sleep. Locking: caller holds `switch`; one caller at a time.
    ///
    /// # Errors
    ///
    /// - `EIO` if a commit has failed for good, or is refused after [`TIMEOUT_MS`] without a success.
    /// - `ETIMEDOUT` if no commit succeeds for [`TIMEOUT_MS`].
    /// - `EINTR` if a signal is pending.
    pub(super) fn commit_rest(self: &Arc<Self>, disk: &Arc<Disk>, block: Block) -> Result {
        if !self.touched.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut done = {
            let mut rounds = self.rounds.lock();
            rounds.asked = true;
            rounds.done
        };
        self.go_on(disk, block, 0);
        let mut since = Instant::<Monotonic>::now();
        loop {
            let over = || Ok(self.rounds.lock().result.take());
            let ended = disk.waiter.until(TIMEOUT_MS, over);
            let now = self.rounds.lock().done;
            if mem::replace(&mut done, now) != now {
                since = Instant::now();
            }
            let is_late = since.elapsed().as_millis() >= TIMEOUT_MS.into();
            match ended {
                Ok(Verdict::Done) => return Ok(()),
                Ok(Verdict::Again) if !is_late && disk.connection(0).is_ok() => {
                    fsleep(Delta::from_millis(PAUSE_MS));
                    self.rounds.lock().asked = true;
                    self.go_on(disk, block, 0);
                }
                Ok(_) => return Err(EIO),
                Err(e) if e != ETIMEDOUT || is_late => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// Returns whether a write of the disk is not committed. No request or commit is outstanding.
    /// Context: any.
    pub(super) fn has_rest(&self) -> bool {
        self.touched.load(Ordering::Relaxed) && self.dirty().is_any()
    }

    /// Waits until no commit is outstanding and no task posts one. The connections are closed. May
    /// sleep.
    pub(super) fn wait_idle(&self) {
        let is_busy = || {
            let rounds = self.rounds.lock();
            rounds.running || rounds.asked || rounds.busy
        };
        while is_busy() {
            fsleep(Delta::from_millis(1));
        }
    }

    fn post(&self, disk: &Disk, queue: u32, range: Range) -> Result {
        let (at, len) = self.bytes(range).ok_or(EIO)?;
        match disk.connection(queue)? {
            AnyConnection::OneSided(connection) => connection.commit(range, at, len),
            AnyConnection::Messages(_) => Err(EIO),
        }
    }
}

/// Ends the flushes of a queue.
fn end(block: Block, queue: u32, mut tags: u128, verdict: Verdict) {
    while tags != 0 {
        let tag = tags.trailing_zeros();
        tags &= tags - 1;
        // SAFETY: The tag's request is in flight, because `kfblk_rs_flush` has accepted it. It was
        // in one round, so it ends only here.
        unsafe { block.end(queue, tag, verdict) };
    }
}

/// Returns how a commit ended, by its errno.
pub(super) fn verdict(err: u32, served: bool) -> Verdict {
    match err {
        // The target cannot commit, and no other connection changes that.
        bindings::EOPNOTSUPP => Verdict::Failed,
        err => one_sided::verdict(err, served),
    }
}

/// Flushes a disk on persistent memory. Returns 0 or a negative errno, as `kfblk_rs_queue`.
///
/// # Safety
///
/// `owner` was passed to [`Block::new`].
#[no_mangle]
unsafe extern "C" fn kfblk_rs_flush(owner: *mut c_void, queue: u32, tag: u32) -> c_int {
    // SAFETY: By the caller's contract. `ManuallyDrop` leaves the block device its reference.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    let connection = match disk.connection(queue) {
        Ok(connection) => connection,
        Err(e) => return e.to_errno(),
    };
    let AnyConnection::OneSided(connection) = connection else {
        return EAGAIN.to_errno();
    };
    let Some((flusher, block)) = connection.protocol().flusher() else {
        return EAGAIN.to_errno();
    };
    flusher.add(queue, tag);
    flusher.go_on(&disk, block, queue);
    0
}

kfabric::same_prototype!(sys: kfblk_rs_flush);
