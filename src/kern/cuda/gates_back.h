// SPDX-License-Identifier: MIT
// The way back through a layer and direction of a recurrent network on a device. Not yet run on one.
//
//   gates    what the gates were, of all steps at once, from the states that went in: a plain launch
//   backs    from the last step, in chunks as the way forward (gates_chunks.h), one cooperative launch:
//              g = acc + dy,  e = gradients of what the gates' functions got,  acc = what goes beside them + e W_hh
//   peepholes_back, peepholes_fold
//            those of an LSTM that has them: plain launches
//   inputs_back, weights_back, fold
//            dx = e_x W_ih;  dW_ih += e_x^T x,  dW_hh += e_h^T h_before,  db += sums of e: plain launches
//
// A step's product with W_hh and the next one's gates are one tile's work, so a step is one grid barrier. e has 1, 4 or
// 4 numbers a unit, as kern/gates.h has them: of a GRU's r, z, m, n the first three go with W_hh, all but m with W_ih.
// The rows of a weight's gradient are summed in pieces of a number that the shape alone says, and the pieces by their
// index: no bits depend on who was first. docs/math/recurrent.md, backward.md.
#ifndef DPCRI_CUDA_GATES_BACK_H
#define DPCRI_CUDA_GATES_BACK_H

#include "kern/cuda/gates.h"

