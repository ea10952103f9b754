// SPDX-License-Identifier: MIT
// Activations, elementwise functions of networks and cells.
#ifndef DEEPPCR_ACTIVATION_H
#define DEEPPCR_ACTIVATION_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Values and slopes are right to some roundings of themselves, but for the slopes where they are near 0 beside the
// terms that they are made of (tanh's far from 0, GELU's and SiLU's near their zero).
typedef enum dpcr_activation {
    DPCR_ACT_DEFAULT = 0,  // mlp: ReLU; resnet: tanh (linear branch), ReLU (two-layer branch); cells: tanh
    DPCR_ACT_IDENTITY,
    DPCR_ACT_RELU,
    DPCR_ACT_TANH,
    DPCR_ACT_SIGMOID,
    DPCR_ACT_GELU,  // the exact form, z Phi(z)
    DPCR_ACT_SILU,
    DPCR_ACT_COUNT
} dpcr_activation;

// "identity", "relu", "tanh", "sigmoid", "gelu", "silu".
DPCR_API const char *dpcr_activation_name(dpcr_activation activation);
DPCR_API dpcr_status dpcr_activation_find(const char *name, dpcr_activation *activation, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
