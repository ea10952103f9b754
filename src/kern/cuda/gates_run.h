// SPDX-License-Identifier: MIT
// The launcher of gates.h, forward, and of gates_alone.h's, gates_lanes.h's, gates_kept.h's, gates_tiles.h's,
// gates_reset.h's and gates_project.h's way forward: workspace and launches.
#ifndef DPCRI_CUDA_GATES_RUN_H
#define DPCRI_CUDA_GATES_RUN_H

#include "kern/cuda/cells_run.h"
#include "kern/cuda/gates_alone.h"
#include "kern/cuda/gates_kept.h"
#include "kern/cuda/gates_lanes.h"
#include "kern/cuda/gates_project.h"
#include "kern/cuda/gates_reset.h"
#include "kern/cuda/gates_tiles.h"
#include "kern/cuda/layers_newton_run.h"
#include "kern/cuda/shapes.h"

extern template struct cells::widths<float>;
extern template struct cells::widths<double>;
extern template struct layers::newton_kinds<float>;
extern template struct layers::newton_kinds<double>;

namespace gates {

using shapes::blocks_of;

// Steps a chunk where none are named: from length and width alone, so that bits are those of any batch, up to 512
// columns a sequence. Steps of wide layers take what their arithmetic does, so chunks grow, and fewer steps are
// warm-up, while one sequence's still fill a device.
inline int64_t usual_chunk(const dpcri_device_recurrent &c) {
    constexpr int64_t wide = 256, filled = 1 << 17;
    int64_t n = (c.length + 511) >> 9;
    if (n < 64) n = 64;
    while (c.hidden >= wide && n < c.length && c.hidden * tiles(c.length, 2 * n) >= filled) n *= 2;
    return n;
}

// Sizes, and the rules of a solve.
template <class T>
void plan_rules(const dpcri_device_recurrent &c, int usual_sweeps, chunked<T> *p) {
    p->length = c.length;
    p->rows = c.rows;
    p->hidden = c.hidden;
    p->lengths = c.packed ? c.lengths : nullptr;
    p->atol = c.atol;
    p->rtol = c.rtol;
    p->outcome = c.outcome;
    p->most_sweeps = c.max_sweeps > 0 ? c.max_sweeps : usual_sweeps;
    if (p->most_sweeps > cells::most_sweeps) p->most_sweeps = cells::most_sweeps;
}
// What chunks need besides their own; parts: state in units of H. What is cleared comes first.
template <class T>
void plan_chunks(const dpcri_device_recurrent &c, int parts, bool scaled, cells::cut *workspace, size_t *cleared,
                 chunked<T> *p) {
    plan_rules<T>(c, 3, p);
    p->chunk = c.way == DPCRI_DEVICE_LOOP ? c.length : c.chunk > 0 ? c.chunk : usual_chunk(c);
    if (p->chunk > c.length) p->chunk = c.length;
    p->warm_up = c.warm_up > 0 ? c.warm_up : cells::usual_warm_up;
    if (p->warm_up > c.length) p->warm_up = c.length;
    p->chunks = tiles(c.length, p->chunk);
    const int64_t items = p->chunks * c.rows, state = parts * c.hidden;
    p->counts = workspace->take<uint32_t>(p->most_sweeps + 1 + p->chunks);
    p->tallies = workspace->take<cells::tally>(c.rows);
    if (scaled) {
        p->scales = workspace->take<uint32_t>(c.rows);
        p->unfinished = workspace->take<uint32_t>(c.rows);
    }
    *cleared = workspace->used;
    p->starts = workspace->take<T>(items * state);
    p->ends = workspace->take<T>(items * state);
    p->open = workspace->take<uint32_t>(items);
}

// The layer as it is, without workspace.
template <class T>
problem<T> layer_of(const dpcri_device_recurrent &c) {
    problem<T> p = {};
    p.length = c.length;
    p.rows = c.rows;
    p.hidden = c.hidden;
    p.inputs = c.inputs;
    p.heard = c.projected ? c.projected : c.hidden;
    p.relu = c.gates == DPCRI_DEVICE_RNN_RELU;
    p.w_ih = static_cast<const T *>(c.w_ih);
    p.w_hh = static_cast<const T *>(c.w_hh);
    p.b_ih = static_cast<const T *>(c.b_ih);
    p.b_hh = static_cast<const T *>(c.b_hh);
    p.clip = (T)c.clip;
    p.coupled = c.coupled != 0;
    p.peephole = c.gates == DPCRI_DEVICE_LSTM && c.peepholes ? static_cast<const T *>(c.peephole) : nullptr;
    p.x = static_cast<const T *>(c.x);
    p.x_step = c.x_step;
    p.x_row = c.x_row;
    p.y = static_cast<T *>(c.y);
    p.y_step = c.y_step;
    p.y_row = c.y_row;
    p.against = c.against != 0;
    p.kept = static_cast<T *>(c.kept);
    p.lengths = c.packed ? c.lengths : nullptr;
    p.resets = c.parted ? c.resets : nullptr;
    p.stop = c.stop != 0;
    p.first = static_cast<const T *>(c.h0);
    p.first_cell = static_cast<const T *>(c.c0);
    p.last = static_cast<T *>(c.ht);
    p.last_cell = static_cast<T *>(c.ct);
    return p;
}

template <class T, int G>
problem<T> problem_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    problem<T> p = layer_of<T>(c);
    plan_chunks<T>(c, G == 4 ? 2 : 1, false, workspace, cleared, &p);
    const int64_t items = p.chunks * c.rows;
    p.given_row = G * c.hidden;
    p.given = workspace->take<T>(c.length * c.rows * p.given_row);
    p.states = workspace->take<T>(2 * items * c.hidden);
    p.cells = workspace->take<T>(G == 4 ? items * c.hidden : 0);
    p.reset = workspace->take<T>(c.reset_before ? items * c.hidden : 0);
    p.update = workspace->take<T>(c.reset_before ? items * c.hidden : 0);
    return p;
}

