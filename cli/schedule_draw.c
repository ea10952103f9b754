// SPDX-License-Identifier: MIT
// Pictures of a timed schedule: a row a rank, a box an action. Colour tells the task, its shade the stage among the
// rank's own, the number the microbatch.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "picture.h"
#include "schedule.h"

enum {
    ROW = 26,
    LEFT = 64,
    TOP = 40,
    FOOT = 34,
    LEAST_WIDTH = 900,
    MOST_WIDTH = 12000,
    LETTER = 7,
    MOST_RANKS = 10000,
    PLOT_EDGE = 60,            // gnuplot's, for its title and axis
    MOST_PLOT_HEIGHT = 32767,  // cairo's
    FURTHER = 2                // the darkest shade
};

typedef struct colour {
    int red, green, blue;
} colour;

// By task F, I, W, B, and messages; the second and further stages of a rank are darker.
static colour colour_of(const dpcr_action *a, int shade) {
    static const colour colours[] = {{120, 170, 235}, {125, 200, 130}, {250, 190, 95}, {95, 190, 190}, {200, 200, 200}};
    const colour c = colours[a->task < DPCR_TASK_SEND_F ? a->task : 4];
    const int keep = shade <= 0 ? 100 : shade < FURTHER ? 76 : 60;
    return (colour){c.red * keep / 100, c.green * keep / 100, c.blue * keep / 100};
}

typedef struct chart {
    const dpcr_schedule *schedule;
    const dpcr_simulation *times;
    bool in_seconds;
    unsigned char *shade;  // [actions] which of its rank's stages the action's is, from 0; FURTHER: that or a later one
    bool shaded;           // some are not 0
    double scale;          // pixels a unit of time
    int width, height;
} chart;

static bool works(const dpcr_action *a) { return a->task < DPCR_TASK_SEND_F; }  // else a message

// Whatever the placement: a stage's tasks may lie on several ranks.
static bool make_shades(chart *c) {
    const dpcr_schedule *s = c->schedule;
    unsigned char *place = malloc((size_t)s->stages + 1);
    c->shade = malloc((size_t)c->times->actions + 1);
    for (int64_t r = 0; place && c->shade && r < s->ranks; r++) {
        int before = 0;
        memset(place, 0, (size_t)s->stages);
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++)
            if (works(&s->actions[n])) place[s->actions[n].stage] = 1;
        for (int64_t stage = 0; stage < s->stages; stage++) {
            const int next = before + place[stage];
            place[stage] = (unsigned char)(before < FURTHER ? before : FURTHER);
            before = next;
        }
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            c->shade[n] = works(&s->actions[n]) ? place[s->actions[n].stage] : 0;
            c->shaded = c->shaded || c->shade[n];
        }
    }
    const bool made = place && c->shade;
    free(place);
    return made;
}

static double shortest(const chart *c) {
    double least = c->times->makespan;
    for (int64_t n = 0; n < c->times->actions; n++) {
        const double d = c->times->end[n] - c->times->start[n];
        if (d > 0 && d < least) least = d;
    }
    return least;
}

// As wide as three digits need in the shortest box, within bounds.
static chart chart_of(const cli_schedule *s, const dpcr_simulation *x) {
    chart c = {.schedule = &s->schedule, .times = x, .in_seconds = s->in_seconds};
    const double all = x->makespan > 0 ? x->makespan : 1;
    double width = 3.2 * LETTER * all / (shortest(&c) > 0 ? shortest(&c) : all);
    if (width < LEAST_WIDTH) width = LEAST_WIDTH;
    if (width > MOST_WIDTH) width = MOST_WIDTH;
    c.scale = width / all;
    c.width = (int)width + LEFT + 20;
    c.height = TOP + ROW * (int)s->schedule.ranks + FOOT;
    return c;
}

