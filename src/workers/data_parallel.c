// SPDX-License-Identifier: MIT
// Data-parallel training in which a sum over rows keeps its order: worker k adds its rows to what workers 0 .. k - 1
// have summed, group by group from the network's end, so that all are at work while the first sums travel on
// (a ring's reduce-scatter, with the addition done by the weight gradient itself); then the sums go round once more.
//
//   work     forward, input gradient, weight gradient of n / K rows, all updates
//   waiting  the last worker begins with the first group's sum after (K - 1) groups of the others
//   bytes    2 |theta| sent and received by a worker, as of any ring
//
// Weighed: summing partial sums in a tree (a latency of log K messages instead of K groups, but the bits depend on K),
// and one worker's buffer a row range added in order afterwards (the same bits, for K times the memory and no overlap).
#include <math.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor_ranks.h"
#include "rt/rt.h"
#include "workers/crew.h"

enum { TAG_LOSSES, TAG_DECISION, TAG_GROUPS };  // then two a group: a sum so far, the whole sum

static int64_t tag_so_far(int64_t group) { return TAG_GROUPS + 2 * group; }
static int64_t tag_whole(int64_t group) { return TAG_GROUPS + 2 * group + 1; }

enum { TOLD_BESIDE = 2 };  // behind the rows' losses: how many are right, and what asked this process to stop
static size_t told_bytes(int64_t rows) { return (size_t)(rows + TOLD_BESIDE) * sizeof(double); }

int64_t dpcri_crew_tag(const dpcri_crew *c, int kind) { return TAG_GROUPS + 2 * c->groups + kind; }

// ---- the crew ----

static dpcr_status take_workers(const char *call, const dpcr_workers_options *given, dpcr_workers_options *o,
                                dpcr_error *error) {
    if (given->size < offsetof(dpcr_workers_options, deadline))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: workers.size is %zu, wanted sizeof(dpcr_workers_options)",
                          call, given->size);
    DPCRI_COPY_IN(*o, given);
    o->size = sizeof *o;
    const int64_t most = o->transport ? INT32_MAX : 4096;  // as threads
    if (o->workers < 1 || o->workers > most || !(o->deadline >= 0) || o->groups < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: workers %lld, deadline %g, groups %lld; wanted 1 to %lld, and 0 or more", call,
                          (long long)o->workers, o->deadline, (long long)o->groups, (long long)most);
    if (o->deadline == 0) o->deadline = 60;
    return DPCR_OK;
}

// The last worker then waits for an eighth of another's weight gradients.
static int64_t groups_wanted(const dpcr_workers_options *workers) {
    enum { GROUPS_A_WORKER = 8 };
    return workers->workers > 1 ? GROUPS_A_WORKER * (workers->workers - 1) : 1;
}

dpcr_status dpcri_crew_open(dpcri_crew *c, const char *call, dpcr_context *context, dpcr_model *model,
                            const dpcr_dataset *data, const dpcr_train_options *train,
                            const dpcr_workers_options *workers, dpcr_error *error) {
    dpcr_status status;
    const dpcr_workers_options *o = &c->options;
    DPCR_TRY(take_workers(call, workers, &c->options, error));
    DPCR_TRY(dpcri_ledger_open(&c->ledger, call, context, model, data, train, error));
    c->groups = o->groups ? o->groups : groups_wanted(o);
    DPCR_TRY(dpcri_groups_cut(context, model, &c->groups, &c->first, error));
    if (o->transport && dpcri_crew_tag(c, DPCRI_CREW_TAGS) > o->transport->largest_tag)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %lld groups, more than messages can name", call,
                            (long long)c->groups));
    DPCR_TRY(dpcri_ledger_read(&c->ledger, error));
    DPCR_TRY(dpcri_lender_open(&c->lender, context, error));
    DPCR_TRY(dpcri_ledger_take(&c->ledger, error));
done:
    return status;
}

dpcr_status dpcri_crew_run(dpcri_crew *c, const char *call, dpcri_rank_body *body, dpcr_error *error) {
    dpcr_status status;
    dpcr_context *messages = NULL;
    DPCR_TRY(dpcri_lender_context(&c->lender, &messages, error));
    DPCR_TRY(
        dpcri_ranks_run(call, messages, c->options.workers, c->options.deadline, c->options.transport, body, c, error));
done:
    dpcr_context_destroy(messages);
    return status;
}

