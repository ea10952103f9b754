// SPDX-License-Identifier: MIT
// Parareal: the chain in K chunks of n steps; F runs a chunk's steps, G the callback `coarse` over the chunk, or the
// identity:
//
//   U_0 = z0;  U_{i+1} = G(U_i)     (guess GIVEN: what stands before chunk i + 1)
//   repeat:    F(U_i) for all chunks at once;   U_{i+1} <- F(U_i) + G(U_i new) - G(U_i old), in order
//
// Sweep p makes the first p chunks the loop's, bit for bit, so K sweeps always do. It ends when every F(U_i) is U_{i+1}
// to the tolerance. Work a sweep: L evaluations, n after one another, and K coarse ones in order; memory 2 K states.
// Wins where one coarse step says much of its chunk: smooth paths with many steps.
//
// The error estimate: a chunk's defect F(U_i) - U_{i+1} is what its steps have made of their own errors, exactly, and
// the next U carries it on as G does, to what the whole path makes of it. e, the largest change of U / max(1, |U|), is
// thus the error but for G's own, a part of it; that part shows in how fast e shrinks:
//
//   estimate = 3 e g / (1 - rate),   rate = e / (e before), or the one before where that is more; none above 0.7
//
// and 4 e g of the first sweep, which has no rate (of chains of DPCRI_FEW_STEPS at least). g >= 1 is what a chunk makes
// of its start's error beyond that, seen at the chain's end, where no start is: how far its last state moved over e
// before, or would move by G in the first sweep. It costs K coarse steps, and is of the whole chain, for only what has
// the loop's bits is locked. Other methods' results are judged the same way (option confirm) where cycles.c cannot: a
// sweep from their states, and more of them until the estimate will do. A coarse step that cannot be made (a positive
// code, or what is not finite) counts as no step: its chunk is corrected by its own end alone, and nothing is
// estimated; so of every chain by the identity, which knows of no growth. Sources: Lions, Maday, Turinici, C. R. Acad.
// Sci. 332 (2001); SRDS (arXiv 2412.20292). docs/diffusion.md.
#include <math.h>
#include <string.h>

#include "solve/state.h"

static const double slowest_rate = 0.7;  // beyond, the corrections tell nothing of what is left
static const double unseen_factor = 4, seen_factor = 3;

typedef struct parareal {
    dpcri_run *run;
    const dpcr_steps *steps;
    const dpcri_row_ops *ops;
    int64_t n, chunks;
    dpcr_array u, g, fresh;  // [K][B][w], [K][B][w], [1][B][w]
    unsigned char *active, *good;
    int64_t *first;           // [B]: the first chunk that has not run from the loop's own state
    int64_t *equal;           // [B]: chunks from `first` on whose ends are the next ones' starts, bit for bit
    double *change, *former;  // [B]: the correction's size, and the one's before
    double *rate, *moved;     // [B]: the former's ratio to the one before it; how far the last state moved
    dpcr_array end;           // [1][B][w]: the last state of the sweep before
    unsigned char *blind;     // [B]: a coarse step was missing: the corrections tell nothing
    int *reason;              // [B]: the method's own; 0 where it is this one
    bool confirming;
    int64_t at;  // chunks that a task of run_chunks starts from
    dpcri_looks looks;
    _Atomic int code;
} parareal;

static void carve(const dpcr_solve_plan *plan, dpcri_arena *arena, parareal *p) {
    const dpcr_steps *s = &plan->steps;
    const size_t real = dpcr_dtype_size(s->dtype);
    const int64_t own = plan->options.method == DPCR_METHOD_PARAREAL ? plan->options.chunk : 0;
    const int64_t n = own ? own : (int64_t)ceil(sqrt((double)s->length)), chunks = n > 0 ? (s->length + n - 1) / n : 0,
                  row = s->batch * s->width;
    int64_t numbers = 0;
    if (!dpcri_mul(chunks, row, &numbers)) arena->overflow = true;
    const int64_t shape[3] = {chunks, s->batch, s->width};
    p->n = n, p->chunks = chunks;
    p->u = dpcr_array_make(dpcri_arena_take(arena, numbers, real), s->dtype, 3, shape);
    p->g = dpcr_array_make(dpcri_arena_take(arena, numbers, real), s->dtype, 3, shape);
    p->fresh = dpcr_array_make(dpcri_arena_take(arena, row, real), s->dtype, 3, (int64_t[]){1, s->batch, s->width});
    p->active = dpcri_arena_take(arena, s->batch, 1);
    p->good = dpcri_arena_take(arena, s->batch, 1);
    p->blind = dpcri_arena_take(arena, s->batch, 1);
    p->first = dpcri_arena_take(arena, s->batch, sizeof *p->first);
    p->equal = dpcri_arena_take(arena, s->batch, sizeof *p->equal);
    p->change = dpcri_arena_take(arena, s->batch, sizeof *p->change);
    p->former = dpcri_arena_take(arena, s->batch, sizeof *p->former);
    p->rate = dpcri_arena_take(arena, s->batch, sizeof *p->rate);
    p->moved = dpcri_arena_take(arena, s->batch, sizeof *p->moved);
    p->end = dpcr_array_make(dpcri_arena_take(arena, row, real), s->dtype, 3, (int64_t[]){1, s->batch, s->width});
    p->reason = dpcri_arena_take(arena, s->batch, sizeof *p->reason);
}

