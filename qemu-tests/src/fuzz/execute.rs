// SPDX-License-Identifier: MIT OR Apache-2.0

//! Executes programs: some threads make the calls on the same files, and a guard interrupts calls
//! that wait too long.

use super::kcov::{answer, Kcov, Point, Text};
use super::os::{self, Arena};
use super::program::{Op, Program, Val, ALL, MAX_OPS, THREADS};
use super::shape::{Area, Class, Part, What, NOWHERE};
use super::syscalls;
use super::world::World;
use crate::auth::{self, Agent};
use crate::raw::Dev;
use crate::sys::Errno;
use kfabric_uapi::*;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of open files that a program may have.
pub(super) const FILES: usize = 4;
/// Bytes between the structures of two calls.
const SLOT: u32 = 512;
/// Time after which a waiting call is interrupted.
const NUDGE: Duration = Duration::from_millis(400);
/// Maximum number of repetitions with another failing allocation or copy each.
const FAILING: u16 = 150;
/// Time limit of repeating a call.
const AGAIN: Duration = Duration::from_secs(3);
/// Time after which a call counts as hung.
const HANG: Duration = Duration::from_secs(60);

/// Set of known points.
pub struct Known(Vec<AtomicU64>);

impl Known {
    fn new() -> Self {
        let last = answer(super::shape::book().len(), 255);
        Self((0..=last / 64).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether a point is known.
    pub fn has(&self, point: Point) -> bool {
        let word = self.0.get(point as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (point % 64)) != 0)
    }

    /// Adds a point.
    pub fn add(&self, point: Point) {
        if let Some(word) = self.0.get(point as usize / 64) {
            word.fetch_or(1 << (point % 64), Ordering::Relaxed);
        }
    }

    /// Returns all known points.
    pub fn all(&self) -> impl Iterator<Item = Point> + '_ {
        let words = self.0.iter().enumerate();
        words
            .filter(|(_, word)| word.load(Ordering::Relaxed) != 0)
            .flat_map(|(i, _)| i as u32 * 64..(i as u32 + 1) * 64)
            .filter(|point| self.has(*point))
    }
}

/// Results of the running program's calls.
#[derive(Default)]
struct Results {
    handle: AtomicU64,
    fd: AtomicU64,
    key: AtomicU64,
    at: AtomicU64,
    errno: AtomicI32,
}

/// State that all threads share.
pub(super) struct Shared {
    pub(super) arena: Arena,
    pub(super) world: World,
    pub(super) text: Text,
    pub(super) known: Known,
    pub(super) files: [AtomicI32; FILES],
    results: Vec<Results>,
    /// Lowest descriptor that may be a program's.
    floor: AtomicI32,
    /// Mapped rings: address and length.
    pub(super) maps: Mutex<Vec<(u64, u64)>>,
    pub(super) slow: u32,
    /// Number of waits in the running program that timed out.
    pub(super) waits: AtomicU32,
    points: Mutex<HashSet<Point>>,
    calls: AtomicU64,
    since: Instant,
    /// Id of each thread, and the start of its current call (milliseconds; 0: in no call).
    threads: [(AtomicU64, AtomicU64); THREADS],
}

impl Shared {
    /// Returns the number that a value stands for now.
    pub(super) fn number(&self, value: Val) -> u64 {
        match value {
            Val::Num(n) => n,
            Val::Mem(area, u32::MAX) => self.arena.addr(area, 0),
            Val::Mem(area, off) => self.arena.addr(area, off),
            Val::Res(op, part) => {
                let Some(result) = self.results.get(op) else {
                    return 0;
                };
                let handle = result.handle.load(Ordering::Relaxed);
                match part {
                    Part::Handle => handle,
                    Part::Fd => result.fd.load(Ordering::Relaxed),
                    Part::Key => result.key.load(Ordering::Relaxed),
                    Part::At => result.at.load(Ordering::Relaxed),
                    Part::Later => handle.wrapping_add(1 << 32),
                    Part::Next => handle.wrapping_add(1),
                }
            }
        }
    }

