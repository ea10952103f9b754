#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_attention.sh BUILD_DIR: 'deeppcr solve attention' against the loop in Python, forward and by differences back: float and double,
# groups, decays of heads and of rows, what may be left out, pieces, outputs of every kind; wrong arguments, files and shapes.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import itertools, math, os, random, struct, zipfile

from program import always, answer, content, get_npy, get_npz, near, npy, path, put, put_npy, put_npz, read_npy, refused, run, tensors
from scans import refuse_options

always += ["solve", "attention"]
random.seed(5)
B, L, G, H, K, V = 2, 37, 2, 4, 5, 3


def shapes_of(length=L, groups=G, rows=False, left_out=()):
    shapes = {"q": (B, length, groups, K), "k": (B, length, groups, K), "v": (B, length, H, V), "g": (B, length, H, K) if rows else (B, length, H),
              "beta": (B, length, H), "s0": (B, H, K, V)}
    return {name: shape for name, shape in shapes.items() if name not in left_out}


def numbers(shape, low=-1.0, high=1.0):
    return [random.uniform(low, high) for _ in range(math.prod(shape))]


def problem(shapes):
    return {name: numbers(shape, *{"g": (-0.5, 0), "beta": (0.1, 0.9)}.get(name, ())) for name, shape in shapes.items()}


