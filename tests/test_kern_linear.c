// SPDX-License-Identifier: MIT
// Every linear kernel of every table that this CPU runs, against ref/: random and hazard inputs, all widths to 65,
// strides with NaN between the rows, misaligned pointers, and bits that depend on neither n nor rows nor position.
#include <sys/mman.h>

#include "kern/kern.h"
#include "linear_common.h"
#include "rt/core.h"
#include "sampled.h"

enum { MOST = 1 << 20, GAP = 3 };

typedef struct buffers {
    unsigned char *a, *x, *r, *y, *want, *scale, *scratch, *copy_a, *copy_x, *copy_r;
} buffers;

static size_t used = 0;  // bytes of any buffer that the shape under test touches

static const char *const operation_names[DPCRI_OPERATION_COUNT] = {"apply",   "apply_t", "serial",    "serial_t",
                                                                   "compose", "product", "product_t", "outer"};

static buffers memory;

static int allocate(void **state) {
    (void)state;
    unsigned char **const all[] = {&memory.a,     &memory.x,       &memory.r,      &memory.y,      &memory.want,
                                   &memory.scale, &memory.scratch, &memory.copy_a, &memory.copy_x, &memory.copy_r};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) assert_non_null(*all[i] = malloc(MOST));
    const char *seed = getenv("DEEPPCR_TEST_SEED");
    if (seed) random_state = strtoull(seed, NULL, 0);
    printf("seed %llu\n", (unsigned long long)random_state);
    return 0;
}

static int release(void **state) {
    (void)state;
    free(memory.a);
    free(memory.x);
    free(memory.r);
    free(memory.y);
    free(memory.want);
    free(memory.scale);
    free(memory.scratch);
    free(memory.copy_a);
    free(memory.copy_x);
    free(memory.copy_r);
    return 0;
}

static bool takes_order(dpcri_operation o) { return o == DPCRI_SERIAL || o == DPCRI_SERIAL_T; }
static bool is_product(dpcri_operation o) { return o == DPCRI_PRODUCT || o == DPCRI_PRODUCT_T; }

typedef struct shape {
    dpcr_dtype dtype;
    dpcri_operation operation;
    dpcr_transition t;
    int64_t n, rows;
    bool hazards, has_x, has_r, shared;
    bool tight;  // nothing between rows
    bool far;
    int64_t ahead;
} shape;

static double draw(const shape *s) {
    if (s->hazards && random_below(6) == 0) {
        static const double odd[] = {0.0, -0.0, 1e-44, -3e-42, 1.2e-38, 1e12, -1e12};
        const double value = odd[random_below(7)];
        return takes_order(s->operation) || is_product(s->operation) ? fmin(fmax(value, -2), 2) : value;
    }
    return random_signed();
}

// n x rows lines of `width` values at the strides, NaN around and between; returns the place of the first.
static void *lines(const shape *s, unsigned char *base, int64_t width, int64_t *step, int64_t *row, bool by_steps,
                   bool numbers) {
    const int64_t size = (int64_t)dpcr_dtype_size(s->dtype), n = by_steps ? s->n : 1;
    *row = width + (s->tight ? 0 : GAP + (base == memory.r) + 2 * (base == memory.x));  // no two strides alike
    *step = s->rows * *row + 1;
    unsigned char *first = base + size;  // off by an element: misaligned for every vector
    const int64_t total = n * *step + 2 * GAP;
    assert_true((total + 2) * size < MOST);
    if (used < (size_t)((total + 2) * size)) used = (size_t)((total + 2) * size);
    for (int64_t i = -1; i < total; i++) put(s->dtype, first, i, NAN);
    for (int64_t i = 0; i < n && numbers; i++)
        for (int64_t q = 0; q < s->rows; q++)
            for (int64_t j = 0; j < width; j++) put(s->dtype, first, i * *step + q * *row + j, draw(s));
    return first;
}

static void absolute(const shape *s, void *base, int64_t count) {
    for (int64_t i = 0; i < count; i++) put(s->dtype, base, i, fabs(get(s->dtype, base, i)));
}

