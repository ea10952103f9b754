#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_generate.sh BUILD_DIR: 'deeppcr train vae', 'train denoiser' and 'generate' on a small data set made here: pictures like
# the data, the same ones by every method, killed runs that resume to the same bits, damaged models, refusals.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import json, os, random, signal, struct, subprocess, time, zlib

from program import answer, content, ended, get_npy, get_npz, is_one_line, path, put, put_cifar, put_images, put_npy, put_npz, put_older, put_safetensors, read_json, refused, run, safetensors, stopped_within, words

chance = random.Random(int(os.environ.get("SEED", "7")))
SIDE = 8


def images(count, seed, classes=4):
    """A bright bar whose place is the class, on black."""
    r = random.Random(seed)
    labels = bytes(r.randrange(classes) for _ in range(count))
    pixels = bytearray(r.randrange(30) for _ in range(count * SIDE * SIDE))
    for i, label in enumerate(labels):
        for line in range(2):
            for column in range(SIDE):
                pixels[i * SIDE * SIDE + (2 * label + line) * SIDE + column] += 200
    return (SIDE, SIDE), pixels, labels


put_images("data", "train", *images(1024, 1))
put_images("data", "t10k", *images(100, 2))


def png_size(name):
    data = content(name)
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    at, body = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    assert depth == 8 and colour == 0 and len(zlib.decompress(body)) == height * (width + 1)
    return width, height


small = ["--data", path("data"), "--batch", 64, "--threads", 1]
vae = answer("train", "vae", *small, "--latent", 4, "--width", 32, "--depth", 1, "--epochs", 12, "--rate", 0.01, "--save", path("vae"))
assert vae["network"] == "vae" and vae["latent"] == 4 and vae["steps"] == 12 * 16 and vae["train_loss"] < 45, vae
told = answer("train", "denoiser", *small, "--latent", path("vae"), "--conditional", "--width", 64, "--depth", 3, "--steps", 100,
           "--epochs", 30, "--rate", 0.005, "--save", path("codes"))
assert told["denoised"] == 4 and told["classes"] == 4 and told["prediction"] == "v" and told["train_loss"] < 0.9, told
told = answer("train", "denoiser", *small, "--width", 64, "--depth", 2, "--steps", 100, "--epochs", 20, "--rate", 0.005, "--schedule", "cosine",
           "--save", path("pixels"))
assert told["denoised"] == SIDE * SIDE and told["prediction"] == "x0" and told["schedule"] == "cosine", told

# Planning takes a small part of the loop (a few steps, rows of two calls of a sweep at most), and with the wisdom of a run before
# nothing, unless a sweep's call (of more than one row) was too long for that run and is made up for.
# How long things took decides that: where the processor was taken away, once more.
def planned(steps):
    if os.path.exists(path("wisdom%d" % steps)): os.remove(path("wisdom%d" % steps))
    told = [answer("generate", path("codes"), "--count", 1, "--steps", steps, "--threads", 1, "--seed", 5, "--samples", path("p%d.npy" % i),
                   *(["--wisdom", path("wisdom%d" % steps)] if i else [])) for i in range(3)]
    assert all(2 <= t["planning_evaluations"] <= 40 + steps / 8 and t["planning_calls"] <= 10 + steps / 8 for t in told[:2]), told
    assert all(t["planning_seconds"] > 0 for t in told), told
    assert all(t["sequential_evaluations"] == steps for t in told), told
    timed = [t["planning_evaluations"] > t["planning_calls"] for t in told[1:]]
    return told[2]["planning_evaluations"] == told[2]["planning_calls"] == 0 or timed == [False, True]


for steps in (40, 100):
    assert any(planned(steps) for attempt in range(5)), steps
assert answer("generate", path("codes"), "--count", 1, "--method", "sequential")["planning_evaluations"] == 0
kept = content("codes")
for files in (["--wisdom", path("codes")], ["--csv", path("codes")], ["--guess", path("p0.npy"), "--path-out", path("p0.npy")]):
    refused(2, "is to be read and to be written over", "generate", path("codes"), "--count", 1, *files)
assert content("codes") == kept
refused(5, "no wisdom", "generate", path("codes"), "--count", 1, "--wisdom", path("p0.npy"))
refused(2, "wanted a file", "generate", path("codes"), "--count", 1, "--wisdom", "-", "--json")
for option, name in (("--out", "a.jpg"), ("--path", "a.npy")):
    refused(2, "what is written is PNG, wanted a name that does not end in ." + name[2:], "generate", path("codes"), "--count", 1, option, path(name))
