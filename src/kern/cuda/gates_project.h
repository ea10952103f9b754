// SPDX-License-Identifier: MIT
// LSTMs that project, h = W_hr m, m = o tanh(c), h of P numbers and m of H, forward and back.
//
// What goes into the gates is W_hh h = (W_hh W_hr) m, so but for the first step, which hears of h0, this is an LSTM
// of H units with states m and recurrent weights F = W_hh W_hr: gates.h's and gates_back.h's launches, a barrier a step
// where W_hh and W_hr one after the other would want two. All else are products of all steps at once, plain launches:
//
//   forward   F = W_hh W_hr;  g_0 += W_hh h0;  m, c by the chain;  y = m W_hr^T
//   back      dh = dy, and dh0's;  dm = dh W_hr;  e by the chain;  dh_l += e_{l+1} W_hh, dh0 = e_0 W_hh;
//             m again from the tape;  dW_hr += dh^T m;  dW_ih, dW_hh, dx of e as ever, from h
//
// F costs 8 P H^2 flops a launch, and a step 8 H^2 where two products would take 8 P H + 2 P H: more where P < 0.8 H,
// of what is bound by barriers and latency. docs/math/recurrent.md.
#ifndef DPCRI_CUDA_GATES_PROJECT_H
#define DPCRI_CUDA_GATES_PROJECT_H

#include "kern/cuda/gates_back.h"

namespace gates {

// What the first step hears: given += W_hh h0. A thread a gate of a sequence.
template <class T>
struct first_given {
    static constexpr int most = threads;
    struct arguments {
        problem<T> p;
        const T *h0;
    };
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t gates = 4 * p.hidden, K = p.heard;
        for (int64_t n = me.block() * threads + me.thread(); n < p.rows * gates; n += me.blocks() * threads) {
            const int64_t row = n / gates, o = n % gates;
            if (length_of<T>(p, row) == 0 || begins(p, row, 0)) continue;
            T sum = 0;
            for (int64_t k = 0; k < K; k++) sum = simt::fma(p.w_hh[o * K + k], a.h0[row * K + k], sum);
            p.given[(place_of(p, row, 0) * p.rows + row) * p.given_row + o] += sum;
        }
    }
};

// ht from y, or h0 where there is no step; y lies as the layer's does.
template <class T>
struct last_heard {
    static constexpr int most = threads;
    struct arguments {
        problem<T> p;
        const T *h0;
        T *to;
    };
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t K = p.heard;
        for (int64_t n = me.block() * threads + me.thread(); n < p.rows * K; n += me.blocks() * threads) {
            const int64_t row = n / K, steps = length_of<T>(p, row), last = p.against ? p.length - 1 : steps - 1;
            const T before = a.h0 ? a.h0[n] : T(0);
            a.to[n] = steps > 0 ? p.y[last * p.y_step + row * p.y_row + (n - row * K)] : before;
        }
    }
};

// ---- back ----

template <class T>
struct project_back {
    back_problem<T> b;  // the layer as it is
    const T *dht;       // or NULL
    T *dh;              // [length][rows][P]
    T *dh0;             // or NULL
};

// dh = what comes from outside: dy, at the last step dht too; 0 where there is no step.
template <class T>
struct heard_given {
    static constexpr int most = threads;
    typedef project_back<T> arguments;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.b.p;
        const int64_t K = p.heard, count = p.length * p.rows * K;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            const int64_t l = n / K / p.rows, row = n / K % p.rows, m = step_at(p, row, l), j = n % K;
            T value = 0;
            if (m >= 0 && a.b.dy) value = a.b.dy[l * a.b.dy_step + row * a.b.dy_row + j];
            if (m >= 0 && a.dht && m == length_of<T>(p, row) - 1) value += a.dht[row * K + j];
            a.dh[n] = value;
        }
    }
};

// dh += e of the next step times W_hh, and dh0: tiles of 16 steps (of a sequence; first of all the ones before the
// first) x 128 numbers of h.
template <class T>
struct heard_back {
    static constexpr int Q = 4, most = threads;
    typedef project_back<T> arguments;
    // e of the step after the one at n, or NULL: none hears of it.
    struct rows {
        const arguments &a;
        int64_t first;
        SIMT const T *at(int i) const {
            const problem<T> &p = a.b.p;
            const int64_t n = first + i, row = n % p.rows;
            if (n >= (p.length + 1) * p.rows) return nullptr;
            const int64_t m = n < p.rows ? -1 : step_at(p, row, n / p.rows - 1);
            if ((n >= p.rows && m < 0) || m + 1 >= length_of<T>(p, row) || begins(p, row, m + 1)) return nullptr;
            return a.b.e + (place_of(p, row, m + 1) * p.rows + row) * 4 * p.hidden;
        }
    };
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.b.p;
        const int64_t H = p.hidden, K = p.heard, all = (p.length + 1) * p.rows, wide = tiles(K, Q * units_of_tile);
        for (int64_t tile = me.block(); tile < wide * tiles(all, items_of_tile); tile += me.blocks()) {
            const int64_t first = tile / wide * items_of_tile, out = tile % wide * (Q * units_of_tile);
            T sum[mine][Q] = {};
            multiply_down<T, Q>(me, rows{a, first}, p.w_hh + out, K, 4 * H, K - out, sum);
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t n = first + me.warp() * mine + i;
                SIMT_UNROLL for (int q = 0; q < Q; q++) {
                    const int64_t j = out + q * units_of_tile + me.in_warp();
                    if (n >= all || j >= K) continue;
                    if (n >= p.rows)
                        a.dh[(n - p.rows) * K + j] += sum[i][q];
                    else if (a.dh0)
                        a.dh0[n * K + j] = length_of<T>(p, n) > 0 ? sum[i][q] : a.dht ? a.dht[n * K + j] : T(0);
                }
            }
        }
    }
};

// m of all steps, in the place of the tape's i; where there is no step, anything.
template <class T>
struct unprojected {
    static constexpr int most = threads;
    typedef back_problem<T> arguments;
    SIMT static void run(simt::lane &me, const arguments &b) {
        const int64_t H = b.hidden, count = b.length * b.rows * H;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            T *tape = b.gates + n / H * 4 * H + n % H;
            T o = tape[3 * H];
            (void)open_sigmoid(b.p, o);
            tape[0] = o * cells::gate_tanh(cut(b.p, b.p.kept[n]));
        }
    }
};

}  // namespace gates

#endif
