// SPDX-License-Identifier: MIT
// A context whose memory, once it was given back, stays and is looked at: nothing may be on its way there any more.
#ifndef TESTS_DEVICE_WATCHED_H
#define TESTS_DEVICE_WATCHED_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "on_device.h"

typedef struct watched_piece {
    struct watched_piece *next;
    unsigned char *memory;
    size_t bytes;
    bool back;
} watched_piece;

typedef struct watched {
    pthread_mutex_t lock;
    watched_piece *pieces;
    dpcr_context *context;
} watched;

enum { GIVEN_BACK = 0xa5 };

static void *watched_allocate(void *user, size_t bytes, size_t alignment) {
    watched *w = user;
    watched_piece *p = malloc(sizeof *p);
    if (!p) return NULL;
    *p = (watched_piece){.bytes = bytes};
    p->memory = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    pthread_mutex_lock(&w->lock);
    p->next = w->pieces;
    w->pieces = p;
    pthread_mutex_unlock(&w->lock);
    return p->memory;
}

static void watched_release(void *user, void *memory) {
    watched *w = user;
    pthread_mutex_lock(&w->lock);
    for (watched_piece *p = w->pieces; p && memory; p = p->next)
        if (p->memory == memory) {
            memset(p->memory, GIVEN_BACK, p->bytes);
            p->back = true;
            break;
        }
    pthread_mutex_unlock(&w->lock);
}

static void watched_create(watched *w) {
    dpcr_error error = {0};
    *w = (watched){.lock = PTHREAD_MUTEX_INITIALIZER};
    const dpcr_context_options options = {.size = sizeof options,
                                          .threads = 1,
                                          .allocate = watched_allocate,
                                          .release = watched_release,
                                          .allocator_user = w};
    ok(dpcr_context_create(&options, &w->context, &error), &error);
}

// What was put into the default stream lands first.
static void watched_destroy(watched *w) {
    dpcr_error error = {0};
    ok(dpcr_stream_wait(there, NULL, &error), &error);
    dpcr_context_destroy(w->context);
    for (watched_piece *p = w->pieces, *next; p; p = next) {
        next = p->next;
        assert_true(p->back);
        for (size_t i = 0; i < p->bytes; i++)
            if (p->memory[i] != GIVEN_BACK) fail_msg("byte %zu of %zu was written when given back", i, p->bytes);
        free(p->memory);
        free(p);
    }
}

#endif
