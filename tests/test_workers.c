// SPDX-License-Identifier: MIT
// Training by several workers with the whole network each: dpcr_train's bits by data-parallel workers, checkpoints that
// any number of them goes on from, failures that end all.
#include <time.h>

#include "budget.h"
#include "deeppcr/workers.h"
#include "pipelining.h"

static small_data data;

static dpcr_workers_options workers_options(int64_t workers) {
    return (dpcr_workers_options){.size = sizeof(dpcr_workers_options), .workers = workers};
}

static void assert_same_parameters(dpcr_model *got, dpcr_model *wanted) {
    assert_memory_equal(dpcr_model_vector(got, NULL), dpcr_model_vector(wanted, NULL), vector_bytes(wanted));
}

// ---- data-parallel ----

// Odd numbers of rows, more workers than rows of the last minibatch, minibatches of one size, groups of any size, no
// encoder, no layers. Checkpoints have the bits of dpcr_train's.
static void data_parallel_training_has_the_loop_s_bits(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const struct {
        int64_t layers, width, inputs, count, batch, workers, groups;
        dpcr_dtype dtype;
        int64_t tie;
    } cases[] = {{6, 8, PIXELS, 203, 32, 1, 0, DPCR_F32, 0}, {6, 8, PIXELS, 203, 32, 2, 0, DPCR_F32, 0},
                 {6, 8, PIXELS, 203, 32, 3, 2, DPCR_F64, 0}, {6, 8, PIXELS, 101, 33, 5, 100, DPCR_F32, 0},
                 {3, PIXELS, 0, 67, 40, 4, 1, DPCR_F32, 0},  {0, 12, PIXELS, 50, 16, 3, 0, DPCR_F64, 0},
                 {40, 4, PIXELS, 40, 7, 3, 0, DPCR_F32, 0},  {7, 8, PIXELS, 50, 16, 3, 0, DPCR_F32, 2},
                 {5, PIXELS, 0, 50, 16, 2, 3, DPCR_F64, 1},  {4, 8, PIXELS, 64, 16, 2, 0, DPCR_F32, 0},
                 {4, 8, PIXELS, 10, 16, 2, 0, DPCR_F32, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        dpcr_model_options o = resnet_options(cases[k].layers, cases[k].width, cases[k].dtype);
        o.inputs = cases[k].inputs;
        o.tie = cases[k].tie;
        const dpcr_dataset *set = make_data(&data, cases[k].count, 1);
        const folder f = make_folder();
        dpcr_train_options options = train_options(2, cases[k].batch);
        options.save = f.file;
        dpcr_workers_options workers = workers_options(cases[k].workers);
        workers.groups = cases[k].groups;
        dpcr_model *single = make_model(context, &o), *model = make_model(context, &o);
        dpcr_train_state wanted, got;
        dpcr_workers_figures figures = {.size = sizeof figures};
        must(dpcr_train(context, single, set, &options, &wanted, error));
        const content saved = read_file(f.file);
        must(dpcr_train_data_parallel(context, model, set, &options, &workers, &got, &figures, error));
        assert_same_parameters(model, single);
        assert_same_file(f.file, &saved);
        free(saved.bytes);
        remove_folder(&f);
        assert_true(got.loss == wanted.loss && got.accuracy == wanted.accuracy && got.step == wanted.step);
        assert_int_equal(figures.updates, wanted.steps);
        assert_string_equal(dpcr_model_metadata(model, "pixel_mean"), dpcr_model_metadata(single, "pixel_mean"));
        dpcr_model_destroy(single);
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

// A pipeline clips by the same sums; the norm counts tied steps once.
static void check_clipped(int64_t tie) {
    dpcr_context *context = make_context(1);
    dpcr_model_options o = resnet_options(5, 8, DPCR_F32);
    o.tie = tie;
    const dpcr_dataset *set = make_data(&data, 90, 1);
    dpcr_train_options options = train_options(2, 16);
    dpcr_model *plain = make_model(context, &o), *wanted = make_model(context, &o), *got = make_model(context, &o);
    const dpcr_schedule_options schedule = {
        .size = sizeof schedule, .kind = DPCR_SCHEDULE_1F1B, .ranks = 3, .microbatches = 4};
    dpcr_workers_options workers = workers_options(3);
    must(dpcr_train_data_parallel(context, plain, set, &options, &workers, NULL, NULL, error));
    options.clip = 0.05;
    must(dpcr_train_pipeline(context, wanted, set, &options, &schedule, NULL, NULL, NULL, error));
    must(dpcr_train_data_parallel(context, got, set, &options, &workers, NULL, NULL, error));
    assert_same_parameters(got, wanted);
    assert_true(memcmp(dpcr_model_vector(got, NULL), dpcr_model_vector(plain, NULL), vector_bytes(plain)) != 0);
    dpcr_model_destroy(wanted);
    wanted = make_model(context, &o);  // one process's, but for the norm's last bits
    must(dpcr_train(context, wanted, set, &options, NULL, error));
    const float *a = dpcr_model_vector(got, NULL), *b = dpcr_model_vector(wanted, NULL);
    for (size_t i = 0; i < vector_bytes(got) / sizeof *a; i++) assert_float_equal(a[i], b[i], 1e-5);
    dpcr_model_destroy(plain);
    dpcr_model_destroy(wanted);
    dpcr_model_destroy(got);
    dpcr_context_destroy(context);
}

static void clipped_training_has_a_pipeline_s_bits(void **state) {
    (void)state;
    for (int64_t tie = 0; tie < 4; tie++) check_clipped(tie);
}

static void any_number_of_workers_goes_on_from_a_checkpoint(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F64);
    const dpcr_dataset *set = make_data(&data, 203, 1);
    const folder f = make_folder(), g = make_folder();
    dpcr_train_options options = train_options(3, 32);
    dpcr_model *whole = make_model(context, &o), *model = make_model(context, &o);
    options.save = g.file;
    must(dpcr_train(context, whole, set, &options, NULL, error));
    const content wanted = read_file(g.file);

    stopper stop = {.at = 4};
    options.save = f.file;
    options.progress = stop_at;
    options.progress_user = &stop;
    dpcr_error told = {0};
    dpcr_train_state last;
    dpcr_workers_options workers = workers_options(3);
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_true(last.step == 4 && strstr(told.text, "to go on, resume from"));
    options.resume = f.file;
    const content fourth = read_file(f.file);
    stop.at = 6;
    options.progress = note_but;
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_same_file(f.file, &fourth);  // nothing is saved of a step that no note was taken of
    assert_told(&told, 6, 21, f.file, 4);
    free(fourth.bytes);
    options.progress = stop_at;
    stop.at = 11;  // in the second epoch
    workers = workers_options(2);
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    stop.at = 15;
    const dpcr_schedule_options schedule = {
        .size = sizeof schedule, .kind = DPCR_SCHEDULE_ZB_H1, .ranks = 2, .microbatches = 3};
    assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    stop.at = 1000;
    workers = workers_options(4);
    must(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, error));
    assert_same_parameters(model, whole);
    assert_same_file(f.file, &wanted);                                                            // the books too
    must(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, error));  // complete already
    assert_same_parameters(model, whole);
    assert_int_equal(last.step, 21);
    options.batch = 31;
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, &last, NULL, &told),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "batch is 31, wanted 32"));
    free(wanted.bytes);
    dpcr_model_destroy(model);
    dpcr_model_destroy(whole);
    remove_folder(&f);
    remove_folder(&g);
    dpcr_context_destroy(context);
}

