// SPDX-License-Identifier: MIT
// Every kernel, at every level that this CPU runs, float and double:
//   bench_kernels [--check] [--seconds S] [--level portable|avx2|avx512] [--name PART]
// Each is first proved: the linear ones against ref/ (the definition), narrow loops against a plain loop in double and
// lanes against the loop's bits, all others against the portable kernel in double. Then it is timed on numbers in the
// caches, the widest layers' in the third, the best of 7 rounds of S seconds (default 0.002). CSV, a line a kernel and
// shape: kernel, level, dtype, width, block, rows (that go together), nanoseconds a step (of one sequence or row), 10^9
// flops and bytes a second, largest error in units of the rounding error that the shape allows (1 would be too much).
// --check: no times. Exit status 1 where an error is too large, 2 where no kernel's name has PART in it.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/nn_kernels.h"
#include "kernels.h"

enum { ROUNDS = 7, MOST_ARRAYS = 32 };

static const char *const level_names[] = {"portable", "avx2", "avx512"};

static double sample = 0.002;
static bool check, failed, told;
static const char *part = "";
static dpcr_context *context;

// ---- numbers ----

static const uint64_t seed = 0x9E3779B97F4A7C15u;
static uint64_t state;

double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)state / 9223372036854775808.0;
}

void put(dpcr_dtype dtype, void *data, int64_t i, double x) {
    if (dtype == DPCR_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}

double get(dpcr_dtype dtype, const void *data, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

double epsilon(dpcr_dtype dtype) { return dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON; }

void keep_larger(double *largest, double x) {
    if (!(x <= *largest)) *largest = x;
}

void *numbers(dpcr_dtype dtype, int64_t count, double size) {
    void *data = aligned_alloc(64, ((size_t)count * 8 + 127) / 64 * 64);
    if (!data) exit(3);
    for (int64_t i = 0; i < count; i++) put(dtype, data, i, size * uniform());
    return data;
}

// ---- times and lines ----

double best_seconds(void (*run)(void *), void *argument) {
    if (check) return NAN;
    int64_t inner = 1;
    double best = HUGE_VAL;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = dpcri_seconds();
        for (int64_t i = 0; i < inner; i++) run(argument);
        const double took = dpcri_seconds() - start;
        if (took < sample / 2 && inner < 1 << 24) {
            inner *= 2, round = -1;
            continue;
        }
        best = fmin(best, took / (double)inner);
    }
    return best;
}

bool wanted(const char *kernel) { return strstr(kernel, part); }

void tell(const char *kernel, dpcri_isa level, dpcr_dtype dtype, int64_t width, int64_t block, int64_t rows, cost takes,
          double seconds, double error) {
    told = true;
    const double bytes = takes.numbers * (double)dpcr_dtype_size(dtype);
    printf("%s,%s,%s,%lld,%lld,%lld,", kernel, level_names[level], dpcr_dtype_name(dtype), (long long)width,
           (long long)block, (long long)rows);
    if (check)
        printf(",,,%.3f\n", error);
    else
        printf("%.3f,%.2f,%.1f,%.3f\n", seconds / takes.steps * 1e9, takes.flops / seconds * 1e-9,
               bytes / seconds * 1e-9, error);
    if (error < 1) return;
    failed = true;
    fprintf(stderr, "bench_kernels: %s, %s, %s, width %lld: error %g times what rounding explains\n", kernel,
            level_names[level], dpcr_dtype_name(dtype), (long long)width, error);
}

// ---- one kernel at work ----

struct work_memory {
    void *owned[MOST_ARRAYS];
    int arrays;
    struct {
        const void *data;
        int64_t count, times;
        double *kept;  // of the reference
        int64_t kept_count;
    } out[MOST_ARRAYS];
    int outs;
    cost cost;
    double seconds, error;  // error: in units of epsilon
};

void *draw(work *w, int64_t count, double size) {
    if (w->memory->arrays == MOST_ARRAYS) exit(3);
    void *data = w->memory->owned[w->memory->arrays++] = numbers(w->dtype, count, size);
    for (int64_t i = 0; i < count; i++) put(w->dtype, data, i, (double)(float)get(w->dtype, data, i));
    return data;
}

void *room(work *w, int64_t count) {
    const uint64_t before = state;
    void *data = draw(w, count, 0);
    state = before;
    return data;
}

void *comes_out(work *w, int64_t count, int64_t times) {
    struct work_memory *m = w->memory;
    if (m->outs == MOST_ARRAYS) exit(3);
    const uint64_t before = state;
    state = seed + (uint64_t)m->outs;
    void *data = draw(w, count * times, 1);
    state = before;
    const int i = m->outs++;
    m->out[i].data = data, m->out[i].count = count, m->out[i].times = times;
    return data;
}

static void keep(const work *w) {
    struct work_memory *m = w->memory;
    for (int i = 0; i < m->outs; i++) {
        m->out[i].kept = malloc((size_t)m->out[i].count * sizeof(double) + 1);
        if (!m->out[i].kept) exit(3);
        m->out[i].kept_count = m->out[i].count;
        for (int64_t k = 0; k < m->out[i].count; k++)
            m->out[i].kept[k] = get(w->dtype, m->out[i].data, k * m->out[i].times);
    }
}

static void compare(const work *w) {
    struct work_memory *m = w->memory;
    for (int i = 0; i < m->outs; i++) {
        double largest = 0, error = m->out[i].count == m->out[i].kept_count ? 0 : HUGE_VAL;
        for (int64_t k = 0; k < m->out[i].kept_count; k++) largest = fmax(largest, fabs(m->out[i].kept[k]));
        for (int64_t k = 0; k < m->out[i].count * m->out[i].times && error < HUGE_VAL; k++)
            keep_larger(&error, fabs(get(w->dtype, m->out[i].data, k) - m->out[i].kept[k / m->out[i].times]));
        keep_larger(&m->error, error / epsilon(w->dtype) / fmax(largest, DBL_MIN));
    }
}

void fails(work *w) { w->memory->error = HUGE_VAL; }

void runs(work *w, void (*run)(void *), void *argument, cost takes) {
    struct work_memory *m = w->memory;
    run(argument);
    m->cost = takes;
    if (w->reference) {
        keep(w);
        return;
    }
    compare(w);
    m->seconds = best_seconds(run, argument);
}

static void start(work *w) {
    w->memory->arrays = w->memory->outs = 0;
    state = seed;
}

static void end(const work *w) {
    for (int i = 0; i < w->memory->arrays; i++) free(w->memory->owned[i]);
}

void show(const kernel_line *line, dpcri_isa level, dpcr_dtype dtype) {
    if (!wanted(line->name)) return;
    struct work_memory memory = {0};
    work w = {DPCRI_PORTABLE, DPCR_F64, line->width, line->rows, true, context, &memory};
    start(&w);
    line->go(&w);
    end(&w);
    const int outs = memory.outs;
    w.level = level, w.dtype = dtype, w.reference = false;
    start(&w);
    line->go(&w);
    end(&w);
    tell(line->name, level, dtype, line->width, 0, line->rows, memory.cost, memory.seconds,
         memory.error / line->roundings);
    for (int i = 0; i < outs; i++) free(memory.out[i].kept);
}

// ---- the program ----

static int level_of(const char *name) {
    for (int i = 0; i < DPCRI_ISA_COUNT; i++)
        if (strcmp(name, level_names[i]) == 0) return i;
    fprintf(stderr, "bench_kernels: no level '%s'; portable, avx2, avx512\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    int first = 0, last = (int)dpcri_isa_level();
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--check") == 0) {
            check = true;
        } else if (more && strcmp(argv[i], "--seconds") == 0) {
            sample = strtod(argv[++i], NULL);
        } else if (more && strcmp(argv[i], "--name") == 0) {
            part = argv[++i];
        } else if (more && strcmp(argv[i], "--level") == 0) {
            first = last = level_of(argv[++i]);
        } else {
            fprintf(stderr, "bench_kernels [--check] [--seconds S] [--level portable|avx2|avx512] [--name PART]\n");
            return 2;
        }
    }
    if (last > (int)dpcri_isa_level()) {
        fprintf(stderr, "bench_kernels: this CPU, or DEEPPCR_ISA, has no %s\n", level_names[last]);
        return 2;
    }
    if (dpcr_context_create(&(dpcr_context_options){.size = sizeof(dpcr_context_options), .threads = 1}, &context,
                            NULL) != DPCR_OK)
        return 3;
    static void (*const families[])(dpcri_isa, dpcr_dtype) = {show_linear,    show_narrow, show_networks,
                                                              show_recurrent, show_scans,  show_others};
    printf("kernel,level,dtype,width,block,rows,ns_a_step,gflops,gbytes_a_second,error\n");
    for (int level = first; level <= last; level++) {
        if (!dpcri_nn_kernels_at((dpcri_isa)level, DPCR_F32)) continue;  // sanitizers' builds leave out levels
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (size_t i = 0; i < sizeof families / sizeof *families; i++)
                families[i]((dpcri_isa)level, (dpcr_dtype)dtype);
    }
    dpcr_context_destroy(context);
    if (!told) fprintf(stderr, "bench_kernels: no kernel of these levels has '%s' in its name\n", part);
    return told ? failed : 2;
}
