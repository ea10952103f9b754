// SPDX-License-Identifier: MIT
// The training loop where everything lies on a device (device_pass.h): data, order, parameters, gradients and the
// optimiser's state. A step's passes are put into the stream whole; the host waits for the loss and how many rows were
// right, which say whether the update follows, and brings parameters and state home for a checkpoint and at an epoch's
// end. Work and order are train.c's, so a run is as reproducible, and the loss curve is the host's as far as the
// kernels' bits are.
#include "train/device_train.h"

#include "kern/device.h"
#include "model/model_internal.h"
#include "rt/rt.h"
#include "train/device_pass.h"

typedef struct there {
    dpcri_ledger *ledger;
    dpcri_device_pass pass;
    void *first, *second;  // the optimiser's state, or NULL where the kind has none
    void *sums;            // what clipping adds up, or NULL
    int64_t epoch;         // whose order is there; -1: none
    int64_t home;          // the step whose parameters the host has
    int size;              // of the batch that ran last
    double seconds;        // of all steps
    int threads;           // that the loop would try its steps with
} there;

// ---- setting up ----

// Of a checkpoint's choices the method and how it is cut; schemes are the host's.
static dpcr_status choose(const there *t, dpcr_solve_options solve[DPCRI_SIZES], const int64_t rows[DPCRI_SIZES],
                          dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_ledger *l = t->ledger;
    for (int size = 0; size < DPCRI_SIZES; size++) {
        dpcr_solve_options saved = solve[size] = l->options.solve;
        if (!l->options.resume || rows[size] == 0 || dpcr_model_get_options(l->model)->layers == 0) continue;
        DPCR_TRY(dpcri_saved_choices(&l->from, size, &saved, error));
        solve[size].method = saved.method;
        solve[size].chunk = saved.chunk;
        solve[size].warm_up = saved.warm_up;
        solve[size].max_sweeps = saved.max_sweeps;
    }
done:
    return status;
}

// With the checkpoint's choices; where the caller left the method open and the device does not serve a processor's,
// with its own.
static dpcr_status make_pass(there *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_ledger *l = t->ledger;
    dpcr_solve_options solve[DPCRI_SIZES];
    const dpcr_solve_options own[DPCRI_SIZES] = {l->options.solve, l->options.solve};
    dpcr_error refused = {0};
    int64_t rows[DPCRI_SIZES];
    const dpcri_normaliser normaliser =
        dpcri_normaliser_make(dpcr_model_get_options(l->model)->dtype, l->mean, l->deviation);
    dpcri_pass_rows(l->data->count, l->options.batch, rows);
    DPCR_TRY(choose(t, solve, rows, error));
    const bool open = l->options.resume && l->options.solve.method == DPCR_METHOD_AUTO;
    status = dpcri_device_pass_create(&t->pass, "train", l->context, l->model, l->data, &normaliser, rows, solve, true,
                                      l->options.recompute != 0, open ? &refused : error);
    if (status == DPCR_OK || !open) goto done;
    if (status != DPCR_ERROR_UNSUPPORTED && status != DPCR_ERROR_ARGUMENT) {
        if (error) *error = refused;
        goto done;
    }
    dpcri_device_pass_destroy(&t->pass);
    status = dpcri_device_pass_create(&t->pass, "train", l->context, l->model, l->data, &normaliser, rows, own, true,
                                      l->options.recompute != 0, error);
done:
    return status;
}

static dpcr_status take_state(there *t, bool wanted, void **place, dpcr_error *error) {
    const size_t element = dpcr_dtype_size(t->pass.options->dtype);
    if (!wanted) return DPCR_OK;
    return dpcri_device_pass_take(&t->pass, "the optimiser's state", t->pass.count, 1, 1, element, NULL, place, error);
}

// Parameters and the optimiser's state, there and on the host.
enum { VECTORS = 3 };

