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
    while (group > direct_group<T, K> && (columns + group - 1) / group * group - columns > columns / 8) group /= 2;
    return group;
}

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
    const int lowest = each == radix ? 1 : 0;
    int64_t nodes = 0, count = (p->tiles - 1) * each;  // those to the last tile's left
    for (p->levels = 0; p->levels < lowest || (count > 0 && p->levels < levels_at_most); p->levels++, count /= radix) {
        p->level_start[p->levels] = nodes;
        if (p->levels >= lowest) nodes += count;
    }
    sizes s;
    s.blocks = p->tiles * p->groups;
    nodes *= p->groups;
    s.cleared = (((size_t)nodes + 1) * sizeof(uint32_t) + page - 1) / page * page;
    s.bytes = s.cleared + (size_t)nodes * (size_t)(p->group * (K * K + K)) * sizeof(T);
    return s;
}

// Slots of all levels; the highest may have few nodes.
template <class T>
inline int slots_of(const problem<T> &p, int lowest) {
    if (p.levels == lowest) return 0;
    const int64_t highest = (p.tiles - 1) * (radix >> p.shift) >> (p.levels - 1) * radix_log;
    return (p.levels - 1 - lowest) * most_slots + (highest < most_slots ? (int)highest : most_slots);
}

// Are all columns, `each` numbers, beside each other?
inline bool beside(int64_t each, int64_t row, int64_t part, int64_t parts, int64_t columns) {
    return columns == 1 || ((parts == 1 || part == each) && (parts == columns || row == parts * each));
}
template <class T>
inline bool aligned(const T *p, int64_t numbers) {
    return reinterpret_cast<uintptr_t>(p) % ((size_t)numbers * sizeof(T)) == 0;
}

// May a run's numbers go by packs of `numbers`?
template <class T>
inline bool wide_runs(const T *base, int64_t numbers, int64_t step, int64_t row, int64_t part) {
    return aligned(base, numbers) && step % numbers == 0 && row % numbers == 0 && part % numbers == 0;
}

template <class T, int K>
inline void find_packs(arguments_of<T> *a, bool staged) {
    const problem<T> &p = a->p;
    constexpr int across = 16 / (int)sizeof(T), E = K * K, of_a = E == 1 ? 1 : across;
    if (staged) {
        const auto flat = [&](const T *base, int each, int64_t step, int64_t row, int64_t part) {
            return p.group == p.columns && aligned(base, across) && step == (int64_t)p.group * each &&
                   beside(each, row, part, p.parts, p.columns);
        };
        a->wide_a = p.a && flat(p.a, E, p.a_step, p.a_row, p.a_part);
        a->wide_b = flat(p.b, K, p.b_step, p.b_row, K);
        a->wide_z = flat(p.z, K, p.z_step, p.z_row, K);
    } else {
        a->wide_a = wide_runs(p.a, of_a, p.a_step, p.a_row, p.a_part);
        a->wide_b = wide_runs(p.b, K, p.b_step, p.b_row, K);
        a->wide_z = wide_runs(p.z, K, p.z_step, p.z_row, K);
    }
}

template <class T, int K, class S, bool Staged>
inline int launch(const arguments_of<T> &a, int64_t blocks, void *stream) {
    const int64_t shared = layout<T, K, S>::bytes(a.p.group, a.slots);
    int64_t room = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    if (shared > room) return -1;  // more levels of nodes than 64 KB hold: above 10^8 steps of width 2 in double
    return simt::launch<kernel<T, K, S, Staged>>({blocks, S::threads, shared, false}, stream, a);
}

// p->length and p->columns are positive. Status as simt::launch's, -1 where the grid, or
// what levels of nodes take on chip, would be too large.
template <class T, int K, class S, int Group>
inline int run(problem<T> p, void *workspace, void *stream) {
    const sizes s = stream::plan<T, K, S, Group>(&p);
    if (s.blocks > INT32_MAX || p.columns > (int64_t)UINT32_MAX - radix) return -1;
    p.ticket = static_cast<uint32_t *>(workspace);
    p.flags = p.ticket + 1;
    p.nodes = reinterpret_cast<T *>(static_cast<unsigned char *>(workspace) + s.cleared);
    const int status = simt::clear(workspace, s.cleared, stream);
    if (status != 0) return status;
    arguments_of<T> a = {};
    a.p = p;
    a.lowest = p.group == 1 ? 1 : 0;
    a.slots = slots_of(p, a.lowest);
    const bool staged = p.group < direct_group<T, K>;
    find_packs<T, K>(&a, staged);
    return staged ? launch<T, K, S, true>(a, s.blocks, stream) : launch<T, K, S, false>(a, s.blocks, stream);
}

}  // namespace stream

}  // namespace linear

#endif
