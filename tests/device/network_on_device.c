// SPDX-License-Identifier: MIT
// Training whole on a device, and evaluation there, against the host's: the loss of every step, the parameters that are
// left, checkpoints and what goes on from them.
#include "training.h"

// Its functions have a context of their own.
#include "on_device.h"

enum { MOST_STEPS = 64 };

typedef struct run {
    dpcr_model *model;
    dpcr_train_state last;
    double losses[MOST_STEPS];
    int64_t steps, stop;  // stop: after so many of them; 0: never
} run;

static int note(void *user, const struct dpcr_train_state *state) {
    run *r = user;
    assert_true(state->step >= 1 && state->step <= MOST_STEPS);
    r->losses[state->step - 1] = state->loss;
    return ++r->steps == r->stop;
}

static int take_no_note(void *user, const struct dpcr_train_state *state) { return -note(user, state); }

static dpcr_train_options options_of(run *r, const dpcr_train_options *given, dpcr_device device) {
    dpcr_train_options o = *given;
    o.progress = note;
    o.progress_user = r;
    if (device.type == DPCR_HOST) {
        o.solve.method = DPCR_METHOD_SEQUENTIAL;
        o.solve.backward = DPCR_SCHEME_SEQUENTIAL;
    } else {
        o.solve.backward = DPCR_SCHEME_AUTO;
        o.solve.device = device;
    }
    return o;
}

static void train_on(run *r, const dpcr_model_options *m, const dpcr_dataset *data, const dpcr_train_options *given,
                     dpcr_device device, dpcr_status wanted) {
    dpcr_error error = {0};
    const dpcr_train_options o = options_of(r, given, device);
    if (!r->model) r->model = make_model(context, m);
    const dpcr_status status = dpcr_train(context, r->model, data, &o, &r->last, &error);
    if (status != wanted) fail_msg("status %d: %s", status, error.text);
}

static void assert_alike(const run *a, const run *b, double allowed) {
    const dpcr_model_options *o = dpcr_model_get_options(a->model);
    int64_t count = 0;
    const void *p = dpcr_model_vector(a->model, &count), *q = dpcr_model_vector(b->model, NULL);
    assert_int_equal(a->steps, b->steps);
    for (int64_t i = 0; i < a->steps; i++)
        if (!(fabs(a->losses[i] - b->losses[i]) <= allowed * fabs(a->losses[i])))
            fail_msg("step %d of a network of %d x %d: loss %.12g, wanted %.12g", (int)i + 1, (int)o->layers,
                     (int)o->width, b->losses[i], a->losses[i]);
    for (int64_t i = 0; i < count; i++) {
        const double x = o->dtype == DPCR_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
        const double y = o->dtype == DPCR_F64 ? ((const double *)q)[i] : (double)((const float *)q)[i];
        if (!(fabs(x - y) <= 20 * allowed)) fail_msg("parameter %d: %.9g, wanted %.9g", (int)i, y, x);
    }
}

// SGD: Adam's first steps have the sign of gradients, whose rounding may differ.
static void train_both(dpcr_model_options m, const dpcr_dataset *data, int64_t batch, dpcr_method method) {
    dpcr_train_options o = train_options(2, batch);
    run host = {0}, device = {0};
    if (left_out()) return;
    o.optimiser.kind = DPCR_SGD;
    o.optimiser.momentum = 0.9;
    o.solve.method = method;
    train_on(&host, &m, data, &o, here, DPCR_OK);
    train_on(&device, &m, data, &o, there, DPCR_OK);
    const double allowed = m.dtype == DPCR_F64 ? 1e-10 : 1e-4;
    assert_alike(&host, &device, allowed);
    assert_true(device.last.epoch_ended && device.last.step == host.last.step);
    const dpcr_solve_options solve = {.size = sizeof solve, .method = method, .device = there};
    double loss = 0, accuracy = 0, loss_there = 0, accuracy_there = 0;
    dpcr_error error = {0};
    ok(dpcr_evaluate(context, device.model, data, batch, NULL, &loss, &accuracy, NULL, &error), &error);
    ok(dpcr_evaluate(context, device.model, data, batch, &solve, &loss_there, &accuracy_there, NULL, &error), &error);
    if (!(fabs(loss - loss_there) <= allowed * loss) || accuracy != accuracy_there)
        fail_msg("evaluated: %.9g and %g, wanted %.9g and %g", loss_there, accuracy_there, loss, accuracy);
    dpcr_model_destroy(host.model);
    dpcr_model_destroy(device.model);
}

