// SPDX-License-Identifier: MIT
// A stack of dense layers of any width, each with a W of its own, on a device: u = W_l z + x_l, z' = act(u) or
// z + scale act(u), by the loop.
//
//   forward   all layers in one plain launch: a block keeps a group of rows in shared memory, and W goes past it
//   slopes    act'(u) of all layers at once, from the states: a plain launch
//   back      from the last layer, as forward: lambda_l = direct_l + ([lambda_{l+1} +] e_{l+1} W_{l+1}),
//             e_l = scale act'(u_l) lambda_l, which takes the slopes' place
//   gradients dW_l += z_{l-1}^T e_l, dx_l += sums of e_l over the rows: all layers at once, a plain launch, and fold
//
// W comes in tiles of `depth` x `units` numbers, of up to 16 KB or of a whole narrow layer (up to 73), into a ring of
// `stages` buffers, with what the tile's units need of their own; while one tile is multiplied with, those that follow
// are on their way, also across the ends of layers, since no W waits for a state. So a layer costs a barrier a tile and
// w multiply-adds one after another, not the way to memory. 4 w^2 flops a layer and row forward and back together, as
// many for the gradients; the slopes of what is not told by the state cost 2 w^2 more. W is read from the second cache
// once a group of rows, each way.
//
// A unit's sum begins with x, or with lambda, and runs over z, or e, in order, as the host's: a row's bits are its own.
// The rows of a gradient are summed in pieces of a number that the shape alone says, each in order, and the pieces by
// their index. Normalised layers, whose units meet between u and act, are layers_norm.h's, two-layer branches, which
// take two products a layer, layers_two.h's. docs/math/backward.md.
#ifndef DPCRI_CUDA_LAYERS_H
#define DPCRI_CUDA_LAYERS_H

#include "kern/cuda/cells.h"
#include "kern/cuda/gates_back.h"

