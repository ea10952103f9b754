// SPDX-License-Identifier: MIT
// One pass over a batch, each line a launch or some (train/sequence_pass.c has the formulas):
//   x, labels = sequences of the order, or a text's symbols through the embedding;  y, hT = network(x, h0)
//   v = hT | mean of y | y;  logits = v W^T + b;  loss, dlogits
//   dW, db, dv;  dy or dhT = dv;  network back;  dembedding
// In segments the network's lines are said of each in turn, and going back, but for the last, both of each.
// Sums, orders and operations are sequence_pass.c's, up to the network's own.
#include "train/sequence_device.h"

#include <math.h>
#include <string.h>

#include "model/recurrent_internal.h"
#include "nn/device.h"
#include "rt/rt.h"
#include "train/batches.h"

enum { STAGED = 1 << 26 };  // bytes of sequences that are read at a time

// ---- places ----

static dpcr_array array_of(const dpcri_sequence_device *d, void *data, int ndim, const int64_t *shape) {
    dpcr_array array = dpcr_array_make(data, dpcri_sequence_dtype(d->model), ndim, shape);
    array.device = d->memory.device;
    return array;
}

static dpcr_array cube(const dpcri_sequence_device *d, void *data, int64_t a, int64_t b, int64_t c) {
    return array_of(d, data, 3, (const int64_t[]){a, b, c});
}

static void *end_at(const dpcri_sequence_device *d, const dpcr_array *vectors, int64_t offset) {
    return vectors[1].data ? dpcri_sequence_at(d->model, vectors[1].data, offset) : NULL;
}

static dpcr_status clear(const dpcri_sequence_device *d, void *data, int64_t numbers, dpcr_error *error) {
    const dpcri_pieces *m = &d->memory;
    const size_t bytes = (size_t)numbers * d->model->kernels->element;
    return bytes ? m->table->fill(m->device.id, data, 0, bytes, m->stream, error) : DPCR_OK;
}

// ---- data ----

typedef struct reading {
    const dpcr_sequence_data *data;
    int64_t first;
    float *rows;  // [pieces][T][I], labels and lengths with them
    uint8_t *labels;
    int64_t *lengths;
} reading;

static void read_one(void *argument, int64_t i) {
    const reading *r = argument;
    float *to = r->rows + i * r->data->longest * r->data->features;
    dpcri_sequence_read(r->data, r->first + i, to, &r->lengths[i], &r->labels[i]);
}

static dpcr_status send_piece(const dpcri_sequence_device *d, const reading *r, int64_t count, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_pieces *m = &d->memory;
    const int64_t numbers = r->data->longest * r->data->features, outputs = d->model->options.outputs;
    for (int64_t i = 0; i < count; i++)
        if (r->labels[i] >= outputs)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: label of sequence %lld is %d, wanted less than %lld",
                              m->call, (long long)(r->first + i), r->labels[i], (long long)outputs);
    const size_t bytes = (size_t)(count * numbers) * sizeof *r->rows;
    DPCR_TRY(
        m->table->copy(m->device.id, d->data + r->first * numbers, r->rows, bytes, DPCRI_TO_DEVICE, m->stream, error));
    DPCR_TRY(m->table->copy(m->device.id, d->labels + r->first, r->labels, (size_t)count, DPCRI_TO_DEVICE, m->stream,
                            error));
    if (d->lengths)
        DPCR_TRY(m->table->copy(m->device.id, d->lengths + r->first, r->lengths, (size_t)count * sizeof *r->lengths,
                                DPCRI_TO_DEVICE, m->stream, error));
    DPCR_TRY(dpcr_stream_wait(m->device, m->stream, error));  // the next piece takes their place
done:
    if (status != DPCR_OK) dpcr_stream_wait(m->device, m->stream, NULL);  // they are freed
    return status;
}

static dpcr_status send_sequences(const dpcri_sequence_device *d, const dpcr_sequence_data *data, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_context *context = d->model->context;
    const int64_t bytes = data->longest * data->features * (int64_t)sizeof(float);  // data->count of them fit
    const int64_t most = bytes < STAGED ? STAGED / bytes : 1, each = most < data->count ? most : data->count;
    reading r = {.data = data,
                 .rows = dpcri_alloc(context, (size_t)(each * bytes)),
                 .labels = dpcri_alloc(context, (size_t)each),
                 .lengths = dpcri_alloc(context, (size_t)each * sizeof(int64_t))};
    if (!r.rows || !r.labels || !r.lengths)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory to read %lld sequences", d->memory.call,
                            (long long)each));
    for (; r.first < data->count; r.first += each) {
        const int64_t count = data->count - r.first < each ? data->count - r.first : each;
        dpcri_parallel(context, count, read_one, &r);
        DPCR_TRY(send_piece(d, &r, count, error));
    }
