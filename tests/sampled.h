// SPDX-License-Identifier: MIT
// Sanitizers slow the large cross products of cases tenfold, and what they look for does not hang on every number:
// under them a third of the cases runs, scattered so that no axis is missed; without them all do.
#ifndef TESTS_SAMPLED_H
#define TESTS_SAMPLED_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESTS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESTS_SANITIZED 1
#endif
#endif
#ifndef TESTS_SANITIZED
#define TESTS_SANITIZED 0
#endif

// Does case number `run` take part?
static inline bool sampled(int64_t run) {
    const uint64_t mixed = (uint64_t)run * UINT64_C(0x9E3779B97F4A7C15);
    return !TESTS_SANITIZED || (mixed >> 40) % 3 == 0;
}

#endif
