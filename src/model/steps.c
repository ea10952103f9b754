// SPDX-License-Identifier: MIT
// The chain's callbacks: spans of lanes, steps and rows over the step's program. Step l's parameters begin at
// l * program.parameters of both vectors. Few rows of the fused form, and narrow ones eight at a time, go through many
// steps of a span in one call of a kernel; else a call a step, rows in blocks. A row's bits depend on neither.
#include <math.h>

#include "model/model_internal.h"
#include "nn/adjoint.h"
#include "nn/window.h"
#include "rt/cache.h"
#include "rt/core.h"

// Work buffers of one call: on its stack, or allocated where wide layers would leave too few rows a block.
enum { STACK_BYTES = 96 * 1024, BLOCK_BYTES = 16 * 1024, FEW_ROWS = 16 };  // BLOCK: of narrow states going back

typedef struct work {
    dpcr_context *context;
    unsigned char *memory;
    void *allocated;
    int64_t rows;  // a block
} work;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// `values` numbers a row. False: not even one row fits and the allocator refused.
static bool work_open(work *w, const dpcr_model *m, int64_t rows, int64_t values, unsigned char *stack) {
    const int64_t row_bytes = values * (int64_t)m->program.kernels->element;
    const int64_t fill = BLOCK_BYTES / (m->program.width * (int64_t)m->program.kernels->element);
    const int64_t wanted = smaller(rows, fill > DPCRI_PROGRAM_ROWS ? fill : DPCRI_PROGRAM_ROWS);
    *w = (work){.context = m->context, .memory = stack, .rows = smaller(wanted, STACK_BYTES / row_bytes)};
    if (rows == 0) return true;
    if (w->rows >= smaller(wanted, FEW_ROWS)) return true;
    w->allocated = dpcri_alloc(m->context, (size_t)(wanted * row_bytes));
    if (w->allocated) {
        w->memory = w->allocated;
        w->rows = wanted;
    }
    return w->rows > 0;
}

static void work_close(work *w) { dpcri_free(w->context, w->allocated); }

static const void *step_parameters(const dpcr_model *m, int64_t step) {
    return dpcri_model_at(m, m->parameters, step * m->program.parameters);
}

// Rows of an array's items at [i] or [i][j]: all but the last two dimensions indexed.
static dpcri_rows rows_at2(const dpcr_array *array, int64_t i, int64_t j, size_t element) {
    if (!array || !array->data) return (dpcri_rows){0};
    return (dpcri_rows){(char *)array->data + (i * array->strides[0] + j * array->strides[1]) * (int64_t)element,
                        array->strides[2]};
}
static dpcri_rows rows_at1(const dpcr_array *array, int64_t i, size_t element) {
    if (!array || !array->data) return (dpcri_rows){0};
    return (dpcri_rows){(char *)array->data + i * array->strides[0] * (int64_t)element, array->strides[1]};
}

static void copy_rows(const dpcr_model *m, int64_t rows, dpcri_rows from, dpcri_rows to) {
    m->program.kernels->multiply_add(rows, m->program.width, NULL, 0, 1, from.data, from.row, NULL, 0, to.data, to.row);
}

// ---- few rows, all steps in one call ----

static dpcri_grid parameter_grid(const dpcr_model *m, void *vector, const dpcr_span *span) {
    const int64_t each = m->program.parameters;
    return (dpcri_grid){dpcri_model_at(m, vector, span->first * each), span->stride * each, each, 0};
}

static bool in_one_call(const dpcri_program *p, int64_t rows) {
    return p->fused && p->width <= DPCRI_STEPS_WIDTH && (rows == 1 || rows == 2 || rows == 4 || rows == 8);
}

static dpcri_forward_steps forward_call(const dpcr_model *m, const dpcr_span *span, const dpcr_array *in,
                                        const dpcr_array *states, const dpcr_array *last, const dpcr_array *tape) {
    const dpcri_program *p = &m->program;
    return (dpcri_forward_steps){.lanes = span->lanes,
                                 .steps = span->steps,
                                 .rows = span->rows,
                                 .width = p->width,
                                 .activation = p->layers[1].activation,
                                 .residual = p->residual,
                                 .scale = p->scale,
                                 .parameters = parameter_grid(m, m->parameters, span),
                                 .in = dpcri_grid_of(in),
                                 .states = dpcri_grid_of(states),
                                 .last = dpcri_grid_of(last),
                                 .tape = dpcri_grid_of(tape)};
}

