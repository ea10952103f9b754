// SPDX-License-Identifier: MIT
// Overlapped chunks: K chunks of n steps run side by side by the chain's own loop, each after a warm-up of m steps from
// a guess; no Jacobian anywhere. A chain that forgets its past forgets the guess, so only the K boundaries are checked:
//     s_c <- state after steps [cn - m, cn) from z0      (chunk 0 starts from z0 itself)
//     z_l for l in [cn, cn + n) by the loop from s_c
//     e_c <- |z_{cn-1} - s_c|;  chunks with e_c above the tolerance run again from their neighbour's end, until they
//     meet what is stored; after max_sweeps the rest is done in order.
// With tolerance 0 boundaries must agree bit for bit, so the result has the loop's bits. Chunk c is exact after c + 1
// sweeps at the latest. Work (1 + m/n) L evaluations, depth n + m.
// Sources: Song et al. (arXiv 2002.03629), restricted additive Schwarz in time; docs/math/overlap.md.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "solve/solve_internal.h"

enum { LANES_A_TASK = 16, MEET_STEPS = 64 };

typedef struct overlap {
    dpcri_run *run;
    const dpcr_solve_plan *plan;
    const dpcri_row_ops *ops;
    int64_t chunks, steps;  // K and n; the last chunk also has the remainder
    void *starts, *ends;    // [K][B][w]: the state each chunk started from; scratch of the reruns
    unsigned char *rerun;   // [K][B]: 1 where the chunk must run again
    _Atomic int64_t rerun_steps;
    _Atomic int code;
} overlap;

// Steps a chunk: at least twice the warm-up, about 64 chunks where the chain is long; odd, because chunk strides that
// are powers of two fall on few cache sets.
static int64_t chunk_steps(const dpcr_solve_plan *plan) {
    if (plan->options.chunk) return plan->options.chunk;
    const int64_t least = 2 * plan->options.warm_up, even = (plan->steps.length + 63) / 64;
    return (least > even ? least : even) | 1;
}

static int64_t chunk_count(const dpcr_solve_plan *plan) {
    const int64_t count = plan->steps.length / chunk_steps(plan);
    return count > 0 ? count : 1;
}

void dpcri_overlap_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, void **starts, void **ends,
                         unsigned char **rerun) {
    const int64_t chunks = chunk_count(plan);
    int64_t rows = 0, numbers = 0;
    if (!dpcri_mul(chunks, plan->steps.batch, &rows) || !dpcri_mul(rows, plan->steps.width, &numbers))
        arena->overflow = true;
    *starts = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    *ends = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    *rerun = dpcri_arena_take(arena, rows, 1);
}

static int64_t chunk_end(const overlap *o, int64_t c) {
    return c + 1 < o->chunks ? (c + 1) * o->steps : o->plan->steps.length;
}

// [count][B][w] of chunk-wise states, from chunk c.
static dpcr_array chunk_states(const overlap *o, void *data, int64_t c, int64_t count, int64_t row, int64_t rows) {
    const int64_t shape[3] = {o->chunks, o->plan->steps.batch, o->plan->steps.width};
    const dpcr_array whole = dpcr_array_make(data, o->plan->steps.dtype, 3, shape);
    return dpcri_slice(&whole, c, count, row, rows);
}

static void note(overlap *o, int code) {
    if (code < 0) o->code = code;
}

// Warm-up of chunks [first, first + count), all of which begin at least m steps into the chain.
static void warm_up(overlap *o, int64_t first, int64_t count, int64_t m) {
    const dpcr_steps *steps = &o->plan->steps;
    dpcr_array guess = dpcri_inputs(&o->run->t, 0, count, 0, steps->batch);
    guess.strides[0] = 0;
    const dpcr_array starts = chunk_states(o, o->starts, first, count, 0, steps->batch);
    const dpcr_span span = dpcri_span(first * o->steps - m, count, o->steps, m, 0, steps->batch);
    note(o, dpcri_advance(steps, &span, &guess, NULL, &starts, NULL));
}

static void start_chunks(overlap *o, int64_t first, int64_t end) {
    const int64_t m = o->plan->options.warm_up;
    for (int64_t c = first; c < end; c++) {
        const int64_t begin = c * o->steps;
        if (c == 0) {
            const dpcr_array z0 = dpcri_inputs(&o->run->t, 0, 1, 0, o->plan->steps.batch);
            const dpcr_array start = chunk_states(o, o->starts, 0, 1, 0, o->plan->steps.batch);
            o->ops->copy(&z0, &start);
        } else if (begin < m) {
            warm_up(o, c, 1, begin);  // reaches back to z0: exact
        } else {
            warm_up(o, c, end - c, m);
            return;
        }
    }
}

