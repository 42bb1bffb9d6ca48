// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests that run in the kernel: modules that run tests when loaded and report in KTAP, line by
//! line, in the kernel's log. Each line becomes a result.

use super::blk_pmem::Nvdimm;
use super::key_batches::joined;
use crate::harness::caps::{ARRIVED_WRITES, IMMEDIATE_DATA, OTHER_CARDS};
use crate::harness::child::tell;
use crate::harness::guest::{load_with, unload, until};
use crate::harness::result::Part;
use crate::harness::{skip, Ctx, Status, Test, Topology, NETNS, ONE, SHM};
use crate::pair::WAIT;
use crate::profile::Fake;
use crate::raw::{field_text, from_sockaddr, hints, Dev};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("kernel.rust_consumer_module_loaded_passes", |c| {
        module(c, "kfi_test_rust_api", &entry(c)?, "kfi-rust")
    })
    .seconds(30)
    .on(ONE | NETNS | SHM)
    .needs(IMMEDIATE_DATA),
    Test::alone("kernel.c_consumer_module_loaded_passes", |c| {
        module(c, "kfi_test_c_api", &provider(c), "kfi-c")
    })
    .seconds(30)
    .on(ONE | NETNS | SHM)
    .needs(IMMEDIATE_DATA),
    Test::alone("kernel.rust_consumer_of_dax_device_passes", |c| {
        with_dax(c, "kfi_test_rust_api", "kfi-rust", |c, dax| {
            Ok(format!("{} dax={}", entry(c)?, dax.number()))
        })
    })
    .seconds(30)
    .on(NETNS | SHM)
    .needs(ARRIVED_WRITES),
    Test::alone(
        "kernel.rust_consumer_of_dax_device_with_slow_card_passes",
        |c| {
            with_dax(c, "kfi_test_rust_api", "kfi-rust", |c, dax| {
                Ok(format!("{} dax={} stalls=1", entry(c)?, dax.number()))
            })
        },
    )
    .seconds(30)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::alone("kernel.c_consumer_of_dax_device_passes", |c| {
        with_dax(c, "kfi_test_c_api", "kfi-c", |c, dax| {
            Ok(format!("{} dax={}", provider(c), dax.path().display()))
        })
    })
    .seconds(30)
    .on(NETNS | SHM)
    .needs(ARRIVED_WRITES),
    Test::alone("kernel.c_lnd_module_loaded_passes", |c| {
        module(c, "kfi_test_c_lnd", &provider(c), "kfi-lnd")
    })
    .seconds(20)
    .on(ONE | NETNS | SHM),
    Test::pair("kernel.c_lnd_over_reads_of_one_entry_passes", |c| {
        let fake = c.first().then(Fake::load).transpose()?;
        if let Some(fake) = &fake {
            fake.set("max_sge_rd=1")?;
        }
        module(c, "kfi_test_c_lnd", &provider(c), "kfi-lnd")
    })
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair("kernel.c_lnd_between_nodes_moves_data", |c| {
        between(c, "kfi_test_c_lnd", "tests=0 ")
    })
    .seconds(10),
    Test::pair("kernel.c_msg_with_fabrics_opened_anew_moves_data", |c| {
        between(c, "kfi_test_c_msg", "")
    })
    .seconds(10)
    .needs(IMMEDIATE_DATA),
    Test::alone("kernel.registry_module_loaded_passes", |c| {
        module(c, "kfi_test_registry", "", "kfi-registry")
    })
    .seconds(20)
    .on(ONE),
];

/// Returns the parameter that selects the provider under test.
fn provider(ctx: &Ctx) -> String {
    format!("provider={}", ctx.env.provider)
}

/// Returns the parameter that selects the first entry of the provider under test. Parameters of the
/// Rust modules are numbers.
fn entry(ctx: &Ctx) -> Result<String> {
    let wanted = InfoEntry {
        caps: KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS,
        ep_type: KFI_EP_MSG,
        ..hints()
    };
    let mut list = Dev::open()?.getinfo(Some(&wanted))?;
    // As the module does, skip addresses that need a scope.
    let plain = |e: &InfoEntry| match from_sockaddr(&e.src_addr) {
        Some(SocketAddr::V4(_)) => true,
        Some(SocketAddr::V6(six)) => six.ip().segments()[0] & 0xffc0 != 0xfe80,
        None => false,
    };
    list.retain(plain);
    let ours = |e: &InfoEntry| field_text(&e.prov_name) == ctx.provider();
    let at = list.iter().position(ours).context("no entry of ours")?;
    Ok(format!("entry={at}"))
}

/// Loads a module on node 1 and reports its results, with a prefix before their names.
fn module(ctx: &mut Ctx, name: &str, params: &str, prefix: &str) -> Result<()> {
    if ctx.first() {
        run(name, params, prefix)?;
    }
    ctx.barrier("done")
}

