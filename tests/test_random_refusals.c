// SPDX-License-Identifier: MIT
// Arguments drawn at random, of which some fields hold what nobody should pass: numbers that are negative, huge or not
// numbers, names out of range, structures of another size, arrays of another form. Every call either refuses with a
// status and a line of words, and writes nothing, or does its work; none crashes or writes beside.
#include <limits.h>

#include "chains.h"
#include "draws.h"

static int refused, done_all;

// ---- hostile values ----

typedef enum type { INT, WIDE, REAL, BYTES } type;

typedef struct field {
    const char *name;
    size_t offset;
    type type;
} field;

#define FIELD(structure, member, kind) \
    { #member, offsetof(structure, member), kind }

static int64_t hostile_wide(void) {
    static const int64_t values[] = {-1,
                                     0,
                                     1,
                                     2,
                                     3,
                                     64,
                                     1 << 20,
                                     INT32_MAX,
                                     (int64_t)1 << 40,
                                     INT64_MAX / 64,
                                     INT64_MAX / 2,
                                     INT64_MAX - 1,
                                     INT64_MAX,
                                     INT64_MIN,
                                     INT64_MIN + 1,
                                     -7};
    return values[draw_below(sizeof values / sizeof *values)];
}

static double hostile_real(void) {
    static const double values[] = {0, -1, 1, 0.5, 1e-30, 1e30, -1e30, 1e308, INFINITY, -INFINITY, NAN, 5e-324};
    return values[draw_below(sizeof values / sizeof *values)];
}

// One field of the structure becomes something else.
static void spoil(void *structure, const field *fields, int64_t count) {
    const field *f = &fields[draw_below(count)];
    char *at = (char *)structure + f->offset;
    if (f->type == INT) {
        static const int values[] = {-1, 0, 1, 2, 3, 5, 7, 13, 64, 1000, INT_MAX, INT_MIN};
        const int value = values[draw_below(12)];
        memcpy(at, &value, sizeof value);
        tell(" %s=%d", f->name, value);
    } else if (f->type == WIDE) {
        const int64_t value = hostile_wide();
        memcpy(at, &value, sizeof value);
        tell(" %s=%lld", f->name, (long long)value);
    } else if (f->type == REAL) {
        const double value = hostile_real();
        memcpy(at, &value, sizeof value);
        tell(" %s=%g", f->name, value);
    } else {
        size_t value;
        memcpy(&value, at, sizeof value);
        // Smaller structures of older programs, and larger ones, whose end would be theirs.
        value = draw_chance(30) ? (size_t)draw_below(24) : (size_t)draw_below((int64_t)value + 1);
        memcpy(at, &value, sizeof value);
        tell(" %s=%zu", f->name, value);
    }
}

#define SPOIL(structure, fields)                                            \
    do {                                                                    \
        for (int64_t times = draw_below(3); times > 0; times--)             \
            spoil(&(structure), fields, sizeof(fields) / sizeof *(fields)); \
    } while (0)

// An array that a call must refuse, or the same. Returns whether it was touched.
static bool spoil_array(dpcr_array *a, bool written) {
    const int last = a->ndim - 1;
    switch (draw_below(11)) {
        case 0: a->ndim = (int32_t)draw_between(-1, DPCR_MAX_DIMS + 1); break;
        case 1: a->dtype = (dpcr_dtype)draw_between(0, 4); break;
        case 2: a->shape[draw_below(a->ndim)] += draw_chance(50) ? 1 : -1; break;
        case 3: a->shape[draw_below(a->ndim)] = hostile_wide(); break;
        case 4:
            if (a->shape[last] > 1) a->strides[last] = draw_chance(50) ? 2 : -1;
            break;
        case 5: a->data = NULL; break;
        case 6: a->device.type = (dpcr_device_type)draw_between(-1, 3); break;
        case 7:
            if (written && a->shape[0] > 1) a->strides[0] = 0;
            break;
        default: return false;
    }
    tell(" array");
    return true;
}

// ---- a context that grants no large memory ----

static void *grant(void *user, size_t bytes, size_t alignment) {
    (void)user;
    return bytes > (size_t)1 << 27 ? NULL : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void take_back(void *user, void *memory) {
    (void)user;
    free(memory);
}

static dpcr_context *frugal;

static int open_all(void **state) {
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 2, .allocate = grant, .release = take_back};
    assert_int_equal(dpcr_context_create(&options, &frugal, NULL), DPCR_OK);
    return draw_open_contexts(state);
}

static int close_all(void **state) {
    dpcr_context_destroy(frugal);
    return draw_close_contexts(state);
}

// Whatever the status, words go with it; true: it was done.
static bool went(dpcr_status status, dpcr_error *error, const char *call) {
    tell(" %s %d", call, (int)status);
    check_words(status, error);
    *error = (dpcr_error){0};
    if (status != DPCR_OK)
        refused++;
    else
        done_all++;
    return status == DPCR_OK;
}

static void fill_with(const table *t) {
    for (int64_t l = 0; l < (t->steps < 0 ? 1 : t->steps); l++)
        for (int64_t b = 0; b < t->rows; b++)
            for (int64_t i = 0; i < t->values; i++)
                if (t->view.dtype != DPCR_U32) table_put(t, l, b, i, 0.5 * draw_signed());
}

// Too large to be tried.
static bool beyond(size_t workspace) { return workspace > MOST_BYTES / 2; }

// ---- linear chains ----

static const field shape_fields[] = {
    FIELD(dpcr_chain_shape, size, BYTES),
    FIELD(dpcr_chain_shape, length, WIDE),
    FIELD(dpcr_chain_shape, batch, WIDE),
    FIELD(dpcr_chain_shape, transition.structure, INT),
    FIELD(dpcr_chain_shape, transition.rows, WIDE),
    FIELD(dpcr_chain_shape, transition.cols, WIDE),
    FIELD(dpcr_chain_shape, transition.block, WIDE),
    FIELD(dpcr_chain_shape, dtype, INT),
};

static const field chain_fields[] = {
    FIELD(dpcr_chain_options, size, BYTES),      FIELD(dpcr_chain_options, scheme, INT),
    FIELD(dpcr_chain_options, chunk, WIDE),      FIELD(dpcr_chain_options, levels, INT),
    FIELD(dpcr_chain_options, warm_up, WIDE),    FIELD(dpcr_chain_options, tolerance, REAL),
    FIELD(dpcr_chain_options, max_sweeps, INT),  FIELD(dpcr_chain_options, planning, INT),
    FIELD(dpcr_chain_options, device.type, INT),
};

static void draw_chain(void) {
    static const dpcr_dtype dtypes[] = {DPCR_F32, DPCR_F64, DPCR_U32};
    const int64_t L = draw_between(0, 60), B = draw_between(0, 4), k = draw_between(1, 3), w = k * draw_between(1, 3);
    const dpcr_transition t = dpcr_transition_square((dpcr_structure)draw_below(DPCR_CSR), w, k);
    dpcr_chain_shape shape = {.size = sizeof shape,
                              .length = L,
                              .batch = B,
                              .transition = t,
                              .dtype = dtypes[draw_below(3)],
                              .transposed = draw_chance(30)};
    dpcr_chain_options options = {.size = sizeof options,
                                  .scheme = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT),
                                  .chunk = draw_below(20),
                                  .warm_up = draw_below(20),
                                  .planning_seconds = 0.001};
    const dpcr_chain_shape right = shape;
    if (draw_chance(60)) SPOIL(options, chain_fields);
    if (draw_chance(50)) SPOIL(shape, shape_fields);
    dpcr_error error = {0};
    dpcr_chain_plan *plan = (dpcr_chain_plan *)1;
    if (!went(dpcr_chain_plan_create(frugal, &shape, &options, &plan, &error), &error, "plan")) {
        if (plan) wrong("a refused plan is not NULL");
        return;
    }
    const bool same =
        memcmp(&shape, &right, sizeof shape) == 0 && dpcr_chain_plan_options(plan)->device.type != DPCR_CUDA;
    if (!same || beyond(dpcr_chain_plan_workspace(plan))) {
        dpcr_chain_plan_destroy(plan);
        return;
    }
    piece space = draw_scratch(dpcr_chain_plan_workspace(plan));
    table a = draw_table("a", shape.dtype, L, B, dpcr_transition_values(&t), STRIDED | SHARED);
    table b = draw_table("b", shape.dtype, L, B, w, STRIDED), z0 = draw_table("z0", shape.dtype, -1, B, w, STRIDED);
    table z = draw_table("z", shape.dtype, L, B, w, STRIDED | WRITTEN);
    table other = draw_table("other", shape.dtype, L, B, w, STRIDED | WRITTEN);
    fill_with(&a), fill_with(&b), fill_with(&z0);
    keep_sum(&a), keep_sum(&b), keep_sum(&z0);
    dpcr_array arrays[] = {a.view, b.view, z0.view, z.view, other.view};
    const int which = (int)draw_below(5);
    if (draw_chance(70)) spoil_array(&arrays[which], which > 2);
    const size_t bytes = space.bytes && draw_chance(10) ? (size_t)draw_below((int64_t)space.bytes) : space.bytes;
    char *at = space.data + (bytes >= 64 && draw_chance(5) ? 4 : 0);
    void *const workspace = draw_chance(3) ? NULL : at;
    dpcr_chain_report report = {.size = draw_chance(90) ? sizeof report : (size_t)draw_below(sizeof report)};
    const dpcr_array *const start = draw_chance(50) ? &arrays[2] : NULL;
    keep_sum(&z);
    const bool solved =
        went(dpcr_chain_execute(plan, draw_chance(97) ? &arrays[0] : NULL, draw_chance(98) ? &arrays[1] : NULL, start,
                                draw_chance(98) ? &arrays[3] : NULL, workspace, bytes, &report, &error),
             &error, "execute");
    if (solved && workspace && bytes < space.bytes) wrong("a short workspace was taken");
    if (solved)
        check_gaps(&z);
    else
        check_kept(&z);
    keep_sum(&other);
    const bool back = draw_chance(50) ? went(dpcr_chain_jvp(plan, &arrays[0], start, &arrays[3], NULL, &arrays[1], NULL,
                                                            &arrays[4], workspace, bytes, &error),
                                             &error, "jvp")
                                      : went(dpcr_chain_vjp(plan, &arrays[0], start, &arrays[3], &arrays[1], NULL,
                                                            &arrays[4], NULL, workspace, bytes, &error),
                                             &error, "vjp");
    if (back)
        check_gaps(&other);
    else
        check_kept(&other);
    check_around(&space, "workspace"), check_kept(&a), check_kept(&b), check_kept(&z0);
    dpcr_chain_plan_destroy(plan);
}

