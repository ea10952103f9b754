// SPDX-License-Identifier: MIT
// Collectives over messages, and transports as comms and back.
#include "rt/comm/collective.h"

#include <string.h>

// ---- a caller's transport as a comm ----

static dpcr_status carry(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((dpcri_carried *)comm)->by;
    return by->send(by->user, to, tag, data, bytes, error);
}

static dpcr_status await(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((dpcri_carried *)comm)->by;
    return by->receive(by->user, from, tag, data, bytes, comm->deadline, error);
}

static void nobody_to_tell(dpcri_comm *comm, const dpcr_error *error) { (void)comm, (void)error; }

dpcr_status dpcri_carry(dpcri_carried *carried, const dpcr_transport *by, double deadline, const char *function,
                        dpcr_error *error) {
    static const dpcri_comm_table table = {.send = carry, .receive = await, .failed = nobody_to_tell};
    if (!by) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: transport is NULL", function);
    if (by->size < sizeof *by || !by->send || !by->receive)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: the transport's size is %zu, wanted sizeof(dpcr_transport), with send and receive",
                          function, by->size);
    if (by->ranks < 1 || by->rank < 0 || by->rank >= by->ranks || by->largest_tag < DPCR_TAGS)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: a transport of rank %lld among %lld with tags up to %lld; wanted a rank below the "
                          "number of ranks, and tags up to %d at least",
                          function, (long long)by->rank, (long long)by->ranks, (long long)by->largest_tag, DPCR_TAGS);
    if (!(deadline >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: deadline is %g, wanted 0 or more seconds", function,
                          deadline);
    *carried = (dpcri_carried){.comm = {.table = &table,
                                        .rank = by->rank,
                                        .ranks = by->ranks,
                                        .largest_tag = by->largest_tag,
                                        .deadline = deadline > 0 ? deadline : DPCRI_DEADLINE},
                               .by = by};
    return DPCR_OK;
}

// ---- a comm as a transport ----

static dpcr_status check_name(const dpcri_comm *comm, int64_t other, int64_t tag, dpcr_error *error) {
    if (other >= 0 && other < comm->ranks && tag >= 0) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "a message to or from rank %lld, tag %lld; wanted a rank of 0 to %lld, and a tag of 0 or more",
                      (long long)other, (long long)tag, (long long)comm->ranks - 1);
}

static dpcr_status send_by(void *user, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    const dpcr_status fit = check_name(user, to, tag, error);
    return fit == DPCR_OK ? dpcri_send(user, to, tag, data, bytes, error) : fit;
}

static dpcr_status receive_by(void *user, int64_t from, int64_t tag, void *data, size_t bytes, double deadline,
                              dpcr_error *error) {
    dpcri_comm *comm = user;
    const dpcr_status fit = check_name(comm, from, tag, error);
    comm->deadline = deadline;
    return fit == DPCR_OK ? dpcri_receive(comm, from, tag, data, bytes, error) : fit;
}

typedef struct ranks_job {
    dpcr_rank_body *body;
    void *user;
} ranks_job;

static dpcr_status run_body(void *argument, dpcri_comm *comm, dpcr_error *error) {
    const ranks_job *job = argument;
    const dpcr_transport transport = {.size = sizeof transport,
                                      .user = comm,
                                      .rank = comm->rank,
                                      .ranks = comm->ranks,
                                      .largest_tag = comm->largest_tag,
                                      .send = send_by,
                                      .receive = receive_by};
    return job->body(job->user, &transport, error);
}

dpcr_status dpcr_ranks_run(dpcr_context *context, int64_t ranks, dpcr_rank_body *body, void *user, dpcr_error *error) {
    enum { MOST = 1024 };
    if (!context || !body)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "ranks_run: %s is NULL", context ? "body" : "context");
    if (ranks < 1 || ranks > MOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "ranks_run: ranks is %lld, wanted 1..%d", (long long)ranks, MOST);
    ranks_job job = {.body = body, .user = user};
    return dpcri_threads_run(context, ranks, DPCRI_DEADLINE, run_body, &job, error);
}

