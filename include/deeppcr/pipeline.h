// SPDX-License-Identifier: MIT
// Pipelined training: runs a schedule's table on a network, each rank on a thread of its own.
#ifndef DEEPPCR_PIPELINE_H
#define DEEPPCR_PIPELINE_H

#include "profile.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

// A model's units in order: its encoder (where it has one), its steps, its head (with the loss). Stages are ranges of
// units.

// ---- profiles of our own models ----

// Measures forward, input gradient and weight gradient of a model on `rows` rows (a microbatch), as the pipeline runs
// them: one thread, all layers in turn, the median over some rounds, in seconds. A layer of the profile is the encoder,
// `group` neighbouring steps (0: as many as make at most 64 groups), or the head with the loss. Bytes are of `rows`
// rows. *profile is the caller's.
DPCR_API dpcr_status dpcr_profile_measure(dpcr_context *context, const dpcr_model *model, int64_t rows, int64_t group,
                                          dpcr_profile *profile, dpcr_error *error);
// The first unit of a layer of that profile; of one past its end the number of units.
DPCR_API int64_t dpcr_profile_unit(const dpcr_model *model, int64_t group, int64_t layer);

#ifdef __cplusplus
}
#endif
#endif
