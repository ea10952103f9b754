// SPDX-License-Identifier: MIT
// A rank's stages: which, with which memory for weights, optimiser and microbatches.
#include <math.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"

dpcr_status dpcri_pipeline_options_fill(const dpcr_pipeline_options *given, const dpcr_schedule *schedule,
                                        dpcr_pipeline_options *options, dpcr_error *error) {
    *options = (dpcr_pipeline_options){.size = sizeof *options};
    if (given && given->size < sizeof *given)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "pipeline: options.size is %zu, wanted sizeof(dpcr_pipeline_options), %zu", given->size,
                          sizeof *given);
    if (given) DPCRI_COPY_IN(*options, given);
    const bool synchronous = schedule->semantics == DPCR_SYNCHRONOUS;
    if (options->deadline == 0) options->deadline = 60;
    if (!(options->deadline > 0) || !(options->clip >= 0) || !isfinite(options->clip) ||
        (unsigned)options->compensation >= DPCR_COMPENSATE_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "pipeline: clip is %g, deadline %g, compensation %d; wanted 0 or more, 0 or more, one of "
                          "DPCR_COMPENSATE_...",
                          options->clip, options->deadline, (int)options->compensation);
    if (!synchronous && !options->optimiser)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "pipeline: an asynchronous schedule wants an optimiser");
    if (options->recompute && options->reconstruct)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: recomputing wants the weights that F read, and reconstruction keeps none of them");
    if (synchronous && (options->reconstruct || options->compensation))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: gradients of a synchronous schedule are not late; nothing to reconstruct or "
                          "compensate");
    return DPCR_OK;
}

dpcr_status dpcri_stages_cut(dpcr_context *context, const dpcr_model *model, const dpcr_schedule *schedule,
                             const int64_t *given, int64_t **first, dpcr_error *error) {
    const int64_t stages = dpcri_chain_stages(schedule), units = dpcri_units_of(model);
    *first = NULL;
    if (stages > units)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: %lld stages, but the network has %lld units (encoder, steps, head)",
                          (long long)stages, (long long)units);
    if (model->options.outputs < 1)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "pipeline: the network has no head, wanted outputs >= 1");
    if (model->options.tie && schedule->semantics != DPCR_SYNCHRONOUS)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: tied weights want the sum over all stages before an update; an asynchronous "
                          "schedule updates each stage by itself");
    int64_t *cut = dpcri_alloc(context, (size_t)(stages + 1) * sizeof *cut);
    if (!cut) return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for %lld stages", (long long)stages);
    for (int64_t s = 0; s <= stages; s++)
        cut[s] = given ? given[s] : s * (units / stages) + (s < units % stages ? s : units % stages);
    for (int64_t s = 0; s < stages; s++)
        if (cut[0] != 0 || cut[s] >= cut[s + 1] || cut[stages] != units) {
            dpcri_free(context, cut);
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "pipeline: the stages' first units do not rise from 0 to %lld", (long long)units);
        }
    *first = cut;
    return DPCR_OK;
}

// ---- shares ----

static int64_t at(const dpcri_table *t, int place, int64_t stage) {
    return t->where[place][dpcri_cell(t->schedule, stage, 0)];
}

static bool is_here(const dpcri_table *t, int64_t stage, int64_t rank) {
    for (int p = 0; p < DPCRI_PLACES; p++)
        if (at(t, p, stage) == rank) return true;
    return false;
}

static bool is_alone(const dpcri_table *t, int64_t stage) {
    for (int p = 1; p < DPCRI_PLACES; p++)
        if (at(t, p, stage) != at(t, 0, stage)) return false;
    return true;
}

static dpcr_status make_optimiser(dpcri_rank *rank, dpcri_share *share, const dpcr_optimiser *state,
                                  dpcr_error *error) {
    dpcr_optimiser_options o = *rank->options.optimiser;
    const int64_t delay = rank->table->schedule->delay[share->stage];
    if (rank->options.compensation == DPCR_COMPENSATE_RATE) o.rate /= 1 + (double)delay;
    return dpcri_stage_optimiser(&share->layers, rank->model, share->first_unit, share->end_unit, &o, state,
                                 &share->optimiser, error);
}

// Most versions of its weights that a rank has to keep at once: the newest one that it knows when an action runs, down
// to the one that the action reads. An owner's newest follows from its own W, another's from what it has asked for.
static int64_t versions_needed(const dpcri_table *t, int64_t rank, const dpcri_share *share) {
    const dpcr_schedule *s = t->schedule;
    int64_t newest = 0, gradients = 0, most = 0;
    for (int64_t n = s->first[rank]; n < s->first[rank + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->stage != share->stage || a->task >= DPCR_TASK_SEND_F) continue;
        const int64_t read = dpcri_table_version(s, a->stage, a->microbatch);
        if (!share->owner && read > newest) newest = read;
        if (newest - read > most) most = newest - read;
        if (share->owner && (a->task == DPCR_TASK_W || a->task == DPCR_TASK_B)) newest = ++gradients / s->accumulate;
    }
    return most + 1;
}

