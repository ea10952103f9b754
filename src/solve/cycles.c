// SPDX-License-Identifier: MIT
// Error estimates of what methods of sweeps left without one (option confirm), and corrections by them: cycles over two
// levels. Chunks of n steps, G the callback `coarse` over a chunk, c_l the known slopes (1 where none are):
//
//   r_l = f_l(z_{l-1}) - z_l                     of all steps at once
//   d_l = r_l + c_l d_{l-1} within a chunk       what a chunk's own residuals come to;   D_i at the end of chunk i
//   S_{i+1} = D_i + G(U_i + S_i) - G(U_i)        what they come to along the path, U_i the state before chunk i, S_0 =
//   0 e_l = d_l + (1 - t) S_i + t (S_{i+1} - D_i)  t the part of the chunk that lies behind;  z_l += e_l
//
// e is about the error: the residuals are exact, their way to the end of the path goes over the coarse steps. How far
// it is off shows in how fast cycles shrink it, as parareal's estimate has it, but of the states after the correction:
//
//   estimate = 1.7 |e| / (1 - rate),   rate = |e| / (|e| before), or the one before where that is more; none above 0.7
//
// and 6 |e| of the first cycle, which has no rate (of chains of DPCRI_FEW_STEPS at least: the coarse steps of ten steps
// may miss an error wholly, which the next cycle shows). Where a rate is above 0.7 twice in turn, or above 1 once,
// parareal itself, whose chunks run all their steps, goes on from the states as they are before that correction.
//
// Work of a cycle: L evaluations at once and K = L / n coarse steps one after another; where the chain tells coarse
// Jacobians (coarse_linearise) and K of them cost no more than two evaluations of the chain, G's part is A_i S_i, made
// in the first cycle, all at once. Memory L states and K Jacobians. Source: multigrid reduction in time with one
// relaxation, Falgout et al., SIAM J. Sci. Comput. 36 (2014). docs/diffusion.md.
#include <math.h>
#include <string.h>

#include "solve/state.h"

static const double slowest_rate = 0.7;
// Of 7000 random paths 2 |e| max(1, rate / (1 - rate)) from the first cycle on left 59 short of the error, these 10
// (docs/diffusion.md).
static const double unseen_factor = 6, seen_factor = 1.7;

typedef struct cycles {
    dpcri_run *run;
    const dpcr_steps *steps;
    const dpcri_row_ops *ops;
    int64_t n, chunks, from;                 // from: the first step that is looked at
    bool linear, made;                       // coarse Jacobians; they are there
    dpcr_array d, u, g, fresh, a;            // [L][B][w], [K][B][w], [K][B][w], [1][B][w], [K][B][w w]
    double *shift;                           // [K][B][w]: S
    double *size, *former, *rate;            // [B]: |e|, the one's before, and their ratio
    unsigned char *active, *pending, *slow;  // [B]; slow: the last rate told nothing
    _Atomic int code;
} cycles;

bool dpcri_confirms(const dpcr_solve_options *options) {
    switch (options->method) {
        case DPCR_METHOD_DIAGONAL:
        case DPCR_METHOD_BLOCK:
        case DPCR_METHOD_PICARD:
        case DPCR_METHOD_JACOBI:
        case DPCR_METHOD_DAMPED:
        case DPCR_METHOD_PARATAA: return options->confirm != 0;
        default: return false;
    }
}

double dpcri_confirm_cycles(const dpcr_solve_options *options) { return options->confirm > 0 ? 2.5 : 1; }

bool dpcri_coarse_is_linear(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t chunks) {
    return steps->coarse_linearise && !options->memory_limit && chunks * (steps->width + 1) <= 2 * steps->length;
}

static void *take(dpcri_arena *arena, int64_t a, int64_t b, size_t element) {
    int64_t count = 0;
    if (!dpcri_mul(a, b, &count)) arena->overflow = true;
    return dpcri_arena_take(arena, arena->overflow ? 0 : count, element);
}

