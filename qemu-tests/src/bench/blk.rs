// SPDX-License-Identifier: MIT OR Apache-2.0

//! A remote disk: kfblk beside nvme-rdma and nvmet, through fio.
//!
//! Both use one rxe in the guest's first network namespace, the only one that the NVMe modules
//! support, and so connect to themselves: rxe delivers such packets without a network device. Each
//! disk has one queue, no scheduler, and as many bytes behind it, all written once before.

use super::Figure;
use crate::harness::guest::{load, run, unload, until};
use crate::harness::{Ctx, Env};
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes of each disk.
const SIZE: u64 = 64 << 20;

const NETDEV: &str = "kfb0";
const DEV: &str = "rxeb";
const ADDR: &str = "10.78.0.1";
/// Name of the export, the disk and the initiator.
const NAME: &str = "bench";
const NQN: &str = "kfabric-bench";
const PORT: &str = "4420";
const BACKING: &str = "/dev/ram0";
const TARGET: &str = "/sys/kernel/config/nvmet";
/// Modules of the peer; their dependencies load and unload with them.
const MODULES: [&str; 2] = ["nvmet-rdma", "nvme-rdma"];

/// Time within which a device must appear.
const LIMIT: Duration = Duration::from_secs(10);

/// Number of warm-up requests of a traced job.
const WARM: usize = 64;