static void svg_box(FILE *out, const chart *c, int64_t rank, int64_t n) {
    const dpcr_action *a = &c->schedule->actions[n];
    const double x = LEFT + c->scale * c->times->start[n], w = c->scale * (c->times->end[n] - c->times->start[n]);
    const int y = TOP + ROW * (int)rank;
    const colour k = colour_of(a, c->shade[n]);
    char text[64], label[16];
    snprintf(label, sizeof label, "%d", (int)a->microbatch);
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#%02x%02x%02x\"%s><title>%s, %.6g to "
            "%.6g</title></rect>\n",
            x, y + 2, w, ROW - 4, (unsigned)k.red, (unsigned)k.green, (unsigned)k.blue,
            w > 3 ? " stroke=\"#fff\" stroke-width=\"0.6\"" : "", dpcr_action_text(a, text, sizeof text),
            c->times->start[n], c->times->end[n]);
    if (w >= LETTER * (double)strlen(label) + 1)
        fprintf(out, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x + w / 2, y + ROW / 2 + 4, label);
}

static const char *const task_words[] = {"F forward", "I input gradient", "W weight gradient", "B both"};

static void svg_legend(FILE *out, const chart *c) {
    int x = LEFT;
    for (int task = DPCR_TASK_F; task <= DPCR_TASK_B; task++) {
        const dpcr_action a = {.task = (uint8_t)task};
        const colour k = colour_of(&a, 0);
        fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"#%02x%02x%02x\"/>\n", x, c->height - 24,
                (unsigned)k.red, (unsigned)k.green, (unsigned)k.blue);
        fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 20, c->height - 12, task_words[task]);
        x += 160;
    }
    if (c->shaded)
        fprintf(out, "<text x=\"%d\" y=\"%d\">darker: the rank's further stages</text>\n", x, c->height - 12);
}

static void write_svg(FILE *out, const chart *c, const char *title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"DejaVu Sans, sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"#fff\"/>\n<text x=\"%d\" y=\"22\" font-size=\"%.1f\">%s</text>\n",
            c->width, c->height, c->width, c->height, LEFT,
            fmin(15, (c->width - LEFT) / (0.62 * (double)strlen(title))), title);
    for (int64_t r = 0; r < c->schedule->ranks; r++) {
        const int y = TOP + ROW * (int)r;
        fprintf(out, "<text x=\"8\" y=\"%d\">rank %lld</text>\n", y + ROW / 2 + 4, (long long)r);
        fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#f1f1f1\"/>\n", LEFT, y + 2,
                c->scale * c->times->makespan, ROW - 4);
        for (int64_t n = c->schedule->first[r]; n < c->schedule->first[r + 1]; n++)
            if (c->times->end[n] > c->times->start[n]) svg_box(out, c, r, n);
    }
    svg_legend(out, c);
    fprintf(out, "</svg>\n");
}

// ---- PNG, by gnuplot ----

static void plot_quoted(FILE *out, const char *text) {
    fputc('\'', out);
    for (const char *c = text; *c; c++) fprintf(out, *c == '\'' ? "''" : "%c", *c);
    fputc('\'', out);
}