    /// Returns the descriptor that a value stands for, or -1 if it is not a program's.
    pub(super) fn fd(&self, value: Val) -> i32 {
        match i32::try_from(self.number(value)) {
            Ok(fd) if fd >= self.floor() => fd,
            _ => -1,
        }
    }

    /// Returns the lowest descriptor that may be a program's.
    pub(super) fn floor(&self) -> i32 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Returns the device's file that a value stands for.
    pub(super) fn file(&self, value: Val) -> i32 {
        self.slot(value).load(Ordering::Relaxed)
    }

    pub(super) fn slot(&self, value: Val) -> &AtomicI32 {
        &self.files[(self.number(value) % FILES as u64) as usize]
    }

    pub(super) fn give(&self, index: usize, part: Part, value: u64) {
        let Some(result) = self.results.get(index) else {
            return;
        };
        let place = match part {
            Part::Fd => &result.fd,
            Part::Key => &result.key,
            Part::At => &result.at,
            _ => &result.handle,
        };
        place.store(value, Ordering::Relaxed);
    }

    /// Returns whether a call of the running program failed.
    pub(super) fn failed(&self, index: usize) -> bool {
        let result = self.results.get(index);
        result.is_some_and(|result| result.errno.load(Ordering::Relaxed) != 0)
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64 + 1
    }

    /// Returns the bytes of a call's structure.
    fn bytes(&self, op: &Op) -> Vec<u8> {
        let shape = op.shape();
        let size = match shape.field("size") {
            Some(i) => (self.number(op.vals[i]) as usize & 0xffff_ffff).min(8192),
            None => 0,
        };
        let mut bytes = vec![0; size.max(shape.size)];
        for (field, value) in shape.fields.iter().zip(&op.vals) {
            if field.at == NOWHERE {
                continue;
            }
            let number = self.number(*value);
            let wanted = match field.class {
                Class::Addr => zerocopy::IntoBytes::as_bytes(&self.world.addr(number)).to_vec(),
                Class::Name(name) => self.world.name(name, number, field.width),
                Class::Deadline if number != u64::MAX => {
                    let then = crate::sys::monotonic_ns() + number % 200 * 1_000_000;
                    then.to_ne_bytes().to_vec()
                }
                _ => number.to_ne_bytes().to_vec(),
            };
            let width = field.width.min(wanted.len());
            bytes[field.at..field.at + width].copy_from_slice(&wanted[..width]);
        }
        match self.number(op.get("tail")) {
            0 => {}
            1 => {
                if let Some(last) = bytes.get_mut(shape.size..).and_then(<[u8]>::last_mut) {
                    *last = 1;
                }
            }
            _ => bytes[shape.size..].fill(0xff),
        }
        bytes
    }

    /// Makes a call. Returns its answer, and whether the injected failure happened.
    fn make(&self, index: usize, op: &Op, fail: Failing<'_>) -> (Result<(), Errno>, bool) {
        let shape = op.shape();
        match shape.what {
            What::Write(area) => {
                let slot = (self.number(op.get("slot")) % 64) as usize;
                let at = self.arena.addr(area, (slot * shape.size) as u32);
                self.arena.write(at, &self.bytes(op));
                (Ok(()), false)
            }
            What::Sys(sys) => fail.during(|| syscalls::make(self, sys, index, op)),
            What::Ioctl(nr) => {
                let place = match op.get("place") {
                    Val::Mem(Area::Call, u32::MAX) => {
                        self.arena.addr(Area::Call, index as u32 * SLOT)
                    }
                    other => self.number(other),
                };
                self.arena.write(place, &self.bytes(op));
                let fd = self.file(op.get("file"));
                let (answered, failed) = fail.during(|| syscalls::ioctl(fd, nr, place));
                if answered.is_ok() {
                    self.take(index, op, place);
                }
                (answered.map(|_| ()), failed)
            }
        }
    }

    /// Stores the results of a call.
    fn take(&self, index: usize, op: &Op, place: u64) {
        let mut word = [0; 8];
        for out in &op.shape().outs {
            self.arena.read(place + out.at as u64, &mut word);
            if out.via {
                self.arena.read(u64::from_ne_bytes(word), &mut word);
            }
            let mut value = u64::from_ne_bytes(word);
            if out.width == 4 {
                value &= 0xffff_ffff;
            }
            self.give(index, out.part, value);
        }
    }
}

