// SPDX-License-Identifier: MIT
// Newton over time for cells whose units do not mix (para.h): their Jacobians are numbers (ParaGRU, minGRU) or blocks
// of 2 x 2 (ParaLSTM), so a sweep is a scan of little more than the states, at any width, and no chain has to forget.
// All sweeps and the stopping rule run in one cooperative launch.
//
// A column is a unit of a sequence, a lane's; a tile is warps x items steps of 32 columns, a block's: a warp has its
// items in order, a window `tiles` of them, a block each. Groups of columns go side by side while there are blocks for
// them, windows one after the other, each from the state that the one before ended with. A sweep, with J_l and r_l in
// registers from its first half to its second, never in memory, and states in shared memory:
//
//     r_l = f_l(s_{l-1}) - s_l        d_l = J_l d_{l-1} + r_l        s_l += d_l        s = h, or (c, h)
//
//     reduce  a thread its items to (M, v); a warp's lanes the block's warps, in order; the tile's summary to memory
//     -- all blocks meet --
//     fold the summaries of the tiles before this one: each warp a piece of them, in order, and all the pieces; apply;
//     the first step of a column whose |d_l| or |r_l| is beyond atol + rtol |s_l|
//     -- all blocks meet --
//
// minGRU's states are affine in each other: one sweep from zeros solves, and what is judged is r_l at its end. Rules of
// what is not finite, of what is finished in order and of what stays open are newton.h's, column by column: a column's
// bits depend on its length alone. A sweep takes a step of the cell and K^3 + 2 K^2 multiply-adds a step, K = 1 or 2,
// and two barriers; minGRU's a step more and three. Source: ParaRNN (arXiv 2510.21450); docs/math/newton.md,
// recurrent.md, windows.md.
#ifndef DPCRI_CUDA_PARA_NEWTON_H
#define DPCRI_CUDA_PARA_NEWTON_H

#include "kern/cuda/newton.h"
#include "kern/cuda/para.h"

namespace gates {

// A tile's warps and a warp's items; tiles of a window.
template <int Warps, int Items, int Tiles>
struct slab {
    static constexpr int warps = Warps, items = Items, tiles = Tiles, steps = Warps * Items;
    static constexpr int threads = Warps * simt::warp_size, piece = (Tiles + Warps - 1) / Warps;
};

template <class T, int Kind, class S>
struct para_newton {
    typedef para<T, Kind> kind;
    static constexpr int K = kind::K, E = K * K, N = E + K, I = S::items, wide = simt::warp_size;
    static constexpr int most = S::threads;
    static constexpr bool affine = Kind == DPCRI_DEVICE_MINGRU;

    struct arguments {
        para_problem<T> p;
        int64_t tiles, together;  // of a window; groups of columns at a time
        T *sums;                  // [together][tiles][N][32]
        T *edges;                 // [together][tiles][K][32]: last states
        T *carry;                 // [columns][K]: the state before the window
        uint32_t *worst;          // [3][together][32], by turns; zero at first
        uint32_t *late;           // likewise: steps from the first open one to the window's end
        uint32_t *open;           // [3]; zero at first
    };

    static constexpr int numbers = (S::steps * K + 2 * S::warps * N) * wide;
    static constexpr int64_t told_at = (int64_t)numbers * (int64_t)sizeof(T);
    static constexpr int64_t shared_bytes() { return told_at + 2 * S::warps * wide * (int64_t)sizeof(uint32_t); }

    // What a thread knows of its items between a sweep's halves.
    struct items {
        T r[I][K], j[I][E];
        int bad;  // the first whose step was not finite; I: none
    };

    struct place {
        simt::shared<T> numbers;
        simt::shared<uint32_t> told;
        int warp, lane;
        SIMT int state(int step, int k) const { return (step * K + k) * wide + lane; }
        SIMT int sum(int which, int of_warp, int i) const {
            return ((S::steps * K) + (which * S::warps + of_warp) * N + i) * wide + lane;
        }
        SIMT int word(int which, int of_warp) const { return (which * S::warps + of_warp) * wide + lane; }
    };
    enum { WITHIN, BEFORE };  // summaries of this tile's warps; of pieces of the tiles before it
    enum { WORST, LATE };

    // Of this thread's column and window.
    struct work {
        int64_t slot, tile, column, row, unit, shift;  // shift: where the column's first step lies
        int64_t first, end;                            // first step of the tile; the window's end
        own_weights<T> weights;
        int count;   // of this thread's items that exist
        bool there;  // the column has steps in this window
    };

    // ---- one step ----

