// SPDX-License-Identifier: MIT OR Apache-2.0

//! Charges for programs' objects: to the memory cgroup, the rdma cgroup and the lockable memory.

use super::refused;
use crate::auth::{self, Enforced};
use crate::buf::Buf;
use crate::harness::guest::{ends_in_linear_time, memory_group, until};
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Env, Test, ONE, SHM};
use crate::pair::{Opts, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{self, field_text, Dev};
use crate::sys::{self, Ended, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("memcg.objects_of_a_program_are_charged", objects_charged)
        .on(ONE | SHM)
        .seconds(10),
    Test::alone(
        "memcg.endpoints_beyond_the_limit_end_with_enomem",
        endpoints_bounded,
    )
    .on(ONE)
    .seconds(10),
    Test::alone(
        "rdmacg.objects_beyond_the_limit_end_with_eagain",
        rdma_limit,
    )
    .on(ONE),
    Test::alone(
        "rdmacg.endpoints_beyond_the_share_of_a_user_end_with_edquot",
        user_share,
    )
    .on(ONE),
    Test::alone(
        "auth.p12_ends_of_many_auth_keys_take_linear_time",
        ends_of_keys,
    )
    .on(SHM)
    .seconds(20),
    Test::alone(
        "mr.p05_memlock_holds_while_the_device_takes_the_charge_over",
        charge_changes_hands,
    )
    .on(ONE)
    .seconds(10),
    Test::alone("mr.p05_memlock_counts_pins_of_exited_children", orphans).on(ONE | SHM),
    Test::alone(
        "counters.deadline_in_a_time_namespace_is_of_its_clock",
        time_namespace,
    )
    .on(SHM),
    Test::alone(
        "auth.closed_endpoint_with_a_revoked_grant_has_no_event",
        no_event_after_close,
    )
    .on(SHM)
    .seconds(15),
    Test::alone("uapi.fdinfo_of_many_objects_is_bounded", fdinfo_bounded).on(SHM),
];

/// The user that most tests here become.
const NOBODY: u32 = 65_534;

/// Runs `f` in a child, after `prepare`, as user 65534 with this much lockable memory.
fn nobody(
    memlock: u64,
    prepare: impl FnOnce() -> Result<()>,
    f: impl FnOnce() -> Result<()>,
) -> Result<()> {
    user(NOBODY, memlock, prepare, f)
}

/// Runs `f` in a child, after `prepare`, as user `id` with this much lockable memory.
pub(super) fn user(
    id: u32,
    memlock: u64,
    prepare: impl FnOnce() -> Result<()>,
    f: impl FnOnce() -> Result<()>,
) -> Result<()> {
    start_user(id, memlock, prepare, f)?.end(Duration::from_secs(120))
}

/// A child that runs as a user.
pub(super) struct Child(i32);

impl Child {
    /// Returns the child's process number.
    pub(super) fn pid(&self) -> i32 {
        self.0
    }

    /// Waits for the child.
    ///
    /// # Errors
    ///
    /// If the child has failed, or has not ended after `limit`.
    pub(super) fn end(self, limit: Duration) -> Result<()> {
        let end = sys::wait_pid(self.0, limit)?;
        ensure!(end == Some(Ended::Exit(0)), "the child: {end:?}");
        Ok(())
    }
}

/// Starts a child that runs `f` like [`user`]. The caller has one thread.
pub(super) fn start_user(
    id: u32,
    memlock: u64,
    prepare: impl FnOnce() -> Result<()>,
    f: impl FnOnce() -> Result<()>,
) -> Result<Child> {
    use std::os::unix::fs::PermissionsExt;
    // The administrator sets the device file's mode, which is not tested here.
    fs::set_permissions(raw::device_path(), fs::Permissions::from_mode(0o666))?;
    let pid = sys::fork(|| {
        let run = || {
            prepare()?;
            sys::set_limit(libc::RLIMIT_MEMLOCK, memlock)?;
            sys::rights::become_user(id)?;
            f()
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("as user {id}: {e:#}");
                1
            }
        }
    });
    Ok(Child(pid.context("fork")?))
}

/// A control group, removed on drop.
struct Group(PathBuf);