// ---- SWAP ----

typedef struct moments {
    dpcr_swap_moment at[8];
    int64_t worker[8];
    void *parameters[8];
    int count, stop_after;
} moments;

static int on_moment(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model) {
    moments *m = user;
    m->at[m->count] = moment;
    m->worker[m->count] = worker;
    m->parameters[m->count++] = parameters_of(model);
    return m->stop_after && m->count >= m->stop_after;
}

static dpcr_swap_options swap_options(moments *m) {
    *m = (moments){0};
    return (dpcr_swap_options){.size = sizeof(dpcr_swap_options),
                               .epochs = 2,
                               .batch = 10,
                               .optimiser = {.kind = DPCR_SGD, .rate = 0.05, .momentum = 0.9, .total = -1},
                               .moment = on_moment,
                               .moment_user = m};
}

static void free_moments(moments *m) {
    for (int k = 0; k < m->count; k++) free(m->parameters[k]);
    m->count = 0;
}

// Together: the loop. Apart: the loop, with seeds of their own. Then the mean.
static void swap_is_what_it_says(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    dpcr_train_options options = train_options(2, 40);
    options.clip = 0.3;  // together and apart
    enum { WORKERS = 3 };
    dpcr_model *model = make_model(context, &o), *together = make_model(context, &o);
    moments m;
    const dpcr_swap_options swap = swap_options(&m);
    const dpcr_workers_options workers = workers_options(WORKERS);
    dpcr_workers_figures figures = {.size = sizeof figures};
    dpcr_train_state last;
    must(dpcr_train_swap(context, model, set, &options, &workers, &swap, &last, &figures, error));
    must(dpcr_train(context, together, set, &options, NULL, error));
    assert_int_equal(m.count, 1 + WORKERS + 1);
    assert_true(figures.together == 2 && figures.updates == 6 && figures.seconds[1] > 0);
    assert_true(last.step == 6 + 18 && last.steps == 24 && last.epoch == 4);
    const size_t bytes = vector_bytes(together);
    const int64_t count = (int64_t)(bytes / sizeof(float));
    assert_true(m.at[0] == DPCR_SWAP_TOGETHER && m.at[WORKERS + 1] == DPCR_SWAP_AVERAGED);
    assert_memory_equal(m.parameters[0], dpcr_model_vector(together, NULL), bytes);
    double *sum = calloc((size_t)count, sizeof *sum);
    for (int64_t k = 0; k < WORKERS; k++) {
        dpcr_train_options alone = train_options(swap.epochs, swap.batch);
        dpcr_model *apart = make_model(context, &o);
        alone.optimiser = swap.optimiser;
        alone.clip = options.clip;
        alone.seed = options.seed + 1 + (uint64_t)k;
        memcpy(dpcr_model_vector(apart, NULL), m.parameters[0], bytes);
        must(dpcr_train(context, apart, set, &alone, NULL, error));
        assert_true(m.at[1 + k] == DPCR_SWAP_APART && m.worker[1 + k] == k);
        assert_memory_equal(m.parameters[1 + k], dpcr_model_vector(apart, NULL), bytes);
        for (int64_t i = 0; i < count; i++) sum[i] += ((const float *)m.parameters[1 + k])[i];
        dpcr_model_destroy(apart);
    }
    for (int64_t i = 0; i < count; i++)
        assert_true(((const float *)dpcr_model_vector(model, NULL))[i] == (float)(sum[i] / WORKERS));
    assert_memory_equal(m.parameters[WORKERS + 1], dpcr_model_vector(model, NULL), bytes);
    free(sum);
    free_moments(&m);
    dpcr_model_destroy(model);
    dpcr_model_destroy(together);
    dpcr_context_destroy(context);
}

