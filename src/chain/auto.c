// SPDX-License-Identifier: MIT
// DPCR_SCHEME_AUTO: the loop or chunks, from a cost model. pcr and blelloch never win on a handful of cores (they form
// log2 n times, or as many, compositions as chunks do, and sweep memory once a level); overlap needs to know that the
// chain forgets, which a shape does not say: forgets.c asks the data where overlap would be the fastest. So it is on a
// machine that is described too, whatever the predictions of other schemes say there. Of this machine AUTO asks no rate
// that is measured: what it chooses, and so the bits, follow from shape and threads.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "chain/auto.h"
#include "chain/flow.h"
#include "chain/windows.h"
#include "kern/chunked.h"
#include "kern/squares.h"
#include "rt/core.h"
#include "rt/rates.h"

// Where a constant was measured: portable code and AVX2 on a Zen 3, AVX-512 on a Zen 5 (about the same on Zen 4, but
// for what vector_passes tells), and on an Emerald Rapids (docs/performance/linear.md).
enum { SHARED = DPCRI_ISA_COUNT, PLACES };
static bool is_shared(void) { return dpcri_core_kind() == DPCRI_CORE_SHARED; }
static int place(void) { return is_shared() ? SHARED : (int)dpcri_isa_level(); }

// On one core, float: what a step of the loop waits for, and what it keeps the core busy.
static double latency_ns(double width) {
    static const double narrow[PLACES][5] = {
        {2, 2, 2.9, 4.3, 6}, {1.3, 1.3, 2.4, 3.5, 4.4}, {1.0, 1.0, 1.9, 2.7, 3.2}, {1.36, 1.36, 2.75, 4.2, 4.85}};
    static const double eight[PLACES] = {11, 9.2, 5.5, 7.5};
    return width <= 4   ? narrow[place()][(int)width]
           : width == 8 ? eight[place()]
                        : (6.5 + 0.25 * width) * (is_shared() ? 1.4 : 1);
}
// Of dense chains: forward, w = 8 in float takes 6.4 ns on a Zen 5 and 7.3 on a Zen 4, where 5.5 and 5.7 are taken back
// (bench chain --structure dense --width 8 --length 16384).
static double loop_latency_ns(const dpcr_chain_shape *s) {
    const bool eight = s->dtype == DPCR_F32 && s->transition.rows == 8 && dpcri_isa_level() == DPCRI_AVX512;
    const double turns = dpcri_vector_passes() > 1 ? 1.32 : 1.17;
    return latency_ns((double)s->transition.rows) * (eight && !s->transposed ? turns : 1);
}
static double busy_ns(double flops) {
    static const double rate[PLACES] = {20, 34, 40, 28};
    return 0.4 + flops / rate[place()];
}
static const double region_ns = 1000;  // handing tasks over and waiting for them, with the last task's imbalance

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

// What a step of the loop over elements waits for: those that fill no vector go one by one below AVX-512.
static double elements_ns(const dpcr_chain_shape *s) {
    const int64_t w = s->transition.rows;
    if (w < 3) return latency_ns(1);
    if (is_shared()) return 1.43 * latency_ns(1);
    return dpcri_isa_level() == DPCRI_AVX2 && w < 5 && s->dtype == DPCR_F32 ? 0.43 * (double)w : 1.1 * latency_ns(1);
}

// Width of what one state component waits for: 1 where components do not mix.
static double coupled_width(const dpcr_transition *t) {
    switch (dpcri_kernel_form(t)) {
        case DPCR_BLOCK: return (double)t->block;
        case DPCR_DENSE: return (double)t->rows;
        default: return 1;
    }
}

// What a step moves, with transitions of its own.
static double step_bytes(const dpcr_chain_shape *s) {
    const double values = (double)dpcr_transition_values(&s->transition);
    return (values + 2 * (double)s->transition.rows) * (double)dpcr_dtype_size(s->dtype);
}
// What lies in a core's second-level cache, and in the third; a Xeon's third is large, and others work in it too.
static double near_bytes(void) { return is_shared() ? 1.8e6 : 1e6; }
static double cached_bytes(void) { return is_shared() ? 80e6 : 20e6; }

// Beyond the caches, of a loop that waits for each step: wider matrices are asked for ahead (linear.inc).
static double loop_bytes_a_ns(const dpcr_chain_shape *s) { return is_shared() ? 15 : s->transition.rows > 4 ? 44 : 30; }

// Bytes a ns that a core gets from the third-level cache.
static double third_level_bytes_a_ns(double width) {
    if (is_shared()) return 29;
    if (dpcri_isa_level() == DPCRI_AVX512 && dpcri_vector_passes() == 1) return width < 16 ? 90 : 82;
    return width == 8 ? 74 : least(44 + 4 * width, 64);
}