static void carve(const dpcr_solve_plan *plan, dpcri_arena *arena, cycles *c) {
    const dpcr_steps *s = &plan->steps;
    const size_t real = dpcr_dtype_size(s->dtype);
    const int64_t B = s->batch, w = s->width, L = s->length;
    c->n = (int64_t)ceil(sqrt((double)L));
    c->chunks = c->n > 0 ? (L + c->n - 1) / c->n : 0;
    c->linear = dpcri_coarse_is_linear(s, &plan->options, c->chunks);
    const int64_t K = c->chunks, all[3] = {L, B, w}, some[3] = {K, B, w}, squares[3] = {K, B, c->linear ? w * w : 0};
    c->d = dpcr_array_make(take(arena, L, B * w, real), s->dtype, 3, all);
    c->u = dpcr_array_make(take(arena, K, B * w, real), s->dtype, 3, some);
    c->g = dpcr_array_make(take(arena, K, B * w, real), s->dtype, 3, some);
    c->fresh = dpcr_array_make(take(arena, 1, B * w, real), s->dtype, 3, (int64_t[]){1, B, w});
    c->a = dpcr_array_make(take(arena, K, B * squares[2], real), s->dtype, 3, squares);
    c->shift = take(arena, K, B * w, sizeof *c->shift);
    c->size = take(arena, B, 1, sizeof *c->size);
    c->former = take(arena, B, 1, sizeof *c->former);
    c->rate = take(arena, B, 1, sizeof *c->rate);
    c->active = take(arena, B, 1, 1);
    c->pending = take(arena, B, 1, 1);
    c->slow = take(arena, B, 1, 1);
}

// Parareal takes less memory, and has a limit to itself.
static bool goes_by_cycles(const dpcr_solve_plan *plan) { return !plan->options.memory_limit; }

void dpcri_confirm_carve(const dpcr_solve_plan *plan, dpcri_arena *arena) {
    cycles c;
    if (goes_by_cycles(plan))
        carve(plan, arena, &c);
    else
        dpcri_arena_take(arena, plan->steps.batch, 1);
    dpcri_parareal_carve(plan, arena);
}

static double *shift_at(const cycles *c, int64_t i, int64_t b) {
    return c->shift + (i * c->steps->batch + b) * c->steps->width;
}

static int64_t end_of(const cycles *c, int64_t i) {
    const int64_t end = (i + 1) * c->n;
    return end < c->steps->length ? end : c->steps->length;
}

// ---- residuals ----

// f of one piece of the chain, to d, where what goes in lies before; pieces lie at multiples of their size.
static void evaluate_piece(void *argument, int64_t task) {
    cycles *c = argument;
    const int64_t piece = c->run->plan->piece, B = c->steps->batch, begin = task * piece, end = begin + piece;
    const int64_t last = end < c->steps->length ? end : c->steps->length, l = begin > c->from ? begin : c->from;
    if (l >= last) return;
    const int64_t inner = l > 0 ? l : 1;
    const dpcr_array f = dpcri_slice(&c->d, l, last - l, 0, B), rest = dpcri_slice(&c->d, inner, last - inner, 0, B);
    if (l == 0) {
        const dpcr_array start = dpcri_inputs(&c->run->t, 0, 1, 0, B), first = dpcri_slice(&c->d, 0, 1, 0, B);
        c->ops->copy(&start, &first);
    }
    if (inner < last) {
        const dpcr_array in = dpcri_inputs(&c->run->t, inner, last - inner, 0, B);
        c->ops->copy(&in, &rest);
    }
    dpcr_span span = dpcri_span(l, last - l, 1, 1, 0, B);
    span.active = c->active;
    const int code = dpcri_advance(c->steps, &span, &f, NULL, &f, NULL);
    if (code < 0) c->code = code;
}

static dpcr_status evaluate(cycles *c) {
    const dpcr_solve_plan *plan = c->run->plan;
    const double states = (double)c->steps->length * (double)c->steps->batch;
    dpcri_lap(c->run);
    int64_t rows = 0;
    c->from = 1;
    for (int64_t b = 0; b < c->steps->batch; b++) {
        if (c->active[b] && c->run->exact[b] == 0) c->from = 0;
        rows += c->active[b];
    }
    c->code = 0;
    if (!dpcri_for_tasks_or_stop(plan, states * c->steps->flops, (c->steps->length + plan->piece - 1) / plan->piece,
                                 evaluate_piece, c))
        return dpcri_fail_stopped(c->run->error, "solve");
    c->run->report->evaluations += (c->steps->length - c->from) * rows;
    c->run->report->seconds_evaluate += dpcri_lap(c->run);
    return dpcri_callback_status(c->run, "advance", c->code);
}

