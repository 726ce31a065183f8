#!/usr/bin/env bash
# A cluster of network namespaces on one machine: every node has its own link, shaped in both directions,
# into one switch.
#
#   netns.sh up N RATE        N nodes (0..N-1); RATE as tc has it (200mbit), or "unshaped"
#   netns.sh exec I CMD...    run CMD on node I
#   netns.sh cut I | join I   pull node I's cable, and put it back
#   netns.sh rate I RATE      give one node another rate
#   netns.sh slow I J RATE    under node I's shaper (HTB then) give what it sends to node J a class of at most RATE; one J for each I
#   netns.sh status           rates, bytes and drops of each link
#   netns.sh addr I | dir I   node I's address, node I's directory
#   netns.sh down             end what runs on the nodes, and remove everything
#
# Environment: CLUSTER names the cluster (several can exist at once; default "rdmcfs"), DATA is where the nodes'
# directories go (default /var/tmp/$CLUSTER, on the real disk), QUEUE_MS is the depth of a switch port's
# queue (default 20; tail drop), CC sets the nodes' default TCP congestion control, MTU the links' (default 1500).
# Needs root, iproute2. Nothing leads out of the cluster: addresses are 10.77.0.1 up, on the nodes only.
set -euo pipefail

CLUSTER=${CLUSTER:-rdmcfs}
DATA=${DATA:-/var/tmp/$CLUSTER}
QUEUE_MS=${QUEUE_MS:-20}
MTU=${MTU:-1500}
STATE=/run/netns-$CLUSTER
SWITCH=$CLUSTER-sw

fail() { echo "netns: $*" >&2; exit 1; }
node() { echo "$CLUSTER-$1"; }
addr() { echo "10.77.$((($1 + 1) / 256)).$((($1 + 1) % 256))"; }
in_node() { local i=$1; shift; ip netns exec "$(node "$i")" "$@"; }
in_switch() { ip netns exec "$SWITCH" "$@"; }
each_node() { local n i; n=$(<"$STATE/nodes"); for ((i = 0; i < n; i++)); do "$@" "$i"; done; }

bits_per_sec() {
  local number=${1%%[a-z]*}
  case ${1,,} in
    *gbit) awk "BEGIN { printf \"%d\", $number * 1000000000 }" ;;
    *mbit) awk "BEGIN { printf \"%d\", $number * 1000000 }" ;;
    *kbit) awk "BEGIN { printf \"%d\", $number * 1000 }" ;;
    *) fail "rate '$1': want a number with kbit, mbit or gbit" ;;
  esac
}

# shape NETNS DEVICE RATE: a token bucket that lets bursts of 2 ms (at least two large frames) pass, with a byte queue of QUEUE_MS.
shape() {
  local bytes_per_sec burst
  bytes_per_sec=$(($(bits_per_sec "$3") / 8))
  burst=$((bytes_per_sec / 500 > 131072 ? bytes_per_sec / 500 : 131072))
  ip netns exec "$1" tc qdisc replace dev "$2" root handle 1: \
    tbf rate "$3" burst "$burst" limit $((burst + bytes_per_sec * QUEUE_MS / 1000))
}

shape_node() { # I RATE
  [[ $2 == unshaped ]] && return
  shape "$(node "$1")" eth0 "$2"
  shape "$SWITCH" "port$1" "$2"
}

add_node() { # I
  local i=$1 name
  name=$(node "$i")
  ip netns add "$name"
  ip -n "$name" link add eth0 mtu "$MTU" type veth peer name "port$i" netns "$SWITCH"
  ip -n "$SWITCH" link set "port$i" mtu "$MTU" master switch up
  ip -n "$name" addr add "$(addr "$i")/16" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  [[ -z ${CC:-} ]] || in_node "$i" sysctl -qw "net.ipv4.tcp_congestion_control=$CC"
  mkdir -p "$DATA/n$i"
}

allow_congestion_control() { # namespaces may use only what the host allows; down restores it
  local allowed
  allowed=$(sysctl -n net.ipv4.tcp_allowed_congestion_control)
  [[ " $allowed " == *" $1 "* ]] && return
  echo "$allowed" >"$STATE/allowed"
  sysctl -qw "net.ipv4.tcp_allowed_congestion_control=$allowed $1"
}

