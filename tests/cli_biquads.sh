#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_biquads.sh BUILD_DIR: 'deeppcr solve biquads' against the loop in Python, in SciPy's layouts: one signal and several, float and double,
# states in and out, in pieces, standard input and output, sounds; wrong arguments, files and shapes.
set -u
. "$(dirname "$0")/program.bash"
make_faults  # or no faults.so
python3 - "$program" "$folder" <<'PYTHON'
import math, os, signal, struct, subprocess, wave

from program import always, answer, content, ended, get_npy, get_npz, is_one_line, near, npy, path, program, put, put_npy, read_npy, refused, run

always += ["solve", "biquads"]


def loop(sos, x, z):
    y, z = [], [list(s) for s in z]
    for v in x:
        for s, c in zip(z, sos):
            u, v = v, c[0] / c[3] * v + s[0]
            s[0] = c[1] / c[3] * u - c[4] / c[3] * v + s[1]
            s[1] = c[2] / c[3] * u - c[5] / c[3] * v
        y.append(v)
    return y, z


sos = [[0.2, 0.3, 0.1, 1, -1.2, 0.5], [2, -2.4, 1, 2, -2.9, 1.3], [1, 0, -1, 1, 0.3, 0.2]]
n, channels, length = 3, 3, 5000
flat = [v for row in sos for v in row]
put_npy("sos.npy", [n, 6], flat)
signals = [[math.sin(0.01 * (c + 1) * l) + 0.1 * math.cos(0.9 * l) for l in range(length)] for c in range(channels)]
states = [[[0.1 * (c + 1) - 0.2 * s + 0.05 * i for i in range(2)] for s in range(n)] for c in range(channels)]
wanted = [loop(sos, x, z) for x, z in zip(signals, states)]

# several signals, double and float; zi and zf are [n][channels][2]
put_npy("zi.npy", [n, channels, 2], [states[c][s][i] for s in range(n) for c in range(channels) for i in range(2)])
for letter, tolerance in (("d", 1e-12), ("f", 1e-6)):
    put_npy("x.npy", [channels, length], [v for x in signals for v in x], letter)
    report = answer("--sos", path("sos.npy"), "--input", path("x.npy"), "--output", path("y.npy"), "--zi", path("zi.npy"),
                            "--final", path("zf.npy"), "--threads", "2")
    assert report["channels"] == channels and report["samples"] == length and report["sections"] == n and report["memory"] > 10
    shape, y, got = get_npy("y.npy")
    assert got == letter
    near("y", (shape, y), ((channels, length), [v for row, _ in wanted for v in row]), tolerance, 1)
    shape, zf, got = get_npy("zf.npy")
    assert got == "d"
    near("zf", (shape, zf), ((n, channels, 2), [wanted[c][1][s][i] for s in range(n) for c in range(channels) for i in range(2)]),
         1e-6 if letter == "f" else 1e-12, 1)

# one signal through standard input and output, in two pieces
put_npy("z0.npy", [n, 2], [v for s in states[0] for v in s])
first = run("--sos", path("sos.npy"), "--input", "-", "--output", "-", "--zi", path("z0.npy"), "--final", path("z1.npy"),
            data=npy([2100], signals[0][:2100]))
second = run("--sos", path("sos.npy"), "--input", "-", "--output", "-", "--zi", path("z1.npy"), data=npy([length - 2100], signals[0][2100:]))
assert get_npy("z1.npy")[0] == (n, 2)
near("pieces", ((length,), read_npy(first)[1] + read_npy(second)[1]), ((length,), wanted[0][0]), 1e-12, 1)

# states go through a pipe as they go through files: of no text, whatever standard output is called
for pieces, zi in (((signals[0][:2100], signals[0][2100:]), "z0.npy"), ((signals[0][:7], []), None)):
    of_file, of_pipe, given = None, None, ["--zi", path(zi)] if zi else []
    for k, piece in enumerate(pieces):
        x = put_npy("piece.npy", [len(piece)], piece)
        run("--sos", path("sos.npy"), "--input", x, "--output", path("y.npy"), "--final", path("zf%d.npy" % k), *given, "--quiet")
        of_file = content("zf%d.npy" % k)
        for place in ("-", "/dev/stdout"):
            sent = run("--sos", path("sos.npy"), "--input", x, "--output", path("y2.npy"), "--final", place,
                       *(["--zi", "-"] if of_pipe else given), **({"data": of_pipe} if of_pipe else {}))
            assert sent == of_file and content("y2.npy") == content("y.npy"), (k, place, sent)
        of_pipe, given = sent, ["--zi", path("zf%d.npy" % k)]