// ---- nonlinear chains ----

static const field solve_fields[] = {
    FIELD(dpcr_solve_options, size, BYTES),          FIELD(dpcr_solve_options, method, INT),
    FIELD(dpcr_solve_options, scheme, INT),          FIELD(dpcr_solve_options, backward, INT),
    FIELD(dpcr_solve_options, guess, INT),           FIELD(dpcr_solve_options, atol, REAL),
    FIELD(dpcr_solve_options, rtol, REAL),           FIELD(dpcr_solve_options, window, WIDE),
    FIELD(dpcr_solve_options, chunk, WIDE),          FIELD(dpcr_solve_options, warm_up, WIDE),
    FIELD(dpcr_solve_options, block, WIDE),          FIELD(dpcr_solve_options, damping, REAL),
    FIELD(dpcr_solve_options, max_sweeps, INT),      FIELD(dpcr_solve_options, memory_limit, WIDE),
    FIELD(dpcr_solve_options, planning, INT),        FIELD(dpcr_solve_options, lock, INT),
    FIELD(dpcr_solve_options, order, WIDE),          FIELD(dpcr_solve_options, mixed, INT),
    FIELD(dpcr_solve_options, confirm, REAL),        FIELD(dpcr_solve_options, device.type, INT),
    FIELD(dpcr_solve_options, backward_chunk, WIDE), FIELD(dpcr_solve_options, backward_warm_up, WIDE),
    FIELD(dpcr_solve_options, join_tolerance, REAL),
};

