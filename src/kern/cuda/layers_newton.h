// SPDX-License-Identifier: MIT
// Newton over a stack of dense layers, or a cell with one W, of any width: all sweeps and the stopping rule in one
// cooperative launch, in windows of `window` steps.
//
// A sweep, d_l = z_l^new - z_l and J_l = diag(s_l) W_l, or I + diag(s_l) W_l with the branch's factor in s_l, which is
// never written:
//
//     evaluate   r_l = f_l(z_{l-1}) - z_l and s_l of all steps at once
//     -- all blocks meet --
//     reduce     what a chunk of C steps makes of a correction, M d + v, its columns side by side: x = s (W x) [+ x] [+
//     r]
//     -- all blocks meet --
//     fold       d = M d + v over the chunks before the last, a row a block
//     -- all blocks meet --
//     apply      d = s (W d) [+ d] + r in every chunk at once, from what the fold left before it; z += d; which step is
//                the first whose |d| or |r| is beyond atol + rtol |z|, and the largest of them over max(1, |z|)
//     -- all blocks meet --
//
// Each is a product of linear_large.h's strips with W, which goes past what stays on chip; evaluating and applying, all
// rows share it. C steps a chunk and C chunks a window, from length and width alone; 2 w^3 + 6 w^2 flops a step, row
// and sweep, and 3 C products one after another a window and sweep instead of C^2.
//
// The rules are newton.h's, number by number: where r or s is not finite both count as zero, where d is not, the state
// becomes f's value, and the step is open; with ReLU's kinks it is, too, until no unit of it turned since the sweep
// before and its residuals are rounding. A row's bits are those of its length and width: not of the batch, the device
// or who came first. The states of a row that is done stay, but its columns go on beside those of others.
// docs/math/newton.md, windows.md.
#ifndef DPCRI_CUDA_LAYERS_NEWTON_H
#define DPCRI_CUDA_LAYERS_NEWTON_H

#include "kern/cuda/cells.h"
#include "kern/cuda/linear_large.h"
#include "kern/cuda/newton.h"

namespace layers {

// How a block's lanes lie over a product: what large::strips reads of its problem.
struct strip_shape {
    int units, column_warps, depth;
};

template <class T>
struct newton_arguments {
    cells::problem<T> c;  // columns are rows
    int64_t w, window, chunk;
    int64_t together;          // rows at a time
    strip_shape one, several;  // of products with a column a warp, and of those that reduce
    T *residuals, *slopes;     // r, s [window][together][w]
    T *products, *states;      // M [chunks - 1][together][w][w]; v, then d after the chunks [chunks - 1][together][w]
    uint32_t *worst, *late;    // [3][together], by turns; zero at first: newton.h's
    uint32_t *open;            // [3]; zero at first
    cells::tally *tallies;     // [rows], zero at first; NULL where there is no outcome
};

// A phase of a sweep over one window, as large::strips sees it.
template <class T>
struct newton_phase {
    const newton_arguments<T> *a;
    int64_t w;
    int units, column_warps, depth;
    bool transposed;
    int64_t length, chunk, chunks, classes;
    int64_t start, base, rows;  // the window's first step; the first of the rows at hand, and how many
    int turn;                   // of the counters, in this sweep
    bool first;                 // sweep: all rows are open

