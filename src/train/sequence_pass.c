// SPDX-License-Identifier: MIT
// One pass of a sequence model over a batch, forward and back:
//   x = embedding[symbols];  y, hT = network(x, h0);  v = hT | mean of y | y;  logits = v W^T + b;  loss
//   dlogits;  dW += dlogits^T v, db += sum dlogits, dv = dlogits W;  dy or dhT = dv;  network back;  dembedding += dx
// Rows go in fixed blocks over the context's threads and losses are summed in their order: the same bits for any number
// of threads.
#include <stdio.h>
#include <string.h>

#include "deeppcr/embedding.h"
#include "model/recurrent_internal.h"
#include "nn/layer.h"
#include "solve/solve_internal.h"
#include "train/loss.h"
#include "train/pass.h"
#include "train/sequence.h"

enum {
    BLOCK_ROWS = DPCRI_SEQUENCE_BLOCK,
    MOST_ROWS = 1 << 14
};  // of the head at once: logits of a long text are never all there

static int64_t blocks(int64_t n) { return (n + BLOCK_ROWS - 1) / BLOCK_ROWS; }
static int64_t block_size(int64_t n, int64_t i) {
    return n - i * BLOCK_ROWS < BLOCK_ROWS ? n - i * BLOCK_ROWS : BLOCK_ROWS;
}

static int64_t held_rows(const dpcri_sequence_pass *p) {
    return p->shape.states_only && p->rows > MOST_ROWS ? MOST_ROWS : p->rows;
}

// ---- buffers ----

typedef struct piece {
    void **place;
    bool wanted;
    int64_t a, b, c;
    size_t element;
} piece;

static dpcr_status make_buffers(dpcri_sequence_pass *p, dpcr_error *error) {
    const dpcr_sequence *m = p->model;
    const dpcr_recurrent_options *n = &m->options.network;
    const dpcri_sequence_shape *s = &p->shape;
    const int64_t T = s->length, B = s->batch, C = m->options.outputs;
    const bool each = m->options.readout == DPCR_READOUT_EACH, last = m->options.readout == DPCR_READOUT_LAST;
    const bool cells = dpcri_sequence_cells(m), back = s->training;
    const size_t e = m->kernels->element;
    const piece pieces[] = {
        {(void **)&p->symbols, m->options.symbols > 0, T, B, 1, sizeof *p->symbols},
        {(void **)&p->lengths, s->packed, B, 1, 1, sizeof *p->lengths},
        {(void **)&p->labels, true, p->rows, 1, 1, 1},
        {(void **)&p->losses, true, blocks(held_rows(p)), 1, 1, sizeof *p->losses},
        {(void **)&p->corrects, true, blocks(held_rows(p)), 1, 1, sizeof *p->corrects},
        {(void **)&p->reports, true, m->chains, 1, 1, sizeof *p->reports},
        {(void **)&p->back_reports, back, m->chains, 1, 1, sizeof *p->back_reports},
        {&p->h0, each, m->chains, B, m->projected, e},
        {&p->c0, each && cells, m->chains, B, n->hidden, e},
        {&p->ht, true, m->chains, B, m->projected, e},
        {&p->ct, cells, m->chains, B, n->hidden, e},
        {&p->x, true, T, B, n->inputs, e},
        {&p->y, true, s->segment ? s->segment : T, B, m->width, e},
        {(void **)&p->segment_lengths, s->segment && s->packed, B, 1, 1, sizeof *p->segment_lengths},
        {(void **)&p->kept_h, s->segment > 0, p->segments + 1, m->chains * B, m->projected, e},
        {(void **)&p->kept_c, s->segment > 0 && cells, p->segments + 1, m->chains * B, n->hidden, e},
        {&p->back_h[0], s->segment > 0, m->chains, B, m->projected, e},
        {&p->back_h[1], s->segment > 0, m->chains, B, m->projected, e},
        {&p->back_c[0], s->segment > 0 && cells, m->chains, B, n->hidden, e},
        {&p->back_c[1], s->segment > 0 && cells, m->chains, B, n->hidden, e},
        {&p->read, !each, B, m->width, 1, e},
        {&p->logits, true, held_rows(p), C, 1, e},
        {&p->head, true, m->width, C, 1, e},
        {&p->dread, back && !each, B, m->width, 1, e},
        {&p->dx, back && m->options.symbols > 0, T, B, n->inputs, e},
        {&p->dy, back && !last, T, B, m->width, e},
        {&p->dht, back && last, m->chains, B, m->projected, e},
    };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    size_t bytes[PIECES] = {0};
    int64_t all = 0;
    for (int i = 0; i < PIECES; i++) {
        const piece *q = &pieces[i];
        int64_t count = 0, numbers = 0;
        bool overflow = !dpcri_mul(q->a, q->b, &numbers) || !dpcri_mul(numbers, q->c, &count);
        if (!q->wanted) continue;
        bytes[i] = overflow ? 0 : dpcri_bytes(count, (int64_t)q->element, 1, &overflow);
        if (overflow || !dpcri_add(all, (int64_t)bytes[i], &all))
            return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "sequence: a batch does not fit into memory");
    }
    // All of it at once, before gigabytes of zeros are written for nothing.
    void *room = dpcri_alloc(p->context, (size_t)all);
    dpcri_free(p->context, room);
    for (int i = 0; i < PIECES; i++) {
        if (!pieces[i].wanted) continue;
        *pieces[i].place = room ? dpcri_alloc_zero(p->context, bytes[i]) : NULL;
        if (!*pieces[i].place)
            return dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence: no memory for a batch (%lld bytes)", (long long)all);
    }
    p->h_bytes = (size_t)(m->chains * B * m->projected) * e;
    p->c_bytes = cells ? (size_t)(m->chains * B * n->hidden) * e : 0;
    return DPCR_OK;
}

