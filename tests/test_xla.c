// SPDX-License-Identifier: MIT
// XLA's handler over frames made by hand: what it asks its host and what it runs itself, whatever of a frame is
// another, calls at once, failures, coefficients that change, forgetting, the end of a host.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deeppcr/deeppcr.h"
#include "xla/frame.h"

// ---- frames ----

enum { MOST_ARRAYS = 6, MOST_RANK = 3, FLOAT32 = 11 };

typedef struct hand {
    dpcri_xla_frame frame;
    dpcri_xla_buffer buffers[MOST_ARRAYS];
    const dpcri_xla_buffer *given[MOST_ARRAYS], *found[MOST_ARRAYS];
    int64_t shapes[MOST_ARRAYS][MOST_RANK];
    char said[64];
    dpcri_xla_text text;
    const dpcri_xla_text *texts[1];
    int types[1];
} hand;

static void say(hand *h, const char *text) {
    strcpy(h->said, text);
    h->text = (dpcri_xla_text){h->said, strlen(text)};
}

// A frame in place; its arrays come with `put`.
static void begin(hand *h, const char *text, int64_t given, int64_t found) {
    memset(h, 0, sizeof *h);
    say(h, text);
    h->texts[0] = &h->text;
    h->types[0] = DPCRI_XLA_TEXT;
    h->frame.size = sizeof h->frame;
    h->frame.stage = DPCRI_XLA_EXECUTE;
    h->frame.given.count = given;
    h->frame.given.items = h->given;
    h->frame.found.count = found;
    h->frame.found.items = h->found;
    h->frame.said.count = 1;
    h->frame.said.types = h->types;
    h->frame.said.items = h->texts;
    for (int64_t i = 0; i < MOST_ARRAYS; i++) {
        h->buffers[i].shape = h->shapes[i];
        h->given[i] = &h->buffers[i];
        if (i >= given) h->found[i - given] = &h->buffers[i];
    }
}

static void put(hand *h, int64_t i, int dtype, void *numbers, int64_t rank, const int64_t *shape) {
    h->buffers[i].dtype = dtype;
    h->buffers[i].numbers = numbers;
    h->buffers[i].rank = rank;
    if (rank) memcpy(h->shapes[i], shape, (size_t)rank * sizeof *shape);
}

// ---- a host that counts ----

static int asked, failures;
static dpcr_status failed_with;
static char failed_text[512];

static void count(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer) {
    asked++;
    answer->finished = 1;
    if (!failed) return;
    failures++;
    failed_with = status;
    strcpy(failed_text, failed->error.text);
    assert_true(dpcr_xla_busy(failed));
    assert_null(dpcr_xla_handler(frame));  // at work: another call of its kind is the host's
    answer->error = &failures;             // stands for an error of XLA's
}

static int clean(void **state) {
    (void)state;
    dpcr_xla_forget();
    dpcr_xla_set_host(count, NULL, NULL, NULL);
    asked = failures = 0;
    return 0;
}

// ---- what is known ----

// "copy n" of [4] floats.
typedef struct copying {
    hand h;
    float from[4], to[4];
    dpcr_xla_step step;
    dpcr_xla_place places[2];
    dpcr_xla_call call;
} copying;

static void make_copying(copying *c) {
    begin(&c->h, "copy", 1, 1);
    put(&c->h, 0, FLOAT32, c->from, 1, (int64_t[]){4});
    put(&c->h, 1, FLOAT32, c->to, 1, (int64_t[]){4});
    c->step = (dpcr_xla_step){.what = DPCR_XLA_COPY, .count = sizeof c->from};
    c->places[0] = (dpcr_xla_place){0, &c->step.given[0]};
    c->places[1] = (dpcr_xla_place){1, &c->step.given[1]};
    c->call = (dpcr_xla_call){.size = sizeof c->call, .steps = 1, .places = 2, .step = &c->step, .place = c->places};
}

// Whether the handler copies without asking.
static bool copies(copying *c) {
    const int before = asked;
    for (int i = 0; i < 4; i++) c->from[i] += 1, c->to[i] = -1;
    assert_null(dpcr_xla_handler(&c->h.frame));
    const bool same = memcmp(c->from, c->to, sizeof c->to) == 0;
    assert_true(same == (asked == before));
    return same;
}