// Not what the callbacks take on trust: width and the Jacobian's form.
static const field steps_fields[] = {
    FIELD(dpcr_steps, size, BYTES), FIELD(dpcr_steps, length, WIDE),        FIELD(dpcr_steps, batch, WIDE),
    FIELD(dpcr_steps, dtype, INT),  FIELD(dpcr_steps, jacobian.rows, WIDE), FIELD(dpcr_steps, tape_values, WIDE),
    FIELD(dpcr_steps, lanes, WIDE),
};

static void draw_solve(void) {
    const double gains[2] = {0.8, 0};
    chain c = {.step = step_tanh,
               .length = draw_between(0, 60),
               .batch = draw_between(0, 4),
               .width = draw_between(1, 6),
               .dtype = draw_chance(50) ? DPCR_F32 : DPCR_F64,
               .parameters = gains};
    dpcr_steps steps = chain_steps(&c);
    const dpcr_steps right = steps;
    dpcr_solve_options options = {.size = sizeof options,
                                  .method = (dpcr_method)draw_below(DPCR_METHOD_COUNT),
                                  .backward = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT),
                                  .chunk = draw_below(20),
                                  .warm_up = draw_below(20),
                                  .planning_seconds = 0.001};
    if (draw_chance(70)) SPOIL(options, solve_fields);
    if (draw_chance(30)) SPOIL(steps, steps_fields);
    if (draw_chance(5)) steps.advance = NULL;
    dpcr_error error = {0};
    dpcr_solve_plan *plan = (dpcr_solve_plan *)1;
    if (!went(dpcr_solve_plan_create(frugal, &steps, &options, &plan, &error), &error, "plan")) {
        if (plan) wrong("a refused plan is not NULL");
        return;
    }
    dpcr_candidate candidate = {.size = sizeof candidate};
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &candidate); i++) continue;
    if (memcmp(&steps, &right, sizeof steps) != 0 || beyond(dpcr_solve_plan_workspace(plan)) ||
        dpcr_solve_plan_options(plan)->device.type == DPCR_CUDA) {
        dpcr_solve_plan_destroy(plan);
        return;
    }
    const int64_t L = c.length, B = c.batch, w = c.width;
    piece space = draw_scratch(dpcr_solve_plan_workspace(plan));
    table z0 = draw_table("z0", c.dtype, -1, B, w, STRIDED), g = draw_table("direct", c.dtype, L, B, w, STRIDED);
    table z = draw_table("z", c.dtype, L, B, w, STRIDED | WRITTEN);
    table lambda = draw_table("lambda", c.dtype, L, B, w, STRIDED | WRITTEN);
    fill_with(&z0), fill_with(&g), fill_with(&z);
    keep_sum(&z0), keep_sum(&g), keep_sum(&z);
    dpcr_array arrays[] = {z0.view, g.view, z.view, lambda.view};
    const int which = (int)draw_below(4);
    if (draw_chance(60)) spoil_array(&arrays[which], false);
    const size_t bytes = space.bytes && draw_chance(10) ? (size_t)draw_below((int64_t)space.bytes) : space.bytes;
    char *at = space.data + (bytes >= 64 && draw_chance(5) ? 4 : 0);
    void *const workspace = draw_chance(3) ? NULL : at;
    const bool solved =
        went(dpcr_solve_execute(plan, draw_chance(98) ? &arrays[0] : NULL, draw_chance(98) ? &arrays[2] : NULL, NULL,
                                workspace, bytes, NULL, &error),
             &error, "execute");
    if (solved && bytes < space.bytes) wrong("a short workspace was taken");
    if (solved)
        check_gaps(&z);
    else
        check_kept(&z);
    keep_sum(&lambda);
    if (went(dpcr_solve_backward(plan, &arrays[0], &arrays[2], NULL, &arrays[1], NULL, &arrays[3], NULL, workspace,
                                 bytes, NULL, &error),
             &error, "backward"))
        check_gaps(&lambda);
    else
        check_kept(&lambda);
    check_around(&space, "workspace"), check_kept(&z0), check_kept(&g);
    dpcr_solve_plan_destroy(plan);
}

