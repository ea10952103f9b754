#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install.sh BUILD_DIR: installs into a folder of its own, moves it, and builds and runs examples against it: by
# pkg-config with the shared and with the static library, by CMake's find_package, and in another project. Checks the
# man page, and what the examples say to wrong arguments; takes an installation away again.
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
    "$library/cmake/deeppcr/deeppcrConfig.cmake" "$prefix/include/deeppcr/deeppcr.h" "$prefix/share/man/man1/deeppcr.1" "$prefix/share/doc/deeppcr/LICENSE"; do
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

# The command that README.md gives, as it stands there.
command=$(sed -n 's/^From C, with `\(cc program\.c [^`]*\)`.*/\1/p' README.md)
[ -n "$command" ] || fail "README.md gives no command for C"
for name in linear_chain custom_steps; do
    cp "examples/$name.c" "$folder/program.c"
    quietly "$name does not build with README.md's $command" env -C "$folder" bash -c "$command"
    quietly "$name, built with README.md's command, fails" env LD_LIBRARY_PATH="$library" "$folder/a.out"
done

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

# The examples that take arguments: what is wrong is told, and a path is no text for a shell or for gnuplot.
told() {  # status, text, command...
    local status=$1 text=$2 got
    shift 2
    "$@" >/dev/null 2>"$folder/log"
    got=$?
    [ $got -eq "$status" ] || { cat "$folder/log"; fail "'$*' exits with $got, wanted $status"; }
    grep -qF -e "$text" "$folder/log" || { cat "$folder/log"; fail "'$*' does not tell: $text"; }
}
if [ -x "$folder/cmake-shared/clipper" ]; then
    printf 'RIFF\50\0\0\0WAVEfmt \20\0\0\0\1\0\1\0\0\356\2\0\0\356\2\0\1\0\10\0data\3\0\0\0\200\200\200\0' >"$folder/short.wav"
    mkdir "$folder/pictures"
    for name in clipper ladder; do
        example=$folder/cmake-shared/$name
        for wrong in x nan -1 1e300 "" 1s; do told 2 "-t '$wrong': wanted a number from 0 to 86400" "$example" -t "$wrong" "$folder/tone.wav"; done
        told 1 "cannot be read" "$example" "$folder/none.wav"
        told 1 "is not drawn" "$example" -t 0.1 -p "$folder/none/x.png" "$folder/tone.wav"
        told 1 "is not drawn" env PATH="$folder/none" "$example" -t 0.1 -p "$folder/pictures/x.png" "$folder/tone.wav"
        # shellcheck disable=SC2016
        quietly "$name has no picture" bash -c 'cd "$1" && "$2" -t 0.1 -p "$3" ../tone.wav' - "$folder/pictures" "$example" "|it's \$(>a) \"b\".png"
        quietly "$name does not take one sample" "$example" -t 0.00001 "$folder/tone.wav"
    done
    told 1 "not one sample at 48000 Hz" "$folder/cmake-shared/clipper" "$folder/short.wav"
    told 2 "-f '30000': wanted a number from 1 to 24000" "$folder/cmake-shared/ladder" -f 30000
    told 2 "-d 'inf': wanted a number from 0 to 1000" "$folder/cmake-shared/clipper" -d inf
    [ "$(ls "$folder/pictures")" = "|it's \$(>a) \"b\".png" ] || fail "pictures beside the one that was named: $(ls "$folder/pictures")"
fi

# As a part of another project: the same two targets, its sources find the headers, and neither the program nor a target takes
# a name of its own. The library itself is not built.
mkdir "$folder/inside"
cp examples/linear_chain.c "$folder/inside"
cat >"$folder/inside/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(inside LANGUAGES C)
set(DEEPPCR_CUDA off)
add_custom_target(product)
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
quietly "the program of another project's part is not in that part's folder" ninja -C "$folder/inside/b" -t query deeppcr/deeppcr
told 1 "DEEPPCR_CUDA is 'junk', wanted auto, on or off" cmake -DDEEPPCR_CUDA=junk -P cmake/cuda.cmake

# Taken away again, what others put there apart.
quietly "cmake --install failed" cmake --install "$build" --prefix "$folder/gone again"
echo other >"$folder/gone again/include/other.h"
quietly "cannot be uninstalled" scripts/uninstall "$build" "$folder/gone again"
left=$(find "$folder/gone again" ! -type d -o -name deeppcr)
[ "$left" = "$folder/gone again/include/other.h" ] || fail "uninstall leaves $left"
told 4 "no file of deeppcr in" scripts/uninstall "$build" "$folder/gone again"
told 4 "no build in" scripts/uninstall "$folder" "$folder/gone again"

page=$prefix/share/man/man1/deeppcr.1
quietly "man page is not in order" mandoc -T lint -W warning,stop "$page"
mandoc -T ascii "$page" | grep -q 'deeppcr' || fail "man page is empty"
echo "install: headers, shared and static library, pkg-config, CMake package, examples, man page; and away again"
