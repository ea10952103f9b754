// SPDX-License-Identifier: MIT
// The way back through a layer and direction of a recurrent network on a device.
//
//   gates    what the gates were, of all steps at once, from the states that went in: a plain launch
//   backs    from the last step, in chunks as the way forward (gates_chunks.h), one cooperative launch:
//              g = acc + dy,  e = gradients of what the gates' functions got,  acc = what goes beside them + e W_hh
//   peepholes_back, fold or fold_many
//            those of an LSTM that has them: plain launches
//   inputs_back, weights_back, fold or fold_many
//            dx = e_x W_ih;  dW_ih += e_x^T x,  dW_hh += e_h^T h_before,  db += sums of e: plain launches
//
// A step's product with W_hh and the next one's gates are one tile's work, so a step is one grid barrier (of up to 32
// units the block's own). e has 1, 4 or 4 numbers a unit, as kern/gates.h has them: of a GRU's r, z, m, n the first
// three go with W_hh, all but m with W_ih. The rows of a weight's gradient are summed in pieces of a number that the
// shape alone says, and the pieces by their index: no bits depend on who was first. docs/math/recurrent.md,
// backward.md.
#ifndef DPCRI_CUDA_GATES_BACK_H
#define DPCRI_CUDA_GATES_BACK_H

#include "kern/cuda/gates.h"

namespace gates {

SIMT_BOTH constexpr int taped(int G) { return G == 1 ? 1 : 4; }  // numbers of e a unit

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

// ---- the gates again: a product with four columns a unit, of which a GRU leaves the last empty ----

template <class T>
struct hearing {
    const back_problem<T> &b;
    SIMT const T *at(int64_t l, int64_t row) const {
        const int64_t m = step_at(b.p, row, l);
        return m < 0 ? nullptr : before_of(b, row, m);
    }
};

template <class T, int G>
struct gate_values {
    struct task {
        back_problem<T> b;
        bool quads_h, quads_weight;
    };
    // Line n is gate n % 4 of unit n / 4.
    struct by_unit : product::operand<T, true> {
        const T *weights;
        int64_t units;
        SIMT by_unit(const T *w, int64_t K, int64_t H, bool in_quads)
            : product::operand<T, true>{4 * H, K, in_quads}, weights(w), units(H) {}
        SIMT static int64_t start(int64_t n) { return n; }
        SIMT const T *at(int64_t n) const {
            return n % 4 < G ? weights + (n % 4 * units + n / 4) * this->wide : nullptr;
        }
    };
    // Numbers of a unit at step l of a sequence, n of all steps, from what its product is.
    SIMT static void finish(const back_problem<T> &b, int64_t n, int64_t u, const T (&sum)[4]) {
        typedef gates::columns<T, G> forward;
        const problem<T> &p = b.p;
        const int64_t H = p.hidden;
        T *g = b.gates + n * 4 * H + u;
        if constexpr (G == 3) {
            const T r = sealed_sigmoid(p, g[0] + sum[0]), z = sealed_sigmoid(p, g[H] + sum[1]);
            const T v = sealed_tanh(p, simt::fma(p.clip > 0 ? cells::magnitude(r) : r, sum[2], g[2 * H]));
            g[0] = r, g[H] = z, g[2 * H] = sum[2], g[3 * H] = v;
        }
        if constexpr (G == 4) {
            const int64_t row = n % p.rows, m = step_at(p, row, n / p.rows);
            const T *peephole = p.peephole && m >= 0 ? p.peephole + u : nullptr;
            const T before = peephole ? cell_before(b, row, m, u) : T(0), after = peephole ? p.kept[n * H + u] : T(0);
            const T in = sealed_sigmoid(p, forward::into_input(peephole, g[0] + sum[0], before));
            const T forget = forward::into_forget(p, peephole, g[H] + sum[1], before);
            g[0] = in;
            g[H] = !p.coupled ? sealed_sigmoid(p, forget) : T(1) - (p.clip > 0 ? cells::magnitude(in) : in);
            g[2 * H] = sealed_tanh(p, g[2 * H] + sum[2]);
            g[3 * H] = sealed_sigmoid(p, forward::into_output(p, peephole, g[3 * H] + sum[3], after));
        }
    }
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &a) {
            const back_problem<T> &b = a.b;
            const problem<T> &p = b.p;
            const int64_t H = p.hidden, wide = tiles(4 * H, S::columns), all = p.length * p.rows, K = p.heard;
            const product::steps<T, true, hearing<T>> h({b}, p.rows, {all, K, a.quads_h});
            const by_unit weights(p.w_hh, K, H, a.quads_weight);
            for (int64_t tile = me.block(); tile < wide * tiles(all, S::rows); tile += me.blocks()) {
                const int64_t first = tile / wide * S::rows, out = tile % wide * S::columns;
                T sum[S::M][S::N];
                SIMT_UNROLL for (int j = 0; j < S::N; j++) {
                    const int64_t u = (out + S::column(me, j)) / 4;
                    const T start = p.b_hh && j % 4 < G && u < H ? p.b_hh[j % 4 * H + u] : T(0);
                    SIMT_UNROLL for (int i = 0; i < S::M; i++) sum[i][j] = start;
                }
                product::add<T, S>(me, h, first, weights, out, 0, K, sum);
                product::each_row<S>(me, sum, [&](int row, const T(&numbers)[S::N]) {
                    SIMT_UNROLL for (int j = 0; j < S::N; j += 4) {
                        const int64_t u = (out + S::column(me, j)) / 4;
                        const T four[4] = {numbers[j], numbers[j + 1], numbers[j + 2], numbers[j + 3]};
                        if (first + row < all && u < H) finish(b, first + row, u, four);
                    }
                });
            }
        }
    };
};

