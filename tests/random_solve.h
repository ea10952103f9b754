// SPDX-License-Identifier: MIT
// Solves of chains drawn at random (random_steps.h) and their ways back: what they read and write, a run by a plan of
// the host, every step against its definition in double, and what a report promises.
#ifndef TESTS_RANDOM_SOLVE_H
#define TESTS_RANDOM_SOLVE_H

#include "random_steps.h"

static int by_reason[8];

// All that a solve and its way back read and write.
typedef struct problem {
    subject s;
    dpcr_solve_options options;
    table z0, z, tape, direct, last, lambda, dz0;
    bool has_tape, has_direct, has_last, has_lambda, has_dz0;
    void *guess;  // [L][B][w] or NULL
    double *step_scale;
} problem;

typedef struct result {
    dpcr_solve_report report;
    int reasons[64];
    void *z, *lambda, *dz0, *gradients;
    size_t gradient_bytes;
    bool refused;
    dpcr_status status;
} result;

static void drop_result(result *r) { free(r->z), free(r->lambda), free(r->dz0), free(r->gradients); }

static void draw_tolerances(dpcr_solve_options *o, dpcr_dtype dtype) {
    const int digits = dtype == DPCR_F32 ? 5 : 11;
    if (draw_chance(40)) return;
    if (draw_chance(35)) {
        o->atol = -1;
        if (draw_chance(70)) o->rtol = -1;
        return;
    }
    o->atol = pow(10, -(double)draw_between(2, digits));
    o->rtol = draw_chance(70) ? o->atol : pow(10, -(double)draw_between(2, digits));
}

static void put_guess(const problem *p) {
    const size_t size = dpcr_dtype_size(p->s.dtype);
    for (int64_t l = 0; l < p->s.length; l++)
        for (int64_t b = 0; b < p->s.batch; b++) {
            char *to = (char *)p->z.view.data + table_at(&p->z, l, b) * (int64_t)size;
            const size_t row = (size_t)p->s.width * size;
            if (p->guess)
                memcpy(to, (char *)p->guess + (size_t)(l * p->s.batch + b) * row, row);
            else
                memset(to, 0xff, row);
        }
}

static void forget_table(const table *t) {
    const size_t size = dpcr_dtype_size(t->view.dtype);
    for (int64_t l = 0; l < (t->steps < 0 ? 1 : t->steps); l++)
        for (int64_t b = 0; b < t->rows; b++)
            memset((char *)t->view.data + table_at(t, l, b) * (int64_t)size, 0xff, (size_t)t->values * size);
}

// Solves and goes back in a plan's way.
static result run_plan(problem *p, const dpcr_solve_plan *plan) {
    result r = {.report = {.size = sizeof r.report, .batch_capacity = 64}};
    r.report.sequence_reason = NULL;
    dpcr_error error = {0};
    const int used = drawn.used;
    piece space = draw_scratch(dpcr_solve_plan_workspace(plan));
    put_guess(p);
    forget_table(&p->tape), forget_table(&p->lambda), forget_table(&p->dz0);
    int reasons[64];
    r.report.sequence_reason = reasons;
    dpcr_status status = dpcr_solve_execute(plan, &p->z0.view, &p->z.view, p->has_tape ? &p->tape.view : NULL,
                                            space.data, space.bytes, &r.report, &error);
    check_done(status, &error, "execute");
    memcpy(r.reasons, reasons, sizeof reasons);
    check_around(&space, "workspace");
    check_kept(&p->z0), check_gaps(&p->z), check_gaps(&p->tape);
    r.z = packed_table(&p->z);
    const uint64_t states = sum_of_bytes(&p->z.memory);
    clear_gradients(&p->s);
    spoil_scratch(&space);
    status = dpcr_solve_backward(plan, &p->z0.view, &p->z.view, p->has_tape ? &p->tape.view : NULL,
                                 p->has_direct ? &p->direct.view : NULL, p->has_last ? &p->last.view : NULL,
                                 p->has_lambda ? &p->lambda.view : NULL, p->has_dz0 ? &p->dz0.view : NULL, space.data,
                                 space.bytes, NULL, &error);
    check_done(status, &error, "backward");
    check_around(&space, "workspace of backward");
    check_kept(&p->z0), check_kept(&p->direct), check_kept(&p->last);
    check_gaps(&p->lambda), check_gaps(&p->dz0), check_gaps(&p->tape);
    if (p->s.input_gradient.view.data) check_gaps(&p->s.input_gradient);
    if (p->s.weight_gradient.view.data) check_gaps(&p->s.weight_gradient);
    if (p->s.kind == CELL) check_kept(&p->s.weight), check_kept(&p->s.input);
    if (states != sum_of_bytes(&p->z.memory)) wrong("backward wrote z");
    r.lambda = packed_table(&p->lambda);
    r.dz0 = packed_table(&p->dz0);
    r.gradients = all_gradients(&p->s, &r.gradient_bytes);
    drawn.used = used;
    return r;
}