impl Group {
    /// Creates a group with this controller. Returns `None` if the kernel has none.
    fn new(name: &str, controller: &str) -> Result<Option<Self>> {
        let Some(path) = memory_group(name) else {
            return Ok(None);
        };
        let this = Self(path);
        let root = this.0.parent().context("no parent")?;
        if fs::write(root.join("cgroup.subtree_control"), controller).is_err() {
            return Ok(None);
        }
        Ok(Some(this))
    }

    fn join(&self) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), "0")?)
    }

    fn set(&self, file: &str, to: &str) -> Result<()> {
        fs::write(self.0.join(file), to).with_context(|| format!("{file}: {to}"))
    }

    fn get(&self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(self.0.join(file))?.trim().to_owned())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the bytes charged to a memory cgroup.
fn charged(group: &Path) -> Result<u64> {
    Ok(fs::read_to_string(group.join("memory.current"))?
        .trim()
        .parse()?)
}

/// Makes `count` objects of a kind, and checks that at least `each` bytes are charged for each.
fn grows(
    group: &Path,
    what: &str,
    count: u64,
    each: u64,
    mut make: impl FnMut() -> Result<()>,
) -> Result<()> {
    // Bytes that the kernel charges ahead for each processor.
    const AHEAD: u64 = 512 << 10;
    make()?;
    let before = charged(group)?;
    for _ in 0..count {
        make().with_context(|| what.to_owned())?;
    }
    let grown = charged(group)?.saturating_sub(before);
    eprintln!("{count} of {what}: {grown} bytes");
    ensure!(
        grown + AHEAD >= count * each,
        "{count} of {what}: {grown} bytes are charged, not {each} for each"
    );
    Ok(())
}

/// Every object that a program opens is charged to its memory cgroup.
fn objects_charged(ctx: &mut Ctx) -> Result<()> {
    let Some(group) = Group::new(&format!("objects-{}", ctx.env.node), "+memory")? else {
        return skip("the kernel has no memory cgroups");
    };
    let env = ctx.env.clone();
    let kverbs = ctx.env.provider == "kverbs";
    nobody(
        1 << 30,
        || group.join(),
        || each_kind(&group.0, &env, kverbs),
    )
}

fn each_kind(group: &Path, env: &Env, kverbs: bool) -> Result<()> {
    let side = Side::of(env)?;
    let dev = &side.dev;
    let info = crate::pair::own_info(dev, env)?;
    let (fabric, domain) = (field_text(&info.fabric_name), field_text(&info.domain_name));
    // A handle alone is charged with some 50 bytes.
    grows(group, "fabrics", 8192, 128, || {
        dev.fabric_open(&env.provider, &fabric)?;
        Ok(())
    })?;
    grows(group, "domains", 512, 1024, || {
        dev.domain_open(side.fabric, &domain)?;
        Ok(())
    })?;
    grows(group, "counters", 8192, 160, || {
        dev.cntr_open(side.domain.handle)?;
        Ok(())
    })?;
    let buf = Buf::new(4096)?;
    buf.clear(1);
    grows(group, "regions", 2048, 512, || {
        side.reg(&buf, LOCAL | REMOTE)?;
        Ok(())
    })?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    grows(group, "key slots", 2048, 512, || {
        dev.key_alloc(region, 1)?;
        Ok(())
    })?;
    // Without a queue pair, which enabling creates.
    let each = if kverbs { 32 << 10 } else { 2 << 10 };
    let want = EpOpen {
        tx_size: 256,
        rx_size: 256,
        ..auth::keyed(side.domain.handle, &[])
    };
    grows(group, "endpoints", 128, each, || {
        dev.ep_open(&want)?;
        Ok(())
    })
}