template <class T, int G>
size_t workspace_of(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)problem_of<T, G>(c, &counted, &cleared);
    return counted.used;
}

template <class T>
int launch_inputs(const problem<T> &p, int64_t outputs, const T *more, void *stream) {
    using product::in_quads;
    const bool quads = in_quads(p.x, p.x_step) && in_quads(p.x, p.x_row) && in_quads(p.w_ih, p.inputs);
    const typename inputs<T>::task a = {p, outputs, more, quads, in_quads(p.given, p.given_row)};
    typedef inputs_thin<T> thin;
    if (p.inputs <= thin::most_inputs && tiles(outputs, 4) <= threads) {
        const int64_t each = threads / tiles(outputs, 4);
        return simt::launch<thin>({shapes::streaming_blocks(p.length * p.rows, each), threads, 0, false}, stream, a);
    }
    return product::launch<inputs<T>, T>(p.length * p.rows, outputs, 1, a, stream);
}

// Items that a group of lanes takes one after the other, at most: beyond it they go side by side through gates.h or, of
// 32 units and more, which take them all at once on chip, gates_tiles.h.
SIMT_BOTH constexpr int64_t most_rounds(int64_t hidden) { return hidden <= simt::warp_size ? 16 : 4; }

// Blocks of `Kernel` that take items of their own with all weights, `bytes`, on chip; none where they do not fit or
// items are too many.
template <class T, class Kernel>
int shape_alone(simt::shape *s, const chunked<T> &p, int64_t bytes) {
    const int64_t items = p.chunks * p.rows, groups = threads / lanes_of_item(p.hidden);
    int64_t room = 0;
    *s = {0, threads, bytes, true};
    if (p.hidden > threads) return 0;
    const int status = simt::room_of_block(&room);
    if (status != 0 || bytes > room) return status;
    const int64_t blocks = simt::cooperative_blocks<Kernel>(threads, bytes);
    if (items <= most_rounds(p.hidden) * groups * blocks) s->blocks = items < blocks ? items : blocks;
    return 0;
}

