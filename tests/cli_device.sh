#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_device.sh BUILD_DIR: --device without a backend, with damaged and foreign ones, and with the stand-in of
# tests/device: every verb refuses in one line and with the right exit code, auto says why it stays, info lists what
# there is, and 'solve linear --device cuda' gives the loop's numbers.
set -u
export LC_ALL=C
. "$(dirname "$0")/program.bash"
stand_ins=$build/stand-ins
[ -f "$stand_ins/libfake_device.so" ] || { echo "cli_device: no stand-in in $build"; exit 1; }
find_numpy
field() {  # key, argument...: a member of the JSON object
    local key=$1
    shift
    cases=$((cases + 1))
    "$program" "$@" --json >"$folder/stdout" 2>"$folder/stderr" </dev/null || complain "'$*': exit $?: $(head -c 300 "$folder/stderr")"
    jq -rc --arg key "$key" 'if has($key) then .[$key] else error end' "$folder/stdout" 2>/dev/null ||
        complain "'$*' has no $key: $(head -c 300 "$folder/stdout")"
}
# FILE, PART: whether FILE holds the states of here.npy, within PART of the largest.
same_states() {
    $python -c '
import sys
import numpy as np
here, there = (np.load(sys.argv[1] + "/" + n) for n in ("here.npy", sys.argv[2]))
assert here.shape == there.shape and here.dtype == there.dtype
assert np.abs(here - there).max() < float(sys.argv[3]) * np.abs(here).max(), np.abs(here - there).max()' "$folder" "$1" "$2"
}
holds() { [[ "$2" == *"$1"* ]] || complain "should say '$1', said: $2"; }

export DEEPPCR_CUDA_MODULE=off
verbs="info plan solve check gradcheck train eval generate bench schedule convert"
for verb in $verbs; do
    refused 4 'switched off by DEEPPCR_CUDA_MODULE' "$verb" --device cuda
    refused 2 "wanted cpu, cuda, cuda:N or auto" "$verb" --device gpu
done
for words in 'train rnn' 'train vae' 'solve gru' 'solve biquads' 'solve selective' 'solve attention' 'bench planner' 'bench bppsa' 'bench diffusion' 'schedule'; do
    refused 4 'switched off' $words --device cuda:1
done
refused 2 "'--device' needs a value" info --device

# No module, a damaged one, another library, one of another version.
: >"$folder/damaged.so"
for pair in "$folder/none.so|cannot be loaded" "$folder/damaged.so|cannot be loaded" "libm.so.6|no module of deeppcr" \
    "$stand_ins/libfake_device_abi.so|speaks interface 99" "$stand_ins/libfake_device_version.so|is of deeppcr 0.0.1" \
    "$stand_ins/libfake_device_size.so|built from other sources"; do
    export DEEPPCR_CUDA_MODULE=${pair%%|*}
    refused 4 "${pair#*|}" info --device cuda
    holds "${pair#*|}" "$(field devices_absent info)"
    holds "cpu: " "$(field device plan mlp --layers 4 --width 2 --device auto)"
    holds "${pair#*|}" "$(field device plan mlp --layers 4 --width 2 --device auto)"
done

# A module, but no driver; a device that is too old.
export DEEPPCR_CUDA_MODULE=$stand_ins/libfake_device.so
DEEPPCR_FAKE_DEVICES=0 refused 4 'no NVIDIA driver' solve --device cuda
DEEPPCR_FAKE_OLD=1 refused 4 'wanted 7.5 or newer' solve --device cuda
DEEPPCR_FAKE_OLD=1 "$program" info | grep -q 'wanted 7.5 or newer' || complain "info does not say why a device is left out"
refused 4 'there is no cuda:1; there is 1' solve --device cuda:1

# The stand-in: listed, and verbs that do not run on it say so.
export DEEPPCR_FAKE_DEVICES=2
holds '"model":"stand-in on the host"' "$(field devices info)"
holds "copy_bandwidth" "$(field devices info)"
holds "cuda:1" "$(field devices info --device cuda:1)"
"$program" info | grep -q 'compute_capability 9.0' || complain "info's text lists no device"
unset DEEPPCR_FAKE_DEVICES
refused 2 "'gradcheck' as given does not run on devices yet; 'solve' (linear, recurrent networks), 'check', 'plan', 'eval', 'generate' and 'train' (mlp, resnet, recurrent networks) do" gradcheck --device cuda
refused 2 "'train' as given does not run on devices yet" train vae --device cuda
refused 2 "'solve' as given does not run on devices yet" solve biquads --device cuda
refused 2 "'solve' as given does not run on devices yet" solve selective --device cuda
refused 2 "'solve' as given does not run on devices yet" solve attention --device cuda
holds "cpu: 'gradcheck' does not run on devices yet" "$(field device gradcheck mlp --layers 2 --width 2 --device auto)"
holds 'is not measured' "$(field device check mlp --layers 4 --width 2 --device auto)"
holds "cpu: asked for" "$(field device check mlp --layers 4 --width 2 --device cpu)"

