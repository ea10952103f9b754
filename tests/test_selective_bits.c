// SPDX-License-Identifier: MIT
// The selective scan's bits: the same for any number of threads, for a batch and its entries, with states kept or made
// again, however rates and groups lie; and sums over strides of 0.
#include "sampled.h"
#include "selective_problem.h"

// What comes out, copied the first time and compared from then on.
static void same_bits(const problem *p, void **first, const char *of) {
    for (int use = Y; use < KEPT; use++) {
        const size_t all = (size_t)count_of(&p->at[use]) * dpcr_dtype_size(p->dtype);
        if (use == GY || use == GLAST) continue;
        if (!first[use]) first[use] = memcpy(malloc(all + 1), p->at[use].data, all);
        if (memcmp(first[use], p->at[use].data, all) != 0) fail_msg("%s: use %d has other bits", of, use);
    }
}

static void forget_bits(void **first) {
    for (int use = 0; use < KEPT; use++) free(first[use]);
}

static void bits_are_those_of_one_thread(void **state) {
    (void)state;
    static const int64_t groups[][2] = {{1, 1}, {1, 300}, {150, 20}, {100, 300}};
    for (int k = 0; k < 10; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 1 + k / 2 % 2, k / 2 ? 300 : 70);
        if (k / 2) p.length = 20, p.states = 3;
        if (k > 2) p.groups = groups[(k - 2) / 2][0], p.groups_c = groups[(k - 2) / 2][1];
        fill(&p, false);
        void *kept = aligned_alloc(64, (dpcr_selective_kept_bytes(&p.in) + 63) / 64 * 64), *first[KEPT] = {0};
        for (int threads = 1; threads <= 4; threads++) {
            dpcr_context *context = context_of(threads, NULL);
            run(context, &p, threads % 2 ? kept : NULL);
            same_bits(&p, first, "more threads");
            dpcr_context_destroy(context);
        }
        forget_bits(first);
        free(kept);
    }
}

// An entry alone, and some channels alone, have the bits of the whole.
static void bits_do_not_depend_on_neighbours(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    problem p = middling(DPCR_F32, 2, 40);
    fill(&p, false);
    run(context, &p, NULL);
    const int64_t L = p.length, N = p.states, from = 17, channels = 9;
    float *y = malloc((size_t)(channels * L) * sizeof *y), *last = malloc((size_t)(channels * N) * sizeof *last);
    dpcr_array part[INPUTS];
    for (int use = 0; use < INPUTS; use++) {
        part[use] = p.at[use];
        const int batched = use != A_ && use != SKIP && use != BIAS, own = use != B_ && use != C_;
        float *data = part[use].data;
        if (batched) data += part[use].strides[0], part[use].shape[0] = 1;
        if (own) data += from * part[use].strides[batched], part[use].shape[batched] = channels;
        part[use].data = data;
    }
    const dpcr_selective in = {sizeof in,   &part[U], &part[DELTA], &part[A_], &part[B_], &part[C_],
                               &part[SKIP], &part[Z], &part[BIAS],  &part[H0], 1};
    const int64_t rows[3] = {1, channels, L}, ends[3] = {1, channels, N};
    const dpcr_array to = dpcr_array_make(y, DPCR_F32, 3, rows), end = dpcr_array_make(last, DPCR_F32, 3, ends);
    assert_int_equal(dpcr_selective_scan(context, &in, &to, &end, NULL, NULL), DPCR_OK);
    assert_memory_equal(y, (float *)p.at[Y].data + (40 + from) * L, (size_t)(channels * L) * sizeof *y);
    assert_memory_equal(last, (float *)p.at[LAST].data + (40 + from) * N, (size_t)(channels * N) * sizeof *last);
    free(y);
    free(last);
    dpcr_context_destroy(context);
}

// One rate for all states of a channel, as a view with a stride of 0: the bits of as many rates as there are states.
static void shares_a_rate(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 4; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 40);
        void *first[KEPT] = {0};
        p.states = k / 2 ? 19 : 4, p.length = 33;
        fill(&p, false);
        for (int64_t i = 0; i < count_of(&p.at[A_]); i++) put(&p.at[A_], i, get(&p.at[A_], i / p.states * p.states));
        for (int shared = 0; shared < 2; shared++) {
            _Alignas(64) char unused[64] = {7};
            if (shared) p.at[A_].strides[1] = 0;
            assert_true((dpcr_selective_kept_bytes(&p.in) == 0) == shared);  // they are made again: there is no room
            run(context, &p, shared ? unused : NULL);
            assert_int_equal(unused[0], 7);
            same_bits(&p, first, "a shared rate");
        }
        forget_bits(first);
    }
    dpcr_context_destroy(context);
}