// Stopped together, stopped apart, gone on from with other options for what is apart: from where they parted.
static void swap_is_gone_on_with(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F64);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    const folder f = make_folder();
    dpcr_train_options options = train_options(3, 40);
    dpcr_model *whole = make_model(context, &o), *model = make_model(context, &o);
    moments m;
    dpcr_swap_options swap = swap_options(&m);
    swap.accuracy = 1e-9;  // the first epoch is enough
    const dpcr_workers_options workers = workers_options(2);
    dpcr_workers_figures figures = {.size = sizeof figures};
    must(dpcr_train_swap(context, whole, set, &options, &workers, &swap, NULL, &figures, error));
    assert_int_equal(figures.together, 1);
    free_moments(&m);

    dpcr_error told = {0};
    stopper stop = {.at = 2};
    options.save = f.file;
    options.progress = stop_at;
    options.progress_user = &stop;
    assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_non_null(strstr(told.text, "after step 2 of 9"));
    options.resume = f.file;
    stop.at = 8;  // apart
    assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_non_null(strstr(told.text, "while the workers were apart"));
    free_moments(&m);
    stop.at = 1000;
    must(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, error));
    assert_same_parameters(model, whole);
    free_moments(&m);
    dpcr_model *loaded = NULL;
    must(dpcr_model_load(context, f.file, &loaded, error));
    assert_same_parameters(loaded, whole);
    assert_true(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told) != DPCR_OK);
    dpcr_model_destroy(loaded);
    dpcr_model_destroy(model);
    dpcr_model_destroy(whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// Who stops when shown what the workers made loses none of it: their mean is made and kept. At the mean itself, too.
static void swap_keeps_what_was_made(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F64);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    const folder f = make_folder();
    dpcr_train_options options = train_options(1, 40);
    const dpcr_workers_options workers = workers_options(3);
    dpcr_model *whole = make_model(context, &o);
    moments m;
    dpcr_swap_options swap = swap_options(&m);
    must(dpcr_train_swap(context, whole, set, &options, &workers, &swap, NULL, NULL, error));
    free_moments(&m);
    options.save = f.file;
    for (int at = 2; at <= 5; at++) {
        dpcr_model *model = make_model(context, &o), *loaded = NULL;
        dpcr_error told = {0};
        m.stop_after = at;
        assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                         DPCR_ERROR_CANCELLED);
        assert_int_equal(m.count, at);
        assert_non_null(strstr(told.text, "the network is trained, in "));
        assert_non_null(strstr(told.text, f.file));
        must(dpcr_model_load(context, f.file, &loaded, error));
        assert_same_parameters(model, whole);
        assert_same_parameters(loaded, whole);
        free_moments(&m);
        dpcr_model_destroy(loaded);
        dpcr_model_destroy(model);
    }
    dpcr_model_destroy(whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static int change_the_average(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model) {
    (void)worker;
    if (moment == DPCR_SWAP_AVERAGED) *(double *)dpcr_model_vector(model, NULL) = *(double *)user;
    return 0;
}

// What the caller makes of the mean is what is kept; what is no number comes after all steps.
static void swap_keeps_a_changed_average(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F64);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    const folder f = make_folder();
    dpcr_train_options options = train_options(1, 40);
    const dpcr_workers_options workers = workers_options(2);
    moments m;
    dpcr_swap_options swap = swap_options(&m);
    double value = 42;
    swap.moment = change_the_average;
    swap.moment_user = &value;
    options.save = f.file;
    dpcr_model *model = make_model(context, &o), *loaded = NULL;
    must(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, error));
    must(dpcr_model_load(context, f.file, &loaded, error));
    assert_true(*(const double *)dpcr_model_vector(loaded, NULL) == 42);
    assert_same_parameters(loaded, model);
    value = NAN;
    dpcr_error told = {0};
    assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    if (!strstr(told.text, "after step 21 parameter 0 ")) fail_msg("'%s'", told.text);  // 3 together, 2 times 9 apart
    dpcr_model_destroy(loaded);
    dpcr_model_destroy(model);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static int dawdle(void *user, const dpcr_train_state *state) {
    (void)state;
    const struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    return ++*(int *)user < 0;
}