    SIMT int64_t place(int64_t m, int64_t row, int64_t i) const { return (m * a->together + row) * w + i; }
    SIMT T *state(int64_t m, int64_t row, int64_t i) const {
        return a->c.z + (start + m) * a->c.z_step + (base + row) * a->c.z_row + i;
    }
    SIMT T before(simt::lane &me, int64_t m, int64_t row, int64_t i) const {
        if (start + m > 0) return me.peer_load(state(m - 1, row, i));
        return a->c.z0 ? a->c.z0[(base + row) * a->c.z0_row + i] : T(0);
    }
    SIMT T input(int64_t m, int64_t row, int64_t i) const {
        return a->c.x[(start + m) * a->c.x_step + (base + row) * a->c.x_row + i];
    }
    SIMT bool is_open(simt::lane &me, int64_t row) const {
        return first || me.peer_load(a->late + (turn + 2) % 3 * a->together + row) > 0;
    }
    SIMT void note(simt::lane &me, int64_t row, uint32_t late, float worst) const {
        me.raise(a->late + turn * a->together + row, late);
        me.raise(a->worst + turn * a->together + row, cells::bits_of(worst));
        if (late > 0) me.raise(a->open + turn, 1);
    }
    SIMT bool kinked() const { return a->c.activation == DPCRI_CUDA_RELU; }
    SIMT bool is_small(T far, T size) const { return far <= T(a->c.atol) + T(a->c.rtol) * cells::magnitude(size); }
    SIMT T value(T u, T own) const {
        const T y = cells::value(a->c.activation, u);
        return a->c.residual ? simt::fma(a->c.scale, y, own) : y;
    }
};

// What the ways of the phases have in common; all products but the fold's are with W.
template <class T>
struct newton_way {
    typedef newton_phase<T> problem;
    struct notes {};
    static constexpr bool leaves = false, looks_back = true;
    SIMT static const T *transition(const problem &p, int64_t, int64_t m) {
        return p.a->c.weight + (p.start + m) * p.a->c.weight_step;
    }
    SIMT static int64_t columns(const problem &p) { return p.rows; }
    SIMT static int64_t chunks(const problem &p) { return p.chunks; }
    SIMT static int done(const problem &, const large::item &) { return 0; }
    // All rows that the columns are, are done.
    SIMT static bool idle(simt::lane &me, const problem &p, const large::item &t, int columns) {
        for (int64_t row = t.column; row < p.rows && row < t.column + columns; row++)
            if (p.is_open(me, row)) return false;
        return true;
    }
    SIMT static void end(simt::lane &, const problem &, const large::item &, int64_t, const notes &) {}
};

// Chunks of one step, columns are rows.
template <class T>
struct evaluating : newton_way<T> {
    typedef newton_phase<T> problem;
    struct ahead {
        T x, z;
    };
    SIMT static T begin(simt::lane &me, const problem &p, const large::item &t, int64_t row, int64_t i) {
        return p.before(me, t.first, row, i);
    }
    SIMT static ahead add(simt::lane &me, const problem &p, const large::item &, const large::spot &at) {
        return {p.input(at.m, at.column, at.i), me.peer_load(p.state(at.m, at.column, at.i))};
    }
    SIMT static T start(const ahead &with) { return with.x; }
    // Whether a residual is rounding of its terms, or nothing where the unit turned; those beyond f itself, a row of W
    // times the state that goes in, are asked for only where the answer may hang on them.
    SIMT static bool is_rounding(simt::lane &me, const problem &p, const large::spot &at, T r, T s, T z, T own) {
        const T far = cells::magnitude(r);
        const bool turned = p.first || me.peer_load(p.a->slopes + p.place(at.m, at.column, at.i)) != s;
        if (far == T(0) || turned) return far == T(0);
        T terms = cells::magnitude(z + r) + (p.a->c.residual ? cells::magnitude(own) : T(0));
        if (far <= cells::rounding_of(terms)) return true;
        if (!p.is_small(far, z) || s == T(0)) return false;
        const T *weight = newton_way<T>::transition(p, 0, at.m) + (p.transposed ? at.i : at.i * p.w);
        const int64_t apart = p.transposed ? p.w : 1;
        T sum = 0;
        for (int64_t j = 0; j < p.w; j++) sum += cells::magnitude(weight[j * apart] * p.before(me, at.m, at.column, j));
        return far <= cells::rounding_of(simt::fma(cells::magnitude(s), sum, terms));
    }
    SIMT static T finish(simt::lane &me, const problem &p, const large::item &, const large::spot &at,
                         const ahead &with, T u, T own, typename newton_way<T>::notes &) {
        const T y = cells::value(p.a->c.activation, u), slope = cells::slope(p.a->c.activation, u, y);
        T r = (p.a->c.residual ? simt::fma(p.a->c.scale, y, own) : y) - with.z;
        T s = p.a->c.residual ? p.a->c.scale * slope : slope;
        if (!cells::finite(r) || !cells::finite(s)) {
            r = s = 0;
            if (p.is_open(me, at.column)) p.note(me, at.column, (uint32_t)(p.length - at.m), cells::never);
        }
        if (p.kinked() && p.is_open(me, at.column) && !is_rounding(me, p, at, r, s, with.z, own))
            p.note(me, at.column, (uint32_t)(p.length - at.m), 0);
        const int64_t place = p.place(at.m, at.column, at.i);
        me.peer_store(p.a->residuals + place, r);
        me.peer_store(p.a->slopes + place, s);
        return 0;
    }
};

// The columns of M, then v; in the first chunk only the latter, d. A class is a row.
template <class T>
struct newton_reducing : newton_way<T> {
    typedef newton_phase<T> problem;
    struct ahead {
        T s, r;
    };
    static constexpr bool leaves = true;
    SIMT static int64_t columns(const problem &p) { return p.w + 1; }
    SIMT static int64_t chunks(const problem &p) { return p.chunks - 1; }
    SIMT static bool idle(simt::lane &me, const problem &p, const large::item &t, int columns) {
        return (t.chunk == 0 && t.column + columns <= p.w) || !p.is_open(me, t.of);
    }
    SIMT static int done(const problem &, const large::item &) { return 1; }
    SIMT static T begin(simt::lane &me, const problem &p, const large::item &t, int64_t j, int64_t i) {
        const int64_t place = p.place(t.first, t.of, i);
        if (j == p.w) return me.peer_load(p.a->residuals + place);
        if (t.chunk == 0) return 0;
        const T *weight = newton_way<T>::transition(p, 0, t.first);
        const T w = weight[p.transposed ? j * p.w + i : i * p.w + j], s = me.peer_load(p.a->slopes + place);
        return simt::fma(s, w, T(p.a->c.residual && i == j ? 1 : 0));
    }
    SIMT static ahead add(simt::lane &me, const problem &p, const large::item &t, const large::spot &at) {
        const int64_t place = p.place(at.m, t.of, at.i);
        return {me.peer_load(p.a->slopes + place), at.column == p.w ? me.peer_load(p.a->residuals + place) : T(0)};
    }
    SIMT static T start(const ahead &) { return 0; }
    SIMT static T finish(simt::lane &, const problem &p, const large::item &, const large::spot &, const ahead &with,
                         T sum, T own, typename newton_way<T>::notes &) {
        return simt::fma(with.s, sum, p.a->c.residual ? own + with.r : with.r);
    }
    SIMT static void leave(simt::lane &me, const problem &p, const large::item &t, int64_t j, int64_t i, T x) {
        const int64_t of = t.chunk * p.a->together + t.of;
        if (j == p.w)
            me.peer_store(p.a->states + of * p.w + i, x);
        else if (t.chunk > 0)
            me.peer_store(p.a->products + (of * p.w + i) * p.w + j, x);
    }
};

// Steps are chunks: d after each but the last, in v's place; a class is a row. What the copies of M read was written in
// this launch before all blocks met.
template <class T>
struct folding : newton_way<T> {
    typedef newton_phase<T> problem;
    typedef T ahead;
    static constexpr bool looks_back = false;
    SIMT static const T *transition(const problem &p, int64_t row, int64_t m) {
        return p.a->products + (m * p.a->together + row) * p.w * p.w;
    }
    SIMT static T *at_chunk(const problem &p, int64_t row, int64_t m, int64_t i) {
        return p.a->states + (m * p.a->together + row) * p.w + i;
    }
    SIMT static int64_t columns(const problem &) { return 1; }
    SIMT static bool idle(simt::lane &me, const problem &p, const large::item &t, int) { return !p.is_open(me, t.of); }
    SIMT static int done(const problem &, const large::item &) { return 1; }
    SIMT static T begin(simt::lane &me, const problem &p, const large::item &t, int64_t, int64_t i) {
        return me.peer_load(at_chunk(p, t.of, 0, i));
    }
    SIMT static T add(simt::lane &me, const problem &p, const large::item &t, const large::spot &at) {
        return me.peer_load(at_chunk(p, t.of, at.m, at.i));
    }
    SIMT static T start(T v) { return v; }
    SIMT static T finish(simt::lane &me, const problem &p, const large::item &t, const large::spot &at, T, T d, T,
                         typename newton_way<T>::notes &) {
        me.peer_store(at_chunk(p, t.of, at.m, at.i), d);
        return d;
    }
};

// Columns are rows, a lane's numbers all of one.
template <class T>
struct applying : newton_way<T> {
    typedef newton_phase<T> problem;
    struct ahead {
        T s, r, z;
        bool open;  // is the row?
    };
    struct notes {
        float worst;
        uint32_t late;
    };
    SIMT static T begin(simt::lane &me, const problem &p, const large::item &t, int64_t row, int64_t i) {
        return t.chunk > 0 ? me.peer_load(folding<T>::at_chunk(p, row, t.chunk - 1, i)) : T(0);
    }
    SIMT static ahead add(simt::lane &me, const problem &p, const large::item &, const large::spot &at) {
        const int64_t place = p.place(at.m, at.column, at.i);
        return {me.peer_load(p.a->slopes + place), me.peer_load(p.a->residuals + place),
                me.peer_load(p.state(at.m, at.column, at.i)), p.is_open(me, at.column)};
    }
    SIMT static T start(const ahead &) { return 0; }
    SIMT static T finish(simt::lane &me, const problem &p, const large::item &, const large::spot &at,
                         const ahead &with, T sum, T own, notes &seen) {
        T d = simt::fma(with.s, sum, p.a->c.residual ? own + with.r : with.r);
        const bool good = cells::finite(d);
        if (!good) d = with.r;
        const T next = with.z + d, size = cells::magnitude(next);
        const T large = cells::magnitude(d) > cells::magnitude(with.r) ? cells::magnitude(d) : cells::magnitude(with.r);
        const float far = good ? (float)(large / (size > 1 ? size : T(1))) : cells::never;
        if (!(far <= seen.worst)) seen.worst = far < cells::never ? far : cells::never;
        if ((!good || !p.is_small(large, next) || !cells::finite(next)) && seen.late == 0)
            seen.late = (uint32_t)(p.length - at.m);  // the item's steps come in order
        if (with.open) me.peer_store(p.state(at.m, at.column, at.i), next);
        return d;
    }
    SIMT static void end(simt::lane &me, const problem &p, const large::item &t, int64_t column, notes seen) {
        for (int s = simt::warp_size / 2; s > 0; s /= 2) {
            const float other = me.shuffle_xor(seen.worst, s);
            const uint32_t later = me.shuffle_xor(seen.late, s);
            seen.worst = other > seen.worst ? other : seen.worst;
            seen.late = later > seen.late ? later : seen.late;
        }
        const int64_t row = t.column + column;
        if (me.in_warp() == 0 && row < p.rows && p.is_open(me, row)) p.note(me, row, seen.late, seen.worst);
    }
};

// In order from the first open step of a row, which is its class.
template <class T>
struct finishing : newton_way<T> {
    typedef newton_phase<T> problem;
    typedef T ahead;
    SIMT static int64_t columns(const problem &) { return 1; }
    SIMT static T begin(simt::lane &me, const problem &p, const large::item &t, int64_t, int64_t i) {
        return p.before(me, t.first, t.of, i);
    }
    SIMT static T add(simt::lane &, const problem &p, const large::item &t, const large::spot &at) {
        return p.input(at.m, t.of, at.i);
    }
    SIMT static T start(T x) { return x; }
    SIMT static T finish(simt::lane &me, const problem &p, const large::item &t, const large::spot &at, T, T u, T own,
                         typename newton_way<T>::notes &) {
        const T z = p.value(u, own);
        me.peer_store(p.state(at.m, t.of, at.i), z);
        return z;
    }
};

template <class T>
struct newton_stack {
    typedef newton_arguments<T> arguments;
    typedef newton_phase<T> phase;
    static constexpr int block = large::most_threads, most = 2 * block;  // two blocks' registers on a multiprocessor
    static constexpr int rows_of_a_lane = 2, columns_of_a_lane = sizeof(T) == 4 ? 4 : 2;  // of products that reduce

