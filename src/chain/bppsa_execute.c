// SPDX-License-Identifier: MIT
// BPPSA, executed: strands (a bundle of sequences, or one) run the plan's passes, each in a slot of the workspace.
//
// Where there are as many strands as threads, each strand is a task and runs its passes in order; else the tasks of
// every pass, which the plan has cut by flops, share the threads. Either way an entry is made by the same operations.
// Long products are made a stretch of rows at a time, with a look at the caller's cancel function in between.
//
// A product may overflow, underflow or cancel where no gradient does, or, stored as dense, have a structural zero that
// meets an infinity. So every gradient that a product made is compared with what its own step makes of the one before
// (recheck.c does so for chains, within the same bounds): all at once, an application each, a few rows at a time. By
// induction those that all hold are the loop's, what is not finite too. A sequence goes by the loop from the first that
// is another one.
#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "chain/bppsa.h"
#include "chain/flow.h"
#include "chain/joins.h"
#include "chain/recheck.h"

typedef struct run {
    const dpcr_bppsa_plan *plan;
    const dpcr_array *values, *last, *gradients;
    unsigned char *common, *slots;
    int64_t strand;  // first of those that are under way
    dpcri_watch *watch;
} run;

typedef struct strand {
    const run *r;
    const dpcri_sparse_operations *kernels;
    const dpcri_bppsa_layout *layout;
    unsigned char *slot;
    int64_t sequence, rows, lanes;
    bool bundled;
    bool common;  // forms the products that all sequences share, and nothing else
    const dpcri_bppsa_pass *pass;
} strand;

static void *row_of(const dpcr_bppsa_plan *p, const dpcr_array *array, int64_t row) {
    return (char *)array->data + (array->shape[0] > 1 ? row * array->strides[0] * p->size : 0);
}

static strand strand_at(const run *r, int64_t index) {
    const dpcr_bppsa_plan *p = r->plan;
    const bool bundled = index < p->bundles;
    const int64_t lanes = p->kernels->lanes;
    strand s = {.r = r,
                .bundled = bundled,
                .kernels = bundled ? &p->kernels->bundle : &p->kernels->single,
                .layout = bundled ? &p->bundle : &p->single,
                .slot = r->slots + (size_t)(index - r->strand) * p->slot_bytes,
                .sequence = bundled ? index * lanes : p->bundles * lanes + index - p->bundles,
                .rows = 1,
                .lanes = bundled ? lanes : 1};
    if (bundled) s.rows = p->batch - s.sequence < lanes ? p->batch - s.sequence : lanes;
    return s;
}

static void *vector_of(const strand *s, int64_t boundary) {
    const dpcr_bppsa_plan *p = s->r->plan;
    return s->slot + s->layout->vectors + (size_t)(p->vector_at[boundary] * s->lanes * p->size);
}

static dpcri_matrix matrix_of(const strand *s, int64_t index) {
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcri_bppsa_matrix *m = &p->matrices[index];
    const bool step = index < p->length;
    if (step && (m->shared || !s->bundled))
        return dpcri_matrix_of(&m->t, row_of(p, &s->r->values[index], s->sequence), false);
    if (m->shared) return dpcri_matrix_of(&m->t, s->r->common + m->single, false);
    return dpcri_matrix_of(&m->t, s->slot + (s->bundled ? m->bundled : m->single), s->bundled);
}

// ---- passes ----

static void run_operation(const strand *s, const dpcri_bppsa_operation *o, int64_t lo, int64_t hi, int32_t *places) {
    const dpcri_matrix a = matrix_of(s, o->a);
    if (o->c < 0) {
        s->kernels->apply(&a, vector_of(s, o->in), vector_of(s, o->out), lo, hi);
        return;
    }
    const dpcri_matrix b = matrix_of(s, o->b), c = matrix_of(s, o->c);
    const double row = o->flops * (double)s->lanes / (double)s->r->plan->matrices[o->a].t.rows;  // on the average
    const int64_t most = s->r->watch ? dpcri_watch_steps(row) : hi - lo;
    for (int64_t from = lo; from < hi && !dpcri_watch_stopped(s->r->watch); from += most)
        s->kernels->compose(&a, &b, &c, places, from, hi - from < most ? hi : from + most);
}

