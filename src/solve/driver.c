// SPDX-License-Identifier: MIT
// The nonlinear driver: one execute. It checks arguments, lays out the workspace, runs the method, finishes in order
// what the method left, and fills the report.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rt/dev/device.h"
#include "solve/solve_internal.h"

dpcr_status dpcri_callback_status(dpcri_run *run, const char *what, int code) {
    if (code >= 0) return DPCR_OK;
    return dpcri_fail_code(run->error, DPCR_ERROR_CALLBACK, code, "solve: the callback %s aborted with code %d", what,
                           code);
}

static bool same_place(dpcr_device a, dpcr_device b) {
    return a.type == b.type && (a.type == DPCR_HOST || a.id == b.id);
}

static const char *place_text(dpcr_device device, char *text, size_t bytes) {
    return device.type == DPCR_HOST ? "the host" : dpcri_device_text(device, text, bytes);
}

// Where an array of the wanted shape lies, or how, if that is what is wrong with it.
static const char *fault_text(const dpcr_array *array, dpcr_device wanted, char *text, size_t bytes) {
    char where[32];
    text[0] = 0;
    if (!array || array->ndim < 1 || array->ndim > DPCR_MAX_DIMS) return text;
    const int64_t last = array->strides[array->ndim - 1];
    const size_t size = dpcr_dtype_size(array->dtype);
    if (!same_place(array->device, wanted))
        snprintf(text, bytes, " on %s", place_text(array->device, where, sizeof where));
    else if (!array->data)
        snprintf(text, bytes, " at NULL");
    else if (last != 1 && array->shape[array->ndim - 1] != 1)
        snprintf(text, bytes, ", %lld apart in the last dimension", (long long)last);
    else if (wanted.type != DPCR_HOST && size > 0 && (uintptr_t)array->data % size != 0)
        snprintf(text, bytes, " off its numbers' size");
    return text;
}

dpcr_status dpcri_check_array_on(const char *call, const char *name, const dpcr_array *array, dpcr_dtype dtype,
                                 dpcr_device device, int ndim, const int64_t *shape, dpcr_error *error) {
    char got[160], wanted[160], where[32], fault[96];
    const dpcr_array expected = dpcr_array_make(NULL, dtype, ndim, shape);
    const bool host = device.type == DPCR_HOST;
    bool fits = array && array->ndim == ndim && array->dtype == dtype && same_place(array->device, device);
    bool some = true;  // numbers
    for (int d = 0; fits && d < ndim; d++) {
        fits = array->shape[d] == shape[d];
        some = some && shape[d] > 0;
    }
    if (fits && some) fits = array->data && (array->strides[ndim - 1] == 1 || shape[ndim - 1] == 1);
    if (fits && (host || (uintptr_t)array->data % dpcr_dtype_size(dtype) == 0)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s%s, wanted %s on %s, last dimension contiguous%s", call,
                      name, dpcri_array_text(array, got, sizeof got), fault_text(array, device, fault, sizeof fault),
                      dpcri_array_text(&expected, wanted, sizeof wanted), place_text(device, where, sizeof where),
                      fits ? ", aligned" : "");
}

dpcr_status dpcri_check_array(const char *call, const char *name, const dpcr_array *array, dpcr_dtype dtype, int ndim,
                              const int64_t *shape, dpcr_error *error) {
    return dpcri_check_array_on(call, name, array, dtype, (dpcr_device){.type = DPCR_HOST}, ndim, shape, error);
}

dpcr_status dpcri_check_trajectory(const char *call, const dpcr_solve_plan *plan, const dpcr_array *z0,
                                   const dpcr_array *z, const dpcr_array *tape, dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    const int64_t state[3] = {steps->length, steps->batch, steps->width};
    const int64_t taped[3] = {steps->length, steps->batch, steps->tape_values};
    dpcr_status status;
    if (dpcri_solve_on_device(&plan->options))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: the plan is of a device, where solve_enqueue and solve_enqueue_backward run", call);
    DPCR_TRY(dpcri_check_array(call, "z0", z0, steps->dtype, 2, state + 1, error));
    DPCR_TRY(dpcri_check_array(call, "z", z, steps->dtype, 3, state, error));
    if (tape) DPCR_TRY(dpcri_check_array(call, "tape", tape, steps->dtype, 3, taped, error));
    for (int64_t b = 0; steps->ends && b < steps->batch; b++)
        if (steps->ends[b] < 0 || steps->ends[b] > steps->length)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: ends[%lld] is %lld, wanted 0..%lld", call,
                                (long long)b, (long long)steps->ends[b], (long long)steps->length));
done:
    return status;
}

