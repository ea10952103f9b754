// SPDX-License-Identifier: MIT
// The executor: every synchronous schedule gives one process's gradients to the bit, whatever its ranks, stages and
// microbatches; updates, clipping; refusals; failures that end.
#include "pipelining.h"

static rows_set set;

static dpcr_model_options network(int which, int64_t layers, int64_t width, dpcr_dtype dtype) {
    dpcr_model_options o = resnet_options(layers, width, dtype);
    o.architecture = which == 0 ? DPCR_MLP : DPCR_RESNET;
    o.branch = which == 2 ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR;
    o.layer_norm = which == 3;
    o.hidden = which == 2 ? width + 3 : 0;
    return o;
}

static dpcr_pipeline *pipeline_of(dpcr_context *context, dpcr_model *model, const dpcr_schedule *schedule,
                                  const dpcr_pipeline_options *options) {
    dpcr_pipeline *pipeline = NULL;
    must(dpcr_pipeline_create(context, model, schedule, options, &pipeline, error));
    return pipeline;
}

static void assert_same_numbers(const char *what, const void *got, const void *wanted, int64_t count,
                                dpcr_dtype dtype) {
    if (memcmp(got, wanted, (size_t)count * dpcr_dtype_size(dtype)) == 0) return;
    for (int64_t i = 0; i < count; i++) {
        const double g = dtype == DPCR_F64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        const double w = dtype == DPCR_F64 ? ((const double *)wanted)[i] : (double)((const float *)wanted)[i];
        if (g != w)
            fail_msg("%s: number %lld of %lld is %.17g, wanted %.17g", what, (long long)i, (long long)count, g, w);
    }
}

// One process's gradients of the whole batch; of two chains, each half summed apart.
static void reference(dpcr_context *context, dpcr_model *model, int64_t chains, double *loss, int64_t *correct) {
    const int64_t half = (set.rows + 1) / 2;
    double sums[2] = {0, 0};
    *correct = 0;
    dpcr_model_zero_gradients(model);
    add_gradients(context, model, &set, 0, chains == 1 ? set.rows : half, set.rows, NULL, &sums[0], correct);
    if (chains == 2) {
        int64_t count = 0;
        dpcr_model_vector(model, &count);
        char *sum = dpcr_model_gradient_vector(model);
        char *first = malloc(vector_bytes(model));
        memcpy(first, sum, vector_bytes(model));
        dpcr_model_zero_gradients(model);
        add_gradients(context, model, &set, half, set.rows - half, set.rows, NULL, &sums[1], correct);
        for (int64_t i = 0; i < count; i++) {
            if (set.dtype == DPCR_F64)
                ((double *)sum)[i] += ((double *)first)[i];
            else
                ((float *)sum)[i] += ((float *)first)[i];
        }
        free(first);
    }
    *loss = (sums[0] + sums[1]) / (double)set.rows;
}

static void check_run(const dpcr_model_options *o, const dpcr_schedule *schedule, const char *what, int recompute,
                      double *bytes) {
    dpcr_context *context = make_context(1);
    dpcr_model *model = make_model(context, o), *single = make_model(context, o);
    double loss;
    int64_t correct, count = 0;
    reference(context, single, schedule->chains, &loss, &correct);
    const dpcr_pipeline_options options = {.size = sizeof options, .recompute = recompute};
    dpcr_pipeline *pipeline = pipeline_of(context, model, schedule, &options);
    for (int run = 0; run < 2; run++) {  // the second finds everything in place
        dpcr_pipeline_report report = {.size = sizeof report};
        const dpcr_array x = rows_of(&set, 0, set.rows);
        must(dpcr_pipeline_run(pipeline, &x, set.labels, 0, &report, error));
        must(dpcr_pipeline_gather(pipeline, model, error));
        dpcr_model_vector(model, &count);
        assert_same_numbers(what, dpcr_model_gradient_vector(model), dpcr_model_gradient_vector(single), count,
                            o->dtype);
        assert_same_numbers(what, dpcr_model_vector(model, NULL), dpcr_model_vector(single, NULL), count, o->dtype);
        if (report.loss != loss || report.correct != correct)
            fail_msg("%s: loss %.17g, wanted %.17g", what, report.loss, loss);
        assert_true(report.makespan > 0 && report.busy <= report.makespan);
        *bytes = report.activation_bytes;
    }
    dpcr_pipeline_destroy(pipeline);
    dpcr_model_destroy(model);
    dpcr_model_destroy(single);
    dpcr_context_destroy(context);
}

static void check_gradients(const dpcr_model_options *o, const dpcr_schedule *schedule, const char *what) {
    double stored = 0, recomputed = 0;
    check_run(o, schedule, what, 0, &stored);
    check_run(o, schedule, what, 1, &recomputed);
    assert_true(stored > 0 && recomputed > 0);
}

// ---- gradients ----