// Of the rank's table and those after it, which all place its stages alike.
static int64_t most_versions_needed(const dpcri_rank *rank, const dpcri_share *share) {
    int64_t most = 1;
    for (const dpcri_table *t = rank->table; t; t = t->after) {
        const int64_t needed = versions_needed(t, rank->index, share);
        if (needed > most) most = needed;
    }
    return most;
}

static dpcr_status make_versions(dpcri_rank *rank, dpcri_share *share, dpcr_error *error) {
    const dpcr_schedule *s = rank->table->schedule;
    const size_t bytes = (size_t)share->layers.count * share->layers.element;
    if (rank->options.reconstruct && !share->alone)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: the tasks of stage %lld lie on several ranks; reconstruction wants them on one",
                          (long long)share->stage);
    const bool rebuilds = rank->options.reconstruct && s->delay[share->stage] > 0;
    share->versions = rebuilds || s->semantics == DPCR_SYNCHRONOUS ? 1 : most_versions_needed(rank, share);
    if (rebuilds) {
        share->average = dpcri_alloc_zero(rank->context, bytes);
        share->rebuilt = dpcri_alloc(rank->context, bytes);
        if (!share->average || !share->rebuilt) goto no_memory;
    }
    if (share->versions == 1) return DPCR_OK;
    bool overflow = false;
    const size_t all = dpcri_bytes(share->versions, share->layers.count, (int64_t)share->layers.element, &overflow);
    share->ring = overflow ? NULL : dpcri_alloc(rank->context, all);
    if (!share->ring) goto no_memory;
    memcpy(share->ring, share->layers.own, bytes);
    return DPCR_OK;
no_memory:
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for %lld versions of the weights of stage %lld",
                      (long long)share->versions, (long long)share->stage);
}

static dpcr_status make_share(dpcri_rank *rank, int64_t stage, const dpcr_optimiser *state, dpcr_error *error) {
    dpcr_status status;
    dpcri_share *share = &rank->shares[rank->share_count];
    const int64_t position = stage % dpcri_chain_stages(rank->table->schedule);
    rank->share_of[stage] = (int32_t)rank->share_count++;
    *share = (dpcri_share){.stage = stage,
                           .first_unit = rank->first[position],
                           .end_unit = rank->first[position + 1],
                           .owner = at(rank->table, DPCRI_AT_W, stage) == rank->index,
                           .alone = is_alone(rank->table, stage)};
    share->recomputes = rank->options.recompute != 0;
    if (share->recomputes && !share->alone)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: the tasks of stage %lld lie on several ranks; recomputing wants them on one",
                          (long long)stage);
    share->turns = share->alone && rank->table->schedule->semantics != DPCR_DELAYED;
    DPCR_TRY(dpcri_stage_create(&share->layers, rank->context, rank->model, share->first_unit, share->end_unit, error));
    DPCR_TRY(make_versions(rank, share, error));
    if (share->owner && rank->options.optimiser) DPCR_TRY(make_optimiser(rank, share, state, error));
done:
    return status;
}

dpcr_status dpcri_rank_create(dpcri_rank *rank, dpcr_context *context, int64_t index, const dpcr_model *model,
                              const dpcri_table *table, const int64_t *first, const dpcr_pipeline_options *options,
                              const dpcr_optimiser *state, dpcr_error *error) {
    dpcr_status status;
    const dpcr_schedule *s = table->schedule;
    *rank = (dpcri_rank){.index = index,
                         .context = context,
                         .model = model,
                         .options = *options,
                         .first = first,
                         .units = dpcri_units_of(model),
                         .table = table};
    int64_t count = 0;
    for (int64_t stage = 0; stage < s->stages; stage++) count += is_here(table, stage, index);
    rank->share_of = dpcri_alloc(context, (size_t)s->stages * sizeof *rank->share_of);
    rank->shares = dpcri_alloc_zero(context, (size_t)(count + 1) * sizeof *rank->shares);
    rank->unit_sums = dpcri_alloc_zero(context, (size_t)rank->units * sizeof *rank->unit_sums);
    if (!rank->share_of || !rank->shares || !rank->unit_sums)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for a rank"));
    for (int64_t stage = 0; stage < s->stages; stage++) rank->share_of[stage] = -1;
    for (int64_t stage = 0; stage < s->stages; stage++)
        if (is_here(table, stage, index)) DPCR_TRY(make_share(rank, stage, state, error));
    DPCR_TRY(dpcri_rank_use(rank, table, error));
done:
    return status;
}

