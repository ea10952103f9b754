#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts.sh BUILD_DIR: scripts/run and scripts/report with a stand-in program: the files they leave, a page whose tags
# close and whose ids are unique, values escaped, failures in one line with the right exit status; install-deps' refusals.
set -u
folder=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
fail() {
    echo "scripts: $*"
    exit 1
}
for tool in jq gnuplot; do
    command -v $tool >/dev/null || { echo "scripts: $tool is not installed"; exit 77; }
done

mkdir "$folder/build"
cat >"$folder/build/deeppcr" <<'PROGRAM'
#!/usr/bin/env bash
verb=$1
while [ $# -gt 0 ]; do
    case $1 in
        --log) log=$2 ;;
        --save) echo model >"$2" ;;
    esac
    shift
done
case $verb in
    info) echo '{"version": "0.1.0", "isa": "avx2", "threads": 2}' ;;
    train)
        for step in $(seq 1 1876); do
            echo "{\"event\": \"step\", \"step\": $step, \"epoch\": $((step / 469)), \"loss\": 0.$((900 - step / 4)), \"accuracy\": 0.8}"
            [ $((step % 469)) -ne 0 ] ||
                echo "{\"event\": \"epoch\", \"step\": $step, \"epoch\": $((step / 469)), \"loss\": 0.4, \"accuracy\": 0.87, \"test_accuracy\": 0.86}"
        done >"$log"
        echo '{"layers": 1024, "width": 32, "seconds": 21.5, "images_per_second": 11162.2, "method": "sequential", "sentence": "loop: 9 < 31 & \"done\""}'
        ;;
    eval) echo '{"test_accuracy": 0.8765, "loss": 0.35}' ;;
    check)
        echo '{"agrees": '"${AGREES:-true}"', "layers": 1024, "max_error": 1.25e-6, "max_gradient_error": 0, "tolerance": 1e-4, "sweeps": 4,
        "method": "newton", "scheme": "pcr", "reason": "converged", "backward_reason": "'"${BACK:-converged}"'", "seconds": 0.031, "sequential_seconds": 0.009,
        "residual_history": [84213.2, 903.1, 12.44, 1.8, 0.003], "locked_history": [1, 3, 180, 901, 1024], "solver_tolerance": 1e-5}'
        [ "${AGREES:-true}" = true ]
        ;;
esac
PROGRAM
chmod +x "$folder/build/deeppcr"

out=$folder/out
OUT=$out scripts/run "$folder/build" >"$folder/log" 2>&1 || { cat "$folder/log"; fail "scripts/run failed"; }
for name in model.safetensors train.jsonl train.json eval.json check.json index.html commands.txt \
    {curves,residuals}.{csv,gp,svg,png}; do
    [ -s "$out/$name" ] || fail "$name is missing or empty"
done
[ "$(find "$out" -name '*.part' -o -name '.probe*' | wc -l)" -eq 0 ] || fail "half-written files are left"
[ "$(grep -c '^test,' "$out/curves.csv")" -eq 4 ] || fail "curves.csv has not one test line an epoch"
[ "$(wc -l <"$out/residuals.csv")" -eq 6 ] || fail "residuals.csv has not one line a sweep"
grep -q '87.65 %' "$out/index.html" || fail "the page does not show the accuracy"
grep -q 'solved over all layers at once and by the loop, <strong class="good">agree' "$out/index.html" && ! grep -q 'in order' "$out/index.html" "$folder/log" ||
    fail "the page or scripts/run tell a solve that converged otherwise"