// Items' numbers, `each` an item, from the first one's on.
template <class T>
struct item_rows {
    const T *numbers;
    int64_t each, first, end;
    SIMT const T *at(int i) const { return first + i < end ? numbers + (first + i) * each : nullptr; }
};

// ---- products with weights that stand the other way round ----

// sum[i][q] += sum over k < count of rows.at(i)[k] weights[k][lane of group q]; a lane counts below room.
template <class T, int Q, class Rows>
SIMT void multiply_down(simt::lane &me, const Rows &rows, const T *weights, int64_t wide, int64_t count, int64_t room,
                        T (&sum)[mine][Q]) {
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
    SIMT static void tile(simt::lane &me, const arguments &b, const stretch &s, const tile_items &t, int64_t n,
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
            multiply_down<T, 1>(me, item_rows<T>{from, G * H, t.first, end}, b.p.w_hh + t.u0, H, G * H, H - t.u0, sum);
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const int64_t item = t.first + me.warp() * mine + i;
            if (item < end && u < H) after(me, b, s, item, u, unit[i], sum[i][0], turn);
        }
    }

    // Where a tile has all units, nobody but its block reads what it wrote before the stretch's end.
    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const int64_t wide = tiles(b.hidden, units_of_tile), count = wide * tiles(s.count, items_of_tile);
        tile_items t = items_of<T>(me, b, s, wide, me.block());
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

// ---- dx = e_x W_ih ----

// Numbers of e, beyond `split` `jump` further on.
template <class T, bool Along>
struct gradients_of_gates : product::matrix<T, Along> {
    int64_t split, jump;
    SIMT gradients_of_gates(const T *e, int64_t apart, const product::operand<T, Along> &o, int64_t beyond, int64_t by)
        : product::matrix<T, Along>(e, apart, o), split(beyond), jump(by) {}
    SIMT int64_t lie(int64_t c) const { return c < split ? c : c + jump; }
};

