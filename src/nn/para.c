// SPDX-License-Identifier: MIT
// Recurrent layers whose units do not mix, as chains: what they have of their own beside recurrent.c. A Jacobian is
// diagonal, or blocks of 2 x 2, so every scheme composes it at w or 2 w numbers a step, and units may be shared out
// among threads. Derivation: docs/math/recurrent.md.
#include "nn/recurrent_views.h"
#include "rt/rt.h"

enum {
    STACK_BYTES = 1 << 15,
    NO_MEMORY = DPCR_ERROR_MEMORY,
    UNITS = 64,           // least that a thread gets
    WORTH = 1 << 14,      // steps of units from which a second thread pays
    FUNCTION_FLOPS = 20,  // what a sigmoid or a tanh costs
    // Bytes of a step's states from which a share pays: two threads that write into one page, at the same step, take
    // each other's cache lines (docs/performance/recurrent.md). With a tape, and back, where units are shared too.
    STATES_APART = 2 << 10,
    TAPES_APART = 4 << 10,
    ADJOINTS_APART = 8 << 10,
    UNITS_ADJOINTS_APART = 16 << 10
};

// ---- threads ----

// A task's share is some rows, which lie side by side in memory, or, of one row, some units.
typedef struct sharing {
    const dpcri_recurrent *layer;
    const dpcri_gates_forward *forward;
    const dpcri_gates_adjoint *adjoint;
    int64_t total, rows, units;  // rows of the call; rows or units of a task
    _Atomic bool failed;
} sharing;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool forward_rows(const sharing *s, const dpcri_gates *gates, int64_t row, int64_t rows) {
    const size_t element = s->layer->kernels->element;
    dpcri_gates_forward run = *s->forward;
    dpcri_grid *const grids[] = {&run.input, &run.in, &run.states, &run.last, &run.tape};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) *grids[i] = at(*grids[i], 0, row, element);
    run.rows = rows;
    if (run.ends) run.ends += row;
    if (run.resets.at) run.resets.at += row;
    return s->layer->kernels->advance(gates, &run);
}

static bool adjoint_rows(const sharing *s, const dpcri_gates *gates, int64_t row, int64_t rows) {
    const size_t element = s->layer->kernels->element;
    dpcri_gates_adjoint run = *s->adjoint;
    dpcri_grid *const grids[] = {&run.in, &run.tape, &run.direct, &run.kept, &run.e, &run.last, &run.first_out};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) *grids[i] = at(*grids[i], 0, row, element);
    run.rows = rows;
    if (run.ends) run.ends += row;
    if (run.resets.at) run.resets.at += row;
    return s->layer->kernels->adjoint(gates, &run);
}

static void share_task(void *argument, int64_t task) {
    sharing *s = argument;
    dpcri_gates mine = s->layer->gates;
    const int64_t by_row = (s->total + s->rows - 1) / s->rows, row = task % by_row * s->rows;
    const int64_t rows = least(s->rows, s->total - row);
    mine.from = task / by_row * s->units;
    mine.to = least(mine.from + s->units, mine.width);
    if (!(s->forward ? forward_rows(s, &mine, row, rows) : adjoint_rows(s, &mine, row, rows))) s->failed = true;
}

// Whether what a task writes a step, its rows or units, lies far enough from what the others write.
static bool far_apart(const sharing *s, int64_t rows, int64_t units) {
    const dpcri_recurrent *c = s->layer;
    const int64_t bytes = rows * units * dpcri_gates_state[c->gates.kind] * (int64_t)c->kernels->element;
    if (s->forward) return bytes >= (s->forward->tape.data ? TAPES_APART : STATES_APART);
    return bytes >= (s->total > 1 ? ADJOINTS_APART : UNITS_ADJOINTS_APART);
}

