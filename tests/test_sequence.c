// SPDX-License-Identifier: MIT
// Sequence models: gradients against finite differences for every readout, files, training by every method alike,
// stopped and resumed to the same bits, the likelihood of a text, refusals, refused memory.
#include <zlib.h>

#include "budget.h"
#include "deeppcr/sequence.h"
#include "swapping.h"
#include "train/sequence.h"
#include "training.h"

enum { CLASSES = 3, FEATURES = 2, LONGEST = 12, SEQUENCES = 20, SYMBOLS = 7, LETTERS = 400 };

// ---- small data ----

// The label is the place of the larger feature, or none of both; lengths differ.
static void read_sequence(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    const bool same = user != NULL;
    *label = (uint8_t)dpcri_random_below(3, DPCRI_STREAM_DATA, (uint64_t)index, CLASSES);
    *length = same ? LONGEST : 1 + (int64_t)dpcri_random_below(3, DPCRI_STREAM_DATA | 1, (uint64_t)index, LONGEST);
    for (int64_t i = 0; i < *length * FEATURES; i++) {
        const double noise = dpcri_random_normal(3, DPCRI_STREAM_DATA | 2, (uint64_t)(index * 100 + i));
        x[i] = (float)(noise + (i % FEATURES == *label ? 1.5 : 0));
    }
}

static dpcr_sequence_data labelled(bool same) {
    static int flag;
    return (dpcr_sequence_data){.size = sizeof(dpcr_sequence_data),
                                .count = SEQUENCES,
                                .longest = LONGEST,
                                .same_length = same,
                                .features = FEATURES,
                                .read = read_sequence,
                                .user = same ? &flag : NULL};
}

static uint8_t letters[LETTERS];

// Counts up, with a slip now and then.
static dpcr_sequence_data text(void) {
    for (int64_t i = 0; i < LETTERS; i++)
        letters[i] = (uint8_t)((uint64_t)i + dpcri_random_below(1, DPCRI_STREAM_DATA, (uint64_t)i, 9) / 8) % SYMBOLS;
    return (dpcr_sequence_data){.size = sizeof(dpcr_sequence_data), .count = LETTERS, .text = letters};
}

static dpcr_sequence_options model_options(dpcr_recurrent_kind kind, dpcr_readout readout, dpcr_dtype dtype) {
    const bool each = readout == DPCR_READOUT_EACH;
    return (dpcr_sequence_options){.size = sizeof(dpcr_sequence_options),
                                   .network = {.kind = kind,
                                               .dtype = dtype,
                                               .inputs = each ? 3 : FEATURES,
                                               .hidden = 5,
                                               .layers = each ? 2 : 1,
                                               .bidirectional = readout == DPCR_READOUT_MEAN,
                                               .seed = 9},
                                   .symbols = each ? SYMBOLS : 0,
                                   .outputs = each ? SYMBOLS : CLASSES,
                                   .readout = readout};
}

static dpcr_sequence_train_options run_options(int64_t epochs) {
    dpcr_sequence_train_options options = {.size = sizeof options, .train = train_options(epochs, 4), .length = 10};
    options.train.clip = 1;
    return options;
}

static void train_it(dpcr_sequence *model, const dpcr_sequence_data *data, const dpcr_sequence_train_options *options,
                     dpcr_train_state *last) {
    dpcr_error error = {0};
    if (dpcr_sequence_train(model->context, model, data, options, last, &error) != DPCR_OK) fail_msg("%s", error.text);
}

static void assert_same_parameters(dpcr_sequence *a, dpcr_sequence *b) {
    int64_t count = 0;
    const void *network = dpcr_recurrent_vector(a->network, &count);
    assert_memory_equal(network, dpcr_recurrent_vector(b->network, NULL), (size_t)count * a->kernels->element);
    assert_memory_equal(a->parameters, b->parameters, (size_t)a->count * a->kernels->element);
}

// ---- gradients ----

