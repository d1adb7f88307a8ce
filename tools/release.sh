#!/bin/sh
# Makes a release of the commit that is checked out: checks, a tarball with its SHA-256, and a tag. Nothing is published.
#
#   sh tools/release.sh              all checks, the tests of the tarball, the tarball, the tag
#   sh tools/release.sh --check      only the checks; changes nothing
#   sh tools/release.sh --no-tests   without the tests of the tarball, if tools/check.sh passed on this commit
#
# The version is that of meson.build. NEWS.md and debian/changelog must begin with it, and the headers and the Python
# package must have it. The tarball is in build-dist/, and two runs make the same bytes. A check that fails ends the script before anything is made;
# tests that fail end it before the tag.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
folder=build-dist

say() {
    echo "release: $*"
}

die() {
    echo "release: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

only_check=no
tests=yes
for argument; do
    case $argument in
    --check) only_check=yes ;;
    --no-tests) tests=no ;;
    *) die "'$argument' is neither --check nor --no-tests" ;;
    esac
done

# news_of VERSION: the text below its heading, without blank lines around it
news_of() {
    awk -v heading="## $1" '$0 == heading { on = 1; next } /^## / { on = 0 } on' NEWS.md | sed -e '/./,$!d'
}

check_tree() {
    git rev-parse --git-dir >/dev/null 2>&1 || die "this is not a git repository: a release is made from a clone"
    [ -z "$(git status --porcelain)" ] || {
        git status --short >&2
        die "the tree has changes: commit or remove them, so that the tag names what the tarball holds"
    }
    [ -f "$(git rev-parse --git-dir)/shallow" ] && die "the clone is shallow: run 'git fetch --unshallow'"
    return 0
}

check_version() {
    version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" meson.build)
    echo "$version" | grep -qxE '[0-9]+\.[0-9]+\.[0-9]+' || die "meson.build has the version '$version', which is not three numbers"
    [ -z "$(git tag --list "v$version")" ] ||
        die "the tag v$version exists, of $(git rev-parse --short "v$version^{commit}"): raise the version in meson.build"

    newest=$(sed -n 's/^## //p' NEWS.md | head -n 1)
    [ "$newest" = "$version" ] || die "NEWS.md begins with '$newest', meson.build has $version: write what changed under '## $version'"
    [ -n "$(news_of "$version")" ] || die "NEWS.md has no text under '## $version'"

    major=$(sed -n 's/^#define KVC_VERSION_MAJOR //p' client/kvcobra.h)
    minor=$(sed -n 's/^#define KVC_VERSION_MINOR //p' client/kvcobra.h)
    [ "${version%.*}" = "$major.$minor" ] || die "client/kvcobra.h has version $major.$minor, meson.build $version"
    python=$(sed -n 's/^version = "\(.*\)"$/\1/p' client/python/pyproject.toml)
    [ "$python" = "$version" ] || die "client/python/pyproject.toml has version $python, meson.build $version"
    debian=$(sed -n '1s/^kvcobra (\(.*\)) .*/\1/p' debian/changelog)
    [ "$debian" = "$version" ] || die "debian/changelog begins with version $debian, meson.build has $version"
}

# The checks of the sources that need no build; tools/check.sh has all tests
check_form() {
    for form in prose includes names shape circles; do
        run python3 -B "tests/form/$form.py" >/dev/null || die "tests/form/$form.py found something: run it"
    done
}

# check_tarball FILE: it unpacks to what git tracks, no more and no less
check_tarball() {
    tar -tf "$1" | sed -n "s|^kvcobra-$version/\(.*[^/]\)$|\1|p" | sort >"$folder/packed"
    git ls-files | sort >"$folder/tracked"
    cmp -s "$folder/packed" "$folder/tracked" || {
        diff "$folder/tracked" "$folder/packed" >&2 || true
        die "the tarball does not hold what git tracks"
    }
}

# dist FILE [OPTION...]: `meson dist`, packed again with the time of the commit, and without users: two runs make the same bytes
dist() {
    file=$1
    shift
    run meson dist -C "$folder" --formats xztar "$@" >"$folder/dist.log" 2>&1 || {
        tail -n 40 "$folder/dist.log" >&2
        die "meson dist failed: no tag was made"
    }
    rm -rf "$folder/unpacked"
    mkdir "$folder/unpacked"
    tar -C "$folder/unpacked" -xf "$folder/meson-dist/kvcobra-$version.tar.xz"
    (cd "$folder/unpacked" && tar --sort=name --format=ustar --mtime="@$(git -C "$root" log -1 --format=%ct)" --owner=0 --group=0 \
        --numeric-owner --mode=u+rw,go+r,go-w,a+X -cf - "kvcobra-$version") | xz -T1 -6 >"$file"
}

check_tree
check_version
say "version $version, commit $(git rev-parse --short HEAD)"
check_form
say "the tree is clean, NEWS.md and all versions agree, the form is right"
[ "$only_check" = no ] || exit 0

rm -rf "$folder"
run meson setup "$folder" --buildtype=release >/dev/null || die "meson could not set up $folder"
tarball=$folder/kvcobra-$version.tar.xz
dist "$tarball" --no-tests
if [ "$tests" = yes ]; then
    say "building and testing what the tarball holds"
    dist "$folder/again.tar.xz"
else
    dist "$folder/again.tar.xz" --no-tests
fi
cmp -s "$tarball" "$folder/again.tar.xz" || die "two tarballs of one commit differ"
check_tarball "$tarball"
(cd "$folder" && sha256sum "kvcobra-$version.tar.xz" >"kvcobra-$version.tar.xz.sha256sum")
[ -z "$(git status --porcelain)" ] || die "the tree changed meanwhile: no tag was made"

{
    echo "KV-COBRA $version"
    echo
    news_of "$version"
} | git tag --annotate --cleanup=whitespace --file=- "v$version" || die "git could not make the tag"
say "$tarball"
say "$(cut -d ' ' -f 1 "$tarball.sha256sum")"
say "tag v$version. Nothing was published: 'git push origin v$version', then upload both files."
say "Next: raise the version in meson.build, client/kvcobra.h and client/python/pyproject.toml, and begin NEWS.md and debian/changelog with it."
say "The Debian packages of this version: sh tools/packages.sh --check"
