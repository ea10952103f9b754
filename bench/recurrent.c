// SPDX-License-Identifier: MIT
// Recurrent networks: time of a forward pass, of one that leaves a tape, and of forward and backward, by the loop, by a
// parallel method, or as the planner chooses; a CSV line.
//
//   bench_recurrent [--kind gru] [--inputs 32] [--hidden 32] [--batch 16] [--length 1024] [--layers 1] [--threads 1]
//                   [--method sequential] [--scheme chunked] [--backward sequential] [--warm-up 64] [--seconds 0.5]
//                   [--rounds 5] [--forward 0] [--check 0] [--planning estimate] [--gain 1] [--packed 0]
//
// kinds: rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru. --inputs 0: the recurrent part of one layer alone, the
// input's products given, back to the gates' gradients; else the network, back to all gradients. --rounds: at least so
// many. --forward 1: forward alone; the other times are 0. --check 1: how far the states of --inputs 0 are from the
// loop's, else nan. --gain G: recurrent weights of --inputs 0 that many times as large; at 10 a network forgets
// nothing. --packed 1: sequences of a network end one after another, the first with the batch, half of all steps; 2:
// the same lengths in another order.
//
// Prints kind, inputs, hidden, batch, length, layers, threads, method, nanoseconds a step forward, with a tape, both;
// sweeps, largest distance from the loop, the boundaries' or last residual, rounds, microseconds that making the first
// plan of the process took, the machine's rates known, and the median of the next ones.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/recurrent.h"
#include "nn/recurrent.h"
#include "timing.h"

typedef struct settings {
    dpcr_recurrent_kind kind;
    long inputs, hidden, batch, length, layers, threads, rounds, forward, check, warm_up, chunk, packed;
    dpcr_solve_options solve;
    double seconds, gain;
} settings;

static settings read_settings(int argc, char **argv) {
    settings s = {.kind = DPCR_GRU,
                  .inputs = 32,
                  .hidden = 32,
                  .batch = 16,
                  .length = 1024,
                  .layers = 1,
                  .threads = 1,
                  .rounds = 5,
                  .solve = {.size = sizeof s.solve, .method = DPCR_METHOD_SEQUENTIAL},
                  .seconds = 0.5,
                  .gain = 1};
    const struct {
        const char *name;
        long *to;
    } numbers[] = {{"--inputs", &s.inputs},   {"--hidden", &s.hidden},   {"--batch", &s.batch},
                   {"--length", &s.length},   {"--layers", &s.layers},   {"--threads", &s.threads},
                   {"--rounds", &s.rounds},   {"--forward", &s.forward}, {"--check", &s.check},
                   {"--warm-up", &s.warm_up}, {"--chunk", &s.chunk},     {"--packed", &s.packed}};
    dpcr_error error;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--kind") == 0) must(dpcr_recurrent_kind_find(argv[i + 1], &s.kind, &error), &error);
        if (strcmp(argv[i], "--method") == 0) must(dpcr_method_find(argv[i + 1], &s.solve.method, &error), &error);
        if (strcmp(argv[i], "--scheme") == 0) must(dpcr_scheme_find(argv[i + 1], &s.solve.scheme, &error), &error);
        if (strcmp(argv[i], "--backward") == 0) must(dpcr_scheme_find(argv[i + 1], &s.solve.backward, &error), &error);
        if (strcmp(argv[i], "--planning") == 0)
            s.solve.planning = strcmp(argv[i + 1], "measure") == 0 ? DPCR_PLANNING_MEASURE : DPCR_PLANNING_ESTIMATE;
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = atof(argv[i + 1]);
        if (strcmp(argv[i], "--gain") == 0) s.gain = atof(argv[i + 1]);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].to = atol(argv[i + 1]);
    }
    s.solve.warm_up = s.warm_up, s.solve.chunk = s.chunk;
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

static dpcr_array array(int64_t a, int64_t b, int64_t c, double size) {
    const int64_t shape[3] = {a, b, c};
    return dpcr_array_make(numbers(a * b * c, size), DPCR_F32, 3, shape);
}