/// Number of this thread's allocation that will fail.
struct Failing<'a>(u16, Option<&'a mut File>);

impl Failing<'_> {
    /// Runs `f`. Returns its result, and whether the injected failure happened.
    fn during<R>(self, f: impl FnOnce() -> R) -> (R, bool) {
        let Self(nth @ 1.., Some(file)) = self else {
            return (f(), false);
        };
        let _ = file.write_all_at(nth.to_string().as_bytes(), 0);
        let result = f();
        // The remaining count is zero if the failure happened. The read itself may fail.
        let mut left = [0; 8];
        let read = file.read_at(&mut left, 0);
        let mut failed = read.is_ok_and(|n| &left[..n] == b"0\n");
        if file.write_all_at(b"0", 0).is_err() {
            failed = false;
            let _ = file.write_all_at(b"0", 0);
        }
        (result, failed)
    }
}

/// A thread that makes calls.
struct Caller {
    number: usize,
    shared: Arc<Shared>,
    kcov: Option<Kcov>,
    fail: Option<File>,
}

impl Caller {
    /// Returns the caller of the current thread.
    fn here(number: usize, shared: &Arc<Shared>) -> Self {
        let thread = os::thread_id();
        shared.threads[number].0.store(thread, Ordering::Relaxed);
        let nth = format!("/proc/self/task/{thread}/fail-nth");
        Self {
            number,
            shared: Arc::clone(shared),
            kcov: Kcov::here(),
            fail: File::options().read(true).write(true).open(nth).ok(),
        }
    }

    /// Runs `f` under the guard and with coverage.
    fn seen<R>(&mut self, f: impl FnOnce(&Shared, Option<&mut File>) -> R) -> R {
        let busy = &self.shared.threads[self.number].1;
        busy.store(self.shared.now(), Ordering::Relaxed);
        if let Some(kcov) = &self.kcov {
            kcov.clear();
        }
        let result = f(&self.shared, self.fail.as_mut());
        if let (Some(kcov), Ok(mut points)) = (&self.kcov, self.shared.points.lock()) {
            let known = |point| self.shared.known.has(point);
            kcov.collect(&self.shared.text, known, &mut points);
        }
        busy.store(0, Ordering::Relaxed);
        result
    }

    fn call(&mut self, index: usize, op: &Op) -> i32 {
        if op.nobody {
            os::become_nobody(true);
        }
        let until = Instant::now() + AGAIN;
        let errno = if op.fail == ALL {
            // Objects of a call that does not fail stay until the program ends.
            let mut each = 1..=FAILING;
            loop {
                let more = Instant::now() < until;
                let nth = each.next().filter(|_| more).unwrap_or(0);
                let (errno, failed) = self.calls(index, op, nth, until);
                if !failed {
                    break errno;
                }
            }
        } else {
            self.calls(index, op, op.fail, until).0
        };
        if op.nobody {
            os::become_nobody(false);
        }
        errno
    }

    /// Makes a call as often as its text says. Returns its last errno, and whether the injected
    /// failure happened.
    fn calls(&mut self, index: usize, op: &Op, nth: u16, until: Instant) -> (i32, bool) {
        let mut times = 1;
        let (answered, failed) = self.seen(|shared, mut fail| {
            for _ in 1..op.times {
                if Instant::now() > until {
                    break;
                }
                let _ = shared.make(index, op, Failing(nth, fail.as_deref_mut()));
                times += 1;
            }
            shared.make(index, op, Failing(nth, fail))
        });
        let errno = answered.err().map_or(0, |e| e.0);
        let point = answer(op.shape, errno);
        self.shared.calls.fetch_add(times, Ordering::Relaxed);
        if let (false, Ok(mut points)) = (self.shared.known.has(point), self.shared.points.lock()) {
            points.insert(point);
        }
        if let Some(result) = self.shared.results.get(index) {
            result.errno.store(errno, Ordering::Relaxed);
        }
        (errno, failed)
    }
}

