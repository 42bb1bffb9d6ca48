// SPDX-License-Identifier: MIT OR Apache-2.0

//! MPI programs and other versions of libfabric over the plug-in, all unmodified.
//!
//! The programs are in layers (`xtask/src/setup/layers.rs`), which guests mount. Each job's messages
//! must have passed endpoints of ours: the kernel counts their operations.

use super::ofi::{key_file, KEY_FILE};
use crate::harness::guest::run;
use crate::harness::{skip, Ctx, Test, NETNS, SHM, SHM_LONG, TWO};
use crate::raw::Dev;
use crate::sys::{self, Ended};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::KFI_TYPE_EP;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("mpi.open_mpi_on_one_host_passes_checked_data", |c| {
        of_node_1(c, &[DEBIAN], |c| {
            pass(c, &Job::of(Mpi::Open, 2, &["ring", "reduce", "onesided"]))
        })
    })
    .seconds(30),
    Test::pair("mpi.mpich_between_two_nodes_passes_checked_data", |c| {
        let peer = peers_process(c)?;
        of_node_1(c, &[PYPI], |c| {
            let job = Job::of(Mpi::Mpich, 2, &["ring", "reduce", "onesided"]);
            pass(c, &Job { peer, ..job })
        })
    })
    .seconds(30),
    Test::pair("mpi.four_ranks_between_two_nodes_pass_checked_data", |c| {
        let peer = peers_process(c)?;
        of_node_1(c, &[PYPI], |c| {
            let job = Job::of(Mpi::Mpich, 4, &["ring", "reduce", "onesided"]);
            pass(c, &Job { peer, ..job })
        })
    })
    .on(NETNS)
    .seconds(60),
    Test::pair("mpi.mpich_between_two_guests_passes_checked_data", |c| {
        between_guests(c, &["ring", "reduce", "onesided"])
    })
    .on(TWO)
    .seconds(40),
    Test::pair("mpi.four_ranks_on_one_host_pass_checked_data", |c| {
        of_node_1(c, &BOTH, |c| {
            pass(c, &Job::of(Mpi::Open, 4, &["reduce"]))?;
            pass(c, &Job::of(Mpi::Mpich, 4, &["reduce"]))
        })
    })
    .on(SHM)
    .seconds(40),
    Test::pair("mpi.job_with_killed_rank_ends_and_leaves_nothing", |c| {
        of_node_1(c, &BOTH, killed)
    })
    .on(NETNS | SHM)
    .seconds(40),
    Test::pair("mpi.ranks_with_rings_pass_checked_data_and_end", |c| {
        of_node_1(c, &BOTH, |c| {
            std::env::set_var(RINGS, "1");
            let cases = ["ring", "reduce", "onesided"];
            let passed = [Mpi::Open, Mpi::Mpich]
                .iter()
                .try_for_each(|mpi| pass(c, &Job::of(*mpi, 3, &cases)));
            let result = passed.and_then(|()| mixed(c, 4)).and_then(|()| killed(c));
            std::env::remove_var(RINGS);
            result
        })
    })
    .on(SHM)
    .seconds(90),
    Test::pair("mpi.python_programs_pass_a_part_of_their_suite", |c| {
        let args = ["-i", "test_p2p_buf_matched"];
        of_node_1(c, &BOTH, |c| {
            python(c, Mpi::Open, &args, 500)?;
            python(c, Mpi::Mpich, &args, 500)
        })
    })
    .on(SHM)
    .seconds(60),
    Test::pair("mpi.python_programs_over_open_mpi_pass_their_suite", |c| {
        of_node_1(c, &BOTH, |c| python(c, Mpi::Open, SUITE, 1800))
    })
    .on(SHM_LONG)
    .seconds(900),
    Test::pair("mpi.python_programs_over_mpich_pass_their_suite", |c| {
        of_node_1(c, &BOTH, |c| python(c, Mpi::Mpich, SUITE, 1800))
    })
    .on(SHM_LONG)
    .seconds(900),
    Test::pair("mpi.messages_of_mixed_sizes_arrive", |c| {
        of_node_1(c, &BOTH, |c| mixed(c, 4))
    })
    .on(NETNS | SHM)
    .seconds(40),
    Test::pair("mpi.messages_of_mixed_sizes_arrive_for_ten_minutes", |c| {
        of_node_1(c, &BOTH, |c| mixed(c, 300))
    })
    .on(SHM_LONG)
    .seconds(720),
    Test::pair("mpi.ranks_under_auth_key_refuse_rank_without_it", |c| {
        of_node_1(c, &BOTH, |c| {
            let key = key_file(c)?;
            let result = [Mpi::Open, Mpi::Mpich]
                .iter()
                .try_for_each(|mpi| third_rank(c, *mpi, &key));
            std::fs::remove_file(&key)?;
            result
        })
    })
    .on(SHM)
    .seconds(60),
    Test::pair("mpi.older_and_newer_libfabric_exchange_messages", |c| {
        versions(c)
    })
    .on(SHM)
    .seconds(20),
];