grep -q '9 &lt; 31 &amp; &quot;done&quot;' "$out/index.html" || fail "the page does not escape text"
python3 - "$out/index.html" <<'PYTHON' || fail "the page is not in order"
import sys
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.errors = [], set(), []

    def note(self, text):
        self.errors.append("line %d: %s" % (self.getpos()[0], text))

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.see(tag, attributes)

    def handle_startendtag(self, tag, attributes):
        self.see(tag, attributes)

    def see(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                if value in self.ids:
                    self.note("id %s is there twice" % value)
                self.ids.add(value)
            if name in ("src", "xlink:href") and not value.startswith(("#", "data:")):
                self.note("needs another file: %s" % value)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.note("</%s> closes nothing" % tag)


page = Page()
page.feed(open(sys.argv[1], encoding="utf-8").read())
if page.open:
    page.errors.append("not closed: %s" % page.open)
print("\n".join(page.errors), end="")
sys.exit(bool(page.errors))
PYTHON
(cd "$out" && rm curves.svg residuals.png && gnuplot curves.gp 2>/dev/null && gnuplot residuals.gp 2>/dev/null) &&
    [ -s "$out/curves.svg" ] && [ -s "$out/residuals.png" ] || fail "the pictures cannot be made again in their folder"

refused() {  # wanted status, text of the one line, command...
    local wanted=$1 text=$2 status
    shift 2
    "$@" >"$folder/stdout" 2>"$folder/stderr" </dev/null
    status=$?
    [ $status -eq "$wanted" ] || fail "'$*' ended with $status, wanted $wanted: $(cat "$folder/stderr")"
    [ "$(wc -l <"$folder/stderr")" -eq 1 ] && grep -q "$text" "$folder/stderr" ||
        fail "'$*' should say in one line '$text', said: $(cat "$folder/stderr")"
}
touch "$folder/file"
refused 4 'cannot write' env OUT="$folder/file" scripts/run "$folder/build"
refused 4 'cannot write' env OUT="$folder/file/below" scripts/run "$folder/build"
refused 4 'cannot write' env OUT=/proc/deeppcr scripts/run "$folder/build"
[ ! -w /sys/kernel ] || refused 4 'cannot write' env OUT=/sys/kernel scripts/run "$folder/build"
refused 1 'no program' env OUT="$folder/other" scripts/run "$folder/nowhere"
refused 1 'no .*train.jsonl' scripts/report "$folder/build"
refused 4 "no job 'nonsense'" scripts/install-deps nonsense
refused 4 'which packages' scripts/install-deps
mkdir "$folder/few"
ln -s "$(command -v dirname)" "$folder/few/"
refused 1 'usage: avx512' scripts/avx512
refused 2 "'half', wanted K/N" env DEEPPCR_PART=half scripts/variant asan "$folder/build"
refused 2 "'3/2', wanted K/N, K at most N" env DEEPPCR_PART=3/2 scripts/variant tsan "$folder/build"
cmake -S . -B "$folder/levels" -DDEEPPCR_LEVELS=nosuch 2>&1 | grep -q "DEEPPCR_LEVELS is 'nosuch', wanted" || fail "kernels for nosuch are configured"
refused 4 'needs bochs' env PATH="$folder/few" "$(command -v bash)" scripts/avx512 "$folder/build"
refused 2 "no kernel of these levels has 'nosuch'" "$1/bench_kernels" --check --name nosuch
# Scripts that measure: what is missing is told before they begin, and a file of rows is there once all are.
for script in bitstream bitstream_sweep audio vgg11; do refused 2 "no $folder/nowhere" "bench/$script.sh" "$folder/nowhere" "$folder/rows"; done
refused 2 "no $folder/deeppcr" bench/maps.sh --build "$folder" --out "$folder/rows"
refused 2 "no $folder/deeppcr" bench/performance.sh --build "$folder" --out "$folder/rows"
for script in maps performance train_step; do
    (cd bench && "./$script.sh" --nope 2>&1) | grep -q -- '--build build' || fail "bench/$script.sh does not tell its options"
done
refused 1 "no $folder/nowhere" bench/bitstream_rounding.py "$folder/nowhere" "$folder/rows"
refused 1 "no $folder/nowhere" bench/pipeline.py --program "$folder/nowhere" --csv "$folder/rows/x.csv"
refused 1 "no $folder/nowhere" bench/workers.py times --program "$folder/nowhere" --csv "$folder/rows/x.csv"
refused 1 "no $folder/deeppcr" bench/planner.py --build "$folder" --out "$folder/rows/x.json"
refused 1 "no $folder/deeppcr" bench/cores.py --build "$folder" --out "$folder/rows/x.csv"
refused 1 "no $folder/deeppcr" bench/against.py mlp --build "$folder" --out "$folder/rows/x.csv"
[ -z "$(find "$folder/rows" -type f 2>/dev/null)" ] || fail "files are left: $(find "$folder/rows" -type f)"
! bench/bitstream_sweep.sh "$(command -v false)" "$folder/rows" 1 >/dev/null 2>"$folder/stderr" || fail "bitstream_sweep.sh hides runs that failed"
[ ! -e "$folder/rows/bitstream_sweep.csv" ] || fail "bitstream_sweep.sh leaves a file without its rows"
refused 1 "no run has 'nosuch'" bench/workers.py times --program "$folder/build/deeppcr" --only nosuch --csv "$folder/rows/x.csv"
! bench/pipeline.py --program "$(command -v false)" --csv "$folder/rows/x.csv" >/dev/null 2>&1 || fail "pipeline.py hides a run that failed"
[ ! -e "$folder/rows/x.csv" ] || fail "a file is there without its rows"
BACK=fallback OUT=$folder/back scripts/run "$folder/build" >"$folder/log" 2>&1 && grep -q '4 sweeps, back finished in order' "$folder/log" &&
    grep -q 'its backward pass, finished in order, and' "$folder/back/index.html" && grep -q '<td>fallback: finished in order' "$folder/back/index.html" ||
    fail "a pass finished in order is told as one solved over all layers at once"
if AGREES=false OUT=$folder/disagree scripts/run "$folder/build" >/dev/null 2>"$folder/stderr"; then
    fail "scripts/run hides a disagreement"
fi
grep -q "check' ended with status 1" "$folder/stderr" || fail "scripts/run does not name the verb that failed"
echo "scripts: run, report, install-deps and what benchmarks want"
