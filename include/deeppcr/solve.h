// SPDX-License-Identifier: MIT
// Nonlinear chains: z_l = f_l(z_{l-1}), l = 0..L-1, z_{-1} = z0, by one driver with several methods, and their backward
// pass.
//
// Every method of sweeps is   z_l <- f_l(z_{l-1}^old) + A_l (z_{l-1} - z_{l-1}^old)   with its own transition A_l:
//   newton A = J      diagonal A = diag(J)      block A = blocks of J      picard A = I      jacobi A = 0      damped A
//   = s J
// overlap and shooting run the loop itself in chunks side by side. Derivations: docs/math/.
#ifndef DEEPPCR_SOLVE_H
#define DEEPPCR_SOLVE_H

#include "chain.h"
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- the chain, as the caller gives it ----

// A set of steps for a callback to run: lane c in 0..lanes-1 runs `steps` consecutive steps, from step first + c
// stride, for the sequences row .. row + rows - 1. Loops over lanes and steps both lie in the callback, so it can keep
// weights in registers and lanes innermost. Results must not depend on how a span is split (dpcr_steps_check tests
// that).
typedef struct dpcr_span {
    size_t size;
    int64_t first, lanes, stride, steps;
    int64_t row, rows;
    const unsigned char
        *active;         // [rows] or NULL; where 0, the sequence may be skipped and its outputs left as they are
    dpcr_device device;  // where the arrays lie
    void *stream;        // for devices; NULL on the host
} dpcr_span;

// What the callback `window` is asked for, and what it answers.
typedef struct dpcr_window {
    size_t size;
    int method;         // dpcr_method: newton or shooting
    double atol, rtol;  // as in dpcr_solve_options
    int max_sweeps;
    int sweeps;       // out: sweeps made, one of them the one that measured
    double residual;  // out: largest residual or defect / max(1, |z|), measured before the last correction
    double estimate;  // out: largest correction of the last linear solve / max(1, |z|), or what bounds the error in its
                      // place; negative: there is none
    int64_t good;     // out: steps from the start of the span that are solved to the tolerance, each of them measured
    // NULL, or what several calls for one span share, each on a thread of its own (dpcr_steps.window_threads):
    // DPCR_WINDOW_TEAM_BYTES, 64-byte aligned, zeros at first. Each call does a part of the work and its outputs are
    // not read; when all have returned, one more, `closing`, does what is left and answers for the span. The same
    // numbers as without a team, for any number of calls, at most `window_threads` of them at once; one alone may do
    // everything.
    void *team;
    int closing;  // non-zero: all other calls have returned
} dpcr_window;

enum { DPCR_WINDOW_TEAM_BYTES = 8192 };

// Between spans of one sequence that threads work on at once (dpcr_steps.adjoint_window): what goes in comes from the
// span before, and what goes out is waited for.
typedef struct dpcr_handover {
    size_t size;
    void *user;
    void (*hear)(void *user);  // returns when what goes in is there, which is not read before
    void (*tell)(void *user);  // what goes out is there; called once, as soon as it is
} dpcr_handover;

// A whole solve, or the way back, as launches in a stream of a device: what the callback `launch` is asked for.
typedef struct dpcr_launch {
    size_t size;
    dpcr_device device;
    void *stream;
    int method;    // dpcr_method: sequential, overlap or newton; picard, parataa where the steps have launch_sweeps
    int backward;  // non-zero: the way back, of which method and what belongs to it are not read
    int64_t chunk, warm_up;  // overlap; 0: the callback's own choice, from the length alone
    double atol, rtol;
    int max_sweeps, no_fallback;
    const dpcr_array *z0, *z;  // [B][w], or NULL: zeros; [L][B][w]. z NULL: nothing is launched, `bytes` is asked for
    const dpcr_array *direct, *adjoint, *dz0;  // going back, as in dpcr_solve_enqueue_backward
    void *workspace;                           // 256-byte aligned
    size_t bytes;                              // of it; out, where z is NULL: what is wanted
    dpcr_device_outcome *outcome;              // [B] of the device's memory
    // Of picard and parataa, as in dpcr_solve_options, every default filled in. For what a sweep left it may wait.
    int guess, lock;  // dpcr_guess, dpcr_lock
    int64_t window;
    const double *step_scale;  // [L] or NULL, of the host's memory
    int64_t *evaluations;      // [B] of the device's memory, of a step
    int64_t order;             // parataa
    int mixed;
    // Of the loop and of the way back: how many of the device's blocks share the units of a sequence's step; 0: each
    // keeps to one. The states are the same. Where z is NULL the callback chooses, from seconds that a barrier of all
    // blocks takes and bytes a second of the device's memory, and tells what it expects a step to take by one block
    // and by those that share, in seconds; 0: unknown, or not to be had.
    int64_t share;
    double barrier, bandwidth;
    double alone_seconds, shared_seconds;
    // Out, where z is NULL: not 0 where a step adds to its state, so that the chain keeps what it began with; where
    // AUTO would have taken overlap it then takes newton, of many sequences, or where newton is refused, the loop.
    int remembers;
} dpcr_launch;