static void test_only_frames_that_look_alike_are_known(void **state) {
    (void)state;
    copying c, other;
    make_copying(&c);
    assert_false(copies(&c));
    assert_true(dpcr_xla_keep(&c.h.frame, &c.call));
    assert_true(copies(&c));
    assert_true(copies(&c));
    float elsewhere[5];
    put(&c.h, 1, FLOAT32, elsewhere, 1, (int64_t[]){4});
    assert_null(dpcr_xla_handler(&c.h.frame));
    assert_memory_equal(elsewhere, c.from, sizeof c.from);
    put(&c.h, 1, FLOAT32, (char *)elsewhere + 2, 1, (int64_t[]){4});  // not where floats lie
    assert_false(copies(&c));
    make_copying(&other);
    assert_int_equal(dpcr_xla_keep(&c.h.frame, &other.call), 0);
    make_copying(&other);  // another frame of the same looks
    asked = 0;
    assert_null(dpcr_xla_handler(&other.h.frame));
    assert_int_equal(asked, 0);
    assert_memory_equal(other.to, other.from, sizeof other.to);
    for (int change = 0; change < 12; change++) {
        make_copying(&other);
        dpcri_xla_frame *f = &other.h.frame;
        if (change == 0) say(&other.h, "copx");
        if (change == 1) say(&other.h, "copy ");
        if (change == 2) other.h.buffers[0].dtype = 4;
        if (change == 3) other.h.shapes[0][0] = 3;
        if (change == 4) other.h.buffers[1].rank = 2;
        if (change == 5) f->given.count = 2, f->found.count = 0;
        if (change == 6) f->said.count = 2;
        if (change == 7) other.h.types[0] = 3;
        if (change == 8) f->stage = 1;
        if (change == 9) f->extension = &other;
        if (change == 10) f->size -= 8;
        if (change == 11) f->found.count = 0;
        assert_false(copies(&other));
    }
    make_copying(&other);
    assert_int_equal(failures, 0);
}

static void test_what_is_large_or_too_much_is_not_kept(void **state) {
    (void)state;
    enum { KINDS = 256, RANK = 600 };
    copying c, *many = calloc(KINDS + 1, sizeof *many);
    int64_t *shape = calloc(RANK, sizeof *shape);
    assert_non_null(many);
    assert_non_null(shape);
    make_copying(&c);
    c.h.buffers[0].rank = 300;
    c.h.buffers[0].shape = shape;
    assert_true(dpcr_xla_keep(&c.h.frame, &c.call));
    c.h.buffers[0].rank = RANK;
    assert_int_equal(dpcr_xla_keep(&c.h.frame, &c.call), 0);
    assert_false(copies(&c));
    dpcr_xla_forget();
    for (int i = 0; i <= KINDS; i++) {
        make_copying(&many[i]);
        char text[32];
        snprintf(text, sizeof text, "copy %d", i);
        say(&many[i].h, text);
        assert_int_equal(dpcr_xla_keep(&many[i].h.frame, &many[i].call), i < KINDS ? 1 : -1);
    }
    for (int i = 0; i <= KINDS; i++) assert_int_equal(copies(&many[i]), i < KINDS);
    dpcr_xla_forget();
    for (int i = 0; i <= KINDS; i++) assert_false(copies(&many[i]));
    assert_true(dpcr_xla_keep(&many[KINDS].h.frame, &many[KINDS].call));
    assert_true(copies(&many[KINDS]));
    dpcr_xla_forget();
    free(shape);
    free(many);
}

static void test_calls_of_another_size_and_unknown_steps_are_refused(void **state) {
    (void)state;
    copying c;
    for (size_t less = 1; less <= sizeof c.call; less++) {
        make_copying(&c);
        memset(&c.call.error, 'x', sizeof c.call.error);
        c.call.size -= less;
        c.from[0] = 1, c.to[0] = 0;
        assert_int_equal(dpcr_xla_keep(&c.h.frame, &c.call), 0);
        assert_int_equal(dpcr_xla_run(&c.h.frame, &c.call), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_xla_run_at((void *[]){c.from, c.to}, &c.call), DPCR_ERROR_ARGUMENT);
        assert_true(c.to[0] == 0);
        const bool told = c.call.size >= offsetof(dpcr_xla_call, next);  // there is a place for it
        assert_int_equal(c.call.error.text[0], told ? "xla_run: call.size"[0] : 'x');
        assert_true(!told || strstr(c.call.error.text, "call.size is "));
        assert_false(copies(&c));
    }
    make_copying(&c);
    c.step.what = (dpcr_xla_what)99;
    assert_int_equal(dpcr_xla_run(&c.h.frame, &c.call), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(c.call.error.text, "step.what is 99, wanted"));
}