static int64_t terms_of(const shape *s) {
    if (s->t.structure == DPCR_DENSE) return s->t.rows > s->t.cols ? s->t.rows : s->t.cols;
    return s->t.structure == DPCR_BLOCK ? s->t.block : s->operation == DPCRI_OUTER ? s->t.rows : 1;
}

static void compare(const shape *s, const dpcri_span *span, const void *got, const void *want, const void *scale,
                    int64_t width, int level) {
    const bool by_steps = !is_product(s->operation);
    const int64_t n = by_steps ? s->n : 1;
    const double steps = takes_order(s->operation) || is_product(s->operation) ? (double)s->n + 1 : 1;
    const double bound = steps * (double)(terms_of(s) + 2) * epsilon_of(s->dtype);
    const double tiny = s->dtype == DPCR_F32 ? 1e-43 : 1e-322;
    for (int64_t i = -1; i < n * span->y_step + GAP; i++) {
        const double g = get(s->dtype, got, i), w = get(s->dtype, want, i), m = get(s->dtype, scale, i);
        if (isnan(w) && isnan(g)) continue;  // between the rows, in both
        if (!(fabs(g - w) <= bound * m + (double)terms_of(s) * steps * tiny))
            fail_msg(
                "%s %s %s level %d w %lld cols %lld k %lld n %lld rows %lld at %lld: %.17g, wanted %.17g (scale %.3g)",
                operation_names[s->operation], dpcr_structure_name(s->t.structure), dpcr_dtype_name(s->dtype), level,
                (long long)s->t.rows, (long long)s->t.cols, (long long)s->t.block, (long long)s->n, (long long)s->rows,
                (long long)i, g, w, m);
    }
    (void)width;
}