// More rows, of which calls of eight through many steps serve better than one of all a step: narrow ones, or few.
// Others gain more by what a call of all fetches ahead. By bench_train_step on a Zen 4, the more so the longer the
// chain. steps: of all lanes.
static bool by_eights(const dpcri_program *p, int64_t rows, int64_t steps) {
    enum { NARROW = 8, MOST_WIDTH = 32 };
    enum { FEW = 3584, FEW_WIDE = 2048, CACHED = 1 << 20 };  // bytes of a step's states, twice, and of all steps'
    const bool wide = dpcri_isa_level() == DPCRI_AVX512, real = p->kernels->element == sizeof(float);
    const int64_t bytes = rows * p->width * (int64_t)p->kernels->element;
    if (!p->fused || p->width > MOST_WIDTH || (wide && !real)) return false;
    return (p->width <= NARROW && real) || bytes <= (wide ? FEW_WIDE : FEW) || (!wide && bytes * steps <= CACHED);
}

// Eight rows at a time through as many steps as have their weights in the first cache. The states between those lie in
// last, or in states: one of them is there.
static void advance_by_eights(const dpcri_program *p, const dpcri_forward_steps *whole) {
    enum { CACHED = 32768, LEAST = 8 };
    const size_t element = p->kernels->element;
    const int64_t fit = CACHED / (p->parameters * (int64_t)element), block = fit < LEAST ? LEAST : fit;
    for (int64_t begin = 0; begin < whole->steps; begin += block) {
        const dpcri_grid between =
            whole->last.data ? whole->last : dpcri_grid_at(whole->states, 0, begin - 1, 0, element);
        for (int64_t row = 0, rows; row < whole->rows; row += rows) {
            const int64_t left = whole->rows - row;
            dpcri_forward_steps call = *whole;
            call.rows = rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            call.steps = smaller(block, whole->steps - begin);
            call.parameters = dpcri_grid_at(whole->parameters, 0, begin, 0, element);
            call.in = dpcri_grid_at(begin > 0 ? between : whole->in, 0, 0, row, element);
            call.states = dpcri_grid_at(whole->states, 0, begin, row, element);
            call.last = dpcri_grid_at(whole->last, 0, 0, row, element);
            call.tape = dpcri_grid_at(whole->tape, 0, begin, row, element);
            p->kernels->forward_steps(&call);
        }
    }
}

// The slopes of steps first .. first + count - 1 at the states that go in, side by side: lanes of one step.
static void slopes_of(const void *user, int64_t first, int64_t count, int64_t row, int64_t rows, dpcri_grid in,
                      dpcri_grid to) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    (void)row;
    const dpcr_span span = {.first = first, .stride = 1};
    in.lane = in.step, to.lane = to.step;
    dpcri_narrow narrow;
    if (dpcri_program_narrow(p, m->parameters, &narrow)) {
        dpcri_narrow_kernels_get(narrow.dtype)
            ->advance(&narrow, &(dpcri_narrow_run){.first = first,
                                                   .lanes = count,
                                                   .stride = 1,
                                                   .steps = 1,
                                                   .rows = rows,
                                                   .in = in.data,
                                                   .in_lane = in.lane,
                                                   .in_row = in.row,
                                                   .slopes = to.data,
                                                   .slopes_lane = to.lane,
                                                   .slopes_row = to.row});
        return;
    }
    p->kernels->forward_steps(&(dpcri_forward_steps){.lanes = count,
                                                     .steps = 1,
                                                     .rows = rows,
                                                     .width = p->width,
                                                     .activation = p->layers[1].activation,
                                                     .residual = p->residual,
                                                     .scale = p->scale,
                                                     .parameters = parameter_grid(m, m->parameters, &span),
                                                     .in = in,
                                                     .tape = to});
}

static dpcri_adjoint_steps adjoint_call(const dpcr_model *m, const dpcr_span *span, const dpcr_array *direct,
                                        const dpcr_array *last, const dpcr_array *kept, const dpcr_array *first_out) {
    return (dpcri_adjoint_steps){.lanes = span->lanes,
                                 .steps = span->steps,
                                 .rows = span->rows,
                                 .width = m->program.width,
                                 .residual = m->program.residual,
                                 .scale = m->program.scale,
                                 .parameters = parameter_grid(m, m->parameters, span),
                                 .direct = dpcri_grid_of(direct),
                                 .kept = dpcri_grid_of(kept),
                                 .last = dpcri_grid_of(last),
                                 .first_out = dpcri_grid_of(first_out)};
}

