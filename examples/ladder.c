// SPDX-License-Identifier: MIT
// A transistor ladder (ladder.h) over a recording: by the compiled loop and as the planner likes, bit for bit the same;
// the sound written as WAV, and a spectrogram of both. With -l its cutoff and resonance are then learnt from that sound
// by gradients through the whole recording, from a wrong guess.
//   cc -O3 -march=native -ffp-contract=off ladder.c $(pkg-config --cflags --libs deeppcr sndfile) -lm
//   ladder [-f HERTZ] [-k RESONANCE] [-t SECONDS] [-l STEPS] [-o OUT.wav] [-p OUT.png] [RECORDING ...]
#include "audio.h"
#include "ladder.h"

#include <unistd.h>

// One Adam step of (log cutoff, resonance).
typedef struct adam {
    double m[2], v[2];
    int steps;
} adam;

static void adam_step(adam *a, const double gradient[2], double rate, double value[2]) {
    a->steps++;
    for (int i = 0; i < 2; i++) {
        a->m[i] = 0.9 * a->m[i] + 0.1 * gradient[i];
        a->v[i] = 0.99 * a->v[i] + 0.01 * gradient[i] * gradient[i];
        const double m = a->m[i] / (1 - pow(0.9, a->steps)), v = a->v[i] / (1 - pow(0.99, a->steps));
        value[i] -= rate * m / (sqrt(v) + 1e-12);
    }
}

// A plan and the memory that a forward and a backward pass need.
typedef struct learner {
    dpcr_solve_plan *plan;
    float *z, *direct;  // [length][1][4]
    void *workspace;
    size_t bytes;
} learner;

// Loss: the mean square of what comes out less `target`, each every fourth number; its gradients by log cutoff and k.
static dpcr_status learner_pass(const learner *l, ladder *filter, const float *target, double *loss, double gradient[2],
                                dpcr_error *error) {
    static float silence[4];
    const int64_t shape[] = {filter->length, 1, 4};
    const dpcr_array z0 = dpcr_array_make(silence, DPCR_F32, 2, shape + 1),
                     z = dpcr_array_make(l->z, DPCR_F32, 3, shape),
                     direct = dpcr_array_make(l->direct, DPCR_F32, 3, shape);
    dpcr_status status = dpcr_solve_execute(l->plan, &z0, &z, NULL, l->workspace, l->bytes, NULL, error);
    if (status != DPCR_OK) return status;
    *loss = 0;
    for (int64_t i = 0; i < filter->length; i++) {
        const float e = l->z[4 * i + 3] - target[4 * i + 3];
        *loss += (double)(e * e) / (double)filter->length;
        l->direct[4 * i + 3] = 2 * e;  // the sum's gradient: the mean's would sink among the smallest floats
    }
    filter->gradient[0] = filter->gradient[1] = 0;
    status =
        dpcr_solve_backward(l->plan, &z0, &z, NULL, &direct, NULL, NULL, NULL, l->workspace, l->bytes, NULL, error);
    const double turn = -log(1 - (double)filter->g);  // 2 pi f / rate
    gradient[0] = filter->gradient[0] * turn * (1 - (double)filter->g) / (double)filter->length;
    gradient[1] = filter->gradient[1] / (double)filter->length;
    return status;
}

// Finds what made `target` [length][4] of the sound, from half the cutoff and little resonance. False: told.
static int learn(dpcr_context *context, const ladder *truth, const float *target, double cutoff, int count) {
    ladder filter = ladder_make(truth->input, truth->length, AUDIO_RATE, cutoff / 2, 0.5);
    const dpcr_steps steps = ladder_steps(&filter, 1);
    const dpcr_solve_options options = {.size = sizeof options, .atol = 1e-6, .rtol = 1e-6};
    const size_t states = (size_t)filter.length * 4;
    learner l = {.z = malloc(states * sizeof *l.z), .direct = calloc(states, sizeof *l.direct)};
    adam optimiser = {0};
    double value[2] = {log(cutoff / 2), 0.5}, gradient[2], loss;
    dpcr_error error = {.text = "not enough memory"};
    int ok = l.z && l.direct && dpcr_solve_plan_create(context, &steps, &options, &l.plan, &error) == DPCR_OK;
    if (ok) {
        printf("learning: %s\n", dpcr_solve_plan_sentence(l.plan));
        l.bytes = (dpcr_solve_plan_workspace(l.plan) + 63) / 64 * 64;
        l.workspace = l.bytes ? aligned_alloc(64, l.bytes) : NULL;
    }
    for (int i = 0; i <= count && ok; i++) {
        const double start = audio_now();
        const ladder now = ladder_make(truth->input, truth->length, AUDIO_RATE, exp(value[0]), value[1]);
        filter.g = now.g, filter.k = now.k;
        ok = learner_pass(&l, &filter, target, &loss, gradient, &error) == DPCR_OK;
        if (ok && (i % 20 == 0 || i == count))
            printf("step %3d: cutoff %7.1f Hz, resonance %.4f, loss %.3e, %.0f ms\n", i, exp(value[0]), value[1], loss,
                   1e3 * (audio_now() - start));
        adam_step(&optimiser, gradient, 0.08 / (1 + 0.01 * i), value);
        value[1] = fmin(fmax(value[1], 0), 3.9);
    }
    if (!ok) fprintf(stderr, "%s\n", error.text);
    dpcr_solve_plan_destroy(l.plan);
    free(l.workspace), free(l.z), free(l.direct);
    return ok;
}

int main(int argc, char **argv) {
    double cutoff = 1200, resonance = 2.5, seconds = 60, steps_learnt = 0;
    const char *out = NULL, *picture = NULL;
    for (int option; (option = getopt(argc, argv, "f:k:t:l:o:p:")) != -1;) {
        if (option == 'f' && !audio_number(option, optarg, 1, AUDIO_RATE / 2, &cutoff)) return 2;
        if (option == 'k' && !audio_number(option, optarg, 0, 4, &resonance)) return 2;
        if (option == 't' && !audio_number(option, optarg, 0, 86400, &seconds)) return 2;
        if (option == 'l' && !audio_number(option, optarg, 0, 1e6, &steps_learnt)) return 2;
        if (option == 'o') out = optarg;
        if (option == 'p') picture = optarg;
        if (option == '?') return 2;
    }
    audio sound;
    dpcr_context *context = NULL;
    dpcr_error error = {.text = "not enough memory"};
    if (!audio_read(&sound, argc - optind, argv + optind, seconds)) return 1;
    float *z = malloc((size_t)sound.length * 4 * sizeof *z);
    if (!z || dpcr_context_create(NULL, &context, &error) != DPCR_OK) return fprintf(stderr, "%s\n", error.text), 1;
    ladder filter = ladder_make(sound.samples, sound.length, AUDIO_RATE, cutoff, resonance);
    const dpcr_steps steps = ladder_steps(&filter, 1);
    int ok = audio_filter(context, &steps, z);
    if (ok && out) ok = audio_write(out, z + 3, sound.length, 4);
    if (ok && picture) ok = audio_spectrogram(picture, sound.samples, z + 3, sound.length, 4, 12);
    if (ok && steps_learnt >= 1) ok = learn(context, &filter, z, cutoff, (int)steps_learnt);
    dpcr_context_destroy(context);
    free(z), free(sound.samples);
    return ok ? 0 : 1;
}
