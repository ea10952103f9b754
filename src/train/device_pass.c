// SPDX-License-Identifier: MIT
// One pass over a batch, each line a launch or two (train/pass.c has the formulas):
//   x, labels = rows of the order;  z0 = encoder(x);  z = the chain's;  logits = head(z);  loss, dlogits
//   dz = head's;  lambda = the chain's adjoints, dz at the last step and zeros before it;  encoder's
// Recomputing, the chain goes in segments of S layers: forward the state before each is kept; back, from the last to
// the first, a segment's states are made again, and its dz is what the one behind it left. L / S + 4 S numbers a row
// and unit instead of 4 L, least at S = sqrt(L) / 2, for one more forward pass. The loop's bits do not depend on S. The
// head's dz goes to its place among the zeros that come in at every step, and is zeros again afterwards: the rows of an
// epoch's last batch lie otherwise.
#include "train/device_pass.h"

#include <math.h>
#include <string.h>

#include "model/model_internal.h"

enum { LEAST_SEGMENT = 16, FORWARD_SEGMENT = 64 };  // layers that are worth a launch

// ---- places ----

static dpcr_array array_of(const dpcri_device_pass *p, void *data, int ndim, const int64_t *shape) {
    dpcr_array array = dpcr_array_make(data, p->options->dtype, ndim, shape);
    array.device = p->device;
    return array;
}

static dpcr_array matrix(const dpcri_device_pass *p, void *data, int64_t rows) {
    const int64_t shape[] = {rows, p->options->width};
    return array_of(p, data, 2, shape);
}

static dpcr_array trajectory(const dpcri_device_pass *p, void *data, int64_t layers, int64_t rows) {
    const int64_t shape[] = {layers, rows, p->options->width};
    return array_of(p, data, 3, shape);
}

dpcr_array dpcri_device_pass_vector(const dpcri_device_pass *p, void *data) { return array_of(p, data, 1, &p->count); }

static void *at(const dpcri_device_pass *p, void *data, int64_t offset) {
    return data ? (unsigned char *)data + (size_t)offset * dpcr_dtype_size(p->options->dtype) : NULL;
}

// Layers of segment k.
static int64_t layers_of(const dpcri_device_pass *p, int64_t k) {
    const int64_t left = p->options->layers - k * p->segment;
    return left < p->segment ? left : p->segment;
}

// The last step's rows of segment k.
static void *last_of(const dpcri_device_pass *p, void *data, int64_t k, int64_t rows) {
    return at(p, data, (layers_of(p, k) - 1) * rows * p->options->width);
}

// The state before segment k.
static dpcr_array before(const dpcri_device_pass *p, int64_t k, int64_t rows) {
    const int64_t place = p->gradients && k > 0 ? k - 1 : 0;
    return matrix(p, k > 0 ? at(p, p->kept, place * rows * p->options->width) : p->z0, rows);
}

// ---- plans and buffers ----

dpcr_status dpcri_device_pass_take(dpcri_device_pass *p, const char *what, int64_t a, int64_t b, int64_t c,
                                   size_t element, const void *from, void **place, dpcr_error *error) {
    return dpcri_pieces_take(&p->memory, what, a, b, c, element, from, place, error);
}

static dpcr_status clear(const dpcri_device_pass *p, void *data, int64_t numbers, dpcr_error *error) {
    const size_t bytes = (size_t)numbers * dpcr_dtype_size(p->options->dtype);
    return bytes ? p->table->fill(p->device.id, data, 0, bytes, p->stream, error) : DPCR_OK;
}

static dpcr_status make_plan(dpcri_device_pass *p, int size, int64_t layers, const dpcr_solve_options *solve,
                             dpcr_device_model **chain, dpcr_solve_plan **plan, dpcr_error *error) {
    dpcr_status status;
    dpcr_steps steps = {.size = sizeof steps};
    const dpcr_array parameters = dpcri_device_pass_vector(p, p->parameters),
                     gradients = dpcri_device_pass_vector(p, p->gradients);
    DPCR_TRY(
        dpcr_device_model_create(p->model, p->rows[size], &parameters, p->gradients ? &gradients : NULL, chain, error));
    dpcri_device_model_span(*chain, 0, layers);
    DPCR_TRY(dpcr_device_model_steps(*chain, &steps, error));
    DPCR_TRY(dpcr_solve_plan_create(p->context, &steps, solve, plan, error));
    const size_t bytes = dpcr_solve_plan_workspace(*plan);
    if (bytes > p->workspace_bytes) p->workspace_bytes = bytes;
done:
    return status;
}