static void write_plot(FILE *out, const chart *c, const char *title) {
    const int width = c->width < 4000 ? c->width : 4000;
    const double pixels = c->scale * width / c->width;
    fprintf(out, "set terminal pngcairo size %d,%d font 'DejaVu Sans,9'\nset title ", width, c->height + PLOT_EDGE);
    plot_quoted(out, title);
    fprintf(
        out,
        " noenhanced\nset xlabel 'time%s'\nset key below\nset style fill solid 1 border lc rgb '#ffffff'\nset yrange "
        "[%g:-0.6]\n"
        "set xrange [0:%.17g]\nset ytics scale 0 (",
        c->in_seconds ? " in seconds" : "", (double)c->schedule->ranks - 0.4, c->times->makespan);
    for (int64_t r = 0; r < c->schedule->ranks; r++)
        fprintf(out, "%s'rank %lld' %lld", r ? ", " : "", (long long)r, (long long)r);
    fprintf(out,
            ")\nplot '-' using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable notitle, '-' using 1:2:3 with labels font "
            "',8' "
            "notitle");
    for (int task = DPCR_TASK_F; task <= DPCR_TASK_B; task++) {  // the key: boxes that are nowhere
        const dpcr_action a = {.task = (uint8_t)task};
        const colour k = colour_of(&a, 0);
        fprintf(out, ", NaN with boxes lc rgb '#%02x%02x%02x' title '%s'", (unsigned)k.red, (unsigned)k.green,
                (unsigned)k.blue, task_words[task]);
    }
    fprintf(out, "\n");
    for (int64_t r = 0; r < c->schedule->ranks; r++)
        for (int64_t n = c->schedule->first[r]; n < c->schedule->first[r + 1]; n++) {
            const dpcr_action *a = &c->schedule->actions[n];
            const colour k = colour_of(a, c->shade[n]);
            if (c->times->end[n] <= c->times->start[n]) continue;
            fprintf(out, "%.17g %lld %.17g %.17g %.17g %.17g %d\n", c->times->start[n], (long long)r,
                    c->times->start[n], c->times->end[n], (double)r - 0.42, (double)r + 0.42,
                    k.red * 65536 + k.green * 256 + k.blue);
        }
    fprintf(out, "e\n");
    for (int64_t r = 0; r < c->schedule->ranks; r++)
        for (int64_t n = c->schedule->first[r]; n < c->schedule->first[r + 1]; n++) {
            const double w = c->times->end[n] - c->times->start[n];
            char label[16];
            snprintf(label, sizeof label, "%d", (int)c->schedule->actions[n].microbatch);
            if (w > 0 && pixels * w >= LETTER * (double)strlen(label))
                fprintf(out, "%.17g %lld %s\n", c->times->start[n] + w / 2, (long long)r, label);
        }
    fprintf(out, "e\n");
}

// What the plot's script, an open file, makes gnuplot say; false where it fails, or says what is no whole PNG, or for
// want of memory.
static bool run_plot(int script, cli_buffer *png) {
    static const char end[] = {'I', 'E', 'N', 'D', '\xae', '\x42', '\x60', '\x82'};
    char command[64], piece[4096];
    snprintf(command, sizeof command, "exec gnuplot /proc/self/fd/%d 2>/dev/null", script);
    FILE *in = popen(command, "r");
    for (size_t n; in && (n = fread(piece, 1, sizeof piece, in)) > 0;) fwrite(piece, 1, n, png->out);
    const bool ran = in && pclose(in) == 0;
    return cli_buffer_close(png) && ran && png->bytes > sizeof end &&
           memcmp(png->text + png->bytes - sizeof end, end, sizeof end) == 0;
}

// Written by us, not by gnuplot, which is silent about a full disk.
static int write_png(const chart *c, const char *title, const char *path) {
    cli_buffer png = {0};
    FILE *script = tmpfile();  // not closed on exec: gnuplot reads it
    if (!script) return cli_fail(CLI_RESOURCES, "cannot write a temporary file: %s", strerror(errno));
    write_plot(script, c, title);
    int status = CLI_DONE;
    if (fflush(script) != 0)
        status = cli_fail(CLI_RESOURCES, "cannot write a temporary file: %s", strerror(errno));
    else if (!cli_buffer_open(&png))
        status = cli_fail_memory("the picture");
    else if (!run_plot(fileno(script), &png))
        status = png.failed
                     ? cli_fail_memory("the picture")
                     : cli_fail(CLI_RESOURCES,
                                "cannot draw '%s': gnuplot (Debian package gnuplot-nox) is missing or failed", path);
    fclose(script);
    if (!status) status = cli_write_file(path, png.text, png.bytes);
    free(png.text);
    return status;
}

// ---- Chrome's trace ----

