#!/bin/sh
# Builds a Python wheel with everything inside: the package, kvcobra, kvcobrad, kvcobra-cluster, kvcobra-mover, both libraries and
# the libraries that these need. It installs with pip on every Linux with x86-64 and glibc 2.28 or later, whatever else is there.
# The same programs without Python are in a tarball beside it.
#
#   sh tools/wheel.sh [FOLDER]            in FOLDER: build-wheel by default; a second run builds what changed
#   sh tools/wheel.sh --no-cuda [FOLDER]  without the kernels for GPUs, which nvcc compiles in three minutes
#
# C is compiled by `zig cc`, which has the symbols of glibc 2.28. tools/wheel/sources.list names the C libraries, which are built from
# Debian's sources; tools/wheel/requirements.txt has the compiler and OpenBLAS, from PyPI. Libraries under the LGPL stay shared,
# so that a user can replace them.
#
# Exit status 77: something that the build needs is missing; the sentence says what.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/tools/wheel/sources.list

say() {
    echo "wheel: $*"
}

die() {
    echo "wheel: $*" >&2
    exit 1
}

missing() {
    say "$*"
    exit 77
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

cuda=auto
folder=
for argument; do
    case $argument in
    --no-cuda) cuda=disabled ;;
    -*) die "'$argument' is not --no-cuda" ;;
    *)
        [ -z "$folder" ] || die "one FOLDER only; '$argument' is one argument too many"
        folder=$argument
        ;;
    esac
done
folder=${folder:-$root/build-wheel}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
deps=$folder/deps
tools=$folder/python/bin

# ---- what it needs ----

[ "$(uname -sm)" = "Linux x86_64" ] || missing "it runs on Linux x86-64, and this is $(uname -sm)"
for program in apt-get ar autoreconf dpkg-source gcc libtoolize make nasm patch pkg-config protoc-c python3; do
    command -v "$program" >/dev/null || missing "there is no $program: sh tools/setup.sh build wheel installs it"
done
[ "$cuda" = disabled ] || command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || {
    say "there is no nvcc: the wheel has no kernels for GPUs"
    cuda=disabled
}
[ "$cuda" = disabled ] || cuda=enabled

# log_of NAME COMMAND...: runs a command with its output in a file, whose end is shown if the command fails
log_of() {
    log=$folder/log/$1
    shift
    run "$@" >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        return 1
    }
}
mkdir -p "$folder/log"

if ! cmp -s "$root/tools/wheel/requirements.txt" "$folder/python/requirements.txt"; then
    say "installing the compiler and OpenBLAS from PyPI (110 MB)"
    rm -rf "$folder/python"
    log_of venv python3 -m venv "$folder/python" || missing "python3 makes no virtual environment: sh tools/setup.sh build wheel"
    log_of pip "$tools/pip" --disable-pip-version-check install --no-deps --require-hashes -r "$root/tools/wheel/requirements.txt" ||
        missing "pip installs no ziglang and scipy-openblas32: the network is missing, or PyPI; $folder/log/pip"
    cp "$root/tools/wheel/requirements.txt" "$folder/python/"
