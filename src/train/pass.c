// SPDX-License-Identifier: MIT
// One pass over a batch:
//   z0 = encoder(x);  z_l = f_l(z_{l-1});  logits = head(z_{L-1});  loss
//   dlogits;  dz = head's;  lambda_l = J_{l+1}^T lambda_{l+1} with lambda_{L-1} = dz;  dz0 = J_0^T lambda_0;  encoder's
// A model without an encoder starts from x itself, one without layers goes from z0 straight to the head.
#include "train/pass.h"

#include <string.h>

void dpcri_phase_end(double *phase, double *mark) {
    const double now = dpcri_seconds();
    *phase += now - *mark;
    *mark = now;
}

void dpcri_pass_rows(int64_t count, int64_t batch, int64_t rows[DPCRI_SIZES]) {
    rows[0] = count >= batch ? batch : 0;
    rows[1] = count % batch;
}

static dpcr_status no_memory(dpcr_error *error, const char *what, size_t bytes) {
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for %s (%zu bytes)", what, bytes);
}

static dpcr_array matrix(const dpcri_pass *pass, void *data, int64_t rows, int64_t cols) {
    const int64_t shape[] = {rows, cols};
    return dpcr_array_make(data, pass->options->dtype, 2, shape);
}

static dpcr_array trajectory(const dpcri_pass *pass, void *data, int64_t rows, int64_t values) {
    const int64_t shape[] = {pass->options->layers, rows, values};
    return dpcr_array_make(data, pass->options->dtype, 3, shape);
}

// Where the head reads: the last state, or z0 of a model without layers.
static dpcr_array final_state(const dpcri_pass *pass, int64_t rows) {
    const int64_t before = pass->options->layers - 1, width = pass->options->width;
    if (before < 0) return matrix(pass, pass->z0, rows, width);
    const size_t offset = (size_t)(before * rows * width) * dpcr_dtype_size(pass->options->dtype);
    return matrix(pass, (unsigned char *)pass->z + offset, rows, width);
}

// ---- plans and buffers ----

static dpcr_status make_plan(dpcri_pass *pass, int size, const dpcr_solve_options *solve, bool recompute,
                             dpcr_error *error) {
    dpcr_status status;
    dpcr_steps steps = {.size = sizeof steps};
    if (pass->rows[size] == 0 || pass->options->layers == 0) return DPCR_OK;
    DPCR_TRY(dpcr_model_steps(pass->model, pass->rows[size], &steps, error));
    dpcr_solve_options options = *solve;
    options.consume_tape = 1;  // each forward here has one backward
    DPCR_TRY(dpcr_solve_plan_create(pass->context, &steps, &options, &pass->plans[size], error));
    // Only the loop leaves a tape; after another method backward recomputes it.
    pass->taped[size] =
        !recompute && dpcr_solve_plan_method(pass->plans[size]) == DPCR_METHOD_SEQUENTIAL && steps.tape_values > 0;
    pass->tape_values = steps.tape_values;
    const size_t bytes = dpcr_solve_plan_workspace(pass->plans[size]);
    if (bytes > pass->workspace_bytes) pass->workspace_bytes = bytes;
done:
    return status;
}

typedef struct piece {
    void **place;
    const char *what;
    bool wanted;
    int64_t a, b, c;  // extents
} piece;

static dpcr_status make_buffers(dpcri_pass *pass, bool backward, dpcr_error *error) {
    const dpcr_model_options *o = pass->options;
    const int64_t rows = pass->rows[0] > pass->rows[1] ? pass->rows[0] : pass->rows[1];
    const bool taped = backward && (pass->taped[0] || pass->taped[1]);
    const int64_t element = (int64_t)dpcr_dtype_size(o->dtype);
    const piece pieces[] = {
        {&pass->x, "a batch", o->inputs > 0, o->inputs, rows, 1},
        {&pass->z0, "initial states", true, o->width, rows, 1},
        {&pass->z, "states", o->layers > 0, o->layers, rows, o->width},
        {&pass->tape, "the tape", taped && o->layers > 0, o->layers, rows, pass->tape_values},
        {&pass->logits, "logits", true, o->outputs, rows, 1},
        {&pass->dz, "adjoint states", backward, o->width, rows, 1},
        {&pass->dz0, "adjoint states", backward, o->width, rows, 1},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const piece *p = &pieces[i];
        bool overflow = false;
        int64_t values = 0;
        if (!dpcri_mul(p->a, p->b, &values)) overflow = true;
        const size_t bytes = overflow ? 0 : dpcri_bytes(values, p->c, element, &overflow);
        if (!p->wanted) continue;
        if (overflow) return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "train: the size of %s does not fit", p->what);
        *p->place = dpcri_alloc(pass->context, bytes);
        if (!*p->place) return no_memory(error, p->what, bytes);
    }
    pass->y = dpcri_alloc(pass->context, (size_t)rows);
    if (!pass->y) return no_memory(error, "labels", (size_t)rows);
    pass->workspace = dpcri_alloc(pass->context, pass->workspace_bytes);
    if (!pass->workspace && pass->workspace_bytes)
        return no_memory(error, "the solver's workspace", pass->workspace_bytes);
    return DPCR_OK;
}

dpcr_status dpcri_pass_plan(dpcri_pass *pass, dpcr_context *context, dpcr_model *model, const int64_t rows[DPCRI_SIZES],
                            const dpcr_solve_options solve[DPCRI_SIZES], bool recompute, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *pass = (dpcri_pass){.context = context, .model = model, .options = dpcr_model_get_options(model)};
    for (int size = 0; size < DPCRI_SIZES; size++) {
        pass->rows[size] = rows[size];
        DPCR_TRY(make_plan(pass, size, &solve[size], recompute, error));
    }
done:
    return status;
}

