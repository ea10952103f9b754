// SPDX-License-Identifier: MIT
#include "pipe/executor_ranks.h"

#include "rt/comm/collective.h"
#include "rt/rt.h"
#include "train/ledger.h"

// Rank by rank longer, from half the deadline up to it: one of those that wait for a rank that stands still is the
// first to say so, and ends the job before the others do.
static double patience(const dpcr_transport *by, double deadline) {
    return deadline * (0.5 + 0.5 * (double)(by->rank + 1) / (double)by->ranks);
}

dpcr_status dpcri_ranks_run(const char *call, dpcr_context *messages, int64_t ranks, double deadline,
                            const dpcr_transport *by, dpcri_rank_body *body, void *argument, dpcr_error *error) {
    if (!by) return dpcri_threads_run(messages, ranks, deadline, body, argument, error);
    dpcri_carried carried;
    const dpcr_status fit = dpcri_carry(&carried, by, deadline, call, error);
    if (fit != DPCR_OK) return fit;
    if (by->ranks != ranks)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: wanted %lld ranks, got a transport of rank %lld among %lld",
                          call, (long long)ranks, (long long)by->rank, (long long)by->ranks);
    carried.comm.deadline = patience(by, carried.comm.deadline);
    return body(argument, &carried.comm, error);
}

int dpcri_ranks_asked(const dpcr_transport *transport, const dpcr_context *context) {
    const int answer = transport && transport->rank > 0 ? dpcri_cancel_answer(context) : 0;
    return answer < 0 ? 1 : answer;
}

int64_t dpcri_ranks_heed(int64_t decided, int asked, int *stopped_by) {
    if (!asked || (decided & DPCRI_STOP)) return decided;  // also without a checkpoint, of a step to be done again
    *stopped_by = asked;
    return decided | DPCRI_STOP | DPCRI_SAVE;
}

dpcr_status dpcri_ranks_stopped(dpcr_status status, int stopped_by, dpcr_error *error) {
    if (status == DPCR_ERROR_CANCELLED && error) error->code = stopped_by;
    return status;
}