static double loss_of(dpcri_sequence_pass *pass) {
    double loss = 0;
    int64_t correct = 0;
    dpcr_error error = {0};
    if (dpcri_sequence_forward(pass, 0, pass->shape.training, &loss, &correct, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    return loss;
}

static void check_vector(dpcri_sequence_pass *pass, double *values, const double *gradients, int64_t count) {
    const double step = 1e-6;
    for (int64_t i = 0; i < count; i++) {
        const double kept = values[i];
        values[i] = kept + step;
        const double above = loss_of(pass);
        values[i] = kept - step;
        const double below = loss_of(pass);
        values[i] = kept;
        assert_true(fabs((above - below) / (2 * step) - gradients[i]) < 1e-7);
    }
}

static void check_gradients(dpcr_recurrent_kind kind, dpcr_readout readout, bool packed, int64_t segment) {
    dpcr_context *context = make_context(1);
    dpcr_sequence *model = make_sequence(context, model_options(kind, readout, DPCR_F64));
    const dpcr_solve_options loop = {
        .size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    dpcri_sequence_pass pass;
    const dpcri_sequence_shape shape = {
        .length = LONGEST, .batch = 3, .training = true, .packed = packed, .segment = segment};
    assert_int_equal(dpcri_sequence_pass_create(&pass, model, &shape, NULL), DPCR_OK);
    for (int64_t i = 0; i < LONGEST * 3; i++) {
        if (pass.symbols) pass.symbols[i] = i * i % SYMBOLS;
        for (int64_t f = 0; !pass.symbols && f < FEATURES; f++)
            ((double *)pass.x)[i * FEATURES + f] = sin((double)(i * FEATURES + f));
    }
    for (int64_t i = 0; i < pass.rows; i++) pass.labels[i] = (uint8_t)(i % model->options.outputs);
    for (int64_t b = 0; packed && b < 3; b++) pass.lengths[b] = 1 + 5 * b;
    assert_int_equal(dpcri_sequence_pass_plan(&pass, &loop, NULL), DPCR_OK);
    loss_of(&pass);
    assert_int_equal(dpcri_sequence_backward(&pass, NULL), DPCR_OK);
    int64_t count = 0;
    double *values = dpcr_recurrent_vector(model->network, &count);
    check_vector(&pass, values, dpcr_recurrent_gradient_vector(model->network), count);
    check_vector(&pass, (double *)(void *)model->parameters, (const double *)(void *)model->gradients, model->count);
    dpcri_sequence_pass_destroy(&pass);
    dpcr_sequence_destroy(model);
    dpcr_context_destroy(context);
}

static void gradients(void **state) {
    (void)state;
    check_gradients(DPCR_RNN_TANH, DPCR_READOUT_LAST, false, 0);
    check_gradients(DPCR_GRU, DPCR_READOUT_LAST, true, 0);
    check_gradients(DPCR_GRU, DPCR_READOUT_MEAN, true, 0);
    check_gradients(DPCR_LSTM, DPCR_READOUT_EACH, false, 0);
    check_gradients(DPCR_PARALSTM, DPCR_READOUT_EACH, false, 0);
    // States kept every so many steps only, that divide the length or do not, beyond some sequences' ends.
    check_gradients(DPCR_RNN_TANH, DPCR_READOUT_LAST, false, 1);
    check_gradients(DPCR_GRU, DPCR_READOUT_LAST, true, 4);
    check_gradients(DPCR_LSTM, DPCR_READOUT_LAST, true, 5);
    check_gradients(DPCR_LSTM, DPCR_READOUT_LAST, false, LONGEST);
}

// A segment that had to be finished in order is told, though those after it, beyond all ends, converge at once.
static void the_worst_segment_is_told(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_sequence *model = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F64));
    const dpcr_solve_options soon = {
        .size = sizeof soon, .method = DPCR_METHOD_NEWTON, .backward = DPCR_SCHEME_SEQUENTIAL, .max_sweeps = 2};
    const dpcri_sequence_shape shape = {.length = LONGEST, .batch = 1, .training = true, .packed = true, .segment = 4};
    dpcri_sequence_pass pass;
    assert_int_equal(dpcri_sequence_pass_create(&pass, model, &shape, NULL), DPCR_OK);
    for (int64_t i = 0; i < LONGEST * FEATURES; i++) ((double *)pass.x)[i] = 3 * sin((double)i);
    pass.lengths[0] = 4;
    assert_int_equal(dpcri_sequence_pass_plan(&pass, &soon, NULL), DPCR_OK);
    assert_int_equal(dpcri_sequence_run(&pass, NULL), DPCR_OK);
    assert_int_equal(pass.reports[0].reason, DPCR_REASON_FALLBACK);
    dpcri_sequence_pass_destroy(&pass);
    dpcr_sequence_destroy(model);
    dpcr_context_destroy(context);
}

// ---- training ----

// Plain back-propagation through time, Newton forward with a scan back, overlapped chunks: one curve.
static void methods_agree(void **state) {
    (void)state;
    static const struct {
        dpcr_method method;
        dpcr_scheme backward;
    } ways[] = {{DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL},
                {DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_BLELLOCH},
                {DPCR_METHOD_NEWTON, DPCR_SCHEME_CHUNKED},
                {DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP}};
    dpcr_context *context = make_context(2);
    for (int dtype = 0; dtype < 2; dtype++) {
        double losses[4] = {0}, first = 0;
        for (int w = 0; w < 4; w++) {
            dpcr_sequence *model =
                make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST, dtype ? DPCR_F64 : DPCR_F32));
            const dpcr_sequence_data data = labelled(true);
            dpcr_sequence_train_options options = run_options(12);
            options.train.solve.method = ways[w].method;
            options.train.solve.backward = ways[w].backward;
            options.train.solve.chunk = ways[w].method == DPCR_METHOD_OVERLAP ? 4 : 0;
            options.train.optimiser.rate = 0.03;
            dpcr_train_state last;
            train_it(model, &data, &options, &last);
            losses[w] = last.loss;
            if (w == 0)
                assert_int_equal(dpcr_sequence_evaluate(context, model, &data, 7, NULL, &first, NULL, NULL, NULL),
                                 DPCR_OK);
            dpcr_sequence_destroy(model);
        }
        assert_true(first < 0.7 * log(CLASSES));
        for (int w = 1; w < 4; w++) assert_true(fabs(losses[w] - losses[0]) < (dtype ? 1e-8 : 2e-4));
    }
    dpcr_context_destroy(context);
}

