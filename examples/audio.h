// SPDX-License-Identifier: MIT
// What the filters' examples share: recordings in and out (libsndfile), a spectrogram drawn by gnuplot, and a filter
// run by the loop and by `auto`, timed and compared bit for bit.
#ifndef AUDIO_H
#define AUDIO_H

#include <deeppcr/deeppcr.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AUDIO_DEFAULT "/usr/share/sounds/alsa/*.wav"  // Debian's alsa-utils: spoken places of loudspeakers, and noise
enum { AUDIO_RATE = 48000, AUDIO_ROUNDS = 5 };

static double audio_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A number of the command line, from low to high. False: told.
static int audio_number(int option, const char *text, double low, double high, double *value) {
    char *end;
    const double number = strtod(text, &end);
    if (end == text || *end || !(number >= low && number <= high)) {
        fprintf(stderr, "-%c '%s': wanted a number from %g to %g\n", option, text, low, high);
        return 0;
    }
    *value = number;
    return 1;
}

// ---- recordings ----

typedef struct audio {
    float *samples;  // one channel, AUDIO_RATE a second
    int64_t length;
} audio;

static double audio_sinc(double x) { return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x); }

// from [n] at `rate` to AUDIO_RATE, by a windowed sinc of 32 zero crossings, low enough for both rates.
static void audio_resample(const float *from, int64_t n, double rate, float *to, int64_t count) {
    const double ratio = rate / AUDIO_RATE, cutoff = ratio > 1 ? 1 / ratio : 1, reach = 16 / cutoff;
    for (int64_t l = 0; l < count; l++) {
        const double at = (double)l * ratio;
        double sum = 0;
        for (int64_t i = (int64_t)ceil(at - reach); (double)i <= at + reach; i++) {
            const double x = (double)i - at;
            if (i >= 0 && i < n) sum += from[i] * cutoff * audio_sinc(cutoff * x) * (0.5 + 0.5 * cos(M_PI * x / reach));
        }
        to[l] = (float)sum;
    }
}

// Appends a file, its channels mixed. False: told.
static int audio_append(audio *a, const char *path) {
    SF_INFO info = {0};
    SNDFILE *file = sf_open(path, SFM_READ, &info);
    if (!file || info.frames < 1 || info.channels < 1 || info.samplerate < 1) {
        fprintf(stderr, "'%s' cannot be read: %s\n", path, file ? "no sound in it" : sf_strerror(NULL));
        if (file) sf_close(file);
        return 0;
    }
    float *all = malloc((size_t)info.frames * (size_t)info.channels * sizeof *all);
    float *mixed = malloc((size_t)info.frames * sizeof *mixed);
    const int64_t count = (int64_t)((double)info.frames * AUDIO_RATE / info.samplerate);
    float *grown = realloc(a->samples, (size_t)(a->length + count + 1) * sizeof *grown);
    const int room = all && mixed && grown, ok = room && sf_readf_float(file, all, info.frames) == info.frames;
    sf_close(file);
    if (grown) a->samples = grown;
    for (int64_t l = 0; l < info.frames && ok; l++) {
        mixed[l] = 0;
        for (int c = 0; c < info.channels; c++) mixed[l] += all[l * info.channels + c] / (float)info.channels;
    }
    if (ok && info.samplerate == AUDIO_RATE)
        memcpy(grown + a->length, mixed, (size_t)count * sizeof *mixed);
    else if (ok)
        audio_resample(mixed, info.frames, info.samplerate, grown + a->length, count);
    else
        fprintf(stderr, room ? "'%s' cannot be read to its end\n" : "'%s': not enough memory\n", path);
    if (ok) a->length += count;
    free(all), free(mixed);
    return ok;
}

// The files one after the other (none: Debian's), over again until there are so many seconds (0: once). False: told.
static int audio_read(audio *a, int count, char **paths, double seconds) {
    glob_t found = {0};
    *a = (audio){0};
    if (count == 0 && glob(AUDIO_DEFAULT, 0, NULL, &found) != 0) {
        fprintf(stderr, "no recording given, and no %s: 'apt-get install alsa-utils' has some\n", AUDIO_DEFAULT);
        return 0;
    }
    if (count == 0) count = (int)found.gl_pathc, paths = found.gl_pathv;
    int ok = 1;
    for (int i = 0; i < count && ok; i++) ok = audio_append(a, paths[i]);
    globfree(&found);
    const int64_t own = a->length, wanted = (int64_t)ceil(seconds * AUDIO_RATE);
    if (ok && own < 1) fprintf(stderr, "not one sample at %d Hz in what was given\n", AUDIO_RATE);
    if (!ok || own < 1) return 0;
    if (wanted > own) {
        float *grown = realloc(a->samples, (size_t)wanted * sizeof *grown);
        if (!grown) return fprintf(stderr, "not enough memory for %g s\n", seconds), 0;
        a->samples = grown;
        for (int64_t l = own; l < wanted; l++) grown[l] = grown[l - own];
    }
    a->length = wanted > 0 ? wanted : own;
    printf("%d file%s, %.1f s%s, %.1f s in all at %d Hz\n", count, count == 1 ? "" : "s", (double)own / AUDIO_RATE,
           wanted > own ? ", repeated" : "", (double)a->length / AUDIO_RATE, AUDIO_RATE);
    return 1;
}

