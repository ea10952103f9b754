// SPDX-License-Identifier: MIT
// Asynchronous schedules: the executor equals, bit for bit, one loop over minibatches with the same delays that shares
// nothing with it but the layers. Updates and clipping of synchronous ones equal one process's.
#include "pipelining.h"

static rows_set set;
static int64_t clipped_stages, rebuilt_forwards;  // that the emulation saw

typedef struct emulation {
    dpcr_context *context;
    dpcr_model *model;
    const dpcr_schedule *schedule;
    const int64_t *stage_of;
    int64_t *unit_of;
    int64_t count, updates;
    size_t bytes;
    char **versions;  // [updates + 1] whole vectors
    double loss;
    int64_t correct;
} emulation;

// now + missing * (mean decrease of an update), and the mean with one more.
static void rebuild(const emulation *m, const char *now, const char *mean, int64_t missing, char *out) {
    for (int64_t i = 0; i < m->count; i++) {
        if (set.dtype == DPCR_F64)
            ((double *)out)[i] = ((const double *)now)[i] + (double)missing * ((const double *)mean)[i];
        else
            ((float *)out)[i] = ((const float *)now)[i] + (float)missing * ((const float *)mean)[i];
    }
}
static void average(const emulation *m, const char *before, const char *after, double weight, char *mean) {
    for (int64_t i = 0; i < m->count; i++) {
        if (set.dtype == DPCR_F64) {
            double *a = (double *)mean + i;
            *a += weight * (((const double *)before)[i] - ((const double *)after)[i] - *a);
        } else {
            float *a = (float *)mean + i;
            *a += (float)weight * (((const float *)before)[i] - ((const float *)after)[i] - *a);
        }
    }
}

// Updates that a stage has made when its row comes to F of a microbatch.
static int64_t updates_before_forward(const dpcr_schedule *s, int64_t stage, int64_t i) {
    for (int64_t r = 0, gradients = 0; r < s->ranks; r++, gradients = 0)
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            const dpcr_action *a = &s->actions[n];
            if (a->stage != stage) continue;
            if (a->task == DPCR_TASK_W || a->task == DPCR_TASK_B) gradients++;
            if (a->task == DPCR_TASK_F && a->microbatch == i) return gradients / s->accumulate;
        }
    return -1;
}

// A stage's gradients within its part of the bound: clip^2 times its share of the parameters.
static void clip_stage(const emulation *m, int64_t stage, double clip, char *gradient) {
    double total = 0, units[32] = {0};
    int64_t here = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const double g = set.dtype == DPCR_F64 ? ((double *)gradient)[i] : (double)((float *)gradient)[i];
        if (m->stage_of[i] == stage) units[m->unit_of[i]] += g * g, here++;
    }
    for (int u = 0; u < 32; u++) total += units[u];
    const double factor = clip * sqrt((double)here / (double)m->count) / (sqrt(total) + 1e-6);
    for (int64_t i = 0; factor < 1 && i < m->count; i++) {
        if (m->stage_of[i] != stage) continue;
        if (set.dtype == DPCR_F64)
            ((double *)gradient)[i] *= factor;
        else
            ((float *)gradient)[i] *= (float)factor;
    }
    clipped_stages += factor < 1;
}

