#!/usr/bin/env bash
# Makes a release in dist/: tarballs, deb and rpm for amd64 and arm64, a bill of materials, checksums.
#
#   packaging/release.sh VERSION      # such as 0.1.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?VERSION, such as 0.1.0}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || { echo "release: '$version' is no version such as 0.1.0" >&2; exit 2; }
[[ -z $(git status --porcelain) ]] || { echo "release: commit first: a release is what a commit holds" >&2; exit 1; }
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
sbom=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
dist=$PWD/dist
rm -rf "$dist"
mkdir -p "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
flags=(-trimpath -ldflags "-s -w -X main.version=$version")
for arch in amd64 arm64; do
  top=rdmcfs-$version-linux-$arch
  mkdir -p "$work/$top/doc"
  CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build "${flags[@]}" -o "$work/$top/rdmcfs" ./cmd/rdmcfs
  cp LICENSE README.md CHANGELOG.md packaging/rdmcfs.service "$work/$top/"
  cp docs/OPERATIONS.md docs/CLI.md "$work/$top/doc/"
  packaging/third-party.sh "$work/$top/rdmcfs" >"$work/$top/doc/THIRD-PARTY.txt"
  { printf 'rdmcfs is licensed under the Apache License 2.0. Its modules: see THIRD-PARTY.txt.\n\n'; cat LICENSE; } >"$work/$top/doc/copyright"
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -czf "$dist/$top.tar.gz" "$top"
  for kind in deb rpm; do
    ARCH=$arch VERSION=$version BINARY=$work/$top/rdmcfs DOC=$work/$top/doc \
      go run "$nfpm" package --config packaging/nfpm.yaml --packager "$kind" --target "$dist/"
  done
done
go run "$sbom" bin -json -version "v$version" -output "$dist/rdmcfs-$version.cdx.json" "$work/rdmcfs-$version-linux-amd64/rdmcfs"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