static void vectors_of(const there *t, void *device[VECTORS], void *host[VECTORS]) {
    const dpcri_ledger *l = t->ledger;
    device[0] = t->pass.parameters, device[1] = t->first, device[2] = t->second;
    host[0] = dpcr_model_vector(l->model, NULL), host[1] = l->optimiser->first, host[2] = l->optimiser->second;
}

static dpcr_status move(const there *t, void *const to[VECTORS], void *const from[VECTORS], dpcri_direction direction,
                        dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_device_pass *p = &t->pass;
    const size_t bytes = (size_t)p->count * dpcr_dtype_size(p->options->dtype);
    for (int i = 0; i < VECTORS; i++)
        if (to[i]) DPCR_TRY(p->table->copy(p->device.id, to[i], from[i], bytes, direction, p->stream, error));
    DPCR_TRY(dpcr_stream_wait(p->device, p->stream, error));
done:
    return status;
}

// What can be refused comes before the model changes; the parameters that a checkpoint brings follow.
static dpcr_status set_up(there *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_ledger *l = t->ledger;
    const dpcr_optimiser_options *o = &l->options.optimiser;
    void *device[VECTORS], *host[VECTORS];
    DPCR_TRY(dpcri_ledger_read(l, error));
    DPCR_TRY(make_pass(t, error));
    for (int size = 0; size < DPCRI_SIZES; size++) {
        dpcr_solve_plan *plan = t->pass.plans[size];
        dpcri_choices_add(&l->fixed, size, plan);
        if (l->options.resume && plan) dpcri_saved_tell(&l->options.solve, true, plan->sentence, sizeof plan->sentence);
    }
    DPCR_TRY(take_state(t, o->kind != DPCR_SGD || o->momentum != 0, &t->first, error));
    DPCR_TRY(take_state(t, o->kind != DPCR_SGD, &t->second, error));
    if (l->options.clip > 0)
        DPCR_TRY(dpcri_device_pass_take(&t->pass, "clipping", 1 + 2 * DPCRI_CLIP_BLOCKS, 1, 1, sizeof(double), NULL,
                                        &t->sums, error));
    DPCR_TRY(dpcri_ledger_take(l, error));
    vectors_of(t, device, host);
    DPCR_TRY(move(t, device, host, DPCRI_TO_DEVICE, error));
    t->epoch = -1;
    t->home = l->position.step;
done:
    return status;
}

// ---- steps ----

// Parameters and the optimiser's state of the last step, for the host.
static dpcr_status bring_home(there *t, dpcr_error *error) {
    dpcr_status status;
    void *device[VECTORS], *host[VECTORS];
    if (t->home == t->ledger->position.step) return DPCR_OK;
    vectors_of(t, device, host);
    DPCR_TRY(move(t, host, device, DPCRI_TO_HOST, error));
    t->home = t->ledger->position.step;
done:
    return status;
}

// The norm counts tied steps once; their copies follow, twice as many each time.
static dpcr_status clip(const there *t, const dpcr_array *gradients, dpcr_error *error) {
    dpcr_status status;
    const dpcri_device_pass *p = &t->pass;
    const dpcr_model_options *o = p->options;
    dpcr_array own[2];
    dpcri_model_own(p->model, gradients->data, own);
    const dpcri_device_clip c = {.dtype = gradients->dtype,
                                 .count = own[0].shape[0],
                                 .gradients = own[0].data,
                                 .most = t->ledger->options.clip,
                                 .sums = t->sums,
                                 .more_count = own[1].shape[0],
                                 .more = own[1].data};
    const size_t each = (size_t)p->model->program.parameters * dpcr_dtype_size(gradients->dtype);
    DPCR_TRY(p->kernels->clip(p->device.id, &c, p->stream, error));
    for (int64_t done = o->tie; o->tie && done < o->layers;) {
        const int64_t more = o->layers - done < done ? o->layers - done : done;
        DPCR_TRY(p->table->copy(p->device.id, (char *)gradients->data + (size_t)done * each, gradients->data,
                                (size_t)more * each, DPCRI_ON_DEVICE, p->stream, error));
        done += more;
    }
done:
    return status;
}

