#!/bin/sh
# The service ends with its package, not with an upgrade. Debian says "remove", RPM says 0.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now rdmcfs.service || true
	fi
	;;
esac
