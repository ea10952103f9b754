// SPDX-License-Identifier: MIT
// A cascade of biquads over a minute of stereo sound at 48 kHz, samples of both channels side by side: in stretches by
// dpcr_filter_execute, and by the loop of the textbook.
//   cc -O2 biquads.c $(pkg-config --cflags --libs deeppcr) -lm
#define _POSIX_C_SOURCE 199309L  // clock_gettime, where a compiler is asked for C alone
#include <deeppcr/deeppcr.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RATE = 48000, SECONDS = 60, LENGTH = RATE * SECONDS, CHANNELS = 2, SECTIONS = 4 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A Butterworth low-pass of order 2 SECTIONS by the bilinear transform: b0 b1 b2 a0 a1 a2 a section.
static void low_pass(double hertz, double sos[SECTIONS][6]) {
    const double pi = 3.14159265358979323846, w = tan(pi * hertz / RATE);
    for (int s = 0; s < SECTIONS; s++) {
        const double q = 2 * sin(pi * (2 * s + 1) / (4 * SECTIONS)), a0 = 1 + q * w + w * w;
        const double section[6] = {w * w / a0, 2 * w * w / a0,       w * w / a0,
                                   1,          2 * (w * w - 1) / a0, (1 - q * w + w * w) / a0};
        for (int i = 0; i < 6; i++) sos[s][i] = section[i];
    }
}

static void loop(double sos[SECTIONS][6], const float *x, float *y) {
    double z[CHANNELS][SECTIONS][2] = {0};
    for (long l = 0; l < LENGTH; l++)
        for (int b = 0; b < CHANNELS; b++) {
            double v = x[l * CHANNELS + b];
            for (int s = 0; s < SECTIONS; s++) {
                const double *c = sos[s], u = v;
                v = c[0] * u + z[b][s][0];
                z[b][s][0] = c[1] * u - c[4] * v + z[b][s][1];
                z[b][s][1] = c[2] * u - c[5] * v;
            }
            y[l * CHANNELS + b] = (float)v;
        }
}

int main(void) {
    const size_t samples = (size_t)LENGTH * CHANNELS;
    float *x = malloc(samples * sizeof *x), *y = malloc(samples * sizeof *y), *by_loop = malloc(samples * sizeof *y);
    double sos[SECTIONS][6];
    dpcr_context *context = NULL;
    dpcr_filter *filter = NULL;
    dpcr_error error = {.text = "not enough memory"};
    if (!x || !y || !by_loop) return 1;
    for (size_t i = 0; i < samples; i++)
        x[i] = (float)(0.5 * sin(0.001 * (double)i) + 0.2 * sin(1e-5 * (double)i * (double)i));
    low_pass(1000, sos);

    // [channels][samples], a channel's samples CHANNELS apart
    dpcr_array in = dpcr_array_make(x, DPCR_F32, 2, (const int64_t[]){CHANNELS, LENGTH});
    in.strides[0] = 1, in.strides[1] = CHANNELS;
    dpcr_array out = in;
    out.data = y;
    if (dpcr_context_create(NULL, &context, &error) != DPCR_OK ||
        dpcr_filter_create_sos(context, SECTIONS, &sos[0][0], &filter, &error) != DPCR_OK ||
        dpcr_filter_execute(filter, &in, NULL, &out, NULL, &error) != DPCR_OK) {  // touches the memory
        fprintf(stderr, "biquads: %s\n", error.text);
        return 1;
    }
    const double start = now();
    const int failed = dpcr_filter_execute(filter, &in, NULL, &out, NULL, &error) != DPCR_OK;
    const double between = now();
    loop(sos, x, by_loop);
    const double end = now();
    double difference = 0;
    for (size_t i = 0; i < samples; i++) difference = fmax(difference, fabs((double)y[i] - (double)by_loop[i]));
    printf("order %d, forgets in %lld samples: loop %.2f ns a sample, in stretches %.2f; largest difference %.1e\n",
           2 * SECTIONS, (long long)dpcr_filter_memory(filter), 1e9 * (end - between) / (double)samples,
           1e9 * (between - start) / (double)samples, difference);
    dpcr_filter_destroy(filter);
    dpcr_context_destroy(context);
    free(x), free(y), free(by_loop);
    return !failed && difference < 1e-6 ? 0 : 1;
}