static void every_synchronous_schedule_gives_one_process_bits(void **state) {
    (void)state;
    static const struct {
        dpcr_schedule_kind kind;
        int64_t p, v, m;
    } cases[] = {{DPCR_SCHEDULE_GPIPE, 1, 1, 3},
                 {DPCR_SCHEDULE_GPIPE, 3, 1, 4},
                 {DPCR_SCHEDULE_1F1B, 2, 1, 5},
                 {DPCR_SCHEDULE_1F1B, 4, 1, 8},
                 {DPCR_SCHEDULE_INTERLEAVED_1F1B, 2, 2, 4},
                 {DPCR_SCHEDULE_INTERLEAVED_1F1B, 3, 3, 6},
                 {DPCR_SCHEDULE_ZB_H1, 2, 1, 4},
                 {DPCR_SCHEDULE_ZB_H1, 4, 1, 7},
                 {DPCR_SCHEDULE_ZB_H2, 3, 1, 6},
                 {DPCR_SCHEDULE_ZB_H2, 4, 1, 9},
                 {DPCR_SCHEDULE_INTERLEAVED_ZB, 2, 2, 4},
                 {DPCR_SCHEDULE_INTERLEAVED_ZB, 4, 2, 8},
                 {DPCR_SCHEDULE_ZB_V, 2, 2, 4},
                 {DPCR_SCHEDULE_ZB_V, 4, 2, 7},
                 {DPCR_SCHEDULE_DUALPIPE, 2, 2, 4},
                 {DPCR_SCHEDULE_DUALPIPE, 4, 2, 8},
                 {DPCR_SCHEDULE_DUALPIPEV, 2, 2, 4},
                 {DPCR_SCHEDULE_DUALPIPEV, 4, 2, 8},
                 {DPCR_SCHEDULE_OOO, 1, 2, 3},
                 {DPCR_SCHEDULE_OOO, 4, 1, 6},
                 {DPCR_SCHEDULE_BEST, 2, 1, 3},
                 {DPCR_SCHEDULE_BEST, 4, 1, 5}};
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const dpcr_dtype dtype = k % 2 ? DPCR_F64 : DPCR_F32;
        const dpcr_model_options o = network((int)(k % 4), 11, 9, dtype);
        dpcr_schedule schedule = schedule_of(context, cases[k].kind, cases[k].p, cases[k].v, cases[k].m, 0);
        fill_rows(&set, dtype, cases[k].m * 3 + 1, PIXELS);
        if (schedule.chains == 2) fill_rows(&set, dtype, cases[k].m * 6, PIXELS);
        check_gradients(&o, &schedule, dpcr_schedule_name(cases[k].kind));
        dpcr_schedule lowered;
        must(dpcr_schedule_lower(context, &schedule, &lowered, error));
        check_gradients(&o, &lowered, "lowered");
        dpcr_schedule_free(context, &lowered);
        dpcr_schedule_free(context, &schedule);
    }
    dpcr_context_destroy(context);
}

// Widths on both sides of the kernels' ways, no layers at all, stages of the ends alone, more microbatches than rows.
static void networks_of_any_shape_give_one_process_bits(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 2, 4, 8, 16, 17, 32, 40, 64};
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        for (int which = 0; which < 4; which++) {
            const dpcr_dtype dtype = (k + (size_t)which) % 2 ? DPCR_F64 : DPCR_F32;
            dpcr_model_options o = network(which, (int64_t)(k % 5), widths[k], dtype);
            if (k == 4 || k == 6) o.inputs = 0;
            const int64_t units = o.layers + 1 + (o.inputs > 0), p = units < 3 ? units : 3;
            dpcr_schedule schedule = schedule_of(context, DPCR_SCHEDULE_ZB_H1, p, 1, 4, 0);
            fill_rows(&set, dtype, which == 1 ? 3 : 4 * (int64_t)(k % 3 + 4) + which, o.inputs ? PIXELS : o.width);
            char what[64];
            snprintf(what, sizeof what, "width %d, network %d", (int)widths[k], which);
            check_gradients(&o, &schedule, what);
            dpcr_schedule_free(context, &schedule);
        }
    dpcr_context_destroy(context);
}

// Halves of I travel as one message each, also where the row says itself when they go.
static void halves_of_a_lowered_row_all_travel(void **state) {
    (void)state;
    static const char text[] =
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0.1,0I0.2,0W0,0RECV_B1,0I1.1,0I1.2,0W1\n"
        "1RECV_F0,1F0,1I0.1,1I0.2,1SEND_B0,1W0,1RECV_F1,1F1,1I1.1,1I1.2,1SEND_B1,1W1\n";
    dpcr_context *context = make_context(1);
    dpcr_schedule schedule;
    must(dpcr_schedule_read(context, text, strlen(text), DPCR_NOTATION_NEW, NULL, &schedule, error));
    const dpcr_model_options o = network(1, 4, 9, DPCR_F64);
    fill_rows(&set, DPCR_F64, 7, PIXELS);
    check_gradients(&o, &schedule, "lowered halves");
    dpcr_schedule_free(context, &schedule);
    dpcr_context_destroy(context);
}

