#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_device_recurrent.sh BUILD_DIR: 'solve gru|lstm --device cuda' of ONNX's variants and PyTorch's projection over the stand-ins of tests/device, forward
# and back, by the loop and overlapped: the processor's states and gradients within round-off, and other ones than without the variant.
set -u
. "$(dirname "$0")/program.bash"
stand_ins=$build/stand-ins
[ -f "$stand_ins/libfake_device.so" ] || { echo "cli_device_recurrent: no stand-in in $build"; exit 1; }
python3 - "$program" "$folder" "$stand_ins" <<'PYTHON'
import json, os, random, struct, sys

from program import answer, get_npy, near, path, put, put_npy, refused, run, tensors

T, B, I, H = 70, 3, 2, 5
draws = random.Random(4)
modules = [p for p in (os.path.join(sys.argv[3], "libfake_device%s.so" % s) for s in ("", "_simt")) if os.path.exists(p)]


def numbers(count, size=0.5):
    return [struct.unpack("<f", struct.pack("<f", draws.uniform(-size, size)))[0] for _ in range(count)]


def put_weights(name, gates, strings, both=False, peepholes=False, P=H):
    """A network of one layer whose variant its metadata name, as 'convert' leaves it."""
    head, body = {"__metadata__": strings}, b""
    for end in ("", "_reverse") if both else ("",):
        shapes = {"weight_ih": (gates * H, I), "weight_hh": (gates * H, P), "bias_ih": (gates * H,), "bias_hh": (gates * H,)}
        if P < H:
            shapes["weight_hr"] = (P, H)
        if peepholes:
            shapes["weight_ch"] = (3 * H,)
        for key, shape in shapes.items():
            data = b"".join(struct.pack("<f", v) for v in numbers(shape[0] * (shape[1] if len(shape) > 1 else 1)))
            head[key + "_l0" + end] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
    text = json.dumps(head).encode()
    put(name, struct.pack("<Q", len(text)) + text + body)


put_npy("x.npy", (T, B, I), numbers(T * B * I, 1), "f")
for P in (H, 2):
    put_npy("dy%d.npy" % P, (T, B, P), numbers(T * B * P, 1), "f")
    put_npy("both%d.npy" % P, (T, B, 2 * P), numbers(T * B * 2 * P, 1), "f")
    put_npy("dht%d.npy" % P, (1, B, P), numbers(B * P, 1), "f")
    put_npy("h0%d.npy" % P, (1, B, P), numbers(B * P, 1), "f")
variants = {  # kind, gates, metadata, both directions, peepholes, numbers of h
    "before": ("gru", 3, {"onnx.linear_before_reset": "0"}, False, False, H),
    "before_reverse": ("gru", 3, {"onnx.linear_before_reset": "0", "onnx.direction": "reverse"}, False, False, H),
    "before_both": ("gru", 3, {"onnx.linear_before_reset": "0"}, True, False, H),
    "peepholes": ("lstm", 4, {}, False, True, H),
    "coupled": ("lstm", 4, {"onnx.input_forget": "1"}, False, False, H),
    "all": ("lstm", 4, {"onnx.input_forget": "1", "onnx.direction": "reverse"}, False, True, H),
    "all_both": ("lstm", 4, {"onnx.input_forget": "1"}, True, True, H),
    "clipped": ("gru", 3, {"onnx.linear_before_reset": "0", "onnx.clip": "0.3"}, False, False, H),
    "clipped_after": ("gru", 3, {"onnx.clip": "0.4"}, True, False, H),
    "clipped_all": ("lstm", 4, {"onnx.clip": "0.25", "onnx.input_forget": "1", "onnx.direction": "reverse"}, False, True, 2),
    "clipped_rnn": ("rnn", 1, {"onnx.clip": "0.3"}, False, False, H),
    "clipped_relu": ("rnn-relu", 1, {"onnx.clip": "0.3"}, True, False, H),
    "projected": ("lstm", 4, {}, False, False, 2),
    "projected_both": ("lstm", 4, {}, True, False, 2),
    "projected_all": ("lstm", 4, {"onnx.input_forget": "1", "onnx.direction": "reverse"}, False, True, 2),
}
solved = 0
for name, (kind, gates, strings, both, peepholes, P) in variants.items():
    put_weights(name, gates, {"deeppcr.recurrent": kind, **strings}, both, peepholes, P)
    network = ["solve", kind, "--weights", path(name), "--input", path("x.npy"), "--grad-output", path(("both%d.npy" if both else "dy%d.npy") % P)]
    if not both:
        network += ["--grad-final", path("dht%d.npy" % P), "--h0", path("h0%d.npy" % P), "--final", path("ht.npy")]
    for more in ([], ["--lengths", "70,1,33"]):
        run(*network, *more, "--method", "sequential", "--output", path("here.npy"), "--grads", path("here.st"), "--quiet")
        wanted, gradients = get_npy("here.npy"), tensors("here.st")[1]
        assert ("weight_ch_l0" in gradients) == peepholes and ("weight_hr_l0" in gradients) == (P < H) and all(any(values) for _, values, _ in gradients.values()), gradients.keys()
        for module in modules:
            os.environ["DEEPPCR_CUDA_MODULE"] = module
            for method in (["sequential"], ["overlap", "--chunk", "16", "--run-up", "12"]):
                told = answer(*network, *more, "--method", *method, "--output", path("there.npy"), "--grads", path("there.st"), "--device", "cuda")
                assert "cuda:0" in told["device"] and told["chains"][0]["method"] == method[0], told
                near((name, method), get_npy("there.npy"), wanted, 1e-5)
                there = tensors("there.st")[1]
                assert there.keys() == gradients.keys()
                for key in gradients:
                    near((name, method, key), there[key], gradients[key], 3e-5, 1)
                solved += 1
