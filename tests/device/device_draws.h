// SPDX-License-Identifier: MIT
// Random problems on a device (draws.h): all that a call reads and writes lies in one piece of the device's memory, its
// arrays at any number, workspaces of just the size, and between them what is no number; after a call what was not to
// be written is as it was. Over the simulator the device is another in each draw (tests/device/cuda/settings.cpp): how
// many blocks go together, how much memory one has, and who goes first.
#ifndef TESTS_DEVICE_DRAWS_H
#define TESTS_DEVICE_DRAWS_H

#include "draws.h"

enum { ARENA_BYTES = 24 << 20, BETWEEN = 256, PIECES = 40 };

// Places are bytes from the beginning of the arena.
typedef struct spot {
    const char *name;
    size_t at, bytes;
    bool written;
} spot;

static struct {
    dpcr_device device;
    unsigned char *there, *sent, *got;
    size_t used;
    int count;
    spot pieces[PIECES];
} arena;

static inline void clear_arena(void) { arena.used = 0, arena.count = 0; }

// Room after what is no number, on a page of 256 bytes or, `anywhere`, so many numbers of `size` behind one.
static inline spot take_place(const char *name, size_t bytes, size_t size, bool anywhere, bool written) {
    const size_t begin = (arena.used + BETWEEN + 255) / 256 * 256;
    spot p = {.name = name, .at = begin + (anywhere ? (size_t)draw_below(9) * size : 0), .bytes = bytes};
    p.written = written;
    if (arena.count >= PIECES || p.at + bytes + 2 * BETWEEN > ARENA_BYTES) wrong("the test has too much on the device");
    static const unsigned char no_number[] = {0xa5, 0xa5, 0xff, 0xff};
    for (size_t i = arena.used; i < p.at + bytes + BETWEEN; i++) arena.sent[i] = no_number[i % 4];
    arena.used = p.at + bytes;
    return arena.pieces[arena.count++] = p;
}

static inline spot place_numbers(const char *name, const void *numbers, size_t bytes, size_t size, bool written) {
    const spot p = take_place(name, bytes, size, draw_chance(50), written);
    if (bytes) memcpy(arena.sent + p.at, numbers, bytes);
    return p;
}

static inline spot place_workspace(size_t bytes) {
    const spot p = take_place("workspace", bytes, 1, false, true);
    if (draw_chance(40)) memset(arena.sent + p.at, 0, bytes);
    return p;
}

static inline spot place_table(const table *t, bool written) {
    return place_numbers(t->name, t->memory.data, t->memory.bytes, dpcr_dtype_size(t->view.dtype), written);
}

static inline void *address(const spot *p) { return arena.there + p->at; }

static inline dpcr_array table_there(const table *t, const spot *p) {
    dpcr_array view = t->view;
    view.data = arena.there + p->at + ((char *)t->view.data - t->memory.data);
    view.device = arena.device;
    return view;
}

static inline void wait_there(const char *what) {
    dpcr_error error = {0};
    check_done(dpcr_stream_wait(arena.device, NULL, &error), &error, what);
}

static inline void send_arena(void) {
    dpcr_error error = {0};
    const dpcr_device here = {.type = DPCR_HOST};
    check_done(dpcr_device_copy(arena.device, arena.there, here, arena.sent, arena.used + BETWEEN, NULL, &error),
               &error, "copy");
    wait_there("copy");
}

// What came of it, and whether anything was written beside.
static inline void fetch_arena(const char *what) {
    dpcr_error error = {0};
    const dpcr_device here = {.type = DPCR_HOST};
    wait_there(what);
    check_done(dpcr_device_copy(here, arena.got, arena.device, arena.there, arena.used + BETWEEN, NULL, &error), &error,
               "copy");
    wait_there("copy");
    size_t from = 0;
    for (int i = 0; i <= arena.count; i++) {
        const spot *const p = &arena.pieces[i];
        const size_t end = i == arena.count ? arena.used + BETWEEN : p->written ? p->at : p->at + p->bytes;
        for (size_t k = from; k < end; k++)
            if (arena.sent[k] != arena.got[k]) {
                const spot *const near = i > 0 && (i == arena.count || k < p->at) ? &arena.pieces[i - 1] : p;
                wrong("%s: %s was written %td bytes from its beginning, of %zu", what, near->name,
                      (ptrdiff_t)k - (ptrdiff_t)near->at, near->bytes);
            }
        if (i < arena.count) from = p->at + p->bytes;
    }
}

// What a workspace that is a byte too small ends with.
static inline void check_small(dpcr_status status, const dpcr_error *error) {
    check_words(status, error);
    if (status != DPCR_ERROR_MEMORY) wrong("a workspace that is too small: status %d", (int)status);
}

// What lies there now, in the place of what the host's table held.
static inline void fetch_table(const table *t, const spot *p) {
    if (p->bytes) memcpy(t->memory.data, arena.got + p->at, p->bytes);
}

// Another device, if the simulator is one.
static inline void draw_device(void) {
    char text[128];
    const int blocks = (int)(draw_chance(40) ? 8 : draw_log(1, 40));
    const int bytes = (int)(draw_chance(60) ? 227 << 10 : draw_chance(50) ? 64 << 10 : draw_between(64, 227) << 10);
    snprintf(text, sizeof text, "%d %d %d %d", (int)draw_between(1, 1 << 20), (int)draw_between(1, 9), blocks, bytes);
    setenv("DEEPPCR_SIMT", text, 1);
    tell(" simt '%s'", text);
}

// One whose blocks have room for the tiles of narrow chains (src/kern/cuda/linear_stream.h), or one of those that have
// not and serve such chains otherwise: no bits hang on anything else.
static inline void draw_device_for_tiles(bool room) {
    char text[128];
    snprintf(text, sizeof text, "%d %d %d %d", (int)draw_between(1, 1 << 20), (int)draw_between(1, 9),
             (int)draw_log(1, 40), (int)(room ? draw_between(112, 227) : draw_between(64, 87)) << 10);
    setenv("DEEPPCR_SIMT", text, 1);
    tell(" simt '%s'", text);
}

static inline void draw_same_device(void) { setenv("DEEPPCR_SIMT", "1 4 8 232448", 1); }

// The arena's device, once. False: there is none, which is told.
static inline bool open_arena(void) {
    const char *name = getenv("DEEPPCR_DEVICE");
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    void *memory = NULL;
    if (dpcr_device_find(name ? name : "cuda", &arena.device, &error) != DPCR_OK ||
        dpcr_device_describe(arena.device, &info, &error) != DPCR_OK ||
        dpcr_device_allocate(arena.device, ARENA_BYTES, &memory, &error) != DPCR_OK) {
        printf("skipped: %s\n", error.text);
        return false;
    }
    arena.there = memory;
    arena.sent = malloc(ARENA_BYTES), arena.got = malloc(ARENA_BYTES);
    return arena.sent && arena.got;
}

static inline void close_arena(void) {
    dpcr_device_release(arena.device, arena.there);
    free(arena.sent), free(arena.got);
}

// A test of draws as a program; 77 where there is no device.
static inline int draw_on_device(const char *name, void (*test)(void **state)) {
    const struct CMUnitTest tests[] = {{.name = name, .test_func = test}};
    if (!open_arena()) return 77;
    draw_open_contexts(NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    draw_close_contexts(NULL);
    close_arena();
    return failed;
}

#endif
