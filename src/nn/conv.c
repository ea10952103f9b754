// SPDX-License-Identifier: MIT
// A convolution's adjoint by dense products, without its Jacobian:
//
//   C[p][(a, ky, kx)] = sum_j g_out[j][p] W[j][a][ky][kx]        p = (b, u, v): one wide product
//   g_in[a][y][x] = sum over p, ky, kx with y = u s - q + ky d, x alike, of C[p][(a, ky, kx)]
//
// Work 2 B P O I K for P output positions, O and I channels, K kernel entries; memory B P (I K + O) + O I K numbers.
// What a dense library does for back-propagation (im2col transposed), beside which BPPSA's sparse one is measured.
#include <inttypes.h>
#include <string.h>

#include "kern/wide.h"
#include "nn/jacobian.h"

enum { TASK_PANELS = 4 };

typedef struct adjoint_job {
    const dpcr_conv2d *layer;
    const dpcri_wide_kernels *kernels;
    int64_t batch, out[2], stride[2], dilation[2];
    int64_t positions, columns;  // P, I K
    const dpcr_array *weights, *g_out, *g_in;
    void *packed, *rows, *products;  // W, [B P][O], [B P][I K]
} adjoint_job;

static int64_t or_one(int64_t x) { return x ? x : 1; }

// rows[b P + p][j] = g_out[b][j][p]
#define TRANSPOSE(type)                                           \
    for (int64_t j = 0; j < outputs; j++)                         \
        for (int64_t p = 0; p < job->positions; p++)              \
    ((type *)job->rows)[(b * job->positions + p) * outputs + j] = \
        ((const type *)job->g_out->data)[b * job->g_out->strides[0] + j * job->positions + p]

static void transpose_image(void *argument, int64_t b) {
    const adjoint_job *job = argument;
    const int64_t outputs = job->layer->out_channels;
    if (job->g_out->dtype == DPCR_F64)
        TRANSPOSE(double);
    else
        TRANSPOSE(float);
}
#undef TRANSPOSE

static void multiply_panels(void *argument, int64_t task) {
    const adjoint_job *job = argument;
    const dpcri_wide_kernels *k = job->kernels;
    const int64_t depth = job->layer->out_channels, first = task * TASK_PANELS,
                  all = dpcri_wide_panels(k, job->columns),
                  last = first + TASK_PANELS < all ? first + TASK_PANELS : all, column = first * k->panel;
    const char *packed = (const char *)job->packed + (size_t)(column * depth) * k->element;
    k->pack(false, depth, job->columns, job->weights->data, job->columns, first, last, job->packed);
    k->product(
        &(dpcri_wide_product){.rows = job->batch * job->positions,
                              .depth = depth,
                              .columns = (last * k->panel < job->columns ? last * k->panel : job->columns) - column,
                              .a = job->rows,
                              .a_row = depth,
                              .packed = packed,
                              .c = (char *)job->products + (size_t)column * k->element,
                              .c_row = job->columns});
}

#define SCATTER(type, name)                                                                                  \
    static void name(const adjoint_job *job, int64_t b) {                                                    \
        const dpcr_conv2d *l = job->layer;                                                                   \
        const int64_t K = l->kernel[0] * l->kernel[1];                                                       \
        type *g = (type *)job->g_in->data + b * job->g_in->strides[0];                                       \
        memset(g, 0, (size_t)(l->in_channels * l->height * l->width) * sizeof(type));                        \
        for (int64_t u = 0; u < job->out[0]; u++)                                                            \
            for (int64_t v = 0; v < job->out[1]; v++) {                                                      \
                const type *c =                                                                              \
                    (const type *)job->products + (b * job->positions + u * job->out[1] + v) * job->columns; \
                for (int64_t ky = 0; ky < l->kernel[0]; ky++)                                                \
                    for (int64_t kx = 0; kx < l->kernel[1]; kx++) {                                          \
                        const int64_t y = u * job->stride[0] - l->padding[0] + ky * job->dilation[0],        \
                                      x = v * job->stride[1] - l->padding[1] + kx * job->dilation[1];        \
                        if (y < 0 || y >= l->height || x < 0 || x >= l->width) continue;                     \
                        for (int64_t a = 0; a < l->in_channels; a++)                                         \
                            g[(a * l->height + y) * l->width + x] += c[a * K + ky * l->kernel[1] + kx];      \
                    }                                                                                        \
            }                                                                                                \
    }
SCATTER(float, scatter_f32)
SCATTER(double, scatter_f64)
#undef SCATTER

static void scatter_image(void *argument, int64_t b) {
    const adjoint_job *job = argument;
    if (job->g_in->dtype == DPCR_F64)
        scatter_f64(job, b);
    else
        scatter_f32(job, b);
}