# plan: by the rule, measured and remembered there; with auto here or there, transfers counted.
network="resnet --layers 600 --width 2 --batch 1 --threads 1"
holds 'newton: all sweeps in one launch on cuda:0 (stand-in on the host)' "$(field sentence plan $network --device cuda)"
holds 'overlap: overlapped chunks in one launch on cuda:0 (stand-in on the host)' "$(field sentence plan ${network/resnet/mlp} --device cuda)"
holds 'keep what they begin with, and its sequences are many' "$(field sentence plan ${network/batch 1/batch 100} --device cuda)"
holds 'newton serves no such steps' "$(field sentence plan $network --layer-norm --device cuda)"
holds 'newton wants more memory than the limit' "$(field sentence plan $network --device cuda --memory-limit 512)"
holds 'on cuda:0 (stand-in on the host), measured; ' "$(field sentence plan $network --device cuda --measure --budget 0.05 --wisdom "$folder/there.wisdom")"
holds 'known from an earlier measurement; ' "$(field sentence plan $network --device cuda --planning wisdom --wisdom "$folder/there.wisdom")"
holds '"measured_seconds":' "$(field candidates plan $network --device cuda --wisdom "$folder/there.wisdom")"
refused 2 'nothing is known of this chain on cuda:0' plan $network --seed 2 --batch 3 --device cuda --planning wisdom --wisdom "$folder/there.wisdom"
refused 2 'nothing is known of this chain on cuda:0' plan ${network/resnet/mlp} --device cuda --planning wisdom --wisdom "$folder/there.wisdom"
refused 2 'nothing is known of this chain on cuda:0' plan $network --activation relu --device cuda --planning wisdom --wisdom "$folder/there.wisdom"
DEEPPCR_FAKE_MEMORY=8192 refused 4 'bytes were refused' plan $network --device cuda
holds 'cpu: solve: a scheme on a device' "$(field device plan $network --scheme pcr --device auto)"
holds 'bytes were refused' "$(DEEPPCR_FAKE_MEMORY=8192 field device plan $network --device auto)"
# The stand-in's clock tells copies alone: a solve is a launch's least, and copies cost more than this processor would take.
holds 'cpu: there ' "$(DEEPPCR_FAKE_CLOCK=1 field device plan $network --device auto --budget 0.05)"
holds 'us of transfers, here ' "$(DEEPPCR_FAKE_CLOCK=1 field device plan $network --device auto --budget 0.05)"
refused 2 '--budget beside planning estimate' plan $network --device cuda --budget 0.05
holds 'the loop' "$(field sentence plan mlp --layers 4 --width 40 --batch 1 --method sequential --device cuda)"
holds "a row's units shared by 8 blocks: " "$(field sentence plan mlp --layers 4 --width 640 --batch 1 --device cuda)"
holds 'a block a row or few: ' "$(field sentence plan mlp --layers 4 --width 90 --batch 1 --device cuda)"
# Of two blocks each would make three strips, one after another.
holds 'a block a row or few: ' "$(field sentence plan mlp --layers 4 --width 130 --batch 32 --device cuda)"
holds 'on the device is not known' "$(field device plan mlp --layers 4 --width 2 --method sequential --device auto)"
holds 'linear chains' "$(field device plan linear --length 64 --width 2 --device auto)"
holds 'recurrent networks' "$(field device plan gru --length 64 --device auto)"
refused 2 'plan mlp and plan resnet of this machine ask a device' plan linear --length 64 --width 2 --device cuda
refused 2 'plan mlp and plan resnet of this machine ask a device' plan lorenz --length 64 --device cuda
refused 2 'plan mlp and plan resnet of this machine ask a device' plan gru --length 64 --device cuda
refused 2 'plan mlp and plan resnet of this machine ask a device' plan mlp --cores 64 --device cuda
refused 2 'a scheme on a device' plan mlp --layers 8 --width 2 --scheme pcr --device cuda