// The ways on chip of one direction: forward's here, back's in gates_back_run.h.
template <class T, int G>
struct onward {
    typedef problem<T> arguments;
    typedef gates::alone<T, G> alone;
    typedef gates::kept<T, G> kept;
    template <class U, int Q, int I, int N>
    using tiled = gates::tiled<U, Q, I, N>;
    static constexpr bool in_lanes = most_in_lanes<T, G> > 0;  // of what goes alone
    static problem<T> &layer(arguments &a) { return a; }
    static constexpr int64_t bytes() { return shared_bytes<T, G>(); }  // of a block whose weights go past
};

// What goes on chip, one of them, or none: launches without blocks do not.
struct on_chip {
    simt::shape alone, kept;
    lanes_chosen lanes;  // in the place of `alone`, which has blocks then too
    tiles_chosen tiles;
    int64_t blocks() const { return alone.blocks > 0 ? 1 : tiles.shape.blocks + kept.blocks; }  // that share W_hh
};

// Units of a block that keeps W_hh on chip, the fewest with which all blocks go together; 0 where W_hh does not fit, or
// items are many.
template <class T, class On>
int shape_kept(simt::shape *s, typename On::arguments *a) {
    typedef typename On::kept step;
    int64_t room = 0;
    On::layer(*a).kept_units = 0;
    if (a->chunks * a->rows > most_kept_items) return 0;
    const int status = simt::room_of_block(&room);
    for (int n = 1; status == 0 && n <= 4; n *= 2) {
        const int units = step::units_of(n);
        const int64_t bytes = step::shared_bytes(*a, units), blocks = tiles(a->hidden, units);
        if (bytes > room || blocks > simt::cooperative_blocks<chunks<T, step>>(threads, bytes)) continue;
        On::layer(*a).kept_units = units;
        *s = {blocks, threads, bytes, true};
        return 0;
    }
    return status;
}

template <class T, int G, class On>
int choose_on_chip(on_chip *way, typename On::arguments *a) {
    *way = {};
    const int64_t alone = a->hidden <= threads ? On::alone::bytes(*a) : 0;  // of many units no number of 32 bits
    int status = shape_alone<T, chunks<T, typename On::alone>>(&way->alone, *a, alone);
    if constexpr (On::in_lanes)
        if (status == 0 && way->alone.blocks > 0) return choose_lanes<T, G>(*a, &way->lanes);
    if (status != 0 || way->alone.blocks > 0) return status;
    status = choose_tiles<T, On::template tiled, G>(*a, &way->tiles);
    if (status != 0 || way->tiles.shape.blocks > 0) return status;
    return shape_kept<T, On>(&way->kept, a);
}

// -1: the device has no such launches.
template <class T, int G, class Step, class On>
int launch_chunks(typename On::arguments a, bool share, void *stream) {
    typedef chunks<T, Step> kernel;
    on_chip way = {};
    const int status = share ? choose_on_chip<T, G, On>(&way, &a) : 0;
    if (status != 0) return status;
    if constexpr (On::in_lanes)
        if (way.lanes.shape.blocks > 0) return launch_lanes<T, G>(way.lanes, a, stream);
    if (way.alone.blocks > 0) return simt::launch<chunks<T, typename On::alone>>(way.alone, stream, a);
    if constexpr (sizeof(T) == 4)
        if (way.tiles.shape.blocks > 0) {
            On::layer(a).tall = way.tiles.tall;
            return launch_tiles<T, On::template tiled, G>(way.tiles, a, stream);
        }
    if (way.kept.blocks > 0) return simt::launch<chunks<T, typename On::kept>>(way.kept, stream, a);
    const int64_t room = simt::cooperative_blocks<kernel>(threads, On::bytes());
    const int64_t wanted = tiles(a.chunks * a.rows, items_of_tile) * tiles(a.hidden, units_of_tile);
    if (room < 1) return -1;
    return simt::launch<kernel>({wanted < room ? wanted : room, threads, On::bytes(), true}, stream, a);
}

