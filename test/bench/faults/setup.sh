#!/usr/bin/env bash
# Installs stress-ng, if it is missing. Needs root only then. What the network namespaces need is installed by test/setup.sh bench.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
command -v stress-ng >/dev/null 2>&1 && exit 0
if ((EUID != 0)); then
  echo "setup: missing Debian package: stress-ng; install it, or run as root" >&2
  exit 1
fi
echo "setup: installing stress-ng"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends stress-ng >/dev/null
