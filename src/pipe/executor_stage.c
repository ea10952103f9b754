// SPDX-License-Identifier: MIT
// The tasks of a stage, all over the callbacks of its own model:
//   F   [z_0 = encoder(x)];  z_{l+1} = f_l(z_l), tape_l;  [logits = head(z_n)]
//   I   [dz = head's];  g_l = J_{l+1}^T g_{l+1} from dz down;  dx = J_0^T g_0
//   W   [head += z_n^T dlogits];  theta_l += (df_l/dtheta)^T g_l;  [encoder += x^T dx]
// A row's bits do not depend on the rows beside it, and every sum over rows runs in their order from what the gradient
// held, so microbatches taken in order give the bits of the whole batch.
#include "pipe/executor_stage.h"

#include <string.h>

#include "model/model_internal.h"
#include "train/loss.h"
#include "train/optimiser.h"

int64_t dpcri_units_of(const dpcr_model *model) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    return o->layers + (o->inputs > 0) + (o->outputs > 0);
}

// ---- the stage's own model ----

int dpcri_units_pieces(const dpcr_model *model, int64_t first, int64_t end, dpcri_piece pieces[3]) {
    const int64_t each = model->program.parameters, encoder = model->options.inputs > 0;
    const bool has_encoder = encoder && first == 0,
               has_head = model->options.outputs > 0 && end == dpcri_units_of(model);
    const int64_t step = first > 0 ? first - encoder : 0, steps = end - first - has_encoder - has_head;
    int64_t here = 0;
    int count = 0;
    if (steps) pieces[count++] = (dpcri_piece){here, step * each, steps * each};
    here += steps * each;
    if (has_encoder) pieces[count++] = (dpcri_piece){here, model->encoder, model->head - model->encoder};
    if (has_encoder) here += model->head - model->encoder;
    if (has_head) pieces[count++] = (dpcri_piece){here, model->head, model->count - model->head};
    return count;
}

int64_t dpcri_units_count(const dpcr_model *model, int64_t first, int64_t end) {
    dpcri_piece pieces[3];
    int64_t sum = 0;
    for (int i = dpcri_units_pieces(model, first, end, pieces) - 1; i >= 0; i--) sum += pieces[i].count;
    return sum;
}

void dpcri_units_put(const dpcr_model *model, int64_t first, int64_t end, const void *stage, void *whole) {
    dpcri_piece pieces[3];
    const size_t e = model->program.kernels->element;
    for (int i = dpcri_units_pieces(model, first, end, pieces) - 1; i >= 0; i--)
        memcpy((char *)whole + (size_t)pieces[i].there * e, (const char *)stage + (size_t)pieces[i].here * e,
               (size_t)pieces[i].count * e);
}

void dpcri_units_get(const dpcr_model *model, int64_t first, int64_t end, void *stage, const void *whole) {
    dpcri_piece pieces[3];
    const size_t e = model->program.kernels->element;
    for (int i = dpcri_units_pieces(model, first, end, pieces) - 1; i >= 0; i--)
        memcpy((char *)stage + (size_t)pieces[i].here * e, (const char *)whole + (size_t)pieces[i].there * e,
               (size_t)pieces[i].count * e);
}

dpcr_status dpcri_stage_create(dpcri_stage *stage, dpcr_context *context, const dpcr_model *model, int64_t first,
                               int64_t end, dpcr_error *error) {
    dpcr_status status;
    *stage = (dpcri_stage){.context = context, .steps = {.size = sizeof stage->steps}};
    const int64_t units = dpcri_units_of(model);
    dpcr_model_options o = model->options;
    const bool encoder = o.inputs > 0 && first == 0, head = o.outputs > 0 && end == units;
    if (first < 0 || end > units || first >= end)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pipeline: a stage of units %lld to %lld of %lld",
                          (long long)first, (long long)end - 1, (long long)units);
    stage->needs_input = encoder || first > 0;
    o.inputs = encoder ? o.inputs : 0;
    o.outputs = head ? o.outputs : 0;
    o.layers = end - first - encoder - head;
    o.tie = 0;  // ties go over stages: executor_ties.c
    o.blank = 1;
    stage->layers = o.layers;
    stage->width = o.width;
    stage->inputs = o.inputs;
    stage->outputs = o.outputs;
    stage->element = dpcr_dtype_size(o.dtype);
    DPCR_TRY(dpcr_model_create(context, &o, &stage->model, error));
    stage->own = stage->model->parameters;
    stage->count = stage->model->count;
    dpcri_units_get(model, first, end, stage->own, model->parameters);
    DPCR_TRY(dpcr_model_steps(stage->model, 1, &stage->steps, error));
    stage->tape_values = stage->steps.tape_values;