    SIMT static const T *given(const para_problem<T> &p, const work &o, int64_t m) {
        return p.given + ((m + o.shift) * p.rows + o.row) * p.given_row + o.unit;
    }

    // s = the step's value at s, t as of para.h.
    SIMT static void advance(const para_problem<T> &p, const work &o, int64_t m, T (&s)[K], T (&t)[3]) {
        T none = 0;
        kind::advance(o.weights, given(p, o, m), p.hidden, s[K - 1], K == 2 ? s[0] : none, t);
    }

    // r = f - own and J; all zero where one of them is not finite, and then false.
    SIMT static bool measure(const para_problem<T> &p, const work &o, int64_t m, const T (&before)[K],
                             const T (&own)[K], T (&r)[K], T (&j)[E]) {
        bool good = true;
        const bool begun = begins<T>(p, o.row, m);
        SIMT_UNROLL for (int k = 0; k < K; k++) r[k] = begun ? T(0) : before[k];
        kind::linearise(o.weights, given(p, o, m), p.hidden, r, j);
        if (begun) SIMT_UNROLL for (int i = 0; i < E; i++) j[i] = 0;
        SIMT_UNROLL for (int k = 0; k < K; k++) {
            r[k] = r[k] - own[k];
            good = good && cells::finite(r[k]);
        }
        SIMT_UNROLL for (int i = 0; i < E; i++) good = good && cells::finite(j[i]);
        if (good) return true;
        SIMT_UNROLL for (int k = 0; k < K; k++) r[k] = 0;
        SIMT_UNROLL for (int i = 0; i < E; i++) j[i] = 0;
        return false;
    }

    // ---- states and summaries ----

    // The state before the tile's step `i`.
    SIMT static void before(simt::lane &me, const arguments &a, const place &at, const work &o, int i, T (&s)[K]) {
        SIMT_UNROLL for (int k = 0; k < K; k++) {
            if (i > 0)
                s[k] = at.numbers.get(at.state(i - 1, k));
            else if (o.tile > 0)
                s[k] = me.peer_load(a.edges + ((o.slot * a.tiles + o.tile - 1) * K + k) * wide + at.lane);
            else
                s[k] = me.peer_load(a.carry + o.column * K + k);
        }
    }

    SIMT static void own_state(const place &at, int i, T (&s)[K]) {
        SIMT_UNROLL for (int k = 0; k < K; k++) s[k] = at.numbers.get(at.state(i, k));
    }

    // The last state of a whole tile, for its neighbour.
    SIMT static void leave_edge(simt::lane &me, const arguments &a, const place &at, const work &o) {
        if (at.warp != S::warps - 1 || o.count < I) return;
        T *edge = a.edges + (o.slot * a.tiles + o.tile) * K * wide + at.lane;
        SIMT_UNROLL for (int k = 0; k < K; k++)
            me.peer_store(edge + k * wide, at.numbers.get(at.state(S::steps - 1, k)));
    }

    SIMT static void identity(T (&m)[E], T (&v)[K]) {
        SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = T(i / K == i % K ? 1 : 0);
        SIMT_UNROLL for (int k = 0; k < K; k++) v[k] = 0;
    }
    SIMT static void put(const place &at, int which, const T (&m)[E], const T (&v)[K]) {
        SIMT_UNROLL for (int i = 0; i < E; i++) at.numbers.set(at.sum(which, at.warp, i), m[i]);
        SIMT_UNROLL for (int k = 0; k < K; k++) at.numbers.set(at.sum(which, at.warp, E + k), v[k]);
    }
    SIMT static void get(const place &at, int which, int warp, T (&m)[E], T (&v)[K]) {
        SIMT_UNROLL for (int i = 0; i < E; i++) m[i] = at.numbers.get(at.sum(which, warp, i));
        SIMT_UNROLL for (int k = 0; k < K; k++) v[k] = at.numbers.get(at.sum(which, warp, E + k));
    }
    // (M, v) = the step (j, r) after (M, v).
    SIMT static void append(const T (&j)[E], const T (&r)[K], T (&m)[E], T (&v)[K]) {
        cells::compose<T, K>(j, m);
        cells::push<T, K>(j, r, v);
    }

    // ---- a sweep's two halves ----

