#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# maps.sh [OPTION...] [MAP...]: regime maps: 'deeppcr bench' over a grid of lengths and widths, as CSV, SVG and PNG.
#   --build build (the folder of the program)  --out bench/results/maps  --seconds 0.5 (a race)  --threads 0 (all)
#   --plot-only (pictures from the CSV files that are there)
# Without names all maps are made, in about three minutes. A name is that of its files.
set -euo pipefail
. "$(dirname "$0")/shared.bash"
cd "$(dirname "$0")/.."

build=build out=bench/results/maps seconds=0.5 threads=0 measure=yes
names=()
while [ $# -gt 0 ]; do
    case $1 in
        --build | --out | --seconds | --threads)
            wants_value "$@"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        --plot-only) measure=no; shift ;;
        -*) echo "maps.sh: no option '$1'" >&2; sed -n '4,5s/^# *//p' bench/maps.sh >&2; exit 2 ;;
        *) names+=("$1"); shift ;;
    esac
done

lengths=64,256,1024,4096,16384
widths=1,2,4,8,16,32,64
# name, heading, arguments of 'deeppcr bench'; lengths and widths unless given.
maps=(
    "mlp|MLP, ReLU, default initialisation, batch 1|mlp"
    "mlp-batch16|MLP, ReLU, default initialisation, batch 16|mlp --batch 16"
    "resnet|Residual network z + tanh(W z + b) / sqrt(L), batch 1|resnet"
    "resnet-batch16|Residual network z + tanh(W z + b) / sqrt(L), batch 16|resnet --batch 16"
    "chain-dense|Linear chain, dense, radius 0.9, batch 1|chain --structure dense --widths 1,2,3,4,8,16,32 --lengths 64,256,1024,4096,16384,65536"
    "chain-diagonal|Linear chain, diagonal, radius 0.9, batch 1|chain --structure diagonal --widths 1,4,16,64,256 --lengths 64,256,1024,4096,16384,65536"
    "cell-tanh|Recurrent cell tanh(W z + x), radius 0.9, x from N(0, 1), batch 1|cell --cell tanh --widths 1,2,4,8,16,32 --lengths 64,256,1024,4096,16384,65536"
)
check_names map "${maps[@]%%|*}"

wants_tools python3 gnuplot
[ $measure = no ] || wants_tools "$build/deeppcr"
clear_presets
commit=$(describe_commit)
mkdir -p "$out"
for map in "${maps[@]}"; do
    IFS='|' read -r name heading arguments <<<"$map"
    wanted "$name" || continue
    case $arguments in *--lengths*) ;; *) arguments+=" --lengths $lengths --widths $widths" ;; esac
    if [ $measure = yes ]; then
        # shellcheck disable=SC2086
        "$build/deeppcr" bench $arguments --seconds "$seconds" --threads "$threads" --commit "$commit" --csv "$out/$name.csv" --quiet
    fi
    [ -r "$out/$name.csv" ] || { echo "maps.sh: no $out/$name.csv" >&2; exit 1; }
    # The heading ends with what the CSV file says of the run.
    run=$(python3 - "$out/$name.csv" <<'PYTHON'
import csv, sys
row = next(csv.DictReader(open(sys.argv[1], newline="")))
print(f"{row['dtype']}, {row['threads']} thread{'s' * (row['threads'] != '1')}, {row['machine']}, {row['isa']}")
PYTHON
)
    (cd "$out" && gnuplot -e "name='$name'; heading='$heading: $run'" "$OLDPWD/scripts/plots/map.gp")
    echo "$out/$name: csv, svg, png"
done
# The table of docs/performance.md that says from which length on a method is ahead.
[ "$out" != bench/results/maps ] || python3 bench/performance_table.py bench/results/performance
