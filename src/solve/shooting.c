// SPDX-License-Identifier: MIT
// Multiple shooting: Newton on the boundaries of chunks. With n steps a chunk, S_c the state before chunk c and Phi_c
// the n steps of chunk c, the boundaries are a chain of their own, S_{c+1} = Phi_c(S_c), with Jacobian M_c = J_{cn+n-1}
// ... J_{cn}. So shooting is the sweep driver on the coarse chain of K = L / n steps (window, lock, fallback and all),
// then one pass of the loop inside all chunks at once. Inside a chunk the residual is zero; only K defects exist, each
// of which counts for the most that its chunk makes of it. Work a sweep: L evaluations, L compositions. Depth: n + that
// of the coarse scheme. Wins where a chain does not forget, the width is small and lanes are idle. Source: Bock and
// Plitt 1984 (direct multiple shooting); docs/math/shooting.md.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "solve/solve_internal.h"

// The coarse chain's callbacks work on these.
typedef struct coarse {
    const dpcr_solve_plan *fine;
    int64_t n;       // fine steps a coarse one
    int64_t piece;   // lanes a call of linearise has at most
    double *growth;  // [coarse steps + 1][B] of the coarse plan
    void *terms;     // [coarse steps][B][w] of the coarse plan; NULL: f has no kinks
    void *scratch;   // [DPCRI_EVALUATION_TASKS] of states [n][B][w], Jacobians [n][B][values], product [B][values]
    size_t slot_bytes;
    _Atomic int64_t *rest;  // counted: steps behind the last whole chunk, which are made with it
} coarse;

static int64_t chunk_steps(const dpcr_solve_plan *plan) {
    const int64_t length = plan->steps.length, wanted = plan->options.chunk ? plan->options.chunk : 16;
    return wanted < length ? wanted : length > 0 ? length : 1;
}

// n coarse steps of `lanes` lanes, only their last states.
static int coarse_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                          const dpcr_array *last, const dpcr_array *tape) {
    const coarse *c = user;
    const dpcr_steps *fine = &c->fine->steps;
    dpcr_array from = *in;
    int code = 0;
    (void)tape;
    for (int64_t k = 0; k < span->steps && code == 0; k++) {
        dpcr_span inner =
            dpcri_span((span->first + k) * c->n, span->lanes, span->stride * c->n, c->n, span->row, span->rows);
        inner.active = span->active;
        dpcr_array to;
        if (states) {  // [lanes][steps][rows][w], step k
            to = *states;
            to.data = (char *)states->data + k * states->strides[1] * (int64_t)dpcr_dtype_size(states->dtype);
            to.ndim = 3;
            to.shape[1] = states->shape[2], to.strides[1] = states->strides[2];
            to.shape[2] = states->shape[3], to.strides[2] = states->strides[3];
        } else {
            to = *last;
        }
        code = dpcri_advance(fine, &inner, &from, NULL, &to, NULL);
        from = to;
    }
    return code;
}

typedef struct product {
    dpcr_array states, jacobians, ping, pong;
} product;

static product slot_arrays(const coarse *c, int64_t slot, int64_t rows) {
    const dpcr_steps *fine = &c->fine->steps;
    const int64_t values = dpcr_transition_values(&fine->jacobian);
    const size_t real = dpcr_dtype_size(fine->dtype);
    char *base = (char *)c->scratch + (size_t)slot * c->slot_bytes;
    product p;
    const int64_t states[3] = {c->n, rows, fine->width}, jacobians[3] = {c->n, rows, values},
                  one[3] = {1, rows, values};
    p.states = dpcr_array_make(base, fine->dtype, 3, states);
    base += (size_t)(c->n * fine->batch * fine->width) * real;
    p.jacobians = dpcr_array_make(base, fine->dtype, 3, jacobians);
    base += (size_t)(c->n * fine->batch * values) * real;
    p.ping = dpcr_array_make(base, fine->dtype, 3, one);
    base += (size_t)(fine->batch * values) * real;
    p.pong = dpcr_array_make(base, fine->dtype, 3, one);
    return p;
}

