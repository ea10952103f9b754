// SPDX-License-Identifier: MIT
// Linear chains drawn at random on a device (random_chain.h): any structure, csr too, dtype, strides and scheme there
// is, against the chain by its definition, exactly in the ring of uint32, else within what rounding explains; wide ones
// by the loop against a plain loop with fma, a sequence alone against itself among others, and one device against
// another like it that the simulator can be, bit for bit; nothing written but what is to be.
#include "device_draws.h"
#include "random_chain.h"

static int executed, refused, by_scheme[DPCR_SCHEME_COUNT];

enum { MOST_ROWS = 64 };
static int64_t offsets[MOST_ROWS + 1];
static int32_t columns[MOST_ROWS * MOST_ROWS];
static dpcr_pattern pattern;

static dpcr_transition draw_pattern(int64_t w) {
    const int percent = (int)DRAW_OF(0, 3, 10, 40, 100);
    int64_t entries = 0;
    for (int64_t i = 0; i < w; i++) {
        for (int64_t j = 0; j < w; j++)
            if (draw_chance(percent)) columns[entries++] = (int32_t)j;
        offsets[i + 1] = entries;
    }
    pattern = (dpcr_pattern){.rows = w, .cols = w, .offsets = offsets, .columns = columns};
    return dpcr_transition_csr(&pattern);
}

static dpcr_transition draw_transition(void) {
    const int kind = (int)draw_below(10);
    if (kind < 2) return draw_pattern(draw_log(1, MOST_ROWS));
    if (kind < 6) return dpcr_transition_square(DPCR_DENSE, draw_chance(50) ? draw_between(1, 4) : draw_log(1, 60), 0);
    if (kind < 8) {
        const int64_t block = draw_chance(70) ? draw_between(1, 4) : draw_between(5, 24);
        return dpcr_transition_square(DPCR_BLOCK, block * draw_log(1, 12), block);
    }
    return dpcr_transition_square((dpcr_structure)draw_below(DPCR_BLOCK), draw_log(1, 70), 0);
}

static bool large(const drawn_chain *c) {
    const dpcr_transition *t = &c->shape.transition;
    return t->structure == DPCR_CSR || (t->structure == DPCR_DENSE ? t->rows : t->block) > 16;
}

static void draw_shape(drawn_chain *c) {
    static const dpcr_dtype dtypes[] = {DPCR_F32, DPCR_F32, DPCR_F64, DPCR_U32};
    const dpcr_transition t = draw_transition();
    c->dtype = dtypes[draw_below(4)];
    c->w = t.rows;
    c->values = dpcr_transition_values(&t);
    c->batch = draw_chance(2) ? 0 : draw_chance(40) ? 1 : draw_log(1, 40);
    const bool products = t.structure == DPCR_DENSE || t.structure == DPCR_CSR;
    const double each = (double)(c->batch + 1) * (double)(c->values + c->w + 5) * (products ? (double)c->w : 1) + 1;
    const double work = draw_chance(85) ? 2e5 : 8e5, most = fmin(work / each, 20000);
    c->length = draw_chance(8) ? draw_below(4) : draw_log(1, most < 3 ? 3 : (int64_t)most);
    c->shape = (dpcr_chain_shape){.size = sizeof c->shape,
                                  .length = c->length,
                                  .batch = c->batch,
                                  .transition = t,
                                  .dtype = c->dtype,
                                  .transposed = draw_chance(30) ? 1 : 0};
    tell(" %s %s w %lld k %lld values %lld L %lld B %lld%s", dpcr_dtype_name(c->dtype),
         dpcr_structure_name(t.structure), (long long)c->w, (long long)t.block, (long long)c->values,
         (long long)c->length, (long long)c->batch, c->shape.transposed ? " transposed" : "");
}

