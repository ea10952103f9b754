// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *dpcr_version(void) { return DPCR_VERSION_STRING; }

const char *dpcr_status_name(dpcr_status status) {
    switch (status) {
        case DPCR_OK: return "ok";
        case DPCR_ERROR_ARGUMENT: return "argument";
        case DPCR_ERROR_UNSUPPORTED: return "unsupported";
        case DPCR_ERROR_MEMORY: return "memory";
        case DPCR_ERROR_OVERFLOW: return "overflow";
        case DPCR_ERROR_IO: return "io";
        case DPCR_ERROR_FORMAT: return "format";
        case DPCR_ERROR_CALLBACK: return "callback";
        case DPCR_ERROR_CANCELLED: return "cancelled";
        case DPCR_ERROR_SYSTEM: return "system";
        case DPCR_ERROR_DEVICE: return "device";
    }
    return "unknown";
}

// How many bytes stand there of a UTF-8 sequence that began before.
static size_t left_over(const char *text) {
    size_t n = 0;
    while (n < 3 && ((unsigned char)text[n] & 0xc0) == 0x80) n++;
    return n;
}

static void cut_middle(char *text, size_t bytes, const char *whole, size_t length) {
    static const char mark[] = " [...] ";
    const size_t last = bytes / 3, tail = last - left_over(whole + length - last);
    size_t head = bytes - last - sizeof mark;
    for (int n = 0; n < 3 && left_over(whole + head); n++) head--;
    snprintf(text, bytes, "%.*s%s%s", (int)head, whole, mark, whole + length - tail);
}

// How much of the text is left without a UTF-8 sequence that its end has cut.
static size_t without_cut_letter(const char *text, size_t length) {
    size_t lead = length;
    while (lead > 0 && length - lead < 3 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80) lead--;
    if (lead == 0) return length;
    const unsigned char c = (unsigned char)text[--lead];
    const size_t bytes = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return length - lead < bytes ? lead : length;
}

void dpcri_line_print(char *text, size_t bytes, const char *format, va_list arguments) {
    char whole[1 << 13];  // a path and what is said of it; an error has no memory to ask for
    const int printed = vsnprintf(whole, sizeof whole, format, arguments);
    size_t length = printed < 0 ? 0 : (size_t)printed;
    if (length >= sizeof whole) length = without_cut_letter(whole, sizeof whole - 1);
    whole[length] = 0;
    for (char *c = whole; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    if (length < bytes)
        memcpy(text, whole, length + 1);
    else
        cut_middle(text, bytes, whole, length);
}

static dpcr_status fail_va(dpcr_error *error, dpcr_status status, int code, const char *format, va_list arguments) {
    if (error) {
        error->status = status;
        error->code = code;
        dpcri_line_print(error->text, sizeof error->text, format, arguments);
    }
    return status;
}

dpcr_status dpcri_fail(dpcr_error *error, dpcr_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail_va(error, status, 0, format, arguments);
    va_end(arguments);
    return status;
}

dpcr_status dpcri_fail_code(dpcr_error *error, dpcr_status status, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail_va(error, status, code, format, arguments);
    va_end(arguments);
    return status;
}

dpcr_status dpcri_fail_stopped(dpcr_error *error, const char *call) {
    return dpcri_fail(error, DPCR_ERROR_CANCELLED, "%s: stopped by the caller's cancel function", call);
}

bool dpcri_mul(int64_t a, int64_t b, int64_t *product) {
    int64_t whole = 0;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &whole)) return false;
    *product = whole;
    return true;
}

bool dpcri_add(int64_t a, int64_t b, int64_t *sum) {
    if (a < 0 || b < 0 || a > INT64_MAX - b) return false;
    *sum = a + b;
    return true;
}

size_t dpcri_bytes(int64_t a, int64_t b, int64_t c, bool *overflow) {
    int64_t product = 0;
    if (!dpcri_mul(a, b, &product) || !dpcri_mul(product, c, &product)) {
        *overflow = true;
        return 0;
    }
    return (size_t)product;
}

void *dpcri_arena_take(dpcri_arena *arena, int64_t count, size_t element_bytes) {
    const size_t align = 64;
    bool overflow = false;
    size_t bytes = dpcri_bytes(count, (int64_t)element_bytes, 1, &overflow);
    if (overflow || bytes > (size_t)INT64_MAX - align - arena->used) {
        arena->overflow = true;
        return NULL;
    }
    bytes = (bytes + align - 1) / align * align;
    if (arena->base && arena->used + bytes > arena->size) {
        arena->overflow = true;
        return NULL;
    }
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += bytes;
    return piece;
}

