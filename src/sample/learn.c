// SPDX-License-Identifier: MIT
// The training loop of nets. A run is a function of (model, data, options): order, times and noise follow from the seed
// and the step, sums have a fixed order. A checkpoint is the model with its averaged weights, which sampling uses, and
// beside them what a resumed run needs to end with the same bits: the weights, the optimiser's means, the step.
//
//   average_t = average_{t-1} + (1 - d_t) (weights - average_{t-1}),   d_t = min(decay, (1 + t) / (10 + t))
#include "sample/learn.h"

#include <math.h>
#include <string.h>

#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/optimiser.h"

typedef struct learning {
    const dpcri_subject *subject;
    dpcri_net *net;
    const dpcr_dataset *data;
    dpcr_learn_options options;
    dpcr_optimiser *optimiser;
    float *average;  // [parameters]
    int64_t *order;  // [count]
    int64_t batches;
    uint64_t hash;  // of the data
    double loss, began, saved;
    int64_t begun;  // the step that this call began at
    dpcr_learn_state state;
} learning;

dpcr_status dpcri_learn_check(const dpcr_dataset *data, const dpcr_learn_options *options, int64_t rows, int64_t cols,
                              int64_t pixels, dpcr_error *error) {
    if (options->size < sizeof *options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: options.size is %zu, wanted %zu", options->size,
                          sizeof *options);
    if (data->count < 1 || data->rows != rows || data->cols != cols || dpcr_dataset_pixels(data) != pixels)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "learn: %lld pictures of %lld x %lld, %lld numbers, wanted some of %lld x %lld, %lld",
                          (long long)data->count, (long long)data->rows, (long long)data->cols,
                          (long long)dpcr_dataset_pixels(data), (long long)rows, (long long)cols, (long long)pixels);
    if (data->images && data->labels) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: the data set's images or labels are NULL, wanted both");
}

static dpcr_status check_options(learning *l, const dpcr_learn_options *given, dpcr_error *error) {
    dpcr_learn_options *o = &l->options;
    const int64_t count = l->data->count;
    *o = *given;
    if (o->average == 0) o->average = 0.999;
    if (o->checkpoint_seconds == 0) o->checkpoint_seconds = 30;
    if (o->epochs < 1 || o->epochs > UINT32_MAX || o->batch < 1 || o->batch > count)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "learn: %lld epochs of batches of %lld from %lld pictures, wanted 1 or more of 1 to all",
                          (long long)o->epochs, (long long)o->batch, (long long)count);
    if (!(o->average > 0 && o->average < 1) || !(o->drop >= 0 && o->drop <= 1) || !(o->weight >= 0) ||
        !(o->checkpoint_seconds > 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "learn: average %g, drop %g, weight %g, checkpoint_seconds %g; wanted 0 < average < 1, "
                          "0 <= drop <= 1, the others not negative",
                          o->average, o->drop, o->weight, o->checkpoint_seconds);
    l->batches = count / o->batch;
    if (!dpcri_mul(l->batches, o->epochs, &l->state.steps))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "learn: %lld epochs of %lld batches do not fit",
                          (long long)o->epochs, (long long)l->batches);
    if (o->optimiser.total == -1) o->optimiser.total = l->state.steps;
    return DPCR_OK;
}

// ---- checkpoints ----

#define DENORMALS "deeppcr.learn.denormals"

static dpcr_status put_position(learning *l, dpcri_bundle *b, dpcr_error *error) {
    dpcr_status status;
    const dpcr_optimiser_options *o = &l->optimiser->options;
    const char *const denormals = dpcri_denormals();
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.step", l->state.step, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.batch", l->options.batch, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.seed", (int64_t)l->options.seed, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.data", (int64_t)l->hash, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.optimiser", (int64_t)o->kind, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.total", o->total, error));
    DPCR_TRY(dpcri_bundle_int(b, "deeppcr.learn.warm_up", o->warm_up, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.rate", o->rate, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.decay", o->weight_decay, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.momentum", o->momentum, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.beta1", o->beta1, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.beta2", o->beta2, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.epsilon", o->epsilon, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.average", l->options.average, error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.drop", dpcri_learn_drop(&l->options), error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.weight", dpcri_learn_weight(&l->options), error));
    DPCR_TRY(dpcri_bundle_real(b, "deeppcr.learn.loss", l->loss, error));
    if (denormals) DPCR_TRY(dpcri_bundle_text(b, DENORMALS, denormals, error));
    if (l->subject->convolutions)
        DPCR_TRY(dpcri_bundle_text(b, DPCRI_LEARN_CONVOLUTIONS, l->subject->convolutions, error));
done:
    return status;
}

// What a resumed run would refuse must not take the place of a checkpoint that it would not.
static dpcr_status refuse_not_finite(const learning *l, const float *values, dpcr_error *error) {
    const float *const all[] = {values, l->average, l->optimiser->first, l->optimiser->second};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && dpcri_first_not_finite(DPCR_F32, all[i], l->net->parameters) >= 0)
            return dpcri_fail(
                error, DPCR_ERROR_ARGUMENT,
                "learn: after step %lld the weights are not finite at rate %g; no checkpoint is written, a "
                "lower rate may help",
                (long long)l->state.step, dpcr_optimiser_rate(l->optimiser, l->state.step));
    return DPCR_OK;
}

