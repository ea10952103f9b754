// SPDX-License-Identifier: MIT
// The training loop of sequence models, over labelled sequences or one text. As in train.c a run is a function of
// (model, data, options, plan); a text's run carries states from one update to the next, so its checkpoints hold them.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/recurrent_internal.h"
#include "rt/rt.h"
#include "solve/solve_internal.h"
#include "train/ledger.h"
#include "train/sequence_device.h"

typedef struct training {
    dpcr_context *context;
    dpcr_sequence *model;
    const dpcr_sequence_data *data;
    dpcr_sequence_train_options options;  // every default filled in
    dpcri_sequence_pass pass;
    dpcri_sequence_device there;  // in its place, where the options name a device
    bool on_device;
    int64_t home;       // on a device: the step whose parameters the host has
    int64_t epoch;      // and whose order is there; -1: none
    int64_t step_rows;  // of a batch's logits
    void *h, *c;        // a text's carried states here, or NULL: the pass's, or of a device their copies
    size_t h_bytes, c_bytes;
    dpcr_optimiser *network, *ends;
    int64_t network_count;
    dpcri_strings fixed;
    dpcri_position position;
    int64_t batches, stream;  // an epoch's; of a text: symbols a stream
    int64_t *order;           // labelled sequences: the epoch's permutation
    double began;
    int64_t rows;  // of this call
    dpcr_train_state state;
} training;

// ---- checks ----

static dpcr_status count_batches(training *t, dpcr_error *error) {
    const dpcr_train_options *o = &t->options.train;
    if (t->data->text) {
        t->stream = t->data->count > 0 ? (t->data->count - 1) / o->batch : 0;
        t->batches = t->stream / t->options.length;
        if (t->batches < 1)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "sequence_train: the text is too short: %lld symbols are less than batch times length, "
                              "%lld x %lld, and one",
                              (long long)t->data->count, (long long)o->batch, (long long)t->options.length);
    } else {
        t->batches = t->data->count / o->batch;
        if (t->batches < 1)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "sequence_train: %lld sequences are less than one batch of %lld",
                              (long long)t->data->count, (long long)o->batch);
    }
    if (!dpcri_mul(t->batches, o->epochs, &t->state.steps))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "sequence_train: %lld epochs of %lld batches do not fit",
                          (long long)o->epochs, (long long)t->batches);
    return DPCR_OK;
}

static dpcr_status fill_options(training *t, const dpcr_sequence_train_options *given, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (given->size < sizeof *given)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sequence_train: options.size is %zu, wanted sizeof(dpcr_sequence_train_options)",
                          given->size);
    t->options = *given;
    dpcr_train_options *o = &t->options.train;
    o->solve.size = sizeof o->solve;
    o->optimiser.size = sizeof o->optimiser;
    if (o->epochs < 1 || o->epochs > UINT32_MAX || o->batch < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_train: epochs %lld, batch %lld; wanted 1 or more each",
                          (long long)o->epochs, (long long)o->batch);
    if (t->data->text && t->options.length < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_train: length is %lld, wanted 1 or more",
                          (long long)t->options.length);
    if (!(o->clip >= 0) || isinf(o->clip) || !(t->options.dropout >= 0 && t->options.dropout < 1) ||
        !(o->checkpoint_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sequence_train: clip %g, dropout %g, checkpoint_seconds %g; wanted none negative, clip "
                          "finite and dropout below 1",
                          o->clip, t->options.dropout, o->checkpoint_seconds);
    const dpcr_recurrent_options *n = &t->model->options.network;
    if (t->options.segment < 0 || (t->options.segment && (t->data->text || n->bidirectional || n->reverse ||
                                                          t->model->options.readout != DPCR_READOUT_LAST ||
                                                          t->options.dropout > 0 || t->options.train.recompute)))
        return dpcri_fail(
            error, DPCR_ERROR_ARGUMENT,
            "sequence_train: segment is %lld: wanted 0 or more, and segments want labelled sequences, the "
            "readout last, one direction forward, no dropout and no recompute beside",
            (long long)t->options.segment);
    if (o->solve.guess == DPCR_GUESS_GIVEN)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "sequence_train: guess is given, wanted any other guess");
    if (o->checkpoint_seconds == 0) o->checkpoint_seconds = 10;
    DPCR_TRY(count_batches(t, error));
    if (o->optimiser.total == -1) o->optimiser.total = t->state.steps;
    const dpcr_optimiser_options as_given = o->optimiser;
    DPCR_TRY(dpcri_optimiser_options_fill(&as_given, &o->optimiser, error));