/// A program that opens endpoints without end reaches the limit of its memory cgroup, and the
/// machine does not run out of memory.
fn endpoints_bounded(ctx: &mut Ctx) -> Result<()> {
    const LIMIT: u64 = 64 << 20;
    // Each endpoint takes some 13 MiB, of which 3 are charged, because they are not the device
    // driver's.
    const MOST: u32 = 40;
    let Some(group) = Group::new(&format!("endpoints-{}", ctx.env.node), "+memory")? else {
        return skip("the kernel has no memory cgroups");
    };
    group.set("memory.max", &LIMIT.to_string())?;
    let env = ctx.env.clone();
    let prepare = || {
        // When the group's memory is exhausted, calls must return an errno, and the child must not
        // be killed.
        fs::write("/proc/self/oom_score_adj", "-1000")?;
        group.join()
    };
    nobody(1 << 30, prepare, || {
        let side = Side::of(&env)?;
        let cq = side.cq(64, 0)?;
        let opts = Opts {
            tx_size: side.domain.max_tx_size.min(4096),
            rx_size: side.domain.max_rx_size.min(4096),
            ..Default::default()
        };
        for count in 0..MOST {
            let Err(e) = side.endpoint(&opts, &cq, 0) else {
                continue;
            };
            eprintln!("endpoint {count}: {e:#}");
            let errno = e.downcast_ref::<raw::CallError>().map(|e| e.errno.0);
            ensure!(errno == Some(libc::ENOMEM), "endpoint {count}: {e:#}");
            return Ok(());
        }
        bail!("{MOST} endpoints fit {LIMIT} bytes")
    })?;
    // Other programs are unaffected.
    let side = Side::open(ctx)?;
    let cq = side.cq(64, 0)?;
    side.endpoint(&Opts::default(), &cq, 0).map(|_| ())
}

/// A program's opened devices, protection domains, queues and memory regions are charged to its
/// rdma cgroup, which refuses more than its limit.
fn rdma_limit(ctx: &mut Ctx) -> Result<()> {
    let Some(group) = Group::new(&format!("rdma-{}", ctx.env.node), "+rdma")? else {
        return skip("the kernel has no rdma cgroups");
    };
    let (env, device) = (ctx.env.clone(), ctx.env.dev.clone());
    let is = |handles: u32, objects: u32| -> Result<()> {
        let want = format!("{device} hca_handle={handles} hca_object={objects}");
        let got = group.get("rdma.current")?;
        let there = got.lines().any(|line| line == want);
        ensure!(
            there || (handles, objects) == (0, 0) && !got.contains(&device),
            "{got:?}, not {want:?}"
        );
        Ok(())
    };
    let limit = format!("{device} hca_handle=1 hca_object=7");
    group.set("rdma.max", &limit)?;
    nobody(
        1 << 20,
        || group.join(),
        || {
            let side = Side::of(&env)?;
            let domain = field_text(&crate::pair::own_info(&side.dev, &env)?.domain_name);
            is(1, 1).context("a domain is a handle, and its protection domain an object")?;
            refused(
                side.dev.domain_open(side.fabric, &domain),
                libc::EAGAIN,
                "a second domain",
            )?;
            is(1, 1).context("after a refusal")?;
            let cq = side.cq(64, 0)?;
            let ep = side.endpoint(&Opts::default(), &cq, 0)?;
            is(1, 3).context("an endpoint has a queue pair and a queue")?;
            let buf = Buf::new(4096)?;
            let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
            let slots = side.dev.key_alloc(region, 2)?;
            is(1, 7)
                .context("keys have a queue pair and a queue for all, and a region for each")?;
            refused(side.dev.key_alloc(region, 1), libc::EAGAIN, "a third key")?;
            is(1, 7).context("after a refusal")?;
            // The key's hardware object changes; the number of objects does not.
            for _ in 0..3 {
                side.assign(slots[0], 0, 4096, REMOTE)?;
                side.dev.key_revoke(slots[0])?;
            }
            is(1, 7).context("after revocations")?;
            side.dev.close(slots[0])?;
            is(1, 6).context("after a slot")?;
            side.dev.close(ep.handle)?;
            is(1, 4).context("after the endpoint")?;
            let other = side.endpoint(&Opts::default(), &cq, 0)?;
            is(1, 6)?;
            let third = side.endpoint(&Opts::default(), &cq, 0);
            let errno = third
                .as_ref()
                .err()
                .and_then(|e| e.downcast_ref::<raw::CallError>());
            ensure!(
                errno.is_some_and(|e| e.errno.0 == libc::EAGAIN),
                "a second endpoint: {third:?}"
            );
            is(1, 6).context("after a refusal")?;
            side.dev.close(other.handle)?;
            Ok(())
        },
    )?;
    is(0, 0).context("after the process")
}

