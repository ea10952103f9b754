// SPDX-License-Identifier: MIT
// Wisdom: what measurements and earlier solves taught, by chain, and its file:
//
//     deeppcr wisdom 1
//     version VERSION
//     machine PROCESSOR, LEVEL, N processors
//     KEY = VALUE                                 any number
//     sum HHHHHHHHHHHHHHHH                        FNV-1a of every byte before this line, lower case
//
// A key is the chain's shape, costs, options and memory, and its identity where it tells one, so that a chain of other
// weights with the same shape and no identity is known as the same only while it forgets as soon. Of chains that tell
// `coarse` or `slopes` the memory is part of what is known, and the slopes are part of the key.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/text.h"
#include "data/file.h"
#include "solve/planner.h"

enum { FILE_LIMIT = 64 << 20, HEADER = 512 };
static const double most_spent = 1e8, most_rate = 1e9;
static const int64_t most_steps = INT64_C(1) << 40;  // more than any chain has

// ---- keys and values ----

// What tells the chain from others of its shape: its slopes and its identity.
static uint64_t own_sum(const dpcr_steps *s) {
    uint64_t sum = DPCRI_CHECKSUM;
    if (s->slopes) sum = dpcri_checksum(sum, s->slopes, (size_t)s->length * sizeof *s->slopes);
    return s->identity ? dpcri_checksum(sum, &s->identity, sizeof s->identity) : sum;
}

// How soon the chain forgets, in octaves, or the letter of its memory.
static void memory_text(const dpcri_contraction *c, char *text, size_t bytes) {
    const int64_t m = c->to_bits ? c->to_bits : c->within;
    if (c->memory == DPCRI_MEMORY_FORGETS)
        snprintf(text, bytes, "forgets2^%d", (int)ceil(log2((double)(m > 1 ? m : 1))));
    else
        snprintf(text, bytes, "%s",
                 c->memory == DPCRI_MEMORY_CHAOTIC ? "chaotic"
                 : c->memory == DPCRI_MEMORY_KEEPS ? "keeps"
                                                   : "unknown");
}

void dpcri_wisdom_key(const dpcri_outlook *o, char *key) {
    const dpcr_steps *s = o->steps;
    const dpcr_solve_options *p = o->options;
    char memory[32], told[64] = "", back[64] = "", elsewhere[32] = "";
    size_t used = 0;
    char joins[32] = "";
    const char *scaled = p->step_scale ? " scaled" : "";
    if (p->join_tolerance != 0) dpcri_text_print(joins, sizeof joins, " joins %.9g", p->join_tolerance);
    dpcr_machine given;
    if (dpcri_is_described(o->context, &given))
        snprintf(elsewhere, sizeof elsewhere, " elsewhere %016" PRIx64,
                 dpcri_checksum(DPCRI_CHECKSUM, &given, sizeof given));
    memory_text(&o->contraction, memory, sizeof memory);
    if (p->backward_chunk) used = (size_t)snprintf(back, sizeof back, " back %lld", (long long)p->backward_chunk);
    if (p->backward_warm_up) snprintf(back + used, sizeof back - used, " after %lld", (long long)p->backward_warm_up);
    if (s->coarse || s->slopes)
        dpcri_text_print(told, sizeof told, " confirm %.9g chain %016" PRIx64, p->confirm, own_sum(s));
    else if (s->identity)
        snprintf(told, sizeof told, " chain %016" PRIx64, own_sum(s));
    dpcri_text_print(
        key, DPCRI_WISDOM_KEY,
        "solve %s L%lld B%lld w%lld %s%lld flops %.9g %.9g lanes %lld tape %lld%s calls %d%d%d%d threads %g%s %s tol "
        "%.9g %.9g%s window %lld chunk %lld%s warm-up %lld scheme %d limit %zu guess %d sweeps %d%s%s",
        dpcr_dtype_name(s->dtype), (long long)s->length, (long long)s->batch, (long long)s->width,
        dpcr_structure_name(s->jacobian.structure), (long long)s->jacobian.block, s->flops, s->jacobian_flops,
        (long long)s->lanes, (long long)s->tape_values, p->consume_tape ? " used" : "", s->concurrent != 0,
        s->linearise != NULL, s->adjoint != NULL, s->window != NULL, o->machine.threads, elsewhere, memory, p->atol,
        p->rtol, joins, (long long)p->window, (long long)p->chunk, back, (long long)p->warm_up, (int)p->scheme,
        p->memory_limit, (int)p->guess, p->max_sweeps, scaled, told);
}

