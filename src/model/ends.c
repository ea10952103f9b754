// SPDX-License-Identifier: MIT
// Encoder and head: y = x W^T + b of PyTorch's W, which lies here as [in][out]. Work goes in fixed blocks of rows (of
// batch forward, of W backward) over the context's threads: the same bits for any number of threads.
#include <stdio.h>

#include "model/model_internal.h"

enum { BLOCK_ROWS = 32 };

dpcr_status dpcri_model_check_rows(const dpcr_model *model, const char *call, const char *what, const dpcr_array *array,
                                   int64_t rows, int64_t cols, int64_t *got, dpcr_error *error) {
    char text[128];
    const bool right = array && array->ndim == 2 && array->dtype == model->options.dtype &&
                       array->device.type == DPCR_HOST && array->shape[0] >= 0 &&
                       (rows < 0 || array->shape[0] == rows) && array->shape[1] == cols &&
                       (array->strides[1] == 1 || cols == 1) && (array->data || array->shape[0] == 0);
    if (right) {
        if (got) *got = array->shape[0];
        return DPCR_OK;
    }
    char wanted[32] = "B";
    if (rows >= 0) snprintf(wanted, sizeof wanted, "%lld", (long long)rows);
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted [%s][%lld] %s on the host, columns contiguous",
                      call, what, dpcri_array_text(array, text, sizeof text), wanted, (long long)cols,
                      dpcr_dtype_name(model->options.dtype));
}

typedef struct affine {
    const dpcr_model *model;
    int64_t in, out, rows;
    char *weight;  // parameters: W [in][out], b [out]
    char *gradient;
    dpcri_rows x, y;  // [rows][in], [rows][out]; backward: y holds dy, dx [rows][in] is written
    dpcri_rows dx;
} affine;

static int64_t blocks(int64_t n) { return (n + BLOCK_ROWS - 1) / BLOCK_ROWS; }
static int64_t block_size(int64_t n, int64_t i) {
    return n - i * BLOCK_ROWS < BLOCK_ROWS ? n - i * BLOCK_ROWS : BLOCK_ROWS;
}

static void forward_block(void *argument, int64_t i) {
    const affine *a = argument;
    const dpcri_nn_kernels *k = a->model->program.kernels;
    const dpcri_rows x = dpcri_rows_at(a->x, i * BLOCK_ROWS, 0, k->element),
                     y = dpcri_rows_at(a->y, i * BLOCK_ROWS, 0, k->element);
    k->product(&(dpcri_product){.m = block_size(a->rows, i),
                                .n = a->out,
                                .depth = a->in,
                                .a = x.data,
                                .a_row = x.row,
                                .a_col = 1,
                                .b = a->weight,
                                .b_row = a->out,
                                .init = dpcri_model_at(a->model, a->weight, a->in * a->out),
                                .c = y.data,
                                .c_row = y.row});
}

// dx = dy W^T for a block of rows
static void input_block(void *argument, int64_t i) {
    const affine *a = argument;
    const dpcri_nn_kernels *k = a->model->program.kernels;
    const dpcri_rows dx = dpcri_rows_at(a->dx, i * BLOCK_ROWS, 0, k->element),
                     dy = dpcri_rows_at(a->y, i * BLOCK_ROWS, 0, k->element);
    k->product_transposed(&(dpcri_product){.m = block_size(a->rows, i),
                                           .n = a->in,
                                           .depth = a->out,
                                           .a = dy.data,
                                           .a_row = dy.row,
                                           .a_col = 1,
                                           .b = a->weight,
                                           .b_row = a->out,
                                           .c = dx.data,
                                           .c_row = dx.row});
}

// dW += x^T dy for a block of W's rows; every sum runs over the batch in order
static void weight_block(void *argument, int64_t i) {
    const affine *a = argument;
    const dpcri_nn_kernels *k = a->model->program.kernels;
    char *c = dpcri_model_at(a->model, a->gradient, i * BLOCK_ROWS * a->out);
    k->product(&(dpcri_product){.m = block_size(a->in, i),
                                .n = a->out,
                                .depth = a->rows,
                                .a = dpcri_rows_at(a->x, 0, i * BLOCK_ROWS, k->element).data,
                                .a_row = 1,
                                .a_col = a->x.row,
                                .b = a->y.data,
                                .b_row = a->y.row,
                                .init = c,
                                .init_row = a->out,
                                .c = c,
                                .c_row = a->out});
}

static void weight_backward(affine *a) {
    const dpcri_nn_kernels *k = a->model->program.kernels;
    if (a->rows == 0) return;
    dpcri_parallel(a->model->context, blocks(a->in), weight_block, a);
    dpcri_column_sums(k, a->rows, a->out, a->y, dpcri_model_at(a->model, a->gradient, a->in * a->out));
}

static void input_backward(affine *a) { dpcri_parallel(a->model->context, blocks(a->rows), input_block, a); }

