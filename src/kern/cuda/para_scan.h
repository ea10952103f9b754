// SPDX-License-Identifier: MIT
// The chain of para_back.h by a scan: the way back after newton, whose cost no chain that remembers for long can raise.
//
// G_m, what comes to the state after step m, is linear in the one after it, with J of the state (h, or c and h):
//
//     G_{n-1} = dy_{n-1} + dlast        G_m = dy_m + J_{m+1}^T G_{m+1}        dfirst = J_0^T G_0
//
// It is linear.h's chain, transposed and from the last step, a unit of a sequence a column. Jacobians and offsets are
// made from the states as a tile comes in, and G becomes e as it goes out: neither is written. A step of the cell twice
// and K^3 + 2 K^2 multiply-adds a step, K = 1 or 2. Source: ParaRNN (arXiv 2510.21450); docs/math/backward.md.
//
// A tile's summary (M, v) has the product of up to 512 Jacobians (256 where K = 2): where M overflows while the G that
// comes in is exactly 0, M 0 + v is NaN, told as non_finite, though the loop's gradient is finite.
#ifndef DPCRI_CUDA_PARA_SCAN_H
#define DPCRI_CUDA_PARA_SCAN_H

#include "kern/cuda/linear.h"
#include "kern/cuda/para_back.h"

namespace gates {

template <class T, int Kind>
struct para_scan {
    static constexpr bool made = true, fused = true;
    typedef para_back_problem<T> arguments;
    typedef para_backs<T, Kind> backs;
    typedef para<T, Kind> forward;
    static constexpr int K = forward::K;

    // Step k of a column's sequence: which, where it lies, and what the cell had there.
    struct step {
        int64_t row, unit, k, l, at;
        own_weights<T> weights;
        const T *given;
        T h, c;  // before the step
        SIMT step(const arguments &b, int64_t column, int64_t which) {
            const problem<T> &p = b.p;
            row = column / p.hidden;
            unit = column % p.hidden;
            k = which;
            l = place_of(p, row, k);
            at = l * p.rows + row;
            weights = weights_of(b.diagonals, b.peepholes, p.hidden, unit);
            given = p.given + at * p.given_row + unit;
            const T *before = before_of(b, row, k);
            h = before ? before[unit] : T(0);
            c = backs::cell ? cell_before(b, row, k, unit) : T(0);
        }
    };

    SIMT static int64_t steps_of(const arguments &b, int64_t column) { return length_of<T>(b.p, column / b.p.hidden); }

    // J of the step behind, over which G comes to the m-th from the end.
    SIMT static void transition(const arguments &b, int64_t column, int64_t m, T (&j)[K * K]) {
        const int64_t n = steps_of(b, column);
        if (m >= n || begins(b.p, column / b.p.hidden, n - m)) return;  // zeros
        const step s(b, column, n - m);
        T state[K];
        state[0] = s.c, state[K - 1] = s.h;
        forward::linearise(s.weights, s.given, b.p.hidden, state, j);
    }

    // v is zero.
    SIMT static void offset(const arguments &b, int64_t column, int64_t m, T (&v)[K]) {
        const int64_t n = steps_of(b, column), row = column / b.p.hidden, u = column % b.p.hidden;
        if (m >= n) return;
        if (m == 0 && b.first_cell && K == 2) v[0] = b.first_cell[column];
        if (m == 0 && b.first) v[K - 1] = b.first[column];
        if (b.dy) v[K - 1] += b.dy[place_of(b.p, row, n - 1 - m) * b.dy_step + row * b.dy_row + u];
    }

    SIMT static void take(simt::lane &me, const arguments &b, int64_t column, int64_t m, const T (&z)[K]) {
        const int64_t n = steps_of(b, column), H = b.p.hidden, row = column / H, u = column % H;
        if (m == 0 && u == 0 && b.outcome) {
            b.outcome[row].sweeps = 1;
            b.outcome[row].locked = b.p.length;
        }
        if (m == 0 && n == 0)
            leave(me, b, column, b.first ? b.first[column] : T(0), b.first_cell ? b.first_cell[column] : T(0));
        if (m >= n) return rest(b, row, u, b.p.against ? b.p.length - 1 - m : m);
        const step s(b, column, n - 1 - m);
        T g = z[K - 1], gc = z[0], e[4];
        backs::back(s.weights, s.given, H, s.h, s.c, g, gc, e);
        SIMT_UNROLL for (int q = 0; q < backs::G; q++) b.e[(s.at * backs::G + q) * H + u] = e[q];
        if (Kind == DPCRI_DEVICE_PARAGRU) b.reset_e[s.at * H + u] = e[3];
        const bool begun = begins(b.p, row, s.k);
        if (s.k == 0) leave(me, b, column, begun ? T(0) : g, begun ? T(0) : gc);
    }

    // e is 0 where a sequence has no step; reset_e is not asked for there.
    SIMT static void rest(const arguments &b, int64_t row, int64_t u, int64_t l) {
        SIMT_UNROLL for (int q = 0; q < backs::G; q++) b.e[((l * b.p.rows + row) * backs::G + q) * b.p.hidden + u] = 0;
    }

    // What comes to the state before the first step. Outcomes are zero when the launch begins.
    SIMT static void leave(simt::lane &me, const arguments &b, int64_t column, T g, T gc) {
        if (b.last) b.last[column] = g;
        if (K == 2 && b.last_cell) b.last_cell[column] = gc;
        const bool good = cells::finite(g) && (K == 1 || cells::finite(gc));
        if (b.outcome && !good) me.raise(reinterpret_cast<uint32_t *>(&b.outcome[column / b.p.hidden].non_finite), 1);
    }
};

// ---- the launcher ----

template <class T>
linear::problem<T> scan_of(const dpcri_device_recurrent &c) {
    linear::problem<T> p = {};
    p.length = c.length;
    p.parts = c.hidden;
    p.columns = c.rows * c.hidden;
    p.transposed = true;
    return p;
}

template <class T, int Kind>
size_t scan_bytes(const dpcri_device_recurrent &c) {
    constexpr int K = para_scan<T, Kind>::K;
    linear::problem<T> p = scan_of<T>(c);
    return linear::plan<T, K, linear::usual<T, K>, linear::usual_group<T, K>()>(&p).bytes;
}

template <class T, int Kind>
int launch_scan(const dpcri_device_recurrent &c, const para_back_problem<T> &b, void *workspace, void *stream) {
    typedef para_scan<T, Kind> source;
    constexpr int K = source::K;
    const int status = c.outcome ? simt::clear(c.outcome, (size_t)c.rows * sizeof *c.outcome, stream) : 0;
    if (status != 0) return status;
    return linear::run<T, K, linear::usual<T, K>, linear::usual_group<T, K>(), source>(scan_of<T>(c), workspace, stream,
                                                                                       b);
}

}  // namespace gates

#endif
