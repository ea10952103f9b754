// SPDX-License-Identifier: MIT
// A layer and direction of recurrent cells whose units do not mix (ParaGRU, ParaLSTM, minGRU; formulas in kern/para.h)
// on a device, forward.
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
struct para : resting<T, problem<T>, &problem<T>::states, &problem<T>::cells> {
    typedef resting<T, problem<T>, &problem<T>::states, &problem<T>::cells> rest;
    static constexpr bool cell = Kind == DPCRI_DEVICE_PARALSTM;
    static constexpr int K = cell ? 2 : 1;  // numbers of a state: h, or c and h
    typedef para_problem<T> arguments;
    typedef chunks<T, para<T, Kind>> all;

    SIMT static void begin(simt::lane &me, const arguments &p) { clear_beyond(me, p); }

    // x: of the unit, gate after gate H apart; t, what the gates were: z, r, q; f, z, o; or z, q.
    SIMT static void advance(const own_weights<T> &w, const T *x, int64_t H, T &h, T &c, T (&t)[3]) {
        if constexpr (Kind == DPCRI_DEVICE_PARAGRU) {
            t[0] = sigmoid_of(simt::fma(w.a[0], h, x[0]));
            t[1] = sigmoid_of(simt::fma(w.a[1], h, x[H]));
            t[2] = cells::gate_tanh(simt::fma(w.a[2], t[1] * h, x[2 * H]));
            h = simt::fma(t[0], t[2] - h, h);
        }
        if constexpr (Kind == DPCRI_DEVICE_PARALSTM) {
            t[0] = sigmoid_of(simt::fma(w.peephole[0], c, simt::fma(w.a[0], h, x[0])));
            t[1] = cells::gate_tanh(simt::fma(w.a[1], h, x[H]));
            c = simt::fma(t[0], c - t[1], t[1]);
            t[2] = sigmoid_of(simt::fma(w.peephole[1], c, simt::fma(w.a[2], h, x[2 * H])));
            h = t[2] * cells::gate_tanh(c);
        }
        if constexpr (Kind == DPCRI_DEVICE_MINGRU) {
            t[0] = sigmoid_of(x[0]);
            t[1] = x[H];
            h = simt::fma(1 - t[0], h, t[0] * t[1]);  // q is not bounded: what is forgotten leaves no rounding
        }
    }

    // s = the step's value at s, and its Jacobian; formulas of kern/para.inc.
    SIMT static void linearise(const own_weights<T> &w, const T *x, int64_t H, T (&s)[K], T (&j)[K * K]) {
        const T h = s[K - 1], *a = w.a;
        T t[3], none = 0;
        [[maybe_unused]] const T c = s[0];
        advance(w, x, H, s[K - 1], K == 2 ? s[0] : none, t);
        if constexpr (Kind == DPCRI_DEVICE_PARAGRU) {
            const T by_z = (t[2] - h) * (t[0] * (1 - t[0])), by_q = t[0] * simt::fma(-t[2], t[2], T(1));
            const T inner = simt::fma(h * (t[1] * (1 - t[1])), a[1], t[1]);  // d(r h) / dh
            j[0] = simt::fma(by_q * a[2], inner, simt::fma(by_z, a[0], 1 - t[0]));
        }
        if constexpr (Kind == DPCRI_DEVICE_PARALSTM) {
            const T y = cells::gate_tanh(s[0]);
            const T by_f = (c - t[1]) * (t[0] * (1 - t[0])), by_z = (1 - t[0]) * simt::fma(-t[1], t[1], T(1));
            const T by_o = y * (t[2] * (1 - t[2]));
            const T by_c = simt::fma(by_o, w.peephole[1], t[2] * simt::fma(-y, y, T(1)));  // dh' / dc'
            j[0] = simt::fma(by_f, w.peephole[0], t[0]);
            j[1] = simt::fma(by_f, a[0], by_z * a[1]);
            j[2] = by_c * j[0];
            j[3] = simt::fma(by_c, j[1], by_o * a[2]);
        }
        if constexpr (Kind == DPCRI_DEVICE_MINGRU) j[0] = 1 - t[0];
    }

    // What some steps need of their own, asked for while those before them are made: what goes into the gates, and
    // whether a sequence begins there.
    struct supply {
        static constexpr int gates = Kind == DPCRI_DEVICE_MINGRU ? 2 : 3;
        static constexpr int many = Kind == DPCRI_DEVICE_MINGRU ? 16 : cell ? 4 : 8;
        static constexpr int ahead = many * 4 / (int)sizeof(T);
        T x[ahead][gates];
        unsigned char anew[ahead];
        SIMT void ask(const arguments &p, int64_t row, int64_t u, int64_t m, int64_t end) {
            const T *from = p.given + (place_of(p, row, m) * p.rows + row) * p.given_row + u;
            SIMT_UNROLL for (int d = 0; d < ahead; d++, from += p.rows * p.given_row) {
                if (m + d >= end) break;
                SIMT_UNROLL for (int q = 0; q < gates; q++) x[d][q] = from[q * p.hidden];
                anew[d] = p.resets && begins<T>(p, row, m + d);
            }
        }
    };

    SIMT static void run(simt::lane &me, const arguments &p, const stretch &s, int &) {
        const int64_t H = p.hidden;
        for (int64_t n = all::self(me); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H, row = item % p.rows;
            if (!me.peer_load(p.open + item)) continue;
            const int64_t first = item / p.rows * p.chunk + s.from, past = first + s.steps,
                          steps = length_of<T>(p, row);
            const int64_t from = first < 0 ? 0 : first, end = past < steps ? past : steps;
            T h = rest::load(me, p, item, u, 0), c = cell ? rest::load_cell(me, p, item, u) : T(0), t[3];
            const own_weights<T> w = weights_of(p.diagonals, p.peepholes, H, u);
            supply now = {}, next = {};
            now.ask(p, row, u, from, end);
            SIMT_ROLLED for (int64_t m0 = from; m0 < end; m0 += now.ahead) {
                next.ask(p, row, u, m0 + now.ahead, end);
                SIMT_UNROLL for (int d = 0; d < now.ahead; d++) {
                    if (m0 + d >= end) break;
                    if (now.anew[d]) h = c = 0;
                    advance(w, now.x[d], 1, h, c, t);
                    if (!s.writes) continue;
                    const int64_t l = place_of(p, row, m0 + d);
                    p.y[l * p.y_step + row * p.y_row + u] = h;
                    if (cell && p.kept) p.kept[(l * p.rows + row) * H + u] = c;
                }
                now = next;
            }
            rest::store(me, p, item, u, 0, h);
            if (cell) rest::store_cell(me, p, item, u, c);
        }
    }
};

}  // namespace gates

#endif