// Without a tape: a few lanes at a time, their slopes a block of steps at a time, from the right.
static void adjoint_lanes_untaped(const dpcr_model *m, const dpcr_span *span, int64_t c, int64_t lanes,
                                  const dpcri_adjoint_steps *whole, dpcri_grid in, const work *w) {
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    const int64_t state = span->rows * p->width, block = w->rows / (lanes * span->rows) - 1;
    const dpcri_grid carry = {w->memory, state, 0, p->width};
    dpcri_adjoint_steps call = *whole;
    call.lanes = lanes;
    call.last = dpcri_grid_at(whole->last, c, 0, 0, element);
    for (int64_t end = span->steps; end > 0; end -= block) {
        const int64_t begin = end > block ? end - block : 0;
        call.steps = end - begin;
        call.slope =
            (dpcri_grid){(char *)w->memory + lanes * state * (int64_t)element, call.steps * state, state, p->width};
        for (int64_t i = 0; i < lanes; i++)
            slopes_of(m, span->first + (c + i) * span->stride + begin, call.steps, 0, span->rows,
                      dpcri_grid_at(in, c + i, begin, 0, element), dpcri_grid_at(call.slope, i, 0, 0, element));
        call.parameters = dpcri_grid_at(whole->parameters, c, begin, 0, element);
        call.direct = dpcri_grid_at(whole->direct, c, begin, 0, element);
        call.kept = dpcri_grid_at(whole->kept, c, begin, 0, element);
        call.first_out = begin ? carry : dpcri_grid_at(whole->first_out, c, 0, 0, element);
        p->kernels->adjoint_steps(&call);
        call.last = carry;
    }
}

static int adjoint_in_one_call(const dpcr_model *m, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                               const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                               const dpcr_array *first_out) {
    enum { LANES = 8 };
    const dpcri_program *p = &m->program;
    dpcri_adjoint_steps call = adjoint_call(m, span, direct, last, kept, first_out);
    if (tape && tape->data) {
        call.slope = dpcri_grid_of(tape);
        if (!call.kept.data) call.e = call.slope;
        p->kernels->adjoint_steps(&call);
        return 0;
    }
    _Alignas(64) unsigned char stack[STACK_BYTES];
    const int64_t row_bytes = p->width * (int64_t)p->kernels->element;
    const work w = {.memory = stack, .rows = STACK_BYTES / row_bytes};
    const int64_t most = w.rows / (2 * span->rows), together = most < LANES ? most : LANES;
    for (int64_t c = 0; c < span->lanes; c += together)
        adjoint_lanes_untaped(m, span, c, smaller(together, span->lanes - c), &call, dpcri_grid_of(in), &w);
    return 0;
}

static int gradient_in_one_call(const dpcr_model *m, const dpcr_span *span, const dpcr_array *in,
                                const dpcr_array *tape, const dpcr_array *adjoints) {
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    const int64_t state = span->rows * p->width;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    const dpcri_grid lanes = parameter_grid(m, m->gradients, span);
    dpcri_gradient_steps whole = {.rows = span->rows, .width = p->width, .scale = p->scale};
    whole.in = dpcri_grid_of(in), whole.slope = dpcri_grid_of(tape), whole.g = dpcri_grid_of(adjoints);
    whole.in.step = whole.in.lane, whole.slope.step = whole.slope.lane, whole.g.step = whole.g.lane;
    whole.gradients = (dpcri_grid){lanes.data, 0, lanes.lane, 0};
    const bool untaped = !whole.slope.data;
    const int64_t block = untaped ? STACK_BYTES / (state * (int64_t)element) : span->lanes;
    for (int64_t first = 0; first < span->lanes; first += block) {
        dpcri_gradient_steps call = whole;
        call.steps = smaller(block, span->lanes - first);
        call.in = dpcri_grid_at(whole.in, 0, first, 0, element), call.g = dpcri_grid_at(whole.g, 0, first, 0, element);
        call.gradients = dpcri_grid_at(whole.gradients, 0, first, 0, element);
        call.slope =
            untaped ? (dpcri_grid){stack, 0, state, p->width} : dpcri_grid_at(whole.slope, 0, first, 0, element);
        if (untaped) slopes_of(m, span->first + first, call.steps, 0, span->rows, call.in, call.slope);
        p->kernels->gradient_steps(&call);
    }
    return 0;
}