dpcr_array dpcr_array_make(void *data, dpcr_dtype dtype, int32_t ndim, const int64_t *shape) {
    // Number by number into what is returned: filled by a loop it is copied once more, which takes ten times as long.
    int64_t shapes[DPCR_MAX_DIMS], strides[DPCR_MAX_DIMS], stride = 1;
    for (int32_t d = DPCR_MAX_DIMS - 1; d >= 0; d--) {
        shapes[d] = d < ndim ? shape[d] : 0;
        strides[d] = d < ndim ? stride : 0;
        // Of shapes that fit no memory, such as those that a refusal tells of, strides mean nothing.
        if (d < ndim) stride = (int64_t)((uint64_t)stride * (uint64_t)shape[d]);
    }
    static_assert(DPCR_MAX_DIMS == 6, "all of them are below");
    return (dpcr_array){.data = data,
                        .dtype = dtype,
                        .device = {DPCR_HOST, 0},
                        .ndim = ndim,
                        .shape = {shapes[0], shapes[1], shapes[2], shapes[3], shapes[4], shapes[5]},
                        .strides = {strides[0], strides[1], strides[2], strides[3], strides[4], strides[5]}};
}

size_t dpcr_dtype_size(dpcr_dtype dtype) {
    switch (dtype) {
        case DPCR_F32: return 4;
        case DPCR_F64: return 8;
        case DPCR_U32: return 4;
    }
    return 0;
}

const char *dpcr_dtype_name(dpcr_dtype dtype) {
    switch (dtype) {
        case DPCR_F32: return "float32";
        case DPCR_F64: return "float64";
        case DPCR_U32: return "uint32";
    }
    return "unknown";
}

const char *dpcri_array_text(const dpcr_array *array, char *buffer, size_t bytes) {
    size_t used = 0;
    if (!array) {
        snprintf(buffer, bytes, "nothing");
        return buffer;
    }
    buffer[0] = 0;
    for (int32_t d = 0; d < array->ndim && d < DPCR_MAX_DIMS && used < bytes; d++)
        used += (size_t)snprintf(buffer + used, bytes - used, "[%lld]", (long long)array->shape[d]);
    if (used < bytes) snprintf(buffer + used, bytes - used, " %s", dpcr_dtype_name(array->dtype));
    return buffer;
}

// Bytes from the lowest element's begin to the highest one's, and how far below `data` the lowest lies; false: too far.
static bool reach_of(const dpcr_array *array, int64_t *reach, int64_t *below) {
    const int64_t size = (int64_t)dpcr_dtype_size(array->dtype);
    int64_t all = 0, under = 0;
    for (int32_t d = 0; d < array->ndim; d++) {
        int64_t span = 0;
        const int64_t stride = array->strides[d];
        if (array->shape[d] < 2) continue;
        if (stride == INT64_MIN || !dpcri_mul(array->shape[d] - 1, stride < 0 ? -stride : stride, &span) ||
            !dpcri_add(all, span, &all))
            return false;
        if (stride < 0) under += span;
    }
    *below = 0;
    return dpcri_mul(all, size, reach) && dpcri_mul(under, size, below);
}

bool dpcri_reaches_too_far(const dpcr_array *array) {
    int64_t reach = 0, below = 0;
    return !reach_of(array, &reach, &below);
}

// A dimension's places: `count` of them, `stride` apart, from 0 on.
typedef struct places {
    int64_t count, stride;
} places;

// Whether indices that differ by d, one d not 0, lead to places `at` apart: sum of d stride = at. Without a d so far
// the first one is positive, for -d says the same. The axes go from the longest stride down.
static bool meets(const places *axis, int axes, int64_t at, bool moved, int *tries) {
    if (axes == 0) return moved && at == 0;
    if (--*tries < 0) return true;
    int64_t reach = 0;
    for (int k = 1; k < axes; k++) reach += (axis[k].count - 1) * axis[k].stride;
    const int64_t stride = axis->stride, least = at - reach, most = at + reach;
    int64_t from = least > 0 ? (least - 1) / stride + 1 : least / stride;
    int64_t to = most < 0 ? (most + 1) / stride - 1 : most / stride;
    if (from < (moved ? 1 - axis->count : 0)) from = moved ? 1 - axis->count : 0;
    if (to > axis->count - 1) to = axis->count - 1;
    for (int64_t d = from; d <= to; d++)
        if (meets(axis + 1, axes - 1, at - d * stride, moved || d != 0, tries)) return true;
    return false;
}

