// SPDX-License-Identifier: MIT
// Nonlinear chains on a device: a plan asks the chain's callback `launch` what it serves and needs, enqueue checks the
// arrays and hands them over, collect turns what the kernels wrote of each sequence into the report of a host's solve.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kern/device.h"
#include "rt/dev/device.h"
#include "solve/solve_internal.h"

// AUTO is a rule of shape: chunks help where the sequences alone leave lanes idle, and a chain is long enough for some;
// newton, which does the more work the more sequences there are, where they are few (docs/performance/gpu.md).
enum { FEW_STEPS = 512, LANES_OF_A_PROCESSOR = 128, NEWTONS_OF_A_PROCESSOR = 2, PAGE = 256 };

bool dpcri_solve_on_device(const dpcr_solve_options *options) {
    return options->device.type != 0 && options->device.type != DPCR_HOST;
}

static bool empty(const dpcr_solve_plan *plan) { return plan->steps.length == 0 || plan->steps.batch == 0; }

// The outcomes come first in the workspace, and then, of sweeps, the evaluations.
static size_t outcome_bytes(int64_t batch) {
    return ((size_t)batch * sizeof(dpcr_device_outcome) + PAGE - 1) / PAGE * PAGE;
}

static bool is_sweeps(const dpcr_solve_options *o) {
    return o->method == DPCR_METHOD_PICARD || o->method == DPCR_METHOD_PARATAA;
}

static size_t told_bytes(const dpcr_solve_plan *plan) {
    const int64_t batch = plan->steps.batch;
    const size_t evaluations = ((size_t)batch * sizeof(int64_t) + PAGE - 1) / PAGE * PAGE;
    return outcome_bytes(batch) + (is_sweeps(&plan->options) ? evaluations : 0);
}

static dpcr_status refuse_option(const char *what, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "solve: %s on a device, wanted its default", what);
}

dpcr_status dpcri_device_check_options(const dpcr_solve_options *o, bool sweeps, dpcr_error *error) {
    const dpcr_method m = o->method;
    const bool swept = is_sweeps(o);
    if (m != DPCR_METHOD_AUTO && m != DPCR_METHOD_SEQUENTIAL && m != DPCR_METHOD_OVERLAP && m != DPCR_METHOD_NEWTON &&
        !(swept && sweeps))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "solve: %s on a device; %s work there", dpcr_method_name(m),
                          sweeps ? "auto, sequential, picard and parataa" : "auto, sequential, overlap and newton");
    if (isnan(o->atol) || isnan(o->rtol) || isnan(o->join_tolerance) || o->chunk < 0 || o->warm_up < 0 ||
        o->max_sweeps < 0 || o->window < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: chunk, warm_up, window and max_sweeps must not be negative, tolerances not NaN");
    if (o->max_sweeps > 100 && !swept)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "solve: max_sweeps is %d, at most 100 on a device",
                          o->max_sweeps);
    if ((unsigned)o->guess >= DPCR_GUESS_COUNT || (unsigned)o->lock >= DPCR_LOCK_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: guess %d or lock %d is none of the named ones",
                          (int)o->guess, (int)o->lock);
    if (o->scheme) return refuse_option("a scheme", error);
    if (o->backward) return refuse_option("a backward scheme", error);
    if (o->backward_chunk || o->backward_warm_up) return refuse_option("backward_chunk or backward_warm_up", error);
    if ((unsigned)o->planning >= DPCR_PLANNING_COUNT || !(o->planning_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: planning is %d and planning_seconds %g, wanted a named one and 0 or more",
                          (int)o->planning, o->planning_seconds);
    if (o->confirm != 0) return refuse_option("confirm", error);
    if (o->consume_tape) return refuse_option("consume_tape", error);
    if (o->order < 0 || o->mixed < 0 || o->mixed > 4)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: order is %lld and mixed %d, wanted 0 or more, 0 to 4",
                          (long long)o->order, o->mixed);
    if (o->lock && m == DPCR_METHOD_PARATAA) return refuse_option("lock of parataa", error);
    if (o->damping != 0 || o->block) return refuse_option("damping or block", error);
    if (swept) return DPCR_OK;
    if (o->order || o->mixed) return refuse_option("order or mixed", error);
    if (o->guess) return refuse_option("a guess", error);
    if (o->window) return refuse_option("a window", error);
    return o->step_scale || o->lock ? refuse_option("step_scale or lock", error) : DPCR_OK;
}