// The same numbers of b and c for all channels, given for each and as one's view; and constant in time, as strides of 0
// and step by step: the same bits but of what the views leave out.
static void bits_do_not_depend_on_how_groups_lie(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 8; k++) {
        const bool constant = k / 2 % 2;
        const int64_t groups = k / 4 ? 14 : 42;
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 42);
        void *first[KEPT] = {0};
        p.groups = groups;
        fill(&p, false);
        for (int use = B_; use <= C_; use++)
            for (int64_t i = 0; i < count_of(&p.at[use]); i++) {
                const int64_t L = p.length, N = p.states;
                put(&p.at[use], i,
                    get(&p.at[use],
                        constant ? i / L % (groups * N) * L : i / (groups * N * L) * groups * N * L + i % (N * L)));
            }
        run(context, &p, NULL);
        same_bits(&p, first, "groups");
        for (int use = B_; use <= C_; use++) {
            dpcr_array *b = &p.at[use], *g = &p.at[GRADIENTS + use];
            if (constant) {
                b->strides[0] = b->strides[3] = 0;
                run(context, &p, NULL);
                same_bits(&p, first, "constant in time");
                continue;
            }
            b->shape[1] = 1, g->shape[1] = 1;
            run(context, &p, NULL);
            b->shape[1] = groups, b->strides[1] = 0, g->shape[1] = groups;
            for (int other = Y; other < KEPT; other++)
                if (other == GRADIENTS + B_ || other == GRADIENTS + C_) free(first[other]), first[other] = NULL;
            same_bits(&p, first, "one group");
            run(context, &p, NULL);
            for (int other = GRADIENTS + B_; other <= GRADIENTS + C_; other++) free(first[other]), first[other] = NULL;
            same_bits(&p, first, "a group for each, as one's view");
        }
        forget_bits(first);
    }
    dpcr_context_destroy(context);
}

// Of all gradients but those that are summed over the batch, however many channels there are beside the entry's.
static void gradients_do_not_depend_on_the_batch(void **state) {
    (void)state;
    static const int uses[] = {U, DELTA, B_, C_, Z, H0};
    for (int threads = 1; threads <= 4; threads++) {
        dpcr_context *context = context_of(threads, NULL);
        problem p = middling(DPCR_F32, 2, 300);
        p.length = 20, p.states = 3;
        fill(&p, false);
        run(context, &p, NULL);
        void *whole[6];
        for (int use = 0; use < KEPT; use++) {
            const int what = use % GRADIENTS;
            if (what == A_ || what == SKIP || what == BIAS) continue;
            p.at[use].data = (float *)p.at[use].data + p.at[use].strides[0];
            p.at[use].shape[0] = 1;
        }
        for (int i = 0; i < 6; i++) {
            const dpcr_array *a = &p.at[GRADIENTS + uses[i]];
            const size_t bytes = (size_t)count_of(a) * sizeof(float);
            whole[i] = memcpy(malloc(bytes), a->data, bytes);
            memset(a->data, 0xff, bytes);
        }
        run(context, &p, NULL);
        for (int i = 0; i < 6; i++) {
            const dpcr_array *a = &p.at[GRADIENTS + uses[i]];
            if (memcmp(whole[i], a->data, (size_t)count_of(a) * sizeof(float)) != 0)
                fail_msg("%d threads: the gradient of %s has other bits alone", threads, names[uses[i]]);
            free(whole[i]);
        }
        dpcr_context_destroy(context);
    }
}

// A gradient's stride of 0 is the sum over that axis of what is there without: whatever the threads, the same bits.
static void sums_over(problem *p, int use, unsigned axes) {
    dpcr_array *a = &p->at[GRADIENTS + use];
    const int64_t count = count_of(a);
    double *sum = calloc((size_t)count, sizeof *sum), *size = calloc((size_t)count, sizeof *size);
    const dpcr_array whole = *a;
    double *first = malloc((size_t)count * sizeof *first);
    dpcr_context *context = context_of(2, NULL);
    fill(p, false);
    run(context, p, NULL);
    dpcr_context_destroy(context);
    for (int d = 0; d < a->ndim; d++)
        if (axes >> d & 1) a->strides[d] = 0;
    for (int64_t i = 0; i < count; i++)
        sum[place_of(a, i)] += get(&whole, i), size[place_of(a, i)] += fabs(get(&whole, i));
    for (int threads = 1; threads <= 4; threads++) {
        context = context_of(threads, NULL);
        for (int64_t i = 0; i < count; i++) put(&whole, i, NAN);
        run(context, p, NULL);
        dpcr_context_destroy(context);
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = place_of(a, i);
            const double got = get(a, i), eps = p->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53;
            if (!(fabs(got - sum[at]) <= 200 * eps * (size[at] + 1)) || (threads > 1 && got != first[at]))
                fail_msg("gradient of %s, axes %u, number %lld, %d threads: %.17g, wanted %.17g", names[use], axes,
                         (long long)i, threads, got, sum[at]);
            first[at] = got;
        }
        for (int64_t i = 0; i < count; i++)  // and nothing else is written
            if (place_of(a, i) != place_of(&whole, i))
                assert_true(size[place_of(&whole, i)] != 0 || isnan(get(&whole, i)));
    }
    *a = whole;
    free(sum), free(size), free(first);
}

static void sums_over_strides_of_0(void **state) {
    (void)state;
    static const int summed[] = {A_, B_, C_, SKIP, BIAS},
                     groups[][2] = {{1, 1}, {3, 3}, {12, 12}, {36, 36}, {36, 1}, {4, 9}};
    int64_t cases = 0;
    for (int k = 0; k < 12; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 36);
        p.groups = groups[k / 2][0], p.groups_c = groups[k / 2][1];
        fill(&p, false);
        for (int i = 0; i < 5; i++)
            for (unsigned axes = 1; axes < 1u << p.at[summed[i]].ndim; axes++)
                if (sampled_for_races(cases++)) sums_over(&p, summed[i], axes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_one_thread),
        cmocka_unit_test(bits_do_not_depend_on_neighbours),
        cmocka_unit_test(shares_a_rate),
        cmocka_unit_test(bits_do_not_depend_on_how_groups_lie),
        cmocka_unit_test(gradients_do_not_depend_on_the_batch),
        cmocka_unit_test(sums_over_strides_of_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