// What a way back is tried over; all of it lives until rehearsed is called.
typedef struct dpcr_rehearsal {
    size_t size;                         // sizeof(dpcr_rehearsal)
    const struct dpcr_solve_plan *plan;  // of that way back; NULL: one stand-in serves all ways
    dpcr_array z0;                       // [R][w]
    dpcr_array z;                        // [L][R][w]
    dpcr_array tape;                     // [L][R][tape_values], data NULL: none
} dpcr_rehearsal;

// Kinks of f (ReLU, a clip), beyond which J says nothing: newton and shooting then call a step right only where the
// residual of each of its numbers is rounding, at most 16 roundings of its terms, |f_i| and every |J_ij z_j| (times the
// root of a chunk's steps), whatever the tolerance. Where 8 sweeps in a row brought a sequence on by two steps at most,
// all residuals within the tolerance and more than 16 steps ahead, they leave it to the loop (on a device, and with
// no_fallback, when the budget is spent).
typedef enum dpcr_kinks {
    DPCR_KINKS_NONE = 0,
    DPCR_KINKS_CURVED,  // there are some
    // And f is affine between them, so that J changes where a unit turns (exactly so where a step has one layer of
    // units, which cannot make up for each other): then a residual that is not 0 is right only where J has the bits
    // that it had in the sweep before. linearise gives the same bits for a step and the same open units, whatever else
    // it is asked for at once.
    DPCR_KINKS_AFFINE
} dpcr_kinks;

