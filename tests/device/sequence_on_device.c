// SPDX-License-Identifier: MIT
// Training of sequence models whole on a device, evaluation and likelihood there, against the host's: the loss of every
// step, the parameters that are left, checkpoints and what goes on from them.
#include "training.h"

// Its functions have a context of their own.
#include "on_device.h"
#include "train/sequence.h"
#include "watched.h"

enum { CLASSES = 3, FEATURES = 2, LONGEST = 12, SEQUENCES = 21, SYMBOLS = 7, LETTERS = 400, MOST_STEPS = 64 };

typedef struct run {
    dpcr_sequence *model;
    dpcr_train_state last;
    double losses[MOST_STEPS];
    int64_t steps, stop;  // stop: after so many of them; 0: never
} run;

// ---- small data ----

typedef struct kind_of_data {
    bool same, wrong;  // all of one length; a label that there is not
} kind_of_data;

static void read_sequence(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    const kind_of_data *kind = user;
    *label = (uint8_t)dpcri_random_below(3, DPCRI_STREAM_DATA, (uint64_t)index, CLASSES);
    *length =
        kind->same ? LONGEST : 1 + (int64_t)dpcri_random_below(3, DPCRI_STREAM_DATA | 1, (uint64_t)index, LONGEST);
    for (int64_t i = 0; i < *length * FEATURES; i++) {
        const double noise = dpcri_random_normal(3, DPCRI_STREAM_DATA | 2, (uint64_t)(index * 100 + i));
        x[i] = (float)(noise + (i % FEATURES == *label ? 1.5 : 0));
    }
    if (kind->wrong && index == SEQUENCES - 2) *label = CLASSES;
}

static dpcr_sequence_data labelled(kind_of_data *kind) {
    return (dpcr_sequence_data){.size = sizeof(dpcr_sequence_data),
                                .count = SEQUENCES,
                                .longest = LONGEST,
                                .same_length = kind->same,
                                .features = FEATURES,
                                .hash = 5,
                                .read = read_sequence,
                                .user = kind};
}

static uint8_t letters[LETTERS];

static dpcr_sequence_data text(void) {
    for (int64_t i = 0; i < LETTERS; i++)
        letters[i] = (uint8_t)((uint64_t)i + dpcri_random_below(1, DPCRI_STREAM_DATA, (uint64_t)i, 9) / 8) % SYMBOLS;
    return (dpcr_sequence_data){.size = sizeof(dpcr_sequence_data), .count = LETTERS, .text = letters};
}

static dpcr_sequence_options options_of_model(dpcr_recurrent_kind kind, dpcr_readout readout, dpcr_dtype dtype) {
    const bool each = readout == DPCR_READOUT_EACH;
    return (dpcr_sequence_options){.size = sizeof(dpcr_sequence_options),
                                   .network = {.kind = kind,
                                               .dtype = dtype,
                                               .inputs = each ? 3 : FEATURES,
                                               .hidden = 5,
                                               .layers = each ? 2 : 1,
                                               .seed = 9},
                                   .symbols = each ? SYMBOLS : 0,
                                   .outputs = each ? SYMBOLS : CLASSES,
                                   .readout = readout};
}

// SGD: Adam's first steps have the sign of gradients, whose rounding may differ.
static dpcr_sequence_train_options options_of_run(int64_t epochs) {
    dpcr_sequence_train_options o = {.size = sizeof o, .train = train_options(epochs, 4), .length = 10};
    o.train.clip = 0.5;
    o.train.optimiser.kind = DPCR_SGD;
    o.train.optimiser.momentum = 0.9;
    return o;
}

// ---- runs ----

static int note(void *user, const struct dpcr_train_state *state) {
    run *r = user;
    assert_true(state->step >= 1 && state->step <= MOST_STEPS);
    r->losses[state->step - 1] = state->loss;
    return ++r->steps == r->stop;
}

