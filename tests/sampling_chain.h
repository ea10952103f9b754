// SPDX-License-Identifier: MIT
// Samplers of every kind over a formula, as the tests of sampler chains use them.
#ifndef SAMPLING_CHAIN_H
#define SAMPLING_CHAIN_H

#include "sampling.h"

enum { W = 6, B = 3, N = 24 };

typedef struct variant {
    dpcr_sampler_kind kind;
    double eta, clip;
    dpcr_spacing spacing;
    dpcr_prediction prediction;
} variant;

static const variant variants[] = {
    {DPCR_SAMPLER_DDPM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DDPM, 0, 1, DPCR_SPACING_TRAILING, DPCR_PREDICT_X0},
    {DPCR_SAMPLER_DDIM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DDIM, 0.5, 2, DPCR_SPACING_LINSPACE, DPCR_PREDICT_V},
    {DPCR_SAMPLER_DPM_SOLVER, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DPM_SOLVER, 0, 1, DPCR_SPACING_KARRAS, DPCR_PREDICT_V},
    {DPCR_SAMPLER_EULER, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_HEUN, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_X0},
    {DPCR_SAMPLER_HEUN, 0, 1.5, DPCR_SPACING_TRAILING, DPCR_PREDICT_EPSILON},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static inline dpcr_sampler_options options_of(const variant *v) {
    return (dpcr_sampler_options){.size = sizeof(dpcr_sampler_options),
                                  .kind = v->kind,
                                  .eta = v->eta,
                                  .clip = v->clip,
                                  .spacing = v->spacing,
                                  .steps = N,
                                  .seed = 11};
}

static inline dpcr_sampler *make(dpcr_context *context, formula *f, const variant *v,
                                 const dpcr_sampler_options *options, int64_t batch) {
    const dpcr_denoiser denoiser = formula_denoiser(f, v->prediction);
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    if (dpcr_sampler_create(context, &denoiser, options, batch, &sampler, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    return sampler;
}

#endif
