#!/usr/bin/env bash
# Makes the tarball, the deb and the rpm for one architecture, of what lies in the tree.
#
#   packaging/build.sh VERSION ARCH DIR      # such as 0.1.0 amd64 dist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?VERSION, such as 0.1.0} arch=${2:?ARCH, amd64 or arm64} dist=$(realpath "${3:?DIR}")
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
day=$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=rdmcfs-$version-linux-$arch
stage=$work/$top
mkdir -p "$stage"/{doc,man,completion,examples} "$dist"

build() { # ARCH OUT
  CGO_ENABLED=0 GOOS=linux GOARCH=$1 go build -trimpath -buildmode=pie -ldflags "-s -w -X main.version=$version" \
    -o "$2" ./cmd/rdmcfs
}
build "$arch" "$stage/rdmcfs"
host=$stage/rdmcfs
if [[ $arch != "$(go env GOHOSTARCH)" ]]; then # what the program says of itself is the same everywhere
  host=$work/host
  build "$(go env GOHOSTARCH)" "$host"
fi
"$host" man --date "$day" >"$stage/man/rdmcfs.8"
sed "s/@DATE@/$day/; s/@VERSION@/$version/" packaging/mount.fuse.rdmcfs.8 >"$stage/man/mount.fuse.rdmcfs.8"
for shell in bash zsh fish; do "$host" completion "$shell" >"$stage/completion/$shell"; done

cp LICENSE README.md CHANGELOG.md packaging/rdmcfs.service "$stage/"
cp docs/OPERATIONS.md docs/CLI.md "$stage/doc/"
cp packaging/mnt-shared.mount packaging/monitoring/* "$stage/examples/"
packaging/third-party.sh "$stage/rdmcfs" >"$stage/doc/THIRD-PARTY.txt"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$top" |
  gzip -9n >"$dist/$top.tar.gz"

gzip -9n "$stage"/man/*.8
cat >"$stage/changelog.yaml" <<END
- semver: $version-1
  date: $(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
  packager: rdmcfs maintainers <rdmcfs@users.noreply.github.com>
  deb: {urgency: medium, distributions: [unstable]}
  changes:
    - note: "Release $version: see CHANGELOG.md of the source."
END
fill="s#\${STAGE}#$stage#; s#\${ARCH}#$arch#; s#\${VERSION}#$version#"
for kind in rpm deb; do
  [[ $kind == rpm ]] || fill+='; s#\(, \|^  *\)type: doc\(, \|,$\)#\1#'
  sed "$fill" packaging/nfpm.yaml >"$work/nfpm.yaml"
  go run "$nfpm" package --config "$work/nfpm.yaml" --packager "$kind" --target "$dist/"
done
