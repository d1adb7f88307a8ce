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

# ---- how long it takes

# answer OPTION...: of a question about a text
answer() {
    kvcobra generate files/real.gguf --prompt-file files/LICENSE --question 'Which licence is this? Answer with the name only.' --json "$@"
}
first_minute() {
    begin=$(date +%s)
    env/bin/pip --disable-pip-version-check --quiet install --no-index --find-links files files/kvcobra-*.whl || return 1
    kvcobra up --model files/real.gguf && answer >first || return 1
    echo "time first answer after $(($(date +%s) - begin)) s"
    kvcobra up --wait --model files/real.gguf && answer --share >second && answer --share >third || return 1
    echo "time first shared prompt after $(($(date +%s) - begin)) s: $(grep -o '"matched_tokens": [0-9]*' third)"
    grep -Eq '"matched_tokens": [1-9]' third && kvcobra down
}
check "a virtual environment" python3 -m venv env
if [ -f files/real.gguf ]; then
    PATH=/home/user/env/bin:$PATH
    check "the first minute" first_minute
    sed -n '/^time /p' out
    env/bin/pip --disable-pip-version-check --quiet uninstall --yes kvcobra
fi

# ---- each step
check "pip install" env/bin/pip --disable-pip-version-check install --no-index --find-links files files/kvcobra-*.whl
PATH=/home/user/env/bin:$PATH
check "kvcobra --version" kvcobra --version
check "kvcobrad --version" kvcobrad --version
check "every library is found" sh -c '! ldd env/lib/python3*/site-packages/kvcobra/_native/*/kvcobra* | grep "not found"'
check "the library, from Python" python3 -c 'import kvcobra; assert kvcobra.version() == kvcobra.__version__; kvcobra.Client(False).close()'
check "kvcobra up, without a runtime folder" kvcobra up --wait --model files/model.gguf
check "it is in /tmp" test -S /tmp/kvcobra-1000/kvcobra.sock
check "ping" kvcobra ping
check "kvcobra-mover is the one beside kvcobrad" sh -c 'test -x "$(kvcobrad --user --print-config | sed -n "s/^mover *= *//p")"'
check "doctor" sh -c 'kvcobra doctor || [ $? -eq 1 ]' # 1: something is missing in a bare system, such as a unit
check "a prompt is published" kvcobra generate files/model.gguf --prompt-file files/session.sh --share --tokens 2 --ignore-eos
check "a second process finds it" sh -c "kvcobra generate files/model.gguf --prompt-file files/session.sh --share --tokens 2 \\
    --ignore-eos --json | grep -Eq '\"matched_tokens\": [1-9]'"
check "two Python processes share" sh -c 'python3 files/share.py && [ "$(python3 files/share.py)" -gt 0 ]'
check "a table from statistics" kvcobra calibrate --quick files/model.gguf -o quick.stats
check "inspect" kvcobra inspect quick.table --html page.html
check "kvcobra down" kvcobra down
check "it is gone" sh -c '! kvcobra ping'
check "uninstall" env/bin/pip --disable-pip-version-check uninstall --yes kvcobra
check "nothing is left" sh -c '! ls env/lib/python3*/site-packages | grep -i kvcobra'
