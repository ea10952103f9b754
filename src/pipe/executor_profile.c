// SPDX-License-Identifier: MIT
// Profiles of our own models, measured: the tasks of every group of units as the executor runs them, one thread, all
// groups in turn as in a step of training, the median over rounds. Times are in seconds. Processors that share caches,
// memory or arithmetic are slower together than alone, so other workers can be kept busy with the same meanwhile.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "deeppcr/pipeline.h"
#include "pipe/executor_context.h"
#include "pipe/executor_stage.h"
#include "pipe/profile.h"
#include "rt/comm/comm.h"

enum { MOST_GROUPS = 64, FEWEST_ROUNDS = 5, MOST_ROUNDS = 64 };
static const double ENOUGH_SECONDS = 0.3;

typedef struct bunch {
    dpcri_stage stage;
    dpcri_kept kept;
    char *memory;
    double *times[3];  // [MOST_ROUNDS] of F, I, W
} bunch;

typedef struct measuring {
    dpcr_context *context;
    const dpcr_model *model;
    int64_t groups, rows;
    bunch *group;
    double *times;    // [groups][3][MOST_ROUNDS]
    uint8_t *labels;  // [rows]
} measuring;

// ---- groups of units: the encoder, steps in groups, the head ----

static int64_t group_size(const dpcr_model *model, int64_t group) {
    const int64_t layers = dpcr_model_get_options(model)->layers;
    if (group > 0) return group < layers ? group : layers > 0 ? layers : 1;
    return layers > MOST_GROUPS ? (layers + MOST_GROUPS - 1) / MOST_GROUPS : 1;
}

static int64_t groups_of(const dpcr_model *model, int64_t each) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    return (o->layers + each - 1) / each + (o->inputs > 0) + (o->outputs > 0);
}

int64_t dpcr_profile_unit(const dpcr_model *model, int64_t group, int64_t layer) {
    if (!model || layer <= 0) return 0;
    const dpcr_model_options *o = dpcr_model_get_options(model);
    const int64_t each = group_size(model, group), encoder = o->inputs > 0;
    const int64_t in_steps = layer - encoder, steps = (o->layers + each - 1) / each;
    if (layer >= groups_of(model, each)) return dpcri_units_of(model);
    return encoder + (in_steps < steps ? in_steps * each : o->layers);
}

static void name_group(const measuring *m, int64_t g, int64_t first, int64_t end, char *name, size_t bytes) {
    const bunch *at = &m->group[g];
    const int64_t step = first - (dpcr_model_get_options(m->model)->inputs > 0);
    if (at->stage.inputs)
        snprintf(name, bytes, "encoder");
    else if (at->stage.outputs)
        snprintf(name, bytes, "head");
    else if (end - first == 1)
        snprintf(name, bytes, "layers.%lld", (long long)step);
    else
        snprintf(name, bytes, "layers.%lld-%lld", (long long)step, (long long)(step + end - first - 1));
}

// ---- rounds ----

static double since(double begin) { return dpcri_seconds() - begin; }

static dpcr_status run_round(measuring *m, int round, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    double total = 0, begin = 0;
    int64_t correct = 0;
    for (int64_t g = 0; g < m->groups; g++) {
        bunch *at = &m->group[g];
        if (g) {
            const bunch *before = &m->group[g - 1];
            memcpy(at->kept.z, dpcri_stage_result(&before->stage, &before->kept),
                   (size_t)(m->rows * at->stage.width) * at->stage.element);
        }
        begin = dpcri_seconds();
        DPCR_TRY(dpcri_stage_forward(&at->stage, &at->kept, error));
        if (at->stage.outputs)
            DPCR_TRY(dpcri_stage_loss(&at->stage, &at->kept, m->labels, m->rows, &total, &correct, error));
        at->times[0][round] = since(begin);
    }
    for (int64_t g = m->groups - 1; g >= 0; g--) {
        bunch *at = &m->group[g];
        if (g + 1 < m->groups)
            memcpy(at->kept.dz, m->group[g + 1].kept.dx[0], (size_t)(m->rows * at->stage.width) * at->stage.element);
        begin = dpcri_seconds();
        if (at->stage.layers || at->stage.outputs) DPCR_TRY(dpcri_stage_input(&at->stage, &at->kept, 0, error));
        at->times[1][round] = since(begin);
        if (!at->stage.layers && !at->stage.outputs)  // an encoder alone passes the gradient on to its W
            DPCR_TRY(dpcri_stage_input(&at->stage, &at->kept, 0, error));
        begin = dpcri_seconds();
        DPCR_TRY(dpcri_stage_weight(&at->stage, &at->kept, error));
        at->times[2][round] = since(begin);
    }
done:
    return status;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, ascending);
    return times[count / 2];
}

// The first round warms up and is thrown away.
static dpcr_status run_rounds(measuring *m, int *rounds, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(run_round(m, 0, error));
    const double began = dpcri_seconds();
    for (*rounds = 0; *rounds < MOST_ROUNDS && (*rounds < FEWEST_ROUNDS || dpcri_seconds() - began < ENOUGH_SECONDS);
         ++*rounds)
        DPCR_TRY(run_round(m, *rounds, error));
done:
    return status;
}

// ---- around them ----

static void fill_normal_range(const dpcri_stage *stage, char *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const double value = 2 * dpcri_random_uniform(1, DPCRI_STREAM_DATA, (uint64_t)i) - 1;
        if (stage->element == 8)
            ((double *)to)[i] = value;
        else
            ((float *)to)[i] = (float)value;
    }
}

