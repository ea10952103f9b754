// SPDX-License-Identifier: MIT
// The chain's callbacks: spans of lanes, steps and rows over the step's program. Rows go in blocks; a row's bits do not
// depend on the block. Step l's parameters begin at l * program.parameters of both vectors.
#include "model/model_internal.h"

// Work buffers of one call: on its stack, or allocated where wide layers would leave too few rows a block.
enum { STACK_BYTES = 96 * 1024, FEW_ROWS = 16 };

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
    const int64_t wanted = smaller(rows, DPCRI_PROGRAM_ROWS);
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

// Steps outside, lanes inside: the lanes are independent, so their latencies overlap.
static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    const bool keep = states && states->data;
    if (!keep && !(last && last->data)) return tape && tape->data ? advance_tape(m, span, in, tape) : 0;
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
        for (int64_t k = span->steps - 1; k >= 0; k--) {
            const dpcri_program_next next = {.parameters = step_parameters(m, first + k - 1),
                                             .tape = dpcri_rows_at(rows_at2(tape, c, k - 1, element), r, 0, element)};
            dpcri_program_adjoint(
                p, step_parameters(m, first + k), rows, dpcri_rows_at(rows_at2(in, c, k, element), r, 0, element),
                dpcri_rows_at(rows_at2(tape, c, k, element), r, 0, element),
                dpcri_rows_at(rows_at2(direct, c, k, element), r, 0, element),
                dpcri_rows_at(rows_at2(kept, c, k, element), r, 0, element), g, scratch, k > 0 ? &next : NULL);
        }
        if (first_out && first_out->data)
            copy_rows(m, rows, g, dpcri_rows_at(rows_at1(first_out, c, element), r, 0, element));
    }
}

static int adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                   const dpcr_array *first_out) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p) + p->width, stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++) adjoint_lane(m, span, c, in, tape, direct, last, kept, first_out, &w);
    work_close(&w);
    return 0;
}

static int gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *adjoints) {
    const dpcr_model *m = user;
    const dpcri_program *p = &m->program;
    const size_t element = p->kernels->element;
    _Alignas(64) unsigned char stack[STACK_BYTES];
    work w;
    if (!work_open(&w, m, span->rows, dpcri_program_scratch(p), stack)) return DPCR_ERROR_MEMORY;
    for (int64_t c = 0; c < span->lanes; c++) {
        const int64_t step = span->first + c * span->stride;
        for (int64_t r = 0; r < span->rows; r += w.rows) {
            // the rows after these, or the next step's first ones with its gradients
            const bool done = r + w.rows >= span->rows;
            const int64_t lane = done ? c + 1 : c, row = done ? 0 : r + w.rows;
            const dpcri_program_next next = {
                .parameters = done ? dpcri_model_at(m, m->gradients, (step + span->stride) * p->parameters) : NULL,
                .in = dpcri_rows_at(rows_at1(in, lane, element), row, 0, element),
                .tape = dpcri_rows_at(rows_at1(tape, lane, element), row, 0, element)};
            dpcri_program_gradient(p, step_parameters(m, step), dpcri_model_at(m, m->gradients, step * p->parameters),
                                   smaller(w.rows, span->rows - r),
                                   dpcri_rows_at(rows_at1(in, c, element), r, 0, element),
                                   dpcri_rows_at(rows_at1(tape, c, element), r, 0, element),
                                   dpcri_rows_at(rows_at1(adjoints, c, element), r, 0, element), w.memory,
                                   lane < span->lanes ? &next : NULL);
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
        case DPCR_ACT_GELU: return 100;
        default: return 30;
    }
}

dpcr_status dpcr_model_steps(dpcr_model *model, int64_t batch, dpcr_steps *steps, dpcr_error *error) {
    if (!model || !steps)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_steps: a model and a place for the steps are wanted");
    if (batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_steps: batch is %lld, wanted >= 0", (long long)batch);
    const dpcr_model_options *o = &model->options;
    const bool two_layer = o->branch == DPCR_BRANCH_TWO_LAYER;
    const double w = (double)o->width, h = (double)o->hidden;
    const double products = two_layer ? 4 * w * h : 2 * w * w;
    *steps =
        (dpcr_steps){.size = sizeof *steps,
                     .user = model,
                     .length = o->layers,
                     .batch = batch,
                     .width = o->width,
                     .dtype = o->dtype,
                     .concurrent = 1,
                     .jacobian = dpcr_transition_square(DPCR_DENSE, o->width, 0),
                     .flops = products + h * (activation_flops(o->activation) + (o->layer_norm ? 8 : 0)) + 2 * w,
                     .jacobian_flops = (two_layer ? 2 * w * w * h : w * w) + (o->layer_norm ? 8 * w * h : 0),
                     // measured (deeppcr check mlp, batch 1): what a step costs beside one fma after the other along k
                     .latency = 1e-9 * (38 + 1.7 * (two_layer ? w + h : w) + (o->layer_norm ? 40 : 0)),
                     .tape_values = model->program.tape,
                     .gradient_from_tape = dpcri_program_turns_tape(&model->program),
                     .advance = advance,
                     .linearise = linearise,
                     .jvp = jvp,
                     .adjoint = adjoint,
                     .gradient = gradient};
    return DPCR_OK;
}
