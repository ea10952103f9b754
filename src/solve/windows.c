// SPDX-License-Identifier: MIT
// Newton and shooting inside the callback: where a chain's steps bring a whole method of their own (dpcr_steps.window),
// each sequence is one call, which cuts the chain into windows and solves them one after the other without leaving
// registers and cache, or several calls, which share the windows. What was measured is judged here; a sequence that
// could not be brought to the end is finished in order, from its beginning: a window's states are right to the
// tolerance only.
//
// A long chain that forgets is cut into pieces of fixed length, which are solved side by side. A piece starts from what
// a run-up of the loop makes of z0; that is tried from two starts first, which must meet at the end of every run-up.
// What a piece's start misses of the end of the piece before it shows in the residual of its first step, which is
// measured; where either is not within tolerance, all that follows is solved anew. Nothing of this depends on the
// number of threads. Derivations: docs/math/newton.md, docs/math/shooting.md, docs/math/windows.md.
#include <math.h>
#include <string.h>

#include "solve/solve_internal.h"

bool dpcri_solve_has_windows(const dpcr_steps *steps, const dpcr_solve_options *options) {
    if (!steps->window || options->window || options->guess == DPCR_GUESS_GIVEN || options->step_scale) return false;
    if (options->atol == 0 && options->rtol == 0) return false;  // they leave no state of the step's own making
    if (options->method == DPCR_METHOD_NEWTON) return options->scheme == DPCR_SCHEME_AUTO;
    return options->method == DPCR_METHOD_SHOOTING && !options->chunk;
}

enum {
    LEAST_PIECE = 16384,
    LEAST_TEAM = 8192,  // numbers of its states
    FIRST_LOOK = 8,     // steps of a run-up
    MOST_PIECES = 16,
    LINE = 64,      // bytes of a cache line
    MOST_ROWS = 16  // states of float on one
};

typedef struct windows_job {
    dpcri_run *run;
    int64_t rows;           // sequences of a group: those whose states share cache lines
    int64_t piece, pieces;  // steps of a piece
    int64_t threads;        // that work on one sequence
    double flops;           // of all
    _Atomic int64_t evaluations;
    _Atomic int code;
} windows_job;

// Sequences [row, row + rows).
typedef struct group {
    windows_job *job;
    int64_t row, rows;
    _Alignas(LINE) char starts[(MOST_PIECES - 1) * LINE], others[(MOST_PIECES - 1) * LINE];  // [pieces - 1][rows][w]
    bool met[MOST_ROWS];
    dpcr_window found[MOST_ROWS][MOST_PIECES];
} group;

// Steps [first, first + count) of sequence b from in [1][1][w]; with a team, what one call of several does of them.
static dpcr_window team_span(windows_job *job, int64_t b, int64_t first, int64_t count, const dpcr_array *in,
                             void *team, bool closing) {
    const dpcr_solve_plan *plan = job->run->plan;
    dpcr_window window = {.size = sizeof window,
                          .method = (int)plan->options.method,
                          .atol = plan->options.atol,
                          .rtol = plan->options.rtol,
                          .max_sweeps = plan->options.max_sweeps,
                          .estimate = -1,
                          .team = team,
                          .closing = closing};
    const dpcr_array z = dpcri_outputs(&job->run->t, first, count, b, 1), states = dpcri_as_steps(&z);
    const dpcr_span span = dpcri_span(first, 1, 1, count, b, 1);
    const int code = plan->steps.window(plan->steps.user, &span, in, &states, &window);
    if (code < 0) job->code = code;
    if (code > 0) window.good = 0;
    if (team && !closing) return window;
    job->evaluations += window.sweeps * count;
    // What is not solved may not be stored. The state before the span is another piece's, which may still be at it.
    if (plan->options.no_fallback)
        dpcri_hold(job->run, b, window.good > 0 ? NULL : in, first + window.good, first + count);
    return window;
}

static dpcr_window solve_span(windows_job *job, int64_t b, int64_t first, int64_t count, const dpcr_array *in) {
    return team_span(job, b, first, count, in, NULL, false);
}