static void run_task(void *argument, int64_t task) {
    const strand *s = argument;
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcri_bppsa_cut from = p->cuts[s->pass->cut + task], to = p->cuts[s->pass->cut + task + 1];
    int32_t *places = (int32_t *)(s->slot + s->layout->places) + task * p->places;
    for (int64_t i = from.operation; i <= to.operation && i < s->pass->operation + s->pass->count; i++) {
        if (dpcri_watch_stopped(s->r->watch)) return;
        const dpcri_bppsa_operation *o = &p->operations[i];
        const int64_t lo = i == from.operation ? from.row : 0,
                      hi = i == to.operation ? to.row : p->matrices[o->a].t.rows;
        if ((o->c >= 0 && p->matrices[o->c].shared) != s->common) continue;
        if (lo < hi) run_operation(s, o, lo, hi, places);
    }
}

static void run_passes(strand *s, int64_t count) {
    const dpcr_bppsa_plan *p = s->r->plan;
    for (int64_t i = 0; i < count; i++) {
        s->pass = &p->passes[i];
        dpcri_parallel(p->context, s->pass->tasks, run_task, s);
    }
}

// ---- in and out ----

static void pack_step(void *argument, int64_t l) {
    const strand *s = argument;
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcri_bppsa_matrix *m = &p->matrices[l];
    const dpcr_array *values = &s->r->values[l];
    if (m->shared) return;
    p->kernels->pack(m->values, s->rows, row_of(p, values, s->sequence), values->strides[0], s->slot + m->bundled);
}

static void take_last(const strand *s) {
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcr_array *last = s->r->last;
    void *to = vector_of(s, p->length);
    if (s->bundled)
        p->kernels->pack(p->widths[p->length], s->rows, row_of(p, last, s->sequence),
                         last->shape[0] > 1 ? last->strides[0] : 0, to);
    else
        memcpy(to, row_of(p, last, s->sequence), (size_t)(p->widths[p->length] * p->size));
}

static void give_gradient(void *argument, int64_t l) {
    const strand *s = argument;
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcr_array *gradient = &s->r->gradients[l];
    if (!gradient->data) return;
    void *to = row_of(p, gradient, s->sequence);
    if (s->bundled)
        p->kernels->unpack(p->widths[l], s->rows, vector_of(s, l), to, gradient->strides[0]);
    else
        memcpy(to, vector_of(s, l), (size_t)(p->widths[l] * p->size));
}

// ---- what products lose ----

enum {
    MOST_LANES = 64,
    MOST_TASKS = 16,
    ROW_BYTES = 16384,  // of rows that are made at a time
    MOST_HOPS = 6,      // rows of one entry that are followed to the sum before them
    MOST_TERMS = 8      // times a step's entries that are followed: where more have to be, the loop is quicker
};

typedef struct look {
    const strand *s;
    int64_t tasks;
    _Atomic int64_t from[MOST_LANES];  // the first boundary along the recurrence that does not hold; -1: all do
} look;

static double number_at(const dpcr_bppsa_plan *p, const void *x, int64_t i) {
    return dpcri_number_of((size_t)p->size, x, i);
}

static const char *lane_of(const strand *s, int64_t boundary, int64_t lane) {
    return (const char *)vector_of(s, boundary) + lane * s->r->plan->size;
}

// Sizes of what component `row` at boundary l is the sum of, down to the sums before the last `sums` of them. *left:
// entries that may still be read; 0 where it takes more.
static double terms_of(const strand *s, int64_t l, int64_t lane, int64_t row, int sums, int hops, int64_t *left) {
    const dpcr_bppsa_plan *p = s->r->plan;
    if (l == p->length || sums == 0 || hops == 0) return fabs(number_at(p, lane_of(s, l, lane), row * s->lanes));
    const dpcri_matrix a = matrix_of(s, l);
    const bool csr = a.structure == DPCR_CSR, dense = a.structure == DPCR_DENSE;
    const int64_t from = csr ? a.offsets[row] : dense ? row * a.cols : row;
    const int64_t count = csr ? a.offsets[row + 1] - from : dense ? a.cols : 1;
    double terms = 0;
    *left -= count;
    for (int64_t e = from; e < from + count && *left >= 0; e++) {
        const int64_t column = csr ? a.columns[e] : dense ? e - from : row;
        const double value = fabs(number_at(p, a.values, a.bundled ? e * s->lanes + lane : e));
        if (value > 0) terms += value * terms_of(s, l + 1, lane, column, count > 1 ? sums - 1 : sums, hops - 1, left);
    }
    return *left < 0 ? 0 : terms;
}