namespace layers {

constexpr int most_threads = 256, tile_bytes = 16 << 10, ring_bytes = 64 << 10;

template <class T>
struct problem {
    cells::problem<T> c;  // the stack as a cell; what is of methods is unread
    int64_t w;
    int64_t inner;  // numbers that act gives: w, or the width inside two-layer branches
    bool two;       // is a layer such a branch?
    int row_warps;  // of a block; its other warps lie along the units
    int group;      // rows of a block
    int units, depth;
    int stages;     // tiles' buffers, 2 to 8
    bool vectors;   // are w and inner multiples of 16 bytes?
    bool along;     // do numbers of one output of W lie side by side?
    int tile, own;  // numbers of a buffer: of W, and what units need of their own
    bool narrow;    // is a layer one tile, and one product whose units do not meet?
    // Of a stack whose units several blocks share (layers_shared.h): how many, and which of them this one is; what they
    // leave for each other, two buffers by turns, [rows][exchange_row].
    int sharers, sharer;
    T *exchange;
    int64_t exchange_row;
    // Going back.
    const T *direct;
    int64_t direct_step, direct_row;
    T *adjoint;
    int64_t adjoint_step, adjoint_row;
    T *first;  // z0's, or NULL
    int64_t first_row;
    T *e;  // [length][rows][inner]
    // Of normalised layers: u becomes n gamma + beta, n = (u - mean) r; a layer's lie x_step behind the one before's.
    const T *gamma, *beta;   // [inner], or NULL
    T *normal, *reciprocal;  // going back: n [length][rows][inner], r [length][rows]
    // Of two-layer branches (layers_two.h): W2 and b2, and going back, [length][rows][inner] each, act's values and, of
    // normalised ones, t.
    const T *weight2, *x2;
    T *value, *come;
    // Of a chunk (layers_chunks.h): its first layers store nothing but, where the last of them ends, where it starts.
    int64_t warm;
    T *starts;  // [rows][w]
};

// A pass is a product with a W: a layer's one, or of two-layer branches each of two. What goes into the pass that runs
// n-th, and what comes out of it.
template <class T>
SIMT int64_t inputs_of(const problem<T> &p, int64_t n) {
    return n & 1 ? p.inner : p.w;
}
template <class T>
SIMT int64_t outputs_of(const problem<T> &p, int64_t n) {
    return n & 1 ? p.w : p.inner;
}

// Does this block make unit u? Strips of units go round among those that share them.
template <class T>
SIMT bool holds(const problem<T> &p, int64_t u) {
    return p.sharers == 1 || u / p.units % p.sharers == p.sharer;
}

// Where a tile of W lies: outputs u0 .. u0 + units - 1 of a pass, inputs k0 .. k0 + depth - 1. Passes in the order in
// which they run; one without a strip for this block is a tile without numbers.
struct place {
    int64_t n;  // passes that have run
    int64_t u0, k0;
};

template <class T>
SIMT place beginning(const problem<T> &p) {
    return {0, (int64_t)p.units * p.sharer, 0};
}
template <class T>
SIMT place after(const problem<T> &p, place at) {
    if (at.u0 < outputs_of(p, at.n)) {
        at.k0 += p.depth;
        if (at.k0 < inputs_of(p, at.n)) return at;
        at.k0 = 0;
        at.u0 += (int64_t)p.units * p.sharers;
        if (at.u0 < outputs_of(p, at.n)) return at;
    }
    at.u0 = (int64_t)p.units * p.sharer;
    at.n++;
    return at;
}

// A tile's numbers, one output's inputs side by side or the other way round, as they lie in memory: 16 bytes at once
// where `vectors` is set, and each bank met once.
template <class T>
SIMT_BOTH int stride_of(const problem<T> &p) {
    return !p.along ? p.units : p.vectors ? p.depth + simt::wide<T> : p.depth | 1;
}
// Threads that have rows and units; the others of a block help to fetch.
template <class T>
SIMT_BOTH int makers(const problem<T> &p) {
    return p.units * p.row_warps;
}
// The tiles' buffers come first in shared memory, each with what goes with its tile, then the states, or e: two buffers
// by turns, [rows][w] and [rows][inner]; then what a way settles its layers with, in buffers of its own.
template <class T, class Way>
SIMT_BOTH int64_t shared_numbers(const problem<T> &p) {
    return (int64_t)p.stages * (p.tile + p.own) + p.group * (p.w + p.inner) + Way::buffers * Way::beside(p, p.group);
}

// How a block's threads go over a tile, 16 bytes each: line by line, `across` of them a line.
struct course {
    int across, line, at, lines, ats;
};
template <class T>
SIMT course course_of(simt::lane &me, const problem<T> &p) {
    course c;
    c.across = (p.along ? p.depth : p.units) / simt::wide<T>;
    c.line = me.thread() / c.across, c.at = me.thread() % c.across;
    c.lines = me.threads() / c.across, c.ats = me.threads() % c.across;
    return c;
}

// Asks for a tile of W.
template <class T>
SIMT void fetch(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, const course &c, const T *weight,
                const place &at, int buffer) {
    const int base = buffer * p.tile, stride = stride_of(p), warps = me.threads() / simt::warp_size;
    const int64_t in = inputs_of(p, at.n), out = outputs_of(p, at.n);
    const int tall = in - at.k0 < p.depth ? (int)(in - at.k0) : p.depth;
    const int wide = out - at.u0 < p.units ? (int)(out - at.u0) : p.units;
    const int lines = p.along ? wide : tall, each = p.along ? tall : wide;
    const int64_t step = p.along ? in : out;
    const T *from = weight + (p.along ? at.u0 * in + at.k0 : at.k0 * out + at.u0);
    if (p.vectors && ((uintptr_t)weight & 15) == 0) {
        for (int line = c.line, n = c.at; line < lines;) {
            const int k = n * simt::wide<T>;
            if (k < each) me.copy_async_wide(s, base + line * stride + k, from + line * step + k);
            line += c.lines, n += c.ats;
            if (n >= c.across) n -= c.across, line++;
        }
        return;
    }
    for (int line = me.warp(); line < lines; line += warps)
        for (int k = me.in_warp(); k < each; k += simt::warp_size)
            me.copy_async(s, base + line * stride + k, from + line * step + k);
}

// What `multiply` takes at once: weights of an output and states of M rows, from input k of the tile on. `lines`: the
// weights lie side by side; `vectors`: 16 bytes at once.
template <class T, int M, bool lines, bool vectors, bool deep>
struct factors {
    static constexpr int count = (deep ? 2 : 1) * simt::wide<T>;
    T weight[count], state[M][count];
    SIMT static void get_line(const simt::shared<T> &s, int from, T (&to)[count]) {
        SIMT_UNROLL for (int v = 0; v < count; v += simt::wide<T>) {
            const auto some = s.template get<simt::wide<T>>(from + v);
            SIMT_UNROLL for (int i = 0; i < simt::wide<T>; i++) to[v + i] = some.at[i];
        }
    }
    SIMT void get(const simt::shared<T> &s, int tile, int stride, const int (&rows)[M], int k) {
        if constexpr (lines && vectors)
            get_line(s, tile + k, weight);
        else
            SIMT_UNROLL for (int v = 0; v < count; v++) weight[v] = s.get(tile + (k + v) * stride);
        SIMT_UNROLL for (int i = 0; i < M; i++) {
            if constexpr (vectors)
                get_line(s, rows[i] + k, state[i]);
            else
                SIMT_UNROLL for (int v = 0; v < count; v++) state[i][v] = s.get(rows[i] + k + v);
        }
    }
    SIMT void add(T (&sum)[M]) const {
        SIMT_UNROLL for (int v = 0; v < count; v++) SIMT_UNROLL for (int i = 0; i < M; i++) sum[i] =
            simt::fma(weight[v], state[i][v], sum[i]);
    }
};

template <class T, int M, bool lines, bool vectors, bool deep>
SIMT void multiply_as(const simt::shared<T> &s, int tile, int stride, const int (&rows)[M], int tall, T (&sum)[M]) {
    typedef factors<T, M, lines, vectors, deep> some;
    constexpr int count = some::count;
    const int whole = tall / count * count;
    int k = 0;
    some these, those;
    if (whole > 0) these.get(s, tile, stride, rows, 0);
    SIMT_ROLLED for (; k + 2 * count <= whole; k += 2 * count) {
        those.get(s, tile, stride, rows, k + count);
        these.add(sum);
        these.get(s, tile, stride, rows, k + 2 * count < whole ? k + 2 * count : k);
        those.add(sum);
    }
    if (k < whole) these.add(sum);
    for (k = whole; k < tall; k++) {
        const T weight = s.get(tile + k * stride);
        SIMT_UNROLL for (int i = 0; i < M; i++) sum[i] = simt::fma(weight, s.get(rows[i] + k), sum[i]);
    }
}

// sum[i] += the tile's numbers for output u times those of row i: `rows` are where its numbers for the tile begin. What
// the sums take next is on its way while they grow, since each of their terms waits for the one before; `deep`: for as
// long as that takes, which wants registers.
template <class T, int M, bool deep>
SIMT void multiply(const problem<T> &p, const simt::shared<T> &s, int buffer, int u, const int (&rows)[M], int tall,
                   T (&sum)[M]) {
    const int base = buffer * p.tile, stride = stride_of(p);
    if (p.along && p.vectors)
        multiply_as<T, M, true, true, deep>(s, base + u * stride, 1, rows, tall, sum);
    else if (p.vectors)
        multiply_as<T, M, false, true, deep>(s, base + u, stride, rows, tall, sum);
    else
        multiply_as<T, M, false, false, deep>(s, base + (p.along ? u * stride : u), p.along ? 1 : stride, rows, tall,
                                              sum);
}

// What forward and back have in common: passes one after the other, tile by tile. Way: passes(p); weight(p, n) of the
// pass that runs n-th, along(p), begin(me, p, row, u, carry): what is at rest first; source(p, n, row, u, f): where
// number f of `fields` lies that an output needs of its own, or NULL: 0, which comes with the output's first tile;
// start(p, n, row, u, own, carry): where its sum begins; finish(me, p, n, row, u, own, sum, rest, carry): what is at
// rest for the next pass; rest: in this one, or, where `two` is set, what the layer began with where its second pass
// ends; carry: one number from an output to itself in the next pass, `kept` where a thread has one output alone. Where
// `settles` is set, all units of a row then meet: settle(me, p, s, with, to, from, n, first, count): what finish left
// from number `to` on becomes what is at rest; `from`: in this pass. prepare(me, p, s, with, n, first, count) has asked
// for what it takes, beside(p, rows) numbers in one of `buffers`, with the pass's first tile. `begins`: that of n = -1
// follows begin. `shared`: blocks that share a group's units (layers_shared.h) meet before each pass.
template <class T, int M, class Way, bool shared = false, bool deep = true>
struct stack {
    typedef problem<T> arguments;
    static constexpr int most = most_threads;

