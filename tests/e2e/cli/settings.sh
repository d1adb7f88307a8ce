#!/bin/sh
# Settings of kvcobrad: --help, both man pages and the configuration file have the same names and defaults.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"
shift 4

expect "--help" 0 "$KVCOBRAD" --help
cp "$dir/out" "$dir/help"
expect "names and defaults agree" 0 python3 "$(dirname "$0")/settings_check.py" "$KVCOBRAD" "$dir/help" "$@"
for width in 60 80 200; do
    expect "--help in $width columns" 0 env ARGP_HELP_FMT="rmargin=$((width - 1))" "$KVCOBRAD" --help
done
finish