static void *room(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(memory, 0, bytes);
    return memory;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { FORWARD, TAPED, BOTH, WAYS, MOST = 10000, AGAIN = 5 };

static double times[WAYS][MOST], planning[1 + AGAIN];  // the first, then sorted
static int rounds;

static bool more(const settings *s, double start) {
    return rounds < MOST && (rounds < s->rounds || now() - start < s->seconds);
}

static void print(const settings *s, dpcr_method method, const dpcr_solve_report *report, double distance) {
    for (int w = 0; w < WAYS; w++) qsort(times[w], (size_t)rounds, sizeof(double), ascending);
    qsort(planning + 1, AGAIN, sizeof(double), ascending);
    const double each = 1e9 / (double)s->length;
    printf("%s,%ld,%ld,%ld,%ld,%ld,%ld,%s,%.1f,%.1f,%.1f,%d,%.2g,%.2g,%d,%.1f,%.1f\n",
           dpcr_recurrent_kind_name(s->kind), s->inputs, s->hidden, s->batch, s->length, s->layers, s->threads,
           dpcr_method_name(method), times[FORWARD][rounds / 2] * each, times[TAPED][rounds / 2] * each,
           times[BOTH][rounds / 2] * each, report->sweeps, distance, report->residual, rounds, 1e6 * planning[0],
           1e6 * planning[1 + AGAIN / 2]);
}

// ---- the network ----

static void time_network(dpcr_context *context, const settings *s) {
    dpcr_error error;
    dpcr_recurrent *network;
    dpcr_recurrent_plan *plans[2] = {NULL, NULL};
    dpcr_solve_report reports[64] = {{.size = sizeof reports[0]}};
    const dpcr_recurrent_options options = {
        .size = sizeof options, .kind = s->kind, .inputs = s->inputs, .hidden = s->hidden, .layers = s->layers};
    must(dpcr_recurrent_create(context, &options, &network, &error), &error);
    dpcr_recurrent_pass pass = {.size = sizeof pass,
                                .x = array(s->length, s->batch, s->inputs, 1),
                                .y = array(s->length, s->batch, s->hidden, 1)};
    int64_t *lengths = malloc((size_t)s->batch * sizeof *lengths);
    for (long b = 0; b < s->batch; b++) {
        const long place = s->packed == 2 ? b * 7 % s->batch : b;  // all of them where 7 does not divide the batch
        lengths[b] = s->length * (s->batch - place) / s->batch;
    }
    if (s->packed) pass.lengths = lengths;
    dpcr_recurrent_gradients gradients = {.size = sizeof gradients,
                                          .y = array(s->length, s->batch, s->hidden, 1),
                                          .x = array(s->length, s->batch, s->inputs, 1)};
    size_t workspace = 0, tape = 0;
    for (int training = 0; training < (s->forward ? 1 : 2); training++) {
        const dpcr_recurrent_plan_options plan = {.size = sizeof plan,
                                                  .length = s->length,
                                                  .batch = s->batch,
                                                  .training = training,
                                                  .packed = s->packed != 0,
                                                  .solve = s->solve,
                                                  .sample = &pass};
        for (int i = 0; i < (training ? 1 : 1 + AGAIN); i++) {
            const double start = now();
            dpcr_recurrent_plan_destroy(plans[training]);
            must(dpcr_recurrent_plan_create(network, &plan, &plans[training], &error), &error);
            if (!training) planning[i] = now() - start;
        }
        const size_t bytes = dpcr_recurrent_plan_workspace(plans[training]);
        workspace = bytes > workspace ? bytes : workspace;
        tape = dpcr_recurrent_plan_tape(plans[training]);
    }
    void *memory = room(workspace), *kept = room(tape);
    for (const double start = now(); more(s, start); rounds++) {
        const double a = now();
        must(dpcr_recurrent_execute(plans[0], &pass, NULL, memory, workspace, s->layers == 1 ? reports : NULL, &error),
             &error);
        const double b = now();
        times[FORWARD][rounds] = b - a;
        if (s->forward) continue;
        must(dpcr_recurrent_execute(plans[1], &pass, kept, memory, workspace, NULL, &error), &error);
        const double c = now();
        must(dpcr_recurrent_backward(plans[1], &pass, &gradients, kept, memory, workspace, NULL, &error), &error);
        times[TAPED][rounds] = c - b, times[BOTH][rounds] = now() - b;
    }
    print(s, dpcr_solve_plan_method(dpcr_recurrent_plan_chain(plans[0], 0)), reports, NAN);
}

// ---- the recurrent part alone ----

static dpcri_recurrent make_layer(dpcr_context *context, const settings *s) {
    static const dpcri_gates_kind kinds[] = {
        [DPCR_RNN_TANH] = DPCRI_GATES_RNN, [DPCR_RNN_RELU] = DPCRI_GATES_RNN, [DPCR_GRU] = DPCRI_GATES_GRU,
        [DPCR_LSTM] = DPCRI_GATES_LSTM,    [DPCR_PARAGRU] = DPCRI_PARA_GRU,   [DPCR_PARALSTM] = DPCRI_PARA_LSTM,
        [DPCR_MINGRU] = DPCRI_PARA_LINEAR};
    const dpcri_gates_kind kind = kinds[s->kind];
    const int64_t H = s->hidden, gates = dpcri_gates_count[kind] * H;
    const bool apart = dpcri_gates_apart(kind);
    const dpcri_para_kernels *para = apart ? dpcri_para_kernels_get(DPCR_F32) : NULL;
    dpcri_recurrent l = {.context = context,
                         .dtype = DPCR_F32,
                         .nn = dpcri_nn_kernels_get(DPCR_F32),
                         .kernels = apart ? &para->gates : dpcri_gates_kernels_get(DPCR_F32),
                         .apart = para,
                         .gates = {.context = context,
                                   .kind = kind,
                                   .activation = s->kind == DPCR_RNN_RELU ? DPCRI_ACT_RELU : DPCRI_ACT_TANH,
                                   .width = H},
                         .length = s->length,
                         .batch = s->batch,
                         .inputs = 1,
                         .ahead = true};
    // PyTorch's default where units mix; uniform within 1/2 where not.
    l.weight_ih = numbers(gates, 1);
    l.weight_hh = numbers(gates * (apart ? 1 : H), s->gain * (apart ? 0.29 : 0.577 / sqrt((double)H)));
    if (kind == DPCRI_PARA_LSTM) l.peephole = numbers(2 * H, 0.29);
    dpcri_recurrent_sizes sizes;
    if (!dpcri_recurrent_sizes_of(&l, &sizes)) exit(1);
    l.gates.forward = numbers(sizes.forward, 0), l.gates.backward = numbers(sizes.backward, 0);
    l.panels = numbers(sizes.panels, 0), l.bias = numbers(sizes.bias, 0), l.gates.bias = numbers(sizes.hidden_bias, 0);
    dpcri_recurrent_pack(&l, NULL, NULL);
    dpcri_recurrent_pack_back(&l);
    l.given = (dpcri_grid){.data = numbers(s->length * s->batch * gates, 1), .step = s->batch * gates, .row = gates};
    return l;
}

static void time_part(dpcr_context *context, const settings *s) {
    dpcr_error error;
    dpcri_recurrent layer = make_layer(context, s);
    dpcr_steps steps;
    dpcri_recurrent_steps(&layer, &steps);
    const int64_t T = s->length, B = s->batch, w = steps.width, edge[2] = {B, w}, states = T * B * w;
    const dpcr_array z0 = dpcr_array_make(numbers(B * w, 0), DPCR_F32, 2, edge);
    const dpcr_array dz0 = dpcr_array_make(numbers(B * w, 0), DPCR_F32, 2, edge);
    const dpcr_array z = array(T, B, w, 0);
    dpcr_array direct = {0}, tape = {0};
    if (!s->forward) direct = array(T, B, w, 1), tape = array(T, B, steps.tape_values, 0);
    dpcr_solve_plan *plan = NULL, *in_order;
    dpcr_solve_options options = s->solve;
    options.start = &z0;
    options.consume_tape = 1;
    if (s->forward) options.backward = DPCR_SCHEME_SEQUENTIAL;
    for (int i = 0; i < 1 + AGAIN; i++) {
        const double begun = now();
        dpcr_solve_plan_destroy(plan);
        must(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), &error);
        planning[i] = now() - begun;
    }
    const dpcr_solve_options plain = {
        .size = sizeof plain, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    must(dpcr_solve_plan_create(context, &steps, &plain, &in_order, &error), &error);
    const size_t one = dpcr_solve_plan_workspace(plan), loop = dpcr_solve_plan_workspace(in_order),
                 bytes = one > loop ? one : loop;
    void *memory = room(bytes);
    dpcr_solve_report report = {.size = sizeof report};
    for (const double start = now(); more(s, start); rounds++) {
        const double t0 = now();
        must(dpcr_solve_execute(plan, &z0, &z, NULL, memory, bytes, &report, &error), &error);
        const double t1 = now();
        times[FORWARD][rounds] = t1 - t0;
        if (s->forward) continue;
        must(dpcr_solve_execute(plan, &z0, &z, &tape, memory, bytes, NULL, &error), &error);
        const double t2 = now();
        must(dpcr_solve_backward(plan, &z0, &z, &tape, &direct, NULL, NULL, &dz0, memory, bytes, NULL, &error), &error);
        times[TAPED][rounds] = t2 - t1, times[BOTH][rounds] = now() - t1;
    }
    double distance = NAN;
    if (s->check) {
        float *got = numbers(states, 0);
        memcpy(got, z.data, (size_t)states * sizeof *got);
        must(dpcr_solve_execute(in_order, &z0, &z, NULL, memory, bytes, NULL, &error), &error);
        distance = 0;
        for (int64_t i = 0; i < states; i++)
            distance = fmax(distance, fabs((double)(((const float *)z.data)[i] - got[i])));
    }
    print(s, report.method, &report, distance);
}

int main(int argc, char **argv) {
    const settings s = read_settings(argc, argv);
    dpcr_error error;
    dpcr_context *context;
    const dpcr_context_options threads = {.size = sizeof threads, .threads = (int)s.threads};
    must(dpcr_context_create(&threads, &context, &error), &error);
    dpcr_machine machine = {.size = sizeof machine};
    must(dpcr_context_machine(context, &machine, &error), &error);  // or the first plan measures it
    if (s.inputs > 0)
        time_network(context, &s);
    else
        time_part(context, &s);
    return 0;
}