answer("generate", path("codes"), "--count", 1, "--threads", 1, "--wisdom", put("empty", b""))
assert content("empty").startswith(b"deeppcr wisdom ")

# Pictures like the data: two bright lines of the class asked for, the rest dark.
for label in range(4):
    run("generate", path("codes"), "--count", 8, "--class", label, "--guidance", 1.5, "--sampler", "ddpm", "--samples", path("s.npy"))
    shape, pixels, letter = get_npy("s.npy")
    assert shape == (8, 64) and letter == "f" and min(pixels) >= 0 and max(pixels) <= 1
    good = 0
    for n in range(8):
        lines = [sum(pixels[n * 64 + y * SIDE:n * 64 + (y + 1) * SIDE]) / SIDE for y in range(SIDE)]
        good += min(lines[2 * label:2 * label + 2]) > 0.5 and sum(lines) - sum(lines[2 * label:2 * label + 2]) < 1.5
    assert good >= 6, (label, good)

# The same pictures by every method, batch and number of threads, within the tolerance; at tolerance 0 to the bit.
fields = ("seconds", "sequential_seconds", "sweeps", "network_evaluations", "sequential_evaluations", "max_error", "method", "reason")
for sampler, steps in (("ddim", 25), ("ddpm", 100), ("dpm-solver++", 10), ("euler", 10), ("heun", 8)):
    for model in ("codes", "pixels"):
        common = ["generate", path(model), "--sampler", sampler, "--steps", steps, "--count", 3, "--threads", 1]
        loop = answer(*common, "--method", "sequential", "--samples", path("loop.npy"))
        assert loop["reason"] == "sequential" and loop["network_evaluations"] == loop["sequential_evaluations"], loop
        wanted = get_npy("loop.npy")
        for method in ("newton", "quasi-newton", "picard", "auto", "parareal", "parataa"):
            if model == "pixels" and method in ("newton", "quasi-newton"):
                continue
            window = [] if method == "parareal" else ["--window", 7]
            for more in (["--tolerance", 1e-4], ["--tolerance", 0, *window, "--batch", 2, "--threads", 2]):
                if more[1] == 0 and method == "auto":
                    continue
                told = answer(*common, "--method", method, "--samples", path("m.npy"), "--compare", *more)
                for field in fields:
                    assert field in told, field
                got = get_npy("m.npy")
                far = max(abs(a - b) for a, b in zip(got[1], wanted[1]))
                if more[1] == 0:
                    assert got == wanted and told["max_error"] == 0, (sampler, model, method, told)
                assert far <= 1e-4 and told["max_error"] <= 4e-4, (sampler, model, method, far, told)  # states are some units large

# Times one by one: those of a spacing make its pictures, any others some that all methods agree on.
listed = ["generate", path("codes"), "--count", 2, "--samples", path("t.npy")]
run(*listed, "--steps", 20)
wanted = get_npy("t.npy")
run(*listed, "--times", ", ".join(str(5 * i) for i in range(19, -1, -1)))
assert get_npy("t.npy") == wanted
told = answer(*listed, "--times", "99,70.5,30,9,2,0", "--method", "picard", "--tolerance", 1e-4, "--compare")
assert told["spacing"] == "times" and told["steps"] == 6 and told["max_error"] < 1e-3, told
for times, said in (("5,5", "time 2 of 2 is 5,"), ("100,3", "time 1 of 2 is 100,"), ("3,-1", "--times"), ("3,x", "--times"), ("", "--times"), ("nan", "--times"),
                           (",".join(str(99 - i / 2) for i in range(101)), "101 steps")):
    refused(2, said, *listed, "--times", times)
for more in (["--steps", 2], ["--spacing", "karras"]):
    refused(2, "--times", *listed, "--times", "9,3", *more)