// What a core gets of a level's bytes where chains side by side wait for nothing else; from its second-level cache
// about twice what the third gives (chains of 512 to 32768 steps, 1 to 64 sequences, a Xeon; elsewhere not measured).
static double batch_bytes_a_ns(const dpcr_chain_shape *s) {
    const double third = third_level_bytes_a_ns((double)s->transition.rows);
    const double all = (double)s->length * (double)s->batch * step_bytes(s);
    return all < near_bytes() ? 2 * third : all < cached_bytes() ? third : is_shared() ? 12 : loop_bytes_a_ns(s);
}

// Threads among which the loop goes.
static double loop_workers(const dpcr_chain_shape *s, int threads) {
    const dpcr_transition *t = &s->transition;
    const double flops = (double)s->batch * (double)s->length * dpcr_transition_apply_flops(t);
    const dpcri_loop_shares shares = dpcri_loop_shares_of(dpcri_kernel_form(t), t->rows, t->block,
                                                          dpcr_dtype_size(s->dtype), s->batch, flops, threads);
    return least(threads, (double)shares.groups);
}

// What a step of the loop waits for the one before.
static double loop_wait_ns(const dpcr_chain_shape *s) {
    const dpcr_structure form = dpcri_kernel_form(&s->transition);
    const double mixed = coupled_width(&s->transition);
    if (s->batch == 1 && form == DPCR_DIAGONAL) return elements_ns(s);
    // Two of width 2 and more go in vectors (twos.inc), whose step takes longer than that of one alone.
    double turns = mixed == 2 && (double)s->batch * (double)s->transition.rows > 2 ? 1.7 : 1;
    // And blocks of 3 and 4 (fours.inc): 3.6 and 3.8 ns.
    if (form == DPCR_BLOCK && dpcri_isa_level() == DPCRI_AVX512) turns = mixed == 3 ? 1.3 : mixed == 4 ? 1.2 : turns;
    // On a Zen 3 5.1, 5.7 and 5.5 ns (w = 4, 6 and 8).
    if (form == DPCR_BLOCK && dpcri_isa_level() == DPCRI_AVX2)
        turns = mixed == 2 ? 2.1 : mixed == 3 ? 1.6 : mixed == 4 ? 1.25 : turns;
    return turns * (form == DPCR_DENSE ? loop_latency_ns(s) : latency_ns(mixed));
}

static double loop_ns(const dpcr_chain_shape *s, int threads) {
    if (s->batch == 0) return 0;  // no sequences, no groups of them
    const dpcr_structure form = dpcri_kernel_form(&s->transition);
    const bool elements = s->batch == 1 && form == DPCR_DIAGONAL, dense = form == DPCR_DENSE;
    const double apply = form == DPCR_BLOCK ? 0 : busy_ns(dpcr_transition_apply_flops(&s->transition));
    const double batch = (double)s->batch, workers = loop_workers(s, threads), mixed = coupled_width(&s->transition);
    double step = most(loop_wait_ns(s), apply * batch / workers);
    if (s->batch == 1 && (dense || (elements && is_shared()))) {
        const double all = (double)s->length * step_bytes(s);
        if (all > near_bytes()) step = most(step, step_bytes(s) / third_level_bytes_a_ns((double)s->transition.rows));
        if (all > cached_bytes()) step = most(step, step_bytes(s) / loop_bytes_a_ns(s));
    }
    if (s->batch > 1 || form == DPCR_BLOCK) step = most(step, step_bytes(s) * batch / (batch_bytes_a_ns(s) * workers));
    // Of blocks of 3, which are not asked for ahead (fours.inc), memory brings half as many.
    if (form == DPCR_BLOCK && mixed == 3 && s->batch == 1 && (double)s->length * step_bytes(s) > 1.6 * cached_bytes())
        step = most(step, step_bytes(s) / 24);
    return (double)s->length * step;
}

// Second level, third level, beyond: there the windows' many streams get a part of the bandwidth only.
static double memory_factor(const dpcr_chain_shape *s, double third, double beyond) {
    const double bytes = (double)s->length * step_bytes(s);
    return bytes < near_bytes() ? 1 : bytes < cached_bytes() ? third : beyond;
}

// What a step takes of a Xeon's third-level cache, or of its memory, `times` over and with many streams at once.
static double streams_ns(const dpcr_chain_shape *s, double times) {
    const double bytes = (double)s->length * step_bytes(s);
    if (!is_shared() || bytes < near_bytes()) return 0;
    return times * step_bytes(s) / (bytes < cached_bytes() ? 19 : 13);
}

