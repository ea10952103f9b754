// SPDX-License-Identifier: MIT
// Sanitizers slow the large cross products of cases tenfold, and what they look for does not hang on every number:
// under them an eighth of the cases runs (under ThreadSanitizer, to which numbers are nothing, one of 24), scattered so
// that no axis is missed. Where DEEPPCR_ISA asks for the kernels of a lower level, a third runs, of each level another;
// else all do, but for those of `sampled_quarter`.
#ifndef TESTS_SAMPLED_H
#define TESTS_SAMPLED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// One of how many cases runs.
#if defined(__SANITIZE_THREAD__)
#define TESTS_ONE_OF 24
#elif defined(__SANITIZE_ADDRESS__)
#define TESTS_ONE_OF 8
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TESTS_ONE_OF 24
#elif __has_feature(address_sanitizer)
#define TESTS_ONE_OF 8
#endif
#endif
#ifndef TESTS_ONE_OF
#define TESTS_ONE_OF 1
#endif
#define TESTS_SANITIZED (TESTS_ONE_OF > 1)
#define TESTS_FOR_RACES (TESTS_ONE_OF == 24)  // under ThreadSanitizer

// Does case number `run` take part?
static inline bool sampled(int64_t run) {
    const uint64_t mixed = (uint64_t)run * UINT64_C(0x9E3779B97F4A7C15);
    const char *level = TESTS_SANITIZED ? NULL : getenv("DEEPPCR_ISA");
    if (level && !strcmp(level, "portable")) return (mixed >> 40) % 3 == 1;
    if (level && !strcmp(level, "avx2")) return (mixed >> 40) % 3 == 2;
    return (mixed >> 40) % TESTS_ONE_OF == 0;
}

// Does it, where a quarter of the cases is what a plain run has time for? All: DEEPPCR_TEST_ONE_OF=1 in the
// environment.
static inline bool sampled_quarter(int64_t run) {
    const char *one_of = getenv("DEEPPCR_TEST_ONE_OF");
    return (one_of && !strcmp(one_of, "1")) || ((uint64_t)run * UINT64_C(0x9E3779B97F4A7C15) >> 40) % 4 == 0;
}

// Does it, where AddressSanitizer looks at every case?
static inline bool sampled_for_races(int64_t run) { return !TESTS_FOR_RACES || sampled(run); }

#endif
