// SPDX-License-Identifier: MIT
// Dense layers on all threads. A task is some panels of the columns for a block of rows; every sum has its fixed order,
// so tasks decide no bit. Going back:  du = act'(u) dy,  dW = du^T x,  db = sum du,  dx = du W.
#include "sample/dense.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "sample/convolution.h"

enum { ROW_BLOCK = 48, PARALLEL_FLOPS = 300000, SUM_COLUMNS = 64 };

dpcri_net dpcri_net_make(dpcr_context *context) {
    return (dpcri_net){
        .context = context, .wide = dpcri_wide_kernels_get(DPCR_F32), .nn = dpcri_nn_kernels_get(DPCR_F32)};
}

int dpcri_net_add(dpcri_net *net, const char *name, int64_t in, int64_t out, int activation, bool residual) {
    dpcri_dense *d = &net->layers[net->count];
    *d = (dpcri_dense){
        .in = in, .out = out, .activation = activation, .residual = residual, .bias = true, .weight = net->parameters};
    snprintf(d->name, sizeof d->name, "%s", name);
    net->parameters += in * out + out;
    return net->count++;
}

static int64_t packed_numbers(const dpcri_net *net, int64_t depth, int64_t columns) {
    return dpcri_wide_panels(net->wide, columns) * net->wide->panel * depth;
}

static dpcr_status no_memory(int64_t numbers, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "network: no memory for %lld numbers", (long long)numbers);
}

static dpcr_status take(dpcri_net *net, int64_t numbers, float **place, dpcr_error *error) {
    *place = dpcri_alloc_zero(net->context, (size_t)(numbers > 0 ? numbers : 1) * sizeof(float));
    return *place ? DPCR_OK : no_memory(numbers, error);
}

static void draw_layer(dpcri_net *net, int layer, uint64_t seed) {
    const dpcri_dense *d = &net->layers[layer];
    const size_t length = strlen(d->name);
    if (length >= 3 && !strcmp(d->name + length - 3, "out")) return;
    const float bound = (float)sqrt(3.0 / (double)d->in);
    for (int64_t i = 0; i < d->in * d->out; i++)
        net->values[d->weight + i] =
            bound * (2 * dpcri_random_uniform_f32(seed, DPCRI_STREAM_PARAMETERS | (uint64_t)layer, (uint64_t)i) - 1);
}

dpcr_status dpcri_net_create(dpcri_net *net, const uint64_t *seed, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(take(net, net->parameters, &net->values, error));
    for (int i = 0; i < net->count; i++)
        DPCR_TRY(take(net, packed_numbers(net, net->layers[i].in, net->layers[i].out), &net->layers[i].packed, error));
    for (int i = 0; seed && i < net->count; i++) draw_layer(net, i, *seed);
    dpcri_net_pack(net);
done:
    return status;
}

dpcr_status dpcri_net_train(dpcri_net *net, int64_t rows, dpcr_error *error) {
    dpcr_status status;
    int64_t weight = 0, x = 0, widest = 0;
    for (int i = 0; i < net->count; i++) {
        const dpcri_dense *d = &net->layers[i];
        const int64_t own = d->gather ? DPCRI_CONV_PICTURES * d->gather->out_places : rows;
        const int64_t here = packed_numbers(net, d->out, d->in), there = packed_numbers(net, own, d->in);
        weight = here > weight ? here : weight;
        x = there > x ? there : x;
        widest = d->out * own > widest ? d->out * own : widest;
    }
    float **const places[] = {&net->gradients, &net->packed_weight, &net->packed_x, &net->transposed};
    for (int i = 0; i < 4; i++) {
        dpcri_free(net->context, *places[i]);
        *places[i] = NULL;
    }
    net->rows = rows;
    DPCR_TRY(take(net, net->parameters, &net->gradients, error));
    DPCR_TRY(take(net, weight, &net->packed_weight, error));
    DPCR_TRY(take(net, x, &net->packed_x, error));
    DPCR_TRY(take(net, widest, &net->transposed, error));
done:
    return status;
}

