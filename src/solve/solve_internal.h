// SPDX-License-Identifier: MIT
// The inside of the nonlinear driver, shared by its methods: the plan, views of trajectories, row operations.
#ifndef DPCRI_SOLVE_INTERNAL_H
#define DPCRI_SOLVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "chain/chain_internal.h"
#include "deeppcr/solve.h"
#include "rt/rt.h"
#include "rt/wisdom.h"
#include "solve/contraction.h"

enum {
    DPCRI_SENTENCE = 480,
    DPCRI_CANDIDATES = 40,
    DPCRI_EVALUATION_TASKS = 16  // tasks that evaluate a window at once; each has scratch of its own
};

struct dpcr_solve_plan {
    dpcr_context *context;
    dpcr_steps steps;
    dpcr_solve_options options;     // every default filled in
    dpcr_solve_options pinned;      // the same as a caller would ask for it
    dpcr_transition transition;     // A of a sweep (sweep methods)
    dpcr_chain_options linear;      // for the linear chain of a sweep
    dpcr_chain_options transposed;  // for the backward pass by a scheme
    int64_t window;                 // steps a sweep looks at
    int64_t piece;                  // steps evaluated by one task while they are in cache
    int64_t row_block, back_block;  // sequences a task of the loop runs, and of the adjoint loop
    int64_t backward_window;        // steps whose adjoint states are held at once
    int64_t join_windows;           // windows between two calls of gradient_join
    bool keep_pieces;               // evaluation tasks go by pieces, never by blocks of sequences
    const double *growth;           // [steps + 1][batch]: how many times a correction of the state that a step takes
                                    // counts (1 or more), of the last the one it gives; NULL: once
    int64_t steps_within;           // a step is so many steps of the caller's; 0: one
    void *terms;                    // [steps][batch][w] of such steps: what is rounded in the last of them; or NULL
    bool windows;                   // newton or shooting by the callback `window`
    double given[2];                // atol and rtol, as the caller gave them
    size_t workspace;
    char sentence[DPCRI_SENTENCE];
    dpcr_candidate candidates[DPCRI_CANDIDATES];  // forward, then backward, each the best first
    int64_t candidate_count;
    dpcri_contraction contraction;
    int64_t device_share[2];  // forward and back: blocks that share a row's units on the device
    double device_barrier, device_bandwidth;
    double planning_seconds;       // that AUTO took,
    int64_t planning_evaluations;  // of a step of a sequence, that it made; when measuring, without the races'
    char key[DPCRI_WISDOM_KEY];    // of the chain in the context's wisdom; empty: nothing was left to AUTO
};

// A trajectory [L][B][w] with its initial state: states by step, where step -1 is z0.
typedef struct dpcri_trajectory {
    dpcr_array z0;  // [B][w]
    dpcr_array z;   // [L][B][w]
} dpcri_trajectory;

// One execute: what every function of the driver needs. Lives on the stack of dpcr_solve_execute.
typedef struct dpcri_run {
    const dpcr_solve_plan *plan;
    dpcri_trajectory t;
    const dpcr_array *tape;  // or NULL
    dpcr_solve_report *report;
    dpcr_error *error;
    // by sequence
    int64_t *front;  // first step that is not locked
    int64_t *exact;  // first step that is not known to have the loop's bits: where finishing in order starts
    int64_t *work;   // step evaluations spent
    int *sweeps;
    int *reason;      // dpcr_reason; 0 while undecided
    int64_t *locked;  // front before any finishing in order
    double *last_estimate, *last_residual;
    unsigned char *residual_only;
    // totals
    double residual, estimate;
    dpcri_arena arena;  // the rest of the workspace, for the method
    double clock;       // when it was last read; negative: the caller wants no report, and nobody reads it
} dpcri_run;

// Seconds since the clock was last read, which it is now; 0 without a report: to read it takes as long as twenty steps
// of a narrow chain.
double dpcri_lap(dpcri_run *run);

// ---- views ----

