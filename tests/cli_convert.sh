#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_convert.sh BUILD_DIR: 'deeppcr convert' on models of torch.onnx.export (fixtures/onnx_*): what solve makes of the weights is what
# ONNX Runtime makes of the model; ONNX's node tests as literal values; every refusal; damaged, cut and hostile files.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" tests/fixtures <<'PYTHON'
import glob, os, random, struct, subprocess, sys

from program import answer, content, ended, folder, get_npy, is_one_line, near, npy, path, put, put_npy, read_npy, refused, run, tensors
from onnx_writer import attribute, block, halves, info, model, node, number, tensor, varint, weights

fixtures = os.path.abspath(sys.argv[3])


def solve(kind, x, lstm=False, letter="f", h0=None, c0=None, lengths=None):
    """y, ht (and ct) of the weights in W.st."""
    out = ["y", "ht"] + ["ct"] * lstm
    more = ["--lengths", lengths] if lengths else []
    for name, given in (("h0", h0), ("c0", c0)):
        more += ["--" + name, put_npy(name, *given[:2], letter)] if given else []
    run("solve", kind, "--weights", path("W.st"), "--input", put_npy("x.npy", *x[:2], letter), "--output", path("y"), "--final", path("ht"),
        *(["--final-c", path("ct")] if lstm else []), *more, "--quiet")
    got = {name: get_npy(name) for name in out}
    assert all(of == letter for _, _, of in got.values()), (kind, letter)
    return got


# What torch.onnx.export wrote, against ONNX Runtime.
files = sorted(glob.glob(os.path.join(fixtures, "onnx_*.onnx")))
assert len(files) >= 10
for file in files:
    wanted = tensors(file[:-5] + ".safetensors")[1]
    told = answer("convert", file, path("W.st"))
    both, layers = told["bidirectional"], told["layers"]
    assert wanted["ht"][0] == (layers * (1 + both), 2, 4) and (told["inputs"], told["hidden"], told["layout"]) == (3, 4, 0), told
    assert told["bias"] == ("no_bias" not in file) and both == ("both" in file or "parts" in file or "present" in file or "any" in file or file.endswith("rnn.onnx")), told
    assert tensors("W.st")[0] == {"deeppcr.recurrent": told["kind"], "onnx.layout": "0"}
    got = solve(told["kind"], wanted["x"], told["kind"] == "lstm")
    for name in got:
        near((file, name), got[name], wanted[name], 1e-5)
    del wanted["x"]
    assert set(got) == set(wanted)

# A1, ONNX's node tests (onnx/backend/test/case/node/{rnn,gru,lstm}.py): all weights one number a direction, all units equal.
P = ([1, 3, 2], [1, 2, 3, 4, 5, 6])
N = ([1, 3, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9])
Q = ([3, 1, 2], [1, 2, 3, 4, 5, 6])
CASES = (  # operator, hidden, x of the run, W = R a direction, bias, attributes, what is told at the end, a row a time
    ("RNN", 4, P, (0.1,), None, {}, {"ht": (0.29131263, 0.60436779, 0.80049902)}),
    ("RNN", 4, P, (0.5,), None, {"layout": 1}, {"ht": (0.90514821, 0.99817789, 0.99996662)}),
    ("RNN", 5, N, (0.1,), (0.1, 0.0), {}, {"ht": (0.60436779, 0.92166853, 0.98661429)}),
    ("RNN", 4, Q, (0.5, 2.0), None, {"direction": "bidirectional"}, {"ht": (0.99999940, 1.0)}),
    ("RNN", 4, Q, (0.1,), None, {"direction": "reverse"}, {"ht": (0.54270303,)}),
    ("GRU", 5, P, (0.1,), None, {}, {"ht": (0.12397028, 0.20053661, 0.19991653)}),
    ("GRU", 6, P, (0.2,), None, {"layout": 1}, {"ht": (0.19030015, 0.17513680, 0.09733082)}),
    ("GRU", 3, N, (0.1,), (0.1, 0.0), {}, {"ht": (0.20053661, 0.15482338, 0.07484276)}),
    ("GRU", 5, Q, (0.1,), None, {"direction": "reverse"}, {"ht": (0.35567555,), "y": (0.35567555, 0.33831972, 0.19991653)}),
    ("GRU", 5, Q, (0.5, 2.0), None, {"direction": "bidirectional"},
     {"ht": (0.18358351, 0.00247338), "y": (0.16512211, 0.00247338, 0.18146382, 8.3446503e-07, 0.18358351, 0.0)}),
    ("LSTM", 3, P, (0.1,), None, {}, {"ht": (0.09524120, 0.25606447, 0.40323776)}),
    ("LSTM", 7, P, (0.3,), None, {"layout": 1}, {"ht": (0.33369261, 0.62239319, 0.71857899)}),
    ("LSTM", 4, N, (0.1,), (0.1, 0.0), {}, {"ht": (0.25606447, 0.53672779, 0.66721320)}),
    ("LSTM", 3, Q, (0.1,), None, {"direction": "reverse"}, {"ht": (0.40412503,), "ct": (0.79702330,)}),
    ("LSTM", 3, ([1, 2, 4], list(range(1, 9))), (0.1,), (0.0, 0.0), {"P": 0.1}, {"ht": (0.37506911, 0.68013090)}),
    ("LSTM", 3, Q, (0.5, 2.0), None, {"direction": "bidirectional"}, {"ht": (0.99022442, 0.99504697), "ct": (2.71291304, 2.99997711)}),
)
USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "tanh"], "LSTM": ["Sigmoid", "Tanh", "tanh"]}
for form, data in (("raw", 1), ("raw", 11), ("packed", 1), ("single", 11)):
    for kind, hidden, x, w, b, attributes, ends in CASES:
        directions, letter = len(w), "fd"[data == 11]
        if b:
            b = list(b)
            rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind] * hidden
            b = [b[0]] * rows + [b[1]] * rows
        given = dict(attributes, hidden_size=hidden)
        peephole = given.pop("P", None)
        if form == "packed":
            given["activations"] = USUAL[kind] * directions
        constants = weights(kind, directions, hidden, x[0][2], list(w), list(w), b, form, data)
        inputs = ["X", "W", "R"] + ["B"] * bool(b)
        if peephole:
            inputs += ["", "", "", "P"]
            constants.append(tensor("P", (1, 3 * hidden), [peephole] * 3 * hidden, form, data))
        lone = node(kind, inputs, ["", "Y_h"], **given)
        put("m.onnx", model([lone], constants))
        run("convert", path("m.onnx"), path("W.st"), "--node", "Y_h", "--quiet")
        meta = tensors("W.st")[0]
        assert meta == {"deeppcr.recurrent": kind.lower(), "onnx.layout": str(attributes.get("layout", 0)),
                        **({"onnx.direction": "reverse"} if "reverse" in attributes.values() else {}),
                        **({"onnx.linear_before_reset": "0"} if kind == "GRU" else {})}, meta
        got = solve(kind.lower(), x, kind == "LSTM", letter)
        for name, values in ends.items():
            values = [v for v in values for _ in range(hidden)]
            shape = [x[0][0], 1, directions * hidden] if name == "y" else [directions, x[0][1], hidden]
            near((kind, name), got[name], (shape, values), 5e-7)