done:
    return status;
}

// ---- batches ----

static void gather_text(training *t) {
    const int64_t T = t->options.length, B = t->options.train.batch;
    for (int64_t b = 0; b < B; b++) {
        const uint8_t *from = t->data->text + b * t->stream + t->position.batch * T;
        for (int64_t s = 0; s < T; s++) {
            t->pass.symbols[s * B + b] = from[s];
            t->pass.labels[s * B + b] = from[s + 1];
        }
    }
}

static dpcr_status gather_batch(training *t, dpcr_error *error) {
    if (!t->data->text)
        return dpcri_sequence_gather("sequence_train", &t->pass, t->data, t->order,
                                     t->position.batch * t->options.train.batch, error);
    gather_text(t);
    return DPCR_OK;
}

// A text's states: zero at the beginning of an epoch, else where the last update left them.
static void begin_states(training *t) {
    if (!t->data->text) return;
    memset(t->h, 0, t->h_bytes);
    if (t->c) memset(t->c, 0, t->c_bytes);
}

static void carry_states(training *t) {
    if (!t->data->text) return;
    memcpy(t->h, t->pass.ht, t->h_bytes);
    if (t->c) memcpy(t->c, t->pass.ct, t->c_bytes);
}

// ---- setting up ----

// A text's symbols by FNV-1a, from where the caller's hash of what they stand for leads it.
static uint64_t hash_of(const dpcr_sequence_data *data) {
    uint64_t hash = UINT64_C(1469598103934665603) ^ data->hash;
    if (!data->text) return data->hash;
    for (int64_t i = 0; i < data->count; i++) hash = (hash ^ data->text[i]) * UINT64_C(1099511628211);
    return hash;
}

// What a run must agree in: data, network, options.
static void add_agreement(training *t) {
    const dpcr_sequence_options *o = &t->model->options;
    const dpcr_recurrent_options *n = &o->network;
    dpcri_strings *s = &t->fixed;
    dpcri_strings_add(s, "data.count", "%" PRId64, t->data->count);
    dpcri_strings_add(s, "data.hash", "%016" PRIx64, hash_of(t->data));
    dpcri_strings_add(s, "network.kind", "%s", dpcr_recurrent_kind_name(n->kind));
    dpcri_strings_add(s, "network.inputs", "%" PRId64, n->inputs);
    dpcri_strings_add(s, "network.hidden", "%" PRId64, n->hidden);
    dpcri_strings_add(s, "network.layers", "%" PRId64, n->layers);
    dpcri_strings_add(s, "network.projection", "%" PRId64, n->projection);
    dpcri_strings_add(s, "network.directions", "%" PRId64, t->model->directions);
    dpcri_strings_add(s, "network.dtype", "%s", dpcr_dtype_name(n->dtype));
    dpcri_strings_add(s, "symbols", "%" PRId64, o->symbols);
    dpcri_strings_add(s, "outputs", "%" PRId64, o->outputs);
    dpcri_strings_add(s, "readout", "%s", dpcr_readout_name(o->readout));
    dpcri_strings_add(s, "length", "%" PRId64, t->data->text ? t->options.length : t->data->longest);
    dpcri_strings_add_number(s, "dropout", t->options.dropout);
    if (t->options.segment) dpcri_strings_add(s, "segment", "%" PRId64, t->options.segment);
    dpcri_agreement_add_options(s, &t->options.train);
}

