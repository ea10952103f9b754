// SPDX-License-Identifier: MIT
// AUTO on a device by measurement, over the stand-in: the fastest way is taken, listed, told and remembered; what is
// not served, has no room or fails is left out; nothing of the device is kept. The chain's `launch` takes what the test
// says, a microsecond a byte that it copies.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "deeppcr/deeppcr.h"
#include "rt/wisdom.h"

enum { STEPS = 16, ROWS = 2, WIDTH = 2, WORKSPACE = 2048 };

static const dpcr_device cuda = {.type = DPCR_CUDA}, cpu = {.type = DPCR_HOST};

// What a chain does when it is launched, by method: microseconds, negative where it is not served; and how often it
// was.
typedef struct slow {
    int takes[DPCR_METHOD_COUNT];
    int64_t locked[DPCR_METHOD_COUNT];  // steps that it leaves right, less than STEPS
    int launches[DPCR_METHOD_COUNT];
    const void *z0;             // of the last launch,
    double atol, rtol;          // and its tolerances
    double barrier, bandwidth;  // that it was asked with
} slow;

static dpcr_status launch(void *user, dpcr_launch *l, dpcr_error *error) {
    slow *s = user;
    if (l->backward || s->takes[l->method] < 0)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s is not served", dpcr_method_name((dpcr_method)l->method));
    if (!l->z) {
        l->bytes = WORKSPACE;
        s->barrier = l->barrier, s->bandwidth = l->bandwidth;
        return DPCR_OK;
    }
    s->launches[l->method]++;
    s->z0 = l->z0 ? l->z0->data : NULL, s->atol = l->atol, s->rtol = l->rtol;
    static const char bytes[WORKSPACE];
    static dpcr_device_outcome outcomes[ROWS];
    for (int b = 0; b < ROWS; b++)
        outcomes[b] = (dpcr_device_outcome){.sweeps = 1, .locked = STEPS - s->locked[l->method]};
    const dpcr_status status =
        dpcr_device_copy(l->device, l->workspace, cpu, bytes, (size_t)s->takes[l->method], l->stream, error);
    return status == DPCR_OK ? dpcr_device_copy(l->device, l->outcome, cpu, outcomes, sizeof outcomes, l->stream, error)
                             : status;
}

typedef struct fixture {
    dpcr_context *context;
    slow work;
    dpcr_steps steps;
    dpcr_solve_plan *plan;
    dpcr_error error;
    size_t free_bytes;
} fixture;

static size_t free_there(void) {
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    if (dpcr_device_describe(cuda, &info, &error) != DPCR_OK) fail_msg("%s", error.text);
    return info.free_bytes;
}

static int begin(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f || dpcr_context_create(NULL, &f->context, NULL) != DPCR_OK) return -1;
    f->work.takes[DPCR_METHOD_SEQUENTIAL] = 1500;
    f->work.takes[DPCR_METHOD_OVERLAP] = 400;
    f->work.takes[DPCR_METHOD_NEWTON] = 900;
    f->steps = (dpcr_steps){.size = sizeof f->steps,
                            .user = &f->work,
                            .length = STEPS,
                            .batch = ROWS,
                            .width = WIDTH,
                            .dtype = DPCR_F32,
                            .jacobian = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                            .flops = 8,
                            .launch = launch};
    f->free_bytes = free_there();
    *state = f;
    return 0;
}

static int finish(void **state) {
    fixture *f = *state;
    dpcr_solve_plan_destroy(f->plan);
    dpcr_context_destroy(f->context);
    const bool whole = free_there() == f->free_bytes;
    free(f);
    return whole ? 0 : -1;
}

static dpcr_status make(fixture *f, dpcr_solve_options o) {
    o.size = sizeof o;
    o.device = cuda;
    if (o.planning == DPCR_PLANNING_MEASURE) o.planning_seconds = 0.1;
    dpcr_solve_plan_destroy(f->plan);
    return dpcr_solve_plan_create(f->context, &f->steps, &o, &f->plan, &f->error);
}

static void takes(fixture *f, dpcr_solve_options o, dpcr_method method, const char *words) {
    if (make(f, o) != DPCR_OK) fail_msg("%s", f->error.text);
    const char *sentence = dpcr_solve_plan_sentence(f->plan);
    if (dpcr_solve_plan_method(f->plan) != method || !strstr(sentence, words))
        fail_msg("%s: \"%s\", wanted %s with \"%s\"", dpcr_method_name(dpcr_solve_plan_method(f->plan)), sentence,
                 dpcr_method_name(method), words);
}