# A3, gates that all differ: ONNX Runtime's literal vectors (test/providers/cpu/rnn), T = 2.
W = [.1, .2, .3] + [.2, .3, .1] + [.3, .1, .2]
B = [-.04, .6, -.69, -.15, -.72, .32, .3, -.3, -.3] + [0] * 6 + [.07, -.03, .5]
gru = node("GRU", ["X", "W", "R", "B"], ["Y"], "gru", hidden_size=3, linear_before_reset=1)
put("m.onnx", model([gru], weights("GRU", 1, 3, 1, W, [.1] * 27, B)))
run("convert", path("m.onnx"), path("W.st"))
near("gru", solve("gru", ([2, 1, 1], [-.1, -.3]))["y"],
     ([2, 1, 3], [.15024948, -.11097029, -.02121867, .19538902, -.19016478, -.05644283]), 1e-6)
put("m.onnx", model([node("GRU", ["X", "W", "R", "B"], ["Y"], "gru", hidden_size=3)], weights("GRU", 1, 3, 1, W, [.1] * 27, B)))
run("convert", path("m.onnx"), path("W.st"))
near("gru", solve("gru", ([2, 1, 1], [-.1, -.3]))["y"],
     ([2, 1, 3], [.16783132, -.11754231, .11977843, .22688604, -.19698407, .14017843]), 1e-6)
put("m.onnx", model([node("GRU", ["X", "W", "R"], ["Y"], "gru", hidden_size=3)], weights("GRU", 1, 3, 1, [.1, .2, .3, 1, 2, 3, 10, 11, 12], [.1] * 27)))
run("convert", path("m.onnx"), path("W.st"))
near("gru", solve("gru", ([2, 2, 1], [1, 2, 10, 11]))["y"],
     ([2, 2, 3], [.4750208, .450166, .4255575, .45016602, .40131235, .35434368, .6027093, .5083023, .44950223, .5754369, .45485455, .3747841]), 1e-6)

# A2, gru_seq_length of the same tests: random numbers, as ONNX stores them.
W = [-0.153803959, -1.23867571, 0.487404585, -2.21027136, 1.23648906, -1.27952528, -0.0461680032, 1.62892687, -0.9568097, -0.223663747,
     -1.85306799, 0.736510754, -1.48624253, 0.79844135, -0.685019016, -0.421592832, -0.212861001, 1.02876043, -0.617086291, 0.505360186,
     -1.3530972, 0.311353117, -1.95330334, -0.381983995, 0.226920083, -0.0417124443, -1.377056, 0.0554736294, 0.163041756, -0.453604162,
     0.716247797, 0.870707333, -1.42373192, 0.395573586, 0.901267231, 0.0241761953, 0.664256096, -0.64078337, -0.250281215, -0.188977987,
     -1.48602009, -1.1925416, -1.8900398, -2.43554735, -0.364681125]
R = [1.08812153, -0.564986825, -0.629169643, -0.857696116, -0.348617852, 1.19031024, 0.176041603, 0.107630678, 1.08471799, 0.794862926,
     1.22034156, -0.702029645, 1.47314942, -0.303710759, -0.972135484, 0.78688699, -0.964008451, -0.135504305, 1.62525272, -0.268309027,
     0.26753816, 0.0930635557, 0.11480587, 0.0434194654, 0.981955409, 1.02114248, -0.195163518, -0.46067819, -0.608325899, -0.91655916,
     0.716435492, -0.170693308, -1.37996721, -0.0893347263, -0.0143330889, -0.77311331, 1.22820437, -0.201483846, -1.42530203,
     -0.473915577, 0.515100479, 1.5838263, -0.352108508, -2.00767112, -0.73579073, -0.846991181, 0.110012785, -1.01753426, -1.34155571,
     -0.310219795, 0.301383793, 0.113030575, 1.00031543, 1.48699903, 0.0413902104, 1.08185446, -0.16695191, 1.71686292, 0.0112929493,
     -0.240558207, -1.1292659, -0.886018217, -0.310517997, -2.12228251, -2.16040945, 0.786763668, -0.417909056, 1.26656699, -0.242751569,
     1.41611469, 0.28711006, -0.747523069, 0.78292501, 1.43215191, -0.872862577]
B = [-1.37972915, -0.617721379, -0.910534024, -0.64972049, -0.0896174014, -0.864439189, 0.0853300616, -0.0461227819, -0.917312205,
     -0.59975934, 1.12374854, -0.693116248, 0.324960709, 0.477382421, -0.535327971, 0.112185195, 0.631193221, -1.19494689, -1.82486248,
     -0.938634992, -2.14484262, -0.043325007, -0.19145897, 1.69150233, -0.915235817, 0.456123739, -1.49197221, 0.45646745, 0.890223265,
     -1.86131275]
put("m.onnx", model([node("GRU", ["X", "W", "R", "B"], ["", "Y_h"], "lengths", hidden_size=5)], weights("GRU", 1, 5, 3, W, R, B)))
run("convert", path("m.onnx"), path("W.st"))
near("gru_seq_length", solve("gru", ([2, 3, 3], list(range(1, 19))))["ht"],
     ([1, 3, 5], [.823930204, 1, -.4588359, -1, -1, .94664216, 1, -.403734475, -1, -1, .983827174, 1, -.115446232, -1, -1]), 1e-6)

# A3: an LSTM with and without peepholes, biases, states, coupled gates, of either direction.
W = [-.494659, .0453352, -.487793, .417264, -.0175329, .489074, -.446013, .414029, -.0091708, -.255364, -.106952, -.266717,
     -.0888852, -.428709, -.283349, .208792]