// Steps [first, first + count) from `start`: M = J_{count-1} ... J_0 at their states, which stay in `p`. What is off by
// one at the start is off by growth[row] at most, in units of max(1, |z|), in the first `within` of them.
static int run_chunk(const coarse *c, const dpcr_span *span, const product *p, int64_t first, int64_t count,
                     const dpcr_array *start, int64_t within, double *growth, dpcr_array *m) {
    const dpcr_steps *fine = &c->fine->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(fine->dtype);
    const int64_t values = dpcr_transition_values(&fine->jacobian);
    const int64_t run = fine->jacobian.structure == DPCR_SCALAR ? 1 : values / fine->width;
    const dpcr_array whole = dpcri_slice(&p->states, 0, count, 0, span->rows), states = dpcri_as_steps(&whole);
    dpcr_span loop = dpcri_span(first, 1, 1, count, span->row, span->rows);
    loop.active = span->active;
    int code = dpcri_advance(fine, &loop, start, &states, NULL, NULL);
    if (code) return code;
    dpcr_span each = dpcri_span(first, 1, 1, 1, span->row, span->rows);
    each.active = span->active;
    dpcr_array j = dpcri_slice(&p->jacobians, 0, 1, 0, span->rows);
    code = fine->linearise(fine->user, &each, start, NULL, &j);
    if (code == 0 && count > 1) {
        each = dpcri_span(first + 1, count - 1, 1, 1, span->row, span->rows);
        each.active = span->active;
        const dpcr_array before = dpcri_slice(&p->states, 0, count - 1, 0, span->rows);
        j = dpcri_slice(&p->jacobians, 1, count - 1, 0, span->rows);
        code = fine->linearise(fine->user, &each, &before, NULL, &j);
    }
    if (code) return code;
    dpcr_array next = p->ping;
    *m = dpcri_slice(&p->jacobians, 0, 1, 0, span->rows);
    for (int64_t b = 0; b < span->rows; b++) growth[b] = 0;
    for (int64_t k = 0; k < count; k++) {
        if (k > 0) {
            const dpcr_array later = dpcri_slice(&p->jacobians, k, 1, 0, span->rows);
            if (dpcr_transition_compose(&fine->jacobian, &later, m, &next, NULL) != DPCR_OK) return -1;
            *m = next;
            next = next.data == p->ping.data ? p->pong : p->ping;
        }
        const dpcr_array state = dpcri_slice(&p->states, k, 1, 0, span->rows);
        if (k < within) ops->grow(m, run, &state, growth);
    }
    for (int64_t b = 0; b < span->rows; b++) {
        const dpcr_array row = dpcri_slice(start, 0, 1, b, 1);
        double size;
        ops->size(&row, &size);
        growth[b] = fmin(fmax(1, growth[b] * size), DBL_MAX);
    }
    return 0;
}

// What rounding goes by in a chunk's last step, of which M has nothing left where the chunk forgot its start.
static void note_terms(const coarse *c, const dpcr_span *span, const product *p, int64_t chunk,
                       const dpcr_array *start) {
    const dpcr_steps *fine = &c->fine->steps;
    const int64_t shape[3] = {fine->length / c->n, fine->batch, fine->width};
    const dpcr_array whole = dpcr_array_make(c->terms, fine->dtype, 3, shape);
    const dpcr_array to = dpcri_slice(&whole, chunk, 1, span->row, span->rows);
    const dpcr_array j = dpcri_slice(&p->jacobians, c->n - 1, 1, 0, span->rows);
    const dpcr_array before = c->n > 1 ? dpcri_slice(&p->states, c->n - 2, 1, 0, span->rows) : *start;
    dpcri_row_ops_of(fine->dtype)->terms(&fine->jacobian, &j, &before, &to);
}

// Lane `lane`: the chunk and its M; of the last, what follows it.
static int chunk_product(const coarse *c, const dpcr_span *span, int64_t lane, const dpcr_array *in,
                         const dpcr_array *f, const dpcr_array *a) {
    const dpcr_steps *fine = &c->fine->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(fine->dtype);
    const product p = slot_arrays(c, (span->first / c->piece) % DPCRI_EVALUATION_TASKS, span->rows);
    const int64_t chunk = span->first + lane, end_of_all = (chunk + 1) * c->n, left = fine->length - end_of_all;
    const dpcr_array start = dpcri_slice(in, lane, 1, 0, span->rows);
    double *const growth = c->growth + chunk * fine->batch + span->row;
    dpcr_array m;
    int code = run_chunk(c, span, &p, chunk * c->n, c->n, &start, c->n - 1, growth, &m);
    if (code) return code;
    if (c->terms) note_terms(c, span, &p, chunk, &start);
    const dpcr_array end = dpcri_slice(&p.states, c->n - 1, 1, 0, span->rows);
    if (f) {
        const dpcr_array out = dpcri_slice(f, lane, 1, 0, span->rows);
        ops->copy(&end, &out);
    }
    if (a) {
        const dpcr_array out = dpcri_slice(a, lane, 1, 0, span->rows);
        ops->copy(&m, &out);
    }
    if (left <= 0 || left >= c->n) return 0;
    for (int64_t b = 0; b < span->rows; b++)
        if (!span->active || span->active[b]) atomic_fetch_add_explicit(c->rest, left, memory_order_relaxed);
    return run_chunk(c, span, &p, end_of_all, left, &end, left, growth + fine->batch, &m);
}