// All callbacks return 0; a negative code aborts (DPCR_ERROR_CALLBACK, the code is kept in the error). A positive code
// of advance or linearise makes the span's results not finite, for all its rows: a callback that can tell them apart
// writes NaN where it cannot go on and returns 0. (Of lanes that advance had together each is then asked for again by
// itself, unless `last` was `in`.) adjoint and gradient abort with any code but 0. A negative code aborts
// dpcr_solve_plan_create too, whose calls, where something is left to AUTO, are at states of the planner's own; a
// positive one tells it nothing. Arrays are in the chain's dtype, the last dimension contiguous, the others strided;
// rows are relative to span->row. A callback may be called from several threads at once, with disjoint outputs, when
// `concurrent` is set.
typedef struct dpcr_steps {
    size_t size;  // sizeof(dpcr_steps) of the caller
    void *user;
    int64_t length, batch, width;  // L, B, w
    dpcr_dtype dtype;
    int concurrent;
    dpcr_transition jacobian;  // the exact structure of J; what `linearise` gives
    // What is told of costs is 0, where it is unknown, or more, and finite.
    double flops;           // of one step and sequence: advance
    double jacobian_flops;  // linearise, beyond advance
    double latency;  // seconds that one step of one sequence takes when nothing runs beside it; 0: from the flops
    // Lanes of one sequence that one call of advance (and of adjoint) runs side by side at its best, in vectors or in
    // turn; 0 or 1: one after another. And the seconds a step and lane that such a call takes on one thread; 0: from
    // the flops. The same for adjoint, 0: as advance.
    int64_t lanes;
    double lane_seconds, adjoint_latency, adjoint_lane_seconds;
    int64_t tape_values;  // numbers a step and sequence that advance may leave for the backward pass; 0: none
    // Non-zero: with the option consume_tape, where adjoint gets a tape and no place for its adjoint states (NULL), it
    // leaves in the tape what gradient wants, and gradient, called with that tape and without adjoint states, takes it
    // from there. Saves the memory traffic of both; the tape is used up by it.
    int gradient_from_tape;

    // for c: s = in[c]; for k < steps: s = f_{first + c stride + k}(s), states[c][k] = s, tape[c][k] = what backward
    // wants; last[c] = s in [lanes][rows][w], states [lanes][steps][rows][w] or NULL, last [lanes][rows][w] or NULL
    // (may be `in`), tape [lanes][steps][rows][tape_values] or NULL
    int (*advance)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape);

    // steps = 1: f[c] = f_l(in[c]), a[c] = J_l(in[c]) in `jacobian`'s layout [lanes][rows][values]. f or a may be NULL.
    // May be absent (NULL): then only jacobi, picard, parareal, parataa, overlap and sequential can be used.
    int (*linearise)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f, const dpcr_array *a);

    // steps = 1: y[c] = J_l(in[c]) x[c]. May be NULL. All [lanes][rows][w].
    int (*jvp)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *x, const dpcr_array *y);

    // The adjoint loop of every lane c, from its last step (first + c stride + steps - 1) down to its first:
    //   g = last[c]; for k = steps-1 .. 0: if direct: g += direct[c][k]; adjoint[c][k] = g; g = J^T g;  first_out[c] =
    //   g
    // in [lanes][steps][rows][w] are the states that go in, direct and adjoint likewise (direct may be NULL or adjoint
    // itself), last and first_out [lanes][rows][w] (may be the same; first_out may be NULL), tape
    // [lanes][steps][rows][tape_values] or NULL (recompute). adjoint is NULL with gradient_from_tape, or, without a
    // tape, where only first_out is wanted; a step stride of 0 lets all steps of a lane share one place.
    // steps = 1 is the vector-Jacobian product. May be NULL where linearise is given.
    int (*adjoint)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                   const dpcr_array *first_out);

    // Adds (df_l/dtheta)^T adjoint[c] into the caller's own gradients of the parameters of steps first .. first+lanes-1
    // (stride 1, steps 1, all rows at once but with gradient_rows, in row order). Never called twice at once for one
    // step; with `concurrent` for other steps, and while adjoint is at work on other steps or, with gradient_rows, on
    // other rows of the same. NULL: no parameters.
    // adjoint is NULL only with gradient_from_tape.
    int (*gradient)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *adjoint);

    // A whole method inside the callback, where states, Jacobians and the small linear solve stay in registers and
    // cache: solves one lane of span->steps steps from in [1][rows][w] (rows = 1) by window->method on the calling
    // thread, writes states [1][steps][rows][w], and says in `window` what it measured. The driver decides what that is
    // worth. Positive: not served, nothing was written that counts. May be NULL.
    int (*window)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                  dpcr_window *window);

    // The adjoint loop of one lane of one sequence (lanes = rows = 1) by composing, without leaving registers and
    // cache: as adjoint, whose numbers it gives but for rounding, always with a place for the adjoint states. Taken for
    // the backward scheme `chunked`, a window of adjoint_window_steps after the other. Positive: not served, and
    // adjoint runs instead; last and first_out, and direct where it is adjoint, must then be as they were, and nothing
    // told. May be NULL; not looked at without adjoint. handover may be NULL.
    int (*adjoint_window)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                          const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                          const dpcr_array *first_out, const dpcr_handover *handover);
    double adjoint_window_seconds;  // that one step of it takes; 0: as adjoint

    // Non-zero where steps share their parameters: gradient is then called once for all steps of a window of the
    // backward pass (step 0 apart), the last window first, never twice at once and outside the context's tasks, so it
    // may use the context's threads.
    int gradient_whole;

    // What is known of the steps without evaluating them. Chains that tell either are offered picard, parataa and
    // parareal by AUTO too. Both may be NULL.
    // last[c] is about what span->steps steps from in[c] give, for far less work than they take: one step of a coarser
    // discretisation. Parareal corrects its chunks by it, without by the identity; error estimates need it (confirm). A
    // positive code: there is no such step here, and no estimate by it.
    int (*coarse)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last);
    double coarse_flops;   // of one call, lane and sequence
    const double *slopes;  // [L]: c_l, about what J_l is times the identity; parataa goes by it; without, by 1.
                           // The caller's, must outlive the plan
    // coarse with its Jacobian, a[c] [lanes][rows][w w], dense and contiguous; last may be NULL. Error estimates take
    // it in place of coarse steps one after another, where their number times w + 1 is at most twice L. May be NULL.
    int (*coarse_linearise)(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last,
                            const dpcr_array *a);

    // With gradient_whole: `gradient` keeps the sums of every block of sequences (those that one call of advance has
    // under the loop) apart, and this adds them up, in one order; called outside the context's tasks, after so many
    // windows as the plan has fixed and after the last. Where gradient_from_tape holds, the driver may then take a
    // block back through several windows in one task: `gradient` is called with the block's rows alone, at once for
    // different blocks, right after adjoint of the same window. NULL: gradient has all rows at once.
    void (*gradient_join)(void *user);

    // Whole solves of a chain whose numbers lie on a device, for plans of that device (option device); such a chain
    // needs no other callback. Puts its launches into the stream and returns: waits for nothing (but see
    // launch_sweeps), allocates nothing.
    // What is not served is DPCR_ERROR_UNSUPPORTED, in words that name what is, also where only `bytes` is asked for.
    // NULL: the chain runs on the host.
    dpcr_status (*launch)(void *user, dpcr_launch *launch, dpcr_error *error);

    // Tells chains of one shape apart: what AUTO remembers of one is taken for those with the same number alone; 0: by
    // the shape, and the slopes where there are some.
    uint64_t identity;

    // Threads that may work on one span of `window` at once, by shooting, where it knows dpcr_window.team; 0: one.
    int window_threads;

    // Steps of a span that adjoint_window takes at its best, and after which it can hand over; 0: it cannot, and gets
    // no handover.
    int64_t adjoint_window_steps;

    // Non-zero: launch serves picard and parataa too, for which it waits for its stream once a sweep.
    int launch_sweeps;

    // Without gradient_whole: gradient may be called for some of a step's rows, in row order, one call after the other,
    // each adding to what is there, so that the sums are those of one call; at once for different steps. Threads then
    // take about as many rows each back through many windows, where the batch has so many a thread (half as many where
    // gradient does not go by the tape). 0: all rows at once, which a gradient of your own wants unless it adds like
    // that.
    int64_t gradient_rows;

    // Seconds of gradient a step on one thread: however few rows it has, and a row where there are many (the larger of
    // the two counts). 0: gradients are left out of what the way back is reckoned to take.
    double gradient_latency, gradient_lane_seconds;

    // For planning that measures. rehearse gives what takes the place of `user` where ways back are tried: the same
    // steps, but for a gradient that adds to numbers which nobody reads; `user` itself, and the caller's gradients,
    // stay as they are. rehearsed releases it. With gradient_whole each way back has one of its own, and only where
    // forward passes lie between (both ways are to be chosen, for training). Without them, or where rehearse returns
    // NULL, gradients are left out of trials, and what they would take is reckoned by gradient_latency and
    // gradient_lane_seconds, with gradient_whole not at all. Who puts a `user` of their own into the steps of a model
    // puts NULL here. Not called under the option memory_limit.
    void *(*rehearse)(void *user, const dpcr_rehearsal *rehearsal);
    void (*rehearsed)(void *stand_in);

    // [B] numbers in 0..L: from step ends[b] on the callbacks leave sequence b's state as it is, and its adjoint, which
    // nothing comes in at; of a packed batch. Overlap then asks nothing of the chunks that begin there, which remember
    // whatever they began with: z past a sequence's end may be anything. NULL: all have L steps. On the host; the
    // caller's, read at every execute, must outlive the plan.
    const int64_t *ends;

    // Bytes of parameters that a step reads and no other step does, once for all rows of a call: a layer's own weights;
    // `gradient` then adds to as many. Where those of all steps are more than the caches hold, plans reckon with the
    // memory's rate. 0: none that matter.
    double weight_bytes;

    // What newton and shooting go by beyond J. What the callback `window` claims is left to it.
    dpcr_kinks kinks;
} dpcr_steps;

