#!/bin/sh
# mpirun's way to start its daemon on another node:  agent.sh ADDRESS COMMAND...
# The node is a network namespace $PEERS_CLUSTER-I with the address 10.77.x.y, I+1 = 256x + y (test/netns/netns.sh). It gets a host
# name of its own, since Open MPI takes daemons with the same name for one node.
set -eu
number=$(echo "$1" | awk -F. '{ print 256 * $3 + $4 - 1 }')
shift
exec ip netns exec "$PEERS_CLUSTER-$number" unshare --uts sh -c "hostname $PEERS_CLUSTER-$number; $*"