// Over the threads, where nobody shares sequences or chunks out already. A unit's numbers do not depend on what runs
// beside it, so the bits do not depend on the number of threads.
static bool share(sharing *s, int64_t lanes, int64_t steps, int64_t rows) {
    const dpcri_recurrent *c = s->layer;
    const int64_t H = c->gates.width, threads = dpcr_context_threads(c->context);
    const int64_t even = (H + threads - 1) / threads, most = (even + UNITS - 1) / UNITS * UNITS;
    s->total = rows;
    const bool apart = rows > 1 ? far_apart(s, rows / threads, H) : far_apart(s, 1, most);
    const bool alone = dpcri_inside_task() || threads == 1 || lanes * steps * rows * H < WORTH || !apart;
    s->rows = alone || rows == 1 ? rows : (rows + threads - 1) / threads;
    s->units = alone || rows > 1 ? H : most;
    dpcri_parallel(c->context, (rows + s->rows - 1) / s->rows * ((H + s->units - 1) / s->units), share_task, s);
    return !s->failed;
}

bool dpcri_para_advance(const dpcri_recurrent *c, const dpcri_gates_forward *run) {
    sharing s = {.layer = c, .forward = run};
    return run->rows == 0 || share(&s, run->lanes, run->steps, run->rows);
}

bool dpcri_para_adjoint(const dpcri_recurrent *c, const dpcri_gates_adjoint *run) {
    sharing s = {.layer = c, .adjoint = run};
    return run->rows == 0 || share(&s, run->lanes, run->steps, run->rows);
}

// ---- Jacobians ----

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in_, const dpcr_array *f_,
                     const dpcr_array *a_) {
    const dpcri_recurrent *c = user;
    const size_t element = c->kernels->element;
    const dpcri_grid in = grid_of(in_), f = grid_of(f_), a = grid_of(a_);
    _Alignas(64) char stack[STACK_BYTES];
    const int64_t each = span->rows * dpcri_gates_count[c->gates.kind] * c->gates.width * (int64_t)element;
    const int64_t fit = STACK_BYTES / (each > 0 ? each : 1), block = c->given.data ? span->lanes : fit > 0 ? fit : 1;
    const size_t bytes = dpcri_recurrent_products_bytes(c, block, 1, span->rows);
    const bool small = bytes <= STACK_BYTES;
    dpcri_marks resets = c->resets;
    if (resets.at) resets.at += span->row;
    char *u = small ? stack : dpcri_alloc(c->context, bytes);
    if (!u) return NO_MEMORY;
    for (int64_t l = 0; l < span->lanes; l += block) {
        dpcr_span part = *span;
        part.first = span->first + l * span->stride;
        part.lanes = span->lanes - l < block ? span->lanes - l : block;
        c->apart->linearise(&c->gates, &(dpcri_para_linearised){.lanes = part.lanes,
                                                                .rows = part.rows,
                                                                .input = dpcri_recurrent_products(c, &part, 0, 1, u),
                                                                .in = at(in, l, 0, element),
                                                                .f = at(f, l, 0, element),
                                                                .a = at(a, l, 0, element),
                                                                .ends = c->ends ? c->ends + part.row : NULL,
                                                                .first = part.first,
                                                                .stride = part.stride,
                                                                .resets = resets});
    }
    if (!small) dpcri_free(c->context, u);
    return 0;
}

// Vectors of a step fill the pipeline by themselves where there are eight of them.
static int64_t lanes_of(const dpcri_recurrent *c) {
    const int64_t vectors = (c->gates.width + c->kernels->units - 1) / c->kernels->units;
    return vectors >= 4 ? 2 : 8 / vectors;
}

void dpcri_para_steps(const dpcri_recurrent *c, dpcr_steps *steps) {
    static const int functions[] = {[DPCRI_PARA_GRU] = 3, [DPCRI_PARA_LSTM] = 4, [DPCRI_PARA_LINEAR] = 1};
    const bool pairs = c->gates.kind == DPCRI_PARA_LSTM;
    const double H = (double)c->gates.width, gates = (double)dpcri_gates_count[c->gates.kind];
    const double products = c->ahead ? 0 : 2 * gates * H * (double)c->inputs;
    steps->jacobian = dpcr_transition_square(pairs ? DPCR_BLOCK : DPCR_DIAGONAL, steps->width, pairs ? 2 : 0);
    steps->flops = products + functions[c->gates.kind] * FUNCTION_FLOPS * H;
    steps->jacobian_flops = (pairs ? 2 * FUNCTION_FLOPS : FUNCTION_FLOPS) * H;
    steps->lanes = lanes_of(c);
    steps->linearise = linearise;
}