// ---- any rows, a call a step ----

// Only the tape is wanted: the state is carried in the work buffer.
static int advance_tape(const dpcr_model *m, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape) {
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p) + p->width, stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r += w.rows) {
            const int64_t rows = smaller(w.rows, span->rows - r);
            const dpcri_rows state = {w.memory, p->width};
            for (int64_t k = 0; k < span->steps; k++)
                dpcri_program_forward(p, step_parameters(m, span->first + c * span->stride + k), rows,
                                      k == 0 ? dpcri_rows_at(rows_at1(in, c, element), r, 0, element) : state, state,
                                      dpcri_rows_at(rows_at2(tape, c, k, element), r, 0, element),
                                      dpcri_rows_at(state, rows, 0, element).data, NULL);
        }
    work_close(&w);
    return 0;
}

static int window(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                  dpcr_window *result) {
    const dpcr_model *m = user;
    dpcri_narrow narrow;
    if (!dpcri_program_narrow(&m->program, m->parameters, &narrow)) return 1;
    return dpcri_narrow_window(&narrow, span, in, states, result);
}

static int advance_narrow(const dpcri_narrow *narrow, const dpcr_span *span, const dpcr_array *in,
                          const dpcr_array *states, const dpcr_array *last, const dpcr_array *tape) {
    const dpcri_grid from = dpcri_grid_of(in), to = dpcri_grid_of(states), end = dpcri_grid_of(last),
                     slopes = dpcri_grid_of(tape);
    dpcri_narrow_kernels_get(narrow->dtype)
        ->advance(narrow, &(dpcri_narrow_run){.first = span->first,
                                              .lanes = span->lanes,
                                              .stride = span->stride,
                                              .steps = span->steps,
                                              .rows = span->rows,
                                              .in = from.data,
                                              .in_lane = from.lane,
                                              .in_row = from.row,
                                              .states = to.data,
                                              .states_lane = to.lane,
                                              .states_step = to.step,
                                              .states_row = to.row,
                                              .slopes = slopes.data,
                                              .slopes_lane = slopes.lane,
                                              .slopes_step = slopes.step,
                                              .slopes_row = slopes.row,
                                              .last = end.data,
                                              .last_lane = end.lane,
                                              .last_row = end.row});
    return 0;
}

static int linearise_narrow(const dpcri_narrow *narrow, const dpcr_span *span, const dpcr_array *in,
                            const dpcr_array *f, const dpcr_array *a) {
    const dpcri_grid from = dpcri_grid_of(in), to = dpcri_grid_of(f), jacobian = dpcri_grid_of(a);
    dpcri_narrow_kernels_get(narrow->dtype)
        ->linearise(narrow, &(dpcri_narrow_point){.first = span->first,
                                                  .lanes = span->lanes,
                                                  .stride = span->stride,
                                                  .rows = span->rows,
                                                  .in = from.data,
                                                  .in_lane = from.lane,
                                                  .in_row = from.row,
                                                  .f = to.data,
                                                  .f_lane = to.lane,
                                                  .f_row = to.row,
                                                  .a = jacobian.data,
                                                  .a_lane = jacobian.lane,
                                                  .a_row = jacobian.row});
    return 0;
}

