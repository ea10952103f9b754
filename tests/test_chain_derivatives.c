// SPDX-License-Identifier: MIT
// Derivatives of linear chains: forward against reverse by their inner products, and both against differences.
#include "chain_problem.h"

typedef struct tangents {
    problem p;
    dpcr_chain_plan *plan;
    void *workspace, *da, *db, *dz0, *dz, *g, *ga, *gb, *gz0;
    dpcr_array vda, vdb, vdz0, vdz, vg, vga, vgb, vgz0;
} tangents;

static tangents differentiate(width which, int64_t length, int64_t batch, bool with_z0,
                              const dpcr_chain_options *options) {
    tangents d = {.p = make(dpcr_transition_square(which.structure, which.w, which.k), DPCR_F64, length, batch, false,
                            with_z0, FILL_RANDOM, false, false)};
    problem *p = &d.p;
    const dpcr_chain_shape shape = shape_of(p);
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &shape, options, &d.plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(d.plan);
    d.workspace = room((int64_t)bytes / 8 + 8);
    const int64_t states = length * batch * p->w, values = length * batch * p->values;
    void **const arrays[] = {&d.da, &d.ga, &d.db, &d.dz, &d.g, &d.gb, &d.dz0, &d.gz0};
    dpcr_array *const views[] = {&d.vda, &d.vga, &d.vdb, &d.vdz, &d.vg, &d.vgb, &d.vdz0, &d.vgz0};
    for (int i = 0; i < 8; i++) {
        const int64_t count = i < 2 ? values : i < 6 ? states : batch * p->w;
        *arrays[i] = room(count);
        fill_vector(DPCR_F64, FILL_RANDOM, *arrays[i], count);
        *views[i] =
            i < 6 ? dpcr_array_make(*arrays[i], DPCR_F64, 3, (const int64_t[]){length, batch, i < 2 ? p->values : p->w})
                  : dpcr_array_make(*arrays[i], DPCR_F64, 2, (const int64_t[]){batch, p->w});
    }
    dpcr_error error = {0};
    const dpcr_array *z0 = p->z0 ? &p->v0 : NULL;
    if (dpcr_chain_execute(d.plan, &p->va, &p->vb, z0, &p->vz, d.workspace, bytes, NULL, &error) ||
        dpcr_chain_jvp(d.plan, &p->va, z0, &p->vz, &d.vda, &d.vdb, &d.vdz0, &d.vdz, d.workspace, bytes, &error) ||
        dpcr_chain_vjp(d.plan, &p->va, z0, &p->vz, &d.vg, &d.vga, &d.vgb, &d.vgz0, d.workspace, bytes, &error))
        fail_msg("%s", error.text);
    return d;
}

static void forget(tangents *d) {
    void *const arrays[] = {d->workspace, d->da, d->db, d->dz0, d->dz, d->g, d->ga, d->gb, d->gz0};
    for (int i = 0; i < 9; i++) free(arrays[i]);
    dpcr_chain_plan_destroy(d->plan);
    drop(&d->p);
}

static double dot(const void *x, const void *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((const double *)x)[i] * ((const double *)y)[i];
    return sum;
}

static const width derivative_widths[] = {{DPCR_ZERO, 2, 0},     {DPCR_IDENTITY, 2, 0}, {DPCR_SCALAR, 3, 0},
                                          {DPCR_DIAGONAL, 3, 0}, {DPCR_BLOCK, 6, 2},    {DPCR_DENSE, 3, 0},
                                          {DPCR_DENSE, 7, 0}};

static void adjoint(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 30, 65};
    for (size_t i = 0; i < 7; i++)
        for (int v = 0; v < VARIANTS; v++)
            for (int l = 0; l < 4; l++)
                for (int with_z0 = 0; with_z0 < 2; with_z0++) {
                    const dpcr_chain_options options = variant(v);
                    tangents d = differentiate(derivative_widths[i], lengths[l], 2, with_z0, &options);
                    const int64_t states = lengths[l] * 2 * d.p.w;
                    const double left = dot(d.g, d.dz, states);
                    // Without z0 a perturbation dz0 still enters through A_0.
                    const double right = dot(d.ga, d.da, lengths[l] * 2 * d.p.values) + dot(d.gb, d.db, states) +
                                         dot(d.gz0, d.dz0, 2 * d.p.w);
                    if (!(fabs(left - right) <= 1e-12 * (double)states * (1 + fabs(left))))
                        fail_msg("%s: <g, dz> = %.17g, <vjp, d> = %.17g", describe(&d.p, &options), left, right);
                    forget(&d);
                }
}

static double loss_at(const problem *p, const void *g) {
    const int64_t count = p->length * p->batch * p->w;
    long double *z = calloc((size_t)count, sizeof *z), loss = 0;
    uint32_t *unused = calloc((size_t)count, sizeof *unused);
    const loop_case c = loop_of(p);
    plain_loop(&c, z, unused);
    for (int64_t i = 0; i < count; i++) loss += z[i] * ((const double *)g)[i];
    free(z);
    free(unused);
    return (double)loss;
}

static void check_gradient(const problem *p, const void *g, double *argument, const double *gradient, int64_t count) {
    const double h = 1e-6;
    for (int64_t i = 0; i < count; i++) {
        const double kept = argument[i];
        argument[i] = kept + h;
        const double above = loss_at(p, g);
        argument[i] = kept - h;
        const double below = loss_at(p, g);
        argument[i] = kept;
        assert_true(fabs((above - below) / (2 * h) - gradient[i]) < 1e-7 * (1 + fabs(gradient[i])));
    }
}

static void finite_differences(void **state) {
    (void)state;
    for (size_t i = 2; i < 7; i++)
        for (int v = 0; v < VARIANTS; v += 3) {
            const dpcr_chain_options options = variant(v);
            tangents d = differentiate(derivative_widths[i], 9, 2, true, &options);
            check_gradient(&d.p, d.g, d.p.a, d.ga, 9 * 2 * d.p.values);
            check_gradient(&d.p, d.g, d.p.b, d.gb, 9 * 2 * d.p.w);
            check_gradient(&d.p, d.g, d.p.z0, d.gz0, 2 * d.p.w);
            forget(&d);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjoint),
        cmocka_unit_test(finite_differences),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
