// SPDX-License-Identifier: MIT
// A layer and direction of RNN, GRU or LSTM over many items (gates.h), whose W_hh stays on chip, spread over the blocks
// of the one cooperative launch: a step is a product that a multiprocessor does at its arithmetic's speed.
//
// A block has all gates of some units, 8 to 64, and their rows of W_hh for the whole launch; blocks with the same units
// take tiles of items by turns. Slices of the items' states go to shared memory by themselves, some ahead of the one
// that is multiplied with. A thread has I items x N units with their L lines of W_hh each: numbers are read four along
// a line at once, I + N L reads for 4 I N L multiply-adds. Lanes that differ in their first bit have the same units, in
// the second the same items, so that half a warp's quads are one read of all banks.
//
// Back it is the same with W_hh's columns for lines, one a unit, and e of all gates for states.
//
// Sums are those of gates.h, term by term: the bits are the same.
#ifndef DPCRI_CUDA_GATES_TILES_H
#define DPCRI_CUDA_GATES_TILES_H

#include "kern/cuda/gates_kept.h"

namespace gates {

// Sums over K, a multiple of four. `tall` of the four warps lie along items, the others along units.
template <class T, int Items, int Units, int Lines>
struct held {
    static constexpr int I = Items, N = Units, L = Lines, warps = threads / simt::warp_size;
    static constexpr int stages = I > 2 ? 3 : 4;                                                      // slices on chip
    static constexpr int slice = 32, room = slice + 4, quads = slice / 4, at_once = threads / quads;  // rows at once
    static_assert(warps * 4 * I <= I * at_once, "a thread has I rows at most");

    SIMT_BOTH static int items(int tall) { return 4 * I * tall; }
    SIMT_BOTH static int units(int tall) { return 8 * N * (warps / tall); }
    // Lines lie so far apart that those of eight units meet different banks.
    SIMT_BOTH static int stride(int64_t K) { return (int)(K + 31) / 32 * 32 + 4; }
    SIMT_BOTH static int weights(int tall, int64_t K) { return L * units(tall) * stride(K); }
    SIMT_BOTH static int numbers(int tall, int64_t K) { return weights(tall, K) + stages * items(tall) * room; }
    SIMT_BOTH static int64_t bytes(int tall, int64_t K) {
        return numbers(tall, K) * (int64_t)sizeof(T) + roll::bytes(items(tall)) + (int64_t)sizeof(int64_t);
    }

    // Of the tile: item i and unit j of this thread.
    SIMT static int item(const simt::lane &me, int tall, int i) {
        const int lane = me.in_warp();
        return me.warp() % tall * 4 * I + i * 4 + (lane & 1) + (lane >> 3 & 1) * 2;
    }
    SIMT static int unit(const simt::lane &me, int tall, int j) {
        const int lane = me.in_warp();
        return me.warp() / tall * 8 * N + j * 8 + (lane >> 1 & 3) + (lane >> 4) * 4;
    }

    // What a block has.
    struct place {
        simt::shared<T> s;
        roll items_of;
        int tall, K, slices;         // slices: where they begin
        int64_t hidden, u0, at, by;  // its first unit; the first of its tiles of items, and how far apart they are
    };
    SIMT static place place_of_block(simt::lane &me, int64_t hidden, int64_t K, int tall) {
        const int count = numbers(tall, K);
        const int64_t wide = tiles(hidden, units(tall));
        return {me.template array<T>(0, count),
                {me.template array<int64_t>(count * (int64_t)sizeof(T), 3 * items(tall) + 1)},
                tall,
                (int)K,
                weights(tall, K),
                hidden,
                me.block() % wide * units(tall),
                me.block() / wide,
                me.blocks() / wide};
    }

    // The first item of the tile that was called. What follows from it is made where it is used: in registers it would
    // stand through the product, and the stretch.
    SIMT static int64_t first_of(const place &b) { return b.items_of.s.get(3 * items(b.tall)); }