void training_as_on_the_host(void **state) {
    (void)state;
    static small_data data;
    static const int64_t counts[] = {1, 7, 24, 50}, batches[] = {1, 5, 24, 100, 9};
    static const dpcr_activation activations[] = {DPCR_ACT_RELU, DPCR_ACT_TANH, DPCR_ACT_SIGMOID, DPCR_ACT_GELU,
                                                  DPCR_ACT_SILU};
    static const int64_t widths[] = {5, 16, 2, 33};
    int n = 0;
    for (int c = 0; c < 4; c++)
        for (int b = 0; b < 5; b++, n++) {
            if ((counts[c] + batches[b] - 1) / batches[b] > MOST_STEPS / 2) continue;
            dpcr_model_options m = resnet_options(n % 7, widths[n % 4], n % 3 ? DPCR_F32 : DPCR_F64);
            m.architecture = n % 2 ? DPCR_MLP : DPCR_RESNET;
            m.activation = activations[n % 5];
            m.tie = n % 4 == 1 ? 1 + n % 3 : 0;
            m.layer_norm = n % 3 == 1 && m.width > 2;  // of two units that are nearly alike float keeps little
            if (n % 4 == 3) m.inputs = 0, m.width = PIXELS;
            train_both(m, make_data(&data, counts[c], 3), batches[b], DPCR_METHOD_AUTO);
        }
    dpcr_model_options normed = resnet_options(9, 2, DPCR_F64);
    normed.layer_norm = 1, normed.tie = 3;
    train_both(normed, make_data(&data, 20, 4), 6, DPCR_METHOD_AUTO);
    train_both(resnet_options(9, 2, DPCR_F64), make_data(&data, 20, 4), 6, DPCR_METHOD_NEWTON);
    train_both(resnet_options(9, 4, DPCR_F64), make_data(&data, 20, 4), 6, DPCR_METHOD_OVERLAP);
}

static void assert_same_bits(const run *a, const run *b) {
    assert_memory_equal(dpcr_model_vector(a->model, NULL), dpcr_model_vector(b->model, NULL), vector_bytes(a->model));
}

