#!/bin/sh
# Runs checkers over the product. The last line counts them: N passed, N failed, N skipped. Exit status 0 if none found
# anything. Any user can run it, from any directory and any number of times; it makes only build-lint, build-ubsan and
# build-tsan.
#
#   sh tools/lint.sh               all of these
#   sh tools/lint.sh CHECKER...    only these
#
#   cppcheck   below is what it leaves out
#   tidy       clang-tidy; .clang-tidy has the checks, and the reason for each that is left out
#   analyzer   gcc -fanalyzer; tools/lint_analyzer.txt has what is left out, by file
#   ubsan      the unit tests, compiled by clang with its sanitizer of undefined behaviour, which finds more than GCC's
#   tsan       tools/tsan.sh: races between threads
#
# The first three take ten minutes of processor time, and .ci/run runs them. The last two build everything once more: they
# are run by hand. A checker that cannot be had is skipped with a sentence.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() {
    echo "lint: $*"
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

# have PROGRAM: whether it is installed; exit status 77 says that the checker is skipped
have() {
    command -v "$1" >/dev/null || {
        say "there is no $1: sh tools/setup.sh build test lint installs it"
        return 77
    }
}

# set_up FOLDER MESON-ARGUMENT...
set_up() {
    folder=$1
    shift
    [ ! -f "$folder/build.ninja" ] || return 0
    mkdir -p "$folder"
    run meson setup "$@" "$folder" >"$folder/setup.log" 2>&1 || {
        cat "$folder/setup.log" >&2
        return 1
    }
}

# What cppcheck leaves out:
#   memleak                     cppcheck does not know the cleanup attribute
#   preprocessorErrorDirective  the version check of protobuf-c's generated headers
#   uninitvar                   arrays that a loop or a called function fills
#   invalidFunctionArg          log() of a sum of exponentials, one of which is 1
#   arrayIndexOutOfBounds       after argp_error(), which does not return; sizes that are constants after inlining
#   uselessAssignmentPtrArg     the last row of the table of status fields moves a cursor that no row reads
#   invalidPrintfArgType_uint   constants of an enum, which GCC checks
#   comparePointers             the ends of an array of rows, which the linker makes (base/rows.h)
lint_cppcheck() {
    have cppcheck || return
    run cppcheck -q -j"$(nproc)" --error-exitcode=1 --enable=warning,portability -I. -D_GNU_SOURCE -D__x86_64__ \
        --suppress=missingInclude --suppress=memleak --suppress=preprocessorErrorDirective --suppress=uninitvar \
        --suppress=invalidFunctionArg --suppress=arrayIndexOutOfBounds --suppress=arrayIndexOutOfBoundsCond \
        --suppress=invalidPrintfArgType_uint --suppress=uselessAssignmentPtrArg:proto/status_fields.def \
        --suppress=comparePointers:daemon/dispatch.c --suppress=comparePointers:tools/commands.c \
        --template='{file}:{line}: {severity}: {message} [{id}]' base alloc proto gpu client cluster daemon examples lab mover \
        tools
}

# set_up_lint: the commands that compile each file, and the headers that the build generates; nothing is compiled
set_up_lint() {
    CC=gcc set_up build-lint -Dtests=disabled -Dcuda=disabled &&
        run ninja -C build-lint --quiet proto/kvcobra.pb-c.h proto/mover.pb-c.h
}

lint_tidy() {
    have clang-tidy || return
    set_up_lint && run python3 tools/lint_files.py tidy build-lint
}

lint_analyzer() {
    have gcc || return
    [ "$(gcc -dumpversion)" = 12 ] || {
        say "gcc is version $(gcc -dumpversion): tools/lint_analyzer.txt is for version 12, that of Debian 12"
        return 77
    }
    set_up_lint && run python3 tools/lint_files.py analyzer build-lint
}

# The tests load libraries, so the sanitizer is one of them too.
lint_ubsan() {
    have clang || return
    kinds=-fsanitize=float-divide-by-zero,implicit-conversion,local-bounds,nullability
    link="-shared-libsan -Wl,-rpath,$(clang -print-runtime-dir)"
    CC=clang CXX=clang++ set_up build-ubsan -Db_sanitize=undefined -Db_lundef=false -Doptimization=1 -Dtests=enabled \
        -Dcuda=disabled "-Dc_args=$kinds" "-Dc_link_args=$kinds $link" "-Dcpp_link_args=$link" &&
        run meson test -C build-ubsan --quiet --print-errorlogs --timeout-multiplier 8 --suite unit
}

lint_tsan() {
    run sh tools/tsan.sh
}

all="cppcheck tidy analyzer ubsan tsan"
for checker in "$@"; do
    case " $all " in
    *" $checker "*) ;;
    *)
        echo "lint: there is no checker '$checker'; the checkers are $all" >&2
        exit 2
        ;;
    esac
done

run sh tools/setup.sh build test lint || say "going on with the checkers that are here"
passed=0 failed=0 skipped=0
# shellcheck disable=SC2048 # words without spaces
for checker in ${*:-$all}; do
    status=0
    "lint_$checker" || status=$?
    case $status in
    0)
        say "$checker: nothing found"
        passed=$((passed + 1))
        ;;
    77)
        say "$checker: skipped"
        skipped=$((skipped + 1))
        ;;
    *)
        say "$checker: FAILED"
        failed=$((failed + 1))
        ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