typedef struct sought {
    const char *key, *memory, *rest;  // the key, where its memory begins, and what comes after
    bool found;
} sought;

static void compare(void *argument, const char *key, const char *value) {
    sought *s = argument;
    const size_t before = (size_t)(s->memory - s->key);
    (void)value;
    if (strncmp(key, s->key, before) != 0) return;
    s->found = s->found || strcmp(key + before + strcspn(key + before, " "), s->rest) == 0;
}

bool dpcri_wisdom_knows(const dpcri_outlook *o) {
    char key[DPCRI_WISDOM_KEY];
    dpcri_outlook unknown = *o;
    unknown.contraction = (dpcri_contraction){.memory = DPCRI_MEMORY_UNKNOWN};
    dpcri_wisdom_key(&unknown, key);
    const char *memory = strstr(key, " unknown tol ");
    if (!memory) return false;
    sought s = {.key = key, .memory = memory + 1, .rest = memory + strlen(" unknown")};
    dpcri_wisdom_each(o->context, compare, &s);
    return s.found;
}

static int put_candidate(char *text, size_t bytes, const char *name, const dpcr_candidate *c) {
    return dpcri_text_print(text, bytes, "%s %s %s chunk %lld warm-up %lld sweeps %.9g seconds %.9g; ", name,
                            dpcr_method_name(c->method), dpcr_scheme_name(c->scheme), (long long)c->chunk,
                            (long long)c->warm_up, c->sweeps, c->measured);
}

void dpcri_wisdom_remember(dpcr_context *context, const char *key, const dpcri_known *known) {
    char text[DPCRI_WISDOM_VALUE];
    int used = 0;
    for (int i = 0; i < 2; i++)
        if (known->chosen[i])
            used += put_candidate(text + used, sizeof text - (size_t)used, i ? "backward" : "forward",
                                  &known->candidate[i]);
    used += snprintf(text + used, sizeof text - (size_t)used, "seen sweeps %d warm-up %lld failed %u", known->sweeps,
                     (long long)known->warm_up, known->failed);
    const int *told = known->told;
    const double *work = known->work;
    if (told[0] || told[1] || told[2])
        used += snprintf(text + used, sizeof text - (size_t)used, " told %d %d %d", told[0], told[1], told[2]);
    if (work[0] > 0 || work[1] > 0 || work[2] > 0)
        used += dpcri_text_print(text + used, sizeof text - (size_t)used, " work %.4g %.4g %.4g", work[0], work[1],
                                 work[2]);
    if (known->chosen[0] && known->max_sweeps > 0)
        used += snprintf(text + used, sizeof text - (size_t)used, " most %d", known->max_sweeps);
    const dpcri_costs *c = &known->costs;
    const dpcri_contraction *m = &known->memory;
    const double rate = isnan(m->rate) ? 0 : fmax(-most_rate, fmin(m->rate, most_rate));
    if (c->block > 0 || known->spent > 0 || m->memory != DPCRI_MEMORY_UNKNOWN)
        dpcri_text_print(text + used, sizeof text - (size_t)used,
                         " costs %.4g %.4g %.4g %.4g %d spent %.4g memory %d %lld %lld %.4g", c->block, c->lane,
                         c->sweep, c->jacobian, c->at_best, known->spent, (int)m->memory, (long long)m->within,
                         (long long)m->to_bits, rate);
    dpcri_wisdom_set(context, key, text);  // refused memory: not remembered, found out again
}