// Stopped after any step and gone on with: the same bits; and the host goes on from there too.
void training_goes_on(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 22, 5);
    dpcr_model_options m = resnet_options(4, 6, DPCR_F32);
    const dpcr_optimiser_kind kinds[] = {DPCR_SGD, DPCR_ADAM, DPCR_ADAMW};
    for (int64_t stop = 1; stop <= 11; stop += 2) {
        const folder f = make_folder();
        m.tie = stop / 2 % 3;
        dpcr_train_options o = train_options(3, 6);
        run whole = {0}, first = {.stop = stop}, unnoted = {.stop = stop}, second = {0}, host = {0};
        o.optimiser.kind = kinds[stop / 2 % 3];
        o.optimiser.momentum = stop == 7 ? 0.9 : 0;
        o.solve.method = DPCR_METHOD_SEQUENTIAL;
        o.solve.backward = 0;
        train_on(&whole, &m, &data.set, &o, there, DPCR_OK);
        o.save = f.file;
        train_on(&first, &m, &data.set, &o, there, DPCR_ERROR_CANCELLED);
        assert_int_equal(first.last.step, stop);
        dpcr_error error = {0};
        dpcr_train_options unsaved = options_of(&unnoted, &o, there);
        unsaved.save = NULL;
        unsaved.progress = take_no_note;
        unnoted.model = make_model(context, &m);
        assert_int_equal(dpcr_train(context, unnoted.model, &data.set, &unsaved, &unnoted.last, &error),
                         DPCR_ERROR_CANCELLED);
        assert_int_equal(unnoted.last.step, stop);
        assert_same_bits(&first, &unnoted);
        dpcr_model_destroy(unnoted.model);
        o.resume = f.file;
        o.save = NULL;
        train_on(&second, &m, &data.set, &o, there, DPCR_OK);
        assert_same_bits(&whole, &second);
        run *const r = &host;
        dpcr_train_options on_host = options_of(r, &o, there);
        on_host.solve.device = here;
        host.model = make_model(context, &m);
        ok(dpcr_train(context, host.model, &data.set, &on_host, &host.last, &error), &error);
        for (int64_t i = stop; i < whole.last.step; i++)
            assert_true(fabs(host.losses[i] - whole.losses[i]) <= 1e-2 * whole.losses[i]);
        dpcr_model_destroy(whole.model);
        dpcr_model_destroy(first.model);
        dpcr_model_destroy(second.model);
        dpcr_model_destroy(host.model);
        remove_folder(&f);
    }
}

static void assert_refused(const char *words, dpcr_status wanted, const dpcr_model_options *m,
                           const dpcr_train_options *o) {
    static small_data data;
    run r = {.model = make_model(context, m)};
    dpcr_error error = {0};
    void *const before = parameters_of(r.model);
    const dpcr_status got = dpcr_train(context, r.model, make_data(&data, 9, 3), o, NULL, &error);
    if (got != wanted || !strstr(error.text, words)) fail_msg("status %d, \"%s\"", got, error.text);
    assert_memory_equal(before, dpcr_model_vector(r.model, NULL), vector_bytes(r.model));
    free(before);
    dpcr_model_destroy(r.model);
}

void networks_that_are_refused(void **state) {
    (void)state;
    dpcr_train_options o = train_options(1, 3);
    dpcr_model_options m = resnet_options(4, 5, DPCR_F32);
    o.solve.backward = DPCR_SCHEME_AUTO;
    o.solve.device = there;
    m.branch = DPCR_BRANCH_TWO_LAYER;
    o.solve.method = DPCR_METHOD_NEWTON;
    assert_refused("two-layer branches are dense there, and go by the loop", DPCR_ERROR_UNSUPPORTED, &m, &o);
    o.solve.method = DPCR_METHOD_AUTO;
    m.branch = DPCR_BRANCH_LINEAR;
    o.solve.backward = DPCR_SCHEME_PCR;
    assert_refused("a backward scheme on a device", DPCR_ERROR_UNSUPPORTED, &m, &o);
    o.solve.backward = DPCR_SCHEME_AUTO;
    o.solve.method = DPCR_METHOD_AUTO;
}

// ---- steps that fail ----

// Words and status of a run that stops at a step; the model is as the run that was stopped before it left its own.
// `must`: on any device.
static void assert_stops(bool must, const char *words, const dpcr_model_options *m, const dpcr_train_options *o,
                         int (*progress)(void *, const dpcr_train_state *)) {
    static small_data data;
    run failed = {.model = make_model(context, m)}, before = {0};
    dpcr_error error = {0};
    dpcr_train_options given = options_of(&failed, o, there);
    given.progress = progress;
    const dpcr_status got = dpcr_train(context, failed.model, make_data(&data, 9, 3), &given, &failed.last, &error);
    unsetenv("DEEPPCR_FAKE_LOCKED");
    if (must || got != DPCR_OK) {  // a device fails no solve on request
        if (got != DPCR_ERROR_UNSUPPORTED || !strstr(error.text, words)) fail_msg("status %d, \"%s\"", got, error.text);
        before.stop = failed.steps;
        assert_true(before.stop > 0 && failed.last.step == before.stop);
        train_on(&before, m, &data.set, o, there, DPCR_ERROR_CANCELLED);
        assert_same_bits(&before, &failed);
    }
    dpcr_model_destroy(failed.model);
    dpcr_model_destroy(before.model);
}