static int launches(const fixture *f) {
    int all = 0;
    for (int i = 0; i < DPCR_METHOD_COUNT; i++) all += f->work.launches[i];
    return all;
}

// A solve by the plan, in memory there.
static void solve_there(fixture *f) {
    const int64_t shape[3] = {STEPS, ROWS, WIDTH};
    const size_t bytes = dpcr_solve_plan_workspace(f->plan);
    void *memory[2] = {NULL, NULL};
    assert_int_equal(dpcr_device_allocate(cuda, sizeof(float) * STEPS * ROWS * WIDTH, &memory[0], NULL), DPCR_OK);
    assert_int_equal(dpcr_device_allocate(cuda, bytes, &memory[1], NULL), DPCR_OK);
    dpcr_array z = dpcr_array_make(memory[0], DPCR_F32, 3, shape);
    z.device = cuda;
    assert_int_equal(dpcr_solve_enqueue(f->plan, NULL, &z, memory[1], bytes, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_collect(f->plan, memory[1], bytes, NULL, NULL, NULL), DPCR_OK);
    dpcr_device_release(cuda, memory[0]), dpcr_device_release(cuda, memory[1]);
}

static const dpcr_solve_options estimate = {0}, measure = {.planning = DPCR_PLANNING_MEASURE},
                                wisdom = {.planning = DPCR_PLANNING_WISDOM};

static void the_fastest_is_taken(void **state) {
    static const dpcr_method order[] = {DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON, DPCR_METHOD_SEQUENTIAL};
    fixture *f = *state;
    takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "for it is short");  // the rule
    assert_int_equal(launches(f), 0);
    takes(f, measure, DPCR_METHOD_OVERLAP,
          "448 us on cuda:0 (stand-in on the host), measured; newton 948 us, sequential 1.55e+03 us");
    for (int i = 0; i < 3; i++) assert_true(f->work.launches[order[i]] >= 2);
    for (int i = 0; i < 4; i++) {
        dpcr_candidate c = {.size = sizeof c};
        assert_int_equal(dpcr_solve_plan_candidate(f->plan, i, &c), i < 3);
        if (i == 3) break;
        assert_int_equal(c.method, order[i]);
        assert_int_equal(c.backward, 0);
        assert_true(fabs(c.measured - 1e-6 * (f->work.takes[order[i]] + (int)sizeof(dpcr_device_outcome[ROWS]))) <
                    1e-12);
        assert_true(c.workspace >= WORKSPACE);
    }
    double seconds = 0;
    dpcr_solve_plan_effort(f->plan, &seconds, NULL);
    assert_true(seconds > 0);
    // What the plan says it uses makes the same plan, without a launch.
    const int before = launches(f);
    dpcr_solve_plan *again = NULL;
    assert_int_equal(dpcr_solve_plan_create(f->context, &f->steps, dpcr_solve_plan_options(f->plan), &again, NULL), 0);
    assert_memory_equal(dpcr_solve_plan_options(f->plan), dpcr_solve_plan_options(again), sizeof(dpcr_solve_options));
    dpcr_solve_plan_destroy(again);
    assert_int_equal(launches(f), before);
}

// Bit for bit, by the tolerance or by what chunks join within: newton has none of that.
static void bits_leave_newton_out(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        dpcr_solve_options bits = measure;
        if (i)
            bits.join_tolerance = -1;
        else
            bits.atol = -1;
        takes(f, bits, DPCR_METHOD_OVERLAP, "measured; sequential");
    }
    assert_int_equal(f->work.launches[DPCR_METHOD_NEWTON], 0);
}

// What chunks join within goes to the kernels of overlap in the tolerances' place, to no other method's.
static void joins_go_to_the_kernels(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        const double joins = i == 1 ? -1 : i == 2 ? 0.25 : 0, within = i == 1 ? 0 : i == 2 ? 0.25 : 0.5;
        for (dpcr_method method = DPCR_METHOD_OVERLAP; method;
             method = method == DPCR_METHOD_OVERLAP ? DPCR_METHOD_NEWTON : 0) {
            const dpcr_solve_options o = {.method = method, .atol = 0.5, .rtol = 0.5, .join_tolerance = joins};
            assert_int_equal(make(f, o), DPCR_OK);
            solve_there(f);
            const bool own = method == DPCR_METHOD_OVERLAP && joins != 0;
            assert_true(f->work.atol == (own ? 0 : 0.5) && f->work.rtol == (own ? within : 0.5));
        }
    }
}

