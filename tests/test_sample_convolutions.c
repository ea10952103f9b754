// SPDX-License-Identifier: MIT
// Convolutions of auto-encoders, gathered and a library's: their definition, gradients against differences, bits for
// any threads, resumed runs, refused memory.
#include <sched.h>

#include "budget.h"
#include "learning.h"
#include "swapping.h"

// ---- convolutions ----

enum { PAINT_ROWS = 5, PAINT_COLS = 7, PAINT = 3 * PAINT_ROWS * PAINT_COLS, PAINTED = 40 };

// Pictures in colour, odd sides: a slope whose direction is the channel's.
static dpcr_dataset coloured(uint8_t *images, uint8_t *labels) {
    for (int i = 0; i < PAINTED * PAINT; i++) {
        const int c = i / (PAINT_ROWS * PAINT_COLS) % 3, y = i / PAINT_COLS % PAINT_ROWS, x = i % PAINT_COLS;
        images[i] = (uint8_t)(20 + 30 * (c == 0 ? x : c == 1 ? y : x + y) / 2 + i / PAINT % 5 * 20 + i * 7 % 11);
    }
    memset(labels, 0, PAINTED);
    return (dpcr_dataset){.count = PAINTED,
                          .rows = PAINT_ROWS,
                          .cols = PAINT_COLS,
                          .classes = 1,
                          .images = images,
                          .labels = labels,
                          .channels = 3};
}

// OpenMP's library, which comes with it, keeps the thread that loads it where its environment says.
static void loading_a_library_moves_no_thread(void **state) {
    (void)state;
    cpu_set_t before, after;
    assert_int_equal(setenv("OMP_PROC_BIND", "true", 1), 0);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    dpcri_conv_library_find();
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    unsetenv("OMP_PROC_BIND");
}

static int stop_at_step_three(void *user, const dpcr_learn_state *state) {
    (void)user;
    return state->step == 3;
}

// The one place where `from` stands, with `to` and spaces after it.
static void replace_in_file(const char *path, const char *from, const char *to) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    static char bytes[1 << 17];
    const size_t count = fread(bytes, 1, sizeof bytes, file), length = strlen(from);
    assert_true(count < sizeof bytes);
    char *at = memmem(bytes, count, from, length);
    assert_non_null(at);
    memset(at, ' ', length);
    memcpy(at, to, strlen(to));
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static dpcr_autoencoder_options painting(int depth) {
    return (dpcr_autoencoder_options){.size = sizeof(dpcr_autoencoder_options),
                                      .rows = PAINT_ROWS,
                                      .cols = PAINT_COLS,
                                      .latent = 4,
                                      .hidden = 3,
                                      .depth = depth,
                                      .seed = 5,
                                      .channels = 3,
                                      .convolutional = 1};
}

static dpcr_autoencoder *convolutional(dpcr_context *context, int depth) {
    const dpcr_autoencoder_options options = painting(depth);
    dpcr_autoencoder *vae = NULL;
    dpcr_error error = {0};
    if (dpcr_autoencoder_create(context, &options, &vae, &error) != DPCR_OK) fail_msg("%s", error.text);
    return vae;
}

