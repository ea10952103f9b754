// SPDX-License-Identifier: MIT
// Plans of recurrent networks: one solve plan a layer and direction, memory for packed weights, and the pieces of tape
// and workspace.
#include <string.h>

#include "model/recurrent_internal.h"
#include "solve/solve_internal.h"

// MANY sequences are two blocks of the driver. Gradients are summed by blocks where these are few and a block's sums
// lie in a core's cache; else every core makes some rows of the one sum, for which it reads all blocks.
// The products of a few sequences, up to FEW, with W_ih of at least LARGE_INPUT_BYTES are made before the steps, by all
// threads and once, where overlapped chunks would make those of their run-ups again; as long as they lie in
// MOST_AHEAD_BYTES.
enum {
    MANY = 32,
    MOST_BLOCK_BYTES = (1 << 19) + (1 << 14),
    FEW = 4,
    LARGE_INPUT_BYTES = 4 << 20,
    MOST_AHEAD_BYTES = 1 << 28
};

static int64_t state_of(const dpcr_recurrent *n) { return dpcri_recurrent_w(n); }
static int64_t outputs_of(const dpcr_recurrent *n) { return dpcri_recurrent_y(n); }

dpcri_recurrent_flow dpcri_recurrent_flow_of(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const bool reverse = chain % n->directions == 1 || n->options.reverse, copied = reverse && plan->options.packed;
    return (dpcri_recurrent_flow){
        .reverse = reverse, .copied = copied, .in_outputs = dpcri_gates_state[n->gates] == 1 && !copied};
}

// ---- pieces ----

// [T][B][width]
static void *take(const dpcr_recurrent_plan *plan, dpcri_arena *arena, int64_t width) {
    int64_t numbers = 0;
    if (!dpcri_mul(plan->options.length, plan->options.batch, &numbers) || !dpcri_mul(numbers, width, &numbers))
        arena->overflow = true;
    return dpcri_arena_take(arena, numbers, plan->network->element);
}

static void *take_rows(const dpcr_recurrent_plan *plan, dpcri_arena *arena, int64_t width) {
    int64_t numbers = 0;
    if (!dpcri_mul(plan->options.batch, width, &numbers)) arena->overflow = true;
    return dpcri_arena_take(arena, numbers, plan->network->element);
}

static unsigned char *take_marks(const dpcr_recurrent_plan *plan, dpcri_arena *arena) {
    int64_t marks = 0;
    if (!dpcri_mul(plan->options.length, plan->options.batch, &marks)) arena->overflow = true;
    return dpcri_arena_take(arena, marks, 1);
}

int64_t dpcri_recurrent_window(const dpcr_recurrent_plan *plan) {
    const double bytes = 256 << 10, step = (double)plan->options.batch * (double)dpcri_recurrent_taped(plan->network) *
                                           (double)plan->network->element;
    const int64_t fit = step > 0 ? (int64_t)(bytes / step) : 1, T = plan->options.length > 0 ? plan->options.length : 1;
    return fit < 1 ? 1 : fit < T ? fit : T;
}

int64_t dpcri_recurrent_own_parameters(const dpcr_recurrent *n, int64_t chain) {
    const int64_t begin = dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_IH);
    return (chain + 1 < n->chains ? dpcri_recurrent_offset(n, chain + 1, DPCRI_WEIGHT_IH) : n->count) - begin;
}

int64_t dpcri_recurrent_blocks(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const double bytes = (double)dpcri_recurrent_own_parameters(n, chain) * (double)n->element;
    dpcr_steps steps;
    if (!plan->adjoints || n->cell.varied || dpcri_gates_apart(n->gates) || bytes > MOST_BLOCK_BYTES) return 1;
    dpcri_recurrent_steps(&plan->layers[chain], &steps);
    const int64_t rows = dpcri_back_block(&steps), blocks = (plan->options.batch + rows - 1) / rows;
    return blocks > 1 && blocks <= DPCRI_RECURRENT_BLOCKS ? blocks : 1;
}