dpcr_status dpcri_sequence_pass_create(dpcri_sequence_pass *p, dpcr_sequence *model, const dpcri_sequence_shape *shape,
                                       dpcr_error *error) {
    *p = (dpcri_sequence_pass){.context = model->context, .model = model, .shape = *shape};
    p->rows = shape->batch;
    if (model->options.readout == DPCR_READOUT_EACH && !dpcri_mul(shape->length, shape->batch, &p->rows))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "sequence: %lld steps of %lld sequences do not fit",
                          (long long)shape->length, (long long)shape->batch);
    if (shape->segment >= shape->length) p->shape.segment = 0;
    if (p->shape.segment) {
        p->segments = (shape->length + shape->segment - 1) / shape->segment;
        p->first = shape->length - (p->segments - 1) * shape->segment;
    }
    return make_buffers(p, error);
}

void dpcri_sequence_pass_destroy(dpcri_sequence_pass *p) {
    if (!p->context) return;
    void *const owned[] = {p->symbols,     p->lengths,
                           p->labels,      p->losses,
                           p->corrects,    p->reports,
                           p->h0,          p->c0,
                           p->ht,          p->ct,
                           p->x,           p->y,
                           p->read,        p->logits,
                           p->head,        p->dread,
                           p->dx,          p->dy,
                           p->dht,         p->tape,
                           p->workspace,   p->segment_lengths,
                           p->kept_h,      p->kept_c,
                           p->back_h[0],   p->back_h[1],
                           p->back_c[0],   p->back_c[1],
                           p->back_reports};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(p->context, owned[i]);
    dpcr_recurrent_plan_destroy(p->plan);
    dpcr_recurrent_plan_destroy(p->first_plan);
    *p = (dpcri_sequence_pass){0};
}

// ---- arrays ----

static dpcr_array cube(const dpcri_sequence_pass *p, void *data, int64_t a, int64_t b, int64_t c) {
    return dpcr_array_make(data, dpcri_sequence_dtype(p->model), 3, (const int64_t[]){a, b, c});
}

static dpcr_array matrix(const dpcri_sequence_pass *p, void *data, int64_t rows, int64_t columns) {
    return dpcr_array_make(data, dpcri_sequence_dtype(p->model), 2, (const int64_t[]){rows, columns});
}

static dpcr_array embedding_of(const dpcri_sequence_pass *p, char *vector) {
    return matrix(p, vector, p->model->options.symbols, p->model->options.network.inputs);
}