// ---- methods and options ----

typedef enum dpcr_method {
    DPCR_METHOD_AUTO = 0,
    DPCR_METHOD_SEQUENTIAL,
    DPCR_METHOD_NEWTON,
    DPCR_METHOD_DIAGONAL,  // quasi-Newton with diag(J)
    DPCR_METHOD_BLOCK,     // quasi-Newton with the k x k blocks on J's diagonal
    DPCR_METHOD_PICARD,
    DPCR_METHOD_JACOBI,
    DPCR_METHOD_DAMPED,    // Newton with s J
    DPCR_METHOD_OVERLAP,   // chunks with a warm-up, run by the loop side by side, boundaries checked
    DPCR_METHOD_SHOOTING,  // Newton on the boundaries of chunks (multiple shooting)
    DPCR_METHOD_PARAREAL,  // chunks of the loop at once, corrected by one coarse step each (Lions, Maday, Turinici;
                           // SRDS, arXiv 2412.20292)
    DPCR_METHOD_PARATAA,   // picard with the known slopes, k steps substituted into each other, triangular Anderson
                           // mixing (Tang et al., arXiv 2402.09970)
    DPCR_METHOD_COUNT
} dpcr_method;

// "auto", "sequential", "newton", "diagonal", "block", "picard", "jacobi", "damped", "overlap", "shooting", "parareal",
// "parataa".
DPCR_API const char *dpcr_method_name(dpcr_method method);
DPCR_API dpcr_status dpcr_method_find(const char *name, dpcr_method *method, dpcr_error *error);

typedef enum dpcr_guess {
    DPCR_GUESS_ZERO = 0,  // z_l = f_l(0): never plain zeros, which lie behind a ReLU
    DPCR_GUESS_STEP,      // z_l = f_l(z0): every step applied to the initial state
    DPCR_GUESS_STATE,     // z_l = z0; with a window, entries that come into it copy the last state before them
    DPCR_GUESS_GIVEN,     // what z holds: the caller's guess or the previous solution
    DPCR_GUESS_COUNT
} dpcr_guess;

// "zero", "step", "state", "given".
DPCR_API const char *dpcr_guess_name(dpcr_guess guess);
DPCR_API dpcr_status dpcr_guess_find(const char *name, dpcr_guess *guess, dpcr_error *error);

// Positive: the result is the sequential chain's. Negative: it is not, and the call has said so.
typedef enum dpcr_reason {
    DPCR_REASON_CONVERGED = 1,      // residuals below the tolerance and the error estimate, which is relative to
                                    // max(1, |z|), at most atol + rtol; it passes on no more than J does: of f with
                                    // kinks, say so (dpcr_steps.kinks)
    DPCR_REASON_RESIDUAL_ONLY = 2,  // residuals below the tolerance; no error estimate could confirm it
    DPCR_REASON_EXACT = 3,          // the loop's result by construction: equal numbers, the sign of a zero aside (so
                                    // of a step to which 0 and -0 are the same)
    DPCR_REASON_SEQUENTIAL = 4,     // the method was the loop
    DPCR_REASON_SCALED = 6,         // residuals below the tolerance in units of each step's scale (step_scale)
    DPCR_REASON_FALLBACK = 5,  // the budget was spent, or kinks kept sweeps from bringing the chain on: finished in
                               // order, from the last state known to have the loop's bits
    DPCR_REASON_NOT_CONVERGED = -1,  // the same, and `no_fallback` was set
    DPCR_REASON_NONFINITE = -2  // the chain itself leaves the finite numbers, as a sweep found: what follows is the
                                // loop's own result. The loop and overlap do not look, and give their own reasons
} dpcr_reason;

