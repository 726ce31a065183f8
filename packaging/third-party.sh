#!/usr/bin/env bash
# Prints the licence of each module that is linked into a program.
#
#   packaging/third-party.sh PROGRAM
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${1:?a program}
go mod download
go version -m "$program" | awk '$1 == "dep" { print $2, $3 }' | while read -r module version; do
  dir=$(go list -m -f '{{.Dir}}' "$module")
  mapfile -t files < <(find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort)
  ((${#files[@]})) || { echo "third-party: no licence in $module $version" >&2; exit 1; }
  printf '==== %s %s\n\n' "$module" "$version"
  cat "${files[@]}"
  echo
done
printf '==== The Go standard library %s\n\n' "$(go version "$program" | sed 's/.*: //')"
cat "$(go env GOROOT)/LICENSE"
