#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_selective.sh BUILD_DIR: 'deeppcr solve selective' against the loop in Python, forward and by differences back: float and double, groups,
# B or C constant in time, what may be left out, pieces, outputs of every kind; wrong arguments, files and shapes.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import itertools, math, os, random, zipfile

from program import always, answer, content, get_npy, get_npz, near, npy, path, put, put_npy, put_npz, read_npy, refused, run, tensors
from scans import refuse_options

always += ["solve", "selective"]
random.seed(3)
B, D, L, N = 2, 6, 21, 3
SHAPES = {"u": (B, D, L), "delta": (B, D, L), "A": (D, N), "B": (B, N, L), "C": (B, N, L), "D": (D,), "z": (B, D, L), "delta_bias": (D,), "h0": (B, D, N)}


def numbers(shape, low=-1.0, high=1.0):
    return [random.uniform(low, high) for _ in range(math.prod(shape))]


def problem(shapes, left_out=()):
    shapes = {name: shape for name, shape in shapes.items() if name not in left_out}
    return shapes, {name: numbers(shape, *{"A": (-2, -0.1), "delta": (0.05, 0.6), "delta_bias": (0, 0.3)}.get(name, ())) for name, shape in shapes.items()}


def member(shapes, values, name, b, d, n, l):
    """B or C as channel d sees it."""
    shape = shapes[name]
    if len(shape) == 2:
        return values[name][d * N + n]
    groups = shape[1] if len(shape) == 4 else 1
    return values[name][((b * groups + d * groups // D) * N + n) * L + l]


def loop(shapes, values, softplus):
    y, last = [], []
    for b in range(B):
        for d in range(D):
            h = values["h0"][(b * D + d) * N:(b * D + d + 1) * N] if "h0" in values else [0.0] * N
            for l in range(L):
                at = (b * D + d) * L + l
                t, u = values["delta"][at] + (values["delta_bias"][d] if "delta_bias" in values else 0), values["u"][at]
                t = math.log1p(math.exp(t)) if softplus else t
                h = [math.exp(t * values["A"][d * N + n]) * h[n] + t * member(shapes, values, "B", b, d, n, l) * u for n in range(N)]
                v = sum(member(shapes, values, "C", b, d, n, l) * h[n] for n in range(N)) + (values["D"][d] * u if "D" in values else 0)
                y.append(v * (values["z"][at] / (1 + math.exp(-values["z"][at])) if "z" in values else 1))
            last += h
    return y, last


# all kinds of B and C, and what may be left out
kinds = [(B, N, L), (B, 1, N, L), (B, 2, N, L), (B, 6, N, L), (D, N)]
pairs = [(kinds[0], kinds[0]), (kinds[2], kinds[2]), (kinds[0], kinds[2]), (kinds[4], kinds[1]), (kinds[3], kinds[4]), (kinds[4], kinds[4]), (kinds[1], kinds[3]), (kinds[2], (B, 3, N, L))]
out = ["D", "z", "delta_bias", "h0"]
for i, (b, c) in enumerate(pairs + pairs[:2]):
    softplus, letter = i % 2 == 0, "f" if i in (1, 4) else "d"
    shapes, values = problem({**SHAPES, "B": b, "C": c}, out[:i % 5])
    if letter == "f":
        values = {name: read_npy(npy(shapes[name], v, "f"))[1] for name, v in values.items()}
    file = put_npz("in.npz", shapes, values, letter)
    more = ["--softplus"] if softplus else []
    gy, gl = numbers((B, D, L)), numbers((B, D, N))
    put_npy("gy.npy", (B, D, L), gy, letter), put_npy("gl.npy", (B, D, N), gl, letter)
    back = ["--grads", path("g.npz"), "--grad-output", path("gy.npy"), "--grad-final", path("gl.npy")]
    told = answer("--input", file, "--output", path("y.npy"), "--final", path("h.npy"), "--threads", "2", *back, *more)
    groups = max(1 if len(s) == 3 else D if len(s) == 2 else s[1] for s in (b, c))
    assert (told["batch"], told["channels"], told["length"], told["states"], told["groups"]) == (B, D, L, N, groups), told
    assert told["threads"] == 2 and told["softplus"] is softplus and told["seconds"] > 0 and told["backward_seconds"] > 0
    assert told["dtype"] == {"f": "float32", "d": "float64"}[letter] and told["output"] == path("y.npy")
    y, last = loop(shapes, values, softplus)
    tolerance = 1e-12 if letter == "d" else 1e-5
    for name, shape, wanted in (("y", (B, D, L), y), ("h", (B, D, N), last)):
        got_shape, got, got_letter = get_npy(name + ".npy")
        assert got_letter == letter
        near(name, (got_shape, got), (shape, wanted), tolerance, 1)
    # the loss changes along a direction as its gradients say
    gradients = get_npz("g.npz")
    assert {name: (g[0], g[2]) for name, g in gradients.items()} == {name: (shape, letter) for name, shape in shapes.items()}
    for name in shapes if letter == "d" else ():
        way, ends = numbers(shapes[name]), []
        for sign in (1e-5, -1e-5):
            moved = {**values, name: [v + sign * w for v, w in zip(values[name], way)]}
            ends.append(sum(g * v for g, v in zip(gy + gl, itertools.chain(*loop(shapes, moved, softplus)))))
        slope = sum(g * w for g, w in zip(gradients[name][1], way))
        assert abs(slope - (ends[0] - ends[1]) / 2e-5) < 1e-6 * (1 + abs(slope)), (i, name, slope, ends)
    run("--input", file, "--quiet", "--grads", path("g.st"), "--grad-output", path("gy.npy"), "--grad-final", path("gl.npy"), *more)
    assert tensors("g.st")[1] == gradients  # and by themselves
    # of the last states alone
    if i == 0:
        put_npy("zero.npy", (B, D, L), [0.0] * (B * D * L))
        run("--input", file, "--quiet", "--grads", path("a.npz"), "--grad-final", path("gl.npy"), *more)
        run("--input", file, "--quiet", "--grads", path("b.npz"), "--grad-final", path("gl.npy"), "--grad-output", path("zero.npy"), *more)
        assert get_npz("a.npz") == get_npz("b.npz")

# in pieces, through standard output and as npz; the same bits by one thread
shapes, values = problem(SHAPES, out)
whole = read_npy(run("--input", put_npz("in.npz", shapes, values), "--output", "-", "--threads", "1"))
assert whole == read_npy(run("--input", path("in.npz"), "--output", "-", "--threads", "3"))
cut = lambda x, a, b: [v for i in range(0, len(x), L) for v in x[i + a:i + b]]  # noqa: E731
pieces = []
for a, b in ((0, 10), (10, L)):
    part = {name: (shape if name == "A" else (*shape[:2], b - a)) for name, shape in shapes.items()}
    numbers_of = {name: v if name == "A" else cut(v, a, b) for name, v in values.items()}
    if a:
        part["h0"], numbers_of["h0"], _ = get_npz("h.npz")["h0"]
    run("--input", put_npz("part.npz", part, numbers_of), "--output", path("y.npz"), "--final", path("h.npz"), "--quiet")
    pieces.append(get_npz("y.npz")["y"][1])
for a, b, y in ((0, 10, pieces[0]), (10, L, pieces[1])):
    near("pieces", ((len(y),), list(y)), ((len(y),), cut(whole[1], a, b)), 1e-12, 1)

# nothing at all, and what else a file holds
empty = {name: (shape if name == "A" else (*shape[:2], 0)) for name, shape in shapes.items()}
run("--input", put_npz("empty.npz", empty, {**dict.fromkeys(empty, []), "A": values["A"]}), "--output", path("y.npy"), "--final", path("h.npy"), "--quiet")
assert get_npy("y.npy")[0] == (B, D, 0) and not any(get_npy("h.npy")[1])
with zipfile.ZipFile(path("in.npz"), "a") as archive:
    archive.writestr("notes.npy", b"no numbers")
assert read_npy(run("--input", path("in.npz"), "--output", "-")) == whole
assert run("--input", path("in.npz"), "--output", path("y.npy")).startswith(b"21 steps of 6 channels of 3 states, batch 2, ")

# refusals
usual = ["--input", path("in.npz"), "--output", path("y.npy")]
gy = put_npy("gy.npy", (B, D, L), numbers((B, D, L)))
refuse_options(path("in.npz"), gy)
refused(2, "--grads '%s': what is written is safetensors, wanted a name that does not end in .npy" % path("g.npy"), *usual, "--grads", path("g.npy"), "--grad-output", path("gy.npy"))
assert not os.path.exists(path("g.npy"))
refused(5, "--grad-output has shape [2][6][3]: wanted [2][6][21]", *usual, "--grads", path("g.npz"), "--grad-output", put_npy("h.npy", (B, D, N), numbers((B, D, N))))
refused(5, "--grad-output is float32 and u is float64", *usual, "--grads", path("g.npz"), "--grad-output", put_npy("f.npy", (B, D, L), numbers((B, D, L)), "f"))
for name, shape, text in (
        ("u", (B, D), "u has shape [2][6]: wanted [B][D][L]"), ("delta", (B, D, L + 1), "delta has shape [2][6][22]: wanted [2][6][21]"),
        ("A", (D + 1, N), "A has shape [7][3]: wanted [D][N]"), ("A", (D, 0), "A has shape [6][0]: wanted [D][N], D as u has, N at least 1"),
        ("B", (B, N + 1, L), "B has shape [2][4][21]: wanted [2][3][21], [2][G][3][21] where G divides 6, or [6][3]"),
        ("C", (B, 4, N, L), "C has shape [2][4][3][21]: wanted"), ("D", (N,), "D has shape [3]: wanted [6]"),
        ("z", (D,), "z has shape [6]: wanted [2][6][21]"), ("delta_bias", (D, 1), "delta_bias has shape [6][1]: wanted [6]"),
        ("h0", (B, D, L), "h0 has shape [2][6][21]: wanted [2][6][3]")):
    wrong, numbers_of = problem({**SHAPES, name: shape})
    refused(5, text, "--input", put_npz("wrong.npz", wrong, numbers_of), "--output", path("y.npy"))
for name in ("u", "delta", "A", "B", "C"):
    refused(5, "has no array '%s': wanted u, delta, A, B, C" % name, "--input", put_npz("wrong.npz", *problem(SHAPES, [name])), "--output", path("y.npy"))
put_npz("wrong.npz", shapes, values, {name: "f" if name == "A" else "d" for name in shapes})
refused(5, "A is float32 and u is float64", "--input", path("wrong.npz"), "--output", path("y.npy"))
put("cut.npz", content("in.npz")[:-30])
refused(5, "cut.npz", "--input", path("cut.npz"), "--output", path("y.npy"))
assert not os.path.exists(path("o.npz"))
print("cli_selective: the loop's numbers, and its gradients'; refusals in words")
PYTHON
