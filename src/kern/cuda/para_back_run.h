// SPDX-License-Identifier: MIT
// The launcher of para_back.h: workspace and launches.
#ifndef DPCRI_CUDA_PARA_BACK_RUN_H
#define DPCRI_CUDA_PARA_BACK_RUN_H

#include "kern/cuda/gates_back_run.h"
#include "kern/cuda/para_scan.h"

namespace gates {

template <class T>
struct para_back_space {
    para_back_problem<T> b;
    T *parts, *sums;      // of W_ih; of diagonals and peepholes
    int64_t pieces;       // of parts
    unsigned char *scan;  // after newton: linear.h's
};

// All gates of all units as one layer of that many units: what the products with W_ih know of.
inline dpcri_device_recurrent gates_as_units(dpcri_device_recurrent c, int G) {
    c.hidden *= G;
    return c;
}

template <class T, int Kind>
para_back_space<T> para_back_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    constexpr bool cell = para_backs<T, Kind>::cell;
    constexpr int G = gates_of(Kind);
    const dpcri_device_recurrent wide = gates_as_units(c, G);
    para_back_space<T> space = {};
    para_back_problem<T> &b = space.b;
    const bool scan = c.way == DPCRI_DEVICE_NEWTON;
    if (scan)
        plan_rules<T>(c, 1, &b);
    else
        plan_chunks<T>(c, cell ? 2 : 1, true, workspace, cleared, &b);
    gradients_of<T>(c, &b);
    b.diagonals = static_cast<const T *>(c.w_hh);
    b.peepholes = static_cast<const T *>(c.peephole);
    const int64_t steps = c.length * c.rows, items = b.chunks * c.rows, H = c.hidden;
    b.p.given_row = G * H;
    b.p.given = workspace->take<T>(steps * G * H);
    b.e = workspace->take<T>(steps * G * H);
    b.reset_e = workspace->take<T>(Kind == DPCRI_DEVICE_PARAGRU ? steps * H : 0);
    b.acc = workspace->take<T>(items * H);
    b.beside = workspace->take<T>(cell ? items * H : 0);
    space.scan = workspace->take<unsigned char>(scan ? (int64_t)scan_bytes<T, Kind>(c) : 0);
    take_parts(wide, 1, c.inputs, workspace, &space.parts, &space.pieces);
    const int64_t sums = diagonals_back<T, Kind>::sums * H;
    space.sums = workspace->take<T>(Kind == DPCRI_DEVICE_MINGRU ? 0 : shapes::pieces_of_few(steps, sums) * sums);
    return space;
}

template <class T, int Kind>
size_t para_back_workspace_of(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)para_back_of<T, Kind>(c, &counted, &cleared);
    return counted.used;
}

template <class T, int Kind>
int launch_diagonals(const dpcri_device_recurrent &c, const para_back_space<T> &space, void *stream) {
    typedef diagonals_back<T, Kind> kernel;
    const int64_t steps = c.length * c.rows;
    const int64_t piece = tiles(steps, shapes::pieces_of_few(steps, kernel::sums * c.hidden));
    const typename kernel::arguments a = {space.b,    tiles(steps, piece),       piece,
                                          space.sums, static_cast<T *>(c.dw_hh), static_cast<T *>(c.dpeephole)};
    if (Kind == DPCRI_DEVICE_MINGRU || (!a.diagonals && !a.peepholes)) return 0;
    const int64_t units = tiles(a.pieces * c.hidden, threads);
    const int status = simt::launch<kernel>({blocks_of(units), threads, 0, false}, stream, a);
    return status == 0 ? launch_fold<T, diagonals_sums<T, Kind>>(a, stream) : status;
}

template <class T, int Kind>
int launch_chunks(const dpcri_device_recurrent &c, const para_back_problem<T> &b, void *workspace, size_t cleared,
                  void *stream) {
    typedef chunks<T, para_backs<T, Kind>> kernel;
    const int64_t room = simt::cooperative_blocks<kernel>(threads, 0);
    const int64_t wanted = tiles(b.chunks * c.rows * c.hidden, threads);
    if (room < 1) return -1;
    const int status = simt::clear(workspace, cleared, stream);
    if (status != 0) return status;
    return simt::launch<kernel>({wanted < room ? wanted : room, threads, 0, true}, stream, b);
}

template <class T, int Kind>
int run_para_back(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    const dpcri_device_recurrent wide = gates_as_units(c, gates_of(Kind));
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const para_back_space<T> space = para_back_of<T, Kind>(c, &pieces, &cleared);
    int status = launch_inputs<T>(space.b.p, wide.hidden, nullptr, stream);
    if (status != 0) return status;
    status = c.way == DPCRI_DEVICE_NEWTON ? launch_scan<T, Kind>(c, space.b, space.scan, stream)
                                          : launch_chunks<T, Kind>(c, space.b, workspace, cleared, stream);
    back_space<T> whole = {};
    whole.b = space.b, whole.parts = space.parts, whole.pieces = space.pieces;
    whole.b.hidden = wide.hidden;
    if (status == 0) status = launch_inputs_back<T>(whole.b, 1, stream);
    if (status == 0) status = launch_weights<T, 1>(wide, whole, true, stream);
    return status == 0 ? launch_diagonals<T, Kind>(c, space, stream) : status;
}

// Not inline, for `extern`.
template <class T>
struct para_back_kinds {
    static size_t workspace(const dpcri_device_recurrent &c);
    static int run(const dpcri_device_recurrent &c, void *workspace, void *stream);
};

template <class T>
size_t para_back_kinds<T>::workspace(const dpcri_device_recurrent &c) {
    return c.gates == DPCRI_DEVICE_PARAGRU    ? para_back_workspace_of<T, DPCRI_DEVICE_PARAGRU>(c)
           : c.gates == DPCRI_DEVICE_PARALSTM ? para_back_workspace_of<T, DPCRI_DEVICE_PARALSTM>(c)
                                              : para_back_workspace_of<T, DPCRI_DEVICE_MINGRU>(c);
}

template <class T>
int para_back_kinds<T>::run(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    return c.gates == DPCRI_DEVICE_PARAGRU    ? run_para_back<T, DPCRI_DEVICE_PARAGRU>(c, workspace, stream)
           : c.gates == DPCRI_DEVICE_PARALSTM ? run_para_back<T, DPCRI_DEVICE_PARALSTM>(c, workspace, stream)
                                              : run_para_back<T, DPCRI_DEVICE_MINGRU>(c, workspace, stream);
}

}  // namespace gates

#endif