bool dpcri_pass_is_loop(const dpcri_pass *pass) {
    for (int size = 0; size < DPCRI_SIZES; size++)
        if (pass->plans[size] && dpcr_solve_plan_method(pass->plans[size]) != DPCR_METHOD_SEQUENTIAL) return false;
    return true;
}

dpcr_status dpcri_pass_allocate(dpcri_pass *pass, bool backward, dpcr_error *error) {
    const dpcr_status status = make_buffers(pass, backward, error);
    // Without an encoder the pixels are the states.
    if (!pass->x) pass->x = pass->z0;
    return status;
}

dpcr_status dpcri_pass_create(dpcri_pass *pass, dpcr_context *context, dpcr_model *model,
                              const int64_t rows[DPCRI_SIZES], const dpcr_solve_options solve[DPCRI_SIZES],
                              bool backward, bool recompute, dpcr_error *error) {
    const dpcr_status status = dpcri_pass_plan(pass, context, model, rows, solve, recompute, error);
    return status == DPCR_OK ? dpcri_pass_allocate(pass, backward, error) : status;
}

void dpcri_pass_destroy(dpcri_pass *pass) {
    if (!pass->context) return;
    void *const owned[] = {pass->workspace, pass->y, pass->dz0, pass->dz, pass->logits, pass->tape, pass->z, pass->z0};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(pass->context, owned[i]);
    if (pass->x != pass->z0) dpcri_free(pass->context, pass->x);
    for (int size = 0; size < DPCRI_SIZES; size++) dpcr_solve_plan_destroy(pass->plans[size]);
    *pass = (dpcri_pass){0};
}

// ---- passes ----

static dpcr_status encode(dpcri_pass *pass, int64_t rows, dpcr_error *error) {
    if (pass->x == pass->z0) return DPCR_OK;
    const dpcr_array x = matrix(pass, pass->x, rows, pass->options->inputs);
    const dpcr_array z0 = matrix(pass, pass->z0, rows, pass->options->width);
    return dpcr_model_encode(pass->model, &x, &z0, error);
}

static dpcr_status solve(dpcri_pass *pass, int size, bool gradient, dpcr_error *error) {
    const int64_t rows = pass->rows[size], width = pass->options->width;
    pass->report =
        (dpcr_solve_report){.size = sizeof pass->report, .reason = DPCR_REASON_EXACT, .method = DPCR_METHOD_SEQUENTIAL};
    pass->back_reason = DPCR_REASON_SEQUENTIAL;
    if (!pass->plans[size]) return DPCR_OK;
    const dpcr_array z0 = matrix(pass, pass->z0, rows, width), z = trajectory(pass, pass->z, rows, width);
    const dpcr_array tape = trajectory(pass, pass->tape, rows, pass->tape_values);
    return dpcr_solve_execute(pass->plans[size], &z0, &z, gradient && pass->taped[size] ? &tape : NULL, pass->workspace,
                              pass->workspace_bytes, &pass->report, error);
}

dpcr_status dpcri_pass_forward(dpcri_pass *pass, int size, bool gradient, double *loss, int64_t *correct,
                               dpcr_error *error) {
    dpcr_status status;
    const int64_t rows = pass->rows[size];
    double mark = dpcri_seconds();
    DPCR_TRY(encode(pass, rows, error));
    dpcri_phase_end(&pass->phases.encode, &mark);
    DPCR_TRY(solve(pass, size, gradient, error));
    dpcri_phase_end(&pass->phases.forward, &mark);
    const dpcr_array z = final_state(pass, rows), logits = matrix(pass, pass->logits, rows, pass->options->outputs);
    DPCR_TRY(dpcr_model_head(pass->model, &z, &logits, error));
    DPCR_TRY(dpcr_loss_cross_entropy(&logits, pass->y, loss, gradient ? &logits : NULL, correct, error));
    dpcri_phase_end(&pass->phases.head, &mark);
done:
    return status;
}

dpcr_status dpcri_pass_backward(dpcri_pass *pass, int size, dpcr_error *error) {
    dpcr_status status;
    const int64_t rows = pass->rows[size], width = pass->options->width;
    double mark = dpcri_seconds();
    const dpcr_array final = final_state(pass, rows),
                     dlogits = matrix(pass, pass->logits, rows, pass->options->outputs);
    const dpcr_array dz = matrix(pass, pass->dz, rows, width);
    dpcr_array dz0 = dz;
    DPCR_TRY(dpcr_model_head_backward(pass->model, &final, &dlogits, &dz, error));
    dpcri_phase_end(&pass->phases.head, &mark);
    if (pass->plans[size]) {
        const dpcr_array z0 = matrix(pass, pass->z0, rows, width), z = trajectory(pass, pass->z, rows, width);
        const dpcr_array tape = trajectory(pass, pass->tape, rows, pass->tape_values);
        dz0 = matrix(pass, pass->dz0, rows, width);
        dpcr_solve_report report = {.size = sizeof report};
        DPCR_TRY(dpcr_solve_backward(pass->plans[size], &z0, &z, pass->taped[size] ? &tape : NULL, NULL, &dz, NULL,
                                     &dz0, pass->workspace, pass->workspace_bytes, &report, error));
        pass->back_reason = report.reason;
    }
    dpcri_phase_end(&pass->phases.backward, &mark);
    if (pass->x != pass->z0) {
        const dpcr_array x = matrix(pass, pass->x, rows, pass->options->inputs);
        DPCR_TRY(dpcr_model_encode_backward(pass->model, &x, &dz0, error));
    }
    dpcri_phase_end(&pass->phases.encode_backward, &mark);
done:
    return status;
}
