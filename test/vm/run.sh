#!/usr/bin/env bash
# Runs commands as root in a small virtual machine that has a software RDMA device (rdma_rxe).
#
#   test/vm/run.sh [-k KERNEL] [-t SECONDS] [-m MIB] [-c CPUS] [-e NAME]... [-M MODULE]... [-w N:DIR] [-v] COMMAND [ARG]... [: ...]...
#   go test -c -o verbs.test ./rdma/verbs && test/vm/run.sh -k 6.12 ./verbs.test -test.v
#   go test -exec "$PWD/test/vm/run.sh" ./rdma/verbs
#
# Output is streamed; the status is that of the first command that failed, 124 when the time was up, 125
# when there was no VM. Commands are separated by a lone colon and run in the caller's directory.
#
#   -k  kernel series of Debian: 6.1 (default; of the release) or 6.12 (of backports)
#   -t  seconds for the whole (600)    -m  memory in MiB (1024)    -c  processors (2)
#   -e  hand on this variable          -M  load this module too    -v  the kernel's console on standard error
#   -w  be end N (1 or 2) of a wire between two VMs, whose sockets are in DIR; end 1 writes DIR/wire.pcap
#
# In the VM: rxe0 is up on dummy0 with 10.77.0.1 (GID 1) and 10.77.0.2 (GID 2), RoCE v2, MTU 4096; on a wire it is
# on eth0 with 10.77.0.N (GID 1). / is the host's file system, what is written is lost; /scratch is an empty ext4 disk;
# RDMCFS_TEST_VERBS=rxe0 is set, and RDMCFS_TEST_ORDERED=1 if its writes come in order: that of 6.12 copies some
# from the end, so the last word of a write may be there before the others.
# Emulated in software: no KVM is needed, and figures measured inside mean nothing.
# The kernel and the first memory disk are kept in .cache/vm of the tree.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/.cache/vm
modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay virtio_blk crc32c_generic ext4 fuse dummy
  bridge veth virtio_net sch_netem crc32_generic rdma_rxe rdma_ucm)
series=6.1 seconds=600 mib=1024 cpus=2 verbose='' wire='' names=(HOME PATH)
run='' qemu='' tails=()
PATH=$PATH:/usr/sbin:/sbin

say() { echo "test/vm: $*" >&2; }
die() { say "$@"; exit 125; }