// A layer against its definition: every output place is the weights on the 3 x 3 places around it, of the picture cut
// in half or doubled; pictures in the groups' middle and rest.
static void convolutions_are_their_definition(void **state) {
    (void)state;
    enum { MANY = DPCRI_CONV_PICTURES + 5, C = 3 };
    dpcr_context *context = sampling_context(2);
    dpcr_autoencoder *vae = convolutional(context, 1);
    stir(&vae->net);
    for (int up = 0; up < 2; up++) {
        const int layer = up ? vae->net.count - 1 : 0;
        const dpcri_dense *d = &vae->net.layers[layer];
        const int in_rows = up ? 3 : PAINT_ROWS, in_cols = up ? 4 : PAINT_COLS;
        const int rows = up ? PAINT_ROWS : 3, cols = up ? PAINT_COLS : 4;
        static float x[MANY * PAINT], y[MANY * PAINT];
        for (int i = 0; i < MANY * PAINT; i++) x[i] = sinf(0.7f * (float)i);
        dpcri_conv_forward(&vae->net, layer, MANY, x, vae->scratch, y, NULL);
        const float *w = vae->net.values + d->weight;
        for (int n = 0; n < MANY; n++)
            for (int at = 0; at < rows * cols; at++)
                for (int o = 0; o < C; o++) {
                    double u = w[d->in * d->out + o];
                    for (int k = 0; k < 9; k++) {
                        int i = (up ? at / cols : 2 * (at / cols)) + k / 3 - 1;
                        int j = (up ? at % cols : 2 * (at % cols)) + k % 3 - 1;
                        if (i < 0 || j < 0 || i >= PAINT_ROWS || j >= PAINT_COLS) continue;
                        if (up) i /= 2, j /= 2;
                        for (int c = 0; c < C; c++)
                            u +=
                                (double)w[o * 9 * C + k * C + c] * (double)x[((n * in_rows + i) * in_cols + j) * C + c];
                    }
                    const double wanted = up ? 1 / (1 + exp(-u)) : u / (1 + exp(-u));
                    assert_true(fabs(y[(n * rows * cols + at) * C + o] - wanted) < 1e-5);
                }
    }
    dpcr_autoencoder_destroy(vae);
    dpcr_context_destroy(context);
}

static void convolutions_learn(void **state) {
    (void)state;
    static uint8_t images[PAINTED * PAINT], labels[PAINTED];
    const dpcr_dataset data = coloured(images, labels);
    dpcr_context *one = sampling_context(1), *three = sampling_context(3);
    const folder f = make_folder();
    for (int depth = 1; depth <= 2; depth++) {
        dpcr_autoencoder *vae = convolutional(one, depth), *other = convolutional(three, depth), *read = NULL;
        stir(&vae->net);
        const descent d = {&vae->net, train_vae, vae, &data, DPCR_CONVOLUTION_GATHERED};
        check_gradients(&d);
        dpcr_autoencoder_destroy(vae);
        // The same bits for any threads; the file comes back; an ended run goes on to more epochs.
        vae = convolutional(one, depth);
        dpcr_learn_options learn = learn_options(30, 20);
        dpcr_learn_state last;
        dpcr_error error = {0};
        learn.save = f.file;
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, &last, NULL), DPCR_OK);
        learn.save = NULL;
        assert_int_equal(dpcr_autoencoder_train(other, &data, &learn, NULL, NULL), DPCR_OK);
        assert_memory_equal(vae->net.values, other->net.values, (size_t)vae->net.parameters * sizeof(float));
        if (dpcr_autoencoder_load(one, f.file, &read, &error) != DPCR_OK) fail_msg("%s", error.text);
        float x[2 * PAINT], z[2 * 4], again[2 * 4];
        for (int i = 0; i < 2 * PAINT; i++) x[i] = (float)images[i] / 255;
        assert_int_equal(dpcr_autoencoder_encode(vae, 2, x, z, NULL), DPCR_OK);
        assert_int_equal(dpcr_autoencoder_encode(read, 2, x, again, NULL), DPCR_OK);
        assert_memory_equal(z, again, sizeof z);
        assert_int_equal(dpcr_autoencoder_decode(read, 2, z, x, NULL), DPCR_OK);
        const double loss = last.loss;
        learn = learn_options(60, 20);
        learn.resume = learn.save = f.file;
        assert_int_equal(dpcr_autoencoder_train(other, &data, &learn, &last, &error), DPCR_OK);
        assert_int_equal(last.step, 120);
        assert_true(last.loss < loss);
        dpcr_autoencoder_destroy(vae), dpcr_autoencoder_destroy(other), dpcr_autoencoder_destroy(read);
    }
    remove_folder(&f);
    dpcr_context_destroy(one), dpcr_context_destroy(three);
}