up() {
  local n=$1 rate=$2 i
  [[ $n =~ ^[0-9]+$ ]] && ((n >= 1 && n <= 250)) || fail "N must be 1 to 250"
  [[ $rate == unshaped ]] || bits_per_sec "$rate" >/dev/null
  [[ ! -e $STATE ]] || down
  mkdir -p "$STATE"
  echo "$n" >"$STATE/nodes"
  echo "$rate" >"$STATE/rate"
  [[ -z ${CC:-} ]] || allow_congestion_control "$CC"
  ip netns add "$SWITCH"
  ip -n "$SWITCH" link add switch mtu "$MTU" type bridge stp_state 0 mcast_snooping 0
  ip -n "$SWITCH" link set switch up
  for ((i = 0; i < n; i++)); do
    add_node "$i"
    shape_node "$i" "$rate"
  done
  for ((i = 1; i < n; i++)); do # links are up, and addresses resolved
    reach "$i" || fail "node $i does not answer"
  done
}

# reach I: have node 0 resolve node I's address, as any packet to it does.
reach() {
  local try
  for ((try = 0; try < 60; try++)); do
    in_node 0 bash -c "echo >/dev/udp/$(addr "$1")/9" 2>/dev/null || true
    if ip -n "$(node 0)" neigh show "$(addr "$1")" | grep -q lladdr; then return 0; fi
    sleep 0.05
  done
  return 1
}

end_node() { # I
  local name pid
  name=$(node "$1")
  # It looks at all processes of the machine, some of which may be stuck: so the time limit.
  for pid in $(timeout 5 ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
  ip netns del "$name" 2>/dev/null || true
  rm -rf "${DATA:?}/n$1"
}

down() {
  [[ -e $STATE/nodes ]] || return 0
  each_node end_node
  rmdir "$DATA" 2>/dev/null || true
  ip netns del "$SWITCH" 2>/dev/null || true
  [[ ! -e $STATE/allowed ]] || sysctl -qw "net.ipv4.tcp_allowed_congestion_control=$(<"$STATE/allowed")"
  rm -rf "$STATE"
}

# slow I J RATE: node I's shaper becomes an HTB of the same rate, burst and queue, with a class for J's address. Below RATE the classes
# share the link equally.
slow() {
  local name link pair most bytes burst
  name=$(node "$1")
  link=$(<"$STATE/rate")
  [[ $link != unshaped ]] || link=10gbit
  link=$(bits_per_sec "$link")
  most=$(bits_per_sec "$3")
  ((most <= link)) || fail "slow: $3 is more than the link's rate"
  pair=$((most < link / 2 ? most : link / 2))
  bytes=$((link / 8))
  burst=$((bytes / 500 > 131072 ? bytes / 500 : 131072))
  in_node "$1" tc qdisc del dev eth0 root 2>/dev/null || true
  in_node "$1" tc qdisc add dev eth0 root handle 2: htb default 1
  htb "$1" 2: 2:9 "$link" "$link" "$burst"
  htb "$1" 2:9 2:1 "$((link - pair))" "$link" "$burst"
  htb "$1" 2:9 2:2 "$pair" "$most" "$burst"
  in_node "$1" tc qdisc add dev eth0 parent 2:1 bfifo limit "$((burst + bytes * QUEUE_MS / 1000))"
  in_node "$1" tc qdisc add dev eth0 parent 2:2 bfifo limit "$((burst + most / 8 * QUEUE_MS / 1000))"
  in_node "$1" tc filter add dev eth0 parent 2: protocol ip prio 1 u32 match ip dst "$(addr "$2")/32" flowid 2:2
}

htb() { # I PARENT CLASS RATE CEIL BURST, in bits a second and bytes
  in_node "$1" tc class add dev eth0 parent "$2" classid "$3" htb rate "${4}bit" ceil "${5}bit" burst "$6" cburst "$6" quantum 65536
}

link_status() { # I
  local name
  name=$(node "$1")
  printf 'node %d  %s  sent %s  received %s  dropped at the port %s\n' "$1" "$(addr "$1")" \
    "$(in_node "$1" cat /sys/class/net/eth0/statistics/tx_bytes)" \
    "$(in_node "$1" cat /sys/class/net/eth0/statistics/rx_bytes)" \
    "$(in_switch tc -s qdisc show dev "port$1" | awk '/dropped/ { print $7 + 0; exit }')"
}

[[ $# -ge 1 ]] || { sed -n '2,18p' "$0"; exit 2; }
command=$1
shift
case $command in
  up) [[ $# -eq 2 ]] || fail "up N RATE"; up "$@" ;;
  down) down ;;
  exec) [[ $# -ge 2 ]] || fail "exec I CMD..."; i=$1; shift; exec ip netns exec "$(node "$i")" "$@" ;;
  cut) ip -n "$SWITCH" link set "port$1" down ;;
  join) ip -n "$SWITCH" link set "port$1" up ;;
  rate) shape_node "$1" "$2" ;;
  slow) slow "$@" ;;
  status) each_node link_status ;;
  addr) addr "$1" ;;
  dir) echo "$DATA/n$1" ;;
  *) fail "unknown command '$command'" ;;
esac
