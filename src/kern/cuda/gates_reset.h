// SPDX-License-Identifier: MIT
// GRUs that reset before the product (ONNX's linear_before_reset = 0), forward and back:
//
//   n = tanh(x_n + W_n (r h) + b_n)        h' = (1 - z) n + z h
//
// W_n meets r h, which wants r of all units: a step is two products with all blocks meeting between them, each way. All
// else is gates.h's and gates_back.h's; of their tape, r, z, n, r h. docs/math/recurrent.md.
#ifndef DPCRI_CUDA_GATES_RESET_H
#define DPCRI_CUDA_GATES_RESET_H

#include "kern/cuda/gates_back.h"

namespace gates {

// ---- forward ----

template <class T>
struct columns_reset : columns<T, 3> {
    typedef columns<T, 3> plain;
    typedef chunks<T, columns_reset<T>> all;

    SIMT static const T *given(const problem<T> &p, int64_t row, int64_t m, int64_t u) {
        return p.given + (place_of(p, row, m) * p.rows + row) * p.given_row + u;
    }

    // r h and z of step `at`. What a unit needs of its own is asked for before the products, as in gates.h.
    SIMT static void first(simt::lane &me, const problem<T> &p, const stretch &s, const tile_items &t, int64_t at,
                           int turn) {
        const int64_t H = p.hidden, end = s.first + s.count, u = t.u0 + me.in_warp(), own_step = t.step(at);
        T sum[mine][2], g[mine][2] = {}, h[mine] = {};
        bool goes[mine];
        if (!me.any(own_step >= 0)) return;
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int lane = me.warp() * mine + i;
            const int64_t m = me.shuffle(own_step, lane), row = me.shuffle(t.row, lane);
            goes[i] = m >= 0 && u < H;
            SIMT_UNROLL for (int q = 0; q < 2; q++) {
                sum[i][q] = p.b_hh && u < H ? p.b_hh[q * H + u] : T(0);
                if (goes[i]) g[i][q] = given(p, row, m, u)[q * H];
            }
            if (goes[i] && !begins(p, row, m)) h[i] = plain::load(me, p, t.first + lane, u, turn);
        }
        multiply<T, 2>(me, typename plain::rows{p, plain::state_at(p, 0, 0, turn), t.first, end, at}, p.w_hh + t.u0 * H,
                       H, H, H - t.u0, 0, sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = t.first + me.warp() * mine + i;
            if (!goes[i]) continue;
            me.peer_store(p.reset + item * H + u, sigmoid_of(cut(p, g[i][0] + sum[i][0])) * h[i]);
            me.peer_store(p.update + item * H + u, sigmoid_of(cut(p, g[i][1] + sum[i][1])));
        }
    }

    // n and the state after it; those that rest go on too.
    SIMT static void second(simt::lane &me, const problem<T> &p, const stretch &s, const tile_items &t, int64_t at,
                            int turn) {
        const int64_t H = p.hidden, end = s.first + s.count, u = t.u0 + me.in_warp(), own_step = t.step(at);
        T sum[mine][1], g[mine] = {}, h[mine] = {}, z[mine] = {};
        int64_t m[mine], row[mine];
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int lane = me.warp() * mine + i;
            const int64_t item = t.first + lane;
            m[i] = me.shuffle(own_step, lane), row[i] = me.shuffle(t.row, lane);
            sum[i][0] = p.b_hh && u < H ? p.b_hh[2 * H + u] : T(0);
            if (item >= end || u >= H) continue;
            h[i] = plain::load(me, p, item, u, turn);
            if (m[i] < 0) continue;
            g[i] = given(p, row[i], m[i], u)[2 * H];
            z[i] = me.peer_load(p.update + item * H + u);
            if (begins(p, row[i], m[i])) h[i] = 0;
        }
        if (me.any(own_step >= 0))
            multiply<T, 1>(me, item_rows<T>{p.reset, H, t.first, end}, p.w_hh + (2 * H + t.u0) * H, H, H, H - t.u0, 0,
                           sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = t.first + me.warp() * mine + i;
            if (item >= end || u >= H) continue;
            if (m[i] >= 0) {
                const T n = cells::gate_tanh(cut(p, g[i] + sum[i][0]));
                h[i] = simt::fma(z[i], h[i] - n, n);
            }
            plain::store(me, p, item, u, 1 - turn, h[i]);
            if (m[i] >= 0) plain::write(p, s, row[i], m[i], u, h[i], T(0));
        }
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const int64_t wide = tiles(p.hidden, units_of_tile), count = wide * tiles(s.count, items_of_tile);
        for (int64_t n = 0; n < s.steps; n++) {
            for (int64_t index = me.block(); index < count; index += me.blocks())
                first(me, p, s, items_of<T>(me, p, s, wide, index), s.from + n, turn);
            me.grid_barrier();
            for (int64_t index = me.block(); index < count; index += me.blocks())
                second(me, p, s, items_of<T>(me, p, s, wide, index), s.from + n, turn);
            me.grid_barrier();
            turn = 1 - turn;
        }
    }
};

