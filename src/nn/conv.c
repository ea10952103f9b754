// SPDX-License-Identifier: MIT
// A convolution by dense products, without its Jacobian: images unrolled to rows, p = (b, u, v) an output position,
//
//   R[p][(a, ky, kx)] = x[a][u s - q + ky d][v s - q + kx d], 0 beyond the border
//
//   forward     y[j][p] = bias[j] + sum_(a, ky, kx) W[j][a][ky][kx] R[p][(a, ky, kx)]
//   adjoint     C[p][(a, ky, kx)] = sum_j g_out[j][p] W[j][a][ky][kx];   g_in = the transposed unrolling of C
//   gradients   g_W[j][(a, ky, kx)] = sum_p g_out[j][p] R[p][(a, ky, kx)],   g_bias[j] = sum_p g_out[j][p]
//
// Each is one wide product. Work 2 B P O I K for P output positions, O and I channels, K kernel entries; memory about
// B P (I K + O) + O I K numbers, for gradients B P (2 I K + O). What a dense library does for back-propagation, beside
// which BPPSA's sparse one is measured. Source: Chellapilla, Puri, Simard (2006), unrolled convolutions.
#include <inttypes.h>
#include <string.h>

#include "kern/wide.h"
#include "nn/jacobian.h"
#include "transition/transition_internal.h"

enum { TASK_PANELS = 4, TASK_ROWS = 192 };

typedef struct conv_job {
    const char *name;
    dpcr_context *context;
    const dpcr_conv2d *layer;
    const dpcri_wide_kernels *kernels;
    dpcr_dtype dtype;
    int64_t batch, out[2], stride[2], dilation[2];
    int64_t positions, columns;  // P, I K
    int64_t inputs, outputs;     // numbers of an image
    const dpcr_array *images, *results;
    const dpcr_array *written;       // of the two, or NULL
    void *rows, *unrolled, *packed;  // [B P][O], or [O][B P]; [B P][I K]; what a product multiplies by
    // the product at hand
    dpcri_wide_product product;
    bool transposed;
    const void *b;
} conv_job;

static int64_t or_one(int64_t x) { return x ? x : 1; }

// ---- sizes ----

static dpcr_status read_layer(const dpcr_conv2d *l, conv_job *job, dpcr_error *error) {
    for (int d = 0; d < 2; d++) {
        const int64_t in = d ? l->width : l->height;
        job->stride[d] = or_one(l->stride[d]);
        job->dilation[d] = or_one(l->dilation[d]);
        if (l->kernel[d] < 1 || l->padding[d] < 0 || job->stride[d] < 1 || job->dilation[d] < 1 || in < 1 ||
            in > INT32_MAX || l->kernel[d] > INT16_MAX || l->padding[d] > INT16_MAX || job->dilation[d] > INT16_MAX)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: sizes are not positive or too large", job->name);
        const int64_t room = in + 2 * l->padding[d] - job->dilation[d] * (l->kernel[d] - 1) - 1;
        if (room < 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the kernel is larger than the image", job->name);
        job->out[d] = room / job->stride[d] + 1;
    }
    if (or_one(l->groups) != 1 || l->in_channels < 1 || l->out_channels < 1 || l->in_channels > INT16_MAX * 2 ||
        l->out_channels > INT16_MAX * 2)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: wanted one group of 1 to 65534 channels", job->name);
    int64_t weights = 0;
    job->columns = l->in_channels * l->kernel[0] * l->kernel[1];  // below 2^46
    if (dpcri_mul(job->out[0], job->out[1], &job->positions) &&
        dpcri_mul(job->positions, l->out_channels, &job->outputs) &&
        dpcri_mul(l->in_channels * l->height, l->width, &job->inputs) &&
        dpcri_mul(job->columns, l->out_channels, &weights))
        return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: images of these sizes have more numbers than can be counted",
                      job->name);
}

// Contiguous, with so many numbers.
static bool holds(const dpcr_array *a, int64_t wanted) {
    int64_t count = 1;
    if (a->ndim < 0 || a->ndim > DPCR_MAX_DIMS) return false;
    for (int32_t d = a->ndim - 1; d >= 0; d--) {
        if (a->shape[d] < 0 || (a->shape[d] > 1 && a->strides[d] != count)) return false;
        if (!dpcri_mul(count, a->shape[d], &count)) return false;
    }
    return a->data && count == wanted;
}

static dpcr_status check_host(const conv_job *job, const char *name, const dpcr_array *a, dpcr_error *error) {
    if (!a || a->device.type == DPCR_HOST) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %s lies on device type %d, wanted host memory (%d)",
                      job->name, name, (int)a->device.type, (int)DPCR_HOST);
}

