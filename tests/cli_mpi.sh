#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_mpi.sh BUILD_DIR: pipelines whose ranks are processes: one process's network on 1 to 4 ranks, and faults that end
# every process with one line of ours: a rank that is killed, one that stands still, a disk that is full; and requests
# to stop, to whichever rank.
set -u
. "$(dirname "$0")/program.bash"
skip() { echo "cli_mpi: $*"; exit 77; }
command -v mpirun >/dev/null || skip "no mpirun"
module=$(dirname "$program")/libdeeppcr_mpi.so.0
[ -e "$module" ] || skip "the program was built without MPI"
[ -d /usr/share/datasets/fashion-mnist ] || skip "no data set"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
options=(train resnet --layers 10 --width 12 --limit 700 --batch 64 --epochs 2 --method sequential --backward sequential)
among() { timeout 120 mpirun --oversubscribe -np "$1" "$program" "${options[@]}" "${@:2}"; }

# ---- the same network ----
"$program" "${options[@]}" --quiet --save "$folder/one.safetensors" || complain "training by one process"
for p in 2 3 4; do
    among $p --pipeline zb-h1 --microbatches 8 --json --save "$folder/p.safetensors" >"$folder/p.json" 2>"$folder/err" || complain "zb-h1 on $p processes: $(cat "$folder/err")"
    cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "zb-h1 on $p processes made another network"
    python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); assert r["pipeline"]["ranks"] == int(sys.argv[2]) and r["test_accuracy"] > 0.3, r' "$folder/p.json" $p ||
        complain "the result on $p processes"
done
among 1 --pipeline zb-h1 --ranks 1 --quiet --save "$folder/p.safetensors" || complain "one process under mpirun"
cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "one process under mpirun made another network"
for p in 2 3; do
    among $p --data-parallel --quiet --save "$folder/p.safetensors" || complain "data-parallel on $p processes"
    cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "data-parallel on $p processes made another network"
done
among 3 --swap --quiet --save "$folder/a.safetensors" || complain "swap on 3 processes"
"$program" "${options[@]}" --swap --ranks 3 --quiet --save "$folder/b.safetensors" || complain "swap on 3 threads"
cmp "$folder/a.safetensors" "$folder/b.safetensors" || complain "swap: processes and threads differ"
# late gradients: processes and threads agree to the bit
for late in "pipedream" "layerpipe --stages 6 --split"; do
    # shellcheck disable=SC2086
    among 3 --pipeline $late --quiet --save "$folder/a.safetensors" || complain "$late on 3 processes"
    # shellcheck disable=SC2086
    "$program" "${options[@]}" --pipeline $late --ranks 3 --quiet --save "$folder/b.safetensors" || complain "$late on 3 threads"
    cmp "$folder/a.safetensors" "$folder/b.safetensors" || complain "$late: processes and threads differ"
done

# ---- machines whose clocks count from different moments: a run's times are of one clock ----
if unshare -T --monotonic 100000 true 2>/dev/null; then
    command=("$program" "${options[@]}" --pipeline zb-h1 --microbatches 8 --json --trace "$folder/trace.json")
    timeout 120 mpirun --oversubscribe -np 1 "${command[@]}" : -np 1 unshare -T --monotonic 100000 "${command[@]}" >"$folder/p.json" 2>"$folder/err" || complain "processes of two clocks: $(cat "$folder/err")"
    python3 - "$folder/p.json" "$folder/trace.json" <<'END' || complain "the times of processes of two clocks"
import json, sys
run, trace = (json.load(open(path)) for path in sys.argv[1:])
boxes = [e for e in trace["traceEvents"] if "dur" in e]
assert 0 < run["pipeline"]["makespan"] < 1000, run["pipeline"]
assert boxes and all(0 <= e["ts"] < 1e9 and 0 <= e["dur"] < 1e9 for e in boxes), boxes
END
else
    echo "cli_mpi: clocks of two machines are not tried: this one makes no time namespaces"
fi

