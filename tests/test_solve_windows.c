// SPDX-License-Identifier: MIT
// What the driver makes of a method inside the callback (dpcr_steps.window): its answers of every kind, told as they
// are and finished in order where they are not the whole; when it is asked and when not; for any number of threads.
#include <stdatomic.h>

#include "solving.h"
#include "sampled.h"

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
                if (TESTS_SANITIZED && threads != 1 + answer % 3) continue;
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

// ---- teams ----

enum { TEAM_STEPS = 5000 };

typedef struct team_teller {
    chain c;
    _Atomic int parts, closings, lost;
} team_teller;

// Those who take part mark the team's memory; the closing call alone writes.
static int tell_team(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                     dpcr_window *window) {
    team_teller *t = user;
    _Atomic int *mark = window->team;
    if (mark && !window->closing) {
        t->parts++;
        atomic_fetch_add(mark, 1);
        return 0;
    }
    t->closings++;
    if (window->team && atomic_load(mark) < 1) t->lost++;
    const int code = chain_advance(user, span, in, states, NULL, NULL);
    window->sweeps = 3, window->residual = window->estimate = 1e-9, window->good = span->steps;
    return code;
}

// Several threads are asked where they know of teams, are idle, and the chain is long; then one of them for the answer.
static void teams(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++)
        for (int known = 0; known < 2; known++)
            for (int64_t batch = 1; batch <= 9; batch += 8) {
                team_teller t = {.c = {.step = step_tanh,
                                       .length = TEAM_STEPS,
                                       .batch = batch,
                                       .width = WIDTH,
                                       .dtype = DPCR_F32,
                                       .parameters = tanh_parameters}};
                dpcr_context *context = solving_context(threads);
                dpcr_steps steps = chain_steps(&t.c);
                steps.window = tell_team;
                if (known) steps.window_threads = 2;
                const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_SHOOTING};
                solved s = solve_steps(context, &steps, &t.c, start_of(), &options, NULL, 0);
                if (s.status != DPCR_OK) fail_msg("%s", s.error.text);
                void *loop = loop_of(&t.c, start_of());
                assert_memory_equal(s.z, loop, (size_t)(TEAM_STEPS * batch * WIDTH) * sizeof(float));
                const bool together = known && (batch + 7) / 8 < threads;  // 8 rows of 2 floats on a line
                assert_int_equal(t.closings, batch);
                assert_int_equal(t.parts, together ? 2 * batch : 0);
                assert_int_equal(t.lost, 0);
                assert_int_equal(s.report.evaluations, 3 * TEAM_STEPS * batch);
                free(loop), solved_free(&s);
                dpcr_context_destroy(context);
            }
}

// ---- pieces ----

enum { LONG = 50000, PIECES = 3, PIECE = LONG / PIECES };

typedef struct piecewise {
    chain c;
    _Atomic int calls;
    _Atomic int64_t steps;
    double spoil;  // added to the last state of the first piece
    int64_t good;  // of the second piece; 0: all
} piecewise;

static int run_piece(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                     dpcr_window *window) {
    piecewise *p = user;
    p->calls++;
    p->steps += span->steps;
    const int code = chain_advance(user, span, in, states, NULL, NULL);
    const int64_t last = (span->steps - 1) * states->strides[1];
    if (span->first == 0 && span->steps < LONG) chain_put(states, last, chain_get(states, last) + p->spoil);
    *window = (dpcr_window){.size = window->size, .sweeps = 2, .residual = 1e-9, .estimate = 1e-9, .good = span->steps};
    if (span->first == PIECE && p->good) window->good = p->good;
    return code;
}

static solved run_long(int threads, piecewise *p, int64_t batch, double residual) {
    static double parameters[2];
    parameters[0] = 0.9, parameters[1] = residual;
    p->c = (chain){
        .step = step_tanh, .length = LONG, .batch = batch, .width = WIDTH, .dtype = DPCR_F32, .parameters = parameters};
    dpcr_context *context = solving_context(threads);
    dpcr_steps steps = chain_steps(&p->c);
    steps.window = run_piece;
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_NEWTON, .atol = 1e-5, .rtol = 1e-6};
    solved s = solve_steps(context, &steps, &p->c, start_of(), &options, NULL, 0);
    if (s.status != DPCR_OK) fail_msg("%s", s.error.text);
    dpcr_context_destroy(context);
    return s;
}

