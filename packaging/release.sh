#!/usr/bin/env bash
# Makes a release in dist/: tarballs, deb and rpm for amd64 and arm64, a bill of materials, checksums.
#
#   packaging/release.sh VERSION      # such as 0.1.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?VERSION, such as 0.1.0}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || { echo "release: '$version' is no version such as 0.1.0" >&2; exit 2; }
[[ -z $(git status --porcelain) ]] || { echo "release: commit first: a release is what a commit holds" >&2; exit 1; }
sbom=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
dist=$PWD/dist
rm -rf "$dist"
mkdir -p "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for arch in amd64 arm64; do
  packaging/build.sh "$version" "$arch" "$dist"
done
top=rdmcfs-$version-linux-amd64
tar -C "$work" -xzf "$dist/$top.tar.gz" "$top/rdmcfs"
go run "$sbom" bin -json -version "v$version" -output "$dist/rdmcfs-$version.cdx.json" "$work/$top/rdmcfs"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
