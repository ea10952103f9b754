// SPDX-License-Identifier: MIT
// Plans of linear chains: checks, defaults, the choice of a scheme, workspace, execute.
#include "chain/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chain/auto.h"
#include "chain/flow.h"
#include "chain/forgets.h"
#include "chain/measure.h"
#include "chain/windows.h"

static dpcr_status check_shape(const dpcr_chain_shape *shape, dpcr_error *error) {
    if (shape->size < offsetof(dpcr_chain_shape, transposed) + sizeof shape->transposed)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "chain_plan_create: shape.size is %zu, wanted sizeof(dpcr_chain_shape)", shape->size);
    const dpcr_transition *t = &shape->transition;
    const dpcr_status status = dpcr_transition_check(t, error);
    if (status != DPCR_OK) return status;
    if (shape->length < 0 || shape->batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "chain_plan: length %" PRId64 " and batch %" PRId64 ", wanted 0 or more", shape->length,
                          shape->batch);
    if (dpcr_dtype_size(shape->dtype) == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: dtype is %d, wanted float32, float64 or uint32",
                          (int)shape->dtype);
    if (t->rows != t->cols)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "chain_plan: %s %" PRId64 "x%" PRId64 " transitions; a chain needs as many rows as columns",
                          dpcr_structure_name(t->structure), t->rows, t->cols);
    if (t->structure == DPCR_CSR && dpcr_pattern_check(t->pattern, error) != DPCR_OK) return DPCR_ERROR_ARGUMENT;
    int64_t size = 0;
    if (!dpcri_mul(shape->length, shape->batch, &size) ||
        !dpcri_mul(size, (int64_t)dpcr_dtype_size(shape->dtype), &size) || !dpcri_mul(size, t->rows, &size))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "chain_plan: %" PRId64 " steps of %" PRId64 " sequences of width %" PRId64
                          " do not fit the address space",
                          shape->length, shape->batch, t->rows);
    return DPCR_OK;
}

static dpcr_status check_options(const dpcr_chain_options *o, dpcr_error *error) {
    if ((int)o->scheme < 0 || o->scheme >= DPCR_SCHEME_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: scheme is %d, wanted 0..%d", (int)o->scheme,
                          DPCR_SCHEME_COUNT - 1);
    if (o->chunk < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: chunk is %" PRId64 ", wanted 0 or more", o->chunk);
    if (o->levels < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: levels is %d, wanted 0 or more", o->levels);
    if (o->warm_up < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: warm_up is %" PRId64 ", wanted 0 or more",
                          o->warm_up);
    if (o->max_sweeps < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: max_sweeps is %d, wanted 0 or more", o->max_sweeps);
    if (!(o->tolerance >= 0) || isinf(o->tolerance))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: tolerance is %g, wanted 0 or more and finite",
                          o->tolerance);
    if ((unsigned)o->planning >= DPCR_PLANNING_COUNT || !(o->planning_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "chain_plan: planning is %d and planning_seconds %g, wanted a named one and 0 or more",
                          (int)o->planning, o->planning_seconds);
    return DPCR_OK;
}

static dpcr_status refuse_scheme(const dpcr_chain_shape *shape, const dpcr_chain_options *o, dpcr_error *error) {
    if (o->scheme == DPCR_SCHEME_OVERLAP && o->tolerance > 0 && shape->dtype == DPCR_U32)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "chain_plan: overlap with tolerance %g on uint32, which knows no nearness; tolerance 0 works",
                          o->tolerance);
    const bool composes =
        o->scheme == DPCR_SCHEME_PCR || o->scheme == DPCR_SCHEME_BLELLOCH || o->scheme == DPCR_SCHEME_CHUNKED;
    if (composes && !(dpcr_transition_capabilities(&shape->transition) & DPCR_CAN_COMPOSE))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "chain_plan: %s needs products, which %s transitions do not form; "
                          "sequential and overlap work",
                          dpcr_scheme_name(o->scheme), dpcr_structure_name(shape->transition.structure));
    return DPCR_OK;
}

dpcr_status dpcri_planning_serves(dpcr_context *context, dpcr_planning planning, const char *function,
                                  dpcr_error *error) {
    if (planning == DPCR_PLANNING_ESTIMATE || !dpcri_is_described(context, NULL)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "%s: planning %s is of what is timed here, and the context's plans are for a machine that is "
                      "described; estimate works",
                      function, dpcr_planning_name(planning));
}

static dpcr_status choose(dpcr_chain_plan *plan, dpcr_error *error) {
    dpcr_chain_options *o = &plan->options;
    if (o->scheme != DPCR_SCHEME_AUTO) {
        snprintf(plan->sentence, sizeof plan->sentence, "%s: asked for", dpcr_scheme_name(o->scheme));
        return DPCR_OK;
    }
    if (plan->shape.transition.structure == DPCR_CSR) {
        o->scheme = DPCR_SCHEME_SEQUENTIAL;
        snprintf(plan->sentence, sizeof plan->sentence,
                 "sequential: csr transitions form no products; overlap works where the chain forgets");
        return DPCR_OK;
    }
    if (o->typical && plan->values > 0) {
        dpcri_view view;
        dpcri_wanted wanted = dpcri_plan_wants(plan, "chain_plan", "typical", plan->shape.length, plan->values);
        wanted.shareable = true;
        const dpcr_status status = dpcri_view_of(o->typical, &wanted, &view, error);
        if (status != DPCR_OK) return status;
    }
    plan->may_overlap = !o->typical;  // with data overlap was measured
    const dpcr_status serves = dpcri_planning_serves(plan->context, o->planning, "chain_plan", error);
    if (serves != DPCR_OK) return serves;
    if (!plan->place.described && dpcri_chain_recall(plan)) return DPCR_OK;
    if (o->planning == DPCR_PLANNING_WISDOM)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "chain_plan: nothing is known of this chain; planning measure would find out");
    if (o->planning == DPCR_PLANNING_MEASURE && dpcri_chain_measure(plan)) return DPCR_OK;
    dpcr_chain_options chunked = *o;
    chunked.scheme = DPCR_SCHEME_CHUNKED;
    dpcri_chain_defaults(&plan->shape.transition, plan->shape.length, plan->shape.batch, &chunked);
    o->scheme = dpcri_chain_auto(&plan->shape, chunked.chunk, &plan->place, plan->sentence, sizeof plan->sentence);
    plan->may_overlap = true;
    return DPCR_OK;
}

