// SPDX-License-Identifier: MIT
// The planner's parts: the cost model, candidates, measurement, wisdom.
#ifndef DPCRI_PLANNER_H
#define DPCRI_PLANNER_H

#include "rt/watch.h"
#include "solve/solve_internal.h"

// Methods whose sweeps are remembered one by one, in this order.
enum { DPCRI_TOLD = 3 };
static const dpcr_method dpcri_told[DPCRI_TOLD] = {DPCR_METHOD_PICARD, DPCR_METHOD_PARAREAL, DPCR_METHOD_PARATAA};

// Seconds that were timed on a stretch of the chain, on one thread (block and adjoint_block, of a loop that is one
// task, on as many as its steps take by themselves); 0: not known.
typedef struct dpcri_costs {
    double block;          // of one step of the loop, of as many sequences as the driver gives one task
    double lane;           // of one step, lane and sequence of a call with many lanes
    double jacobian;       // of one Jacobian of one sequence
    double adjoint_block;  // of one step of the adjoint loop, as block
    double adjoint_lane;   // as lane
    double sweep;          // of one step of one lane and sequence, in a call with as many lanes as a window has
    bool at_best;          // all but block are no more than bounds from below, by the processor's peak
} dpcri_costs;

// What a prediction goes by.
typedef struct dpcri_outlook {
    dpcr_context *context;
    const dpcr_steps *steps;
    const dpcr_solve_options *options;  // as asked for
    const double *given;                // atol and rtol, whose defaults hang on the method
    dpcr_machine machine;
    dpcri_contraction contraction;
    dpcri_costs costs;
    double sweeps;            // of newton and shooting, expected
    bool sweeps_are_seen;     // in an earlier solve, not supposed
    double told[DPCRI_TOLD];  // of dpcri_told's methods, seen or tried; 0: neither
    double work[DPCRI_TOLD];  // evaluations of the chain that they made; 0: not known
    unsigned failed;          // bit m: method m had to be finished in order before
    double doubt;             // factor that a parallel prediction must stay below the loop's
    double allowance;         // seconds that trials may take
    double filled;            // seconds of overlap at its best where the loop fills the processor; 0: it does not
    int64_t evaluations;      // of a step of a sequence, that planning has made
    dpcri_watch *watch;       // whether the caller wants it to end, or NULL
    int *code;                // the first negative one of a callback, which ends planning; 0: none
} dpcri_outlook;

// Whether nothing is to be run any more: a callback aborted, or the caller wants planning to end.
bool dpcri_planning_ends(const dpcri_outlook *o);
// Whether a callback that returned this code did what it was asked for; the same of a whole solve.
bool dpcri_planning_heeds(const dpcri_outlook *o, int code);
bool dpcri_planning_heeds_solve(const dpcri_outlook *o, dpcr_status status, const dpcr_error *error);

// Within what a candidate's chunks join, going forward: rounding, where that was seen to cost next to nothing.
double dpcri_join_tolerance(const dpcri_outlook *o, const dpcr_candidate *c);

// ---- cost.c: seconds ----

double dpcri_cost_step(const dpcri_outlook *o);  // of one step of one sequence, nothing beside it
double dpcri_cost_lane(const dpcri_outlook *o);  // of one step of one of many lanes, on one thread
double dpcri_cost_loop(const dpcri_outlook *o);
double dpcri_cost_overlap(const dpcri_outlook *o, int64_t chunk, int64_t warm_up);
double dpcri_cost_newton(const dpcri_outlook *o, dpcr_scheme scheme);
double dpcri_cost_shooting(const dpcri_outlook *o, int64_t chunk);
// Picard and parataa, which evaluate the chain `work` times in all (0: as usual of so many sweeps); parareal by chunks
// of n steps.
double dpcri_cost_picard(const dpcri_outlook *o, double sweeps, double work);
double dpcri_cost_evaluation(const dpcri_outlook *o);  // of the whole chain once, as a sweep makes it
double dpcri_cost_parareal(const dpcri_outlook *o, int64_t n, double sweeps, double work);
int64_t dpcri_parareal_chunk(const dpcr_steps *steps, const dpcr_solve_options *options);
// A method inside the callback whose step of one sequence takes `step` seconds (stretch.c).
double dpcri_cost_window(const dpcri_outlook *o, dpcr_method method, double step);
double dpcri_cost_adjoint_loop(const dpcri_outlook *o);
double dpcri_cost_adjoint_overlap(const dpcri_outlook *o, int64_t chunk, int64_t warm_up);
double dpcri_cost_backward(const dpcri_outlook *o, dpcr_scheme scheme);

// What a way back takes with the parameters' gradients, where without them it takes `seconds`; of the loop; and the
// least that they add to any way.
double dpcri_cost_with_gradients(const dpcri_outlook *o, bool loop, double seconds);
double dpcri_cost_shared_gradients(const dpcri_outlook *o);

// A candidate's seconds where the threads have slept since the last call: as many more as they take to wake, or, of
// overlap, what one thread takes alone.
double dpcri_cost_asleep(const dpcri_outlook *o, const dpcr_candidate *c);

// ---- sentence.c ----

enum { DPCRI_LEAST_LENGTH = 32 };  // of a chain; below, nothing pays

// Whether a look at it may take no more than a small part of its loop: chains of a few costly steps.
static inline bool dpcri_is_weighed(const dpcr_steps *s) { return s->coarse || s->slopes; }