// The same span on copies of the output, by pieces: every row alone, steps split in two.
static void compare_pieces(const shape *s, const dpcri_span *span, dpcri_kernel *kernel, const void *got,
                           size_t bytes) {
    const int64_t size = (int64_t)dpcr_dtype_size(s->dtype);
    dpcri_span piece = *span;
    const int64_t half = is_product(s->operation) ? s->n : s->n / 2;
    for (int64_t q = 0; q < s->rows; q++)
        for (int part = 0; part < 2; part++) {
            const int64_t from = part ? half : 0, to = part ? s->n : half;
            if (from == to) continue;
            piece.rows = 1;
            piece.n = to - from;
#define AT(field, by_row) \
    (span->field ? (const unsigned char *)span->field + (from * span->field##_step + q * (by_row)) * size : NULL)
            piece.a = AT(a, span->a_row);
            piece.x = AT(x, span->x_row);
            piece.r = is_product(s->operation) ? span->r : AT(r, span->r_row);
#undef AT
            if (takes_order(s->operation)) {
                piece.x = span->x ? (const unsigned char *)span->x + q * span->x_row * size : NULL;
                if (part && half > 0)
                    piece.x = memory.want + size + ((half - 1) * span->y_step + q * span->y_row) * size;
            }
            piece.y = memory.want + size + (from * span->y_step + q * span->y_row) * size;
            kernel(&piece);
        }
    if (memcmp(memory.want + size, got, bytes) != 0)
        fail_msg("%s %s %s w %lld k %lld n %lld rows %lld: bits depend on how the call is cut",
                 operation_names[s->operation], dpcr_structure_name(s->t.structure), dpcr_dtype_name(s->dtype),
                 (long long)s->t.rows, (long long)s->t.block, (long long)s->n, (long long)s->rows);
}

// Whether vectors take turns or not: kernels choose by nothing else.
static void compare_bits(const shape *s, const dpcri_span *span, dpcri_kernel *kernel, const void *got, size_t bytes) {
    const dpcri_core own = dpcri_core_kind();
    for (int core = DPCRI_CORE_WHOLE; core <= DPCRI_CORE_TURNS; core++) {
        dpcri_core_let_be((dpcri_core)core);
        compare_pieces(s, span, kernel, got, bytes);
    }
    dpcri_core_let_be(own);
}

static void check_shape(const shape *s) {
    const dpcr_structure form = dpcri_kernel_form(&s->t);
    const int64_t values = dpcr_transition_values(&s->t), w = s->t.rows, cols = s->t.cols,
                  size = (int64_t)dpcr_dtype_size(s->dtype);
    const bool transposed = s->operation == DPCRI_APPLY_T, squares = s->operation >= DPCRI_COMPOSE;
    const int64_t out = squares ? values : transposed ? cols : w;
    const int64_t in = s->operation == DPCRI_COMPOSE ? values : transposed ? w : s->operation == DPCRI_OUTER ? w : cols;
    dpcri_span span = {.n = s->n,
                       .rows = s->rows,
                       .w = w,
                       .cols = cols,
                       .block = s->t.block,
                       .far = s->far || s->ahead > 0,
                       .ahead = s->ahead};
    used = 0;
    const int64_t r_width = s->operation == DPCRI_OUTER ? w : out;
    span.a = lines(s, memory.a, values, &span.a_step, &span.a_row, true, true);
    if (takes_order(s->operation) || is_product(s->operation))  // keep growth mild: sums of a row below 1
        for (int64_t i = 0; i < s->n * span.a_step; i++)
            put(s->dtype, (void *)(uintptr_t)span.a, i, get(s->dtype, span.a, i) / (double)terms_of(s));
    if (s->shared) span.a_step = 0;
    if (s->has_x) span.x = lines(s, memory.x, in, &span.x_step, &span.x_row, !takes_order(s->operation), true);
    if (s->has_r) span.r = lines(s, memory.r, r_width, &span.r_step, &span.r_row, true, true);
    if (is_product(s->operation)) span.r = memory.scratch + size;
    void *got = lines(s, memory.y, out, &span.y_step, &span.y_row, !is_product(s->operation), false);
    const size_t bytes = (size_t)(((is_product(s->operation) ? 1 : s->n) * span.y_step + GAP) * size);

    span.y = memory.want + size;
    memcpy(memory.want, memory.y, used);
    memcpy(memory.scale, memory.y, used);
    dpcri_kernels_ref(s->dtype)->table[s->operation][form](&span);
    for (int level = 0; level <= (int)dpcri_isa_level(); level++) {
        dpcri_kernel *kernel = dpcri_kernels_at((dpcri_isa)level, s->dtype)->table[s->operation][form];
        lines(s, memory.y, out, &span.y_step, &span.y_row, !is_product(s->operation), false);
        span.y = memory.want + size;
        memcpy(memory.want, memory.y, bytes + (size_t)size);
        span.y = got;
        kernel(&span);
        compare_bits(s, &span, kernel, got, bytes);
        // The definition again, for the values and, on absolute values, for the scale of the errors.
        unsigned char *kept = memory.scale + size;
        lines(s, memory.want, out, &span.y_step, &span.y_row, !is_product(s->operation), false);
        span.y = memory.want + size;
        dpcri_kernels_ref(s->dtype)->table[s->operation][form](&span);
        if (level == 0) {
            unsigned char *copy_a = memory.copy_a, *copy_x = memory.copy_x, *copy_r = memory.copy_r;
            dpcri_span positive = span;
            memcpy(copy_a, memory.a, used);
            memcpy(copy_x, memory.x, used);
            memcpy(copy_r, memory.r, used);
            absolute(s, copy_a, (int64_t)used / size);
            absolute(s, copy_x, (int64_t)used / size);
            absolute(s, copy_r, (int64_t)used / size);
            positive.a = copy_a + size;
            positive.x = span.x ? copy_x + size : NULL;
            if (!is_product(s->operation)) positive.r = span.r ? copy_r + size : NULL;
            positive.y = kept;
            dpcri_kernels_ref(s->dtype)->table[s->operation][form](&positive);
        }
        compare(s, &span, got, memory.want + size, kept, out, level);
    }
}

static void check_all_operations(dpcr_dtype dtype, dpcr_transition t, bool hazards) {
    static const int64_t lengths[] = {1, 2, 5}, batches[] = {1, 4, 9};
    static int64_t run;
    for (int o = 0; o < DPCRI_OPERATION_COUNT; o++)
        for (int which = 0; which < 3; which++) {
            shape s = {.dtype = dtype,
                       .operation = (dpcri_operation)o,
                       .t = t,
                       .hazards = hazards,
                       .has_x = true,
                       .has_r = true};
            if (t.rows != t.cols && o > DPCRI_APPLY_T) continue;
            if (!sampled(run++)) continue;
            s.n = lengths[which];
            s.rows = t.rows > 24 && which == 2 ? 3 : batches[(which + t.rows) % 3];
            check_shape(&s);
            if (o <= DPCRI_APPLY_T) s.has_r = false;
            if (takes_order(s.operation)) s.has_x = false;
            s.shared = true;
            check_shape(&s);
        }
}

// Sequences beside each other, of both types and ways.
static shape loop_of(int kind, dpcr_transition t, int64_t n, int64_t rows) {
    return (shape){.dtype = kind % 2 ? DPCR_F64 : DPCR_F32,
                   .operation = kind / 2 % 2 ? DPCRI_SERIAL_T : DPCRI_SERIAL,
                   .t = t,
                   .n = n,
                   .rows = rows,
                   .has_x = rows % 3 != 0,
                   .has_r = true,
                   .hazards = rows % 2 == 0};
}

// As many chains as fill vectors and calls, and as leave some over.
static void chains_side_by_side(void **state) {
    (void)state;
    static const int64_t narrow[] = {2, 3, 4, 5, 8, 12};
    for (int64_t rows = 2; rows <= 19; rows++)
        for (int kind = 0; kind < 72; kind++) {
            const dpcr_transition t = dpcr_transition_square(DPCR_DENSE, narrow[kind / 4 % 6], 0);
            shape s = loop_of(kind, t, 1 + kind / 24, rows);
            check_shape(&s);
            s.tight = true;
            check_shape(&s);
            s.n += 4;
            check_shape(&s);
            s.far = true;
            check_shape(&s);
            s.ahead = 3;
            check_shape(&s);
        }
}

// Blocks of sequences that lie on, and that do not, and those of one.
static void blocks_side_by_side(void **state) {
    (void)state;
    for (int64_t rows = 1; rows <= 11; rows++)
        for (int64_t blocks = 1; blocks <= 10; blocks++)
            for (int kind = 0; kind < 12; kind++) {
                if (!sampled(rows * 10 + blocks + kind)) continue;
                const int64_t k = 2 + kind / 4;
                shape s = loop_of(kind, dpcr_transition_square(DPCR_BLOCK, k * blocks, k), 5, rows);
                check_shape(&s);
                s.tight = true;
                check_shape(&s);
                s.n += 40;  // more than go at a time
                check_shape(&s);
                s.ahead = 45;
                check_shape(&s);
                s.ahead = 0;
                s.tight = false;
                check_shape(&s);
                s.operation = kind / 2 % 2 ? DPCRI_PRODUCT_T : DPCRI_PRODUCT, s.n = 4;
                check_shape(&s);
                s.operation = kind / 2 % 2 ? DPCRI_APPLY_T : DPCRI_APPLY, s.has_x = true;
                check_shape(&s);
            }
}

static void widths(dpcr_dtype dtype, dpcr_structure structure, bool hazards) {
    for (int64_t w = 1; w <= 65; w += hazards && w > 20 ? 11 : 1)
        check_all_operations(dtype, dpcr_transition_square(structure, w, 0), hazards);
}

static void each_structure(dpcr_dtype dtype, bool hazards) {
    widths(dtype, DPCR_ZERO, hazards);
    widths(dtype, DPCR_IDENTITY, hazards);
    widths(dtype, DPCR_SCALAR, hazards);
    widths(dtype, DPCR_DIAGONAL, hazards);
    widths(dtype, DPCR_DENSE, hazards);
    for (int64_t k = 1; k <= 17; k += hazards ? 3 : 1)
        for (int64_t blocks = 1; blocks <= 5; blocks += 2)
            check_all_operations(dtype, dpcr_transition_square(DPCR_BLOCK, k * blocks, k), hazards);
    for (int64_t rows = 1; rows <= 40; rows += hazards ? 9 : 3)
        for (int64_t cols = 1; cols <= 40; cols += 5)
            check_all_operations(dtype, (dpcr_transition){.structure = DPCR_DENSE, .rows = rows, .cols = cols},
                                 hazards);
}

static void random_float(void **state) {
    (void)state;
    each_structure(DPCR_F32, false);
}
static void random_double(void **state) {
    (void)state;
    each_structure(DPCR_F64, false);
}
static void hazard_float(void **state) {
    (void)state;
    each_structure(DPCR_F32, true);
}
static void hazard_double(void **state) {
    (void)state;
    each_structure(DPCR_F64, true);
}

// Sizes of zero touch nothing.
static void empty(void **state) {
    (void)state;
    static const int64_t wide[] = {4, 5, 8, 12, 16, 24, 33, 65};
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int o = 0; o < DPCRI_OPERATION_COUNT; o++)
            for (int structure = 0; structure < DPCRI_LINEAR_STRUCTURES; structure++)
                for (int empty_rows = 0; empty_rows < 2; empty_rows++) {
                    if (is_product((dpcri_operation)o) && !empty_rows) continue;  // a product has a factor
                    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
                        const int64_t w = structure == DPCR_BLOCK ? 4 : wide[i];
                        const dpcri_span span = {.n = !!empty_rows, .rows = !empty_rows, .w = w, .cols = w, .block = 2};
                        dpcri_kernels_at((dpcri_isa)level, DPCR_F32)->table[o][structure](&span);
                        dpcri_kernels_at((dpcri_isa)level, DPCR_F64)->table[o][structure](&span);
                        dpcri_kernels_at((dpcri_isa)level, DPCR_U32)->table[o][structure](&span);
                    }
                }
}

