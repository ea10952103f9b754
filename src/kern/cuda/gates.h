// SPDX-License-Identifier: MIT
// A layer and direction of a recurrent network (RNN, GRU, LSTM of any width) on a device.
//
//   inputs   g_m = W_ih x_m + b_ih of all steps, one product, a plain launch
//   columns  overlapped chunks of h, c <- cell(g_m, W_hh h + b_hh, h, c), one cooperative launch
//
// All items (gates_chunks.h) go side by side, a step at a time: their states are the columns of one product with W_hh,
// in tiles of 16 items x 32 units with all gates of a unit in one thread, so that the gates follow at once; then all
// blocks meet. warm_up + chunk barriers a sweep (of up to 32 units the block's own), 2 G H (H + I) flops a step, W_hh
// read once a step and 16 items from the second cache.
//
// A unit's sum runs over h in order, whatever is beside it: with tolerances of 0 overlap has the loop's bits.
// docs/math/overlap.md, recurrent.md.
#ifndef DPCRI_CUDA_GATES_H
#define DPCRI_CUDA_GATES_H

#include "kern/cuda/gates_chunks.h"
#include "kern/cuda/product.h"

namespace gates {

template <class T>
SIMT T sigmoid_of(T u) {
    return simt::fma(cells::gate_tanh(T(0.5) * u), T(0.5), T(0.5));
}

template <class T>
struct problem : chunked<T> {
    int64_t inputs;
    int64_t heard;  // numbers of h: H, or what an LSTM projects to
    bool relu;      // of an RNN
    const T *w_ih, *w_hh, *b_ih, *b_hh, *x;
    int64_t x_step, x_row;
    T clip;  // what goes into the gates' functions, and c into its tanh, is cut to -clip..clip; 0: as it is
    // Variants of an LSTM: f = 1 - i; p_i, p_f, p_o [3][H], with which c goes into the gates, or NULL.
    bool coupled;
    const T *peephole;
    T *y;
    int64_t y_step, y_row;
    bool against;                 // x and y run against time: where sequences end early, their first step lies later
    const unsigned char *resets;  // [length][rows] by time: a new sequence begins there; or NULL
    T *kept;                      // [length][rows][H]: c after each step, or NULL
    T *given;                     // [length][rows][given_row]: g, the first G H numbers of a row
    int64_t given_row;
    T *states;          // [2][chunks rows][H]: h of the items, by turns
    T *cells;           // [chunks rows][H]: c
    T *reset, *update;  // [chunks rows][H]: r h and z of a GRU that resets before the product
    int kept_units;     // units of a block that keeps their rows of W_hh on chip (gates_kept.h)
    int tall;           // warps that lie along items, of a tile that does (gates_tiles.h)
};

// Where step m of a sequence lies.
template <class T>
SIMT int64_t place_of(const problem<T> &p, int64_t row, int64_t m) {
    return p.lengths && p.against ? m + p.length - length_of<T>(p, row) : m;
}

// Whether the state before step m of a sequence is 0 and nothing goes back through it: a new one begins there, or,
// against time, with the step behind it.
template <class T>
SIMT bool begins(const problem<T> &p, int64_t row, int64_t m) {
    if (!p.resets) return false;
    const int64_t n = length_of<T>(p, row), t = p.against ? n - m : m;
    return t < n && p.resets[t * p.rows + row] != 0;
}

// y is 0 where a sequence has no step.
template <class T>
SIMT void clear_beyond(simt::lane &me, const problem<T> &p) {
    const int64_t H = p.hidden, count = p.lengths ? p.length * p.rows * H : 0;
    for (int64_t n = me.block() * me.threads() + me.thread(); n < count; n += me.blocks() * me.threads()) {
        const int64_t l = n / (p.rows * H), row = n / H % p.rows, none = p.length - length_of<T>(p, row);
        const bool step = p.against ? l >= none : l < p.length - none;
        if (!step) p.y[l * p.y_step + row * p.y_row + n % H] = 0;
    }
}

// sum[i][q] += sum over k < count of weights[row q group + lane][k] rows.at(item i of this thread)[k]; lane of group q
// counts where it is below room - q less.
template <class T, int Q, class Rows>
SIMT void multiply(simt::lane &me, const Rows &rows, const T *weights, int64_t count, int64_t group, int64_t room,
                   int64_t less, T (&sum)[mine][Q]) {
    const simt::shared<T> s = me.template array<T>(0, items_of_tile * depth + depth * stride<Q>);
    const int base = items_of_tile * depth;
    for (int64_t k0 = 0; k0 < count; k0 += depth) {
        me.barrier();
        for (int n = me.thread(); n < items_of_tile * depth; n += threads) {
            const int64_t k = k0 + n % depth;
            const T *from = rows.at(n / depth);
            s.set(n, from && k < count ? me.peer_load(from + k) : T(0));
        }
        for (int n = me.thread(); n < Q * units_of_tile * depth; n += threads) {
            const int kk = n % depth, unit = n / depth % units_of_tile, q = n / depth / units_of_tile;
            const bool there = k0 + kk < count && unit < room - q * less;
            s.set(base + kk * stride<Q> + q * units_of_tile + unit,
                  there ? weights[(q * group + unit) * count + k0 + kk] : T(0));
        }
        me.barrier();
        add_slice<T, Q>(me, s, sum);
    }
}

// ---- g = W_ih x + b_ih ----

template <class T>
struct inputs {
    struct task {
        problem<T> p;
        int64_t outputs;  // G H
        const T *more;    // a second bias, or NULL
        bool quads;       // x and W_ih, lines of four numbers
        bool quads_given;
    };
    struct step {
        const T *x;
        int64_t x_step, x_row;
        SIMT const T *at(int64_t l, int64_t row) const { return x + l * x_step + row * x_row; }
    };
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &a) {
            const problem<T> &p = a.p;
            const int64_t all = p.length * p.rows, wide = tiles(a.outputs, S::columns),
                          count = wide * tiles(all, S::rows);
            const product::steps<T, true, step> x({p.x, p.x_step, p.x_row}, p.rows, {all, p.inputs, a.quads});
            const product::matrix<T, true> weights(p.w_ih, p.inputs, {a.outputs, p.inputs, a.quads});
            for (int64_t tile = me.block(); tile < count; tile += me.blocks()) {
                const int64_t first = tile / wide * S::rows, out = tile % wide * S::columns;
                T sum[S::M][S::N];
                SIMT_UNROLL for (int j = 0; j < S::N; j++) {
                    const int64_t o = out + S::column(me, j);
                    T start = p.b_ih && o < a.outputs ? p.b_ih[o] : T(0);
                    if (a.more && o < a.outputs) start += a.more[o];
                    SIMT_UNROLL for (int i = 0; i < S::M; i++) sum[i][j] = start;
                }
                product::add<T, S>(me, x, first, weights, out, 0, p.inputs, sum);
                SIMT_UNROLL for (int i = 0; i < S::M; i++) {
                    const int64_t n = first + S::row(me, i);
                    SIMT_UNROLL for (int j = 0; j < S::N && n < all; j += 4) {
                        const int64_t o = out + S::column(me, j);
                        const T four[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
                        product::give(p.given + n * p.given_row + o, a.outputs - o, a.quads_given, four);
                    }
                }
            }
        }
    };
};