/// The parameter of the plug-in that selects rings.
const RINGS: &str = "FI_KFABRIC_RINGS";

/// An MPI implementation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mpi {
    /// Open MPI of the distribution, over the distribution's libfabric.
    Open,
    /// MPICH of Python's index, over a newer libfabric of its own.
    Mpich,
}

/// The layer with Open MPI and an old libfabric.
const DEBIAN: &str = "/opt/kfabric-mpi";
/// The layer with MPICH and mpi4py.
const PYPI: &str = "/opt/kfabric-pypi";

/// The layers of both implementations.
const BOTH: [&str; 2] = [DEBIAN, PYPI];

/// Folder of the oldest libfabric: of the programs, and of the library.
pub(super) const OLD: (&str, &str) = (
    "/opt/kfabric-mpi/opt/libfabric-old/usr/bin",
    "/opt/kfabric-mpi/opt/libfabric-old/usr/lib/x86_64-linux-gnu",
);
/// Folder of MPICH's libfabric.
pub(super) const NEW: &str = "/opt/kfabric-pypi/mpich/lib/mpich";

/// Time limit of a job whose rank was killed.
const DEATH: Duration = Duration::from_secs(60);

/// Length of a job's output in a report. mpi4py's suite prints 200 KiB.
const MOST_SAID: usize = 8192;

/// A job of MPI.
struct Job<'a> {
    mpi: Mpi,
    ranks: usize,
    /// The program, and its arguments.
    argv: Vec<&'a str>,
    /// A process in the network namespace of the odd ranks; `None`: one namespace.
    peer: Option<u32>,
    /// The file of an auth key, and whether the last rank has the auth key, too.
    key: Option<(&'a Path, bool)>,
    limit: Duration,
}

