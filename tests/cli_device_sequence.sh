#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_device_sequence.sh BUILD_DIR: 'train rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru --device cuda' and 'eval' of what it leaves
# over the stand-ins of tests/device: the processor's log within round-off; stopped and gone on with; what is refused.
set -u
. "$(dirname "$0")/program.bash"
stand_ins=$build/stand-ins
[ -f "$stand_ins/libfake_device.so" ] || { echo "cli_device_sequence: no stand-in in $build"; exit 1; }
lanes=without
grep -q 'libfake_device_simt' "$build/build.ninja" "$build/Makefile" "$build/CMakeFiles/TargetDirectories.txt" 2>/dev/null && lanes=with
python3 - "$program" "$folder" "$stand_ins" "$lanes" <<'PYTHON'
import json, os, signal, subprocess, sys, time

from program import answer, content, path, put, refused, run, tensors, words

stand_ins = sys.argv[3]
plain, lanes = (os.path.join(stand_ins, "libfake_device%s.so" % s) for s in ("", "_simt"))
# The build has it unless it has no simulator, or sanitizers.
assert os.path.exists(lanes) or sys.argv[4] == "without", "no stand-in by lanes in this build"
os.environ["DEEPPCR_CUDA_MODULE"] = plain
bits = ["--data", "bitstream", "--limit", "36", "--length", "24", "--hidden", "6", "--batch", "5", "--epochs", "2"]
put("words.txt", b"to be or not to be, that is the question. " * 60)
text = ["--data", path("words.txt"), "--hidden", "9", "--embedding", "5", "--batch", "4", "--length", "20", "--epochs", "1", "--limit", "1200"]


def log(name):
    return [json.loads(line) for line in content(name).decode().splitlines()]


def near(allowed, *given):
    """The run on the processor and the one there: their logs, line by line. SGD, for Adam divides by gradients that may be round-off alone."""
    for device in ("cpu", "cuda"):
        back = ["--backward", "sequential"] if device == "cpu" else []
        run("train", *given, *back, "--optimiser", "sgd", "--device", device, "--log", path(device + ".log"), "--quiet")
    here, there = log("cpu.log")[:-1], log("cuda.log")[:-1]
    assert [line["event"] for line in here] == [line["event"] for line in there] and len(here) > 4
    for a, b in zip(here, there):
        assert a["step"] == b["step"] and a["accuracy"] == b["accuracy"], (given, a, b)
        for key in ("loss", "test_loss"):
            assert abs(a.get(key, 0) - b.get(key, 0)) <= allowed * a.get(key, 0), (given, a, b)
    for name in ("cpu.log", "cuda.log"):
        os.remove(path(name))


kinds = ("rnn", "rnn-relu", "gru", "lstm", "paragru", "paralstm", "mingru")
for module in (plain, lanes):
    if not os.path.exists(module):
        continue
    os.environ["DEEPPCR_CUDA_MODULE"] = module
    for kind in kinds:
        near(1e-5, kind, *bits, "--method", "sequential")
    near(1e-11, "gru", *bits, "--method", "sequential", "--dtype", "float64", "--layers", "2", "--bidirectional", "--readout", "mean")
    near(1e-5, "lstm", *text, "--method", "sequential")
    near(1e-11, "gru", *text, "--method", "sequential", "--dtype", "float64", "--layers", "2", "--clip", "0.05")
    near(1e-11, "lstm", *text, "--method", "sequential", "--dtype", "float64", "--layers", "3", "--dropout", "0.3", "--clip", "0.05")
    near(1e-11, "gru", *bits, "--method", "sequential", "--dtype", "float64", "--layers", "2", "--dropout", "0.5", "--bidirectional", "--readout", "mean")
    near(1e-11, "lstm", *bits, "--method", "sequential", "--dtype", "float64", "--segment", "7", "--clip", "0.1")
    near(1e-11, "lstm", *bits, "--method", "sequential", "--dtype", "float64", "--segment", "7", "--projection", "2", "--layers", "2")
    near(1e-5, "lstm", *text, "--method", "sequential", "--projection", "4", "--layers", "2", "--dropout", "0.2")
    near(1e-5, "gru", *bits, "--method", "overlap", "--layers", "2", "--segment", "8")
