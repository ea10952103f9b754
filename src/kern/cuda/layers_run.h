// SPDX-License-Identifier: MIT
// The launcher of layers.h, layers_norm.h, layers_two.h, layers_chunks.h and layers_shared.h: shapes of blocks,
// workspace and launches; for newton, layers_newton_run.h's.
#ifndef DPCRI_CUDA_LAYERS_RUN_H
#define DPCRI_CUDA_LAYERS_RUN_H

#include "kern/cuda/cells_run.h"
#include "kern/cuda/layers_chunks.h"
#include "kern/cuda/layers_newton_run.h"
#include "kern/cuda/layers_shared.h"
#include "kern/cuda/shapes.h"

extern template struct layers::newton_kinds<float>;
extern template struct layers::newton_kinds<double>;

namespace layers {

using shapes::blocks_of;

inline bool overlaps(const dpcri_device_cell &c) { return c.way == DPCRI_DEVICE_OVERLAP; }
inline bool sweeps(const dpcri_device_cell &c) { return c.way == DPCRI_DEVICE_NEWTON; }

// A stack of layers has few rows up to here, of which each goes alone; with many, two warps share a tile.
constexpr int64_t few_rows = 32, many_rows = 1024;

template <class T>
problem<T> problem_of(const dpcri_device_cell &c) {
    problem<T> p = {};
    p.c = cells::problem_of<T>(c, (int)c.w);
    p.w = c.w;
    p.inner = c.hidden > 0 ? c.hidden : c.w;
    p.sharers = 1;
    p.two = c.hidden > 0;
    p.weight2 = static_cast<const T *>(c.weight2);
    p.x2 = static_cast<const T *>(c.x2);
    p.direct = static_cast<const T *>(c.direct);
    p.direct_step = c.direct_step;
    p.direct_row = c.direct_row;
    p.adjoint = static_cast<T *>(c.adjoint);
    p.adjoint_step = c.adjoint_step;
    p.adjoint_row = c.adjoint_row;
    p.first = static_cast<T *>(c.z0_adjoint);
    p.first_row = c.z0_adjoint_row;
    p.gamma = static_cast<const T *>(c.gamma);
    p.beta = static_cast<const T *>(c.beta);
    return p;
}

// ---- the stack itself ----

// Threads that fetch tiles, two or more times 16 bytes each.
template <class T>
int fetchers_of(const problem<T> &p) {
    const int64_t each = 2 * simt::wide<T>, wanted = gates::tiles(p.units * (int64_t)p.depth, each);
    const int64_t whole = gates::tiles(wanted, simt::warp_size) * simt::warp_size;
    return (int)(whole < most_threads ? whole : most_threads);
}

// Buffers of tiles: 64 KB of them, or what there is room for. Ways that settle ask for what that takes one tile ahead.
template <class T, class Way>
void plan_stages(int64_t room, problem<T> *p) {
    const int64_t bytes = (p->tile + p->own) * (int64_t)sizeof(T), some = ring_bytes / bytes;
    p->stages = Way::settles ? 2 : some < 3 ? 3 : some > 8 ? 8 : (int)some;
    while (p->stages > 2 && shared_numbers<T, Way>(*p) * (int64_t)sizeof(T) > room) p->stages--;
}

// What follows from units and depth.
template <class Way, class T>
void plan_room(problem<T> *p) {
    const int numbers = stride_of(*p) * (p->along ? p->units : p->depth);
    const int rows = (p->group + p->row_warps - 1) / p->row_warps;  // of a thread
    p->tile = (numbers + simt::wide<T> - 1) / simt::wide<T> * simt::wide<T>;
    p->own = rows * makers(*p) * Way::fields;
}

// How a tile of p->units lies, and how deep it is: a multiple of 16 bytes.
template <class Way, class T>
void plan_tile(int64_t bytes, int64_t widest, problem<T> *p) {
    const int64_t V = simt::wide<T>, depth = bytes / (int64_t)sizeof(T) / p->units / V * V;
    const int64_t enough = gates::tiles(widest, V) * V;
    p->along = Way::along(*p);
    p->vectors = p->w % V == 0 && p->inner % V == 0;
    p->depth = (int)(depth < enough ? depth : enough);
    plan_room<Way>(p);
}

// Can a layer be one tile, which others than those that make units fetch?
template <class T, class Way>
bool can_be_narrow(const problem<T> &p) {
    return !Way::settles && !Way::two && p.vectors && p.w <= p.units && makers(p) + simt::warp_size <= most_threads &&
           p.c.weight_step % simt::wide<T> == 0 && (uintptr_t)p.c.weight % 16 == 0;
}

// As many warps as the width keeps busy, along the units first; the tile is as deep as its bytes allow, or, where three
// of such fit on chip, a whole layer.
template <class T, int M, class Way>
simt::shape shape_of(int row_warps, int64_t room, problem<T> *p) {
    const int64_t widest = p->w > p->inner ? p->w : p->inner, size = (int64_t)sizeof(T);
    const int64_t wide = gates::tiles(widest, simt::warp_size), most = most_threads / simt::warp_size / row_warps;
    const int64_t unit_warps = wide < most ? wide : most;
    p->row_warps = row_warps;
    p->group = M * row_warps;
    p->units = (int)unit_warps * simt::warp_size;
    plan_tile<Way>(tile_bytes, widest, p);
    if (can_be_narrow<T, Way>(*p) && p->depth < p->w) {
        problem<T> q = *p;
        plan_tile<Way>(q.w * q.units * size, widest, &q);
        plan_stages<T, Way>(room, &q);
        if (q.stages > 2 && shared_numbers<T, Way>(q) * size <= room) *p = q;
    }
    plan_stages<T, Way>(room, p);
    p->narrow = can_be_narrow<T, Way>(*p) && p->w <= p->depth;
    const int fetchers = fetchers_of(*p), makes = makers(*p), room_of_threads = most_threads - makes;
    const int threads = p->narrow          ? makes + (fetchers < room_of_threads ? fetchers : room_of_threads)
                        : fetchers > makes ? fetchers
                                           : makes;
    const int64_t groups = gates::tiles(p->c.columns, p->group);
    return {blocks_of(groups), threads, shared_numbers<T, Way>(*p) * size, false};
}

// Rows that go side by side in a block of a narrow stack, a warp or two each: a thread's rows follow one another, and
// the warps' do not. `items`: rows of all that goes side by side, of which a block has as many as leave the device
// busy.
template <class T>
int rows_beside(const problem<T> &p, int64_t items) {
    constexpr int64_t busy = 264;  // two blocks for each multiprocessor of a large device
    const int64_t most = p.w <= simt::warp_size ? 4 : p.w <= 2 * simt::warp_size ? 2 : 1, wanted = items / busy;
    return (int)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}
// Whether the stack is a narrow one of few rows, which may go `times` times side by side; its shape.
template <class T, class Way>
bool shape_narrow(int64_t room, int64_t times, simt::shape *s, problem<T> *p) {
    const int64_t rows = p->c.columns;
    if (rows > many_rows || (p->w > 2 * simt::warp_size && rows > few_rows)) return false;
    problem<T> q = *p;
    *s = shape_of<T, 1, Way>(rows_beside(q, rows * times), room, &q);
    if (!q.narrow || s->shared_bytes > room) return false;
    *p = q;
    return true;
}

// The shape of a launch of rows that may go `times` times side by side, and how many a thread has, 1 or 4; 0: it does
// not fit. Wide rows go alone where four of them do not fit on chip.
template <class T, class Way>
int choose_stack(int64_t room, int64_t times, simt::shape *s, problem<T> *p) {
    if (shape_narrow<T, Way>(room, times, s, p)) return 1;
    if (p->c.columns > few_rows) {
        problem<T> four = *p;
        *s = shape_of<T, 4, Way>(p->c.columns > many_rows ? 2 : 1, room, &four);
        if (s->shared_bytes <= room) return *p = four, 4;
    }
    *s = shape_of<T, 1, Way>(1, room, p);
    return s->shared_bytes <= room ? 1 : 0;
}

template <class T, class Way>
int launch_stack(problem<T> p, bool launched, void *stream) {
    simt::shape s = {};
    int64_t room = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    const int rows = choose_stack<T, Way>(room, 2, &s, &p);
    if (rows == 0) return DPCRI_CUDA_WIDTH;
    if (!launched) return 0;
    return rows == 4 ? simt::launch<stack<T, 4, Way>>(s, stream, p) : simt::launch<stack<T, 1, Way>>(s, stream, p);
}

// ---- units that several blocks share ----

inline int64_t widest_of(const dpcri_device_cell &c) { return c.hidden > c.w ? c.hidden : c.w; }

// Numbers that blocks leave for each other.
template <class T>
T *exchange_of(const dpcri_device_cell &c, cells::cut *workspace) {
    return workspace->take<T>(c.share ? 2 * c.rows * widest_of(c) : 0);
}

// How many blocks share a group's units at most, none where that is less than 2, and the shape of their launch. No bit
// hangs on it.
template <class T, class Way>
int shape_shared(int64_t *sharers, simt::shape *s, problem<T> *p) {
    typedef shared_stack<T, Way> kernel;
    const int64_t widest = p->w > p->inner ? p->w : p->inner;
    int64_t room = 0;
    *sharers = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    p->row_warps = shared_rows;
    p->group = p->c.columns < shared_rows ? (int)p->c.columns : shared_rows;
    p->units = simt::warp_size;
    plan_tile<Way>(shared_tile_bytes, widest, p);
    p->stages = 2;
    while (p->depth > least_depth && shared_numbers<T, Way>(*p) * (int64_t)sizeof(T) > room)
        p->depth = p->depth / 2 / simt::wide<T> * simt::wide<T>, plan_room<Way>(p);
    *s = {0, most_threads, shared_numbers<T, Way>(*p) * (int64_t)sizeof(T), true};
    if (s->shared_bytes > room) return 0;
    const int64_t strips = gates::tiles(widest, p->units), groups = gates::tiles(p->c.columns, p->group);
    const int64_t most = simt::cooperative_blocks<kernel>(s->threads, s->shared_bytes) / groups;
    *sharers = strips < most ? strips : most;
    if (*sharers < 2) *sharers = 0;
    s->blocks = groups * *sharers;
    return 0;
}

// Shared where that is asked for and the device has room.
template <class T, class Way>
int launch_any(problem<T> p, bool launched, void *stream) {
    problem<T> q = p;
    simt::shape s = {};
    int64_t sharers = 0;
    const int status = p.exchange ? shape_shared<T, Way>(&sharers, &s, &q) : 0;
    if (status != 0) return status;
    if (sharers == 0) return launch_stack<T, Way>(p, launched, stream);
    q.sharers = (int)sharers;
    return launched ? simt::launch<shared_stack<T, Way>>(s, stream, q) : 0;
}

// ---- overlapped chunks ----

// What is cleared comes first.
template <class T>
chunked<T> chunked_of(const dpcri_device_cell &c, cells::cut *workspace, size_t *cleared) {
    chunked<T> a = {};
    a.p = problem_of<T>(c);
    a.chunk = cells::chunk_of(c);
    a.warm_up = c.warm_up > 0 ? c.warm_up : cells::usual_warm_up;
    a.chunks = shapes::over(c.length, a.chunk);
    a.counts = workspace->take<uint32_t>(cells::most_sweeps + 1);
    a.tallies = workspace->take<cells::tally>(c.rows);
    *cleared = workspace->used;
    a.starts = workspace->take<T>(a.chunks * c.rows * c.w);
    a.open = workspace->take<uint32_t>(a.chunks * c.rows);
    if (!c.outcome) a.tallies = nullptr;
    return a;
}

// -1: the device has no such launches.
template <class T, int M, class Way>
int launch_shaped_chunks(const chunked<T> &a, simt::shape s, bool launched, void *stream) {
    typedef chunks<T, M, Way> kernel;
    const int64_t room = simt::cooperative_blocks<kernel>(s.threads, s.shared_bytes);
    const int64_t items = a.chunks * gates::tiles(a.p.c.columns, a.p.group);
    if (room < 1) return -1;
    s.blocks = items < room ? items : room;
    s.cooperative = true;
    return launched ? simt::launch<kernel>(s, stream, a) : 0;
}

template <class T, class Way>
int launch_chunks(chunked<T> a, bool launched, void *stream) {
    simt::shape s = {};
    int64_t room = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    const int rows = choose_stack<T, Way>(room, a.chunks, &s, &a.p);
    if (rows == 0) return DPCRI_CUDA_WIDTH;
    return rows == 4 ? launch_shaped_chunks<T, 4, Way>(a, s, launched, stream)
                     : launch_shaped_chunks<T, 1, Way>(a, s, launched, stream);
}

template <class T>
int launch_overlap(const chunked<T> &a, bool launched, void *stream) {
    if (a.p.two)
        return a.p.gamma ? launch_chunks<T, two_onward<T, true>>(a, launched, stream)
                         : launch_chunks<T, two_onward<T, false>>(a, launched, stream);
    return a.p.gamma ? launch_chunks<T, normed_onward<T>>(a, launched, stream)
                     : launch_chunks<T, onward<T>>(a, launched, stream);
}

template <class T>
int run_overlap(const dpcri_device_cell &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    size_t cleared = 0;
    const chunked<T> a = chunked_of<T>(c, &pieces, &cleared);
    const int status = simt::clear(workspace, cleared, stream);
    return status != 0 ? status : launch_overlap(a, true, stream);
}

// ---- in order ----

// What `with` does for the way that a stack goes, forward or back: with(Way()).
template <class T, class With>
int way_onward(const problem<T> &p, const With &with) {
    if (p.two) return p.gamma ? with(two_onward<T, true>()) : with(two_onward<T, false>());
    return p.gamma ? with(normed_onward<T>()) : with(onward<T>());
}
template <class T, class With>
int way_homeward(const problem<T> &p, const With &with) {
    if (p.two) return p.gamma ? with(two_homeward<T, true>()) : with(two_homeward<T, false>());
    return p.gamma ? with(normed_homeward<T>()) : with(homeward<T>());
}

template <class T>
int launch_onward(const problem<T> &p, bool launched, void *stream) {
    return way_onward(p, [&](auto way) { return launch_any<T, decltype(way)>(p, launched, stream); });
}
template <class T>
int launch_homeward(const problem<T> &p, bool launched, void *stream) {
    return way_homeward(p, [&](auto way) { return launch_any<T, decltype(way)>(p, launched, stream); });
}

template <class T>
int run_forward(const dpcri_device_cell &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    problem<T> p = problem_of<T>(c);
    p.exchange = exchange_of<T>(c, &pieces), p.exchange_row = widest_of(c);
    if (!c.share) p.exchange = nullptr;
    const int status = c.outcome ? simt::clear(c.outcome, (size_t)c.rows * sizeof *c.outcome, stream) : 0;
    return status != 0 ? status : launch_onward<T>(p, true, stream);
}

// ---- back ----

template <class T>
struct back_space {
    T *e, *normal, *reciprocal, *value, *come, *parts;  // of one product after the other
    T *exchange;
    int64_t pieces, piece;
};

// Rows that the sums of the first product take: W's, b's, gamma's and beta's.
inline int64_t lines_of(const dpcri_device_cell &c) { return c.w + (c.gamma ? 3 : 1); }

template <class T>
back_space<T> space_of(const dpcri_device_cell &c, cells::cut *workspace) {
    back_space<T> s = {};
    const int64_t inner = c.hidden > 0 ? c.hidden : c.w, states = c.length * c.rows * inner;
    const int64_t one = c.length * lines_of(c) * inner, two = c.hidden > 0 ? c.length * (c.hidden + 1) * c.w : 0;
    s.pieces = shapes::pieces_of(c.rows, one > two ? one : two);
    s.piece = gates::tiles(gates::tiles(c.rows, s.pieces), gates::depth) * gates::depth;
    s.pieces = gates::tiles(c.rows, s.piece);
    const bool parts = c.gradients && s.pieces > 1;
    s.e = workspace->take<T>(states);
    s.normal = workspace->take<T>(c.gamma ? states : 0);
    s.reciprocal = workspace->take<T>(c.gamma ? c.length * c.rows : 0);
    s.value = workspace->take<T>(c.hidden > 0 ? states : 0);
    s.come = workspace->take<T>(c.hidden > 0 && c.gamma ? states : 0);
    s.parts = workspace->take<T>(parts ? s.pieces * (one > two ? one : two) : 0);
    s.exchange = exchange_of<T>(c, workspace);
    if (!c.share) s.exchange = nullptr;
    return s;
}

// The problem with what goes back beside the adjoints.
template <class T>
problem<T> back_problem_of(const dpcri_device_cell &c, const back_space<T> &s) {
    problem<T> p = problem_of<T>(c);
    p.e = s.e;
    p.normal = s.normal;
    p.reciprocal = s.reciprocal;
    p.value = s.value;
    p.come = c.hidden > 0 && c.gamma ? s.come : nullptr;
    p.exchange = s.exchange, p.exchange_row = widest_of(c);
    return p;
}

template <class T>
of_slopes<T> slopes_of(const problem<T> &p, bool finished) {
    using product::in_quads;
    const bool of_z = in_quads(p.c.z, p.c.z_step) && in_quads(p.c.z, p.c.z_row);
    const bool of_x = in_quads(p.c.x, p.c.x_step) && in_quads(p.c.x, p.c.x_row);
    const bool of_weight = in_quads(p.c.weight, p.c.weight_step) && in_quads(p.c.weight, p.c.in_out ? p.inner : p.w);
    const bool of_adjoint = in_quads(p.adjoint, p.adjoint_step) && in_quads(p.adjoint, p.adjoint_row);
    const bool to = in_quads(p.e, p.inner) && in_quads(p.normal, p.inner) && in_quads(p.value, p.inner);
    return {p, finished, of_z && in_quads(p.c.z0, p.c.z0_row), of_weight, told(p) ? of_z : of_x, of_adjoint, to};
}

template <class T>
int launch_slopes(const problem<T> &p, bool finished, void *stream) {
    const of_slopes<T> a = slopes_of(p, finished);
    const int status = p.c.in_out ? product::launch<slopes<T, true>, T>(p.c.columns, p.inner, p.c.length, a, stream)
                                  : product::launch<slopes<T, false>, T>(p.c.columns, p.inner, p.c.length, a, stream);
    if (status != 0 || !p.gamma) return status;
    const int64_t rows = gates::tiles(p.c.length * p.c.columns, gates::threads / simt::warp_size);
    return simt::launch<norms<T>>({blocks_of(rows), gates::threads, 0, false}, stream, p);
}

template <class Arguments>
void lie_in_quads(Arguments *a) {
    using product::in_quads;
    a->quads_z =
        in_quads(a->z.first, a->z.first_row) && in_quads(a->z.rest, a->z.step) && in_quads(a->z.rest, a->z.row);
    a->quads_e = in_quads(a->e, a->e_step) && in_quads(a->e, a->e_row);
    a->quads_to = in_quads(a->parts, a->in) && in_quads(a->parts, a->out) && in_quads(a->weight, a->p.c.weight_step);
}

// dW, db, dgamma and dbeta of the first product, and dW2 and db2.
template <class T>
typename gradients<T>::arguments sums_of(const dpcri_device_cell &c, const problem<T> &p, const back_space<T> &s) {
    typename gradients<T>::arguments a = {};
    a.p = p;
    a.in = p.w, a.out = p.inner;
    a.z = {p.c.z0, p.c.z0_row, p.c.z, p.c.z_step, p.c.z_row};
    a.e = p.e, a.e_step = p.c.columns * p.inner, a.e_row = p.inner;
    a.times = 1;
    a.lines = lines_of(c);
    a.pieces = s.pieces, a.piece = s.piece;
    a.weight = static_cast<T *>(c.weight_gradient), a.x = static_cast<T *>(c.x_gradient);
    a.gamma = static_cast<T *>(c.gamma_gradient), a.beta = static_cast<T *>(c.beta_gradient);
    a.parts = s.parts;
    lie_in_quads(&a);
    return a;
}
template <class T>
typename gradients<T>::arguments more_sums_of(const dpcri_device_cell &c, const problem<T> &p, const back_space<T> &s) {
    typename gradients<T>::arguments a = {};
    const int64_t layer = p.c.columns * p.inner;
    a.p = p;
    a.in = p.inner, a.out = p.w;
    a.z = {p.value, p.inner, p.value + layer, layer, p.inner};
    a.e = p.adjoint, a.e_step = p.adjoint_step, a.e_row = p.adjoint_row;
    a.times = p.c.residual ? p.c.scale : T(1);
    a.lines = p.inner + 1;
    a.pieces = s.pieces, a.piece = s.piece;
    a.weight = static_cast<T *>(c.weight2_gradient), a.x = static_cast<T *>(c.x2_gradient);
    a.parts = s.parts;
    lie_in_quads(&a);
    return a;
}

template <class T>
int launch_sums(const typename gradients<T>::arguments &a, void *stream) {
    const problem<T> &p = a.p;
    if (!a.weight && !a.x && !a.gamma && !a.beta) return 0;
    const bool normed = a.lines > a.in + 1;
    const int64_t times = p.c.length * a.pieces;
    int status = p.c.in_out ? product::launch<weights_back<T, true>, T>(a.in, a.out, times, a, stream)
                            : product::launch<weights_back<T, false>, T>(a.out, a.in, times, a, stream);
    const int64_t columns = p.c.length * a.pieces * gates::tiles(a.out, simt::warp_size);
    if (status == 0 && normed)
        status =
            simt::launch<scales<T>>({blocks_of(columns), gates::threads, scales<T>::shared_bytes(), false}, stream, a);
    if (status != 0 || a.pieces == 1) return status;
    const int64_t numbers = gates::tiles(p.c.length * a.lines * a.out, gates::threads);
    return simt::launch<fold<T>>({blocks_of(numbers), gates::threads, 0, false}, stream, a);
}

template <class T>
int launch_gradients(const dpcri_device_cell &c, const problem<T> &p, const back_space<T> &s, void *stream) {
    const int status = launch_sums<T>(sums_of(c, p, s), stream);
    return status == 0 && c.hidden > 0 ? launch_sums<T>(more_sums_of(c, p, s), stream) : status;
}

template <class T>
int run_back(const dpcri_device_cell &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    const back_space<T> s = space_of<T>(c, &pieces);
    const problem<T> p = back_problem_of(c, s);
    int status = launch_slopes<T>(p, false, stream);
    if (status == 0) status = launch_homeward<T>(p, true, stream);
    return status == 0 && c.gradients ? launch_gradients<T>(c, p, s, stream) : status;
}

// Not inline, for `extern`.
template <class T>
struct kinds {
    static int fits(const dpcri_device_cell &c);  // on the current device
    static int share(const dpcri_device_cell &c, int64_t *blocks, int *whole);
    static size_t workspace(const dpcri_device_cell &c);
    static int run(const dpcri_device_cell &c, void *workspace, void *stream);
    // Of chains that go back by other kernels: their parameters' gradients, from the adjoints.
    static size_t gradients_workspace(const dpcri_device_cell &c);
    static int run_gradients(const dpcri_device_cell &c, void *workspace, void *stream);
};

template <class T>
int kinds<T>::fits(const dpcri_device_cell &c) {
    const problem<T> p = problem_of<T>(c);
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    if (c.backward) return launch_homeward<T>(p, false, nullptr);
    if (sweeps(c)) return newton_kinds<T>::fits(c);
    return overlaps(c) ? launch_overlap(chunked_of<T>(c, &counted, &cleared), false, nullptr)
                       : launch_onward<T>(p, false, nullptr);
}

template <class T>
int kinds<T>::share(const dpcri_device_cell &c, int64_t *blocks, int *whole) {
    const auto ask = [&](auto way) {
        problem<T> p = problem_of<T>(c), alone = p;
        simt::shape s = {};
        int64_t room = 0;
        const int status = simt::room_of_block(&room);
        if (status != 0) return status;
        *whole = choose_stack<T, decltype(way)>(room, 2, &s, &alone) != 0 && alone.narrow;
        return shape_shared<T, decltype(way)>(blocks, &s, &p);
    };
    return c.backward ? way_homeward(problem_of<T>(c), ask) : way_onward(problem_of<T>(c), ask);
}

template <class T>
size_t kinds<T>::workspace(const dpcri_device_cell &c) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    if (c.backward) return gradients_workspace(c);
    if (sweeps(c)) return newton_kinds<T>::workspace(c);
    if (overlaps(c))
        (void)chunked_of<T>(c, &counted, &cleared);
    else
        (void)exchange_of<T>(c, &counted);
    return counted.used;
}

template <class T>
int kinds<T>::run(const dpcri_device_cell &c, void *workspace, void *stream) {
    if (c.backward) return run_back<T>(c, workspace, stream);
    if (sweeps(c)) return newton_kinds<T>::run(c, workspace, stream);
    return overlaps(c) ? run_overlap<T>(c, workspace, stream) : run_forward<T>(c, workspace, stream);
}

template <class T>
size_t kinds<T>::gradients_workspace(const dpcri_device_cell &c) {
    cells::cut counted = {nullptr, 0};
    (void)space_of<T>(c, &counted);
    return counted.used;
}

template <class T>
int kinds<T>::run_gradients(const dpcri_device_cell &c, void *workspace, void *stream) {
    cells::cut pieces = {static_cast<unsigned char *>(workspace), 0};
    const back_space<T> s = space_of<T>(c, &pieces);
    const problem<T> p = back_problem_of(c, s);
    const int status = launch_slopes<T>(p, true, stream);
    return status == 0 ? launch_gradients<T>(c, p, s, stream) : status;
}

}  // namespace layers

#endif
