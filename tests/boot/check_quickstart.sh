# The quickstart of docs/build.md on a bare Debian 12, from nothing: packages, build, model, demonstration; then `meson install`. This
# container has the host's network, for apt-get; downloaded packages are kept in the user's cache. It is not booted.

machine_stop
file=$(sed -n 's/^file=//p' "$ROOT/tools/fetch_model.sh")

# in_fresh COMMAND: a shell command in the second root folder
in_fresh() {
    run machine_run "$machine_folder/fresh" --resolv-conf=replace-host --as-pid2 --pipe \
        --bind="$cache/boot-debs:/var/cache/apt/archives" --bind-ro="$cache/$file:$machine_home/.cache/kvcobra/$file" \
        --setenv=HOME=$machine_home /bin/sh -c "$1"
}

if [ ! -f "$cache/$file" ]; then
    skip "quickstart: the model is not in the cache: sh tools/fetch_model.sh"
else
    mkdir -p "$cache/boot-debs"
    machine_lay_out fresh
    mkdir -p "$machine_folder/fresh$machine_home/kvcobra" "$machine_folder/fresh$machine_home/.cache/kvcobra"
    tar -C "$ROOT" --exclude='./build*' --exclude=./.git --exclude=__pycache__ -cf - . |
        tar -C "$machine_folder/fresh$machine_home/kvcobra" -xf -
    check "quickstart: sh tools/quickstart.sh" in_fresh "cd $machine_home/kvcobra && sh tools/quickstart.sh"
    check_text "quickstart: it says where the command is" "quickstart: done. The command is $machine_home/kvcobra/build-release/tools/kvcobra"
    check "quickstart: again, from another folder" in_fresh "sh $machine_home/kvcobra/tools/setup.sh build model demo"
    check "quickstart: meson install" in_fresh "meson install -C $machine_home/kvcobra/build-release --no-rebuild"
    check "quickstart: kvcobra --help" in_fresh "kvcobra --help"
    check_text "quickstart: the help" "calibrate"
fi