typedef struct team_job {
    windows_job *job;
    int64_t row;
    _Alignas(LINE) char memory[DPCR_WINDOW_TEAM_BYTES];
} team_job;

static void take_part(void *argument, int64_t i) {
    team_job *t = argument;
    const dpcr_array in = dpcri_inputs(&t->job->run->t, 0, 1, t->row, 1);
    (void)i;
    team_span(t->job, t->row, 0, t->job->run->plan->steps.length, &in, t->memory, false);
}

// By the calling thread, or by several: the same numbers.
static dpcr_window solve_whole(windows_job *job, int64_t b, bool spread) {
    const int64_t length = job->run->plan->steps.length;
    const dpcr_array in = dpcri_inputs(&job->run->t, 0, 1, b, 1);
    if (!spread || job->threads < 2) return solve_span(job, b, 0, length, &in);
    team_job t;
    t.job = job, t.row = b;
    memset(t.memory, 0, sizeof t.memory);
    dpcri_for_tasks(job->run->plan, job->flops, job->threads, take_part, &t);
    return team_span(job, b, 0, length, &in, t.memory, true);
}

static void judge(dpcri_run *run, int64_t b, const dpcr_window *window) {
    const dpcr_solve_plan *plan = run->plan;
    run->sweeps[b] = window->sweeps;
    run->last_residual[b] = window->residual;
    run->last_estimate[b] = window->estimate;
    run->front[b] = run->locked[b] = window->good;
    if (window->good < plan->steps.length) {
        if (plan->options.no_fallback) run->reason[b] = DPCR_REASON_NOT_CONVERGED;
        return;
    }
    const bool confirmed = window->estimate >= 0 && window->estimate <= plan->options.atol + plan->options.rtol;
    run->reason[b] = confirmed ? DPCR_REASON_CONVERGED : DPCR_REASON_RESIDUAL_ONLY;
}

int64_t dpcri_window_threads(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t threads) {
    const int64_t most = steps->window_threads < threads ? steps->window_threads : threads;
    const bool long_enough = steps->length >= (LEAST_TEAM + steps->width - 1) / steps->width;
    return steps->concurrent && options->method == DPCR_METHOD_SHOOTING && long_enough && most > 1 ? most : 1;
}

double dpcri_window_team_gain(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t threads) {
    const double share = 0.6;  // of a thread that joins another, measured for two
    const int64_t rows = dpcri_rows_of_line(steps), groups = (steps->batch + rows - 1) / rows;
    const double gain = 1 + share * (double)(dpcri_window_threads(steps, options, threads) - 1);
    const double beside = (double)steps->batch / (double)(rows < steps->batch ? rows : steps->batch);
    return groups < threads && groups > 0 && gain > beside ? gain : 1;
}

// ---- pieces ----

int64_t dpcri_window_pieces(const dpcr_steps *steps) {
    const int64_t pieces = steps->length / LEAST_PIECE, state = steps->width * (int64_t)dpcr_dtype_size(steps->dtype);
    if (!steps->concurrent || state > LINE || pieces < 2) return 1;
    return pieces < MOST_PIECES ? pieces : MOST_PIECES;
}

static dpcr_array starts_of(const group *g, const void *memory) {
    const dpcr_steps *steps = &g->job->run->plan->steps;
    const int64_t shape[3] = {g->job->pieces - 1, g->rows, steps->width};
    return dpcr_array_make((void *)(uintptr_t)memory, steps->dtype, 3, shape);
}

// Runs both starts of every piece `steps` steps on, from so many before the piece.
static void approach(group *g, const dpcr_array *from, int64_t before, int64_t steps) {
    windows_job *job = g->job;
    const int64_t lanes = job->pieces - 1;
    const dpcr_span span = dpcri_span(job->piece - before, lanes, job->piece, steps, g->row, g->rows);
    for (int i = 0; i < 2; i++) {
        const int code = dpcri_advance(&job->run->plan->steps, &span, &from[i], NULL, &from[i], NULL);
        if (code < 0) job->code = code;
        job->evaluations += lanes * g->rows * steps;
    }
}

