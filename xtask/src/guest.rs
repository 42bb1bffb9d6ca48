// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask guest` and `shell`: guests with RDMA devices and the modules loaded.
//!
//! [`Guests::run`] starts every guest of xtask, also for tests, benchmarks and the demo.

pub mod accel;
pub mod klog;
pub mod node;
pub mod output;
pub mod pmcut;
pub mod protocol;
pub mod qemu;
pub mod qmp;
pub mod run;
pub mod share;
mod splat;
pub mod tty;

use crate::build::{modules, programs};
use crate::context::Context;
use crate::setup::layers::{self, Layer};
use crate::setup::{self, siw, Rig, Which};
use accel::Accel;
use anyhow::{bail, Result};
use output::Sink;
use pmcut::Pmcut;
use protocol::{Device, Topology};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number and placement of nodes: the value of `--nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Nodes {
    /// One node, which is its own peer.
    #[value(name = "1")]
    One,
    /// Two nodes in two network namespaces of one guest.
    Netns,
    /// Two nodes, one guest each.
    #[value(name = "2")]
    Two,
}

impl Kernel {
    /// Returns the maximum factor by which steps are slower than on the distribution's kernel.
    pub fn slowness(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 10,
        }
    }

    /// Returns additional parameters of the kernel's command line. The stock kernel has its
    /// cheapest checker enabled. The debug kernel's watchdogs have timeouts that suffice under
    /// emulation.
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

impl clap::ValueEnum for Device {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Rxe, Self::Siw]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.name()))
    }
}

/// The kernel of the guests: the value of `--kernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Kernel {
    /// The kernel of the distribution, unmodified.
    #[default]
    Stock,
    /// A kernel with every checker enabled.
    Debug,
}

/// Default memory of a guest.
const MEM: &str = "2G";

/// Default memory of a guest with the debug kernel, whose checkers need memory for every byte.
const DEBUG_MEM: &str = "4G";

/// The options that `guest` and `shell` share.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// One node; two in network namespaces of one guest; two guests.
    #[arg(long, value_enum, default_value = "1")]
    pub nodes: Nodes,
    /// The distribution's kernel, or one with every checker enabled.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// The kind of RDMA device: software RoCE or software iWARP.
    #[arg(long, value_enum, default_value = "rxe")]
    pub device: Device,
    /// The guest's clock counts instructions: slow, but the same in every run.
    #[arg(long)]
    pub icount: bool,
    /// The guest has persistent memory also with --icount.
    #[arg(skip)]
    pub pmem: bool,
    /// CPUs of each guest [default: 2; 1 with --icount].
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Memory of each guest.
    #[arg(long, value_name = "SIZE", default_value = MEM)]
    pub mem: String,
    /// A folder to mount read-write at /host.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the NVDIMM's memory in the file DIR/live, the bytes that a power failure would leave in
    /// DIR/durable, and a log of that in DIR/log. The memory begins with the bytes of DIR/durable.
    #[arg(long, value_name = "DIR", value_parser = Pmcut::parse)]
    pub pmcut: Option<Pmcut>,
    /// Do not build or load the modules.
    #[arg(long)]
    pub no_modules: bool,
    /// Mount the programs that the tests `mpi` need; at first, download them (350 MB).
    #[arg(long)]
    pub layers: bool,
    /// Kill the guest after this many seconds.
    #[arg(long, value_name = "S")]
    pub timeout: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: Nodes::One,
            kernel: Kernel::Stock,
            device: Device::Rxe,
            icount: false,
            pmem: false,
            cpus: None,
            mem: MEM.to_owned(),
            dir: None,
            pmcut: None,
            no_modules: false,
            layers: false,
            timeout: None,
        }
    }
}

/// The arguments of `guest`.
#[derive(Debug, clap::Args)]
pub struct GuestArgs {
    /// Options of the guests.
    #[command(flatten)]
    pub options: Options,
    /// Command to run as root, on every node at once.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub argv: Vec<String>,
}

/// The arguments of `shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// Options of the guests.
    #[command(flatten)]
    pub options: Options,
    /// Command to run instead of a shell.
    #[arg(last = true, value_name = "CMD")]
    pub argv: Vec<String>,
}

/// Runs `guest` and returns the exit status.
///
/// # Errors
///
/// If the guest cannot be built or started.
pub fn run(ctx: &Context, args: &GuestArgs) -> Result<i32> {
    let guests = Guests::prepare(ctx, Which::Main, &args.options)?;
    let marked = args.options.nodes != Nodes::One;
    let job = Job::new(args.argv.clone(), output::to_stdio(marked));
    let outcome = guests.run(&job)?;
    outcome.report();
    Ok(outcome.status())
}

/// Runs `shell` and returns the exit status.
///
/// # Errors
///
/// If the guest cannot be built or started.
pub fn shell(ctx: &Context, args: &ShellArgs) -> Result<i32> {
    let guests = Guests::prepare(ctx, Which::Main, &args.options)?;
    let argv = if args.argv.is_empty() {
        vec!["/bin/bash".to_owned()]
    } else {
        args.argv.clone()
    };
    if args.options.nodes != Nodes::One {
        eprintln!("  Ctrl-] switches between the nodes' shells; the guests end when both shells have ended");
    }
    let job = Job {
        interactive: true,
        ..Job::new(argv, output::to_stdio(false))
    };
    let outcome = guests.run(&job)?;
    outcome.report();
    Ok(outcome.status())
}

