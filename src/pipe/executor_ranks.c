// SPDX-License-Identifier: MIT
#include "pipe/executor_ranks.h"

typedef struct carried {
    dpcri_comm comm;  // first: a comm is its carrier
    const dpcr_transport *by;
} carried;

static dpcr_status carry(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((carried *)comm)->by;
    return by->send(by->user, to, tag, data, bytes, error);
}

static dpcr_status await(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((carried *)comm)->by;
    return by->receive(by->user, from, tag, data, bytes, comm->deadline, error);
}

static void nobody_to_tell(dpcri_comm *comm, const dpcr_error *error) { (void)comm, (void)error; }

// Rank by rank longer, from half the deadline up to it: one of those that wait for a rank that stands still is the
// first to say so, and ends the job before the others do.
static double patience(const dpcr_transport *by, double deadline) {
    return deadline * (0.5 + 0.5 * (double)(by->rank + 1) / (double)by->ranks);
}

dpcr_status dpcri_ranks_run(const char *call, dpcr_context *messages, int64_t ranks, double deadline,
                            const dpcr_transport *by, dpcri_rank_body *body, void *argument, dpcr_error *error) {
    static const dpcri_comm_table table = {.send = carry, .receive = await, .failed = nobody_to_tell};
    if (!by) return dpcri_threads_run(messages, ranks, deadline, body, argument, error);
    if (by->size != sizeof *by || by->ranks != ranks || by->rank < 0 || by->rank >= by->ranks)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: wanted %lld ranks, got a transport of rank %lld among %lld",
                          call, (long long)ranks, (long long)by->rank, (long long)by->ranks);
    carried c = {.comm = {.table = &table,
                          .rank = by->rank,
                          .ranks = by->ranks,
                          .largest_tag = by->largest_tag,
                          .deadline = patience(by, deadline)},
                 .by = by};
    return body(argument, &c.comm, error);
}