static int take_no_note(void *user, const struct dpcr_train_state *state) { return -note(user, state); }

static dpcr_sequence_train_options options_on(run *r, const dpcr_sequence_train_options *given, dpcr_device device) {
    dpcr_sequence_train_options o = *given;
    o.train.progress = note;
    o.train.progress_user = r;
    o.train.solve.backward = device.type == DPCR_HOST ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_AUTO;
    if (device.type == DPCR_HOST)
        o.train.solve.method = DPCR_METHOD_SEQUENTIAL;
    else
        o.train.solve.device = device;
    return o;
}

static void train_on(run *r, const dpcr_sequence_options *m, const dpcr_sequence_data *data,
                     const dpcr_sequence_train_options *given, dpcr_device device, dpcr_status wanted) {
    dpcr_error error = {0};
    const dpcr_sequence_train_options o = options_on(r, given, device);
    if (!r->model) r->model = make_sequence(context, *m);
    const dpcr_status status = dpcr_sequence_train(context, r->model, data, &o, &r->last, &error);
    if (status != wanted) fail_msg("status %d: %s", status, error.text);
}

static void assert_vector(const dpcr_sequence *m, const void *p, const void *q, int64_t count, double allowed) {
    for (int64_t i = 0; i < count; i++) {
        const bool wide = dpcri_sequence_dtype(m) == DPCR_F64;
        const double x = wide ? ((const double *)p)[i] : (double)((const float *)p)[i];
        const double y = wide ? ((const double *)q)[i] : (double)((const float *)q)[i];
        if (!(fabs(x - y) <= allowed)) fail_msg("parameter %d of %d: %.9g, wanted %.9g", (int)i, (int)count, y, x);
    }
}

static void assert_parameters(dpcr_sequence *a, dpcr_sequence *b, double allowed) {
    int64_t count = 0;
    const void *p = dpcr_recurrent_vector(a->network, &count), *q = dpcr_recurrent_vector(b->network, NULL);
    assert_vector(a, p, q, count, allowed);
    assert_vector(a, a->parameters, b->parameters, a->count, allowed);
}

static void assert_alike(const run *a, const run *b, double allowed) {
    assert_int_equal(a->steps, b->steps);
    assert_true(a->steps > 0);
    for (int64_t i = 0; i < a->steps; i++)
        if (!(fabs(a->losses[i] - b->losses[i]) <= allowed * fabs(a->losses[i])))
            fail_msg("step %d: loss %.12g, wanted %.12g", (int)i + 1, b->losses[i], a->losses[i]);
    assert_parameters(a->model, b->model, 20 * allowed);
}

static void destroy(run *r) {
    dpcr_sequence_destroy(r->model);
    *r = (run){0};
}

// Mean loss and accuracy by whatever such data are asked for.
static void evaluate(dpcr_sequence *model, const dpcr_sequence_data *data, const dpcr_solve_options *solve,
                     double *loss, double *accuracy) {
    dpcr_error error = {0};
    dpcr_sequence_likelihood_report report = {.size = sizeof report};
    if (!data->text) {
        ok(dpcr_sequence_evaluate(context, model, data, 8, solve, loss, accuracy, NULL, &error), &error);
        return;
    }
    ok(dpcr_sequence_likelihood(context, model, data->text, data->count, solve, &report, &error), &error);
    *loss = report.loss, *accuracy = report.accuracy;
    assert_true(report.sentence[0] && report.network_seconds >= 0);
}

