// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files of an installed system: one list, from which `install` copies and `package` makes
//! packages.

use crate::context::Context;
use crate::versions::SERIES;
use anyhow::{bail, Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package; each file belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    /// The modules' sources, built on the machine by DKMS.
    Dkms,
    /// `kfi`, the udev rule, units, and options of modprobe.
    Tools,
    /// The agent of auth keys.
    Authd,
    /// The plug-in of libfabric.
    Libfabric,
    /// Headers, and the library's sources.
    Dev,
}

impl Package {
    /// All packages.
    pub const ALL: [Self; 5] = [
        Self::Dkms,
        Self::Tools,
        Self::Authd,
        Self::Libfabric,
        Self::Dev,
    ];

    /// Returns the package's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dkms => "kfabric-dkms",
            Self::Tools => "kfabric-tools",
            Self::Authd => "kfi-authd",
            Self::Libfabric => "libfabric-kfabric",
            Self::Dev => "kfabric-dev",
        }
    }
}

/// A file of an installed system.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The package of the file.
    pub package: Package,
    /// Absolute path on the system.
    pub path: PathBuf,
    /// Content of the file.
    pub content: Vec<u8>,
    /// Permissions of the file.
    pub mode: u32,
}

/// The programs, the package of each, and its folder below the prefix.
const PROGRAMS: [(&str, Package, &str); 2] = [
    ("kfi", Package::Tools, "bin"),
    ("kfi-authd", Package::Authd, "sbin"),
];
/// The crate of libfabric's plug-in, the built file, and the installed one.
const PLUGIN: (&str, &str, &str) = ("libfabric-provider", "libkfabric_fi.so", "libkfabric-fi.so");
/// The plug-in under a name that makes it the provider `verbs`: a file of its own, in a folder below the
/// plug-in's, from which libfabric loads nothing unless `FI_PROVIDER_PATH` names the folder.
const ALIAS: &str = "kfabric-verbs/libkfabric_verbs-fi.so";
/// Folders below the prefix in which libfabric looks for plug-ins: that of Debian, that of RPM
/// distributions, and that of a libfabric built from source.
pub const PLUGIN_FOLDERS: [&str; 3] = [
    "lib/x86_64-linux-gnu/libfabric",
    "lib64/libfabric",
    "lib/libfabric",
];
/// The shells, and the file of each shell's completions below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/kfi"),
    ("zsh", "share/zsh/site-functions/_kfi"),
    ("fish", "share/fish/vendor_completions.d/kfi.fish"),
];
/// Debian's folder for zsh completions of packages, which replaces that of [`COMPLETIONS`] below
/// `/usr`.
const ZSH_OF_PACKAGES: &str = "share/zsh/vendor-completions/_kfi";
/// Files that are copied: package, path in the repository, path below the prefix.
const COPIES: [(Package, &str, &str); 13] = [
    (
        Package::Tools,
        "userspace/udev/70-kfabric.rules",
        "lib/udev/rules.d/70-kfabric.rules",
    ),
    (
        Package::Tools,
        "packaging/modprobe.conf",
        "lib/modprobe.d/kfabric.conf",
    ),
    (
        Package::Tools,
        "packaging/systemd/kfi-export@.service",
        "lib/systemd/system/kfi-export@.service",
    ),
    (
        Package::Tools,
        "packaging/systemd/kfblk-connect@.service",
        "lib/systemd/system/kfblk-connect@.service",
    ),
    (
        Package::Tools,
        "packaging/systemd/kfi-rxe@.service",
        "lib/systemd/system/kfi-rxe@.service",
    ),
    (
        Package::Tools,
        "packaging/blk.conf",
        "share/doc/kfabric-tools/examples/blk.conf",
    ),
    (
        Package::Tools,
        "examples/bpftrace/kfabric-keys.bt",
        "share/doc/kfabric-tools/examples/kfabric-keys.bt",
    ),
    (
        Package::Dev,
        "examples/c-module/Kbuild",
        "share/doc/kfabric-dev/examples/c-module/Kbuild",
    ),
    (
        Package::Dev,
        "examples/c-module/kfi_example_c.c",
        "share/doc/kfabric-dev/examples/c-module/kfi_example_c.c",
    ),
    (
        Package::Authd,
        "userspace/kfi-authd/examples/kfi-authd.service",
        "lib/systemd/system/kfi-authd.service",
    ),
    (
        Package::Authd,
        "userspace/kfi-authd/examples/authd.toml",
        "share/doc/kfi-authd/examples/authd.toml",
    ),
    (
        Package::Authd,
        "userspace/kfi-authd/examples/slurm-prolog.sh",
        "share/doc/kfi-authd/examples/slurm-prolog.sh",
    ),
    (
        Package::Authd,
        "userspace/kfi-authd/examples/slurm-epilog.sh",
        "share/doc/kfi-authd/examples/slurm-epilog.sh",
    ),
];
/// Folders of programs in the repository's units.
const UNIT_FOLDERS: [(&str, &str); 2] = [("/usr/sbin/", "sbin"), ("/usr/bin/", "bin")];

