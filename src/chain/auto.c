// SPDX-License-Identifier: MIT
// DPCR_SCHEME_AUTO: the loop or chunks, from a cost model. pcr and blelloch never win on a handful of cores (they form
// log2 n times, or as many, compositions as chunks do, and sweep memory once a level); overlap needs to know that the
// chain forgets, which a shape does not say: forgets.c asks the data where threads would idle beside the loop.
#include <stdio.h>

#include "chain/auto.h"
#include "chain/flow.h"
#include "kern/chunked.h"
#include "kern/squares.h"

// Measured on one AVX-512 core (Zen 5, float): what a step of the loop waits for, and what it keeps the core busy.
static double latency_ns(double width) {
    static const double narrow[] = {1.0, 1.0, 1.9, 2.7, 3.2};
    return width <= 4 ? narrow[(int)width] : 6.5 + 0.25 * width;
}
static double busy_ns(double flops) { return 0.4 + flops / 40.0; }
static const double region_ns = 1000;  // handing tasks over and waiting for them, with the last task's imbalance

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

// Width of what one state component waits for: 1 where components do not mix.
static double coupled_width(const dpcr_transition *t) {
    switch (dpcri_kernel_form(t)) {
        case DPCR_BLOCK: return (double)t->block;
        case DPCR_DENSE: return (double)t->rows;
        default: return 1;
    }
}

static double loop_ns(const dpcr_chain_shape *s, int threads) {
    const double apply = busy_ns(dpcr_transition_apply_flops(&s->transition)), batch = (double)s->batch;
    const double workers = least(threads, most(1, batch / 4));
    return (double)s->length * most(latency_ns(coupled_width(&s->transition)), apply * batch / workers);
}

// Second level, third level, beyond: there the windows' many streams get a part of the bandwidth only.
static double memory_factor(const dpcr_chain_shape *s, double third, double beyond) {
    const double w = (double)s->transition.rows;
    const double bytes = (double)s->length * (w * w + 2 * w) * (s->dtype == DPCR_F64 ? 8 : 4);
    return bytes < 1e6 ? 1 : bytes < 12e6 ? third : beyond;
}

// A step in windows of fused kernels (one sequence), one thread, AVX-512 float, arrays in the second-level cache:
// measured at L = 2^12 .. 2^18. 0: none serve it. Narrower vectors and double take as much longer as
// they have fewer lanes.
static double window_ns(const dpcr_chain_shape *s) {
    static const double by_width[] = {0, 0.16, 0.40, 1.0, 1.6};
    const int64_t w = s->transition.rows;
    if (s->batch != 1 || s->dtype == DPCR_U32 || w > 4 ||
        dpcri_chunked_steps(dpcri_kernel_form(&s->transition), w) == 0)
        return 0;
    const double lanes = (s->dtype == DPCR_F64 ? 2 : 1) * (double)(1 << (DPCRI_AVX512 - dpcri_isa_level()));
    return by_width[w] * lanes * memory_factor(s, 1.35, w == 1 ? 4 : 6);
}

// The same where a vector holds rows of a matrix; windows go to all threads, and take about as long on each.
static double squares_ns(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    const int64_t w = s->transition.rows;
    const bool back = s->transposed != 0;
    if (!dpcri_summary_at(dpcri_isa_level(), s->dtype, dpcri_kernel_form(&s->transition), w, back)) return 0;
    const double step = w == 4 ? (back ? 2.8 : 2.3) : (back ? 9.7 : 9.5);
    const double windows = most(1, (double)s->length / (double)(chunk * DPCRI_SIDE)), workers = least(threads, windows);
    return step * memory_factor(s, 1, 1.5) * (double)s->batch / workers * (workers > 1 ? 1.15 : 1);
}

static double chunked_ns(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    if (squares_ns(s, chunk, threads) > 0)
        return (threads > 1 ? 2 : 0.1) * region_ns + (double)s->length * squares_ns(s, chunk, threads);
    // One thread's time: what further threads add depends on the machine's load more than on the shape.
    if (window_ns(s) > 0 && chunk == dpcri_chunked_steps(dpcri_kernel_form(&s->transition), s->transition.rows))
        return region_ns / 10 + (double)s->length * window_ns(s);
    const double apply = busy_ns(dpcr_transition_apply_flops(&s->transition));
    const double compose =
        s->transition.structure <= DPCR_IDENTITY ? 0 : busy_ns(dpcr_transition_compose_flops(&s->transition));
    const double chunks = (double)s->length / (double)chunk, groups = most(1, chunks / DPCRI_SIDE);
    const double workers = least(threads, groups), batch = (double)s->batch;
    const double latency = latency_ns(coupled_width(&s->transition));
    // Three passes and their calls: 4.2 ns a step for diagonals of w = 4 (bench chain --structure diagonal --length
    // 65536); blocks go through scalar kernels one by one: 31 ns at w = 4, k = 2.
    const double passes = dpcri_kernel_form(&s->transition) == DPCR_BLOCK ? 11 : 2.5;
    const double step = most(latency / DPCRI_SIDE, passes * (2 * apply + compose));
    return step * (double)s->length * batch / workers + chunks * most(latency, apply * batch) + 2 * region_ns;
}

dpcr_scheme dpcri_chain_auto(const dpcr_chain_shape *shape, int64_t chunk, int threads, char *sentence, size_t bytes) {
    const double loop = loop_ns(shape, threads), chunks = chunked_ns(shape, chunk, threads);
    const bool by_chunks = shape->length > 2 * chunk && chunks < 0.8 * loop;  // a model's doubt goes to the loop
    if (by_chunks)
        snprintf(sentence, bytes, "chunked: about %.3g us on %d threads in chunks of %lld, the loop about %.3g us",
                 chunks / 1e3, threads, (long long)chunk, loop / 1e3);
    else
        snprintf(sentence, bytes, "sequential: chunked would take about %.3g us on %d threads, the loop about %.3g us",
                 chunks / 1e3, threads, loop / 1e3);
    return by_chunks ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL;
}
