#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_vgg.sh BUILD_DIR: 'deeppcr train vgg11' on made images, small: the scan, the loop and dense products give the same
# gradients and the same losses, at any limit on levels; flops add up; a network trained whole is pruned and trained on, comes
# back from its file, and from a checkpoint of any moment with the same bits; refusals.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import os, random, signal, struct, subprocess, time

from program import answer, content, is_one_line, path, put, put_cifar, put_images, put_older, put_safetensors, refused, safetensors, tensors, words

TRAIN = ["train", "vgg11"]
random.seed(3)


def picture(label, planes, side):  # a bright bar, its place the label's
    rows = [[220 if y * 10 // side == label else 20 for x in range(side)] for y in range(side)]
    return bytes(min(255, v + random.randrange(30)) for _ in range(planes) for row in rows for v in row)


put_cifar("cifar", [20] * 6, lambda label: picture(label, 3, 32))
for split, count in (("train", 80), ("t10k", 20)):
    put_images("idx", split, (28, 28), b"".join(picture(i % 10, 1, 28) for i in range(count)), bytes(i % 10 for i in range(count)))

# ---- all ways the same ----
small = ["--dense-steps", 0, "--divisor", 16, "--steps", 30, "--batch", 4, "--rate", "3e-3", "--prune", 0.7, "--compare", 10]
runs = {w: answer(*TRAIN, "--data", path("cifar"), *small, "--way", w) for w in ("scan", "loop", "dense")}
for way, r in runs.items():
    assert r["max_error"] < 1e-5 and r["compared"] == 3 and r["way"] == way and r["channels"] == 3, r
    assert len(r["log"]) == 30 and abs(r["weights_kept"] - 428 - 0.3 * (r["weights"] - 428)) < 12, r  # 428 of the first and the last layer
    for a, b in zip(r["log"], runs["dense"]["log"]):
        assert abs(a["loss"] - b["loss"]) < 1e-3, (way, a, b)
assert runs["scan"]["train_loss"] < runs["scan"]["first_loss"], runs["scan"]
for split, count in (("train", 80), ("t10k", 20000)):  # Ctrl-C ends the test too
    put_images("many", split, (28, 28), picture(1, 1, 28) * count, bytes(i % 10 for i in range(count)))
for seconds in (1.5, 5, 15):  # on a slow machine the program is not yet there to hear it
    child = subprocess.Popen(words(*TRAIN, "--data", path("many"), "--dense-steps", 0, "--divisor", 4, "--steps", 1, "--test", 20000),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(seconds)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    if child.returncode != -signal.SIGINT:
        break
assert child.returncode == 130, child.returncode
few = answer(*TRAIN, "--data", path("cifar"), *small, "--steps", 1, "--test", 3)  # less than a batch: one batch
assert few["test_images"] == 4 and few["test_loss"] > 0, few
scan, loop, dense = runs["scan"]["ways"]
assert (scan["name"], loop["name"], dense["name"]) == ("scan", "loop", "dense")
assert scan["levels"] == 2 and loop["levels"] == 0 and scan["compositions"] > 0 and loop["compositions"] == 0
assert loop["flops"] == loop["critical_flops"] < dense["flops"] and scan["critical_flops"] < scan["flops"]

# ---- images of one plane; the tree's depth; threads ----
base = answer(*TRAIN, "--data", path("idx"), *small, "--steps", 6, "--threads", 1)
assert base["channels"] == 1
for more in (["--level-limit", 0], ["--level-limit", "none"], ["--threads", 2]):
    r = answer(*TRAIN, "--data", path("idx"), *small, "--steps", 6, *more)
    assert r["max_error"] < 1e-5 and abs(r["train_loss"] - base["train_loss"]) < 1e-4, (more, r)
    if "--level-limit" in more:
        assert (r["ways"][0]["levels"] == 0) == (more[1] == 0), r
    else:
        assert r["train_loss"] == base["train_loss"] and r["test_loss"] == base["test_loss"], (r, base)

# ---- trained whole, pruned, trained on; its file ----

both = ["--data", path("idx"), "--divisor", 16, "--dense-steps", 16, "--dense-batch", 10, "--prune-stages", 3, "--steps", 8, "--batch", 4,
        "--rate", "3e-3", "--prune", 0.8, "--way", "loop", "--compare", 4, "--test", 20]
done = answer(*TRAIN, *both, "--save", path("model"))
assert done["dense_steps"] == 16 and done["train_loss"] < done["dense_first_loss"] and done["max_error"] < 1e-5, done
assert [e["part"] for e in done["log"]] == ["dense"] * 16 + ["pruned"] * 8, done["log"]
strings, named = tensors("model")
assert strings["deeppcr.kind"] == "vgg11" and strings["deeppcr.train.step"] == "24", strings
for layer, shape in (("features.0", [4, 1, 3, 3]), ("features.3", [8, 4, 3, 3]), ("features.18", [32, 32, 3, 3]), ("classifier", [10, 32])):
    weight, kept = named[layer + ".weight"], named[layer + ".kept"][1]
    count = len(weight[1])
    assert weight[0] == tuple(shape) and named[layer + ".bias"][0] == tuple(shape[:1]), (layer, weight[0])
    assert len(kept) == count - (0 if layer in ("features.0", "classifier") else int(0.8 * count)), (layer, len(kept), count)
    assert all(x == 0 for i, x in enumerate(weight[1]) if i not in set(kept)), layer


def judge(name, data="idx"):
    return ["eval", path(name), "--data", path(data)]


for batch in (3, 20):
    e = answer(*judge("model"), "--batch", batch)
    assert e["images"] == 20 and e["weights_kept"] == done["weights_kept"] and abs(e["test_accuracy"] - done["test_accuracy"]) < 1e-9, (e, done)
    assert abs(e["test_loss"] - done["test_loss"]) < 1e-5, (e, done)
for option in ("--method", "newton"), ("--scheme", "pcr"), ("--tolerance", "1e-3"), ("--no-fallback",):
    refused(2, "a VGG-11 takes no " + option[0], *judge("model"), *option)
refused(2, "--checkpoint-seconds: wanted with --save", *TRAIN, "--checkpoint-seconds", 5)
whole = answer(*TRAIN, *both, "--steps", 0, "--prune", 0, "--prune-stages", 1, "--save", path("unpruned"))  # nothing taken out: both judge alike
assert abs(whole["dense_test_loss"] - whole["test_loss"]) < 1e-4 and whole["weights_kept"] == whole["weights"], whole
assert [whole[k] for k in ("first_loss", "train_loss", "train_accuracy")] == [None] * 3, whole  # of no step

brief = ["--data", path("idx"), "--divisor", 16, "--dense-steps", 1, "--dense-batch", 10, "--steps", 2, "--batch", 4, "--test", 20]
# logits that are no numbers are no class, the first one neither
wild = answer(*TRAIN, *brief, "--steps", 0, "--rate", 1e8, "--optimiser", "sgd", "--momentum", 0, "--warm-up", 0)
assert wild["test_loss"] is None and wild["test_accuracy"] == 0, wild

# hardly any channels, hardly any weights left, more stages than steps
narrow = answer(*TRAIN, "--data", path("idx"), "--divisor", 512, "--prune", 0.999, "--dense-steps", 3, "--dense-batch", 10, "--prune-stages", 40, "--steps", 4,
              "--batch", 4, "--compare", 2, "--test", 20)
assert all(e["loss"] < 20 for e in narrow["log"]) and len(narrow["log"]) == 7 and narrow["max_error"] < 1e-5, narrow

# stopped, or killed, at any moment: the same file
for attempt, (delay, kind) in enumerate(((0.0, signal.SIGINT), (0.05, signal.SIGKILL), (0.1, signal.SIGTERM), (0.2, signal.SIGKILL))):
    child = subprocess.Popen(words(*TRAIN, *both, "--checkpoint-seconds", 0.001, "--save", path("cut")),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while child.poll() is None and not os.path.exists(path("cut")):
        time.sleep(0.01)
    time.sleep(delay)
    child.send_signal(kind)
    text = child.communicate(timeout=60)[1]
    assert child.returncode in (0, -9, 128 + kind), (child.returncode, text)
    assert child.returncode != 128 + kind or is_one_line(text) and b"to go on" in text, text
    r = answer(*TRAIN, *both, "--resume", path("cut"), "--threads", 1 + attempt % 2)
    assert content("cut") == content("model"), (attempt, strings, tensors("cut")[0])
    assert {k: r[k] for k in ("train_loss", "train_accuracy", "dense_test_loss", "test_loss")} == \
           {k: done[k] for k in ("train_loss", "train_accuracy", "dense_test_loss", "test_loss")}, (r, done)
    os.remove(path("cut"))
# stopped while the pruned network is made, which asks too, or within a step
for attempt in range(10):
    child = subprocess.Popen(words(*TRAIN, *brief, "--checkpoint-seconds", 0.001, "--save", path("cut")),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while child.poll() is None and not os.path.exists(path("cut")):
        time.sleep(0.002)
    time.sleep(0.004 * attempt)
    child.send_signal(signal.SIGTERM)
    text = child.communicate(timeout=60)[1]
    assert child.returncode in (0, 128 + signal.SIGTERM), (child.returncode, text)
    assert child.returncode == 0 or b"to go on" in text, text
    os.remove(path("cut"))
# the whole part once, the rest by another way
answer(*TRAIN, *both, "--steps", 0, "--save", path("ready"))
r = answer(*TRAIN, *both, "--way", "scan", "--resume", path("ready"), "--save", path("scan"))
assert abs(r["train_loss"] - done["train_loss"]) < 1e-3 and r["way"] == "scan", (r, done)
# other batches, of which the test after the pruning has other images: as if they had been asked for at once
threes = [*both, "--batch", 3, "--compare", 0, "--save"]
answer(*TRAIN, *threes, path("threes"))
answer(*TRAIN, *threes, path("later"), "--resume", path("ready"))
assert content("later") == content("threes")

put_older("older", "ready", "deeppcr.train.denormals")  # what none tells may have been either
for denormals in "flush", "keep":
    answer(*TRAIN, *threes, path("later"), "--denormals", denormals, "--resume", path("older"))
    assert denormals == "keep" or content("later") == content("threes")

# ---- refusals ----
for split in ("train", "t10k"):
    put_images("large", split, (40, 28), bytes(4 * 40 * 28), bytes(4))
    put_images("few", split, (28, 28), bytes(4 * 28 * 28), bytes(4))
for arguments, status, word in (
    (["--data", path("large")], 5, "32 x 32"),
    (["--data", path("none")], 5, "none"),
    ([*both, "--resume", path("none")], 5, "none"),
    ([*both, "--seed", 2, "--resume", path("model")], 2, "seed"),
    ([*both, "--denormals", "keep", "--resume", path("model")], 2, "'deeppcr.train.denormals' is flush there and keep here"),
    ([*both, "--way", "scan", "--resume", path("model")], 2, "way"),
    ([*both, "--limit", 70, "--resume", path("model")], 2, "resume"),
    ([*both, "--save", path("no", "such", "folder")], 4, "no"),
    (["--data", path("few")], 5, "less than a batch of 32"),
    (["--data", path("idx"), "--batch", 50], 5, "less than a batch of 32"),
    (["--data", path("idx"), "--dense-steps", 0, "--batch", 50], 2, "less than a batch of 50"),
    (["--data", path("cifar"), "--limit", 3], 2, "less than a batch of 32"),
    (["--way", "sideways"], 2, "--way"),
    (["--prune", 1], 2, "--prune"),
    (["--data", path("idx"), *small, "--rate", "1e30", "--compare", 0], 2, "loss"),
    (["--data", path("idx"), *small, "--steps", 1, "--rate", "1e300", "--warm-up", 0, "--compare", 0], 2, "after step 1 the weights are not finite"),
    (["resnet"], 2, "resnet"),
    (["--data", path("idx"), *small, "--steps", 1, "--warm-up", 5, "--save", path("early")], 2, "wanted at least warm_up"),
):
    refused(status, word, *TRAIN, *arguments)
assert not os.path.exists(path("early")), "the whole network was trained before the pruned one's options were refused"
data = content("model")
put("broken", data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
refused(5, "damaged", *TRAIN, *both, "--resume", path("broken"))
refused(5, "damaged", *judge("broken"))
data = data.replace(b"deeppcr.checksum", b"deeppcr.unsummed", 1)  # changed on purpose
assert data != content("model")
for what, broken in (("cut", data[:-5]), ("weights", data.replace(b"features.3.weight", b"features.9.weight", 1)),
                     ("kept", data.replace(b"features.3.kept", b"features.9.kept", 1)), ("channels", data.replace(b'channels":"1"', b'channels":"9"', 1)),
                     ("divisor", data.replace(b'divisor":"16"', b'divisor":"17"', 1)), ("step", data.replace(b'train.step":"24"', b'train.step":"-4"', 1))):
    assert broken != data, what
    put("broken", broken)
    refused(2 if what in ("channels", "divisor") else 5, "", *TRAIN, *both, "--resume", path("broken"))
    if what != "step":
        refused(5, "", *judge("broken"))
strings, parts = safetensors(path("model"))
assert len(strings.pop("deeppcr.checksum")) == 16, strings
put_safetensors("more", strings, {**parts, "note": ((1,), bytes(8), "q")})
refused(5, "'note' is of dtype I64", *TRAIN, *both, "--resume", path("more"))
put_safetensors("more", strings, {**parts, "features.3.bias": (parts["features.3.bias"][0], bytes(2 * parts["features.3.bias"][0][0]), "h")})
refused(5, "'features.3.bias' is of dtype I16, wanted F32", *judge("more"))
refused(5, "takes 1 x", *judge("model", "cifar"))
print("cli_vgg: the scan, the loop and dense products train alike")
PYTHON
