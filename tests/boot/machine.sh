# Sourced by run.sh: a bare Debian 12 in a folder, and a container that boots it. debootstrap's result is kept in the user's
# cache, so only the first run downloads it. machine_end leaves no process, no mount, no control group and no folder.

# What the installed programs are linked with, libinih1 of the earlier daemon of check_upgrade.sh, and curl for the metrics; the
# rest is what debootstrap calls minbase.
machine_packages='systemd systemd-sysv libopenblas0-pthread liblapacke libsodium23 libisal2 libjansson4 libprotobuf-c1
    liburing2 libinih1 libmicrohttpd12 libpcre2-8-0 libunistring2 libhiredis0.14 libssl3 curl'

machine_folder= # the root folders of this run, on disk
machine_pid=    # of systemd-nspawn
machine_init=   # of the container's process 1, as the host numbers it
machine_name=kvcobra-boot-$$
machine_home=/srv # the home folder in the container
archive=/nonexistent # the bare system

# machine_isolated COMMAND...: in a mount and process namespace of its own, so that nothing of it is left over, whenever it
# ends. unshare ignores SIGTERM; when it is killed, the kernel kills the namespace.
machine_isolated() {
    unshare --mount --pid --fork --kill-child "$@" &
    inner=$!
    trap 'kill -KILL "$inner"' TERM
    wait "$inner"
}

# machine_prepare: makes the archive of the bare system if there is none for this list of packages
machine_prepare() {
    machine_folder=$(mktemp -d "${TMPDIR:-/var/tmp}/$machine_name.XXXXXX")
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra
    # the list is one word
    # shellcheck disable=SC2086
    list=$(echo $machine_packages | tr ' ' ',')
    archive=$cache/boot-$(echo "bookworm $list" | sha256sum | cut -c 1-12).tar
    [ ! -f "$archive" ] || return 0
    say "installing a bare Debian 12 with debootstrap, for this run and later ones"
    mkdir -p "$cache"
    run machine_isolated debootstrap --variant=minbase --include="$list" bookworm \
        "$machine_folder/bare" >"$machine_folder/debootstrap.log" 2>&1 || return 1
    rm -f "$machine_folder"/bare/var/cache/apt/archives/*.deb "$cache"/boot-*.tar # the latter: of older lists
    run tar -C "$machine_folder/bare" -cf "$archive.$$" . && mv -f "$archive.$$" "$archive" || return 1
    rm -rf "$machine_folder/bare"
}

# machine_lay_out NAME: a new root folder with the bare system, $machine_folder/NAME
machine_lay_out() {
    mkdir "$machine_folder/$1"
    run tar -C "$machine_folder/$1" -xf "$archive"
}

# The control groups of a host without systemd, in which systemd-nspawn makes those of the container
machine_groups() {
    awk '$3 == "cgroup2" || ($3 == "cgroup" && $4 ~ /name=systemd/) { print $2 }' /proc/self/mounts
}

# machine_container ROOT ARGUMENT...: systemd-nspawn with a root folder; ends when the container ends. For the background.
machine_container() {
    folder=$1
    shift
    if [ ! -d /run/systemd/system ]; then
        # no service manager of the host makes a unit for it
        set -- --keep-unit "$@"
        for group in $(machine_groups); do
            mkdir -p "$group/$machine_name"
            sh -c 'echo $PPID' >"$group/$machine_name/cgroup.procs"
        done
    fi
    exec systemd-nspawn --quiet --register=no --machine="$machine_name" --directory="$folder" "$@"
}

# machine_run ROOT ARGUMENT...: machine_container, which SIGTERM ends at once with all its processes
machine_run() {
    machine_container "$@" &
    inner=$!
    trap 'pkill -KILL -P "$inner"' TERM
    wait "$inner"
}

# machine_boot NAME ARGUMENT...: boots the root folder $machine_folder/NAME, and waits until its systemd has started everything
machine_boot() {
    machine_root=$1
    shift
    machine_container "$machine_folder/$machine_root" --boot --console=pipe "$@" </dev/null >"$machine_folder/console.log" 2>&1 &
    machine_pid=$!
    machine_wait "the container's process 1" machine_find_init
    machine_wait "its systemd" machine_is_up
}

machine_find_init() {
    kill -0 "$machine_pid" 2>/dev/null || die_with_log "systemd-nspawn does not start" "$machine_folder/console.log"
    machine_init=$(pgrep -o -P "$machine_pid" -x systemd)
}

machine_is_up() {
    state=$(in_machine systemctl is-system-running 2>/dev/null || true)
    [ "$state" = running ] || [ "$state" = degraded ]
}

# machine_wait WHAT COMMAND...: repeats COMMAND until it succeeds, at most three minutes
machine_wait() {
    what=$1
    shift
    end=$(($(date +%s) + 180))
    until "$@"; do
        [ "$(date +%s)" -lt "$end" ] || die_with_log "waited three minutes for $what" "$machine_folder/console.log"
        sleep 0.1
    done
}

# in_machine COMMAND...: runs a command as root of the container; its exit status is that of the command
in_machine() {
    run nsenter --target "$machine_init" --mount --uts --ipc --net --pid --cgroup --root --wd -- \
        env -i HOME=$machine_home LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# as_user NAME COMMAND...: the same as another user, with all groups of that user
as_user() {
    user=$1
    shift
    in_machine setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}

# Ends the container; its root folder stays.
machine_stop() {
    if [ -n "$machine_init" ]; then
        kill -KILL "$machine_init" 2>/dev/null || true # ends every process of the container
    elif [ -n "$machine_pid" ]; then
        kill -TERM "$machine_pid" 2>/dev/null || true
    fi
    [ -z "$machine_pid" ] || wait "$machine_pid" 2>/dev/null || true
    machine_pid='' machine_init=''
    for group in $(machine_groups); do
        [ ! -d "$group/$machine_name" ] || find "$group/$machine_name" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
}

machine_end() {
    machine_stop
    [ -z "$machine_folder" ] || rm -rf "$machine_folder" "$archive.$$"
}
