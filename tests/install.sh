#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install.sh BUILD_DIR: installs into a folder of its own, moves it, and builds and runs examples against it: by
# pkg-config with the shared and with the static library, by CMake's find_package, and in another project. Checks the
# man page.
set -u
build=$(cd "${1:?usage: install.sh BUILD_DIR}" && pwd)
source=$(pwd)
if grep -qsE '^DEEPPCR_SANITIZE:STRING=.+' "$build/CMakeCache.txt"; then
    echo "install: a sanitizer's build is not for installing"
    exit 77
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
unset DESTDIR PKG_CONFIG_PATH CMAKE_PREFIX_PATH
fail() {
    echo "install: $*"
    exit 1
}
quietly() {  # text, command...
    local text=$1
    shift
    "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; fail "$text"; }
}

quietly "cmake --install failed" cmake --install "$build" --prefix "$folder/first place"
mv "$folder/first place" "$folder/prefix"  # nothing may remember where it was installed
prefix=$folder/prefix
library=$(dirname "$(find "$prefix" -name libdeeppcr.a)")
for file in "$library/libdeeppcr.so" "$library/libdeeppcr.so.0" "$library/libdeeppcr.a" "$library/pkgconfig/deeppcr.pc" \
    "$library/cmake/deeppcr/deeppcrConfig.cmake" "$prefix/include/deeppcr/deeppcr.h" "$prefix/share/man/man1/deeppcr.1"; do
    [ -e "$file" ] || fail "missing: ${file#"$prefix"/}"
done
for header in include/deeppcr/*.h; do
    [ -f "$prefix/$header" ] || fail "missing: $header"
done
[ ! -x "$build/deeppcr" ] || [ -x "$prefix/bin/deeppcr" ] || fail "missing: bin/deeppcr"
[ ! -e "$build/libdeeppcr_mpi.so.0" ] || [ -e "$library/libdeeppcr_mpi.so.0" ] || fail "missing: libdeeppcr_mpi.so.0"
leaks=$(grep -rlIF -e "$build" -e "$source" -e "$folder" "$prefix" || true)
[ -z "$leaks" ] || fail "installed files name the build's folders: $leaks"
fixed=$(grep -rnE '[;"]/[^;"]*\.(so|a)[;"]' "$library/cmake" || true)
[ -z "$fixed" ] || fail "the CMake package names libraries by this machine's paths: $fixed"

export PKG_CONFIG_PATH=$library/pkgconfig
quietly "pkg-config finds no deeppcr" pkg-config --exists --print-errors deeppcr
[ "$(pkg-config --modversion deeppcr)" = "$(sed -n 's/.*DPCR_VERSION_STRING "\(.*\)"/\1/p' include/deeppcr/export.h)" ] ||
    fail "pkg-config's version $(pkg-config --modversion deeppcr) is not the headers'"

strict="-std=c17 -Wall -Wextra -Werror -D_GNU_SOURCE"
for example in examples/*.c; do
    name=$(basename "$example" .c)
    ! grep -q '"audio.h"' "$example" || continue  # wants libsndfile: by CMake, where that is there
    # shellcheck disable=SC2046,SC2086
    quietly "$name does not build with the shared library" \
        gcc $strict "$example" -o "$folder/$name-shared" $(pkg-config --cflags --libs deeppcr) -lm
    readelf -d "$folder/$name-shared" | grep -q 'NEEDED.*libdeeppcr\.so\.0' || fail "$name-shared does not use the shared library"
    quietly "$name-shared fails" env LD_LIBRARY_PATH="$library" "$folder/$name-shared"
    # shellcheck disable=SC2046,SC2086
    quietly "$name does not build with the static library" \
        gcc $strict "$example" -o "$folder/$name-static" $(pkg-config --static --cflags --libs deeppcr | sed 's/-ldeeppcr/-l:libdeeppcr.a/')
    ! readelf -d "$folder/$name-static" | grep -q 'NEEDED.*libdeeppcr' || fail "$name-static uses the shared library"
    quietly "$name-static fails" "$folder/$name-static"
done

python3 - "$folder/tone.wav" <<'EOF' || fail "no recording could be made"
import math, struct, sys, wave
with wave.open(sys.argv[1], "wb") as w:
    w.setparams((1, 2, 16000, 0, "NONE", ""))
    w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(0.002 * i * (1 + i / 16000)))) for i in range(16000)))
EOF
for kind in shared static; do
    quietly "examples do not configure by find_package ($kind)" cmake -S examples -B "$folder/cmake-$kind" -G Ninja \
        -DCMAKE_PREFIX_PATH="$prefix" -DDEEPPCR_KIND=$kind
    quietly "examples do not build by find_package ($kind)" cmake --build "$folder/cmake-$kind"
    for example in examples/*.c; do
        name=$(basename "$example" .c)
        if ! grep -q '"audio.h"' "$example"; then
            quietly "$name ($kind, CMake) fails" "$folder/cmake-$kind/$name"
        elif [ -x "$folder/cmake-$kind/$name" ]; then
            quietly "$name ($kind, CMake) fails" "$folder/cmake-$kind/$name" -t 2 -o "$folder/$name.wav" "$folder/tone.wav"
            [ -s "$folder/$name.wav" ] || fail "$name ($kind) wrote no sound"
        fi
    done
done

# As a part of another project: the same two targets, and its sources find the headers. The library itself is not built.
mkdir "$folder/inside"
cp examples/linear_chain.c "$folder/inside"
cat >"$folder/inside/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(inside LANGUAGES C)
set(DEEPPCR_CUDA off)
add_subdirectory("$source" deeppcr EXCLUDE_FROM_ALL)
foreach(kind deeppcr static)
  add_executable(inside_\${kind} linear_chain.c)
  target_link_libraries(inside_\${kind} PRIVATE deeppcr::\${kind})
endforeach()
EOF
quietly "does not configure in another project" cmake -S "$folder/inside" -B "$folder/inside/b" -G Ninja
for kind in deeppcr static; do
    quietly "another project does not find the headers of deeppcr::$kind" \
        ninja -C "$folder/inside/b" "CMakeFiles/inside_$kind.dir/linear_chain.c.o"
done

page=$prefix/share/man/man1/deeppcr.1
quietly "man page is not in order" mandoc -T lint -W warning,stop "$page"
mandoc -T ascii "$page" | grep -q 'deeppcr' || fail "man page is empty"
echo "install: headers, shared and static library, pkg-config, CMake package, man page"
