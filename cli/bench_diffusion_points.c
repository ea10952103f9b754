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
// A line: part, the run's first fields, method, chosen, reason, numbers, the run's others.
enum { NAMES_BYTES = 512, FIELDS = 4 + POINT_NUMBERS + RUN_FIELDS };

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
static const char *const run_names[RUN_FIELDS] = {"sampler", "steps", "width", "hidden", "depth",      "threads",
                                                  "eta",     "seed",  "model", "seeds",  "classifier", "data"};

static void join_names(char *text, size_t bytes) {
    size_t at = (size_t)snprintf(text, bytes, "%s", first_names);
    for (int i = 0; i < POINT_NUMBERS; i++) at += (size_t)snprintf(text + at, bytes - at, ",%s", names[i]);
    for (int i = RUN_ETA; i < RUN_FIELDS; i++) at += (size_t)snprintf(text + at, bytes - at, ",%s", run_names[i]);
}

int cli_points_write(const points *all, const char *path) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV file");
    char line[NAMES_BYTES];
    join_names(line, sizeof line);
    fprintf(out, "%s\n", line);
    for (const point *p = all->at; p < all->at + all->count; p++) {
        fputs(p->part, out);
        for (int i = 0; i < RUN_ETA; i++) fprintf(out, ",%s", all->run[i]);
        fprintf(out, ",%s,%s,%s", p->method, p->chosen, p->reason);
        for (int i = 0; i < POINT_NUMBERS; i++)
            if (isfinite(p->number[i]))
                fprintf(out, ",%.6g", p->number[i]);
            else
                fputc(',', out);
        for (int i = RUN_ETA; i < RUN_FIELDS; i++)
            fprintf(out, ",%s", i < RUN_SEEDS ? all->run[i] : p->judged[i - RUN_SEEDS]);
        fputc('\n', out);
    }
    return cli_buffer_save(&text, "the CSV file", path);
}

static bool copy_text(char *to, size_t size, const char *from) { return snprintf(to, size, "%s", from) < (int)size; }

// Where a field of the run lies in a line.
static int place_of(int i) { return i < RUN_ETA ? 1 + i : 4 + POINT_NUMBERS + i; }

// A line without its end, taken apart.
static bool read_point(char *line, char **field, point *p) {
    for (int i = 0; i < FIELDS; i++)
        if (!(field[i] = strsep(&line, ","))) return false;
    char **text = field + place_of(RUN_THREADS) + 1, **number = text + 3;
    bool ok = !line && copy_text(p->part, sizeof p->part, field[0]) &&
              copy_text(p->method, sizeof p->method, text[0]) && copy_text(p->chosen, sizeof p->chosen, text[1]) &&
              copy_text(p->reason, sizeof p->reason, text[2]);
    for (int i = 0; ok && i < RUN_JUDGED; i++) ok = copy_text(p->judged[i], RUN_BYTES, field[place_of(RUN_SEEDS + i)]);
    for (int i = 0; ok && i < POINT_NUMBERS; i++) {
        char *end = number[i];
        p->number[i] = *number[i] ? strtod(number[i], &end) : NAN;
        ok = !*end;
    }
    return ok;
}

// A run that judges nothing leaves what another one judged as it is.
static bool is_compared(const points *all, const point *p, int i) {
    return i < RUN_SEEDS || (!strcmp(p->part, "quality") && all->run[i][0]);
}

static int add_line(points *all, char *line, int64_t at, const char *path) {
    char *field[FIELDS];
    point p;
    if (!read_point(line, field, &p))
        return cli_fail(CLI_INPUT, "--resume: line %lld of '%s' is no point of 'bench diffusion'", (long long)at, path);
    for (int i = 0; i < RUN_FIELDS; i++)
        if (is_compared(all, &p, i) && strcmp(field[place_of(i)], all->run[i]) != 0)
            return cli_fail(CLI_INPUT, "--resume: line %lld of '%s' is no point of this run: its %s is '%s', not '%s'",
                            (long long)at, path, run_names[i], field[place_of(i)], all->run[i]);
    return cli_points_add(all, &p) ? CLI_DONE : cli_fail_memory("the points");
}

int cli_points_read(points *all, const char *path) {
    char *line = NULL, wanted[NAMES_BYTES];
    size_t room = 0;
    int status = CLI_DONE;
    FILE *in = fopen(path, "re");
    if (!in) return errno == ENOENT ? CLI_DONE : cli_fail_reading("the table", path, errno);
    join_names(wanted, sizeof wanted);
    for (int64_t at = 1; !status && getline(&line, &room, in) > 0; at++) {
        line[strcspn(line, "\r\n")] = 0;
        if (at > 1)
            status = add_line(all, line, at, path);
        else if (strcmp(line, wanted) != 0)
            status = cli_fail(CLI_INPUT, "--resume: '%s' is no table of this 'bench diffusion', whose columns are %s",
                              path, wanted);
    }
    if (!status && !feof(in)) status = cli_fail_reading("the table", path, errno);
    free(line);
    fclose(in);
    return status;
}

void cli_points_free(points *all) {
    free(all->at);
    *all = (points){0};
}
