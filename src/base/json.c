// SPDX-License-Identifier: MIT
#include "base/json.h"

#include <errno.h>
#include <stdbool.h>

// jansson (2.14) leaves out a letter of a string that it gets no room for, and calls a string wrong that it gets no
// room to keep. All that tells is errno, until the next number: so it is looked at before each letter.
typedef struct reading {
    const char *text, *end;
    bool no_memory;
} reading;

static size_t next_letter(void *to, size_t room, void *user) {
    reading *r = user;
    (void)room;
    if (errno == ENOMEM) r->no_memory = true;
    if (r->text == r->end || r->no_memory) return 0;
    *(char *)to = *r->text++;
    return 1;
}

// An allocation that succeeds in a second way (glibc's, where the heap cannot grow) may leave ENOMEM too, so that alone
// is no end: what it took is free again for the next attempt.
json_t *dpcri_json_parse(const char *text, size_t bytes, json_error_t *where) {
    for (int attempt = 0; attempt < 3; attempt++) {
        reading r = {.text = text, .end = text + bytes};
        errno = 0;
        json_t *value = json_load_callback(next_letter, &r, JSON_REJECT_DUPLICATES, where);
        if (errno != ENOMEM && !r.no_memory) return value;
        json_decref(value);
    }
    where->text[0] = 0;
    return NULL;
}