namespace gates {

constexpr int taped(int G) { return G == 1 ? 1 : 4; }  // numbers of e a unit

// `p` is the layer as it ran forward; the chain's own steps run from its last one.
template <class T>
struct back_problem : chunked<T> {
    problem<T> p;
    const T *h0, *c0;
    const T *dy;  // or NULL
    int64_t dy_step, dy_row;
    T *dx;
    int64_t dx_step, dx_row;
    bool dx_adds;
    T *gates;    // [length][rows][4 H] of GRU and LSTM: r, z, m, n or i, f, g, o; in the place of p.given
    T *e;        // [length][rows][E H]
    T *columns;  // [2][chunks rows][G H]: e of the items that goes with W_hh, by turns
    T *acc;      // [chunks rows][H]: what comes to h from the steps behind
    T *beside;   // [chunks rows][H]: of a GRU what goes on beside the gates, of an LSTM what comes to c
};

template <class T>
using back_rest = resting<T, back_problem<T>, &back_problem<T>::acc, &back_problem<T>::beside>;

// h before step m of a sequence, at the unit; 0 where there was none.
template <class T>
SIMT const T *before_of(const back_problem<T> &b, int64_t row, int64_t m) {
    const problem<T> &p = b.p;
    if (begins(p, row, m)) return nullptr;
    if (m == 0) return b.h0 ? b.h0 + row * p.heard : nullptr;
    return p.y + place_of(p, row, m - 1) * p.y_step + row * p.y_row;
}

// c likewise.
template <class T>
SIMT T cell_before(const back_problem<T> &b, int64_t row, int64_t m, int64_t u) {
    const problem<T> &p = b.p;
    if (begins(p, row, m)) return T(0);
    if (m > 0) return p.kept[(place_of(p, row, m - 1) * p.rows + row) * p.hidden + u];
    return b.c0 ? b.c0[row * p.hidden + u] : T(0);
}

// Step of the sequence that lies at l, or -1: none.
template <class T>
SIMT int64_t step_at(const problem<T> &p, int64_t row, int64_t l) {
    const int64_t n = length_of<T>(p, row), m = p.against ? l - (p.length - n) : l;
    return p.lengths && (m < 0 || m >= n) ? -1 : p.lengths ? m : l;
}

// ---- what was cut: nothing goes back through its function ----

// Told by the tape: a sigmoid's value is negative there, a tanh's two further from 0.
template <class T>
SIMT bool is_cut(const problem<T> &p, T u) {
    return p.clip > 0 && cells::magnitude(u) > p.clip;
}
template <class T>
SIMT T sealed_sigmoid(const problem<T> &p, T u) {
    const T y = sigmoid_of(cut(p, u));
    return is_cut(p, u) ? -y : y;
}
template <class T>
SIMT T sealed_tanh(const problem<T> &p, T u) {
    const T y = cells::gate_tanh(cut(p, u));
    return !is_cut(p, u) ? y : u > 0 ? y + T(2) : y - T(2);
}
// Was it cut? y is the value afterwards.
template <class T>
SIMT bool open_sigmoid(const problem<T> &p, T &y) {
    const bool cut = p.clip > 0 && y < 0;
    if (cut) y = -y;
    return cut;
}
template <class T>
SIMT bool open_tanh(const problem<T> &p, T &y) {
    const bool cut = p.clip > 0 && cells::magnitude(y) > T(1.5);
    if (cut) y = y > 0 ? y - T(2) : y + T(2);
    return cut;
}

// ---- the gates again: tiles of 16 steps x 32 units ----

template <class T, int G>
struct gate_values {
    static constexpr int most = threads;
    typedef back_problem<T> arguments;
    struct rows {
        const arguments &b;
        int64_t first;
        SIMT const T *at(int i) const {
            const problem<T> &p = b.p;
            const int64_t n = first + i, row = n % p.rows;
            if (n >= p.length * p.rows) return nullptr;
            const int64_t m = step_at(p, row, n / p.rows);
            return m < 0 ? nullptr : before_of(b, row, m);
        }
    };
    SIMT static void run(simt::lane &me, const arguments &b) {
        typedef gates::columns<T, G> forward;
        const problem<T> &p = b.p;
        const int64_t H = p.hidden, wide = tiles(H, units_of_tile), all = p.length * p.rows, K = p.heard;
        for (int64_t tile = me.block(); tile < wide * tiles(all, items_of_tile); tile += me.blocks()) {
            const int64_t first = tile / wide * items_of_tile, u0 = tile % wide * units_of_tile, u = u0 + me.in_warp();
            T sum[mine][G];
            SIMT_UNROLL for (int i = 0; i < mine; i++) SIMT_UNROLL for (int q = 0; q < G; q++) sum[i][q] =
                p.b_hh && u < H ? p.b_hh[q * H + u] : T(0);
            multiply<T, G>(me, rows{b, first}, p.w_hh + u0 * K, K, H, H - u0, 0, sum);
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t n = first + me.warp() * mine + i;
                if (n >= all || u >= H) continue;
                T *g = b.gates + n * 4 * H + u;
                if constexpr (G == 3) {
                    const T r = sealed_sigmoid(p, g[0] + sum[i][0]), z = sealed_sigmoid(p, g[H] + sum[i][1]);
                    const T v = sealed_tanh(p, simt::fma(p.clip > 0 ? cells::magnitude(r) : r, sum[i][2], g[2 * H]));
                    g[0] = r, g[H] = z, g[2 * H] = sum[i][2], g[3 * H] = v;
                }
                if constexpr (G == 4) {
                    const int64_t row = n % p.rows, m = step_at(p, row, n / p.rows);
                    const T *peephole = p.peephole && m >= 0 ? p.peephole + u : nullptr;
                    const T before = peephole ? cell_before(b, row, m, u) : T(0),
                            after = peephole ? p.kept[n * H + u] : T(0);
                    const T in = sealed_sigmoid(p, forward::into_input(peephole, g[0] + sum[i][0], before));
                    const T forget = forward::into_forget(p, peephole, g[H] + sum[i][1], before);
                    g[0] = in;
                    g[H] = !p.coupled ? sealed_sigmoid(p, forget) : T(1) - (p.clip > 0 ? cells::magnitude(in) : in);
                    g[2 * H] = sealed_tanh(p, g[2 * H] + sum[i][2]);
                    g[3 * H] = sealed_sigmoid(p, forward::into_output(p, peephole, g[3 * H] + sum[i][3], after));
                }
            }
        }
    }
};

// ---- products with weights that stand the other way round ----

// sum[i][q] += sum over k < count of rows.at(i)[k, beyond `split` k + jump] weights[k][lane of group q]; a lane counts
// below room.
template <class T, int Q, class Rows>
SIMT void multiply_down(simt::lane &me, const Rows &rows, const T *weights, int64_t wide, int64_t count, int64_t split,
                        int64_t jump, int64_t room, T (&sum)[mine][Q]) {
    const simt::shared<T> s = me.template array<T>(0, items_of_tile * depth + depth * stride<Q>);
    const int base = items_of_tile * depth;
    for (int64_t k0 = 0; k0 < count; k0 += depth) {
        me.barrier();
        for (int n = me.thread(); n < items_of_tile * depth; n += threads) {
            const int64_t k = k0 + n % depth;
            const T *from = rows.at(n / depth);
            s.set(n, from && k < count ? me.peer_load(from + (k < split ? k : k + jump)) : T(0));
        }
        for (int n = me.thread(); n < Q * units_of_tile * depth; n += threads) {
            const int kk = n / (Q * units_of_tile), column = n % (Q * units_of_tile);
            s.set(base + kk * stride<Q> + column,
                  k0 + kk < count && column < room ? weights[(k0 + kk) * wide + column] : T(0));
        }
        me.barrier();
        add_slice<T, Q>(me, s, sum);
    }
}