// ---- the gates again: r, z and r h of all steps, then n ----

template <class T, bool last>
struct reset_values {
    static constexpr int most = threads, Q = last ? 1 : 2;
    typedef back_problem<T> arguments;
    struct before {
        const arguments &b;
        int64_t first;
        SIMT const T *at(int i) const {
            const int64_t n = first + i;
            return n < b.p.length * b.p.rows ? hearing<T>{b}.at(n / b.p.rows, n % b.p.rows) : nullptr;
        }
    };
    SIMT static void run(simt::lane &me, const arguments &b) {
        const problem<T> &p = b.p;
        const int64_t H = p.hidden, wide = tiles(H, units_of_tile), all = p.length * p.rows;
        for (int64_t tile = me.block(); tile < wide * tiles(all, items_of_tile); tile += me.blocks()) {
            const int64_t first = tile / wide * items_of_tile, u0 = tile % wide * units_of_tile, u = u0 + me.in_warp();
            T sum[mine][Q];
            SIMT_UNROLL for (int i = 0; i < mine; i++) SIMT_UNROLL for (int q = 0; q < Q; q++) sum[i][q] =
                p.b_hh && u < H ? p.b_hh[(last ? 2 * H : q * H) + u] : T(0);
            if constexpr (last)
                multiply<T, Q>(me, item_rows<T>{b.gates + 3 * H, 4 * H, first, all}, p.w_hh + (2 * H + u0) * H, H, H,
                               H - u0, 0, sum);
            else
                multiply<T, Q>(me, before{b, first}, p.w_hh + u0 * H, H, H, H - u0, 0, sum);
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t n = first + me.warp() * mine + i;
                if (n >= all || u >= H) continue;
                T *g = b.gates + n * 4 * H + u;
                if constexpr (last) {
                    g[2 * H] = sealed_tanh(p, g[2 * H] + sum[i][0]);
                } else {
                    T r = sealed_sigmoid(p, g[0] + sum[i][0]);
                    const int64_t m = step_at(p, n % p.rows, n / p.rows);
                    const T *h = m < 0 ? nullptr : before_of(b, n % p.rows, m);
                    g[0] = r, g[H] = sealed_sigmoid(p, g[H] + sum[i][1]);
                    (void)open_sigmoid(p, r);
                    g[3 * H] = h ? r * h[u] : T(0);
                }
            }
        }
    }
};

// ---- back: e is those of r, z, n and n again, for W_n and its bias ----

template <class T>
struct backs_reset : back_rest<T> {
    typedef back_rest<T> rest;
    static constexpr bool cell = false;
    typedef back_problem<T> arguments;
    typedef chunks<T, backs_reset<T>> all;

    SIMT static void begin(simt::lane &me, const arguments &b) { backs<T, 3>::begin(me, b); }

    // What a unit of an item has at the chain's step k.
    struct place {
        int64_t row, m, l;
        const T *tape;
        T h;
        SIMT place(const arguments &b, int64_t item, int64_t k, int64_t u) {
            const problem<T> &p = b.p;
            row = item % p.rows;
            m = length_of<T>(p, row) - 1 - k;
            l = place_of(p, row, m);
            tape = b.gates + (l * p.rows + row) * 4 * p.hidden + u;
            const T *before = before_of(b, row, m);
            h = before ? before[u] : T(0);
        }
        SIMT T *e(const arguments &b, int q, int64_t u) const {
            return b.e + ((l * b.rows + row) * 4 + q) * b.hidden + u;
        }
    };