    template <class Way>
    SIMT_CALLED static void product(simt::lane &me, phase p, const strip_shape &s, int64_t chunk, int64_t classes) {
        p.units = s.units, p.column_warps = s.column_warps, p.depth = s.depth;
        p.chunk = chunk, p.chunks = (p.length + chunk - 1) / chunk, p.classes = classes;
        large::run_items<large::strips<T, 1, 1, Way>, Way>(me, p, s.column_warps);
    }
    SIMT_CALLED static void reduce(simt::lane &me, phase p, const strip_shape &s, int64_t chunk) {
        typedef newton_reducing<T> way;
        p.units = s.units, p.column_warps = s.column_warps, p.depth = s.depth;
        p.chunk = chunk, p.chunks = (p.length + chunk - 1) / chunk, p.classes = p.rows;
        large::run_items<large::strips<T, rows_of_a_lane, columns_of_a_lane, way>, way>(
            me, p, s.column_warps * columns_of_a_lane);
    }
    SIMT static void fold(simt::lane &me, phase p, const strip_shape &s, int64_t chunk) {
        p.length = (p.length + chunk - 1) / chunk - 1;
        p.transposed = false;
        product<folding<T>>(me, p, s, p.length, p.rows);
    }

    // f_l(0): what the states are guessed to be.
    SIMT static void guess(simt::lane &me, const phase &p) {
        const int64_t row = p.rows * p.w;
        for (int64_t n = me.block() * me.threads() + me.thread(); n < p.length * row; n += me.blocks() * me.threads()) {
            const int64_t m = n / row, r = n % row / p.w, i = n % p.w;
            const T z = p.value(p.input(m, r, i), T(0));
            me.peer_store(p.state(m, r, i), cells::finite(z) ? z : T(0));
        }
    }