void dpcri_parareal_carve(const dpcr_solve_plan *plan, dpcri_arena *arena) {
    parareal p;
    carve(plan, arena, &p);
}

static dpcr_array lanes_of(const dpcr_array *array, int64_t first, int64_t count) {
    return dpcri_slice(array, first, count, 0, array->shape[1]);
}

static int64_t steps_of(const parareal *p, int64_t chunk) {
    const int64_t left = p->steps->length - chunk * p->n;
    return left < p->n ? left : p->n;
}

// to[c] = G of chunk first + c from U; the last one alone.
static dpcr_status coarse(parareal *p, int64_t first, int64_t lanes, const dpcr_array *to) {
    const dpcr_array in = lanes_of(&p->u, first, lanes);
    dpcr_span span = dpcri_span(first * p->n, lanes, p->n, steps_of(p, first), 0, p->steps->batch);
    span.active = p->active;
    if (!p->steps->coarse) {
        p->ops->copy(&in, to);
        return DPCR_OK;
    }
    const int code = p->steps->coarse(p->steps->user, &span, &in, to);
    if (code > 0) p->ops->fill(to, NAN);
    return dpcri_callback_status(p->run, "coarse", code);
}

// `steps` steps of lanes that stand at step `from`, n apart.
static int run_stretch(parareal *p, int64_t from, const dpcr_array *in, int64_t lanes, int64_t steps, int64_t row,
                       int64_t rows) {
    const dpcr_array *z = &p->run->t.z;
    dpcr_array states = dpcri_outputs(&p->run->t, from, lanes, row, rows);
    states.ndim = 4;
    for (int d = 3; d > 0; d--) states.shape[d] = states.shape[d - 1], states.strides[d] = states.strides[d - 1];
    states.shape[0] = lanes, states.shape[1] = steps;
    states.strides[0] = p->n * z->strides[0];
    const dpcr_span span = dpcri_span(from, lanes, p->n, steps, row, rows);
    return dpcri_advance(p->steps, &span, in, &states, NULL, NULL);
}

static int run_rows(parareal *p, int64_t first, int64_t lanes, int64_t steps, int64_t row, int64_t rows) {
    const int64_t begin = first * p->n;
    dpcr_array in = dpcri_slice(&p->u, first, lanes, row, rows);
    dpcri_pace pace;
    int code = 0;
    dpcri_pace_begin(&pace, p->run->plan, (double)lanes * (double)rows, steps);
    for (int64_t at = 0, count = 0; at < steps && code >= 0; at += count) {
        if (at > 0 && dpcri_pace_over(&pace, count) && dpcri_looks_stopped(&p->looks)) return code;
        count = dpcri_pace_stretch(&pace, steps - at);
        code = run_stretch(p, begin + at, &in, lanes, count, row, rows);
        in = dpcri_outputs(&p->run->t, begin + at + count - 1, lanes, row, rows);
        in.strides[0] = p->n * p->run->t.z.strides[0];
    }
    return code;
}

// Steps of `lanes` chunks from number `first` on, `steps` each, to their places in z: of sequences that are not done,
// and of no other, whose states would move on with its neighbours' sweeps.
static int run_lanes(parareal *p, int64_t first, int64_t lanes, int64_t steps) {
    const int64_t batch = p->steps->batch;
    int code = 0;
    for (int64_t row = 0, rows = 0; row < batch && code >= 0; row += rows + 1) {
        for (rows = 0; row + rows < batch && p->active[row + rows];) rows++;
        if (rows > 0) code = run_rows(p, first, lanes, steps, row, rows);
    }
    return code;
}

