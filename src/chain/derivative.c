// SPDX-License-Identifier: MIT
// Derivatives of a linear chain at its solution, each one linear chain more:
//
//   jvp   dz_l = A_l dz_{l-1} + (da_l z_{l-1} + db_l)
//   vjp   lambda_l = g_l + A_{l+1}^T lambda_{l+1};   db = lambda,  da_l = lambda_l z_{l-1}^T in A's structure,  dz0 =
//   A_0^T lambda_0
//
// Exact in one solve, whatever the scheme. Cost: one chain, and one application or outer product a step beside it.
// Derivation: docs/math/linear-chains.md.
#include <string.h>

#include "chain/flow.h"
#include "chain/plan.h"

// A kernel over steps [lo, hi) of all sequences, cut into tasks.
typedef struct sweep {
    dpcri_kernel *kernel;
    dpcri_span span;
    size_t size;
    int64_t tasks;
    dpcri_watch *watch;
} sweep;

static const void *at(const void *base, int64_t elements, size_t size) {
    return base ? (const char *)base + elements * (int64_t)size : NULL;
}

static void sweep_part(void *argument, int64_t i) {
    const sweep *s = argument;
    int64_t lo = 0, hi = 0;
    if (dpcri_watch_stopped(s->watch)) return;
    dpcri_task_range(s->span.n, s->tasks, i, &lo, &hi);
    dpcri_span part = s->span;
    part.n = hi - lo;
    part.a = at(part.a, lo * part.a_step, s->size);
    part.x = at(part.x, lo * part.x_step, s->size);
    part.r = at(part.r, lo * part.r_step, s->size);
    part.y = (char *)part.y + lo * part.y_step * (int64_t)s->size;
    s->kernel(&part);
}

static void run_sweep(const dpcr_chain_plan *plan, dpcri_operation operation, dpcr_structure form,
                      const dpcri_span *span, dpcri_watch *watch) {
    if (span->n <= 0 || span->rows <= 0) return;
    const dpcr_transition *t = &plan->shape.transition;
    sweep s = {.kernel = dpcri_kernels_at(dpcri_isa_level(), plan->shape.dtype)->table[operation][form],
               .span = *span,
               .size = dpcr_dtype_size(plan->shape.dtype),
               .watch = watch};
    s.span.w = s.span.cols = t->rows;
    s.span.block = t->block;
    s.tasks = dpcri_task_count(span->n, (double)span->rows * (dpcr_transition_apply_flops(t) + (double)t->rows));
    dpcri_parallel(plan->context, s.tasks, sweep_part, &s);
}

static dpcr_status check_plan(const dpcr_chain_plan *plan, const char *function, dpcr_error *error) {
    if (plan->shape.transition.structure == DPCR_CSR)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: csr transitions, wanted any other structure", function);
    if (!plan->shape.transposed) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "%s: the plan is of a transposed chain, wanted one of the chain itself", function);
}

// da and the like: an optional array with the structure's values, which zero and identity do not have.
static dpcr_status view_values(const dpcr_array *array, const dpcri_wanted *wanted, dpcri_view *view,
                               dpcr_error *error) {
    if (!array || wanted->values == 0) return DPCR_OK;
    return dpcri_view_of(array, wanted, view, error);
}

static dpcr_status view_optional(const dpcr_array *array, const dpcri_wanted *wanted, dpcri_view *view,
                                 dpcr_error *error) {
    return array ? dpcri_view_of(array, wanted, view, error) : DPCR_OK;
}

// Arrays of a forward derivative; those without data are zero.
typedef struct tangent {
    const dpcr_chain_plan *plan;
    dpcri_view v0, z, da, db, dz;
    dpcri_watch *watch;
} tangent;

// dz <- db, or zero: 0 x + db with the zero transition; then dz_l += da_l z_{l-1}.
static void right_hand_side(const tangent *t) {
    const dpcr_structure form = dpcri_kernel_form(&t->plan->shape.transition);
    dpcri_span span = {.n = t->plan->shape.length,
                       .rows = t->plan->shape.batch,
                       .r = t->db.data,
                       .r_step = t->db.step,
                       .r_row = t->db.row,
                       .y = t->dz.data,
                       .y_step = t->dz.step,
                       .y_row = t->dz.row};
    run_sweep(t->plan, DPCRI_APPLY, DPCR_ZERO, &span, t->watch);
    if (t->da.data) {
        const size_t size = dpcr_dtype_size(t->plan->shape.dtype);
        span.r = span.y;
        span.r_step = span.y_step;
        span.r_row = span.y_row;
        span.a = t->da.data;
        span.a_step = t->da.step;
        span.a_row = t->da.row;
        dpcri_span head = span;
        head.n = t->v0.data ? 1 : 0;
        head.x = t->v0.data;
        head.x_row = t->v0.row;
        run_sweep(t->plan, DPCRI_APPLY, form, &head, t->watch);
        span.n = t->plan->shape.length - 1;
        span.a = at(span.a, span.a_step, size);
        span.x = t->z.data;
        span.x_step = t->z.step;
        span.x_row = t->z.row;
        span.y = (char *)t->dz.data + t->dz.step * (int64_t)size;
        span.r = span.y;
        run_sweep(t->plan, DPCRI_APPLY, form, &span, t->watch);
    }
}

