#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs at the end of each boot of an installed machine. The kernel's command line names the step:
# kfabric.step=NAME kfabric.node=N. The last line on the console is `kfabric-installed: ok` or
# `kfabric-installed: failed: REASON`; then the machine powers off.
set -eu
exec >/dev/ttyS0 2>&1
step=$(sed 's/.*kfabric.step=\([a-z-]*\).*/\1/' /proc/cmdline)
node=$(sed 's/.*kfabric.node=\([0-9]\).*/\1/' /proc/cmdline)
peer=10.77.0.$((3 - node))

fail() {
    journalctl --no-pager --lines 40 --unit 'kf*' || true
    echo "kfabric-installed: failed: $*"
    systemctl poweroff --force
    exit 1
}
trap 'fail "line $LINENO of step $step"' ERR
# Waits until a command succeeds.
until_ok() {
    for _ in $(seq 120); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 1
    done
    fail "not within 120 s: $*"
}

as() { runuser --user "$1" -- "${@:2}"; }

case $step in
first)
    # Nobody has used the node, so the module is not loaded.
    [ ! -d /sys/module/kfabric ] || fail "the module is loaded before its first use"
    [ "$(stat --format '%U %G %a' /dev/kfabric)" = "root rdma 660" ] || fail "$(ls -l /dev/kfabric)"
    status=0
    as outsider kfi info >/tmp/said 2>&1 || status=$?
    [ $status = 3 ] || fail "kfi info as a user outside of the group: status $status"
    grep -q 'hint: join the group' /tmp/said || fail "no hint: $(cat /tmp/said)"
    # A member of the group loads the module by opening the node.
    as member kfi info >/tmp/said || fail "kfi info: $(cat /tmp/said)"
    for provider in kverbs kshm; do
        grep -q "provider: $provider" /tmp/said || fail "no $provider: $(cat /tmp/said)"
    done
    as member kfi doctor || true
    # The distribution's queue drops bursts: the doctor's command mends it.
    mend=$(kfi --json doctor | head -n 1 | grep -o '"mend":"tc [^"]*"' | cut -d '"' -f 4) || true
    [ -z "$mend" ] || $mend
    kfi doctor || fail "the doctor has findings"
    # Unmodified programs of libfabric.
    as member fi_info -p kfabric | grep -q '^provider: kfabric' || fail "libfabric finds no provider"
    as member fi_pingpong -p kfabric -d shm -e msg -c -I 10 >/tmp/server 2>&1 &
    until_ok grep -q ':B9E8 .* 0A ' /proc/net/tcp /proc/net/tcp6
    as member fi_pingpong -p kfabric -d shm -e msg -c -I 10 10.77.0.$node || fail "fi_pingpong"
    wait $! || fail "fi_pingpong: $(cat /tmp/server)"
    modinfo --field signer kfabric | grep -q . || fail "the modules are not signed"
    # The agent, as a service.
    mkdir -p /etc/kfabric/keys
    (umask 077; openssl rand 32 >/etc/kfabric/keys/compute)
    printf '[keys.compute]\nfile = "keys/compute"\n[[job]]\nname = "members"\nkeys = ["compute"]\nusers = ["member"]\n' \
        >/etc/kfabric/authd.toml
    chmod 600 /etc/kfabric/authd.toml
    systemctl start kfi-authd
    systemctl is-active kfi-authd
    kfi auth --daemon check --key compute --pid $$ && fail "root is not allowed by the policy"
    # An export and a disk, at each boot from now on.
    printf 'export scratch --size 16M --listen 10.77.0.%s\nconnect 10.77.0.%s scratch --ctrl-loss-tmo -1\n' "$node" "$node" \
        >/etc/kfabric/blk.conf
    systemctl enable kfi-authd kfi-export@scratch kfblk-connect@scratch
    ;;
second)
    until_ok systemctl is-active kfi-authd
    until_ok systemctl is-active kfi-export@scratch
    until_ok systemctl is-active kfblk-connect@scratch
    [ -b /dev/kfblk0 ] || fail "no disk"
    dd if=/dev/zero of=/dev/kfblk0 bs=64K count=16 oflag=direct
    [ -z "$(systemctl --failed --quiet)" ] || fail "$(systemctl --failed)"
    # An upgrade while the modules are in use: they stay, and the disk goes on.
    before=$(cat /sys/module/kfabric/notes/.note.gnu.build-id | md5sum)
    apt-get install --yes --reinstall --no-install-recommends /packages/kfabric-tools_*.deb
    [ "$before" = "$(cat /sys/module/kfabric/notes/.note.gnu.build-id | md5sum)" ]
    systemctl is-active kfblk-connect@scratch
    dd if=/dev/kfblk0 of=/dev/null bs=64K count=16 iflag=direct
    # Purged in use: programs and module files go, the loaded modules stay until the next boot.
    apt-get purge --yes kfabric-dkms kfabric-tools kfi-authd libfabric-kfabric kfabric-dev
    [ ! -e /usr/bin/kfi ] || fail "kfi is left"
    ;;
third)
    [ ! -d /sys/module/kfabric ] || fail "the module is loaded"
    [ ! -e /dev/kfabric ] || fail "the node is left"
    ! modinfo kfabric 2>/dev/null || fail "the module is left"
    [ -z "$(systemctl --failed --quiet)" ] || fail "$(systemctl --failed)"
    left=$(find /etc /usr /var -xdev \( -name '*kfabric*' -o -name '*kfblk*' -o -name 'kfi-*' -o -name 'kverbs*' \) \
        -not -path '/usr/lib/modules/*/build/*' -not -path '/usr/src/linux*' -not -path '/var/log/*' \
        -not -path '/etc/kfabric*' -not -name 'kfabric-installed*' -not -name 'kfabric-network*')
    [ -z "$left" ] || fail "left: $left"
    ;;
pair-set-up)
    mkdir -p /etc/kfabric
    if [ "$node" = 1 ]; then
        printf 'export pair --size 16M --listen 10.77.0.1\n' >/etc/kfabric/blk.conf
        systemctl enable kfi-export@pair
    else
        printf 'connect 10.77.0.1 pair --ctrl-loss-tmo -1\n' >/etc/kfabric/blk.conf
        systemctl enable kfblk-connect@pair
    fi
    ;;
pair)
    if [ "$node" = 1 ]; then
        until_ok systemctl is-active kfi-export@pair
        # The peer ends first; its disk is then disconnected.
        until_ok sh -c 'kfi blk list | grep "^  client "'
        until_ok sh -c "! ping -c 1 -W 1 $peer"
    else
        until_ok systemctl is-active kfblk-connect@pair
        dd if=/dev/zero of=/dev/kfblk0 bs=64K count=16 oflag=direct
        [ -z "$(systemctl --failed --quiet)" ] || fail "$(systemctl --failed)"
    fi
    ;;
*) fail "no step $step" ;;
esac
echo "kfabric-installed: ok"
systemctl poweroff