R = [.146626, -.0620289, -.0815302, .100482, -.219535, -.306635, -.28515, -.314112, -.228172, .405972, .31576, .281487,
     -.394864, .42111, -.386624, -.390225]
B = [.381619, .0323954, -.14449, .420804, -.258721, .45056, -.250755, .0967895] + [0] * 8
PEEPHOLES = tensor("P", (1, 6), [.2345, .5235, .4378, .3475, .8927, .3456])
X = ([2, 1, 2], [-.455351, -.276391, -.185934, -.269585])
h0, c0 = ([1, 1, 2], [.34, .72]), ([1, 1, 2], [.63, .21])
for attributes, inputs, more, y, c in (
        ({}, "BP", {}, (-.0251062475, .0561261699, -.03277518, .05935364), (-.0780206, .098829)),
        ({"direction": "reverse"}, "BP", {}, (-.03189282, .07626793, -.03068724, .02803503), None),
        ({"direction": "reverse"}, "B", {}, (-.033075746, .074455738, -.031248707, .027853041), None),
        ({}, "P", {}, (.04154162, .01969122, .05298181, .0030589), None),
        ({"input_forget": 1}, "BP", {}, (-.02510626, .05612619, -.0314321, .05087372), None),
        ({}, "B", {"h0": h0}, (.01797521, -.07104912, -.03174796, -.0152949), None),
        ({}, "B", {"h0": h0, "c0": c0}, (.12797015, .0097284, .02716939, .01842997), (.06408449, .03139432))):
    lone = node("LSTM", ["X", "W", "R", "B" * ("B" in inputs), "", "", "", "P" * ("P" in inputs)], ["Y"], "lstm", hidden_size=2, **attributes)
    put("m.onnx", model([lone], weights("LSTM", 1, 2, 2, W, R, B) + [PEEPHOLES]))
    told = answer("convert", path("m.onnx"), path("W.st"))
    assert told["peepholes"] == ("P" in inputs) and told.get("direction") == attributes.get("direction"), told
    assert told.get("input_forget") == ("1" if "input_forget" in attributes else None) and "clip" not in told, told
    got = solve("lstm", X, True, **more)
    near((attributes, inputs), got["y"], ([2, 1, 2], y), 1e-6)
    if c:
        near((attributes, inputs), got["ct"], ([1, 1, 2], c), 1e-6)

# Clips: what ONNX Runtime 1.31 makes of these.
def wave(n, k):
    return [((i * 37 + k * 11) % 41 - 20) / 20 for i in range(n)]


for kind, attributes, y in (
        ("RNN", {"clip": 0.5}, (0.46211720, 0.46211720, 0.14888501, 0.05026388, 0.46211720, 0.28232121)),
        ("GRU", {"linear_before_reset": 1, "clip": 0.5}, (-0.04632857, -0.10955736, 0.05414526, -0.31305772, 0.08832221, -0.30265307)),
        ("GRU", {"clip": 0.5}, (0.18224062, -0.04136278, 0.34474388, -0.29467559, 0.40770876, -0.17693330)),
        ("LSTM", {"clip": 0.3}, (-0.07085120, -0.09524118, -0.10487846, 0.00725537, -0.12373320, -0.09223567)),
        ("LSTM", {"clip": 0.3, "input_forget": 1}, (-0.07085120, -0.09524118, -0.11071955, 0.00725537, -0.13315655, -0.09223567))):
    G = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    put("m.onnx", model([node(kind, ["X", "W", "R", "B"], ["Y"], "clipped", hidden_size=2, **attributes)],
                        weights(kind, 1, 2, 2, wave(4 * G, 1), wave(4 * G, 2), wave(4 * G, 3))))
    told = answer("convert", path("m.onnx"), path("W.st"))
    assert abs(float(told["clip"]) - attributes["clip"]) < 1e-7, told
    near((kind, attributes), solve(kind.lower(), ([3, 1, 2], wave(6, 4)))["y"], ([3, 1, 2], y), 1e-6)

W = [.1, .2, .3, .4, 1, 2, 3, 4, 10, 11, 12, 13]
lstm = node("LSTM", ["X", "W", "R"], ["Y"], "lstm", hidden_size=3)
put("m.onnx", model([lstm], weights("LSTM", 1, 3, 1, W, .1)))
run("convert", path("m.onnx"), path("W.st"))
got = solve("lstm", ([2, 2, 1], [1, 2, 10, 11]), True)
near("lstm", got["y"], ([2, 2, 3], [.28828835, .36581863, .45679406, .34526032, .47220859, .55850911,
                                    .84196719, .89402526, .91073048, .85882828, .90703777, .92382453]), 1e-6)
near("lstm", got["ct"], ([1, 2, 3], [1.27731147, 1.44181041, 1.53179041, 1.3249796, 1.51063104, 1.61451544]), 1e-6)
got = solve("lstm", ([2, 2, 1], [1, 2, 10, 11]), True, lengths="1,2")
near("lstm, lengths", got["y"], ([2, 2, 3], [.28828835, .36581863, .45679406, .34526032, .47220859, .55850911,
                                             0, 0, 0, .85882828, .90703777, .92382453]), 1e-6)
near("lstm, lengths", got["ht"], ([1, 2, 3], [.28828835, .36581863, .45679406, .85882828, .90703777, .92382453]), 1e-6)
near("lstm, lengths", got["ct"], ([1, 2, 3], [.52497941, .54983425, .5744428, 1.3249796, 1.51063104, 1.61451544]), 1e-6)
put("m.onnx", model([node("LSTM", ["X", "W", "R"], ["Y"], "lstm", hidden_size=3, direction="reverse")], weights("LSTM", 1, 3, 1, W, .1)))
run("convert", path("m.onnx"), path("W.st"))
near("lstm, reverse", solve("lstm", ([2, 2, 1], [1, 2, 10, 11]), True)["y"],
     ([2, 2, 3], [.55391603, .69201493, .82696019, .64046413, .82303363, .91610711,
                  .61249432, .70678632, .74094619, .62759886, .71640738, .74624585]), 1e-6)
near("lstm, reverse, lengths", solve("lstm", ([2, 2, 1], [1, 2, 10, 11]), True, lengths="2,1")["y"],
     ([2, 2, 3], [.55391603, .69201493, .82696019, .34526044, .47220877, .55850935,
                  .61249432, .70678632, .74094619, 0, 0, 0]), 1e-6)

