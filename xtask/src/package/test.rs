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
apt-get install -y --no-install-recommends /mnt/kfabric-tools_*.deb /mnt/kfi-authd_*.deb \
    /mnt/libfabric-kfabric_*.deb /mnt/kfabric-dev_*.deb
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
# libfabric loads the plug-in, which says nothing on a machine without the module.
FI_LOG_LEVEL=warn fi_info -p kfabric 2>/tmp/said && fail "fi_info finds a provider without the module"
grep -q '^fi_getinfo: -61 ' /tmp/said || fail "fi_info: $(cat /tmp/said)"
! grep '^libfabric:[0-9:]*kfabric:' /tmp/said || fail "the plug-in speaks without the module"
FI_LOG_LEVEL=info fi_info >/tmp/said 2>&1 || :
grep -q 'registering provider: kfabric' /tmp/said || fail "libfabric does not find the plug-in"
# The alias takes the place of libfabric's own provider only where its folder is named.
! grep -q 'registering provider: verbs (32767' /tmp/said || fail "libfabric loads the alias"
FI_PROVIDER_PATH=$(echo /usr/lib/*/libfabric/kfabric-verbs) FI_LOG_LEVEL=info fi_info >/tmp/said 2>&1 || :
grep -q 'registering provider: verbs (32767' /tmp/said || fail "libfabric does not find the alias"
# A linked program is position-independent, its relocations are read-only, its stack is not executable,
# and it contains no search path of libraries and no path of the building machine.
for program in /usr/bin/kfi /usr/sbin/kfi-authd /usr/lib/*/libfabric/libkfabric-fi.so \
    /usr/lib/*/libfabric/kfabric-verbs/libkfabric_verbs-fi.so; do
    readelf -hW "$program" | grep -q 'Type: *DYN' || fail "$program is at a fixed address"
    readelf -lW "$program" | grep -q GNU_RELRO || fail "$program has writable relocations"
    readelf -dW "$program" | grep -q 'NOW' || fail "$program resolves symbols late"
    readelf -dW "$program" | grep -q 'NEEDED.*libc' || fail "$program is static"
    readelf -lW "$program" | grep -q 'GNU_STACK.* RW ' || fail "$program has an executable stack"
    ! readelf -dW "$program" | grep -Eq 'RPATH|RUNPATH|TEXTREL' || fail "$program has a search path or TEXTREL"
    ! grep -aq '/\.cargo/registry/' "$program" || fail "$program names folders of the building machine"
done
dpkg --verify kfabric-tools kfi-authd libfabric-kfabric kfabric-dev
apt-get purge -y kfabric-tools kfi-authd libfabric-kfabric kfabric-dev
unchanged
"#;

/// Installs the modules' package, upgrades the kernel and the package, and purges it. The kernel of the
/// build root is the newer one; the older one is the newest of the series before it that apt offers.
const MODULES: &str = r#"
release=$1 version=$2 series=$3
apt-get update
tools="bc bindgen bison dwarves flex libelf-dev libssl-dev make openssl perl rust-src rustc xz-utils"
old=
for one in $(apt-cache madison "linux-source-$series" | awk '{ print $3 }'); do
    # Another revision of the same kernel has headers of the same name.
    [ "${one%%-*}" != "${version%%-*}" ] && dpkg --compare-versions "$one" lt "$version" || continue
    old=$one
    break
done
if [ -n "$old" ]; then
    old_release=$(echo "$release" | sed "s/^[0-9.]*/${old%%-*}/")
else
    echo "apt offers one version of linux-source-$series: the kernel's upgrade is not tested"
    old=$version old_release=$release
fi
kernel() { echo "linux-headers-$1=$2"; }
source_of() { echo "linux-source-$series=$1"; }
apt-get install -y --no-install-recommends dkms $tools "$(kernel "$old_release" "$old")" \
    "$(kernel "$release" "$version")" "$(source_of "$version")"
# Kernels that are passed over with a message.
for plain in 6.0.0-plain "$series.1-plain" "$series.1-strange"; do
    mkdir -p "/lib/modules/$plain/build/include"
    echo 'CONFIG_MODULES=y' >"/lib/modules/$plain/build/.config"
done
printf 'CONFIG_RUST=y\nCONFIG_INFINIBAND_ADDR_TRANS=y\nCONFIG_RUSTC_VERSION=107800\n' \
    >"/lib/modules/$series.1-strange/build/.config"
depmod "$release"
depmod "$old_release"
list >/tmp/before
# The system before its kernel's upgrade.
if [ "$old" != "$version" ]; then
    apt-get purge -y "linux-headers-$release"
    apt-get install -y --allow-downgrades "$(source_of "$old")"
fi

# Succeeds if the package's modules are installed for a kernel.
installed() {
    dkms status kfabric
    dkms status kfabric | grep -q "$1.*: installed" || return 1
    for module in kfabric kverbs kshm kfblk; do
        modinfo -k "$1" "$module" | grep '^vermagic: ' | grep -q "$1" || return 1
    done
}
expect() {
    installed "$1" && return
    tail -n 25 /var/lib/dkms/kfabric/*/build/make.log || true
    fail "the modules are not installed for $1 $2"
}
apt-get install -y --no-install-recommends /mnt/kfabric-dkms_*.deb /mnt/kfabric-dev_*.deb 2>&1 | tee /tmp/said
dpkg -s kfabric-dkms | grep -q '^Status: install ok installed' || fail "the package is not configured"
for why in '6.0.0-plain: its series 6.0 is none' "$series.1-plain: it is built without CONFIG_RUST" \
    "$series.1-strange: it is built by rustc 1.78.0; here is"; do
    grep -q "no modules for kernel $why" /tmp/said || fail "no message: $why"
done
expect "$old_release" "at first"
grep -q '^kfabric kfabric c' "/lib/modules/$old_release/modules.devname" || fail "depmod knows no node"
[ "$(modprobe -R -S "$old_release" kfabric-provider-kshm)" = kshm ] || fail "depmod knows no provider"

if [ "$old" != "$version" ]; then
    # Headers without the source package of their version: no modules yet, and no failed installation.
    apt-mark hold "linux-source-$series"
    apt-get install -y --no-install-recommends "$(kernel "$release" "$version")"
    ! installed "$release" || fail "modules without the sources of their kernel"
    apt-mark unhold "linux-source-$series"
    # The source's arrival builds the modules.
    apt-get install -y --no-install-recommends "$(source_of "$version")"
    expect "$release" "after the kernel's upgrade"
    expect "$old_release" "after the kernel's upgrade"
fi

# Modules of others are built against the installed sources.
cp -r /usr/share/doc/kfabric-dev/examples/c-module /tmp/c-module
ours=$(echo /usr/src/kfabric-*)
make -C "/lib/modules/$release/build" M=/tmp/c-module KFABRIC="$ours/kfabric" \
    KBUILD_EXTRA_SYMBOLS="$ours/Module.symvers.$release" modules
modinfo /tmp/c-module/kfi_example_c.ko | grep '^depends: *kfabric' || fail "the example needs no kfabric"

# An upgrade of the package while its modules are in use.
one=$(dpkg-deb -f /mnt/kfabric-dkms_*.deb Version)
next=$one.next
dpkg-deb -R /mnt/kfabric-dkms_*.deb /tmp/next
mv "/tmp/next/usr/src/kfabric-$one" "/tmp/next/usr/src/kfabric-$next"
rm /tmp/next/DEBIAN/md5sums
grep -rl "$one" /tmp/next | xargs sed -i "s/$one/$next/g"
dpkg-deb -b /tmp/next /tmp/next.deb
mkdir -p /sys/module/kfabric
apt-get install -y --no-install-recommends /tmp/next.deb 2>&1 | tee /tmp/said
grep -q 'the loaded modules stay in use' /tmp/said || fail "no message about the loaded modules"
rm -r /sys/module
# DKMS deletes the lists of a kernel that has no module at all for a moment, as only one without its image has.
depmod "$release"
expect "$release" "after the package's upgrade"
[ "$(dkms status kfabric | grep -c "$release")" = 1 ] || fail "two versions of the modules"
[ ! -e "/usr/src/kfabric-$one" ] || fail "the old sources are left"

apt-get purge -y kfabric-dkms kfabric-dev
unchanged
"#;

/// A part of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The packages without the modules.
    Programs,
    /// The modules, by DKMS.
    Modules,
    /// Machines that boot.
    Machines,
}

/// Tests the packages `debs`, in the parts that are `wanted`.
///
/// # Errors
///
/// If a step fails; the error contains the end of its output.
pub(super) fn run(ctx: &Context, debs: &[PathBuf], wanted: impl Fn(Part) -> bool) -> Result<()> {
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
    if wanted(Part::Programs) {
        part("programs", PROGRAMS, &[])?;
    }
    if wanted(Part::Modules) {
        let choice = &rig.choice;
        let args = [&*choice.release, &*choice.version, &*choice.series];
        part("modules", MODULES, &args)?;
    }
    if wanted(Part::Machines) {
        installed::run(ctx, &rig, debs)?;
    }
    println!("the packages were installed, tried and purged; nothing is left");
    Ok(())
}