static result run(problem *p, const dpcr_solve_options *options, int threads, dpcr_solve_options *pinned) {
    dpcr_error error = {0};
    dpcr_solve_plan *plan = NULL;
    const dpcr_status status = dpcr_solve_plan_create(draw_contexts[threads], &p->s.steps, options, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED || status == DPCR_ERROR_MEMORY)
        return (result){.refused = true, .status = status};
    check_done(status, &error, "plan");
    if (options->memory_limit && dpcr_solve_plan_workspace(plan) > options->memory_limit)
        wrong("the limit is %zu, the workspace %zu", options->memory_limit, dpcr_solve_plan_workspace(plan));
    if (dpcr_solve_plan_workspace(plan) > MOST_BYTES / 2) {
        dpcr_solve_plan_destroy(plan);
        return (result){.refused = true};
    }
    if (pinned) *pinned = *dpcr_solve_plan_options(plan);
    dpcr_candidate candidate = {.size = sizeof candidate};
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &candidate); i++)
        if (!(candidate.seconds >= 0) || !(candidate.sweeps >= 0))
            wrong("candidate %d: %g s", (int)i, candidate.seconds);
    result r = run_plan(p, plan);
    if (dpcr_solve_plan_method(plan) != r.report.method)
        wrong("the plan says %s, the report %s", dpcr_method_name(dpcr_solve_plan_method(plan)),
              dpcr_method_name(r.report.method));
    r.status = status;
    dpcr_solve_plan_destroy(plan);
    return r;
}

static void same(const char *what, const void *one, const void *other, dpcr_dtype dtype, int64_t count) {
    const int64_t at = differs(one, other, dtype, count);
    if (at >= 0)
        wrong("%s: number %lld is %.9g and %.9g", what, (long long)at, number_at(dtype, one, at),
              number_at(dtype, other, at));
}

static void same_results(const problem *p, const result *a, const result *b, const char *what) {
    char text[128];
    const int64_t count = p->s.length * p->s.batch * p->s.width;
    snprintf(text, sizeof text, "%s: z", what), same(text, a->z, b->z, p->s.dtype, count);
    snprintf(text, sizeof text, "%s: lambda", what), same(text, a->lambda, b->lambda, p->s.dtype, count);
    snprintf(text, sizeof text, "%s: dz0", what), same(text, a->dz0, b->dz0, p->s.dtype, p->s.batch * p->s.width);
    if (a->gradient_bytes != b->gradient_bytes || memcmp(a->gradients, b->gradients, a->gradient_bytes) != 0)
        wrong("%s: gradients", what);
    if (a->report.reason != b->report.reason || a->report.sweeps != b->report.sweeps ||
        a->report.evaluations != b->report.evaluations)
        wrong("%s: %s in %d sweeps, %lld evaluations, %s in %d, %lld", what, dpcr_reason_name(a->report.reason),
              a->report.sweeps, (long long)a->report.evaluations, dpcr_reason_name(b->report.reason), b->report.sweeps,
              (long long)b->report.evaluations);
}

// How far from a step of its own a result may lie.
typedef struct slack {
    double atol, rtol;  // forward
    double back;        // of the largest gradient of a sequence
    double taped;       // of the terms of a gradient: a tape may hold a state within the tolerance of the one kept
    bool forward, adjoint;
    bool seams;  // what may differ is the state that a step begins with
} slack;

