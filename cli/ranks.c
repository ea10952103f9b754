// SPDX-License-Identifier: MIT
#include "ranks.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "world.h"

enum { TAG_NAME = DPCR_TAGS, TAG_LENGTH, TAG_OPTIONS, TAG_FACTS };

typedef struct run {
    const cli_common *common;
    double deadline;
    int threads;
    cli_rank_body *body;
    void *user;
    _Atomic int doing;
} run;

int64_t cli_rank_first(int64_t length, int64_t ranks, int64_t rank) {
    const int64_t each = length / ranks, more = length % ranks;
    return rank * each + (rank < more ? rank : more);
}

dpcr_status cli_ranks_agree(cli_ranks *rank, cli_doing doing, dpcr_status status, dpcr_error *error) {
    rank->doing = doing;
    return dpcr_ranks_agree(rank->transport, rank->deadline, status, error);
}

static dpcr_status run_rank(void *user, const dpcr_transport *transport, dpcr_error *error) {
    run *r = user;
    int failed = 0;
    cli_common common = *r->common;
    if (r->threads) common.threads = r->threads;
    cli_ranks rank = {.transport = transport, .deadline = r->deadline, .doing = CLI_COMPUTING, .user = r->user};
    rank.context = cli_context_create(&common, &failed);
    dpcr_status status = DPCR_OK;
    if (!rank.context) {
        *error = (dpcr_error){.status = DPCR_ERROR_MEMORY, .text = "no context"};
        status = DPCR_ERROR_MEMORY;
    }
    status = cli_ranks_agree(&rank, CLI_COMPUTING, status, error);
    if (status == DPCR_OK) status = r->body(&rank, error);
    if (status != DPCR_OK) atomic_store(&r->doing, (int)rank.doing);
    dpcr_context_destroy(rank.context);
    return status;
}

static int threads_of(const cli_common *common, int64_t ranks) {
    dpcr_context *context = NULL;
    const dpcr_context_options options = {.size = sizeof options, .threads = common->threads};
    if (dpcr_context_create(&options, &context, NULL) != DPCR_OK) return 1;
    const int64_t share = dpcr_context_threads(context) / ranks;
    dpcr_context_destroy(context);
    return share > 1 ? (int)share : 1;
}

static int run_threads(run *r, int64_t ranks) {
    int status = CLI_DONE;
    dpcr_error error = {0};
    dpcr_context *messages = cli_context_create(r->common, &status);
    if (!messages) return status;
    r->threads = threads_of(r->common, ranks);
    if (dpcr_ranks_run(messages, ranks, run_rank, r, &error) != DPCR_OK)
        status = cli_fail_error(&error, (cli_doing)atomic_load(&r->doing));
    dpcr_context_destroy(messages);
    return status;
}

// Ranks that notice the same at the same time give way to lower ones, whose line is enough and ends them: false where
// that came to pass. Of those that were asked to stop, because another one is gone, the first tells it.
static bool give_way(int64_t rank) {
    if (rank == 0 || cli_signal()) return rank == 0;
    const double seconds = rank < 10 ? 1 + (double)rank / 5 : 3;
    const struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
    return cli_signal() == 0;
}

static int run_process(run *r) {
    dpcr_transport transport;
    dpcr_error error = {0};
    cli_world_patience(r->deadline, true);
    int status = cli_world_open(&transport);
    if (status) return status;
    const dpcr_status ended = run_rank(r, &transport, &error);
    // A wait in vain is known to whoever waited; all else has been agreed on.
    const bool alone = ended == DPCR_ERROR_SYSTEM || ended == DPCR_ERROR_CANCELLED;
    const bool told = alone ? give_way(transport.rank) : transport.rank == 0;
    cli_silence(!told);
    if (ended != DPCR_OK) status = cli_fail_error(&error, (cli_doing)atomic_load(&r->doing));
    fflush(stdout);
    fflush(stderr);
    cli_world_close(alone ? status : 0);
    return status;
}

int cli_ranks_run(const cli_common *common, int64_t ranks, double deadline, cli_rank_body *body, void *user) {
    run r = {.common = common, .deadline = deadline > 0 ? deadline : 60, .body = body, .user = user};
    return cli_world_size() > 1 ? run_process(&r) : run_threads(&r, ranks);
}

void cli_ranks_tell_alone(void) {
    const int64_t rank = cli_world_rank();
    if (rank == 0 || !cli_silent() || !cli_failed() || !give_way(rank)) return;
    cli_silence(false);
    cli_fail(cli_failed(), "rank %lld: %s", (long long)rank, cli_failed_text());
}

// ---- one file of all ranks' rows ----

