// SPDX-License-Identifier: MIT
// A chain of recurrent states as overlapped chunks that go side by side, in one cooperative launch; the loop is one
// chunk. What a step is, forward (gates.h) or back (gates_back.h), is a parameter.
//
// An item is a chunk of a sequence. Each runs `warm_up` steps from zero (or from the chain's start, where they would
// begin before it), notes where it starts and runs its chunk. A chunk whose start is not what its neighbour ended with
// is open and runs again from there; after the last sweep what is open goes in order, chunk by chunk, the sequences
// side by side. Sequences may end early: what is beyond is no step. docs/math/overlap.md, backward.md.
#ifndef DPCRI_CUDA_GATES_CHUNKS_H
#define DPCRI_CUDA_GATES_CHUNKS_H

#include <type_traits>

#include "kern/cuda/cells.h"
#include "kern/device.h"

namespace gates {

constexpr int threads = 128, items_of_tile = 16, units_of_tile = 32, depth = 16, mine = 4;  // items of a thread
static_assert(threads / simt::warp_size * mine == items_of_tile && units_of_tile == simt::warp_size, "a lane a unit");

// Steps m = 0 .. length - 1 in the order of the chain, of every sequence; a state is H numbers, or twice as many.
template <class T>
struct chunked {
    int64_t length, rows, hidden;
    const int64_t *lengths;       // [rows]: steps of each sequence, or NULL: all `length`
    const T *first, *first_cell;  // [rows][H] each: the state before the first step, or NULL: zeros
    T *last, *last_cell;          // the one after the last, or NULL
    int64_t chunk, warm_up, chunks;
    double atol, rtol;
    int most_sweeps;
    bool stop;
    dpcr_device_outcome *outcome;
    T *starts, *ends;       // [chunks rows][S]: the states at which an item started, and ended
    uint32_t *open;         // [chunks rows]
    uint32_t *counts;       // [most_sweeps + 1 + chunks], zero at first: is anything open?
    cells::tally *tallies;  // [rows], zero at first
    uint32_t *unfinished;   // [rows], zero at first, with scales: the sweeps left some of a sequence's chunks open
    uint32_t *scales;  // [rows], zero at first: the largest number of a sequence's starts, which tolerances are of;
                       // NULL: they are of each number
};

// Steps of a sequence, whatever `lengths` says.
template <class T>
SIMT int64_t length_of(const chunked<T> &p, int64_t row) {
    const int64_t n = p.lengths ? p.lengths[row] : p.length;
    return n < 0 ? 0 : n < p.length ? n : p.length;
}

// What was gathered of each sequence.
template <class T>
SIMT void tell_outcomes(simt::lane &me, const chunked<T> &p) {
    const int64_t lanes = me.blocks() * me.threads();
    for (int64_t r = me.block() * me.threads() + me.thread(); p.outcome && r < p.rows; r += lanes) {
        dpcr_device_outcome o;
        o.sweeps = (int32_t)me.peer_load(&p.tallies[r].sweeps);
        o.non_finite = (int32_t)me.peer_load(&p.tallies[r].non_finite);
        o.locked = p.length - (int64_t)me.peer_load(&p.tallies[r].from_end);
        o.residual = cells::float_of(me.peer_load(&p.tallies[r].residual));
        p.outcome[r] = o;
    }
}

// A stretch of steps of some items: first .. first + count - 1, from step `from` of their chunks on.
struct stretch {
    int64_t first, count, from, steps;
    bool writes;
};

SIMT_BOTH int64_t tiles(int64_t n, int64_t of_tile) { return (n + of_tile - 1) / of_tile; }

// Number n of `count` that were summed in pieces: the pieces' sums in order.
template <class T>
SIMT T sum_of_pieces(const T *parts, int64_t pieces, int64_t count, int64_t n) {
    T sum = parts[n];
    for (int64_t k = 1; k < pieces; k++) sum += parts[k * count + n];
    return sum;
}

// Shared memory: a slice of the items' numbers, then one of the weights, k by k.
template <int Q>
constexpr int stride = Q *units_of_tile + 1;
template <class T, int Q>
constexpr int64_t shared_bytes() {
    return (int64_t)(items_of_tile * depth + depth * stride<Q>)*(int64_t)sizeof(T);
}

// The slices' products: item i of this thread, lane of group q.
template <class T, int Q>
SIMT void add_slice(simt::lane &me, const simt::shared<T> &s, T (&sum)[mine][Q]) {
    const int base = items_of_tile * depth;
    SIMT_ROLLED for (int kk = 0; kk < depth; kk++) {
        T w[Q];
        SIMT_UNROLL for (int q = 0; q < Q; q++) w[q] = s.get(base + kk * stride<Q> + q * units_of_tile + me.in_warp());
        SIMT_UNROLL for (int i = 0; i < mine; i++) {
            const T a = s.get((me.warp() * mine + i) * depth + kk);
            SIMT_UNROLL for (int q = 0; q < Q; q++) sum[i][q] = simt::fma(w[q], a, sum[i][q]);
        }
    }
}

// sum[i][q] + what column + q apart of weights and row i of states make, all in shared memory: what the sums take next
// is on its way while they grow, since each of their terms waits for the one before.
template <class T, int I, int Q>
SIMT void multiply_rows(const simt::shared<T> &s, int column, int apart, int stride, const int (&rows)[I], int tall,
                        T (&sum)[I][Q]) {
    constexpr int ahead = sizeof(T) == 4 || I + Q == 2 ? 8 : 4;
    T weight[ahead][Q] = {}, state[ahead][I] = {};
    const int whole = tall / ahead * ahead;
    if (whole > 0) SIMT_UNROLL for (int n = 0; n < ahead; n++) {
            SIMT_UNROLL for (int q = 0; q < Q; q++) weight[n][q] = s.get(column + q * apart + n * stride);
            SIMT_UNROLL for (int i = 0; i < I; i++) state[n][i] = s.get(rows[i] + n);
        }
    SIMT_ROLLED for (int k = 0; k < whole; k += ahead) {
        T then[ahead][Q] = {}, after[ahead][I] = {};
        if (k + ahead < whole) SIMT_UNROLL for (int n = 0; n < ahead; n++) {
                const int at = k + ahead + n;
                SIMT_UNROLL for (int q = 0; q < Q; q++) then[n][q] = s.get(column + q * apart + at * stride);
                SIMT_UNROLL for (int i = 0; i < I; i++) after[n][i] = s.get(rows[i] + at);
            }
        SIMT_UNROLL for (int n = 0; n < ahead; n++) {
            SIMT_UNROLL for (int i = 0; i < I; i++) SIMT_UNROLL for (int q = 0; q < Q; q++) sum[i][q] =
                simt::fma(weight[n][q], state[n][i], sum[i][q]);
            SIMT_UNROLL for (int q = 0; q < Q; q++) weight[n][q] = then[n][q];
            SIMT_UNROLL for (int i = 0; i < I; i++) state[n][i] = after[n][i];
        }
    }
    for (int k = whole; k < tall; k++)
        SIMT_UNROLL for (int i = 0; i < I; i++) SIMT_UNROLL for (int q = 0; q < Q; q++) sum[i][q] =
            simt::fma(s.get(column + q * apart + k * stride), s.get(rows[i] + k), sum[i][q]);
}
template <class T>
SIMT T multiply_alone(const simt::shared<T> &s, int column, int stride, int row, int tall, T sum) {
    const int rows[1] = {row};
    T sums[1][1] = {{sum}};
    multiply_rows<T, 1, 1>(s, column, 0, stride, rows, tall, sums);
    return sums[0][0];
}

// What items stand at, as two arrays [chunks rows][H] of the arguments: h, and c where a state has it.
template <class T, class Arguments, T *Arguments::*H, T *Arguments::*C>
struct resting {
    SIMT static T load(simt::lane &me, const Arguments &p, int64_t item, int64_t u, int) {
        return me.peer_load(p.*H + item * p.hidden + u);
    }
    SIMT static void store(simt::lane &me, const Arguments &p, int64_t item, int64_t u, int, T value) {
        me.peer_store(p.*H + item * p.hidden + u, value);
    }
    SIMT static T load_cell(simt::lane &me, const Arguments &p, int64_t item, int64_t u) {
        return me.peer_load(p.*C + item * p.hidden + u);
    }
    SIMT static void store_cell(simt::lane &me, const Arguments &p, int64_t item, int64_t u, T value) {
        me.peer_store(p.*C + item * p.hidden + u, value);
    }
};

// A step's blocks, as simt.h has them: `block_threads` threads and room for `block_together` blocks, where it says so.
template <class Step, class = void>
struct blocks_for {
    static constexpr int most = threads;
};
template <class Step>
struct blocks_for<Step, std::void_t<decltype(Step::block_threads)>> {
    static constexpr int most = Step::block_threads, together = Step::block_together;
};

// Step, of the chain: arguments (derived from chunked<T>), cell (whether a state has c), load(me, p, item, u, turn),
// store(...) of h, load_cell(me, p, item, u), store_cell(...), and run(me, p, stretch, turn), after which the thread
// that is `self` modulo all threads for a number of the stretch has it; begin(me, p): what is done before. turn: of its
// buffers, by turns.
template <class T, class Step>
struct chunks : blocks_for<Step> {
    typedef typename Step::arguments arguments;
    static constexpr int threads = blocks_for<Step>::most;