// Whether chunks that were chosen take fused kernels where arrays lie step by step, and lose to the loop without them.
static bool lives_by_fused(const dpcr_chain_plan *plan, bool shared) {
    const dpcr_chain_shape *s = &plan->shape;
    const int64_t way = s->transposed ? -s->batch : s->batch, chunk = plan->options.chunk;
    const dpcri_view none = {0};
    const dpcri_linear chain = dpcri_plan_linear(plan, &none, s->transposed);
    dpcri_flow flow = dpcri_flow_of(plan->context, &chain);
    flow.a_step = way * plan->values;
    flow.b_step = flow.z_step = way * s->transition.rows;
    return plan->options.scheme == DPCR_SCHEME_CHUNKED && dpcri_windows_serve(&flow, chunk) &&
           !dpcri_chain_spans_pay(s, shared, chunk, dpcr_context_threads(plan->context));
}

dpcr_chain_options dpcri_plan_options(const dpcr_chain_plan *plan, const dpcri_linear *chain) {
    dpcr_chain_options options = plan->options;
    if (!plan->fused[chain->a_step == 0]) return options;
    const dpcri_flow flow = dpcri_flow_of(plan->context, chain);
    if (!dpcri_windows_serve(&flow, options.chunk)) options.scheme = DPCR_SCHEME_SEQUENTIAL;
    return options;
}

dpcri_linear dpcri_plan_linear(const dpcr_chain_plan *plan, const dpcri_view *a, int transposed) {
    return (dpcri_linear){.transition = plan->shape.transition,
                          .dtype = plan->shape.dtype,
                          .transposed = transposed,
                          .length = plan->shape.length,
                          .rows = plan->shape.batch,
                          .a = a->data,
                          .a_step = a->step,
                          .a_row = a->row};
}

