// SPDX-License-Identifier: MIT
// Training drawn at random, of classifiers and of sequence models: the same bits for any number of threads, stopped at
// any step and gone on with elsewhere; every method as the loop; a step of plain descent goes down the slope of the
// loss, by differences of it; what is refused is refused in words and leaves the model as it was.
#include <sys/stat.h>

#include "draws.h"

enum { MOST_DATA = 48, MOST_SIDE = 4, MOST_CLASSES = 5, MOST_STEPS = 40, MOST_NUMBERS = 1 << 16, SAMPLES = 3 };

static int trained, refused, diverged, stopped, compared, slopes, by_method[DPCR_METHOD_COUNT];
static char folder[64], file[128];

typedef struct job {
    bool sequence;
    dpcr_model_options model;
    dpcr_sequence_options network;
    dpcr_dataset images;
    dpcr_sequence_data sequences;
    dpcr_sequence_train_options options;  // a classifier's: options.train
    uint8_t pixels[MOST_DATA * MOST_SIDE * MOST_SIDE], labels[MOST_DATA], text[MOST_DATA * MOST_STEPS];
    uint64_t key;  // of the sequences
    int64_t stop;  // after this step; 0: never
} job;

static job drawn_job;

// ---- what is trained ----

typedef struct learner {
    dpcr_context *context;
    dpcr_model *model;
    dpcr_sequence *sequence;
} learner;

static learner make_learner(const job *j, dpcr_context *context) {
    learner made = {.context = context};
    dpcr_error error = {0};
    if (j->sequence)
        check_done(dpcr_sequence_create(context, &j->network, &made.sequence, &error), &error, "create");
    else
        check_done(dpcr_model_create(context, &j->model, &made.model, &error), &error, "create");
    return made;
}

static void drop_learner(learner *l) {
    dpcr_model_destroy(l->model);
    dpcr_sequence_destroy(l->sequence);
}

static dpcr_dtype dtype_of(const job *j) { return j->sequence ? j->network.network.dtype : j->model.dtype; }

// The vector of a classifier; of a sequence model its network's.
static void *vector_of(const learner *l, int64_t *count) {
    if (l->model) return dpcr_model_vector(l->model, count);
    return dpcr_recurrent_vector(dpcr_sequence_network(l->sequence), count);
}

static void *copy_of(const job *j, const learner *l, int64_t *count) {
    const void *vector = vector_of(l, count);
    const size_t bytes = (size_t)*count * dpcr_dtype_size(dtype_of(j));
    void *copy = malloc(bytes + 1);
    memcpy(copy, vector, bytes);
    return copy;
}

static int asks_to_stop(void *user, const dpcr_train_state *state) { return state->step == ((const job *)user)->stop; }

static dpcr_status run(job *j, learner *l, dpcr_train_state *last, dpcr_error *error) {
    j->options.train.progress = asks_to_stop;
    j->options.train.progress_user = j;
    if (l->sequence) return dpcr_sequence_train(l->context, l->sequence, &j->sequences, &j->options, last, error);
    return dpcr_train(l->context, l->model, &j->images, &j->options.train, last, error);
}

static double loss_of(const job *j, const learner *l) {
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    const int64_t batch = j->options.train.batch;
    double loss = 0;
    dpcr_error error = {0};
    check_done(l->sequence ? dpcr_sequence_evaluate(l->context, l->sequence, &j->sequences, batch, &loop, &loss, NULL,
                                                    NULL, &error)
                           : dpcr_evaluate(l->context, l->model, &j->images, batch, &loop, &loss, NULL, NULL, &error),
               &error, "evaluate");
    return loss;
}

// ---- draws ----

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void read_sequence(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    const job *j = user;
    const uint64_t key = j->key + (uint64_t)index * 0x9e3779b97f4a7c15u;
    *label = (uint8_t)(mix(key) % (uint64_t)j->network.outputs);
    *length =
        j->sequences.same_length ? j->sequences.longest : 1 + (int64_t)(mix(key + 1) % (uint64_t)j->sequences.longest);
    for (int64_t i = 0; i < *length * j->sequences.features; i++)
        x[i] = (float)((double)(mix(key + 2 + (uint64_t)i) >> 11) * 0x1p-52 - 1 + *label * 0.3);
}

