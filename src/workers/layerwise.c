// SPDX-License-Identifier: MIT
// Layer-wise asynchronous updates (PD-ASGD: Fokam et al., arXiv 2410.05985) over one set of weights in memory:
//
//   forward thread   for its t, group 0 .. G - 1:   act_g = group_g(act_{g-1}; weights now)
//   backward thread  for its t, group G - 1 .. 0:   error_{g-1} = input gradient(error_g, act; weights now)
//                                                   weights_g -= step(weight gradient(error_g, act; the same))
//
// "Now" is what the clock says (clock.c): a thread waits until a group has seen so many updates, and an update until
// all have read what it replaces. Both go forward in the clock's ticks, so none waits for ever, and no weights are kept
// twice. Running free, a read-write lock a group is all. A failure, and the end of a segment, go by messages.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor_context.h"
#include "rt/comm/comm.h"
#include "rt/rt.h"
#include "workers/crew.h"
#include "workers/clock.h"
#include "workers/network.h"

enum { TAG_DONE, TAG_DECISION };
enum { DEFAULT_SEGMENT = 256, MOST_GROUPS = 16 };

typedef struct group_state {
    _Alignas(64) atomic_llong updates;  // of this segment
    atomic_llong forwards, backs;       // passes of this segment that have read the weights
    pthread_rwlock_t lock;              // running free
    dpcr_optimiser *optimiser;
} group_state;

typedef struct pending {  // minibatches t, t + ahead, ...
    dpcri_minibatch batch;
    atomic_llong forward, back;  // passes of this segment that have ended
    int32_t *seen;               // [groups] running free: updates that forward saw
} pending;

typedef struct layerwise {
    dpcri_ledger ledger;
    dpcr_layerwise_options options;  // every default filled in
    int64_t *first, groups, segment;
    dpcri_clock clock;  // of a whole segment; a shorter one is its beginning
    dpcri_lender lender;
    dpcri_network weights;  // the one set
    group_state *group;     // [groups]
    int64_t locks;          // made
    pending *slot;          // [ahead]
    double *loss;           // [segment] sums over rows
    int64_t *correct;       // [segment]
    int64_t *order;         // [count]
    atomic_llong updates, stale, stalest, gap;
    double waited;
} layerwise;

typedef struct thread {
    layerwise *l;
    dpcri_comm *comm;
    dpcr_context *context;
    dpcri_network network;  // computes with the one set of weights
    int64_t number;         // among its kind
    bool forward;
    double *losses;  // [batch]
} thread;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- waiting ----

static dpcr_status wait_until(thread *th, atomic_llong *counter, int64_t wanted, dpcr_error *error) {
    if (atomic_load_explicit(counter, memory_order_acquire) >= wanted) return DPCR_OK;
    const double began = dpcri_seconds();
    dpcri_patience patience = dpcri_patience_begin(th->comm->deadline);
    for (int64_t turn = 0; atomic_load_explicit(counter, memory_order_acquire) < wanted; turn++) {
        dpcri_wait(turn);
        if (turn % 64) continue;
        const dpcr_status status = dpcri_comm_heed(th->comm, error);
        if (status != DPCR_OK) return status;
        if (dpcri_patience_over(&patience))
            return dpcri_fail(error, DPCR_ERROR_SYSTEM, "thread %lld waited %g s for another, which did nothing",
                              (long long)th->comm->rank, th->comm->deadline);
    }
    if (th->comm->rank == 0) th->l->waited += dpcri_seconds() - began;
    return DPCR_OK;
}

// ---- passes ----

typedef struct piece {            // a segment
    int64_t from, updates, rows;  // row of the epoch's order; rows in all
} piece;

static int64_t rows_of(const layerwise *l, const piece *p, int64_t t) {
    const int64_t left = p->rows - t * l->ledger.options.batch;
    return left < l->ledger.options.batch ? left : l->ledger.options.batch;
}

