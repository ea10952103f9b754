// SPDX-License-Identifier: MIT
// The context's notes: a list behind a lock. Few (one a shape of chain and machine), so a search is a walk.
#include "rt/wisdom.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

bool dpcri_wisdom_open(dpcri_wisdom *wisdom) {
    *wisdom = (dpcri_wisdom){0};
    return pthread_mutex_init(&wisdom->lock, NULL) == 0;
}

static void free_notes(dpcr_context *context, dpcri_wisdom *wisdom) {
    while (wisdom->notes) {
        dpcri_note *note = wisdom->notes;
        wisdom->notes = note->next;
        dpcri_free(context, note);
    }
    wisdom->count = 0;
}

void dpcri_wisdom_close(dpcr_context *context, dpcri_wisdom *wisdom) {
    free_notes(context, wisdom);
    pthread_mutex_destroy(&wisdom->lock);
}

static bool is_plain(const char *text, size_t most) {
    size_t n = 0;
    for (; text[n]; n++)
        if ((unsigned char)text[n] < 0x20 || (unsigned char)text[n] > 0x7e) return false;
    return n > 0 && n < most;
}

static dpcri_note **place_of(dpcri_wisdom *wisdom, const char *key) {
    dpcri_note **place = &wisdom->notes;
    while (*place && strcmp((*place)->key, key) != 0) place = &(*place)->next;
    return place;
}

bool dpcri_wisdom_find(dpcr_context *context, const char *key, char *value) {
    dpcri_wisdom *wisdom = dpcri_context_wisdom(context);
    pthread_mutex_lock(&wisdom->lock);
    const dpcri_note *note = *place_of(wisdom, key);
    if (note) snprintf(value, DPCRI_WISDOM_VALUE, "%s", note->value);
    pthread_mutex_unlock(&wisdom->lock);
    return note != NULL;
}

static bool put_note(dpcr_context *context, const char *key, const char *value, bool own) {
    dpcri_wisdom *wisdom = dpcri_context_wisdom(context);
    if (!is_plain(key, DPCRI_WISDOM_KEY) || strstr(key, " = ") || !is_plain(value, DPCRI_WISDOM_VALUE)) return false;
    const size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value) + 1;
    dpcri_note *note = dpcri_alloc(context, sizeof *note + key_bytes + value_bytes);
    if (!note) return false;
    note->own = own;
    memcpy(note->key, key, key_bytes);
    note->value = note->key + key_bytes;
    memcpy(note->value, value, value_bytes);
    pthread_mutex_lock(&wisdom->lock);
    dpcri_note **place = place_of(wisdom, key), *old = *place;
    const bool stays = old && old->own && !own, room = old || wisdom->count < DPCRI_WISDOM_MOST, takes = room && !stays;
    if (takes && old) *place = old->next, wisdom->count--;
    if (takes) note->next = wisdom->notes, wisdom->notes = note, wisdom->count++;
    pthread_mutex_unlock(&wisdom->lock);
    dpcri_free(context, takes ? old : note);
    return room;
}

bool dpcri_wisdom_set(dpcr_context *context, const char *key, const char *value) {
    return put_note(context, key, value, true);
}

bool dpcri_wisdom_add(dpcr_context *context, const char *key, const char *value) {
    return put_note(context, key, value, false);
}

void dpcri_wisdom_clear(dpcr_context *context) {
    dpcri_wisdom *wisdom = dpcri_context_wisdom(context);
    pthread_mutex_lock(&wisdom->lock);
    free_notes(context, wisdom);
    pthread_mutex_unlock(&wisdom->lock);
}

int64_t dpcri_wisdom_count(dpcr_context *context) {
    dpcri_wisdom *wisdom = dpcri_context_wisdom(context);
    pthread_mutex_lock(&wisdom->lock);
    const int64_t count = wisdom->count;
    pthread_mutex_unlock(&wisdom->lock);
    return count;
}

static dpcri_note *reversed(dpcri_note *note) {
    dpcri_note *back = NULL;
    while (note) {
        dpcri_note *next = note->next;
        note->next = back;
        back = note;
        note = next;
    }
    return back;
}

void dpcri_wisdom_each(dpcr_context *context, void (*visit)(void *argument, const char *key, const char *value),
                       void *argument) {
    dpcri_wisdom *wisdom = dpcri_context_wisdom(context);
    pthread_mutex_lock(&wisdom->lock);
    wisdom->notes = reversed(wisdom->notes);
    for (const dpcri_note *note = wisdom->notes; note; note = note->next) visit(argument, note->key, note->value);
    wisdom->notes = reversed(wisdom->notes);
    pthread_mutex_unlock(&wisdom->lock);
}

// ---- rates ----

static void rates_key(const dpcr_context *context, char *key, size_t bytes) {
    snprintf(key, bytes, "rates threads %d", dpcr_context_threads(context));
}

static bool is_positive(double value) { return value > 0 && value < 1e300; }

bool dpcri_wisdom_rates(dpcr_context *context, dpcr_machine *machine) {
    char key[64], value[DPCRI_WISDOM_VALUE];
    dpcr_machine m = {.size = sizeof m, .threads = dpcr_context_threads(context)};
    int end = 0;
    rates_key(context, key, sizeof key);
    if (!dpcri_wisdom_find(context, key, value)) return false;
    const int read = dpcri_text_scan(
        value, "flops %lf latency %lf region %lf wake %lf bandwidth %lf alone %lf L1 %lf %lf L2 %lf %lf L3 %lf %lf%n",
        &m.flops, &m.latency, &m.region, &m.wake, &m.bandwidth, &m.thread_bandwidth, &m.cache_bytes[0],
        &m.cache_bandwidth[0], &m.cache_bytes[1], &m.cache_bandwidth[1], &m.cache_bytes[2], &m.cache_bandwidth[2],
        &end);
    if (read != 12 || value[end] || !is_positive(m.flops) || !is_positive(m.latency) || !is_positive(m.bandwidth) ||
        !is_positive(m.thread_bandwidth) || !(m.region >= 0 && m.region < 1) || !(m.wake >= 0 && m.wake < 1))
        return false;
    for (int i = 0; i < 3; i++)
        if (!is_positive(m.cache_bandwidth[i]) || !(m.cache_bytes[i] >= 0 && m.cache_bytes[i] < 1e18)) return false;
    *machine = m;
    return true;
}

void dpcri_wisdom_keep_rates(dpcr_context *context, const dpcr_machine *m) {
    char key[64], value[DPCRI_WISDOM_VALUE];
    rates_key(context, key, sizeof key);
    dpcri_text_print(
        value, sizeof value,
        "flops %.9g latency %.9g region %.9g wake %.9g bandwidth %.9g alone %.9g L1 %.9g %.9g L2 %.9g %.9g L3 "
        "%.9g %.9g",
        m->flops, m->latency, m->region, m->wake, m->bandwidth, m->thread_bandwidth, m->cache_bytes[0],
        m->cache_bandwidth[0], m->cache_bytes[1], m->cache_bandwidth[1], m->cache_bytes[2], m->cache_bandwidth[2]);
    dpcri_wisdom_set(context, key, value);  // refused memory: measured again the next time
}