dpcr_status dpcr_chain_jvp(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *z0, const dpcr_array *z,
                           const dpcr_array *da, const dpcr_array *db, const dpcr_array *dz0, const dpcr_array *dz,
                           void *workspace, size_t workspace_bytes, dpcr_error *error) {
    static const char *const function = "chain_jvp";
    dpcr_status status = DPCR_OK;
    dpcri_view va = {0}, v0 = {0}, vz = {0}, vda = {0}, vdb = {0}, vd0 = {0}, vdz = {0};
    DPCR_TRY(dpcri_plan_ready(plan, function, workspace, workspace_bytes, error));
    DPCR_TRY(check_plan(plan, function, error));
    const int64_t length = plan->shape.length, w = plan->shape.transition.rows, rows = plan->shape.batch;
    dpcri_wanted wanted = dpcri_plan_wants(plan, function, "a", length, plan->values);
    wanted.shareable = true;
    if (plan->values > 0) DPCR_TRY(dpcri_view_of(a, &wanted, &va, error));
    wanted.name = "da";
    DPCR_TRY(view_values(da, &wanted, &vda, error));
    wanted = dpcri_plan_wants(plan, function, "z", length, w);
    DPCR_TRY(dpcri_view_of(z, &wanted, &vz, error));
    wanted.name = "db";
    DPCR_TRY(view_optional(db, &wanted, &vdb, error));
    wanted.name = "dz";
    wanted.written = true;
    DPCR_TRY(dpcri_view_of(dz, &wanted, &vdz, error));
    wanted = dpcri_plan_wants(plan, function, "z0", -1, w);
    DPCR_TRY(view_optional(z0, &wanted, &v0, error));
    wanted.name = "dz0";
    DPCR_TRY(view_optional(dz0, &wanted, &vd0, error));
    if (vdz.data && (vdz.data == vz.data || vdz.data == vdb.data))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: dz is %s, wanted an array of its own", function,
                            vdz.data == vz.data ? "z" : "db"));
    if (length == 0 || rows == 0) return DPCR_OK;
    dpcri_watch watch, *const watching = dpcri_plan_watch(plan, &watch);

    const tangent t = {.plan = plan, .v0 = v0, .z = vz, .da = vda, .db = vdb, .dz = vdz, .watch = watching};
    right_hand_side(&t);
    dpcri_linear chain = dpcri_plan_linear(plan, &va, 0);
    chain.b = chain.z = vdz.data;
    chain.b_step = chain.z_step = vdz.step;
    chain.b_row = chain.z_row = vdz.row;
    chain.z0 = vd0.data;
    chain.z0_row = vd0.row;
    chain.watch = watching;
    bool lost = false;
    chain.lost = &lost;
    dpcr_chain_options options = dpcri_plan_options(plan, &chain);
    dpcri_linear_solve(plan->context, &chain, &options, workspace, NULL);
    if (lost) {
        right_hand_side(&t);
        options.scheme = DPCR_SCHEME_SEQUENTIAL;
        dpcri_linear_solve(plan->context, &chain, &options, workspace, NULL);
    }
    status = dpcri_plan_finished(watching, function, error);
done:
    return status;
}

// da_l = lambda_l z_{l-1}^T; da_0 is zero where the chain started from zero.
static void outer_products(const dpcr_chain_plan *plan, const dpcri_view *lambda, const dpcri_view *z0,
                           const dpcri_view *z, const dpcri_view *da, dpcri_watch *watching) {
    const size_t size = dpcr_dtype_size(plan->shape.dtype);
    const dpcr_structure form = dpcri_kernel_form(&plan->shape.transition);
    dpcri_span span = {.n = 1,
                       .rows = plan->shape.batch,
                       .x = z0->data,
                       .x_row = z0->row,
                       .r = lambda->data,
                       .r_step = lambda->step,
                       .r_row = lambda->row,
                       .y = da->data,
                       .y_step = da->step,
                       .y_row = da->row};
    if (z0->data)
        run_sweep(plan, DPCRI_OUTER, form, &span, watching);
    else
        for (int64_t row = 0; row < span.rows; row++)
            memset((char *)da->data + row * da->row * (int64_t)size, 0, (size_t)plan->values * size);
    span.n = plan->shape.length - 1;
    span.x = z->data;
    span.x_step = z->step;
    span.x_row = z->row;
    span.r = at(lambda->data, lambda->step, size);
    span.y = (char *)da->data + da->step * (int64_t)size;
    run_sweep(plan, DPCRI_OUTER, form, &span, watching);
}

