// SPDX-License-Identifier: MIT
// Chains over ranks by overlap: run-ups over the steps that the caller has of the neighbours, plans for the rank's own,
// and solve/relay.c between them.
#include <string.h>

#include "solve/relay.h"

enum { SWEEPS = 3 };

typedef struct job {
    const char *function;
    const dpcr_solve_plan *plan;
    dpcr_solve_ranks ranks;
    dpcri_carried carried;
    dpcri_relay relay;
    dpcr_array states;  // [B][w]: the relay's start or end
    const dpcr_array *start, *z, *tape, *direct, *last, *lambda;
    void *workspace;
    size_t bytes;
    bool again, back;
    void *memory;  // start, end and guess
} job;

static dpcr_context *context_of(const job *j) { return j->plan->context; }
static const dpcr_steps *steps_of(const job *j) { return &j->plan->steps; }

static size_t state_bytes(const job *j) {
    return (size_t)(steps_of(j)->batch * steps_of(j)->width) * dpcr_dtype_size(steps_of(j)->dtype);
}

static dpcr_array state(const job *j, void *data) {
    const int64_t shape[] = {steps_of(j)->batch, steps_of(j)->width};
    return dpcr_array_make(data, steps_of(j)->dtype, 2, shape);
}

static void copy_state(const job *j, const dpcr_array *from, const dpcr_array *to) {
    const size_t size = dpcr_dtype_size(from->dtype);
    for (int64_t b = 0; b < steps_of(j)->batch; b++)
        memcpy((char *)to->data + (size_t)(b * to->strides[0]) * size,
               (const char *)from->data + (size_t)(b * from->strides[0]) * size, (size_t)steps_of(j)->width * size);
}

// ---- arguments ----

static dpcr_status check_state(const job *j, const char *name, const dpcr_array *array, bool optional,
                               dpcr_error *error) {
    const int64_t shape[] = {steps_of(j)->batch, steps_of(j)->width};
    if (!array && optional) return DPCR_OK;
    return dpcri_check_array(j->function, name, array, steps_of(j)->dtype, 2, shape, error);
}

static dpcr_status check_run_up(const job *j, const char *name, const dpcr_steps *steps, dpcr_error *error) {
    if (!steps || (steps->size >= offsetof(dpcr_steps, identity) && steps->batch == steps_of(j)->batch &&
                   steps->width == steps_of(j)->width && steps->dtype == steps_of(j)->dtype))
        return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is of another batch, width or dtype than the plan's steps",
                      j->function, name);
}

static dpcr_status check(job *j, dpcr_error *error) {
    dpcr_status status;
    const dpcr_solve_ranks *r = &j->ranks;
    DPCR_TRY(check_run_up(j, "before", r->before, error));
    DPCR_TRY(check_run_up(j, "after", r->after, error));
    DPCR_TRY(check_state(j, "start", j->start, false, error));
    DPCR_TRY(check_state(j, "last", j->last, true, error));
    if (r->max_sweeps < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: max_sweeps is %d, wanted 0 or more", j->function,
                          r->max_sweeps);
    if (j->back && j->plan->options.consume_tape)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: consume_tape, but a range may be gone back over twice",
                          j->function);
    if (j->back && steps_of(j)->gradient && !r->clear)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: there is a gradient and no `clear`", j->function);
done:
    return status;
}

static dpcr_status open_job(job *j, const dpcr_solve_ranks *given, dpcr_error *error) {
    if (!j->plan || !given || given->size < offsetof(dpcr_solve_ranks, deadline))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a plan, and ranks with their size set are wanted",
                          j->function);
    DPCRI_COPY_IN(j->ranks, given);
    dpcr_status status = dpcri_carry(&j->carried, j->ranks.transport, j->ranks.deadline, j->function, error);
    if (status != DPCR_OK) return status;
    status = check(j, error);
    const dpcr_solve_options *o = &j->plan->options;
    const size_t bytes = (state_bytes(j) + 63) / 64 * 64;
    if (status == DPCR_OK && !(j->memory = dpcri_alloc_zero(context_of(j), 3 * bytes + 64)))
        status = dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for boundaries", j->function);
    j->relay = (dpcri_relay){.comm = &j->carried.comm,
                             .reversed = j->back,
                             .dtype = steps_of(j)->dtype,
                             .rows = steps_of(j)->batch,
                             .width = steps_of(j)->width,
                             .atol = o->atol,
                             .rtol = o->rtol,
                             .scaled = j->back,
                             .max_sweeps = j->ranks.max_sweeps ? j->ranks.max_sweeps : SWEEPS,
                             .no_fallback = o->no_fallback,
                             .start = j->memory,
                             .end = (char *)j->memory + bytes,
                             .guess = (char *)j->memory + 2 * bytes,
                             .user = j};
    return dpcri_agree(&j->carried.comm, status, error);
}