    // What is known of a tile's items, as roll_of.
    SIMT static void call(simt::lane &me, const chunked<T> &p, const place &b, int64_t first, int64_t end) {
        me.barrier();  // what was there before has been read, the slices too
        for (int i = me.thread(); i < items(b.tall); i += threads) {
            const int64_t n = first + i, row = n % p.rows;
            const bool goes = n < end && me.peer_load(p.open + n) != 0;
            b.items_of.s.set(3 * i, row);
            b.items_of.s.set(3 * i + 1, n / p.rows * p.chunk);
            b.items_of.s.set(3 * i + 2, goes ? length_of<T>(p, row) : 0);
        }
        if (me.thread() == 0) b.items_of.s.set(3 * items(b.tall), first);
        me.barrier();
    }

    // Rows of a tile, `from` the first of this thread's; bit v of `there`: row v of them is one, others are zeros.
    struct source {
        const T *from;
        int64_t apart;  // of this thread's
        int rows;
        uint32_t there;
    };
    SIMT static int row(const simt::lane &me, int v) { return me.thread() / quads + v * at_once; }
    SIMT static source source_of(const simt::lane &me, const place &b, const T *from) {
        const int left = items(b.tall) - row(me, 0);
        return {from, (int64_t)at_once * b.K, left > 0 ? (left + at_once - 1) / at_once : 0, 0};
    }
    SIMT static void ask(simt::lane &me, const place &b, const source &r, int stage, int k0) {
        const int beside = me.thread() % quads * 4;
        int to = b.slices + (stage * items(b.tall) + row(me, 0)) * room + beside;
        const T *from = r.from + k0 + beside;
        if (k0 + beside < b.K) SIMT_UNROLL for (int v = 0; v < I; v++) {
                if (v >= r.rows) break;
                if (r.there >> v & 1)
                    me.copy_async_wide(b.s, to, from);
                else
                    b.s.set(to, simt::pack<T, 4>{});
                from += r.apart, to += at_once * room;
            }
        me.copy_close();
    }
    SIMT static void ask_first(simt::lane &me, const place &b, const source &r) {
        SIMT_UNROLL for (int n = 0; n + 1 < stages; n++) ask(me, b, r, n, n * slice);
    }

    SIMT static void take(const simt::shared<T> &s, int state, const int (&line)[N * L], int beside, int k,
                          T (&a)[I][4], T (&w)[N * L][4]) {
        SIMT_UNROLL for (int i = 0; i < I; i++) product::read(s, state + i * 4 * room + beside, 0, a[i]);
        SIMT_UNROLL for (int j = 0; j < N * L; j++) product::read(s, line[j] + k + beside, 0, w[j]);
    }
    SIMT static void add(const T (&a)[I][4], const T (&w)[N * L][4], T (&sum)[I][N * L]) {
        SIMT_UNROLL for (int n = 0; n < 4; n++) SIMT_UNROLL for (int i = 0; i < I; i++)
            SIMT_UNROLL for (int j = 0; j < N * L; j++) sum[i][j] = simt::fma(w[j][n], a[i][n], sum[i][j]);
    }

    // sum[i][j L + q] += what line q of unit j and the row of item i make; the first slices have been asked for.
    SIMT static void multiply(simt::lane &me, const place &b, const source &r, T (&sum)[I][N * L]) {
        const int apart = stride(b.K), wide = units(b.tall), step = items(b.tall) * room;
        const int there = b.hidden - b.u0 < wide ? (int)(b.hidden - b.u0) : wide;
        int line[N * L];
        SIMT_UNROLL for (int j = 0; j < N; j++) {
            const int u = unit(me, b.tall, j) < there ? unit(me, b.tall, j) : there - 1;
            SIMT_UNROLL for (int q = 0; q < L; q++) line[j * L + q] = (q * wide + u) * apart;
        }
        const int own = b.slices + item(me, b.tall, 0) * room;
        int stage = 0;
        SIMT_ROLLED for (int k = 0; k < b.K; k += slice) {
            const int state = own + stage * step;
            me.copy_wait_but(stages - 2);
            me.barrier();
            ask(me, b, r, stage == 0 ? stages - 1 : stage - 1, k + (stages - 1) * slice);
            if (k + slice <= b.K) {
                T a[2][I][4], w[2][N * L][4];
                take(b.s, state, line, 0, k, a[0], w[0]);
                SIMT_UNROLL for (int n = 0; n < quads; n++) {
                    if (n + 1 < quads) take(b.s, state, line, 4 * (n + 1), k, a[(n + 1) % 2], w[(n + 1) % 2]);
                    add(a[n % 2], w[n % 2], sum);
                }
            } else {
                SIMT_ROLLED for (int beside = 0; k + beside < b.K; beside += 4) {
                    T a[I][4], w[N * L][4];
                    take(b.s, state, line, beside, k, a, w);
                    add(a, w, sum);
                }
            }
            stage = stage + 1 == stages ? 0 : stage + 1;
        }
    }
    // Of a multiprocessor's, for four numbers k of a tile: the multiply-adds of its lanes, shared memory's reads of
    // half a warp, and the states' way from the second cache, 24 bytes a cycle.
    static double cycles(int tall) {
        const double adds = 4.0 * I * N * L, reads = 8.0 * (I + N * L), way = items(tall) * 16 / 24.0;
        const double most = adds > reads ? adds : reads;
        return (most > way ? most : way) + 0.25 * way;
    }
};

// ---- forward ----

template <class T, int G, int I, int N>
struct tiled : columns<T, G> {
    typedef columns<T, G> plain;
    typedef held<T, I, N, G> tile;
    typedef problem<T> arguments;
    static int64_t depth_of(int64_t hidden) { return hidden; }

