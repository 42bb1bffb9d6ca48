// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control data of a package: dependencies, descriptions, scripts.

use super::Release;
use crate::context::Context;
use crate::files::{said, Entry, Package};
use crate::versions::{ARCH, SERIES};
use anyhow::{Context as _, Result};
use std::fs;
use std::process::Command;

/// The control data of a package.
#[derive(Debug)]
pub(super) struct Control {
    pub name: &'static str,
    pub architecture: &'static str,
    pub scripts: Vec<(&'static str, String)>,
    /// The file `triggers`, if it is not empty.
    pub triggers: String,
    pub copyright: String,
    pub changelog: String,
    version: String,
    maintainer: String,
    section: &'static str,
    depends: String,
    recommends: &'static str,
    description: &'static str,
}

impl Control {
    /// Returns the file `control` of a package of `size` KiB.
    pub(super) fn text(&self, size: usize) -> String {
        let mut text = format!(
            "Package: {}\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {size}\n",
            self.name, self.version, self.architecture, self.maintainer
        );
        for (field, value) in [("Depends", &*self.depends), ("Recommends", self.recommends)] {
            if !value.is_empty() {
                text += &format!("{field}: {value}\n");
            }
        }
        text + &format!(
            "Section: {}\nPriority: optional\nDescription: {}\n",
            self.section, self.description
        )
    }
}

/// Packages that build the kernel's Rust metadata, in addition to those that kernel headers need.
const KERNEL_TOOLS: &str = "bc, bindgen, bison, dwarves, flex, libelf-dev, libssl-dev, make, \
                            openssl, perl, rust-src, rustc, xz-utils";

/// Returns the control data of a package with `files`.
///
/// # Errors
///
/// If git or a file fails.
pub(super) fn of(
    ctx: &Context,
    package: Package,
    release: &Release,
    files: &[&Entry],
) -> Result<Control> {
    let name = package.name();
    let version = &release.version;
    let (architecture, section, depends, recommends, description) = match package {
        Package::Dkms => (
            "all",
            "kernel",
            format!("dkms (>= 3.0.11), {}, {KERNEL_TOOLS}", sources()),
            "kfabric-tools, linux-headers-amd64",
            "kernel-mode libfabric: sources of the modules\n \
             The framework kfabric, the providers kverbs (RDMA devices) and kshm\n \
             (processes of one host), and the remote block device kfblk. DKMS builds\n \
             the modules for each kernel with CONFIG_RUST. The Rust metadata that\n \
             header packages lack is made from the distribution's source of the\n \
             kernel, which takes some minutes and 1 GB.",
        ),
        Package::Tools => (
            ARCH,
            "admin",
            format!("{}, passwd", libraries(files)),
            "iproute2, kfabric-dkms, kmod, udev",
            "kernel-mode libfabric: commands and system integration\n \
             The command kfi shows offers and objects, measures, transfers files,\n \
             manages auth keys, and exports and connects remote disks. The package\n \
             also has man pages, completions, the udev rule of /dev/kfabric, and\n \
             units for exports and disks.",
        ),
        Package::Authd => (
            ARCH,
            "admin",
            // The udev rule makes the device known to systemd, for which the agent's unit waits.
            format!("kfabric-tools, {}", libraries(files)),
            "",
            "kernel-mode libfabric: agent of auth keys\n \
             The daemon kfi-authd decides, by a policy, which process may use which\n \
             auth key. Job managers install grants through its socket.",
        ),
        Package::Libfabric => (
            ARCH,
            "libs",
            format!("libfabric1 (>= 1.17), {}", libraries(files)),
            "kfabric-dkms",
            "kernel-mode libfabric: provider for libfabric programs\n \
             A plug-in by which unmodified programs that use libfabric, such as MPI\n \
             libraries, run over kfabric. On a machine without the kernel modules it\n \
             has no offers and no messages.",
        ),
        Package::Dev => (
            "all",
            "libdevel",
            String::new(),
            "pkgconf",
            "kernel-mode libfabric: headers and library sources\n \
             The C header of the ioctl interface, the headers of the kfi API for\n \
             kernel modules, and the sources of the Rust crates libkfabric and kfauth\n \
             for path dependencies.",
        ),
    };
    Ok(Control {
        name,
        architecture,
        scripts: scripts(package, version),
        triggers: triggers(package),
        copyright: copyright(ctx)?,
        changelog: changelog(name, release)?,
        version: version.clone(),
        maintainer: release.maintainer.clone(),
        section,
        depends,
        recommends,
        description,
    })
}

/// Returns the alternatives of the kernel's source packages, the newest first: apt installs the first.
fn sources() -> String {
    let mut newest_first = SERIES;
    newest_first.sort_by(|a, b| b.cmp(a));
    newest_first
        .map(|series| format!("linux-source-{series}"))
        .join(" | ")
}

/// Returns the files whose installation triggers the package's `postinst`.
fn triggers(package: Package) -> String {
    let archive = |series| format!("interest-noawait /usr/src/linux-source-{series}.tar.xz\n");
    match package {
        Package::Dkms => SERIES.map(archive).concat(),
        _ => String::new(),
    }
}

/// Returns the packages of the libraries that programs in `files` are linked to. The version of the C
/// library is the newest that a symbol of a program needs.
fn libraries(files: &[&Entry]) -> String {
    let programs = files
        .iter()
        .filter(|file| file.content.starts_with(b"\x7fELF"));
    let newest = programs
        .filter_map(|file| newest_glibc(&file.content))
        .max();
    match newest {
        Some((major, minor)) => format!("libc6 (>= {major}.{minor}), libgcc-s1 (>= 4.2)"),
        None => "libc6, libgcc-s1".to_owned(),
    }
}

/// Returns the newest version of glibc that a program's version table names.
fn newest_glibc(program: &[u8]) -> Option<(u32, u32)> {
    program
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok()?.strip_prefix("GLIBC_"))
        .filter_map(|version| {
            let mut parts = version.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        })
        .max()
}