// values: what the next step would start from.
static dpcr_status save_values(learning *l, const float *values, bool ended, dpcr_error *error) {
    dpcr_status status;
    dpcri_bundle b = {0};
    const int64_t count = l->net->parameters;
    DPCR_TRY(refuse_not_finite(l, values, error));
    if (!l->options.save) goto done;
    DPCR_TRY(dpcri_bundle_create(&b, l->net->context, error));
    DPCR_TRY(dpcri_bundle_text(&b, "deeppcr.kind", l->subject->kind, error));
    DPCR_TRY(l->subject->put(l->subject->user, l->average, &b, error));
    DPCR_TRY(put_position(l, &b, error));
    if (ended) DPCR_TRY(dpcri_bundle_int(&b, "deeppcr.learn.ended", 1, error));
    DPCR_TRY(dpcri_bundle_array(&b, "learn.values", DPCR_F32, count, values, error));
    if (l->optimiser->first)
        DPCR_TRY(dpcri_bundle_array(&b, "learn.first", DPCR_F32, count, l->optimiser->first, error));
    if (l->optimiser->second)
        DPCR_TRY(dpcri_bundle_array(&b, "learn.second", DPCR_F32, count, l->optimiser->second, error));
    DPCR_TRY(dpcr_safetensors_write_summed(l->options.save, &b.tensors, error));
done:
    dpcri_bundle_destroy(&b);
    l->saved = dpcri_seconds();
    return status;
}

static dpcr_status save(learning *l, dpcr_error *error) { return save_values(l, l->net->values, false, error); }

static bool read_array(const dpcr_tensors *tensors, const char *name, int64_t count, void *to) {
    const dpcr_tensor *t = to ? dpcri_bundle_find(tensors, name, count) : NULL;
    bool good = !to || t;
    for (int64_t i = 0; t && i < count && good; i++) good = isfinite(((const float *)t->array.data)[i]);
    if (t && good) memcpy(to, t->array.data, (size_t)count * sizeof(float));
    return good;
}

static int64_t numbers_of(const dpcr_array *a) {
    int64_t n = 1;
    for (int32_t d = 0; d < a->ndim; d++) n *= a->shape[d];
    return n;
}

// A denoiser of codes goes on with the auto-encoder that it began with.
static dpcr_status same_autoencoder(const learning *l, const dpcr_tensors *mine, const dpcr_tensors *saved,
                                    dpcr_error *error) {
    for (int64_t i = 0; strcmp(l->subject->kind, "denoiser") == 0 && i < mine->count; i++) {
        const dpcr_tensor *own = &mine->items[i], *got = dpcr_tensors_find(saved, own->name);
        const bool part =
            !strncmp(own->name, "encoder.", 8) || !strncmp(own->name, "decoder.", 8) || !strncmp(own->name, "code.", 5);
        if (!part) continue;
        const int64_t n = numbers_of(&own->array);
        const bool same = got && got->array.dtype == DPCR_F32 && numbers_of(&got->array) == n &&
                          memcmp(got->array.data, own->array.data, (size_t)n * sizeof(float)) == 0;
        if (!same)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "learn: resume from %s: its auto-encoder is another one ('%s')", l->options.resume,
                              own->name);
    }
    return DPCR_OK;
}

