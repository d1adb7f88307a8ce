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

# what a start would meet: the check and the start say the same
check() { # NAME STATUS WORDS SETTING...: a configuration with these lines
    name=$1 status=$2 words=$3
    shift 3
    printf '%s\n' "socket = $dir/c.sock" "operator-socket = $dir/o.sock" "pool-bytes = 64M" "$@" >"$dir/check.conf"
    expect "$name" "$status" "$KVCOBRAD" --check-config "$dir/check.conf"
    cat "$dir/out" "$dir/err" >"$dir/said"
    grep -qF -- "$words" "$dir/said" && ok "$name: the sentence" || not_ok "$name: the sentence"
}
refused() { # NAME WORDS SETTING: the check fails, and a start ends with a status for which the unit does not try again
    check "$1" 1 "$2" "$3"
    expect "$1: the start" 78 "$KVCOBRAD" --config "$dir/check.conf"
    grep -qF -- "$2" "$dir/err" && ok "$1: the start says the same" || not_ok "$1: the start says the same"
}
mkdir -m 0700 "$dir/state" "$dir/disk"
printf 'index %064d\nseal 1 %064d\n' 1 2 >"$dir/keys"
chmod 0400 "$dir/keys"
check "all is well" 0 ": ok" "state-dir = $dir/state" "key-file = $dir/keys" "disk-dir = $dir/disk" "disk-bytes = 64M"
! grep -q "warning: the disk" "$dir/said" && [ -z "$(ls "$dir/state" "$dir/disk" | grep -v :)" ] && [ ! -e "$dir/c.sock" ] &&
    ok "nothing was made" || not_ok "nothing was made"
check "a key file as a credential" 0 "is not checked here" "key-file = fleet"
chmod 0644 "$dir/keys"
refused "a key file that others may read" "chmod 0400" "key-file = $dir/keys"
chmod 0600 "$dir/keys"
printf 'index 0123\n' >"$dir/keys"
refused "a short key" "64 hexadecimal digits" "key-file = $dir/keys"
chmod 0777 "$dir/state"
refused "a state folder that others may write" "chmod 0700" "state-dir = $dir/state"
chmod 0700 "$dir/state"
echo short >"$dir/state/secret"
chmod 0600 "$dir/state/secret"
refused "a damaged secret" "instead of 32" "state-dir = $dir/state"
rm "$dir/state/secret"
: >"$dir/file"
refused "a file as the state folder" "$dir/file" "state-dir = $dir/file"
refused "a file at the path of a socket" "is not a socket" "metrics-socket = $dir/file"
check "no folder for the state folder" 1 "cannot create the state folder" "state-dir = $dir/none/state"
check "no folder for a socket" 0 "does not exist" "metrics-socket = $dir/none/m.sock"
for case in "none cannot open" "file cannot open" "wide chmod 0700" "foreign is not a disk tier" "lost pages is there"; do
    folder=$dir/tier-${case%% *}
    case $case in
    none*) ;;
    file*) : >"$folder" ;;
    *) mkdir -m 0700 "$folder" ;;
    esac
    case $case in
    wide*) chmod 0777 "$folder" ;;
    foreign*) : >"$folder/letters" ;;
    lost*) : >"$folder/pages" ;;
    esac
    check "the disk tier in $folder" 0 "warning: the disk tier will be off" "state-dir = $dir/state" "disk-dir = $folder" \
        "disk-bytes = 64M"
    grep -qF "${case#* }" "$dir/said" && ok "and why" || not_ok "and why"
done
mkfifo "$dir/pipe"
expect "a pipe" 1 "$KVCOBRAD" --check-config "$dir/pipe"
grep -q "is a pipe" "$dir/err" && ok "it says so" || not_ok "it says so"
{ printf '#%0300dpool-bytes = 1\n' 0 && echo "socket = $dir/c.sock # text"; } >"$dir/long.conf"
expect "a long comment, and one behind a value" 0 "$KVCOBRAD" --config "$dir/long.conf" --print-config
grep -qx "socket = $dir/c.sock" "$dir/out" && ok "neither is a part of a value" || not_ok "neither is a part of a value"
finish
