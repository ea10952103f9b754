// SPDX-License-Identifier: MIT
// Narrow cells on a device: u = W_m z + x_m, z' = act(u) or z + scale act(u), columns of width K that mix with no
// others (a dense cell's sequences, a diagonal one's components). What the kernels over them share.
//
// Sums, and float's tanh and sigmoid, are those of kern/narrow.h operation by operation, so that the loop's bits here
// are those of a CPU that has fma. double's tanh has a formula of its own (2 ulp).
#ifndef DPCRI_CUDA_CELLS_H
#define DPCRI_CUDA_CELLS_H

#include "kern/cuda/activations.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/simt.h"

namespace cells {

template <class T>
struct problem {
    int64_t length, columns, parts;  // parts: columns of a sequence
    int activation;
    bool residual, diagonal, in_out;  // in_out: a dense W lies as [in][out]
    T scale;
    const T *weight;
    int64_t weight_step;
    const T *x;
    int64_t x_step, x_row;
    const T *z0;
    int64_t z0_row;
    T *z;
    int64_t z_step, z_row;
    double atol, rtol;
    int most_sweeps;
    bool stop;                     // what is open is left open
    dpcr_device_outcome *outcome;  // or NULL
};

// Where a column's numbers begin.
template <class T, int K>
struct column {
    const T *weight, *x, *z0;
    T *z;
    SIMT column(const problem<T> &p, int64_t c) {
        const int64_t row = c / p.parts, part = c % p.parts;
        weight = p.weight + (p.diagonal ? part : 0);
        x = p.x + row * p.x_row + part * K;
        z0 = p.z0 ? p.z0 + row * p.z0_row + part * K : nullptr;
        z = p.z + row * p.z_row + part * K;
    }
};

template <class T, int K>
SIMT void read_weight(const problem<T> &p, const column<T, K> &c, int64_t m, T (&w)[K * K]) {
    const T *from = c.weight + m * p.weight_step;
    SIMT_UNROLL for (int i = 0; i < K * K; i++) w[i] = from[K > 1 && p.in_out ? i % K * K + i / K : i];
}

// u = W z + x; W's columns are counted from the row's own.
template <class T, int K>
SIMT void inner(const T (&w)[K * K], const T *x, const T (&z)[K], T (&u)[K]) {
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        u[i] = simt::fma(w[i * K + i], z[i], x[i]);
        if constexpr (K == 2) u[i] = u[i] + w[i * K + 1 - i] * z[1 - i];
        if constexpr (K == 4) {
            const int j = (i + 1) % 4, k = (i + 2) % 4, l = (i + 3) % 4;
            u[i] = (u[i] + w[i * K + l] * z[l]) + (w[i * K + j] * z[j] + w[i * K + k] * z[k]);
        }
    }
}

// z = the step's value at z. Act: the activation where the code is to hold no other, or -1: p's.
template <class T, int K, int Act = -1>
SIMT void advance(const problem<T> &p, const T (&w)[K * K], const T *x, T (&z)[K]) {
    T u[K];
    inner<T, K>(w, x, z, u);
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        const T y = value(Act >= 0 ? Act : p.activation, u[i]);
        z[i] = p.residual ? simt::fma(p.scale, y, z[i]) : y;
    }
}
template <class T, int K>
SIMT void advance(const problem<T> &p, const column<T, K> &c, const T (&w)[K * K], int64_t m, T (&z)[K]) {
    advance<T, K>(p, w, c.x + m * p.x_step, z);
}

// J = df_i/dz_k from act'(u).
template <class T, int K>
SIMT void jacobian(const problem<T> &p, const T (&w)[K * K], const T (&slopes)[K], T (&j)[K * K]) {
    SIMT_UNROLL for (int i = 0; i < K; i++) SIMT_UNROLL for (int k = 0; k < K; k++) {
        const T value = slopes[i] * w[i * K + k];
        j[i * K + k] = p.residual ? simt::fma(p.scale, value, T(i == k ? 1 : 0)) : value;
    }
}

template <class T, int K>
SIMT void begin(const column<T, K> &c, T (&z)[K]) {
    SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = c.z0 ? c.z0[i] : T(0);
}

