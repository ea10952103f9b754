// SPDX-License-Identifier: MIT
// instructions CASE...: runs each hot path once, in a function of its own (`measured`), so that callgrind can count
// what it executes (tests/instructions.sh). Prints the case and the steps that the count is to be divided by. One
// thread, through the public interface; a case is a row of the table at the end.
#include <deeppcr/deeppcr.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4096 };

static void *numbers(int64_t count, float scale) {
    float *x = aligned_alloc(64, (size_t)(count + 16) / 16 * 64);
    uint32_t state = 12345;
    for (int64_t i = 0; x && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = scale * ((float)(state >> 8) / 8388608.0f - 1);
    }
    return x;
}

static void ensure(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    fprintf(stderr, "instructions: %s\n", error->text);
    exit(1);
}

typedef struct work {
    dpcr_context *context;
    dpcr_chain_plan *chain;
    dpcr_solve_plan *solve;
    dpcr_recurrent_plan *recurrent;
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    void *tape;
    dpcr_selective selective;
    dpcr_attention attention;
    dpcr_filter *filter;
    bool backward;
    dpcr_array a, b, z0, z;
    dpcr_model *model;
    void *workspace;
    size_t bytes;
    dpcr_error error;
} work;

__attribute__((noinline)) void measured(work *w);
void measured(work *w) {
    if (w->chain)
        ensure(dpcr_chain_execute(w->chain, &w->a, &w->b, NULL, &w->z, w->workspace, w->bytes, NULL, &w->error),
               &w->error);
    else if (w->recurrent && w->backward)
        ensure(dpcr_recurrent_backward(w->recurrent, &w->pass, &w->gradients, w->tape, w->workspace, w->bytes, NULL,
                                       &w->error),
               &w->error);
    else if (w->recurrent)
        ensure(dpcr_recurrent_execute(w->recurrent, &w->pass, w->tape, w->workspace, w->bytes, NULL, &w->error),
               &w->error);
    else if (w->selective.size)
        ensure(dpcr_selective_scan(w->context, &w->selective, &w->z, NULL, NULL, &w->error), &w->error);
    else if (w->attention.size)
        ensure(dpcr_attention_scan(w->context, &w->attention, &w->z, NULL, NULL, &w->error), &w->error);
    else if (w->filter)
        ensure(dpcr_filter_execute(w->filter, &w->b, NULL, &w->z, NULL, &w->error), &w->error);
    else if (w->backward)
        ensure(dpcr_solve_backward(w->solve, &w->z0, &w->z, NULL, NULL, &w->b, NULL, NULL, w->workspace, w->bytes, NULL,
                                   &w->error),
               &w->error);
    else
        ensure(dpcr_solve_execute(w->solve, &w->z0, &w->z, NULL, w->workspace, w->bytes, NULL, &w->error), &w->error);
}

static void *workspace(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static void linear(work *w, dpcr_structure structure, int64_t width, dpcr_scheme scheme, int transposed) {
    enum { BLOCK = 2 };
    const dpcr_transition t = dpcr_transition_square(structure, width, BLOCK);
    const int64_t values = dpcr_transition_values(&t);
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = STEPS,
                                    .batch = 1,
                                    .transition = t,
                                    .dtype = DPCR_F32,
                                    .transposed = transposed};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    ensure(dpcr_chain_plan_create(w->context, &shape, &options, &w->chain, &w->error), &w->error);
    w->a =
        dpcr_array_make(numbers(STEPS * values, 0.9f / (float)width), DPCR_F32, 3, (const int64_t[]){STEPS, 1, values});
    w->b = dpcr_array_make(numbers(STEPS * width, 1), DPCR_F32, 3, (const int64_t[]){STEPS, 1, width});
    w->z = dpcr_array_make(numbers(STEPS * width, 0), DPCR_F32, 3, (const int64_t[]){STEPS, 1, width});
    w->bytes = dpcr_chain_plan_workspace(w->chain);
    w->workspace = workspace(w->bytes);
}

static void plan_solve(work *w, const dpcr_steps *steps, dpcr_method method, dpcr_scheme backward) {
    const dpcr_solve_options options = {
        .size = sizeof options, .method = method, .backward = backward, .atol = -1, .rtol = -1, .warm_up = 48};
    ensure(dpcr_solve_plan_create(w->context, steps, &options, &w->solve, &w->error), &w->error);
    w->z0 = dpcr_array_make(numbers(steps->batch * steps->width, 1), DPCR_F32, 2,
                            (const int64_t[]){steps->batch, steps->width});
    w->b = dpcr_array_make(numbers(steps->batch * steps->width, 1), DPCR_F32, 2,
                           (const int64_t[]){steps->batch, steps->width});
    w->z = dpcr_array_make(numbers(steps->length * steps->batch * steps->width, 1), DPCR_F32, 3,
                           (const int64_t[]){steps->length, steps->batch, steps->width});
    w->bytes = dpcr_solve_plan_workspace(w->solve);
    w->workspace = workspace(w->bytes);
}