// "converged", "residual-only", "exact", "sequential", "scaled", "fallback", "not-converged", "nonfinite"; "unknown"
// otherwise.
DPCR_API const char *dpcr_reason_name(dpcr_reason reason);
// Of two reasons the one to tell of both: failures first, then what was finished in order, then the weaker claim.
DPCR_API dpcr_reason dpcr_reason_worse(dpcr_reason a, dpcr_reason b);

typedef enum dpcr_lock {
    DPCR_LOCK_RESIDUAL = 0,  // |z_l - f_l(z_{l-1})| <= atol + rtol |z_l|, every component
    DPCR_LOCK_MEAN_SQUARE,   // ParaDiGMS: the mean square of the step's correction, locked steps' included, at most
                             // (atol step_scale[l])^2; the first step beyond is locked too, corrected (not at atol 0)
    DPCR_LOCK_COUNT
} dpcr_lock;

#define DPCR_TOLERANCE_F32 1e-5  // default of atol and rtol, per step
#define DPCR_TOLERANCE_F64 1e-10
#define DPCR_UNCONFIRMED \
    0.1  // factor of the defaults where no error estimate confirms the residuals: diagonal, block,
         // picard, jacobi, damped, parareal, parataa, by name or as AUTO's choice

typedef struct dpcr_solve_options {
    size_t size;  // sizeof(dpcr_solve_options) of the caller; zero in a field means the default
    dpcr_method method;
    dpcr_scheme scheme;    // for the linear chain of a sweep
    dpcr_scheme backward;  // for the transposed chain of the backward pass; SEQUENTIAL is the adjoint loop, OVERLAP the
                           // same in chunks
    dpcr_guess guess;      // overlap starts its chunks from z0 whatever it is; shooting takes GIVEN for ZERO
    double atol, rtol;     // a step is converged where |z_l - f_l(z_{l-1})| <= atol + rtol |z_l|. Default:
                           // DPCR_TOLERANCE_...; negative: 0, and so is the other where it is left 0 (overlap: bit
                           // for bit)
    int64_t window;        // steps solved at once; 1 is Gauss-Seidel; default: all, within the memory limit
    int64_t chunk;         // overlap, shooting, parareal (default: the root of L) and newton's scheme chunked: steps a
                           // chunk
    int64_t warm_up;       // overlap: steps before a chunk's first; default 64
    int64_t block;         // k of DPCR_METHOD_BLOCK; default 2
    double damping;        // s of DPCR_METHOD_DAMPED, in [0, 1]; default 0.7
    int max_sweeps;   // budget, in evaluations of the whole chain; default 100 (overlap: 3; AUTO: what the loop's time
                      // affords, so that finishing in order after all costs at most twice the loop; of overlap 2
                      // all the same, 3 at most)
    int no_fallback;  // non-zero: stop with DPCR_REASON_NOT_CONVERGED instead of finishing in order; behind the locked
                      // steps z is what the last sweep left, and where none came the guess, for STATE the
                      // state before them. Nothing going back, which is then finished in order all the same
    size_t memory_limit;  // bytes of workspace at most; 0: no limit. Windows shrink with the batch to stay within it,
                          // so the bits of a sequence then depend on the size of its batch
    int consume_tape;  // non-zero: backward may use the tape up (gradient_from_tape), so each tape serves one backward;
                       // planning takes it that every execute leaves a tape
    dpcr_planning planning;   // how AUTO is decided
    double planning_seconds;  // MEASURE: budget; default 1. ESTIMATE, of chains with `coarse` or `slopes`: what
                              // timing steps and trials of methods may take together, timing a sweep's calls a quarter
                              // of it by the least they can; default: trials a sixteenth of the chain's solves so far
                              // and of this one. ESTIMATE, of others: where it is given all ways are looked at, also
                              // where sequences in step fill the processor
    const dpcr_array *start;  // [B][w] or NULL: a typical z0, where plan_create tries the chain; read by it alone
    // [L] or NULL: the tolerances of step l are step_scale[l] times atol and rtol (ParaDiGMS: the deviation of the
    // step's noise), so what is locked is right in each step's own units only, and the reason is DPCR_REASON_SCALED.
    // The caller's, must outlive the plan. Methods of sweeps.
    const double *step_scale;
    dpcr_lock lock;  // which steps of a sweep without error estimate are right
    int64_t order;   // parataa: steps substituted into each other; default: all of the window
    int mixed;       // parataa: sweeps that are mixed, 1 (none are) to 4; default 2
    // Parareal, and methods of sweeps where the chain has `coarse`, whose residuals say nothing of the error. 0:
    // nothing does (parareal estimates it all the same, where there is `coarse`). Positive: the states that the method
    // left are corrected, all steps at once and by coarse steps along the path, or where that does not shrink the
    // corrections by sweeps of parareal, until the error estimate is at most this (times max(1, |z|)); the reason is
    // then CONVERGED. Negative: the estimate alone, not beside memory_limit, under which there is parareal alone.
    // (newton's tolerances are on its estimate.)
    double confirm;
    // Of type DPCR_CUDA: the plan is one for dpcr_solve_enqueue, over a chain with the callback `launch`. method is
    // AUTO, SEQUENTIAL, OVERLAP or NEWTON (tolerances, chunk, warm_up, max_sweeps (newton: default 16, 100 at most)
    // and no_fallback as on the host; memory_limit, by which no window shrinks), and PICARD and PARATAA over a chain
    // with launch_sweeps (guess, window, step_scale, lock, order and mixed too; the scheme of its sums is the loop);
    // what else is not its default is refused. AUTO is a rule of shape, or what an earlier measurement there found;
    // planning MEASURE solves the chain there by each way that `launch` serves, in memory for its states and the
    // workspace, by the device's clock, from `start` where that lies there, else from zeros; planning_seconds are the
    // device's. 0 or DPCR_HOST: the host.
    dpcr_device device;
    int64_t backward_chunk;    // backward by overlap: steps a chunk; default: chunk, or AUTO's choice
    int64_t backward_warm_up;  // the same: steps before a chunk's first; default: warm_up, or AUTO's choice
    // overlap, going forward: chunks join within join_tolerance times a state's largest number (on a device each
    // number's own); negative: bit for bit; 0: within atol + rtol |z| and, on a processor, a hundredth (or rtol) of the
    // largest number of the last few states. AUTO sets 16 roundings where it saw two starts agree bit for bit soon.
    // Going back always within (atol + rtol) times the largest adjoint at which a chunk of the sequence starts.
    double join_tolerance;
    uint64_t reserved[8];  // 0: room of fields to come, for these options lie within others
} dpcr_solve_options;