static int dawdle_at_moment(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model) {
    (void)moment, (void)worker, (void)model;
    return dawdle(user, NULL);
}

// What the caller does in its callbacks is no time of the phases.
static void callbacks_are_no_part_of_swap_s_seconds(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    dpcr_train_options options = train_options(2, 40);
    int calls = 0;
    moments m;
    dpcr_swap_options swap = swap_options(&m);
    swap.moment = dawdle_at_moment;
    options.progress = dawdle;
    swap.moment_user = options.progress_user = &calls;
    const dpcr_workers_options workers = workers_options(2);
    dpcr_workers_figures figures = {.size = sizeof figures};
    dpcr_model *model = make_model(context, &o);
    const double began = dpcri_seconds();
    must(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, &figures, error));
    const double all = dpcri_seconds() - began;
    assert_int_equal(calls, 6 + 18 + 4);
    for (int phase = 0; phase < 3; phase++) assert_true(figures.seconds[phase] >= 0);
    assert_true(figures.seconds[0] + figures.seconds[1] + figures.seconds[2] + 0.02 * calls <= all);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static int stop_once(void *user, const dpcr_train_state *state) { return state->step == ((stopper *)user)->at; }

// Nobody goes on alone, for longer than anybody waits, when the first phase was stopped: in it, after its last step, or
// by the caller who was shown its network.
static void a_stop_before_they_part_ends_all(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    const dpcr_workers_options workers = workers_options(3);
    for (int64_t at = 5; at <= 7; at++) {  // of 6 steps
        dpcr_model *model = make_model(context, &o);
        dpcr_train_options options = train_options(2, 40);
        dpcr_error told = {0};
        stopper stop = {.at = at};
        moments m;
        dpcr_swap_options swap = swap_options(&m);
        swap.epochs = UINT32_MAX;
        m.stop_after = 1;
        options.progress = stop_once;
        options.progress_user = &stop;
        assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                         DPCR_ERROR_CANCELLED);
        const char *says = at == 5 ? "after step 5 of 6" : "after step 6 of 6";
        if (!strstr(told.text, says)) fail_msg("'%s' does not say '%s'", told.text, says);
        assert_int_equal(m.count, at > 6);
        free_moments(&m);
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

// A worker whose rate is beyond measure ends all, and is the one who says why, and where: it counts its own steps.
static void swap_fails_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 90, 1);
    const dpcr_train_options options = train_options(1, 40);
    const dpcr_workers_options workers = workers_options(3);
    dpcr_model *model = make_model(context, &o);
    dpcr_error told = {0};
    moments m;
    dpcr_swap_options swap = swap_options(&m);
    swap.optimiser.rate = 1e38;
    assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(told.text, "wanted a finite number"));
    if (strncmp(told.text, "train: worker ", 14) != 0 || !strstr(told.text, " apart, after 3 steps together: step "))
        fail_msg("'%s'", told.text);
    free_moments(&m);
    const char *const says[] = {"apart for 0 epochs", "batches of 0", "accuracy 2", "rate", "another size"};
    for (int k = 0; k < 5; k++) {
        swap = swap_options(&m);
        if (k == 0) swap.epochs = 0;
        if (k == 1) swap.batch = 0;
        if (k == 2) swap.accuracy = 2;
        if (k == 3) swap.optimiser.rate = -1;
        if (k == 4) swap.size--;
        assert_int_equal(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &told),
                         DPCR_ERROR_ARGUMENT);
        if (!strstr(told.text, says[k])) fail_msg("'%s' does not say '%s'", told.text, says[k]);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- deadlines ----