static void train_both(dpcr_sequence_options m, const dpcr_sequence_data *data, dpcr_method method) {
    dpcr_sequence_train_options o = options_of_run(data->text ? 1 : 3);
    run host = {0}, device = {0};
    if (left_out()) return;
    o.train.solve.method = method;
    if (method == DPCR_METHOD_OVERLAP) o.train.solve.chunk = 4;
    train_on(&host, &m, data, &o, here, DPCR_OK);
    train_on(&device, &m, data, &o, there, DPCR_OK);
    const double allowed = m.network.dtype == DPCR_F64 ? 1e-11 : 1e-4;
    assert_alike(&host, &device, allowed);
    assert_true(device.last.epoch_ended && device.last.step == host.last.step);
    assert_true(device.last.accuracy == host.last.accuracy && device.last.images_per_second > 0);
    const dpcr_solve_options solve = {
        .size = sizeof solve, .method = method, .chunk = o.train.solve.chunk, .device = there};
    double loss = 0, accuracy = 0, loss_there = 0, accuracy_there = 0;
    evaluate(device.model, data, NULL, &loss, &accuracy);
    evaluate(device.model, data, &solve, &loss_there, &accuracy_there);
    if (!(fabs(loss - loss_there) <= allowed * loss) || accuracy != accuracy_there)
        fail_msg("evaluated: %.9g and %g, wanted %.9g and %g", loss_there, accuracy_there, loss, accuracy);
    destroy(&host), destroy(&device);
}

void sequences_as_on_the_host(void **state) {
    (void)state;
    kind_of_data same = {.same = true}, ragged = {0};
    const dpcr_sequence_data whole = labelled(&same), short_ones = labelled(&ragged), letters_of = text();
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_AUTO};
    int n = 0;
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++)
        for (int readout = DPCR_READOUT_LAST; readout <= DPCR_READOUT_EACH; readout++, n++) {
            dpcr_sequence_options m = options_of_model(kind, readout, n % 2 ? DPCR_F64 : DPCR_F32);
            const bool each = readout == DPCR_READOUT_EACH;
            if (!each) m.network.bidirectional = n % 3 == 1, m.network.layers = 1 + n % 2;
            train_both(m, each ? &letters_of : n % 4 < 2 ? &short_ones : &whole, methods[n % 3]);
        }
    train_both(options_of_model(DPCR_PARAGRU, DPCR_READOUT_MEAN, DPCR_F64), &short_ones, DPCR_METHOD_NEWTON);
    train_both(options_of_model(DPCR_MINGRU, DPCR_READOUT_EACH, DPCR_F32), &letters_of, DPCR_METHOD_NEWTON);
    dpcr_sequence_options narrow = options_of_model(DPCR_RNN_TANH, DPCR_READOUT_LAST, DPCR_F64);
    narrow.network.hidden = 2;
    train_both(narrow, &whole, DPCR_METHOD_NEWTON);
    for (int readout = DPCR_READOUT_LAST; readout <= DPCR_READOUT_EACH; readout++) {
        dpcr_sequence_options m = options_of_model(DPCR_LSTM, readout, readout % 2 ? DPCR_F64 : DPCR_F32);
        const bool each = readout == DPCR_READOUT_EACH;
        m.network.projection = 1 + readout;
        m.network.bidirectional = readout == DPCR_READOUT_LAST;
        train_both(m, each ? &letters_of : &short_ones, methods[readout % 2]);
    }
}

// Dropout by the host's masks, of sequences and of a text.
static void dropped(dpcr_recurrent_kind kind, dpcr_readout readout, const dpcr_sequence_data *data, double dropout) {
    dpcr_sequence_options m = options_of_model(kind, readout, DPCR_F64);
    dpcr_sequence_train_options o = options_of_run(data->text ? 1 : 3);
    run host = {0}, device = {0}, without = {0};
    if (left_out()) return;
    m.network.layers = 3;
    train_on(&without, &m, data, &o, there, DPCR_OK);
    o.dropout = dropout;
    train_on(&host, &m, data, &o, here, DPCR_OK);
    train_on(&device, &m, data, &o, there, DPCR_OK);
    assert_alike(&host, &device, 1e-11);
    assert_true(without.losses[0] != device.losses[0]);
    destroy(&host), destroy(&device), destroy(&without);
}