static void destroy_plans(dpcri_device_pass *p) {
    for (int size = 0; size < DPCRI_SIZES; size++) {
        dpcr_solve_plan_destroy(p->plans[size]);
        dpcr_solve_plan_destroy(p->last_plans[size]);
        dpcr_device_model_destroy(p->chains[size]);
        dpcr_device_model_destroy(p->last_chains[size]);
        p->plans[size] = p->last_plans[size] = NULL;
        p->chains[size] = p->last_chains[size] = NULL;
    }
    p->workspace_bytes = 0;
}

static dpcr_status make_plans(dpcri_device_pass *p, int64_t segment, const dpcr_solve_options solve[DPCRI_SIZES],
                              dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t L = p->options->layers;
    p->segment = segment < L ? segment : L;
    p->segments = L > 0 ? (L + p->segment - 1) / p->segment : 0;
    for (int size = 0; L > 0 && size < DPCRI_SIZES; size++) {
        const int64_t last = layers_of(p, p->segments - 1);
        if (p->rows[size] == 0) continue;
        DPCR_TRY(make_plan(p, size, p->segment, &solve[size], &p->chains[size], &p->plans[size], error));
        if (last == p->segment) continue;
        DPCR_TRY(make_plan(p, size, last, &solve[size], &p->last_chains[size], &p->last_plans[size], error));
    }
done:
    return status;
}

// What segments want: the loop, and for the way back layers that go back one by one.
static dpcr_status recomputing(dpcri_device_pass *p, const dpcr_solve_options solve[DPCRI_SIZES], dpcr_error *error) {
    dpcr_solve_options loop[DPCRI_SIZES] = {solve[0], solve[1]};
    const int64_t L = p->options->layers, w = p->options->width;
    int64_t segment = LEAST_SEGMENT;
    while (4 * segment * segment < L) segment++;
    if (!p->options->layer_norm && p->options->branch == DPCR_BRANCH_LINEAR && (w == 1 || w == 2 || w == 4))
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "%s: recompute on a device over layers of width %lld, which go back in one scan; other widths "
            "work",
            p->call, (long long)w);
    for (int size = 0; size < DPCRI_SIZES; size++) {
        if (loop[size].method != DPCR_METHOD_AUTO && loop[size].method != DPCR_METHOD_SEQUENTIAL)
            return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                              "%s: recompute on a device with %s; the loop (sequential) works with it", p->call,
                              dpcr_method_name(loop[size].method));
        loop[size].method = DPCR_METHOD_SEQUENTIAL;
    }
    return make_plans(p, segment, loop, error);
}

// Forward alone the loop needs no more than the last state.
static dpcr_status forward_alone(dpcri_device_pass *p, const dpcr_solve_options solve[DPCRI_SIZES], dpcr_error *error) {
    bool loop = p->options->layers > FORWARD_SEGMENT;
    const dpcr_status status = make_plans(p, p->options->layers, solve, error);
    for (int size = 0; size < DPCRI_SIZES; size++)
        loop = loop && (!p->plans[size] || dpcr_solve_plan_method(p->plans[size]) == DPCR_METHOD_SEQUENTIAL);
    if (status != DPCR_OK || !loop) return status;
    destroy_plans(p);
    dpcr_solve_options named[DPCRI_SIZES] = {solve[0], solve[1]};
    for (int size = 0; size < DPCRI_SIZES; size++) named[size].method = DPCR_METHOD_SEQUENTIAL;
    return make_plans(p, FORWARD_SEGMENT, named, error);
}