// Options of an older caller, no longer than its size says, and convolutions of no name.
static void options_are_refused(void **state) {
    (void)state;
    static uint8_t images[PAINTED * PAINT], labels[PAINTED];
    const dpcr_dataset data = coloured(images, labels);
    dpcr_context *context = sampling_context(1);
    dpcr_autoencoder *vae = convolutional(context, 1);
    dpcr_error error = {0};
    dpcr_learn_options learn = learn_options(1, 20);
    learn.convolution = (dpcr_convolution)7;
    assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "convolution is 7"));
    learn.size = offsetof(dpcr_learn_options, convolution);
    dpcr_learn_options *older = malloc(learn.size);
    memcpy(older, &learn, learn.size);
    assert_int_equal(dpcr_autoencoder_train(vae, &data, older, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "options.size"));
    free(older);
    dpcr_autoencoder_destroy(vae);
    for (int64_t depth = -65; depth <= 7; depth += 8) {  // no shift by any of them
        const dpcr_autoencoder_options o = {
            .size = sizeof o, .rows = 8, .cols = 8, .latent = 2, .hidden = 4, .depth = depth, .convolutional = 1};
        assert_int_equal(dpcr_autoencoder_create(context, &o, &vae, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "wanted at most"));
    }
    dpcr_context_destroy(context);
}

// ---- a library's convolutions ----

// A layer of it against the gathered one: forward, slopes, every gradient; a batch that leaves a piece unfilled.
static void a_librarys_layers_are_the_gathered_ones(void **state) {
    (void)state;
    const dpcri_conv_library *library = dpcri_conv_library_find();
    if (!library) skip();
    enum { MANY = 2 * DPCRI_CONV_PICTURES + 5, ROOM = 3 * DPCRI_CONV_PICTURES };
    const struct shape {
        bool up;
        int64_t rows, cols, channels, out;
    } shapes[] = {{false, 5, 7, 3, 4}, {true, 5, 7, 3, 4},  {false, 8, 6, 1, 16},
                  {true, 8, 6, 17, 1}, {false, 1, 1, 2, 2}, {true, 1, 2, 2, 3}};
    const uint64_t seed = 5;
    dpcr_context *context = sampling_context(3);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const struct shape *of = &shapes[s];
        dpcri_net net = dpcri_net_make(context);
        assert_int_equal(
            dpcri_conv_add(&net, "layer", of->up, of->rows, of->cols, of->channels, of->out, DPCRI_ACT_SILU, NULL),
            DPCR_OK);
        assert_int_equal(dpcri_net_create(&net, &seed, NULL), DPCR_OK);
        stir(&net);
        assert_int_equal(dpcri_net_train(&net, MANY, NULL), DPCR_OK);
        static float x[ROOM * 900], y[2][ROOM * 900], slope[2][ROOM * 900], dy[ROOM * 900], dx[2][ROOM * 900],
            gradients[4096], scratch[2 * 16 * 9000], sums[4096];
        const int64_t in = net.layers[0].gather->in_places * of->channels,
                      out = net.layers[0].gather->out_places * of->out;
        assert_true(in <= 900 && out <= 900 && net.parameters <= 4096 && 2 * dpcri_conv_scratch(&net) <= 2 * 16 * 9000);
        for (int64_t i = 0; i < ROOM * in; i++) x[i] = sinf(0.7f * (float)i);
        for (int64_t i = 0; i < MANY * out; i++) dy[i] = cosf(0.3f * (float)i);
        dpcri_conv_run *run = NULL;
        dpcr_error error = {0};
        if (library->create(&net, 0, MANY, &run, &error) != DPCR_OK) fail_msg("%s", error.text);
        dpcri_conv_forward(&net, 0, MANY, x, scratch, y[0], slope[0]);
        assert_int_equal(library->forward(run, x, y[1], slope[1], NULL), DPCR_OK);
        for (int64_t i = 0; i < MANY * out; i++) {
            assert_true(fabsf(y[0][i] - y[1][i]) < 1e-4f);
            assert_true(fabsf(slope[0][i] - slope[1][i]) < 1e-4f);
        }
        dpcri_conv_backward(&net, 0, MANY, x, slope[0], dy, dx[0], scratch, sums);
        memcpy(gradients, net.gradients, (size_t)net.parameters * sizeof *gradients);
        memset(net.gradients, 0x7f, (size_t)net.parameters * sizeof *gradients);  // all are written
        assert_int_equal(library->backward(run, x, slope[1], dy, dx[1], NULL), DPCR_OK);
        for (int64_t i = 0; i < net.parameters; i++)
            assert_true(fabsf(gradients[i] - net.gradients[i]) < 1e-3f + 1e-4f * fabsf(gradients[i]));
        for (int64_t i = 0; i < MANY * in; i++) assert_true(fabsf(dx[0][i] - dx[1][i]) < 1e-4f);
        library->destroy(run);
        dpcri_net_destroy(&net);
    }
    dpcr_context_destroy(context);
}