/// `user_mib` bounds the device's memory for a user's endpoints. Another user has another
/// share, and `kfi info -v` shows how large it is.
fn user_share(ctx: &mut Ctx) -> Result<()> {
    const PARAMETER: &str = "/sys/module/kverbs/parameters/user_mib";
    const OTHER: u32 = 2201;
    // The limit is the machine's.
    if !ctx.first() {
        return Ok(());
    }
    // Of 1,024 operations each way; two of them are 5 MiB.
    let open = |side: &Side| {
        let cq = side.cq(64, 0)?;
        let opts = Opts {
            tx_size: 1024,
            rx_size: 1024,
            ..Default::default()
        };
        side.endpoint(&opts, &cq, 0)
    };
    let refused = |side: &Side| -> Result<()> {
        let ep = open(side);
        let errno = ep
            .as_ref()
            .err()
            .and_then(|e| e.downcast_ref::<raw::CallError>());
        ensure!(
            errno.is_some_and(|e| e.errno.0 == libc::EDQUOT),
            "beyond the share: {ep:?}"
        );
        Ok(())
    };
    let before = fs::read_to_string(PARAMETER)?;
    ensure!(before.trim().parse::<u64>()? > 64, "{before} MiB at first");
    fs::write(PARAMETER, "4")?;
    let full = Map::shared(4096)?;
    let other = Cell::new(0);
    let env = ctx.env.clone();
    let result = nobody(
        1 << 20,
        || {
            // Another user opens an endpoint when the first user's share is full.
            let opens = || -> Result<()> {
                until("the share is full", WAIT, || {
                    Ok((full.get(0) != 0).then_some(()))
                })?;
                sys::rights::become_user(OTHER)?;
                let side = Side::of(&env)?;
                open(&side)?;
                refused(&side)
            };
            let pid = sys::fork(|| match opens() {
                Ok(()) => 0,
                Err(e) => {
                    eprintln!("the other user: {e:#}");
                    1
                }
            })?;
            other.set(pid);
            Ok(())
        },
        || {
            let side = Side::of(&env)?;
            let first = open(&side)?;
            refused(&side)?;
            full.set(0, 1);
            let end = sys::wait_pid(other.get(), Duration::from_secs(60))?;
            ensure!(end == Some(Ended::Exit(0)), "the other user: {end:?}");
            side.dev.close(first.handle)?;
            open(&side).context("after the first endpoint's end")?;
            Ok(())
        },
    );
    let shown = Command::new("kfi").args(["info", "-v"]).output()?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    fs::write(PARAMETER, "0")?;
    result?;
    ensure!(shown.contains("user_mib: 4\n"), "{shown}");
    ensure!(fs::read_to_string(PARAMETER)? == before, "not as before");
    Ok(())
}

/// Opens `count` domains, each with an auth key of its own, and closes the file. Returns how long
/// the close takes.
fn end_with_keys(env: &Env, count: u32) -> Result<Duration> {
    let dev = Dev::open()?;
    let info = crate::pair::own_info(&dev, env)?;
    let fabric = dev.fabric_open(&env.provider, &field_text(&info.fabric_name))?;
    for number in 0..count {
        let key = u128::from(number).to_ne_bytes();
        let mut call = DomainOpen::new_zeroed();
        call.fabric = fabric;
        call.name = info.domain_name;
        call.auth_key = key.as_ptr() as u64;
        call.auth_key_size = key.len() as u32;
        dev.call(&mut call)?;
    }
    let start = Instant::now();
    drop(dev);
    Ok(start.elapsed())
}

/// Closing a file takes no longer per auth key if there are more of them.
fn ends_of_keys(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        // A second process would disturb the measurement.
        return Ok(());
    }
    // On a debug kernel everything takes longer, and more auth keys show nothing more.
    let few = 16_000 / sys::slowness().max(1);
    ends_in_linear_time(few, |count| end_with_keys(&ctx.env, count))
}