dpcr_status dpcri_check_workspace(const char *call, const dpcr_solve_plan *plan, const void *workspace, size_t bytes,
                                  dpcr_error *error) {
    if (bytes < plan->workspace)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: the workspace has %zu bytes, wanted %zu", call, bytes,
                          plan->workspace);
    if (plan->workspace && ((uintptr_t)workspace % 64 != 0 || !workspace))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the workspace is not aligned to 64 bytes", call);
    return DPCR_OK;
}

dpcr_solve_report *dpcri_report_at(dpcr_solve_report *reports, int64_t i) {
    return reports ? (void *)((char *)reports + (size_t)i * reports->size) : NULL;
}

dpcr_status dpcri_check_reports(const char *call, dpcr_solve_report *reports, int64_t count, dpcr_error *error) {
    for (int64_t i = 0; reports && i < count; i++) {
        const size_t size = dpcri_report_at(reports, i)->size;
        if (size < offsetof(dpcr_solve_report, reason) + sizeof reports->reason || size % _Alignof(dpcr_solve_report))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: the report's size is %zu, wanted sizeof(dpcr_solve_report)", call, size);
        if (size != reports->size)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: report %lld's size is %zu, the first one's %zu", call,
                              (long long)i, size, reports->size);
    }
    return DPCR_OK;
}

static void carve_run(dpcri_run *run, int64_t batch) {
    run->front = dpcri_arena_take(&run->arena, batch, sizeof(int64_t));
    run->exact = dpcri_arena_take(&run->arena, batch, sizeof(int64_t));
    run->work = dpcri_arena_take(&run->arena, batch, sizeof(int64_t));
    run->locked = dpcri_arena_take(&run->arena, batch, sizeof(int64_t));
    run->last_estimate = dpcri_arena_take(&run->arena, batch, sizeof(double));
    run->last_residual = dpcri_arena_take(&run->arena, batch, sizeof(double));
    run->sweeps = dpcri_arena_take(&run->arena, batch, sizeof(int));
    run->reason = dpcri_arena_take(&run->arena, batch, sizeof(int));
    run->residual_only = dpcri_arena_take(&run->arena, batch, 1);
    if (!run->arena.base) return;
    for (int64_t b = 0; b < batch; b++) {
        run->front[b] = run->exact[b] = run->work[b] = run->locked[b] = 0;
        run->sweeps[b] = run->reason[b] = 0;
        run->residual_only[b] = 0;
        run->last_estimate[b] = HUGE_VAL;
        run->last_residual[b] = 0;
    }
}

size_t dpcri_solve_bytes(const dpcr_solve_plan *plan, dpcr_error *error) {
    dpcri_run run = {.plan = plan};
    carve_run(&run, plan->steps.batch);
    dpcri_sweep_space sweep_space;
    dpcri_overlap_space overlap_space;
    if (plan->windows) return run.arena.overflow ? SIZE_MAX : run.arena.used;
    switch (plan->options.method) {
        case DPCR_METHOD_SEQUENTIAL: break;
        case DPCR_METHOD_OVERLAP: dpcri_overlap_carve(plan, &run.arena, &overlap_space); break;
        case DPCR_METHOD_SHOOTING: {
            const size_t more = dpcri_shooting_bytes(plan, error);
            if (more == SIZE_MAX) return SIZE_MAX;
            dpcri_arena_take(&run.arena, (int64_t)more, 1);
            break;
        }
        case DPCR_METHOD_PARAREAL: dpcri_parareal_carve(plan, &run.arena); break;
        case DPCR_METHOD_PARATAA: dpcri_parataa_carve(plan, &run.arena); break;
        default: dpcri_sweep_carve(plan, &run.arena, &sweep_space);
    }
    if (dpcri_confirms(&plan->options)) dpcri_confirm_carve(plan, &run.arena);
    return run.arena.overflow ? SIZE_MAX : run.arena.used;
}

void dpcri_record_sweep(dpcri_run *run, double residual, const double *by_sequence) {
    dpcr_solve_report *report = run->report;
    const int64_t k = report->history_length++, batch = run->plan->steps.batch;
    if (k >= report->history_capacity) return;
    int64_t front = run->plan->steps.length;
    for (int64_t b = 0; b < batch; b++) front = run->front[b] < front ? run->front[b] : front;
    if (report->residual_history) report->residual_history[k] = residual;
    if (report->locked_history) report->locked_history[k] = front;
    for (int64_t b = 0; b < batch && b < report->batch_capacity; b++) {
        const int64_t at = k * report->batch_capacity + b;
        if (report->sequence_residual_history)
            report->sequence_residual_history[at] = by_sequence ? by_sequence[b] : residual;
        if (report->sequence_locked_history) report->sequence_locked_history[at] = run->front[b];
    }
}

