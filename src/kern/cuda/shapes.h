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

}  // namespace shapes

#endif
