#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_solve.sh BUILD_DIR: 'deeppcr solve linear' against a loop in Python on every structure, scheme and dtype; values by
# hand; NaN; npz in and out; standard input and output; files that do not fit.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import ctypes, math, os, random, re, shutil, signal, struct, subprocess, time, zipfile

from program import always, answer, folder, get_npy, npy, path, put, put_npy, read_npy, refused, run, words

always += ["solve", "linear"]
random.seed(7)


def solve(*arguments):
    told = answer(*arguments, "--output", path("z.npy"))
    return told, get_npy("z.npy")


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
a, b = put_npy("a.npy", (4, 1), [2, 3, 5, 7]), put_npy("b.npy", (4, 1, 1), [1, 1, 1, 1])
for scheme in schemes:
    told, (shape, z, letter) = solve("--A", a, "--b", b, "--scheme", scheme)
    assert shape == (4, 1, 1) and letter == "d" and z == (1, 4, 21, 148), (scheme, z)
    assert (told["length"], told["batch"], told["width"], told["structure"]) == (4, 1, 1, "scalar"), told
    for key in ("scheme", "sweeps", "compositions", "applications", "depth", "seconds", "sentence"):
        assert key in told, key
    # transposed: z_3 = 1, z_2 = 7 + 1, z_1 = 5 8 + 1, z_0 = 3 41 + 1
    assert solve("--A", a, "--b", b, "--scheme", scheme, "--transposed")[1][1] == (124, 41, 8, 1), scheme
    assert solve("--A", a, "--b", b, "--scheme", scheme, "--z0", put_npy("s.npy", (1,), [10]))[1][1] == (21, 64, 321, 2248)

