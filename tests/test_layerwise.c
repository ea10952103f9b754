// SPDX-License-Identifier: MIT
// Layer-wise asynchronous training: by its clock it equals, bit for bit, one loop over minibatches that shares nothing
// with it but the layers, fed with what a machine of ticks sees that is run here tick by tick.
#include <pthread.h>

#include "deeppcr/workers.h"
#include "pipelining.h"
#include "train/batches.h"
#include "workers/network.h"

enum { MOST_UPDATES = 40, MOST_GROUPS = 12 };

static small_data data;
static rows_set set;

static dpcr_layerwise_options layerwise_options(int64_t forwards, int64_t backwards) {
    return (dpcr_layerwise_options){
        .size = sizeof(dpcr_layerwise_options), .forwards = forwards, .backwards = backwards};
}

// ---- a machine of ticks ----

typedef struct machine {
    int64_t updates[MOST_GROUPS];
    int64_t forward[MOST_UPDATES][MOST_GROUPS], input[MOST_UPDATES][MOST_GROUPS];  // updates seen
} machine;

typedef struct hand {
    int64_t t, at;  // minibatch, and ticks of it done; next minibatch when at < 0
    bool busy;
} hand;

static void run_machine(machine *m, int64_t minibatches, int64_t groups, int64_t forwards, int64_t backwards,
                        int64_t ahead) {
    hand f[8] = {{0}}, b[8] = {{0}};
    int64_t begun = 0, back_begun = 0, forward_done[MOST_UPDATES] = {0}, back_done[MOST_UPDATES] = {0}, ended = 0;
    memset(m, 0, sizeof *m);
    for (int64_t k = 0; k < forwards; k++) f[k].t = k;
    for (int64_t k = 0; k < backwards; k++) b[k].t = k;
    while (ended < minibatches) {
        for (int64_t tried = 0; tried < forwards; tried++) {  // whose turn it is may begin, then the next
            hand *h = &f[begun % forwards];
            if (begun >= minibatches || h->busy || h->t != begun) break;
            if (begun >= ahead && !back_done[begun - ahead]) break;
            *h = (hand){.t = begun++, .busy = true};
        }
        for (int64_t tried = 0; tried < backwards; tried++) {
            hand *h = &b[back_begun % backwards];
            if (back_begun >= minibatches || h->busy || h->t != back_begun || !forward_done[back_begun]) break;
            *h = (hand){.t = back_begun++, .busy = true};
        }
        int64_t updated[MOST_GROUPS] = {0};
        for (int64_t k = 0; k < forwards; k++)
            if (f[k].busy) m->forward[f[k].t][f[k].at] = m->updates[f[k].at];
        for (int64_t k = 0; k < backwards; k++) {
            const int64_t g = groups - 1 - b[k].at / 2;
            if (!b[k].busy) continue;
            if (b[k].at % 2 == 0)
                m->input[b[k].t][g] = m->updates[g];
            else
                updated[g]++;
        }
        for (int64_t g = 0; g < groups; g++) m->updates[g] += updated[g];
        for (int64_t k = 0; k < forwards; k++) {
            if (!f[k].busy || ++f[k].at < groups) continue;
            forward_done[f[k].t] = 1;
            f[k] = (hand){.t = f[k].t + forwards};
        }
        for (int64_t k = 0; k < backwards; k++) {
            if (!b[k].busy || ++b[k].at < 2 * groups) continue;
            back_done[b[k].t] = 1;
            ended++;
            b[k] = (hand){.t = b[k].t + backwards};
        }
    }
}

// ---- the loop ----

typedef struct loop {
    dpcr_context *context;
    dpcr_model *model;
    const int64_t *group_of;
    int64_t count, groups, loss_rows, correct;
    size_t bytes;
    dpcr_optimiser *optimisers[MOST_GROUPS];
    double loss, stale, gap;
    int64_t stalest;
} loop;