// d of sequence b, in f's place.
static void sum_residuals(cycles *c, int64_t b) {
    const dpcr_dtype dtype = c->steps->dtype;
    const int64_t w = c->steps->width;
    c->run->last_residual[b] = 0;
    for (int64_t l = c->from; l < c->steps->length; l++) {
        void *d = dpcri_state_at(&c->d, l, b);
        const void *z = dpcri_state_at(&c->run->t.z, l, b), *before = l > c->from ? dpcri_state_at(&c->d, l - 1, b) : d;
        const double slope = l % c->n == 0 || l == c->from ? 0 : c->steps->slopes ? c->steps->slopes[l] : 1;
        c->run->last_residual[b] = fmax(c->run->last_residual[b], c->ops->distance(d, z, w));
        for (int64_t k = 0; k < w; k++) {
            const double r = dpcri_state_get(dtype, d, k) - dpcri_state_get(dtype, z, k);
            dpcri_state_set(dtype, d, k, slope != 0 ? r + slope * dpcri_state_get(dtype, before, k) : r);
        }
    }
    if (c->from) memset(dpcri_state_at(&c->d, 0, b), 0, (size_t)w * dpcr_dtype_size(dtype));
}

// ---- along the path ----

static dpcr_span chunk_span(const cycles *c, int64_t first, int64_t lanes) {
    dpcr_span span = dpcri_span(first * c->n, lanes, c->n, c->n, 0, c->steps->batch);
    span.active = c->active;
    return span;
}

static dpcr_status call_coarse(cycles *c, int64_t first, int64_t lanes, const dpcr_array *to) {
    const dpcr_array in = dpcri_slice(&c->u, first, lanes, 0, c->steps->batch);
    const dpcr_span span = chunk_span(c, first, lanes);
    const int code = c->steps->coarse(c->steps->user, &span, &in, to);
    if (code > 0) c->ops->fill(to, NAN);
    return dpcri_callback_status(c->run, "coarse", code);
}

static dpcr_status call_linearise(cycles *c) {
    const int64_t lanes = c->chunks - 1;
    const dpcr_array in = dpcri_slice(&c->u, 0, lanes, 0, c->steps->batch);
    const dpcr_array a = dpcri_slice(&c->a, 0, lanes, 0, c->steps->batch);
    const dpcr_span span = chunk_span(c, 0, lanes);
    const int code = c->steps->coarse_linearise(c->steps->user, &span, &in, NULL, &a);
    if (code > 0) c->ops->fill(&a, NAN);
    return dpcri_callback_status(c->run, "coarse_linearise", code);
}

static bool is_shifted(const cycles *c, int64_t i, int64_t b) {
    for (int64_t k = 0; c->active[b] && k < c->steps->width; k++)
        if (shift_at(c, i, b)[k] != 0) return true;
    return false;
}

static bool any_shift(const cycles *c, int64_t i) {
    for (int64_t b = 0; b < c->steps->batch; b++)
        if (is_shifted(c, i, b)) return true;
    return false;
}

// S_{i+1} of sequence b: D_i, and S_i, where it is not 0, carried over chunk i. Others' make no difference: what coarse
// refuses is NaN for all.
static void carry_one(cycles *c, int64_t i, int64_t b) {
    const bool any = is_shifted(c, i, b);
    const dpcr_dtype dtype = c->steps->dtype;
    const int64_t w = c->steps->width;
    const void *d = dpcri_state_at(&c->d, end_of(c, i) - 1, b), *g = dpcri_state_at(&c->g, i, b),
               *fresh = dpcri_state_at(&c->fresh, 0, b), *a = dpcri_state_at(&c->a, i, b);
    const double *shift = shift_at(c, i, b);
    for (int64_t k = 0; k < w; k++) {
        double carried = any && !c->linear ? dpcri_state_get(dtype, fresh, k) - dpcri_state_get(dtype, g, k) : 0;
        for (int64_t q = 0; any && c->linear && q < w; q++) carried += dpcri_state_get(dtype, a, k * w + q) * shift[q];
        shift_at(c, i + 1, b)[k] = dpcri_state_get(dtype, d, k) + carried;
    }
}