# The tolerance is of the pictures: backed by an estimate, kept. Steps' own tolerances, and ParaDiGMS's locks, have reasons of their own.
for model in ("codes", "pixels"):
    for method in ("picard", "parataa", "parareal"):
        for tolerance in (0.01, 1e-4):
            told = answer("generate", path(model), "--sampler", "ddpm", "--count", 3, "--compare", "--method", method, "--tolerance",
                       tolerance, "--path-out", path("paths.npy"))
            shape, states, _ = get_npy("paths.npy")
            assert shape == (100, 3, told["width"]), shape
            if told["reason"] != "exact":
                assert told["reason"] == "converged" and told["error_estimate"] <= tolerance == told["tolerance"], told
                assert told["max_error"] <= told["error_estimate"] * max(map(abs, states)), told
# Those with an estimate of their own hold it to the tolerance, overlap joins bit for bit.
for sampler, method, more in (("ddim", "newton", []), ("ddpm", "newton", []), ("ddim", "shooting", []), ("ddim", "overlap", ["--block", 1]), ("ddpm", "overlap", ["--block", 4])):
    for tolerance in (0.3, 0.01):
        told = answer("generate", path("codes"), "--sampler", sampler, "--count", 4, "--compare", "--method", method, "--tolerance", tolerance, *more)
        assert told["tolerance"] == tolerance and told["reason"] in (("exact", "fallback") if method == "overlap" else ("exact", "converged")), told
        assert told["max_error"] == 0 if method == "overlap" else told["error_estimate"] <= tolerance, told
for method in ("newton", "shooting", "overlap"):
    refused(2, "--step-tolerance beside --tolerance: " + method, "generate", path("codes"), "--method", method, "--tolerance", 0.01, "--step-tolerance", 0.5)
# Joins by steps' tolerance where that is what is asked for.
told = answer("generate", path("codes"), "--sampler", "ddpm", "--count", 4, "--compare", "--method", "overlap", "--block", 4, "--step-tolerance", 1)
assert told["reason"] == "residual-only" and told["max_error"] > 0 and told["error_estimate"] is None, told
told = answer("generate", path("codes"), "--method", "picard", "--step-tolerance", 1e-3)
assert told["reason"] == "residual-only" and told["error_estimate"] is None and told["tolerance"] is None and told["step_tolerance"] == 1e-3, told
told = answer("generate", path("codes"), "--method", "picard", "--paradigms", "--tolerance", 0.1)
assert told["reason"] == "scaled", told
# Of several batches the worst is told: once one was finished in order, that stays so whatever comes after it.
for sweeps in range(10, 15):
    reasons = [answer("generate", path("codes"), "--sampler", "ddpm", "--method", "picard", "--tolerance", 1e-3, "--max-sweeps", sweeps,
                      "--batch", 1, "--count", count)["reason"] for count in range(1, 11)]
    assert reasons == sorted(reasons, key=["converged", "fallback"].index), (sweeps, reasons)
refused(2, "", "generate", path("codes"), "--method", "newton", "--paradigms")
refused(2, "", "generate", path("codes"), "--scaled", "--step-tolerance", 0.1)
assert "shooting, " not in refused(2, "--scaled beside method shooting, which has none", "generate", path("codes"), "--scaled", "--method", "shooting").split("wanted")[1]
for known in [], ["--known", path("none.png"), "--mask", path("none.png")]:
    refused(2, "--evaluate or --known N", "generate", path("codes"), "--data", path("data"), *known)
refused(2, "until the bits repeat", "generate", path("codes"), "--tolerance", 0, "--step-tolerance", 0.1)
said = answer("generate", path("codes"), "--method", "auto", "--steps", 100)["sentence"]
assert "picard" in said and "overlap does not pay: the chain keeps its past" in said, said