typedef struct dpcr_solve_plan dpcr_solve_plan;

// What happened. Arrays are the caller's, may be NULL, and are filled as far as their capacity goes.
typedef struct dpcr_solve_report {
    size_t size;         // sizeof(dpcr_solve_report) of the caller
    dpcr_reason reason;  // the worst over the batch, in this order: NONFINITE, NOT_CONVERGED, FALLBACK, SCALED,
                         // RESIDUAL_ONLY, CONVERGED, EXACT, SEQUENTIAL
    dpcr_method method;  // what ran
    dpcr_scheme scheme;
    int sweeps;             // updates of the chain, or of its window, without the final check; the largest of the batch
    int64_t evaluations;    // step evaluations, over all sequences
    double residual;        // largest |z_l - f_l(z_{l-1})| / max(1, |z_l|) that the last check saw, before its update;
                            // overlap, parareal: largest defect of a boundary
    double error_estimate;  // largest correction of the last linear solve / max(1, |z_l|) over what it confirmed (or,
                            // not converged, refused); overlap: the defects, carried on; negative: none
    double seconds;         // wall time, and its phases
    double seconds_evaluate, seconds_linear, seconds_finish;
    size_t bytes;  // workspace used
    int64_t history_capacity;
    double *residual_history;  // [history_capacity] largest residual by sweep, before its update
    int64_t *locked_history;   // [history_capacity] smallest locked prefix over the batch, by sweep
    int64_t history_length;    // sweeps there were to tell of; may be more than history_capacity
    // The same by sequence, [history_capacity][batch_capacity]; sweeps in which a sequence took no part repeat its last
    // entry.
    double *sequence_residual_history;
    int64_t *sequence_locked_history;
    const char *sentence;  // the plan's; valid as long as the plan
    int64_t batch_capacity;
    int *sequence_reason;      // [batch_capacity] dpcr_reason, by sequence
    int *sequence_sweeps;      // [batch_capacity]
    int64_t *sequence_locked;  // [batch_capacity] steps converged before any finishing in order
} dpcr_solve_report;

// Plans a solve of chains of this form. `steps` is copied (not what `user` points to). AUTO chooses method, scheme and
// backward from the cost model. Immutable afterwards, shareable between threads.
DPCR_API dpcr_status dpcr_solve_plan_create(dpcr_context *context, const dpcr_steps *steps,
                                            const dpcr_solve_options *options, dpcr_solve_plan **plan,
                                            dpcr_error *error);
DPCR_API void dpcr_solve_plan_destroy(dpcr_solve_plan *plan);

// Why this method, in one sentence; and what was chosen.
DPCR_API const char *dpcr_solve_plan_sentence(const dpcr_solve_plan *plan);
DPCR_API dpcr_method dpcr_solve_plan_method(const dpcr_solve_plan *plan);
DPCR_API dpcr_scheme dpcr_solve_plan_backward(const dpcr_solve_plan *plan);

// Every option as the plan uses it, the defaults and what AUTO chose filled in: a plan made with these runs the same
// way, to the bit, whatever the machine, wisdom or measurement.
DPCR_API const dpcr_solve_options *dpcr_solve_plan_options(const dpcr_solve_plan *plan);

// One way to run the chain, as the planner saw it.
typedef struct dpcr_candidate {
    size_t size;             // sizeof(dpcr_candidate) of the caller
    int backward;            // non-zero: for the backward pass; `scheme` is then the backward scheme
    dpcr_method method;      // forward
    dpcr_scheme scheme;      // of the linear chains of a sweep
    int64_t chunk, warm_up;  // 0: the default
    double sweeps;           // expected
    double seconds;          // predicted
    double measured;         // median of what was timed; 0: it was not
    size_t workspace;        // bytes; 0: cannot be had within the options
} dpcr_candidate;

