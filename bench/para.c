// SPDX-License-Identifier: MIT
// The recurrent part of a layer, the input's products given: time of a forward pass, of one that leaves a tape, and of
// the way back to the gates' gradients, as the given method (and backward scheme) runs it; a CSV line.
//
//   bench_para [--kind paragru] [--hidden 256] [--batch 8] [--length 2048] [--threads 1] [--method sequential]
//              [--scheme chunked] [--backward sequential] [--seconds 0.5]
//
// kinds: gru, lstm, paragru, paralstm, mingru. Prints kind, hidden, batch, length, threads, method, scheme, nanoseconds
// a step forward, with a tape, back; sweeps; the largest distance of the states from the loop's; rounds.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nn/recurrent.h"

typedef struct settings {
    dpcri_gates_kind kind;
    const char *name;
    long hidden, batch, length, threads;
    dpcr_solve_options solve;
    double seconds;
} settings;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    fprintf(stderr, "bench_para: %s\n", error->text);
    exit(1);
}

static settings read_settings(int argc, char **argv) {
    static const struct {
        const char *name;
        dpcri_gates_kind kind;
    } kinds[] = {{"gru", DPCRI_GATES_GRU},
                 {"lstm", DPCRI_GATES_LSTM},
                 {"paragru", DPCRI_PARA_GRU},
                 {"paralstm", DPCRI_PARA_LSTM},
                 {"mingru", DPCRI_PARA_LINEAR}};
    settings s = {
        .kind = DPCRI_PARA_GRU,
        .name = "paragru",
        .hidden = 256,
        .batch = 8,
        .length = 2048,
        .threads = 1,
        .solve = {.size = sizeof s.solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL},
        .seconds = 0.5};
    const struct {
        const char *name;
        long *to;
    } numbers[] = {{"--hidden", &s.hidden}, {"--batch", &s.batch}, {"--length", &s.length}, {"--threads", &s.threads}};
    dpcr_error error;
    for (int i = 1; i + 1 < argc; i += 2) {
        for (size_t k = 0; strcmp(argv[i], "--kind") == 0 && k < sizeof kinds / sizeof kinds[0]; k++)
            if (strcmp(argv[i + 1], kinds[k].name) == 0) s.kind = kinds[k].kind, s.name = kinds[k].name;
        if (strcmp(argv[i], "--method") == 0) must(dpcr_method_find(argv[i + 1], &s.solve.method, &error), &error);
        if (strcmp(argv[i], "--scheme") == 0) must(dpcr_scheme_find(argv[i + 1], &s.solve.scheme, &error), &error);
        if (strcmp(argv[i], "--backward") == 0) must(dpcr_scheme_find(argv[i + 1], &s.solve.backward, &error), &error);
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = atof(argv[i + 1]);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].to = atol(argv[i + 1]);
    }
    return s;
}

// `size` times N(0, 1), nearly.
static float *numbers(int64_t count, double size) {
    static uint64_t s = 88172645463325252u;
    float *data = aligned_alloc(64, ((size_t)count * sizeof *data + 127) / 64 * 64);
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) s ^= s << 13, s ^= s >> 7, s ^= s << 17, sum += (double)(s >> 40) / (1 << 23) - 1;
        data[i] = (float)(size * sum * 0.866);
    }
    return data;
}

