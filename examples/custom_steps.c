// SPDX-License-Identifier: MIT
// A chain of the caller's own: a pendulum x'' = -sin x - c x', stepped by semi-implicit Euler, as callbacks;
// solved by Newton over all time steps at once, checked against the loop.
//   cc custom_steps.c $(pkg-config --cflags --libs deeppcr) -lm
#include <deeppcr/deeppcr.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 2000, BATCH = 3, WIDTH = 2 };

typedef struct pendulum {
    double step, friction;
} pendulum;

static double z0[BATCH][WIDTH];
static double by_loop[LENGTH][BATCH][WIDTH];
static double by_newton[LENGTH][BATCH][WIDTH];

// The numbers of (lane, step, row) in a view [lanes][steps][rows][.], or of (lane, row) in [lanes][rows][.].
static double *at(const dpcr_array *array, int64_t lane, int64_t step, int64_t row) {
    double *data = array->data;
    return array->ndim == 4 ? data + lane * array->strides[0] + step * array->strides[1] + row * array->strides[2]
                            : data + lane * array->strides[0] + row * array->strides[1];
}

// v' = v - h (sin x + c v);  x' = x + h v'
static void pendulum_step(const pendulum *p, const double in[WIDTH], double out[WIDTH]) {
    const double v = in[1] - p->step * (sin(in[0]) + p->friction * in[1]);
    out[0] = in[0] + p->step * v;
    out[1] = v;
}

// Each lane runs span->steps steps on its own; this chain's steps are all alike, so span->first and stride do not
// matter.
static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    (void)tape;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r++) {
            double s[WIDTH] = {at(in, c, 0, r)[0], at(in, c, 0, r)[1]};
            for (int64_t k = 0; k < span->steps; k++) {
                pendulum_step(user, s, s);
                if (states) at(states, c, k, r)[0] = s[0], at(states, c, k, r)[1] = s[1];
            }
            if (last) at(last, c, 0, r)[0] = s[0], at(last, c, 0, r)[1] = s[1];
        }
    return 0;
}

// f and its Jacobian, row-major 2 x 2, at one state a lane.
static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    const pendulum *p = user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r++) {
            const double *s = at(in, c, 0, r);
            const double dv_dx = -p->step * cos(s[0]), dv_dv = 1 - p->step * p->friction;
            if (a) {
                double *j = at(a, c, 0, r);
                j[0] = 1 + p->step * dv_dx, j[1] = p->step * dv_dv;
                j[2] = dv_dx, j[3] = dv_dv;
            }
            if (f) pendulum_step(p, s, at(f, c, 0, r));
        }
    return 0;
}

// z [LENGTH][BATCH][WIDTH] gets the states.
static dpcr_status solve(dpcr_context *context, const dpcr_steps *steps, dpcr_method method, double *z,
                         dpcr_error *error) {
    const dpcr_solve_options options = {.size = sizeof options, .method = method};
    dpcr_solve_plan *plan = NULL;
    dpcr_status status = dpcr_solve_plan_create(context, steps, &options, &plan, error);
    if (status != DPCR_OK) return status;

    const int64_t shape[] = {LENGTH, BATCH, WIDTH};
    const dpcr_array view_z0 = dpcr_array_make(z0, DPCR_F64, 2, shape + 1);
    const dpcr_array view_z = dpcr_array_make(z, DPCR_F64, 3, shape);
    const size_t bytes = (dpcr_solve_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    dpcr_solve_report report = {.size = sizeof report};
    status = dpcr_solve_execute(plan, &view_z0, &view_z, NULL, workspace, bytes, &report, error);
    if (status == DPCR_OK)
        printf("%-10s %-10s sweeps %2d, residual %.1e\n", dpcr_method_name(report.method),
               dpcr_reason_name(report.reason), report.sweeps, report.residual);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

int main(void) {
    pendulum p = {.step = 0.01, .friction = 0.3};
    const dpcr_steps steps = {.size = sizeof steps,
                              .user = &p,
                              .length = LENGTH,
                              .batch = BATCH,
                              .width = WIDTH,
                              .dtype = DPCR_F64,
                              .concurrent = 1,
                              .jacobian = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                              .flops = 30,
                              .jacobian_flops = 25,
                              .advance = advance,
                              .linearise = linearise};
    for (int s = 0; s < BATCH; s++) z0[s][0] = 0.5 * (s + 1);

    dpcr_context *context = NULL;
    dpcr_error error = {0};
    const int64_t shape[] = {BATCH, WIDTH};
    const dpcr_array view_z0 = dpcr_array_make(z0, DPCR_F64, 2, shape);
    int failed = dpcr_context_create(NULL, &context, &error) != DPCR_OK ||
                 dpcr_steps_check(context, &steps, &view_z0, 1e-6, &error) != DPCR_OK ||
                 solve(context, &steps, DPCR_METHOD_SEQUENTIAL, &by_loop[0][0][0], &error) != DPCR_OK ||
                 solve(context, &steps, DPCR_METHOD_NEWTON, &by_newton[0][0][0], &error) != DPCR_OK;
    dpcr_context_destroy(context);
    if (failed) {
        fprintf(stderr, "custom_steps: %s\n", error.text);
        return 1;
    }
    double difference = 0;
    for (int l = 0; l < LENGTH; l++)
        for (int s = 0; s < BATCH; s++)
            for (int i = 0; i < WIDTH; i++) difference = fmax(difference, fabs(by_newton[l][s][i] - by_loop[l][s][i]));
    printf("largest difference %.1e\n", difference);
    return difference < 1e-6 ? 0 : 1;
}