static int take_a_while(void *user, const dpcr_train_state *state) {
    const struct timespec nap = {.tv_nsec = 400000000};
    (void)user;
    if (state->epoch_ended) nanosleep(&nap, NULL);
    return 0;
}

static int take_a_moment(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model) {
    const dpcr_train_state state = {.epoch_ended = 1};
    (void)moment, (void)worker, (void)model;
    return take_a_while(user, &state);
}

// The deadline is for the work of others, not for what the caller does with an epoch that has ended. A machine that
// stands still for as long is somebody else's fault: of a few attempts one must go through.
static bool in_time(dpcr_status status, dpcr_error *error) {
    if (status == DPCR_OK) return true;
    if (!strstr(error->text, "waited")) fail_msg("%s", error->text);
    return false;
}

static void a_slow_caller_is_waited_for(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 40, 1);
    dpcr_train_options options = train_options(1, 20);
    options.progress = take_a_while;
    dpcr_workers_options workers = workers_options(3);
    dpcr_pipeline_options pipeline = {.size = sizeof pipeline};
    const dpcr_schedule_options schedule = {
        .size = sizeof schedule, .kind = DPCR_SCHEDULE_1F1B, .ranks = 2, .microbatches = 2};
    dpcr_layerwise_options layerwise = {.size = sizeof layerwise};
    const dpcr_swap_options swap = {
        .size = sizeof swap, .epochs = 1, .batch = 20, .optimiser = options.optimiser, .moment = take_a_moment};
    workers.deadline = pipeline.deadline = layerwise.deadline = 0.2;
    dpcr_model *model = make_model(context, &o);
    bool went[4] = {false};
    for (int attempt = 0; attempt < 20; attempt++) {
        dpcr_error e = {0};
        if (!went[0])
            went[0] = in_time(dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &e), &e);
        if (!went[1])
            went[1] =
                in_time(dpcr_train_pipeline(context, model, set, &options, &schedule, &pipeline, NULL, NULL, &e), &e);
        if (!went[2])
            went[2] = in_time(dpcr_train_layerwise(context, model, set, &options, &layerwise, NULL, NULL, &e), &e);
        if (!went[3])
            went[3] = in_time(dpcr_train_swap(context, model, set, &options, &workers, &swap, NULL, NULL, &e), &e);
    }
    for (int k = 0; k < 4; k++) assert_true(went[k]);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- faults ----