/// Sources of the modules, in the repository's layout.
const MODULE_SOURCES: [&str; 6] = [
    "kfabric",
    "kverbs-provider",
    "kshm-provider",
    "kfblk",
    "pure/src",
    "uapi/src",
];
/// Files of the modules' package: path in the repository, path below its folder, permissions.
const DKMS_FILES: [(&str, &str, u32); 6] = [
    ("packaging/dkms/dkms.conf", "dkms.conf", 0o644),
    ("packaging/dkms/Makefile", "Makefile", 0o644),
    ("packaging/dkms/prepare.sh", "packaging/prepare.sh", 0o755),
    ("packaging/dkms/reason.sh", "packaging/reason.sh", 0o755),
    (
        "packaging/dkms/keep-symbols.sh",
        "packaging/keep-symbols.sh",
        0o755,
    ),
    (
        "packaging/kernel-rust.sh",
        "packaging/kernel-rust.sh",
        0o755,
    ),
];
/// The library, the crates that the library is made of, and the example programs.
const CRATES: [&str; 5] = [
    "pure",
    "uapi",
    "userspace/libkfabric",
    "userspace/libkfauth",
    "examples/program",
];
/// Folder of the crates below the prefix.
const CRATES_AT: &str = "share/kfabric/rust";
/// Folder of the headers for programs below the prefix; those of the kernel are in a subfolder.
const HEADERS_AT: &str = "include/kfabric";

/// Compiler and linker flags of installed programs: position-independent, with all relocations
/// resolved and read-only before `main()`, and without paths of the building machine.
fn flags(ctx: &Context) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut flags = vec![
        "-Crelocation-model=pic".to_owned(),
        "-Crelro-level=full".to_owned(),
        "-Clink-arg=-Wl,-z,noexecstack,-z,separate-code,--as-needed".to_owned(),
        format!(
            "--remap-path-prefix={}=/usr/src/kfabric",
            ctx.repo.display()
        ),
    ];
    flags.extend(home.map(|home| format!("--remap-path-prefix={}=/cargo", home.display())));
    // Cargo's separator, because a path may contain a space.
    flags.join("\u{1f}")
}

/// Builds the programs and libfabric's plug-in for this machine, because they look up users with its C library. Returns the
/// programs' folder.
///
/// # Errors
///
/// If a program does not build; the compiler's messages have been printed.
pub fn build_programs(ctx: &Context, target: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked"])
        .args(["--config", "profile.release.strip=\"symbols\""])
        .arg("--manifest-path")
        .arg(ctx.repo.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(ctx));
    for name in PROGRAMS
        .map(|(name, ..)| name)
        .into_iter()
        .chain([PLUGIN.0])
    {
        cargo.args(["--package", name]);
    }
    if !cargo.status().context("starting cargo")?.success() {
        bail!("the programs do not build");
    }
    Ok(target.join("release"))
}