void dropout_as_on_the_host(void **state) {
    (void)state;
    kind_of_data same = {.same = true}, ragged = {0};
    const dpcr_sequence_data whole = labelled(&same), short_ones = labelled(&ragged), letters_of = text();
    dropped(DPCR_GRU, DPCR_READOUT_LAST, &short_ones, 0.5);
    dropped(DPCR_LSTM, DPCR_READOUT_EACH, &letters_of, 0.3);
    dropped(DPCR_RNN_TANH, DPCR_READOUT_MEAN, &whole, 0.9);
    dropped(DPCR_PARALSTM, DPCR_READOUT_EACH, &letters_of, 0.2);
}

// States kept every few steps, a shorter first segment or none, one step or more than there are.
static void in_segments(dpcr_recurrent_kind kind, kind_of_data data_of, int64_t segment, dpcr_method method) {
    const dpcr_sequence_data data = labelled(&data_of);
    dpcr_sequence_options m = options_of_model(kind, DPCR_READOUT_LAST, DPCR_F64);
    dpcr_sequence_train_options o = options_of_run(3);
    run host = {0}, device = {0};
    if (left_out()) return;
    m.network.layers = 1 + segment % 2;
    m.network.clip = kind == DPCR_GRU ? 0.5 : 0;
    if (kind == DPCR_LSTM && segment % 2) m.network.projection = 2;
    o.train.solve.method = method;
    train_on(&host, &m, &data, &o, here, DPCR_OK);
    o.segment = segment;
    train_on(&device, &m, &data, &o, there, DPCR_OK);
    assert_alike(&host, &device, method == DPCR_METHOD_NEWTON ? 1e-8 : 1e-11);
    assert_true(device.last.method == method);
    destroy(&host), destroy(&device);
}

void segments_as_on_the_host(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 4, 5, 11, 12, 40};  // of sequences of 12 steps
    int n = 0;
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++)
        for (int i = 0; i < 6; i++, n++)
            if (n % 2 == 0 || kind == DPCR_LSTM)
                in_segments(kind, (kind_of_data){.same = n % 3 == 0}, lengths[i],
                            kind >= DPCR_PARAGRU && i == 2 ? DPCR_METHOD_NEWTON
                            : n % 4 == 2                   ? DPCR_METHOD_OVERLAP
                                                           : DPCR_METHOD_SEQUENTIAL);
}

// More rows than one block of losses has, and than one tile of the head; recompute, which a device does anyway.
void wide_batches_of_sequences(void **state) {
    (void)state;
    kind_of_data ragged = {0};
    dpcr_sequence_data data = labelled(&ragged);
    dpcr_sequence_options m = options_of_model(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F64);
    dpcr_sequence_train_options o = options_of_run(2);
    run host = {0}, device = {0}, again = {0};
    if (left_out()) return;
    data.count = 150;
    o.train.batch = 70;
    m.network.hidden = 20;
    train_on(&host, &m, &data, &o, here, DPCR_OK);
    train_on(&device, &m, &data, &o, there, DPCR_OK);
    assert_alike(&host, &device, 1e-11);
    o.train.recompute = 1;
    train_on(&again, &m, &data, &o, there, DPCR_OK);
    assert_parameters(device.model, again.model, 0);
    destroy(&host), destroy(&device), destroy(&again);
}