// A process a rank, an event an action; a unit of time is `unit` microseconds.
static void write_trace(FILE *out, const dpcr_schedule *schedule, const double *start, const double *end, double unit) {
    fprintf(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    for (int64_t r = 0; r < schedule->ranks; r++)
        fprintf(out,
                "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %lld, \"args\": {\"name\": \"rank %lld\"}},\n",
                (long long)r, (long long)r);
    const char *comma = "";
    for (int64_t r = 0; r < schedule->ranks; r++)
        for (int64_t n = schedule->first[r]; n < schedule->first[r + 1]; n++) {
            const dpcr_action *a = &schedule->actions[n];
            char text[64];
            fprintf(out,
                    "%s{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %lld, \"tid\": 0, \"ts\": %.17g, "
                    "\"dur\": %.17g, "
                    "\"args\": {\"stage\": %d, \"microbatch\": %d}}",
                    comma, dpcr_action_text(a, text, sizeof text), dpcr_task_name((dpcr_task)a->task), (long long)r,
                    unit * start[n], unit * (end[n] - start[n]), (int)a->stage, (int)a->microbatch);
            comma = ",\n";
        }
    fprintf(out, "\n]}\n");
}

static int write_picture(const chart *c, const char *title, const char *path) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the picture");
    write_svg(out, c, title);
    return cli_buffer_save(&text, "the picture", path);
}

int cli_schedule_trace(const dpcr_schedule *schedule, const double *start, const double *end, double unit,
                       const char *path) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the trace");
    write_trace(out, schedule, start, end, unit);
    return cli_buffer_save(&text, "the trace", path);
}

bool cli_schedule_drawable(const cli_schedule *s) {
    if (s->png && cli_is_stdout(s->png)) return cli_fail(CLI_USAGE, "--png %s: wanted a file", s->png), false;
    if (!cli_png_name("--png", s->png)) return false;
    return (!s->svg || cli_writable("the picture", s->svg)) && (!s->png || cli_writable("the picture", s->png)) &&
           (!s->trace || cli_writable("the trace", s->trace));
}

static int refuse_ranks(const cli_schedule *s) {
    const long long ranks = (long long)s->schedule.ranks;
    const int most = (MOST_PLOT_HEIGHT - PLOT_EDGE - TOP - FOOT) / ROW;
    if (ranks > MOST_RANKS) return cli_fail(CLI_USAGE, "draw: %lld ranks; wanted at most %d", ranks, (int)MOST_RANKS);
    if (s->png && ranks > most)
        return cli_fail(CLI_USAGE, "--png: %lld ranks; wanted at most %d, or --svg", ranks, most);
    return CLI_DONE;
}

// The share of all ranks' time in which they do nothing.
static double idle_of_all(const chart *c) {
    const double all = c->times->makespan * (double)c->schedule->ranks;
    double busy = 0;
    for (int64_t n = 0; n < c->times->actions; n++)
        if (works(&c->schedule->actions[n])) busy += c->times->end[n] - c->times->start[n];
    return all > 0 ? 1 - busy / all : 0;
}

int cli_schedule_draw(const cli_schedule *s, const dpcr_simulation *x) {
    int status = refuse_ranks(s);
    if (status) return status;
    chart c = chart_of(s, x);
    if (!make_shades(&c)) {
        free(c.shade);
        return cli_fail_memory("the picture");
    }
    const char *unit = s->in_seconds ? " s" : "";
    char title[320], steady[64] = "";
    if (!isnan(x->steady_state)) snprintf(steady, sizeof steady, ", steady state %.6g%s", x->steady_state, unit);
    snprintf(title, sizeof title,
             "%s, %lld ranks, %lld stages, %lld microbatches: makespan %.6g%s, idle of the busiest rank %.1f %%, of "
             "all %.1f %%%s",
             s->from && !s->kind_given ? "table" : dpcr_schedule_name(s->options.kind), (long long)s->schedule.ranks,
             (long long)s->schedule.stages, (long long)(s->schedule.microbatches * s->schedule.chains), x->makespan,
             unit, x->makespan > 0 ? 100 * x->idle / x->makespan : 0.0, 100 * idle_of_all(&c), steady);
    if (s->svg) status = write_picture(&c, title, s->svg);
    if (!status && s->trace) status = cli_schedule_trace(&s->schedule, x->start, x->end, 1, s->trace);
    if (!status && s->png) status = write_png(&c, title, s->png);
    free(c.shade);
    return status;
}
