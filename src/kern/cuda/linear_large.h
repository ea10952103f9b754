// SPDX-License-Identifier: MIT
// Linear chains on a device whose transitions are wider than linear.h holds on chip: z_m = A_m z_{m-1} + b_m, m = 0 ..
// n-1, states of any width w, in order or by products of many chunks side by side.
//
//   loop     X = z0; for each step X = A_m X + b_m: an item is a sequence, or some that share A, as columns of X
//   chunks   N = ceil(n / C) chunks of C steps each, in three launches:
//     reduce   what a chunk makes of a state, M z + v: X = [A_first | b_first], X = A_m X + [0 | b_m]; an item is a
//              chunk and a strip of X's columns, which need nothing of other strips. The first chunk has a state alone,
//              the last one nothing
//     fold     the loop over these, N - 1 steps z = M z + v
//     apply    the loop in every chunk at once, from the states that the fold left before it
//
// All are one kernel: X stays in shared memory, two buffers by turns, and A goes past it in tiles of op(A), the next
// one on its way while one is multiplied with, across steps too, since no A waits for a state: a barrier a tile. All
// launches are plain.
//
// Work a sequence and step: w^2 the loop, w^3 + 2 w^2 the chunks; where sequences share A they share M. Depth: n, or 2
// C
// + N, so C is the power of two next to sqrt(n), from n alone. A goes over memory once for the loop; for the chunks
// twice, the reduction reading it once a strip from the second cache. Workspace: N - 1 of M and of v.
//
// A number's sum begins with b and runs over the state in order, so the loop has one set of bits whatever the shapes of
// blocks, and chunks have those of n, w and C: not of the batch or who shares A. Weighed against cuBLAS in
// docs/design.md.
#ifndef DPCRI_CUDA_LINEAR_LARGE_H
#define DPCRI_CUDA_LINEAR_LARGE_H

#include "kern/cuda/simt.h"

