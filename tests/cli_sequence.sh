#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_sequence.sh BUILD_DIR: 'deeppcr train rnn|gru|lstm' and 'eval' of what it leaves: made streams and a text of our
# own; every method the same losses; killed and resumed to the same bits; bad arguments and files in one line.
set -u
. "$(dirname "$0")/program.bash"
make_faults  # or no faults.so
python3 - "$program" "$folder" <<'PYTHON'
import fcntl, gzip, json, os, resource, signal, subprocess, termios, time

from program import answer, content, ended, is_one_line, path, put, put_safetensors, refused, run, safetensors, stopped_within, until_asleep, words

# ---- streams: they are learnt, and every method gives the same losses ----
streams = ["--data", "bitstream", "--limit", 480, "--length", 60, "--epochs", 3, "--rate", "5e-3", "--threads", 2]
loop = answer("train", "rnn", *streams, "--method", "sequential", "--backward", "sequential", "--csv", path("loop.csv"))
assert loop["train_loss"] < 1.9 and loop["network"] == "rnn" and loop["hidden"] == 20, loop
rows = open(path("loop.csv")).read().split("\n")
assert rows[0].startswith("epoch,step,loss,accuracy,") and len(rows) == 5 and rows[1].startswith("1,30,"), rows
for way in (["newton", "--backward", "chunked"], ["newton", "--backward", "blelloch"], ["overlap", "--backward", "overlap"], ["auto"]):
    other = answer("train", "rnn", *streams, "--method", *way)
    assert abs(other["train_loss"] - loop["train_loss"]) < 1e-4, (way, other["train_loss"], loop["train_loss"])
    assert abs(other["test_loss"] - loop["test_loss"]) < 1e-3
assert answer("train", *streams, "gru", "--bidirectional", "--readout", "mean")["train_loss"] < 2.2

# ---- states kept every so many steps: the same bits, one layer or several, of one length ----
for kind in ("rnn", "gru", "lstm", "mingru"):
    short = [kind, "--data", "bitstream", "--limit", 96, "--length", 300, "--batch", 48, "--layers", 2, "--hidden", 20, "--epochs", 1,
             "--method", "sequential", "--backward", "sequential"]
    whole, cut = answer("train", *short), answer("train", *short, "--segment", 5)
    assert (whole["train_loss"], whole["test_loss"]) == (cut["train_loss"], cut["test_loss"]), (kind, whole, cut)
other = answer("train", *streams, "--segment", 5, "rnn", "--batch", 32, "--method", "newton", "--backward", "chunked")
assert abs(other["train_loss"] - answer("train", "rnn", *streams, "--batch", 32)["train_loss"]) < 1e-4, other
# Nor do tests keep more, whose batches are as large: all states of three layers would take some 50 MB.
child = subprocess.Popen(words("train", "lstm", "--data", "bitstream", "--limit", 160, "--length", 12000, "--layers", 3, "--epochs", 1, "--method", "sequential",
                               "--backward", "sequential", "--segment", 1000, "--quiet"))
_, left, used = os.wait4(child.pid, 0)
assert left == 0 and used.ru_maxrss < 95 << 10, (left, used.ru_maxrss)
answer("train", "gru", *streams, "--save", path("none.st"))
refused(2, "segment is 5, wanted 0, the checkpoint's", "train", "gru", *streams, "--segment", 5, "--resume", path("none.st"))
refused(2, "", "train", "gru", *streams, "--segment", 5, "--dropout", 0.5, "--layers", 2)
refused(2, "", "train", "gru", *streams, "--segment", 5, "--bidirectional")
refused(2, "--embedding is for a text", "train", "gru", *streams, "--embedding", 4)
refused(2, "there are mlp, resnet, rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru, vae, denoiser, vgg11", "train", "tree")
refused(2, "wanted --layers 2 or more", "train", "gru", *streams, "--dropout", 0.5)
answer("train", "gru", *streams, "--dropout", 0.5, "--layers", 2)
refused(3, "and --no-fallback was given", "train", "gru", *streams, "--method", "newton", "--max-sweeps", 1, "--tolerance", "1e-9", "--no-fallback", "--quiet")