static void what_was_measured_is_remembered(void **state) {
    fixture *f = *state;
    char path[] = P_tmpdir "/test_device_measure.XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(make(f, wisdom), DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(f->error.text, "nothing is known of this chain on cuda:0"));
    takes(f, measure, DPCR_METHOD_OVERLAP, "measured");
    const int before = launches(f);
    const dpcr_solve_options kinds[] = {estimate, measure, wisdom};
    for (int i = 0; i < 3; i++) takes(f, kinds[i], DPCR_METHOD_OVERLAP, "known from an earlier measurement; newton ");
    assert_int_equal(dpcr_wisdom_save(f->context, path, &f->error), DPCR_OK);
    dpcr_wisdom_forget(f->context);
    assert_int_equal(make(f, wisdom), DPCR_ERROR_UNSUPPORTED);
    assert_int_equal(dpcr_wisdom_load(f->context, path, &f->error), DPCR_OK);
    takes(f, wisdom, DPCR_METHOD_OVERLAP, "known");
    assert_int_equal(launches(f), before);
    // Another chain, other options: not known.
    dpcr_solve_options other = wisdom;
    other.atol = 1e-3;
    assert_int_equal(make(f, other), DPCR_ERROR_UNSUPPORTED);
    other = wisdom, other.join_tolerance = -1;
    assert_int_equal(make(f, other), DPCR_ERROR_UNSUPPORTED);
    f->steps.identity = 7;
    assert_int_equal(make(f, wisdom), DPCR_ERROR_UNSUPPORTED);
    f->steps.identity = 0, f->steps.batch = 1;
    assert_int_equal(make(f, wisdom), DPCR_ERROR_UNSUPPORTED);
    takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "for it is short");
    assert_int_equal(launches(f), before);
    remove(path);
}

static void ways_that_cannot_run_are_left_out(void **state) {
    fixture *f = *state;
    f->work.takes[DPCR_METHOD_OVERLAP] = -1;
    takes(f, measure, DPCR_METHOD_NEWTON, "measured; sequential ");
    dpcr_wisdom_forget(f->context);
    // Left open, it is no way at all; finished in order, it is as slow as it is.
    f->work.locked[DPCR_METHOD_NEWTON] = 5;
    dpcr_solve_options o = measure;
    o.no_fallback = 1;
    takes(f, o, DPCR_METHOD_SEQUENTIAL, "measured");
    assert_null(strstr(dpcr_solve_plan_sentence(f->plan), "newton"));
    takes(f, measure, DPCR_METHOD_NEWTON, "measured; sequential ");
    dpcr_wisdom_forget(f->context);
    f->work.takes[DPCR_METHOD_NEWTON] = -1;  // the loop alone: what it takes
    takes(f, measure, DPCR_METHOD_SEQUENTIAL, "sequential: 1.55e+03 us on cuda:0 (stand-in on the host), measured");
    dpcr_wisdom_forget(f->context);
    f->work.takes[DPCR_METHOD_SEQUENTIAL] = -1;  // nothing
    assert_int_equal(make(f, measure), DPCR_ERROR_UNSUPPORTED);
    f->work.takes[DPCR_METHOD_SEQUENTIAL] = 1500;
    f->steps.length = 0;
    takes(f, measure, DPCR_METHOD_SEQUENTIAL, "");
}

static void without_room_the_rule_decides(void **state) {
    fixture *f = *state;
    takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "");
    dpcr_solve_options o = measure;
    o.memory_limit = dpcr_solve_plan_workspace(f->plan) + STEPS * ROWS * WIDTH * 4 - 1;
    takes(f, o, DPCR_METHOD_SEQUENTIAL, "busy (not enough memory there to measure)");
    assert_int_equal(launches(f), 0);
    o.memory_limit++;
    takes(f, o, DPCR_METHOD_OVERLAP, "measured");
    dpcr_wisdom_forget(f->context);
    setenv("DEEPPCR_FAKE_MEMORY", "1000", 1);
    takes(f, measure, DPCR_METHOD_SEQUENTIAL, "(not enough memory there to measure)");
    unsetenv("DEEPPCR_FAKE_MEMORY");
    takes(f, measure, DPCR_METHOD_OVERLAP, "measured");
}