    // Before anybody counts in the turn after this one.
    SIMT static void clear_next(simt::lane &me, const phase &p) {
        const int64_t after = (p.turn + 1) % 3;
        for (int64_t r = me.block() * me.threads() + me.thread(); r < p.rows; r += me.blocks() * me.threads()) {
            me.peer_store(p.a->worst + after * p.a->together + r, 0u);
            me.peer_store(p.a->late + after * p.a->together + r, 0u);
        }
        if (me.block() == 0 && me.thread() == 0) me.peer_store(p.a->open + after, 0u);
    }

    // After a sweep: what is told of the rows that it was for. A row is the lane's that clears it in clear_next, for
    // what is_open reads here is what that clears, with no barrier between.
    SIMT static void tell(simt::lane &me, const phase &p, int sweeps) {
        for (int64_t r = me.block() * me.threads() + me.thread(); r < p.rows; r += me.blocks() * me.threads()) {
            if (!p.is_open(me, r)) continue;
            const uint32_t late = me.peer_load(p.a->late + p.turn * p.a->together + r);
            cells::tally *t = p.a->tallies + p.base + r;
            me.raise(&t->sweeps, (uint32_t)sweeps);
            if (late > 0 && sweeps < p.a->c.most_sweeps) continue;
            me.raise(&t->residual, me.peer_load(p.a->worst + p.turn * p.a->together + r));
            if (late > 0) me.raise(&t->from_end, (uint32_t)(p.a->c.length - p.start - p.length) + late);
        }
    }