static double value_of(const problem *p, const void *packed, int64_t l, int64_t b, int64_t i) {
    return l < 0 ? table_get(&p->z0, 0, b, i) : number_at(p->s.dtype, packed, (l * p->s.batch + b) * p->s.width + i);
}

// What numbers that are nearly 0 are off by.
static double least_of(const problem *p) { return 100 * (p->s.dtype == DPCR_F32 ? 0x1p-126 : 0x1p-1022); }

static void check_state(const problem *p, const result *r, const slack *k, int64_t l, int64_t b, const number *out,
                        double unit) {
    for (int64_t i = 0; k->forward && i < p->s.width; i++) {
        const double got = value_of(p, r->z, l, b, i);
        // Each number of the state before a seam may be off by the tolerance at its own size.
        const double carried = k->seams ? fmax(1, out[i].sv) : 1, size = fabs(got) + (k->seams ? out[i].sx : 0);
        const double most = k->atol * carried + k->rtol * size + unit * out[i].sx + least_of(p);
        if (!(fabs(got - out[i].x) <= most))
            wrong("z(%lld, %lld, %lld) is %.9g, f of the state before %.9g within %.3g", (long long)l, (long long)b,
                  (long long)i, got, out[i].x, most);
    }
}

static double given_at(const problem *p, int64_t l, int64_t b, int64_t i) {
    double g = 0;
    if (l >= 0 && p->has_direct) g += table_get(&p->direct, l, b, i);
    if (l == p->s.length - 1 && p->has_last) g += table_get(&p->last, 0, b, i);
    return g;
}

// v (lambda_{l-1} - given_{l-1}) = lambda_l J_l v
static void check_adjoint(const problem *p, const result *r, const slack *k, int64_t l, int64_t b, const number *in,
                          const number *out, double unit, double largest) {
    double got = 0, wanted = 0, size = 0, given = 0;
    if (l == 0 && !p->has_dz0) return;
    for (int64_t i = 0; i < p->s.width; i++) {
        const double g = value_of(p, r->lambda, l, b, i), d = l > 0 ? given_at(p, l - 1, b, i) : 0;
        const double mine =
            l > 0 ? value_of(p, r->lambda, l - 1, b, i) : number_at(p->s.dtype, r->dz0, b * p->s.width + i);
        got += in[i].v * (mine - d), wanted += g * out[i].v;
        size += fabs(in[i].v) * (fabs(mine) + fabs(d)) + fabs(g) * out[i].sv, given += fabs(in[i].v);
    }
    const double most = (unit + k->taped) * size + k->back * largest * given + least_of(p) * (1 + given);
    if (!(fabs(got - wanted) <= most))
        wrong("lambda(%lld, %lld) along v is %.9g, wanted %.9g within %.3g", (long long)l - 1, (long long)b, got,
              wanted, most);
}

