// SPDX-License-Identifier: MIT
// Denoisers and auto-encoders: gradients and Jacobians against differences, bits of rows, files that come back, damaged
// ones, runs that are resumed, losses that fall.
#include <time.h>

#include "budget.h"
#include "learning.h"

static dpcr_diffusion_options small_options(int64_t classes, dpcr_prediction prediction) {
    return (dpcr_diffusion_options){.size = sizeof(dpcr_diffusion_options),
                                    .rows = SIDE,
                                    .cols = SIDE,
                                    .width = PIXELS,
                                    .hidden = 20,
                                    .depth = 3,
                                    .classes = classes,
                                    .prediction = prediction,
                                    .noise = {.steps = 50},
                                    .seed = 3};
}

static dpcr_diffusion *small_model(dpcr_context *context, const dpcr_diffusion_options *options) {
    dpcr_diffusion *model = NULL;
    dpcr_error error = {0};
    if (dpcr_diffusion_create(context, options, NULL, &model, &error) != DPCR_OK) fail_msg("%s", error.text);
    return model;
}

// ---- gradients ----

static void gradients_are_those_of_the_loss(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 24, 1);
    dpcr_context *context = sampling_context(1);
    for (int p = 0; p < DPCR_PREDICTION_COUNT; p++) {
        const dpcr_diffusion_options options = small_options(p ? LABELS : 0, (dpcr_prediction)p);
        dpcr_diffusion *model = small_model(context, &options);
        stir(&model->net);
        const descent d = {&model->net, train_denoiser, model, &data.set, DPCR_CONVOLUTION_AUTO};
        check_gradients(&d);
        dpcr_diffusion_destroy(model);
    }
    const dpcr_autoencoder_options options = {
        .size = sizeof options, .rows = SIDE, .cols = SIDE, .latent = 3, .hidden = 14, .depth = 2, .seed = 5};
    dpcr_autoencoder *vae = NULL;
    assert_int_equal(dpcr_autoencoder_create(context, &options, &vae, NULL), DPCR_OK);
    stir(&vae->net);
    const descent d = {&vae->net, train_vae, vae, &data.set, DPCR_CONVOLUTION_AUTO};
    check_gradients(&d);
    dpcr_autoencoder_destroy(vae);
    dpcr_context_destroy(context);
}

// ---- Jacobians, bits, guidance ----

static dpcr_diffusion *narrow_model(dpcr_context *context, int64_t classes) {
    dpcr_diffusion_options options = small_options(classes, DPCR_PREDICT_V);
    options.rows = 2, options.cols = 4, options.width = 8;
    dpcr_diffusion *model = small_model(context, &options);
    stir(&model->net);
    dpcri_diffusion_refresh(model);
    return model;
}

static void jacobians_are_differences(void **state) {
    (void)state;
    enum { W = 8, ROWS = 5 };
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = narrow_model(context, 3);
    const int32_t labels[] = {0, 2, -1, 1, 0};
    for (int g = 0; g < 2; g++) {
        dpcr_denoiser d = {.size = sizeof d};
        assert_int_equal(dpcr_diffusion_denoiser(model, labels, ROWS, g ? 2.5 : 1, &d, NULL), DPCR_OK);
        float x[ROWS * W], m[ROWS * W], m2[ROWS * W], j[ROWS * W * W], up[ROWS * W], down[ROWS * W];
        const double times[ROWS] = {0, 10, 49, 25.5, 3};
        const int64_t sequences[ROWS] = {0, 1, 2, 3, 4};
        for (int i = 0; i < ROWS * W; i++) x[i] = sinf(2.3f * (float)i);
        assert_int_equal(d.predict(d.user, ROWS, x, times, sequences, m), 0);
        assert_int_equal(d.linearise(d.user, ROWS, x, times, sequences, m2, j), 0);
        assert_memory_equal(m, m2, sizeof m);
        for (int b = 0; b < W; b++) {
            float moved[ROWS * W];
            const float h = 1e-2f;
            for (int side = 0; side < 2; side++) {
                memcpy(moved, x, sizeof x);
                for (int i = 0; i < ROWS; i++) moved[i * W + b] += side ? h : -h;
                d.predict(d.user, ROWS, moved, times, sequences, side ? up : down);
            }
            for (int i = 0; i < ROWS; i++)
                for (int a = 0; a < W; a++) {
                    const double wanted = (double)(up[i * W + a] - down[i * W + a]) / (2 * (double)h);
                    const double got = (double)j[(i * W + a) * W + b];
                    if (!(fabs(got - wanted) < 2e-3)) fail_msg("row %d, %d by %d: %g, wanted %g", i, a, b, got, wanted);
                }
        }
        // Rows alone have the bits of rows together.
        for (int i = 0; i < ROWS; i++) {
            float one[W];
            d.predict(d.user, 1, x + i * W, times + i, sequences + i, one);
            assert_memory_equal(one, m + i * W, sizeof one);
        }
    }
    dpcr_diffusion_destroy(model);
    dpcr_context_destroy(context);
}

