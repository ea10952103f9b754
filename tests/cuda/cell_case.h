// SPDX-License-Identifier: MIT
// A narrow cell's arrays and its runs by the launchers, over the simulator.
#ifndef TESTS_CUDA_CELL_CASE_H
#define TESTS_CUDA_CELL_CASE_H

#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/launch.h"

namespace {

inline double random_signed() { return (double)(random_bits() >> 11) * 0x1p-52 - 1.0; }

template <class T>
struct cell_case {
    int64_t width, length, batch;
    bool diagonal, own;
    int activation = DPCRI_CUDA_TANH;
    double scale = 0;
    std::vector<T> weight, x, z0, z;
    std::vector<dpcr_device_outcome> outcome;

    cell_case(int64_t w, int64_t l, int64_t rows, bool elementwise, bool each, double size, double input)
        : width(w), length(l), batch(rows), diagonal(elementwise), own(each) {
        weight.resize((size_t)((own ? l : 1) * (diagonal ? w : w * w)));
        x.resize((size_t)(l * rows * w));
        z0.resize((size_t)(rows * w));
        z.resize(x.size());
        outcome.resize((size_t)rows);
        for (T &v : weight) v = (T)(size * random_signed());
        for (T &v : x) v = (T)(input * random_signed());
        for (T &v : z0) v = (T)random_signed();
    }

    dpcri_device_cell arguments(dpcri_device_way way) {
        std::memset(static_cast<void *>(z.data()), 0xff, z.size() * sizeof(T));
        dpcri_device_cell c = {};
        c.dtype = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;
        c.activation = activation;
        c.diagonal = diagonal;
        c.residual = scale != 0;
        c.scale = scale;
        c.length = length;
        c.rows = batch;
        c.w = width;
        c.weight = weight.data();
        c.weight_step = own ? (diagonal ? width : width * width) : 0;
        c.x = x.data();
        c.x_step = c.z_step = batch * width;
        c.x_row = c.z_row = c.z0_row = width;
        c.z0 = z0.data();
        c.z = z.data();
        c.way = way;
        if (way == DPCRI_DEVICE_NEWTON) c.atol = c.rtol = sizeof(T) == 4 ? 5e-6 : 5e-11;
        c.outcome = outcome.data();
        return c;
    }

    void run(const dpcri_device_cell &c, uint64_t seed) {
        std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(c), 0xff);
        order(seed, 2);
        const int status = dpcri_cuda_cell_run(c, workspace.data(), workspace.size(), nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
    }

    std::vector<T> loop() {
        run(arguments(DPCRI_DEVICE_LOOP), 1);
        return z;
    }
};

// Whether the library's kernels have fma, as those here do.
inline bool has_fma() {
#if defined(__x86_64__)
    const char *level = getenv("DEEPPCR_ISA");
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           !(level && !std::strcmp(level, "portable"));
#elif defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

template <class T>
void assert_same(const std::vector<T> &a, const std::vector<T> &b, const char *what) {
    for (size_t i = 0; i < a.size(); i++)
        if (!(a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])))
            fail_msg("%s: number %d: %.17g %.17g", what, (int)i, (double)a[i], (double)b[i]);
}

}  // namespace

#endif