namespace large {

constexpr int most_threads = 256;

template <class T>
struct problem {
    int64_t length, w;
    // A class: the columns that share A. Where all sequences do, `parts` classes of `members` sequences; else a class
    // is a part of a sequence, and has one member.
    int64_t parts, classes, members;
    bool transposed;
    const T *a;
    int64_t a_step, a_row, a_part;
    const T *b;
    int64_t b_step, b_row;
    const T *z0;  // or NULL: z_0 = b_0, and A_0 is not read
    int64_t z0_row;
    T *z;
    int64_t z_step, z_row;
    int64_t chunk, chunks;
    T *products;  // M [chunks - 1][classes][w][w], the first unused
    T *states;    // v, then the states after the chunks [chunks - 1][sequences][parts w]
    int column_warps, units, depth;
    // csr (linear_sparse.h), as kern/device.h has it.
    bool sparse;
    const int32_t *offsets, *sources, *places;
    int entries;
    bool staged;  // are a step's values asked for a step ahead?
};

template <class T>
SIMT_BOTH int64_t sequences(const problem<T> &p) {
    return p.classes / p.parts * p.members;
}

// One block's work: steps first .. end - 1 of a class, columns `column` on of what goes side by side.
struct item {
    int64_t chunk, of, column, first, end;
};

// What lies at the class and member, `row` numbers a sequence.
template <class T>
SIMT int64_t place_of(const problem<T> &p, int64_t of, int64_t member, int64_t row) {
    return (of / p.parts + member) * row + of % p.parts * p.w;
}
template <class T>
SIMT const T *transition(const problem<T> &p, int64_t of, int64_t m) {
    return p.a + m * p.a_step + of / p.parts * p.a_row + of % p.parts * p.a_part;
}
// Of op(A).
template <class T>
SIMT T entry(const problem<T> &p, int64_t of, int64_t m, int64_t i, int64_t j) {
    const T *a = transition(p, of, m);
    if (!p.sparse) return a[p.transposed ? j * p.w + i : i * p.w + j];
    for (int e = p.offsets[i]; e < p.offsets[i + 1]; e++)
        if (p.sources[e] == j) return a[p.places ? p.places[e] : e];
    return 0;
}
template <class T>
SIMT T offset(const problem<T> &p, int64_t of, int64_t member, int64_t m, int64_t i) {
    return p.b[m * p.b_step + place_of(p, of, member, p.b_row) + i];
}
// Number i of the state after a chunk.
template <class T>
SIMT T *state_after(const problem<T> &p, int64_t chunk, int64_t of, int64_t member, int64_t i) {
    const int64_t row = p.parts * p.w;
    return p.states + chunk * sequences(p) * row + place_of(p, of, member, row) + i;
}

// The state before the chain's first step, or without one the first state: then that step is done.
template <class T>
SIMT T start(const problem<T> &p, int64_t of, int64_t member, int64_t i) {
    return p.z0 ? p.z0[place_of(p, of, member, p.z0_row) + i] : offset(p, of, member, 0, i);
}

// ---- what the columns of X are ----
//
// A way tells what a block's columns are and what becomes of them: columns, chunks: how many there are; idle: need
// these columns of an item nothing? done: steps that are done when X is as it begins; begin: a number of it; add: what
// a sum takes beside op(A) X, read ahead; start: what it begins with; finish: the number that is at rest for the next
// step, `own` that of the step before where the way looks back; leave: what is done with X in the end, where it leaves
// anything; end: with what its lanes noted.

// A number of X: its column, the step, the output.
struct spot {
    int64_t column, m, i;
};

// Of a linear chain.
template <class T>
struct linear_way {
    typedef large::problem<T> problem;
    typedef T ahead;
    struct notes {};
    static constexpr bool looks_back = false;
    SIMT static const T *transition(const problem &p, int64_t of, int64_t m) { return large::transition(p, of, m); }
    SIMT static T start(T sum) { return sum; }
    SIMT static void end(simt::lane &, const problem &, const item &, int64_t, const notes &) {}
};

// States, stored step by step.
template <class T>
struct running : linear_way<T> {
    typedef large::problem<T> problem;
    static constexpr bool leaves = false;
    SIMT_BOTH static int64_t columns(const problem &p) { return p.members; }
    SIMT_BOTH static int64_t chunks(const problem &p) { return p.chunks; }
    SIMT static bool idle(simt::lane &, const problem &, const item &, int) { return false; }
    SIMT static int done(const problem &p, const item &t) { return t.chunk == 0 && !p.z0; }
    SIMT static T begin(simt::lane &, const problem &p, const item &t, int64_t member, int64_t i) {
        if (t.chunk > 0) return *state_after(p, t.chunk - 1, t.of, member, i);
        const T z = large::start(p, t.of, member, i);
        if (!p.z0) keep(p, t, {member, 0, i}, z);
        return z;
    }
    SIMT static T add(simt::lane &, const problem &p, const item &t, const spot &at) {
        return offset(p, t.of, at.column, at.m, at.i);
    }
    SIMT static T finish(simt::lane &, const problem &p, const item &t, const spot &at, T, T z, T,
                         typename linear_way<T>::notes &) {
        keep(p, t, at, z);
        return z;
    }
    SIMT static void keep(const problem &p, const item &t, const spot &at, T z) {
        p.z[at.m * p.z_step + place_of(p, t.of, at.column, p.z_row) + at.i] = z;
    }
};

// The columns of M, then v of each member; in the first chunk only the latter, states.
template <class T>
struct reducing : linear_way<T> {
    typedef large::problem<T> problem;
    static constexpr bool leaves = true;
    SIMT_BOTH static int64_t columns(const problem &p) { return p.w + p.members; }
    SIMT_BOTH static int64_t chunks(const problem &p) { return p.chunks - 1; }
    SIMT static bool idle(simt::lane &, const problem &p, const item &t, int columns) {
        return t.chunk == 0 && t.column + columns <= p.w;
    }
    SIMT static int done(const problem &p, const item &t) { return t.chunk > 0 || !p.z0; }
    SIMT static T begin(simt::lane &, const problem &p, const item &t, int64_t column, int64_t i) {
        if (column < p.w && t.chunk == 0) return 0;
        if (column < p.w) return entry(p, t.of, t.first, i, column);
        return t.chunk == 0 ? large::start(p, t.of, column - p.w, i) : offset(p, t.of, column - p.w, t.first, i);
    }
    SIMT static T add(simt::lane &, const problem &p, const item &t, const spot &at) {
        return at.column < p.w ? T(0) : offset(p, t.of, at.column - p.w, at.m, at.i);
    }
    SIMT static T finish(simt::lane &, const problem &, const item &, const spot &, T, T x, T,
                         typename linear_way<T>::notes &) {
        return x;
    }
    SIMT static void leave(simt::lane &, const problem &p, const item &t, int64_t column, int64_t i, T x) {
        if (column >= p.w)
            *state_after(p, t.chunk, t.of, column - p.w, i) = x;
        else if (t.chunk > 0)
            p.products[((t.chunk * p.classes + t.of) * p.w + i) * p.w + column] = x;
    }
};

// Strips, then classes, then chunks: what reads the same A goes at the same time.
template <class Kernel, class Way>
SIMT void run_items(simt::lane &me, const typename Way::problem &p, int columns) {
    const int64_t across = (Way::columns(p) + columns - 1) / columns, all = Way::chunks(p) * p.classes * across;
    for (int64_t n = me.block(); n < all; n += me.blocks()) {
        item t;
        t.column = n % across * columns;
        t.of = n / across % p.classes;
        t.chunk = n / across / p.classes;
        t.first = t.chunk * p.chunk;
        t.end = p.length - t.first < p.chunk ? p.length : t.first + p.chunk;
        if (!Way::idle(me, p, t, columns)) Kernel::run_item(me, p, t);
    }
}

// X in shared memory, [column][w] from number `at` on: as it begins, and what becomes of it in the end. Columns side by
// side are so in memory too.
template <class Way, class T>
SIMT void begin_columns(simt::lane &me, const typename Way::problem &p, const simt::shared<T> &s, const item &t, int at,
                        int columns) {
    const int64_t left = Way::columns(p) - t.column;
    for (int n = me.thread(); n < columns * (int)p.w; n += me.threads()) {
        const int column = n / (int)p.w, i = n % (int)p.w;
        s.set(at + n, column < left ? Way::begin(me, p, t, t.column + column, i) : T(0));
    }
}
template <class Way, class T>
SIMT void leave_columns(simt::lane &me, const typename Way::problem &p, const simt::shared<T> &s, const item &t, int at,
                        int columns) {
    if constexpr (Way::leaves) {
        const int64_t left = Way::columns(p) - t.column;
        me.barrier();
        for (int n = me.thread(); n < columns * (int)p.w; n += me.threads()) {
            const int column = n % columns, i = n / columns;
            if (column < left) Way::leave(me, p, t, t.column + column, i, s.get(at + column * (int)p.w + i));
        }
    }
}

// ---- the kernel ----

// Shared memory: two tiles, number (i, j) of op(A) at j (outputs + 1) + i; then X twice, [column][w].
template <class Problem>
SIMT_BOTH int tile_numbers(const Problem &p, int rows) {
    return p.depth * (rows * p.units + 1);
}
template <class Problem>
SIMT_BOTH int64_t shared_numbers(const Problem &p, int rows, int columns) {
    return 2 * (int64_t)tile_numbers(p, rows) + 2 * p.column_warps * columns * p.w;
}

// A thread has `Rows` outputs, `units` apart, of `Columns` columns.
template <class T, int Rows, int Columns, class Way>
struct strips {
    typedef typename Way::problem problem, arguments;
    typedef typename Way::ahead ahead;
    static constexpr int most = most_threads;