// Blocks over which W_hh is spread on chip; 0: it goes past.
template <class T, int G, class On>
int share_of(typename On::arguments a, int64_t *blocks) {
    on_chip way = {};
    const int status = choose_on_chip<T, G, On>(&way, &a);
    *blocks = way.blocks();
    return status;
}

template <class T, int G, class Step = columns<T, G>>
int run_of(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const problem<T> p = problem_of<T, G>(c, &pieces, &cleared);
    if (simt::cooperative_blocks<chunks<T, Step>>(threads, shared_bytes<T, G>()) < 1) return -1;
    int status = simt::clear(workspace, cleared, stream);
    if (status == 0) status = launch_inputs<T>(p, G * p.hidden, nullptr, stream);
    if (status != 0) return status;
    return launch_chunks<T, G, Step, onward<T, G>>(p, c.share && !c.reset_before, stream);
}

// ---- an LSTM that projects ----

// A plain launch with a thread a number.
template <class Kernel>
int launch_numbers(int64_t numbers, const typename Kernel::arguments &a, void *stream) {
    return simt::launch<Kernel>({blocks_of(tiles(numbers, threads)), threads, 0, false}, stream, a);
}

template <class T>
int launch_inputs_back(const back_problem<T> &b, int G, void *stream) {
    using product::in_quads;
    if (!b.dx) return 0;
    const typename inputs_back<T>::task a = {b, G, in_quads(b.e, b.hidden), in_quads(b.p.w_ih, b.p.inputs),
                                             in_quads(b.dx, b.dx_step) && in_quads(b.dx, b.dx_row)};
    typedef inputs_back_thin<T> thin;
    const int64_t rows = b.length * b.rows;
    if (b.p.inputs <= thin::most_inputs && G * b.hidden <= thin::most_numbers)
        return simt::launch<thin>({blocks_of(tiles(rows, threads)), threads, 0, false}, stream, a);
    return product::launch<inputs_back<T>, T>(rows, b.p.inputs, 1, a, stream);
}

// to [rows][H] = from [rows][P] W_hr.
template <class T>
int launch_unproject(const dpcri_device_recurrent &c, int64_t rows, const T *from, T *to, void *stream) {
    back_problem<T> b = {};
    b.length = rows, b.rows = 1, b.hidden = c.projected, b.e = const_cast<T *>(from);
    b.p.inputs = c.hidden, b.p.w_ih = static_cast<const T *>(c.w_hr);
    b.dx = to, b.dx_step = b.dx_row = c.hidden;
    return launch_inputs_back<T>(b, 1, stream);
}

// y [length rows][P], y_row apart, = m [length rows][H] W_hr^T; both from where they lie lowest.
template <class T>
int launch_project(const dpcri_device_recurrent &c, const T *m, T *y, void *stream) {
    problem<T> p = {};
    p.length = c.length * c.rows, p.rows = 1, p.inputs = c.hidden;
    p.w_ih = static_cast<const T *>(c.w_hr);
    p.x = m, p.x_step = p.x_row = c.hidden;
    p.given = y, p.given_row = c.y_row;
    return launch_inputs<T>(p, c.projected, nullptr, stream);
}

template <class T>
struct projected_space {
    problem<T> p;    // the layer as it is
    T *fused, *raw;  // W_hh W_hr [4 H][H], m [length rows][H]
};

template <class T>
projected_space<T> projected_of(const dpcri_device_recurrent &c, cells::cut *workspace, size_t *cleared) {
    projected_space<T> s = {problem_of<T, 4>(c, workspace, cleared), nullptr, nullptr};
    s.fused = workspace->take<T>(4 * c.hidden * c.hidden);
    s.raw = workspace->take<T>(c.length * c.rows * c.hidden);
    return s;
}