// Stopped after any step and gone on with: the same bits; and the host goes on from there too.
static void go_on_with(dpcr_recurrent_kind kind, dpcr_readout readout, int64_t stop, double dropout, int64_t segment) {
    kind_of_data ragged = {0};
    const bool each = readout == DPCR_READOUT_EACH;
    const dpcr_sequence_data data = each ? text() : labelled(&ragged);
    dpcr_sequence_options m = options_of_model(kind, readout, DPCR_F32);
    static const dpcr_optimiser_kind kinds[] = {DPCR_SGD, DPCR_ADAM, DPCR_ADAMW};
    const folder f = make_folder();
    dpcr_sequence_train_options o = options_of_run(each ? 2 : 3);
    run whole = {0}, first = {.stop = stop}, unnoted = {.stop = stop}, second = {0}, host = {0};
    o.dropout = dropout, o.segment = segment;
    if (dropout > 0) m.network.layers = 2;
    o.train.optimiser.kind = kinds[stop % 3];
    o.train.optimiser.momentum = stop % 2 ? 0.9 : 0;
    train_on(&whole, &m, &data, &o, there, DPCR_OK);
    o.train.save = f.file;
    train_on(&first, &m, &data, &o, there, DPCR_ERROR_CANCELLED);
    assert_int_equal(first.last.step, stop);
    dpcr_error error = {0};
    dpcr_sequence_train_options unsaved = options_on(&unnoted, &o, there);
    unsaved.train.save = NULL;
    unsaved.train.progress = take_no_note;
    unnoted.model = make_sequence(context, m);
    assert_int_equal(dpcr_sequence_train(context, unnoted.model, &data, &unsaved, &unnoted.last, &error),
                     DPCR_ERROR_CANCELLED);
    assert_int_equal(unnoted.last.step, stop);
    assert_parameters(first.model, unnoted.model, 0);
    destroy(&unnoted);
    o.train.resume = f.file;
    o.train.save = NULL;
    train_on(&second, &m, &data, &o, there, DPCR_OK);
    assert_int_equal(second.last.step, whole.last.step);
    assert_parameters(whole.model, second.model, 0);
    dpcr_sequence_train_options on_host = options_on(&host, &o, there);
    on_host.train.solve.device = here;
    host.model = make_sequence(context, m);
    ok(dpcr_sequence_train(context, host.model, &data, &on_host, &host.last, &error), &error);
    for (int64_t i = stop; i < whole.last.step; i++)
        assert_true(fabs(host.losses[i] - whole.losses[i]) <= 1e-2 * whole.losses[i]);
    destroy(&whole), destroy(&first), destroy(&second), destroy(&host);
    remove_folder(&f);
}

static void go_on(dpcr_recurrent_kind kind, dpcr_readout readout, int64_t stop) {
    go_on_with(kind, readout, stop, 0, 0);
}

void sequences_go_on(void **state) {
    (void)state;
    go_on_with(DPCR_GRU, DPCR_READOUT_MEAN, 4, 0.5, 0);
    go_on_with(DPCR_LSTM, DPCR_READOUT_EACH, 7, 0.2, 0);
    go_on_with(DPCR_GRU, DPCR_READOUT_LAST, 3, 0, 5);
    go_on(DPCR_GRU, DPCR_READOUT_LAST, 2);
    go_on(DPCR_RNN_TANH, DPCR_READOUT_MEAN, 5);
    go_on(DPCR_LSTM, DPCR_READOUT_LAST, 7);
    for (int64_t stop = 3; stop <= 15; stop += 4) go_on(stop % 8 == 3 ? DPCR_LSTM : DPCR_GRU, DPCR_READOUT_EACH, stop);
    go_on(DPCR_PARALSTM, DPCR_READOUT_EACH, 9);  // the first epoch's end
}

// A processor's checkpoint goes on there, its way back by the loop or open, and by a method that no device has.
void sequences_of_the_processor(void **state) {
    (void)state;
    const dpcr_sequence_data data = text();
    const dpcr_sequence_options m = options_of_model(DPCR_GRU, DPCR_READOUT_EACH, DPCR_F64);
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_AUTO};
    for (int i = 0; i < 2; i++) {
        const folder f = make_folder();
        run whole = {0}, first = {.stop = 5, .model = make_sequence(context, m)}, second = {0};
        dpcr_sequence_train_options o = options_of_run(2);
        dpcr_error error = {0};
        o.train.solve.method = DPCR_METHOD_AUTO;
        train_on(&whole, &m, &data, &o, here, DPCR_OK);
        o.train.save = f.file;
        dpcr_sequence_train_options on_host = options_on(&first, &o, there);
        on_host.train.solve.device = here;
        on_host.train.solve.backward = schemes[i];
        assert_int_equal(dpcr_sequence_train(context, first.model, &data, &on_host, NULL, &error),
                         DPCR_ERROR_CANCELLED);
        o.train.resume = f.file;
        train_on(&second, &m, &data, &o, there, DPCR_OK);
        assert_int_equal(second.steps, whole.steps - 5);
        for (int64_t s = 5; s < whole.steps; s++)
            if (!(fabs(second.losses[s] - whole.losses[s]) <= 1e-6 * whole.losses[s]))
                fail_msg("step %d: loss %.12g, wanted %.12g", (int)s + 1, second.losses[s], whole.losses[s]);
        destroy(&whole), destroy(&first), destroy(&second);
        remove_folder(&f);
    }
}