// The stand-in leaves the solves open from here on.
static int leave_open(void *user, const dpcr_train_state *state) {
    if (state->step == 2) setenv("DEEPPCR_FAKE_LOCKED", "2", 1);
    return note(user, state);
}

void steps_that_fail(void **state) {
    (void)state;
    dpcr_train_options o = train_options(2, 3);
    dpcr_model_options m = resnet_options(4, 2, DPCR_F32);
    o.solve.method = DPCR_METHOD_NEWTON;
    o.solve.no_fallback = 1;
    assert_stops(false, "did not converge", &m, &o, leave_open);
    o = train_options(1, 3);
    m.width = 5;
    o.optimiser.kind = DPCR_SGD;
    o.optimiser.warm_up = 0;
    o.optimiser.rate = 1e30;
    run r = {.model = make_model(context, &m)};
    static small_data data;
    train_on(&r, &m, make_data(&data, 9, 3), &o, there, DPCR_ERROR_UNSUPPORTED);
    assert_true(r.steps > 0);
    dpcr_model_destroy(r.model);
    assert_stops(true, "the loss is", &m, &o, note);
}

// Whichever piece of memory the device refuses, the model is what it was; of the stand-in, whose memory is counted by
// pages.
void memory_that_is_refused(void **state) {
    (void)state;
    static small_data data;
    make_data(&data, 9, 3);
    const folder f = make_folder();
    const dpcr_model_options m = resnet_options(4, 40, DPCR_F32);
    dpcr_train_options o = train_options(2, 3);
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    dpcr_status status = DPCR_ERROR_MEMORY;
    run first = {.stop = 2};
    o.save = f.file;
    train_on(&first, &m, &data.set, &o, there, DPCR_ERROR_CANCELLED);
    o.resume = f.file;
    o.save = NULL;
    ok(dpcr_device_describe(there, &info, &error), &error);
    for (size_t bytes = info.memory_bytes - info.free_bytes; status == DPCR_ERROR_MEMORY; bytes += 4096) {
        char text[32];
        run r = {.model = make_model(context, &m)};
        void *const before = parameters_of(r.model);
        const dpcr_train_options given = options_of(&r, &o, there);
        snprintf(text, sizeof text, "%zu", bytes);
        setenv("DEEPPCR_FAKE_MEMORY", text, 1);
        status = dpcr_train(context, r.model, &data.set, &given, NULL, &error);
        unsetenv("DEEPPCR_FAKE_MEMORY");
        if (status == DPCR_ERROR_MEMORY)
            assert_memory_equal(before, dpcr_model_vector(r.model, NULL), vector_bytes(r.model));
        free(before);
        dpcr_model_destroy(r.model);
    }
    ok(status, &error);
    dpcr_model_destroy(first.model);
    remove_folder(&f);
}

// ---- checkpoints of the processor ----

static unsigned char *find(const content *c, const char *text) {
    const size_t length = strlen(text);
    unsigned char *at = c->bytes;
    while (at + length <= c->bytes + c->size && memcmp(at, text, length) != 0) at++;
    assert_true(at + length <= c->bytes + c->size);
    return at;
}

// Another method in the place of the one that a checkpoint kept, within the same bytes, and no sum of them.
static void rewrite_method(const char *path, const char *method) {
    content c = read_file(path);
    static const char key[] = "deeppcr.train.plan0.method\":\"", was[] = "sequential\"";
    unsigned char *at = find(&c, key) + strlen(key);
    assert_memory_equal(at, was, strlen(was));
    memset(at, ' ', strlen(was));
    memcpy(at, method, strlen(method));
    at[strlen(method)] = '"';
    *find(&c, "deeppcr.checksum") = '_';
    write_file(path, c.bytes, c.size);
    free(c.bytes);
}

