#!/bin/sh
# The Containerfiles, without a container runtime: their instructions, and that the packages which they install have every library
# that the programs of this build need, on the Debian that the files begin with.
KVCOBRA=$1 KVCOBRAD=$2 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

daemon=$ROOT/containers/kvcobrad.Containerfile
client=$ROOT/containers/client.Containerfile
for file in "$daemon" "$client"; do
    # instructions with their continued lines, without comments
    sed '/^#/d' "$file" | sed -e ':a' -e '/\\$/N; s/\\\n/ /; ta' | sed '/^ *$/d' >"$dir/instructions"
    name=$(basename "$file")
    grep -qvE '^(FROM|COPY|RUN|USER|VOLUME|ENTRYPOINT|CMD) ' "$dir/instructions" && not_ok "$name: an unknown instruction" ||
        ok "$name: instructions"
    [ "$(head -n 1 "$dir/instructions" | cut -d ' ' -f 1)" = FROM ] && [ "$(grep -c '^FROM ' "$dir/instructions")" -eq 2 ] &&
        ok "$name: two stages" || not_ok "$name: two stages"
    sed -n 's/^\(ENTRYPOINT\|CMD\) //p' "$dir/instructions" >"$dir/lists"
    python3 -c 'import json, sys
for line in open(sys.argv[1]):
    assert all(isinstance(x, str) for x in json.loads(line))' "$dir/lists" && ok "$name: lists of words" || not_ok "$name: lists of words"
    sed -n 's/^RUN //p' "$dir/instructions" | while read -r command; do
        sh -nc "$command" || exit 1
    done && ok "$name: commands are shell" || not_ok "$name: commands are shell"
done
grep -qE "option\('(tests|cuda|systemd)'" "$ROOT/meson_options.txt" && ok "the options of the build exist" || not_ok "the options of the build"

# needs FILE PROGRAM...: each library that PROGRAM names is in a package that FILE installs, or in one that such a package needs
needs() {
    file=$1
    shift
    installed=$(sed -n '/apt-get install/,/rm -rf/p' "$file" | grep -oE '\blib[a-z0-9.-]+' | sort -u)
    for library in $(readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u); do
        case $library in
        libkvcobra* | libsystemd* | libasan* | libubsan* | ld-linux*) continue ;; # ours; not in this build of the file
        esac
        path=$(ldconfig -p | sed -n "s|^\s*$library (.*x86-64.*) => ||p" | head -n 1)
        package=$(dpkg -S "$(readlink -f "$path")" 2>/dev/null | head -n 1 | cut -d : -f 1)
        case $package in
        libc6 | libgcc-s1 | libstdc++6 | "") continue ;; # of every Debian
        esac
        echo "$installed" | grep -qx "$package" && ok "$(basename "$file"): $package" || not_ok "$(basename "$file") lacks $package for $library"
    done
}
if grep -q '^VERSION_ID="12"' /etc/os-release 2>/dev/null && command -v dpkg >/dev/null && command -v readelf >/dev/null; then
    needs "$daemon" "$KVCOBRAD" "$KVCOBRA"
    needs "$client" "$KVCOBRA"
else
    skip "packages: this is not Debian 12"
fi
finish
