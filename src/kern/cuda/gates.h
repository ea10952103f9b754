// SPDX-License-Identifier: MIT
// A layer and direction of a recurrent network (RNN, GRU, LSTM of any width) on a device. Not yet run on one.
//
//   inputs   g_m = W_ih x_m + b_ih of all steps, one product, a plain launch
//   columns  overlapped chunks of h, c <- cell(g_m, W_hh h + b_hh, h, c), one cooperative launch
//
// An item is a chunk of a sequence. All items go side by side, a step at a time: their states are the columns of one
// product with W_hh, in tiles of 16 items x 32 units with all gates of a unit in one thread, so that the gates follow
// at once; then all blocks meet. Each item runs `warm_up` steps from zero (or from h0, where they would begin before
// it), notes where it starts and runs its chunk. A chunk whose start is not what its neighbour ended with is open and
// runs again from there; after the last sweep what is open goes in order, chunk by chunk, the sequences side by side.
// The loop is one chunk. warm_up + chunk barriers a sweep, 2 G H (H + I) flops a step, W_hh read once a step and 16
// items from the second cache.
//
// A unit's sum runs over h in order, whatever is beside it: with tolerances of 0 overlap has the loop's bits.
// docs/math/overlap.md, recurrent.md.
#ifndef DPCRI_CUDA_GATES_H
#define DPCRI_CUDA_GATES_H

#include "kern/cuda/cells.h"
#include "kern/device.h"

namespace gates {

constexpr int threads = 128, items_of_tile = 16, units_of_tile = 32, depth = 16, mine = 4;  // items of a thread
static_assert(threads / simt::warp_size * mine == items_of_tile && units_of_tile == simt::warp_size, "a lane a unit");

template <class T>
struct problem {
    int64_t length, rows, inputs, hidden;
    bool relu;  // of an RNN
    const T *w_ih, *w_hh, *b_ih, *b_hh, *x;
    int64_t x_step, x_row;
    const T *h0, *c0;
    T *y;
    int64_t y_step, y_row;
    T *ht, *ct;
    int64_t chunk, warm_up, chunks;
    double atol, rtol;
    int most_sweeps;
    bool stop;
    dpcr_device_outcome *outcome;
    T *given;               // [length][rows][G H]: g
    T *states;              // [2][chunks rows][H]: h of the items, by turns
    T *cells;               // [chunks rows][H]: c
    T *starts, *ends;       // [chunks rows][S]: h and c where an item started, and ended
    uint32_t *open;         // [chunks rows]
    uint32_t *counts;       // [most_sweeps + 1 + chunks], zero at first: is anything open?
    cells::tally *tallies;  // [rows], zero at first
};

// Shared memory: a slice of the items' states, then one of the weights, k by k.
template <int Q>
constexpr int stride = Q *units_of_tile + 1;
template <class T, int Q>
constexpr int64_t shared_bytes() {
    return (int64_t)(items_of_tile * depth + depth * stride<Q>)*(int64_t)sizeof(T);
}

// sum[i][q] += sum over k < count of weights[row q group + lane][k] rows.at(item i of this thread)[k]; lane of group q
// counts where it is below room - q less.
template <class T, int Q, class Rows>
SIMT void multiply(simt::lane &me, const Rows &rows, const T *weights, int64_t count, int64_t group, int64_t room,
                   int64_t less, T (&sum)[mine][Q]) {
    const simt::shared<T> s = me.template array<T>(0, items_of_tile * depth + depth * stride<Q>);
    const int base = items_of_tile * depth;
    for (int64_t k0 = 0; k0 < count; k0 += depth) {
        me.barrier();
        for (int n = me.thread(); n < items_of_tile * depth; n += threads) {
            const int64_t k = k0 + n % depth;
            const T *from = rows.at(n / depth);
            s.set(n, from && k < count ? me.peer_load(from + k) : T(0));
        }
        for (int n = me.thread(); n < Q * units_of_tile * depth; n += threads) {
            const int kk = n % depth, unit = n / depth % units_of_tile, q = n / depth / units_of_tile;
            const bool there = k0 + kk < count && unit < room - q * less;
            s.set(base + kk * stride<Q> + q * units_of_tile + unit,
                  there ? weights[(q * group + unit) * count + k0 + kk] : T(0));
        }
        me.barrier();
        SIMT_ROLLED for (int kk = 0; kk < depth; kk++) {
            T w[Q];
            SIMT_UNROLL for (int q = 0; q < Q; q++) w[q] =
                s.get(base + kk * stride<Q> + q * units_of_tile + me.in_warp());
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const T a = s.get((me.warp() * mine + i) * depth + kk);
                SIMT_UNROLL for (int q = 0; q < Q; q++) sum[i][q] = simt::fma(w[q], a, sum[i][q]);
            }
        }
    }
}