bool cli_ranks_flows(const char *path) {
    struct stat info;
    if (!path || cli_is_stdout(path)) return path != NULL;
    return stat(path, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

bool cli_ranks_share(const char *path) { return !path || !(cli_ranks_flows(path) || strstr(path, ".npz")); }

static dpcr_status fail(dpcr_error *error, dpcr_status status, const char *text) {
    *error = (dpcr_error){.status = status};
    snprintf(error->text, sizeof error->text, "%s", text);
    return status;
}

// What rank 0 has goes to all.
static dpcr_status share(const cli_ranks *rank, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *t = rank->transport;
    dpcr_status status = DPCR_OK;
    if (t->rank > 0) return t->receive(t->user, 0, tag, data, bytes, rank->deadline, error);
    for (int64_t r = 1; r < t->ranks && status == DPCR_OK; r++) status = t->send(t->user, r, tag, data, bytes, error);
    return status;
}

// Processes may have been given files of their own.
dpcr_status cli_ranks_agree_on_length(cli_ranks *rank, const char *what, int64_t length, dpcr_error *error) {
    int64_t first = length;
    char text[160];
    dpcr_status status = share(rank, TAG_LENGTH, &first, sizeof first, error);
    if (status != DPCR_OK) return status;
    snprintf(text, sizeof text, "%s has %lld step%s, rank 0's %lld: wanted the same file", what, (long long)length,
             cli_s(length), (long long)first);
    if (first != length) status = fail(error, DPCR_ERROR_ARGUMENT, text);
    return cli_ranks_agree(rank, CLI_COMPUTING, status, error);
}

dpcr_status cli_ranks_agree_on_options(cli_ranks *rank, const char *options, dpcr_error *error) {
    char first[CLI_RANKS_OPTIONS] = "", text[2 * CLI_RANKS_OPTIONS + 64];
    snprintf(first, sizeof first, "%s", options);
    dpcr_status status = share(rank, TAG_OPTIONS, first, sizeof first, error);
    if (status != DPCR_OK) return status;
    snprintf(text, sizeof text, "it has %s, rank 0 %s: wanted the same options", options, first);
    if (strcmp(first, options) != 0) status = fail(error, DPCR_ERROR_ARGUMENT, text);
    return cli_ranks_agree(rank, CLI_COMPUTING, status, error);
}

static double real_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void tell_fact(const cli_fact *own, uint64_t first, char *text, size_t bytes) {
    switch (own->kind) {
        case CLI_FACT_WHOLE:
            snprintf(text, bytes, "its %s is %llu, rank 0's %llu: wanted the same", own->what,
                     (unsigned long long)own->bits, (unsigned long long)first);
            return;
        case CLI_FACT_REAL:
            snprintf(text, bytes, "its %s is %.10g, rank 0's %.10g: wanted the same", own->what, real_of(own->bits),
                     real_of(first));
            return;
        case CLI_FACT_OTHER:
            snprintf(text, bytes, "its %s is another than rank 0's: wanted the same", own->what);
            return;
    }
}

dpcr_status cli_ranks_agree_on_facts(cli_ranks *rank, const cli_fact *facts, int count, dpcr_error *error) {
    uint64_t first[CLI_RANKS_FACTS] = {0};
    char text[256];
    int same = 0;
    for (int i = 0; i < count; i++) first[i] = facts[i].bits;
    dpcr_status status = share(rank, TAG_FACTS, first, sizeof first, error);
    if (status != DPCR_OK) return status;
    while (same < count && facts[same].bits == first[same]) same++;
    if (same < count) {
        tell_fact(&facts[same], first[same], text, sizeof text);
        status = fail(error, DPCR_ERROR_ARGUMENT, text);
    }
    return cli_ranks_agree(rank, CLI_COMPUTING, status, error);
}

dpcr_status cli_ranks_write(cli_ranks *rank, const char *path, const dpcr_array *whole, int64_t first,
                            const dpcr_array *part, dpcr_error *error) {
    char name[4096] = "";
    dpcr_npy_rows *rows = NULL;
    dpcr_status status = DPCR_OK;
    const bool creates = rank->transport->rank == 0;
    if (creates && dpcr_npy_rows_create(rank->context, path, whole, &rows, error) != DPCR_OK) status = error->status;
    if (creates && status == DPCR_OK && strlen(dpcr_npy_rows_name(rows)) >= sizeof name)
        status = fail(error, DPCR_ERROR_IO, "the output's name is too long");
    status = cli_ranks_agree(rank, CLI_WRITING, status, error);
    if (status == DPCR_OK) {
        if (creates) snprintf(name, sizeof name, "%s", dpcr_npy_rows_name(rows));
        status = share(rank, TAG_NAME, name, sizeof name, error);
    }
    if (status == DPCR_OK)
        status = cli_ranks_agree(rank, CLI_WRITING, dpcr_npy_rows_write(name, whole, first, part, error), error);
    if (status == DPCR_OK)
        status = cli_ranks_agree(rank, CLI_WRITING, creates ? dpcr_npy_rows_commit(rows, error) : DPCR_OK, error);
    dpcr_npy_rows_destroy(rank->context, rows);
    return status;
}

dpcr_status cli_ranks_held(int status, dpcr_error *error) {
    static const dpcr_status kinds[] = {[CLI_DONE] = DPCR_OK,
                                        [CLI_DISAGREE] = DPCR_ERROR_CALLBACK,
                                        [CLI_USAGE] = DPCR_ERROR_ARGUMENT,
                                        [CLI_UNCONVERGED] = DPCR_ERROR_UNSUPPORTED,
                                        [CLI_RESOURCES] = DPCR_ERROR_MEMORY,
                                        [CLI_INPUT] = DPCR_ERROR_FORMAT};
    if (!status) return DPCR_OK;
    return fail(error, status > 0 && status <= CLI_INPUT ? kinds[status] : DPCR_ERROR_SYSTEM, cli_failed_text());
}