static dpcr_recurrent_pass network_pass(const dpcri_sequence_pass *p) {
    const dpcr_sequence *m = p->model;
    const int64_t T = p->shape.length, B = p->shape.batch, N = m->chains, H = m->options.network.hidden;
    dpcr_recurrent_pass pass = {.size = sizeof pass,
                                .x = cube(p, p->x, T, B, m->options.network.inputs),
                                .lengths = p->lengths,
                                .y = cube(p, p->y, T, B, m->width),
                                .ht = cube(p, p->ht, N, B, m->projected),
                                .dropout_seed = p->seed,
                                .dropout_call = p->call};
    if (p->h0) pass.h0 = cube(p, p->h0, N, B, m->projected);
    if (p->c0) pass.c0 = cube(p, p->c0, N, B, H);
    if (p->ct) pass.ct = cube(p, p->ct, N, B, H);
    return pass;
}

// ---- segments ----

static int64_t segment_begin(const dpcri_sequence_pass *p, int64_t k) {
    return k ? p->first + (k - 1) * p->shape.segment : 0;
}
static int64_t segment_steps(const dpcri_sequence_pass *p, int64_t k) { return k ? p->shape.segment : p->first; }
static dpcr_recurrent_plan *segment_plan(const dpcri_sequence_pass *p, int64_t k) {
    return k == 0 && p->first_plan ? p->first_plan : p->plan;
}

// The network over segment k alone, from the states kept before it to those kept after it.
static dpcr_recurrent_pass segment_pass(const dpcri_sequence_pass *p, int64_t k) {
    const dpcr_sequence *m = p->model;
    const int64_t from = segment_begin(p, k), T = segment_steps(p, k), B = p->shape.batch, N = m->chains,
                  I = m->options.network.inputs, H = m->options.network.hidden;
    dpcr_recurrent_pass pass = {.size = sizeof pass,
                                .x = cube(p, dpcri_sequence_at(m, p->x, from * B * I), T, B, I),
                                .lengths = p->segment_lengths,
                                .y = cube(p, p->y, T, B, m->width),
                                .ht = cube(p, p->kept_h + (size_t)(k + 1) * p->h_bytes, N, B, m->projected)};
    for (int64_t b = 0; p->segment_lengths && b < B; b++) {
        const int64_t left = p->lengths[b] - from;
        p->segment_lengths[b] = left < 0 ? 0 : left < T ? left : T;
    }
    if (k) pass.h0 = cube(p, p->kept_h + (size_t)k * p->h_bytes, N, B, m->projected);
    if (k && p->kept_c) pass.c0 = cube(p, p->kept_c + (size_t)k * p->c_bytes, N, B, H);
    if (p->kept_c) pass.ct = cube(p, p->kept_c + (size_t)(k + 1) * p->c_bytes, N, B, H);
    return pass;
}

static dpcr_status run_segment(dpcri_sequence_pass *p, int64_t k, dpcr_error *error) {
    const dpcr_recurrent_pass pass = segment_pass(p, k);
    return dpcr_recurrent_execute(segment_plan(p, k), &pass, p->tape, p->workspace, p->workspace_bytes, p->reports,
                                  error);
}

// All segments in order; the last one's tape stays. Of the reports the worst.
static dpcr_status run_segments(dpcri_sequence_pass *p, dpcr_error *error) {
    dpcr_solve_report worst = {.size = sizeof worst};
    for (int64_t k = 0; k < p->segments; k++) {
        const dpcr_status status = run_segment(p, k, error);
        if (status != DPCR_OK) return status;
        for (int64_t c = 0; c < p->model->chains; c++)
            if ((k == 0 && c == 0) || dpcri_is_worse(p->reports[c].reason, worst.reason)) worst = p->reports[c];
    }
    p->reports[0] = worst;
    memcpy(p->ht, p->kept_h + (size_t)p->segments * p->h_bytes, p->h_bytes);
    if (p->kept_c) memcpy(p->ct, p->kept_c + (size_t)p->segments * p->c_bytes, p->c_bytes);
    return DPCR_OK;
}

