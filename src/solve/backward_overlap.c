// SPDX-License-Identifier: MIT
// The adjoint loop in overlapped chunks: what forgets its past forward forgets its future backward, for the transposed
// Jacobians shrink what the Jacobians do. K chunks of n steps run side by side by the callback `adjoint`, each after m
// steps from 0:
//     s_c <- adjoint after the m steps to the right of chunk c, from 0     (those that reach the end start from it:
//     exact) lambda_l of chunk c by the adjoint loop from s_c; e_c <- what comes out of it chunk c stands if |s_c -
//     e_{c+1}| <= (atol + rtol) size in every component, size the largest component of the sequence's s: the backward
//     pass is linear, so its tolerance scales with it; bit for bit where both are 0 chunks that do not stand run again
//     from their neighbour until they meet what is stored; after 3 sweeps in order
// Work (1 + m/n) L, depth n + m, memory four states a chunk. docs/math/backward.md.
// Where the gradients are taken from the tape no adjoint is stored: chunks leave in the tape what gradient wants, as
// the loop does. All run-ups then come before all chunks, whose tapes they read; a chunk that runs again has its tape
// made anew from its states and goes to its end, for there is nothing to meet; and a sequence with more bad chunks than
// good ones goes in order at once.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "solve/backward.h"

enum {
    MEET_STEPS = DPCRI_LOOK_STEPS,  // of a rerun between two looks whether it has met what is stored
    SWEEPS = 3,
    CUTS = 32  // counts of chunks that are weighed
};

// Steps [from, right) in K chunks of n, numbered from the left; the remainder, right to the window's end, goes first.
typedef struct layout {
    int64_t chunks, n, lanes, from, right;
} layout;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// As many as `states` are cut into forward, of which `length` are cut here: all but the first, which comes from z0.
// What fills a call there fills one here.
static int64_t most_chunks(const dpcr_solve_plan *plan, int64_t states, int64_t length) {
    const int64_t chunk = plan->options.backward_chunk ? plan->options.backward_chunk : plan->options.chunk;
    if (chunk) return most(least(states / chunk, length), 1);
    return dpcri_overlap_chunks(&plan->steps, length, plan->options.backward_warm_up);
}

// A remainder is run alone, so of the counts near the wanted one the best is the one with the fewest dependent steps.
static layout layout_of(const dpcr_solve_plan *plan, int64_t lo, int64_t hi) {
    const int64_t from = lo ? lo : 1, length = most(hi - from, 0), wanted = most_chunks(plan, hi - lo, length);
    layout best = {.chunks = wanted, .lanes = dpcri_overlap_call(&plan->steps), .from = from};
    int64_t shortest = INT64_MAX;
    for (int64_t k = wanted; k > 0 && k > wanted - CUTS && 4 * k >= 3 * wanted; k--) {
        const int64_t depth = length / k + length % k;
        if (depth < shortest) shortest = depth, best.chunks = k;
    }
    best.n = length / best.chunks;
    best.right = from + best.n * best.chunks;
    return best;
}

typedef struct job {
    dpcri_backward *b;
    layout cut;
    const dpcri_row_ops *ops;
} job;

void dpcri_backward_overlap_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_backward_space *space) {
    const int64_t chunks = most_chunks(plan, plan->backward_window, plan->backward_window);
    int64_t rows = 0, numbers = 0;
    if (!dpcri_mul(chunks, plan->steps.batch, &rows) || !dpcri_mul(rows, plan->steps.width, &numbers))
        arena->overflow = true;
    space->starts = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    space->ends = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    space->spare = dpcri_arena_take(arena, 2 * numbers, dpcr_dtype_size(plan->steps.dtype));
    space->rerun = dpcri_arena_take(arena, rows, 1);
    space->scale = dpcri_arena_take(arena, plan->steps.batch, sizeof(double));
    space->given_up = dpcri_arena_take(arena, plan->steps.batch, 1);
}