# A3: an RNN of both directions, of two lengths, from states that are not zero.
W = [.4317745, .37378395, -1.0386457, -.22681296, .4418987, .49973935, .47248289, -.63369429, .89542073, .69698066, .65118814, 1.0828459]
R = [-.24072374, -.29326528, -.91741192, .5447638, .53938544, .79502326, -.59813821, .020413321, -.52225035,
     -.4292987, -.14766316, -.91084105, .23699039, .064034894, .089069292, -.12803128, -.081178986, .967533]
B = [-.44529742, .80094892, -1.0028138, 0, 0, 0, .57412368, .13440208, -.85748988, 0, 0, 0]
rows = ((1.64644051, 2.14556813, 1.80829012, 1.63464952, 1.27096438, 1.93768239, 1.31276166, 2.67531896, 2.89098835, 1.15032458),
        (1.30798471, .0777787, 1.64898741, 1.30596721, 1.26110339, .99100447, 0, 0, 0, 0))
X = ([5, 2, 2], [rows[b][2 * t + i] for t in range(5) for b in range(2) for i in range(2)])
put("m.onnx", model([node("RNN", ["X", "W", "R", "B"], ["Y"], "both", hidden_size=3, direction="bidirectional")], weights("RNN", 2, 3, 2, W, R, B)))
run("convert", path("m.onnx"), path("W.st"))
near("rnn", solve("rnn", X, h0=([2, 2, 3], [1.2] * 12), lengths="5,3")["ht"],
     ([2, 2, 3], [.51060104, -.95055139, -.12672578, -.28076148, -.04275616, -.75480938,
                  -.71697658, .99646497, .9980582, .1513377, .90150106, .74947751]), 1e-6)

# Standard input and output; other data beside the model.
out = run("convert", "-", "-", "--quiet", data=content("m.onnx"))
assert out == content("W.st")
out = run("convert", "-", "-", data=content("m.onnx"))
assert out == content("W.st")


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
    told = answer("convert", "-", path("W.st"), data=bytes_)
    assert (told["layers"], told["kind"], told["hidden"]) == (2, "rnn", 2), told
    one = answer("convert", "-", path("W.st"), "--node", "two", data=bytes_)
    assert (one["layers"], one["inputs"]) == (1, 2 * (1 + one["bidirectional"]))


def bad(data, status, *parts, arguments=()):
    told = refused(status, "", "convert", "-", path("none.st"), *arguments, data=data)
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
bad(two(squeeze, second={"direction": "reverse"}), 5, names, "differ in direction")
bad(two(squeeze, second={"clip": 2.0}), 5, names, "differ in linear_before_reset, input_forget or clip")
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


single("LSTM", "P is computed", inputs=["X", "W", "R", "", "", "", "", "P"])
single("LSTM", "P has shape [1][5], wanted", inputs=["X", "W", "R", "", "", "", "", "P"], extra=[tensor("P", (1, 5), [1] * 5)])
single("LSTM", "P is not of the type of W", inputs=["X", "W", "R", "", "", "", "", "P"], extra=[tensor("P", (1, 6), [1] * 6, "raw", 11)])
single("RNN", "got clip = -3, wanted more than 0", clip=-3.0)
single("RNN", "got clip = 0", clip=0.0)
single("RNN", "got clip = nan", clip=float("nan"))
single("RNN", "'Affine'", activations=["Affine"])
single("LSTM", "'Relu'", activations=["Sigmoid", "Relu", "Tanh"])
single("LSTM", "got 2 activations, wanted 3", activations=["Sigmoid", "Tanh"])
single("RNN", "different activations", activations=["Relu", "Tanh"], direction="bidirectional", directions=2)
single("RNN", "got direction 'up?'", direction="up\n")
single("RNN", "got layout 2", layout=2)
for attributes, what in (
        ({"activation": ["Relu"]}, "'activation', which the operator does not have"), ({"activations": "Relu"}, "'activations', which is of another type"),
        ({"layout": "1"}, "'layout', which is of another type"), ({"clip": 3}, "'clip', which is of another type"),
        ({"direction": 1}, "'direction', which is of another type"), ({"hidden_size": 2.0}, "'hidden_size', which is of another type"),
        ({"a\nb": 1}, "'a?b', which the operator does not have")):
    single("RNN", "got attribute " + what, **attributes)
bad(model([node("RNN", ["X", "W", "R"], ["Y"], "it", direction="forward") + block(5, attribute("direction", "reverse"))],
          weights("RNN", 1, 2, 3, .5, .5)), 5, "got attribute 'direction', a second time")
for opset, attributes in ((1, {"output_sequence": 1}), (22, {"layout": 0}), (99, {})):
    run("convert", "-", path("W.st"), data=model([node("RNN", ["X", "W", "R"], ["Y"], **attributes)], weights("RNN", 1, 2, 3, .5, .5), opset=opset))
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
# Lengths: constants that are not all of the steps would be lost.
for form in ("raw", "packed"):
    for values in ([5, 4], [4, 4], [-5, -5], [], [5] * 1025):
        lengths = [tensor("L", (len(values),), values, form, 6)]
        bad(model([node("RNN", ["X", "W", "R", "", "L"], ["Y"], "it")], weights("RNN", 1, 2, 3, .5, .5) + lengths, [info("X", (5, 2, 3))]), 5,
            "'it' (RNN): sequence_lens is a constant")
    bad(model([node("RNN", ["X", "W", "R", "", "L"], ["Y"], "it")], weights("RNN", 1, 2, 3, .5, .5) + [tensor("L", (2,), [5, 5], form, 6)],
        [info("X", ("T", 2, 3))]), 5, "'it' (RNN): sequence_lens is a constant")  # how many steps there are is not known
    for layout, shape in ((0, (5, 2, 3)), (1, (2, 5, 3))):
        run("convert", "-", path("W.st"), data=model([node("RNN", ["X", "W", "R", "", "L"], ["Y"], layout=layout)],
            weights("RNN", 1, 2, 3, .5, .5) + [tensor("L", (2,), [5, 5], form, 6)], [info("X", shape)]))
