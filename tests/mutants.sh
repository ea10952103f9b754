#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Faults put into the library on purpose must be seen: `check` exits 1 with each of them, the tests fail, and with none
# of them both are content.
#   1 pcr drops its last level     2 compose swaps its operands     3 the backward pass uses a stale Jacobian
#   4 bppsa swaps its operands     5 bppsa drops its last level
set -u
build=$1
failures=0
expect() {  # wanted status, what, command...
    local wanted=$1 what=$2 status
    shift 2
    "$@" >/dev/null 2>&1
    status=$?
    if [ $status -eq "$wanted" ]; then
        echo "ok: $what"
    else
        echo "FAILED: $what: exit status $status, wanted $wanted" >&2
        failures=1
    fi
}
failing() {  # mutant, tests: exit status 1 where some of them fail, as they should; 0 where none do, else what it was
    local status
    DEEPPCR_MUTANT=$1 "$2"
    status=$?  # the number of tests that failed
    [ $status -eq 0 ] || [ $status -ge 126 ] || return 1
    return $status
}
check() {  # mutant, options of check
    local mutant=$1
    shift
    DEEPPCR_MUTANT=$mutant "$build/deeppcr_mutants" check "$@" --json
}
for network in resnet mlp; do
    for scheme in pcr blelloch chunked; do
        options="$network --layers 200 --width 6 --batch 3 --method newton --scheme $scheme"
        expect 0 "$network, $scheme, no fault" check 0 $options
        # chunked forms its products step by step and composes no pairs
        [ $scheme = chunked ] || expect 1 "$network, $scheme, swapped operands" check 2 $options
        expect 1 "$network, $scheme, stale Jacobian" check 3 $options
    done
done
# Activations that contract hide a long product that is missing, so the dropped level is looked for where they do not.
expect 1 "resnet, pcr, dropped level" check 1 resnet --layers 200 --width 6 --batch 3 --method newton --scheme pcr
expect 0 "the tests of chains, no fault" env DEEPPCR_MUTANT=0 "$build/test_chain_mutants"
for mutant in 1 2; do
    expect 1 "the tests of chains, fault $mutant" failing $mutant "$build/test_chain_mutants"
done
expect 1 "the tests of solves, fault 3" failing 3 "$build/test_solve_mutants"
expect 0 "the tests of bppsa, no fault" env DEEPPCR_MUTANT=0 "$build/test_bppsa_mutants"
for mutant in 4 5; do
    expect 1 "the tests of bppsa, fault $mutant" failing $mutant "$build/test_bppsa_mutants"
done
exit $failures