static void draw_classifier(job *j) {
    dpcr_model_options *o = &j->model;
    const int64_t side = draw_between(1, MOST_SIDE);
    *o = (dpcr_model_options){.size = sizeof *o, .architecture = draw_chance(50) ? DPCR_MLP : DPCR_RESNET};
    o->dtype = draw_chance(40) ? DPCR_F32 : DPCR_F64;
    o->inputs = side * side, o->outputs = draw_between(1, MOST_CLASSES);
    o->layers = draw_chance(5) ? 0 : draw_log(1, 60), o->width = draw_log(1, 40);
    o->activation = (dpcr_activation)draw_below(6);
    if (o->architecture == DPCR_RESNET && draw_chance(35)) o->branch = DPCR_BRANCH_TWO_LAYER;
    if (o->branch && draw_chance(60)) o->hidden = draw_log(1, 24);
    o->layer_norm = draw_chance(20);
    if (draw_chance(20)) o->tie = draw_between(1, 4);
    o->seed = (uint64_t)draw_below(100);
    j->images = (dpcr_dataset){.count = draw_between(1, MOST_DATA),
                               .rows = side,
                               .cols = side,
                               .classes = o->outputs,
                               .images = j->pixels,
                               .labels = j->labels};
    for (int64_t i = 0; i < j->images.count; i++) {
        j->labels[i] = (uint8_t)draw_below(o->outputs);
        for (int64_t p = 0; p < side * side; p++) j->pixels[i * side * side + p] = (uint8_t)draw_below(256);
    }
    j->options.train.batch = draw_log(1, j->images.count + 3);
    tell(" %s %s layers %lld width %lld %s%s hidden %lld%s tie %lld, %lld images of %lld",
         o->architecture == DPCR_MLP ? "mlp" : "resnet", dpcr_dtype_name(o->dtype), (long long)o->layers,
         (long long)o->width, dpcr_activation_name(o->activation), o->branch ? " two-layer" : "", (long long)o->hidden,
         o->layer_norm ? " norm" : "", (long long)o->tie, (long long)j->images.count, (long long)(side * side));
}

static void draw_sequence_model(job *j) {
    dpcr_sequence_options *o = &j->network;
    dpcr_recurrent_options *n = &o->network;
    *o = (dpcr_sequence_options){.size = sizeof *o, .readout = (dpcr_readout)draw_between(1, 3)};
    const bool text = o->readout == DPCR_READOUT_EACH;
    n->kind = (dpcr_recurrent_kind)draw_between(1, 7);
    n->dtype = draw_chance(40) ? DPCR_F32 : DPCR_F64;
    n->inputs = draw_between(1, 5), n->hidden = draw_log(1, 20), n->layers = draw_chance(70) ? 1 : 2;
    n->bidirectional = !text && draw_chance(25);
    if (n->kind == DPCR_LSTM && n->hidden > 1 && draw_chance(30)) n->projection = draw_between(1, n->hidden - 1);
    n->seed = (uint64_t)draw_below(100);
    o->outputs = draw_between(text ? 2 : 1, MOST_CLASSES), o->symbols = text ? o->outputs : 0;
    j->sequences = (dpcr_sequence_data){.size = sizeof j->sequences, .count = draw_between(1, 20)};
    j->sequences.features = n->inputs, j->sequences.longest = draw_between(1, MOST_STEPS);
    j->sequences.same_length = draw_chance(50), j->sequences.read = read_sequence, j->sequences.user = j;
    j->key = draw_bits();
    j->options.train.batch = draw_log(1, j->sequences.count);
    if (text) {
        j->sequences = (dpcr_sequence_data){.size = sizeof j->sequences, .text = j->text};
        j->options.train.batch = draw_between(1, 5), j->options.length = draw_between(1, MOST_STEPS);
        const int64_t most = MOST_DATA * MOST_STEPS, least = j->options.train.batch * j->options.length + 1;
        j->sequences.count = least + draw_below(4 * least < most ? 3 * least : most - least);
        for (int64_t i = 0; i < j->sequences.count; i++) j->text[i] = (uint8_t)draw_below(o->symbols);
    }
    if (n->layers > 1 && draw_chance(40)) j->options.dropout = 0.3;
    if (o->readout == DPCR_READOUT_LAST && !n->bidirectional && j->options.dropout == 0 && draw_chance(30))
        j->options.segment = draw_log(1, j->sequences.longest);
    tell(
        " %s %s I %lld H %lld P %lld layers %lld%s readout %s, %lld sequences%s of %lld, length %lld segment %lld "
        "dropout %g",
        dpcr_recurrent_kind_name(n->kind), dpcr_dtype_name(n->dtype), (long long)n->inputs, (long long)n->hidden,
        (long long)n->projection, (long long)n->layers, n->bidirectional ? " both ways" : "",
        dpcr_readout_name(o->readout), (long long)j->sequences.count, j->sequences.same_length ? "" : " packed",
        (long long)j->sequences.longest, (long long)j->options.length, (long long)j->options.segment,
        j->options.dropout);
}