// Of the layers' and directions' ways back, and of those before, the worst.
static dpcr_status run_back(dpcri_sequence_pass *p, dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                            const dpcr_recurrent_gradients *gradients, dpcr_error *error) {
    const int64_t chains = p->model->chains;
    dpcr_reason worst;
    for (int64_t c = 0; c < chains; c++) p->back_reports[c] = (dpcr_solve_report){.size = sizeof *p->back_reports};
    const dpcr_status status = dpcr_recurrent_backward(plan, pass, gradients, p->tape, p->workspace, p->workspace_bytes,
                                                       p->back_reports, error);
    if (status != DPCR_OK) return status;
    dpcri_recurrent_worst(p->back_reports, chains, &worst, NULL);
    p->back_reason = p->back_reason ? dpcr_reason_worse(p->back_reason, worst) : worst;
    return status;
}

// From the last to the first: the steps again but for the last, then back through them.
static dpcr_status back_through_segments(dpcri_sequence_pass *p, dpcr_error *error) {
    const dpcr_sequence *m = p->model;
    const int64_t N = m->chains, B = p->shape.batch, H = m->options.network.hidden;
    void *h = p->dht, *c = NULL;
    for (int64_t k = p->segments - 1; k >= 0; k--) {
        dpcr_status status = k + 1 < p->segments ? run_segment(p, k, error) : DPCR_OK;
        if (status != DPCR_OK) return status;
        const dpcr_recurrent_pass pass = segment_pass(p, k);
        dpcr_recurrent_gradients g = {.size = sizeof g, .ht = cube(p, h, N, B, m->projected)};
        if (c) g.ct = cube(p, c, N, B, H);
        if (k) g.h0 = cube(p, p->back_h[k % 2], N, B, m->projected);
        if (k && p->kept_c) g.c0 = cube(p, p->back_c[k % 2], N, B, H);
        status = run_back(p, segment_plan(p, k), &pass, &g, error);
        if (status != DPCR_OK) return status;
        h = p->back_h[k % 2];
        c = p->kept_c ? p->back_c[k % 2] : NULL;
    }
    return DPCR_OK;
}

// ---- planning ----

static dpcr_status embed(dpcri_sequence_pass *p, dpcr_error *error) {
    if (!p->symbols) return DPCR_OK;
    const dpcr_array weight = embedding_of(p, p->model->parameters);
    const dpcr_array x = cube(p, p->x, p->shape.length, p->shape.batch, p->model->options.network.inputs);
    return dpcr_embedding_forward(p->context, &weight, p->symbols, p->shape.length * p->shape.batch, &x, error);
}

static dpcr_status make_plan(dpcri_sequence_pass *p, const dpcr_solve_options *solve, int64_t length,
                             dpcr_recurrent_plan **plan, dpcr_error *error) {
    dpcr_recurrent_pass sample = network_pass(p);
    sample.x.shape[0] = sample.y.shape[0] = length;
    if (p->segments) sample.lengths = NULL;
    dpcr_recurrent_plan_options options = {.size = sizeof options,
                                           .length = length,
                                           .batch = p->shape.batch,
                                           .training = p->shape.training,
                                           .packed = p->shape.packed,
                                           .solve = *solve,
                                           .sample = &sample,
                                           .dropout = p->shape.dropout,
                                           .recompute = p->shape.recompute};
    options.solve.size = sizeof options.solve;
    return dpcr_recurrent_plan_create(p->model->network, &options, plan, error);
}