    SIMT static int64_t items(const arguments &p) { return p.chunks * p.rows; }
    SIMT static int64_t state(const arguments &p) { return Step::cell ? 2 * p.hidden : p.hidden; }
    SIMT static int64_t self(simt::lane &me) { return me.block() * threads + me.thread(); }

    // Step of the chain, or -1 where the item rests.
    SIMT static int64_t step_of(simt::lane &me, const arguments &p, int64_t item, int64_t end, int64_t at) {
        if (item >= end || !me.peer_load(p.open + item)) return -1;
        const int64_t m = item / p.rows * p.chunk + at;
        return m < length_of<T>(p, item % p.rows) ? m : -1;
    }

    SIMT static bool has_steps(const arguments &p, int64_t item) {
        return item / p.rows * p.chunk < length_of<T>(p, item % p.rows);
    }
    SIMT static int64_t last_item(const arguments &p, int64_t row) {
        const int64_t n = length_of<T>(p, row);
        return (n > 0 ? (n - 1) / p.chunk : 0) * p.rows + row;
    }

    // ---- states between stretches: a thread a unit ----

    SIMT static void begin(simt::lane &me, const arguments &p) {
        const int64_t H = p.hidden, all = items(p) * H;
        for (int64_t n = self(me); n < all; n += me.blocks() * threads) {
            const int64_t item = n / H, row = item % p.rows, u = n % H;
            const bool start = item / p.rows * p.chunk <= p.warm_up;
            Step::store(me, p, item, u, 0, start && p.first ? p.first[row * H + u] : T(0));
            if (Step::cell) Step::store_cell(me, p, item, u, start && p.first_cell ? p.first_cell[row * H + u] : T(0));
            if (u == 0) me.peer_store(p.open + item, 1u);
        }
    }