// The candidates that AUTO weighed, forward first, the best first: index 0, 1, ... False (0) past the last.
DPCR_API int dpcr_solve_plan_candidate(const dpcr_solve_plan *plan, int64_t index, dpcr_candidate *candidate);

// What the planner found of the chain's memory: its name ("forgets", "keeps its past", "is chaotic", "unknown"), the
// mean logarithm by which a distance grows a step, and the steps after which two starts agree (0: never). Any may be
// NULL.
DPCR_API const char *dpcr_solve_plan_memory(const dpcr_solve_plan *plan, double *rate, int64_t *steps);

// What AUTO took to decide: seconds, and evaluations of a step of one sequence (coarse ones and trials among them,
// those of planning `measure`'s races not); 0 where nothing was left to AUTO. Either may be NULL.
DPCR_API void dpcr_solve_plan_effort(const dpcr_solve_plan *plan, double *seconds, int64_t *evaluations);

// Remembers in the context's wisdom what a solve by this plan showed (sweeps, a warm-up that was too short, a method
// that had to be finished in order), for plans of the same chain made later. Nothing happens where `report` is of
// another plan's method.
DPCR_API dpcr_status dpcr_solve_plan_learn(const dpcr_solve_plan *plan, const dpcr_solve_report *report,
                                           dpcr_error *error);

// Wisdom as a file: text with a checksum, of one machine (processor, instruction set level, number of processors,
// version of the library). Save writes what the context has, as a whole or not at all. Load adds what the file holds,
// but where the context has found out something itself; of a damaged file, or one of another machine, it takes nothing
// and says why (DPCR_ERROR_FORMAT). Where memory is refused (DPCR_ERROR_MEMORY), the notes read so far stay. The
// library reads and writes no file but these, when it is asked to.
DPCR_API dpcr_status dpcr_wisdom_save(dpcr_context *context, const char *path, dpcr_error *error);
DPCR_API dpcr_status dpcr_wisdom_load(dpcr_context *context, const char *path, dpcr_error *error);
// The number of things known; and forgetting them all, the measured rates too.
DPCR_API int64_t dpcr_wisdom_count(dpcr_context *context);
DPCR_API void dpcr_wisdom_forget(dpcr_context *context);

// Bytes of 64-byte aligned host workspace for execute and for backward (the larger of both); of a plan of a device,
// bytes of its memory for enqueue.
DPCR_API size_t dpcr_solve_plan_workspace(const dpcr_solve_plan *plan);

// Solves the chain:   z = z0; for l in 0..L-1: z = f_l(z); store z_l
//   z0 [B][w], z [L][B][w] (the guess when `guess` is GIVEN), tape [L][B][tape_values] or NULL. What is written, z and
//   tape, overlaps nothing else: a z0 on a row of z (of the steps before in the same memory) is refused
// Returns DPCR_OK also for results that are not converged: read report->reason.
// report may be NULL, here and in backward: then no times are taken, which saves up to a tenth of a solve of one
// microsecond.
DPCR_API dpcr_status dpcr_solve_execute(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                        const dpcr_array *tape, void *workspace, size_t workspace_bytes,
                                        dpcr_solve_report *report, dpcr_error *error);

// Backward at the solution z: lambda_l = direct_l + J_{l+1}^T lambda_{l+1}, then every step's parameter gradients by
// the `gradient` callback, and dz0 = J_0^T lambda_0.
//   direct [L][B][w] or NULL, last [B][w] or NULL: added to direct_{L-1}; lambda [L][B][w] or NULL: kept in the
//   workspace only, a window at a time; dz0 [B][w] or NULL; tape as execute left it (used up with consume_tape), or
//   NULL: recomputed. Of length 0 dz0 is last, or zeros.
// report->reason: SEQUENTIAL by the loop; by overlap EXACT where all chunks met bit for bit, RESIDUAL_ONLY where some
// did within the tolerance, FALLBACK where they did not and the rest went in order, whatever no_fallback says; by
// another scheme CONVERGED (the loop's adjoints to round-off), or FALLBACK where its chunks did not join.
DPCR_API dpcr_status dpcr_solve_backward(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                         const dpcr_array *tape, const dpcr_array *direct, const dpcr_array *last,
                                         const dpcr_array *lambda, const dpcr_array *dz0, void *workspace,
                                         size_t workspace_bytes, dpcr_solve_report *report, dpcr_error *error);

// ---- on a device ----
//
// All arrays lie on the plan's device, every number on a multiple of its size; dpcr_solve_plan_workspace is bytes of
// its memory, 256-byte aligned. Nothing waits, is allocated or is copied to the host but in dpcr_solve_collect, so both
// may be captured into a graph; but for picard and parataa, whose enqueue waits for the stream once a sweep, and asks
// the context's cancel function. What a stream does with one workspace has to be collected, or not to be wanted, before
// the next solve with it.

// Puts dpcr_solve_execute's solve into the stream and returns. z0 may be NULL: zeros.
DPCR_API dpcr_status dpcr_solve_enqueue(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                        void *workspace, size_t workspace_bytes, void *stream, dpcr_error *error);

