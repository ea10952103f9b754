// SPDX-License-Identifier: MIT
// How near the linear chains' composing kernels are to what the machine can do, float, AVX-512, batch 1:
//   bench_limits [--threads N] [--rounds R] [--width W] [--least 12] [--most 18]
//   bench_limits --layers L [--threads N] [--rounds R] --width W
//                               the bytes of a pass over L layers, each with parameters of its own, nanoseconds a
//                               layer: to read W and b, and to read them and then add to as many numbers
//   bench_limits --waits 1      what a step of a recurrent cell waits for, nanoseconds: an fma's rate, and one after
//                               another an fma, a tanh of 16, a vector's store and the load of one of its numbers
// A line a width and length 2^e, all from one run, nanoseconds a step:
//
//   loop, chunked   the two schemes, in turn, medians
//   bytes           a triad x = y + s z over as many bytes as A, b and z together, on as many threads, medians
//   fma             the multiplies and fma that composing and applying twice cannot do without, w^3 + 2 w^2 a lane and
//   step,
//                   over the rate of independent ones
//   ports           the larger of that, of the shuffles that cross 128 bits, and of all vector operations together,
//   each
//                   over its measured rate. Lanes of chunks (w < 4) transpose w^2 + 2 w vectors, two shuffles of either
//                   kind each; rows of matrices (w = 4) are counted without shuffles
//   limit           the larger of bytes and ports: what is left if either hides behind the other entirely
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chain/chain_internal.h"
#include "rt/rt.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kern/nn_tanh_table.h"

#define AVX512 __attribute__((target("avx512f")))

enum { MOST_ROUNDS = 31, LANES = 16, SIDE = 16, TURNS = 2000, SAMPLES = 9 };

static int by_size(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[count / 2];
}

// ---- rates: nanoseconds of one of many independent operations ----

static float sink[LANES];

#define RATE(name, operation)                                                     \
    AVX512 static double name(void) {                                             \
        double least = 1e9;                                                       \
        for (int sample = 0; sample < SAMPLES; sample++) {                        \
            __m512 v[SIDE], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);  \
            for (int i = 0; i < SIDE; i++) v[i] = _mm512_set1_ps((float)i);       \
            const double start = dpcri_seconds();                                 \
            for (int turn = 0; turn < TURNS; turn++) {                            \
                for (int i = 0; i < SIDE; i++) {                                  \
                    v[i] = operation;                                             \
                    __asm__ volatile("" : "+v"(v[i]), "+v"(a), "+v"(b));          \
                }                                                                 \
            }                                                                     \
            const double took = (dpcri_seconds() - start) / (TURNS * SIDE) * 1e9; \
            for (int i = 0; i < SIDE; i++) _mm512_storeu_ps(sink, v[i]);          \
            if (took < least) least = took;                                       \
        }                                                                         \
        return least;                                                             \
    }
RATE(fma_ns, _mm512_fmadd_ps(a, b, v[i]))
RATE(cross_ns, _mm512_shuffle_f32x4(a, b, 0x88))
RATE(vector_ns, _mm512_unpacklo_ps(a, b))
#undef RATE

// ---- waits: nanoseconds of one operation after another ----

#define WAIT(name, operation)                                            \
    AVX512 static double name(void) {                                    \
        enum { TIMES = 200000 };                                         \
        double least = 1e9;                                              \
        for (int sample = 0; sample < SAMPLES; sample++) {               \
            __m512 v = _mm512_set1_ps(0.3f), a = _mm512_set1_ps(0.5f);   \
            const double start = dpcri_seconds();                        \
            for (int i = 0; i < TIMES; i++) {                            \
                v = operation;                                           \
                __asm__ volatile("" : "+v"(v), "+v"(a) : : "memory");    \
            }                                                            \
            const double took = (dpcri_seconds() - start) / TIMES * 1e9; \
            _mm512_storeu_ps(sink, v);                                   \
            if (took < least) least = took;                              \
        }                                                                \
        return least;                                                    \
    }

