// SPDX-License-Identifier: MIT
// Training by a pipeline: dpcr_train's bits, checkpoints that any number of ranks goes on from, requests to stop,
// refusals in words, failures that end every rank.
#include "budget.h"
#include "pipelining.h"

static small_data data;

static dpcr_schedule_options schedule_options(dpcr_schedule_kind kind, int64_t p, int64_t m) {
    return (dpcr_schedule_options){.size = sizeof(dpcr_schedule_options), .kind = kind, .ranks = p, .microbatches = m};
}

static void train_by(dpcr_context *context, dpcr_model *model, const dpcr_dataset *set,
                     const dpcr_train_options *options, const dpcr_schedule_options *schedule,
                     const dpcr_pipeline_options *pipeline) {
    dpcr_train_state last;
    must(dpcr_train_pipeline(context, model, set, options, schedule, pipeline, &last, NULL, error));
    assert_true(last.step == last.steps);
}

static void assert_same_parameters(dpcr_model *got, dpcr_model *wanted) {
    assert_memory_equal(dpcr_model_vector(got, NULL), dpcr_model_vector(wanted, NULL), vector_bytes(wanted));
}

static void synchronous_training_has_the_loop_s_bits(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 203, 1);
    const dpcr_train_options options = train_options(2, 32);
    dpcr_model *single = make_model(context, &o);
    dpcr_train_state wanted, got;
    must(dpcr_train(context, single, set, &options, &wanted, error));
    for (int64_t p = 1; p <= 4; p++) {
        const dpcr_schedule_options schedule = schedule_options(p == 3   ? DPCR_SCHEDULE_ZB_V
                                                                : p == 4 ? DPCR_SCHEDULE_1F1B
                                                                         : DPCR_SCHEDULE_ZB_H1,
                                                                p, 5);
        dpcr_model *model = make_model(context, &o);
        dpcr_pipeline_figures figures = {.size = sizeof figures};
        must(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &got, &figures, error));
        assert_same_parameters(model, single);
        assert_true(got.loss == wanted.loss && got.accuracy == wanted.accuracy && got.step == wanted.step);
        assert_true(figures.runs == 12 && figures.makespan > 0 && figures.updates == 1);  // the last one of 7 is short
        assert_string_equal(dpcr_model_metadata(model, "pixel_mean"), dpcr_model_metadata(single, "pixel_mean"));
        dpcr_model_destroy(model);
    }
    dpcr_model_destroy(single);
    dpcr_context_destroy(context);
}

// A batch larger than the data is all of it, as for one process, however large.
static void a_batch_larger_than_the_data_is_all_of_it(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 60, 1);
    static const int64_t batches[] = {61, INT64_C(1) << 40, (INT64_C(1) << 61) + 1, INT64_MAX};
    static const dpcr_schedule_kind kinds[] = {DPCR_SCHEDULE_1F1B, DPCR_SCHEDULE_PIPEDREAM};
    dpcr_model *single = make_model(context, &o);
    dpcr_train_options options = train_options(3, 60);
    must(dpcr_train(context, single, set, &options, NULL, error));
    for (int k = 0; k < 8; k++) {
        options.batch = batches[k / 2];
        const dpcr_schedule_options schedule = schedule_options(kinds[k % 2], 2, k % 2 ? 1 : 3);
        dpcr_pipeline_figures figures = {.size = sizeof figures, .trace = 1};
        dpcr_model *model = make_model(context, &o);
        must(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, NULL, &figures, error));
        assert_same_parameters(model, single);
        assert_true(figures.simulated > 0 && figures.runs == 3);
        dpcr_pipeline_figures_free(context, &figures);
        dpcr_model_destroy(model);
    }
    dpcr_model_destroy(single);
    dpcr_context_destroy(context);
}