// Every string that this run would write stands in the file alike, the position and the loss apart; where training had
// ended, also how many steps it was to have: it goes on to this run's.
static dpcr_status agrees(learning *l, const dpcr_tensors *tensors, dpcr_error *error) {
    dpcr_status status;
    dpcri_bundle mine = {0};
    const bool ended = dpcr_tensors_metadata(tensors, "deeppcr.learn.ended") != NULL;
    DPCR_TRY(dpcri_bundle_create(&mine, l->net->context, error));
    DPCR_TRY(dpcri_bundle_text(&mine, "deeppcr.kind", l->subject->kind, error));
    DPCR_TRY(l->subject->put(l->subject->user, NULL, &mine, error));
    DPCR_TRY(put_position(l, &mine, error));
    for (int64_t i = 0; i < mine.tensors.metadata_count; i++) {
        const char *key = mine.tensors.metadata_keys[i], *wanted = mine.tensors.metadata_values[i];
        const char *got = dpcr_tensors_metadata(tensors, key);
        if (!strcmp(key, "deeppcr.learn.step") || !strcmp(key, "deeppcr.learn.loss")) continue;
        if (!strcmp(key, DPCRI_LEARN_CONVOLUTIONS)) continue;  // the subject's choice
        if (!got && !strcmp(key, DENORMALS)) continue;         // older checkpoints do not tell
        if (ended && (!strcmp(key, "deeppcr.learn.total") || !strcmp(key, "deeppcr.learn.warm_up"))) continue;
        if (got && !strcmp(got, wanted)) continue;
        DPCR_TRY(dpcri_fail(error, got ? DPCR_ERROR_ARGUMENT : DPCR_ERROR_FORMAT,
                            "learn: resume from %s: '%s' is %.40s there and %.40s here", l->options.resume, key,
                            got ? got : "missing", wanted));
    }
    DPCR_TRY(same_autoencoder(l, &mine.tensors, tensors, error));
done:
    dpcri_bundle_destroy(&mine);
    return status;
}

// A damaged file leaves the net's numbers as they were.
static dpcr_status resume(learning *l, dpcr_error *error) {
    dpcr_status status;
    dpcr_tensors read = {0}, *const file = l->subject->resumed ? l->subject->resumed : &read;
    const char *path = l->options.resume;
    const int64_t count = l->net->parameters;
    const size_t bytes = (size_t)count * sizeof(float);
    float *values = dpcri_alloc(l->net->context, bytes);
    if (!values) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for the weights"));
    if (file == &read) DPCR_TRY(dpcri_bundle_read(l->net->context, path, file, error));
    if (!dpcr_tensors_find(file, "learn.values"))
        DPCR_TRY(dpcri_fail(
            error, DPCR_ERROR_FORMAT,
            "learn: resume from %s: nothing to go on from: a model without its training, or no checkpoint", path));
    DPCR_TRY(agrees(l, file, error));
    DPCR_TRY(dpcri_bundle_get_int(file, path, "deeppcr.learn.step", 0, l->state.steps, &l->state.step, error));
    DPCR_TRY(dpcri_bundle_get_real(file, path, "deeppcr.learn.loss", &l->loss, error));
    if (!read_array(file, "learn.values", count, values) ||
        !read_array(file, "learn.first", count, l->optimiser->first) ||
        !read_array(file, "learn.second", count, l->optimiser->second))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT,
                            "%s: no checkpoint: learn.values, learn.first or learn.second is missing or damaged",
                            path));
    status = dpcri_net_read(l->net, file, path, error);  // the averaged ones
    if (status == DPCR_OK)
        memcpy(l->average, l->net->values, bytes);
    else
        memcpy(values, l->average, bytes);  // the net's own, of which a part is gone
    memcpy(l->net->values, values, bytes);
    dpcri_net_pack(l->net);
    l->optimiser->step = l->state.step;
done:
    dpcri_free(l->net->context, values);
    dpcr_tensors_free(l->net->context, file);
    return status;
}

// ---- steps ----

enum { AVERAGE_BLOCK = 1 << 14 };

typedef struct average_job {
    float *average;
    const float *values;
    int64_t count;
    float pull;
} average_job;

static void average_block(void *argument, int64_t block) {
    const average_job *j = argument;
    const int64_t first = block * AVERAGE_BLOCK,
                  end = first + AVERAGE_BLOCK < j->count ? first + AVERAGE_BLOCK : j->count;
    for (int64_t i = first; i < end; i++) j->average[i] += j->pull * (j->values[i] - j->average[i]);
}

static void update_average(learning *l) {
    const double t = (double)l->state.step, decay = fmin(l->options.average, (1 + t) / (10 + t));
    average_job job = {l->average, l->net->values, l->net->parameters, (float)(1 - decay)};
    dpcri_parallel(l->net->context, (job.count + AVERAGE_BLOCK - 1) / AVERAGE_BLOCK, average_block, &job);
}