    // What open items stand at.
    SIMT static void note(simt::lane &me, const arguments &p, const stretch &s, int turn, T *to) {
        const int64_t H = p.hidden, S = state(p);
        for (int64_t n = self(me); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H;
            if (!me.peer_load(p.open + item)) continue;
            me.peer_store(to + item * S + u, Step::load(me, p, item, u, turn));
            if (Step::cell) me.peer_store(to + item * S + H + u, Step::load_cell(me, p, item, u));
        }
    }

    // Open items stand where their neighbours ended.
    SIMT static void adopt(simt::lane &me, const arguments &p, const stretch &s, int turn) {
        const int64_t H = p.hidden, S = state(p);
        for (int64_t n = self(me); n < s.count * H; n += me.blocks() * threads) {
            const int64_t item = s.first + n / H, u = n % H;
            if (!me.peer_load(p.open + item)) continue;
            const T *left = p.ends + (item - p.rows) * S;
            const T h = me.peer_load(left + u);
            Step::store(me, p, item, u, turn, h);
            me.peer_store(p.starts + item * S + u, h);
            if (!Step::cell) continue;
            const T c = me.peer_load(left + H + u);
            Step::store_cell(me, p, item, u, c);
            me.peer_store(p.starts + item * S + H + u, c);
        }
    }

