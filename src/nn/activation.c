// SPDX-License-Identifier: MIT
// Names of activations.
#include "deeppcr/activation.h"

#include <assert.h>
#include <string.h>

#include "base/base.h"
#include "kern/nn_kernels.h"

static_assert((int)DPCR_ACT_IDENTITY - 1 == (int)DPCRI_ACT_IDENTITY && (int)DPCR_ACT_RELU - 1 == (int)DPCRI_ACT_RELU &&
                  (int)DPCR_ACT_TANH - 1 == (int)DPCRI_ACT_TANH &&
                  (int)DPCR_ACT_SIGMOID - 1 == (int)DPCRI_ACT_SIGMOID &&
                  (int)DPCR_ACT_GELU - 1 == (int)DPCRI_ACT_GELU && (int)DPCR_ACT_SILU - 1 == (int)DPCRI_ACT_SILU,
              "the kernels' activations are the public ones without the default");

static const char *const activation_names[DPCR_ACT_COUNT] = {"default", "identity", "relu", "tanh",
                                                             "sigmoid", "gelu",     "silu"};

const char *dpcr_activation_name(dpcr_activation activation) {
    return (int)activation >= 0 && activation < DPCR_ACT_COUNT ? activation_names[activation] : "unknown";
}

dpcr_status dpcr_activation_find(const char *name, dpcr_activation *activation, dpcr_error *error) {
    if (!name || !activation)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "activation_find: a name and a place are wanted");
    for (int i = 0; i < DPCR_ACT_COUNT; i++)
        if (strcmp(name, activation_names[i]) == 0) {
            *activation = (dpcr_activation)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "activation_find: '%.40s' is unknown; wanted identity, relu, tanh, sigmoid, gelu or silu", name);
}