dpcr_status dpcri_sequence_pass_plan(dpcri_sequence_pass *p, const dpcr_solve_options *solve, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(embed(p, error));
    const int64_t length = p->segments ? p->shape.segment : p->shape.length;
    DPCR_TRY(make_plan(p, solve, length, &p->plan, error));
    // One choice for all chains: a checkpoint keeps one.
    if (p->shape.training && p->model->chains > 1 && (!solve->method || !solve->backward)) {
        const dpcr_solve_plan *first = dpcr_recurrent_plan_chain(p->plan, 0);
        dpcr_solve_options chosen = *dpcr_solve_plan_options(first);
        char why[DPCRI_SENTENCE];
        snprintf(why, sizeof why, "%s", dpcr_solve_plan_sentence(first));
        dpcr_recurrent_plan_destroy(p->plan);
        p->plan = NULL;
        DPCR_TRY(make_plan(p, &chosen, length, &p->plan, error));
        dpcr_solve_plan *chain = p->plan->chains[0];
        if (chain) snprintf(chain->sentence, sizeof chain->sentence, "%s", why);
    }
    size_t tape = dpcr_recurrent_plan_tape(p->plan);
    p->workspace_bytes = dpcr_recurrent_plan_workspace(p->plan);
    if (p->segments && p->first != length) {
        const dpcr_solve_options *chosen = dpcr_solve_plan_options(dpcr_recurrent_plan_chain(p->plan, 0));
        DPCR_TRY(make_plan(p, chosen, p->first, &p->first_plan, error));
        const size_t first = dpcr_recurrent_plan_workspace(p->first_plan);
        if (first > p->workspace_bytes) p->workspace_bytes = first;
        if (dpcr_recurrent_plan_tape(p->first_plan) > tape) tape = dpcr_recurrent_plan_tape(p->first_plan);
    }
    if (tape == SIZE_MAX || p->workspace_bytes == SIZE_MAX)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "sequence: the network's workspace does not fit into memory"));
    p->workspace = dpcri_alloc(p->context, p->workspace_bytes);
    p->tape = dpcri_alloc(p->context, tape);
    if ((!p->workspace && p->workspace_bytes) || (!p->tape && tape))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY,
                            "sequence: no memory for the network's workspace and tape (%zu and %zu bytes)",
                            p->workspace_bytes, tape));
done:
    return status;
}

dpcr_status dpcri_sequence_round_segment(dpcr_sequence *model, dpcri_sequence_shape *shape, dpcr_error *error) {
    const dpcr_recurrent_plan_options options = {
        .size = sizeof options,
        .length = shape->length,
        .batch = shape->batch,
        .training = 1,
        .packed = shape->packed,
        .solve = {.size = sizeof options.solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL}};
    dpcr_recurrent_plan *plan = NULL;
    const dpcr_status status = dpcr_recurrent_plan_create(model->network, &options, &plan, error);
    if (status != DPCR_OK) return status;
    const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(plan, 0);
    const int64_t window = chain->backward_window * (chain->steps.gradient_join ? chain->join_windows : 1);
    if (shape->segment <= INT64_MAX - window) shape->segment = (shape->segment + window - 1) / window * window;
    dpcr_recurrent_plan_destroy(plan);
    return DPCR_OK;
}

// ---- what the head reads ----

// v [B][width] = the last layer's hT, directions side by side; back: dhT = dv, that of the layers below stays 0.
static void move_last(dpcri_sequence_pass *p, void *ht, void *read, bool back) {
    const dpcr_sequence *m = p->model;
    const size_t bytes = (size_t)m->projected * m->kernels->element;
    for (int64_t d = 0; d < m->directions; d++)
        for (int64_t b = 0; b < p->shape.batch; b++) {
            const int64_t chain = m->chains - m->directions + d;
            void *inner = dpcri_sequence_at(m, ht, (chain * p->shape.batch + b) * m->projected);
            void *outer = dpcri_sequence_at(m, read, b * m->width + d * m->projected);
            memcpy(back ? inner : outer, back ? outer : inner, bytes);
        }
}

#define MEAN(type, name)                                                                        \
    static void name(dpcri_sequence_pass *p, type *y, type *read, bool back) {                  \
        const int64_t B = p->shape.batch, width = p->model->width;                              \
        for (int64_t b = 0; b < B; b++) {                                                       \
            const int64_t length = p->lengths ? p->lengths[b] : p->shape.length;                \
            const type share = (type)(1.0 / (double)(length > 0 ? length : 1));                 \
            type *v = read + b * width;                                                         \
            if (!back) memset(v, 0, (size_t)width * sizeof(type));                              \
            for (int64_t t = 0; t < p->shape.length; t++) {                                     \
                type *row = y + (t * B + b) * width;                                            \
                if (back)                                                                       \
                    for (int64_t j = 0; j < width; j++) row[j] = t < length ? share * v[j] : 0; \
                else if (t < length)                                                            \
                    for (int64_t j = 0; j < width; j++) v[j] += share * row[j];                 \
            }                                                                                   \
        }                                                                                       \
    }
MEAN(float, mean_f32)
MEAN(double, mean_f64)
#undef MEAN