void dpcri_crew_close(dpcri_crew *c) {
    if (!c->ledger.context) return;
    dpcri_free(c->ledger.context, c->first);
    dpcri_ledger_close(&c->ledger);
    dpcri_lender_close(&c->lender);
}

// ---- members ----

static int64_t row_of(const dpcri_member *m, int64_t rows, int64_t worker) {
    const int64_t workers = m->comm->ranks;
    return rows / workers * worker + rows % workers * worker / workers;
}

static int64_t rows_of(const dpcri_member *m, int64_t rows, int64_t worker) {
    return row_of(m, rows, worker + 1) - row_of(m, rows, worker);
}

dpcr_status dpcri_member_create(dpcri_member *m, dpcri_crew *c, dpcri_comm *comm, dpcr_error *error) {
    dpcr_status status;
    const dpcri_ledger *l = &c->ledger;
    *m = (dpcri_member){.crew = c, .comm = comm};
    const int64_t batch = l->options.batch < l->data->count ? l->options.batch : l->data->count;
    DPCR_TRY(dpcri_lender_context(&c->lender, &m->context, error));
    DPCR_TRY(dpcri_network_create(&m->network, m->context, l->model, c->first, c->groups, error));
    DPCR_TRY(dpcri_minibatch_create(&m->batch, m->context, &m->network, batch / comm->ranks + 1, error));
    m->optimisers = dpcri_alloc_zero(m->context, (size_t)c->groups * sizeof *m->optimisers);
    m->order = dpcri_alloc(m->context, (size_t)l->data->count * sizeof *m->order);
    m->losses = dpcri_alloc(m->context, (size_t)(batch + TOLD_BESIDE) * sizeof *m->losses);
    m->squares = dpcri_alloc(m->context, (size_t)dpcri_units_of(l->model) * sizeof *m->squares);
    if (!m->optimisers || !m->order || !m->losses || !m->squares)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)l->data->count));
    for (int64_t g = 0; g < c->groups; g++)
        DPCR_TRY(dpcri_stage_optimiser(&m->network.group[g], l->model, c->first[g], c->first[g + 1],
                                       &l->options.optimiser, l->optimiser, &m->optimisers[g], error));
done:
    return status;
}

void dpcri_member_destroy(dpcri_member *m) {
    if (!m->context) return;
    for (int64_t g = 0; m->optimisers && g < m->crew->groups; g++) dpcr_optimiser_destroy(m->optimisers[g]);
    dpcri_free(m->context, m->optimisers);
    dpcri_free(m->context, m->order);
    dpcri_free(m->context, m->losses);
    dpcri_free(m->context, m->squares);
    dpcri_minibatch_destroy(&m->batch);
    dpcri_network_destroy(&m->network);
    dpcr_context_destroy(m->context);
}

void dpcri_member_hand_in(const dpcri_member *m) {
    const dpcri_ledger *l = &m->crew->ledger;
    const dpcr_optimiser *whole = l->optimiser;
    for (int64_t g = 0; m->stepped && g < m->crew->groups; g++) {
        const int64_t first = m->crew->first[g], end = m->crew->first[g + 1];
        const dpcr_optimiser *own = m->optimisers[g];
        dpcri_units_put(l->model, first, end, dpcri_network_parameters(&m->network, g), l->model->parameters);
        if (whole->first) dpcri_units_put(l->model, first, end, own->first, whole->first);
        if (whole->second) dpcri_units_put(l->model, first, end, own->second, whole->second);
    }
}

// ---- a step ----

static dpcr_status await(dpcri_member *m, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    double mark = dpcri_seconds();
    const dpcr_status status = dpcri_receive(m->comm, from, tag, data, bytes, error);
    if (m->comm->rank == 0) dpcri_phase_end(&m->crew->waited, &mark);
    return status;
}

// My rows of the minibatch at `from`, as far as the input gradients.
static dpcr_status pass_rows(dpcri_member *m, int64_t from, int64_t rows, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_ledger *l = &m->crew->ledger;
    const int64_t first = row_of(m, rows, m->comm->rank), mine = rows_of(m, rows, m->comm->rank);
    int64_t correct = 0;
    dpcri_minibatch_lay(&m->batch, &m->network, mine);
    dpcri_gather(m->context, l->data, m->order, from + first, mine, &l->normaliser,
                 dpcri_minibatch_input(&m->batch, &m->network), m->batch.labels);
    for (int64_t g = 0; g < m->crew->groups; g++) DPCR_TRY(dpcri_network_forward(&m->network, &m->batch, g, error));
    DPCR_TRY(dpcri_network_loss(&m->network, &m->batch, rows, m->losses, &correct, error));
    m->losses[mine] = (double)correct;
    m->losses[mine + 1] = dpcri_ranks_asked(m->crew->options.transport, l->context);
    if (m->comm->rank) DPCR_TRY(dpcri_send(m->comm, 0, TAG_LOSSES, m->losses, told_bytes(mine), error));
    for (int64_t g = m->crew->groups - 1; g >= 0; g--) DPCR_TRY(dpcri_network_input(&m->network, &m->batch, g, error));
done:
    return status;
}

