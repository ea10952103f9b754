// SPDX-License-Identifier: MIT
// Messages between ranks that are threads: by name and in order, deadlines, failures that end everybody's waiting, and
// what a caller's own ranks may get wrong.
// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "deeppcr/deeppcr.h"
#include "rt/comm/comm.h"

static dpcr_context *context;

static int set_up(void **state) {
    (void)state;
    return dpcr_context_create(NULL, &context, NULL) == DPCR_OK ? 0 : 1;
}
static int tear_down(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

// Every rank sends every other ten numbers under each of three tags, and takes them tag by tag, the last tag first.
static dpcr_status exchange(void *argument, dpcri_comm *comm, dpcr_error *error) {
    enum { TAGS = 3, EACH = 10 };
    dpcr_status status = DPCR_OK;
    (void)argument;
    for (int64_t to = 0; to < comm->ranks; to++)
        for (int64_t k = 0; to != comm->rank && k < TAGS * EACH; k++) {
            const int64_t value = 1000 * comm->rank + k;
            DPCR_TRY(dpcri_send(comm, to, k % TAGS, &value, sizeof value, error));
        }
    for (int64_t from = comm->ranks - 1; from >= 0; from--)
        for (int64_t tag = TAGS - 1; from != comm->rank && tag >= 0; tag--)
            for (int64_t n = 0; n < EACH; n++) {
                int64_t value = -1;
                DPCR_TRY(dpcri_receive(comm, from, tag, &value, sizeof value, error));
                if (value != 1000 * from + n * TAGS + tag)
                    DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "rank %d got %d", (int)comm->rank, (int)value));
            }
    DPCR_TRY(dpcri_send(comm, (comm->rank + 1) % comm->ranks, 9, NULL, 0, error));
    DPCR_TRY(dpcri_receive(comm, (comm->rank + comm->ranks - 1) % comm->ranks, 9, NULL, 0, error));
done:
    return status;
}

static void messages_come_by_name_and_in_order(void **state) {
    (void)state;
    for (int64_t ranks = 2; ranks <= 5; ranks++)
        for (int round = 0; round < 5; round++) {
            dpcr_error error = {0};
            if (dpcri_threads_run(context, ranks, 20, exchange, NULL, &error) != DPCR_OK) fail_msg("%s", error.text);
        }
}

// Rank 1 never sends; the others wait for it, with a message of theirs left over.
static dpcr_status wait_in_vain(void *argument, dpcri_comm *comm, dpcr_error *error) {
    int64_t value = 0;
    (void)argument;
    if (comm->rank == 1) return DPCR_OK;
    const dpcr_status status = dpcri_send(comm, 1, 5, &value, sizeof value, error);
    return status == DPCR_OK ? dpcri_receive(comm, 1, 0, &value, sizeof value, error) : status;
}

static void a_rank_that_sends_nothing_ends_in_words(void **state) {
    (void)state;
    for (int64_t ranks = 2; ranks <= 4; ranks++) {
        dpcr_error error = {0};
        assert_int_equal(dpcri_threads_run(context, ranks, 0.2, wait_in_vain, NULL, &error), DPCR_ERROR_SYSTEM);
        assert_non_null(strstr(error.text, "waited 0.2 s for rank 1, which sent nothing"));
    }
}

// Time is taken as passed: all of it, and since the last look.
static void what_this_process_stood_still_is_no_wait(void **state) {
    (void)state;
    dpcri_patience late = dpcri_patience_begin(20), stood = late, short_one = dpcri_patience_begin(0);
    assert_true(dpcri_patience_over(&short_one));
    assert_false(dpcri_patience_over(&late));
    assert_true(dpcri_patience_next(&late) < late.until);
    late.until -= 21;
    assert_true(dpcri_patience_over(&late));
    stood.until -= 100;
    stood.seen -= 100;
    assert_false(dpcri_patience_over(&stood));
    stood.until -= 21;
    assert_true(dpcri_patience_over(&stood));
}

// Rank 2 fails at once; the others, who would wait for a minute, end with it.
static dpcr_status one_fails(void *argument, dpcri_comm *comm, dpcr_error *error) {
    int64_t value;
    (void)argument;
    if (comm->rank == 2) return dpcri_fail(error, DPCR_ERROR_IO, "a disk is full");
    return dpcri_receive(comm, (comm->rank + 1) % comm->ranks, 0, &value, sizeof value, error);
}

