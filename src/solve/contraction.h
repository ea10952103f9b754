// SPDX-License-Identifier: MIT
// What a chain remembers of its start, from a few hundred of its steps.
#ifndef DPCRI_CONTRACTION_H
#define DPCRI_CONTRACTION_H

#include <stdbool.h>

#include "deeppcr/solve.h"
#include "rt/watch.h"

typedef enum dpcri_memory {
    DPCRI_MEMORY_UNKNOWN = 0,  // nothing was run, or it did not stay finite
    DPCRI_MEMORY_FORGETS,      // two starts meet
    DPCRI_MEMORY_KEEPS,        // two starts stay apart, near ones neither meet nor part
    DPCRI_MEMORY_CHAOTIC       // near starts part
} dpcri_memory;

typedef struct dpcri_contraction {
    dpcri_memory memory;
    double rate;      // mean logarithm by which a distance grows a step; negative: it shrinks
    int64_t within;   // steps after which the starts are within the tolerance, extrapolated where needed; 0: never
    int64_t to_bits;  // steps after which they agree bit for bit; 0: not seen, or later than soon and not asked for
    int64_t steps;    // run from each start at each place; of scouts, where they ended it
    int64_t evaluations;
    double seconds;  // that all of it took
    int code;        // negative: the callback aborted with it
} dpcri_contraction;

// Runs at most `most` steps from two starts, zeros and the rows of z0 (NULL: a vector of its own), side by
// side at several places of the chain, and watches their distance. Memory that is refused, a callback that aborts, a
// watch (or NULL) that is stopped: UNKNOWN. `bits`: until they agree bit for bit, however late. Deterministic but for
// `seconds`.
dpcri_contraction dpcri_contraction_of(dpcr_context *context, const dpcr_steps *steps, const dpcr_array *z0,
                                       double tolerance, bool bits, int64_t most, dpcri_watch *watch);
// Whether the starts agreed bit for bit hardly later than within the tolerance.
bool dpcri_meets_soon(const dpcri_contraction *contraction);

// "forgets", "keeps its past", "is chaotic", "unknown".
const char *dpcri_memory_name(dpcri_memory memory);

#endif
