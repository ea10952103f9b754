#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_vgg.sh BUILD_DIR: 'deeppcr train vgg11' on made images, small: the scan, the loop and dense products give the same
# gradients and the same losses, at any limit on levels; flops add up; pruned weights stay pruned; refusals.
set -u
build=$(cd "${1:?usage: cli_vgg.sh BUILD_DIR}" && pwd) || exit 1
program=$build/deeppcr
[ -x "$program" ] || { echo "cli_vgg: no program at $program"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 - "$program" "$folder" <<'PYTHON'
import json, os, random, signal, struct, subprocess, sys, time

program, folder = sys.argv[1:]
random.seed(3)


def path(*names):
    return os.path.join(folder, *names)


def run(*arguments, status=0):
    done = subprocess.run([program, "train", "vgg11", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    if status:
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("deeppcr "), (arguments, done.stderr)
    return done


def told(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def picture(label, planes, side):  # a bright bar, its place the label's
    rows = [[220 if y * 10 // side == label else 20 for x in range(side)] for y in range(side)]
    return bytes(min(255, v + random.randrange(30)) for _ in range(planes) for row in rows for v in row)


os.makedirs(path("cifar"))
for name in ["data_batch_%d.bin" % k for k in range(1, 6)] + ["test_batch.bin"]:
    with open(path("cifar", name), "wb") as file:
        for i in range(20):
            file.write(bytes([i % 10]) + picture(i % 10, 3, 32))
os.makedirs(path("idx"))
for split, count in (("train", 80), ("t10k", 20)):
    with open(path("idx", split + "-images-idx3-ubyte"), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 28, 28) + b"".join(picture(i % 10, 1, 28) for i in range(count)))
    with open(path("idx", split + "-labels-idx1-ubyte"), "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count)))

# ---- all ways the same ----
small = ["--divisor", 16, "--steps", 30, "--batch", 4, "--rate", "3e-3", "--prune", 0.7, "--compare", 10]
runs = {w: told("--data", path("cifar"), *small, "--way", w) for w in ("scan", "loop", "dense")}
for way, r in runs.items():
    assert r["max_error"] < 1e-5 and r["compared"] == 3 and r["way"] == way and r["channels"] == 3, r
    assert len(r["log"]) == 30 and abs(r["weights_kept"] - 0.3 * r["weights"]) < 12, r
    for a, b in zip(r["log"], runs["dense"]["log"]):
        assert abs(a["loss"] - b["loss"]) < 1e-3, (way, a, b)
assert runs["scan"]["train_loss"] < runs["scan"]["first_loss"], runs["scan"]
os.makedirs(path("many"))  # Ctrl-C ends the test too
for split, count in (("train", 80), ("t10k", 20000)):
    with open(path("many", split + "-images-idx3-ubyte"), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 28, 28) + picture(1, 1, 28) * count)
    with open(path("many", split + "-labels-idx1-ubyte"), "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count)))
child = subprocess.Popen([program, "train", "vgg11", "--data", path("many"), "--divisor", "4", "--steps", "1", "--test", "20000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
time.sleep(1.5)
child.send_signal(signal.SIGINT)
child.communicate(timeout=60)
assert child.returncode == 130, child.returncode
few = told("--data", path("cifar"), *small[:3], 1, *small[4:], "--test", 3)  # less than a batch: one batch
assert few["test_images"] == 4 and few["test_loss"] > 0, few
scan, loop, dense = runs["scan"]["ways"]
assert (scan["name"], loop["name"], dense["name"]) == ("scan", "loop", "dense")
assert scan["levels"] == 2 and loop["levels"] == 0 and scan["compositions"] > 0 and loop["compositions"] == 0
assert loop["flops"] == loop["critical_flops"] < dense["flops"] and scan["critical_flops"] < scan["flops"]

# ---- images of one plane; the tree's depth; threads ----
base = told("--data", path("idx"), *small, "--steps", 6, "--threads", 1)
assert base["channels"] == 1
for more in (["--level-limit", 0], ["--level-limit", "none"], ["--threads", 2]):
    r = told("--data", path("idx"), *small, "--steps", 6, *more)
    assert r["max_error"] < 1e-5 and abs(r["train_loss"] - base["train_loss"]) < 1e-4, (more, r)
    if "--level-limit" in more:
        assert (r["ways"][0]["levels"] == 0) == (more[1] == 0), r
    else:
        assert r["train_loss"] == base["train_loss"] and r["test_loss"] == base["test_loss"], (r, base)

# ---- refusals ----
os.makedirs(path("large"))
for split in ("train", "t10k"):
    with open(path("large", split + "-images-idx3-ubyte"), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, 4, 40, 28) + bytes(4 * 40 * 28))
    with open(path("large", split + "-labels-idx1-ubyte"), "wb") as file:
        file.write(struct.pack(">II", 0x801, 4) + bytes(4))
for arguments, status, word in (
    (["--data", path("large")], 5, "32 x 32"),
    (["--data", path("none")], 5, "none"),
    (["--data", path("idx"), "--batch", 50], 5, "less than a batch"),
    (["--way", "sideways"], 2, "--way"),
    (["--prune", 1], 2, "--prune"),
    (["--data", path("idx"), *small, "--rate", "1e30", "--compare", 0], 2, "loss"),
    (["resnet"], 2, "resnet"),
):
    assert word in run(*arguments, status=status).stderr, arguments
print("cli_vgg: the scan, the loop and dense products train alike")
PYTHON