static int64_t chunk_start(const job *o, int64_t c) { return o->cut.from + c * o->cut.n; }

// [count][rows][w] of chunk-wise adjoints, from chunk c.
static dpcr_array chunk_adjoints(const job *o, void *data, int64_t c, int64_t count, int64_t row, int64_t rows) {
    const dpcr_steps *steps = &o->b->plan->steps;
    const int64_t w = steps->width, each = steps->batch * w;
    return (dpcr_array){.data = (char *)data + (c * each + row * w) * (int64_t)dpcr_dtype_size(steps->dtype),
                        .dtype = steps->dtype,
                        .device = {DPCR_HOST, 0},
                        .ndim = 3,
                        .shape = {count, rows, w},
                        .strides = {each, w, 1}};
}

// `steps` more of lanes; false: leave out what is left.
static bool goes_on(job *o, dpcri_pace *pace, int64_t steps) {
    return !(dpcri_pace_over(pace, steps) && dpcri_looks_stopped(&o->b->looks)) && o->b->code == 0;
}

// The m steps to the right of chunks [c, c + count). Their adjoints are not wanted: they all go to one place, which the
// chunk's end takes later.
static bool warm_up(job *o, dpcri_pace *pace, int64_t c, int64_t count, int64_t m) {
    const int64_t batch = o->b->plan->steps.batch;
    const dpcr_array starts = chunk_adjoints(o, o->b->space.starts, c, count, 0, batch);
    const dpcr_array ends = chunk_adjoints(o, o->b->space.ends, c, count, 0, batch);
    dpcr_array nowhere = dpcri_as_lanes(&ends);
    nowhere.strides[1] = 0;
    for (int64_t left = m, some = 0; left > 0; left -= some) {
        nowhere.shape[1] = some = dpcri_pace_stretch(pace, left);
        dpcri_adjoint_lanes(o->b, chunk_start(o, c + 1) + left - some, count, o->cut.n, some, 0, batch, &starts,
                            &nowhere, &starts);
        if (!goes_on(o, pace, some)) return false;
    }
    return true;
}

// Run-ups that begin where a sequence has ended begin with what comes in at the window's end, which nothing has
// changed.
static void start_past_ends(const job *o, int64_t first, int64_t end, int64_t m) {
    const dpcr_steps *steps = &o->b->plan->steps;
    for (int64_t b = 0; b < steps->batch; b++)
        for (int64_t c = end - 1; c >= first && chunk_start(o, c + 1) + m >= steps->ends[b]; c--) {
            const dpcr_array carry = dpcri_slice(&o->b->carry, 0, 1, b, 1);
            const dpcr_array start = chunk_adjoints(o, o->b->space.starts, c, 1, b, 1);
            o->ops->copy(&carry, &start);
        }
}

static bool start_chunks(job *o, dpcri_pace *pace, int64_t first, int64_t end) {
    const int64_t m = o->b->plan->options.backward_warm_up, batch = o->b->plan->steps.batch;
    for (int64_t c = end - 1; c >= first; c--) {
        const int64_t to_end = (o->cut.chunks - 1 - c) * o->cut.n;
        if (to_end > m) {
            const dpcr_array rest = chunk_adjoints(o, o->b->space.starts, first, c + 1 - first, 0, batch);
            o->ops->fill(&rest, 0);
            if (o->b->plan->steps.ends) start_past_ends(o, first, c + 1, m);
            return warm_up(o, pace, first, c + 1 - first, m);
        }
        const dpcr_array start = chunk_adjoints(o, o->b->space.starts, c, 1, 0, batch);
        o->ops->copy(&o->b->carry, &start);
        if (to_end > 0 && !warm_up(o, pace, c, 1, to_end)) return false;  // exact
    }
    return true;
}

