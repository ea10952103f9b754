# SPDX-License-Identifier: MIT
"""instructions.py BUILD TABLE COUNTS COMPILER [--update]: compares counted instructions and the loop bodies of the AVX-512
kernels with a table, or writes it.

Rows of COUNTS: case,level,instructions,steps. Rows of the table: case,level,instructions a step; for the disassembly
case is a kernel's symbol, level is avx512, and the figure is the instructions of its innermost loops together with, as
a fourth column, how many of them touch the stack (spilled registers)."""
import csv
import re
import subprocess
import sys

MORE = 1.03  # of the table: what counts as a slow-down
LESS = 0.90  # below it the table is out of date, which is said but is no failure


def innermost_loops(lines):
    """Instruction counts and stack accesses of the innermost loops of one function, from its disassembly."""
    place = {line[0]: i for i, line in enumerate(lines)}
    jumps = [(place[int(m.group(1), 16)], i) for i, (_, text) in enumerate(lines)
             if (m := re.match(r"j\w+\s+([0-9a-f]+)", text)) and int(m.group(1), 16) in place
             and place[int(m.group(1), 16)] <= i]
    inner = [(a, b) for a, b in jumps if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in jumps)]
    count = sum(b - a + 1 for a, b in inner)
    stack = sum(1 for a, b in inner for _, text in lines[a:b + 1] if re.search(r"zmm.*\(%rsp|\(%rsp.*zmm", text))
    return count, stack


def disassembly(build):
    """{symbol: (instructions in innermost loops, stack accesses there)} of the functions that use zmm registers."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"{build}/libdeeppcr.a"], check=True,
                          capture_output=True, text=True).stdout
    found, lines, name, source = {}, [], None, ""
    for line in text.splitlines() + ["end:"]:
        member = re.match(r"(\S+\.o):\s+file format", line)
        head = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if member or head or line == "end:":
            if name and any("zmm" in text for _, text in lines):
                found[name] = innermost_loops(lines)
            source = member.group(1).split(".")[0] if member else source
            name, lines = (f"{source}:{head.group(1)}", []) if head and source.endswith("avx512") else (None, [])
        elif name and (m := re.match(r"\s*([0-9a-f]+):\t(.*)", line)):
            lines.append((int(m.group(1), 16), m.group(2).strip()))
    return {name: value for name, value in found.items() if value[0] > 0}


def main():
    build, table, counts, compiler, update = (sys.argv[1:] + [""])[:5]
    rows = [(case, level, f"{int(count) / int(steps):.2f}", "") for case, level, count, steps in csv.reader(open(counts))]
    rows += [(name, "avx512", str(count), str(stack)) for name, (count, stack) in sorted(disassembly(build).items())]
    judged = any(level == "avx512" for _, level, _, _ in rows)
    if not judged:
        print("AVX-512 is not judged: this build has none")
        if update == "--update":
            print("the table wants a build of all levels", file=sys.stderr)
            return 1
    if update == "--update":
        with open(table, "w") as out:
            out.write(f"# compiler: {compiler}\n# tests/instructions.sh BUILD --update\ncase,level,instructions,stack\n")
            out.writelines(",".join(row) + "\n" for row in rows)
        return 0
    known = {(row[0], row[1]): row for row in csv.reader(line for line in open(table) if not line.startswith("#"))}
    bad = 0
    for case, level, count, stack in rows:
        row = known.get((case, level))
        if row is None:
            if level != "avx512":
                print(f"{case} ({level}) is not in the table: {count} instructions a step", file=sys.stderr)
                bad += 1
            continue
        if float(count) > MORE * float(row[2]) + 0.5:
            print(f"{case} ({level}): {count} instructions, the table has {row[2]}", file=sys.stderr)
            bad += 1
        if stack and int(stack) > int(row[3]) + 2:
            print(f"{case} ({level}): {stack} vectors spilled in its loops, the table has {row[3]}", file=sys.stderr)
            bad += 1
        if float(count) < LESS * float(row[2]):
            print(f"note: {case} ({level}): {count} instructions, the table has {row[2]}: out of date")
    # A function may come and go by what the compiler inlines; a file of kernels without any row is one nobody looks at.
    looked_at = {case.split(":")[0] for case, level in known if level == "avx512"}
    for source in sorted({case.split(":")[0] for case, level, _, _ in rows if level == "avx512"} - looked_at):
        print(f"{source} has no rows in the table", file=sys.stderr)
        bad += 1
    gone = [key for key in known if key != ("case", "level") and key not in {(row[0], row[1]) for row in rows}]
    for case, level in gone:
        if level == "avx512" and not judged:
            continue
        print(f"note: {case} ({level}) is in the table only")
    print(f"{len(rows)} counts, {bad} worse than the table; tests/instructions.sh BUILD --update writes it anew")
    return 1 if bad else 0


sys.exit(main())
