// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask guest` and `shell`: guests with rxe up and the modules loaded.
//!
//! [`Guests::run`] is what everything that happens in guests goes through:
//! the tests, the benchmarks and the demo too.

pub mod accel;
pub mod klog;
pub mod node;
pub mod output;
pub mod protocol;
pub mod qemu;
pub mod qmp;
pub mod run;
pub mod share;
mod splat;
pub mod tty;

use crate::build::{modules, programs};
use crate::context::Context;
use crate::setup::{self, Rig, Which};
use accel::Accel;
use anyhow::Result;
use output::Sink;
use protocol::Topology;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How many nodes, and where: the value of `--nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Nodes {
    /// One node, its own peer.
    #[value(name = "1")]
    One,
    /// Two nodes in two network namespaces of one guest.
    Netns,
    /// Two nodes, a guest each.
    #[value(name = "2")]
    Two,
}

impl Kernel {
    /// How many times longer things take than on the distribution's kernel, at most.
    pub fn slowness(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 10,
        }
    }

    /// What its command line has besides. The stock kernel gets the cheapest checker it has; the
    /// debug kernel's watchdogs get the patience that emulation needs.
    fn append(self) -> &'static str {
        match self {
            Self::Stock => "kfence.sample_interval=100",
            Self::Debug => "watchdog_thresh=60 workqueue.watchdog_thresh=150 rcupdate.rcu_cpu_stall_timeout=120",
        }
    }
}

impl From<Nodes> for Topology {
    fn from(nodes: Nodes) -> Self {
        match nodes {
            Nodes::One => Self::One,
            Nodes::Netns => Self::Netns,
            Nodes::Two => Self::Two,
        }
    }
}

/// Which kernel: the value of `--kernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Kernel {
    /// The distribution's, unmodified.
    #[default]
    Stock,
    /// One built with every checker on.
    Debug,
}

/// What a guest has of memory, unless told otherwise.
const MEM: &str = "2G";

/// The same with the debug kernel, whose checkers keep books on every byte.
const DEBUG_MEM: &str = "4G";

/// The options that `guest` and `shell` share.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// One node; two in network namespaces of one guest; two guests.
    #[arg(long, value_enum, default_value = "1")]
    pub nodes: Nodes,
    /// The distribution's kernel, or one with every checker on.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// Time is a count of instructions: slow, and the same in every run.
    #[arg(long)]
    pub icount: bool,
    /// CPUs of each guest [default: 2; 1 with --icount].
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Memory of each guest.
    #[arg(long, value_name = "SIZE", default_value = MEM)]
    pub mem: String,
    /// A folder to be mounted read-write at /host.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Do not build or load the modules.
    #[arg(long)]
    pub no_modules: bool,
    /// Kill the guest after this many seconds.
    #[arg(long, value_name = "S")]
    pub timeout: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: Nodes::One,
            kernel: Kernel::Stock,
            icount: false,
            cpus: None,
            mem: MEM.to_owned(),
            dir: None,
            no_modules: false,
            timeout: None,
        }
    }
}

/// The arguments of `guest`.
#[derive(Debug, clap::Args)]
pub struct GuestArgs {
    /// The guest.
    #[command(flatten)]
    pub options: Options,
    /// What to run in it, as root, on every node at once.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub argv: Vec<String>,
}

/// The arguments of `shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// The guest.
    #[command(flatten)]
    pub options: Options,
    /// What to run instead of a shell.
    #[arg(last = true, value_name = "CMD")]
    pub argv: Vec<String>,
}

/// Runs `guest`; returns the exit status.
///
/// # Errors
///
/// When the guest cannot be built or started.
pub fn run(ctx: &Context, args: &GuestArgs) -> Result<i32> {
    let guests = Guests::prepare(ctx, Which::Main, &args.options)?;
    let marked = args.options.nodes != Nodes::One;
    let job = Job::new(args.argv.clone(), output::to_stdio(marked));
    let outcome = guests.run(&job)?;
    outcome.report();
    Ok(outcome.status())
}

/// Runs `shell`; returns the exit status.
///
/// # Errors
///
/// When the guest cannot be built or started.
pub fn shell(ctx: &Context, args: &ShellArgs) -> Result<i32> {
    let guests = Guests::prepare(ctx, Which::Main, &args.options)?;
    let argv = if args.argv.is_empty() {
        vec!["/bin/bash".to_owned()]
    } else {
        args.argv.clone()
    };
    if args.options.nodes != Nodes::One {
        eprintln!("  Ctrl-] goes from one node's shell to the other's; the guests end when both have ended");
    }
    let job = Job {
        interactive: true,
        ..Job::new(argv, output::to_stdio(false))
    };
    let outcome = guests.run(&job)?;
    outcome.report();
    Ok(outcome.status())
}