# ---- a text ----
sentence = "the chain of states is solved at once where it forgets its past and in order where it does not ".encode()
text = b"".join(sentence[i % 40 :] for i in range(300))
put("text", text)
put("text.gz", gzip.compress(text))
learn = ["--data", path("text.gz"), "--hidden", 24, "--batch", 4, "--length", 32, "--epochs", 3, "--rate", "1e-2"]
first = answer("train", "gru", *learn, "--save", path("a.st"), "--log", path("a.log"))
assert first["test_loss"] < 1.0, first
lines = [json.loads(line) for line in open(path("a.log"))]
assert [line["event"] for line in lines].count("epoch") == 3 and lines[-1]["event"] == "end"
again = answer("train", "gru", *learn, "--data", path("text"), "--threads", 1, "--save", path("b.st"))
assert content("a.st") == content("b.st")
for method in ("sequential", "overlap", "auto"):
    r = answer("eval", path("a.st"), "--data", path("text"), "--method", method)
    assert r["characters"] > 900 and r["difference"] < 1e-6 and r["loss"] < 1.0 and r["memory"], r
refused(2, "is a model of text, which is one sequence", "eval", path("a.st"), "--data", path("text"), "--batch", 4)
# The loop over all of a text is one call, and is left at once.
run("train", "gru", "--data", path("text"), "--hidden", 1024, "--batch", 1, "--length", 4, "--limit", 20, "--epochs", 1, "--save", path("wide.st"), "--quiet")
put("tale", text * 2)
stopped_within(1.5, lambda used: used > 0.5, "eval", path("wide.st"), "--data", path("tale"), "--split", "train", "--limit", 30000, "--method", "sequential",
               "--threads", 1)

# A step of two characters is one chunk, the test is many.
refused(3, "and --no-fallback was given", "train", "gru", *learn, "--length", 2, "--limit", 2000, "--epochs", 1, "--method", "overlap", "--chunk", 8,
        "--run-up", 1, "--max-sweeps", 1, "--tolerance", 0, "--no-fallback", "--quiet")
# What was learnt before a test that fails is kept, and stands in the log.
strict = ["train", "gru", *learn, "--length", 2, "--limit", 2000, "--epochs", 1, "--method", "newton", "--max-sweeps", 2]
refused(3, "newton did not converge in 2 sweeps", *strict, "--no-fallback", "--save", path("strict.st"), "--log", path("strict.log"), "--quiet")
lines = [json.loads(line) for line in content("strict.log").decode().splitlines()]
assert lines[-1]["event"] == "epoch" and "test_loss" not in lines[-1] and lines[-2]["reason"] == "exact", lines[-2:]
assert int(safetensors("strict.st")[0]["deeppcr.train.step"]) == lines[-1]["step"] == lines[-2]["step"]
refused(3, "newton did not converge in 2 sweeps", *strict, "--no-fallback", "--resume", path("strict.st"), "--quiet")
told = answer(*strict, "--save", path("other.st"))
assert told["finished_in_order"] == 0 and safetensors("other.st")[1] == safetensors("strict.st")[1], told
# A method that may not go on is not told as one that did it: of each step, and of tests.
told = answer(*strict, "--length", 20)
assert told["finished_in_order"] == told["steps"] > 0 and told["method"] == "newton", told
assert b"%d steps were finished in order" % told["steps"] in run(*strict, "--length", 20)
# So is a way back that gave up, by segments too.
for more in ([], ["--segment", 60]):
    told = answer("train", "gru", "--data", "bitstream", "--limit", 96, "--length", 300, "--batch", 48, "--hidden", 20, "--epochs", 1, "--method", "sequential",
                  "--backward", "overlap", "--run-up", 1, "--tolerance", 0, *more)
    assert told["finished_in_order"] == told["steps"] == 2 and (told["backward"], told["method"]) == ("overlap", "sequential"), told