static void run_task(void *argument, int64_t task) {
    parareal *p = argument;
    const int code = run_lanes(p, p->at + task, 1, steps_of(p, p->at + task));
    if (code < 0) p->code = code;
}

// F of chunks first .. K-1, all states to z; the last chunk may be shorter.
static dpcr_status run_chunks(parareal *p, int64_t first) {
    const int64_t tail = steps_of(p, p->chunks - 1), whole = p->chunks - (tail < p->n);
    const double flops = (double)(p->chunks - first) * (double)p->n * (double)p->steps->batch * p->steps->flops;
    int64_t rows = 0;
    p->at = first;
    for (int64_t b = 0; b < p->steps->batch; b++) rows += p->active[b];
    dpcri_lap(p->run);
    dpcri_looks_begin(&p->looks, p->run->plan);
    bool stopped = false;
    if (p->steps->concurrent) {
        stopped = !dpcri_for_tasks_or_stop(p->run->plan, flops, p->chunks - first, run_task, p);
    } else {
        int code = first < whole ? run_lanes(p, first, whole - first, p->n) : 0;
        if (code >= 0 && whole < p->chunks) code = run_lanes(p, whole, 1, tail);
        if (code < 0) p->code = code;
    }
    if (stopped || p->looks.stopped) return dpcri_fail_stopped(p->run->error, "solve");
    p->run->report->evaluations += (p->steps->length - first * p->n) * rows;
    p->run->report->seconds_evaluate += dpcri_lap(p->run);
    return dpcri_callback_status(p->run, "advance", p->code);
}

static bool same(const parareal *p, const void *x, const void *y) {
    const size_t bytes = (size_t)p->steps->width * dpcr_dtype_size(p->steps->dtype);
    return !memcmp(x, y, bytes) || p->ops->close(x, y, p->steps->width, 0, 0);
}

// U_{i+1} of sequence b, whose chunk i has ended, and what it says.
static void correct_one(parareal *p, int64_t i, int64_t b) {
    const dpcr_solve_options *o = &p->run->plan->options;
    const dpcr_dtype dtype = p->steps->dtype;
    const int64_t w = p->steps->width, end = i * p->n + p->n - 1;
    const void *f = dpcri_state_at(&p->run->t.z, end, b), *now = dpcri_state_at(&p->fresh, 0, b);
    void *u = dpcri_state_at(&p->u, i + 1, b), *old = dpcri_state_at(&p->g, i, b);
    const bool moved = i > p->first[b];  // the chunk's own start may have changed
    double most = 0, scale = 1;
    bool finite = true;
    p->good[b] = p->good[b] && p->ops->close(u, f, w, o->atol, o->rtol);
    const double far = p->ops->distance(u, f, w);
    if (!(far <= p->run->last_residual[b])) p->run->last_residual[b] = far;
    if (p->equal[b] == i - p->first[b] && same(p, u, f)) p->equal[b]++;
    for (int64_t k = 0; k < w; k++) {
        const double end_k = dpcri_state_get(dtype, f, k), before = dpcri_state_get(dtype, u, k);
        const double step = moved ? dpcri_state_get(dtype, now, k) - dpcri_state_get(dtype, old, k) : 0;
        const double next = step != 0 && isfinite(step) ? end_k + step : end_k;  // with 0 a -0 would be lost
        const double size = fabs(next - before);
        finite = finite && isfinite(step);
        if (!(size <= most)) most = isnan(size) ? HUGE_VAL : size;
        if (fabs(before) > scale) scale = fabs(before);
        dpcri_state_set(dtype, u, k, next);
    }
    if (moved) memcpy(old, now, (size_t)w * dpcr_dtype_size(dtype));
    if (!(most / scale <= p->change[b])) p->change[b] = isfinite(scale) ? most / scale : HUGE_VAL;
    if (!finite) p->blind[b] = 1;
}

static bool has_seen(const parareal *p, int64_t b) { return p->former[b] > 0; }

// How far the last state has moved since the sweep before; of the first sweep, foresee_end tells.
static void look_at_end(parareal *p, int64_t b) {
    const void *now = dpcri_state_at(&p->run->t.z, p->steps->length - 1, b);
    void *before = dpcri_state_at(&p->end, 0, b);
    p->moved[b] = has_seen(p, b) ? p->ops->distance(now, before, p->steps->width) : 0;
    memcpy(before, now, (size_t)p->steps->width * dpcr_dtype_size(p->steps->dtype));
}