// A default that is left open stays 0 where the kernels choose it.
void dpcri_device_defaults(dpcr_solve_options *o, dpcr_dtype dtype, int64_t length, int64_t columns, int processors) {
    const double full = dtype == DPCR_F64 ? DPCR_TOLERANCE_F64 : DPCR_TOLERANCE_F32;
    const double tolerance = is_sweeps(o) ? DPCR_UNCONFIRMED * full : full;
    if (o->atol == 0) o->atol = o->rtol < 0 ? -1 : tolerance;
    if (o->rtol == 0) o->rtol = o->atol < 0 ? -1 : tolerance;
    if (o->atol < 0) o->atol = 0;
    if (o->rtol < 0) o->rtol = 0;
    const bool idle = columns < (int64_t)LANES_OF_A_PROCESSOR * (processors > 0 ? processors : 1);
    if (o->method == DPCR_METHOD_AUTO)
        o->method = idle && length >= FEW_STEPS ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL;
    if (o->max_sweeps == 0) o->max_sweeps = is_sweeps(o) ? 100 : o->method == DPCR_METHOD_OVERLAP ? 3 : 16;
    if (is_sweeps(o) && (o->window == 0 || o->window > length)) o->window = length;
    if (is_sweeps(o) && (o->order == 0 || o->order > length)) o->order = length;
    if (is_sweeps(o) && o->mixed == 0) o->mixed = 2;
}

static dpcr_launch launch_of(const dpcr_solve_plan *plan, int backward) {
    const dpcr_solve_options *o = &plan->options;
    double atol = o->atol, rtol = o->rtol;
    if (!backward && o->method == DPCR_METHOD_OVERLAP) dpcri_join_within(o, &atol, &rtol);
    return (dpcr_launch){.size = sizeof(dpcr_launch),
                         .device = o->device,
                         .method = o->method,
                         .backward = backward,
                         .chunk = o->chunk,
                         .warm_up = o->warm_up,
                         .atol = atol,
                         .rtol = rtol,
                         .max_sweeps = o->max_sweeps,
                         .no_fallback = o->no_fallback,
                         .guess = (int)o->guess,
                         .lock = (int)o->lock,
                         .window = o->window,
                         .step_scale = o->step_scale,
                         .order = o->order,
                         .mixed = o->mixed,
                         .share = plan->device_share[backward != 0],
                         .barrier = plan->device_barrier,
                         .bandwidth = plan->device_bandwidth};
}

// `told`: what the callback says of a step of the loop.
static dpcr_status ask_bytes(dpcr_solve_plan *plan, dpcr_launch *told, dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    plan->workspace = 0;
    for (int backward = 0; backward < 2; backward++) {
        dpcr_launch launch = launch_of(plan, backward);
        dpcr_error refused = {0};
        const dpcr_status status = steps->launch(steps->user, &launch, &refused);
        if (backward && status == DPCR_ERROR_UNSUPPORTED) break;  // enqueue_backward will be told so
        if (status != DPCR_OK) {
            if (error) *error = refused;
            return status;
        }
        if (launch.bytes > plan->workspace) plan->workspace = launch.bytes;
        plan->device_share[backward] = launch.share;
        if (!backward) *told = launch;
    }
    plan->workspace += told_bytes(plan);
    const size_t limit = plan->options.memory_limit;
    if (limit && plan->workspace > limit)
        return dpcri_fail(error, DPCR_ERROR_MEMORY,
                          "solve: needs %zu bytes of workspace on the device, the limit is %zu", plan->workspace,
                          limit);
    return DPCR_OK;
}