static dpcr_status send_data(dpcri_device_pass *p, const dpcr_dataset *data, const dpcri_normaliser *normaliser,
                             bool backward, dpcr_error *error) {
    dpcr_status status;
    const size_t element = dpcr_dtype_size(p->options->dtype);
    const int64_t pixels = dpcr_dataset_pixels(data);
    const void *const table =
        normaliser->dtype == DPCR_F64 ? (const void *)normaliser->table.f64 : (const void *)normaliser->table.f32;
    void *taken = NULL;
#define TAKE(what, a, b, c, element, from, field)                                     \
    DPCR_TRY(dpcri_device_pass_take(p, what, a, b, c, element, from, &taken, error)); \
    p->field = taken
    TAKE("the images", data->count, pixels, 1, 1, data->images, images);
    TAKE("the labels", data->count, 1, 1, 1, data->labels, labels);
    TAKE("the normaliser", 256, 1, 1, element, table, normaliser);
    if (!backward) goto done;
    TAKE("the rows' order", data->count, 1, 1, sizeof *p->order, NULL, order);
    TAKE("the rows' order", data->count, 1, 1, sizeof *p->marks, NULL, marks);
done:
    return status;
}

static dpcr_status make_buffers(dpcri_device_pass *p, bool backward, dpcr_error *error) {
    dpcr_status status;
    const dpcr_model_options *o = p->options;
    const size_t element = dpcr_dtype_size(o->dtype);
    const int64_t rows = p->rows[0] > p->rows[1] ? p->rows[0] : p->rows[1];
    void *taken = NULL;
    TAKE("labels", rows, 1, 1, 1, NULL, y);
    TAKE("initial states", rows, o->width, 1, element, NULL, z0);
    p->x = p->z0;  // without an encoder the pixels are the states
    if (o->inputs > 0) {
        TAKE("a batch", rows, o->inputs, 1, element, NULL, x);
    }
    const int64_t kept = p->segments < 2 ? 0 : backward ? p->segments - 1 : 1;
    TAKE("states", p->segment, rows, o->width, element, NULL, z);
    TAKE("states", kept, rows, o->width, element, NULL, kept);
    TAKE("logits", rows, o->outputs, 1, element, NULL, logits);
    TAKE("losses", rows, 2, 1, sizeof *p->parts, NULL, parts);
    TAKE("losses", 2, 1, 1, sizeof *p->told, NULL, told);
    if (backward) {
        TAKE("adjoint states", p->segment, rows, o->width, element, NULL, direct);
        DPCR_TRY(clear(p, p->direct, p->segment * rows * o->width, error));
        TAKE("adjoint states", p->segment, rows, o->width, element, NULL, lambda);
        TAKE("adjoint states", rows, o->width, 1, element, NULL, dz0);
    }
    TAKE("the solver's workspace", (int64_t)p->workspace_bytes, 1, 1, 1, NULL, workspace);
#undef TAKE
done:
    return status;
}

dpcr_status dpcri_device_pass_create(dpcri_device_pass *p, const char *call, dpcr_context *context,
                                     const dpcr_model *model, const dpcr_dataset *data,
                                     const dpcri_normaliser *normaliser, const int64_t rows[DPCRI_SIZES],
                                     const dpcr_solve_options solve[DPCRI_SIZES], bool backward, bool recompute,
                                     dpcr_error *error) {
    dpcr_status status;
    *p = (dpcri_device_pass){.context = context,
                             .model = model,
                             .options = dpcr_model_get_options(model),
                             .call = call,
                             .device = solve[0].device,
                             .count = model->count,
                             .image_count = data->count};
    const size_t element = dpcr_dtype_size(p->options->dtype);
    DPCR_TRY(dpcri_device_ready(p->device, call, &p->table, error));
    DPCR_TRY(dpcri_kernels_of(p->device, call, &p->kernels, error));
    DPCR_TRY(dpcr_stream_create(p->device, &p->stream, error));
    p->memory = (dpcri_pieces){.table = p->table, .call = call, .device = p->device, .stream = p->stream};
    DPCR_TRY(
        dpcri_device_pass_take(p, "parameters", p->count, 1, 1, element, model->parameters, &p->parameters, error));
    if (backward) {
        DPCR_TRY(dpcri_device_pass_take(p, "gradients", p->count, 1, 1, element, NULL, &p->gradients, error));
        DPCR_TRY(clear(p, p->gradients, p->count, error));
    }
    for (int size = 0; size < DPCRI_SIZES; size++) p->rows[size] = rows[size];
    status = recompute  ? recomputing(p, solve, error)
             : backward ? make_plans(p, p->options->layers, solve, error)
                        : forward_alone(p, solve, error);
    if (status != DPCR_OK) goto done;
    DPCR_TRY(send_data(p, data, normaliser, backward, error));
    DPCR_TRY(make_buffers(p, backward, error));
    DPCR_TRY(dpcr_stream_wait(p->device, p->stream, error));
done:
    if (status != DPCR_OK && p->stream) (void)dpcr_stream_wait(p->device, p->stream, NULL);
    return status;  // and what was sent is the caller's again
}