// What some steps need, asked for while those before them are made. Own: each has a W of its own.
template <class T, int K, bool Own>
struct supply {
    static constexpr int numbers = K + (Own ? K * K : 0), room = 64 * 4 / (int)sizeof(T) / 2;
    static constexpr int ahead = room / numbers > 16 ? 16 : room / numbers > 1 ? room / numbers : 1;
    T x[ahead][K], w[Own ? ahead : 1][K * K];
    SIMT void ask(const problem<T> &p, const column<T, K> &c, int64_t m, int64_t end) {
        const T *from = c.x + m * p.x_step;
        SIMT_UNROLL for (int d = 0; d < ahead; d++, from += p.x_step) {
            if (m + d >= end) break;
            SIMT_UNROLL for (int i = 0; i < K; i++) x[d][i] = from[i];
            if constexpr (Own) read_weight<T, K>(p, c, m + d, w[d]);
        }
    }
};

template <class T, int K, bool Own, int Act, class Each>
SIMT void walk_with(const problem<T> &p, const column<T, K> &c, int64_t first, int64_t end, T (&z)[K],
                    const Each &each) {
    supply<T, K, Own> now = {}, next = {};
    if (first >= end) return;
    if constexpr (!Own) read_weight<T, K>(p, c, first, now.w[0]);
    now.ask(p, c, first, end);
    SIMT_ROLLED for (int64_t m = first; m < end; m += now.ahead) {
        next.ask(p, c, m + now.ahead, end);
        SIMT_UNROLL for (int d = 0; d < now.ahead; d++) {
            if (m + d >= end) break;
            advance<T, K, Act>(p, now.w[Own ? d : 0], now.x[d], z);
            if (!each(m + d)) return;
        }
        SIMT_UNROLL for (int d = 0; d < now.ahead; d++) {
            SIMT_UNROLL for (int i = 0; i < K; i++) now.x[d][i] = next.x[d][i];
            if constexpr (Own) SIMT_UNROLL for (int i = 0; i < K * K; i++) now.w[d][i] = next.w[d][i];
        }
    }
}
// Steps first .. end - 1 from z; each(m) after step m: whether to go on. A step of the usual activations is short, and
// many of them lie one after another: code of others between them is what they would wait for.
template <class T, int K, int Act, class Each>
SIMT void walk_as(const problem<T> &p, const column<T, K> &c, int64_t first, int64_t end, T (&z)[K], const Each &each) {
    if (p.weight_step != 0)
        walk_with<T, K, true, Act>(p, c, first, end, z, each);
    else
        walk_with<T, K, false, Act>(p, c, first, end, z, each);
}
template <class T, int K, class Each>
SIMT void walk(const problem<T> &p, const column<T, K> &c, int64_t first, int64_t end, T (&z)[K], const Each &each) {
    if (p.activation == DPCRI_CUDA_RELU)
        walk_as<T, K, DPCRI_CUDA_RELU>(p, c, first, end, z, each);
    else if (p.activation == DPCRI_CUDA_TANH)
        walk_as<T, K, DPCRI_CUDA_TANH>(p, c, first, end, z, each);
    else
        walk_as<T, K, -1>(p, c, first, end, z, each);
}

// The same, all of them stored.
template <class T, int K>
SIMT void run_and_store(simt::lane &me, const problem<T> &p, const column<T, K> &c, int64_t first, int64_t end,
                        T (&z)[K]) {
    walk<T, K>(p, c, first, end, z, [&](int64_t m) {
        SIMT_UNROLL for (int i = 0; i < K; i++) me.peer_store(c.z + m * p.z_step + i, z[i]);
        return true;
    });
}

// How far a is from b against max(1, |b|), the largest of K; not less than `most` where one alone is NaN, 0 where both
// are.
template <class T, int K>
SIMT T distance(const T (&a)[K], const T (&b)[K]) {
    T most = 0;
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        const bool equal = a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]);
        T d = equal ? T(0) : magnitude(a[i] - b[i]) / (magnitude(b[i]) > 1 ? magnitude(b[i]) : T(1));
        if (!(d <= T(3.0e38))) d = T(3.0e38);
        most = d > most ? d : most;
    }
    return most;
}

// Every component of a within atol + rtol |b| of b's, or equal, infinities too, or both NaN.
template <class T, int K>
SIMT bool close(const problem<T> &p, const T (&a)[K], const T (&b)[K]) {
    bool all = true;
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        const bool equal = a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]);
        const T far = a[i] - b[i];
        all = all && (equal || (finite(far) && magnitude(far) <= T(p.atol) + T(p.rtol) * magnitude(b[i])));
    }
    return all;
}

// What a launch gathers of a sequence, by the largest number of all that are told: no order matters.
struct tally {
    uint32_t sweeps, residual, non_finite, from_end;  // residual: a float's bits; from_end: length - locked
};