// The states that go into steps first .. first+count-1, rows row .. row+rows-1, as [count][rows][w]. first = 0 needs
// count = 1.
dpcr_array dpcri_inputs(const dpcri_trajectory *t, int64_t first, int64_t count, int64_t row, int64_t rows);
// The states that come out, likewise.
dpcr_array dpcri_outputs(const dpcri_trajectory *t, int64_t first, int64_t count, int64_t row, int64_t rows);
// A sub-range of an array over (step, row, values): first dimension from `first`, second from `row`.
dpcr_array dpcri_slice(const dpcr_array *array, int64_t first, int64_t count, int64_t row, int64_t rows);
// [a][b][c] -> [1][a][b][c] and [a][1][b][c]: a lane of many steps, lanes of one step.
dpcr_array dpcri_as_steps(const dpcr_array *array);
dpcr_array dpcri_as_lanes(const dpcr_array *array);

// Steps from .. to - 1 of sequence b become copies of state [1][1][w]; NULL: of the state before them.
void dpcri_hold(dpcri_run *run, int64_t b, const dpcr_array *state, int64_t from, int64_t to);

// The callback advance; a positive code makes all that a lane was to write not finite, of lanes that go from `in` to a
// `last` that is `in` all of them. Returns 0 or a negative code.
int dpcri_advance(const dpcr_steps *steps, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                  const dpcr_array *last, const dpcr_array *tape);

// for i < tasks: task(argument, i), side by side where the callbacks allow it and `flops` are worth a parallel region.
void dpcri_for_tasks(const dpcr_solve_plan *plan, double flops, int64_t tasks, void (*task)(void *, int64_t),
                     void *argument);

// The same; false where the caller's cancel function, asked now and then on the way, said stop: tasks were left out
// then.
bool dpcri_for_tasks_or_stop(const dpcr_solve_plan *plan, double flops, int64_t tasks, void (*task)(void *, int64_t),
                             void *argument);

// So many flops of steps, or, of steps that take long by what is told of their latency, or of which nothing is told,
// more than any.
double dpcri_flops_to_watch(const dpcr_steps *steps, double flops);

enum { DPCRI_LOOK_STEPS = 64 };

// How many steps one thread makes between two looks at the caller's cancel function: begins with few, and goes on by
// the clock to those of a twentieth of a second, at most as many as their flops allow, or DPCRI_LOOK_STEPS. Where a
// stretch ends changes no bit.
typedef struct dpcri_pace {
    int64_t steps;  // from look to look,
    int64_t most;   // at most
    int64_t ran;    // since the last one,
    double began;   // which was then; negative: there are no looks, or none that hang on the clock
} dpcri_pace;

// `sequences`: that each step is made of, lanes times rows; `steps`: that there are to make, at most.
void dpcri_pace_begin(dpcri_pace *pace, const dpcr_solve_plan *plan, double sequences, int64_t steps);
// Of the steps that are left those up to the next look, at least 1 where any are.
int64_t dpcri_pace_stretch(const dpcri_pace *pace, int64_t left);
// `steps` more are made; whether it is time for a look.
bool dpcri_pace_over(dpcri_pace *pace, int64_t steps);

// Looks of several threads, each at its own pace.
typedef struct dpcri_looks {
    const dpcr_solve_plan *plan;
    pthread_t caller;  // cancel functions are asked on the thread that called
    _Atomic bool stopped;
} dpcri_looks;

void dpcri_looks_begin(dpcri_looks *looks, const dpcr_solve_plan *plan);
bool dpcri_looks_stopped(dpcri_looks *looks);

dpcr_span dpcri_span(int64_t first, int64_t lanes, int64_t stride, int64_t steps, int64_t row, int64_t rows);

// ---- row operations, by dtype; all loops over [count][rows][w] views, last dimension contiguous ----

// Where f has kinks: what a residual has to be to be rounding.
typedef struct dpcri_rounding {
    dpcr_transition transition;  // of `a`
    double part;                 // of the terms of f_i: |f_i|, every |J_ij z_j|, and what `more` says
    dpcr_array before;           // [1][rows][w]: the states that go into the first step
    dpcr_array more;             // [count][rows][w], data NULL: nothing
    // Sums of J's bits in the sweep before, of step l and sequence row + b at [l modulo window][row + b] of [window]
    // [batch], and then of this one: of f that is affine between kinks they change where a unit turns. NULL: it is not.
    uint64_t *units;
    int64_t window, batch, row;
} dpcri_rounding;

// Which steps whose residuals are right an update leaves as they are: none, all, or those whose corrections are within
// tolerance too.
typedef enum dpcri_hold_of { DPCRI_HOLD_NONE, DPCRI_HOLD_ALL, DPCRI_HOLD_CONFIRMED } dpcri_hold_of;

