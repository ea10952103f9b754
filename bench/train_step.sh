#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# train_step.sh: a training step of ours, of PyTorch and of JAX in one run, in rounds: ours, then each peer, at each thread
# count, then again. The first round runs every variant of the peers, the others those within 1.5 times the best of it
# (best by autodiff, or best hand-written).
# Appends to bench/results/train_step.csv and prints a table with ratios.
#   --layers 1024  --width 32  --batch 128  --threads "1 2"  --rounds 5  --seconds 2 (a variant and round)
#   --peers "torch jax"  --build build (the folder of bench_train_step)  --out FILE (instead of that CSV file)
set -euo pipefail
. "$(dirname "$0")/shared.bash"
cd "$(dirname "$0")/.."

layers=1024 width=32 batch=128 threads='1 2' rounds=5 seconds=2 peers='torch jax' build=build out=bench/results/train_step.csv
while [ $# -gt 0 ]; do
    case $1 in
        --layers | --width | --batch | --threads | --rounds | --seconds | --peers | --build | --out)
            wants_value "$@"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) echo "train_step.sh: no option '$1'" >&2; sed -n '7,8s/^# *//p' bench/train_step.sh >&2; exit 2 ;;
    esac
done
python=${DEEPPCR_PEERS_VENV:-bench/peers/.venv}/bin/python
[ -x "$build/bench_train_step" ] || { echo "train_step.sh: no $build/bench_train_step; configure with -DDEEPPCR_BENCH=ON and build" >&2; exit 2; }
[ -x "$python" ] || { echo "train_step.sh: no peers' environment; run bench/peers/setup.sh" >&2; exit 2; }

# Presets that choose kernels; the peers' programs clear theirs again.
clear_presets

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
raw=$folder/raw.jsonl
size=(--layers "$layers" --width "$width" --batch "$batch" --seconds "$seconds" --json)

ours() { taskset -c "$(first_processors "$1")" "$build/bench_train_step" "${size[@]}" --threads "$1"; }

# peer NAME THREADS: all variants at first, the good ones later.
peer() {
    local keep=$folder/$1.$2.variants
    [ ! -f "$keep" ] || size+=(--variants "$(cat "$keep")")
    "$python" "bench/peers/train_$1.py" "${size[@]}" --threads "$2"
}

for ((round = 1; round <= rounds; round++)); do
    for count in $threads; do
        echo "round $round of $rounds, threads $count: deeppcr" >&2
        ours "$count" | sed "s/^{/{\"round\": $round, /" >>"$raw"
        for name in $peers; do
            echo "round $round of $rounds, threads $count: $name" >&2
            (peer "$name" "$count") | sed "s/^{/{\"round\": $round, /" >>"$raw"
            [ "$round" -ne 1 ] || python3 bench/train_step_table.py keep "$raw" "$name" "$count" >"$folder/$name.$count.variants"
        done
    done
done

commit=$(describe_commit)
command="bench/train_step.sh --layers $layers --width $width --batch $batch --threads '$threads' --rounds $rounds --seconds $seconds --peers '$peers'"
mkdir -p "$(dirname "$out")"
python3 bench/train_step_table.py table "$raw" "$out" "$commit" "$command"
