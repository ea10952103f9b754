// SPDX-License-Identifier: MIT
// Linear attention's bits: the same for any number of threads, for a batch and its entries, for a head and its columns,
// with states kept or made again, and where the state goes on in its place.
#include "attention_problem.h"

static void bits_are_those_of_one_thread(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, k / 2);
        if (k == 0) p.heads = 10, p.batch = 1;  // of one group, whose sums are parts of sums
        fill(&p, false);
        void *kept = aligned_alloc(64, (dpcr_attention_kept_bytes(&p.in) + 63) / 64 * 64), *first[KEPT] = {0};
        for (int threads = 1; threads <= 8; threads++) {  // of 4 heads, whose columns are shared out from 3 on
            dpcr_context *context = context_of(threads, NULL);
            run(context, &p, threads % 2 ? kept : NULL);
            for (int use = O; use < KEPT; use++) {
                const size_t bytes = bytes_of(&p.at[use]);
                if (!comes_out(use)) continue;
                if (!first[use]) first[use] = memcpy(malloc(bytes), p.at[use].data, bytes);
                if (memcmp(first[use], p.at[use].data, bytes) != 0) fail_msg("%d threads: use %d", threads, use);
                memset(p.at[use].data, 0xff, bytes);
            }
            dpcr_context_destroy(context);
        }
        for (int use = 0; use < KEPT; use++) free(first[use]);
        free(kept);
    }
}

// A batch's entry alone has the bits that it has there.
static void bits_do_not_depend_on_the_batch(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 4; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, k / 2);
        void *whole[KEPT] = {0};
        fill(&p, false);
        run(context, &p, NULL);
        for (int use = 0; use < KEPT; use++) {
            p.at[use].data = (char *)p.at[use].data + p.at[use].strides[0] * (int64_t)dpcr_dtype_size(p.dtype);
            p.at[use].shape[0] = 1;
            if (!comes_out(use)) continue;
            whole[use] = memcpy(malloc(bytes_of(&p.at[use])), p.at[use].data, bytes_of(&p.at[use]));
            memset(p.at[use].data, 0xff, bytes_of(&p.at[use]));
        }
        run(context, &p, NULL);
        for (int use = O; use < KEPT; use++) {
            if (comes_out(use)) assert_memory_equal(whole[use], p.at[use].data, bytes_of(&p.at[use]));
            free(whole[use]);
        }
    }
    dpcr_context_destroy(context);
}

// Some columns of v alone have the bits of o and of the states that they have among others.
static void bits_do_not_depend_on_columns(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    problem p = middling(DPCR_F32, false);
    const int64_t from = 33, columns = 20;
    fill(&p, false);
    run(context, &p, NULL);
    dpcr_array v = p.at[V_], s0 = p.at[S0];
    float *data = calloc((size_t)(2 * 150 * 2 * columns), sizeof *data),
          *ends = calloc((size_t)(2 * 2 * 10 * columns), sizeof *ends);
    const int64_t shape[4] = {2, 150, 2, columns}, state_shape[4] = {2, 2, 10, columns};
    const dpcr_array o = dpcr_array_make(data, DPCR_F32, 4, shape),
                     last = dpcr_array_make(ends, DPCR_F32, 4, state_shape);
    v.data = (float *)v.data + from, v.shape[3] = columns;
    s0.data = (float *)s0.data + from, s0.shape[3] = columns;
    p.in.v = &v, p.in.s0 = &s0;
    assert_int_equal(dpcr_attention_scan(context, &p.in, &o, &last, NULL, NULL), DPCR_OK);
    for (int64_t i = 0; i < count_of(&o); i++)
        assert_true(get(&o, i) == get(&p.at[O], i / columns * 75 + from + i % columns));
    for (int64_t i = 0; i < count_of(&last); i++)
        assert_true(get(&last, i) == get(&p.at[LAST], i / columns * 75 + from + i % columns));
    free(data);
    free(ends);
    dpcr_context_destroy(context);
}

// A state goes on in its place, whether it is read and written as it lies or not.
static void last_may_be_s0(void **state) {
    (void)state;
    dpcr_context *context = context_of(3, NULL);
    for (int k = 0; k < 12; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, false);
        p.values = k / 2 % 2 ? 64 : 75, p.length = k / 4 == 0 ? 1 : k / 4 == 1 ? 16 : 50;
        fill(&p, false);
        run(context, &p, NULL);
        assert_int_equal(dpcr_attention_scan(context, &p.in, &p.at[GO], &p.at[S0], NULL, NULL), DPCR_OK);
        assert_memory_equal(p.at[GO].data, p.at[O].data, bytes_of(&p.at[O]));
        assert_memory_equal(p.at[S0].data, p.at[LAST].data, bytes_of(&p.at[LAST]));
    }
    dpcr_context_destroy(context);
}

// Turned in the same memory, what is written would be read as another number; a stride that reaches nothing is any.
static void last_is_s0_by_strides_too(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    dpcr_error error = {0};
    problem p = middling(DPCR_F32, false);
    p.batch = 1;
    fill(&p, false);
    dpcr_array last = p.at[S0];
    last.strides[0] = 12345;
    assert_int_equal(dpcr_attention_scan(context, &p.in, &p.at[GO], &last, NULL, NULL), DPCR_OK);
    last.strides[2] = 1, last.strides[3] = last.shape[2];
    assert_int_equal(dpcr_attention_scan(context, &p.in, &p.at[GO], &last, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "last lies where s0 does"));
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_one_thread),  cmocka_unit_test(bits_do_not_depend_on_the_batch),
        cmocka_unit_test(bits_do_not_depend_on_columns), cmocka_unit_test(last_may_be_s0),
        cmocka_unit_test(last_is_s0_by_strides_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