// The same of so few inputs that the time is that of writing: a thread four outputs of a row after the other.
template <class T>
struct inputs_thin {
    typedef typename inputs<T>::task arguments;
    typedef typename inputs<T>::step step;
    static constexpr int most = threads, most_inputs = 4;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t all = p.length * p.rows;
        const int wide = (int)tiles(a.outputs, 4), at_once = most / wide, o = me.thread() % wide * 4;
        if (me.thread() >= at_once * wide) return;
        T start[4] = {}, weight[most_inputs][4] = {};
        SIMT_UNROLL for (int j = 0; j < 4; j++) {
            if (o + j >= a.outputs) continue;
            if (p.b_ih) start[j] = p.b_ih[o + j];
            if (a.more) start[j] += a.more[o + j];
            SIMT_UNROLL for (int k = 0; k < most_inputs; k++) if (k < p.inputs) weight[k][j] =
                p.w_ih[(o + j) * p.inputs + k];
        }
        const product::steps<T, true, step> x({p.x, p.x_step, p.x_row}, p.rows, {all, p.inputs, false});
        const int64_t by = me.blocks() * at_once;
        int64_t n = me.block() * at_once + me.thread() / wide;
        typename product::steps<T, true, step>::place at = x.start(n);
        const typename product::steps<T, true, step>::pace pace = x.pace_of(by);
        for (; n < all; n += by) {
            const T *const from = x.at(at);
            T four[4] = {start[0], start[1], start[2], start[3]};
            SIMT_UNROLL for (int k = 0; k < most_inputs; k++) {
                if (k >= p.inputs) break;
                const T v = from[k];
                SIMT_UNROLL for (int j = 0; j < 4; j++) four[j] = simt::fma(weight[k][j], v, four[j]);
            }
            product::give(p.given + n * p.given_row + o, a.outputs - o, a.quads_given, four);
            x.go(at, pace);
        }
    }
};

