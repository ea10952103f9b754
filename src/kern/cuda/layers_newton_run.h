// SPDX-License-Identifier: MIT
// The launcher of layers_newton.h: windows, chunks, shapes of blocks, workspace and launch.
#ifndef DPCRI_CUDA_LAYERS_NEWTON_RUN_H
#define DPCRI_CUDA_LAYERS_NEWTON_RUN_H

#include "kern/cuda/cells_run.h"
#include "kern/cuda/layers_newton.h"
#include "kern/cuda/shapes.h"

namespace layers {

// Numbers of all M of a row and window, and of what the rows that go together keep beside their states.
constexpr int64_t most_products = 1 << 24, most_kept = 1 << 26;
constexpr int64_t most_newton_chunk = 64, least_newton_chunk = 2;

// Steps of a chunk, and chunks of a window, and rows at a time.
struct newton_cut {
    int64_t chunk, together;
};

// As few products one after another as there may be.
inline int64_t newton_chunk(int64_t length, int64_t w) {
    int64_t chunk = least_newton_chunk;
    while (chunk < most_newton_chunk && chunk * chunk < length && (2 * chunk - 1) * w * w <= most_products) chunk *= 2;
    return chunk;
}

inline newton_cut newton_cut_of(const dpcri_device_cell &c) {
    const int64_t chunk = newton_chunk(c.length, c.w);
    const int64_t fit = most_kept / ((chunk - 1) * (c.w * c.w + c.w) + 2 * chunk * chunk * c.w);
    return {chunk, fit < 1 ? 1 : fit};
}

// A block of so many threads over products of that many rows of W a lane.
template <class T>
strip_shape strips_of(int64_t w, int threads, int most_units, int rows, int64_t tile) {
    strip_shape s = {simt::warp_size, 0, 0};
    while (s.units < most_units && s.units < threads && s.units * rows < w) s.units *= 2;
    s.column_warps = threads / s.units;
    const int64_t depth = tile / (int64_t)sizeof(T) / (rows * s.units);
    s.depth = (int)(depth < w ? depth : w);
    return s;
}
template <class T>
int64_t strip_bytes(int64_t w, const strip_shape &s, int rows, int columns) {
    newton_phase<T> p = {};
    p.w = w, p.units = s.units, p.column_warps = s.column_warps, p.depth = s.depth;
    return large::shared_numbers(p, rows, columns) * (int64_t)sizeof(T);
}

// As many threads as leave room for what stays on chip.
template <class T>
int newton_shape(newton_arguments<T> *a, int widest_block, simt::shape *shape) {
    typedef newton_stack<T> kernel;
    int64_t room = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    for (int threads = widest_block; threads >= simt::warp_size; threads /= 2)
        for (int64_t tile = 16 << 10; tile >= 4 << 10; tile /= 2) {
            a->one = strips_of<T>(a->w, threads, kernel::block, 1, tile);
            a->several = strips_of<T>(a->w, threads, 2 * simt::warp_size, kernel::rows_of_a_lane, tile);
            const int64_t one = strip_bytes<T>(a->w, a->one, 1, 1);
            const int64_t more = strip_bytes<T>(a->w, a->several, kernel::rows_of_a_lane, kernel::columns_of_a_lane);
            *shape = {0, threads, one > more ? one : more, true};
            if (shape->shared_bytes <= room) return 0;
        }
    return DPCRI_CUDA_WIDTH;
}

// What is cleared comes first.
template <class T>
newton_arguments<T> newton_of(const dpcri_device_cell &c, const newton_cut &by, cells::cut *workspace,
                              size_t *cleared) {
    newton_arguments<T> a = {};
    a.c = cells::problem_of<T>(c, (int)c.w);
    a.w = c.w;
    a.chunk = by.chunk;
    a.window = a.chunk * a.chunk < c.length ? a.chunk * a.chunk : c.length;
    a.together = by.together < c.rows ? by.together : c.rows;
    a.worst = workspace->take<uint32_t>(3 * a.together);
    a.late = workspace->take<uint32_t>(3 * a.together);
    a.open = workspace->take<uint32_t>(3);
    a.tallies = workspace->take<cells::tally>(c.rows);
    *cleared = workspace->used;
    const int64_t summaries = (shapes::over(a.window, a.chunk) - 1) * a.together;
    a.residuals = workspace->take<T>(a.window * a.together * c.w);
    a.slopes = workspace->take<T>(a.window * a.together * c.w);
    a.products = workspace->take<T>(summaries * c.w * c.w);
    a.states = workspace->take<T>(summaries * c.w);
    if (!c.outcome) a.tallies = nullptr;
    return a;
}

// -1: the device has no such launches.
template <class T>
int launch_newton(newton_arguments<T> a, int threads, bool launched, void *stream) {
    typedef newton_stack<T> kernel;
    simt::shape s = {};
    const int status = newton_shape(&a, threads, &s);
    if (status != 0) return status;
    const int64_t room = simt::cooperative_blocks<kernel>(s.threads, s.shared_bytes);
    if (room < 1) return -1;
    const int64_t steps = a.window * shapes::over(a.together, a.one.column_warps);
    const int64_t strips = a.together * shapes::over(a.w + 1, a.several.column_warps * kernel::columns_of_a_lane);
    const int64_t chunks = shapes::over(a.window, a.chunk) * strips, wanted = steps > chunks ? steps : chunks;
    s.blocks = wanted < room ? wanted : room;
    return launched ? simt::launch<kernel>(s, stream, a) : 0;
}

// Not inline, for `extern`.
template <class T>
struct newton_kinds {
    static int fits(const dpcri_device_cell &c);  // on the current device
    static size_t workspace(const dpcri_device_cell &c);
    static int run(const dpcri_device_cell &c, void *workspace, void *stream);
};

template <class T>
int newton_kinds<T>::fits(const dpcri_device_cell &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    return launch_newton(newton_of<T>(c, newton_cut_of(c), &counted, &cleared), newton_stack<T>::block, false, nullptr);
}

template <class T>
size_t newton_kinds<T>::workspace(const dpcri_device_cell &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)newton_of<T>(c, newton_cut_of(c), &counted, &cleared);
    return counted.used;
}

template <class T>
int newton_kinds<T>::run(const dpcri_device_cell &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const newton_arguments<T> a = newton_of<T>(c, newton_cut_of(c), &pieces, &cleared);
    const int status = simt::clear(workspace, cleared, stream);
    return status != 0 ? status : launch_newton(a, newton_stack<T>::block, true, stream);
}

}  // namespace layers

#endif