static void run_segment(loop *l, const machine *m, int64_t first_row, int64_t updates, int64_t batch) {
    char *vector = dpcr_model_vector(l->model, NULL), *gradient = dpcr_model_gradient_vector(l->model);
    char *versions[MOST_UPDATES + 1], *behind = malloc(l->bytes), *scratch = malloc(l->bytes);
    versions[0] = malloc(l->bytes);
    memcpy(versions[0], vector, l->bytes);
    for (int64_t t = 0; t < updates; t++) {
        const int64_t from = first_row + t * batch, rows = set.rows - from < batch ? set.rows - from : batch;
        dpcr_model_zero_gradients(l->model);
        for (int64_t g = 0; g < l->groups; g++) {
            take_stage(l->group_of, g, l->count, l->bytes, versions[m->forward[t][g]], vector);
            take_stage(l->group_of, g, l->count, l->bytes, versions[m->input[t][g]], behind);
            l->stale += (double)(t - m->forward[t][g]);
            l->gap += (double)(m->input[t][g] - m->forward[t][g]);
            if (t - m->forward[t][g] > l->stalest) l->stalest = t - m->forward[t][g];
        }
        double loss = 0;
        add_gradients(l->context, l->model, &set, from, rows, rows, behind, &loss, &l->correct);
        l->loss += loss / (double)rows * (double)rows;
        versions[t + 1] = malloc(l->bytes);
        for (int64_t g = 0; g < l->groups; g++) {
            memcpy(scratch, versions[t], l->bytes);
            must(dpcr_optimiser_step(l->optimisers[g], scratch, gradient, error));
            take_stage(l->group_of, g, l->count, l->bytes, scratch, versions[t + 1]);
        }
    }
    memcpy(vector, versions[updates], l->bytes);
    for (int64_t t = 0; t <= updates; t++) free(versions[t]);
    free(behind);
    free(scratch);
}

static void fill_epoch(dpcr_context *context, const dpcr_dataset *from, uint64_t seed, int64_t epoch,
                       dpcr_dtype dtype) {
    int64_t order[96];
    const dpcri_data_figures figures = dpcri_data_measure(context, from);
    const dpcri_normaliser normaliser = dpcri_normaliser_make(dtype, figures.mean, figures.deviation);
    set.dtype = dtype;
    set.rows = from->count;
    set.inputs = PIXELS;
    dpcri_shuffle(seed, epoch, from->count, order);
    dpcri_gather(context, from, order, 0, from->count, &normaliser,
                 dtype == DPCR_F64 ? (void *)set.x64 : (void *)set.x32, set.labels);
}

// Trains by the machine and the loop; the state of the last epoch in *l.
static void emulate(loop *l, const dpcr_dataset *from, const dpcr_train_options *o,
                    const dpcr_layerwise_options *layerwise, int64_t groups) {
    int64_t *first = NULL;
    const dpcr_dtype dtype = dpcr_model_get_options(l->model)->dtype;
    l->bytes = vector_bytes(l->model);
    l->count = (int64_t)(l->bytes / dpcr_dtype_size(dtype));
    l->groups = groups;
    must(dpcri_groups_cut(l->context, l->model, &l->groups, &first, error));
    int64_t *group_of = stages_of_numbers(l->model, first, l->groups);
    l->group_of = group_of;
    const int64_t batches = (from->count - 1) / o->batch + 1;
    for (int64_t g = 0; g < l->groups; g++) {
        dpcr_optimiser_options each = o->optimiser;
        each.total = batches * o->epochs;
        must(dpcr_optimiser_create(l->context, &each, dtype, l->count, &l->optimisers[g], error));
    }
    static machine m;
    for (int64_t epoch = 0; epoch < o->epochs; epoch++) {
        l->loss = 0;
        l->correct = 0;
        fill_epoch(l->context, from, o->seed, epoch, dtype);
        for (int64_t t = 0; t < batches;) {
            const int64_t left = batches - t, n = layerwise->segment < left ? layerwise->segment : left;
            run_machine(&m, n, l->groups, layerwise->forwards, layerwise->backwards,
                        layerwise->ahead ? layerwise->ahead : layerwise->forwards + layerwise->backwards);
            run_segment(l, &m, t * o->batch, n, o->batch);
            t += n;
        }
    }
    for (int64_t g = 0; g < l->groups; g++) dpcr_optimiser_destroy(l->optimisers[g]);
    free(group_of);
    // Our context has the system's allocator.
    free(first);
}