done:
    dpcri_free(context, r.lengths);
    dpcri_free(context, r.labels);
    dpcri_free(context, r.rows);
    return status;
}

// ---- plan and buffers ----

static dpcr_status make_plan(dpcri_sequence_device *d, const dpcr_solve_options *solve, int64_t length,
                             dpcr_recurrent_plan **plan, dpcr_error *error) {
    const dpcri_sequence_shape *s = &d->shape;
    dpcr_recurrent_plan_options options = {.size = sizeof options,
                                           .length = length,
                                           .batch = s->batch,
                                           .training = s->training,
                                           .packed = s->packed,
                                           .solve = *solve,
                                           .dropout = s->dropout,
                                           .recompute = s->recompute};
    options.solve.size = sizeof options.solve;
    const dpcr_status status = dpcr_recurrent_plan_create(d->model->network, &options, plan, error);
    const size_t bytes = status == DPCR_OK ? dpcr_recurrent_plan_workspace(*plan) : 0;
    if (bytes > d->workspace_bytes) d->workspace_bytes = bytes;
    return status;
}

static dpcr_status make_plans(dpcri_sequence_device *d, const dpcr_solve_options *solve, dpcr_error *error) {
    const dpcri_sequence_shape *s = &d->shape;
    const bool cut = s->segment > 0 && s->segment < s->length;
    d->segment = cut ? s->segment : s->length;
    d->segments = cut ? (s->length + d->segment - 1) / d->segment : 1;
    d->first_steps = s->length - (d->segments - 1) * d->segment;
    const dpcr_status status = make_plan(d, solve, d->segment, &d->plan, error);
    if (status != DPCR_OK || d->first_steps == d->segment) return status;
    dpcr_solve_options chosen = d->plan->options.solve;
    chosen.max_sweeps = d->plan->sweeps_back;
    return make_plan(d, &chosen, d->first_steps, &d->first_plan, error);
}

static dpcr_status make_vectors(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status;
    int64_t counts[DPCRI_SEQUENCE_VECTORS] = {0, d->model->count};
    dpcr_recurrent_vector(d->model->network, &counts[0]);
    for (int i = 0; i < DPCRI_SEQUENCE_VECTORS; i++) {
        void *taken = NULL;
        DPCR_TRY(dpcri_pieces_take(&d->memory, "parameters", counts[i], 1, 1, d->model->kernels->element, NULL, &taken,
                                   error));
        d->parameters[i] = array_of(d, taken, 1, &counts[i]);
        if (!d->shape.training) continue;
        DPCR_TRY(dpcri_pieces_take(&d->memory, "gradients", counts[i], 1, 1, d->model->kernels->element, NULL, &taken,
                                   error));
        d->gradients[i] = array_of(d, taken, 1, &counts[i]);
        DPCR_TRY(clear(d, taken, counts[i], error));
    }
done:
    return status;
}

typedef struct piece {
    void **place;
    bool wanted;
    int64_t a, b, c;
    size_t element;
    const char *what;
} piece;

