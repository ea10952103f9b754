// SPDX-License-Identifier: MIT
// Recurrent networks at work in tests: a network, its plan and all its arrays, which begin as NaN where they are
// scratch.
#ifndef TESTS_RECURRENT_JOB_H
#define TESTS_RECURRENT_JOB_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deeppcr/data.h"
#include "deeppcr/recurrent.h"

static inline dpcr_context *make_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// ---- a network at work, with all its arrays ----

typedef struct job {
    dpcr_recurrent *network;
    dpcr_recurrent_plan *plan;
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    int64_t lengths[16];
    void *tape, *workspace;
    size_t bytes;
} job;

static inline double get(const dpcr_array *a, int64_t i) {
    return a->dtype == DPCR_F64 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}

static inline void put(const dpcr_array *a, int64_t i, double value) {
    if (a->dtype == DPCR_F64)
        ((double *)a->data)[i] = value;
    else
        ((float *)a->data)[i] = (float)value;
}

static inline int64_t count_of(const dpcr_array *a) {
    int64_t count = 1;
    for (int32_t d = 0; d < a->ndim; d++) count *= a->shape[d];
    return count;
}

static inline dpcr_array make(dpcr_dtype dtype, int64_t a, int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    void *data = calloc((size_t)(a * b * c) + 1, 8);
    assert_non_null(data);
    return dpcr_array_make(data, dtype, 3, shape);
}

static inline dpcr_array alike(const dpcr_array *a) {
    return a->data ? make(a->dtype, a->shape[0], a->shape[1], a->shape[2]) : (dpcr_array){0};
}

static inline void open_plan(job *j, dpcr_solve_options solve, bool training) {
    dpcr_error error = {0};
    const dpcr_recurrent_plan_options options = {.size = sizeof options,
                                                 .length = j->pass.x.shape[0],
                                                 .batch = j->pass.x.shape[1],
                                                 .training = training,
                                                 .packed = j->pass.lengths != NULL,
                                                 .solve = solve,
                                                 .sample = &j->pass};
    if (dpcr_recurrent_plan_create(j->network, &options, &j->plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    j->bytes = dpcr_recurrent_plan_workspace(j->plan);
    j->workspace = aligned_alloc(64, (j->bytes + 127) / 64 * 64);
    j->tape = aligned_alloc(64, (dpcr_recurrent_plan_tape(j->plan) + 127) / 64 * 64);
    memset(j->workspace, 0xff, j->bytes);  // NaN: nothing may be read before it is written
    memset(j->tape, 0xff, dpcr_recurrent_plan_tape(j->plan));
}

static inline void close_plan(job *j) {
    dpcr_recurrent_plan_destroy(j->plan);
    free(j->workspace);
    free(j->tape);
}

static inline void forward(job *j) {
    dpcr_error error = {0};
    if (dpcr_recurrent_execute(j->plan, &j->pass, j->tape, j->workspace, j->bytes, NULL, &error) != DPCR_OK)
        fail_msg("%s", error.text);
}

static inline void backward(job *j) {
    dpcr_error error = {0};
    dpcr_recurrent_zero_gradients(j->network);
    if (dpcr_recurrent_backward(j->plan, &j->pass, &j->gradients, j->tape, j->workspace, j->bytes, NULL, &error) !=
        DPCR_OK)
        fail_msg("%s", error.text);
}

static inline void free_pass(job *j) {
    dpcr_array *const all[] = {&j->pass.x,       &j->pass.h0,     &j->pass.c0,      &j->pass.y,
                               &j->pass.ht,      &j->pass.ct,     &j->gradients.y,  &j->gradients.ht,
                               &j->gradients.ct, &j->gradients.x, &j->gradients.h0, &j->gradients.c0};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->data);
}

// ---- random networks ----

static const dpcr_recurrent_kind kinds[] = {DPCR_RNN_TANH, DPCR_RNN_RELU, DPCR_GRU,   DPCR_LSTM,
                                            DPCR_PARAGRU,  DPCR_PARALSTM, DPCR_MINGRU};

// And their variants.
enum { CELLS = 13 };
static inline dpcr_recurrent_options cell_of(size_t k, int64_t inputs, int64_t hidden) {
    static const dpcr_recurrent_options cells[CELLS] = {
        {.kind = DPCR_RNN_TANH},
        {.kind = DPCR_RNN_RELU},
        {.kind = DPCR_GRU},
        {.kind = DPCR_LSTM},
        {.kind = DPCR_LSTM, .projection = 5},
        {.kind = DPCR_GRU, .reset_before = 1},
        {.kind = DPCR_GRU, .clip = 0.25},
        {.kind = DPCR_RNN_TANH, .clip = 0.25},
        {.kind = DPCR_LSTM, .peepholes = 1, .input_forget = 1},
        {.kind = DPCR_LSTM, .peepholes = 1, .projection = 3, .clip = 0.25},
        {.kind = DPCR_PARAGRU},
        {.kind = DPCR_PARALSTM},
        {.kind = DPCR_MINGRU},
    };
    dpcr_recurrent_options options = cells[k];
    options.inputs = inputs;
    options.hidden = hidden;
    return options;
}

static inline void fill(const dpcr_array *a, unsigned seed) {
    uint64_t s = 0x9e3779b97f4a7c15u * (seed + 1);
    for (int64_t i = 0; i < count_of(a); i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        put(a, i, (double)(s >> 40) / (1 << 23) - 1);
    }
}

static inline job random_job(dpcr_context *context, dpcr_recurrent_options options, int64_t T, int64_t B) {
    job j = {0};
    dpcr_error error = {0};
    options.size = sizeof options;
    if (dpcr_recurrent_create(context, &options, &j.network, &error) != DPCR_OK) fail_msg("%s", error.text);
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(j.network);
    const int64_t D = o->bidirectional ? 2 : 1, N = o->layers * D, C = o->hidden;
    const int64_t H = o->projection ? o->projection : o->hidden;
    const dpcr_array none = {0};
    const bool lstm = dpcr_recurrent_kind_has_cell(o->kind);
    j.pass = (dpcr_recurrent_pass){.size = sizeof j.pass,
                                   .x = make(o->dtype, T, B, o->inputs),
                                   .h0 = make(o->dtype, N, B, H),
                                   .c0 = lstm ? make(o->dtype, N, B, C) : none,
                                   .y = make(o->dtype, T, B, D * H),
                                   .ht = make(o->dtype, N, B, H),
                                   .ct = lstm ? make(o->dtype, N, B, C) : none};
    j.gradients = (dpcr_recurrent_gradients){
        .size = sizeof j.gradients, .y = alike(&j.pass.y), .x = alike(&j.pass.x), .h0 = alike(&j.pass.h0)};
    fill(&j.pass.x, 1), fill(&j.pass.h0, 2), fill(&j.gradients.y, 3);
    if (lstm) fill(&j.pass.c0, 4);
    return j;
}

static const dpcr_solve_options the_loop = {
    .size = sizeof(dpcr_solve_options), .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};

#endif