# solve linear.
$python - "$folder" <<'PYTHON'
import sys
import numpy as np
rng = np.random.default_rng(1)
for name, structure in (("dense", (3, 3)), ("diagonal", (3,))):
    np.savez(f"{sys.argv[1]}/{name}.npz", A=(0.4 * rng.standard_normal((100, 2) + structure)).astype(np.float32),
             b=rng.standard_normal((100, 2, 3)).astype(np.float32), z0=rng.standard_normal((2, 3)).astype(np.float32))
PYTHON
for name in dense diagonal; do
    for back in '' --transposed; do
        holds 'stand-in on the host' "$(field device solve linear --input "$folder/$name.npz" --output "$folder/there.npy" --device cuda $back)"
        holds 'one pass over memory on cuda:0' "$(field sentence solve linear --input "$folder/$name.npz" --output "$folder/there.npy" --device cuda $back)"
        holds 'sequential' "$(field scheme solve linear --input "$folder/$name.npz" --output "$folder/here.npy" --scheme sequential $back)"
        $python -c '
import sys
import numpy as np
here, there = (np.load(sys.argv[1] + "/" + n) for n in ("here.npy", "there.npy"))
assert here.shape == there.shape == (100, 2, 3) and here.dtype == there.dtype
assert np.abs(here - there).max() < 1e-5 * np.abs(here).max(), np.abs(here - there).max()' "$folder" ||
            complain "$name $back: other states than the loop's"
    done
done
# The backend's own kernels on the simulator, where that was built: from the command line to the lanes.
if [ -f "$stand_ins/libfake_device_simt.so" ]; then
    "$program" solve linear --input "$folder/dense.npz" --output "$folder/here.npy" --scheme sequential --quiet
    DEEPPCR_CUDA_MODULE=$stand_ins/libfake_device_simt.so "$program" solve linear --input "$folder/dense.npz" \
        --output "$folder/lanes.npy" --device cuda --quiet || complain "no solve on the simulator"
    same_states lanes.npy 1e-5 || complain "other states on the simulator than the loop's"
fi
# csr of one pattern, on the stand-in and on the simulator, by both schemes.
$python - "$folder" <<'PYTHON'
import sys
import numpy as np
rng = np.random.default_rng(5)
held = rng.random((23, 23)) < 0.2
np.savez(f"{sys.argv[1]}/csr.npz", A=(rng.standard_normal((70, 2, held.sum())) / 4).astype(np.float32), indptr=np.append(0, held.sum(1).cumsum()),
         indices=np.nonzero(held)[1].astype(np.int32), b=rng.standard_normal((70, 2, 23)).astype(np.float32), z0=rng.standard_normal((2, 23)).astype(np.float32))
PYTHON
csr="solve linear --input $folder/csr.npz --output $folder/there.npy"
holds 'what csr transitions' "$(field device $csr --device auto)"
for stand_in in libfake_device.so libfake_device_simt.so; do
    [ -f "$stand_ins/$stand_in" ] || continue
    for scheme in auto sequential chunked; do
        for back in '' --transposed; do
            holds 'csr' "$(DEEPPCR_CUDA_MODULE=$stand_ins/$stand_in field structure $csr --device cuda --scheme $scheme $back)"
            "$program" solve linear --input "$folder/csr.npz" --output "$folder/here.npy" --quiet $back
            same_states there.npy 1e-4 ||
                complain "csr on $stand_in, $scheme $back: other states than the loop's"
        done
    done
done
# Transitions wider than multiply on chip, by both schemes.
$python - "$folder" <<'PYTHON'
import sys
import numpy as np
rng = np.random.default_rng(3)
np.savez(f"{sys.argv[1]}/wide.npz", A=(rng.standard_normal((40, 2, 19, 19)) / 19).astype(np.float32),
         b=rng.standard_normal((40, 2, 19)).astype(np.float32), z0=rng.standard_normal((2, 19)).astype(np.float32))
PYTHON
wide="solve linear --input $folder/wide.npz --output $folder/there.npy"
holds 'those wider than 16, take on devices is not measured' "$(field device $wide --device auto)"
for stand_in in libfake_device.so libfake_device_simt.so; do
    [ -f "$stand_ins/$stand_in" ] || continue
    for scheme in auto sequential chunked 'chunked --chunk 7'; do
        for back in '' --transposed; do
            holds "${scheme%% *}" "auto $(DEEPPCR_CUDA_MODULE=$stand_ins/$stand_in field sentence $wide --device cuda --scheme $scheme $back)"
            "$program" solve linear --input "$folder/wide.npz" --output "$folder/here.npy" --scheme sequential --quiet $back
            same_states there.npy 1e-5 ||
                complain "$stand_in $scheme $back: other states than the loop's of wide transitions"
        done
    done