static dpcr_status update(there *t, dpcr_error *error) {
    dpcr_status status;
    const dpcri_device_pass *p = &t->pass;
    const dpcr_array parameters = dpcri_device_pass_vector(p, p->parameters),
                     gradients = dpcri_device_pass_vector(p, p->gradients),
                     first = dpcri_device_pass_vector(p, t->first), second = dpcri_device_pass_vector(p, t->second);
    DPCR_TRY(dpcr_model_tie_gradients_enqueue(p->model, &gradients, p->stream, error));
    if (t->sums) DPCR_TRY(clip(t, &gradients, error));
    status = dpcr_optimiser_enqueue(t->ledger->optimiser, &parameters, &gradients, t->first ? &first : NULL,
                                    t->second ? &second : NULL, 1, p->stream, error);
done:
    return status;
}

static dpcr_status one_step(void *run, dpcr_error *error) {
    dpcr_status status;
    there *t = run;
    dpcri_ledger *l = t->ledger;
    const dpcri_position *at = &l->position;
    const int64_t batch = l->options.batch;
    double loss = 0, mark = dpcri_seconds();
    int64_t correct = 0;
    t->size = at->batch < l->data->count / batch ? 0 : 1;
    if (t->epoch != at->epoch) DPCR_TRY(dpcri_device_pass_shuffle(&t->pass, l->options.seed, at->epoch, error));
    t->epoch = at->epoch;
    DPCR_TRY(dpcri_device_pass_run(&t->pass, t->size, at->batch * batch, true, true, error));
    DPCR_TRY(dpcri_device_pass_read(&t->pass, &loss, &correct, error));
    status = dpcri_ledger_judge(l, &t->pass.report, loss, error);
    if (status != DPCR_OK) {
        (void)bring_home(t, NULL);  // as the step before left them
        goto done;
    }
    DPCR_TRY(update(t, error));
    DPCR_TRY(dpcri_ledger_note(l, loss, correct, 1, t->pass.rows[t->size], error));
    dpcri_phase_end(&t->seconds, &mark);
    if (at->batch == l->batches) DPCR_TRY(bring_home(t, error));  // who is told of the epoch's end may test
done:
    return status;
}

// ---- what the caller sees ----

static void describe(there *t) {
    dpcri_ledger_describe_solve(t->ledger, t->pass.plans[t->size], &t->pass.report);
    t->ledger->state.backward_reason = 0;
    t->ledger->state.phases.forward = t->seconds;
}

static int64_t report_step(void *run) {
    there *t = run;
    describe(t);
    return dpcri_ledger_report(t->ledger);
}

static dpcr_status save(void *run, dpcr_error *error) {
    there *t = run;
    const dpcr_status status = bring_home(t, error);
    return status == DPCR_OK ? dpcri_ledger_write(t->ledger, error) : status;
}

static dpcr_status check(void *run, dpcr_error *error) {
    there *t = run;
    const dpcr_status status = bring_home(t, error);
    return status == DPCR_OK ? dpcri_ledger_check(t->ledger, error) : status;
}

static void begin_epoch(void *run, bool first) {
    (void)run;
    (void)first;  // its first step shuffles
}

dpcr_status dpcri_train_on_device(dpcri_ledger *l, dpcr_train_state *last, dpcr_error *error) {
    dpcr_status status;
    there t = {.ledger = l};
    DPCR_TRY(set_up(&t, error));
    status = dpcri_loop_run(&(dpcri_loop){&t, l->context, &l->options, &l->position, &t.threads, l->batches,
                                          l->state.steps, begin_epoch, one_step, report_step, save, check},
                            error);
    describe(&t);
    l->state.sentence = NULL;  // its plan goes now
    if (last) *last = l->state;
done:
    dpcri_device_pass_destroy(&t.pass);
    return status;
}
