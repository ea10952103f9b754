// SPDX-License-Identifier: MIT
// The inside of the samplers: schedules with their defaults filled in, and a step as a few coefficients.
#ifndef DPCRI_SAMPLE_H
#define DPCRI_SAMPLE_H

#include <assert.h>

#include "base/base.h"
#include "deeppcr/sample.h"

enum { DPCRI_MOST_TIMES = 1 << 14 };  // T at most

// Copies the options with every default filled in, or refuses them in words.
dpcr_status dpcri_noise_options_fill(const dpcr_noise_options *options, dpcr_noise_options *filled, dpcr_error *error);
void dpcri_noise_fill(const dpcr_noise_options *filled, double *beta, double *abar);
void dpcri_spacing_fill(dpcr_spacing spacing, const dpcr_noise_options *filled, const double *abar, int64_t steps,
                        double *times);
// log(sigma / alpha) at any time in 0..T-1, linear between the trained ones.
double dpcri_log_ratio(const dpcr_noise_options *filled, const double *abar, double time);

// One evaluation of the denoiser at x: what its prediction m says of x0 and of the noise e.
typedef struct dpcri_reading {
    double time;
    double x0_x, x0_m;  // x0 = x0_x x + x0_m m, then cut to [-clip, clip]
    double e_x, e_m;    // e = e_x x + e_m m
} dpcri_reading;

// x' = x x + x0 x0 + e e + previous p + noise xi      p the former step's x0, xi this step's noise
// Where there is a second evaluation, that x' is x1, read at the second time, and x' = x x + x0 x0 + x1 x1 + x01
// x0(x1).
typedef struct dpcri_step {
    dpcri_reading first, second;
    double x, x0, e, previous, noise;
    bool twice;
    double then_x, then_x0, then_x1, then_x01;
    double alpha, sigma;  // of the time it goes to
    double variance;      // that its noise would have with eta = 1
} dpcri_step;

// A place in the schedule: alpha^2 + sigma^2 = 1.
typedef struct dpcri_place {
    double time, alpha, sigma;
} dpcri_place;

dpcri_place dpcri_place_at(const dpcr_noise_options *filled, const double *abar, double time);
dpcri_reading dpcri_reading_make(dpcr_prediction prediction, dpcri_place at);
// From `at` to `to`; before: where the former step began, NULL for the first.
dpcri_step dpcri_step_make(dpcr_sampler_kind kind, dpcr_prediction prediction, double eta, dpcri_place at,
                           dpcri_place to, const dpcri_place *before);

struct dpcr_sampler {
    dpcr_context *context;
    dpcr_denoiser denoiser;
    dpcr_sampler_options options;  // every default filled in; mask and known are NULL
    dpcr_steps chain;
    int64_t batch, width;  // of the picture
    dpcri_step *steps;     // [N - skip]
    dpcri_place *places;   // [N - skip + 1] where the steps begin, and the last one's end
    double *slopes;        // [N - skip]
    dpcri_step *coarser;   // [N - skip] scratch of the callback coarse
    bool noisy;            // any step adds noise
    void *start;           // [B][width] the first noise
    void *noise;           // [N - skip][B][width], or NULL
    unsigned char *mask;   // [width], or NULL
    void *known;           // [B][width], with a mask
    // One call at a time: rows gathered for the denoiser, and what it says of them.
    int64_t block;              // rows at most
    void *x, *m, *x1, *m1, *p;  // [block][width]; p: the former x0
    void *j, *j1;               // [jacobian_block][width][width], or NULL
    void *square;               // [width][width], or NULL
    int64_t jacobian_block;
    double *times;       // [block]
    int64_t *sequences;  // [block]
    int64_t *lanes;      // [block]: of the span
    int64_t rows, products, calls;
    struct dpcri_sampler_device *there;  // what lies on a device, or NULL
};

// Everything that the chain's loop wants on the options' device, after all else of the sampler has been made.
dpcr_status dpcri_sampler_device_create(dpcr_sampler *sampler, dpcr_error *error);
void dpcri_sampler_device_destroy(dpcr_sampler *sampler);
// dpcr_steps.launch of the chain.
dpcr_status dpcri_sampler_launch(void *user, dpcr_launch *launch, dpcr_error *error);

#endif
