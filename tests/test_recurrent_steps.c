// SPDX-License-Identifier: MIT
// Recurrent layers as chains: the callbacks agree with each other for every split of a span, Jacobians with differences
// and the adjoint (dpcr_steps_check), and backward gives the same bits with a tape and without one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/recurrent.h"

typedef struct chain {
    dpcr_context *context;
    dpcri_recurrent layer;
    dpcr_steps steps;
    int64_t ends[8];
    void *pieces[8], *e;
} chain;

static void fill(dpcr_dtype dtype, void *data, int64_t count, double size, unsigned seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        const double x = size * ((double)(seed >> 8) / (1 << 23) - 1);
        if (dtype == DPCR_F64)
            ((double *)data)[i] = x;
        else
            ((float *)data)[i] = (float)x;
    }
}

static void *numbers(dpcr_dtype dtype, int64_t count, double size, unsigned seed) {
    void *data = aligned_alloc(64, (size_t)(count * 8 + 127) / 64 * 64);
    assert_non_null(data);
    fill(dtype, data, count, size, seed);
    return data;
}

enum form { PLAIN, PACKED, RESET, VARIED, FORMS };

static void chain_open(chain *c, dpcr_dtype dtype, dpcri_gates_kind kind, int64_t H, int64_t T, int64_t B,
                       enum form as) {
    static const double zeros[128];
    static unsigned char marks[24 * 3];
    marks[5 * 3 + 1] = marks[6 * 3 + 1] = marks[0] = marks[11 * 3 + 2] = 1;
    const dpcr_context_options options = {.size = sizeof options, .threads = 2};
    *c = (chain){0};
    assert_int_equal(dpcr_context_create(&options, &c->context, NULL), DPCR_OK);
    const int64_t I = 3, gates = dpcri_gates_count[kind] * H;
    const dpcri_para_kernels *apart = dpcri_gates_apart(kind) ? dpcri_para_kernels_get(dtype) : NULL;
    dpcri_recurrent *l = &c->layer;
    *l = (dpcri_recurrent){.context = c->context,
                           .dtype = dtype,
                           .nn = dpcri_nn_kernels_get(dtype),
                           .kernels = apart ? &apart->gates : dpcri_gates_kernels_get(dtype),
                           .apart = apart,
                           .gates = {.context = c->context, .kind = kind, .activation = DPCRI_ACT_TANH, .width = H},
                           .length = T,
                           .batch = B,
                           .inputs = I};
    if (as == VARIED) {
        l->gates.varied = true;
        l->gates.variant =
            (dpcri_gates_variant){.reset_before = kind == DPCRI_GATES_GRU, .coupled = kind == DPCRI_GATES_LSTM};
    }
    if (as == RESET) l->resets = (dpcri_marks){.at = marks, .step = B, .zeros = zeros};
    dpcri_recurrent_sizes sizes;
    assert_true(dpcri_recurrent_sizes_of(l, &sizes));
    const int64_t counts[8] = {sizes.forward,     sizes.backward, sizes.panels, sizes.bias,
                               sizes.hidden_bias, gates * I,      gates * H,    T * B * I};
    const double size = 1 / sqrt((double)H);
    for (int i = 0; i < 8; i++) c->pieces[i] = numbers(dtype, counts[i], i == 7 ? 1 : size, (unsigned)i + 1);
    l->gates.forward = c->pieces[0], l->gates.backward = c->pieces[1], l->panels = c->pieces[2], l->bias = c->pieces[3];
    l->gates.bias = c->pieces[4], l->weight_ih = c->pieces[5], l->weight_hh = c->pieces[6];
    if (kind == DPCRI_PARA_LSTM) l->peephole = (char *)c->pieces[6] + (size_t)gates * dpcr_dtype_size(dtype);
    void *bias = numbers(dtype, gates, size, 11);
    dpcri_recurrent_pack(l, bias, apart ? NULL : bias);
    dpcri_recurrent_pack_back(l);
    free(bias);
    l->x = (dpcri_grid){.data = c->pieces[7], .step = B * I, .row = I};
    for (int64_t b = 0; b < B && b < 8; b++) c->ends[b] = b % 3 == 1 ? T / 2 : T;
    if (as == PACKED) l->ends = c->ends;
    dpcri_recurrent_steps(l, &c->steps);
    const int64_t tape = c->steps.tape_values;
    c->e = numbers(dtype, T * B * tape, 0, 1);
    l->gradients = (dpcri_grid){.data = c->e, .step = B * tape, .row = tape};
}

static void chain_close(chain *c) {
    for (int i = 0; i < 8; i++) free(c->pieces[i]);
    free(c->e);
    dpcr_context_destroy(c->context);
}

