// SPDX-License-Identifier: MIT
// replay CORPUS [MUTATIONS]: runs a fuzz target over every file of a folder and over that many mutations of them, the
// same ones each time. Needs no libFuzzer, so that a little fuzzing is part of every test run with every compiler.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { MAX_SEEDS = 256, MAX_BYTES = 1 << 16, DEFAULT_MUTATIONS = 100000 };

typedef struct input {
    uint8_t *bytes;
    size_t count;
} input;

static input seeds[MAX_SEEDS];
static int seed_count;

// splitmix64
static uint64_t state = 1;
static uint64_t draw(uint64_t below) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return below ? (z ^ z >> 31) % below : 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void load(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = name[0] == '.' ? NULL : fopen(path, "rb");
    if (!file || seed_count == MAX_SEEDS) return;
    input *seed = &seeds[seed_count++];
    seed->bytes = malloc(MAX_BYTES);
    if (!seed->bytes) exit(2);
    seed->count = fread(seed->bytes, 1, MAX_BYTES, file);
    fclose(file);
}

static void load_all(const char *folder) {
    struct dirent **names = NULL;
    const int count = scandir(folder, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        load(folder, names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

// In a block of just its size, so that a sanitizer sees a read beyond the end.
static void run(const uint8_t *bytes, size_t count) {
    uint8_t *copy = malloc(count ? count : 1);
    if (!copy) exit(2);
    if (count) memcpy(copy, bytes, count);
    LLVMFuzzerTestOneInput(copy, count);
    free(copy);
}

static void overwrite(input *m) {
    static const uint64_t values[] = {0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
    const size_t width = (size_t)1 << draw(4);
    if (m->count < width) return;
    const uint64_t value = values[draw(sizeof values / sizeof *values)];
    uint8_t *at = m->bytes + draw(m->count - width + 1);
    const int big_endian = (int)draw(2);
    for (size_t i = 0; i < width; i++) at[i] = (uint8_t)(value >> 8 * (big_endian ? width - 1 - i : i));
}

static void erase(input *m) {
    const size_t n = 1 + draw(m->count), at = draw(m->count - n + 1);
    memmove(m->bytes + at, m->bytes + at + n, m->count - at - n);
    m->count -= n;
}

// A piece of some seed at a random place.
static void insert(input *m) {
    const input *from = &seeds[draw((uint64_t)seed_count)];
    if (from->count == 0) return;
    const size_t most = MAX_BYTES - m->count < from->count ? MAX_BYTES - m->count : from->count;
    const size_t n = draw(most + 1), first = draw(from->count - n + 1), at = draw(m->count + 1);
    memmove(m->bytes + at + n, m->bytes + at, m->count - at);
    memcpy(m->bytes + at, from->bytes + first, n);
    m->count += n;
}

static void mutate(input *m) {
    switch (m->count ? draw(6) : 5) {
        case 0: m->bytes[draw(m->count)] ^= (uint8_t)(1u << draw(8)); break;
        case 1: m->bytes[draw(m->count)] = (uint8_t)draw(256); break;
        case 2: m->bytes[draw(m->count)] = (uint8_t)("0123456789{}[](),:'\" \n"[draw(22)]); break;
        case 3: overwrite(m); break;
        case 4: erase(m); break;
        default: insert(m);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const long mutations = argc > 2 ? strtol(argv[2], NULL, 10) : DEFAULT_MUTATIONS;
    load_all(argv[1]);
    if (seed_count == 0) {
        fprintf(stderr, "replay: no seeds in %s\n", argv[1]);
        return 2;
    }
    for (int i = 0; i < seed_count; i++) run(seeds[i].bytes, seeds[i].count);
    input m = {.bytes = malloc(MAX_BYTES)};
    if (!m.bytes) return 2;
    for (long i = 0; i < mutations; i++) {
        const input *seed = &seeds[draw((uint64_t)seed_count)];
        memcpy(m.bytes, seed->bytes, m.count = seed->count);
        for (uint64_t n = 1 + draw(4); n > 0; n--) mutate(&m);
        run(m.bytes, m.count);
    }
    free(m.bytes);
    for (int i = 0; i < seed_count; i++) free(seeds[i].bytes);
    printf("replay: %d seeds, %ld mutations\n", seed_count, mutations);
    return 0;
}
