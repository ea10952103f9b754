// SPDX-License-Identifier: MIT
// A layer and direction of RNN, GRU or LSTM (gates.h) of few units in float, whose items each have a block, or go two a
// block: a lane has one gate of a unit, and its column of W_hh stays in registers through a stretch.
//
// A step: every lane sums its gate over h, which lies on chip and is read in quads by all lanes at once; the gates'
// functions go side by side, all but a GRU's last and, with peepholes, an LSTM's; what they give is exchanged on chip,
// and the last gate's lanes make c and h, which they keep. So a step is H multiply-adds one after another, two of the
// gates' functions or three, and two barriers of the block (an RNN's is one), where gates_alone.h has G H multiply-adds
// and G + 1 functions. Of two items a lane's sums go side by side with the same registers. g is asked for some steps
// before.
//
// Sums are those of gates.h, term by term: the bits are the same.
#ifndef DPCRI_CUDA_GATES_LANES_H
#define DPCRI_CUDA_GATES_LANES_H

#include "kern/cuda/gates_alone.h"

namespace gates {

// Tall: units of a block, of which the last may be none; I: items of a block at once.
template <class T, int G, int Tall, int I>
struct lanes : columns<T, G> {
    typedef columns<T, G> plain;
    typedef problem<T> arguments;
    static constexpr int block_threads = G * Tall, last = G - 1;
    // As many blocks of a multiprocessor, up to four, as leave a lane its column and what a step wants beside it; one
    // may have to do with less.
    static constexpr int registers = 65536, beside = 64, least_beside = 40;
    static constexpr int fitting = registers / (block_threads * (Tall + beside));
    static constexpr int block_together = fitting < 1 ? 1 : fitting < 4 ? fitting : 4;
    static_assert(block_threads * (Tall + least_beside) <= registers, "a column stays in registers");
    static constexpr int ahead = 4;   // steps whose g is under way
    static constexpr int check = 16;  // numbers of h that are added or left out together

    // Shared memory: zeros, in the place of a state where a sequence begins; h by turns, and c where there are
    // peepholes, item by item; gates but the last; g of some steps; and of each warp a piece of W_hh.
    static constexpr int zeros = 0, states = zeros + Tall, cells = states + 2 * I * Tall, made = cells + I * Tall,
                         given = made + I * last * Tall, pieces = given + ahead * I * block_threads,
                         piece = simt::warp_size * (simt::warp_size + 1),
                         numbers = pieces + block_threads / simt::warp_size * piece;
    static constexpr int row = 0, start = 1, told = 2;  // and of each item its sequence and its first step
    static_assert(Tall % simt::warp_size == 0, "a warp has one gate");
    static constexpr int64_t bytes() { return numbers * (int64_t)sizeof(T) + I * told * (int64_t)sizeof(int32_t); }

    // Who a lane is: gate q of unit u, if there is one.
    struct place {
        simt::shared<T> s;
        simt::shared<int32_t> items;
        int q, u;
        bool there, ends;
    };
    SIMT static place place_of_lane(simt::lane &me, const problem<T> &p) {
        const int q = me.thread() / Tall, u = me.thread() % Tall;
        return {me.template array<T>(0, numbers),
                me.template array<int32_t>(numbers * (int64_t)sizeof(T), I * told),
                q,
                u,
                u < p.hidden,
                q == last};
    }

    // This lane's column of W_hh, zeros beyond H: the warp reads along the rows, and each lane takes its own on chip.
    SIMT static void take_weights(simt::lane &me, const problem<T> &p, const place &b, T (&weight)[Tall]) {
        constexpr int N = simt::warp_size;
        const int H = (int)p.hidden, own = pieces + me.warp() * piece, u0 = b.u - me.in_warp();
        const T *const from = p.w_hh + ((int64_t)b.q * H + u0) * H;
        SIMT_UNROLL for (int k0 = 0; k0 < Tall; k0 += N) {
            const int k = k0 + me.in_warp();
            SIMT_ROLLED for (int r = 0; r < N; r++)
                b.s.set(own + r * (N + 1) + me.in_warp(), u0 + r < H && k < H ? from[r * H + k] : T(0));
            me.warp_barrier();
            SIMT_UNROLL for (int n = 0; n < N; n++) weight[k0 + n] = b.s.get(own + me.in_warp() * (N + 1) + n);
            me.warp_barrier();
        }
    }