static void the_callers_start_is_taken_where_it_lies_there(void **state) {
    fixture *f = *state;
    const int64_t shape[2] = {ROWS, WIDTH};
    float zeros[ROWS * WIDTH] = {0};
    dpcr_array start = dpcr_array_make(zeros, DPCR_F32, 2, shape);
    dpcr_solve_options o = measure;
    o.start = &start;
    takes(f, o, DPCR_METHOD_OVERLAP, "measured");
    assert_null(f->work.z0);
    dpcr_wisdom_forget(f->context);
    start.device = cuda;
    assert_int_equal(dpcr_device_allocate(cuda, sizeof zeros, &start.data, NULL), DPCR_OK);
    takes(f, o, DPCR_METHOD_OVERLAP, "measured");
    assert_ptr_equal(f->work.z0, start.data);
    dpcr_wisdom_forget(f->context);
    start.shape[0]++;  // no start of this chain
    takes(f, o, DPCR_METHOD_SEQUENTIAL, "(no way could be measured there)");
    dpcr_device_release(cuda, start.data);
}

static int stop_at_once(void *user) {
    int *asked = user;
    return ++*asked;
}

static void planning_ends_where_the_caller_cancels(void **state) {
    fixture *f = *state;
    int asked = 0;
    const dpcr_context_options o = {.size = sizeof o, .cancel = stop_at_once, .cancel_user = &asked};
    dpcr_context_destroy(f->context);
    assert_int_equal(dpcr_context_create(&o, &f->context, NULL), DPCR_OK);
    assert_int_equal(make(f, measure), DPCR_ERROR_CANCELLED);
    assert_null(f->plan);
    assert_true(asked > 0 && launches(f) == 0);
}

// What a barrier takes is measured for wide steps, once, and remembered; the chain's `launch` is told.
static void barriers_are_measured_once(void **state) {
    static const char *const key = "device stand-in on the host 9.0 barrier";
    fixture *f = *state;
    char text[DPCRI_WISDOM_VALUE];
    f->steps.width = 64;
    f->steps.jacobian = dpcr_transition_square(DPCR_DENSE, 64, 0);
    takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "only where one is asked for");
    assert_true(fabs(f->work.barrier - 3e-6) < 1e-12 && f->work.bandwidth > 0);
    assert_true(dpcri_wisdom_find(f->context, key, text) && fabs(strtod(text, NULL) - 3e-6) < 1e-12);
    static const char *const notes[] = {"5e-6", "-1", "0", "5e-6 x", "nonsense"};
    for (int i = 0; i < 5; i++) {
        assert_true(dpcri_wisdom_set(f->context, key, notes[i]));
        takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "only where one is asked for");
        assert_true(fabs(f->work.barrier - (i == 0 ? 5e-6 : 3e-6)) < 1e-12);
    }
    dpcr_wisdom_forget(f->context);
    setenv("DEEPPCR_FAKE_LAUNCH", "1", 1);  // what cannot be measured is what is usual, and not remembered
    takes(f, estimate, DPCR_METHOD_SEQUENTIAL, "only where one is asked for");
    unsetenv("DEEPPCR_FAKE_LAUNCH");
    assert_true(fabs(f->work.barrier - 2e-6) < 1e-12 && !dpcri_wisdom_find(f->context, key, text));
}

int main(void) {
    setenv("DEEPPCR_CUDA_MODULE", STAND_INS "/libfake_device.so", 1);
    setenv("DEEPPCR_FAKE_CLOCK", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_fastest_is_taken, begin, finish),
        cmocka_unit_test_setup_teardown(bits_leave_newton_out, begin, finish),
        cmocka_unit_test_setup_teardown(joins_go_to_the_kernels, begin, finish),
        cmocka_unit_test_setup_teardown(what_was_measured_is_remembered, begin, finish),
        cmocka_unit_test_setup_teardown(ways_that_cannot_run_are_left_out, begin, finish),
        cmocka_unit_test_setup_teardown(without_room_the_rule_decides, begin, finish),
        cmocka_unit_test_setup_teardown(the_callers_start_is_taken_where_it_lies_there, begin, finish),
        cmocka_unit_test_setup_teardown(planning_ends_where_the_caller_cancels, begin, finish),
        cmocka_unit_test_setup_teardown(barriers_are_measured_once, begin, finish),
    };
    return cmocka_run_group_tests_name("device_measure", tests, NULL, NULL);
}