// A named way: auto's choice may depend on the number of threads.
static void draw_solver(dpcr_solve_options *o, int64_t length) {
    *o = (dpcr_solve_options){.size = sizeof *o, .method = (dpcr_method)draw_between(1, DPCR_METHOD_COUNT - 1)};
    if (draw_chance(40)) o->method = draw_chance(50) ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL;
    o->backward = draw_chance(40) ? DPCR_SCHEME_SEQUENTIAL : (dpcr_scheme)draw_between(1, DPCR_SCHEME_COUNT - 1);
    if (draw_chance(40)) o->scheme = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    o->block = 1;
    if (draw_chance(30)) o->chunk = draw_log(1, length + 2);
    if (draw_chance(20)) o->backward_chunk = draw_log(1, length + 2);
    if (draw_chance(30)) o->warm_up = draw_log(1, 30);
    if (draw_chance(20)) o->window = draw_log(1, length + 2);
    if (draw_chance(20)) o->max_sweeps = (int)draw_log(1, 30);
    if (draw_chance(20)) o->guess = (dpcr_guess)draw_below(DPCR_GUESS_GIVEN);
    tell(" | %s %s back %s chunk %lld/%lld warm_up %lld window %lld sweeps %d guess %s", dpcr_method_name(o->method),
         dpcr_scheme_name(o->scheme), dpcr_scheme_name(o->backward), (long long)o->chunk, (long long)o->backward_chunk,
         (long long)o->warm_up, (long long)o->window, o->max_sweeps, dpcr_guess_name(o->guess));
}

static void draw_optimiser(dpcr_optimiser_options *o) {
    *o = (dpcr_optimiser_options){.size = sizeof *o, .kind = (dpcr_optimiser_kind)draw_between(1, 3)};
    o->rate = DRAW_OF(0.001, 0.01, 0.05);
    if (o->kind == DPCR_SGD && draw_chance(50)) o->momentum = 0.9;
    if (draw_chance(40)) o->weight_decay = 0.01;
    if (draw_chance(30)) o->warm_up = draw_below(3);
    if (draw_chance(50)) o->total = -1;
    tell(" | optimiser %d rate %g momentum %g decay %g warm-up %lld total %lld", (int)o->kind, o->rate, o->momentum,
         o->weight_decay, (long long)o->warm_up, (long long)o->total);
}

static void draw_job(job *j, bool sequence) {
    *j = (job){.sequence = sequence, .options = {.size = sizeof j->options}};
    if (sequence)
        draw_sequence_model(j);
    else
        draw_classifier(j);
    dpcr_train_options *o = &j->options.train;
    o->size = sizeof *o;
    o->epochs = draw_between(1, 3);
    o->seed = (uint64_t)draw_below(1000);
    o->checkpoint_seconds = draw_chance(10) ? 1e-9 : 1e9;
    if (draw_chance(40)) o->clip = DRAW_OF(1e-5, 0.1, 1);
    if (!j->options.segment) o->recompute = draw_chance(30);
    tell(" | batch %lld epochs %lld clip %g%s", (long long)o->batch, (long long)o->epochs, o->clip,
         o->recompute ? " recompute" : "");
    draw_solver(&o->solve, sequence ? MOST_STEPS : j->model.layers);
    draw_optimiser(&o->optimiser);
}

// ---- what has to hold ----

static void check_same(const job *j, const void *wanted, const learner *l, const char *what) {
    int64_t count = 0;
    const void *got = vector_of(l, &count);
    const int64_t at = differs(wanted, got, dtype_of(j), count);
    if (at >= 0)
        wrong("%s: parameter %lld is %.17g, wanted %.17g", what, (long long)at, number_at(dtype_of(j), got, at),
              number_at(dtype_of(j), wanted, at));
}

