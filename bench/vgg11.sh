#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# vgg11.sh PROGRAM FOLDER [OPTION...]: a VGG-11 trained whole, pruned, and retrained with BPPSA's scan, with the loop over
# the same sparse Jacobians and with dense back-propagation: FOLDER/vgg11_dense.csv (loss of the whole network's updates),
# FOLDER/vgg11.csv (loss of the pruned one's, a column a way), FOLDER/vgg11_ways.csv (flops, seconds, differences,
# accuracies), and, where gnuplot is there, FOLDER/vgg11.png. The options are 'deeppcr train vgg11's.
set -eu
. "$(dirname "$0")/shared.bash"
usage="usage: vgg11.sh PROGRAM FOLDER [OPTION...]"
program=${1:?$usage}
folder=${2:?$usage}
shift 2
open_work
train() { "$program" train vgg11 --dense-steps 240 --steps 100 --batch 2 --rate 1e-3 --json "$@"; }
train "$@" --steps 0 --save "$work/ready" >"$work/dense.json"
{ echo "step,loss"; jq -r '.log[] | [.step, .loss] | join(",")' "$work/dense.json"; } >"$folder/vgg11_dense.csv"
for way in scan loop dense; do
    compare=0
    [ $way != scan ] || compare=20
    train "$@" --way $way --compare $compare --resume "$work/ready" --save "$work/$way.safetensors" >"$work/$way.json"
    add_column $way '.log[].step' '.log[].loss' "$work/$way.json"
done
write_columns "$folder/vgg11.csv"
{
    tell_machine "$(jq .threads "$work/scan.json")" "bench/vgg11.sh PROGRAM FOLDER $*"
    echo "way,flops,critical_flops,seconds,max_error,train_loss,test_loss,test_accuracy,test_images"
    for way in scan loop dense; do
        jq -r --arg way $way '.ways[] | select(.name == $way) | [.name, .flops, .critical_flops, .seconds, .max_error] | join(",")' \
            "$work/scan.json" | tr -d '\n'
        jq -r '"," + ([.train_loss, .test_loss, .test_accuracy, .test_images] | map(tostring) | join(","))' "$work/$way.json"
    done
    jq -r '"# whole: test accuracy \(.dense_test_accuracy); pruned, not retrained: \(.pruned_test_accuracy); \(.weights_kept) of \(.weights) weights"' "$work/scan.json"
} >"$folder/vgg11_ways.csv"
plot_columns "$folder/vgg11" "loss of the batch, nats" "9 - 2 * c"
