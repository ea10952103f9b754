// SPDX-License-Identifier: MIT
// A chain to compare methods on: the layers of a network or a built-in map, initial states, gradients from outside, and
// the solves of it.
#ifndef DEEPPCR_CLI_PROBLEM_H
#define DEEPPCR_CLI_PROBLEM_H

#include "cli.h"

// Streams of random numbers, apart from those of the library's model (which has a key of its own by stream).
enum { CLI_STREAM_STATES = 0x101, CLI_STREAM_DIRECT, CLI_STREAM_LAST, CLI_STREAM_WEIGHTS = 0x200 };

typedef struct cli_problem {
    dpcr_model *model;  // NULL for a built-in map or a cell
    dpcr_steps steps;
    dpcr_array z0;      // [B][w]
    dpcr_array direct;  // [L][B][w]: gradient of a loss that every state enters
    dpcr_array last;    // [B][w]: gradient of the loss at the end
} cli_problem;

// Maps that are built in: "lorenz", "logistic" (chaotic, float64).
bool cli_map_known(const char *name);
extern const char cli_map_names[];           // ", lorenz, logistic"
extern const char *const cli_map_options[];  // of the network's, for cli_network_only
int64_t cli_map_width(const char *name);
dpcr_steps cli_map_steps(const char *name, int64_t length, int64_t batch);
void cli_map_start(const char *name, const dpcr_array *z0, uint64_t seed);

// Makes the model of `network` with `seed`, its initial weights changed by init and gain. NULL: told in `status`.
dpcr_model *cli_model_create(dpcr_context *context, const cli_network *network, uint64_t seed, int *status);

// `model` is borrowed (NULL with a `map`); `data` NULL: z0 is random, else images go through the encoder.
int cli_problem_create(dpcr_context *context, dpcr_model *model, const char *map, const cli_network *network,
                       const char *data, uint64_t seed, cli_problem *problem);
// The same over steps that somebody else made and keeps; z0 is random.
int cli_problem_of_steps(const dpcr_steps *steps, uint64_t seed, cli_problem *problem);
void cli_problem_destroy(cli_problem *problem);

enum { CLI_HISTORY = 4096 };  // sweeps that a report remembers

// One forward and backward solve, and what it left.
typedef struct cli_solution {
    dpcr_method method;
    dpcr_scheme backward;
    double tolerance;  // absolute, of the solve; 0: none
    dpcr_array z;      // [L][B][w]
    dpcr_array dz0;    // [B][w]
    void *gradients;   // copy of the model's gradient vector; NULL for a map
    int64_t gradient_count;
    size_t workspace;
    double seconds, forward_seconds, backward_seconds;
    char sentence[512];
    dpcr_solve_report report;     // of the forward solve; its histories are the two below
    dpcr_reason backward_reason;  // 0: not told, by a device
    double residuals[CLI_HISTORY];
    int64_t locked[CLI_HISTORY];
} cli_solution;

// Plans, solves, goes back. `at`: states at which to go back instead of this solve's own (then nothing is solved
// forward); NULL: its own. Returns the exit code; *solution is NULL when that is not 0.
int cli_solution_create(dpcr_context *context, const cli_problem *problem, const dpcr_solve_options *options,
                        const dpcr_array *at, cli_solution **solution);
void cli_solution_destroy(cli_solution *solution);
// A network's, on the device of the options; for cli_solution_create, which comes here by itself.
int cli_solution_on_device(dpcr_context *context, const cli_problem *problem, const dpcr_solve_options *options,
                           cli_solution *solution);

// Largest |x - y| / max(1, |y|); infinite where only one is finite or their infinities differ.
double cli_states_error(const dpcr_array *x, const dpcr_array *y);
// Largest over the layers, and for dz0, of max |x - y| / max |y|; `name` gets the worst tensor's. A layer's weight and
// bias share a scale: where a state has died away, so has its weight's gradient, and only the bias tells what a state
// of the size 1, which errors of states refer to, would contribute.
double cli_gradients_error(const cli_problem *problem, const cli_solution *x, const cli_solution *y, char *name,
                           size_t bytes);

#endif