AVX512 static inline __m512 through_memory(__m512 v) {
    static _Alignas(64) float place[LANES];
    _mm512_store_ps(place, v);
    __asm__ volatile("" : : : "memory");
    return _mm512_set1_ps(place[5]);
}

// As kern/nn_activations.inc has it.
AVX512 static inline __m512 tanh_of(__m512 x) {
    const __m512 size = _mm512_min_ps(_mm512_set1_ps(9.146f), _mm512_abs_ps(x));
    const __m512 u = _mm512_fmadd_ps(size, _mm512_set1_ps(0.82f), _mm512_set1_ps(0.5f));
    const __m512i segment = _mm512_srli_epi32(_mm512_castps_si512(u), 20);
    __m512 p = _mm512_permutex2var_ps(_mm512_load_ps(tanh_table[4]), segment, _mm512_load_ps(tanh_table[4] + 16));
    for (int k = 3; k >= 0; k--)
        p = _mm512_fmadd_ps(
            p, size,
            _mm512_permutex2var_ps(_mm512_load_ps(tanh_table[k]), segment, _mm512_load_ps(tanh_table[k] + 16)));
    return p;
}
WAIT(fma_wait, _mm512_fmadd_ps(v, a, a))
WAIT(tanh_wait, tanh_of(v))
WAIT(memory_wait, through_memory(v))
#undef WAIT

// ---- bytes ----

typedef struct triad {
    float *x;
    const float *y, *z;
    int64_t n, tasks;
} triad;

AVX512 static void run_triad(void *argument, int64_t task) {
    const triad *t = argument;
    const int64_t each = t->n / t->tasks / LANES * LANES;
    const __m512 s = _mm512_set1_ps(1.5f);
    for (int64_t i = task * each; i < (task + 1) * each; i += LANES)
        _mm512_storeu_ps(t->x + i, _mm512_fmadd_ps(s, _mm512_loadu_ps(t->z + i), _mm512_loadu_ps(t->y + i)));
}

// ---- layers ----

typedef struct layers {
    const float *parameters;
    float *gradients;
    int64_t n, tasks;
    float sums[64 * LANES];
} layers;

static int64_t begin_of(const layers *l, int64_t task) { return l->n / LANES * task / l->tasks * LANES; }

AVX512 static void read_layers(void *argument, int64_t task) {
    layers *l = argument;
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t i = begin_of(l, task), end = begin_of(l, task + 1); i + 4 * LANES <= end; i += 4 * LANES)
        for (int k = 0; k < 4; k++) sums[k] = _mm512_add_ps(sums[k], _mm512_loadu_ps(l->parameters + i + k * LANES));
    _mm512_storeu_ps(l->sums + task % 64 * LANES,
                     _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

AVX512 static void add_to_layers(void *argument, int64_t task) {
    const layers *l = argument;
    const __m512 one = _mm512_set1_ps(1);
    for (int64_t i = begin_of(l, task), end = begin_of(l, task + 1); i < end; i += LANES)
        _mm512_storeu_ps(l->gradients + i, _mm512_add_ps(one, _mm512_loadu_ps(l->gradients + i)));
}

// ---- chains ----

static float *numbers(int64_t count, float size) {
    static uint64_t state = 0x9E3779B97F4A7C15u;
    float *data = aligned_alloc(64, ((size_t)count * sizeof(float) + 127) / 64 * 64);
    if (!data) exit(3);
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        data[i] = size * (float)((double)(int64_t)state / 9223372036854775808.0);
    }
    return data;
}

typedef struct entrant {
    dpcr_chain_options options;
    void *workspace;
    double times[MOST_ROUNDS];
} entrant;

static double per_step(dpcr_context *context, const dpcri_linear *p, const entrant *e, int64_t times) {
    const double start = dpcri_seconds();
    for (int64_t i = 0; i < times; i++) dpcri_linear_solve(context, p, &e->options, e->workspace, NULL);
    return (dpcri_seconds() - start) / (double)(times * p->length) * 1e9;
}