impl<'a> Job<'a> {
    /// A job of cases of `interop/mpi_cases.c`.
    fn of(mpi: Mpi, ranks: usize, cases: &[&'a str]) -> Self {
        let program = match mpi {
            Mpi::Open => "/kfi/bin/mpi_cases_openmpi",
            Mpi::Mpich => "/kfi/bin/mpi_cases_mpich",
        };
        let mut argv = vec![program];
        argv.extend(cases);
        Self {
            mpi,
            ranks,
            argv,
            peer: None,
            key: None,
            limit: Duration::from_secs(200),
        }
    }

    /// The command that starts the job.
    fn command(&self, ctx: &Ctx) -> Command {
        let ranks = self.ranks.to_string();
        let mut command;
        match self.mpi {
            Mpi::Open => {
                command = Command::new("mpirun.openmpi");
                command.args(["-n", &ranks, "--oversubscribe", "--bind-to", "none"]);
                // The messages of one host, too, go by libfabric.
                command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
                command.args(["--mca", "opal_common_ofi_provider_include", "kfabric"]);
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
                command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            }
            Mpi::Mpich => {
                command = Command::new(format!("{PYPI}/mpich/bin/mpiexec"));
                command.args(["-launcher", "fork", "-n", &ranks]);
                command.env("MPIR_CVAR_CH4_NETMOD", "ofi");
                command.env("MPIR_CVAR_NOLOCAL", "1");
            }
        }
        if let Some(pid) = self.peer {
            let enter = format!(
                "[ $((PMI_RANK % 2)) = 0 ] || exec nsenter --net=/proc/{pid}/ns/net \"$@\"; exec \"$@\""
            );
            command.args(["sh", "-c", &enter, "sh"]);
            command.env("FI_KFABRIC_DOMAIN", "^shm");
        }
        if let Some((path, all)) = self.key {
            command.env(KEY_FILE, path);
            if !all {
                let rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}";
                let last = self.ranks - 1;
                let leave = format!("[ {rank} != {last} ] || unset {KEY_FILE}; exec \"$@\"");
                command.args(["sh", "-c", &leave, "sh"]);
            }
        }
        command.args(&self.argv);
        command.env("FI_PROVIDER_PATH", "/kfi/bin");
        command.env("FI_PROVIDER", "kfabric");
        if ctx.provider() == "kshm" {
            command.env("FI_KFABRIC_DOMAIN", "shm");
        } else if self.peer.is_none() {
            command.env("FI_KFABRIC_DOMAIN", &ctx.env.dev);
        }
        command
    }
}

/// An ended job.
struct Report {
    /// How the launcher ended.
    ended: Ended,
    /// Output of all processes, at most the last [`MOST_SAID`] bytes.
    said: String,
    /// Completed operations of the busiest endpoint of each process.
    operations: BTreeMap<u32, u64>,
}

/// Runs the test on node 1, with layers; the other node waits.
fn of_node_1(
    ctx: &mut Ctx,
    layers: &[&str],
    test: impl FnOnce(&mut Ctx) -> Result<()>,
) -> Result<()> {
    mount_layers(layers)?;
    let result = if ctx.first() { test(ctx) } else { Ok(()) };
    result?;
    // Longer than the limits of any test's jobs.
    ctx.ctl
        .set_limit(sys::patience(Duration::from_secs(7000)))?;
    ctx.barrier("done")
}

/// Runs a job of MPICH with one rank on each node. The launcher names the command of each node's part,
/// and the nodes start their parts; the parts connect to the launcher on node 1.
fn between_guests(ctx: &mut Ctx, cases: &[&str]) -> Result<()> {
    mount_layers(&[PYPI])?;
    let limit = Duration::from_secs(300);
    ctx.ctl.set_limit(sys::patience(limit))?;
    if !ctx.first() {
        let part: String = ctx.ctl.recv()?;
        run_part(ctx, &part, limit)?;
        return ctx.barrier("done");
    }
    let (own, peer) = (ctx.env.addr.to_string(), ctx.env.peer.to_string());
    let hosts = format!("{own},{peer}");
    let mut job = Command::new(format!("{PYPI}/mpich/bin/mpiexec"));
    job.args(["-launcher", "manual", "-localhost", &own, "-hosts", &hosts]);
    job.args(["-n", "2", "/kfi/bin/mpi_cases_mpich"])
        .args(cases);
    job.env("MPIR_CVAR_CH4_NETMOD", "ofi");
    job.env("FI_PROVIDER_PATH", "/kfi/bin");
    job.env("FI_PROVIDER", "kfabric");
    // MPICH takes kshm's domain, which has more capabilities.
    job.env("FI_KFABRIC_DOMAIN", "^shm");
    job.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut launcher = job.spawn()?;
    let out = launcher.stdout.take().context("no output")?;
    let mut lines = BufReader::new(out).lines();
    let mut parts = Vec::new();
    for line in lines.by_ref() {
        let line = line?;
        if line == "HYDRA_LAUNCH_END" {
            break;
        }
        parts.extend(line.strip_prefix("HYDRA_LAUNCH: ").map(str::to_owned));
    }
    let [here, there] = &parts[..] else {
        bail!("the launcher names {parts:?}");
    };
    ctx.ctl.send(there)?;
    let said = std::thread::spawn(move || lines.map_while(|line| line.ok()).collect::<Vec<_>>());
    let result = run_part(ctx, here, limit);
    if result.is_err() {
        launcher.kill()?;
    }
    let status = launcher.wait()?;
    let said = said.join().unwrap_or_default();
    result.with_context(|| said.join(" | "))?;
    ensure!(status.success(), "{status}: {said:?}");
    ctx.barrier("done")
}