void dpcri_device_sentence(dpcr_method asked, dpcr_method method, const char *where, const char *name, char *text,
                           size_t bytes) {
    const char *what = method == DPCR_METHOD_SEQUENTIAL ? "the loop in one launch"
                       : method == DPCR_METHOD_OVERLAP  ? "overlapped chunks in one launch"
                       : method == DPCR_METHOD_PICARD || method == DPCR_METHOD_PARATAA ? "sweeps of launches"
                                                                                       : "all sweeps in one launch";
    snprintf(text, bytes, "%s: %s on %s (%.100s)%s", dpcr_method_name(method), what, where, name,
             asked != DPCR_METHOD_AUTO          ? ", asked for"
             : method == DPCR_METHOD_SEQUENTIAL ? ", for it is short or its sequences keep the device busy"
             : method == DPCR_METHOD_NEWTON     ? ", for its sequences alone leave the device idle, and its steps keep "
                                                  "what they begin with"
                                                : ", for its sequences alone leave the device idle");
}

// Chunks that warm up help a chain that forgets; does this one, for all its steps say?
static bool remembers(const dpcr_solve_plan *plan) {
    dpcr_launch launch = launch_of(plan, 0);
    return plan->steps.launch(plan->steps.user, &launch, NULL) == DPCR_OK && launch.remembers;
}

// Defaults and workspace. AUTO is left to the loop, and told why, where its own choice has no kernel for these steps,
// and of wide ones.
static dpcr_status choose(dpcr_solve_plan *plan, const dpcr_device_info *info, const char **why, dpcr_launch *told,
                          dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    const int processors = info->processors;
    dpcr_solve_options *o = &plan->options, given = *o;
    const bool mixed = steps->jacobian.structure != DPCR_DIAGONAL;
    const int64_t columns = steps->batch * (mixed ? 1 : steps->width);
    dpcr_error refused = {0};
    // A row of wide steps keeps a multiprocessor busy, and whether they forget is not known: the loop, where nobody
    // asks.
    const bool narrow = !mixed || steps->width == 1 || steps->width == 2 || steps->width == 4;
    if (given.method == DPCR_METHOD_AUTO && !narrow) {
        o->method = DPCR_METHOD_SEQUENTIAL;
        *why = "for wide steps go by other ways only where one is asked for";
    }
    if (!narrow && steps->length > 0 && steps->batch > 0)
        plan->device_barrier = dpcri_device_barrier(plan->context, o->device, info);
    plan->device_bandwidth = info->bandwidth;
    dpcri_device_defaults(o, steps->dtype, steps->length, columns, processors);
    if (steps->length == 0 || steps->batch == 0) return DPCR_OK;
    const bool keeps = given.method == DPCR_METHOD_AUTO && o->method == DPCR_METHOD_OVERLAP && remembers(plan);
    if (keeps) {
        const bool few = columns <= (int64_t)NEWTONS_OF_A_PROCESSOR * (processors > 0 ? processors : 1);
        *o = given;
        o->method = few ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL;
        if (!few) *why = "for its steps keep what they begin with, and its sequences are many";
        dpcri_device_defaults(o, steps->dtype, steps->length, columns, processors);
    }
    const dpcr_status status = ask_bytes(plan, told, &refused);
    const bool other =
        status == DPCR_ERROR_UNSUPPORTED || (keeps && o->method == DPCR_METHOD_NEWTON && status == DPCR_ERROR_MEMORY);
    if (!other || given.method != DPCR_METHOD_AUTO) {
        if (status != DPCR_OK && error) *error = refused;
        return status;
    }
    *why = !keeps                        ? "for such steps have no other kernel there"
           : status == DPCR_ERROR_MEMORY ? "for newton wants more memory than the limit"
                                         : "for its steps keep what they begin with, and newton serves no such steps";
    given.method = DPCR_METHOD_SEQUENTIAL;
    *o = given;
    dpcri_device_defaults(o, steps->dtype, steps->length, columns, processors);
    return ask_bytes(plan, told, error);
}

// Where units may be shared: by how many blocks, and what either way is expected to take.
static void tell_share(dpcr_solve_plan *plan, const dpcr_launch *told) {
    const size_t used = strlen(plan->sentence);
    char *const rest = plan->sentence + used;
    const size_t room = sizeof plan->sentence - used;
    if (plan->options.method != DPCR_METHOD_SEQUENTIAL || !(told->shared_seconds > 0)) return;
    if (told->share > 0)
        snprintf(rest, room, "; a row's units shared by %lld blocks: %.3g us a step, by one about %.3g",
                 (long long)told->share, 1e6 * told->shared_seconds, 1e6 * told->alone_seconds);
    else
        snprintf(rest, room, "; a block a row or few: %.3g us a step, shared by several about %.3g",
                 1e6 * told->alone_seconds, 1e6 * told->shared_seconds);
}