# Invoked by traps.
cleanup() {
  local pid
  for pid in $qemu "${tails[@]}"; do kill "$pid" 2>/dev/null || :; done
  [ -z "$run" ] || rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

apt() {
  local tool=$1
  shift
  DEBIAN_FRONTEND=noninteractive "apt-$tool" -q=2 -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root "$@"
}

# Installs what the host lacks; each line is a command or a file's whole path, and its package.
packages() {
  local what package missing=() libs
  libs=/usr/lib/$(uname -m)-linux-gnu
  while read -r what package; do
    command -v "$what" >/dev/null || [[ $what = /* && -e $what ]] || missing+=("$package")
  done <<LIST
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
cpio cpio
depmod kmod
mke2fs e2fsprogs
rdma iproute2
xz xz-utils
flock util-linux
$libs/libibverbs.so.1 libibverbs1
$libs/libibverbs/librxe-rdmav34.so ibverbs-providers
ibv_rc_pingpong ibverbs-utils
LIST
  [ -z "$wire" ] || command -v tshark >/dev/null || missing+=(tshark)
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "missing Debian packages: ${missing[*]}; install them, or run as root"
  say "installing ${missing[*]}"
  apt get update >&2
  apt get install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Says where this machine's own packages come from: address and name of its release.
archive() {
  local codename
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk -v codename="$codename" '$2 == codename { print $1, $2; exit }'
}

# Fills "options", apt's, with those that make it see the backports of the release and nothing else.
backports() {
  local uri codename key=/usr/share/keyrings/debian-archive-keyring.gpg
  read -r uri codename < <(archive) || die "apt names no archive of this release"
  mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"
  [ -e "$key" ] && key="[signed-by=$key] " || key=''
  echo "deb $key$uri $codename-backports main" >"$cache/apt/sources.list"
  options=(-o "Dir::Etc::SourceList=$cache/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt" -o APT::Get::List-Cleanup=0)
}

# Prints the newest kernel package of the series that apt knows, given apt's options.
newest() {
  apt-cache "$@" search --names-only "^linux-image-${series//./\\.}[.-][.0-9+a-z-]*-amd64\$" |
    awk '{ print $1 }' | grep -v -e cloud -e '-rt-' | sort -V | tail -n 1
}

# Downloads and unpacks the kernel into $1.
kernel() {
  local options=() package
  package=$(newest || :)
  if [ -z "$package" ]; then
    apt get update >&2 || :
    package=$(newest || :)
  fi
  if [ -z "$package" ]; then
    backports
    apt get "${options[@]}" update >&2
    package=$(newest "${options[@]}" || :)
  fi
  [ -n "$package" ] || die "no Debian kernel of the series $series in this release or its backports"
  say "fetching $package (once)"
  (cd "$1" && apt get "${options[@]}" download "$package" >&2) || die "cannot download $package"
  dpkg-deb -x "$1"/*.deb "$1/tree"
}

# Makes $1 with vmlinuz and base.cpio: busybox, the modules in the order to load them, and init.
build() {
  local dir=$1 version module file name
  rm -rf "$dir.new"
  mkdir -p "$dir.new/disk/bin" "$dir.new/disk/modules"
  kernel "$dir.new"
  file=$(echo "$dir.new"/tree/boot/vmlinuz-*)
  version=${file##*/vmlinuz-}
  mv "$file" "$dir.new/vmlinuz"
  depmod -b "$dir.new/tree" "$version"
  for module in "${modules[@]}"; do
    while read -r file; do
      name=$(basename "$file" .xz)
      [ ! -e "$dir.new/disk/modules/$name" ] || continue
      case $file in
        *.xz) xz -dc "$file" >"$dir.new/disk/modules/$name" ;;
        *) cp "$file" "$dir.new/disk/modules/$name" ;;
      esac
      echo "$name" >>"$dir.new/disk/modules/order"
    done < <(modprobe -d "$dir.new/tree" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }')
  done
  [ -e "$dir.new/disk/modules/rdma_rxe.ko" ] || die "kernel $version has no rdma_rxe"
  cp "$(command -v busybox)" "$dir.new/disk/bin/busybox"
  install -m 755 "$here/init" "$dir.new/disk/init"
  (cd "$dir.new/disk" && find . | cpio -o -H newc --quiet) >"$dir.new/base.cpio"
  rm -rf "$dir.new/tree" "$dir.new/disk" "$dir.new"/*.deb "$dir"
  mv "$dir.new" "$dir"
}

# Writes the shell program that the VM runs: the commands, and the status of the first that fails.
program() {
  local name words=''
  echo "export RDMCFS_TEST_VERBS=rxe0"
  [ "$series" != 6.1 ] || echo "export RDMCFS_TEST_ORDERED=1"
  for name in "${names[@]}"; do
    [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
  done
  printf 'cd %q || exit 125\nfirst=0\n' "$PWD"
  for word in "$@" :; do
    if [ "$word" != : ]; then
      words+=" $(printf %q "$word")"
    elif [ -n "$words" ]; then
      printf '%s\nstatus=$?\n[ $first != 0 ] || first=$status\n' "$words"
      words=''
    fi
  done
  echo 'exit $first'
}

# Follows a file that the VM writes, until it is down.
follow() {
  tail -q -n +1 -s 0.1 -f --pid="$qemu" "$1" 2>/dev/null 9>&- &
  tails+=($!)
}

# Fills "nic", QEMU's, with the end of the wire, if there is one.
cable() {
  local n=${wire%%:*} dir=${wire#*:}
  nic=(-nic none)
  [ -n "$wire" ] || return 0
  nic=(-netdev "dgram,id=wire,local.type=unix,local.path=$dir/$n,remote.type=unix,remote.path=$dir/$((3 - n))"
    -device "virtio-net-pci,netdev=wire,mac=02:00:00:77:01:0$n")
  [ "$n" != 1 ] || nic+=(-object "filter-dump,id=capture,netdev=wire,file=$dir/wire.pcap")
  echo "$n" >"$run/extra/wire"
}

boot() {
  local port ports=()
  rm -f "$run/disk"
  truncate -s 8G "$run/disk" # sparse
  mke2fs -q -F -t ext4 -N 65536 "$run/disk"
  for port in out err status; do
    : >"$run/$port"
    ports+=(-chardev "file,id=$port,path=$run/$port" -device "virtserialport,chardev=$port,name=$port")
  done
  : >"$run/console"
  # Without erms the guest copies whole words, as a network card does, not bytes.
  timeout -k 5 "$seconds" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp "$cpus" -m "$mib" \
    -nodefaults -no-user-config -display none -no-reboot "${nic[@]}" \
    -kernel "$base/vmlinuz" -initrd "$run/initrd" -append "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on" \
    -serial "file:$run/console" -drive "file=$run/disk,format=raw,if=virtio,cache=unsafe" \
    -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
    -device virtio-serial-pci "${ports[@]}" </dev/null 2>"$run/qemu" 9>&- &
  qemu=$!
  follow "$run/out"
  follow "$run/err" >&2
  [ -z "$verbose" ] || follow "$run/console" >&2
}

while getopts k:t:m:c:e:M:w:v option; do
  case $option in
    k) series=$OPTARG ;;
    t) seconds=$OPTARG ;;
    m) mib=$OPTARG ;;
    c) cpus=$OPTARG ;;
    e) names+=("$OPTARG") ;;
    M) modules+=("$OPTARG") ;;
    w) wire=$OPTARG ;;
    v) verbose=1 ;;
    *) exit 125 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 125; }
[[ -z $wire || $wire =~ ^[12]:/ ]] || die "-w $wire: want 1 or 2, a colon, and the path of a directory"
[ "$(uname -m)" = x86_64 ] || die "only for x86-64"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
packages
base=$cache/$series-$({ echo "${modules[@]}"; cat "$here/init"; declare -f build; } | cksum | cut -d' ' -f1)
[ -e "$base/base.cpio" ] || build "$base"
flock -u 9

run=$(mktemp -d "${TMPDIR:-/tmp}/rdmcfs-vm.XXXXXX")
mkdir "$run/extra"
program "$@" >"$run/extra/program"
cable
(cd "$run/extra" && find . -type f | cpio -o -H newc --quiet) | cat "$base/base.cpio" - >"$run/initrd"
for attempt in 1 2 3; do
  boot
  code=0
  wait "$qemu" || code=$?
  qemu=''
  wait "${tails[@]}" || :
  tails=()
  status=$(cat "$run/status")
  [[ ! $status =~ ^[0-9]+$ ]] || exit "$status"
  [ "$code" != 124 ] || { say "no end after $seconds s"; exit 124; }
  say "the VM failed (status $code); its last words:"
  cat "$run/qemu" >&2
  tail -n 40 "$run/console" >&2
  # QEMU 7.2 may run code that one processor has just patched on another as it was: the kernel then finds a breakpoint that is not its own.
  grep -q 'int3: 0000' "$run/console" || break
  say "attempt $attempt met a flaw of the emulator"
done
exit 125
