// SPDX-License-Identifier: MIT
// Training: it learns, whatever the shape of model and batches; methods agree; threads change no bit; refusals;
// evaluation.
#include <stdatomic.h>
#include <unistd.h>

#include "base/text.h"
#include "rt/rt.h"
#include "rt/trial.h"
#include "sampled.h"
#include "train/batches.h"
#include "train/ledger.h"
#include "train/optimiser.h"
#include "train/pass.h"
#include "training.h"

static small_data data;

// ---- the data's way in ----

static void an_epochs_order_is_a_permutation_of_its_own(void **state) {
    (void)state;
    int64_t a[1000], b[1000], c[1000], moved = 0, seen[1000] = {0};
    dpcri_shuffle(1, 0, 1000, a);
    dpcri_shuffle(1, 1, 1000, b);
    dpcri_shuffle(2, 0, 1000, c);
    for (int i = 0; i < 1000; i++) seen[a[i]]++;
    for (int i = 0; i < 1000; i++) assert_int_equal(seen[i], 1);
    for (int i = 0; i < 1000; i++) moved += (a[i] != i) + (a[i] != b[i]) + (a[i] != c[i]);
    assert_true(moved > 2950);
    dpcri_shuffle(1, 0, 1000, b);
    assert_memory_equal(a, b, sizeof a);
    int64_t one[1] = {5};
    dpcri_shuffle(1, 0, 1, one);
    assert_int_equal(one[0], 0);
}

static void figures_are_those_of_the_whole_set(void **state) {
    (void)state;
    dpcr_context *one = make_context(1), *three = make_context(3);
    for (int64_t count = 1; count <= 203; count += 101) {
        const dpcr_dataset *set = make_data(&data, count, 1);
        long double sum = 0, square = 0;
        for (int64_t i = 0; i < count * PIXELS; i++) sum += data.images[i] / 255.0L;
        const long double mean = sum / (long double)(count * PIXELS);
        for (int64_t i = 0; i < count * PIXELS; i++)
            square += (data.images[i] / 255.0L - mean) * (data.images[i] / 255.0L - mean);
        const dpcri_data_figures f = dpcri_data_measure(one, set), g = dpcri_data_measure(three, set);
        assert_true(fabsl((long double)f.mean - mean) < 1e-15L);
        assert_true(fabsl((long double)f.deviation - sqrtl(square / (long double)(count * PIXELS))) < 1e-14L);
        assert_memory_equal(&f, &g, sizeof f);
        data.images[count * PIXELS - 1] ^= 1;
        assert_true(dpcri_data_measure(one, set).hash != f.hash);
        data.images[count * PIXELS - 1] ^= 1;
        data.labels[count / 2] ^= 1;
        assert_true(dpcri_data_measure(one, set).hash != f.hash);
    }
    const dpcr_dataset *set = make_data(&data, 100, 1);
    memset(data.images, 77, sizeof data.images);
    const dpcri_data_figures flat = dpcri_data_measure(one, set);
    assert_true(flat.mean == 77 / 255.0 && flat.deviation == 1);
    dpcr_context_destroy(one);
    dpcr_context_destroy(three);
}

static void rows_are_normalised_as_written(void **state) {
    (void)state;
    dpcr_context *context = make_context(3);
    const dpcr_dataset *set = make_data(&data, 60, 1);
    int64_t order[60];
    float x[40 * PIXELS];
    double wide[40 * PIXELS];
    uint8_t y[40];
    dpcri_shuffle(3, 0, 60, order);
    dpcri_normaliser normaliser = dpcri_normaliser_make(DPCR_F32, 0.3, 0.7);
    dpcri_gather(context, set, order, 20, 40, &normaliser, x, y);
    normaliser = dpcri_normaliser_make(DPCR_F64, 0.3, 0.7);
    dpcri_gather(context, set, NULL, 20, 40, &normaliser, wide, y);
    for (int r = 0; r < 40; r++) {
        assert_int_equal(y[r], data.labels[20 + r]);
        for (int p = 0; p < PIXELS; p++) {
            assert_true(x[r * PIXELS + p] == (float)((data.images[order[20 + r] * PIXELS + p] / 255.0 - 0.3) / 0.7));
            assert_true(wide[r * PIXELS + p] == (data.images[(20 + r) * PIXELS + p] / 255.0 - 0.3) / 0.7);
        }
    }
    dpcr_context_destroy(context);
}

static void numbers_come_back_from_their_text(void **state) {
    (void)state;
    for (int i = 0; i < 2000; i++) {
        const double x = dpcri_random_normal(1, DPCRI_STREAM_DATA, (uint64_t)i) * pow(10, i % 60 - 30);
        double back = 0;
        assert_true(dpcri_number_parse(dpcri_number_text(x).text, &back) && back == x);
    }
    double back;
    assert_false(dpcri_number_parse("", &back) || dpcri_number_parse("1x", &back) || dpcri_number_parse("x", &back));
}