// Steps outside, lanes inside: the lanes are independent, so their latencies overlap.
static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    const bool keep = states && states->data;
    dpcri_narrow narrow;
    if (dpcri_program_narrow(p, m->parameters, &narrow)) return advance_narrow(&narrow, span, in, states, last, tape);
    const dpcri_forward_steps whole = forward_call(m, span, in, states, last, tape);
    if (in_one_call(p, span->rows)) {
        p->kernels->forward_steps(&whole);
        return 0;
    }
    if (!keep && !(last && last->data)) return tape && tape->data ? advance_tape(m, span, in, tape) : 0;
    if (span->steps > 0 && by_eights(p, span->rows, span->lanes * span->steps)) {
        advance_by_eights(p, &whole);
        return 0;
    }
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p), stack)) return DPCR_ERROR_MEMORY;
    for (int64_t k = 0; k < span->steps; k++)
        for (int64_t c = 0; c < span->lanes; c++) {
            const int64_t step = span->first + c * span->stride + k;
            const dpcri_rows from = k == 0 ? rows_at1(in, c, element)
                                    : keep ? rows_at2(states, c, k - 1, element)
                                           : rows_at1(last, c, element);
            const dpcri_rows to = keep ? rows_at2(states, c, k, element) : rows_at1(last, c, element);
            const dpcri_rows slopes = rows_at2(tape, c, k, element);
            const bool more = k + 1 < span->steps;
            const dpcri_program_next next = {
                .parameters = step + 1 < m->options.layers ? step_parameters(m, step + 1) : NULL,
                .out = more && keep ? rows_at2(states, c, k + 1, element) : (dpcri_rows){0},
                .tape = more ? rows_at2(tape, c, k + 1, element) : (dpcri_rows){0}};
            // The fused layer needs no buffer but to keep a wide layer off its own input: all rows at once then.
            const bool direct = p->fused && (from.data != to.data || p->width <= p->kernels->columns);
            const int64_t block = direct ? span->rows : w.rows;
            for (int64_t r = 0; r < span->rows; r += block)
                dpcri_program_forward(p, step_parameters(m, step), smaller(block, span->rows - r),
                                      dpcri_rows_at(from, r, 0, element), dpcri_rows_at(to, r, 0, element),
                                      dpcri_rows_at(slopes, r, 0, element), w.memory, r == 0 ? &next : NULL);
        }
    for (int64_t c = 0; keep && last && last->data && c < span->lanes; c++)
        copy_rows(m, span->rows, span->steps ? rows_at2(states, c, span->steps - 1, element) : rows_at1(in, c, element),
                  rows_at1(last, c, element));
    work_close(&w);
    return 0;
}

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    dpcri_narrow narrow;
    if (dpcri_program_narrow(p, m->parameters, &narrow)) return linearise_narrow(&narrow, span, in, f, a);
    const size_t element = p->kernels->element;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    // Without the fused form a block of rows is also the block of unit vectors that is pushed through the layers.
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p), stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r += w.rows)
            dpcri_program_linearise(p, step_parameters(m, span->first + c * span->stride),
                                    smaller(w.rows, span->rows - r),
                                    dpcri_rows_at(rows_at1(in, c, element), r, 0, element),
                                    dpcri_rows_at(rows_at1(f, c, element), r, 0, element),
                                    dpcri_rows_at(rows_at1(a, c, element), r, 0, element), w.memory);
    work_close(&w);
    return 0;
}

static int jvp(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *x, const dpcr_array *y) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p), stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r += w.rows)
            dpcri_program_jvp(p, step_parameters(m, span->first + c * span->stride), smaller(w.rows, span->rows - r),
                              dpcri_rows_at(rows_at1(in, c, element), r, 0, element),
                              dpcri_rows_at(rows_at1(x, c, element), r, 0, element),
                              dpcri_rows_at(rows_at1(y, c, element), r, 0, element), w.memory);
    work_close(&w);
    return 0;
}

static dpcri_program_next what_adjoint_wants(const dpcr_model *m, int64_t first, int64_t k, int64_t c, int64_t row,
                                             const dpcr_array *tape, const dpcr_array *direct) {
    const size_t element = m->program.kernels->element;
    return (dpcri_program_next){.parameters = step_parameters(m, first + k),
                                .tape = dpcri_rows_at(rows_at2(tape, c, k, element), row, 0, element),
                                .in = dpcri_rows_at(rows_at2(direct, c, k, element), row, 0, element)};
}

// One lane: its rows in blocks, the steps from the last down.
static void adjoint_lane(const dpcr_model *m, const dpcr_span *span, int64_t c, const dpcr_array *in,
                         const dpcr_array *tape, const dpcr_array *direct, const dpcr_array *last,
                         const dpcr_array *kept, const dpcr_array *first_out, const work *w) {
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    const int64_t first = span->first + c * span->stride;
    for (int64_t r = 0; r < span->rows; r += w->rows) {
        const int64_t rows = smaller(w->rows, span->rows - r);
        const dpcri_rows g = {w->memory, p->width};
        void *scratch = dpcri_rows_at(g, rows, 0, element).data;
        copy_rows(m, rows, dpcri_rows_at(rows_at1(last, c, element), r, 0, element), g);
        const int64_t after = r + w->rows;
        for (int64_t k = span->steps - 1; k >= 0; k--) {
            dpcri_program_next next = {0};
            if (k > 0)
                next = what_adjoint_wants(m, first, k - 1, c, r, tape, direct);
            else if (after >= span->rows)  // what the first step's gradient wants
                next = (dpcri_program_next){.parameters = dpcri_model_at(m, m->gradients, first * p->parameters),
                                            .in = rows_at2(in, c, 0, element)};
            else if (after + rows <= span->rows)  // the next rows, from the last step again
                next = what_adjoint_wants(m, first, span->steps - 1, c, after, tape, direct);
            dpcri_program_adjoint(p, step_parameters(m, first + k), rows,
                                  dpcri_rows_at(rows_at2(in, c, k, element), r, 0, element),
                                  dpcri_rows_at(rows_at2(tape, c, k, element), r, 0, element),
                                  dpcri_rows_at(rows_at2(direct, c, k, element), r, 0, element),
                                  dpcri_rows_at(rows_at2(kept, c, k, element), r, 0, element), g, scratch, &next);
        }
        if (first_out && first_out->data)
            copy_rows(m, rows, g, dpcri_rows_at(rows_at1(first_out, c, element), r, 0, element));
    }
}