    // ---- boundaries: a warp an item ----

    SIMT static float larger(float size, T x) {
        const T a = cells::magnitude(x);
        const float seen = a <= T(3.0e38) ? (float)a : cells::float_of(0x7f800000u);
        return seen > size ? seen : size;
    }

    // Of each sequence the largest number at which a chunk of the stretch with steps starts, and where `passed` ends,
    // or what it was before; where `passed` of those alone that are finished in order.
    SIMT static void measure(simt::lane &me, const arguments &p, const stretch &s, bool passed) {
        const int64_t S = state(p), warps = threads / simt::warp_size;
        for (int64_t n = me.block() * warps + me.warp(); p.scales && n < s.count; n += me.blocks() * warps) {
            const int64_t item = s.first + n;
            if (passed && me.peer_load(p.unfinished + item % p.rows) == 0) continue;
            float size = 0;
            for (int64_t j = me.in_warp(); j < S && has_steps(p, item); j += simt::warp_size) {
                size = larger(size, me.peer_load(p.starts + item * S + j));
                if (passed) size = larger(size, me.peer_load(p.ends + item * S + j));
            }
            if (size > 0) me.raise(p.scales + item % p.rows, cells::bits_of(size));
        }
    }

    SIMT static void forget_scales(simt::lane &me, const arguments &p, bool of_unfinished) {
        for (int64_t row = self(me); p.scales && row < p.rows; row += me.blocks() * threads)
            if (!of_unfinished || me.peer_load(p.unfinished + row) != 0) me.peer_store(p.scales + row, 0u);
    }

    // Sequences that the sweeps left open.
    SIMT static void mark(simt::lane &me, const arguments &p) {
        for (int64_t item = self(me); item < items(p); item += me.blocks() * threads)
            if (me.peer_load(p.open + item)) me.raise(p.unfinished + item % p.rows, 1u);
    }

    // What a tolerance is of; 0 where one of the starts is not finite: bits decide then.
    SIMT static T scale_of(simt::lane &me, const arguments &p, int64_t row) {
        const float size = cells::float_of(me.peer_load(p.scales + row));
        return cells::finite(size) ? (T)size : T(0);
    }

    SIMT static bool equal(T a, T b) { return a == b || (a != a && b != b); }

    SIMT static void look(simt::lane &me, const arguments &p, const stretch &s, uint32_t *count, uint32_t sweeps) {
        const int64_t S = state(p), warps = threads / simt::warp_size;
        for (int64_t n = me.block() * warps + me.warp(); n < s.count; n += me.blocks() * warps) {
            const int64_t item = s.first + n;
            const T size = p.scales ? scale_of(me, p, item % p.rows) : T(0);
            bool apart = false;
            if (item >= p.rows && has_steps(p, item))
                for (int64_t j = me.in_warp(); j < S; j += simt::warp_size) {
                    const T a = me.peer_load(p.starts + item * S + j),
                            b = me.peer_load(p.ends + (item - p.rows) * S + j);
                    const T limit = p.scales ? T(p.atol + p.rtol) * size : T(p.atol) + T(p.rtol) * cells::magnitude(b);
                    apart = apart || !(equal(a, b) || (cells::finite(a - b) && cells::magnitude(a - b) <= limit));
                }
            const bool open = me.any(apart);
            if (me.in_warp() != 0) continue;
            me.peer_store(p.open + item, (uint32_t)open);
            if (!open) continue;
            me.raise(count, 1);
            if (sweeps > 0) me.raise(&p.tallies[item % p.rows].sweeps, sweeps);
            if (sweeps == 0)
                me.raise(&p.tallies[item % p.rows].from_end, (uint32_t)(p.length - item / p.rows * p.chunk));
        }
    }

