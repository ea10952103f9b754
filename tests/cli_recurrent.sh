#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_recurrent.sh BUILD_DIR: 'deeppcr solve rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru' on PyTorch's weights and numbers
# (fixtures/recurrent_*), by the loop and by auto; gradients; lengths; standard input and output; wrong arguments, files and shapes.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" tests/fixtures <<'PYTHON'
import glob, os, struct, sys

from program import always, answer, content, get_npy, get_npz, near, npy, path, put, put_npy, put_safetensors, read_npy, refused, run, safetensors, tensors

always += ["solve"]
fixtures = os.path.abspath(sys.argv[3])

runs = 0
for file in sorted(glob.glob(os.path.join(fixtures, "recurrent_*.safetensors"))):
    t = tensors(file)[1]
    name = os.path.basename(file)[len("recurrent_"):]
    kind = "rnn-relu" if name.startswith("rnn_relu") else name.split("_")[0]
    lstm, apart = kind in ("lstm", "paralstm"), kind in ("paragru", "paralstm", "mingru")
    arguments = [kind, "--weights", file, "--input", put_npy("x.npy", *t["x"]), "--output", path("y.npy"), "--final", path("ht.npy"),
                 "--grad-output", put_npy("gy.npy", *t["grad.y"]), "--grad-final", put_npy("gh.npy", *t["grad.ht"]), "--grads", path("g.safetensors")]
    if "h0" in t:
        arguments += ["--h0", put_npy("h0.npy", *t["h0"])]
    if "c0" in t:
        arguments += ["--c0", put_npy("c0.npy", *t["c0"])]
    if lstm:
        arguments += ["--final-c", path("ct.npy"), "--grad-final-c", put_npy("gc.npy", *t["grad.ct"])]
    if "lengths" in t:
        lengths = ",".join(str(int(n)) for n in t["lengths"][1])
        arguments += ["--lengths", lengths if kind != "gru" else put_npy("lengths.npy", *t["lengths"])]
    usual = len(name.split("_")) - ("relu" in name) == 2  # no variant
    for method in ("sequential", "auto", "newton" if apart else "overlap") if usual else ("auto",):
        told = answer(*arguments, "--method", method)
        near(file, get_npy("y.npy"), t["y"], 1e-10, 1e-2)
        near(file, get_npy("ht.npy"), t["ht"], 1e-10, 1e-2)
        if lstm:
            near(file, get_npy("ct.npy"), t["ct"], 1e-10, 1e-2)
        g = tensors("g.safetensors")[1]
        for name in t:
            if name.startswith("grad.") and name[5:] not in ("y", "ht", "ct"):
                near(name, g[{"x": "input"}.get(name[5:], name[5:])], t[name], 1e-9, 1e-2)
        assert told["kind"] == kind and told["length"] == t["x"][0][0] and told["hidden"] == (t["weight_hr_l0"][0][1] if "weight_hr_l0" in t else t["ht"][0][2])
        assert len(told["chains"]) == t["ht"][0][0] and all(c["reason"] for c in told["chains"])
        runs += 1
assert runs >= 132

