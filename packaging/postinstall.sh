#!/bin/sh
# systemd reads its units again. The service is started by who has made a node of this machine: rdmcfs init or join.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