static dpcr_status sum_gradients(dpcri_member *m, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t me = m->comm->rank, last = m->comm->ranks - 1;
    for (int64_t g = m->crew->groups - 1; g >= 0; g--) {
        void *sum = dpcri_network_gradients(&m->network, g);
        const size_t bytes = dpcri_network_bytes(&m->network, g);
        if (me > 0) DPCR_TRY(await(m, me - 1, tag_so_far(g), sum, bytes, error));
        DPCR_TRY(dpcri_network_weight(&m->network, &m->batch, g, error));
        if (me < last) DPCR_TRY(dpcri_send(m->comm, me + 1, tag_so_far(g), sum, bytes, error));
        if (me == last && last > 0) DPCR_TRY(dpcri_send(m->comm, 0, tag_whole(g), sum, bytes, error));
    }
    for (int64_t g = m->crew->groups - 1; me < last && g >= 0; g--) {
        void *sum = dpcri_network_gradients(&m->network, g);
        const size_t bytes = dpcri_network_bytes(&m->network, g);
        DPCR_TRY(await(m, me > 0 ? me - 1 : last, tag_whole(g), sum, bytes, error));
        if (me + 1 < last) DPCR_TRY(dpcri_send(m->comm, me + 1, tag_whole(g), sum, bytes, error));
    }
done:
    return status;
}

static void clip(dpcri_member *m) {
    double sum = 0;
    const int64_t groups = m->crew->groups;
    for (int64_t g = 0; g < groups; g++)
        dpcri_stage_squares(&m->network.group[g], m->network.model->options.tie,
                            dpcri_network_first_step(&m->network, g), m->squares + m->crew->first[g]);
    for (int64_t u = 0; u < m->crew->first[groups]; u++) sum += m->squares[u];
    const double factor = m->crew->ledger.options.clip / (sqrt(sum) + 1e-6);
    for (int64_t g = 0; !(factor >= 1) && g < groups; g++)  // NaN too, as in PyTorch
        dpcri_stage_scale(&m->network.group[g], factor);
}

static void update(dpcri_member *m) {
    dpcri_network_tie(&m->network);
    if (m->crew->ledger.options.clip > 0) clip(m);
    for (int64_t g = 0; g < m->crew->groups; g++)
        dpcri_optimiser_update(m->optimisers[g], dpcri_network_parameters(&m->network, g),
                               dpcri_network_gradients(&m->network, g), true);
    m->stepped = true;
}

// ---- after a step ----

// All rows' losses in their order.
static dpcr_status hear_losses(dpcri_member *m, int64_t rows, double *loss, int64_t *correct, int *asked,
                               dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *loss = 0;
    *correct = 0;
    *asked = 0;
    for (int64_t worker = 0; worker < m->comm->ranks; worker++) {
        const int64_t theirs = rows_of(m, rows, worker);
        if (worker) DPCR_TRY(await(m, worker, TAG_LOSSES, m->losses, told_bytes(theirs), error));
        for (int64_t r = 0; r < theirs; r++) *loss += m->losses[r];
        *correct += (int64_t)m->losses[theirs];
        if (!*asked) *asked = (int)m->losses[theirs + 1];
    }
done:
    return status;
}

enum { ENOUGH = 4 };  // beside dpcri_decision