    // Leaves the warps' summaries in shared memory and the tile's in memory. `on`: the column is not done.
    SIMT static void reduce(simt::lane &me, const arguments &a, const place &at, const work &o, bool on, items &held) {
        T m[E], v[K], s[K], own[K] = {};
        identity(m, v);
        held.bad = I;
        SIMT_UNROLL for (int n = 0; n < I; n++) {
            const bool there = on && n < o.count;
            if (K == 1 && !there) break;
            if (there) {
                const int i = at.warp * I + n;
                if (n == 0)
                    before(me, a, at, o, i, s);
                else
                    SIMT_UNROLL for (int k = 0; k < K; k++) s[k] = own[k];
                own_state(at, i, own);
                if (!measure(a.p, o, o.first + i, s, own, held.r[n], held.j[n]) && held.bad == I) held.bad = n;
                append(held.j[n], held.r[n], m, v);
            }
            if (K == 2) me.warp_barrier();  // blocks of 2 x 2 at once want more registers than there are
        }
        put(at, WITHIN, m, v);
        me.barrier();
        if (at.warp != 0 || !on) return;
        T j[E], r[K];
        SIMT_ROLLED for (int w = 1; w < S::warps; w++) {
            get(at, WITHIN, w, j, r);
            append(j, r, m, v);
        }
        T *sum = a.sums + (o.slot * a.tiles + o.tile) * N * wide + at.lane;
        SIMT_UNROLL for (int i = 0; i < E; i++) me.peer_store(sum + i * wide, m[i]);
        SIMT_UNROLL for (int k = 0; k < K; k++) me.peer_store(sum + (E + k) * wide, v[k]);
    }

    // The correction of the state before this warp's items.
    SIMT static void fold(simt::lane &me, const arguments &a, const place &at, const work &o, bool on, T (&d)[K]) {
        T m[E], j[E], r[K];
        identity(m, d);
        const int64_t last = (at.warp + 1) * S::piece < o.tile ? (at.warp + 1) * S::piece : o.tile;
        SIMT_ROLLED for (int64_t t = at.warp * S::piece; on && t < last; t++) {
            const T *sum = a.sums + (o.slot * a.tiles + t) * N * wide + at.lane;
            SIMT_UNROLL for (int i = 0; i < E; i++) j[i] = me.peer_load(sum + i * wide);
            SIMT_UNROLL for (int k = 0; k < K; k++) r[k] = me.peer_load(sum + (E + k) * wide);
            append(j, r, m, d);
        }
        put(at, BEFORE, m, d);
        me.barrier();
        SIMT_UNROLL for (int k = 0; k < K; k++) d[k] = 0;
        SIMT_ROLLED for (int w = 0; w < S::warps && w * S::piece < o.tile; w++) {
            get(at, BEFORE, w, j, r);
            cells::push<T, K>(j, r, d);
        }
        SIMT_ROLLED for (int w = 0; w < at.warp; w++) {
            get(at, WITHIN, w, j, r);
            cells::push<T, K>(j, r, d);
        }
    }

    // What was seen of steps: the largest of |d| and |r| over max(1, |s|), and `late` of the first open one, 0: none.
    struct verdict {
        float worst;
        uint32_t late;
    };

    // A step whose state has become s; `good`: d and r are numbers to compare, and nothing before it was not.
    SIMT static void judge(const para_problem<T> &p, const work &o, int64_t m, const T (&s)[K], const T (&d)[K],
                           const T (&r)[K], bool good, verdict &seen) {
        bool open = !good;
        SIMT_UNROLL for (int k = 0; k < K; k++) {
            const T size = cells::magnitude(s[k]), scale = size > 1 ? size : T(1);
            const T by_d = cells::magnitude(d[k]), by_r = cells::magnitude(r[k]), large = by_d > by_r ? by_d : by_r;
            const float far = (float)(large / scale);
            if (!good || !(far <= seen.worst)) seen.worst = good && far < cells::never ? far : cells::never;
            open = open || !(large <= T(p.atol) + T(p.rtol) * size);
        }
        if (open && seen.late == 0) seen.late = (uint32_t)(o.end - m);
    }

    // Adds the corrections.
    SIMT static void apply(simt::lane &me, const arguments &a, const place &at, const work &o, bool on,
                           const items &held, verdict &seen) {
        T d[K];
        fold(me, a, at, o, on, d);
        SIMT_UNROLL for (int n = 0; n < I; n++) {
            const bool there = on && n < o.count;
            if (K == 1 && !there) break;
            if (there) {
                const int i = at.warp * I + n;
                T next[K];
                bool good = true, lost = false;
                cells::push<T, K>(held.j[n], held.r[n], d);
                SIMT_UNROLL for (int k = 0; k < K; k++) good = good && cells::finite(d[k]);
                SIMT_UNROLL for (int k = 0; k < K; k++) {
                    const T s = at.numbers.get(at.state(i, k));
                    if (!good) d[k] = held.r[n][k];
                    next[k] = s + d[k];
                    lost = lost || (cells::finite(s) && !cells::finite(next[k]));
                    at.numbers.set(at.state(i, k), next[k]);
                }
                if (!affine) judge(a.p, o, o.first + i, next, d, held.r[n], good && !lost && n < held.bad, seen);
            }
            if (K == 2) me.warp_barrier();
        }
        if (on) leave_edge(me, a, at, o);
    }

