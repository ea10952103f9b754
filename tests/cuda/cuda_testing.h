// SPDX-License-Identifier: MIT
// What the tests of the device's kernels on the CPU share: cmocka in C++, orders of lanes and blocks, random numbers,
// and programs that have to stop.
#ifndef TESTS_CUDA_TESTING_H
#define TESTS_CUDA_TESTING_H

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

extern "C" {
#include <cmocka.h>
}
#include <sys/wait.h>
#include <unistd.h>

#include "kern/cuda/simt.h"

namespace {

inline uint64_t random_bits() {  // splitmix64
    static uint64_t at = 0x9e3779b97f4a7c15u;
    uint64_t x = at += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// What a device is for the next launches.
struct device {
    int blocks_before = simt::host::config.cooperative_blocks;
    int64_t bytes_before = simt::host::config.shared_bytes;
    explicit device(int blocks, int64_t bytes = 227 << 10) {
        simt::host::config.cooperative_blocks = blocks;
        simt::host::config.shared_bytes = bytes;
    }
    ~device() {
        simt::host::config.cooperative_blocks = blocks_before;
        simt::host::config.shared_bytes = bytes_before;
    }
};

// The order of the next launches, and how many blocks are resident.
inline void order(uint64_t seed, int resident) {
    simt::host::config.seed = seed;
    simt::host::config.resident = resident;
}

// Does `body`, in a process of its own, abort with a message that holds the text?
inline bool stops(const std::function<void()> &body, const char *text) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        signal(SIGABRT, SIG_DFL);
        body();
        _exit(0);
    }
    close(ends[1]);
    char message[4096];
    size_t length = 0;
    for (ssize_t n = 0; length + 1 < sizeof message; length += (size_t)n)
        if ((n = read(ends[0], message + length, sizeof message - 1 - length)) <= 0) break;
    message[length] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    if (aborted && !std::strstr(message, text)) std::fprintf(stderr, "another message: %s", message);
    return aborted && std::strstr(message, text);
}

inline void assert_stops(const std::function<void()> &body, const char *text) {
    if (!stops(body, text)) fail_msg("it went on: %s", text);
}

}  // namespace

#endif