// ---- what is cut ----

template <class T>
SIMT T cut(const problem<T> &p, T u) {
    return !(p.clip > 0) ? u : u > p.clip ? p.clip : u < -p.clip ? -p.clip : u;
}

// ---- a step of all items: columns of one product ----

// Of a tile of a stretch: lanes 0 .. 15 of a warp, and again 16 .. 31, each know an item through all its steps.
struct tile_items {
    int64_t first, u0;
    int64_t row, start, length;  // the chunk's first step; 0 steps of the sequence where the item rests
    // The step that the lane's item has at step `at` of its chunk, or -1.
    SIMT int64_t step(int64_t at) const { return start + at < length && start + at >= 0 ? start + at : -1; }
    // The same of a chain that runs from the sequence's last step.
    SIMT int64_t step_back(int64_t at) const { return step(at) < 0 ? -1 : length - 1 - step(at); }
};
template <class T>
SIMT tile_items items_of(simt::lane &me, const chunked<T> &p, const stretch &s, int64_t wide, int64_t index) {
    tile_items t = {s.first + index / wide * items_of_tile, index % wide * units_of_tile, 0, 0, 0};
    const int64_t item = t.first + me.in_warp() % items_of_tile;
    if (item >= s.first + s.count) return t;
    t.row = item % p.rows;
    t.start = item / p.rows * p.chunk;
    if (me.peer_load(p.open + item)) t.length = length_of<T>(p, t.row);
    return t;
}

template <class T, int G>  // gates of a unit: 1, 3, 4
struct columns {
    static constexpr bool cell = G == 4;
    typedef problem<T> arguments;
    typedef chunks<T, columns<T, G>> all;

    struct rows {
        const problem<T> &p;
        const T *states;
        int64_t first, end, step;  // step: of the items' chunks
        SIMT const T *at(int i) const {
            return first + i < end && !fresh(p, first + i, step) ? states + (first + i) * p.hidden : nullptr;
        }
    };

    SIMT static T *state_at(const problem<T> &p, int64_t item, int64_t u, int turn) {
        return p.states + (turn * all::items(p) + item) * p.hidden + u;
    }
    SIMT static T load(simt::lane &me, const problem<T> &p, int64_t item, int64_t u, int turn) {
        return me.peer_load(state_at(p, item, u, turn));
    }
    SIMT static void store(simt::lane &me, const problem<T> &p, int64_t item, int64_t u, int turn, T value) {
        me.peer_store(state_at(p, item, u, turn), value);
    }
    SIMT static T load_cell(simt::lane &me, const problem<T> &p, int64_t item, int64_t u) {
        return me.peer_load(p.cells + item * p.hidden + u);
    }
    SIMT static void store_cell(simt::lane &me, const problem<T> &p, int64_t item, int64_t u, T value) {
        me.peer_store(p.cells + item * p.hidden + u, value);
    }

