#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_ranks.sh BUILD_DIR: deeppcr solve over ranks, threads and (where there is MPI) processes: one process's result,
# whatever the cut, the scan, the order of the file; and faults that end every rank with one line of ours: a short file,
# a wrong shape, a full disk, a rank that is killed or stands still; never half an output.
set -u
. "$(dirname "$0")/program.bash"
find_numpy
cd "$folder" || exit 1

$python - <<'END' || exit 1
import json, struct, numpy as np
rng = np.random.default_rng(3)
L, B, w = 203, 2, 4
save = lambda name, x, dtype='f4': np.save(name + '.npy', np.asarray(x, dtype))
dense = rng.standard_normal((L, B, w, w)) * 0.4
save('dense', dense); save('blocks', dense[:, :, :, :2].reshape(L, B, 2, 2, 2)); save('diagonal', dense[:, :1, 0]); save('scalar', dense[:, :, 0, 0])
np.save('columns.npy', np.asfortranarray(dense.astype('>f4')))
save('b', rng.standard_normal((L, B, w))); save('z0', rng.standard_normal((B, w)))
save('dense2', dense[:2]); save('b2', rng.standard_normal((2, B, w)))
# integers in doubles, permutations: no rounding, so every order of products gives the same
p = np.zeros((L, B, w, w))
for l in range(L):
    for s in range(B): p[l, s, range(w), rng.permutation(w)] = rng.choice([-1, 1], w)
save('turns', p, 'f8'); save('whole', rng.integers(-9, 9, (L, B, w)), 'f8')
save('big', rng.standard_normal((40000, 1, 16, 16)) * 0.2); save('bigb', rng.standard_normal((40000, 1, 16)))
H, I, T = 5, 3, 160
tensors, data, header = {}, b'', {}
for l in range(2):
    for d in ('', '_reverse'):
        for name, shape in (('weight_ih', (4 * H, I if l == 0 else 2 * H)), ('weight_hh', (4 * H, H)), ('bias_ih', (4 * H,)), ('bias_hh', (4 * H,))):
            raw = (rng.standard_normal(shape) * 0.3).astype('f4').tobytes()
            header[f'{name}_l{l}{d}'] = {'dtype': 'F32', 'shape': list(shape), 'data_offsets': [len(data), len(data) + len(raw)]}
            data += raw
text = json.dumps(header).encode()
text += b' ' * (-len(text) % 8)
open('lstm.safetensors', 'wb').write(struct.pack('<Q', len(text)) + text + data)
save('x', rng.standard_normal((T, B, I))); save('gy', rng.standard_normal((T, B, 2 * H))); save('h0', rng.standard_normal((4, B, H)))
marks = rng.random((T, B)) < 0.1
for name, dtype in (('bool', '?'), ('int64', 'i8'), ('uint8', 'u1'), ('uint32', 'u4'), ('float', 'f4')): np.save(f'marks_{name}.npy', marks.astype(dtype))
END
head -c 2000 dense.npy >short.npy
near() { # file, file, tolerance
    $python -c 'import sys, numpy as np; a, b = (np.load(f) for f in sys.argv[1:3]); assert a.shape == b.shape and a.dtype == b.dtype and np.abs(a - b).max(initial=0) <= float(sys.argv[3]) * max(1, np.abs(a).max(initial=0)), np.abs(a - b).max()' "$@" 2>>why
}

# ---- threads ----
for a in dense blocks diagonal scalar; do
    for way in "--z0 z0.npy" --transposed; do
        # shellcheck disable=SC2086
        "$program" solve linear --A $a.npy --b b.npy $way --scheme sequential --output one.npy --quiet || complain "$a by the loop"
        for p in 1 2 3 4; do
            # shellcheck disable=SC2086
            "$program" solve linear --A $a.npy --b b.npy $way --scheme distributed --ranks $p --output many.npy --quiet && near one.npy many.npy 1e-5 || complain "$a $way on $p ranks: $(tail -1 why)"
        done
    done
