#!/usr/bin/env bash
# Runs without the race detector, at their whole sizes, the tests that `make test-unit` runs smaller or not at all with it.
#
#   test/whole.sh ALONE [flags of go test]    GO=go
#   test/whole.sh ALONE -list                 prints them: package and test
#
# These are the tests that ask testing.Short, and those that match ALONE: they have one goroutine, and the detector would only make
# them slow. All others have one size, and run once: with the detector. Packages with a target of their own are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
alone=$1
shift
others='^\./(test|test/detsim|replicate/schedule) '

# Package and test, a line each. The size of a test whose helper asks for it would not be seen: that is an error.
tests() {
  git grep -lE 'testing\.Short\(\)|^func Test' -- '*_test.go' | xargs awk -v alone="$alone" '
    FNR == 1 { test = "" }
    /^func / {
      test = ""
      if (match($0, /^func Test[A-Za-z0-9_]*\(t \*testing\.T\)/)) { test = substr($0, 6); sub(/\(.*/, "", test) }
      if (test ~ alone) wanted()
    }
    /testing\.Short\(\)/ {
      if (test == "") { print FILENAME ":" FNR ": only a test itself may ask for its size" >"/dev/stderr"; bad = 1; next }
      wanted()
    }
    function wanted(dir) { dir = FILENAME; sub(/\/[^\/]*$/, "", dir); if (!seen[dir, test]++) print "./" dir, test }
    END { exit bad }' | grep -vE "$others"
}

list=$(tests)
if [[ ${1:-} == -list ]]; then
  echo "$list"
  exit
fi
mapfile -t packages < <(cut -d' ' -f1 <<<"$list" | sort -u)
exec "${GO:-go}" test "$@" -run "^($(cut -d' ' -f2 <<<"$list" | sort -u | paste -sd'|'))\$" "${packages[@]}"