# Guesses: a path of another sample for all, those of as many; of the samples themselves nothing is left to do.
paths = ["generate", path("codes"), "--steps", 50, "--count", 2, "--method", "picard", "--step-tolerance", 1e-4]
cold = answer(*paths, "--path-out", path("paths.npy"), "--samples", path("cold.npy"))
assert (cold["path_out"], cold["samples"]) == (path("paths.npy"), path("cold.npy")), cold
same = answer(*paths, "--guess", path("paths.npy"), "--samples", path("warm.npy"))
assert same["sweeps"] <= 1 < cold["sweeps"] and max(abs(a - b) for a, b in zip(get_npy("warm.npy")[1], get_npy("cold.npy")[1])) < 1e-3, (same, cold)
near = answer(*paths, "--guess", path("paths.npy"), "--eta", 0.01)
assert near["sweeps"] <= cold["sweeps"], (near, cold)
run("generate", path("codes"), "--steps", 50, "--count", 1, "--path-out", path("one.npy"))
answer(*paths, "--guess", path("one.npy"))
run("generate", path("codes"), "--steps", 2, "--count", 1, "--path-out", path("few.npz"), "--samples", path("cold.npz"))
assert list(get_npz("few.npz")) == ["paths"] and list(get_npz("cold.npz")) == ["samples"]
run("generate", path("codes"), "--steps", 2, "--count", 1, "--guess", path("few.npz"), "--samples", path("few.npy"))
refused(2, "names a member", "generate", path("codes"), "--samples", path("few.npz:samples"))
refused(5, "", *paths, "--json", "--guess", path("one.npy"), "--steps", 49)
refused(5, "", *paths, "--json", "--guess", path("none.npy"))
refused(5, "cannot read --guess 'given'", *paths, "--json", "--guess", "given")  # the library's word is no guess here
# As many numbers, of two paths whose states are half as wide.
refused(5, "no path", *paths, "--sampler", "dpm-solver++", "--guess", path("paths.npy"))
with open(path("paths.npy"), "r+b") as file:
    file.truncate(900)
refused(5, "", *paths, "--json", "--guess", path("paths.npy"))

# Inpainting: the upper half of a held-out image stays, by every method; codes have no places.


def write_png(name, grey):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    lines = b"".join(b"\0" + bytes(grey[y * SIDE:(y + 1) * SIDE]) for y in range(SIDE))
    put(name, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)) +
        chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def may_want_png(*arguments):
    """Whether a call that needs libpng succeeded; if not, that is why."""
    done = ended((0, 2), *arguments)
    assert done.returncode == 0 and done.stderr == b"" or done.returncode == 2 and b"no libpng" in done.stderr and is_one_line(done.stderr), done
    return done.returncode == 0