done
# What counts on processors alone.
refused 2 '--tolerance, which is of overlap, counts on processors alone' $wide --device cuda --tolerance 1e-3
refused 2 'wider than 16, counts on processors alone' ${wide/wide.npz/dense.npz} --device cuda --chunk 7
holds 'cpu: --chunk, but of csr and of what is wider than 16,' "$(field device ${wide/wide.npz/dense.npz} --device auto --chunk 7)"
# Recurrent networks, on the stand-in and on the simulator.
$python - "$folder" <<'PYTHON'
import json
import struct
import sys
import numpy as np
rng = np.random.default_rng(2)
for name, gates, hidden in (("gru", 3, 5), ("lstm", 4, 3), ("rnn", 1, 2), ("paragru", 3, 5)):
    shapes = {"weight_ih_l0": (gates * hidden, 3), "weight_hh_l0": (gates * hidden, hidden), "bias_ih_l0": (gates * hidden,),
              "bias_hh_l0": (gates * hidden,)}
    if name == "paragru":  # units do not mix
        shapes["weight_hh_l0"] = shapes.pop("bias_hh_l0")
    header, data = {}, b""
    for key, shape in shapes.items():
        numbers = (0.3 * rng.standard_normal(shape)).astype("<f4").tobytes()
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    open(f"{sys.argv[1]}/{name}.st", "wb").write(struct.pack("<Q", len(text)) + text + data)
np.save(f"{sys.argv[1]}/x.npy", rng.standard_normal((90, 2, 3)).astype("f4"))
PYTHON
for words in 'gru overlap' 'gru sequential' 'lstm overlap' 'rnn newton' 'rnn overlap' 'paragru overlap' 'paragru newton'; do
    set -- $words
    network="solve $1 --weights $folder/$1.st --input $folder/x.npy"
    "$program" $network --output "$folder/here.npy" --quiet || complain "$network"
    for module in fake_device fake_device_simt; do
        [ -f "$stand_ins/lib$module.so" ] || continue
        rm -f "$folder/there.npy"
        export DEEPPCR_CUDA_MODULE=$stand_ins/lib$module.so
        holds "\"method\":\"$2\"" "$(field chains $network --output "$folder/there.npy" --device cuda --method "$2")"
        $python -c '
import sys
import numpy as np
here, there = (np.load(sys.argv[1] + "/" + n) for n in ("here.npy", "there.npy"))
assert here.shape == there.shape and np.abs(here - there).max() < 2e-5, np.abs(here - there).max()' "$folder" ||
            complain "$words on $module: other states than the processor's"
    done
done
# A device that newton's windows do not fit is told before anything is solved: the simulator takes 8 blocks together.
if [ -f "$stand_ins/libfake_device_simt.so" ]; then
    $python -c 'import sys, numpy as np; np.save(sys.argv[1] + "/long.npy", np.zeros((1100, 1, 3), "f4"))' "$folder"
    export DEEPPCR_CUDA_MODULE=$stand_ins/libfake_device_simt.so
    refused 2 'newton wants 9 blocks at once, the device takes 8; the loop and overlap work' solve paragru \
        --weights "$folder/paragru.st" --input "$folder/long.npy" --output "$folder/there.npy" --device cuda --method newton
fi
# And back, with lengths of their own too: the processor's gradients.
$python - "$folder" <<'PYTHON'
import sys
import numpy as np
rng = np.random.default_rng(3)
for name, hidden in (("gru", 5), ("lstm", 3), ("rnn", 2), ("paragru", 5)):
    np.save(f"{sys.argv[1]}/grad_{name}.npy", rng.standard_normal((90, 2, hidden)).astype("f4"))
    np.save(f"{sys.argv[1]}/last_{name}.npy", rng.standard_normal((1, 2, hidden)).astype("f4"))