    // sum[i] + weight times the state that begins at rows[i]: quads that come next are read while a sum grows.
    SIMT static void add(const place &b, const T (&weight)[Tall], const int (&rows)[I], int H, T (&sum)[I]) {
        constexpr int quads = 2 / I, many = 4 * quads;
        simt::pack<T, 4> now[I][quads], then[I][quads];
        SIMT_UNROLL for (int i = 0; i < I; i++) SIMT_UNROLL for (int j = 0; j < quads; j++) now[i][j] =
            b.s.template get<4>(rows[i] + 4 * j);
        SIMT_UNROLL for (int k = 0; k < Tall; k += many) {
            if (k % check == 0 && k >= H) break;
            SIMT_UNROLL for (int i = 0; i < I; i++) SIMT_UNROLL for (int j = 0; j < quads; j++) then[i][j] =
                b.s.template get<4>(rows[i] + (k + many < Tall ? k + many + 4 * j : 0));
            SIMT_UNROLL for (int n = 0; n < many; n++) SIMT_UNROLL for (int i = 0; i < I; i++) sum[i] =
                simt::fma(weight[k + n], now[i][n / 4].at[n % 4], sum[i]);
            SIMT_UNROLL for (int i = 0; i < I; i++) SIMT_UNROLL for (int j = 0; j < quads; j++) now[i][j] = then[i][j];
        }
    }

    // An item through a stretch: at steps low .. high - 1 of it it has one, m = start + n; `given`: this lane's g of
    // the step that is asked for next.
    struct course {
        int low, high;
        const T *given;
    };
    SIMT static course course_of(const simt::lane &me, const problem<T> &p, const stretch &s, const place &b,
                                 int64_t item, int i) {
        course c = {};
        const int r = (int)(item % p.rows), m = (int)(item / p.rows * p.chunk + s.from);
        c.low = m < 0 ? -m : 0;
        c.high = (int)length_of<T>(p, r) - m;
        if (c.high > (int)s.steps) c.high = (int)s.steps;
        c.given = p.given + (place_of(p, r, m) * p.rows + r) * p.given_row + b.q * p.hidden + b.u;
        if (me.thread() == 0) b.items.set(i * told + row, r), b.items.set(i * told + start, m);
        return c;
    }
    SIMT static int given_at(const simt::lane &me, int n, int i) {
        return given + (n % ahead * I + i) * block_threads + me.thread();
    }
    // g of this lane at step n of the stretch.
    SIMT static void ask(simt::lane &me, const problem<T> &p, const place &b, course (&c)[I], int n) {
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            if (b.there && n >= c[i].low && n < c[i].high) me.copy_async(b.s, given_at(me, n, i), c[i].given);
            c[i].given += p.rows * p.given_row;
        }
        me.copy_close();
    }
    SIMT static bool begins_at(const problem<T> &p, const place &b, const course &c, int i, int n) {
        if (!p.resets || n < c.low || n >= c.high) return false;
        return begins(p, b.items.get(i * told + row), b.items.get(i * told + start) + n);
    }

    // A unit of an item where the step before has left it, kept by the last gate's lane.
    struct unit {
        T h, cell;
    };
    SIMT static void show(const problem<T> &p, const place &b, int i, int turn, const unit &of) {
        b.s.set(states + (turn * I + i) * Tall + b.u, of.h);
        if (plain::cell && p.peephole) b.s.set(cells + i * Tall + b.u, of.cell);
    }

