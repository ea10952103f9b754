// SPDX-License-Identifier: MIT
// Dropout between the layers of a recurrent network, as torch.nn's: a number of y is kept with probability 1 - p and
// divided by that. Masks are counter-based: made of (seed, call, layer, t, b, place in y) wherever they are wanted,
// going forward and going back, so none is stored and they depend on nothing else.
#include "base/random.h"
#include "model/recurrent_internal.h"
#include "rt/rt.h"

typedef struct drop {
    const dpcr_recurrent_plan *plan;
    uint64_t seed;   // of this call and layer
    uint64_t below;  // a word below this drops its number
    double scale;
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
            if (i % 4 == 0) dpcri_random_block(d->seed, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
            put(d->plan->network->options.dtype, d->to + at, i, d->from + at, words[i % 4] < d->below ? 0 : d->scale);
        }
    }
}

void dpcri_recurrent_drop(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                          const void *from, void *to) {
    const double p = plan->options.dropout;
    if (!plan->options.training || !(p > 0)) return;
    drop d = {.plan = plan,
              .seed = dpcri_random_u64(pass->dropout_seed, DPCRI_STREAM_DROPOUT | (uint64_t)layer, pass->dropout_call),
              .below = (uint64_t)(p * 0x1p32),
              .scale = p < 1 ? 1 / (1 - p) : 0,
              .from = from,
              .to = to};
    dpcri_parallel(plan->context, plan->options.length, drop_step, &d);
}