np.save(f"{sys.argv[1]}/resets.npy", (rng.random((90, 2)) < 0.1).astype("u1"))
PYTHON
for words in 'gru overlap' 'gru sequential --lengths 90,31' 'lstm overlap --lengths 17,90' 'rnn newton' 'rnn overlap' 'paragru newton --lengths 50,90' \
    "lstm overlap --lengths 17,90 --resets $folder/resets.npy" "gru sequential --resets $folder/resets.npy" "paragru newton --resets $folder/resets.npy"; do
    set -- $words
    network="solve $1 --weights $folder/$1.st --input $folder/x.npy --grad-output $folder/grad_$1.npy --grad-final $folder/last_$1.npy ${*:3}"
    "$program" $network --output "$folder/here.npy" --grads "$folder/here.st" --quiet || complain "$network"
    for module in fake_device fake_device_simt; do
        [ -f "$stand_ins/lib$module.so" ] || continue
        rm -f "$folder/there.npy" "$folder/there.st"
        export DEEPPCR_CUDA_MODULE=$stand_ins/lib$module.so
        holds '"backward_sweeps":' "$(field chains $network --output "$folder/there.npy" --grads "$folder/there.st" --device cuda --method "$2")"
        $python - "$folder" <<'PYTHON' || complain "$words on $module: other gradients than the processor's"
import json
import struct
import sys
import numpy as np

def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {k: np.frombuffer(data[8 + n:][v["data_offsets"][0]:v["data_offsets"][1]], "<f4")
            for k, v in header.items() if k != "__metadata__"}

here, there = (tensors(f"{sys.argv[1]}/{n}.st") for n in ("here", "there"))
assert here.keys() == there.keys() and "input" in here and "weight_hh_l0" in here, here.keys()
for k in here:
    worst = np.abs(here[k] - there[k]).max() / (1 + np.abs(here[k]).max())
    assert worst < 3e-5 and np.abs(here[k]).max() > 0, (k, worst)
y = [np.load(f"{sys.argv[1]}/{n}.npy") for n in ("here", "there")]
assert np.abs(y[0] - y[1]).max() < 2e-5
PYTHON
    done