// A chain that forgets goes in pieces, the same ones for any number of threads and whatever is beside it; what a start
// misses is measured.
static void pieces_of_a_chain_that_forgets(void **state) {
    (void)state;
    float *alone = NULL;
    for (int64_t batch = 1; batch <= 9; batch += 4) {
        void *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            piecewise p = {0};
            solved s = run_long(threads, &p, batch, 0);
            void *loop = loop_of(&p.c, start_of());
            assert_int_equal(p.calls, PIECES * batch);
            assert_int_equal(p.steps, LONG * batch);
            assert_true(largest_error(&p.c, s.z, loop) <= 1.1e-5);
            assert_int_equal(s.report.reason, DPCR_REASON_CONVERGED);
            assert_true(s.report.residual >= 1e-9 && s.report.residual <= 1.1e-5);
            if (first)
                assert_memory_equal(s.z, first, (size_t)(LONG * batch * WIDTH) * sizeof(float));
            else
                first = s.z, s.z = NULL;
            free(loop), solved_free(&s);
        }
        for (int64_t l = 0; alone && l < LONG; l++)
            assert_memory_equal((float *)first + l * batch * WIDTH, alone + l * WIDTH, WIDTH * sizeof(float));
        if (alone)
            free(first);
        else
            alone = first;
    }
    free(alone);
}

// One that does not forget goes in one.
static void no_pieces_without_forgetting(void **state) {
    (void)state;
    piecewise p = {0};
    solved s = run_long(2, &p, 3, 0.001);
    void *loop = loop_of(&p.c, start_of());
    assert_int_equal(p.calls, 3);
    assert_memory_equal(s.z, loop, sizeof(float) * LONG * 3 * WIDTH);
    free(loop), solved_free(&s);
}

// A start that the piece before it misses is not believed: all that follows is solved anew from where it ended.
static void a_missed_start_is_seen(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        piecewise p = {.spoil = 1e-3};
        solved s = run_long(threads, &p, 1, 0);
        assert_int_equal(p.calls, PIECES + 1);
        assert_int_equal(p.steps, LONG + LONG - PIECE);
        float *z = s.z;
        const dpcr_array in = dpcr_array_make(z + (PIECE - 1) * WIDTH, DPCR_F32, 3, (const int64_t[]){1, 1, WIDTH});
        float *wanted = malloc(sizeof(float) * WIDTH * (LONG - PIECE));
        const dpcr_array out = dpcr_array_make(wanted, DPCR_F32, 4, (const int64_t[]){1, LONG - PIECE, 1, WIDTH});
        const dpcr_span span = {
            .size = sizeof span, .first = PIECE, .lanes = 1, .stride = 1, .steps = LONG - PIECE, .rows = 1};
        chain_advance(&p.c, &span, &in, &out, NULL, NULL);
        assert_memory_equal(z + PIECE * WIDTH, wanted, sizeof(float) * WIDTH * (LONG - PIECE));
        free(wanted), solved_free(&s);
    }
}

// A piece that gave up leaves the whole to the loop.
static void a_piece_that_gives_up(void **state) {
    (void)state;
    piecewise p = {.good = 100};
    solved s = run_long(2, &p, 1, 0);
    void *loop = loop_of(&p.c, start_of());
    assert_int_equal(s.report.reason, DPCR_REASON_FALLBACK);
    assert_memory_equal(s.z, loop, sizeof(float) * LONG * WIDTH);
    free(loop), solved_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(no_fallback_tells_how_far),
        cmocka_unit_test(negative_codes_abort),
        cmocka_unit_test(only_where_it_is_meant),
        cmocka_unit_test(teams),
        cmocka_unit_test(pieces_of_a_chain_that_forgets),
        cmocka_unit_test(no_pieces_without_forgetting),
        cmocka_unit_test(a_missed_start_is_seen),
        cmocka_unit_test(a_piece_that_gives_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
