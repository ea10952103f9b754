// SPDX-License-Identifier: MIT
// A diffusion sampler's loop on a device: the layers of its denoiser, and its steps. Not yet run on a device.
//
//   dense    y = act(x W^T + b + class), or x + act(..): tiles of 16 rows x 32 outputs, W [out][in] read once a tile of
//            rows, slice by slice; 2 in out flops a row
//   denoise  a step's arithmetic on the rows and what the network says of them, a thread a number, in double
//   move     states from one place to another, a thread a number
//
// Rows are a batch's at one step, or a window's of many steps (dpcri_device_window), each with its own step's numbers.
// Sums run in kern/wide.h's order, activations are the host's and steps are sample/rows.inc's operation by operation,
// so the bits are those of a CPU that has fma. A picture's chain is launches one after another, one a layer and one or
// two a step: few rows leave most of a device idle.
#ifndef DPCRI_CUDA_SAMPLING_H
#define DPCRI_CUDA_SAMPLING_H

#include "kern/cuda/activations.h"
#include "kern/cuda/gates.h"

namespace sampling {

constexpr int threads = 256;

// The step and the sequence that a row is of.
struct place {
    int64_t step, sequence;
    bool there;
};

SIMT place place_of(const dpcri_device_window &w, int64_t row) {
    const int64_t sequence = w.who[row % w.count], front = w.places[sequence].front, at = w.first + row / w.count;
    return {front + at, sequence, at < w.most && front + at < w.length};
}

struct dense {
    typedef dpcri_device_dense arguments;
    static constexpr int most = gates::threads, Q = 1;
    // Where row `row` of x lies; null: there is none. Between layers every row has its place, whatever it holds.
    SIMT static const float *x_of(const arguments &a, int64_t row) {
        if (row >= a.rows) return nullptr;
        if (!a.path) return a.x + row * a.x_row;
        const place p = place_of(a.window, row);
        return p.there ? a.x + (p.step * a.window.batch + p.sequence) * a.x_row : nullptr;
    }
    struct rows_of {
        const arguments &a;
        int64_t first;
        SIMT const float *at(int i) const { return x_of(a, first + i); }
    };
    SIMT static float start_of(const arguments &a, int64_t row, int64_t u) {
        if (row >= a.rows || u >= a.out) return 0;
        const place p = a.window.count ? place_of(a.window, row) : place{0, row, true};
        if (!p.there) return 0;
        const float b = a.bias[p.step * a.bias_row + u];
        return a.more ? b + a.more[(a.index ? a.index[p.sequence] : 0) * a.more_row + u] : b;
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
            gates::multiply<float, Q>(me, rows_of{a, first}, a.weight + u0 * a.in, a.in, gates::units_of_tile,
                                      a.out - u0, gates::units_of_tile, sum);
            SIMT_UNROLL for (int i = 0; i < gates::mine; i++) {
                const int64_t row = first + me.warp() * gates::mine + i;
                const float *x = x_of(a, row);
                if (!x || u >= a.out) continue;
                const float y = cells::value(a.activation, sum[i][0]);
                a.y[row * a.y_row + u] = a.residual ? x[u] + y : y;
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
    // `at` is the row's place among the path's rows, `row` that among what the network said.
    SIMT static float first(const arguments &a, const dpcri_device_factors &by, int64_t at, int64_t row, int64_t i) {
        const int64_t n = row * a.width + i;
        const double x = a.x[at * a.x_row + i], m = said(a.m, a.plain, a.guidance, n);
        const double x0 = cut(by.x0_x * x + by.x0_m * m, a.clip), e = by.e_x * x + by.e_m * m;
        double next = by.by_x * x + by.by_x0 * x0 + by.by_e * e;
        if (a.former) next += by.by_former * a.former[at * a.former_row + i];
        if (a.noise) next += by.by_noise * a.noise[at * a.width + i];
        if (a.kept) a.kept[row * a.kept_row + i] = (float)x0;
        return (float)next;
    }
    SIMT static float second(const arguments &a, const dpcri_device_factors &by, int64_t at, int64_t row, int64_t i) {
        const int64_t n = row * a.width + i;
        const double x = a.x[at * a.x_row + i], there = a.to[row * a.to_row + i];
        const double x0 = cut(by.x0_x * x + by.x0_m * said(a.m, a.plain, a.guidance, n), a.clip);
        const double x01 = cut(by.then_x0_x * there + by.then_x0_m * said(a.m1, a.plain1, a.guidance, n), a.clip);
        return (float)(by.then_x * x + by.then_x0 * x0 + by.then_x1 * there + by.then_x01 * x01);
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        for (int64_t n = me.block() * threads + me.thread(); n < a.rows * a.width; n += me.blocks() * threads) {
            const int64_t row = n / a.width, i = n % a.width;
            const place p = a.window.count ? place_of(a.window, row) : place{0, row, true};
            if (!p.there) continue;
            const dpcri_device_factors &by = a.window.count ? a.steps[p.step] : a.by;
            if (a.m1 && !by.twice) continue;
            const int64_t at = p.step * a.window.batch + p.sequence;
            float next = a.m1 ? second(a, by, at, row, i) : first(a, by, at, row, i);
            if (a.mask && a.mask[i] && (a.m1 || !by.twice)) {
                const int64_t kept = p.sequence * a.width + i;
                next = (float)(by.alpha * a.known[kept] + by.sigma * a.start[kept]);
            }
            a.to[row * a.to_row + i] = next;
        }
    }
};

struct move {
    typedef dpcri_device_move arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t count = a.steps * a.rows * a.width;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            const int64_t i = n % a.width, row = n / a.width % a.rows, l = n / a.width / a.rows;
            a.to[l * a.to_step + row * a.to_row + i] = a.from ? a.from[l * a.from_step + row * a.from_row + i] : 0;
        }
    }
};

}  // namespace sampling

#endif