// A run without segments keeps no word of them.
static dpcr_status refuse_segments(const training *t, const dpcri_saved *saved, dpcr_error *error) {
    const char *segment = dpcr_tensors_metadata(&saved->tensors, DPCRI_TRAIN_PREFIX "segment");
    if (!segment || t->options.segment) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "sequence_train: resume from %s: segment is 0, wanted %.40s, the checkpoint's", saved->path,
                      segment);
}

static dpcri_sequence_shape shape_of(const training *t) {
    const bool text = t->data->text != NULL;
    return (dpcri_sequence_shape){.length = text ? t->options.length : t->data->longest,
                                  .batch = t->options.train.batch,
                                  .training = true,
                                  .packed = !text && !t->data->same_length,
                                  .dropout = t->options.dropout,
                                  .recompute = t->options.train.recompute,
                                  .segment = t->options.segment};
}

static dpcr_status create_there(training *t, const dpcr_solve_options *solve, dpcr_error *error) {
    const dpcri_sequence_shape shape = shape_of(t);
    return dpcri_sequence_device_create(&t->there, "sequence_train", t->model, t->data, &shape, t->stream, solve,
                                        error);
}

// With the checkpoint's choices; where the caller left the method open and the device does not serve a processor's,
// with its own.
static dpcr_status plan_there(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    dpcr_solve_options kept = t->options.train.solve, solve = kept;
    dpcr_error refused = {0};
    if (!saved) return create_there(t, &solve, error);
    DPCR_TRY(dpcri_saved_choices(saved, 0, &kept, error));
    solve.method = kept.method, solve.max_sweeps = kept.max_sweeps;  // schemes are the host's
    solve.chunk = kept.chunk, solve.warm_up = kept.warm_up;
    const bool open = t->options.train.solve.method == DPCR_METHOD_AUTO;
    status = create_there(t, &solve, open ? &refused : error);
    if (status == DPCR_OK || !open) goto done;
    if (status != DPCR_ERROR_UNSUPPORTED && status != DPCR_ERROR_ARGUMENT) {
        if (error) *error = refused;
        goto done;
    }
    dpcri_sequence_device_destroy(&t->there);
    status = create_there(t, &t->options.train.solve, error);
done:
    return status;
}

static dpcr_status make_there(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    const dpcr_sequence *m = t->model;
    DPCR_TRY(plan_there(t, saved, error));
    t->there.seed = t->options.train.seed;
    dpcr_solve_options chosen = t->there.plan->options.solve;
    chosen.max_sweeps = t->there.plan->sweeps_back;  // as asked: the way back may be another method's
    dpcri_choices_add_options(&t->fixed, 0, &chosen);
    if (saved) dpcri_saved_tell(&t->options.train.solve, true, t->there.plan->sentence, sizeof t->there.plan->sentence);
    t->step_rows = t->there.rows;
    t->epoch = -1;
    if (!t->data->text) goto done;
    const int64_t rows = m->chains * t->there.shape.batch;
    t->h_bytes = (size_t)(rows * m->projected) * m->kernels->element;
    t->c_bytes = dpcri_sequence_cells(m) ? (size_t)(rows * m->options.network.hidden) * m->kernels->element : 0;
    t->h = dpcri_alloc_zero(t->context, t->h_bytes);
    if (t->c_bytes) t->c = dpcri_alloc_zero(t->context, t->c_bytes);
    if (!t->h || (t->c_bytes && !t->c))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_train: no memory for the states of %lld sequences",
                            (long long)t->there.shape.batch));
done:
    return status;
}

