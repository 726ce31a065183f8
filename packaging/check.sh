#!/usr/bin/env bash
# Checks the packages and what goes into them with the tools that know, and uses them as a user would. Needs root.
#
#   packaging/check.sh      # 'make test-packages' installs the tools first
# shellcheck disable=SC2016 # what stands in single quotes is for an inner shell
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d /var/tmp/rdmcfs-packages.XXXXXX)
trap 'rm -rf "$work"' EXIT
step() { echo "== $*"; }
fail() { echo "check: $*" >&2; exit 1; }

# Directories in which nothing here outlives the script: own processes, mounts and network.
apart() {
  unshare --mount --pid --fork --kill-child --net --mount-proc bash -euc "ip link set lo up; $1" apart "${@:2}"
}

step shellcheck
shellcheck packaging/*.sh packaging/deb/p* internal/cmdline/completion.bash
shellcheck --shell=sh packaging/rpm/{post,preun}

step promtool
promtool check rules packaging/monitoring/rdmcfs.rules.yml
promtool test rules packaging/testdata/rules.yml
promtool check config --syntax-only packaging/monitoring/rdmcfs.scrape.yml

step packages
packaging/build.sh 0.1.0 amd64 "$work/dist"
deb=$work/dist/rdmcfs_0.1.0-1_amd64.deb
rpm=$work/dist/rdmcfs-0.1.0-1.x86_64.rpm
lintian --allow-root --fail-on error,warning "$deb"
rpmlint --config packaging/rpm/rpmlint.toml "$rpm"
tar -C "$work" -xzf "$work/dist/rdmcfs-0.1.0-linux-amd64.tar.gz"
stage=$work/rdmcfs-0.1.0-linux-amd64
export PATH=$stage:$PATH

step 'man pages'
for page in "$stage"/man/*; do
  said=$(mandoc -T lint -W warning "$page"
    LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null) || true
  [[ -z $said ]] || fail "$page: $said"
done

step 'install, remove and purge on a copy of this machine'
mkdir "$work/over"
apart '
  mount -t tmpfs tmpfs "$1/over"
  mkdir "$1"/over/{up,tmp,root}
  mount -t overlay -o "lowerdir=/,upperdir=$1/over/up,workdir=$1/over/tmp" overlay "$1/over/root"
  cp "$2" "$1/over/root/rdmcfs.deb"
  chroot "$1/over/root" bash -euc "
    dpkg --install /rdmcfs.deb
    [[ \$(/usr/bin/rdmcfs --version) == \"rdmcfs 0.1.0\" && -x /sbin/mount.fuse.rdmcfs ]]
    mkdir -p /var/lib/rdmcfs && touch /var/lib/rdmcfs/kept
    echo RDMCFS_FABRIC=tcp >>/etc/default/rdmcfs
    dpkg --remove rdmcfs
    [[ ! -e /usr/bin/rdmcfs && -e /etc/default/rdmcfs ]]
    dpkg --purge rdmcfs
    [[ ! -e /etc/default/rdmcfs && -e /var/lib/rdmcfs/kept ]]
  "' "$work" "$deb" >"$work/dpkg.log" 2>&1 || fail "$(cat "$work/dpkg.log")"

step units
sed "s#/usr/bin/rdmcfs#$stage/rdmcfs#" packaging/rdmcfs.service >"$work/rdmcfs.service"
cp packaging/mnt-shared.mount packaging/monitoring/rdmcfs-metrics.{service,timer} "$work/"
said=$(systemd-analyze --man=no verify "$work"/*.{service,mount,timer} 2>&1) || true
[[ -z $said ]] || fail "$said"

step 'a cluster under the restrictions of the unit'
value() { sed -n "s/^$1=//p" packaging/rdmcfs.service | tr '\n' ' '; }
calls() { # of a set, and of the sets in it
  local word
  for word in "$@"; do
    if [[ $word != @* ]]; then echo "$word"; continue; fi
    # shellcheck disable=SC2046 # words
    calls $(systemd-analyze syscall-filter "$word" | sed -e 1d -e 's/#.*//')
  done
}
# shellcheck disable=SC2046,SC2086 # words
{
  caps=$(printf ',+%s' $(value CapabilityBoundingSet | sed 's/CAP_//g' | tr '[:upper:]' '[:lower:]'))
  allowed=$(printf ',?%s' $(calls $(value SystemCallFilter) | grep -vx socket))
  families=$(value RestrictAddressFamilies | sed -e 's/ *$//' -e 's/ /|/g')
}
setpriv --no-new-privs --bounding-set="-all$caps" strace -f -qqq -e signal=none -e "trace=!${allowed#,}" \
  -o "$work/calls" rdmcfs demo --once --nodes 2 --size 8
if grep -vE "socket\(($families),|socket resumed" "$work/calls" >&2; then
  fail 'these calls are not in SystemCallFilter= or RestrictAddressFamilies='
fi

step 'completion in zsh and fish'
apart '
  rdmcfs init --data "$1/node" --name nodeone --listen 127.0.0.1:7400
  export RDMCFS_DATA=$1/node
  [[ $(fish --no-config -c "source $1/fish; complete -C \"rdmcfs evict no\"") == nodeone$'"'\t'"'* ]]
  [[ $(fish --no-config -c "source $1/fish; complete -C \"rdmcfs where $1/fi\"") == $1/fish* ]]
  [[ $(fish --no-config -c "source $1/fish; complete -C \"rdmcfs mount --fabric=v\"") == --fabric=verbs* ]]
  zsh -f packaging/testdata/completion.zsh "$1"
  rdmcfs stop
' "$stage/completion"

step 'the static build in an empty root, as in a container'
root=$work/root
mkdir -p "$root"/{dev,proc,mnt}
CGO_ENABLED=0 go build -trimpath -tags nordma -ldflags '-s -w' -o "$root/rdmcfs" ./cmd/rdmcfs
apart '
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  chroot "$1" /rdmcfs init --name n1 --listen 127.0.0.1:7400
  chroot "$1" /rdmcfs mount -d /mnt
  echo text >"$1/mnt/file"
  [[ $(cat "$1/mnt/file") == text ]]
  chroot "$1" /rdmcfs stop
' "$root"
echo "== all is well"
