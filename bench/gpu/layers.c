// SPDX-License-Identifier: MIT
// Stacks of layers on a device, mlp (ReLU) and resnet (tanh; with GELU; normalised; of two-layer branches) as training
// starts them: forward by the loop, by overlap, and, of neither normalised nor two-layer ones where its w^3 L B
// products are few, by newton, and back with all gradients; wide ones of few rows, up to 4096, by the loop alone, as
// the plan prices it, by one block a row, and shared by several. Medians of passes timed one by one by the device's
// events, and how many times faster than the loop of the same row they were.
// CSV on standard output.
//
//   bench_gpu_layers [--device cuda:N] [--network mlp|resnet|resnet-gelu|resnet-norm|resnet-two] [--longest N]
//                    [--repetitions N] [--seconds S]
#include <inttypes.h>
#include <stdbool.h>

#include "events.h"
#include "rt/wisdom.h"

enum { THETA, GRADIENTS, Z0, Z, DIRECT, LAMBDA, DZ0, ARRAYS };

typedef struct network {
    const char *name;
    dpcr_architecture architecture;
    dpcr_activation activation;
    int norm;
    dpcr_branch branch;
} network;

static const network networks[] = {{"mlp", DPCR_MLP, DPCR_ACT_DEFAULT, 0, DPCR_BRANCH_LINEAR},
                                   {"resnet", DPCR_RESNET, DPCR_ACT_DEFAULT, 0, DPCR_BRANCH_LINEAR},
                                   {"resnet-gelu", DPCR_RESNET, DPCR_ACT_GELU, 0, DPCR_BRANCH_LINEAR},
                                   {"resnet-norm", DPCR_RESNET, DPCR_ACT_DEFAULT, 1, DPCR_BRANCH_LINEAR},
                                   {"resnet-two", DPCR_RESNET, DPCR_ACT_DEFAULT, 0, DPCR_BRANCH_TWO_LAYER}};
enum { NETWORKS = sizeof networks / sizeof *networks };

typedef struct job {
    const network *network;
    int64_t width, layers, batch;
    dpcr_array at[ARRAYS];
    dpcr_steps steps;
    dpcr_solve_plan *plan;
    void *workspace;
    size_t bytes;
} job;

static void forward(const gpu *t, const void *argument, int set) {
    const job *j = argument;
    dpcr_error error = {0};
    (void)set;
    must(dpcr_solve_enqueue(j->plan, &j->at[Z0], &j->at[Z], j->workspace, j->bytes, t->stream, &error), &error);
}

static void backward(const gpu *t, const void *argument, int set) {
    const job *j = argument;
    dpcr_error error = {0};
    (void)set;
    must(dpcr_solve_enqueue_backward(j->plan, &j->at[Z0], &j->at[Z], &j->at[DIRECT], &j->at[LAMBDA], &j->at[DZ0],
                                     j->workspace, j->bytes, t->stream, &error),
         &error);
}

// `loop` gets the first median of its pass.
static void time_pass(const gpu *t, const job *j, const char *method, bool back, double *loop) {
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_error error = {0};
    int runs = 0;
    const double seconds = median(t, back ? backward : forward, j, 1, &runs);
    if (!back) must(dpcr_solve_collect(j->plan, j->workspace, j->bytes, t->stream, &report, &error), &error);
    if (*loop == 0) *loop = seconds;
    gpu_row(t);
    printf("%s,%" PRId64 ",float32,%" PRId64 ",%" PRId64 ",%s,%s,%s,%d,%d,%.4g,%.4g\n", j->network->name, j->width,
           j->layers, j->batch, back ? "backward" : "forward", method, back ? "-" : dpcr_reason_name(report.reason),
           report.sweeps, runs, 1e6 * seconds, *loop / seconds);
    fflush(stdout);
}

static void time_plan(const gpu *t, job *j, dpcr_method method, const char *name, bool both, double *loop,
                      double *back) {
    const dpcr_solve_options options = {.size = sizeof options, .method = method, .device = t->device};
    dpcr_error error = {0};
    must(dpcr_solve_plan_create(t->context, &j->steps, &options, &j->plan, &error), &error);
    j->bytes = dpcr_solve_plan_workspace(j->plan);
    must(dpcr_device_allocate(t->device, j->bytes, &j->workspace, &error), &error);
    time_pass(t, j, name, false, loop);
    if (both) time_pass(t, j, name, true, back);
    dpcr_device_release(t->device, j->workspace);
    dpcr_solve_plan_destroy(j->plan);
}

