// SPDX-License-Identifier: MIT
// Checkpoints: a run stopped or killed anywhere and resumed ends with the bits of the uninterrupted one; what disagrees
// or is damaged is refused and changes nothing; refused memory.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "sampled.h"
#include "swapping.h"
#include "train/checkpoint.h"
#include "training.h"

enum { COUNT = 75, ROWS = 16, BATCHES = 5 };  // the last batch has 11 rows

static small_data data;

static dpcr_model_options tiny(void) { return resnet_options(12, 8, DPCR_F32); }

static dpcr_train_options tiny_run(const char *save, const char *resume) {
    dpcr_train_options options = train_options(2, ROWS);
    options.save = save;
    options.resume = resume;
    return options;
}

// ---- stopping ----

static int stop_at(void *user, const dpcr_train_state *state) { return state->step == *(const int64_t *)user; }

// Trains from nothing to the end of a run in one go; file and parameters are what every interrupted run must end with.
typedef struct reference {
    folder f;
    content file;
    void *parameters;
    double loss;
} reference;

static reference make_reference(const dpcr_model_options *model_options, dpcr_train_options options) {
    reference r = {.f = make_folder()};
    dpcr_context *context = make_context(1);
    dpcr_model *model = make_model(context, model_options);
    dpcr_train_state last;
    options.save = r.f.file;
    assert_int_equal(dpcr_train(context, model, &data.set, &options, &last, NULL), DPCR_OK);
    r.loss = last.loss;
    r.parameters = parameters_of(model);
    r.file = read_file(r.f.file);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    return r;
}

static void free_reference(reference *r) {
    remove_folder(&r->f);
    free(r->file.bytes);
    free(r->parameters);
}