static dpcr_status make_buffers(dpcri_sequence_device *d, const dpcr_sequence_data *data, dpcr_error *error) {
    const dpcr_sequence *m = d->model;
    const dpcri_sequence_shape *s = &d->shape;
    const int64_t T = s->length, B = s->batch, C = m->options.outputs, N = m->chains, I = m->options.network.inputs;
    const int64_t H = m->options.network.hidden, P = m->projected;
    const bool text = data->text != NULL, back = s->training, last = m->options.readout == DPCR_READOUT_LAST;
    const bool carried = text && back, cells = dpcri_sequence_cells(m), cut = d->segments > 1;
    const size_t e = m->kernels->element;
    const piece pieces[] = {
        {(void **)&d->text, text, data->count, 1, 1, 1, "the text"},
        {(void **)&d->data, !text, data->count, T, I, sizeof *d->data, "the sequences"},
        {(void **)&d->labels, !text, data->count, 1, 1, 1, "the labels"},
        {(void **)&d->lengths, s->packed, data->count, 1, 1, sizeof *d->lengths, "the lengths"},
        {(void **)&d->order, !text && back, data->count, 1, 1, sizeof *d->order, "the sequences' order"},
        {(void **)&d->marks, !text && back, data->count, 1, 1, sizeof *d->marks, "the sequences' order"},
        {(void **)&d->indices, text, T, B, 1, 1, "a batch"},
        {(void **)&d->batch_labels, true, d->rows, 1, 1, 1, "a batch"},
        {(void **)&d->batch_lengths, s->packed, d->segments, B, 1, sizeof *d->batch_lengths, "a batch"},
        {&d->x, true, T, B, I, e, "a batch"},
        {&d->y, true, d->segment, B, m->width, e, "states"},
        {&d->h[0], carried, N, B, P, e, "states"},
        {&d->h[1], true, N, B, P, e, "states"},
        {&d->c[0], carried && cells, N, B, H, e, "states"},
        {&d->c[1], carried && cells, N, B, H, e, "states"},
        {&d->kept_h, cut, d->segments - 1, N * B, P, e, "states between segments"},
        {&d->kept_c, cut && cells, d->segments - 1, N * B, H, e, "states between segments"},
        {&d->back_h[0], cut, N, B, P, e, "gradients of states"},
        {&d->back_h[1], cut, N, B, P, e, "gradients of states"},
        {&d->back_c[0], cut && cells, N, B, H, e, "gradients of states"},
        {&d->back_c[1], cut && cells, N, B, H, e, "gradients of states"},
        {&d->v, !text, B, m->width, 1, e, "what the head reads"},
        {&d->logits, true, d->rows, C, 1, e, "logits"},
        {(void **)&d->parts, true, d->rows, 2, 1, sizeof *d->parts, "losses"},
        {(void **)&d->told, true, 2, 1, 1, sizeof *d->told, "losses"},
        {&d->dx, back && text, T, B, I, e, "gradients of the batch"},
        {&d->dy, back && !last, T, B, m->width, e, "gradients of the states"},
        {&d->dht, back && last, N, B, P, e, "gradients of the states"},
        {&d->workspace, true, (int64_t)d->workspace_bytes, 1, 1, 1, "the network's workspace"},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const piece *q = &pieces[i];
        if (!q->wanted) continue;
        const dpcr_status status =
            dpcri_pieces_take(&d->memory, q->what, q->a, q->b, q->c, q->element, NULL, q->place, error);
        if (status != DPCR_OK) return status;
    }
    return d->dht ? clear(d, d->dht, N * B * P, error) : DPCR_OK;  // of the layers below the last it stays 0
}

static dpcr_status send_data(const dpcri_sequence_device *d, const dpcr_sequence_data *data, dpcr_error *error) {
    const dpcri_pieces *m = &d->memory;
    if (!data->text) return send_sequences(d, data, error);
    return m->table->copy(m->device.id, d->text, data->text, (size_t)data->count, DPCRI_TO_DEVICE, m->stream, error);
}

dpcr_status dpcri_sequence_device_create(dpcri_sequence_device *d, const char *call, dpcr_sequence *model,
                                         const dpcr_sequence_data *data, const dpcri_sequence_shape *shape,
                                         int64_t stream, const dpcr_solve_options *solve, dpcr_error *error) {
    dpcr_status status;
    dpcri_pieces *m = &d->memory;
    *d = (dpcri_sequence_device){.model = model, .shape = *shape, .count = data->count, .stream = stream};
    *m = (dpcri_pieces){.call = call, .device = solve->device};
    d->rows = shape->batch;
    if (data->text && !dpcri_mul(shape->length, shape->batch, &d->rows))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: %lld steps of %lld sequences do not fit", call,
                          (long long)shape->length, (long long)shape->batch);
    DPCR_TRY(dpcri_device_ready(m->device, call, &m->table, error));
    DPCR_TRY(dpcri_kernels_of(m->device, call, &d->kernels, error));
    DPCR_TRY(make_plans(d, solve, error));
    DPCR_TRY(dpcr_stream_create(m->device, &m->stream, error));
    DPCR_TRY(make_vectors(d, error));
    DPCR_TRY(make_buffers(d, data, error));
    DPCR_TRY(send_data(d, data, error));
    DPCR_TRY(dpcr_stream_wait(m->device, m->stream, error));
done:
    if (status != DPCR_OK && m->stream) (void)dpcr_stream_wait(m->device, m->stream, NULL);
    return status;  // and what was sent is the caller's again
}