static void test_callbacks(void **state) {
    (void)state;
    for (int kind = 0; kind < DPCRI_GATES_ALL; kind++)
        for (int form = 0; form < FORMS; form++) {
            chain c;
            dpcr_error error = {0};
            chain_open(&c, DPCR_F64, (dpcri_gates_kind)kind, 9, 24, 3, (enum form)form);
            const int64_t shape[2] = {3, c.steps.width};
            void *start = numbers(DPCR_F64, 3 * c.steps.width, 1, 5);
            const dpcr_array z0 = dpcr_array_make(start, DPCR_F64, 2, shape);
            if (dpcr_steps_check(c.context, &c.steps, &z0, 1e-6, &error) != DPCR_OK)
                fail_msg("kind %d, form %d: %s", kind, form, error.text);
            assert_int_equal(c.steps.kinks, DPCR_KINKS_NONE);
            c.layer.gates.variant.clip = 2;
            dpcri_recurrent_steps(&c.layer, &c.steps);
            assert_int_equal(c.steps.kinks, DPCR_KINKS_CURVED);
            free(start);
            chain_close(&c);
        }
}

// lambda, dz0 and e of a backward pass, with the tape of the forward one or without.
static void go_back(chain *c, dpcr_scheme scheme, bool taped, void *lambda, void *dz0) {
    const dpcr_steps *s = &c->steps;
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SEQUENTIAL,
                                        .backward = scheme,
                                        .chunk = 40,
                                        .warm_up = 64,
                                        .atol = -1,
                                        .rtol = -1};
    dpcr_solve_plan *plan;
    dpcr_error error = {0};
    if (dpcr_solve_plan_create(c->context, s, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const int64_t edge[2] = {s->batch, s->width}, all[3] = {s->length, s->batch, s->width},
                  kept[3] = {s->length, s->batch, s->tape_values};
    void *start = numbers(s->dtype, s->batch * s->width, 1, 5),
         *z = numbers(s->dtype, s->length * s->batch * s->width, 0, 1);
    void *tape = numbers(s->dtype, s->length * s->batch * s->tape_values, 0, 1);
    void *direct = numbers(s->dtype, s->length * s->batch * s->width, 1, 9),
         *last = numbers(s->dtype, s->batch * s->width, 1, 10);
    const dpcr_array z0 = dpcr_array_make(start, s->dtype, 2, edge), states = dpcr_array_make(z, s->dtype, 3, all);
    const dpcr_array taken = dpcr_array_make(tape, s->dtype, 3, kept),
                     given = dpcr_array_make(direct, s->dtype, 3, all);
    const dpcr_array end = dpcr_array_make(last, s->dtype, 2, edge), out = dpcr_array_make(lambda, s->dtype, 3, all);
    const dpcr_array first = dpcr_array_make(dz0, s->dtype, 2, edge);
    assert_int_equal(dpcr_solve_execute(plan, &z0, &states, &taken, workspace, bytes, NULL, NULL), DPCR_OK);
    if (dpcr_solve_backward(plan, &z0, &states, taped ? &taken : NULL, &given, &end, &out, &first, workspace, bytes,
                            NULL, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    free(start), free(z), free(tape), free(direct), free(last), free(workspace);
    dpcr_solve_plan_destroy(plan);
}

// Long and wide enough that what is made again goes in several blocks.
static void test_without_a_tape(void **state) {
    (void)state;
    enum { T = 300, B = 3, H = 40 };
    for (int kind = 0; kind < DPCRI_GATES_ALL; kind++)
        for (int wide = 0; wide < 2; wide++)
            for (int overlap = 0; overlap < 2; overlap++) {
                const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
                const dpcr_scheme scheme = overlap ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL;
                chain c;
                chain_open(&c, dtype, (dpcri_gates_kind)kind, H, T, B, overlap ? PACKED : wide ? VARIED : PLAIN);
                const size_t element = dpcr_dtype_size(dtype), states = (size_t)(T * B * c.steps.width) * element;
                const size_t edge = (size_t)(B * c.steps.width) * element,
                             tape = (size_t)(T * B * c.steps.tape_values) * element;
                char *lambda[2], *dz0[2], *e[2];
                for (int taped = 0; taped < 2; taped++) {
                    lambda[taped] = malloc(states), dz0[taped] = malloc(edge), e[taped] = malloc(tape);
                    memset(c.e, 0xff, tape);
                    go_back(&c, scheme, taped, lambda[taped], dz0[taped]);
                    memcpy(e[taped], c.e, tape);
                }
                assert_memory_equal(lambda[0], lambda[1], states);
                assert_memory_equal(dz0[0], dz0[1], edge);
                assert_memory_equal(e[0], e[1], tape);
                for (int taped = 0; taped < 2; taped++) free(lambda[taped]), free(dz0[taped]), free(e[taped]);
                chain_close(&c);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_callbacks), cmocka_unit_test(test_without_a_tape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
