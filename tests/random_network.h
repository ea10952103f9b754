// SPDX-License-Identifier: MIT
// Recurrent networks drawn at random (draws.h): options, shapes and arrays, their whole work by a plan of the host, and
// comparisons of what comes out.
#ifndef TESTS_RANDOM_NETWORK_H
#define TESTS_RANDOM_NETWORK_H

#include "draws.h"

typedef struct job {
    dpcr_recurrent_options o;
    dpcr_recurrent_plan_options plan;
    int64_t T, B, H, P, D, N;
    double gain;
    bool cells, packed, resets;
    int64_t lengths[64];
    unsigned char *marks;
    bool has[12];  // h0 c0 ht ct | gradients of y ht ct | wanted of x h0 c0
    table x, h0, c0, y, ht, ct, gy, ght, gct, gx, gh0, gc0;
} job;

enum { H0, C0, HT, CT, GY, GHT, GCT, GX, GH0, GC0 };

typedef struct result {
    bool refused;
    dpcr_reason worst;
    dpcr_method method;
    double tolerance;
    void *y, *ht, *ct, *gx, *gh0, *gc0, *gradients;
    int64_t count;
} result;

static void drop_result(result *r) {
    free(r->y), free(r->ht), free(r->ct), free(r->gx), free(r->gh0), free(r->gc0), free(r->gradients);
}

static void draw_network(job *j) {
    dpcr_recurrent_options *o = &j->o;
    *o = (dpcr_recurrent_options){.size = sizeof *o, .kind = (dpcr_recurrent_kind)draw_between(1, 7)};
    o->dtype = draw_chance(65) ? DPCR_F32 : DPCR_F64;
    o->hidden = draw_log(1, 70);
    o->inputs = draw_log(1, 48);
    o->layers = draw_chance(60) ? 1 : draw_between(2, 3);
    o->bidirectional = draw_chance(30);
    o->no_bias = draw_chance(15);
    o->seed = (uint64_t)draw_below(100);
    o->reverse = !o->bidirectional && draw_chance(15);
    if (o->kind == DPCR_GRU && draw_chance(25)) o->reset_before = 1;
    if (o->kind == DPCR_LSTM) {
        if (draw_chance(25)) o->peepholes = 1;
        if (draw_chance(20)) o->input_forget = 1;
        if (draw_chance(25) && o->hidden > 1) o->projection = draw_between(1, o->hidden - 1);
    }
    if (o->kind <= DPCR_LSTM && draw_chance(15)) o->clip = DRAW_OF(0.1, 0.3, 1);
    tell(" %s %s I %lld H %lld layers %lld%s%s%s P %lld%s%s%s clip %g", dpcr_dtype_name(o->dtype),
         dpcr_recurrent_kind_name(o->kind), (long long)o->inputs, (long long)o->hidden, (long long)o->layers,
         o->bidirectional ? " both ways" : "", o->reverse ? " reverse" : "", o->no_bias ? " no bias" : "",
         (long long)o->projection, o->reset_before ? " reset_before" : "", o->peepholes ? " peepholes" : "",
         o->input_forget ? " input_forget" : "", o->clip);
    j->H = o->hidden, j->P = o->projection ? o->projection : o->hidden;
    j->D = o->bidirectional ? 2 : 1, j->N = j->D * o->layers;
    j->cells = dpcr_recurrent_kind_has_cell(o->kind);
}

static void fill_with(const table *t, double scale) {
    for (int64_t l = 0; l < t->steps; l++)
        for (int64_t b = 0; b < t->rows; b++)
            for (int64_t i = 0; i < t->values; i++) table_put(t, l, b, i, scale * draw_signed());
}

static void draw_shape(job *j, double work, int64_t longest) {
    const double each = (double)j->N * 4 * (double)j->H * (double)(j->H + j->o.inputs + 8);
    j->B = draw_chance(2) ? 0 : draw_chance(30) ? 1 : draw_log(1, 40);
    const double most = fmin((double)longest, work / each / (double)(j->B + 1));
    j->T = draw_chance(6) ? draw_below(4) : draw_log(1, most < 3 ? 3 : (int64_t)most);
    j->packed = draw_chance(25), j->resets = draw_chance(20);
    for (int64_t b = 0; b < j->B; b++) j->lengths[b] = j->packed ? draw_below(j->T + 1) : j->T;
    j->marks = calloc((size_t)(j->T * j->B) + 1, 1);
    for (int64_t i = 0; j->resets && i < j->T * j->B; i++)
        j->marks[i] = draw_chance(10) ? (unsigned char)draw_between(1, 255) : 0;
    tell(" T %lld B %lld%s%s", (long long)j->T, (long long)j->B, j->packed ? " packed" : "",
         j->resets ? " resets" : "");
}