// Every stride-th number of z, as floats. False: told.
static int audio_write(const char *path, const float *z, int64_t length, int64_t stride) {
    SF_INFO info = {.samplerate = AUDIO_RATE, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    int ok = file != NULL;
    for (int64_t l = 0; l < length && ok; l += 4096) {
        float block[4096];
        const int64_t n = length - l < 4096 ? length - l : 4096;
        for (int64_t i = 0; i < n; i++) block[i] = z[(l + i) * stride];
        ok = sf_writef_float(file, block, n) == n;
    }
    if (file) ok = sf_close(file) == 0 && ok;
    if (!ok) fprintf(stderr, "'%s' cannot be written\n", path);
    return ok;
}

// ---- the spectrogram ----

enum { AUDIO_BINS = 512, AUDIO_COLUMNS = 600 };

// The discrete Fourier transform of 2 AUDIO_BINS numbers, in place: radix 2, decimation in time.
static void audio_fourier(double *re, double *im) {
    const int n = 2 * AUDIO_BINS;
    for (int i = 1, j = 0; i < n; i++) {
        int bit = n / 2;
        for (; j & bit; bit /= 2) j ^= bit;
        j ^= bit;
        if (i >= j) continue;
        const double r = re[i], m = im[i];
        re[i] = re[j], im[i] = im[j], re[j] = r, im[j] = m;
    }
    for (int half = 1; half < n; half *= 2)
        for (int k = 0; k < half; k++) {
            const double c = cos(M_PI * k / half), s = -sin(M_PI * k / half);
            for (int i = k; i < n; i += 2 * half) {
                const double r = re[i + half] * c - im[i + half] * s, m = re[i + half] * s + im[i + half] * c;
                re[i + half] = re[i] - r, im[i + half] = im[i] - m;
                re[i] += r, im[i] += m;
            }
        }
}

// Power in dB over time and frequency of the first `seconds`, before and after, one above the other. False: told.
static int audio_spectrogram(const char *path, const float *before, const float *after, int64_t length, int64_t stride,
                             double seconds) {
    static float level[AUDIO_BINS][AUDIO_COLUMNS];
    signal(SIGPIPE, SIG_IGN);  // gnuplot may be missing, or end early: its exit status tells
    // The path by the environment, not as a text that shell and gnuplot read.
    FILE *g = setenv("AUDIO_PICTURE", path, 1) == 0
                  ? popen("command -v gnuplot >/dev/null && exec gnuplot >\"$AUDIO_PICTURE\"", "w")
                  : NULL;
    if (!g) return fprintf(stderr, "no gnuplot: no picture\n"), 0;
    const int64_t shown = seconds * AUDIO_RATE < (double)length ? (int64_t)(seconds * AUDIO_RATE) : length;
    fprintf(g, "set terminal png size 1000,800\nset multiplot layout 2,1\n");
    fprintf(g, "set xrange [0:%g]\nset yrange [0:%g]\nset cbrange [-90:0]\nset xlabel 's'\nset ylabel 'kHz'\n",
            (double)shown / AUDIO_RATE, AUDIO_RATE / 2000.0);
    for (int picture = 0; picture < 2; picture++) {
        const float *signal = picture ? after : before;
        const int64_t step = picture ? stride : 1;
        fprintf(g, "set title '%s'\nplot '-' binary array=(%d,%d) dx=%g dy=%g format='%%float' with image notitle\n",
                picture ? "out" : "in", AUDIO_COLUMNS, AUDIO_BINS, (double)shown / AUDIO_RATE / AUDIO_COLUMNS,
                AUDIO_RATE / 2000.0 / AUDIO_BINS);
        for (int column = 0; column < AUDIO_COLUMNS; column++) {
            double re[2 * AUDIO_BINS], im[2 * AUDIO_BINS];
            for (int i = 0; i < 2 * AUDIO_BINS; i++) {
                const int64_t l = shown * column / AUDIO_COLUMNS + i - AUDIO_BINS;
                const double window = 0.5 - 0.5 * cos(M_PI * i / AUDIO_BINS);
                re[i] = l >= 0 && l < length ? signal[l * step] * window : 0, im[i] = 0;
            }
            audio_fourier(re, im);
            for (int i = 0; i < AUDIO_BINS; i++)
                level[i][column] =
                    (float)(10 * log10(1e-12 + (re[i] * re[i] + im[i] * im[i]) / AUDIO_BINS / AUDIO_BINS * 4));
        }
        fwrite(level, sizeof level, 1, g);
    }
    fprintf(g, "unset multiplot\n");
    if (pclose(g) != 0) return fprintf(stderr, "'%s' is not drawn: no gnuplot, or it failed\n", path), 0;
    return 1;
}

// ---- a filter, run ----

typedef struct audio_run {
    double seconds;  // the median of the rounds
    dpcr_solve_report report;
    char sentence[512];
} audio_run;

// Solves from silence into z [length][1][width] by `method`, with the loop's bits.
static dpcr_status audio_solve(dpcr_context *context, const dpcr_steps *steps, dpcr_method method, float *z,
                               audio_run *run, dpcr_error *error) {
    const dpcr_solve_options options = {.size = sizeof options, .method = method, .atol = -1, .rtol = -1};
    static float silence[16];
    const int64_t shape[] = {steps->length, 1, steps->width};
    const dpcr_array z0 = dpcr_array_make(silence, DPCR_F32, 2, shape + 1),
                     out = dpcr_array_make(z, DPCR_F32, 3, shape);
    dpcr_solve_plan *plan = NULL;
    dpcr_status status = dpcr_solve_plan_create(context, steps, &options, &plan, error);
    if (status != DPCR_OK) return status;
    const size_t bytes = (dpcr_solve_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    double seconds[AUDIO_ROUNDS];
    for (int i = 0; i < AUDIO_ROUNDS && status == DPCR_OK; i++) {
        const double start = audio_now();
        run->report = (dpcr_solve_report){.size = sizeof run->report};
        status = dpcr_solve_execute(plan, &z0, &out, NULL, workspace, bytes, &run->report, error);
        seconds[i] = audio_now() - start;
        for (int k = i; k > 0 && seconds[k] < seconds[k - 1]; k--) {
            const double less = seconds[k];
            seconds[k] = seconds[k - 1], seconds[k - 1] = less;
        }
    }
    run->seconds = seconds[AUDIO_ROUNDS / 2];
    snprintf(run->sentence, sizeof run->sentence, "%s", dpcr_solve_plan_sentence(plan));
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

// The callbacks checked, the filter by the loop and as the planner likes; z gets the states. False: told. Silence lets
// states sink through the denormal numbers, which many processors compute slowly: this thread flushes them to zero from
// here on, and the library's workers take on its mode.
static int audio_filter(dpcr_context *context, const dpcr_steps *steps, float *z) {
    const size_t bytes = (size_t)(steps->length * steps->width) * sizeof *z;
    const int64_t shape[] = {1, steps->width};
    static float silence[16];
    const dpcr_array z0 = dpcr_array_make(silence, DPCR_F32, 2, shape);
    float *by_loop = malloc(bytes);
    audio_run loop, own;
    dpcr_error error = {0};
    dpcr_flush_denormals(1);
    if (!by_loop || dpcr_steps_check(context, steps, &z0, 1e-4, &error) != DPCR_OK ||
        audio_solve(context, steps, DPCR_METHOD_SEQUENTIAL, by_loop, &loop, &error) != DPCR_OK ||
        audio_solve(context, steps, DPCR_METHOD_AUTO, z, &own, &error) != DPCR_OK) {
        fprintf(stderr, "%s\n", by_loop ? error.text : "not enough memory");
        free(by_loop);
        return 0;
    }
    const double samples = (double)steps->length;
    const int same = memcmp(by_loop, z, bytes) == 0;
    printf("auto: %s\n", own.sentence);
    printf("loop %.2f ns a sample; %s %.2f ns (%s, %d sweep%s): %.1f times as fast, %s\n", 1e9 * loop.seconds / samples,
           dpcr_method_name(own.report.method), 1e9 * own.seconds / samples, dpcr_reason_name(own.report.reason),
           own.report.sweeps, own.report.sweeps == 1 ? "" : "s", loop.seconds / own.seconds,
           same ? "bit for bit the same" : "OTHER BITS");
    free(by_loop);
    return same;
}

#endif