bool dpcri_recurrent_gathers(const dpcr_recurrent_plan *plan) {
    const dpcr_recurrent *n = plan->network;
    return plan->options.packed && !n->cell.varied && !dpcri_gates_apart(n->gates);
}

int64_t dpcri_recurrent_block_window(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    if (dpcri_recurrent_back_by_loop(plan, chain) &&
        dpcr_solve_plan_backward(plan->chains[chain]) == DPCR_SCHEME_SEQUENTIAL)
        return plan->chains[chain]->backward_window;
    const int64_t step = plan->options.batch * (state_of(n) + dpcri_recurrent_taped(n)) * (int64_t)n->element;
    const int64_t fit = (256 << 10) / (step > 0 ? step : 1);
    return fit < 1 ? 1 : fit;
}

// Pieces for the chain that needs most.
static void take_blocks(const dpcr_recurrent_plan *plan, dpcri_arena *arena, dpcri_recurrent_space *space) {
    const dpcr_recurrent *n = plan->network;
    int64_t e = 0, x = 0, before = 0, sums = 0;
    for (int64_t c = 0; c < n->chains; c++) {
        const int64_t blocks = plan->chains[c] ? dpcri_recurrent_blocks(plan, c) : 1;
        if (blocks == 1 && !dpcri_recurrent_gathers(plan)) continue;
        int64_t rows = 0, numbers[3] = {0};
        const int64_t each[3] = {dpcri_recurrent_block_width(&plan->layers[c]), dpcri_recurrent_inputs(n, c),
                                 n->options.hidden};
        if (!dpcri_mul(dpcri_recurrent_block_window(plan, c), plan->options.batch, &rows)) arena->overflow = true;
        for (int i = 0; i < 3; i++)
            if (!dpcri_mul(rows, each[i], &numbers[i])) arena->overflow = true;
        const int64_t own = blocks > 1 ? blocks * dpcri_recurrent_own_parameters(n, c) : 0;
        e = numbers[0] > e ? numbers[0] : e;
        x = numbers[1] > x ? numbers[1] : x;
        before = numbers[2] > before ? numbers[2] : before;
        sums = own > sums ? own : sums;
    }
    if (e == 0) return;
    space->block_e = dpcri_arena_take(arena, e, n->element);
    space->block_x = dpcri_arena_take(arena, x, n->element);
    space->block_before = dpcri_arena_take(arena, before, n->element);
    space->block_sums = sums > 0 ? dpcri_arena_take(arena, sums, n->element) : NULL;
}

static void take_outputs(const dpcr_recurrent_plan *plan, dpcri_arena *arena, dpcri_recurrent_space *space) {
    const dpcr_recurrent *n = plan->network;
    const bool drops = plan->options.training && plan->options.dropout > 0;
    for (int64_t l = 0; l < n->options.layers; l++) {
        space->outputs[l] = l + 1 < n->options.layers ? take(plan, arena, outputs_of(n)) : NULL;
        space->dropped[l] = l + 1 < n->options.layers && drops ? take(plan, arena, outputs_of(n)) : NULL;
    }
}

void dpcri_recurrent_carve_tape(const dpcr_recurrent_plan *plan, dpcri_arena *arena, dpcri_recurrent_space *space) {
    const dpcr_recurrent *n = plan->network;
    take_outputs(plan, arena, space);
    for (int64_t c = 0; c < n->chains; c++) {
        space->kept[c].gates = plan->options.recompute ? NULL : take(plan, arena, dpcri_recurrent_taped(n));
        const bool apart = !dpcri_recurrent_flow_of(plan, c).in_outputs;
        space->kept[c].states = apart ? take(plan, arena, state_of(n)) : NULL;
    }
}

static int64_t widest_input(const dpcr_recurrent *n) {
    return n->options.layers > 1 && outputs_of(n) > n->options.inputs ? outputs_of(n) : n->options.inputs;
}

