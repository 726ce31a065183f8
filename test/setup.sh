#!/usr/bin/env bash
# Installs the Debian packages that a make target needs, if they are missing. Needs root only then.
#
#   test/setup.sh test|bench|packages
set -euo pipefail

need() { # command package
  command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

missing=()
PATH=$PATH:/usr/sbin:/sbin
case ${1:-test} in
  test | bench)
    need gcc gcc # the race detector
    need ip iproute2
    need tc iproute2
    need nft nftables
    need mke2fs e2fsprogs
    need rsync rsync
    need sqlite3 sqlite3
    need git git
    need setfattr attr
    need tar tar
    need fusermount3 fuse3
    need iperf3 iperf3
    [[ $1 != bench ]] || need jq jq
    ;;
  packages)
    need lintian lintian
    need rpmlint rpmlint
    need rpm rpm # of rpmlint
    need shellcheck shellcheck
    need promtool prometheus
    need mandoc mandoc
    need man man-db
    need groff groff-base
    need systemd-analyze systemd
    need strace strace
    need setpriv util-linux
    need ip iproute2
    need zsh zsh
    need fish fish
    ;;
  *)
    echo "setup: '$1': want test, bench or packages" >&2
    exit 2
    ;;
esac
[[ -f /usr/include/stdlib.h ]] || missing+=(libc6-dev)
[[ ${1:-test} != test || -f /usr/include/lmdb.h ]] || missing+=(liblmdb-dev)
((${#missing[@]})) || exit 0

mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if ((EUID != 0)); then
  echo "setup: missing Debian packages: ${missing[*]}; install them, or run make as root" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
