// SPDX-License-Identifier: MIT
// A diffusion sampler's loop on a device: the layers of its denoiser, and its steps.
//
//   dense    y = act(x W^T + b + class), or x + act(..): tiles of 16 rows x 8 outputs, or dense_tiles, of many rows
//            product.h's, W [out][in] read once a tile of rows, slice by slice; 2 in out flops a row
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
#include "kern/cuda/gates_chunks.h"
#include "kern/cuda/product.h"

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

typedef dpcri_device_dense layer;

// Where row `row` of x lies; null: there is none. Between layers every row has its place, whatever it holds.
SIMT const float *x_of(const layer &a, int64_t row) {
    if (row >= a.rows) return nullptr;
    if (!a.path) return a.x + row * a.x_row;
    const place p = place_of(a.window, row);
    return p.there ? a.x + (p.step * a.window.batch + p.sequence) * a.x_row : nullptr;
}

// What the sums of a row begin with.
struct starts {
    const float *bias, *more;  // NULL: none
    SIMT float at(int64_t u) const { return !bias ? 0 : more ? bias[u] + more[u] : bias[u]; }
};
SIMT starts starts_of(const layer &a, int64_t row) {
    if (row >= a.rows) return {nullptr, nullptr};
    const place p = a.window.count ? place_of(a.window, row) : place{0, row, true};
    if (!p.there) return {nullptr, nullptr};
    return {a.bias + p.step * a.bias_row, a.more ? a.more + (a.index ? a.index[p.sequence] : 0) * a.more_row : nullptr};
}

// Few rows: tiles of 16 rows x 8 outputs, a thread a sum, whose rows of x and W go on chip 128 numbers a time; what is
// next is on its way while sums grow.
struct dense {
    typedef layer arguments;
    static constexpr int most = 128, warps = most / simt::warp_size, rows = 16, outputs = most / rows;
    static constexpr int deep = 4 * simt::warp_size, stride = deep + 4;  // of a line; other banks for the next one
    static constexpr int slots = 3, slot = (rows + outputs) * stride;
    static constexpr int mine = (rows + outputs) / warps, of_x = rows / warps;  // lines that a warp fetches, first x's
    static constexpr int64_t shared_bytes() { return (int64_t)slots * slot * (int64_t)sizeof(float); }