told = answer("eval", path("other.st"), "--data", path("text"), "--method", "newton", "--max-sweeps", 1)
assert told["reason"] == "fallback" and told["difference"] == 0, told
assert run("eval", path("other.st"), "--data", path("text"), "--method", "newton", "--max-sweeps", 1).count(b", finished in order") == 1
# One choice for all layers is why the first one's planner made it.
said = answer("train", "gru", *learn, "--layers", 2, "--epochs", 1, "--backward", "sequential", "--method", "auto")["sentence"]
assert "the loop takes" in said, said

# ---- interrupted and killed: resumed to the same bits ----
for way in (signal.SIGINT, signal.SIGKILL):
    child = subprocess.Popen(words("train", "gru", *learn, "--save", path("c.st"), "--checkpoint-seconds", "0.01", "--quiet"))
    end = time.monotonic() + 20
    while not os.path.exists(path("c.st")) and time.monotonic() < end:
        time.sleep(0.002)
    time.sleep(0.05)
    child.send_signal(way)
    code = child.wait(30)
    assert code in ((130, 0) if way == signal.SIGINT else (-9, 0)), code
    run("train", "gru", *learn, "--resume", path("c.st"), "--quiet")
    assert content("c.st") == content("a.st"), way
    os.remove(path("c.st"))
further = ["train", "gru", *learn, "--constant-rate", "--warm-up", 0, "--epochs"]
run(*further, 1, "--save", path("c.st"), "--quiet")
assert answer(*further, 2, "--resume", path("c.st"))["sentence"].endswith(": as in the checkpoint")
assert run(*further, 2, "--resume", path("c.st")).count(b"\n") == 1  # complete: no reason why it ran so
refused(2, "", "train", "gru", *learn, "--epochs", 4, "--clip", 2, "--resume", path("a.st"))
refused(2, "or is a text's --embedding", "train", "gru", *learn, "--embedding", 5, "--resume", path("a.st"), "--save", path("d.st"))
kept = content("a.st")
for files in (["--save", path("a.st"), "--log", path("a.st")], ["--resume", path("a.st"), "--save", path("d.st"), "--log", path("a.st")],
              ["--resume", path("a.st"), "--csv", path("a.st")], ["--log", path("d.log"), "--csv", path("d.log")]):
    refused(2, "is to be written, and is named twice", "train", "gru", *learn, *files)
words_of = put("words.txt", b"to be or not to be, that is the question. " * 400)
for files in (["--save", words_of], ["--log", words_of], ["--csv", words_of]):
    refused(2, "is to be read and to be written over" if files[0] != "--log" else "is no log", "train", "gru", "--data", words_of, "--epochs", 1, *files)
assert content("words.txt").startswith(b"to be")
# Options are usage; a file that is too little for them is a bad input.
refused(2, "wanted at least warm_up", "train", "gru", "--data", words_of, "--epochs", 1, "--warm-up", 99)
refused(2, "5 sequences are less than one batch", "train", "gru", "--data", "bitstream", "--limit", 5, "--batch", 6)
refused(5, "too short", "train", "gru", "--data", put("short.txt", b"to be " * 50))
packed, without = put("short.txt.gz", gzip.compress(b"to be")), 0
for at in range(1, 40) if os.path.exists(path("faults.so")) else ():  # whichever allocation fails: no text that is wrong
    done = ended((4, 5), "train", "gru", "--data", packed, env={**os.environ, "LD_PRELOAD": path("faults.so"), "FAIL_ALLOCATION": str(at)})
    assert (b"too short" if done.returncode == 5 else b"memory") in done.stderr, (at, done)
    without += b"no memory to read " in done.stderr
assert without > 1 or not os.path.exists(path("faults.so")), without
for option, value in (("--length", 10**4), ("--batch", 10**4), ("--limit", 10)):
    refused(2, "too short", "train", "gru", "--data", words_of, "--epochs", 1, option, value)
assert content("a.st") == kept and not os.path.exists(path("d.st"))

# ---- the log ----
def logged(text):
    return [json.loads(line) for line in text.decode().splitlines()]