// By their numbers and the strength of the class.
static void models_are_told_apart(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        double guidance;
    } models[] = {{3, 1}, {3, 1}, {4, 1}, {3, 2}};
    dpcr_context *context = sampling_context(1);
    uint64_t identity[4];
    for (int i = 0; i < 4; i++) {
        dpcr_diffusion_options options = small_options(3, DPCR_PREDICT_V);
        options.seed = models[i].seed;
        dpcr_diffusion *model = small_model(context, &options);
        dpcr_denoiser denoiser = {.size = sizeof denoiser};
        assert_int_equal(dpcr_diffusion_denoiser(model, NULL, 1, models[i].guidance, &denoiser, NULL), DPCR_OK);
        identity[i] = denoiser.identity;
        dpcr_diffusion_destroy(model);
    }
    assert_true(identity[0] && identity[0] == identity[1]);
    assert_true(identity[2] != identity[0] && identity[3] != identity[0]);
    dpcr_context_destroy(context);
}

// The last seed of all too, whose successor is 0.
static void weights_are_drawn_from_any_seed(void **state) {
    (void)state;
    static const uint64_t seeds[] = {0, UINT64_MAX};
    dpcr_context *context = sampling_context(1);
    for (int i = 0; i < 2; i++) {
        const dpcr_autoencoder_options of_vae = {
            .size = sizeof of_vae, .rows = SIDE, .cols = SIDE, .latent = 4, .hidden = 10, .depth = 1, .seed = seeds[i]};
        dpcr_diffusion_options options = small_options(3, DPCR_PREDICT_V);
        dpcr_autoencoder *vae = NULL;
        options.seed = seeds[i], options.width = 4;
        assert_int_equal(dpcr_autoencoder_create(context, &of_vae, &vae, NULL), DPCR_OK);
        dpcr_diffusion *model = NULL;
        assert_int_equal(dpcr_diffusion_create(context, &options, vae, &model, NULL), DPCR_OK);
        assert_true(model->net.values[0] != 0 && vae->net.values[0] != 0);
        dpcr_diffusion_destroy(model);
    }
    dpcr_context_destroy(context);
}

// Few rows go through all layers in one region, many layer by layer: the same bits for any number of rows and threads,
// at one time, whose shift all rows then share, and at several.
static void few_rows_have_the_bits_of_many(void **state) {
    (void)state;
    enum { W = 70, ROWS = 9, MOST_THREADS = 4 };
    static float x[ROWS * W], kept[2][2][ROWS * W], m[ROWS * W];
    for (int i = 0; i < ROWS * W; i++) x[i] = sinf(1.3f * (float)i);
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        dpcr_context *context = sampling_context(threads);
        for (int c = 0; c < 2; c++) {
            dpcr_diffusion_options options = small_options(c ? 3 : 0, DPCR_PREDICT_V);
            options.rows = 1, options.cols = options.width = W, options.hidden = 230;
            dpcr_diffusion *model = small_model(context, &options);
            stir(&model->net);
            dpcri_diffusion_refresh(model);
            const int32_t labels[ROWS] = {0, 2, -1, 1, 0, 2, 2, 1, -1};
            dpcr_denoiser d = {.size = sizeof d};
            assert_int_equal(dpcr_diffusion_denoiser(model, c ? labels : NULL, ROWS, 1, &d, NULL), DPCR_OK);
            for (int apart = 0; apart < 2; apart++) {
                double times[ROWS];
                int64_t sequences[ROWS];
                for (int i = 0; i < ROWS; i++) times[i] = 30 + 2.5 * apart * (i % 4), sequences[i] = i;
                if (threads == 1) d.predict(d.user, ROWS, x, times, sequences, kept[c][apart]);
                for (int rows = 1; rows <= ROWS; rows++)
                    for (int at = 0; at + rows <= ROWS; at += rows) {
                        d.predict(d.user, rows, x + at * W, times + at, sequences + at, m);
                        assert_memory_equal(m, kept[c][apart] + at * W, (size_t)(rows * W) * sizeof *m);
                    }
            }
            dpcr_diffusion_destroy(model);
        }
        dpcr_context_destroy(context);
    }
}

