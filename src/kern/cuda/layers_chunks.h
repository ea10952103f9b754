// SPDX-License-Identifier: MIT
// Overlapped chunks of a stack of layers of any width (layers.h, layers_norm.h, layers_two.h), all sweeps in one
// cooperative launch.
//
// An item is a chunk of a group of rows, one block's work as in layers.h. Sweep 1: each runs `warm_up` layers from zero
// (or from z0, where they would begin before it), notes the states that it starts from, runs and stores its chunk. Then
// all look, a warp a chunk and row: where a start is not what the chunk before ended with, the row is open, and in the
// next sweep its chunk runs again from there; rows of its group that are not open run again from where they did, to the
// same bits. What is open after the last sweep goes in order, chunk by chunk, a block a group. Items see only what the
// sweep before left, so nothing depends on who is first, and a row's bits on no other row.
//
// 2 w^2 (warm_up + chunk) flops a chunk and row, length / chunk chunks at once. docs/math/overlap.md.
#ifndef DPCRI_CUDA_LAYERS_CHUNKS_H
#define DPCRI_CUDA_LAYERS_CHUNKS_H

#include "kern/cuda/layers_two.h"

namespace layers {

template <class T>
struct chunked {
    problem<T> p;
    int64_t chunk, warm_up, chunks;
    T *starts;              // [chunks][rows][w]: where a row's chunk started, or is to start
    uint32_t *open;         // [chunks][rows]
    uint32_t *counts;       // [most_sweeps + 1]: is anything open after that sweep? zero at first
    cells::tally *tallies;  // [rows], zero at first; NULL where there is no outcome
};

template <class T, int M, class Way>
struct chunks {
    typedef chunked<T> arguments;
    static constexpr int most = most_threads;

    SIMT static int64_t rows_of_group(const problem<T> &p) { return p.group; }
    SIMT static int64_t groups(const problem<T> &p) { return (p.c.columns + rows_of_group(p) - 1) / rows_of_group(p); }
    SIMT static T *start(const arguments &a, int64_t k, int64_t row) {
        return a.starts + (k * a.p.c.columns + row) * a.p.w;
    }
    // The states that chunk k > 0 of a row is to start from.
    SIMT static const T *left(const arguments &a, int64_t k, int64_t row) {
        return a.p.c.z + (k * a.chunk - 1) * a.p.c.z_step + row * a.p.c.z_row;
    }

    // A group's layers `from` to the end of chunk k, as a stack of their own that begins at z0.
    SIMT static void run_part(simt::lane &me, const arguments &a, int64_t k, int64_t group, int64_t from, const T *z0,
                              int64_t z0_row) {
        problem<T> q = a.p;
        const int64_t weights = from * q.c.weight_step, others = from * q.c.x_step;
        q.c.length = (k + 1 < a.chunks ? (k + 1) * a.chunk : q.c.length) - from;
        q.c.weight += weights, q.c.x += others;
        if (q.two) q.weight2 += weights, q.x2 += others;
        if (q.gamma) q.gamma += others, q.beta += others;
        q.c.z += from * q.c.z_step;
        q.c.z0 = z0, q.c.z0_row = z0_row;
        q.c.outcome = nullptr;
        q.warm = k * a.chunk - from;
        q.starts = start(a, k, 0);
        stack<T, M, Way, false, M == 1>::run_group(me, q, group);
    }

    SIMT static void first_sweep(simt::lane &me, const arguments &a, int64_t k, int64_t group) {
        const int64_t first = k * a.chunk, from = first > a.warm_up ? first - a.warm_up : 0;
        run_part(me, a, k, group, from, from == 0 ? a.p.c.z0 : nullptr, a.p.c.z0_row);
    }
    SIMT static void run_again(simt::lane &me, const arguments &a, int64_t k, int64_t group) {
        run_part(me, a, k, group, k * a.chunk, start(a, k, 0), a.p.w);
    }

    // Is a row's chunk k > 0 open? By a warp; with `renew` an open one is to start from what is left of it.
    SIMT static bool look(simt::lane &me, const arguments &a, int64_t k, int64_t row, bool renew) {
        T *const own = start(a, k, row);
        const T *const before = left(a, k, row);
        bool far = false;
        for (int64_t u = me.in_warp(); u < a.p.w; u += simt::warp_size) {
            const T x[1] = {me.peer_load(own + u)}, y[1] = {me.peer_load(before + u)};
            far = far || !cells::close<T, 1>(a.p.c, x, y);
        }
        const bool open = me.any(far);
        for (int64_t u = me.in_warp(); open && renew && u < a.p.w; u += simt::warp_size)
            me.peer_store(own + u, me.peer_load(before + u));
        if (me.in_warp() == 0) me.peer_store(a.open + k * a.p.c.columns + row, (uint32_t)open);
        return open;
    }