static dpcr_status go_forward(thread *th, const piece *p, int64_t t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    layerwise *l = th->l;
    pending *slot = &l->slot[t % l->options.ahead];
    const int64_t rows = rows_of(l, p, t), turn = t / l->options.ahead;
    DPCR_TRY(wait_until(th, &slot->back, turn, error));  // what was there before is done with
    dpcri_minibatch_lay(&slot->batch, &th->network, rows);
    dpcri_gather(th->context, l->ledger.data, l->order, p->from + t * l->ledger.options.batch, rows,
                 &l->ledger.normaliser, dpcri_minibatch_input(&slot->batch, &th->network), slot->batch.labels);
    for (int64_t g = 0; g < l->groups; g++) {
        group_state *s = &l->group[g];
        if (l->options.free_running) {
            pthread_rwlock_rdlock(&s->lock);
            slot->seen[g] = (int32_t)atomic_load(&s->updates);
        } else {
            DPCR_TRY(wait_until(th, &s->updates, l->clock.forward[t * l->groups + g], error));
        }
        status = dpcri_network_forward(&th->network, &slot->batch, g, error);
        if (l->options.free_running) pthread_rwlock_unlock(&s->lock);
        if (status != DPCR_OK) goto done;
        atomic_fetch_add_explicit(&s->forwards, 1, memory_order_release);
    }
    l->correct[t] = 0;
    DPCR_TRY(dpcri_network_loss(&th->network, &slot->batch, rows, th->losses, &l->correct[t], error));
    l->loss[t] = 0;
    for (int64_t r = 0; r < rows; r++) l->loss[t] += th->losses[r];
    atomic_store_explicit(&slot->forward, turn + 1, memory_order_release);
done:
    return status;
}

static void count_staleness(layerwise *l, int64_t updates, int64_t forward, int64_t input) {
    const long long late = updates - forward;
    long long stalest = atomic_load(&l->stalest);
    atomic_fetch_add(&l->stale, late);
    atomic_fetch_add(&l->gap, input - forward);
    while (late > stalest && !atomic_compare_exchange_weak(&l->stalest, &stalest, late)) continue;
}

static void update(thread *th, int64_t g) {
    layerwise *l = th->l;
    dpcri_optimiser_update(l->group[g].optimiser, dpcri_network_parameters(&l->weights, g),
                           dpcri_network_gradients(&th->network, g), true);
}

// By the clock: in the order of minibatches, after all who read what it replaces.
static dpcr_status update_by_clock(thread *th, const piece *p, int64_t t, int64_t g, dpcr_error *error) {
    dpcr_status status;
    layerwise *l = th->l;
    group_state *s = &l->group[g];
    const int64_t at = t * l->groups + g;
    DPCR_TRY(wait_until(th, &s->updates, t, error));
    DPCR_TRY(wait_until(th, &s->forwards, smaller(l->clock.forwards_before[at], p->updates), error));
    DPCR_TRY(wait_until(th, &s->backs, smaller(l->clock.backs_before[at], p->updates), error));
    update(th, g);
    count_staleness(l, t, l->clock.forward[at], l->clock.input[at]);
    atomic_fetch_add_explicit(&s->updates, 1, memory_order_release);
done:
    return status;
}

static dpcr_status go_back(thread *th, const piece *p, int64_t t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    layerwise *l = th->l;
    pending *slot = &l->slot[t % l->options.ahead];
    const int64_t turn = t / l->options.ahead;
    DPCR_TRY(wait_until(th, &slot->forward, turn + 1, error));
    for (int64_t g = l->groups - 1; g >= 0; g--) {
        group_state *s = &l->group[g];
        const bool running_free = l->options.free_running;
        int64_t input = 0;
        if (running_free) {
            pthread_rwlock_rdlock(&s->lock);
            input = atomic_load(&s->updates);
        } else {
            DPCR_TRY(wait_until(th, &s->updates, l->clock.input[t * l->groups + g], error));
        }
        status = dpcri_network_input(&th->network, &slot->batch, g, error);
        // Two-layer and normalised steps read their weights for the weight gradient too: the same ones.
        if (status == DPCR_OK) status = dpcri_network_weight(&th->network, &slot->batch, g, error);
        if (running_free) pthread_rwlock_unlock(&s->lock);
        if (status != DPCR_OK) goto done;
        atomic_fetch_add_explicit(&s->backs, 1, memory_order_release);
        if (running_free) {
            pthread_rwlock_wrlock(&s->lock);
            update(th, g);
            count_staleness(l, atomic_fetch_add(&s->updates, 1), slot->seen[g], input);
            pthread_rwlock_unlock(&s->lock);
        } else {
            DPCR_TRY(update_by_clock(th, p, t, g, error));
        }
    }
    atomic_store_explicit(&slot->back, turn + 1, memory_order_release);
done:
    return status;
}

static dpcr_status run_piece(thread *th, const piece *p, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t each = th->forward ? th->l->options.forwards : th->l->options.backwards;
    for (int64_t t = th->number; t < p->updates; t += each)
        DPCR_TRY(th->forward ? go_forward(th, p, t, error) : go_back(th, p, t, error));
done:
    return status;
}

// ---- between segments: thread 0, when all others have ended theirs ----