// ---- a step of all items ----

template <class T, int G>
struct backs : back_rest<T> {
    typedef back_rest<T> rest;
    static constexpr bool cell = G == 4;
    static constexpr int E = taped(G);
    typedef back_problem<T> arguments;
    typedef chunks<T, backs<T, G>> all;

    struct rows {
        const arguments &b;
        const T *columns;
        int64_t first, end;
        SIMT const T *at(int i) const { return first + i < end ? columns + (first + i) * G * b.hidden : nullptr; }
    };

    // e is 0 where a sequence has no step.
    SIMT static void begin(simt::lane &me, const arguments &b) {
        const int64_t wide = E * b.hidden, count = b.lengths ? b.length * b.rows * wide : 0;
        for (int64_t n = all::self(me); n < count; n += me.blocks() * threads)
            if (step_at(b.p, n / wide % b.rows, n / (b.rows * wide)) < 0) b.e[n] = 0;
    }

    // What the gates of a unit need of their own at step m: dy, the tape (of an RNN y), and h or c before the step.
    struct own {
        T dy, tape[E], before;
    };
    SIMT static own ready(const arguments &b, int64_t row, int64_t m, int64_t u) {
        const problem<T> &p = b.p;
        const int64_t H = p.hidden, l = place_of(p, row, m);
        own o = {};
        if (b.dy) o.dy = b.dy[l * b.dy_step + row * b.dy_row + u];
        SIMT_UNROLL for (int q = 0; q < E; q++) o.tape[q] =
            G == 1 ? p.y[l * p.y_step + row * p.y_row + u] : b.gates[((l * p.rows + row) * 4 + q) * H + u];
        if constexpr (G == 3) {
            const T *before = before_of(b, row, m);
            if (before) o.before = before[u];
        }
        if constexpr (G == 4) o.before = cell_before(b, row, m, u);
        return o;
    }

    // e of a unit from what has come to h, and of an LSTM to c, which lies beside; what goes on there, of a GRU beside
    // the gates. `anew`: a sequence begins with the step. Formulas and order of kern/gates_back.inc.
    SIMT static void gates_of(const arguments &b, int64_t u, const own &o, bool anew, T come, T &beside, T (&e)[E]) {
        const problem<T> &p = b.p;
        const int64_t H = p.hidden;
        const T g = b.dy ? come + o.dy : come;
        if constexpr (G == 1) {
            const T y = o.tape[0];
            // What was cut has the end's value, which nothing else has but what rounds to it.
            if (p.relu)
                e[0] = g * (y <= 0 || (p.clip > 0 && y >= p.clip) ? T(0) : T(1));
            else
                e[0] =
                    p.clip > 0 && cells::magnitude(y) >= cells::gate_tanh(p.clip) ? T(0) : g * simt::fma(-y, y, T(1));
        }
        if constexpr (G == 3) {
            const T h = o.before, s = o.tape[2];
            T r = o.tape[0], z = o.tape[1], n = o.tape[3];
            const bool cut_r = open_sigmoid(p, r), cut_z = open_sigmoid(p, z), cut_n = open_tanh(p, n);
            const T through = g * z, dn = cut_n ? T(0) : (g - through) * simt::fma(-n, n, T(1)), ds = dn * r;
            e[0] = cut_r ? T(0) : (ds * s) * (T(1) - r);
            e[1] = cut_z ? T(0) : (through * (h - n)) * (T(1) - z);
            e[2] = ds;
            e[3] = dn;
            beside = through;
        }
        if constexpr (G == 4) {
            T i = o.tape[0], f = o.tape[1], n = o.tape[2], out = o.tape[3];
            const bool cut_i = open_sigmoid(p, i), cut_f = !p.coupled && open_sigmoid(p, f);
            const bool cut_n = open_tanh(p, n), cut_o = open_sigmoid(p, out);
            const T c = o.before;
            const T after = simt::fma(f, c, i * n), t = cells::gate_tanh(cut(p, after));
            e[3] = cut_o ? T(0) : (g * t) * (out * (T(1) - out));
            const T *peephole = p.peephole ? p.peephole + u : nullptr;
            T gc = simt::fma(g * out, is_cut(p, after) ? T(0) : simt::fma(-t, t, T(1)), beside);
            if (peephole) gc = simt::fma(peephole[2 * H], e[3], gc);
            const T of_f = gc * c;
            e[0] = cut_i ? T(0) : (p.coupled ? gc * n - of_f : gc * n) * (i * (T(1) - i));
            e[1] = p.coupled || cut_f ? T(0) : of_f * (f * (T(1) - f));
            e[2] = cut_n ? T(0) : (gc * i) * simt::fma(-n, n, T(1));
            T through = gc * f;
            if (peephole) through = simt::fma(peephole[0], e[0], simt::fma(peephole[H], e[1], through));
            beside = anew ? T(0) : through;
        }
    }