static void run_chunks(overlap *o, int64_t first, int64_t count, int64_t n) {
    if (count <= 0) return;
    const dpcr_steps *steps = &o->plan->steps;
    const dpcr_array in = chunk_states(o, o->starts, first, count, 0, steps->batch);
    const dpcr_array z = dpcri_outputs(&o->run->t, first * o->steps, n, 0, steps->batch);
    dpcr_array states = dpcri_as_steps(&z);
    states.shape[0] = count;
    states.strides[0] = o->steps * z.strides[0];
    const dpcr_span span = dpcri_span(first * o->steps, count, o->steps, n, 0, steps->batch);
    note(o, dpcri_advance(steps, &span, &in, &states, NULL, NULL));
}

static void first_pass(void *argument, int64_t task) {
    overlap *o = argument;
    const int64_t first = task * LANES_A_TASK;
    const int64_t end = first + LANES_A_TASK < o->chunks ? first + LANES_A_TASK : o->chunks;
    start_chunks(o, first, end);
    const bool last = end == o->chunks;  // the last chunk is longer by the remainder
    run_chunks(o, first, end - first - (last ? 1 : 0), o->steps);
    if (last) run_chunks(o, end - 1, 1, chunk_end(o, end - 1) - (end - 1) * o->steps);
}

static void *at(const overlap *o, const dpcr_array *array, int64_t first, int64_t row) {
    (void)o;
    return (char *)array->data +
           (first * array->strides[0] + row * array->strides[1]) * (int64_t)dpcr_dtype_size(array->dtype);
}

// Runs chunk c of sequence b again from starts[c], stopping where it meets what is stored.
static void rerun_row(overlap *o, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t bytes = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    const dpcr_array ends = chunk_states(o, o->ends, c, 1, b, 1);
    dpcr_array in = chunk_states(o, o->starts, c, 1, b, 1);
    for (int64_t l = c * o->steps; l < chunk_end(o, c); l += MEET_STEPS) {
        const int64_t count = l + MEET_STEPS < chunk_end(o, c) ? MEET_STEPS : chunk_end(o, c) - l;
        const dpcr_array z = dpcri_outputs(&o->run->t, l, count, b, 1), states = dpcri_as_steps(&z);
        const dpcr_span span = dpcri_span(l, 1, 1, count, b, 1);
        memcpy(ends.data, at(o, &z, count - 1, 0), bytes);
        note(o, dpcri_advance(steps, &span, &in, &states, NULL, NULL));
        atomic_fetch_add_explicit(&o->rerun_steps, count, memory_order_relaxed);
        if (o->ops->close(at(o, &z, count - 1, 0), ends.data, steps->width, o->plan->options.atol,
                          o->plan->options.rtol))
            return;
        in = dpcri_slice(&z, count - 1, 1, 0, 1);
    }
}

static void rerun_chunk(void *argument, int64_t c) {
    overlap *o = argument;
    for (int64_t b = 0; b < o->plan->steps.batch; b++)
        if (o->rerun[c * o->plan->steps.batch + b]) rerun_row(o, c, b);
}

// Compares the start of chunk c with its left neighbour's end; where they differ the chunk must run again from there.
// The sequence's largest defect so far goes to last_residual.
static bool check_boundary(overlap *o, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const dpcr_array end = dpcri_outputs(&o->run->t, c * o->steps - 1, 1, b, 1);
    const dpcr_array start = chunk_states(o, o->starts, c, 1, b, 1);
    o->run->last_residual[b] = fmax(o->run->last_residual[b], o->ops->distance(end.data, start.data, steps->width));
    if (o->ops->close(end.data, start.data, steps->width, o->plan->options.atol, o->plan->options.rtol)) return true;
    memcpy(start.data, end.data, (size_t)steps->width * dpcr_dtype_size(steps->dtype));
    return false;
}

// Marks the chunks that must run again; per sequence the first bad chunk goes to front. Returns whether any.
static bool check_boundaries(overlap *o) {
    const int64_t batch = o->plan->steps.batch;
    bool any = false;
    double defect = 0;
    for (int64_t b = 0; b < batch; b++) {
        o->run->front[b] = o->plan->steps.length;
        o->run->last_residual[b] = 0;
        for (int64_t c = 1; c < o->chunks; c++) {
            const bool good = check_boundary(o, c, b);
            o->rerun[c * batch + b] = !good;
            if (!good && c * o->steps < o->run->front[b]) o->run->front[b] = c * o->steps;
            any = any || !good;
        }
        defect = fmax(defect, o->run->last_residual[b]);
    }
    o->run->residual = defect;
    dpcri_record_sweep(o->run, defect, o->run->last_residual);
    return any;
}