# Every structure, scheme and dtype; shared transitions too.
cases = 0
for structure, w, k in (("scalar", 3, 0), ("diagonal", 3, 0), ("dense", 1, 0), ("dense", 3, 0), ("dense", 16, 0), ("block", 6, 2), ("block", 6, 3)):
    for dtype in "fd":
        for length, batch, a_batch in ((1, 1, 1), (2, 3, 3), (37, 2, 1), (100, 3, 3)):
            if w == 16 and length > 40:
                continue
            tail = {"scalar": (), "diagonal": (w,), "dense": (w, w), "block": (w // max(k, 1), k, k)}[structure]
            values = math.prod(tail)
            scale = 0.9 / {"dense": w, "block": max(k, 1)}.get(structure, 1)
            a_values = [scale * x for x in noise(length * a_batch * values)]
            b_values, start = noise(length * batch * w), noise(batch * w)
            if dtype == "f":
                a_values, b_values, start = single(a_values), single(b_values), single(start)
            a = put_npy("a.npy", (length, a_batch) + tail, a_values, dtype)
            b = put_npy("b.npy", (length, batch, w), b_values, dtype)
            s = put_npy("s.npy", (batch, w), start, dtype)
            for transposed in (False, True):
                wanted = loop(structure, a_values, b_values, [0.0] * len(start) if transposed else start, length, batch, a_batch, w, k, values, transposed)
                for scheme in schemes if length > 2 else schemes[:3]:
                    extra = ["--transposed"] if transposed else ["--z0", s]
                    told, (shape, z, letter) = solve("--A", a, "--b", b, "--scheme", scheme, *extra)
                    assert shape == (length, batch, w) and letter == dtype and told["structure"] == structure, (told, shape)
                    error = max(abs(x - y) for x, y in zip(z, wanted))
                    assert error < (2e-5 if dtype == "f" else 1e-12), (structure, w, k, dtype, length, scheme, transposed, error)
                    cases += 1

# A NaN stays in its sequence, on the steps after it.
length, batch, w = 20, 3, 2
a_values, b_values = [0.3 * x for x in noise(length * batch * w * w)], noise(length * batch * w)
b = put_npy("b.npy", (length, batch, w), b_values)
a = put_npy("a.npy", (length, batch, w, w), a_values)
for scheme in schemes:
    clean = solve("--A", a, "--b", b, "--scheme", scheme)[1][1]
    for which in ("b", "A"):
        dirty = list(b_values if which == "b" else a_values)
        dirty[(7 * batch + 1) * w * (1 if which == "b" else w)] = math.nan
        files = ["--A", a, "--b", b]
        files[1 if which == "A" else 3] = put_npy("dirty.npy", (length, batch, w) + ((w,) if which == "A" else ()), dirty)
        z = solve(*files, "--scheme", scheme)[1][1]
        for i, (x, y) in enumerate(zip(z, clean)):
            step, sequence = i // (batch * w), i // w % batch
            if sequence != 1 or step < 7:
                assert x == y, (scheme, which, step, sequence, x, y)
        assert any(math.isnan(z[i]) for i in range((7 * batch + 1) * w, (7 * batch + 2) * w)), (scheme, which)

# Of no sequences the estimates are numbers too.
for more in ([], [2], [2, 2]):
    none = ["--A", put_npy("a.npy", (3, 0, *more), []), "--b", put_npy("b.npy", (3, 0, 2 if more else 1), [])]
    told = answer(*none, "--output", path("z.npy"))
    assert "nan" not in told["sentence"] and "inf" not in told["sentence"] and get_npy("z.npy")[0][:2] == (3, 0), told

# npz: in, members, out; standard input and output.
with zipfile.ZipFile(path("in.npz"), "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("A.npy", npy((4, 1), [2, 3, 5, 7], "f"))
    archive.writestr("b.npy", npy((4, 1, 1), [1, 1, 1, 1], "f"))
    archive.writestr("start.npy", npy((1, 1), [10], "f"))
    archive.writestr("labels.npy", npy((1,), [10]).replace(b"<f8", b"<U2"))  # not for us, like any other file
    archive.writestr("notes.txt", "whose chain this is")
with zipfile.ZipFile(path("two.npz"), "w") as archive:
    archive.writestr("first.npy", npy((4, 1), [2, 3, 5, 7])), archive.writestr("second.npy", npy((4, 1), [1, 1, 1, 1]))
with zipfile.ZipFile(path("notes.npz"), "w") as archive:
    archive.writestr("notes.txt", "whose chain this is")
assert solve("--input", path("in.npz"))[1][1] == (1, 4, 21, 148)
shutil.copy(path("in.npz"), path("back.npz"))
with zipfile.ZipFile(path("back.npz"), "a") as archive:  # its z0 is for the way forward alone
    archive.writestr("z0.npy", npy((1, 1), [10]).replace(b"<f8", b"<U2"))
assert solve("--input", path("back.npz"), "--transposed")[1][1] == (124, 41, 8, 1)
members = ["--A", path("in.npz:A"), "--b", path("in.npz:b"), "--z0", path("in.npz:start")]
assert solve(*members)[1][1] == (21, 64, 321, 2248)
assert solve("--A", path("in.npz"), "--b", path("in.npz"))[1][1] == (1, 4, 21, 148)
run(*members, "--output", path("z.npz"))
with zipfile.ZipFile(path("z.npz")) as archive:
    assert archive.namelist() == ["z.npy"] and archive.testzip() is None
    assert read_npy(archive.read("z.npy"))[1] == (21, 64, 321, 2248)
a, b = put_npy("a.npy", (4, 1), [2, 3, 5, 7]), put_npy("b.npy", (4, 1, 1), [1, 1, 1, 1])
assert read_npy(run("--A", a, "--b", "-", "--output", "-", data=npy((4, 1, 1), [1, 1, 1, 1])))[1] == (1, 4, 21, 148)
# A named pipe whose writer waits: the program opens it once, for at a second opening the writer may be gone.
os.mkfifo(path("pipe"))
libc, opened, left = ctypes.CDLL(None), 0x20, 0x10  # of inotify(7): IN_OPEN, so that what is left twice is told twice; IN_CLOSE_NOWRITE
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, path("pipe").encode(), opened | left) >= 0
with subprocess.Popen(["sh", "-c", 'exec cat "$1" >"$2"', "sh", a, path("pipe")]):
    piped = subprocess.run(words("--A", path("pipe"), "--b", b, "--output", "-"), stdout=subprocess.PIPE, timeout=20)
assert read_npy(piped.stdout)[1] == (1, 4, 21, 148)
times = [mask for _, mask, _, _ in struct.iter_unpack("iIII", os.read(watch, 4096))].count(left)
assert times == 1, "the pipe was read %d times" % times
# One signal ends the wait for a pipe: for its other end, and for what comes through it.
for held in ("--A", path("pipe"), None), ("--A", "-", None), ("--A", path("pipe"), os.O_RDWR), ("--output", path("pipe"), None):
    option, name, other_end = held
    end = None if other_end is None else os.open(path("pipe"), other_end)
    given = [option, name] + ([] if option == "--A" else ["--A", a]) + ([] if option == "--output" else ["--output", path("z.npy")])
    waiting = subprocess.Popen(words("--b", b, *given), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(100):  # until it sleeps there, where the system tells
        time.sleep(0.02)
        with open("/proc/%d/wchan" % waiting.pid, encoding="ascii") as place:
            if re.search("pipe|fifo|wait_for_partner", place.read()):
                break
    waiting.send_signal(signal.SIGINT)
    try:
        waiting.wait(timeout=20)
    except subprocess.TimeoutExpired:
        waiting.kill()
    told = waiting.communicate()[1]
    assert (waiting.returncode, told) == (130, b"deeppcr solve: stopped as asked\n"), (held, waiting.returncode, told)
    if end is not None:
        os.close(end)
# Where a file is needed, a pipe is refused at once.
done = subprocess.run([words()[0], "eval", path("pipe")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
assert done.returncode == 5 and b"not a regular file" in done.stderr, done
assert b"scalar" in run("--A", a, "--b", b, "--output", path("z.npy"))
# No steps at all.
assert solve("--A", put_npy("a0.npy", (0, 2, 3), []), "--b", put_npy("b0.npy", (0, 2, 3), []))[1][0] == (0, 2, 3)

# csr of one pattern, as files or members, its indices of any integer type: the dense chain.
def integers(values, kind):
    return npy((len(values),), values, kind).replace(b"<f%d" % struct.calcsize(kind), b"<i%d" % struct.calcsize(kind))


w, length, batch, cases = 9, 31, 3, cases + 1
held = [(i, j) for i in range(w) for j in range(w) if i != 4 and random.random() < 0.4]
indptr, indices = [sum(i < row for i, _ in held) for row in range(w + 1)], [j for _, j in held]
p, q = put("indptr.npy", integers(indptr, "i")), put("indices.npy", integers(indices, "q"))
for dtype in "fd":
    a_values, b_values = [0.4 * x for x in noise(length * batch * len(held))], noise(length * batch * w)
    if dtype == "f":
        a_values, b_values = single(a_values), single(b_values)
    full = [0.0] * (length * batch * w * w)
    for n in range(length * batch):
        for e, (i, j) in enumerate(held):
            full[(n * w + i) * w + j] = a_values[n * len(held) + e]
    a, b = put_npy("a.npy", (length, batch, len(held)), a_values, dtype), put_npy("b.npy", (length, batch, w), b_values, dtype)
    dense_a = put_npy("full.npy", (length, batch, w, w), full, dtype)
    with zipfile.ZipFile(path("csr.npz"), "w") as archive:
        for name in ("indptr", "indices"):
            archive.write(path(name + ".npy"), name + ".npy")
        archive.write(a, "A.npy"), archive.write(b, "b.npy")
    for back in ([], ["--transposed"]):
        wanted = solve("--A", dense_a, "--b", b, "--scheme", "sequential", *back)[1]
        told, loop_states = solve("--A", a, "--b", b, "--indptr", p, "--indices", q, *back)
        assert (told["structure"], told["entries"], told["scheme"]) == ("csr", len(held), "sequential"), told
        assert loop_states[0] == wanted[0] and loop_states[2] == dtype
        assert max(abs(x - y) for x, y in zip(loop_states[1], wanted[1])) < (2e-5 if dtype == "f" else 1e-12)
        for more in (["--input", path("csr.npz")], ["--input", path("csr.npz"), "--scheme", "overlap", "--chunk", "5"]):
            assert solve(*more, *back)[1] == loop_states, more
out = ["--A", a, "--b", b, "--output", path("no.npy")]
pattern = ["--indptr", p, "--indices", q]
short = put("short.npy", integers(indptr[:-1], "i"))
swapped = put("swapped.npy", integers(indices[1::-1] + indices[2:], "q"))
halves = put_npy("halves.npy", (w + 1,), [0.5] * (w + 1))
negative = put("negative.npy", integers([-1] + indices[1:], "q"))
huge = put("huge.npy", integers([1 << 31] + indices[1:], "q"))
beyond = put("beyond.npy", integers(indices[:-1] + [w], "q"))
for files, wanted, text in (
        (["--indptr", p], 2, "--indptr without --indices"),
        (["--indices", q], 2, "--indices without --indptr"),
        (["--indptr", short, "--indices", q], 5, "indptr has %d numbers: wanted %d" % (w, w + 1)),
        (["--indptr", p, "--indices", put("more.npy", integers(indices + [0], "q"))], 5, "indptr ends at %d" % len(held)),
        (["--indptr", p, "--indices", swapped], 5, "wanted ascending ones"),
        (["--indptr", p, "--indices", beyond], 5, "ascending ones below %d" % w),
        (["--indptr", p, "--indices", negative], 5, "indices: number 0 is -1"),
        (["--indptr", p, "--indices", huge], 5, "indices: number 0 is 2147483648:"),
        (["--indptr", halves, "--indices", q], 5, "indptr: number 0 is 0.5"),
        (["--indptr", p, "--indices", dense_a], 5, "indices has 4 dimensions"),
        (["--A", dense_a] + pattern, 5, "wanted [%d][%d or 1][%d]" % (length, batch, len(held))),
        (pattern + ["--scheme", "pcr"], 2, "sequential and overlap work"),
        (pattern + ["--chunk", "5"], 2, "--chunk beside scheme auto of csr transitions, which has none; wanted --scheme overlap"),
        (pattern + ["--scheme", "distributed"], 2, "csr does not form")):
    refused(wanted, text, *out, *files)
with zipfile.ZipFile(path("half.npz"), "w") as archive:
    archive.write(a, "A.npy"), archive.write(b, "b.npy"), archive.write(p, "indptr.npy")
refused(5, "no array 'indices'", "--input", path("half.npz"), "--output", path("no.npy"))
refused(2, "holds A, b, z0 and a pattern", "--input", path("half.npz"), "--indices", q, "--output", path("no.npy"))
assert not os.path.exists(path("no.npy"))
a, b = put_npy("a.npy", (4, 1), [2, 3, 5, 7]), put_npy("b.npy", (4, 1, 1), [1, 1, 1, 1])

# Products lose what the states keep: the loop's states all the same, though they might take b's place.
factors = [0.2 if 64 <= l < 128 else 5 if 128 <= l < 192 else 1 for l in range(256)]
lost = ["--A", put_npy("lost.npy", (256, 1), factors, "f"), "--b", put_npy("none.npy", (256, 1, 1), [1e20] + [0] * 255, "f")]
wanted = solve(*lost, "--scheme", "sequential")[1][1]
for how in (["--scheme", "chunked", "--chunk", "64"], ["--scheme", "distributed", "--ranks", "4"], ["--scheme", "auto"]):
    told, (_, z, _) = solve(*lost, *how)
    assert all(abs(x - y) <= 1e-4 * abs(y) for x, y in zip(z, wanted)), (how, z[-1], wanted[-1])
    assert told["finished_from"] == (256 if how[1] == "auto" else 128), told
    line = run(*lost, *how, "--output", path("z.npy"))
    assert (b", finished in order from step 128," in line) == (how[1] != "auto"), line

# A chain is solved once: auto leaves the loop, which needs no memory, only for what is worth the memory's first touch.
told = solve("--A", put_npy("long_a.npy", (20000, 1), [0.9] * 20000), "--b", put_npy("long_b.npy", (20000, 1, 1), [1] * 20000))[0]
assert told["scheme"] == "sequential" and told["workspace_bytes"] == 0, told

# States that die away are zeros, unless they are to be kept.
fades = ["--A", put_npy("fades.npy", (140, 1), [0.5] * 140, "f"), "--b", put_npy("one.npy", (140, 1, 1), [1] + [0] * 139, "f")]
for scheme in "sequential", "chunked":
    for how, least in ([], 2**-126), (["--denormals", "flush"], 2**-126), (["--denormals", "keep"], 0):
        assert solve(*fades, "--scheme", scheme, *how)[1][1] == tuple(2.0**-l if 2.0**-l >= least else 0 for l in range(140)), (scheme, how)
refused(2, "--denormals 'none': wanted one of keep, flush", *fades, "--output", path("no.npy"), "--denormals", "none")

# What does not fit is told, and nothing is written.
os.remove(path("z.npy"))
out = ["--output", path("z.npy")]
wide = put_npy("wide.npy", (4, 1, 2), [0] * 8)
for files, wanted, text in (
        (["--A", wide, "--b", b], 5, "shape [4][1][2]"),
        (["--A", put_npy("x1.npy", (3, 1), [0] * 3), "--b", b], 5, "shape [3][1]"),
        (["--A", put_npy("x2.npy", (4, 2), [0] * 8), "--b", b], 5, "shape [4][2]"),
        (["--A", put_npy("x3.npy", (4,), [0] * 4), "--b", b], 5, "shape [4]"),
        (["--A", put_npy("x4.npy", (4, 1, 1, 1, 2), [0] * 8), "--b", b], 5, "shape [4][1][1][1][2]"),
        (["--A", a, "--b", a], 5, "b has shape [4][1]"),
        (["--A", put_npy("x5.npy", (4, 1), [0] * 4, "f"), "--b", b], 5, "A is float32 and b is float64"),
        (["--A", put("x7.npy", npy((4, 1), [0] * 4).replace(b"<f8", b"<i8")), "--b", put_npy("x8.npy", (4, 1, 1), [0] * 4, "f")], 5,
         "A is float64 and b is float32 (whole numbers are read as float64)"),
        (["--A", a, "--b", b, "--z0", wide], 5, "z0 has shape"),
        (["--A", a, "--b", b, "--z0", put_npy("x6.npy", (1, 1), [0], "f")], 5, "z0 is float32"),
        (["--A", a, "--b", b, "--z0", b, "--transposed"], 2, "--transposed"),
        (["--A", a, "--b", "-"], 5, ""),
        (["--A", path("in.npz:nothing"), "--b", b], 5, "no member 'nothing'"),
        (["--A", path("notes.npz"), "--b", b], 5, "no member 'A' ("),
        (["--A", path("two.npz"), "--b", b], 5, "two.npz' has 2 arrays; '%s:NAME' says which is A" % path("two.npz")),
        (["--input", path("back.npz")], 5, "npz member 'z0': npy header: got dtype '<U2'"),
        (["--A", path("in.npz:labels"), "--b", b], 5, "npz member 'labels': npy header: got dtype '<U2'"),
        (["--input", path("z.npz")], 5, "no array 'A'"),
        (["--input", path("in.npz"), "--A", a], 2, "--input"),
        (["--A", a, "--b", b, "--output", path("z.npz:z")], 2, "names a member of a file"),
        (["--A", a, "--b", b, "--scheme", "pcr", "--memory-limit", "1"], 4, "limit")):
    refused(wanted, text, *out, *files, data=b"")
    assert not os.path.exists(path("z.npy")) and not os.path.exists(path("z.npz:z")), files
# auto keeps to the limit by the loop, which needs nothing.
long = [(i * 37 % 41 - 20) / 25 for i in range(20000)]
files = ["--A", put_npy("long_a.npy", (20000, 1), long, "f"), "--b", put_npy("long_b.npy", (20000, 1, 1), long, "f")]
told = answer(*files, "--output", path("long_z.npy"), "--memory-limit", "1")
assert told["scheme"] == "sequential" and told["workspace_bytes"] == 0 and told["sentence"].startswith("sequential: ") and "sequential needs" not in told["sentence"], told
limited = get_npy("long_z.npy")
answer(*files, "--output", path("long_z.npy"), "--scheme", "sequential")
assert limited == get_npy("long_z.npy")
os.remove(path("long_z.npy"))
whole = npy((4, 1, 1), [1, 1, 1, 1])
for cut in list(range(0, len(whole), 9)) + [len(whole) - 1]:
    put("cut.npy", whole[:cut])
    refused(5, "cut.npy", "--A", a, "--b", path("cut.npy"), *out)
left = [name for name in os.listdir(folder) if "tmp" in name or name.startswith("z.npy")]
assert not left, left
print("cli_solve: %d solves of every structure, scheme and dtype" % cases)
PYTHON
