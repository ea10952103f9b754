// SPDX-License-Identifier: MIT
// bench bppsa: networks whose backward pass is a scan over transposed Jacobians.
#ifndef DEEPPCR_CLI_BENCH_BPPSA_H
#define DEEPPCR_CLI_BENCH_BPPSA_H

#include "cli.h"

typedef struct bppsa_asked {
    cli_common common;
    int network;  // index of bppsa_networks
    dpcr_dtype dtype;
    double prune;  // the smallest weights of each layer that are taken out, by their number
    int64_t batch;
    int64_t length, width, divisor;  // while options are read 0: not given
    int level_limit;                 // -1: none
    double seconds;                  // of the race
} bppsa_asked;

enum { BPPSA_NETWORKS = 4 };
extern const char *const bppsa_networks[BPPSA_NETWORKS];

// ---- networks: bench_networks.c ----

// The backward pass of a network at random inputs, as dpcr_bppsa takes it; twice where weights are pruned.
typedef struct bppsa_network {
    int64_t length, weights, kept;
    dpcr_dtype dtype;
    int64_t batch;
    dpcr_jacobian **jacobians, **full_jacobians;  // NULL where a step has none of its own
    dpcr_transition *steps, *full_steps;          // without, and with, entries for pruned weights
    dpcr_array *values, *full_values;             // full: the same array where nothing was pruned
    dpcr_array *parameters;                       // linear and conv2d
    unsigned char *shared;
    dpcr_array last;
    int64_t capacity;
} bppsa_network;

// Makes one with its forward pass done; returns the exit code.
int bppsa_network_create(dpcr_context *context, const bppsa_asked *asked, bppsa_network *network);
void bppsa_network_destroy(bppsa_network *network);
// Fills the pruned values of the weights again, as after a training step.
dpcr_status bppsa_network_refill(const bppsa_network *network, dpcr_error *error);

#endif