    SIMT static void begin(simt::lane &me, const problem<T> &p) { clear_beyond(me, p); }

    // Whether an item's step begins from 0.
    SIMT static bool fresh(const problem<T> &p, int64_t item, int64_t at) {
        const int64_t m = item / p.rows * p.chunk + at;
        return p.resets && m >= 0 && m < length_of<T>(p, item % p.rows) && begins(p, item % p.rows, m);
    }

    // What goes into an LSTM's gates, `peephole` at the unit: c before the step too, or c after it.
    SIMT static T into_input(const T *peephole, T in, T before) {
        return peephole ? simt::fma(peephole[0], before, in) : in;
    }
    SIMT static T into_forget(const problem<T> &p, const T *peephole, T in, T before) {
        return peephole ? simt::fma(peephole[p.hidden], before, in) : in;
    }
    SIMT static T into_output(const problem<T> &p, const T *peephole, T in, T after) {
        return peephole ? simt::fma(peephole[2 * p.hidden], after, in) : in;
    }

    // What a step of a unit needs of its own: g, and c before it.
    struct own {
        T g[G], cell;
    };
    SIMT static own ready(simt::lane &me, const problem<T> &p, int64_t item, int64_t row, int64_t m, int64_t u) {
        const int64_t at = place_of(p, row, m) * p.rows + row;
        own o = {};
        SIMT_UNROLL for (int q = 0; q < G; q++) o.g[q] = p.given[at * p.given_row + q * p.hidden + u];
        if (cell && !begins(p, row, m)) o.cell = load_cell(me, p, item, u);
        return o;
    }
    // Gate q, but a GRU's last, from what goes into it and c, which peepholes see: after the step of the last gate,
    // before it of the others.
    SIMT static T gate(const problem<T> &p, int64_t u, int q, T in, T c) {
        if constexpr (G == 1) {
            const T v = cut(p, in);
            return p.relu ? (v <= 0 ? T(0) : v) : cells::gate_tanh(v);
        }
        if constexpr (G == 4) {
            const T *peephole = p.peephole ? p.peephole + u : nullptr;
            if (q == 2) return cells::gate_tanh(cut(p, in));
            in = q == 0   ? into_input(peephole, in, c)
                 : q == 1 ? into_forget(p, peephole, in, c)
                          : into_output(p, peephole, in, c);
        }
        return sigmoid_of(cut(p, in));
    }
    // What follows from a GRU's gates, and g and the sum of its last.
    SIMT static T mixed(const problem<T> &p, T r, T z, T g, T sum, T h) {
        const T n = cells::gate_tanh(cut(p, simt::fma(r, sum, g)));
        return simt::fma(z, h - n, n);  // (1 - z) n + z h
    }
    // And from an LSTM's: c, and then h.
    SIMT static T cell_after(const problem<T> &p, T i, T f, T n, T before) {
        return simt::fma(p.coupled ? T(1) - i : f, before, i * n);
    }
    SIMT static T state_after(const problem<T> &p, T out, T c) { return out * cells::gate_tanh(cut(p, c)); }

