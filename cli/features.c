// SPDX-License-Identifier: MIT
// Mel-frequency cepstral coefficients; the Fourier transforms are kissfft's, where the program was built with it.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recordings.h"

enum { KEY_FRAME = 0xa000, KEY_HOP, KEY_COEFFICIENTS, KEY_SECONDS };

static const struct argp_option features_options[] = {
    {"frame", KEY_FRAME, "N", 0, "Samples of a frame, even (default: the largest power of two within 50 ms)", 0},
    {"hop", KEY_HOP, "N", 0, "Samples from a frame to the next (default half a frame)", 0},
    {"coefficients", KEY_COEFFICIENTS, "N", 0, "Mel-frequency cepstral coefficients; the first is dropped (default 13)",
     0},
    {"seconds", KEY_SECONDS, "S", 0, "Of each recording, from its beginning (default: train 3, convert all; 0: all)",
     0},
    {0},
};

static error_t parse_features(int key, char *arg, struct argp_state *state) {
    cli_features *f = state->input;
    bool ok = true;
    switch (key) {
        case KEY_FRAME: ok = cli_read_int64("--frame", arg, 16, CLI_MOST_FRAME, &f->frame); break;
        case KEY_HOP: ok = cli_read_int64("--hop", arg, 1, CLI_MOST_FRAME, &f->hop); break;
        case KEY_COEFFICIENTS: ok = cli_read_int64("--coefficients", arg, 2, CLI_MEL_FILTERS, &f->coefficients); break;
        case KEY_SECONDS: ok = cli_read_double("--seconds", arg, 0, CLI_MOST_SECONDS, &f->seconds); break;
        default: return ARGP_ERR_UNKNOWN;
    }
    f->given = true;
    return ok ? 0 : EINVAL;
}

const struct argp cli_features_argp = {features_options, parse_features, NULL, NULL, NULL, NULL, NULL};

int cli_features_settle(cli_features *o, int rate) {
    if (!o->frame)
        for (o->frame = 16; (double)o->frame * 2 <= 0.05 * rate && o->frame < CLI_MOST_FRAME;) o->frame *= 2;
    if (!o->hop) o->hop = o->frame / 2;
    if (!o->coefficients) o->coefficients = 13;
    if (o->frame % 2 || o->frame < 16)
        return cli_fail(CLI_USAGE, "--frame is %lld samples, wanted an even number of 16 or more", (long long)o->frame);
    return CLI_DONE;
}

#if defined(DEEPPCR_KISSFFT)
#include <kiss_fftr.h>

typedef struct tables {
    kiss_fftr_cfg fft;
    int64_t bins;
    float *window, *frame;   // [frame]
    double *mel, *power;     // [CLI_MEL_FILTERS][bins], [bins]
    double *cosines;         // [coefficients][CLI_MEL_FILTERS]
    kiss_fft_cpx *spectrum;  // [bins]
} tables;

static double mel_of(double hertz) { return 2595 * log10(1 + hertz / 700); }
static double hertz_of(double mel) { return 700 * (pow(10, mel / 2595) - 1); }

static void fill_mel(tables *t, const cli_features *o, int rate) {
    const double top = mel_of(rate / 2.0);
    for (int k = 0; k < CLI_MEL_FILTERS; k++) {
        const double a = hertz_of(top * k / (CLI_MEL_FILTERS + 1)), b = hertz_of(top * (k + 1) / (CLI_MEL_FILTERS + 1)),
                     c = hertz_of(top * (k + 2) / (CLI_MEL_FILTERS + 1));
        for (int64_t j = 0; j < t->bins; j++) {
            const double f = (double)j * rate / (double)o->frame;
            t->mel[k * t->bins + j] = fmax(0, fmin((f - a) / (b - a), (c - f) / (c - b)));
        }
    }
}