/// Acts when a module asks for it in the log: unbinds the driver of the DAX device, binds the driver again
/// when the module has closed the device, and stalls deregistrations of the RDMA device.
struct Helper<'a> {
    dax: &'a Nvdimm,
    fake: Option<Fake>,
}

impl Helper<'_> {
    /// Acts on the lines of `text`. An unbinding waits for the module, so a thread does it.
    fn act<'s>(
        &'s self,
        text: &str,
        scope: &'s std::thread::Scope<'s, '_>,
    ) -> Result<Vec<std::thread::ScopedJoinHandle<'s, Result<()>>>> {
        let mut threads = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
            match line {
                "unbind" => threads.push(scope.spawn(|| self.unbind())),
                "stall" => self.stall()?,
                "go on" => self.fake()?.set("reset=1")?,
                "unbind in stall" => {
                    self.stall()?;
                    until("a deregistration", WAIT, || {
                        let calls = self.fake()?.counters()?["dereg_mr"].all;
                        Ok((calls > 0).then_some(()))
                    })?;
                    threads.push(scope.spawn(|| self.unbind()));
                    std::thread::sleep(Duration::from_millis(500));
                    self.fake()?.set("reset=1")?;
                }
                _ => {}
            }
        }
        Ok(threads)
    }

    fn fake(&self) -> Result<&Fake> {
        self.fake.as_ref().context("no fake device")
    }

    fn stall(&self) -> Result<()> {
        self.fake()?.set("reset=1 delay=dereg_mr:5000000:1")
    }

    fn unbind(&self) -> Result<()> {
        self.dax.unbind()?;
        self.dax.bind()
    }
}

/// As [`module`], with the NVDIMM as a DAX device, and with a [`Helper`].
fn with_dax(
    ctx: &mut Ctx,
    name: &str,
    prefix: &str,
    params: impl FnOnce(&Ctx, &Nvdimm) -> Result<String>,
) -> Result<()> {
    if ctx.first() {
        let dax = Nvdimm::make()?;
        let params = params(ctx, &dax)?;
        let over = AtomicBool::new(false);
        let mut log = log_end()?;
        let fake = params.contains("stalls=1").then(Fake::load).transpose()?;
        let helper = Helper { dax: &dax, fake };
        std::thread::scope(|scope| {
            let (helper, over) = (&helper, &over);
            let acting = scope.spawn(move || -> Result<()> {
                let mut threads = Vec::new();
                while !over.load(Ordering::Acquire) {
                    let text = records(&mut log, &format!("{name}: "));
                    threads.extend(helper.act(&text, scope)?);
                    std::thread::sleep(Duration::from_millis(10));
                }
                threads.into_iter().try_for_each(joined)
            });
            let ran = run(name, &params, prefix);
            over.store(true, Ordering::Release);
            let acted = joined(acting);
            ran?;
            acted
        })?;
        drop(helper);
        dax.end()?;
    }
    ctx.barrier("done")
}

/// Port of [`between`].
const PORT: u16 = 7477;

/// Moves data from a consumer on node 2 to one on node 1, and back.
fn between(ctx: &mut Ctx, name: &str, params: &str) -> Result<()> {
    // If both nodes are one kernel, there is one module.
    let loads = ctx.first() || ctx.env.topology == Topology::Two;
    if loads {
        load_with(name, &format!("{params}{}", provider(ctx)))?;
    }
    ctx.barrier("loaded")?;
    let ip = if ctx.first() {
        ctx.env.addr
    } else {
        ctx.env.peer
    };
    let role = |file: &str| {
        let path = format!("/sys/kernel/debug/{name}/{file}");
        fs::write(&path, format!("{ip} {PORT}"))
    };
    let done = if ctx.first() {
        role("serve").context("serving")
    } else {
        until("the peer listens", Duration::from_secs(5), || {
            match role("connect") {
                Ok(()) => Ok(Some(())),
                // The other node does not listen yet.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENODATA)) => {
                    Ok(None)
                }
                Err(e) => Err(e).context("connecting"),
            }
        })
    };
    ctx.barrier("done")?;
    if loads {
        unload(name)?;
    }
    done
}

fn run(name: &str, params: &str, prefix: &str) -> Result<()> {
    let parts = results_with(name, params)?;
    let failed: Vec<_> = parts
        .iter()
        .filter(|p| p.status == Status::Failed)
        .map(|p| p.name.clone())
        .collect();
    let count = parts.len();
    for found in parts {
        tell(&Part {
            name: format!("{prefix}.{}", found.name),
            status: found.status,
            detail: found.detail,
        });
    }
    if !failed.is_empty() {
        bail!("{} of {count} failed: {}", failed.len(), failed.join(", "));
    }
    Ok(())
}

