#!/usr/bin/env bash
# Installs the Debian packages of the programs that this folder measures us against, if they are missing. Needs root
# only then. What the network namespaces need is installed by test/setup.sh bench.
set -euo pipefail

need() { # command package
  command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

missing=()
PATH=$PATH:/usr/sbin:/sbin
need mpirun openmpi-bin
need mpicc libopenmpi-dev
need gcc gcc
need uftp uftp
need uftpd uftp
need udp-sender udpcast
need rsync rsync
need aria2c aria2
[[ -f /usr/include/stdlib.h ]] || missing+=(libc6-dev)
((${#missing[@]})) || exit 0

mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if ((EUID != 0)); then
  echo "setup: missing Debian packages: ${missing[*]}; install them, or run as root" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