void dpcri_net_destroy(dpcri_net *net) {
    if (!net->context) return;
    for (int i = 0; i < net->count; i++) {
        dpcri_free(net->context, net->layers[i].packed);
        if (net->layers[i].gather) dpcri_free(net->context, net->layers[i].gather->at);
        dpcri_free(net->context, net->layers[i].gather);
    }
    dpcri_free(net->context, net->values);
    dpcri_free(net->context, net->gradients);
    dpcri_free(net->context, net->packed_weight);
    dpcri_free(net->context, net->packed_x);
    dpcri_free(net->context, net->transposed);
}

// ---- packing ----

typedef struct pack_job {
    const dpcri_net *net;
    bool transposed;
    int64_t depth, columns;
    const float *from;
    float *to;
} pack_job;

static void pack_panel(void *argument, int64_t panel) {
    const pack_job *j = argument;
    j->net->wide->pack(j->transposed, j->depth, j->columns, j->from, j->transposed ? j->depth : j->columns, panel,
                       panel + 1, j->to);
}

static void run_tasks(const dpcri_net *net, double flops, int64_t tasks, void (*task)(void *, int64_t), void *job) {
    if (flops >= PARALLEL_FLOPS)
        dpcri_parallel(net->context, tasks, task, job);
    else
        for (int64_t i = 0; i < tasks; i++) task(job, i);
}

static void pack(const dpcri_net *net, bool transposed, int64_t depth, int64_t columns, const float *from, float *to) {
    pack_job job = {net, transposed, depth, columns, from, to};
    run_tasks(net, 8 * (double)depth * (double)columns, dpcri_wide_panels(net->wide, columns), pack_panel, &job);
}

void dpcri_net_pack(dpcri_net *net) {
    for (int i = 0; i < net->count; i++) {
        const dpcri_dense *d = &net->layers[i];
        pack(net, true, d->in, d->out, net->values + d->weight, d->packed);
    }
}

// ---- products ----

typedef struct product_job {
    const dpcri_net *net;
    dpcri_wide_product p;
    int64_t panels, groups;  // of a task; of all
    int activation;          // with `activate`
    bool activate;
    const float *residual;
    float *slope;
} product_job;

static void activate_tile(const product_job *j, const dpcri_wide_product *p, int64_t row, int64_t column) {
    for (int64_t i = 0; i < p->rows; i++) {
        const int64_t at = (row + i) * j->p.c_row + column;
        float *y = (float *)j->p.c + at;
        j->net->nn->activate(j->activation, p->columns, y, y, j->slope ? j->slope + at : NULL);
        for (int64_t q = 0; j->residual && q < p->columns; q++) y[q] = j->residual[at + q] + y[q];
    }
}

static void product_task(void *argument, int64_t task) {
    const product_job *j = argument;
    const int64_t row = task / j->groups * ROW_BLOCK, column = task % j->groups * j->panels * j->net->wide->panel;
    const int64_t rows = j->p.rows - row, columns = j->p.columns - column, most = j->panels * j->net->wide->panel;
    dpcri_wide_product p = j->p;
    p.rows = rows < ROW_BLOCK ? rows : ROW_BLOCK;
    p.columns = columns < most ? columns : most;
    p.a = (const float *)p.a + row * p.a_row;
    p.packed = (const float *)p.packed + column * p.depth;
    if (p.init) p.init = (const float *)p.init + row * p.init_row + column;
    p.c = (float *)p.c + row * p.c_row + column;
    j->net->wide->product(&p);
    if (j->activate) activate_tile(j, &p, row, column);
}