# A disk without room for a line of it (here: a limit on a file's size): no checkpoint is ahead of the log.
short = ["train", "gru", "--data", "bitstream", "--limit", 64, "--length", 5, "--hidden", 3, "--batch", 8, "--threads", 1, "--epochs", 20, "--quiet",
         "--method", "sequential", "--backward", "sequential"]
run(*short, "--save", path("whole.st"))
refused(4, "cannot write the log", *short, "--save", path("gap.st"), "--log", path("gap.log"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)))
assert 8 < len(logged(content("gap.log"))) < 150, "no step was lost"
run(*short, "--resume", path("gap.st"), "--log", path("gap.log"))
assert [line["step"] for line in logged(content("gap.log")) if line["event"] == "step"] == list(range(1, 161))
assert content("gap.st") == content("whole.st")

# Into a pipe, whoever comes first.
pipe = path("pipe")
os.mkfifo(pipe)
for program_first in (True, False):
    reader = None if program_first else subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    if not program_first: time.sleep(0.2)
    child = subprocess.Popen(words(*short, "--epochs", 2, "--log", pipe))
    if program_first: time.sleep(0.5)
    reader = reader or subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    told = logged(reader.communicate(timeout=60)[0])
    assert child.wait(60) == 0 and [line["event"] for line in told] == (["step"] * 8 + ["epoch"]) * 2 + ["end"], told


def begin():
    return subprocess.Popen(words(*short, "--epochs", 1000, "--save", path("piped.st"), "--log", pipe), stderr=subprocess.PIPE)


def ends(child, status, text):
    told = child.communicate(timeout=60)[1]
    assert child.returncode == status and is_one_line(told) and text in told, (child.returncode, told)


def until_written(child, file):
    while not any(fcntl.ioctl(file, termios.FIONREAD, bytes(4))):
        assert child.poll() is None, child.returncode
        time.sleep(0.1)


def saved(name):
    return int(safetensors(name)[0]["deeppcr.train.step"])


# Its reader goes away; it reads no further; there is none.
child = begin()
with open(pipe) as file:
    file.readline()
ends(child, 4, b"Broken pipe")
child = begin()
with open(pipe, "rb", buffering=0) as file:
    until_written(child, file)
    until_asleep(child)
    child.send_signal(signal.SIGTERM)
    ends(child, 143, b"; to go on, resume from")
    lines = b"".join(iter(lambda: file.read(1 << 16), b"")).split(b"\n")
assert saved("piped.st") <= json.loads(lines[-2])["step"], "a step whose line is nowhere is saved"
# A terminal that nobody reads: what it takes of a line is no error of a disk.
master, slave = os.openpty()
child = subprocess.Popen(words(*short, "--epochs", 1000, "--save", path("shown.st"), "--log", os.ttyname(slave)), stderr=subprocess.PIPE)
until_written(child, master)
until_asleep(child)
child.send_signal(signal.SIGTERM)
ends(child, 143, b"; to go on, resume from")
os.close(slave)
os.close(master)
# Into a pipe of one line: the last step's is missed, or its epoch's; then it is done again.
for read in (6, 7):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, 1031, 4096)  # F_SETPIPE_SZ
    child = subprocess.Popen(words(*short, "--epochs", 1, "--save", path("last.st"), "--log", pipe), stderr=subprocess.PIPE)
    for _ in range(read):
        until_written(child, reader)
        os.read(reader, 1 << 16)
    until_asleep(child)
    child.send_signal(signal.SIGTERM)
    ends(child, 143, b": stopped as asked before the log had all of the last step; to go on, resume from")
    assert [line["step"] for line in logged(os.read(reader, 1 << 16))] == [read + 1] and saved("last.st") == 0
    os.close(reader)
for delay in (0.5, 1, 2, 4):
    child = begin()
    time.sleep(delay)
    child.send_signal(signal.SIGTERM)
    if child.wait(60) != -signal.SIGTERM: break  # else it came before the program had a handler
ends(child, 143, b"stopped as asked")

