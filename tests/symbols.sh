#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# symbols.sh BUILD_DIR: exported names start with dpcr_, the static library's with dpcr_ or dpcri_; every function of the
# public headers is there; no global constructors; nothing that ends the process, prints, or sets process-wide state.
set -u
build=${1:?usage: symbols.sh BUILD_DIR}
shared=$build/libdeeppcr.so
static=$build/libdeeppcr.a
failed=0
for library in "$shared" "$static"; do
    [ -f "$library" ] || { echo "symbols: no $library"; exit 1; }
done
if grep -qsE '^DEEPPCR_SANITIZE:STRING=.+' "$build/CMakeCache.txt"; then
    echo "symbols: a sanitizer's build has names of its own"
    exit 77
fi
if ! grep -qsE '^CMAKE_BUILD_TYPE:STRING=(Release)?$' "$build/CMakeCache.txt"; then
    echo "symbols: not a release build, assertions may abort"
    exit 77
fi
complain() {  # text, list
    [ -z "$2" ] && return
    printf 'symbols: %s:\n%s\n' "$1" "$2"
    failed=1
}

exported=$(nm -D --defined-only "$shared" | awk '{print $NF}' | sed 's/@.*//' | sort -u)
complain "exported without dpcr_" "$(printf '%s\n' "$exported" | grep -vE '^dpcr_[a-z0-9_]+$')"
complain "external in the static library without dpcr_ or dpcri_" \
    "$(nm -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 {print $3}' | grep -vE '^dpcri?_[a-z0-9_]+$' | sort -u)"
complain "constructors or destructors at load time" \
    "$(readelf -SW "$static" | awk '/^File:/ {file = $2} /\.(init_array|fini_array|ctors|dtors)/ {print file}' | sort -u)"

# What a library must not call; assert is compiled out of a release.
forbidden='exit|_exit|_Exit|quick_exit|abort|__assert_fail|atexit|at_quick_exit|raise|kill'
forbidden="$forbidden|printf|vprintf|puts|putchar|perror|psignal|__printf_chk|__vprintf_chk|stdout|stderr|err|errx|warn|warnx"
forbidden="$forbidden|signal|sigaction|setlocale|srand|rand|srandom|random|chdir|umask|setenv|putenv|unsetenv|strtok|fesetenv"
undefined=$(nm -D --undefined-only "$shared" | awk '{print $NF}' | sed 's/@.*//' | sort -u)
complain "calls that a library must not make" "$(printf '%s\n' "$undefined" | grep -xE "$forbidden")"

# A declared function that nobody wrote is found here rather than by a user's linker.
declared=$(cat include/deeppcr/*.h | grep -oE '^DPCR_API [^(]*\(' | grep -oE 'dpcr_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
complain "declared in a public header, not exported" "$(comm -23 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))"
complain "exported, not declared in a public header" "$(comm -13 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))"

soname=$(readelf -dW "$shared" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libdeeppcr.so.0 ] || complain "SONAME" "got '$soname', wanted libdeeppcr.so.0"
[ $failed -ne 0 ] || echo "symbols: $(printf '%s\n' "$exported" | wc -l) exported, all dpcr_ and declared"
exit $failed