static dpcri_recurrent make_layer(dpcr_context *context, const settings *s) {
    const int64_t H = s->hidden, gates = dpcri_gates_count[s->kind] * H;
    const bool apart = dpcri_gates_apart(s->kind);
    const dpcri_para_kernels *para = apart ? dpcri_para_kernels_get(DPCR_F32) : NULL;
    dpcri_recurrent l = {.context = context,
                         .dtype = DPCR_F32,
                         .nn = dpcri_nn_kernels_get(DPCR_F32),
                         .kernels = apart ? &para->gates : dpcri_gates_kernels_get(DPCR_F32),
                         .apart = para,
                         .gates = {.context = context, .kind = s->kind, .width = H},
                         .length = s->length,
                         .batch = s->batch,
                         .inputs = 1,
                         .ahead = true};
    // PyTorch's default where units mix; uniform within 1/2 where not.
    l.weight_ih = numbers(gates, 1);
    l.weight_hh = numbers(gates * (apart ? 1 : H), apart ? 0.29 : 0.577 / sqrt((double)H));
    if (s->kind == DPCRI_PARA_LSTM) l.peephole = numbers(2 * H, 0.29);
    dpcri_recurrent_sizes sizes;
    if (!dpcri_recurrent_sizes_of(&l, &sizes)) exit(1);
    l.gates.forward = numbers(sizes.forward, 0), l.gates.backward = numbers(sizes.backward, 0);
    l.panels = numbers(sizes.panels, 0), l.bias = numbers(sizes.bias, 0), l.gates.bias = numbers(sizes.hidden_bias, 0);
    dpcri_recurrent_pack(&l, NULL, NULL);
    dpcri_recurrent_pack_back(&l);
    l.given = (dpcri_grid){.data = numbers(s->length * s->batch * gates, 1), .step = s->batch * gates, .row = gates};
    return l;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { FORWARD, TAPED, BACK, WAYS, MOST = 10000 };

int main(int argc, char **argv) {
    const settings s = read_settings(argc, argv);
    static double times[WAYS][MOST];
    int rounds = 0;
    dpcr_error error;
    dpcr_context *context;
    const dpcr_context_options threads = {.size = sizeof threads, .threads = (int)s.threads};
    must(dpcr_context_create(&threads, &context, &error), &error);
    dpcri_recurrent layer = make_layer(context, &s);
    dpcr_steps steps;
    dpcri_recurrent_steps(&layer, &steps);
    const int64_t edge[2] = {s.batch, steps.width}, all[3] = {s.length, s.batch, steps.width},
                  kept[3] = {s.length, s.batch, steps.tape_values}, states = s.length * s.batch * steps.width;
    const dpcr_array z0 = dpcr_array_make(numbers(s.batch * steps.width, 0), DPCR_F32, 2, edge);
    const dpcr_array dz0 = dpcr_array_make(numbers(s.batch * steps.width, 0), DPCR_F32, 2, edge);
    const dpcr_array z = dpcr_array_make(numbers(states, 0), DPCR_F32, 3, all);
    const dpcr_array direct = dpcr_array_make(numbers(states, 1), DPCR_F32, 3, all);
    const dpcr_array tape = dpcr_array_make(numbers(s.length * s.batch * steps.tape_values, 0), DPCR_F32, 3, kept);
    float *loop = malloc((size_t)states * sizeof *loop);
    dpcr_solve_plan *plan;
    dpcr_solve_options options = s.solve;
    options.start = &z0;
    options.consume_tape = 1;
    must(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), &error);
    const dpcr_solve_options plain = {
        .size = sizeof plain, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    dpcr_solve_plan *in_order;
    must(dpcr_solve_plan_create(context, &steps, &plain, &in_order, &error), &error);
    const size_t one = dpcr_solve_plan_workspace(plan), other = dpcr_solve_plan_workspace(in_order),
                 bytes = one > other ? one : other;
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(memory, 0, bytes);
    must(dpcr_solve_execute(in_order, &z0, &z, NULL, memory, bytes, NULL, &error), &error);
    memcpy(loop, z.data, (size_t)states * sizeof *loop);
    dpcr_solve_report report = {.size = sizeof report};
    for (const double start = now(); rounds < MOST && (rounds < 5 || now() - start < s.seconds); rounds++) {
        const double a = now();
        must(dpcr_solve_execute(plan, &z0, &z, NULL, memory, bytes, &report, &error), &error);
        const double b = now();
        must(dpcr_solve_execute(plan, &z0, &z, &tape, memory, bytes, NULL, &error), &error);
        const double c = now();
        must(dpcr_solve_backward(plan, &z0, &z, &tape, &direct, NULL, NULL, &dz0, memory, bytes, NULL, &error), &error);
        times[FORWARD][rounds] = b - a, times[TAPED][rounds] = c - b, times[BACK][rounds] = now() - c;
    }
    double apart = 0;
    for (int64_t i = 0; i < states; i++) apart = fmax(apart, fabs((double)(((const float *)z.data)[i] - loop[i])));
    for (int w = 0; w < WAYS; w++) qsort(times[w], (size_t)rounds, sizeof(double), ascending);
    const double each = 1e9 / (double)s.length;
    printf("%s,%ld,%ld,%ld,%ld,%s,%s,%.1f,%.1f,%.1f,%d,%.2g,%d\n", s.name, s.hidden, s.batch, s.length, s.threads,
           dpcr_method_name(report.method), dpcr_scheme_name(dpcr_solve_plan_options(plan)->scheme),
           times[FORWARD][rounds / 2] * each, times[TAPED][rounds / 2] * each, times[BACK][rounds / 2] * each,
           report.sweeps, apart, rounds);
    return 0;
}
