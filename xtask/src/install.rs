// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask install`: installs modules, programs, man pages, completions, rules and units.

use crate::build::modules::{self, Profile, Toolbox};
use crate::context::Context;
use crate::files;
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
    let built = files::build_programs(ctx, &ctx.target.join("install"))?;
    for file in files::of_programs(ctx, &built, place.prefix)? {
        place.put(&file.path, &file.content, file.mode)?;
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
        let to = place.prefix.join("bin/kfi");
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
}
