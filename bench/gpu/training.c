// SPDX-License-Identifier: MIT
// A classifier's training whole on a device, mlp (ReLU) and resnet (tanh) of 784 inputs and 10 classes over random
// images: median seconds of a step, from the end of one to the end of the next as the host sees them, for a grid of
// widths and batches, beside the same steps on this machine's processor where --beside names how many, and how far
// apart the two losses up to the last common step, each a mean over the epoch's rows so far, are. CSV on standard
// output.
//
//   bench_gpu_training [--device cuda:N] [--network mlp|resnet] [--layers N] [--widest N] [--most N] [--repetitions N]
//   [--seconds S]
//                      [--beside N]
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "events.h"

enum { SIDE = 28, CLASSES = 10, WARM = 3 };

typedef struct course {
    double ends[MOST + WARM], losses[MOST + WARM];
    int64_t steps, wanted;
} course;

static int note(void *user, const struct dpcr_train_state *state) {
    course *c = user;
    c->ends[c->steps] = state->seconds;
    c->losses[c->steps] = state->loss;
    return ++c->steps == c->wanted;
}

// The first steps warm up.
static double median_step(const course *c) {
    double times[MOST + WARM];
    int64_t count = 0;
    for (int64_t i = WARM; i < c->steps; i++) times[count++] = c->ends[i] - c->ends[i - 1];
    qsort(times, (size_t)count, sizeof *times, by_size);
    return count ? times[count / 2] : NAN;
}

// Images of noise, as many as the steps want, and no more than memory is for.
static dpcr_dataset make_data(int64_t count) {
    uint64_t seed = 1;
    dpcr_dataset d = {.count = count, .rows = SIDE, .cols = SIDE, .classes = CLASSES};
    d.images = malloc((size_t)(count * SIDE * SIDE));
    d.labels = malloc((size_t)count);
    if (!d.images || !d.labels) exit(1);
    for (int64_t i = 0; i < count * SIDE * SIDE; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        d.images[i] = (uint8_t)(seed >> 56);
    }
    for (int64_t i = 0; i < count; i++) d.labels[i] = (uint8_t)(d.images[i * SIDE * SIDE] % CLASSES);
    return d;
}

static course time_steps(const gpu *t, const dpcr_model_options *m, const dpcr_dataset *data, int64_t batch,
                         int64_t steps, bool there) {
    const dpcr_device host = {.type = DPCR_HOST};
    course c = {.wanted = steps};
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    const dpcr_train_options o = {
        .size = sizeof o,
        .epochs = steps,  // more than enough
        .batch = batch,
        .seed = 1,
        .checkpoint_seconds = 1e9,
        .solve = {.size = sizeof o.solve, .method = DPCR_METHOD_SEQUENTIAL, .device = there ? t->device : host},
        .optimiser = {.size = sizeof o.optimiser, .kind = DPCR_ADAMW, .rate = 1e-4},
        .progress = note,
        .progress_user = &c};
    must(dpcr_model_create(t->context, m, &model, &error), &error);
    const dpcr_status status = dpcr_train(t->context, model, data, &o, NULL, &error);
    if (status != DPCR_ERROR_CANCELLED) must(status, &error);
    dpcr_model_destroy(model);
    return c;
}

static void time_network(const gpu *t, bool residual, int64_t layers, int64_t width, int64_t batch, int64_t beside) {
    const dpcr_model_options m = {.size = sizeof m,
                                  .architecture = residual ? DPCR_RESNET : DPCR_MLP,
                                  .inputs = SIDE * SIDE,
                                  .outputs = CLASSES,
                                  .layers = layers,
                                  .width = width,
                                  .seed = 1};
    dpcr_dataset data = make_data(8 * batch);
    const course there = time_steps(t, &m, &data, batch, t->repetitions + WARM, true);
    course here = {0};
    if (beside > 0) here = time_steps(t, &m, &data, batch, beside + WARM, false);
    const int64_t common = here.steps < there.steps ? here.steps : there.steps;
    const double seconds = median_step(&there), processor = beside > 0 ? median_step(&here) : NAN;
    const double apart = common > 0 ? fabs(there.losses[common - 1] / here.losses[common - 1] - 1) : NAN;
    gpu_row(t);
    printf("%s,%" PRId64 ",float32,%" PRId64 ",%" PRId64 ",%d,%.4g,%.4g,%.4g,%.4g\n", residual ? "resnet" : "mlp",
           width, layers, batch, t->repetitions, 1e6 * seconds, (double)batch / seconds, 1e6 * processor, apart);
    fflush(stdout);
    free(data.images);
    free(data.labels);
}

int main(int argc, char **argv) {
    const char *network = value_of(argc, argv, "--network", "resnet");
    const int64_t layers = atoll(value_of(argc, argv, "--layers", "1024"));
    const int64_t beside = atoll(value_of(argc, argv, "--beside", "0"));
    const int64_t widest = atoll(value_of(argc, argv, "--widest", "256"));
    const int64_t most = atoll(value_of(argc, argv, "--most", "512"));  // rows of a batch
    const bool residual = !strcmp(network, "resnet");
    gpu t = {0};
    if ((!residual && strcmp(network, "mlp") != 0) || layers < 1 || beside < 0 || beside > MOST) {
        fprintf(stderr, "bench_gpu_training: wanted --network mlp or resnet, --layers 1 or more, --beside 0 to %d\n",
                MOST);
        return 2;
    }
    gpu_open(&t, "bench_gpu_training", argc, argv);
    printf(GPU_COLUMNS "network,width,dtype,layers,batch,repetitions,median_us,images_per_second,processor_us,apart\n");
    for (int64_t batch = 32; batch <= most; batch *= 4)
        for (int64_t width = 16; width <= widest; width *= 4) time_network(&t, residual, layers, width, batch, beside);
    gpu_close(&t);
    return 0;
}