    // What is open after the last sweep, a row a block.
    SIMT_CALLED static void finish(simt::lane &me, phase p, const strip_shape &s) {
        typedef large::strips<T, 1, 1, finishing<T>> kernel;
        p.units = s.units, p.column_warps = s.column_warps, p.depth = s.depth;
        for (int64_t r = me.block(); r < p.rows; r += me.blocks()) {
            const int64_t late = me.peer_load(p.a->late + p.turn * p.a->together + r);
            if (late > 0) kernel::run_item(me, p, {0, r, 0, p.length - late, p.length});
        }
    }

    // A window of the rows at hand; ends with all blocks together, its states in z.
    SIMT static void window(simt::lane &me, phase p, int &turn) {
        const arguments &a = *p.a;
        const bool several = p.length > a.chunk;
        guess(me, p);
        me.grid_barrier();
        for (int sweeps = 1;; sweeps++) {
            p.turn = turn, p.first = sweeps == 1;
            clear_next(me, p);
            product<evaluating<T>>(me, p, a.one, 1, 1);
            me.grid_barrier();
            if (several) {
                reduce(me, p, a.several, a.chunk);
                me.grid_barrier();
                fold(me, p, a.one, a.chunk);
                me.grid_barrier();
            }
            product<applying<T>>(me, p, a.one, a.chunk, 1);
            me.grid_barrier();
            turn = (turn + 1) % 3;
            if (a.tallies) tell(me, p, sweeps);
            const bool open = me.acquire(a.open + p.turn) != 0;
            if (open && sweeps < a.c.most_sweeps) continue;
            if (open && !a.c.stop) finish(me, p, a.one);
            break;
        }
        me.grid_barrier();
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        phase p = {};
        int turn = 0;
        p.a = &a;
        p.w = a.w;
        p.transposed = a.c.in_out;
        for (p.base = 0; p.base < a.c.columns; p.base += a.together)
            for (p.start = 0; p.start < a.c.length; p.start += a.window) {
                p.rows = a.c.columns - p.base < a.together ? a.c.columns - p.base : a.together;
                p.length = a.c.length - p.start < a.window ? a.c.length - p.start : a.window;
                window(me, p, turn);
            }
        if (!a.tallies) return;
        for (int64_t n = me.block() * me.threads() + me.thread(); n < a.c.columns * a.w;
             n += me.blocks() * me.threads())
            if (!cells::finite(me.peer_load(a.c.z + (a.c.length - 1) * a.c.z_step + n / a.w * a.c.z_row + n % a.w)))
                me.raise(&a.tallies[n / a.w].non_finite, 1);
        me.grid_barrier();
        cells::report(me, a.c, a.tallies);
    }
};

}  // namespace layers

#endif