static double loss_of(dpcr_context *context, dpcr_model *model) {
    double loss = 0;
    int64_t correct = 0;
    dpcr_model_zero_gradients(model);
    add_gradients(context, model, &set, 0, set.rows, set.rows, NULL, &loss, &correct);
    return loss / (double)set.rows;
}

// The sum of the copies' gradients is the derivative by the one number that they are.
static void tied_gradients_are_derivatives(void **state) {
    (void)state;
    enum { LAYERS = 7, WIDTH = 5, TIE = 3 };
    dpcr_context *context = make_context(1);
    dpcr_model_options o = network(1, LAYERS, WIDTH, DPCR_F64);
    o.activation = DPCR_ACT_TANH;
    o.tie = TIE;
    dpcr_model *model = make_model(context, &o);
    fill_rows(&set, DPCR_F64, 6, PIXELS);
    int64_t count = 0;
    double *x = dpcr_model_vector(model, &count), *g = dpcr_model_gradient_vector(model);
    const int64_t each = WIDTH * WIDTH + WIDTH;
    loss_of(context, model);
    dpcr_model_tie_gradients(model);
    double *sums = malloc((size_t)count * sizeof *sums);
    memcpy(sums, g, (size_t)count * sizeof *sums);
    for (int64_t at = 0; at < TIE * each; at += 4) {
        const double h = 1e-5, was = x[at];
        double sides[2];
        for (int side = 0; side < 2; side++) {
            x[at] = was + (side ? h : -h);
            dpcr_model_tie_parameters(model);
            sides[side] = loss_of(context, model);
        }
        x[at] = was;
        dpcr_model_tie_parameters(model);
        const double slope = (sides[1] - sides[0]) / (2 * h);
        if (fabs(slope - sums[at]) > 1e-8) fail_msg("number %d: %.12g, wanted %.12g", (int)at, sums[at], slope);
        for (int64_t l = TIE + at / each; l < LAYERS; l += TIE) assert_true(sums[l * each + at % each] == sums[at]);
    }
    free(sums);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// All forwards first: a stage that keeps everything has m microbatches' layers, one that recomputes m inputs and one
// microbatch's layers.
static void recomputing_holds_inputs_and_one_microbatch(void **state) {
    (void)state;
    enum { LAYERS = 20, WIDTH = 16, M = 8, ROWS = 4 };
    dpcr_context *context = make_context(1);
    dpcr_model_options o = network(1, LAYERS, WIDTH, DPCR_F64);
    o.inputs = 0;
    dpcr_schedule schedule = schedule_of(context, DPCR_SCHEDULE_GPIPE, 1, 1, M, 0);
    fill_rows(&set, DPCR_F64, M * ROWS, WIDTH);
    double stored, recomputed;
    check_run(&o, &schedule, "stored", 0, &stored);
    check_run(&o, &schedule, "recomputed", 1, &recomputed);
    assert_true(stored == M * recomputed);  // one stage takes its rows from the source again
    dpcr_schedule_free(context, &schedule);
    schedule = schedule_of(context, DPCR_SCHEDULE_GPIPE, 2, 1, M, 0);
    check_run(&o, &schedule, "recomputed on two", 1, &recomputed);
    check_run(&o, &schedule, "stored on two", 0, &stored);
    assert_true(recomputed < stored / M + M * ROWS * WIDTH * 8 + 1 && recomputed > stored / M);
    dpcr_schedule_free(context, &schedule);
    const dpcr_schedule_options spread = {
        .size = sizeof spread, .kind = DPCR_SCHEDULE_LAYERPIPE, .ranks = 3, .stages = 5, .microbatches = 8};
    must(dpcr_schedule_make(context, &spread, &schedule, error));
    dpcr_model *model = make_model(context, &o);
    const dpcr_optimiser_options optimiser = {.size = sizeof optimiser, .kind = DPCR_SGD, .rate = 0.1};
    dpcr_pipeline_options options = {.size = sizeof options, .recompute = 1, .optimiser = &optimiser};
    dpcr_pipeline *pipeline = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_pipeline_create(context, model, &schedule, &options, &pipeline, &error),
                     DPCR_ERROR_UNSUPPORTED);
    if (!strstr(error.text, "recomputing")) fail_msg("%s", error.text);
    options.reconstruct = 1;
    assert_int_equal(dpcr_pipeline_create(context, model, &schedule, &options, &pipeline, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "recomputing"));
    dpcr_schedule_free(context, &schedule);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_synchronous_schedule_gives_one_process_bits),
        cmocka_unit_test(networks_of_any_shape_give_one_process_bits),
        cmocka_unit_test(halves_of_a_lowered_row_all_travel),
        cmocka_unit_test(recomputing_holds_inputs_and_one_microbatch),
        cmocka_unit_test(tied_gradients_are_derivatives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