done:
    if (status != DPCR_OK) dpcri_stage_destroy(stage);
    return status;
}

void dpcri_stage_use(dpcri_stage *stage, void *parameters) {
    stage->model->parameters = parameters ? parameters : stage->own;
}

void dpcri_stage_destroy(dpcri_stage *stage) {
    if (!stage->model) return;
    dpcri_stage_use(stage, NULL);
    dpcr_model_destroy(stage->model);
    *stage = (dpcri_stage){0};
}

// ---- what is kept ----

// A place for a * b * c numbers, 64-byte aligned; NULL while counting.
static char *take(char *memory, size_t *used, bool *overflow, int64_t a, int64_t b, int64_t c, size_t element) {
    int64_t numbers = 0;
    if (!dpcri_mul(a, b, &numbers)) *overflow = true;
    const size_t bytes = dpcri_bytes(numbers, c, (int64_t)element, overflow), at = *used;
    if (*overflow || bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4) {
        *overflow = true;
        return NULL;
    }
    *used = at + (bytes + 63) / 64 * 64;
    return memory ? memory + at : NULL;
}

bool dpcri_stage_lay_out(const dpcri_stage *stage, int64_t rows, int parts, bool turned, char *memory, dpcri_kept *kept,
                         size_t *bytes) {
    size_t used = 0;
    bool overflow = false;
    const size_t e = stage->element;
    *kept =
        (dpcri_kept){.rows = rows, .parts = parts, .turned = turned && parts == 1 && stage->steps.gradient_from_tape};
    kept->x = take(memory, &used, &overflow, stage->inputs, rows, 1, e);
    kept->z = take(memory, &used, &overflow, stage->layers + 1, rows, stage->width, e);
    kept->tape = take(memory, &used, &overflow, stage->layers, rows, stage->tape_values, e);
    kept->logits = take(memory, &used, &overflow, stage->outputs, rows, 1, e);
    kept->forward_bytes = used;
    for (int p = 0; p < parts; p++) {
        const int64_t half = rows / 2, n = parts == 1 ? rows : p == 0 ? half : rows - half;
        kept->part_rows[p] = n;
        kept->g[p] = take(memory, &used, &overflow, kept->turned ? 0 : stage->layers, n, stage->width, e);
        kept->dx[p] = take(memory, &used, &overflow, stage->width, n, 1, e);
    }
    kept->dz = take(memory, &used, &overflow, stage->width, rows, 1, e);
    *bytes = used;
    return !overflow;
}

// ---- tasks ----

static dpcr_array matrix(const dpcri_stage *stage, void *data, int64_t rows, int64_t cols) {
    const int64_t shape[] = {rows, cols};
    return dpcr_array_make(data, stage->steps.dtype, 2, shape);
}

// Rows `row` .. of [layers][all][values] as one lane: [1][layers][rows][values].
static dpcr_array lane(const dpcri_stage *stage, char *data, int64_t all, int64_t row, int64_t rows, int64_t values) {
    const int64_t shape[] = {1, stage->layers, rows, values};
    dpcr_array array = dpcr_array_make(data + row * values * (int64_t)stage->element, stage->steps.dtype, 4, shape);
    array.strides[0] = 0;
    array.strides[1] = all * values;
    return array;
}

// The same with steps as lanes: [layers][1][rows][values], or without the steps' dimension.
static dpcr_array steps_as_lanes(dpcr_array one) {
    dpcr_array array = one;
    array.ndim = 3;
    array.shape[0] = one.shape[1], array.strides[0] = one.strides[1];
    array.shape[1] = one.shape[2], array.strides[1] = one.strides[2];
    array.shape[2] = one.shape[3], array.strides[2] = one.strides[3];
    return array;
}