// ---- what is refused, and fails ----

static void assert_refused(const char *words, dpcr_status wanted, const dpcr_sequence_options *m,
                           const dpcr_sequence_data *data, const dpcr_sequence_train_options *o) {
    dpcr_error error = {0};
    dpcr_sequence *model = make_sequence(context, *m), *untouched = make_sequence(context, *m);
    const dpcr_status got = dpcr_sequence_train(context, model, data, o, NULL, &error);
    if (got != wanted || !strstr(error.text, words)) fail_msg("status %d, \"%s\"", got, error.text);
    assert_parameters(untouched, model, 0);
    dpcr_sequence_destroy(model);
    dpcr_sequence_destroy(untouched);
}

void sequences_that_are_refused(void **state) {
    (void)state;
    kind_of_data ragged = {0}, wrong = {.wrong = true};
    const dpcr_sequence_data data = labelled(&ragged), mislabelled = labelled(&wrong);
    dpcr_sequence_options m = options_of_model(DPCR_GRU, DPCR_READOUT_LAST, DPCR_F32);
    dpcr_sequence_train_options o = options_of_run(1);
    o.train.solve.device = there;
    assert_refused("a backward scheme on a device", DPCR_ERROR_UNSUPPORTED, &m, &data, &o);
    o.train.solve.backward = DPCR_SCHEME_AUTO;
    assert_refused("label of sequence 19 is 3, wanted less than 3", DPCR_ERROR_ARGUMENT, &m, &mislabelled, &o);
    o.train.solve.method = DPCR_METHOD_NEWTON;
    assert_refused("newton is of paragru", DPCR_ERROR_UNSUPPORTED, &m, &data, &o);
    o.train.solve.method = DPCR_METHOD_SEQUENTIAL;
    o.segment = 4, o.dropout = 0.5;
    assert_refused("no dropout and no recompute", DPCR_ERROR_ARGUMENT, &m, &data, &o);
    o.segment = 0, o.dropout = 0;
}

static int leave_open(void *user, const dpcr_train_state *state) {
    if (state->step == 2) setenv("DEEPPCR_FAKE_LOCKED", "2", 1);  // the stand-in's solves, from here on
    return note(user, state);
}

// A step that is refused leaves the model as the run that was stopped before it leaves its own. `must`: on any device.
static void assert_stops(bool must, const char *words, const dpcr_sequence_options *m, const dpcr_sequence_data *data,
                         const dpcr_sequence_train_options *o, int (*progress)(void *, const dpcr_train_state *)) {
    run failed = {.model = make_sequence(context, *m)}, before = {0};
    dpcr_error error = {0};
    dpcr_sequence_train_options given = options_on(&failed, o, there);
    given.train.progress = progress;
    const dpcr_status got = dpcr_sequence_train(context, failed.model, data, &given, &failed.last, &error);
    unsetenv("DEEPPCR_FAKE_LOCKED");
    if (must || got != DPCR_OK) {  // a device fails no solve on request
        if (got != DPCR_ERROR_UNSUPPORTED || !strstr(error.text, words)) fail_msg("status %d, \"%s\"", got, error.text);
        before.stop = failed.steps;
        assert_true(before.stop > 0 && failed.last.step == before.stop);
        train_on(&before, m, data, o, there, DPCR_ERROR_CANCELLED);
        assert_parameters(before.model, failed.model, 0);
    }
    destroy(&failed), destroy(&before);
}