static int coarse_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                            const dpcr_array *a) {
    int code = 0;
    for (int64_t lane = 0; lane < span->lanes && code == 0; lane++) code = chunk_product(user, span, lane, in, f, a);
    return code;
}

// The plan of the coarse chain, on the caller's stack; `c` must outlive it.
static dpcr_status coarse_plan(const dpcr_solve_plan *plan, coarse *c, dpcr_solve_plan *made, dpcr_error *error) {
    const dpcr_steps *fine = &plan->steps;
    *c = (coarse){.fine = plan, .n = chunk_steps(plan)};
    *made = (dpcr_solve_plan){.context = plan->context, .options = plan->options};
    made->options.method = DPCR_METHOD_NEWTON;
    if (made->options.guess == DPCR_GUESS_GIVEN) made->options.guess = DPCR_GUESS_ZERO;  // that guess is of fine states
    made->options.chunk = 0;
    made->steps = (dpcr_steps){.size = sizeof made->steps,
                               .user = c,
                               .length = fine->length / c->n,
                               .batch = fine->batch,
                               .width = fine->width,
                               .dtype = fine->dtype,
                               .concurrent = fine->concurrent,
                               .jacobian = fine->jacobian,
                               .flops = fine->flops * (double)c->n,
                               .jacobian_flops = fine->jacobian_flops * (double)c->n,
                               .advance = coarse_advance,
                               .linearise = coarse_linearise,
                               .kinks = fine->kinks};
    made->steps_within = c->n;
    const int64_t window = (plan->window + c->n - 1) / c->n;
    made->window = window < made->steps.length ? window : made->steps.length;
    const dpcr_status status = dpcri_plan_derive(made, error);
    if (status != DPCR_OK) return status;
    // A chunk is work enough for one call, and its Jacobians stay in cache. Pieces of one step, by tasks that take
    // every DPCRI_EVALUATION_TASKS-th: no two at work share a slot of scratch.
    made->piece = 1;
    made->keep_pieces = true;
    c->piece = made->piece;
    const int64_t values = dpcr_transition_values(&fine->jacobian);
    bool overflow = false;
    const size_t numbers = dpcri_bytes(fine->batch, c->n * (fine->width + values) + 2 * values,
                                       (int64_t)dpcr_dtype_size(fine->dtype), &overflow);
    if (overflow) return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "solve: shooting's scratch does not fit any size");
    c->slot_bytes = (numbers + 63) / 64 * 64;
    return DPCR_OK;
}

// Takes c's memory, and the boundaries.
static void carve(const dpcr_solve_plan *inner, coarse *c, dpcri_arena *arena, void **boundaries) {
    int64_t numbers = 0;
    if (!dpcri_mul(inner->steps.length * inner->steps.batch, inner->steps.width, &numbers)) arena->overflow = true;
    *boundaries = dpcri_arena_take(arena, numbers, dpcr_dtype_size(inner->steps.dtype));
    c->scratch = dpcri_arena_take(arena, DPCRI_EVALUATION_TASKS, c->slot_bytes);
    c->growth = dpcri_arena_take(arena, (inner->steps.length + 1) * inner->steps.batch, sizeof *c->growth);
    c->terms = NULL;
    if (inner->steps.kinks != DPCR_KINKS_NONE && dpcr_transition_values(&inner->steps.jacobian) > 0)
        c->terms = dpcri_arena_take(arena, numbers, dpcr_dtype_size(inner->steps.dtype));
}

size_t dpcri_shooting_bytes(const dpcr_solve_plan *plan, dpcr_error *error) {
    coarse c;
    dpcr_solve_plan inner;
    dpcri_arena arena = {0};
    void *boundaries;
    if (coarse_plan(plan, &c, &inner, error) != DPCR_OK) return SIZE_MAX;
    carve(&inner, &c, &arena, &boundaries);
    dpcri_sweep_space space;
    dpcri_sweep_carve(&inner, &arena, &space);
    return arena.overflow ? SIZE_MAX : arena.used;
}

typedef struct fill_job {
    dpcri_run *run;
    const coarse *c;
    dpcri_trajectory boundaries;
    int64_t chunks;
    _Atomic int code;
} fill_job;