    // An affine chain's residuals, at the states that the sweep has left.
    SIMT static void look(simt::lane &me, const arguments &a, const place &at, const work &o, bool on, verdict &seen) {
        T s[K], own[K], r[K], j[E];
        const T none[K] = {};
        SIMT_ROLLED for (int n = 0; on && n < o.count; n++) {
            const int i = at.warp * I + n;
            before(me, a, at, o, i, s);
            own_state(at, i, own);
            const bool good = measure(a.p, o, o.first + i, s, own, r, j);
            judge(a.p, o, o.first + i, own, none, r, good, seen);
        }
    }

    // All warps' verdicts on a column, for the blocks of its tiles.
    SIMT static void tell(simt::lane &me, const arguments &a, const place &at, const work &o, bool on, verdict seen,
                          int turn) {
        at.told.set(at.word(WORST, at.warp), cells::bits_of(seen.worst));
        at.told.set(at.word(LATE, at.warp), seen.late);
        me.barrier();
        if (at.warp != 0) return;
        uint32_t worst = 0, late = 0;
        SIMT_ROLLED for (int w = 0; w < S::warps; w++) {
            const uint32_t far = at.told.get(at.word(WORST, w)), later = at.told.get(at.word(LATE, w));
            worst = far > worst ? far : worst;  // of numbers that are not negative the bits ascend too
            late = later > late ? later : late;
        }
        const int64_t column = (turn * a.together + o.slot) * wide + at.lane;
        if (on && worst > 0) me.raise(a.worst + column, worst);
        if (on && late > 0) me.raise(a.late + column, late);
        if (me.any(on && late > 0) && at.lane == 0) me.raise(a.open + turn, 1);
    }

    // ---- windows ----

    SIMT static void run(simt::lane &me, const arguments &a) {
        const para_problem<T> &p = a.p;
        const int64_t columns = p.rows * p.hidden, self = me.block() * S::threads + me.thread();
        place at;
        at.numbers = me.template array<T>(0, numbers);
        at.told = me.template array<uint32_t>(told_at, 2 * S::warps * wide);
        at.warp = me.warp();
        at.lane = me.in_warp();
        clear_beyond(me, p);
        for (int64_t n = self; n < columns; n += me.blocks() * S::threads) {
            if (K == 2) me.peer_store(a.carry + n * K, p.first_cell ? p.first_cell[n] : T(0));
            me.peer_store(a.carry + n * K + K - 1, p.first ? p.first[n] : T(0));
        }
        int turn = 0;  // sweeps of this launch, modulo 3
        for (int64_t base = 0; base * wide < columns; base += a.together)
            for (int64_t start = 0; start < p.length; start += a.tiles * S::steps) {
                const work o = work_of(me, a, at, base, start);
                window(me, a, at, o, turn);
            }
        for (int64_t n = self; n < columns; n += me.blocks() * S::threads) {
            const T h = me.peer_load(a.carry + n * K + K - 1), c = me.peer_load(a.carry + n * K);
            if (p.last) p.last[n] = h;
            if (K == 2 && p.last_cell) p.last_cell[n] = c;
            if (!cells::finite(h) || !cells::finite(c)) me.raise(&p.tallies[n / p.hidden].non_finite, 1);
        }
        me.grid_barrier();
        tell_outcomes(me, p);
    }

    SIMT static work work_of(simt::lane &me, const arguments &a, const place &at, int64_t base, int64_t start) {
        const para_problem<T> &p = a.p;
        work o = {};
        o.slot = me.block() / a.tiles;
        o.tile = me.block() % a.tiles;
        o.column = (base + o.slot) * wide + at.lane;
        if (o.slot >= a.together || o.column >= p.rows * p.hidden) return o;
        o.row = o.column / p.hidden;
        o.unit = o.column % p.hidden;
        const int64_t length = length_of<T>(p, o.row);
        o.shift = place_of(p, o.row, 0);
        o.first = start + o.tile * S::steps;
        o.end = start + a.tiles * S::steps < length ? start + a.tiles * S::steps : length;
        o.there = start < length;
        const int64_t left = o.end - (o.first + (int64_t)at.warp * I);
        o.count = !o.there || left < 0 ? 0 : left < I ? (int)left : I;
        o.weights = weights_of(p.diagonals, p.peepholes, p.hidden, o.unit);
        return o;
    }