// ---- g = W_ih x + b_ih: tiles of 16 steps (of a sequence) x 128 outputs ----

template <class T>
struct inputs {
    static constexpr int Q = 4, most = threads;
    struct arguments {
        problem<T> p;
        int64_t outputs;  // G H
        const T *more;    // a second bias, or NULL
    };
    struct rows {
        const problem<T> &p;
        int64_t first;
        SIMT const T *at(int i) const {
            const int64_t n = first + i;
            return n < p.length * p.rows ? p.x + n / p.rows * p.x_step + n % p.rows * p.x_row : nullptr;
        }
    };
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t wide = (a.outputs + Q * units_of_tile - 1) / (Q * units_of_tile);
        const int64_t tall = (p.length * p.rows + items_of_tile - 1) / items_of_tile;
        for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
            const int64_t first = tile / wide * items_of_tile, out = tile % wide * (Q * units_of_tile);
            T sum[mine][Q];
            SIMT_UNROLL for (int i = 0; i < mine; i++) SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t o = out + q * units_of_tile + me.in_warp();
                sum[i][q] = p.b_ih && o < a.outputs ? p.b_ih[o] : T(0);
                if (a.more && o < a.outputs) sum[i][q] += a.more[o];
            }
            multiply<T, Q>(me, rows{p, first}, p.w_ih + out * p.inputs, p.inputs, units_of_tile, a.outputs - out,
                           units_of_tile, sum);
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t n = first + me.warp() * mine + i;
                SIMT_UNROLL for (int q = 0; q < Q; q++) {
                    const int64_t o = out + q * units_of_tile + me.in_warp();
                    if (n < p.length * p.rows && o < a.outputs) p.given[n * a.outputs + o] = sum[i][q];
                }
            }
        }
    }
};

// ---- chunks as columns ----

template <class T, int G>  // gates of a unit: 1, 3, 4
struct columns {
    static constexpr int most = threads;
    static constexpr bool has_cell = G == 4;
    typedef problem<T> arguments;

    // A stretch of steps of some items: first .. first + count - 1, from step `from` of their chunks on.
    struct stretch {
        int64_t first, count, from, steps;
        bool writes;
    };
    struct rows {
        const problem<T> &p;
        const T *states;
        int64_t first, end;
        SIMT const T *at(int i) const { return first + i < end ? states + (first + i) * p.hidden : nullptr; }
    };

    SIMT static int64_t items(const problem<T> &p) { return p.chunks * p.rows; }
    SIMT static int64_t state(const problem<T> &p) { return has_cell ? 2 * p.hidden : p.hidden; }
    SIMT static T sigmoid(T u) { return simt::fma(cells::tanh_of(T(0.5) * u), T(0.5), T(0.5)); }

    // Step of the chain, or -1 where the item rests.
    SIMT static int64_t step_of(simt::lane &me, const problem<T> &p, int64_t item, int64_t end, int64_t at) {
        if (item >= end || !me.peer_load(p.open + item)) return -1;
        const int64_t chunk = item / p.rows, m = chunk * p.chunk + at;
        return m < p.length ? m : -1;
    }

    SIMT static T advance(simt::lane &me, const problem<T> &p, int64_t item, int64_t m, int64_t u, const T (&sum)[G],
                          T h) {
        const int64_t H = p.hidden;
        const T *g = p.given + (m * p.rows + item % p.rows) * (G * H) + u;
        if constexpr (G == 1) {
            const T v = g[0] + sum[0];
            return p.relu ? (v <= 0 ? T(0) : v) : cells::tanh_of(v);
        }
        if constexpr (G == 3) {
            const T r = sigmoid(g[0] + sum[0]), z = sigmoid(g[H] + sum[1]);
            const T n = cells::tanh_of(simt::fma(r, sum[2], g[2 * H]));
            return simt::fma(z, h - n, n);  // (1 - z) n + z h
        }
        if constexpr (G == 4) {
            const T i = sigmoid(g[0] + sum[0]), f = sigmoid(g[H] + sum[1]);
            const T n = cells::tanh_of(g[2 * H] + sum[2]), o = sigmoid(g[3 * H] + sum[3]);
            T *cell = p.cells + item * H + u;
            const T c = simt::fma(f, me.peer_load(cell), i * n);
            me.peer_store(cell, c);
            return o * cells::tanh_of(c);
        }
        return h;
    }