typedef struct dpcri_row_ops {
    void (*copy)(const dpcr_array *from, const dpcr_array *to);
    void (*add)(const dpcr_array *from, const dpcr_array *to);  // to += from
    void (*fill)(const dpcr_array *to, double value);
    // r = f - z; for every row the count of leading steps within tolerance and the largest |r| / max(1, |z|). Where f
    // or a is not finite: A = 0, and r = 0 where f is not. Steps before front[row] get r = 0 and A = 0, the front
    // itself A = 0. Tolerances are those of step l times scale[l], by absolute step; NULL: 1. With `rounding` a step is
    // within them where each of its residuals is that, too.
    void (*residual)(const dpcr_array *f, const dpcr_array *z, const dpcr_array *r, const dpcr_array *a, int64_t values,
                     int64_t first, const int64_t *front, double atol, double rtol, const double *scale, double damping,
                     const dpcri_rounding *rounding, int64_t *good, double *worst, unsigned char *front_bad);
    // z += delta (z = f at the front and where the sum is not finite, reset[row] where f is not either), for steps >=
    // front[row]; counts the leading steps whose correction is within tolerance (`mean`: whose mean square is within
    // (scale[l] atol)^2), and gives the largest correction / max(1, |z|) before until[row]. By `hold` steps before
    // until[row] stay as their residual was measured. A correction counts growth times ([l][row] double; NULL: once).
    void (*update)(const dpcr_array *z, const dpcr_array *f, const dpcr_array *delta, int64_t first,
                   const int64_t *front, const void *const *reset, const int64_t *until, dpcri_hold_of hold, bool mean,
                   double atol, double rtol, const double *scale, const dpcr_array *growth, int64_t *good,
                   double *estimate);
    // estimate[row] = max(estimate[row], largest growth |delta| / max(1, |z|)); delta of the last step goes to carry
    // [B][w]
    void (*measure)(const dpcr_array *z, const dpcr_array *delta, const dpcr_array *growth, double *estimate,
                    const dpcr_array *carry);
    // most[row] = max(most[row], the largest sum of |m| over `run` values / max(1, |z|)), m [1][B][values], z [1][B][w]
    void (*grow)(const dpcr_array *m, int64_t run, const dpcr_array *z, double *most);
    // to [1][B][w] = the sums of |J_ij z_j|, a [1][B][values], z [1][B][w]; of structures that have values
    void (*terms)(const dpcr_transition *transition, const dpcr_array *a, const dpcr_array *z, const dpcr_array *to);
    // most[row] = max(1, |z|)
    void (*size)(const dpcr_array *z, double *most);
    // true when every |x - y| <= atol + rtol |y| of the row; bit equality when both are 0
    bool (*close)(const void *x, const void *y, int64_t width, double atol, double rtol);
    // largest |x - y| / max(1, |y|)
    double (*distance)(const void *x, const void *y, int64_t width);
    // largest |x - y| / the largest |x|, |y|; of the same numbers 0
    double (*apart)(const void *x, const void *y, int64_t width);
    // values of a structure on the diagonal of a dense matrix or of larger blocks
    void (*extract)(const dpcr_transition *from, const dpcr_array *a, const dpcr_transition *to, const dpcr_array *b);
} dpcri_row_ops;

const dpcri_row_ops *dpcri_row_ops_of(dpcr_dtype dtype);

// ---- parts of the driver ----

// The loop for rows [row, row+rows) from step `from` to the end, or to `to`.
dpcr_status dpcri_run_loop(dpcri_run *run, int64_t from, int64_t to, int64_t row, int64_t rows);
// Finishes in order every sequence that is not done; sets its reason.
dpcr_status dpcri_finish_in_order(dpcri_run *run, dpcr_reason reason);