static void check_threads(job *j, const void *wanted, const dpcr_train_state *last) {
    dpcr_train_state state;
    dpcr_error error = {0};
    const int threads = (int)draw_between(2, 4);
    learner other = make_learner(j, draw_contexts[threads]);
    check_done(run(j, &other, &state, &error), &error, "with more threads");
    check_same(j, wanted, &other, "more threads");
    if (memcmp(&state.loss, &last->loss, sizeof state.loss) || state.accuracy != last->accuracy)
        wrong("more threads: loss %.17g, wanted %.17g", state.loss, last->loss);
    drop_learner(&other);
}

// Gone on with in a new model, as after a crash, on another number of threads, once or twice.
static void check_resume(job *j, const void *wanted, const dpcr_train_state *whole) {
    dpcr_train_options *o = &j->options.train;
    dpcr_train_state last = {0};
    remove(file);
    for (int attempt = 0; last.step < whole->steps; attempt++) {
        dpcr_error error = {0};
        learner l = make_learner(j, draw_contexts[draw_between(1, 4)]);
        o->save = file, o->resume = attempt ? file : NULL;
        j->stop = attempt < 2 && draw_chance(80) ? draw_between(last.step + 1, whole->steps) : 0;
        const dpcr_status status = run(j, &l, &last, &error);
        check_words(status, &error);
        const bool stops = j->stop && j->stop < whole->steps;
        if (status != (stops ? DPCR_ERROR_CANCELLED : DPCR_OK) || last.step != (j->stop ? j->stop : whole->steps))
            wrong("asked to stop after %lld of %lld, it has done %lld: %s", (long long)j->stop, (long long)whole->steps,
                  (long long)last.step, error.text);
        if (status == DPCR_OK) check_same(j, wanted, &l, "stopped and gone on with");
        stopped += stops;
        drop_learner(&l);
    }
    if (memcmp(&last.loss, &whole->loss, sizeof last.loss) || last.accuracy != whole->accuracy)
        wrong("stopped and gone on with: loss %.17g, wanted %.17g", last.loss, whole->loss);
    o->save = o->resume = NULL;
    j->stop = 0;
}

static double farthest(const double *a, const double *b, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        const double off = fabs(a[i] - b[i]) / fmax(1, fabs(b[i]));
        if (isnan(off)) return off;
        most = fmax(most, off);
    }
    return most;
}

// What this training by the loop makes of parameters that begin a little off, as solves to their tolerance are.
static double growth_of(job *j, const double *wanted) {
    dpcr_error error = {0};
    learner l = make_learner(j, draw_contexts[1]);
    int64_t count = 0;
    double *p = vector_of(&l, &count);
    for (int64_t i = 0; i < count; i++) p[i] *= 1 + 1e-11 * (double)(i % 7 - 3);
    check_done(run(j, &l, NULL, &error), &error, "by the loop, a little off");
    const double most = farthest(p, wanted, count);
    drop_learner(&l);
    return most;
}