// Whether each axis steps over all that those of shorter strides reach: no place is met twice. From the longest down.
static bool are_nested(const places *axis, int axes) {
    int64_t reach = 0;
    for (int k = axes - 1; k >= 0; k--) {
        if (axis[k].stride <= reach) return false;
        reach += (axis[k].count - 1) * axis[k].stride;
    }
    return true;
}

static bool meets_itself(const dpcr_array *array) {
    places axis[DPCR_MAX_DIMS];
    int axes = 0, tries = 1 << 16;
    for (int32_t d = 0; d < array->ndim; d++) {
        const places new = {array->shape[d], llabs(array->strides[d])};
        if (new.count < 2) continue;
        if (new.stride == 0) return true;
        int k = axes++;
        for (; k > 0 && axis[k - 1].stride < new.stride; k--) axis[k] = axis[k - 1];
        axis[k] = new;
    }
    return !are_nested(axis, axes) && meets(axis, axes, 0, false, &tries);
}

static bool is_empty(const dpcr_array *array) {
    for (int32_t d = 0; d < array->ndim; d++)
        if (array->shape[d] == 0) return true;
    return false;
}

dpcr_status dpcri_check_written(const char *call, const char *name, const dpcr_array *array, dpcr_error *error) {
    if (!array || is_empty(array)) return DPCR_OK;
    if (dpcri_reaches_too_far(array))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the strides of %s reach beyond the address space", call,
                          name);
    if (!meets_itself(array)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is written, but its strides make it overlap itself", call,
                      name);
}

// Is there a place from `from` to `to`, one of each axis added up? The axes go from the longest stride down.
static bool lies_between(const places *axis, int axes, int64_t from, int64_t to, int *tries) {
    if (axes == 0) return from <= 0 && to >= 0;
    if (--*tries < 0) return true;
    int64_t reach = 0;
    for (int k = 1; k < axes; k++) reach += (axis[k].count - 1) * axis[k].stride;
    const int64_t stride = axis->stride;
    int64_t i = from > reach ? (from - reach - 1) / stride + 1 : 0;
    for (; i < axis->count && i * stride <= to; i++)
        if (lies_between(axis + 1, axes - 1, from - i * stride, to - i * stride, tries)) return true;
    return false;
}

// Axes of one stride are one, of as many places as their sums have.
static int add_axis(places *axis, int axes, places new) {
    int k = 0;
    while (k < axes && axis[k].stride > new.stride) k++;
    if (k < axes && axis[k].stride == new.stride) {
        axis[k].count += new.count - 1;
        return axes;
    }
    memmove(axis + k + 1, axis + k, (size_t)(axes - k) * sizeof *axis);
    axis[k] = new;
    return axes + 1;
}

// Where an array lies: the address of its lowest byte, and bytes from the lowest element's begin to the highest one's.
typedef struct extent {
    uintptr_t lowest;
    int64_t reach, element;
} extent;

static bool extent_of(const dpcr_array *array, extent *e) {
    int64_t below = 0;
    e->element = (int64_t)dpcr_dtype_size(array->dtype);
    if (!reach_of(array, &e->reach, &below)) return false;
    e->lowest = (uintptr_t)array->data - (uintptr_t)below;
    return true;
}

// a at `a.lowest + I`, b at `b.lowest + b.reach - J`, in bytes: they meet where I + J is b.lowest + b.reach - a.lowest.
static bool share_memory(const dpcr_array *a, const extent *of_a, const dpcr_array *b, const extent *of_b) {
    if (of_a->reach > INT64_MAX / 4 || of_b->reach > INT64_MAX / 4) return true;  // more than memory is
    const int64_t at = (int64_t)(of_b->lowest - of_a->lowest);
    if (at >= of_a->reach + of_a->element || -at >= of_b->reach + of_b->element) return false;
    const dpcr_array *const both[2] = {a, b};
    places axis[2 * DPCR_MAX_DIMS];
    int axes = 0, tries = 1 << 16;
    for (int i = 0; i < 2; i++)
        for (int32_t d = 0; d < both[i]->ndim; d++) {
            const places new = {both[i]->shape[d], llabs(both[i]->strides[d]) * (i ? of_b : of_a)->element};
            if (new.count > 1 && new.stride != 0) axes = add_axis(axis, axes, new);
        }
    return lies_between(axis, axes, at + of_b->reach - of_a->element + 1, at + of_b->reach + of_b->element - 1, &tries);
}

