// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench --profile`: the time that each part of the system needs for a key or an
//! operation.
//!
//! While `kfi-tests profile` runs, QEMU logs the address of every instruction that the guest
//! executes, one a line. The guest's symbol table maps an address to a function, and module or name
//! map a function to a part of the system. The profile is complete, not sampled. With a clock that
//! counts instructions, the sums are the times that the benchmarks measure.

use crate::context::Context;
use crate::guest::output::by_line;
use crate::guest::{Guests, Job, Nodes, Options};
use crate::setup::Which;
use anyhow::{ensure, Context as _, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Duration of one instruction with `-icount shift=1`, in microseconds.
const INSTRUCTION: f64 = 0.002;

/// Parts of the kernel without their own module, with prefixes of function names or, after a `*`,
/// substrings. The first match counts.
const PARTS: &[(&str, &[&str])] = &[
    ("RCU", &["*rcu_", "*_rcu", "srcu"]),
    (
        "XArrays",
        &[
            "xa_",
            "xas_",
            "__xa_",
            "__xas_",
            "*radix_tree",
            "*idr_",
            "*ida_",
        ],
    ),
    (
        "scheduler, workers, waking",
        &[
            "*sched",
            "*enqueue",
            "*dequeue",
            "pick_",
            "*psi_",
            "*_fair",
            "*load_avg",
            "*update_curr",
            "*__switch_to",
            "*ttwu",
            "try_to_wake",
            "*wake_",
            "*wakeup",
            "*worker",
            "*queue_work",
            "*process_one_work",
            "*finish_task",
            "*cfs_",
            "*_entity",
            "*entity_",
            "*vruntime",
            "*_task",
            "complete",
            "*wait_for",
            "*swake",
            "prepare_to_",
            "*_wait",
            "*rq_",
            "_raw_spin_rq",
            "*_rq",
            "*_se",
            "*pwq",
            "*work_",
            "*_work",
            "kick_pool",
            "record_times",
            "cpuacct",
            "migrate_",
            "*context_switch",
            "*switch_mm",
            "*_dl_",
            "*kthread",
            "*timeout",
        ],
    ),
    (
        "memory: slabs, pages, pins",
        &[
            "*kmem_cache",
            "*kmalloc",
            "kfree",
            "kvfree",
            "*slab",
            "*alloc_pages",
            "*free_pages",
            "*freelist",
            "*memcg",
            "*obj_cgroup",
            "*page",
            "*folio",
            "*vmalloc",
            "*vunmap",
            "*gup_",
            "*pin_user",
            "*unpin",
            "*follow_",
            "*vma",
            "*sg_",
            "sg_",
            "*mm_",
            "*___cache",
            "*kvmalloc",
        ],
    ),
    (
        "random numbers",
        &["*chacha", "*crng", "*get_random", "*blake2s"],
    ),
    (
        "security modules",
        &[
            "security_",
            "tomoyo_",
            "apparmor",
            "aa_",
            "landlock_",
            "cap_",
            "*hook_file",
            "bpf_lsm",
        ],
    ),
    (
        "copying and clearing",
        &[
            "rep_",
            "*copy_",
            "*memset",
            "*memcpy",
            "*memmove",
            "*clear_user",
            "*check_object",
            "check_stack",
            "*strscpy",
            "*uaccess",
            "*strlen",
            "*check_heap",
        ],
    ),
    (
        "locks",
        &[
            "*spin_",
            "*mutex",
            "*rwsem",
            "down_",
            "up_",
            "*_lock",
            "*_unlock",
            "*percpu_ref",
            "refcount",
            "*list_add_valid",
            "*list_del_entry",
            "*preempt_",
        ],
    ),
    (
        "system calls",
        &[
            "*syscall",
            "entry_",
            "*x64_sys",
            "*ioctl",
            "*fget",
            "*fdget",
            "fput",
            "*exit_to_user",
            "srso",
            "*retbleed",
            "*return_thunk",
            "__x86_",
            "*vfs_",
            "*file_",
        ],
    ),
    (
        "interrupts, timers, clocks",
        &[
            "*irq",
            "*tick",
            "*hrtimer",
            "*apic",
            "*sysvec",
            "asm_",
            "*clock",
            "*ktime",
            "*timer",
            "*jiffies",
            "*timekeeping",
        ],
    ),
];

/// Returns the part that a function belongs to.
fn part(name: &str, module: Option<&str>) -> String {
    if let Some(module) = module {
        return module.to_owned();
    }
    let fits = |pattern: &&str| match pattern.strip_prefix('*') {
        Some(inside) => name.contains(inside),
        None => name.starts_with(pattern),
    };
    PARTS
        .iter()
        .find(|(_, patterns)| patterns.iter().any(&fits))
        .map_or("other", |(part, _)| part)
        .to_owned()
}

/// The guest's functions, sorted by start address.
struct Symbols {
    starts: Vec<u64>,
    /// Name and part of each function.
    names: Vec<(String, String)>,
}

impl Symbols {
    /// Parses the text of `/proc/kallsyms`.
    fn read(text: &str) -> Self {
        let mut all: Vec<(u64, String, String)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let at = u64::from_str_radix(words.next()?, 16).ok()?;
                let kind = words.next()?;
                let name = words.next()?;
                let module = words.next().map(|m| m.trim_matches(['[', ']']));
                "tTwW"
                    .contains(kind)
                    .then(|| (at, name.to_owned(), part(name, module)))
            })
            .collect();
        all.sort();
        all.dedup_by_key(|(at, _, _)| *at);
        Self {
            starts: all.iter().map(|(at, _, _)| *at).collect(),
            names: all.into_iter().map(|(_, n, p)| (n, p)).collect(),
        }
    }

    /// Returns the index in `names` of the function at an address; `None` for an address of a
    /// program.
    fn find(&self, at: u64) -> Option<usize> {
        if at >> 63 == 0 {
            return None;
        }
        self.starts
            .partition_point(|start| *start <= at)
            .checked_sub(1)
    }
}

