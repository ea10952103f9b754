#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# gpu_run.sh BUILD_DIR: bench/gpu/run.sh over the stand-in: its steps, that what is done is not done again, its table, and
# the exit status without a device.
set -u
build=$(cd "${1:?usage: gpu_run.sh BUILD_DIR}" && pwd) || exit 1
fail() {
    echo "gpu_run: $*"
    exit 1
}
if grep -qsE '^DEEPPCR_SANITIZE:STRING=.+' "$build/CMakeCache.txt"; then
    echo "gpu_run: skipped: its programs are tested under sanitizers by themselves"
    exit 77
fi
rm -rf "$build/rehearsal"
trap 'rm -rf "$build/rehearsal"' EXIT
export DEEPPCR_GPU_REHEARSE=$build
first=$(bash bench/gpu/run.sh test) || fail "test: $first"
[[ $first == *"test.suite: done"*"test.launches: done"*"test: done" ]] || fail "test said: $first"
again=$(bash bench/gpu/run.sh test) || fail "test again: $again"
[[ $again == *"test.suite: done before"* ]] || fail "what was done is done again: $again"
bash bench/gpu/run.sh bench >/dev/null || fail "bench: exit $?"
bash bench/gpu/run.sh bench --again >/dev/null || fail "bench --again: exit $?"
awk -F, 'NR == 1 { n = NF; if ($1 != "date" || $3 != "device") exit 1 } NF != n { exit 1 } END { exit NR < 100 }' \
    "$build/rehearsal/chains.csv" || fail "chains.csv: $(head -3 "$build/rehearsal/chains.csv")"
awk -F, 'NR == 1 { n = NF; if ($NF != "times_the_loop") exit 1 } NF != n { exit 1 } END { exit NR < 80 }' \
    "$build/rehearsal/nonlinear.csv" || fail "nonlinear.csv: $(head -3 "$build/rehearsal/nonlinear.csv")"
# Three networks of 58 rows and two of 48 that newton does not serve, twice.
awk -F, 'NR == 1 { n = NF; if ($NF != "times_the_loop") exit 1 } NF != n { exit 1 } END { exit NR != 541 }' \
    "$build/rehearsal/layers.csv" || fail "layers.csv: $(head -3 "$build/rehearsal/layers.csv")"
# Two networks of 4 rows, twice; the losses after the last step here and there.
awk -F, 'NR == 1 { n = NF; if ($NF != "apart") exit 1 } NF != n || (NR > 1 && !($NF < 1e-3)) { exit 1 } END { exit NR != 17 }' \
    "$build/rehearsal/training.csv" || fail "training.csv: $(head -3 "$build/rehearsal/training.csv")"
# Two epochs of each kind, twice.
for kind in rnn gru lstm paragru; do
    awk -F, 'NR == 1 { n = NF; if ($NF != "seconds") exit 1 } NF != n { exit 1 } END { exit NR != 5 }' \
        "$build/rehearsal/sequences_$kind.csv" || fail "sequences_$kind.csv: $(head -3 "$build/rehearsal/sequences_$kind.csv")"
done
# Two samplers, one picture and two, each by the loop, by two clocks, and by two methods of sweeps; twice.
awk -F, 'NR == 1 { n = NF; if ($NF != "times_the_loop") exit 1 } NF != n { exit 1 } END { exit NR != 33 }' \
    "$build/rehearsal/sampler.csv" || fail "sampler.csv: $(head -3 "$build/rehearsal/sampler.csv")"
DEEPPCR_FAKE_DEVICES=0 bash bench/gpu/run.sh test >"$build/rehearsal/none"
[ $? -eq 77 ] && grep -q 'skipped.*no NVIDIA driver' "$build/rehearsal/none" || fail "without a device: $(tail -1 "$build/rehearsal/none")"
bash bench/gpu/run.sh nonsense 2>/dev/null
[ $? -eq 2 ] || fail "a part that there is not: not exit 2"
echo "gpu_run: its steps, once; $(wc -l <"$build/rehearsal/chains.csv") lines"