void dpcri_device_pass_destroy(dpcri_device_pass *p) {
    if (!p->context) return;
    if (p->stream) (void)dpcr_stream_wait(p->device, p->stream, NULL);  // what still runs reads all of this
    destroy_plans(p);
    dpcri_pieces_release(&p->memory);
    if (p->stream) dpcr_stream_destroy(p->device, p->stream);
    *p = (dpcri_device_pass){0};
}

// ---- passes ----

dpcr_status dpcri_device_pass_shuffle(dpcri_device_pass *p, uint64_t seed, int64_t epoch, dpcr_error *error) {
    const dpcri_device_shuffle shuffle = {.seed = seed,
                                          .stream = dpcri_shuffle_stream(epoch),
                                          .count = p->image_count,
                                          .order = p->order,
                                          .marks = p->marks};
    return p->kernels->shuffle(p->device.id, &shuffle, p->stream, error);
}

static dpcr_status gather(dpcri_device_pass *p, int size, int64_t first, bool shuffled, dpcr_error *error) {
    const dpcr_model_options *o = p->options;
    const dpcri_device_gather g = {.dtype = o->dtype,
                                   .first = first,
                                   .rows = p->rows[size],
                                   .pixels = o->inputs > 0 ? o->inputs : o->width,
                                   .images = p->images,
                                   .labels = p->labels,
                                   .order = shuffled ? p->order : NULL,
                                   .table = p->normaliser,
                                   .x = p->x,
                                   .y = p->y};
    return p->kernels->gather(p->device.id, &g, p->stream, error);
}

// An end of the network whose parameters begin at `offset`.
static dpcri_device_affine end_of(const dpcri_device_pass *p, int64_t offset, int64_t rows, int64_t in, int64_t out) {
    return (dpcri_device_affine){.dtype = p->options->dtype,
                                 .rows = rows,
                                 .in = in,
                                 .out = out,
                                 .weight = at(p, p->parameters, offset),
                                 .bias = at(p, p->parameters, offset + in * out),
                                 .weight_gradient = at(p, p->gradients, offset),
                                 .bias_gradient = at(p, p->gradients, offset + in * out)};
}

static dpcr_status encode(dpcri_device_pass *p, int64_t rows, bool backward, dpcr_error *error) {
    if (p->x == p->z0) return DPCR_OK;
    dpcri_device_affine encoder = end_of(p, p->model->encoder, rows, p->options->inputs, p->options->width);
    encoder.backward = backward;
    encoder.x = p->x;
    encoder.y = backward ? p->dz0 : p->z0;
    return p->kernels->affine(p->device.id, &encoder, p->stream, error);
}

// Forward from the last states to logits, back from their gradient to where the chain's way back begins.
static dpcr_status head(dpcri_device_pass *p, int size, bool backward, dpcr_error *error) {
    const int64_t rows = p->rows[size];
    const bool layers = p->plans[size] != NULL;
    dpcri_device_affine head = end_of(p, p->model->head, rows, p->options->width, p->options->outputs);
    head.backward = backward;
    head.x = layers ? last_of(p, p->z, p->segments - 1, rows) : p->z0;
    head.y = p->logits;
    head.dx = !backward ? NULL : layers ? last_of(p, p->direct, p->segments - 1, rows) : p->dz0;
    return p->kernels->affine(p->device.id, &head, p->stream, error);
}

// Segment k's plan, whose chain is that segment's from now on.
static const dpcr_solve_plan *plan_of(dpcri_device_pass *p, int size, int64_t k) {
    const bool less = k + 1 == p->segments && p->last_plans[size];
    dpcri_device_model_span(less ? p->last_chains[size] : p->chains[size], k * p->segment, layers_of(p, k));
    return less ? p->last_plans[size] : p->plans[size];
}

static dpcr_status copy(const dpcri_device_pass *p, void *to, const void *from, int64_t rows, dpcr_error *error) {
    const size_t bytes = (size_t)(rows * p->options->width) * dpcr_dtype_size(p->options->dtype);
    return p->table->copy(p->device.id, to, from, bytes, DPCRI_ON_DEVICE, p->stream, error);
}