    SIMT static typename tile::place place_of_block(simt::lane &me, const problem<T> &p) {
        return tile::place_of_block(me, p.hidden, p.hidden, p.tall);
    }

    SIMT static void begin(simt::lane &me, const problem<T> &p) {
        const typename tile::place b = place_of_block(me, p);
        const int H = (int)p.hidden, wide = tile::units(p.tall), stride = tile::stride(H), lane = me.in_warp();
        const bool quads = product::in_quads(p.w_hh, H);
        plain::begin(me, p);
        for (int n = me.warp(); n < G * wide; n += tile::warps) {
            const int64_t u = b.u0 + n % wide;
            const T *from = p.w_hh + (n / wide * p.hidden + u) * p.hidden;
            if (u >= H) continue;
            if (quads)
                for (int k = 4 * lane; k < H; k += 4 * simt::warp_size)
                    me.copy_async_wide(b.s, n * stride + k, from + k);
            else
                for (int k = lane; k < H; k += simt::warp_size) me.copy_async(b.s, n * stride + k, from + k);
        }
        me.copy_wait();
    }

    // A step of a tile of items.
    SIMT static void step(simt::lane &me, const problem<T> &p, const stretch &s, const typename tile::place &b,
                          int64_t at, int turn) {
        const int64_t H = p.hidden, end = s.first + s.count, first = tile::first_of(b);
        bool goes = false;
        for (int i = me.in_warp(); i < tile::items(b.tall); i += simt::warp_size)
            goes = goes || b.items_of.step(i, at) >= 0;
        const bool work = me.any(goes);
        typename tile::source rows = tile::source_of(me, b, plain::state_at(p, first + tile::row(me, 0), 0, turn));
        if (work) {
            SIMT_UNROLL for (int v = 0; v < I; v++) {
                const int64_t item = first + tile::row(me, v);
                if (item < end && !(p.resets && plain::fresh(p, item, at))) rows.there |= 1u << v;
            }
            tile::ask_first(me, b, rows);
        }
        typename plain::turned unit[I][N];
        T sum[I][N * G];
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            const int own = tile::item(me, b.tall, i);
            const int64_t m = b.items_of.step(own, at), row = b.items_of.row(own);
            SIMT_UNROLL for (int j = 0; j < N; j++) {
                const int64_t u = b.u0 + tile::unit(me, b.tall, j);
                unit[i][j] = {};
                if (first + own < end && u < H) unit[i][j] = plain::before(me, p, first + own, row, m, u, turn);
                SIMT_UNROLL for (int q = 0; q < G; q++) sum[i][j * G + q] = p.b_hh && u < H ? p.b_hh[q * H + u] : T(0);
            }
        }
        if (work) tile::multiply(me, b, rows, sum);
        SIMT_ROLLED for (int i = 0; i < I; i++) {  // as product::each_row
            const int own = tile::item(me, b.tall, i);
            const int64_t m = b.items_of.step(own, at), row = b.items_of.row(own), item = tile::first_of(b) + own;
            SIMT_UNROLL for (int j = 0; j < N; j++) {
                const int64_t u = b.u0 + tile::unit(me, b.tall, j);
                T gates[G];
                SIMT_UNROLL for (int q = 0; q < G; q++) gates[q] = sum[0][j * G + q];
                if (item < end && u < H) plain::after(me, p, s, item, row, m, u, unit[0][j], gates, turn);
            }
            SIMT_UNROLL for (int n = 0; n + 1 < I; n++) {
                SIMT_UNROLL for (int j = 0; j < N; j++) unit[n][j] = unit[n + 1][j];
                SIMT_UNROLL for (int j = 0; j < N * G; j++) sum[n][j] = sum[n + 1][j];
            }
        }
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const typename tile::place b = place_of_block(me, p);
        const int64_t end = s.first + s.count, tall = tile::items(b.tall), count = tiles(s.count, tall);
        const bool one = count <= b.by;
        if (one && b.at < count) tile::call(me, p, b, s.first + b.at * tall, end);
        for (int64_t n = 0; n < s.steps; n++) {
            for (int64_t index = b.at; index < count; index += b.by) {
                if (!one) tile::call(me, p, b, s.first + index * tall, end);
                step(me, p, s, b, s.from + n, turn);
            }
            me.grid_barrier();
            turn = 1 - turn;
        }
    }
};

