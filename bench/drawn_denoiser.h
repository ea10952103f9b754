// SPDX-License-Identifier: MIT
// What benchmarks of diffusion samplers share: a denoiser with drawn numbers.
#ifndef DEEPPCR_BENCH_DRAWN_DENOISER_H
#define DEEPPCR_BENCH_DRAWN_DENOISER_H

#include <math.h>

#include "deeppcr/sample.h"
#include "sample/networks.h"
#include "timing.h"

// Of pictures that are `width` numbers in one row, so no auto-encoder is wanted; its predictions (v) are small.
static inline dpcr_diffusion *drawn_denoiser(dpcr_context *context, int64_t width, int64_t hidden, int64_t depth) {
    dpcr_error error;
    dpcr_diffusion *model;
    const dpcr_diffusion_options options = {.size = sizeof options,
                                            .rows = 1,
                                            .cols = width,
                                            .width = width,
                                            .hidden = hidden,
                                            .depth = depth,
                                            .prediction = DPCR_PREDICT_V,
                                            .noise = {.size = sizeof options.noise},
                                            .seed = 1};
    must(dpcr_diffusion_create(context, &options, NULL, &model, &error), &error);
    const dpcri_dense *out = &model->net.layers[model->net.count - 1];  // starts at 0
    const float bound = 0.3f / sqrtf((float)hidden);
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < out->in * out->out; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        model->net.values[out->weight + i] = bound * ((float)(x >> 40) / (1 << 23) - 1);
    }
    dpcri_diffusion_refresh(model);
    return model;
}

#endif