static double triad_ns(dpcr_context *context, const triad *t, int64_t times, int64_t steps) {
    const double start = dpcri_seconds();
    for (int64_t i = 0; i < times; i++) dpcri_parallel(context, t->tasks, run_triad, (void *)(uintptr_t)t);
    return (dpcri_seconds() - start) / (double)(times * steps) * 1e9;
}

static double larger(double x, double y) { return x > y ? x : y; }

static void measure(dpcr_context *context, int64_t w, int exponent, int rounds) {
    const int64_t n = (int64_t)1 << exponent, values = w * w, times = ((int64_t)1 << 18) / n + 1;
    const int64_t third = n * (values + 2 * w) / 3 + LANES;
    const int threads = dpcr_context_threads(context);
    float *a = numbers(n * values, 1.5f / (float)w), *b = numbers(n * w, 1), *z = numbers(n * w, 0);
    float *x = numbers(third, 0), *y = numbers(third, 1), *s = numbers(third, 1);
    const triad t = {.x = x, .y = y, .z = s, .n = third, .tasks = threads};
    dpcri_linear p = {.transition = dpcr_transition_square(DPCR_DENSE, w, 0),
                      .dtype = DPCR_F32,
                      .length = n,
                      .rows = 1,
                      .a = a,
                      .a_step = values,
                      .b = b,
                      .b_step = w,
                      .z = z,
                      .z_step = w};
    entrant entrants[2] = {{.options = {.scheme = DPCR_SCHEME_SEQUENTIAL}},
                           {.options = {.scheme = DPCR_SCHEME_CHUNKED}}};
    for (int k = 0; k < 2; k++) {
        dpcri_chain_defaults(&p.transition, n, 1, &entrants[k].options);
        const size_t bytes = dpcri_linear_workspace(&p, &entrants[k].options);
        entrants[k].workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
        if (!entrants[k].workspace) exit(3);
        memset(entrants[k].workspace, 0, bytes);
        per_step(context, &p, &entrants[k], times);
    }
    triad_ns(context, &t, times, n);
    double triads[MOST_ROUNDS];
    for (int round = 0; round < rounds; round++) {
        for (int k = 0; k < 2; k++) entrants[k].times[round] = per_step(context, &p, &entrants[k], times);
        triads[round] = triad_ns(context, &t, times, n);
    }
    const double lanes = LANES * (double)threads, wd = (double)w;
    const double products = (wd * wd * wd + 2 * wd * wd) / lanes, sums = w > 1 ? 2 * wd / lanes : 0;
    const double shuffles = w < 4 ? 2 * (wd * wd + 2 * wd) / lanes : 0;  // of either kind
    const double fma = products * fma_ns(), all = (products + sums + 2 * shuffles) * vector_ns();
    const double ports = larger(larger(fma, shuffles * cross_ns()), all), bytes = median(triads, rounds);
    const double loop = median(entrants[0].times, rounds), chunked = median(entrants[1].times, rounds);
    const double limit = larger(bytes, ports);
    const double spread = (entrants[1].times[3 * rounds / 4] - entrants[1].times[rounds / 4]) / chunked;
    printf("%lld,%d,%d,%.3f,%.3f,%.2f,%.3f,%.3f,%.3f,%.3f,%.0f,%.1f\n", (long long)w, exponent, threads, loop, chunked,
           spread, bytes, fma, ports, limit, 100 * limit / chunked, loop / limit);
    fflush(stdout);
    for (int k = 0; k < 2; k++) free(entrants[k].workspace);
    free(a), free(b), free(z), free(x), free(y), free(s);
}

