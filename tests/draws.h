// SPDX-License-Identifier: MIT
// Random problems for tests: numbers that follow from a seed and the draw's number, arrays of any strides between pages
// that must not be touched, and one line for each failure that says how to repeat it.
//
//   DEEPPCR_TEST_DRAWS   how many draws of each kind; DEEPPCR_TEST_SEED   the seed (default 1)
//   DEEPPCR_TEST_DRAW    that draw alone, told before it runs
#ifndef TESTS_DRAWS_H
#define TESTS_DRAWS_H

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "deeppcr/deeppcr.h"
#include "sampled.h"

enum { USES = 64, MOST_BYTES = 32 << 20 };
#include "guarded.h"

static struct {
    unsigned long long seed, draw, state;
    const char *kind;
    char text[2048];
    int failures, used;
    jmp_buf failed;
} drawn;

// ---- numbers ----

static inline uint64_t draw_bits(void) {  // splitmix64
    uint64_t x = drawn.state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline int64_t draw_below(int64_t n) { return (int64_t)(draw_bits() % (uint64_t)n); }
static inline int64_t draw_between(int64_t least, int64_t most) { return least + draw_below(most - least + 1); }
static inline bool draw_chance(int percent) { return draw_below(100) < percent; }
static inline double draw_signed(void) { return (double)(draw_bits() >> 11) * 0x1p-52 - 1.0; }
static inline double draw_unit(void) { return (double)(draw_bits() >> 11) * 0x1p-53; }

// As many numbers of each size: 1 <= least <= most.
static inline int64_t draw_log(int64_t least, int64_t most) {
    const double low = log((double)least), high = log((double)most + 0.999);
    const int64_t n = (int64_t)exp(low + (high - low) * draw_unit());
    return n < least ? least : n > most ? most : n;
}

#define DRAW_OF(...) ((const double[]){__VA_ARGS__}[draw_below(sizeof(double[]){__VA_ARGS__} / sizeof(double))])

// ---- what is drawn, and failures ----

__attribute__((format(printf, 1, 2))) static inline void tell(const char *format, ...) {
    const size_t used = strlen(drawn.text);
    va_list list;
    va_start(list, format);
    vsnprintf(drawn.text + used, sizeof drawn.text - used, format, list);
    va_end(list);
}

static inline void tell_line(void) {
    char line[sizeof drawn.text + 128];
    const int n = snprintf(line, sizeof line, "%s DEEPPCR_TEST_SEED=%llu DEEPPCR_TEST_DRAW=%llu:%s\n", drawn.kind,
                           drawn.seed, drawn.draw, drawn.text);
    if (write(STDERR_FILENO, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1) < 0) return;
}

// Ends the draw.
__attribute__((format(printf, 1, 2), noreturn)) static inline void wrong(const char *format, ...) {
    va_list list;
    tell(" | ");
    const size_t used = strlen(drawn.text);
    va_start(list, format);
    vsnprintf(drawn.text + used, sizeof drawn.text - used, format, list);
    va_end(list);
    tell_line();
    drawn.failures++;
    longjmp(drawn.failed, 1);
}

static inline void draw_crashed(int number) {
    tell(" | signal %d", number);
    tell_line();
    signal(number, SIG_DFL);
    raise(number);
}

static inline void draw_died(void) { tell_line(); }  // of a sanitizer
extern void __sanitizer_set_death_callback(void (*)(void)) __attribute__((weak));

static inline unsigned long long draw_setting(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

// `usual` draws, fewer under sanitizers; the first failures end the rest.
static inline void run_draws(const char *kind, unsigned long long usual, void (*draw)(void)) {
    enum { ENOUGH = 10 };
    const unsigned long long only = draw_setting("DEEPPCR_TEST_DRAW", UINT64_MAX);
    const unsigned long long count = draw_setting("DEEPPCR_TEST_DRAWS", usual / TESTS_ONE_OF + 1);
    drawn.kind = kind;
    drawn.seed = draw_setting("DEEPPCR_TEST_SEED", 1);
    drawn.failures = 0;
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (int i = 0; i < 5 && !TESTS_SANITIZED; i++) signal(signals[i], draw_crashed);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(draw_died);
    for (unsigned long long i = 0; i < count && drawn.failures < ENOUGH; i++) {
        drawn.draw = only == UINT64_MAX ? i : only;
        drawn.state = drawn.seed * 0xd1342543de82ef95u + drawn.draw * 0xda942042e4dd58b5u;
        for (const char *c = kind; *c; c++) drawn.state = drawn.state * 131 + (unsigned char)*c;
        drawn.text[0] = '\0';
        drawn.used = 0;
        if (setjmp(drawn.failed) == 0) draw();
        if (only != UINT64_MAX) {
            tell_line();
            break;
        }
    }
    if (drawn.failures) fail_msg("%d draws failed", drawn.failures);
}

// What fails has a status and words.
static inline void check_words(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    if (error->status != status || !error->text[0] || strchr(error->text, '\n') ||
        !memchr(error->text, 0, sizeof error->text))
        wrong("status %d, but the error has %d and says \"%.100s\"", (int)status, (int)error->status, error->text);
}

static inline void check_done(dpcr_status status, const dpcr_error *error, const char *what) {
    check_words(status, error);
    if (status != DPCR_OK) wrong("%s: %s", what, error->text);
}

// ---- memory ----

enum { AROUND = 192, UNTOUCHED = 0xa5 };

// `bytes` at the end or at the beginning of a piece between two pages that must not be touched; what is left around
// must stay as it is.
typedef struct piece {
    char *data, *low, *high;  // [low, data) and [data + bytes, high) are watched
    size_t bytes;
} piece;

static inline piece draw_piece(size_t bytes, size_t alignment) {
    const bool beginning = draw_chance(30);
    if (drawn.used >= USES) wrong("the test has too many pieces");
    if (bytes + 2 * AROUND > MOST_BYTES) wrong("the test has too large a piece");
    const int use = drawn.used++;
    char *const base = guarded(use, MOST_BYTES, true);
    piece p = {.bytes = bytes};
    if (beginning) {
        p.low = p.data = base;
        p.high = base + bytes + AROUND;
    } else {
        p.high = base + MOST_BYTES;
        p.data = p.high - bytes;
        p.data -= (uintptr_t)p.data % alignment;
        p.low = p.data - AROUND;
    }
    memset(p.low, UNTOUCHED, (size_t)(p.high - p.low));
    return p;
}

static inline void check_around(const piece *p, const char *name) {
    for (const char *c = p->low; c < p->high; c++) {
        if (c == p->data) c += p->bytes;
        if (c < p->high && (unsigned char)*c != UNTOUCHED)
            wrong("%s was written %td bytes from its beginning, of %zu", name, c - p->data, p->bytes);
    }
}

static inline uint64_t sum_of_bytes(const piece *p) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (const char *c = p->low; c < p->high; c++) sum = (sum ^ (unsigned char)*c) * 0x100000001b3u;
    return sum;
}

// Nothing may be taken over from before: NaN and marks that are set, or zeros.
static inline void spoil_scratch(const piece *p) { memset(p->data, draw_chance(60) ? 0xff : 0, p->bytes); }

static inline piece draw_scratch(size_t bytes) {
    const piece p = draw_piece(bytes, 64);
    spoil_scratch(&p);
    return p;
}

// ---- arrays [steps][rows][values], or [rows][values] where steps is -1 ----

typedef struct table {
    const char *name;
    dpcr_array view;
    piece memory;
    int64_t steps, rows, values;  // as the library sees them
    int64_t step, row;            // strides; 0: shared
    uint64_t sum;                 // of its bytes, before
} table;

static inline int64_t table_at(const table *t, int64_t step, int64_t row) { return step * t->step + row * t->row; }

static inline double table_get(const table *t, int64_t step, int64_t row, int64_t i) {
    const int64_t at = table_at(t, step, row) + i;
    return t->view.dtype == DPCR_U32 ? (double)((const uint32_t *)t->view.data)[at]
                                     : number_at(t->view.dtype, t->view.data, at);
}

static inline void table_put(const table *t, int64_t step, int64_t row, int64_t i, double x) {
    put_number(t->view.dtype, t->view.data, table_at(t, step, row) + i, x);
}

enum { PLAIN = 0, STRIDED = 1, SHARED = 2, WRITTEN = 4 };

enum { MOST_GAP = 20 };
static inline int64_t draw_gap(void) { return draw_chance(50) ? 0 : draw_log(1, MOST_GAP); }

// Strides as `how` allows: contiguous, or with gaps, reversed and the other way round; SHARED: a step or row for all.
static inline table draw_table(const char *name, dpcr_dtype dtype, int64_t steps, int64_t rows, int64_t values,
                               int how) {
    table t = {.name = name, .steps = steps, .rows = rows, .values = values};
    const size_t size = dpcr_dtype_size(dtype);
    const bool flat = steps < 0;
    const bool one_step = !flat && (how & SHARED) && draw_chance(25), one_row = (how & SHARED) && draw_chance(25);
    const int64_t n = flat || one_step ? 1 : steps, m = one_row ? 1 : rows;
    const double most = (double)n * (double)m * (double)(values + 2 * MOST_GAP) * (double)size;
    const bool strided = (how & STRIDED) && draw_chance(50) && most < MOST_BYTES / 2;
    const bool rows_first = strided && draw_chance(30);  // [rows][steps][values]
    const int64_t inner = values + (strided ? draw_gap() : 0);
    const int64_t outer = inner * (rows_first ? n : m) + (strided ? draw_gap() : 0);
    t.step = rows_first ? inner : outer;
    t.row = rows_first ? outer : inner;
    const int64_t count = n > 0 && m > 0 ? (n - 1) * t.step + (m - 1) * t.row + values : 0;
    int64_t first = 0;
    if (strided && draw_chance(15)) first += (n - 1) * t.step, t.step = -t.step;
    if (strided && draw_chance(15)) first += (m - 1) * t.row, t.row = -t.row;
    t.memory = draw_piece((size_t)count * size, size);
    const bool by_stride = draw_chance(50);
    const int64_t shape[3] = {one_step && !by_stride ? 1 : steps, one_row && !by_stride ? 1 : rows, values};
    t.view = dpcr_array_make(t.memory.data + (count ? first : 0) * (int64_t)size, dtype, flat ? 2 : 3,
                             flat ? shape + 1 : shape);
    if (one_step) t.step = 0;
    if (one_row) t.row = 0;
    if (!flat) t.view.strides[0] = t.step;
    t.view.strides[flat ? 0 : 1] = t.row;
    if (how & WRITTEN)
        for (int64_t l = 0; count && l < n; l++)
            for (int64_t b = 0; b < m; b++)
                memset((char *)t.view.data + table_at(&t, l, b) * (int64_t)size, 0xff, (size_t)values * size);
    if (strided || one_step || one_row)
        tell(" %s[%lld,%lld]%s%s", name, (long long)t.step, (long long)t.row, one_step && !by_stride ? " one step" : "",
             one_row && !by_stride ? " one row" : "");
    return t;
}

static inline void keep_sum(table *t) { t->sum = sum_of_bytes(&t->memory); }

// Of what is read alone: as it was.
static inline void check_kept(const table *t) {
    check_around(&t->memory, t->name);
    if (t->sum != sum_of_bytes(&t->memory)) wrong("%s was written", t->name);
}

// Of what is written: nothing between its rows was.
static inline void check_gaps(const table *t) {
    const size_t size = dpcr_dtype_size(t->view.dtype);
    const int64_t n = t->steps < 0 ? 1 : t->steps;
    check_around(&t->memory, t->name);
    if (n == 0 || t->rows == 0) return;
    int64_t gaps = (int64_t)(t->memory.bytes / size) - n * t->rows * t->values;
    if (gaps <= 0) return;
    unsigned char *own = calloc(1, t->memory.bytes / size);
    const int64_t first = ((char *)t->view.data - t->memory.data) / (int64_t)size;
    for (int64_t l = 0; l < n; l++)
        for (int64_t b = 0; b < t->rows; b++) memset(own + first + table_at(t, l, b), 1, (size_t)t->values);
    for (size_t i = 0; i < t->memory.bytes / size; i++)
        for (size_t k = 0; !own[i] && k < size; k++)
            if ((unsigned char)t->memory.data[i * size + k] != UNTOUCHED) {
                free(own);
                wrong("%s was written between its rows, at %zu", t->name, i);
            }
    free(own);
}

// The numbers row by row, and where two tables first differ in their bits: -1, or the place in [steps][rows][values].
static inline void *packed_table(const table *t) {
    const size_t size = dpcr_dtype_size(t->view.dtype);
    const int64_t n = t->steps < 0 ? 1 : t->steps;
    char *all = malloc((size_t)(n * t->rows * t->values) * size + 1);
    for (int64_t l = 0; l < n; l++)
        for (int64_t b = 0; b < t->rows; b++)
            memcpy(all + (size_t)((l * t->rows + b) * t->values) * size,
                   (const char *)t->view.data + table_at(t, l, b) * (int64_t)size, (size_t)t->values * size);
    return all;
}

static inline int64_t differs(const void *a, const void *b, dpcr_dtype dtype, int64_t count) {
    const size_t size = dpcr_dtype_size(dtype);
    if (memcmp(a, b, (size_t)count * size) == 0) return -1;
    for (int64_t i = 0;; i++)
        if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size) != 0) return i;
}

// ---- contexts ----

static dpcr_context *draw_contexts[5];  // by threads

static inline int draw_open_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &draw_contexts[threads], NULL), DPCR_OK);
    }
    return 0;
}

static inline int draw_close_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) dpcr_context_destroy(draw_contexts[threads]);
    return 0;
}

#endif