// Copies of one set of weights lie on several stages, or all on one; a chain of two copies of every stage has them
// twice.
static void tied_weights_have_the_loop_s_bits(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_dataset *set = make_data(&data, 120, 1);
    const dpcr_train_options options = train_options(2, 24);
    for (int64_t tie = 1; tie <= 4; tie++) {
        dpcr_model_options o = resnet_options(9, 8, tie % 2 ? DPCR_F32 : DPCR_F64);
        o.tie = tie;
        if (tie == 3) o.branch = DPCR_BRANCH_TWO_LAYER;
        dpcr_model *single = make_model(context, &o);
        dpcr_train_state wanted;
        must(dpcr_train(context, single, set, &options, &wanted, error));
        for (int64_t p = 1; p <= 4; p++) {
            const dpcr_schedule_options schedule =
                schedule_options(p == 2 ? DPCR_SCHEDULE_ZB_V : DPCR_SCHEDULE_ZB_H1, p, 4);
            dpcr_model *model = make_model(context, &o);
            train_by(context, model, set, &options, &schedule, NULL);
            assert_same_parameters(model, single);
            dpcr_model_destroy(model);
        }
        const char *numbers = dpcr_model_vector(single, NULL);
        const size_t step = (size_t)(o.branch == DPCR_BRANCH_TWO_LAYER ? 2 : 1) * 72 * dpcr_dtype_size(o.dtype);
        for (int64_t l = tie; l < 9; l++)
            assert_memory_equal(numbers + (size_t)l * step, numbers + (size_t)(l % tie) * step, step);
        // both chains of DualPipe keep their copies alike
        const dpcr_schedule_options two = schedule_options(DPCR_SCHEDULE_DUALPIPE, 2, 4);
        dpcr_model *model = make_model(context, &o);
        train_by(context, model, set, &options, &two, NULL);
        numbers = dpcr_model_vector(model, NULL);
        for (int64_t l = tie; l < 9; l++)
            assert_memory_equal(numbers + (size_t)l * step, numbers + (size_t)(l % tie) * step, step);
        const dpcr_schedule_options late = schedule_options(DPCR_SCHEDULE_PIPEDREAM, 2, 1);
        dpcr_train_state last;
        dpcr_error error = {0};
        assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &late, NULL, &last, NULL, &error),
                         DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "tied"));
        const dpcr_pipeline_options clipped = {.size = sizeof clipped, .clip = 1};  // the training's is taken
        assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &late, &clipped, &last, NULL, &error),
                         DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "clip is 1"));
        dpcr_model_destroy(model);
        dpcr_model_destroy(single);
    }
    dpcr_context_destroy(context);
}

