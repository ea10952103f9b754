#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_pipeline.sh BUILD_DIR: measured profiles, and training by pipelines.
set -u
build=${1:?usage: cli_pipeline.sh BUILD_DIR}
program=$build/deeppcr
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0
complain() { echo "cli_pipeline: $*"; failed=1; }

# exit status, then a word of the one line on stderr
refused() {
    local wanted=$1 word=$2 line
    shift 2
    line=$("$program" "$@" 2>&1 >/dev/null </dev/null)
    local status=$?
    [ "$status" -eq "$wanted" ] || complain "'$*' gave exit status $status, wanted $wanted"
    [ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || complain "'$*' printed more than one line: $line"
    case $line in *"$word"*) ;; *) complain "'$*' says '$line', wanted '$word' in it" ;; esac
}
run() { "$program" "$@" || complain "'$*' gave exit status $?"; }

# ---- profiles ----
run schedule profile resnet --layers 9 --width 24 --batch 8 --group 4 --out "$folder/p.json" --quiet
run schedule --json profile mlp --layers 0 --inputs 0 --width 16 --batch 4 >"$folder/q.json"
run schedule simulate --profile "$folder/p.json" --schedule zb-h1 --ranks 2 --json >"$folder/s.json"
run schedule partition --profile "$folder/p.json" --ranks 3 --straight --json >"$folder/t.json"
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
p, q, s, t = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "pqst")
layers = p["layers"]
assert [l["name"] for l in layers] == ["encoder", "layers.0-3", "layers.4-7", "layers.8", "head"], layers
assert layers[0]["input"] == 0 and all(l[k] > 0 for l in layers for k in ("forward", "weight"))
assert all(l["input"] > 0 for l in layers[1:])
assert [l["parameter_bytes"] for l in layers] == [4 * n for n in (785 * 24, 4 * 600, 4 * 600, 600, 250)]
assert [l["activation_bytes"] for l in layers] == [8 * 24 * 4] * 4 + [8 * 10 * 4]
assert [l["name"] for l in q["layers"]] == ["head"]
total = sum(l[k] for l in layers for k in ("forward", "input", "weight"))
assert total / 2 * 8 < s["makespan"] < total * 9 and len(t["stages"]) == 3
PYTHON
refused 2 "which network" schedule profile
refused 2 "no network 'gpt'" schedule profile gpt
refused 2 "--group" schedule profile mlp --group 0
refused 2 "nothing to measure" schedule profile mlp --layers 0 --inputs 0 --outputs 0
refused 4 "cannot" schedule profile mlp --layers 1 --out "$folder/none/p.json"

[ $failed -ne 0 ] || echo "cli_pipeline: profiles as they should be"
exit $failed
