// SPDX-License-Identifier: MIT
// The way back through cells whose units do not mix (para.h), on a device.
//
//   inputs      what W_ih gave the gates, as on the way forward: a plain launch
//   para_backs  from the last step, in chunks as the way forward (gates_chunks.h), one cooperative launch, a thread a
//               unit of an item: the gates again from the state before, e = gradients of what their functions got,
//               and what goes on: the transposed Jacobian, a number or a block of 2 x 2, times what came
//   inputs_back, weights_back, fold or fold_many
//               dx = e W_ih, dW_ih += e^T x, db += sums of e: gates_back.h's, whose units are here all gates of all
//               units
//   diagonals_back, fold or fold_many
//               da += e h_before, dC_f += e_f c_before, dC_o += e_o c_after: plain launches, rows in pieces of a number
//               that the shape alone says, and the pieces by their index
//
// Derivation: docs/math/recurrent.md, backward.md.
#ifndef DPCRI_CUDA_PARA_BACK_H
#define DPCRI_CUDA_PARA_BACK_H

#include "kern/cuda/gates_back.h"
#include "kern/cuda/para.h"

namespace gates {

// Of back_problem, `e` is [length][rows][G H], `acc` what comes to h and `beside` what comes to c.
template <class T>
struct para_back_problem : back_problem<T> {
    const T *diagonals, *peepholes;
    T *reset_e;  // [length][rows][H] of ParaGRU: r e_q, of which its third diagonal's gradient is
};

constexpr int gates_of(int kind) { return kind == DPCRI_DEVICE_MINGRU ? 2 : 3; }

template <class T, int Kind>
struct para_backs : back_rest<T> {
    typedef back_rest<T> rest;
    static constexpr bool cell = Kind == DPCRI_DEVICE_PARALSTM;
    static constexpr int G = gates_of(Kind);
    typedef para<T, Kind> forward;
    typedef para_back_problem<T> arguments;
    typedef chunks<T, para_backs<T, Kind>> all;

    // e is 0 where a sequence has no step; reset_e is not asked for there.
    SIMT static void begin(simt::lane &me, const arguments &b) {
        const int64_t wide = G * b.hidden, count = b.lengths ? b.length * b.rows * wide : 0;
        for (int64_t n = all::self(me); n < count; n += me.blocks() * threads)
            if (step_at(b.p, n / wide % b.rows, n / (b.rows * wide)) < 0) b.e[n] = 0;
    }

    // From the state before a step and the gradients g, gc of the one after it: those of the one before, and e;
    // e[3]: r e_q of ParaGRU. Formulas and order of kern/para_back.inc.
    SIMT static void back(const own_weights<T> &w, const T *x, int64_t H, T h, T c, T &g, T &gc, T (&e)[4]) {
        const T before = h, cell_of = c;
        T t[3];
        forward::advance(w, x, H, h, c, t);
        if constexpr (Kind == DPCRI_DEVICE_PARAGRU) {
            const T through = t[0] * g;
            e[0] = (through * (t[2] - before)) * (1 - t[0]);
            e[2] = through * simt::fma(-t[2], t[2], T(1));
            e[3] = e[2] * t[1];
            const T by_q = w.a[2] * e[3];
            e[1] = (by_q * before) * (1 - t[1]);
            g = simt::fma(w.a[0], e[0], simt::fma(w.a[1], e[1], (g - through) + by_q));
        }
        if constexpr (Kind == DPCRI_DEVICE_PARALSTM) {
            const T apart = cell_of - t[1], rest = 1 - t[0], y = cells::gate_tanh(c);
            e[2] = (g * y) * (t[2] * (1 - t[2]));
            const T k = simt::fma(w.peephole[1], e[2], simt::fma(g * t[2], simt::fma(-y, y, T(1)), gc));  // of c'
            e[0] = (k * apart) * (t[0] * rest);
            e[1] = (k * rest) * simt::fma(-t[1], t[1], T(1));
            gc = simt::fma(k, t[0], w.peephole[0] * e[0]);
            g = simt::fma(w.a[0], e[0], simt::fma(w.a[1], e[1], w.a[2] * e[2]));
        }
        if constexpr (Kind == DPCRI_DEVICE_MINGRU) {
            e[1] = t[0] * g;
            e[0] = (e[1] * (t[1] - before)) * (1 - t[0]);
            g = g - e[1];
        }
    }

