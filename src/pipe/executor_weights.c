// SPDX-License-Identifier: MIT
// Weights of a stage on a rank: versions, updates, what travels between ranks for them.
//   synchronous   one version; at the end of a run  theta -= step(sum of all microbatches' gradients)
//   asynchronous  update u -> u + 1 after the last W of minibatch u; microbatch i reads version
//                 v(i) = max(0, i / accumulate - delay), for F, I and W alike. Versions that are still to be read lie
//                 in a ring of vectors (weight stashing), on every rank that runs F or I of the stage
//   rebuilt       LayerPipe2: no ring. Where the newest weights, theta(now), are not the version v that is wanted,
//                 tasks take theta(v) ~ theta(now) + (now - v) a, a = mean decrease an update:
//                 a += (theta(u) - theta(u + 1) - a) / max(1, delay), from the first on. PipeDream's F find the version
//                 that they want as the newest one, some of PipeDream-2BW's do not
// Sources: PipeDream (SOSP 2019), PipeDream-2BW (arXiv 2006.09503), LayerPipe2 (arXiv 2512.08160).
#include <math.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"

static size_t vector_bytes(const dpcri_share *share) { return (size_t)share->layers.count * share->layers.element; }

static char *version(const dpcri_share *share, int64_t v) {
    return share->ring ? share->ring + (size_t)(v % share->versions) * vector_bytes(share) : share->layers.own;
}

char *dpcri_share_newest(const dpcri_share *share) { return version(share, share->newest); }

void dpcri_share_restart(dpcri_share *share) {
    if (share->newest && share->ring && version(share, share->newest) != version(share, 0))
        memcpy(version(share, 0), version(share, share->newest), vector_bytes(share));
    share->newest = 0;
    if (share->average) memset(share->average, 0, vector_bytes(share));
}

// ---- versions ----

static int64_t owner_of(const dpcri_rank *rank, const dpcri_share *share) {
    return rank->table->where[DPCRI_AT_W][dpcri_cell(rank->table->schedule, share->stage, 0)];
}

static dpcr_status receive_up_to(dpcri_rank *rank, dpcri_share *share, int64_t v, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    while (share->newest < v) {
        const int64_t next = share->newest + 1;
        if (rank->dry && share->ring)
            memcpy(version(share, next), share->layers.own, vector_bytes(share));
        else if (!rank->dry)
            DPCR_TRY(dpcri_receive(rank->comm, owner_of(rank, share),
                                   dpcri_tag(rank, DPCRI_MESSAGE_WEIGHTS, share->stage, next, 0), version(share, next),
                                   vector_bytes(share), error));
        share->newest = next;
    }
done:
    return status;
}

// out = now + steps average
static void rebuild(const dpcri_share *share, double steps) {
    const char *now = dpcri_share_newest(share);
    for (int64_t i = 0; i < share->layers.count; i++) {
        if (share->layers.element == 8)
            ((double *)share->rebuilt)[i] = ((const double *)now)[i] + steps * ((const double *)share->average)[i];
        else
            ((float *)share->rebuilt)[i] = ((const float *)now)[i] + (float)steps * ((const float *)share->average)[i];
    }
}

dpcr_status dpcri_share_use_version(dpcri_rank *rank, dpcri_share *share, int64_t i, dpcr_error *error) {
    const int64_t v = dpcri_table_version(rank->table->schedule, share->stage, i);
    dpcr_status status = DPCR_OK;
    if (rank->table->schedule->semantics == DPCR_SYNCHRONOUS) return DPCR_OK;
    if (!share->owner) DPCR_TRY(receive_up_to(rank, share, v, error));
    if (share->average && share->newest > v) {
        rebuild(share, (double)(share->newest - v));
        dpcri_stage_use(&share->layers, share->rebuilt);
    } else {
        dpcri_stage_use(&share->layers, version(share, v));
    }
done:
    return status;
}

// ---- norms ----

// Sums a unit, so that the norm does not depend on where the stages are cut.
static void sum_units(dpcri_rank *rank, const dpcri_share *share) {
    dpcri_stage_squares(&share->layers, rank->model->options.tie, dpcri_share_first_step(rank, share),
                        rank->unit_sums + share->first_unit);
}

// ---- updates ----