// Of inputs or outputs, whose shape fits: where they lie, and that rows that are written do not overlap.
static dpcr_status check_rows(const conv_job *job, const char *name, const dpcr_array *a, dpcr_error *error) {
    dpcri_view view;
    const dpcri_wanted wanted = {.function = job->name,
                                 .name = name,
                                 .dtype = job->dtype,
                                 .steps = -1,
                                 .rows = job->batch,
                                 .values = a->shape[1],
                                 .written = a == job->written};
    return dpcri_view_of(a, &wanted, &view, error);
}

// weights: W or its gradient; images, results: x and y or their gradients; vector: the bias, its gradient, or NULL.
static dpcr_status check(conv_job *job, const dpcr_array *weights, const dpcr_array *vector, dpcr_error *error) {
    const dpcr_conv2d *l = job->layer;
    const dpcr_array *x = job->images, *y = job->results;
    dpcr_status status = DPCR_OK;
    if (!job->context || !l || !weights || !x || !y || l->size < sizeof *l)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: an argument is NULL, or layer.size is wrong", job->name);
    DPCR_TRY(read_layer(l, job, error));
    job->batch = y->ndim == 2 ? y->shape[0] : -1;
    job->dtype = weights->dtype;
    const bool fits = x->ndim == 2 && x->shape[0] == job->batch && job->batch >= 0 && y->shape[1] == job->outputs &&
                      x->shape[1] == job->inputs && y->strides[1] == 1 && x->strides[1] == 1 &&
                      holds(weights, l->out_channels * job->columns) && (!vector || holds(vector, l->out_channels)) &&
                      y->dtype == weights->dtype && x->dtype == weights->dtype &&
                      (!vector || vector->dtype == weights->dtype) && (job->batch == 0 || (x->data && y->data));
    if (!fits)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: wanted %" PRId64 " weights, outputs [B][%" PRId64 "] and inputs [B][%" PRId64
                          "] of one dtype, weights and rows contiguous",
                          job->name, l->out_channels * job->columns, job->outputs, job->inputs);
    job->kernels = dpcri_wide_kernels_get(weights->dtype);
    if (!job->kernels)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: wanted float or double weights", job->name);
    DPCR_TRY(check_host(job, "an array of weights", weights, error));
    DPCR_TRY(check_host(job, "a bias", vector, error));
    DPCR_TRY(check_rows(job, "an array of inputs", x, error));
    DPCR_TRY(check_rows(job, "an array of outputs", y, error));
done:
    return status;
}

// Memory for rows, the unrolled images, and a packed matrix [depth][columns].
static dpcr_status take(conv_job *job, int64_t depth, int64_t columns, dpcr_error *error) {
    bool overflow = false;
    int64_t all = 0;
    if (!dpcri_mul(job->batch, job->positions, &all)) overflow = true;
    const int64_t e = (int64_t)job->kernels->element, panels = dpcri_wide_panels(job->kernels, columns);
    const size_t rows = dpcri_bytes(all, job->layer->out_channels, e, &overflow),
                 unrolled = dpcri_bytes(all, job->columns, e, &overflow),
                 packed = dpcri_bytes(panels * job->kernels->panel, depth, e, &overflow);
    job->rows = overflow ? NULL : dpcri_alloc(job->context, rows);
    job->unrolled = overflow ? NULL : dpcri_alloc(job->context, unrolled);
    job->packed = overflow ? NULL : dpcri_alloc(job->context, packed);
    if (job->rows && job->unrolled && job->packed) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: %s were refused", job->name,
                      overflow ? "more bytes than can be counted" : "its products' bytes");
}

static void release(conv_job *job) {
    dpcri_free(job->context, job->packed);
    dpcri_free(job->context, job->unrolled);
    dpcri_free(job->context, job->rows);
}

// ---- moving ----

