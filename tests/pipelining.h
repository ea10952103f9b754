// SPDX-License-Identifier: MIT
// What the tests of the executor share: models, rows, and the one process that a pipeline must equal: a loop of its own
// over the public calls of models and solves.
#ifndef PIPELINING_H
#define PIPELINING_H

#include "deeppcr/pipeline.h"
#include "train/loss.h"
#include "training.h"

typedef struct rows_set {
    dpcr_dtype dtype;
    int64_t rows, inputs;
    double x64[96 * PIXELS];
    float x32[96 * PIXELS];
    uint8_t labels[96];
} rows_set;

static inline void fill_rows(rows_set *set, dpcr_dtype dtype, int64_t rows, int64_t inputs) {
    set->dtype = dtype;
    set->rows = rows;
    set->inputs = inputs;
    assert_true(rows <= 96 && inputs <= PIXELS);
    for (int64_t i = 0; i < rows * inputs; i++) {
        set->x64[i] = dpcri_random_normal(3, DPCRI_STREAM_DATA, (uint64_t)i);
        set->x32[i] = (float)set->x64[i];
    }
    for (int64_t r = 0; r < rows; r++)
        set->labels[r] = (uint8_t)dpcri_random_below(4, DPCRI_STREAM_DATA, (uint64_t)r, LABELS);
}

static inline dpcr_array rows_of(rows_set *set, int64_t first, int64_t rows) {
    const int64_t shape[] = {rows, set->inputs};
    void *data =
        set->dtype == DPCR_F64 ? (void *)(set->x64 + first * set->inputs) : (void *)(set->x32 + first * set->inputs);
    return dpcr_array_make(data, set->dtype, 2, shape);
}

#define must(call)                                           \
    do {                                                     \
        dpcr_error failure = {0};                            \
        dpcr_error *const error = &failure;                  \
        if ((call) != DPCR_OK) fail_msg("%s", failure.text); \
    } while (0)

// Progress that stops a run at a step.
typedef struct stopper {
    int64_t at;
} stopper;

static inline int stop_at(void *user, const dpcr_train_state *state) { return state->step >= ((stopper *)user)->at; }
static inline int note_but(void *user, const dpcr_train_state *state) { return -stop_at(user, state); }

// The words of a run that stopped at a step that no note was taken of.
static inline void assert_told(const dpcr_error *told, int step, int steps, const char *path, int held) {
    char says[512];
    snprintf(says, sizeof says, "stopped as asked after step %d of %d; to go on, resume from %s, which holds step %d",
             step, steps, path, held);
    if (!strstr(told->text, says)) fail_msg("'%s' does not say '%s'", told->text, says);
}

static inline void *numbers(dpcr_dtype dtype, int64_t count) {
    return calloc((size_t)count + 1, dpcr_dtype_size(dtype));
}