static bool component_holds(const strand *s, int64_t l, int64_t lane, int64_t row, double made, int64_t *left) {
    const dpcr_bppsa_plan *p = s->r->plan;
    const double z = number_at(p, lane_of(s, l, lane), row * s->lanes), off = fabs(z - made);
    const double bound = DPCRI_RECHECK(p->size), eps = p->size == 8 ? DBL_EPSILON : (double)FLT_EPSILON;
    int64_t row_left = INT64_MAX;
    if (z == made || (isnan(z) && isnan(made))) return true;
    if (!isfinite(off)) return false;
    if (off <= bound * fabs(made) || off <= DPCRI_RECHECK_ROUNDS * dpcri_joins_least((size_t)p->size)) return true;
    return off <= bound * terms_of(s, l, lane, row, 1, 1, &row_left) ||
           off <= DPCRI_RECHECK_ROUNDS * eps * terms_of(s, l, lane, row, 2, MOST_HOPS, left);
}

// Rows lo .. lo + count - 1 at boundary l, of which `made` is what the step makes.
static void compare_rows(look *k, int64_t l, int64_t lo, int64_t count, const void *made, int64_t *left) {
    const strand *s = k->s;
    const dpcr_bppsa_plan *p = s->r->plan;
    const void *z = (const char *)vector_of(s, l) + lo * s->lanes * p->size;
    if (dpcri_states_near(p->dtype, &(dpcri_chunk_states){z, 1, 1}, &(dpcri_chunk_states){made, 1, 1}, count * s->lanes,
                          1, DPCRI_RECHECK(p->size)))
        return;
    for (int64_t lane = 0; lane < s->rows; lane++)
        for (int64_t i = 0; i < count && k->from[lane] < l; i++)
            if (!component_holds(s, l, lane, lo + i, number_at(p, made, i * s->lanes + lane), &left[lane])) {
                int64_t before = k->from[lane];
                while (before < l && !atomic_compare_exchange_weak(&k->from[lane], &before, l)) continue;
            }
}

static void look_at_step(look *k, int64_t l) {
    const strand *s = k->s;
    const dpcr_bppsa_plan *p = s->r->plan;
    const dpcri_matrix a = matrix_of(s, l);
    const int64_t bytes = s->lanes * p->size, rows = ROW_BYTES / bytes;
    alignas(64) unsigned char made[ROW_BYTES];
    int64_t left[MOST_LANES];
    for (int64_t g = 0; g < s->rows; g++)
        left[g] = MOST_TERMS * (p->matrices[l].values + (l + 1 < p->length ? p->matrices[l + 1].values : 0));
    for (int64_t lo = 0; lo < a.rows && !dpcri_watch_stopped(s->r->watch); lo += rows) {
        dpcri_matrix part = a;
        const int64_t each = a.structure == DPCR_DENSE ? a.cols : 1;
        const char *x = vector_of(s, l + 1);
        part.rows = a.rows - lo < rows ? a.rows - lo : rows;
        if (a.structure == DPCR_CSR)
            part.offsets += lo;
        else
            part.values = (char *)a.values + lo * each * (a.bundled ? bytes : p->size);
        if (a.structure == DPCR_DIAGONAL) x += lo * bytes;
        s->kernels->apply(&part, x, made, 0, part.rows);
        compare_rows(k, l, lo, part.rows, made, left);
    }
}

// What a single step made holds.
static void look_task(void *argument, int64_t task) {
    look *k = argument;
    const dpcr_bppsa_plan *p = k->s->r->plan;
    for (int64_t i = task; i < p->operation_count; i += k->tasks) {
        const dpcri_bppsa_operation *o = &p->operations[i];
        if (o->c < 0 && o->a >= p->length) look_at_step(k, o->out);
    }
}

// Gradients of a lane by the loop, from boundary l on.
static void mend(const strand *s, int64_t lane, int64_t l) {
    const run *r = s->r;
    const dpcr_bppsa_plan *p = r->plan;
    const int64_t size = p->size, sequence = s->sequence + lane;
    char *x = (char *)s->slot + s->layout->spare, *y = x + p->widest * size;
    for (int64_t i = 0; l >= 0 && i < p->widths[l + 1]; i++)
        memcpy(x + i * size, lane_of(s, l + 1, lane) + i * s->lanes * size, (size_t)size);
    for (; l >= 0 && !dpcri_watch_stopped(r->watch); l--) {
        const dpcri_matrix a = dpcri_matrix_of(&p->matrices[l].t, row_of(p, &r->values[l], sequence), false);
        p->kernels->single.apply(&a, x, y, 0, p->widths[l]);
        if (r->gradients[l].data) memcpy(row_of(p, &r->gradients[l], sequence), y, (size_t)(p->widths[l] * size));
        char *const before = x;
        x = y;
        y = before;
    }
}

