#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_device_generate.sh BUILD_DIR: 'generate --device cuda' over the stand-ins of tests/device: the processor's pictures, to the bit
# where its kernels have fma and the stand-in's are the device's; what is refused.
set -u
. "$(dirname "$0")/program.bash"
stand_ins=$build/stand-ins
[ -f "$stand_ins/libfake_device.so" ] || { echo "cli_device_generate: no stand-in in $build"; exit 1; }
lanes=without
grep -q 'libfake_device_simt' "$build/build.ninja" "$build/Makefile" "$build/CMakeFiles/TargetDirectories.txt" 2>/dev/null && lanes=with
python3 - "$program" "$folder" "$stand_ins" "$lanes" <<'PYTHON'
import os, random, sys

from program import answer, content, get_npy, path, put_images, put_npy, refused

plain, lanes = (os.path.join(sys.argv[3], "libfake_device%s.so" % s) for s in ("", "_simt"))
assert os.path.exists(lanes) or sys.argv[4] == "without", "no stand-in by lanes in this build"
os.environ["DEEPPCR_CUDA_MODULE"] = plain
r = random.Random(2)
labels = [r.randrange(3) for _ in range(96)]
put_images("data", "train", (6, 6), [r.randrange(60) + 150 * (i // 12 == label) for label in labels for i in range(36)], labels)
train = ["--data", path("data"), "--batch", 32, "--epochs", 3, "--rate", 0.01, "--steps", 40, "--threads", 1]
answer("train", "vae", *train[:-4], "--latent", 4, "--width", 16, "--depth", 1, "--save", path("vae"))
answer("train", "denoiser", *train, "--latent", path("vae"), "--conditional", "--width", 20, "--depth", 3, "--save", path("codes"))
answer("train", "denoiser", *train, "--width", 33, "--depth", 2, "--save", path("pixels"))
put_npy("mask.npy", (36,), [float(i % 2) for i in range(36)])
put_npy("known.npy", (36,), [0.5] * 36)
exact = answer("info")["isa"] != "portable"
runs = [["pixels", "--sampler", "ddpm", "--count", 5], ["pixels", "--sampler", "heun", "--steps", 7, "--count", 3], ["pixels", "--sampler", "ddim", "--eta", 0.5, "--steps", 9],
        ["pixels", "--mask", path("mask.npy"), "--known", path("known.npy"), "--steps", 6, "--count", 2],
        ["codes", "--sampler", "dpm-solver++", "--steps", 8, "--class", 1, "--guidance", 2, "--count", 17, "--batch", 8], ["codes", "--sampler", "euler", "--times", "38.5,20,3,0"]]
for module in (plain, lanes):
    if not os.path.exists(module):
        continue
    os.environ["DEEPPCR_CUDA_MODULE"] = module
    for model, *given in runs:
        a, b = (answer("generate", path(model), *given, "--method", "sequential", "--samples", path(d + ".npy"), "--path-out", path(d + "p.npy"), "--device", d) for d in ("cpu", "cuda"))
        for kind in (".npy", "p.npy"):
            if module == lanes and exact:
                assert content("cpu" + kind) == content("cuda" + kind), (model, given, kind)
            here, there = get_npy("cpu" + kind)[1], get_npy("cuda" + kind)[1]
            assert len(here) == len(there) and max(abs(x - y) for x, y in zip(here, there)) < 1e-4, (model, given, kind)
        assert b["method"] == "sequential" and "cuda:0" in b["sentence"] and "stand-in on the host" in b["device"], b
        assert a["network_evaluations"] == b["network_evaluations"], (a, b)
sweeps = [["pixels", "--sampler", "ddpm", "--count", 3, "--step-tolerance", 1e-3], ["pixels", "--steps", 12, "--count", 4, "--tolerance", 0, "--window", 5],
          ["pixels", "--sampler", "heun", "--steps", 7, "--count", 3, "--step-tolerance", 1e-4, "--guess", "step", "--window", 3], ["pixels", "--steps", 9, "--guess", path("guess.npy"), "--count", 2, "--step-tolerance", 1e-5],
          ["codes", "--sampler", "ddpm", "--paradigms", "--tolerance", 0.1, "--window", 10, "--class", 2, "--guidance", 1.5], ["codes", "--sampler", "ddpm", "--scaled", "--tolerance", 0.05, "--count", 2, "--guess", "zero"],
          ["codes", "--sampler", "dpm-solver++", "--steps", 10, "--step-tolerance", 1e-6, "--max-sweeps", 1, "--count", 5], ["codes", "--steps", 8, "--tolerance", 0, "--count", 1]]
sweeps = [("picard", *given) for given in sweeps] + [("parataa", *given) for given in sweeps if "--paradigms" not in given]
sweeps += [("parataa", "codes", "--sampler", "ddpm", "--step-tolerance", 1e-3, "--count", 3, "--order", 5, "--window", 17)]
answer("generate", path("pixels"), "--steps", 9, "--count", 2, "--seed", 9, "--path-out", path("guess.npy"))
for module in (plain, lanes):
    if not os.path.exists(module):
        continue
    os.environ["DEEPPCR_CUDA_MODULE"] = module
    for method, model, *given in sweeps:
        a, b = (answer("generate", path(model), *given, "--method", method, "--path-out", path(d + "p.npy"), "--device", d) for d in ("cpu", "cuda"))
        if module == lanes and exact:
            assert content("cpup.npy") == content("cudap.npy"), (method, model, given)
            assert a["sweeps"] == b["sweeps"] and a["reason"] == b["reason"], (a, b)
        here, there = get_npy("cpup.npy")[1], get_npy("cudap.npy")[1]
        assert len(here) == len(there) and max(abs(x - y) for x, y in zip(here, there)) < (1e-4 if module == lanes or b["reason"] == "exact" else 0.1), (model, given)
        assert b["method"] == method and b["sweeps"] > 0 and "sweeps of launches on cuda:0" in b["sentence"] and b["error_estimate"] is None, b
        assert b["network_evaluations"] <= a["network_evaluations"] if b["sweeps"] == a["sweeps"] else module == plain, (a, b)
        assert b["count"] > 1 or a["network_evaluations"] == b["network_evaluations"], (a, b)
os.environ["DEEPPCR_CUDA_MODULE"] = plain
told = answer("generate", path("codes"), "--steps", 6, "--count", 3, "--compare", "--device", "cuda")
assert told["max_error"] < 1e-4 and told["method"] == "sequential", told
assert "is not measured" in answer("generate", path("codes"), "--steps", 5, "--device", "auto")["device"]
there = ["generate", path("codes"), "--steps", 5, "--device", "cuda", "--samples", path("none.npy")]
refused(2, "--method parareal runs on processors", *there, "--method", "parareal")
refused(2, "--tolerance of the pictures is confirmed on processors", *there, "--method", "picard")
refused(2, "--tolerance of the pictures is confirmed on processors", *there, "--method", "picard", "--tolerance", 0.1, "--step-tolerance", 0.1)
refused(2, "--window is for sweeps", *there, "--window", 3)
refused(2, "--block is for sweeps", *there, "--block", 3)
refused(2, "--scaled is for sweeps", *there, "--scaled", "--method", "sequential")
refused(2, "--guess is for sweeps", *there, "--guess", path("cpup.npy"))
refused(2, "--guess is for sweeps", *there, "--guess", "zero")
refused(2, "--max-sweeps is for sweeps", *there, "--max-sweeps", 4)
refused(2, "--order is for sweeps", *there, "--order", 4, "--method", "sequential")
refused(4, "bytes were refused", *there, env={**os.environ, "DEEPPCR_FAKE_MEMORY": "8192"})
refused(4, "illegal memory access", *there, env={**os.environ, "DEEPPCR_FAKE_WAIT": "1"})
refused(4, "illegal memory access", *there, "--method", "picard", "--tolerance", 0, env={**os.environ, "DEEPPCR_FAKE_WAIT": "1"})
assert not os.path.exists(path("none.npy"))
print("cli_device_generate: %d runs, the processor's pictures%s; refused" % (len(runs) + len(sweeps), " to the bit" if exact and os.path.exists(lanes) else ""))
PYTHON
status=$?
exit $status