done
"$program" solve linear --A columns.npy --b b.npy --scheme distributed --ranks 3 --output columns_z.npy --json >json && "$program" solve linear --A dense.npy --b b.npy --scheme distributed --ranks 3 --output rows_z.npy --quiet && cmp columns_z.npy rows_z.npy || complain "another order of the file"
$python -c 'import json; r = json.load(open("json")); assert r["scheme"] == "distributed" and r["ranks"] == 3 and r["length"] == 203 and r["compositions"] > 0 and r["seconds"] > 0, r' || complain "the result's fields"
"$program" solve linear --A dense2.npy --b b2.npy --scheme sequential --output one.npy --quiet && "$program" solve linear --A dense2.npy --b b2.npy --scheme distributed --ranks 4 --output many.npy --quiet && near one.npy many.npy 1e-5 || complain "fewer steps than ranks"
"$program" solve linear --A dense2.npy --b b2.npy --scheme distributed --ranks 1 --output many.npy | grep -q '^2 steps, .* over 1 rank, ' || complain "one rank as text"
"$program" solve linear --A turns.npy --b whole.npy --scheme sequential --output exact.npy --quiet && "$program" solve linear --A turns.npy --b whole.npy --scheme distributed --ranks 4 --output many.npy --quiet && cmp exact.npy many.npy || complain "exact numbers on 4 ranks"
lstm=(solve lstm --weights lstm.safetensors --input x.npy --h0 h0.npy --grad-output gy.npy)
"$program" "${lstm[@]}" --method sequential --output y.npy --final h.npy --grads g.safetensors --quiet || complain "lstm by the loop"
for p in 1 3; do
    "$program" "${lstm[@]}" --ranks $p --output y2.npy --final h2.npy --grads g2.safetensors --json >json && near y.npy y2.npy 1e-5 && near h.npy h2.npy 1e-5 || complain "lstm on $p ranks: $(tail -1 why)"
    [ "$(stat -c %s g.safetensors)" = "$(stat -c %s g2.safetensors)" ] || complain "lstm on $p ranks: other gradients"
done

for p in "" "--ranks 2"; do
    # shellcheck disable=SC2086
    "$program" solve lstm --weights lstm.safetensors --input x.npy --h0 h0.npy $p --final h2.npy --json >json && near h.npy h2.npy 1e-5 || complain "lstm without --output $p"
done

# Resets as NumPy has them, each rank its own steps'.
"$program" solve lstm --weights lstm.safetensors --input x.npy --resets marks_bool.npy --method sequential --output marked.npy --quiet || complain "resets by the loop"
for dtype in bool int64 uint8 uint32 float; do
    "$program" solve lstm --weights lstm.safetensors --input x.npy --resets marks_$dtype.npy --ranks 3 --output many.npy --quiet && near marked.npy many.npy 1e-5 || complain "resets of $dtype on 3 ranks: $(tail -1 why)"
done

leaves_nothing() { # exit status, word, arguments
    rm -f no.npy
    refused "$@" --output no.npy
    [ ! -e no.npy ] || complain "$*: left an output"
}
leaves_nothing 5 "cut short" solve linear --A short.npy --b b.npy --scheme distributed
leaves_nothing 5 "wanted" solve linear --A b.npy --b dense.npy --scheme distributed --ranks 3
leaves_nothing 2 "for --scheme distributed" solve linear --A dense.npy --b b.npy --ranks 2
leaves_nothing 2 "not started by mpirun" solve linear --A dense.npy --b b.npy --scheme distributed --scan mpi
leaves_nothing 2 "of other schemes" solve linear --A dense.npy --b b.npy --scheme distributed --run-up 3
leaves_nothing 2 "who each read" solve linear --A x.npz:A --b b.npy --scheme distributed
mkfifo pipe.npy
for stream in /dev/stdout pipe.npy; do
    refused 2 "who each read" solve linear --A dense.npy --b b.npy --scheme distributed --output $stream
    refused 2 "who each read" solve lstm --weights lstm.safetensors --input x.npy --ranks 2 --output $stream
done
for states in "--h0 pipe.npy" "--lengths pipe.npy" "--grads g.safetensors --grad-final pipe.npy"; do
    # shellcheck disable=SC2086 # words of options
    refused 2 "who each read all of it" solve lstm --weights lstm.safetensors --input x.npy --ranks 2 --output no.npy $states
