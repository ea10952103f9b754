#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_train.sh BUILD_DIR: 'deeppcr train' and 'eval' on a small data set made here (and on Fashion-MNIST where it is
# installed): learning, log, checkpoints; killed at random and resumed ends with the same bits; Ctrl-C; full disks; bad data.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import gzip, json, os, pty, random, resource, signal, struct, subprocess, time

from program import answer, content, folder, idx, is_one_line, path, put, put_older, put_safetensors, read_json, refused, run, safetensors, words

chance = random.Random()
seed = int(os.environ.get("SEED", chance.randrange(10**6)))
print("cli_train: SEED=%d" % seed)
chance.seed(seed)


def images(count, seed, classes=4, side=8):
    """Noise, and a bright bar whose place is the class."""
    r = random.Random(seed)
    labels = bytes(r.randrange(classes) for _ in range(count))
    pixels = bytearray(r.randrange(120) for _ in range(count * side * side))
    for i, label in enumerate(labels):
        for column in range(side):
            pixels[i * side * side + 2 * label * side + column] += 100
    return idx((count, side, side), bytes(pixels)), idx((count,), labels)


TRAIN, TEST = images(2000, 1), images(300, 2)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
WHOLE = dict(zip(NAMES, TRAIN + TEST))


def put_all(where, files):
    for name, data in files.items():
        put(os.path.join(where, name), data)


put_all("data", WHOLE)
put_all("zipped", {name + ".gz": gzip.compress(data) for name, data in WHOLE.items()})


