#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# mlp.sh: a whole network of ours, of PyTorch, JAX and ONNX Runtime in one run, forward and backward; appends to
# bench/results/mlp.csv, a line a library, variant and direction.
#   --layers 1024  --widths "2 8 32 64"  --batch 1  --threads 2  --seconds 2  --peers "torch jax onnx"
#   --build build (the folder of bench_mlp)  --out FILE (instead of that CSV file)
set -euo pipefail
cd "$(dirname "$0")/.."

layers=1024 widths='2 8 32 64' batch=1 threads=2 seconds=2 peers='torch jax onnx' build=build out=bench/results/mlp.csv
while [ $# -gt 0 ]; do
    case $1 in
        --layers | --widths | --batch | --threads | --seconds | --peers | --build | --out)
            [ $# -ge 2 ] || { echo "mlp.sh: $1 wants a value" >&2; exit 2; }
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) echo "mlp.sh: no option '$1'" >&2; sed -n '5,6s/^# *//p' "$0" >&2; exit 2 ;;
    esac
done
python=${DEEPPCR_PEERS_VENV:-bench/peers/.venv}/bin/python
[ -x "$build/bench_mlp" ] || { echo "mlp.sh: no $build/bench_mlp; configure with -DDEEPPCR_BENCH=ON and build" >&2; exit 2; }
[ -z "$peers" ] || [ -x "$python" ] || { echo "mlp.sh: no peers' environment; run bench/peers/setup.sh" >&2; exit 2; }
for name in $(compgen -e | grep -E '^(OPENBLAS|NVPL|MKL|BLIS|ATEN|DNNL|ONEDNN|XLA|JAX|OMP|KMP|GOMP)_|^DEEPPCR_ISA$' || true); do
    echo "cleared preset $name" >&2
    unset "$name"
done

raw=$(mktemp)
trap 'rm -f "$raw"' EXIT
for width in $widths; do
    size=(--layers "$layers" --width "$width" --batch "$batch" --threads "$threads" --seconds "$seconds")
    echo "width $width: deeppcr" >&2
    "$build/bench_mlp" "${size[@]}" --json >>"$raw"
    for name in $peers; do
        echo "width $width: $name" >&2
        "$python" "bench/peers/mlp_$name.py" "${size[@]}" >>"$raw"
    done
done
commit=$(GIT_OPTIONAL_LOCKS=0 git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
command="bench/mlp.sh --layers $layers --widths '$widths' --batch $batch --threads $threads --seconds $seconds --peers '$peers'"
mkdir -p "$(dirname "$out")"
python3 - "$raw" "$out" "$commit" "$command" <<'PY'
import csv, datetime, json, os, platform, sys

raw, out, commit, command = sys.argv[1:]
columns = ("date", "commit", "machine", "library", "version", "variant", "method", "direction", "threads", "layers", "width",
           "batch", "ns_a_layer", "ns_a_layer_min", "spread", "rounds", "skipped", "command")
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
new = not os.path.exists(out)
with open(out, "a", newline="", encoding="utf-8") as file:
    table = csv.DictWriter(file, columns, extrasaction="ignore")
    if new:
        table.writeheader()
    for line in open(raw, encoding="utf-8"):
        entry = json.loads(line)
        for name in ("ns_a_layer", "ns_a_layer_min", "spread"):
            if name in entry:
                entry[name] = f"{entry[name]:.4g}"
        table.writerow({**entry, "date": datetime.date.today(), "commit": commit, "machine": cpu, "command": command})
        print(entry["library"], entry["variant"], entry["direction"], "w", entry["width"], entry.get("ns_a_layer", "skipped"))
PY