static dpcr_status set_up(measuring *m, int64_t each, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    m->group = dpcri_alloc_zero(m->context, (size_t)m->groups * sizeof *m->group);
    m->times = dpcri_alloc_zero(m->context, (size_t)m->groups * 3 * MOST_ROUNDS * sizeof *m->times);
    m->labels = dpcri_alloc_zero(m->context, (size_t)m->rows);
    if (!m->group || !m->times || !m->labels)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory for %lld groups", (long long)m->groups));
    for (int64_t g = 0; g < m->groups; g++) {
        bunch *at = &m->group[g];
        size_t bytes = 0;
        for (int k = 0; k < 3; k++) at->times[k] = m->times + (3 * g + k) * MOST_ROUNDS;
        DPCR_TRY(dpcri_stage_create(&at->stage, m->context, m->model, dpcr_profile_unit(m->model, each, g),
                                    dpcr_profile_unit(m->model, each, g + 1), error));
        if (!dpcri_stage_lay_out(&at->stage, m->rows, 1, true, NULL, &at->kept, &bytes))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "profile: %lld rows do not fit", (long long)m->rows));
        at->memory = dpcri_alloc_zero(m->context, bytes);
        if (!at->memory) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory for a group's states"));
        dpcri_stage_lay_out(&at->stage, m->rows, 1, true, at->memory, &at->kept, &bytes);
    }
    const dpcri_stage *first = &m->group[0].stage;
    if (first->inputs)
        fill_normal_range(first, m->group[0].kept.x, m->rows * first->inputs);
    else
        fill_normal_range(first, m->group[0].kept.z, m->rows * first->width);
done:
    return status;
}

static void tear_down(measuring *m) {
    if (!m->context) return;
    for (int64_t g = 0; m->group && g < m->groups; g++) {
        dpcri_free(m->context, m->group[g].memory);
        dpcri_stage_destroy(&m->group[g].stage);
    }
    dpcri_free(m->context, m->group);
    dpcri_free(m->context, m->times);
    dpcri_free(m->context, m->labels);
    dpcr_context_destroy(m->context);
}

static dpcr_status tell(dpcr_context *context, measuring *m, int64_t each, int rounds, dpcr_profile *profile,
                        dpcr_error *error) {
    dpcr_status status;
    char name[64];
    DPCR_TRY(dpcri_profile_alloc(context, m->groups, profile, error));
    for (int64_t g = 0; g < m->groups; g++) {
        bunch *at = &m->group[g];
        const int64_t wide = at->stage.outputs ? at->stage.outputs : at->stage.width;
        name_group(m, g, dpcr_profile_unit(m->model, each, g), dpcr_profile_unit(m->model, each, g + 1), name,
                   sizeof name);
        DPCR_TRY(dpcri_profile_set_name(context, profile, g, name, error));
        profile->forward[g] = median(at->times[0], rounds);
        profile->input[g] =
            at->stage.needs_input && !(at->stage.inputs && !at->stage.layers) ? median(at->times[1], rounds) : 0;
        profile->weight[g] = median(at->times[2], rounds);
        profile->activation_bytes[g] = (double)(m->rows * wide) * (double)at->stage.element;
        profile->parameter_bytes[g] = (double)at->stage.count * (double)at->stage.element;
    }
done:
    if (status != DPCR_OK) dpcr_profile_free(context, profile);
    return status;
}

typedef struct job {
    dpcri_lender lender;
    const dpcr_model *model;
    int64_t rows, each;
    atomic_bool done;
    dpcr_context *context;  // of the profile
    dpcr_profile *profile;
} job;

// Worker 0 measures; the others do the same until it has ended.
static dpcr_status work(void *argument, dpcri_comm *comm, dpcr_error *error) {
    job *j = argument;
    dpcr_status status;
    int rounds = 0;
    measuring m = {.model = j->model, .rows = j->rows, .groups = groups_of(j->model, j->each)};
    DPCR_TRY(dpcri_lender_context(&j->lender, &m.context, error));
    DPCR_TRY(set_up(&m, j->each, error));
    if (comm->rank == 0) {
        DPCR_TRY(run_rounds(&m, &rounds, error));
        DPCR_TRY(tell(j->context, &m, j->each, rounds, j->profile, error));
    } else {
        while (!atomic_load(&j->done)) DPCR_TRY(run_round(&m, 0, error));
    }
done:
    if (comm->rank == 0) atomic_store(&j->done, true);
    tear_down(&m);
    return status;
}

dpcr_status dpcr_profile_measure(dpcr_context *context, const dpcr_model *model, int64_t rows, int64_t group,
                                 int64_t workers, dpcr_profile *profile, dpcr_error *error) {
    dpcr_status status;
    if (profile) *profile = (dpcr_profile){0};
    if (!context || !model || !profile || rows < 1 || group < 0 || workers < 1 || workers > 4096)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "profile_measure: wanted a context, a model, a place for the profile, 1 row or more, a group "
                          "of 0 or more and 1 to 4096 workers");
    if (dpcri_units_of(model) == 0)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "profile_measure: the model has nothing to measure");
    job j = {.model = model, .rows = rows, .each = group_size(model, group), .profile = profile};
    dpcr_context *messages = NULL;
    DPCR_TRY(dpcri_lender_open(&j.lender, context, error));
    DPCR_TRY(dpcri_lender_context(&j.lender, &messages, error));
    j.context = messages;
    DPCR_TRY(dpcri_threads_run(messages, workers, 60, work, &j, error));
done:
    dpcr_context_destroy(messages);
    if (status != DPCR_OK) dpcr_profile_free(context, profile);
    dpcri_lender_close(&j.lender);
    return status;
}