// More than caches near by hold goes line by line: the bits of slices that are narrow enough to stay in registers, with
// a state before and without, in place and not.
static void check_far(const dpcri_kernels *kernels, dpcr_dtype dtype, dpcr_structure structure, bool begun,
                      bool in_place) {
    enum { N = 230, WIDTH = 800, SLICE = 8 };
    const int64_t along = structure == DPCR_DIAGONAL, values = along ? WIDTH : structure == DPCR_SCALAR;
    const size_t size = dpcr_dtype_size(dtype), all = (size_t)N * WIDTH * size;
    char *const a = malloc(all), *const x = malloc(all), *const r = malloc(all), *const y = malloc(all),
                *const want = malloc(all);
    assert_true(a && x && r && y && want);
    for (int64_t i = 0; i < N * WIDTH; i++)
        put(dtype, a, i, random_signed()), put(dtype, x, i, random_signed()), put(dtype, r, i, random_signed());
    dpcri_span span = {
        .n = N, .rows = 1, .w = SLICE, .cols = SLICE, .a_step = values, .r_step = WIDTH, .y_step = WIDTH};
    dpcri_kernel *const serial = kernels->table[DPCRI_SERIAL][structure];
    for (int64_t j = 0; j < WIDTH; j += SLICE) {
        const size_t at = (size_t)j * size;
        span.a = values ? a + (along ? at : 0) : NULL, span.x = begun ? x + at : NULL, span.r = r + at,
        span.y = want + at;
        serial(&span);
    }
    if (in_place) memcpy(y, r, all);
    span.w = span.cols = WIDTH, span.a = values ? a : NULL, span.x = begun ? x : NULL, span.r = in_place ? y : r,
    span.y = y;
    serial(&span);
    assert_memory_equal(y, want, all);
    free(a), free(x), free(r), free(y), free(want);
}

