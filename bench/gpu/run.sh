#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run.sh test|sanitize|bench|peers [--again]: builds, proves and measures the CUDA backend on this machine's device.
# Each part goes step by step: what is done is remembered in build-gpu/steps and not done again at the same commit
# (--again: it is), and a part that nears eight minutes stops (exit status 75); the same command goes on. Without a device
# or nvcc: exit status 77, and why.
#
#   test      the backend and the suite; the suite on the device; 10 000 launches
#   sanitize  compute-sanitizer's memcheck, racecheck and synccheck over a share of the suite, test by test, side by side
#   bench     bandwidths of linear chains beside a device copy, into bench/results/gpu/chains.csv; cells and recurrent networks
#             by the loop, overlap and newton, into nonlinear.csv there; stacks of layers, forward and back, into layers.csv;
#             steps of training, whole, beside the processor's, into training.csv; epochs of recurrent networks' training,
#             whole, into sequences_NETWORK.csv; whole diffusion samplings by the loop and by sweeps, into sampler.csv
#   peers     what PyTorch and JAX (python3's) take for the same work, into peers.csv and peers_sampler.csv
#
# DEEPPCR_DEVICE=cuda:N chooses the device. DEEPPCR_GPU_BUILD=FOLDER takes the programs and the backend in there, made on
# another machine, and builds nothing; DEEPPCR_COMMIT says of which commit where there is no git. DEEPPCR_GPU_REHEARSE=BUILD
# goes through the steps with the tests' stand-in of that build, small and measuring nothing, and leaves everything in
# BUILD/rehearsal.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
part=${1:-}
rehearse=${DEEPPCR_GPU_REHEARSE:-}
build=${rehearse:-${DEEPPCR_GPU_BUILD:-build-gpu}}
steps="build-gpu/steps"
results=bench/results/gpu
bytes=1073741824
launches=10000
steps_of_longest=20000003
longest=131072
deepest=131072
trained="--layers 1024 --beside 3"
streams="--limit 1600 --length 1000"
sampled=
repetitions=21
[ -z "$rehearse" ] || { steps=$build/rehearsal; results=$steps; bytes=16384; launches=50; steps_of_longest=50021; longest=4; deepest=3; trained="--layers 2 --beside 1 --widest 64 --most 128"; streams="--limit 32 --length 8"; sampled="--steps 4 --hidden 16 --most 2"; repetitions=1; }
device=${DEEPPCR_DEVICE:-cuda}
case $part in
    test | sanitize | bench | peers) ;;
    *) echo "usage: bench/gpu/run.sh test|sanitize|bench|peers [--again]" >&2; exit 2 ;;
esac
commit=$(git describe --always --dirty --exclude '*' 2>/dev/null || echo "${DEEPPCR_COMMIT:-unknown}")
mkdir -p "$steps"
[ "${2:-}" != --again ] || rm -f "$steps/$part".*.*
unset DEEPPCR_CUDA_MODULE DEEPPCR_DEVICE_SHARE DEEPPCR_DEVICE_LAUNCHES DEEPPCR_DEVICE_LONGEST

# step NAME SECONDS COMMAND...: once; its output in build-gpu/steps/PART.NAME.log.
step() {
    local name=$part.$1 limit=$2 status
    shift 2
    local marker=$steps/$name.$commit
    if [ -e "$marker" ]; then
        echo "$name: done before"
        return 0
    fi
    if [ -z "${rehearse:-}" ] && [ $((SECONDS + limit)) -gt 470 ] && [ "$SECONDS" -gt 5 ]; then
        echo "$part: stopped before $name, after $SECONDS s; the same command goes on"
        exit 75
    fi
    timeout "$limit" "$@" >"$steps/$name.log" 2>&1
    status=$?
    if [ $status -ne 0 ]; then
        tail -20 "$steps/$name.log"
        echo "$name: exit status $status; all of it in $steps/$name.log"
        exit $status
    fi
    touch "$marker"
    echo "$name: done, $(tail -1 "$steps/$name.log" | cut -c1-100)"
}

configure() {
    cmake --log-level=WARNING -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DDEEPPCR_CUDA=on -DDEEPPCR_BENCH=ON -DDEEPPCR_TESTS=ON
}
# One test under a tool; of the suites over forms and lengths a share.
sanitize_one() {
    local log=$steps/sanitize.$1.$2.log
    DEEPPCR_DEVICE=$device DEEPPCR_DEVICE_SHARE=47 DEEPPCR_DEVICE_LAUNCHES=3 \
        compute-sanitizer --tool "$1" --error-exitcode 1 "$build/test_on_device" "$2" >"$log" 2>&1
    local status=$?
    [ $status -eq 0 ] || echo "$1 $2: exit status $status"
    grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" && return $status
    echo "$1 $2: $(tail -1 "$log")"
    return 1
}
sanitizer() {
    each_test "sanitize_one $1" && echo "$1: no errors in $count tests"
}
# each_test COMMAND: with each test's name behind it, side by side; sets count.
each_test() {
    local names
    names=$("$build/test_on_device" --list)
    if [ -z "$names" ]; then
        echo "test_on_device names no tests"
        return 1
    fi
    count=$(wc -l <<<"$names")
    xargs -P "$(nproc)" -I{} bash -c "$1 {}" <<<"$names"
}
suite_one() {
    local log=$steps/suite.$1.log
    DEEPPCR_DEVICE=$device DEEPPCR_DEVICE_LONGEST=$steps_of_longest "$build/test_on_device" "$1" >"$log" 2>&1 || { cat "$log"; return 1; }
}
suite() { each_test suite_one && echo "$count tests passed"; }
again() { DEEPPCR_DEVICE=$device DEEPPCR_DEVICE_LONGEST=$steps_of_longest DEEPPCR_DEVICE_LAUNCHES=$launches "$build/test_on_device" the_same_bits_again; }
# keep NAME COMMAND...: its rows go to NAME.csv, with date and commit before each; those of a command that fails or is
# stopped too, but for a last line that is no whole one.
keep() {
    local out=$results/$1.csv
    shift
    mkdir -p "$results"
    "$@" >"$steps/rows.csv"
    local status=$? head
    [ -z "$(tail -c 1 "$steps/rows.csv")" ] || sed -i '$d' "$steps/rows.csv"
    if [ "$(wc -l <"$steps/rows.csv")" -lt 2 ]; then
        echo "no row for $out"
        return $((status ? status : 1))
    fi
    head=date,commit,$(head -1 "$steps/rows.csv")
    [ -s "$out" ] || echo "$head" >"$out"
    if [ "$(head -1 "$out")" != "$head" ]; then
        echo "the columns of $out are others: move it away"
        return 1
    fi
    tail -n +2 "$steps/rows.csv" | sed "s/^/$(date -u +%F),$commit,/" >>"$out"
    echo "$(wc -l <"$out") lines in $out"
    return $status
}