void steps_of_sequences_that_fail(void **state) {
    (void)state;
    kind_of_data same = {.same = true};
    const dpcr_sequence_data data = labelled(&same);
    dpcr_sequence_options m = options_of_model(DPCR_PARAGRU, DPCR_READOUT_LAST, DPCR_F32);
    dpcr_sequence_train_options o = options_of_run(2);
    o.train.solve.method = DPCR_METHOD_NEWTON;
    o.train.solve.no_fallback = 1;
    assert_stops(false, "did not converge", &m, &data, &o, leave_open);
    m = options_of_model(DPCR_RNN_RELU, DPCR_READOUT_LAST, DPCR_F32);
    o = options_of_run(2);
    o.train.clip = 0;
    o.train.optimiser.warm_up = 0;
    o.train.optimiser.rate = 1e30;
    assert_stops(true, "the loss is", &m, &data, &o, note);
}

// Whichever piece of memory the device refuses, the model is what it was; of the stand-in, whose memory is counted by
// pages.
void memory_of_sequences_that_is_refused(void **state) {
    (void)state;
    const dpcr_sequence_data data = text();
    dpcr_sequence_options m = options_of_model(DPCR_LSTM, DPCR_READOUT_EACH, DPCR_F32);
    dpcr_sequence_train_options o = options_of_run(1);
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    dpcr_status status = DPCR_ERROR_MEMORY;
    m.network.hidden = 24;
    dpcr_sequence *untouched = make_sequence(context, m);
    ok(dpcr_device_describe(there, &info, &error), &error);
    for (size_t bytes = info.memory_bytes - info.free_bytes; status == DPCR_ERROR_MEMORY; bytes += 4096) {
        char words[32];
        run r = {.model = make_sequence(context, m)};
        const dpcr_sequence_train_options given = options_on(&r, &o, there);
        snprintf(words, sizeof words, "%zu", bytes);
        setenv("DEEPPCR_FAKE_MEMORY", words, 1);
        status = dpcr_sequence_train(context, r.model, &data, &given, NULL, &error);
        unsetenv("DEEPPCR_FAKE_MEMORY");
        if (status == DPCR_ERROR_MEMORY) assert_parameters(untouched, r.model, 0);
        destroy(&r);
    }
    ok(status, &error);
    dpcr_sequence_destroy(untouched);
}

// Whichever copy the device refuses, those before it land before what they go to is given back; of the stand-in.
void copies_of_sequences_that_fail(void **state) {
    (void)state;
    const dpcr_sequence_data data = text();
    const dpcr_sequence_options m = options_of_model(DPCR_LSTM, DPCR_READOUT_EACH, DPCR_F32);
    dpcr_sequence_train_options o = options_of_run(1);
    dpcr_context *const usual = context;
    dpcr_status status = DPCR_ERROR_DEVICE;
    dpcr_error error = {0};
    o.train.optimiser.kind = DPCR_ADAM;
    for (int refused = 1; status == DPCR_ERROR_DEVICE; refused++) {
        char words[16];
        watched w;
        watched_create(&w);
        context = w.context;
        run r = {.model = make_sequence(context, m)};
        const dpcr_sequence_train_options given = options_on(&r, &o, there);
        snprintf(words, sizeof words, "%d", refused);
        setenv("DEEPPCR_FAKE_COPY", words, 1);
        status = dpcr_sequence_train(context, r.model, &data, &given, NULL, &error);
        unsetenv("DEEPPCR_FAKE_COPY");
        destroy(&r);
        watched_destroy(&w);
        context = usual;
    }
    ok(status, &error);
}