static void network(work *w, int64_t width, int64_t layers, int64_t batch, dpcr_method method, dpcr_scheme backward,
                    bool measures_backward) {
    const dpcr_model_options options = {.size = sizeof options,
                                        .architecture = DPCR_MLP,
                                        .layers = layers,
                                        .width = width,
                                        .activation = DPCR_ACT_TANH,
                                        .dtype = DPCR_F32,
                                        .seed = 1};
    dpcr_steps steps = {.size = sizeof steps};
    ensure(dpcr_model_create(w->context, &options, &w->model, &w->error), &w->error);
    ensure(dpcr_model_steps(w->model, batch, &steps, &w->error), &w->error);
    plan_solve(w, &steps, method, backward);
    w->backward = measures_backward;
}

// A layer by the loop; what goes back is for all gradients.
static void recurrent(work *w, dpcr_recurrent_kind kind, int64_t width, int64_t length, int64_t batch,
                      bool measures_backward) {
    const dpcr_recurrent_options options = {
        .size = sizeof options, .kind = kind, .inputs = width, .hidden = width, .dtype = DPCR_F32, .seed = 1};
    const dpcr_recurrent_plan_options plan = {
        .size = sizeof plan, .length = length, .batch = batch, .training = measures_backward};
    const int64_t shape[3] = {length, batch, width};
    const int64_t count = length * batch * width;
    dpcr_recurrent *network;
    ensure(dpcr_recurrent_create(w->context, &options, &network, &w->error), &w->error);
    ensure(dpcr_recurrent_plan_create(network, &plan, &w->recurrent, &w->error), &w->error);
    w->pass = (dpcr_recurrent_pass){.size = sizeof w->pass,
                                    .x = dpcr_array_make(numbers(count, 1), DPCR_F32, 3, shape),
                                    .y = dpcr_array_make(numbers(count, 0), DPCR_F32, 3, shape)};
    w->gradients = (dpcr_recurrent_gradients){.size = sizeof w->gradients,
                                              .y = dpcr_array_make(numbers(count, 1), DPCR_F32, 3, shape),
                                              .x = dpcr_array_make(numbers(count, 0), DPCR_F32, 3, shape)};
    w->bytes = dpcr_recurrent_plan_workspace(w->recurrent);
    w->workspace = workspace(w->bytes);
    w->tape = measures_backward ? workspace(dpcr_recurrent_plan_tape(w->recurrent)) : NULL;
    if (measures_backward)
        ensure(dpcr_recurrent_execute(w->recurrent, &w->pass, w->tape, w->workspace, w->bytes, NULL, &w->error),
               &w->error);
    w->backward = measures_backward;
}

static const dpcr_array *array(int32_t dimensions, const int64_t *shape, float scale) {
    int64_t count = 1;
    dpcr_array *made = malloc(sizeof *made);
    for (int32_t d = 0; d < dimensions; d++) count *= shape[d];
    if (!made) exit(1);
    *made = dpcr_array_make(numbers(count, scale), DPCR_F32, dimensions, shape);
    return made;
}

// Mamba's: a rate for each of the states.
static void selective(work *w, int64_t channels, int64_t states, int64_t length) {
    const int64_t u[] = {1, channels, length}, a[] = {channels, states}, b[] = {1, 1, states, length};
    w->selective = (dpcr_selective){.size = sizeof w->selective,
                                    .u = array(3, u, 1),
                                    .delta = array(3, u, 1),
                                    .a = array(2, a, 1),
                                    .b = array(4, b, 1),
                                    .c = array(4, b, 1),
                                    .softplus = 1};
    w->z = *array(3, u, 0);
}

// The delta rule without decays.
static void attention(work *w, int64_t heads, int64_t width, int64_t length) {
    const int64_t k[] = {1, length, heads, width};
    w->attention = (dpcr_attention){.size = sizeof w->attention,
                                    .q = array(4, k, 1),
                                    .k = array(4, k, 0.1f),
                                    .v = array(4, k, 1),
                                    .beta = array(3, k, 0.5f),
                                    .scale = 1};
    w->z = *array(4, k, 0);
}

// Biquads with poles of radius 0.9 over one block of sound a channel.
static void filter(work *w, int64_t sections, int64_t channels, int64_t length) {
    const double section[] = {0.5, -0.25, 0.125, 1, -1.5, 0.81};
    const int64_t signal[] = {channels, length};
    double *sos = malloc((size_t)sections * sizeof section);
    if (!sos) exit(1);
    for (int64_t s = 0; s < sections; s++) memcpy(sos + 6 * s, section, sizeof section);
    ensure(dpcr_filter_create_sos(w->context, sections, sos, &w->filter, &w->error), &w->error);
    free(sos);
    w->b = *array(2, signal, 1);
    w->z = *array(2, signal, 0);
}