void dpcri_sequence_device_destroy(dpcri_sequence_device *d) {
    if (!d->model) return;
    if (d->memory.stream) (void)dpcr_stream_wait(d->memory.device, d->memory.stream, NULL);  // what still runs reads it
    dpcr_recurrent_plan_destroy(d->plan);
    dpcr_recurrent_plan_destroy(d->first_plan);
    dpcri_pieces_release(&d->memory);
    if (d->memory.stream) dpcr_stream_destroy(d->memory.device, d->memory.stream);
    *d = (dpcri_sequence_device){0};
}

dpcr_status dpcri_sequence_device_send(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_pieces *m = &d->memory;
    const void *const from[DPCRI_SEQUENCE_VECTORS] = {dpcr_recurrent_vector(d->model->network, NULL),
                                                      d->model->parameters};
    for (int i = 0; i < DPCRI_SEQUENCE_VECTORS; i++)
        DPCR_TRY(m->table->copy(m->device.id, d->parameters[i].data, from[i],
                                (size_t)d->parameters[i].shape[0] * d->model->kernels->element, DPCRI_TO_DEVICE,
                                m->stream, error));
    DPCR_TRY(dpcr_stream_wait(m->device, m->stream, error));
done:
    return status;
}

// ---- passes ----

dpcr_status dpcri_sequence_device_shuffle(dpcri_sequence_device *d, uint64_t seed, int64_t epoch, dpcr_error *error) {
    const dpcri_device_shuffle shuffle = {
        .seed = seed, .stream = dpcri_shuffle_stream(epoch), .count = d->count, .order = d->order, .marks = d->marks};
    return d->kernels->shuffle(d->memory.device.id, &shuffle, d->memory.stream, error);
}

dpcr_status dpcri_sequence_device_begin(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status;
    const int64_t rows = d->model->chains * d->shape.batch;
    DPCR_TRY(clear(d, d->h[d->turn], rows * d->model->projected, error));
    if (d->c[d->turn]) DPCR_TRY(clear(d, d->c[d->turn], rows * d->model->options.network.hidden, error));
done:
    return status;
}

static dpcri_device_embedding embedding_of(const dpcri_sequence_device *d) {
    return (dpcri_device_embedding){.dtype = dpcri_sequence_dtype(d->model),
                                    .rows = d->shape.batch,
                                    .length = d->shape.length,
                                    .stream = d->stream,
                                    .symbols = d->model->options.symbols,
                                    .width = d->model->options.network.inputs,
                                    .text = d->text,
                                    .weight = d->parameters[1].data,
                                    .indices = d->indices,
                                    .labels = d->batch_labels};
}

static dpcr_status gather(dpcri_sequence_device *d, int64_t first, dpcr_error *error) {
    if (d->text) {
        dpcri_device_embedding e = embedding_of(d);
        e.first = first;
        e.x = d->x;
        return d->kernels->embedding(d->memory.device.id, &e, d->memory.stream, error);
    }
    const dpcri_device_sequences s = {.dtype = dpcri_sequence_dtype(d->model),
                                      .first = first,
                                      .rows = d->shape.batch,
                                      .count = d->count,
                                      .length = d->shape.length,
                                      .features = d->model->options.network.inputs,
                                      .data = d->data,
                                      .labels = d->labels,
                                      .lengths = d->lengths,
                                      .order = d->order,
                                      .x = d->x,
                                      .y = d->batch_labels,
                                      .steps = d->batch_lengths,
                                      .parts = d->segments,
                                      .part = d->segment};
    return d->kernels->sequences(d->memory.device.id, &s, d->memory.stream, error);
}

// ---- the network, segment by segment ----

static dpcr_recurrent_plan *plan_of(const dpcri_sequence_device *d, int64_t k) {
    return k == 0 && d->first_plan ? d->first_plan : d->plan;
}

// The states, `width` a chain and sequence, before segment k, or, k = segments, at the end: of `ends` before and after
// the batch, or of those kept.
static void *states_at(const dpcri_sequence_device *d, void *const ends[2], void *kept, int64_t width, int64_t k) {
    const int64_t numbers = d->model->chains * d->shape.batch * width;
    if (k == 0 || k == d->segments) return ends[k == 0 ? d->turn : 1 - d->turn];
    return kept ? dpcri_sequence_at(d->model, kept, (k - 1) * numbers) : NULL;
}