static bool all_meet(const group *g, const dpcr_array *from, int64_t r, double atol, double rtol) {
    const dpcr_steps *steps = &g->job->run->plan->steps;
    bool meet = true;
    for (int64_t c = 0; c < g->job->pieces - 1; c++) {
        const dpcr_array a = dpcri_slice(&from[0], c, 1, r, 1), b = dpcri_slice(&from[1], c, 1, r, 1);
        meet = meet && dpcri_row_ops_of(steps->dtype)->close(b.data, a.data, steps->width, atol, rtol);
    }
    return meet;
}

// Run-ups of all pieces from z0, and from a distance of one; which sequences' meet everywhere. Those that are not half
// as far apart after a few steps are looked at no further.
static void run_up(group *g) {
    windows_job *job = g->job;
    const dpcr_solve_plan *plan = job->run->plan;
    const dpcr_steps *steps = &plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    const dpcr_array from[2] = {starts_of(g, g->starts), starts_of(g, g->others)};
    const dpcr_array z0 = dpcri_inputs(&job->run->t, 0, 1, g->row, g->rows);
    const int64_t lanes = job->pieces - 1, values = lanes * g->rows * steps->width;
    for (int64_t c = 0; c < lanes; c++) {
        const dpcr_array here = dpcri_slice(&from[0], c, 1, 0, g->rows);
        ops->copy(&z0, &here);
    }
    for (int64_t i = 0; i < values; i++)
        if (steps->dtype == DPCR_F64)
            ((double *)from[1].data)[i] = ((double *)from[0].data)[i] + (((double *)from[0].data)[i] > 0 ? -1 : 1);
        else
            ((float *)from[1].data)[i] = ((float *)from[0].data)[i] + (((float *)from[0].data)[i] > 0 ? -1 : 1);
    approach(g, from, DPCRI_WINDOW_RUN_UP, FIRST_LOOK);
    for (int64_t r = 0; r < g->rows; r++) g->met[r] = all_meet(g, from, r, 0.5, 0);
    bool any = false;
    for (int64_t r = 0; r < g->rows; r++) any = any || g->met[r];
    if (!any) return;
    approach(g, from, DPCRI_WINDOW_RUN_UP - FIRST_LOOK, DPCRI_WINDOW_RUN_UP - FIRST_LOOK);
    for (int64_t r = 0; r < g->rows; r++)
        g->met[r] = g->met[r] && all_meet(g, from, r, plan->options.atol / 8, plan->options.rtol / 8);
}

static void solve_piece(void *argument, int64_t c) {
    group *g = argument;
    windows_job *job = g->job;
    const int64_t first = c * job->piece, left = job->run->plan->steps.length - first;
    const int64_t count = c + 1 < job->pieces ? job->piece : left;
    const dpcr_array starts = starts_of(g, g->starts);
    for (int64_t r = 0; r < g->rows; r++) {
        if (!g->met[r]) continue;
        const dpcr_array in =
            c > 0 ? dpcri_slice(&starts, c - 1, 1, r, 1) : dpcri_inputs(&job->run->t, 0, 1, g->row + r, 1);
        g->found[r][c] = solve_span(job, g->row + r, first, count, &in);
    }
}

// The residual of step l: one step from where the piece before it ended, against what is stored. Whether it is within
// tolerance.
static bool step_meets(windows_job *job, int64_t b, int64_t l, const dpcr_array *end, double *missed) {
    const dpcr_solve_options *o = &job->run->plan->options;
    const dpcr_steps *steps = &job->run->plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    _Alignas(LINE) char state[LINE];
    const int64_t shape[3] = {1, 1, steps->width};
    const dpcr_array next = dpcr_array_make(state, steps->dtype, 3, shape);
    const dpcr_array stored = dpcri_outputs(&job->run->t, l, 1, b, 1);
    const dpcr_span span = dpcri_span(l, 1, 1, 1, b, 1);
    const int code = dpcri_advance(steps, &span, end, NULL, &next, NULL);
    if (code < 0) job->code = code;
    job->evaluations++;
    *missed = ops->distance(next.data, stored.data, steps->width);
    return code >= 0 && ops->close(next.data, stored.data, steps->width, o->atol, o->rtol);
}