# The variant is not without effect: the same numbers in PyTorch's form are another network.
os.environ["DEEPPCR_CUDA_MODULE"] = modules[0]
for name in ("before", "coupled", "clipped_rnn"):
    kind, gates = variants[name][:2]
    draws.seed(6)
    put_weights("with", gates, {"deeppcr.recurrent": kind, **variants[name][2]})
    draws.seed(6)
    put_weights("without", gates, {"deeppcr.recurrent": kind})
    states = []
    for weights in ("with", "without"):
        run("solve", kind, "--weights", path(weights), "--input", path("x.npy"), "--output", path("y.npy"), "--device", "cuda", "--quiet")
        states.append(get_npy("y.npy")[1])
    assert max(abs(a - b) for a, b in zip(*states)) > 1e-3, name
os.remove(path("y.npy"))
# Of no steps, and of no sequences: what comes in goes out, as on the processor.
put_weights("usual", 4, {"deeppcr.recurrent": "lstm"})
for steps, rows in ((0, B), (T, 0)):
    put_npy("none.npy", (steps, rows, I), [], "f")
    put_npy("dnone.npy", (steps, rows, H), [], "f")
    for state in ("h0", "c0", "dht", "dct"):
        put_npy(state + ".npy", (1, rows, H), numbers(rows * H, 1), "f")
    ends = []
    for device in ("cpu", "cuda"):
        run("solve", "lstm", "--weights", path("usual"), "--input", path("none.npy"), "--h0", path("h0.npy"), "--c0", path("c0.npy"), "--grad-output", path("dnone.npy"),
            "--grad-final", path("dht.npy"), "--grad-final-c", path("dct.npy"), "--output", path("y.npy"), "--final", path("ht.npy"), "--final-c", path("ct.npy"), "--grads",
            path("none.st"), "--device", device, "--quiet")
        ends.append([get_npy(name) for name in ("y.npy", "ht.npy", "ct.npy")] + [tensors("none.st")[1]])
    assert ends[0] == ends[1] and ends[0][1] == get_npy("h0.npy") and len(ends[0][1][1]) == rows * H, ends
os.remove(path("y.npy"))
# Behind newton an RNN goes back by overlap, whose run-up counts.
put_weights("plain", 1, {"deeppcr.recurrent": "rnn"})
put_npy("dy.npy", (T, B, H), numbers(T * B * H, 1), "f")
newton = ["solve", "rnn", "--weights", path("plain"), "--input", path("x.npy"), "--output", path("y.npy"), "--device", "cuda", "--method", "newton"]
run(*newton, "--run-up", 3, "--grad-output", path("dy.npy"), "--grads", path("none.st"), "--quiet")
os.remove(path("y.npy"))
refused(2, "--run-up beside method newton, which has none", *newton, "--run-up", 3)
put_weights("narrow", 4, {"deeppcr.recurrent": "lstm"}, P=2)
refused(2, "newton is of paragru", "solve", "lstm", "--weights", path("narrow"), "--input", path("x.npy"), "--output", path("y.npy"), "--device", "cuda", "--method", "newton")
assert not os.path.exists(path("y.npy"))
print("cli_device_recurrent: %d solves as on the processor" % solved)
PYTHON
status=$?
exit $status