static void draw_options(drawn_chain *c) {
    dpcr_chain_options *o = &c->options;
    *o = (dpcr_chain_options){.size = sizeof *o, .scheme = DPCR_SCHEME_CHUNKED, .device = arena.device};
    if (draw_chance(40)) o->scheme = large(c) || draw_chance(10) ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_AUTO;
    if (draw_chance(20)) o->scheme = draw_chance(90) ? DPCR_SCHEME_AUTO : (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    if (draw_chance(60)) o->chunk = draw_log(1, c->length + 2);
    tell(" %s chunk %lld", dpcr_scheme_name(o->scheme), (long long)o->chunk);
}

// In place: b's numbers, as they were.
static void put_back(const drawn_chain *c) {
    for (int64_t l = 0; c->in_place && l < c->length; l++)
        for (int64_t r = 0; r < c->batch; r++)
            for (int64_t i = 0; i < c->w; i++)
                copy_number(c->dtype, c->b.view.data, table_at(&c->b, l, r) + i, c->lb, (l * c->batch + r) * c->w + i);
}

// Solves there; the result lies in c->z, or in c->b where the chain is solved in place. False: refused.
static bool solve_there(drawn_chain *c, const dpcr_chain_options *options, dpcr_scheme *scheme) {
    dpcr_error error = {0};
    dpcr_chain_plan *plan = NULL;
    const dpcr_status status = dpcr_chain_plan_create(draw_contexts[1], &c->shape, options, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED) return false;
    check_done(status, &error, "plan");
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    *scheme = dpcr_chain_plan_scheme(plan);
    if (bytes > ARENA_BYTES / 2) {
        dpcr_chain_plan_destroy(plan);
        return false;
    }
    put_back(c);
    clear_arena();
    const spot pa = place_table(&c->a, false), pb = place_table(&c->b, c->in_place);
    const spot p0 = c->has_z0 ? place_table(&c->z0, false) : (spot){0};
    const spot pz = c->in_place ? pb : place_table(&c->z, true);
    const spot space = place_workspace(bytes);
    send_arena();
    const dpcr_array a = table_there(&c->a, &pa), b = table_there(&c->b, &pb),
                     z = c->in_place ? b : table_there(&c->z, &pz),
                     z0 = c->has_z0 ? table_there(&c->z0, &p0) : (dpcr_array){0};
    if (bytes > 0)
        check_small(dpcr_chain_enqueue(plan, &a, &b, NULL, &z, address(&space), bytes - 1, NULL, &error), &error);
    check_done(dpcr_chain_enqueue(plan, c->values || draw_chance(50) ? &a : NULL, &b, c->has_z0 ? &z0 : NULL, &z,
                                  address(&space), bytes, NULL, &error),
               &error, "enqueue");
    fetch_arena("chain");
    const table *to = c->in_place ? &c->b : &c->z;
    fetch_table(to, &pz);
    check_gaps(to);
    dpcr_chain_plan_destroy(plan);
    return true;
}

// z_i = b_i, then + a_ij x_j in ascending j: what the loop there is, to the bit.
static void check_plain_loop(const drawn_chain *c, const void *z) {
    const int64_t w = c->w, size = (int64_t)dpcr_dtype_size(c->dtype);
    const bool back = c->shape.transposed != 0;
    for (int64_t r = 0; r < c->batch; r++)
        for (int64_t n = 0; n < c->length; n++) {
            const int64_t l = back ? c->length - 1 - n : n, before = back ? l + 1 : l - 1, at = back ? l + 1 : l;
            const bool has_x = n > 0 || c->has_z0;
            const char *x = n > 0   ? (const char *)z + (before * c->batch + r) * w * size
                            : has_x ? (const char *)c->lz0 + r * w * size
                                    : NULL;
            for (int64_t i = 0; i < w; i++) {
                const int64_t mine = (l * c->batch + r) * w + i;
                float f = (float)get(c->dtype, c->lb, mine);
                double d = get(c->dtype, c->lb, mine);
                for (int64_t j = 0; has_x && j < w; j++) {
                    const int64_t e =
                        back ? place_of(&c->shape.transition, j, i) : place_of(&c->shape.transition, i, j);
                    if (e < 0) continue;
                    const double aij = get(c->dtype, c->la, (at * c->batch + r) * c->values + e);
                    f = fmaf((float)aij, (float)get(c->dtype, x, j), f), d = fma(aij, get(c->dtype, x, j), d);
                }
                const double got = get(c->dtype, z, mine), wanted = c->dtype == DPCR_F32 ? (double)f : d;
                if (got != wanted && !(isnan(got) && isnan(wanted)))
                    wrong("the loop: (%lld, %lld, %lld) is %.9g, a plain loop's %.9g", (long long)l, (long long)r,
                          (long long)i, got, wanted);
            }
        }
}

// A sequence by itself has the bits that it has among others.
static void check_alone(drawn_chain *c, const void *together, dpcr_scheme scheme, bool room) {
    drawn_chain one = *c;
    const int64_t row = draw_below(c->batch), w = c->w;
    const int used = drawn.used;
    const uint64_t kept = drawn.state;
    one.batch = one.shape.batch = 1;
    one.nan_row = -1, one.in_place = false;
    one.options.scheme = scheme;
    one.a = draw_table("a", c->dtype, c->length, 1, c->values, PLAIN);
    one.b = draw_table("b", c->dtype, c->length, 1, w, PLAIN);
    one.z = draw_table("z", c->dtype, c->length, 1, w, WRITTEN);
    one.z0 = draw_table("z0", c->dtype, -1, 1, w, PLAIN);
    for (int64_t l = 0; l < c->length; l++) {
        for (int64_t i = 0; i < c->values; i++)
            copy_number(c->dtype, one.a.view.data, l * c->values + i, c->la, (l * c->batch + row) * c->values + i);
        for (int64_t i = 0; i < w; i++)
            copy_number(c->dtype, one.b.view.data, l * w + i, c->lb, (l * c->batch + row) * w + i);
    }
    for (int64_t i = 0; c->has_z0 && i < w; i++) copy_number(c->dtype, one.z0.view.data, i, c->lz0, row * w + i);
    draw_device_for_tiles(room);
    if (solve_there(&one, &one.options, &scheme))
        for (int64_t l = 0; l < c->length; l++)
            for (int64_t i = 0; i < w; i++) {
                const double x = get(c->dtype, together, (l * c->batch + row) * w + i),
                             y = get(c->dtype, one.z.view.data, l * w + i);
                if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
                    wrong("row %lld alone: (%lld, %lld) is %.9g, among others %.9g", (long long)row, (long long)l,
                          (long long)i, y, x);
            }
    drawn.used = used;
    drawn.state = kept;
}

static void draw_one(void) {
    drawn_chain c = {0};
    dpcr_scheme scheme = DPCR_SCHEME_AUTO;
    draw_shape(&c);
    draw_options(&c);
    draw_numbers(&c);
    const bool room = draw_chance(70);
    draw_device_for_tiles(room);
    if (!solve_there(&c, &c.options, &scheme)) {
        refused++;
        free(c.la), free(c.lb), free(c.lz0);
        return;
    }
    executed++;
    by_scheme[scheme]++;
    const table *z = c.in_place ? &c.b : &c.z;
    bounds s = bounds_of(&c, 0);
    compare_states(&c, z, &s, "there");
    free_bounds(&s);
    void *one = packed_table(z);
    if (scheme == DPCR_SCHEME_SEQUENTIAL && c.dtype != DPCR_U32 && c.nan_row < 0) check_plain_loop(&c, one);
    draw_device_for_tiles(room);
    dpcr_chain_options same_way = c.options;
    same_way.scheme = scheme;
    if (solve_there(&c, &same_way, &scheme)) {
        void *other = packed_table(z);
        if (c.nan_row < 0) same_bits(&c, one, other, "another device");
        free(other);
    }
    if (c.batch > 1 && c.length > 0 && draw_chance(50)) check_alone(&c, one, scheme, room);
    free(one);
    free(c.la), free(c.lb), free(c.lz0);
}

static void chains(void **state) {
    (void)state;
    run_draws("chain on a device", 150, draw_one);
    print_message("%d solved ( %s %d %s %d ), %d refused\n", executed, dpcr_scheme_name(DPCR_SCHEME_CHUNKED),
                  by_scheme[DPCR_SCHEME_CHUNKED], dpcr_scheme_name(DPCR_SCHEME_SEQUENTIAL),
                  by_scheme[DPCR_SCHEME_SEQUENTIAL], refused);
}

int main(void) { return draw_on_device("chains", chains); }
