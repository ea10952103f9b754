#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# links.sh BUILD_DIR: links between the pages, and pages that sources name, lead somewhere (scripts/links.py, which finds what does not).
set -u
build=${1:?usage: links.sh BUILD_DIR}
command -v python3 >/dev/null || { echo "links: skipped: no python3"; exit 77; }
python3 scripts/links.py || exit 1

# Each line of a page that the script must find fault with, alone, and one of a source; then one page that is right.
work=$(mktemp -d "$build/links.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/docs"
none=docs/none  # so that this file names no such page
right='# One `two`: three
## Again
## Again
[a](docs) ![b](b.png) [c](#one-two-three) [d](page.md#again-1) [`e`](https://example.org/none) `[f](none)`'
: >"$work/b.png"
refused() {  # what, file, text
    printf '%s\n' "$right" >"$work/page.md"
    printf '%s\n' "$3" >>"$work/$2"
    python3 scripts/links.py "$work" >"$work/told.log" 2>&1 && { echo "links: not found: $1"; exit 1; }
    [ "$2" = page.md ] || rm "$work/$2"
}
refused "a page that is not there" page.md '[x](none.md)'
refused "a picture that is not there" page.md 'words ![x](docs/none.png)'
refused "a heading that is not there" page.md '[x](#again-2)'
refused "another page's heading that is not there" page.md '[x](page.md#one-two)'
refused "a link that opens a line of code" page.md '`x` and [x](none.md)'
refused "a link over two lines" page.md '[x
y](none.md)'
refused "a heading that is a line of code" page.md '```
# no heading
```
[x](#no-heading)'
refused "a page that a page names" page.md "see $none.md"
refused "a page that a source names" source.c "// ../$none.md"
printf '%s\n' "$right" '```' '[x](none.md)' '```' >"$work/page.md"
python3 scripts/links.py "$work" || exit 1
echo "links: faults are found"