static bool is_steps(long long n) { return n >= 0 && n <= most_steps; }

// Reads "NAME METHOD SCHEME chunk N warm-up N sweeps X seconds X; " at *text and moves it on. True also where there is
// none of that name; false: something else stands there.
static bool take_candidate(const char **text, const char *name, bool *chosen, dpcr_candidate *c) {
    char method[16], scheme[16];
    long long chunk = 0, warm_up = 0;
    double sweeps = 0, seconds = 0;
    int end = 0;
    const size_t n = strlen(name);
    *chosen = strncmp(*text, name, n) == 0 && (*text)[n] == ' ';
    if (!*chosen) return true;
    const int read = dpcri_text_scan(*text + n, " %15s %15s chunk %lld warm-up %lld sweeps %lf seconds %lf; %n", method,
                                     scheme, &chunk, &warm_up, &sweeps, &seconds, &end);
    *c = (dpcr_candidate){.size = sizeof *c, .chunk = chunk, .warm_up = warm_up, .sweeps = sweeps, .measured = seconds};
    *text += n + (size_t)end;
    return read == 6 && end > 0 && is_steps(chunk) && is_steps(warm_up) && seconds > 0 && seconds < 1e9 &&
           sweeps >= 0 && sweeps < 1e9 && dpcr_method_find(method, &c->method, NULL) == DPCR_OK &&
           dpcr_scheme_find(scheme, &c->scheme, NULL) == DPCR_OK && c->method != DPCR_METHOD_AUTO;
}

static bool is_cost(double seconds) { return seconds >= 0 && seconds < 1e9; }

// What is known of chains that are looked at with care; moves *text on. False: something else stands there.
static bool take_costs(const char **text, dpcri_known *known) {
    dpcri_costs *c = &known->costs;
    dpcri_contraction *m = &known->memory;
    long long within = 0, to_bits = 0;
    int at_best = 0, memory = 0, end = 0;
    if (strncmp(*text, " costs ", 7) != 0) return true;
    const int read =
        dpcri_text_scan(*text, " costs %lf %lf %lf %lf %d spent %lf memory %d %lld %lld %lf%n", &c->block, &c->lane,
                        &c->sweep, &c->jacobian, &at_best, &known->spent, &memory, &within, &to_bits, &m->rate, &end);
    c->at_best = at_best != 0;
    m->memory = (dpcri_memory)memory, m->within = within, m->to_bits = to_bits;
    *text += end;
    return read == 10 && end > 0 && is_cost(c->block) && is_cost(c->lane) && is_cost(c->sweep) &&
           is_cost(c->jacobian) && is_cost(known->spent) && memory >= 0 && memory <= (int)DPCRI_MEMORY_CHAOTIC &&
           is_steps(within) && is_steps(to_bits) && isfinite(m->rate);
}

static bool is_way_back(const dpcr_candidate *c) {
    return c->scheme != DPCR_SCHEME_AUTO && (c->scheme != DPCR_SCHEME_OVERLAP || c->warm_up > 0);
}

static bool read_known(const char *text, dpcri_known *known) {
    long long warm_up = 0;
    int end = 0;
    *known = (dpcri_known){0};
    if (!take_candidate(&text, "forward", &known->chosen[0], &known->candidate[0]) ||
        !take_candidate(&text, "backward", &known->chosen[1], &known->candidate[1]))
        return false;
    const int read =
        sscanf(text, "seen sweeps %d warm-up %lld failed %u%n", &known->sweeps, &warm_up, &known->failed, &end);
    known->warm_up = warm_up;
    known->candidate[1].backward = 1;
    int more = 0, *told = known->told;
    double *work = known->work;
    if (read == 3 && sscanf(text + end, " told %d %d %d%n", &told[0], &told[1], &told[2], &more) == 3) end += more;
    if (read == 3 && dpcri_text_scan(text + end, " work %lf %lf %lf%n", &work[0], &work[1], &work[2], &more) == 3)
        end += more;
    if (read == 3 && sscanf(text + end, " most %d%n", &known->max_sweeps, &more) == 1) end += more;
    text += end;
    if (read != 3 || !take_costs(&text, known)) return false;
    for (int i = 0; i < DPCRI_TOLD; i++)
        if (told[i] < 0 || !(work[i] >= 0 && work[i] < 1e9)) return false;
    return text[0] == 0 && known->sweeps >= 0 && is_steps(warm_up) && known->max_sweeps >= 0 &&
           known->max_sweeps <= 1000 && (!known->chosen[1] || is_way_back(&known->candidate[1]));
}