/// A result of a module.
pub struct Found {
    /// Name of the result.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// Cause of the failure, empty if the result is ok.
    pub detail: String,
    /// Comments that the module printed before the result.
    pub notes: Vec<String>,
}

/// Loads a module that runs tests when loaded, unloads it, and returns its results.
///
/// # Errors
///
/// If results of the plan are missing, or the module does not load though all passed.
pub fn results(name: &str) -> Result<Vec<Found>> {
    results_with(name, "")
}

/// Loads a module with parameters, as [`results`] does.
///
/// # Errors
///
/// The same as of [`results`].
pub fn results_with(name: &str, params: &str) -> Result<Vec<Found>> {
    let mut log = log_end()?;
    let loaded = load_with(name, params);
    if let Err(e) = &loaded {
        if e.to_string().contains("is not in") {
            return skip(e.to_string());
        }
    }
    let mut text = String::new();
    until(
        "the kernel's log has the results",
        Duration::from_secs(2),
        || {
            text += &records(&mut log, &format!("{name}: "));
            Ok(finished(&text).then_some(()))
        },
    )
    .or_else(|e| if loaded.is_err() { Ok(()) } else { Err(e) })?;
    if loaded.is_ok() {
        unload(name)?;
    }
    let (plan, parts) = parse(&text);
    ensure!(!parts.is_empty(), "no result: {loaded:?}");
    let count = parts.len();
    if parts.iter().all(|p| p.status != Status::Failed) {
        ensure!(plan == Some(count), "{count} results of {plan:?} planned");
        loaded.context("all passed, and yet")?;
    }
    Ok(parts)
}

/// Opens the kernel's log at its end.
pub(super) fn log_end() -> Result<File> {
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// Returns new records of the kernel's log that start with `prefix`, without it.
pub(super) fn records(log: &mut File, prefix: &str) -> String {
    let mut text = String::new();
    let mut record = [0u8; 8192];
    loop {
        match log.read(&mut record) {
            Ok(n) if n > 0 => {
                let line = String::from_utf8_lossy(&record[..n]);
                let line = line
                    .split_once(';')
                    .map_or("", |(_, l)| l)
                    .lines()
                    .next()
                    .unwrap_or("");
                if let Some(line) = line.strip_prefix(prefix) {
                    text += line;
                    text.push('\n');
                }
            }
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
            _ => return text,
        }
    }
}

/// Returns whether all planned results are there.
fn finished(text: &str) -> bool {
    let (plan, parts) = parse(text);
    plan == Some(parts.len())
}

/// Parses KTAP: the plan, and the results; a failed result with the comments before it.
fn parse(text: &str) -> (Option<usize>, Vec<Found>) {
    let mut plan = None;
    let mut parts = Vec::new();
    let mut said = Vec::new();
    for line in text.lines() {
        if let Some(count) = line.strip_prefix("1..") {
            plan = count.trim().parse().ok();
        } else if let Some(comment) = line.strip_prefix("# ") {
            said.push(comment);
        } else if let Some((status, rest)) = result(line) {
            let (name, skipped) = match rest.split_once(" # SKIP") {
                Some((name, why)) => (name, Some(why.trim())),
                None => (rest, None),
            };
            let (status, detail) = match (status, skipped) {
                (Status::Ok, Some(why)) => (Status::Skipped, why.to_owned()),
                (Status::Failed, _) => (Status::Failed, said.join("; ")),
                (other, _) => (other, String::new()),
            };
            parts.push(Found {
                name: name.trim().to_owned(),
                status,
                detail,
                notes: said.drain(..).map(str::to_owned).collect(),
            });
        }
    }
    (plan, parts)
}

/// Parses a result line: the status, and the text behind the number.
fn result(line: &str) -> Option<(Status, &str)> {
    let (status, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (Status::Failed, rest),
        None => (Status::Ok, line.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ')?;
    number.parse::<usize>().ok()?;
    Some((status, rest.trim_start_matches("- ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ktap_is_read() {
        let text =
            "KTAP version 1\n1..3\nok 1 a\n# at.rs:1: no\nnot ok 2 b\nok 3 c # SKIP old device\n";
        let (plan, parts) = parse(text);
        assert_eq!(plan, Some(3));
        let got: Vec<_> = parts
            .iter()
            .map(|p| (p.name.as_str(), p.status, p.detail.as_str()))
            .collect();
        assert_eq!(
            got,
            [
                ("a", Status::Ok, ""),
                ("b", Status::Failed, "at.rs:1: no"),
                ("c", Status::Skipped, "old device")
            ]
        );
        assert!(finished(text) && !finished("1..2\nok 1 a\n"));
    }
}