/// What is to be run on every node.
pub struct Job {
    /// The command.
    pub argv: Vec<String>,
    /// On terminals joined to this process's.
    pub interactive: bool,
    /// More of the command's environment.
    pub env: BTreeMap<String, String>,
    /// Where its output goes.
    pub sink: Sink,
    /// When the guests are given up; it may move while they run.
    pub deadline: Option<Deadline>,
}

impl Job {
    /// A command that nobody types into.
    pub fn new(argv: Vec<String>, sink: Sink) -> Self {
        Self {
            argv,
            interactive: false,
            env: BTreeMap::new(),
            sink,
            deadline: None,
        }
    }
}

/// A moment that others may move. Never, until it is set.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// Moves it.
    pub fn set(&self, moment: Instant) {
        if let Ok(mut at) = self.0.lock() {
            *at = Some(moment);
        }
    }

    /// Whether it lies in the past.
    pub fn passed(&self) -> bool {
        self.0
            .lock()
            .is_ok_and(|at| at.is_some_and(|at| at < Instant::now()))
    }
}

/// Guests ready to be started, as often as need be.
pub struct Guests<'a> {
    ctx: &'a Context,
    rig: Rig,
    accel: Accel,
    options: Options,
    modules: Option<modules::Built>,
    programs: Vec<PathBuf>,
}

impl<'a> Guests<'a> {
    /// Sets up and builds all that the guests need.
    ///
    /// # Errors
    ///
    /// When something cannot be set up or built.
    pub fn prepare(ctx: &'a Context, which: Which, options: &Options) -> Result<Self> {
        let (rig, profile) = match options.kernel {
            Kernel::Stock => (setup::ensure(ctx, which)?, modules::Profile::Stock),
            Kernel::Debug => (setup::ensure_debug(ctx)?, modules::Profile::Debug),
        };
        let modules = if options.no_modules {
            None
        } else {
            let tools = modules::Toolbox::rig(&rig);
            Some(modules::build(ctx, &tools, profile)?)
        };
        let programs = programs::build(ctx, options.no_modules)?;
        let accel = if options.icount {
            Accel::Tcg
        } else {
            accel::choose(ctx, &rig)?
        };
        let mut options = options.clone();
        if options.kernel == Kernel::Debug && options.mem == MEM {
            options.mem = DEBUG_MEM.to_owned();
        }
        Ok(Self {
            ctx,
            rig,
            accel,
            options,
            modules,
            programs,
        })
    }

    /// The same guests in another topology.
    pub fn with_nodes(&self, nodes: Nodes) -> Self {
        Self {
            ctx: self.ctx,
            rig: self.rig.clone(),
            accel: self.accel,
            options: Options {
                nodes,
                ..self.options.clone()
            },
            modules: self.modules.clone(),
            programs: self.programs.clone(),
        }
    }

    /// The same guests, with this long for a run.
    pub fn with_timeout(&self, limit: Duration) -> Self {
        let mut guests = self.with_nodes(self.options.nodes);
        guests.options.timeout = Some(limit.as_secs());
        guests
    }

    /// The same guests, with this much memory, as QEMU takes it (`2G`).
    #[must_use]
    pub fn with_mem(mut self, mem: &str) -> Self {
        self.options.mem = mem.to_owned();
        self
    }

    /// The file of a program that guests find in `/kfi/bin`.
    pub fn program(&self, name: &str) -> Option<&Path> {
        self.programs
            .iter()
            .map(PathBuf::as_path)
            .find(|path| path.ends_with(name))
    }

    /// The build root, where the tools are.
    pub fn root(&self) -> &Path {
        &self.rig.root
    }

    /// The modules, as they were built.
    pub fn modules(&self) -> &[PathBuf] {
        self.modules.as_ref().map_or(&[], |built| &built.modules)
    }

    /// The kernel's series.
    pub fn series(&self) -> &str {
        &self.rig.choice.series
    }

    /// The kernel's release.
    pub fn release(&self) -> &str {
        &self.rig.choice.release
    }

    /// The time the whole run may take.
    fn limit(&self) -> Option<Duration> {
        self.options.timeout.map(Duration::from_secs)
    }

    fn cpus(&self) -> u32 {
        self.options
            .cpus
            .unwrap_or(if self.options.icount { 1 } else { 2 })
    }
}