// Where nothing makes much of small errors: doubles, no kinks (of two numbers what normalises leaves little but the
// sign of their difference), no rule that looks at a gradient's sign alone; at rates too high the loop itself does.
static void check_loop(job *j, const void *wanted) {
    const bool kinked = j->sequence
                            ? j->network.network.kind == DPCR_RNN_RELU
                            : j->model.activation == DPCR_ACT_RELU || (j->model.layer_norm && j->model.width == 2);
    if (dtype_of(j) != DPCR_F64 || kinked || j->options.train.optimiser.kind != DPCR_SGD) return;
    const dpcr_solve_options kept = j->options.train.solve;
    dpcr_error error = {0};
    learner l = make_learner(j, draw_contexts[1]);
    int64_t count = 0;
    j->options.train.solve =
        (dpcr_solve_options){.size = sizeof kept, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    check_done(run(j, &l, NULL, &error), &error, "by the loop");
    const double *b = vector_of(&l, &count), off = farthest(wanted, b, count);
    const double grown = off <= 1e-6 ? 0 : growth_of(j, b);
    if (!(off <= fmax(1e-6, 100 * grown)))
        wrong("a parameter is off by %.3g from the loop's; beginning 3e-11 off by %.3g", off, grown);
    j->options.train.solve = kept;
    compared++;
    drop_learner(&l);
}

// p - q is the gradient of all data's loss at p after one step of rate 1: against differences of the loss.
static void check_slope(job *j) {
    const bool kinked = j->sequence ? j->network.network.kind == DPCR_RNN_RELU : j->model.activation == DPCR_ACT_RELU;
    if (dtype_of(j) != DPCR_F64 || kinked || j->options.dropout > 0 || j->network.readout == DPCR_READOUT_EACH) return;
    dpcr_train_options *o = &j->options.train;
    const dpcr_train_options kept = *o;
    dpcr_error error = {0};
    learner l = make_learner(j, draw_contexts[2]), fresh = make_learner(j, draw_contexts[2]);
    int64_t count = 0;
    double *at = vector_of(&fresh, &count);
    const double *after = vector_of(&l, &count);
    o->batch = j->sequence ? j->sequences.count : j->images.count, o->epochs = 1, o->clip = 0;
    o->optimiser = (dpcr_optimiser_options){.size = sizeof o->optimiser, .kind = DPCR_SGD, .rate = 1};
    check_done(run(j, &l, NULL, &error), &error, "one step");
    if (!j->sequence) {  // pixels are normalised as they were
        dpcr_model_set_metadata(fresh.model, "pixel_mean", dpcr_model_metadata(l.model, "pixel_mean"), NULL);
        dpcr_model_set_metadata(fresh.model, "pixel_deviation", dpcr_model_metadata(l.model, "pixel_deviation"), NULL);
    }
    for (int s = 0; s < SAMPLES; s++) {
        const int64_t i = draw_below(count);
        const double h = 1e-5, before = at[i], gradient = before - after[i];
        if (!j->sequence && j->model.tie) break;  // a parameter has copies
        at[i] = before + h;
        const double above = loss_of(j, &fresh);
        at[i] = before - h;
        const double slope = (above - loss_of(j, &fresh)) / (2 * h);
        at[i] = before;
        if (!(fabs(gradient - slope) <= 1e-6 * fmax(1, fabs(slope))))
            wrong("parameter %lld goes down by %.12g, the loss's slope is %.12g", (long long)i, gradient, slope);
        slopes++;
    }
    *o = kept;
    drop_learner(&fresh);
    drop_learner(&l);
}

static void draw_training(bool sequence) {
    job *j = &drawn_job;
    draw_job(j, sequence);
    dpcr_train_state last = {0};
    dpcr_error error = {0};
    int64_t count = 0;
    learner l = make_learner(j, draw_contexts[1]);
    void *before = copy_of(j, &l, &count);
    const dpcr_status status = run(j, &l, &last, &error);
    check_words(status, &error);
    if (status != DPCR_OK) {
        if (status != DPCR_ERROR_UNSUPPORTED && status != DPCR_ERROR_ARGUMENT && status != DPCR_ERROR_MEMORY)
            wrong("status %d: %s", (int)status, error.text);
        if (last.step <= 1) check_same(j, before, &l, "refused");
        refused += last.step == 0, diverged += last.step > 0;
        free(before);
        drop_learner(&l);
        return;
    }
    void *wanted = copy_of(j, &l, &count);
    drop_learner(&l);
    trained++;
    by_method[last.method]++;
    check_threads(j, wanted, &last);
    check_resume(j, wanted, &last);
    check_loop(j, wanted);
    if (draw_chance(50)) check_slope(j);
    free(before), free(wanted);
}

static void draw_images(void) { draw_training(false); }
static void draw_sequences(void) { draw_training(true); }

static void tell_counts(void) {
    print_message("%d trained, %d refused, %d diverged, %d stopped, %d by the loop too, %d slopes; methods", trained,
                  refused, diverged, stopped, compared, slopes);
    for (int m = 0; m < DPCR_METHOD_COUNT; m++) print_message(" %s %d", dpcr_method_name((dpcr_method)m), by_method[m]);
    print_message("\n");
}

static void classifiers(void **state) {
    (void)state;
    run_draws("classifiers", 80, draw_images);
    tell_counts();
}

static void sequence_models(void **state) {
    (void)state;
    run_draws("sequence models", 80, draw_sequences);
    tell_counts();
}

static int open_all(void **state) {
    const char *const in_memory = "/dev/shm";  // where syncing takes no time
    snprintf(folder, sizeof folder, "%s/deeppcr-random-XXXXXX", access(in_memory, W_OK) == 0 ? in_memory : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/run.safetensors", folder);
    return draw_open_contexts(state);
}

static int close_all(void **state) {
    remove(file);
    rmdir(folder);
    return draw_close_contexts(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classifiers),
        cmocka_unit_test(sequence_models),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
