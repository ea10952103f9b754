#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_biquads.sh BUILD_DIR: 'deeppcr solve biquads' against the loop in Python, in SciPy's layouts: one signal and several, float and double,
# states in and out, in pieces, standard input and output, sounds; wrong arguments, files and shapes.
set -u
build=$(cd "${1:?usage: cli_biquads.sh BUILD_DIR}" && pwd) || exit 1
program=$build/deeppcr
[ -x "$program" ] || { echo "cli_biquads: no program at $program"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 - "$program" "$folder" <<'PYTHON'
import json, math, os, struct, subprocess, sys, wave

program, folder = sys.argv[1:]


def path(name):
    return os.path.join(folder, name)


def npy(shape, values, letter="d"):
    head = "{'descr': '<f%d', 'fortran_order': False, 'shape': (%s), }" % (8 if letter == "d" else 4, "".join("%d," % n for n in shape))
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), letter), *values)


def read(data):
    length = struct.unpack("<H", data[8:10])[0]
    head = eval(data[10:10 + length].decode())
    letter = {"<f8": "d", "<f4": "f"}[head["descr"]]
    body = data[10 + length:]
    return list(head["shape"]), list(struct.unpack("<%d%s" % (len(body) // struct.calcsize(letter), letter), body)), letter


def put(name, shape, values, letter="d"):
    with open(path(name), "wb") as file:
        file.write(npy(shape, values, letter))
    return path(name)


def get(name):
    with open(path(name), "rb") as file:
        return read(file.read())


def run(*arguments, data=None, wanted=0):
    done = subprocess.run([program, "solve", "biquads"] + list(arguments), input=data, capture_output=True)
    assert done.returncode == wanted, (arguments, done.returncode, done.stderr)
    if wanted:
        assert done.stderr.count(b"\n") == 1, done.stderr
        return done.stderr.decode()
    return done.stdout


def loop(sos, x, z):
    y, z = [], [list(s) for s in z]
    for v in x:
        for s, c in zip(z, sos):
            u, v = v, c[0] / c[3] * v + s[0]
            s[0] = c[1] / c[3] * u - c[4] / c[3] * v + s[1]
            s[1] = c[2] / c[3] * u - c[5] / c[3] * v
        y.append(v)
    return y, z


def close(a, b, tolerance):
    assert len(a) == len(b)
    worst = max([abs(u - v) for u, v in zip(a, b)] + [0])
    assert worst <= tolerance * max(1, max([abs(v) for v in b] + [0])), worst


sos = [[0.2, 0.3, 0.1, 1, -1.2, 0.5], [2, -2.4, 1, 2, -2.9, 1.3], [1, 0, -1, 1, 0.3, 0.2]]
n, channels, length = 3, 3, 5000
flat = [v for row in sos for v in row]
put("sos.npy", [n, 6], flat)
signals = [[math.sin(0.01 * (c + 1) * l) + 0.1 * math.cos(0.9 * l) for l in range(length)] for c in range(channels)]
states = [[[0.1 * (c + 1) - 0.2 * s + 0.05 * i for i in range(2)] for s in range(n)] for c in range(channels)]
wanted = [loop(sos, x, z) for x, z in zip(signals, states)]

# several signals, double and float; zi and zf are [n][channels][2]
put("zi.npy", [n, channels, 2], [states[c][s][i] for s in range(n) for c in range(channels) for i in range(2)])
for letter, tolerance in (("d", 1e-12), ("f", 1e-6)):
    put("x.npy", [channels, length], [v for x in signals for v in x], letter)
    report = json.loads(run("--sos", path("sos.npy"), "--input", path("x.npy"), "--output", path("y.npy"), "--zi", path("zi.npy"),
                            "--final", path("zf.npy"), "--json", "--threads", "2"))
    assert report["channels"] == channels and report["samples"] == length and report["sections"] == n and report["memory"] > 10
    shape, y, got = get("y.npy")
    assert shape == [channels, length] and got == letter
    close(y, [v for row, _ in wanted for v in row], tolerance)
    shape, zf, got = get("zf.npy")
    assert shape == [n, channels, 2] and got == "d"
    close(zf, [wanted[c][1][s][i] for s in range(n) for c in range(channels) for i in range(2)], 1e-6 if letter == "f" else 1e-12)

# one signal through standard input and output, in two pieces
put("z0.npy", [n, 2], [v for s in states[0] for v in s])
first = run("--sos", path("sos.npy"), "--input", "-", "--output", "-", "--zi", path("z0.npy"), "--final", path("z1.npy"),
            data=npy([2100], signals[0][:2100]))
second = run("--sos", path("sos.npy"), "--input", "-", "--output", "-", "--zi", path("z1.npy"), data=npy([length - 2100], signals[0][2100:]))
assert get("z1.npy")[0] == [n, 2]
close(read(first)[1] + read(second)[1], wanted[0][0], 1e-12)

# nothing at all
run("--sos", path("sos.npy"), "--input", put("empty.npy", [0], []), "--output", path("y.npy"), "--quiet")
assert get("y.npy")[0] == [0]

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
    with open(path("out.wav"), "rb") as file:
        data = file.read()
    assert data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    at = data.index(b"fmt ") + 8
    kind, count, rate = struct.unpack("<HHI", data[at:at + 8])
    assert (kind, count, rate) == (3, 2, 44100)
    at = data.index(b"data") + 8
    y = struct.unpack("<%df" % (2 * length), data[at:at + 8 * length])
    for c in range(2):
        close(y[c::2], loop(sos, [v / 32768 for v in samples[c::2]], [[0, 0]] * n)[0], 1e-6)
    run("--sos", path("sos.npy"), "--input", path("in.wav"), "--output", path("y.npy"), "--quiet")
    shape, got, letter = get("y.npy")
    assert shape == [2, length] and letter == "f" and got == list(y[0::2]) + list(y[1::2])
    # too loud for a format of integers: cut at 1, not refused
    put("loud.npy", [1, 6], [8, 0, 0, 1, 0, 0])
    run("--sos", path("loud.npy"), "--input", path("in.wav"), "--output", path("loud.flac"), "--quiet")
    run("--sos", put("one.npy", [1, 6], [1, 0, 0, 1, 0, 0]), "--input", path("loud.flac"), "--output", path("y.npy"), "--quiet")
    got = get("y.npy")[1]
    assert max(got) > 0.99 and max(map(abs, got)) <= 1
    put("x.npy", [10], [0.0] * 10)
    assert "sampling rate" in run("--sos", path("sos.npy"), "--input", path("x.npy"), "--output", path("y.wav"), wanted=2)
    with open(path("cut.wav"), "wb") as file:
        file.write(b"RIFF....")
    assert "no sound" in run("--sos", path("sos.npy"), "--input", path("cut.wav"), "--output", path("y.wav"), wanted=5)

# refusals
x = put("x.npy", [4, 10], [0.0] * 40)
assert "--sos" in run("--input", x, "--output", path("y.npy"), wanted=2)
assert "--input" in run("--sos", path("sos.npy"), "--output", path("y.npy"), wanted=2)
assert "kept" in run("--sos", path("sos.npy"), "--input", x, wanted=2)
assert "twice" in run("--sos", path("sos.npy"), "--input", x, "--output", "-", "--json", wanted=2)
assert "[n][6]" in run("--sos", x, "--input", x, "--output", path("y.npy"), wanted=5)
assert "[3][4][2]" in run("--sos", path("sos.npy"), "--input", x, "--output", path("y.npy"), "--zi", path("z0.npy"), wanted=5)
assert "a_0" in run("--sos", put("bad.npy", [1, 6], [1.0, 0, 0, 0, 0, 0]), "--input", x, "--output", path("y.npy"), wanted=5)
assert "[channels][samples]" in run("--sos", path("sos.npy"), "--input", put("three.npy", [1, 1, 1], [0.0]), "--output", path("y.npy"), wanted=5)
run("--sos", path("sos.npy"), "--input", path("absent.npy"), "--output", path("y.npy"), wanted=5)
run("--sos", path("sos.npy"), "--input", x, "--output", path("no/folder/y.npy"), wanted=4)
print("cli_biquads: the loop's numbers, in SciPy's layouts; refusals in words")
PYTHON