static void move_start(cycles *c, int64_t i) {
    const dpcr_dtype dtype = c->steps->dtype;
    for (int64_t b = 0; b < c->steps->batch; b++) {
        void *u = dpcri_state_at(&c->u, i, b);
        for (int64_t k = 0; c->active[b] && k < c->steps->width; k++)
            dpcri_state_set(dtype, u, k, dpcri_state_get(dtype, u, k) + shift_at(c, i, b)[k]);
    }
}

static dpcr_status carry(cycles *c) {
    dpcr_status status = DPCR_OK;
    const int64_t B = c->steps->batch, lanes = c->chunks - 1;
    dpcri_lap(c->run);
    for (int64_t i = 0; i < lanes; i++) {
        const dpcr_array z = dpcri_inputs(&c->run->t, i * c->n, 1, 0, B), u = dpcri_slice(&c->u, i, 1, 0, B);
        c->ops->copy(&z, &u);
    }
    const dpcr_array g = dpcri_slice(&c->g, 0, lanes, 0, B);
    if (lanes > 0 && c->linear && !c->made) DPCR_TRY(call_linearise(c));
    if (lanes > 0 && !c->linear) DPCR_TRY(call_coarse(c, 0, lanes, &g));
    c->made = true;
    memset(c->shift, 0, (size_t)(c->chunks * B * c->steps->width) * sizeof *c->shift);
    for (int64_t i = 0; i < lanes; i++) {
        if (!c->linear && any_shift(c, i)) {
            move_start(c, i);
            DPCR_TRY(call_coarse(c, i, 1, &c->fresh));
        }
        for (int64_t b = 0; b < B; b++)
            if (c->active[b]) carry_one(c, i, b);
    }
    c->run->report->seconds_linear += dpcri_lap(c->run);
done:
    return status;
}

// ---- the correction ----

// e of chunk i in d's place. The last chunk's way is that of its slopes.
static void spread(cycles *c, int64_t i, int64_t b) {
    const dpcr_dtype dtype = c->steps->dtype;
    const int64_t w = c->steps->width, begin = i * c->n, end = end_of(c, i);
    const bool last = i + 1 == c->chunks;
    const double *here = shift_at(c, i, b), *there = last ? NULL : shift_at(c, i + 1, b);
    double product = 1;
    for (int64_t l = begin; last && l < end; l++) product *= c->steps->slopes ? c->steps->slopes[l] : 1;
    for (int64_t k = 0; k < w; k++) {
        const double own = dpcri_state_get(dtype, dpcri_state_at(&c->d, end - 1, b), k);
        const double carried = last ? product * here[k] : there[k] - own;
        for (int64_t l = begin; l < end; l++) {
            void *d = dpcri_state_at(&c->d, l, b);
            const double t = (double)(l - begin + 1) / (double)(end - begin);
            dpcri_state_set(dtype, d, k, dpcri_state_get(dtype, d, k) + ((1 - t) * here[k] + t * carried));
        }
    }
}

static double size_of(const cycles *c, int64_t b) {
    const dpcr_dtype dtype = c->steps->dtype;
    double worst = 0;
    for (int64_t l = c->from; l < c->steps->length; l++) {
        const void *d = dpcri_state_at(&c->d, l, b), *z = dpcri_state_at(&c->run->t.z, l, b);
        double most = 0, scale = 1;
        for (int64_t k = 0; k < c->steps->width; k++) {
            const double e = fabs(dpcri_state_get(dtype, d, k));
            if (!(e <= most)) most = isnan(e) ? HUGE_VAL : e;
            scale = fmax(scale, fabs(dpcri_state_get(dtype, z, k)));
        }
        worst = fmax(worst, most / scale);
    }
    return worst;
}

static double rate_of(const cycles *c, int64_t b) { return c->former[b] > 0 ? c->size[b] / c->former[b] : 0; }

// What is left after the correction, by how the corrections shrink; negative: they do not tell. `former_rate`: the
// cycle's before, for what shrinks fast once may be the part that was easy.
static double estimate_of(const cycles *c, int64_t b, double former_rate) {
    const double rate = rate_of(c, b), slower = fmax(rate, fmin(former_rate, slowest_rate));
    const double eps = c->steps->dtype == DPCR_F64 ? 2.2e-16 : 1.2e-7;
    if (!isfinite(c->size[b])) return -1;
    if (c->size[b] <= 8 * eps) return 2 * c->size[b];  // rounding
    const bool tells = c->steps->length >= DPCRI_FEW_STEPS || c->run->plan->options.confirm < 0;
    if (c->former[b] == 0) return tells ? unseen_factor * c->size[b] : HUGE_VAL;
    return rate <= slowest_rate ? seen_factor * c->size[b] / (1 - slower) : -1;
}

