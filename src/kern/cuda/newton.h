// SPDX-License-Identifier: MIT
// Newton on narrow cells, fused: states, Jacobians and the linear solve stay on chip, all sweeps and the stopping rule
// run in one cooperative launch.
//
// A window is `tiles` tiles of threads x items steps of a column, a block each; columns go side by side while there are
// blocks for them, windows one after the other, each from the state that the one before ended with. A sweep, with
// d_l = z_l^new - z_l and J_l = diag(act'(u_l)) W_l, that is (J_l, r_l) on registers, never in memory:
//
//     r_l = f_l(z_{l-1}) - z_l        d_l = J_l d_{l-1} + r_l        z_l += d_l
//
//     reduce  a thread its items to (M, v); scan them over the block (Hillis and Steele); the tile's summary to memory
//     -- all blocks meet --
//     scan the summaries of the tiles before this one, every block for itself; apply; the first step of a column
//     whose |d_l| or |r_l| is beyond atol + rtol |z_l|, and the largest of them over max(1, |z_l|)
//     -- all blocks meet --
//
// A column without such a step is done, and so is the window when all are. Where a Jacobian is not finite it counts as
// zero, where a state is not it becomes f's value, and the step is open. After most_sweeps the steps before the first
// open one are kept, and from there the column runs in order (or, with `stop`, stays as it is). A column's bits depend
// on its length alone: window and scans are fixed, and others' sweeps do not touch it. Two barriers a sweep; K^3 + 3
// K^2 multiply-adds and one activation a step. Beyond a ReLU's kink J says nothing: there a step is open, too, until no
// unit of it turned since the sweep before and each of its residuals is rounding. docs/math/newton.md, windows.md.
#ifndef DPCRI_CUDA_NEWTON_H
#define DPCRI_CUDA_NEWTON_H

#include "kern/cuda/cells.h"

namespace cells {

template <int Threads, int Items, int Tiles>
struct span_of {
    static constexpr int threads = Threads, items = Items, tiles = Tiles, steps = Threads * Items;
    static_assert(Tiles <= Threads, "a thread a tile");
};
typedef span_of<128, 4, 64> usual_span;

constexpr float never = 3.0e38f;  // larger than any tolerance

// Of |f_i| and every |J_ij z_j|: a residual that rounding may leave.
template <class T>
SIMT T rounding_of(T terms) {
    return T(sizeof(T) == 4 ? 0x1p-20 : 0x1p-49) * terms;
}

// v = J v + r
template <class T, int K>
SIMT void push(const T (&j)[K * K], const T (&r)[K], T (&v)[K]) {
    T y[K];
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        y[i] = r[i];
        SIMT_UNROLL for (int k = 0; k < K; k++) y[i] = simt::fma(j[i * K + k], v[k], y[i]);
    }
    SIMT_UNROLL for (int i = 0; i < K; i++) v[i] = y[i];
}

// M = J M
template <class T, int K>
SIMT void compose(const T (&j)[K * K], T (&m)[K * K]) {
    SIMT_UNROLL for (int c = 0; c < K; c++) {
        T column_of[K], zero[K] = {};
        SIMT_UNROLL for (int i = 0; i < K; i++) column_of[i] = m[i * K + c];
        push<T, K>(j, zero, column_of);
        SIMT_UNROLL for (int i = 0; i < K; i++) m[i * K + c] = column_of[i];
    }
}

template <class T, int K, class S>
struct newton {
    static constexpr int E = K * K, N = E + K, summary = N | 1, I = S::items;
    static constexpr int most = S::threads;

    struct arguments {
        problem<T> p;
        int64_t tiles, together;  // of a window; columns at a time
        T *sums;                  // [together][tiles][N]
        T *edges;                 // [together][tiles][K]: last states
        uint32_t *worst;          // [3][together], by turns; zero at first
        uint32_t *late;           // likewise: steps from the first open one to the window's end
        uint32_t *open;           // [3]; zero at first
        tally *tallies;           // [sequences], zero at first; NULL where there is no outcome
    };