// Gradients against differences; the same bits for any threads; resumed, it ends with the bits of the whole run; a
// checkpoint says whose convolutions it was trained with, and what is not there is refused.
static void a_library_trains(void **state) {
    (void)state;
    if (!dpcri_conv_library_find()) skip();
    static uint8_t images[PAINTED * PAINT], labels[PAINTED];
    const dpcr_dataset data = coloured(images, labels);
    const folder f = make_folder();
    dpcr_error error = {0};
    dpcr_learn_state last;
    dpcr_learn_options learn = learn_options(6, 37);  // of 40: a piece is not full
    learn.save = f.file;
    float *bits = NULL;
    for (int threads = 1; threads <= 4; threads++) {
        dpcr_context *context = sampling_context(threads);
        dpcr_autoencoder *vae = convolutional(context, 2);
        const size_t bytes = (size_t)vae->net.parameters * sizeof *bits;
        if (threads == 1) {
            const descent d = {&vae->net, train_vae, vae, &data, DPCR_CONVOLUTION_ONEDNN};
            stir(&vae->net);
            check_gradients(&d);
            dpcr_autoencoder_destroy(vae);
            vae = convolutional(context, 2);
            bits = malloc(bytes);
        }
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, &last, NULL), DPCR_OK);
        assert_string_equal(last.convolutions, dpcri_conv_library_find()->name);
        if (threads == 1) memcpy(bits, vae->net.values, bytes);
        assert_memory_equal(vae->net.values, bits, bytes);
        dpcr_autoencoder_destroy(vae);
        // stopped half-way, gone on with: by itself as it began
        vae = convolutional(context, 2);
        dpcr_learn_options half = learn;
        half.progress = stop_at_step_three;
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &half, NULL, NULL), DPCR_ERROR_CANCELLED);
        half.progress = NULL, half.resume = f.file;
        if (threads == 2) {  // by gathered ones it goes on where it is told to
            half.save = NULL, half.convolution = DPCR_CONVOLUTION_GATHERED;
            assert_int_equal(dpcr_autoencoder_train(vae, &data, &half, &last, NULL), DPCR_OK);
            assert_string_equal(last.convolutions, "gathered");
            assert_memory_not_equal(vae->net.values, bits, bytes);
            half.save = f.file, half.convolution = DPCR_CONVOLUTION_AUTO;
        }
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &half, &last, NULL), DPCR_OK);
        assert_memory_equal(vae->net.values, bits, bytes);
        dpcr_autoencoder_destroy(vae);
        dpcr_context_destroy(context);
    }
    dpcr_context *context = sampling_context(1);
    dpcr_autoencoder *vae = convolutional(context, 2);
    replace_in_file(f.file, "deeppcr.checksum", "deeppcr.unsummed");
    replace_in_file(f.file, dpcri_conv_library_find()->name, "onednn 9");
    learn.resume = f.file;
    assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, NULL, &error), DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "onednn 9"));
    dpcr_autoencoder_destroy(vae);
    dpcr_context_destroy(context);
    free(bits);
    remove_folder(&f);
}