    // A thread's rows of the group, of which the last one may stand for those that are not there.
    struct share {
        int64_t first, count;
        int row[M];
        bool there[M];
    };
    SIMT static share of(simt::lane &me, const arguments &p, int64_t group) {
        share s;
        s.first = group * p.group;
        s.count = p.c.columns - s.first < p.group ? p.c.columns - s.first : p.group;
        SIMT_UNROLL for (int i = 0; i < M; i++) {
            const int row = me.thread() / p.units * M + i;
            s.there[i] = row < s.count;
            s.row[i] = s.there[i] ? row : (int)s.count - 1;
        }
        return s;
    }
    // Of the numbers at rest: row, and output or input.
    SIMT static int at_rest(const arguments &p, int turn, int row) {
        const int inner = p.group * (int)p.w;
        return p.stages * (p.tile + p.own) + (turn ? inner + row * (int)p.inner : row * (int)p.w);
    }
    // Of what this thread needs of its own: number f of row i.
    SIMT static int at_own(simt::lane &me, const arguments &p, int buffer, int f, int i) {
        return p.stages * p.tile + buffer * p.own + (f * M + i) * makers(p) + me.thread();
    }

    // What pass n settles with.
    SIMT static int with(const arguments &p, int64_t n) {
        return at_rest(p, 1, p.group) + (int)(n & (Way::buffers - 1)) * (int)Way::beside(p, p.group);
    }

