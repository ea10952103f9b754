#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# docs_math.sh BUILD_DIR: runs every python program in docs/math/*.md (one line each) and refuses one without an assertion,
# a page that names a source file or links to a page that is not there, and a source that points to such a page.
set -u
build=${1:?usage: docs_math.sh BUILD_DIR}
command -v python3 >/dev/null || { echo "docs_math: skipped: no python3"; exit 77; }
[ -d docs/math ] || { echo "docs_math: no docs/math here: run it in the source folder"; exit 1; }
work=$(mktemp -d "$build/docs_math.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
    printf 'docs_math: %s\n' "$*"
    failed=1
}

# Each block to a file of its own, PAGE.LINE.py with the line of its fence; blank lines in front keep the page's line numbers.
for page in docs/math/*.md; do
    awk -v out="$work/$(basename "$page" .md)" '
        /^```/ && open { open = 0; close(file); next }
        /^```/ {
            open = 1
            file = $0 == "```python" ? sprintf("%s.%04d.py", out, NR) : "/dev/null"
            for (i = 1; i <= NR; i++) print "" >file
            next
        }
        open { print >file }
        END { exit open }' "$page" || complain "$page: a block is not closed"
    case $page in
        */README.md) ;;
        *) grep -q '^```python$' "$page" || complain "$page: no program" ;;
    esac
done

blocks=0
for program in "$work"/*.py; do
    [ -f "$program" ] || continue
    name=$(basename "$program" .py)
    at="docs/math/${name%.*}.md:$((10#${name##*.}))"
    blocks=$((blocks + 1))
    grep -q '^ *assert ' "$program" || complain "$at: no assertion"
    if timeout 120 python3 -I "$program" >"$work/log" 2>&1; then
        printf '%s: %d assertions hold\n' "$at" "$(grep -c '^ *assert ' "$program")"
    else
        complain "$at: $(tail -n 1 "$work/log")"
        tail -n 6 "$work/log"
    fi
done
[ "$blocks" -gt 0 ] || complain "no program found"

while read -r file; do
    [ -f "$file" ] || complain "$(grep -lF "$file" docs/math/*.md | head -n 1) names $file, which does not exist"
done < <(grep -ohE '\b(src|include|cli|tests|examples|scripts|docs|bench|python)/[A-Za-z0-9_/.-]+\.(c|h|inc|def|sh|py|md)\b' docs/math/*.md | sort -u)
while read -r page; do
    [ -f "docs/math/$page" ] || complain "a page links to $page, which does not exist"
done < <(grep -ohE '\]\([A-Za-z0-9_-]+\.md' docs/math/*.md | sed 's/^](//' | sort -u)
while read -r page; do
    [ -f "$page" ] || complain "$(grep -rlF "$page" src include cli docs README.md | head -n 1) points to $page, which does not exist"
done < <(grep -rohE 'docs/math/[a-z-]+\.md' src include cli docs README.md | sort -u)
[ $failed -ne 0 ] || echo "docs_math: $blocks programs, all assertions hold"
exit $failed