# ---- faults: within the time-out, our line, the last checkpoint whole ----
ends() { # name, seconds at most, word of our line
    local status=$1 took=$2 most=$3 word=$4 what=$5
    [ "$status" -ne 0 ] || complain "$what: exit status 0"
    [ "$took" -le "$most" ] || complain "$what: took $took s"
    grep -q "$word" "$folder/err" || complain "$what: no '$word' in $(cat "$folder/err")"
}
long=(--epochs 100000 --test-every 0 --checkpoint-seconds 0.2 --quiet)
start_long() {
    rm -f "$folder/run.safetensors"
    among 3 "${long[@]}" "$@" --save "$folder/run.safetensors" --deadline 6 >/dev/null 2>"$folder/err" &
    job=$!
    for _ in $(seq 1200); do
        if [ -s "$folder/run.safetensors" ] || ! kill -0 "$job" 2>/dev/null; then break; fi
        sleep 0.1
    done
    sleep 0.5
    victim=$(pgrep -f -n "$folder/run.safetensors")
    [ -n "$victim" ] || complain "the run ended before it was disturbed: $(cat "$folder/err")"
}
one_line() { [ "$(grep -c '^deeppcr train: ' "$folder/err")" -eq 1 ] || complain "$1: not one line of ours: $(cat "$folder/err")"; }
rank_is() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$2\$"; }
# what rank 1 alone fails at before they train, it tells
command=("$program" "${options[@]}" --pipeline zb-h1)
timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --save "$folder/one.st" : -np 1 "${command[@]}" --save "$folder/no/one.st" >/dev/null 2>"$folder/err"
ends $? 0 60 "rank 1: cannot write the checkpoint '.*/no/one.st'" "no folder on rank 1"
one_line "no folder on rank 1"
# options and files of their own: of what the network follows from, what is not rank 0's is named before anything is trained
disagree() { # words, options of both, rank 0's, rank 1's
    rm -f "$folder/both.st"
    # shellcheck disable=SC2086  # words of options
    timeout 60 mpirun --oversubscribe -np 1 "$program" "${options[@]}" $2 $3 --save "$folder/both.st" : -np 1 "$program" "${options[@]}" $2 $4 --save "$folder/both.st" >/dev/null 2>"$folder/err"
    ends $? 0 60 "rank 1: its $1: wanted the same\$" "rank 0 with '$3', rank 1 with '$4'"
    one_line "rank 0 with '$3', rank 1 with '$4'"
    [ ! -e "$folder/both.st" ] || complain "rank 0 with '$3', rank 1 with '$4': trained"
}
beside disagree "--rate is 0.5, rank 0's 0.003" "--pipeline zb-h1" "" "--rate 0.5"
beside disagree "--clip is 0, rank 0's 1" --data-parallel "--clip 1" ""
beside disagree "--seed is 7, rank 0's 1" --swap "" "--seed 7"
beside disagree "choice of --denormals is another than rank 0's" --data-parallel "" "--denormals keep"
beside disagree "--weight-decay is 0.3, rank 0's 0.01" "--pipeline zb-h1" "" "--weight-decay 0.3"
beside disagree "--activation is another than rank 0's" --data-parallel "" "--activation relu"
joined
beside disagree "--apart-rate is 0.2, rank 0's 0.0003" --swap "" "--apart-rate 0.2"
beside disagree "kind of training (--pipeline, --data-parallel, --swap) is another than rank 0's" "" --data-parallel --swap
beside disagree "number of images (--limit) is 600, rank 0's 700" --data-parallel "" "--limit 600"
beside disagree "initialisation (--init, --gain) is another than rank 0's" --data-parallel "" "--gain 2"
beside disagree "choice of --trace is another than rank 0's" "--pipeline zb-h1" "--trace $folder/both.json" ""
"$program" "${options[@]}" --epochs 1 --quiet --constant-rate --warm-up 1 --save "$folder/r0.st" && "$program" "${options[@]}" --epochs 1 --quiet --constant-rate --warm-up 1 --seed 7 --save "$folder/r1.st" || complain "checkpoints of two runs"
beside disagree "checkpoint (--resume) is another than rank 0's" "--pipeline zb-h1 --constant-rate --warm-up 1" "--resume $folder/r0.st" "--resume $folder/r1.st"
# what each may have of its own does not matter
command=("$program" "${options[@]}" --pipeline zb-h1)
timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --threads 1 --quiet --save "$folder/p.safetensors" : -np 1 "${command[@]}" --recompute --cut even --deadline 50 --csv "$folder/no.csv" --save "$folder/other.safetensors" 2>"$folder/err" ||
    complain "ranks with paths of their own: $(cat "$folder/err")"
cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "ranks with paths of their own made another network"
# what all compute alike, each by itself, one tells
among 2 --swap --apart-rate 1e38 --quiet >/dev/null 2>"$folder/err"
ends $? 0 1 "the loss is nan" "workers apart that diverge"
one_line "workers apart that diverge"
among 2 --data-parallel --clip 3 --constant-rate --warm-up 1 --resume "$folder/r0.st" --quiet >/dev/null 2>"$folder/err"
ends $? 0 1 "clip is 3, wanted 0, the checkpoint's" "a checkpoint of other options"
one_line "a checkpoint of other options"
# a rank 0 whose last work takes longer than the others would give one that is late: they wait for its end
slow_end() {
    mkfifo "$folder/late"
    (sleep 8; timeout 60 cat "$folder/late" >"$folder/late.csv") &
    timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --deadline 3 --quiet --csv "$folder/late" : -np 1 "${command[@]}" --deadline 3 --quiet 2>"$folder/err" || complain "a slow end of rank 0: $(cat "$folder/err")"
    wait $!
    [ -s "$folder/late.csv" ] || complain "a slow end of rank 0 left no result"
}
joined
beside slow_end
# a rank that never leaves
never_leaves() {
    timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --deadline 3 --quiet : -np 1 -x LD_PRELOAD="$folder/../no_end.so" "${command[@]}" --deadline 3 --quiet >/dev/null 2>"$folder/err"
    ends $? 0 1 "MPI did not end within 5 s: a process stands still" "a rank that never leaves"
    one_line "a rank that never leaves"
}
if command -v cc >/dev/null && ! grep -qE '__[at]san_init' "$program" && printf '#include <unistd.h>\nint MPI_Finalize(void) { for (;;) pause(); }\n' | cc -shared -fPIC -x c -o "$folder/no_end.so" - 2>/dev/null; then
    beside never_leaves
fi
# what is not for several processes, which would each do the whole, into the same files
alone() { # kind
    timeout 60 mpirun --oversubscribe -np 2 "$program" train "$1" --save "$folder/alone" >/dev/null 2>"$folder/err"
    ends $? 0 1 "$1 trains in one process, but started as 2" "$1 under mpirun"
    one_line "$1 under mpirun"
}
for kind in gru denoiser vgg11; do beside alone $kind; done
joined
alone_verb() { # verb, words
    timeout 60 mpirun --oversubscribe -np 2 "$program" "$@" >"$folder/out" 2>"$folder/err"
    [ $? -eq 2 ] && [ ! -s "$folder/out" ] && [ "$(grep -c "^deeppcr $1: runs in one process, but started as 2, as the environment of mpirun says$" "$folder/err")" -eq 1 ] ||
        complain "$* under mpirun: $(cat "$folder/out" "$folder/err")"
}
# shellcheck disable=SC2086 # words of options
for verb in check gradcheck "plan linear" "convert a.wav a.npy" "eval a" "generate a" "bench mlp" "schedule print"; do beside alone_verb $verb; done
joined

find_rank() {
    for victim in $(pgrep -f "deeppcr train .*$folder/run.safetensors"); do
        rank_is "$victim" "$1" && return
    done
    complain "no rank $1"
}
for kind in "KILL --pipeline 1f1b --microbatches 4" "STOP --pipeline 1f1b --microbatches 4" "KILL --data-parallel" "STOP --data-parallel"; do
    # shellcheck disable=SC2086
    set -- $kind
    signal=$1
    start_long "${@:2}"
    [ "$signal" = KILL ] || find_rank 0
    kill -$signal "$victim"
    before=$SECONDS
    wait $job
    status=$?
    [ $signal = KILL ] || kill -KILL "$victim" 2>/dev/null
    word="waited for rank"
    [ $signal = STOP ] || word=""
    ends $status $((SECONDS - before)) 30 "$word" "a rank that gets SIG$signal"
    # (the one that stood still may be woken to be ended, and say that it stops as asked)
    [ $signal = KILL ] || [ "$(grep -c '^deeppcr train: .*waited for' "$folder/err")" -eq 1 ] || complain "a rank that stands still: not one line: $(cat "$folder/err")"
    "$program" eval --load "$folder/run.safetensors" --limit 100 --quiet 2>"$folder/eval" || complain "SIG$signal left a damaged checkpoint: $(cat "$folder/eval")"
done
# a rank that is asked to stop stops all: rank 0 writes the checkpoint, and tells it
for kind in "--pipeline 1f1b --microbatches 4" "--data-parallel" "--swap --epochs 1 --apart-epochs 100000"; do
    # shellcheck disable=SC2086
    start_long $kind
    find_rank 1
    kill -TERM "$victim"
    before=$SECONDS
    wait $job
    status=$?
    [ $status -eq 143 ] || complain "rank 1 of $kind asked to stop: exit status $status"
    ends $status $((SECONDS - before)) 30 "^deeppcr train: stopped as asked .*; to go on.*, resume from $folder/run.safetensors$" "rank 1 of $kind asked to stop"
    one_line "rank 1 of $kind asked to stop"
    "$program" eval --load "$folder/run.safetensors" --limit 100 --quiet 2>"$folder/eval" || complain "rank 1 of $kind asked to stop left a damaged checkpoint: $(cat "$folder/eval")"