// ---- it learns ----

typedef struct watch {
    int64_t calls, ends;
    double first_loss, last_loss;
    const dpcr_train_options *options;
    int64_t batches;
} watch;

static int watching(void *user, const dpcr_train_state *s) {
    watch *w = user;
    w->calls++;
    assert_int_equal(s->step, w->calls);
    assert_int_equal(s->steps, w->options->epochs * w->batches);
    assert_int_equal(s->epoch, (w->calls - 1) / w->batches + 1);
    assert_int_equal(s->epochs, w->options->epochs);
    assert_int_equal(s->epoch_ended != 0, w->calls % w->batches == 0);
    assert_true(s->accuracy >= 0 && s->accuracy <= 1 && isfinite(s->loss) && s->reason > 0);
    assert_non_null(s->sentence);
    if (s->epoch_ended) {
        w->ends++;
        w->last_loss = s->loss;
        if (w->ends == 1) w->first_loss = s->loss;
    }
    return 0;
}

static void learns(dpcr_model_options model_options, dpcr_train_options options, int64_t count) {
    dpcr_context *context = make_context(1);
    const dpcr_dataset *set = make_data(&data, count, 1);
    dpcr_model *model = make_model(context, &model_options);
    watch w = {.options = &options, .batches = (count + options.batch - 1) / options.batch};
    dpcr_train_state last;
    dpcr_error error = {0};
    options.progress = watching;
    options.progress_user = &w;
    if (dpcr_train(context, model, set, &options, &last, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_int_equal(w.calls, options.epochs * w.batches);
    assert_int_equal(last.step, w.calls);
    assert_true(w.last_loss < 0.5 * w.first_loss);
    assert_true(last.loss == w.last_loss && last.seconds_left == 0 && last.accuracy > 0.9);
    // Data of the same kind that it has not seen.
    small_data *other = malloc(sizeof *other);
    double loss = -1, accuracy = -1;
    assert_int_equal(
        dpcr_evaluate(context, model, make_data(other, 300, 2), 64, &options.solve, &loss, &accuracy, NULL, NULL),
        DPCR_OK);
    if (accuracy < 0.95) fail_msg("accuracy %g, loss %g", accuracy, loss);
    const unsigned char *g = dpcr_model_gradient_vector(model);
    for (size_t i = 0; i < vector_bytes(model); i++) assert_int_equal(g[i], 0);
    free(other);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static void training_reaches_a_high_accuracy(void **state) {
    (void)state;
    dpcr_train_options options = train_options(8, 32);
    dpcr_model_options model = resnet_options(16, 8, DPCR_F32);
    learns(model, options, 203);  // last batch of 11
    learns(model, options, 192);  // none
    model.dtype = DPCR_F64;
    learns(model, options, 203);
    model.branch = DPCR_BRANCH_TWO_LAYER;
    model.layer_norm = 1;
    learns(model, options, 203);
    options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 0.05, .momentum = 0.9};
    learns(resnet_options(16, 8, DPCR_F32), options, 203);
    options.optimiser = (dpcr_optimiser_options){.kind = DPCR_ADAM, .rate = 0.01};
    learns(resnet_options(16, 8, DPCR_F32), options, 203);
}

static void models_of_any_shape_train(void **state) {
    (void)state;
    dpcr_model_options model = resnet_options(8, PIXELS, DPCR_F32);
    model.inputs = 0;  // the pixels are the states
    learns(model, train_options(8, 32), 203);
    learns(resnet_options(0, 8, DPCR_F32), train_options(20, 32), 203);
    dpcr_model_options both = resnet_options(0, PIXELS, DPCR_F32);
    both.inputs = 0;
    learns(both, train_options(20, 32), 203);
    learns(resnet_options(1, 8, DPCR_F32), train_options(20, 32), 203);
    learns(resnet_options(8, 8, DPCR_F32), train_options(60, 1000), 203);  // one batch, smaller than asked
    model = resnet_options(4, 16, DPCR_F32);
    model.architecture = DPCR_MLP;
    learns(model, train_options(20, 32), 203);
    dpcr_train_options newton = train_options(8, 32);
    newton.solve =
        (dpcr_solve_options){.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR, .backward = DPCR_SCHEME_PCR};
    learns(resnet_options(16, 8, DPCR_F32), newton, 203);
    dpcr_train_options automatic = train_options(8, 32);
    automatic.solve = (dpcr_solve_options){0};
    learns(resnet_options(16, 8, DPCR_F32), automatic, 203);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_NEWTON};
    const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_PCR};
    const dpcr_dataset *set = make_data(&data, 107, 1);
    for (int m = 0; m < 2; m++) {
        void *results[2];
        size_t bytes = 0;
        for (int i = 0; i < 2; i++) {
            const dpcr_context_options context_options = {.size = sizeof context_options, .threads = i ? 3 : 1};
            dpcr_context *context = NULL;
            assert_int_equal(dpcr_context_create(&context_options, &context, NULL), DPCR_OK);
            const dpcr_model_options o = resnet_options(24, 8, DPCR_F32);
            dpcr_model *model = make_model(context, &o);
            dpcr_train_options options = train_options(m ? 1 : 2, 48);
            options.solve = (dpcr_solve_options){.method = methods[m], .scheme = schemes[m], .backward = schemes[m]};
            train_well(context, model, set, &options);
            bytes = vector_bytes(model);
            results[i] = parameters_of(model);
            dpcr_model_destroy(model);
            dpcr_context_destroy(context);
        }
        assert_memory_equal(results[0], results[1], bytes);
        free(results[0]);
        free(results[1]);
    }
}