    SIMT static T *exchange(const arguments &p, int turn, int64_t row) {
        return p.exchange + (turn * p.c.columns + row) * p.exchange_row;
    }
    // A number that rests in buffer `turn`.
    SIMT static void rest(simt::lane &me, const arguments &p, const simt::shared<T> &s, const share &mine, int turn,
                          int i, int64_t u, T value) {
        if constexpr (shared)
            me.peer_store(exchange(p, turn, mine.first + mine.row[i]) + u, value);
        else
            s.set(at_rest(p, turn, mine.row[i]) + (int)u, value);
    }
    // What all blocks that share them made of a pass's outputs.
    SIMT static void meet(simt::lane &me, const arguments &p, const simt::shared<T> &s, const share &mine, int turn,
                          int64_t out) {
        me.grid_barrier();
        for (int row = 0; row < mine.count; row++) {
            const T *const from = exchange(p, turn, mine.first + row);
            for (int u = me.thread(); u < out; u += me.threads())
                s.set(at_rest(p, turn, row) + u, me.peer_load(from + u));
        }
    }

    // A tile, and with the first one of a strip what its units need of their own.
    SIMT static void ask(simt::lane &me, const arguments &p, const simt::shared<T> &s, const share &mine,
                         const course &c, const place &at, int unit, int buffer) {
        if (at.n < Way::passes(p)) {
            const int64_t u = at.u0 + unit;
            fetch(me, p, s, c, Way::weight(p, at.n), at, buffer);
            if (at.k0 == 0 && u < outputs_of(p, at.n))
                SIMT_UNROLL for (int i = 0; i < M; i++) SIMT_UNROLL for (int f = 0; f < Way::fields; f++) {
                    if (!mine.there[i]) continue;
                    const T *const from = Way::source(p, at.n, mine.first + mine.row[i], u, f);
                    const int to = at_own(me, p, buffer, f, i);
                    if (from)
                        me.copy_async(s, to, from);
                    else
                        s.set(to, T(0));
                }
        }
        me.copy_close();
    }