static void move_mean(dpcri_sequence_pass *p, void *y, void *read, bool back) {
    if (dpcri_sequence_dtype(p->model) == DPCR_F64)
        mean_f64(p, y, read, back);
    else
        mean_f32(p, y, read, back);
}

// ---- the head ----

typedef struct head_task {
    dpcri_sequence_pass *pass;
    const char *v;          // [rows][width]
    const uint8_t *labels;  // [rows]
    char *dv;
    int64_t rows, of;  // rows here, and of the mean
    bool gradient;
    dpcr_error error;
} head_task;

static void head_block(void *argument, int64_t i) {
    head_task *t = argument;
    dpcri_sequence_pass *p = t->pass;
    const dpcr_sequence *m = p->model;
    const int64_t C = m->options.outputs, rows = block_size(t->rows, i), first = i * BLOCK_ROWS;
    void *logits = dpcri_sequence_at(m, p->logits, first * C);
    m->kernels->product(&(dpcri_product){.m = rows,
                                         .n = C,
                                         .depth = m->width,
                                         .a = dpcri_sequence_at(m, (char *)(uintptr_t)t->v, first * m->width),
                                         .a_row = m->width,
                                         .a_col = 1,
                                         .b = p->head,
                                         .b_row = C,
                                         .init = dpcri_sequence_at(m, m->parameters, m->bias),
                                         .c = logits,
                                         .c_row = C});
    const dpcr_array array = matrix(p, logits, rows, C);
    p->losses[i] = 0;
    p->corrects[i] = 0;
    dpcr_error error = {0};  // labels were checked
    dpcri_loss_cross_entropy_part(&array, t->labels + first, t->of, &p->losses[i], t->gradient ? &array : NULL,
                                  &p->corrects[i], &error);
    if (!t->dv) return;
    m->kernels->product(&(dpcri_product){.m = rows,
                                         .n = m->width,
                                         .depth = C,
                                         .a = logits,
                                         .a_row = C,
                                         .a_col = 1,
                                         .b = dpcri_sequence_at(m, m->parameters, m->head),
                                         .b_row = m->width,
                                         .c = dpcri_sequence_at(m, t->dv, first * m->width),
                                         .c_row = m->width});
}

// Logits of `rows` rows, their losses added in order; dv: where the loss's gradient by v goes, or NULL.
static void score(dpcri_sequence_pass *p, void *v, const uint8_t *labels, int64_t rows, int64_t of, void *dv,
                  bool gradient, double *loss, int64_t *correct) {
    head_task task = {.pass = p, .v = v, .labels = labels, .dv = dv, .rows = rows, .of = of, .gradient = gradient};
    dpcri_parallel(p->context, blocks(rows), head_block, &task);
    for (int64_t i = 0; i < blocks(rows); i++) {
        *loss += p->losses[i];
        *correct += p->corrects[i];
    }
}

typedef struct weight_task {
    const dpcri_sequence_pass *pass;
    const void *v;
} weight_task;

enum { WEIGHT_ROWS = 16 };

// dW += dlogits^T v for a block of W's rows; every sum runs over the rows in order.
static void weight_block(void *argument, int64_t i) {
    const weight_task *t = argument;
    const dpcri_sequence_pass *p = t->pass;
    const dpcr_sequence *m = p->model;
    const int64_t C = m->options.outputs, first = i * WEIGHT_ROWS;
    void *c = dpcri_sequence_at(m, m->gradients, m->head + first * m->width);
    m->kernels->product(&(dpcri_product){.m = C - first < WEIGHT_ROWS ? C - first : WEIGHT_ROWS,
                                         .n = m->width,
                                         .depth = p->rows,
                                         .a = dpcri_sequence_at(m, p->logits, first),
                                         .a_row = 1,
                                         .a_col = C,
                                         .b = t->v,
                                         .b_row = m->width,
                                         .init = c,
                                         .init_row = m->width,
                                         .c = c,
                                         .c_row = m->width});
}

static void lay_out_head(dpcri_sequence_pass *p) {
    const dpcr_sequence *m = p->model;
    m->kernels->transpose(m->options.outputs, m->width, dpcri_sequence_at(m, m->parameters, m->head), m->width, p->head,
                          m->options.outputs);
}

