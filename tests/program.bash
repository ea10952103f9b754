# SPDX-License-Identifier: MIT
# What tests of the program share, sourced by them with BUILD_DIR as their first argument. It leaves $build, $program, $folder,
# which ends with the test, `complain WORDS...`, which fails the test, and `refused`; Python finds program.py. $always is an array of
# the arguments that every refused call begins with.
build=$(cd "${1:?usage: $(basename "$0") BUILD_DIR}" && pwd) || exit 1
program=$build/deeppcr
[ -x "$program" ] || { echo "$(basename "$0" .sh): no program at $program"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
PYTHONPATH=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
failures=0
failed=0
cases=0
always=()
complain() {
    # shellcheck disable=SC2034 # the tests end with it
    failed=1
    echo "$(basename "$0" .sh): $*"
    failures=$((failures + 1))
}

# beside FUNCTION ARGUMENT...: that function beside what follows, with a $folder of its own; `joined` waits for all of them.
jobs_beside=()
beside() {
    (
        failed=0
        folder=$(mktemp -d -p "$folder") || exit 1
        "$@"
        exit $failed
    ) &
    jobs_beside+=($!)
}
joined() {
    local job
    for job in "${jobs_beside[@]}"; do
        # shellcheck disable=SC2034 # the tests end with it
        wait "$job" || failed=1
    done
    jobs_beside=()
}

# find_numpy: leaves $python, which has NumPy, or skips the test.
find_numpy() {
    for python in python3 /usr/bin/python3; do
        ! "$python" -c 'import numpy' 2>/dev/null || return 0
    done
    echo "$(basename "$0" .sh): skipped: no NumPy"
    exit 77
}

# refused STATUS TEXT ARGUMENT...: that exit status, nothing on stdout, one line on stderr that begins with the program's
# name and holds TEXT.
refused() {
    local wanted=$1 text=$2 status
    shift 2
    set -- "${always[@]}" "$@"
    cases=$((cases + 1))
    "$program" "$@" >"$folder/stdout" 2>"$folder/stderr" </dev/null
    status=$?
    [ $status -eq "$wanted" ] || complain "'$*': exit $status, wanted $wanted: $(head -c 300 "$folder/stderr")"
    [ ! -s "$folder/stdout" ] || complain "'$*': text on stdout: $(head -c 200 "$folder/stdout")"
    [ "$(wc -l <"$folder/stderr")" -eq 1 ] || complain "'$*': not one line on stderr: $(head -c 300 "$folder/stderr")"
    grep -qF -- "$text" "$folder/stderr" || complain "'$*': should say '$text', said: $(head -c 300 "$folder/stderr")"
    grep -q '^deeppcr' "$folder/stderr" || complain "'$*': the line does not begin with the program's name"
}