static dpcr_status check(const dpcr_conv2d *l, const dpcr_array *weights, const dpcr_array *g_out,
                         const dpcr_array *g_in, adjoint_job *job, dpcr_error *error) {
    if (!l || !weights || !g_out || !g_in || l->size < sizeof *l)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "conv2d_adjoint: an argument is NULL, or layer.size is wrong");
    for (int d = 0; d < 2; d++) {
        const int64_t in = d ? l->width : l->height;
        job->stride[d] = or_one(l->stride[d]);
        job->dilation[d] = or_one(l->dilation[d]);
        if (l->kernel[d] < 1 || l->padding[d] < 0 || job->stride[d] < 1 || job->dilation[d] < 1 || in < 1 ||
            in > INT32_MAX || l->kernel[d] > INT16_MAX || l->padding[d] > INT16_MAX || job->dilation[d] > INT16_MAX)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "conv2d_adjoint: sizes are not positive or too large");
        const int64_t room = in + 2 * l->padding[d] - job->dilation[d] * (l->kernel[d] - 1) - 1;
        if (room < 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "conv2d_adjoint: the kernel is larger than the image");
        job->out[d] = room / job->stride[d] + 1;
    }
    if (or_one(l->groups) != 1 || l->in_channels < 1 || l->out_channels < 1 || l->in_channels > INT16_MAX * 2 ||
        l->out_channels > INT16_MAX * 2)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "conv2d_adjoint: wanted one group of 1 to 65534 channels");
    job->positions = job->out[0] * job->out[1];
    job->columns = l->in_channels * l->kernel[0] * l->kernel[1];
    job->batch = g_out->ndim == 2 ? g_out->shape[0] : -1;
    int64_t count = 1;
    for (int32_t d = 0; d < weights->ndim; d++) count *= weights->shape[d];
    const bool fits = g_in->ndim == 2 && g_in->shape[0] == job->batch && job->batch >= 0 &&
                      g_out->shape[1] == l->out_channels * job->positions &&
                      g_in->shape[1] == l->in_channels * l->height * l->width && g_out->strides[1] == 1 &&
                      g_in->strides[1] == 1 && count == l->out_channels * job->columns &&
                      g_out->dtype == weights->dtype && g_in->dtype == weights->dtype;
    if (fits && weights->data && (job->batch == 0 || (g_out->data && g_in->data))) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "conv2d_adjoint: wanted %" PRId64 " weights, g_out [B][%" PRId64 "] and g_in [B][%" PRId64
                      "] of one dtype, rows contiguous",
                      l->out_channels * job->columns, l->out_channels * job->positions,
                      l->in_channels * l->height * l->width);
}

dpcr_status dpcr_conv2d_adjoint(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *weights,
                                const dpcr_array *g_out, const dpcr_array *g_in, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    adjoint_job job = {.layer = layer, .weights = weights, .g_out = g_out, .g_in = g_in};
    if (!context) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "conv2d_adjoint: context is NULL");
    DPCR_TRY(check(layer, weights, g_out, g_in, &job, error));
    job.kernels = dpcri_wide_kernels_get(weights->dtype);
    if (!job.kernels)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "conv2d_adjoint: wanted float or double weights");
    if (job.batch == 0) return DPCR_OK;
    bool overflow = false;
    const int64_t e = (int64_t)job.kernels->element, panels = dpcri_wide_panels(job.kernels, job.columns);
    const size_t packed = dpcri_bytes(panels * job.kernels->panel, layer->out_channels, e, &overflow),
                 rows = dpcri_bytes(job.batch * job.positions, layer->out_channels, e, &overflow),
                 products = dpcri_bytes(job.batch * job.positions, job.columns, e, &overflow);
    job.packed = overflow ? NULL : dpcri_alloc(context, packed);
    job.rows = overflow ? NULL : dpcri_alloc(context, rows);
    job.products = overflow ? NULL : dpcri_alloc(context, products);
    if (!job.packed || !job.rows || !job.products)
        DPCR_TRY(
            dpcri_fail(error, DPCR_ERROR_MEMORY, "conv2d_adjoint: %zu bytes were refused", packed + rows + products));
    dpcri_parallel(context, job.batch, transpose_image, &job);
    dpcri_parallel(context, (panels + TASK_PANELS - 1) / TASK_PANELS, multiply_panels, &job);
    dpcri_parallel(context, job.batch, scatter_image, &job);
done:
    dpcri_free(context, job.products);
    dpcri_free(context, job.rows);
    dpcri_free(context, job.packed);
    return status;
}
