#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Instructions a step of the hot paths, against tests/fixtures/instructions.csv: a slow-down is seen without a clock.
# callgrind counts the portable and the AVX2 level; AVX-512, which it does not know, is judged by the loop bodies in the
# disassembly (instructions.py). Counts may exceed the table by 3 %. `instructions.sh BUILD --update` writes the table anew.
set -u
build=$1
table=tests/fixtures/instructions.csv
command -v valgrind >/dev/null || { echo "skipped: no valgrind"; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: the table is for x86-64"; exit 77; }
compiler=$("$build/instructions" compiler)
wanted=$(sed -n 's/^# compiler: //p' "$table" 2>/dev/null)
if [ "${2:-}" != --update ] && [ "$compiler" != "$wanted" ]; then
    echo "skipped: built by '$compiler', the table is for '$wanted'"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for level in portable avx2; do
    if [ $level = avx2 ] && ! grep -qw avx2 /proc/cpuinfo; then continue; fi
    # A file for each call of `measured`, in their order; the last one is of what comes behind them all.
    # shellcheck disable=SC2046 # a name is one word
    DEEPPCR_ISA=$level valgrind --tool=callgrind --toggle-collect=measured --dump-after=measured \
        --callgrind-out-file="$work/$level" "$build/instructions" $("$build/instructions" list) >"$work/out" 2>"$work/err" ||
        { cat "$work/err" >&2; exit 1; }
    call=0
    while IFS=, read -r case steps; do
        call=$((call + 1))
        echo "$case,$level,$(sed -n 's/^totals: //p' "$work/$level.$call"),$steps"
    done <"$work/out"
done >"$work/counts"
python3 tests/instructions.py "$build" "$table" "$work/counts" "$compiler" "${2:-}"
