// SPDX-License-Identifier: MIT
// torch.nn.Embedding: rows by index, and back. Work and memory traffic: count D numbers. Forward, tasks own positions;
// back, rows of the result, each task in one pass over the indices, so that a row's sum has one order.
#include "deeppcr/embedding.h"

#include <string.h>

#include "base/base.h"
#include "base/random.h"
#include "rt/rt.h"

enum { POSITIONS = 1024, ROW_TASKS = 16 };

typedef struct lookup {
    const char *from;
    char *to;
    const int64_t *indices;
    int64_t count, rows, width, padding;
    size_t element;
    uint64_t seed;
} lookup;

static bool contiguous(const dpcr_array *a) {
    int64_t count = 1;
    if (!a || a->ndim < 1 || a->ndim > DPCR_MAX_DIMS || a->device.type != DPCR_HOST) return false;
    if (a->dtype != DPCR_F32 && a->dtype != DPCR_F64) return false;
    for (int32_t d = a->ndim - 1; d >= 0; d--) {
        if (a->shape[d] < 0 || (a->shape[d] > 1 && a->strides[d] != count)) return false;
        if (!dpcri_mul(count, a->shape[d], &count)) return false;
    }
    return count == 0 || a->data;
}

static dpcr_status check_weight(const char *call, const dpcr_array *weight, dpcr_error *error) {
    char text[96];
    if (contiguous(weight) && weight->ndim == 2) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: weight is %s, wanted [V][D] float32 or float64, contiguous",
                      call, weight ? dpcri_array_text(weight, text, sizeof text) : "absent");
}

// y or dy against the weights.
static dpcr_status check_vectors(const char *call, const dpcr_array *weight, int64_t count, const dpcr_array *vectors,
                                 dpcr_error *error) {
    char text[96];
    const int64_t width = weight->shape[1];
    bool fits = contiguous(vectors) && vectors->dtype == weight->dtype && vectors->shape[vectors->ndim - 1] == width;
    int64_t rows = 1;
    for (int32_t d = 0; fits && d < vectors->ndim - 1; d++) rows *= vectors->shape[d];
    fits = fits && rows == count;
    if (fits) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the vectors are %s, wanted %lld rows of %lld %s, contiguous",
                      call, vectors ? dpcri_array_text(vectors, text, sizeof text) : "absent", (long long)count,
                      (long long)width, dpcr_dtype_name(weight->dtype));
}

static dpcr_status check_indices(const char *call, const dpcr_array *weight, const int64_t *indices, int64_t count,
                                 dpcr_error *error) {
    if (count < 0 || (count > 0 && !indices))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %lld indices are wanted", call, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= weight->shape[0])
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: indices[%lld] is %lld, wanted 0..%lld", call,
                              (long long)i, (long long)indices[i], (long long)weight->shape[0] - 1);
    return DPCR_OK;
}

static dpcr_status check_padding(const char *call, const dpcr_array *weight, int64_t padding, dpcr_error *error) {
    if (padding < weight->shape[0]) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: padding is %lld, wanted less than %lld, or negative for none",
                      call, (long long)padding, (long long)weight->shape[0]);
}

static void initialise_row(void *argument, int64_t row) {
    const lookup *l = argument;
    char *to = l->to + (size_t)(row * l->width) * l->element;
    if (row == l->padding) {
        memset(to, 0, (size_t)l->width * l->element);
        return;
    }
    for (int64_t j = 0; j < l->width; j++) {
        const double x = dpcri_random_normal(l->seed, DPCRI_STREAM_PARAMETERS, (uint64_t)(row * l->width + j));
        if (l->element == sizeof(double))
            ((double *)(void *)to)[j] = x;
        else
            ((float *)(void *)to)[j] = (float)x;
    }
}

dpcr_status dpcr_embedding_initialise(dpcr_context *context, const dpcr_array *weight, uint64_t seed, int64_t padding,
                                      dpcr_error *error) {
    const char *const call = "embedding_initialise";
    if (!context) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a context is wanted", call);
    dpcr_status status = check_weight(call, weight, error);
    if (status == DPCR_OK) status = check_padding(call, weight, padding, error);
    if (status != DPCR_OK) return status;
    lookup l = {.to = weight->data,
                .width = weight->shape[1],
                .padding = padding,
                .element = dpcr_dtype_size(weight->dtype),
                .seed = seed};
    dpcri_parallel(context, weight->shape[0], initialise_row, &l);
    return DPCR_OK;
}

static void copy_rows(void *argument, int64_t task) {
    const lookup *l = argument;
    const int64_t begin = task * POSITIONS, end = l->count - begin < POSITIONS ? l->count : begin + POSITIONS;
    const size_t bytes = (size_t)l->width * l->element;
    for (int64_t i = begin; i < end; i++)
        memcpy(l->to + (size_t)i * bytes, l->from + (size_t)l->indices[i] * bytes, bytes);
}

dpcr_status dpcr_embedding_forward(dpcr_context *context, const dpcr_array *weight, const int64_t *indices,
                                   int64_t count, const dpcr_array *y, dpcr_error *error) {
    const char *const call = "embedding_forward";
    dpcr_status status;
    if (!context) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a context is wanted", call);
    DPCR_TRY(check_weight(call, weight, error));
    DPCR_TRY(check_indices(call, weight, indices, count, error));
    DPCR_TRY(check_vectors(call, weight, count, y, error));
    if (weight->shape[1] == 0) return DPCR_OK;
    lookup l = {.from = weight->data,
                .to = y->data,
                .indices = indices,
                .count = count,
                .width = weight->shape[1],
                .element = dpcr_dtype_size(weight->dtype)};
    dpcri_parallel(context, (count + POSITIONS - 1) / POSITIONS, copy_rows, &l);
done:
    return status;
}

static void add_row(const lookup *l, int64_t row, int64_t i) {
    const int64_t width = l->width;
    if (l->element == sizeof(double)) {
        double *to = (double *)(void *)l->to + row * width;
        const double *from = (const double *)(const void *)l->from + i * width;
        for (int64_t j = 0; j < width; j++) to[j] += from[j];
    } else {
        float *to = (float *)(void *)l->to + row * width;
        const float *from = (const float *)(const void *)l->from + i * width;
        for (int64_t j = 0; j < width; j++) to[j] += from[j];
    }
}

static void add_rows(void *argument, int64_t task) {
    const lookup *l = argument;
    const int64_t each = (l->rows + ROW_TASKS - 1) / ROW_TASKS, begin = task * each, end = begin + each;
    for (int64_t i = 0; i < l->count; i++) {
        const int64_t row = l->indices[i];
        if (row >= begin && row < end && row != l->padding) add_row(l, row, i);
    }
}

dpcr_status dpcr_embedding_backward(dpcr_context *context, const dpcr_array *dy, const int64_t *indices, int64_t count,
                                    int64_t padding, const dpcr_array *dweight, dpcr_error *error) {
    const char *const call = "embedding_backward";
    dpcr_status status;
    if (!context) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a context is wanted", call);
    DPCR_TRY(check_weight(call, dweight, error));
    DPCR_TRY(check_padding(call, dweight, padding, error));
    DPCR_TRY(check_indices(call, dweight, indices, count, error));
    DPCR_TRY(check_vectors(call, dweight, count, dy, error));
    lookup l = {.from = dy->data,
                .to = dweight->data,
                .indices = indices,
                .count = count,
                .rows = dweight->shape[0],
                .width = dweight->shape[1],
                .padding = padding,
                .element = dpcr_dtype_size(dweight->dtype)};
    dpcri_parallel(context, ROW_TASKS, add_rows, &l);
done:
    return status;
}