static void hand_in(layerwise *l) {
    dpcr_model *model = l->ledger.model;
    const dpcr_optimiser *whole = l->ledger.optimiser;
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t first = l->first[g], end = l->first[g + 1];
        const dpcr_optimiser *own = l->group[g].optimiser;
        dpcri_units_put(model, first, end, dpcri_network_parameters(&l->weights, g), model->parameters);
        if (whole->first) dpcri_units_put(model, first, end, own->first, whole->first);
        if (whole->second) dpcri_units_put(model, first, end, own->second, whole->second);
    }
}

static const char *sentence_of(const layerwise *l) {
    return l->options.free_running ? "layers updated as gradients come, in no order that could be repeated"
                                   : "layers updated as gradients come, in the clock's order";
}

static void begin_segment(layerwise *l) {
    for (int64_t g = 0; g < l->groups; g++) {
        atomic_store(&l->group[g].updates, 0);
        atomic_store(&l->group[g].forwards, 0);
        atomic_store(&l->group[g].backs, 0);
    }
    for (int64_t k = 0; k < l->options.ahead; k++) {
        atomic_store(&l->slot[k].forward, 0);
        atomic_store(&l->slot[k].back, 0);
    }
}

static dpcr_status note(layerwise *l, const piece *p, int64_t t, dpcr_error *error) {
    const int64_t rows = rows_of(l, p, t);
    return dpcri_ledger_note(&l->ledger, l->loss[t] / (double)rows, l->correct[t], 1, rows, error);
}

static dpcr_status end_segment(layerwise *l, const piece *p, int64_t *decided, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_ledger *books = &l->ledger;
    for (int64_t t = 0; t < p->updates; t++) DPCR_TRY(note(l, p, t, error));
    atomic_fetch_add(&l->updates, p->updates);
    hand_in(l);
    *decided = dpcri_ledger_decide(books, sentence_of(l));
    if (*decided & DPCRI_SAVE) DPCR_TRY(dpcri_ledger_write(books, error));
    begin_segment(l);
    const bool ended = books->position.batch == books->batches && !dpcri_ledger_ended(books, &books->position);
    if (ended && !(*decided & DPCRI_STOP)) {
        books->position = (dpcri_position){.epoch = books->position.epoch + 1, .step = books->position.step};
        dpcri_shuffle(books->options.seed, books->position.epoch, books->data->count, l->order);
    }
done:
    return status;
}

// Nobody goes on before thread 0 has seen all end.
static dpcr_status agree(thread *th, const piece *p, int64_t *decided, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_comm *comm = th->comm;
    if (comm->rank) {
        DPCR_TRY(dpcri_send(comm, 0, TAG_DONE, NULL, 0, error));
        return dpcri_receive_decision(comm, TAG_DECISION, decided, sizeof *decided, error);
    }
    for (int64_t r = 1; r < comm->ranks; r++) DPCR_TRY(dpcri_receive(comm, r, TAG_DONE, NULL, 0, error));
    DPCR_TRY(end_segment(th->l, p, decided, error));
    for (int64_t r = 1; r < comm->ranks; r++)
        DPCR_TRY(dpcri_send(comm, r, TAG_DECISION, decided, sizeof *decided, error));
done:
    return status;
}

// ---- a thread ----

static dpcr_status make_thread(thread *th, dpcri_comm *comm, layerwise *l, dpcr_error *error) {
    dpcr_status status;
    const int64_t forwards = l->options.forwards;
    *th = (thread){.l = l,
                   .comm = comm,
                   .forward = comm->rank < forwards,
                   .number = comm->rank < forwards ? comm->rank : comm->rank - forwards};
    DPCR_TRY(dpcri_lender_context(&l->lender, &th->context, error));
    DPCR_TRY(dpcri_network_create(&th->network, th->context, l->ledger.model, l->first, l->groups, error));
    for (int64_t g = 0; g < l->groups; g++)
        dpcri_stage_use(&th->network.group[g], dpcri_network_parameters(&l->weights, g));
    const int64_t rows = smaller(l->ledger.options.batch, l->ledger.data->count);
    th->losses = dpcri_alloc(th->context, (size_t)rows * sizeof *th->losses);
    if (!th->losses) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a thread's losses"));
done:
    return status;
}

static void destroy_thread(thread *th) {
    if (!th->context) return;
    dpcri_free(th->context, th->losses);
    dpcri_network_destroy(&th->network);
    dpcr_context_destroy(th->context);
}