// X(name, steps, set-up)
#define CASES(X)                                                                                                     \
    X("linear-1-sequential", STEPS, linear(w, DPCR_DENSE, 1, DPCR_SCHEME_SEQUENTIAL, 0))                             \
    X("linear-2-sequential", STEPS, linear(w, DPCR_DENSE, 2, DPCR_SCHEME_SEQUENTIAL, 0))                             \
    X("linear-8-sequential", STEPS, linear(w, DPCR_DENSE, 8, DPCR_SCHEME_SEQUENTIAL, 0))                             \
    X("linear-1-chunked", STEPS, linear(w, DPCR_DENSE, 1, DPCR_SCHEME_CHUNKED, 0))                                   \
    X("linear-2-chunked", STEPS, linear(w, DPCR_DENSE, 2, DPCR_SCHEME_CHUNKED, 0))                                   \
    X("linear-4-chunked", STEPS, linear(w, DPCR_DENSE, 4, DPCR_SCHEME_CHUNKED, 0))                                   \
    X("linear-2-chunked-transposed", STEPS, linear(w, DPCR_DENSE, 2, DPCR_SCHEME_CHUNKED, 1))                        \
    X("linear-4-overlap", STEPS, linear(w, DPCR_DENSE, 4, DPCR_SCHEME_OVERLAP, 0))                                   \
    X("diagonal-64-chunked", STEPS, linear(w, DPCR_DIAGONAL, 64, DPCR_SCHEME_CHUNKED, 0))                            \
    X("blocks-4-chunked", STEPS, linear(w, DPCR_BLOCK, 4, DPCR_SCHEME_CHUNKED, 0))                                   \
    X("blocks-8-overlap", STEPS, linear(w, DPCR_BLOCK, 8, DPCR_SCHEME_OVERLAP, 0))                                   \
    X("network-2-sequential", STEPS, network(w, 2, STEPS, 1, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, 0))     \
    X("network-2-overlap", STEPS, network(w, 2, STEPS, 1, DPCR_METHOD_OVERLAP, DPCR_SCHEME_SEQUENTIAL, 0))           \
    X("network-8-overlap", STEPS, network(w, 8, STEPS, 1, DPCR_METHOD_OVERLAP, DPCR_SCHEME_SEQUENTIAL, 0))           \
    X("network-2-backward", STEPS, network(w, 2, STEPS, 1, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_OVERLAP, 1))          \
    X("network-2-backward-sequential", STEPS,                                                                        \
      network(w, 2, STEPS, 1, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, 1))                                    \
    X("network-2-backward-chunked", STEPS, network(w, 2, STEPS, 1, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_CHUNKED, 1))  \
    X("network-8-backward", STEPS, network(w, 8, STEPS, 1, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_OVERLAP, 1))          \
    X("network-32-batch-64", 64, network(w, 32, 64, 64, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, 0))          \
    X("network-32-batch-64-backward", 64, network(w, 32, 64, 64, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, 1)) \
    X("rnn-32-batch-16", 64, recurrent(w, DPCR_RNN_TANH, 32, 64, 16, 0))                                             \
    X("gru-32-batch-16", 64, recurrent(w, DPCR_GRU, 32, 64, 16, 0))                                                  \
    X("gru-32-batch-16-backward", 64, recurrent(w, DPCR_GRU, 32, 64, 16, 1))                                         \
    X("gru-128", 64, recurrent(w, DPCR_GRU, 128, 64, 1, 0))                                                          \
    X("lstm-32-batch-16", 64, recurrent(w, DPCR_LSTM, 32, 64, 16, 0))                                                \
    X("lstm-32-batch-16-backward", 64, recurrent(w, DPCR_LSTM, 32, 64, 16, 1))                                       \
    X("paragru-64", 1024, recurrent(w, DPCR_PARAGRU, 64, 1024, 1, 0))                                                \
    X("selective-64-16", 1024, selective(w, 64, 16, 1024))                                                           \
    X("attention-2-64", 256, attention(w, 2, 64, 256))                                                               \
    X("filter-4-sections", 512, filter(w, 4, 1, 512))                                                                \
    X("filter-4-sections-16-channels", 512, filter(w, 4, 16, 512))

/* The case's steps; 0: there is none of that name. */
static int64_t prepare(work *w, const char *name) {
#define CASE(known, count, set_up)  \
    if (strcmp(name, known) == 0) { \
        set_up;                     \
        return count;               \
    }
    CASES(CASE)
#undef CASE
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
#define CASE(name, count, set_up) puts(name);
        CASES(CASE)
#undef CASE
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "compiler") == 0) {
        puts(COMPILER);
        return 0;
    }
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    for (int i = 1; i < argc; i++) {
        work all = {.error = {0}};
        ensure(dpcr_context_create(&options, &all.context, &all.error), &all.error);
        const int64_t steps = prepare(&all, argv[i]);
        if (steps == 0) {
            fprintf(stderr, "instructions: no case '%s'\n", argv[i]);
            return 2;
        }
        measured(&all);
        printf("%s,%lld\n", argv[i], (long long)steps);
    }
    if (argc > 1) return 0;
    fprintf(stderr, "usage: instructions CASE...|list|compiler\n");
    return 2;
}