# A reset after step 3 is two sequences; what is made again has the same bits.
file = os.path.join(fixtures, "recurrent_gru_plain.safetensors")
t = tensors(file)[1]
T, B, I = t["x"][0]
H = t["h0"][0][2]
marks = put_npy("marks.npy", [T, B], [float(i // B == 3) for i in range(T * B)])
arguments = ["gru", "--weights", file, "--input", put_npy("x.npy", *t["x"]), "--h0", put_npy("h0.npy", *t["h0"]), "--resets", marks, "--output", path("y.npy"),
             "--grad-output", put_npy("gy.npy", *t["grad.y"]), "--grads", path("g.safetensors")]
stored = answer(*arguments)
whole, grads = get_npy("y.npy")[1], tensors("g.safetensors")[1]
again = answer(*arguments, "--recompute")
assert get_npy("y.npy")[1] == whole and tensors("g.safetensors")[1] == grads
assert stored["tape_bytes"] >= T * B * 4 * H * 8 and again["tape_bytes"] == 0, (stored, again)
run("gru", "--weights", file, "--input", put_npy("x.npy", [T - 3, B, I], t["x"][1][3 * B * I:]), "--output", path("y.npy"), "--quiet")
assert get_npy("y.npy")[1] == whole[3 * B * H:]
run("gru", "--weights", file, "--input", path("x.npy"), "--output", path("y.npz"), "--final", path("h.npz"), "--quiet")
assert get_npz("y.npz") == {"y": get_npy("y.npy")} and [name for name in get_npz("h.npz")] == ["h"]
near("resets", ([3, B, H], whole[:3 * B * H]), ([3, B, H], t["y"][1][:3 * B * H]), 1e-10, 1e-2)
x = put_npy("x.npy", *t["x"])
out = run("gru", "--weights", file, "--input", "-", "--h0", put_npy("h0.npy", *t["h0"]), "--output", "-", "--quiet", data=npy(*t["x"]))
near("stdout", read_npy(out), t["y"], 1e-10, 1e-2)


# Lengths and resets as NumPy and PyTorch have them: int64 and bool.
def whole(name, descr, shape, data):
    head = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (descr, "".join("%d," % n for n in shape))).ljust(117) + "\n"
    return put(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


for option, text, file_of in (("--lengths", "7,0,3", whole("lengths.npy", "<i8", [B], struct.pack("<3q", 7, 0, 3))),
                              ("--resets", marks, whole("resets.npy", "|b1", [T, B], bytes(i // B == 3 for i in range(T * B))))):
    got = []
    for value in (text, file_of):
        run("gru", "--weights", file, "--input", x, option, value, "--output", path("y.npy"), "--quiet")
        got.append(get_npy("y.npy")[1])
    assert got[0] == got[1], option
for text in ("7, 0,3", " 7 ,0,\t3 "):
    run("gru", "--weights", file, "--input", x, "--lengths", text, "--output", path("y2.npy"), "--quiet")
    run("gru", "--weights", file, "--input", x, "--lengths", "7,0,3", "--output", path("y.npy"), "--quiet")
    assert get_npy("y2.npy") == get_npy("y.npy"), text
refused(5, "number 1 is -1: wanted 0..7", "gru", "--weights", file, "--input", x, "--output", path("y.npy"), "--lengths",
        whole("lengths.npy", "<i8", [B], struct.pack("<3q", 7, -1, 3)))
refused(5, "beyond 2^53", "gru", "--weights", file, "--input", x, "--output", path("y.npy"), "--lengths",
        whole("lengths.npy", "<i8", [B], struct.pack("<3q", 7, 1 << 60, 3)))

# Of a larger module's state_dict(), whose BatchNorm counts in int64: what is not asked for is left where it is.
run("gru", "--weights", file, "--input", x, "--output", path("y.npy"), "--quiet")
strings, parts = safetensors(file)
more = {"rnn." + name: part for name, part in parts.items() if "_l0" in name and "grad" not in name}
more["bn.num_batches_tracked"] = ((), bytes(8), "q")
run("gru", "--weights", put_safetensors("more.st", strings, more), "--prefix", "rnn.", "--input", x, "--output", path("more.npy"), "--quiet")
assert content("more.npy") == content("y.npy")
more["rnn.weight_ih_l1"] = ((1, 2), bytes(4), "h")
refused(5, "'rnn.weight_ih_l1' is of dtype I16, wanted F32 or F64", "gru", "--weights", put_safetensors("more.st", strings, more), "--prefix", "rnn.",
        "--input", x, "--output", path("more.npy"))

# A prefix that is wanted, or another than was given: the one that is there is named. One that goes on from the given one goes before.
core = {name: part for name, part in safetensors(file)[1].items() if "_l0" in name and "grad" not in name}
behind = put_safetensors("behind.st", strings, {"model.rnn." + name: part for name, part in core.items()})
several = put_safetensors("several.st", strings, {before + name: part for before in ("a.rnn.", "encoder.rnn.", "b.") for name, part in core.items()})
for weights, prefix, words in ((behind, None, "'weight_ih_l0' is absent, but 'weight_ih_l0' stands behind the prefix 'model.rnn.': give it with --prefix"),
                               (behind, "rnn.", "'rnn.weight_ih_l0' is absent, but 'weight_ih_l0' stands behind the prefix 'model.rnn.': give"),
                               (behind, "model.rnn", "'model.rnnweight_ih_l0' is absent, but 'weight_ih_l0' stands behind the prefix 'model.rnn.': give"),
                               (file, "rnn.", "'rnn.weight_ih_l0' is absent, but 'weight_ih_l0' stands without a prefix"),
                               (several, None, "behind the prefix 'b.' (and behind 2 others): give it"),
                               (several, "encoder", "behind the prefix 'encoder.rnn.': give it"),
                               (put_safetensors("far.st", strings, {"r" * 256 + name: part for name, part in core.items()}), None, "'weight_ih_l0' is absent, wanted a matrix")):
    given = ["--weights", weights] + (["--prefix", prefix] if prefix is not None else [])
    for always[:], arguments in ((["plan"], []), (["solve"], ["--input", x, "--output", path("more.npy")])):
        line = refused(5, words, "gru", *given, *arguments)
        assert ("--prefix" in line) == ("behind the prefix" in words), line
run("gru", "--weights", behind, "--prefix", "model.rnn.", "--input", x, "--output", path("more.npy"), "--quiet")
assert content("more.npy") == content("y.npy")

# What the file says of itself is a kind, and that of its weights; a file that says nothing is what its weights are.
for kind in ("rnn", "gru", "lstm", "paragru", "paralstm", "mingru"):
    own = os.path.join(fixtures, "recurrent_%s_plain.safetensors" % kind)
    strings, parts = safetensors(own)
    parts = {key: part for key, part in parts.items() if "_l0" in key and "grad" not in key}
    arguments = ["--input", put_npy("own.npy", *tensors(own)[1]["x"]), "--output", path("own_y.npy")]
    run(kind, "--weights", own, *arguments, "--quiet")
    wanted = content("own_y.npy")
    run(kind, "--weights", put_safetensors("says.st", {}, parts), *arguments, "--quiet")
    assert content("own_y.npy") == wanted
    for says in ("rnn", "rnn-relu", "gru", "lstm", "paragru", "paralstm", "mingru"):
        weights = put_safetensors("says.st", {"deeppcr.recurrent": says}, parts)
        if says == kind:
            run(kind, "--weights", weights, *arguments, "--quiet")
            assert content("own_y.npy") == wanted
        elif (says, kind) == ("rnn-relu", "rnn"):
            refused(5, "its weights are those of rnn-relu, wanted rnn", kind, "--weights", weights, *arguments)
        else:
            words = "metadata deeppcr.recurrent is '%s', and its weights are those of %s" % (says, kind)
            if (says, kind) == ("paralstm", "paragru"):
                words = "tensor 'peephole_l0' is absent, wanted [2 hidden], as metadata deeppcr.recurrent is 'paralstm'"
            for asked in {kind, "rnn-relu" if kind == "rnn" else kind, kind if kind == "mingru" else says}:
                refused(5, words, asked, "--weights", weights, *arguments)
    for typo in ("rnn_relu", "GRU", "", "gru "):
        refused(5, "metadata deeppcr.recurrent: no recurrent network '%s'; there are rnn, rnn-relu, gru" % typo, kind, "--weights",
                put_safetensors("says.st", {"deeppcr.recurrent": typo}, parts), *arguments)
strings, parts = safetensors(file)

# States go through a pipe as they go through files, by ranks too; no text stands behind them.
for kind, names in (("gru", ["h"]), ("lstm", ["h", "c"])):
    own = os.path.join(fixtures, "recurrent_%s_plain.safetensors" % kind)
    usual = [kind, "--weights", own, "--input", put_npy("own.npy", *tensors(own)[1]["x"])]
    for name in names:
        out, into = {"h": "--final", "c": "--final-c"}[name], "--%s0" % name
        for more in ([], ["--ranks", 2]):
            run(*usual, "--output", path("own_y.npy"), out, path("state.npy"), *more, "--quiet")
            sent = run(*usual, out, "-", *more)
            assert sent == content("state.npy") and sent == run(*usual, "--output", path("own_y.npy"), out, "/dev/stdout", *more), (kind, out, more)
        run(*usual, into, path("state.npy"), out, path("next.npy"), "--quiet")
        assert run(*usual, into, "-", out, "-", data=sent) == content("next.npy"), (kind, out)

# Weights and inputs of two bytes are the floats that they say.
strings, parts = safetensors(file)
for letter in "ef":
    few = {}
    for name, (shape, data, wide) in parts.items():
        values = struct.unpack("<%d%s" % (len(data) // struct.calcsize(wide), wide), data)
        rounded = struct.pack("<%de" % len(values), *values)
        few[name] = (shape, rounded if letter == "e" else struct.pack("<%df" % len(values), *struct.unpack("<%de" % len(values), rounded)), letter)
    weights = put_safetensors("half.st", strings, {name: part for name, part in few.items() if "_l0" in name and "grad" not in name})
    run("gru", "--weights", weights, "--input", whole("half.npy", "<" + {"e": "f2", "f": "f4"}[letter], *few["x"][:2]), "--output", path(letter + ".npy"), "--quiet")
assert content("e.npy") == content("f.npy") and list(get_npy("f.npy")[0]) == [T, B, H]

# Steps of no sequence take no time, however many a file says there are.
x_none, y_none, marks_none = (whole("none%d.npy" % i, "<f8", [10 ** 15, 0, *more], b"") for i, more in enumerate(([I], [H], [])))
for arguments in (["--resets", marks_none], ["--resets", marks_none, "--ranks", 2],
                  ["--lengths", put_npy("no.npy", [0], []), "--grad-output", y_none, "--grads", path("g.safetensors")]):
    run("gru", "--weights", file, "--input", x_none, "--output", path("y.npy"), *arguments, "--quiet", timeout=60)
    assert list(get_npy("y.npy")[0]) == [10 ** 15, 0, H]

apart_file = os.path.join(fixtures, "recurrent_paragru_plain.safetensors")
usual = ["gru", "--weights", file, "--input", x, "--output", path("y.npy")]
for arguments, status, part in (
        (["gru"], 2, "no --weights"),
        (["gru", "--weights", file], 2, "no --input"),
        (["gru", "--weights", file, "--input", x], 2, "nothing would be kept"),
        (usual + ["--c0", x], 2, "of an LSTM"),
        (usual + ["--grads", path("g")], 2, "--grad-output"),
        (usual + ["--grad-output", x], 2, "--grads"),
        (usual + ["--grad-output", x, "--grads", path("g.npz")], 2, "wanted a name that does not end in .npz"),
        (usual + ["--json", "--output", "-"], 2, "standard output is wanted twice (--json and --output)"),
        (usual + ["--output", "-", "--final", "-"], 2, "standard output is wanted twice (--output and --final)"),
        (usual + ["--final", path("y.npy")], 2, "y.npy' is to be written, and is named twice"),
        (usual + ["--final", path(".", "y.npy")], 2, "is named twice"),
        (usual + ["--final", path("h.npz:h")], 2, "names a member of a file"),
        (usual + ["--final", path("new.npy"), "--csv", path("new.npy")], 2, "new.npy' is to be written, and is named twice"),
        (["gru", "--weights", put("W.st", content(file)), "--input", x, "--output", path("W.st")], 2, "W.st' is to be read and to be written over"),
        (["lstm"] + usual[1:], 5, "those of gru, wanted lstm"),
        (["mingru"] + usual[1:], 5, "those of gru, wanted mingru"),
        (["gru", "--weights", apart_file] + usual[3:], 5, "those of paragru, wanted gru"),
        (["paralstm", "--weights", apart_file] + usual[3:], 5, "those of paragru, wanted paralstm"),
        (usual + ["--prefix", "rnn."], 5, "'rnn.weight_ih_l0' is absent"),
        (usual + ["--prefix", "r" * 255], 5, "weight_ih_l0' is absent"),
        (usual + ["--prefix", "r" * 256], 2, "--prefix '" + "r" * 40 + "...': has 256 bytes, wanted at most 255"),
        (usual + ["--h0", x], 5, "--h0 has shape [7][3][5]: wanted [1][3][6]"),
        (usual + ["--input", put_npy("flat.npy", [3, 5], t["x"][1][:15])], 5, "--input has 2 dimensions: wanted [T][B][5]"),
        (usual + ["--lengths", "7,,7"], 2, "'7,,7': wanted whole numbers 0..7"),
        (usual + ["--lengths", "5,-1,7"], 2, "'5,-1,7': wanted whole numbers 0..7"),
        (usual + ["--lengths", "5 1,7"], 2, "'5 1,7': wanted whole numbers 0..7"),
        (usual + ["--lengths", "5,1.5,7"], 2, "'5,1.5,7': wanted whole numbers 0..7"),
        (usual + ["--lengths", "7,99999999999999999999,7"], 2, "wanted 0..7"),
        (usual + ["--lengths", put_npy("two.npy", [2], [7, 7])], 5, "has 2 numbers: wanted 3"),
        (["linear", "--A", x, "--b", x, "--z0", "gru", "--output", path("z.npy")], 5, "gru"),
        (usual + ["--lengths", "7,7"], 2, "has 2 numbers: wanted 3"),
        (usual + ["--lengths", "7,8,1"], 2, "is 8: wanted 0..7"),
        (usual + ["--resets", x], 5, "--resets has another shape than the input's steps: wanted [7][3]"),
        (usual + ["--recompute"], 2, "it wants --grads"),
        (usual + ["--backward", "overlap"], 2, "it wants --grads"),
        (usual + ["--method", "sequential", "--run-up", "5"], 2, "--run-up beside method sequential, which has none; wanted --method auto, overlap"),
        (usual + ["--method", "sequential", "--chunk", "4"], 2, "--chunk beside method sequential, which has none"),
        (usual + ["--method", "sequential", "--max-sweeps", "4"], 2, "--max-sweeps beside method sequential"),
        (usual + ["--method", "overlap", "--window", "3"], 2, "--window beside method overlap, which has none; wanted --method auto, newton"),
        (usual + ["--method", "overlap", "--block", "3"], 2, "--block beside method overlap, which has none; wanted --method block"),
        (usual + ["--damping", "0.5"], 2, "--damping beside method auto, which has none; wanted --method damped"),
        (usual + ["--method", "newton", "--join-tolerance", "1"], 2, "--join-tolerance beside method newton"),
        (usual + ["--backward-chunk", "3"], 2, "--backward-chunk is of going back: it wants --grads"),
        (usual + ["--method", "sequential", "--no-fallback"], 2, "--no-fallback beside method sequential, which has none"),
        (usual + ["--method", "newton", "--scheme", "pcr", "--chunk", "3"], 2, "--chunk beside scheme pcr, which has none; wanted --scheme auto, chunked, overlap"),
        (usual + ["--method", "jacobi", "--scheme", "pcr"], 2, "--scheme beside method jacobi, which has none; wanted --method auto, newton"),
        (usual + ["--method", "parataa", "--scheme", "pcr"], 2, "--scheme beside method parataa, which has none"),
        (usual + ["--ranks", "2", "--guess", "zero"], 2, "--guess beside method sequential over ranks, which has none"),
        (usual + ["--ranks", "2", "--window", "3"], 2, "--window beside method sequential over ranks, which has none"),
        (usual + ["--ranks", "2", "--chunk", "3"], 2, "--chunk beside method sequential over ranks, which has none; wanted --method overlap"),
        (usual + ["--weights", path("none")], 5, "No such file"),
        (usual + ["--weights", x], 5, "header"),
        (usual + ["--output", path("no/y.npy")], 4, "no/y.npy"),
        (usual + ["--memory-limit", "10"], 4, "the limit is 10"),
        (["--weights", file, "gru"], 2, "no --input"),
        (["tree"], 2, "there are linear, rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru, biquads, selective and attention"),
):
    refused(status, part, *arguments)
assert content("W.st") == content(file)
# What the way back looks at is taken beside a method that does not.
run(*usual, "--method", "sequential", "--run-up", "2", "--chunk", "3", "--tolerance", "1e-4", "--backward-chunk", "3", "--backward", "overlap",
    "--grad-output", put_npy("gy.npy", [T, B, H], [1] * (T * B * H)), "--grads", path("g.st"), "--quiet")
run("gru", "--weights", file, "--input", x, "--output", "/dev/null", "--final", "/dev/null", "--quiet")
print("cli_recurrent: %d runs equal PyTorch's numbers" % runs)
PYTHON