// ---- passes ----

dpcr_status dpcri_sequence_run(dpcri_sequence_pass *p, dpcr_error *error) {
    dpcr_status status;
    double mark = dpcri_seconds();
    DPCR_TRY(embed(p, error));
    dpcri_phase_end(&p->phases.encode, &mark);
    for (int64_t c = 0; c < p->model->chains; c++) p->reports[c] = (dpcr_solve_report){.size = sizeof *p->reports};
    if (p->segments) {
        DPCR_TRY(run_segments(p, error));
    } else {
        const dpcr_recurrent_pass pass = network_pass(p);
        DPCR_TRY(dpcr_recurrent_execute(p->plan, &pass, p->tape, p->workspace, p->workspace_bytes, p->reports, error));
    }
    dpcri_phase_end(&p->phases.forward, &mark);
done:
    return status;
}

dpcr_status dpcri_sequence_forward(dpcri_sequence_pass *p, int64_t rows, bool gradient, double *loss, int64_t *correct,
                                   dpcr_error *error) {
    dpcr_status status;
    const dpcr_readout readout = p->model->options.readout;
    if (!rows) rows = p->rows;
    double total = 0;
    *correct = 0;
    DPCR_TRY(dpcri_sequence_run(p, error));
    double mark = dpcri_seconds();
    lay_out_head(p);
    if (readout == DPCR_READOUT_LAST) move_last(p, p->ht, p->read, false);
    if (readout == DPCR_READOUT_MEAN) move_mean(p, p->y, p->read, false);
    const bool each = readout == DPCR_READOUT_EACH;
    for (int64_t first = 0, n; first < rows; first += n) {
        n = rows - first < held_rows(p) ? rows - first : held_rows(p);
        score(p, dpcri_sequence_at(p->model, each ? p->y : p->read, first * p->model->width), p->labels + first, n,
              rows,
              !gradient ? NULL
              : each    ? p->dy
                        : p->dread,
              gradient, &total, correct);
    }
    *loss = total / (double)rows;
    dpcri_phase_end(&p->phases.head, &mark);
done:
    return status;
}

dpcr_status dpcri_sequence_backward(dpcri_sequence_pass *p, dpcr_error *error) {
    dpcr_status status;
    dpcr_sequence *m = p->model;
    const dpcr_readout readout = m->options.readout;
    const int64_t T = p->shape.length, B = p->shape.batch, C = m->options.outputs;
    double mark = dpcri_seconds();
    p->back_reason = 0;
    weight_task task = {.pass = p, .v = readout == DPCR_READOUT_EACH ? p->y : p->read};
    dpcri_parallel(p->context, (C + WEIGHT_ROWS - 1) / WEIGHT_ROWS, weight_block, &task);
    dpcri_column_sums(m->kernels, p->rows, C, (dpcri_rows){p->logits, C}, dpcri_sequence_at(m, m->gradients, m->bias));
    if (readout == DPCR_READOUT_LAST) move_last(p, p->dht, p->dread, true);
    if (readout == DPCR_READOUT_MEAN) move_mean(p, p->dy, p->dread, true);
    dpcri_phase_end(&p->phases.head, &mark);
    if (p->segments) {
        DPCR_TRY(back_through_segments(p, error));
        dpcri_phase_end(&p->phases.backward, &mark);
        return DPCR_OK;
    }
    const dpcr_recurrent_pass pass = network_pass(p);
    dpcr_recurrent_gradients gradients = {.size = sizeof gradients};
    if (p->dy) gradients.y = cube(p, p->dy, T, B, m->width);
    if (p->dht) gradients.ht = cube(p, p->dht, m->chains, B, m->projected);
    if (p->dx) gradients.x = cube(p, p->dx, T, B, m->options.network.inputs);
    DPCR_TRY(run_back(p, p->plan, &pass, &gradients, error));
    dpcri_phase_end(&p->phases.backward, &mark);
    if (p->dx) {
        const dpcr_array weight = embedding_of(p, m->gradients);
        DPCR_TRY(dpcr_embedding_backward(p->context, &gradients.x, p->symbols, T * B, -1, &weight, error));
    }
    dpcri_phase_end(&p->phases.encode_backward, &mark);
done:
    return status;
}