static void draw_arrays(job *j) {
    const dpcr_dtype t = j->o.dtype;
    j->x = draw_table("x", t, j->T, j->B, j->o.inputs, PLAIN), fill_with(&j->x, 1);
    j->h0 = draw_table("h0", t, j->N, j->B, j->P, PLAIN), fill_with(&j->h0, 1);
    j->c0 = draw_table("c0", t, j->N, j->B, j->H, PLAIN), fill_with(&j->c0, 1);
    j->gy = draw_table("gradients.y", t, j->T, j->B, j->D * j->P, PLAIN), fill_with(&j->gy, 1);
    j->ght = draw_table("gradients.ht", t, j->N, j->B, j->P, PLAIN), fill_with(&j->ght, 1);
    j->gct = draw_table("gradients.ct", t, j->N, j->B, j->H, PLAIN), fill_with(&j->gct, 1);
    j->y = draw_table("y", t, j->T, j->B, j->D * j->P, WRITTEN);
    j->ht = draw_table("ht", t, j->N, j->B, j->P, WRITTEN), j->ct = draw_table("ct", t, j->N, j->B, j->H, WRITTEN);
    j->gx = draw_table("gradients.x", t, j->T, j->B, j->o.inputs, WRITTEN);
    j->gh0 = draw_table("gradients.h0", t, j->N, j->B, j->P, WRITTEN);
    j->gc0 = draw_table("gradients.c0", t, j->N, j->B, j->H, WRITTEN);
    for (int i = 0; i < 12; i++) j->has[i] = draw_chance(75);
    if (!j->has[GHT] && !j->has[GCT]) j->has[GY] = true;
    if (!j->cells) j->has[C0] = j->has[CT] = j->has[GCT] = j->has[GC0] = false;
    tell(" arrays ");
    for (int i = 0; i <= GC0; i++) tell("%d", j->has[i]);
    keep_sum(&j->x), keep_sum(&j->h0), keep_sum(&j->c0), keep_sum(&j->gy), keep_sum(&j->ght), keep_sum(&j->gct);
}

static void forget(const table *t) { memset(t->memory.data, 0xff, t->memory.bytes); }

static dpcr_array given(const table *t, bool has) { return has ? t->view : (dpcr_array){0}; }

static dpcr_recurrent_pass pass_of(const job *j) {
    return (dpcr_recurrent_pass){.size = sizeof(dpcr_recurrent_pass),
                                 .x = j->x.view,
                                 .h0 = given(&j->h0, j->has[H0]),
                                 .c0 = given(&j->c0, j->has[C0]),
                                 .lengths = j->packed ? j->lengths : NULL,
                                 .y = j->y.view,
                                 .ht = given(&j->ht, j->has[HT]),
                                 .ct = given(&j->ct, j->has[CT]),
                                 .resets = j->resets ? j->marks : NULL,
                                 .dropout_seed = 5,
                                 .dropout_call = 9};
}

static void check_arrays(const job *j) {
    const table *const read[] = {&j->x, &j->h0, &j->c0, &j->gy, &j->ght, &j->gct};
    const table *const written[] = {&j->y, &j->ht, &j->ct, &j->gx, &j->gh0, &j->gc0};
    for (int i = 0; i < 6; i++) check_kept(read[i]), check_gaps(written[i]);
}

static void scale_network(const job *j, dpcr_recurrent *network) {
    int64_t count = 0;
    void *vector = dpcr_recurrent_vector(network, &count);
    for (int64_t i = 0; i < count; i++) put_number(j->o.dtype, vector, i, j->gain * number_at(j->o.dtype, vector, i));
}