// Turns of sixteen floats in windows of fused kernels, a step, arrays in the second-level cache: measured at L = 2^12
// .. 2^18. Double takes twice as many, on a Xeon 1.6 times (2^12 and 2^14, w = 1 to 3).
static double dense_window_ns(int64_t w, bool is_double) {
    static const double by_width[PLACES][5] = {
        {0, 0.29, 0.6, 1.55, 2.75}, {0, 0.29, 0.6, 1.55, 2.75}, {0, 0.16, 0.40, 1.0, 1.6}, {0, 0.37, 1.15, 2.45, 5.5}};
    return by_width[place()][w] * (!is_double ? 1 : is_shared() ? 1.6 : 2);
}
// The same of elementwise ones, float and double, which wait for loads and turning alone (bench chain --structure
// diagonal --length 8192, Zen 5; AVX2 as for a Zen 3, which takes twice as long at w = 1).
static double diagonal_window_ns(int64_t w, bool is_double) {
    static const double by_width[2][PLACES][5] = {
        {{0, 0.2, 0.22, 0.42, 0.42},
         {0, 0.29, 0.37, 0.48, 0.53},
         {0, 0.16, 0.28, 0.62, 0.59},
         {0, 0.37, 0.72, 1.1, 1.45}},
        {{0, 0.58, 0.58, 0.6, 0.65}, {0, 0.58, 0.58, 0.6, 0.7}, {0, 0.26, 0.5, 0.72, 0.98}, {0, 0.55, 1.1, 1.5, 2.4}}};
    return by_width[is_double][place()][w];
}

// The same of blocks on the diagonal, each of k: bench chain --structure block, w = 4 to 8, L = 2^12, Zen 5; with
// AVX2 on a Zen 3 (a Zen 5 kept to it takes 0.4 of that); not measured on a Xeon, where they are taken for dense ones.
static double block_window_ns(int64_t w, int64_t k, bool is_double) {
    static const double a_block[PLACES][5] = {
        {0, 0, 0.31, 0.71, 1.45}, {0, 0, 0.95, 2.4, 3.5}, {0, 0, 0.52, 1.05, 1.9}, {0, 0, 1.15, 2.45, 5.5}};
    return (double)(w / k) * a_block[place()][k] * (!is_double ? 1 : is_shared() ? 1.6 : 2);
}

// Steps of the fused kernels' chunks; 0 where there are none.
static int64_t fused_steps(const dpcr_chain_shape *s) {
    const dpcr_transition *t = &s->transition;
    return dpcri_chunked_steps(dpcri_kernel_form(t), t->rows, t->block);
}

// What a step of one sequence takes in windows, on one thread. 0: none serve it. Narrower vectors take as many turns
// more as they have fewer lanes, and hide as much of the memory.
static double window_ns(const dpcr_chain_shape *s) {
    const dpcr_structure form = dpcri_kernel_form(&s->transition);
    const bool is_double = s->dtype == DPCR_F64;
    const int64_t w = s->transition.rows;
    if (s->batch != 1 || s->dtype == DPCR_U32 || fused_steps(s) == 0 || (form == DPCR_DENSE && w > 4)) return 0;
    const double step = form == DPCR_DENSE   ? dense_window_ns(w, is_double)
                        : form == DPCR_BLOCK ? block_window_ns(w, s->transition.block, is_double)
                                             : diagonal_window_ns(w, is_double);
    if (is_shared()) return most(step, streams_ns(s, 1));
    return step * most(dpcri_vector_passes(), memory_factor(s, form == DPCR_BLOCK ? 1.2 : 1.35, w == 1 ? 4 : 3.7));
}

// Threads among which kern/squares.h's windows go.
static double squares_workers(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    const double windows = (double)s->length / (double)(chunk * DPCRI_SIDE);
    if (dpcri_windows_alone(s->length, dpcr_transition_values(&s->transition), s->transition.rows, threads)) return 1;
    return least(threads, most(1, windows));
}

// Like window_ns, of all sequences and threads, where kern/squares.h serves; the threads' two speeds
// (docs/performance/linear.md) lie at 1.1 and 2.3 times the even share.
static double squares_ns(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    const int64_t w = s->transition.rows;
    if (!dpcri_summary_at(dpcri_isa_level(), s->dtype, dpcri_kernel_form(&s->transition), w, s->transposed)) return 0;
    const double workers = squares_workers(s, chunk, threads);
    if (is_shared())
        return (w == 4 ? 4.7 : 17) * memory_factor(s, 1.15, 1.5) * (double)s->batch / workers *
               (workers > 1 ? 1.25 : 1);
    const double step = w == 4 ? 2.05 : 8.7;
    return step * most(dpcri_vector_passes(), memory_factor(s, 1, w == 4 ? 2.6 : 2.2)) * (double)s->batch / workers *
           (workers > 1 ? 1.5 : 1);
}

// Three passes and their calls, where no fused kernel serves: 5.5 ns a step for diagonals of w = 8, measured 3.4 (bench
// chain --structure diagonal --width 8 --length 65536 --scheme chunked). Of blocks of 2 products go in vectors, of
// wider ones in scalars (--structure block --length 16384, w = 9 to 32, Zen 5: blocks of 2 7 to 14 ns in float, 11 to
// 17 in double, of 3 and 4 33 to 70).
static double passes_of(const dpcr_chain_shape *s) {
    const bool scalars = s->transition.block > 2 || (s->dtype == DPCR_F64 && dpcri_isa_level() == DPCRI_PORTABLE);
    if (dpcri_kernel_form(&s->transition) != DPCR_BLOCK) return 2.5;
    if (s->dtype == DPCR_U32) return 11;  // the definition's kernels
    return scalars ? 5.5 : s->dtype == DPCR_F64 ? 2 : 1.15;
}