def loop(shapes, values, scale):
    length, groups, rows = shapes["q"][1], shapes["q"][2], len(shapes.get("g", ())) == 4
    o, last = [0.0] * (B * length * H * V), []
    for b in range(B):
        for h in range(H):
            start = (b * H + h) * K * V
            s = [values["s0"][start + i * V:start + (i + 1) * V] if "s0" in values else [0.0] * V for i in range(K)]
            for l in range(length):
                at, key = (b * length + l) * H + h, ((b * length + l) * groups + h * groups // H) * K
                q, k, v = values["q"][key:key + K], values["k"][key:key + K], values["v"][at * V:(at + 1) * V]
                if "g" in values:
                    s = [[math.exp(values["g"][at * K + i if rows else at]) * x for x in s[i]] for i in range(K)]
                u = v
                if "beta" in values:
                    u = [values["beta"][at] * (v[j] - sum(s[i][j] * k[i] for i in range(K))) for j in range(V)]
                s = [[s[i][j] + k[i] * u[j] for j in range(V)] for i in range(K)]
                o[at * V:(at + 1) * V] = [scale * sum(s[i][j] * q[i] for i in range(K)) for j in range(V)]
            last += itertools.chain(*s)
    return o, last


# all kinds of groups and decays, and what may be left out; one longer than the steps between two states that are kept
cases = [dict(), dict(rows=True), dict(groups=1), dict(groups=4, rows=True, left_out=["s0"]), dict(left_out=["beta"]), dict(rows=True, left_out=["beta"]),
         dict(left_out=["g"]), dict(left_out=["g", "beta"]), dict(groups=1, left_out=["g", "s0"]), dict(left_out=["g", "beta", "s0"]),
         dict(length=150), dict(length=1, rows=True)]
for i, (case, letter) in enumerate([(c, "d") for c in cases] + [(c, "f") for c in cases[:2] + cases[4:5]]):
    shapes = shapes_of(**case)
    values, given = problem(shapes), i % 2 == 0
    scale = 0.7 if given else 1 / math.sqrt(K)
    if letter == "f":
        values = {name: read_npy(npy(shapes[name], v, "f"))[1] for name, v in values.items()}
    file = put_npz("in.npz", shapes, values, letter)
    more = ["--scale", scale] if given else []
    length, groups = shapes["q"][1:3]
    outs = {"o": shapes["v"], "s": (B, H, K, V)}
    go, gl = numbers(outs["o"]), numbers(outs["s"])
    put_npy("go.npy", outs["o"], go, letter), put_npy("gl.npy", outs["s"], gl, letter)
    back = ["--grad-output", path("go.npy"), "--grad-final", path("gl.npy")]
    told = answer("--input", file, "--output", path("o.npy"), "--final", path("s.npy"), "--threads", "2", "--grads", path("g.npz"), *back, *more)
    wanted = {"batch": B, "length": length, "groups": groups, "heads": H, "keys": K, "values": V, "delta_rule": "beta" in shapes, "threads": 2,
              "decays": {0: "none", 3: "heads", 4: "rows"}[len(shapes.get("g", ()))], "dtype": {"f": "float32", "d": "float64"}[letter], "output": path("o.npy")}
    assert {name: told[name] for name in wanted} == wanted, told
    assert abs(told["scale"] - scale) < 1e-15 and told["seconds"] > 0 and told["backward_seconds"] > 0
    tolerance = 1e-12 if letter == "d" else 1e-5
    for name, numbers_of in zip(outs, loop(shapes, values, scale)):
        got_shape, got, got_letter = get_npy(name + ".npy")
        assert got_letter == letter
        near((i, name), (got_shape, got), (outs[name], numbers_of), tolerance, 1)
    # the loss changes along a direction as its gradients say
    gradients = get_npz("g.npz")
    assert {name: (g[0], g[2]) for name, g in gradients.items()} == {name: (shape, letter) for name, shape in shapes.items()}
    for name in shapes if letter == "d" else ():
        way, ends = numbers(shapes[name]), []
        for sign in (1e-5, -1e-5):
            moved = {**values, name: [v + sign * w for v, w in zip(values[name], way)]}
            ends.append(sum(g * v for g, v in zip(go + gl, itertools.chain(*loop(shapes, moved, scale)))))
        slope = sum(g * w for g, w in zip(gradients[name][1], way))
        assert abs(slope - (ends[0] - ends[1]) / 2e-5) < 1e-6 * (1 + abs(slope)), (i, name, slope, ends)
    run("--input", file, "--quiet", "--grads", path("g.st"), *back, *more)
    assert tensors("g.st")[1] == gradients  # and by themselves
    # float's are double's, rounded
    if letter == "f":
        put_npy("go.npy", outs["o"], read_npy(npy(outs["o"], go, "f"))[1]), put_npy("gl.npy", outs["s"], read_npy(npy(outs["s"], gl, "f"))[1])
        run("--input", put_npz("in.npz", shapes, values), "--quiet", "--grads", path("g.npz"), *back, *more)
        for name, (shape, got, _) in gradients.items():
            near((i, name), (shape, got), get_npz("g.npz")[name][:2], 2e-5, 1)
    # of the last states alone
    if i == 0:
        put_npy("zero.npy", outs["o"], [0.0] * len(go))
        run("--input", file, "--quiet", "--grads", path("a.npz"), *back[2:])
        run("--input", file, "--quiet", "--grads", path("b.npz"), *back[2:], "--grad-output", path("zero.npy"))
        assert get_npz("a.npz") == get_npz("b.npz")

# numbers of two bytes are the floats that they are
shapes = shapes_of()
values = {name: struct.unpack("<%de" % len(v), struct.pack("<%de" % len(v), *v)) for name, v in problem(shapes).items()}
halves, floats = (run("--input", put_npz("in.npz", shapes, values, letter), "--output", "-") for letter in "ef")
assert halves == floats

# in pieces, through standard output and as npz; the same bits by one thread
values = problem(shapes)
whole = read_npy(run("--input", put_npz("in.npz", shapes, values), "--output", "-", "--threads", "1"))
assert whole == read_npy(run("--input", path("in.npz"), "--output", "-", "--threads", "3"))


def cut(shape, x, a, b):
    step = math.prod(shape[2:])
    return (shape[0], b - a, *shape[2:]), [v for i in range(shape[0]) for v in x[(i * shape[1] + a) * step:(i * shape[1] + b) * step]]


for a, b in ((0, 20), (20, L)):
    parts = {name: cut(shapes[name], values[name], a, b) for name in shapes if name != "s0"}
    parts["s0"] = get_npz("s.npz")["s0"][:2] if a else (shapes["s0"], values["s0"])
    run("--input", put_npz("part.npz", {n: p[0] for n, p in parts.items()}, {n: p[1] for n, p in parts.items()}), "--output", path("o.npz"),
        "--final", path("s.npz"), "--quiet")
    near("pieces", get_npz("o.npz")["o"][:2], cut(shapes["v"], whole[1], a, b), 1e-12, 1)

# nothing at all, and what else a file holds
empty = shapes_of(length=0)
run("--input", put_npz("empty.npz", empty, {**dict.fromkeys(empty, []), "s0": values["s0"]}), "--output", path("o.npy"), "--final", path("s.npy"), "--quiet")
assert get_npy("o.npy")[0] == (B, 0, H, V) and list(get_npy("s.npy")[1]) == values["s0"]
with zipfile.ZipFile(path("in.npz"), "a") as archive:
    archive.writestr("notes.npy", b"no numbers")
    archive.writestr("go.npy", npy(shapes["v"], [1.0] * math.prod(shapes["v"])))
assert read_npy(run("--input", path("in.npz"), "--output", "-")) == whole
assert run("--input", path("in.npz"), "--output", path("o.npy")).startswith(b"37 steps of 4 heads of 5 x 3 states, batch 2, ")
run("--input", path("in.npz"), "--grad-output", path("in.npz:go"), "--grads", path("g.npz"), "--quiet")
with zipfile.ZipFile(path("full.npz"), "w") as archive:  # as many members as the old fields hold, and no larger ones
    archive.writestr("go.npy", npy(shapes["v"], [1.0] * math.prod(shapes["v"])))
data = content("full.npz")
at = data.index(b"PK\1\2")
names = [b"%06x" % i for i in range(65534)]
empty = b"".join(struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 6, 0) + n for n in names)
entries = data[at:data.index(b"PK\5\6")] + b"".join(
    struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 6, 0, 0, 0, 0, 0, at + 36 * i) + n for i, n in enumerate(names))
