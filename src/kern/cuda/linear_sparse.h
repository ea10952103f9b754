// SPDX-License-Identifier: MIT
// linear_large.h's loop and chunks for csr transitions that all have one pattern: z_m = A_m z_{m-1} + b_m.
//
// X stays in shared memory as there, a thread has some rows of op(A), and the values of a step, which lie side by side
// in memory whatever the pattern, are on their way while the one before is multiplied with: a barrier a step. Where two
// steps' values do not fit on chip they are read where they lie. The pattern is read from the first caches.
//
// Work a sequence and step: 2 e flops for e entries by the loop; by chunks 2 e (w + 2), for what a chunk makes of a
// state is dense, and the fold over the chunks, w^2 numbers each, is linear_large.h's. A sum begins with b and runs
// over the row's entries in order, so the loop has a plain loop's bits.
#ifndef DPCRI_CUDA_LINEAR_SPARSE_H
#define DPCRI_CUDA_LINEAR_SPARSE_H

#include "kern/cuda/linear_large.h"

namespace large {

// Shared memory: the values of two steps, where they are staged, then X twice, [column][w].
template <class T>
SIMT_BOTH int64_t staged_numbers(const problem<T> &p) {
    return p.staged ? 2 * (int64_t)p.entries : 0;
}
template <class T>
SIMT_BOTH int64_t shared_of_entries(const problem<T> &p, int columns) {
    return staged_numbers(p) + 2 * p.column_warps * columns * p.w;
}

// A thread has every `units`-th row, of `Columns` columns; Way: running or reducing.
template <class T, int Columns, class Way>
struct sparse_strips {
    typedef problem<T> arguments;
    static constexpr int most = most_threads;

    SIMT static void fetch(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, const item &t, int64_t m,
                           int buffer) {
        const T *a = transition(p, t.of, m);
        if (!p.staged) return;
        for (int e = me.thread(); e < p.entries; e += me.threads()) me.copy_async(s, buffer * p.entries + e, a + e);
    }

    SIMT static int at_rest(const problem<T> &p, int turn, int column) {
        return (int)staged_numbers(p) + (turn * p.column_warps * Columns + column) * (int)p.w;
    }

    // What the sums of a row begin with.
    SIMT static void ready(simt::lane &me, const problem<T> &p, const item &t, int first, int64_t m, int64_t u,
                           T (&to)[Columns]) {
        const int64_t left = Way::columns(p) - t.column - first;
        if (m >= t.end || u >= p.w) return;
        SIMT_UNROLL for (int c = 0; c < Columns; c++) to[c] =
            c < left ? Way::add(me, p, t, {t.column + first + c, m, u}) : T(0);
    }

    SIMT static void multiply(const problem<T> &p, const simt::shared<T> &s, const T *a, int values, int x, int64_t u,
                              T (&sum)[Columns]) {
        const int end = p.offsets[u + 1];
        for (int e = p.offsets[u]; e < end; e++) {
            const int at = p.places ? p.places[e] : e, from = x + p.sources[e];
            const T value = p.staged ? s.get(values + at) : a[at];
            SIMT_UNROLL for (int c = 0; c < Columns; c++) sum[c] = simt::fma(value, s.get(from + c * (int)p.w), sum[c]);
        }
    }

    SIMT static void run_item(simt::lane &me, const problem<T> &p, const item &t) {
        const int columns = p.column_warps * Columns;
        const int unit = me.thread() % p.units, first = me.thread() / p.units * Columns;
        const simt::shared<T> s = me.template array<T>(0, (int)shared_of_entries(p, Columns));
        const int64_t left = Way::columns(p) - t.column;
        int64_t m = t.first + Way::done(p, t);
        T next[Columns] = {}, sum[Columns] = {};
        typename Way::notes notes = {};
        int turn = 0;
        me.barrier();  // the item before has been read
        if (m < t.end) fetch(me, p, s, t, m, 0);
        begin_columns<Way>(me, p, s, t, at_rest(p, 0, 0), columns);
        ready(me, p, t, first, m, unit, next);
        for (; m < t.end; m++, turn = 1 - turn) {
            me.copy_wait();
            me.barrier();  // X and the values are there, for all; what is written and fetched now has been read
            if (m + 1 < t.end) fetch(me, p, s, t, m + 1, 1 - turn);
            for (int64_t u = unit; u < p.w; u += p.units) {
                const bool more = u + p.units < p.w;
                SIMT_UNROLL for (int c = 0; c < Columns; c++) sum[c] = next[c];
                ready(me, p, t, first, more ? m : m + 1, more ? u + p.units : unit, next);
                multiply(p, s, transition(p, t.of, m), turn * p.entries, at_rest(p, turn, first), u, sum);
                SIMT_UNROLL for (int c = 0; c < Columns; c++) {
                    s.set(at_rest(p, 1 - turn, first + c) + (int)u, sum[c]);
                    if (first + c < left)
                        Way::finish(me, p, t, {t.column + first + c, m, u}, T(0), sum[c], T(0), notes);
                }
            }
        }
        leave_columns<Way>(me, p, s, t, at_rest(p, turn, 0), columns);
    }

    SIMT static void run(simt::lane &me, const problem<T> &p) {
        run_items<sparse_strips, Way>(me, p, p.column_warps * Columns);
    }
};

}  // namespace large

#endif