// What a step of one sequence of several moves: whole lines, transitions and b twice, z read and written.
static double sequences_apart_ns(const dpcr_chain_shape *s) {
    const double size = (double)dpcr_dtype_size(s->dtype), state = most(64, size * (double)s->transition.rows);
    const double values = most(64, size * (double)dpcr_transition_values(&s->transition));
    return s->batch > 1 ? (2 * values + 4 * state) / batch_bytes_a_ns(s) : 0;
}

static double compose_ns(const dpcr_chain_shape *s) {
    return s->transition.structure <= DPCR_IDENTITY ? 0 : busy_ns(dpcr_transition_compose_flops(&s->transition));
}

// By spans, where no fused kernel serves.
static double spans_ns(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    const double apply = busy_ns(dpcr_transition_apply_flops(&s->transition));
    const double chunks = (double)s->length / (double)chunk, groups = most(1, chunks / DPCRI_SIDE);
    const double workers = least(threads, groups), batch = (double)s->batch;
    const double latency = latency_ns(coupled_width(&s->transition));
    const double compute = passes_of(s) * (2 * apply + compose_ns(s));
    // Passes over blocks leave the caches in between.
    const double bytes =
        dpcri_kernel_form(&s->transition) == DPCR_BLOCK ? 3 * step_bytes(s) / batch_bytes_a_ns(s) : streams_ns(s, 2);
    const double step = most(most(latency / DPCRI_SIDE, compute), most(bytes, sequences_apart_ns(s)));
    return step * (double)s->length * batch / workers + chunks * most(latency, apply * batch) + 2 * region_ns;
}

// What a second thread is sure to take of blocks' windows, which are longer than others.
static double helped(const dpcr_chain_shape *s, int threads) {
    const dpcr_transition *t = &s->transition;
    const bool alone = dpcri_windows_alone(s->length, dpcr_transition_values(t), t->rows, threads);
    return dpcri_kernel_form(t) == DPCR_BLOCK && !alone ? 1.3 : 1;
}

// Of fused kernels: a chunk a lane.
static double window_steps(const dpcr_chain_shape *s, int64_t chunk) {
    return (double)(4 << dpcri_isa_level()) / (s->dtype == DPCR_F64 ? 2 : 1) * (double)chunk;
}

static bool in_windows(const dpcr_chain_shape *s, int64_t chunk) { return window_ns(s) > 0 && chunk == fused_steps(s); }

static double chunked_ns(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    if (squares_ns(s, chunk, threads) > 0) {
        const double workers = squares_workers(s, chunk, threads);
        const double step = most(squares_ns(s, chunk, threads), sequences_apart_ns(s) * (double)s->batch / workers);
        return (workers > 1 ? 1 : 0.1) * region_ns + (double)s->length * step;
    }
    // One thread's time: what further threads add depends on the machine's load more than on the shape.
    if (in_windows(s, chunk)) {
        // A window that is not full takes what a full one does.
        const double window = window_steps(s, chunk);
        return region_ns / 10 + ceil((double)s->length / window) * window * window_ns(s) / helped(s, threads);
    }
    return spans_ns(s, chunk, threads);
}

// What a dense chain's step takes of the loop's time where chunks of the loop go side by side (eight rows of the serial
// kernels: the loop waits, they hide each other's latency). Measured on Zen 4 and, without AVX-512, on Zen 3; w = 3, 4
// and 8 on Zen 4, at every level.
static double beside_factor(const dpcr_chain_shape *s) {
    const double w = (double)s->transition.rows;
    const bool wide = dpcri_isa_level() == DPCRI_AVX512, is_float = s->dtype == DPCR_F32;
    const bool vectors = dpcri_isa_level() >= DPCRI_AVX2;
    if (is_shared() && is_float && (w < 5 || w == 8))
        return w == 1 ? 0.46 : w == 2 ? 0.57 : w == 3 ? 0.5 : w == 4 ? 0.4 : 0.78;
    if (w < 3) return wide ? 0.67 : 1;
    if (w < 5 && is_float) return !vectors ? 0.65 : w < 4 ? 0.5 : 0.42;
    if (w < 5) return vectors ? 0.7 : 1;
    if (w == 8 && is_float && vectors) return wide ? 0.55 : 0.75;
    return w == 8 && !wide ? 1.9 : 0.95;
}

// The same of blocks (kern/blocks.inc): the same blocks of eight chunks side by side, until one chunk's fill the
// vectors (w = 4 to 16, L = 2^14, Zen 5; with AVX2 w = 4 to 8, Zen 3). Blocks wider than 4 go one after another, as in
// the loop.
static double blocks_beside_factor(const dpcr_chain_shape *s) {
    static const double a_block[DPCRI_ISA_COUNT][5] = {
        {0, 0, 1, 2, 2.2}, {0, 0, 1.4, 4.2, 3.9}, {0, 0, 0.13, 1.15, 1.1}};
    const double k = (double)s->transition.block, blocks = (double)s->transition.rows / k;
    if (k > 4 || (k > 2 && blocks > 3)) return 1;
    const double size = s->dtype == DPCR_F64 ? 2 : 1;
    const double vectors = k == 2 && dpcri_isa_level() == DPCRI_AVX512 ? ceil(blocks * size / 4) : 0;
    const double step = 0.65 * vectors + blocks * size * a_block[dpcri_isa_level()][(int)k];
    return least(1, step * (double)s->length / loop_ns(s, 1));
}

