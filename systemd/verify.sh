#!/bin/sh
# verify.sh SERVICE SOCKET OPERATOR_SOCKET METRICS_SOCKET KVCOBRAD GPU_DROP_IN ADDRESS_DROP_IN DISK_DROP_IN RECALIBRATE_SERVICE
#     TIMER KVCOBRA CLUSTER_SERVICE KVCOBRA_CLUSTER
# Fails if systemd-analyze reports anything about the units, without or with the drop-ins. Works on copies that
# start the program of the build instead of the installed one. Exit 77: systemd-analyze is missing.
set -eu
command -v systemd-analyze >/dev/null 2>&1 || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program=$(readlink -f "$5") # units need an absolute path
sed "s|^\(Exec[A-Za-z]*\)=[^ ]*/kvcobrad |\1=$program |; /^Documentation=/d" "$1" >"$folder/kvcobrad.service"
cp "$2" "$3" "$4" "${10}" "$folder"
command=$(readlink -f "${11}")
sed "s|^\(Exec[A-Za-z]*\)=[^ ]*/kvcobra |\1=$command |; /^Documentation=/d" "$9" >"$folder/kvcobrad-recalibrate.service"
cluster=$(readlink -f "${13}")
sed "s|^\(Exec[A-Za-z]*\)=[^ ]*/kvcobra-cluster |\1=$cluster |; /^Documentation=/d" "${12}" >"$folder/kvcobra-cluster.service"
verify() {
    report=$(systemd-analyze verify --man=no "$folder/kvcobrad.service" "$folder/kvcobrad.socket" \
        "$folder/kvcobrad-operator.socket" "$folder/kvcobrad-metrics.socket" \
        "$folder/kvcobrad-recalibrate.service" "$folder/kvcobrad-recalibrate.timer" \
        "$folder/kvcobra-cluster.service" 2>&1 |
        grep -F -e kvcobra -e gpu.conf -e address.conf -e disk.conf || true)
    if [ -n "$report" ]; then
        printf '%s\n' "$report"
        exit 1
    fi
}
verify
mkdir "$folder/kvcobrad.service.d" "$folder/kvcobrad-metrics.socket.d"
cp "$6" "$folder/kvcobrad.service.d/gpu.conf"
cp "$7" "$folder/kvcobrad-metrics.socket.d/address.conf"
cp "$8" "$folder/kvcobrad.service.d/disk.conf"
verify
rm -r "$folder/kvcobrad.service.d"
for unit in kvcobrad kvcobra-cluster; do
    systemd-analyze security --offline=true "$folder/$unit.service" 2>/dev/null | tail -n 1
done
