# SPDX-License-Identifier: MIT
# What tests of the program share, sourced by them: `complain WORDS...`, which fails the test, and `refused`. They want
# $program, $folder, and $always, an array of the arguments that every refused call begins with.
failures=0
failed=0
cases=0
always=()
complain() {
    echo "$(basename "$0" .sh): $*"
    failures=$((failures + 1))
    failed=1
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