/// Returns the files of programs, pages, rules and units, for a system whose prefix is `prefix`.
/// `built` is the folder of the built programs.
///
/// # Errors
///
/// If a file is missing, or a program does not print its completions or pages.
pub fn of_programs(ctx: &Context, built: &Path, prefix: &Path) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let mut add = |package, path: &str, content, mode| {
        all.push(Entry {
            package,
            path: prefix.join(path),
            content,
            mode,
        });
    };
    for (name, package, folder) in PROGRAMS {
        add(
            package,
            &format!("{folder}/{name}"),
            read(&built.join(name))?,
            0o755,
        );
    }
    let (_, plugin, installed) = PLUGIN;
    let [of_debian, _, of_sources] = PLUGIN_FOLDERS;
    let folder = match prefix == Path::new("/usr") {
        true => of_debian,
        false => of_sources,
    };
    for name in [installed, ALIAS] {
        let path = format!("{folder}/{name}");
        add(Package::Libfabric, &path, read(&built.join(plugin))?, 0o644);
    }
    let kfi = built.join("kfi");
    for (shell, path) in COMPLETIONS {
        let path = match prefix == Path::new("/usr") && shell == "zsh" {
            true => ZSH_OF_PACKAGES,
            false => path,
        };
        let script = said(Command::new(&kfi).args(["completions", shell]))?;
        add(Package::Tools, path, script, 0o644);
    }
    let pages = built.join("man");
    let _ = fs::remove_dir_all(&pages);
    said(Command::new(&kfi).arg("man").arg(&pages))?;
    for entry in fs::read_dir(&pages).with_context(|| pages.display().to_string())? {
        let page = entry?.path();
        let (Some(name), Some(section)) = (page.file_name(), page.extension()) else {
            continue;
        };
        let (name, section) = (name.to_string_lossy(), section.to_string_lossy());
        let package = match (&*name, &*section) {
            ("kfi-authd.8", _) => Package::Authd,
            (_, "3") => Package::Dev,
            _ => Package::Tools,
        };
        let path = format!("share/man/man{section}/{name}");
        add(package, &path, read(&page)?, 0o644);
    }
    for (package, from, to) in COPIES {
        let mut content = read(&ctx.repo.join(from))?;
        if to.ends_with(".service") {
            let mut text = String::from_utf8(content).with_context(|| from.to_owned())?;
            for (usual, folder) in UNIT_FOLDERS {
                let own = format!("{}/", prefix.join(folder).display());
                text = text.replace(usual, &own);
            }
            content = text.into_bytes();
        }
        add(package, to, content, 0o644);
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Returns the modules' sources, as DKMS expects those of `version`.
///
/// # Errors
///
/// If a file cannot be read.
pub fn of_modules(ctx: &Context, version: &str) -> Result<Vec<Entry>> {
    let folder = Path::new("/usr/src").join(format!("kfabric-{version}"));
    let mut all = Vec::new();
    for path in tracked(ctx, &MODULE_SOURCES)? {
        if path.extension().is_some_and(|ext| ext == "md") {
            continue;
        }
        all.push(Entry {
            package: Package::Dkms,
            content: read(&ctx.repo.join(&path))?,
            path: folder.join(path),
            mode: 0o644,
        });
    }
    for (from, to, mode) in DKMS_FILES {
        let text = String::from_utf8(read(&ctx.repo.join(from))?)?
            .replace("@VERSION@", version)
            .replace("@SERIES@", &SERIES.join("|"));
        all.push(Entry {
            package: Package::Dkms,
            path: folder.join(to),
            content: text.into_bytes(),
            mode,
        });
    }
    Ok(all)
}

/// Returns the headers for programs and modules, and the library's sources.
///
/// # Errors
///
/// If a file cannot be read.
pub fn of_development(ctx: &Context, prefix: &Path) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let mut add = |path: PathBuf, content| {
        all.push(Entry {
            package: Package::Dev,
            path: prefix.join(path),
            content,
            mode: 0o644,
        });
    };
    let headers = Path::new(HEADERS_AT);
    for path in tracked(ctx, &["uapi/include", "kfabric/include"])? {
        let folder = match path.starts_with("uapi") {
            true => headers.to_owned(),
            false => headers.join("kernel"),
        };
        if path.extension().is_some_and(|ext| ext == "h") {
            let name = path.file_name().unwrap_or_default();
            add(folder.join(name), read(&ctx.repo.join(&path))?);
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    for (name, what, folder) in [
        ("kfabric", "The ioctl interface of kfabric", ""),
        (
            "kfabric-kernel",
            "The kfi API for kernel modules",
            "/kernel",
        ),
    ] {
        let text = format!(
            "prefix={}\nincludedir=${{prefix}}/{HEADERS_AT}{folder}\n\n\
             Name: {name}\nDescription: {what}\nVersion: {version}\nCflags: -I${{includedir}}\n",
            prefix.display()
        );
        let path = format!("share/pkgconfig/{name}.pc");
        add(path.into(), text.into_bytes());
    }
    let crates = Path::new(CRATES_AT);
    for path in tracked(ctx, &CRATES)? {
        let is_source = path
            .extension()
            .is_some_and(|ext| ext == "rs" || ext == "toml");
        // Tests need crates that the library does not.
        if is_source && !path.iter().any(|part| part == "tests") {
            add(crates.join(&path), read(&ctx.repo.join(&path))?);
        }
    }
    let workspace = fs::read_to_string(ctx.repo.join("Cargo.toml"))?;
    let workspace = workspace_of(&workspace, &CRATES)?;
    add(crates.join("Cargo.toml"), workspace.into_bytes());
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Returns the workspace's manifest with other members.
fn workspace_of(text: &str, members: &[&str]) -> Result<String> {
    let (before, rest) = text.split_once("members = [").context("no members")?;
    let (_, rest) = rest.split_once(']').context("no end of the members")?;
    let list: Vec<String> = members.iter().map(|name| format!("{name:?}")).collect();
    let rest = rest
        .lines()
        .filter(|line| !line.starts_with("exclude = "))
        .flat_map(|line| [line, "\n"])
        .collect::<String>();
    let before: String = before
        .lines()
        .filter(|line| !line.starts_with('#') || line.contains("SPDX"))
        .flat_map(|line| [line, "\n"])
        .collect();
    Ok(format!("{before}members = [{}]{rest}", list.join(", ")))
}

/// Returns the files below `folders` that git tracks, sorted.
fn tracked(ctx: &Context, folders: &[&str]) -> Result<Vec<PathBuf>> {
    let out = said(
        Command::new("git")
            .arg("-C")
            .arg(&ctx.repo)
            .args(["ls-files", "-z", "--cached", "--"])
            .args(folders),
    )?;
    let mut found: Vec<PathBuf> = String::from_utf8(out)?
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|path| ctx.repo.join(path).is_file())
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// Returns the output of a program.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn said(command: &mut Command) -> Result<Vec<u8>> {
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

    fn repo() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn files_of_the_list_exist() {
        let copied = COPIES.iter().map(|(_, from, _)| *from);
        let dkms = DKMS_FILES.iter().map(|(from, ..)| *from);
        for from in copied.chain(dkms).chain(MODULE_SOURCES).chain(CRATES) {
            assert!(repo().join(from).exists(), "{from}");
        }
    }

    #[test]
    fn units_name_programs_in_the_folders_that_are_replaced() {
        for (_, from, _) in COPIES {
            if !from.ends_with(".service") {
                continue;
            }
            let unit = fs::read_to_string(repo().join(from)).unwrap();
            let commands: Vec<_> = unit.lines().filter(|l| l.starts_with("Exec")).collect();
            assert!(!commands.is_empty(), "{from}");
            for command in commands {
                let program = command.split_once('=').unwrap().1;
                // Programs of other packages have no folder.
                if !program.starts_with('/') {
                    continue;
                }
                let folders = UNIT_FOLDERS.iter();
                let usual = folders.filter(|(usual, _)| program.starts_with(usual));
                assert_eq!(usual.count(), 1, "{command}");
            }
        }
    }

    #[test]
    fn workspace_of_the_library_has_its_crates_and_the_shared_settings() {
        let text = fs::read_to_string(repo().join("Cargo.toml")).unwrap();
        let made = workspace_of(&text, &["a", "b/c"]).unwrap();
        assert!(made.contains("members = [\"a\", \"b/c\"]\n"), "{made}");
        assert!(made.contains("[workspace.package]"));
        assert!(made.contains("[workspace.lints.rust]"));
        assert!(!made.contains("exclude"));
        assert!(!made.contains("xtask"));
    }
}