static dpcr_status make_pass(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    dpcr_solve_options solve = t->options.train.solve;
    const bool text = t->data->text != NULL;
    dpcri_sequence_shape shape = shape_of(t);
    if (shape.segment) DPCR_TRY(dpcri_sequence_round_segment(t->model, &shape, error));
    DPCR_TRY(dpcri_sequence_pass_create(&t->pass, t->model, &shape, error));
    t->pass.seed = t->options.train.seed;
    if (!text) dpcri_shuffle(t->options.train.seed, 0, t->data->count, t->order);
    DPCR_TRY(gather_batch(t, error));
    if (saved) DPCR_TRY(dpcri_saved_choices(saved, 0, &solve, error));
    DPCR_TRY(dpcri_sequence_pass_plan(&t->pass, &solve, error));
    dpcri_choices_add(&t->fixed, 0, dpcr_recurrent_plan_chain(t->pass.plan, 0));
    for (int64_t c = 0; saved && c < t->model->chains; c++) {
        dpcr_solve_plan *chain = t->pass.plan->chains[c];
        if (chain) dpcri_saved_tell(&t->options.train.solve, false, chain->sentence, sizeof chain->sentence);
    }
    t->step_rows = t->pass.rows;
    if (!text) goto done;
    t->h = t->pass.h0, t->c = t->pass.c0;
    t->h_bytes = t->pass.h_bytes, t->c_bytes = t->pass.c_bytes;
done:
    return status;
}

static dpcr_status make_optimisers(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    const dpcr_dtype dtype = dpcri_sequence_dtype(t->model);
    dpcr_recurrent_vector(t->model->network, &t->network_count);
    DPCR_TRY(
        dpcri_optimiser_create(t->context, &t->options.train.optimiser, dtype, t->network_count, &t->network, error));
    DPCR_TRY(dpcri_optimiser_create(t->context, &t->options.train.optimiser, dtype, t->model->count, &t->ends, error));
    if (!saved) goto done;
    DPCR_TRY(dpcri_saved_optimiser(saved, t->network, "optimiser.first", "optimiser.second", error));
    DPCR_TRY(dpcri_saved_optimiser(saved, t->ends, "optimiser.ends_first", "optimiser.ends_second", error));
done:
    return status;
}

static dpcr_status take_states(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_tensor *h = NULL, *c = NULL;
    const dpcr_dtype dtype = dpcri_sequence_dtype(t->model);
    const int64_t element = (int64_t)t->model->kernels->element;
    if (!t->data->text) return DPCR_OK;
    DPCR_TRY(dpcri_saved_numbers(saved, "carried.h", dtype, (int64_t)t->h_bytes / element, &h, error));
    if (t->c) DPCR_TRY(dpcri_saved_numbers(saved, "carried.c", dtype, (int64_t)t->c_bytes / element, &c, error));
    memcpy(t->h, h->array.data, t->h_bytes);
    if (c) memcpy(t->c, c->array.data, t->c_bytes);
done:
    return status;
}

static void clear_gradients(dpcr_sequence *m) {
    dpcr_recurrent_zero_gradients(m->network);
    memset(m->gradients, 0, (size_t)m->count * m->kernels->element);
}

// The parameters of the checkpoint, which has the same network.
static void take_parameters(training *t, const dpcr_sequence *from) {
    memcpy(dpcr_recurrent_vector(t->model->network, NULL), dpcr_recurrent_vector(from->network, NULL),
           (size_t)t->network_count * t->model->kernels->element);
    memcpy(t->model->parameters, from->parameters, (size_t)t->model->count * t->model->kernels->element);
}

