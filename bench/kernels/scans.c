// SPDX-License-Identifier: MIT
// Kernels of selective scans (selective.h) and of linear attention (attention.h).
#include <math.h>

#include "kern/attention.h"
#include "kern/selective.h"
#include "kernels.h"

static void *scratch_of(work *w, size_t forward, size_t back) {
    return room(w, (int64_t)(forward > back ? forward : back) / 4 + 1);
}

// ---- selective scans: `rows` channels of `width` states, LENGTH steps ----

enum { LENGTH = 64, TILES = LENGTH / DPCRI_SELECTIVE_TILE };

typedef struct selective_call {
    const dpcri_selective_kernels *kernels;
    dpcri_selective_run run;
} selective_call;

static void run_selective(void *argument) {
    const selective_call *c = argument;
    c->kernels->forward_begin(&c->run);
    c->kernels->forward(&c->run, 0, TILES);
    c->kernels->forward_end(&c->run);
}

static void run_selective_back(void *argument) {
    const selective_call *c = argument;
    c->kernels->adjoint_begin(&c->run);
    c->kernels->adjoint(&c->run, 0, TILES);
    c->kernels->adjoint_end(&c->run);
}

static dpcri_selective_array by_step(void *data) { return (dpcri_selective_array){data, LENGTH, 1}; }
static dpcri_selective_array by_state(void *data, int64_t states) { return (dpcri_selective_array){data, states, 1}; }

static selective_call selective_of(work *w) {
    const int64_t channels = w->rows, states = w->width;
    selective_call c = {.kernels = dpcri_selective_kernels_at(w->level, w->dtype)};
    const int64_t lanes = c.kernels->lanes, blocks = (channels + lanes - 1) / lanes;
    void *a = draw(w, channels * states, 1);  // negative: the states forget
    for (int64_t i = 0; i < channels * states; i++) put(w->dtype, a, i, -1 - get(w->dtype, a, i));
    c.run = (dpcri_selective_run){.channels = channels,
                                  .width = lanes < channels ? lanes : channels,
                                  .states = states,
                                  .length = LENGTH,
                                  .softplus = true,
                                  .u = by_step(draw(w, channels * LENGTH, 1)),
                                  .delta = by_step(draw(w, channels * LENGTH, 1)),
                                  .z = by_step(draw(w, channels * LENGTH, 1)),
                                  .a = by_state(a, states),
                                  .skip = {draw(w, channels, 1), 1, 0},
                                  .bias = {draw(w, channels, 1), 1, 0},
                                  .h0 = by_state(draw(w, channels * states, 1), states),
                                  .b = {draw(w, states * LENGTH, 1), 0, LENGTH, 1, 0, 0},
                                  .c = {draw(w, states * LENGTH, 1), 0, LENGTH, 1, 0, 0}};
    c.run.scratch =
        scratch_of(w, c.kernels->forward_bytes(blocks, states, false), c.kernels->adjoint_bytes(blocks, states, false));
    c.run.kept = room(w, blocks * TILES * states * lanes);
    return c;
}

static void selective(work *w) {
    const int64_t channels = w->rows, states = w->width;
    selective_call c = selective_of(w);
    c.run.y = by_step(comes_out(w, channels * LENGTH, 1));
    c.run.last = by_state(comes_out(w, channels * states, 1), states);
    const double all = (double)(channels * LENGTH), N = (double)states;
    runs(w, run_selective, &c, (cost){all, all * (N * (FUNCTION + 6) + 2 * FUNCTION), 4 * all + 2 * LENGTH * N});
}

static void selective_back(work *w) {
    const int64_t channels = w->rows, states = w->width;
    selective_call c = selective_of(w);
    run_selective(&c);  // the states before every tile
    c.run.gy = by_step(draw(w, channels * LENGTH, 1)), c.run.glast = by_state(draw(w, channels * states, 1), states);
    c.run.gu = by_step(comes_out(w, channels * LENGTH, 1)), c.run.gdelta = by_step(comes_out(w, channels * LENGTH, 1));
    c.run.gz = by_step(comes_out(w, channels * LENGTH, 1));
    c.run.ga = by_state(comes_out(w, channels * states, 1), states);
    c.run.gskip = (dpcri_selective_array){comes_out(w, channels, 1), 1, 0};
    c.run.gbias = (dpcri_selective_array){comes_out(w, channels, 1), 1, 0};
    c.run.gh0 = by_state(comes_out(w, channels * states, 1), states);
    c.run.gb = (dpcri_selective_shared){comes_out(w, states * LENGTH, 1), 0, 1, states, 0, 0};
    c.run.gc = (dpcri_selective_shared){comes_out(w, states * LENGTH, 1), 0, 1, states, 0, 0};
    const double all = (double)(channels * LENGTH), N = (double)states;
    runs(w, run_selective_back, &c, (cost){all, all * (N * (FUNCTION + 20) + 3 * FUNCTION), 7 * all + 4 * LENGTH * N});
}

// ---- linear attention: one head with keys and values of `width`, STEPS steps ----

