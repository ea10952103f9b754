// SPDX-License-Identifier: MIT
// Strong and weak scaling of chains over ranks that are threads of one process, beside the cost model: CSV on standard
// output. The smallest time of many repeats, so that a busy machine still shows what an idle one does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"
#include "timing.h"

enum { MOST_RANKS = 4, LEAST_REPEATS = 5, MOST_REPEATS = 400 };
static const double SECONDS = 0.6;  // of repeats

static void stop(const char *what) {
    fprintf(stderr, "bench_ranks: %s\n", what);
    exit(1);
}

static float *numbers(int64_t count, float scale) {
    float *made = aligned_alloc(64, ((size_t)count * sizeof *made + 127) / 64 * 64);
    uint64_t seed = 1;
    if (!made) stop("no memory");
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        made[i] = scale * ((float)(seed >> 40) * 0x1p-23f - 1);
    }
    return made;
}

typedef struct job {
    dpcr_chain_shape shape;  // of the whole chain
    int64_t ranks, values;
    float *a, *b, *z;
    dpcr_recurrent *networks[MOST_RANKS];  // of the cells; then x is a, y is z
    double seconds;                        // the smallest, of all ranks
    dpcr_distributed_report report;
} job;

static dpcr_status once(const job *j, dpcr_context *context, const dpcr_transport *by, dpcr_distributed_report *report,
                        dpcr_error *error) {
    const int64_t L = j->shape.length, first = by->rank * L / by->ranks, count = (by->rank + 1) * L / by->ranks - first;
    const int64_t w = j->shape.transition.rows;
    const int64_t wide[] = {count, 1, j->values}, narrow[] = {count, 1, w};
    const dpcr_array a = dpcr_array_make(j->a + first * j->values, DPCR_F32, 3, wide),
                     b = dpcr_array_make(j->b + first * w, DPCR_F32, 3, narrow),
                     z = dpcr_array_make(j->z + first * w, DPCR_F32, 3, narrow);
    if (j->networks[0]) {
        const dpcr_recurrent_pass pass = {.size = sizeof pass, .x = b, .y = z};
        const dpcr_recurrent_ranks options = {.size = sizeof options, .transport = by};
        return dpcr_recurrent_distributed(j->networks[by->rank], &options, &pass, NULL, NULL, NULL, error);
    }
    dpcr_chain_shape shape = j->shape;
    shape.length = count;
    const dpcr_distributed_options options = {.size = sizeof options, .transport = by};
    return dpcr_chain_distributed(context, &shape, &options, &a, &b, NULL, &z, NULL, NULL, report, error);
}

static dpcr_status run_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    job *j = user;
    const dpcr_context_options one = {.size = sizeof one, .threads = 1};
    dpcr_context *context = NULL;
    dpcr_status status = dpcr_context_create(&one, &context, error);
    double spent = 0;
    for (int i = 0; status == DPCR_OK && i < MOST_REPEATS; i++) {
        dpcr_distributed_report report = {.size = sizeof report};
        status = dpcr_ranks_agree(by, 60, DPCR_OK, error);
        const double start = now();
        if (status == DPCR_OK) status = once(j, context, by, &report, error);
        if (status == DPCR_OK) status = dpcr_ranks_agree(by, 60, DPCR_OK, error);
        const double took = now() - start;
        if (by->rank == 0 && (i == 0 || took < j->seconds)) j->seconds = took, j->report = report;
        // Rank 0's clock decides for all.
        spent += took;
        int64_t more = i < LEAST_REPEATS || spent < SECONDS;
        for (int64_t r = 1; status == DPCR_OK && by->rank == 0 && r < by->ranks; r++)
            status = by->send(by->user, r, DPCR_TAGS, &more, sizeof more, error);
        if (status == DPCR_OK && by->rank > 0)
            status = by->receive(by->user, 0, DPCR_TAGS, &more, sizeof more, 60, error);
        if (!more) break;
    }
    dpcr_context_destroy(context);
    return status;
}