// Waits for the stream and tells what became of the solve, sequence by sequence, by the host's rules: a step is locked
// where its residual and correction are within the tolerance, what is open after max_sweeps was finished in order from
// the locked prefix (FALLBACK, or NONFINITE where that left the finite numbers) or, with no_fallback, left open
// (NOT_CONVERGED). Overlap has no error estimate there: RESIDUAL_ONLY unless no boundary has a defect. `report` may be
// NULL; histories stay empty, seconds are those of the wait.
DPCR_API dpcr_status dpcr_solve_collect(const dpcr_solve_plan *plan, const void *workspace, size_t workspace_bytes,
                                        void *stream, dpcr_solve_report *report, dpcr_error *error);

// Puts the way back into the stream: lambda_l = direct_l + J_{l+1}^T lambda_{l+1} at the solution z, dz0 = J_0^T
// lambda_0 (dz0 may be NULL). lambda [L][B][w] may be direct itself, wholly. Gradients of parameters are those that the
// chain was made with (dpcr_device_model_create); those of a cell follow from lambda on the host. A plan of length 0
// writes nothing, dz0 included.
DPCR_API dpcr_status dpcr_solve_enqueue_backward(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                                 const dpcr_array *direct, const dpcr_array *lambda,
                                                 const dpcr_array *dz0, void *workspace, size_t workspace_bytes,
                                                 void *stream, dpcr_error *error);

// Tests the caller's callbacks along the loop from z0, over at most its first 24 steps, which must be finite: advance
// gives the same bits for rows apart, lanes of one step, lanes with a stride and several steps, in place; linearise's f
// equals advance's to the tolerance; J agrees with differences, to either side where f has a kink, jumps nowhere beside
// the loop's states where `kinks` says none, and changes there at jumps alone where it says affine; adjoint and jvp
// agree with J, the adjoint loop over many steps with the single ones, and, bit for bit, lanes at once with lanes
// apart. On disagreement returns DPCR_ERROR_CALLBACK with the first difference in words. Allocates.
DPCR_API dpcr_status dpcr_steps_check(dpcr_context *context, const dpcr_steps *steps, const dpcr_array *z0,
                                      double tolerance, dpcr_error *error);

// ---- chains over ranks ----

typedef struct dpcr_solve_ranks {
    size_t size;                      // sizeof(dpcr_solve_ranks) of the caller
    const dpcr_transport *transport;  // this rank's end
    double deadline;                  // seconds that a rank waits for another; 0: 60
    int max_sweeps;                   // over the ranks, before the rest goes in order (with the plan's no_fallback
                                      // DPCR_ERROR_UNSUPPORTED instead); 0: 3
    const dpcr_steps *before;  // the last steps of the rank before this one, as this one can run them: the run-up; NULL
                               // on the first rank, or for none
    // Going back:
    const dpcr_steps *after;         // the first steps of the rank after this one; NULL on the last rank, or for none
    const dpcr_array *after_direct;  // [their length][B][w] their direct, or NULL
    void (*clear)(void *user);       // forgets what the callback `gradient` has added: a range is gone back over again
    void *clear_user;                // where its boundary was wrong. Wanted where there is a gradient
} dpcr_solve_ranks;

// dpcr_solve_execute of a chain whose steps are spread over ranks, by overlap: `plan` is of this rank's own steps,
// those after the steps of the ranks below it, and all ranks make this call. z0 is the whole chain's, on every rank; z
// and tape are of the rank's steps. Each rank runs its steps from a run-up over `before` from z0; boundaries are
// exchanged and checked to the plan's atol and rtol (both 0: bit for bit), ranks that began wrong run again. `start`
// [B][w] is written: what came in, for the way back. The report tells of the ranks: method overlap, sweeps over them
// and, the same on each, the worst of what the boundaries and the ranks' own plans, when they last ran, came to:
// `residual` is of the boundaries' defects too, and an error is estimated where each rank has done so and the run-ups
// show how much of it is forgotten. With no_fallback NOT_CONVERGED of a rank's own steps is DPCR_OK, as in execute.
// Allocates from the plan's context.
DPCR_API dpcr_status dpcr_solve_execute_distributed(const dpcr_solve_plan *plan, const dpcr_solve_ranks *ranks,
                                                    const dpcr_array *z0, const dpcr_array *z, const dpcr_array *tape,
                                                    const dpcr_array *start, void *workspace, size_t workspace_bytes,
                                                    dpcr_solve_report *report, dpcr_error *error);

// dpcr_solve_backward after it: `last` is looked at on the last rank alone, dz0 [B][w] is what goes out of the rank's
// range, on rank 0 the chain's. Not with consume_tape. The parameters' gradients are of the rank's own steps.
DPCR_API dpcr_status dpcr_solve_backward_distributed(const dpcr_solve_plan *plan, const dpcr_solve_ranks *ranks,
                                                     const dpcr_array *start, const dpcr_array *z,
                                                     const dpcr_array *tape, const dpcr_array *direct,
                                                     const dpcr_array *last, const dpcr_array *lambda,
                                                     const dpcr_array *dz0, void *workspace, size_t workspace_bytes,
                                                     dpcr_solve_report *report, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