bool dpcri_wisdom_recall(dpcr_context *context, const char *key, dpcri_known *known) {
    char text[DPCRI_WISDOM_VALUE];
    if (dpcri_wisdom_find(context, key, text) && read_known(text, known)) return true;
    *known = (dpcri_known){0};
    return false;
}

// ---- learning ----

// Evaluations of the chain, those of cycles that confirm apart; 0: an older report without them, or fewer than cycles.
static double work_of(const dpcr_solve_plan *plan, const dpcr_solve_report *report, int cycles) {
    const double states = (double)plan->steps.length * (double)plan->steps.batch;
    const bool told = report->size >= offsetof(dpcr_solve_report, evaluations) + sizeof report->evaluations;
    const double work = told && states > 0 ? (double)report->evaluations / states - cycles : 0;
    return work > 0 ? work : 0;
}

dpcr_status dpcr_solve_plan_learn(const dpcr_solve_plan *plan, const dpcr_solve_report *report, dpcr_error *error) {
    if (!plan || !report || report->size < offsetof(dpcr_solve_report, evaluations))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve_plan_learn: wanted a plan and a report of its solve");
    if (!plan->key[0] || report->method != plan->options.method) return DPCR_OK;
    dpcri_known known;
    dpcri_wisdom_recall(plan->context, plan->key, &known);
    const dpcr_method method = plan->options.method;
    const bool failed = report->reason == DPCR_REASON_FALLBACK || report->reason == DPCR_REASON_NOT_CONVERGED;
    const bool careful = plan->steps.coarse || plan->steps.slopes;  // and trials take a part of its solves
    const bool timed = report->size >= offsetof(dpcr_solve_report, seconds) + sizeof report->seconds;
    if (careful && timed && report->seconds > 0 && isfinite(report->seconds))
        known.spent = fmin(known.spent + report->seconds, most_spent);
    if (method == DPCR_METHOD_SEQUENTIAL) {
        if (careful) dpcri_wisdom_remember(plan->context, plan->key, &known);
        return DPCR_OK;
    }
    if (method == DPCR_METHOD_OVERLAP) {
        known.warm_up = report->sweeps > 1 || failed ? 2 * plan->options.warm_up : plan->options.warm_up;
        if (failed || known.warm_up >= plan->steps.length) known.failed |= 1u << method;
    } else {
        // Cycles that confirm are priced apart (dpcri_cost_picard); what is exact was not confirmed.
        const bool confirmed = dpcri_confirms(&plan->options) && report->reason != DPCR_REASON_EXACT;
        const int cycles = confirmed ? (int)dpcri_confirm_cycles(&plan->options) : 0, own = report->sweeps - cycles;
        const int seen = own > 0 ? own : report->sweeps > 0;
        int told = 0;
        while (told < DPCRI_TOLD && dpcri_told[told] != method) told++;
        if (told < DPCRI_TOLD)
            known.told[told] = seen, known.work[told] = work_of(plan, report, cycles);
        else
            known.sweeps = seen;
        if (failed) known.failed |= 1u << method;
    }
    // What failed is not chosen again, and a choice among others has to be made anew.
    if (known.failed & 1u << method) known.chosen[0] = known.chosen[0] && known.candidate[0].method != method;
    if (method == DPCR_METHOD_OVERLAP && known.chosen[0] && known.candidate[0].warm_up < known.warm_up)
        known.chosen[0] = false;
    dpcri_wisdom_remember(plan->context, plan->key, &known);
    return DPCR_OK;
}