static int stop_at_step(void *user, const dpcr_learn_state *state) { return state->step == *(const int64_t *)user; }

static int stop_at_once(void *user, const dpcr_learn_state *state) {
    (void)state;
    return !swap_ends(user, NULL);
}

// A checkpoint that is replaced while it is read: a run goes on from one of the two, by the convolutions that it has.
static void a_run_goes_on_from_one_file(void **state) {
    (void)state;
    if (!dpcri_conv_library_find()) skip();
    static uint8_t images[PAINTED * PAINT], labels[PAINTED];
    const dpcr_dataset data = coloured(images, labels);
    const folder f = make_folder();
    content files[2];
    dpcr_learn_options learn = learn_options(6, 37);
    learn.progress = stop_at_step;
    for (int64_t step = 1; step <= 2; step++) {
        dpcr_context *context = sampling_context(1);
        dpcr_autoencoder *vae = convolutional(context, 1);
        learn.save = f.file, learn.progress_user = &step;
        learn.convolution = step == 1 ? DPCR_CONVOLUTION_GATHERED : DPCR_CONVOLUTION_ONEDNN;
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, NULL, NULL), DPCR_ERROR_CANCELLED);
        files[step - 1] = read_file(f.file);
        dpcr_autoencoder_destroy(vae);
        dpcr_context_destroy(context);
    }
    swap s;
    dpcr_context *swapping = swap_context(&s, &f, files);
    learn.save = NULL, learn.resume = f.file, learn.convolution = DPCR_CONVOLUTION_AUTO;
    learn.progress = stop_at_once, learn.progress_user = &s;
    for (int64_t calls = 0; !s.unused; calls++) {
        dpcr_learn_state last;
        dpcr_autoencoder *vae = convolutional(swapping, 1);
        swap_after(&s, calls);
        assert_int_equal(dpcr_autoencoder_train(vae, &data, &learn, &last, NULL), DPCR_ERROR_CANCELLED);
        assert_string_equal(last.convolutions, last.step == 2 ? "gathered" : dpcri_conv_library_find()->name);
        dpcr_autoencoder_destroy(vae);
    }
    dpcr_context_destroy(swapping);
    for (int i = 0; i < 2; i++) free(files[i].bytes);
    remove_folder(&f);
}

static void refused_memory_leaks_nothing(void **state) {
    (void)state;
    static uint8_t images[PAINTED * PAINT], labels[PAINTED];
    const dpcr_dataset data = coloured(images, labels);
    for (int kind = 0; kind < 2; kind++) {
        dpcr_status status = DPCR_ERROR_MEMORY;
        for (int64_t allowed = 0; status != DPCR_OK; allowed += 1 + allowed / 16) {
            budget b = {.left = 1000};
            const dpcr_context_options in = budget_options(&b);
            const dpcr_autoencoder_options options = painting(1);
            dpcr_learn_options learn = learn_options(1, 30);
            learn.convolution = kind ? DPCR_CONVOLUTION_AUTO : DPCR_CONVOLUTION_GATHERED;
            dpcr_context *context = NULL;
            dpcr_autoencoder *vae = NULL;
            assert_int_equal(dpcr_context_create(&in, &context, NULL), DPCR_OK);
            b.left = allowed;
            status = dpcr_autoencoder_create(context, &options, &vae, NULL);
            if (status == DPCR_OK) status = dpcr_autoencoder_train(vae, &data, &learn, NULL, NULL);
            assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
            dpcr_autoencoder_destroy(vae);
            dpcr_context_destroy(context);
            assert_int_equal(b.live, 0);
            assert_true(allowed < 400);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_a_library_moves_no_thread),
        cmocka_unit_test(convolutions_are_their_definition),
        cmocka_unit_test(convolutions_learn),
        cmocka_unit_test(options_are_refused),
        cmocka_unit_test(a_librarys_layers_are_the_gathered_ones),
        cmocka_unit_test(a_library_trains),
        cmocka_unit_test(a_run_goes_on_from_one_file),
        cmocka_unit_test(refused_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
