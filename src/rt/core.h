// SPDX-License-Identifier: MIT
// Kinds of processors, by how they do a vector; what that makes of the costs which kernels tell.
#ifndef DPCRI_CORE_H
#define DPCRI_CORE_H

// Turns that sixteen floats take through the level's vector units, of 4, 8 or 16 lanes: 4 to 1.
double dpcri_vector_passes(void);

// How a processor does the vectors of the level in force, as far as kernels and costs go by it; WHOLE also where those
// are portable ones. The second and third are of AVX-512, the last is of AVX2.
typedef enum dpcri_core {
    DPCRI_CORE_WHOLE,   // vectors of 512 bits at once, sums and shuffles by units of their own: Zen 5
    DPCRI_CORE_TURNS,   // in two turns, by units half as wide: Zen 4
    DPCRI_CORE_SHARED,  // at once, by two units for everything, one of which shuffles; a third-level cache far away:
                        // Xeon
    DPCRI_CORE_HALVES   // vectors of 256 bits in two turns: Zen 1
} dpcri_core;
dpcri_core dpcri_core_kind(void);
// That of the processor of that name (dpcr_processor_name), whatever the level.
dpcri_core dpcri_core_named(const char *processor);
void dpcri_core_let_be(dpcri_core core);  // for tests: kernels may choose by it, the same bits by another order of work

// What the costs that kernels tell are to be multiplied by: they were measured on a Zen 5, with AVX2 on a Zen 3, where
// all of it is 1.
typedef struct dpcri_slower {
    double lanes;            // what fills the units
    double weights, nearer;  // what waits for wide layers' weights: from the third cache, and from the second
    double windows;          // adjoint windows, which shuffle as much as they multiply
    double loop, relu;       // loops of tanh and sigmoid; of ReLU in layers of up to 4
    double doubles;          // of loops of tanh and sigmoid, in double
    double wide;             // loops of layers from 8 on
    double lanes_of_8;       // what fills the units and is 8 wide
    double loop_back_of_8;   // and a loop back of that
    double vectors;          // loops of tanh over whole vectors, elementwise
    double sums;             // loops that wait for sums and products alone
    double reach;            // weights count as the second cache's up to so many times its size
} dpcri_slower;
dpcri_slower dpcri_kernels_slower(void);

#endif