// ---- collectives ----

dpcr_status dpcri_gather_all(dpcri_comm *comm, const void *mine, size_t bytes, void *all, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t ranks = comm->ranks;
    memcpy((char *)all + (size_t)comm->rank * bytes, mine, bytes);
    if (comm->rank > 0) {
        DPCR_TRY(dpcri_send(comm, 0, DPCRI_TAG_GATHER, mine, bytes, error));
        DPCR_TRY(dpcri_receive(comm, 0, DPCRI_TAG_ALL, all, (size_t)ranks * bytes, error));
        return DPCR_OK;
    }
    for (int64_t r = 1; r < ranks; r++)
        DPCR_TRY(dpcri_receive(comm, r, DPCRI_TAG_GATHER, (char *)all + (size_t)r * bytes, bytes, error));
    for (int64_t r = 1; r < ranks; r++) DPCR_TRY(dpcri_send(comm, r, DPCRI_TAG_ALL, all, (size_t)ranks * bytes, error));
done:
    return status;
}

// Rank 0 hears all, and tells the first that failed.
dpcr_status dpcri_agree(dpcri_comm *comm, dpcr_status status, dpcr_error *error) {
    typedef struct verdict {
        int64_t rank;
        dpcr_error error;
    } verdict;
    verdict first = {.rank = comm->rank, .error = {.status = status}}, other;
    if (status != DPCR_OK && error) first.error = *error, first.error.status = status;
    const dpcr_status own = status;
    if (comm->rank > 0) {
        DPCR_TRY(dpcri_send(comm, 0, DPCRI_TAG_GATHER, &first, sizeof first, error));
        DPCR_TRY(dpcri_receive(comm, 0, DPCRI_TAG_ALL, &first, sizeof first, error));
    } else {
        for (int64_t r = 1; r < comm->ranks; r++) {
            DPCR_TRY(dpcri_receive(comm, r, DPCRI_TAG_GATHER, &other, sizeof other, error));
            if (first.error.status == DPCR_OK && other.error.status != DPCR_OK) first = other;
        }
        for (int64_t r = 1; r < comm->ranks; r++)
            DPCR_TRY(dpcri_send(comm, r, DPCRI_TAG_ALL, &first, sizeof first, error));
    }
    if (first.error.status == DPCR_OK) return DPCR_OK;
    if (first.rank == comm->rank && own != DPCR_OK) return own;
    return dpcri_fail_code(error, first.error.status, first.error.code, "rank %lld: %.480s", (long long)first.rank,
                           first.error.text);
done:
    return status;
}

dpcr_status dpcr_ranks_agree(const dpcr_transport *transport, double deadline, dpcr_status status, dpcr_error *error) {
    dpcri_carried carried;
    const dpcr_status fit = dpcri_carry(&carried, transport, deadline, "ranks_agree", error);
    return fit == DPCR_OK ? dpcri_agree(&carried.comm, status, error) : fit;
}

dpcr_status dpcri_exscan(dpcri_comm *comm, int reversed, void *data, void *prefix, void *scratch, size_t bytes,
                         dpcr_combine *combine, void *user, bool *any, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t ranks = comm->ranks, q = reversed ? ranks - 1 - comm->rank : comm->rank;
    *any = false;
    for (int64_t d = 1; d < ranks; d *= 2) {
        const int64_t after = reversed ? comm->rank - d : comm->rank + d,
                      before = reversed ? comm->rank + d : comm->rank - d;
        if (q + d < ranks) DPCR_TRY(dpcri_send(comm, after, DPCRI_TAG_SCAN, data, bytes, error));
        if (q < d) continue;
        DPCR_TRY(dpcri_receive(comm, before, DPCRI_TAG_SCAN, scratch, bytes, error));
        if (q + 2 * d < ranks) combine(user, scratch, data);  // nobody asks for it later
        if (*any)
            combine(user, scratch, prefix);
        else
            memcpy(prefix, scratch, bytes);
        *any = true;
    }
done:
    return status;
}
