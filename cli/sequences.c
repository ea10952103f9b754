// SPDX-License-Identifier: MIT
#include "sequences.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- bit streams ----

void cli_bits_read(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    enum { CLASSES = 1, BITS = 2 };  // streams of random numbers
    const cli_bits *b = user;
    const uint64_t sample = (uint64_t)(b->first + index);
    const uint64_t k = cli_random_below(b->seed, CLASSES, sample, CLI_BIT_CLASSES);
    for (int64_t t = 0; t < b->length; t++)
        x[t] = cli_random_below(b->seed, BITS, sample * (uint64_t)b->length + (uint64_t)t, 100) < 5 + 10 * k;
    *length = b->length;
    *label = (uint8_t)k;
}

int cli_bits_note(const cli_bits *test, dpcr_sequence *model) {
    char text[96];
    dpcr_error error = {0};
    snprintf(text, sizeof text, "%llu,%lld,%lld", (unsigned long long)test->seed, (long long)test->first,
             (long long)test->length);
    if (dpcr_sequence_set_metadata(model, CLI_BITSTREAM, text, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail_error(&error, CLI_COMPUTING);
}

bool cli_bits_noted(const dpcr_sequence *model, cli_bits *test) {
    const char *text = dpcr_sequence_metadata(model, CLI_BITSTREAM);
    unsigned long long seed = 0;
    long long first = 0, length = 0;
    int used = 0;
    if (!text || sscanf(text, "%llu,%lld,%lld%n", &seed, &first, &length, &used) != 3 || text[used]) return false;
    *test = (cli_bits){.seed = seed, .first = first, .length = length};
    return first >= 1 && first < INT64_MAX / 4 && length >= 1 && length <= 1 << 28;
}

// ---- paragraphs that were seen ----

typedef struct seen {
    uint64_t *slots;  // 0: free
    size_t room, count;
} seen;

static uint64_t hash_of(const uint8_t *bytes, int64_t count) {
    uint64_t hash = UINT64_C(1469598103934665603);
    for (int64_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash ? hash : 1;
}

static bool seen_grow(seen *s) {
    const seen old = *s;
    s->room = old.room ? 2 * old.room : 1 << 12;
    s->slots = calloc(s->room, sizeof *s->slots);
    if (!s->slots) {
        *s = old;
        return false;
    }
    for (size_t i = 0; i < old.room; i++) {
        if (!old.slots[i]) continue;
        size_t at = old.slots[i] & (s->room - 1);
        while (s->slots[at]) at = (at + 1) & (s->room - 1);
        s->slots[at] = old.slots[i];
    }
    free(old.slots);
    return true;
}

// True where it is new. Without memory everything is new.
static bool seen_add(seen *s, uint64_t hash) {
    if (2 * (s->count + 1) > s->room && !seen_grow(s)) return true;
    size_t at = hash & (s->room - 1);
    for (; s->slots[at]; at = (at + 1) & (s->room - 1))
        if (s->slots[at] == hash) return false;
    s->slots[at] = hash;
    s->count++;
    return true;
}

// ---- texts ----

typedef struct growing {
    uint8_t *bytes;
    size_t count, room;
} growing;

static bool append(growing *g, const uint8_t *bytes, size_t count) {
    if (g->count + count > g->room) {
        const size_t room = 2 * g->room + count;
        uint8_t *made = realloc(g->bytes, room);
        if (!made) return false;
        g->bytes = made;
        g->room = room;
    }
    memcpy(g->bytes + g->count, bytes, count);
    g->count += count;
    return true;
}

// Adds the document's paragraphs that are new; each ends with an empty line.
static bool add_document(growing *to, seen *s, const uint8_t *bytes, int64_t count) {
    for (int64_t at = 0; at < count;) {
        const uint8_t *end = memmem(bytes + at, (size_t)(count - at), "\n\n", 2);
        const int64_t stop = end ? end - bytes : count;
        if (stop > at && seen_add(s, hash_of(bytes + at, stop - at)) &&
            !(append(to, bytes + at, (size_t)(stop - at)) && append(to, (const uint8_t *)"\n\n", 2)))
            return false;
        at = stop + 2;
    }
    return true;
}

static int read_changelogs(dpcr_context *context, cli_text *text) {
    static const char pattern[] = "/usr/share/doc/*/changelog.Debian.gz";
    enum { HELD = 10 };  // one document in so many is for testing
    glob_t found = {0};
    growing parts[2] = {0};
    seen s = {0};
    int status = CLI_DONE;
    const int none = glob(pattern, 0, NULL, &found);
    if (none == GLOB_NOSPACE) return cli_fail_memory("the texts' names");
    if (none) return cli_fail(CLI_INPUT, "no texts at %s; name a file with --data FILE", pattern);
    for (size_t i = 0; !status && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        uint8_t *bytes = NULL;
        int64_t count = 0;
        dpcr_error error = {0};
        struct stat info;
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;  // links to packages that are not there
        if (dpcr_text_read(context, path, &bytes, &count, &error) != DPCR_OK) {
            status = cli_fail_error(&error, CLI_READING);
            break;
        }
        const bool held = hash_of((const uint8_t *)path, (int64_t)strlen(path)) / 7 % HELD == 0;
        if (!add_document(&parts[held], &s, bytes, count)) status = cli_fail_memory("the texts");
        dpcr_text_free(context, bytes);
        text->documents++;
    }
    globfree(&found);
    free(s.slots);
    text->train = parts[0].bytes;
    text->train_count = (int64_t)parts[0].count;
    text->test = parts[1].bytes;
    text->test_count = (int64_t)parts[1].count;
    return status;
}

static uint8_t *copy(const uint8_t *bytes, int64_t count) {
    uint8_t *made = malloc((size_t)count + 1);
    if (made) memcpy(made, bytes, (size_t)count);
    return made;
}

static int read_file(dpcr_context *context, const char *path, cli_text *text) {
    uint8_t *bytes = NULL;
    int64_t count = 0;
    dpcr_error error = {0};
    if (!cli_readable("the text", path)) return CLI_INPUT;
    if (dpcr_text_read(context, path, &bytes, &count, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    text->documents = 1;
    text->test_count = count / 10;
    text->train_count = count - text->test_count;
    text->train = bytes ? copy(bytes, text->train_count) : NULL;
    text->test = bytes ? copy(bytes + text->train_count, text->test_count) : NULL;
    dpcr_text_free(context, bytes);
    return text->train && text->test ? CLI_DONE : cli_fail_memory("the text");
}

int cli_text_read(dpcr_context *context, const char *data, cli_text *text) {
    *text = (cli_text){0};
    const int status = !strcmp(data, CLI_TEXT) ? read_changelogs(context, text) : read_file(context, data, text);
    if (status) return status;
    if (text->train_count >= 2 && text->test_count >= 2) return CLI_DONE;
    return cli_fail(CLI_INPUT,
                    "the text '%s' is too short: %lld bytes to train on, %lld to test, wanted 2 or more each", data,
                    (long long)text->train_count, (long long)text->test_count);
}

void cli_text_free(cli_text *text) {
    free(text->train);
    free(text->test);
    *text = (cli_text){0};
}

// ---- alphabets ----

cli_alphabet cli_alphabet_of(const uint8_t *text, int64_t count) {
    int64_t times[256] = {0};
    cli_alphabet a = {.count = 1};
    for (int64_t i = 0; i < count; i++) times[text[i]]++;
    for (int byte = 0; byte < 256 && a.count < 256; byte++)
        if (times[byte] > count / 100000) a.symbol[byte] = (uint8_t)a.count++;
    return a;
}

void cli_alphabet_text(const cli_alphabet *alphabet, char hex[513]) {
    hex[0] = 0;
    for (int s = 1, at = 0; s < alphabet->count; s++)
        for (int byte = 0; byte < 256; byte++)
            if (alphabet->symbol[byte] == s) at += snprintf(hex + at, 3, "%02x", (unsigned)byte);
}

bool cli_alphabet_parse(const char *hex, cli_alphabet *alphabet) {
    const size_t length = hex ? strlen(hex) : 1;
    *alphabet = (cli_alphabet){.count = 1};
    if (length % 2 || length > 2 * 255 || strspn(hex, "0123456789abcdef") != length) return false;
    for (size_t i = 0; i < length; i += 2) {
        const char pair[3] = {hex[i], hex[i + 1], 0};
        uint8_t *symbol = &alphabet->symbol[strtoul(pair, NULL, 16)];
        if (*symbol) return false;
        *symbol = (uint8_t)alphabet->count++;
    }
    return true;
}

int64_t cli_alphabet_encode(const cli_alphabet *alphabet, uint8_t *text, int64_t count) {
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) {
        text[i] = alphabet->symbol[text[i]];
        others += text[i] == 0;
    }
    return others;
}