enum {
    STEPS = 2 * DPCRI_ATTENTION_CHUNK * DPCRI_ATTENTION_WINDOW,
    WINDOWS = STEPS / (DPCRI_ATTENTION_CHUNK * DPCRI_ATTENTION_WINDOW)
};

typedef struct attention_call {
    const dpcri_attention_kernels *kernels;
    dpcri_attention_run run;
} attention_call;

static void run_attention(void *argument) {
    const attention_call *c = argument;
    c->kernels->forward_begin(&c->run);
    c->kernels->forward(&c->run, 0, WINDOWS);
    c->kernels->forward_end(&c->run);
}

static void run_attention_back(void *argument) {
    const attention_call *c = argument;
    c->kernels->adjoint_begin(&c->run);
    c->kernels->adjoint(&c->run, 0, WINDOWS);
    c->kernels->adjoint_end(&c->run);
}

static dpcri_attention_array rows_of(void *data, int64_t numbers) { return (dpcri_attention_array){data, numbers, 1}; }

static attention_call attention_of(work *w, bool by_row) {
    const int64_t n = w->width;
    attention_call c = {.kernels = dpcri_attention_kernels_at(w->level, w->dtype)};
    void *decay = draw(w, STEPS * n, 0.25), *beta = draw(w, STEPS, 0.5);
    for (int64_t i = 0; i < STEPS * n; i++) put(w->dtype, decay, i, -0.25 - get(w->dtype, decay, i));
    for (int64_t i = 0; i < STEPS; i++) put(w->dtype, beta, i, 0.5 + get(w->dtype, beta, i));
    c.run = (dpcri_attention_run){.keys = n,
                                  .values = n,
                                  .length = STEPS,
                                  .scale = 0.125,
                                  .by_row = by_row,
                                  .q = rows_of(draw(w, STEPS * n, 1), n),
                                  .k = rows_of(draw(w, STEPS * n, 1.7 / sqrt((double)n)), n),  // about of length 1
                                  .v = rows_of(draw(w, STEPS * n, 1), n),
                                  .g = rows_of(decay, by_row ? n : 1),
                                  .beta = {beta, 1, 0},
                                  .s0 = rows_of(draw(w, n * n, 1), n),
                                  .kept_step = c.kernels->state_numbers(n, n)};
    c.run.scratch = scratch_of(w, c.kernels->forward_bytes(n, n), c.kernels->adjoint_bytes(n, n));
    c.run.kept = room(w, WINDOWS * c.run.kept_step);
    return c;
}

static void attention_forward(work *w, bool by_row) {
    const int64_t n = w->width;
    attention_call c = attention_of(w, by_row);
    c.run.o = rows_of(comes_out(w, STEPS * n, 1), n), c.run.last = rows_of(comes_out(w, n * n, 1), n);
    const double N = (double)n, read = 3 * N + (by_row ? N : 1) + 1;
    runs(w, run_attention, &c, (cost){STEPS, STEPS * 8 * N * N, STEPS * (read + N) + 2 * N * N});
}
static void attention(work *w) { attention_forward(w, false); }
static void attention_by_row(work *w) { attention_forward(w, true); }

static void attention_adjoint(work *w, bool by_row) {
    const int64_t n = w->width;
    attention_call c = attention_of(w, by_row);
    run_attention(&c);  // the states before every window
    c.run.go = rows_of(draw(w, STEPS * n, 1), n), c.run.glast = rows_of(draw(w, n * n, 1), n);
    c.run.gq = rows_of(comes_out(w, STEPS * n, 1), n), c.run.gk = rows_of(comes_out(w, STEPS * n, 1), n);
    c.run.gv = rows_of(comes_out(w, STEPS * n, 1), n);
    c.run.gg = rows_of(comes_out(w, STEPS * (by_row ? n : 1), 1), by_row ? n : 1);
    c.run.gbeta = (dpcri_attention_array){comes_out(w, STEPS, 1), 1, 0};
    c.run.gs0 = rows_of(comes_out(w, n * n, 1), n);
    const double N = (double)n, read = 4 * N + (by_row ? N : 1) + 1;
    runs(w, run_attention_back, &c, (cost){STEPS, STEPS * 24 * N * N, STEPS * (2 * read - N) + 3 * N * N});
}
static void attention_back(work *w) { attention_adjoint(w, false); }
static void attention_by_row_back(work *w) { attention_adjoint(w, true); }

void show_scans(dpcri_isa level, dpcr_dtype dtype) {
    enum { CHANNELS = 64, STATES = 16 };
    const kernel_line lines[] = {
        {"selective", STATES, CHANNELS, FUNCTION_ERROR, selective},
        {"selective_back", STATES, CHANNELS, FUNCTION_ERROR, selective_back},
        {"attention", 64, 1, FUNCTION_ERROR, attention},
        {"attention_by_row", 64, 1, FUNCTION_ERROR, attention_by_row},
        {"attention_back", 64, 1, FUNCTION_ERROR, attention_back},
        {"attention_by_row_back", 64, 1, FUNCTION_ERROR, attention_by_row_back},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) show(&lines[i], level, dtype);
}
