// SPDX-License-Identifier: MIT OR Apache-2.0

//! `package --rpm`: a spec for `rpmbuild` with the same packages and files as the Debian packages, and
//! an archive of the files.

use super::Release;
use crate::files::{Entry, Package, PLUGIN_FOLDERS};
use anyhow::{ensure, Context as _, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the spec says of a package: summary, requirements, description.
fn about(package: Package) -> (&'static str, &'static [&'static str], &'static str) {
    match package {
        Package::Dkms => (
            "Kernel-mode libfabric: sources of the modules",
            &[
                "dkms >= 3.0.11",
                "bc",
                "bindgen",
                "bison",
                "flex",
                "make",
                "openssl",
                "perl",
                "rust",
                "rust-src",
                "xz",
            ],
            "The framework kfabric, the providers kverbs (RDMA devices) and kshm\n\
             (processes of one host), and the remote block device kfblk. DKMS builds\n\
             the modules for each kernel with CONFIG_RUST whose development package\n\
             has the Rust metadata.",
        ),
        Package::Tools => (
            "Kernel-mode libfabric: commands and system integration",
            &["kmod", "shadow-utils", "systemd-udev"],
            "The command kfi, man pages, completions, the udev rule of /dev/kfabric, and\n\
             units for exports and disks.",
        ),
        Package::Authd => (
            "Kernel-mode libfabric: agent of auth keys",
            &["kfabric-tools"],
            "The daemon kfi-authd decides, by a policy, which process may use which\n\
             auth key.",
        ),
        Package::Libfabric => (
            "Kernel-mode libfabric: provider for libfabric programs",
            &["libfabric >= 1.17"],
            "A plug-in by which unmodified programs that use libfabric run over kfabric.",
        ),
        Package::Dev => (
            "Kernel-mode libfabric: headers and library sources",
            &[],
            "C headers for programs and kernel modules, and the sources of the Rust crates.",
        ),
    }
}

/// Returns the package's name in RPM distributions.
fn name_of(package: Package) -> &'static str {
    match package {
        Package::Dev => "kfabric-devel",
        other => other.name(),
    }
}

/// Scripts of a package: section and text. `$1` is 0 at a removal, and 2 at an upgrade.
fn scripts(package: Package) -> &'static [(&'static str, &'static str)] {
    match package {
        Package::Dkms => &[
            (
                "post",
                "dkms add -m kfabric -v %{version} --rpm_safe_upgrade || :\n\
                 dkms autoinstall || echo 'kfabric: no modules for this kernel: see dkms status' >&2",
            ),
            (
                "preun",
                "dkms remove -m kfabric -v %{version} --all --rpm_safe_upgrade || :\n\
                 rm -f /usr/src/kfabric-%{version}/Module.symvers.*",
            ),
        ],
        Package::Tools => &[
            (
                "post",
                "getent group rdma >/dev/null || groupadd --system rdma\n\
                 [ ! -S /run/udev/control ] || udevadm control --reload || :\n\
                 [ ! -d /run/systemd/system ] || systemctl daemon-reload || :",
            ),
            (
                "preun",
                "[ \"$1\" != 0 ] || [ ! -d /run/systemd/system ] ||\n\
                 \tsystemctl stop 'kfblk-connect@*.service' 'kfi-export@*.service'",
            ),
            (
                "postun",
                "[ ! -S /run/udev/control ] || udevadm control --reload || :\n\
                 [ ! -d /run/systemd/system ] || systemctl daemon-reload || :",
            ),
        ],
        Package::Authd => &[
            (
                "post",
                "[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n\
                 [ \"$1\" != 2 ] || [ ! -d /run/systemd/system ] || systemctl try-restart kfi-authd || :",
            ),
            (
                "preun",
                "[ \"$1\" != 0 ] || [ ! -d /run/systemd/system ] || systemctl stop kfi-authd",
            ),
        ],
        Package::Libfabric | Package::Dev => &[],
    }
}

/// Returns the folders of `files` that are the project's own: those below a folder whose name begins with
/// `kfabric`, and that folder itself.
fn own_folders<'a>(files: impl Iterator<Item = &'a Path>) -> BTreeSet<&'a Path> {
    let is_own = |folder: &&Path| {
        let mut parts = folder.iter().filter_map(|part| part.to_str());
        parts.any(|part| part.starts_with("kfabric"))
    };
    files
        .flat_map(|file| file.ancestors().skip(1).take_while(is_own))
        .collect()
}