static dpcri_pace pace_of(const job *o, int64_t group, int64_t steps) {
    const int64_t count = least(o->cut.lanes, o->cut.chunks - group * o->cut.lanes);
    dpcri_pace pace;
    dpcri_pace_begin(&pace, o->b->plan, (double)count * (double)o->b->plan->steps.batch, steps);
    return pace;
}

static void run_up(void *argument, int64_t group) {
    job *o = argument;
    const int64_t first = group * o->cut.lanes;
    dpcri_pace pace = pace_of(o, group, o->b->plan->options.backward_warm_up);
    start_chunks(o, &pace, first, first + least(o->cut.lanes, o->cut.chunks - first));
}

static void run_chunks(void *argument, int64_t group) {
    job *o = argument;
    dpcri_pace pace = pace_of(o, group, o->cut.n);
    const int64_t first = group * o->cut.lanes, count = least(o->cut.lanes, o->cut.chunks - first), n = o->cut.n;
    const int64_t batch = o->b->plan->steps.batch, begin = chunk_start(o, first);
    const dpcr_array starts = chunk_adjoints(o, o->b->space.starts, first, count, 0, batch);
    const dpcr_array ends = chunk_adjoints(o, o->b->space.ends, first, count, 0, batch);
    for (int64_t right = n, steps = 0; right > 0; right -= steps) {
        steps = dpcri_pace_stretch(&pace, right);
        const int64_t lo = begin + right - steps;
        const dpcr_array kept = dpcri_lambda_lanes(o->b, lo, count, n, steps, 0, batch);
        dpcri_adjoint_lanes(o->b, lo, count, n, steps, 0, batch, right == n ? &starts : &ends,
                            o->b->from_tape ? NULL : &kept, &ends);
        if (!goes_on(o, &pace, steps)) return;
    }
}

static void first_pass(void *argument, int64_t group) {
    job *o = argument;
    run_up(o, group);
    if (!o->b->looks.stopped) run_chunks(o, group);
}