// The loop as it is priced, then as it is where a barrier is believed to take half a second, and nothing.
static void time_loops(const gpu *t, job *j) {
    static const char *const names[] = {"sequential", "sequential-alone", "sequential-shared"}, *const barriers[] = {
                                                                                                    NULL, "0.5",
                                                                                                    "1e-12"};
    double loop = 0, back = 0;
    char key[DPCRI_WISDOM_KEY];
    snprintf(key, sizeof key, "device %.100s %d.%d barrier", t->info.name, t->info.major, t->info.minor);
    for (int i = 0; i < 3; i++) {
        if (barriers[i]) dpcri_wisdom_set(t->context, key, barriers[i]);
        time_plan(t, j, DPCR_METHOD_SEQUENTIAL, names[i], true, &loop, &back);
    }
    dpcr_wisdom_forget(t->context);
}

static void time_methods(const gpu *t, job *j) {
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};
    double loop = 0, back = 0;
    const bool linear = j->network->branch == DPCR_BRANCH_LINEAR;
    const int64_t products = j->width * j->width * j->width * j->layers * j->batch;  // of a sweep of newton's
    const bool newton = linear && !j->network->norm && products <= (int64_t)1 << 34;
    for (int m = 0; m < (newton ? 3 : 2); m++)
        time_plan(t, j, methods[m], dpcr_method_name(methods[m]), m == 0, &loop, &back);
}

static void time_stack(const gpu *t, const network *n, int64_t width, int64_t layers, int64_t batch,
                       void (*time)(const gpu *t, job *j)) {
    const dpcr_model_options o = {.size = sizeof o,
                                  .architecture = n->architecture,
                                  .activation = n->activation,
                                  .layer_norm = n->norm,
                                  .branch = n->branch,
                                  .layers = layers,
                                  .width = width,
                                  .seed = 1};
    const int64_t states[3] = {layers, batch, width};
    job j = {.network = n, .width = width, .layers = layers, .batch = batch};
    dpcr_model *model = NULL;
    dpcr_device_model *there = NULL;
    dpcr_error error = {0};
    int64_t count = 0;
    must(dpcr_model_create(t->context, &o, &model, &error), &error);
    const float *theta = dpcr_model_vector(model, &count), *zeros = dpcr_model_gradient_vector(model);
    j.at[THETA] = gpu_numbers(t, 1, &count, 1, theta);
    j.at[GRADIENTS] = gpu_numbers(t, 1, &count, 1, zeros);
    for (int i = Z0; i < ARRAYS; i++)
        j.at[i] = i == Z0 || i == DZ0 ? gpu_numbers(t, 2, states + 1, 1, NULL) : gpu_numbers(t, 3, states, 1, NULL);
    j.steps.size = sizeof j.steps;
    must(dpcr_device_model_create(model, batch, &j.at[THETA], &j.at[GRADIENTS], &there, &error), &error);
    must(dpcr_device_model_steps(there, &j.steps, &error), &error);
    time(t, &j);
    dpcr_device_model_destroy(there);
    dpcr_model_destroy(model);
    for (int i = 0; i < ARRAYS; i++) dpcr_device_release(t->device, j.at[i].data);
}

int main(int argc, char **argv) {
    const char *name = value_of(argc, argv, "--network", "resnet");
    const int64_t longest = atoll(value_of(argc, argv, "--longest", "131072"));
    const network *n = networks;
    gpu t = {0};
    while (n < networks + NETWORKS && strcmp(name, n->name) != 0) n++;
    if (n == networks + NETWORKS || longest < 1) {
        fprintf(
            stderr,
            "bench_gpu_layers: wanted --network mlp, resnet, resnet-gelu, resnet-norm or resnet-two, --longest 1 or "
            "more\n");
        return 2;
    }
    gpu_open(&t, "bench_gpu_layers", argc, argv);
    printf(GPU_COLUMNS
           "network,width,dtype,layers,batch,pass,method,reason,sweeps,"
           "repetitions,median_us,times_the_loop\n");
    const bool rehearsed = longest < 1024;
    // The map, then wide layers.
    for (int64_t layers = rehearsed ? longest : 16; layers <= longest; layers *= layers < 65536 ? 8 : 2)
        for (int64_t batch = 1; batch <= (rehearsed ? 16 : 64); batch *= rehearsed ? 16 : 64)
            for (int64_t width = 2; width <= (rehearsed ? 32 : 64); width *= 2)
                if (width * batch * layers <= 1 << 26) time_stack(&t, n, width, layers, batch, time_methods);
    for (int64_t batch = 1; batch <= 256 && !rehearsed; batch *= 16)
        for (int64_t width = 128; width <= 256; width *= 2) time_stack(&t, n, width, 1024, batch, time_methods);
    const int64_t widest = rehearsed ? 128 : 4096;
    for (int64_t width = rehearsed ? 128 : 256; width <= widest; width *= 4)
        for (int64_t batch = 1; batch <= 16; batch *= 4) {
            const int64_t most = ((int64_t)1 << 26) / (width * width);
            time_stack(&t, n, width, most < longest ? most : longest, batch, time_loops);
        }
    gpu_close(&t);
    return 0;
}
