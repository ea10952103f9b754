#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_device_train.sh BUILD_DIR: 'train mlp|resnet --device cuda' and 'eval' over the stand-ins of tests/device: the processor's log to
# the bit where the operations are the same, within round-off elsewhere; stopped and gone on with; what is refused.
set -u
. "$(dirname "$0")/program.bash"
stand_ins=$build/stand-ins
[ -f "$stand_ins/libfake_device.so" ] || { echo "cli_device_train: no stand-in in $build"; exit 1; }
lanes=without
grep -q 'libfake_device_simt' "$build/build.ninja" "$build/Makefile" "$build/CMakeFiles/TargetDirectories.txt" 2>/dev/null && lanes=with
python3 - "$program" "$folder" "$stand_ins" "$lanes" <<'PYTHON'
import json, os, random, signal, subprocess, sys, time

from program import answer, content, path, put_images, refused, run, tensors, words

stand_ins = sys.argv[3]
os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, "libfake_device.so")
lanes = os.path.join(stand_ins, "libfake_device_simt.so")
# The build has it unless it has no simulator, or sanitizers.
assert os.path.exists(lanes) or sys.argv[4] == "without", "no stand-in by lanes in this build"
r = random.Random(3)
for split, count in (("train", 130), ("t10k", 40)):
    labels = [r.randrange(3) for _ in range(count)]
    put_images("data", split, (6, 6), [r.randrange(150) + 100 * (i // 12 == label) for label in labels for i in range(36)], labels)
fixed = ["--data", path("data"), "--epochs", "2", "--method", "sequential", "--activation"]


def log(name):
    return [json.loads(line) for line in content(name).decode().splitlines()]


def both(*given):
    """The run on the processor and the one there: logs and networks."""
    for device in ("cpu", "cuda"):
        back = ["--backward", "sequential"] if device == "cpu" else []
        run("train", *given, *back, "--device", device, "--log", path(device + ".log"), "--save", path(device), "--quiet")
    here, there = log("cpu.log"), log("cuda.log")
    assert [line["event"] for line in here] == [line["event"] for line in there] and len(here) > 4
    return here[:-1], there[:-1], tensors("cpu")[1], tensors("cuda")[1]


def near(given, allowed):
    here, there, *_ = both(*given)
    for a, b in zip(here, there):
        for key in ("loss", "test_loss"):
            assert abs(a.get(key, 0) - b.get(key, 0)) <= allowed * a.get(key, 0), (given, a, b)


# As with any other order of the same sums: SGD, for Adam divides by gradients that may be round-off alone.
near(["resnet", *fixed, "tanh", "--layers", "5", "--width", "12", "--batch", "16", "--optimiser", "sgd"], 1e-5)
near(["mlp", *fixed, "sigmoid", "--layers", "3", "--width", "2", "--batch", "130", "--optimiser", "sgd", "--dtype", "float64"], 1e-12)
exact = 0
if os.path.exists(lanes):
    os.environ["DEEPPCR_CUDA_MODULE"] = lanes
    near(["resnet", *fixed, "tanh", "--layers", "5", "--width", "12", "--batch", "16", "--optimiser", "sgd"], 1e-5)
    near(["resnet", *fixed, "gelu", "--layers", "5", "--width", "12", "--batch", "16", "--optimiser", "sgd", "--layer-norm"], 1e-5)
    near(["mlp", *fixed, "relu", "--layers", "4", "--width", "35", "--batch", "20", "--optimiser", "sgd", "--layer-norm", "--dtype", "float64"], 1e-12)
    near(["resnet", *fixed, "tanh", "--layers", "6", "--width", "4", "--batch", "16", "--optimiser", "sgd", "--layer-norm", "--tie", "2", "--clip", "0.5",
          "--dtype", "float64"], 1e-12)
    near(["resnet", *fixed, "tanh", "--layers", "5", "--width", "12", "--hidden", "20", "--branch", "two-layer", "--batch", "16", "--optimiser", "sgd"], 1e-5)
    near(["resnet", *fixed, "gelu", "--layers", "4", "--width", "6", "--hidden", "9", "--branch", "two-layer", "--layer-norm", "--batch", "16", "--optimiser",
          "sgd", "--tie", "2", "--clip", "0.5", "--dtype", "float64"], 1e-12)
    # The processor's kernels with fma, which the device's are operation by operation.
    for network in (["resnet", *fixed, "relu", "--layers", "6", "--width", "19", "--batch", "16"],
                    ["resnet", *fixed, "relu", "--layers", "3", "--width", "8", "--batch", "7", "--dtype", "float64", "--optimiser", "sgd"],
                    ["mlp", *fixed, "identity", "--layers", "4", "--width", "40", "--batch", "130", "--optimiser", "adam"],
                    ["mlp", *fixed, "relu", "--layers", "2", "--width", "5", "--batch", "1", "--limit", "20", "--clip", "0.1"],
                    ["resnet", *fixed, "gelu", "--layers", "5", "--width", "17", "--batch", "16"],
                    ["mlp", *fixed, "gelu", "--layers", "3", "--width", "9", "--batch", "33", "--dtype", "float64"],
                    ["resnet", *fixed, "silu", "--layers", "4", "--width", "24", "--batch", "16", "--optimiser", "sgd", "--dtype", "float64"],
                    ["mlp", *fixed, "silu", "--layers", "3", "--width", "35", "--batch", "40", "--clip", "0.05"],
                    ["resnet", *fixed, "relu", "--layers", "37", "--width", "11", "--batch", "16", "--tie", "1"],
                    ["resnet", *fixed, "gelu", "--layers", "7", "--width", "18", "--batch", "20", "--tie", "3", "--clip", "0.1", "--optimiser", "sgd"],
                    ["mlp", *fixed, "silu", "--layers", "6", "--width", "7", "--batch", "16", "--tie", "2", "--dtype", "float64"],
                    ["resnet", *fixed, "relu", "--layers", "6", "--width", "19", "--hidden", "26", "--branch", "two-layer", "--batch", "16"],
                    ["resnet", *fixed, "silu", "--layers", "5", "--width", "22", "--hidden", "10", "--branch", "two-layer", "--batch", "40", "--tie", "2",
                     "--optimiser", "sgd", "--dtype", "float64"],
                    ["resnet", *fixed, "relu", "--layers", "0", "--width", "6", "--batch", "200"]):
        if answer("info")["isa"] == "portable":
            break
        here, there, model_here, model_there = both(*network)
        for a, b in zip(here, there):
            for key in ("step", "loss", "accuracy", "test_loss", "test_accuracy"):
                assert a.get(key) == b.get(key), (network, a, b)
        for name in model_here:
            assert model_here[name] == model_there[name], (network, name)
        exact += 1
os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, "libfake_device.so")

# Learns, and says where.
small = ["--data", path("data"), "--layers", "6", "--width", "8", "--batch", "10", "--device", "cuda"]
told = answer("train", "resnet", *small, "--epochs", "8", "--rate", "0.01")
assert told["test_accuracy"] > 0.9 and "stand-in on the host" in told["device"] and "cuda:0" in told["sentence"], told
assert "threads_used" not in told
assert "is not measured" in answer("train", "mlp", *small[:-1], "auto", "--epochs", "1")["device"]

# Evaluated there, as on the processor.
run("train", "resnet", *small, "--epochs", "2", "--save", path("m"), "--quiet")
for lib in ("libfake_device.so", "libfake_device_simt.so"):
    os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, lib)
    if os.path.exists(os.environ["DEEPPCR_CUDA_MODULE"]):
        a, b = (answer("eval", path("m"), "--data", path("data"), "--batch", "7", "--method", "sequential", "--device", device) for device in ("cpu", "cuda"))
        assert a["test_accuracy"] == b["test_accuracy"] and abs(a["test_loss"] - b["test_loss"]) < 1e-5 and "cuda:0" in b["device"], (a, b)
os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, "libfake_device.so")
assert "is not measured" in answer("eval", path("m"), "--data", path("data"), "--device", "auto")["device"]
told = answer("eval", path("m"), "--data", path("data"), "--device", "cuda", "--method", "newton", "--no-fallback")
assert told["method"] == "newton" and "all sweeps in one launch on cuda:0" in told["sentence"], told
refused(2, "at most 100 on a device", "eval", path("m"), "--data", path("data"), "--device", "cuda", "--max-sweeps", "101")
run("train", "resnet", *small[:2], "--layers", "6", "--width", "2", "--epochs", "1", "--save", path("narrow"), "--quiet")
narrow = ["eval", path("narrow"), "--data", path("data"), "--method", "newton", "--no-fallback", "--device", "cuda"]
told = answer(*narrow)
assert told["method"] == "newton" and "cuda:0" in told["sentence"], told
refused(3, "did not converge", *narrow, env={**os.environ, "DEEPPCR_FAKE_LOCKED": "2"})
refused(4, "bytes were refused", *narrow, env={**os.environ, "DEEPPCR_FAKE_MEMORY": "8192"})