static void free_slots(dpcri_rank *rank, dpcri_share *share) {
    for (int64_t k = 0; share->slot && k < share->slots; k++) dpcri_free(rank->context, share->slot[k].memory);
    // of a run that failed some are lent
    for (int64_t k = 0; share->slot && k < share->slots; k++) dpcri_free(rank->context, share->slot[k].inner);
    for (int64_t k = 0; share->inner && k < share->free_inners; k++) dpcri_free(rank->context, share->inner[k]);
    dpcri_free(rank->context, share->slot);
    dpcri_free(rank->context, share->free_slots);
    dpcri_free(rank->context, share->slot_of);
    dpcri_free(rank->context, share->uses);
    dpcri_free(rank->context, share->inner);
    dpcri_free(rank->context, share->again);
    share->slot = NULL;
    share->inner = NULL;
    share->free_slots = share->slot_of = NULL;
    share->uses = share->again = NULL;
    share->slots = share->free_count = share->rows = share->inners = share->free_inners = 0;
}

void dpcri_rank_destroy(dpcri_rank *rank) {
    if (!rank->context) return;
    for (int64_t k = 0; k < rank->share_count; k++) {
        dpcri_share *share = &rank->shares[k];
        free_slots(rank, share);
        dpcr_optimiser_destroy(share->optimiser);
        dpcri_stage_destroy(&share->layers);
        dpcri_free(rank->context, share->ring);
        dpcri_free(rank->context, share->average);
        dpcri_free(rank->context, share->rebuilt);
    }
    dpcri_free(rank->context, rank->labels);
    dpcri_free(rank->context, rank->unit_sums);
    dpcri_free(rank->context, rank->shares);
    dpcri_free(rank->context, rank->share_of);
    *rank = (dpcri_rank){0};
}

// ---- a table ----

// The rank's next task after the F at n is the same microbatch's I or B: nothing to gain in between.
static bool is_next(const dpcr_schedule *s, int64_t rank, int64_t n) {
    const dpcr_action *f = &s->actions[n];
    for (n++; n < s->first[rank + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->task >= DPCR_TASK_SEND_F) continue;
        return a->stage == f->stage && a->microbatch == f->microbatch;
    }
    return false;
}

dpcr_status dpcri_rank_use(dpcri_rank *rank, const dpcri_table *table, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_schedule *s = table->schedule;
    const size_t m = (size_t)s->microbatches;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        const dpcri_share *share = dpcri_rank_share(rank, stage);
        const bool same = s->stages == rank->table->schedule->stages &&
                          (share != NULL) == is_here(table, stage, rank->index) &&
                          (!share || ((share->average || s->semantics == DPCR_SYNCHRONOUS ||
                                       versions_needed(table, rank->index, share) <= share->versions) &&
                                      s->delay[stage] == rank->table->schedule->delay[stage] &&
                                      share->owner == (at(table, DPCRI_AT_W, stage) == rank->index)));
        if (!same)
            return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "pipeline: another table puts its stages elsewhere");
    }
    rank->table = table;
    for (int64_t k = 0; k < rank->share_count; k++) {
        dpcri_share *share = &rank->shares[k];
        free_slots(rank, share);
        share->slot = dpcri_alloc_zero(rank->context, m * sizeof *share->slot);
        share->free_slots = dpcri_alloc(rank->context, m * sizeof *share->free_slots);
        share->slot_of = dpcri_alloc(rank->context, m * sizeof *share->slot_of);
        share->uses = dpcri_alloc_zero(rank->context, m * sizeof *share->uses);
        share->inner = dpcri_alloc(rank->context, m * sizeof *share->inner);
        share->again = dpcri_alloc_zero(rank->context, m * sizeof *share->again);
        share->room = (int64_t)m;
        if (!share->slot || !share->free_slots || !share->slot_of || !share->uses || !share->inner || !share->again)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for %zu microbatches", m));
        for (size_t i = 0; i < m; i++) share->slot_of[i] = -1;
    }
    for (int64_t n = s->first[rank->index]; n < s->first[rank->index + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        dpcri_share *share = dpcri_rank_share(rank, a->stage);
        share->uses[a->microbatch]++;
        if (a->task == DPCR_TASK_F) share->again[a->microbatch] = share->recomputes && !is_next(s, rank->index, n);
    }
done:
    return status;
}