template <class T>
size_t projected_workspace(const dpcri_device_recurrent &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)projected_of<T>(c, &counted, &cleared);
    return counted.used;
}

// The plain LSTM over m, which lies in time as y does.
template <class T>
problem<T> chain_of(const dpcri_device_recurrent &c, const projected_space<T> &s) {
    problem<T> p = s.p;
    const int64_t step = c.rows * c.hidden;
    p.w_hh = s.fused;
    p.y = c.y_step < 0 ? s.raw + (c.length - 1) * step : s.raw;
    p.y_step = c.y_step < 0 ? -step : step;
    p.y_row = c.hidden;
    p.first = nullptr, p.last = nullptr;
    return p;
}

template <class T>
int run_projected(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const projected_space<T> s = projected_of<T>(c, &pieces, &cleared);
    const problem<T> &p = s.p;
    if (simt::cooperative_blocks<chunks<T, columns<T, 4>>>(threads, shared_bytes<T, 4>()) < 1) return -1;
    int status = simt::clear(workspace, cleared, stream);
    if (status == 0) status = launch_unproject<T>(c, 4 * c.hidden, p.w_hh, s.fused, stream);
    if (status == 0) status = launch_inputs<T>(p, 4 * p.hidden, nullptr, stream);
    if (status == 0 && p.first) status = launch_numbers<first_given<T>>(p.rows * 4 * p.hidden, {p, p.first}, stream);
    if (status != 0) return status;
    status = launch_chunks<T, 4, columns<T, 4>, onward<T, 4>>(chain_of<T>(c, s), c.share, stream);
    T *const lowest = p.y_step < 0 ? p.y + (c.length - 1) * p.y_step : p.y;
    if (status == 0) status = launch_project<T>(c, s.raw, lowest, stream);
    if (status != 0 || !p.last) return status;
    return launch_numbers<last_heard<T>>(p.rows * p.heard, {p, p.first, p.last}, stream);
}

// ---- an RNN of width 1, 2 or 4, and a wide one by newton: the cells' kernels, over W_ih x + b_ih + b_hh ----

inline bool is_cell(const dpcri_device_recurrent &c) {
    return c.gates <= DPCRI_DEVICE_RNN_RELU && !c.packed && !c.parted && !(c.clip > 0);
}
inline bool narrow(const dpcri_device_recurrent &c) {
    return is_cell(c) && (c.hidden == 1 || c.hidden == 2 || c.hidden == 4);
}
inline bool by_cells(const dpcri_device_recurrent &c) {
    return narrow(c) || (is_cell(c) && c.way == DPCRI_DEVICE_NEWTON);
}

// ht = y of the last step.
template <class T>
struct last_states {
    typedef problem<T> arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &p) {
        for (int64_t n = me.block() * threads + me.thread(); n < p.rows * p.hidden; n += me.blocks() * threads)
            p.last[n] = p.y[(p.length - 1) * p.y_step + n / p.hidden * p.y_row + n % p.hidden];
    }
};

template <class T>
dpcri_device_cell cell_of(const dpcri_device_recurrent &c, T *given) {
    dpcri_device_cell cell = {};
    cell.dtype = c.dtype;
    cell.activation = c.gates == DPCRI_DEVICE_RNN_RELU ? DPCRI_CUDA_RELU : DPCRI_CUDA_TANH;
    cell.length = c.length;
    cell.rows = c.rows;
    cell.w = c.hidden;
    cell.weight = c.w_hh;
    cell.x = given;
    cell.x_step = c.rows * c.hidden;
    cell.x_row = cell.z0_row = c.hidden;
    cell.z0 = c.h0;
    cell.z = c.y;
    cell.z_step = c.y_step;
    cell.z_row = c.y_row;
    cell.way = c.way;
    cell.chunk = c.chunk;
    cell.warm_up = c.warm_up;
    cell.atol = c.atol;
    cell.rtol = c.rtol;
    cell.max_sweeps = c.max_sweeps;
    cell.stop = c.stop;
    cell.outcome = c.outcome;
    return cell;
}

