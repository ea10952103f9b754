// SPDX-License-Identifier: MIT
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_diffusion.h"

static const char *const names[POINT_NUMBERS] = {
    "tolerance", "window", "count",       "seconds",       "sequential_seconds", "ratio",
    "sweeps",    "calls",  "evaluations", "max_error",     "frechet_distance",   "frechet_deviation",
    "precision", "recall", "confirm",     "error_estimate"};
enum { HEAD_FIELDS = 6, FIELDS = HEAD_FIELDS + 4 + POINT_NUMBERS };

const char *cli_point_name(point_number i) { return names[i]; }

bool cli_points_add(points *all, const point *p) {
    if (all->count == all->capacity) {
        const int capacity = all->capacity ? 2 * all->capacity : 64;
        point *more = realloc(all->at, (size_t)capacity * sizeof *more);
        if (!more) return false;
        all->at = more, all->capacity = capacity;
    }
    all->at[all->count++] = *p;
    return true;
}

static bool same_number(double a, double b) {
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fabs(a);  // files have six digits
}

const point *cli_points_find(const points *all, const point *wanted) {
    static const point_number key[] = {POINT_TOLERANCE, POINT_WINDOW, POINT_COUNT, POINT_CONFIRM};
    for (const point *p = all->at; p < all->at + all->count; p++) {
        bool same = !strcmp(p->part, wanted->part) && !strcmp(p->method, wanted->method);
        for (size_t k = 0; k < sizeof key / sizeof *key; k++)
            same = same && same_number(p->number[key[k]], wanted->number[key[k]]);
        if (same) return p;
    }
    return NULL;
}

static const char first_names[] = "part,sampler,steps,width,hidden,depth,threads,method,chosen,reason";

static void write_names(FILE *out) {
    fputs(first_names, out);
    for (int i = 0; i < POINT_NUMBERS; i++) fprintf(out, ",%s", names[i]);
    fputc('\n', out);
}

// A line without its end.
static bool are_names(const char *line) {
    size_t at = sizeof first_names - 1;
    if (strncmp(line, first_names, at) != 0) return false;
    for (int i = 0; i < POINT_NUMBERS; at += 1 + strlen(names[i]), i++)
        if (line[at] != ',' || strncmp(line + at + 1, names[i], strlen(names[i])) != 0) return false;
    return !line[at];
}

int cli_points_write(const points *all, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return cli_fail_memory("the CSV file");
    write_names(out);
    for (const point *p = all->at; p < all->at + all->count; p++) {
        fprintf(out, "%s,%s,%s,%s,%s", p->part, all->head, p->method, p->chosen, p->reason);
        for (int i = 0; i < POINT_NUMBERS; i++)
            if (isfinite(p->number[i]))
                fprintf(out, ",%.6g", p->number[i]);
            else
                fputc(',', out);
        fputc('\n', out);
    }
    const int status = fclose(out) ? cli_fail_memory("the CSV file") : cli_write_file(path, text, bytes);
    free(text);
    return status;
}

static bool copy_text(char *to, size_t size, const char *from) { return snprintf(to, size, "%s", from) < (int)size; }

// A line without its end.
static bool read_point(char *line, const char *head, point *p) {
    char *field[FIELDS], mine[128];
    for (int i = 0; i < FIELDS; i++)
        if (!(field[i] = strsep(&line, ","))) return false;
    snprintf(mine, sizeof mine, "%s,%s,%s,%s,%s,%s", field[1], field[2], field[3], field[4], field[5], field[6]);
    char **text = field + 1 + HEAD_FIELDS, **number = text + 3;
    bool ok = !line && !strcmp(mine, head) && copy_text(p->part, sizeof p->part, field[0]) &&
              copy_text(p->method, sizeof p->method, text[0]) && copy_text(p->chosen, sizeof p->chosen, text[1]) &&
              copy_text(p->reason, sizeof p->reason, text[2]);
    for (int i = 0; ok && i < POINT_NUMBERS; i++) {
        char *end = number[i];
        p->number[i] = *number[i] ? strtod(number[i], &end) : NAN;
        ok = !*end;
    }
    return ok;
}

int cli_points_read(points *all, const char *path) {
    char *line = NULL;
    size_t room = 0;
    int status = CLI_DONE;
    FILE *in = fopen(path, "re");
    if (!in) return errno == ENOENT ? CLI_DONE : cli_fail(CLI_INPUT, "cannot read '%s': %s", path, strerror(errno));
    for (int64_t at = 1; !status && getline(&line, &room, in) > 0; at++) {
        point p;
        line[strcspn(line, "\r\n")] = 0;
        if (at == 1) {
            if (!are_names(line))
                status =
                    cli_fail(CLI_INPUT, "--resume: '%s' is no table of 'bench diffusion', whose lines begin '%.20s'",
                             path, first_names);
            continue;
        }
        if (!read_point(line, all->head, &p))
            status = cli_fail(CLI_INPUT, "--resume: line %lld of '%s' is no point of this run, whose lines have '%s'",
                              (long long)at, path, all->head);
        else if (!cli_points_add(all, &p))
            status = cli_fail_memory("the points");
    }
    free(line);
    fclose(in);
    return status;
}

void cli_points_free(points *all) {
    free(all->at);
    *all = (points){0};
}