static dpcr_recurrent_pass segment_pass(const dpcri_sequence_device *d, int64_t k) {
    const dpcr_sequence *m = d->model;
    const int64_t B = d->shape.batch, N = m->chains, H = m->options.network.hidden, P = m->projected,
                  I = m->options.network.inputs;
    const int64_t steps = k ? d->segment : d->first_steps, from = k ? d->first_steps + (k - 1) * d->segment : 0;
    dpcr_recurrent_pass pass = {.size = sizeof pass,
                                .x = cube(d, dpcri_sequence_at(m, d->x, from * B * I), steps, B, I),
                                .lengths = d->batch_lengths ? d->batch_lengths + k * B : NULL,
                                .y = cube(d, d->y, steps, B, m->width),
                                .dropout_seed = d->seed,
                                .dropout_call = d->call};
    void *const h0 = states_at(d, d->h, d->kept_h, P, k), *const c0 = states_at(d, d->c, d->kept_c, H, k);
    void *const ht = states_at(d, d->h, d->kept_h, P, k + 1), *const ct = states_at(d, d->c, d->kept_c, H, k + 1);
    if (h0) pass.h0 = cube(d, h0, N, B, P);
    if (c0) pass.c0 = cube(d, c0, N, B, H);
    if (ht) pass.ht = cube(d, ht, N, B, P);
    if (ct) pass.ct = cube(d, ct, N, B, H);
    return pass;
}

static dpcr_status run_segment(dpcri_sequence_device *d, int64_t k, dpcr_error *error) {
    const dpcr_recurrent_pass pass = segment_pass(d, k);
    return dpcr_recurrent_enqueue(plan_of(d, k), &d->parameters[0], &pass, d->workspace, d->workspace_bytes,
                                  d->memory.stream, error);
}

// The reports of a method of sweeps have to be read before the next segment or the way back takes the workspace.
static dpcr_status collect_segment(dpcri_sequence_device *d, int64_t k, dpcr_solve_report *reports, dpcr_error *error) {
    const int64_t chains = d->model->chains;
    for (int64_t c = 0; c < chains; c++) reports[c] = (dpcr_solve_report){.size = sizeof *reports};
    const dpcr_status status =
        dpcr_recurrent_collect(plan_of(d, k), d->workspace, d->workspace_bytes, d->memory.stream, reports, error);
    if (status != DPCR_OK) return status;
    dpcr_solve_report own = reports[0];
    dpcri_recurrent_worst(reports, chains, &own.reason, &own.residual);
    if (k == 0 || dpcri_is_worse(own.reason, d->report.reason)) d->report = own;
    return DPCR_OK;
}

static dpcr_status run_network(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_context *context = d->model->context;
    dpcr_solve_report *reports = NULL;
    d->report = (dpcr_solve_report){
        .size = sizeof d->report, .reason = DPCR_REASON_SEQUENTIAL, .method = d->plan->options.solve.method};
    if (d->report.method != DPCR_METHOD_SEQUENTIAL) {
        reports = dpcri_alloc_zero(context, (size_t)d->model->chains * sizeof *reports);
        if (!reports) return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for the reports", d->memory.call);
    }
    for (int64_t k = 0; k < d->segments; k++) {
        DPCR_TRY(run_segment(d, k, error));
        if (reports) DPCR_TRY(collect_segment(d, k, reports, error));
    }
done:
    dpcri_free(context, reports);
    return status;
}

// The last segment's states lie there still; those of the others are made again.
static dpcr_status back_through_network(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_sequence *m = d->model;
    const int64_t T = d->shape.length, B = d->shape.batch, N = m->chains;
    const int64_t H = m->options.network.hidden, P = m->projected;
    void *dht = d->dht, *dct = NULL;
    for (int64_t k = d->segments - 1; k >= 0; k--) {
        dpcr_recurrent_gradients g = {.size = sizeof g};
        if (k + 1 < d->segments) DPCR_TRY(run_segment(d, k, error));
        const dpcr_recurrent_pass pass = segment_pass(d, k);
        if (d->dy) g.y = cube(d, d->dy, T, B, m->width);
        if (d->dx) g.x = cube(d, d->dx, T, B, m->options.network.inputs);
        if (dht) g.ht = cube(d, dht, N, B, P);
        if (dct) g.ct = cube(d, dct, N, B, H);
        if (k > 0) g.h0 = cube(d, d->back_h[k % 2], N, B, P);
        if (k > 0 && d->kept_c) g.c0 = cube(d, d->back_c[k % 2], N, B, H);
        DPCR_TRY(dpcr_recurrent_enqueue_backward(plan_of(d, k), &d->parameters[0], &pass, &g, &d->gradients[0],
                                                 d->workspace, d->workspace_bytes, d->memory.stream, error));
        dht = d->back_h[k % 2];
        dct = d->back_c[k % 2];
    }
done:
    return status;
}