    // e of a step, for its writing.
    SIMT static void write(const arguments &b, const stretch &s, int64_t row, int64_t m, int64_t u, const T (&e)[E]) {
        if (!s.writes) return;
        const int64_t at = place_of(b.p, row, m) * b.rows + row;
        SIMT_UNROLL for (int q = 0; q < E; q++) b.e[(at * E + q) * b.hidden + u] = e[q];
    }

    // A unit of an item between two steps: m, the one that it has now, and `done`, the one before in the chain; -1:
    // none.
    struct turned {
        int64_t row, m, done;
        own has;
        T come, beside;
        bool anew, ended;  // a sequence begins with m; with `done`
    };
    SIMT static turned before(simt::lane &me, const arguments &b, int64_t item, int64_t row, int64_t m, int64_t done,
                              int64_t u) {
        turned t = {};
        t.row = row, t.m = m, t.done = done;
        if (m >= 0) t.has = ready(b, row, m, u);
        if (m >= 0 && done < 0) t.come = rest::load(me, b, item, u, 0);
        if ((G == 3 && done >= 0) || (G == 4 && m >= 0)) t.beside = rest::load_cell(me, b, item, u);
        t.anew = m >= 0 && begins(b.p, row, m);
        t.ended = done >= 0 && begins(b.p, row, done);
        return t;
    }
    // What the product of the step before is added to.
    SIMT static T addend(const turned &t) { return G == 3 ? t.beside : T(0); }
    // Then the gates of this one, where it has one; `sum`, that product.
    SIMT static void after(simt::lane &me, const arguments &b, const stretch &s, int64_t item, int64_t u,
                           const turned &t, T sum, int turn) {
        const int64_t H = b.hidden;
        T *const to = b.columns + (1 - turn) * all::items(b) * G * H;
        if (t.ended) sum = 0;
        if (t.m < 0) {
            if (t.done >= 0) rest::store(me, b, item, u, 0, sum);
            return;
        }
        T e[E], beside = t.beside;
        gates_of(b, u, t.has, t.anew, t.done >= 0 ? sum : t.come, beside, e);
        if (G > 1) rest::store_cell(me, b, item, u, beside);
        SIMT_UNROLL for (int q = 0; q < G; q++) me.peer_store(to + (item * G + q) * H + u, e[q]);
        write(b, s, t.row, t.m, u, e);
    }

    // Of a tile: the product of the step before, n - 1, where there was one, then the gates of step n of the stretch.
    SIMT static void tile(simt::lane &me, const arguments &b, const stretch &s, const tile_items<T> &t, int64_t n,
                          int turn) {
        const int64_t H = b.hidden, end = s.first + s.count, u = t.u0 + me.in_warp();
        const T *from = b.columns + turn * all::items(b) * G * H;
        const int64_t own_step = n < s.steps ? t.step_back(s.from + n) : -1;
        const int64_t own_done = n > 0 ? t.step_back(s.from + n - 1) : -1;
        const bool work = me.any(own_done >= 0);
        turned unit[mine];
        T sum[mine][1];
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int lane = me.warp() * mine + i;
            const int64_t row = me.shuffle(t.row, lane), m = me.shuffle(own_step, lane),
                          done = me.shuffle(own_done, lane);
            unit[i] = {};
            unit[i].m = unit[i].done = -1;
            if (t.first + lane < end && u < H) unit[i] = before(me, b, t.first + lane, row, m, done, u);
            sum[i][0] = addend(unit[i]);
        }
        if (work)
            multiply_down<T, 1>(me, rows{b, from, t.first, end}, b.p.w_hh + t.u0, H, G * H, G * H, 0, H - t.u0, sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = t.first + me.warp() * mine + i;
            if (item < end && u < H) after(me, b, s, item, u, unit[i], sum[i][0], turn);
        }
    }

    // Where a tile has all units, nobody but its block reads what it wrote before the stretch's end.
    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const int64_t wide = tiles(b.hidden, units_of_tile), count = wide * tiles(s.count, items_of_tile);
        tile_items<T> t = items_of<T>(me, b, s, wide, me.block());
        for (int64_t n = 0; n <= s.steps; n++) {
            for (int64_t index = me.block(); index < count; index += me.blocks()) {
                if (count > me.blocks()) t = items_of<T>(me, b, s, wide, index);
                tile(me, b, s, t, n, turn);
            }
            if (wide > 1 || n == s.steps)
                me.grid_barrier();
            else
                me.barrier();
            turn = 1 - turn;
        }
    }
};

