// SPDX-License-Identifier: MIT
// generate: what its verb and its bench share. A run samples `count` pictures, so many at a time.
#ifndef DEEPPCR_GENERATE_H
#define DEEPPCR_GENERATE_H

#include "cli.h"

typedef struct generation {
    dpcr_context *context;
    dpcr_diffusion *model;
    dpcr_sampler_options sampler;  // seed, first_sample are filled in as it goes
    dpcr_solve_options solve;
    double tolerance;      // of a step, in units of the state; 0: until the bits repeat
    double confirm;        // of the picture: solve.confirm's, where the method has no estimate of its own
    bool scaled;           // picard: the tolerance in units of each step's noise
    int64_t count, batch;  // batch 0: as fits
    int label;             // -1: none
    double guidance;
    bool compare;
    dpcr_device device;  // a CUDA device: the loop there; else the processor
    // Guesses: [length][1 or count][chain's width], or NULL. Inpainting: mask [width], known [1 or count][width], or
    // NULL.
    const float *guess, *mask, *known;
    int64_t guesses, knowns;
    // Out. samples [count][width], path [length][width] of the first sample or NULL, paths [length][count][chain's
    // width] of all or NULL, told by the caller.
    float *samples, *path, *paths;
    double planning_seconds;
    int64_t planning_evaluations, planning_calls;
    double seconds, noise_seconds, sequential_seconds, max_error, error_estimate;
    int sweeps;
    int64_t evaluations, sequential_evaluations, calls;
    dpcr_method method;
    dpcr_reason reason;
    char sentence[512];
} generation;

// Samples all pictures. Returns the exit code.
int cli_generate_run(generation *g);
// Samples at a time, so that states, noise and sweeps of a window stay within some hundred megabytes.
int64_t cli_generate_batch(const generation *g);
// Steps of the chain, and numbers of its state.
int64_t cli_generate_length(const generation *g);
int64_t cli_generate_state(const generation *g);
bool cli_sampling_needs_jacobians(const generation *g);
// "newton", "quasi-newton", ... and every name of the solver's methods.
bool cli_read_sampling_method(const char *option, const char *text, generation *g);
// Methods whose tolerance is of an error estimate of their own.
bool cli_sampling_estimates(dpcr_method method);
// A tolerance of the pictures. Those methods hold their estimate to it (overlap joins bit for bit); the others take a
// tenth for their steps, which leaves an error of its order, and corrections until an estimate confirms it.
void cli_confirm_pictures(generation *g, double tolerance);
const char *cli_sampling_method_name(dpcr_method method);

#endif