dpcr_reason dpcr_reason_worse(dpcr_reason a, dpcr_reason b) {
    static const dpcr_reason order[] = {DPCR_REASON_NONFINITE, DPCR_REASON_NOT_CONVERGED, DPCR_REASON_FALLBACK,
                                        DPCR_REASON_SCALED,    DPCR_REASON_RESIDUAL_ONLY, DPCR_REASON_CONVERGED,
                                        DPCR_REASON_EXACT};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i]) return order[i];
    return DPCR_REASON_SEQUENTIAL;
}

static dpcr_reason worst_reason(const int *reason, int64_t batch) {
    dpcr_reason worst = DPCR_REASON_SEQUENTIAL;
    for (int64_t b = 0; b < batch; b++) worst = dpcr_reason_worse(worst, (dpcr_reason)reason[b]);
    return worst;
}

static void fill_report(const dpcri_run *run) {
    dpcr_solve_report *report = run->report;
    const int64_t batch = run->plan->steps.batch;
    report->reason = worst_reason(run->reason, batch);
    report->method = run->plan->options.method;
    report->scheme = run->plan->options.scheme;
    report->sentence = run->plan->sentence;
    report->residual = run->residual;
    report->error_estimate = run->estimate;
    report->bytes = run->plan->workspace;
    report->sweeps = 0;
    for (int64_t b = 0; b < batch; b++) {
        if (run->sweeps[b] > report->sweeps) report->sweeps = run->sweeps[b];
        if (b >= report->batch_capacity) continue;
        if (report->sequence_reason) report->sequence_reason[b] = run->reason[b];
        if (report->sequence_sweeps) report->sequence_sweeps[b] = run->sweeps[b];
        if (report->sequence_locked) report->sequence_locked[b] = run->locked[b];
    }
}

// Overlap runs the loop itself in chunks, tape and all. Other parallel methods leave no tape while they iterate: one
// more evaluation of every step writes it.
static bool writes_tape(dpcr_method method) {
    return method == DPCR_METHOD_SEQUENTIAL || method == DPCR_METHOD_OVERLAP;
}

typedef struct tape_job {
    dpcri_run *run;
    int64_t piece;  // steps of a task
    _Atomic int code;
} tape_job;

// As many steps as have their states and tape in cache, and tasks enough for many threads. (The plan's own piece counts
// Jacobians, which nobody makes here.)
static int64_t tape_piece_steps(const dpcr_steps *steps) {
    const int64_t real = (int64_t)dpcr_dtype_size(steps->dtype);
    const int64_t each = (steps->batch > 0 ? steps->batch : 1) * (2 * steps->width + steps->tape_values) * real;
    const int64_t fit = each > 0 ? (128 << 10) / each : 1, share = steps->length / 16 + 1;
    const int64_t most = share < 256 ? share : 256;
    return fit < 1 ? 1 : fit < most ? fit : most;
}

static void tape_steps_of(tape_job *job, int64_t first, int64_t count) {
    const dpcr_steps *steps = &job->run->plan->steps;
    if (count <= 0) return;
    const dpcr_array in = dpcri_inputs(&job->run->t, first, count, 0, steps->batch);
    const dpcr_array tape = dpcri_slice(job->run->tape, first, count, 0, steps->batch);
    const dpcr_array lanes = dpcri_as_lanes(&tape);
    const dpcr_span span = dpcri_span(first, count, 1, 1, 0, steps->batch);
    const int code = dpcri_advance(steps, &span, &in, NULL, NULL, &lanes);
    if (code < 0) job->code = code;
}

static void tape_piece(void *argument, int64_t task) {
    tape_job *job = argument;
    const int64_t piece = job->piece, begin = task * piece, length = job->run->plan->steps.length;
    const int64_t end = begin + piece < length ? begin + piece : length;
    if (begin == 0) tape_steps_of(job, 0, 1);
    tape_steps_of(job, begin ? begin : 1, end - (begin ? begin : 1));
}

static dpcr_status write_tape(dpcri_run *run) {
    const dpcr_steps *steps = &run->plan->steps;
    tape_job job = {.run = run, .piece = tape_piece_steps(steps)};
    const int64_t tasks = (steps->length + job.piece - 1) / job.piece;
    const double flops = (double)steps->length * (double)steps->batch * steps->flops;
    if (!dpcri_for_tasks_or_stop(run->plan, flops, tasks, tape_piece, &job))
        return dpcri_fail_stopped(run->error, "solve");
    run->report->evaluations += steps->length * steps->batch;
    return dpcri_callback_status(run, "advance", job.code);
}

