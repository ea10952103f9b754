// SPDX-License-Identifier: MIT
// The launcher of linear_stream.h: sizes, how numbers may be read, which of its kernels.
#ifndef DPCRI_CUDA_LINEAR_STREAM_RUN_H
#define DPCRI_CUDA_LINEAR_STREAM_RUN_H

#include "kern/cuda/linear_stream.h"

namespace linear {

namespace stream {

// Columns of a tile: as many as there are, up to at_most; fewer, while they fill sectors, where the last tile would be
// empty by an eighth of all columns.
template <class T, int K>
inline int group_of(int64_t columns, int at_most) {
    int group = 1;
    while (group < at_most && group < columns) group *= 2;
    while (group > sector_group<T, K> && (columns + group - 1) / group * group - columns > columns / 8) group /= 2;
    return group;
}

// Words of all columns of a chain.
template <class T, int K>
struct words_of {
    int64_t spans, ends, nodes;
    explicit words_of(const problem<T> &p) {
        const int64_t columns = p.groups << p.shift, all = p.tiles * (radix >> p.shift);
        const int64_t count = (all + radix - 1) / radix * columns;
        spans = count * (K * K + K);
        ends = (count / columns + octet - 1) / octet * columns * 2;
        nodes = p.shift > 0 ? all * columns * (K * K + K) : 0;
    }
};

// Group is the most columns of a tile, 32 at most. Fills what the caller of the chain does not know.
template <class T, int K, class S, int Group>
inline sizes plan(problem<T> *p) {
    static_assert(Group <= radix, "a warp");
    p->group = group_of<T, K>(p->columns, Group);
    p->shift = 0;
    while (1 << p->shift < p->group) p->shift++;
    const int64_t each = radix >> p->shift;  // nodes of a tile
    p->groups = (p->columns + p->group - 1) / p->group;
    p->tiles = (p->length + each * S::node - 1) / (each * S::node);
    const words_of<T, K> words(*p);
    sizes s;
    s.blocks = p->tiles * p->groups;
    s.fits = s.blocks <= INT32_MAX && p->columns <= (int64_t)UINT32_MAX - radix;
    s.bytes = page + (size_t)(words.spans + words.ends + words.nodes) * sizeof(typename letter<T>::word);
    s.cleared = s.bytes;
    return s;
}

// Are all columns, `each` numbers, beside each other?
inline bool beside(int64_t each, int64_t row, int64_t part, int64_t parts, int64_t columns) {
    return columns == 1 || ((parts == 1 || part == each) && (parts == columns || row == parts * each));
}
template <class T>
inline bool aligned(const T *p, int64_t numbers) {
    return reinterpret_cast<uintptr_t>(p) % ((size_t)numbers * sizeof(T)) == 0;
}

// May numbers of a tile, `each` a step and column, go by packs, as many a lane? Where a step's are whole packs, steps
// may lie anywhere.
template <class T, class S>
inline bool by_packs(const problem<T> &p, const T *base, int each, int64_t step, int64_t row, int64_t part) {
    const int64_t across = 16 / (int64_t)sizeof(T), numbers = (int64_t)p.group * each;
    const bool steps = p.group > 1 && numbers % across == 0 ? step % across == 0 : step == numbers;
    return base && aligned(base, across) && S::items * each % across == 0 && steps &&
           beside(each, row, part, p.parts, p.columns);
}

template <class T, int K, class S>
inline void find_packs(arguments_of<T> *a) {
    const problem<T> &p = a->p;
    a->wide_a = by_packs<T, S>(p, p.a, K * K, p.a_step, p.a_row, p.a_part);
    a->wide_b = by_packs<T, S>(p, p.b, K, p.b_step, p.b_row, K);
    a->wide_z = by_packs<T, S>(p, p.z, K, p.z_step, p.z_row, K);
}

// Blocks that a device has room for at a time, or fewer where there is less work: each goes from tile to tile.
template <class T, int K, class S, bool Alone>
inline int launch(arguments_of<T> a, void *stream) {
    typedef kernel<T, K, S, Alone> k;
    const int64_t most = simt::side_by_side<k>(S::threads, a.at.bytes);
    if (most < 1) return -1;
    a.ahead = (uint32_t)((most + 1) / 2);  // half load while half wait
    return simt::launch<k>({a.work < most ? a.work : most, S::threads, a.at.bytes, false}, stream, a);
}

// Has a block of the current device room for a tile, of whatever columns? Of compute capability 7.5 none has, of 8.6
// and 8.9 for width 1 in float alone.
template <class T, int K, class S, int Group>
inline bool has_room() {
    int64_t room = 0;
    return simt::room_of_block(&room) == 0 && layout_of<T, K, S>(1).bytes <= room &&
           layout_of<T, K, S>(Group).bytes <= room;
}

// p->length and p->columns are positive. Status as simt::launch's, -1 where there would be too many tiles or columns,
// or the device has no room for a block.
template <class T, int K, class S, int Group>
inline int run(problem<T> p, void *workspace, void *stream) {
    const sizes s = stream::plan<T, K, S, Group>(&p);
    if (!s.fits) return -1;
    p.ticket = static_cast<uint32_t *>(workspace);
    const int status = simt::fill(workspace, absent, s.cleared, stream);
    if (status != 0) return status;
    arguments_of<T> a = {};
    a.p = p;
    a.at = layout_of<T, K, S>(p.group);
    a.work = s.blocks;
    a.spans = reinterpret_cast<typename letter<T>::word *>(static_cast<unsigned char *>(workspace) + page);
    const words_of<T, K> words(p);
    a.ends = a.spans + words.spans;
    a.nodes = a.ends + words.ends;
    find_packs<T, K, S>(&a);
    return p.group == 1 ? launch<T, K, S, true>(a, stream) : launch<T, K, S, false>(a, stream);
}

}  // namespace stream

}  // namespace linear

#endif