// Two functions an element type: images in the batch's order to what products take, and back.
#define MOVES(type, name)                                                                                     \
    /* rows[b P + p][j] = y[b][j][p] */                                                                       \
    static void name##_rows(const conv_job *job, int64_t b) {                                                 \
        const int64_t O = job->layer->out_channels;                                                           \
        const type *y = (const type *)job->results->data + b * job->results->strides[0];                      \
        type *rows = (type *)job->rows + b * job->positions * O;                                              \
        for (int64_t j = 0; j < O; j++)                                                                       \
            for (int64_t p = 0; p < job->positions; p++) rows[p * O + j] = y[j * job->positions + p];         \
    }                                                                                                         \
    static void name##_rows_back(const conv_job *job, int64_t b) {                                            \
        const int64_t O = job->layer->out_channels;                                                           \
        type *y = (type *)job->results->data + b * job->results->strides[0];                                  \
        const type *rows = (const type *)job->rows + b * job->positions * O;                                  \
        for (int64_t j = 0; j < O; j++)                                                                       \
            for (int64_t p = 0; p < job->positions; p++) y[j * job->positions + p] = rows[p * O + j];         \
    }                                                                                                         \
    /* rows[j][b P + p] = y[b][j][p] */                                                                       \
    static void name##_channels(const conv_job *job, int64_t b) {                                             \
        const int64_t O = job->layer->out_channels, P = job->positions;                                       \
        const type *y = (const type *)job->results->data + b * job->results->strides[0];                      \
        for (int64_t j = 0; j < O; j++)                                                                       \
            memcpy((type *)job->rows + (j * job->batch + b) * P, y + j * P, (size_t)P * sizeof(type));        \
    }                                                                                                         \
    static void name##_unroll(const conv_job *job, int64_t b, bool back) {                                    \
        const dpcr_conv2d *l = job->layer;                                                                    \
        const int64_t K = l->kernel[0] * l->kernel[1];                                                        \
        type *x = (type *)job->images->data + b * job->images->strides[0];                                    \
        type *c = (type *)job->unrolled + b * job->positions * job->columns;                                  \
        memset(back ? x : c, 0, (size_t)(back ? job->inputs : job->positions * job->columns) * sizeof(type)); \
        for (int64_t u = 0; u < job->out[0]; u++)                                                             \
            for (int64_t v = 0; v < job->out[1]; v++, c += job->columns)                                      \
                for (int64_t ky = 0; ky < l->kernel[0]; ky++)                                                 \
                    for (int64_t kx = 0; kx < l->kernel[1]; kx++) {                                           \
                        const int64_t i = u * job->stride[0] - l->padding[0] + ky * job->dilation[0],         \
                                      j = v * job->stride[1] - l->padding[1] + kx * job->dilation[1];         \
                        if (i < 0 || i >= l->height || j < 0 || j >= l->width) continue;                      \
                        type *at = x + i * l->width + j, *from = c + ky * l->kernel[1] + kx;                  \
                        const int64_t step = l->height * l->width;                                            \
                        if (back)                                                                             \
                            for (int64_t a = 0; a < l->in_channels; a++) at[a * step] += from[a * K];         \
                        else                                                                                  \
                            for (int64_t a = 0; a < l->in_channels; a++) from[a * K] = at[a * step];          \
                    }                                                                                         \
    }                                                                                                         \
    static void name##_sum(const conv_job *job, int64_t j, void *to) {                                        \
        const type *row = (const type *)job->rows + j * job->batch * job->positions;                          \
        double sum = 0;                                                                                       \
        for (int64_t p = 0; p < job->batch * job->positions; p++) sum += (double)row[p];                      \
        ((type *)to)[j] = (type)sum;                                                                          \
    }
MOVES(float, f32)
MOVES(double, f64)
#undef MOVES

#define TASK(name, call, ...)                     \
    static void name(void *argument, int64_t b) { \
        const conv_job *job = argument;           \
        if (job->dtype == DPCR_F64)               \
            f64_##call(__VA_ARGS__);              \
        else                                      \
            f32_##call(__VA_ARGS__);              \
    }
TASK(rows_of_image, rows, job, b)
TASK(image_of_rows, rows_back, job, b)
TASK(channels_of_image, channels, job, b)
TASK(unroll_image, unroll, job, b, false)
TASK(roll_image, unroll, job, b, true)
TASK(sum_channel, sum, job, b, (void *)(uintptr_t)job->b)
#undef TASK

// ---- products ----

static int64_t groups_of(const conv_job *job) {
    return (dpcri_wide_panels(job->kernels, job->product.columns) + TASK_PANELS - 1) / TASK_PANELS;
}

static void pack_panels(void *argument, int64_t task) {
    const conv_job *job = argument;
    const dpcri_wide_product *p = &job->product;
    const int64_t first = task * TASK_PANELS, all = dpcri_wide_panels(job->kernels, p->columns);
    job->kernels->pack(job->transposed, p->depth, p->columns, job->b, job->transposed ? p->depth : p->columns, first,
                       first + TASK_PANELS < all ? first + TASK_PANELS : all, job->packed);
}