// Everything that can be refused comes before the model's parameters change.
static dpcr_status set_up(training *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_saved read = {0}, *saved = NULL;
    dpcr_sequence *model = NULL;
    if (!t->data->text && !t->on_device) {
        bool overflow = false;
        const size_t bytes = dpcri_bytes(t->data->count, (int64_t)sizeof *t->order, 1, &overflow);
        t->order = overflow ? NULL : dpcri_alloc(t->context, bytes);
        if (!t->order)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_train: no memory for the order of %lld sequences",
                                (long long)t->data->count));
    }
    add_agreement(t);
    if (t->options.train.resume) {
        DPCR_TRY(dpcri_saved_open(&read, t->context, t->options.train.resume, error));
        DPCR_TRY(dpcri_sequence_of_tensors(t->context, &read.tensors, read.path, &model, error));
        // A device has one way back, of its own, in place of the loop's too.
        if (t->on_device)
            dpcri_saved_keep(&read, "solve.backward", dpcr_scheme_name(DPCR_SCHEME_SEQUENTIAL), &t->fixed);
        DPCR_TRY(dpcri_saved_strings_agree(&read, &t->fixed, error));
        DPCR_TRY(refuse_segments(t, &read, error));
        DPCR_TRY(dpcri_position_check("sequence_train", &read, t->options.train.epochs, t->batches, error));
        const dpcr_recurrent_options *a = &model->options.network, *b = &t->model->options.network;
        if (dpcr_sequence_parameter_count(model) != dpcr_sequence_parameter_count(t->model) ||
            a->reverse != b->reverse || a->reset_before != b->reset_before || a->input_forget != b->input_forget ||
            a->clip != b->clip)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_train: resume from %s: another network",
                                t->options.train.resume));
        saved = &read;
    }
    status = (t->on_device ? make_there : make_pass)(t, saved, error);
    if (status != DPCR_OK) goto done;
    DPCR_TRY(make_optimisers(t, saved, error));
    if (saved) DPCR_TRY(take_states(t, saved, error));
    if (t->on_device)
        DPCR_TRY(dpcri_sequence_device_keep(&t->there, t->network, t->ends, t->options.train.clip, error));
    clear_gradients(t->model);
    if (saved) {
        take_parameters(t, model);
        t->position = saved->position;
    }
    t->home = t->position.step;
    if (t->on_device) DPCR_TRY(dpcri_sequence_device_move(&t->there, DPCRI_TO_DEVICE, t->h, t->c, error));
done:
    dpcr_sequence_destroy(model);
    dpcri_saved_free(&read);
    return status;
}

// ---- the state that the caller sees ----

static void describe_there(training *t) {
    const dpcri_sequence_device *d = &t->there;
    t->state.sweeps = d->report.sweeps;
    t->state.method = d->report.method;
    t->state.reason = d->report.reason;
    t->state.backward = DPCR_SCHEME_AUTO;
    t->state.sentence = d->plan->sentence;
}

static void describe_solve(training *t) {
    dpcr_train_state *s = &t->state;
    const dpcr_solve_plan *plan = dpcr_recurrent_plan_chain(t->pass.plan, 0);
    s->sweeps = t->pass.reports[0].sweeps;
    s->method = t->pass.reports[0].method;
    dpcri_recurrent_worst(t->pass.reports, t->model->chains, &s->reason, NULL);
    s->backward = dpcr_solve_plan_backward(plan);
    s->sentence = dpcr_solve_plan_sentence(plan);
}

static int64_t rows_of_epoch(const training *t) { return t->batches * t->step_rows; }

static void describe_position(training *t) {
    dpcri_position_describe(&t->position, t->options.train.epochs, t->batches, rows_of_epoch(t), t->rows, t->began,
                            &t->state);
    t->state.phases = t->pass.phases;
}

// ---- steps ----

static dpcr_tensor state_tensor(const training *t, const char *name, void *data, size_t bytes) {
    const int64_t count = (int64_t)(bytes / t->model->kernels->element);
    return (dpcr_tensor){.name = (char *)(uintptr_t)name,
                         .array = dpcr_array_make(data, dpcri_sequence_dtype(t->model), 1, &count)};
}

static dpcr_status refuse_not_finite(const training *t, dpcr_error *error) {
    const dpcr_dtype dtype = dpcri_sequence_dtype(t->model);
    int64_t bad = dpcri_first_not_finite(dtype, dpcr_recurrent_vector(t->model->network, NULL), t->network_count);
    if (bad < 0) {
        bad = dpcri_first_not_finite(dtype, t->model->parameters, t->model->count);
        if (bad >= 0) bad += t->network_count;
    }
    return bad < 0 ? DPCR_OK : dpcri_refuse_not_finite(&t->position, bad, error);
}