static dpcr_status run_thread(void *argument, dpcri_comm *comm, dpcr_error *error) {
    dpcr_status status;
    layerwise *l = argument;
    const dpcri_ledger *books = &l->ledger;
    dpcri_position p = books->start;
    int64_t decided = DPCRI_GO_ON;
    thread th;
    DPCR_TRY(make_thread(&th, comm, l, error));
    while (!(decided & DPCRI_STOP) && !dpcri_ledger_ended(books, &p)) {
        if (p.batch == books->batches) p = (dpcri_position){.epoch = p.epoch + 1, .step = p.step};
        const int64_t batch = books->options.batch, from = p.batch * batch, left = books->data->count - from;
        const int64_t updates = smaller(l->segment - p.batch % l->segment, books->batches - p.batch);
        const piece now = {.from = from, .updates = updates, .rows = smaller(left, updates * batch)};
        DPCR_TRY(run_piece(&th, &now, error));
        p.batch += updates;
        p.step += updates;
        DPCR_TRY(agree(&th, &now, &decided, error));
    }
    if (comm->rank == 0) DPCR_TRY(dpcri_ledger_end(books, error));
done:
    destroy_thread(&th);
    return status;
}

// ---- the call ----

static dpcr_status check_options(const dpcr_layerwise_options *o, dpcr_error *error) {
    if (o->size < sizeof *o)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train_layerwise: options or figures of another size");
    if (o->forwards < 0 || o->backwards < 0 || o->ahead < 0 || o->groups < 0 || o->segment < 0 || o->forwards > 4096 ||
        o->backwards > 4096 || o->ahead > INT32_MAX || o->segment > INT32_MAX / 4 || !(o->deadline >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_layerwise: %lld threads forward, %lld back, %lld ahead, groups %lld, segment %lld, "
                          "deadline %g; wanted at most 4096 of each, and 0 or more",
                          (long long)o->forwards, (long long)o->backwards, (long long)o->ahead, (long long)o->groups,
                          (long long)o->segment, o->deadline);
    return DPCR_OK;
}

static void fill_options(layerwise *l, const dpcr_layerwise_options *given) {
    dpcr_layerwise_options *o = &l->options;
    *o = *given;
    if (o->forwards == 0) o->forwards = 1;
    if (o->backwards == 0) o->backwards = 1;
    if (o->ahead == 0) o->ahead = o->forwards + o->backwards;
    if (o->deadline == 0) o->deadline = 60;
    l->groups = o->groups ? o->groups : MOST_GROUPS;
    l->segment = smaller(o->segment ? o->segment : DEFAULT_SEGMENT, l->ledger.batches);
}

static dpcr_status make_groups(layerwise *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    l->group = dpcri_alloc_zero(l->ledger.context, (size_t)l->groups * sizeof *l->group);
    if (!l->group)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for %lld groups", (long long)l->groups);
    for (; l->locks < l->groups; l->locks++) {
        const int64_t g = l->locks;
        if (pthread_rwlock_init(&l->group[g].lock, NULL) != 0)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_SYSTEM, "train: the system gave no lock"));
    }
    for (int64_t g = 0; g < l->groups; g++)
        DPCR_TRY(dpcri_stage_optimiser(&l->weights.group[g], l->ledger.model, l->first[g], l->first[g + 1],
                                       &l->ledger.options.optimiser, l->ledger.optimiser, &l->group[g].optimiser,
                                       error));
done:
    return status;
}

static dpcr_status make_slots(layerwise *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_context *context = l->ledger.context;
    const int64_t rows = smaller(l->ledger.options.batch, l->ledger.data->count);
    l->slot = dpcri_alloc_zero(context, (size_t)l->options.ahead * sizeof *l->slot);
    l->loss = dpcri_alloc(context, (size_t)l->segment * sizeof *l->loss);
    l->correct = dpcri_alloc(context, (size_t)l->segment * sizeof *l->correct);
    l->order = dpcri_alloc(context, (size_t)l->ledger.data->count * sizeof *l->order);
    if (!l->slot || !l->loss || !l->correct || !l->order)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)l->ledger.data->count));
    for (int64_t k = 0; k < l->options.ahead; k++) {
        DPCR_TRY(dpcri_minibatch_create(&l->slot[k].batch, context, &l->weights, rows, error));
        l->slot[k].seen = dpcri_alloc_zero(context, (size_t)l->groups * sizeof *l->slot[k].seen);
        if (!l->slot[k].seen) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a minibatch"));
    }
done:
    return status;
}