# So would those that operators copy; not what is given, or counted when the model runs.
def lengths_of(steps):
    both, one = tensor("l", (2,), [steps] * 2, "raw", 7), tensor("k", (1,), [steps], "raw", 6)
    cast = node("Cast", ["l"], ["L"], to=6)
    return (([cast], [both]), ([node("Expand", ["k", "b"], ["L"])], [one]), ([node("Constant", [], ["l"], value_ints=[steps, steps]), cast], []),
            ([node("Constant", [], ["n"], value_int=steps), node("Unsqueeze", ["n", "0"], ["m"]), node("Cast", ["m"], ["L"], to=6)], []),
            ([node("Concat", ["k", "k"], ["L"], axis=0)], [one]), ([node("Concat", ["given", "k"], ["L"], axis=0)], [one]),
            ([node("ConstantOfShape", ["b"], ["L"], value=tensor("", (1,), [steps], "raw", 6))], []),
            *(() if steps == 5 else (([node("ConstantOfShape", ["b"], ["l"]), cast], []),)))  # zeros


for steps in (5, 3):
    for before, more in lengths_of(steps):
        data = model(before + [node("RNN", ["X", "W", "R", "", "L"], ["Y"], "it")], weights("RNN", 1, 2, 3, .5, .5) + more, [info("X", (5, 2, 3))])
        if steps == 5:
            run("convert", "-", path("W.st"), "--quiet", data=data)
        else:
            bad(data, 5, "'it' (RNN): sequence_lens is a constant, or has one's numbers")
for before in ([node("Shape", ["X"], ["l"]), node("Gather", ["l", "0"], ["n"]), node("Expand", ["n", "b"], ["L"])], [node("Cast", ["given"], ["L"], to=6)],
               [node("Min", ["given", "k"], ["L"])]):
    run("convert", "-", path("W.st"), "--quiet", data=model(before + [node("RNN", ["X", "W", "R", "", "L"], ["Y"], "it")],
        weights("RNN", 1, 2, 3, .5, .5) + [tensor("0", (1,), [0], "raw", 7), tensor("k", (1,), [3], "raw", 6)], [info("X", (5, 2, 3))]))
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

# Weights that nodes make of constants, as torch.onnx's newer exporter leaves large ones: the same bytes as of whole ones.
FEW = [tensor(str(n), (1,), [n], "raw", 7) for n in range(-3, 7)] + [tensor("end", (1,), [2 ** 63 - 1], "raw", 7), tensor("0,1", (2,), [0, 1], "raw", 7), tensor("1,1", (2,), [1, 1], "raw", 7),
                                                                             tensor("doubles", (2, 0, 3), [], "raw", 11)]
ROWS = [[[16 * d + 2 * r + k / 4 for k in range(3)] for r in range(6)] for d in range(2)]  # W: [2][6][3]
SQUARE = [[[-16 * d - 2 * r - k / 4 for k in range(2)] for r in range(6)] for d in range(2)]  # R: [2][6][2]


def flat(nested):
    return [v for part in nested for v in flat(part)] if isinstance(nested, list) else [nested]


def made(between, stored, w="W", r="R", kind=1, form="raw"):
    """A GRU whose W, R come from `between`; stored: name, shape, numbers."""
    return model([*between, node("GRU", ["X", w, r], ["Y"], "it", direction="bidirectional", linear_before_reset=1)],
                 FEW + [tensor(name, shape, flat(numbers), form, kind) for name, shape, numbers in stored])


def in_parts(name, matrices):
    """PyTorch's order of gates to ONNX's, cut, joined and stacked as that exporter does: nodes, and what is stored."""
    nodes = []
    for d in "01":
        cuts = [("0", "2"), ("2", "4"), ("4", "6")]
        nodes += [node("Slice", [name + d, *cut, "0"], [name + d + gate]) for gate, cut in zip("rzn", cuts)]
        nodes += [node("Concat", [name + d + gate for gate in "zrn"], [name + d + "j"], axis=0), node("Unsqueeze", [name + d + "j", "0"], [name + d + "u"])]
    torchs = [part[2:4] + part[0:2] + part[4:6] for part in matrices]
    return nodes + [node("Concat", [name + "0u", name + "1u"], [name], axis=0)], [(name + d, (6, len(part[0])), part) for d, part in zip("01", torchs)]


def weights_of(data):
    run("convert", "-", path("W.st"), "--quiet", data=data)
    return content("W.st")


WHOLE_W, WHOLE_R = ("W", (2, 6, 3), ROWS), ("R", (2, 6, 2), SQUARE)
TURNED = [[[ROWS[d][r][k] for d in range(2)] for r in range(6)] for k in range(3)]
WIDER = [[[9.0] + row + [7.0] for row in part] for part in ROWS]
for kind in (1, 10, 11, 16):
    for form in ("raw", "packed"):
        whole = weights_of(made([], [WHOLE_W, WHOLE_R], kind=kind, form=form))
        (w_nodes, w_stored), (r_nodes, r_stored) = in_parts("W", ROWS), in_parts("R", SQUARE)
        assert weights_of(made(w_nodes + r_nodes, w_stored + r_stored, kind=kind, form=form)) == whole
for before, stored in (
        ([node("Transpose", ["t"], ["W"])], ("t", (3, 6, 2), TURNED)), ([node("Transpose", ["t"], ["W"], perm=[-1, 1, 0])], ("t", (3, 6, 2), TURNED)),
        ([node("Reshape", ["t", "s"], ["W"]), constant("s", 0, -1, 3)], ("t", (2, 18), ROWS)), ([node("Reshape", ["t"], ["W"], shape=[2, 6, 3])], ("t", (36,), ROWS)),
        ([node("Squeeze", ["t", "s"], ["W"]), constant("s", 0, -2)], ("t", (1, 2, 6, 1, 3), ROWS)), ([node("Squeeze", ["t"], ["W"])], ("t", (2, 1, 6, 3), ROWS)),
        ([node("Squeeze", ["t"], ["W"], axes=[1])], ("t", (2, 1, 6, 3), ROWS)), ([node("Unsqueeze", ["t"], ["u"], axes=[0, -1]), node("Squeeze", ["u"], ["W"])], ("t", *WHOLE_W[1:])),
        ([node("Slice", ["t", "1", "4", "2"], ["W"])], ("t", (2, 6, 5), WIDER)), ([node("Slice", ["t", "1", "-1", "-1", "1"], ["W"])], ("t", (2, 6, 5), WIDER)),
        ([node("Slice", ["t"], ["W"], starts=[1], ends=[-1], axes=[2])], ("t", (2, 6, 5), WIDER)),
        ([node("Slice", ["t", "a", "b"], ["W"]), constant("a", 0, 1, 1), constant("b", 2, 7, 4)], ("t", (2, 7, 5), [[[0.0] * 5] + part for part in WIDER])),
        ([node("Slice", ["t", "-3", "end", "2"], ["v"]), node("Identity", ["v"], ["i"]),
          node("Slice", ["i", "s2", "s3", "s4"], ["j"]), constant("s2", -9, -2), constant("s3", 9, -1), constant("s4", 0, 2), node("Slice", ["t", "1", "2", "2"], ["k"]),
          node("Slice", ["t", "2", "3", "2"], ["l"]), node("Concat", ["k", "l", "j"], ["W"], axis=-1)], ("t", (2, 6, 5), WIDER))):
    assert weights_of(made(before, [stored, WHOLE_R])) == weights_of(made([], [WHOLE_W, WHOLE_R])), before