static void run(dpcr_context *context, const char *name, dpcr_chain_shape shape, int64_t inputs, int64_t length,
                const char *scaling, int64_t ranks) {
    job j = {.shape = shape, .ranks = ranks, .values = dpcr_transition_values(&shape.transition)};
    dpcr_error error = {0};
    dpcr_machine machine = {.size = sizeof machine};
    const int64_t w = shape.transition.rows;
    j.shape.length = length;
    j.a = numbers(length * j.values, shape.transition.structure == DPCR_DENSE ? 1.7f / (float)w : 0.9f);
    j.b = numbers(length * w, 1);
    j.z = numbers(length * w, 0);
    const dpcr_recurrent_options gru = {.size = sizeof gru, .kind = DPCR_GRU, .inputs = inputs, .hidden = w, .seed = 1};
    const dpcr_context_options one = {.size = sizeof one, .threads = 1};
    dpcr_context *contexts[MOST_RANKS] = {NULL};
    for (int64_t r = 0; inputs && r < ranks; r++)
        if (dpcr_context_create(&one, &contexts[r], &error) != DPCR_OK ||
            dpcr_recurrent_create(contexts[r], &gru, &j.networks[r], &error) != DPCR_OK)
            stop(error.text);
    if (dpcr_ranks_run(context, ranks, run_rank, &j, &error) != DPCR_OK) stop(error.text);
    dpcr_ranks_model model = {.size = sizeof model, .ranks = ranks, .cores = dpcr_context_threads(context)};
    if (dpcr_context_machine(context, &machine, &error) == DPCR_OK) {
        const double beside = (double)(ranks < model.cores ? ranks : model.cores);
        model.memory = machine.bandwidth / beside;
        model.cache = machine.cache_bytes[2] / beside;
    }
    j.shape.length = length;
    if (dpcr_chain_predict(&j.shape, &model, &error) != DPCR_OK) stop(error.text);
    printf("%s,%s,%lld,%lld,%.4g,", scaling, name, (long long)length, (long long)ranks, 1e3 * j.seconds);
    if (inputs)
        printf(",,,\n");
    else
        printf("%.4g,%.4g,%.4g,%.4g\n", 1e3 * j.report.seconds_reduce, 1e3 * j.report.seconds_scan,
               1e3 * j.report.seconds_apply, 1e3 * model.distributed);
    fflush(stdout);
    for (int64_t r = 0; r < ranks; r++) {
        dpcr_recurrent_destroy(j.networks[r]);
        dpcr_context_destroy(contexts[r]);
    }
    free(j.a);
    free(j.b);
    free(j.z);
}

int main(void) {
    dpcr_context *context = NULL;
    static const struct {
        const char *name;
        dpcr_structure structure;
        int64_t width, inputs, length;
    } chains[] = {{"diagonal 64", DPCR_DIAGONAL, 64, 0, 20000},
                  {"dense 4", DPCR_DENSE, 4, 0, 100000},
                  {"dense 32", DPCR_DENSE, 32, 0, 2000},
                  {"gru 32 by overlap", DPCR_IDENTITY, 32, 32, 16000}};
    if (dpcr_context_create(NULL, &context, NULL) != DPCR_OK) stop("no context");
    printf("scaling,chain,steps,ranks,ms,reduce_ms,scan_ms,apply_ms,predicted_ms\n");
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (int weak = 0; weak < 2; weak++)
            for (int64_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
                const dpcr_chain_shape shape = {
                    .size = sizeof shape,
                    .batch = 1,
                    .transition = dpcr_transition_square(chains[i].structure, chains[i].width, 0),
                    .dtype = DPCR_F32};
                run(context, chains[i].name, shape, chains[i].inputs,
                    weak ? chains[i].length / 4 * ranks : chains[i].length, weak ? "weak" : "strong", ranks);
            }
    dpcr_context_destroy(context);
    return 0;
}