// Going back wants the Jacobians made again where no loop of adjoints runs.
static bool wants_products(const dpcr_recurrent_plan *plan, bool backward) {
    for (int64_t c = 0; c < plan->network->chains; c++)
        if (plan->layers[c].ahead && !(backward && dpcri_recurrent_back_by_loop(plan, c))) return true;
    return false;
}

bool dpcri_recurrent_back_by_loop(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_scheme scheme = dpcr_solve_plan_backward(plan->chains[chain]);
    return scheme == DPCR_SCHEME_SEQUENTIAL || scheme == DPCR_SCHEME_OVERLAP;
}

void dpcri_recurrent_carve_workspace(const dpcr_recurrent_plan *plan, bool backward, dpcri_arena *arena,
                                     dpcri_recurrent_space *space) {
    const dpcr_recurrent *n = plan->network;
    const bool copied = plan->options.packed && (n->directions == 2 || n->options.reverse);
    if (!plan->options.training) {
        take_outputs(plan, arena, space);
        // One place serves all chains: their states are looked at before the next one runs.
        void *states = dpcri_gates_state[n->gates] == 2 || copied ? take(plan, arena, state_of(n)) : NULL;
        for (int64_t c = 0; c < n->chains; c++)
            space->kept[c] =
                (dpcri_recurrent_kept){.states = dpcri_recurrent_flow_of(plan, c).in_outputs ? NULL : states};
    }
    space->products =
        wants_products(plan, backward) ? take(plan, arena, dpcri_gates_count[n->gates] * n->options.hidden) : NULL;
    const bool cleared = backward && plan->options.packed;  // x with zeros past the ends
    space->reversed = copied || cleared ? take(plan, arena, widest_input(n)) : NULL;
    space->initial = take_rows(plan, arena, state_of(n));
    space->direct = space->back_reversed = space->outer[0] = space->outer[1] = NULL;
    space->last = space->initial_back = space->zeros = space->before = space->e = NULL;
    space->block_e = space->block_x = space->block_before = space->block_sums = NULL;
    space->marks = NULL;
    if (plan->options.resets) {
        space->marks = take_marks(plan, arena);
        space->zeros = dpcri_arena_take(arena, state_of(n), n->element);
        space->before = backward ? take(plan, arena, state_of(n)) : NULL;
    }
    if (backward) {
        space->direct = take(plan, arena, state_of(n));
        space->back_reversed = copied ? take(plan, arena, widest_input(n)) : NULL;
        for (int i = 0; i < 2; i++) space->outer[i] = n->options.layers > 1 ? take(plan, arena, outputs_of(n)) : NULL;
        space->last = take_rows(plan, arena, state_of(n));
        space->initial_back = take_rows(plan, arena, state_of(n));
        int64_t width = 0;
        if (!dpcri_mul(dpcri_recurrent_window(plan), dpcri_recurrent_taped(n), &width)) arena->overflow = true;
        space->e = plan->options.recompute ? take_rows(plan, arena, width) : NULL;
        take_blocks(plan, arena, space);
    }
    space->solve_bytes = 0;
    for (int64_t c = 0; c < n->chains; c++) {
        const size_t bytes = plan->chains[c] ? dpcr_solve_plan_workspace(plan->chains[c]) : 0;
        if (bytes > space->solve_bytes) space->solve_bytes = bytes;
    }
    if (space->solve_bytes == SIZE_MAX) arena->overflow = true;
    space->solve = dpcri_arena_take(arena, arena->overflow ? 0 : (int64_t)space->solve_bytes, 1);
}

void dpcri_recurrent_carve_sums(const dpcr_recurrent_plan *plan, int64_t chain, dpcri_arena *arena,
                                dpcri_recurrent_space *space) {
    const bool cleared = plan->options.packed && !dpcri_recurrent_flow_of(plan, chain).copied;
    if (cleared) space->reversed = take(plan, arena, plan->layers[chain].inputs);
    space->before = plan->options.resets ? take(plan, arena, state_of(plan->network)) : NULL;
    take_blocks(plan, arena, space);
}

