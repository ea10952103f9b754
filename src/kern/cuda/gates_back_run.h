// SPDX-License-Identifier: MIT
// The launcher of gates_back.h, gates_alone_back.h, gates_kept_back.h and gates_tiles_back.h, and of gates_reset.h's
// and gates_project.h's way back: workspace and launches.
#ifndef DPCRI_CUDA_GATES_BACK_RUN_H
#define DPCRI_CUDA_GATES_BACK_RUN_H

#include "kern/cuda/gates_alone_back.h"
#include "kern/cuda/gates_kept_back.h"
#include "kern/cuda/gates_run.h"
#include "kern/cuda/gates_tiles_back.h"

namespace gates {

// Pieces of the rows that the gradients of weights, `width` columns at most, are summed in: from the shape alone.
inline int64_t pieces_of(const dpcri_device_recurrent &c, int G, int64_t width) {
    return shapes::pieces_of_few(c.length * c.rows, G * c.hidden * (width + 1));
}

// The pieces' sums onto what is there.
template <class T, class Sums>
int launch_fold(const typename Sums::arguments &a, void *stream) {
    typedef fold_many<T, Sums> many;
    const int64_t count = Sums::count(a);
    if (a.pieces > many::warps)
        return simt::launch<many>({blocks_of(tiles(count, simt::warp_size)), many::most, many::bytes(), false}, stream,
                                  a);
    return simt::launch<fold<T, Sums>>({blocks_of(tiles(count, threads)), threads, 0, false}, stream, a);
}

template <class T>
struct back_space {
    back_problem<T> b;
    T *parts;
    int64_t pieces;
    T *peepholes;  // the parts of theirs
    // Of an LSTM that projects: W_hh W_hr [4 H][H], the gradients of m [length rows][H] and of h [length rows][P].
    T *fused, *dm, *dh;
};

// The layer with its gradients, without workspace.
template <class T>
void gradients_of(const dpcri_device_recurrent &c, back_problem<T> *b) {
    b->first = static_cast<const T *>(c.dht);
    b->first_cell = static_cast<const T *>(c.dct);
    b->last = static_cast<T *>(c.dh0);
    b->last_cell = static_cast<T *>(c.dc0);
    b->p = layer_of<T>(c);
    b->h0 = static_cast<const T *>(c.h0);
    b->c0 = static_cast<const T *>(c.c0);
    b->dy = static_cast<const T *>(c.dy);
    b->dy_step = c.dy_step;
    b->dy_row = c.dy_row;
    b->dx = static_cast<T *>(c.dx);
    b->dx_step = c.dx_step;
    b->dx_row = c.dx_row;
    b->dx_adds = c.dx_adds != 0;
}

// Room for all pieces of such gradients, a bias beside each row.
template <class T>
void take_parts(const dpcri_device_recurrent &c, int G, int64_t width, cells::cut *workspace, T **parts,
                int64_t *pieces) {
    *pieces = pieces_of(c, G, width);
    *parts = workspace->take<T>(*pieces * G * c.hidden * (width + 1));
}

template <class T, int G>
back_space<T> back_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    back_space<T> space = {};
    back_problem<T> &b = space.b;
    plan_chunks<T>(c, G == 4 ? 2 : 1, true, workspace, cleared, &b);
    gradients_of<T>(c, &b);
    const int64_t steps = c.length * c.rows, items = b.chunks * c.rows, H = c.hidden;
    b.gates = workspace->take<T>(G == 1 ? 0 : steps * 4 * H);
    b.p.given = b.gates;
    b.p.given_row = 4 * H;
    b.e = workspace->take<T>(steps * taped(G) * H);
    b.columns = workspace->take<T>(2 * items * G * H);
    b.acc = workspace->take<T>(items * H);
    b.beside = workspace->take<T>(G == 1 ? 0 : items * H);
    int64_t widest = c.inputs > H ? c.inputs : H;  // of what goes into a weight
    if (c.projected > widest) widest = c.projected;
    take_parts(c, G, widest, workspace, &space.parts, &space.pieces);
    space.peepholes = workspace->take<T>(G == 4 && c.peepholes ? shapes::pieces_of_few(steps, 3 * H) * 3 * H : 0);
    space.fused = workspace->take<T>(c.projected ? 4 * H * H : 0);
    space.dm = workspace->take<T>(c.projected ? steps * H : 0);
    space.dh = workspace->take<T>(steps * c.projected);
    return space;
}

template <class T, int G>
size_t back_workspace_of(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)back_of<T, G>(c, &counted, &cleared);
    return counted.used;
}

// Do the states that went in lie in quads?
template <class T>
bool heard_in_quads(const back_problem<T> &b) {
    using product::in_quads;
    return in_quads(b.h0, b.p.heard) && in_quads(b.p.y, b.p.y_step) && in_quads(b.p.y, b.p.y_row);
}

