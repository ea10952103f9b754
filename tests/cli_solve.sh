#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_solve.sh BUILD_DIR: 'deeppcr solve linear' against a loop in Python on every structure, scheme and dtype; values by
# hand; NaN; npz in and out; standard input and output; files that do not fit.
set -u
build=$(cd "${1:?usage: cli_solve.sh BUILD_DIR}" && pwd) || exit 1
program=$build/deeppcr
[ -x "$program" ] || { echo "cli_solve: no program at $program"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 - "$program" "$folder" <<'PYTHON'
import io, json, math, os, random, struct, subprocess, sys, zipfile

program, folder = sys.argv[1:]
random.seed(7)


def path(name):
    return os.path.join(folder, name)


def npy(shape, values, dtype):
    head = "{'descr': '<f%d', 'fortran_order': False, 'shape': (%s), }" % (dtype, "".join("%d," % n for n in shape))
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), "fd"[dtype == 8]), *values)


def read(data):
    length = struct.unpack("<H", data[8:10])[0]
    head = eval(data[10:10 + length].decode())
    assert head["descr"] in ("<f4", "<f8") and not head["fortran_order"], head
    size = int(head["descr"][2])
    body = data[10 + length:]
    return head["shape"], size, struct.unpack("<%d%s" % (len(body) // size, "fd"[size == 8]), body)


def put(name, shape, values, dtype):
    with open(path(name), "wb") as file:
        file.write(npy(shape, values, dtype))
    return path(name)


def run(*arguments, data=None, wanted=0):
    done = subprocess.run([program, "solve", "linear"] + list(arguments), input=data, capture_output=True)
    assert done.returncode == wanted, (arguments, done.returncode, done.stderr)
    if wanted:
        assert done.stdout == b"" and done.stderr.count(b"\n") == 1, (arguments, done)
        return done.stderr.decode()
    assert done.stderr == b"", done.stderr
    return done.stdout


def solve(*arguments):
    told = json.loads(run(*arguments, "--output", path("z.npy"), "--json"))
    with open(path("z.npy"), "rb") as file:
        return told, read(file.read())


def noise(n):
    return [random.uniform(-1, 1) for _ in range(n)]


def dense(structure, values, w, k):
    """One step's matrix from its stored values."""
    m = [[0.0] * w for _ in range(w)]
    for i in range(w):
        for j in range(w):
            if structure == "dense":
                m[i][j] = values[i * w + j]
            elif structure == "block" and i // k == j // k:
                m[i][j] = values[i // k * k * k + i % k * k + j % k]
            elif i == j and structure in ("diagonal", "scalar"):
                m[i][j] = values[i if structure == "diagonal" else 0]
    return m


def loop(structure, a, b, z0, length, batch, a_batch, w, k, values, transposed):
    """The definition, in double, one sequence after the other."""
    z = [0.0] * (length * batch * w)
    for s in range(batch):
        state = list(z0[s * w:(s + 1) * w])
        for step in reversed(range(length)) if transposed else range(length):
            at = step + 1 if transposed else step
            if at < length:
                lane = (at * a_batch + s % a_batch) * values
                m = dense(structure, a[lane:lane + values], w, k)
                state = [sum((m[j][i] if transposed else m[i][j]) * state[j] for j in range(w)) for i in range(w)]
            else:
                state = [0.0] * w
            state = [x + y for x, y in zip(state, b[(step * batch + s) * w:(step * batch + s + 1) * w])]
            z[(step * batch + s) * w:(step * batch + s + 1) * w] = state
    return z


def single(x):
    return list(struct.unpack("<%df" % len(x), struct.pack("<%df" % len(x), *x)))


# By hand: S = 2, 3, 5, 7 and D = 1 give 1, 4, 21, 148.
schemes = ["auto", "sequential", "pcr", "blelloch", "chunked", "overlap"]
a, b = put("a.npy", (4, 1), [2, 3, 5, 7], 8), put("b.npy", (4, 1, 1), [1, 1, 1, 1], 8)
for scheme in schemes:
    told, (shape, size, z) = solve("--A", a, "--b", b, "--scheme", scheme)
    assert shape == (4, 1, 1) and size == 8 and z == (1, 4, 21, 148), (scheme, z)
    assert (told["length"], told["batch"], told["width"], told["structure"]) == (4, 1, 1, "scalar"), told
    for key in ("scheme", "sweeps", "compositions", "applications", "depth", "seconds", "sentence"):
        assert key in told, key
    # transposed: z_3 = 1, z_2 = 7 + 1, z_1 = 5 8 + 1, z_0 = 3 41 + 1
    assert solve("--A", a, "--b", b, "--scheme", scheme, "--transposed")[1][2] == (124, 41, 8, 1), scheme
    assert solve("--A", a, "--b", b, "--scheme", scheme, "--z0", put("s.npy", (1,), [10], 8))[1][2] == (21, 64, 321, 2248)

# Every structure, scheme and dtype; shared transitions too.
cases = 0
for structure, w, k in (("scalar", 3, 0), ("diagonal", 3, 0), ("dense", 1, 0), ("dense", 3, 0), ("dense", 16, 0), ("block", 6, 2), ("block", 6, 3)):
    for dtype in (4, 8):
        for length, batch, a_batch in ((1, 1, 1), (2, 3, 3), (37, 2, 1), (100, 3, 3)):
            if w == 16 and length > 40:
                continue
            tail = {"scalar": (), "diagonal": (w,), "dense": (w, w), "block": (w // max(k, 1), k, k)}[structure]
            values = math.prod(tail)
            scale = 0.9 / {"dense": w, "block": max(k, 1)}.get(structure, 1)
            a_values = [scale * x for x in noise(length * a_batch * values)]
            b_values, start = noise(length * batch * w), noise(batch * w)
            if dtype == 4:
                a_values, b_values, start = single(a_values), single(b_values), single(start)
            a = put("a.npy", (length, a_batch) + tail, a_values, dtype)
            b = put("b.npy", (length, batch, w), b_values, dtype)
            s = put("s.npy", (batch, w), start, dtype)
            for transposed in (False, True):
                wanted = loop(structure, a_values, b_values, [0.0] * len(start) if transposed else start, length, batch, a_batch, w, k, values, transposed)
                for scheme in schemes if length > 2 else schemes[:3]:
                    extra = ["--transposed"] if transposed else ["--z0", s]
                    told, (shape, size, z) = solve("--A", a, "--b", b, "--scheme", scheme, *extra)
                    assert shape == (length, batch, w) and size == dtype and told["structure"] == structure, (told, shape)
                    error = max(abs(x - y) for x, y in zip(z, wanted))
                    assert error < (2e-5 if dtype == 4 else 1e-12), (structure, w, k, dtype, length, scheme, transposed, error)
                    cases += 1

# A NaN stays in its sequence, on the steps after it.
length, batch, w = 20, 3, 2
a_values, b_values = [0.3 * x for x in noise(length * batch * w * w)], noise(length * batch * w)
b = put("b.npy", (length, batch, w), b_values, 8)
a = put("a.npy", (length, batch, w, w), a_values, 8)
for scheme in schemes:
    clean = solve("--A", a, "--b", b, "--scheme", scheme)[1][2]
    for which in ("b", "A"):
        dirty = list(b_values if which == "b" else a_values)
        dirty[(7 * batch + 1) * w * (1 if which == "b" else w)] = math.nan
        files = ["--A", a, "--b", b]
        files[1 if which == "A" else 3] = put("dirty.npy", (length, batch, w) + ((w,) if which == "A" else ()), dirty, 8)
        z = solve(*files, "--scheme", scheme)[1][2]
        for i, (x, y) in enumerate(zip(z, clean)):
            step, sequence = i // (batch * w), i // w % batch
            if sequence != 1 or step < 7:
                assert x == y, (scheme, which, step, sequence, x, y)
        assert any(math.isnan(z[i]) for i in range((7 * batch + 1) * w, (7 * batch + 2) * w)), (scheme, which)

# npz: in, members, out; standard input and output.
with zipfile.ZipFile(path("in.npz"), "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("A.npy", npy((4, 1), [2, 3, 5, 7], 4))
    archive.writestr("b.npy", npy((4, 1, 1), [1, 1, 1, 1], 4))
    archive.writestr("start.npy", npy((1, 1), [10], 4))
assert solve("--input", path("in.npz"))[1][2] == (1, 4, 21, 148)
members = ["--A", path("in.npz:A"), "--b", path("in.npz:b"), "--z0", path("in.npz:start")]
assert solve(*members)[1][2] == (21, 64, 321, 2248)
run(*members, "--output", path("z.npz"))
with zipfile.ZipFile(path("z.npz")) as archive:
    assert archive.namelist() == ["z.npy"] and archive.testzip() is None
    assert read(archive.read("z.npy"))[2] == (21, 64, 321, 2248)
a, b = put("a.npy", (4, 1), [2, 3, 5, 7], 8), put("b.npy", (4, 1, 1), [1, 1, 1, 1], 8)
assert read(run("--A", a, "--b", "-", "--output", "-", data=npy((4, 1, 1), [1, 1, 1, 1], 8)))[2] == (1, 4, 21, 148)
assert b"scalar" in run("--A", a, "--b", b, "--output", path("z.npy"))
# No steps at all.
assert solve("--A", put("a0.npy", (0, 2, 3), [], 8), "--b", put("b0.npy", (0, 2, 3), [], 8))[1][0] == (0, 2, 3)

# What does not fit is told, and nothing is written.
os.remove(path("z.npy"))
out = ["--output", path("z.npy")]
wide = put("wide.npy", (4, 1, 2), [0] * 8, 8)
for files, wanted, text in (
        (["--A", wide, "--b", b], 5, "shape [4][1][2]"),
        (["--A", put("x1.npy", (3, 1), [0] * 3, 8), "--b", b], 5, "shape [3][1]"),
        (["--A", put("x2.npy", (4, 2), [0] * 8, 8), "--b", b], 5, "shape [4][2]"),
        (["--A", put("x3.npy", (4,), [0] * 4, 8), "--b", b], 5, "shape [4]"),
        (["--A", put("x4.npy", (4, 1, 1, 1, 2), [0] * 8, 8), "--b", b], 5, "shape [4][1][1][1][2]"),
        (["--A", a, "--b", a], 5, "b has shape [4][1]"),
        (["--A", put("x5.npy", (4, 1), [0] * 4, 4), "--b", b], 5, "A is float32 and b is float64"),
        (["--A", a, "--b", b, "--z0", wide], 5, "z0 has shape"),
        (["--A", a, "--b", b, "--z0", put("x6.npy", (1, 1), [0], 4)], 5, "z0 is float32"),
        (["--A", a, "--b", b, "--z0", b, "--transposed"], 2, "--transposed"),
        (["--A", a, "--b", "-"], 5, ""),
        (["--A", path("in.npz:nothing"), "--b", b], 5, "no member 'nothing'"),
        (["--input", path("z.npz")], 5, "no array 'A'"),
        (["--input", path("in.npz"), "--A", a], 2, "--input"),
        (["--A", a, "--b", b, "--scheme", "pcr", "--memory-limit", "1"], 4, "limit")):
    told = run(*files, *out, wanted=wanted, data=b"")
    assert text in told, (files, told)
    assert not os.path.exists(path("z.npy")), files
whole = npy((4, 1, 1), [1, 1, 1, 1], 8)
for cut in list(range(0, len(whole), 9)) + [len(whole) - 1]:
    with open(path("cut.npy"), "wb") as file:
        file.write(whole[:cut])
    run("--A", a, "--b", path("cut.npy"), *out, wanted=5)
left = [name for name in os.listdir(folder) if "tmp" in name or name.startswith("z.npy")]
assert not left, left
print("cli_solve: %d solves of every structure, scheme and dtype" % cases)
PYTHON