// Slopes are all that these kernels ask of the activation.
static bool narrow_adjoint(const dpcri_program *p, const void *parameters, dpcri_narrow *narrow) {
    dpcri_program_narrow(p, parameters, narrow);
    return p->fused && dpcri_adjoint_serves(narrow);
}

static int adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                   const dpcr_array *first_out) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    dpcri_narrow narrow;
    if (narrow_adjoint(p, m->parameters, &narrow)) {
        dpcri_narrow_adjoint(&narrow, slopes_of, m, span, in, tape, direct, last, kept, first_out);
        return 0;
    }
    if (in_one_call(p, span->rows)) return adjoint_in_one_call(m, span, in, tape, direct, last, kept, first_out);
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p) + p->width, stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++) adjoint_lane(m, span, c, in, tape, direct, last, kept, first_out, &w);
    work_close(&w);
    return 0;
}

static int adjoint_window(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                          const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                          const dpcr_array *first_out, const dpcr_handover *handover) {
    const dpcr_model *m = user;
    dpcri_narrow narrow;
    dpcri_program_narrow(&m->program, m->parameters, &narrow);
    return dpcri_narrow_adjoint_window(&narrow, slopes_of, m, span, in, tape, direct, last, kept, first_out, handover);
}

// Few rows, or any number of short ones, whose slopes are there or find room.
static bool gradients_in_one_call(const dpcri_program *p, int64_t rows, bool taped) {
    if (!p->fused || p->width > DPCRI_STEPS_WIDTH) return false;
    const bool room = taped || rows * p->width * (int64_t)p->kernels->element <= STACK_BYTES;
    return rows <= DPCRI_STEPS_ROWS || (p->width <= p->kernels->short_width && room);
}

// The step before a span's first, whose tape, of a pass that goes back window by window, lies before the span's. An
// address to be fetched and no more: there may be nothing there.
static dpcri_program_next before_steps(const dpcr_model *m, const dpcr_span *span, const dpcr_array *tape) {
    if (span->first < 2) return (dpcri_program_next){0};
    const uintptr_t step = tape ? (uintptr_t)tape->strides[0] * m->program.kernels->element : 0;
    return (dpcri_program_next){.parameters = step_parameters(m, span->first - 1),
                                .tape = tape && tape->data
                                            ? (dpcri_rows){(void *)((uintptr_t)tape->data - step), tape->strides[1]}
                                            : (dpcri_rows){0}};
}

static int gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *adjoints) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    if (gradients_in_one_call(p, span->rows, tape && tape->data))
        return gradient_in_one_call(m, span, in, tape, adjoints);
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p), stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++) {
        const int64_t step = span->first + c * span->stride;
        for (int64_t r = 0; r < span->rows; r += w.rows) {
            // the rows after these, or the next step's first ones with its gradients; after the last what the adjoint
            // loop of the steps before them wants
            const bool done = r + w.rows >= span->rows, last = done && c + 1 == span->lanes;
            const int64_t lane = done ? c + 1 : c, row = done ? 0 : r + w.rows;
            dpcri_program_next next = {
                .parameters = done ? dpcri_model_at(m, m->gradients, (step + span->stride) * p->parameters) : NULL,
                .in = dpcri_rows_at(rows_at1(in, lane, element), row, 0, element),
                .tape = dpcri_rows_at(rows_at1(tape, lane, element), row, 0, element)};
            if (last) next = before_steps(m, span, tape);
            dpcri_program_gradient(p, step_parameters(m, step), dpcri_model_at(m, m->gradients, step * p->parameters),
                                   smaller(w.rows, span->rows - r),
                                   dpcri_rows_at(rows_at1(in, c, element), r, 0, element),
                                   dpcri_rows_at(rows_at1(tape, c, element), r, 0, element),
                                   dpcri_rows_at(rows_at1(adjoints, c, element), r, 0, element), w.memory, &next);
        }
    }
    work_close(&w);
    return 0;
}