/// A job of fio.
struct Job {
    case: &'static str,
    /// fio's name of the access pattern.
    rw: &'static str,
    block: usize,
    depth: u32,
    count: usize,
    /// Wanted ratio, of a memory-backed and of a block-backed export.
    wanted: [&'static str; 2],
}

const fn job(case: &'static str, rw: &'static str, depth: u32, count: usize) -> Job {
    Job {
        case,
        rw,
        block: 4 << 10,
        depth,
        count,
        wanted: [">= 1.5", ">= 1.0"],
    }
}

const fn long(case: &'static str, rw: &'static str) -> Job {
    Job {
        case,
        rw,
        block: 128 << 10,
        depth: 4,
        count: 400,
        wanted: [">= 1.1", ">= 1.1"],
    }
}

const JOBS: [Job; 6] = [
    job("4 KiB read, one at a time", "randread", 1, 3000),
    job("4 KiB write, one at a time", "randwrite", 1, 3000),
    job("4 KiB read, 16 at once", "randread", 16, 6000),
    job("4 KiB write, 16 at once", "randwrite", 16, 6000),
    long("128 KiB read in a row, 4 at once", "read"),
    long("128 KiB write in a row, 4 at once", "write"),
];

/// Runs a program in the first network namespace.
fn first(args: &str) -> Result<String> {
    let mut all = vec!["--net=/proc/1/ns/net"];
    all.extend(args.split(' '));
    Ok(run("nsenter", &all)?.trim().to_owned())
}

/// A network device that leads to itself, with an rxe, removed on drop.
struct Link;

impl Link {
    fn new() -> Result<Self> {
        first(&format!("ip link add {NETDEV} mtu 4400 type dummy"))?;
        let link = Self;
        first(&format!("ip link set {NETDEV} up"))?;
        first(&format!("ip addr add {ADDR}/24 dev {NETDEV}"))?;
        first(&format!("rdma link add {DEV} type rxe netdev {NETDEV}"))?;
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = first(&format!("rdma link del {DEV}"));
        let _ = first(&format!("ip link del {NETDEV}"));
    }
}

/// Waits for a disk, and removes its request scheduler.
fn appears(device: &Path) -> Result<()> {
    let name = device.file_name().context("no name")?.to_string_lossy();
    let scheduler = format!("/sys/block/{name}/queue/scheduler");
    until("the disk", LIMIT, || {
        Ok((device.exists() && Path::new(&scheduler).exists()).then_some(()))
    })?;
    fs::write(&scheduler, "none").with_context(|| scheduler.clone())
}

/// Writes the whole disk, so that there is memory behind every block.
fn fill(device: &Path) -> Result<()> {
    let to = format!("of={}", device.display());
    let count = format!("count={}", SIZE >> 20);
    run(
        "dd",
        &["if=/dev/zero", &to, "bs=1M", &count, "oflag=direct"],
    )
    .map(drop)
}

/// Returns fio's arguments.
fn arguments(device: &Path, job: &Job) -> Vec<String> {
    let fixed = [
        "--name=bench",
        "--thread",
        "--ioengine=libaio",
        "--direct=1",
        "--gtod_reduce=1",
        "--clocksource=clock_gettime",
        "--norandommap",
        "--randrepeat=1",
        "--invalidate=0",
        "--output-format=json",
    ];
    let mut all: Vec<String> = fixed.map(str::to_owned).into();
    all.extend([
        format!("--filename={}", device.display()),
        format!("--rw={}", job.rw),
        format!("--bs={}", job.block),
        format!("--iodepth={}", job.depth),
        format!("--io_size={}", job.block * job.count),
    ]);
    all
}

/// Runs fio. Returns the operations per second.
fn fio(device: &Path, job: &Job) -> Result<f64> {
    let args = arguments(device, job);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = run("fio", &args)?;
    // fio may print other lines before.
    let json = said.find('{').map_or("", |at| &said[at..]);
    let report: Value = serde_json::from_str(json).with_context(|| said.clone())?;
    let side = if job.rw.ends_with("read") {
        "read"
    } else {
        "write"
    };
    let of = |what: &str| {
        report
            .pointer(&format!("/jobs/0/{side}/{what}"))
            .and_then(Value::as_f64)
            .with_context(|| format!("no {what}: {said}"))
    };
    let (done, iops) = (of("total_ios")?, of("iops")?);
    ensure!(
        done == job.count as f64 && iops > 0.0,
        "{done} operations, {iops} a second"
    );
    Ok(iops)
}

/// Returns the number of requests that a disk has completed.
fn done(device: &Path) -> Result<usize> {
    let name = device.file_name().context("no name")?.to_string_lossy();
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat"))?;
    let fields: Vec<usize> = stat
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // Sum of reads and writes.
    Ok(fields.first().unwrap_or(&0) + fields.get(4).unwrap_or(&0))
}

/// Traces a part of each job. The traces' names begin with `whose`.
fn traces(device: &Path, whose: &str) -> Result<()> {
    // The modules were not loaded before.
    let symbols = fs::read("/proc/kallsyms")?;
    fs::write(format!("/host/kallsyms.{whose}"), symbols)?;
    for job in &JOBS {
        let long = Job {
            count: 1 << 22,
            ..*job
        };
        let idle = done(device)?;
        let mut fio = Command::new("fio")
            .args(arguments(device, &long))
            .stdout(Stdio::null())
            .spawn()?;
        // fio's clock runs on while it waits for the host to bring its pages, so progress is
        // measured in requests. fio runs until killed.
        let traced = until("fio's requests", LIMIT * 60, || {
            if let Some(status) = fio.try_wait()? {
                bail!("fio has ended: {status}");
            }
            Ok((done(device)? >= idle + WARM).then_some(()))
        })
        .and_then(|()| {
            let before = done(device)?;
            let name = format!("{whose}-{}-{}", job.rw, job.depth);
            super::profile::traced(&name, || {
                std::thread::sleep(Duration::from_millis(60));
                Ok(done(device)? - before)
            })
        });
        fio.kill()?;
        fio.wait()?;
        traced?;
    }
    Ok(())
}

/// Runs every job. Returns the operations per second.
fn jobs(device: &Path) -> Result<Vec<f64>> {
    // A little of each first, to warm up.
    JOBS.iter()
        .map(|job| {
            let warm = Job {
                count: job.count / 10,
                ..*job
            };
            fio(device, &warm)?;
            fio(device, job)
        })
        .collect()
}

/// Exports through kfblk, with the arguments of `kfi blk export`, and runs `jobs` on the disk.
fn ours<T>(what: &str, jobs: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    load("kfblk")?;
    let at = format!("--port {PORT} --provider kverbs");
    first(&format!(
        "kfi blk export {NAME} {what} --listen {ADDR} {at}"
    ))?;
    let device = PathBuf::from(first(&format!(
        "kfi blk connect {ADDR} {NAME} --disk {NAME} --client {NAME} --nr-io-queues 1 {at}"
    ))?);
    appears(&device)?;
    fill(&device)?;
    let done = jobs(&device)?;
    first(&format!("kfi blk disconnect {NAME}"))?;
    first(&format!("kfi blk unexport {NAME}"))?;
    unload("kfblk")?;
    Ok(done)
}

fn target(path: &str) -> PathBuf {
    Path::new(TARGET).join(path)
}

fn store(path: &str, value: &str) -> Result<()> {
    let path = target(path);
    fs::write(&path, value).with_context(|| path.display().to_string())
}

/// Exports a device through nvmet.
fn export(device: &str) -> Result<()> {
    let subsystem = format!("subsystems/{NQN}");
    let space = format!("{subsystem}/namespaces/1");
    for dir in [&*subsystem, &space, "ports/1"] {
        fs::create_dir(target(dir)).with_context(|| dir.to_owned())?;
    }
    store(&format!("{subsystem}/attr_allow_any_host"), "1")?;
    store(&format!("{space}/device_path"), device)?;
    store(&format!("{space}/enable"), "1")?;
    store("ports/1/addr_trtype", "rdma")?;
    store("ports/1/addr_adrfam", "ipv4")?;
    store("ports/1/addr_traddr", ADDR)?;
    store("ports/1/addr_trsvcid", PORT)?;
    let link = target(&format!("ports/1/subsystems/{NQN}"));
    std::os::unix::fs::symlink(target(&subsystem), link).context("offering it")
}

fn unexport() -> Result<()> {
    fs::remove_file(target(&format!("ports/1/subsystems/{NQN}")))?;
    for dir in [
        "ports/1".to_owned(),
        format!("subsystems/{NQN}/namespaces/1"),
        format!("subsystems/{NQN}"),
    ] {
        fs::remove_dir(target(&dir)).with_context(|| dir.clone())?;
    }
    Ok(())
}

/// Connects nvme-rdma. Returns the controller's number.
fn attach() -> Result<u32> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .open("/dev/nvme-fabrics")
        .context("/dev/nvme-fabrics")?;
    let order = format!("transport=rdma,traddr={ADDR},trsvcid={PORT},nqn={NQN},nr_io_queues=1");
    file.write_all(order.as_bytes()).context("connecting")?;
    let mut said = String::new();
    file.read_to_string(&mut said)?;
    let number = said.strip_prefix("instance=").and_then(|rest| {
        let end = rest.find(',')?;
        rest[..end].parse().ok()
    });
    number.with_context(|| format!("nvme-fabrics says {said:?}"))
}

