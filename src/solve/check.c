// SPDX-License-Identifier: MIT
// dpcr_steps_check: does what the caller gave hold together? The same bits for every split of a span, f of linearise
// against advance, J against central differences, jvp and adjoint against J, kinks against how J changes.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "solve/check.h"

enum { CHECKED_STEPS = 24 };

typedef struct checker {
    dpcr_context *context;
    const dpcr_steps *steps;
    double tolerance;
    dpcr_error *error;
    dpcri_trajectory t;        // z by the loop, over the checked steps
    dpcr_array x, y, f, v, j;  // [n][B][w] four times, [n][B][values]
    void *memory;
} checker;

static dpcr_status failed(const checker *c, const char *what, int64_t l, int64_t b, int64_t i, double got,
                          double wanted) {
    return dpcri_fail(c->error, DPCR_ERROR_CALLBACK,
                      "steps_check: %s differs at step %lld, sequence %lld, component %lld: got %.9g, wanted %.9g",
                      what, (long long)l, (long long)b, (long long)i, got, wanted);
}

static dpcr_status code_of(const checker *c, const char *what, int code) {
    if (code == 0) return DPCR_OK;
    return dpcri_fail_code(c->error, DPCR_ERROR_CALLBACK, code, "steps_check: the callback %s returned %d", what, code);
}

static dpcr_status same(const checker *c, const char *what, const dpcr_array *got, const dpcr_array *wanted,
                        double tolerance) {
    for (int64_t l = 0; l < got->shape[0]; l++)
        for (int64_t b = 0; b < got->shape[1]; b++)
            for (int64_t i = 0; i < got->shape[2]; i++) {
                const double x = dpcri_number(got, l, b, i), y = dpcri_number(wanted, l, b, i);
                if (!(fabs(x - y) <= tolerance * fmax(1, fabs(y)))) return failed(c, what, l, b, i, x, y);
            }
    return DPCR_OK;
}

// The loop, whole: the trajectory everything else is held against.
static dpcr_status run_loop(const checker *c) {
    const dpcr_span span = dpcri_span(0, 1, 1, c->t.z.shape[0], 0, c->steps->batch);
    const dpcr_array in = dpcri_inputs(&c->t, 0, 1, 0, c->steps->batch), states = dpcri_as_steps(&c->t.z);
    dpcr_status status = code_of(c, "advance", c->steps->advance(c->steps->user, &span, &in, &states, NULL, NULL));
    if (status != DPCR_OK) return status;
    for (int64_t l = 0; l < c->t.z.shape[0]; l++)
        for (int64_t b = 0; b < c->steps->batch; b++)
            for (int64_t i = 0; i < c->steps->width; i++)
                if (!isfinite(dpcri_number(&c->t.z, l, b, i)))
                    return dpcri_fail(c->error, DPCR_ERROR_CALLBACK, "steps_check: the loop is not finite at step %lld",
                                      (long long)l);
    return DPCR_OK;
}

// One row at a time, one step a lane; only the last state asked for: bit for bit the loop's.
static dpcr_status check_splits(const checker *c) {
    const int64_t n = c->t.z.shape[0];
    dpcr_status status = DPCR_OK;
    for (int64_t b = 0; b < c->steps->batch && status == DPCR_OK; b++)
        for (int first = 0; first < 2 && status == DPCR_OK; first++) {
            const int64_t from = first ? 1 : 0, lanes = first ? n - 1 : 1;
            if (lanes < 1) continue;
            const dpcr_span span = dpcri_span(from, lanes, 1, 1, b, 1);
            const dpcr_array in = dpcri_inputs(&c->t, from, lanes, b, 1), out = dpcri_slice(&c->f, from, lanes, b, 1);
            status = code_of(c, "advance", c->steps->advance(c->steps->user, &span, &in, NULL, &out, NULL));
        }
    return status == DPCR_OK ? same(c, "advance, split into lanes and rows,", &c->f, &c->t.z, 0) : status;
}