// ---- networks, cells and recurrent networks ----

static const field model_fields[] = {
    FIELD(dpcr_model_options, size, BYTES),     FIELD(dpcr_model_options, architecture, INT),
    FIELD(dpcr_model_options, dtype, INT),      FIELD(dpcr_model_options, inputs, WIDE),
    FIELD(dpcr_model_options, outputs, WIDE),   FIELD(dpcr_model_options, layers, WIDE),
    FIELD(dpcr_model_options, width, WIDE),     FIELD(dpcr_model_options, hidden, WIDE),
    FIELD(dpcr_model_options, activation, INT), FIELD(dpcr_model_options, branch, INT),
    FIELD(dpcr_model_options, layer_norm, INT), FIELD(dpcr_model_options, scale, REAL),
    FIELD(dpcr_model_options, tie, WIDE),
};

static void draw_model(void) {
    dpcr_model_options o = {.size = sizeof o,
                            .architecture = DPCR_RESNET,
                            .layers = draw_between(0, 9),
                            .width = draw_between(1, 9),
                            .inputs = draw_below(4),
                            .outputs = draw_below(4),
                            .branch = (dpcr_branch)draw_below(2)};
    SPOIL(o, model_fields);
    dpcr_error error = {0};
    dpcr_model *model = (dpcr_model *)1;
    if (!went(dpcr_model_create(frugal, &o, &model, &error), &error, "model")) {
        if (model) wrong("a refused model is not NULL");
        return;
    }
    dpcr_steps steps = {.size = sizeof steps};
    const int64_t batch = hostile_wide();
    tell(" batch %lld", (long long)batch);
    if (went(dpcr_model_steps(model, batch, &steps, &error), &error, "steps")) {
        dpcr_solve_plan *plan = NULL;
        const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL};
        went(dpcr_solve_plan_create(frugal, &steps, &options, &plan, &error), &error, "plan");
        dpcr_solve_plan_destroy(plan);
    }
    char name[64];
    went(dpcr_model_parameter(model, hostile_wide(), name, (size_t)draw_below(65), NULL, NULL, &error), &error,
         "parameter");
    dpcr_model_destroy(model);
}

