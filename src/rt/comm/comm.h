// SPDX-License-Identifier: MIT
// Messages between the ranks of one run: threads of this process, or processes of an MPI job. A message is named by
// sender, receiver and tag; those of one name arrive in the order in which they were sent. A send takes a copy and
// returns at once; a receive waits, but never longer than the run's deadline. When a rank fails, every other rank's
// waiting ends.
#ifndef DPCRI_RT_COMM_H
#define DPCRI_RT_COMM_H

#include "base/base.h"

typedef struct dpcri_comm dpcri_comm;  // a rank's end

typedef struct dpcri_comm_table {
    dpcr_status (*send)(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error);
    dpcr_status (*receive)(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error);
    void (*failed)(dpcri_comm *comm, const dpcr_error *error);
    // Has a rank failed? Tells it then. NULL: failures are not heard; else one ends the others' waiting, whatever their
    // deadline.
    bool (*has_failed)(dpcri_comm *comm, dpcr_error *error);
} dpcri_comm_table;

struct dpcri_comm {
    const dpcri_comm_table *table;
    int64_t rank, ranks;
    int64_t largest_tag;
    double deadline;  // seconds that a receive waits at most
};

// Tags are 0 .. largest_tag. Sending to oneself is no use of it.
static inline dpcr_status dpcri_send(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes,
                                     dpcr_error *error) {
    return comm->table->send(comm, to, tag, data, bytes, error);
}
// The message must have exactly so many bytes. DPCR_ERROR_SYSTEM when the deadline has passed, DPCR_ERROR_CANCELLED
// when another rank has failed.
static inline dpcr_status dpcri_receive(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes,
                                        dpcr_error *error) {
    return comm->table->receive(comm, from, tag, data, bytes, error);
}
// From rank 0, which may be in its caller's hands (a test between two steps takes what it takes) and whose other waits
// all end: where its failure is heard there is no deadline.
static inline dpcr_status dpcri_receive_decision(dpcri_comm *comm, int64_t tag, void *data, size_t bytes,
                                                 dpcr_error *error) {
    const double deadline = comm->deadline;
    if (comm->table->has_failed) comm->deadline = 1e9;
    const dpcr_status status = dpcri_receive(comm, 0, tag, data, bytes, error);
    comm->deadline = deadline;
    return status;
}
// This rank goes no further: the others' waits end.
static inline void dpcri_comm_fail(dpcri_comm *comm, const dpcr_error *error) { comm->table->failed(comm, error); }

// For those who wait for something else than a message: DPCR_ERROR_CANCELLED when another rank is known to have failed.
static inline dpcr_status dpcri_comm_heed(dpcri_comm *comm, dpcr_error *error) {
    return comm->table->has_failed && comm->table->has_failed(comm, error) ? DPCR_ERROR_CANCELLED : DPCR_OK;
}

// ---- patience ----

// A wait of at most `deadline` seconds, looked after every `slice` seconds. A look that comes more than a second late
// says that this process stood still (Ctrl-Z, a frozen container), and with it those that it waits for: the time since
// the last look does not count.
typedef struct dpcri_patience {
    double until, seen, slice;  // `seen`: the last look
} dpcri_patience;
dpcri_patience dpcri_patience_begin(double deadline);
double dpcri_patience_next(const dpcri_patience *patience);  // when to look again, by dpcri_seconds
bool dpcri_patience_over(dpcri_patience *patience);          // the look

// ---- ranks as threads ----

// Runs body(argument, comm) on `ranks` threads at once, rank 0 on the caller's. What the rank that failed first says is
// the result. Messages are memory of `context`, whose allocator must bear being asked by several threads at once.
typedef dpcr_status dpcri_rank_body(void *argument, dpcri_comm *comm, dpcr_error *error);
dpcr_status dpcri_threads_run(dpcr_context *context, int64_t ranks, double deadline, dpcri_rank_body *body,
                              void *argument, dpcr_error *error);

#endif