def limited(bytes_):
    """For `preexec_fn`: no file grows beyond this."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def tensors(name):
    return safetensors(name)[1]


def log(name):
    text = content(name).decode()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


small = ["--data", path("data"), "--layers", "40", "--width", "8", "--batch", "50", "--threads", "1"]

# Learns; the last object, log and CSV; eval says the same; gzipped files are the same data.
told = answer("train", "resnet", *small, "--epochs", "3", "--save", path("m"), "--log", path("l"), "--csv", path("c"))
for field in ("test_accuracy", "test_loss", "train_accuracy", "seconds", "images_per_second", "method", "scheme", "backward", "sentence",
              "parameters", "epochs", "batch", "layers"):
    assert field in told, field
assert told["test_accuracy"] > 0.9 and told["epochs"] == 3 and told["threads_used"] == told["threads"] == 1 and told["batch"] == 50 and told["parameters"] == 40 * 72 + 65 * 8 + 36, told
lines = log("l")
assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 121))
epochs = [line for line in lines if line["event"] == "epoch"]
assert [line["epoch"] for line in epochs] == [1, 2, 3] and epochs[-1]["test_accuracy"] == told["test_accuracy"]
assert lines[-1]["event"] == "end" and lines[-1]["test_accuracy"] == told["test_accuracy"]
with open(path("c")) as file:
    assert file.readline() == "epoch,step,loss,accuracy,test_loss,test_accuracy,seconds\n" and len(file.readlines()) == 3
evaluated = answer("eval", path("m"), "--data", path("data"))
assert evaluated["test_accuracy"] == told["test_accuracy"] and abs(evaluated["test_loss"] - told["test_loss"]) < 1e-6, (evaluated, told)
for method in ("newton", "overlap"):
    other = answer("eval", "--load", path("m"), "--data", path("zipped"), "--method", method)
    assert other["sentence"] and "backward" not in other["sentence"], other["sentence"]  # eval goes forward alone
    assert abs(other["test_loss"] - told["test_loss"]) < 1e-4, (method, other)
answer("train", "resnet", *small, "--data", path("zipped"), "--epochs", "3", "--save", path("z"))
assert tensors("z") == tensors("m")
# Few steps: where all cores are busy, threads wait for each other a long time.
for threads in ("1", "2"):
    answer("train", "resnet", *small, "--limit", "300", "--epochs", "1", "--save", path("t" + threads), "--threads", threads)
assert tensors("t1") == tensors("t2"), "threads change bits"
refused(2, "data.count is 2000, wanted 300, the checkpoint's; --limit says how many", "train", "resnet", *small, "--epochs", "1", "--resume", path("t1"))
refused(2, "denormals is keep, wanted flush, the checkpoint's", "train", "resnet", *small, "--limit", "300", "--epochs", "1", "--denormals", "keep", "--resume", path("t1"))
refused(2, "the model's width is 16, wanted", "train", "resnet", *small, "--limit", "300", "--epochs", "1", "--width", "16", "--resume", path("t1"))
refused(2, "without any option of the network it is the checkpoint's", "train", "resnet", *small, "--limit", "300", "--epochs", "1", "--width", "16", "--resume", path("t1"))
refused(2, "the model's dtype is float64, wanted float32", "train", "resnet", *small, "--limit", "300", "--epochs", "1", "--dtype", "float64", "--resume", path("t1"))
refused(2, "that many steps follow from --epochs and --batch, and none with --constant-rate", "train", "resnet", *small, "--limit", "300", "--epochs", "2", "--warm-up", "0", "--resume", path("t1"))
# The log on standard output, whole and alone, whatever that is; and refused where something else goes there.
few = ["train", "mlp", *small, "--limit", "300", "--epochs", "1"]
piped = [json.loads(line) for line in run(*few, "--log", "-").splitlines()]
assert [line["event"] for line in piped] == ["step"] * 6 + ["epoch", "end"], piped
piped = [json.loads(line) for line in run(*few, "--log", "-", "--log-every", 2).splitlines()]
assert [line["step"] for line in piped if line["event"] == "step"] == [2, 4, 6], piped
with open(path("stdout"), "w") as file:
    assert subprocess.run(words(*few, "--log", "/dev/stdout"), stdout=file, stderr=subprocess.PIPE).returncode == 0
with open(path("stdout")) as file:
    assert [json.loads(line)["event"] for line in file] == ["step"] * 6 + ["epoch", "end"]
assert not os.path.exists("-")
for other in ("--json", "--csv=-"):
    refused(2, "standard output is wanted twice", *few, "--log", "-", other)
for option, beside in (("--log-every", "--log"), ("--checkpoint-seconds", "--save")):
    refused(2, option + ": wanted with " + beside, "train", "mlp", *small, option, 5)
refused(2, "wanted a name that does not end in .npz", *few, "--save", path("m.npz"))
with open(path("other"), "wb") as file:  # safetensors of something else
    file.write(struct.pack("<Q", 2) + b"{}")
refused(5, "there is no metadata 'deeppcr.architecture', which models of mlp and resnet have", "eval", "--load", path("other"), "--data", path("data"))
refused(2, "--scale: that is of a resnet", "train", "mlp", *small, "--scale", "2")
for network in ("mlp", "lstm", "vae", "denoiser", "vgg11"):
    refused(2, "--momentum: that is of sgd, not of adamw", "train", network, "--momentum", "0.5")
refused(2, "--momentum: that is of sgd, not of adam;", "train", "mlp", *small, "--optimiser", "adam", "--momentum", "0.5")
if os.geteuid() != 0:
    os.makedirs(path("closed"))
    os.chmod(path("closed"), 0o500)
    refused(4, "closed/l': Permission denied", "train", "mlp", *small, "--log", path("closed/l"))
# No tape is kept: the same bits, and a checkpoint goes on with and without.
for given in ((), ("--dtype", "float64", "--activation", "tanh"), ("--branch", "two-layer"), ("--layer-norm",)):
    few = ["train", "resnet", *small, "--limit", "300", *given, "--constant-rate", "--warm-up", "0", "--method", "sequential"]
    answer(*few, "--epochs", "2", "--save", path("kept"))
    answer(*few, "--epochs", "1", "--save", path("again"), "--recompute")
    answer(*few, "--epochs", "2", "--resume", path("again"), "--recompute")
    assert tensors("kept") == tensors("again"), ("recompute changes bits", given)
refused(2, "--recompute is not for --swap", "train", "resnet", *small, "--swap", "--recompute")
assert answer("check", "--load", path("m"), "--data", path("data"))["agrees"]
for optimiser, rate in (("sgd", "0.02"), ("adam", "0.01")):
    told = answer("train", "mlp", *small, "--activation", "tanh", "--layers", "3", "--epochs", "4", "--optimiser", optimiser, "--rate", rate)
    assert told["test_accuracy"] > 0.8, told
assert b"test accuracy" in run("train", "mlp", *small, "--layers", "3", "--epochs", "1")
for branch in (["--branch", "two-layer"], ["--layer-norm", "--activation", "gelu"], ["--dtype", "float64"], ["--method", "newton", "--backward", "pcr"]):
    assert answer("train", "resnet", *small, "--epochs", "2", *branch)["test_accuracy"] > 0.8, branch
short = answer("train", "resnet", *small, "--epochs", "1", "--limit", "100")
assert short["images"] == 100 and short["test_images"] == 100 and short["steps"] == 2, short

# A step whose way back was finished in order counts as one that was; without a fallback too, which is forward's.
given_up = ["train", "resnet", *small, "--epochs", "1", "--method", "newton", "--backward", "overlap", "--run-up", 1, "--no-fallback"]
told = answer(*given_up)
assert told["finished_in_order"] == told["steps"] > 0, told
assert answer("train", "resnet", *small, "--epochs", "1", "--method", "newton", "--backward", "sequential")["finished_in_order"] == 0

# Resumed where gradients are late, told a segment at a time: the log has each of their lines once, those before the
# checkpoint alone are kept, and --log-every's come where they came before.
for way, every in ((["--pipeline", "pipedream", "--ranks", 2], 1), (["--layer-wise"], 3)):
    late = ["train", "mlp", *small, *way, "--constant-rate", "--warm-up", 3, "--segment", "4", "--log", path("late"), "--log-every", every]
    answer(*late, "--epochs", "3")
    wanted = [line["step"] for line in log("late")]
    answer(*late, "--epochs", "1", "--save", path("late.st"))
    log_lines = log("late")
    assert log_lines[-1]["step"] == 40
    ahead = '{"event": "step", "step": %d}\n'  # as a run that is killed after its last checkpoint leaves them
    with open(path("late"), "w") as file:
        file.write("".join(json.dumps(line) + "\n" for line in log_lines[:-1]) + ahead % 41 + ahead % 42)
    answer(*late, "--epochs", "3", "--resume", path("late.st"))
    assert [line["step"] for line in log("late")] == wanted, (way, log("late"), wanted)

# Killed at random times and resumed: the bits of the run that nobody stopped. The log has every step once.
for method in (["--layers", "100"], ["--layers", "30", "--method", "newton", "--backward", "pcr"]):
    common = ["train", "resnet", *small, "--epochs", "3", "--width", "16", *method]
    began = time.time()
    answer(*common, "--save", path("whole"))
    took = time.time() - began
    kills = 0
    arguments = common + ["--save", path("killed"), "--log", path("kl"), "--checkpoint-seconds", "0.01"]
    if os.path.exists(path("killed")):
        os.remove(path("killed"))
    for attempt in range(60):
        resume = ["--resume", path("killed")] if os.path.exists(path("killed")) else []
        process = subprocess.Popen(words(*arguments, "--json", *resume), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            # from soon after the start: what is timed above may have been a slow run, and later ones are faster
            process.communicate(timeout=chance.uniform(0.05, 0.6) * took if kills < 6 else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, process.returncode
        if kills:
            break
        took /= 2  # done before its time: from the beginning, and sooner
        for name in ("killed", "kl"):
            os.remove(path(name))
    assert kills >= 1, "never killed"
    assert tensors("killed") == tensors("whole"), "killed %d times and resumed: other bits" % kills
    steps = [line["step"] for line in log("kl") if line["event"] == "step"]
    assert steps == list(range(1, 121)), steps
    left = [name for name in os.listdir(folder) if name.startswith("killed") and name != "killed"]
    assert len(left) <= kills, left  # a killed writer may leave its temporary file
    for name in left:
        os.remove(path(name))
    # A run that is complete says so again, and changes nothing.
    again = answer(*arguments, "--resume", path("killed"))
    assert again["test_accuracy"] > 0.8 and tensors("killed") == tensors("whole")

# Ctrl-C and terminate: a checkpoint, the exit code, one line; resumed: the same bits.
common = ["train", "resnet", *small, "--epochs", "3", "--width", "16", "--layers", "100"]
answer(*common, "--save", path("whole"))
for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
    for attempt in range(5):  # a busy machine may let it end before the signal comes
        process = subprocess.Popen(words(*common, "--save", path("stopped"), "--log", path("sl"), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not (os.path.exists(path("sl")) and os.path.getsize(path("sl")) > 500):
            time.sleep(0.002)
        for _ in range(20):  # timeout sends two: the same signal, but on a busy machine, where one comes late, as if asked for again
            process.send_signal(number)
            time.sleep(0.0002)
        out, err = process.communicate(timeout=60)
        if process.returncode not in (0, -number): break
        for name in ("stopped", "sl"):
            if os.path.exists(path(name)): os.remove(path(name))
    assert process.returncode == code and out == b"" and is_one_line(err), (process.returncode, out, err)
    told = answer(*common, "--resume", path("stopped"), "--log", path("sl"))
    assert tensors("stopped") == tensors("whole"), "stopped by a signal and resumed: other bits"
    assert [line["step"] for line in log("sl") if line["event"] == "step"] == list(range(1, 121))
    os.remove(path("stopped"))
    os.remove(path("sl"))

# In the midst of a test after an epoch: at once, in words, and the log lacks that test alone.
pixels, labels = TEST[0][16:] * 60, TEST[1][8:] * 60
put_all("long", {**WHOLE, NAMES[0]: idx((100, 8, 8), TRAIN[0][16:6416]), NAMES[1]: idx((100,), TRAIN[1][8:108]),
                 NAMES[2]: idx((len(labels), 8, 8), pixels), NAMES[3]: idx((len(labels),), labels)})
common = ["train", "resnet", *small, "--data", path("long"), "--epochs", "2", "--width", "16", "--layers", "1500", "--method", "sequential"]
for last, told in ((2, b"resume from"), (4, b"stopped as asked in the last test; the network is trained, in ")):
    for attempt in range(5):
        for name in ("stopped", "sl"):
            if os.path.exists(path(name)): os.remove(path(name))
        process = subprocess.Popen(words(*common, "--save", path("stopped"), "--log", path("sl"), "--csv", path("sc"), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not (os.path.exists(path("sl")) and content("sl").count(b'"event": "step"') == last):
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        if process.returncode != 0 and b'"event": "epoch", "step": %d' % last in content("sl"): break
    assert process.returncode == 143 and out == b"" and is_one_line(err) and told in err, (process.returncode, out, err)
    assert "test_loss" not in log("sl")[-1], log("sl")[-1]
    assert content("sc").count(b"\n") == 1 + last // 2, "the table of a run that was stopped lacks its epochs"
    answer(*common, "--resume", path("stopped"), "--log", path("sl"))
    assert [line["epoch"] for line in log("sl") if line["event"] == "epoch"] == [1, 2] and log("sl")[-1]["event"] == "end"
for attempt in range(5):
    process = subprocess.Popen(words("eval", path("stopped"), "--data", path("long"), "--batch", "50", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.05 * (attempt + 1))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    if process.returncode == 143: break
assert process.returncode == 143 and out == b"" and is_one_line(err), (process.returncode, out, err)

# A full disk (here: a limit on a file's size): exit 4, the last checkpoint still whole.
answer("train", "resnet", *small, "--epochs", "1", "--save", path("full"))
before = tensors("full")
refused(4, "", "train", "resnet", *small, "--width", "64", "--epochs", "1", "--save", path("full"), "--json", preexec_fn=limited(30000))
assert tensors("full") == before, "a full disk has changed the checkpoint"
refused(4, "", "train", "resnet", *small, "--epochs", "1", "--log", path("short"), "--json", preexec_fn=limited(2000))
assert 0 < len(content("short")) <= 2000 and log("short"), "half a line is left"
if os.access("/dev/full", os.W_OK):
    refused(4, "/dev/full", "train", "resnet", *small, "--epochs", "1", "--log", "/dev/full", "--json")

# A run that is refused late leaves the log as it was.
answer("train", "resnet", *small, "--epochs", "1", "--log", path("refused"))
kept = content("refused")
refused(2, "warm_up", "train", "resnet", *small, "--epochs", "1", "--log", path("refused"), "--warm-up", 100000)
refused(2, "", "train", "mlp", *small, "--epochs", "1", "--log", path("refused"), "--pipeline", "zb-v", "--ranks", 30)
assert content("refused") == kept
# One that begins there leaves no line of it, though its first one is of a later step.
answer("train", "mlp", *small, "--epochs", "1", "--log", path("refused"), "--layer-wise", "--segment", "5")
assert [line["step"] for line in log("refused")][:2] == [5, 10], log("refused")

# A file that is no log is none to write one into; an empty one is, and one that was cut off in its first line.
first = ["train", "mlp", *small, "--layers", 2, "--epochs", 1]
for text in (b"precious\n", b"{}\n", b"\x93NUMPY", b"{\"loss\": 1}\n{\"event\": \"step\"}\n"):
    put("foreign", text)
    for more in ([], ["--resume", path("full")]):
        refused(2, "is no log of training", *first, "--log", path("foreign"), *more)
    assert content("foreign") == text
if os.geteuid() != 0:
    os.chmod(path("foreign"), 0o200)
    refused(5, "cannot read the log", *first, "--log", path("foreign"))
    os.chmod(path("foreign"), 0o600)
for text in (b"", b"{", b'{"event": "', b'{"event": "step", "step": 1'):
    put("foreign", text)
    answer(*first, "--log", path("foreign"))
    assert log("foreign")[-1]["event"] == "end"
put("end", content("foreign").splitlines()[-1] + b"\n")  # of a run that was complete
answer(*first, "--log", path("end"))
assert not [name for name in os.listdir(folder) if name.startswith("foreign.")]

# Checkpoints that do not fit.
refused(2, "", "train", "resnet", *small, "--epochs", "3", "--resume", path("m"), "--save", path("n"), "--seed", "9")
refused(2, "", "train", "resnet", *small, "--epochs", "3", "--width", "9", "--resume", path("m"), "--save", path("n"))
refused(2, "", "train", "mlp", "--data", path("data"), "--resume", path("m"), "--save", path("n"))
checkpoint = content("m")
for cut in (0, 7, 100, len(checkpoint) // 2, len(checkpoint) - 1):
    put("cut", checkpoint[:cut])
    refused(5, "", "train", "resnet", *small, "--resume", path("cut"), "--save", path("n"))
    refused(5, "", "eval", path("cut"), "--data", path("data"))
header = 8 + int.from_bytes(checkpoint[:8], "little")
for place in range(header, len(checkpoint), (len(checkpoint) - header) // 6):  # weights and the optimiser's state
    put("flipped", checkpoint[:place] + bytes([checkpoint[place] ^ 4]) + checkpoint[place + 1 :])
    refused(5, "flipped: damaged", "train", "resnet", *small, "--resume", path("flipped"), "--save", path("n"))
    refused(5, "flipped: damaged", "eval", path("flipped"), "--data", path("data"))
width = b'"deeppcr.width":"8"'
assert width in checkpoint
put("narrow", checkpoint.replace(width, b'"deeppcr.width":"0"'))
refused(5, "narrow", "eval", path("narrow"), "--data", path("data"))
assert not os.path.exists(path("n")), "a refused run has written a checkpoint"

# Options beside a checkpoint are its own, those too that are 0 in most; who says no word of them takes its, and hands
# them on.
plain = ["train", "resnet", *small, "--epochs", 1]
answer(*plain, "--save", path("plain"))
for option in ("--join-tolerance", "0.001"), ("--backward-run-up", 9), ("--backward-chunk", 9):
    answer(*plain, *option, "--save", path("other"))
    refused(2, "wanted 0", *plain, *option, "--resume", path("plain"), "--save", path("n"))
    answer(*plain, "--resume", path("other"), "--save", path("handed"))
    answer(*plain, *option, "--resume", path("handed"), "--save", path("handed"))

# An older program took what nothing looks at; its checkpoints go on with it.
answer(*plain, "--method", "sequential", "--save", path("older"))
unsummed = content("older").replace(b"deeppcr.checksum", b"deeppcr.unsummed")
put("older", unsummed.replace(b'solve.window":"0"', b'solve.window":"3"'))
answer(*plain, "--method", "sequential", "--window", 3, "--resume", path("older"), "--save", path("handed"))
refused(2, "solve.window is 0, wanted 3", *plain, "--method", "sequential", "--resume", path("older"), "--save", path("n"))
put_older("older", "plain", "deeppcr.train.denormals")  # what none tells may have been either
for denormals in "flush", "keep":
    answer(*plain, "--denormals", denormals, "--resume", path("older"), "--save", path("handed"))

# One end, however often a run that was complete is resumed.
for more in ([], ["--resume", path("ended")], ["--resume", path("ended")]):
    answer(*plain, "--save", path("ended"), "--log", path("ended.log"), *more)
assert [line["event"] for line in log("ended.log")].count("end") == 1
told = answer(*plain, "--resume", path("ended"))  # and tells nothing that only a step would
assert all(told[key] is None for key in ("method", "sentence", "threads_used")) and told["steps"] > 0, told
told = run(*plain, "--resume", path("ended"))
assert told.count(b"\n") == 1 and told.startswith(b"test accuracy"), told
# The networks of diffusion tell no classes.
for kind in ("vae", "denoiser"):
    refused(5, "is a %s, which tells no classes" % kind, "eval", put_safetensors(kind + ".st", {"deeppcr.kind": kind}, {}), "--data", path("data"))
# What the checkpoint had planned nobody has asked for.
longer = ["train", "resnet", *small, "--limit", 300, "--constant-rate", "--warm-up", 0]
for asked, said in (([], ": as in the checkpoint"), (["--method", "sequential"], "the former as asked, the latter as in the checkpoint"),
                    (["--method", "sequential", "--backward", "sequential"], ": as asked")):
    answer(*longer, *asked, "--epochs", 1, "--save", path("planned"))
    told = answer(*longer, *asked, "--epochs", 2, "--resume", path("planned"))["sentence"]
    assert told.endswith(said), (asked, told)
refused(3, "not converge", "train", "resnet", *small, "--method", "jacobi", "--max-sweeps", "2", "--no-fallback")

# Bad data: one line, exit 5, nothing written.
def damaged(**changes):
    files = dict(WHOLE)
    for name, content in changes.items():
        files[NAMES[int(name[1:])]] = content
    put_all("damaged", files)
    for verb in ("train", "eval"):
        arguments = ["train", "resnet", *small, "--save", path("n")] if verb == "train" else ["eval", path("m")]
        if verb == "eval" and not set(changes) & {"_2", "_3"}:
            continue
        told = refused(5, "", *arguments, "--data", path("damaged"))
        assert not os.path.exists(path("n")), changes
    return told

for image, label in ((0, 1), (2, 3)):
    content, names = WHOLE[NAMES[image]], WHOLE[NAMES[label]]
    for cut in (0, 3, 15, 16, 1000, len(content) - 1):
        damaged(**{"_%d" % image: content[:cut]})
    damaged(**{"_%d" % image: b"\x00\x00\x0d\x03" + content[4:]})
    damaged(**{"_%d" % image: content[:4] + b"\xff\xff\xff\xff" * 3 + content[16:]})
    damaged(**{"_%d" % label: names[:-1]})
    damaged(**{"_%d" % label: idx((3,), b"\x00\x01\x02")})
damaged(_3=WHOLE[NAMES[3]][:-1] + b"\x07")  # a label that training does not know
damaged(_0=idx((0, 8, 8), b""), _1=idx((0,), b""))
os.remove(path("damaged", NAMES[1]))
refused(5, "", "train", "resnet", *small, "--data", path("damaged"))

# Progress: one line, redrawn, on a terminal only.
def on_terminal(*arguments):
    master, slave = pty.openpty()
    process = subprocess.Popen(words(*arguments), stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    out = process.communicate()[0]
    os.close(master)
    assert process.returncode == 0
    return seen.decode(), out

try:
    os.close(pty.openpty()[0])
    terminals = True
except OSError as reason:  # a container without devpts
    terminals = False
    print("cli_train: no terminal to look at the progress bar on:", reason)
if terminals:
    seen, out = on_terminal("train", "resnet", *small, "--epochs", "2", "--json")
    assert read_json(out)["epochs"] == 2
    for word in ("epoch 2/2", "loss", "accuracy", "images/s", "left", "\r"):
        assert word in seen, (word, seen[:200])
    assert "\n" not in seen, seen[:200]
assert on_terminal("train", "resnet", *small, "--epochs", "1", "--quiet")[0] == ""

if os.path.isdir("/usr/share/datasets/fashion-mnist"):
    told = answer("train", "resnet", "--layers", "64", "--width", "16", "--epochs", "2", "--limit", "4000", "--threads", "1")
    assert told["test_accuracy"] > 0.6 and told["images"] == 4000, told
else:
    refused(5, "dataset-fashion-mnist", "train", "resnet")
print("cli_train: learned, killed, resumed, refused")
PYTHON