template <class T>
size_t cell_given(const dpcri_device_recurrent &c) {
    return cells::pages((size_t)(c.length * c.rows * c.hidden) * sizeof(T));
}

template <class T>
size_t cell_workspace(const dpcri_device_recurrent &c) {
    const dpcri_device_cell cell = cell_of<T>(c, nullptr);
    return cell_given<T>(c) +
           (narrow(c) ? cells::widths<T>::workspace(cell, (int)c.hidden) : layers::newton_kinds<T>::workspace(cell));
}

template <class T>
int cell_fits(const dpcri_device_recurrent &c) {
    return narrow(c) ? 0 : layers::newton_kinds<T>::fits(cell_of<T>(c, nullptr));
}

template <class T>
int run_by_cells(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    cells::cut unused = {nullptr, 0};
    size_t cleared = 0;
    problem<T> p = problem_of<T, 1>(c, &unused, &cleared);
    p.given = static_cast<T *>(workspace);
    int status = cell_fits<T>(c);
    if (status == 0) status = launch_inputs<T>(p, c.hidden, p.b_hh, stream);
    void *const rest = static_cast<unsigned char *>(workspace) + cell_given<T>(c);
    const dpcri_device_cell cell = cell_of<T>(c, p.given);
    if (status == 0)
        status = narrow(c) ? cells::widths<T>::run(cell, (int)c.hidden, rest, stream)
                           : layers::newton_kinds<T>::run(cell, rest, stream);
    if (status != 0 || !p.last) return status;
    return launch_numbers<last_states<T>>(p.rows * p.hidden, p, stream);
}

// By kind. Not inline, for `extern`.
template <class T>
struct kinds {
    static int fits(const dpcri_device_recurrent &c);  // on the current device
    static size_t workspace(const dpcri_device_recurrent &c);
    static int run(const dpcri_device_recurrent &c, void *workspace, void *stream);
    static int share(const dpcri_device_recurrent &c, int64_t *blocks);
};

template <class T>
int kinds<T>::fits(const dpcri_device_recurrent &c) {
    return by_cells(c) ? cell_fits<T>(c) : 0;
}

template <class T>
int kinds<T>::share(const dpcri_device_recurrent &c, int64_t *blocks) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    if (by_cells(c) || c.reset_before) return 0;
    problem<T> p = layer_of<T>(c);
    plan_chunks<T>(c, 1, false, &counted, &cleared, &p);
    return c.gates == DPCRI_DEVICE_GRU    ? share_of<T, 3, onward<T, 3>>(p, blocks)
           : c.gates == DPCRI_DEVICE_LSTM ? share_of<T, 4, onward<T, 4>>(p, blocks)
                                          : share_of<T, 1, onward<T, 1>>(p, blocks);
}

template <class T>
size_t kinds<T>::workspace(const dpcri_device_recurrent &c) {
    if (by_cells(c)) return cell_workspace<T>(c);
    if (c.projected) return projected_workspace<T>(c);
    return c.gates == DPCRI_DEVICE_GRU    ? workspace_of<T, 3>(c)
           : c.gates == DPCRI_DEVICE_LSTM ? workspace_of<T, 4>(c)
                                          : workspace_of<T, 1>(c);
}

template <class T>
int kinds<T>::run(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    if (by_cells(c)) return run_by_cells<T>(c, workspace, stream);
    if (c.reset_before) return run_of<T, 3, columns_reset<T>>(c, workspace, stream);
    if (c.projected) return run_projected<T>(c, workspace, stream);
    return c.gates == DPCRI_DEVICE_GRU    ? run_of<T, 3>(c, workspace, stream)
           : c.gates == DPCRI_DEVICE_LSTM ? run_of<T, 4>(c, workspace, stream)
                                          : run_of<T, 1>(c, workspace, stream);
}

}  // namespace gates

#endif
