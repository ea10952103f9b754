#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# headers.sh BUILD_DIR: every public header compiles alone as C17 and as C++17 with warnings as errors, twice in a row,
# and includes nothing of ours but public headers.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0
count=0
# A copy of the public headers alone: a private one cannot be reached from it.
mkdir "$folder/include"
cp -R include/deeppcr "$folder/include/" || exit 1
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Werror"

compile() {  # compiler, standard, header
    printf '#include <deeppcr/%s>\n#include <deeppcr/%s>\nint deeppcr_header_compiles(void);\nint deeppcr_header_compiles(void) { return 0; }\n' \
        "$3" "$3" >"$folder/unit.${2%%[0-9]*}"
    extra=
    [ "$1" = gcc ] || extra="-x c++"
    flags=$warnings
    [ "$1" = gcc ] || flags=${warnings/-Wstrict-prototypes /}
    # shellcheck disable=SC2086
    "$1" $extra "-std=$2" $flags -I"$folder/include" -fsyntax-only "$folder/unit.${2%%[0-9]*}" || {
        echo "headers: $3 does not compile alone with $1 -std=$2"
        failed=1
    }
}

for header in include/deeppcr/*.h; do
    name=$(basename "$header")
    count=$((count + 1))
    compile gcc c17 "$name"
    compile g++ c++17 "$name"
    ours=$(gcc -std=c17 -M -I"$folder/include" -x c "$folder/include/deeppcr/$name" | tr -d '\\' | tr ' ' '\n' |
        grep -E '/(src|cli)/' || true)
    [ -z "$ours" ] || { echo "headers: $name reaches private headers: $ours"; failed=1; }
done
grep -nE '\bdpcri_|\bDPCRI_' include/deeppcr/*.h && { echo "headers: private names (dpcri_, DPCRI_) in public headers"; failed=1; }
# All at once by other compilers and newer standards.
printf '#include <deeppcr/deeppcr.h>\n' >"$folder/all.h"
for how in "g++ -std=c++20 -x c++" "clang -std=c17 -x c" "clang++ -std=c++20 -x c++"; do
    command -v "${how%% *}" >/dev/null || continue
    # shellcheck disable=SC2086
    $how ${warnings/-Wstrict-prototypes /} -I"$folder/include" -fsyntax-only "$folder/all.h" || { echo "headers: $how refuses them"; failed=1; }
done
[ "$count" -gt 0 ] || { echo "headers: no public headers found"; failed=1; }
[ $failed -ne 0 ] || echo "headers: $count compile alone as C17 and as C++17"
exit $failed
