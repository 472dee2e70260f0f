#!/bin/bash
# Runs the tests from the second disk, once a boot, and writes the exit status to the third.
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 SYSTEMD_PAGER= SYSTEMD_COLORS=0 RUST_BACKTRACE=0
folder=/root/tests
mkdir -p $folder
tar -xf /dev/vdb -C $folder
boot=$(($(cat $folder/boot 2>/dev/null || echo 0) + 1))
echo $boot > $folder/boot
stty -F /dev/ttyS0 raw -echo
exec > /dev/ttyS0 2>&1 < /dev/null
. $folder/environment
echo "guest: boot $boot, $(cut -d ' ' -f 1 /proc/uptime) s after its kernel's start"
cd $folder
# Through a pipe, so that nobody colours what a log will hold.
{ WEIR_BOOT=$boot $folder/program "$@"; echo $? > $folder/status; } | cat
sync
echo "$(cat $folder/status)" | dd of=/dev/vdc conv=notrunc,fsync 2> /dev/null
systemctl poweroff
