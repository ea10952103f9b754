// SPDX-License-Identifier: MIT
// A transport over MPI. A send copies, starts a non-blocking request and looks after those that have ended; a receive
// polls its request against the deadline, so a peer that is gone or stuck ends in a line and not in a hang. One thread.
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "world_module.h"

static const cli_world_program *program;

typedef struct sending {
    struct sending *next;
    MPI_Request request;
    _Alignas(64) unsigned char data[];
} sending;

static sending *under_way;

static double signal_seconds = 5;  // what is left to a run that was asked to stop

static const double LEAVE_SECONDS = 60;  // for messages that were not yet taken

// ---- MPI's own beginning and end, which know no deadline ----

static double patience = 60;  // seconds

static char late[160];
static volatile sig_atomic_t seconds_left;

// Once a second; seconds in which this process itself stood still bring one alarm together.
static void count_down(int number) {
    (void)number;
    if (--seconds_left > 0) {
        alarm(1);
        return;
    }
    if (write(STDERR_FILENO, late, strlen(late)) < 0) _exit(CLI_RESOURCES);
    _exit(CLI_RESOURCES);  // the launcher then ends the others
}

static void guard(const char *doing, double seconds) {
    const char *verb = program->get_verb();
    snprintf(late, sizeof late, "deeppcr%s%s: MPI did not %s within %g s: a process stands still\n", verb ? " " : "",
             verb ? verb : "", doing, seconds);
    // Lower ranks first: their line is enough, and the launcher ends the others.
    const int64_t rank = program->rank();
    seconds_left = (sig_atomic_t)(seconds < 1e9 ? seconds : 1e9) + 1 + (rank > 0 ? 2 + (int)(rank < 5 ? rank : 5) : 0);
    signal(SIGALRM, count_down);
    alarm(1);
}

static void unguard(void) {
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}

static void be_patient(void) {
    if (program->patience > 0) patience = program->patience;
    if (program->together) signal_seconds = 0.2;  // nothing to be finished, and launchers that end us wait a second
}

// Training's --deadline is of messages between ranks at work; processes that start may be slower.
static double to_start(void) { return program->together || patience > 60 ? patience : 60; }

// Rank 0 of a training run comes last, after its tests, of which SWAP has three; the others are there by then.
static double to_end(void) { return program->together || program->rank() == 0 ? patience : 4 * patience; }

// Always DPCR_ERROR_SYSTEM: what is told by the rank that it happens to, as no other one comes to know (cli/ranks.c).
// The text takes a, b and c in this order, or the first of them.
static dpcr_status fail(dpcr_error *error, const char *format, int64_t a, double b, int64_t c) {
    if (!error) return DPCR_ERROR_SYSTEM;
    *error = (dpcr_error){.status = DPCR_ERROR_SYSTEM};
    snprintf(error->text, sizeof error->text, format, (long long)a, b, (long long)c);
    return DPCR_ERROR_SYSTEM;
}

// That of this process alone: it was asked to stop, as the code says (cli/errors.c).
static dpcr_status fail_asked(dpcr_error *error, const char *format, int64_t a, double b, int64_t c) {
    const dpcr_status status = fail(error, format, a, b, c);
    if (error) error->code = EINTR;
    return status;
}

static void look_after(void) {
    for (sending **at = &under_way; *at;) {
        sending *s = *at;
        int done = 0;
        if (MPI_Test(&s->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s);
    }
}

static dpcr_status send(void *user, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    (void)user;
    look_after();
    if (bytes > INT_MAX)
        return fail(error, "a message to rank %lld of %g bytes; MPI takes %lld", to, (double)bytes, INT_MAX);
    sending *s = malloc(sizeof *s + bytes);
    if (!s) return fail(error, "no memory for a message to rank %lld of %g bytes (%lld)", to, (double)bytes, tag);
    s->next = NULL;
    if (bytes) memcpy(s->data, data, bytes);
    if (MPI_Isend(s->data, (int)bytes, MPI_BYTE, (int)to, (int)tag, MPI_COMM_WORLD, &s->request) != MPI_SUCCESS) {
        free(s);
        return fail(error, "MPI refuses a message to rank %lld of %g bytes, tag %lld", to, (double)bytes, tag);
    }
    sending **end = &under_way;
    while (*end) end = &(*end)->next;
    *end = s;
    return DPCR_OK;
}

// Seconds that are still to be waited: fewer once somebody asked the program to stop. Called without pause while
// waiting: if a long time passed between two calls, it is this process that stood still, which is no peer's fault.
static bool over(double began, double deadline, double *asked) {
    static double seen, stood;
    const double now = program->now();
    if (began > seen) seen = began, stood = 0;
    if (now - seen > 1) stood += now - seen;
    seen = now;
    if (program->signal() && *asked == 0) *asked = now;
    return !(now - began - stood <= deadline) || (*asked > 0 && now - *asked > signal_seconds);
}

static dpcr_status receive(void *user, int64_t from, int64_t tag, void *data, size_t bytes, double deadline,
                           dpcr_error *error) {
    enum { EAGER = 2000 };
    (void)user;
    MPI_Request request;
    MPI_Status status;
    int done = 0, got = 0;
    double asked = 0;
    const double began = program->now();
    if (bytes > INT_MAX ||
        MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)from, (int)tag, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
        return fail(error, "MPI refuses to receive from rank %lld %g bytes, tag %lld", from, (double)bytes, tag);
    for (int64_t turn = 0; !done; turn++) {
        if (MPI_Test(&request, &done, &status) != MPI_SUCCESS)
            return fail(error, "MPI could not receive what rank %lld sent (%g bytes wanted, tag %lld)", from,
                        (double)bytes, tag);
        if (done) break;
        look_after();
        if (turn > EAGER) sched_yield();
        if (!over(began, deadline, &asked)) continue;
        MPI_Cancel(&request);
        MPI_Request_free(&request);
        if (asked > 0)
            return fail_asked(error, "asked to stop while waiting for rank %lld (%g s, tag %lld)", from,
                              program->now() - began, tag);
        return fail(error, "waited for rank %lld for %g s, which sent nothing (tag %lld)", from, program->now() - began,
                    tag);
    }
    MPI_Get_count(&status, MPI_BYTE, &got);
    if ((size_t)got == bytes) return DPCR_OK;
    return fail(error, "rank %lld sent other than %g bytes: %lld", from, (double)bytes, got);
}

// ---- MPI_Exscan with an operation of ours ----

static MPI_Comm backwards = MPI_COMM_NULL;  // all ranks, the last one first

// MPI's operations know no user; one runs at a time.
static dpcr_combine *scan_combine;
static void *scan_user;

static void combine_all(void *left, void *right, int *count, MPI_Datatype *type) {
    int bytes = 0;
    MPI_Type_size(*type, &bytes);
    for (int i = 0; i < *count; i++)
        scan_combine(scan_user, (const char *)left + (size_t)i * (size_t)bytes,
                     (char *)right + (size_t)i * (size_t)bytes);
}

enum { REFUSED = -1, ENDED, LATE, ASKED_TO_STOP };

static int poll(MPI_Request *request, double began, double deadline) {
    double asked = 0;
    for (int done = 0; !done;) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return REFUSED;
        if (done) break;
        look_after();
        sched_yield();
        if (over(began, deadline, &asked)) return asked > 0 ? ASKED_TO_STOP : LATE;
    }
    return ENDED;
}