// The candidates of one direction, the best first.
typedef struct dpcri_list {
    dpcr_candidate *at;
    int64_t count;
} dpcri_list;

bool dpcri_is_loop(const dpcr_candidate *c);
const dpcr_candidate *dpcri_loop_of(const dpcri_list *l);
const dpcr_candidate *dpcri_best_parallel(const dpcri_list *l);  // but for the loop; NULL: there is no other
double dpcri_candidate_seconds(const dpcr_candidate *c);         // measured, else predicted
// A caller who comes now and then, whose threads have to wake first, loses no more than half of what one gains who
// calls again and again.
bool dpcri_wakes_in_time(const dpcri_outlook *o, const dpcri_list *l, const dpcr_candidate *c);

// Each adds to the plan's sentence: a text; why `chosen` was; that both passes were timed together.
void dpcri_say(dpcr_solve_plan *plan, const char *text);
void dpcri_tell_choice(dpcr_solve_plan *plan, const dpcri_outlook *o, const dpcri_list *l, const dpcr_candidate *chosen,
                       bool backward);
void dpcri_tell_pair(dpcr_solve_plan *plan, const dpcr_candidate *forward, const dpcr_candidate *backward,
                     double seconds, double loops);

// ---- stretch.c ----

// Times the loop's step over a few steps, into o->costs. False: it cannot be run.
bool dpcri_time_loop(dpcri_outlook *o);

// Times a stretch of the chain in blocks of `row_block` sequences; `jacobians`: those too.
dpcri_costs dpcri_costs_of(const dpcri_outlook *o, int64_t row_block, bool jacobians);

// The same in small doses, of chains that tell `coarse` or `slopes`, into o->costs: a step of the loop, the least seen;
// bounds for all else; two runs of a sweep's call that takes `seconds` by the bounds. False: it cannot be run, or would
// tell nothing.
bool dpcri_time_step(dpcri_outlook *o, int64_t runs);
void dpcri_bound_costs(dpcri_outlook *o);
bool dpcri_time_sweep(dpcri_outlook *o, double seconds);
// Seconds that a step of one sequence takes by the method inside the callback `window`, and its sweeps, from a stretch
// of the chain. 0: it cannot be run, or did not come to its end.
double dpcri_window_step(const dpcri_outlook *o, const dpcr_solve_options *options, double *sweeps);

// ---- tried.c ----

// Sweeps that a method takes on the chain's first sequences, and how often it evaluates the chain, tried from
// options->start; no further than `most` evaluations, from where on both are told by how far the method came. False: it
// could not be tried.
bool dpcri_try(dpcri_outlook *o, dpcr_method method, double most, double *sweeps, double *work);
// Seconds that it takes at most.
double dpcri_try_seconds(const dpcri_outlook *o, dpcr_method method, double most);

// ---- measure.c ----

// Times the candidates of one direction on the whole chain and sorts them by what was measured. False: memory was
// refused or a solve failed, nothing is changed.
bool dpcri_measure(const dpcri_outlook *o, bool backward, dpcr_candidate *candidates, int64_t count, double seconds);

// Times a forward pass that leaves a tape with the backward pass after it: all pairs; and of two overlaps those in
// chunks alike, forward's best and the driver's own, whose tape lies with the threads that take it up. False: memory
// was refused or no pair ran.
typedef struct dpcri_pair {
    dpcr_candidate forward, backward;
    double seconds, loops;  // the loops': HUGE_VAL where they did not run
} dpcri_pair;
bool dpcri_measure_pair(const dpcri_outlook *o, const dpcr_candidate forward[2], const dpcr_candidate backward[2],
                        double seconds, dpcri_pair *best);

// ---- wisdom.c ----

// The key of the chain: shape, costs, options, threads and how soon it forgets.
void dpcri_wisdom_key(const dpcri_outlook *o, char *key);
// Whether there is a record of such a chain, however soon it forgets.
bool dpcri_wisdom_knows(const dpcri_outlook *o);
// What is known of the chain; false: nothing.
typedef struct dpcri_known {
    bool chosen[2];               // forward, backward: by a measurement
    dpcr_candidate candidate[2];  // the winner
    int max_sweeps;               // that the forward winner may take, by the measurement; 0: as ever
    int sweeps;                   // of newton and shooting, in an earlier solve; 0: not seen
    int64_t warm_up;              // that was enough, in an earlier solve; 0: not seen
    unsigned failed;              // bit m: method m had to be finished in order
    int told[DPCRI_TOLD];         // sweeps of dpcri_told's methods, seen or tried; 0: neither
    double work[DPCRI_TOLD];      // evaluations of the chain that those made; 0: not known
    // Of chains that tell `coarse` or `slopes`:
    dpcri_costs costs;         // block 0: not timed
    dpcri_contraction memory;  // UNKNOWN: not looked at
    double spent;              // seconds in its solves that no trial has taken its part of
} dpcri_known;
bool dpcri_wisdom_recall(dpcr_context *context, const char *key, dpcri_known *known);
void dpcri_wisdom_remember(dpcr_context *context, const char *key, const dpcri_known *known);

// The wisdom file's text, and reading it: adds all of it or nothing.
dpcr_status dpcri_wisdom_parse(dpcr_context *context, const char *name, const char *text, size_t bytes,
                               dpcr_error *error);

#endif