static void a_failure_ends_everybody_s_waiting(void **state) {
    (void)state;
    dpcr_error error = {0};
    assert_int_equal(dpcri_threads_run(context, 4, 60, one_fails, NULL, &error), DPCR_ERROR_IO);
    assert_string_equal(error.text, "a disk is full");
}

static dpcr_status wrong_size(void *argument, dpcri_comm *comm, dpcr_error *error) {
    char text[8] = "1234567";
    (void)argument;
    return comm->rank ? dpcri_send(comm, 0, 1, text, 7, error) : dpcri_receive(comm, 1, 1, text, 8, error);
}

static void a_message_of_another_size_is_refused(void **state) {
    (void)state;
    dpcr_error error = {0};
    assert_int_equal(dpcri_threads_run(context, 2, 5, wrong_size, NULL, &error), DPCR_ERROR_FORMAT);
    assert_string_equal(error.text, "rank 1 sent 7 bytes, rank 0 wanted 8");
}

// ---- a caller's ranks ----

// Rank 1 fails, and leaves its error as it was.
static dpcr_status fail_silently(void *user, const dpcr_transport *transport, dpcr_error *error) {
    (void)error;
    return transport->rank == 1 ? *(const dpcr_status *)user : DPCR_OK;
}

static void a_rank_that_fails_without_a_word_has_failed(void **state) {
    (void)state;
    dpcr_status told = DPCR_ERROR_CALLBACK;
    dpcr_error error = {0};
    assert_int_equal(dpcr_ranks_run(context, 3, fail_silently, &told, &error), DPCR_ERROR_CALLBACK);
    assert_int_equal(error.status, DPCR_ERROR_CALLBACK);
    assert_string_equal(error.text, "rank 1 failed and did not say why");
    assert_int_equal(dpcr_ranks_run(context, 3, fail_silently, &told, NULL), DPCR_ERROR_CALLBACK);
}

static dpcr_status look_only(void *user, const dpcr_transport *transport, dpcr_error *error) {
    char byte = 0;
    if (transport->rank) return DPCR_OK;
    return transport->receive(transport->user, 1, DPCR_TAGS, &byte, 1, *(const double *)user, error);
}

// What is left of a caller's time may be below nothing.
static void a_deadline_that_has_passed_does_not_wait(void **state) {
    (void)state;
    const double deadlines[] = {0, -0.25, -0.75, -1e300, NAN};
    for (size_t i = 0; i < sizeof deadlines / sizeof *deadlines; i++) {
        double deadline = deadlines[i];
        dpcr_error error = {0};
        assert_int_equal(dpcr_ranks_run(context, 2, look_only, &deadline, &error), DPCR_ERROR_SYSTEM);
        assert_non_null(strstr(error.text, "for rank 1, which sent nothing"));
    }
}

typedef struct name {
    int64_t rank, tag;
    bool sends;
} name;

static dpcr_status talk_to(void *user, const dpcr_transport *transport, dpcr_error *error) {
    const name *to = user;
    char byte = 0;
    if (transport->rank) return DPCR_OK;
    if (to->sends) return transport->send(transport->user, to->rank, to->tag, &byte, 1, error);
    return transport->receive(transport->user, to->rank, to->tag, &byte, 1, 20, error);
}

static void ranks_that_are_not_there_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        name to = {.rank = i % 4 == 0 ? 2 : i % 4 == 1 ? -1 : 1, .tag = i % 4 < 2 ? DPCR_TAGS : -1, .sends = i < 4};
        dpcr_error error = {0};
        assert_int_equal(dpcr_ranks_run(context, 2, talk_to, &to, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "wanted a rank of 0 to 1, and a tag of 0 or more"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_by_name_and_in_order),
        cmocka_unit_test(a_rank_that_sends_nothing_ends_in_words),
        cmocka_unit_test(what_this_process_stood_still_is_no_wait),
        cmocka_unit_test(a_failure_ends_everybody_s_waiting),
        cmocka_unit_test(a_message_of_another_size_is_refused),
        cmocka_unit_test(a_rank_that_fails_without_a_word_has_failed),
        cmocka_unit_test(a_deadline_that_has_passed_does_not_wait),
        cmocka_unit_test(ranks_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