static affine make(const dpcr_model *m, int64_t offset, int64_t in, int64_t out, int64_t rows, const dpcr_array *x,
                   const dpcr_array *y, const dpcr_array *dx) {
    return (affine){.model = m,
                    .in = in,
                    .out = out,
                    .rows = rows,
                    .weight = dpcri_model_at(m, m->parameters, offset),
                    .gradient = dpcri_model_at(m, m->gradients, offset),
                    .x = {x->data, x->strides[0]},
                    .y = {y->data, y->strides[0]},
                    .dx = dx ? (dpcri_rows){dx->data, dx->strides[0]} : (dpcri_rows){0}};
}

static dpcr_status check_end(const dpcr_model *m, const char *call, const char *end, int64_t width, dpcr_error *error) {
    if (!m) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: no model given", call);
    if (width) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the model has no %s; create it with %s > 0", call, end,
                      end[0] == 'e' ? "inputs" : "outputs");
}

dpcr_status dpcr_model_encode(const dpcr_model *m, const dpcr_array *x, const dpcr_array *z0, dpcr_error *error) {
    const char *const call = "model_encode";
    int64_t rows = 0;
    dpcr_status status = check_end(m, call, "encoder", m ? m->options.inputs : 0, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "x", x, -1, m->options.inputs, &rows, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "z0", z0, rows, m->options.width, NULL, error);
    if (status == DPCR_OK) status = dpcri_check_written(call, "z0", z0, error);
    if (status != DPCR_OK) return status;
    affine a = make(m, m->encoder, m->options.inputs, m->options.width, rows, x, z0, NULL);
    dpcri_parallel(m->context, blocks(rows), forward_block, &a);
    return DPCR_OK;
}

dpcr_status dpcr_model_encode_backward(dpcr_model *m, const dpcr_array *x, const dpcr_array *dz0, dpcr_error *error) {
    const char *const call = "model_encode_backward";
    int64_t rows = 0;
    dpcr_status status = check_end(m, call, "encoder", m ? m->options.inputs : 0, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "x", x, -1, m->options.inputs, &rows, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "dz0", dz0, rows, m->options.width, NULL, error);
    if (status != DPCR_OK) return status;
    affine a = make(m, m->encoder, m->options.inputs, m->options.width, rows, x, dz0, NULL);
    weight_backward(&a);
    return DPCR_OK;
}

dpcr_status dpcr_model_head(const dpcr_model *m, const dpcr_array *z, const dpcr_array *logits, dpcr_error *error) {
    const char *const call = "model_head";
    int64_t rows = 0;
    dpcr_status status = check_end(m, call, "head", m ? m->options.outputs : 0, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "z", z, -1, m->options.width, &rows, error);
    if (status == DPCR_OK)
        status = dpcri_model_check_rows(m, call, "logits", logits, rows, m->options.outputs, NULL, error);
    if (status == DPCR_OK) status = dpcri_check_written(call, "logits", logits, error);
    if (status != DPCR_OK) return status;
    affine a = make(m, m->head, m->options.width, m->options.outputs, rows, z, logits, NULL);
    dpcri_parallel(m->context, blocks(rows), forward_block, &a);
    return DPCR_OK;
}

dpcr_status dpcr_model_head_backward(dpcr_model *m, const dpcr_array *z, const dpcr_array *dlogits,
                                     const dpcr_array *dz, dpcr_error *error) {
    const char *const call = "model_head_backward";
    int64_t rows = 0;
    dpcr_status status = check_end(m, call, "head", m ? m->options.outputs : 0, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "z", z, -1, m->options.width, &rows, error);
    if (status == DPCR_OK)
        status = dpcri_model_check_rows(m, call, "dlogits", dlogits, rows, m->options.outputs, NULL, error);
    if (status == DPCR_OK) status = dpcri_model_check_rows(m, call, "dz", dz, rows, m->options.width, NULL, error);
    if (status == DPCR_OK) status = dpcri_check_written(call, "dz", dz, error);
    if (status != DPCR_OK) return status;
    affine a = make(m, m->head, m->options.width, m->options.outputs, rows, z, dlogits, dz);
    weight_backward(&a);
    input_backward(&a);
    return DPCR_OK;
}

void dpcri_model_head_input(const dpcr_model *m, int64_t rows, dpcri_rows dlogits, dpcri_rows dz) {
    affine a = {.model = m,
                .in = m->options.width,
                .out = m->options.outputs,
                .rows = rows,
                .weight = dpcri_model_at(m, m->parameters, m->head),
                .y = dlogits,
                .dx = dz};
    input_backward(&a);
}

void dpcri_model_head_weight(const dpcr_model *m, int64_t rows, dpcri_rows z, dpcri_rows dlogits) {
    affine a = {.model = m,
                .in = m->options.width,
                .out = m->options.outputs,
                .rows = rows,
                .gradient = dpcri_model_at(m, m->gradients, m->head),
                .x = z,
                .y = dlogits};
    weight_backward(&a);
}