// Two lanes of half the steps each, then the same with only the last states, in place.
static dpcr_status check_strides(const checker *c) {
    const int64_t half = c->t.z.shape[0] / 2, batch = c->steps->batch;
    if (half < 1) return DPCR_OK;
    dpcr_array states = dpcri_as_steps(&c->f);
    const dpcr_array first = dpcri_inputs(&c->t, 0, 1, 0, batch), second = dpcri_inputs(&c->t, half, 1, 0, batch);
    const dpcr_array start = dpcri_slice(&c->x, 0, 1, 0, batch), other = dpcri_slice(&c->x, 1, 1, 0, batch);
    const dpcri_row_ops *ops = dpcri_row_ops_of(c->steps->dtype);
    ops->copy(&first, &start), ops->copy(&second, &other);
    const dpcr_array lanes = dpcri_slice(&c->x, 0, 2, 0, batch);
    const dpcr_span span = dpcri_span(0, 2, half, half, 0, batch);
    states.shape[0] = 2, states.shape[1] = half, states.strides[0] = half * c->f.strides[0];
    dpcr_status status;
    DPCR_TRY(code_of(c, "advance", c->steps->advance(c->steps->user, &span, &lanes, &states, NULL, NULL)));
    const dpcr_array got = dpcri_slice(&c->f, 0, 2 * half, 0, batch),
                     wanted = dpcri_slice(&c->t.z, 0, 2 * half, 0, batch);
    DPCR_TRY(same(c, "advance, in lanes with a stride,", &got, &wanted, 0));
    DPCR_TRY(code_of(c, "advance", c->steps->advance(c->steps->user, &span, &lanes, NULL, &lanes, NULL)));
    const dpcr_array end = dpcri_slice(&c->t.z, half - 1, 1, 0, batch),
                     last = dpcri_slice(&c->t.z, 2 * half - 1, 1, 0, batch);
    DPCR_TRY(same(c, "advance, last states in place,", &start, &end, 0));
    DPCR_TRY(same(c, "advance, last states in place,", &other, &last, 0));
done:
    return status;
}

