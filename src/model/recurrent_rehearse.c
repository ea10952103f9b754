// SPDX-License-Identifier: MIT
// Trials of ways back while a network is planned over a sample: a layer that sums the gradients of its weights and
// inputs as the tried plan will, into memory of its own. The trial's states and tape lie in the chain's order, and so
// do the sums of a layer that runs against time; its inputs do not, whose numbers do not matter here.
#include "model/recurrent_sums.h"

typedef struct rehearsal {
    dpcri_recurrent_sums sums;  // the layer's
    dpcr_recurrent network;     // with gradients of its own
    dpcr_recurrent_plan plan;   // of that network, for training; its only chain is the tried one
    dpcri_recurrent_space space;
} rehearsal;

// The network's gradients and those of the layer's inputs.
typedef struct results {
    char *gradients;
    void *inputs;
} results;

static rehearsal *carve(const dpcri_recurrent_stage *stage, const dpcr_recurrent_plan *shape, dpcri_arena *arena,
                        dpcri_recurrent_space *space, results *r) {
    const dpcr_recurrent_plan *plan = stage->plan;
    const int64_t inputs = plan->layers[stage->chain].inputs;
    rehearsal *whole = dpcri_arena_take(arena, 1, sizeof *whole);
    r->gradients = dpcri_arena_take(arena, plan->network->count, plan->network->element);
    r->inputs = dpcri_arena_take(arena, plan->options.length * plan->options.batch * inputs, plan->network->element);
    dpcri_recurrent_carve_sums(shape, stage->chain, arena, space);
    return whole;
}

// Like the plan at hand, but for training and with the tried way back.
static bool shape_of(const dpcri_recurrent_stage *stage, const dpcr_rehearsal *tried, dpcr_recurrent_plan *shape) {
    const dpcr_recurrent_plan *plan = stage->plan;
    const int64_t chains = plan->network->chains;
    *shape = *plan;
    shape->options.training = 1;
    shape->layers = dpcri_alloc(plan->context, (size_t)chains * sizeof *shape->layers);
    shape->chains = dpcri_alloc_zero(plan->context, (size_t)chains * sizeof *shape->chains);
    shape->kept = dpcri_alloc_zero(plan->context, (size_t)chains * sizeof *shape->kept);
    if (!shape->layers || !shape->chains || !shape->kept) return false;
    for (int64_t c = 0; c < chains; c++) shape->layers[c] = plan->layers[c];
    shape->chains[stage->chain] = (dpcr_solve_plan *)tried->plan;  // only asked
    return true;
}

static void release_shape(const dpcr_recurrent_plan *shape) {
    dpcri_free(shape->context, shape->layers);
    dpcri_free(shape->context, shape->chains);
    dpcri_free(shape->context, shape->kept);
}

void *dpcri_recurrent_rehearse(void *user, const dpcr_rehearsal *tried) {
    const dpcri_recurrent *layer = user;
    const dpcri_recurrent_stage *stage = layer->products_user;
    const dpcr_recurrent_plan *plan = stage->plan;
    dpcr_recurrent_plan shape;
    dpcri_recurrent_space space = *stage->space;
    dpcri_arena arena = {0};
    results r;
    if (plan->options.recompute || !tried->tape.data) return NULL;  // trials go by a tape
    const bool shaped = shape_of(stage, tried, &shape);
    if (shaped) carve(stage, &shape, &arena, &space, &r);
    void *memory = shaped && !arena.overflow ? dpcri_alloc_zero(plan->context, arena.used) : NULL;
    if (!memory) {
        release_shape(&shape);
        return NULL;
    }
    space = *stage->space;
    arena = (dpcri_arena){.base = memory, .size = arena.used};
    rehearsal *whole = carve(stage, &shape, &arena, &space, &r);
    whole->network = *plan->network;
    whole->network.gradients = r.gradients;
    whole->plan = shape;
    whole->plan.network = &whole->network;
    whole->space = space;
    whole->space.kept = shape.kept;
    whole->space.back_reversed = r.inputs;  // where a turned copy goes, whose gradient nobody turns again
    whole->sums = dpcri_recurrent_sums_of(&whole->plan, stage->pass, &whole->space, stage->chain, r.inputs, false);
    whole->sums.turned = false;
    whole->sums.e.data = tried->tape.data;
    whole->sums.z = (dpcri_rows){tried->z.data, dpcri_recurrent_w(plan->network)};
    dpcri_recurrent_sum_by(&shape.layers[stage->chain], &whole->space, &whole->sums);
    return &shape.layers[stage->chain];
}

void dpcri_recurrent_rehearsed(void *stand_in) {
    rehearsal *whole = (rehearsal *)((dpcri_recurrent *)stand_in)->products_user;  // sums come first in it
    dpcr_context *context = whole->plan.context;
    release_shape(&whole->plan);
    dpcri_free(context, whole);
}