static size_t count_bytes(const dpcr_recurrent_plan *plan, bool tape, bool backward) {
    dpcri_arena arena = {0};
    dpcri_recurrent_space space = {.outputs = plan->outputs, .dropped = plan->dropped, .kept = plan->kept};
    if (tape)
        dpcri_recurrent_carve_tape(plan, &arena, &space);
    else
        dpcri_recurrent_carve_workspace(plan, backward, &arena, &space);
    return arena.overflow ? SIZE_MAX : arena.used;
}

size_t dpcr_recurrent_plan_workspace(const dpcr_recurrent_plan *plan) {
    if (!plan) return 0;
    if (plan->kernels) return plan->device_bytes;
    const size_t forward = count_bytes(plan, false, false);
    const size_t backward = plan->options.training ? count_bytes(plan, false, true) : 0;
    return forward > backward ? forward : backward;
}

size_t dpcr_recurrent_plan_tape(const dpcr_recurrent_plan *plan) {
    return plan && plan->options.training && !plan->kernels ? count_bytes(plan, true, false) : 0;
}

// ---- making one ----

static dpcr_status check_plan(const dpcr_recurrent *n, const dpcr_recurrent_plan_options *o, dpcr_error *error) {
    int64_t numbers = 0;
    if (o->length < 0 || o->batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_plan: length %lld, batch %lld; wanted none negative",
                          (long long)o->length, (long long)o->batch);
    const int64_t widest = 16 * (n->options.hidden + n->options.inputs) * 8;
    if (!dpcri_mul(o->length, o->batch, &numbers) || !dpcri_mul(numbers, widest, &numbers) ||
        o->length > INT64_MAX / widest || o->batch > INT64_MAX / widest)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "recurrent_plan: length %lld times batch %lld is more than memory can number",
                          (long long)o->length, (long long)o->batch);
    if (!(o->dropout >= 0 && o->dropout <= 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_plan: dropout is %g, wanted 0..1", o->dropout);
    if (o->solve.size && o->solve.guess == DPCR_GUESS_GIVEN)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "recurrent_plan: guess is given, but states lie in the workspace; wanted any other guess");
    return DPCR_OK;
}

// Whether Jacobians are made by the way back, for which weights must be laid out then.
static bool makes_jacobians(const dpcr_recurrent *n) {
    return n->cell.varied && dpcri_recurrent_w(n) <= DPCRI_RECURRENT_JACOBIAN;
}

// Memory of the packed weights of all layers; with memory NULL it is counted.
static bool carve_packed(dpcr_recurrent_plan *plan, dpcri_arena *arena) {
    for (int64_t c = 0; c < plan->network->chains; c++) {
        dpcri_recurrent *layer = &plan->layers[c];
        dpcri_recurrent_sizes sizes;
        if (!dpcri_recurrent_sizes_of(layer, &sizes)) return false;
        layer->gates.forward = dpcri_arena_take(arena, sizes.forward, layer->kernels->element);
        const bool back = plan->options.training || makes_jacobians(plan->network);
        layer->gates.backward = dpcri_arena_take(arena, back ? sizes.backward : 0, layer->kernels->element);
        layer->gates.variant.peephole = dpcri_arena_take(arena, sizes.peephole, layer->kernels->element);
        layer->gates.variant.project = dpcri_arena_take(arena, sizes.project, layer->kernels->element);
        layer->gates.variant.unproject = dpcri_arena_take(arena, back ? sizes.unproject : 0, layer->kernels->element);
        layer->panels = dpcri_arena_take(arena, sizes.panels, layer->kernels->element);
        layer->bias = dpcri_arena_take(arena, sizes.bias, layer->kernels->element);
        layer->gates.bias = dpcri_arena_take(arena, sizes.hidden_bias, layer->kernels->element);
    }
    return !arena->overflow;
}