dpcr_status dpcr_chain_plan_create(dpcr_context *context, const dpcr_chain_shape *shape,
                                   const dpcr_chain_options *options, dpcr_chain_plan **plan, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_chain_plan *made = NULL;
    if (plan) *plan = NULL;
    if (!context || !shape || !plan)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_plan: %s is NULL",
                          !context ? "context"
                          : !shape ? "shape"
                                   : "plan");
    dpcr_chain_options given = {.size = sizeof given};
    if (options) {
        if (options->size < offsetof(dpcr_chain_options, scheme) + sizeof options->scheme)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "chain_plan: options.size is %zu, wanted sizeof(dpcr_chain_options)", options->size);
        DPCRI_COPY_IN(given, options);
    }
    const bool on_device = dpcri_plan_on_device(&given);
    DPCR_TRY(check_shape(shape, error));
    DPCR_TRY(check_options(&given, error));
    if (!on_device) DPCR_TRY(refuse_scheme(shape, &given, error));
    made = dpcri_alloc_zero(context, sizeof *made);
    if (!made)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "chain_plan: no memory for the plan (%zu bytes)", sizeof *made));
    made->context = context;
    made->shape = *shape;
    made->options = given;
    made->values = dpcr_transition_values(&shape->transition);
    if (on_device) {
        DPCR_TRY(dpcri_plan_device(made, error));
        *plan = made;
        made = NULL;
        goto done;
    }
    made->place = dpcri_chain_place_of(context);
    DPCR_TRY(choose(made, error));
    made->options.typical = NULL;  // the caller's, and read
    dpcri_chain_defaults(&shape->transition, shape->length, shape->batch, &made->options);
    for (int shared = 0; shared < 2; shared++)
        made->fused[shared] = given.scheme == DPCR_SCHEME_AUTO && !given.typical && lives_by_fused(made, shared);
    const dpcri_view none = {0};
    bool lost = false;
    dpcri_linear whole = dpcri_plan_linear(made, &none, shape->transposed);
    whole.lost = &lost;
    made->workspace = dpcri_linear_workspace(&whole, &made->options);
    dpcr_chain_options overlap;
    if (made->may_overlap &&
        dpcri_chain_may_overlap(shape, made->options.scheme, made->options.chunk, &made->place, &overlap)) {
        const size_t used = strlen(made->sentence), bytes = dpcri_linear_workspace(&whole, &overlap);
        snprintf(made->sentence + used, sizeof made->sentence - used,
                 "; chunks of the loop side by side where it forgets");
        if (bytes > made->workspace) made->workspace = bytes;
    } else {
        made->may_overlap = false;
    }
    if (made->workspace == SIZE_MAX)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                            "chain_plan: the workspace of %s over %" PRId64 " steps of %" PRId64
                            " sequences does not fit the address space; sequential needs none",
                            dpcr_scheme_name(made->options.scheme), shape->length, shape->batch));
    *plan = made;
    made = NULL;
done:
    dpcr_chain_plan_destroy(made);
    return status;
}

void dpcr_chain_plan_destroy(dpcr_chain_plan *plan) {
    if (!plan) return;
    dpcri_plan_pattern_release(plan);
    dpcri_free(plan->context, plan);
}

dpcr_scheme dpcr_chain_plan_scheme(const dpcr_chain_plan *plan) {
    return plan ? plan->options.scheme : DPCR_SCHEME_AUTO;
}
const dpcr_chain_options *dpcr_chain_plan_options(const dpcr_chain_plan *plan) { return plan ? &plan->options : NULL; }
const char *dpcr_chain_plan_sentence(const dpcr_chain_plan *plan) { return plan ? plan->sentence : ""; }
size_t dpcr_chain_plan_workspace(const dpcr_chain_plan *plan) { return plan ? plan->workspace : 0; }
double dpcr_chain_plan_seconds(const dpcr_chain_plan *plan) {
    return plan && !plan->table ? dpcri_chain_seconds(plan->context, &plan->shape, &plan->options, &plan->place) : 0;
}

int dpcr_chain_plan_candidate(const dpcr_chain_plan *plan, int64_t index, dpcr_chain_candidate *candidate) {
    if (!plan || !candidate || index < 0 || index >= plan->timed_count) return 0;
    dpcri_copy_out(candidate, &plan->timed[index], sizeof *candidate);
    return 1;
}

dpcr_status dpcri_plan_ready(const dpcr_chain_plan *plan, const char *function, const void *workspace, size_t bytes,
                             dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: plan is NULL", function);
    if (plan->table)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the plan is of a device, where chain_enqueue solves",
                          function);
    if (bytes < plan->workspace || (!workspace && plan->workspace > 0))
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: a workspace of %zu bytes%s, wanted %zu", function, bytes,
                          workspace ? "" : " at NULL", plan->workspace);
    if (plan->workspace > 0 && (uintptr_t)workspace % 64 != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the workspace lies %u bytes off, wanted 64-byte alignment",
                          function, (unsigned)((uintptr_t)workspace % 64));
    return DPCR_OK;
}

dpcri_wanted dpcri_plan_wants(const dpcr_chain_plan *plan, const char *function, const char *name, int64_t steps,
                              int64_t values) {
    return (dpcri_wanted){.function = function,
                          .name = name,
                          .dtype = plan->shape.dtype,
                          .steps = steps,
                          .rows = plan->shape.batch,
                          .values = values};
}

dpcri_watch *dpcri_plan_watch(const dpcr_chain_plan *plan, dpcri_watch *watch) {
    const double steps = (double)plan->shape.length * (double)plan->shape.batch;
    return dpcri_linear_watch(watch, plan->context, &plan->shape.transition, steps);
}