static double value_at(const void *x, int64_t i, dpcr_dtype dtype) {
    return dtype == DPCR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void *chunk_row(const job *o, void *data, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->b->plan->steps;
    return (char *)data + (c * steps->batch + b) * steps->width * (int64_t)dpcr_dtype_size(steps->dtype);
}

// The larger of `size` and a state's numbers; NaN where one is.
static double larger(const job *o, const void *state, double size) {
    const dpcr_steps *steps = &o->b->plan->steps;
    for (int64_t i = 0; i < steps->width; i++) {
        const double x = fabs(value_at(state, i, steps->dtype));
        size = x <= size ? size : x;
    }
    return size;
}

static double tolerance(const job *o) { return o->b->plan->options.atol + o->b->plan->options.rtol; }

// Sequence by sequence the largest number that a chunk begins with; 0 where one is not finite: bits decide then.
static void find_scales(job *o) {
    for (int64_t b = 0; b < o->b->plan->steps.batch; b++) {
        double size = 0;
        for (int64_t c = 0; tolerance(o) > 0 && c < o->cut.chunks; c++)
            size = larger(o, chunk_row(o, o->b->space.starts, c, b), size);
        o->b->space.scale[b] = isfinite(size) ? size : 0;
    }
}

static bool close(const job *o, const void *x, const void *y, int64_t b) {
    const dpcr_steps *steps = &o->b->plan->steps;
    if (memcmp(x, y, (size_t)steps->width * dpcr_dtype_size(steps->dtype)) == 0) return true;
    const double allowed = tolerance(o) * o->b->space.scale[b];
    if (!(allowed > 0)) return false;
    for (int64_t i = 0; i < steps->width; i++)
        if (!(fabs(value_at(x, i, steps->dtype) - value_at(y, i, steps->dtype)) <= allowed)) return false;
    atomic_store_explicit(&o->b->loose, true, memory_order_relaxed);
    return true;
}

// Where a chunk's start differs from what came out of its right neighbour it takes that, and must run again.
static bool check_boundary(job *o, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->b->plan->steps;
    const void *end = chunk_row(o, o->b->space.ends, c + 1, b);
    void *start = chunk_row(o, o->b->space.starts, c, b);
    if (close(o, end, start, b)) return true;
    memcpy(start, end, (size_t)steps->width * dpcr_dtype_size(steps->dtype));
    return false;
}

// Starts that were wrong may have been the largest, so each sweep's are measured.
static bool check_boundaries(job *o) {
    const int64_t batch = o->b->plan->steps.batch;
    bool any = false;
    find_scales(o);
    for (int64_t b = 0; b < batch; b++) {
        if (o->b->space.given_up[b]) continue;
        int64_t bad = 0;
        for (int64_t c = 0; c + 1 < o->cut.chunks; c++) {
            const bool differs = !check_boundary(o, c, b);
            o->b->space.rerun[c * batch + b] = differs;
            bad += differs;
        }
        o->b->space.given_up[b] = o->b->from_tape && 2 * bad > o->cut.chunks;
        any = any || (bad > 0 && !o->b->space.given_up[b]);
    }
    return any;
}

static bool any_given_up(const job *o) {
    return memchr(o->b->space.given_up, 1, (size_t)o->b->plan->steps.batch) != NULL;
}

// The tape of `count` steps from `first` on of sequence b, as a forward pass left it, from the states that go in.
static void retrace(job *o, int64_t first, int64_t count, int64_t b) {
    const dpcr_array in = dpcri_inputs(&o->b->t, first, count, b, 1);
    const dpcr_array place = dpcri_slice(o->b->tape, first, count, b, 1), tape = dpcri_as_lanes(&place);
    const dpcr_span span = dpcri_span(first, count, 1, 1, b, 1);
    const int code = dpcri_advance(&o->b->plan->steps, &span, &in, NULL, NULL, &tape);
    if (code != 0) o->b->code = code;
}

// Chunk c of sequence b again, from its start down to where it meets what is stored; its end then stands too.
static void rerun_row(job *o, dpcri_pace *pace, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->b->plan->steps;
    const bool from_tape = o->b->from_tape;
    const int64_t begin = chunk_start(o, c), bytes = steps->width * (int64_t)dpcr_dtype_size(steps->dtype);
    char *spare = (char *)o->b->space.spare + 2 * (c * steps->batch + b) * bytes, *stored = spare + bytes;
    dpcr_array at = chunk_adjoints(o, o->b->space.starts, c, 1, b, 1);
    memcpy(spare, at.data, (size_t)bytes);
    at.data = spare;
    for (int64_t hi = begin + o->cut.n; hi > begin; hi -= MEET_STEPS) {
        const int64_t lo = most(begin, hi - MEET_STEPS);
        const dpcr_array kept = dpcri_lambda_lanes(o->b, lo, 1, 1, hi - lo, b, 1);
        if (from_tape)
            retrace(o, lo, hi - lo, b);
        else
            memcpy(stored, kept.data, (size_t)bytes);
        dpcri_adjoint_lanes(o->b, lo, 1, 1, hi - lo, b, 1, &at, from_tape ? NULL : &kept, &at);
        if (!goes_on(o, pace, hi - lo)) return;
        if (!from_tape && close(o, kept.data, stored, b) && lo > begin) return;
    }
    memcpy(chunk_row(o, o->b->space.ends, c, b), spare, (size_t)bytes);
}

static void rerun_chunk(void *argument, int64_t c) {
    job *o = argument;
    const int64_t batch = o->b->plan->steps.batch;
    dpcri_pace pace;
    dpcri_pace_begin(&pace, o->b->plan, 1, INT64_MAX);
    for (int64_t b = 0; b < batch; b++)
        if (o->b->space.rerun[c * batch + b] && !o->b->space.given_up[b] && !o->b->looks.stopped)
            rerun_row(o, &pace, c, b);
}

// Whether a chunk of sequence b is to run again.
static bool is_open(const job *o, int64_t b) {
    const int64_t batch = o->b->plan->steps.batch;
    for (int64_t c = 0; c + 1 < o->cut.chunks; c++)
        if (o->b->space.rerun[c * batch + b]) return true;
    return false;
}

// Sequence b from the right; chunks that meet their neighbour are left as they are. What begins further left may be
// wrong yet: the size is that of what has been passed, and of what comes out of it.
static void finish_in_order(void *argument, int64_t b) {
    job *o = argument;
    const dpcr_steps *steps = &o->b->plan->steps;
    double size = 0;
    if (!is_open(o, b)) return;
    dpcri_pace pace;
    dpcri_pace_begin(&pace, o->b->plan, 1, INT64_MAX);
    for (int64_t c = o->cut.chunks - 2; c >= 0 && !o->b->looks.stopped; c--) {
        size = larger(o, chunk_row(o, o->b->space.starts, c + 1, b), size);
        size = larger(o, chunk_row(o, o->b->space.ends, c + 1, b), size);
        o->b->space.scale[b] = isfinite(size) ? size : 0;
        const bool marked = o->b->space.rerun[c * steps->batch + b];
        if (check_boundary(o, c, b) && !marked) continue;
        memcpy(chunk_row(o, o->b->space.starts, c, b), chunk_row(o, o->b->space.ends, c + 1, b),
               (size_t)steps->width * dpcr_dtype_size(steps->dtype));
        rerun_row(o, &pace, c, b);
    }
}

void dpcri_backward_overlap(dpcri_backward *b) {
    const dpcr_solve_plan *plan = b->plan;
    const int64_t batch = plan->steps.batch;
    job o = {.b = b, .cut = layout_of(plan, b->lo, b->hi), .ops = dpcri_row_ops_of(plan->steps.dtype)};
    const double flops = (double)(b->hi - b->lo) * (double)batch * plan->steps.flops;
    o.cut.lanes = dpcri_overlap_lanes(&plan->steps, o.cut.chunks, dpcr_context_threads(plan->context));
    dpcri_adjoint_range(b, o.cut.right, b->hi, 0, batch);
    b->stopped = b->looks.stopped;
    if (b->stopped) return;
    if (o.cut.right > o.cut.from) {
        const int64_t groups = (o.cut.chunks + o.cut.lanes - 1) / o.cut.lanes;
        memset(b->space.given_up, 0, (size_t)batch);
        b->stopped = (b->from_tape && !dpcri_for_tasks_or_stop(plan, flops, groups, run_up, &o)) ||
                     !dpcri_for_tasks_or_stop(plan, flops, groups, b->from_tape ? run_chunks : first_pass, &o) ||
                     b->looks.stopped;
        if (b->stopped) return;
        bool bad = check_boundaries(&o);
        int sweeps = 1;
        for (; bad && sweeps < SWEEPS && b->code == 0; sweeps++) {
            // The last chunk began with the chain's own end, and has no mark.
            b->stopped = !dpcri_for_tasks_or_stop(plan, flops, o.cut.chunks - 1, rerun_chunk, &o) || b->looks.stopped;
            if (b->stopped) return;
            bad = check_boundaries(&o);
        }
        bad = bad || any_given_up(&o);
        if (bad && b->code == 0)
            b->stopped = !dpcri_for_tasks_or_stop(plan, flops, batch, finish_in_order, &o) || b->looks.stopped;
        if (b->stopped) return;
        b->in_order = b->in_order || bad;
        b->sweeps = (int)most(bad ? SWEEPS + 1 : sweeps, b->sweeps);
        const dpcr_array end = chunk_adjoints(&o, b->space.ends, 0, 1, 0, batch);
        o.ops->copy(&end, &b->carry);
    }
    if (b->lo == 0) dpcri_adjoint_range(b, 0, 1, 0, batch);
}
