#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""links.py [FOLDER]: every relative link of FOLDER's .md files leads to a file or folder that is there and, where it names a heading, to
that heading; every docs/PAGE.md, or docs/PAGE.md#HEADING, that any text of the tree names is there too. One line a fault, exit status 1."""
import os
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
TEXTS = {".md", ".c", ".h", ".inc", ".def", ".cu", ".cpp", ".py", ".sh", ".bash", ".cmake", ".txt", ".toml", ".1", ""}
LINK = re.compile(r"\[[^\][]*\]\(([^()\s]+)\)")
NAMED = re.compile(r"(?<![\w/.-])(?:\.\./)*(docs/[a-z0-9/-]+\.md)(#[\w-]+)?")  # others' pages have capitals


def texts():
    """What git keeps, or where there is none what looks like it."""
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if kept.returncode == 0 and kept.stdout:
        yield from (root / name for name in kept.stdout.split("\0") if name and pathlib.Path(name).suffix in TEXTS)
        return
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f == ".ci" or not f.startswith((".", "build", "__pycache__"))]
        if pathlib.Path(folder) == root:
            folders[:] = [f for f in folders if f != "out"]
        yield from (pathlib.Path(folder) / n for n in names if pathlib.Path(n).suffix in TEXTS)


def prose(lines):
    """The lines, those of fenced blocks empty."""
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        yield "" if fenced or fence else line


def headings(path, seen={}):  # noqa: B006 (kept from call to call)
    """The anchors that GitHub gives a page's headings."""
    if path not in seen:
        seen[path], count = set(), {}
        for line in prose(path.read_text(encoding="utf-8").splitlines()):
            if match := re.match(r"#{1,6} +(.*?)[ #]*$", line):
                title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
                slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
                count[slug] = count.get(slug, -1) + 1
                seen[path].add(f"{slug}-{count[slug]}" if count[slug] else slug)
    return seen[path]


def fault(page, heading):
    if not page.exists():
        return "is not there"
    if heading and page.suffix == ".md" and heading not in headings(page):
        return "has no such heading"
    return None


faults, links = [], 0
for path in sorted(texts()):
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        continue
    found = [(number, m[1] + (m[2] or ""), root) for number, line in enumerate(lines, 1) for m in NAMED.finditer(line)]
    if path.suffix == ".md":
        text = re.sub(r"`[^`\n]*`", "``", "\n".join(prose(lines)))  # code opens no link; a link's words may go on in the next line
        found += [(text.count("\n", 0, m.end()) + 1, m[1], path.parent) for m in LINK.finditer(text) if not re.match(r"[a-z]+:", m[1])]
    links += len(found)
    for number, target, base in found:
        page, _, heading = target.partition("#")
        why = fault((base / page).resolve() if page else path, heading)
        if why:
            faults.append(f"{path.relative_to(root)}:{number}: {target} {why}")
for line in faults:
    print(line)
if faults or not links:
    sys.exit(f"links: {len(faults)} of {links} lead nowhere")
print(f"links: all {links} lead somewhere")