    // A narrow stack: some threads make units, the others fetch tiles, and neither has much to think about.
    struct post {
        bool makes, fetches;
        int u, line, k, lines;  // of a maker its unit; of others where in a tile they begin, 16 bytes, and lines on
    };
    SIMT static post post_of(simt::lane &me, const arguments &p, const share &mine) {
        const int w = (int)p.w, across = w / simt::wide<T>, t = me.thread() - makers(p);
        post a = {};
        a.u = me.thread() % p.units;
        a.makes = t < 0 && a.u < w && mine.there[0];
        a.lines = (me.threads() - makers(p)) / across;
        a.fetches = t >= 0 && t < a.lines * across;
        a.line = t / across, a.k = t % across * simt::wide<T>;
        return a;
    }
    SIMT static void ask_narrow(simt::lane &me, const arguments &p, const simt::shared<T> &s, const share &mine,
                                const post &at, int64_t n, int buffer) {
        if (at.fetches) {
            const int w = (int)p.w, stride = stride_of(p);
            const T *from = Way::weight(p, n) + at.line * w + at.k;
            int to = buffer * p.tile + at.line * stride + at.k;
            for (int line = at.line; line < w; line += at.lines, from += at.lines * w, to += at.lines * stride)
                me.copy_async_wide(s, to, from);
        }
        if (at.makes) SIMT_UNROLL for (int i = 0; i < M; i++) SIMT_UNROLL for (int f = 0; f < Way::fields; f++) {
                if (!mine.there[i]) continue;
                const T *const from = Way::source(p, n, mine.first + mine.row[i], at.u, f);
                const int to = at_own(me, p, buffer, f, i);
                if (from)
                    me.copy_async(s, to, from);
                else
                    s.set(to, T(0));
            }
    }
    SIMT static void run_narrow(simt::lane &me, const arguments &p, int64_t group) {
        const simt::shared<T> s = me.template array<T>(0, (int)shared_numbers<T, Way>(p));
        const share mine = of(me, p, group);
        const post at = post_of(me, p, mine);
        const int u = at.u, w = (int)p.w, stages = p.stages;
        const int64_t length = Way::passes(p);
        int buffer = 0, now = at_rest(p, 0, 0), next = at_rest(p, 1, 0);
        T own[M][Way::fields] = {}, sum[M] = {}, carry[M] = {};
        me.barrier();  // the group before has been read
        for (int i = 0; i + 1 < stages; i++) {
            if (i < length) ask_narrow(me, p, s, mine, at, i, i);
            me.copy_close();
        }
        if (at.makes)
            SIMT_UNROLL for (int i = 0; i < M; i++) if (mine.there[i])
                s.set(now + mine.row[i] * w + u, Way::begin(me, p, mine.first + mine.row[i], u, carry[i]));
        SIMT_ROLLED for (int64_t n = 0; n < length; n++) {
            me.copy_wait_but(stages - 2);
            me.barrier();  // the tile is there, for all; the one before, and the numbers two layers back, were read
            if (n + stages - 1 < length)
                ask_narrow(me, p, s, mine, at, n + stages - 1, buffer == 0 ? stages - 1 : buffer - 1);
            me.copy_close();
            if (at.makes) {
                int rows[M];
                SIMT_UNROLL for (int i = 0; i < M; i++) {
                    rows[i] = now + mine.row[i] * w;
                    if (!mine.there[i]) continue;
                    SIMT_UNROLL for (int f = 0; f < Way::fields; f++) own[i][f] = s.get(at_own(me, p, buffer, f, i));
                    sum[i] = Way::start(p, n, mine.first + mine.row[i], u, own[i], true, carry[i]);
                }
                if (p.along)
                    multiply_as<T, M, true, true, deep>(s, buffer * p.tile + u * stride_of(p), 1, rows, w, sum);
                else
                    multiply_as<T, M, false, true, deep>(s, buffer * p.tile + u, stride_of(p), rows, w, sum);
                SIMT_UNROLL for (int i = 0; i < M; i++) {
                    if (!mine.there[i]) continue;
                    const T before = s.get(rows[i] + u);
                    s.set(next + mine.row[i] * w + u,
                          Way::finish(me, p, n, mine.first + mine.row[i], u, own[i], sum[i], before, carry[i]));
                }
            }
            const int was = now;
            now = next, next = was;
            buffer = buffer + 1 == stages ? 0 : buffer + 1;
        }
    }