/// A command that runs on every node.
pub struct Job {
    /// The command.
    pub argv: Vec<String>,
    /// Connect the command to this process's terminal.
    pub interactive: bool,
    /// Additional environment variables of the command.
    pub env: BTreeMap<String, String>,
    /// Destination of the command's output.
    pub sink: Sink,
    /// The guests are killed at this time, which may be changed while they run.
    pub deadline: Option<Deadline>,
}

impl Job {
    /// Returns a command without a terminal.
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

/// A deadline that other threads may move. Not set at first.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// Moves the deadline.
    pub fn set(&self, moment: Instant) {
        if let Ok(mut at) = self.0.lock() {
            *at = Some(moment);
        }
    }

    /// Returns whether the deadline has passed.
    pub fn passed(&self) -> bool {
        self.0
            .lock()
            .is_ok_and(|at| at.is_some_and(|at| at < Instant::now()))
    }
}

/// Prepared guests, which can be started any number of times.
pub struct Guests<'a> {
    ctx: &'a Context,
    rig: Rig,
    accel: Accel,
    options: Options,
    modules: Option<modules::Built>,
    programs: Vec<PathBuf>,
    /// The plug-in that cuts the power.
    plugin: Option<PathBuf>,
    layers: Vec<Layer>,
    /// Modules of the kernel that its packages lack.
    kernel_modules: Vec<PathBuf>,
}

impl<'a> Guests<'a> {
    /// Sets up and builds all parts of the guests.
    ///
    /// # Errors
    ///
    /// If a step of the setup or a build fails.
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
        let mut programs = programs::build(ctx, options.no_modules)?;
        match programs::of_libfabric(ctx, &rig.root) {
            Ok(built) => programs.extend(built),
            Err(error) if !options.no_modules => return Err(error),
            Err(error) => eprintln!("  without the C programs: {error:#}"),
        }
        let plugin = match &options.pmcut {
            Some(_) if options.nodes == Nodes::Two => bail!("--pmcut needs one guest"),
            Some(_) => Some(programs::pmcut(ctx, &rig.root)?),
            None => None,
        };
        let layers = match options.layers {
            true => layers::ensure(ctx, &rig.root),
            false => Vec::new(),
        };
        match programs::of_mpi(ctx, &rig.root, &layers) {
            Ok(built) => programs.extend(built),
            Err(error) if !options.no_modules => return Err(error),
            Err(error) => eprintln!("  without the MPI programs: {error:#}"),
        }
        let kernel_modules = match options.device {
            Device::Rxe => Vec::new(),
            Device::Siw => vec![siw::ensure(ctx, &rig)?],
        };
        // Only the emulator has plug-ins.
        let accel = if options.icount || plugin.is_some() {
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
            plugin,
            layers,
            kernel_modules,
        })
    }

    /// Returns the same guests in another topology.
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
            plugin: self.plugin.clone(),
            layers: self.layers.clone(),
            kernel_modules: self.kernel_modules.clone(),
        }
    }

    /// Returns the same guests with other settings of the plug-in that cuts the power.
    pub fn with_pmcut(&self, cut: &Pmcut) -> Self {
        let mut guests = self.with_nodes(self.options.nodes);
        guests.options.pmcut = Some(cut.clone());
        guests
    }

    /// Returns the same guests with another time limit.
    pub fn with_timeout(&self, limit: Duration) -> Self {
        let mut guests = self.with_nodes(self.options.nodes);
        guests.options.timeout = Some(limit.as_secs());
        guests
    }

    /// Returns the same guests with another memory size, in QEMU's format (`2G`).
    #[must_use]
    pub fn with_mem(mut self, mem: &str) -> Self {
        self.options.mem = mem.to_owned();
        self
    }

    /// Returns the file of a program that guests find in `/kfi/bin`.
    pub fn program(&self, name: &str) -> Option<&Path> {
        self.programs
            .iter()
            .map(PathBuf::as_path)
            .find(|path| path.ends_with(name))
    }

    /// Returns the build root, which contains the tools.
    pub fn root(&self) -> &Path {
        &self.rig.root
    }

    /// Returns the built modules.
    pub fn modules(&self) -> &[PathBuf] {
        self.modules.as_ref().map_or(&[], |built| &built.modules)
    }

    /// Returns the kernel's series.
    pub fn series(&self) -> &str {
        &self.rig.choice.series
    }

    /// Returns the kernel's release.
    pub fn release(&self) -> &str {
        &self.rig.choice.release
    }

    /// Returns the time limit of the whole run.
    fn limit(&self) -> Option<Duration> {
        self.options.timeout.map(Duration::from_secs)
    }

    fn cpus(&self) -> u32 {
        self.options
            .cpus
            .unwrap_or(if self.options.icount { 1 } else { 2 })
    }
}