/// While a device takes over the charge of a region, no other region is charged in its place.
fn charge_changes_hands(ctx: &mut Ctx) -> Result<()> {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    const LEN: u64 = 4 << 20;
    if !ctx.first() {
        // Both halves run as one user: pages that one half's processes pin when they exit count
        // against the other's.
        return Ok(());
    }
    fs::write(POOL, "4")?;
    if Map::huge(LEN as usize).is_err() {
        return skip("no huge pages are to be had");
    }
    let env = ctx.env.clone();
    let result = nobody(
        LEN,
        || Ok(()),
        || {
            let map = Map::huge(LEN as usize)?;
            map.set(0, 1);
            map.set(LEN as usize / 2, 1);
            let side = Side::of(&env)?;
            let reg = || side.reg_at(map.addr(), LEN, LOCAL | REMOTE);
            let region = reg()?.handle;
            let slot = side.dev.key_alloc(region, 1)?[0];
            let over = AtomicBool::new(false);
            let (keys, refused) = (AtomicU32::new(0), AtomicU32::new(0));
            let tries = 3000 / sys::slowness().max(1);
            let others = std::thread::scope(|scope| -> Result<u32> {
                let assigner = scope.spawn(|| -> Result<()> {
                    while !over.load(Ordering::Relaxed) {
                        keys.fetch_add(1, Ordering::Relaxed);
                        match side.dev.key_assign(slot, 0, LEN, REMOTE) {
                            Ok(_) => side.dev.key_revoke(slot)?,
                            // The key fits the limit. The test goes on, to see whether the other
                            // regions take the limit.
                            Err(e) if e.errno.0 == libc::ENOMEM => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => return Err(e.into()),
                        }
                    }
                    Ok(())
                });
                let mut others = 0;
                let mut all = 0;
                // Both threads must have run often enough.
                let enough = |all| all >= tries && keys.load(Ordering::Relaxed) >= tries / 10;
                while !enough(all) && !assigner.is_finished() {
                    all += 1;
                    others += u32::from(reg().is_ok());
                }
                over.store(true, Ordering::Relaxed);
                assigner.join().map_err(|_| anyhow::anyhow!("a panic"))??;
                eprintln!("{keys:?} keys, {refused:?} refused, {all} tries, {others} admitted");
                Ok(others)
            })?;
            let refused = refused.into_inner();
            ensure!(
                others == 0 && refused == 0 && vm_pin() == LEN,
                "{others} more regions, {refused} keys refused, VmPin is {}, the limit {LEN}",
                vm_pin()
            );
            Ok(())
        },
    );
    let _ = fs::write(POOL, "0");
    result
}

/// Children that pin and exit use up the limit of the user whose descriptor keeps the pages.
fn orphans(ctx: &mut Ctx) -> Result<()> {
    const LEN: u64 = 16 * 4096;
    let env = ctx.env.clone();
    // The other node's pins must not count.
    let id = 3000 + u32::from(env.node);
    user(
        id,
        LEN,
        || Ok(()),
        || {
            let side = Side::of(&env)?;
            let found = Map::shared(4096)?;
            // Pins as much as the limit allows. Returns the region's handle, or the errno.
            let child = || -> Result<std::result::Result<u64, i32>> {
                let pid = sys::fork(|| {
                    let run = || -> Result<()> {
                        let buf = Buf::new(LEN as usize)?;
                        buf.clear(1);
                        match side.reg(&buf, LOCAL) {
                            Ok(region) => found.set64(0, region.handle),
                            Err(e) => {
                                found.set64(0, 0);
                                found.set64(8, e.errno.0 as u64);
                            }
                        }
                        Ok(())
                    };
                    i32::from(run().is_err())
                });
                let end = sys::wait_pid(pid.context("fork")?, WAIT)?;
                ensure!(end == Some(Ended::Exit(0)), "the child: {end:?}");
                Ok(match found.get64(0) {
                    0 => Err(found.get64(8) as i32),
                    handle => Ok(handle),
                })
            };
            let first = child()?;
            let first = first.map_err(|e| anyhow::anyhow!("the first child: errno {e}"))?;
            for _ in 0..3 {
                let next = child()?;
                ensure!(next == Err(libc::ENOMEM), "another child: {next:?}");
            }
            let buf = Buf::new(4096)?;
            refused(side.reg(&buf, LOCAL), libc::ENOMEM, "the parent itself")?;
            side.dev.close(first)?;
            side.dev.close(side.reg(&buf, LOCAL)?.handle)?;
            let again = child()?;
            ensure!(again.is_ok(), "after the close: {again:?}");
            Ok(())
        },
    )
}

