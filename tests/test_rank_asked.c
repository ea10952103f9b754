// SPDX-License-Identifier: MIT
// Ranks with callers of their own, as processes are: whoever is asked to stop, all do, after a checkpoint that goes on
// to the same bits; and a rank whose wait was ended by a signal says so.
#include <errno.h>
#include <pthread.h>

#include "deeppcr/workers.h"
#include "pipelining.h"

enum { ANSWER = 15, RANKS = 3, BATCHES = 7, EPOCHS = 3, APART = 4 };
typedef enum kind { SYNCHRONOUS, LATE, DATA_PARALLEL, SWAP } kind;

static small_data data;
static const dpcr_dataset *set;

// What asks a rank to stop: the question after so many others, and every one from then on; never where it is negative.
typedef struct caller {
    pthread_t thread;
    int64_t left;
    bool elsewhere;  // was asked on another thread
} caller;

static int is_over(void *user) {
    caller *c = user;
    c->elsewhere |= !pthread_equal(c->thread, pthread_self());
    if (c->left > 0) c->left--;
    return c->left == 0 ? ANSWER : 0;
}

typedef struct job {
    kind kind;
    const char *save;
    int64_t asked, after;  // rank, and after how many questions
    bool figures;
    dpcr_status status[RANKS];
    dpcr_error error[RANKS];
    dpcr_train_state last;
    dpcr_pipeline_figures told;
    void *parameters;
    bool elsewhere[RANKS];
} job;

static dpcr_train_options options_of(const job *j) {
    dpcr_train_options options = train_options(j->kind == SWAP ? 1 : EPOCHS, 32);
    options.save = j->save;
    return options;
}

static dpcr_status train(job *j, dpcr_context *context, dpcr_model *model, const dpcr_transport *transport,
                         dpcr_train_state *last, dpcr_pipeline_figures *figures, dpcr_error *error) {
    const dpcr_train_options options = options_of(j);
    const dpcr_schedule_options schedule = {.size = sizeof schedule,
                                            .kind = j->kind == LATE ? DPCR_SCHEDULE_PIPEDREAM : DPCR_SCHEDULE_ZB_H1,
                                            .ranks = RANKS,
                                            .microbatches = j->kind == LATE ? 1 : 4};
    const dpcr_pipeline_options pipeline = {
        .size = sizeof pipeline, .segment = j->kind == LATE ? 5 : 0, .transport = transport};
    const dpcr_workers_options workers = {.size = sizeof workers, .workers = RANKS, .transport = transport};
    const dpcr_swap_options swap = {.size = sizeof swap, .epochs = APART, .batch = 20, .optimiser = options.optimiser};
    if (j->kind == SWAP) return dpcr_train_swap(context, model, set, &options, &workers, &swap, last, NULL, error);
    if (j->kind == DATA_PARALLEL)
        return dpcr_train_data_parallel(context, model, set, &options, &workers, last, NULL, error);
    return dpcr_train_pipeline(context, model, set, &options, &schedule, &pipeline, last, figures, error);
}

static dpcr_status body(void *user, const dpcr_transport *transport, dpcr_error *error) {
    job *j = user;
    const int64_t rank = transport->rank;
    caller c = {.thread = pthread_self(), .left = rank == j->asked ? j->after + 1 : -1};
    const dpcr_context_options options = {.size = sizeof options, .threads = 1, .cancel = is_over, .cancel_user = &c};
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    dpcr_context *context = NULL;
    dpcr_model *model = NULL;
    dpcr_train_state last = {0};
    dpcr_pipeline_figures figures = {.size = sizeof figures, .trace = 1};
    dpcr_status status = dpcr_context_create(&options, &context, error);
    if (status == DPCR_OK) status = dpcr_model_create(context, &o, &model, error);
    if (status == DPCR_OK) status = train(j, context, model, transport, &last, j->figures ? &figures : NULL, error);
    j->status[rank] = status;
    j->error[rank] = *error;
    j->elsewhere[rank] = c.elsewhere;
    if (rank == 0 && status == DPCR_OK) j->parameters = parameters_of(model);
    if (rank == 0) j->last = last;
    if (rank == 0) j->told = figures;
    if (rank == 0 && figures.actions)
        for (int64_t n = 0; n < figures.actions; n++)
            j->told.busy = j->told.busy < figures.end[n] ? figures.end[n] : j->told.busy;
    dpcr_pipeline_figures_free(context, &figures);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    return status;
}

static dpcr_status run(dpcr_context *context, job *j) {
    dpcr_error error = {0};
    const dpcr_status status = dpcr_ranks_run(context, RANKS, body, j, &error);
    assert_int_equal(status, j->status[0]);
    for (int r = 0; r < RANKS; r++) assert_false(j->elsewhere[r]);
    return status;
}

// By one process, from the start or the file on.
static void *go_on(dpcr_context *context, const char *file) {
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    dpcr_train_options options = train_options(EPOCHS, 32);
    options.resume = file;
    train_well(context, model, set, &options);
    void *parameters = parameters_of(model);
    assert_true(vector_bytes(model) > 100);
    dpcr_model_destroy(model);
    return parameters;
}

static size_t bytes_of(dpcr_context *context) {
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const size_t bytes = vector_bytes(model);
    dpcr_model_destroy(model);
    return bytes;
}