// ---- dx = e_x W_ih: tiles of 16 steps (of a sequence) x 128 inputs ----

template <class T, int G>
struct inputs_back {
    static constexpr int Q = 4, most = threads, E = taped(G);
    typedef back_problem<T> arguments;
    struct rows {
        const arguments &b;
        int64_t first;
        SIMT const T *at(int i) const {
            return first + i < b.length * b.rows ? b.e + (first + i) * E * b.hidden : nullptr;
        }
    };
    SIMT static void run(simt::lane &me, const arguments &b) {
        const int64_t H = b.hidden, I = b.p.inputs, all = b.length * b.rows, wide = tiles(I, Q * units_of_tile);
        for (int64_t tile = me.block(); tile < wide * tiles(all, items_of_tile); tile += me.blocks()) {
            const int64_t first = tile / wide * items_of_tile, out = tile % wide * (Q * units_of_tile);
            T sum[mine][Q] = {};
            multiply_down<T, Q>(me, rows{b, first}, b.p.w_ih + out, I, G * H, G == 3 ? 2 * H : G * H, H, I - out, sum);
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t n = first + me.warp() * mine + i, l = n / b.rows, row = n % b.rows;
                SIMT_UNROLL for (int q = 0; q < Q; q++) {
                    const int64_t j = out + q * units_of_tile + me.in_warp();
                    if (n >= all || j >= I) continue;
                    T *to = b.dx + l * b.dx_step + row * b.dx_row + j;
                    *to = b.dx_adds ? *to + sum[i][q] : sum[i][q];
                }
            }
        }
    }
};

// ---- dW += e^T v, db += sums of e: pieces of the rows, tiles of 16 outputs x 128 columns ----

constexpr int64_t wide_of_weight = 4 * units_of_tile;