// The loop over many sequences keeps all threads at work by itself, and the products of a block of steps in cache.
static bool wide_loop(const dpcr_recurrent_plan *plan) {
    const dpcr_solve_options *o = &plan->options.solve;
    return (!o->size || o->method == DPCR_METHOD_SEQUENTIAL) && plan->options.batch >= MANY;
}

static size_t memory_limit(const dpcr_recurrent_plan *plan) {
    return plan->options.solve.size ? plan->options.solve.memory_limit : 0;
}

static bool multiplied_ahead(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const double gates = (double)dpcri_gates_count[n->gates] * (double)n->options.hidden * (double)n->element;
    const double products = gates * (double)plan->options.length * (double)plan->options.batch;
    if (memory_limit(plan) && products > (double)memory_limit(plan)) return false;
    if (dpcri_gates_apart(n->gates)) return !wide_loop(plan);
    return plan->options.batch <= FEW && gates * (double)dpcri_recurrent_inputs(n, chain) >= LARGE_INPUT_BYTES &&
           products <= MOST_AHEAD_BYTES;
}

// What is left of the limit beside the methods' own memory may be too little for products.
static void keep_products_within_limit(dpcr_recurrent_plan *plan) {
    if (!memory_limit(plan) || dpcr_recurrent_plan_workspace(plan) <= memory_limit(plan)) return;
    for (int64_t c = 0; c < plan->network->chains; c++) plan->layers[c].ahead = false;
}

static dpcr_status make_layers(dpcr_recurrent_plan *plan, dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const dpcri_para_kernels *apart = dpcri_gates_apart(n->gates) ? dpcri_para_kernels_get(n->options.dtype) : NULL;
    for (int64_t c = 0; c < n->chains; c++) {
        plan->layers[c] = (dpcri_recurrent){
            .context = plan->context,
            .dtype = n->options.dtype,
            .nn = dpcri_nn_kernels_get(n->options.dtype),
            .kernels = apart ? &apart->gates : dpcri_gates_kernels_get(n->options.dtype),
            .apart = apart,
            .ahead = multiplied_ahead(plan, c),
            .gates = n->cell,
            .length = plan->options.length,
            .batch = plan->options.batch,
            .inputs = dpcri_recurrent_inputs(n, c),
            .weight_ih = dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_IH)),
            .weight_hh = dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_HH)),
            .weight_hr = dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_HR)),
            .weight_ch = dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_CH)),
            .peephole = dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_PEEPHOLE))};
    }
    dpcri_arena arena = {0};
    if (!carve_packed(plan, &arena))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "recurrent_plan: the weights do not fit");
    plan->packed = dpcri_alloc(plan->context, arena.used + 64);
    if (!plan->packed)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory for packed weights (%zu bytes)",
                          arena.used);
    arena = (dpcri_arena){.base = (unsigned char *)plan->packed, .size = arena.used};
    carve_packed(plan, &arena);
    return DPCR_OK;
}

void dpcri_recurrent_lay_out(dpcr_recurrent_plan *plan) {
    const dpcr_recurrent *n = plan->network;
    if (plan->laid_out) return;
    for (int64_t c = 0; c < n->chains; c++)
        dpcri_recurrent_pack(&plan->layers[c],
                             dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_BIAS_IH)),
                             dpcri_recurrent_at(n, n->parameters, dpcri_recurrent_offset(n, c, DPCRI_BIAS_HH)));
    plan->laid_out = plan->options.frozen != 0;
    if (makes_jacobians(n)) dpcri_recurrent_lay_out_back(plan);
}

void dpcri_recurrent_lay_out_back(dpcr_recurrent_plan *plan) {
    if (plan->laid_out_back) return;
    for (int64_t c = 0; c < plan->network->chains; c++) dpcri_recurrent_pack_back(&plan->layers[c]);
    plan->laid_out_back = plan->options.frozen != 0;
}

// Not for training there are no weights for the way back. Not NULL: room for Jacobians would be counted instead.
static int no_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                      const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                      const dpcr_array *first_out) {
    (void)user, (void)span, (void)in, (void)tape, (void)direct, (void)last, (void)adjoint, (void)first_out;
    return DPCR_ERROR_UNSUPPORTED;
}

