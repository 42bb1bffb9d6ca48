// SPDX-License-Identifier: MIT OR Apache-2.0

//! State that a test must not leave behind: objects, pinned pages, RDMA resources, a complaint in
//! the kernel's log.

use crate::raw::{field_text, Dev};
use crate::sys;
use kfabric_uapi::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of teardown after the last descriptor is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lines of the kernel's log that a test must not cause.
const COMPLAINTS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection",
    "refcount_t",
    "UBSAN",
    "KASAN",
    "blocked for more than",
    "soft lockup",
    "rcu: INFO",
    "possible recursive locking",
    "circular locking",
    "suspicious RCU",
    "panicked at",
    "unreferenced object",
];

/// RDMA resources: `device kind` to count.
type Rdma = BTreeMap<String, u64>;

/// The state before a test.
pub struct Baseline {
    pinned: i64,
    rdma: Rdma,
    log: Option<File>,
}

impl Baseline {
    /// Records the current state.
    pub fn take() -> Self {
        let log = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg");
        let log = log
            .ok()
            .and_then(|mut f| f.seek(SeekFrom::End(0)).ok().map(|_| f));
        Self {
            pinned: pinned(),
            rdma: rdma(),
            log,
        }
    }

    /// Returns new objects and resources; waits a while for them to disappear.
    pub fn leaks(&mut self) -> Vec<String> {
        let end = Instant::now() + sys::patience(PATIENCE);
        let mut left = loop {
            let left = self.look();
            if left.is_empty() || Instant::now() >= end {
                break left;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        if !left.is_empty() {
            // Later tests must not be charged for them.
            self.pinned = pinned();
            self.rdma = rdma();
        }
        left.extend(self.complaints());
        left
    }

    fn look(&self) -> Vec<String> {
        let mut left = objects();
        let pinned = pinned() - self.pinned;
        if pinned != 0 {
            left.push(format!("{pinned} pinned pages"));
        }
        let resting = resting();
        for (what, count) in rdma() {
            let mut before = self.rdma.get(&what).copied().unwrap_or(0);
            before += match what.rsplit(' ').next() {
                Some("mr") => resting,
                Some("pd") => resting.min(1),
                _ => 0,
            };
            if count > before {
                left.push(format!("rdma {what}: {count}, was {before}"));
            }
        }
        left
    }

    fn complaints(&mut self) -> Vec<String> {
        let Some(log) = &mut self.log else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut record = [0u8; 8192];
        // Each read returns one record. A lost record is an error once, then reading goes on.
        let mut errors = 0;
        while errors < 3 {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    let line = text
                        .split_once(';')
                        .map_or("", |(_, l)| l)
                        .lines()
                        .next()
                        .unwrap_or("");
                    if COMPLAINTS.iter().any(|c| line.contains(c)) {
                        found.push(format!("kernel log: {line}"));
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => errors += 1,
            }
        }
        found
    }
}

/// Returns the live objects of every file.
fn objects() -> Vec<String> {
    let Ok(list) = Dev::open().and_then(|dev| dev.obj_list()) else {
        return Vec::new();
    };
    let mut kinds = BTreeMap::new();
    for o in &list {
        *kinds
            .entry((kind_name(o.kind), o.pid, field_text(&o.comm)))
            .or_insert(0) += 1;
    }
    kinds
        .into_iter()
        .map(|((kind, pid, comm), n)| format!("{n} {kind} of {comm}[{pid}]"))
        .collect()
}

/// Returns an object kind's name.
pub fn kind_name(kind: u32) -> &'static str {
    match kind {
        KFI_TYPE_FABRIC => "fabric",
        KFI_TYPE_DOMAIN => "domain",
        KFI_TYPE_EQ => "event queue",
        KFI_TYPE_CQ => "completion queue",
        KFI_TYPE_CNTR => "counter",
        KFI_TYPE_PEP => "passive endpoint",
        KFI_TYPE_EP => "endpoint",
        KFI_TYPE_REGION => "region",
        KFI_TYPE_KEY => "key",
        KFI_TYPE_CONNREQ => "connection request",
        _ => "object",
    }
}

/// Returns the current number of long-term pins on this machine.
pub fn pinned() -> i64 {
    // Folds in the per-CPU counts.
    let _ = std::fs::read("/proc/sys/vm/stat_refresh");
    let stat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let get = |name: &str| -> i64 {
        let line = stat
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    get("nr_foll_pin_acquired") - get("nr_foll_pin_released")
}

/// Returns the number of regions that rest. kverbs keeps them, and a protection domain on each device, until
/// they are needed or the device is removed.
pub fn resting() -> u64 {
    let read = |name: &str| {
        let path = format!("/sys/kernel/debug/kfabric/kverbs/{name}");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0u64)
    };
    read("resting").saturating_sub(read("released"))
}

fn rdma() -> Rdma {
    let out = Command::new("rdma").args(["resource", "show"]).output();
    let text = out
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    parse_rdma(&text)
}

/// Reads lines such as `0: rxe0: qp 1 cm_id 0 mr 0`.
fn parse_rdma(text: &str) -> Rdma {
    let mut all = Rdma::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1);
        let Some(dev) = words.next().and_then(|w| w.strip_suffix(':')) else {
            continue;
        };
        let words: Vec<_> = words.collect();
        for pair in words.chunks_exact(2) {
            if let Ok(count) = pair[1].parse() {
                all.insert(format!("{dev} {}", pair[0]), count);
            }
        }
    }
    all
}

/// Returns `VmPin` of this process, in bytes.
pub fn vm_pin() -> u64 {
    status_kib("VmPin:") * 1024
}

fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_lines_are_read() {
        let text = "0: rxe0: qp 1 cm_id 0 mr 0 ctx 0 pd 2 cq 3 srq 0 \n1: rxe1: qp 7 \nnonsense\n";
        let all = parse_rdma(text);
        assert_eq!(all.get("rxe0 pd"), Some(&2));
        assert_eq!(all.get("rxe1 qp"), Some(&7));
        assert_eq!(all.len(), 8);
    }
}
