#!/usr/bin/env bash
# Makes a Debian package of bin/rdmcfs, the unit and the mount helper: run 'make build' first.
#
#   packaging/deb.sh VERSION [DIRECTORY]     # writes DIRECTORY/rdmcfs_VERSION_ARCH.deb; default bin
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=${1:?version, such as 0.1.0} out=${2:-$root/bin}
[ -x "$root/bin/rdmcfs" ] || { echo "deb: no bin/rdmcfs: run 'make build' first" >&2; exit 1; }
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
arch=$(dpkg --print-architecture)

install -D -m 755 "$root/bin/rdmcfs" "$tree/usr/bin/rdmcfs"
install -D -m 644 "$root/packaging/rdmcfs.service" "$tree/lib/systemd/system/rdmcfs.service"
install -D -m 644 "$root/docs/OPERATIONS.md" "$tree/usr/share/doc/rdmcfs/OPERATIONS.md"
install -d "$tree/sbin" "$tree/DEBIAN"
ln -s /usr/bin/rdmcfs "$tree/sbin/mount.fuse.rdmcfs"
# libibverbs is loaded at run time where it is there; without it data goes over TCP.
cat >"$tree/DEBIAN/control" <<CONTROL
Package: rdmcfs
Version: $version
Architecture: $arch
Maintainer: rdmcfs <https://github.com/rdmcfs/rdmcfs>
Section: net
Priority: optional
Depends: libc6
Recommends: libibverbs1, ibverbs-providers
Homepage: https://github.com/rdmcfs/rdmcfs
Description: directory that is the same on many machines
 What is copied into it on one machine is on all of them, verified and durable,
 when the copy ends. Data goes by multicast over RDMA or TCP.
CONTROL
dpkg-deb --build --root-owner-group "$tree" "$out/rdmcfs_${version}_$arch.deb"