/// Creates a disk in memory.
fn backing() -> Result<()> {
    let size = format!("rd_size={}", SIZE >> 10);
    run("modprobe", &["brd", "rd_nr=1", &size])?;
    let device = Path::new(BACKING);
    until("the disk in memory", LIMIT, || {
        Ok(device.exists().then_some(()))
    })?;
    fill(device)
}

/// Exports the disk in memory through nvmet, and runs `jobs` on the peer's disk.
fn theirs<T>(jobs: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    // Without the multipath layer, because there is one path.
    run("modprobe", &["nvme-core", "multipath=N"])?;
    run("modprobe", &["-a", "nvmet-rdma", "nvme-rdma"])?;
    export(BACKING)?;
    let number = attach()?;
    let device = PathBuf::from(format!("/dev/nvme{number}n1"));
    appears(&device)?;
    let done = jobs(&device)?;
    let gone = format!("/sys/class/nvme/nvme{number}/delete_controller");
    fs::write(&gone, "1").with_context(|| gone.clone())?;
    unexport()?;
    for module in MODULES {
        run("modprobe", &["-r", module])?;
    }
    Ok(done)
}

/// Traces a block-backed export, and the peer.
pub(super) fn profile(_: &Env) -> Result<()> {
    let link = Link::new()?;
    backing()?;
    ours(&format!("--device {BACKING}"), |disk| traces(disk, "kfblk"))?;
    theirs(|disk| traces(disk, "nvme"))?;
    run("modprobe", &["-r", "brd"])?;
    drop(link);
    Ok(())
}

/// Runs the whole benchmark.
pub(super) fn run_all(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let link = Link::new()?;
        backing()?;
        let exports = [
            ("memory", format!("--size {SIZE}")),
            ("device", format!("--device {BACKING}")),
        ];
        let ours: Result<Vec<_>> = exports.iter().map(|(_, what)| ours(what, jobs)).collect();
        let (ours, theirs) = (ours?, theirs(jobs)?);
        run("modprobe", &["-r", "brd"])?;
        drop(link);
        for (kind, ((what, _), ours)) in exports.iter().zip(ours).enumerate() {
            for ((job, value), peer) in JOBS.iter().zip(ours).zip(&theirs) {
                Figure {
                    bench: "blk",
                    case: &format!("{what}, {}", job.case),
                    value,
                    unit: "IOPS",
                    peer: Some("nvme-rdma, nvmet, brd"),
                    peer_value: Some(*peer),
                    ratio: None,
                    wanted: Some(job.wanted[kind]),
                }
                .print(ctx);
            }
        }
    }
    ctx.barrier("blk")
}