forty = [node("Concat", ["W%d" % n] * 40, ["W%d" % (n + 1)], axis=0) for n in range(9)]
doubled = [node("Concat", ["W%d" % n, "W%d" % n], ["W%d" % (n + 1)], axis=0) for n in range(60)]
for before, stored in (
        ([node("Slice", ["t", "0", "end", "2", "2"], ["W"])], WHOLE_W), ([node("Slice", ["t", "2", "0", "2", "-1"], ["W"])], WHOLE_W),
        ([node("Slice", ["t", "s", "s", "s"], ["W"]), constant("s", 0, 0)], WHOLE_W), ([node("Slice", ["t", "0", "1", "3"], ["W"])], WHOLE_W),
        ([node("Slice", ["t", "0", "given", "2"], ["W"])], WHOLE_W), ([node("Slice", ["t"], ["W"])], WHOLE_W), ([node("Slice", ["t", "0", "end"], ["W"], domain="other")], WHOLE_W),
        ([node("Concat", ["t", "0"], ["W"], axis=0)], WHOLE_W), ([node("Concat", ["t", "doubles"], ["W"], axis=1)], WHOLE_W), ([node("Concat", ["t", "R"], ["W"], axis=0)], WHOLE_W), ([node("Concat", ["t", "t"], ["W"], axis=3)], WHOLE_W),
        ([node("Concat", ["t", ""], ["W"], axis=0)], WHOLE_W), ([node("Concat", ["t"], ["W"])], WHOLE_W), ([node("Concat", ["t", "given"], ["W"], axis=0)], WHOLE_W),
        ([node("Reshape", ["t", "s"], ["W"]), constant("s", 2, 6, 4)], WHOLE_W), ([node("Reshape", ["t", "s"], ["W"]), constant("s", -1, -1, 3)], WHOLE_W),
        ([node("Reshape", ["t", "s"], ["W"]), constant("s", -2, -6, 3)], WHOLE_W), ([node("Reshape", ["t", "s"], ["W"], allowzero=1), constant("s", 0, 6, 3)], WHOLE_W),
        ([node("Reshape", ["t", "s"], ["W"]), constant("s", 2, 6, 3, 0)], WHOLE_W), ([node("Transpose", ["t"], ["W"], perm=[0, 0, 1])], WHOLE_W),
        ([node("Transpose", ["t"], ["W"], perm=[0, 1])], WHOLE_W), ([node("Squeeze", ["t", "0"], ["W"])], WHOLE_W), ([node("Unsqueeze", ["t", "5"], ["W"])], WHOLE_W),
        ([node("Unsqueeze", ["t", "s"], ["W"]), constant("s", 0, 1, 2, 3)], WHOLE_W), ([node("Mul", ["t", "t"], ["W"])], WHOLE_W), ([node("Slice", ["W", "0", "end"], ["W"])], WHOLE_W),
        ([node("Slice", ["t", "0", "end", "0,1"], ["W"])], WHOLE_W), ([node("Slice", ["t", "0", "end", "0", "1,1"], ["W"])], WHOLE_W),
        (forty + [node("Identity", ["W9"], ["W"])], ("W0", (0, 6, 3), [])), (doubled + [node("Identity", ["W60"], ["W"])], ("W0", (2, 6, 3), ROWS)), (doubled + [node("Identity", ["W60"], ["W"])], ("W0", (0, 6, 3), []))):
    bad(made(before, [("t" if stored is WHOLE_W else stored[0], *stored[1:]), WHOLE_R]), 5, "'it' (GRU): W is computed or given when the model runs")
bad(made([node("Slice", ["t", "0", "5", "1"], ["R"])], [WHOLE_W, ("t", *WHOLE_R[1:])]), 5, "R has shape [2][5][2], wanted")
bad(made([node("Slice", ["t", "0", "end"], ["W"])], [("t", (2, 6, 3), [1.0] * 35), WHOLE_R]), 5, "ONNX W: got 140 bytes")

# Where states and lengths come from. A shape that Y gives is no state of its: zeros of that shape are zeros.
SHAPE = [node("Shape", ["X"], ["n"]), constant("0", 0), constant("1", 1), constant("2", 2), node("Slice", ["n", "1", "2"], ["batch"]),
         node("Concat", ["1", "batch", "2"], ["s"], axis=0)]
FULL = [node("Expand", ["P", "s"], ["E"]), node("Transpose", ["E"], ["q"], perm=[0, 1, 2]), node("Identity", ["q"], ["H"])]
PLAIN = weights("LSTM", 1, 2, 3, .5, .5)


def begun(between, p=(0, 0), kind=1, inputs=("X", "W", "R", "", "", "H"), **more):
    return model([*SHAPE, *between, node("LSTM", inputs, ["Y"], "it", **more)], PLAIN + [tensor("P", (1, 1, 2), p, "raw", kind)])


def filled(value):
    return [node("ConstantOfShape", ["s"], ["H"], **({} if value is None else {"value": tensor("", (1,), [value])}))]


def FULLY(**value):
    return [node("Constant", [], ["v"], **value), node("Reshape", ["v", "s"], ["r"]), node("CastLike", ["r", "W"], ["H"])]


def FLOATS(*values):  # packed or not, as an attribute's list
    packed = block(1, "value_floats") + block(7, struct.pack("<%df" % len(values), *values)) + number(20, 6)
    single = block(1, "value_floats") + b"".join(varint(7 << 3 | 5) + struct.pack("<f", v) for v in values) + number(20, 6)
    return [node("Constant", [], ["v"]) + block(5, packed), node("Constant", [], ["u"]) + block(5, single), node("Concat", ["v", "u"], ["H"], axis=0)]


def CAST_FILL(value):
    return [node("ConstantOfShape", ["s"], ["c"], value=tensor("", (1,), [value], "raw", 7)), node("Cast", ["c"], ["H"], to=1)]


