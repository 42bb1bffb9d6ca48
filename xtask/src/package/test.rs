// SPDX-License-Identifier: MIT OR Apache-2.0

//! `package --test`: installs, tries and purges the packages in a throw-away copy of the build root,
//! which has the distribution's own tools and has never seen the project.

use super::installed;
use crate::chroot::{overlaid, run_logged, Bind};
use crate::context::Context;
use crate::progress::Step;
use crate::setup::{self, Which};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the packages in the copy.
const DEBS: &str = "/mnt";

/// The first part of each script. `list` prints all paths of the system, except those that belong to
/// apt, dpkg, depmod and DKMS themselves, such as the key by which DKMS signs modules.
const PRELUDE: &str = r#"
export DEBIAN_FRONTEND=noninteractive
# The build root leaves pages out, which are to be checked here. No service starts.
rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
fail() { echo "kfabric-package-test: $*" >&2; exit 1; }
list() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /mnt \
        -o -path /var/cache -o -path /var/log -o -path '/var/lib/apt/*' -o -path '/var/lib/dpkg/*-old' \
        -o -path '/var/lib/dkms/mok.*' -o -path '/etc/*-' -o -path '/etc/.pwd.lock' \
        -o -path '/usr/lib/modules/*/modules.*' \) -prune -o -print | LC_ALL=C sort
}
unchanged() {
    list >/tmp/after
    diff /tmp/before /tmp/after || fail "the purge leaves files behind, or removes others"
}
"#;

/// Installs the packages without the modules, uses them, and purges them.
const PROGRAMS: &str = r#"
list >/tmp/before
apt-get install -y --no-install-recommends /mnt/kfabric-tools_*.deb /mnt/kfi-authd_*.deb /mnt/kfabric-dev_*.deb
getent group rdma >/dev/null || fail "there is no group rdma"
kfi --version
# Without the module: the documented status, and advice.
status=0
kfi info 2>/tmp/said || status=$?
[ "$status" = 3 ] || fail "kfi info: status $status"
grep -q '^hint: ' /tmp/said || fail "kfi info gives no advice"
kfi-authd --help >/dev/null
bash -n /usr/share/bash-completion/completions/kfi
for page in man1/kfi.1 man8/kfi-blk.8 man8/kfi-authd.8 man7/kfi_auth.7 man3/kfi_mr.3; do
    zcat "/usr/share/man/$page.gz" | grep -q '^\.TH' || fail "no page $page"
done
for file in modprobe.d/kfabric.conf udev/rules.d/70-kfabric.rules systemd/system/kfi-export@.service; do
    [ -s "/usr/lib/$file" ] || fail "no $file"
done
echo '#include <kfabric_uapi.h>' | gcc -I/usr/include/kfabric -fsyntax-only -Wall -Werror -x c -
# A linked program is position-independent, its relocations are read-only, its stack is not executable,
# and it contains no search path of libraries and no path of the building machine.
for program in /usr/bin/kfi /usr/sbin/kfi-authd; do
    readelf -hW "$program" | grep -q 'Type: *DYN' || fail "$program is at a fixed address"
    readelf -lW "$program" | grep -q GNU_RELRO || fail "$program has writable relocations"
    readelf -dW "$program" | grep -q 'NOW' || fail "$program resolves symbols late"
    readelf -lW "$program" | grep -q 'interpreter' || fail "$program is static"
    readelf -lW "$program" | grep -q 'GNU_STACK.* RW ' || fail "$program has an executable stack"
    ! readelf -dW "$program" | grep -Eq 'RPATH|RUNPATH|TEXTREL' || fail "$program has a search path or TEXTREL"
    ! grep -aq '/\.cargo/registry/' "$program" || fail "$program names folders of the building machine"
done
dpkg --verify kfabric-tools kfi-authd kfabric-dev
apt-get purge -y kfabric-tools kfi-authd kfabric-dev
unchanged
"#;