    // What some steps of the chain, from k on, need of their own, asked for while those before them are made.
    struct supply {
        static constexpr int ahead = 4 * 4 / (int)sizeof(T);
        T x[ahead][G], dy[ahead], h[ahead], c[ahead];
        unsigned char anew[ahead];
        SIMT void ask(const arguments &b, int64_t row, int64_t u, int64_t k, int64_t end, int64_t length) {
            const problem<T> &p = b.p;
            SIMT_UNROLL for (int d = 0; d < ahead; d++) {
                if (k + d >= end) break;
                const int64_t m = length - 1 - k - d, l = place_of(p, row, m);
                const T *const from = p.given + (l * p.rows + row) * p.given_row + u, *const before =
                                                                                          before_of(b, row, m);
                SIMT_UNROLL for (int q = 0; q < G; q++) x[d][q] = from[q * p.hidden];
                dy[d] = b.dy ? b.dy[l * b.dy_step + row * b.dy_row + u] : T(0);
                h[d] = before ? before[u] : T(0);
                c[d] = cell ? cell_before(b, row, m, u) : T(0);
                anew[d] = begins(p, row, m);
            }
        }
    };

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &) {
        const problem<T> &p = b.p;
        const int64_t H = p.hidden;
        for (int64_t n = all::self(me); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H, row = item % p.rows;
            if (!me.peer_load(b.open + item)) continue;
            const int64_t first = item / p.rows * b.chunk + s.from, past = first + s.steps;
            const int64_t length = length_of<T>(p, row), end = past < length ? past : length;
            T g = rest::load(me, b, item, u, 0), gc = cell ? rest::load_cell(me, b, item, u) : T(0), e[4];
            const own_weights<T> w = weights_of(b.diagonals, b.peepholes, H, u);
            const int64_t from = first < 0 ? 0 : first;
            supply now = {}, next = {};
            now.ask(b, row, u, from, end, length);
            SIMT_ROLLED for (int64_t k = from; k < end; k += now.ahead) {
                next.ask(b, row, u, k + now.ahead, end, length);
                SIMT_UNROLL for (int d = 0; d < now.ahead; d++) {
                    if (k + d >= end) break;
                    if (b.dy) g = g + now.dy[d];
                    back(w, now.x[d], 1, now.h[d], now.c[d], g, gc, e);
                    if (now.anew[d]) g = gc = 0;
                    if (!s.writes) continue;
                    const int64_t at = place_of(p, row, length - 1 - k - d) * p.rows + row;
                    SIMT_UNROLL for (int q = 0; q < G; q++) b.e[(at * G + q) * H + u] = e[q];
                    if (Kind == DPCRI_DEVICE_PARAGRU) b.reset_e[at * H + u] = e[3];
                }
                now = next;
            }
            rest::store(me, b, item, u, 0, g);
            if (cell) rest::store_cell(me, b, item, u, gc);
        }
    }
};

// ---- the diagonals' and peepholes' gradients: a thread a unit of a piece of the rows ----

template <class T, int Kind>
struct diagonals_back {
    static constexpr bool cell = Kind == DPCRI_DEVICE_PARALSTM;
    static constexpr int most = threads, G = gates_of(Kind), sums = cell ? 5 : 3;
    struct arguments {
        para_back_problem<T> b;
        int64_t pieces, piece;     // and rows of each
        T *parts;                  // [pieces][sums][H]
        T *diagonals, *peepholes;  // what they are added to, or NULL
    };
    // Of a row, what the sums take; nothing where the sequence has no step.
    struct taken {
        bool there;
        T e[3], h, before, after;  // c before the step and after it, of ParaLSTM
    };
    SIMT static taken take(const arguments &a, int64_t k, int64_t row, int64_t l, int64_t u) {
        const para_back_problem<T> &b = a.b;
        const int64_t H = b.p.hidden, m = step_at(b.p, row, l);
        taken t = {};
        t.there = m >= 0;
        if (!t.there) return t;
        const T *const h = before_of(b, row, m), *const e = b.e + k * G * H + u;
        t.h = h ? h[u] : T(0);
        t.e[0] = e[0];
        t.e[1] = e[H];
        t.e[2] = cell ? e[2 * H] : b.reset_e[k * H + u];
        t.before = cell ? cell_before(b, row, m, u) : T(0);
        t.after = cell ? b.p.kept[k * H + u] : T(0);
        return t;
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t H = a.b.p.hidden;
        for (int64_t n = me.block() * threads + me.thread(); n < a.pieces * H; n += me.blocks() * threads) {
            T sum[sums] = {};
            each_row_of_piece<taken>(
                a.b.p, n / H * a.piece, a.piece,
                [&](int64_t k, int64_t row, int64_t l) { return take(a, k, row, l, n % H); },
                [&](const taken &t) {
                    SIMT_UNROLL for (int i = 0; i < 3; i++) sum[i] = simt::fma(t.e[i], t.h, sum[i]);
                    if (!cell) return;
                    sum[sums - 2] = simt::fma(t.e[0], t.before, sum[sums - 2]);
                    sum[sums - 1] = simt::fma(t.e[2], t.after, sum[sums - 1]);
                });
            SIMT_UNROLL for (int i = 0; i < sums; i++) a.parts[(n / H * sums + i) * H + n % H] = sum[i];
        }
    }
};

template <class T, int Kind>
struct diagonals_sums {
    typedef typename diagonals_back<T, Kind>::arguments arguments;
    SIMT_BOTH static int64_t count(const arguments &a) { return diagonals_back<T, Kind>::sums * a.b.p.hidden; }
    SIMT static T *to(const arguments &a, int64_t n) {
        const int64_t H = a.b.p.hidden;
        return n < 3 * H     ? (a.diagonals ? a.diagonals + n : nullptr)
               : a.peepholes ? a.peepholes + (n - 3 * H)
                             : nullptr;
    }
};

}  // namespace gates

#endif