/// Runs a node's part of a job until its end, and checks that its rank used endpoints of ours.
fn run_part(ctx: &Ctx, part: &str, limit: Duration) -> Result<()> {
    let report = follow(Command::new("sh").args(["-c", part]), limit, |_, _| Ok(()))?;
    ensure!(
        report.ended == Ended::Exit(0),
        "node {}: {:?}: {}",
        ctx.env.node,
        report.ended,
        report.said
    );
    uses_kfabric(&report, 1)
}

/// Returns the process of node 2, if the nodes have network namespaces.
fn peers_process(ctx: &mut Ctx) -> Result<Option<u32>> {
    let peer: u32 = ctx.ctl.exchange(&std::process::id())?;
    Ok((ctx.provider() != "kshm").then_some(peer))
}

/// Skips the test unless the guest has the layers. Puts that of Open MPI over `/usr` and `/etc`, for
/// this process and its children.
fn mount_layers(layers: &[&str]) -> Result<()> {
    if let Some(at) = layers.iter().find(|at| !Path::new(at).is_dir()) {
        return skip(format!("the guest has no layer {at}"));
    }
    if !layers.contains(&DEBIAN) {
        return Ok(());
    }
    sys::rights::unshare(libc::CLONE_NEWNS)?;
    run("mount", &["--make-rprivate", "/"])?;
    for part in ["usr", "etc"] {
        let options = format!("lowerdir={DEBIAN}/{part}:/{part}");
        let at = format!("/{part}");
        run("mount", &["-t", "overlay", "-o", &options, "overlay", &at])?;
    }
    Ok(())
}

/// Operations by which a process shows that it has moved messages.
const BUSY: u64 = 8;

/// Jobs of both implementations whose rank is killed end.
fn killed(ctx: &mut Ctx) -> Result<()> {
    [Mpi::Open, Mpi::Mpich]
        .iter()
        .try_for_each(|mpi| ends(ctx, &Job::of(*mpi, 3, &["die"])))
}

/// Returns whether a process has mapped rings: only these begin at the second page of their file.
fn has_rings(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut lines = maps.lines();
    lines.any(|line| line.contains(" rw-s 00001000 ") && line.ends_with("[kfabric]"))
}

/// Adds the endpoints of the job's processes to the counts. The kernel does not see messages by
/// rings: a process maps rings when a connection moves its first message, and must do so if rings are
/// selected.
fn count(operations: &mut BTreeMap<u32, u64>, group: u32) -> Result<()> {
    for object in Dev::open()?.obj_list()? {
        if object.kind != KFI_TYPE_EP || !is_of(object.pid, group) {
            continue;
        }
        let count = match (std::env::var_os(RINGS), has_rings(object.pid)) {
            (None, _) => object.c,
            (Some(_), true) => BUSY,
            (Some(_), false) => 0,
        };
        let most = operations.entry(object.pid).or_default();
        *most = (*most).max(count);
    }
    Ok(())
}