static bool make(tables *t, const cli_features *o, int rate) {
    t->bins = o->frame / 2 + 1;
    t->fft = kiss_fftr_alloc((int)o->frame, 0, NULL, NULL);
    t->window = malloc((size_t)o->frame * sizeof *t->window);
    t->frame = malloc((size_t)o->frame * sizeof *t->frame);
    t->mel = malloc((size_t)(CLI_MEL_FILTERS * t->bins) * sizeof *t->mel);
    t->power = malloc((size_t)t->bins * sizeof *t->power);
    t->spectrum = malloc((size_t)t->bins * sizeof *t->spectrum);
    t->cosines = malloc((size_t)(o->coefficients * CLI_MEL_FILTERS) * sizeof *t->cosines);
    if (!t->fft || !t->window || !t->frame || !t->mel || !t->power || !t->spectrum || !t->cosines) return false;
    for (int64_t i = 0; i < o->frame; i++)
        t->window[i] = (float)(0.5 - 0.5 * cos(2 * M_PI * (double)i / (double)o->frame));
    for (int64_t i = 0; i < o->coefficients; i++)
        for (int k = 0; k < CLI_MEL_FILTERS; k++)
            t->cosines[i * CLI_MEL_FILTERS + k] =
                sqrt(2.0 / CLI_MEL_FILTERS) * cos(M_PI * (double)i * (k + 0.5) / CLI_MEL_FILTERS);
    fill_mel(t, o, rate);
    return true;
}

static void drop(tables *t) {
    kiss_fftr_free(t->fft);
    free(t->window), free(t->frame), free(t->mel), free(t->power), free(t->spectrum), free(t->cosines);
}

// One frame, whose samples lie in t->frame, windowed; to [coefficients - 1].
static void cepstrum(tables *t, const cli_features *o, float *to) {
    double energy[CLI_MEL_FILTERS];
    kiss_fftr(t->fft, t->frame, t->spectrum);
    for (int64_t j = 0; j < t->bins; j++)
        t->power[j] = (double)t->spectrum[j].r * t->spectrum[j].r + (double)t->spectrum[j].i * t->spectrum[j].i;
    for (int k = 0; k < CLI_MEL_FILTERS; k++) {
        double sum = 0;
        for (int64_t j = 0; j < t->bins; j++) sum += t->mel[k * t->bins + j] * t->power[j];
        energy[k] = log(fmax(sum, 1e-10));
    }
    for (int64_t i = 1; i < o->coefficients; i++) {
        double sum = 0;
        for (int k = 0; k < CLI_MEL_FILTERS; k++) sum += t->cosines[i * CLI_MEL_FILTERS + k] * energy[k];
        to[i - 1] = (float)sum;
    }
}

int cli_features_of(const cli_features *o, const dpcr_array *x, int rate, dpcr_array *features) {
    const int64_t channels = x->shape[1], kept = o->coefficients - 1;
    const double most = o->seconds > 0 ? o->seconds * rate : HUGE_VAL;
    const int64_t samples = (double)x->shape[0] < most ? x->shape[0] : (int64_t)most;
    const int64_t frames = samples < o->frame ? 1 : 1 + (samples - o->frame) / o->hop;
    tables t = {0};
    if (!make(&t, o, rate)) {
        drop(&t);
        return cli_fail_memory("the features' tables");
    }
    if (!cli_array_create(DPCR_F32, 2, (const int64_t[]){frames, channels * kept}, features)) {
        drop(&t);
        return CLI_RESOURCES;
    }
    for (int64_t f = 0; f < frames && !cli_signal(); f++)
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t i = 0; i < o->frame; i++) {
                const int64_t at = f * o->hop + i;
                t.frame[i] = at < samples ? t.window[i] * ((const float *)x->data)[at * channels + c] : 0;
            }
            cepstrum(&t, o, (float *)features->data + (f * channels + c) * kept);
        }
    drop(&t);
    if (!cli_signal()) return CLI_DONE;
    cli_array_destroy(features);
    return cli_fail_stopped();
}
#else
int cli_features_of(const cli_features *o, const dpcr_array *x, int rate, dpcr_array *features) {
    (void)o, (void)x, (void)rate, (void)features;
    return cli_fail(CLI_USAGE, "this program was built without kissfft: no features of recordings");
}
#endif