// W_ih's, or W_hh's: rows base .. base + rows - 1.
template <class T, int G>
int launch_rows(const dpcri_device_recurrent &c, const back_space<T> &space, bool input, int64_t base, int64_t rows,
                bool reset, void *stream) {
    using product::in_quads;
    typedef weights_back<T> use;
    const back_problem<T> &b = space.b;
    const int64_t steps = c.length * c.rows, width = input ? c.inputs : b.p.heard;
    const int64_t piece = tiles(tiles(steps, space.pieces), depth) * depth;
    const bool of_x = in_quads(b.p.x, b.p.x_step) && in_quads(b.p.x, b.p.x_row);
    const typename use::task a = {b,
                                  G,
                                  input,
                                  width,
                                  tiles(steps, piece),
                                  piece,
                                  space.parts,
                                  static_cast<T *>(input ? c.dw_ih : c.dw_hh),
                                  static_cast<T *>(input ? c.db_ih : c.db_hh),
                                  base,
                                  rows,
                                  reset,
                                  in_quads(b.e, b.hidden),
                                  reset   ? in_quads(b.gates, b.p.hidden)
                                  : input ? of_x
                                          : heard_in_quads(b)};
    if (!a.weight && !a.bias) return 0;
    const int status = product::launch<use, T>(rows, width, a.pieces, a, stream);
    return status == 0 ? launch_fold<T, weights_sums<T>>(a, stream) : status;
}

template <class T, int G>
int launch_weights(const dpcri_device_recurrent &c, const back_space<T> &space, bool input, void *stream) {
    const int64_t H = c.hidden;
    if (input || !c.reset_before) return launch_rows<T, G>(c, space, input, 0, G * H, false, stream);
    const int status = launch_rows<T, G>(c, space, false, 0, 2 * H, false, stream);
    return status == 0 ? launch_rows<T, G>(c, space, false, 2 * H, H, true, stream) : status;
}

// What the gates were, made again in the place of what goes into them.
template <class T, int G>
int launch_gates(const dpcri_device_recurrent &c, const back_problem<T> &b, void *stream) {
    if constexpr (G == 3)
        if (c.reset_before) {
            const int64_t tall = tiles(c.length * c.rows, items_of_tile), wide = tiles(c.hidden, units_of_tile);
            const int64_t blocks = blocks_of(tall * wide);
            const int status =
                simt::launch<reset_values<T, false>>({blocks, threads, shared_bytes<T, 2>(), false}, stream, b);
            if (status != 0) return status;
            return simt::launch<reset_values<T, true>>({blocks, threads, shared_bytes<T, 1>(), false}, stream, b);
        }
    return product::launch<gate_values<T, G>, T>(
        c.length * c.rows, 4 * c.hidden, 1, {b, heard_in_quads(b), product::in_quads(b.p.w_hh, b.p.heard)}, stream);
}

template <class T>
int launch_peepholes(const dpcri_device_recurrent &c, const back_space<T> &space, void *stream) {
    typedef peepholes_back<T> kernel;
    const int64_t steps = c.length * c.rows, piece = tiles(steps, shapes::pieces_of_few(steps, 3 * c.hidden));
    const typename kernel::arguments a = {space.b, tiles(steps, piece), piece, space.peepholes,
                                          static_cast<T *>(c.dpeephole)};
    const int64_t units = tiles(a.pieces * c.hidden, threads);
    const int status = simt::launch<kernel>({blocks_of(units), threads, 0, false}, stream, a);
    return status == 0 ? launch_fold<T, peepholes_sums<T>>(a, stream) : status;
}

// ---- an LSTM that projects ----

// The chain that goes back: over m, with W_hh W_hr and the gradients of m.
template <class T>
int launch_before_chain(const dpcri_device_recurrent &c, const back_space<T> &space, const project_back<T> &a,
                        back_problem<T> *chain, void *stream) {
    const int64_t steps = c.length * c.rows, H = c.hidden;
    int status = launch_unproject<T>(c, 4 * H, static_cast<const T *>(c.w_hh), space.fused, stream);
    if (status == 0) status = launch_numbers<heard_given<T>>(steps * c.projected, a, stream);
    if (status == 0) status = launch_unproject<T>(c, steps, space.dh, space.dm, stream);
    chain->p.w_hh = space.fused;
    chain->dy = space.dm, chain->dy_step = c.rows * H, chain->dy_row = H;
    chain->first = nullptr, chain->last = nullptr;
    return status;
}

