// SPDX-License-Identifier: MIT
// Nonlinear chains on a device by the loop, overlap and newton: narrow tanh cells, RNN, GRU and LSTM with PyTorch's
// initialisation (not by newton), and kinds whose units do not mix; of networks also the way back with all gradients,
// alone and with the pass before it. Medians of solves timed one by one by the device's events, what the forward solve
// said of itself, and how many times faster than the loop of the same row it was. CSV on standard output.
//
//   bench_gpu_nonlinear [--device cuda:N] [--what cells|KIND] [--longest N] [--repetitions N] [--seconds S]
//   bench_gpu_nonlinear --what KIND --hidden N --longest N [--batch N] ...    one network alone
#include <inttypes.h>
#include <stdbool.h>

#include "events.h"

typedef struct job {
    const char *what;
    int64_t width, length, batch;
    dpcr_solve_plan *cell;
    dpcr_recurrent_plan *network;
    dpcr_array weight, sums, x, z0, z;
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    void *workspace;
    size_t bytes;
} job;

static void solve(const gpu *t, const void *argument, int set) {
    const job *j = argument;
    dpcr_error error = {0};
    (void)set;
    if (j->cell)
        must(dpcr_solve_enqueue(j->cell, NULL, &j->z, j->workspace, j->bytes, t->stream, &error), &error);
    else
        must(dpcr_recurrent_enqueue(j->network, &j->weight, &j->pass, j->workspace, j->bytes, t->stream, &error),
             &error);
}

static void go_back(const gpu *t, const void *argument, int set) {
    const job *j = argument;
    dpcr_error error = {0};
    (void)set;
    must(dpcr_recurrent_enqueue_backward(j->network, &j->weight, &j->pass, &j->gradients, &j->sums, j->workspace,
                                         j->bytes, t->stream, &error),
         &error);
}

static void there_and_back(const gpu *t, const void *argument, int set) {
    solve(t, argument, set);
    go_back(t, argument, set);
}

enum { FORWARD, BACKWARD, BOTH, PASSES };
static const char *const passes[PASSES] = {"forward", "backward", "both"};

// The loop's medians go to *loop where this is the loop.
static void time_job(const gpu *t, job *j, dpcr_method method, bool training, double *loop) {
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_error error = {0};
    must(dpcr_device_allocate(t->device, j->bytes, &j->workspace, &error), &error);
    for (int pass = training ? BACKWARD : FORWARD; pass <= (training ? BOTH : FORWARD); pass++) {
        int runs = 0;
        const double seconds = pass == FORWARD    ? median(t, solve, j, 1, &runs)
                               : pass == BACKWARD ? median_after(t, solve, go_back, j, 1, &runs)
                                                  : median(t, there_and_back, j, 1, &runs);
        if (pass == BACKWARD)
            must(dpcr_recurrent_collect_backward(j->network, j->workspace, j->bytes, t->stream, &report, &error),
                 &error);
        else if (j->cell)
            must(dpcr_solve_collect(j->cell, j->workspace, j->bytes, t->stream, &report, &error), &error);
        else
            must(dpcr_recurrent_collect(j->network, j->workspace, j->bytes, t->stream, &report, &error), &error);
        if (method == DPCR_METHOD_SEQUENTIAL) loop[pass] = seconds;
        gpu_row(t);
        printf("%s,%" PRId64 ",float32,%" PRId64 ",%" PRId64 ",%s,%s,%s,%d,%.4g,%d,%.4g,%.4g\n", j->what, j->width,
               j->length, j->batch, passes[pass], dpcr_method_name(method), dpcr_reason_name(report.reason),
               report.sweeps, report.residual, runs, 1e6 * seconds, loop[pass] / seconds);
        fflush(stdout);
    }
    dpcr_device_release(t->device, j->workspace);
}

static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};

static void time_cell(const gpu *t, int64_t width, int64_t length, int64_t batch) {
    const int64_t weights[2] = {width, width}, states[3] = {length, batch, width};
    job j = {.what = "cell", .width = width, .length = length, .batch = batch};
    dpcr_error error = {0};
    dpcr_cell *cell = NULL;
    double loop[PASSES] = {0};
    j.weight = gpu_numbers(t, 2, weights, 1.5 / (double)width, NULL);
    j.x = gpu_numbers(t, 3, states, 1, NULL);
    j.z = gpu_numbers(t, 3, states, 0, NULL);
    const dpcr_cell_options o = {.size = sizeof o,
                                 .kind = DPCR_CELL_DENSE,
                                 .length = length,
                                 .batch = batch,
                                 .width = width,
                                 .weight = j.weight,
                                 .input = j.x};
    dpcr_steps steps = {.size = sizeof steps};
    must(dpcr_cell_create(t->context, &o, &cell, &error), &error);
    must(dpcr_cell_steps(cell, &steps, &error), &error);
    for (int m = 0; m < 3; m++) {
        const dpcr_solve_options options = {.size = sizeof options, .method = methods[m], .device = t->device};
        must(dpcr_solve_plan_create(t->context, &steps, &options, &j.cell, &error), &error);
        j.bytes = dpcr_solve_plan_workspace(j.cell);
        time_job(t, &j, methods[m], false, loop);
        dpcr_solve_plan_destroy(j.cell);
    }
    dpcr_cell_destroy(cell);
    dpcr_device_release(t->device, j.weight.data);
    dpcr_device_release(t->device, j.x.data);
    dpcr_device_release(t->device, j.z.data);
}

