#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_bench_diffusion.sh BUILD_DIR: what 'deeppcr bench diffusion' tells has the documented shape and adds up, as JSON and CSV;
# refusals. Never how long anything takes.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import contextlib, csv, os, random, threading

from program import answer, content, ended, path, put, put_cifar, put_images, read_json, refused, run

SIDE, STEPS = 4, 24
r = random.Random(3)

for part, count in (("train", 256), ("t10k", 64)):
    labels = bytes(r.randrange(4) for _ in range(count))
    pixels = bytes(r.randrange(40) + 180 * (i // SIDE % SIDE == labels[i // SIDE // SIDE]) for i in range(count * SIDE * SIDE))
    put_images("data", part, (SIDE, SIDE), pixels, labels)
run("train", "denoiser", "--data", path("data"), "--batch", 64, "--width", 32, "--depth", 2, "--steps", 50, "--epochs", 2, "--save", path("m"), "--quiet")
run("train", "resnet", "--data", path("data"), "--layers", 4, "--width", 4, "--epochs", 1, "--save", path("judge"), "--quiet")

common = ["bench", "diffusion", path("m"), "--steps", STEPS, "--seconds", 0]
done = ended(0, *common, "--methods", "picard,quasi-newton,sequential,auto", "--tolerances", "0.01,0", "--windows", "0,7", "--counts", "1,3", "--csv", path("t.csv"), "--json")
told = read_json(done.stdout)
points = told["points"]
assert done.stderr == b"deeppcr bench: method sequential has no windows: it runs over the whole chain alone\n", done.stderr
assert (told["sampler"], told["steps"], told["width"], told["hidden"], told["depth"]) == ("ddim", STEPS, 16, 32, 2), told
assert [(p["method"], p["tolerance"], p["window"], p["count"]) for p in points] == [
    (m, t, w, c) for m in ("picard", "quasi-newton", "sequential", "auto") for t in (0.01, 0) for w in (0, 7) if w == 0 or m != "sequential" for c in (1, 3)], points
for p in points:
    assert p["part"] == "time" and p["seconds"] > 0 and p["sequential_seconds"] > 0 and p["ratio"] > 0, p
    assert p["frechet_distance"] is None and p["max_error"] is not None, p
    if p["tolerance"] == 0:
        assert p["max_error"] == 0, p
    if p["method"] == "sequential":
        assert p["sweeps"] == 0 and p["calls"] == p["evaluations"] == 1 and p["max_error"] == 0, p
    if p["method"] in ("picard", "quasi-newton"):
        assert p["sweeps"] >= 1 and p["calls"] > 0 and p["chosen"] == p["method"], p
        assert p["evaluations"] >= (17 if p["method"] == "quasi-newton" else 1) * (0.9 if p["tolerance"] else 1), p
with open(path("t.csv"), newline="") as file:
    rows = list(csv.DictReader(file))
assert len(rows) == len(points) and {r["sampler"] for r in rows} == {"ddim"}, rows
for row, p in zip(rows, points):
    for key in ("method", "chosen", "reason"):
        assert row[key] == p[key], (row, p)
    for key in ("tolerance", "window", "count", "seconds", "ratio", "sweeps", "calls", "evaluations", "max_error"):
        assert abs(float(row[key]) - p[key]) <= 1e-5 * abs(p[key]), (key, row, p)
    assert row["frechet_distance"] == row["recall"] == "", row

told = answer(*common, "--methods", "parataa, picard", "--confirm", "0.01, 0.001", "--csv", path("t.csv"))["points"]
assert [(p["method"], p["confirm"], p["tolerance"]) for p in told] == [(m, t, t / 10) for m in ("parataa", "picard") for t in (0.01, 0.001)], told
for p in told:
    assert p["reason"] in ("converged", "exact") and 0 <= (p["error_estimate"] or 0) <= p["confirm"], p
    assert p["max_error"] <= 5 * p["confirm"], p
told = answer(*common, "--methods", "picard", "--tolerances", "0.01", "--confirm", "0.01")["points"]
assert [p["confirm"] for p in told] == [None, 0.01] and told[0]["reason"] == "residual-only", told

told = answer(*common, "--methods", "picard", "--evaluate", path("judge"), "--data", path("data"), "--pictures", 60, "--seeds", 2)
loop, timed, judged = told["points"]
assert [p["part"] for p in told["points"]] == ["quality", "time", "quality"] and told["seeds"] == 2, told
assert loop["method"] == "sequential" and loop["calls"] == loop["evaluations"] == 1 and loop["sweeps"] == 0, loop
for p in (loop, judged):
    assert p["count"] == 60 and p["frechet_distance"] > 0 and p["frechet_deviation"] >= 0 and 0 <= p["precision"] <= 1 >= p["recall"] >= 0, p
    assert p["sequential_seconds"] is None and p["max_error"] is None, p
exact = answer(*common, "--methods", "picard", "--tolerances", 0, "--evaluate", path("judge"), "--data", path("data"), "--pictures", 60, "--seeds", 2)["points"][2]
assert [exact[k] for k in ("frechet_distance", "precision", "recall")] == [loop[k] for k in ("frechet_distance", "precision", "recall")], (exact, loop)
assert b"times" in run(*common, "--methods", "picard")

# What the file has stays, what it lacks is measured, and a run of another sampler is refused.
kept = path("kept.csv")
judge = ["--evaluate", path("judge"), "--data", path("data"), "--pictures", 60, "--seeds", 1, "--resume", "--csv", kept]
run(*common, "--methods", "picard", *judge, "--quiet")
first = content("kept.csv")
assert first.count(b"\n") == 4, first
told = answer(*common, "--methods", "picard,parataa", "--tolerances", "1e-3", "--confirm", "0.01", *judge)["points"]
second = content("kept.csv")
assert second.startswith(first) and second.count(b"\n") == 10, second
assert [(p["part"], p["method"], p["confirm"]) for p in told] == [("quality", "sequential", None)] + [
    (part, m, c) for m, c in (("picard", None), ("picard", 0.01), ("parataa", None), ("parataa", 0.01)) for part in ("time", "quality")], told
run(*common, "--methods", "parataa,picard", *judge, "--quiet")
assert content("kept.csv") == second

# Nor does it take points of other noise, another seed, or other files of equal sizes; quality alone is of the classifier and its images.
for part, count in (("train", 256), ("t10k", 64)):
    put_images("others", part, (SIDE, SIDE), r.randbytes(count * SIDE * SIDE), bytes(i % 4 for i in range(count)))
run("train", "denoiser", "--data", path("data"), "--batch", 64, "--width", 32, "--depth", 2, "--steps", 50, "--epochs", 1, "--save", path("m2"), "--quiet")
run("train", "resnet", "--data", path("data"), "--layers", 4, "--width", 4, "--epochs", 1, "--seed", 2, "--save", path("judge2"), "--quiet")
for name, others in (("eta", ["--eta", 0.5]), ("seed", ["--seed", 7]), ("seeds", ["--seeds", 2]), ("classifier", ["--evaluate", path("judge2")]), ("data", ["--data", path("others")])):
    refused(5, "line 2 of '%s' is no point of this run: its %s is" % (kept, name), *common, "--methods", "picard", *judge, *others)
refused(5, "its model is", "bench", "diffusion", path("m2"), *common[3:], "--methods", "picard", *judge)
run(*common, "--methods", "picard", "--resume", "--csv", kept, "--quiet")
assert content("kept.csv") == second

# In colour a picture is three planes, and held-out images of one are no match.
put_cifar("colour", [8] * 5 + [40], lambda label: r.randbytes(3072), classes=4)
for part in ("train", "t10k"):
    put_images("grey", part, (32, 32), r.randbytes(40 * 1024), bytes(i % 4 for i in range(40)))
run("train", "denoiser", "--data", path("colour"), "--batch", 8, "--width", 8, "--depth", 1, "--steps", 10, "--epochs", 1, "--save", path("c"), "--quiet")
run("train", "resnet", "--data", path("colour"), "--layers", 2, "--width", 4, "--epochs", 1, "--save", path("colours"), "--quiet")
coloured = ["bench", "diffusion", path("c"), "--seconds", 0, "--evaluate", path("colours"), "--pictures", 40, "--seeds", 1]
for p in answer(*coloured, "--data", path("colour"), "--methods", "picard", "--tolerances", 0)["points"]:
    assert p["part"] == "time" or p["frechet_distance"] > 0, p
for option in ("--pictures", "--seeds"):
    refused(2, option + " is of --evaluate", "bench", "diffusion", path("c"), option, 8)
refused(2, "--data is of --evaluate", "bench", "diffusion", path("c"), "--data", path("grey"))
refused(5, "3072", *coloured, "--data", path("grey"))
said = run(*coloured, "--data", path("colour"), "--methods", "picard", "--steps", 4)
assert b"Frechet" in said and b"nan" not in said, said

for text, arguments, status in (("which model", [], 2), ("no whole number", [path("m"), "--windows", "1.5"], 2), ("--methods is ''", [path("m"), "--methods", ","], 2),
                                ("--methods is 'fast'", [path("m"), "--methods", "picard,fast"], 2), ("--counts", [path("m"), "--counts", "0"], 2),
                                ("at most 16", [path("m"), "--tolerances", ",".join(["1"] * 17)], 2), ("plms", [path("m"), "--sampler", "plms"], 2),
                                ("the model", [path("none")], 5), ("no denoiser", [path("judge")], 5), ("the classifier", [path("m"), "--evaluate", path("none"), "--data", path("data")], 5),
                                ("--windows beside method parareal, which has none", [path("m"), "--methods", "picard,parareal", "--windows", "10"], 2),
                                ("cannot write", [path("m"), "--csv", path("no/where.csv")], 4), ("--csv", [path("m"), "--resume"], 2),
                                ("line 2 of", [path("m"), "--sampler", "ddpm", "--resume", "--csv", kept], 5)):
    refused(status, text, "bench", "diffusion", *arguments)

# Points are kept in a table of ours alone.
for table in (b"a,b\n", b"part,sampler\n", b"\n", content("kept.csv").splitlines()[0] + b",more\n"):
    put("foreign.csv", table)
    refused(5, "is no table of this 'bench diffusion'", "bench", "diffusion", path("m"), "--resume", "--csv", path("foreign.csv"))
    assert content("foreign.csv") == table

# Models, and judges, lie in files that can be sought in, and read once more for their sums.
os.mkfifo(path("pipe"))


def fill(name):
    with contextlib.suppress(BrokenPipeError), open(path("pipe"), "wb") as file:
        file.write(content(name))


for name, line in ("m", [path("pipe"), "--steps", STEPS]), ("judge", [path("m"), "--steps", STEPS, "--data", path("data"), "--evaluate", path("pipe")]):
    threading.Thread(target=fill, args=(name,), daemon=True).start()
    refused(5, "cannot read what is not a regular file", "bench", "diffusion", *line, "--csv", path("piped.csv"))
refused(2, "is to be read and to be written over", "bench", "diffusion", path("m"), "--csv", path("m"))
PYTHON