dpcr_status dpcri_solve_sequential(dpcri_run *run);
dpcr_status dpcri_solve_sweeps(dpcri_run *run);
dpcr_status dpcri_solve_overlap(dpcri_run *run);
dpcr_status dpcri_solve_shooting(dpcri_run *run);
dpcr_status dpcri_solve_windows(dpcri_run *run);
dpcr_status dpcri_solve_parareal(dpcri_run *run);
dpcr_status dpcri_solve_parataa(dpcri_run *run);
// Parareal from the states that stand, for error estimates of those sequences.
dpcr_status dpcri_parareal_from(dpcri_run *run, const unsigned char *pending);
// Error estimates of what a method left without one (option confirm), by cycles, else by parareal; whether there are
// any, and whether their coarse steps go by Jacobians.
dpcr_status dpcri_confirm(dpcri_run *run);
void dpcri_confirm_carve(const dpcr_solve_plan *plan, dpcri_arena *arena);
bool dpcri_coarse_is_linear(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t chunks);
bool dpcri_confirms(const dpcr_solve_options *options);
// Cycles that are expected of it: two or three that correct, or one that estimates.
double dpcri_confirm_cycles(const dpcr_solve_options *options);
// Of chains with fewer steps no error estimate goes by one correction alone.
enum { DPCRI_FEW_STEPS = 32 };
// Fills z as the option guess says, but for STATE and GIVEN. zero: scratch of a state.
dpcr_status dpcri_make_guess(dpcri_run *run, void *zero);
// Whether the callback `window` serves these options (every default filled in but the scheme's).
bool dpcri_solve_has_windows(const dpcr_steps *steps, const dpcr_solve_options *options);
enum { DPCRI_WINDOW_RUN_UP = 64 };  // steps before a piece's first
// Threads, of so many, that solve one sequence by `window` with these options; 1: one.
int64_t dpcri_window_threads(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t threads);
// How many times sooner such a team has solved one sequence; 1 where as much is won by sequences side by side.
double dpcri_window_team_gain(const dpcr_steps *steps, const dpcr_solve_options *options, int64_t threads);
// Pieces that `window` solves side by side where the chain forgets within the run-up of each; 1: none.
int64_t dpcri_window_pieces(const dpcr_steps *steps);

// What a method's own workspace takes; the same function carves it (see dpcri_arena).
typedef struct dpcri_sweep_space {
    void *f, *r, *a, *dense;  // [window][B][w], [window][B][w], [window][B][values], scratch of the evaluation tasks
    int64_t *good, *delta_good;
    double *worst, *estimate;
    unsigned char *front_bad;
    int64_t *until;          // [B] first step whose residual is not within tolerance
    void *carry;             // [B][w] correction that comes into the window of a verification
    unsigned char *partial;  // [B] not 0 where steps were locked before the last round
    const void **reset;      // [B] the last locked state: where an iterate goes that is not finite
    int64_t *masked;         // [B] the front, or L where the sequence is not at work
    int64_t *filled;         // [B] steps that have a guess
    uint64_t *units;         // [window][B]: dpcri_rounding's; NULL where f is not affine between kinks
    int *crept;              // [B] sweeps in a row that brought the chain on by next to nothing
    unsigned char *active;   // [B] sequences that are still at work
    void *linear;
} dpcri_sweep_space;
void dpcri_sweep_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_sweep_space *space);