// The loop inside chunks [first, first + count), from the converged boundaries.
static void fill_lanes(fill_job *job, int64_t first, int64_t count) {
    if (count <= 0) return;
    const dpcr_steps *fine = &job->run->plan->steps;
    const dpcr_array in = dpcri_inputs(&job->boundaries, first, count, 0, fine->batch);
    const dpcr_array z = dpcri_outputs(&job->run->t, first * job->c->n, job->c->n, 0, fine->batch);
    dpcr_array states = dpcri_as_steps(&z);
    states.shape[0] = count;
    states.strides[0] = job->c->n * z.strides[0];
    const dpcr_span span = dpcri_span(first * job->c->n, count, job->c->n, job->c->n, 0, fine->batch);
    const int code = dpcri_advance(fine, &span, &in, &states, NULL, NULL);
    if (code < 0) job->code = code;
}

static void fill_chunks(void *argument, int64_t task) {
    fill_job *job = argument;
    const int64_t lanes = 16, first = task * lanes, end = first + lanes < job->chunks ? first + lanes : job->chunks;
    if (first == 0) fill_lanes(job, 0, 1);
    fill_lanes(job, first ? first : 1, end - (first ? first : 1));
}

// All chunks, then the steps after the last whole chunk in order.
static dpcr_status fill_states(fill_job *job) {
    const dpcr_steps *fine = &job->run->plan->steps;
    const int64_t tasks = (job->chunks + 15) / 16;
    const double flops = (double)fine->length * (double)fine->batch * fine->flops;
    if (!dpcri_for_tasks_or_stop(job->run->plan, flops, tasks, fill_chunks, job))
        return dpcri_fail_stopped(job->run->error, "solve");
    const dpcr_status status = dpcri_callback_status(job->run, "advance", job->code);
    if (status != DPCR_OK) return status;
    job->run->report->evaluations += job->chunks * job->c->n * fine->batch;
    return dpcri_run_loop(job->run, job->chunks * job->c->n, fine->length, 0, fine->batch);
}

// A front that is complete includes the remainder.
static int64_t in_fine_steps(const coarse *c, int64_t front) {
    const int64_t length = c->fine->steps.length;
    return front >= length / c->n ? length : front * c->n;
}

static void tell_in_fine_steps(const coarse *c, const dpcr_solve_report *report) {
    const int64_t room = report->batch_capacity, batch = c->fine->steps.batch, told = room < batch ? room : batch;
    for (int64_t k = 0; k < report->history_length && k < report->history_capacity; k++) {
        int64_t *all = report->locked_history, *each = report->sequence_locked_history;
        if (all) all[k] = in_fine_steps(c, all[k]);
        for (int64_t b = 0; each && b < told; b++) each[k * room + b] = in_fine_steps(c, each[k * room + b]);
    }
}

dpcr_status dpcri_solve_shooting(dpcri_run *run) {
    coarse c;
    dpcr_solve_plan inner;
    void *boundaries;
    dpcr_status status = coarse_plan(run->plan, &c, &inner, run->error);
    if (status != DPCR_OK) return status;
    carve(&inner, &c, &run->arena, &boundaries);
    _Atomic int64_t rest = 0;
    c.rest = &rest;
    inner.growth = c.growth, inner.terms = c.terms;
    for (int64_t k = 0; k < (inner.steps.length + 1) * inner.steps.batch; k++) c.growth[k] = 1;
    const int64_t shape[3] = {inner.steps.length, inner.steps.batch, inner.steps.width};
    const dpcr_array z = dpcr_array_make(boundaries, inner.steps.dtype, 3, shape);
    const int64_t before = run->report->evaluations;
    dpcri_run coarse_run = *run;  // shares the arrays by sequence and the report
    coarse_run.plan = &inner;
    coarse_run.t = (dpcri_trajectory){run->t.z0, z};
    coarse_run.tape = NULL;
    status = dpcri_solve_sweeps(&coarse_run);
    run->report->evaluations = before + (run->report->evaluations - before) * c.n + rest;
    run->residual = coarse_run.residual;
    run->estimate = coarse_run.estimate;
    if (status != DPCR_OK) return status;
    for (int64_t b = 0; b < inner.steps.batch; b++) {
        run->front[b] = in_fine_steps(&c, run->front[b]);
        run->exact[b] *= c.n;
        run->locked[b] = run->front[b];
    }
    tell_in_fine_steps(&c, run->report);
    fill_job job = {.run = run, .c = &c, .boundaries = coarse_run.t, .chunks = inner.steps.length};
    return fill_states(&job);
}
