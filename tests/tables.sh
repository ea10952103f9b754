#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tables.sh BUILD_DIR: the tables of docs/performance.md and docs/performance/ are what the files of bench/results/ say,
# every file of bench/results/performance/ is in a page, docs/performance/gpu.md is what those of bench/results/gpu/ say
# and shows its pictures, every one of bench/results/ is in the repository, and a figure changed by hand is found.
set -u
build=${1:?usage: tables.sh BUILD_DIR}
command -v python3 >/dev/null || { echo "tables: skipped: no python3"; exit 77; }
work=$(mktemp -d "$build/tables.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
    printf 'tables: %s\n' "$*"
    failed=1
}
pages=(docs/performance.md docs/performance/*.md)
cp "${pages[@]}" "$work"
copies=("$work"/*.md)
write() { PYTHONDONTWRITEBYTECODE=1 python3 bench/performance_table.py bench/results/performance "${copies[@]}"; }
told=$(write) || complain "bench/performance_table.py failed"
case $told in *"as they were"*) complain "tables without a file: $told" ;; esac
python3 bench/gpu/table.py bench/results/gpu "$work/gpu.md" || complain "bench/gpu/table.py failed"
for page in "${pages[@]}"; do
    cmp -s "$page" "$work/${page##*/}" ||
        complain "$page is not what bench/performance.sh --render-only, or bench/gpu/table.py, writes: $(diff "$page" "$work/${page##*/}" | sed -n '2p' | cut -c1-160)"
done
for file in bench/results/performance/*; do
    name=${file##*/}
    grep -qE "<!-- table: ${name%.*}( |-->)|bench/results/performance/$name" "${pages[@]}" || complain "$file is in no page"
done
for picture in bench/results/gpu/*.png; do
    grep -q "](../../$picture)" docs/performance/gpu.md || complain "$picture is not on docs/performance/gpu.md"
done
cp -r bench/results/gpu "$work/without"
rm "$work/without/training.csv"
cp docs/performance/gpu.md "$work/kept.md"
told_of=$(python3 bench/gpu/table.py "$work/without" "$work/kept.md" 2>&1) && complain "a missing table is no failure"
[[ $told_of == *"no rows of: training" ]] || complain "of a missing table bench/gpu/table.py said: $told_of"
cmp -s docs/performance/gpu.md "$work/kept.md" || complain "a table whose rows are missing is written"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    while read -r file; do complain "$file is not in the repository: a table of it would be missing from a clone"; done < <(
        git ls-files --others bench/results
    )
fi
cp "$work/linear.md" "$work/right"
sed -i '0,/^| 1 | 2^12 | 1 | [0-9]/s//&9/' "$work/linear.md"
cmp -s "$work/right" "$work/linear.md" && complain "no figure to change in linear.md"
write >/dev/null
cmp -s "$work/right" "$work/linear.md" || complain "a figure that was changed by hand stays"
[ $failed -ne 0 ] || echo "tables: $told"
exit $failed
