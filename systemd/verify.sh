#!/bin/sh
# verify.sh SERVICE SOCKET OPERATOR_SOCKET METRICS_SOCKET KVCOBRAD: systemd-analyze has nothing to say about the units. They are copied,
# with the program of the build in place of the installed one. 77: no systemd-analyze here.
set -eu
command -v systemd-analyze >/dev/null 2>&1 || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program=$(readlink -f "$5") # a unit wants an absolute path
sed "s|^ExecStart=[^ ]*|ExecStart=$program|; /^Documentation=/d" "$1" >"$folder/kvcobrad.service"
cp "$2" "$3" "$4" "$folder"
said=$(systemd-analyze verify --man=no "$folder/kvcobrad.service" "$folder/kvcobrad.socket" \
    "$folder/kvcobrad-operator.socket" "$folder/kvcobrad-metrics.socket" 2>&1 | grep -F kvcobra || true)
if [ -n "$said" ]; then
    printf '%s\n' "$said"
    exit 1
fi
systemd-analyze security --offline=true "$folder/kvcobrad.service" 2>/dev/null | tail -n 1