static void multiply_panels(void *argument, int64_t task) {
    const conv_job *job = argument;
    const size_t e = job->kernels->element;
    const int64_t groups = groups_of(job), row = task / groups * TASK_ROWS,
                  column = task % groups * TASK_PANELS * job->kernels->panel, most = TASK_PANELS * job->kernels->panel;
    dpcri_wide_product p = job->product;
    p.rows = p.rows - row < TASK_ROWS ? p.rows - row : TASK_ROWS;
    p.columns = p.columns - column < most ? p.columns - column : most;
    p.a = (const char *)p.a + (size_t)(row * p.a_row) * e;
    p.packed = (const char *)job->packed + (size_t)(column * p.depth) * e;
    if (p.init) p.init = (const char *)p.init + (size_t)column * e;
    p.c = (char *)p.c + (size_t)(row * p.c_row + column) * e;
    p.streams = job->kernels->streams;
    job->kernels->product(&p);
}

// c [rows][columns] = init + a [rows][depth] b, b [depth][columns] or, transposed, [columns][depth]
static void multiply(conv_job *job, int64_t rows, int64_t depth, int64_t columns, const void *a, const void *b,
                     bool transposed, const void *init, void *c) {
    job->product = (dpcri_wide_product){.rows = rows,
                                        .depth = depth,
                                        .columns = columns,
                                        .a = a,
                                        .a_row = depth,
                                        .init = init,
                                        .c = c,
                                        .c_row = columns};
    job->b = b, job->transposed = transposed;
    dpcri_parallel(job->context, groups_of(job), pack_panels, job);
    dpcri_parallel(job->context, (rows + TASK_ROWS - 1) / TASK_ROWS * groups_of(job), multiply_panels, job);
}

// ---- the three ----

dpcr_status dpcr_conv2d_forward(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *weights,
                                const dpcr_array *bias, const dpcr_array *in, const dpcr_array *out,
                                dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    conv_job job = {
        .name = "conv2d_forward", .context = context, .layer = layer, .images = in, .results = out, .written = out};
    DPCR_TRY(check(&job, weights, bias, error));
    if (job.batch == 0) return DPCR_OK;
    DPCR_TRY(take(&job, job.columns, layer->out_channels, error));
    dpcri_parallel(context, job.batch, unroll_image, &job);
    multiply(&job, job.batch * job.positions, job.columns, layer->out_channels, job.unrolled, weights->data, true,
             bias ? bias->data : NULL, job.rows);
    dpcri_parallel(context, job.batch, image_of_rows, &job);
done:
    release(&job);
    return status;
}

dpcr_status dpcr_conv2d_adjoint(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *weights,
                                const dpcr_array *g_out, const dpcr_array *g_in, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    conv_job job = {.name = "conv2d_adjoint",
                    .context = context,
                    .layer = layer,
                    .images = g_in,
                    .results = g_out,
                    .written = g_in};
    DPCR_TRY(check(&job, weights, NULL, error));
    if (job.batch == 0) return DPCR_OK;
    DPCR_TRY(take(&job, layer->out_channels, job.columns, error));
    dpcri_parallel(context, job.batch, rows_of_image, &job);
    multiply(&job, job.batch * job.positions, layer->out_channels, job.columns, job.rows, weights->data, false, NULL,
             job.unrolled);
    dpcri_parallel(context, job.batch, roll_image, &job);
done:
    release(&job);
    return status;
}

dpcr_status dpcr_conv2d_gradients(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *in,
                                  const dpcr_array *g_out, const dpcr_array *g_weights, const dpcr_array *g_bias,
                                  dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    conv_job job = {.name = "conv2d_gradients", .context = context, .layer = layer, .images = in, .results = g_out};
    DPCR_TRY(check(&job, g_weights, g_bias, error));
    const int64_t all = job.batch * job.positions;
    if (all == 0) {
        memset(g_weights->data, 0, (size_t)(layer->out_channels * job.columns) * job.kernels->element);
        if (g_bias) memset(g_bias->data, 0, (size_t)layer->out_channels * job.kernels->element);
        return DPCR_OK;
    }
    DPCR_TRY(take(&job, all, job.columns, error));
    dpcri_parallel(context, job.batch, unroll_image, &job);
    dpcri_parallel(context, job.batch, channels_of_image, &job);
    multiply(&job, layer->out_channels, all, job.columns, job.rows, job.unrolled, false, NULL, g_weights->data);
    job.b = g_bias ? g_bias->data : NULL;
    if (g_bias) dpcri_parallel(context, layer->out_channels, sum_channel, &job);
done:
    release(&job);
    return status;
}
