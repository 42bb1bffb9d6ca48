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
    /// Build everything a second time, and compare; run lintian, and with --rpm also rpmbuild and
    /// rpmlint.
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
    /// With --test: only this part of it.
    #[arg(long, requires = "test", value_enum)]
    pub part: Option<test::Part>,
}

impl Args {
    /// Returns the arguments of `package --rpm --check --test`.
    pub fn everything() -> Self {
        Self {
            out: None,
            rpm: true,
            check: true,
            test: true,
            short: false,
            part: None,
        }
    }

    /// Returns the arguments of `package --test --short`.
    pub fn short_test() -> Self {
        Self {
            out: None,
            rpm: false,
            check: false,
            test: true,
            short: true,
            part: None,
        }
    }
}

/// The commit that is packaged.
#[derive(Debug, Clone)]
pub struct Release {
    /// Version of the packages and of the modules in DKMS: the project's, time and hash of the commit, and
    /// a mark if files differ from the commit.
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
            git.args([
                "--date=format-local:%Y%m%d.%H%M%S",
                &format!("--format={format}"),
            ]);
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
        let written = rpm::write(&release, &files, &ctx.target.join("package-stage"), &out)?;
        for path in &written {
            println!("{}", path.display());
        }
        if args.check {
            check_rpm(ctx, &written)?;
        }
    }
    if args.check {
        check(ctx, &release, &made)?;
    }
    if args.test {
        test::run(ctx, &made, |part| {
            args.part.is_none_or(|only| only == part)
                && (part == test::Part::Programs || !args.short)
        })?;
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
    // Names with * shall mean one package.
    for old in fs::read_dir(out)? {
        let path = old?.path();
        if path.extension().is_some_and(|ext| ext == "deb") {
            fs::remove_file(&path)?;
        }
    }
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
    judged(ctx, "lintian", LINTIAN, made)
}

/// Runs a script in a throw-away copy of the build root, in a folder with copies of `files`. The
/// script's arguments are the files' names.
fn judged(ctx: &Context, name: &str, script: &str, files: &[PathBuf]) -> Result<()> {
    let root = setup::ensure(ctx, setup::Which::Main)?.root;
    let scratch = ctx.target.join(format!("{name}-root"));
    let _ = fs::remove_dir_all(&scratch);
    let folder = scratch.join("files");
    fs::create_dir_all(&folder)?;
    let mut argv = vec!["sh".to_owned(), "-ec".to_owned(), script.to_owned()];
    argv.push(name.to_owned());
    for file in files {
        let own = file.file_name().and_then(|name| name.to_str());
        let own = own.context("a path without a name")?;
        fs::copy(file, folder.join(own)).with_context(|| file.display().to_string())?;
        argv.push(own.to_owned());
    }
    let at = Path::new("/mnt");
    let bind = Bind {
        from: folder,
        at: at.to_owned(),
    };
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let cmd = overlaid(&root, &scratch, &[bind], at, &argv);
    run_logged(cmd, &ctx.log_dir().join(format!("{name}.log")))?;
    fs::remove_dir_all(&scratch)?;
    println!("{name} has nothing to say");
    Ok(())
}

/// Runs lintian. Arguments: the packages.
const LINTIAN: &str = "export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends lintian
lintian --allow-root --fail-on error,warning \"$@\"";

/// Builds the packages of the spec, and runs rpmlint on them. Arguments: the spec, the archive,
/// rpmlint's configuration.
const RPMLINT: &str = "export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends rpm rpmlint
rpmbuild -bb --define '_sourcedir /mnt' --define '_rpmdir /tmp/rpms' \"$1\"
rpmlint --strict --config \"$3\" \"$1\" /tmp/rpms/*/*.rpm";

/// Builds the packages of a spec, and checks them. `written` is the spec and its archive.
fn check_rpm(ctx: &Context, written: &[PathBuf]) -> Result<()> {
    let mut files = written.to_vec();
    files.push(ctx.repo.join("packaging/rpmlint.toml"));
    judged(ctx, "rpmlint", RPMLINT, &files)
}