    // h after it, and c.
    SIMT static T pass(const problem<T> &p, int64_t u, const own &o, const T (&sum)[G], T h, T &c) {
        if constexpr (G == 1) return gate(p, u, 0, o.g[0] + sum[0], T(0));
        if constexpr (G == 3) {
            const T r = gate(p, u, 0, o.g[0] + sum[0], T(0)), z = gate(p, u, 1, o.g[1] + sum[1], T(0));
            return mixed(p, r, z, o.g[2], sum[2], h);
        }
        if constexpr (G == 4) {
            const T i = gate(p, u, 0, o.g[0] + sum[0], o.cell);
            const T f = p.coupled ? T(0) : gate(p, u, 1, o.g[1] + sum[1], o.cell);
            c = cell_after(p, i, f, gate(p, u, 2, o.g[2] + sum[2], T(0)), o.cell);
            return state_after(p, gate(p, u, 3, o.g[3] + sum[3], c), c);
        }
        return h;
    }
    SIMT static void write(const problem<T> &p, const stretch &s, int64_t row, int64_t m, int64_t u, T h, T c) {
        if (!s.writes) return;
        const int64_t l = place_of(p, row, m);
        p.y[l * p.y_step + row * p.y_row + u] = h;
        if (cell && p.kept) p.kept[(l * p.rows + row) * p.hidden + u] = c;
    }

    // A unit of an item with step m of its sequence, or none where m < 0, from what it needs to what it leaves: states
    // go from one buffer to the other, those that rest too.
    struct turned {
        own has;
        T h;
        bool anew;
    };
    SIMT static turned before(simt::lane &me, const problem<T> &p, int64_t item, int64_t row, int64_t m, int64_t u,
                              int turn) {
        turned t = {};
        t.h = load(me, p, item, u, turn);
        if (m >= 0) t.has = ready(me, p, item, row, m, u);
        t.anew = m >= 0 && begins(p, row, m);
        return t;
    }
    SIMT static void after(simt::lane &me, const problem<T> &p, const stretch &s, int64_t item, int64_t row, int64_t m,
                           int64_t u, const turned &t, const T (&sum)[G], int turn) {
        T next = t.h, c = 0;
        if (m >= 0) next = pass(p, u, t.has, sum, t.anew ? T(0) : t.h, c);
        store(me, p, item, u, 1 - turn, next);
        if (m < 0) return;
        if (cell) store_cell(me, p, item, u, c);
        write(p, s, row, m, u, next, c);
    }

    // One step of a tile.
    SIMT static void tile(simt::lane &me, const problem<T> &p, const stretch &s, const tile_items &t, int64_t at,
                          int turn) {
        const int64_t H = p.hidden, end = s.first + s.count, u = t.u0 + me.in_warp();
        const int64_t own_step = t.step(at);
        const bool work = me.any(own_step >= 0);
        turned unit[mine];
        T sum[mine][G];
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int lane = me.warp() * mine + i;
            const int64_t m = me.shuffle(own_step, lane), row = me.shuffle(t.row, lane);
            unit[i] = {};
            if (t.first + lane < end && u < H) unit[i] = before(me, p, t.first + lane, row, m, u, turn);
            SIMT_UNROLL for (int q = 0; q < G; q++) sum[i][q] = p.b_hh && u < H ? p.b_hh[q * H + u] : T(0);
        }
        if (work)
            multiply<T, G>(me, rows{p, state_at(p, 0, 0, turn), t.first, end, at}, p.w_hh + t.u0 * H, H, H, H - t.u0, 0,
                           sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int lane = me.warp() * mine + i;
            const int64_t m = me.shuffle(own_step, lane), row = me.shuffle(t.row, lane);
            if (t.first + lane < end && u < H) after(me, p, s, t.first + lane, row, m, u, unit[i], sum[i], turn);
        }
    }

    // Where a tile has all units, nobody but its block reads what it wrote before the stretch's end.
    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const int64_t wide = tiles(p.hidden, units_of_tile), count = wide * tiles(s.count, items_of_tile);
        tile_items t = items_of<T>(me, p, s, wide, me.block());
        for (int64_t n = 0; n < s.steps; n++) {
            for (int64_t index = me.block(); index < count; index += me.blocks()) {
                if (count > me.blocks()) t = items_of<T>(me, p, s, wide, index);
                tile(me, p, s, t, s.from + n, turn);
            }
            if (wide > 1 || n + 1 == s.steps)
                me.grid_barrier();
            else
                me.barrier();
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