static const field cell_fields[] = {
    FIELD(dpcr_cell_options, size, BYTES),     FIELD(dpcr_cell_options, kind, INT),
    FIELD(dpcr_cell_options, dtype, INT),      FIELD(dpcr_cell_options, length, WIDE),
    FIELD(dpcr_cell_options, batch, WIDE),     FIELD(dpcr_cell_options, width, WIDE),
    FIELD(dpcr_cell_options, activation, INT), FIELD(dpcr_cell_options, scale, REAL),
};

static void draw_cell(void) {
    const int64_t L = draw_between(1, 20), B = draw_between(1, 3), w = draw_between(1, 5);
    table weight = draw_table("weight", DPCR_F32, 1, w, w, PLAIN),
          input = draw_table("input", DPCR_F32, L, B, w, PLAIN);
    table gradient = draw_table("gradient", DPCR_F32, L, B, w, WRITTEN);
    dpcr_cell_options o = {.size = sizeof o,
                           .kind = DPCR_CELL_DENSE,
                           .dtype = DPCR_F32,
                           .length = L,
                           .batch = B,
                           .width = w,
                           .weight = dpcr_array_make(weight.view.data, DPCR_F32, 2, (const int64_t[]){w, w}),
                           .input = input.view,
                           .input_gradient = gradient.view};
    SPOIL(o, cell_fields);
    if (draw_chance(50)) {
        dpcr_array *const all[] = {&o.weight, &o.input, &o.input_gradient, &o.weight_gradient};
        dpcr_array *const a = all[draw_below(4)];
        if (a->ndim) spoil_array(a, false);
    }
    dpcr_error error = {0};
    dpcr_cell *cell = (dpcr_cell *)1;
    if (!went(dpcr_cell_create(frugal, &o, &cell, &error), &error, "cell")) {
        if (cell) wrong("a refused cell is not NULL");
        return;
    }
    dpcr_steps steps = {.size = (size_t)draw_below(sizeof steps + 1)};
    went(dpcr_cell_steps(cell, &steps, &error), &error, "steps");
    dpcr_cell_destroy(cell);
}