    SIMT static void run_group(simt::lane &me, const arguments &p, int64_t group) {
        if constexpr (!Way::settles && !Way::two && !shared)
            if (p.narrow) return run_narrow(me, p, group);
        const simt::shared<T> s = me.template array<T>(0, (int)shared_numbers<T, Way>(p));
        const share mine = of(me, p, group);
        const course c = course_of(me, p);
        const int unit = me.thread() % p.units;
        const bool kept = p.w <= (int64_t)p.units * p.sharers;
        T own[M][Way::fields] = {}, sum[M] = {}, carry[M] = {};
        place at = beginning(p), far = at;
        int buffer = 0, turn = 0;
        me.barrier();  // the group before has been read
        for (int i = 0; i + 1 < p.stages; i++) {
            ask(me, p, s, mine, c, far, unit, i);
            far = after(p, far);
        }
        for (int64_t u = at.u0 + unit; u < p.w; u += p.units * p.sharers)
            SIMT_UNROLL for (int i = 0; i < M; i++) if (mine.there[i])
                rest(me, p, s, mine, 0, i, u, Way::begin(me, p, mine.first + mine.row[i], u, carry[i]));
        if constexpr (shared) meet(me, p, s, mine, 0, p.w);
        if constexpr (Way::settles) Way::prepare(me, p, s, with(p, 0), 0, mine.first, mine.count);
        if constexpr (Way::begins) {
            Way::prepare(me, p, s, with(p, -1), -1, mine.first, mine.count);
            me.copy_wait();
            me.barrier();
            Way::settle(me, p, s, with(p, -1), at_rest(p, 0, 0), at_rest(p, 1, 0), -1, mine.first, mine.count);
        }
        while (at.n < Way::passes(p)) {
            if constexpr (Way::settles)
                me.copy_wait();
            else
                me.copy_wait_but(p.stages - 2);
            me.barrier();  // the tile is there, for all; the one before, and the numbers two layers back, were read
            const place then = after(p, at);
            const int64_t u = at.u0 + unit, in = inputs_of(p, at.n), out = outputs_of(p, at.n);
            ask(me, p, s, mine, c, far, unit, buffer == 0 ? p.stages - 1 : buffer - 1);
            far = after(p, far);
            if constexpr (Way::settles)
                if (then.n != at.n && then.n < Way::passes(p))
                    Way::prepare(me, p, s, with(p, then.n), then.n, mine.first, mine.count);
            if (at.k0 == 0 && u < out) SIMT_UNROLL for (int i = 0; i < M; i++) {
                    if (!mine.there[i]) continue;
                    SIMT_UNROLL for (int f = 0; f < Way::fields; f++) own[i][f] = s.get(at_own(me, p, buffer, f, i));
                    sum[i] = Way::start(p, at.n, mine.first + mine.row[i], u, own[i], kept, carry[i]);
                }
            if (u < out && mine.there[0]) {
                int rows[M];
                SIMT_UNROLL for (int i = 0; i < M; i++) rows[i] = at_rest(p, turn, mine.row[i]) + (int)at.k0;
                multiply<T, M, deep>(p, s, buffer, unit, rows, in - at.k0 < p.depth ? (int)(in - at.k0) : p.depth, sum);
            }
            if (then.k0 == 0 && u < out) SIMT_UNROLL for (int i = 0; i < M; i++) {
                    if (!mine.there[i]) continue;
                    T before = 0;
                    if (!Way::two || turn) before = s.get(at_rest(p, Way::two ? 0 : turn, mine.row[i]) + (int)u);
                    rest(me, p, s, mine, 1 - turn, i, u,
                         Way::finish(me, p, at.n, mine.first + mine.row[i], u, own[i], sum[i], before, carry[i]));
                }
            if constexpr (shared)
                if (then.n != at.n && (Way::settles || then.n < Way::passes(p))) meet(me, p, s, mine, 1 - turn, out);
            if constexpr (Way::settles)
                if (then.n != at.n) {
                    me.barrier();  // the layer's rows are whole
                    Way::settle(me, p, s, with(p, at.n), at_rest(p, 1 - turn, 0), at_rest(p, turn, 0), at.n, mine.first,
                                mine.count);
                }
            if (then.n != at.n) turn = 1 - turn;
            buffer = buffer + 1 == p.stages ? 0 : buffer + 1;
            at = then;
        }
    }

    SIMT static void run(simt::lane &me, const arguments &p) {
        for (int64_t group = me.block(); group * p.group < p.c.columns; group += me.blocks()) run_group(me, p, group);
    }
};

// ---- forward: states at rest ----

// Of ways whose units do not meet, with one product a layer.
template <class T>
struct unsettled {
    static constexpr bool settles = false, begins = false, two = false;
    static constexpr int buffers = 2;
    SIMT_BOTH static int64_t beside(const problem<T> &, int64_t) { return 0; }
    SIMT static int64_t passes(const problem<T> &p) { return p.c.length; }
};

template <class T>
struct onward : unsettled<T> {
    static constexpr int fields = 1;  // x
    SIMT static const T *weight(const problem<T> &p, int64_t n) { return p.c.weight + n * p.c.weight_step; }
    SIMT_BOTH static bool along(const problem<T> &p) { return !p.c.in_out; }
    SIMT static T begin(simt::lane &me, const problem<T> &p, int64_t row, int64_t u, T &) {
        return p.c.z0 ? me.peer_load(p.c.z0 + row * p.c.z0_row + u) : T(0);  // of a chunk, others wrote it
    }
    SIMT static const T *source(const problem<T> &p, int64_t n, int64_t row, int64_t u, int) {
        return p.c.x + n * p.c.x_step + row * p.c.x_row + u;
    }
    SIMT static T start(const problem<T> &, int64_t, int64_t, int64_t, const T (&own)[1], bool, T) { return own[0]; }
    SIMT static T finish(simt::lane &me, const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&)[1], T sum,
                         T before, T &) {
        return state(me, p, n, row, u, sum, before);
    }
    // z' from what act gets, stored and told.
    SIMT static T state(simt::lane &me, const problem<T> &p, int64_t n, int64_t row, int64_t u, T v, T before) {
        return leave(me, p, n, row, u, cells::value(p.c.activation, v), before);
    }
    // And from what the branch gives.
    SIMT static T leave(simt::lane &me, const problem<T> &p, int64_t n, int64_t row, int64_t u, T y, T before) {
        const T z = p.c.residual ? simt::fma(p.c.scale, y, before) : y;
        if (n < p.warm) {
            if (n + 1 == p.warm) me.peer_store(p.starts + row * p.w + u, z);
            return z;
        }
        if (!holds(p, u)) return z;
        p.c.z[n * p.c.z_step + row * p.c.z_row + u] = z;
        if (n + 1 < p.c.length || !p.c.outcome) return z;
        dpcr_device_outcome *o = p.c.outcome + row;  // zero at first
        if (!cells::finite(z)) me.raise(reinterpret_cast<uint32_t *>(&o->non_finite), 1);
        if (u != 0) return z;
        o->sweeps = 1;
        o->locked = p.c.length;
        o->residual = 0;
        return z;
    }
};