    // f_l(0), or of an affine chain 0: what the states are guessed to be.
    SIMT static void guess(simt::lane &me, const arguments &a, const place &at, const work &o) {
        SIMT_ROLLED for (int n = 0; n < o.count; n++) {
            const int i = at.warp * I + n;
            T s[K] = {}, t[3];
            if (!affine) advance(a.p, o, o.first + i, s, t);
            SIMT_UNROLL for (int k = 0; k < K; k++) at.numbers.set(at.state(i, k), cells::finite(s[k]) ? s[k] : T(0));
        }
        leave_edge(me, a, at, o);
    }

    // One window of every column of this round; ends with all blocks together, its states in y.
    SIMT static void window(simt::lane &me, const arguments &a, const place &at, const work &o, int &turn) {
        items held;
        guess(me, a, at, o);
        me.grid_barrier();
        bool on = o.there;
        int64_t right = o.end;  // steps before it are solved
        for (int sweeps = 1;; sweeps++) {
            verdict seen = {0, 0};
            const int after = (turn + 1) % 3;
            reduce(me, a, at, o, on, held);
            // Last read two turns ago, and used again in the next one.
            if (at.warp == 0 && o.tile == 0 && o.slot < a.together) {
                me.peer_store(a.worst + (after * a.together + o.slot) * wide + at.lane, 0u);
                me.peer_store(a.late + (after * a.together + o.slot) * wide + at.lane, 0u);
            }
            if (me.block() == 0 && me.thread() == 0) me.peer_store(a.open + after, 0u);
            me.grid_barrier();
            apply(me, a, at, o, on, held, seen);
            if (affine) {
                me.grid_barrier();
                look(me, a, at, o, on, seen);
            }
            tell(me, a, at, o, on, seen, turn);
            me.grid_barrier();
            const bool last = me.acquire(a.open + turn) == 0 || sweeps >= a.p.most_sweeps;
            if (on) on = !ended(me, a, at, o, sweeps, turn, right);
            turn = after;
            if (last) break;
        }
        if (o.there) write(me, a, at, o, right);
        me.grid_barrier();
    }

    // Whether the column is done, and then with which steps.
    SIMT static bool ended(simt::lane &me, const arguments &a, const place &at, const work &o, int sweeps, int turn,
                           int64_t &right) {
        const int64_t column = (turn * a.together + o.slot) * wide + at.lane;
        const uint32_t open = me.acquire(a.late + column);
        if (open > 0 && sweeps < a.p.most_sweeps) return false;
        right = o.end - open;
        if (o.tile > 0 || at.warp > 0) return true;
        cells::tally *t = a.p.tallies + o.row;
        me.raise(&t->sweeps, (uint32_t)sweeps);
        me.raise(&t->residual, me.acquire(a.worst + column));
        if (open > 0) me.raise(&t->from_end, (uint32_t)(a.p.length - right));
        return true;
    }

    SIMT static void store(const para_problem<T> &p, const work &o, int64_t m, const T (&s)[K]) {
        const int64_t l = m + o.shift;
        p.y[l * p.y_step + o.row * p.y_row + o.unit] = s[K - 1];
        if (K == 2 && p.kept) p.kept[(l * p.rows + o.row) * p.hidden + o.unit] = s[0];
    }

    // The states before step `right`; from there on a lane of the block that holds it runs in order.
    SIMT static void write(simt::lane &me, const arguments &a, const place &at, const work &o, int64_t right) {
        const int64_t start = o.first + at.warp * I;
        T s[K] = {}, t[3];
        if (a.p.stop) right = o.end;
        SIMT_ROLLED for (int n = 0; n < o.count && start + n < right; n++) {
            own_state(at, at.warp * I + n, s);
            store(a.p, o, start + n, s);
        }
        const bool whole = right == o.end && o.count > 0 && start + o.count == o.end;
        if (!whole && (at.warp > 0 || right < o.first || right >= o.first + S::steps || right >= o.end)) return;
        if (!whole) before(me, a, at, o, (int)(right - o.first), s);
        for (int64_t m = right; m < o.end; m++) {
            if (begins<T>(a.p, o.row, m)) SIMT_UNROLL for (int k = 0; k < K; k++) s[k] = 0;
            advance(a.p, o, m, s, t);
            store(a.p, o, m, s);
        }
        SIMT_UNROLL for (int k = 0; k < K; k++) me.peer_store(a.carry + o.column * K + k, s[k]);
    }
};

}  // namespace gates

#endif
