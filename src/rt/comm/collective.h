// SPDX-License-Identifier: MIT
// What all ranks do together, over messages alone, so that every transport gives the same bits.
#ifndef DPCRI_RT_COLLECTIVE_H
#define DPCRI_RT_COLLECTIVE_H

#include "deeppcr/transport.h"
#include "rt/comm/comm.h"

#define DPCRI_DEADLINE 60.0  // seconds, where the caller says none

// A caller's transport as a comm.
typedef struct dpcri_carried {
    dpcri_comm comm;  // first: a comm is its carrier
    const dpcr_transport *by;
} dpcri_carried;
// DPCR_ERROR_ARGUMENT where the transport is none; deadline 0: DPCRI_DEADLINE. `function` is for the text.
dpcr_status dpcri_carry(dpcri_carried *carried, const dpcr_transport *by, double deadline, const char *function,
                        dpcr_error *error);

// all [ranks][bytes] on every rank: what each has in `mine`.
dpcr_status dpcri_gather_all(dpcri_comm *comm, const void *mine, size_t bytes, void *all, dpcr_error *error);

// dpcr_ranks_agree on a comm.
dpcr_status dpcri_agree(dpcri_comm *comm, dpcr_status status, dpcr_error *error);

// The exclusive scan of transport.h by recursive doubling: after round k a rank holds what 2^(k+1) ranks up to itself
// make together, ceil(log2 ranks) rounds of one message each way. Which are put together first follows from the number
// of ranks alone. data [bytes] is this rank's, and is used up; prefix [bytes] is the result, *any whether there is one;
// scratch [bytes].
dpcr_status dpcri_exscan(dpcri_comm *comm, int reversed, void *data, void *prefix, void *scratch, size_t bytes,
                         dpcr_combine *combine, void *user, bool *any, dpcr_error *error);

// Tags of the library's own, below DPCR_TAGS.
enum { DPCRI_TAG_GATHER, DPCRI_TAG_ALL, DPCRI_TAG_SCAN, DPCRI_TAG_STATE, DPCRI_TAG_START, DPCRI_TAG_HALO };

#endif