static void far_lines_have_the_bits_of_slices(void **state) {
    (void)state;
    static const dpcr_structure kinds[] = {DPCR_IDENTITY, DPCR_SCALAR, DPCR_DIAGONAL};
    for (int level = DPCRI_PORTABLE; level <= (int)dpcri_isa_level(); level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (int i = 0; i < 12; i++) {
                const dpcri_kernels *kernels = dpcri_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
                if (kernels) check_far(kernels, (dpcr_dtype)dtype, kinds[i % 3], i / 3 % 2, i / 6);
            }
}

// y may be r, steps may run backwards: the loop of `rows` sequences in place, from the last step's memory to the
// first's.
static void check_backwards(const dpcri_kernels *kernels, dpcr_dtype dtype, dpcr_transition t, int64_t rows) {
    enum { N = 6 };
    const int64_t w = t.rows, values = dpcr_transition_values(&t);
    const size_t size = dpcr_dtype_size(dtype), matrix = (size_t)values * size, state = (size_t)w * size;
    const size_t count = (size_t)rows * N;
    char *a = malloc(count * matrix), *turned = malloc(count * matrix);
    char *b = malloc(count * state), *forward = malloc(count * state);
    for (int64_t i = 0; i < rows * N; i++) fill_transition(&t, dtype, FILL_RANDOM, a, i * values);
    fill_vector(dtype, FILL_RANDOM, b, rows * N * w);
    for (size_t i = 0; i < count; i++) {
        const size_t other = i / N * N + N - 1 - i % N;
        memcpy(turned + i * matrix, a + other * matrix, matrix);
        memcpy(forward + i * state, b + other * state, state);
    }
    dpcri_kernel *const serial = kernels->table[DPCRI_SERIAL_T][dpcri_kernel_form(&t)];
    serial(&(dpcri_span){.n = N,
                         .rows = rows,
                         .w = w,
                         .cols = w,
                         .block = t.block,
                         .a = a + (N - 1) * matrix,
                         .a_step = -values,
                         .a_row = N * values,
                         .r = b + (N - 1) * state,
                         .r_step = -w,
                         .r_row = N * w,
                         .y = b + (N - 1) * state,
                         .y_step = -w,
                         .y_row = N * w});
    for (size_t q = 0; q < (size_t)rows; q++) {
        char *const own = forward + q * N * state;
        serial(&(dpcri_span){.n = N,
                             .rows = 1,
                             .w = w,
                             .cols = w,
                             .block = t.block,
                             .a = turned + q * N * matrix,
                             .a_step = values,
                             .r = own,
                             .r_step = w,
                             .y = own,
                             .y_step = w});
        for (size_t i = 0; i < N; i++) assert_memory_equal(own + i * state, b + (q * N + N - 1 - i) * state, state);
    }
    free(a), free(turned), free(b), free(forward);
}

static void backwards_in_place(void **state) {
    (void)state;
    static const int64_t many[] = {2, 3, 4, 8, 11, 13};
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int is_double = 0; is_double < 2; is_double++) {
            const dpcr_dtype dtype = is_double ? DPCR_F64 : DPCR_F32;
            const dpcri_kernels *const kernels = dpcri_kernels_at((dpcri_isa)level, dtype);
            for (int64_t w = 1; w <= 40; w++) {
                check_backwards(kernels, dtype, dpcr_transition_square(DPCR_DENSE, w, 0), 1);
                for (size_t i = 0; i < sizeof many / sizeof *many && w <= 9; i++)
                    check_backwards(kernels, dtype, dpcr_transition_square(DPCR_DENSE, w, 0), many[i]);
                for (size_t i = 0; i < sizeof many / sizeof *many; i++)
                    for (int64_t k = 2; k <= 4; k++)
                        if (w % k == 0)
                            check_backwards(kernels, dtype, dpcr_transition_square(DPCR_BLOCK, w, k), many[i]);
            }
        }
}