static const field recurrent_fields[] = {
    FIELD(dpcr_recurrent_options, size, BYTES),        FIELD(dpcr_recurrent_options, kind, INT),
    FIELD(dpcr_recurrent_options, dtype, INT),         FIELD(dpcr_recurrent_options, inputs, WIDE),
    FIELD(dpcr_recurrent_options, hidden, WIDE),       FIELD(dpcr_recurrent_options, layers, WIDE),
    FIELD(dpcr_recurrent_options, bidirectional, INT), FIELD(dpcr_recurrent_options, projection, WIDE),
    FIELD(dpcr_recurrent_options, reverse, INT),       FIELD(dpcr_recurrent_options, reset_before, INT),
    FIELD(dpcr_recurrent_options, peepholes, INT),     FIELD(dpcr_recurrent_options, input_forget, INT),
    FIELD(dpcr_recurrent_options, clip, REAL),
};

static const field plan_fields[] = {
    FIELD(dpcr_recurrent_plan_options, size, BYTES),
    FIELD(dpcr_recurrent_plan_options, length, WIDE),
    FIELD(dpcr_recurrent_plan_options, batch, WIDE),
    FIELD(dpcr_recurrent_plan_options, training, INT),
    FIELD(dpcr_recurrent_plan_options, packed, INT),
    FIELD(dpcr_recurrent_plan_options, frozen, INT),
    FIELD(dpcr_recurrent_plan_options, dropout, REAL),
    FIELD(dpcr_recurrent_plan_options, solve.size, BYTES),
    FIELD(dpcr_recurrent_plan_options, solve.method, INT),
    FIELD(dpcr_recurrent_plan_options, solve.backward, INT),
    FIELD(dpcr_recurrent_plan_options, solve.chunk, WIDE),
    FIELD(dpcr_recurrent_plan_options, solve.atol, REAL),
    FIELD(dpcr_recurrent_plan_options, solve.memory_limit, WIDE),
};