dpcr_status dpcr_chain_vjp(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *z0, const dpcr_array *z,
                           const dpcr_array *g, const dpcr_array *da, const dpcr_array *db, const dpcr_array *dz0,
                           void *workspace, size_t workspace_bytes, dpcr_error *error) {
    static const char *const function = "chain_vjp";
    dpcr_status status = DPCR_OK;
    dpcri_view va = {0}, v0 = {0}, vz = {0}, vg = {0}, vda = {0}, vdb = {0}, vd0 = {0};
    DPCR_TRY(dpcri_plan_ready(plan, function, workspace, workspace_bytes, error));
    DPCR_TRY(check_plan(plan, function, error));
    const int64_t length = plan->shape.length, w = plan->shape.transition.rows, rows = plan->shape.batch;
    const dpcr_structure form = dpcri_kernel_form(&plan->shape.transition);
    dpcri_wanted wanted = dpcri_plan_wants(plan, function, "a", length, plan->values);
    wanted.shareable = true;
    if (plan->values > 0) DPCR_TRY(dpcri_view_of(a, &wanted, &va, error));
    wanted.shareable = false;
    wanted.written = true;
    wanted.name = "da";
    DPCR_TRY(view_values(da, &wanted, &vda, error));
    wanted = dpcri_plan_wants(plan, function, "z", length, w);
    if (vda.data) DPCR_TRY(dpcri_view_of(z, &wanted, &vz, error));
    wanted.name = "g";
    DPCR_TRY(dpcri_view_of(g, &wanted, &vg, error));
    wanted.name = "db";
    wanted.written = true;
    DPCR_TRY(dpcri_view_of(db, &wanted, &vdb, error));
    wanted = dpcri_plan_wants(plan, function, "z0", -1, w);
    DPCR_TRY(view_optional(z0, &wanted, &v0, error));
    wanted.name = "dz0";
    wanted.written = true;
    DPCR_TRY(view_optional(dz0, &wanted, &vd0, error));
    if (vdb.data && vdb.data == vg.data && (vdb.step != vg.step || vdb.row != vg.row))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "%s: db is g with other strides, wanted the same or another array", function));
    if (rows == 0) return DPCR_OK;
    if (length == 0) {  // z_{L-1} is z0 itself, which nothing looked at
        for (int64_t row = 0; row < rows && vd0.data; row++)
            memset((char *)vd0.data + row * vd0.row * (int64_t)dpcr_dtype_size(plan->shape.dtype), 0,
                   (size_t)w * dpcr_dtype_size(plan->shape.dtype));
        return DPCR_OK;
    }
    dpcri_watch watch, *const watching = dpcri_plan_watch(plan, &watch);
    dpcri_linear chain = dpcri_plan_linear(plan, &va, 1);
    chain.b = vg.data;
    chain.b_step = vg.step;
    chain.b_row = vg.row;
    chain.z = vdb.data;
    chain.z_step = vdb.step;
    chain.z_row = vdb.row;
    chain.watch = watching;
    bool lost = false;
    chain.lost = chain.z == chain.b ? &lost : NULL;
    const dpcr_chain_options options = dpcri_plan_options(plan, &chain);
    dpcri_linear_solve(plan->context, &chain, &options, workspace, NULL);
    DPCR_TRY(dpcri_plan_finished(watching, function, error));
    if (lost) DPCR_TRY(dpcri_fail_lost(function, "db", "g", error));
    if (vda.data) outer_products(plan, &vdb, &v0, &vz, &vda, watching);
    if (vd0.data) {
        const dpcri_span span = {.n = 1,
                                 .rows = rows,
                                 .a = va.data,
                                 .a_row = va.row,
                                 .x = vdb.data,
                                 .x_row = vdb.row,
                                 .y = vd0.data,
                                 .y_row = vd0.row};
        run_sweep(plan, DPCRI_APPLY_T, form, &span, watching);
    }
    status = dpcri_plan_finished(watching, function, error);
done:
    return status;
}
