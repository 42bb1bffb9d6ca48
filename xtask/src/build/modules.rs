// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel modules, built by Kbuild outside the checkout's source folders.
//!
//! Sources are copied to `target/kbuild/RELEASE/PROFILE/`, in the layout of the checkout, and built
//! there in this order: framework, providers, consumers. Each module sees the symbols of the ones
//! before it, and the framework's crate metadata through the variable `KFABRIC`.

use super::sync::sync;
use crate::chroot::{command, Bind};
use crate::context::{Context, SeedBug};
use crate::progress::Step;
use crate::setup::{debug, stage, Rig};
use anyhow::{bail, Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders that Kbuild needs.
pub const FOLDERS: [&str; 9] = [
    "kfabric",
    "kverbs-provider",
    "kshm-provider",
    "consumers",
    "examples/c-module",
    "examples/rust-module",
    "kfblk",
    "uapi",
    "pure",
];
/// The folders of core modules, in the order in which they are built and loaded.
pub const CORE: [&str; 3] = ["kfabric", "kverbs-provider", "kshm-provider"];
/// The folders whose subfolders are consumers.
const CONSUMERS: [&str; 3] = ["consumers/bench", "consumers/tests", "examples"];

/// Purpose of a build; each has its own folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// For the stock kernel.
    Stock,
    /// For the debug kernel.
    Debug,
    /// For clippy only; not for loading.
    Clippy,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Debug => "debug",
            Self::Clippy => "clippy",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Stock => &[],
            // Line numbers, for readers of splats and for coverage. KASAN's checks are calls,
            // because branches would count as branches of our code.
            Self::Debug => &[
                debug::LLVM,
                "KRUSTFLAGS=-Cdebuginfo=1",
                "KCFLAGS=-g1",
                "call_threshold=0",
            ],
            Self::Clippy => &["CLIPPY=1", "KRUSTFLAGS=-Dwarnings", "KCFLAGS=-Werror"],
        }
    }
}

/// A kernel tree, and the tools to build modules with.
#[derive(Debug, Clone)]
pub struct Toolbox {
    /// The kernel's release.
    pub release: String,
    /// The configured tree.
    pub kdir: PathBuf,
    /// The build root; `None`: the host's own tools are used.
    pub root: Option<PathBuf>,
    /// The folder of sparse, if C is checked too.
    pub sparse: Option<PathBuf>,
}

impl Toolbox {
    /// Returns the tools that `setup` made.
    pub fn rig(rig: &Rig) -> Self {
        Self {
            release: rig.choice.release.clone(),
            kdir: rig.tree.clone(),
            root: Some(rig.root.clone()),
            sparse: None,
        }
    }

    /// Returns this machine's own tools and the tree `kdir`.
    ///
    /// # Errors
    ///
    /// If modules written in Rust cannot be built with these; the error says how to install the
    /// missing part.
    pub fn host(ctx: &Context, kdir: &Path) -> Result<Self> {
        let kdir = kdir
            .canonicalize()
            .with_context(|| format!("the kernel tree {}", kdir.display()))?;
        let read = |name: &str| std::fs::read_to_string(kdir.join(name)).unwrap_or_default();
        let release = read("include/config/kernel.release").trim().to_owned();
        if release.is_empty() {
            bail!(
                "{} is no configured kernel tree: run `make modules_prepare` in it",
                kdir.display()
            );
        }
        let config = read("include/config/auto.conf");
        if !config.lines().any(|line| line == "CONFIG_RUST=y") {
            bail!("kernel {release} is configured without CONFIG_RUST: kfabric needs it");
        }
        if !kdir.join("rust/libkernel.rmeta").exists() {
            bail!(
                "{} has no rust/ metadata (distributions' header packages leave it out).\n\
                 Unpack the kernel's source of exactly this version, give it the same .config and Module.symvers, write\n\
                 the part of {release:?} after the version number into the file `localversion`, run `make modules_prepare`\n\
                 there, and pass that folder as --kdir. (For Debian's kernel `cargo xtask setup` does all that.)",
                kdir.display()
            );
        }
        let root = if kdir.starts_with(&ctx.cache) {
            crate::setup::root::present(ctx)
        } else {
            check_rustc(&config, &release)?;
            None
        };
        Ok(Self {
            release,
            kdir,
            root,
            sparse: None,
        })
    }