static dpcr_status set_up(layerwise *l, dpcr_error *error) {
    dpcr_status status;
    dpcr_context *context = l->ledger.context;
    if (l->ledger.model->options.tie)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "train_layerwise: the steps' weights are tied, and their gradient is there only when all "
                            "of them have theirs; wanted "
                            "none, or data-parallel, a pipeline or one process"));
    DPCR_TRY(dpcri_ledger_read(&l->ledger, error));
    DPCR_TRY(dpcri_groups_cut(context, l->ledger.model, &l->groups, &l->first, error));
    DPCR_TRY(dpcri_clock_create(&l->clock, context, l->segment, l->groups, l->options.forwards, l->options.backwards,
                                l->options.ahead, error));
    DPCR_TRY(dpcri_lender_open(&l->lender, context, error));
    DPCR_TRY(dpcri_ledger_take(&l->ledger, error));
    DPCR_TRY(dpcri_network_create(&l->weights, context, l->ledger.model, l->first, l->groups, error));
    DPCR_TRY(make_groups(l, error));
    DPCR_TRY(make_slots(l, error));
    if (l->ledger.options.save && !dpcri_goes_on_in_place(&l->ledger.options))
        DPCR_TRY(dpcri_ledger_write(&l->ledger, error));
    dpcri_position *p = &l->ledger.position;  // thread 0 keeps it; an epoch that has ended gives way to the next
    if (p->batch == l->ledger.batches && !dpcri_ledger_ended(&l->ledger, p))
        *p = (dpcri_position){.epoch = p->epoch + 1, .step = p->step};
    dpcri_shuffle(l->ledger.options.seed, p->epoch, l->ledger.data->count, l->order);
done:
    return status;
}

static void tear_down(layerwise *l) {
    dpcr_context *context = l->ledger.context;
    if (!context) return;
    for (int64_t k = 0; l->slot && k < l->options.ahead; k++) {
        dpcri_minibatch_destroy(&l->slot[k].batch);
        dpcri_free(context, l->slot[k].seen);
    }
    for (int64_t g = 0; l->group && g < l->groups; g++) {
        if (g < l->locks) pthread_rwlock_destroy(&l->group[g].lock);
        dpcr_optimiser_destroy(l->group[g].optimiser);
    }
    void *const owned[] = {l->slot, l->group, l->loss, l->correct, l->order, l->first};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(context, owned[i]);
    dpcri_network_destroy(&l->weights);
    dpcri_clock_destroy(&l->clock);
    dpcri_ledger_close(&l->ledger);
    dpcri_lender_close(&l->lender);
}

static void fill_figures(layerwise *l, dpcr_workers_figures *figures) {
    const int64_t updates = atomic_load(&l->updates);
    const double each = updates ? 1 / ((double)updates * (double)l->groups) : 0;
    const dpcr_workers_figures own = {.updates = updates,
                                      .groups = l->groups,
                                      .waited = updates ? l->waited / (double)updates : 0,
                                      .staleness = (double)atomic_load(&l->stale) * each,
                                      .stalest = atomic_load(&l->stalest),
                                      .gap = (double)atomic_load(&l->gap) * each};
    dpcri_copy_out(figures, &own, sizeof own);
}

dpcr_status dpcr_train_layerwise(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                 const dpcr_train_options *train, const dpcr_layerwise_options *given,
                                 dpcr_train_state *last, dpcr_workers_figures *figures, dpcr_error *error) {
    static const char call[] = "train_layerwise";
    dpcr_status status;
    dpcr_context *messages = NULL;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !train || !given || !dpcri_figures_fit(figures))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: context, model, data, train or layerwise is NULL, or figures of another size", call);
    DPCR_TRY(check_options(given, error));
    layerwise *l = dpcri_alloc_zero(context, sizeof *l);
    if (!l) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *l);
    status = dpcri_ledger_open(&l->ledger, call, context, model, data, train, error);
    if (status == DPCR_OK && l->ledger.options.clip > 0)
        status = dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "%s: clip is %g, but layers are updated one by one and the whole gradient never is there; "
                            "wanted 0",
                            call, l->ledger.options.clip);
    if (status == DPCR_OK) fill_options(l, given);
    if (status == DPCR_OK) status = set_up(l, error);
    if (status == DPCR_OK) status = dpcri_lender_context(&l->lender, &messages, error);
    if (status == DPCR_OK)
        status = dpcri_threads_run(messages, l->options.forwards + l->options.backwards, l->options.deadline,
                                   run_thread, l, error);
    dpcr_context_destroy(messages);
    if (l->ledger.options.epochs) dpcri_ledger_describe(&l->ledger, NULL);
    if (last) *last = l->ledger.state;
    if (figures) fill_figures(l, figures);
    tear_down(l);
    dpcri_free(context, l);
done:
    return status;
}
