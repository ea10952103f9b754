// SPDX-License-Identifier: MIT
// The launcher of para.h and para_newton.h: workspace and launches.
#ifndef DPCRI_CUDA_PARA_RUN_H
#define DPCRI_CUDA_PARA_RUN_H

#include "kern/cuda/gates_run.h"
#include "kern/cuda/para_newton.h"

namespace gates {

inline bool apart(const dpcri_device_recurrent &c) { return c.gates >= DPCRI_DEVICE_PARAGRU; }

// Not inline, for `extern`.
template <class T>
struct para_kinds {
    static size_t workspace(const dpcri_device_recurrent &c);
    static int run(const dpcri_device_recurrent &c, void *workspace, void *stream);
    static dpcri_cuda_together together(const dpcri_device_recurrent &c);
};

// The layer without what a method adds.
template <class T>
para_problem<T> para_layer_of(const dpcri_device_recurrent &c) {
    para_problem<T> p = {};
    static_cast<problem<T> &>(p) = layer_of<T>(c);
    p.diagonals = static_cast<const T *>(c.w_hh);
    p.peepholes = static_cast<const T *>(c.peephole);
    p.given_row = (c.gates == DPCRI_DEVICE_MINGRU ? 2 : 3) * c.hidden;
    return p;
}

template <class T>
int launch_given(const para_problem<T> &p, void *workspace, size_t cleared, void *stream) {
    const int status = simt::clear(workspace, cleared, stream);
    return status != 0 ? status : launch_inputs<T>(p, p.given_row, nullptr, stream);
}

// ---- the loop and overlapped chunks ----

template <class T, int Kind>
para_problem<T> para_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    const bool cell = para<T, Kind>::cell;
    para_problem<T> p = para_layer_of<T>(c);
    plan_chunks<T>(c, cell ? 2 : 1, false, workspace, cleared, &p);
    const int64_t items = p.chunks * c.rows;
    p.given = workspace->take<T>(c.length * c.rows * p.given_row);
    p.states = workspace->take<T>(items * c.hidden);
    p.cells = workspace->take<T>(cell ? items * c.hidden : 0);
    return p;
}

template <class T, int Kind>
int run_para(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    typedef chunks<T, para<T, Kind>> kernel;
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const para_problem<T> p = para_of<T, Kind>(c, &pieces, &cleared);
    const int64_t room = simt::cooperative_blocks<kernel>(threads, 0);
    const int64_t wanted = tiles(p.chunks * p.rows * p.hidden, threads);
    if (room < 1) return -1;
    const int status = launch_given(p, workspace, cleared, stream);
    if (status != 0) return status;
    return simt::launch<kernel>({wanted < room ? wanted : room, threads, 0, true}, stream, p);
}

// ---- newton ----

// `blocks` is how many a cooperative launch may have: as many groups of columns go together as it has room for.
template <class T, int Kind, class S>
typename para_newton<T, Kind, S>::arguments para_newton_of(const dpcri_device_recurrent &c, int64_t blocks,
                                                           cells::cut *workspace, size_t *cleared) {
    typedef para_newton<T, Kind, S> kernel;
    const int64_t columns = c.rows * c.hidden, groups = tiles(columns, kernel::wide);
    typename kernel::arguments a = {};
    a.p = para_layer_of<T>(c);
    plan_rules<T>(c, 16, &a.p);
    a.tiles = tiles(c.length, S::steps) < S::tiles ? tiles(c.length, S::steps) : S::tiles;
    a.together = blocks / a.tiles < groups ? blocks / a.tiles : groups;
    if (a.together < 1) a.together = 1;
    const int64_t side_by_side = a.together * kernel::wide;
    a.worst = workspace->take<uint32_t>(3 * side_by_side);
    a.late = workspace->take<uint32_t>(3 * side_by_side);
    a.open = workspace->take<uint32_t>(3);
    a.p.tallies = workspace->take<cells::tally>(c.rows);
    *cleared = workspace->used;
    a.p.given = workspace->take<T>(c.length * c.rows * a.p.given_row);
    a.sums = workspace->take<T>(side_by_side * a.tiles * kernel::N);
    a.edges = workspace->take<T>(side_by_side * a.tiles * kernel::K);
    a.carry = workspace->take<T>(columns * kernel::K);
    return a;
}