    // Where a tile of op(A) lies: step m, outputs u0 .., inputs j0 ..
    struct place {
        int64_t m, u0, j0;
    };
    SIMT static place after(const problem &p, place at) {
        at.j0 += p.depth;
        if (at.j0 < p.w) return at;
        at.j0 = 0;
        at.u0 += Rows * p.units;
        if (at.u0 < p.w) return at;
        at.u0 = 0;
        at.m++;
        return at;
    }
    SIMT static int tall_of(const problem &p, const place &at) {
        return p.w - at.j0 < p.depth ? (int)(p.w - at.j0) : p.depth;
    }
    SIMT static int wide_of(const problem &p, const place &at) {
        return p.w - at.u0 < Rows * p.units ? (int)(p.w - at.u0) : Rows * p.units;
    }

    // Asks for a tile, numbers that lie side by side by lanes side by side.
    SIMT static void fetch(simt::lane &me, const problem &p, const simt::shared<T> &s, const item &t, const place &at,
                           int buffer) {
        const int base = buffer * tile_numbers(p, Rows), stride = Rows * p.units + 1;
        const int tall = tall_of(p, at), wide = wide_of(p, at), warps = me.threads() / simt::warp_size;
        const T *a = Way::transition(p, t.of, at.m);
        if (p.transposed) {
            a += at.j0 * p.w + at.u0;
            for (int j = me.warp(); j < tall; j += warps)
                for (int i = me.in_warp(); i < wide; i += simt::warp_size)
                    me.copy_async(s, base + j * stride + i, a + j * p.w + i);
        } else {
            a += at.u0 * p.w + at.j0;
            for (int i = me.warp(); i < wide; i += warps)
                for (int j = me.in_warp(); j < tall; j += simt::warp_size)
                    me.copy_async(s, base + j * stride + i, a + i * p.w + j);
        }
    }

    // The thread's first column and output among those of a strip and a tile.
    SIMT static int column_of(simt::lane &me, const problem &p) { return me.thread() / p.units * Columns; }
    SIMT static int at_rest(const problem &p, int turn, int column) {
        return 2 * tile_numbers(p, Rows) + (turn * p.column_warps * Columns + column) * (int)p.w;
    }