/// Writes the spec and the archive of `files` into `out`. Returns their paths.
///
/// # Errors
///
/// If a file cannot be written, or `tar` fails.
pub(super) fn write(
    release: &Release,
    files: &[Entry],
    stage: &Path,
    out: &Path,
) -> Result<Vec<PathBuf>> {
    let files: Vec<Entry> = files.iter().cloned().map(of_rpm).collect();
    // A version of RPM has no hyphen.
    ensure!(!release.version.contains('-'), "{}", release.version);
    let top = format!("kfabric-{}", release.version);
    let tree = stage.join(&top);
    let _ = fs::remove_dir_all(&tree);
    for file in &files {
        let to = tree.join(file.path.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::write(&to, &file.content).with_context(|| to.display().to_string())?;
        fs::set_permissions(&to, fs::Permissions::from_mode(file.mode))?;
    }
    let archive = out.join(format!("{top}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(stage)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", release.epoch));
    tar.args(["--use-compress-program=gzip -n", "-cf"])
        .arg(&archive)
        .arg(&top);
    ensure!(tar.status().context("tar")?.success(), "tar fails");
    let spec = out.join("kfabric.spec");
    fs::write(&spec, text(release, &files)?)?;
    fs::remove_dir_all(&tree)?;
    Ok(vec![spec, archive])
}

/// Returns a file at its place in an RPM distribution.
fn of_rpm(mut file: Entry) -> Entry {
    let [of_debian, of_rpm, _] = PLUGIN_FOLDERS.map(|folder| Path::new("/usr").join(folder));
    if let Ok(name) = file.path.strip_prefix(of_debian) {
        file.path = of_rpm.join(name);
    }
    file
}

/// Returns the spec.
fn text(release: &Release, files: &[Entry]) -> Result<String> {
    let mut text = format!(
        "# SPDX-License-Identifier: MIT OR Apache-2.0\n\
         Name: kfabric\nVersion: {}\nRelease: 1\nSummary: Kernel-mode libfabric\n\
         License: GPL-2.0-only AND (GPL-2.0-only WITH Linux-syscall-note) AND (MIT OR Apache-2.0) AND \
         (GPL-2.0-only OR MIT)\n\
         Source0: %{{name}}-%{{version}}.tar.gz\n\n\
         # The archive has the built programs, stripped and with their pages.\n\
         %global debug_package %{{nil}}\n%global __brp_strip %{{nil}}\n\
         %global source_date_epoch_from_changelog 0\n\n\
         %description\nKernel-mode libfabric for Linux.\n\n",
        release.version
    );
    for package in Package::ALL {
        let (summary, needs, description) = about(package);
        let name = name_of(package);
        text += &format!("%package -n {name}\nSummary: {summary}\n");
        if matches!(package, Package::Dkms | Package::Dev) {
            text += "BuildArch: noarch\n";
        }
        for need in needs {
            text += &format!("Requires: {need}\n");
        }
        if package == Package::Dev {
            text += "Provides: pkgconfig(kfabric) = %{version}\n\
                     Provides: pkgconfig(kfabric-kernel) = %{version}\n";
        }
        text += &format!("\n%description -n {name}\n{description}\n\n");
        for (section, script) in scripts(package) {
            text += &format!("%{section} -n {name}\n{script}\n\n");
        }
    }
    text += "%prep\n%setup -q\n\n%build\n\n%install\ncp -a . %{buildroot}/\n\n";
    let mut listed = BTreeSet::new();
    for package in Package::ALL {
        text += &format!("%files -n {}\n", name_of(package));
        let own = files.iter().filter(|file| file.package == package);
        for folder in own_folders(own.clone().map(|file| file.path.as_path())) {
            text += &format!("%dir {}\n", folder.display());
        }
        for file in own {
            let path = file.path.to_str().context("a path without text")?;
            ensure!(listed.insert(path), "{path} is in two packages");
            // rpmbuild compresses pages.
            let pattern = if path.contains("/man/") { "*" } else { "" };
            text += &format!("%attr({:o}, root, root) {path}{pattern}\n", file.mode);
        }
        text += "\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(package: Package, path: &str) -> Entry {
        Entry {
            package,
            path: path.into(),
            content: Vec::new(),
            mode: 0o755,
        }
    }

    #[test]
    fn plugin_is_in_the_folder_of_the_distribution() {
        let plugin = "/usr/lib/x86_64-linux-gnu/libfabric/libkfabric-fi.so";
        let moved = of_rpm(file(Package::Libfabric, plugin));
        assert_eq!(
            moved.path,
            Path::new("/usr/lib64/libfabric/libkfabric-fi.so")
        );
        let alias = "/usr/lib/x86_64-linux-gnu/libfabric/kfabric-verbs/libkfabric_verbs-fi.so";
        let moved = of_rpm(file(Package::Libfabric, alias));
        assert_eq!(
            moved.path,
            Path::new("/usr/lib64/libfabric/kfabric-verbs/libkfabric_verbs-fi.so")
        );
        let same = of_rpm(file(Package::Tools, "/usr/lib/udev/a"));
        assert_eq!(same.path, Path::new("/usr/lib/udev/a"));
    }

    #[test]
    fn folders_of_the_project_are_owned_and_others_are_not() {
        let files = ["/usr/src/kfabric-1/pure/src/a.rs", "/usr/bin/kfi"].map(Path::new);
        let own: Vec<_> = own_folders(files.into_iter()).into_iter().collect();
        let wanted = [
            "/usr/src/kfabric-1",
            "/usr/src/kfabric-1/pure",
            "/usr/src/kfabric-1/pure/src",
        ];
        assert_eq!(own, wanted.map(Path::new));
    }

    #[test]
    fn spec_lists_each_file_in_its_package() {
        let release = Release {
            version: "1.0+git1.abc".to_owned(),
            epoch: 1,
            maintainer: "A <a@example.org>".to_owned(),
        };
        let files = [
            file(Package::Tools, "/usr/bin/kfi"),
            file(Package::Tools, "/usr/share/man/man1/kfi.1"),
            file(Package::Authd, "/usr/sbin/kfi-authd"),
        ];
        let spec = text(&release, &files).unwrap();
        let tools = "%files -n kfabric-tools\n%attr(755, root, root) /usr/bin/kfi\n\
                     %attr(755, root, root) /usr/share/man/man1/kfi.1*\n";
        assert!(spec.contains(tools), "{spec}");
        assert!(spec.contains("Version: 1.0+git1.abc\n"));
        let twice = [files[0].clone(), file(Package::Dev, "/usr/bin/kfi")];
        assert!(text(&release, &twice).is_err());
    }
}