// From inside a task one thread takes all parts of all layers in turn, those first that have no columns of the narrow
// layers and wait for nothing there.
typedef struct inner_call {
    dpcr_denoiser d;
    const float *x;
    float *m;
} inner_call;

static void predict_inside(void *argument, int64_t task) {
    const inner_call *c = argument;
    if (task == 0) c->d.predict(c->d.user, 1, c->x, &(double){7}, &(int64_t){0}, c->m);
}

static void few_rows_need_no_other_thread(void **state) {
    (void)state;
    enum { W = 4000 };
    static float x[W], wanted[W], m[W];
    for (int i = 0; i < W; i++) x[i] = sinf(1.3f * (float)i);
    for (int threads = 2; threads <= 5; threads++) {
        dpcr_context *context = sampling_context(threads);
        dpcr_diffusion_options options = small_options(0, DPCR_PREDICT_V);
        options.rows = 1, options.cols = options.width = W;
        dpcr_diffusion *model = small_model(context, &options);
        stir(&model->net);
        dpcri_diffusion_refresh(model);
        inner_call call = {.d = {.size = sizeof call.d}, .x = x, .m = m};
        assert_int_equal(dpcr_diffusion_denoiser(model, NULL, 1, 1, &call.d, NULL), DPCR_OK);
        call.d.predict(call.d.user, 1, x, &(double){7}, &(int64_t){0}, wanted);
        dpcri_parallel(context, 2, predict_inside, &call);
        assert_memory_equal(m, wanted, sizeof m);
        dpcr_diffusion_destroy(model);
        dpcr_context_destroy(context);
    }
}

// A network's chain by Newton, its diagonal and Picard: the loop's, and at tolerance 0 its bits.
static void a_networks_chain_by_every_method(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(2);
    dpcr_diffusion *model = narrow_model(context, 0);
    static const dpcr_sampler_kind kinds[] = {DPCR_SAMPLER_DDIM, DPCR_SAMPLER_DDPM, DPCR_SAMPLER_DPM_SOLVER};
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PICARD};
    dpcr_denoiser denoiser = {.size = sizeof denoiser};
    assert_int_equal(dpcr_diffusion_denoiser(model, NULL, 0, 1, &denoiser, NULL), DPCR_OK);
    for (int k = 0; k < 3; k++) {
        const dpcr_sampler_options options = {
            .size = sizeof options, .kind = kinds[k], .noise = {.steps = 50}, .steps = 25, .seed = 8};
        dpcr_sampler *sampler = NULL;
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 3, &sampler, NULL), DPCR_OK);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        for (int i = 0; i < 3; i++)
            for (int exact = 0; exact < 2; exact++) {
                dpcr_solve_options by = by_method(methods[i]);
                if (exact) by.atol = by.rtol = -1;
                solved got = solve_sampler(context, sampler, &by, NULL);
                if (exact)
                    assert_memory_equal(got.z, loop.z, path_bytes(&loop));
                else
                    assert_true(path_distance(&got, &loop) < 1e-3);
                path_free(&got);
            }
        path_free(&loop);
        int64_t rows = 0, products = 0, calls = 0;
        dpcr_sampler_counts(sampler, &rows, &products, &calls);
        assert_true(rows > 25 * 3 && products > 0 && products % 8 == 0 && calls > 25 && calls < rows);
        dpcr_sampler_counts_reset(sampler);
        dpcr_sampler_counts(sampler, &rows, NULL, NULL);
        assert_int_equal(rows, 0);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_diffusion_destroy(model);
    dpcr_context_destroy(context);
}

// ---- training ----

static void training_is_the_same_for_any_threads_and_learns(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 200, 1);
    float *kept = NULL;
    for (int threads = 1; threads <= 3; threads += 2) {
        dpcr_context *context = sampling_context(threads);
        const dpcr_diffusion_options options = small_options(LABELS, DPCR_PREDICT_X0);
        dpcr_diffusion *model = small_model(context, &options);
        dpcr_learn_options learn = learn_options(1, 50);
        dpcr_learn_state first, last;
        assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, &first, NULL), DPCR_OK);
        assert_int_equal(first.step, 4);
        learn.epochs = 12;
        assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, &last, NULL), DPCR_OK);
        assert_true(last.loss < 0.8 * first.loss && last.epoch == 12 && last.epoch_ended);
        const size_t bytes = (size_t)model->net.parameters * sizeof *kept;
        if (!kept) {
            kept = malloc(bytes);
            memcpy(kept, model->net.values, bytes);
        } else {
            assert_memory_equal(kept, model->net.values, bytes);
        }
        dpcr_diffusion_destroy(model);
        dpcr_context_destroy(context);
    }
    free(kept);
}

