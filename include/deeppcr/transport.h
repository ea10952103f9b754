// SPDX-License-Identifier: MIT
// Messages between the ranks of one computation: processes by whatever means the caller has (MPI, sockets), or threads
// of this process (dpcr_ranks_run). The library itself knows no MPI.
#ifndef DEEPPCR_TRANSPORT_H
#define DEEPPCR_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

// right := what `left`, of lower ranks, and then `right` make together. Associative; need not commute.
typedef void dpcr_combine(void *user, const void *left, void *right);

// Tags below this are the library's own messages in calls that are given a transport.
#define DPCR_TAGS 16

// One rank's end. A message is named by sender, receiver and tag; those of one name arrive in the order of sending. One
// thread at a time.
typedef struct dpcr_transport {
    size_t size;  // sizeof(dpcr_transport) of the caller
    void *user;
    int64_t rank, ranks;
    int64_t largest_tag;
    // Takes a copy and returns at once. `bytes` may be 0.
    dpcr_status (*send)(void *user, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error);
    // Waits, at most `deadline` seconds (then DPCR_ERROR_SYSTEM; 0 or less: looks once), for a message of exactly so
    // many bytes.
    dpcr_status (*receive)(void *user, int64_t from, int64_t tag, void *data, size_t bytes, double deadline,
                           dpcr_error *error);
    // NULL, or the transport's own exclusive scan (MPI_Exscan's meaning): all ranks call it, and data [bytes] of rank r
    // becomes what the data of ranks 0 .. r-1 make together, in that order (`reversed`: of ranks ranks-1 .. r+1). Of
    // the rank that has none before it, data is left undefined. Which of them are put together first is the
    // transport's.
    dpcr_status (*exscan)(void *user, int reversed, void *data, size_t bytes, dpcr_combine *combine, void *combine_user,
                          double deadline, dpcr_error *error);
} dpcr_transport;

// Runs body(user, transport) on `ranks` threads (1 to 1024) at once, rank 0 on the caller's; the transports live as
// long as the bodies. What the rank that failed first says is the result, and its failing ends the others' waiting.
// Messages are memory of `context`, whose allocator must bear being asked by several threads at once.
typedef dpcr_status dpcr_rank_body(void *user, const dpcr_transport *transport, dpcr_error *error);
DPCR_API dpcr_status dpcr_ranks_run(dpcr_context *context, int64_t ranks, dpcr_rank_body *body, void *user,
                                    dpcr_error *error);

// All ranks call it with what they have come to (`status`, and the text in `error`). DPCR_OK where all are; else every
// rank has the error of the lowest rank that failed, which the others' text names. `deadline` 0: 60 seconds.
DPCR_API dpcr_status dpcr_ranks_agree(const dpcr_transport *transport, double deadline, dpcr_status status,
                                      dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