// K chunks.
typedef struct dpcri_overlap_space {
    void *starts, *ends;  // [K][B][w]: the state each chunk started from; scratch of the reruns
    double *met;  // [K][B]: the largest distance at which reruns met what was stored, if not bit for bit; else 0
    unsigned char *rerun;  // [K][B]: 1 where the chunk must run again
} dpcri_overlap_space;
// Within what its chunks join, going forward, and whether that is nothing; of options whose defaults are filled in.
void dpcri_join_within(const dpcr_solve_options *options, double *atol, double *rtol);
// Two states this far apart, beside the larger one, are no two of one chain that forgot its past, however small both.
#define DPCRI_DOUBT 0.01
bool dpcri_joins_in_bits(const dpcr_solve_options *options);
void dpcri_overlap_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_overlap_space *space);
// Chunks that a chain is cut into unless it is said: those of twice their warm-up, as many as groups of `lanes`, one
// call each, take. Two groups at least where the chain is long enough, so that two threads find work; then a power of
// two, which threads share evenly, with chunks of eight to sixteen warm-ups, longer ones where a call has few lanes:
// those save on run-ups, not on what fills a call. Fewer than eight, where lanes are no places of vectors, are a power
// of two, or one more, of one and a half warm-ups, where that makes one: kernels take such counts whole, threads
// halves.
int64_t dpcri_overlap_chunks(const dpcr_steps *steps, int64_t length, int64_t warm_up);
// Chunks that a call likes to take; 16 where the callbacks do not say.
int64_t dpcri_overlap_call(const dpcr_steps *steps);
// Steps a chunk of overlap with this plan's steps, chunk and warm-up; the mean, where some are longer.
int64_t dpcri_overlap_chunk(const dpcr_solve_plan *plan);
// Appends a sweep to the report's histories: largest residual (or defect) and fronts. by_sequence [B] or NULL: the same
// for all.
void dpcri_record_sweep(dpcri_run *run, double residual, const double *by_sequence);
void dpcri_parareal_carve(const dpcr_solve_plan *plan, dpcri_arena *arena);
void dpcri_parataa_carve(const dpcr_solve_plan *plan, dpcri_arena *arena);
size_t dpcri_shooting_bytes(const dpcr_solve_plan *plan, dpcr_error *error);
// Whether backward by the scheme overlap is served.
bool dpcri_backward_can_overlap(const dpcr_steps *steps);
enum { DPCRI_VECTOR_LANES = 16 };  // callbacks that like as many run them as places of vectors
// Chunks that one call of overlap's takes, going on or back: no more than leave every thread some, but where the
// callback tells lanes that are the places of vectors, and there are more than two a thread. A chunk's bits hang on
// neither: each is the loop's.
bool dpcri_overlap_fills(const dpcr_steps *steps);
int64_t dpcri_overlap_lanes(const dpcr_steps *steps, int64_t chunks, int64_t threads);
// Whether chunks of so many narrow steps lie pages apart, so that all of a call's fall on the same few sets of the
// first cache; the driver's own do not.
bool dpcri_overlap_aliased(const dpcr_steps *steps, int64_t chunk);
// Whether the plan goes back by the callback adjoint_window, and how many times faster so many threads are than one.
bool dpcri_backward_by_windows(const dpcr_solve_plan *plan);
double dpcri_backward_team_gain(const dpcr_steps *steps, int64_t threads);
size_t dpcri_backward_bytes(const dpcr_solve_plan *plan);
// Workspace of execute with this plan; SIZE_MAX on overflow.
size_t dpcri_solve_bytes(const dpcr_solve_plan *plan, dpcr_error *error);
// Sequences whose states of one step lie on one cache line, at least 1: two tasks would write it in turn.
int64_t dpcri_rows_of_line(const dpcr_steps *steps);
// Sequences that one task of the loop runs: enough for the kernels' rows, and no fewer than a line's.
int64_t dpcri_row_block(const dpcr_steps *steps);
int64_t dpcri_back_block(const dpcr_steps *steps);
// Rows row .. row + rows - 1 in blocks of `block`, a task each, for steps from .. to - 1: where block k begins, k up to
// their number. A few blocks of sequences that end before the chain does are of about as many steps instead, whatever
// the threads; some may be empty.
int64_t dpcri_block_begin(const dpcr_steps *steps, int64_t from, int64_t to, int64_t row, int64_t rows, int64_t block,
                          int64_t k);
// Steps of a window of the adjoint loop.
int64_t dpcri_loop_back_window(const dpcr_steps *steps);
// Who makes the parameters' gradients of the adjoint loop: its thread, all threads after each window, or the other
// threads while it goes on.
typedef enum dpcri_gradients { DPCRI_GRADIENTS_ALONE, DPCRI_GRADIENTS_AFTER, DPCRI_GRADIENTS_BESIDE } dpcri_gradients;
dpcri_gradients dpcri_gradients_go(const dpcr_steps *steps, int64_t window, int64_t threads);
// Fills the derived fields of a plan (transition, linear, piece, row_block) from steps and options; window as set.
dpcr_status dpcri_plan_derive(dpcr_solve_plan *plan, dpcr_error *error);

// Arguments: array is [shape...] of dtype on the host with a contiguous last dimension, or the call is refused in
// words.
dpcr_status dpcri_check_array(const char *call, const char *name, const dpcr_array *array, dpcr_dtype dtype, int ndim,
                              const int64_t *shape, dpcr_error *error);
// The same on another device, where besides every number has to lie on a multiple of its size.
dpcr_status dpcri_check_array_on(const char *call, const char *name, const dpcr_array *array, dpcr_dtype dtype,
                                 dpcr_device device, int ndim, const int64_t *shape, dpcr_error *error);
dpcr_status dpcri_check_trajectory(const char *call, const dpcr_solve_plan *plan, const dpcr_array *z0,
                                   const dpcr_array *z, const dpcr_array *tape, dpcr_error *error);