static dpcr_status run_method(dpcri_run *run) {
    if (run->plan->windows) return dpcri_solve_windows(run);
    switch (run->plan->options.method) {
        case DPCR_METHOD_SEQUENTIAL: return dpcri_solve_sequential(run);
        case DPCR_METHOD_OVERLAP: return dpcri_solve_overlap(run);
        case DPCR_METHOD_SHOOTING: return dpcri_solve_shooting(run);
        case DPCR_METHOD_PARAREAL: return dpcri_solve_parareal(run);
        case DPCR_METHOD_PARATAA: return dpcri_solve_parataa(run);
        default: return dpcri_solve_sweeps(run);
    }
}

double dpcri_lap(dpcri_run *run) {
    if (run->clock < 0) return 0;
    const double last = run->clock;
    run->clock = dpcri_seconds();
    return run->clock - last;
}

static bool is_finite(const dpcri_run *run, int64_t b) {
    const dpcr_steps *steps = &run->plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    for (int64_t l = 0; l < steps->length; l++) {
        const void *z = dpcri_outputs(&run->t, l, 1, b, 1).data;
        if (!isfinite(ops->distance(z, z, steps->width))) return false;
    }
    return true;
}

// A sweep found no finite number behind a locked state, which may be off by the tolerance: the loop may have one there.
static void judge_nonfinite(dpcri_run *run) {
    const bool forbidden = run->plan->options.no_fallback;
    for (int64_t b = 0; b < run->plan->steps.batch; b++)
        if (run->reason[b] == DPCR_REASON_NONFINITE && is_finite(run, b))
            run->reason[b] = forbidden ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
}

// Sequences that the method did not bring to the end: in order, unless that was forbidden.
static dpcr_status finish(dpcri_run *run) {
    const int64_t length = run->plan->steps.length;
    bool any = false;
    for (int64_t b = 0; b < run->plan->steps.batch; b++) {
        const bool left_alone = run->reason[b] == DPCR_REASON_NOT_CONVERGED || run->reason[b] == DPCR_REASON_SEQUENTIAL;
        if (run->reason[b] == DPCR_REASON_NOT_CONVERGED) run->locked[b] = run->front[b];
        if (left_alone) run->front[b] = length;
        any |= run->front[b] < length;
    }
    if (!any) return DPCR_OK;
    dpcri_lap(run);
    const dpcr_status status = dpcri_finish_in_order(run, DPCR_REASON_FALLBACK);
    if (status == DPCR_OK) judge_nonfinite(run);
    run->report->seconds_finish += dpcri_lap(run);
    return status;
}

dpcr_status dpcr_solve_execute(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                               const dpcr_array *tape, void *workspace, size_t workspace_bytes,
                               dpcr_solve_report *report, dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: no plan given");
    dpcr_status status;
    dpcr_solve_report own = {.size =
                                 sizeof own};  // as far as the caller's reaches, its places for arrays; at the end back
    if (report) DPCRI_COPY_IN(own, report);
    const double start = report ? dpcri_seconds() : -1;
    DPCR_TRY(dpcri_check_trajectory("solve", plan, z0, z, tape, error));
    DPCR_TRY(dpcri_check_start("solve", z0, z, error));
    DPCR_TRY(dpcri_check_written("solve", "z", z, error));
    DPCR_TRY(dpcri_check_written("solve", "tape", tape, error));
    DPCR_TRY(dpcri_check_workspace("solve", plan, workspace, workspace_bytes, error));
    DPCR_TRY(dpcri_check_reports("solve", report, 1, error));
    dpcri_run run = {.plan = plan,
                     .t = {*z0, *z},
                     .tape = tape,
                     .report = &own,
                     .error = error,
                     .estimate = -1,
                     .clock = start,
                     .arena = {.base = workspace, .size = workspace_bytes}};
    run.report->history_length = 0;
    run.report->evaluations = 0;
    run.report->seconds_evaluate = run.report->seconds_linear = run.report->seconds_finish = 0;
    carve_run(&run, plan->steps.batch);
    if (plan->steps.length > 0 && plan->steps.batch > 0) {
        DPCR_TRY(run_method(&run));
        DPCR_TRY(dpcri_confirm(&run));
        DPCR_TRY(finish(&run));
        if (tape && !writes_tape(plan->options.method)) DPCR_TRY(write_tape(&run));
    }
    for (int64_t b = 0; plan->steps.length == 0 && b < plan->steps.batch; b++) run.reason[b] = DPCR_REASON_EXACT;
    fill_report(&run);
    if (report) {
        own.seconds = dpcri_seconds() - start;
        dpcri_copy_out(report, &own, sizeof own);
    }
done:
    return status;
}