// ---- newton and pcr against the loop ----

enum { STEPS = TESTS_SANITIZED ? 120 / TESTS_ONE_OF : 100, BATCH = 8, CURVE_IMAGES = 64 };

// Every fifth label is a lie, so that the loss has something to fit for all the steps.
static const dpcr_dataset *hard_data(void) {
    make_data(&data, CURVE_IMAGES, 1);
    for (int i = 0; i < CURVE_IMAGES; i += 5) data.labels[i] = (uint8_t)((data.labels[i] + 1) % LABELS);
    return &data.set;
}

// One step's loss and gradients by one method; the gradients are added to the model's.
typedef struct runner {
    dpcri_pass pass;
    int64_t order[MOST_IMAGES];
    int64_t epoch;
    dpcri_normaliser normaliser;
} runner;

static runner *make_runner(dpcr_context *context, dpcr_model *model, const dpcr_dataset *set, bool newton) {
    runner *r = calloc(1, sizeof *r);
    const dpcr_solve_options o = {.size = sizeof o,
                                  .method = newton ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL,
                                  .scheme = newton ? DPCR_SCHEME_PCR : DPCR_SCHEME_SEQUENTIAL,
                                  .backward = newton ? DPCR_SCHEME_PCR : DPCR_SCHEME_SEQUENTIAL};
    const dpcri_data_figures f = dpcri_data_measure(context, set);
    dpcr_error error = {0};
    r->epoch = -1;
    r->normaliser = dpcri_normaliser_make(dpcr_model_get_options(model)->dtype, f.mean, f.deviation);
    if (dpcri_pass_create(&r->pass, context, model, (const int64_t[]){BATCH, 0}, (const dpcr_solve_options[]){o, o},
                          true, false, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    return r;
}

static double run_step(runner *r, const dpcr_dataset *set, int64_t step) {
    const int64_t batches = set->count / BATCH;
    double loss = 0;
    int64_t correct;
    dpcr_error error = {0};
    if (r->epoch != step / batches) dpcri_shuffle(5, r->epoch = step / batches, set->count, r->order);
    dpcri_gather(r->pass.context, set, r->order, step % batches * BATCH, BATCH, &r->normaliser, r->pass.x, r->pass.y);
    if (dpcri_pass_forward(&r->pass, 0, true, &loss, &correct, &error) != DPCR_OK ||
        dpcri_pass_backward(&r->pass, 0, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    assert_true(r->pass.report.reason > 0);
    return loss;
}

static void free_runner(runner *r) {
    dpcri_pass_destroy(&r->pass);
    free(r);
}

static double number(dpcr_dtype dtype, const void *at, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

// Largest difference over the largest value.
static double relative_difference(dpcr_dtype dtype, const void *a, const void *b, int64_t count) {
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        difference = fmax(difference, fabs(number(dtype, a, i) - number(dtype, b, i)));
        largest = fmax(largest, fabs(number(dtype, b, i)));
    }
    return difference / largest;
}

static void gradients_of_newton_agree_at_every_step(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_dataset *set = hard_data();
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t width = 8; width <= 16; width += 8) {
            if (TESTS_SANITIZED && (dtype == DPCR_F64) != (width == 16)) continue;
            const dpcr_model_options o = resnet_options(64, width, (dpcr_dtype)dtype);
            const dpcr_optimiser_options adamw = {
                .size = sizeof adamw, .kind = DPCR_ADAMW, .rate = 0.01, .weight_decay = 0.01};
            dpcr_model *model = make_model(context, &o);
            int64_t count = 0;
            void *p = dpcr_model_vector(model, &count), *g = dpcr_model_gradient_vector(model),
                 *by_newton = malloc(vector_bytes(model));
            runner *loop = make_runner(context, model, set, false), *newton = make_runner(context, model, set, true);
            dpcr_optimiser *optimiser = NULL;
            double worst = 0;
            assert_int_equal(dpcri_optimiser_create(context, &adamw, (dpcr_dtype)dtype, count, &optimiser, NULL),
                             DPCR_OK);
            for (int64_t step = 0; step < STEPS; step++) {
                run_step(newton, set, step);
                memcpy(by_newton, g, vector_bytes(model));
                dpcr_model_zero_gradients(model);
                run_step(loop, set, step);
                worst = fmax(worst, relative_difference((dpcr_dtype)dtype, by_newton, g, count));
                dpcri_optimiser_update(optimiser, p, g, true);
            }
            print_message("width %d, %s: gradients differ by %.3g at most\n", (int)width,
                          dpcr_dtype_name((dpcr_dtype)dtype), worst);
            assert_true(worst <= (dtype == DPCR_F64 ? 1e-9 : 1e-4));
            free_runner(loop);
            free_runner(newton);
            free(by_newton);
            dpcr_optimiser_destroy(optimiser);
            dpcr_model_destroy(model);
        }
    dpcr_context_destroy(context);
}

// ---- clipping ----

// Some steps are long enough to be cut, others not.
static void a_clipped_run_is_its_steps_with_gradients_cut_by_their_norm(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    const dpcr_dataset *set = hard_data();
    const int64_t batches = set->count / BATCH;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        const dpcr_model_options o = resnet_options(5, 8, (dpcr_dtype)dtype);
        dpcr_model *got = make_model(context, &o), *wanted = make_model(context, &o), *plain = make_model(context, &o);
        dpcr_train_options options = train_options(1, BATCH);
        options.optimiser = (dpcr_optimiser_options){.size = sizeof options.optimiser, .kind = DPCR_SGD, .rate = 0.5};
        int64_t count = 0, cut = 0;
        void *p = dpcr_model_vector(wanted, &count), *g = dpcr_model_gradient_vector(wanted);
        dpcr_optimiser *optimiser = NULL;
        runner *loop = make_runner(context, wanted, set, false);
        dpcr_error error = {0};
        assert_int_equal(dpcr_train(context, plain, set, &options, NULL, &error), DPCR_OK);
        options.clip = 2;
        assert_int_equal(dpcr_train(context, got, set, &options, NULL, &error), DPCR_OK);
        assert_int_equal(
            dpcri_optimiser_create(context, &options.optimiser, (dpcr_dtype)dtype, count, &optimiser, NULL), DPCR_OK);
        for (int64_t step = 0; step < batches; step++) {
            double squares = 0;
            run_step(loop, set, step);
            for (int64_t i = 0; i < count; i++) squares += pow(number((dpcr_dtype)dtype, g, i), 2);
            const double factor = options.clip / sqrt(squares);
            cut += factor < 1;
            for (int64_t i = 0; factor < 1 && i < count; i++) {
                if (dtype == DPCR_F64)
                    ((double *)g)[i] *= factor;
                else
                    ((float *)g)[i] *= (float)factor;
            }
            dpcri_optimiser_update(optimiser, p, g, true);
        }
        assert_in_range(cut, 2, batches - 2);
        const double differ = relative_difference((dpcr_dtype)dtype, dpcr_model_vector(got, NULL), p, count),
                     apart = relative_difference((dpcr_dtype)dtype, dpcr_model_vector(plain, NULL), p, count);
        print_message("%s: %d of %d steps cut, parameters differ by %.3g, from those of any norm by %.3g\n",
                      dpcr_dtype_name((dpcr_dtype)dtype), (int)cut, (int)batches, differ, apart);
        assert_true(differ <= 1e-5 && apart > 1e-3);  // the guard of 1e-6 beside the norm
        free_runner(loop);
        dpcr_optimiser_destroy(optimiser);
        dpcr_model_destroy(got);
        dpcr_model_destroy(wanted);
        dpcr_model_destroy(plain);
    }
    dpcr_context_destroy(context);
}

// Losses of STEPS steps; nudge: every parameter starts one ulp higher.
static void loss_curve(dpcr_context *context, const dpcr_model_options *o, const dpcr_dataset *set, bool newton,
                       bool nudge, double losses[STEPS]) {
    const dpcr_optimiser_options adamw = {.size = sizeof adamw, .kind = DPCR_ADAMW, .rate = 0.01, .weight_decay = 0.01};
    dpcr_model *model = make_model(context, o);
    int64_t count = 0;
    void *p = dpcr_model_vector(model, &count);
    for (int64_t i = 0; nudge && i < count; i++)
        if (o->dtype == DPCR_F64)
            ((double *)p)[i] = nextafter(((double *)p)[i], INFINITY);
        else
            ((float *)p)[i] = nextafterf(((float *)p)[i], INFINITY);
    runner *r = make_runner(context, model, set, newton);
    dpcr_optimiser *optimiser = NULL;
    assert_int_equal(dpcri_optimiser_create(context, &adamw, o->dtype, count, &optimiser, NULL), DPCR_OK);
    for (int64_t step = 0; step < STEPS; step++) {
        losses[step] = run_step(r, set, step);
        dpcri_optimiser_update(optimiser, p, dpcr_model_gradient_vector(model), true);
    }
    free_runner(r);
    dpcr_optimiser_destroy(optimiser);
    dpcr_model_destroy(model);
}

static double deviation(const double a[STEPS], const double b[STEPS]) {
    double largest = 0;
    for (int i = 0; i < STEPS; i++) largest = fmax(largest, fabs(a[i] - b[i]));
    return largest;
}

static void the_loss_curve_of_newton_deviates_like_one_ulp(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_dataset *set = hard_data();
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t width = 8; width <= 16; width += 8) {
            if (TESTS_SANITIZED && (dtype == DPCR_F64) != (width == 16)) continue;
            const dpcr_model_options o = resnet_options(64, width, (dpcr_dtype)dtype);
            double loop[STEPS], newton[STEPS], control[STEPS];
            loss_curve(context, &o, set, false, false, loop);
            loss_curve(context, &o, set, true, false, newton);
            loss_curve(context, &o, set, false, true, control);
            const double got = deviation(newton, loop), allowed = 10 * deviation(control, loop);
            print_message("width %d, %s: loss deviates by %.3g, the control's by %.3g\n", (int)width,
                          dpcr_dtype_name((dpcr_dtype)dtype), got, allowed / 10);
            assert_true(loop[STEPS - 1] < 0.9 * loop[0]);
            assert_true(got <= allowed);
        }
    dpcr_context_destroy(context);
}

// ---- refusals ----

static void refuse(dpcr_context *context, dpcr_model *model, const dpcr_dataset *set, dpcr_train_options options,
                   dpcr_status wanted, const char *words) {
    dpcr_error error = {0};
    void *before = parameters_of(model);
    assert_int_equal(dpcr_train(context, model, set, &options, NULL, &error), wanted);
    if (!strstr(error.text, words)) fail_msg("got \"%s\", wanted words \"%s\"", error.text, words);
    assert_memory_equal(before, dpcr_model_vector(model, NULL), vector_bytes(model));
    free(before);
}

static void bad_arguments_are_refused_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_dataset good = *make_data(&data, 100, 1);
    const dpcr_train_options options = train_options(1, 32);
#define REFUSE(field, value, status, words)                \
    do {                                                   \
        dpcr_train_options bad = options;                  \
        bad.field = value;                                 \
        refuse(context, model, &good, bad, status, words); \
    } while (0)
    REFUSE(size, 16, DPCR_ERROR_ARGUMENT, "size is 16");
    REFUSE(epochs, 0, DPCR_ERROR_ARGUMENT, "epochs is 0");
    REFUSE(batch, 0, DPCR_ERROR_ARGUMENT, "batch is 0");
    REFUSE(batch, -5, DPCR_ERROR_ARGUMENT, "batch is -5");
    REFUSE(clip, -1, DPCR_ERROR_ARGUMENT, "clip is -1");
    REFUSE(clip, INFINITY, DPCR_ERROR_ARGUMENT, "clip is inf");
    REFUSE(clip, NAN, DPCR_ERROR_ARGUMENT, "clip is");
    REFUSE(checkpoint_seconds, -1, DPCR_ERROR_ARGUMENT, "checkpoint_seconds is -1");
    REFUSE(optimiser.rate, NAN, DPCR_ERROR_ARGUMENT, "rate is");
    REFUSE(optimiser.kind, (dpcr_optimiser_kind)7, DPCR_ERROR_ARGUMENT, "kind is 7");
    REFUSE(solve.guess, DPCR_GUESS_GIVEN, DPCR_ERROR_UNSUPPORTED, "guess is given");
    REFUSE(solve.method, (dpcr_method)77, DPCR_ERROR_ARGUMENT, "method 77");
    REFUSE(save, "/nonexistent-folder/run.safetensors", DPCR_ERROR_IO, "/nonexistent-folder/");
    REFUSE(resume, "/nonexistent-folder/run.safetensors", DPCR_ERROR_IO, "/nonexistent-folder/");
#undef REFUSE
    dpcr_dataset set = good;
    set.cols = SIDE + 1;
    refuse(context, model, &set, options, DPCR_ERROR_ARGUMENT, "1 x 6 x 7 numbers, wanted 36, the model's inputs");
    set = good;
    set.count = 0;
    refuse(context, model, &set, options, DPCR_ERROR_ARGUMENT, "0 images");
    set = good;
    set.labels = NULL;
    refuse(context, model, &set, options, DPCR_ERROR_ARGUMENT, "with labels");
    data.labels[41] = LABELS;
    refuse(context, model, &good, options, DPCR_ERROR_ARGUMENT, "label 41 of the data set is 4, wanted less than 4");
    double loss;
    dpcr_error error = {0};
    assert_int_equal(dpcr_evaluate(context, model, &good, 32, NULL, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "evaluate: label 41"));
    data.labels[41] = 0;
    assert_int_equal(dpcr_evaluate(context, model, &good, 0, NULL, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_evaluate(context, model, NULL, 1, NULL, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_train(context, model, &good, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_model_destroy(model);

    dpcr_model_options headless = o;
    headless.outputs = 0;
    model = make_model(context, &headless);
    refuse(context, model, &good, options, DPCR_ERROR_UNSUPPORTED, "no head");
    dpcr_model_destroy(model);
    headless = o;
    headless.inputs = 0;
    model = make_model(context, &headless);
    refuse(context, model, &good, options, DPCR_ERROR_ARGUMENT, "wanted 8, the model's width");
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static void a_loss_that_is_not_finite_stops_the_run(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    o.activation = DPCR_ACT_RELU;
    const dpcr_dataset *set = make_data(&data, 100, 1);
    for (int often = 0; often < 2; often++) {
        dpcr_model *model = make_model(context, &o);
        const folder f = make_folder();
        dpcr_train_options options = train_options(5, 32);
        dpcr_train_state last;
        dpcr_error error = {0};
        options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 1e30};
        options.save = f.file;
        if (often) options.checkpoint_seconds = 1e-9;
        assert_int_equal(dpcr_train(context, model, set, &options, &last, &error), DPCR_ERROR_UNSUPPORTED);
        if (!strstr(error.text, "not finite") && !strstr(error.text, "the loss is")) fail_msg("%s", error.text);
        if (strstr(error.text, "the loss is")) assert_non_null(strstr(error.text, "the rate is 1e+30"));
        assert_true(last.step >= 1 && last.step < last.steps);
        // What lies on the disk is whole, and its numbers are finite.
        dpcr_model *saved = NULL;
        assert_int_equal(dpcr_model_load(context, f.file, &saved, NULL), DPCR_OK);
        const float *p = dpcr_model_vector(saved, NULL);
        for (size_t i = 0; i < vector_bytes(saved) / sizeof *p; i++) assert_true(isfinite(p[i]));
        dpcr_model_destroy(saved);
        dpcr_model_destroy(model);
        remove_folder(&f);
    }
    dpcr_context_destroy(context);
}

// The last step's loss is that of the parameters before it, so nothing else would tell.
static void parameters_that_end_as_no_numbers_are_refused(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *set = make_data(&data, 100, 1);
    const folder f = make_folder();
    for (int saved = 0; saved < 2; saved++) {
        dpcr_model *model = make_model(context, &o);
        dpcr_train_options options = train_options(1, 100);
        dpcr_train_state last;
        dpcr_error error = {0};
        options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 1e300};
        options.save = saved ? f.file : NULL;
        assert_int_equal(dpcr_train(context, model, set, &options, &last, &error), DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "after step 1 parameter 0 is not finite"));
        assert_int_equal(last.step, 1);
        dpcr_model_destroy(model);
    }
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static void an_unconverged_solve_without_fallback_stops_the_run(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(64, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    dpcr_train_options options = train_options(1, 32);
    dpcr_train_state last;
    dpcr_error error = {0};
    double loss;
    options.solve = (dpcr_solve_options){
        .size = sizeof options.solve, .method = DPCR_METHOD_JACOBI, .max_sweeps = 3, .no_fallback = 1};
    assert_int_equal(dpcr_train(context, model, make_data(&data, 100, 1), &options, &last, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "step 1: jacobi did not converge"));
    assert_int_equal(last.reason, DPCR_REASON_NOT_CONVERGED);
    assert_int_equal(dpcr_evaluate(context, model, &data.set, 32, &options.solve, &loss, NULL, NULL, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "jacobi did not converge"));
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- evaluation ----

static void evaluation_depends_on_the_batch_by_rounding_only(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(8, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_dataset *set = make_data(&data, 203, 1);
    const dpcr_train_options options = train_options(3, 32);
    train_well(context, model, set, &options);
    const dpcr_solve_options *loop = &options.solve;  // auto may choose another method for another batch
    double loss, accuracy;
    assert_int_equal(dpcr_evaluate(context, model, set, 203, loop, &loss, &accuracy, NULL, NULL), DPCR_OK);
    const int64_t batches[] = {1, 7, 64, 202, 1000};
    for (int i = 0; i < 5; i++) {
        double other, right;
        assert_int_equal(dpcr_evaluate(context, model, set, batches[i], loop, &other, &right, NULL, NULL), DPCR_OK);
        assert_true(fabs(other - loss) < 1e-12 && right == accuracy);
    }
    assert_int_equal(dpcr_evaluate(context, model, set, 32, NULL, NULL, NULL, NULL, NULL), DPCR_OK);

    // Without its metadata the pixels are only divided by 255; nonsense in it is refused.
    double bare;
    assert_int_equal(dpcr_model_set_metadata(model, "pixel_mean", NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_model_set_metadata(model, "pixel_deviation", NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_evaluate(context, model, set, 32, NULL, &bare, NULL, NULL, NULL), DPCR_OK);
    assert_true(fabs(bare - loss) > 1e-3);
    const char *const nonsense[] = {"abc", "nan", "inf", "", "0", "-1"};
    for (int i = 0; i < 10; i++) {
        dpcr_error error = {0};
        const char *const key = i < 6 ? "pixel_deviation" : "pixel_mean";
        assert_int_equal(dpcr_model_set_metadata(model, "pixel_deviation", NULL, NULL), DPCR_OK);
        assert_int_equal(dpcr_model_set_metadata(model, key, nonsense[i % 6], NULL), DPCR_OK);
        assert_int_equal(dpcr_evaluate(context, model, set, 32, NULL, &bare, NULL, NULL, &error), DPCR_ERROR_FORMAT);
        assert_non_null(strstr(error.text, key));
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// ---- how many threads ----

// A machine by the book: seconds a step with t threads; one step in four lasts longer by what disturbs it.
static double scripted(const double *seconds, int threads, int64_t step) {
    return seconds[threads] * (step % 4 == 3 ? 1.2 : 1);
}

// Runs `steps` steps of 10 rows; how many of them ran on each number of threads.
static void try_threads(int all, const double *seconds, int64_t steps, int64_t taken[9]) {
    dpcri_trial trial = {.all = all, .now = all};
    memset(taken, 0, 9 * sizeof *taken);
    for (int64_t step = 0; step < steps; step++) {
        taken[trial.now]++;
        dpcri_trial_note(&trial, scripted(seconds, trial.now, step), 10, steps - step - 1);
    }
}

static void a_run_takes_the_threads_it_gains_from(void **state) {
    (void)state;
    const double gains[9] = {0, 8, 4.2, 0, 2.3, 0, 0, 0, 1.4}, loses[9] = {0, 1, 1.4, 0, 1.9, 0, 0, 0, 2.4},
                 between[9] = {0, 4, 2.5, 0, 2, 0, 0, 0, 2.6}, hardly[9] = {0, 1.98, 2};
    int64_t taken[9];
    try_threads(8, gains, 10000, taken);
    assert_in_range(taken[8], 9900, 10000);
    assert_int_equal(taken[8] + taken[4], 10000);  // half as many were slower: fewer are not tried
    try_threads(8, loses, 10000, taken);
    assert_in_range(taken[1], 9550, 10000);
    try_threads(8, between, 10000, taken);
    assert_in_range(taken[4], 9700, 10000);
    try_threads(2, hardly, 10000, taken);  // one in a hundred is no reason
    assert_in_range(taken[2], 9800, 10000);
    try_threads(2, loses, 60, taken);  // too few steps to find out
    assert_int_equal(taken[2], 60);
    try_threads(1, loses, 1000, taken);
    assert_int_equal(taken[1], 1000);
}

// One step of a trial, whichever, that lasts ten times as long is no reason either, nor are the first ones of a number
// of threads, for which data move.
static void a_trial_stands_a_disturbance(void **state) {
    (void)state;
    const double seconds[2][9] = {{0, 1, 2}, {0, 2, 1.1}};
    for (int faster = 0; faster < 2; faster++)
        for (int64_t disturbed = 0; disturbed < 15; disturbed++) {
            dpcri_trial trial = {.all = 2, .now = 2};
            for (int64_t step = 0; step < 20; step++) {
                const double moving = step % 5 == 0 ? 3 : 1, other = step == disturbed ? 10 : 1;
                dpcri_trial_note(&trial, seconds[faster][trial.now] * moving * other, 10, 5000);
            }
            if (trial.now != 1 + faster) fail_msg("step %d was disturbed: %d threads", (int)disturbed, trial.now);
        }
    dpcri_trial trial = {.all = 2, .now = 2};  // nor a slow beginning
    for (int64_t step = 0; step < 20; step++)
        dpcri_trial_note(&trial, seconds[1][trial.now] * (step < 6 ? 3 : 1), 10, 5000);
    assert_int_equal(trial.now, 2);
}

// Where the machine changes under the run, the next trial sees it; steps without rows or time say nothing.
static void a_trial_is_held_again(void **state) {
    (void)state;
    const double before[9] = {0, 1, 2}, after[9] = {0, 2, 1.1};
    dpcri_trial trial = {.all = 2, .now = 2};
    for (int64_t step = 0; step < 100; step++) dpcri_trial_note(&trial, before[trial.now], 10, 5000);
    assert_int_equal(trial.now, 1);
    for (int64_t step = 0; step < 600; step++) dpcri_trial_note(&trial, after[trial.now], 10, 5000);
    assert_int_equal(trial.now, 2);
    const dpcri_trial kept = trial;
    dpcri_trial_note(&trial, 0, 10, 5000);
    dpcri_trial_note(&trial, 1, 0, 5000);
    assert_memory_equal(&trial, &kept, sizeof kept);
}

// A run whose step is a region of many tasks; who is at work at once is counted.
typedef struct counted_run {
    dpcr_context *context;
    dpcri_position position;
    int threads;  // told
    _Atomic int now, most;
    int fewest, wrong;  // threads told to a step at least; steps that had more at work
} counted_run;

static void count_task(void *argument, int64_t i) {
    (void)i;
    counted_run *r = argument;
    const int now = atomic_fetch_add(&r->now, 1) + 1;
    for (int most = atomic_load(&r->most); most < now && !atomic_compare_exchange_weak(&r->most, &most, now);) {
    }
    usleep(50);
    atomic_fetch_sub(&r->now, 1);
}

static void count_begin(void *run, bool first) { (void)run, (void)first; }
static dpcr_status count_save(void *run, dpcr_error *error) { return (void)run, (void)error, DPCR_OK; }

static dpcr_status count_step(void *run, dpcr_error *error) {
    (void)error;
    counted_run *r = run;
    atomic_store(&r->most, 0);
    dpcri_parallel(r->context, 20, count_task, r);
    r->position.batch++, r->position.step++, r->position.rows++;
    return DPCR_OK;
}

static int64_t count_report(void *run) {
    counted_run *r = run;
    if (r->threads < r->fewest) r->fewest = r->threads;
    r->wrong += r->most > r->threads;
    return DPCRI_GO_ON;
}

// The trial tries fewer threads after the first steps: those steps have no more at work than they tell.
static void a_loop_keeps_to_the_threads_it_tells(void **state) {
    (void)state;
    enum { BATCHES = 80 };
    const dpcr_context_options context_options = {.size = sizeof context_options, .threads = 2};
    const dpcr_train_options options = {.size = sizeof options, .checkpoint_seconds = 1000};
    counted_run r = {.fewest = 2, .position = {.batch = BATCHES}};
    assert_int_equal(dpcr_context_create(&context_options, &r.context, NULL), DPCR_OK);
    const dpcri_loop loop = {.run = &r,
                             .context = r.context,
                             .options = &options,
                             .position = &r.position,
                             .threads = &r.threads,
                             .batches = BATCHES,
                             .steps = BATCHES,
                             .begin = count_begin,
                             .step = count_step,
                             .report = count_report,
                             .save = count_save};
    assert_int_equal(dpcri_loop_run(&loop, NULL), DPCR_OK);
    assert_int_equal(r.position.step, BATCHES);
    assert_int_equal(r.fewest, 1);
    assert_int_equal(r.wrong, 0);
    int tries = 0;  // and afterwards all are there again
    for (atomic_store(&r.most, 0); atomic_load(&r.most) < 2; assert_true(++tries < 1000))
        dpcri_parallel(r.context, 20, count_task, &r);
    dpcr_context_destroy(r.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epochs_order_is_a_permutation_of_its_own),
        cmocka_unit_test(figures_are_those_of_the_whole_set),
        cmocka_unit_test(rows_are_normalised_as_written),
        cmocka_unit_test(numbers_come_back_from_their_text),
        cmocka_unit_test(training_reaches_a_high_accuracy),
        cmocka_unit_test(models_of_any_shape_train),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_run_takes_the_threads_it_gains_from),
        cmocka_unit_test(a_trial_stands_a_disturbance),
        cmocka_unit_test(a_trial_is_held_again),
        cmocka_unit_test(a_loop_keeps_to_the_threads_it_tells),
        cmocka_unit_test(gradients_of_newton_agree_at_every_step),
        cmocka_unit_test(a_clipped_run_is_its_steps_with_gradients_cut_by_their_norm),
        cmocka_unit_test(the_loss_curve_of_newton_deviates_like_one_ulp),
        cmocka_unit_test(bad_arguments_are_refused_in_words),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_the_run),
        cmocka_unit_test(parameters_that_end_as_no_numbers_are_refused),
        cmocka_unit_test(an_unconverged_solve_without_fallback_stops_the_run),
        cmocka_unit_test(evaluation_depends_on_the_batch_by_rounding_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
