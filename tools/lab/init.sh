#!/bin/busybox sh
# The first process of a guest: mounts the root read-only through 9p under an overlay whose writes vanish, runs one
# command in it, powers off.
# What is shared is only mounted after `go` has been read: a machine with a mounted 9p folder cannot be saved.
B=/bin/busybox
$B mkdir -p /proc /sys /dev /lower /upper /new
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
for module in $($B cat /modules/order); do $B insmod "/modules/$module" || echo "@@lab failed insmod $module"; done
die() { echo "@@lab failed $*"; $B poweroff -f; }
share() { $B mount -t 9p -o "trans=virtio,version=9p2000.L,msize=524288,$3" "$1" "$2" || die "share $1"; }

echo "@@lab ready"
read -r go

share root /lower ro,cache=loose
$B mount -t tmpfs -o mode=755,size=75% upper /upper
$B mkdir /upper/files /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /new || die overlay
$B mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp
$B mount -t proc proc /new/proc
$B mount -t sysfs sys /new/sys
$B mount -t devtmpfs dev /new/dev
$B mkdir -p /new/dev/shm /new/dev/pts
$B mount -t devpts -o ptmxmode=0666,mode=620 pts /new/dev/pts
$B mount -t tmpfs -o mode=1777 shm /new/dev/shm
$B mount -t tmpfs -o mode=755 run /new/run
$B mount -t cgroup2 cgroups /new/sys/fs/cgroup
for controller in cpuset cpu memory; do echo "+$controller" >/new/sys/fs/cgroup/cgroup.subtree_control; done
$B ip link set lo up
$B hostname lab
$B mkdir -p /new/run/lab
share out /new/run/lab rw,cache=none
# The repository where the root is not the host's, and over its package the core compiled for this machine
if [ -e /new/run/lab/tree ]; then
  tree=$($B cat /new/run/lab/tree)
  package=$tree/src/homenode
  $B mkdir -p /native "/new$tree"
  share tree "/new$tree" ro,cache=loose
  share native /native ro,cache=loose
  if [ -e /new/run/lab/data ]; then # beside it, inputs of tests
    data=$($B cat /new/run/lab/data)
    $B mkdir -p "/new$data"
    share data "/new$data" ro,cache=loose
  fi
  $B mount -t overlay -o "ro,lowerdir=/native:/new$package" core "/new$package" || die core
fi
$B date -s "@$($B cat /new/run/lab/now)" >/dev/null
$B cp /new/run/lab/command.sh /new/run/command.sh
echo "@@lab started"
$B chroot /new /bin/sh /run/command.sh </dev/null >/new/run/lab/stdout 2>/new/run/lab/stderr
code=$?
echo $code >/new/run/lab/code
echo "@@lab ended $code"
$B umount /new/run/lab
$B poweroff -f