// What the pieces of a sequence come to as one.
static dpcr_window join(group *g, int64_t r) {
    windows_job *job = g->job;
    const dpcr_solve_options *o = &job->run->plan->options;
    const dpcr_steps *steps = &job->run->plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    const dpcr_array starts = starts_of(g, g->starts);
    dpcr_window whole = g->found[r][0];
    for (int64_t c = 1; c < job->pieces && whole.good == c * job->piece; c++) {
        const int64_t at = c * job->piece, b = g->row + r;
        const dpcr_array start = dpcri_slice(&starts, c - 1, 1, r, 1), end = dpcri_inputs(&job->run->t, at, 1, b, 1);
        double missed = 0;
        const bool met =
            ops->close(start.data, end.data, steps->width, o->atol, o->rtol) && step_meets(job, b, at, &end, &missed);
        const dpcr_window next = met ? g->found[r][c] : solve_span(job, b, at, steps->length - at, &end);
        missed = met ? fmax(missed, ops->distance(start.data, end.data, steps->width)) : 0;
        whole.sweeps = next.sweeps > whole.sweeps ? next.sweeps : whole.sweeps;
        whole.residual = fmax(missed, fmax(whole.residual, next.residual));
        const bool confirmed = whole.estimate >= 0 && next.estimate >= 0;
        whole.estimate = confirmed ? fmax(missed, fmax(whole.estimate, next.estimate)) : -1;
        whole.good = at + next.good;
        if (!met) break;
    }
    return whole;
}

// By the calling thread, or its pieces by several: the same numbers.
static void solve_group(windows_job *job, int64_t index, bool spread) {
    const dpcr_solve_plan *plan = job->run->plan;
    const int64_t row = index * job->rows, left = plan->steps.batch - row;
    group g;  // mostly never touched: too large to be cleared for nothing
    g.job = job, g.row = row, g.rows = left < job->rows ? left : job->rows;
    for (int64_t r = 0; r < g.rows; r++) g.met[r] = false;
    if (job->pieces > 1) run_up(&g);
    if (job->code < 0) return;
    if (job->pieces > 1 && spread)
        dpcri_for_tasks(plan, job->flops, job->pieces, solve_piece, &g);
    else if (job->pieces > 1)
        for (int64_t c = 0; c < job->pieces; c++) solve_piece(&g, c);
    for (int64_t r = 0; r < g.rows; r++) {
        const dpcr_window whole = g.met[r] ? join(&g, r) : solve_whole(job, g.row + r, spread);
        judge(job->run, g.row + r, &whole);
    }
}

static void group_task(void *argument, int64_t index) { solve_group(argument, index, false); }

dpcr_status dpcri_solve_windows(dpcri_run *run) {
    const dpcr_steps *steps = &run->plan->steps;
    windows_job job = {
        .run = run,
        .rows = dpcri_rows_of_line(steps),
        .pieces = dpcri_window_pieces(steps),
        .threads = dpcri_window_threads(steps, &run->plan->options, dpcr_context_threads(run->plan->context)),
        .flops = (double)steps->length * (double)steps->batch * steps->flops};
    job.piece = steps->length / job.pieces;
    const int64_t groups = (steps->batch + job.rows - 1) / job.rows;
    const int64_t threads = dpcr_context_threads(run->plan->context);
    if ((groups < threads && job.pieces > 1) || dpcri_window_team_gain(steps, &run->plan->options, threads) > 1)
        for (int64_t i = 0; i < groups; i++) solve_group(&job, i, true);
    else
        dpcri_for_tasks(run->plan, job.flops, groups, group_task, &job);
    run->report->seconds_evaluate = dpcri_lap(run);
    run->report->evaluations += job.evaluations;
    for (int64_t b = 0; b < steps->batch; b++) {
        run->residual = fmax(run->residual, run->last_residual[b]);
        run->estimate = fmax(run->estimate, run->last_estimate[b]);
    }
    dpcri_record_sweep(run, run->residual, run->last_residual);
    return dpcri_callback_status(run, "window", job.code);
}