static void by_the_clock_it_equals_one_loop(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const struct {
        int64_t forwards, backwards, ahead, groups, segment, layers;
        dpcr_dtype dtype;
    } cases[] = {{1, 1, 0, 8, 40, 6, DPCR_F32}, {1, 2, 0, 5, 40, 6, DPCR_F32}, {2, 1, 0, 3, 7, 6, DPCR_F64},
                 {3, 2, 9, 8, 11, 6, DPCR_F32}, {1, 3, 4, 1, 40, 2, DPCR_F64}, {1, 1, 1, 4, 40, 3, DPCR_F32},
                 {2, 4, 3, 7, 6, 5, DPCR_F32}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const dpcr_model_options o = resnet_options(cases[k].layers, 6, cases[k].dtype);
        const dpcr_dataset *from = make_data(&data, 90, 1);
        const dpcr_train_options options = train_options(2, 4);
        dpcr_layerwise_options layerwise = layerwise_options(cases[k].forwards, cases[k].backwards);
        layerwise.ahead = cases[k].ahead;
        layerwise.groups = cases[k].groups;
        layerwise.segment = cases[k].segment;
        dpcr_model *model = make_model(context, &o), *wanted = make_model(context, &o);
        dpcr_train_state last;
        dpcr_workers_figures figures = {.size = sizeof figures};
        must(dpcr_train_layerwise(context, model, from, &options, &layerwise, &last, &figures, error));
        loop l = {.context = context, .model = wanted};
        emulate(&l, from, &options, &layerwise, cases[k].groups);
        if (memcmp(dpcr_model_vector(model, NULL), dpcr_model_vector(wanted, NULL), l.bytes))
            fail_msg("case %d: another network", (int)k);
        assert_true(last.loss == l.loss / 90 && last.accuracy == (double)l.correct / 90 && last.step == 46);
        const double cells = 46.0 * (double)l.groups;
        assert_true(figures.updates == 46 && figures.groups == l.groups && figures.stalest == l.stalest);
        assert_true(fabs(figures.staleness - l.stale / cells) < 1e-12 && fabs(figures.gap - l.gap / cells) < 1e-12);
        if (cases[k].ahead == 1) assert_true(l.stalest == 0);  // one after the other is plain training
        dpcr_model_destroy(model);
        dpcr_model_destroy(wanted);
    }
    dpcr_context_destroy(context);
}

// Steps that read their weights for the weight gradient too, while other threads go back: run often, for what one
// thread would see of another's update hangs on how they take turns.
static void steps_of_every_form_are_read_by_the_clock(void **state) {
    (void)state;
    enum { RUNS = 40 };
    dpcr_context *context = make_context(1);
    const dpcr_dataset *from = make_data(&data, 90, 1);
    const dpcr_train_options options = train_options(2, 3);
    dpcr_layerwise_options layerwise = layerwise_options(2, 3);
    layerwise.groups = 4;
    layerwise.segment = 30;
    for (int k = 0; k < 3; k++) {
        dpcr_model_options o = resnet_options(2, 5, k == 1 ? DPCR_F64 : DPCR_F32);
        o.layer_norm = k != 1;
        o.branch = k ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR;
        dpcr_model *wanted = make_model(context, &o);
        loop l = {.context = context, .model = wanted};
        emulate(&l, from, &options, &layerwise, layerwise.groups);
        for (int run = 0; run < RUNS; run++) {
            dpcr_model *model = make_model(context, &o);
            must(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, error));
            if (memcmp(dpcr_model_vector(model, NULL), dpcr_model_vector(wanted, NULL), l.bytes))
                fail_msg("case %d, run %d: another network", k, run);
            dpcr_model_destroy(model);
        }
        dpcr_model_destroy(wanted);
    }
    dpcr_context_destroy(context);
}

static void a_run_goes_on_from_its_checkpoint(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *from = make_data(&data, 90, 1);
    dpcr_train_options options = train_options(3, 8);
    const folder f = make_folder();
    dpcr_layerwise_options layerwise = layerwise_options(1, 2);
    layerwise.segment = 5;
    dpcr_model *whole = make_model(context, &o), *model = make_model(context, &o);
    dpcr_error told = {0};
    dpcr_train_state last;
    must(dpcr_train_layerwise(context, whole, from, &options, &layerwise, NULL, NULL, error));
    options.save = f.file;
    options.progress = stop_at;
    static const int64_t stops[] = {4, 12, 20, 1000}, ends[] = {5, 12, 22, 36};
    for (int k = 0; k < 4; k++) {
        stopper stop = {.at = stops[k]};
        options.progress_user = &stop;
        const dpcr_status status = dpcr_train_layerwise(context, model, from, &options, &layerwise, &last, NULL, &told);
        assert_int_equal(status, k == 3 ? DPCR_OK : DPCR_ERROR_CANCELLED);
        assert_int_equal(last.step, ends[k]);
        options.resume = f.file;
        if (k) continue;
        options.progress = note_but;
        assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                         DPCR_ERROR_CANCELLED);
        assert_told(&told, 10, 36, f.file, 5);
        options.progress = stop_at;
    }
    assert_memory_equal(dpcr_model_vector(model, NULL), dpcr_model_vector(whole, NULL), vector_bytes(whole));
    must(dpcr_train_layerwise(context, model, from, &options, &layerwise, &last, NULL, error));  // complete already
    dpcr_model_destroy(model);
    dpcr_model_destroy(whole);
    remove_folder(&f);
    dpcr_context_destroy(context);
}

