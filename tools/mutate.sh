#!/bin/sh
# Counts how many small mistakes in the C sources the tests notice: mutate.sh [OPTION...]; --help has the options.
# tools/mutate/mutate.py says how. It makes only build-mutants, and the same command continues an interrupted run.
#
#   sh tools/mutate.sh                              # 300 mutants over all folders
#   sh tools/mutate.sh --count 60 --seed 7          # 60 others
#   sh tools/mutate.sh --report                     # the results so far
#
# One mutant by hand: KVC_MUTANT=17 meson test -C build-mutants/build --no-rebuild TEST
set -eu

here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/mutate/mutate.py" "$@"