void dpcri_recurrent_divide(const dpcr_recurrent_plan *plan, int64_t chain, const int64_t *lengths) {
    dpcri_recurrent *layer = &plan->layers[chain];
    const int64_t B = plan->options.batch;
    dpcr_steps steps;
    dpcri_recurrent_steps(layer, &steps);
    steps.ends = lengths;
    const int64_t rows = layer->blocks > 1 ? dpcri_back_block(&steps) : B;
    for (int64_t k = 0; k <= layer->blocks; k++)
        layer->block_begin[k] = B > 0 ? dpcri_block_begin(&steps, 0, steps.length, 0, B, rows, k) : 0;
}

void dpcri_recurrent_plan_steps(const dpcr_recurrent_plan *plan, int64_t chain, dpcr_steps *steps) {
    dpcri_recurrent *layer = &plan->layers[chain];
    layer->blocks = dpcri_recurrent_blocks(plan, chain);
    dpcri_recurrent_divide(plan, chain, NULL);
    dpcri_recurrent_steps(layer, steps);
    if (plan->adjoints) return;
    steps->adjoint = no_adjoint;
    steps->gradient = NULL;
}

// What is asked for of states too wide for Jacobians is refused in words of networks, not of the chains under them.
static dpcr_status check_wide(const dpcr_recurrent *n, const dpcr_solve_options *o, dpcr_error *error) {
    static const dpcr_method newtons[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DAMPED, DPCR_METHOD_DIAGONAL,
                                          DPCR_METHOD_BLOCK, DPCR_METHOD_SHOOTING};
    static const dpcr_scheme scans[] = {DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_CHUNKED};
    const char *what = NULL;
    if (dpcri_recurrent_w(n) <= DPCRI_RECURRENT_JACOBIAN || dpcri_gates_apart(n->cell.kind)) return DPCR_OK;
    for (size_t i = 0; i < sizeof newtons / sizeof newtons[0]; i++)
        if (o->method == newtons[i]) what = "method";
    for (size_t i = 0; i < sizeof scans / sizeof scans[0]; i++)
        if (!what && o->backward == scans[i]) what = "backward";
    if (!what) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "recurrent_plan: %s %s wants Jacobians, which states of at most %d numbers have; this %s has "
                      "%lld; sequential and overlap take any",
                      what, what[0] == 'm' ? dpcr_method_name(o->method) : dpcr_scheme_name(o->backward),
                      DPCRI_RECURRENT_JACOBIAN, dpcr_recurrent_kind_name(n->options.kind),
                      (long long)dpcri_recurrent_w(n));
}

