// SPDX-License-Identifier: MIT
// bench: the same work done in several ways, raced in interleaved rounds.
#ifndef DEEPPCR_CLI_BENCH_H
#define DEEPPCR_CLI_BENCH_H

#include "problem.h"

// ---- races: bench_race.c ----

enum { BENCH_ENTRANTS = 16, BENCH_ROUNDS = 15 };

// One way to get the result, and what running it gave.
typedef struct bench_entrant {
    const char *name;  // of the method or scheme; "sequential", "auto"
    void *plan;        // for the subject's run
    size_t workspace;
    bool asked;            // the user named it
    double least_seconds;  // what it takes at best, from its flops; 0: no idea
    char skipped[160];     // why it was not run; empty: it was
    // what it told
    const char *chosen, *scheme, *reason;  // chosen: the name of what ran; scheme and reason may be NULL
    bool fallback;                         // it gave up and left the rest to the loop
    bool unconverged;                      // it gave up and was told not to fall back: no result
    double tolerance;                      // that it ran with; negative: not told
    int64_t run_up;                        // asked for; 0: the default
    int sweeps;
    int64_t evaluations, depth;  // of steps; dependent steps. Negative: not told
    double flops;                // of the linear chain; negative: not told
    // what was measured
    double max_error;        // largest |x - y| / max(1, |y|), y the loop's
    double seconds, spread;  // median, (third quartile - first) / median
    int rounds, inner;       // rounds, and runs in each; 0 rounds: looked at once, too slow to go on
    double times[BENCH_ROUNDS];
} bench_entrant;

// Entrant 0 is the loop, whose result is the reference.
typedef struct bench_race {
    void *subject;
    // Runs an entrant; `fresh`: from a clean slate (gradients zeroed), as `keep` and `compare` want it, and with what
    // it told. Runs that are timed ask for no report, which would read the clock.
    dpcr_status (*run)(void *subject, bench_entrant *entrant, bool fresh, dpcr_error *error);
    void (*keep)(void *subject);       // what the last run left becomes the reference
    double (*compare)(void *subject);  // largest difference of what the last run left
    bench_entrant entrants[BENCH_ENTRANTS];
    int count, best, chosen;  // best: the fastest parallel one, chosen: auto; negative: none
    int rounds;
    double bytes;  // that the work cannot help moving; 0: not told
} bench_race;

// Runs of `seconds` each before one that is timed, which then finds in the caches, each thread's, what it would find if
// it ran alone, whoever ran before it.
int bench_warm_runs(double seconds);

bench_entrant *bench_race_add(bench_race *race, const char *name);
// Runs every entrant, looks at the slow ones once and races the others; about `seconds` long. Returns the exit code.
int bench_race_run(bench_race *race, double seconds);

// ---- what is asked for: bench.c ----

enum { BENCH_VALUES = 64 };
typedef struct bench_values {
    int64_t value[BENCH_VALUES];
    int count;
} bench_values;

typedef struct bench {
    cli_common common;
    cli_solver solver;
    cli_network network;  // a chain's length, width, batch and dtype too
    const char *kind;     // "mlp", "resnet", "chain", "cell"
    dpcr_structure structure;
    dpcr_activation cell;  // of a recurrent cell
    double radius, input_sd;
    bool length_given, structure_given, radius_given, cell_given, input_given, loss_at_end, limits;
    double seconds;  // of a race
    const char *commit;
    bench_values lengths, widths, batches;
} bench;

// One chain, both directions.
typedef struct bench_point {
    int64_t length, width, batch;
    dpcr_dtype dtype;
    bench_race forward, backward;
} bench_point;

// What the machine itself can do; negative: not measured.
typedef struct bench_limits {
    double triad_bytes_per_second, fma_seconds, line_seconds;
} bench_limits;

// The races of a nonlinear chain, whatever it is. `gradient`: where its gradient callback adds.
int bench_steps_point(dpcr_context *context, const bench *b, const cli_problem *problem, const dpcr_array *gradient,
                      bench_point *point);
int bench_network_point(dpcr_context *context, const bench *b, bench_point *point);
int bench_chain_point(dpcr_context *context, const bench *b, bench_point *point);
int bench_cell_point(dpcr_context *context, const bench *b, bench_point *point);

// a = b + s c over arrays beyond the caches on `threads` threads, counting their three sizes; one fma after another; a
// line of cache from one thread to another, and back half of the times.
bench_limits bench_limits_measure(int threads);

// ---- what is told: bench_output.c ----

void bench_say_point(const bench *b, const bench_point *point, int threads);
void bench_say_limits(const bench *b, const bench_limits *limits);
// Where a later point has failed or the run is stopped: writes the CSV table of the `count` points before it.
void bench_keep(const bench *b, const bench_point *points, int count, int threads);
// The single point's object, or with lists an object of "points".
int bench_finish(const bench *b, const bench_point *points, int count, const bench_limits *limits, int threads);

#endif