POSITIVE = [node("Concat", ["Q", "E"], ["z"], axis=0), node("Slice", ["z", "0", "1"], ["H"])]
for data in (begun(FULL), begun(FULL, kind=10), begun(filled(None)), begun(filled(0.0)), begun(FULL[:1] + POSITIVE), begun([constant("I", 0, 0), node("Cast", ["I"], ["H"], to=1)]),
             begun(FULL, (1, 1), inputs=["X", "W", "R"]),
             begun([node("Gemm", ["X", "P"], ["H"])], (1, 1)), begun([node("Tile", ["H", "s"], ["H"])]),
             begun(FULL[:1] + [node("Gather", ["E", "I"], ["H"])], (1, 1)), begun([node("Slice", ["P", "I", "J"], ["H"])], (1, 1)),
             begun(FULLY(value_float=0.0)), begun(FULLY(value_ints=[0, 0])), begun(FULLY(value_int=0)), begun(FLOATS(0.0, -0.0)), begun(CAST_FILL(0)), begun([node("Expand", ["P", "s"], ["H"], domain="other")], (1, 1))):
    run("convert", "-", path("W.st"), "--quiet", data=data)
for data, what in ((begun(FULL, (0, 1)), "initial_h"), (begun(FULL, (0, 1), 11), "initial_h"), (begun(filled(-.5)), "initial_h"), (begun(FULL[:1] + POSITIVE, (1, 0)), "initial_h"),
                   (begun(FULL, (1, 0), inputs=["X", "W", "R", "", "", "", "H"]), "initial_c"),
                   (begun([constant("I", 0, 3), node("Cast", ["I"], ["H"], to=1)]), "initial_h"), (begun(filled(float("nan"))), "initial_h"),
                   (begun(FULLY(value_float=.5)), "initial_h"), (begun(FULLY(value_ints=[0, 1])), "initial_h"), (begun(FULLY(value_int=2)), "initial_h"), (begun(FULLY(value_string="0")), "initial_h"),
                   (begun(FLOATS(0.0, 1.0)), "initial_h"), (begun(FLOATS(0.0, 2.0 ** -149)), "initial_h"), (begun(CAST_FILL(3)), "initial_h"),
                   (begun([constant("z", 0), node("Gather", ["P", "z"], ["H"])], (0, 1)), "initial_h"), (begun([node("Slice", ["P"], ["H"], starts=[0], ends=[1])], (0, 1)), "initial_h"),
                   (begun([node("Pad", ["P", "1", "Q"], ["H"]), constant("Q", 3)], (0, 0)), "initial_h"), (begun([node("Pad", ["P", "1"], ["H"])], (0, 1)), "initial_h")):
    bad(data, 5, "'it' (LSTM): %s has a constant's numbers other than 0" % what)
# What is computed is lost too, unless of what is given when the model runs.
for before, fixed in (([node("Tanh", ["P"], ["h"]), node("Expand", ["h", "s"], ["H"])], True), ([node("Expand", ["P", "s"], ["h"]), node("Mul", ["h", "P"], ["H"])], True),
                      ([node("ConstantOfShape", ["s"], ["z"]), node("Add", ["z", "P"], ["H"])], True),
                      ([node("Add", ["P", "given"], ["H"])], False), ([node("ReduceMax", ["X"], ["m"]), node("Max", ["P", "m"], ["H"])], False),
                      ([node("RandomNormal", [], ["r"], shape=[1, 1, 2]), node("Add", ["r", "P"], ["H"])], False), ([node("Bernoulli", ["P"], ["H"])], False),
                      ([node("Tanh", ["P"], ["H"], domain="other")], False), ([node("If", ["P"], ["H"]) + block(5, block(1, "then_branch") + block(6, b"") + number(20, 5))], False)):
    if fixed:
        bad(begun(before, (0, 1)), 5, "'it' (LSTM): initial_h is computed from constants alone")
    else:
        run("convert", "-", path("W.st"), "--quiet", data=begun(before, (0, 1)))


def handed(state, *between, lengths=("", ""), tensors=(), **more):
    return model([*SHAPE, node("LSTM", ["X", "1W", "1R", "", lengths[0]], ["Y", "YH", "YC"], "one", **more), node("Squeeze", ["Y"], ["a"], axes=[1]), *between,
                  node("LSTM", ["a", "2W", "2R", "", lengths[1], *state], ["Z"], "two", **more)],
                 weights("LSTM", 1, 2, 3, .5, .25, prefix="1") + weights("LSTM", 1, 2, 2, .5, .25, prefix="2") + list(tensors), [info("X", (5, 2, 3))])


names = "'one' (LSTM), 'two' (LSTM)"
LIKE = [node("Shape", ["YH"], ["sh"]), node("ConstantOfShape", ["sh"], ["H"])]
for data in (handed(["YH", "YC"]), handed(["", "YC"]), handed(["H"], node("MatMul", ["M", "YH"], ["H"])), handed(["H"], node("Slice", ["Y", "0", "1"], ["H"]))):
    bad(data, 5, names, "one begins in a state that another one makes")
    assert answer("convert", "-", path("W.st"), "--node", "two", data=data)["layers"] == 1
CASTS = [node("Cast", ["L"], ["L1"], to=6), node("Identity", ["L"], ["i"]), node("Cast", ["i"], ["L2"], to=6)]
ALL = [tensor("L", (2,), [5, 5], "raw", 6)]
for lengths, tensors, why in ((("", ""), (), None), (("L", "L"), (), None), (("L1", "L2"), (), None), (("L", ""), ALL, None), (("L", ""), (), names), (("", "L1"), (), names),
                              (("L1", "M"), (), names)):
    data = handed(["H"], *LIKE, *CASTS, lengths=lengths, tensors=tensors)
    if why:
        bad(data, 5, why, "differ in sequence_lens")
        run("convert", "-", path("W.st"), "--node", "one", "--quiet", data=data)
    else:
        assert answer("convert", "-", path("W.st"), data=data)["layers"] == 2

# An RNN's function is the file's where it says one, a clip has all of its digits.
for function, kind, other in (("Tanh", "rnn", "rnn-relu"), ("Relu", "rnn-relu", "rnn")):
    told = answer("convert", "-", path("W.st"), data=model([node("RNN", ["X", "W", "R"], ["Y"], activations=[function], clip=.3)], weights("RNN", 1, 2, 3, .5, .5, data=11)))
    assert told["kind"] == kind and float(told["clip"]) == struct.unpack("<f", struct.pack("<f", .3))[0], told
    put_npy("x.npy", [2, 1, 3], [1] * 6, "d")
    run("solve", kind, "--weights", path("W.st"), "--input", path("x.npy"), "--output", path("y"), "--quiet")
    refused(5, "its weights are those of %s, wanted %s" % (kind, other), "solve", other, "--weights", path("W.st"), "--input", path("x.npy"), "--output", path("y"))

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
    if part:
        refused(5, part, "convert", path("m.onnx"), path("W.st"))
    else:
        run("convert", path("m.onnx"), path("W.st"))
