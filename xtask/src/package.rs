// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask package`: packages of the distribution, from the list in [`crate::files`].
//!
//! The packages depend on the sources and the commit alone: a second build gives the same bytes.

mod control;
mod deb;
mod installed;
mod rpm;
mod test;

use crate::chroot::{overlaid, run_logged, Bind};
use crate::context::Context;
use crate::files::{self, Entry, Package};
use crate::setup;
use anyhow::{bail, ensure, Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of `package`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the packages; by default target/package.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also write a spec for `rpmbuild` with the same packages, and the archive of its files.
    #[arg(long)]
    pub rpm: bool,
    /// Build everything a second time, and compare.
    #[arg(long)]
    pub check: bool,
    /// Install the packages in a throw-away copy of the build root, try them, purge them, and check
    /// that nothing is left. Also build the modules by DKMS, which downloads the kernel's packages,
    /// and boot machines with systemd: one that is installed, rebooted and purged, and two that start
    /// in either order.
    #[arg(long)]
    pub test: bool,
    /// With --test: without the modules, and without a download.
    #[arg(long, requires = "test")]
    pub short: bool,
}

impl Args {
    /// Returns the arguments of `package --test --short`.
    pub fn short_test() -> Self {
        Self {
            out: None,
            rpm: false,
            check: false,
            test: true,
            short: true,
        }
    }
}

/// The commit that is packaged.
#[derive(Debug, Clone)]
pub struct Release {
    /// Version of the packages and of the modules in DKMS: the project's, the commit, and a mark if
    /// files differ from the commit.
    pub version: String,
    /// Time of the commit, in seconds: the time of all files.
    pub epoch: u64,
    /// Name and address of the packages' maintainer.
    pub maintainer: String,
}

impl Release {
    /// Describes the checkout's commit. The environment's `SOURCE_DATE_EPOCH`, `DEBFULLNAME` and
    /// `DEBEMAIL` take precedence.
    fn of(ctx: &Context) -> Result<Self> {
        let shown = |format: &str| -> Result<String> {
            let mut git = Command::new("git");
            git.arg("-C").arg(&ctx.repo).args(["log", "-1"]);
            git.args(["--date=format-local:%Y%m%d", &format!("--format={format}")]);
            git.env("TZ", "UTC");
            let out = String::from_utf8(files::said(&mut git)?)?;
            Ok(out.trim().to_owned())
        };
        let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let epoch = match set("SOURCE_DATE_EPOCH") {
            Some(epoch) => epoch,
            None => shown("%ct")?,
        };
        let commit = shown("%H")?;
        let commit = commit.get(..12).context("git prints no commit")?;
        let mut git = Command::new("git");
        git.arg("-C").arg(&ctx.repo);
        git.args(["status", "--porcelain", "--untracked-files=no"]);
        let changed = match files::said(&mut git)?.is_empty() {
            true => "",
            false => ".changed",
        };
        let maintainer = match (set("DEBFULLNAME"), set("DEBEMAIL")) {
            (Some(name), Some(mail)) => format!("{name} <{mail}>"),
            _ => shown("%an <%ae>")?,
        };
        Ok(Self {
            version: format!(
                "{}+git{}.{commit}{changed}",
                env!("CARGO_PKG_VERSION"),
                shown("%cd")?
            ),
            epoch: epoch.parse().context("SOURCE_DATE_EPOCH is no number")?,
            maintainer,
        })
    }
}

/// Runs `package`.
///
/// # Errors
///
/// If a package cannot be built, differs from its second build, or fails a test.
pub fn run(ctx: &Context, args: &Args) -> Result<()> {
    let release = Release::of(ctx)?;
    let out = match &args.out {
        Some(dir) => std::path::absolute(dir)?,
        None => ctx.target.join("package"),
    };
    let made = build(ctx, &release, &out)?;
    for deb in &made {
        println!("{}", deb.display());
    }
    if args.rpm {
        let files = collect(ctx, &release, &programs(ctx)?)?;
        for path in rpm::write(&release, &files, &ctx.target.join("package-stage"), &out)? {
            println!("{}", path.display());
        }
    }
    if args.check {
        check(ctx, &release, &made)?;
    }
    if args.test {
        test::run(ctx, &made, args.short)?;
    }
    Ok(())
}

/// Builds the programs for packages. Returns their folder.
fn programs(ctx: &Context) -> Result<PathBuf> {
    files::build_programs(ctx, &ctx.target.join("install"))
}

/// Returns all files of all packages.
fn collect(ctx: &Context, release: &Release, built: &Path) -> Result<Vec<Entry>> {
    let prefix = Path::new("/usr");
    let mut all = files::of_programs(ctx, built, prefix)?;
    all.extend(files::of_modules(ctx, &release.version)?);
    all.extend(files::of_development(ctx, prefix)?);
    Ok(all)
}

/// Builds all packages into `out`. Returns their paths.
fn build(ctx: &Context, release: &Release, out: &Path) -> Result<Vec<PathBuf>> {
    let built = programs(ctx)?;
    let all = collect(ctx, release, &built)?;
    let stage = ctx.target.join("package-stage");
    fs::create_dir_all(out)?;
    Package::ALL
        .iter()
        .map(|package| {
            let own: Vec<&Entry> = all.iter().filter(|e| e.package == *package).collect();
            let control = control::of(ctx, *package, release, &own)?;
            deb::build(&stage, release, &control, &own, out)
        })
        .collect()
}

/// Builds the programs and the packages a second time from nothing, and compares.
fn check(ctx: &Context, release: &Release, made: &[PathBuf]) -> Result<()> {
    let built = ctx.target.join("install");
    fs::remove_dir_all(&built).with_context(|| built.display().to_string())?;
    let again = build(ctx, release, &ctx.target.join("package-again"))?;
    ensure!(made.len() == again.len(), "other packages the second time");
    for (one, two) in made.iter().zip(&again) {
        if fs::read(one)? != fs::read(two)? {
            bail!("{} and {} differ", one.display(), two.display());
        }
    }
    println!("the second build gives the same bytes");
    lintian(ctx, made)
}

/// Installs lintian in a throw-away copy of the build root. Arguments: the packages.
const LINTIAN: &str = "export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends lintian
lintian --allow-root --fail-on error,warning \"$@\"";

/// Runs lintian on the packages.
fn lintian(ctx: &Context, made: &[PathBuf]) -> Result<()> {
    let root = setup::ensure(ctx, setup::Which::Main)?.root;
    let folder = made.first().and_then(|deb| deb.parent());
    let at = Path::new("/mnt");
    let bind = Bind {
        from: folder.context("no packages")?.to_owned(),
        at: at.to_owned(),
    };
    let names = made.iter().filter_map(|deb| deb.file_name()?.to_str());
    let argv: Vec<&str> = ["sh", "-ec", LINTIAN, "lintian"]
        .into_iter()
        .chain(names)
        .collect();
    let scratch = ctx.target.join("lintian-root");
    let _ = fs::remove_dir_all(&scratch);
    let cmd = overlaid(&root, &scratch, &[bind], at, &argv);
    run_logged(cmd, &ctx.log_dir().join("lintian.log"))?;
    fs::remove_dir_all(&scratch)?;
    println!("lintian has nothing to say");
    Ok(())
}
