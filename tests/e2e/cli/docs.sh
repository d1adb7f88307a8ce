#!/bin/sh
# The tutorial runs as it stands, on a tiny model; links, commands and options in docs/ and in README.md exist.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

expect "links, commands, options, pictures" 0 python3 -B "$(dirname "$0")/docs_check.py" "$KVCOBRA" "$KVCOBRAD" "$ROOT"
cat "$dir/out"

ROOT=$(cd "$ROOT" && pwd)
# the pages of the packages
for package in kvcobra kvcobrad; do
    expect "the installed pages of $package" 0 python3 -B "$ROOT/debian/installed_pages.py" "$ROOT" "$package" "$dir/pages"
    expect "no dead link in the pages of $package" 0 python3 - "$dir/pages" <<'PY'
import os, re, sys
dead, n = [], 0
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith(".md"):
            n += 1
            for target in re.findall(r"\]\(([^)#:]+)", open(os.path.join(folder, name), encoding="utf-8").read()):
                if not os.path.exists(os.path.join(folder, target)):
                    dead.append(f"{name}: {target}")
sys.exit("\n".join(dead) or (0 if n > 1 else f"only {n} pages"))
PY
    rm -r "$dir/pages"
done
PATH=$(cd "$(dirname "$KVCOBRA")" && pwd):$(cd "$(dirname "$KVCOBRAD")" && pwd):$PATH
mkdir "$dir/home" "$dir/files"
mkdir -m 700 "$dir/run"
export PATH HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run" OPENBLAS_NUM_THREADS=2
unset XDG_STATE_HOME XDG_CONFIG_HOME
"$TINY_MODEL" "$dir/files/model.gguf"
cp "$ROOT/DESIGN.md" "$dir/files/calibration.txt"
cp "$ROOT/daemon/README.md" "$dir/files/book.txt"

trap 'kvcobra down >/dev/null 2>&1 || true; cleanup' EXIT

# without the preparation from a clone, which the lines above are
sed -n 's/^    \(kvcobra .*\|cp [^"]*\)$/\1/p' "$ROOT/docs/tutorial.md" | grep -v "kvcobra/" >"$dir/commands"
[ "$(wc -l <"$dir/commands")" -ge 14 ] && ok "the tutorial has commands" || not_ok "the tutorial has commands"
n_shared=0
while read -r command <&4; do
    got=0
    shown=
    (cd "$dir/files" && timeout 600 sh -euc "$command" </dev/null) >"$dir/out" 2>"$dir/err" || got=$?
    [ "$got" -eq 0 ] && ok "$command" || not_ok "$command: exit status $got"
    case $command in
    *--share*)
        n_shared=$((n_shared + 1))
        found=$(sed -n 's/.*; prompt of [0-9]* tokens, \([0-9]*\) of them found.*/\1/p' "$dir/err")
        if [ "$n_shared" -eq 1 ]; then
            [ "${found:-x}" = 0 ] && ok "the first run finds nothing" || not_ok "the first run finds nothing: $found"
        else
            [ "${found:-0}" -gt 0 ] && ok "the second run finds the prompt" || not_ok "the second run finds the prompt"
        fi
        ;;
    esac
done 4<"$dir/commands"
[ "$n_shared" -eq 2 ] && ok "two runs share" || not_ok "two runs share"
finish