// theta(u) is in `before`, theta(u + 1) in `after`.
static void average_in(const dpcri_share *share, const char *before, const char *after, double weight) {
    for (int64_t i = 0; i < share->layers.count; i++) {
        if (share->layers.element == 8) {
            double *a = (double *)share->average + i;
            *a += weight * (((const double *)before)[i] - ((const double *)after)[i] - *a);
        } else {
            float *a = (float *)share->average + i;
            *a += (float)weight * (((const float *)before)[i] - ((const float *)after)[i] - *a);
        }
    }
}

// Ranks that keep a copy of the stage's weights.
static dpcr_status send_weights(dpcri_rank *rank, const dpcri_share *share, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t cell = dpcri_cell(rank->table->schedule, share->stage, 0);
    int32_t told[DPCRI_PLACES] = {(int32_t)rank->index};
    int count = 1;
    for (int p = 0; p < DPCRI_PLACES; p++) {
        const int32_t to = rank->table->where[p][cell];
        bool known = false;
        for (int k = 0; k < count; k++) known = known || told[k] == to;
        if (known) continue;
        told[count++] = to;
        DPCR_TRY(dpcri_send(rank->comm, to, dpcri_tag(rank, DPCRI_MESSAGE_WEIGHTS, share->stage, share->newest, 0),
                            version(share, share->newest), vector_bytes(share), error));
    }
done:
    return status;
}

static void step(const dpcri_share *share, char *parameters) {
    dpcri_optimiser_update(share->optimiser, parameters, dpcr_model_gradient_vector(share->layers.model), true);
}

// No rank may wait for the norm of other stages' gradients, which are not there yet. So each stage's is bounded by its
// part of the bound, clip sqrt(parameters here / all): the norm over all stages then is at most clip.
static void clip_share(dpcri_rank *rank, const dpcri_share *share) {
    double sum = 0;
    sum_units(rank, share);
    for (int64_t u = share->first_unit; u < share->end_unit; u++) sum += rank->unit_sums[u];
    const double most = rank->options.clip * sqrt((double)share->layers.count / (double)rank->model->count);
    const double factor = most / (sqrt(sum) + 1e-6);
    if (!(factor >= 1)) dpcri_stage_scale(&share->layers, factor);
}

dpcr_status dpcri_share_update(dpcri_rank *rank, dpcri_share *share, int64_t i, dpcr_error *error) {
    const dpcr_schedule *s = rank->table->schedule;
    if (s->semantics == DPCR_SYNCHRONOUS || (i + 1) % s->accumulate != 0) return DPCR_OK;
    const char *before = version(share, share->newest);
    char *after = version(share, share->newest + 1);
    if (rank->options.clip > 0) clip_share(rank, share);
    if (share->average) {
        const int64_t delay = s->delay[share->stage];
        memcpy(share->rebuilt, before, vector_bytes(share));
        step(share, after);
        average_in(share, share->rebuilt, after, share->newest == 0 || delay < 1 ? 1 : 1 / (double)delay);
        share->newest++;
        return DPCR_OK;
    }
    if (after != before) memcpy(after, before, vector_bytes(share));
    step(share, after);
    share->newest++;
    return share->alone || rank->dry ? DPCR_OK : send_weights(rank, share, error);
}

dpcr_status dpcri_share_catch_up(dpcri_rank *rank, dpcri_share *share, dpcr_error *error) {
    if (rank->table->schedule->semantics == DPCR_SYNCHRONOUS || share->owner) return DPCR_OK;
    return receive_up_to(rank, share, rank->table->updates, error);
}

// ---- the end of a synchronous run ----

static void add(const dpcri_share *share, const char *first, const char *second, char *sum) {
    for (int64_t i = 0; i < share->layers.count; i++) {
        if (share->layers.element == 8)
            ((double *)sum)[i] = ((const double *)first)[i] + ((const double *)second)[i];
        else
            ((float *)sum)[i] = ((const float *)first)[i] + ((const float *)second)[i];
    }
}

static int64_t rank_of(const dpcri_rank *rank, int64_t stage) {
    return rank->table->where[DPCRI_AT_W][dpcri_cell(rank->table->schedule, stage, 0)];
}

// Both copies of a stage get the sum, formed alike: the first chain's gradient plus the second's.
static dpcr_status send_twins(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int64_t k = 0; k < rank->share_count; k++) {
        const dpcri_share *share = &rank->shares[k];
        const int64_t twin = dpcri_table_twin(rank->table, share->stage), to = twin < 0 ? -1 : rank_of(rank, twin);
        if (twin < 0 || to == rank->index) continue;
        DPCR_TRY(dpcri_send(rank->comm, to, dpcri_tag(rank, DPCRI_MESSAGE_TWIN, share->stage, 0, 0),
                            dpcr_model_gradient_vector(share->layers.model), vector_bytes(share), error));
    }