    // Gate q's function where it needs no other's; else what goes into it.
    SIMT static T function(const problem<T> &p, const place &b, int i, T in, bool anew) {
        if (b.ends && (G == 3 || (plain::cell && p.peephole))) return in;
        const bool sees = plain::cell && p.peephole && b.q < 2;
        return plain::gate(p, b.u, b.q, in, sees && !anew ? b.s.get(cells + i * Tall + b.u) : T(0));
    }
    // The last gate's lane: `own` is its function, or what goes in; g and sum that by themselves.
    SIMT static void finish(const problem<T> &p, const place &b, int i, T own, T g, T sum, bool anew, unit &of) {
        T made_of[G];
        SIMT_UNROLL for (int q = 0; q < last; q++) made_of[q] = b.s.get(made + (i * last + q) * Tall + b.u);
        if constexpr (G == 1) of.h = own;
        if constexpr (G == 3) of.h = plain::mixed(p, made_of[0], made_of[1], g, sum, anew ? T(0) : of.h);
        if constexpr (G == 4) {
            of.cell = plain::cell_after(p, made_of[0], made_of[1], made_of[2], anew ? T(0) : of.cell);
            of.h = plain::state_after(p, p.peephole ? plain::gate(p, b.u, last, own, of.cell) : own, of.cell);
        }
    }

    // Items first, first + me.blocks(): I of them.
    SIMT static void go(simt::lane &me, const problem<T> &p, const stretch &s, int64_t first, int turn) {
        const place b = place_of_lane(me, p);
        const int H = (int)p.hidden;
        course c[I];
        unit at[I] = {};
        bool any = false, fresh[I];
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            const int64_t item = first + i * me.blocks();
            const bool open = item < s.first + s.count && me.peer_load(p.open + item) != 0;
            any = any || open;
            c[i] = {};
            if (open) c[i] = course_of(me, p, s, b, item, i);
            if (!open || !b.there || !b.ends) continue;
            at[i].h = plain::load(me, p, item, b.u, turn);
            if (plain::cell) at[i].cell = plain::load_cell(me, p, item, b.u);
        }
        if (!any) return;
        T weight[Tall];
        take_weights(me, p, b, weight);
        const T bias = b.there && p.b_hh ? p.b_hh[b.q * H + b.u] : T(0);
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            if (b.ends) show(p, b, i, 0, at[i]);
        }
        if (b.ends) b.s.set(zeros + b.u, T(0));
        for (int d = 0; d < ahead; d++) ask(me, p, b, c, d);
        me.barrier();
        SIMT_UNROLL for (int i = 0; i < I; i++) fresh[i] = begins_at(p, b, c[i], i, 0);
        const int steps = (int)s.steps;
        SIMT_ROLLED for (int n = 0; n < steps; n++) {
            const int now = n % 2;
            int rows[I];
            T sum[I], g[I] = {}, own[I] = {};
            bool goes[I], anew[I], some = false;
            SIMT_UNROLL for (int i = 0; i < I; i++) {
                goes[i] = n >= c[i].low && n < c[i].high;
                some = some || goes[i];
                anew[i] = fresh[i];
                fresh[i] = begins_at(p, b, c[i], i, n + 1);
                rows[i] = anew[i] ? zeros : states + (now * I + i) * Tall;
                sum[i] = bias;
            }
            if (some) add(b, weight, rows, H, sum);
            me.copy_wait_but(ahead - 1);
            SIMT_UNROLL for (int i = 0; i < I; i++) {
                if (!goes[i] || !b.there) continue;
                g[i] = b.s.get(given_at(me, n, i));
                own[i] = function(p, b, i, g[i] + sum[i], anew[i]);
                if (!b.ends) b.s.set(made + (i * last + b.q) * Tall + b.u, own[i]);
            }
            if (G > 1) me.barrier();
            SIMT_UNROLL for (int i = 0; i < I; i++) {
                if (!b.ends) continue;
                if (goes[i] && b.there) finish(p, b, i, own[i], g[i], sum[i], anew[i], at[i]);
                show(p, b, i, 1 - now, at[i]);
            }
            me.barrier();
            ask(me, p, b, c, n + ahead);
            SIMT_UNROLL for (int i = 0; i < I; i++) if (b.ends && goes[i] && b.there) plain::write(
                p, s, b.items.get(i * told + row), b.items.get(i * told + start) + n, b.u, at[i].h, at[i].cell);
        }
        me.copy_wait();
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            const int64_t item = first + i * me.blocks();
            if (c[i].high <= c[i].low || !b.there || !b.ends) continue;
            plain::store(me, p, item, b.u, turn, at[i].h);
            if (plain::cell) plain::store_cell(me, p, item, b.u, at[i].cell);
        }
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        go(me, p, s, s.first + me.block(), turn);  // there are blocks for all items
        meet(me);
    }
};

