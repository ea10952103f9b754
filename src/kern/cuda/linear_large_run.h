// SPDX-License-Identifier: MIT
// The launcher of linear_large.h and linear_sparse.h: shapes of blocks, workspace and launches.
#ifndef DPCRI_CUDA_LINEAR_LARGE_RUN_H
#define DPCRI_CUDA_LINEAR_LARGE_RUN_H

#include "kern/cuda/cells_run.h"
#include "kern/cuda/linear_sparse.h"
#include "kern/cuda/shapes.h"

namespace large {

constexpr int64_t wide_tile = 32 << 10, tile = 16 << 10, least_tile = 8 << 10;  // bytes

// Steps of a chunk: of chunks that are as many as long.
inline int64_t usual_chunk(int64_t length) {
    int64_t chunk = 1;
    while (chunk < (length - 1) / chunk + 1) chunk *= 2;
    return chunk;
}

// Without workspace.
template <class T>
problem<T> problem_of(const dpcri_device_linear &c) {
    problem<T> p = {};
    shapes::lay_out<T>(c, &p);
    p.w = dpcri_device_linear_mixes(&c);
    p.parts = c.w / p.w;
    const bool together = c.a_row == 0;
    p.classes = together ? p.parts : c.rows * p.parts;
    p.members = together ? c.rows : 1;
    p.a_part = p.w * p.w;
    p.chunk = c.in_order ? c.length : c.chunk > 0 ? c.chunk : usual_chunk(c.length);
    if (p.chunk > c.length) p.chunk = c.length;
    p.chunks = shapes::over(c.length, p.chunk);
    p.offsets = c.offsets;
    p.sources = c.columns;
    p.places = c.places;
    p.entries = (int)c.entries;
    p.sparse = c.structure == DPCR_CSR;
    return p;
}

// Whether sequences share A is not known where the workspace is asked for: as if they did not.
template <class T>
void take(const dpcri_device_linear &c, cells::cut *workspace, problem<T> *p) {
    const int64_t summaries = p->chunks - 1;
    p->products = workspace->take<T>(summaries * c.rows * p->parts * p->w * p->w);
    p->states = workspace->take<T>(summaries * c.rows * c.w);
}

// The chain of what the chunks make of a state.
template <class T>
problem<T> fold_of(const problem<T> &p) {
    problem<T> f = p;
    f.length = f.chunk = p.chunks - 1;
    f.chunks = 1;
    f.transposed = false;
    f.a = p.products;
    f.a_part = p.w * p.w;
    f.a_row = p.parts * f.a_part;
    f.a_step = p.classes * f.a_part;
    f.b = f.z = p.states;
    f.b_row = f.z_row = p.parts * p.w;
    f.b_step = f.z_step = sequences(p) * f.b_row;
    f.z0 = nullptr;
    f.sparse = false;
    f.products = f.states = nullptr;
    return f;
}

// Whether there is room for so many columns and a tile of so many bytes; fills what the caller of the chain does not
// know.
template <class T, int Rows, int Columns, class Way>
bool shape_of(problem<T> *p, int column_warps, int64_t tile_bytes, int64_t room, simt::shape *s) {
    const int64_t all = most_threads / simt::warp_size, wide = shapes::over(p->w, Rows * simt::warp_size);
    const int64_t most = column_warps > Rows ? all / column_warps : all / Rows;  // rows of a tile stay long
    p->column_warps = column_warps;
    p->units = (int)(wide < most ? wide : most) * simt::warp_size;
    const int64_t depth = tile_bytes / (int64_t)sizeof(T) / (Rows * p->units);
    p->depth = (int)(depth < p->w ? depth : p->w);
    const int64_t items = Way::chunks(*p) * p->classes * shapes::over(Way::columns(*p), column_warps * Columns);
    *s = {shapes::blocks_of(items), p->units * column_warps, shared_numbers(*p, Rows, Columns) * (int64_t)sizeof(T),
          false};
    return s->shared_bytes <= room;
}

// As many columns as are wanted and fit.
template <class T, int Rows, int Columns, class Way>
int launch_strips(problem<T> p, int most_warps, bool launched, void *stream) {
    int64_t room = 0;
    simt::shape s;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    for (int warps = most_warps; warps > 0; warps /= 2)
        for (int64_t bytes = Columns == 1 ? wide_tile : tile; bytes >= least_tile; bytes /= 2)
            if (shape_of<T, Rows, Columns, Way>(&p, warps, bytes, room, &s))
                return launched ? simt::launch<strips<T, Rows, Columns, Way>>(s, stream, p) : 0;
    return DPCRI_CUDA_WIDTH;
}

// The same of csr.
template <class T, int Columns, class Way>
bool shape_of_entries(problem<T> *p, int column_warps, bool staged, int64_t room, simt::shape *s) {
    const int64_t most = most_threads / simt::warp_size / column_warps, wide = shapes::over(p->w, simt::warp_size);
    p->column_warps = column_warps;
    p->units = (int)(wide < most ? wide : most) * simt::warp_size;
    p->staged = staged;
    const int64_t items = Way::chunks(*p) * p->classes * shapes::over(Way::columns(*p), column_warps * Columns);
    *s = {shapes::blocks_of(items), p->units * column_warps, shared_of_entries(*p, Columns) * (int64_t)sizeof(T),
          false};
    return s->shared_bytes <= room;
}

// The values are staged where they fit beside the columns.
template <class T, int Columns, class Way>
int launch_entries(problem<T> p, int most_warps, bool launched, void *stream) {
    int64_t room = 0;
    simt::shape s;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    for (int warps = most_warps; warps > 0; warps /= 2)
        for (int staged = 1; staged >= 0; staged--)
            if (shape_of_entries<T, Columns, Way>(&p, warps, staged != 0, room, &s))
                return launched ? simt::launch<sparse_strips<T, Columns, Way>>(s, stream, p) : 0;
    return DPCRI_CUDA_WIDTH;
}

// Sequences that share A read it together where they are four or more.
template <class T>
int launch_running(const problem<T> &p, bool launched, void *stream) {
    if (p.members >= 4) {
        const int warps = p.members >= 16 ? 4 : p.members >= 8 ? 2 : 1;
        const int status = p.sparse ? launch_entries<T, 4, running<T>>(p, warps, launched, stream)
                                    : launch_strips<T, 2, 4, running<T>>(p, warps, launched, stream);
        if (status != DPCRI_CUDA_WIDTH) return status;
    }
    if (p.sparse) return launch_entries<T, 1, running<T>>(p, 1, launched, stream);
    return launch_strips<T, 1, 1, running<T>>(p, 1, launched, stream);
}

template <class T>
int launch_reducing(const problem<T> &p, bool launched, void *stream) {
    if (p.sparse) return launch_entries<T, 4, reducing<T>>(p, 4, launched, stream);
    if (p.w <= 32) return launch_strips<T, 1, 4, reducing<T>>(p, 4, launched, stream);
    if (p.w <= 64) return launch_strips<T, 2, 4, reducing<T>>(p, 4, launched, stream);
    return launch_strips<T, 4, 4, reducing<T>>(p, 4, launched, stream);
}

// Not inline, for `extern`. length and rows are positive.
template <class T>
struct kinds {
    static int fits(const dpcri_device_linear &c);  // on the current device
    static size_t workspace(const dpcri_device_linear &c);
    static int run(const dpcri_device_linear &c, void *workspace, void *stream);
};

template <class T>
int kinds<T>::fits(const dpcri_device_linear &c) {
    const problem<T> p = problem_of<T>(c);
    int64_t numbers = 0, bytes = 0;
    if (__builtin_mul_overflow(p.w, p.w + 1, &numbers) || __builtin_mul_overflow(numbers, c.rows, &numbers) ||
        __builtin_mul_overflow(numbers, p.parts, &numbers) || __builtin_mul_overflow(numbers, p.chunks, &numbers) ||
        __builtin_mul_overflow(numbers, (int64_t)sizeof(T), &bytes))
        return DPCRI_CUDA_SIZE;
    int status = p.chunks > 1 ? launch_reducing(p, false, nullptr) : 0;
    if (status == 0 && p.chunks > 1) status = launch_running(fold_of(p), false, nullptr);
    return status == 0 ? launch_running(p, false, nullptr) : status;
}

template <class T>
size_t kinds<T>::workspace(const dpcri_device_linear &c) {
    problem<T> p = problem_of<T>(c);
    cells::cut counted = {nullptr, 0};
    take(c, &counted, &p);
    return counted.used;
}

template <class T>
int kinds<T>::run(const dpcri_device_linear &c, void *workspace, void *stream) {
    problem<T> p = problem_of<T>(c);
    if (p.chunks == 1) return launch_running(p, true, stream);
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    take(c, &pieces, &p);
    int status = launch_reducing(p, true, stream);
    if (status == 0) status = launch_running(fold_of(p), true, stream);
    return status == 0 ? launch_running(p, true, stream) : status;
}

}  // namespace large

#endif