/// Returns whether a process descends from the launcher `group`.
fn is_of(mut pid: u32, group: u32) -> bool {
    while pid > 1 {
        if pid == group {
            return true;
        }
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            return false;
        };
        // The parent is the second field behind the name, which is in parentheses.
        let rest = text.rsplit(')').next().unwrap_or_default();
        let parent = rest.split_whitespace().nth(1);
        pid = parent.and_then(|word| word.parse().ok()).unwrap_or(0);
    }
    false
}

/// Runs a job until its end, or until its time is over.
fn finish(ctx: &Ctx, job: &Job<'_>) -> Result<Report> {
    follow(&mut job.command(ctx), job.limit, |_, _| Ok(()))
}

/// Runs the launcher of a job until its end, and counts the operations of its processes. Calls `watch`
/// again and again with the launcher's process and the file of the output.
fn follow(
    command: &mut Command,
    limit: Duration,
    mut watch: impl FnMut(u32, &Path) -> Result<()>,
) -> Result<Report> {
    let path = std::env::temp_dir().join(format!("mpi-{}", std::process::id()));
    let file = File::create(&path)?;
    command.stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file);
    // A process group of its own, so that all of the job can be killed.
    command.process_group(0);
    let launcher = command
        .spawn()
        .with_context(|| format!("{command:?}"))?
        .id();
    let end = Instant::now() + sys::patience(limit);
    let mut operations = BTreeMap::new();
    let ended = loop {
        if let Some(ended) = sys::try_wait_pid(launcher as i32)? {
            break Some(ended);
        }
        if Instant::now() > end {
            break None;
        }
        count(&mut operations, launcher)?;
        watch(launcher, &path)?;
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    if std::env::var_os("KFI_VERBOSE").is_some() {
        eprintln!("{}", String::from_utf8_lossy(&text));
    }
    let end = &text[text.len().saturating_sub(MOST_SAID)..];
    let said = String::from_utf8_lossy(end).into_owned();
    let Some(ended) = ended else {
        sys::kill(-(launcher as i32), libc::SIGKILL)?;
        bail!("{command:?} does not end: {said}");
    };
    Ok(Report {
        ended,
        said,
        operations,
    })
}

/// Runs a job that must succeed, and checks that all ranks used endpoints of ours.
fn pass(ctx: &Ctx, job: &Job<'_>) -> Result<()> {
    let report = finish(ctx, job)?;
    ensure!(
        report.ended == Ended::Exit(0),
        "{:?}: {}",
        report.ended,
        report.said
    );
    uses_kfabric(&report, job.ranks)
}

/// Checks that as many processes as there are ranks have moved messages by endpoints of ours.
fn uses_kfabric(report: &Report, ranks: usize) -> Result<()> {
    let busy = report
        .operations
        .values()
        .filter(|count| **count >= BUSY)
        .count();
    ensure!(
        busy >= ranks,
        "{busy} processes have used kfabric: {:?}: {}",
        report.operations,
        report.said
    );
    Ok(())
}

/// Runs a job that kills one of its ranks: the launcher must report a failure within [`DEATH`], and
/// no process may be left.
fn ends(ctx: &Ctx, job: &Job<'_>) -> Result<()> {
    let job = Job {
        limit: DEATH,
        argv: job.argv.clone(),
        ..*job
    };
    let report = finish(ctx, &job)?;
    ensure!(
        report.ended != Ended::Exit(0),
        "the job succeeded: {}",
        report.said
    );
    uses_kfabric(&report, job.ranks)?;
    let left: Vec<u32> = report.operations.keys().copied().collect();
    crate::harness::guest::until("the ranks have ended", DEATH, || {
        let lives = |pid: &&u32| Path::new(&format!("/proc/{pid}")).exists();
        Ok(left.iter().find(lives).is_none().then_some(()))
    })
}

/// Attempts of a rank to connect, each with an endpoint of its own, after which the test ends the rank.
const ATTEMPTS: usize = 3;
/// Time of a rank's attempts after which the test ends the rank: endpoints may have the same handle.
const ATTEMPTING: Duration = Duration::from_secs(5);