// How far the last state is going to move, by a coarse step, of sequences that have not seen it move.
static dpcr_status foresee_end(parareal *p) {
    const dpcr_array before = lanes_of(&p->g, p->chunks - 1, 1);
    bool any = false;
    for (int64_t b = 0; b < p->steps->batch; b++) any = any || (p->active[b] && !has_seen(p, b));
    if (!any || !p->steps->coarse || p->chunks == 1) return DPCR_OK;
    const dpcr_status status = coarse(p, p->chunks - 1, 1, &p->fresh);
    for (int64_t b = 0; b < p->steps->batch; b++)
        if (p->active[b] && !has_seen(p, b))
            p->moved[b] =
                p->ops->distance(dpcri_state_at(&p->fresh, 0, b), dpcri_state_at(&before, 0, b), p->steps->width);
    return status;
}

// All U anew, from chunk `low` on; sizes and judgements by sequence.
static dpcr_status correct(parareal *p, int64_t low) {
    dpcr_status status = DPCR_OK;
    dpcri_lap(p->run);
    for (int64_t b = 0; b < p->steps->batch; b++) {
        if (!p->active[b]) continue;
        p->good[b] = 1, p->equal[b] = 0, p->blind[b] = 0;
        p->rate[b] = p->former[b] > 0 ? p->change[b] / p->former[b] : 0;
        p->former[b] = p->change[b], p->change[b] = p->run->last_residual[b] = 0;
        look_at_end(p, b);
    }
    for (int64_t i = low; i + 1 < p->chunks; i++) {
        if (i > low) DPCR_TRY(coarse(p, i, 1, &p->fresh));
        for (int64_t b = 0; b < p->steps->batch; b++)
            if (p->active[b] && i >= p->first[b]) correct_one(p, i, b);
    }
    DPCR_TRY(foresee_end(p));
    p->run->report->seconds_linear += dpcri_lap(p->run);
done:
    return status;
}

// What is left, by how the corrections shrink; negative: they do not tell.
static double estimate_of(const parareal *p, int64_t b) {
    const bool seen = has_seen(p, b);
    const double rate = seen ? p->change[b] / p->former[b] : 0,
                 growth = p->moved[b] / (seen ? p->former[b] : p->change[b]);
    const double eps = p->steps->dtype == DPCR_F64 ? 2.2e-16 : 1.2e-7;
    if (p->blind[b] || !p->steps->coarse) return -1;
    if (p->change[b] <= 8 * eps) return 2 * p->change[b];  // rounding
    if (!(rate <= slowest_rate) || !isfinite(growth)) return -1;
    if (!seen && p->steps->length < DPCRI_FEW_STEPS && p->run->plan->options.confirm > 0) return HUGE_VAL;
    if (!seen) return unseen_factor * p->change[b] * fmax(1, growth);
    return seen_factor * p->change[b] * fmax(1, growth) / (1 - fmax(rate, fmin(p->rate[b], slowest_rate)));
}

static bool is_finite(const parareal *p, const void *x) { return isfinite(p->ops->distance(x, x, p->steps->width)); }

// Whether the states may stand: boundaries agree, or estimates are to decide. The last chunk has no boundary at its
// end: where that is not finite sweeps go on until it has run from the loop's own state, which tells whose fault it is.
static bool acceptable(const parareal *p, int64_t b, double estimate) {
    const double wanted = p->run->plan->options.confirm;
    return (p->good[b] || p->confirming) && (wanted <= 0 || (estimate >= 0 && estimate <= wanted)) &&
           is_finite(p, dpcri_state_at(&p->run->t.z, p->steps->length - 1, b));
}

static void done(parareal *p, int64_t b, dpcr_reason reason) {
    p->run->reason[b] = reason;
    p->active[b] = 0;
    const bool right = reason > 0 && reason != DPCR_REASON_FALLBACK;
    p->run->front[b] = right ? p->steps->length : p->run->exact[b];
    if (right) p->run->locked[b] = p->steps->length;
}