done:
    return status;
}

static dpcr_status add_twins(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status;
    char *theirs = NULL;
    DPCR_TRY(send_twins(rank, error));
    for (int64_t k = 0; k < rank->share_count; k++) {
        const dpcri_share *share = &rank->shares[k];
        const int64_t twin = dpcri_table_twin(rank->table, share->stage);
        char *mine = dpcr_model_gradient_vector(share->layers.model);
        if (twin < 0) continue;
        if (rank_of(rank, twin) == rank->index) {  // both are here: once, for both
            char *other = dpcr_model_gradient_vector(dpcri_rank_share(rank, twin)->layers.model);
            if (twin < share->stage) continue;
            add(share, mine, other, mine);
            memcpy(other, mine, vector_bytes(share));
            continue;
        }
        theirs = dpcri_alloc(rank->context, vector_bytes(share));
        if (!theirs) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for a copy's gradient"));
        DPCR_TRY(dpcri_receive(rank->comm, rank_of(rank, twin), dpcri_tag(rank, DPCRI_MESSAGE_TWIN, twin, 0, 0), theirs,
                               vector_bytes(share), error));
        const bool first = share->stage < twin;
        add(share, first ? mine : theirs, first ? theirs : mine, mine);
        dpcri_free(rank->context, theirs);
        theirs = NULL;
    }
done:
    dpcri_free(rank->context, theirs);
    return status;
}

// ---- clipping: one norm over all stages ----

// Rank 0 gathers the units' sums, forms the norm in the order of units and tells it. A unit's sum is positive or 0, and
// a unit of two copies is counted once: by the first chain's.
static dpcr_status global_norm(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const size_t bytes = (size_t)rank->units * sizeof(double);
    const int64_t tag = dpcri_tag(rank, DPCRI_MESSAGE_OTHER, 0, 0, 0);
    double *theirs = NULL;
    memset(rank->unit_sums, 0, bytes);
    for (int64_t k = 0; k < rank->share_count; k++)
        if (rank->shares[k].owner && rank->shares[k].stage < dpcri_chain_stages(rank->table->schedule))
            sum_units(rank, &rank->shares[k]);
    if (rank->index) {
        DPCR_TRY(dpcri_send(rank->comm, 0, tag, rank->unit_sums, bytes, error));
        DPCR_TRY(dpcri_receive(rank->comm, 0, tag, &rank->norm, sizeof rank->norm, error));
        return DPCR_OK;
    }
    theirs = dpcri_alloc(rank->context, bytes);
    if (!theirs) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the gradient's norm"));
    for (int64_t r = 1; r < rank->comm->ranks; r++) {
        DPCR_TRY(dpcri_receive(rank->comm, r, tag, theirs, bytes, error));
        for (int64_t u = 0; u < rank->units; u++) rank->unit_sums[u] += theirs[u];
    }
    double sum = 0;
    for (int64_t u = 0; u < rank->units; u++) sum += rank->unit_sums[u];
    rank->norm = sqrt(sum);
    for (int64_t r = 1; r < rank->comm->ranks; r++)
        DPCR_TRY(dpcri_send(rank->comm, r, tag, &rank->norm, sizeof rank->norm, error));
done:
    dpcri_free(rank->context, theirs);
    return status;
}

void dpcri_share_step(dpcri_share *share) { step(share, share->layers.own); }

dpcr_status dpcri_rank_update(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (rank->table->schedule->chains > 1) DPCR_TRY(add_twins(rank, error));
    if (rank->model->options.tie) DPCR_TRY(dpcri_rank_tie(rank, error));
    if (rank->options.clip > 0) {
        DPCR_TRY(global_norm(rank, error));
        const double factor = rank->options.clip / (rank->norm + 1e-6);
        for (int64_t k = 0; !(factor >= 1) && k < rank->share_count; k++)  // NaN too, as in PyTorch
            dpcri_stage_scale(&rank->shares[k].layers, factor);
    }
    for (int64_t k = 0; k < rank->share_count; k++)
        if (rank->shares[k].optimiser) dpcri_share_step(&rank->shares[k]);
done:
    return status;
}