static void test_a_failure_is_told_with_its_call(void **state) {
    (void)state;
    dpcr_context *context;
    dpcr_chain_plan *plan;
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = 3,
                                    .batch = 1,
                                    .transition = {.structure = DPCR_SCALAR, .rows = 1, .cols = 1},
                                    .dtype = DPCR_F32};
    assert_int_equal(dpcr_chain_plan_create(context, &shape, NULL, &plan, NULL), DPCR_OK);
    float a[3] = {2, 2, 2}, b[3] = {1, 1, 1}, z[3] = {0};
    dpcr_array values = {
        .data = NULL, .dtype = DPCR_F32, .device = {DPCR_HOST, 0}, .ndim = 3, .shape = {3, 1, 1}, .strides = {1, 1, 1}};
    dpcr_array A = values, B = values, Z = values;
    hand h;
    begin(&h, "chain", 2, 1);
    put(&h, 0, FLOAT32, a, 1, (int64_t[]){3});
    put(&h, 1, FLOAT32, b, 1, (int64_t[]){3});
    put(&h, 2, FLOAT32, z, 1, (int64_t[]){3});
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *work = aligned_alloc(64, (bytes / 64 + 1) * 64);
    dpcr_xla_step steps[2] = {
        {.what = DPCR_XLA_CHAIN, .given = {plan, &A, &B, NULL, &Z, work}, .count = (int64_t)bytes},
        {.what = DPCR_XLA_ZERO, .given = {a}, .count = sizeof a}};
    const dpcr_xla_place places[3] = {{0, &A.data}, {1, &B.data}, {2, &Z.data}};
    dpcr_xla_call call = {.size = sizeof call, .steps = 1, .places = 3, .step = steps, .place = places};
    assert_int_equal(dpcr_xla_run(&h.frame, &call), DPCR_OK);
    assert_true(z[0] == 1 && z[1] == 3 && z[2] == 7);
    float other[3] = {0};
    assert_int_equal(dpcr_xla_run_at((void *[]){a, z, other}, &call), DPCR_OK);
    assert_true(other[0] == 1 && other[1] == 5 && other[2] == 17 && z[2] == 7);
    assert_true(dpcr_xla_keep(&h.frame, &call));
    b[0] = 2;
    assert_null(dpcr_xla_handler(&h.frame));
    assert_true(z[0] == 2 && z[1] == 5 && z[2] == 11);
    assert_int_equal(asked, 0);
    B.shape[0] = 2;  // what the chain refuses; the step after it is not taken
    call.steps = 2;
    assert_ptr_equal(dpcr_xla_handler(&h.frame), &failures);
    assert_int_equal(failed_with, DPCR_ERROR_ARGUMENT);
    assert_true(strlen(failed_text) > 0 && a[0] == 2);
    assert_int_equal(asked, 2);
    assert_int_equal(failures, 1);
    assert_false(dpcr_xla_busy(&call));
    B.shape[0] = 3;
    assert_null(dpcr_xla_handler(&h.frame));  // serves again
    assert_true(a[0] == 0);
    dpcr_xla_forget();
    free(work);
    dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
}

