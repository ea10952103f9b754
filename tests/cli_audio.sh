#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_audio.sh BUILD_DIR: folders of recordings: features against NumPy, what is for testing, a network that hears what
# means do not tell, the same losses by every method, eval, refusals.
set -u
. "$(dirname "$0")/program.bash"
find_numpy
"$python" - "$program" "$folder" <<'PYTHON'
import json, os, signal, struct, subprocess, sys, threading, wave
import numpy as np

from program import answer, content, ended, is_one_line, path, put, refused, run, stopped_within, until_asleep, words

rng = np.random.default_rng(7)
RATE = 8000


def write(name, x, rate=RATE):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    x = np.atleast_2d(np.asarray(x).T).T
    with wave.open(name, "wb") as file:
        file.setnchannels(x.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())


# ---- features: against a plain discrete Fourier transform in double ----
def mfcc(x, rate, frame, hop, count):
    def hertz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    edges = hertz(np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), 28))
    f = np.arange(frame // 2 + 1) * rate / frame
    mel = np.stack([np.maximum(0, np.minimum((f - a) / (b - a), (c - f) / (c - b))) for a, b, c in zip(edges, edges[1:], edges[2:])])
    cosines = np.sqrt(2 / 26) * np.cos(np.pi * np.arange(1, count)[:, None] * (np.arange(26) + 0.5) / 26)
    frames = 1 if len(x) < frame else 1 + (len(x) - frame) // hop
    x = np.concatenate([x, np.zeros((max(0, frame - len(x)), x.shape[1]))])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    dft = np.exp(-2j * np.pi * np.outer(np.arange(frame // 2 + 1), np.arange(frame)) / frame)
    rows = [[cosines @ np.log(np.maximum(mel @ np.abs(dft @ (x[t * hop : t * hop + frame, c] * window)) ** 2, 1e-10)) for c in range(x.shape[1])] for t in range(frames)]
    return np.array(rows).reshape(frames, -1)


one = path("one.wav")
write(one, rng.normal(0, 0.1, (1000, 2)))
if b"built without" in ended((0, 2, 4, 5), "convert", one, path("one.npy")).stderr:
    print("cli_audio: skipped: built without libsndfile or kissfft")
    sys.exit(77)
r = answer("convert", one, path("one.npy"))
with wave.open(one) as file:
    exact = np.frombuffer(file.readframes(1000), "<i2").reshape(-1, 2) / 32768
got = np.load(path("one.npy"))
assert (r["frames"], r["features"], r["frame"], r["hop"]) == (6, 24, 256, 128), r
assert np.abs(got - mfcc(exact, RATE, 256, 128, 13)).max() < 1e-3, np.abs(got - mfcc(exact, RATE, 256, 128, 13)).max()
assert run("convert", one, path("one.npz"), "--seconds", 0.01).startswith(b"1 frame of 24 features in ")
run("convert", one, path("one.npz"), "--quiet")
assert (np.load(path("one.npz"))["features"] == got).all()
os.mkfifo(path("pipe.wav"))  # opened once: its writer goes away
writer = threading.Thread(target=put, args=("pipe.wav", content("one.wav")))
writer.start()
run("convert", path("pipe.wav"), path("two.npy"), timeout=60)
writer.join()
assert (np.load(path("two.npy")) == got).all()
for frame, hop, count, seconds in ((100, 30, 5, 0.05), (2048, 7, 26, 0)):
    run("convert", one, path("two.npy"), "--frame", frame, "--hop", hop, "--coefficients", count, "--seconds", seconds)
    part = exact[: int(seconds * RATE)] if seconds else exact
    assert np.abs(np.load(path("two.npy")) - mfcc(part, RATE, frame, hop, count)).max() < 1e-3

# What has no features is refused, not heard as silence.
def write_float(name, x):
    data, channels = np.asarray(x, "<f4").tobytes(), x.shape[1]
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, channels, RATE, 4 * channels * RATE, 4 * channels, 32) + b"data" + struct.pack("<I", len(data))
    put(name, b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data)


sound = rng.normal(0, 0.1, (1000, 2))
for value, told in ((np.nan, "nan"), (-np.inf, "-inf"), (3e38, "3e+38")):
    sound[10, 1] = value
    write_float("broken.wav", sound)
    refused(5, "broken.wav': sample 10 is %s, wanted a finite number" % told, "convert", path("broken.wav"), path("none.npy"))
assert not os.path.exists(path("none.npy"))

# a signal while they are worked out
write(path("long.wav"), rng.normal(0, 0.1, 1 << 20))
# 2 GiB of samples, all but the last ones holes, and what is no sound behind them
with open(path("vast.au"), "wb") as file:
    samples = 2**28 + 1000
    file.write(b".snd" + struct.pack(">5I", 24, 8 * samples, 7, RATE, 1))
    file.seek(24 + 8 * (samples - 1))
    file.write(struct.pack(">3d", 0.25, np.nan, np.nan))
assert run("convert", path("vast.au"), path("two.npy"), "--seconds", 1).startswith(b"%d frame" % (1 + (RATE - 256) // 128)), "vast.au"
os.truncate(path("vast.au"), 24 + 8 * samples - 8)
refused(5, "cut short", "convert", path("vast.au"), path("none.npy"))
os.remove(path("vast.au"))
stopped_within(1.0, lambda used: used > 0.3, "convert", path("long.wav"), path("none.npy"), "--hop", 1)
assert not os.path.exists(path("none.npy"))


# ---- two classes whose means are the same: a tone that rises, and the same played backwards ----
def rising(n):
    t = np.arange(n) / RATE
    low, high = rng.uniform(300, 600), rng.uniform(1500, 2500)
    return 0.3 * np.sin(2 * np.pi * (low * t + (high - low) * t * t / (2 * n / RATE))) + rng.normal(0, 0.003, n)


names = ["say%d%s" % (i // 2, "__%d" % (i % 2 + 1)) for i in range(160)]
for i, name in enumerate(names):
    x = rising(int(rng.uniform(1200, 2400)))
    write(path("set", "up", "deep" if i % 3 else "", name + ".wav"), x)
    write(path("set", "down", "deep" if i % 3 else "", name + ".wav"), x[::-1])
write(path("set", "up", "silence.wav"), np.zeros(800))
beep = np.sin(np.arange(900))
write(path("set", "up", "beep.wav"), beep)
write(path("set", "down", "beep.wav"), beep)
write_float(os.path.join("set", "up", "broken.wav"), np.full((900, 1), np.nan))  # nor left out as a silent one
refused(5, "broken.wav': sample 0 is nan", "train", "gru", "--data", path("set"), "--epochs", 1)
os.remove(path("set", "up", "broken.wav"))
learn = ["--data", path("set"), "--epochs", 6, "--rate", "1e-2", "--batch", 8]
loop = answer("train", "gru", *learn, "--method", "sequential", "--backward", "sequential", "--save", path("a.st"))
assert loop["silent"] == 1 and loop["repeated"] == 2 and loop["recordings"] + loop["test_recordings"] == 320, loop
# Both classes and both pieces of a name are on one side.
assert loop["recordings"] % 4 == 0 and 20 <= loop["test_recordings"] <= 120, loop
assert loop["baseline_test_accuracy"] < 0.8 and loop["test_accuracy"] > loop["baseline_test_accuracy"] + 0.05, loop
for way in (["newton", "--backward", "chunked"], ["overlap", "--backward", "overlap"], ["sequential", "--backward", "blelloch"]):
    other = answer("train", "gru", *learn, "--method", *way)
    assert abs(other["train_loss"] - loop["train_loss"]) < 1e-3, (way, other["train_loss"], loop["train_loss"])
# States kept every so many steps: the same bits, of many lengths.
whole = [answer("train", "gru", *learn, "--batch", 64, "--method", "sequential", "--backward", "sequential", *more)["test_loss"] for more in ([], ["--segment", 2])]
assert whole[0] == whole[1], whole

# ---- a channel that says nothing in training is not blown up where it says something: rounding is no scale ----
for k in range(30):
    for c, hertz in enumerate((300, 900)):
        x = 0.5 * np.sin(2 * np.pi * hertz * np.arange(2000) / RATE + k) + rng.normal(0, 0.02, 2000)
        for folder_, second in (("mute", 0 * x), ("stereo", np.roll(x, 3))):
            write(path(folder_, "c%d" % c, "r%d.wav" % k), np.stack([x, second], 1))
r = answer("train", "rnn-relu", "--data", path("mute"), "--epochs", 2, "--method", "sequential", "--backward", "sequential", "--save", path("mute.st"))
scale = json.JSONDecoder().raw_decode(content("mute.st")[8:].decode(errors="replace"))[0]["__metadata__"]["audio.deviation"].split(",")
assert len(scale) == 24 and "1" not in scale[:12] and scale[12:] == ["1"] * 12, scale
assert r["test_loss"] < 10 and answer("eval", path("mute.st"), "--data", path("stereo"))["test_loss"] < 1e4, r

# ---- links: a recording has one name, and what lies deep is heard ----
def heard():
    r = answer("train", "gru", "--data", path("linked"), "--batch", 2, "--hidden", 3, "--epochs", 1, "--threads", 1, "--method", "sequential", "--backward", "sequential")
    return r["recordings"], r["test_recordings"], r["test_loss"]


for k in range(12):
    for name in ("up", "down"):
        write(path("linked", name, "z", "say%d.wav" % k), rising(1000)[:: 1 if name == "up" else -1])
plain = heard()
assert plain[:2] != (0, 0) and sum(plain[:2]) == 24, plain
os.symlink(".", path("linked", "up", "loop"))
os.symlink("z", path("linked", "down", "again"))
os.symlink("z/say1.wav", path("linked", "down", "another.wav"))
os.symlink("z/say2.wav", path("linked", "down", "z", "nowhere"))
os.link(path("linked", "down", "z", "say3.wav"), path("linked", "down", "z", "twice.wav"))
assert heard() == plain, (heard(), plain)
os.symlink("../down/z/say5.wav", path("linked", "up", "theirs.wav"))  # under both classes
assert sum(heard()[:2]) == 23
os.remove(path("linked", "up", "theirs.wav"))
os.rename(path("linked", "down"), path("elsewhere"))
os.symlink(path("elsewhere"), path("linked", "down"))
spared = content("elsewhere", "z", "say6.wav")
for option in ("--save", "--csv"):
    refused(2, "is to be read and to be written over", "train", "gru", "--data", path("linked"), "--epochs", 1, option, path("elsewhere", "z", "say6.wav"))
assert content("elsewhere", "z", "say6.wav") == spared
os.remove(path("linked", "down"))
os.rename(path("elsewhere"), path("linked", "down"))
write(path("linked", "up", *"abcdefghijk", "deep.wav"), rising(1000))
assert sum(heard()[:2]) == 25
os.symlink("nowhere", path("linked", "up", "lost.wav"))
refused(5, "lost.wav': No such file or directory", "train", "gru", "--data", path("linked"))
os.remove(path("linked", "up", "lost.wav"))
here = os.getcwd()
os.chdir(path("linked", "up"))
for _ in range(17):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
os.chdir(here)
refused(5, "File name too long", "train", "gru", "--data", path("linked"))
subprocess.run(["rm", "-r", path("linked", "up", "d" * 250)], check=True)

# A signal while a pipe among them has no writer.
os.mkfifo(path("linked", "down", "pipe.wav"))
for number in (signal.SIGINT, signal.SIGTERM):
    child = subprocess.Popen(words("train", "gru", "--data", path("linked"), "--threads", 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until_asleep(child)
    child.send_signal(number)
    out, told = child.communicate(timeout=60)
    assert child.returncode == 128 + number and told.endswith(b": stopped as asked\n") and is_one_line(told), (child.returncode, told)

# ---- eval ----
r = answer("eval", path("a.st"), "--data", path("set"), "--method", "overlap")
assert r["test_accuracy"] == loop["test_accuracy"] and abs(r["test_loss"] - loop["test_loss"]) < 1e-6 and r["difference"] < 1e-5, r
assert answer("eval", path("a.st"), "--data", path("set"), "--split", "train")["recordings"] == loop["recordings"]
bits = answer("train", "rnn", "--data", "bitstream", "--limit", 160, "--length", 30, "--epochs", 1, "--save", path("bits.st"), "--seed", 5)
r = answer("eval", path("bits.st"), "--method", "newton")
assert r["sequences"] == bits["test_sequences"] == 17 and abs(r["test_loss"] - bits["test_loss"]) < 1e-5, (r, bits)

# ---- recordings renamed, others for testing: another run, though their order is the same ----
def is_held(name):
    value = 1469598103934665603
    for byte in name.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value // 7 % 5 == 0


def named(i, held):
    return next(name for name in ("z%02d_%dx" % (i, k) for k in range(10**4)) if is_held(name) == (i in held))


for name, way in (("up", 1), ("down", -1)):
    for i in range(12):
        write(path("split", name, named(i, (3, 7)) + ".wav"), rising(900)[::way])
again = ["train", "gru", "--data", path("split"), "--batch", 4, "--constant-rate", "--warm-up", 0]
r = answer(*again, "--epochs", 1, "--save", path("split.st"))
assert (r["recordings"], r["test_recordings"]) == (20, 4), r
answer(*again, "--epochs", 2, "--resume", path("split.st"), "--save", path("split2.st"))
for name in ("up", "down"):
    for i in range(12):
        os.rename(path("split", name, named(i, (3, 7)) + ".wav"), path("split", name, named(i, (4, 8)) + ".wav"))
refused(2, "data.hash is", *again, "--epochs", 2, "--resume", path("split.st"), "--quiet")

# ---- classes whose names no model can keep: told before any sound is read ----
for name in (b"caf\xe9", b"two\nlines"):
    odd = os.fsencode(path("odd"))
    write(path("odd", "tea", "x.wav"), np.ones(500) * 0.5)
    write_float(os.path.join("odd", "tea", "broken.wav"), np.full((900, 1), np.nan))
    os.mkdir(os.path.join(odd, name))
    for arguments in (["train", "gru", "--data", path("odd"), "--epochs", 1], ["eval", path("a.st"), "--data", path("odd")]):
        line = ended(5, *arguments).stderr
        assert line.count(b"\n") == 1 and b"wanted the name of a class in UTF-8 and without a line break" in line and name[:3] in line, line
    os.rmdir(os.path.join(odd, name))

# ---- refusals ----
write(path("mixed", "a", "x.wav"), np.ones(500) * 0.5)
write(path("mixed", "b", "x.wav"), np.ones(500) * 0.4, 16000)
write(path("lone", "a", "x.wav"), np.ones(500) * 0.5)
write(path("empty", "a", "x.wav"), np.ones(500) * 0.5)
os.makedirs(path("empty", "b"))
write(path("few", "a", "x.wav"), np.ones(500) * 0.5)
write(path("few", "b", "x.wav"), np.ones(500) * 0.4)
os.makedirs(path("cut", "b"))
write(path("cut", "a", "x.wav"), np.ones(500) * 0.5)
put("cut/b/x.wav", content("cut", "a", "x.wav")[:30])
write(path("other", "up", "x.wav"), np.ones(500) * 0.5)
for k in range(20):
    write(path("other", "left", "x%d.wav" % k), np.ones(500) * (0.1 + 0.01 * k))
for arguments, status, word in (
    (["train", "gru", "--data", path("mixed")], 5, "16000"),
    (["train", "gru", "--data", path("lone")], 5, "two or more"),
    (["train", "gru", "--data", path("empty")], 5, "no recordings"),
    (["train", "gru", "--data", path("few")], 5, "too little"),
    (["train", "gru", "--data", path("cut")], 5, "x.wav"),
    (["train", "gru", "--data", path("set"), "--frame", 17], 2, "even"),
    (["train", "gru", "--data", path("set"), "--coefficients", 1], 2, "--coefficients"),
    (["train", "gru", "--data", "bitstream", "--hop", 4], 2, "recordings"),
    (["train", "gru", "--data", path("set"), "--length", 100], 2, "--seconds says"),
    (["convert", path("cut", "b", "x.wav"), path("o.npy")], 5, "no sound"),
    (["convert", one, path("o.npy"), "--node", "n"], 2, "--node"),
    (["convert", one, path("o.npz:features")], 2, "names a member"),
    (["convert", one, path("o.safetensors")], 2, "does not end in .safetensors"),
    (["convert", one, path("o.st")], 2, "does not end in .st"),
    (["convert", one, path("o.wav")], 2, "written as .npy or .npz"),
    (["eval", path("a.st"), "--data", path("other")], 5, "classes"),
    (["eval", path("a.st"), "--data", path("nowhere")], 5, "nowhere"),
    (["eval", path("bits.st"), "--data", path("set")], 2, "bitstream"),
):
    refused(status, word, *arguments)
def parts(name):
    data = content(name)
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), data[8 + length:]


def hostile(header, body):
    header.get("__metadata__", {}).pop("deeppcr.checksum", None)  # changed on purpose
    made = json.dumps(header).encode()
    made += b" " * (-len(made) % 8)
    put("hostile.st", len(made).to_bytes(8, "little") + made + body)


# A model whose metadata asks for what training cannot have left, gigabytes among it: one line.
header, body = parts("a.st")
good = header["__metadata__"]["audio.features"].split(",")

for field, value in ((0, "0"), (1, "2000"), (2, "16777216"), (2, "17"), (3, "0.5"), (4, "16777216"), (4, "1"), (5, "1e300"), (5, "nan")):
    numbers = list(good)
    numbers[field] = value
    header["__metadata__"]["audio.features"] = ",".join(numbers)
    hostile(header, body)
    refused(5, "audio.features", "eval", path("hostile.st"), "--data", path("set"))
# Of bit streams: more of them than could ever be judged; a limit helps.
header, body = parts("bits.st")
for count, bits in ((10 ** 17, 30), (4 * 10 ** 9, 3000)):
    header["__metadata__"]["bitstream"] = "5,%d,%d" % (count, bits)
    hostile(header, body)
    refused(4, "--limit", "eval", path("hostile.st"))
    assert answer("eval", path("hostile.st"), "--limit", 3)["sequences"] == 3

# ---- IRMAS's training set as it is unpacked: its folders, its names, stereo at 44.1 kHz, texts beside the folders ----
for k, name in enumerate(("cel", "cla", "flu", "gac", "gel", "org", "pia", "sax", "tru", "vio", "voi")):
    for i in range(16):
        t = np.arange(6000) / 44100
        tone = 0.3 * np.sin(2 * np.pi * 200 * (k + 1) * t)[:, None] * [1, 0.5] + rng.normal(0, 0.01, (6000, 2))
        recording = ("[%s][cla]%04d" if i % 4 < 2 else "008__[%s][nod][cla]%04d") % (name, 100 * k + i // 2)
        write(path("IRMAS-TrainingData", name, "%s__%d.wav" % (recording, i % 2 + 1)), tone, 44100)
for name in ("README.txt", "LICENSE.txt"):
    open(path("IRMAS-TrainingData", name), "w").close()
r = answer("train", "gru", "--data", path("IRMAS-TrainingData"), "--frame", 1024, "--hop", 512, "--epochs", 2, "--hidden", 20, "--rate", "1e-2", "--save", path("irmas.st"))
assert r["recordings"] + r["test_recordings"] == 176 and r["test_recordings"] % 2 == 0 and r["inputs"] == 24 and r["outputs"] == 11, r
assert answer("eval", path("irmas.st"), "--data", path("IRMAS-TrainingData"))["recordings"] == r["test_recordings"]
print("cli_audio: features as NumPy's; recordings told apart, evaluated, refused")
PYTHON
