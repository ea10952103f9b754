#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tree itself: licence, SPDX line in every source, no path of somebody's machine, no tabs, no file too long.
set -u
failed=0
complain() {  # text, list
    [ -z "$2" ] && return
    printf 'repo_hygiene: %s:\n%s\n' "$1" "$2"
    failed=1
}

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    # Tracked files, and new ones that are not ignored.
    mapfile -t files < <(git ls-files -co --exclude-standard | while read -r f; do [ -f "$f" ] && printf '%s\n' "$f"; done | sort)
else
    mapfile -t files < <(find . -type f ! -path './build*' ! -path './out/*' ! -path './.git/*' ! -path '*/.venv/*' \
        ! -path '*/__pycache__/*' | sed 's,^\./,,' | sort)
fi
[ "${#files[@]}" -gt 0 ] || { echo "repo_hygiene: no files found"; exit 1; }

mapfile -t texts < <(grep -lI '' "${files[@]}" | grep -vE '^tests/(fixtures|fuzz/corpus)/')
mapfile -t sources < <(printf '%s\n' "${texts[@]}" |
    grep -E '\.(c|h|inc|def|cu|cpp|py|sh|cmake|gp|awk|jq|css)$|(^|/)(CMakeLists\.txt|Makefile)$|^scripts/[a-z-]+$|^\.ci/run$')

complain "no SPDX line among the first three" \
    "$(for f in "${sources[@]}"; do head -n 3 "$f" | grep -q 'SPDX-License-Identifier: MIT' || echo "$f"; done)"
complain "licence missing" "$(grep -qs '^MIT License' LICENSE || echo LICENSE)"
complain "over 800 lines" \
    "$(printf '%s\n' "${sources[@]}" | grep -E '^(src|cli|include)/' | while read -r f; do
        n=$(wc -l <"$f"); [ "$n" -le 800 ] || echo "$f: $n"; done)"
# The brackets keep this file from finding itself.
complain "path of one machine" \
    "$(grep -nE '(^|[^A-Za-z0-9_.$}/-])/(wor[k]|roo[t]|hom[e]|tm[p]|Users)/[A-Za-z0-9_.]' "${texts[@]}" | cut -c1-160)"
complain "tab" "$(printf '%s\n' "${sources[@]}" | grep -vE '(^|/)Makefile$' | xargs -r grep -nP '\t' | cut -c1-120)"
complain "space at the end of a line" "$(grep -nE '[[:blank:]]+$' "${sources[@]}" | cut -c1-120)"
complain "no newline at the end" "$(for f in "${sources[@]}"; do [ -z "$(tail -c 1 "$f")" ] || echo "$f"; done)"
complain "merge marker" "$(grep -nE '^(<<<<<<<|>>>>>>>) ' "${texts[@]}" | cut -c1-120)"
complain "code switched off" "$(grep -nE '^[[:space:]]*#[[:space:]]*if 0' "${sources[@]}")"
complain "over 1 MiB" "$(for f in "${files[@]}"; do [ "$(stat -c %s "$f")" -le 1048576 ] || echo "$f"; done)"
complain "not executable" "$(for f in .ci/run scripts/install-deps scripts/lint scripts/report scripts/run scripts/test scripts/variant \
    $(grep -lE '^#!' bench/*.py bench/*.sh bench/*/*.py bench/*/*.sh); do
    [ -x "$f" ] || echo "$f"; done)"
[ $failed -ne 0 ] || echo "repo_hygiene: ${#files[@]} files"
exit $failed
