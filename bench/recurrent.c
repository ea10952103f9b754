// SPDX-License-Identifier: MIT
// Recurrent networks: time of a forward pass, of one that leaves a tape, and of forward and backward with all
// gradients, by the loop and as the planner chooses; a CSV line each.
//
//   bench_recurrent [--kind gru] [--inputs 32] [--hidden 32] [--batch 16] [--length 1024] [--layers 1] [--threads 1]
//                   [--method sequential] [--seconds 0.5] [--rounds 5] [--forward 0]
//
// --rounds: at least so many. --forward 1: forward alone; the other times are 0.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deeppcr/recurrent.h"

typedef struct settings {
    dpcr_recurrent_kind kind;
    long inputs, hidden, batch, length, layers, threads, rounds, forward;
    dpcr_method method;
    double seconds;
} settings;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    fprintf(stderr, "bench_recurrent: %s\n", error->text);
    exit(1);
}

static settings read_settings(int argc, char **argv) {
    settings s = {DPCR_GRU, 32, 32, 16, 1024, 1, 1, 5, 0, DPCR_METHOD_SEQUENTIAL, 0.5};
    const struct {
        const char *name;
        long *to;
    } numbers[] = {{"--inputs", &s.inputs}, {"--hidden", &s.hidden},  {"--batch", &s.batch},
                   {"--length", &s.length}, {"--layers", &s.layers},  {"--threads", &s.threads},
                   {"--rounds", &s.rounds}, {"--forward", &s.forward}};
    dpcr_error error;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--kind") == 0) must(dpcr_recurrent_kind_find(argv[i + 1], &s.kind, &error), &error);
        if (strcmp(argv[i], "--method") == 0) must(dpcr_method_find(argv[i + 1], &s.method, &error), &error);
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = atof(argv[i + 1]);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].to = atol(argv[i + 1]);
    }
    return s;
}

static dpcr_array array(int64_t a, int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    float *data = calloc((size_t)(a * b * c) + 1, sizeof *data);
    uint64_t s = 88172645463325252u;
    for (int64_t i = 0; i < a * b * c; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) s ^= s << 13, s ^= s >> 7, s ^= s << 17, sum += (double)(s >> 40) / (1 << 23) - 1;
        data[i] = (float)(sum * 0.866);  // mean 0, variance 1
    }
    return dpcr_array_make(data, DPCR_F32, 3, shape);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { FORWARD, TAPED, BOTH, WAYS, MOST = 10000 };

int main(int argc, char **argv) {
    const settings s = read_settings(argc, argv);
    static double times[WAYS][MOST];
    int rounds = 0;
    dpcr_error error;
    dpcr_context *context;
    dpcr_recurrent *network;
    dpcr_recurrent_plan *plans[2] = {NULL, NULL};
    const dpcr_context_options threads = {.size = sizeof threads, .threads = (int)s.threads};
    must(dpcr_context_create(&threads, &context, &error), &error);
    const dpcr_recurrent_options options = {
        .size = sizeof options, .kind = s.kind, .inputs = s.inputs, .hidden = s.hidden, .layers = s.layers};
    must(dpcr_recurrent_create(context, &options, &network, &error), &error);
    dpcr_recurrent_pass pass = {
        .size = sizeof pass, .x = array(s.length, s.batch, s.inputs), .y = array(s.length, s.batch, s.hidden)};
    dpcr_recurrent_gradients gradients = {
        .size = sizeof gradients, .y = array(s.length, s.batch, s.hidden), .x = array(s.length, s.batch, s.inputs)};
    size_t workspace = 0, tape = 0;
    for (int training = 0; training < (s.forward ? 1 : 2); training++) {
        const dpcr_recurrent_plan_options plan = {.size = sizeof plan,
                                                  .length = s.length,
                                                  .batch = s.batch,
                                                  .training = training,
                                                  .solve = {.size = sizeof plan.solve, .method = s.method},
                                                  .sample = &pass};
        must(dpcr_recurrent_plan_create(network, &plan, &plans[training], &error), &error);
        const size_t bytes = dpcr_recurrent_plan_workspace(plans[training]);
        workspace = bytes > workspace ? bytes : workspace;
        tape = dpcr_recurrent_plan_tape(plans[training]);
    }
    void *memory = aligned_alloc(64, (workspace + 127) / 64 * 64), *kept = aligned_alloc(64, (tape + 127) / 64 * 64);
    memset(memory, 0, workspace), memset(kept, 0, tape);
    for (const double start = now(); rounds < MOST && (rounds < s.rounds || now() - start < s.seconds); rounds++) {
        const double a = now();
        must(dpcr_recurrent_execute(plans[0], &pass, NULL, memory, workspace, NULL, &error), &error);
        const double b = now();
        times[FORWARD][rounds] = b - a;
        if (s.forward) continue;
        must(dpcr_recurrent_execute(plans[1], &pass, kept, memory, workspace, NULL, &error), &error);
        const double c = now();
        must(dpcr_recurrent_backward(plans[1], &pass, &gradients, kept, memory, workspace, NULL, &error), &error);
        times[TAPED][rounds] = c - b, times[BOTH][rounds] = now() - b;
    }
    for (int w = 0; w < WAYS; w++) qsort(times[w], (size_t)rounds, sizeof(double), ascending);
    const double each = 1e9 / (double)s.length;
    printf("%s,%ld,%ld,%ld,%ld,%ld,%ld,%s,%.1f,%.1f,%.1f,%d\n", dpcr_recurrent_kind_name(s.kind), s.inputs, s.hidden,
           s.batch, s.length, s.layers, s.threads,
           dpcr_method_name(dpcr_solve_plan_method(dpcr_recurrent_plan_chain(plans[0], 0))),
           times[FORWARD][rounds / 2] * each, times[TAPED][rounds / 2] * each, times[BOTH][rounds / 2] * each, rounds);
    return 0;
}