template <class T>
struct inputs_back {
    struct task {
        back_problem<T> b;
        int G;
        bool quads_e, quads_weight, quads_dx;
    };
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &a) {
            const back_problem<T> &b = a.b;
            const int64_t H = b.hidden, I = b.p.inputs, all = b.length * b.rows, K = a.G * H;
            const int64_t wide = tiles(I, S::columns), count = wide * tiles(all, S::rows);
            const gradients_of_gates<T, true> e(b.e, taped(a.G) * H, {all, K, a.quads_e}, a.G == 3 ? 2 * H : K, H);
            const product::matrix<T, false> weights(b.p.w_ih, I, {K, I, a.quads_weight});
            for (int64_t tile = me.block(); tile < count; tile += me.blocks()) {
                const int64_t first = tile / wide * S::rows, out = tile % wide * S::columns;
                T sum[S::M][S::N] = {};
                product::add<T, S>(me, e, first, weights, out, 0, K, sum);
                product::each_row<S>(me, sum, [&](int i, const T(&numbers)[S::N]) {
                    const int64_t n = first + i, l = n / b.rows, row = n % b.rows;
                    SIMT_UNROLL for (int j = 0; j < S::N && n < all; j += 4) {
                        const int64_t c = out + S::column(me, j);
                        T *const to = b.dx + l * b.dx_step + row * b.dx_row + c;
                        T four[4] = {};
                        if (b.dx_adds) product::take<T>(to, I - c, a.quads_dx, four);
                        SIMT_UNROLL for (int q = 0; q < 4; q++) four[q] =
                            b.dx_adds ? four[q] + numbers[j + q] : numbers[j + q];
                        product::give(to, I - c, a.quads_dx, four);
                    }
                });
            }
        }
    };
};

// The same of so few inputs that the time is that of reading e: a thread a row.
template <class T>
struct inputs_back_thin {
    typedef typename inputs_back<T>::task arguments;
    static constexpr int most = threads, most_inputs = 4, most_numbers = 512, ahead = 16;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const back_problem<T> &b = a.b;
        const int64_t H = b.hidden, I = b.p.inputs, all = b.length * b.rows, K = a.G * H, by = me.blocks() * most;
        const gradients_of_gates<T, true> e(b.e, taped(a.G) * H, {all, K, a.quads_e}, a.G == 3 ? 2 * H : K, H);
        for (int64_t n = me.block() * most + me.thread(); n < all; n += by) {
            const T *const line = e.at(e.start(n));
            T sum[most_inputs] = {};
            SIMT_ROLLED for (int64_t k = 0; k < K; k += ahead) {
                T v[ahead];
                SIMT_UNROLL for (int q = 0; q < ahead; q += 4) {
                    SIMT_UNROLL for (int j = 0; j < 4; j++) v[q + j] = 0;
                    if (a.quads_e && k + q + 4 <= K) {
                        const simt::pack<T, 4> four = simt::load<4>(line + e.lie(k + q));
                        SIMT_UNROLL for (int j = 0; j < 4; j++) v[q + j] = four.at[j];
                    } else {
                        SIMT_UNROLL for (int j = 0; j < 4; j++) if (k + q + j < K) v[q + j] = line[e.lie(k + q + j)];
                    }
                }
                SIMT_UNROLL for (int q = 0; q < ahead; q++) {
                    if (k + q >= K) break;
                    SIMT_UNROLL for (int c = 0; c < most_inputs; c++) if (c < I) sum[c] =
                        simt::fma(b.p.w_ih[(k + q) * I + c], v[q], sum[c]);
                }
            }
            T *const to = b.dx + n / b.rows * b.dx_step + n % b.rows * b.dx_row;
            SIMT_UNROLL for (int c = 0; c < most_inputs; c++) if (c < I) to[c] = b.dx_adds ? to[c] + sum[c] : sum[c];
        }
    }
};

// ---- dW += e^T v, db += sums of e: pieces of the rows ----

