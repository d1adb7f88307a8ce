#!/bin/sh
# What a user does with the wheel: run by run.sh in a bare Debian, in the folder of that user. One line per check, and one per time.
cd /home/user || exit 1

# check NAME COMMAND...: the command succeeds
check() {
    name=$1
    shift
    if "$@" >out 2>err; then
        echo "ok   $name"
    else
        echo "FAIL $name"
        cat out err >&2
    fi
}

# ---- the two lines of the README, and how long it takes

# answer OPTION...: of a question about a text
answer() {
    kvcobra generate minute/model.gguf --prompt-file files/LICENSE --question 'Which licence is this? Answer with the name only.' --json "$@"
}
lines_of_readme() {
    (cd minute && PIP_NO_INDEX=1 PIP_FIND_LINKS=/home/user/files sh -e ../files/commands)
}
first_minute() {
    begin=$(date +%s)
    lines_of_readme && answer >first || return 1
    echo "time first answer after $(($(date +%s) - begin)) s, load $(cut -d ' ' -f 1 /proc/loadavg)"
    kvcobra up --wait --model minute/model.gguf && answer --share >second && answer --share >third || return 1
    echo "time first shared prompt after $(($(date +%s) - begin)) s, load $(cut -d ' ' -f 1 /proc/loadavg): $(grep -o '"matched_tokens": [0-9]*' third)"
    grep -Eq '"matched_tokens": [1-9]' third
}
# two_share NAME: two processes of the programs in PATH, with a daemon that runs
two_share() {
    head -c 2000 files/session.sh >prompt.txt
    check "$1: a prompt is published" kvcobra generate files/model.gguf --prompt-file prompt.txt --share --tokens 2 --ignore-eos
    check "$1: a second process finds it" sh -c "kvcobra generate files/model.gguf --prompt-file prompt.txt --share --tokens 2 \\
        --ignore-eos --json | grep -Eq '\"matched_tokens\": [1-9]'"
}
check "a virtual environment" python3 -m venv env
PATH=/home/user/env/bin:$PATH
mkdir minute
ln -s /home/user/files/kvcobra-*.whl minute/
if [ -f files/real.gguf ]; then
    ln -s /home/user/files/real.gguf minute/model.gguf
    check "the two lines of the README, an answer, a shared prompt" first_minute
    sed -n '/^time /p' out
    times >out
    sed -n '2s/^/time of the processor, user and system: /p' out
else
    ln -s /home/user/files/model.gguf minute/model.gguf
    check "the two lines of the README" lines_of_readme
fi
check "kvcobra down" kvcobra down
rm -r .local/state/kvcobra # the table of that model, which stays
check "uninstall" pip --disable-pip-version-check uninstall --yes kvcobra

# ---- each step
check "pip install" env/bin/pip --disable-pip-version-check install --no-index --find-links files files/kvcobra-*.whl
check "kvcobra --version" kvcobra --version
check "kvcobrad --version" kvcobrad --version
check "every library is found" sh -c '! ldd env/lib/python3*/site-packages/kvcobra/_native/*/kvcobra* | grep "not found"'
check "kvcobra-cluster starts" sh -c 'env/lib/python3*/site-packages/kvcobra/_native/libexec/kvcobra-cluster --version'
check "commands of the Python package" sh -c 'kvcobra llama-proxy --help && kvcobra bench serve --help'
check "the library, from Python" python3 -c 'import kvcobra; assert kvcobra.version() == kvcobra.__version__; kvcobra.Client(False).close()'
check "kvcobra up, without a runtime folder" kvcobra up --wait --model files/model.gguf
check "it is in /tmp" test -S /tmp/kvcobra-1000/kvcobra.sock
check "ping" kvcobra ping
check "kvcobra-mover is the one beside kvcobrad" sh -c 'test -x "$(kvcobrad --user --print-config | sed -n "s/^mover *= *//p")"'
check "doctor" sh -c 'kvcobra doctor || [ $? -eq 1 ]' # 1: something is missing in a bare system, such as a unit
two_share "the wheel"
check "two Python processes share" sh -c 'python3 files/share.py && [ "$(python3 files/share.py)" -gt 0 ]'
check "a table from statistics" kvcobra calibrate --quick files/model.gguf -o quick.stats
check "inspect" kvcobra inspect quick.table --html page.html
check "kvcobra down" kvcobra down
check "it is gone" sh -c '! kvcobra ping'
check "uninstall" env/bin/pip --disable-pip-version-check uninstall --yes kvcobra
check "nothing is left" sh -c '! ls env/lib/python3*/site-packages | grep -i kvcobra'

# ---- the tarball: the same programs in any folder, without the Python package
if [ -d files/tarball ]; then
    rm -r .local/state/kvcobra
    PATH=$(echo /home/user/files/tarball/kvcobra-*/bin):/bin
    check "the tarball's kvcobra is the first in PATH" sh -c 'case $(command -v kvcobra) in */files/tarball/*) ;; *) false ;; esac'
    check "every library of the tarball is found" sh -c '! ldd files/tarball/kvcobra-*/bin/* files/tarball/kvcobra-*/libexec/* | grep "not found"'
    check "kvcobra-cluster of the tarball starts" sh -c 'files/tarball/kvcobra-*/libexec/kvcobra-cluster --version'
    check "kvcobra up of the tarball" kvcobra up --wait --model files/model.gguf
    two_share "the tarball"
    check "kvcobra down" kvcobra down
fi