static int stop_at(void *user, const dpcr_train_state *state) { return state->step == *(const int64_t *)user; }

static void check_resume(dpcr_recurrent_kind kind, dpcr_readout readout) {
    const bool each = readout == DPCR_READOUT_EACH;
    const dpcr_sequence_data data = each ? text() : labelled(false);
    const folder f = make_folder();
    dpcr_context *context = make_context(1), *other = make_context(2);
    dpcr_sequence_train_options options = run_options(2);
    dpcr_sequence_options m = model_options(kind, readout, DPCR_F32);
    options.dropout = each ? 0.2 : 0;
    options.train.solve.method = DPCR_METHOD_AUTO;
    dpcr_sequence *whole = make_sequence(context, m);
    dpcr_train_state wanted, last;
    train_it(whole, &data, &options, &wanted);
    options.train.save = f.file;
    options.train.progress = stop_at;
    for (int64_t at = 1; at < wanted.steps; at += 3) {
        dpcr_sequence *model = make_sequence(context, m);
        options.train.resume = NULL;
        options.train.progress_user = &at;
        assert_int_equal(dpcr_sequence_train(context, model, &data, &options, NULL, NULL), DPCR_ERROR_CANCELLED);
        dpcr_sequence_destroy(model);
        dpcr_sequence_options elsewhere = m;
        elsewhere.network.seed++;
        model = make_sequence(other, elsewhere);
        int64_t never = -1;
        options.train.progress_user = &never;
        options.train.resume = f.file;
        train_it(model, &data, &options, &last);
        assert_same_parameters(model, whole);
        assert_memory_equal(&last.loss, &wanted.loss, sizeof last.loss);
        dpcr_sequence_destroy(model);
    }
    // What disagrees is refused and changes nothing.
    dpcr_sequence *model = make_sequence(context, m), *same = make_sequence(context, m);
    const content kept = read_file(f.file);
    dpcr_error error = {0};
    options.train.clip = 2;
    assert_int_equal(dpcr_sequence_train(context, model, &data, &options, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "clip is 2"));
    options.train.clip = 1;
    write_file(f.file, kept.bytes, kept.size / 2);
    assert_int_equal(dpcr_sequence_train(context, model, &data, &options, NULL, &error), DPCR_ERROR_FORMAT);
    assert_same_parameters(model, same);
    free(kept.bytes);
    dpcr_sequence_destroy(model);
    dpcr_sequence_destroy(same);
    dpcr_sequence_destroy(whole);
    dpcr_context_destroy(context);
    dpcr_context_destroy(other);
    remove_folder(&f);
}

