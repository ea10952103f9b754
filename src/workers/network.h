// SPDX-License-Identifier: MIT
// A worker's copy of a network, in groups of units, and the minibatches that go through it.
#ifndef DPCRI_WORKERS_NETWORK_H
#define DPCRI_WORKERS_NETWORK_H

#include "pipe/executor_stage.h"

// [groups + 1] units at which groups of about as many parameters begin, at most one a unit; *groups in: wanted, out:
// made. The caller's.
dpcr_status dpcri_groups_cut(dpcr_context *context, const dpcr_model *model, int64_t *groups, int64_t **first,
                             dpcr_error *error);

// Bytes of the whole vector.
size_t dpcri_model_bytes(const dpcr_model *model);

typedef struct dpcri_network {
    dpcr_context *context;
    const dpcr_model *model;  // the whole one, for places
    const int64_t *first;     // [groups + 1] units; the caller's
    int64_t groups, made;
    dpcri_stage *group;  // [groups]
} dpcri_network;

// The parameters are copied. *network is to be destroyed also after a failure.
dpcr_status dpcri_network_create(dpcri_network *network, dpcr_context *context, const dpcr_model *model,
                                 const int64_t *first, int64_t groups, dpcr_error *error);
void dpcri_network_destroy(dpcri_network *network);

// What the passes of one minibatch keep.
typedef struct dpcri_minibatch {
    dpcr_context *context;
    int64_t most, rows;  // that fit; that there are
    char *memory;
    dpcri_kept *kept;  // [groups]
    uint8_t *labels;   // [most]
} dpcri_minibatch;

dpcr_status dpcri_minibatch_create(dpcri_minibatch *batch, dpcr_context *context, const dpcri_network *network,
                                   int64_t most, dpcr_error *error);
void dpcri_minibatch_destroy(dpcri_minibatch *batch);
// Room for rows <= most rows, in place.
void dpcri_minibatch_lay(dpcri_minibatch *batch, const dpcri_network *network, int64_t rows);
// Where the rows' pixels go.
char *dpcri_minibatch_input(const dpcri_minibatch *batch, const dpcri_network *network);

// The tasks of a group: results go to the next group of the same minibatch, errors to the one before.
dpcr_status dpcri_network_forward(dpcri_network *network, dpcri_minibatch *batch, int64_t group, dpcr_error *error);
dpcr_status dpcri_network_input(dpcri_network *network, dpcri_minibatch *batch, int64_t group, dpcr_error *error);
dpcr_status dpcri_network_weight(dpcri_network *network, dpcri_minibatch *batch, int64_t group, dpcr_error *error);
// losses[row], and how many rows are right; the gradient is of the mean over `whole` rows.
dpcr_status dpcri_network_loss(dpcri_network *network, dpcri_minibatch *batch, int64_t whole, double *losses,
                               int64_t *correct, dpcr_error *error);

static inline void *dpcri_network_parameters(const dpcri_network *network, int64_t group) {
    return network->group[group].own;
}
// Step of the whole network that is the group's first.
int64_t dpcri_network_first_step(const dpcri_network *network, int64_t group);
// dpcr_model_tie_gradients, over the groups; the sums run in the layers' order.
void dpcri_network_tie(const dpcri_network *network);
void *dpcri_network_gradients(const dpcri_network *network, int64_t group);
static inline size_t dpcri_network_bytes(const dpcri_network *network, int64_t group) {
    return (size_t)network->group[group].count * network->group[group].element;
}

#endif
