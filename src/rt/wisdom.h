// SPDX-License-Identifier: MIT
// What a context has learned: short texts by key, all of one machine. solve/wisdom.c gives them meaning and files.
#ifndef DPCRI_WISDOM_H
#define DPCRI_WISDOM_H

#include <pthread.h>

#include "base/base.h"

enum { DPCRI_WISDOM_KEY = 384, DPCRI_WISDOM_VALUE = 640, DPCRI_WISDOM_MOST = 65536 };

// Key and value are printable ASCII, neither empty; the key holds no " = ".
typedef struct dpcri_note {
    struct dpcri_note *next;
    char *value;  // behind the key, in the same memory
    bool own;     // found out here, not read from a file
    char key[];
} dpcri_note;

typedef struct dpcri_wisdom {
    pthread_mutex_t lock;
    dpcri_note *notes;  // the newest first
    int64_t count;
} dpcri_wisdom;

bool dpcri_wisdom_open(dpcri_wisdom *wisdom);
void dpcri_wisdom_close(dpcr_context *context, dpcri_wisdom *wisdom);
dpcri_wisdom *dpcri_context_wisdom(dpcr_context *context);

// Copies the value of the key into `value` [DPCRI_WISDOM_VALUE]; false: there is none.
bool dpcri_wisdom_find(dpcr_context *context, const char *key, char *value);
// Sets or replaces. False: memory was refused, the key or value cannot be held, or there are too many.
bool dpcri_wisdom_set(dpcr_context *context, const char *key, const char *value);
// The same of what a file says; what the context has found out itself stays.
bool dpcri_wisdom_add(dpcr_context *context, const char *key, const char *value);
void dpcri_wisdom_clear(dpcr_context *context);
int64_t dpcri_wisdom_count(dpcr_context *context);
// for every note, the oldest first: visit(argument, key, value). Nothing else may be called on the wisdom meanwhile.
void dpcri_wisdom_each(dpcr_context *context, void (*visit)(void *argument, const char *key, const char *value),
                       void *argument);

// The context's rates as a note of their own: they belong to this machine with this number of threads.
bool dpcri_wisdom_rates(dpcr_context *context, dpcr_machine *machine);
void dpcri_wisdom_keep_rates(dpcr_context *context, const dpcr_machine *machine);

#endif