// Parameters, the optimisers' state and carried states of the last step, of a device.
static dpcr_status bring_home(training *t, dpcr_error *error) {
    if (!t->on_device || t->home == t->position.step) return DPCR_OK;
    const dpcr_status status = dpcri_sequence_device_move(&t->there, DPCRI_TO_HOST, t->h, t->c, error);
    if (status == DPCR_OK) t->home = t->position.step;
    return status;
}

static dpcr_status check(void *run, dpcr_error *error) {
    training *t = run;
    const dpcr_status status = bring_home(t, error);
    return status == DPCR_OK ? refuse_not_finite(t, error) : status;
}

static dpcr_status save(void *run, dpcr_error *error) {
    dpcr_status status;
    training *t = run;
    double mark = dpcri_seconds();
    dpcri_checkpoint checkpoint;
    DPCR_TRY(check(t, error));
    if (!t->options.train.save) return DPCR_OK;
    dpcri_checkpoint_start(&checkpoint, &t->fixed, &t->position);
    dpcri_checkpoint_optimiser(&checkpoint, t->network, "optimiser.first", "optimiser.second");
    dpcri_checkpoint_optimiser(&checkpoint, t->ends, "optimiser.ends_first", "optimiser.ends_second");
    dpcr_tensors *extra = &checkpoint.extra;
    if (t->h) extra->items[extra->count++] = state_tensor(t, "carried.h", t->h, t->h_bytes);
    if (t->c) extra->items[extra->count++] = state_tensor(t, "carried.c", t->c, t->c_bytes);
    DPCR_TRY(dpcri_sequence_save_with(t->model, t->options.train.save, extra, error));
    dpcri_phase_end(&t->pass.phases.checkpoint, &mark);
done:
    return status;
}

static dpcr_status check_result(const training *t, double loss, dpcr_error *error) {
    const long long step = (long long)t->position.step + 1;
    if (t->state.reason == DPCR_REASON_NOT_CONVERGED)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "sequence_train: step %lld: %s did not converge, and no_fallback is set; allow the fallback "
                          "or more sweeps",
                          step, dpcr_method_name(t->state.method));
    if (isfinite(loss)) return DPCR_OK;
    return dpcri_position_refuse_loss("sequence_train", &t->position, step, loss, &t->options.train.optimiser, error);
}

static dpcr_status update(training *t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_sequence *m = t->model;
    double mark = dpcri_seconds();
    void *gradients = dpcr_recurrent_gradient_vector(m->network);
    const dpcr_dtype dtype = dpcri_sequence_dtype(m);
    const dpcr_array both[2] = {dpcr_array_make(gradients, dtype, 1, &t->network_count),
                                dpcr_array_make(m->gradients, dtype, 1, &m->count)};
    if (t->options.train.clip > 0)
        DPCR_TRY(dpcr_gradients_clip_norm(t->context, both, 2, t->options.train.clip, NULL, error));
    dpcri_optimiser_update(t->network, dpcr_recurrent_vector(m->network, NULL), gradients, true);
    dpcri_optimiser_update(t->ends, m->parameters, m->gradients, true);
    dpcri_phase_end(&t->pass.phases.update, &mark);
done:
    return status;
}

static void note(training *t, double loss, int64_t correct) {
    dpcri_position *p = &t->position;
    p->batch++;
    p->step++;
    p->rows += t->step_rows;
    p->correct += correct;
    p->loss += loss * (double)t->step_rows;
    t->rows += t->step_rows;
}

static dpcr_status one_step(void *run, dpcr_error *error) {
    dpcr_status status;
    training *t = run;
    double loss = 0, mark = dpcri_seconds();
    int64_t correct = 0;
    DPCR_TRY(gather_batch(t, error));
    t->pass.call = (uint64_t)t->position.step;
    dpcri_phase_end(&t->pass.phases.gather, &mark);
    DPCR_TRY(dpcri_sequence_forward(&t->pass, 0, true, &loss, &correct, error));
    describe_solve(t);
    DPCR_TRY(check_result(t, loss, error));
    DPCR_TRY(dpcri_sequence_backward(&t->pass, error));
    t->state.backward_reason = t->pass.back_reason;
    DPCR_TRY(update(t, error));
    carry_states(t);
    note(t, loss, correct);
done:
    return status;
}

