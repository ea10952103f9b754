#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# gpu_run.sh BUILD_DIR: bench/gpu/run.sh over the stand-in: its steps, that what is done is not done again, its tables,
# what it makes of peers and of a compute-sanitizer that find something or fail, and the exit status without a device.
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
listed=$("$build/test_on_device" --list | wc -l)
[[ $first == *"test.suite: done, $listed tests passed"*"test.launches: done"*"test: done" ]] || fail "test said: $first"
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

# Peers: rows with commas in them; none; a command that is stopped in the middle of a row, whose whole rows stay.
tools=$build/rehearsal/tools
mkdir "$tools"
cat >"$tools/python3" <<'END'
#!/bin/sh
printf 'device,peer,median_us\n'
[ "$FAKE_PEERS" = none ] || printf '"A, B",eager,1.5\n'
[ "$FAKE_PEERS" != stopped ] || { printf '"A, B",graph,2.5\n"A, B",gra'; exit 3; }
END
cat >"$tools/compute-sanitizer" <<'END'
#!/bin/sh
for test; do :; done
[ "$test" != "$FAKE_ERROR" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 1; }
[ "$test" != "$FAKE_SILENCE" ] || exit 0
case $2 in
    racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed" ;;
    *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
END
chmod +x "$tools"/*
with_tools() { PATH=$tools:$PATH bash bench/gpu/run.sh "$@" >"$build/rehearsal/said"; }
said() { grep -q "$1" "$build/rehearsal/said" || fail "said: $(cat "$build/rehearsal/said")"; }
with_tools peers || fail "peers: exit $?"
awk -F, 'NR == 1 && $0 != "date,commit,device,peer,median_us" { exit 1 }
    NR > 1 && (NF != 6 || $NF != "1.5") { exit 1 } END { exit NR != 6 }' \
    "$build/rehearsal/peers.csv" || fail "peers.csv: $(cat "$build/rehearsal/peers.csv")"
FAKE_PEERS=none with_tools peers --again
[ $? -eq 1 ] || fail "peers without a row: not exit 1"
said 'no row for'
FAKE_PEERS=stopped with_tools peers --again
[ $? -eq 3 ] || fail "peers that fail: not their exit status"
[ "$(tail -n +7 "$build/rehearsal/peers.csv" | cut -d, -f3-)" = $'"A, B",eager,1.5\n"A, B",graph,2.5' ] ||
    fail "peers that fail: $(cat "$build/rehearsal/peers.csv")"
sed -i '1s/peer/pair/' "$build/rehearsal/peers.csv"
with_tools peers --again && fail "a table of other columns is added to"
said 'columns'
with_tools sanitize || fail "sanitize: exit $?"
said "sanitize.racecheck: done, racecheck: no errors in $listed tests"
FAKE_ERROR=long_chains with_tools sanitize --again && fail "what memcheck found is no failure"
said 'memcheck long_chains: exit status 1'
FAKE_SILENCE=long_chains with_tools sanitize --again && fail "silence is taken for nothing found"
"$build/test_on_device" no_such_test 2>/dev/null
[ $? -eq 2 ] || fail "a test that there is not: not exit 2"

DEEPPCR_FAKE_DEVICES=0 bash bench/gpu/run.sh test >"$build/rehearsal/none"
[ $? -eq 77 ] || fail "without a device: not exit 77"
grep -q 'skipped.*no NVIDIA driver' "$build/rehearsal/none" || fail "without a device: $(cat "$build/rehearsal/none")"
bash bench/gpu/run.sh nonsense 2>/dev/null
[ $? -eq 2 ] || fail "a part that there is not: not exit 2"
echo "gpu_run: its steps, once; $(wc -l <"$build/rehearsal/chains.csv") lines"