// Flops of one activation with its derivative, counted as vector operations an element.
static double activation_flops(dpcr_activation activation) {
    switch (activation) {
        case DPCR_ACT_IDENTITY: return 0;
        case DPCR_ACT_RELU: return 2;
        case DPCR_ACT_GELU: return 50;
        default: return 30;
    }
}

// Narrower vectors take so many times as long to read weights (Zen 3).
static const double longer[DPCRI_ISA_COUNT] = {3.4, 2, 1};

// What `count` weights a step make a row wait for, in floats that the third cache gives or the second one has.
static double weights_to_wait_for(const dpcr_model *m, double count) {
    const double real = (double)m->program.kernels->element / 4;
    const dpcri_slower slower = dpcri_kernels_slower();
    const bool near = (double)m->options.layers * count * 4 * real < slower.reach * (double)dpcri_cache_bytes(2);
    return count * real * longer[dpcri_isa_level()] * (near ? slower.nearer : slower.weights);
}

// To add to a step's sums takes one row as long as to go back through its weights (bench mlp --layers 1024 --width 1 to
// 64 --batch 1 to 256 --threads 1, with and without gradients, Xeon; the planner's grid on a Zen 5).
static void set_gradient_costs(const dpcr_model *m, double count, dpcr_steps *steps) {
    const double real = (double)m->program.kernels->element / 4;
    steps->gradient_latency = 1e-9 * (1.5 + 0.055 * weights_to_wait_for(m, count));
    steps->gradient_lane_seconds =
        1e-9 * real * longer[dpcri_isa_level()] * dpcri_kernels_slower().lanes * (0.6 + 0.009 * count);
}

// One row of the fused form. Measured with AVX-512 (deeppcr bench mlp --layers 1024 --threads 1, float, ReLU and tanh;
// the weights of wide layers come from L3): a chain of w fmas alone, and what lanes side by side take; bytes of weights
// beyond that.
static void set_costs(const dpcr_model *m, dpcr_steps *steps) {
    const dpcri_program *p = &m->program;
    const double w = (double)p->width, real = (double)p->kernels->element / 4;
    const dpcri_slower slower = dpcri_kernels_slower();
    const double weights = weights_to_wait_for(m, w * w);
    const double activation = p->layers[1].activation == DPCRI_ACT_RELU ? 0 : 4;
    const int64_t lane = p->kernels->columns / 2;  // numbers a vector
    steps->lanes = p->width > 2 * lane ? 2 : p->width > lane ? 4 : 8;
    steps->lane_seconds = 1e-9 * (3 + activation / 2 + 0.037 * weights);
    steps->latency = 1e-9 * fmax(slower.wide * (8 + activation + 0.95 * w), 0.04 * weights);
    // Up to a vector wide W is turned by pieces of 16 bytes, all rows of a vector or half of them; 8 and 16, whose
    // kernels know the width, take no longer than their weights do.
    const bool known = p->width == 8 || p->width == 16;
    const double pieces = ceil(w * real / 4), piece = p->width <= lane / 2 ? 4 : 6;
    steps->adjoint_lane_seconds = 1e-9 * (2 + (p->width > lane || known ? 0.055 * weights : pieces * piece));
    steps->adjoint_latency = 1e-9 * fmax(slower.wide * (8 + 0.85 * w), 0.055 * weights);
    if (p->kernels->eights && p->width == 8) {
        // [AVX2, AVX-512], both on a Zen 5: ReLU, and what tanh adds
        static const double lane_seconds[] = {2.2, 1.7}, longer_lane[] = {3.6, 1.5}, longer_loop[] = {14.7, 7.6};
        const bool wide = dpcri_isa_level() == DPCRI_AVX512, relu = activation == 0;
        steps->lane_seconds = 1e-9 * (lane_seconds[wide] + (relu ? 0 : longer_lane[wide])) * slower.lanes_of_8;
        // Fitted together on a Zen 4: its factor is one for ReLU too.
        steps->latency = 1e-9 * (5.4 + (relu ? 0 : longer_loop[wide])) * fmax(slower.loop, slower.wide);
    }
}