static void time_network(const gpu *t, dpcr_recurrent_kind kind, int64_t inputs, int64_t hidden, int64_t length,
                         int64_t batch) {
    const dpcr_recurrent_options o = {.size = sizeof o, .kind = kind, .inputs = inputs, .hidden = hidden, .seed = 1};
    const int64_t in[3] = {length, batch, inputs}, states[3] = {length, batch, hidden};
    job j = {.what = dpcr_recurrent_kind_name(kind), .width = hidden, .length = length, .batch = batch};
    dpcr_error error = {0};
    dpcr_recurrent *network = NULL;
    int64_t count = 0;
    double loop[PASSES] = {0};
    must(dpcr_recurrent_create(t->context, &o, &network, &error), &error);
    const void *theta = dpcr_recurrent_vector(network, &count);
    j.weight = gpu_numbers(t, 1, &count, 0, theta);
    j.sums = gpu_numbers(t, 1, &count, 0, NULL);
    j.x = gpu_numbers(t, 3, in, 1, NULL);
    j.z = gpu_numbers(t, 3, states, 0, NULL);
    dpcr_array dy = gpu_numbers(t, 3, states, 1, NULL), dx = gpu_numbers(t, 3, in, 0, NULL);
    j.pass = (dpcr_recurrent_pass){.size = sizeof j.pass, .x = j.x, .y = j.z};
    j.gradients = (dpcr_recurrent_gradients){.size = sizeof j.gradients, .y = dy, .x = dx};
    for (int training = 0; training < 2; training++)
        for (int m = 0; m < (kind >= DPCR_PARAGRU ? 3 : 2); m++) {
            const dpcr_recurrent_plan_options options = {
                .size = sizeof options,
                .length = length,
                .batch = batch,
                .training = training,
                .solve = {.size = sizeof options.solve, .method = methods[m], .device = t->device}};
            must(dpcr_recurrent_plan_create(network, &options, &j.network, &error), &error);
            j.bytes = dpcr_recurrent_plan_workspace(j.network);
            time_job(t, &j, methods[m], training != 0, loop);
            dpcr_recurrent_plan_destroy(j.network);
        }
    dpcr_recurrent_destroy(network);
    dpcr_array *const arrays[] = {&j.weight, &j.sums, &j.x, &j.z, &dy, &dx};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) dpcr_device_release(t->device, arrays[i]->data);
}

// One long sequence, then a batch of short ones.
static void time_gated(const gpu *t, dpcr_recurrent_kind kind, int64_t longest) {
    const bool rehearsed = longest < 1024;
    for (int64_t length = rehearsed ? longest : 1024; length <= longest; length *= 4)
        for (int64_t hidden = 32; hidden <= (rehearsed ? 32 : 1024); hidden *= hidden == 512 ? 2 : 4)
            if (hidden < 1024 || length <= 16384) time_network(t, kind, hidden, hidden, length, 1);
    for (int64_t hidden = 32; hidden <= (rehearsed ? 32 : 256); hidden *= 2)
        time_network(t, kind, hidden, hidden, rehearsed ? longest : 1024, 64);
}

// As the bitstreams of bench/bitstream.sh.
static void time_rnn(const gpu *t, dpcr_recurrent_kind kind, int64_t longest) {
    static const int64_t lengths[] = {1000, 3000, 10000, 30000};
    for (int i = 0; i < 4; i++) time_network(t, kind, 1, 20, lengths[i] < longest ? lengths[i] : longest, 16);
}

static void time_para(const gpu *t, dpcr_recurrent_kind kind, int64_t longest) {
    for (int64_t length = longest >= 1024 ? 1024 : longest; length <= longest; length *= 4)
        for (int64_t batch = 1; batch <= 8; batch *= 8)
            for (int64_t hidden = 64; hidden <= (longest < 1024 ? 64 : 1024); hidden *= 4)
                if (hidden * length * batch <= 1 << 26) time_network(t, kind, hidden, hidden, length, batch);
}

int main(int argc, char **argv) {
    const char *what = value_of(argc, argv, "--what", "cells");
    const int64_t longest = atoll(value_of(argc, argv, "--longest", "131072"));
    const int64_t hidden = atoll(value_of(argc, argv, "--hidden", "0"));
    const int64_t rows = atoll(value_of(argc, argv, "--batch", "1"));
    const bool cells = !strcmp(what, "cells");
    dpcr_recurrent_kind kind = DPCR_GRU;
    dpcr_error error = {0};
    gpu t = {0};
    if ((!cells && dpcr_recurrent_kind_find(what, &kind, &error) != DPCR_OK) || longest < 1 || hidden < 0 || rows < 1) {
        fprintf(stderr,
                "bench_gpu_nonlinear: wanted --what cells or a kind of network, and 1 or more of everything else\n");
        return 2;
    }
    gpu_open(&t, "bench_gpu_nonlinear", argc, argv);
    printf(GPU_COLUMNS
           "what,width,dtype,length,batch,pass,method,reason,sweeps,residual,"
           "repetitions,median_us,times_the_loop\n");
    if (cells)
        for (int64_t length = longest >= 1024 ? 1024 : longest; length <= longest; length *= 4)
            for (int64_t batch = 1; batch <= 64; batch *= 64)
                for (int64_t width = 1; width <= 4; width *= 2) time_cell(&t, width, length, batch);
    else if (hidden > 0)
        time_network(&t, kind, hidden, hidden, longest, rows);
    else if (kind >= DPCR_PARAGRU)
        time_para(&t, kind, longest);
    else if (kind == DPCR_RNN_TANH || kind == DPCR_RNN_RELU)
        time_rnn(&t, kind, longest);
    else
        time_gated(&t, kind, longest);
    gpu_close(&t);
    return 0;
}