// A plan for training that times ways back, with the products of their gradients, changes nothing.
static void rehearse(job *j, dpcr_recurrent *network, const dpcr_recurrent_pass *pass) {
    dpcr_recurrent_plan_options o = j->plan;
    dpcr_recurrent_plan *plan = NULL;
    dpcr_error error = {0};
    int64_t count = 0;
    dpcr_recurrent_vector(network, &count);
    void *gradients = dpcr_recurrent_gradient_vector(network);
    for (int64_t i = 0; i < count; i++) put_number(j->o.dtype, gradients, i, (double)(i % 1000));
    o.training = 1, o.sample = pass;
    o.solve = (dpcr_solve_options){.size = sizeof o.solve,
                                   .planning = DPCR_PLANNING_MEASURE,
                                   .planning_seconds = 0.002,
                                   .warm_up = j->plan.solve.warm_up};
    const dpcr_status status = dpcr_recurrent_plan_create(network, &o, &plan, &error);
    check_words(status, &error);
    dpcr_recurrent_plan_destroy(plan);
    for (int64_t i = 0; i < count; i++)
        if (number_at(j->o.dtype, gradients, i) != (double)(i % 1000))
            wrong("planning changed gradient %lld", (long long)i);
    dpcr_recurrent_zero_gradients(network);
    check_arrays(j);
}

// The network's whole work by a plan, on `threads` threads.
static result run(job *j, const dpcr_recurrent_plan_options *options, int threads) {
    result r = {.worst = DPCR_REASON_EXACT};
    dpcr_error error = {0};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *plan = NULL;
    check_done(dpcr_recurrent_create(draw_contexts[threads], &j->o, &network, &error), &error, "network");
    scale_network(j, network);
    dpcr_recurrent_plan_options o = *options;
    const dpcr_recurrent_pass pass = pass_of(j);
    o.sample = draw_chance(50) ? &pass : NULL;
    if (draw_chance(15)) rehearse(j, network, &pass);
    dpcr_status status = dpcr_recurrent_plan_create(network, &o, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED || status == DPCR_ERROR_MEMORY) {
        dpcr_recurrent_destroy(network);
        return (result){.refused = true};
    }
    check_done(status, &error, "plan");
    const int used = drawn.used;
    const size_t need = dpcr_recurrent_plan_workspace(plan), held = dpcr_recurrent_plan_tape(plan);
    if (need > MOST_BYTES / 2 || held > MOST_BYTES / 2) {
        dpcr_recurrent_plan_destroy(plan), dpcr_recurrent_destroy(network);
        return (result){.refused = true};
    }
    piece space = draw_scratch(need), tape = draw_scratch(held);
    dpcr_solve_report reports[8];
    for (int i = 0; i < 8; i++) reports[i] = (dpcr_solve_report){.size = sizeof reports[i]};
    const table *const written[] = {&j->y, &j->ht, &j->ct, &j->gx, &j->gh0, &j->gc0};
    for (int i = 0; i < 6; i++) forget(written[i]);
    check_done(dpcr_recurrent_execute(plan, &pass, o.training ? tape.data : NULL, space.data, need, reports, &error),
               &error, "execute");
    check_around(&space, "workspace"), check_around(&tape, "tape"), check_arrays(j);
    for (int64_t i = 0; i < j->N; i++) {
        const dpcr_reason reason = reports[i].reason;
        if (reason < 0 || (r.worst >= 0 && reason != DPCR_REASON_EXACT && reason != DPCR_REASON_SEQUENTIAL))
            r.worst = reason;
        const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(plan, i);
        if (j->T == 0 || j->B == 0 || !chain) continue;
        r.method = reports[i].method;
        const dpcr_solve_options *pinned = dpcr_solve_plan_options(chain);
        r.tolerance = fmax(r.tolerance, fmax(pinned->atol, 0) + fmax(pinned->rtol, 0));
    }
    int64_t count = 0;
    if (o.training) {
        const dpcr_recurrent_gradients g = {.size = sizeof g,
                                            .y = given(&j->gy, j->has[GY]),
                                            .ht = given(&j->ght, j->has[GHT]),
                                            .ct = given(&j->gct, j->has[GCT]),
                                            .x = given(&j->gx, j->has[GX]),
                                            .h0 = given(&j->gh0, j->has[GH0]),
                                            .c0 = given(&j->gc0, j->has[GC0])};
        dpcr_recurrent_zero_gradients(network);
        spoil_scratch(&space);
        check_done(dpcr_recurrent_backward(plan, &pass, &g, tape.data, space.data, need, NULL, &error), &error,
                   "backward");
        check_around(&space, "workspace of backward"), check_around(&tape, "tape"), check_arrays(j);
    }
    dpcr_recurrent_vector(network, &count);
    r.count = count;
    r.gradients = calloc((size_t)count + 1, 8);
    memcpy(r.gradients, dpcr_recurrent_gradient_vector(network), (size_t)count * dpcr_dtype_size(j->o.dtype));
    r.y = packed_table(&j->y), r.ht = packed_table(&j->ht), r.ct = packed_table(&j->ct);
    r.gx = packed_table(&j->gx), r.gh0 = packed_table(&j->gh0), r.gc0 = packed_table(&j->gc0);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
    drawn.used = used;
    return r;
}

