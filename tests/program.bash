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

# make_faults: leaves $folder/faults.so, to be preloaded, by which one call fails: of malloc and realloc the one numbered
# FAIL_ALLOCATION, of aligned_alloc for FAIL_BYTES or more the one numbered FAIL_LARGE, of read and pread from the file
# $FAIL_FILE the one numbered FAIL_READ. False where that cannot be done: no compiler, or a sanitizer's allocator.
make_faults() {
    command -v cc >/dev/null && ! grep -qE '__[at]san_init' "$program" && cc -shared -fPIC -x c -o "$folder/faults.so" - 2>/dev/null <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
static int is_turn(const char *name, long *calls) {
    const char *at = getenv(name);
    return at && ++*calls == atol(at);
}
static int has_fault(int fd) {
    static long reads;
    struct stat given, read;
    const char *path = getenv("FAIL_FILE");
    return path && stat(path, &given) == 0 && fstat(fd, &read) == 0 && given.st_ino == read.st_ino && is_turn("FAIL_READ", &reads);
}
static long allocations;
void *malloc(size_t bytes) {
    static void *(*real)(size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "malloc");
    return is_turn("FAIL_ALLOCATION", &allocations) ? errno = ENOMEM, NULL : real(bytes);
}
void *realloc(void *old, size_t bytes) {
    static void *(*real)(void *, size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "realloc");
    return is_turn("FAIL_ALLOCATION", &allocations) ? errno = ENOMEM, NULL : real(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    static long calls;
    static void *(*real)(size_t, size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "aligned_alloc");
    const char *least = getenv("FAIL_BYTES");
    return least && bytes >= strtoull(least, NULL, 10) && is_turn("FAIL_LARGE", &calls) ? errno = ENOMEM, NULL : real(alignment, bytes);
}
ssize_t read(int fd, void *to, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "read");
    return has_fault(fd) ? errno = EIO, -1 : real(fd, to, count);
}
ssize_t pread(int fd, void *to, size_t count, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pread");
    return has_fault(fd) ? errno = EIO, -1 : real(fd, to, count, at);
}
ssize_t pread64(int fd, void *to, size_t count, off_t at) __attribute__((alias("pread")));
END
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
