#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_convert.sh BUILD_DIR: 'deeppcr convert' on models of torch.onnx.export (fixtures/onnx_*): what solve makes of the weights is what
# ONNX Runtime makes of the model; ONNX's node tests as literal values; every refusal; damaged, cut and hostile files.
set -u
build=$(cd "${1:?usage: cli_convert.sh BUILD_DIR}" && pwd) || exit 1
program=$build/deeppcr
[ -x "$program" ] || { echo "cli_convert: no program at $program"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
PYTHONDONTWRITEBYTECODE=1 python3 - "$program" "$folder" tests <<'PYTHON'
import glob, json, os, random, struct, subprocess, sys

program, folder, tests = sys.argv[1:]
sys.path.insert(0, tests)
from onnx_writer import block, info, model, node, number, tensor, weights

fixtures = os.path.join(tests, "fixtures")
LETTERS = {"F32": "f", "F64": "d"}


def path(name):
    return os.path.join(folder, name)


def put(name, data):
    with open(path(name), "wb") as file:
        file.write(data)
    return path(name)


def bytes_of(name):
    with open(name, "rb") as file:
        return file.read()


def safetensors(name):
    data = bytes_of(name)
    length = struct.unpack("<Q", data[:8])[0]
    head, out = json.loads(data[8:8 + length]), {}
    for key, item in head.items():
        if key != "__metadata__":
            a, b = item["data_offsets"]
            letter = LETTERS[item["dtype"]]
            body = data[8 + length + a:8 + length + b]
            out[key] = (item["shape"], struct.unpack("<%d%s" % (len(body) // struct.calcsize(letter), letter), body))
    return head.get("__metadata__", {}), out


def npy(shape, values, letter="f"):
    head = "{'descr': '<f%d', 'fortran_order': False, 'shape': (%s), }" % (struct.calcsize(letter), "".join("%d," % n for n in shape))
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), letter), *values)


def read(name, letter="f"):
    data = bytes_of(path(name))
    length = struct.unpack("<H", data[8:10])[0]
    body = data[10 + length:]
    return list(eval(data[10:10 + length].decode())["shape"]), struct.unpack("<%d%s" % (len(body) // struct.calcsize(letter), letter), body)


def run(*arguments, data=None, wanted=0):
    done = subprocess.run([program] + list(arguments), input=data, capture_output=True)
    assert done.returncode == wanted, (arguments, done.returncode, done.stderr)
    if wanted:
        assert done.stdout == b"" and done.stderr.count(b"\n") == 1, (arguments, done)
        return done.stderr.decode()
    assert done.stderr == b"", done.stderr
    return done.stdout


def near(what, got, wanted, tolerance):
    assert got[0] == wanted[0], (what, got[0], wanted[0])
    for i, (x, y) in enumerate(zip(got[1], wanted[1])):
        assert abs(x - y) <= tolerance, (what, i, x, y)


def solve(kind, x, lstm=False, letter="f"):
    """y, ht (and ct) of the weights in W.st."""
    out = ["y", "ht"] + ["ct"] * lstm
    run("solve", kind, "--weights", path("W.st"), "--input", put("x.npy", npy(*x, letter)), "--output", path("y"), "--final", path("ht"),
        *(["--final-c", path("ct")] if lstm else []), "--quiet")
    return {name: read(name, letter) for name in out}


# What torch.onnx.export wrote, against ONNX Runtime.
files = sorted(glob.glob(os.path.join(fixtures, "onnx_*.onnx")))
assert len(files) >= 9
for file in files:
    wanted = safetensors(file[:-5] + ".safetensors")[1]
    told = json.loads(run("convert", file, path("W.st"), "--json"))
    both, layers = told["bidirectional"], told["layers"]
    assert wanted["ht"][0] == [layers * (1 + both), 2, 4] and (told["inputs"], told["hidden"], told["layout"]) == (3, 4, 0), told
    assert told["bias"] == ("no_bias" not in file) and both == ("both" in file or "present" in file or "any" in file or file.endswith("rnn.onnx")), told
    assert safetensors(path("W.st"))[0] == {"deeppcr.recurrent": told["kind"], "onnx.layout": "0"}
    got = solve(told["kind"], wanted["x"], told["kind"] == "lstm")
    for name in got:
        near((file, name), got[name], wanted[name], 1e-5)
    del wanted["x"]
    assert set(got) == set(wanted)

# ONNX's node tests (onnx/backend/test/case/node/{rnn,lstm}.py): all weights one number a direction, all units equal.
P = ([1, 3, 2], [1, 2, 3, 4, 5, 6])
N = ([1, 3, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9])
Q = ([3, 1, 2], [1, 2, 3, 4, 5, 6])
CASES = (  # operator, hidden, x of the run, W = R a direction, bias, attributes, what is told at the end, a row a time
    ("RNN", 4, P, (0.1,), None, {}, {"ht": (0.29131263, 0.60436779, 0.80049902)}),
    ("RNN", 4, P, (0.5,), None, {"layout": 1}, {"ht": (0.90514821, 0.99817789, 0.99996662)}),
    ("RNN", 5, N, (0.1,), (0.1, 0.0), {}, {"ht": (0.60436779, 0.92166853, 0.98661429)}),
    ("RNN", 4, Q, (0.5, 2.0), None, {"direction": "bidirectional"}, {"ht": (0.99999940, 1.0)}),
    ("LSTM", 3, P, (0.1,), None, {}, {"ht": (0.09524120, 0.25606447, 0.40323776)}),
    ("LSTM", 7, P, (0.3,), None, {"layout": 1}, {"ht": (0.33369261, 0.62239319, 0.71857899)}),
    ("LSTM", 4, N, (0.1,), (0.1, 0.0), {}, {"ht": (0.25606447, 0.53672779, 0.66721320)}),
    ("LSTM", 3, Q, (0.5, 2.0), None, {"direction": "bidirectional"}, {"ht": (0.99022442, 0.99504697), "ct": (2.71291304, 2.99997711)}),
)
USUAL = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "tanh"]}
for form in ("raw", "packed", "single"):
    for data in (1, 11):
        for kind, hidden, x, w, b, attributes, ends in CASES:
            directions, letter = len(w), "fd"[data == 11]
            if b:
                b = list(b)
                rows = {"RNN": 1, "LSTM": 4}[kind] * hidden
                b = [b[0]] * rows + [b[1]] * rows
            given = dict(attributes, hidden_size=hidden)
            if form == "packed":
                given["activations"] = USUAL[kind] * directions
            constants = weights(kind, directions, hidden, x[0][2], list(w), list(w), b, form, data)
            lone = node(kind, ["X", "W", "R"] + ["B"] * bool(b), ["", "Y_h"], **given)
            put("m.onnx", model([lone], constants))
            run("convert", path("m.onnx"), path("W.st"), "--node", "Y_h", "--quiet")
            meta, t = safetensors(path("W.st"))
            assert meta == {"deeppcr.recurrent": kind.lower(), "onnx.layout": str(attributes.get("layout", 0))}, meta
            got = solve(kind.lower(), x, kind == "LSTM", letter)
            for name, values in ends.items():
                values = [v for v in values for _ in range(hidden)]
                near((kind, name), got[name], ([directions, x[0][1], hidden], values), 5e-7)

# Gates that all differ: ONNX Runtime's literal vectors (test/providers/cpu/rnn), T = 2.
W = [.1, .2, .3] + [.2, .3, .1] + [.3, .1, .2]
B = [-.04, .6, -.69, -.15, -.72, .32, .3, -.3, -.3] + [0] * 6 + [.07, -.03, .5]
gru = node("GRU", ["X", "W", "R", "B"], ["Y"], "gru", hidden_size=3, linear_before_reset=1)
put("m.onnx", model([gru], weights("GRU", 1, 3, 1, W, [.1] * 27, B)))
run("convert", path("m.onnx"), path("W.st"))
near("gru", solve("gru", ([2, 1, 1], [-.1, -.3]))["y"],
     ([2, 1, 3], [.15024948, -.11097029, -.02121867, .19538902, -.19016478, -.05644283]), 1e-6)
W = [.1, .2, .3, .4, 1, 2, 3, 4, 10, 11, 12, 13]
lstm = node("LSTM", ["X", "W", "R"], ["Y"], "lstm", hidden_size=3)
put("m.onnx", model([lstm], weights("LSTM", 1, 3, 1, W, .1)))
run("convert", path("m.onnx"), path("W.st"))
got = solve("lstm", ([2, 2, 1], [1, 2, 10, 11]), True)
near("lstm", got["y"], ([2, 2, 3], [.28828835, .36581863, .45679406, .34526032, .47220859, .55850911,
                                    .84196719, .89402526, .91073048, .85882828, .90703777, .92382453]), 1e-6)
near("lstm", got["ct"], ([1, 2, 3], [1.27731147, 1.44181041, 1.53179041, 1.3249796, 1.51063104, 1.61451544]), 1e-6)

# Standard input and output; other data beside the model.
out = run("convert", "-", "-", "--quiet", data=bytes_of(path("m.onnx")))
assert out == bytes_of(path("W.st"))
out = run("convert", "-", "-", data=bytes_of(path("m.onnx")))
assert out == bytes_of(path("W.st"))


# One layer after another.
def two(*between, kinds=("RNN", "RNN"), directions=1, second={}, x="a", infos=(), inputs=None, layout=0, extra=()):
    tensors, given = list(extra), {"hidden_size": 2, "layout": layout}
    if directions == 2:
        given["direction"] = "bidirectional"
    tensors += weights(kinds[0], directions, 2, 3, .5, .25, prefix="1")
    tensors += weights(kinds[1], directions, 2, directions * 2 if inputs is None else inputs, .5, .25, prefix="2")
    return model([node(kinds[0], ["X", "1W", "1R"], ["Y"], "one", **given), *between,
                  node(kinds[1], [x, "2W", "2R"], ["Z"], "two", **dict(given, **second))], tensors, infos)


def constant(name, *values):
    return node("Constant", [], [name], value=tensor("", (len(values),), values, "packed", 7))


LAST = [constant("s", 0, 0, -1), node("Reshape", ["t", "s"], ["a"])]
TURN = node("Transpose", ["Y"], ["t"], perm=[0, 2, 1, 3])
stacks = (
    two(constant("one", 1), node("Squeeze", ["Y", "one"], ["a"])),
    two(node("Squeeze", ["Y"], ["a"], axes=[-3])),
    two(TURN, *LAST),
    two(TURN, *LAST, directions=2),
    two(TURN, constant("s", 5, 7, 4), node("Reshape", ["t", "s"], ["a"]), directions=2, infos=[info("X", (5, 7, 3))]),
    two(constant("s", -1, 7, 4), TURN, node("Reshape", ["t", "s"], ["a"]), directions=2, infos=[info("X", ("T", 7, 3))]),
    two(constant("s", 0, 0, 4), node("Reshape", ["Y", "s"], ["a"]), directions=2, layout=1),
    two(node("Identity", ["Y"], ["i"]), node("Dropout", ["i"], ["d", ""]), node("Squeeze", ["d"], ["q"], axes=[1]),
        node("Transpose", ["q"], ["b"], perm=[1, 0, 2]), node("Transpose", ["b"], ["a"], perm=[1, 0, 2])),
)


# A target shape computed from the shape of `of`: [axis a][axis b][axis c times axis d].
def computed(axes=(0, 1, 2, 3), of="t", ends=1, **steps):
    cuts = [node("Slice", ["n", "k%d" % a, "k%d" % (a + ends)], ["e%d" % i]) for i, a in enumerate(axes)]
    return [TURN, node("Shape", [of], ["n"], **steps), *[constant("k%d" % i, i) for i in range(6)], *cuts, node("Mul", ["e2", "e3"], ["m"]),
            node("Reshape", ["m", "k1"], ["l"]), node("Concat", ["e0", "e1", "l"], ["s"], axis=0), node("Reshape", ["t", "s"], ["a"])]


for directions in (1, 2):
    stacks += (two(*computed(), directions=directions), two(*computed((0, 1, 3, 2)), directions=directions))
for bytes_ in stacks:
    told = json.loads(run("convert", "-", path("W.st"), "--json", data=bytes_))
    assert (told["layers"], told["kind"], told["hidden"]) == (2, "rnn", 2), told
    one = json.loads(run("convert", "-", path("W.st"), "--json", "--node", "two", data=bytes_))
    assert (one["layers"], one["inputs"]) == (1, 2 * (1 + one["bidirectional"]))


def bad(data, status, *parts, arguments=()):
    told = run("convert", "-", path("none.st"), *arguments, data=data, wanted=status)
    for part in parts:
        assert part in told, (part, told)
    assert not os.path.exists(path("none.st"))


names = "'one' (RNN), 'two' (RNN)"
for data in (
        two(x="X"), two(x="Y"), two(TURN, x="t"), two(node("Relu", ["Y"], ["a"])),
        two(*LAST[:1], node("Reshape", ["Y", "s"], ["a"]), directions=2),                          # directions not beside the units
        two(TURN, constant("s", 7, 5, 4), node("Reshape", ["t", "s"], ["a"]), directions=2, infos=[info("X", (5, 7, 3))]),
        two(TURN, constant("s", 5, 7, 4), node("Reshape", ["t", "s"], ["a"]), directions=2),      # extents that nothing tells
        two(TURN, constant("s", -1, 0, -1), node("Reshape", ["t", "s"], ["a"]), directions=2),
        two(TURN, constant("s", 0, 0, -1), node("Reshape", ["t", "s"], ["a"], allowzero=1), directions=2),
        two(node("Transpose", ["Y"], ["t"], perm=[0, 2, 2, 3]), *LAST), two(node("Transpose", ["Y"], ["t"], perm=[0, 2]), *LAST),
        two(node("Transpose", ["Y"], ["t"], perm=[0, 2, 1, 9]), *LAST), two(node("Transpose", ["Y"], ["t"]), *LAST),
        two(node("Squeeze", ["Y"], ["q"], axes=[1]), node("Transpose", ["q"], ["a"], perm=[1, 0, 2])),
        two(node("Squeeze", ["Y"], ["a"], axes=[1]), directions=2), two(node("Squeeze", ["Y"], ["a"])),
        two(node("Squeeze", ["Y"], ["a"], axes=[1], domain="other")),
        two(*computed((1, 0, 2, 3)), directions=2), two(*computed((0, 1, 2, 2)), directions=2), two(*computed(of="Y"), directions=2),
        two(*computed(ends=2), directions=2), two(*computed(start=1), directions=2), two(*computed((0, 0, 2, 3)), directions=2),
):
    bad(data, 5, names, "not each one's X")
squeeze = node("Squeeze", ["Y"], ["a"], axes=[1])
bad(two(squeeze, kinds=("RNN", "LSTM")), 5, "'one' (RNN), 'two' (LSTM)", "differ in kind")
bad(two(squeeze, inputs=3), 5, names, "not as wide")
bad(two(squeeze, second={"activations": ["Relu"]}), 5, names, "differ in kind")
bad(model([node("RNN", ["b", "W", "R"], ["Y"], "one"), node("Squeeze", ["Y"], ["a"], axes=[1]), node("RNN", ["a", "W", "R"], ["Z"], "two"),
           node("Squeeze", ["Z"], ["b"], axes=[1]), node("RNN", ["X", "W", "R"], ["U"], "three")], weights("RNN", 1, 2, 2, 1, 1)), 5, "circle")
bad(model([node("RNN", ["X", "W", "R"], ["Y"], "one"), squeeze] + [node("RNN", ["a", "W", "R"], [n], n) for n in ("u", "v")],
          weights("RNN", 1, 2, 2, 1, 1)), 5, "is the X of two")
bad(two(squeeze), 5, "no recurrent node 'three', there are 'one', 'two'", arguments=["--node", "three"])
bad(model([node("RNN", ["X", "W", "R"], ["Y%d" % i], "same") for i in range(2)], weights("RNN", 1, 2, 2, 1, 1)), 5,
    "2 recurrent nodes have the name 'same'", arguments=["--node", "same"])
bad(model([node("Relu", ["X"], ["Y"])], []), 5, "no node of RNN, GRU or LSTM")
bad(model([node("LSTM", ["X"], ["Y"], domain="com.microsoft")], []), 5, "no node of RNN, GRU or LSTM")


# One node: what the weights cannot say, and what is wrong.
def single(kind, *parts, inputs=("X", "W", "R"), constants=None, directions=1, extra=(), name="it", nodes=(), **attributes):
    constants = weights(kind, directions, 2, 3, .5, .5) if constants is None else constants
    bad(model([*nodes, node(kind, inputs, ["Y"], name, **attributes)], list(constants) + list(extra)), 5, "'it' (%s)" % kind, *parts)


single("GRU", "linear_before_reset = 0")
single("GRU", "linear_before_reset = 0", linear_before_reset=0)
single("LSTM", "input_forget = 1", input_forget=1)
single("LSTM", "peepholes (P)", inputs=["X", "W", "R", "", "", "", "", "P"])
single("LSTM", "peepholes (P)", inputs=["X", "W", "R", "", "", "", "", "P"], extra=[tensor("P", (1, 6), [0, 0, 0, 1, 0, 0])])
single("RNN", "clip = 3", clip=3.0)
single("RNN", "'Affine'", activations=["Affine"])
single("LSTM", "'Relu'", activations=["Sigmoid", "Relu", "Tanh"])
single("LSTM", "got 2 activations, wanted 3", activations=["Sigmoid", "Tanh"])
single("RNN", "different activations", activations=["Relu", "Tanh"], direction="bidirectional", directions=2)
single("RNN", "'reverse' alone", direction="reverse")
single("RNN", "got direction 'up?'", direction="up\n")
single("RNN", "got layout 2", layout=2)
single("RNN", "hidden_size is 5", hidden_size=5)
single("RNN", "no input R", inputs=["X", "W"])
single("RNN", "W is computed", inputs=["X", "V", "R"])
single("RNN", "B is computed", inputs=["X", "W", "R", "V"], nodes=[node("Neg", ["W"], ["V"])])
single("RNN", "W has shape [1][2][3], wanted", direction="bidirectional", constants=weights("RNN", 2, 2, 3, 1, 1)[1:] + weights("RNN", 1, 2, 3, 1, 1)[:1])
single("RNN", "R has shape [1][2][2], wanted", direction="bidirectional")
single("LSTM", "R has shape [1][2][2]", constants=weights("RNN", 1, 2, 3, 1, 1))
single("RNN", "B has shape [1][3]", inputs=["X", "W", "R", "B"], extra=[tensor("B", (1, 3), [1] * 3)])
single("RNN", "R has shape no dimensions", constants=[tensor("W", (1, 2, 3), [1] * 6), tensor("R", (), [1])])
single("RNN", "not of one type", constants=weights("RNN", 1, 2, 3, 1, 1)[:1] + weights("RNN", 1, 2, 3, 1, 1, data=11)[1:])
single("RNN", "data type 7", constants=[tensor("W", (1, 2, 3), [1] * 6, "raw", 7), tensor("R", (1, 2, 2), [1] * 4)])
single("RNN", "initial_h", inputs=["X", "W", "R", "", "", "H"], extra=[tensor("H", (1, 1, 2), [0, 1])])
single("LSTM", "initial_c", inputs=["X", "W", "R", "", "", "", "C"], extra=[tensor("C", (1, 1, 2), [0, 1])])
for name, what in (("W", "W"), ("R", "R")):
    for form, shape, values in (("raw", (1, 2, 3), [1] * 5), ("packed", (1, 2, 3), [1] * 7), ("single", (1, 2, 3), [])):
        constants = [tensor("W", (1, 2, 3), [1] * 6), tensor("R", (1, 2, 2), [1] * 4)]
        constants[name == "R"] = tensor(name, (1, 2, 3 - (name == "R")), values, form)
        bad(model([node("RNN", ["X", "W", "R"], ["Y"])], constants), 5, "ONNX %s: got %d bytes" % (what, 4 * len(values)))
# What is fine: zeros as initial states and peepholes, lengths and states from outside, a clip that clips nothing.
fine = node("LSTM", ["X", "W", "R", "", "L", "H", "C", "P"], ["Y"], "it", clip=3.4028234663852886e38, direction="forward", input_forget=0)
run("convert", "-", path("W.st"), data=model([node("Identity", ["V"], ["W"]), fine], weights("LSTM", 1, 2, 3, 1, 1)[1:] + [
    tensor("V", (1, 8, 3), [1] * 24), tensor("C", (1, 1, 2), [0, 0]), tensor("P", (1, 6), [0] * 6)]))

# Data outside the model: a whole file beside it, and nowhere else.
put("data", struct.pack("<10f", *range(10)))
lone = [node("RNN", ["X", "W", "R"], ["Y"], "it")]
for where, part in (
        (("data", "0", "24"), None), (("data", None, None), None), (("./data", "0", None), None), (("data", "16", "24"), None),
        (("data", "20", "24"), "got 24 bytes at 20 of 'data', wanted 24 of the 40"), (("data", "0", "20"), "got 20 bytes"),
        (("data", "-1", "24"), "at -1"), (("data", "", "24"), "at -1"), (("data", "99999999999999999999", "24"), "at -1"),
        (("data", "9223372036854775807", "24"), "at 9223372036854775807"), (("none", "0", "24"), "No such file"), (("", "0", "24"), "location ''"),
        (("../data", "0", "24"), "location '../data'"), (("a/../data", "0", "24"), "beside the model"), (("..", "0", "24"), "beside"),
        ((path("data"), "0", "24"), "beside the model"), ((None, "0", "24"), "beside the model"), (("x" * 5000, None, None), "beside the model"),
        ((".", "0", "24"), "file"), (("data\0", "0", "24"), "beside the model")):
    put("m.onnx", model(lone, [tensor("W", (1, 2, 3), [], where), tensor("R", (1, 2, 2), [1] * 4)]))
    told = run("convert", path("m.onnx"), path("W.st"), wanted=5 if part else 0)
    assert not part or part in told.decode() if isinstance(told, bytes) else part in told, (where, told)
bad(bytes_of(path("m.onnx")), 5, "this model in none")
put("m.onnx", model(lone, [tensor("W", (1, 2, 1 << 60), [], ("data", None, None)), tensor("R", (1, 2, 2), [1] * 4)]))
assert "at most" in run("convert", path("m.onnx"), path("none.st"), wanted=5)
put("m.onnx", model(lone, [tensor("W", (1, 2, 1 << 50), [], ("data", None, None)), tensor("R", (1, 2, 2), [1] * 4)]))
assert "of the 40" in run("convert", path("m.onnx"), path("none.st"), wanted=5)

# No model at all, two graphs, every cut, noise.
bad(b"", 5, "got 0 graphs")
bad(b"\x08", 5, "byte 0")
bad(os.urandom(1) * 0 + b"\x00\x00", 5, "byte 0")
bad(number(1, 8) + b"\x0b", 5, "byte 2")                                                # a group
bad(block(7, b"") * 2, 5, "got 2 graphs")
bad(block(7, b""), 5, "no version")
bad(block(7, b"") + block(8, block(1, "com.microsoft")), 5, "no version")
bad(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 5, "byte 0")                      # 2^64 - 1 bytes
bad(b"\x08" + b"\xff" * 10 + b"\x01", 5, "byte 0")
bad(model([node("Relu", ["X"], ["Y"])] * 2, []), 5, "value 'Y' is made twice")
bad(model([node("RNN", ["X", "W", "R"], ["Y%d" % i]) for i in range(1025)], weights("RNN", 1, 2, 2, 1, 1)), 5, "1025 recurrent nodes")
bad(b"\x89PNG\r\n\x1a\n" + bytes(100), 5)
whole = two(TURN, *LAST, directions=2)
for n in range(0, len(whole), 29):
    bad(whole[:n], 5)
random.seed(1)
for _ in range(60):
    damaged = bytearray(whole)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    done = subprocess.run([program, "convert", "-", path("W.st")], input=bytes(damaged), capture_output=True)
    assert done.returncode in (0, 5) and done.stderr.count(b"\n") == (done.returncode != 0), (bytes(damaged), done)

# Arguments.
put("m.onnx", whole)
for arguments, status, part in (
        ([], 2, "wanted MODEL.onnx and OUT.safetensors"), ([path("m.onnx")], 2, "wanted MODEL.onnx"),
        ([path("m.onnx"), "-", "--json"], 2, "wanted twice"), ([path("none"), path("o")], 5, "none"), ([folder, path("o")], 5, "directory"),
        ([path("m.onnx"), path("no/o")], 4, "no/o"), ([path("m.onnx"), path("o"), "more"], 2, "more"), ([path("m.onnx"), "/dev/full"], 4, "space")):
    told = run("convert", *arguments, wanted=status)
    assert part in told, (arguments, told)
print("cli_convert: %d exported models equal ONNX Runtime's numbers" % len(files))
PYTHON