static void resumes(void **state) {
    (void)state;
    check_resume(DPCR_LSTM, DPCR_READOUT_EACH);
    check_resume(DPCR_PARALSTM, DPCR_READOUT_EACH);
    check_resume(DPCR_GRU, DPCR_READOUT_MEAN);
}

// ---- files that are replaced meanwhile ----

// All of one or all of the other: the network, its ends and its strings.
static void loads_one_file(void **state) {
    (void)state;
    static const char *const names[2] = {"first", "second"};
    const folder f = make_folder();
    content files[2];
    dpcr_context *context = make_context(1);
    dpcr_sequence *models[2];
    int64_t seen[2] = {0};
    dpcr_sequence_options m = model_options(DPCR_LSTM, DPCR_READOUT_EACH, DPCR_F32);
    for (int i = 0; i < 2; i++, m.network.seed++) {
        models[i] = make_sequence(context, m);
        assert_int_equal(dpcr_sequence_set_metadata(models[i], "name", names[i], NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_save(models[i], f.file, NULL), DPCR_OK);
        files[i] = read_file(f.file);
    }
    swap s;
    dpcr_context *swapping = swap_context(&s, &f, files);
    for (int64_t calls = 0; !s.unused; calls++) {
        dpcr_sequence *read = NULL;
        dpcr_error error = {0};
        swap_after(&s, calls);
        if (dpcr_sequence_load(swapping, f.file, &read, &error) != DPCR_OK) fail_msg("%s", error.text);
        swap_ends(&s, NULL);
        const int which = strcmp(dpcr_sequence_metadata(read, "name"), names[0]) != 0;
        assert_same_parameters(read, models[which]);
        seen[which]++;
        dpcr_sequence_destroy(read);
    }
    assert_true(seen[0] > 1);
    for (int i = 0; i < 2; i++) dpcr_sequence_destroy(models[i]), free(files[i].bytes);
    dpcr_context_destroy(swapping);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

// Two checkpoints of one run: from either it ends with the same bits, from a mixture it does not.
static void goes_on_from_one_file(void **state) {
    (void)state;
    const dpcr_sequence_data data = text();
    const folder f = make_folder();
    content files[2];
    dpcr_context *context = make_context(1);
    const dpcr_sequence_options m = model_options(DPCR_LSTM, DPCR_READOUT_EACH, DPCR_F32);
    dpcr_sequence_train_options options = run_options(1);
    options.train.solve.method = DPCR_METHOD_SEQUENTIAL, options.train.solve.backward = DPCR_SCHEME_SEQUENTIAL;
    dpcr_sequence *whole = make_sequence(context, m);
    train_it(whole, &data, &options, NULL);
    options.train.save = f.file;
    options.train.progress = stop_at;
    for (int64_t step = 1; step <= 2; step++) {
        dpcr_sequence *model = make_sequence(context, m);
        options.train.progress_user = &step;
        assert_int_equal(dpcr_sequence_train(context, model, &data, &options, NULL, NULL), DPCR_ERROR_CANCELLED);
        files[step - 1] = read_file(f.file);
        dpcr_sequence_destroy(model);
    }
    swap s;
    dpcr_context *swapping = swap_context(&s, &f, files);
    options.train.save = NULL, options.train.resume = f.file;
    options.train.progress = swap_ends, options.train.progress_user = &s;
    for (int64_t calls = 0; !s.unused; calls++) {
        dpcr_sequence *model = make_sequence(swapping, m);
        swap_after(&s, calls);
        train_it(model, &data, &options, NULL);
        assert_same_parameters(model, whole);
        dpcr_sequence_destroy(model);
    }
    for (int i = 0; i < 2; i++) free(files[i].bytes);
    dpcr_sequence_destroy(whole);
    dpcr_context_destroy(swapping);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

// A text's symbols say not what they stand for: the caller's hash of that counts too.
static void another_text_is_refused(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = make_context(1);
    dpcr_sequence *model = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_EACH, DPCR_F32));
    dpcr_sequence_data data = text();
    dpcr_sequence_train_options options = run_options(1);
    dpcr_error error = {0};
    data.hash = 17;
    options.train.save = f.file;
    train_it(model, &data, &options, NULL);
    options.train.save = NULL, options.train.resume = f.file;
    train_it(model, &data, &options, NULL);
    for (int i = 0; i < 2; i++) {
        data.hash = i ? 18 : 0;
        assert_int_equal(dpcr_sequence_train(context, model, &data, &options, NULL, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "data.hash is"));
    }
    dpcr_sequence_destroy(model);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

// ---- likelihood ----

static void likelihood(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    const dpcr_sequence_data data = text();
    for (int dtype = 0; dtype < 2; dtype++) {
        dpcr_sequence *model =
            make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_EACH, dtype ? DPCR_F64 : DPCR_F32));
        dpcr_sequence_train_options options = run_options(dtype ? 1 : 20);
        options.train.optimiser.rate = 0.03;
        train_it(model, &data, &options, NULL);
        dpcr_sequence_likelihood_report loop = {.size = sizeof loop}, own = loop;
        dpcr_solve_options solve = {.size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL};
        assert_int_equal(dpcr_sequence_likelihood(context, model, letters, LETTERS, &solve, &loop, NULL), DPCR_OK);
        if (!dtype) assert_true(loop.loss < 1 && loop.accuracy > 0.5);
        static const dpcr_method methods[] = {DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON, DPCR_METHOD_AUTO};
        for (int i = 0; i < 3; i++) {
            solve.method = methods[i];
            assert_int_equal(dpcr_sequence_likelihood(context, model, letters, LETTERS, &solve, &own, NULL), DPCR_OK);
            assert_true(fabs(own.loss - loop.loss) < (dtype ? 1e-9 : 1e-6));
        }
        // Piece by piece with the state carried on is a batch of one stream: its sums are the whole's.
        dpcri_sequence_pass pass;
        const dpcri_sequence_shape shape = {.length = 57, .batch = 1};
        double sum = 0;
        assert_int_equal(dpcri_sequence_pass_create(&pass, model, &shape, NULL), DPCR_OK);
        solve.method = DPCR_METHOD_SEQUENTIAL;
        for (int64_t first = 0; first + 57 < LETTERS; first += 57) {
            for (int64_t t = 0; t < 57; t++) pass.symbols[t] = letters[first + t];
            memcpy(pass.labels, letters + first + 1, 57);
            if (first == 0) assert_int_equal(dpcri_sequence_pass_plan(&pass, &solve, NULL), DPCR_OK);
            sum += 57 * loss_of(&pass);
            memcpy(pass.h0, pass.ht, pass.h_bytes);
        }
        assert_int_equal(dpcr_sequence_likelihood(context, model, letters, 57 * 7 + 1, &solve, &own, NULL), DPCR_OK);
        assert_true(fabs(own.loss - sum / (57 * 7)) < 1e-12);
        dpcri_sequence_pass_destroy(&pass);
        dpcr_sequence_destroy(model);
    }
    dpcr_context_destroy(context);
}