half = [int(i < SIDE * SIDE // 2) for i in range(SIDE * SIDE)]
put_npy("mask.npy", (SIDE, SIDE), half, "f")
image = content("data", "t10k-images-idx3-ubyte")[16 + 3 * 64:16 + 4 * 64]
paint = ["generate", path("pixels"), "--steps", 20, "--count", 2, "--samples", path("p.npy"), "--mask", path("mask.npy")]
of_data = ["--data", path("data"), "--known"]
for more in (["--method", "picard"], ["--method", "sequential"], ["--method", "parareal", "--batch", 1]):
    run(*paint, *of_data, 3, *more)
    pixels = get_npy("p.npy")[1]
    for n in range(2):
        assert all(abs(pixels[n * 64 + i] - image[i] / 255) < 1e-5 for i in range(32)), more
        assert any(abs(pixels[n * 64 + i] - image[i] / 255) > 1e-3 for i in range(32, 64))
put_npy("known.npy", (2, 64), [image[i] / 255 for i in range(64)] + [1 - image[i] / 255 for i in range(64)], "f")
run(*paint, "--known", path("known.npy"))
assert all(abs(get_npy("p.npy")[1][64 + i] - (1 - image[i] / 255)) < 1e-5 for i in range(32))
write_png("mask.png", [255 * x for x in half])
has_png = may_want_png(*paint[:-1], path("mask.png"), *of_data, 3)
refused(2, "places", "generate", path("codes"), "--mask", path("mask.npy"), "--known", 3)
refused(2, "", *paint)
refused(5, "has %d held-out images, the first is 0" % len(content("data", "t10k-labels-idx1-ubyte")[8:]), *paint, *of_data, len(content("data", "t10k-labels-idx1-ubyte")[8:]))
os.mkdir(path("flat"))
for part in "images-idx3", "labels-idx1":  # as many numbers an image, in other rows
    read = content("data", "t10k-%s-ubyte" % part)
    put("flat/t10k-%s-ubyte" % part, read if part[0] == "l" else read[:8] + struct.pack(">2I", SIDE // 2, 2 * SIDE) + read[16:])
refused(5, "are 1 of %d x %d, the model's 1 of %d x %d" % (SIDE // 2, 2 * SIDE, SIDE, SIDE), *paint, "--data", path("flat"), "--known", 3)
assert refused(5, "has 128 numbers, wanted 64", *paint, "--known", path("mask.npy"), "--mask", path("known.npy")).endswith("64\n")
put_npz("both.npz", {"a": (64,), "b": (64,)}, {"a": half, "b": half})
refused(5, "has 2 arrays, wanted one", *paint, "--known", path("both.npz"))
put_npy("vast.npy", (SIDE, SIDE), [1e39 * x for x in half])
refused(5, "is not finite", *paint[:-1], path("vast.npy"), *of_data, 3)
put_npy("wide.npy", (SIDE // 2, 2 * SIDE), half, "f")
refused(5, "no picture", *paint[:-1], path("wide.npy"), *of_data, 3)
put_npy("loud.npy", (SIDE, SIDE), [2 * x for x in half], "f")
refused(5, "0 to 1", *paint, "--known", path("loud.npy"))
put("cut.png", content("mask.npy")[:40])
refused(5, "", *paint, "--known", path("cut.png"))

# Guess, window and batch change nothing beyond the tolerance.
run("generate", path("codes"), "--steps", 20, "--count", 2, "--path-out", path("others.npy"), "--seed", 77)
for method in ("newton", "picard", "parataa"):
    for guess in ("zero", "step", "state", path("others.npy")):
        for window, batch in ((20, 2), (6, 1)):
            told = answer("generate", path("codes"), "--method", method, "--guess", guess, "--window", window, "--batch", batch, "--steps", 20,
                       "--count", 2, "--tolerance", 1e-3, "--compare")
            assert told["reason"] in ("converged", "exact") and told["max_error"] <= 4e-3, (method, guess, window, told)
noisy = ["generate", path("codes"), "--steps", 20, "--count", 5, "--eta", 0.5]
if not may_want_png(*noisy, "--out", path("grid.png"), "--path", path("strip.png")):
    assert not has_png
    print("cli_generate: no libpng in this build, pictures are refused")
else:
    assert has_png and png_size("grid.png") == (3 * 18 + 2, 2 * 18 + 2) and png_size("strip.png") == (16 * 18 + 2, 18 + 2)
    first = content("grid.png")
    run(*noisy, "--method", "newton", "--tolerance", 0, "--out", path("grid.png"))
    assert content("grid.png") == first
    run(*noisy, "--seed", 2, "--out", path("grid.png"))
    assert content("grid.png") != first
    refused(4, "", "generate", path("codes"), "--out", path("no", "where.png"))

# Quality on a classifier's features: pictures of all classes are nearer to the data than those of one; the loop's and Newton's alike.
run("train", "resnet", "--data", path("data"), "--layers", 8, "--width", 8, "--epochs", 4, "--threads", 1, "--save", path("judge"), "--quiet")
judged = ["generate", path("codes"), "--count", 100, "--evaluate", path("judge"), "--data", path("data"), "--steps"]
good = answer(*judged, 20, "--method", "sequential")
newton = answer(*judged, 20, "--method", "newton")
scaled = answer(*judged, 20, "--method", "picard", "--scaled", "--tolerance", 0.1)
one = answer(*judged, 20, "--method", "sequential", "--class", 0)
assert 0 <= good["frechet_distance"] < 0.7 * one["frechet_distance"] and one["recall"] < good["recall"], (good, one)
assert abs(good["frechet_distance"] - newton["frechet_distance"]) < 0.02 * good["frechet_distance"] + 1e-3, (good, newton)
assert good["precision"] > 0.1 and 0 <= good["recall"] <= 1 and scaled["reason"] == "scaled", (good, scaled)
refused(5, "", "generate", path("codes"), "--evaluate", path("vae"), "--data", path("data"), "--samples", path("unjudged"))
refused(2, "wants 4 pictures or more", *judged, 20, "--count", 3, "--samples", path("unjudged"))
strings, parts = safetensors(path("judge"))
del strings["deeppcr.checksum"]
for key, value in (("pixel_mean", "nan"), ("pixel_mean", "inf"), ("pixel_mean", "x"), ("pixel_deviation", "0"), ("pixel_deviation", "nan")):
    put_safetensors("unscaled", {**strings, key: value}, parts)
    refused(5, "pixel_", *judged, 20, "--evaluate", path("unscaled"), "--samples", path("unjudged"))
    refused(5, key, "eval", path("unscaled"), "--data", path("data"))
assert not os.path.exists(path("unjudged")), "pictures were made before their judge was refused"

# A judge that takes its time is not waited for.
run("train", "mlp", "--data", path("data"), "--layers", 1, "--width", 256, "--epochs", 1, "--limit", 256, "--save", path("wide"), "--quiet")
stopped_within(0.7, lambda _: os.path.exists(path("judged.npy")), "generate", path("codes"), "--count", 10000, "--steps", 1, "--evaluate", path("wide"),
               "--data", path("data"), "--samples", path("judged.npy"), "--quiet", "--threads", 1)

# Killed and resumed: the bits of the run that nobody stopped.
for kind in ("vae", "denoiser"):
    common = ["train", kind, *small, "--width", 48, "--epochs", 6, "--json"]
    run(*common, "--save", path("whole"))
    began, killed = time.time(), 0
    for attempt in range(40):
        resume = ["--resume", path("cut")] if os.path.exists(path("cut")) else []
        process = subprocess.Popen(words(*common, "--save", path("cut"), "--checkpoint-seconds", 0.01, *resume), stdout=subprocess.DEVNULL)
        try:
            process.wait(timeout=chance.uniform(0.03, 0.12) if killed < 3 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL if killed % 2 else signal.SIGTERM)
            code = process.wait()
            assert code in (-9, -15, 143, 0)
            killed += 1
            if code:
                continue
        assert process.returncode == 0
        break
    assert content("cut") == content("whole"), (kind, killed)
    os.remove(path("cut"))

# An ended run asked for again is whole already; asked for more epochs it goes on.
again = ["train", "vae", *small, "--latent", 4, "--width", 32, "--depth", 1, "--rate", 0.01, "--save", path("more")]
before = content("vae")
put("more", before)
assert answer(*again, "--epochs", 12, "--resume", path("more"))["steps"] == 12 * 16 and content("more") == before
assert answer(*again, "--epochs", 12, "--kl", 1, "--resume", path("more"))["steps"] == 12 * 16 and content("more") == before  # the default
refused(2, "'deeppcr.learn.denormals' is flush there and keep here", *again, "--epochs", 12, "--denormals", "keep", "--resume", path("more"))
put_older("before", "more", "deeppcr.learn.denormals")  # what none tells may have been either
for denormals in "flush", "keep":
    assert answer(*again, "--epochs", 12, "--denormals", denormals, "--resume", path("before"), "--save", path("handed"))["steps"] == 12 * 16
refused(2, "'deeppcr.learn.weight' is 1 there and 2 here", *again, "--epochs", 12, "--kl", 2, "--resume", path("more"))
more = answer(*again, "--epochs", 14, "--resume", path("more"))
assert more["steps"] == 14 * 16 and content("more") != before, more

# CIFAR-10's files: convolutions, codes and colour; a file that is cut is refused.
r = random.Random(3)
put_cifar("cifar", [8 * k for k in range(1, 6)] + [8], lambda label: bytes(40 + 3 * (j % 32) + 20 * (j // 1024) + r.randrange(20) for j in range(3072)))
colour = ["--data", path("cifar"), "--batch", 16, "--threads", 1]
vae = answer("train", "vae", "--conv", *colour, "--latent", 4, "--width", 4, "--epochs", 2, "--save", path("conv"))
assert vae["convolutional"] and vae["images"] == 120, vae
# The convolutions of oneDNN, where there are some: the bits do not depend on our threads or OpenMP's, and nothing else is printed; a
# trained model runs on gathered ones.
if vae["convolutions"].startswith("onednn"):
    os.environ["ONEDNN_VERBOSE"] = "1"
    for threads, openmp in ((3, "1"), (2, "3"), (1, "2")):
        os.environ["OMP_NUM_THREADS"] = openmp
        answer("train", "vae", "--conv", *colour, "--latent", 4, "--width", 4, "--epochs", 2, "--threads", threads, "--save", path("conv.again"))
        assert content("conv.again") == content("conv"), (threads, openmp)
    del os.environ["OMP_NUM_THREADS"], os.environ["ONEDNN_VERBOSE"]
    gathered = answer("train", "vae", "--conv", *colour, "--latent", 4, "--width", 4, "--epochs", 2, "--convolutions", "gathered")
    assert gathered["convolutions"] == "gathered" and abs(gathered["train_loss"] - vae["train_loss"]) < 1e-4 * vae["train_loss"], (gathered, vae)
else:
    assert vae["convolutions"] == "gathered", vae
    refused(2, "onednn", "train", "vae", "--conv", *colour, "--convolutions", "onednn", "--json")
answer("train", "denoiser", *colour, "--latent", path("conv"), "--width", 16, "--epochs", 1, "--steps", 50, "--save", path("conv.codes"))
told = answer("train", "denoiser", *colour, "--width", 16, "--epochs", 1, "--steps", 50, "--save", path("colour"))
assert told["denoised"] == 3072, told
for model in ("conv.codes", "colour"):
    run("generate", path(model), "--steps", 10, "--count", 2, "--samples", path("s.npy"))
    assert get_npy("s.npy")[0] == (2, 3072)
    if may_want_png("generate", path(model), "--steps", 10, "--count", 2, "--out", path("colour.png")):
        assert content("colour.png")[16:26] == struct.pack(">IIBB", 2 * 66 + 2, 68, 8, 2)
        assert png_size("strip.png")
refused(5, "", "generate", path("colour"), "--steps", 10, "--count", 1, "--known", 3, "--mask", path("mask.npy"), "--data", path("cifar"))
put_npy("planes.npy", (96, 32), [0] * 3072)
refused(5, "wanted [3][32][32] or [3072]", "generate", path("colour"), "--known", 3, "--mask", path("planes.npy"), "--data", path("cifar"))
refused(2, "wanted below 1", "train", "vae", *small, "--average", 1)
refused(2, "--conv'", "train", "vae", *small, "--convolutions", "gathered")
refused(2, "--conv'", "train", "denoiser", *small, "--convolutions", "auto")
refused(2, "--checkpoint-seconds: wanted with --save", "train", "vae", *small, "--checkpoint-seconds", 5)
refused(2, "vae's", "train", "denoiser", "--conv", *small)
refused(2, "hidden times 2^depth", "train", "vae", "--conv", *colour, "--width", 16384, "--depth", 1)
refused(2, "", "train", "denoiser", *small, "--latent", path("conv"))
with open(path("cifar", "data_batch_2.bin"), "r+b") as file:
    file.truncate(3072 * 5)
refused(5, "3073", "train", "vae", "--conv", *colour)

# Another auto-encoder, a checkpoint for a model: refused. Narrow layers have Jacobians as wide as others.
run("train", "vae", *small, "--latent", 4, "--width", 32, "--depth", 1, "--epochs", 1, "--seed", 9, "--save", path("other"))
refused(2, "another one", "train", "denoiser", *small, "--latent", path("other"), "--conditional", "--width", 64, "--depth", 3, "--steps", 100,
                            "--epochs", 30, "--rate", 0.005, "--resume", path("codes"))
run("train", "denoiser", *small, "--width", 2, "--depth", 1, "--epochs", 1, "--save", path("narrow"))
run("generate", path("narrow"), "--method", "newton", "--steps", 10, "--count", 2, "--samples", path("narrow.npy"))

# Damaged models, in one line; refusals.
whole = content("codes")
for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
    put("cut", whole[:cut])
    refused(5, "", "generate", path("cut"))
    refused(5, "", "train", "denoiser", *small, "--latent", path("cut"))
    refused(5, "", "train", "denoiser", *small, "--resume", path("cut"))
middle = (len(whole) + 8 + int.from_bytes(whole[:8], "little")) // 2
put("cut", whole[:middle] + bytes([whole[middle] ^ 16]) + whole[middle + 1:])
for arguments in (["generate", path("cut")], ["train", "denoiser", *small, "--latent", path("cut")], ["train", "denoiser", *small, "--resume", path("cut")],
                  ["bench", "diffusion", path("cut")]):
    refused(5, "damaged", *arguments)
strings, parts = safetensors(path("codes"))
refused(5, "of dtype I64, which none of ours has", "generate", put_safetensors("cut", strings, {**parts, "note": ((1,), bytes(8), "q")}))
refused(5, "no denoiser", "generate", path("vae"))
refused(5, "no auto-encoder", "train", "denoiser", *small, "--latent", path("codes"))
refused(2, "classes", "generate", path("pixels"), "--class", 1)
put_images("large", "train", (9, 9), bytes(64 * 81), bytes(64))
run("train", "denoiser", "--data", path("large"), "--batch", 64, "--width", 16, "--epochs", 1, "--save", path("large.m"), "--quiet")
for method in ("newton", "quasi-newton"):
    refused(2, "at most 64", "generate", path("large.m"), "--method", method)
refused(2, "parataa", "generate", path("codes"), "--method", "picard", "--order", 3)
refused(2, "parareal", "generate", path("codes"), "--method", "picard", "--block", 3)
for option in (["--window", 3], ["--guess", path("p0.npy")], ["--max-sweeps", 3], ["--tolerance", 0.1], ["--step-tolerance", 0.1], ["--scaled"], ["--order", 3], ["--block", 3]):
    refused(2, option[0] + " beside method sequential, which has none; wanted --method auto, ", "generate", path("codes"), "--method", "sequential", *option)
refused(2, "--paradigms beside method sequential, which has none; wanted --method picard", "generate", path("codes"), "--method", "sequential", "--paradigms")
for method in ("sequential", "picard"):
    refused(2, "--wisdom beside method %s, which has none; wanted --method auto" % method, "generate", path("codes"), "--method", method, "--wisdom", path("w"))
for option in (["--window", 3], ["--guess", "zero"]):
    refused(2, " beside method parareal, which has none", "generate", path("codes"), "--method", "parareal", *option)
refused(2, "--class", "generate", path("codes"), "--guidance", 2)
# What would fail after hours fails at once; a window is no longer than the chain; numbers that explode are told of.
refused(2, "fewer", "generate", path("codes"), "--count", 1 << 24, "--out", path("grid.png"))
assert read_json(run("generate", path("codes"), "--count", 1, "--steps", 20, "--window", 10 ** 9, "--json"))["window"] == 20
header = json.loads(whole[8:8 + int.from_bytes(whole[:8], "little")])
begin, end = (8 + int.from_bytes(whole[:8], "little") + x for x in header["out.weight"]["data_offsets"])
unsummed = whole.replace(b"deeppcr.checksum", b"deeppcr.unsummed")  # changed on purpose
put("loud", unsummed[:begin] + struct.pack("<f", 1e38) * ((end - begin) // 4) + unsummed[end:])
for method in ("sequential", "picard", "auto"):
    done = ended(5, "generate", path("loud"), "--count", 3, "--steps", 20, "--method", method, "--samples", path("loud.npy"), "--json")
    assert b"3 of 3 pictures are not finite" in done.stderr and is_one_line(done.stderr) and read_json(done.stdout)["count"] == 3, done
for more, warned in (([], True), (["--method", "picard"], True), (["--compare"], False), (["--json"], False), (["--samples", path("kept.npy")], False)):
    done = ended(0, "generate", path("codes"), "--count", 1, "--steps", 5, *more)
    assert (b"no picture was kept, for want of --out, --samples" in done.stderr) == warned, (more, done)
assert b"in order: " in run("generate", path("codes"), "--count", 1, "--steps", 5, "--compare")
refused(2, "", "generate")
refused(5, "", "generate", path("none"))
refused(2, "", "generate", path("codes"), "--class", 4)
refused(2, "", "generate", path("codes"), "--sampler", "plms")
refused(2, "", "generate", path("codes"), "--method", "fast")
refused(2, "", "generate", path("codes"), "--steps", 101)
refused(2, "", "generate", path("codes"), "--eta", 0.5, "--sampler", "ddpm")
refused(2, "", "generate", path("codes"), "--samples", "-")
refused(2, "", "train", "denoiser", *small, "--prediction", "noise")
refused(2, "not finite", "train", "denoiser", *small, "--rate", 1e30, "--width", 16, "--quiet")
# Weights that end as no numbers take no good checkpoint's place.
bursts = [*small, "--width", 16, "--optimiser", "sgd", "--rate", 1e300, "--constant-rate", "--warm-up", 0, "--quiet", "--save", path("bursts")]
for more in ([], ["--resume", path("bursts")]):
    refused(2, "are not finite at rate", "train", "vae", *bursts, "--epochs", 1, "--limit", 64, *more)
refused(2, "--kl", "train", "denoiser", *small, "--kl", 2)
for option in (["--conditional"], ["--schedule", "cosine"], ["--steps", 10], ["--prediction", "x0"]):
    refused(2, "denoiser", "train", "vae", *small, *option)
refused(2, "", "train", "vae", *small, "--latent", "many")
print("cli_generate: all as it should be")
PYTHON