static dpcr_status run_segment(dpcri_device_pass *p, int size, int64_t k, dpcr_error *error) {
    const int64_t rows = p->rows[size];
    const dpcr_array z0 = before(p, k, rows), z = trajectory(p, p->z, layers_of(p, k), rows);
    return dpcr_solve_enqueue(plan_of(p, size, k), &z0, &z, p->workspace, p->workspace_bytes, p->stream, error);
}

// The report of a method of sweeps has to be read before the way back takes the workspace.
static dpcr_status solve(dpcri_device_pass *p, int size, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t rows = p->rows[size];
    p->report =
        (dpcr_solve_report){.size = sizeof p->report, .reason = DPCR_REASON_EXACT, .method = DPCR_METHOD_SEQUENTIAL};
    if (!p->plans[size]) return DPCR_OK;
    for (int64_t k = 0; k < p->segments; k++) {
        DPCR_TRY(run_segment(p, size, k, error));
        if (k + 1 < p->segments) DPCR_TRY(copy(p, before(p, k + 1, rows).data, last_of(p, p->z, k, rows), rows, error));
    }
    p->report.reason = DPCR_REASON_SEQUENTIAL;
    if (dpcr_solve_plan_method(p->plans[size]) != DPCR_METHOD_SEQUENTIAL)
        DPCR_TRY(dpcr_solve_collect(p->plans[size], p->workspace, p->workspace_bytes, p->stream, &p->report, error));
done:
    return status;
}

static dpcr_status loss(dpcri_device_pass *p, int size, bool gradient, dpcr_error *error) {
    const dpcri_device_loss l = {.dtype = p->options->dtype,
                                 .rows = p->rows[size],
                                 .classes = p->options->outputs,
                                 .logits = p->logits,
                                 .labels = p->y,
                                 .dlogits = gradient ? p->logits : NULL,
                                 .parts = p->parts,
                                 .told = p->told};
    return p->kernels->loss(p->device.id, &l, p->stream, error);
}

static dpcr_status adjoint(dpcri_device_pass *p, int size, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t rows = p->rows[size];
    const dpcr_array dz0 = matrix(p, p->dz0, rows);
    for (int64_t k = p->plans[size] ? p->segments - 1 : -1; k >= 0; k--) {
        const int64_t layers = layers_of(p, k);
        const dpcr_array z0 = before(p, k, rows), z = trajectory(p, p->z, layers, rows),
                         direct = trajectory(p, p->direct, layers, rows),
                         lambda = trajectory(p, p->lambda, layers, rows);
        if (k + 1 < p->segments) DPCR_TRY(run_segment(p, size, k, error));
        DPCR_TRY(dpcr_solve_enqueue_backward(plan_of(p, size, k), &z0, &z, &direct, &lambda, &dz0, p->workspace,
                                             p->workspace_bytes, p->stream, error));
        DPCR_TRY(clear(p, last_of(p, p->direct, k, rows), rows * p->options->width, error));
        if (k > 0) DPCR_TRY(copy(p, last_of(p, p->direct, k - 1, rows), p->dz0, rows, error));
    }
done:
    return status;
}

dpcr_status dpcri_device_pass_run(dpcri_device_pass *p, int size, int64_t first, bool shuffled, bool gradient,
                                  dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(gather(p, size, first, shuffled, error));
    DPCR_TRY(encode(p, p->rows[size], false, error));
    DPCR_TRY(solve(p, size, error));
    DPCR_TRY(head(p, size, false, error));
    DPCR_TRY(loss(p, size, gradient, error));
    if (!gradient) goto done;
    DPCR_TRY(head(p, size, true, error));
    DPCR_TRY(adjoint(p, size, error));
    DPCR_TRY(encode(p, p->rows[size], true, error));
done:
    return status;
}

dpcr_status dpcri_device_pass_read(dpcri_device_pass *p, double *loss, int64_t *correct, dpcr_error *error) {
    dpcr_status status;
    double told[2] = {0};
    DPCR_TRY(p->table->copy(p->device.id, told, p->told, sizeof told, DPCRI_TO_HOST, p->stream, error));
    DPCR_TRY(dpcr_stream_wait(p->device, p->stream, error));
    *loss = isnan(told[0]) ? (double)NAN : told[0];  // without a sign
    *correct = (int64_t)told[1];
done:
    return status;
}