// What a step's bytes take a core, beyond its second-level cache, and beyond the third; many short streams get less,
// and so do rows of a vector and more that are not added up (w = 16 to 24: bench chain --lengths 8192 --threads 1). Of
// a Zen 4's third-level cache others leave less: 2^16 steps of w = 8, 21 MB, take 10 ns each beside and 7.5 in order;
// and from memory two threads beside each other take 12 ns a step with AVX2, one 19 (2^18), where the loop takes 9.
static double beside_bytes_ns(const dpcr_chain_shape *s, int threads) {
    const double cached = (dpcri_vector_passes() > 1 ? 0.8 : is_shared() ? 1 : 1.6) * cached_bytes();
    const double w = (double)s->transition.rows, all = (double)s->length * step_bytes(s);
    if (is_shared())
        return all / threads < near_bytes() ? 0 : step_bytes(s) / (all < cached ? (w < 3 ? 20 : w < 4 ? 26 : 29) : 15);
    const bool wide_rows = w >= 16 && !s->transposed && dpcri_kernel_form(&s->transition) != DPCR_BLOCK;
    const double third = least(third_level_bytes_a_ns(w), wide_rows ? 62 : 1e3);
    const double beyond = dpcri_vector_passes() > 1 && w >= 8 && all > 2 * cached ? 18 : 28;
    return all / threads < 1e6 ? 0 : step_bytes(s) / (all < cached ? third : beyond);  // each thread reads a part
}

// Threads that find a group of chunks.
static int overlap_workers(const dpcr_chain_shape *s, double chunk, int threads) {
    return (int)least(threads, (1 + floor((double)s->length / most(chunk, 1) / DPCRI_SIDE)) * (double)s->batch);
}

// Chunks of the loop, which takes `loop` on one thread, `run_ups` times its steps.
static double overlap_ns(const dpcr_chain_shape *shape, double loop, int threads, double run_ups) {
    const double sharing = 0.8;  // a core's part where several are at work
    // Sequences fill the lanes that chunks would.
    const bool blocks = dpcri_kernel_form(&shape->transition) == DPCR_BLOCK;
    const double factor = shape->batch > 1 ? 1 : blocks ? blocks_beside_factor(shape) : beside_factor(shape);
    // Rows of elements fill a vector each way and come from the caches as the loop's do: 0.9 to 1.05 times as fast on
    // one thread (bench chain --structure diagonal --widths 2,4,16,64 --lengths 16384,65536, Zen 3 and Zen 5).
    const bool elements = dpcri_kernel_form(&shape->transition) == DPCR_DIAGONAL && shape->transition.rows > 1;
    const double step = elements ? 1.1 * loop / (double)shape->length
                                 : most(factor * loop / (double)shape->length, beside_bytes_ns(shape, threads));
    return (double)shape->length * step * run_ups / (1 + sharing * (threads - 1)) + (threads > 1 ? 2 : 0.2) * region_ns;
}

// The fused windows go among threads too, of which chunked_ns counts one; those without a window have nothing to do.
static double chunked_of_threads_ns(const dpcr_chain_shape *shape, int64_t chunk, int threads) {
    const double all = chunked_ns(shape, chunk, threads);
    if (squares_ns(shape, chunk, threads) > 0 || !in_windows(shape, chunk)) return all;
    const double windows = ceil((double)shape->length / window_steps(shape, chunk));
    const double more = (1 + 0.6 * (least(threads, windows) - 1)) / helped(shape, threads);
    return all / more;
}

static int threads_at_work(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    return squares_ns(s, chunk, threads) > 0 ? (int)squares_workers(s, chunk, threads) : threads;
}

static double levels_of(const dpcr_chain_shape *s) { return ceil(log2(most((double)s->length, 2))); }

// Levels of pcr, each a composition and an application a step, or a tree's up and down, two of each, in the place of
// chunks' passes (dense, w = 2, 2^16 steps on one thread, a Zen 5: 64 and 8 ns a step, measured 80 and 7 without what
// follows; bench/performance.sh schemes). Then all states are looked at (recheck.h): an application, and as much to
// compare.
static double levels_ns(const dpcr_chain_shape *s, bool tree, int threads) {
    const double levels = levels_of(s), apply = busy_ns(dpcr_transition_apply_flops(&s->transition));
    const double passes = dpcri_kernel_form(&s->transition) == DPCR_BLOCK ? 5.5 : passes_of(s);  // blocks by scalars
    const double look = s->dtype == DPCR_U32 ? 0 : 2 * apply;
    const double step = passes * ((tree ? 2 : levels) * (compose_ns(s) + apply) + look);
    return step * (double)s->length * (double)s->batch / threads +
           (threads > 1 ? ((tree ? 2 : 1) * levels + 1) * region_ns : 0);
}