done
leaves_nothing 5 "shape" solve lstm --weights lstm.safetensors --input gy.npy --ranks 2
leaves_nothing 2 "who each read" solve lstm --weights lstm.safetensors --input x.npy --ranks 2 --h0 -
leaves_nothing 2 "which overlap" solve lstm --weights lstm.safetensors --input x.npy --ranks 2 --method newton
short_run=(solve lstm --weights lstm.safetensors --input x.npy --h0 h0.npy --ranks 3 --run-up 1 --tolerance 1e-9 --max-sweeps 1)
"$program" "${short_run[@]}" --output many.npy --quiet && near y.npy many.npy 1e-5 || complain "boundaries that disagree, finished in order: $(tail -1 why)"
leaves_nothing 3 "did not agree in 1 sweep, and --no-fallback was given" "${short_run[@]}" --no-fallback
leaves_nothing 4 "the limit is 1000" solve lstm --weights lstm.safetensors --input x.npy --ranks 2 --memory-limit 1000
"$program" solve linear --A dense.npy --b b.npy --scheme distributed --output /dev/full >/dev/null 2>err && complain "a full disk went unnoticed"
[ "$(wc -l <err)" -eq 1 ] && grep -q "No space" err || complain "a full disk: $(cat err)"

# ---- processes ----
if command -v mpirun >/dev/null && [ -e "$(dirname "$program")/libdeeppcr_mpi.so.0" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
    among() { timeout 120 mpirun --oversubscribe -np "$1" "$program" "${@:2}"; }
    for p in 2 4; do
        "$program" solve linear --A dense.npy --b b.npy --z0 z0.npy --scheme distributed --ranks $p --output threads.npy --quiet
        among $p solve linear --A dense.npy --b b.npy --z0 z0.npy --output processes.npy --quiet 2>err && cmp threads.npy processes.npy || complain "$p processes and threads differ: $(cat err)"
        for scan in messages mpi; do
            among $p solve linear --A turns.npy --b whole.npy --scan $scan --output many.npy --quiet 2>err && cmp exact.npy many.npy || complain "exact numbers on $p processes, $scan: $(cat err)"
        done
    done
    among 3 "${lstm[@]}" --output y2.npy --final h2.npy --grads g2.safetensors --quiet 2>err && near y.npy y2.npy 1e-5 && near h.npy h2.npy 1e-5 || complain "lstm on 3 processes: $(cat err)"
    # each its own file of another length, whatever is to be written; the same of a chain
    $python -c 'import numpy as np; [np.save(n + "161.npy", np.concatenate([a, a[:1]])) for n in ("x", "gy") for a in [np.load(n + ".npy")]]; [np.save(n + "204.npy", np.concatenate([a, a[:1]])) for n in ("dense", "b") for a in [np.load(n + ".npy")]]'
    one_line() { [ "$(grep -c '^deeppcr solve: ' err)" -eq 1 ] && grep -q -- "$1" err || complain "$2: no line, or more, with '$1': $(cat err)"; }
    # at_work RANK WORDS: the process of that rank whose command has the words, once it has MPI
    at_work() {
        local p
        for _ in $(seq 100); do
            sleep 0.1
            for p in $(pgrep -f "$2"); do
                tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && grep -q libdeeppcr_mpi "/proc/$p/maps" && echo "$p" && return
            done
        done
        return 1
    }
    rm -f no.npy
    for wanted in --final --output; do
        command=("$program" solve lstm --weights lstm.safetensors "$wanted" no.npy)
        timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --input x.npy : -np 1 "${command[@]}" --input x161.npy >out 2>err
        [ $? -eq 2 ] && [ ! -s out ] && [ ! -e no.npy ] || complain "inputs of 160 and 161 steps, $wanted: $(cat out err)"
        one_line "rank 1: --input has 161 steps, rank 0's 160: wanted the same file" "inputs of 160 and 161 steps"
    done
    command=("$program" solve linear --output no.npy)
    timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --A dense204.npy --b b204.npy : -np 1 "${command[@]}" --A dense.npy --b b.npy >out 2>err
    [ $? -eq 2 ] && [ ! -s out ] && [ ! -e no.npy ] || complain "chains of 204 and 203 steps: $(cat out err)"
    one_line "rank 1: --b has 203 steps, rank 0's 204" "chains of 204 and 203 steps"
    # or options
    command=("$program" solve linear --A dense.npy --b b.npy --output no.npy)
    for other in --transposed "--scan mpi" "--denormals keep"; do
        # shellcheck disable=SC2086 # words of options
        timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" : -np 1 "${command[@]}" $other >out 2>err
        [ $? -eq 2 ] && [ ! -s out ] && [ ! -e no.npy ] || complain "rank 1 with $other: $(cat out err)"
        one_line "rank 1: it has --scan [a-z]* --chunk 0.*, rank 0 --scan messages --chunk 0: wanted the same options" "rank 1 with $other"
        grep -q -- "it has .*$other.*, rank 0" err || complain "rank 1 with $other: $(cat err)"
    done
    # of a network: who is not to write --output leaves no half of it; what else one has alone is not passed over either
    command=("$program" solve lstm --weights lstm.safetensors --input x.npy)
    for other in "--output no.npy|--final no_h.npy" "--final no_h.npy|--output no.npy" "--output no.npy|--output no.npy --final no_h.npy" \
        "--output no.npy|--output no.npy --denormals keep"; do
        # shellcheck disable=SC2086 # words of options
        timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" ${other%|*} : -np 1 "${command[@]}" ${other#*|} >out 2>err
        [ $? -eq 2 ] && [ ! -s out ] && [ ! -e no.npy ] && [ ! -e no_h.npy ] || complain "ranks with $other: $(cat out err)"
        one_line "rank 1: it has --[a-z -]*, rank 0 --[a-z -]*: wanted the same options" "ranks with $other"
        rm -f no.npy no_h.npy
    done
    # what rank 1 alone fails at before it meets rank 0, it tells; what both do, rank 0
    timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" --output no.npy : -np 1 "${command[@]}" --output no/no.npy >out 2>err
    [ $? -eq 4 ] && [ ! -s out ] && [ ! -e no.npy ] || complain "no folder on rank 1: $(cat out err)"
    one_line "rank 1: cannot write the output 'no/no.npy'" "no folder on rank 1"
    among 2 solve lstm --weights lstm.safetensors --input x.npy --output no/no.npy >out 2>err
    [ $? -eq 4 ] && grep -q "solve: cannot write the output 'no/no.npy'" err || complain "no folder on both: $(cat out err)"
    among 3 solve linear --A short.npy --b b.npy --output no.npy >/dev/null 2>err && complain "a short file went unnoticed"
    one_line "cut short" "a short file on 3 processes"
    among 2 solve linear --A dense.npy --b b.npy --scheme pcr --output no.npy >/dev/null 2>err
    one_line "started as 2 processes" "--scheme pcr beside mpirun"
    # another MPI's launcher: each process finds itself alone
    for rank in 0 1; do
        PMI_SIZE=2 PMI_RANK=$rank timeout 60 "$program" solve linear --A dense.npy --b b.npy --output no.npy >out 2>err
        [ $? -eq 2 ] && [ ! -s out ] || complain "process $rank of 2 of another launcher: $(cat out err)"
        [ $rank -ne 0 ] || one_line "process 0 of 2 by its launcher is process 0 of 1 by MPI" "another launcher"
    done
    [ ! -e no.npy ] || complain "a refused run left an output"
    among 3 "${short_run[@]}" --no-fallback --output no.npy >/dev/null 2>err
    [ $? -eq 3 ] || complain "--no-fallback on 3 processes: not exit status 3: $(cat err)"
    one_line "did not agree" "--no-fallback on 3 processes"
    # what one rank alone comes to know, here no memory for a message, it tells, and nobody waits for the deadline
    if command -v cc >/dev/null && ! grep -qE '__[at]san_init' "$program" && cc -shared -fPIC -x c -o no_memory.so - 2>/dev/null <<'END'; then
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
void *malloc(size_t bytes) {
    static void *(*real)(size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "malloc");
    return bytes == 64 + 53 * 2 * 3 * 4 ? NULL : real(bytes);
}
END
        before=$SECONDS
        command=("$program" "${lstm[@]}" --grads g2.safetensors --deadline 20 --quiet)
        timeout 120 mpirun --oversubscribe -np 2 "${command[@]}" : -np 1 -x LD_PRELOAD="$folder/no_memory.so" "${command[@]}" 2>err && complain "no memory for a message went unnoticed"
        grep -q '^deeppcr solve: no memory for a message to rank' err && [ $((SECONDS - before)) -lt 15 ] || complain "no memory for a message, $((SECONDS - before)) s: $(cat err)"
    fi
    # a scan by MPI that a rank never comes to, until the deadline or until the other one is asked to stop
    if command -v cc >/dev/null && ! grep -qE '__[at]san_init' "$program" && printf '#include <unistd.h>\nint MPI_Iexscan(void) { for (;;) pause(); }\n' | cc -shared -fPIC -x c -o no_scan.so - 2>/dev/null; then
        for deadline in 1 30; do
            command=("$program" solve linear --A dense.npy --b b.npy --transposed --scan mpi --output "$folder/no.npy" --deadline "$deadline")
            timeout 60 mpirun --oversubscribe -np 1 "${command[@]}" : -np 1 -x LD_PRELOAD="$folder/no_scan.so" "${command[@]}" >/dev/null 2>err &
            job=$!
            [ $deadline -eq 1 ] || { p=$(at_work 0 "output $folder/no.npy --deadline 30") && sleep 2 && kill -TERM "$p"; }
            wait $job
            status=$?
            said="waited for 1.* s for ranks that sent nothing$" wanted=4
            [ $deadline -eq 1 ] || { said="stopped as asked$" wanted=143; }
            [ $status -eq $wanted ] || complain "a scan that a rank never came to, deadline $deadline: exit status $status, wanted $wanted"
            one_line "$said" "a scan that a rank never came to, deadline $deadline"
        done
    fi
    # a rank that is asked to stop while all compute: rank 0, which was not, tells it in the same words
    $python -c 'import numpy as np; np.save("long.npy", np.random.default_rng(5).standard_normal((3000000, 2, 3)).astype("f4"))'
    command=("$program" solve lstm --weights lstm.safetensors --input long.npy --output "$folder/no.npy" --tolerance 0 --threads 1)
    timeout 120 mpirun --oversubscribe -np 2 "${command[@]}" >/dev/null 2>err &
    job=$!
    p=$(at_work 1 "input long.npy --output $folder/no.npy") && sleep 0.5 && kill -INT "$p"
    wait $job
    status=$?
    [ $status -eq 130 ] || complain "rank 1 asked to stop: exit status $status"
    one_line "stopped as asked$" "rank 1 asked to stop"
    [ ! -e no.npy ] || complain "rank 1 asked to stop: left an output"
    rm -f no.npy long.npy
    # a rank that stands still or is killed, wherever it was: every process ends, one clear line (a kill is the
    # launcher's to tell), and the output is whole or not there
    for signal in STOP KILL; do
        rm -f no.npy
        among 3 solve linear --A big.npy --b bigb.npy --output "$folder/no.npy" --deadline 2 >/dev/null 2>err &
        job=$!
        for _ in $(seq 200); do
            victim=$(pgrep -f -n "bigb.npy --output $folder/no.npy --deadline 2") && [ "$(cat "/proc/$victim/comm" 2>/dev/null)" = deeppcr ] && break
            victim=""
            sleep 0.02
        done
        sleep 0.2
        before=$SECONDS
        [ -z "$victim" ] || kill -$signal "$victim" 2>/dev/null
        wait $job
        status=$?
        [ $signal = KILL ] || kill -KILL "$victim" 2>/dev/null
        [ $((SECONDS - before)) -le 30 ] || complain "SIG$signal: took $((SECONDS - before)) s"
        if [ $status -ne 0 ]; then
            [ ! -e no.npy ] || complain "SIG$signal left an output"
            [ $signal = KILL ] || grep -q '^deeppcr solve: ' err || complain "SIG$signal: no line of ours: $(cat err)"
        else
            [ "$(stat -c %s no.npy)" = "$(stat -c %s bigb.npy)" ] || complain "SIG$signal came too late, and the output is short"
        fi
    done
fi

[ $failed -ne 0 ] || echo "cli_ranks: ranks as one process, faults end"
exit $failed