static void run_recurrent(const dpcr_recurrent *network, dpcr_recurrent_plan *plan, int64_t T, int64_t B,
                          bool training) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(network);
    const int64_t D = o->bidirectional ? 2 : 1, H = o->projection ? o->projection : o->hidden, N = o->layers * D;
    dpcr_error error = {0};
    if (beyond((size_t)(T * B + N) * (size_t)(o->inputs + D * H) * 8)) return;
    if (beyond(dpcr_recurrent_plan_workspace(plan)) || beyond(dpcr_recurrent_plan_tape(plan))) return;
    piece space = draw_scratch(dpcr_recurrent_plan_workspace(plan)),
          tape = draw_scratch(dpcr_recurrent_plan_tape(plan));
    table x = draw_table("x", o->dtype, T, B, o->inputs, PLAIN), h0 = draw_table("h0", o->dtype, N, B, H, PLAIN);
    table y = draw_table("y", o->dtype, T, B, D * H, WRITTEN), ht = draw_table("ht", o->dtype, N, B, H, WRITTEN);
    fill_with(&x), fill_with(&h0);
    keep_sum(&x), keep_sum(&h0), keep_sum(&y), keep_sum(&ht);
    int64_t lengths[8];
    for (int i = 0; i < 8; i++) lengths[i] = draw_chance(90) ? T : hostile_wide();
    unsigned char marks[1024] = {0};
    dpcr_recurrent_pass pass = {.size = draw_chance(90) ? sizeof pass : (size_t)draw_below(sizeof pass),
                                .x = x.view,
                                .h0 = h0.view,
                                .y = y.view,
                                .ht = ht.view,
                                .lengths = draw_chance(30) ? lengths : NULL,
                                .resets = draw_chance(10) ? marks : NULL};
    dpcr_array *const arrays[] = {&pass.x, &pass.h0, &pass.y, &pass.ht, &pass.c0};
    if (draw_chance(50)) {
        dpcr_array *const a = arrays[draw_below(4)];
        spoil_array(a, false);
    }
    const size_t bytes = space.bytes && draw_chance(10) ? (size_t)draw_below((int64_t)space.bytes) : space.bytes;
    if (!went(dpcr_recurrent_execute(plan, &pass, training ? tape.data : NULL, space.data, bytes, NULL, &error), &error,
              "execute"))
        check_kept(&y), check_kept(&ht);
    check_gaps(&y), check_gaps(&ht), check_kept(&x), check_kept(&h0);
    check_around(&space, "workspace"), check_around(&tape, "tape");
}

static void draw_recurrent(void) {
    dpcr_recurrent_options o = {.size = sizeof o,
                                .kind = (dpcr_recurrent_kind)draw_between(1, 7),
                                .inputs = draw_between(1, 5),
                                .hidden = draw_between(1, 9),
                                .layers = draw_between(1, 2)};
    if (draw_chance(50)) SPOIL(o, recurrent_fields);
    dpcr_error error = {0};
    dpcr_recurrent *network = (dpcr_recurrent *)1;
    if (!went(dpcr_recurrent_create(frugal, &o, &network, &error), &error, "network")) {
        if (network) wrong("a refused network is not NULL");
        return;
    }
    const int64_t T = draw_between(0, 40), B = draw_between(0, 8);
    dpcr_recurrent_plan_options p = {.size = sizeof p, .length = T, .batch = B, .training = draw_chance(50)};
    p.solve.size = sizeof p.solve;
    p.solve.method = DPCR_METHOD_OVERLAP;
    SPOIL(p, plan_fields);
    dpcr_recurrent_plan *plan = (dpcr_recurrent_plan *)1;
    const bool planned = went(dpcr_recurrent_plan_create(network, &p, &plan, &error), &error, "plan");
    if (!planned && plan) wrong("a refused plan is not NULL");
    const bool whole = p.size == sizeof p && p.length == T && p.batch == B;
    if (planned && whole) run_recurrent(network, plan, T, B, p.training != 0);
    if (planned) dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
}

static void tell_counts(void) { print_message("%d done, %d refused\n", done_all, refused), done_all = refused = 0; }

static void chains(void **state) {
    (void)state;
    run_draws("refused chain", 2000, draw_chain);
    tell_counts();
}

static void solves(void **state) {
    (void)state;
    run_draws("refused solve", 1500, draw_solve);
    tell_counts();
}

static void models(void **state) {
    (void)state;
    run_draws("refused model", 1000, draw_model);
    run_draws("refused cell", 1000, draw_cell);
    tell_counts();
}

static void recurrent(void **state) {
    (void)state;
    run_draws("refused recurrent", 1500, draw_recurrent);
    tell_counts();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chains), cmocka_unit_test(solves), cmocka_unit_test(models),
                                       cmocka_unit_test(recurrent)};
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_all, close_all);
}