// ---- the launcher ----

struct tiles_chosen {
    simt::shape shape;  // no blocks: none
    int which, tall;
    double cost;
};

// A tile costs its arithmetic, or at least what a sum waits for its terms, and what a step waits besides.
template <class T, class Step>
void consider_tiles(int which, int64_t items, int64_t hidden, int64_t room, tiles_chosen *best) {
    typedef typename Step::tile tile;
    const int64_t K = Step::depth_of(hidden);
    for (int tall = 1; tall <= tile::warps; tall *= 2) {
        const int64_t bytes = tile::bytes(tall, K), wide = tiles(hidden, tile::units(tall));
        const int64_t deep = tiles(items, tile::items(tall));
        if (bytes > room) continue;
        const int64_t most = simt::cooperative_blocks<chunks<T, Step>>(threads, bytes) / wide;
        if (most < 1) continue;
        const int64_t by = deep < most ? deep : most, together = tiles(wide * by, product::multiprocessors);
        const double least = 40, each = tile::cycles(tall) * (double)together;
        const double cost = (double)tiles(deep, by) * ((each > least ? each : least) * (double)K / 4 + 4000);
        if (best->shape.blocks > 0 && cost >= best->cost) continue;
        *best = {{wide * by, threads, bytes, true}, which, tall, cost};
    }
}

constexpr int64_t least_tiled_items = 9, least_tiled = 32;

// Do tiles with W_hh on chip serve such numbers? All of a workspace lies as `starts` does.
template <class T>
bool may_tile(const chunked<T> &p) {
    const int64_t items = p.chunks * p.rows;
    return sizeof(T) == 4 && p.hidden % 4 == 0 && p.hidden >= least_tiled && items >= least_tiled_items &&
           items <= 1 << 30 && p.hidden <= 1 << 14 && reinterpret_cast<uintptr_t>(p.starts) % 16 == 0;
}

// The shape of what goes; no blocks: W_hh does not fit.
template <class T, template <class, int, int, int> class Step, int G>
int choose_tiles(const chunked<T> &p, tiles_chosen *best) {
    int64_t room = 0;
    *best = {};
    if (!may_tile(p)) return 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    const int64_t items = p.chunks * p.rows;
    if constexpr (sizeof(T) == 4) {
        consider_tiles<T, Step<T, G, 4, 2>>(0, items, p.hidden, room, best);
        consider_tiles<T, Step<T, G, 8, 1>>(1, items, p.hidden, room, best);
        consider_tiles<T, Step<T, G, 2, 1>>(2, items, p.hidden, room, best);
    }
    return 0;
}
template <class T, template <class, int, int, int> class Step, int G>
int launch_tiles(const tiles_chosen &c, const typename chunks<T, Step<T, G, 4, 2>>::arguments &a, void *stream) {
    return c.which == 0   ? simt::launch<chunks<T, Step<T, G, 4, 2>>>(c.shape, stream, a)
           : c.which == 1 ? simt::launch<chunks<T, Step<T, G, 8, 1>>>(c.shape, stream, a)
                          : simt::launch<chunks<T, Step<T, G, 2, 1>>>(c.shape, stream, a);
}

}  // namespace gates

#endif