    // What the sums of an output tile begin with.
    SIMT static void ready(simt::lane &me, const problem &p, const item &t, const place &at,
                           ahead (&to)[Rows][Columns]) {
        if (at.m >= t.end) return;
        const int64_t left = Way::columns(p) - t.column;
        SIMT_UNROLL for (int c = 0; c < Columns; c++) SIMT_UNROLL for (int r = 0; r < Rows; r++) {
            const int64_t u = at.u0 + me.thread() % p.units + r * p.units, column = column_of(me, p) + c;
            to[r][c] = column < left && u < p.w ? Way::add(me, p, t, {t.column + column, at.m, u}) : ahead();
        }
    }

    // sums += the tile's numbers times those of X. Outputs beyond the tile are the last one's again.
    SIMT static void multiply(simt::lane &me, const problem &p, const simt::shared<T> &s, const place &at, int buffer,
                              int turn, T (&sum)[Rows][Columns]) {
        const int tall = tall_of(p, at), wide = wide_of(p, at), stride = Rows * p.units + 1;
        int from[Rows], x[Columns];
        SIMT_UNROLL for (int r = 0; r < Rows; r++) {
            const int i = me.thread() % p.units + r * p.units;
            from[r] = buffer * tile_numbers(p, Rows) + (i < wide ? i : wide - 1);
        }
        SIMT_UNROLL for (int c = 0; c < Columns; c++) x[c] = at_rest(p, turn, column_of(me, p) + c) + (int)at.j0;
        for (int j = 0; j < tall; j++) {
            T a[Rows];
            SIMT_UNROLL for (int r = 0; r < Rows; r++) a[r] = s.get(from[r] + j * stride);
            SIMT_UNROLL for (int c = 0; c < Columns; c++) {
                const T z = s.get(x[c] + j);
                SIMT_UNROLL for (int r = 0; r < Rows; r++) sum[r][c] = simt::fma(a[r], z, sum[r][c]);
            }
        }
    }

    // From X of `turn` to that of the other one.
    SIMT static void store(simt::lane &me, const problem &p, const simt::shared<T> &s, const item &t, const place &at,
                           int turn, const ahead (&with)[Rows][Columns], const T (&sum)[Rows][Columns],
                           typename Way::notes &notes) {
        const int64_t left = Way::columns(p) - t.column;
        SIMT_UNROLL for (int c = 0; c < Columns; c++) SIMT_UNROLL for (int r = 0; r < Rows; r++) {
            const int64_t u = at.u0 + me.thread() % p.units + r * p.units;
            const int column = column_of(me, p) + c;
            if (u >= p.w) continue;
            T x = sum[r][c], own = 0;
            if (column < left) {
                if constexpr (Way::looks_back) own = s.get(at_rest(p, turn, column) + (int)u);
                x = Way::finish(me, p, t, {t.column + column, at.m, u}, with[r][c], x, own, notes);
            }
            s.set(at_rest(p, 1 - turn, column) + (int)u, x);
        }
    }

    SIMT static void run_item(simt::lane &me, const problem &p, const item &t) {
        const int columns = p.column_warps * Columns;
        const simt::shared<T> s = me.template array<T>(0, (int)shared_numbers(p, Rows, Columns));
        place at = {t.first + Way::done(p, t), 0, 0};
        ahead next[Rows][Columns] = {}, with[Rows][Columns] = {};
        T sum[Rows][Columns] = {};
        typename Way::notes notes = {};
        int buffer = 0, turn = 0;
        me.barrier();  // the item before has been read
        if (at.m < t.end) fetch(me, p, s, t, at, 0);
        begin_columns<Way>(me, p, s, t, at_rest(p, 0, 0), columns);
        ready(me, p, t, at, next);
        while (at.m < t.end) {
            me.copy_wait();
            me.barrier();  // the tile is there, for all; the other one, and X of the step before the last, were read
            const place then = after(p, at);
            if (then.m < t.end) fetch(me, p, s, t, then, 1 - buffer);
            if (at.j0 == 0) {
                SIMT_UNROLL for (int r = 0; r < Rows; r++) SIMT_UNROLL for (int c = 0; c < Columns; c++) {
                    with[r][c] = next[r][c];
                    sum[r][c] = Way::start(next[r][c]);
                }
                const bool more = at.u0 + Rows * p.units < p.w;
                ready(me, p, t, more ? place{at.m, at.u0 + Rows * p.units, 0} : place{at.m + 1, 0, 0}, next);
            }
            multiply(me, p, s, at, buffer, turn, sum);
            if (then.j0 == 0) store(me, p, s, t, at, turn, with, sum, notes);
            if (then.m != at.m) turn = 1 - turn;
            buffer = 1 - buffer;
            at = then;
        }
        leave_columns<Way>(me, p, s, t, at_rest(p, turn, 0), columns);
        Way::end(me, p, t, column_of(me, p), notes);
    }

    SIMT static void run(simt::lane &me, const problem &p) { run_items<strips, Way>(me, p, p.column_warps * Columns); }
};

}  // namespace large

#endif