// The summaries' order is kept, as the operation does not commute; which are put together first is MPI's own.
static dpcr_status exscan(void *user, int reversed, void *data, size_t bytes, dpcr_combine *combine, void *combine_user,
                          double deadline, dpcr_error *error) {
    (void)user;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Op operation = MPI_OP_NULL;
    MPI_Request request;
    dpcr_status status = DPCR_OK;
    if (bytes > INT_MAX)
        return fail(error, "a summary of %lld (%g) bytes; MPI takes %lld", (int64_t)bytes, (double)bytes, INT_MAX);
    void *own = malloc(bytes ? bytes : 1);
    if (!own) return fail(error, "no memory for a summary of %lld (%g) bytes, %lld", (int64_t)bytes, (double)bytes, 0);
    memcpy(own, data, bytes);
    scan_combine = combine;
    scan_user = combine_user;
    const double began = program->now();
    int ended = REFUSED;
    if (MPI_Type_contiguous((int)bytes, MPI_BYTE, &type) == MPI_SUCCESS && MPI_Type_commit(&type) == MPI_SUCCESS &&
        MPI_Op_create(combine_all, 0, &operation) == MPI_SUCCESS &&
        MPI_Iexscan(own, data, 1, type, operation, reversed ? backwards : MPI_COMM_WORLD, &request) == MPI_SUCCESS)
        ended = poll(&request, began, deadline);
    if (ended == LATE)  // the request still has the memory, here and below
        return fail(error, "a scan of %lld bytes waited for %g s for ranks that sent nothing", (int64_t)bytes,
                    program->now() - began, 0);
    if (ended == ASKED_TO_STOP)
        return fail_asked(error, "asked to stop while a scan of %lld bytes waited for other ranks (%g s)",
                          (int64_t)bytes, program->now() - began, 0);
    if (ended == REFUSED)
        status = fail(error, "MPI refuses a scan of %lld bytes (%g s, %lld)", (int64_t)bytes, deadline, 0);
    if (operation != MPI_OP_NULL) MPI_Op_free(&operation);
    if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    free(own);
    return status;
}

static int open_world(const cli_world_program *asked, dpcr_transport *transport) {
    program = asked;
    be_patient();
    int provided = 0, size = 0, rank = 0, known = 0, *largest = NULL;
    guard("start", to_start());
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return program->fail(CLI_RESOURCES, "MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&largest, &known);
    program->signals_install();  // MPI has its own
    *transport = (dpcr_transport){.size = sizeof *transport,
                                  .rank = rank,
                                  .ranks = size,
                                  .largest_tag = known ? *largest : 32767,
                                  .send = send,
                                  .receive = receive,
                                  .exscan = exscan};
    if (MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards) != MPI_SUCCESS)
        return program->fail(CLI_RESOURCES, "MPI makes no communicator");
    unguard();
    return CLI_DONE;
}

static void close_world(int status) {
    if (status) MPI_Abort(MPI_COMM_WORLD, status);
    const double began = program->now();
    while (under_way && program->now() - began < LEAVE_SECONDS) look_after();
    if (under_way) {
        program->fail(CLI_RESOURCES, "a message was never taken");
        MPI_Abort(MPI_COMM_WORLD, CLI_RESOURCES);
    }
    guard("end", to_end());
    MPI_Finalize();
    unguard();
}

__attribute__((visibility("default"))) const cli_world_module *deeppcr_mpi_module(void);

const cli_world_module *deeppcr_mpi_module(void) {
    static const cli_world_module own = {.size = sizeof own,
                                         .program_size = sizeof *program,
                                         .version = DPCR_VERSION_STRING,
                                         .open = open_world,
                                         .close = close_world};
    return &own;
}