static void mend_lanes(const strand *s) {
    const dpcr_bppsa_plan *p = s->r->plan;
    look k = {.s = s};
    if (p->cost.compositions == 0 || p->dtype == DPCR_U32) return;
    assert(s->lanes <= MOST_LANES);
    for (int64_t g = 0; g < s->rows; g++) k.from[g] = -1;
    k.tasks = dpcri_task_count(p->operation_count, p->cost.loop_flops * (double)s->lanes / (double)p->operation_count);
    if (k.tasks > MOST_TASKS) k.tasks = MOST_TASKS;
    dpcri_parallel(p->context, k.tasks, look_task, &k);
    if (dpcri_watch_stopped(s->r->watch)) return;
    for (int64_t g = 0; g < s->rows; g++) mend(s, g, k.from[g]);
}

static void run_strand(void *argument, int64_t i) {
    const run *r = argument;
    const dpcr_bppsa_plan *p = r->plan;
    strand s = strand_at(r, r->strand + i);
    if (s.bundled) dpcri_parallel(p->context, p->length, pack_step, &s);
    take_last(&s);
    run_passes(&s, p->pass_count);
    dpcri_parallel(p->context, p->length, give_gradient, &s);
    mend_lanes(&s);
}

// ---- the call ----

static dpcr_status check_arrays(const dpcr_bppsa_plan *p, const dpcr_array *values, const dpcr_array *last,
                                const dpcr_array *gradients, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_view view;
    dpcri_wanted w = {.function = "bppsa_execute", .dtype = p->dtype, .steps = -1, .rows = p->batch};
    if (!values || !gradients)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_execute: %s is NULL, wanted %" PRId64 " arrays",
                          values ? "gradients" : "values", p->length);
    for (int64_t l = 0; l < p->length; l++) {
        char name[48];
        w.name = name;
        w.values = p->matrices[l].values;
        w.rows = p->matrices[l].shared ? 1 : p->batch;
        w.written = false;
        snprintf(name, sizeof name, "values[%" PRId64 "]", l);
        DPCR_TRY(dpcri_view_of(&values[l], &w, &view, error));
        if (!gradients[l].data) continue;
        w.values = p->widths[l];
        w.rows = p->batch;
        w.written = true;
        snprintf(name, sizeof name, "gradients[%" PRId64 "]", l);
        DPCR_TRY(dpcri_view_of(&gradients[l], &w, &view, error));
    }
    w.name = "last";
    w.values = p->widths[p->length];
    w.rows = p->batch;
    w.shareable = true;
    w.written = false;
    DPCR_TRY(dpcri_view_of(last, &w, &view, error));
done:
    return status;
}

dpcr_status dpcr_bppsa_execute(const dpcr_bppsa_plan *plan, const dpcr_array *values, const dpcr_array *last,
                               const dpcr_array *gradients, void *workspace, size_t workspace_bytes,
                               dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_execute: plan is NULL");
    if (plan->length == 0) return DPCR_OK;
    const dpcr_status status = check_arrays(plan, values, last, gradients, error);
    if (status != DPCR_OK || plan->batch == 0) return status;
    if (!workspace || workspace_bytes < plan->workspace)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "bppsa_execute: workspace of %zu bytes%s, wanted %zu",
                          workspace_bytes, workspace ? "" : " at NULL", plan->workspace);
    if ((uintptr_t)workspace % 64 != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_execute: workspace of an alignment below 64 bytes");
    dpcri_watch watch;
    run r = {.plan = plan,
             .watch = dpcri_watch_begin(&watch, plan->context, plan->cost.flops * (double)plan->batch),
             .values = values,
             .last = last,
             .gradients = gradients,
             .common = workspace,
             .slots = (unsigned char *)workspace + plan->common_bytes};
    if (plan->common_products) {
        strand s = strand_at(&r, plan->bundles);  // a slot's scratch, for one sequence
        s.slot = r.slots;
        s.layout = &plan->single;
        s.common = true;
        run_passes(&s, plan->up_passes);
    }
    const int64_t strands = plan->bundles + plan->singles, threads = dpcr_context_threads(plan->context);
    for (r.strand = 0; r.strand < strands && !dpcri_watch_stopped(r.watch); r.strand += plan->slots) {
        const int64_t now = strands - r.strand < plan->slots ? strands - r.strand : plan->slots;
        if (now >= threads)
            dpcri_parallel(plan->context, now, run_strand, &r);
        else
            for (int64_t i = 0; i < now; i++) run_strand(&r, i);
    }
    if (!dpcri_watch_stopped(r.watch)) return DPCR_OK;
    return dpcri_fail_stopped(error, "bppsa_execute");
}