static void emulate(emulation *m, int64_t batch, const dpcr_pipeline_options *options) {
    const dpcr_schedule *s = m->schedule;
    dpcr_optimiser **optimisers = calloc((size_t)s->stages, sizeof *optimisers);
    char **means = calloc((size_t)s->stages, sizeof *means), *behind = malloc(m->bytes), *scratch = malloc(m->bytes);
    char *vector = dpcr_model_vector(m->model, NULL), *gradient = dpcr_model_gradient_vector(m->model);
    for (int64_t k = 0; k < s->stages; k++) {
        dpcr_optimiser_options o = *options->optimiser;
        if (options->compensation == DPCR_COMPENSATE_RATE) o.rate /= 1 + (double)s->delay[k];
        must(dpcr_optimiser_create(m->context, &o, set.dtype, m->count, &optimisers[k], error));
        means[k] = calloc(1, m->bytes);
    }
    m->versions[0] = malloc(m->bytes);
    memcpy(m->versions[0], vector, m->bytes);
    for (int64_t u = 0; u < m->updates; u++) {
        const int64_t from = u * batch, rows = set.rows - from < batch ? set.rows - from : batch;
        char *now = m->versions[u], *after = m->versions[u + 1] = malloc(m->bytes);
        dpcr_model_zero_gradients(m->model);
        for (int64_t k = 0; k < s->stages; k++) {
            const int64_t read = u > s->delay[k] ? u - s->delay[k] : 0;
            take_stage(m->stage_of, k, m->count, m->bytes, m->versions[read], vector);
            take_stage(m->stage_of, k, m->count, m->bytes, m->versions[read], behind);
            if (!options->reconstruct || read == u) continue;
            rebuild(m, now, means[k], u - read, scratch);
            take_stage(m->stage_of, k, m->count, m->bytes, scratch, behind);
        }
        memcpy(scratch, vector, m->bytes);
        int64_t row = from;  // microbatch by microbatch: the first ones hold one row more where they are uneven
        for (int64_t i = 0; i < s->accumulate; i++) {
            const int64_t n = rows / s->accumulate + (i < rows % s->accumulate);
            memcpy(vector, scratch, m->bytes);
            for (int64_t k = 0; options->reconstruct && k < s->stages; k++) {
                const int64_t read = u > s->delay[k] ? u - s->delay[k] : 0;
                const int64_t newest = updates_before_forward(s, k, u * s->accumulate + i);
                if (newest == read) continue;
                assert_true(newest == u);
                rebuilt_forwards++;
                take_stage(m->stage_of, k, m->count, m->bytes, behind, vector);
            }
            add_gradients(m->context, m->model, &set, row, n, rows, behind, &m->loss, &m->correct);
            row += n;
        }
        for (int64_t k = 0; k < s->stages; k++) {
            memcpy(scratch, now, m->bytes);
            if (options->clip > 0) clip_stage(m, k, options->clip, gradient);
            must(dpcr_optimiser_step(optimisers[k], scratch, gradient, error));
            take_stage(m->stage_of, k, m->count, m->bytes, scratch, after);
            const double delay = (double)s->delay[k];
            average(m, now, scratch, u == 0 || delay < 1 ? 1 : 1 / delay, means[k]);
        }
    }
    for (int64_t k = 0; k < s->stages; k++) {
        dpcr_optimiser_destroy(optimisers[k]);
        free(means[k]);
    }
    free(optimisers), free(means), free(behind), free(scratch);
}

static void check_numbers(const char *what, const void *got, const void *wanted, int64_t count, dpcr_dtype dtype) {
    for (int64_t i = 0; i < count; i++) {
        const double g = dtype == DPCR_F64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        const double w = dtype == DPCR_F64 ? ((const double *)wanted)[i] : (double)((const float *)wanted)[i];
        if (g != w)
            fail_msg("%s: number %lld of %lld is %.17g, wanted %.17g", what, (long long)i, (long long)count, g, w);
    }
}

static dpcr_optimiser_options adam(void) {
    return (dpcr_optimiser_options){
        .size = sizeof(dpcr_optimiser_options), .kind = DPCR_ADAMW, .rate = 0.02, .weight_decay = 0.01, .warm_up = 3};
}

// Returns how far the pipeline's weights went from those it began with: not nowhere.
static void check_delays(dpcr_schedule_options options, const dpcr_pipeline_options *given, const dpcr_model_options *o,
                         int64_t batch, int64_t short_by) {
    dpcr_context *context = make_context(1);
    dpcr_model *model = make_model(context, o), *single = make_model(context, o);
    dpcr_schedule schedule;
    options.size = sizeof options;
    must(dpcr_schedule_make(context, &options, &schedule, error));
    const int64_t updates = schedule.microbatches / schedule.accumulate;
    fill_rows(&set, o->dtype, updates * batch - short_by, o->inputs ? PIXELS : o->width);
    int64_t first[32];
    for (int64_t s = 0; s <= schedule.stages; s++) first[s] = s * units_of(o) / schedule.stages;
    dpcr_pipeline_options pipe = *given;
    pipe.first = first;
    int64_t each[32];
    for (int64_t u = 0; u <= units_of(o); u++) each[u] = u;
    int64_t *unit_of = stages_of_numbers(single, each, units_of(o));
    emulation m = {.context = context,
                   .model = single,
                   .schedule = &schedule,
                   .unit_of = unit_of,
                   .stage_of = stages_of_numbers(single, first, schedule.stages),
                   .updates = updates,
                   .bytes = vector_bytes(single),
                   .versions = calloc((size_t)updates + 1, sizeof(char *))};
    dpcr_model_vector(single, &m.count);
    emulate(&m, batch, &pipe);
    dpcr_pipeline *pipeline = NULL;
    dpcr_pipeline_report report = {.size = sizeof report};
    const dpcr_array x = rows_of(&set, 0, set.rows);
    must(dpcr_pipeline_create(context, model, &schedule, &pipe, &pipeline, error));
    must(dpcr_pipeline_run(pipeline, &x, set.labels, batch, &report, error));
    must(dpcr_pipeline_gather(pipeline, model, error));
    char what[96];
    snprintf(what, sizeof what, "%s, %d ranks, %d stages%s", dpcr_schedule_name(options.kind), (int)schedule.ranks,
             (int)schedule.stages, pipe.reconstruct ? ", rebuilt" : "");
    check_numbers(what, dpcr_model_vector(model, NULL), m.versions[updates], m.count, o->dtype);
    assert_true(memcmp(m.versions[0], m.versions[updates], m.bytes) != 0);
    if (report.loss != m.loss / (double)set.rows || report.correct != m.correct)
        fail_msg("%s: loss %.17g, wanted %.17g", what, report.loss, m.loss / (double)set.rows);
    dpcr_pipeline_destroy(pipeline);
    for (int64_t u = 0; u <= updates; u++) free(m.versions[u]);
    free(m.versions);
    free((void *)(uintptr_t)m.stage_of);
    free(unit_of);
    dpcr_schedule_free(context, &schedule);
    dpcr_model_destroy(model);
    dpcr_model_destroy(single);
    dpcr_context_destroy(context);
}