dpcr_status dpcri_check_apart(const char *call, const char *name, const dpcr_array *array, const char *written_name,
                              const dpcr_array *written, dpcr_error *error) {
    extent one, other;
    if (!array || !written || is_empty(array) || is_empty(written)) return DPCR_OK;
    const bool near = extent_of(array, &one);
    if (!near || !extent_of(written, &other))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the strides of %s reach beyond the address space", call,
                          near ? written_name : name);
    if (!share_memory(array, &one, written, &other)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "%s: %s shares memory with %s, which is written; wanted it elsewhere: a copy, say", call, name,
                      written_name);
}

static places places_of(int64_t count, int64_t stride, size_t size) {
    return (places){count, count > 1 ? llabs(stride) * (int64_t)size : 0};
}

// The last place that is not behind `at`, or the first one.
static int64_t place_before(places p, int64_t at) {
    const int64_t i = at > 0 && p.stride > 0 ? at / p.stride : 0;
    return i < p.count ? i : p.count - 1;
}

// Whether `bytes` at `at` share one with a row of as many at a place of outer plus one of inner. nested: all of inner's
// lie before outer's next place. Of places in order there are two to look at.
static bool touches(places outer, places inner, bool nested, int64_t bytes, int64_t at) {
    const int64_t first = nested ? place_before(outer, at) : 0, past = nested ? first + 2 : outer.count;
    for (int64_t i = first; i < outer.count && i < past; i++) {
        const int64_t rest = at - i * outer.stride, near = place_before(inner, rest);
        for (int64_t j = near; j < inner.count && j < near + 2; j++)
            if (llabs(rest - j * inner.stride) < bytes) return true;
    }
    return false;
}

static bool rows_shared(const dpcr_array *z0, const dpcr_array *z) {
    const size_t size = dpcr_dtype_size(z->dtype);
    const int64_t bytes = z->shape[2] * (int64_t)size;
    const places steps = places_of(z->shape[0], z->strides[0], size),
                 rows = places_of(z->shape[1], z->strides[1], size);
    const bool by_steps = steps.stride >= rows.stride;
    const places outer = by_steps ? steps : rows, inner = by_steps ? rows : steps;
    if (steps.count == 0 || rows.count == 0 || bytes == 0) return false;
    const int64_t reach = (inner.count - 1) * inner.stride + bytes, all = (outer.count - 1) * outer.stride + reach;
    const bool nested = outer.count == 1 || outer.stride >= reach;
    uintptr_t lowest = (uintptr_t)z->data;
    if (z->strides[0] < 0) lowest -= (uintptr_t)((steps.count - 1) * steps.stride);
    if (z->strides[1] < 0) lowest -= (uintptr_t)((rows.count - 1) * rows.stride);
    const int64_t from = (int64_t)((uintptr_t)z0->data - lowest);
    const int64_t next = rows.count > 1 ? z0->strides[0] * (int64_t)size : 0;
    for (int64_t b = 0; b < rows.count; b++) {
        const int64_t at = from + b * next;
        if (at > -bytes && at < all && touches(outer, inner, nested, bytes, at)) return true;
    }
    return false;
}

dpcr_status dpcri_check_start(const char *call, const dpcr_array *z0, const dpcr_array *z, dpcr_error *error) {
    if (!rows_shared(z0, z)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "%s: z0 shares memory with z, which is written; wanted it elsewhere: a copy, say", call);
}

dpcr_status dpcri_check_reserved(const char *options, const uint64_t *reserved, size_t bytes, dpcr_error *error) {
    for (size_t i = 0; i < bytes / sizeof *reserved; i++)
        if (reserved[i])
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: reserved[%zu] is %" PRIu64 ", wanted 0", options, i,
                              reserved[i]);
    return DPCR_OK;
}

void dpcri_copy_out(void *to, const void *from, size_t size) {
    size_t room;
    memcpy(&room, to, sizeof room);
    if (size < room) room = size;
    if (room > sizeof room)
        memcpy((unsigned char *)to + sizeof room, (const unsigned char *)from + sizeof room, room - sizeof room);
}

double dpcri_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