os.environ["DEEPPCR_CUDA_MODULE"] = plain

# Learns, and says where; a text too, by its own choice of the method.
told = answer("train", "gru", *bits, "--limit", "400", "--length", "60", "--epochs", "6", "--rate", "0.01", "--device", "cuda", "--save", path("m"))
assert told["train_loss"] < 1.9 and "stand-in on the host" in told["device"] and "cuda:0" in told["sentence"], told
assert "threads_used" not in told
assert "is not measured" in answer("train", "gru", *bits, "--device", "auto")["device"]
told = answer("train", "lstm", *text, "--epochs", "6", "--rate", "0.02", "--device", "cuda", "--save", path("t"))
assert told["test_loss"] < 2.2 and told["backward"] == "auto", told

# Evaluated there, as on the processor.
for module in (plain, lanes):
    os.environ["DEEPPCR_CUDA_MODULE"] = module
    if not os.path.exists(module):
        continue
    a, b = (answer("eval", path("m"), "--method", "sequential", "--batch", "7", "--limit", "20", "--device", device) for device in ("cpu", "cuda"))
    assert a["test_accuracy"] == b["test_accuracy"] and abs(a["test_loss"] - b["test_loss"]) < 1e-5 and "cuda:0" in b["device"], (a, b)
    for method in ("sequential", "overlap"):
        a, b = (answer("eval", path("t"), "--data", path("words.txt"), "--limit", "200", "--method", method, "--device", device) for device in ("cpu", "cuda"))
        assert a["accuracy"] == b["accuracy"] and abs(a["loss"] - b["loss"]) < 1e-5 and b["difference"] < 1e-5 and b["method"] == method, (a, b)
os.environ["DEEPPCR_CUDA_MODULE"] = plain

# What is refused there is a matter of usage, also where no fallback is allowed; what does not converge, or is refused here, is told as before.
answer("train", "paragru", *bits, "--device", "cuda", "--save", path("p"))
answer("train", "paragru", *text, "--device", "cuda", "--save", path("q"))
told = answer("train", "lstm", *text, "--projection", "4", "--device", "cuda", "--save", path("r"))
assert told["projection"] == 4 and tensors("r")[1]["rnn.weight_hr_l0"][0] == (4, 9), told
a, b = (answer("eval", path("r"), "--data", path("words.txt"), "--limit", "200", "--method", "sequential", "--device", device) for device in ("cpu", "cuda"))
assert a["accuracy"] == b["accuracy"] and abs(a["loss"] - b["loss"]) < 1e-5, (a, b)
for model, data in (("m", []), ("t", ["--data", path("words.txt"), "--limit", "200"])):
    for more in ([], ["--no-fallback"]):
        refused(2, "newton is of paragru", "eval", path(model), *data, "--device", "cuda", "--method", "newton", *more)
        refused(2, "work there", "eval", path(model), *data, "--device", "cuda", "--method", "picard", *more)
for model, data in (("p", ["--limit", "20"]), ("q", ["--data", path("words.txt"), "--limit", "200"])):
    strict = ["eval", path(model), *data, "--method", "newton", "--no-fallback"]
    answer(*strict, "--device", "cuda")
    refused(3, "did not converge", *strict, "--device", "cuda", env={**os.environ, "DEEPPCR_FAKE_LOCKED": "2"})
    refused(3, "did not converge", *strict, "--max-sweeps", "1", "--tolerance", "1e-9")

# auto stays here, whatever the verb, and says so in one line; with an option that no device takes too.
for model, data in (("m", ["--limit", "20"]), ("t", ["--data", path("words.txt"), "--limit", "200"])):
    assert "is not measured" in answer("eval", path(model), *data, "--device", "auto")["device"]
    said = run("eval", path(model), *data, "--device", "auto", "--method", "picard").decode().splitlines()
    assert said[0].startswith("device: cpu: what evaluations take") and sum(line.startswith("device:") for line in said) == 1, said
