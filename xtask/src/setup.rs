// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask setup`: build root, kernel, `rust/` metadata, initramfs.
//!
//! Each part is made once and kept in the cache (`KFABRIC_CACHE`, else `$XDG_CACHE_HOME/kfabric`,
//! else `~/.cache/kfabric`), shared by all checkouts. The parts are stages whose keys depend on
//! their inputs ([`stage`]). The cache records the chosen kernel; only an explicit `setup` asks the
//! archive for a newer one.

pub mod archive;
pub mod debug;
pub mod host;
pub mod initrd;
pub mod kernel;
pub mod layers;
pub mod root;
pub mod siw;
pub mod sparse;
pub mod stage;

use crate::context::Context;
use crate::versions::{self, Choice, SERIES};
use anyhow::{bail, Context as _, Result};
use archive::{Archive, Mirror};
use std::path::{Path, PathBuf};

/// All parts needed to build modules and boot guests.
#[derive(Debug, Clone)]
pub struct Rig {
    /// The build root.
    pub root: PathBuf,
    /// The chosen kernel.
    pub choice: Choice,
    /// Content of the kernel's packages.
    pub packages: PathBuf,
    /// The configured kernel tree.
    pub tree: PathBuf,
    /// The guests' initramfs.
    pub initrd: PathBuf,
}

impl Rig {
    /// Returns whether the kernel is the debug kernel.
    pub fn is_debug(&self) -> bool {
        debug::is(&self.choice)
    }
}

/// Selects one of the supported kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The kernel of most commands, of the preferred series if available.
    Main,
    /// A kernel of another supported series, for smoke tests.
    Other,
}

/// The arguments of `setup`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// The kernel to use: a point release (7.2.11), a whole release, or a series (7.3).
    #[arg(long, value_name = "VERSION")]
    pub kernel_version: Option<String>,
    /// Also set up the other supported series.
    #[arg(long)]
    pub all_series: bool,
    /// Also build the debug kernel.
    #[arg(long)]
    pub debug_kernel: bool,
}

/// Runs `setup`.
///
/// # Errors
///
/// If a required part is not available; the error says which step helps.
pub fn run(ctx: &Context, args: &Args) -> Result<()> {
    let rig = prepare(ctx, Which::Main, true, args.kernel_version.as_deref())?;
    println!("kernel {}: ready", rig.choice.release);
    if args.all_series {
        match prepare(ctx, Which::Other, true, None) {
            Ok(other) => println!("kernel {}: ready", other.choice.release),
            Err(error) => println!("no other series: {error:#}"),
        }
    }
    if args.debug_kernel {
        println!("kernel {}: ready", ensure_debug(ctx)?.choice.release);
    }
    for layer in layers::ensure(ctx, &rig.root) {
        println!("layer       {}", layer.path.display());
    }
    println!("build root  {}", rig.root.display());
    println!("kernel tree {}", rig.tree.display());
    Ok(())
}

/// Returns the rig, and sets it up if necessary.
///
/// # Errors
///
/// The errors of [`run`].
pub fn ensure(ctx: &Context, which: Which) -> Result<Rig> {
    prepare(ctx, which, false, None)
}

/// Returns whether the debug kernel is built.
///
/// # Errors
///
/// If the rig that it is based on cannot be set up.
pub fn has_debug(ctx: &Context) -> Result<bool> {
    let base = ensure(ctx, Which::Main)?;
    Ok(debug::is_built(ctx, &base))
}

/// Returns the rig with the debug kernel, and sets it up if necessary.
///
/// # Errors
///
/// The errors of [`run`].
pub fn ensure_debug(ctx: &Context) -> Result<Rig> {
    let base = ensure(ctx, Which::Main)?;
    if let Some(rig) = debug::present(ctx, &base) {
        return Ok(rig);
    }
    let _lock = stage::lock(&ctx.cache, "setup")?;
    debug::make(ctx, &base)
}