static void faults_end_all_workers(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 100, 1);
    dpcr_train_options options = train_options(1, 32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_workers_options workers = workers_options(3);
    dpcr_error told = {0};
    options.save = "/nowhere/run.safetensors";
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &told),
                     DPCR_ERROR_IO);
    assert_non_null(strstr(told.text, "/nowhere/run.safetensors"));
    options = train_options(1, 10);
    options.optimiser.rate = 1e38;
    options.optimiser.warm_up = 0;
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(told.text, "wanted a finite number"));
    // One step, whose loss is that of the weights before it.
    options = train_options(1, 100);
    options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 1e300};
    const dpcr_layerwise_options layerwise = {.size = sizeof layerwise};
    stopper stop = {.at = 1};
    options.progress_user = &stop;
    for (int k = 0; k < 4; k++) {
        dpcr_model *once = make_model(context, &o);
        options.progress = k < 2 ? NULL : note_but;  // nothing is saved of it
        const dpcr_status status =
            k % 2 ? dpcr_train_layerwise(context, once, set, &options, &layerwise, NULL, NULL, &told)
                  : dpcr_train_data_parallel(context, once, set, &options, &workers, NULL, NULL, &told);
        assert_int_equal(status, DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(told.text, "after step 1 parameter 0 is not finite"));
        dpcr_model_destroy(once);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// A transport whose other end says nothing, and counts how long it was waited for.
static dpcr_status hear_nothing(void *user, int64_t from, int64_t tag, void *bytes, size_t size, double deadline,
                                dpcr_error *error) {
    (void)from, (void)tag, (void)bytes, (void)size;
    *(double *)user = deadline;
    *error = (dpcr_error){.status = DPCR_ERROR_SYSTEM, .text = "silence"};
    return DPCR_ERROR_SYSTEM;
}

static void a_silent_peer_ends_in_its_error(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 100, 1);
    const dpcr_train_options options = train_options(1, 32);
    double deadline = 0;
    for (int64_t rank = 0; rank < 2; rank++) {
        const dpcr_transport transport = {.size = sizeof transport,
                                          .user = &deadline,
                                          .rank = rank,
                                          .ranks = 2,
                                          .largest_tag = 32767,
                                          .send = send_nowhere,
                                          .receive = hear_nothing};
        dpcr_workers_options workers = workers_options(2);
        dpcr_model *model = make_model(context, &o);
        dpcr_error told = {0};
        workers.deadline = 2.5;
        workers.transport = &transport;
        assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &told),
                         DPCR_ERROR_SYSTEM);
        assert_string_equal(told.text, "silence");
        assert_true(deadline == (rank ? 2.5 : 0.75 * 2.5));  // one after the other
        workers.workers = 3;
        assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &told),
                         DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(told.text, "wanted 3 ranks"));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

