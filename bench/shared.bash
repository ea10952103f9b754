# SPDX-License-Identifier: MIT
# What the scripts of this folder share, sourced by them.
# shellcheck disable=SC2154 # names, program and folder are theirs

# clear_presets: takes what decides which kernels libraries choose out of the environment, and says what.
clear_presets() {
    local name
    for name in $(compgen -e | grep -E '^(OPENBLAS|NVPL|MKL|BLIS|ATEN|DNNL|ONEDNN|XLA|JAX|OMP|KMP|GOMP)_|^DEEPPCR_ISA$' || true); do
        echo "cleared preset $name" >&2
        unset "$name"
    done
}

# The commit of the tree that measures.
describe_commit() { GIT_OPTIONAL_LOCKS=0 git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown; }

# first_processors COUNT: for taskset.
first_processors() { python3 -c 'import os, sys; print(*sorted(os.sched_getaffinity(0))[:int(sys.argv[1])], sep=",")' "$1"; }

# wants_value ARGUMENT...: an option without one ends the script.
wants_value() { [ $# -ge 2 ] || { echo "$(basename "$0"): $1 wants a value" >&2; exit 2; }; }

# wants_tools NAME...: programs without which the script ends, before it has written anything.
wants_tools() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { echo "$(basename "$0"): no $tool" >&2; exit 2; }
    done
}

# check_names WORD NAME...: ends the script where the array $names has another one than these.
check_names() {
    local word=$1 name
    shift
    for name in "${names[@]}"; do
        printf '%s\n' "$@" | grep -qxF -- "$name" || { echo "$(basename "$0"): no $word '$name'; there are $*" >&2; exit 2; }
    done
}
# wanted NAME: $names has it, or is empty.
wanted() { [ ${#names[@]} -eq 0 ] || printf '%s\n' "${names[@]}" | grep -qxF -- "$1"; }

# ---- curves: $program, $folder; $work, which ends with the script ----

open_work() {
    wants_tools "$program" jq
    mkdir -p "$folder"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    columns=
}

# tell_machine THREADS COMMAND: the first line of a CSV file.
tell_machine() { echo "# $("$program" info --json | jq -r .processor), $1 threads; commit $(describe_commit); $2"; }

# add_column NAME STEPS LOSSES FILE: what jq finds in the file; the steps are those of the first column.
add_column() {
    [ -n "$columns" ] || { columns=step && jq -r "$2" "$4" >"$work/table"; }
    jq -r "$3" "$4" >"$work/column"
    paste -d, "$work/table" "$work/column" >"$work/next"
    mv "$work/next" "$work/table"
    columns=$columns,$1
}
write_columns() { { echo "$columns"; cat "$work/table"; } >"$1"; }

# train_way METHOD:BACKWARD ARGUMENT...: a column of the losses of 'deeppcr train'; what it tells in $work/told.
train_way() {
    "$program" train "${@:2}" --method "${1%:*}" --backward "${1#*:}" --log "$work/log" --test-every 0 --json >"$work/told"
    add_column "${1%:*}+${1#*:}" 'select(.event == "step") | .step' 'select(.event == "step") | .loss' "$work/log"
}

# plot_columns NAME YLABEL WIDTH: NAME.png from NAME.csv, a line a column, of that width (an expression in c), if gnuplot is there.
plot_columns() {
    command -v gnuplot >/dev/null || return 0
    gnuplot <<PLOT
set terminal pngcairo size 900,500
set output "$1.png"
set datafile separator ","
set key autotitle columnhead
set xlabel "update"
set ylabel "$2"
plot for [c=2:$(head -1 "$1.csv" | tr ',' '\n' | wc -l)] "$1.csv" using 1:c with lines linewidth ($3)
PLOT
}