// What a trained model holds is the average of its weights after each step, not the last ones.
typedef struct watched {
    const dpcr_diffusion *model;
    double decay;
    float *average;
} watched;

static int average_weights(void *user, const dpcr_learn_state *state) {
    watched *w = user;
    const double t = (double)state->step;
    const float pull = (float)(1 - fmin(w->decay, (1 + t) / (10 + t)));
    for (int64_t i = 0; i < w->model->net.parameters; i++)
        w->average[i] += pull * (w->model->net.values[i] - w->average[i]);
    return 0;
}

static void trained_weights_are_averages(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 100, 1);
    static const double decays[] = {0.5, 0.999};  // less than what the first steps take, and more
    for (int d = 0; d < 2; d++) {
        dpcr_context *context = sampling_context(1);
        const dpcr_diffusion_options options = small_options(0, DPCR_PREDICT_V);
        dpcr_diffusion *model = small_model(context, &options);
        const size_t bytes = (size_t)model->net.parameters * sizeof(float);
        watched w = {model, decays[d], malloc(bytes)};
        dpcr_learn_options learn = learn_options(5, 25);
        memcpy(w.average, model->net.values, bytes);
        learn.average = w.decay, learn.progress = average_weights, learn.progress_user = &w;
        assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, NULL), DPCR_OK);
        assert_memory_equal(model->net.values, w.average, bytes);
        free(w.average);
        dpcr_diffusion_destroy(model);
        dpcr_context_destroy(context);
    }
}

// A check falls due with step 1. A bias that no row is computed from is lost with step 2.
static int idle(void *user, const dpcr_learn_state *state) {
    dpcr_diffusion *model = user;
    const dpcri_dense *in = &model->net.layers[model->first];
    if (state->step == 1) nanosleep(&(struct timespec){.tv_nsec = 350000000}, NULL);
    if (state->step == 2) model->net.values[in->weight + in->in * in->out] = NAN;
    return 0;
}

// Whether the weights are finite is asked when a checkpoint would be written, and not after every step from then on.
static void a_run_without_a_file_checks_as_often(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 100, 1);
    dpcr_context *context = sampling_context(1);
    const dpcr_diffusion_options options = small_options(0, DPCR_PREDICT_V);
    dpcr_diffusion *model = small_model(context, &options);
    dpcr_learn_options learn = learn_options(1, 25);
    dpcr_error error = {0};
    learn.size--;
    assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "options.size is"));
    learn.size++;
    learn.checkpoint_seconds = 0.3;
    learn.progress = idle;
    learn.progress_user = model;
    assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "after step 4"));  // the epoch's last
    dpcr_diffusion_destroy(model);
    dpcr_context_destroy(context);
}

typedef struct stopper {
    int64_t at;
} stopper;

static int stop_at(void *user, const dpcr_learn_state *state) { return state->step == ((stopper *)user)->at; }

static dpcr_status train_vae_and_denoiser(dpcr_context *context, const dpcr_dataset *data, const folder *f,
                                          const char *resume, int64_t stop, int what, dpcr_error *error) {
    dpcr_status status;
    dpcr_learn_options learn = learn_options(3, 30);
    stopper s = {stop};
    learn.save = f->file;
    learn.resume = resume;
    learn.progress = stop_at;
    learn.progress_user = &s;
    learn.checkpoint_seconds = 1e9;
    if (what == 0) {
        const dpcr_autoencoder_options options = {
            .size = sizeof options, .rows = SIDE, .cols = SIDE, .latent = 3, .hidden = 12, .depth = 1, .seed = 5};
        dpcr_autoencoder *vae = NULL;
        assert_int_equal(dpcr_autoencoder_create(context, &options, &vae, NULL), DPCR_OK);
        status = dpcr_autoencoder_train(vae, data, &learn, NULL, error);
        dpcr_autoencoder_destroy(vae);
    } else {
        const dpcr_diffusion_options options = small_options(LABELS, DPCR_PREDICT_EPSILON);
        dpcr_diffusion *model = small_model(context, &options);
        status = dpcr_diffusion_train(model, data, &learn, NULL, error);
        dpcr_diffusion_destroy(model);
    }
    return status;
}