    static constexpr int64_t shared_bytes() {
        return (int64_t)(3 * S::threads * summary + S::steps * K) * (int64_t)sizeof(T);
    }

    // What a thread knows of its items.
    struct items {
        T r[I][K], slope[I][K];
        bool settled[I];  // no kinks, or r is rounding, and 0 where a unit turned
        int count;        // that exist
    };

    struct place {
        simt::shared<T> numbers;
        int t;
        SIMT int sum(int buffer, int thread) const { return (buffer * S::threads + thread) * summary; }
        SIMT int state(int step) const { return 3 * S::threads * summary + step * K; }
    };

    // Of a column's window, for this block.
    struct work {
        int64_t column_index, slot, tile, first, steps;  // first step of the tile; how many of it exist
        int64_t end;                                     // of the window
        bool there;
    };

    // ---- one step ----

    // f at z, r = f - own, and the slopes; all zero where f is not finite, and then false.
    SIMT static bool measure(const problem<T> &p, const T (&w)[E], const T *x, const T (&z)[K], const T (&own)[K],
                             T (&r)[K], T (&slopes)[K]) {
        T u[K];
        inner<T, K>(w, x, z, u);
        bool good = true;
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            const T y = value(p.activation, u[i]), f = p.residual ? simt::fma(p.scale, y, z[i]) : y;
            r[i] = f - own[i];
            slopes[i] = slope(p.activation, u[i], y);
            good = good && finite(r[i]);
        }
        if (!good) SIMT_UNROLL for (int i = 0; i < K; i++) r[i] = slopes[i] = T(0);
        return good;
    }

    // Whether r = f - own is rounding of f's terms; `turned`: nothing.
    SIMT static bool is_rounding(const T (&j)[E], const T (&z)[K], const T (&own)[K], const T (&r)[K], bool turned) {
        bool all = true;
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            T terms = magnitude(own[i] + r[i]);
            SIMT_UNROLL for (int k = 0; k < K; k++) terms += magnitude(j[i * K + k] * z[k]);
            all = all && magnitude(r[i]) <= (turned ? T(0) : rounding_of(terms));
        }
        return all;
    }

    // ---- summaries over the block ----

    SIMT static void put(const place &at, int buffer, const T (&m)[E], const T (&v)[K]) {
        const int s = at.sum(buffer, at.t);
        SIMT_UNROLL for (int i = 0; i < E; i++) at.numbers.set(s + i, m[i]);
        SIMT_UNROLL for (int i = 0; i < K; i++) at.numbers.set(s + E + i, v[i]);
    }

    SIMT static void get(const place &at, int s, T (&m)[E], T (&v)[K]) {
        SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = at.numbers.get(s + i);
        SIMT_UNROLL for (int i = 0; i < K; i++) v[i] = at.numbers.get(s + E + i);
    }

    // Buffer `from` becomes the summaries of all up to each; returns the buffer that holds them, `from` or `to`.
    SIMT static int scan(simt::lane &me, const place &at, int from, int to, T (&m)[E], T (&v)[K]) {
        SIMT_ROLLED for (int s = 1; s < S::threads; s *= 2) {
            if (at.t >= s) {
                T j[E], r[K];
                get(at, at.sum(from, at.t - s), m, v);
                get(at, at.sum(from, at.t), j, r);
                compose<T, K>(j, m);
                push<T, K>(j, r, v);
            } else {
                get(at, at.sum(from, at.t), m, v);
            }
            put(at, to, m, v);
            me.barrier();
            const int was = from;
            from = to;
            to = was;
        }
        return from;
    }

    // ---- a sweep's two halves ----

    // The state before the tile's step `i`.
    SIMT static void before(simt::lane &me, const arguments &a, const place &at, const work &o, const column<T, K> &c,
                            int i, T (&z)[K]) {
        if (i > 0) {
            SIMT_UNROLL for (int k = 0; k < K; k++) z[k] = at.numbers.get(at.state(i - 1) + k);
        } else if (o.tile > 0) {
            const T *edge = a.edges + (o.slot * a.tiles + o.tile - 1) * K;
            SIMT_UNROLL for (int k = 0; k < K; k++) z[k] = me.peer_load(edge + k);
        } else if (o.first > 0) {
            SIMT_UNROLL for (int k = 0; k < K; k++) z[k] = me.peer_load(c.z + (o.first - 1) * a.p.z_step + k);
        } else {
            begin<T, K>(c, z);
        }
    }

    SIMT static void weight_of(const arguments &a, const column<T, K> &c, int64_t m, bool first, T (&w)[E]) {
        if (first || a.p.weight_step != 0) read_weight<T, K>(a.p, c, m, w);
    }

    // Leaves the scanned summaries in the buffer returned and the tile's in memory. `bad`: the first of its items where
    // f was not finite; I: none.
    SIMT static int reduce(simt::lane &me, const arguments &a, const place &at, const work &o, items &mine, int &bad) {
        const column<T, K> c(a.p, o.column_index);
        T z[K] = {}, own[K] = {}, w[E] = {}, j[E], m[E], v[K] = {};
        SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = T(i / K == i % K ? 1 : 0);
        bad = I;
        SIMT_UNROLL for (int n = 0; n < I; n++) {
            if (n >= mine.count) break;
            const int i = at.t * I + n;
            if (n == 0)
                before(me, a, at, o, c, i, z);
            else
                SIMT_UNROLL for (int k = 0; k < K; k++) z[k] = own[k];
            SIMT_UNROLL for (int k = 0; k < K; k++) own[k] = at.numbers.get(at.state(i) + k);
            weight_of(a, c, o.first + i, n == 0, w);
            T was[K];
            SIMT_UNROLL for (int k = 0; k < K; k++) was[k] = mine.slope[n][k];
            if (!measure(a.p, w, c.x + (o.first + i) * a.p.x_step, z, own, mine.r[n], mine.slope[n]) && bad == I)
                bad = n;
            jacobian<T, K>(a.p, w, mine.slope[n], j);
            bool turned = false;  // in the first sweep all have
            SIMT_UNROLL for (int k = 0; k < K; k++) turned = turned || was[k] != mine.slope[n][k];
            mine.settled[n] = a.p.activation != DPCRI_CUDA_RELU || is_rounding(j, z, own, mine.r[n], turned);
            compose<T, K>(j, m);
            push<T, K>(j, mine.r[n], v);
        }
        put(at, 0, m, v);
        me.barrier();
        const int done = scan(me, at, 0, 1, m, v);
        T *sum = a.sums + (o.slot * a.tiles + o.tile) * N;
        for (int i = at.t; i < N; i += S::threads)
            me.peer_store(sum + i, at.numbers.get(at.sum(done, S::threads - 1) + i));
        return done;
    }

    // Adds the corrections; the largest that this thread saw, and `late` of its first open step, 0: none.
    SIMT static float apply(simt::lane &me, const arguments &a, const place &at, const work &o, const items &mine,
                            int done, int bad, uint32_t &late) {
        const column<T, K> c(a.p, o.column_index);
        const int free = (done + 1) % 3, free_too = (done + 2) % 3;
        T m[E], d[K] = {}, w[E] = {}, j[E], r[K];
        SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = T(i / K == i % K ? 1 : 0);
        if (at.t < o.tile) {
            const T *sum = a.sums + (o.slot * a.tiles + at.t) * N;
            SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = me.peer_load(sum + i);
            SIMT_UNROLL for (int i = 0; i < K; i++) d[i] = me.peer_load(sum + E + i);
        }
        put(at, free, m, d);
        me.barrier();
        const int all = scan(me, at, free, free_too, m, d);
        SIMT_UNROLL for (int i = 0; i < K; i++) d[i] = at.numbers.get(at.sum(all, S::threads - 1) + E + i);
        if (at.t > 0) {
            get(at, at.sum(done, at.t - 1), m, r);
            push<T, K>(m, r, d);
        }
        float worst = bad < I ? never : 0;
        late = 0;
        SIMT_UNROLL for (int n = 0; n < I; n++) {
            if (n >= mine.count) break;
            const int i = at.t * I + n;
            weight_of(a, c, o.first + i, n == 0, w);
            jacobian<T, K>(a.p, w, mine.slope[n], j);
            push<T, K>(j, mine.r[n], d);
            bool good = true;
            SIMT_UNROLL for (int k = 0; k < K; k++) good = good && finite(d[k]);
            bool open = !good || n >= bad || !mine.settled[n];
            SIMT_UNROLL for (int k = 0; k < K; k++) {
                const T z = at.numbers.get(at.state(i) + k), next = z + (good ? d[k] : mine.r[n][k]);
                const T scale = magnitude(next) > 1 ? magnitude(next) : T(1);
                const T large = magnitude(d[k]) > magnitude(mine.r[n][k]) ? magnitude(d[k]) : magnitude(mine.r[n][k]);
                const float seen = (float)(large / scale);
                if (!good || !(seen <= worst)) worst = good && seen < never ? seen : never;
                open = open || !(large <= T(a.p.atol) + T(a.p.rtol) * magnitude(next)) || (finite(z) && !finite(next));
                at.numbers.set(at.state(i) + k, next);
            }
            if (!good) SIMT_UNROLL for (int k = 0; k < K; k++) d[k] = mine.r[n][k];
            if (open && late == 0) late = (uint32_t)(o.end - (o.first + i));
        }
        leave_edge(me, a, at, o);
        return worst;
    }

    // The last state of a whole tile, for its neighbour.
    SIMT static void leave_edge(simt::lane &me, const arguments &a, const place &at, const work &o) {
        if (at.t != S::threads - 1 || o.steps < S::steps) return;
        T *edge = a.edges + (o.slot * a.tiles + o.tile) * K;
        SIMT_UNROLL for (int k = 0; k < K; k++) me.peer_store(edge + k, at.numbers.get(at.state(S::steps - 1) + k));
    }

    // f_l(0): what the states are guessed to be.
    SIMT static void guess(simt::lane &me, const arguments &a, const place &at, const work &o, int count) {
        const column<T, K> c(a.p, o.column_index);
        T w[E] = {};
        SIMT_UNROLL for (int n = 0; n < I; n++) {
            if (n >= count) break;
            const int i = at.t * I + n;
            T z[K] = {};
            weight_of(a, c, o.first + i, n == 0, w);
            advance<T, K>(a.p, c, w, o.first + i, z);
            SIMT_UNROLL for (int k = 0; k < K; k++) at.numbers.set(at.state(i) + k, finite(z[k]) ? z[k] : T(0));
        }
        leave_edge(me, a, at, o);
    }

    // ---- windows ----

    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        place at;
        at.numbers = me.template array<T>(0, 3 * S::threads * summary + S::steps * K);
        at.t = me.thread();
        int turn = 0;  // sweeps of this launch, modulo 3
        for (int64_t base = 0; base < p.columns; base += a.together)
            for (int64_t start = 0; start < p.length; start += a.tiles * S::steps) {
                work o;
                o.slot = me.block() / a.tiles;
                o.tile = me.block() % a.tiles;
                o.column_index = base + o.slot;
                o.first = start + o.tile * S::steps;
                const int64_t left = p.length - o.first;
                o.steps = left < S::steps ? left : S::steps;
                o.end = start + a.tiles * S::steps < p.length ? start + a.tiles * S::steps : p.length;
                o.there = o.slot < a.together && o.column_index < p.columns && o.steps > 0;
                window(me, a, at, o, turn);
            }
        if (!a.tallies) return;
        for (int64_t i = me.block() * me.threads() + at.t; i < p.columns; i += me.blocks() * me.threads())
            note_end(me, p, column<T, K>(p, i), a.tallies + i / p.parts);
        me.grid_barrier();
        report(me, p, a.tallies);
    }

    // One window of every column of this round; ends with all blocks together, its states in z.
    SIMT static void window(simt::lane &me, const arguments &a, const place &at, const work &o, int &turn) {
        items mine;
        SIMT_UNROLL for (int n = 0; n < I; n++) SIMT_UNROLL for (int k = 0; k < K; k++) mine.slope[n][k] = T(-1);
        mine.count = 0;
        const int64_t left = o.steps - (int64_t)at.t * I;
        if (o.there) mine.count = left < 0 ? 0 : left < I ? (int)left : I;
        if (o.there) guess(me, a, at, o, mine.count);
        me.grid_barrier();
        bool done = !o.there;
        int64_t right = o.end;  // steps before it are solved
        int sweeps = 0;
        for (;;) {
            int bad = I, buffer = 0;
            if (!done) buffer = reduce(me, a, at, o, mine, bad);
            const int after = (turn + 1) % 3;
            if (at.t == 0) {
                if (!done) me.raise(a.open + turn, 1);
                // Last read two turns ago, and used again in the next one.
                if (o.there && o.tile == 0) {
                    me.peer_store(a.worst + after * a.together + o.slot, 0u);
                    me.peer_store(a.late + after * a.together + o.slot, 0u);
                }
                if (me.block() == 0) me.peer_store(a.open + after, 0u);
            }
            me.grid_barrier();
            const bool open = me.acquire(a.open + turn) != 0;
            uint32_t *worst = a.worst + turn * a.together + o.slot, *late = a.late + turn * a.together + o.slot;
            if (open && !done) {
                uint32_t latest = 0;
                float seen = apply(me, a, at, o, mine, buffer, bad, latest);
                for (int s = simt::warp_size / 2; s > 0; s /= 2) {
                    const float other = me.shuffle_xor(seen, s);
                    const uint32_t later = me.shuffle_xor(latest, s);
                    seen = other > seen ? other : seen;
                    latest = later > latest ? later : latest;
                }
                if (me.in_warp() == 0) {
                    me.raise(worst, bits_of(seen));
                    me.raise(late, latest);
                }
            }
            me.grid_barrier();
            if (open && !done) {
                sweeps++;
                const uint32_t open_steps = me.acquire(late);
                done = open_steps == 0 || sweeps >= a.p.most_sweeps;
                if (done) right = o.end - open_steps;
                if (a.tallies && at.t == 0 && o.tile == 0 && done) {
                    tally *t = a.tallies + o.column_index / a.p.parts;
                    me.raise(&t->sweeps, (uint32_t)sweeps);
                    me.raise(&t->residual, me.acquire(worst));
                    if (open_steps > 0) me.raise(&t->from_end, (uint32_t)(a.p.length - right));
                }
            }
            turn = after;
            if (!open) break;
        }
        if (o.there) write(me, a, at, o, right);
        me.grid_barrier();
    }

    // The states before step `right`; from there on the block that holds it runs in order.
    SIMT static void write(simt::lane &me, const arguments &a, const place &at, const work &o, int64_t right) {
        const column<T, K> c(a.p, o.column_index);
        for (int i = at.t; i < (int)o.steps * K; i += S::threads)
            if (a.p.stop || o.first + i / K < right)
                me.peer_store(c.z + (o.first + i / K) * a.p.z_step + i % K, at.numbers.get(at.state(0) + i));
        if (a.p.stop || right < o.first || right >= o.first + o.steps || at.t != 0) return;
        T z[K];
        before(me, a, at, o, c, (int)(right - o.first), z);
        run_and_store<T, K>(me, a.p, c, right, o.end, z);
    }
};

}  // namespace cells

#endif
