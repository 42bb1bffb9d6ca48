// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask install`: installs modules, programs, man pages, completions, the udev rule and the
//! unit.

use crate::build::modules::{self, Profile, Toolbox};
use crate::context::Context;
use anyhow::{bail, Context as _, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of `install`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also install the modules, built against this configured, Rust-enabled kernel tree.
    #[arg(long, value_name = "DIR")]
    pub kdir: Option<PathBuf>,
    /// Install below this folder, for example to make a package.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub destdir: PathBuf,
    /// Prefix of programs, man pages and other files.
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
}

/// The modules of a running system; the others are for tests.
const MODULES: [&str; 4] = ["kfabric.ko", "kverbs.ko", "kshm.ko", "kfblk.ko"];
/// The programs, and the folder of each below the prefix.
const PROGRAMS: [(&str, &str); 2] = [("kfi", "bin"), ("kfi-authd", "sbin")];
/// The shells, and the file of each shell's completions below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/kfi"),
    ("zsh", "share/zsh/site-functions/_kfi"),
    ("fish", "share/fish/vendor_completions.d/kfi.fish"),
];
/// Folder of the unit's program in the repository's copy.
const UNIT_SBIN: &str = "/usr/sbin/";

/// Destination of files.
struct Place<'a> {
    destdir: &'a Path,
    prefix: &'a Path,
}

impl Place<'_> {
    /// Returns a path below the destination folder.
    fn below(&self, path: &Path) -> PathBuf {
        self.destdir.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn put(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let to = self.below(path);
        let dir = to.parent().context("no folder")?;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        // A running program cannot be overwritten, but can be replaced by rename.
        let new = dir.join(format!(".kfabric-install-{}", std::process::id()));
        fs::write(&new, content)
            .and_then(|()| fs::set_permissions(&new, PermissionsExt::from_mode(mode)))
            .and_then(|()| fs::rename(&new, &to))
            .with_context(|| format!("writing {}", to.display()))?;
        println!("{}", to.display());
        Ok(())
    }

    fn own(&self, name: &str) -> PathBuf {
        self.prefix.join(name)
    }
}

/// Runs `install`.
///
/// # Errors
///
/// If a build fails, or a file cannot be written.
pub fn run(ctx: &Context, args: &Args) -> Result<()> {
    if !args.prefix.is_absolute() {
        bail!("the prefix {} is not absolute", args.prefix.display());
    }
    let place = Place {
        destdir: &args.destdir,
        prefix: &args.prefix,
    };
    programs(ctx, &place)?;
    if let Some(kdir) = &args.kdir {
        kernel_modules(ctx, &place, kdir)?;
    }
    Ok(())
}

fn programs(ctx: &Context, place: &Place<'_>) -> Result<()> {
    // Built for this machine, because the programs look up users with its C library.
    let target = ctx.target.join("install");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked"])
        .arg("--manifest-path")
        .arg(ctx.repo.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    for (name, _) in PROGRAMS {
        cargo.args(["--package", name]);
    }
    if !cargo.status().context("starting cargo")?.success() {
        bail!("the programs do not build");
    }
    let built = target.join("release");
    for (name, folder) in PROGRAMS {
        let program = built.join(name);
        let content = fs::read(&program).with_context(|| program.display().to_string())?;
        place.put(&place.own(folder).join(name), &content, 0o755)?;
    }
    let kfi = built.join("kfi");
    for (shell, path) in COMPLETIONS {
        let script = said(Command::new(&kfi).args(["completions", shell]))?;
        place.put(&place.own(path), &script, 0o644)?;
    }
    let pages = target.join("man");
    let _ = fs::remove_dir_all(&pages);
    said(Command::new(&kfi).arg("man").arg(&pages))?;
    let listed = fs::read_dir(&pages).with_context(|| pages.display().to_string())?;
    let mut pages = listed
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    pages.sort();
    for page in pages {
        let content = fs::read(&page).with_context(|| page.display().to_string())?;
        let (Some(name), Some(section)) = (page.file_name(), page.extension()) else {
            continue;
        };
        let folder = format!("share/man/man{}", section.to_string_lossy());
        place.put(&place.own(&folder).join(name), &content, 0o644)?;
    }
    let read = |path: &str| {
        let path = ctx.repo.join(path);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let rule = read("userspace/udev/70-kfabric.rules")?;
    let to = place.own("lib/udev/rules.d/70-kfabric.rules");
    place.put(&to, rule.as_bytes(), 0o644)?;
    let sbin = format!("{}/", place.own("sbin").display());
    let unit = read("userspace/kfi-authd/examples/kfi-authd.service")?.replace(UNIT_SBIN, &sbin);
    let to = place.own("lib/systemd/system/kfi-authd.service");
    place.put(&to, unit.as_bytes(), 0o644)?;
    for name in ["authd.toml", "slurm-prolog.sh", "slurm-epilog.sh"] {
        let content = read(&format!("userspace/kfi-authd/examples/{name}"))?;
        let to = place.own("share/doc/kfabric/examples").join(name);
        place.put(&to, content.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn kernel_modules(ctx: &Context, place: &Place<'_>, kdir: &Path) -> Result<()> {
    let release = kdir.join("include/config/kernel.release");
    let release = fs::read_to_string(&release)
        .with_context(|| format!("{}: is the tree configured and built?", release.display()))?;
    let release = release.trim();
    let built = modules::build(ctx, &Toolbox::host(ctx, kdir)?, Profile::Stock)?;
    let folder = Path::new("/lib/modules")
        .join(release)
        .join("updates/kfabric");
    for name in MODULES {
        let found = built.modules.iter().find(|path| path.ends_with(name));
        let found = found.with_context(|| format!("{name} was not built"))?;
        let content = fs::read(found).with_context(|| found.display().to_string())?;
        place.put(&folder.join(name), &content, 0o644)?;
    }
    let mut depmod = Command::new("depmod");
    depmod.arg("-b").arg(place.destdir).arg(release);
    match depmod.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("depmod: {status}"),
        Err(e) => bail!("depmod, without which modprobe does not find them: {e}"),
    }
}

/// Returns the output of one of our programs.
fn said(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        bail!("{command:?}: {}: {why}", out.status);
    }
    Ok(out.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_an_absolute_path_is_below_the_destination() {
        let dir = std::env::temp_dir().join(format!("kfi-install-{}", std::process::id()));
        let place = Place {
            destdir: &dir,
            prefix: Path::new("/opt/kf"),
        };
        let to = place.own("bin").join("kfi");
        place.put(&to, b"one", 0o755).unwrap();
        place.put(&to, b"two", 0o755).unwrap();
        let made = dir.join("opt/kf/bin/kfi");
        assert_eq!(fs::read(&made).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&made).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(fs::read_dir(made.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn unit_of_the_repository_names_the_program_that_is_replaced() {
        let unit = include_str!("../../userspace/kfi-authd/examples/kfi-authd.service");
        let commands: Vec<_> = unit.lines().filter(|l| l.starts_with("Exec")).collect();
        assert!(!commands.is_empty());
        for command in commands {
            assert_eq!(command.matches(UNIT_SBIN).count(), 1, "{command}");
        }
    }
}
