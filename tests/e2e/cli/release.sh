#!/bin/sh
# tools/release.sh --check in a small repository: what it refuses, and why.
ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

command -v git >/dev/null 2>&1 || { skip "git is not here"; finish; }
export HOME="$dir" GIT_CONFIG_NOSYSTEM=1
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
repository=$dir/repository
mkdir -p "$repository/client/python" "$repository/tools" "$repository/tests/form" "$repository/debian"
cp "$ROOT/tools/release.sh" "$ROOT/tools/run_child.sh" "$repository/tools/"
for form in prose includes names shape circles; do
    : >"$repository/tests/form/$form.py"
done

# commit VERSION NEWS HEADER PYTHON [TEXT [DEBIAN]]: everything that has a version
commit() {
    printf "project('kvcobra', 'c',\n  version: '%s',\n  license: 'Apache-2.0')\n" "$1" >"$repository/meson.build"
    printf '# News\n\n## %s\n\n%s\n' "$2" "${5-Something changed.}" >"$repository/NEWS.md"
    printf '#define KVC_VERSION_MAJOR %s\n#define KVC_VERSION_MINOR %s\n' "${3%.*}" "${3#*.}" >"$repository/client/kvcobra.h"
    printf '[project]\nversion = "%s"\n' "$4" >"$repository/client/python/pyproject.toml"
    printf 'kvcobra (%s) unstable; urgency=medium\n' "${6-$1}" >"$repository/debian/changelog"
    git -C "$repository" add -A
    git -C "$repository" -c user.name=test -c user.email=test commit -qm "a commit" --allow-empty
}
# refused NAME WORDS: the check ends with status 1 and a sentence that has the words
refused() {
    expect "$1" 1 sh "$repository/tools/release.sh" --check
    grep -qF -- "$2" "$dir/err" && ok "$1: the sentence" || not_ok "$1: the sentence lacks '$2'"
}

expect "an unknown option" 1 sh "$repository/tools/release.sh" --chek
refused "no repository" "not a git repository"
git init -q "$repository"
commit 0.2.0 0.2.0 0.2 0.2.0
expect "a tree that is right" 0 sh "$repository/tools/release.sh" --check
grep -q "version 0.2.0" "$dir/out" && ok "the version" || not_ok "the version"
[ -z "$(git -C "$repository" tag)" ] && ok "a check makes no tag" || not_ok "a check makes no tag"

echo more >>"$repository/NEWS.md"
refused "a changed file" "the tree has changes"
git -C "$repository" checkout -q NEWS.md
: >"$repository/new"
refused "an untracked file" "the tree has changes"
rm "$repository/new"

commit 0.3.0 0.2.0 0.3 0.3.0
refused "a version that NEWS lacks" "NEWS.md begins with '0.2.0', meson.build has 0.3.0"
commit 0.3.0 0.3.0 0.3 0.3.0 ""
refused "a version without news" "NEWS.md has no text under '## 0.3.0'"
commit 0.3.0 0.3.0 0.2 0.3.0
refused "an old header" "client/kvcobra.h has version 0.2"
commit 0.3.0 0.3.0 0.3 0.2.0
refused "an old Python package" "client/python/pyproject.toml has version 0.2.0"
commit 0.3.0 0.3.0 0.3 0.3.0 "Something changed." 0.2.0
refused "an old Debian package" "debian/changelog begins with version 0.2.0"
commit 0.3 0.3 0.3 0.3
refused "a version of two numbers" "not three numbers"
echo 'import sys; sys.exit(1)' >"$repository/tests/form/shape.py"
commit 0.3.0 0.3.0 0.3 0.3.0
refused "the form is wrong" "tests/form/shape.py found something"
: >"$repository/tests/form/shape.py"
commit 0.3.0 0.3.0 0.3 0.3.0
git -C "$repository" -c user.name=test -c user.email=test tag -a -m one v0.3.0
refused "a tag that exists" "the tag v0.3.0 exists"
finish