static dpcr_status begin_there(training *t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_position *p = &t->position;
    if (t->epoch == p->epoch) return DPCR_OK;
    if (!t->data->text)
        DPCR_TRY(dpcri_sequence_device_shuffle(&t->there, t->options.train.seed, p->epoch, error));
    else if (p->batch == 0)
        DPCR_TRY(dpcri_sequence_device_begin(&t->there, error));
    t->epoch = p->epoch;
done:
    return status;
}

static dpcr_status one_step_there(void *run, dpcr_error *error) {
    dpcr_status status;
    training *t = run;
    const dpcri_position *p = &t->position;
    const int64_t each = t->data->text ? t->options.length : t->options.train.batch;
    double loss = 0, mark = dpcri_seconds();
    int64_t correct = 0;
    DPCR_TRY(begin_there(t, error));
    t->there.call = (uint64_t)p->step;
    DPCR_TRY(dpcri_sequence_device_run(&t->there, p->batch * each, 0, true, error));
    DPCR_TRY(dpcri_sequence_device_read(&t->there, &loss, &correct, error));
    describe_there(t);
    status = check_result(t, loss, error);
    if (status != DPCR_OK) {
        (void)bring_home(t, NULL);  // as the step before left them
        goto done;
    }
    DPCR_TRY(dpcri_sequence_device_update(&t->there, error));
    note(t, loss, correct);
    dpcri_phase_end(&t->pass.phases.forward, &mark);
    if (p->batch == t->batches) DPCR_TRY(bring_home(t, error));  // who is told of the epoch's end may test
done:
    return status;
}

static int64_t report_step(void *run) {
    training *t = run;
    const dpcr_train_options *o = &t->options.train;
    describe_position(t);
    const int answer = o->progress ? o->progress(o->progress_user, &t->state) : 0;
    return dpcri_heed(t->context, answer);
}

static void begin_epoch(void *run, bool first) {
    training *t = run;
    if (t->on_device) return;  // its first step begins it
    if (first) begin_states(t);
    if (t->order) dpcri_shuffle(t->options.train.seed, t->position.epoch, t->data->count, t->order);
}

dpcr_status dpcr_sequence_train(dpcr_context *context, dpcr_sequence *model, const dpcr_sequence_data *data,
                                const dpcr_sequence_train_options *options, dpcr_train_state *last, dpcr_error *error) {
    dpcr_status status;
    int untold = 0;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_train: context, model, data or options is NULL");
    training *t = dpcri_alloc_zero(context, sizeof *t);
    if (!t) return dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_train: no memory for the run's state");
    t->context = context;
    t->model = model;
    t->data = data;
    t->began = dpcri_seconds();
    DPCR_TRY(dpcri_sequence_check_data("sequence_train", model, data, error));
    DPCR_TRY(fill_options(t, options, error));
    t->on_device = dpcri_solve_on_device(&t->options.train.solve);
    DPCR_TRY(set_up(t, error));
    int *const threads = t->on_device ? &untold : &t->state.threads;
    status =
        dpcri_loop_run(&(dpcri_loop){t, context, &t->options.train, &t->position, threads, t->batches, t->state.steps,
                                     begin_epoch, t->on_device ? one_step_there : one_step, report_step, save, check},
                       error);
    if (status != DPCR_OK) clear_gradients(model);  // a step may have ended half way
    describe_position(t);
    t->state.sentence = NULL;  // its plan goes now
    if (last) *last = t->state;
done:
    dpcri_sequence_device_destroy(&t->there);  // waits for what was still on its way to the following
    dpcri_free(context, t->order);
    dpcr_optimiser_destroy(t->ends);
    dpcr_optimiser_destroy(t->network);
    if (t->on_device) {
        dpcri_free(context, t->h);
        dpcri_free(context, t->c);
    }
    dpcri_sequence_pass_destroy(&t->pass);
    dpcri_free(context, t);
    return status;
}