dpcr_status dpcri_check_workspace(const char *call, const dpcr_solve_plan *plan, const void *workspace, size_t bytes,
                                  dpcr_error *error);
// The i-th of reports side by side, which are as large as in the caller's program; of NULL NULL.
dpcr_solve_report *dpcri_report_at(dpcr_solve_report *reports, int64_t i);
// Of reports [count], or NULL: nothing could be told in one whose size is not set, its reason least of all.
dpcr_status dpcri_check_reports(const char *call, dpcr_solve_report *reports, int64_t count, dpcr_error *error);

// The transition of a sweep for this method over this exact Jacobian; DPCR_ERROR_UNSUPPORTED when it cannot be had.
dpcr_status dpcri_method_transition(const dpcr_steps *steps, const dpcr_solve_options *options,
                                    dpcr_transition *transition, dpcr_error *error);

// Chooses method, scheme and backward for the plan's AUTO fields; writes the sentence and the candidates.
dpcr_status dpcri_planner_choose(dpcr_solve_plan *plan, dpcr_error *error);

// DPCR_ERROR_UNSUPPORTED for a solve that did not converge and was told not to fall back; `call`: what it was for.
dpcr_status dpcri_refuse_unconverged(const char *call, const dpcr_solve_report *report, dpcr_error *error);

static inline bool dpcri_is_worse(dpcr_reason a, dpcr_reason b) { return a != b && dpcr_reason_worse(a, b) == a; }

// Refuses scales that are negative or no number.
dpcr_status dpcri_check_step_scale(const dpcr_solve_options *options, int64_t length, dpcr_error *error);

// ---- device.c: plans of a device ----

bool dpcri_solve_on_device(const dpcr_solve_options *options);
// Checks the device, the options and what the chain's launch serves; sets workspace, sentence and defaults.
dpcr_status dpcri_solve_plan_device(dpcr_solve_plan *plan, dpcr_error *error);
// AUTO's method where it is known from a measurement or measured now (planning), with candidates and sentence; else it
// is left AUTO, *told why nothing was measured, or NULL: it was not wanted. device_measure.c.
dpcr_status dpcri_device_measured(dpcr_solve_plan *plan, const dpcr_device_info *info, const char *where,
                                  const char **told, dpcr_error *error);
// A step of wide units by the loop on a device, one block a few rows or several that share a row's units: what it is
// priced by (device_share.c).
typedef struct dpcri_device_step {
    int passes;            // products, each of which begins with what the one before made
    int64_t terms;         // of a unit's sums, all passes together, one after another
    int64_t shared_terms;  // where units are shared: of the sums that a block makes one after another
    double bytes;          // of weights
    int whole;             // are all of them one tile of one block? (kern/cuda/layers.h, narrow)
    int64_t groups, rows;  // where units are shared: groups of rows, which all read the weights, and rows of one
} dpcri_device_step;
double dpcri_device_alone_seconds(const dpcri_device_step *step, double bandwidth);
double dpcri_device_shared_seconds(const dpcri_device_step *step, double barrier, double bandwidth);
// Seconds of a barrier of all blocks of a device: known from the context's wisdom, else measured, or what such devices
// usually take.
double dpcri_device_barrier(dpcr_context *context, dpcr_device device, const dpcr_device_info *info);

// Refuses what has no meaning there; `sweeps`: picard has.
dpcr_status dpcri_device_check_options(const dpcr_solve_options *options, bool sweeps, dpcr_error *error);
// Fills in tolerances, method (of `columns` that need nothing of each other) and max_sweeps.
void dpcri_device_defaults(dpcr_solve_options *options, dpcr_dtype dtype, int64_t length, int64_t columns,
                           int processors);
void dpcri_device_sentence(dpcr_method asked, dpcr_method method, const char *where, const char *name, char *text,
                           size_t bytes);
dpcr_status dpcri_check_device_workspace(const char *call, const void *workspace, size_t bytes, size_t wanted,
                                         dpcr_error *error);
// What kernels wrote of `batch` sequences as a report; times, bytes and sentence are the caller's.
void dpcri_device_report(const dpcr_solve_options *options, int64_t length, int64_t batch,
                         const dpcr_device_outcome *outcomes, dpcr_solve_report *report);

// A negative callback code becomes an error.
dpcr_status dpcri_callback_status(dpcri_run *run, const char *what, int code);

// Option or report fields as far as the caller's size reaches.

#endif
