// SPDX-License-Identifier: MIT
// The launcher of cells.h: workspace and launch by method and width.
#ifndef DPCRI_CUDA_CELLS_RUN_H
#define DPCRI_CUDA_CELLS_RUN_H

#include "kern/cuda/cells.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/newton.h"

namespace cells {

constexpr size_t page = 256;
constexpr int most_sweeps = 100;

inline size_t pages(size_t bytes) { return (bytes + page - 1) / page * page; }

// Pieces of a workspace, one after the other.
struct cut {
    unsigned char *base;
    size_t used;
    template <class P>
    P *take(int64_t count) {
        P *const piece = base ? reinterpret_cast<P *>(base + used) : nullptr;
        used += pages((size_t)count * sizeof(P));
        return piece;
    }
};

// A cell as the kernels see it; width K of a column.
template <class T>
problem<T> problem_of(const dpcri_device_cell &c, int k) {
    problem<T> p = {};
    p.length = c.length;
    p.parts = c.w / k;
    p.columns = c.rows * p.parts;
    p.activation = c.activation;
    p.residual = c.residual != 0;
    p.diagonal = c.diagonal != 0;
    p.in_out = c.in_out != 0;
    p.scale = (T)c.scale;
    p.weight = static_cast<const T *>(c.weight);
    p.weight_step = c.weight_step;
    p.x = static_cast<const T *>(c.x);
    p.x_step = c.x_step;
    p.x_row = c.x_row;
    p.z0 = static_cast<const T *>(c.z0);
    p.z0_row = c.z0_row;
    p.z = static_cast<T *>(c.z);
    p.z_step = c.z_step;
    p.z_row = c.z_row;
    p.atol = c.atol;
    p.rtol = c.rtol;
    p.stop = c.stop != 0;
    p.most_sweeps = c.max_sweeps > 0 ? c.max_sweeps : c.way == DPCRI_DEVICE_OVERLAP ? 3 : 16;
    if (p.most_sweeps > most_sweeps) p.most_sweeps = most_sweeps;
    p.outcome = c.outcome;
    return p;
}

// Steps of a chunk: at most all of them (length is 1 or more).
inline int64_t chunk_of(const dpcri_device_cell &c) {
    const int64_t chunk = c.chunk > 0 ? c.chunk : usual_chunk(c.length);
    return chunk < c.length ? chunk : c.length;
}

// What is cleared comes first.
template <class T, int K>
typename overlap<T, K>::arguments overlap_of(const dpcri_device_cell &c, cut *workspace, size_t *cleared) {
    typename overlap<T, K>::arguments a = {};
    a.p = problem_of<T>(c, K);
    a.chunk = chunk_of(c);
    a.warm_up = c.warm_up > 0 ? c.warm_up : usual_warm_up;
    a.chunks = (c.length + a.chunk - 1) / a.chunk;
    a.counts = workspace->take<uint32_t>(most_sweeps + 1);
    a.tallies = workspace->take<tally>(c.rows);
    *cleared = workspace->used;
    const int64_t items = a.chunks * a.p.columns;
    a.starts = workspace->take<T>(items * K);
    a.fresh = workspace->take<T>(items * K);
    a.open = workspace->take<uint32_t>(items);
    if (!c.outcome) a.tallies = nullptr;
    return a;
}

// `blocks` is how many a cooperative launch may have: as many columns go together as it has room for.
template <class T, int K, class S>
typename newton<T, K, S>::arguments newton_of(const dpcri_device_cell &c, int64_t blocks, cut *workspace,
                                              size_t *cleared) {
    typedef newton<T, K, S> k;
    typename k::arguments a = {};
    a.p = problem_of<T>(c, K);
    const int64_t tiles = (c.length + S::steps - 1) / S::steps;
    a.tiles = tiles < S::tiles ? tiles : S::tiles;
    a.together = blocks / a.tiles < a.p.columns ? blocks / a.tiles : a.p.columns;
    if (a.together < 1) a.together = 1;
    a.worst = workspace->take<uint32_t>(3 * a.together);
    a.late = workspace->take<uint32_t>(3 * a.together);
    a.open = workspace->take<uint32_t>(3);
    a.tallies = workspace->take<tally>(c.rows);
    *cleared = workspace->used;
    a.sums = workspace->take<T>(a.together * a.tiles * k::N);
    a.edges = workspace->take<T>(a.together * a.tiles * K);
    if (!c.outcome) a.tallies = nullptr;
    return a;
}

// Asks the device how many blocks it takes together.
template <class T, int K, class S>
int64_t blocks_of() {
    return simt::cooperative_blocks<newton<T, K, S>>(S::threads, newton<T, K, S>::shared_bytes());
}

template <class T, int K, class S>
size_t workspace_of(const dpcri_device_cell &c) {
    cut counted = {nullptr, 0};
    size_t cleared = 0;
    if (c.way == DPCRI_DEVICE_OVERLAP) (void)overlap_of<T, K>(c, &counted, &cleared);
    if (c.way == DPCRI_DEVICE_NEWTON) (void)newton_of<T, K, S>(c, blocks_of<T, K, S>(), &counted, &cleared);
    return counted.used;
}

template <class T, int K, class S>
dpcri_cuda_together together_of(const dpcri_device_cell &c) {
    cut counted = {nullptr, 0};
    size_t cleared = 0;
    const int64_t room = blocks_of<T, K, S>();
    return {newton_of<T, K, S>(c, room, &counted, &cleared).tiles, room};
}

// A cooperative launch of as many blocks as there is work and room for; -1: the device has no such launches.
template <class Kernel>
int launch_together(int64_t lanes, void *stream, const typename Kernel::arguments &a) {
    const int64_t wanted = (lanes + Kernel::most - 1) / Kernel::most;
    const int64_t most = simt::cooperative_blocks<Kernel>(Kernel::most, 0);
    if (most < 1) return -1;
    return simt::launch<Kernel>({wanted < most ? wanted : most, Kernel::most, 0, true}, stream, a);
}

template <class T, int K, class S>
int run_newton(const dpcri_device_cell &c, void *workspace, void *stream) {
    typedef newton<T, K, S> k;
    cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const int64_t room = blocks_of<T, K, S>();
    const typename k::arguments a = newton_of<T, K, S>(c, room, &pieces, &cleared);
    if (room < a.tiles) return -1;  // a window is the same on every device, or its bits are not
    const int status = simt::clear(workspace, cleared, stream);
    if (status != 0) return status;
    return simt::launch<k>({a.together * a.tiles, S::threads, k::shared_bytes(), true}, stream, a);
}

template <class T, int K, class S>
int run_width(const dpcri_device_cell &c, void *workspace, void *stream) {
    if (c.way == DPCRI_DEVICE_LOOP) {
        const typename loop<T, K>::arguments a = {problem_of<T>(c, K), nullptr};
        const int64_t blocks = (a.p.columns + loop<T, K>::most - 1) / loop<T, K>::most;
        const size_t bytes = (size_t)c.rows * sizeof *c.outcome;
        const int status = c.outcome ? simt::clear(c.outcome, bytes, stream) : 0;
        if (status != 0) return status;
        return simt::launch<loop<T, K>>({blocks < 65535 ? blocks : 65535, loop<T, K>::most, 0, false}, stream, a);
    }
    if (c.way == DPCRI_DEVICE_NEWTON) return run_newton<T, K, S>(c, workspace, stream);
    if (c.way != DPCRI_DEVICE_OVERLAP) return -1;
    cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const typename overlap<T, K>::arguments a = overlap_of<T, K>(c, &pieces, &cleared);
    const int status = simt::clear(workspace, cleared, stream);
    return status != 0 ? status : launch_together<overlap<T, K>>(a.chunks * a.p.columns, stream, a);
}

// By width of a column: 1, 2 or 4. Not inline, for `extern`.
template <class T>
struct widths {
    static size_t workspace(const dpcri_device_cell &c, int k);
    static int run(const dpcri_device_cell &c, int k, void *workspace, void *stream);
    static dpcri_cuda_together together(const dpcri_device_cell &c, int k);
};

template <class T>
size_t widths<T>::workspace(const dpcri_device_cell &c, int k) {
    return k == 1   ? workspace_of<T, 1, usual_span>(c)
           : k == 2 ? workspace_of<T, 2, usual_span>(c)
                    : workspace_of<T, 4, usual_span>(c);
}

template <class T>
int widths<T>::run(const dpcri_device_cell &c, int k, void *workspace, void *stream) {
    return k == 1   ? run_width<T, 1, usual_span>(c, workspace, stream)
           : k == 2 ? run_width<T, 2, usual_span>(c, workspace, stream)
                    : run_width<T, 4, usual_span>(c, workspace, stream);
}

template <class T>
dpcri_cuda_together widths<T>::together(const dpcri_device_cell &c, int k) {
    return k == 1   ? together_of<T, 1, usual_span>(c)
           : k == 2 ? together_of<T, 2, usual_span>(c)
                    : together_of<T, 4, usual_span>(c);
}

}  // namespace cells

#endif