assert run("--sos", path("sos.npy"), "--input", x, "--output", path("y.npy"), "--final", path("zf.npy")).startswith(b"1 channel of 0 samples")

# nothing at all
run("--sos", path("sos.npy"), "--input", put_npy("empty.npy", [0], []), "--output", path("y.npy"), "--quiet")
assert get_npy("y.npy")[0] == (0,)

# a sound: two channels of 16 bits in, float out; the same as npy
with wave.open(path("in.wav"), "wb") as w:
    w.setparams((2, 2, 44100, 0, "NONE", ""))
    samples = [int(8000 * signals[c][l]) for l in range(length) for c in range(2)]
    w.writeframes(struct.pack("<%dh" % len(samples), *samples))
done = subprocess.run([program, "solve", "biquads", "--sos", path("sos.npy"), "--input", path("in.wav"), "--output", path("out.wav"), "--quiet"],
                      capture_output=True)
if b"libsndfile" in done.stderr:
    print("cli_biquads: no sounds: built without libsndfile")
else:
    assert done.returncode == 0, done.stderr
    data = content("out.wav")
    assert data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    at = data.index(b"fmt ") + 8
    kind, count, rate = struct.unpack("<HHI", data[at:at + 8])
    assert (kind, count, rate) == (3, 2, 44100)
    at = data.index(b"data") + 8
    y = struct.unpack("<%df" % (2 * length), data[at:at + 8 * length])
    for c in range(2):
        near("sound", ((length,), y[c::2]), ((length,), loop(sos, [v / 32768 for v in samples[c::2]], [[0, 0]] * n)[0]), 1e-6, 1)
    run("--sos", path("sos.npy"), "--input", path("in.wav"), "--output", path("y.npy"), "--quiet")
    shape, got, letter = get_npy("y.npy")
    assert shape == (2, length) and letter == "f" and got == y[0::2] + y[1::2]
    # too loud for a format of integers: cut at 1 and told, not refused
    put_npy("loud.npy", [1, 6], [8, 0, 0, 1, 0, 0])
    said = ended(0, "--sos", path("loud.npy"), "--input", path("in.wav"), "--output", path("loud.flac"), "--quiet").stderr
    clipped = sum(abs(v * 8 / 32768) > 1 for v in samples)
    assert is_one_line(said) and b" %d of %d samples are louder than flac holds" % (clipped, len(samples)) in said and b".wav keeps" in said, said
    run("--sos", path("loud.npy"), "--input", path("in.wav"), "--output", path("loud.wav"), "--quiet")
    run("--sos", put_npy("one.npy", [1, 6], [1, 0, 0, 1, 0, 0]), "--input", path("loud.flac"), "--output", path("y.npy"), "--quiet")
    got = get_npy("y.npy")[1]
    assert max(got) > 0.99 and max(map(abs, got)) <= 1
    put_npy("huge.npy", [1, 6], [1e300, 0, 0, 1, 0, 0])
    refused(4, "flac holds no NaN and no infinity; .wav does", "--sos", path("huge.npy"), "--input", path("in.wav"), "--output", path("none.flac"))
    put_npy("x.npy", [10], [0.0] * 10)
    refused(2, "sampling rate", "--sos", path("sos.npy"), "--input", path("x.npy"), "--output", path("y.wav"))
    whole = content("in.wav")
    for cut in (len(whole) - 1, len(whole) // 2, 60):
        put("cut.wav", whole[:cut])
        refused(5, "cut short", "--sos", path("sos.npy"), "--input", path("cut.wav"), "--output", path("y.wav"))
    for unsaid in (0, 0xffffffff):  # as programs write that cannot go back
        put("piped.wav", whole[:4] + struct.pack("<I", unsaid) + whole[8:])
        run("--sos", path("sos.npy"), "--input", path("piped.wav"), "--output", path("piped.npy"), "--quiet")
    # as programs write that count their own header, or a pad byte that they leave out: all samples are there
    with wave.open(path("odd.wav"), "wb") as w:
        w.setnchannels(1), w.setsampwidth(1), w.setframerate(8000)
        w.writeframes(bytes(range(99, 0, -1)))
    for name, more in (("in.wav", 8), ("odd.wav", 1)):
        data = content(name)
        put("said.wav", data[:4] + struct.pack("<I", len(data) - 8 + more) + data[8:])
        for end in (name, "said.wav"):
            run("--sos", path("sos.npy"), "--input", path(end), "--output", path(end + ".npy"), "--quiet")
        assert content("said.wav.npy") == content(name + ".npy"), name
        put("said.wav", content("said.wav")[:-1])
        refused(5, "cut short", "--sos", path("sos.npy"), "--input", path("said.wav"), "--output", path("y.wav"))
    # other formats: what comes back, and what is cut short; no file has the time of writing in it
    for end in ("wav", "aiff", "au"):
        run("--sos", path("one.npy"), "--input", path("in.wav"), "--output", path("whole." + end), "--quiet")
        run("--sos", path("one.npy"), "--input", path("whole." + end), "--output", path("back.npy"), "--quiet")
        assert get_npy("back.npy")[1] == tuple(v / 32768 for v in samples[0::2] + samples[1::2]), end
        whole = content("whole." + end)
        at = whole.find(b"PEAK", 0, 128)
        assert (at < 0) == (end == "au") and (at < 0 or whole[at + 12:at + 16] == bytes(4)), (end, at)
        for cut in (len(whole) - 1, len(whole) // 2):
            put("cut." + end, whole[:cut])
            refused(5, "cut short", "--sos", path("sos.npy"), "--input", path("cut." + end), "--output", path("y.wav"))
    big, little = whole[24:], struct.pack("<%df" % len(samples), *[v / 32768 for v in samples])
    head = b"WAVEfmt " + struct.pack(">IHHIIHH", 16, 3, 2, 44100, 8 * 44100, 8, 32) + b"data" + struct.pack(">I", len(big))
    for turned in (b"RIFX" + struct.pack(">I", len(head + big)) + head + big, b"dns." + struct.pack("<5I", 24, len(little), 6, 44100, 2) + little):
        run("--sos", path("one.npy"), "--input", put("turned.wav", turned), "--output", path("y.npy"), "--quiet")
        assert content("y.npy") == content("back.npy"), turned[:4]
        refused(5, "cut short", "--sos", path("sos.npy"), "--input", put("turned.wav", turned[:-1]), "--output", path("y.wav"))
    head = b"WAVEds64" + struct.pack("<I3QI", 28, 4 + 36 + 24 + 8 + len(little), len(little), len(little) // 8, 0)
    head = b"RF64" + b"\xff" * 4 + head + b"fmt " + struct.pack("<IHHIIHH", 16, 3, 2, 44100, 8 * 44100, 8, 32) + b"data" + b"\xff" * 4
    run("--sos", path("one.npy"), "--input", put("long.wav", head + little), "--output", path("y.npy"), "--quiet")
    assert content("y.npy") == content("back.npy")
    refused(5, "cut short", "--sos", path("sos.npy"), "--input", put("long.wav", (head + little)[:-2]), "--output", path("y.wav"))
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 2, 44100, 8 * 44100, 8, 32) + b"data"
    for size, cut in ((3 << 30, True), (0x7ffff000, False), (0x80000000, False), (0xffffffff, False)):
        put("vast.wav", b"RIFF" + struct.pack("<I", min(size + 36, 0xffffffff)) + head + struct.pack("<I", size) + little)
        if cut:
            refused(5, "cut short", "--sos", path("sos.npy"), "--input", path("vast.wav"), "--output", path("y.wav"))
        else:
            run("--sos", path("one.npy"), "--input", path("vast.wav"), "--output", path("y.npy"), "--quiet")
            assert content("y.npy") == content("back.npy"), size
    # no samples, says whoever was stopped before he could count them
    count = struct.pack("<I", 0)
    for size in (0, 36, 44):
        refused(5, "says that it has no samples, but has some", "--sos", path("sos.npy"), "--output", path("y.wav"), "--input",
                put("none.wav", b"RIFF" + struct.pack("<I", size) + head + count + little))
    refused(5, "says that it has no samples, but has some", "--sos", path("sos.npy"), "--output", path("y.wav"), "--input",
            put("none.au", whole[:8] + count + whole[12:]))
    for end, nothing in (("wav", b"RIFF" + struct.pack("<I", 36) + head + count), ("wav", b"RIFF" + struct.pack("<I", 46) + head + count + b"note" + b"\2\0\0\0ab"),
                         ("au", whole[:8] + count + whole[12:int.from_bytes(whole[4:8], "big")])):
        run("--sos", path("one.npy"), "--input", put("none." + end, nothing), "--output", path("y.npy"), "--quiet")
    put("piped.au", whole[:8] + b"\xff" * 4 + whole[12:])
    run("--sos", path("one.npy"), "--input", path("piped.au"), "--output", path("piped.npy"), "--quiet")
    assert content("piped.npy") == content("back.npy")
    # whichever read fails, and whichever allocation: no end of a sound, and no sound that is wrong
    for end in ("wav", "aiff", "au", "flac") if os.path.exists(path("faults.so")) else ():
        sound = path("read." + end)
        run("--sos", path("one.npy"), "--input", path("in.wav"), "--output", sound, "--quiet")
        arguments = ["--sos", path("one.npy"), "--input", sound, "--output", path("y.npy"), "--quiet"]
        run(*arguments)
        wanted, preload = content("y.npy"), {**os.environ, "LD_PRELOAD": path("faults.so"), "FAIL_FILE": sound}
        for at in range(1, 100):
            done = ended((0, 5), *arguments, env={**preload, "FAIL_READ": str(at)})
            if done.returncode == 0: break
            assert done.stderr.decode() == "deeppcr solve: cannot read the sound '%s': Input/output error\n" % sound, (at, done.stderr)
        assert 2 < at < 99 and content("y.npy") == wanted, (end, at)
        without = 0
        for at in range(1, 60) if end == "flac" else ():
            done = ended((0, 4), *arguments, env={**preload, "FAIL_ALLOCATION": str(at)})
            without += b"not enough memory for the sound '" in done.stderr
            assert done.returncode == 4 or content("y.npy") == wanted, at
        assert without > 0 or end != "flac", "no allocation of a sound failed"
    # what a format does not hold
    for count, frames in ((1, 0), (9, 2)):
        with wave.open(path("few.wav"), "wb") as w:
            w.setparams((count, 2, 8000, 0, "NONE", ""))
            w.writeframes(bytes(2 * count * frames))
        refused(4, "not %d of %d; .wav does" % (count, frames), "--sos", path("sos.npy"), "--input", path("few.wav"), "--output", path("none.flac"))
        for end in ("wav", "aiff", "au"):
            run("--sos", path("sos.npy"), "--input", path("few.wav"), "--output", path("few_back." + end), "--quiet")
            run("--sos", path("sos.npy"), "--input", path("few_back." + end), "--output", path("y.npy"), "--quiet")
            assert get_npy("y.npy")[0] == ((frames,) if count == 1 else (count, frames)), end
    for rate in (1, 8000, 44100, 65535, 65536, 65537, 65540, 96000, 192000, 384000, 655349, 655350, 655351, 700001):
        with wave.open(path("rate.wav"), "wb") as w:
            w.setparams((2, 2, rate, 0, "NONE", ""))
            w.writeframes(struct.pack("<%dh" % len(samples), *samples))
        arguments = ["--sos", path("one.npy"), "--input", path("rate.wav"), "--output"]
        if rate <= 65535 or rate <= 655350 and rate % 10 == 0:
            run(*arguments, path("rate.flac"), "--quiet")
            told = answer("--sos", path("one.npy"), "--input", path("rate.flac"), "--output", path("y.npy"))
            assert told["rate"] == rate and get_npy("y.npy")[1] == tuple(v / 32768 for v in samples[0::2] + samples[1::2]), told
        else:  # before all else is read
            refused(4, "flac holds rates of 1 to 65535 Hz, and tens of Hz to 655350, not %d Hz; .wav does" % rate, *arguments, path("none.flac"),
                    "--zi", path("absent.npy"))
            assert answer(*arguments, path("rate_back.wav"))["rate"] == rate
    refused(2, "written as .wav, .flac", "--sos", path("sos.npy"), "--input", path("in.wav"), "--output", path("none.ogg"))
    assert not os.path.exists(path("none.flac")) and not os.path.exists(path("none.ogg"))
    put("cut.wav", b"RIFF....")
    refused(5, "no sound", "--sos", path("sos.npy"), "--input", path("cut.wav"), "--output", path("y.wav"))
    # nor does a name make a sound of bytes
    open(path("bare.au"), "wb").write(bytes(range(256)) * 12)
    refused(5, "no sound", "--sos", path("sos.npy"), "--input", path("bare.au"), "--output", path("y.wav"))

# a signal while it reads: the filter does not begin
stop = subprocess.Popen([program, "solve", "biquads", "--sos", path("sos.npy"), "--input", "-", "--output", path("stopped.npy")],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
whole = npy([1 << 17], [0.5] * (1 << 17))
stop.stdin.write(whole[:1 << 19])  # more than a pipe holds: it is at work
stop.stdin.flush()
stop.send_signal(signal.SIGINT)
out, said = stop.communicate(whole[1 << 19:], timeout=60)
assert stop.returncode == 130 and out == b"" and b"stopped as asked" in said and is_one_line(said), (stop.returncode, said)
assert not os.path.exists(path("stopped.npy"))

# refusals, and both outputs as npz
x = put_npy("x.npy", [4, 10], [0.0] * 40)
refused(2, "--sos", "--input", x, "--output", path("y.npy"))
refused(2, "--input", "--sos", path("sos.npy"), "--output", path("y.npy"))
refused(2, "kept", "--sos", path("sos.npy"), "--input", x)
refused(2, "standard output is wanted twice (--json and --output)", "--sos", path("sos.npy"), "--input", x, "--output", "-", "--json")
refused(2, "standard output is wanted twice (--output and --final)", "--sos", path("sos.npy"), "--input", x, "--output", "-", "--final", "/dev/stdout")
refused(2, "standard output is wanted twice (--final and --csv)", "--sos", path("sos.npy"), "--input", x, "--final", "-", "--csv", "-")
refused(5, "[n][6]", "--sos", x, "--input", x, "--output", path("y.npy"))
refused(5, "[3][4][2]", "--sos", path("sos.npy"), "--input", x, "--output", path("y.npy"), "--zi", path("z0.npy"))
refused(5, "bad.npy': filter_create: a_0", "--sos", put_npy("bad.npy", [1, 6], [1.0, 0, 0, 0, 0, 0]), "--input", x, "--output", path("y.npy"))
refused(5, "[channels][samples]", "--sos", path("sos.npy"), "--input", put_npy("three.npy", [1, 1, 1], [0.0]), "--output", path("y.npy"))
refused(5, "absent.npy", "--sos", path("sos.npy"), "--input", path("absent.npy"), "--output", path("y.npy"))
for end in ("npy", "npz"):
    run("--sos", path("sos.npy"), "--input", x, "--output", path("y." + end), "--final", path("zi." + end), "--quiet")
assert get_npz("y.npz") == {"y": get_npy("y.npy")} and get_npz("zi.npz") == {"zi": get_npy("zi.npy")}
for option in ("--output", "--final"):
    refused(2, "names a member of a file", "--sos", path("sos.npy"), "--input", x, option, path("o.npz:y"))
refused(2, "z.wav': states are written as .npy or .npz", "--sos", path("sos.npy"), "--input", x, "--final", path("z.wav"))
refused(4, "no/folder/y.npy", "--sos", path("sos.npy"), "--input", x, "--output", path("no/folder/y.npy"))
print("cli_biquads: the loop's numbers, in SciPy's layouts; refusals in words")
PYTHON