    // The defect that is left, and whether the last state is finite.
    SIMT static void tell(simt::lane &me, const arguments &p) {
        const int64_t S = state(p), warps = threads / simt::warp_size;
        for (int64_t item = me.block() * warps + me.warp(); item < items(p); item += me.blocks() * warps) {
            const T size = p.scales ? scale_of(me, p, item % p.rows) : T(0);
            float most_seen = 0;
            bool lost = false;
            for (int64_t j = me.in_warp(); j < S; j += simt::warp_size) {
                const T end[1] = {me.peer_load(p.ends + item * S + j)};
                lost = lost || !cells::finite(end[0]);
                if (item < p.rows || !has_steps(p, item)) continue;
                T a[1] = {me.peer_load(p.starts + item * S + j)};
                T b[1] = {me.peer_load(p.ends + (item - p.rows) * S + j)};
                if (size > 0) a[0] = a[0] / size, b[0] = b[0] / size;
                const float d = (float)cells::distance<T, 1>(a, b);
                most_seen = d > most_seen ? d : most_seen;
            }
            cells::tally *t = p.tallies + item % p.rows;
            const bool any_lost = me.any(lost);
            if (most_seen > 0) me.raise(&t->residual, cells::bits_of(most_seen));
            if (me.in_warp() != 0) continue;
            me.raise(&t->sweeps, 1);
            if (any_lost && item == last_item(p, item % p.rows)) me.raise(&t->non_finite, 1);
        }
    }

    SIMT static void report(simt::lane &me, const arguments &p) {
        const int64_t H = p.hidden, S = state(p), lanes = me.blocks() * threads;
        for (int64_t n = self(me); n < p.rows * H; n += lanes) {
            const T *end = p.ends + last_item(p, n / H) * S + n % H;
            if (p.last) p.last[n] = me.peer_load(end);
            if (Step::cell && p.last_cell) p.last_cell[n] = me.peer_load(end + H);
        }
        tell_outcomes(me, p);
    }

    // ---- the launch ----

    // Open items of the stretch again, from their neighbours' ends. Starts that were wrong may have been the largest of
    // their sequence: where `measured`, those of now are.
    SIMT static void again(simt::lane &me, const arguments &p, const stretch &s, bool measured, int &turn) {
        adopt(me, p, s, turn);
        if (measured) forget_scales(me, p, false);
        me.grid_barrier();
        if (measured) measure(me, p, s, false);
        Step::run(me, p, s, turn);
        note(me, p, s, turn, p.ends);
        me.grid_barrier();
    }

    // What starts further on may be wrong yet: tolerances are of what has been passed.
    SIMT static void finish(simt::lane &me, const arguments &p, int &turn) {
        if (p.scales) {
            mark(me, p);
            me.grid_barrier();
            forget_scales(me, p, true);
            me.grid_barrier();
        }
        for (int64_t k = 1; k < p.chunks; k++) {
            const stretch passed = {(k - 1) * p.rows, p.rows, 0, p.chunk, true};
            const stretch s = {k * p.rows, p.rows, 0, p.chunk, true};
            uint32_t *count = p.counts + p.most_sweeps + 1 + k;
            if (p.scales) {
                measure(me, p, passed, true);
                me.grid_barrier();
            }
            look(me, p, s, count, 0);
            me.grid_barrier();
            if (!p.stop && me.acquire(count) != 0) again(me, p, s, false, turn);
        }
    }

    SIMT static void run(simt::lane &me, const arguments &p) {
        const stretch all = {0, items(p), 0, p.chunk, true};
        int turn = 0;
        begin(me, p);
        Step::begin(me, p);
        me.grid_barrier();
        if (p.chunks > 1) {
            const stretch warm = {0, items(p), -p.warm_up, p.warm_up, false};
            Step::run(me, p, warm, turn);
        }
        note(me, p, all, turn, p.starts);
        me.grid_barrier();
        measure(me, p, all, false);
        Step::run(me, p, all, turn);
        note(me, p, all, turn, p.ends);
        me.grid_barrier();
        bool closed = false;
        for (int sweeps = 1; !closed; sweeps++) {
            const uint32_t told = sweeps < p.most_sweeps ? (uint32_t)sweeps + 1 : (uint32_t)sweeps;
            look(me, p, all, p.counts + sweeps, told);
            me.grid_barrier();
            closed = me.acquire(p.counts + sweeps) == 0;
            if (closed || sweeps == p.most_sweeps) break;
            again(me, p, all, true, turn);
        }
        if (!closed) finish(me, p, turn);
        tell(me, p);
        me.grid_barrier();
        report(me, p);
    }
};

}  // namespace gates

#endif