static void a_resumed_run_ends_with_the_same_bits(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 100, 1);
    dpcr_context *context = sampling_context(1);
    dpcr_error error = {0};
    for (int what = 0; what < 2; what++) {
        const folder f = make_folder();
        assert_int_equal(train_vae_and_denoiser(context, &data.set, &f, NULL, -1, what, NULL), DPCR_OK);
        content whole = read_file(f.file);
        for (int64_t stop = 2; stop < 9; stop += 3) {
            assert_int_equal(train_vae_and_denoiser(context, &data.set, &f, NULL, stop, what, &error),
                             DPCR_ERROR_CANCELLED);
            assert_non_null(strstr(error.text, "resume from"));
            assert_int_equal(train_vae_and_denoiser(context, &data.set, &f, f.file, -1, what, &error), DPCR_OK);
            assert_same_file(f.file, &whole);
        }
        // Other data are refused, and so is a file of the other kind; the file stays.
        assert_int_equal(train_vae_and_denoiser(context, &data.set, &f, NULL, 2, what, NULL), DPCR_ERROR_CANCELLED);
        content kept = read_file(f.file);
        data.images[0] ^= 1;
        assert_int_equal(train_vae_and_denoiser(context, &data.set, &f, f.file, -1, what, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "deeppcr.learn.data"));
        data.images[0] ^= 1;
        assert_int_not_equal(train_vae_and_denoiser(context, &data.set, &f, f.file, -1, 1 - what, &error), DPCR_OK);
        assert_same_file(f.file, &kept);
        free(kept.bytes);
        free(whole.bytes);
        remove_folder(&f);
    }
    dpcr_context_destroy(context);
}

// Writes the file again without its sum, and without what the optimiser knows or with no number among the averages.
static void damage(dpcr_context *context, const char *path, bool averages) {
    dpcr_tensors file = {0};
    assert_int_equal(dpcr_safetensors_read(context, path, &file, NULL), DPCR_OK);
    for (int64_t i = 0; i < file.metadata_count; i++)
        if (!strcmp(file.metadata_keys[i], "deeppcr.checksum")) file.metadata_keys[i][0] = '_';
    for (int64_t i = 0; i < file.count; i++) {
        dpcr_tensor *t = &file.items[i];
        if (!averages && !strcmp(t->name, "learn.second")) t->name[0] = '_';
        if (averages && !strcmp(t->name, "out.bias")) *(float *)t->array.data = NAN;
    }
    assert_int_equal(dpcr_safetensors_write(path, &file, NULL), DPCR_OK);
    dpcr_tensors_free(context, &file);
}

static void a_damaged_checkpoint_changes_nothing(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 100, 1);
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    const dpcr_diffusion_options options = small_options(0, DPCR_PREDICT_V);
    dpcr_diffusion *model = small_model(context, &options);
    const size_t bytes = (size_t)model->net.parameters * sizeof(float);
    dpcr_learn_options learn = learn_options(1, 25);
    dpcr_error error = {0};
    learn.save = f.file;
    assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, NULL), DPCR_OK);
    learn.resume = f.file;
    content whole = read_file(f.file);
    stir(&model->net);  // to other numbers than the file's
    float *before = malloc(bytes);
    memcpy(before, model->net.values, bytes);
    for (int averages = 0; averages < 2; averages++) {
        write_file(f.file, whole.bytes, whole.size);
        damage(context, f.file, averages);
        assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, &error), DPCR_ERROR_FORMAT);
        assert_non_null(strstr(error.text, averages ? "out.bias" : "learn.second"));
        assert_memory_equal(model->net.values, before, bytes);
    }
    free(before);
    free(whole.bytes);
    dpcr_diffusion_destroy(model);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// ---- files ----

#define SUM "deeppcr.checksum"

static dpcr_diffusion *latent_model(dpcr_context *context) {
    const dpcr_autoencoder_options of_vae = {
        .size = sizeof of_vae, .rows = SIDE, .cols = SIDE, .latent = 4, .hidden = 10, .depth = 1, .seed = 5};
    dpcr_diffusion_options options = small_options(LABELS, DPCR_PREDICT_V);
    dpcr_autoencoder *vae = NULL;
    dpcr_diffusion *model = NULL;
    options.width = 4;
    options.noise.kind = DPCR_NOISE_COSINE;
    assert_int_equal(dpcr_autoencoder_create(context, &of_vae, &vae, NULL), DPCR_OK);
    vae->mean[1] = 0.5f;
    assert_int_equal(dpcr_diffusion_create(context, &options, vae, &model, NULL), DPCR_OK);
    stir(&model->net);
    dpcri_diffusion_refresh(model);
    return model;
}

