// SPDX-License-Identifier: MIT
// The way back through recurrent layers of many items (gates_back.h) with W_hh on chip (gates_tiles.h): a line is a
// column of W_hh, over the gates of all units.
#ifndef DPCRI_CUDA_GATES_TILES_BACK_H
#define DPCRI_CUDA_GATES_TILES_BACK_H

#include "kern/cuda/gates_back.h"
#include "kern/cuda/gates_tiles.h"

namespace gates {

template <class T, int G, int I, int N>
struct tiled_backs : backs<T, G> {
    typedef backs<T, G> plain;
    typedef held<T, I, N, 1> tile;
    typedef back_problem<T> arguments;
    typedef chunks<T, tiled_backs<T, G, I, N>> all;
    static int64_t depth_of(int64_t hidden) { return G * hidden; }

    SIMT static typename tile::place place_of_block(simt::lane &me, const arguments &b) {
        return tile::place_of_block(me, b.hidden, G * b.hidden, b.p.tall);
    }

    SIMT static void begin(simt::lane &me, const arguments &b) {
        const typename tile::place o = place_of_block(me, b);
        const int H = (int)b.hidden, wide = tile::units(o.tall), stride = tile::stride(o.K);
        plain::begin(me, b);
        for (int n = me.thread(); n < wide * o.K; n += threads) {
            const int u = n % wide, k = n / wide;
            if (o.u0 + u < H) me.copy_async(o.s, u * stride + k, b.p.w_hh + (int64_t)k * H + o.u0 + u);
        }
        me.copy_wait();
    }

    // Of a tile: the product of the step before, n - 1, where there was one, then the gates of step n of the stretch.
    SIMT static void step(simt::lane &me, const arguments &b, const stretch &s, const typename tile::place &o,
                          int64_t n, int turn) {
        const int64_t H = b.hidden, end = s.first + s.count, at = s.from + n, first = tile::first_of(o);
        const bool has = (n < s.steps), had = (n > 0);
        bool goes = false;
        for (int i = me.in_warp(); i < tile::items(o.tall); i += simt::warp_size)
            goes = goes || (had && o.items_of.step_back(i, at - 1) >= 0);
        const bool work = me.any(goes);
        const T *from = b.columns + turn * plain::all::items(b) * o.K;
        typename tile::source rows = tile::source_of(me, o, from + (first + tile::row(me, 0)) * o.K);
        if (work) {
            SIMT_UNROLL for (int v = 0; v < I; v++) if (first + tile::row(me, v) < end) rows.there |= 1u << v;
            tile::ask_first(me, o, rows);
        }
        typename plain::turned unit[I][N];
        T sum[I][N];
        SIMT_UNROLL for (int i = 0; i < I; i++) {
            const int own = tile::item(me, o.tall, i);
            const int64_t m = has ? o.items_of.step_back(own, at) : -1, row = o.items_of.row(own),
                          done = had ? o.items_of.step_back(own, at - 1) : -1;
            SIMT_UNROLL for (int j = 0; j < N; j++) {
                const int64_t u = o.u0 + tile::unit(me, o.tall, j);
                unit[i][j] = {};
                unit[i][j].m = unit[i][j].done = -1;
                if (first + own < end && u < H) unit[i][j] = plain::before(me, b, first + own, row, m, done, u);
                sum[i][j] = plain::addend(unit[i][j]);
            }
        }
        if (work) tile::multiply(me, o, rows, sum);
        SIMT_ROLLED for (int i = 0; i < I; i++) {  // as product::each_row
            const int64_t item = tile::first_of(o) + tile::item(me, o.tall, i);
            SIMT_UNROLL for (int j = 0; j < N; j++) {
                const int64_t u = o.u0 + tile::unit(me, o.tall, j);
                if (item < end && u < H) plain::after(me, b, s, item, u, unit[0][j], sum[0][j], turn);
            }
            SIMT_UNROLL for (int k = 0; k + 1 < I; k++) SIMT_UNROLL for (int j = 0; j < N; j++) {
                unit[k][j] = unit[k + 1][j];
                sum[k][j] = sum[k + 1][j];
            }
        }
    }

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const typename tile::place o = place_of_block(me, b);
        const int64_t end = s.first + s.count, tall = tile::items(o.tall), count = tiles(s.count, tall);
        const bool one = count <= o.by;
        if (one && o.at < count) tile::call(me, b, o, s.first + o.at * tall, end);
        for (int64_t n = 0; n <= s.steps; n++) {
            for (int64_t index = o.at; index < count; index += o.by) {
                if (!one) tile::call(me, b, o, s.first + index * tall, end);
                step(me, b, s, o, n, turn);
            }
            me.grid_barrier();
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