// ---- files ----

static int header(char *text) {
    char machine[256];
    return snprintf(text, HEADER, "deeppcr wisdom 1\nversion %s\nmachine %s\n", dpcr_version(),
                    dpcri_machine_name(machine, sizeof machine));
}

typedef struct writing {
    char *text;  // NULL: only counted
    size_t used, capacity;
} writing;

static void write_text(writing *w, const char *text) {
    const size_t bytes = strlen(text);
    if (w->text && bytes <= w->capacity - w->used) memcpy(w->text + w->used, text, bytes);
    w->used += bytes;
}

static void write_note(void *argument, const char *key, const char *value) {
    writing *w = argument;
    write_text(w, key);
    write_text(w, " = ");
    write_text(w, value);
    write_text(w, "\n");
}

dpcr_status dpcr_wisdom_save(dpcr_context *context, const char *path, dpcr_error *error) {
    if (!context || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "wisdom_save: wanted a context and a path");
    char head[HEADER], sum[32];
    dpcri_rates_note(context);
    header(head);
    writing w = {0};
    dpcri_wisdom_each(context, write_note, &w);
    w = (writing){.capacity = w.used + strlen(head) + sizeof sum};
    w.text = dpcri_alloc(context, w.capacity);
    if (!w.text) return dpcri_no_memory(error, "wisdom_save", (int64_t)w.capacity);
    write_text(&w, head);
    dpcri_wisdom_each(context, write_note, &w);
    dpcr_status status = DPCR_OK;
    if (w.used + sizeof sum > w.capacity) {  // another thread has learned something meanwhile
        status = dpcri_fail(error, DPCR_ERROR_SYSTEM, "wisdom_save: the wisdom changed while it was written");
    } else {
        snprintf(sum, sizeof sum, "sum %016" PRIx64 "\n", dpcri_checksum(DPCRI_CHECKSUM, w.text, w.used));
        write_text(&w, sum);
        status = dpcri_file_write(path, w.text, w.used, error);
    }
    dpcri_free(context, w.text);
    return status;
}

// The line that begins at text[*at], without its end, which must be there; moves on.
static const char *next_line(const char *text, size_t bytes, size_t *at, size_t *length) {
    const char *line = text + *at, *end = *at < bytes ? memchr(line, '\n', bytes - *at) : NULL;
    if (!end) return NULL;
    *length = (size_t)(end - line);
    *at += *length + 1;
    return line;
}

static bool is_line(const char *line, size_t length, const char *wanted) {
    return line && strlen(wanted) == length && memcmp(line, wanted, length) == 0;
}

static dpcr_status check_header(const dpcri_source *source, const char *text, size_t bytes, size_t *at,
                                dpcr_error *error) {
    char version[64], machine[256], wanted[300], got[160];
    size_t length = 0;
    const char *line = next_line(text, bytes, at, &length);
    if (!is_line(line, length, "deeppcr wisdom 1"))
        return dpcri_source_bad(source, error,
                                "this is no wisdom of this format: its first line is not 'deeppcr wisdom 1'");
    line = next_line(text, bytes, at, &length);
    snprintf(version, sizeof version, "version %s", dpcr_version());
    snprintf(got, sizeof got, "%.*s", line ? (int)(length < 150 ? length : 150) : 0, line ? line : "");
    if (!is_line(line, length, version))
        return dpcri_source_bad(source, error, "wisdom of another library: got '%s', wanted '%s'", got, version);
    line = next_line(text, bytes, at, &length);
    snprintf(wanted, sizeof wanted, "machine %s", dpcri_machine_name(machine, sizeof machine));
    snprintf(got, sizeof got, "%.*s", line ? (int)(length < 150 ? length : 150) : 0, line ? line : "");
    if (!is_line(line, length, wanted))
        return dpcri_source_bad(source, error, "wisdom of another machine: got '%s', wanted '%.150s'", got, wanted);
    return DPCR_OK;
}