// ---- run-ups ----

typedef struct run_up {
    dpcr_solve_plan *plan;
    void *z, *workspace;
    size_t bytes;
} run_up;

static void close_run_up(const job *j, run_up *u) {
    dpcri_free(context_of(j), u->z);
    dpcri_free(context_of(j), u->workspace);
    dpcr_solve_plan_destroy(u->plan);
}

static dpcr_array run_up_states(const dpcr_steps *steps, void *z) {
    return dpcr_array_make(z, steps->dtype, 3, (const int64_t[]){steps->length, steps->batch, steps->width});
}

// The steps by the loop from `from`, all states kept.
static dpcr_status run_over(const job *j, const dpcr_steps *given, const dpcr_array *from, run_up *u,
                            dpcr_error *error) {
    dpcr_status status;
    dpcr_steps steps = {.size = sizeof steps};
    DPCRI_COPY_IN(steps, given);
    const dpcr_solve_options loop = {
        .size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    int64_t numbers = 0;
    steps.gradient = NULL;
    DPCR_TRY(dpcr_solve_plan_create(context_of(j), &steps, &loop, &u->plan, error));
    u->bytes = dpcr_solve_plan_workspace(u->plan);
    const bool fits = dpcri_mul(steps.length, (int64_t)state_bytes(j), &numbers);
    u->z = fits ? dpcri_alloc(context_of(j), (size_t)numbers + 64) : NULL;
    u->workspace = dpcri_alloc(context_of(j), u->bytes + 64);
    if (!u->z || !u->workspace)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for a run-up of %lld steps", j->function,
                            (long long)steps.length));
    const dpcr_array z = run_up_states(&steps, u->z);
    DPCR_TRY(dpcr_solve_execute(u->plan, from, &z, NULL, u->workspace, u->bytes, NULL, error));
done:
    return status;
}

static dpcr_status run_up_forward(const job *j, const dpcr_array *z0, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    run_up u = {0};
    const dpcr_array start = state(j, j->relay.start), guess = state(j, (void *)(uintptr_t)j->relay.guess);
    const dpcr_steps *before = j->ranks.before;
    copy_state(j, z0, &start);
    copy_state(j, z0, &guess);
    if (!before || before->length == 0 || j->carried.comm.rank == 0) return DPCR_OK;
    DPCR_TRY(run_over(j, before, z0, &u, error));
    memcpy(j->relay.start, (char *)u.z + (size_t)(before->length - 1) * state_bytes(j), state_bytes(j));
done:
    close_run_up(j, &u);
    return status;
}

static dpcr_status run_up_back(const job *j, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    run_up u = {0};
    const dpcr_steps *after = j->ranks.after, *own = steps_of(j);
    const dpcr_array end = state(j, j->relay.start);
    if (j->carried.comm.rank + 1 == j->carried.comm.ranks) {
        if (j->last) copy_state(j, j->last, &end);
        return DPCR_OK;
    }
    if (!after || after->length == 0) return DPCR_OK;
    dpcr_array from = *j->start;
    if (own->length > 0) {
        from = dpcri_slice(j->z, own->length - 1, 1, 0, own->batch);
        from.ndim = 2;
        from.shape[0] = own->batch, from.shape[1] = own->width;
        from.strides[0] = j->z->strides[1], from.strides[1] = j->z->strides[2];
    }
    DPCR_TRY(run_over(j, after, &from, &u, error));
    const dpcr_array z = run_up_states(after, u.z);
    DPCR_TRY(dpcr_solve_backward(u.plan, &from, &z, NULL, j->ranks.after_direct, NULL, NULL, &end, u.workspace, u.bytes,
                                 NULL, error));
done:
    close_run_up(j, &u);
    return status;
}

// ---- the rank's own steps ----

static dpcr_status run_forward(void *user, dpcr_error *error) {
    job *j = user;
    const dpcr_array start = state(j, j->relay.start), end = state(j, j->relay.end);
    if (steps_of(j)->length == 0) {
        copy_state(j, &start, &end);
        return DPCR_OK;
    }
    dpcr_solve_report own = {.size = sizeof own};
    const dpcr_status status = dpcr_solve_execute(j->plan, &start, j->z, j->tape, j->workspace, j->bytes, &own, error);
    if (status != DPCR_OK) return status;
    dpcri_relay_tell(&j->relay, &own);
    dpcr_array z = *j->z;
    z.data = (char *)z.data + (size_t)((steps_of(j)->length - 1) * z.strides[0]) * dpcr_dtype_size(z.dtype);
    z.strides[0] = z.strides[1];
    copy_state(j, &z, &end);
    return DPCR_OK;
}