// A chain that memory would have to hold reads its next matrix ahead: nothing past the last one, in either direction,
// and the bits are those of short spans, which do not read ahead. Matrices that overlap keep the test small.
static void check_reading_ahead(const dpcri_kernels *kernels, dpcri_operation serial, int64_t way) {
    enum { W = 64, N = 2049, STEP = 16, PIECE = 100, NUMBERS = STEP * (N - 1) + W * W, PAGE = 4096 };
    const size_t bytes = NUMBERS * sizeof(float);
    assert_int_equal(bytes % PAGE, 0);
    char *const room = mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(room != MAP_FAILED);
    assert_int_equal(mprotect(room + PAGE, bytes, PROT_READ | PROT_WRITE), 0);
    float *const a = (float *)(room + PAGE), *const r = malloc(N * W * sizeof *r), *const y = malloc(N * W * sizeof *y);
    float *const pieces = malloc(N * W * sizeof *pieces), x[W];
    for (int64_t i = 0; i < NUMBERS; i++) a[i] = (float)(i * 7919 % 1009 - 504) / 16384;
    for (int64_t i = 0; i < N * W; i++) r[i] = (float)(i * 31 % 257 - 128) / 128;
    for (int64_t i = 0; i < W; i++) x[i] = (float)i / W;
    const float *const first = way > 0 ? a : a + (N - 1) * STEP;
    dpcri_span span = {.n = N,
                       .rows = 1,
                       .w = W,
                       .cols = W,
                       .a = first,
                       .a_step = way * STEP,
                       .x = x,
                       .r = r,
                       .r_step = W,
                       .y = y,
                       .y_step = W};
    kernels->table[serial][DPCR_DENSE](&span);
    for (int64_t i = 0; i < N; i += PIECE) {
        span.n = N - i < PIECE ? N - i : PIECE;
        span.a = first + i * span.a_step;
        span.x = i > 0 ? pieces + (i - 1) * W : x;
        span.r = r + i * W;
        span.y = pieces + i * W;
        kernels->table[serial][DPCR_DENSE](&span);
    }
    assert_memory_equal(y, pieces, N * W * sizeof *y);
    free(r);
    free(y);
    free(pieces);
    munmap(room, bytes + 2 * PAGE);
}