// [rows][w] as [1][rows][w]
static dpcr_array one_lane(const dpcri_stage *stage, char *data, int64_t rows) {
    const int64_t shape[] = {1, rows, stage->width};
    return dpcr_array_make(data, stage->steps.dtype, 3, shape);
}

static dpcr_status told(int code, dpcr_error *error) {
    if (code == 0) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the work buffers of a layer");
}

dpcr_status dpcri_stage_forward(dpcri_stage *stage, dpcri_kept *kept, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t rows = kept->rows, state = rows * stage->width * (int64_t)stage->element;
    if (rows == 0) return DPCR_OK;
    if (stage->inputs) {
        const dpcr_array x = matrix(stage, kept->x, rows, stage->inputs),
                         z0 = matrix(stage, kept->z, rows, stage->width);
        DPCR_TRY(dpcr_model_encode(stage->model, &x, &z0, error));
    }
    if (stage->layers) {
        const dpcr_span span = {.size = sizeof span, .lanes = 1, .stride = 1, .steps = stage->layers, .rows = rows};
        const dpcr_array in = one_lane(stage, kept->z, rows),
                         states = lane(stage, kept->z + state, rows, 0, rows, stage->width),
                         tape = lane(stage, kept->tape, rows, 0, rows, stage->tape_values);
        DPCR_TRY(
            told(stage->steps.advance(stage->steps.user, &span, &in, &states, NULL, stage->tape_values ? &tape : NULL),
                 error));
    }
    if (stage->outputs) {
        const dpcr_array z = matrix(stage, dpcri_stage_result(stage, kept), rows, stage->width),
                         logits = matrix(stage, kept->logits, rows, stage->outputs);
        DPCR_TRY(dpcr_model_head(stage->model, &z, &logits, error));
    }
done:
    return status;
}

dpcr_status dpcri_stage_loss(const dpcri_stage *stage, dpcri_kept *kept, const uint8_t *labels, int64_t batch,
                             double *total, int64_t *correct, dpcr_error *error) {
    if (kept->rows == 0) return DPCR_OK;
    const dpcr_array logits = matrix(stage, kept->logits, kept->rows, stage->outputs);
    return dpcri_loss_cross_entropy_part(&logits, labels, batch, total, &logits, correct, error);
}

dpcr_status dpcri_stage_input(dpcri_stage *stage, dpcri_kept *kept, int part, dpcr_error *error) {
    const int64_t rows = kept->part_rows[part], row = part ? kept->part_rows[0] : 0, w = stage->width;
    const int64_t e = (int64_t)stage->element;
    char *const dz = kept->dz + row * w * e;
    if (rows == 0) return DPCR_OK;
    if (stage->outputs)
        dpcri_model_head_input(
            stage->model, rows,
            (dpcri_rows){kept->logits + row * stage->outputs * (int64_t)stage->element, stage->outputs},
            (dpcri_rows){dz, w});
    if (!stage->layers) {
        memcpy(kept->dx[part], dz, (size_t)(rows * w * e));
        return DPCR_OK;
    }
    const dpcr_span span = {
        .size = sizeof span, .lanes = 1, .stride = 1, .steps = stage->layers, .row = row, .rows = rows};
    const dpcr_array in = lane(stage, kept->z, kept->rows, row, rows, w),
                     tape = lane(stage, kept->tape, kept->rows, row, rows, stage->tape_values),
                     g = lane(stage, kept->g[part], rows, 0, rows, w), last = one_lane(stage, dz, rows),
                     dx = one_lane(stage, kept->dx[part], rows);
    return told(stage->steps.adjoint(stage->steps.user, &span, &in, stage->tape_values ? &tape : NULL, NULL, &last,
                                     kept->turned ? NULL : &g, stage->needs_input ? &dx : NULL),
                error);
}