static dpcr_status run_back(void *user, dpcr_error *error) {
    job *j = user;
    const dpcr_array start = state(j, j->relay.start), end = state(j, j->relay.end);
    if (steps_of(j)->length == 0) {
        copy_state(j, &start, &end);
        return DPCR_OK;
    }
    if (j->again && j->ranks.clear) j->ranks.clear(j->ranks.clear_user);
    j->again = true;
    dpcr_solve_report own = {.size = sizeof own};
    const dpcr_status status = dpcr_solve_backward(j->plan, j->start, j->z, j->tape, j->direct, &start, j->lambda, &end,
                                                   j->workspace, j->bytes, &own, error);
    if (own.reason == DPCR_REASON_RESIDUAL_ONLY) own.error_estimate = -1;
    if (status == DPCR_OK) dpcri_relay_tell(&j->relay, &own);
    return status;
}

dpcr_status dpcr_solve_execute_distributed(const dpcr_solve_plan *plan, const dpcr_solve_ranks *ranks,
                                           const dpcr_array *z0, const dpcr_array *z, const dpcr_array *tape,
                                           const dpcr_array *start, void *workspace, size_t workspace_bytes,
                                           dpcr_solve_report *report, dpcr_error *error) {
    job j = {.function = "solve_execute_distributed",
             .plan = plan,
             .start = start,
             .z = z,
             .tape = tape,
             .workspace = workspace,
             .bytes = workspace_bytes};
    dpcr_status status = open_job(&j, ranks, error);
    if (status != DPCR_OK) goto done;
    status = check_state(&j, "z0", z0, false, error);
    if (status == DPCR_OK) status = dpcri_check_trajectory(j.function, plan, z0, z, tape, error);
    if (status == DPCR_OK) status = dpcri_check_start(j.function, z0, z, error);
    if (status == DPCR_OK) status = dpcri_check_written(j.function, "z", z, error);
    if (status == DPCR_OK) status = dpcri_check_written(j.function, "tape", tape, error);
    if (status == DPCR_OK) status = dpcri_check_reports(j.function, report, 1, error);
    if (status == DPCR_OK) status = run_up_forward(&j, z0, error);
    DPCR_TRY(dpcri_agree(&j.carried.comm, status, error));
    j.relay.run = run_forward;
    DPCR_TRY(dpcri_relay_run(&j.relay, plan->context, error));
    const dpcr_array came = state(&j, j.relay.start);
    copy_state(&j, &came, start);
    dpcri_relay_report(&j.relay, plan->steps.length * plan->steps.batch, report);
done:
    if (j.memory) dpcri_free(plan->context, j.memory);
    return status;
}

dpcr_status dpcr_solve_backward_distributed(const dpcr_solve_plan *plan, const dpcr_solve_ranks *ranks,
                                            const dpcr_array *start, const dpcr_array *z, const dpcr_array *tape,
                                            const dpcr_array *direct, const dpcr_array *last, const dpcr_array *lambda,
                                            const dpcr_array *dz0, void *workspace, size_t workspace_bytes,
                                            dpcr_solve_report *report, dpcr_error *error) {
    job j = {.function = "solve_backward_distributed",
             .plan = plan,
             .start = start,
             .z = z,
             .tape = tape,
             .direct = direct,
             .last = last,
             .lambda = lambda,
             .workspace = workspace,
             .bytes = workspace_bytes,
             .back = true};
    dpcr_status status = open_job(&j, ranks, error);
    if (status != DPCR_OK) goto done;
    status = check_state(&j, "dz0", dz0, true, error);
    if (status == DPCR_OK) status = dpcri_check_trajectory(j.function, plan, start, z, tape, error);
    if (status == DPCR_OK) status = dpcri_check_written(j.function, "lambda", lambda, error);
    if (status == DPCR_OK) status = dpcri_check_reports(j.function, report, 1, error);
    if (status == DPCR_OK) status = run_up_back(&j, error);
    DPCR_TRY(dpcri_agree(&j.carried.comm, status, error));
    j.relay.run = run_back;
    j.relay.guess = NULL;
    DPCR_TRY(dpcri_relay_run(&j.relay, plan->context, error));
    const dpcr_array out = state(&j, j.relay.end);
    if (dz0) copy_state(&j, &out, dz0);
    dpcri_relay_report(&j.relay, plan->steps.length * plan->steps.batch, report);
done:
    if (j.memory) dpcri_free(plan->context, j.memory);
    return status;
}