template <class T>
SIMT void report(simt::lane &me, const problem<T> &p, const tally *tallies) {
    if (!p.outcome) return;
    const int64_t rows = p.columns / p.parts;
    for (int64_t r = me.block() * me.threads() + me.thread(); r < rows; r += me.blocks() * me.threads()) {
        dpcr_device_outcome o;
        o.sweeps = (int32_t)me.peer_load(&tallies[r].sweeps);
        o.non_finite = (int32_t)me.peer_load(&tallies[r].non_finite);
        o.locked = p.length - (int64_t)me.peer_load(&tallies[r].from_end);
        o.residual = float_of(me.peer_load(&tallies[r].residual));
        p.outcome[r] = o;
    }
}

template <class T, int K>
SIMT void note_end(simt::lane &me, const problem<T> &p, const column<T, K> &c, tally *t) {
    bool good = true;
    SIMT_UNROLL for (int i = 0; i < K; i++) good = good && finite(me.peer_load(c.z + (p.length - 1) * p.z_step + i));
    if (!good) me.raise(&t->non_finite, 1);
}

// ---- the loop: a thread a column; outcomes are zero at first ----

template <class T, int K>
struct loop {
    struct arguments {
        problem<T> p;
        tally *tallies;  // unread
    };
    static constexpr int most = 128;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        for (int64_t i = me.block() * me.threads() + me.thread(); i < p.columns; i += me.blocks() * me.threads()) {
            const column<T, K> c(p, i);
            T z[K];
            begin<T, K>(c, z);
            run_and_store<T, K>(me, p, c, 0, p.length, z);
            if (!p.outcome) continue;
            dpcr_device_outcome *o = p.outcome + i / p.parts;
            bool good = true;
            SIMT_UNROLL for (int j = 0; j < K; j++) good = good && finite(z[j]);
            if (!good) me.raise(reinterpret_cast<uint32_t *>(&o->non_finite), 1);
            if (i % p.parts != 0) continue;
            o->sweeps = 1;
            o->locked = p.length;
            o->residual = 0;
        }
    }
};

// ---- overlapped chunks, all sweeps in one cooperative launch ----
//
// An item is a chunk of a column, columns innermost. Sweep 1: each runs `warm_up` steps from zero (or from z0, where
// they would begin before it), notes the state that it starts from, runs and stores its chunk. Then all look: a chunk
// whose start is not what its neighbour ended with is open, and in the next sweep runs again from there until it meets
// what stands in its place. What is open after the last sweep is finished in order by a thread a column, which passes
// over chunks that fit. Items see only what the sweep before left, so nothing depends on who is first.
// docs/math/overlap.md.

template <class T, int K>
struct overlap {
    struct arguments {
        problem<T> p;
        int64_t chunk, warm_up, chunks;
        T *starts, *fresh;  // [chunks][columns][K]: where an item started; where it is to start
        uint32_t *open;     // [chunks][columns]
        uint32_t *counts;   // [most_sweeps + 1]: is anything open after that sweep? zero at first
        tally *tallies;     // [sequences], zero at first; NULL where there is no outcome
    };
    static constexpr int most = 128;

    SIMT static int64_t end_of(const arguments &a, int64_t k) {
        return k + 1 < a.chunks ? (k + 1) * a.chunk : a.p.length;
    }