// Every step against its definition: the state, the adjoint state and the parameters' gradients, each from the
// library's own of the step beside.
static void check_steps(problem *p, const result *r, const slack *k) {
    const subject *s = &p->s;
    const int64_t L = s->length, B = s->batch, w = s->width;
    const double unit = (s->dtype == DPCR_F32 ? 0x1p-23 : 0x1p-52) * 2 * (double)(w + (s->hidden ? s->hidden : w) + 32);
    double *largest = calloc((size_t)B + 1, sizeof *largest);
    bool finite = true;
    for (int64_t l = 0; l < L; l++)
        for (int64_t b = 0; b < B; b++)
            for (int64_t i = 0; i < w; i++) {
                if (p->has_lambda) largest[b] = fmax(largest[b], fabs(value_of(p, r->lambda, l, b, i)));
                if (!(fabs(value_of(p, r->z, l, b, i)) < 1e15)) finite = false;
                if (p->has_lambda && !(fabs(value_of(p, r->lambda, l, b, i)) < 1e15)) finite = false;
            }
    if (s->kind == NETWORK && dpcr_model_get_options(s->model)->layer_norm && w == 1) finite = false;  // 0 / 0
    for (int64_t l = 0; finite && l < L; l++) {
        double along = 0, along_size = 0;
        bool all_certain = true;
        for (int64_t b = 0; b < B; b++) {
            number in[MOST_WIDTH], out[MOST_WIDTH];
            for (int64_t i = 0; i < w; i++) {
                const double x = value_of(p, r->z, l - 1, b, i),
                             v = chain_noise(i, l + 5, b + 11);  // |v| <= 1: sv sums |J|
                in[i] = (number){.x = x, .sx = fabs(x), .v = v, .sv = 1};
            }
            const bool certain = step_by_definition(s, l, b, in, out);
            check_state(p, r, k, l, b, out, unit);
            all_certain = all_certain && certain;
            if (!certain || !k->adjoint || !p->has_lambda) continue;
            check_adjoint(p, r, k, l, b, in, out, unit, largest[b]);
            for (int64_t i = 0; i < w; i++) {
                const double g = value_of(p, r->lambda, l, b, i);
                along += g * out[i].p, along_size += fabs(g) * out[i].sp;
            }
        }
        if (!all_certain || !k->adjoint || !p->has_lambda || !has_gradients(s)) continue;
        double size = 0;
        const double got = gradient_along(s, l, &size);
        const double most =
            (unit + k->taped) * (1 + 0.1 * (double)B) * (size + along_size) + least_of(p) * (double)(B + w);
        if (!(fabs(got - along) <= most))
            wrong("gradient of step %lld along its direction is %.9g, wanted %.9g within %.3g", (long long)l, got,
                  along, most);
    }
    free(largest);
}

// What the report promises of z against the loop.
static void check_reason(problem *p, const result *r, const result *loop, const dpcr_solve_options *pinned, slack *k) {
    const subject *s = &p->s;
    const int64_t count = s->length * s->batch * s->width;
    const dpcr_reason reason = r->report.reason;
    by_reason[reason + 2 < 8 && reason + 2 >= 0 ? reason + 2 : 0]++;
    const bool sweeps = r->report.method != DPCR_METHOD_OVERLAP && r->report.method != DPCR_METHOD_SEQUENTIAL;
    if (reason == DPCR_REASON_SEQUENTIAL) {
        same("the loop has other bits", r->z, loop->z, s->dtype, count);
        k->forward = true;
    }
    if (reason == DPCR_REASON_EXACT) {
        for (int64_t i = 0; i < count; i++) {
            const double x = number_at(s->dtype, r->z, i), y = number_at(s->dtype, loop->z, i);
            if (x != y && !(isnan(x) && isnan(y)))
                wrong("exact, but number %lld is %.9g, of the loop %.9g", (long long)i, x, y);
        }
        k->forward = true;
    }
    if (reason == DPCR_REASON_NOT_CONVERGED && !p->options.no_fallback) wrong("not converged without no_fallback");
    if (reason == DPCR_REASON_FALLBACK && p->options.no_fallback) wrong("fallback with no_fallback");
    if (reason == DPCR_REASON_CONVERGED || reason == DPCR_REASON_RESIDUAL_ONLY || reason == DPCR_REASON_FALLBACK) {
        k->forward = !(pinned->lock == DPCR_LOCK_MEAN_SQUARE) && !pinned->step_scale;
        k->atol = pinned->atol > 0 ? pinned->atol : 0;
        k->rtol = pinned->rtol > 0 ? pinned->rtol : 0;
        if (sweeps) k->atol *= 4, k->rtol *= 4;
    }
    k->seams = r->report.method == DPCR_METHOD_OVERLAP || r->report.method == DPCR_METHOD_SHOOTING ||
               r->report.method == DPCR_METHOD_PARAREAL;
    // Overlap joins what is near, component by component or as a whole.
    if (r->report.method == DPCR_METHOD_OVERLAP && k->forward) {
        double largest = 1;
        for (int64_t i = 0; i < count; i++)
            if (isfinite(number_at(s->dtype, loop->z, i)))
                largest = fmax(largest, fabs(number_at(s->dtype, loop->z, i)));
        k->atol += k->rtol * largest;
    }
}

#endif