chains() { keep chains "$build/bench_gpu_chains" --device "$device" --structure "$1" --bytes "$bytes"; }
nonlinear() { keep nonlinear "$build/bench_gpu_nonlinear" --device "$device" --what "$1" --longest "$longest" --repetitions "$repetitions"; }
layers() { keep layers "$build/bench_gpu_layers" --device "$device" --network "$1" --longest "$deepest" --repetitions "$repetitions"; }
training() {
    # shellcheck disable=SC2086  # several arguments
    keep training "$build/bench_gpu_training" --device "$device" --network "$1" --repetitions "$repetitions" $trained
}

sequences() {
    # shellcheck disable=SC2086  # several arguments
    keep "sequences_$1" "$build/deeppcr" train "$1" --data bitstream $streams --epochs 2 --test-every 0 --csv - --quiet --device "$device"
}

sampler() {
    # shellcheck disable=SC2086  # several arguments
    keep sampler "$build/bench_gpu_sampler" --device "$device" --repetitions "$repetitions" $sampled
}

# What was compiled is not compiled again, so a build that was stopped goes on too.
prepare() {
    if ! command -v "${CUDACXX:-nvcc}" >/dev/null; then
        echo "run.sh: skipped: no nvcc (CUDACXX names one)"
        exit 77
    fi
    [ -f "$build/build.ninja" ] || [ -f "$build/Makefile" ] || configure >"$steps/configure.log" 2>&1 || {
        tail -5 "$steps/configure.log"
        exit 1
    }
    echo "building (resumable)"
    timeout 400 cmake --build "$build" -j "$(nproc)" --target deeppcr_cuda deeppcr_program test_on_device bench_gpu_chains bench_gpu_nonlinear \
        bench_gpu_layers bench_gpu_training bench_gpu_sampler >"$steps/build.log" 2>&1
    case $? in
        0) ;;
        124) echo "$part: the build took its time; the same command goes on"; exit 75 ;;
        *) tail -20 "$steps/build.log"; exit 1 ;;
    esac
}
if [ -n "$rehearse" ]; then
    DEEPPCR_CUDA_MODULE=$(cd "$build" && pwd)/stand-ins/libfake_device.so
    export DEEPPCR_CUDA_MODULE
elif [ -z "${DEEPPCR_GPU_BUILD:-}" ]; then
    prepare
fi
answer=$("$build/deeppcr" info --device "$device" 2>&1) || { echo "run.sh: skipped: $answer"; exit 77; }
echo "$answer" | sed -n '/^devices/,$p'

peers() { keep peers python3 bench/gpu/peers.py --part "$1" --seconds "$2"; }
peers_sampler() { keep peers_sampler python3 bench/gpu/peers_sampler.py --seconds 60; }

export -f suite suite_one each_test again sanitizer sanitize_one peers peers_sampler keep chains nonlinear layers training sequences sampler
export build commit device results steps bytes launches steps_of_longest longest deepest trained streams sampled repetitions
case $part in
    test)
        step suite 300 bash -c suite
        step launches 300 bash -c again
        # shellcheck disable=SC2016
        step command_line 60 bash -c '"$build/deeppcr" info --device "$device" --json'
        ;;
    sanitize)
        command -v compute-sanitizer >/dev/null || { echo "run.sh: skipped: no compute-sanitizer"; exit 77; }
        for tool in memcheck racecheck synccheck; do step "$tool" 450 bash -c "sanitizer $tool"; done
        ;;
    bench)
        for structure in diagonal block dense scalar; do step "$structure" 200 bash -c "chains $structure"; done
        for what in cells rnn gru lstm paragru paralstm mingru; do step "$what" 300 bash -c "nonlinear $what"; done
        for network in mlp resnet resnet-gelu resnet-norm resnet-two; do step "$network" 300 bash -c "layers $network"; done
        for network in mlp resnet; do step "training_$network" 300 bash -c "training $network"; done
        for network in rnn gru lstm paragru; do step "sequences_$network" 200 bash -c "sequences $network"; done
        step sampler 300 bash -c sampler
        ;;
    peers)
        step mlp 120 bash -c "peers mlp 90"
        step recurrent 150 bash -c "peers recurrent 120"
        step training 100 bash -c "peers resnet-training 70"
        step linear 60 bash -c "peers linear 30"
        step para 60 bash -c "peers para 30"
        step sampler 100 bash -c peers_sampler
        ;;
esac
echo "$part: done"