static void product(product_job *j) {
    const int64_t panels = dpcri_wide_panels(j->net->wide, j->p.columns);
    j->p.streams = j->net->wide->streams;
    j->panels = dpcri_wide_together(j->net->wide, j->p.streams, j->p.rows);
    j->groups = (panels + j->panels - 1) / j->panels;
    const int64_t tasks = (j->p.rows + ROW_BLOCK - 1) / ROW_BLOCK * j->groups;
    run_tasks(j->net, 2 * (double)j->p.rows * (double)j->p.depth * (double)j->p.columns, tasks, product_task, j);
}

void dpcri_dense_forward(const dpcri_net *net, int layer, int64_t rows, const float *x, const float *init,
                         int64_t init_row, float *y, float *slope) {
    const dpcri_dense *d = &net->layers[layer];
    product_job job = {.net = net,
                       .p = {.rows = rows,
                             .depth = d->in,
                             .columns = d->out,
                             .a = x,
                             .a_row = d->in,
                             .packed = d->packed,
                             .init = init ? init : dpcri_dense_bias(net, layer),
                             .init_row = init ? init_row : 0,
                             .c = y,
                             .c_row = d->out},
                       .activation = d->activation,
                       .activate = d->activation != DPCRI_ACT_IDENTITY || slope || d->residual,
                       .residual = d->residual ? x : NULL,
                       .slope = slope};
    product(&job);
}

void dpcri_dense_map(const dpcri_net *net, int layer, int64_t rows, const float *x, float *y) {
    const dpcri_dense *d = &net->layers[layer];
    product_job job = {.net = net,
                       .p = {.rows = rows,
                             .depth = d->in,
                             .columns = d->out,
                             .a = x,
                             .a_row = d->in,
                             .packed = d->packed,
                             .c = y,
                             .c_row = d->out}};
    product(&job);
}

// ---- going back ----

typedef struct back_job {
    const dpcri_net *net;
    int64_t rows, width;
    const float *dy;
    float *du;
    int64_t stride;
    float *sums;
} back_job;

// du = slope dy, and its transpose, for some rows.
static void slope_rows(void *argument, int64_t task) {
    const back_job *j = argument;
    const int64_t first = task * 16, left = j->rows - first, rows = left < 16 ? left : 16;
    float *du = j->du + first * j->width;
    const float *dy = j->dy + first * j->width;
    for (int64_t i = 0; i < rows * j->width; i++) du[i] *= dy[i];
    j->net->nn->transpose(rows, j->width, du, j->width, j->net->transposed + first, j->rows);
}

static void sum_columns(void *argument, int64_t task) {
    const back_job *j = argument;
    const int64_t first = task * SUM_COLUMNS, left = j->width - first, width = left < SUM_COLUMNS ? left : SUM_COLUMNS;
    float *sums = j->sums + first;
    memset(sums, 0, (size_t)width * sizeof *sums);
    for (int64_t i = 0; i < j->rows; i++) {
        const float *g = j->dy + i * j->stride + first;
        for (int64_t q = 0; q < width; q++) sums[q] += g[q];
    }
}

void dpcri_dense_sums(const dpcri_net *net, int64_t rows, int64_t width, const float *g, int64_t stride, float *sums) {
    back_job job = {.net = net, .rows = rows, .width = width, .dy = g, .stride = stride, .sums = sums};
    run_tasks(net, 4 * (double)rows * (double)width, (width + SUM_COLUMNS - 1) / SUM_COLUMNS, sum_columns, &job);
}