dpcr_status dpcri_stage_adjoints(dpcri_stage *stage, dpcri_kept *kept, int part, dpcr_error *error) {
    if (stage->layers != 1 || stage->inputs || stage->outputs) return dpcri_stage_input(stage, kept, part, error);
    const size_t state = (size_t)stage->width * stage->element;
    memcpy(kept->g[part], kept->dz + (part ? (size_t)kept->part_rows[0] * state : 0),
           (size_t)kept->part_rows[part] * state);
    return DPCR_OK;
}

static dpcr_status weight_part(dpcri_stage *stage, const dpcri_kept *kept, int part, dpcr_error *error) {
    const int64_t rows = kept->part_rows[part], row = part ? kept->part_rows[0] : 0, e = (int64_t)stage->element;
    dpcr_status status = DPCR_OK;
    if (rows == 0) return DPCR_OK;
    if (stage->outputs)
        dpcri_model_head_weight(stage->model, rows,
                                (dpcri_rows){dpcri_stage_result(stage, kept) + row * stage->width * e, stage->width},
                                (dpcri_rows){kept->logits + row * stage->outputs * e, stage->outputs});
    if (stage->layers) {
        const dpcr_span span = {
            .size = sizeof span, .lanes = stage->layers, .stride = 1, .steps = 1, .row = row, .rows = rows};
        const dpcr_array in = steps_as_lanes(lane(stage, kept->z, kept->rows, row, rows, stage->width)),
                         tape = steps_as_lanes(lane(stage, kept->tape, kept->rows, row, rows, stage->tape_values)),
                         g = steps_as_lanes(lane(stage, kept->g[part], rows, 0, rows, stage->width));
        DPCR_TRY(told(stage->steps.gradient(stage->steps.user, &span, &in, stage->tape_values ? &tape : NULL,
                                            kept->turned ? NULL : &g),
                      error));
    }
    if (stage->inputs) {
        const dpcr_array x = matrix(stage, kept->x + row * stage->inputs * e, rows, stage->inputs),
                         dx = matrix(stage, kept->dx[part], rows, stage->width);
        DPCR_TRY(dpcr_model_encode_backward(stage->model, &x, &dx, error));
    }
done:
    return status;
}

dpcr_status dpcri_stage_weight(dpcri_stage *stage, dpcri_kept *kept, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int part = 0; part < kept->parts; part++) DPCR_TRY(weight_part(stage, kept, part, error));
done:
    return status;
}

// ---- gradients and updates ----

static double square_sum(const dpcri_stage *stage, int64_t from, int64_t count) {
    const char *g = stage->model->gradients;
    double sum = 0;
    for (int64_t i = from; i < from + count; i++) {
        const double x = stage->element == 8 ? ((const double *)g)[i] : (double)((const float *)g)[i];
        sum += x * x;
    }
    return sum;
}

void dpcri_stage_squares(const dpcri_stage *stage, int64_t tie, int64_t first, double *sums) {
    const dpcr_model *m = stage->model;
    if (stage->inputs) *sums++ = square_sum(stage, m->encoder, m->head - m->encoder);
    for (int64_t l = 0; l < stage->layers; l++)
        *sums++ = tie && first + l >= tie ? 0 : square_sum(stage, l * m->program.parameters, m->program.parameters);
    if (stage->outputs) *sums++ = square_sum(stage, m->head, m->count - m->head);
}

void dpcri_stage_scale(const dpcri_stage *stage, double factor) {
    char *g = stage->model->gradients;
    for (int64_t i = 0; i < stage->count; i++) {
        if (stage->element == 8)
            ((double *)g)[i] *= factor;
        else
            ((float *)g)[i] *= (float)factor;
    }
}

dpcr_status dpcri_stage_optimiser(const dpcri_stage *stage, const dpcr_model *model, int64_t first, int64_t end,
                                  const dpcr_optimiser_options *options, const dpcr_optimiser *state,
                                  dpcr_optimiser **optimiser, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(dpcri_optimiser_create(stage->context, options, stage->steps.dtype, stage->count, optimiser, error));
    dpcr_optimiser *made = *optimiser;
    if (!state) return DPCR_OK;
    made->step = state->step;
    if (made->first) dpcri_units_get(model, first, end, made->first, state->first);
    if (made->second) dpcri_units_get(model, first, end, made->second, state->second);
done:
    return status;
}