assert "is not measured" in answer("train", "gru", *text, "--layers", "2", "--dropout", "0.1", "--device", "auto")["device"]

# Stopped by a signal and gone on with there: the bits of the run that nobody stopped.
common = ["train", "gru", *text, "--device", "cuda", "--constant-rate", "--warm-up", "3", "--test-every", "0", "--epochs"]
process = subprocess.Popen(words(*common, "1000000", "--save", path("stopped"), "--log", path("sl"), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
while process.poll() is None and not (os.path.exists(path("sl")) and os.path.getsize(path("sl")) > 500):
    time.sleep(0.002)
process.send_signal(signal.SIGTERM)
out, err = process.communicate(timeout=60)
assert process.returncode == 143, (process.returncode, out, err)
steps = [line["step"] for line in log("sl") if line["event"] == "step"]
an_epoch = (1200 - 1) // 4 // 20
epochs = str(max(steps) // an_epoch + 1)
answer(*common, epochs, "--resume", path("stopped"), "--log", path("sl"))
answer(*common, epochs, "--save", path("whole"))
assert tensors("stopped") == tensors("whole"), "stopped and gone on with: other bits"
assert "carried.h" in str(tensors("whole")), "no carried states"
assert [line["step"] for line in log("sl") if line["event"] == "step"] == list(range(1, an_epoch * int(epochs) + 1))

# A processor's checkpoint goes on there, its way back by the loop or open, and there's on the processor.
for back in ("sequential", "auto"):
    given = ["train", "lstm", *text, "--method", "sequential", "--constant-rate", "--warm-up", "0", "--epochs"]
    answer(*given, "1", "--backward", back, "--save", path("here"))
    assert answer(*given, "2", "--resume", path("here"), "--device", "cuda", "--log", path("hl"))["backward"] == "auto"
    assert [line["step"] for line in log("hl") if line["event"] == "step"][-1] == 2 * an_epoch
    answer(*given, "3", "--backward", back, "--resume", path("here"))
    os.remove(path("hl"))

# Refused, in one line, before anything is written.
there = ["train", "gru", *bits, "--device", "cuda", "--save", path("none")]
refused(2, "wanted --layers 2 or more with it", *there, "--dropout", "0.5")
refused(2, "projection, peepholes and input_forget are of an LSTM", *there, "--projection", "3")
refused(2, "wanted 1..5, fewer than hidden", "train", "lstm", *there[2:], "--projection", "6")
refused(2, "--dropout and --recompute", *there, "--segment", "5", "--layers", "2", "--dropout", "0.5")
refused(2, "a backward scheme on a device", *there, "--backward", "blelloch")
refused(2, "auto, sequential, overlap and newton work there", *there, "--method", "picard")
for more in ([], ["--no-fallback"]):
    refused(2, "newton is of paragru", *there, "--method", "newton", *more)
assert not os.path.exists(path("none"))
for setting, words_of in (("MEMORY=8192", "bytes were refused"), ("LAUNCH=1", "too many resources"), ("WAIT=1", "illegal memory access")):
    name, value = setting.split("=")
    refused(4, words_of, *there, env={**os.environ, "DEEPPCR_FAKE_" + name: value})
assert not os.path.exists(path("none")) or tensors("none"), "half a checkpoint"
# Segments take less of its memory.
long = ["train", "lstm", *bits, "--length", "600", "--epochs", "1", "--device", "cuda", "--quiet"]
little = {**os.environ, "DEEPPCR_FAKE_MEMORY": "430000"}
refused(4, "bytes were refused", *long, env=little)
run(*long, "--segment", "40", env=little)
print("cli_device_sequence: logs within round-off, learned, evaluated, stopped, gone on with, refused")
PYTHON
status=$?
exit $status
