// SPDX-License-Identifier: MIT
// What the launchers share: how many blocks a launch takes, and in how many pieces long sums are made. Host code.
#ifndef DPCRI_CUDA_SHAPES_H
#define DPCRI_CUDA_SHAPES_H

#include "kern/device.h"

namespace shapes {

inline bool real(dpcr_dtype dtype) { return dtype == DPCR_F32 || dtype == DPCR_F64; }

inline int64_t over(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Blocks for so many tiles; where there are more, blocks take several.
inline int64_t blocks_of(int64_t tiles) { return tiles < 65535 ? tiles : 65535; }

// Blocks for `count` numbers, `each` a block at once, that only pass through: no more than keep memory at work.
inline int64_t streaming_blocks(int64_t count, int64_t each) {
    const int64_t n = over(count, each);
    return n < 4096 ? n : 4096;
}

// Pieces that the sums of `numbers` numbers over `rows` rows are made in, each in order: from these alone, so that no
// bits depend on the device.
constexpr int64_t most_pieces = 64, rows_of_piece = 512, most_parts = 1 << 24;  // of sums; numbers of all pieces

inline int64_t pieces_of(int64_t rows, int64_t numbers) {
    const int64_t wanted = over(rows, rows_of_piece), room = most_parts / numbers;
    const int64_t fit = wanted < room ? wanted : room;
    return fit < 1 ? 1 : fit < most_pieces ? fit : most_pieces;
}

// The same of few numbers over many rows, as of recurrent layers: as many more pieces as keep a device at work and are
// soon added up.
constexpr int64_t most_of_few = 1024, few_rows_of_piece = 64, few_parts = 1 << 21;

inline int64_t pieces_of_few(int64_t rows, int64_t numbers) {
    const int64_t usual = pieces_of(rows, numbers), wanted = over(rows, few_rows_of_piece), room = few_parts / numbers;
    const int64_t fit = wanted < room ? wanted : room, more = fit < most_of_few ? fit : most_of_few;
    return more > usual ? more : usual;
}

// Of a linear chain's problem what lies where, its steps in the order of the recurrence: a transposed chain has
// negative strides, and its step m reads the transition of the step behind it; m = 0 has none.
template <class T, class Problem>
void lay_out(const dpcri_device_linear &c, Problem *p) {
    const int64_t sign = c.transposed ? -1 : 1, last = c.transposed ? c.length - 1 : 0;
    p->length = c.length;
    p->transposed = c.transposed != 0;
    p->a = static_cast<const T *>(c.a);
    if (p->a && c.transposed) p->a += c.length * c.a_step;
    p->a_step = sign * c.a_step;
    p->a_row = c.a_row;
    p->b = static_cast<const T *>(c.b);
    if (p->b) p->b += last * c.b_step;
    p->b_step = sign * c.b_step;
    p->b_row = c.b_row;
    p->z0 = static_cast<const T *>(c.z0);
    p->z0_row = c.z0_row;
    p->z = static_cast<T *>(c.z);
    if (p->z) p->z += last * c.z_step;
    p->z_step = sign * c.z_step;
    p->z_row = c.z_row;
}

}  // namespace shapes

#endif