/// Three ranks under an auth key exchange messages. If the last rank has no auth key, the last rank's
/// connections are refused. With Open MPI the others exchange their messages. MPICH's ranks exchange
/// messages at their start, so that all of them wait for the last one.
fn third_rank(ctx: &Ctx, mpi: Mpi, key: &Path) -> Result<()> {
    let job = |all| Job {
        key: Some((key, all)),
        ..Job::of(mpi, 3, &["third"])
    };
    let report = finish(ctx, &job(true))?;
    ensure!(
        report.ended == Ended::Exit(0) && report.said.contains("rank 2's message has arrived"),
        "{:?}: {}",
        report.ended,
        report.said
    );
    let (mut attempts, mut killed, mut first) = (BTreeSet::new(), false, None);
    let arrives = mpi == Mpi::Open;
    let job = job(false);
    let report = follow(&mut job.command(ctx), job.limit, |launcher, said| {
        let mut last = None;
        for object in Dev::open()?.obj_list()? {
            let of_job = object.kind == KFI_TYPE_EP && is_of(object.pid, launcher);
            if of_job && !has_key(object.pid) {
                attempts.insert(object.handle);
                first.get_or_insert_with(Instant::now);
                last = Some(object.pid);
            }
        }
        let said = std::fs::read_to_string(said)?;
        let arrived = !arrives || said.contains("rank 1's messages have arrived");
        let enough =
            attempts.len() >= ATTEMPTS || first.is_some_and(|at| at.elapsed() > ATTEMPTING);
        let over = arrived && enough;
        if let (Some(pid), true, false) = (last, over, killed) {
            sys::kill(pid as i32, libc::SIGKILL)?;
            killed = true;
        }
        Ok(())
    })?;
    ensure!(
        report.ended != Ended::Exit(0)
            && !attempts.is_empty()
            && report.said.contains("rank 1's messages have arrived") == arrives
            && !report.said.contains("rank 2's message has arrived"),
        "{:?} after {} attempts: {}",
        report.ended,
        attempts.len(),
        report.said
    );
    Ok(())
}

/// Returns whether a process has the file of an auth key in its environment, or has ended.
fn has_key(pid: u32) -> bool {
    let all = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut names = all.split(|byte| *byte == 0);
    all.is_empty() || names.any(|one| one.starts_with(KEY_FILE.as_bytes()))
}

/// Messages of mixed sizes for `seconds` by each MPI.
fn mixed(ctx: &Ctx, seconds: u64) -> Result<()> {
    let (length, seed) = (seconds.to_string(), std::process::id().to_string());
    for mpi in [Mpi::Open, Mpi::Mpich] {
        let job = Job::of(mpi, 2, &["mixed", &length, &seed]);
        let limit = Duration::from_secs(seconds + 60);
        pass(ctx, &Job { limit, ..job })?;
    }
    Ok(())
}

/// Arguments of mpi4py's own suite that leave out tests:
///
/// - `spawn`, `dynproc`: new processes need a launcher that can start them.
/// - `ulfm`: Open MPI cannot revoke communicators over libfabric. These tests also fail with its provider tcp.
/// - `datatype`, `test_io`: files and descriptions of data, for a third of the suite's time. They passed with
///   MPICH.
const SUITE: &[&str] = &[
    "-e", "spawn", "-e", "dynproc", "-e", "ulfm", "-e", "datatype", "-e", "test_io",
];

/// Tests in which two ranks want a mutex of mpi4py 4.1.2, which loses the next owner with MPICH.
///
/// `Mutex._acquire` clears the rank's own entry by an accumulate, and does not flush this accumulate before
/// other ranks can find the entry. MPICH sends the accumulate through another queue than messages of other
/// ranks. If the other rank's accumulate is first, its entry is cleared, and both ranks wait forever. The
/// entry is also lost over libfabric's tcp and tcp;ofi_rxm.
const MUTEXES: &[&str] = &[
    "*.TestMutex*World.*",
    "*.TestCondition*World.*",
    "*.TestSemaphoreWorld.*",
];