// ---- files and refusals ----

// What no file can keep is refused when it is set, and what was set before stays.
static void check_strings(dpcr_sequence *model) {
    static const char *const good[] = {"", "caf\xc3\xa9", "\xef\xbf\xbf \xed\x9f\xbf",
                                       "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\x7f\n"};
    static const char *const bad[] = {"caf\xe9",
                                      "\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xe2\x82",
                                      "\xc3(",
                                      "\xff"};
    dpcr_error error = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(dpcr_sequence_set_metadata(model, "good", good[i], NULL), DPCR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dpcr_sequence_set_metadata(model, "good", bad[i], &error), DPCR_ERROR_ARGUMENT);
        assert_string_equal(error.text, "sequence_set_metadata: the value of 'good' is not UTF-8");
        assert_int_equal(dpcr_sequence_set_metadata(model, bad[i], "x", &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "the key '"));
    }
    // A long key of the library's own is cut between two letters, and one that is no text is told as that.
    assert_int_equal(dpcr_sequence_set_metadata(model, "onnx.\xff", "x", &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "sequence_set_metadata: the key 'onnx.\xff' is not UTF-8");
    for (size_t n = 8; n < 10; n++) {
        char key[160];
        for (size_t at = n; at + 2 < sizeof key; at += 2) memcpy(key + at, "\xc3\xb6", 3);
        memcpy(key, "deeppcr.x", n);
        assert_int_equal(dpcr_sequence_set_metadata(model, key, "x", &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "\xc3\xb6...' is the library's"));
    }
    assert_string_equal(dpcr_sequence_metadata(model, "good"), "\x7f\n");
}