bad(content("m.onnx"), 5, "this model in none")
# The file that the weights lie in is not written over, by whatever name.
put("m.onnx", model(lone, [tensor("W", (1, 2, 3), [], ("data", "0", "24")), tensor("R", (1, 2, 2), [1] * 4)]))
os.symlink("data", path("other"))
for name in ("data", "other"):
    for arguments, what in (([path(name)], "the output"), ([path("W.st"), "--csv", path(name)], "--csv")):
        refused(2, "holds the model's weights and is to be written over (%s)" % what, "convert", path("m.onnx"), *arguments)
        assert content("data") == struct.pack("<10f", *range(10))
# Nor that of a tensor that convert has no use for, of a branch, of a function, or in another folder.
plain = [tensor("W", (1, 2, 3), [1] * 6), tensor("R", (1, 2, 2), [1] * 4)]
beside, above, absolute = (tensor("U", (6,), [], (place, "0", "24")) for place in ("data", "../" + os.path.basename(folder) + "/data", path("data")))
branch = node("If", ["c"], ["i"]) + block(5, block(1, "then_branch") + block(6, block(5, beside)) + number(20, 5))
branches = node("X", ["c"], ["i"]) + block(5, block(1, "all") + block(11, b"") + block(11, block(5, beside)) + number(20, 10))
tensors = node("X", ["c"], ["i"]) + block(5, block(1, "all") + block(10, plain[0]) + block(10, beside) + number(20, 9))
function = block(25, block(1, "f") + block(7, node("Constant", [], ["k"]) + block(5, block(1, "value") + block(5, beside) + number(20, 4))))
for bytes_ in (model(lone, plain + [above]), model(lone, plain + [absolute]), model(lone + [branch], plain), model(lone + [branches], plain), model(lone + [tensors], plain), model(lone, plain) + function):
    put("m.onnx", bytes_)
    run("convert", path("m.onnx"), path("W.st"), "--quiet")
    refused(2, "holds the model's weights", "convert", path("m.onnx"), path("data"))
    assert content("data") == struct.pack("<10f", *range(10))
assert subprocess.run(["bash", "-c", 'exec "$1" convert <(cat "$2") "$3" --quiet', "-", sys.argv[1], path("m.onnx"), path("W.st")]).returncode == 0  # a pipe is read once
put("cut.onnx", content("m.onnx")[:-3])
before = content("W.st")
refused(5, "cut.onnx", "convert", path("cut.onnx"), path("W.st"))
assert content("W.st") == before
put("m.onnx", model(lone, [tensor("W", (1, 2, 1 << 60), [], ("data", None, None)), tensor("R", (1, 2, 2), [1] * 4)]))
refused(5, "at most", "convert", path("m.onnx"), path("none.st"))
put("m.onnx", model(lone, [tensor("W", (1, 2, 1 << 50), [], ("data", None, None)), tensor("R", (1, 2, 2), [1] * 4)]))
refused(5, "of the 40", "convert", path("m.onnx"), path("none.st"))

# float16 and bfloat16, in all three places, normal or not: the floats that they are.
for kind, values in ((10, [.5, -.375, 65504, 2 ** -14, 3 * 2 ** -24, 0]), (16, [.5, -.375, 3e38, 2 ** -126, 2 ** -133, 0])):
    values = [struct.unpack("<f", bytes(2) + struct.pack("<H", b))[0] if kind == 16 else v for b, v in zip(halves(values, kind), values)]
    put("m.onnx", model(lone, [tensor("W", (1, 2, 3), values), tensor("R", (1, 2, 2), values[:4])]))
    run("convert", path("m.onnx"), path("wide.st"))
    put("data", struct.pack("<9H", 0, 0, 0, *halves(values, kind)))
    for form in ("raw", "packed", "single", ("data", "6", "12")):
        put("m.onnx", model(lone, [tensor("W", (1, 2, 3), values, form, kind), tensor("R", (1, 2, 2), values[:4], "packed", kind)]))
        run("convert", path("m.onnx"), path("W.st"))
        assert content("W.st") == content("wide.st"), (kind, form)
    put("m.onnx", model(lone, [tensor("W", (1, 2, 3), values[:5], "packed", kind), tensor("R", (1, 2, 2), values[:4], "raw", kind)]))
    refused(5, "got 10 bytes of numbers, wanted 12", "convert", path("m.onnx"), path("W.st"))
    put("m.onnx", model(lone, [tensor("W", (1, 2, 3), values, "raw", kind), tensor("R", (1, 2, 2), values[:4])]))
    refused(5, "not of one type", "convert", path("m.onnx"), path("W.st"))

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
for n in range(len(whole)):
    bad(whole[:n], 5)
random.seed(1)
for n in range(120):
    damaged = bytearray(whole if n % 2 else made(w_nodes, [*w_stored, WHOLE_R]))
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    done = ended((0, 5), "convert", "-", path("W.st"), data=bytes(damaged))
    assert is_one_line(done.stderr) if done.returncode else done.stderr == b"", (bytes(damaged), done)

# Arguments.
put("m.onnx", whole)
for arguments, status, part in (
        ([], 2, "wanted MODEL.onnx and OUT.safetensors"), ([path("m.onnx")], 2, "wanted MODEL.onnx"), ([path("m.onnx"), path("o.npy")], 2, "m.onnx' is no recording by its name (.wav, .flac, ...); of a model the output"),
        (["-", path("o.npz")], 2, "'-' is no recording by its name"),
        ([path("m.onnx"), "-", "--json"], 2, "wanted twice"), ([path("none"), path("o")], 5, "none"), ([folder, path("o")], 5, "directory"),
        ([path("m.onnx"), path("no/o")], 4, "no/o"), ([path("m.onnx"), path("o"), "more"], 2, "more"), ([path("m.onnx"), "/dev/full"], 4, "space")):
    refused(status, part, "convert", *arguments)
print("cli_convert: %d exported models equal ONNX Runtime's numbers" % len(files))
PYTHON