// Stops after step `at`, resumes with a model that starts elsewhere and other threads.
static void stop_and_resume(const dpcr_model_options *model_options, dpcr_train_options options, int64_t at,
                            const reference *wanted) {
    const folder f = make_folder();
    dpcr_context *context = make_context(1);
    dpcr_model *model = make_model(context, model_options);
    dpcr_error error = {0};
    dpcr_train_state last;
    options.save = f.file;
    options.progress = stop_at;
    options.progress_user = &at;
    const bool whole = at >= 2 * BATCHES;
    assert_int_equal(dpcr_train(context, model, &data.set, &options, &last, &error),
                     whole ? DPCR_OK : DPCR_ERROR_CANCELLED);
    assert_int_equal(last.step, at);
    if (!whole) assert_non_null(strstr(error.text, f.file));
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);

    dpcr_model_options other = *model_options;
    other.seed = 1234;
    context = make_context(at % 4 == 0 ? 2 : 1);
    model = make_model(context, &other);
    options.progress = NULL;
    options.resume = f.file;
    if (dpcr_train(context, model, &data.set, &options, &last, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_int_equal(last.step, 2 * BATCHES);
    assert_int_equal(last.epoch_ended, 1);
    assert_true(last.loss == wanted->loss);
    assert_memory_equal(dpcr_model_vector(model, NULL), wanted->parameters, vector_bytes(model));
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

static void a_run_stopped_anywhere_resumes_to_the_same_bits(void **state) {
    (void)state;
    const dpcr_optimiser_kind kinds[] = {DPCR_SGD, DPCR_ADAM, DPCR_ADAMW};
    make_data(&data, COUNT, 1);
    for (int kind = 0; kind < 3; kind++) {
        const dpcr_model_options o = tiny();
        dpcr_train_options options = tiny_run(NULL, NULL);
        options.optimiser.kind = kinds[kind];
        options.optimiser.momentum = 0.9;
        reference wanted = make_reference(&o, options);
        for (int64_t at = 1; at <= 2 * BATCHES; at++) stop_and_resume(&o, options, at, &wanted);
        free_reference(&wanted);
    }
    dpcr_model_options wide = tiny();
    wide.dtype = DPCR_F64;
    dpcr_train_options options = tiny_run(NULL, NULL);
    options.solve =
        (dpcr_solve_options){.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR, .backward = DPCR_SCHEME_PCR};
    reference wanted = make_reference(&wide, options);
    for (int64_t at = 1; at <= 2 * BATCHES; at += 3) stop_and_resume(&wide, options, at, &wanted);
    free_reference(&wanted);
    options.solve = (dpcr_solve_options){0};  // auto: what was chosen stands in the checkpoint
    wanted = make_reference(&wide, options);
    for (int64_t at = 1; at <= 2 * BATCHES; at += 3) stop_and_resume(&wide, options, at, &wanted);
    free_reference(&wanted);
    // Newton by windows: a scheme that nobody asked for must not stand in the checkpoint.
    const dpcr_model_options narrow = {.size = sizeof narrow,
                                       .architecture = DPCR_MLP,
                                       .activation = DPCR_ACT_TANH,
                                       .inputs = PIXELS,
                                       .outputs = LABELS,
                                       .layers = 512,
                                       .width = 3,
                                       .seed = 7};
    options.solve = (dpcr_solve_options){.method = DPCR_METHOD_NEWTON, .backward = DPCR_SCHEME_SEQUENTIAL};
    wanted = make_reference(&narrow, options);
    for (int64_t at = 1; at <= 2 * BATCHES; at += 4) stop_and_resume(&narrow, options, at, &wanted);
    free_reference(&wanted);
}

typedef struct cancelling {
    int64_t calls, from;
} cancelling;

typedef struct noter {
    int64_t at, first, noted;  // step that no note can be taken of; the first and the last one told
} noter;

static int note_but(void *user, const dpcr_train_state *state) {
    noter *n = user;
    if (!n->first) n->first = state->step;
    if (state->step == n->at) return -1;
    n->noted = state->step;
    return 0;
}

static void a_step_that_no_note_was_taken_of_is_done_again(void **state) {
    (void)state;
    const dpcr_model_options o = tiny();
    const dpcr_train_options plain = tiny_run(NULL, NULL);
    make_data(&data, COUNT, 1);
    reference wanted = make_reference(&o, plain);
    for (int64_t at = 1; at <= 2 * BATCHES; at++) {
        const folder f = make_folder();
        dpcr_context *context = make_context(1);
        dpcr_model *model = make_model(context, &o);
        dpcr_error error = {0};
        dpcr_train_state last;
        noter n = {.at = at};
        dpcr_train_options options = tiny_run(f.file, NULL);
        options.progress = note_but;
        options.progress_user = &n;
        const bool whole = at == 2 * BATCHES;
        assert_int_equal(dpcr_train(context, model, &data.set, &options, &last, &error),
                         whole ? DPCR_OK : DPCR_ERROR_CANCELLED);
        assert_int_equal(n.noted, at - 1);
        char says[512];
        snprintf(says, sizeof says,
                 "stopped as asked after step %d of %d; to go on, resume from %s, which holds step %d", (int)at,
                 2 * BATCHES, f.file, at <= BATCHES ? 0 : BATCHES);
        if (!whole && !strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
        n = (noter){0};
        options.resume = f.file;
        if (dpcr_train(context, model, &data.set, &options, &last, &error) != DPCR_OK) fail_msg("%s", error.text);
        assert_int_equal(n.first, at <= BATCHES ? 1 : BATCHES + 1);  // an epoch's end is saved where it was noted
        assert_memory_equal(dpcr_model_vector(model, NULL), wanted.parameters, vector_bytes(model));
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
        remove_folder(&f);
    }
    free_reference(&wanted);
}

// Of the last step nothing is saved either, and the call is complete; but not with parameters that are no numbers.
static void what_no_note_was_taken_of_is_finite(void **state) {
    (void)state;
    const dpcr_model_options o = tiny();
    make_data(&data, COUNT, 1);
    dpcr_context *context = make_context(1);
    for (int k = 0; k < 2; k++) {
        dpcr_model *model = make_model(context, &o);
        dpcr_error error = {0};
        noter n = {.at = 1};
        dpcr_train_options options = train_options(1, k ? COUNT : ROWS);  // k: its last step, or with steps left
        options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 1e300};
        options.progress = note_but;
        options.progress_user = &n;
        assert_int_equal(dpcr_train(context, model, &data.set, &options, NULL, &error), DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "after step 1 parameter 0 is not finite"));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

// A run by `solve` that is stopped and gone on with by `other`, which leaves out what shows in the numbers, takes what
// the checkpoint tells.
static void keep_what_is_left_out(dpcr_solve_options solve, dpcr_solve_options left_out) {
    make_data(&data, COUNT, 1);
    const dpcr_model_options o = tiny();
    dpcr_train_options options = tiny_run(NULL, NULL), other = options;
    options.solve = solve, other.solve = left_out;
    reference wanted = make_reference(&o, options), usual = make_reference(&o, other);
    dpcr_context *context = make_context(1);
    dpcr_model *model = make_model(context, &o);
    assert_memory_not_equal(usual.parameters, wanted.parameters, vector_bytes(model));
    const folder f = make_folder();
    const int64_t at = 3;
    dpcr_error error = {0};
    dpcr_train_state last;
    options.save = f.file, options.progress = stop_at, options.progress_user = (void *)&at;
    assert_int_equal(dpcr_train(context, model, &data.set, &options, &last, &error), DPCR_ERROR_CANCELLED);
    other.save = other.resume = f.file;
    if (dpcr_train(context, model, &data.set, &other, &last, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_memory_equal(dpcr_model_vector(model, NULL), wanted.parameters, vector_bytes(model));
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    remove_folder(&f);
    free_reference(&wanted), free_reference(&usual);
}

// Chunks of the way back whose borders may be off: their gradients tell by how many steps they were cut, and how many
// they begin early.
static const dpcr_solve_options loose = {.method = DPCR_METHOD_SEQUENTIAL,
                                         .backward = DPCR_SCHEME_OVERLAP,
                                         .backward_chunk = 5,
                                         .warm_up = 1,
                                         .atol = 1e9,
                                         .rtol = 1e9};

static void chunks_of_the_way_back_are_kept(void **state) {
    (void)state;
    dpcr_solve_options left_out = loose;
    left_out.backward_chunk = 0;
    keep_what_is_left_out(loose, left_out);
}

static void run_ups_of_the_way_back_are_kept(void **state) {
    (void)state;
    dpcr_solve_options early = loose;
    early.backward_warm_up = 9;  // the loss alone has gradients: they reach a chunk that begins so early
    keep_what_is_left_out(early, loose);
}

// Chunks that join bit for bit, where by the tolerance they would be left as they are.
static void joins_are_kept(void **state) {
    (void)state;
    const dpcr_solve_options cut = {.method = DPCR_METHOD_OVERLAP,
                                    .backward = DPCR_SCHEME_SEQUENTIAL,
                                    .chunk = 5,
                                    .warm_up = 1,
                                    .atol = 1e9,
                                    .rtol = 1e9};
    dpcr_solve_options close = cut;
    close.join_tolerance = -1;
    keep_what_is_left_out(close, cut);
}

static int cancel_from(void *user) {
    cancelling *c = user;
    return c->calls++ >= c->from;
}

// The context's cancel function says yes from call 0, 1, 2, ... on: in the middle of solves, too.
static void a_run_cancelled_anywhere_ends_with_the_same_file(void **state) {
    (void)state;
    make_data(&data, COUNT, 1);
    const dpcr_model_options o = tiny();
    dpcr_train_options options = tiny_run(NULL, NULL);
    options.solve =
        (dpcr_solve_options){.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR, .backward = DPCR_SCHEME_PCR};
    reference wanted = make_reference(&o, options);
    const folder f = make_folder();
    dpcr_status status = DPCR_ERROR_CANCELLED;
    int64_t from = 0;
    for (; status == DPCR_ERROR_CANCELLED; from++) {
        cancelling c = {.from = from};
        const dpcr_context_options cancelled = {
            .size = sizeof cancelled, .threads = 1, .cancel = cancel_from, .cancel_user = &c};
        dpcr_context *context = NULL;
        dpcr_train_state last = {0};
        assert_int_equal(dpcr_context_create(&cancelled, &context, NULL), DPCR_OK);
        dpcr_model *model = make_model(context, &o);
        options.save = f.file;
        options.resume = NULL;
        status = dpcr_train(context, model, &data.set, &options, &last, NULL);
        c.from = INT64_MAX;
        options.resume = f.file;
        if (status == DPCR_ERROR_CANCELLED) train_well(context, model, &data.set, &options);
        assert_same_file(f.file, &wanted.file);
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
        assert_true(from < 1000);
    }
    assert_int_equal(status, DPCR_OK);
    assert_true(from >= 2 * BATCHES);
    free_reference(&wanted);
    remove_folder(&f);
}

// ---- killing ----

static void train_in_child(const char *file) {
    dpcr_context *context = NULL;
    dpcr_model *model = NULL;
    const dpcr_context_options threads = {.size = sizeof threads, .threads = 2};
    const dpcr_model_options o = tiny();
    dpcr_train_options options = tiny_run(file, access(file, R_OK) == 0 ? file : NULL);
    options.epochs = 6;
    options.checkpoint_seconds = 1e-9;  // after every step: most kills then hit a write
    if (dpcr_context_create(&threads, &context, NULL) != DPCR_OK ||
        dpcr_model_create(context, &o, &model, NULL) != DPCR_OK)
        _exit(2);
    _exit(dpcr_train(context, model, &data.set, &options, NULL, NULL) == DPCR_OK ? 0 : 1);
}

// True when the child ended by itself; it is killed after so many nanoseconds, or never where they are negative.
static bool run_child(const char *file, long nanoseconds) {
    const struct timespec pause = {.tv_nsec = nanoseconds};
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) train_in_child(file);
    if (nanoseconds >= 0) {
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    return WIFEXITED(status);
}

static void a_run_killed_at_random_moments_ends_with_the_same_file(void **state) {
    (void)state;
    make_data(&data, COUNT, 1);
    const dpcr_model_options o = tiny();
    dpcr_train_options options = tiny_run(NULL, NULL);
    options.epochs = 6;
    reference wanted = make_reference(&o, options);
    const folder f = make_folder();
    const uint64_t seed = (uint64_t)time(NULL);
    bool ended = false;
    int kills = 0;
    for (uint64_t i = 0; i < (TESTS_FOR_RACES ? 10 : 60) && !ended; i++) {
        const uint64_t most = 10000000 + i * 5000000;
        ended = run_child(f.file, (long)dpcri_random_below(seed, DPCRI_STREAM_DATA, i, most));
        kills += !ended;
    }
    print_message("seed %llu: killed %d times\n", (unsigned long long)seed, kills);
    // However far the kills let it come, what is left runs to its end: nothing here depends on the machine's speed.
    assert_true(run_child(f.file, -1));
    assert_same_file(f.file, &wanted.file);
    free_reference(&wanted);
    remove_folder(&f);
}

// ---- the file ----

static void a_checkpoint_is_a_model(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = tiny();
    const folder f = make_folder();
    dpcr_model *model = make_model(context, &o), *loaded = NULL;
    make_data(&data, COUNT, 1);
    dpcr_train_options options = tiny_run(f.file, NULL);
    train_well(context, model, &data.set, &options);
    assert_int_equal(dpcr_model_load(context, f.file, &loaded, NULL), DPCR_OK);
    assert_memory_equal(dpcr_model_vector(loaded, NULL), dpcr_model_vector(model, NULL), vector_bytes(model));
    assert_string_equal(dpcr_model_metadata(loaded, "pixel_mean"), dpcr_model_metadata(model, "pixel_mean"));
    double a, b;
    assert_int_equal(dpcr_evaluate(context, model, &data.set, 32, NULL, &a, NULL, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_evaluate(context, loaded, &data.set, 32, NULL, &b, NULL, NULL, NULL), DPCR_OK);
    assert_true(a == b);
    // Trained anew from there, its checkpoints carry nothing of the old run's.
    train_well(context, loaded, &data.set, &options);
    options.resume = f.file;
    train_well(context, loaded, &data.set, &options);
    // With a constant rate a complete run can be prolonged.
    options.resume = NULL;
    options.optimiser.total = 0;
    train_well(context, loaded, &data.set, &options);
    options.resume = f.file;
    options.epochs = 3;
    dpcr_train_state last;
    assert_int_equal(dpcr_train(context, loaded, &data.set, &options, &last, NULL), DPCR_OK);
    assert_int_equal(last.step, 3 * BATCHES);
    dpcr_model_destroy(loaded);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

static int see_file(void *user, const dpcr_train_state *state) {
    (void)state;
    return access(user, R_OK) != 0;
}

static void a_checkpoint_lies_there_before_the_first_step(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = tiny();
    const folder f = make_folder();
    dpcr_model *model = make_model(context, &o);
    make_data(&data, COUNT, 1);
    dpcr_train_options options = tiny_run(f.file, NULL);
    options.progress = see_file;
    options.progress_user = (void *)(uintptr_t)f.file;
    train_well(context, model, &data.set, &options);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    remove_folder(&f);
}

// ---- a checkpoint that is replaced while it is read ----

// Two of one run: from either it ends with the same bits, from a mixture it does not.
static void a_run_goes_on_from_one_file(void **state) {
    (void)state;
    const dpcr_model_options o = resnet_options(3, 4, DPCR_F32);
    dpcr_train_options options = tiny_run(NULL, NULL);
    make_data(&data, COUNT, 1);
    reference whole = make_reference(&o, options);
    const folder f = make_folder();
    content files[2];
    dpcr_context *context = make_context(1);
    options.save = f.file;
    options.progress = stop_at;
    for (int64_t step = 1; step <= 2; step++) {
        dpcr_model *model = make_model(context, &o);
        options.progress_user = &step;
        assert_int_equal(dpcr_train(context, model, &data.set, &options, NULL, NULL), DPCR_ERROR_CANCELLED);
        files[step - 1] = read_file(f.file);
        dpcr_model_destroy(model);
    }
    swap s;
    dpcr_context *swapping = swap_context(&s, &f, files);
    options.save = NULL, options.resume = f.file;
    options.progress = swap_ends, options.progress_user = &s;
    for (int64_t calls = 0; !s.unused; calls++) {
        dpcr_model *model = make_model(swapping, &o);
        swap_after(&s, calls);
        train_well(swapping, model, &data.set, &options);
        assert_memory_equal(dpcr_model_vector(model, NULL), whole.parameters, vector_bytes(model));
        dpcr_model_destroy(model);
    }
    for (int i = 0; i < 2; i++) free(files[i].bytes);
    dpcr_context_destroy(swapping);
    dpcr_context_destroy(context);
    free_reference(&whole);
    remove_folder(&f);
}

// ---- refusals ----

// Resuming fails with these words; model and file stay as they were.
static void refuse(dpcr_context *context, const dpcr_model_options *o, dpcr_train_options options, dpcr_status wanted,
                   const char *words) {
    dpcr_error error = {0};
    dpcr_model *model = make_model(context, o);
    void *before = parameters_of(model);
    const content file = read_file(options.resume);
    const dpcr_status status = dpcr_train(context, model, &data.set, &options, NULL, &error);
    if (status != wanted || !strstr(error.text, words))
        fail_msg("got %d, \"%s\", wanted %d, words \"%s\"", (int)status, error.text, (int)wanted, words);
    assert_memory_equal(before, dpcr_model_vector(model, NULL), vector_bytes(model));
    assert_null(dpcr_model_metadata(model, "pixel_mean"));
    assert_same_file(options.resume, &file);
    free(file.bytes);
    free(before);
    dpcr_model_destroy(model);
}

static void what_disagrees_on_resume_is_refused_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const folder f = make_folder();
    const dpcr_model_options o = tiny();
    const dpcr_train_options good = tiny_run(f.file, f.file);
    make_data(&data, COUNT, 1);
    reference written = make_reference(&o, tiny_run(NULL, NULL));
    write_file(f.file, written.file.bytes, written.file.size);
#define REFUSE(field, value, words)                           \
    do {                                                      \
        dpcr_train_options bad = good;                        \
        bad.field = value;                                    \
        refuse(context, &o, bad, DPCR_ERROR_ARGUMENT, words); \
    } while (0)
    REFUSE(batch, 17, "batch is 17, wanted 16");
    REFUSE(seed, 6, "seed is 6, wanted 5");
    REFUSE(epochs, 3, "optimiser.total is 15, wanted 10");
    REFUSE(epochs, 1, "optimiser.total is 5, wanted 10");
    REFUSE(optimiser.kind, DPCR_ADAM, "optimiser.kind is adam, wanted adamw");
    REFUSE(optimiser.rate, 0.02, "optimiser.rate is 0.02");
    REFUSE(optimiser.momentum, 0.5, "optimiser.momentum is 0.5, wanted 0");
    REFUSE(optimiser.beta1, 0.5, "optimiser.beta1 is 0.5");
    REFUSE(optimiser.beta2, 0.5, "optimiser.beta2 is 0.5");
    REFUSE(optimiser.epsilon, 0.5, "optimiser.epsilon is 0.5");
    REFUSE(optimiser.weight_decay, 0.5, "optimiser.weight_decay is 0.5");
    REFUSE(optimiser.warm_up, 3, "optimiser.warm_up is 3, wanted 2");
    REFUSE(clip, 0.25, "clip is 0.25, wanted 0");
    REFUSE(solve.method, DPCR_METHOD_NEWTON, "solve.method is newton, wanted sequential");
    REFUSE(solve.scheme, DPCR_SCHEME_PCR, "solve.scheme is pcr");
    REFUSE(solve.backward, DPCR_SCHEME_PCR, "solve.backward is pcr, wanted sequential");
    REFUSE(solve.guess, DPCR_GUESS_STEP, "solve.guess is 1, wanted 0");
    REFUSE(solve.atol, 0.5, "solve.atol is 0.5, wanted 0");
    REFUSE(solve.rtol, 0.5, "solve.rtol is 0.5, wanted 0");
    REFUSE(solve.window, 4, "solve.window is 4, wanted 0");
    REFUSE(solve.max_sweeps, 4, "solve.max_sweeps is 4, wanted 0");
#undef REFUSE
    dpcr_model_options other = o;
    other.layers = 13;
    refuse(context, &other, good, DPCR_ERROR_ARGUMENT, "layers is 13, wanted 12");
    other = o;
    other.scale = 0.5;
    refuse(context, &other, good, DPCR_ERROR_ARGUMENT, "scale is 0.5");
    other = o;
    other.dtype = DPCR_F64;
    refuse(context, &other, good, DPCR_ERROR_ARGUMENT, "dtype is");
    data.images[17] ^= 4;
    refuse(context, &o, good, DPCR_ERROR_ARGUMENT, "data.hash is");
    make_data(&data, COUNT - 1, 1);
    refuse(context, &o, good, DPCR_ERROR_ARGUMENT, "data.count is 74, wanted 75");
    make_data(&data, COUNT, 1);

    dpcr_train_options shorter = good;
    shorter.epochs = 1;
    shorter.optimiser.total = 2 * BATCHES;
    refuse(context, &o, shorter, DPCR_ERROR_ARGUMENT, "stands at epoch 2");
    free_reference(&written);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// Older ones hold no word of clipping, and that alone may be missing.
static void a_checkpoint_may_not_tell_how_it_clipped(void **state) {
    (void)state;
    const dpcri_saved saved = {.path = "old"};
    for (int other = 0; other < 2; other++) {
        dpcri_strings agreement = {0};
        dpcr_error error = {0};
        dpcri_strings_add_number(&agreement, "clip", 0.25);
        if (other) dpcri_strings_add_number(&agreement, "solve.atol", 0.25);
        assert_int_equal(dpcri_saved_strings_agree(&saved, &agreement, &error), other ? DPCR_ERROR_FORMAT : DPCR_OK);
    }
}

static void a_damaged_checkpoint_changes_nothing(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const folder f = make_folder();
    const dpcr_model_options o = tiny();
    const dpcr_train_options options = tiny_run(f.file, f.file);
    make_data(&data, COUNT, 1);
    reference whole = make_reference(&o, tiny_run(NULL, NULL));
    for (size_t size = 0; size < whole.file.size; size += whole.file.size / 37) {
        write_file(f.file, whole.file.bytes, size);
        refuse(context, &o, options, DPCR_ERROR_FORMAT, "");
    }
    write_file(f.file, whole.file.bytes, whole.file.size - 1);
    refuse(context, &o, options, DPCR_ERROR_FORMAT, "");

    // A model that is no checkpoint.
    dpcr_model *model = make_model(context, &o);
    assert_int_equal(dpcr_model_save(model, f.file, NULL), DPCR_OK);
    refuse(context, &o, options, DPCR_ERROR_FORMAT, "is no checkpoint to go on from: 'deeppcr.train.epoch' is absent");
    dpcr_model_destroy(model);

    // One bit of any number.
    const size_t header = 8 + (size_t)whole.file.bytes[0] + 256 * (size_t)whole.file.bytes[1];
    for (size_t place = header; place < whole.file.size; place += (whole.file.size - header) / 19) {
        content file = {.size = whole.file.size, .bytes = malloc(whole.file.size)};
        memcpy(file.bytes, whole.file.bytes, file.size);
        file.bytes[place] ^= (unsigned char)(1 << place % 8);
        write_file(f.file, file.bytes, file.size);
        refuse(context, &o, options, DPCR_ERROR_FORMAT, "damaged");
        free(file.bytes);
    }

    // Strings that lie: same length, so that the rest of the file stays valid.
    const char *const lies[][3] = {
        {"\"deeppcr.train.step\":\"10\"", "\"deeppcr.train.step\":\"11\"", "stands at"},
        {"\"deeppcr.train.step\":\"10\"", "\"deeppcr.train.step\":\"1x\"", "'deeppcr.train.step' is 1x"},
        {"\"optimiser.first\"", "\"optimiser.fjrst\"", "tensor 'optimiser.first' is absent"},
        {"deeppcr.train.plan0.method", "deeppcr.train.plan0.mothed", "plan0.method' is absent"},
        {"deeppcr.train.epoch_loss", "deeppcr.train.epoch_lose", "epoch_loss' is absent"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        content file = {.size = whole.file.size, .bytes = malloc(whole.file.size)};
        memcpy(file.bytes, whole.file.bytes, file.size);
        unsigned char *at = memmem(file.bytes, file.size, lies[i][0], strlen(lies[i][0]));
        if (!at) fail_msg("the file has no %s", lies[i][0]);
        memcpy(at, lies[i][1], strlen(lies[i][1]));
        write_file(f.file, file.bytes, file.size);
        refuse(context, &o, options, DPCR_ERROR_FORMAT, "damaged");
        at = memmem(file.bytes, file.size, "deeppcr.checksum", 16);  // in a file without a sum, as older ones are
        if (!at) fail_msg("the file has no sum");
        memcpy(at, "somebody.checked", 16);
        write_file(f.file, file.bytes, file.size);
        refuse(context, &o, options, i == 0 ? DPCR_ERROR_ARGUMENT : DPCR_ERROR_FORMAT, lies[i][2]);
        free(file.bytes);
    }
    free_reference(&whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

// ---- memory ----

// Call number 0, 1, 2, ... of the allocator is refused until the call succeeds; everything is given back each time.
static void fail_each(bool resume, bool evaluate) {
    const folder f = make_folder();
    const dpcr_model_options o = resnet_options(3, 4, DPCR_F32);
    dpcr_status status = DPCR_ERROR_MEMORY;
    int64_t allowed = 0;
    make_data(&data, 20, 1);
    if (resume) {
        dpcr_context *context = make_context(1);
        dpcr_model *model = make_model(context, &o);
        dpcr_train_options options = tiny_run(f.file, NULL);
        train_well(context, model, &data.set, &options);
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
    }
    for (; status != DPCR_OK; allowed++) {
        budget memory = {.left = 1000};
        const dpcr_context_options context_options = budget_options(&memory);
        dpcr_context *context = NULL;
        double loss;
        assert_int_equal(dpcr_context_create(&context_options, &context, NULL), DPCR_OK);
        dpcr_model *model = make_model(context, &o);
        const dpcr_train_options options = tiny_run(f.file, resume ? f.file : NULL);
        const int64_t held = memory.live;
        memory.left = allowed;
        status = evaluate ? dpcr_evaluate(context, model, &data.set, 16, NULL, &loss, NULL, NULL, NULL)
                          : dpcr_train(context, model, &data.set, &options, NULL, NULL);
        if (status != DPCR_OK) assert_int_equal(status, DPCR_ERROR_MEMORY);
        memory.left = 1000;
        // What a training that began has noted in the model's metadata belongs to the model.
        if (evaluate || status != DPCR_OK) assert_true(memory.live == held || dpcr_model_metadata(model, "pixel_mean"));
        dpcr_model_destroy(model);
        dpcr_context_destroy(context);
        assert_int_equal(memory.live, 0);
        assert_true(allowed < 900);
    }
    print_message("%d allocations\n", (int)allowed - 1);
    remove_folder(&f);
}

static void every_refused_allocation_comes_back_as_an_error(void **state) {
    (void)state;
    fail_each(false, false);
    fail_each(true, false);
    fail_each(false, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_stopped_anywhere_resumes_to_the_same_bits),
        cmocka_unit_test(a_step_that_no_note_was_taken_of_is_done_again),
        cmocka_unit_test(what_no_note_was_taken_of_is_finite),
        cmocka_unit_test(chunks_of_the_way_back_are_kept),
        cmocka_unit_test(run_ups_of_the_way_back_are_kept),
        cmocka_unit_test(joins_are_kept),
        cmocka_unit_test(a_run_cancelled_anywhere_ends_with_the_same_file),
        cmocka_unit_test(a_run_killed_at_random_moments_ends_with_the_same_file),
        cmocka_unit_test(a_checkpoint_is_a_model),
        cmocka_unit_test(a_run_goes_on_from_one_file),
        cmocka_unit_test(a_checkpoint_lies_there_before_the_first_step),
        cmocka_unit_test(what_disagrees_on_resume_is_refused_in_words),
        cmocka_unit_test(a_checkpoint_may_not_tell_how_it_clipped),
        cmocka_unit_test(a_damaged_checkpoint_changes_nothing),
        cmocka_unit_test(every_refused_allocation_comes_back_as_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
