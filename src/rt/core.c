// SPDX-License-Identifier: MIT
#include "rt/core.h"

#include <stdlib.h>
#include <string.h>

#include "rt/rt.h"

// AMD's family 25 is Zen 4 where it has AVX-512, later ones do vectors whole; of family 23 the first models are Zen 1.
dpcri_core dpcri_core_named(const char *processor) {
    static const char family[] = "(family 23 model ";
    enum { FIRST_ZEN_2 = 48 };
    if (strstr(processor, "Intel")) return DPCRI_CORE_SHARED;
    if (!strstr(processor, "AMD")) return DPCRI_CORE_WHOLE;
    if (strstr(processor, "(family 25 ")) return DPCRI_CORE_TURNS;
    const char *const model = strstr(processor, family);
    return model && atoi(model + sizeof family - 1) < FIRST_ZEN_2 ? DPCRI_CORE_HALVES : DPCRI_CORE_WHOLE;
}

static _Atomic int core = -1;  // not asked yet

dpcri_core dpcri_core_kind(void) {
    if (core < 0) core = (int)dpcri_core_named(dpcr_processor_name());  // every thread finds the same
    const dpcri_core kind = (dpcri_core)core;
    return dpcri_isa_level() == (kind == DPCRI_CORE_HALVES ? DPCRI_AVX2 : DPCRI_AVX512) ? kind : DPCRI_CORE_WHOLE;
}

void dpcri_core_let_be(dpcri_core kind) { core = (int)kind; }

double dpcri_vector_passes(void) {
    static const double passes[DPCRI_ISA_COUNT] = {4, 2, 1};
    return dpcri_core_kind() == DPCRI_CORE_TURNS ? 2 : passes[dpcri_isa_level()];
}

// Measured beside what the kernels tell (deeppcr plan mlp|resnet --layers 1024|8192 --measure --threads 1), on a Zen 4:
// lanes 1.3 to 2.4 times as long, adjoint windows 1.3 to 2.5, weights of 16 to 64 components from the second cache 1.2
// to 1.6, loops 1 to 1.4. On an Emerald Rapids at 3 GHz: lanes 1.5 to 2.5, windows 1.6 to 2.9, weights of 32 and 64
// components 2.7 to 5.5, of 16 1.2 to 2.8, loops of tanh 1.7 to 1.8, of ReLU 1.6 to 2.5, back 1.0 to 1.6. There weights
// as large as the second cache (128 layers of width 64) come from the third. On a Zen 1: lanes 1.4 to 2.6 times as
// long, of 8 components 3 to 5, adjoint windows 1.1 to 2.9, weights from the third cache 1.5 to 3, from beyond it 3.5
// to 4.5, loops of tanh 1.2 to 1.7, of ReLU 1 to 1.7, of 8 and more components 1.5 to 2.9, back 1.1 to 1.8 (of 3, whose
// gradients permuted vectors a step at a time, 3 to 4.5).
dpcri_slower dpcri_kernels_slower(void) {
    // lanes, weights, nearer, windows, loop, relu, doubles, wide, lanes_of_8, loop_back_of_8, vectors, sums, reach
    static const dpcri_slower by_core[] = {
        [DPCRI_CORE_WHOLE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1.25},
        [DPCRI_CORE_TURNS] = {1.75, 1.4, 1.4, 1.4, 1.2, 1, 0.8, 1, 1.75, 1.2, 1.4, 1, 1.25},
        [DPCRI_CORE_SHARED] = {2, 3.4, 1.5, 2, 1.75, 1.9, 1, 1.9, 2, 1.75, 2.5, 1.5, 1},
        [DPCRI_CORE_HALVES] = {2.1, 2.6, 2, 1.8, 1.45, 1.7, 1, 2.2, 4.2, 2.9, 1.45, 1.5, 1.25},
    };
    return by_core[dpcri_core_kind()];
}