static dpcr_status one_step(learning *l, dpcr_error *error) {
    const int64_t within = l->state.step % l->batches;
    const dpcri_batch batch = {l->state.step, l->options.batch, l->order + within * l->options.batch};
    double loss = 0;
    const dpcr_status status = l->subject->gradients(l->subject->user, &batch, &loss, error);
    if (status != DPCR_OK) return status;
    if (!isfinite(loss))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "learn: the loss of step %lld is not finite at rate %g; a lower rate may help",
                          (long long)l->state.step + 1, dpcr_optimiser_rate(l->optimiser, l->state.step + 1));
    dpcri_optimiser_update(l->optimiser, l->net->values, l->net->gradients, false);
    dpcri_net_pack(l->net);
    l->state.step++;
    update_average(l);
    l->loss = within ? l->loss + loss : loss;
    return DPCR_OK;
}

static void describe(learning *l) {
    dpcr_learn_state *s = &l->state;
    const int64_t done = s->step ? (s->step - 1) % l->batches + 1 : 0;
    s->epochs = l->options.epochs;
    s->epoch = s->step ? (s->step - 1) / l->batches + 1 : 1;
    s->epoch_ended = done == l->batches;
    s->loss = done ? l->loss / (double)done : 0;
    s->seconds = dpcri_seconds() - l->began;
    const double steps = (double)(s->step - l->begun);
    s->convolutions = l->subject->convolutions;
    s->images_per_second = s->seconds > 0 ? steps * (double)l->options.batch / s->seconds : 0;
    s->seconds_left = steps > 0 ? s->seconds / steps * (double)(s->steps - s->step) : 0;
}

static dpcr_status run(learning *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_learn_options *o = &l->options;
    const bool there = o->save && o->resume && !strcmp(o->save, o->resume);
    if (!there) DPCR_TRY(save(l, error));
    l->saved = dpcri_seconds();
    for (int64_t epoch = -1; l->state.step < l->state.steps;) {
        if (epoch != l->state.step / l->batches) {
            epoch = l->state.step / l->batches;
            dpcri_shuffle(o->seed, epoch, l->data->count, l->order);
        }
        DPCR_TRY(one_step(l, error));
        describe(l);
        const bool stop = dpcri_cancelled(l->net->context) || (o->progress && o->progress(o->progress_user, &l->state));
        if (stop || l->state.epoch_ended || dpcri_seconds() - l->saved >= o->checkpoint_seconds)
            DPCR_TRY(save(l, error));
        if (stop && l->state.step < l->state.steps)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_CANCELLED, "learn: stopped as asked after step %lld of %lld%s%s",
                                (long long)l->state.step, (long long)l->state.steps,
                                o->save ? "; to go on, resume from " : "", o->save ? o->save : ""));
    }
done:
    return status;
}

dpcr_status dpcri_learn(const dpcri_subject *subject, const dpcr_dataset *data, const dpcr_learn_options *options,
                        dpcr_learn_state *last, dpcr_error *error) {
    dpcr_status status;
    dpcri_net *net = subject->net;
    learning l = {.subject = subject, .net = net, .data = data, .began = dpcri_seconds()};
    const size_t bytes = (size_t)net->parameters * sizeof(float);
    float *values = NULL;
    DPCR_TRY(check_options(&l, options, error));
    dpcr_optimiser_options optimiser = l.options.optimiser;
    optimiser.size = sizeof optimiser;
    DPCR_TRY(dpcri_optimiser_create(net->context, &optimiser, DPCR_F32, net->parameters, &l.optimiser, error));
    l.average = dpcri_alloc(net->context, bytes);
    l.order = dpcri_alloc(net->context, (size_t)data->count * sizeof *l.order);
    if (!l.average || !l.order)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for the averaged weights"));
    l.hash = dpcri_data_measure(net->context, data).hash;
    memcpy(l.average, net->values, bytes);
    if (l.options.resume) DPCR_TRY(resume(&l, error));
    l.begun = l.state.step;
    status = run(&l, error);
    describe(&l);
    if (last) *last = l.state;
    if (status != DPCR_OK) goto done;
    values = dpcri_alloc(net->context, bytes);
    if (!values) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for the weights"));
    memcpy(values, net->values, bytes);
    memcpy(net->values, l.average, bytes);
    dpcri_net_pack(net);
    if (subject->finish) subject->finish(subject->user);
    DPCR_TRY(save_values(&l, values, true, error));
done:
    dpcr_optimiser_destroy(l.optimiser);
    dpcri_free(net->context, values);
    dpcri_free(net->context, l.average);
    dpcri_free(net->context, l.order);
    return status;
}
