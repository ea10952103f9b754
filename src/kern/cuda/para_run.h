// SPDX-License-Identifier: MIT
// The launcher of para.h: workspace and launches.
#ifndef DPCRI_CUDA_PARA_RUN_H
#define DPCRI_CUDA_PARA_RUN_H

#include "kern/cuda/gates_run.h"
#include "kern/cuda/para.h"

namespace gates {

inline bool apart(const dpcri_device_recurrent &c) { return c.gates >= DPCRI_DEVICE_PARAGRU; }

// Not inline, for `extern`.
template <class T>
struct para_kinds {
    static size_t workspace(const dpcri_device_recurrent &c);
    static int run(const dpcri_device_recurrent &c, void *workspace, void *stream);
};

template <class T>
para_problem<T> para_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    const bool cell = c.gates == DPCRI_DEVICE_PARALSTM;
    para_problem<T> p = {};
    static_cast<problem<T> &>(p) = layer_of<T>(c);
    plan_chunks<T>(c, cell ? 2 : 1, false, workspace, cleared, &p);
    p.stop = c.stop != 0;
    p.first = static_cast<const T *>(c.h0);
    p.first_cell = static_cast<const T *>(c.c0);
    p.last = static_cast<T *>(c.ht);
    p.last_cell = static_cast<T *>(c.ct);
    p.diagonals = static_cast<const T *>(c.w_hh);
    p.peepholes = static_cast<const T *>(c.peephole);
    const int64_t items = p.chunks * c.rows;
    p.given_row = (c.gates == DPCRI_DEVICE_MINGRU ? 2 : 3) * c.hidden;
    p.given = workspace->take<T>(c.length * c.rows * p.given_row);
    p.states = workspace->take<T>(items * c.hidden);
    p.cells = workspace->take<T>(cell ? items * c.hidden : 0);
    return p;
}

template <class T>
size_t para_kinds<T>::workspace(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)para_of<T>(c, &counted, &cleared);
    return counted.used;
}

template <class T, int Kind>
int run_para(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    typedef chunks<T, para<T, Kind>> kernel;
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const para_problem<T> p = para_of<T>(c, &pieces, &cleared);
    const int64_t room = simt::cooperative_blocks<kernel>(threads, 0);
    const int64_t wanted = tiles(p.chunks * p.rows * p.hidden, threads);
    if (room < 1) return -1;
    int status = simt::clear(workspace, cleared, stream);
    if (status == 0) status = launch_inputs<T>(p, p.given_row, nullptr, stream);
    if (status != 0) return status;
    return simt::launch<kernel>({wanted < room ? wanted : room, threads, 0, true}, stream, p);
}

template <class T>
int para_kinds<T>::run(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    return c.gates == DPCRI_DEVICE_PARAGRU    ? run_para<T, DPCRI_DEVICE_PARAGRU>(c, workspace, stream)
           : c.gates == DPCRI_DEVICE_PARALSTM ? run_para<T, DPCRI_DEVICE_PARALSTM>(c, workspace, stream)
                                              : run_para<T, DPCRI_DEVICE_MINGRU>(c, workspace, stream);
}

}  // namespace gates

#endif