// ---- the ends ----

// From the network's states to v, or from its gradient back.
static dpcr_status read_out(const dpcri_sequence_device *d, bool backward, dpcr_error *error) {
    const dpcr_sequence *m = d->model;
    const bool mean = m->options.readout == DPCR_READOUT_MEAN;
    const int64_t below = (m->chains - m->directions) * d->shape.batch * m->projected;
    void *const last = backward ? d->dht : d->h[1 - d->turn];
    if (!d->v) return DPCR_OK;
    const dpcri_device_readout r = {.dtype = dpcri_sequence_dtype(m),
                                    .mean = mean,
                                    .backward = backward,
                                    .length = d->shape.length,
                                    .rows = d->shape.batch,
                                    .width = m->width,
                                    .parts = m->directions,
                                    .lengths = d->batch_lengths,
                                    .states = !mean      ? dpcri_sequence_at(m, last, below)
                                              : backward ? d->dy
                                                         : d->y,
                                    .v = d->v};
    return d->kernels->readout(d->memory.device.id, &r, d->memory.stream, error);
}

// What the head reads is not wanted any more where its gradient is made.
static dpcr_status head(const dpcri_sequence_device *d, bool weights, bool backward, dpcr_error *error) {
    const dpcr_sequence *m = d->model;
    const dpcri_device_affine a = {.dtype = dpcri_sequence_dtype(m),
                                   .backward = backward,
                                   .out_in = 1,
                                   .rows = d->rows,
                                   .in = m->width,
                                   .out = m->options.outputs,
                                   .weight = end_at(d, d->parameters, m->head),
                                   .bias = end_at(d, d->parameters, m->bias),
                                   .x = d->v ? d->v : d->y,
                                   .y = d->logits,
                                   .dx = !backward || weights ? NULL
                                         : d->v               ? d->v
                                                              : d->dy,
                                   .weight_gradient = weights ? end_at(d, d->gradients, m->head) : NULL,
                                   .bias_gradient = weights ? end_at(d, d->gradients, m->bias) : NULL};
    return d->kernels->affine(d->memory.device.id, &a, d->memory.stream, error);
}

static dpcr_status loss(const dpcri_sequence_device *d, int64_t rows, bool gradient, dpcr_error *error) {
    const dpcri_device_loss l = {.dtype = dpcri_sequence_dtype(d->model),
                                 .rows = rows ? rows : d->rows,
                                 .classes = d->model->options.outputs,
                                 .logits = d->logits,
                                 .labels = d->batch_labels,
                                 .dlogits = gradient ? d->logits : NULL,
                                 .parts = d->parts,
                                 .told = d->told,
                                 .block = DPCRI_SEQUENCE_BLOCK};
    return d->kernels->loss(d->memory.device.id, &l, d->memory.stream, error);
}

static dpcr_status run_back(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(head(d, true, true, error));
    DPCR_TRY(head(d, false, true, error));
    DPCR_TRY(read_out(d, true, error));
    DPCR_TRY(back_through_network(d, error));
    if (!d->dx) goto done;
    dpcri_device_embedding e = embedding_of(d);
    e.backward = 1;
    e.x = d->dx;
    e.weight_gradient = d->gradients[1].data;
    DPCR_TRY(d->kernels->embedding(d->memory.device.id, &e, d->memory.stream, error));
done:
    return status;
}

dpcr_status dpcri_sequence_device_run(dpcri_sequence_device *d, int64_t first, int64_t rows, bool gradient,
                                      dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(gather(d, first, error));
    DPCR_TRY(run_network(d, error));
    DPCR_TRY(read_out(d, false, error));
    DPCR_TRY(head(d, false, false, error));
    DPCR_TRY(loss(d, rows, gradient, error));
    if (gradient) DPCR_TRY(run_back(d, error));
done:
    return status;
}

dpcr_status dpcri_sequence_device_read(dpcri_sequence_device *d, double *mean, int64_t *correct, dpcr_error *error) {
    dpcr_status status;
    const dpcri_pieces *m = &d->memory;
    double told[2] = {0};
    DPCR_TRY(m->table->copy(m->device.id, told, d->told, sizeof told, DPCRI_TO_HOST, m->stream, error));
    DPCR_TRY(dpcr_stream_wait(m->device, m->stream, error));
    *mean = isnan(told[0]) ? (double)NAN : told[0];  // without a sign
    *correct = (int64_t)told[1];
done:
    return status;
}