static void apply(cycles *c, int64_t b) {
    const dpcr_dtype dtype = c->steps->dtype;
    for (int64_t l = c->from; l < c->steps->length; l++) {
        const void *d = dpcri_state_at(&c->d, l, b);
        void *z = dpcri_state_at(&c->run->t.z, l, b);
        for (int64_t k = 0; k < c->steps->width; k++)
            dpcri_state_set(dtype, z, k, dpcri_state_get(dtype, z, k) + dpcri_state_get(dtype, d, k));
    }
}

static void judge(cycles *c, int64_t b) {
    dpcri_run *run = c->run;
    const dpcr_solve_options *o = &run->plan->options;
    const double estimate = estimate_of(c, b, c->rate[b]), budget = (double)o->max_sweeps * (double)c->steps->length;
    run->sweeps[b]++;
    run->work[b] += c->steps->length - c->from;
    const bool slow = estimate < 0;
    c->rate[b] = rate_of(c, b);
    if (slow && (c->slow[b] || !(rate_of(c, b) <= 1) || !isfinite(c->size[b]))) {  // parareal's turn
        c->active[b] = 0;
        return;
    }
    c->slow[b] = slow;
    if (o->confirm > 0) apply(c, b);
    if (!slow && (o->confirm < 0 || estimate <= o->confirm)) {
        if (o->confirm > 0) run->reason[b] = DPCR_REASON_CONVERGED;
        run->estimate = fmax(run->estimate, estimate);
        c->active[b] = c->pending[b] = 0;
    } else if ((double)(run->work[b] + c->steps->length) > budget + 0.5) {
        c->active[b] = 0;
    }
}

static bool any_active(const cycles *c) {
    for (int64_t b = 0; b < c->steps->batch; b++)
        if (c->active[b]) return true;
    return false;
}

static dpcr_status one_cycle(cycles *c) {
    dpcr_status status;
    dpcri_run *run = c->run;
    const int64_t B = c->steps->batch;
    DPCR_TRY(evaluate(c));
    for (int64_t b = 0; b < B; b++)
        if (c->active[b]) sum_residuals(c, b);
    DPCR_TRY(carry(c));
    run->residual = 0;
    for (int64_t b = 0; b < B; b++) {
        if (!c->active[b]) continue;
        for (int64_t i = 0; i < c->chunks; i++) spread(c, i, b);
        c->former[b] = c->size[b];
        c->size[b] = size_of(c, b);
        run->residual = fmax(run->residual, run->last_residual[b]);
        judge(c, b);
    }
    dpcri_record_sweep(run, run->residual, run->last_residual);
done:
    return status;
}

dpcr_status dpcri_confirm(dpcri_run *run) {
    dpcr_status status = DPCR_OK;
    const dpcr_steps *steps = &run->plan->steps;
    if (!dpcri_confirms(&run->plan->options)) return DPCR_OK;
    cycles c = {.run = run, .steps = steps, .ops = dpcri_row_ops_of(steps->dtype)};
    const bool by_cycles = goes_by_cycles(run->plan);
    if (by_cycles)
        carve(run->plan, &run->arena, &c);
    else
        c.pending = dpcri_arena_take(&run->arena, steps->batch, 1);
    for (int64_t b = 0; b < steps->batch; b++)
        c.pending[b] = run->reason[b] == DPCR_REASON_RESIDUAL_ONLY || run->reason[b] == DPCR_REASON_SCALED;
    for (int64_t b = 0; by_cycles && b < steps->batch; b++) {
        c.active[b] = c.pending[b];
        c.size[b] = c.former[b] = c.rate[b] = 0;
        c.slow[b] = 0;
    }
    while (by_cycles && any_active(&c)) {
        if (dpcri_cancelled(run->plan->context)) return dpcri_fail_stopped(run->error, "solve");
        DPCR_TRY(one_cycle(&c));
    }
    status = dpcri_parareal_from(run, c.pending);
done:
    return status;
}
