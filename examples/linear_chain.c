// SPDX-License-Identifier: MIT
// Solves one linear chain z_l = A_l z_{l-1} + b_l twice, by the loop and by parallel cyclic reduction, and compares.
//   cc linear_chain.c $(pkg-config --cflags --libs deeppcr) -lm
#include <deeppcr/deeppcr.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 1000, BATCH = 4, WIDTH = 3 };

static double a[LENGTH][BATCH][WIDTH][WIDTH];
static double b[LENGTH][BATCH][WIDTH];
static double z0[BATCH][WIDTH];
static double by_loop[LENGTH][BATCH][WIDTH];
static double by_pcr[LENGTH][BATCH][WIDTH];

// A slowly turning rotation in the first two components, a leak in the third; a small input at every step.
static void fill(void) {
    for (int l = 0; l < LENGTH; l++)
        for (int s = 0; s < BATCH; s++) {
            const double angle = 0.01 * (s + 1) + 0.001 * sin(l);
            a[l][s][0][0] = cos(angle), a[l][s][0][1] = -sin(angle);
            a[l][s][1][0] = sin(angle), a[l][s][1][1] = cos(angle);
            a[l][s][2][0] = 0.1, a[l][s][2][2] = 0.9;
            for (int i = 0; i < WIDTH; i++) b[l][s][i] = 0.01 * cos(l + i);
        }
    for (int s = 0; s < BATCH; s++) z0[s][0] = 1;
}

// Plans and runs one scheme; z [LENGTH][BATCH][WIDTH] gets the states.
static dpcr_status solve(dpcr_context *context, dpcr_scheme scheme, double *z, dpcr_error *error) {
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = LENGTH,
                                    .batch = BATCH,
                                    .transition = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                                    .dtype = DPCR_F64};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    dpcr_status status = dpcr_chain_plan_create(context, &shape, &options, &plan, error);
    if (status != DPCR_OK) return status;

    const int64_t shape_a[] = {LENGTH, BATCH, WIDTH * WIDTH}, shape_z[] = {LENGTH, BATCH, WIDTH};
    const dpcr_array view_a = dpcr_array_make(a, DPCR_F64, 3, shape_a);
    const dpcr_array view_b = dpcr_array_make(b, DPCR_F64, 3, shape_z);
    const dpcr_array view_z0 = dpcr_array_make(z0, DPCR_F64, 2, shape_z + 1);
    const dpcr_array view_z = dpcr_array_make(z, DPCR_F64, 3, shape_z);
    const size_t bytes = (dpcr_chain_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    dpcr_chain_report report = {.size = sizeof report};
    status = dpcr_chain_execute(plan, &view_a, &view_b, &view_z0, &view_z, workspace, bytes, &report, error);
    if (status == DPCR_OK)
        printf("%-10s %5lld dependent steps, %6lld matrix products\n", dpcr_scheme_name(report.scheme),
               (long long)report.depth, (long long)report.compositions);
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    return status;
}

int main(void) {
    dpcr_context *context = NULL;
    dpcr_error error = {0};
    fill();
    int failed = dpcr_context_create(NULL, &context, &error) != DPCR_OK ||
                 solve(context, DPCR_SCHEME_SEQUENTIAL, &by_loop[0][0][0], &error) != DPCR_OK ||
                 solve(context, DPCR_SCHEME_PCR, &by_pcr[0][0][0], &error) != DPCR_OK;
    dpcr_context_destroy(context);
    if (failed) {
        fprintf(stderr, "linear_chain: %s\n", error.text);
        return 1;
    }
    double difference = 0;
    for (int l = 0; l < LENGTH; l++)
        for (int s = 0; s < BATCH; s++)
            for (int i = 0; i < WIDTH; i++) difference = fmax(difference, fabs(by_pcr[l][s][i] - by_loop[l][s][i]));
    printf("largest difference %.1e\n", difference);
    return difference < 1e-9 ? 0 : 1;
}