// In order from the first bad chunk of sequence b; chunks that already meet are left as they are.
static void finish_row(overlap *o, int64_t b) {
    for (int64_t c = o->run->front[b] / o->steps; c < o->chunks; c++)
        if (o->rerun[c * o->plan->steps.batch + b] || !check_boundary(o, c, b)) {
            const dpcr_array end = dpcri_outputs(&o->run->t, c * o->steps - 1, 1, b, 1);
            const dpcr_array start = chunk_states(o, o->starts, c, 1, b, 1);
            o->ops->copy(&end, &start);
            rerun_row(o, c, b);
        }
}

static void finish_rows(overlap *o) {
    dpcri_run *run = o->run;
    const bool forbidden = o->plan->options.no_fallback;
    for (int64_t b = 0; b < o->plan->steps.batch; b++) {
        run->locked[b] = run->front[b];
        if (run->front[b] < o->plan->steps.length) {
            run->reason[b] = forbidden ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
            if (!forbidden) {
                finish_row(o, b);
                run->front[b] = o->plan->steps.length;
            }
        }
    }
}

// How much of an error at a chunk's start is left at its end, at most: the warm-up took the distance between the guess
// and the chain down to the defect. Gives the sum of all defects of the sequence carried on; negative when nothing was
// forgotten.
static double carried_error(const overlap *o, int64_t b) {
    const int64_t m = o->plan->options.warm_up;
    const double defect = o->run->last_residual[b];
    double ratio = 0;
    if (o->steps < m) return -1;  // a chunk forgets less than the warm-up measured
    for (int64_t c = 1; c < o->chunks; c++) {
        if (c * o->steps <= m) continue;
        const dpcr_array before = dpcri_outputs(&o->run->t, c * o->steps - m - 1, 1, b, 1);
        const dpcr_array guess = dpcri_inputs(&o->run->t, 0, 1, b, 1);
        const double distance = o->ops->distance(guess.data, before.data, o->plan->steps.width);
        if (distance > 0) ratio = fmax(ratio, defect / distance);
    }
    return ratio < 1 ? defect / (1 - ratio) : -1;
}

static void judge(overlap *o, int sweeps) {
    dpcri_run *run = o->run;
    const bool exact = o->plan->options.atol == 0 && o->plan->options.rtol == 0;
    const double allowed = o->plan->options.atol + o->plan->options.rtol;
    for (int64_t b = 0; b < o->plan->steps.batch; b++) {
        run->sweeps[b] = sweeps;
        if (run->reason[b]) continue;
        const double estimate = exact ? 0 : carried_error(o, b);
        run->estimate = fmax(run->estimate, estimate);
        run->reason[b] = exact                                  ? DPCR_REASON_EXACT
                         : estimate >= 0 && estimate <= allowed ? DPCR_REASON_CONVERGED
                                                                : DPCR_REASON_RESIDUAL_ONLY;
    }
}

dpcr_status dpcri_solve_overlap(dpcri_run *run) {
    const dpcr_solve_plan *plan = run->plan;
    const dpcr_steps *steps = &plan->steps;
    overlap o = {.run = run,
                 .plan = plan,
                 .ops = dpcri_row_ops_of(steps->dtype),
                 .chunks = chunk_count(plan),
                 .steps = chunk_steps(plan)};
    dpcri_overlap_carve(plan, &run->arena, &o.starts, &o.ends, &o.rerun);
    const double t0 = dpcri_seconds(), flops = (double)steps->length * (double)steps->batch * steps->flops;
    const int64_t tasks = (o.chunks + LANES_A_TASK - 1) / LANES_A_TASK;
    memset(o.rerun, 0, (size_t)(o.chunks * steps->batch));
    dpcri_for_tasks(plan, flops, tasks, first_pass, &o);
    run->report->evaluations += (steps->length + (o.chunks - 1) * plan->options.warm_up) * steps->batch;
    int sweeps = 1;
    while (o.code >= 0 && check_boundaries(&o) && sweeps < plan->options.max_sweeps) {
        if (dpcri_cancelled(plan->context))
            return dpcri_fail(run->error, DPCR_ERROR_CANCELLED, "solve: stopped by the caller's cancel function");
        sweeps++;
        dpcri_for_tasks(plan, flops, o.chunks, rerun_chunk, &o);
    }
    const double t1 = dpcri_seconds();
    run->report->seconds_evaluate = t1 - t0;
    if (o.code >= 0) finish_rows(&o);
    run->report->seconds_finish = dpcri_seconds() - t1;
    run->report->evaluations += o.rerun_steps;
    judge(&o, sweeps);
    return dpcri_callback_status(run, "advance", o.code);
}
