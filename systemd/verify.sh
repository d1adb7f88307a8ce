#!/bin/sh
# verify.sh SERVICE SOCKET OPERATOR_SOCKET METRICS_SOCKET KVCOBRAD GPU_DROP_IN
# Fails if systemd-analyze reports anything about the units, without or with the drop-in. Works on copies that
# start the program of the build instead of the installed one. Exit 77: systemd-analyze is missing.
set -eu
command -v systemd-analyze >/dev/null 2>&1 || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program=$(readlink -f "$5") # units need an absolute path
sed "s|^ExecStart=[^ ]*|ExecStart=$program|; /^Documentation=/d" "$1" >"$folder/kvcobrad.service"
cp "$2" "$3" "$4" "$folder"
verify() {
    report=$(systemd-analyze verify --man=no "$folder/kvcobrad.service" "$folder/kvcobrad.socket" \
        "$folder/kvcobrad-operator.socket" "$folder/kvcobrad-metrics.socket" 2>&1 |
        grep -F -e kvcobra -e gpu.conf || true)
    if [ -n "$report" ]; then
        printf '%s\n' "$report"
        exit 1
    fi
}
verify
mkdir "$folder/kvcobrad.service.d"
cp "$6" "$folder/kvcobrad.service.d/gpu.conf"
verify
rm -r "$folder/kvcobrad.service.d"
systemd-analyze security --offline=true "$folder/kvcobrad.service" 2>/dev/null | tail -n 1