// A step's sums then go from thread to thread, where z and e of so many rows would. Short rows are summed side by side,
// without fetching a step's sums ahead.
static int64_t rows_of_gradient(const dpcri_program *p) { return p->width <= p->kernels->short_width ? 0 : p->width; }

// A model of the same parameters with gradients of its own.
static void *rehearse(void *user, const dpcr_rehearsal *rehearsal) {
    const dpcr_model *m = user;
    const size_t bytes = (size_t)m->count * m->program.kernels->element;
    (void)rehearsal;
    dpcr_model *stand_in = dpcri_alloc_zero(m->context, sizeof *stand_in + bytes + 128);
    if (!stand_in) return NULL;
    *stand_in = *m;
    stand_in->gradients = (char *)(((uintptr_t)(stand_in + 1) + 63) / 64 * 64);
    return stand_in;
}

static void rehearsed(void *stand_in) { dpcri_free(((dpcr_model *)stand_in)->context, stand_in); }

static void fill_steps(dpcr_model *model, int64_t batch, dpcr_steps *steps) {
    const dpcr_model_options *o = &model->options;
    const bool two_layer = o->branch == DPCR_BRANCH_TWO_LAYER;
    const double w = (double)o->width, h = (double)o->hidden;
    const double products = two_layer ? 4 * w * h : 2 * w * w;
    *steps = (dpcr_steps){.user = model,
                          .length = o->layers,
                          .batch = batch,
                          .width = o->width,
                          .dtype = o->dtype,
                          .concurrent = 1,
                          .jacobian = dpcr_transition_square(DPCR_DENSE, o->width, 0),
                          .flops = products + h * (activation_flops(o->activation) + (o->layer_norm ? 8 : 0)) + 2 * w,
                          .jacobian_flops = (two_layer ? 2 * w * w * h : w * w) + (o->layer_norm ? 8 * w * h : 0),
                          .latency = 1e-9 * (38 + 1.7 * (two_layer ? w + h : w) + (o->layer_norm ? 40 : 0)),
                          .tape_values = model->program.tape,
                          .gradient_from_tape = dpcri_program_turns_tape(&model->program),
                          .gradient_rows = rows_of_gradient(&model->program),
                          .weight_bytes = (double)model->program.parameters * (double)dpcr_dtype_size(o->dtype),
                          .kinks = o->activation != DPCR_ACT_RELU ? DPCR_KINKS_NONE
                                   : o->layer_norm                ? DPCR_KINKS_CURVED
                                                                  : DPCR_KINKS_AFFINE,
                          .advance = advance,
                          .linearise = linearise,
                          .jvp = jvp,
                          .adjoint = adjoint,
                          .gradient = gradient,
                          .rehearse = rehearse,
                          .rehearsed = rehearsed};
    set_gradient_costs(model, products / 2, steps);
    if (in_one_call(&model->program, 1)) set_costs(model, steps);
    dpcri_narrow narrow;
    const bool served = dpcri_program_narrow(&model->program, model->parameters, &narrow);
    dpcri_narrow back;
    if (narrow_adjoint(&model->program, model->parameters, &back)) {
        steps->adjoint_latency = dpcri_adjoint_loop_seconds(&back);
        steps->adjoint_lane_seconds = dpcri_adjoint_lane_seconds(&back);
        if (dpcri_narrow_has_adjoint_window(&back)) {
            steps->adjoint_window = adjoint_window;
            steps->adjoint_window_seconds = dpcri_narrow_adjoint_window_seconds(&back);
            steps->adjoint_window_steps = dpcri_narrow_adjoint_window_steps(&back);
        }
    }
    if (served) {
        steps->latency = dpcri_narrow_loop_seconds(&narrow);
        steps->lanes = dpcri_narrow_lanes(&narrow);
        steps->lane_seconds = dpcri_narrow_lane_seconds(&narrow);
        if (dpcri_narrow_has_window(&narrow)) {
            steps->window = window;
            steps->window_threads = dpcri_narrow_window_threads();
        }
    }
}

dpcr_status dpcr_model_steps(dpcr_model *model, int64_t batch, dpcr_steps *steps, dpcr_error *error) {
    if (!model || !steps || steps->size < offsetof(dpcr_steps, identity))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_steps: wanted a model and steps with their size");
    if (batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_steps: batch is %lld, wanted >= 0", (long long)batch);
    dpcr_steps all;
    fill_steps(model, batch, &all);
    dpcri_copy_out(steps, &all, sizeof all);
    return DPCR_OK;
}