template <class Kernel>
int64_t room_of() {
    return simt::cooperative_blocks<Kernel>(Kernel::most, Kernel::shared_bytes());
}

template <class T, int Kind, class S>
dpcri_cuda_together para_together_of(const dpcri_device_recurrent &c) {
    typedef para_newton<T, Kind, S> kernel;
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    const int64_t room = room_of<kernel>();
    return {para_newton_of<T, Kind, S>(c, room, &counted, &cleared).tiles, room};
}

template <class T, int Kind, class S>
int run_para_newton(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    typedef para_newton<T, Kind, S> kernel;
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const int64_t room = room_of<kernel>();
    const typename kernel::arguments a = para_newton_of<T, Kind, S>(c, room, &pieces, &cleared);
    if (room < a.tiles) return -1;  // a window is the same on every device, or its bits are not
    const int status = launch_given(a.p, workspace, cleared, stream);
    if (status != 0) return status;
    return simt::launch<kernel>({a.together * a.tiles, S::threads, kernel::shared_bytes(), true}, stream, a);
}

// ---- by kind ----

template <class T, int Kind, class S>
size_t para_workspace_of(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    if (c.way == DPCRI_DEVICE_NEWTON)
        (void)para_newton_of<T, Kind, S>(c, room_of<para_newton<T, Kind, S>>(), &counted, &cleared);
    else
        (void)para_of<T, Kind>(c, &counted, &cleared);
    return counted.used;
}

template <class T, int Kind, class S>
int para_run_of(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    return c.way == DPCRI_DEVICE_NEWTON ? run_para_newton<T, Kind, S>(c, workspace, stream)
                                        : run_para<T, Kind>(c, workspace, stream);
}

typedef slab<8, 16, 64> usual_slab;   // windows of 8192 steps
typedef slab<8, 8, 64> smaller_slab;  // of ParaLSTM, whose items are three times as large

template <class T>
size_t para_kinds<T>::workspace(const dpcri_device_recurrent &c) {
    return c.gates == DPCRI_DEVICE_PARAGRU    ? para_workspace_of<T, DPCRI_DEVICE_PARAGRU, usual_slab>(c)
           : c.gates == DPCRI_DEVICE_PARALSTM ? para_workspace_of<T, DPCRI_DEVICE_PARALSTM, smaller_slab>(c)
                                              : para_workspace_of<T, DPCRI_DEVICE_MINGRU, usual_slab>(c);
}

template <class T>
int para_kinds<T>::run(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    return c.gates == DPCRI_DEVICE_PARAGRU ? para_run_of<T, DPCRI_DEVICE_PARAGRU, usual_slab>(c, workspace, stream)
           : c.gates == DPCRI_DEVICE_PARALSTM
               ? para_run_of<T, DPCRI_DEVICE_PARALSTM, smaller_slab>(c, workspace, stream)
               : para_run_of<T, DPCRI_DEVICE_MINGRU, usual_slab>(c, workspace, stream);
}

template <class T>
dpcri_cuda_together para_kinds<T>::together(const dpcri_device_recurrent &c) {
    return c.gates == DPCRI_DEVICE_PARAGRU    ? para_together_of<T, DPCRI_DEVICE_PARAGRU, usual_slab>(c)
           : c.gates == DPCRI_DEVICE_PARALSTM ? para_together_of<T, DPCRI_DEVICE_PARALSTM, smaller_slab>(c)
                                              : para_together_of<T, DPCRI_DEVICE_MINGRU, usual_slab>(c);
}

}  // namespace gates

#endif
