# The Debian packages in a bare Debian 12 with a network: the commands of docs/packages.md, an upgrade, removal and purge.
# Downloaded packages are kept in the user's cache, those of the project are built anew.

machine_stop
debs=$machine_folder/debs
began=$(date +%s)
got=0
sh "$ROOT/tools/packages.sh" --no-tests "$debs" >"$dir/out" 2>"$dir/err" || got=$?

# raise VERSION: the same packages as $debs/next/*.deb, with this version
raise() {
    mkdir "$debs/next" || return 1
    for file in "$debs"/*.deb; do
        unpacked=$debs/next/unpacked
        dpkg-deb -R "$file" "$unpacked" || return 1
        old=$(sed -n 's/^Version: //p' "$unpacked/DEBIAN/control")
        sed -i "s/^Version: .*/Version: $1/; s/= $old)/= $1)/g" "$unpacked/DEBIAN/control"
        dpkg-deb -Znone -b "$unpacked" "$debs/next/$(basename "$file")" >/dev/null || return 1
        rm -r "$unpacked"
    done
}

# in_home COMMAND: a shell command in the folder with the packages and the model, as an administrator types it
in_home() {
    in_machine env --chdir=$machine_home DEBIAN_FRONTEND=noninteractive sh -c "$1"
}

# since UNIT: when it became active
since() {
    in_machine systemctl show --property ActiveEnterTimestampMonotonic --value "$1"
}

# The six commands of docs/packages.md; the README has the same
walk() {
    sed -n '/^### From packages/,/^### Afterwards/s/^    //p' "$ROOT/docs/packages.md" >"$dir/commands"
    n=$(wc -l <"$dir/commands")
    check "packages: at most six commands ($n)" test "$n" -ge 3 -a "$n" -le 6
    n_shared=0
    while read -r command <&4; do
        check "packages: the README has: $command" grep -qxF "    $command" "$ROOT/README.md"
        check "packages: $command" in_home "$command </dev/null"
        case $command in
        *--share*)
            n_shared=$((n_shared + 1))
            tokens=$(sed -n 's/.*; prompt of [0-9]* tokens, \([0-9]*\) of them found.*/\1/p' "$dir/err")
            if [ "$n_shared" -eq 1 ]; then
                check "packages: the first process finds nothing" test "$tokens" -eq 0
            else
                check "packages: the second process finds $tokens tokens of the prompt" test "$tokens" -gt 0
            fi
            ;;
        esac
    done 4<"$dir/commands"
    check "packages: two processes" test "$n_shared" -eq 2
}

case $got in
0)
    ok "packages: they are built ($(($(date +%s) - began)) s)"
    mkdir -p "$cache/boot-debs"
    machine_lay_out packages
    machine_boot packages --resolv-conf=replace-host --bind="$cache/boot-debs:/var/cache/apt/archives"
    printf '%s\n' 'APT::Get::Assume-Yes "true";' 'APT::Install-Recommends "false";' >"$(at /etc/apt/apt.conf.d/test)"
    check "packages: the lists of Debian's packages" in_home "apt-get --quiet --quiet update"
    cp "$debs"/*.deb "$(at $machine_home)"
    cp "$BUILD/tests/boot/boot_pages" "$(at /usr/local/bin/pages)"
    "$BUILD/tests/e2e/cli/tiny_model" "$(at $machine_home/model.gguf)"
    walk

    check "packages: the sockets are enabled" in_machine systemctl is-enabled kvcobrad.socket kvcobrad-operator.socket \
        kvcobrad-metrics.socket
    expect "packages: the service is not, a connection starts it" 1 in_machine systemctl is-enabled "$unit"
    check "packages: it runs" unit_is_up
    expect "packages: the timer is off" 1 in_machine systemctl is-enabled kvcobrad-recalibrate.timer
    check "packages: nothing of systemd's own reading is wrong" in_machine sh -c \
        '! journalctl --quiet --output cat _PID=1 | grep -F kvcobra | grep -E "nknown|ailed|ignoring"'
    check "packages: files are as they were packed" in_machine dpkg --verify
    in_machine kvcobra model list --json >"$dir/out"
    model=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["digest"])' "$dir/out")
    in_machine useradd --create-home --groups kvcobra alice
    check "packages: the Python package opens the model" as_user alice python3 -c "
import kvcobra
with kvcobra.Client() as client:
    assert kvcobra.Model(client, model_id='$model').geometry.n_layers == 2"

    configure "pool-bytes = 16M" "extent-bytes = 256K" "span-bytes = 64K" "arena-bytes = 4M" "quota-bytes = 64M"
    check "packages: restart with another configuration" restart
    check "packages: prompts are published" as_user alice pages publish "$model" 2
    check "packages: read" read_pages before
    check "packages: all tokens are found" found before 1920
    check "packages: a higher version" raise 999
    cp "$debs"/next/*.deb "$(at $machine_home)"
    pid=$(unit_shows MainPID)
    sockets=$(since kvcobrad.socket) operators=$(since kvcobrad-operator.socket)
    log_from=
    mark
    check "packages: the upgrade" in_home "apt install ./*.deb"
    check "packages: it is the higher version" in_machine sh -c 'test "$(dpkg-query -W -f "\${Version}" kvcobrad)" = 999'
    check "packages: the daemon was restarted" test "$pid" != "$(unit_shows MainPID)"
    check "packages: it runs after the upgrade" unit_is_up
    check "packages: the sockets were left alone" test "$sockets $operators" = \
        "$(since kvcobrad.socket) $(since kvcobrad-operator.socket)"
    check "packages: the administrator's configuration stays" grep -q "pool-bytes = 16M" "$(at "$conf")"
    expect_same "packages: after the upgrade"
    expect "packages: no part of the pool was lost" 1 log_has pool-lost

    check "packages: apt remove" in_home "apt remove kvcobrad"
    check "packages: the daemon is gone" in_machine sh -c '! ls -l /proc/*/exe 2>/dev/null | grep -F kvcobrad'
    expect "packages: so are the sockets" 3 in_machine systemctl is-active kvcobrad.socket kvcobrad-operator.socket \
        kvcobrad-metrics.socket
    check "packages: and their folder" in_machine test ! -e /run/kvcobra
    check "packages: the configuration stays" test -f "$(at "$conf")"
    check "packages: the state stays" in_machine test -s /var/lib/kvcobra/secret
    check "packages: installed again, it has its tables" in_home "apt install ./kvcobrad_[0-9]*.deb && kvcobra table list"
    check_text "packages: the active table" "active"
    check "packages: apt purge" in_home "apt purge kvcobrad kvcobra libkvcobra-dev libkvcobra0 libkvcobra-alloc0 python3-kvcobra"
    check "packages: the user stays" in_machine getent passwd kvcobra
    in_machine find / -xdev -path $machine_home -prune -o -path /var/cache/apt -prune -o -path /var/log -prune -o \
        -name '*kvcobra*' -print >"$dir/out" 2>"$dir/err"
    shown=
    [ ! -s "$dir/out" ] && ok "packages: no file is left" || not_ok "packages: files are left"
    ;;
77) skip "packages: $(tail -n 1 "$dir/out")" ;;
*) not_ok "packages: they are built" ;;
esac