static void pipedream_equals_a_loop_with_its_delays(void **state) {
    (void)state;
    const dpcr_optimiser_options optimiser = adam();
    for (int64_t p = 1; p <= 4; p++)
        for (int variant = 0; variant < 5; variant++) {
            const dpcr_pipeline_options options = {
                .size = sizeof options,
                .optimiser = &optimiser,
                .reconstruct = variant == 1,
                .recompute = variant == 3,
                .clip = variant == 4 ? 0.2 : 0,
                .compensation = variant == 2 ? DPCR_COMPENSATE_RATE : DPCR_COMPENSATE_NOTHING};
            const dpcr_model_options o = resnet_options(7, 9, variant ? DPCR_F32 : DPCR_F64);
            check_delays((dpcr_schedule_options){.kind = DPCR_SCHEDULE_PIPEDREAM, .ranks = p, .microbatches = 16},
                         &options, &o, 5, variant);
        }
    assert_true(clipped_stages > 100);
}

static void double_buffered_weights_equal_a_loop_with_one_delay(void **state) {
    (void)state;
    const dpcr_optimiser_options optimiser = adam();
    for (int64_t p = 1; p <= 4; p++) {
        dpcr_pipeline_options options = {.size = sizeof options, .optimiser = &optimiser, .recompute = p > 2};
        const dpcr_model_options o = resnet_options(6, 17, p % 2 ? DPCR_F32 : DPCR_F64);
        check_delays(
            (dpcr_schedule_options){
                .kind = DPCR_SCHEDULE_PIPEDREAM_2BW, .ranks = p, .microbatches = 7 * (p + 1), .accumulate = p + 1},
            &options, &o, 11, 4);
        options.recompute = 0;
        options.reconstruct = 1;
        options.clip = p % 2 ? 0.4 : 0;
        options.compensation = p == 4 ? DPCR_COMPENSATE_RATE : DPCR_COMPENSATE_NOTHING;
        check_delays(
            (dpcr_schedule_options){
                .kind = DPCR_SCHEDULE_PIPEDREAM_2BW, .ranks = p, .microbatches = 7 * (p + 1), .accumulate = p + 1},
            &options, &o, 11, 4);
    }
    assert_true(rebuilt_forwards > 30);
}

// Tasks of a stage on several ranks, weights that travel, halves of I.
static void layerpipe_equals_a_loop_with_its_delays(void **state) {
    (void)state;
    const dpcr_optimiser_options optimiser = adam();
    for (int64_t p = 1; p <= 4; p++)
        for (int split = 0; split < 2; split++) {
            const dpcr_pipeline_options options = {
                .size = sizeof options,
                .optimiser = &optimiser,
                .compensation = p == 4 ? DPCR_COMPENSATE_RATE : DPCR_COMPENSATE_NOTHING,
                .clip = p > 2 && split ? 0.3 : 0};
            dpcr_model_options o = resnet_options(6, 12, split ? DPCR_F32 : DPCR_F64);
            if (p == 3) o.branch = DPCR_BRANCH_TWO_LAYER;
            check_delays((dpcr_schedule_options){.kind = DPCR_SCHEDULE_LAYERPIPE,
                                                 .ranks = p,
                                                 .stages = p == 2 ? 4 : 8,
                                                 .microbatches = 13,
                                                 .split_input = split},
                         &options, &o, 7, 2);
        }
}