static void same(const char *what, const char *name, const void *a, const void *b, dpcr_dtype dtype, int64_t n) {
    const int64_t at = differs(a, b, dtype, n);
    if (at >= 0)
        wrong("%s: %s(%lld) is %.9g and %.9g", what, name, (long long)at, number_at(dtype, a, at),
              number_at(dtype, b, at));
}

// Sums over steps and sequences have the same bits in the same way back alone.
static void same_results(const job *j, const result *a, const result *b, const char *what, bool back, bool sums) {
    const int64_t n = j->T * j->B;
    same(what, "y", a->y, b->y, j->o.dtype, n * j->D * j->P);
    same(what, "ht", a->ht, b->ht, j->o.dtype, j->N * j->B * j->P);
    same(what, "ct", a->ct, b->ct, j->o.dtype, j->N * j->B * j->H);
    if (!back) return;
    same(what, "x's gradient", a->gx, b->gx, j->o.dtype, n * j->o.inputs);
    same(what, "h0's gradient", a->gh0, b->gh0, j->o.dtype, j->N * j->B * j->P);
    same(what, "c0's gradient", a->gc0, b->gc0, j->o.dtype, j->N * j->B * j->H);
    if (sums) same(what, "the gradients", a->gradients, b->gradients, j->o.dtype, a->count);
}

static void near(const job *j, const char *name, const void *got, const void *want, int64_t n, double tolerance) {
    double largest = 1;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(number_at(j->o.dtype, want, i)));
    for (int64_t i = 0; i < n; i++) {
        const double x = number_at(j->o.dtype, got, i), y = number_at(j->o.dtype, want, i);
        if (!(fabs(x - y) <= tolerance * largest) && memcmp(&x, &y, sizeof x) != 0)
            wrong("%s(%lld) is %.9g, by the loop %.9g", name, (long long)i, x, y);
    }
}

// A sequence by itself, which `run_one` runs.
static void check_alone(job *j, const result *together, result (*run_one)(job *one)) {
    job one = *j;
    const int64_t row = draw_below(j->B), T = j->packed ? j->lengths[row] : j->T;
    const int used = drawn.used;
    one.T = T, one.B = 1, one.packed = false;
    one.plan.length = T, one.plan.batch = 1;
    one.marks = calloc((size_t)T + 1, 1);
    for (int64_t t = 0; t < T; t++) one.marks[t] = j->marks[t * j->B + row];
    bool has[12];
    memcpy(has, j->has, sizeof has);
    const uint64_t kept = drawn.state;
    draw_arrays(&one);
    memcpy(one.has, has, sizeof has);
    const table *const from[] = {&j->x, &j->h0, &j->c0, &j->gy, &j->ght, &j->gct};
    table *const to[] = {&one.x, &one.h0, &one.c0, &one.gy, &one.ght, &one.gct};
    for (int k = 0; k < 6; k++) {
        for (int64_t t = 0; t < to[k]->steps; t++)
            for (int64_t i = 0; i < to[k]->values; i++) table_put(to[k], t, 0, i, table_get(from[k], t, row, i));
        keep_sum(to[k]);
    }
    result r = run_one(&one);
    const void *const all[] = {together->y, together->gx, together->ht, together->gh0};
    const void *const mine[] = {r.y, r.gx, r.ht, r.gh0};
    const int64_t steps[] = {T, T, j->N, j->N}, values[] = {j->D * j->P, j->o.inputs, j->P, j->P};
    static const char *const names[] = {"y", "x's gradient", "ht", "h0's gradient"};
    for (int k = 0; k < 4; k++)
        for (int64_t t = 0; !r.refused && t < steps[k]; t++)
            for (int64_t i = 0; i < values[k]; i++) {
                const double x = number_at(j->o.dtype, all[k], (t * j->B + row) * values[k] + i),
                             y = number_at(j->o.dtype, mine[k], t * values[k] + i);
                if (x != y && !(isnan(x) && isnan(y)))
                    wrong("row %lld alone: %s(%lld, %lld) is %.9g, among others %.9g", (long long)row, names[k],
                          (long long)t, (long long)i, y, x);
            }
    drop_result(&r);
    free(one.marks);
    drawn.used = used;
    drawn.state = kept;
}

#endif