// By the scheme of `options`, whose fields are set, on so many of this machine's threads.
static double scheme_ns(const dpcr_chain_shape *shape, const dpcr_chain_options *options, int threads) {
    const double own = (double)options->chunk, length = (double)shape->length;
    switch (options->scheme) {
        case DPCR_SCHEME_SEQUENTIAL: return loop_ns(shape, threads);
        case DPCR_SCHEME_CHUNKED: return chunked_of_threads_ns(shape, options->chunk, threads);
        case DPCR_SCHEME_PCR: return levels_ns(shape, false, threads);
        case DPCR_SCHEME_BLELLOCH: return levels_ns(shape, true, threads);
        case DPCR_SCHEME_OVERLAP:
            return own >= length ? loop_ns(shape, threads)
                                 : overlap_ns(shape, loop_ns(shape, 1), overlap_workers(shape, own, threads),
                                              1 + (double)options->warm_up / most(own, 1));
        default: return 0;
    }
}

// ---- where the chain runs ----

dpcri_chain_place dpcri_chain_place_of(dpcr_context *context) {
    const int threads = dpcr_context_threads(context);
    dpcri_chain_place place = {.threads = threads, .have = threads, .described = dpcri_is_described(context, NULL)};
    if (!place.described) return place;
    dpcri_rates_here(context, &place.here);
    dpcri_rates_of(context, &place.there);
    place.threads = (int)most(1, least(floor(place.there.threads), 1e9));
    return place;
}

static bool is_fused(const dpcr_chain_shape *s, int64_t chunk, int threads) {
    return squares_ns(s, chunk, threads) > 0 || in_windows(s, chunk);
}

// Regions of a scheme, each of which waits for all threads.
static double regions_of(const dpcr_chain_shape *s, const dpcr_chain_options *o, int threads) {
    if (threads < 2) return 0;
    switch (o->scheme) {
        case DPCR_SCHEME_SEQUENTIAL: return s->batch > 1 ? 1 : 0;
        case DPCR_SCHEME_CHUNKED: return is_fused(s, o->chunk, threads) ? 1 : 2;
        case DPCR_SCHEME_PCR: return levels_of(s) + 1;
        case DPCR_SCHEME_BLELLOCH: return 2 * levels_of(s) + 1;
        default: return 2;
    }
}

// Those that scheme_ns counts.
static double regions_counted(const dpcr_chain_shape *s, const dpcr_chain_options *o, int threads) {
    const bool small =
        o->scheme == DPCR_SCHEME_SEQUENTIAL ||
        (o->scheme == DPCR_SCHEME_CHUNKED && squares_ns(s, o->chunk, threads) == 0 && in_windows(s, o->chunk));
    return small ? 0 : regions_of(s, o, threads);
}

// What waits for one another, however many threads there are: a chunk's two passes and the chunks' ends; a run-up and
// a chunk.
static double depth_ns(const dpcr_chain_shape *s, const dpcr_chain_options *o) {
    const double length = (double)s->length, chunk = least(most((double)o->chunk, 1), length);
    const double mixed = latency_ns(coupled_width(&s->transition));
    switch (o->scheme) {
        case DPCR_SCHEME_SEQUENTIAL: return length * loop_wait_ns(s);
        case DPCR_SCHEME_CHUNKED: return (2 * chunk + length / chunk) * mixed;
        case DPCR_SCHEME_OVERLAP: return least(length, chunk + (double)o->warm_up) * loop_wait_ns(s);
        default: return 0;
    }
}

// Passes over all arrays.
static double passes_over(const dpcr_chain_shape *s, const dpcr_chain_options *o, int threads) {
    switch (o->scheme) {
        case DPCR_SCHEME_CHUNKED: return is_fused(s, o->chunk, threads) ? 1 : 2;
        case DPCR_SCHEME_PCR: return levels_of(s) + 1;
        case DPCR_SCHEME_BLELLOCH: return 5;
        case DPCR_SCHEME_OVERLAP: return 1 + (double)o->warm_up / most((double)o->chunk, 1);
        default: return 1;
    }
}

// What all bytes take of the memory, where the last cache does not hold them; 0 where its rate is not known.
static double far_ns(const dpcr_chain_shape *s, const dpcr_chain_options *o, const dpcri_chain_place *p) {
    const double all = (double)s->length * (double)s->batch * step_bytes(s), last = p->there.cache_bytes[2];
    if (!(p->there.bandwidth > 0) || all <= (last > 0 ? last : cached_bytes())) return 0;
    return 1e9 * passes_over(s, o, p->threads) * all / p->there.bandwidth;
}

