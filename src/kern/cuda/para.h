// SPDX-License-Identifier: MIT
// A layer and direction of recurrent cells whose units do not mix (ParaGRU, ParaLSTM, minGRU; formulas in kern/para.h)
// on a device, forward. Not yet run on one.
//
//   inputs  g_m = W_ih x_m + b_ih of all steps, one product, a plain launch (gates.h)
//   para    overlapped chunks (gates_chunks.h), one cooperative launch: a thread takes a unit of an item through all
//           steps of a stretch, so blocks meet once a stretch and not once a step
//
// A number is one chain of operations on its own unit: with tolerances of 0 overlap has the loop's bits. Newton is
// para_newton.h's.
#ifndef DPCRI_CUDA_PARA_H
#define DPCRI_CUDA_PARA_H

#include "kern/cuda/gates.h"

namespace gates {

template <class T>
struct para_problem : problem<T> {
    const T *diagonals, *peepholes;  // [3][H] of ParaGRU and ParaLSTM; [2][H] of ParaLSTM
};

// Of a unit.
template <class T>
struct own_weights {
    T a[3], peephole[2];  // diagonals; C_f, C_o
};

template <class T>
SIMT own_weights<T> weights_of(const T *diagonals, const T *peepholes, int64_t H, int64_t u) {
    own_weights<T> w;
    SIMT_UNROLL for (int i = 0; i < 3; i++) w.a[i] = diagonals ? diagonals[i * H + u] : T(0);
    SIMT_UNROLL for (int i = 0; i < 2; i++) w.peephole[i] = peepholes ? peepholes[i * H + u] : T(0);
    return w;
}

template <class T, int Kind>  // DPCRI_DEVICE_PARAGRU, ...
struct para {
    static constexpr bool cell = Kind == DPCRI_DEVICE_PARALSTM;
    typedef para_problem<T> arguments;
    typedef chunks<T, para<T, Kind>> all;

    SIMT static T load(simt::lane &me, const arguments &p, int64_t item, int64_t u, int) {
        return me.peer_load(p.states + item * p.hidden + u);
    }
    SIMT static void store(simt::lane &me, const arguments &p, int64_t item, int64_t u, int, T value) {
        me.peer_store(p.states + item * p.hidden + u, value);
    }
    SIMT static T load_cell(simt::lane &me, const arguments &p, int64_t item, int64_t u) {
        return me.peer_load(p.cells + item * p.hidden + u);
    }
    SIMT static void store_cell(simt::lane &me, const arguments &p, int64_t item, int64_t u, T value) {
        me.peer_store(p.cells + item * p.hidden + u, value);
    }
    SIMT static void begin(simt::lane &me, const arguments &p) { clear_beyond(me, p); }

    SIMT static T sigmoid(T u) { return simt::fma(cells::tanh_of(T(0.5) * u), T(0.5), T(0.5)); }

    // x: of the unit, gate after gate H apart; t, what the gates were: z, r, q; f, z, o; or z, q.
    SIMT static void advance(const own_weights<T> &w, const T *x, int64_t H, T &h, T &c, T (&t)[3]) {
        if constexpr (Kind == DPCRI_DEVICE_PARAGRU) {
            t[0] = sigmoid(simt::fma(w.a[0], h, x[0]));
            t[1] = sigmoid(simt::fma(w.a[1], h, x[H]));
            t[2] = cells::tanh_of(simt::fma(w.a[2], t[1] * h, x[2 * H]));
            h = simt::fma(t[0], t[2] - h, h);
        }
        if constexpr (Kind == DPCRI_DEVICE_PARALSTM) {
            t[0] = sigmoid(simt::fma(w.peephole[0], c, simt::fma(w.a[0], h, x[0])));
            t[1] = cells::tanh_of(simt::fma(w.a[1], h, x[H]));
            c = simt::fma(t[0], c - t[1], t[1]);
            t[2] = sigmoid(simt::fma(w.peephole[1], c, simt::fma(w.a[2], h, x[2 * H])));
            h = t[2] * cells::tanh_of(c);
        }
        if constexpr (Kind == DPCRI_DEVICE_MINGRU) {
            t[0] = sigmoid(x[0]);
            t[1] = x[H];
            h = simt::fma(t[0], t[1] - h, h);
        }
    }

    SIMT static void run(simt::lane &me, const arguments &p, const stretch &s, int &) {
        const int64_t H = p.hidden;
        for (int64_t n = all::self(me); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H, row = item % p.rows;
            if (!me.peer_load(p.open + item)) continue;
            const int64_t first = item / p.rows * p.chunk + s.from, past = first + s.steps, end = length_of<T>(p, row);
            T h = load(me, p, item, u, 0), c = cell ? load_cell(me, p, item, u) : T(0), t[3];
            const own_weights<T> w = weights_of(p.diagonals, p.peepholes, H, u);
            for (int64_t m = first < 0 ? 0 : first; m < past && m < end; m++) {
                const int64_t l = place_of(p, row, m);
                advance(w, p.given + (l * p.rows + row) * p.given_row + u, H, h, c, t);
                if (!s.writes) continue;
                p.y[l * p.y_step + row * p.y_row + u] = h;
                if (cell && p.kept) p.kept[(l * p.rows + row) * H + u] = c;
            }
            store(me, p, item, u, 0, h);
            if (cell) store_cell(me, p, item, u, c);
        }
    }
};

}  // namespace gates

#endif