// Moves the fronts and takes the sequences out that are done.
static void judge(parareal *p, int64_t b, bool *unknown) {
    dpcri_run *run = p->run;
    const dpcr_solve_options *o = &run->plan->options;
    const int64_t length = p->steps->length;
    const int64_t sound = p->first[b] + p->equal[b] + 1;  // chunks that ran from the loop's own states
    run->sweeps[b]++;
    const double estimate = estimate_of(p, b);
    run->work[b] += length - p->first[b] * p->n;
    run->exact[b] = sound * p->n < length ? sound * p->n : length;
    if (!p->confirming || run->front[b] < run->exact[b]) run->front[b] = run->exact[b];  // what was locked stays so
    p->first[b] = sound;
    if (!is_finite(p, dpcri_state_at(&run->t.z, run->exact[b] - 1, b))) {
        run->locked[b] = run->exact[b];
        done(p, b, DPCR_REASON_NONFINITE);
    } else if (sound >= p->chunks) {
        done(p, b, DPCR_REASON_EXACT);
    } else if (acceptable(p, b, estimate)) {
        done(p, b,
             o->confirm > 0 ? DPCR_REASON_CONVERGED
             : p->reason[b] ? (dpcr_reason)p->reason[b]
                            : DPCR_REASON_RESIDUAL_ONLY);
        if (estimate < 0) *unknown = true;
        run->estimate = fmax(run->estimate, estimate);
    } else if ((double)(run->work[b] + length - sound * p->n) > (double)o->max_sweeps * (double)length + 0.5) {
        done(p, b, o->no_fallback ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK);
    }
}

// U from the states as they stand (all G at once), or from G alone.
static dpcr_status start(parareal *p, bool given) {
    dpcr_status status = DPCR_OK;
    const dpcr_array z0 = dpcri_inputs(&p->run->t, 0, 1, 0, p->steps->batch), u0 = lanes_of(&p->u, 0, 1);
    p->ops->copy(&z0, &u0);
    for (int64_t i = 0; i + 1 < p->chunks; i++) {
        const dpcr_array g = lanes_of(&p->g, i, 1), next = lanes_of(&p->u, i + 1, 1);
        const dpcr_array z = dpcri_outputs(&p->run->t, i * p->n + p->n - 1, 1, 0, p->steps->batch);
        if (!given) DPCR_TRY(coarse(p, i, 1, &g));
        p->ops->copy(given ? &z : &g, &next);
    }
    const dpcr_array all = lanes_of(&p->g, 0, p->chunks - 1), end = lanes_of(&p->g, p->chunks - 1, 1);
    if (given && p->chunks > 1) DPCR_TRY(coarse(p, 0, p->chunks - 1, &all));
    if (p->steps->coarse && p->chunks > 1) DPCR_TRY(coarse(p, p->chunks - 1, 1, &end));
done:
    return status;
}

static dpcr_status iterate(parareal *p, bool given) {
    dpcr_status status;
    dpcri_run *run = p->run;
    const int64_t batch = p->steps->batch;
    bool unknown = false;
    p->code = 0;
    for (int64_t b = 0; b < batch; b++) p->first[b] = 0, p->change[b] = p->former[b] = 0;
    DPCR_TRY(start(p, given));
    for (;;) {
        int64_t low = p->chunks;
        for (int64_t b = 0; b < batch; b++)
            if (p->active[b] && p->first[b] < low) low = p->first[b];
        if (low == p->chunks) break;
        if (dpcri_cancelled(run->plan->context)) DPCR_TRY(dpcri_fail_stopped(run->error, "solve"));
        DPCR_TRY(run_chunks(p, low));
        DPCR_TRY(correct(p, low));
        run->residual = 0;
        for (int64_t b = 0; b < batch; b++) {
            if (!p->active[b]) continue;
            run->residual = fmax(run->residual, run->last_residual[b]);
            judge(p, b, &unknown);
        }
        dpcri_record_sweep(run, run->residual, run->last_residual);
    }
    if (unknown) run->estimate = -1;
done:
    return status;
}

dpcr_status dpcri_solve_parareal(dpcri_run *run) {
    parareal p = {.run = run, .steps = &run->plan->steps, .ops = dpcri_row_ops_of(run->plan->steps.dtype)};
    carve(run->plan, &run->arena, &p);
    memset(p.active, 1, (size_t)p.steps->batch);
    memset(p.reason, 0, (size_t)p.steps->batch * sizeof *p.reason);
    return iterate(&p, run->plan->options.guess == DPCR_GUESS_GIVEN);
}

// ---- other methods' results ----

dpcr_status dpcri_parareal_from(dpcri_run *run, const unsigned char *pending) {
    parareal p = {
        .run = run, .steps = &run->plan->steps, .ops = dpcri_row_ops_of(run->plan->steps.dtype), .confirming = true};
    bool any = false;
    carve(run->plan, &run->arena, &p);
    for (int64_t b = 0; b < p.steps->batch; b++) {
        p.active[b] = pending[b];
        p.reason[b] = run->reason[b];
        if (p.active[b]) run->reason[b] = 0;
        any = any || p.active[b];
    }
    return any ? iterate(&p, true) : DPCR_OK;
}