// What this machine's kernels would take there: what waits goes by the latency of a multiply-add, what is busy by
// their rate, regions as they are told and by a tree beyond the threads that were measured.
static double there_ns(const dpcr_chain_shape *s, const dpcr_chain_options *o, const dpcri_chain_place *p) {
    const double own = scheme_ns(s, o, p->threads), depth = depth_ns(s, o);
    const double wait = p->there.latency / p->here.latency, work = p->here.flops / p->there.flops;
    const bool waits = o->scheme == DPCR_SCHEME_SEQUENTIAL && own <= depth;
    const double counted = least(region_ns * regions_counted(s, o, p->threads), own);
    const double others = region_ns * (regions_of(s, o, p->threads) - regions_counted(s, o, p->threads));
    const double tree = most(1, log2(most(2, p->threads)) / log2(most(2, p->have)));
    const double here = most(p->here.region, DPCRI_LEAST_REGION);  // of one thread none was measured
    const double handing = tree * (p->there.region == p->here.region ? here : p->there.region) / here;
    return most((own - counted) * (waits ? wait : work), depth * wait) + handing * counted +
           most(handing - 1, 0) * others;
}

static double at_ns(const dpcr_chain_shape *s, const dpcr_chain_options *options, const dpcri_chain_place *p) {
    dpcr_chain_options o = *options;
    if (s->length == 0 || s->batch == 0) return 0;
    if (o.scheme == DPCR_SCHEME_OVERLAP && o.chunk >= s->length) o.scheme = DPCR_SCHEME_SEQUENTIAL;
    return most(p->described ? there_ns(s, &o, p) : scheme_ns(s, &o, p->threads), far_ns(s, &o, p));
}

double dpcri_chain_seconds(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_options *options,
                           const dpcri_chain_place *place) {
    dpcri_chain_place known = *place;
    if (!known.described && !dpcri_rates_known(context, &known.there)) known.there.bandwidth = 0;
    return 1e-9 * at_ns(shape, options, &known);
}

// ---- the choice ----

dpcr_scheme dpcri_chain_auto(const dpcr_chain_shape *shape, int64_t chunk, const dpcri_chain_place *place,
                             char *sentence, size_t bytes) {
    const int threads = place->threads;
    const dpcr_chain_options in_order = {.scheme = DPCR_SCHEME_SEQUENTIAL, .chunk = chunk};
    const dpcr_chain_options in_chunks = {.scheme = DPCR_SCHEME_CHUNKED, .chunk = chunk};
    // Here a second thread's part of fused windows depends on the machine's load more than on the shape.
    const bool there = place->described;
    const double loop = there ? at_ns(shape, &in_order, place) : loop_ns(shape, threads);
    const double chunks = there ? at_ns(shape, &in_chunks, place) : chunked_ns(shape, chunk, threads);
    // A model's doubt goes to the loop, and more of it where others on the machine share the cache, for windows are
    // many streams, and no second thread makes up for it (nor does one where a step is soon done).
    const bool fused = window_ns(shape) > 0 || squares_ns(shape, chunk, threads) > 0;
    const bool soon = dpcri_kernel_form(&shape->transition) == DPCR_DIAGONAL && shape->transition.rows > 2;
    const bool shared = fused && (threads < 2 || soon) && (double)shape->length * step_bytes(shape) > 8e6;
    const double doubt = shared ? 0.7 : 0.8;
    const bool by_chunks = shape->length > 2 * chunk && chunks < doubt * loop;
    if (by_chunks)
        snprintf(sentence, bytes, "chunked: about %.3g us on %d threads in chunks of %lld, the loop about %.3g us",
                 chunks / 1e3, threads_at_work(shape, chunk, threads), (long long)chunk, loop / 1e3);
    else
        snprintf(sentence, bytes, "sequential: chunked would take about %.3g us on %d threads, the loop about %.3g us",
                 chunks / 1e3, threads_at_work(shape, chunk, threads), loop / 1e3);
    return by_chunks ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL;
}

bool dpcri_chain_spans_pay(const dpcr_chain_shape *shape, bool shared, int64_t chunk, int threads) {
    const int64_t w = shape->transition.rows;
    // M is formed once: dense chains of w = 1 to 4 take 1.17, 2.3, 2.4 and 1.8 ns a step on one thread, the loop 0.95,
    // 1.8, 2.6 and 3.0 (2^14 steps, Zen 5).
    if (shared && (w == 1 || dpcri_kernel_form(&shape->transition) == DPCR_DENSE)) return threads > 1 || w > 2;
    return spans_ns(shape, chunk, threads) < 0.8 * loop_ns(shape, threads);
}

double dpcri_chain_overlap_gain(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk,
                                const dpcri_chain_place *place, double run_ups) {
    const dpcr_chain_options taken = {.scheme = chosen, .chunk = chunk};
    const double loop = loop_ns(shape, 1);
    double overlap = overlap_ns(shape, loop, place->threads, run_ups);
    double other = chosen == DPCR_SCHEME_CHUNKED ? chunked_of_threads_ns(shape, chunk, place->threads) : loop;
    if (place->described) {
        overlap = most(overlap * place->here.flops / place->there.flops, run_ups * far_ns(shape, &taken, place));
        other = at_ns(shape, &taken, place);
    }
    return other - overlap > 0.2 * other ? 1e-9 * (other - overlap) : 0;
}