dpcr_status dpcri_solve_plan_device(dpcr_solve_plan *plan, dpcr_error *error) {
    dpcr_solve_options *o = &plan->options;
    const dpcr_steps *steps = &plan->steps;
    dpcr_device_info info = {.size = sizeof info};
    dpcr_status status = DPCR_OK;
    char where[32];
    const char *told = NULL;
    const char *why = NULL;
    dpcr_launch loop = {0};
    DPCR_TRY(dpcr_device_describe(o->device, &info, error));
    dpcri_device_text(o->device, where, sizeof where);
    if (!steps->launch)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "solve: a plan for %s, but the chain has no callback launch: its numbers lie on the host",
                            where));
    DPCR_TRY(dpcri_device_check_options(o, steps->launch_sweeps != 0, error));
    DPCR_TRY(dpcri_check_step_scale(o, steps->length, error));
    const dpcr_method asked = o->method;
    if (asked == DPCR_METHOD_AUTO && !empty(plan)) DPCR_TRY(dpcri_device_measured(plan, &info, where, &told, error));
    DPCR_TRY(choose(plan, &info, &why, &loop, error));
    if (plan->candidate_count == 0)
        dpcri_device_sentence(asked, o->method, where, info.name, plan->sentence, sizeof plan->sentence);
    if (steps->launch_sweeps && o->method == DPCR_METHOD_SEQUENTIAL)  // launches of its own a step
        snprintf(plan->sentence, sizeof plan->sentence, "sequential: step by step on %s (%.100s)%s", where, info.name,
                 asked == DPCR_METHOD_AUTO ? ", for auto takes no sweeps there" : ", asked for");
    else if (why)
        snprintf(plan->sentence, sizeof plan->sentence, "sequential: the loop in one launch on %s (%.100s), %s", where,
                 info.name, why);
    tell_share(plan, &loop);
    if (told) {
        const size_t used = strlen(plan->sentence);
        snprintf(plan->sentence + used, sizeof plan->sentence - used, "%s", told);
    }
    o->start = NULL;
    o->size = sizeof *o;
    o->planning = DPCR_PLANNING_ESTIMATE;
    plan->pinned = *o;
    if (o->atol == 0) plan->pinned.atol = -1;
    if (o->rtol == 0) plan->pinned.rtol = -1;
done:
    return status;
}

// ---- running ----

static dpcr_status check_ready(const char *call, const dpcr_solve_plan *plan, const void *workspace, size_t bytes,
                               dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: plan is NULL", call);
    if (!dpcri_solve_on_device(&plan->options))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the plan is of the host, where solve_execute solves",
                          call);
    return dpcri_check_device_workspace(call, workspace, bytes, plan->workspace, error);
}

dpcr_status dpcri_check_device_workspace(const char *call, const void *workspace, size_t bytes, size_t wanted,
                                         dpcr_error *error) {
    if (bytes < wanted || (!workspace && wanted > 0))
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: a workspace of %zu bytes%s, wanted %zu on the device", call,
                          bytes, workspace ? "" : " at NULL", wanted);
    if ((uintptr_t)workspace % PAGE != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the workspace lies %u bytes off, wanted 256-byte alignment",
                          call, (unsigned)((uintptr_t)workspace % PAGE));
    return DPCR_OK;
}

static dpcr_status check_states(const char *call, const dpcr_solve_plan *plan, const char *name,
                                const dpcr_array *array, bool steps_too, dpcr_error *error) {
    const dpcr_steps *s = &plan->steps;
    const int64_t shape[3] = {s->length, s->batch, s->width};
    return dpcri_check_array_on(call, name, array, s->dtype, plan->options.device, steps_too ? 3 : 2,
                                steps_too ? shape : shape + 1, error);
}

static dpcr_status put(const dpcr_solve_plan *plan, dpcr_launch *launch, void *workspace, size_t bytes, void *stream,
                       dpcr_error *error) {
    const size_t own = told_bytes(plan);
    launch->stream = stream;
    launch->outcome = workspace;
    if (is_sweeps(&plan->options))
        launch->evaluations = (int64_t *)((char *)workspace + outcome_bytes(plan->steps.batch));
    launch->workspace = (char *)workspace + own;
    launch->bytes = bytes - own;
    return plan->steps.launch(plan->steps.user, launch, error);
}

