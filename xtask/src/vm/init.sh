#!/bin/sh
# The guest's first process: makes the place that a test expects, runs it, and hands its exit status out of the machine.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
ln -s /proc/self/fd/0 /dev/stdin
mount -t devpts devpts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/netns
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
done
# The kernel patches its own code when the first group of a controller and the first CPU limit come, and when the last go.
# An emulated CPU that comes by just then can run into a breakpoint that is gone already ("Oops: int3"). So one of each
# comes before anything else runs, and stays.
mkdir /sys/fs/cgroup/anchor
echo "50000 100000" > /sys/fs/cgroup/anchor/cpu.max
mount -t bpf bpf /sys/fs/bpf
mount -t securityfs securityfs /sys/kernel/security
mount -t tracefs tracefs /sys/kernel/tracing
ulimit -l unlimited
stty -onlcr < /dev/console
for module in /modules/*; do
    insmod "$module" || echo "guest: $module did not load"
done
ip link set lo up
hostname guest

. /environment
# Through a pipe, so that nobody colours what a log will hold.
{ /program "$@" < /dev/null 2>&1; echo $? > /status; } | cat
status=$(cat /status)
[ $status -eq 0 ] || dmesg | grep -v -e ' audit: ' | tail -n 15
# Waits until the console has taken all that was written.
stty -onlcr < /dev/console
# The second serial line carries this and nothing else; closing it waits as well.
echo "$status" > "$STATUS_LINE"
poweroff -f
