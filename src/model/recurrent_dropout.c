// SPDX-License-Identifier: MIT
// Dropout between the layers of a recurrent network, as torch.nn's: a number of y is kept with probability 1 - p and
// divided by that. Masks are counter-based: made of (seed, call, layer, t, b, place in y) wherever they are wanted,
// going forward and going back, so none is stored and they depend on nothing else.
#include "base/random.h"
#include "model/recurrent_internal.h"
#include "rt/rt.h"

typedef struct drop {
    const dpcr_recurrent_plan *plan;
    dpcri_recurrent_mask mask;
    const char *from;
    char *to;
} drop;

static void put(dpcr_dtype dtype, void *to, int64_t i, const void *from, double scale) {
    if (dtype == DPCR_F64)
        ((double *)to)[i] = scale == 0 ? 0 : ((const double *)from)[i] * scale;
    else
        ((float *)to)[i] = scale == 0 ? 0 : ((const float *)from)[i] * (float)scale;
}

static void drop_step(void *argument, int64_t t) {
    const drop *d = argument;
    const int64_t B = d->plan->options.batch, width = dpcri_recurrent_y(d->plan->network);
    const size_t bytes = (size_t)width * d->plan->network->element;
    for (int64_t b = 0; b < B; b++) {
        const size_t at = (size_t)(t * B + b) * bytes;
        uint32_t words[4];
        for (int64_t i = 0; i < width; i++) {
            if (i % 4 == 0) dpcri_random_block(d->mask.seed, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
            put(d->plan->network->options.dtype, d->to + at, i, d->from + at,
                words[i % 4] < d->mask.below ? 0 : d->mask.scale);
        }
    }
}

bool dpcri_recurrent_mask_of(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                             dpcri_recurrent_mask *mask) {
    const double p = plan->options.dropout;
    if (!plan->options.training || !(p > 0)) return false;
    const uint64_t stream = DPCRI_STREAM_DROPOUT | (uint64_t)layer;
    *mask = (dpcri_recurrent_mask){.seed = dpcri_random_u64(pass->dropout_seed, stream, pass->dropout_call),
                                   .below = (uint64_t)(p * 0x1p32),
                                   .scale = p < 1 ? 1 / (1 - p) : 0};
    return true;
}

void dpcri_recurrent_drop(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                          const void *from, void *to) {
    drop d = {.plan = plan, .from = from, .to = to};
    if (!dpcri_recurrent_mask_of(plan, pass, layer, &d.mask)) return;
    dpcri_parallel(plan->context, plan->options.length, drop_step, &d);
}