static void test_coefficients_may_change(void **state) {
    (void)state;
    dpcr_context *context;
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    double sos[6] = {1, 0, 0, 1, 0, 0}, kept[6], numbers[6], x[4] = {1, 2, 3, 4}, y[4];
    dpcr_filter *filter;
    memcpy(kept, sos, sizeof kept);
    assert_int_equal(dpcr_filter_create_sos(context, 1, sos, &filter, NULL), DPCR_OK);
    dpcr_array X = {.dtype = DPCR_F64, .device = {DPCR_HOST, 0}, .ndim = 2, .shape = {1, 4}, .strides = {4, 1}}, Y = X;
    hand h;
    begin(&h, "filter", 2, 1);
    put(&h, 0, DPCRI_XLA_FLOAT64, sos, 2, (int64_t[]){1, 6});
    put(&h, 1, DPCRI_XLA_FLOAT64, x, 1, (int64_t[]){4});
    put(&h, 2, DPCRI_XLA_FLOAT64, y, 1, (int64_t[]){4});
    dpcr_xla_step steps[3] = {{.what = DPCR_XLA_COPY, .count = sizeof sos, .given = {NULL, numbers}},
                              {.what = DPCR_XLA_SECTIONS, .count = 1, .given = {context, numbers, kept, &filter}},
                              {.what = DPCR_XLA_FILTER, .given = {&filter, &X, NULL, &Y, NULL}}};
    const dpcr_xla_place places[3] = {{0, &steps[0].given[0]}, {1, &X.data}, {2, &Y.data}};
    dpcr_xla_call call = {.size = sizeof call, .steps = 3, .places = 3, .step = steps, .place = places};
    assert_true(dpcr_xla_keep(&h.frame, &call));
    for (int turn = 0; turn < 3; turn++) {
        sos[0] = turn + 1;
        assert_null(dpcr_xla_handler(&h.frame));
        for (int i = 0; i < 4; i++) assert_true(y[i] == sos[0] * x[i]);
        assert_memory_equal(kept, sos, sizeof kept);
    }
    assert_int_equal(asked, 0);
    const dpcr_filter *last = filter;
    const double wrong[3] = {2, 0, NAN};
    for (int i = 0; i < 3; i++) {  // the host says what is wrong
        sos[3] = wrong[i];
        assert_null(dpcr_xla_handler(&h.frame));
        assert_int_equal(asked, i + 1);
        assert_ptr_equal(filter, last);
    }
    assert_int_equal(failures, 0);
    sos[3] = 1;
    assert_null(dpcr_xla_handler(&h.frame));
    assert_int_equal(asked, 3);
    dpcr_xla_forget();
    dpcr_filter_destroy(filter);
    dpcr_context_destroy(context);
}

// ---- at once ----

// Threads call while the library knows calls and forgets them, each time not before it ran SOME, or there were MOST.
enum { THREADS = 4, CALLS = 2, TIMES = 200, SOME = 8, MOST = 10000000 };
static _Atomic int by_host, turns;
static _Atomic bool enough;
static pthread_barrier_t start;

static void copy_by_hand(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer) {
    const dpcri_xla_frame *f = frame;
    assert_null(failed);
    assert_int_equal(status, DPCR_OK);
    memcpy(f->found.items[0]->numbers, f->given.items[0]->numbers, sizeof(float[4]));
    by_host++;
    answer->finished = 1;
}

static void *many_turns(void *argument) {
    copying *c = argument;
    pthread_barrier_wait(&start);
    while (!enough) {
        for (int j = 0; j < 4; j++) c->from[j] += (float)(j + 1), c->to[j] = -1;
        if (dpcr_xla_handler(&c->h.frame) || memcmp(c->from, c->to, sizeof c->to) != 0) {
            enough = true;
            return NULL;
        }
        turns++;
    }
    return c;
}

static void test_threads_do_not_meet_in_a_call(void **state) {
    (void)state;
    copying own[THREADS], kept[CALLS];
    pthread_t threads[THREADS];
    dpcr_xla_set_host(copy_by_hand, NULL, NULL, NULL);
    by_host = turns = 0;
    enough = false;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS + 1), 0);
    for (int i = 0; i < CALLS; i++) make_copying(&kept[i]);
    for (int i = 0; i < THREADS; i++) {
        make_copying(&own[i]);
        own[i].from[0] = (float)(1000 * i);
        assert_int_equal(pthread_create(&threads[i], NULL, many_turns, &own[i]), 0);
    }
    pthread_barrier_wait(&start);
    for (int turn = 0; turn < TIMES; turn++) {
        const int before = turns - by_host;
        for (int i = 0; i < CALLS; i++) assert_int_equal(dpcr_xla_keep(&kept[i].h.frame, &kept[i].call), 1);
        while (!enough && turns < MOST && turns - by_host < before + SOME) sched_yield();
        dpcr_xla_forget();
        for (int i = 0; i < CALLS; i++)
            while (dpcr_xla_busy(&kept[i].call)) sched_yield();
    }
    enough = true;
    for (int i = 0; i < THREADS; i++) {
        void *ended;
        pthread_join(threads[i], &ended);
        assert_ptr_equal(ended, &own[i]);
    }
    pthread_barrier_destroy(&start);
    assert_true(turns - by_host >= SOME * TIMES / 2);
}