// The sum's line is the last 21 bytes; *body: the bytes before it.
static dpcr_status check_sum(const dpcri_source *source, const char *text, size_t bytes, size_t *body,
                             dpcr_error *error) {
    enum { SUM_LINE = 21 };
    char wanted[32];
    if (bytes < SUM_LINE)
        return dpcri_source_bad(source, error, "damaged wisdom: %zu bytes do not even hold its checksum", bytes);
    *body = bytes - SUM_LINE;
    snprintf(wanted, sizeof wanted, "sum %016" PRIx64 "\n", dpcri_checksum(DPCRI_CHECKSUM, text, *body));
    if (memcmp(text + *body, wanted, SUM_LINE) != 0)
        return dpcri_source_bad(source, error, "damaged wisdom: its checksum is not that of its content");
    return DPCR_OK;
}

// "KEY = VALUE" into the two buffers; false: it is not one.
static bool split_note(const char *line, size_t length, char *key, char *value) {
    static const char equals[] = " = ";
    const char *middle = memmem(line, length, equals, 3);
    if (!middle) return false;
    const size_t key_bytes = (size_t)(middle - line), value_bytes = length - key_bytes - 3;
    if (key_bytes == 0 || key_bytes >= DPCRI_WISDOM_KEY || value_bytes == 0 || value_bytes >= DPCRI_WISDOM_VALUE)
        return false;
    memcpy(key, line, key_bytes), key[key_bytes] = 0;
    memcpy(value, middle + 3, value_bytes), value[value_bytes] = 0;
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) return false;
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) return false;
    return strlen(key) == key_bytes && strlen(value) == value_bytes;
}

dpcr_status dpcri_wisdom_parse(dpcr_context *context, const char *name, const char *text, size_t bytes,
                               dpcr_error *error) {
    const dpcri_source source = dpcri_source_memory(name, text, bytes);
    char key[DPCRI_WISDOM_KEY], value[DPCRI_WISDOM_VALUE];
    size_t body = 0, at = 0, length = 0;
    dpcr_status status;
    const size_t first = strlen("deeppcr wisdom");
    if (bytes < first || memcmp(text, "deeppcr wisdom", first) != 0)
        return dpcri_source_bad(&source, error, "this is no wisdom: it does not begin with 'deeppcr wisdom'");
    DPCR_TRY(check_sum(&source, text, bytes, &body, error));
    DPCR_TRY(check_header(&source, text, body, &at, error));
    for (int pass = 0; pass < 2; pass++) {  // nothing is taken before all of it is seen to be right
        int64_t line_number = 4;
        for (size_t here = at; here < body; line_number++) {
            const char *line = next_line(text, body, &here, &length);
            if (!line || !split_note(line, length, key, value))
                return dpcri_source_bad(&source, error, "damaged wisdom: line %lld is not 'KEY = VALUE'",
                                        (long long)line_number);
            if (pass == 1 && !dpcri_wisdom_add(context, key, value))
                return dpcri_no_memory(error, "wisdom_load", (int64_t)length);
        }
    }
done:
    return status;
}

dpcr_status dpcr_wisdom_load(dpcr_context *context, const char *path, dpcr_error *error) {
    if (!context || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "wisdom_load: wanted a context and a path");
    char *text = NULL;
    int64_t bytes = 0;
    dpcr_status status = dpcri_file_read(context, path, FILE_LIMIT, &text, &bytes, error);
    if (status == DPCR_OK) status = dpcri_wisdom_parse(context, path, text, (size_t)bytes, error);
    dpcr_machine rates;
    if (status == DPCR_OK && dpcri_wisdom_rates(context, &rates)) dpcri_rates_forget(context);  // the file's count
    dpcri_free(context, text);
    return status;
}

int64_t dpcr_wisdom_count(dpcr_context *context) { return context ? dpcri_wisdom_count(context) : 0; }
void dpcr_wisdom_forget(dpcr_context *context) {
    if (!context) return;
    dpcri_wisdom_clear(context);
    dpcri_rates_forget(context);
}