// W of a stage may come before I on the rank that runs both: of one step, of several, with an encoder and without.
static void layerpipe_may_take_w_before_i(void **state) {
    (void)state;
    const dpcr_optimiser_options optimiser = adam();
    const dpcr_pipeline_options options = {.size = sizeof options, .optimiser = &optimiser};
    for (int64_t p = 1; p <= 3; p++)
        for (int64_t stages = 1; stages <= 5; stages += 2)
            for (int64_t each = 1; each <= 3; each++)
                for (int which = 0; which < 4; which++) {
                    dpcr_model_options o = resnet_options(each * stages, 9, which % 2 ? DPCR_F32 : DPCR_F64);
                    if (which < 2) o.inputs = 0;
                    check_delays(
                        (dpcr_schedule_options){
                            .kind = DPCR_SCHEDULE_LAYERPIPE, .ranks = p, .stages = stages, .microbatches = 5},
                        &options, &o, 3, 1);
                }
}

// Rank 2 has a message of a stage of which it runs nothing.
static void messages_of_spread_stages_are_refused(void **state) {
    (void)state;
    static const char text[] = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n1SEND_B0\n";
    dpcr_context *context = make_context(1);
    int64_t delay[2] = {0, 0};
    const dpcr_schedule like = {
        .stages = 2, .microbatches = 1, .chains = 1, .semantics = DPCR_DELAYED, .accumulate = 1, .delay = delay};
    dpcr_schedule schedule;
    must(dpcr_schedule_read(context, text, strlen(text), DPCR_NOTATION_NEW, &like, &schedule, error));
    const dpcr_model_options o = resnet_options(3, 4, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_optimiser_options optimiser = adam();
    const dpcr_pipeline_options options = {.size = sizeof options, .optimiser = &optimiser};
    dpcr_pipeline *pipeline = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_pipeline_create(context, model, &schedule, &options, &pipeline, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "sends"));
    dpcr_schedule_free(context, &schedule);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- synchronous updates ----

static void updates_and_clipping_are_one_process_s(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (int clipped = 0; clipped < 2; clipped++)
        for (int64_t p = 1; p <= 4; p++) {
            const dpcr_schedule_kind kind = p == 2 ? DPCR_SCHEDULE_ZB_V : DPCR_SCHEDULE_ZB_H1;
            const dpcr_optimiser_options optimiser = adam();
            const dpcr_pipeline_options options = {
                .size = sizeof options, .optimiser = &optimiser, .clip = clipped ? 0.3 : 0};
            const dpcr_model_options o = resnet_options(7, 9, DPCR_F32);
            dpcr_model *model = make_model(context, &o), *single = make_model(context, &o);
            dpcr_schedule schedule = schedule_of(context, kind, p, p == 2 ? 2 : 1, 5, 0);
            fill_rows(&set, DPCR_F32, 23, PIXELS);
            dpcr_optimiser *by_hand = NULL;
            dpcr_pipeline *pipeline = NULL;
            const dpcr_array x = rows_of(&set, 0, set.rows);
            int64_t count = 0, correct = 0;
            float *parameters = dpcr_model_vector(single, &count), *gradient = dpcr_model_gradient_vector(single);
            must(dpcr_optimiser_create(context, &optimiser, DPCR_F32, count, &by_hand, error));
            must(dpcr_pipeline_create(context, model, &schedule, &options, &pipeline, error));
            for (int step = 0; step < 4; step++) {
                dpcr_pipeline_report report = {.size = sizeof report};
                double loss = 0, sum = 0;
                dpcr_model_zero_gradients(single);
                add_gradients(context, single, &set, 0, set.rows, set.rows, NULL, &loss, &correct);
                for (int64_t i = 0; i < count; i++) sum += (double)gradient[i] * (double)gradient[i];
                const double factor = 0.3 / (sqrt(sum) + 1e-6);
                for (int64_t i = 0; clipped && factor < 1 && i < count; i++) gradient[i] *= (float)factor;
                must(dpcr_optimiser_step(by_hand, parameters, gradient, error));
                must(dpcr_pipeline_run(pipeline, &x, set.labels, 0, &report, error));
                if (clipped) assert_true(factor < 1 && fabs(report.norm - sqrt(sum)) < 1e-12 * sqrt(sum));
                assert_true(report.loss == loss / (double)set.rows);
            }
            must(dpcr_pipeline_gather(pipeline, model, error));
            check_numbers("updates", dpcr_model_vector(model, NULL), parameters, count, DPCR_F32);
            dpcr_pipeline_destroy(pipeline);
            dpcr_optimiser_destroy(by_hand);
            dpcr_schedule_free(context, &schedule);
            dpcr_model_destroy(model);
            dpcr_model_destroy(single);
        }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipedream_equals_a_loop_with_its_delays),
        cmocka_unit_test(double_buffered_weights_equal_a_loop_with_one_delay),
        cmocka_unit_test(layerpipe_equals_a_loop_with_its_delays),
        cmocka_unit_test(layerpipe_may_take_w_before_i),
        cmocka_unit_test(messages_of_spread_stages_are_refused),
        cmocka_unit_test(updates_and_clipping_are_one_process_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