done
# Stacks of layers, forward and back with all gradients, against the processor's loop: 'check' agrees or exits 1.
for words in 'mlp --width 6 --batch 3|sequential' 'resnet --width 20 --batch 35|sequential' 'mlp --width 40 --activation tanh|sequential' \
    'mlp --width 2 --layer-norm|sequential' 'resnet --width 33 --layer-norm --activation gelu --batch 34|sequential' \
    'resnet --width 5 --branch two-layer --hidden 13|sequential' 'resnet --width 34 --hidden 7 --branch two-layer --layer-norm --batch 33|sequential' \
    'resnet --width 2 --branch two-layer --tie 4 --activation silu --dtype float64|sequential' \
    'resnet --width 9 --tie 5|sequential' 'mlp --width 17 --activation gelu|sequential' 'resnet --width 3 --activation silu --dtype float64|sequential' \
    'resnet --width 2 --activation gelu --layers 90|newton' 'resnet --width 2 --layers 90|overlap' 'mlp --width 17 --layers 90|overlap' 'resnet --width 9 --hidden 11 --branch two-layer --layers 80|overlap' \
    'resnet --width 6 --layer-norm --layers 80 --batch 40|overlap' 'resnet --width 4 --dtype float64 --layers 90|newton' 'mlp --width 1 --activation sigmoid|newton' \
    'mlp --width 16 --activation tanh --batch 3|newton' 'resnet --width 9 --layers 80 --dtype float64|newton'; do
    for module in fake_device fake_device_simt; do
        [ -f "$stand_ins/lib$module.so" ] || continue
        export DEEPPCR_CUDA_MODULE=$stand_ins/lib$module.so
        layers="check --layers 12 ${words%%|*} --device cuda"
        holds 'true' "$(field agrees $layers --method "${words#*|}")"
        holds "${words#*|}" "$(field method $layers --method "${words#*|}")"
    done
done
export DEEPPCR_CUDA_MODULE=$stand_ins/libfake_device.so
holds 'only where one is asked for' "$(field sentence check mlp --layers 600 --width 3 --batch 1 --device cuda)"
holds true "$(field agrees check mlp --layers 0 --width 3 --batch 2 --device cuda)"
planned="plan resnet --layers 800 --width 2 --batch 1 --device cuda"
pinned=$(field pinned $planned --method overlap)
holds "$pinned" "$(field pinned $planned $pinned)"
refused 2 'a scheme on a device' check mlp --layers 4 --width 2 --device cuda --scheme pcr
refused 2 'go by the loop' check mlp --layers 4 --width 2 --device cuda --layer-norm --method newton
refused 2 'two-layer branches are dense there, and go by the loop' check resnet --layers 4 --width 2 --device cuda --branch two-layer --method newton
refused 2 'runs on processors' check lorenz --device cuda
DEEPPCR_FAKE_WAIT=1 refused 4 'illegal memory access' check mlp --layers 4 --width 8 --device cuda
network="solve gru --weights $folder/gru.st --input $folder/x.npy --output $folder/there.npy"
holds 'is not measured' "$(field device $network --device auto)"
holds 'sequences alone leave the device idle' "$("$program" solve gru --weights "$folder/gru.st" --input <($python -c '
import sys
import numpy as np
np.save(sys.stdout.buffer, np.zeros((600, 1, 3), "f4"))') --final "$folder/there.npy" --device cuda --json)"
rm -f "$folder/there.npy"
refused 2 'auto, sequential, overlap and newton work there' $network --device cuda --method picard
refused 2 'newton is of paragru' $network --device cuda --method newton
refused 2 'over ranks' $network --device cuda --ranks 2
refused 4 'the limit is 100' $network --device cuda --memory-limit 100
DEEPPCR_FAKE_WAIT=1 refused 4 'illegal memory access' $network --device cuda
# Chains without steps or sequences are written as on the processor; bytes that are no text do not end info.
$python -c '
import sys
import numpy as np
for name, n in (("steps", (0, 2)), ("sequences", (5, 0))):
    np.savez(sys.argv[1] + "/no_" + name + ".npz", A=np.zeros(n + (3, 3), "f4"), b=np.zeros(n + (3,), "f4"))' "$folder"
for name in steps sequences; do
    cases=$((cases + 1))
    "$program" solve linear --input "$folder/no_$name.npz" --output "$folder/there.npy" --device cuda --quiet || complain "a chain without $name"
done
holds 'cannot be loaded' "$(DEEPPCR_CUDA_MODULE=$'/\xff\xfe.so' field devices_absent info)"
cases=$((cases + 1))
[ "$(DEEPPCR_CUDA_MODULE=$'/a\nb.so' "$program" info | grep -c '^devices_absent.*a?b.so')" = 1 ] || complain "a module's path breaks info's line"
# The library looks beside itself also after the folder was left that its name was relative to.
if [ -f "$build/libdeeppcr.so" ] && ! grep -q '^DEEPPCR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    cases=$((cases + 1))
    cp "$stand_ins/libfake_device.so" "$folder/libdeeppcr_cuda.so.0"
    (cd "$build" && env -u DEEPPCR_CUDA_MODULE LD_LIBRARY_PATH= python3 -c '
import ctypes, os, sys
library = ctypes.CDLL("./libdeeppcr.so")
os.chdir(sys.argv[1])
library.dpcr_device_count(2, ctypes.byref(ctypes.c_int()), None)
sys.exit(sys.argv[1] + "/libdeeppcr_cuda" in open("/proc/self/maps").read())' "$folder") ||
        complain "a module of the current folder was loaded"
fi
rm "$folder/there.npy"
linear="solve linear --input $folder/dense.npz --output $folder/there.npy"
holds 'of transfers, here' "$(field device $linear --device auto)"
DEEPPCR_CUDA_MODULE=$stand_ins/libfake_device.so "$program" solve linear --input "$folder/dense.npz" --output "$folder/there.npy" \
    --device auto --memory-limit 100 --scheme sequential --quiet || complain "auto does not stay where the device's workspace is over the limit"
refused 4 'on the device, the limit is 100' $linear --device cuda --memory-limit 100
holds 'bytes are needed on the device, ' "$(DEEPPCR_FAKE_MEMORY=8192 field device $linear --device auto)"
"$program" ${linear/there.npy/here.npy} --quiet && same_states there.npy 1e-5 || complain "auto solves something else where the device lacks memory"
holds 'copy 1 was refused' "$(DEEPPCR_FAKE_COPY=1 field device $linear --device auto)"
refused 2 'auto, chunked and sequential work there' $linear --device cuda --scheme pcr
refused 2 'over ranks' $linear --device cuda --scheme distributed
rm -f "$folder/there.npy"
DEEPPCR_FAKE_MEMORY=8192 refused 4 'bytes were refused' $linear --device cuda
DEEPPCR_FAKE_LAUNCH=1 refused 4 'too many resources' $linear --device cuda
DEEPPCR_FAKE_WAIT=1 refused 4 'illegal memory access' $linear --device cuda
[ ! -e "$folder/there.npy" ] || complain "an output was written after a failure"

[ $failures -eq 0 ] || { echo "cli_device: $failures of $cases cases wrong"; exit 1; }
echo "cli_device: $cases cases"
