// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kernel logs: detection of complaints.

/// Texts of a kernel's complaints.
const COMPLAINTS: [&str; 24] = [
    "BUG:",
    "BUG at ",
    "kernel BUG",
    "WARNING:",
    "Oops",
    "Kernel panic",
    "KASAN",
    "KFENCE",
    "UBSAN",
    "KCSAN",
    "possible recursive locking",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "sleeping function called from invalid context",
    "scheduling while atomic",
    "general protection fault",
    "unable to handle",
    "refcount_t:",
    "DEBUG_LOCKS_WARN_ON",
    "unreferenced object",
    "blocked for more than",
    "soft lockup",
    "detected stalls on",
];

/// Texts of harmless lines, which describe the kernel's setup.
const HARMLESS: [&str; 6] = [
    "kfence: initialized",
    "KernelAddressSanitizer initialized",
    "Kernel command line:",
    "Command line:",
    "kasan: ",
    "UBSAN: Undefined Behaviour Sanitizer",
];

/// A complaint and the log around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The line of the complaint.
    pub line: String,
    /// The log around it.
    pub around: String,
}

/// Returns whether a line of a kernel log is a complaint.
pub fn is_complaint(line: &str) -> bool {
    COMPLAINTS.iter().any(|text| line.contains(text))
        && !HARMLESS.iter().any(|text| line.contains(text))
}

/// Returns the complaints in a kernel log. Complaints close to each other count as one.
pub fn scan(log: &str) -> Vec<Complaint> {
    const BEFORE: usize = 5;
    const AFTER: usize = 60;
    let lines: Vec<&str> = log
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .collect();
    let mut found = Vec::new();
    let mut next = 0;
    for (number, line) in lines.iter().enumerate() {
        if number < next || !is_complaint(line) {
            continue;
        }
        let end = lines.len().min(number + AFTER);
        next = end;
        found.push(Complaint {
            line: (*line).to_owned(),
            around: lines[number.saturating_sub(BEFORE)..end].join("\n"),
        });
    }
    found
}

/// Returns whether a log shows an oops for a breakpoint that does not exist: a fault of the
/// emulator, not of the kernel.
///
/// The kernel patches its own code at run time by a temporary breakpoint (`int3`, one byte 0xcc),
/// until all processors have seen the rest of the patch. An emulated processor may still run code
/// that was translated during this time. The kernel has no breakpoint there any more and ends with
/// an oops that shows the code. The byte before the instruction pointer, where the processor has
/// stopped, is not 0xcc.
///
/// A log with other complaints than this oops and its consequences does not match.
fn is_stale_breakpoint(log: &str) -> bool {
    let trap = |line: &str| line.contains("Oops: int3:");
    let others = |line: &str| is_complaint(line) && !trap(line) && !is_panic_of_oops(line);
    let mut lines = log.lines();
    if log.lines().any(others) || !lines.any(trap) {
        return false;
    }
    let code = lines.find_map(|line| line.split_once(" Code: "));
    let before = code.and_then(|(_, bytes)| bytes.split_once('<'));
    before.is_some_and(|(bytes, _)| !bytes.trim_end().ends_with("cc"))
}

/// Returns whether there are complaints, and all are such an oops or its consequences.
pub fn are_stale_breakpoints(complaints: &[Complaint]) -> bool {
    let stale = |c: &Complaint| is_stale_breakpoint(&c.around);
    // An oops is followed by a panic, which is a complaint of its own if it is far behind.
    let excused = |c: &Complaint| stale(c) || is_panic_of_oops(&c.line);
    complaints.iter().any(stale) && complaints.iter().all(excused)
}

/// Returns whether a log shows that a module from outside of the kernel's source was loaded.
///
/// Before that, a fault of a guest is not one of kfabric.
pub fn has_modules(log: &str) -> bool {
    log.contains(": loading out-of-tree module taints kernel")
}

fn is_panic_of_oops(line: &str) -> bool {
    line.contains("Kernel panic - not syncing: Fatal exception")
}

/// Returns the last `count` lines of a log.
pub fn tail(log: &str, count: usize) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oops_is_found_once_with_what_is_around_it() {
        let log = "[1] fine\n[2] BUG: kernel NULL pointer dereference\n[3] Oops: 0002\n[4] Call Trace:\n[5] end\n";
        let found = scan(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].line.contains("NULL pointer"));
        assert!(found[0].around.contains("[1] fine") && found[0].around.contains("[5] end"));
    }

    #[test]
    fn a_breakpoint_that_is_not_there_is_the_emulators() {
        let with = |code: &str| {
            format!(
                "[    2.7] Oops: int3: 0000 [#1] SMP NOPTI\n\
                 [    2.7] RIP: 0010:enqueue_task_fair+0xc48/0xe80\n\
                 [    2.7] Code: e9 3c f5 ff ff {code} 44 00 00\n"
            )
        };
        assert!(is_stale_breakpoint(&with("0f <1f>")));
        assert!(!is_stale_breakpoint(&with("cc <1f>")));
        assert!(!is_stale_breakpoint(
            &with("0f <1f>").replace("int3", "invalid opcode")
        ));
        assert!(!is_stale_breakpoint("[    2.7] Oops: int3: 0000 [#1]\n"));
        let before = "[    2.6] UBSAN: array-index-out-of-bounds in x.c:1:2\n";
        assert!(!is_stale_breakpoint(
            &(before.to_owned() + &with("0f <1f>"))
        ));
        let panic = "[    2.8] Kernel panic - not syncing: Fatal exception in interrupt\n";
        assert!(is_stale_breakpoint(&(with("0f <1f>") + panic)));
    }

    #[test]
    fn only_a_module_of_another_source_counts_as_loaded() {
        assert!(!has_modules(
            "[    1.2] virtio_pci: loaded\n[   23.3] rcu: INFO: rcu_preempt detected stalls\n"
        ));
        assert!(has_modules(
            "[    2.6] kfabric: loading out-of-tree module taints kernel.\n"
        ));
    }

    #[test]
    fn what_is_far_apart_counts_twice() {
        let log = format!(
            "WARNING: CPU: 0\n{}INFO: task x blocked for more than 120 seconds\n",
            "quiet\n".repeat(100)
        );
        assert_eq!(scan(&log).len(), 2);
    }

    #[test]
    fn a_quiet_boot_is_quiet() {
        let log = "[0] Command line: panic_on_warn=1 oops=panic kasan_multi_shot\n\
                   [0] kfence: initialized - using 2097152 bytes\n\
                   [1] rdma_rxe: loaded\n\
                   [1] module verification failed: signature and/or required key missing - tainting kernel\n";
        assert_eq!(scan(log), []);
    }
}