/// Returns the text of the maintainer scripts.
fn scripts(package: Package, version: &str) -> Vec<(&'static str, String)> {
    let script = |text: &str| format!("#!/bin/sh\nset -e\n{}", text.replace("@VERSION@", version));
    let texts: &[(&'static str, &str)] = match package {
        Package::Dkms => &[("postinst", DKMS_POSTINST), ("prerm", DKMS_PRERM)],
        Package::Tools => &[
            ("postinst", TOOLS_POSTINST),
            ("prerm", TOOLS_PRERM),
            ("postrm", TOOLS_POSTRM),
        ],
        Package::Authd => &[
            ("postinst", AUTHD_POSTINST),
            ("prerm", AUTHD_PRERM),
            ("postrm", AUTHD_POSTRM),
        ],
        Package::Libfabric | Package::Dev => &[],
    };
    texts
        .iter()
        .map(|(name, text)| (*name, script(text)))
        .collect()
}

const DKMS_POSTINST: &str = r#"# Says for which kernels there are no modules, and why.
explain() {
	for headers in /lib/modules/*/build; do
		[ -e "$headers" ] || continue
		release=${headers#/lib/modules/}
		release=${release%/build}
		why=$(/usr/src/kfabric-@VERSION@/packaging/reason.sh "$release" "$headers") || why="reason.sh fails"
		[ -z "$why" ] || echo "kfabric: no modules for kernel $release: $why" >&2
	done
	[ -e "/lib/modules/$(uname -r)/build" ] ||
		echo "kfabric: no modules for the running kernel: install linux-headers-$(uname -r)" >&2
}

case "$1" in
configure)
	/usr/lib/dkms/common.postinst kfabric @VERSION@ /usr/share/kfabric-dkms "" "$2"
	explain
	[ ! -e /sys/module/kfabric ] ||
		echo "kfabric: the loaded modules stay in use until they are unloaded, or until the next boot" >&2
	;;
triggered)
	# The source of a kernel has arrived or changed.
	for headers in /lib/modules/*/build; do
		[ -e "$headers" ] || continue
		release=${headers#/lib/modules/}
		dkms install -m kfabric -v @VERSION@ -k "${release%/build}" || :
	done
	explain
	;;
esac
"#;

const DKMS_PRERM: &str = r#"case "$1" in
remove | upgrade | deconfigure)
	if [ -n "$(dkms status -m kfabric -v @VERSION@)" ]; then
		dkms remove -m kfabric -v @VERSION@ --all
	fi
	rm -f /usr/src/kfabric-@VERSION@/Module.symvers.*
	;;
esac
"#;

const TOOLS_POSTINST: &str = r#"[ "$1" = configure ] || exit 0
getent group rdma >/dev/null || groupadd --system rdma
[ ! -S /run/udev/control ] || udevadm control --reload || :
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
"#;

const TOOLS_PRERM: &str = r#"[ "$1" = remove ] || exit 0
for disk in /dev/kfblk*; do
	[ -b "$disk" ] || continue
	at=$(lsblk --noheadings --output MOUNTPOINTS "$disk" | grep . || :)
	[ -z "$at" ] || { echo "kfabric-tools: $disk is in use at" $at "; unmount it first" >&2; exit 1; }
done
[ ! -d /run/systemd/system ] || systemctl stop 'kfblk-connect@*.service' 'kfi-export@*.service'
"#;

const TOOLS_POSTRM: &str = r#"if [ "$1" = purge ]; then
	# Links of enabled units.
	for unit in kfblk-connect kfi-export kfi-rxe; do
		rm -f /etc/systemd/system/*.target.wants/"$unit"@*.service
	done
	[ ! -d /etc/kfabric ] || rmdir --ignore-fail-on-non-empty /etc/kfabric
fi
[ ! -S /run/udev/control ] || udevadm control --reload || :
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
"#;

const AUTHD_POSTINST: &str = r#"[ "$1" = configure ] || exit 0
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	# An upgrade restarts the daemon. Grants stay in the kernel meanwhile.
	[ -z "$2" ] || systemctl try-restart kfi-authd.service ||
		echo "kfi-authd: the new version does not start: see kfi-authd --check" >&2
fi
"#;

const AUTHD_PRERM: &str = r#"[ "$1" = remove ] || exit 0
[ ! -d /run/systemd/system ] || systemctl stop kfi-authd.service
"#;

const AUTHD_POSTRM: &str = r#"if [ "$1" = purge ]; then
	rm -f /etc/systemd/system/*.target.wants/kfi-authd.service
	[ ! -d /etc/kfabric ] || rmdir --ignore-fail-on-non-empty /etc/kfabric
fi
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
"#;

/// Returns the file `copyright`.
fn copyright(ctx: &Context) -> Result<String> {
    let mit = ctx.repo.join("LICENSES/MIT");
    let mit = fs::read_to_string(&mit).with_context(|| mit.display().to_string())?;
    let indented: String = mit
        .lines()
        .map(|line| match line.trim_end() {
            "" => " .\n".to_owned(),
            line => format!(" {line}\n"),
        })
        .collect();
    Ok(format!(
        "Upstream-Name: kfabric\nCopyright: the kfabric developers\n\n\
         Each file names its license (SPDX-License-Identifier). Kernel modules are GPL-2.0, the\n\
         ioctl interface GPL-2.0 WITH Linux-syscall-note, code of both sides GPL-2.0 OR MIT,\n\
         programs and libraries MIT OR Apache-2.0.\n\n\
         The text of GPL-2.0 is in /usr/share/common-licenses/GPL-2, that of Apache-2.0 in\n\
         /usr/share/common-licenses/Apache-2.0. The text of MIT:\n\n{indented}"
    ))
}

/// Returns the changelog, whose only entry is the packaged commit.
fn changelog(name: &str, release: &Release) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date"])
        .arg(format!("@{}", release.epoch))
        .env("LC_ALL", "C");
    let date = String::from_utf8(said(&mut date)?)?;
    Ok(format!(
        "{name} ({}) unstable; urgency=medium\n\n  * Package of this commit.\n\n -- {}  {}\n",
        release.version,
        release.maintainer,
        date.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_the_c_library_is_compared_by_number() {
        let table = b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0x GLIBC_9.9\0";
        assert_eq!(newest_glibc(table), Some((2, 34)));
        assert_eq!(newest_glibc(b"static"), None);
    }

    #[test]
    fn scripts_are_valid_for_the_shell() {
        for package in Package::ALL {
            for (name, text) in scripts(package, "1.0") {
                assert!(!text.contains('@') || !text.contains("@VERSION@"), "{name}");
                let status = Command::new("sh").args(["-n", "-c", &text]).status();
                assert!(status.unwrap().success(), "{package:?} {name}");
            }
        }
    }
}