    // One step of a tile; states go from one buffer to the other, those that rest too.
    SIMT static void tile(simt::lane &me, const problem<T> &p, const stretch &s, int64_t index, int64_t at, int turn) {
        const int64_t H = p.hidden, wide = (H + units_of_tile - 1) / units_of_tile;
        const int64_t first = s.first + index / wide * items_of_tile, end = s.first + s.count;
        const int64_t u0 = index % wide * units_of_tile, u = u0 + me.in_warp();
        const T *before = p.states + turn * items(p) * H;
        T *after = p.states + (1 - turn) * items(p) * H;
        bool work = false;
        for (int i = 0; i < items_of_tile; i++) work = work || step_of(me, p, first + i, end, at) >= 0;
        T sum[mine][G];
        SIMT_UNROLL for (int i = 0; i < mine; i++) SIMT_UNROLL for (int q = 0; q < G; q++) sum[i][q] =
            p.b_hh && u < H ? p.b_hh[q * H + u] : T(0);
        if (work) multiply<T, G>(me, rows{p, before, first, end}, p.w_hh + u0 * H, H, H, H - u0, 0, sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = first + me.warp() * mine + i;
            if (item >= end || u >= H) continue;
            const int64_t m = step_of(me, p, item, end, at);
            const T h = me.peer_load(before + item * H + u);
            const T next = m >= 0 ? advance(me, p, item, m, u, sum[i], h) : h;
            me.peer_store(after + item * H + u, next);
            if (m >= 0 && s.writes) p.y[m * p.y_step + item % p.rows * p.y_row + u] = next;
        }
    }

    SIMT static void run_stretch(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const int64_t wide = (p.hidden + units_of_tile - 1) / units_of_tile;
        const int64_t tiles = wide * ((s.count + items_of_tile - 1) / items_of_tile);
        for (int64_t n = 0; n < s.steps; n++) {
            for (int64_t index = me.block(); index < tiles; index += me.blocks())
                tile(me, p, s, index, s.from + n, turn);
            me.grid_barrier();
            turn = 1 - turn;
        }
    }

    // ---- states between stretches: a thread a unit ----

    SIMT static void begin(simt::lane &me, const problem<T> &p) {
        const int64_t H = p.hidden, all = items(p) * H;
        for (int64_t n = me.block() * threads + me.thread(); n < all; n += me.blocks() * threads) {
            const int64_t item = n / H, row = item % p.rows;
            const bool start = item / p.rows * p.chunk <= p.warm_up;
            me.peer_store(p.states + n, start && p.h0 ? p.h0[row * H + n % H] : T(0));
            if (has_cell) me.peer_store(p.cells + n, start && p.c0 ? p.c0[row * H + n % H] : T(0));
            if (n % H == 0) me.peer_store(p.open + item, 1u);
        }
    }

    // What open items stand at.
    SIMT static void note(simt::lane &me, const problem<T> &p, const stretch &s, int turn, T *to) {
        const int64_t H = p.hidden, S = state(p);
        for (int64_t n = me.block() * threads + me.thread(); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H;
            if (!me.peer_load(p.open + item)) continue;
            me.peer_store(to + item * S + u, me.peer_load(p.states + (turn * items(p) + item) * H + u));
            if (has_cell) me.peer_store(to + item * S + H + u, me.peer_load(p.cells + item * H + u));
        }
    }

    // Open items stand where their neighbours ended.
    SIMT static void adopt(simt::lane &me, const problem<T> &p, const stretch &s, int turn) {
        const int64_t H = p.hidden, S = state(p);
        for (int64_t n = me.block() * threads + me.thread(); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H;
            if (!me.peer_load(p.open + item)) continue;
            const T *left = p.ends + (item - p.rows) * S;
            const T h = me.peer_load(left + u);
            me.peer_store(p.states + (turn * items(p) + item) * H + u, h);
            me.peer_store(p.starts + item * S + u, h);
            if (!has_cell) continue;
            const T c = me.peer_load(left + H + u);
            me.peer_store(p.cells + item * H + u, c);
            me.peer_store(p.starts + item * S + H + u, c);
        }
    }

    // ---- boundaries: a warp an item ----

    SIMT static void look(simt::lane &me, const problem<T> &p, const stretch &s, uint32_t *count, uint32_t sweeps) {
        const int64_t S = state(p), warps = threads / simt::warp_size;
        for (int64_t n = me.block() * warps + me.warp(); n < s.count; n += me.blocks() * warps) {
            const int64_t item = s.first + n;
            bool apart = false;
            if (item >= p.rows)
                for (int64_t j = me.in_warp(); j < S; j += simt::warp_size) {
                    const T a = me.peer_load(p.starts + item * S + j),
                            b = me.peer_load(p.ends + (item - p.rows) * S + j);
                    const bool equal = a == b || (a != a && b != b);
                    const T limit = T(p.atol) + T(p.rtol) * cells::magnitude(b);
                    apart = apart || !(equal || (cells::finite(a - b) && cells::magnitude(a - b) <= limit));
                }
            const bool open = me.any(apart);
            if (me.in_warp() != 0) continue;
            me.peer_store(p.open + item, (uint32_t)open);
            if (!open) continue;
            me.raise(count, 1);
            if (sweeps > 0) me.raise(&p.tallies[item % p.rows].sweeps, sweeps);
            if (sweeps == 0)
                me.raise(&p.tallies[item % p.rows].from_end, (uint32_t)(p.length - item / p.rows * p.chunk));
        }
    }