/// In a time namespace, the deadline of a wait is on the clock that the program reads.
fn time_namespace(ctx: &mut Ctx) -> Result<()> {
    for offset in [1000, -2] {
        let env = ctx.env.clone();
        let pid = sys::fork(|| match in_time_namespace(&env, offset) {
            Ok(true) => 0,
            Ok(false) => 77,
            Err(e) => {
                eprintln!("{offset} s ahead: {e:#}");
                1
            }
        });
        match sys::wait_pid(pid.context("fork")?, Duration::from_secs(20))? {
            Some(Ended::Exit(0)) => {}
            Some(Ended::Exit(77)) => return skip("the kernel has no time namespaces"),
            end => bail!("{offset} s ahead: {end:?}"),
        }
    }
    Ok(())
}

fn in_time_namespace(env: &Env, offset: i64) -> Result<bool> {
    const NEWTIME: i32 = 0x80;
    if sys::rights::unshare(NEWTIME).is_err() {
        return Ok(false);
    }
    fs::write("/proc/self/timens_offsets", format!("monotonic {offset} 0"))?;
    // Children run in the new namespace.
    let pid = sys::fork(|| {
        let run = || -> Result<()> {
            let side = Side::of(env)?;
            let cntr = side.dev.cntr_open(side.domain.handle)?;
            let (start, wait) = (Instant::now(), Duration::from_millis(300));
            refused(
                side.dev.cntr_wait(cntr, 1, wait),
                libc::ETIMEDOUT,
                "a wait for nothing",
            )?;
            let took = start.elapsed();
            ensure!(took >= wait, "it waited {took:?}, not {wait:?}");
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("{e:#}");
                1
            }
        }
    });
    let pid = pid.context("fork")?;
    let end = sys::wait_pid(pid, Duration::from_secs(10))?;
    if end.is_none() {
        let _ = sys::kill(pid, libc::SIGKILL);
        let _ = sys::wait_pid(pid, WAIT)?;
    }
    ensure!(end == Some(Ended::Exit(0)), "the wait: {end:?}");
    Ok(true)
}

/// When the close of an endpoint has returned, no event of the endpoint comes, though its grant is
/// revoked at the same time.
fn no_event_after_close(ctx: &mut Ctx) -> Result<()> {
    // Both nodes share the mode.
    if !ctx.first() {
        return Ok(());
    }
    let mode = Enforced::new()?;
    let side = Side::open(ctx)?;
    let cq = side.cq(64, 0)?;
    let rounds = 1500 / sys::slowness().max(1);
    for round in 0..rounds {
        let key = (u128::from(round) + 1).to_ne_bytes();
        let grant = auth::add(mode.dev(), &auth::to_root(&key))?;
        let (pep, at) = side.listen_under(ctx.env.at(0), 4, &[&key])?;
        let ep = side
            .dev
            .ep_open(&auth::keyed(side.domain.handle, &key))?
            .handle;
        side.dev.bind(ep, side.eq.handle, 0)?;
        side.dev.bind(ep, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
        side.dev.enable(ep)?;
        side.dev.connect(ep, at, &[])?;
        std::thread::scope(|scope| -> Result<()> {
            let revoked = scope.spawn(|| auth::revoke(mode.dev(), grant));
            side.dev.close(ep)?;
            // Requests belong to the passive endpoint.
            while let Ok(event) = side.dev.eq_read(side.eq.handle, 0) {
                ensure!(
                    event.raw.event == KFI_CONNREQ,
                    "round {round}: {:?}",
                    event.raw
                );
            }
            revoked.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            Ok(())
        })?;
        while let Ok(event) = side.dev.eq_read(side.eq.handle, 0) {
            ensure!(
                event.raw.event == KFI_CONNREQ,
                "round {round}: {:?}",
                event.raw
            );
        }
        side.dev.close(pep)?;
    }
    Ok(())
}

/// Reading a process's fdinfo takes bounded time, however many objects it has.
fn fdinfo_bounded(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let fabric = field_text(&crate::pair::own_info(&side.dev, &ctx.env)?.fabric_name);
    for _ in 0..3000 {
        side.dev.fabric_open(&ctx.env.provider, &fabric)?;
    }
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&side.dev));
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let lines = text.lines().count();
    ensure!(lines < 1100, "{lines} lines");
    ensure!(text.contains("kfabric-fabric:\t3001\n"), "{}", &text[..400]);
    ensure!(text.ends_with("more\n"), "{}", &text[text.len() - 100..]);
    Ok(())
}
