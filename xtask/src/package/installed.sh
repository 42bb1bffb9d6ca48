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

# With a limit of locked memory as an administrator of such machines sets it.
as() { prlimit --memlock=unlimited runuser --user "$1" -- "${@:2}"; }

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
    # The script for bpftrace sees the keys of a transfer.
    bpftrace /usr/share/doc/kfabric-tools/examples/kfabric-keys.bt >/tmp/traced 2>&1 &
    tracer=$!
    for _ in $(seq 600); do
        if grep -q '^Attach' /tmp/traced || ! kill -0 $tracer; then break; fi
        sleep 1
    done
    grep -q '^Attach' /tmp/traced || fail "bpftrace: $(cat /tmp/traced; ps aux | tail -n 5)"
    head -c 1M /dev/urandom >/tmp/sent
    as member kfi export /tmp/sent --listen 10.77.0.$node --port 7472 >/tmp/exporter 2>&1 &
    until_ok grep -q '^exporting' /tmp/exporter
    as member kfi get 10.77.0.$node /tmp/got --port 7472 --provider kverbs
    cmp /tmp/sent /tmp/got
    pkill -x kfi
    kill -INT $tracer
    wait $tracer || fail "bpftrace: $(cat /tmp/traced)"
    grep -q '^@lifetime_us' /tmp/traced || fail "bpftrace saw no key: $(cat /tmp/traced)"
    modinfo --field signer kfabric | grep -q . || fail "the modules are not signed"
    # The agent, as a service.
    mkdir -p /etc/kfabric/keys
    (umask 077; openssl rand 32 >/etc/kfabric/keys/compute)
    printf '[keys.compute]\nfile = "keys/compute"\n[[job]]\nname = "members"\nkeys = ["compute"]\nusers = ["member"]\n' \
        >/etc/kfabric/authd.toml
    chmod 600 /etc/kfabric/authd.toml
    systemctl start kfi-authd
    systemctl is-active kfi-authd
    status=0
    kfi auth --daemon check --key compute --pid $$ || status=$?
    [ $status = 7 ] || fail "the policy does not allow root: status $status"
    as member sleep 600 &
    until_ok pgrep -x -u member sleep
    kfi auth --daemon check --key compute --pid "$(pgrep -x -u member sleep)" || fail "the policy allows members"
    # An export and a disk, at each boot from now on.
    printf 'export vm-images --size 16M --listen 10.77.0.%s\nconnect 10.77.0.%s vm-images --ctrl-loss-tmo -1\n' \
        "$node" "$node" >/etc/kfabric/blk.conf
    systemctl enable kfi-authd kfi-export@vm-images kfblk-connect@vm-images
    ;;
second)
    until_ok systemctl is-active kfi-authd
    until_ok systemctl is-active kfi-export@vm-images
    until_ok systemctl is-active kfblk-connect@vm-images
    [ -b /dev/kfblk0 ] || fail "no disk"
    dd if=/dev/zero of=/dev/kfblk0 bs=64K count=16 oflag=direct
    [ -z "$(systemctl --failed --quiet)" ] || fail "$(systemctl --failed)"
    # An upgrade while the modules are in use: they stay, and the disk goes on.
    before=$(cat /sys/module/kfabric/notes/.note.gnu.build-id | md5sum)
    apt-get install --yes --reinstall --no-install-recommends /packages/kfabric-tools_*.deb
    [ "$before" = "$(cat /sys/module/kfabric/notes/.note.gnu.build-id | md5sum)" ]
    systemctl is-active kfblk-connect@vm-images
    dd if=/dev/kfblk0 of=/dev/null bs=64K count=16 iflag=direct
    # A mounted disk is neither disconnected nor left without its programs.
    mkfs.ext4 -q /dev/kfblk0
    mount /dev/kfblk0 /media
    status=0
    kfi blk disconnect vm-images || status=$?
    [ $status != 0 ] || fail "a mounted disk is disconnected"
    if apt-get remove --yes kfabric-tools; then fail "the programs of a mounted disk are removed"; fi
    systemctl is-active kfblk-connect@vm-images
    touch /media/file
    umount /media
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
tutorial)
    # Its commands, in one shell. A block `sh fails` must fail. `cargo install` needs the network: the program
    # was built from the installed sources' files.
    install -m 755 /mnt/kfi-example /usr/local/bin/
    awk '
        /^```sh$/ { on = 1; text = ""; next }
        /^```sh fails$/ { on = 2; text = ""; next }
        /^```/ && on {
            if (text ~ /cargo install/) text = ""
            if (on == 2) text = "if\n" text "then echo \"this must fail\"; exit 1; fi\n"
            printf "%s", text; on = 0; next
        }
        on { text = text $0 "\n" }' /mnt/tutorial.md >/tmp/tutorial
    # A shell with jobs, as an administrator has; `kill %1` of the last part names them.
    bash -emx /tmp/tutorial || fail "the tutorial"
    [ -z "$(ls /tmp/kfi* 2>/dev/null)" ] || fail "the tutorial leaves $(ls -d /tmp/kfi*)"
    ;;
secure)
    # The kernel refuses modules whose key it does not know, such as that of DKMS before `mokutil --import`.
    modprobe rdma_rxe
    status=0
    modprobe kfabric 2>/tmp/said || status=$?
    [ $status != 0 ] || fail "the kernel loads a module with an unknown key"
    grep -q 'Key was rejected' /tmp/said || fail "$(cat /tmp/said)"
    kfi doctor >/tmp/said || true
    # The doctor names the cause. Without mokutil it cannot know whether the key is enrolled.
    grep -q 'signed modules only' /tmp/said || fail "the doctor: $(cat /tmp/said)"
    grep -q 'mokutil .* /var/lib/dkms/mok.pub' /tmp/said || fail "the doctor: $(cat /tmp/said)"
    ;;
pair-set-up)
    mkdir -p /etc/kfabric /archive
    if [ "$node" = 1 ]; then
        truncate -s 32M /var/pair.img
        mkfs.ext4 -q -L archive /var/pair.img
        printf 'export pair-1 --device /dev/loop0 --listen 10.77.0.1 --provider kverbs\n' >/etc/kfabric/blk.conf
        systemctl enable kfi-export@pair-1
    else
        printf 'connect 10.77.0.1 pair-1 --ctrl-loss-tmo -1\n' >/etc/kfabric/blk.conf
        systemctl enable kfblk-connect@pair-1
        echo 'LABEL=archive  /archive  ext4  _netdev,nofail,x-systemd.device-timeout=0  0 0' >>/etc/fstab
    fi
    ;;
pair)
    if [ "$node" = 1 ]; then
        until_ok systemctl is-active kfi-export@pair-1
        # The peer ends first.
        statistics=/sys/kernel/config/kfblk/subsystems/pair-1/statistics
        until_ok sh -c "grep '^total .* connections [1-9]' $statistics"
        until_ok sh -c "! ping -c 3 -W 1 $peer"
    else
        until_ok systemctl is-active kfblk-connect@pair-1
        until_ok mountpoint /archive
        date >>/archive/boots
        sync /archive/boots
        [ -z "$(systemctl --failed --quiet)" ] || fail "$(systemctl --failed)"
    fi
    ;;
*) fail "no step $step" ;;
esac
echo "kfabric-installed: ok"
systemctl poweroff
