// SPDX-License-Identifier: MIT
// What the driver makes of a method inside the callback (dpcr_steps.window): its answers of every kind, told as they
// are and finished in order where they are not the whole; when it is asked and when not; for any number of threads.
#include "solving.h"

enum { LENGTH = 50, BATCH = 37, WIDTH = 2, STEPS_GOOD = 20 };
enum { WHOLE, UNCONFIRMED, INACCURATE, PARTLY, REFUSED, ABORTED, ANSWERS };

// A window that runs the loop and answers as it is told; past its good steps it leaves garbage.
typedef struct teller {
    chain c;  // first: the chain's own callbacks are given a teller
    int answer;
    _Atomic int calls;
    dpcr_window asked;
} teller;

static int tell(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                dpcr_window *window) {
    teller *t = user;
    if (t->calls++ == 0) t->asked = *window;
    if (span->first != 0 || span->lanes != 1 || span->rows != 1 || span->steps != LENGTH) return -99;
    const int code = chain_advance(user, span, in, states, NULL, NULL);
    const int answer = span->row % 3 == 1 ? t->answer : WHOLE;  // the others' sequences are solved
    window->sweeps = 3;
    window->residual = 1e-9;
    window->estimate = answer == UNCONFIRMED ? -1 : answer == INACCURATE ? 1 : 1e-9;
    window->good = answer == PARTLY ? STEPS_GOOD : LENGTH;
    for (int64_t l = STEPS_GOOD; answer >= PARTLY && l < LENGTH; l++)
        for (int64_t i = 0; i < WIDTH; i++) chain_put(states, l * states->strides[1] + i, NAN);
    return answer == REFUSED ? 1 : answer == ABORTED ? -7 : code;
}

static const double tanh_parameters[2] = {0.9, 0.1};

static teller teller_make(int answer) {
    return (teller){.c = {.step = step_tanh,
                          .length = LENGTH,
                          .batch = BATCH,
                          .width = WIDTH,
                          .dtype = DPCR_F32,
                          .parameters = tanh_parameters},
                    .answer = answer};
}

static const float *start_of(void) {
    static float z0[BATCH * WIDTH];
    for (int i = 0; i < BATCH * WIDTH; i++) z0[i] = (float)chain_noise(i, 3, 4);
    return z0;
}

static solved run(int threads, teller *t, const dpcr_solve_options *options) {
    dpcr_context *context = solving_context(threads);
    dpcr_steps steps = chain_steps(&t->c);
    steps.window = tell;
    solved s = solve_steps(context, &steps, &t->c, start_of(), options, NULL, 0);
    dpcr_context_destroy(context);
    return s;
}

static const int expected_reasons[ANSWERS] = {[WHOLE] = DPCR_REASON_CONVERGED,
                                              [UNCONFIRMED] = DPCR_REASON_RESIDUAL_ONLY,
                                              [INACCURATE] = DPCR_REASON_RESIDUAL_ONLY,
                                              [PARTLY] = DPCR_REASON_FALLBACK,
                                              [REFUSED] = DPCR_REASON_FALLBACK};

// Whatever the answer, the states are the loop's, and each sequence tells its own reason.
static void answers(void **state) {
    (void)state;
    for (int method = DPCR_METHOD_NEWTON; method <= DPCR_METHOD_SHOOTING;
         method += DPCR_METHOD_SHOOTING - DPCR_METHOD_NEWTON)
        for (int answer = WHOLE; answer < ABORTED; answer++)
            for (int threads = 1; threads <= 3; threads++) {
                teller t = teller_make(answer);
                const dpcr_solve_options options = {
                    .size = sizeof options, .method = (dpcr_method)method, .atol = 1e-5, .rtol = 1e-6, .max_sweeps = 9};
                solved s = run(threads, &t, &options);
                if (s.status != DPCR_OK) fail_msg("%s", s.error.text);
                assert_int_equal(t.calls, BATCH);
                assert_int_equal(t.asked.method, method);
                assert_int_equal(t.asked.max_sweeps, 9);
                assert_true(t.asked.atol == 1e-5 && t.asked.rtol == 1e-6);
                void *loop = loop_of(&t.c, start_of());
                assert_memory_equal(s.z, loop, LENGTH * BATCH * WIDTH * sizeof(float));
                for (int b = 0; b < BATCH; b++)
                    assert_int_equal(s.reasons[b], expected_reasons[b % 3 == 1 ? answer : WHOLE]);
                for (int b = 0; b < BATCH; b++) assert_int_equal(s.sweeps[b], 3);
                assert_true(s.report.residual >= 1e-9 && s.report.residual < 1e-8);
                free(loop), solved_free(&s);
            }
}

static void no_fallback_tells_how_far(void **state) {
    (void)state;
    teller t = teller_make(PARTLY);
    const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_SHOOTING, .no_fallback = 1};
    solved s = run(2, &t, &options);
    assert_int_equal(s.status, DPCR_OK);
    void *loop = loop_of(&t.c, start_of());
    for (int b = 0; b < BATCH; b++) {
        const int good = b % 3 == 1 ? STEPS_GOOD : LENGTH;
        assert_int_equal(s.reasons[b], b % 3 == 1 ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_CONVERGED);
        assert_int_equal(s.locked[b], good);
        for (int l = 0; l < good; l++)
            assert_memory_equal((float *)s.z + (l * BATCH + b) * WIDTH, (float *)loop + (l * BATCH + b) * WIDTH,
                                WIDTH * sizeof(float));
    }
    free(loop), solved_free(&s);
}

static void negative_codes_abort(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        teller t = teller_make(ABORTED);
        const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_NEWTON};
        solved s = run(threads, &t, &options);
        assert_int_equal(s.status, DPCR_ERROR_CALLBACK);
        assert_int_equal(s.error.code, -7);
        assert_non_null(strstr(s.error.text, "window"));
        solved_free(&s);
    }
}

// A scheme, a chunk, a window or a guess of the caller's is the driver's business: the callback is not asked.
static void only_where_it_is_meant(void **state) {
    (void)state;
    const dpcr_solve_options others[] = {
        {.size = sizeof others[0], .method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR},
        {.size = sizeof others[0], .method = DPCR_METHOD_NEWTON, .window = 10},
        {.size = sizeof others[0], .method = DPCR_METHOD_NEWTON, .guess = DPCR_GUESS_GIVEN},
        {.size = sizeof others[0], .method = DPCR_METHOD_SHOOTING, .chunk = 5},
        {.size = sizeof others[0], .method = DPCR_METHOD_OVERLAP},
        {.size = sizeof others[0], .method = DPCR_METHOD_SEQUENTIAL},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        teller t = teller_make(WHOLE);
        solved s = run(2, &t, &others[i]);
        if (s.status != DPCR_OK) fail_msg("%s", s.error.text);
        assert_int_equal(t.calls, 0);
        void *loop = loop_of(&t.c, start_of());
        assert_true(largest_error(&t.c, s.z, loop) < 1e-4);
        free(loop), solved_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(no_fallback_tells_how_far),
        cmocka_unit_test(negative_codes_abort),
        cmocka_unit_test(only_where_it_is_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