// ---- over ranks ----

// What n steps' numbers take from memory, where the rank's caches do not hold them: transitions and b read, z written.
static double memory_ns(const dpcr_chain_shape *s, const dpcr_ranks_model *m, double n, bool writes) {
    const double state = (double)s->transition.rows;
    const double step = (double)dpcr_dtype_size(s->dtype) * (double)s->batch *
                        ((double)dpcr_transition_values(&s->transition) + (writes ? 2 : 1) * state);
    return n * step <= m->cache ? 0 : 1e9 * n * step / m->memory;
}

// A pass over n steps of all sequences in chunks side by side, with the products or without.
static double pass_ns(const dpcr_chain_shape *s, const dpcr_ranks_model *m, double n, bool products) {
    const double apply = busy_ns(dpcr_transition_apply_flops(&s->transition)), batch = (double)s->batch;
    // Wide products are what busy_ns says; only narrow ones are mostly calls.
    const double calls = s->transition.rows > 8 && dpcri_kernel_form(&s->transition) == DPCR_DENSE ? 1 : passes_of(s);
    const bool fused =
        products && batch == 1 && !s->transposed &&
        dpcri_summary_at(dpcri_isa_level(), s->dtype, dpcri_kernel_form(&s->transition), s->transition.rows, false);
    const double step =
        fused ? (s->transition.rows == 4 ? 2.3 : 9.5) : calls * (apply + (products ? compose_ns(s) : 0));
    // The products are a pass of their own over the transitions.
    return most(n * batch * most(latency_ns(coupled_width(&s->transition)) / DPCRI_SIDE, step),
                (products ? 2 : 1) * memory_ns(s, m, n, !products));
}

static double loop_of(const dpcr_chain_shape *s, const dpcr_ranks_model *m) {
    return 1e-9 * most(loop_ns(s, 1), memory_ns(s, m, (double)s->length, true));
}

static double message_bytes(const dpcr_chain_shape *s) {
    return (double)dpcr_dtype_size(s->dtype) * (double)s->batch *
           (double)(dpcr_transition_values(&s->transition) + s->transition.rows);
}

static void predict(const dpcr_chain_shape *shape, dpcr_ranks_model *m) {
    const double P = (double)m->ranks, n = (double)shape->length / P, batch = (double)shape->batch;
    const double turns = m->cores > 0 ? most(1, P / (double)m->cores) : 1;
    const double busy = m->cores > 0 ? most(1, (P - 1) / (double)m->cores) : 1;  // the first rank is done early
    dpcr_chain_shape part = *shape;
    double rounds = 0;
    while (ldexp(1, (int)rounds) < P) rounds++;
    m->loop = loop_of(shape, m);
    part.length = (int64_t)n;
    const double own = loop_of(&part, m);
    const double apply = busy_ns(dpcr_transition_apply_flops(&shape->transition));
    const double round = m->latency + message_bytes(shape) / m->bandwidth + 2e-9 * batch * (apply + compose_ns(shape));
    m->reduce = m->scan = m->apply = 0;
    if (m->ranks == 1) {
        m->reduce = m->loop;
    } else if (m->ranks == 2) {  // one after the other
        m->reduce = m->apply = own;
        m->scan = round;
    } else {
        m->reduce = busy * most(own, 1e-9 * pass_ns(shape, m, n, true));
        m->scan = rounds * round;
        m->apply = busy * 1e-9 * pass_ns(shape, m, n, false);
    }
    m->distributed = m->reduce + m->scan + m->apply;
    const double before = m->ranks > 1 ? (double)m->warm_up : 0;
    m->overlap = m->ranks == 1 ? m->loop : turns * own * (1 + before / most(n, 1)) + 3 * m->latency;
}

dpcr_status dpcr_chain_predict(const dpcr_chain_shape *shape, dpcr_ranks_model *model, dpcr_error *error) {
    if (!shape || !model || model->size < sizeof *model || shape->length < 0 || shape->batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "chain_predict: wanted a shape, and a model with its size set");
    const dpcr_status status = dpcr_transition_check(&shape->transition, error);
    if (status != DPCR_OK) return status;
    if (model->ranks < 1 || model->cores < 0 || !(model->latency >= 0) || !(model->bandwidth >= 0) ||
        !(model->memory >= 0) || !(model->cache >= 0) || model->warm_up < 0 || dpcr_dtype_size(shape->dtype) == 0 ||
        !(dpcr_transition_capabilities(&shape->transition) & DPCR_CAN_COMPOSE))
        return dpcri_fail(
            error, DPCR_ERROR_ARGUMENT,
            "chain_predict: wanted 1 or more ranks, nothing negative, a known dtype, and transitions that "
            "compose");
    if (model->latency == 0) model->latency = 2e-6;
    if (model->bandwidth == 0) model->bandwidth = 1e10;
    if (model->memory == 0) model->memory = 1e10;
    if (model->cache == 0) model->cache = 3e7;
    if (model->warm_up == 0) model->warm_up = 64;
    predict(shape, model);
    return DPCR_OK;
}