static void files(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = make_context(1);
    for (int readout = DPCR_READOUT_LAST; readout <= DPCR_READOUT_EACH; readout++) {
        dpcr_sequence *model = make_sequence(context, model_options(DPCR_LSTM, (dpcr_readout)readout, DPCR_F64)),
                      *read = NULL;
        dpcr_error error = {0};
        assert_int_equal(dpcr_sequence_set_metadata(model, "text.symbols", "0a", NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_set_metadata(model, "text.symbols", "0a20", NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_set_metadata(model, "deeppcr.x", "1", NULL), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_sequence_set_metadata(model, "onnx.direction", "reverse", NULL), DPCR_ERROR_ARGUMENT);
        check_strings(model);
        assert_int_equal(dpcr_sequence_save(model, f.file, NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_load(context, f.file, &read, &error), DPCR_OK);
        assert_same_parameters(read, model);
        assert_string_equal(dpcr_sequence_metadata(read, "text.symbols"), "0a20");
        assert_int_equal(dpcr_sequence_get_options(read)->readout, readout);
        assert_int_equal(dpcr_sequence_parameter_count(read), dpcr_sequence_parameter_count(model));
        dpcr_sequence_destroy(read);
        ((double *)(void *)model->parameters)[0] = NAN;
        assert_int_equal(dpcr_sequence_save(model, f.file, NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
        assert_non_null(strstr(error.text, "not finite"));
        assert_null(read);
        assert_int_equal(dpcr_recurrent_save(model->network, f.file, NULL), DPCR_OK);
        assert_int_equal(dpcr_sequence_load(context, f.file, &read, &error), DPCR_ERROR_FORMAT);
        dpcr_sequence_destroy(model);
    }
    dpcr_context_destroy(context);
    remove_folder(&f);
}

static void check_refused(dpcr_sequence *model, const dpcr_sequence_data *data,
                          const dpcr_sequence_train_options *options, dpcr_status status, const char *words) {
    dpcr_error error = {0};
    assert_int_equal(dpcr_sequence_train(model->context, model, data, options, NULL, &error), status);
    if (!strstr(error.text, words)) fail_msg("'%s' lacks '%s'", error.text, words);
}

static int take_no_note(void *user, const dpcr_train_state *state) {
    (void)user, (void)state;
    return -1;
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_sequence *each = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_EACH, DPCR_F32));
    dpcr_sequence *last = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F32));
    dpcr_sequence_data data = text();
    dpcr_sequence_train_options options = run_options(1);
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "readout each");
    data.count = 40;
    check_refused(each, &data, &options, DPCR_ERROR_ARGUMENT, "too short: 40 symbols");
    letters[5] = SYMBOLS;
    check_refused(each, &data, &options, DPCR_ERROR_ARGUMENT, "symbol 5 of the text is 7");
    data = text();
    options.train.optimiser.rate = 1e30;
    options.train.optimiser.warm_up = 0;
    options.train.optimiser.kind = DPCR_SGD;
    options.train.clip = 0;
    check_refused(each, &data, &options, DPCR_ERROR_UNSUPPORTED, "the loss is");
    dpcr_sequence *other = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F32));
    const dpcr_sequence_data all = labelled(true);
    options.train.optimiser.rate = 1e300;  // one step, whose loss is that of the weights before it
    options.train.batch = SEQUENCES;
    check_refused(other, &all, &options, DPCR_ERROR_UNSUPPORTED, "after step 1 parameter 0 is not finite");
    dpcr_sequence_destroy(other);
    other = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F32));
    options.train.progress = take_no_note;
    check_refused(other, &all, &options, DPCR_ERROR_UNSUPPORTED, "after step 1 parameter 0 is not finite");
    dpcr_sequence_destroy(other);
    options = run_options(1);
    options.train.batch = SEQUENCES + 1;
    data = labelled(true);
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "less than one batch");
    check_refused(each, &data, &options, DPCR_ERROR_ARGUMENT, "readout last or mean");
    options = run_options(1);
    options.segment = 4;
    options.dropout = 0.5;
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "no dropout");
    options.dropout = 0;
    options.segment = -1;
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "segment is -1");
    options.segment = 4;
    const dpcr_sequence_data letter = text();
    check_refused(each, &letter, &options, DPCR_ERROR_ARGUMENT, "labelled sequences");
    const folder f = make_folder();  // another segment is another run, none too
    options = run_options(1);
    options.segment = 4;
    options.train.save = f.file;
    assert_int_equal(dpcr_sequence_train(context, last, &data, &options, NULL, NULL), DPCR_OK);
    options.train.resume = f.file;
    options.segment = 0;
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "segment is 0, wanted 4");
    options.train.resume = NULL;
    assert_int_equal(dpcr_sequence_train(context, last, &data, &options, NULL, NULL), DPCR_OK);
    options.train.resume = f.file;
    options.segment = 4;
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "segment is 4, wanted 0");
    static small_data images;  // a classifier's checkpoint is told as such, and not by how many images it was of
    const dpcr_model_options classifier = resnet_options(2, 8, DPCR_F32);
    dpcr_model *model = make_model(context, &classifier);
    dpcr_train_options once = train_options(2, 4);
    once.save = f.file;
    assert_int_equal(dpcr_train(context, model, make_data(&images, 40, 1), &once, NULL, NULL), DPCR_OK);
    check_refused(last, &data, &options, DPCR_ERROR_FORMAT, "'rnn.weight_ih_l0' is absent");
    dpcr_model_destroy(model);
    remove_folder(&f);
    options = run_options(1);
    data.features = 1;
    check_refused(last, &data, &options, DPCR_ERROR_ARGUMENT, "1 numbers a step, wanted 2");
    data.features = 2;
    data.count = INT64_MAX / 8 + 2;  // eight bytes each: more than can be numbered
    options.train.batch = 1;
    check_refused(last, &data, &options, DPCR_ERROR_MEMORY, "no memory for the order");
    dpcr_sequence_options m = model_options(DPCR_GRU, DPCR_READOUT_EACH, DPCR_F32);
    dpcr_sequence *none = NULL;
    m.network.reverse = 1;  // sees what is to be foretold
    dpcr_sequence *seer = make_sequence(context, m);
    data = text();
    options = run_options(1);
    check_refused(seer, &data, &options, DPCR_ERROR_ARGUMENT, "runs forward alone");
    dpcr_sequence_destroy(seer);
    m.network.reverse = 0;
    m.symbols = 257;
    assert_int_equal(dpcr_sequence_create(context, &m, &none, NULL), DPCR_ERROR_ARGUMENT);
    const dpcr_solve_options given = {.size = sizeof given, .guess = DPCR_GUESS_GIVEN};  // there are no states
    dpcr_sequence_likelihood_report report = {.size = sizeof report};
    dpcr_error error = {0};
    const dpcr_sequence_data few = labelled(true);
    assert_int_equal(dpcr_sequence_evaluate(context, last, &few, 4, &given, NULL, NULL, NULL, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "sequence_evaluate: guess is given"));
    letters[5] = 0;
    assert_int_equal(dpcr_sequence_likelihood(context, each, letters, LETTERS, &given, &report, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "sequence_likelihood: guess is given"));
    dpcr_readout readout;
    assert_int_equal(dpcr_readout_find("first", &readout, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_sequence_destroy(each);
    dpcr_sequence_destroy(last);
    dpcr_context_destroy(context);
}

// Every allocation of a short training is refused in turn: told, and nothing is kept.
static void refused_memory(void **state) {
    (void)state;
    const dpcr_sequence_data data = text();
    dpcr_sequence_options m = model_options(DPCR_LSTM, DPCR_READOUT_EACH, DPCR_F32);
    dpcr_sequence_train_options options = run_options(1);
    bool done = false;
    for (int64_t granted = 0; !done; granted++) {
        budget b = {.left = granted};
        const dpcr_context_options given = budget_options(&b);
        dpcr_context *context = NULL;
        dpcr_sequence *model = NULL;
        dpcr_status status = dpcr_context_create(&given, &context, NULL);
        if (status == DPCR_OK) status = dpcr_sequence_create(context, &m, &model, NULL);
        if (status == DPCR_OK) status = dpcr_sequence_train(context, model, &data, &options, NULL, NULL);
        done = status == DPCR_OK;
        if (!done) assert_int_equal(status, DPCR_ERROR_MEMORY);
        dpcr_sequence_destroy(model);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
}

static void texts(void **state) {
    (void)state;
    const folder f = make_folder();
    dpcr_context *context = make_context(1);
    static char long_text[200000];
    for (size_t i = 0; i < sizeof long_text; i++) long_text[i] = (char)(i * i / 7 % 251);
    uint8_t *bytes = NULL;
    int64_t count = 0;
    assert_int_equal(dpcr_text_write(f.file, "old", 3, NULL), DPCR_OK);
    assert_int_equal(dpcr_text_write(f.file, long_text, sizeof long_text, NULL), DPCR_OK);
    assert_int_equal(dpcr_text_write(f.file, NULL, 3, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_text_write(f.file, "old", -1, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_text_write("/nowhere/x", "old", 3, NULL), DPCR_ERROR_IO);
    assert_int_equal(dpcr_text_read(context, f.file, &bytes, &count, NULL), DPCR_OK);
    assert_int_equal(count, sizeof long_text);
    assert_memory_equal(bytes, long_text, sizeof long_text);
    dpcr_text_free(context, bytes);
    gzFile zipped = gzopen(f.file, "wb");
    assert_int_equal(gzwrite(zipped, long_text, sizeof long_text), sizeof long_text);
    gzclose(zipped);
    assert_int_equal(dpcr_text_read(context, f.file, &bytes, &count, NULL), DPCR_OK);
    assert_int_equal(count, sizeof long_text);
    assert_memory_equal(bytes, long_text, sizeof long_text);
    dpcr_text_free(context, bytes);
    const content whole = read_file(f.file);
    const size_t cuts[] = {1, 5, 8, 9, whole.size / 2, whole.size - 12};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        write_file(f.file, whole.bytes, whole.size - cuts[i]);
        assert_int_equal(dpcr_text_read(context, f.file, &bytes, &count, NULL), DPCR_ERROR_FORMAT);
        assert_null(bytes);
    }
    free(whole.bytes);
    assert_int_equal(dpcr_text_write(f.file, NULL, 0, NULL), DPCR_OK);
    assert_int_equal(dpcr_text_read(context, f.file, &bytes, &count, NULL), DPCR_OK);
    assert_int_equal(count, 0);
    dpcr_text_free(context, bytes);
    assert_int_equal(dpcr_text_read(context, "/nowhere/x", &bytes, &count, NULL), DPCR_ERROR_IO);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(methods_agree),
        cmocka_unit_test(resumes),
        cmocka_unit_test(likelihood),
        cmocka_unit_test(files),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refused_memory),
        cmocka_unit_test(texts),
        cmocka_unit_test(the_worst_segment_is_told),
        cmocka_unit_test(loads_one_file),
        cmocka_unit_test(goes_on_from_one_file),
        cmocka_unit_test(another_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