// dW_ih where `input` (v is x), else dW_hh (the states that went in). Of the bias too: column `width` of a piece.
template <class T>
struct weights_back {
    struct task {
        back_problem<T> b;
        int G;
        bool input;
        int64_t width, pieces, piece;  // columns; pieces, and rows of each
        T *parts;                      // [pieces][G H][width + 1]
        T *weight, *bias;              // what they are added to, or NULL
        int64_t base, rows;            // the rows of W that are summed
        bool reset;                    // v is what gates_reset.h has of r h
        bool quads_e, quads_v;
    };
    struct value {
        const task &a;
        SIMT const T *at(int64_t l, int64_t row) const {
            const problem<T> &p = a.b.p;
            const int64_t m = step_at(p, row, l);
            if (m < 0) return nullptr;
            if (a.reset) return a.b.gates + (l * p.rows + row) * 4 * p.hidden + 3 * p.hidden;
            return a.input ? p.x + l * p.x_step + row * p.x_row : before_of(a.b, row, m);
        }
    };
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &a) {
            const back_problem<T> &b = a.b;
            const int64_t H = b.hidden, wide = tiles(a.width, S::columns), tall = tiles(a.rows, S::rows);
            const int64_t all = b.length * b.rows, each = taped(a.G) * H;
            const int64_t split = a.G == 3 && a.input ? 2 * H - a.base : a.rows;
            const gradients_of_gates<T, false> e(b.e + a.base, each, {all, a.rows, a.quads_e}, split, H);
            const product::steps<T, false, value> v({a}, b.p.rows, {all, a.width, a.quads_v});
            for (int64_t tile = me.block(); tile < a.pieces * wide * tall; tile += me.blocks()) {
                const int64_t piece = tile / (wide * tall), out = tile / wide % tall * S::rows;
                const int64_t column = tile % wide * S::columns, first = piece * a.piece;
                const int64_t end = first + a.piece < all ? first + a.piece : all;
                T sum[S::M][S::N] = {}, whole = 0;
                product::add<T, S>(
                    me, e, out, v, column, first, end, sum, [&](const simt::shared<T> &s, int of_e, int) {
                        if (column != 0 || me.thread() >= S::rows) return;
                        SIMT_UNROLL for (int k = 0; k < S::depth; k++) whole += s.get(of_e + k * S::tall + me.thread());
                    });
                T *const parts = a.parts + piece * a.rows * (a.width + 1);
                product::each_row<S>(me, sum, [&](int i, const T(&numbers)[S::N]) {
                    const int64_t r = out + i;
                    SIMT_UNROLL for (int j = 0; j < S::N; j++) {
                        const int64_t c = column + S::column(me, j);
                        if (r < a.rows && c < a.width) parts[r * (a.width + 1) + c] = numbers[j];
                    }
                });
                const int64_t r = out + me.thread();
                if (column == 0 && me.thread() < S::rows && r < a.rows) parts[r * (a.width + 1) + a.width] = whole;
            }
        }
    };
};

// give(take(k, row, l)) of the rows k of a piece in order, k step l of a sequence, where there is one; some are asked
// for together.
template <class Taken, class T, class Take, class Give>
SIMT void each_row_of_piece(const problem<T> &p, int64_t first, int64_t piece, const Take &take, const Give &give) {
    constexpr int ahead = 16 / (int)sizeof(T) * 2;
    const int64_t rows = p.length * p.rows, end = first + piece < rows ? first + piece : rows;
    int64_t l = first / p.rows, row = first % p.rows;
    SIMT_ROLLED for (int64_t k = first; k < end; k += ahead) {
        Taken of[ahead];
        SIMT_UNROLL for (int d = 0; d < ahead; d++) {
            of[d] = {};
            if (k + d < end) of[d] = take(k + d, row, l);
            if (++row == p.rows) row = 0, l++;
        }
        SIMT_UNROLL for (int d = 0; d < ahead; d++) if (of[d].there) give(of[d]);
    }
}

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
    // Of a row, what the sums take; nothing where the sequence has no step.
    struct taken {
        bool there;
        T e[3], before, after;
    };
    SIMT static taken take(const arguments &a, int64_t k, int64_t row, int64_t l, int64_t u) {
        const problem<T> &p = a.b.p;
        const int64_t H = p.hidden, m = step_at(p, row, l);
        taken t = {};
        t.there = m >= 0;
        if (!t.there) return t;
        SIMT_UNROLL for (int i = 0; i < 3; i++) t.e[i] = a.b.e[(k * 4 + (i < 2 ? i : 3)) * H + u];
        t.before = cell_before(a.b, row, m, u);
        t.after = p.kept[k * H + u];
        return t;
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t H = a.b.p.hidden;
        for (int64_t n = me.block() * threads + me.thread(); n < a.pieces * H; n += me.blocks() * threads) {
            T sum[3] = {};
            each_row_of_piece<taken>(
                a.b.p, n / H * a.piece, a.piece,
                [&](int64_t k, int64_t row, int64_t l) { return take(a, k, row, l, n % H); },
                [&](const taken &t) {
                    sum[0] = simt::fma(t.e[0], t.before, sum[0]);
                    sum[1] = simt::fma(t.e[1], t.before, sum[1]);
                    sum[2] = simt::fma(t.e[2], t.after, sum[2]);
                });
            SIMT_UNROLL for (int i = 0; i < 3; i++) a.parts[(n / H * 3 + i) * H + n % H] = sum[i];
        }
    }
};