    // Chunk k > 0: where it started, and its neighbour's last state.
    SIMT static void boundary(simt::lane &me, const arguments &a, const column<T, K> &c, int64_t item, int64_t k,
                              T (&start)[K], T (&left)[K]) {
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            left[i] = me.peer_load(c.z + (k * a.chunk - 1) * a.p.z_step + i);
            start[i] = me.peer_load(a.starts + item * K + i);
        }
    }

    // Runs chunk k again from z, until it meets what stands there.
    SIMT static void again(simt::lane &me, const arguments &a, const column<T, K> &c, int64_t item, int64_t k,
                           T (&z)[K]) {
        const problem<T> &p = a.p;
        SIMT_UNROLL for (int i = 0; i < K; i++) me.peer_store(a.starts + item * K + i, z[i]);
        walk<T, K>(p, c, k * a.chunk, end_of(a, k), z, [&](int64_t m) {
            T old[K];
            SIMT_UNROLL for (int i = 0; i < K; i++) old[i] = me.peer_load(c.z + m * p.z_step + i);
            if (close<T, K>(p, old, z)) return false;
            SIMT_UNROLL for (int i = 0; i < K; i++) me.peer_store(c.z + m * p.z_step + i, z[i]);
            return true;
        });
    }

    SIMT static void first_sweep(simt::lane &me, const arguments &a, int64_t item) {
        const problem<T> &p = a.p;
        const int64_t k = item / p.columns, first = k * a.chunk, from = first > a.warm_up ? first - a.warm_up : 0;
        const column<T, K> c(p, item % p.columns);
        T z[K];
        SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = T(0);
        if (from == 0) begin<T, K>(c, z);
        walk<T, K>(p, c, from, first, z, [](int64_t) { return true; });
        SIMT_UNROLL for (int i = 0; i < K; i++) me.peer_store(a.starts + item * K + i, z[i]);
        run_and_store<T, K>(me, p, c, first, end_of(a, k), z);
    }

    // Is the item open after this many sweeps?
    SIMT static void look(simt::lane &me, const arguments &a, int64_t item, int sweeps) {
        const problem<T> &p = a.p;
        const int64_t k = item / p.columns;
        T start[K] = {}, left[K] = {};
        if (k > 0) boundary(me, a, column<T, K>(p, item % p.columns), item, k, start, left);
        const bool open = k > 0 && !close<T, K>(p, start, left);
        me.peer_store(a.open + item, (uint32_t)open);
        if (!open) return;
        SIMT_UNROLL for (int i = 0; i < K; i++) me.peer_store(a.fresh + item * K + i, left[i]);
        me.raise(a.counts + sweeps, 1);
        if (a.tallies && sweeps < p.most_sweeps)
            me.raise(&a.tallies[item % p.columns / p.parts].sweeps, (uint32_t)sweeps + 1);
    }

    SIMT static void run_open(simt::lane &me, const arguments &a, int64_t item) {
        if (!me.peer_load(a.open + item)) return;
        T z[K];
        SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = me.peer_load(a.fresh + item * K + i);
        again(me, a, column<T, K>(a.p, item % a.p.columns), item, item / a.p.columns, z);
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t items = a.chunks * p.columns, self = me.block() * me.threads() + me.thread();
        const int64_t stride = me.blocks() * me.threads();
        for (int64_t item = self; item < items; item += stride) first_sweep(me, a, item);
        me.grid_barrier();
        bool closed = false;
        for (int sweeps = 1; !closed && sweeps <= p.most_sweeps; sweeps++) {
            for (int64_t item = self; item < items; item += stride) look(me, a, item, sweeps);
            me.grid_barrier();
            closed = me.acquire(a.counts + sweeps) == 0;
            if (closed || sweeps == p.most_sweeps) break;
            for (int64_t item = self; item < items; item += stride) run_open(me, a, item);
            me.grid_barrier();
        }
        if (!closed) {
            for (int64_t i = self; i < p.columns; i += stride) finish(me, a, i);
            me.grid_barrier();
        }
        if (!a.tallies) return;
        for (int64_t item = self; item < items; item += stride) tell(me, a, item);
        me.grid_barrier();
        report(me, p, a.tallies);
    }

    SIMT static void finish(simt::lane &me, const arguments &a, int64_t i) {
        const problem<T> &p = a.p;
        const column<T, K> c(p, i);
        bool begun = false;
        for (int64_t k = 1; k < a.chunks; k++) {
            T start[K], z[K];
            boundary(me, a, c, k * p.columns + i, k, start, z);
            if (close<T, K>(p, start, z)) continue;
            if (!begun && a.tallies) me.raise(&a.tallies[i / p.parts].from_end, (uint32_t)(p.length - k * a.chunk));
            begun = true;
            if (p.stop) return;
            again(me, a, c, k * p.columns + i, k, z);
        }
    }

    SIMT static void tell(simt::lane &me, const arguments &a, int64_t item) {
        const int64_t k = item / a.p.columns;
        const column<T, K> c(a.p, item % a.p.columns);
        tally *t = a.tallies + item % a.p.columns / a.p.parts;
        T start[K] = {}, left[K] = {};
        if (k > 0) boundary(me, a, c, item, k, start, left);
        const float d = (float)distance<T, K>(start, left);
        if (d > 0) me.raise(&t->residual, bits_of(d));
        if (k + 1 < a.chunks) return;
        me.raise(&t->sweeps, 1);
        note_end(me, a.p, c, t);
    }
};

// Steps a chunk and of warm-up where none are named: from the length alone.
inline int64_t usual_chunk(int64_t length) {
    const int64_t n = (length + (1 << 14) - 1) >> 14;
    return n < 64 ? 64 : n;
}
constexpr int64_t usual_warm_up = 64;

}  // namespace cells

#endif