static void nothing_is_read_past_the_last_matrix(void **state) {
    (void)state;
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int64_t way = -1; way <= 1; way += 2) {
            check_reading_ahead(dpcri_kernels_at((dpcri_isa)level, DPCR_F32), DPCRI_SERIAL, way);
            check_reading_ahead(dpcri_kernels_at((dpcri_isa)level, DPCR_F32), DPCRI_SERIAL_T, way);
        }
}

// w = 2 and steps one after another have a way of their own: single products, so bits are the definition's.
static void outer_of_pairs(void **state) {
    (void)state;
    enum { N = 65 };
    double r[2 * N + 1], x[2 * N + 1], y[4 * N + 2];
    float rf[2 * N + 1], xf[2 * N + 1], yf[4 * N + 2];
    for (int i = 0; i <= 2 * N; i++) {
        r[i] = rf[i] = (float)random_signed();
        x[i] = xf[i] = (float)random_signed();
    }
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int64_t n = 0; n <= N; n++) {
            for (int64_t i = 0; i < 4 * N + 2; i++) y[i] = yf[i] = NAN;
            dpcri_span span = {.n = n, .rows = 1, .w = 2, .cols = 2, .x_step = 2, .r_step = 2, .y_step = 4};
            span.r = r + 1, span.x = x + 1, span.y = y + 1;  // not aligned to any vector
            dpcri_kernels_at((dpcri_isa)level, DPCR_F64)->table[DPCRI_OUTER][DPCR_DENSE](&span);
            span.r = rf + 1, span.x = xf + 1, span.y = yf + 1;
            dpcri_kernels_at((dpcri_isa)level, DPCR_F32)->table[DPCRI_OUTER][DPCR_DENSE](&span);
            assert_true(isnan(y[0]) && isnan(yf[0]) && isnan(y[4 * n + 1]) && isnan(yf[4 * n + 1]));
            for (int64_t i = 0; i < n; i++)
                for (int64_t k = 0; k < 4; k++) {
                    assert_true(y[1 + 4 * i + k] == r[1 + 2 * i + k / 2] * x[1 + 2 * i + k % 2]);
                    assert_true(yf[1 + 4 * i + k] == rf[1 + 2 * i + k / 2] * xf[1 + 2 * i + k % 2]);
                }
        }
}

// One term of a sum as the level computes it.
static double with_term(dpcr_dtype dtype, bool fused, double x, double y, double sum) {
    if (dtype == DPCR_F64) return fused ? fma(x, y, sum) : x * y + sum;
    const float a = (float)x, b = (float)y, c = (float)sum;
    return fused ? (double)fmaf(a, b, c) : (double)(a * b + c);
}

// c = a x of width w: the first product, then a term after the other.
static void product_in_order(dpcr_dtype dtype, bool fused, int64_t w, const double *a, const double *x, double *c) {
    for (int64_t i = 0; i < w; i++)
        for (int64_t j = 0; j < w; j++) {
            double sum = a[i * w] * x[j];
            if (dtype == DPCR_F32) sum = (double)(float)sum;
            for (int64_t k = 1; k < w; k++) sum = with_term(dtype, fused, a[i * w + k], x[k * w + j], sum);
            c[i * w + j] = sum;
        }
}