/// Installs the modules' package for the kernel of the build root, and purges it.
const MODULES: &str = r#"
release=$1 version=$2 series=$3
apt-get update
apt-get install -y --no-install-recommends dkms "linux-headers-$release=$version" "linux-source-$series=$version" \
    bc bindgen bison dwarves flex libelf-dev libssl-dev make openssl perl rust-src rustc xz-utils
# A kernel without Rust: passed over with a message.
mkdir -p /lib/modules/6.0.0-plain/build/include
echo 'CONFIG_MODULES=y' >/lib/modules/6.0.0-plain/build/.config
depmod "$release"
list >/tmp/before
apt-get install -y --no-install-recommends /mnt/kfabric-dkms_*.deb 2>&1 | tee /tmp/said
grep -q 'no modules for kernel 6.0.0-plain, which is built without CONFIG_RUST' /tmp/said ||
    fail "no message about the kernel without Rust"
if ! dpkg -s kfabric-dkms | grep -q '^Status: install ok installed' ||
    ! dkms status kfabric | grep -q "$release.*: installed"; then
    dkms status
    tail -n 25 /var/lib/dkms/kfabric/*/build/make.log || true
    fail "the modules are not installed for $release"
fi
for module in kfabric kverbs kshm kfblk; do
    modinfo -k "$release" "$module" | grep '^vermagic: ' | grep -q "$release" || fail "no $module"
done
grep -q '^kfabric kfabric c' "/lib/modules/$release/modules.devname" || fail "depmod knows no node"
[ "$(modprobe -R -S "$release" kfabric-provider-kshm)" = kshm ] || fail "depmod knows no provider"
# A kernel whose source package is missing: passed over, so that its headers can be configured.
other=7.3
[ "$series" = 7.2 ] || other=7.2
mkdir -p "/lib/modules/$other.99-plain/build/include"
touch "/lib/modules/$other.99-plain/build/Makefile"
printf 'CONFIG_RUST=y\nCONFIG_INFINIBAND_ADDR_TRANS=y\n' >"/lib/modules/$other.99-plain/build/.config"
status=0
dkms autoinstall -k "$other.99-plain" || status=$?
[ "$status" = 0 ] || fail "dkms fails for a kernel without its source: $status"
rm -r "/lib/modules/$other.99-plain"
apt-get purge -y kfabric-dkms
unchanged
"#;

/// Tests the packages `debs`.
///
/// # Errors
///
/// If a step fails; the error contains the end of its output.
pub(super) fn run(ctx: &Context, debs: &[PathBuf], short: bool) -> Result<()> {
    let rig = setup::ensure(ctx, Which::Main)?;
    let part = |name: &str, script: &str, args: &[&str]| -> Result<()> {
        let step = Step::new(ctx, format!("package test: {name}"));
        let scratch = ctx.target.join("package-root");
        let _ = fs::remove_dir_all(&scratch);
        let own = scratch.join("debs");
        fs::create_dir_all(&own)?;
        for deb in debs {
            let name = deb.file_name().context("a package without a name")?;
            fs::copy(deb, own.join(name)).with_context(|| deb.display().to_string())?;
        }
        let binds = [Bind {
            from: own,
            at: DEBS.into(),
        }];
        let script = format!("{PRELUDE}{script}");
        let mut argv = vec!["sh", "-ec", &script, "package-test"];
        argv.extend(args);
        let cmd = overlaid(&rig.root, &scratch, &binds, Path::new("/"), &argv);
        let log = ctx.log_dir().join(format!("package-{name}.log"));
        run_logged(cmd, &log)?;
        fs::remove_dir_all(&scratch)?;
        step.done();
        Ok(())
    };
    part("programs", PROGRAMS, &[])?;
    if !short {
        let choice = &rig.choice;
        let args = [&*choice.release, &*choice.version, &*choice.series];
        part("modules", MODULES, &args)?;
        installed::run(ctx, &rig, debs)?;
    }
    println!("the packages were installed, tried and purged; nothing is left");
    Ok(())
}