void dpcri_dense_backward(const dpcri_net *net, int layer, int64_t rows, const float *x, float *slope, const float *dy,
                          float *dx) {
    const dpcri_dense *d = &net->layers[layer];
    float *gradient = net->gradients + d->weight;
    back_job job = {.net = net, .rows = rows, .width = d->out, .dy = dy, .du = slope};
    run_tasks(net, 8 * (double)rows * (double)d->out, (rows + 15) / 16, slope_rows, &job);
    dpcri_dense_sums(net, rows, d->out, slope, d->out, gradient + d->in * d->out);
    pack(net, false, rows, d->in, x, net->packed_x);
    product_job weights = {.net = net,
                           .p = {.rows = d->out,
                                 .depth = rows,
                                 .columns = d->in,
                                 .a = net->transposed,
                                 .a_row = rows,
                                 .packed = net->packed_x,
                                 .c = gradient,
                                 .c_row = d->in}};
    product(&weights);
    if (!dx) return;
    pack(net, false, d->out, d->in, net->values + d->weight, net->packed_weight);
    product_job states = {.net = net,
                          .p = {.rows = rows,
                                .depth = d->out,
                                .columns = d->in,
                                .a = slope,
                                .a_row = d->out,
                                .packed = net->packed_weight,
                                .init = d->residual ? dy : NULL,
                                .init_row = d->in,
                                .c = dx,
                                .c_row = d->in}};
    product(&states);
}

// ---- files ----

static dpcr_status append(const dpcri_net *net, const char *layer, const char *what, int32_t ndim, const int64_t *shape,
                          const float *data, dpcr_tensors *tensors, dpcr_error *error) {
    char name[48];
    snprintf(name, sizeof name, "%s.%s", layer, what);
    dpcr_tensor *t = &tensors->items[tensors->count];
    t->name = dpcri_strdup(net->context, name);
    if (!t->name) return dpcri_fail(error, DPCR_ERROR_MEMORY, "network: no memory for a name");
    t->array = dpcr_array_make((void *)(uintptr_t)data, DPCR_F32, ndim, shape);
    tensors->count++;
    return DPCR_OK;
}

dpcr_status dpcri_net_tensors(const dpcri_net *net, const float *values, dpcr_tensors *tensors, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int i = 0; i < net->count; i++) {
        const dpcri_dense *d = &net->layers[i];
        const int64_t shape[2] = {d->out, d->in};
        const float *weight = values + d->weight;
        DPCR_TRY(append(net, d->name, "weight", 2, shape, weight, tensors, error));
        DPCR_TRY(append(net, d->name, "bias", 1, shape, weight + d->in * d->out, tensors, error));
    }
done:
    return status;
}

static dpcr_status read_one(const dpcr_tensors *tensors, const char *path, const char *layer, const char *what,
                            int64_t rows, int64_t cols, float *to, dpcr_error *error) {
    char name[48], got[160], wanted[160];
    const int64_t shape[2] = {rows, cols};
    const dpcr_array expected = dpcr_array_make(NULL, DPCR_F32, cols ? 2 : 1, shape);
    snprintf(name, sizeof name, "%s.%s", layer, what);
    const dpcr_tensor *t = dpcr_tensors_find(tensors, name);
    if (!t) return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: the tensor %s is missing", path, name);
    const dpcr_array *a = &t->array;
    const bool fits =
        a->dtype == DPCR_F32 && a->ndim == (cols ? 2 : 1) && a->shape[0] == rows && (!cols || a->shape[1] == cols);
    if (!fits)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: the tensor %s is %s, wanted %s", path, name,
                          dpcri_array_text(a, got, sizeof got), dpcri_array_text(&expected, wanted, sizeof wanted));
    const int64_t count = rows * (cols ? cols : 1);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(((const float *)a->data)[i]))
            return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: the tensor %s has a number that is not finite", path,
                              name);
    memcpy(to, a->data, (size_t)count * sizeof *to);
    return DPCR_OK;
}

dpcr_status dpcri_net_read(dpcri_net *net, const dpcr_tensors *tensors, const char *path, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int i = 0; i < net->count; i++) {
        const dpcri_dense *d = &net->layers[i];
        float *weight = net->values + d->weight;
        DPCR_TRY(read_one(tensors, path, d->name, "weight", d->out, d->in, weight, error));
        DPCR_TRY(read_one(tensors, path, d->name, "bias", d->out, 0, weight + d->in * d->out, error));
    }
    dpcri_net_pack(net);
done:
    return status;
}