// ---- the pieces' sums onto what is there ----

// Sums: arguments with pieces and parts, count(a): numbers of a piece, to(a, n): what number n is added to, or NULL.
template <class T, class Sums>
struct fold {
    static constexpr int most = threads;
    typedef typename Sums::arguments arguments;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t count = Sums::count(a);
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            T *const to = Sums::to(a, n);
            if (to) *to += sum_of_pieces(a.parts, a.pieces, count, n);
        }
    }
};

// Of more than 16 pieces: a warp takes each sixteenth, by turns, then the warps' sums follow one another.
template <class T, class Sums>
struct fold_many {
    static constexpr int warps = 16, most = warps * simt::warp_size, ahead = 8;
    typedef typename Sums::arguments arguments;
    static constexpr int64_t bytes() { return most * (int64_t)sizeof(T); }
    SIMT static T sum_of(const arguments &a, int64_t count, int64_t n, int warp) {
        T sum = a.parts[warp * count + n];
        for (int64_t k = warp + warps; k < a.pieces; k += ahead * warps) {
            T next[ahead];
            SIMT_UNROLL for (int d = 0; d < ahead; d++) next[d] =
                k + d * warps < a.pieces ? a.parts[(k + d * warps) * count + n] : T(0);
            SIMT_UNROLL for (int d = 0; d < ahead; d++) if (k + d * warps < a.pieces) sum += next[d];
        }
        return sum;
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t count = Sums::count(a);
        const simt::shared<T> s = me.template array<T>(0, most);
        for (int64_t tile = me.block(); tile < tiles(count, simt::warp_size); tile += me.blocks()) {
            const int64_t n = tile * simt::warp_size + me.in_warp();
            s.set(me.thread(), n < count ? sum_of(a, count, n, me.warp()) : T(0));
            me.barrier();
            T *const to = me.warp() == 0 && n < count ? Sums::to(a, n) : nullptr;
            if (to) {
                T sum = s.get(me.in_warp());
                SIMT_UNROLL for (int w = 1; w < warps; w++) sum += s.get(w * simt::warp_size + me.in_warp());
                *to += sum;
            }
            me.barrier();
        }
    }
};

template <class T>
struct peepholes_sums {
    typedef typename peepholes_back<T>::arguments arguments;
    SIMT_BOTH static int64_t count(const arguments &a) { return 3 * a.b.p.hidden; }
    SIMT static T *to(const arguments &a, int64_t n) { return a.peepholes + n; }
};

template <class T>
struct weights_sums {
    typedef typename weights_back<T>::task arguments;
    SIMT_BOTH static int64_t count(const arguments &a) { return a.rows * (a.width + 1); }
    SIMT static T *to(const arguments &a, int64_t n) {
        const int64_t row = a.width + 1, r = a.base + n / row, j = n % row;
        return j < a.width ? (a.weight ? a.weight + r * a.width + j : nullptr) : a.bias ? a.bias + r : nullptr;
    }
};

}  // namespace gates

#endif