dpcr_status dpcr_solve_enqueue(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z, void *workspace,
                               size_t workspace_bytes, void *stream, dpcr_error *error) {
    static const char *const call = "solve_enqueue";
    dpcr_status status = DPCR_OK;
    DPCR_TRY(check_ready(call, plan, workspace, workspace_bytes, error));
    if (z0) DPCR_TRY(check_states(call, plan, "z0", z0, false, error));
    DPCR_TRY(check_states(call, plan, "z", z, true, error));
    DPCR_TRY(dpcri_check_written(call, "z", z, error));
    if (z0) DPCR_TRY(dpcri_check_start(call, z0, z, error));
    if (empty(plan)) return DPCR_OK;
    dpcr_launch launch = launch_of(plan, 0);
    launch.z0 = z0;
    launch.z = z;
    DPCR_TRY(put(plan, &launch, workspace, workspace_bytes, stream, error));
done:
    return status;
}

dpcr_status dpcr_solve_enqueue_backward(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                        const dpcr_array *direct, const dpcr_array *lambda, const dpcr_array *dz0,
                                        void *workspace, size_t workspace_bytes, void *stream, dpcr_error *error) {
    static const char *const call = "solve_enqueue_backward";
    dpcr_status status = DPCR_OK;
    DPCR_TRY(check_ready(call, plan, workspace, workspace_bytes, error));
    if (z0) DPCR_TRY(check_states(call, plan, "z0", z0, false, error));
    DPCR_TRY(check_states(call, plan, "z", z, true, error));
    DPCR_TRY(check_states(call, plan, "direct", direct, true, error));
    DPCR_TRY(check_states(call, plan, "lambda", lambda, true, error));
    if (dz0) DPCR_TRY(check_states(call, plan, "dz0", dz0, false, error));
    DPCR_TRY(dpcri_check_written(call, "lambda", lambda, error));
    DPCR_TRY(dpcri_check_written(call, "dz0", dz0, error));
    if (empty(plan)) return DPCR_OK;
    dpcr_launch launch = launch_of(plan, 1);
    launch.z0 = z0;
    launch.z = z;
    launch.direct = direct;
    launch.adjoint = lambda;
    launch.dz0 = dz0;
    DPCR_TRY(put(plan, &launch, workspace, workspace_bytes, stream, error));
done:
    return status;
}

// ---- the report ----

static dpcr_reason reason_of(const dpcr_solve_options *o, const dpcr_device_outcome *outcome, int64_t length) {
    const bool exact = o->method == DPCR_METHOD_OVERLAP && dpcri_joins_in_bits(o);
    if (o->method == DPCR_METHOD_SEQUENTIAL) return DPCR_REASON_SEQUENTIAL;
    if (is_sweeps(o) && outcome->locked < length)
        return outcome->non_finite ? DPCR_REASON_NONFINITE
               : o->no_fallback    ? DPCR_REASON_NOT_CONVERGED
                                   : DPCR_REASON_FALLBACK;
    if (is_sweeps(o))
        return o->atol == 0 && o->rtol == 0 ? DPCR_REASON_EXACT
               : o->step_scale              ? DPCR_REASON_SCALED
                                            : DPCR_REASON_RESIDUAL_ONLY;
    if (outcome->locked < length && o->no_fallback) return DPCR_REASON_NOT_CONVERGED;
    if (outcome->locked < length)
        return o->method == DPCR_METHOD_NEWTON && outcome->non_finite ? DPCR_REASON_NONFINITE : DPCR_REASON_FALLBACK;
    if (exact) return DPCR_REASON_EXACT;
    const bool told = o->method == DPCR_METHOD_NEWTON || outcome->residual == 0;
    return told && !outcome->non_finite ? DPCR_REASON_CONVERGED : DPCR_REASON_RESIDUAL_ONLY;
}