    struct lines {
        const float *from[mine];  // NULL: none
        bool quads_x, quads_weight;
    };
    SIMT static lines lines_of(simt::lane &me, const arguments &a, int64_t first, int64_t u0) {
        lines l = {};
        l.quads_x = product::in_quads(a.x, a.x_row), l.quads_weight = product::in_quads(a.weight, a.in);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int line = me.warp() + i * warps;
            const int64_t u = u0 + line - rows;
            if (i < of_x)
                l.from[i] = x_of(a, first + line);
            else
                l.from[i] = u < a.out ? a.weight + u * a.in : nullptr;
        }
        return l;
    }
    // Numbers k .. of all lines, a quad a lane.
    SIMT static void ask(simt::lane &me, const arguments &a, const lines &l, const simt::shared<float> &s, int base,
                         int64_t k) {
        const int64_t c = k + 4 * me.in_warp();
        if (c >= a.in) return;
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int to = base + (me.warp() + i * warps) * stride + 4 * me.in_warp();
            if (!l.from[i]) continue;
            if (c + 4 <= a.in && (i < of_x ? l.quads_x : l.quads_weight)) {
                me.copy_async_wide(s, to, l.from[i] + c);
            } else {
                SIMT_UNROLL for (int j = 0; j < 4; j++) {
                    if (c + j < a.in)
                        me.copy_async(s, to + j, l.from[i] + c + j);
                    else
                        s.set(to + j, 0);
                }
            }
        }
    }
    SIMT static float add(const simt::shared<float> &s, int x, int weight, float sum) {
        const simt::pack<float, 4> of_x_now = s.get<4>(x), of_weight = s.get<4>(weight);
        SIMT_UNROLL for (int j = 0; j < 4; j++) sum = simt::fma(of_weight.at[j], of_x_now.at[j], sum);
        return sum;
    }
    SIMT static float add_all(const simt::shared<float> &s, int x, int weight, int64_t numbers, float sum) {
        if (numbers >= deep) {
            SIMT_UNROLL for (int q = 0; q < deep; q += 4) sum = add(s, x + q, weight + q, sum);
        } else {
            SIMT_ROLLED for (int q = 0; q < numbers; q += 4) sum = add(s, x + q, weight + q, sum);
        }
        return sum;
    }
    SIMT static void tile(simt::lane &me, const arguments &a, int64_t first, int64_t u0) {
        const simt::shared<float> s = me.template array<float>(0, slots * slot);
        const int line = me.thread() % rows, output = me.thread() / rows;
        const int64_t row = first + line, u = u0 + output, slices = gates::tiles(a.in, deep);
        const lines l = lines_of(me, a, first, u0);
        for (int n = 0; n < slots; n++) {
            ask(me, a, l, s, n * slot, (int64_t)n * deep);
            me.copy_close();
        }
        const float *const x = u < a.out ? x_of(a, row) : nullptr;
        float sum = x ? starts_of(a, row).at(u) : 0;
        const float before = x && a.residual ? x[u] : 0;
        int base = 0;
        SIMT_ROLLED for (int64_t n = 0; n < slices; n++) {
            me.copy_wait_but(slots - 1);
            me.barrier();
            if (x) sum = add_all(s, base + line * stride, base + (rows + output) * stride, a.in - n * deep, sum);
            me.barrier();
            ask(me, a, l, s, base, (n + slots) * deep);
            me.copy_close();
            base = base + slot < slots * slot ? base + slot : 0;
        }
        if (!x) return;
        const float y = cells::value(a.activation, sum);
        a.y[row * a.y_row + u] = a.residual ? before + y : y;
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t wide = gates::tiles(a.out, outputs), tall = gates::tiles(a.rows, rows);
        for (int64_t n = me.block(); n < wide * tall; n += me.blocks())
            tile(me, a, n / wide * rows, n % wide * outputs);
    }
};

// Many rows: tiles of product.h.
struct dense_tiles {
    static constexpr int64_t least_rows = 256;
    struct task {
        layer a;
        bool quads_x, quads_weight;
    };
    struct rows_of : product::operand<float, true> {
        const layer &a;
        SIMT rows_of(const layer &of, bool in_quads) : product::operand<float, true>{of.rows, of.in, in_quads}, a(of) {}
        SIMT static int64_t start(int64_t n) { return n; }
        SIMT const float *at(int64_t n) const { return x_of(a, n); }
    };
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &t) {
            const layer &a = t.a;
            const int64_t wide = gates::tiles(a.out, S::columns), count = wide * gates::tiles(a.rows, S::rows);
            const rows_of x(a, t.quads_x);
            const product::matrix<float, true> weights(a.weight, a.in, {a.out, a.in, t.quads_weight});
            for (int64_t tile = me.block(); tile < count; tile += me.blocks()) {
                const int64_t first = tile / wide * S::rows, out = tile % wide * S::columns;
                float sum[S::M][S::N];
                SIMT_UNROLL for (int i = 0; i < S::M; i++) {
                    const starts start = starts_of(a, first + S::row(me, i));
                    SIMT_UNROLL for (int j = 0; j < S::N; j++) {
                        const int64_t u = out + S::column(me, j);
                        sum[i][j] = u < a.out ? start.at(u) : 0;
                    }
                }
                product::add<float, S>(me, x, first, weights, out, 0, a.in, sum);
                product::each_row<S>(me, sum, [&](int i, const float(&numbers)[S::N]) {
                    const int64_t row = first + i;
                    const float *const before = x_of(a, row);
                    SIMT_UNROLL for (int j = 0; j < S::N && before; j++) {
                        const int64_t u = out + S::column(me, j);
                        if (u >= a.out) continue;
                        const float y = cells::value(a.activation, numbers[j]);
                        a.y[row * a.y_row + u] = a.residual ? before[u] + y : y;
                    }
                });
            }
        }
    };
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
