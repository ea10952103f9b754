// SPDX-License-Identifier: MIT
// Gradients clipped by their norm or number by number, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do:
//
//   norm    c = most / (|g| + 1e-6);  g *= c where c < 1          value   g = min(max(g, -most), most)
//
// One pass over the gradients, two where they are scaled. An array is cut into blocks that follow from its size alone;
// squares are summed in double, element j of a block in part j mod DPCRI_CLIP_PARTS, then parts and blocks in order:
// the same bits for any number of threads, and at every instruction set level.
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "deeppcr/train.h"
#include "kern/device.h"
#include "rt/rt.h"

typedef struct clipping {
    const dpcr_array *array;
    int64_t count, block;
    bool by_value;
    double factor, most;  // of a scaling; of a clipping by value
    double sums[DPCRI_CLIP_BLOCKS];
} clipping;

#define T float
#define C(name) name##_f32
#include "train/clip.inc"
#undef T
#undef C
#define T double
#define C(name) name##_f64
#include "train/clip.inc"
#undef T
#undef C

static int64_t block_of(const clipping *c, int64_t index, int64_t *from) {
    *from = index * c->block;
    return c->count - *from < c->block ? c->count - *from : c->block;
}

static void sum_block(void *argument, int64_t index) {
    clipping *c = argument;
    int64_t from;
    const int64_t n = block_of(c, index, &from);
    c->sums[index] = c->array->dtype == DPCR_F64 ? squares_f64(n, (const double *)c->array->data + from)
                                                 : squares_f32(n, (const float *)c->array->data + from);
}

static void change_block(void *argument, int64_t index) {
    const clipping *c = argument;
    int64_t from;
    const int64_t n = block_of(c, index, &from);
    if (c->array->dtype == DPCR_F64)
        change_f64(n, (double *)c->array->data + from, c->by_value, c->by_value ? c->most : c->factor);
    else
        change_f32(n, (float *)c->array->data + from, c->by_value, (float)(c->by_value ? c->most : c->factor));
}

static void take(clipping *c, const dpcr_array *array) {
    c->array = array;
    c->count = 1;
    for (int32_t d = 0; d < array->ndim; d++) c->count *= array->shape[d];
    c->block = (c->count + DPCRI_CLIP_BLOCKS - 1) / DPCRI_CLIP_BLOCKS;
    if (c->block < DPCRI_CLIP_LEAST) c->block = DPCRI_CLIP_LEAST;
}

static int64_t blocks_of(const clipping *c) { return (c->count + c->block - 1) / c->block; }

static bool usable(const dpcr_array *a) {
    int64_t count = 1;
    if (a->ndim < 0 || a->ndim > DPCR_MAX_DIMS || a->device.type != DPCR_HOST) return false;
    if (a->dtype != DPCR_F32 && a->dtype != DPCR_F64) return false;
    for (int32_t d = a->ndim - 1; d >= 0; d--) {
        if (a->shape[d] < 0 || (a->shape[d] > 1 && a->strides[d] != count)) return false;
        if (!dpcri_mul(count, a->shape[d], &count)) return false;
    }
    return count == 0 || a->data;
}

static dpcr_status check(dpcr_context *context, const char *call, const dpcr_array *gradients, int64_t arrays,
                         double most, dpcr_error *error) {
    char text[96];
    if (!context || arrays < 0 || (arrays > 0 && !gradients))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a context and %lld gradients are wanted", call,
                          (long long)arrays);
    if (!(most >= 0)) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: most is %g, wanted 0 or more", call, most);
    for (int64_t i = 0; i < arrays; i++)
        if (!usable(&gradients[i]))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: gradients[%lld] is %s, wanted float32 or float64 on the host, contiguous", call,
                              (long long)i, dpcri_array_text(&gradients[i], text, sizeof text));
    return DPCR_OK;
}

dpcr_status dpcr_gradients_clip_norm(dpcr_context *context, const dpcr_array *gradients, int64_t arrays, double most,
                                     double *norm, dpcr_error *error) {
    const double guard = 1e-6;  // PyTorch's
    const dpcr_status status = check(context, "gradients_clip_norm", gradients, arrays, most, error);
    if (status != DPCR_OK) return status;
    clipping c = {.by_value = false};
    double sum = 0;
    for (int64_t i = 0; i < arrays; i++) {
        take(&c, &gradients[i]);
        dpcri_parallel(context, blocks_of(&c), sum_block, &c);
        for (int64_t b = 0; b < blocks_of(&c); b++) sum += c.sums[b];
    }
    const double length = sqrt(sum);
    if (norm) *norm = length;
    c.factor = most / (length + guard);
    if (isinf(most) || c.factor >= 1) return DPCR_OK;  // a norm that is NaN goes on, and shows in all gradients
    for (int64_t i = 0; i < arrays; i++) {
        take(&c, &gradients[i]);
        dpcri_parallel(context, blocks_of(&c), change_block, &c);
    }
    return DPCR_OK;
}

dpcr_status dpcr_gradients_clip_value(dpcr_context *context, const dpcr_array *gradients, int64_t arrays, double most,
                                      dpcr_error *error) {
    const dpcr_status status = check(context, "gradients_clip_value", gradients, arrays, most, error);
    if (status != DPCR_OK) return status;
    clipping c = {.by_value = true, .most = most};
    for (int64_t i = 0; i < arrays; i++) {
        take(&c, &gradients[i]);
        dpcri_parallel(context, blocks_of(&c), change_block, &c);
    }
    return DPCR_OK;
}