// ---- the end of a host ----

static _Atomic bool there, left;
static void *probe;  // a frame that the hosts below have nothing to do for

// Goes on until the host has ended, and some time more.
static void dawdle(void) {
    there = true;
    while (!dpcr_xla_handler(probe)) sched_yield();
    for (int i = 0; i < 1000; i++) sched_yield();
    left = true;
}

static void dawdling_host(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer) {
    (void)failed, (void)status;
    if (frame != probe) dawdle();
    answer->finished = 1;
}

static void *dawdling_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (probe && !there) dawdle();
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void *handle_once(void *argument) { return dpcr_xla_handler(argument); }

static char told[64];
static int told_code;

static void *make_error(dpcri_xla_error *e) {
    assert_int_equal(e->size, sizeof *e);
    snprintf(told, sizeof told, "%s", e->message);
    told_code = e->code;
    return told;
}

// Frames with an API, and a frame for `probe`.
static void begin_end(copying *known, copying *unknown, copying *other) {
    static const dpcri_xla_api api = {.size = sizeof api, .make_error = make_error};
    make_copying(known);
    make_copying(unknown);
    make_copying(other);
    say(&unknown->h, "another");
    say(&other->h, "a third");
    known->h.frame.api = unknown->h.frame.api = other->h.frame.api = &api;
    probe = &other->h.frame;
    there = left = false;
}

// Ends the host while another thread's call dawdles, and it is waited for.
static void end_while_within(copying *c) {
    pthread_t thread;
    void *raised;
    dpcr_xla_set_host(dawdling_host, NULL, NULL, NULL);
    assert_int_equal(pthread_create(&thread, NULL, handle_once, &c->h.frame), 0);
    while (!there) sched_yield();
    dpcr_xla_set_host(NULL, NULL, NULL, NULL);
    assert_true(left);
    pthread_join(thread, &raised);
    assert_null(raised);
}

static void test_none_is_at_a_host_that_has_ended(void **state) {
    (void)state;
    copying known, unknown, other;
    begin_end(&known, &unknown, &other);
    assert_int_equal(dpcr_xla_keep(&known.h.frame, &known.call), 1);
    end_while_within(&unknown);
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), told);
    assert_string_equal(told, "deeppcr: no host, it has ended");
    assert_int_equal(told_code, DPCRI_XLA_CANCELLED);
    assert_ptr_equal(dpcr_xla_handler(&known.h.frame), told);
    unknown.h.frame.extension = &other;  // a question
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), told);
    unknown.h.frame.extension = NULL;
    dpcr_xla_set_host(count, NULL, NULL, NULL);
    assert_true(copies(&known));
    assert_null(dpcr_xla_handler(&unknown.h.frame));
    assert_int_equal(asked, 1);
}

// ---- interruptions ----

static int interruptions;
static bool torn_away;

static void hear(void) {
    assert_int_equal(asked, interruptions + 1);  // after the host
    interruptions++;
}

static void interrupted_host(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer) {
    (void)frame, (void)failed, (void)status;
    assert_true(!answer->error && !answer->finished && !answer->interrupted);
    asked++;
    if (torn_away) return;
    *answer = (dpcr_xla_answer){.error = &failures, .finished = 1, .interrupted = 1};
}

static void test_an_interruption_is_told_after_the_host(void **state) {
    (void)state;
    copying known, unknown, other;
    begin_end(&known, &unknown, &other);
    interruptions = 0;
    dpcr_xla_set_host(interrupted_host, hear, NULL, NULL);
    torn_away = false;
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), &failures);
    assert_int_equal(interruptions, 1);
    torn_away = true;
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), told);
    assert_string_equal(told, "deeppcr: the host was interrupted");
    assert_int_equal(told_code, DPCRI_XLA_CANCELLED);
    assert_int_equal(interruptions, 2);
    assert_int_equal(dpcr_xla_keep(&known.h.frame, &known.call), 1);
    assert_true(copies(&known));  // which asks nobody
    assert_int_equal(interruptions, 2);
}

static int takes_one(void *user) {
    int *const waiting = user;  // calls until an interruption waits
    return (*waiting)-- == 0;
}

static void hear_one(void) { interruptions++; }

