#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# performance.sh [OPTION...] [TABLE...]: measures tables of docs/performance/ again and puts them in their places there.
#   --build build (the folder of the program)  --out bench/results/performance  --seconds 1 (a race)
#   --render-only (the pages from the CSV files that are there)
# Without names all tables are made, those against the peers too where their environment is (bench/peers/setup.sh); about six
# minutes, twenty with the peers. Measure on a quiet machine. The maps are made by bench/maps.sh.
set -euo pipefail
. "$(dirname "$0")/shared.bash"
cd "$(dirname "$0")/.."

build=build out=bench/results/performance seconds=1 measure=yes
names=()
while [ $# -gt 0 ]; do
    case $1 in
        --build | --out | --seconds)
            wants_value "$@"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        --render-only) measure=no; shift ;;
        -*) echo "performance.sh: no option '$1'" >&2; sed -n '4,5s/^# *//p' bench/performance.sh >&2; exit 2 ;;
        *) names+=("$1"); shift ;;
    esac
done

# name | arguments of 'deeppcr bench', each line of a table run with one thread and with two.
tables=(
    "linear-dense|chain --structure dense --widths 1,2,3,4,8 --lengths 4096,16384,65536,262144"
    "linear-dense-avx2|chain --structure dense --widths 1,2,3,4,8 --lengths 4096,16384,65536,262144"
    "linear-beside|chain --structure dense --widths 3,4,8 --lengths 4096,16384,65536"
    "linear-between|chain --structure dense --widths 6,12,20,24 --lengths 1024,8192,65536"
    "linear-elements|chain --structure diagonal --widths 1,2,3,4 --lengths 1024,4096,16384,65536,262144"
    "linear-diagonal|chain --structure diagonal --widths 16,64,256 --lengths 1024,65536"
    "linear-batches|chain --structure dense --widths 2,3,4,5,8,12 --lengths 512,32768 --batches 4,16,64"
    "linear-blocks|chain --structure block --block 2 --widths 4,64 --lengths 512,4096 --batches 1,4,16"
    "linear-blocks-2|chain --structure block --block 2 --widths 4,6,8,16 --lengths 1024,4096,16384,262144"
    "linear-blocks-3|chain --structure block --block 3 --widths 6,12 --lengths 4096,16384"
    "linear-blocks-4|chain --structure block --block 4 --widths 8,16 --lengths 4096,16384"
    "linear-long|chain --structure dense --widths 1,2 --lengths 16384,16777216"
    "cell-tanh|cell --cell tanh --widths 1,2,4 --lengths 65536"
    "cell-weak|cell --cell tanh --radius 1 --input-sd 0.01 --widths 1,2,4 --lengths 65536"
    "cell-bistable|cell --cell tanh --radius 1.2 --input-sd 0.1 --widths 1,2,4 --lengths 65536"
    "cell-diagonal|cell --cell tanh --structure diagonal --widths 1,2,4,8,16,32,64 --lengths 65536"
    "own-weights|mlp --activation tanh --widths 1,2,4 --lengths 65536"
    "residual|resnet --widths 1,2,4 --lengths 1024,65536"
    "networks|mlp --widths 2,8,32,64 --lengths 1024"
    "networks-batch|mlp --widths 64 --lengths 1024 --batches 64"
)
# name | arguments of bench/against.py
peers=(
    "peers-linear|chain --structure dense --length 16384 --width 1;chain --structure dense --length 16384 --width 2"
    "peers-cell|cell --length 16384 --width 1;cell --length 16384 --width 2;cell --length 16384 --width 4"
    "peers-networks|mlp --length 1024 --width 2;mlp --length 1024 --width 8;mlp --length 1024 --width 32;mlp --length 1024 --width 64;mlp --length 1024 --width 64 --batch 64"
)
all=("${tables[@]%%|*}" schemes planner "${peers[@]%%|*}")
check_names table "${all[@]}"

[ $measure = no ] || wants_tools "$build/deeppcr" taskset
clear_presets
commit=$(describe_commit)
mkdir -p "$out"

# One thread kept on one processor, then both; a table named -avx2 without AVX-512.
measure_table() {  # name, arguments
    local threads file level=
    [[ $1 != *-avx2 ]] || level=avx2
    for threads in 1 2; do
        file=$out/$1.$threads.part
        # shellcheck disable=SC2086
        DEEPPCR_ISA=$level taskset -c "$(first_processors $threads)" "$build/deeppcr" bench $2 --limits --seconds "$seconds" \
            --threads $threads --commit "$commit" --csv "$file" --quiet
    done
    { cat "$out/$1.1.part"; tail -n +2 "$out/$1.2.part"; } >"$out/$1.csv"
    rm -f "$out/$1".*.part
    echo "$out/$1.csv"
}

if [ $measure = yes ]; then
    for table in "${tables[@]}"; do
        ! wanted "${table%%|*}" || measure_table "${table%%|*}" "${table#*|}"
    done
    if wanted schemes; then
        "$build/deeppcr" bench chain --structure dense --width 2 --lengths 256,4096,65536 --seconds "$seconds" --threads 1 \
            --commit "$commit" --json >"$out/schemes.part"
        mv "$out/schemes.part" "$out/schemes.json"
        echo "$out/schemes.json"
    fi
    if wanted planner; then
        bench/planner.py --build "$build" --out "$out/planner.json"
        echo "$out/planner.json"
    fi
    for table in "${peers[@]}"; do
        wanted "${table%%|*}" || continue
        [ -x "${DEEPPCR_PEERS_VENV:-bench/peers/.venv}/bin/python" ] ||
            { echo "performance.sh: ${table%%|*} left out: bench/peers/setup.sh makes the peers' environment" >&2; continue; }
        rm -f "$out/${table%%|*}.part"
        IFS=';' read -ra points <<<"${table#*|}"
        for point in "${points[@]}"; do
            # shellcheck disable=SC2086
            bench/against.py $point --threads 1 2 --build "$build" --out "$out/${table%%|*}.part"
        done
        # The command that a row tells names the file.
        sed "s|/${table%%|*}[.]part|/${table%%|*}.csv|" "$out/${table%%|*}.part" >"$out/${table%%|*}.csv"
        rm "$out/${table%%|*}.part"
    done
fi
python3 bench/performance_table.py "$out"