static void whoever_is_asked_stops_all(void **state) {
    (void)state;
    static const struct {
        kind kind;
        int64_t after;  // questions to a rank but 0: one a run
        int step, steps;
    } cases[] = {{SYNCHRONOUS, 3, 4, 21},   {SYNCHRONOUS, 6, 7, 21},     {LATE, 2, 12, 21},
                 {DATA_PARALLEL, 3, 4, 21}, {DATA_PARALLEL, 13, 14, 21}, {SWAP, 3, 4, 7}};
    dpcr_context *context = make_context(1);
    const folder f = make_folder();
    void *whole = go_on(context, NULL);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int64_t rank = 1; rank < RANKS; rank++) {
            char says[64];
            job j = {.kind = cases[k].kind, .save = f.file, .asked = rank, .after = cases[k].after};
            assert_int_equal(run(context, &j), DPCR_ERROR_CANCELLED);
            snprintf(says, sizeof says, "stopped as asked after step %d of %d; to go on", cases[k].step,
                     cases[k].steps);
            if (!strstr(j.error[0].text, says)) fail_msg("'%s' does not say '%s'", j.error[0].text, says);
            assert_int_equal(j.error[0].code, ANSWER);
            assert_int_equal(j.last.step, cases[k].step);
            if (j.kind != SYNCHRONOUS && j.kind != DATA_PARALLEL) continue;
            void *parameters = go_on(context, f.file);
            assert_memory_equal(parameters, whole, bytes_of(context));
            free(parameters);
        }
    free(whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// Nothing is left to be stopped; and the run's times are of one clock.
static void who_is_asked_at_the_end_has_it_all(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    void *whole = go_on(context, NULL);
    for (int k = 0; k < 2; k++) {
        job j = {.kind = k ? DATA_PARALLEL : SYNCHRONOUS, .asked = 1, .after = 20, .figures = !k};
        assert_int_equal(run(context, &j), DPCR_OK);
        assert_memory_equal(j.parameters, whole, bytes_of(context));
        assert_true(k || (j.told.runs == 18 && j.told.makespan > 0 && j.told.makespan < 1000 && j.told.busy < 1000));
        free(j.parameters);
    }
    free(whole);
    dpcr_context_destroy(context);
}

// The first phase has BATCHES questions; the next is after the first step alone, one or more come on the way, and one
// after the last step of all.
static void workers_apart_are_stopped_too(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (int64_t rank = 1; rank < RANKS; rank++) {
        int64_t after = BATCHES;
        for (int64_t runs = 0, last = 0; last < BATCHES + APART * BATCHES; runs++) {
            job j = {.kind = SWAP, .asked = rank, .after = after};
            assert_true(runs < 50);
            if (run(context, &j) == DPCR_OK) {  // meetings go by the clock: this one had fewer
                free(j.parameters);
                assert_true(after > BATCHES + 1);
                after = BATCHES + 1;
                continue;
            }
            assert_int_equal(j.error[0].status, DPCR_ERROR_CANCELLED);
            assert_non_null(strstr(j.error[0].text, "stopped as asked while the workers were apart"));
            assert_int_equal(j.error[0].code, ANSWER);
            last = j.last.step;
            if (after++ == BATCHES) assert_int_equal(last, BATCHES + 1);
        }
    }
    dpcr_context_destroy(context);
}

static void meetings_change_no_bits(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    job j = {.kind = SWAP, .asked = -1};
    dpcr_train_state last;
    assert_int_equal(run(context, &j), DPCR_OK);
    must(train(&j, context, model, NULL, &last, NULL, error));
    assert_memory_equal(j.parameters, dpcr_model_vector(model, NULL), vector_bytes(model));
    free(j.parameters);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// Ranks that are threads have one caller, who is asked on his own.
static void threads_do_not_ask_by_themselves(void **state) {
    (void)state;
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    for (kind k = SYNCHRONOUS; k <= SWAP; k++) {
        caller c = {.thread = pthread_self(), .left = -1};
        const dpcr_context_options options = {
            .size = sizeof options, .threads = 1, .cancel = is_over, .cancel_user = &c};
        dpcr_context *context = NULL;
        dpcr_train_state last;
        job j = {.kind = k};
        must(dpcr_context_create(&options, &context, error));
        dpcr_model *model = make_model(context, &o);
        must(train(&j, context, model, NULL, &last, NULL, error));
        assert_false(c.elsewhere);
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
    }
}

// ---- a wait that a signal ended ----

static dpcr_status be_interrupted(void *user, int64_t from, int64_t tag, void *bytes, size_t size, double deadline,
                                  dpcr_error *error) {
    (void)from, (void)tag, (void)bytes, (void)size, (void)deadline;
    *error = (dpcr_error){.status = *(dpcr_status *)user, .code = EINTR, .text = "asked to stop while waiting"};
    return error->status;
}

static void an_interrupted_wait_says_so(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    for (int k = 0; k < 8; k++) {
        dpcr_status status = k % 2 ? DPCR_ERROR_SYSTEM : DPCR_ERROR_IO;
        const dpcr_transport transport = {.size = sizeof transport,
                                          .user = &status,
                                          .rank = 1,
                                          .ranks = RANKS,
                                          .largest_tag = 1 << 30,
                                          .send = send_nowhere,
                                          .receive = be_interrupted};
        job j = {.kind = (kind)(k / 2)};
        dpcr_model *model = make_model(context, &o);
        dpcr_train_state last;
        dpcr_error told = {0};
        assert_int_equal(train(&j, context, model, &transport, &last, NULL, &told), status);
        assert_int_equal(told.status, status);
        assert_int_equal(told.code, EINTR);
        assert_non_null(strstr(told.text, "asked to stop while waiting"));
        if (k == 1) assert_non_null(strstr(told.text, "pipeline: stage 1 waits for the activation of microbatch 0"));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_is_asked_stops_all),       cmocka_unit_test(who_is_asked_at_the_end_has_it_all),
        cmocka_unit_test(workers_apart_are_stopped_too),    cmocka_unit_test(meetings_change_no_bits),
        cmocka_unit_test(threads_do_not_ask_by_themselves), cmocka_unit_test(an_interrupted_wait_says_so),
    };
    set = make_data(&data, 203, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