dpcr_status dpcri_plan_finished(dpcri_watch *watch, const char *function, dpcr_error *error) {
    if (!dpcri_watch_stopped(watch)) return DPCR_OK;
    return dpcri_fail_stopped(error, function);
}

dpcr_status dpcri_fail_lost(const char *function, const char *z, const char *b, dpcr_error *error) {
    return dpcri_fail(
        error, DPCR_ERROR_UNSUPPORTED,
        "%s: products of this chain's transitions lose what its states keep, and %s has taken %s's place; "
        "wanted scheme sequential, or an array of its own",
        function, z, b);
}

static dpcr_status check_report(const dpcr_chain_report *report, dpcr_error *error) {
    if (report && report->size < offsetof(dpcr_chain_report, scheme) + sizeof report->scheme)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "chain_execute: report.size is %zu, wanted sizeof(dpcr_chain_report)", report->size);
    return DPCR_OK;
}

dpcr_status dpcri_check_in_place(const char *function, const dpcri_view *b, const dpcri_view *z, dpcr_error *error) {
    if (b->data == z->data && z->data && (b->step != z->step || b->row != z->row))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: z is b with other strides, wanted the same strides or another array", function);
    return DPCR_OK;
}

static const char function[] = "chain_execute";

dpcr_status dpcri_plan_execute(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                               const dpcr_array *z0, const dpcr_array *z, void *workspace, size_t workspace_bytes,
                               dpcr_chain_report *report, bool *lost, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_view va = {0}, vb = {0}, v0 = {0}, vz = {0};
    const double start = report ? dpcri_seconds() : 0;
    DPCR_TRY(dpcri_plan_ready(plan, function, workspace, workspace_bytes, error));
    DPCR_TRY(check_report(report, error));
    const int64_t length = plan->shape.length, w = plan->shape.transition.rows;
    dpcri_wanted wanted = dpcri_plan_wants(plan, function, "a", length, plan->values);
    wanted.shareable = true;
    if (plan->values > 0) DPCR_TRY(dpcri_view_of(a, &wanted, &va, error));
    wanted = dpcri_plan_wants(plan, function, "b", length, w);
    DPCR_TRY(dpcri_view_of(b, &wanted, &vb, error));
    wanted.name = "z";
    wanted.written = true;
    DPCR_TRY(dpcri_view_of(z, &wanted, &vz, error));
    if (z0) {
        if (plan->shape.transposed)
            DPCR_TRY(dpcri_fail(
                error, DPCR_ERROR_UNSUPPORTED,
                "%s: z0 was given to a transposed chain, which starts at b of the last step; add it there", function));
        wanted = dpcri_plan_wants(plan, function, "z0", -1, w);
        DPCR_TRY(dpcri_view_of(z0, &wanted, &v0, error));
        DPCR_TRY(dpcri_check_start(function, z0, z, error));
    }
    DPCR_TRY(dpcri_check_in_place(function, &vb, &vz, error));
    dpcri_linear chain = dpcri_plan_linear(plan, &va, plan->shape.transposed);
    chain.b = vb.data;
    chain.b_step = vb.step;
    chain.b_row = vb.row;
    chain.z0 = z0 ? v0.data : NULL;
    chain.z0_row = v0.row;
    chain.z = vz.data;
    chain.z_step = vz.step;
    chain.z_row = vz.row;
    dpcr_chain_report counts;
    dpcr_chain_options options = dpcri_plan_options(plan, &chain);
    dpcri_watch watch;
    chain.watch = dpcri_plan_watch(plan, &watch);
    if (plan->may_overlap) dpcri_chain_forgets(plan->context, &plan->shape, &plan->place, &chain, workspace, &options);
    *lost = false;
    chain.lost = chain.z == chain.b ? lost : NULL;
    dpcri_linear_solve(plan->context, &chain, &options, workspace, &counts);
    DPCR_TRY(dpcri_plan_finished(chain.watch, function, error));
    if (report && !*lost) {
        counts.seconds = dpcri_seconds() - start;
        dpcri_copy_out(report, &counts, sizeof counts);
    }
done:
    return status;
}

dpcr_status dpcr_chain_execute(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                               const dpcr_array *z0, const dpcr_array *z, void *workspace, size_t workspace_bytes,
                               dpcr_chain_report *report, dpcr_error *error) {
    bool lost = false;
    const dpcr_status status = dpcri_plan_execute(plan, a, b, z0, z, workspace, workspace_bytes, report, &lost, error);
    return status == DPCR_OK && lost ? dpcri_fail_lost(function, "z", "b", error) : status;
}