static dpcr_status linearise_all(const checker *c, const dpcr_array *f, const dpcr_array *j) {
    const int64_t n = c->t.z.shape[0];
    for (int first = 0; first < 2; first++) {
        const int64_t from = first ? 1 : 0, lanes = first ? n - 1 : 1;
        if (lanes < 1) continue;
        const dpcr_span span = dpcri_span(from, lanes, 1, 1, 0, c->steps->batch);
        const dpcr_array in = dpcri_inputs(&c->t, from, lanes, 0, c->steps->batch);
        const dpcr_array fv = dpcri_slice(f, from, lanes, 0, c->steps->batch),
                         jv = dpcri_slice(j, from, lanes, 0, c->steps->batch);
        const dpcr_status status = code_of(c, "linearise", c->steps->linearise(c->steps->user, &span, &in, &fv, &jv));
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

// y = J x or J^T x by the stored Jacobians.
static dpcr_status apply(const checker *c, int transposed, const dpcr_array *x, const dpcr_array *y) {
    return dpcr_transition_apply(&c->steps->jacobian, transposed, &c->j, x, NULL, y, c->error);
}

// The distances to the two points, as the dtype holds them.
static void steps_taken(const checker *c, int64_t l, int64_t b, int64_t k, double h, double *up, double *down) {
    const dpcr_array in = dpcri_inputs(&c->t, l, 1, 0, c->steps->batch);
    const double x = dpcri_number(&in, 0, b, k), step = h * fmax(1, fabs(x));
    const bool is_double = c->steps->dtype == DPCR_F64;
    *up = (is_double ? x + step : (double)(float)(x + step)) - x;
    *down = x - (is_double ? x - step : (double)(float)(x - step));
}

// f and y hold the states a step up and a step down, v a column of the Jacobian. Beside a kink (ReLU's) the slopes up
// and down differ, and any derivative between them will do.
static dpcr_status compare_column(const checker *c, int64_t k, double h, double tolerance) {
    for (int64_t l = 0; l < c->v.shape[0]; l++)
        for (int64_t b = 0; b < c->v.shape[1]; b++) {
            double up, down;
            steps_taken(c, l, b, k, h, &up, &down);
            for (int64_t i = 0; i < c->v.shape[2]; i++) {
                const double above = dpcri_number(&c->f, l, b, i), below = dpcri_number(&c->y, l, b, i),
                             at = dpcri_number(&c->t.z, l, b, i);
                const double got = dpcri_number(&c->v, l, b, i), slope = (above - below) / (up + down);
                const double rise = (above - at) / up, fall = (at - below) / down;
                const double allowed = tolerance * fmax(1, fabs(slope));
                if (got >= fmin(rise, fall) - allowed && got <= fmax(rise, fall) + allowed) continue;
                return failed(c, "the Jacobian's column, against central differences,", l, b, i, got, slope);
            }
        }
    return DPCR_OK;
}

// Central differences along a direction of every component at once would hide errors: one component after another.
static dpcr_status check_jacobian(const checker *c) {
    const int64_t n = c->t.z.shape[0], w = c->steps->width, batch = c->steps->batch;
    const double eps = c->steps->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON, h = cbrt(eps);
    dpcr_status status;
    DPCR_TRY(linearise_all(c, &c->f, &c->j));
    DPCR_TRY(same(c, "f of linearise", &c->f, &c->t.z, c->tolerance));
    for (int64_t k = 0; k < w; k++) {
        for (int side = 0; side < 2; side++)
            for (int64_t l = 0; l < n; l++) {
                const dpcr_array in = dpcri_inputs(&c->t, l, 1, 0, batch), x = dpcri_slice(&c->x, l, 1, 0, batch);
                dpcri_row_ops_of(c->steps->dtype)->copy(&in, &x);
                for (int64_t b = 0; b < batch; b++)
                    dpcri_set_number(
                        &x, 0, b, k,
                        dpcri_number(&in, 0, b, k) + (side ? -1 : 1) * h * fmax(1, fabs(dpcri_number(&in, 0, b, k))));
                const dpcr_array out = dpcri_slice(side ? &c->y : &c->f, l, 1, 0, batch);
                const dpcr_span span = dpcri_span(l, 1, 1, 1, 0, batch);
                DPCR_TRY(code_of(c, "advance", c->steps->advance(c->steps->user, &span, &x, NULL, &out, NULL)));
            }
        dpcri_row_ops_of(c->steps->dtype)->fill(&c->x, 0);
        for (int64_t l = 0; l < n; l++)
            for (int64_t b = 0; b < batch; b++) dpcri_set_number(&c->x, l, b, k, 1);
        DPCR_TRY(apply(c, 0, &c->x, &c->v));
        DPCR_TRY(compare_column(c, k, h, fmax(c->tolerance, 50 * eps / h)));
    }
done:
    return status;
}

static void fill_waves(const dpcr_array *x) {
    for (int64_t l = 0; l < x->shape[0]; l++)
        for (int64_t b = 0; b < x->shape[1]; b++)
            for (int64_t i = 0; i < x->shape[2]; i++)
                dpcri_set_number(x, l, b, i, sin(1.3 * (double)i + 0.7 * (double)b + 0.3 * (double)l + 1));
}

static dpcr_status check_jvp(const checker *c) {
    const int64_t n = c->t.z.shape[0], batch = c->steps->batch;
    dpcr_status status = DPCR_OK;
    fill_waves(&c->x);
    for (int64_t l = 0; l < n && c->steps->jvp; l++) {
        const dpcr_span span = dpcri_span(l, 1, 1, 1, 0, batch);
        const dpcr_array in = dpcri_inputs(&c->t, l, 1, 0, batch), x = dpcri_slice(&c->x, l, 1, 0, batch),
                         y = dpcri_slice(&c->y, l, 1, 0, batch);
        DPCR_TRY(code_of(c, "jvp", c->steps->jvp(c->steps->user, &span, &in, &x, &y)));
    }
    if (c->steps->jvp) {
        DPCR_TRY(apply(c, 0, &c->x, &c->f));
        DPCR_TRY(same(c, "jvp, against J x,", &c->y, &c->f, c->tolerance));
    }
done:
    return status;
}

// [lanes steps][B][w] as [lanes][steps][B][w].
static dpcr_array in_lanes(const dpcr_array *array, int64_t lanes) {
    dpcr_array view = dpcri_as_steps(array);
    view.shape[0] = lanes, view.shape[1] = array->shape[0] / lanes;
    view.strides[0] = view.shape[1] * array->strides[0];
    return view;
}

// Lanes one after the other, `count` steps each. direct, adjoint [lanes count][B][w] or NULL; last, first_out
// [lanes][B][w].
static dpcr_status run_adjoint(const checker *c, int64_t first, int64_t lanes, int64_t count, const dpcr_array *direct,
                               const dpcr_array *last, const dpcr_array *adjoint, const dpcr_array *first_out) {
    const dpcr_span span = dpcri_span(first, lanes, count, count, 0, c->steps->batch);
    const dpcr_array flat = dpcri_inputs(&c->t, first, lanes * count, 0, c->steps->batch), in = in_lanes(&flat, lanes);
    dpcr_array from, to;
    if (direct) from = in_lanes(direct, lanes);
    if (adjoint) to = in_lanes(adjoint, lanes);
    return code_of(c, "adjoint",
                   c->steps->adjoint(c->steps->user, &span, &in, NULL, direct ? &from : NULL, last,
                                     adjoint ? &to : NULL, first_out));
}

// Two lanes at once, each half the steps after the first, against one after the other: bit for bit, also where the
// adjoint states take the direct parts' place and where only what comes out is wanted.
static dpcr_status check_adjoint_lanes(const checker *c) {
    const int64_t half = (c->t.z.shape[0] - 1) / 2, batch = c->steps->batch;
    const dpcri_row_ops *ops = dpcri_row_ops_of(c->steps->dtype);
    dpcr_status status = DPCR_OK;
    const dpcr_array all = dpcri_slice(&c->x, 1, 2 * half, 0, batch), kept = dpcri_slice(&c->f, 1, 2 * half, 0, batch);
    const dpcr_array seeds = dpcri_slice(&c->x, 0, 2, 0, batch), out = dpcri_slice(&c->y, 0, 2, 0, batch),
                     both = dpcri_slice(&c->v, 0, 2, 0, batch);
    fill_waves(&c->x);
    ops->copy(&seeds, &out), ops->copy(&seeds, &both);
    for (int64_t lane = 0; lane < 2; lane++) {
        const dpcr_array direct = dpcri_slice(&all, lane * half, half, 0, batch),
                         states = dpcri_slice(&kept, lane * half, half, 0, batch),
                         end = dpcri_slice(&out, lane, 1, 0, batch);
        DPCR_TRY(run_adjoint(c, 1 + lane * half, 1, half, &direct, &end, &states, &end));
    }
    DPCR_TRY(run_adjoint(c, 1, 2, half, &all, &both, NULL, &both));
    DPCR_TRY(same(c, "adjoint, in lanes, what comes out alone,", &both, &out, 0));
    ops->copy(&seeds, &both);
    DPCR_TRY(run_adjoint(c, 1, 2, half, &all, &both, &all, &both));
    DPCR_TRY(same(c, "adjoint, in lanes with a stride,", &all, &kept, 0));
    DPCR_TRY(same(c, "adjoint, in lanes, what comes out,", &both, &out, 0));
done:
    return status;
}

// Single steps against J^T g where J is known, and the loop over many steps, with direct parts, against single steps.
static dpcr_status check_adjoint(const checker *c) {
    const int64_t n = c->t.z.shape[0], batch = c->steps->batch;
    const dpcri_row_ops *ops = dpcri_row_ops_of(c->steps->dtype);
    dpcr_status status = DPCR_OK;
    fill_waves(&c->x);
    for (int64_t l = 0; l < n; l++) {
        const dpcr_array f = dpcri_slice(&c->f, l, 1, 0, batch), x = dpcri_slice(&c->x, l, 1, 0, batch),
                         y = dpcri_slice(&c->y, l, 1, 0, batch);
        DPCR_TRY(run_adjoint(c, l, 1, 1, NULL, &x, &f, &y));
    }
    if (c->steps->linearise) {
        DPCR_TRY(apply(c, 1, &c->x, &c->f));
        DPCR_TRY(same(c, "adjoint, against J^T g,", &c->y, &c->f, c->tolerance));
    }
    if (n < 3) return DPCR_OK;
    // g = x_{n-1}; down to step 1: g += x_l; f_l = g; g = J_l^T g
    const dpcr_array end = dpcri_slice(&c->x, n - 1, 1, 0, batch), g = dpcri_slice(&c->y, 0, 1, 0, batch),
                     direct = dpcri_slice(&c->x, 1, n - 1, 0, batch), many = dpcri_slice(&c->f, 1, n - 1, 0, batch);
    ops->copy(&end, &g);
    DPCR_TRY(run_adjoint(c, 1, 1, n - 1, &direct, &g, &many, &g));
    ops->copy(&end, &g);
    for (int64_t l = n - 1; l >= 1; l--) {
        const dpcr_array one = dpcri_slice(&c->x, l, 1, 0, batch), kept = dpcri_slice(&c->y, l, 1, 0, batch);
        DPCR_TRY(run_adjoint(c, l, 1, 1, &one, &g, &kept, &g));
    }
    const dpcr_array single = dpcri_slice(&c->y, 1, n - 1, 0, batch);
    DPCR_TRY(same(c, "adjoint over many steps, against single ones,", &many, &single, c->tolerance));
    DPCR_TRY(check_adjoint_lanes(c));
done:
    return status;
}

static void carve(checker *c, dpcri_arena *arena) {
    const int64_t n = c->steps->length < CHECKED_STEPS ? c->steps->length : CHECKED_STEPS;
    const size_t real = dpcr_dtype_size(c->steps->dtype);
    const int64_t values = c->steps->linearise ? dpcr_transition_values(&c->steps->jacobian) : 0;
    const int64_t states[3] = {n, c->steps->batch, c->steps->width}, jacobians[3] = {n, c->steps->batch, values};
    int64_t rows = 0, count = 0, numbers = 0;
    if (!dpcri_mul(n, c->steps->batch, &rows) || !dpcri_mul(rows, c->steps->width, &count) ||
        !dpcri_mul(rows, values, &numbers))
        arena->overflow = true;
    dpcr_array *const arrays[] = {&c->t.z, &c->x, &c->y, &c->f, &c->v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = dpcr_array_make(dpcri_arena_take(arena, count, real), c->steps->dtype, 3, states);
    c->j = dpcr_array_make(dpcri_arena_take(arena, numbers, real), c->steps->dtype, 3, jacobians);
}

dpcr_status dpcr_steps_check(dpcr_context *context, const dpcr_steps *steps, const dpcr_array *z0, double tolerance,
                             dpcr_error *error) {
    if (!context || !steps || !z0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "steps_check: context, steps or z0 is NULL");
    if (steps->size < offsetof(dpcr_steps, identity) || !steps->advance || steps->length < 0 || steps->batch < 0 ||
        steps->width < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "steps_check: steps.size, advance, length, batch or width is not as documented");
    checker c = {.context = context, .steps = steps, .tolerance = tolerance, .error = error};
    const int64_t shape[2] = {steps->batch, steps->width};
    dpcr_status status;
    DPCR_TRY(dpcri_check_array("steps_check", "z0", z0, steps->dtype, 2, shape, error));
    if (steps->length == 0 || steps->batch == 0) return DPCR_OK;
    dpcri_arena arena = {0};
    carve(&c, &arena);
    if (arena.overflow) return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "steps_check: the sizes do not fit");
    c.memory = dpcri_alloc_zero(context, arena.used);
    if (!c.memory) return dpcri_fail(error, DPCR_ERROR_MEMORY, "steps_check: no memory (%zu bytes)", arena.used);
    arena = (dpcri_arena){.base = c.memory, .size = arena.used};
    carve(&c, &arena);
    c.t.z0 = *z0;
    DPCR_TRY(run_loop(&c));
    DPCR_TRY(check_splits(&c));
    DPCR_TRY(check_strides(&c));
    if (steps->linearise) {
        DPCR_TRY(check_jacobian(&c));
        DPCR_TRY(check_jvp(&c));
        DPCR_TRY(dpcri_check_kinks(context, steps, &c.t, error));
    }
    if (steps->adjoint) DPCR_TRY(check_adjoint(&c));
done:
    dpcri_free(context, c.memory);
    return status;
}