// ---- the launcher ----

struct lanes_chosen {
    simt::shape shape;  // no blocks: none
    int tall;           // units of a block
    int items;          // of a block at once
};

// Units that are served: those whose columns of W_hh registers hold. Of an RNN of up to a warp's, gates_alone.h does
// the same.
template <class T, int G>
constexpr int most_in_lanes = sizeof(T) != 4 ? 0
                              : G == 4       ? 64
                                             : 128;
constexpr int64_t most_steps_in_lanes = 1 << 30;
constexpr int least_in_lanes(int G) { return G == 1 ? simt::warp_size + 1 : 1; }

template <class T, int G, int Tall, int I>
void consider_lanes(int64_t items, int64_t room, lanes_chosen *best) {
    typedef lanes<T, G, Tall, I> step;
    if (best->shape.blocks > 0 || step::bytes() > room) return;
    const int64_t blocks = simt::cooperative_blocks<chunks<T, step>>(step::block_threads, step::bytes());
    if (items > I * blocks) return;
    *best = {{tiles(items, I), step::block_threads, step::bytes(), true}, Tall, I};
}
template <class T, int G, int Tall>
void consider_tall(const chunked<T> &p, int64_t room, lanes_chosen *best) {
    if (p.hidden > Tall) return;
    consider_lanes<T, G, Tall, 1>(p.chunks * p.rows, room, best);
    consider_lanes<T, G, Tall, 2>(p.chunks * p.rows, room, best);
}

// Where blocks that go together take all items in one round: each its own, or, of more items, two at once. Beyond that
// gates_alone.h, whose blocks have more items in the same registers.
template <class T, int G>
int choose_lanes(const chunked<T> &p, lanes_chosen *best) {
    *best = {};
    if constexpr (most_in_lanes < T, G >> 0) {
        int64_t room = 0;
        if (p.hidden < least_in_lanes(G) || p.hidden > most_in_lanes<T, G> || p.length > most_steps_in_lanes) return 0;
        const int status = simt::room_of_block(&room);
        if (status != 0) return status;
        if constexpr (G > 1) consider_tall<T, G, 32>(p, room, best);
        consider_tall<T, G, 64>(p, room, best);
        if constexpr (G < 4) consider_tall<T, G, 128>(p, room, best);
    }
    return 0;
}

template <class T, int G, int Tall>
int launch_tall(const lanes_chosen &c, const problem<T> &p, void *stream) {
    return c.items == 1 ? simt::launch<chunks<T, lanes<T, G, Tall, 1>>>(c.shape, stream, p)
                        : simt::launch<chunks<T, lanes<T, G, Tall, 2>>>(c.shape, stream, p);
}
template <class T, int G>
int launch_lanes(const lanes_chosen &c, const problem<T> &p, void *stream) {
    if constexpr (G > 1)
        if (c.tall == 32) return launch_tall<T, G, 32>(c, p, stream);
    if constexpr (G < 4)
        if (c.tall == 128) return launch_tall<T, G, 128>(c, p, stream);
    return launch_tall<T, G, 64>(c, p, stream);
}

}  // namespace gates

#endif