done
# also one that waits for another, which stands still (and which may say the same when it is woken to be ended)
start_long --pipeline 1f1b --microbatches 4
find_rank 0
still=$victim
find_rank 1
kill -STOP "$still"
sleep 0.5
kill -TERM "$victim"
before=$SECONDS
wait $job
status=$?
kill -KILL "$still" 2>/dev/null
[ $status -eq 143 ] || complain "a rank asked to stop while it waits: exit status $status"
ends $status $((SECONDS - before)) 30 "^deeppcr train: .*stopped as asked" "a rank asked to stop while it waits"
# no room any more in mid-run
start_long --pipeline 1f1b --microbatches 4
find_rank 0
prlimit --pid "$victim" --fsize=1000
before=$SECONDS
wait $job
ends $? $((SECONDS - before)) 60 "cannot write" "a full disk in mid-run"
one_line "a full disk in mid-run"
"$program" eval --load "$folder/run.safetensors" --limit 100 --quiet 2>"$folder/eval" || complain "a full disk left a damaged checkpoint: $(cat "$folder/eval")"
among 2 --pipeline 1f1b --microbatches 4 --save /dev/full/x >/dev/null 2>"$folder/err"
ends $? 0 1 "deeppcr train: " "a path that cannot be written"
[ "$(grep -c '^deeppcr train: ' "$folder/err")" -eq 1 ] || complain "more than one line of ours: $(cat "$folder/err")"
among 2 --layer-wise >/dev/null 2>"$folder/err"
ends $? 0 1 "has threads alone" "--layer-wise under mpirun"
among 2 --pipeline 1f1b --ranks 3 >/dev/null 2>"$folder/err"
ends $? 0 1 "started as 2 processes" "--ranks beside mpirun"
[ "$(grep -c '^deeppcr train: ' "$folder/err")" -eq 1 ] || complain "more than one line of ours: $(cat "$folder/err")"

# The module: who is no rank loads no MPI; it is found where both are installed, and what is wrong with it is said.
! ldd "$program" | grep -q libmpi || complain "the program loads MPI before it is asked for"
! ldd "$program" | grep -q 'not found' || complain "the program lacks a library: $(ldd "$program")"
names=$(nm -D --defined-only "$module" | awk '{print $NF}')
[ "$names" = deeppcr_mpi_module ] || complain "the module has other names than its entry: $names"
cmake --install "$build" --component program --prefix "$folder/alone" >/dev/null || complain "the program is not installed"
place=$(find "$folder/alone" -name libdeeppcr_mpi.so.0)
[ -n "$place" ] || complain "the module is not installed"
mkdir "$folder/aside"
mv "$place" "$folder/aside/whole"
elsewhere() { program=$folder/alone/bin/deeppcr among 2 --pipeline 1f1b --microbatches 4 --quiet --save "$folder/elsewhere.safetensors" >/dev/null 2>"$folder/err"; }
if ! /sbin/ldconfig -p | grep -q libdeeppcr_mpi; then  # an installed one would serve
    LD_LIBRARY_PATH='' elsewhere
    ends $? 0 1 "started as 2 processes, but there is no libdeeppcr_mpi.so.0 (built without MPI?)" "no module"
fi
[ "$(grep -c '^deeppcr train: ' "$folder/err")" -eq 1 ] || complain "more than one line of ours: $(cat "$folder/err")"
echo "no library" >"$folder/aside/libdeeppcr_mpi.so.0"
LD_LIBRARY_PATH=$folder/aside elsewhere
ends $? 0 1 "MPI cannot be loaded: .*aside/libdeeppcr_mpi.so.0" "a module that is no library, where the loader looks"
echo "no library" >"$place"
elsewhere
ends $? 0 1 "MPI cannot be loaded: .*libdeeppcr_mpi.so.0" "a module that is no library"
cp "$(ldd "$program" | awk '/libz\.so/ {print $3}')" "$place"
elsewhere
ends $? 0 1 "is not of this program" "another library as the module"
cp "$folder/aside/whole" "$place"
elsewhere || complain "the module of an installation was not found: $(cat "$folder/err")"
[ -s "$folder/elsewhere.safetensors" ] || complain "an installation's ranks saved nothing"

[ $failed -ne 0 ] || echo "cli_mpi: processes as threads, faults end"
exit $failed