void dpcri_device_report(const dpcr_solve_options *o, int64_t length, int64_t batch,
                         const dpcr_device_outcome *outcomes, dpcr_solve_report *report) {
    const bool newton = o->method == DPCR_METHOD_NEWTON;
    dpcr_reason worst = DPCR_REASON_SEQUENTIAL;
    bool lost = false;
    report->method = o->method;
    report->scheme = DPCR_SCHEME_AUTO;
    report->sweeps = 0;
    report->evaluations = 0;
    report->residual = report->error_estimate = 0;
    report->history_length = 0;
    for (int64_t b = 0; outcomes && b < batch; b++) {
        const dpcr_device_outcome *at = &outcomes[b];
        const dpcr_reason reason = length > 0 ? reason_of(o, at, length) : DPCR_REASON_EXACT;
        const int sweeps = o->method == DPCR_METHOD_SEQUENTIAL ? 0 : at->sweeps;
        worst = b == 0 ? reason : dpcr_reason_worse(worst, reason);
        if (sweeps > report->sweeps) report->sweeps = sweeps;
        report->evaluations += length * (sweeps > 0 ? sweeps : 1);
        report->residual = fmax(report->residual, at->residual);
        lost = lost || (reason == DPCR_REASON_RESIDUAL_ONLY && at->non_finite);
        if (b >= report->batch_capacity) continue;
        if (report->sequence_reason) report->sequence_reason[b] = reason;
        if (report->sequence_sweeps) report->sequence_sweeps[b] = sweeps;
        if (report->sequence_locked)
            report->sequence_locked[b] = o->method == DPCR_METHOD_SEQUENTIAL ? length : at->locked;
    }
    report->reason = worst;
    report->error_estimate = !lost && !is_sweeps(o) && (newton || report->residual == 0) ? report->residual : -1;
}

dpcr_status dpcr_solve_collect(const dpcr_solve_plan *plan, const void *workspace, size_t workspace_bytes, void *stream,
                               dpcr_solve_report *report, dpcr_error *error) {
    static const char *const call = "solve_collect";
    dpcr_status status = DPCR_OK;
    dpcr_device_outcome *outcomes = NULL;
    int64_t *evaluations = NULL;
    DPCR_TRY(check_ready(call, plan, workspace, workspace_bytes, error));
    DPCR_TRY(dpcri_check_reports(call, report, 1, error));
    const double start = dpcri_seconds();
    const int64_t batch = plan->steps.batch;
    const dpcr_device device = plan->options.device, host = {.type = DPCR_HOST};
    if (batch > 0) {
        outcomes = dpcri_alloc_zero(plan->context, (size_t)batch * sizeof *outcomes);
        if (!outcomes)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %lld outcomes", call, (long long)batch));
        if (!empty(plan))
            DPCR_TRY(
                dpcr_device_copy(host, outcomes, device, workspace, (size_t)batch * sizeof *outcomes, stream, error));
    }
    if (is_sweeps(&plan->options) && !empty(plan)) {
        evaluations = dpcri_alloc_zero(plan->context, (size_t)batch * sizeof *evaluations);
        if (!evaluations)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %lld counts", call, (long long)batch));
        DPCR_TRY(dpcr_device_copy(host, evaluations, device, (const char *)workspace + outcome_bytes(batch),
                                  (size_t)batch * sizeof *evaluations, stream, error));
    }
    DPCR_TRY(dpcr_stream_wait(device, stream, error));
    if (!report) goto done;
    dpcr_solve_report own = {.size = sizeof own};
    DPCRI_COPY_IN(own, report);
    dpcri_device_report(&plan->options, plan->steps.length, batch, outcomes, &own);
    for (int64_t b = 0; evaluations && b < batch; b++) own.evaluations = evaluations[b] + (b ? own.evaluations : 0);
    own.sentence = plan->sentence;
    own.bytes = plan->workspace;
    own.seconds = dpcri_seconds() - start;
    own.seconds_evaluate = own.seconds_linear = own.seconds_finish = 0;
    dpcri_copy_out(report, &own, sizeof own);
done:
    // A copy may be on its way to what is freed.
    if (status != DPCR_OK && outcomes) (void)dpcr_stream_wait(plan->options.device, stream, NULL);
    if (plan) dpcri_free(plan->context, outcomes);
    if (plan) dpcri_free(plan->context, evaluations);
    return status;
}