// Narrow products, of as many chains as go side by side and one more, alone and as blocks: the bits of the order that
// linear.inc states.
static void check_order(dpcri_isa level, dpcr_dtype dtype, dpcri_operation operation, int64_t w, int64_t chains,
                        bool blocks) {
    enum { N = 5, MOST_VALUES = 16 };
    const int64_t values = w * w;
    const bool fused = dpcri_isa_fuses(level), compose = operation == DPCRI_COMPOSE;
    void *const a = memory.a, *const x = memory.x, *const y = memory.y, *const scratch = memory.scratch;
    for (int64_t i = 0; i < N * chains * values; i++)
        put(dtype, a, i, random_signed()), put(dtype, x, i, random_signed());
    const dpcri_span span = {.n = N,
                             .rows = blocks ? 1 : chains,
                             .w = blocks ? chains * w : w,
                             .cols = blocks ? chains * w : w,
                             .block = blocks ? w : 0,
                             .a = a,
                             .a_step = chains * values,
                             .a_row = blocks ? chains * values : values,
                             .x = compose ? x : NULL,
                             .x_step = chains * values,
                             .x_row = blocks ? chains * values : values,
                             .r = compose ? NULL : scratch,
                             .y = y,
                             .y_step = compose ? chains * values : 0,
                             .y_row = blocks ? chains * values : values};
    dpcri_kernels_at(level, dtype)->table[operation][blocks ? DPCR_BLOCK : DPCR_DENSE](&span);
    for (int64_t c = 0; c < chains; c++) {
        double now[MOST_VALUES], next[MOST_VALUES], left[MOST_VALUES];
        for (int64_t i = 0; i < N; i++) {
            for (int64_t v = 0; v < values; v++) left[v] = get(dtype, a, (i * chains + c) * values + v);
            for (int64_t v = 0; v < values && (compose || i == 0); v++)
                now[v] = compose ? get(dtype, x, (i * chains + c) * values + v) : left[v];
            if (compose || i > 0) {
                const bool turned = operation == DPCRI_PRODUCT_T;
                product_in_order(dtype, fused, w, turned ? now : left, turned ? left : now, next);
                memcpy(now, next, sizeof now);
            }
            for (int64_t v = 0; v < values && (compose || i == N - 1); v++)
                if (get(dtype, y, ((compose ? i * chains : 0) + c) * values + v) != now[v])
                    fail_msg("%s level %d %s w %d, chain %d of %d, blocks %d, step %d", operation_names[operation],
                             (int)level, dpcr_dtype_name(dtype), (int)w, (int)c, (int)chains, blocks, (int)i);
        }
    }
}

static void narrow_products_keep_the_order(void **state) {
    (void)state;
    static const dpcri_operation operations[] = {DPCRI_COMPOSE, DPCRI_PRODUCT, DPCRI_PRODUCT_T};
    for (int level = 0; level <= (int)dpcri_isa_level(); level++) {
        const dpcri_kernels *const kernels = dpcri_kernels_at((dpcri_isa)level, DPCR_F32);
        if (level > 0 && kernels == dpcri_kernels_at((dpcri_isa)(level - 1), DPCR_F32)) continue;  // not built
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (int o = 0; o < 3; o++)
                for (int64_t w = 2; w <= 4; w++)
                    for (int64_t chains = 1; chains <= 9; chains++)
                        for (int blocks = 0; blocks < 1 + (chains > 1); blocks++)
                            check_order((dpcri_isa)level, (dpcr_dtype)dtype, operations[o], w, chains, blocks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_float),
        cmocka_unit_test(random_double),
        cmocka_unit_test(hazard_float),
        cmocka_unit_test(hazard_double),
        cmocka_unit_test(empty),
        cmocka_unit_test(far_lines_have_the_bits_of_slices),
        cmocka_unit_test(backwards_in_place),
        cmocka_unit_test(outer_of_pairs),
        cmocka_unit_test(narrow_products_keep_the_order),
        cmocka_unit_test(nothing_is_read_past_the_last_matrix),
        cmocka_unit_test(chains_side_by_side),
        cmocka_unit_test(blocks_side_by_side),
    };
    return cmocka_run_group_tests(tests, allocate, release);
}