// ---- act'(u) of all layers; or, where the adjoints are there, e; of normalised ones u ----

// scale act' lambda, in the host's order
template <class T>
SIMT T turned(const problem<T> &p, T slope, T lambda) {
    return p.c.residual ? p.c.scale * lambda * slope : lambda * slope;
}

// Without a residual the state is the activation's value, which may tell act'; else it is told what act gets.
template <class T>
SIMT_BOTH bool told(const problem<T> &p) {
    return !p.c.residual && !p.gamma && !p.two && cells::told_by_value(p.c.activation);
}

template <class T>
struct of_slopes {
    problem<T> p;
    bool finished;
    bool quads_z, quads_weight, quads_given, quads_adjoint, quads_to;  // given: x, or the states where they tell
};

template <class T, bool in_out>
struct slopes {
    typedef of_slopes<T> task;
    // Four numbers of layer l from unit u on, `left` of which there are, from what act gets there.
    SIMT static void finish(const task &a, int64_t l, int64_t row, int64_t u, int64_t left, T (&d)[4]) {
        const problem<T> &p = a.p;
        const int64_t at = (l * p.c.columns + row) * p.inner + u;
        if (p.two && !p.gamma) {
            T y[4];
            SIMT_UNROLL for (int j = 0; j < 4; j++) {
                y[j] = cells::value(p.c.activation, d[j]);
                d[j] = cells::slope(p.c.activation, d[j], y[j]);
            }
            product::give(p.value + at, left, a.quads_to, y);
            product::give(p.e + at, left, a.quads_to, d);
            return;
        }
        if (!p.gamma && !p.two)
            SIMT_UNROLL for (int j = 0; j < 4; j++) d[j] =
                told(p) ? cells::slope_of_value(p.c.activation, d[j]) : cells::slope(p.c.activation, d[j]);
        if (a.finished) {
            T lambda[4];
            product::take(p.adjoint + l * p.adjoint_step + row * p.adjoint_row + u, left, a.quads_adjoint, lambda);
            SIMT_UNROLL for (int j = 0; j < 4; j++) d[j] = turned(p, d[j], lambda[j]);
        }
        product::give((p.gamma ? p.normal : p.e) + at, left, a.quads_to, d);
    }
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        SIMT static void run(simt::lane &me, const arguments &a) {
            const problem<T> &p = a.p;
            const int64_t rows = p.c.columns, w = p.w, out = p.inner, wide = gates::tiles(out, S::columns);
            const int64_t each = wide * gates::tiles(rows, S::rows), weights = in_out ? w : out;
            const bool known = told(p);
            for (int64_t tile = me.block(); tile < p.c.length * each; tile += me.blocks()) {
                const int64_t l = tile / each, first = tile % each / wide * S::rows, u0 = tile % wide * S::columns;
                const T *const given = known ? p.c.z + l * p.c.z_step : p.c.x + l * p.c.x_step;
                const int64_t given_row = known ? p.c.z_row : p.c.x_row;
                T sum[S::M][S::N];
                SIMT_UNROLL for (int i = 0; i < S::M; i++) SIMT_UNROLL for (int j = 0; j < S::N; j += 4) {
                    const int64_t row = first + S::row(me, i), u = u0 + S::column(me, j);
                    T four[4];
                    product::take(given + row * given_row + u, row < rows ? out - u : 0, a.quads_given, four);
                    SIMT_UNROLL for (int n = 0; n < 4; n++) sum[i][j + n] = four[n];
                }
                const product::matrix<T, true> z(l == 0 ? p.c.z0 : p.c.z + (l - 1) * p.c.z_step,
                                                 l == 0 ? p.c.z0_row : p.c.z_row, {rows, w, a.quads_z});
                const product::matrix<T, !in_out> weight(p.c.weight + l * p.c.weight_step, in_out ? out : w,
                                                         {weights, in_out ? out : w, a.quads_weight});
                product::add<T, S>(me, z, first, weight, u0, 0, known ? 0 : w, sum);
                product::each_row<S>(me, sum, [&](int i, const T(&numbers)[S::N]) {
                    SIMT_UNROLL for (int j = 0; j < S::N && first + i < rows; j += 4) {
                        const int64_t u = u0 + S::column(me, j);
                        T four[4] = {numbers[j], numbers[j + 1], numbers[j + 2], numbers[j + 3]};
                        if (u < out) finish(a, l, first + i, u, out - u, four);
                    }
                });
            }
        }
    };
};

