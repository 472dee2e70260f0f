#!/bin/busybox sh
# The first process of a guest with a disk: loads what it takes to read the disk, and hands over to systemd there.
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
for module in /modules/*; do /bin/busybox insmod "$module"; done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 500 ]; do
    /bin/busybox usleep 20000
    tries=$((tries + 1))
done
/bin/busybox mount -t ext4 -o rw /dev/vda /root
/bin/busybox mount --move /dev /root/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /sbin/init