// dW_ih where `input` (v is x), else dW_hh (the states that went in). Of the bias too: column `width` of a piece.
template <class T, int G>
struct weights_back {
    static constexpr int Q = 4, most = threads, E = taped(G);
    struct arguments {
        back_problem<T> b;
        bool input;
        int64_t width, pieces, piece;  // columns; pieces, and rows of each
        T *parts;                      // [pieces][G H][width + 1]
        T *weight, *bias;              // what they are added to, or NULL
        int64_t base, rows;            // the rows of W that are summed
        bool reset;                    // v is what gates_reset.h has of r h
    };
    SIMT static const T *value_at(const arguments &a, int64_t n) {
        const problem<T> &p = a.b.p;
        const int64_t l = n / p.rows, row = n % p.rows, m = step_at(p, row, l);
        if (m < 0) return nullptr;
        if (a.reset) return a.b.gates + n * 4 * p.hidden + 3 * p.hidden;
        return a.input ? p.x + l * p.x_step + row * p.x_row : before_of(a.b, row, m);
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const back_problem<T> &b = a.b;
        const int64_t H = b.hidden, wide = tiles(a.width, wide_of_weight), tall = tiles(a.rows, items_of_tile);
        const simt::shared<T> s = me.template array<T>(0, items_of_tile * depth + depth * stride<Q>);
        const int base = items_of_tile * depth;
        for (int64_t tile = me.block(); tile < a.pieces * wide * tall; tile += me.blocks()) {
            const int64_t piece = tile / (wide * tall), out = tile / wide % tall * items_of_tile;
            const int64_t column = tile % wide * wide_of_weight, first = piece * a.piece;
            const int64_t end = first + a.piece < b.length * b.rows ? first + a.piece : b.length * b.rows;
            T sum[mine][Q] = {}, whole[mine] = {};
            for (int64_t k0 = first; k0 < end; k0 += depth) {
                me.barrier();
                for (int n = me.thread(); n < items_of_tile * depth; n += threads) {
                    const int64_t r = out + n % items_of_tile, k = k0 + n / items_of_tile;
                    const int64_t own = a.base + r, from = G == 3 && a.input && own >= 2 * H ? own + H : own;
                    s.set(n % items_of_tile * depth + n / items_of_tile,
                          k < end && r < a.rows ? b.e[k * E * H + from] : T(0));
                }
                for (int n = me.thread(); n < Q * units_of_tile * depth; n += threads) {
                    const int64_t k = k0 + n / (Q * units_of_tile), j = column + n % (Q * units_of_tile);
                    const T *v = k < end && j < a.width ? value_at(a, k) : nullptr;
                    s.set(base + n / (Q * units_of_tile) * stride<Q> + n % (Q * units_of_tile), v ? v[j] : T(0));
                }
                me.barrier();
                add_slice<T, Q>(me, s, sum);
                SIMT_UNROLL for (int i = 0; i < mine; i++) SIMT_ROLLED for (int kk = 0; kk < depth; kk++) whole[i] +=
                    s.get((me.warp() * mine + i) * depth + kk);
            }
            SIMT_UNROLL for (int i = 0; i < mine; i++) {
                const int64_t r = out + me.warp() * mine + i;
                if (r >= a.rows) continue;
                T *to = a.parts + (piece * a.rows + r) * (a.width + 1);
                SIMT_UNROLL for (int q = 0; q < Q; q++) {
                    const int64_t j = column + q * units_of_tile + me.in_warp();
                    if (j < a.width) to[j] = sum[i][q];
                }
                if (column == 0 && me.in_warp() == 0) to[a.width] = whole[i];
            }
        }
    }
};

// dp_i += e_i c_before, dp_f += e_f c_before, dp_o += e_o c_after of an LSTM: a thread a unit of a piece of the rows.
template <class T>
struct peepholes_back {
    static constexpr int most = threads;
    struct arguments {
        back_problem<T> b;
        int64_t pieces, piece;  // and rows of each
        T *parts;               // [pieces][3][H]
        T *peepholes;           // what they are added to
    };
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.b.p;
        const int64_t H = p.hidden, rows = p.length * p.rows;
        for (int64_t n = me.block() * threads + me.thread(); n < a.pieces * H; n += me.blocks() * threads) {
            const int64_t u = n % H, first = n / H * a.piece, end = first + a.piece < rows ? first + a.piece : rows;
            T sum[3] = {};
            for (int64_t k = first; k < end; k++) {
                const int64_t row = k % p.rows, m = step_at(p, row, k / p.rows);
                if (m < 0) continue;
                const T before = cell_before(a.b, row, m, u), *e = a.b.e + k * 4 * H + u;
                sum[0] = simt::fma(e[0], before, sum[0]);
                sum[1] = simt::fma(e[H], before, sum[1]);
                sum[2] = simt::fma(e[3 * H], p.kept[k * H + u], sum[2]);
            }
            SIMT_UNROLL for (int i = 0; i < 3; i++) a.parts[(n / H * 3 + i) * H + u] = sum[i];
        }
    }
};

template <class T>
struct peepholes_fold {
    static constexpr int most = threads;
    typedef typename peepholes_back<T>::arguments arguments;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t count = 3 * a.b.p.hidden;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            a.peepholes[n] += sum_of_pieces(a.parts, a.pieces, count, n);
        }
    }
};

// The pieces' sums, in order, onto what is there: a thread a number.
template <class T, int G>
struct fold {
    static constexpr int most = threads;
    typedef typename weights_back<T, G>::arguments arguments;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t row = a.width + 1, count = a.rows * row;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            const int64_t r = a.base + n / row, j = n % row;
            T *to = j < a.width ? (a.weight ? a.weight + r * a.width + j : nullptr) : a.bias ? a.bias + r : nullptr;
            if (to) *to += sum_of_pieces(a.parts, a.pieces, count, n);
        }
    }
};

}  // namespace gates

#endif