static void measure_layers(dpcr_context *context, int64_t w, int64_t count, int rounds) {
    const int64_t n = count * (w * w + w), times = ((int64_t)1 << 22) / n + 1;
    float *parameters = numbers(n, 1), *gradients = numbers(n, 1);
    layers l = {.parameters = parameters, .gradients = gradients, .n = n, .tasks = dpcr_context_threads(context)};
    double reads[MOST_ROUNDS], both[MOST_ROUNDS];
    for (int round = -1; round < rounds; round++) {  // the first for the caches
        const double start = dpcri_seconds();
        for (int64_t i = 0; i < times; i++) dpcri_parallel(context, l.tasks, read_layers, &l);
        const double middle = dpcri_seconds();
        for (int64_t i = 0; i < times; i++) {
            dpcri_parallel(context, l.tasks, read_layers, &l);
            dpcri_parallel(context, l.tasks, add_to_layers, &l);
        }
        if (round < 0) continue;
        reads[round] = (middle - start) / (double)(times * count) * 1e9;
        both[round] = (dpcri_seconds() - middle) / (double)(times * count) * 1e9;
    }
    printf("%lld,%lld,%lld,%.3f,%.3f\n", (long long)w, (long long)count, (long long)l.tasks, median(reads, rounds),
           median(both, rounds));
    free(parameters), free(gradients);
}

static int whole(const char *text, int least, int most) {
    char *end = NULL;
    const long value = strtol(text, &end, 10);
    if (end != text && *end == 0 && value >= least && value <= most) return (int)value;
    fprintf(stderr, "bench_limits: '%s' is not a number from %d to %d\n", text, least, most);
    exit(2);
}

int main(int argc, char **argv) {
    int threads = 1, rounds = 15, least = 12, most = 18, waits = 0, widths = 1 << 1 | 1 << 2 | 1 << 4;
    int count = 0, width = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *const value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--threads") == 0) {
            threads = whole(value, 1, 64);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            rounds = whole(value, 3, MOST_ROUNDS);
        } else if (strcmp(argv[i], "--least") == 0) {
            least = whole(value, 8, 26);
        } else if (strcmp(argv[i], "--most") == 0) {
            most = whole(value, 8, 26);
        } else if (strcmp(argv[i], "--width") == 0) {
            width = whole(value, 1, 256);
        } else if (strcmp(argv[i], "--layers") == 0) {
            count = whole(value, 1, 1 << 20);
        } else if (strcmp(argv[i], "--waits") == 0) {
            waits = whole(value, 0, 1);
        } else {
            fprintf(stderr,
                    "bench_limits [--waits 1] [--layers L] [--threads N] [--rounds R] [--width W] [--least E] [--most "
                    "E]\n");
            return 2;
        }
    }
    if (dpcri_isa_level() != DPCRI_AVX512) {
        fprintf(stderr, "bench_limits: the ports are counted for AVX-512, which this CPU, or DEEPPCR_ISA, has not\n");
        return 2;
    }
    if (waits) {
        printf("fma_rate,fma,tanh,memory\n%.3f,%.2f,%.2f,%.2f\n", fma_ns(), fma_wait(), tanh_wait(), memory_wait());
        return 0;
    }
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    if (dpcr_context_create(&options, &context, NULL) != DPCR_OK) return 3;
    if (count) {
        printf("width,layers,threads,forward_ns,backward_ns\n");
        measure_layers(context, width ? width : 2, count, rounds);
        dpcr_context_destroy(context);
        return 0;
    }
    if (width > 4) {
        fprintf(stderr, "bench_limits: chains are of width 1, 2, 3 or 4\n");
        return 2;
    }
    if (width) widths = 1 << width;
    printf(
        "width,log2_length,threads,loop_ns,chunked_ns,spread,bytes_ns,fma_ns,ports_ns,limit_ns,percent_of_limit,"
        "ratio_at_limit\n");
    for (int w = 1; w <= 4; w++)
        for (int e = least; e <= most && widths >> w & 1; e += 2) measure(context, w, e, rounds);
    dpcr_context_destroy(context);
    return 0;
}
#else
int main(void) {
    fprintf(stderr, "bench_limits: the ports are counted for AVX-512\n");
    return 2;
}
#endif