put("full.npz", data[:at] + empty + entries + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(entries), at + len(empty), 0))
run("--input", path("in.npz"), "--grad-output", path("full.npz:go"), "--grads", path("h.npz"), "--quiet")
assert get_npz("g.npz") == get_npz("h.npz")
run("--input", path("in.npz"), "--grad-output", "-", "--grads", path("h.npz"), "--quiet", data=npy(shapes["v"], [1.0] * math.prod(shapes["v"])))
assert get_npz("g.npz") == get_npz("h.npz") and set(get_npz("g.npz")) == set(shapes)
head, row, _ = run("--input", path("in.npz"), "--final", path("s.npy"), "--quiet", "--csv", "-").decode().split("\n")
assert dict(zip(head.split(","), row.split(",")))["heads"] == "4", head

# refusals
for name in ("o.npy", "o.npz", "g.npz"):
    os.remove(path(name))
usual = ["--input", path("in.npz"), "--output", path("o.npy")]
go = put_npy("go.npy", shapes["v"], numbers(shapes["v"]))
refuse_options(path("in.npz"), go)
refused(2, "--grads '%s': what is written is safetensors, wanted a name that does not end in .npy" % path("g.npy"), *usual, "--grads", path("g.npy"), "--grad-output", path("go.npy"))
assert not os.path.exists(path("g.npy"))
refused(2, "an npz file with q, k, v", "--output", path("o.npy"))
refused(2, "unknown option '--softplus'", *usual, "--softplus")
for scale, text in (("x", "wanted a finite number"), ("inf", "wanted a finite number"), ("1e999", "overflow"), ("", "wanted a finite number")):
    refused(2, "--scale '%s'" % scale, *usual, "--scale", scale)
    refused(2, text, *usual, "--scale", scale)
for option, right, wrong in (("--grad-output", shapes["v"], shapes["s0"]), ("--grad-final", shapes["s0"], shapes["v"])):
    told = ["".join("[%d]" % n for n in shape) for shape in (wrong, right)]
    refused(5, "%s has shape %s: wanted %s" % (option, *told), *usual, "--grads", path("g.npz"), option, put_npy("h.npy", wrong, numbers(wrong)))
    refused(5, option + " is float32 and q is float64", *usual, "--grads", path("g.npz"), option, put_npy("f.npy", right, numbers(right), "f"))
for name, shape, text in (
        ("q", (B, L, K), "q has shape [2][37][5]: wanted [B][L][G][K], G and K at least 1"), ("q", (B, L, G, 0), "q has shape [2][37][2][0]: wanted"),
        ("q", (B, L, 0, K), "q has shape [2][37][0][5]: wanted"), ("k", (B, L, H, K), "k has shape [2][37][4][5]: wanted [2][37][2][5]"),
        ("v", (B, L, V), "v has shape [2][37][3]: wanted [2][37][H][V], H a multiple of 2, V at least 1"), ("v", (B, L, 3, V), "v has shape [2][37][3][3]: wanted"),
        ("v", (B, L, H, 0), "v has shape [2][37][4][0]: wanted"), ("v", (B, L, 0, V), "v has shape [2][37][0][3]: wanted"),
        ("v", (B, L + 1, H, V), "v has shape [2][38][4][3]: wanted"), ("v", (1, L, H, V), "v has shape [1][37][4][3]: wanted"),
        ("g", (B, L), "g has shape [2][37]: wanted [2][37][4], or [2][37][4][5]"), ("g", (B, L, G), "g has shape [2][37][2]: wanted"),
        ("g", (B, L, H, V), "g has shape [2][37][4][3]: wanted"), ("g", (B, L, G, K), "g has shape [2][37][2][5]: wanted"),
        ("beta", (B, L, H, 1), "beta has shape [2][37][4][1]: wanted [2][37][4]"), ("beta", (B, H, L), "beta has shape [2][4][37]: wanted [2][37][4]"),
        ("s0", (B, H, V, K), "s0 has shape [2][4][3][5]: wanted [2][4][5][3]")):
    wrong = {**shapes, name: shape}
    refused(5, text, "--input", put_npz("wrong.npz", wrong, problem(wrong)), "--output", path("o.npy"))
wide = {"q": (1, 1, 1, 2**20 + 1), "k": (1, 1, 1, 2**20 + 1), "v": (1, 1, 1, 1)}
refused(5, "K and V from 1 to 1048576", "--input", put_npz("wrong.npz", wide, {name: [0.0] * math.prod(shape) for name, shape in wide.items()}), "--output", path("o.npy"))
for name in ("q", "k", "v"):
    left = shapes_of(left_out=[name])
    refused(5, "has no array '%s': wanted q, k, v and perhaps others" % name, "--input", put_npz("wrong.npz", left, problem(left)), "--output", path("o.npy"))
for odd in ("k", "beta"):
    put_npz("wrong.npz", shapes, values, {name: "f" if name == odd else "d" for name in shapes})
    refused(5, odd + " is float32 and q is float64", "--input", path("wrong.npz"), "--output", path("o.npy"))
put("cut.npz", content("in.npz")[:-30])
refused(5, "cut.npz", "--input", path("cut.npz"), "--output", path("o.npy"))
assert not any(os.path.exists(path(name)) for name in ("y.npy", "o.npy", "o.npz", "g.npz"))
print("cli_attention: the loop's numbers, and its gradients'; refusals in words")
PYTHON