# ---- below a long path ----
deep = path(*["d" * 200] * 3, "m.st")
os.makedirs(os.path.dirname(deep))
put(deep, content("a.st"))
line = refused(2, " [...] ", "train", "gru", *learn, "--clip", 2, "--resume", deep, "--save", path("d.st"))
assert line.endswith("/m.st: clip is 2, wanted 1, the checkpoint's\n"), line

# ---- a checkpoint of another text with the same order of letters: refused, and left ----
put("upper", text.upper())
run(*further, 1, "--save", path("c.st"), "--quiet")
kept = content("c.st")
refused(2, "data.hash is", *further, 2, "--data", path("upper"), "--resume", path("c.st"), "--quiet")
assert content("c.st") == kept
kept = content("a.st")

# ---- refusals ----
put("short", b"ab")
put("empty", b"")
put("cut.st", content("a.st")[:3000])
strings, parts = safetensors(path("a.st"))  # a checkpoint of its own takes the file's place
header = 8 + int.from_bytes(kept[:8], "little")
for place in range(header, len(kept), (len(kept) - header) // 5):
    put("flipped.st", kept[:place] + bytes([kept[place] ^ 16]) + kept[place + 1 :])
    refused(5, "flipped.st: damaged", "train", "gru", *learn, "--resume", path("flipped.st"))
    refused(5, "flipped.st: damaged", "eval", path("flipped.st"), "--data", path("text"))
put_safetensors("more.st", strings, {**parts, "note": ((3,), bytes(24), "q")})
refused(5, "'note' is of dtype I64, which none has", "train", "gru", *learn, "--resume", path("more.st"))
assert "note" in safetensors(path("more.st"))[1]
answer("eval", path("more.st"), "--data", path("text"))
for arguments, status in (
    (["train", "gru", "--data", path("none")], 5),
    (["train", "gru", "--data", path("short")], 5),
    (["train", "gru", "--data", path("empty")], 5),
    (["train", "gru", "--data", path("text"), "--readout", "mean"], 2),
    (["train", "gru", "--data", path("text"), "--bidirectional"], 2),
    (["train", "rnn"], 2),
    (["train", "rnn", "--data", "bitstream", "--hidden", "0"], 2),
    (["train", "rnn", "--data", "bitstream", "--hidden", "16384", "--layers", "64", "--limit", "16", "--length", "2"], 4),
    (["train", "rnn", "--data", "bitstream", "--save", path("no/where.st")], 4),
    (["train", "gru", "--data", path("text"), "--rate", "1e30", "--clip", "0", "--epochs", "2"], 2),
    (["train", "gru", *learn, "--resume", path("cut.st")], 5),
    (["eval", path("cut.st"), "--data", path("text")], 5),
    (["eval", path("a.st"), "--data", path("none")], 5),
):
    refused(status, "", *arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)))
# Batches that would not fit are known before any of their zeros is written: 2 GB of 4 would.
child = subprocess.Popen(words("train", "gru", "--data", "bitstream", "--length", 25000000, "--limit", 1, "--batch", 1, "--readout", "mean"), stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)))
told = child.stderr.read()
_, left, used = os.wait4(child.pid, 0)
assert os.waitstatus_to_exitcode(left) == 4 and b"no memory for a batch (41" in told and used.ru_maxrss < 500 << 10, (left, told, used.ru_maxrss)
# A loss that is not finite ends the run, in words without a sign; the mean of finite ones that is not is no matter of memory.
diverging = ["--data", "bitstream", "--length", 50, "--limit", 64, "--optimiser", "sgd", "--clip", 0]
for dtype in ("float32", "float64"):
    refused(2, "the loss is nan, wanted a finite number", "train", "rnn-relu", *diverging, "--rate", "1e30", "--dtype", dtype)
refused(2, "the loss is inf, wanted a finite number", "train", "gru", *diverging, "--dtype", "float64", "--batch", 4, "--limit", 256, "--rate", "1e306",
        "--log", path("inf.log"))
assert json.loads(open(path("inf.log")).read().split("\n")[-2])["loss"] is None
print("cli_sequence: streams and texts learnt, resumed, evaluated, refused")
PYTHON