    /// Returns a make command for the module in `dir`. Our modules were built in `ours`; their
    /// symbols are in `symbols`.
    pub fn make(
        &self,
        ctx: &Context,
        dir: &Path,
        ours: &Path,
        symbols: &[PathBuf],
        args: &[String],
    ) -> Command {
        let list: Vec<String> = symbols
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        let mut argv = vec![
            "make".to_owned(),
            format!("-j{jobs}"),
            "-C".into(),
            self.kdir.display().to_string(),
            format!("M={}", dir.display()),
            format!("KFABRIC={}", ours.join("kfabric").display()),
            format!("KBUILD_EXTRA_SYMBOLS={}", list.join(" ")),
        ];
        argv.extend_from_slice(args);
        if let Some(sparse) = &self.sparse {
            let program = sparse.join("usr/bin/sparse");
            argv.push("C=2".into());
            argv.push(format!("CHECK={}", program.display()));
            argv.push("CF=-Wsparse-error".into());
        }
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        match &self.root {
            None => {
                let mut cmd = Command::new(argv[0]);
                cmd.args(&argv[1..]);
                cmd
            }
            Some(root) => {
                let mut binds = vec![Bind::same(&self.kdir), Bind::same(&ctx.repo)];
                binds.extend(self.sparse.as_deref().map(Bind::same));
                if !dir.starts_with(&ctx.repo) {
                    // A folder's sources may include files of neighbouring folders.
                    let around = dir
                        .parent()
                        .filter(|parent| parent.components().count() > 1);
                    binds.push(Bind::same(around.unwrap_or(dir)));
                }
                command(root, &binds, dir, &argv)
            }
        }
    }
}

/// Checks that the tree's metadata was made with the host's rustc.
fn check_rustc(config: &str, release: &str) -> Result<()> {
    let wanted = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_RUSTC_VERSION_TEXT="))
        .unwrap_or_default()
        .trim_matches('"')
        .to_owned();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc)
        .arg("--version")
        .output()
        .context("starting rustc")?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if found != wanted {
        bail!(
            "kernel {release} was built with {wanted:?}, this machine's rustc is {found:?}: crate metadata of one \
             cannot be read by the other. Put the former first in PATH (for instance the distribution's rustc)."
        );
    }
    Ok(())
}

/// Result of a build of the modules.
#[derive(Debug, Clone)]
pub struct Built {
    /// The build folder.
    pub dir: PathBuf,
    /// The modules, in loading order.
    pub modules: Vec<PathBuf>,
    /// Number of core modules, which are loaded when a guest starts. The others are consumers.
    pub core: usize,
    /// The lists of exported symbols.
    pub symbols: Vec<PathBuf>,
}

/// The consumers that tests of bugs need.
const WITH_BUGS: [&str; 2] = ["kfblk", "consumers/tests/c-api"];

/// Returns the folder in which modules are built.
pub fn folder(ctx: &Context, tools: &Toolbox, profile: Profile) -> PathBuf {
    let base = ctx.target.join("kbuild").join(&tools.release);
    match ctx.module_bug() {
        None => base.join(profile.folder()),
        // A separate folder, so that a module with a bug is never used by mistake.
        Some(bug) => base.join(format!("{}-with-{}", profile.folder(), bug.name())),
    }
}