// ---- back: e at rest; the layer that runs n-th is length - 1 - n ----

template <class T>
struct homeward : unsettled<T> {
    static constexpr int fields = 2;  // of the layer before: what comes in, and the slope that e has in its place
    SIMT static int64_t layer(const problem<T> &p, int64_t n) { return p.c.length - 1 - n; }
    SIMT static const T *weight(const problem<T> &p, int64_t n) { return p.c.weight + layer(p, n) * p.c.weight_step; }
    SIMT_BOTH static bool along(const problem<T> &p) { return p.c.in_out; }
    SIMT static T *lambda(const problem<T> &p, int64_t l, int64_t row, int64_t u) {
        return p.adjoint + l * p.adjoint_step + row * p.adjoint_row + u;
    }
    SIMT static T *slope(const problem<T> &p, int64_t l, int64_t row, int64_t u) {
        return p.e + (l * p.c.columns + row) * p.inner + u;
    }
    SIMT static T come(const problem<T> &p, int64_t l, int64_t row, int64_t u) {
        return p.direct[l * p.direct_step + row * p.direct_row + u];
    }
    SIMT static T come_to(const problem<T> &p, int64_t l, int64_t row, int64_t u, T g, T d) {
        *lambda(p, l, row, u) = g;
        return turned(p, d, g);
    }
    SIMT static T keep(const problem<T> &p, int64_t l, int64_t row, int64_t u, T g, T d) {
        return *slope(p, l, row, u) = come_to(p, l, row, u, g, d);
    }
    SIMT static T begin(simt::lane &, const problem<T> &p, int64_t row, int64_t u, T &carry) {
        const int64_t l = p.c.length - 1;
        carry = come(p, l, row, u);
        return keep(p, l, row, u, carry, *slope(p, l, row, u));
    }
    // Each of these is this thread's own: nobody else writes it.
    SIMT static const T *source(const problem<T> &p, int64_t n, int64_t row, int64_t u, int f) {
        const int64_t l = layer(p, n);
        if (l == 0) return nullptr;
        return f == 0 ? p.direct + (l - 1) * p.direct_step + row * p.direct_row + u : slope(p, l - 1, row, u);
    }
    // Lambda of this layer, which this thread made in the pass before.
    SIMT static T made(const problem<T> &p, int64_t l, int64_t row, int64_t u, bool kept, T carry) {
        return !p.c.residual ? T(0) : kept ? carry : *lambda(p, l, row, u);
    }
    SIMT static T start(const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&)[fields], bool kept,
                        T carry) {
        return made(p, layer(p, n), row, u, kept, carry);
    }
    SIMT static T finish(simt::lane &, const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&own)[fields],
                         T g, T, T &carry) {
        const int64_t l = layer(p, n);
        if (l > 0) return keep(p, l - 1, row, u, carry = g + own[0], own[1]);
        return first(p, row, u, g);
    }
    SIMT static T first(const problem<T> &p, int64_t row, int64_t u, T g) {
        if (p.first) p.first[row * p.first_row + u] = g;
        return T(0);
    }
};

}  // namespace layers

#endif