static dpcr_status plan_chains(dpcr_recurrent_plan *plan, dpcr_error *error) {
    dpcr_solve_options options = plan->options.solve;
    if (!options.size) options = (dpcr_solve_options){.size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL};
    options.consume_tape = plan->options.training;
    const bool some = plan->options.length > 0 && plan->options.batch > 0;
    const bool loop = options.method == DPCR_METHOD_SEQUENTIAL && !options.backward;
    if (loop || !plan->options.training) options.backward = DPCR_SCHEME_SEQUENTIAL;  // nobody goes back, asked or not
    const dpcr_status wide = check_wide(plan->network, &options, error);
    if (wide != DPCR_OK) return wide;
    const bool open = options.method == DPCR_METHOD_AUTO || !options.backward;  // the planner tries the chain
    if (open && plan->options.sample && some) return dpcri_recurrent_sample(plan, &options, error);
    if (options.method == DPCR_METHOD_AUTO) options.method = DPCR_METHOD_SEQUENTIAL;
    if (!options.backward) options.backward = DPCR_SCHEME_SEQUENTIAL;
    for (int64_t c = 0; c < plan->network->chains; c++) {
        dpcr_steps steps;
        dpcri_recurrent_plan_steps(plan, c, &steps);
        const dpcr_status status = dpcr_solve_plan_create(plan->context, &steps, &options, &plan->chains[c], error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

dpcr_status dpcri_recurrent_solve_options(const char *call, dpcr_solve_options *solve, dpcr_error *error) {
    const dpcr_solve_options given = *solve;
    if (given.size == 0) return DPCR_OK;
    if (given.size < offsetof(dpcr_solve_options, scheme))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: options.solve.size is %zu, wanted sizeof(dpcr_solve_options), or 0 for the loop", call,
                          given.size);
    *solve = (dpcr_solve_options){0};
    DPCRI_COPY_IN(*solve, &given);
    solve->size = sizeof *solve;
    return DPCR_OK;
}

dpcr_status dpcr_recurrent_plan_create(const dpcr_recurrent *network, const dpcr_recurrent_plan_options *options,
                                       dpcr_recurrent_plan **plan, dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_plan: no place for the plan given");
    *plan = NULL;
    if (!network || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_plan: a network and options are wanted");
    if (options->size < offsetof(dpcr_recurrent_plan_options, training))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "recurrent_plan: options.size is %zu, wanted sizeof(dpcr_recurrent_plan_options)",
                          options->size);
    dpcr_recurrent_plan_options given = {0};
    DPCRI_COPY_IN(given, options);
    dpcr_status status = check_plan(network, &given, error);
    if (status == DPCR_OK) status = dpcri_recurrent_solve_options("recurrent_plan", &given.solve, error);
    if (status != DPCR_OK) return status;
    dpcr_context *context = network->context;
    dpcr_recurrent_plan *p = dpcri_alloc_zero(context, sizeof *p);
    if (!p) return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory for the plan");
    p->network = network;
    p->context = context;
    p->options = given;
    p->length = given.length;
    p->adjoints = given.training;
    if (dpcri_solve_on_device(&given.solve)) {
        status = dpcri_recurrent_plan_device(p, error);
        p->options.sample = NULL;
        if (status != DPCR_OK) goto done;
        *plan = p;
        return DPCR_OK;
    }
    if (given.batch == 0) p->options.length = 0;
    p->layers = dpcri_alloc_zero(context, (size_t)network->chains * sizeof *p->layers);
    p->chains = dpcri_alloc_zero(context, (size_t)network->chains * sizeof *p->chains);
    p->outputs = dpcri_alloc_zero(context, (size_t)network->options.layers * sizeof *p->outputs);
    p->dropped = dpcri_alloc_zero(context, (size_t)network->options.layers * sizeof *p->dropped);
    p->kept = dpcri_alloc_zero(context, (size_t)network->chains * sizeof *p->kept);
    if (!p->layers || !p->chains || !p->outputs || !p->dropped || !p->kept) {
        status = dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory for %lld chains",
                            (long long)network->chains);
        goto done;
    }
    DPCR_TRY(make_layers(p, error));
    DPCR_TRY(plan_chains(p, error));
    keep_products_within_limit(p);
    p->options.sample = NULL;
    p->laid_out = p->laid_out_back = false;
    *plan = p;
    return DPCR_OK;
done:
    dpcr_recurrent_plan_destroy(p);
    return status;
}

void dpcr_recurrent_plan_destroy(dpcr_recurrent_plan *plan) {
    if (!plan) return;
    for (int64_t c = 0; plan->chains && c < plan->network->chains; c++) dpcr_solve_plan_destroy(plan->chains[c]);
    dpcri_free(plan->context, plan->kept);
    dpcri_free(plan->context, plan->dropped);
    dpcri_free(plan->context, plan->outputs);
    dpcri_free(plan->context, plan->packed);
    dpcri_free(plan->context, plan->chains);
    dpcri_free(plan->context, plan->layers);
    dpcri_free(plan->context, plan);
}

const dpcr_solve_plan *dpcr_recurrent_plan_chain(const dpcr_recurrent_plan *plan, int64_t index) {
    return plan && plan->chains && index >= 0 && index < plan->network->chains ? plan->chains[index] : NULL;
}
