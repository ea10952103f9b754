// SPDX-License-Identifier: MIT
// What the files of the stand-in's kernels share.
#ifndef DPCRI_TESTS_FAKE_KERNELS_H
#define DPCRI_TESTS_FAKE_KERNELS_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "fake.h"

// fake_recurrent.c
dpcr_status fake_recurrent_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error);
dpcr_status fake_recurrent(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                           dpcr_error *error);
// fake_training.c
dpcr_status fake_update(int id, const dpcri_device_update *update, void *stream, dpcr_error *error);
dpcr_status fake_clip(int id, const dpcri_device_clip *clip, void *stream, dpcr_error *error);
dpcr_status fake_tie(int id, const dpcri_device_tie *tie, void *stream, dpcr_error *error);
dpcr_status fake_affine(int id, const dpcri_device_affine *affine, void *stream, dpcr_error *error);
dpcr_status fake_loss(int id, const dpcri_device_loss *loss, void *stream, dpcr_error *error);
dpcr_status fake_shuffle(int id, const dpcri_device_shuffle *shuffle, void *stream, dpcr_error *error);
dpcr_status fake_gather(int id, const dpcri_device_gather *gather, void *stream, dpcr_error *error);
dpcr_status fake_sequences(int id, const dpcri_device_sequences *sequences, void *stream, dpcr_error *error);
dpcr_status fake_embedding(int id, const dpcri_device_embedding *embedding, void *stream, dpcr_error *error);
dpcr_status fake_readout(int id, const dpcri_device_readout *readout, void *stream, dpcr_error *error);
dpcr_status fake_drop(int id, const dpcri_device_drop *drop, void *stream, dpcr_error *error);
// fake_sampler.c
dpcr_status fake_dense(int id, const dpcri_device_dense *dense, void *stream, dpcr_error *error);
dpcr_status fake_denoise(int id, const dpcri_device_denoise *denoise, void *stream, dpcr_error *error);
dpcr_status fake_move(int id, const dpcri_device_move *move, void *stream, dpcr_error *error);
dpcr_status fake_sweep(int id, const dpcri_device_sweep *sweep, void *stream, dpcr_error *error);

// ---- numbers of either dtype ----

enum { WIDEST = 1024 };

static inline double get(dpcr_dtype dtype, const void *at, int64_t i) {
    return !at ? 0 : dtype == DPCR_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

static inline void put(dpcr_dtype dtype, void *at, int64_t i, double value) {
    if (dtype == DPCR_F64)
        ((double *)at)[i] = value;
    else
        ((float *)at)[i] = (float)value;
}

static inline double act(int activation, double u) {
    switch (activation) {
        case 0: return u;
        case 1: return u <= 0 ? 0 : u;
        case 2: return tanh(u);
        case 4: return 0.5 * u * erfc(-u / sqrt(2));
        case 5: return u / (1 + exp(-u));
        default: return 1 / (1 + exp(-u));
    }
}

static inline double slope(int activation, double u) {
    const double y = act(activation, u), s = act(3, u), pi = 3.14159265358979323846;
    switch (activation) {
        case 0: return 1;
        case 1: return y > 0;
        case 2: return 1 - y * y;
        case 4: return 0.5 * erfc(-u / sqrt(2)) + u * exp(-u * u / 2) / sqrt(2 * pi);
        case 5: return s + u * s * (1 - s);
        default: return y - y * y;
    }
}

static inline void add(dpcr_dtype dtype, void *to, int64_t i, double value) {
    if (to) put(dtype, to, i, get(dtype, to, i) + value);
}

static inline void tell_outcome(dpcr_device_outcome *outcome, int64_t row, int64_t length, bool finite) {
    const char *locked = getenv("DEEPPCR_FAKE_LOCKED");  // of sequence 0
    const bool told = locked && row == 0;
    if (outcome)
        outcome[row] = (dpcr_device_outcome){.sweeps = told ? 3 : 1,
                                             .locked = told ? atoll(locked) : length,
                                             .non_finite = told ? atoll(locked) == 0 : !finite,
                                             .residual = told ? 0.5 : 0};
}

#endif