fi
PATH=$tools:$PATH
export PATH
site=$("$tools/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
[ -x "$site/ziglang/zig" ] || missing "there is no ziglang in $folder/python: remove that folder, and run this again"

# ---- compiler ----

# of the caller: they would add folders of this machine, whose libraries need its glibc
unset LIBRARY_PATH CPATH C_INCLUDE_PATH CFLAGS CPPFLAGS LDFLAGS PKG_CONFIG_PATH
mkdir -p "$folder/bin"
# program NAME WORDS...: zig as a compiler or another tool of it
program() {
    name=$1
    shift
    cat >"$folder/bin/$name" <<SCRIPT
#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR=$folder/zig ZIG_LOCAL_CACHE_DIR=$folder/zig
exec $site/ziglang/zig $* "\$@"
SCRIPT
    chmod +x "$folder/bin/$name"
}
# zig cc adds a sanitizer by default
program cc cc -target x86_64-linux-gnu.2.28 -fno-sanitize=undefined
program ar ar
program ranlib ranlib
export CC="$folder/bin/cc" AR="$folder/bin/ar" RANLIB="$folder/bin/ranlib"

# ---- C libraries ----

# fetch NAME VERSION SHA256: the source of one library, checked and unpacked in $folder/sources/NAME
fetch() {
    file=$folder/downloads/${1}_$2.dsc
    # $apt is a list of words
    # shellcheck disable=SC2086
    [ -f "$file" ] || (cd "$folder/downloads" && log_of "fetch-$1" apt-get $apt source --download-only "$1=$2") ||
        missing "Debian has no source of $1 $2: the network is missing, or tools/wheel/sources.list needs its newer version"
    echo "$3  $file" | sha256sum --check --status || {
        rm -f "$file"
        die "$file had another SHA-256 than in tools/wheel/sources.list, and was removed"
    }
    rm -rf "$folder/sources/$1"
    log_of "unpack-$1" dpkg-source --require-strong-checksums -x "$file" "$folder/sources/$1" || die "$file could not be unpacked"
}

# configured NAME OPTION...: ./configure, make, make install
configured() {
    cd "$folder/sources/$1" && shift &&
        { [ -x configure ] || autoreconf -fi; } &&
        ./configure --prefix="$deps" --libdir="$deps/lib" --host=x86_64-linux-gnu CFLAGS="-O2 -fPIC" LDFLAGS=-Wl,-s "$@" &&
        make -j"$(nproc)" && make install
}

build_hiredis() {
    # a function of hiredis has another type than the pointer to it, which gcc 12 takes
    cd "$folder/sources/hiredis" && make static AR="$AR" CC="$CC -Wno-incompatible-function-pointer-types" &&
        mkdir -p "$deps/include/hiredis/adapters" && cp ./*.h "$deps/include/hiredis/" && cp libhiredis.a "$deps/lib/" &&
        make hiredis.pc PREFIX="$deps" && cp hiredis.pc "$deps/lib/pkgconfig/"
}
build_jansson() { configured jansson --disable-shared; }
build_libisal() {
    cd "$folder/sources/libisal" && make -f Makefile.unx -j"$(nproc)" lib CC="$CC" AR="$AR" &&
        mkdir -p "$deps/include/isa-l" && cp include/*.h "$deps/include/isa-l/" && cp bin/isa-l.a "$deps/lib/libisal.a" &&
        printf 'Name: libisal\nDescription: ISA-L\nVersion: 2.30.0\nCflags: -I%s\nLibs: -L%s -lisal\n' "$deps/include" "$deps/lib" \
            >"$deps/lib/pkgconfig/libisal.pc"
}
build_libmicrohttpd() { configured libmicrohttpd --disable-static --disable-https --disable-doc --disable-examples --disable-curl; }
build_libsodium() { configured libsodium --disable-shared; }
build_libunistring() { configured libunistring --disable-static; }
build_liburing() {
    cd "$folder/sources/liburing" && ./configure --prefix="$deps" --libdir="$deps/lib" --cc="$CC" &&
        make -C src install ENABLE_SHARED=0 && make liburing.pc && cp liburing.pc "$deps/lib/pkgconfig/"
}
build_pcre2() { configured pcre2 --disable-shared --enable-jit; }
build_protobuf_c() { configured protobuf-c --disable-shared --disable-protoc; }

# openblas.pc and lapacke.pc name the OpenBLAS of PyPI
describe_openblas() {
    for name in openblas lapacke; do
        printf 'Name: %s\nDescription: OpenBLAS of scipy-openblas32\nVersion: 0.3.34\nCflags: -I%s -include %s\nLibs: -L%s -lscipy_openblas\n' \
            "$name" "$site/scipy_openblas32/include" "$root/tools/wheel/openblas_names.h" "$site/scipy_openblas32/lib" \
            >"$deps/lib/pkgconfig/$name.pc"
    done
}

libraries() {
    sed -e 's/#.*//' -e '/^ *$/d' "$list"
}

want=$(sed -n '/^# ---- compiler/,/^# ---- programs/p' "$0" | cat - "$list" "$root/tools/wheel/requirements.txt" | sha256sum)
if [ "$(cat "$deps/built" 2>/dev/null)" != "$want" ]; then
    rm -rf "$deps" "$folder/sources"
    mkdir -p "$deps/lib/pkgconfig" "$folder/sources" "$folder/downloads" "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
    # the mirrors that this machine has its packages from
    apt-get indextargets --format 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(SITE) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' 'Origin: Debian' | sort -u | grep ' bookworm[-a-z]* main$' >"$folder/apt/sources.list" ||
        missing "apt names no mirror of Debian 12 on this machine: the sources of the C libraries come from there"
    # lists and sources of its own: neither root nor deb-src lines in /etc are needed
    apt="-q -o Dir::Etc::sourcelist=$folder/apt/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::Cache=$folder/apt/cache"
    apt="$apt -o Dir::State::lists=$folder/apt/lists -o APT::Sandbox::User=$(id -un)"
    # $apt is a list of words
    # shellcheck disable=SC2086
    log_of apt-update apt-get $apt update || missing "apt-get cannot read Debian's lists of sources: $folder/log/apt-update"
    libraries | while read -r name version digest; do
        say "building $name $version"
        fetch "$name" "$version" "$digest" </dev/null
        log_of "$name" "build_$(echo "$name" | tr - _)" </dev/null || die "$name could not be built: $folder/log/$name"
    done
    describe_openblas
    echo "$want" >"$deps/built"
fi

# ---- programs and libraries ----

cat >"$folder/native.ini" <<NATIVE
[binaries]
c = '$CC'
ar = '$AR'
pkg-config = 'pkg-config'
[properties]
pkg_config_libdir = '$deps/lib/pkgconfig'
NATIVE
# __builtin_cpu_supports() of zig knows no instruction set; that of GCC does, and its file is under GCC's runtime exception
mkdir -p "$folder/gcc"
(cd "$folder/gcc" && ar x "$(gcc -print-libgcc-file-name)" cpuinfo.o) || die "libgcc.a of gcc has no cpuinfo.o"
echo 'int main(void) { __builtin_cpu_init(); return !__builtin_cpu_supports("sse2"); }' >"$folder/gcc/cpu.c"
if ! "$CC" -o "$folder/gcc/cpu" "$folder/gcc/cpu.c" "$folder/gcc/cpuinfo.o" || ! "$folder/gcc/cpu"; then
    die "the compiler does not detect instruction sets, so only slow loops would run"
fi

version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$root/meson.build")
build=$folder/build
# also at the first configuration, which looks for unistr.h
set -- -Dcuda="$cuda" "-Dc_args=-I$deps/include" "-Dc_link_args=-L$deps/lib -Wl,-rpath,\$ORIGIN/../lib -Wl,-s $folder/gcc/cpuinfo.o"
if [ ! -f "$build/build.ninja" ]; then
    say "configuring"
    log_of meson meson setup "$build" "$root" --native-file "$folder/native.ini" --prefix=/ --libdir=lib --buildtype=release -Db_ndebug=true \
        -Db_pie=true -Dd3=enabled -Dsystemd=disabled -Dtls=disabled -Dtests=disabled -Dllama=disabled "$@" || die "meson failed: $folder/log/meson"
fi
log_of options meson configure "$build" "$@" || die "meson failed: $folder/log/options"
say "building version $version"
log_of ninja ninja -C "$build" || die "the build failed: $folder/log/ninja"

# ---- tree ----

name=kvcobra-$version-linux-x86_64
tree=$folder/$name
doc=$tree/share/doc/kvcobra
rm -rf "$folder"/kvcobra-* "$folder/installed"
log_of install env DESTDIR="$folder/installed" meson install -C "$build" --no-rebuild --tags runtime,man ||
    die "meson install failed: $folder/log/install"
mkdir -p "$tree/lib" "$tree/share/kvcobra" "$doc/libraries"
(cd "$folder/installed" && cp -R bin libexec share "$tree/")
rm -f "$tree/bin/kvcobra-lab" "$tree"/share/man/man1/kvcobra-lab* # benches: no user of a wheel needs them
cp "$root/proto/kvcobra.proto" "$tree/share/kvcobra/"
for link in "$folder"/installed/lib/lib*.so.0 "$deps"/lib/libmicrohttpd.so.12 "$deps"/lib/libunistring.so.2 "$site"/scipy_openblas32/lib/*.so; do
    cp -L "$link" "$tree/lib/" # a wheel has no links: files have the names that programs ask the loader for
done

# licences, exact versions, and what builds the libraries again
cp "$root/LICENSE" "$doc/"
cp "$root/tools/wheel.sh" "$root/tools/wheel/sources.list" "$root/tools/wheel/requirements.txt" "$doc/libraries/"
libraries | while read -r library _; do
    mkdir "$doc/libraries/$library"
    find "$folder/sources/$library" -maxdepth 1 -type f \( -name 'COPYING*' -o -name 'LICEN[CS]E*' \) -exec cp '{}' "$doc/libraries/$library/" ';'
    cp "$folder/sources/$library/debian/copyright" "$doc/libraries/$library/"
done
mkdir "$doc/libraries/openblas"
cp "$site"/scipy_openblas32-*.dist-info/licenses/* "$doc/libraries/openblas/"
mkdir "$doc/libraries/d3"
cp /usr/share/doc/node-d3/copyright "$doc/libraries/d3/"
cp "$root/tools/wheel/LIBRARIES.md" "$doc/libraries/README.md"

# ---- wheel ----

say "packing"
stage=$folder/stage
rm -rf "$stage" "$folder/plain"
log_of python "$tools/pip" --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir "$folder/plain" "$root/client/python" ||
    die "the Python package could not be built: $folder/log/python"
log_of unpack wheel unpack --dest "$stage" "$folder"/plain/*.whl || die "the wheel could not be unpacked: $folder/log/unpack"
inside=$stage/kvcobra-$version
cp -R "$tree" "$inside/kvcobra/_native"
cp "$root/tools/wheel/kvcobra_programs.py" "$inside/"
points=$inside/kvcobra-$version.dist-info/entry_points.txt
grep -qx '\[console_scripts\]' "$points" || printf '\n[console_scripts]\n' >>"$points"
sed -i '/^\[console_scripts\]$/a kvcobra = kvcobra_programs:kvcobra\nkvcobrad = kvcobra_programs:kvcobrad' "$points"
sed -i -e 's/^Root-Is-Purelib: .*/Root-Is-Purelib: false/' -e 's/^Tag: .*/Tag: py3-none-linux_x86_64/' "$inside/kvcobra-$version.dist-info/WHEEL"
log_of pack wheel pack --dest-dir "$folder/plain" "$inside" || die "the wheel could not be packed: $folder/log/pack"
plain=$folder/plain/kvcobra-$version-py3-none-linux_x86_64.whl
log_of auditwheel auditwheel show "$plain" || die "auditwheel failed: $folder/log/auditwheel"
grep -Eq 'constrains the platform tag to "manylinux_2_(1[0-9]|2[0-8])_x86_64"' "$folder/log/auditwheel" || {
    cat "$folder/log/auditwheel" >&2
    die "a program needs more than manylinux_2_28"
}
log_of repair auditwheel repair --plat manylinux_2_28_x86_64 --only-plat --wheel-dir "$folder" "$plain" || die "auditwheel failed: $folder/log/repair"
# what auditwheel adds, a program was linked with by mistake, and the tarball lacks
if "$tools/python" -m zipfile --list "$(ls "$folder"/kvcobra-*.whl)" | grep '^kvcobra\.libs/'; then
    die "a program needs a library of this machine, which auditwheel added"
fi
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$folder/$name.tar.xz" "$name"
wheel=$(ls "$folder"/kvcobra-*.whl)
bytes=$(stat -c %s "$wheel")
say "$wheel, $((bytes / 1048576)) MiB"
say "$folder/$name.tar.xz, $(($(stat -c %s "$folder/$name.tar.xz") / 1048576)) MiB"
[ "$bytes" -le 20971520 ] || die "the wheel has more than 20 MiB"