    SIMT static bool any_open(simt::lane &me, const arguments &a, int64_t k, int64_t group) {
        const int64_t first = group * rows_of_group(a.p), rows = a.p.c.columns;
        bool open = false;
        for (int64_t row = first; row < first + rows_of_group(a.p) && row < rows; row++)
            open = open || me.peer_load(a.open + k * rows + row) != 0;
        return open;
    }

    SIMT static void look_at_all(simt::lane &me, const arguments &a, int sweeps) {
        const int64_t rows = a.p.c.columns, warps = me.threads() / simt::warp_size;
        for (int64_t n = me.block() * warps + me.warp(); n < (a.chunks - 1) * rows; n += me.blocks() * warps) {
            const bool open = look(me, a, 1 + n / rows, n % rows, sweeps < a.p.c.most_sweeps);
            if (!open || me.in_warp() != 0) continue;
            me.raise(a.counts + sweeps, 1);
            if (a.tallies && sweeps < a.p.c.most_sweeps) me.raise(&a.tallies[n % rows].sweeps, (uint32_t)sweeps + 1);
        }
    }

    SIMT static void finish(simt::lane &me, const arguments &a, int64_t group) {
        const int64_t first = group * rows_of_group(a.p), warps = me.threads() / simt::warp_size;
        for (int64_t k = 1; k < a.chunks; k++) {
            me.barrier();  // the chunk before is there, and the flags of the one before that were read
            for (int64_t r = me.warp(); r < rows_of_group(a.p) && first + r < a.p.c.columns; r += warps) {
                const bool open = look(me, a, k, first + r, !a.p.c.stop);
                if (open && me.in_warp() == 0 && a.tallies)
                    me.raise(&a.tallies[first + r].from_end, (uint32_t)(a.p.c.length - k * a.chunk));
            }
            me.barrier();
            if (!a.p.c.stop && any_open(me, a, k, group)) run_again(me, a, k, group);
        }
    }

    SIMT static void tell(simt::lane &me, const arguments &a, int64_t k, int64_t row) {
        cells::tally *t = a.tallies + row;
        for (int64_t u = me.in_warp(); u < a.p.w; u += simt::warp_size) {
            const T *end = a.p.c.z + (a.p.c.length - 1) * a.p.c.z_step + row * a.p.c.z_row;
            if (k > 0) {
                const T x[1] = {me.peer_load(start(a, k, row) + u)}, y[1] = {me.peer_load(left(a, k, row) + u)};
                const float d = (float)cells::distance<T, 1>(x, y);
                if (d > 0) me.raise(&t->residual, cells::bits_of(d));
            }
            if (k + 1 == a.chunks && !cells::finite(me.peer_load(end + u))) me.raise(&t->non_finite, 1);
        }
        if (k + 1 == a.chunks && me.in_warp() == 0) me.raise(&t->sweeps, 1);
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t across = groups(a.p), items = a.chunks * across, rows = a.p.c.columns;
        for (int64_t n = me.block(); n < items; n += me.blocks()) first_sweep(me, a, n / across, n % across);
        me.grid_barrier();
        bool closed = false;
        for (int sweeps = 1; !closed && sweeps <= a.p.c.most_sweeps; sweeps++) {
            look_at_all(me, a, sweeps);
            me.grid_barrier();
            closed = me.acquire(a.counts + sweeps) == 0;
            if (closed || sweeps == a.p.c.most_sweeps) break;
            for (int64_t n = me.block() + across; n < items; n += me.blocks())
                if (any_open(me, a, n / across, n % across)) run_again(me, a, n / across, n % across);
            me.grid_barrier();
        }
        if (!closed) {
            for (int64_t group = me.block(); group < across; group += me.blocks()) finish(me, a, group);
            me.grid_barrier();
        }
        if (!a.tallies) return;
        const int64_t warps = me.threads() / simt::warp_size;
        for (int64_t n = me.block() * warps + me.warp(); n < a.chunks * rows; n += me.blocks() * warps)
            tell(me, a, n / rows, n % rows);
        me.grid_barrier();
        cells::report(me, a.p.c, a.tallies);
    }
};

}  // namespace layers

#endif