static dpcr_status agree(dpcri_member *m, int64_t rows, int64_t *decided, dpcr_error *error) {
    dpcr_status status;
    dpcri_crew *c = m->crew;
    dpcri_ledger *l = &c->ledger;
    double loss;
    int64_t correct;
    int asked;
    if (m->comm->rank) return dpcri_receive_decision(m->comm, TAG_DECISION, decided, sizeof *decided, error);
    DPCR_TRY(hear_losses(m, rows, &loss, &correct, &asked, error));
    DPCR_TRY(dpcri_ledger_note(l, loss / (double)rows, correct, 1, rows, error));
    c->updates++;
    const bool ended = l->position.batch == l->batches;
    if (ended) dpcri_member_hand_in(m);
    *decided = dpcri_ranks_heed(dpcri_ledger_decide(l, c->sentence), asked, &c->stopped_by);
    if (ended && c->enough > 0 && l->state.accuracy >= c->enough) *decided |= ENOUGH;
    for (int64_t worker = 1; worker < m->comm->ranks; worker++)
        DPCR_TRY(dpcri_send(m->comm, worker, TAG_DECISION, decided, sizeof *decided, error));
    if (*decided & DPCRI_SAVE) {
        dpcri_member_hand_in(m);
        DPCR_TRY(dpcri_ledger_write(l, error));
    }
done:
    return status;
}

// ---- the loop of a member ----

static dpcr_status run_epoch(dpcri_member *m, dpcri_position *p, int64_t *decided, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_ledger *l = &m->crew->ledger;
    while (p->batch < l->batches && !(*decided & DPCRI_STOP)) {
        const int64_t from = p->batch * l->options.batch, left = l->data->count - from;
        const int64_t rows = left < l->options.batch ? left : l->options.batch;
        DPCR_TRY(pass_rows(m, from, rows, error));
        DPCR_TRY(sum_gradients(m, error));
        update(m);
        p->batch++;
        p->step++;
        DPCR_TRY(agree(m, rows, decided, error));
    }
done:
    return status;
}

// A run gone on from may have had enough already.
static bool had_enough(const dpcri_crew *c, const dpcri_position *p) {
    return c->enough > 0 && p->batch == c->ledger.batches && p->rows &&
           (double)p->correct / (double)p->rows >= c->enough;
}

dpcr_status dpcri_member_train(dpcri_member *m, dpcri_position *p, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_ledger *l = &m->crew->ledger;
    *p = l->start;
    int64_t decided = had_enough(m->crew, p) ? ENOUGH : DPCRI_GO_ON;
    if (m->comm->rank == 0 && l->options.save && !dpcri_goes_on_in_place(&l->options))
        DPCR_TRY(dpcri_ledger_write(l, error));
    while (decided <= DPCRI_SAVE && !dpcri_ledger_ended(l, p)) {
        if (p->batch == l->batches) {
            *p = (dpcri_position){.epoch = p->epoch + 1, .step = p->step};
            if (m->comm->rank == 0) l->position = *p;
        }
        dpcri_shuffle(l->options.seed, p->epoch, l->data->count, m->order);
        DPCR_TRY(run_epoch(m, p, &decided, error));
    }
    m->stopped = (decided & DPCRI_STOP) != 0;
    if (m->comm->rank) return DPCR_OK;
    m->crew->reached = (decided & ENOUGH) != 0;
    dpcri_member_hand_in(m);
    if (m->stopped) DPCR_TRY(dpcri_ranks_stopped(dpcri_ledger_end(l, error), m->crew->stopped_by, error));
done:
    return status;
}

// ---- the call ----

static dpcr_status run_member(void *argument, dpcri_comm *comm, dpcr_error *error) {
    dpcri_member m;
    dpcri_position position;
    dpcr_status status = dpcri_member_create(&m, argument, comm, error);
    if (status == DPCR_OK) status = dpcri_member_train(&m, &position, error);
    dpcri_member_destroy(&m);
    return status;
}

dpcr_status dpcr_train_data_parallel(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                     const dpcr_train_options *train, const dpcr_workers_options *workers,
                                     dpcr_train_state *last, dpcr_workers_figures *figures, dpcr_error *error) {
    static const char call[] = "train_data_parallel";
    dpcr_status status;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !train || !workers || !dpcri_figures_fit(figures))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: context, model, data, train or workers is NULL, or figures of another size", call);
    dpcri_crew *c = dpcri_alloc_zero(context, sizeof *c);
    if (!c) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *c);
    c->sentence = "rows over the workers, sums in the rows' order";
    DPCR_TRY(dpcri_crew_open(c, call, context, model, data, train, workers, error));
    status = dpcri_crew_run(c, call, run_member, error);
    dpcri_ledger_describe(&c->ledger, NULL);
    if (last) *last = c->ledger.state;
    const dpcr_workers_figures own = {
        .updates = c->updates, .groups = c->groups, .waited = c->updates ? c->waited / (double)c->updates : 0};
    if (figures) dpcri_copy_out(figures, &own, sizeof own);
done:
    dpcri_crew_close(c);
    dpcri_free(context, c);
    return status;
}