static void test_a_waiting_interruption_is_taken_before_the_host(void **state) {
    (void)state;
    copying known, unknown, other;
    begin_end(&known, &unknown, &other);
    interruptions = 0;
    torn_away = false;
    int waiting = 0;
    dpcr_xla_set_host(interrupted_host, hear_one, takes_one, &waiting);
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), told);
    assert_string_equal(told, "deeppcr: the host was interrupted");
    assert_int_equal(told_code, DPCRI_XLA_CANCELLED);
    assert_true(interruptions == 1 && asked == 0 && waiting == -1);
    assert_ptr_equal(dpcr_xla_handler(&unknown.h.frame), &failures);  // none waits
    assert_int_equal(asked, 1);
    assert_int_equal(dpcr_xla_keep(&known.h.frame, &known.call), 1);
    waiting = 0;
    assert_true(copies(&known));  // which asks nobody
    assert_int_equal(waiting, 0);
    known.step.what = (dpcr_xla_what)99;  // fails, and would ask the host how to say so
    assert_ptr_equal(dpcr_xla_handler(&known.h.frame), told);
    assert_true(asked == 1 && waiting == -1);
}

static void free_it(void *user, void *memory) {
    (void)user;
    free(memory);
}

// The kept call makes a filter, whose memory lets it dawdle.
static void test_kept_calls_are_waited_for(void **state) {
    (void)state;
    copying known, unknown, other;
    probe = NULL;
    dpcr_context *context;
    const dpcr_context_options options = {.size = sizeof options, .allocate = dawdling_alloc, .release = free_it};
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    double sos[6] = {1, 0, 0, 1, 0, 0}, kept[6] = {0};
    dpcr_filter *filter = NULL;
    begin_end(&known, &unknown, &other);
    known.step = (dpcr_xla_step){.what = DPCR_XLA_SECTIONS, .count = 1, .given = {context, sos, kept, &filter}};
    known.call.places = 0;
    assert_int_equal(dpcr_xla_keep(&known.h.frame, &known.call), 1);
    end_while_within(&known);
    assert_non_null(filter);
    dpcr_xla_forget();
    dpcr_filter_destroy(filter);
    dpcr_context_destroy(context);
}

static hand *of_child;
static pid_t child;
static pthread_t thread_of_child;

// Forks; the child has another thread within when this one returns there.
static void forking_host(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer) {
    if (frame == probe || frame == &of_child->frame) {
        dawdling_host(frame, failed, status, answer);
        return;
    }
    child = fork();
    if (child == 0 && pthread_create(&thread_of_child, NULL, handle_once, &of_child->frame) != 0) _exit(2);
    while (child == 0 && !there) sched_yield();
    answer->finished = 1;
}

static void test_forks_within_a_host(void **state) {
    (void)state;
    copying known, unknown, other;
    begin_end(&known, &unknown, &other);
    of_child = &unknown.h;
    dpcr_xla_set_host(forking_host, NULL, NULL, NULL);
    assert_null(dpcr_xla_handler(&known.h.frame));
    if (child == 0) {
        dpcr_xla_set_host(NULL, NULL, NULL, NULL);
        const bool waited = left;
        pthread_join(thread_of_child, NULL);
        _exit(waited ? 0 : 1);
    }
    assert_true(child > 0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    dpcr_xla_set_host(NULL, NULL, NULL, NULL);  // nobody is within here
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_only_frames_that_look_alike_are_known, clean),
        cmocka_unit_test_setup(test_what_is_large_or_too_much_is_not_kept, clean),
        cmocka_unit_test_setup(test_calls_of_another_size_and_unknown_steps_are_refused, clean),
        cmocka_unit_test_setup(test_a_failure_is_told_with_its_call, clean),
        cmocka_unit_test_setup(test_coefficients_may_change, clean),
        cmocka_unit_test_setup(test_threads_do_not_meet_in_a_call, clean),
        cmocka_unit_test_setup(test_none_is_at_a_host_that_has_ended, clean),
        cmocka_unit_test_setup(test_a_waiting_interruption_is_taken_before_the_host, clean),
        cmocka_unit_test_setup(test_an_interruption_is_told_after_the_host, clean),
        cmocka_unit_test_setup(test_a_waiting_interruption_is_taken_before_the_host, clean),
        cmocka_unit_test_setup(test_kept_calls_are_waited_for, clean),
        cmocka_unit_test_setup(test_forks_within_a_host, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