    // The defect that is left, and whether the last state is finite.
    SIMT static void tell(simt::lane &me, const problem<T> &p) {
        const int64_t S = state(p), warps = threads / simt::warp_size;
        for (int64_t item = me.block() * warps + me.warp(); item < items(p); item += me.blocks() * warps) {
            float most_seen = 0;
            bool lost = false;
            for (int64_t j = me.in_warp(); j < S; j += simt::warp_size) {
                const T end[1] = {me.peer_load(p.ends + item * S + j)};
                lost = lost || !cells::finite(end[0]);
                if (item < p.rows) continue;
                const T a[1] = {me.peer_load(p.starts + item * S + j)};
                const T b[1] = {me.peer_load(p.ends + (item - p.rows) * S + j)};
                const float d = (float)cells::distance<T, 1>(a, b);
                most_seen = d > most_seen ? d : most_seen;
            }
            cells::tally *t = p.tallies + item % p.rows;
            const bool any_lost = me.any(lost);
            if (most_seen > 0) me.raise(&t->residual, cells::bits_of(most_seen));
            if (me.in_warp() != 0) continue;
            me.raise(&t->sweeps, 1);
            if (any_lost && item / p.rows == p.chunks - 1) me.raise(&t->non_finite, 1);
        }
    }

    SIMT static void report(simt::lane &me, const problem<T> &p) {
        const int64_t H = p.hidden, S = state(p), last = (p.chunks - 1) * p.rows;
        const int64_t self = me.block() * threads + me.thread(), lanes = me.blocks() * threads;
        for (int64_t n = self; n < p.rows * H; n += lanes) {
            const T *end = p.ends + (last + n / H) * S + n % H;
            if (p.ht) p.ht[n] = me.peer_load(end);
            if (has_cell && p.ct) p.ct[n] = me.peer_load(end + H);
        }
        for (int64_t r = self; p.outcome && r < p.rows; r += lanes) {
            dpcr_device_outcome o;
            o.sweeps = (int32_t)me.peer_load(&p.tallies[r].sweeps);
            o.non_finite = (int32_t)me.peer_load(&p.tallies[r].non_finite);
            o.locked = p.length - (int64_t)me.peer_load(&p.tallies[r].from_end);
            o.residual = cells::float_of(me.peer_load(&p.tallies[r].residual));
            p.outcome[r] = o;
        }
    }

    // ---- the launch ----

    // Open items of the stretch again, from their neighbours' ends.
    SIMT static void again(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        adopt(me, p, s, turn);
        me.grid_barrier();
        run_stretch(me, p, s, turn);
        note(me, p, s, turn, p.ends);
        me.grid_barrier();
    }

    SIMT static void finish(simt::lane &me, const problem<T> &p, int &turn) {
        for (int64_t k = 1; k < p.chunks; k++) {
            const stretch s = {k * p.rows, p.rows, 0, p.chunk, true};
            uint32_t *count = p.counts + p.most_sweeps + 1 + k;
            look(me, p, s, count, 0);
            me.grid_barrier();
            if (!p.stop && me.acquire(count) != 0) again(me, p, s, turn);
        }
    }

    SIMT static void run(simt::lane &me, const problem<T> &p) {
        const stretch all = {0, items(p), 0, p.chunk, true};
        int turn = 0;
        begin(me, p);
        me.grid_barrier();
        if (p.chunks > 1) {
            const stretch warm = {0, items(p), -p.warm_up, p.warm_up, false};
            run_stretch(me, p, warm, turn);
        }
        note(me, p, all, turn, p.starts);
        me.grid_barrier();
        run_stretch(me, p, all, turn);
        note(me, p, all, turn, p.ends);
        me.grid_barrier();
        bool closed = false;
        for (int sweeps = 1; !closed; sweeps++) {
            const uint32_t told = sweeps < p.most_sweeps ? (uint32_t)sweeps + 1 : (uint32_t)sweeps;
            look(me, p, all, p.counts + sweeps, told);
            me.grid_barrier();
            closed = me.acquire(p.counts + sweeps) == 0;
            if (closed || sweeps == p.most_sweeps) break;
            again(me, p, all, turn);
        }
        if (!closed) finish(me, p, turn);
        me.grid_barrier();
        tell(me, p);
        me.grid_barrier();
        report(me, p);
    }
};

}  // namespace gates

#endif