# Stopped by a signal and gone on with there: the bits of the run that nobody stopped. It has more epochs than anybody waits for, so the
# signal comes before its end, and goes on to the end of the next epoch.
common = ["train", "resnet", *small, "--tie", "2", "--layer-norm", "--constant-rate", "--warm-up", "3", "--test-every", "0", "--epochs"]
process = subprocess.Popen(words(*common, "1000000", "--save", path("stopped"), "--log", path("sl"), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
while process.poll() is None and not (os.path.exists(path("sl")) and os.path.getsize(path("sl")) > 500):
    time.sleep(0.002)
process.send_signal(signal.SIGTERM)
out, err = process.communicate(timeout=60)
assert process.returncode == 143, (process.returncode, out, err)
reached = max(line["step"] for line in log("sl") if line["event"] == "step")
epochs = str(reached // 13 + 1)
answer(*common, epochs, "--resume", path("stopped"), "--log", path("sl"))
answer(*common, epochs, "--save", path("whole"))
assert tensors("stopped") == tensors("whole"), "stopped and gone on with: other bits"
assert [line["step"] for line in log("sl") if line["event"] == "step"] == list(range(1, 13 * int(epochs) + 1))

# Recomputed: the same bits, in segments of 16 layers with and without a shorter one, wide and deep; a checkpoint goes on with and without.
# The plain stand-in rounds no adjoint between layers.
for lib, network in (("libfake_device_simt.so", ["resnet", "--layers", "36", "--width", "4", "--layer-norm", "--tie", "6"]),
                     ("libfake_device_simt.so", ["resnet", "--layers", "35", "--width", "4", "--hidden", "6", "--branch", "two-layer"]),
                     ("libfake_device_simt.so", ["resnet", "--layers", "20", "--width", "7", "--hidden", "5", "--branch", "two-layer", "--layer-norm"]),
                     ("libfake_device_simt.so", ["resnet", "--layers", "40", "--width", "8"]), ("libfake_device_simt.so", ["mlp", "--layers", "17", "--width", "33"]),
                     ("libfake_device.so", ["mlp", "--layers", "48", "--width", "5", "--dtype", "float64"]), ("libfake_device.so", ["resnet", "--layers", "3", "--width", "6"]),
                     ("libfake_device.so", ["resnet", "--layers", "1100", "--width", "3", "--limit", "20", "--dtype", "float64"])):
    given = ["train", *network, *fixed, "tanh", "--batch", "50", "--device", "cuda"]
    os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, lib)
    if os.path.exists(os.environ["DEEPPCR_CUDA_MODULE"]):
        a, b = (answer(*given, *more, "--save", path("r%d" % len(more))) for more in ([], ["--recompute"]))
        assert tensors("r0") == tensors("r1"), (network, lib)
        assert (a["train_loss"], a["test_loss"]) == (b["train_loss"], b["test_loss"]), (network, a, b)
os.environ["DEEPPCR_CUDA_MODULE"] = os.path.join(stand_ins, "libfake_device.so")
deep = ["train", "resnet", *fixed, "relu", "--layers", "400", "--width", "24", "--batch", "50", "--device", "cuda", "--constant-rate", "--warm-up", "0"]
little = {**os.environ, "DEEPPCR_FAKE_MEMORY": str(8 << 20)}
refused(4, "bytes were refused", *deep, env=little)
answer(*deep, "--recompute", "--save", path("d"), env=little)
answer(*deep, "--epochs", "3", "--resume", path("d"))
# Evaluated there in segments of 64 layers.
for method in ("sequential", "auto"):
    a, b = (answer("eval", path("d"), "--data", path("data"), "--batch", "30", "--method", m, "--device", d) for d, m in (("cpu", "sequential"), ("cuda", method)))
    assert a["test_accuracy"] == b["test_accuracy"] and abs(a["test_loss"] - b["test_loss"]) < 1e-4 * a["test_loss"], (a, b)
refused(2, "which go back in one scan", "train", "mlp", *fixed, "tanh", "--layers", "30", "--width", "4", "--recompute", "--device", "cuda")
refused(2, "recompute on a device with overlap", *deep, "--recompute", "--method", "overlap")

# A processor's checkpoint goes on there, its way back by the loop or open.
for back in ("sequential", "auto"):
    given = ["train", "resnet", *small[:-2], "--method", "sequential", "--constant-rate", "--warm-up", "0", "--epochs"]
    answer(*given, "1", "--backward", back, "--save", path("here"))
    assert answer(*given, "2", "--resume", path("here"), "--device", "cuda", "--log", path("hl"))["backward"] == "auto"
    assert [line["step"] for line in log("hl") if line["event"] == "step"][-1] == 26
    answer(*given, "3", "--backward", back, "--resume", path("here"))
    os.remove(path("hl"))

# Refused, in one line, before anything is written.
there = ["train", "resnet", *small, "--epochs", "1", "--save", path("none")]
refused(2, "--pipeline runs on processors", *there, "--pipeline", "gpipe", "--ranks", "2")
refused(2, "--data-parallel runs on processors", *there, "--data-parallel", "--ranks", "2")
refused(2, "go by the loop", *there[:2], *small[:2], "--layers", "6", "--width", "2", "--device", "cuda", "--layer-norm", "--method", "newton")
refused(2, "two-layer branches are dense there, and go by the loop", *there, "--branch", "two-layer", "--method", "newton")
refused(2, "a backward scheme on a device", *there, "--backward", "pcr")
refused(2, "auto, sequential, overlap and newton work there", *there, "--method", "picard")
refused(2, "'train' as given does not run on devices yet", "train", "vae", "--device", "cuda")
assert not os.path.exists(path("none"))
for setting, words_of in (("MEMORY=8192", "bytes were refused"), ("LAUNCH=1", "too many resources"), ("WAIT=1", "illegal memory access")):
    name, value = setting.split("=")
    refused(4, words_of, *there, env={**os.environ, "DEEPPCR_FAKE_" + name: value})
assert not os.path.exists(path("none")) or tensors("none"), "half a checkpoint"
print("cli_device_train: %d logs to the bit, learned, stopped, gone on with, refused" % exact)
PYTHON
status=$?
exit $status
