// SPDX-License-Identifier: MIT
// What the files of bench_kernels share. One kernel at work is a function over `work`: it draws its numbers, says where
// what comes out lies, and hands over a run. It is called once with the reference's table and once for every level and
// dtype, and draws the same numbers each time.
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deeppcr/context.h"
#include "rt/rt.h"

typedef struct work {
    dpcri_isa level;
    dpcr_dtype dtype;
    int64_t width, rows;  // the shape: of a state, a layer or a matrix; sequences, lanes or rows that go together
    bool reference;       // only what comes out counts
    dpcr_context *context;
    struct work_memory *memory;
} work;

// What one run takes: steps (of one sequence, times the sequences), operations (an fma is two), numbers read or written
// at least once.
typedef struct cost {
    double steps, flops, numbers;
} cost;

// Operations that a function such as tanh counts as, with its slope, and errors that both may have, in epsilons.
enum { FUNCTION = 20, FUNCTION_ERROR = 64 };

typedef struct kernel_line {
    const char *name;
    int64_t width, rows;
    // Largest errors that rounding explains, in units of the dtype's epsilon and of the largest number of what comes
    // out.
    double roundings;
    void (*go)(work *w);
} kernel_line;

// `count` numbers of the work's dtype in (-size, size), each a float's; freed with the work.
void *draw(work *w, int64_t count, double size);
// Room for as many, zeros: what follows draws the same numbers whatever `count` is.
void *room(work *w, int64_t count);
// The same for what comes out, with numbers in it: `count` that are compared, each of which stands `times` times, one
// after another.
void *comes_out(work *w, int64_t count, int64_t times);
// Something that cannot be compared so is wrong.
void fails(work *w);
// Once, for what comes out; then as often as it takes to tell the time. What follows must not hang on how often.
void runs(work *w, void (*run)(void *), void *argument, cost takes);

// A line at a level and dtype against the reference: the portable kernel in double, which the unit tests hold to its
// definition.
void show(const kernel_line *line, dpcri_isa level, dpcr_dtype dtype);

// ---- for kernels with a proof of their own ----

double uniform(void);  // in (-1, 1)
void *numbers(dpcr_dtype dtype, int64_t count, double size);
void put(dpcr_dtype dtype, void *data, int64_t i, double x);
double get(dpcr_dtype dtype, const void *data, int64_t i);
double epsilon(dpcr_dtype dtype);
void keep_larger(double *largest, double x);  // NaN is larger than anything
// Seconds of one run, the best of some rounds; NaN where no times are wanted.
double best_seconds(void (*run)(void *), void *argument);
bool wanted(const char *kernel);
// error: in units of what rounding explains
void tell(const char *kernel, dpcri_isa level, dpcr_dtype dtype, int64_t width, int64_t block, int64_t rows, cost takes,
          double seconds, double error);

// ---- the families, each every kernel that it has ----

void show_linear(dpcri_isa level, dpcr_dtype dtype);
void show_narrow(dpcri_isa level, dpcr_dtype dtype);
void show_networks(dpcri_isa level, dpcr_dtype dtype);
void show_recurrent(dpcri_isa level, dpcr_dtype dtype);
void show_scans(dpcri_isa level, dpcr_dtype dtype);
void show_others(dpcri_isa level, dpcr_dtype dtype);

#endif