/// Builds all modules.
///
/// # Errors
///
/// If a module does not build; the compiler's messages have been printed.
pub fn build(ctx: &Context, tools: &Toolbox, profile: Profile) -> Result<Built> {
    let dir = folder(ctx, tools, profile);
    let base = dir.parent().unwrap_or(&dir);
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let _lock = stage::lock(base, &name)?;
    let sources = sync(&ctx.repo, &FOLDERS, &dir)?;
    let bug = ctx.module_bug().map_or("", SeedBug::name);
    let mut parts = vec![sources, tools.kdir.display().to_string(), bug.to_owned()];
    parts.extend(tools.sparse.iter().map(|dir| dir.display().to_string()));
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let key = stage::key(&parts);
    let stamp = dir.join(".built");
    let fresh = std::fs::read_to_string(&stamp).is_ok_and(|built| built == key);
    if !fresh {
        let _ = std::fs::remove_file(&stamp);
    }
    let mut built = Built {
        dir: dir.clone(),
        modules: Vec::new(),
        core: 0,
        symbols: Vec::new(),
    };
    let mut whole = true;
    for (folder, is_core) in folders(&dir)? {
        if ctx.module_bug().is_some() && !is_core && !WITH_BUGS.contains(&folder.as_str()) {
            continue;
        }
        let module_dir = dir.join(&folder);
        if !fresh {
            let made = make_one(ctx, tools, profile, &folder, &module_dir, &built);
            match made {
                Err(error) if keep_going() && !is_core => {
                    eprintln!("  {error:#}: left out");
                    whole = false;
                    continue;
                }
                other => other?,
            }
        }
        let mut found = modules_in(&module_dir)?;
        if is_core {
            built.core += found.len();
        }
        built.modules.append(&mut found);
        built.symbols.push(module_dir.join("Module.symvers"));
    }
    if whole {
        std::fs::write(&stamp, &key)?;
    }
    Ok(built)
}

/// Returns whether parts that do not build are left out: a help while several parts are being
/// changed.
pub fn keep_going() -> bool {
    std::env::var_os("KFABRIC_KEEP_GOING").is_some()
}

/// Returns the existing folders of modules, in order, and whether each is core.
///
/// # Errors
///
/// If a folder cannot be read.
pub fn folders(dir: &Path) -> Result<Vec<(String, bool)>> {
    let is_module = |name: &str| dir.join(name).join("Kbuild").exists();
    let mut found: Vec<(String, bool)> = CORE
        .iter()
        .filter(|name| is_module(name))
        .map(|name| ((*name).to_owned(), true))
        .collect();
    let mut consumers = vec!["kfblk".to_owned()];
    for group in CONSUMERS {
        let Ok(entries) = std::fs::read_dir(dir.join(group)) else {
            continue;
        };
        for entry in entries {
            let name = entry?.file_name();
            consumers.push(format!("{group}/{}", name.to_string_lossy()));
        }
    }
    consumers.sort();
    found.extend(
        consumers
            .into_iter()
            .filter(|name| is_module(name))
            .map(|name| (name, false)),
    );
    Ok(found)
}

fn make_one(
    ctx: &Context,
    tools: &Toolbox,
    profile: Profile,
    folder: &str,
    module_dir: &Path,
    before: &Built,
) -> Result<()> {
    let verb = if profile == Profile::Clippy {
        "clippy"
    } else {
        "build"
    };
    let step = Step::new(ctx, format!("{verb} {folder} for {}", tools.release));
    let mut args: Vec<String> = profile
        .arguments()
        .iter()
        .map(|arg| (*arg).to_owned())
        .collect();
    if let Some(bug) = ctx.module_bug() {
        args.push(format!("KFABRIC_SEED_BUG={}", bug.name()));
    }
    args.extend(["-s".into(), "modules".into()]);
    let output = tools
        .make(ctx, module_dir, &before.dir, &before.symbols, &args)
        .stdin(std::process::Stdio::null())
        .output()
        .context("starting make")?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        drop(step);
        eprint!("{text}");
        bail!("{folder} does not build");
    }
    step.done();
    eprint!("{}", without_noise(&text));
    Ok(())
}

/// Drops the lines that Kbuild prints for every out-of-tree module.
fn without_noise(text: &str) -> String {
    const NOISE: [&str; 4] = [
        "Skipping BTF generation",
        "make[",
        "make:",
        "warning: the compiler differs",
    ];
    text.lines()
        .filter(|line| !NOISE.iter().any(|noise| line.contains(noise)))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Returns the modules in a folder.
fn modules_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "ko"))
        .collect();
    found.sort();
    Ok(found)
}
