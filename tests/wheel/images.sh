#!/bin/sh
# The images of tools/images.sh, without a container runtime: each is unpacked by buildah and its programs run in it (chroot), the daemon
# as the image's user, with the folder of sockets shared. One line per check; the last line counts: N passed, N failed, N skipped.
#
#     sh tests/wheel/images.sh FOLDER TINY_MODEL     FOLDER: of tools/images.sh. TINY_MODEL: of a folder with -Dtests=enabled
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/cli/lib.sh
. "$here/../e2e/cli/lib.sh"
FOLDER=${1:?the folder of the images is needed} TINY_MODEL=${2:?the program tiny_model is needed}

if [ "$(id -u)" -ne 0 ] || ! command -v buildah >/dev/null; then
    skip "it takes root and buildah: sh tools/setup.sh images"
    finish
fi
store() {
    buildah --storage-driver vfs --root "$dir/storage" --runroot "$dir/state" "$@"
}
expect "no arguments" 1 sh "$here/../../tools/images.sh"
expect "no tarball" 1 sh "$here/../../tools/images.sh" "$dir/kvcobra-1-linux-x86_64.tar.xz"
grep -q "sh tools/wheel.sh makes it" "$dir/err" && ok "the sentence says what makes it" || not_ok "the sentence says what makes it"

for image in kvcobrad kvcobra-client; do
    archive=$(find "$FOLDER" -maxdepth 1 -name "$image-[0-9]*.oci.tar" | sort | tail -n 1)
    [ -n "$archive" ] || {
        skip "$FOLDER has no $image: sh tools/images.sh TARBALL $FOLDER"
        finish
    }
    expect "$image is an image" 0 store from --name "$image" "oci-archive:$archive"
    store inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$image" >"$dir/$image"
done
[ "$(cat "$dir/kvcobrad")" = "980:980 [kvcobrad] [--socket /run/kvcobra/kvcobra.sock --operator-socket /run/kvcobra/operator.sock]" ] &&
    ok "the daemon's user, program and arguments" || not_ok "the daemon's user, program and arguments"
[ "$(cat "$dir/kvcobra-client")" = " [] [kvcobra doctor]" ] && ok "the client's command" || not_ok "the client's command"

"$TINY_MODEL" "$dir/model.gguf"
mkdir "$dir/sockets"
chown 980:980 "$dir/sockets"
chmod 755 "$dir" "$dir/sockets"
store run --isolation chroot --user 980:980 --volume "$dir/sockets:/run/kvcobra" kvcobrad -- kvcobrad --socket /run/kvcobra/kvcobra.sock \
    --operator-socket /run/kvcobra/operator.sock --pool-bytes 64M --arena-bytes 8M </dev/null >"$dir/daemon.log" 2>&1 &
daemon_pid=$!
client() {
    store run --isolation chroot --volume "$dir/sockets:/run/kvcobra" --volume "$dir/model.gguf:/model.gguf:ro" kvcobra-client -- "$@" </dev/null
}
wait_for "the daemon serves" client kvcobra ping
expect "a table" 0 client kvcobra calibrate --quick /model.gguf -o /srv/model.stats
expect "staged" 0 client kvcobra table stage /srv/model.table
expect "active" 0 client kvcobra table activate /srv/model.table
for _ in 1 2; do
    expect "a prompt" 0 client kvcobra generate /model.gguf --prompt-file /etc/bash.bashrc --share --tokens 2 --ignore-eos --json
done
grep -Eq '"matched_tokens": [1-9]' "$dir/out" && ok "the second process finds it" || not_ok "the second process finds it"
expect "status" 0 client kvcobra status --json
expect_true "its version" "j['version'] == '$(basename "$archive" .oci.tar | sed 's/kvcobra-client-//')'"
pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$dir/out")
[ "$(stat -c %u "/proc/$pid")" = 980 ] && ok "the daemon is no root" || not_ok "the daemon is no root"
kill -TERM "$pid" # buildah's process does not pass the signal on
wait "$daemon_pid" || true
daemon_pid=
finish