    // The products of the step before with W_r and W_z, where there was one; then e of z and n of step `at`.
    SIMT static void first(simt::lane &me, const arguments &b, const stretch &s, int64_t index, int64_t n, int turn) {
        const int64_t H = b.hidden, wide = tiles(H, units_of_tile), at = s.from + n;
        const int64_t first = s.first + index / wide * items_of_tile, end = s.first + s.count;
        const int64_t u0 = index % wide * units_of_tile, u = u0 + me.in_warp();
        const T *from = b.columns + turn * all::items(b) * 3 * H;
        T *to = b.columns + (1 - turn) * all::items(b) * 3 * H;
        bool work = false;
        for (int i = 0; n > 0 && i < items_of_tile; i++)
            work = work || all::step_of(me, b, first + i, end, at - 1) >= 0;
        T sum[mine][1];
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = first + me.warp() * mine + i;
            sum[i][0] = work && item < end && u < H ? me.peer_load(b.beside + item * H + u) : T(0);
        }
        if (work) multiply_down<T, 1>(me, item_rows<T>{from, 3 * H, first, end}, b.p.w_hh + u0, H, 2 * H, H - u0, sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = first + me.warp() * mine + i;
            if (item >= end || u >= H) continue;
            const int64_t k = n < s.steps ? all::step_of(me, b, item, end, at) : -1;
            const int64_t done = n > 0 ? all::step_of(me, b, item, end, at - 1) : -1;
            if (done >= 0 && begins(b.p, item % b.rows, length_of<T>(b, item % b.rows) - 1 - done)) sum[i][0] = 0;
            if (k < 0) {
                if (done >= 0) rest::store(me, b, item, u, 0, sum[i][0]);
                continue;
            }
            const place o(b, item, k, u);
            T g = done >= 0 ? sum[i][0] : rest::load(me, b, item, u, 0);
            if (b.dy) g = g + b.dy[o.l * b.dy_step + o.row * b.dy_row + u];
            T z = o.tape[H], v = o.tape[2 * H];
            const bool cut_z = open_sigmoid(b.p, z), cut_v = open_tanh(b.p, v);
            const T through = g * z, dz = cut_z ? T(0) : (through * (o.h - v)) * (T(1) - z);
            const T dn = cut_v ? T(0) : (g - through) * simt::fma(-v, v, T(1));
            me.peer_store(b.beside + item * H + u, through);
            me.peer_store(to + (item * 3 + 1) * H + u, dz);
            me.peer_store(to + (item * 3 + 2) * H + u, dn);
            if (!s.writes) continue;
            *o.e(b, 1, u) = dz;
            *o.e(b, 2, u) = *o.e(b, 3, u) = dn;
        }
    }

    // What comes back by r h: e of r, and what goes on beside the gates.
    SIMT static void second(simt::lane &me, const arguments &b, const stretch &s, int64_t index, int64_t n, int turn) {
        const int64_t H = b.hidden, wide = tiles(H, units_of_tile), at = s.from + n;
        const int64_t first = s.first + index / wide * items_of_tile, end = s.first + s.count;
        const int64_t u0 = index % wide * units_of_tile, u = u0 + me.in_warp();
        T *to = b.columns + (1 - turn) * all::items(b) * 3 * H;
        bool work = false;
        for (int i = 0; i < items_of_tile; i++) work = work || all::step_of(me, b, first + i, end, at) >= 0;
        T sum[mine][1] = {};
        if (!work) return;
        multiply_down<T, 1>(me, item_rows<T>{to + 2 * H, 3 * H, first, end}, b.p.w_hh + 2 * H * H + u0, H, H, H - u0,
                            sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = first + me.warp() * mine + i;
            const int64_t k = all::step_of(me, b, item, end, at);
            if (k < 0 || u >= H) continue;
            const place o(b, item, k, u);
            T r = o.tape[0];
            const bool cut_r = open_sigmoid(b.p, r);
            const T d = sum[i][0] * r, dr = cut_r ? T(0) : (d * o.h) * (T(1) - r);
            T *beside = b.beside + item * H + u;
            me.peer_store(beside, me.peer_load(beside) + d);
            me.peer_store(to + item * 3 * H + u, dr);
            if (s.writes) *o.e(b, 0, u) = dr;
        }
    }

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const int64_t count = tiles(b.hidden, units_of_tile) * tiles(s.count, items_of_tile);
        for (int64_t n = 0; n <= s.steps; n++) {
            for (int64_t index = me.block(); index < count; index += me.blocks()) first(me, b, s, index, n, turn);
            me.grid_barrier();
            for (int64_t index = me.block(); n < s.steps && index < count; index += me.blocks())
                second(me, b, s, index, n, turn);
            if (n < s.steps) me.grid_barrier();
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