static void what_cannot_be_is_refused_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_model_options o = resnet_options(2, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_dataset *set = make_data(&data, 30, 1);
    const dpcr_train_options options = train_options(1, 10);
    const struct {
        dpcr_workers_options workers;
        const char *says;
    } cases[] = {
        {{.size = 8}, "workers.size is 8"},
        {{.size = sizeof cases[0].workers, .workers = INT64_MAX}, "workers 9223372036854775807"},
        {{.size = sizeof cases[0].workers, .workers = 4097}, "wanted 1 to 4096"},
        {{.size = sizeof cases[0].workers, .workers = 0}, "workers 0"},
        {{.size = sizeof cases[0].workers, .workers = 2, .deadline = -1}, "deadline -1"},
        {{.size = sizeof cases[0].workers, .workers = 2, .groups = -1}, "groups -1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        dpcr_error told = {0};
        assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &cases[k].workers, NULL, NULL, &told),
                         DPCR_ERROR_ARGUMENT);
        if (!strstr(told.text, cases[k].says)) fail_msg("'%s' does not say '%s'", told.text, cases[k].says);
    }
    assert_int_equal(dpcr_train_data_parallel(context, NULL, set, &options, &cases[0].workers, NULL, NULL, NULL),
                     DPCR_ERROR_ARGUMENT);
    // an older caller's options and figures: what lies behind is neither read nor written
    const dpcr_workers_options older = {
        .size = offsetof(dpcr_workers_options, groups), .workers = 2, .deadline = 60, .groups = -1};
    dpcr_workers_figures figures, kept;
    memset(&figures, 0x55, sizeof figures);
    figures.size = offsetof(dpcr_workers_figures, waited);
    kept = figures;
    must(dpcr_train_data_parallel(context, model, set, &options, &older, NULL, &figures, error));
    assert_int_equal(figures.updates, 3);
    assert_int_equal(figures.size, kept.size);
    assert_memory_equal((char *)&figures + kept.size, (char *)&kept + kept.size, sizeof kept - kept.size);
    figures.size = 0;
    dpcr_error told = {0};
    assert_int_equal(dpcr_train_data_parallel(context, model, set, &options, &older, NULL, &figures, &told),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "figures of another size"));
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static void refused_memory_ends_all_workers(void **state) {
    (void)state;
    const dpcr_model_options o = resnet_options(3, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 12, 1);
    const dpcr_train_options options = train_options(1, 4);
    bool whole = false;
    for (int64_t grant = 0; !whole && grant < 500; grant++) {
        budget b = {.left = INT64_MAX};
        const dpcr_context_options given = budget_options(&b);
        dpcr_context *context = NULL;
        dpcr_error told = {0};
        must(dpcr_context_create(&given, &context, error));
        dpcr_model *model = make_model(context, &o);
        must(dpcr_model_set_metadata(model, "pixel_mean", "0.123456789012345678", error));
        must(dpcr_model_set_metadata(model, "pixel_deviation", "0.123456789012345678", error));
        const int64_t live = b.live;
        const dpcr_workers_options workers = workers_options(2);
        b.left = grant;
        const dpcr_status status = dpcr_train_data_parallel(context, model, set, &options, &workers, NULL, NULL, &told);
        whole = status == DPCR_OK;
        if (!whole && status != DPCR_ERROR_MEMORY) fail_msg("grant %lld: %s", (long long)grant, told.text);
        assert_int_equal(b.live, live);
        b.left = INT64_MAX;
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    assert_true(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel_training_has_the_loop_s_bits),
        cmocka_unit_test(clipped_training_has_a_pipeline_s_bits),
        cmocka_unit_test(any_number_of_workers_goes_on_from_a_checkpoint),
        cmocka_unit_test(swap_is_what_it_says),
        cmocka_unit_test(swap_is_gone_on_with),
        cmocka_unit_test(swap_keeps_what_was_made),
        cmocka_unit_test(swap_keeps_a_changed_average),
        cmocka_unit_test(callbacks_are_no_part_of_swap_s_seconds),
        cmocka_unit_test(a_stop_before_they_part_ends_all),
        cmocka_unit_test(swap_fails_in_words),
        cmocka_unit_test(a_slow_caller_is_waited_for),
        cmocka_unit_test(faults_end_all_workers),
        cmocka_unit_test(a_silent_peer_ends_in_its_error),
        cmocka_unit_test(what_cannot_be_is_refused_in_words),
        cmocka_unit_test(refused_memory_ends_all_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