fn prepare(ctx: &Context, which: Which, refresh: bool, wanted: Option<&str>) -> Result<Rig> {
    // The variable applies to one run and does not change the recorded choice.
    let for_now = std::env::var("KFABRIC_KERNEL_VERSION")
        .ok()
        .filter(|text| !text.is_empty() && which == Which::Main && wanted.is_none());
    let place = record_path(ctx, which, for_now.as_deref());
    let wanted = wanted.or(for_now.as_deref());
    let known = || {
        let choice = recorded(&place)?;
        let of_other = which == Which::Main
            || recorded(&record_path(ctx, Which::Main, None))
                .is_none_or(|main| main.series != choice.series);
        of_other.then(|| complete(ctx, &choice)).flatten()
    };
    if let Some(rig) = known().filter(|_| !refresh) {
        return Ok(rig);
    }
    let _lock = stage::lock(&ctx.cache, "setup")?;
    // Another xtask may have set up the rig while this one waited.
    if let Some(rig) = known().filter(|_| !refresh) {
        return Ok(rig);
    }
    host::ensure(ctx)?;
    let mirror = Mirror::find()?;
    let archive = Archive::open(ctx, &mirror)?;
    let choice = resolve(ctx, &archive, which, wanted, recorded(&place))?;
    let rig = make(ctx, &mirror, &archive, choice)?;
    record(&place, &rig.choice)?;
    Ok(rig)
}

/// Asks the archive for the kernel to use.
fn resolve(
    ctx: &Context,
    archive: &Archive,
    which: Which,
    wanted: Option<&str>,
    before: Option<Choice>,
) -> Result<Choice> {
    let index = match archive.index(ctx) {
        Ok(index) => index,
        Err(error) => {
            // Without the archive, the previous setup can still be used.
            let fits = |choice: &Choice| wanted.is_none_or(|wanted| choice.is(wanted));
            if let Some(choice) = before.filter(fits) {
                eprintln!(
                    "  the archive cannot be asked ({error:#}); staying with {}",
                    choice.release
                );
                return Ok(choice);
            }
            return Err(error);
        }
    };
    for series in versions::newer_series(&index) {
        eprintln!("  note: the archive has series {series}, which is newer than any supported here; not taken");
    }
    match which {
        Which::Main => versions::choose(&index, &SERIES, wanted),
        Which::Other => {
            let main = recorded(&record_path(ctx, Which::Main, None)).map(|choice| choice.series);
            let others: Vec<&str> = SERIES
                .into_iter()
                .filter(|series| Some(*series) != main.as_deref())
                .collect();
            versions::choose(&index, &others, None)
        }
    }
}

/// Makes the missing parts for `choice`. The kernel is downloaded while the build root is made.
fn make(ctx: &Context, mirror: &Mirror, archive: &Archive, choice: Choice) -> Result<Rig> {
    let (root, debs) = std::thread::scope(|scope| {
        let need_debs = kernel::packages(ctx, &choice).is_none();
        let choice = &choice;
        let debs =
            scope.spawn(move || need_debs.then(|| archive.download(ctx, choice)).transpose());
        let root = root::make(ctx, mirror);
        let debs = debs
            .join()
            .unwrap_or_else(|_| bail!("the download broke off"));
        (root, debs)
    });
    let (root, debs) = (root?, debs?);
    let packages = kernel::make_packages(ctx, &choice, &root, || {
        debs.context("nothing was downloaded")
    })?;
    let tree = kernel::make_tree(ctx, &choice, &root, &packages)?;
    let initrd = initrd::make(ctx, &choice, &root, &packages)?;
    Ok(Rig {
        root,
        choice,
        packages,
        tree,
        initrd,
    })
}

/// Returns the rig for `choice`, if all its parts exist.
fn complete(ctx: &Context, choice: &Choice) -> Option<Rig> {
    Some(Rig {
        root: root::present(ctx)?,
        packages: kernel::packages(ctx, choice)?,
        tree: kernel::tree(ctx, choice)?,
        initrd: initrd::present(ctx, choice)?,
        choice: choice.clone(),
    })
}

/// Returns the file that records the chosen kernel.
fn record_path(ctx: &Context, which: Which, for_now: Option<&str>) -> PathBuf {
    ctx.cache.join(match (which, for_now) {
        (_, Some(wanted)) => format!("kernel-wanted-{}.json", wanted.replace('/', "_")),
        (Which::Main, None) => "kernel-main.json".to_owned(),
        (Which::Other, None) => "kernel-other.json".to_owned(),
    })
}

/// Returns the recorded kernel, if its series is still supported.
fn recorded(place: &Path) -> Option<Choice> {
    let text = std::fs::read_to_string(place).ok()?;
    let choice: Choice = serde_json::from_str(&text).ok()?;
    SERIES.contains(&choice.series.as_str()).then_some(choice)
}

fn record(place: &Path, choice: &Choice) -> Result<()> {
    let new = place.with_extension("new");
    std::fs::write(&new, serde_json::to_string_pretty(choice)?)?;
    std::fs::rename(new, place)?;
    Ok(())
}