/// Runs tests of mpi4py's own suite, for `seconds` at most.
fn python(ctx: &Ctx, mpi: Mpi, args: &[&str], seconds: u64) -> Result<()> {
    let tests = format!("{PYPI}/mpi4py-tests/test/main.py");
    // The name of each test shows where a job hangs. After a failure the rank aborts the job: the other
    // ranks would wait in a test that the rank does not run.
    let mut argv = vec!["python3", &tests, "-v", "-f"];
    argv.extend(args);
    std::env::set_var("PYTHONPATH", format!("{PYPI}/mpi4py"));
    std::env::set_var("PYTHONDONTWRITEBYTECODE", "1");
    if mpi == Mpi::Mpich {
        // The wheel answers that it has Fortran types that it lacks, also to a single process over tcp.
        argv.extend(["-e", "mpiabi"]);
        // MPI_Dist_graph_create probes for a message of any rank, and may receive the message of another
        // rank with the probed length: the test fails on one rank, and the other rank waits for it. The
        // test also fails and hangs over libfabric's tcp.
        argv.extend(["-x", "*.testDistgraphcomm"]);
        argv.extend(MUTEXES.iter().flat_map(|names| ["-x", *names]));
        // Open MPI's library is where programs look first.
        std::env::set_var("MPI4PY_MPIABI", "mpich");
        std::env::set_var("LD_LIBRARY_PATH", format!("{PYPI}/mpich/lib"));
    }
    let job = Job {
        argv,
        limit: Duration::from_secs(seconds),
        ..Job::of(mpi, 2, &[])
    };
    pass(ctx, &job)
}

/// Cases of `interop/fi_cases.c` that each version of libfabric passes: structures of all kinds.
const CASES: [&str; 10] = [
    "getinfo",
    "registration",
    "rma",
    "messages",
    "failed_messages",
    "names",
    "events",
    "completions",
    "counters",
    "rdm_receives",
];

/// The programs of libfabric over each version of the library: the old one's own, and the guests'
/// with MPICH's library.
fn versions(ctx: &mut Ctx) -> Result<()> {
    mount_layers(&BOTH)?;
    let (programs, library) = OLD;
    for library in [library, NEW] {
        super::ofi::cases_under(ctx, library, &CASES)?;
    }
    for (number, kind) in ["msg", "rdm"].iter().enumerate() {
        for (folder, library) in [(programs, library), ("/usr/bin", NEW)] {
            let version = run_with(library, &format!("{folder}/fi_info"), &["--version"])?;
            let wanted = if library == NEW {
                "libfabric: 2.5"
            } else {
                "libfabric: 1.17"
            };
            ensure!(version.contains(wanted), "{version}");
            let listed = run_with(library, &format!("{folder}/fi_info"), &["-p", "kfabric"])?;
            ensure!(listed.contains("provider: kfabric\n"), "{listed}");
            ensure!(listed.contains("provider: kfabric;ofi_rxm\n"), "{listed}");
            ctx.barrier(&format!("listed {number}"))?;
            let provider = if *kind == "msg" {
                "kfabric"
            } else {
                "kfabric;ofi_rxm"
            };
            super::ofi::pingpong_of(ctx, folder, library, provider, kind)?;
        }
    }
    Ok(())
}

/// Runs a program with the libfabric in a folder. Returns its output.
fn run_with(library: &str, program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).env("LD_LIBRARY_PATH", library);
    command.env("FI_PROVIDER_PATH", "/kfi/bin");
    let out = command.output().with_context(|| program.to_owned())?;
    ensure!(out.status.success(), "{command:?}: {out:?}");
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