/// A call for another thread.
type Order = (usize, Op);

/// The threads, ready for programs.
pub struct Machine {
    shared: Arc<Shared>,
    caller: Caller,
    orders: Vec<Sender<Order>>,
    done: Receiver<()>,
    remote: Option<Kcov>,
    /// An administrator's file, to undo programs' changes to the machine.
    admin: Option<Dev>,
}

/// Result of running a program.
pub struct Run {
    /// Points that were not known.
    pub points: HashSet<Point>,
    /// Number of calls made.
    pub calls: u64,
}

impl Machine {
    /// Starts the threads. The current thread is the first of them from now on.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(world: World, slow: u32) -> std::io::Result<Self> {
        os::catch_nudges();
        let shared = Arc::new(Shared {
            arena: Arena::new()?,
            world,
            text: Text::read(),
            known: Known::new(),
            files: [const { AtomicI32::new(-1) }; FILES],
            results: (0..MAX_OPS).map(|_| Results::default()).collect(),
            floor: AtomicI32::new(i32::MAX),
            maps: Mutex::default(),
            slow: slow.max(1),
            waits: AtomicU32::new(0),
            points: Mutex::default(),
            calls: AtomicU64::new(0),
            since: Instant::now(),
            threads: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; THREADS],
        });
        let (tell, done) = channel();
        let mut orders = Vec::new();
        for number in 1..THREADS {
            let (send, receive) = channel::<Order>();
            let (shared, tell) = (Arc::clone(&shared), tell.clone());
            std::thread::spawn(move || {
                let mut caller = Caller::here(number, &shared);
                let _ = tell.send(());
                for (index, op) in receive {
                    caller.call(index, &op);
                    let _ = tell.send(());
                }
            });
            orders.push(send);
        }
        let (send, remote) = channel();
        std::thread::spawn(move || {
            let _ = send.send(Kcov::elsewhere());
            loop {
                std::thread::park();
            }
        });
        let guarded = Arc::clone(&shared);
        std::thread::spawn(move || guard(&guarded));
        let caller = Caller::here(0, &shared);
        for _ in 1..THREADS {
            let _ = done.recv();
        }
        let remote = remote.recv().ok().flatten();
        let admin = Dev::open().ok();
        // All permanent descriptors are open now.
        shared.floor.store(os::free_fd(), Ordering::Relaxed);
        Ok(Self {
            shared,
            caller,
            orders,
            done,
            remote,
            admin,
        })
    }

    /// Returns whether this kernel reports coverage.
    pub fn sees(&self) -> bool {
        self.caller.kcov.is_some()
    }

    /// Returns whether this kernel injects failures.
    pub fn fails(&self) -> bool {
        self.caller.fail.is_some()
    }

    /// Returns the known points.
    pub fn known(&self) -> &Known {
        &self.shared.known
    }

    /// Returns the addresses of our modules' code.
    pub fn text(&self) -> &Text {
        &self.shared.text
    }

    /// Runs a program on a file of its own, and removes everything that it made.
    pub fn run(&mut self, program: &Program) -> Run {
        let before = self.shared.calls.load(Ordering::Relaxed);
        self.prepare();
        let mut away = 0;
        for (index, op) in program.ops.iter().enumerate().take(MAX_OPS) {
            match usize::from(op.thread).checked_sub(1) {
                Some(other) if self.orders[other].send((index, op.clone())).is_ok() => away += 1,
                _ => {
                    self.caller.call(index, op);
                }
            }
        }
        for _ in 0..away {
            let _ = self.done.recv();
        }
        self.tidy();
        self.restore(program);
        let mut points = self
            .shared
            .points
            .lock()
            .map(|mut points| std::mem::take(&mut *points))
            .unwrap_or_default();
        if let Some(remote) = &self.remote {
            let known = |point| self.shared.known.has(point);
            remote.collect(&self.shared.text, known, &mut points);
            remote.clear();
        }
        Run {
            points,
            calls: self.shared.calls.load(Ordering::Relaxed) - before,
        }
    }

    /// Returns the text of the last program, with the answers of its calls.
    pub fn answers(&self, program: &Program) -> String {
        let mut out = String::new();
        for (line, result) in program.text().lines().zip(&self.shared.results) {
            let answer = match result.errno.load(Ordering::Relaxed) {
                0 => String::new(),
                errno => format!("  # {}", Errno(errno)),
            };
            out += &format!("{line}{answer}\n");
        }
        out
    }

    /// Runs a program whose calls wait for each other. Returns each call's name and errno (0:
    /// none).
    pub fn run_watched(&mut self, program: &Program) -> Vec<(&'static str, i32)> {
        self.prepare();
        let mut answers = Vec::new();
        for (index, op) in program.ops.iter().enumerate().take(MAX_OPS) {
            answers.push((op.shape().name, self.caller.call(index, op)));
        }
        self.tidy();
        self.restore(program);
        answers
    }

    /// Restores the mode, if a program may have set it, and revokes all grants.
    fn restore(&self, program: &Program) {
        let Some(admin) = &self.admin else { return };
        if !program.ops.iter().any(|op| op.shape().name == "auth_mode") {
            return;
        }
        let _ = auth::set(
            admin,
            &AuthMode {
                flags: KFI_AUTH_SET_MODE
                    | KFI_AUTH_SET_TIMEOUT
                    | KFI_AUTH_SET_DENY
                    | KFI_AUTH_SET_ASKS,
                mode: KFI_AUTH_OPEN,
                timeout_ms: 10_000,
                deny_ms: 1_000,
                asks: 64,
                ..Default::default()
            },
        );
        for grant in auth::list(admin).unwrap_or_default() {
            let _ = auth::revoke(admin, grant.id);
        }
    }

    fn prepare(&mut self) {
        let shared = &self.shared;
        for result in &shared.results {
            result.errno.store(0, Ordering::Relaxed);
            for part in [&result.handle, &result.fd, &result.key, &result.at] {
                part.store(0, Ordering::Relaxed);
            }
        }
        shared.waits.store(0, Ordering::Relaxed);
        if shared.arena.reset().is_err() {
            eprintln!("the memory of programs cannot be mapped");
        }
        self.caller.seen(|shared, _| {
            let fd = syscalls::open_device();
            shared.files[0].store(fd, Ordering::Relaxed);
        });
    }

    /// Closes and unmaps everything that the program left.
    fn tidy(&mut self) {
        self.caller.seen(|shared, _| {
            let maps = shared
                .maps
                .lock()
                .map(|mut maps| std::mem::take(&mut *maps));
            for (addr, len) in maps.unwrap_or_default() {
                let _ = os::call(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]);
            }
            os::limit_files(1024);
            for file in &shared.files {
                file.store(-1, Ordering::Relaxed);
            }
            let range = [shared.floor() as u64, u64::from(u32::MAX), 0, 0, 0, 0];
            let _ = os::call(libc::SYS_close_range, range);
        });
    }
}

/// Interrupts waiting calls, and ends the fuzzer if a call cannot be interrupted.
fn guard(shared: &Shared) {
    let slow = shared.slow;
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = shared.now();
        for (thread, busy) in &shared.threads {
            let begun = busy.load(Ordering::Relaxed);
            let took = Duration::from_millis(now.saturating_sub(begun));
            if begun == 0 || took < NUDGE * slow {
                continue;
            }
            os::nudge(thread.load(Ordering::Relaxed));
            // A task that waits for the agent waits only until the agent, or this file, is closed.
            drop(Agent::open());
            if took > HANG * slow {
                hang(thread.load(Ordering::Relaxed));
            }
        }
    }
}

/// Reports where a thread hangs, and exits.
fn hang(thread: u64) {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).unwrap_or_default()
    };
    println!(
        "KFI-FUZZ a call does not come back: {}\n{}",
        read("syscall"),
        read("stack")
    );
    std::process::exit(3);
}

/// The last of the ioctls that close an object, for a child that closes its parent's objects.
pub(super) const CLOSE: u32 = KFI_IOC_CLOSE;