// Late gradients learn too, and a segment's cut changes what they are late by, not the row order.
static void asynchronous_training_learns(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 12, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 400, 1);
    static const dpcr_schedule_kind kinds[] = {DPCR_SCHEDULE_PIPEDREAM, DPCR_SCHEDULE_PIPEDREAM_2BW,
                                               DPCR_SCHEDULE_LAYERPIPE};
    for (int k = 0; k < 3; k++) {
        const dpcr_train_options options = train_options(6, 16);
        const dpcr_pipeline_options pipeline = {.size = sizeof pipeline, .segment = 9};
        dpcr_schedule_options schedule = schedule_options(kinds[k], 3, 4);
        dpcr_model *model = make_model(context, &o);
        dpcr_train_state last;
        double loss, accuracy;
        schedule.semantics = DPCR_DOUBLE_BUFFERED;  // of best alone
        must(dpcr_train_pipeline(context, model, set, &options, &schedule, &pipeline, &last, NULL, error));
        must(dpcr_evaluate(context, model, set, 64, NULL, &loss, &accuracy, NULL, error));
        if (accuracy < 0.9) fail_msg("%s: accuracy %g", dpcr_schedule_name(kinds[k]), accuracy);
        assert_int_equal(last.step, 150);
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

// The table of an epoch's last updates may keep more versions of a stage's weights than the others': 17 of 11 and 6.
static void rare_tables_may_keep_more_versions(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 3, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 34, 1);
    const dpcr_train_options options = train_options(3, 2);
    const dpcr_pipeline_options pipeline = {.size = sizeof pipeline, .segment = 11};
    const dpcr_schedule_costs costs = {.size = sizeof costs, .forward = 9, .input = 6, .weight = 1, .hop = 3};
    dpcr_schedule_options schedule = schedule_options(DPCR_SCHEDULE_BEST, 2, 1);
    schedule.semantics = DPCR_DELAYED;
    schedule.stages = 4;
    schedule.costs = &costs;
    dpcr_model *model = make_model(context, &o);
    train_by(context, model, set, &options, &schedule, &pipeline);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- checkpoints ----

static void any_number_of_ranks_goes_on_from_a_checkpoint(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 8, DPCR_F64);
    const dpcr_dataset *set = make_data(&data, 203, 1);
    const folder f = make_folder();
    dpcr_train_options options = train_options(3, 32);
    dpcr_model *whole = make_model(context, &o);
    must(dpcr_train(context, whole, set, &options, NULL, error));

    stopper stop = {.at = 4};
    options.save = f.file;
    options.progress = stop_at;
    options.progress_user = &stop;
    dpcr_model *model = make_model(context, &o);
    dpcr_error told = {0};
    dpcr_train_state last;
    dpcr_schedule_options schedule = schedule_options(DPCR_SCHEDULE_ZB_H1, 3, 4);
    assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_true(last.step == 4 && strstr(told.text, "to go on, resume from"));

    options.resume = f.file;
    stop.at = 6;
    options.progress = note_but;
    assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_told(&told, 6, 21, f.file, 4);
    options.progress = stop_at;
    stop.at = 11;  // in the second epoch
    schedule = schedule_options(DPCR_SCHEDULE_DUALPIPEV, 2, 6);
    assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &last, NULL, &told),
                     DPCR_ERROR_CANCELLED);
    assert_int_equal(last.step, 11);
    dpcr_model_destroy(model);

    stop.at = 16;  // by one process
    model = make_model(context, &o);
    assert_int_equal(dpcr_train(context, model, set, &options, &last, &told), DPCR_ERROR_CANCELLED);
    dpcr_model_destroy(model);

    stop.at = 1000;
    schedule = schedule_options(DPCR_SCHEDULE_GPIPE, 4, 2);
    model = make_model(context, &o);
    train_by(context, model, set, &options, &schedule, NULL);
    assert_same_parameters(model, whole);
    train_by(context, model, set, &options, &schedule, NULL);  // complete already
    assert_same_parameters(model, whole);
    dpcr_model_destroy(model);

    options.batch = 31;
    model = make_model(context, &o);
    assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, &last, NULL, &told),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "batch is 31, wanted 32"));
    dpcr_model_destroy(model);
    dpcr_model_destroy(whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// A disk that is full, or a path that is none: every rank ends, and says the same.
static void a_checkpoint_that_cannot_be_written_ends_all_ranks(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 100, 1);
    dpcr_train_options options = train_options(1, 32);
    const char *const paths[] = {"/nowhere/run.safetensors", "/dev/full/x"};
    for (int k = 0; k < 2; k++) {
        dpcr_error told = {0};
        dpcr_model *model = make_model(context, &o);
        const dpcr_schedule_options schedule = schedule_options(DPCR_SCHEDULE_1F1B, 3, 4);
        options.save = paths[k];
        assert_int_equal(dpcr_train_pipeline(context, model, set, &options, &schedule, NULL, NULL, NULL, &told),
                         DPCR_ERROR_IO);
        assert_non_null(strstr(told.text, paths[k]));
        assert_null(strstr(told.text, "another rank"));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

static void a_loss_that_is_not_finite_ends_all_ranks(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 100, 1);
    dpcr_train_options options = train_options(1, 10);
    options.optimiser.rate = 1e38;
    options.optimiser.warm_up = 0;
    dpcr_train_options once = train_options(1, 100);  // its loss is that of the weights before the step
    once.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 1e300};
    static const dpcr_schedule_kind kinds[] = {DPCR_SCHEDULE_ZB_H1, DPCR_SCHEDULE_PIPEDREAM};
    stopper stop = {.at = 1};
    once.progress_user = &stop;
    for (int k = 0; k < 4; k++) {
        if (k == 3) once.progress = note_but;  // the last step, of which nothing is saved
        dpcr_error told = {0};
        dpcr_model *model = make_model(context, &o);
        const dpcr_schedule_options schedule = schedule_options(kinds[k % 2], 3, 2);
        assert_int_equal(
            dpcr_train_pipeline(context, model, set, k < 2 ? &options : &once, &schedule, NULL, NULL, NULL, &told),
            DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(told.text, k < 2 ? "wanted a finite number" : "after step 1 parameter 0 is not finite"));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

// ---- refusals ----

static void what_cannot_be_is_refused_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_model_options o = resnet_options(2, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    o.outputs = 0;
    dpcr_model *headless = make_model(context, &o);
    const dpcr_optimiser_options sgd = {.size = sizeof sgd, .kind = DPCR_SGD, .rate = 0.1};
    const int64_t crooked[] = {0, 3, 3};
    const struct {
        dpcr_schedule_kind kind;
        int64_t p, m;
        dpcr_pipeline_options options;
        const char *says;
    } cases[] = {
        {DPCR_SCHEDULE_GPIPE, 5, 4, {.size = sizeof cases[0].options}, "5 stages, but the network has 4 units"},
        {DPCR_SCHEDULE_GPIPE, 2, 4, {.size = 3}, "options.size is 3"},
        {DPCR_SCHEDULE_GPIPE, 2, 4, {.size = sizeof cases[0].options, .first = crooked}, "do not rise from 0 to 4"},
        {DPCR_SCHEDULE_GPIPE, 2, 4, {.size = sizeof cases[0].options, .clip = -1}, "clip is -1"},
        {DPCR_SCHEDULE_GPIPE, 2, 4, {.size = sizeof cases[0].options, .reconstruct = 1}, "are not late"},
        {DPCR_SCHEDULE_PIPEDREAM, 2, 4, {.size = sizeof cases[0].options}, "wants an optimiser"},
        {DPCR_SCHEDULE_PIPEDREAM_2BW,
         2,
         5,
         {.size = sizeof cases[0].options, .optimiser = &sgd},
         "no whole number of updates of 2"},
        {DPCR_SCHEDULE_LAYERPIPE,
         3,
         4,
         {.size = sizeof cases[0].options, .optimiser = &sgd, .reconstruct = 1},
         "lie on several ranks"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        dpcr_error told = {0};
        dpcr_pipeline *pipeline = NULL;
        dpcr_schedule_options s = schedule_options(cases[k].kind, cases[k].p, cases[k].m);
        if (s.kind == DPCR_SCHEDULE_LAYERPIPE) s.stages = 4;
        dpcr_schedule schedule;
        must(dpcr_schedule_make(context, &s, &schedule, error));
        assert_true(dpcr_pipeline_create(context, model, &schedule, &cases[k].options, &pipeline, &told) != DPCR_OK);
        assert_null(pipeline);
        if (!strstr(told.text, cases[k].says)) fail_msg("'%s' does not say '%s'", told.text, cases[k].says);
        if (k == 3)
            assert_int_equal(dpcr_pipeline_create(context, headless, &schedule, NULL, &pipeline, &told),
                             DPCR_ERROR_UNSUPPORTED);
        dpcr_schedule_free(context, &schedule);
    }
    dpcr_model_destroy(headless);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static void rows_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static rows_set set;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(2, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_optimiser_options sgd = {.size = sizeof sgd, .kind = DPCR_SGD, .rate = 0.1};
    const dpcr_pipeline_options options = {.size = sizeof options, .optimiser = &sgd};
    dpcr_schedule schedule = schedule_of(context, DPCR_SCHEDULE_PIPEDREAM, 2, 1, 4, 0);
    dpcr_pipeline *pipeline = NULL;
    dpcr_error told = {0};
    must(dpcr_pipeline_create(context, model, &schedule, &options, &pipeline, error));
    fill_rows(&set, DPCR_F32, 20, PIXELS);
    dpcr_array x = rows_of(&set, 0, 20);
    assert_int_equal(dpcr_pipeline_run(pipeline, &x, set.labels, 4, NULL, &told), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "4 updates"));
    set.labels[7] = LABELS;
    assert_int_equal(dpcr_pipeline_run(pipeline, &x, set.labels, 5, NULL, &told), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "row 7"));
    set.labels[7] = 0;
    x.shape[1] = PIXELS - 1;
    assert_int_equal(dpcr_pipeline_run(pipeline, &x, set.labels, 5, NULL, &told), DPCR_ERROR_ARGUMENT);
    dpcr_pipeline_destroy(pipeline);
    dpcr_schedule_free(context, &schedule);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// Memory refused at any request: an error, nothing lost, no rank left waiting.
static void refused_memory_ends_all_ranks(void **state) {
    (void)state;
    static rows_set set;
    const dpcr_model_options o = resnet_options(3, 8, DPCR_F32);
    const dpcr_optimiser_options sgd = {.size = sizeof sgd, .kind = DPCR_SGD, .rate = 0.1, .momentum = 0.9};
    fill_rows(&set, DPCR_F32, 12, PIXELS);
    for (int kind = 0; kind < 2; kind++) {
        bool whole = false;
        for (int64_t grant = 0; !whole && grant < 500; grant++) {
            budget b = {.left = INT64_MAX};
            const dpcr_context_options options = budget_options(&b);
            dpcr_context *context = NULL;
            dpcr_pipeline *pipeline = NULL;
            dpcr_error told = {0};
            must(dpcr_context_create(&options, &context, error));
            dpcr_model *model = make_model(context, &o);
            dpcr_schedule schedule = kind ? schedule_of(context, DPCR_SCHEDULE_LAYERPIPE, 2, 2, 3, 0)
                                          : schedule_of(context, DPCR_SCHEDULE_ZB_V, 2, 2, 3, 0);
            const int64_t live = b.live;
            const dpcr_pipeline_options pipe = {.size = sizeof pipe, .optimiser = &sgd, .clip = kind ? 0 : 1};
            const dpcr_array x = rows_of(&set, 0, 12);
            b.left = grant;
            dpcr_status status = dpcr_pipeline_create(context, model, &schedule, &pipe, &pipeline, &told);
            if (status == DPCR_OK) status = dpcr_pipeline_run(pipeline, &x, set.labels, 4, NULL, &told);
            whole = status == DPCR_OK;
            if (!whole) assert_int_equal(status, DPCR_ERROR_MEMORY);
            dpcr_pipeline_destroy(pipeline);
            assert_int_equal(b.live, live);
            b.left = INT64_MAX;
            dpcr_schedule_free(context, &schedule);
            dpcr_model_destroy(model);
            dpcr_context_destroy(context);
            assert_int_equal(b.live, 0);
        }
        assert_true(whole);
    }
}

// A rehearsal, a trace, tied steps, stages that recompute.
static void memory_runs_out_in_a_rehearsal(void **state) {
    (void)state;
    const dpcr_dataset *set = make_data(&data, 24, 1);
    const dpcr_train_options train = train_options(1, 12);
    const dpcr_schedule_options schedule = schedule_options(DPCR_SCHEDULE_1F1B, 2, 2);
    const dpcr_pipeline_options pipe = {.size = sizeof pipe, .recompute = 1};
    dpcr_model_options o = resnet_options(3, 4, DPCR_F32);
    o.tie = 2;
    bool whole = false;
    for (int64_t grant = 0; !whole && grant < 4000; grant += 19) {
        budget b = {.left = INT64_MAX};
        const dpcr_context_options options = budget_options(&b);
        dpcr_context *context = NULL;
        dpcr_error told = {0};
        dpcr_pipeline_figures figures = {.size = sizeof figures, .trace = 1};
        must(dpcr_context_create(&options, &context, error));
        dpcr_model *model = make_model(context, &o);
        b.left = grant;
        const dpcr_status status =
            dpcr_train_pipeline(context, model, set, &train, &schedule, &pipe, NULL, &figures, &told);
        whole = status == DPCR_OK;
        if (!whole) assert_int_equal(status, DPCR_ERROR_MEMORY);
        if (whole)
            assert_true(figures.actions == 8 && figures.simulated > 0 && figures.activation_bytes > 0 &&
                        figures.end[0] > figures.start[0]);
        b.left = INT64_MAX;
        dpcr_pipeline_figures_free(context, &figures);
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    assert_true(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_runs_out_in_a_rehearsal),
        cmocka_unit_test(synchronous_training_has_the_loop_s_bits),
        cmocka_unit_test(a_batch_larger_than_the_data_is_all_of_it),
        cmocka_unit_test(tied_weights_have_the_loop_s_bits),
        cmocka_unit_test(asynchronous_training_learns),
        cmocka_unit_test(rare_tables_may_keep_more_versions),
        cmocka_unit_test(any_number_of_ranks_goes_on_from_a_checkpoint),
        cmocka_unit_test(a_checkpoint_that_cannot_be_written_ends_all_ranks),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_all_ranks),
        cmocka_unit_test(what_cannot_be_is_refused_in_words),
        cmocka_unit_test(rows_that_do_not_fit_are_refused),
        cmocka_unit_test(refused_memory_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
