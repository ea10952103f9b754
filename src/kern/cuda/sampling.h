// SPDX-License-Identifier: MIT
// A diffusion sampler's loop on a device: the layers of its denoiser, and its steps. Not yet run on a device.
//
//   dense    y = act(x W^T + b + class), or x + act(..): tiles of 16 rows x 32 outputs, W [out][in] read once a tile of
//            rows, slice by slice; 2 in out flops a row
//   denoise  a step's arithmetic on the rows and what the network says of them, a thread a number, in double
//
// Sums run in kern/wide.h's order, activations are the host's and steps are sample/rows.inc's operation by operation,
// so the bits are those of a CPU that has fma. A picture's chain is launches one after another, one a layer and one or
// two a step: few rows leave most of a device idle.
#ifndef DPCRI_CUDA_SAMPLING_H
#define DPCRI_CUDA_SAMPLING_H

#include "kern/cuda/activations.h"
#include "kern/cuda/gates.h"

namespace sampling {

constexpr int threads = 256;

struct dense {
    typedef dpcri_device_dense arguments;
    static constexpr int most = gates::threads, Q = 1;
    struct rows_of {
        const float *from;
        int64_t stride, first, end;
        SIMT const float *at(int i) const { return first + i < end ? from + (first + i) * stride : nullptr; }
    };
    SIMT static float start_of(const arguments &a, int64_t row, int64_t u) {
        if (row >= a.rows || u >= a.out) return 0;
        return a.more ? a.bias[u] + a.more[(a.index ? a.index[row] : 0) * a.more_row + u] : a.bias[u];
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t wide = gates::tiles(a.out, gates::units_of_tile),
                      tall = gates::tiles(a.rows, gates::items_of_tile);
        for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
            const int64_t first = tile / wide * gates::items_of_tile, u0 = tile % wide * gates::units_of_tile;
            const int64_t u = u0 + me.in_warp();
            float sum[gates::mine][Q];
            SIMT_UNROLL for (int i = 0; i < gates::mine; i++) sum[i][0] =
                start_of(a, first + me.warp() * gates::mine + i, u);
            gates::multiply<float, Q>(me, rows_of{a.x, a.x_row, first, a.rows}, a.weight + u0 * a.in, a.in,
                                      gates::units_of_tile, a.out - u0, gates::units_of_tile, sum);
            SIMT_UNROLL for (int i = 0; i < gates::mine; i++) {
                const int64_t row = first + me.warp() * gates::mine + i;
                if (row >= a.rows || u >= a.out) continue;
                const float y = cells::value(a.activation, sum[i][0]);
                a.y[row * a.y_row + u] = a.residual ? a.x[row * a.x_row + u] + y : y;
            }
        }
    }
};

struct denoise {
    typedef dpcri_device_denoise arguments;
    static constexpr int most = threads;
    // Comparisons, not fmin: what is not a number stays so.
    SIMT static double cut(double x0, double clip) {
        return clip > 0 && x0 > clip ? clip : clip > 0 && x0 < -clip ? -clip : x0;
    }
    // What the network says, guided away from what it says without a class.
    SIMT static double said(const float *m, const float *plain, float guidance, int64_t n) {
        return plain ? plain[n] + guidance * (m[n] - plain[n]) : m[n];
    }
    SIMT static float first(const arguments &a, int64_t row, int64_t i, int64_t n) {
        const double x = a.x[row * a.x_row + i], m = said(a.m, a.plain, a.guidance, n);
        const double x0 = cut(a.x0_x * x + a.x0_m * m, a.clip), e = a.e_x * x + a.e_m * m;
        double next = a.by_x * x + a.by_x0 * x0 + a.by_e * e;
        if (a.former) next += a.by_former * a.former[row * a.former_row + i];
        if (a.noise) next += a.by_noise * a.noise[n];
        if (a.kept) a.kept[row * a.kept_row + i] = (float)x0;
        return (float)next;
    }
    SIMT static float second(const arguments &a, int64_t row, int64_t i, int64_t n) {
        const double x = a.x[row * a.x_row + i], there = a.to[row * a.to_row + i];
        const double x0 = cut(a.x0_x * x + a.x0_m * said(a.m, a.plain, a.guidance, n), a.clip);
        const double x01 = cut(a.then_x0_x * there + a.then_x0_m * said(a.m1, a.plain1, a.guidance, n), a.clip);
        return (float)(a.then_x * x + a.then_x0 * x0 + a.then_x1 * there + a.then_x01 * x01);
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        for (int64_t n = me.block() * threads + me.thread(); n < a.rows * a.width; n += me.blocks() * threads) {
            const int64_t row = n / a.width, i = n % a.width;
            float next = a.m1 ? second(a, row, i, n) : first(a, row, i, n);
            if (a.mask && a.mask[i]) next = (float)(a.alpha * a.known[n] + a.sigma * a.start[n]);
            a.to[row * a.to_row + i] = next;
        }
    }
};

}  // namespace sampling

#endif