// Written by the processor with that method and way back, gone on with there, and once more here.
static void go_on_there(dpcr_method method, dpcr_scheme backward, const char *kept) {
    static small_data data;
    make_data(&data, 22, 5);
    const folder f = make_folder();
    const dpcr_model_options m = resnet_options(4, 6, DPCR_F32);
    run whole = {0}, first = {.model = make_model(context, &m), .stop = 5}, second = {.stop = 2}, third = {0};
    dpcr_train_options o = train_options(3, 6);
    dpcr_error error = {0};
    o.optimiser.kind = DPCR_SGD;
    train_on(&whole, &m, &data.set, &o, here, DPCR_OK);
    o.save = f.file;
    o.solve.method = method;
    dpcr_train_options on_host = options_of(&first, &o, there);
    on_host.solve.device = here;
    on_host.solve.backward = backward;
    assert_int_equal(dpcr_train(context, first.model, &data.set, &on_host, NULL, &error), DPCR_ERROR_CANCELLED);
    if (kept) rewrite_method(f.file, kept);
    o.resume = f.file;
    train_on(&second, &m, &data.set, &o, there, DPCR_ERROR_CANCELLED);
    assert_int_equal(second.last.step, 7);
    third.model = make_model(context, &m);
    on_host = options_of(&third, &o, there);
    on_host.solve.device = here;
    on_host.solve.backward = backward;
    ok(dpcr_train(context, third.model, &data.set, &on_host, NULL, &error), &error);
    for (int64_t i = 0; i < whole.steps; i++) {
        const double loss = (i < 5 ? first : i < 7 ? second : third).losses[i];
        if (!(fabs(loss - whole.losses[i]) <= 1e-4 * whole.losses[i]))
            fail_msg("step %d: loss %.9g, wanted %.9g", (int)i + 1, loss, whole.losses[i]);
    }
    dpcr_model_destroy(whole.model);
    dpcr_model_destroy(first.model);
    dpcr_model_destroy(second.model);
    dpcr_model_destroy(third.model);
    remove_folder(&f);
}

void checkpoints_of_the_processor(void **state) {
    (void)state;
    go_on_there(DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, NULL);
    go_on_there(DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_AUTO, NULL);
    go_on_there(DPCR_METHOD_AUTO, DPCR_SCHEME_SEQUENTIAL, NULL);
    go_on_there(DPCR_METHOD_AUTO, DPCR_SCHEME_AUTO, "newton");
    go_on_there(DPCR_METHOD_AUTO, DPCR_SCHEME_AUTO, "picard");
}

// ---- evaluation ----

static int asked_thrice(void *user) { return ++*(int *)user >= 3; }

void evaluation_is_cancelled(void **state) {
    (void)state;
    static small_data data;
    int asked = 0;
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 1, .cancel = asked_thrice, .cancel_user = &asked};
    const dpcr_solve_options solve = {.size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL, .device = there};
    const dpcr_model_options m = resnet_options(3, 5, DPCR_F32);
    dpcr_context *own = NULL;
    dpcr_error error = {0};
    double loss = -1;
    ok(dpcr_context_create(&options, &own, &error), &error);
    dpcr_model *model = make_model(own, &m);
    make_data(&data, 40, 3);
    assert_int_equal(dpcr_evaluate(own, model, &data.set, 10, &solve, &loss, NULL, NULL, &error), DPCR_ERROR_CANCELLED);
    assert_int_equal(asked, 3);  // once a batch
    assert_true(loss == -1);
    assert_non_null(strstr(error.text, "evaluate: stopped"));
    dpcr_model_destroy(model);
    dpcr_context_destroy(own);
}