static void files_come_back(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = latent_model(context), *read = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_diffusion_save(model, f.file, NULL), DPCR_OK);
    if (dpcr_diffusion_load(context, f.file, &read, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_memory_equal(read->net.values, model->net.values, (size_t)model->net.parameters * sizeof(float));
    assert_memory_equal(read->shift, model->shift, sizeof(float) * 50 * (size_t)model->shifts);
    assert_int_equal(read->options.noise.kind, DPCR_NOISE_COSINE);
    float z[3 * 4], x[3 * PIXELS], y[3 * PIXELS], back[3 * 4];
    for (int i = 0; i < 12; i++) z[i] = sinf((float)i);
    assert_int_equal(dpcr_diffusion_pictures(model, 3, z, x, NULL), DPCR_OK);
    assert_int_equal(dpcr_diffusion_pictures(read, 3, z, y, NULL), DPCR_OK);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(dpcr_autoencoder_encode(dpcr_diffusion_autoencoder(read), 3, x, back, NULL), DPCR_OK);
    dpcr_autoencoder *vae = NULL;
    assert_int_equal(dpcr_autoencoder_load(context, f.file, &vae, &error), DPCR_ERROR_FORMAT);
    assert_non_null(strstr(error.text, "no auto-encoder"));
    assert_int_equal(dpcr_autoencoder_save(dpcr_diffusion_autoencoder(model), f.file, NULL), DPCR_OK);
    assert_int_equal(dpcr_autoencoder_load(context, f.file, &vae, NULL), DPCR_OK);
    assert_int_equal(dpcr_autoencoder_decode(vae, 3, z, y, NULL), DPCR_OK);
    assert_memory_equal(x, y, sizeof x);
    dpcr_diffusion_destroy(read);
    assert_int_equal(dpcr_diffusion_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
    assert_null(read);
    dpcr_autoencoder_destroy(vae);
    dpcr_diffusion_destroy(model);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static void assert_damaged(dpcr_context *context, const folder *f, const content *c, size_t place) {
    dpcr_diffusion *read;
    dpcr_error error = {0};
    write_file(f->file, c->bytes, c->size);
    if (dpcr_diffusion_load(context, f->file, &read, &error) != DPCR_ERROR_FORMAT)
        fail_msg("byte %zu of %zu: read", place, c->size);
    assert_true(error.text[0] && !strchr(error.text, '\n') && !read);
}

// A file with any bit changed is not the one that was saved; but for the sum's own name, without which none is looked
// for.
static void flipped_bits_are_refused(void **state) {
    (void)state;
    enum { PLACES = 300 };
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = latent_model(context), *read;
    assert_int_equal(dpcr_diffusion_save(model, f.file, NULL), DPCR_OK);
    dpcr_diffusion_destroy(model);
    content whole = read_file(f.file);
    const unsigned char *name = memmem(whole.bytes, whole.size, SUM, strlen(SUM));
    assert_non_null(name);
    for (size_t i = 0; i < PLACES; i++) {
        unsigned char *at = whole.bytes + (whole.size - 1) * i / (PLACES - 1);
        if (at >= name && at < name + strlen(SUM)) continue;
        *at ^= (unsigned char)(1 << i % 8);
        assert_damaged(context, &f, &whole, (size_t)(at - whole.bytes));
        *at ^= (unsigned char)(1 << i % 8);
    }
    write_file(f.file, whole.bytes, whole.size);
    assert_int_equal(dpcr_diffusion_load(context, f.file, &read, NULL), DPCR_OK);
    dpcr_diffusion_destroy(read);
    free(whole.bytes);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// Signs are the uppermost bits, which products carry nowhere: of any two numbers, of one array and of two.
static void pairs_of_signs_are_refused(void **state) {
    (void)state;
    enum { PLACES = 12 };
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = latent_model(context);
    assert_int_equal(dpcr_diffusion_save(model, f.file, NULL), DPCR_OK);
    dpcr_diffusion_destroy(model);
    content whole = read_file(f.file);
    uint64_t header = 0;
    memcpy(&header, whole.bytes, sizeof header);
    const size_t begin = sizeof header + header, numbers = (whole.size - begin) / sizeof(float);
    size_t places[PLACES];  // two or three next to each other, here and there
    for (size_t i = 0; i < PLACES; i++)
        places[i] = begin + 3 + sizeof(float) * ((numbers - 4) * (i / 3) / (PLACES / 3 - 1) + i % 3 * (i % 3 + 1) / 2);
    for (size_t i = 0; i < PLACES; i++)
        for (size_t k = 0; k < i; k++) {
            whole.bytes[places[i]] ^= 0x80, whole.bytes[places[k]] ^= 0x80;
            assert_damaged(context, &f, &whole, places[i]);
            whole.bytes[places[i]] ^= 0x80, whole.bytes[places[k]] ^= 0x80;
        }
    free(whole.bytes);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// What stands in the sum's place is not printed as it is.
static void sums_that_are_none_are_not_printed(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = latent_model(context);
    assert_int_equal(dpcr_diffusion_save(model, f.file, NULL), DPCR_OK);
    dpcr_diffusion_destroy(model);
    content whole = read_file(f.file);
    unsigned char *sum = memmem(whole.bytes, whole.size, SUM, strlen(SUM));
    assert_non_null(sum);
    memcpy(strchr((char *)sum, ':') + 2, "\\n", 2);
    assert_damaged(context, &f, &whole, (size_t)(sum - whole.bytes));
    free(whole.bytes);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// Every cut, and, where no sum is told, bytes changed in the header and in the numbers: refused in one line, or read as
// what it says.
static void damaged_files_are_refused(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion *model = latent_model(context), *read;
    assert_int_equal(dpcr_diffusion_save(model, f.file, NULL), DPCR_OK);
    dpcr_diffusion_destroy(model);
    content whole = read_file(f.file);
    dpcr_error error;
    uint64_t header = 0;
    memcpy(&header, whole.bytes, sizeof header);
    unsigned char *sum = memmem(whole.bytes, header, SUM, strlen(SUM));
    assert_non_null(sum);
    sum[0] = '_';
    write_file(f.file, whole.bytes, whole.size);
    assert_int_equal(dpcr_diffusion_load(context, f.file, &read, NULL), DPCR_OK);
    dpcr_diffusion_destroy(read);
    for (size_t size = 0; size < whole.size; size += 1 + whole.size / 40) {
        write_file(f.file, whole.bytes, size);
        error = (dpcr_error){0};
        assert_int_equal(dpcr_diffusion_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
        assert_true(error.text[0] && !strchr(error.text, '\n') && !read);
    }
    static const char *const words[] = {"denoiser.width",      "denoiser.hidden",    "denoiser.depth",
                                        "denoiser.steps",      "denoiser.latent",    "vae.latent",
                                        "denoiser.prediction", "denoiser.beta_last", "out.weight",
                                        "shift.bias",          "code.mean",          "denoiser.classes"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        unsigned char *bytes = malloc(whole.size), *at;
        memcpy(bytes, whole.bytes, whole.size);
        at = memmem(bytes, header, words[k], strlen(words[k]));
        assert_non_null(at);
        at[0] = '_';
        write_file(f.file, bytes, whole.size);
        assert_int_equal(dpcr_diffusion_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
        free(bytes);
    }
    const float bad = NAN;
    memcpy(whole.bytes + whole.size - 400, &bad, sizeof bad);
    write_file(f.file, whole.bytes, whole.size);
    assert_int_equal(dpcr_diffusion_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
    free(whole.bytes);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static float *bias_of(const dpcri_net *net, int layer) {
    return net->values + net->layers[layer].weight + net->layers[layer].in * net->layers[layer].out;
}

// Codes that are large but finite, a hidden layer that is infinite, so that the last pixel is inf - inf.
static void overflow_a_pixel(dpcr_autoencoder *vae) {
    const dpcri_net *net = &vae->net;
    const dpcri_dense *hidden = &net->layers[net->count - 2], *last = &net->layers[net->count - 1];
    for (int64_t k = 0; k < hidden->in; k++) bias_of(net, vae->encoder - 1)[hidden->in + k] = 100;
    for (int64_t i = 0; i < hidden->in * hidden->out; i++)
        net->values[hidden->weight + i] = i / hidden->in % 4 < 2 ? 1e30f : -1e30f;
    for (int64_t k = 0; k < last->in; k++) net->values[last->weight + last->in * (last->out - 1) + k] = k % 2 ? -1 : 1;
    dpcri_net_pack(&vae->net);
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    dpcr_diffusion_options options = small_options(0, DPCR_PREDICT_X0);
    dpcr_diffusion *model = NULL;
    dpcr_error error = {0};
    options.width++;
    assert_int_equal(dpcr_diffusion_create(context, &options, NULL, &model, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "width 37"));
    options = small_options(0, DPCR_PREDICT_X0);
    model = small_model(context, &options);
    dpcr_denoiser d = {.size = sizeof d};
    const int32_t labels[] = {0};
    assert_int_equal(dpcr_diffusion_denoiser(model, labels, 1, 1, &d, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "class 0"));
    // an older denoiser, after which the caller keeps something else
    memset(&d, 0x55, sizeof d);
    d.size = offsetof(dpcr_denoiser, identity);
    const dpcr_denoiser kept = d;
    assert_int_equal(dpcr_diffusion_denoiser(model, NULL, 1, 1, &d, &error), DPCR_OK);
    assert_int_equal(d.size, kept.size);
    assert_ptr_equal(d.user, model);
    assert_memory_equal((char *)&d + kept.size, (const char *)&kept + kept.size, sizeof d - kept.size);
    d.size--;
    assert_int_equal(dpcr_diffusion_denoiser(model, NULL, 1, 1, &d, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "size"));
    static small_data data;
    make_data(&data, 10, 1);
    dpcr_learn_options learn = learn_options(1, 20);
    assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_autoencoder *vae = NULL;
    const dpcr_autoencoder_options of_vae = {
        .size = sizeof of_vae, .rows = SIDE, .cols = SIDE, .latent = 4, .hidden = 10, .depth = 1};
    assert_int_equal(dpcr_autoencoder_create(context, &of_vae, &vae, NULL), DPCR_OK);
    learn = learn_options(1, 5);
    for (int lack = 0; lack < 2; lack++) {
        dpcr_dataset half = data.set;
        if (lack)
            half.labels = NULL;
        else
            half.images = NULL;
        assert_int_equal(dpcr_diffusion_train(model, &half, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "images or labels are NULL"));
        assert_int_equal(dpcr_autoencoder_train(vae, &half, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "images or labels are NULL"));
    }
    overflow_a_pixel(vae);
    assert_int_equal(dpcr_autoencoder_train(vae, &data.set, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "the loss of step 1 is not finite"));
    dpcr_diffusion *wider = NULL;  // takes the auto-encoder over
    options.cols++, options.width = 4;
    assert_int_equal(dpcr_diffusion_create(context, &options, vae, &wider, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "pictures of 1 x 6 x 7, wanted 1 x 6 x 6, the auto-encoder's"));
    learn.optimiser.rate = 1e30;
    learn.epochs = 30;
    assert_int_equal(dpcr_diffusion_train(model, &data.set, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "not finite"));
    dpcr_diffusion_destroy(model);
    dpcr_context_destroy(context);
}

static void refused_memory_leaks_nothing(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 10, 1);
    dpcr_status status = DPCR_ERROR_MEMORY;
    for (int64_t allowed = 0; status != DPCR_OK; allowed += 1 + allowed / 16) {
        budget b = {.left = 1000};
        const dpcr_context_options in = budget_options(&b);
        const dpcr_diffusion_options options = small_options(LABELS, DPCR_PREDICT_X0);
        const dpcr_learn_options learn = learn_options(1, 5);
        dpcr_context *context = NULL;
        dpcr_diffusion *model = NULL;
        assert_int_equal(dpcr_context_create(&in, &context, NULL), DPCR_OK);
        b.left = allowed;
        status = dpcr_diffusion_create(context, &options, NULL, &model, NULL);
        if (status == DPCR_OK) status = dpcr_diffusion_train(model, &data.set, &learn, NULL, NULL);
        assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
        dpcr_diffusion_destroy(model);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
        assert_true(allowed < 400);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_loss),
        cmocka_unit_test(jacobians_are_differences),
        cmocka_unit_test(models_are_told_apart),
        cmocka_unit_test(weights_are_drawn_from_any_seed),
        cmocka_unit_test(few_rows_have_the_bits_of_many),
        cmocka_unit_test(few_rows_need_no_other_thread),
        cmocka_unit_test(a_networks_chain_by_every_method),
        cmocka_unit_test(training_is_the_same_for_any_threads_and_learns),
        cmocka_unit_test(trained_weights_are_averages),
        cmocka_unit_test(a_run_without_a_file_checks_as_often),
        cmocka_unit_test(a_resumed_run_ends_with_the_same_bits),
        cmocka_unit_test(a_damaged_checkpoint_changes_nothing),
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(flipped_bits_are_refused),
        cmocka_unit_test(pairs_of_signs_are_refused),
        cmocka_unit_test(sums_that_are_none_are_not_printed),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refused_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