/// Returns the address of the instruction in a line of QEMU's log: `Trace 0: 0x7f…
/// [cs/address/flags/…]`.
fn address(line: &[u8]) -> Option<u64> {
    let line = line.strip_prefix(b"Trace ")?;
    let open = line.iter().position(|c| *c == b'[')?;
    let text = line[open..].split(|c| *c == b'/').nth(1)?;
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// Counts the instructions of each function in a trace.
fn count(path: &Path, symbols: &Symbols) -> Result<HashMap<Option<usize>, u64>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut file = BufReader::with_capacity(1 << 20, file);
    // Few addresses are executed very often.
    let mut places: HashMap<u64, u64> = HashMap::new();
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? != 0 {
        if let Some(at) = address(&line) {
            *places.entry(at).or_default() += 1;
        }
        line.clear();
    }
    let mut functions = HashMap::new();
    for (at, times) in places {
        *functions.entry(symbols.find(at)).or_default() += times;
    }
    Ok(functions)
}

/// Runs the profile and returns the exit status.
///
/// # Errors
///
/// If a step of the setup or a build fails, or a trace cannot be read.
pub(super) fn run(ctx: &Context, names: &[String], limit: Duration) -> Result<i32> {
    let dir = ctx.target.join("profile");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let options = Options {
        nodes: Nodes::Netns,
        icount: true,
        cpus: Some(1),
        dir: Some(dir.clone()),
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    let traces = Arc::new(Mutex::new(Vec::new()));
    let sink = by_line({
        let traces = Arc::clone(&traces);
        move |node, _, line| {
            let told = line.strip_prefix("KFI-TRACE ").and_then(|told| {
                let (name, count) = told.split_once(' ')?;
                Some((name.to_owned(), count.parse::<f64>().ok()?))
            });
            match (told, traces.lock()) {
                (Some(told), Ok(mut traces)) => traces.push(told),
                _ => eprintln!("    [{node}] {line}"),
            }
        }
    });
    let mut argv = vec!["kfi-tests".to_owned(), "profile".to_owned()];
    argv.extend(names.iter().cloned());
    let outcome = guests.with_timeout(limit).run(&Job::new(argv, sink))?;
    outcome.report();
    if outcome.status() != 0 {
        return Ok(outcome.status());
    }
    let symbols = |file: &str| -> Result<Symbols> {
        let text = std::fs::read_to_string(dir.join(file)).with_context(|| file.to_owned())?;
        Ok(Symbols::read(&text))
    };
    let all = symbols("kallsyms")?;
    let traces = traces.lock().map(|t| t.clone()).unwrap_or_default();
    ensure!(!traces.is_empty(), "nothing was traced");
    let mut columns = Vec::new();
    for (name, keys) in &traces {
        let path = dir.join(format!("trace.{name}"));
        // Further modules may have been loaded since the first trace.
        let own = name
            .split_once('-')
            .map(|(whose, _)| format!("kallsyms.{whose}"))
            .filter(|file| dir.join(file).exists());
        let own = own.map(|file| symbols(&file)).transpose()?;
        let symbols = own.as_ref().unwrap_or(&all);
        let functions = count(&path, symbols)?;
        // Traces have hundreds of megabytes.
        std::fs::remove_file(&path)?;
        let file = dir.join(format!("functions.{name}"));
        by_function(&functions, symbols, *keys, &file)?;
        columns.push((name.clone(), parts(&functions, symbols, *keys)));
    }
    print!("{}", table(&columns));
    println!(
        "us of each; of single functions: {}/functions.*",
        dir.display()
    );
    Ok(0)
}

/// Returns the microseconds of each part per traced object.
fn parts(
    functions: &HashMap<Option<usize>, u64>,
    symbols: &Symbols,
    keys: f64,
) -> HashMap<String, f64> {
    let mut parts = HashMap::new();
    for (function, times) in functions {
        let part = function.map_or("the program", |i| &symbols.names[i].1);
        *parts.entry(part.to_owned()).or_default() += *times as f64 * INSTRUCTION / keys;
    }
    parts
}

/// Writes a line for each function.
fn by_function(
    functions: &HashMap<Option<usize>, u64>,
    symbols: &Symbols,
    keys: f64,
    path: &Path,
) -> Result<()> {
    let mut rows: Vec<_> = functions.iter().collect();
    rows.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    let mut file = std::io::BufWriter::new(File::create(path)?);
    for (function, times) in rows {
        let program = ("-".to_owned(), "the program".to_owned());
        let (name, part) = function.map_or(&program, |i| &symbols.names[i]);
        let micros = *times as f64 * INSTRUCTION / keys;
        writeln!(file, "{micros:8.3} us  {part}: {name}")?;
    }
    Ok(file.flush()?)
}

/// Formats a row for each part, sorted by the first column, largest first, and the sums.
fn table(columns: &[(String, HashMap<String, f64>)]) -> String {
    let mut names: Vec<&String> = columns.iter().flat_map(|(_, parts)| parts.keys()).collect();
    names.sort();
    names.dedup();
    let most = |name: &String| {
        columns
            .iter()
            .map(|(_, parts)| parts.get(name).copied().unwrap_or(0.0))
            .fold(0.0, f64::max)
    };
    names.sort_by(|a, b| most(b).total_cmp(&most(a)));
    let mut text = format!("{:<28}", "part");
    for (name, _) in columns {
        text += &format!("{name:>14}");
    }
    text.push('\n');
    for name in names {
        text += &format!("{name:<28}");
        for (_, parts) in columns {
            text += &format!("{:>14.2}", parts.get(name).copied().unwrap_or(0.0));
        }
        text.push('\n');
    }
    text += &format!("{:<28}", "all");
    for (_, parts) in columns {
        text += &format!("{:>14.2}", parts.values().sum::<f64>());
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_trace_is_read() {
        let line = b"Trace 0: 0x7f5096141880 [00000000/ffffffff83570fa5/18c0c2b0/ff022000] ";
        assert_eq!(address(line), Some(0xffff_ffff_8357_0fa5));
        assert_eq!(address(b"something else"), None);
    }

    #[test]
    fn instructions_belong_to_functions_and_parts() {
        let symbols = Symbols::read(
            "ffffffff81000000 T xas_store\nffffffff81000100 t kfree\n\
             ffffffffc0000000 t rxe_requester\t[rdma_rxe]\nffffffff82000000 D data\n",
        );
        let of = |at| symbols.find(at).map(|i| symbols.names[i].clone());
        assert_eq!(of(0x1000), None);
        assert_eq!(
            of(0xffff_ffff_8100_00ff).unwrap(),
            ("xas_store".into(), "XArrays".into())
        );
        assert_eq!(of(0xffff_ffff_c000_0010).unwrap().1, "rdma_rxe");
        let functions = [(None, 500), (symbols.find(0xffff_ffff_8100_0100), 1000)];
        let got = parts(&functions.into_iter().collect(), &symbols, 2.0);
        assert_eq!(got["the program"], 0.5);
        assert_eq!(got["memory: slabs, pages, pins"], 1.0);
    }
}