template <class T>
int launch_after_chain(const dpcri_device_recurrent &c, const back_space<T> &space, const project_back<T> &a,
                       void *stream) {
    typedef heard_back<T> kernel;
    const int64_t steps = c.length * c.rows, H = c.hidden;
    const int64_t products = tiles(steps + c.rows, items_of_tile) * tiles(c.projected, kernel::Q * units_of_tile);
    if (!c.dw_hr && !c.dh0) return 0;
    int status = simt::launch<kernel>({blocks_of(products), threads, shared_bytes<T, kernel::Q>(), false}, stream, a);
    if (status != 0 || !c.dw_hr) return status;
    status = launch_numbers<unprojected<T>>(steps * H, space.b, stream);
    // dW_hr as the gradient of a layer's W_ih, whose inputs are m and whose e are dh.
    dpcri_device_recurrent layer = c;
    back_space<T> of_h = space;
    layer.inputs = H, layer.hidden = c.projected, layer.dw_ih = c.dw_hr, layer.db_ih = nullptr;
    of_h.b.hidden = c.projected, of_h.b.e = space.dh;
    of_h.b.p.x = space.b.gates, of_h.b.p.x_step = c.rows * 4 * H, of_h.b.p.x_row = 4 * H;
    return status == 0 ? launch_rows<T, 1>(layer, of_h, true, 0, c.projected, false, stream) : status;
}

// gates_run.h's onward, back.
template <class T, int G>
struct homeward {
    typedef back_problem<T> arguments;
    typedef alone_backs<T, G> alone;
    typedef kept_backs<T, G> kept;
    template <class U, int Q, int I, int N>
    using tiled = tiled_backs<U, Q, I, N>;
    static constexpr bool in_lanes = false;
    static problem<T> &layer(arguments &b) { return b.p; }
    static constexpr int64_t bytes() { return shared_bytes<T, 1>(); }
};

template <class T, int G, class Step = backs<T, G>>
int back_run_of(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const back_space<T> space = back_of<T, G>(c, &pieces, &cleared);
    const back_problem<T> &b = space.b;
    if (simt::cooperative_blocks<chunks<T, Step>>(threads, shared_bytes<T, 1>()) < 1) return -1;
    int status = simt::clear(workspace, cleared, stream);
    if constexpr (G > 1) {
        if (status == 0) status = launch_inputs<T>(b.p, G * c.hidden, nullptr, stream);
        if (status == 0) status = launch_gates<T, G>(c, b, stream);
    }
    if (status != 0) return status;
    back_problem<T> chain = b;
    const project_back<T> projected = {b, b.first, space.dh, b.last};
    if (c.projected) status = launch_before_chain<T>(c, space, projected, &chain, stream);
    if (status != 0) return status;
    status = launch_chunks<T, G, Step, homeward<T, G>>(chain, c.share && !c.reset_before, stream);
    if (status == 0) status = launch_inputs_back<T>(b, G, stream);
    if (status == 0) status = launch_weights<T, G>(c, space, true, stream);
    if (status == 0) status = launch_weights<T, G>(c, space, false, stream);
    const bool peepholes = G == 4 && c.peepholes && c.dpeephole;
    if (status == 0 && peepholes) status = launch_peepholes<T>(c, space, stream);
    return status == 0 && c.projected ? launch_after_chain<T>(c, space, projected, stream) : status;
}

// By kind. Not inline, for `extern`.
template <class T>
struct back_kinds {
    static size_t workspace(const dpcri_device_recurrent &c);
    static int run(const dpcri_device_recurrent &c, void *workspace, void *stream);
    static int share(const dpcri_device_recurrent &c, int64_t *blocks);
};

template <class T>
int back_kinds<T>::share(const dpcri_device_recurrent &c, int64_t *blocks) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    back_problem<T> b = {};
    if (c.reset_before) return 0;
    plan_chunks<T>(c, 1, true, &counted, &cleared, &b);
    return c.gates == DPCRI_DEVICE_GRU    ? share_of<T, 3, homeward<T, 3>>(b, blocks)
           : c.gates == DPCRI_DEVICE_LSTM ? share_of<T, 4, homeward<T, 4>>(b, blocks)
                                          : share_of<T, 1, homeward<T, 1>>(b, blocks);
}

template <class T>
size_t back_kinds<T>::workspace(const dpcri_device_recurrent &c) {
    return c.gates == DPCRI_DEVICE_GRU    ? back_workspace_of<T, 3>(c)
           : c.gates == DPCRI_DEVICE_LSTM ? back_workspace_of<T, 4>(c)
                                          : back_workspace_of<T, 1>(c);
}

template <class T>
int back_kinds<T>::run(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    if (c.reset_before) return back_run_of<T, 3, backs_reset<T>>(c, workspace, stream);
    return c.gates == DPCRI_DEVICE_GRU    ? back_run_of<T, 3>(c, workspace, stream)
           : c.gates == DPCRI_DEVICE_LSTM ? back_run_of<T, 4>(c, workspace, stream)
                                          : back_run_of<T, 1>(c, workspace, stream);
}

}  // namespace gates

#endif
