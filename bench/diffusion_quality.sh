#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# diffusion_quality.sh PROGRAM FOLDER MODELS [PART...]: the models of docs/diffusion.md, trained into the folder MODELS, and what
# their pictures are worth by every method: FOLDER/ddim100.csv, ddpm1000.csv, pixels100.csv and their drawings. Parts, in order:
# models, times, ddim, ddpm, pixels (default: all). A run that was stopped goes on where it was: what has been trained or measured
# stays. All rows are of one commit: a FOLDER whose rows are of another is refused; runs.txt there names commit and machine.
set -eu
usage="usage: diffusion_quality.sh PROGRAM FOLDER MODELS [PART...]"
program=${1:?$usage} folder=${2:?$usage} models=${3:?$usage}
shift 3
parts=${*:-models times ddim ddpm pixels}
mkdir -p "$folder" "$models"
commit=$(GIT_OPTIONAL_LOCKS=0 git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
run="commit $commit, $("$program" info --json | jq -r .processor)"
[ -f "$folder/runs.txt" ] || echo "$run" >"$folder/runs.txt"
[ "$(cat "$folder/runs.txt")" = "$run" ] || { echo "diffusion_quality: $folder has rows of $(cat "$folder/runs.txt"), this is $run" >&2; exit 1; }

train() {  # NAME COMMAND...: once, and on from a checkpoint
    local model=$models/$1
    shift
    [ ! -f "$model.done" ] || return 0
    if [ -f "$model" ]; then
        "$program" train "$@" --resume "$model" --quiet
    else
        "$program" train "$@" --save "$model" --quiet
    fi
    touch "$model.done"
}
bench() {  # NAME OPTIONS...
    local csv=$folder/$1.csv
    shift
    "$program" bench diffusion "$@" --resume --csv "$csv"
}
judged() { bench "$@" --evaluate "$models/judge" --pictures 10000 --seeds 1 --seconds 0; }

for part in $parts; do
    case $part in
        models)
            train vae vae --width 512 --latent 16 --epochs 30
            train codes denoiser --latent "$models/vae" --width 512 --depth 4 --prediction v --epochs 100
            train judge resnet --layers 64 --width 32 --epochs 5
            ;;
        times)
            bench ddim100 "$models/codes" --methods picard,parataa,parareal --windows 0,10,25,50 --counts 1,4 --seconds 0.3
            bench ddim100 "$models/codes" --methods parataa,picard,parareal --confirm 0.01 --counts 1,4 --seconds 0.3
            bench ddpm1000 "$models/codes" --sampler ddpm --steps 1000 --methods picard,parataa,parareal --seconds 0.3
            bench ddpm1000 "$models/codes" --sampler ddpm --steps 1000 --methods parataa,picard,parareal --confirm 0.01 --seconds 0.3
            ;;
        ddim)
            judged ddim100 "$models/codes" --methods parataa --confirm 0.01
            judged ddim100 "$models/codes" --methods picard,parataa,parareal
            judged ddim100 "$models/codes" --methods picard --tolerances 1e-2
            ;;
        ddpm)
            judged ddpm1000 "$models/codes" --sampler ddpm --steps 1000 --methods parareal
            judged ddpm1000 "$models/codes" --sampler ddpm --steps 1000 --methods parataa --confirm 0.01
            judged ddpm1000 "$models/codes" --sampler ddpm --steps 1000 --methods parataa
            ;;
        pixels)
            train pixels denoiser --width 1024 --depth 3 --prediction x0 --epochs 60
            bench pixels100 "$models/pixels" --methods picard,parataa,parareal --counts 1,4 --seconds 0.3
            bench pixels100 "$models/pixels" --methods parataa,picard,parareal --confirm 0.01 --counts 1,4 --seconds 0.3
            ;;
        *) echo "diffusion_quality: no part '$part'; $usage" >&2; exit 2 ;;
    esac
done
command -v gnuplot >/dev/null || exit 0
plots=$(cd "$(dirname "$0")/../scripts/plots" && pwd)
cd "$folder"
[ ! -f ddim100.csv ] || gnuplot -e "name='ddim100'; heading='DDIM, 100 steps, codes of 16 numbers'" "$plots/diffusion.gp"