static void a_batch_larger_than_the_data_is_all_of_it(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *from = make_data(&data, 60, 1);
    static const int64_t batches[] = {60, 61, INT64_C(1) << 40, (INT64_C(1) << 61) + 1, INT64_MAX};
    dpcr_model *models[5];
    for (int k = 0; k < 5; k++) {
        const dpcr_train_options options = train_options(3, batches[k]);
        const dpcr_layerwise_options layerwise = layerwise_options(1, 2);
        models[k] = make_model(context, &o);
        must(dpcr_train_layerwise(context, models[k], from, &options, &layerwise, NULL, NULL, error));
        assert_memory_equal(dpcr_model_vector(models[k], NULL), dpcr_model_vector(models[0], NULL),
                            vector_bytes(models[0]));
    }
    for (int k = 0; k < 5; k++) dpcr_model_destroy(models[k]);
    dpcr_context_destroy(context);
}

static void running_free_it_learns(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(6, 12, DPCR_F32);
    const dpcr_dataset *from = make_data(&data, 400, 1);
    for (int free_running = 0; free_running < 2; free_running++) {
        const dpcr_train_options options = train_options(6, 16);
        dpcr_layerwise_options layerwise = layerwise_options(2, 2);
        dpcr_workers_figures figures = {.size = sizeof figures};
        double loss, accuracy;
        layerwise.free_running = free_running;
        dpcr_model *model = make_model(context, &o);
        must(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, &figures, error));
        must(dpcr_evaluate(context, model, from, 64, NULL, &loss, &accuracy, NULL, error));
        // Running free, how threads take turns is part of what is learned.
        if (accuracy < (free_running ? 0.6 : 0.9)) fail_msg("accuracy %g", accuracy);
        assert_int_equal(figures.updates, 150);
        // By the clock never more than are under way; running free a slow thread may be overtaken again and again.
        assert_true(figures.staleness >= 0 && figures.stalest <= (free_running ? 150 : 4));
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

static void faults_and_refusals_are_told(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *from = make_data(&data, 90, 1);
    dpcr_model *model = make_model(context, &o);
    dpcr_train_options options = train_options(1, 8);
    dpcr_layerwise_options layerwise = layerwise_options(2, 2);
    dpcr_error told = {0};
    options.save = "/nowhere/run.safetensors";
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_IO);
    options = train_options(1, 8);
    options.optimiser.rate = 1e38;
    options.optimiser.warm_up = 0;
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(told.text, "wanted a finite number"));
    options = train_options(1, 8);
    layerwise.ahead = -1;
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(told.text, "-1 ahead"));
    layerwise = layerwise_options(1, 1);
    options.clip = 1;
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(told.text, "clip is 1"));
    options.clip = 0;
    dpcr_model_options tied = o;
    tied.tie = 2;
    dpcr_model *other = make_model(context, &tied);
    layerwise = layerwise_options(1, 1);
    assert_int_equal(dpcr_train_layerwise(context, other, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(told.text, "weights are tied"));
    dpcr_model_destroy(other);
    layerwise = layerwise_options(5000, 1);
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_ARGUMENT);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

// Stacks larger than the addresses there are: no thread can be made. The one that is there does not wait for it.
static void a_thread_that_cannot_be_made_ends_all_at_once(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_model_options o = resnet_options(4, 8, DPCR_F32);
    const dpcr_dataset *from = make_data(&data, 90, 1);
    dpcr_model *model = make_model(context, &o);
    const dpcr_train_options options = train_options(1, 8);
    dpcr_layerwise_options layerwise = layerwise_options(1, 1);
    dpcr_error told = {0};
    pthread_attr_t before, vast;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_getattr_default_np(&vast), 0);
    assert_int_equal(pthread_attr_setstacksize(&vast, (size_t)1 << 60), 0);
    assert_int_equal(pthread_setattr_default_np(&vast), 0);
    layerwise.deadline = 30;
    const double began = dpcri_seconds();
    assert_int_equal(dpcr_train_layerwise(context, model, from, &options, &layerwise, NULL, NULL, &told),
                     DPCR_ERROR_SYSTEM);
    assert_true(dpcri_seconds() - began < layerwise.deadline / 2);
    assert_string_equal(told.text, "the system gave no thread for rank 1");
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&vast);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_the_clock_it_equals_one_loop),
        cmocka_unit_test(steps_of_every_form_are_read_by_the_clock),
        cmocka_unit_test(a_run_goes_on_from_its_checkpoint),
        cmocka_unit_test(a_batch_larger_than_the_data_is_all_of_it),
        cmocka_unit_test(running_free_it_learns),
        cmocka_unit_test(faults_and_refusals_are_told),
        cmocka_unit_test(a_thread_that_cannot_be_made_ends_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