// Adds the gradients of the mean loss over `batch` rows that rows first .. first + rows - 1 contribute. `behind` (NULL:
// the same) are the parameters that the way back reads.
static inline void add_gradients(dpcr_context *context, dpcr_model *model, rows_set *set, int64_t first, int64_t rows,
                                 int64_t batch, const void *behind, double *loss, int64_t *correct) {
    if (rows == 0) return;
    const dpcr_model_options *o = dpcr_model_get_options(model);
    const int64_t state[] = {o->layers, rows, o->width}, logit[] = {rows, o->outputs};
    dpcr_array x = rows_of(set, first, rows);
    dpcr_array z0 = dpcr_array_make(numbers(o->dtype, rows * o->width), o->dtype, 2, state + 1);
    dpcr_array z = dpcr_array_make(numbers(o->dtype, o->layers * rows * o->width), o->dtype, 3, state);
    dpcr_array dz = dpcr_array_make(numbers(o->dtype, rows * o->width), o->dtype, 2, state + 1);
    dpcr_array dz0 = dpcr_array_make(numbers(o->dtype, rows * o->width), o->dtype, 2, state + 1);
    dpcr_array logits = dpcr_array_make(numbers(o->dtype, rows * o->outputs), o->dtype, 2, logit);
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_solve_plan *plan = NULL;
    void *workspace = NULL;
    size_t bytes = 0;
    if (o->inputs)
        must(dpcr_model_encode(model, &x, &z0, error));
    else
        memcpy(z0.data, x.data, (size_t)(rows * o->width) * dpcr_dtype_size(o->dtype));
    dpcr_array last = z0;
    dpcr_array tape = {0};
    if (o->layers) {
        const dpcr_solve_options solve = {
            .size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
        must(dpcr_model_steps(model, rows, &steps, error));
        const int64_t taped[] = {o->layers, rows, steps.tape_values};
        tape = dpcr_array_make(numbers(o->dtype, o->layers * rows * steps.tape_values), o->dtype, 3, taped);
        must(dpcr_solve_plan_create(context, &steps, &solve, &plan, error));
        bytes = dpcr_solve_plan_workspace(plan);
        workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
        must(dpcr_solve_execute(plan, &z0, &z, &tape, workspace, bytes, NULL, error));
        last = z;
        last.ndim = 2;
        last.data = (char *)z.data + (size_t)((o->layers - 1) * rows * o->width) * dpcr_dtype_size(o->dtype);
        last.shape[0] = rows, last.shape[1] = o->width, last.strides[0] = o->width, last.strides[1] = 1;
    }
    must(dpcr_model_head(model, &last, &logits, error));
    must(dpcri_loss_cross_entropy_part(&logits, set->labels + first, batch, loss, &logits, correct, error));
    if (behind) memcpy(dpcr_model_vector(model, NULL), behind, vector_bytes(model));
    must(dpcr_model_head_backward(model, &last, &logits, &dz, error));
    if (o->layers)
        must(dpcr_solve_backward(plan, &z0, &z, &tape, NULL, &dz, NULL, &dz0, workspace, bytes, NULL, error));
    if (o->inputs) must(dpcr_model_encode_backward(model, &x, o->layers ? &dz0 : &dz, error));
    dpcr_solve_plan_destroy(plan);
    void *const owned[] = {z0.data, z.data, dz.data, dz0.data, logits.data, tape.data, workspace};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static inline dpcr_schedule schedule_of(dpcr_context *context, dpcr_schedule_kind kind, int64_t p, int64_t v, int64_t m,
                                        int64_t accumulate) {
    const dpcr_schedule_options options = {
        .size = sizeof options, .kind = kind, .ranks = p, .chunks = v, .microbatches = m, .accumulate = accumulate};
    dpcr_schedule schedule;
    must(dpcr_schedule_make(context, &options, &schedule, error));
    return schedule;
}

static inline int64_t units_of(const dpcr_model_options *o) { return o->layers + (o->inputs > 0) + (o->outputs > 0); }

// The stage of every number of the parameter vector, by the parameters' names.
static inline int64_t *stages_of_numbers(dpcr_model *model, const int64_t *first, int64_t stages) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    const size_t e = dpcr_dtype_size(o->dtype);
    int64_t count = 0;
    char *vector = dpcr_model_vector(model, &count);
    int64_t *stage_of = calloc((size_t)count, sizeof *stage_of);
    for (int64_t p = 0; p < dpcr_model_parameter_count(model); p++) {
        char name[64];
        dpcr_array a;
        long long layer = 0;
        must(dpcr_model_parameter(model, p, name, sizeof name, &a, NULL, error));
        int64_t unit = units_of(o) - 1;
        if (strncmp(name, "encoder", 7) == 0) unit = 0;
        if (sscanf(name, "layers.%lld", &layer) == 1) unit = layer + (o->inputs > 0);
        int64_t stage = 0;
        while (stage + 1 < stages && first[stage + 1] <= unit) stage++;
        const int64_t begin = (int64_t)(((char *)a.data - vector) / (ptrdiff_t)e);
        const int64_t numbers_here = a.shape[0] * (a.ndim == 2 ? a.shape[1] : 1);
        for (int64_t i = 0; i < numbers_here; i++) stage_of[begin + i] = stage;
    }
    return stage_of;
}

// The numbers of a stage.
static inline void take_stage(const int64_t *stage_of, int64_t stage, int64_t count, size_t bytes, const char *from,
                              char *to) {
    const size_t e = bytes / (size_t)count;
    for (int64_t i = 0; i < count; i++)
        if (stage_of[i] == stage) memcpy(to + (size_t)i * e, from + (size_t)i * e, e);
}

// Of a transport without another end.
static inline dpcr_status send_nowhere(void *user, int64_t to, int64_t tag, const void *bytes, size_t size,
                                       dpcr_error *error) {
    (void)user, (void)to, (void)tag, (void)bytes, (void)size, (void)error;
    return DPCR_OK;
}

#endif
