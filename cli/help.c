// SPDX-License-Identifier: MIT
// --help and --usage of a verb. The layout is argp_help's, which is not called: its buffer of 200 bytes loses a margin
// where a line begins near the buffer's end (glibc 2.36), so that some option's text stood at the left edge.
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { EDGE = 79, USAGE_MARGIN = 12, TEXT_MARGIN = 29, MOST = 64 };

// ---- words into lines ----

typedef struct page {
    size_t column, margin;
} page;

static void end_line(page *p) {
    putchar('\n');
    p->column = 0;
}

static void move_to(page *p, size_t column) {
    for (; p->column < column; p->column++) putchar(' ');
}

static void put_word(page *p, const char *word, size_t length) {
    if (p->column > p->margin && p->column + 1 + length > EDGE) end_line(p);
    if (p->column > p->margin)
        putchar(' '), p->column++;
    else
        move_to(p, p->margin);
    p->column += fwrite(word, 1, length, stdout);
}

// Its line ends are kept.
static void put_text(page *p, const char *text, size_t length) {
    for (const char *end = text + length; text < end;) {
        const size_t word = strcspn(text, " \n");
        if (word > 0) put_word(p, text, word < (size_t)(end - text) ? word : (size_t)(end - text));
        text += word;
        if (text < end && *text == '\n') end_line(p);
        text++;
    }
}

// ---- options ----

typedef struct entry {
    const struct argp_option *option;
} entry;

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->option->name, ((const entry *)b)->option->name);
}

// A table's options by name; how many there are.
static int sorted(const struct argp_option *table, entry options[MOST]) {
    int count = 0;
    for (; table && table->name && count < MOST; table++) options[count++].option = table;
    qsort(options, (size_t)count, sizeof *options, by_name);
    return count;
}

static bool is_short(const struct argp_option *o) { return o->key > ' ' && o->key < 127; }

static void put_usages(page *p, const struct argp_option *table) {
    entry options[MOST];
    char word[160];
    const int count = sorted(table, options);
    for (int i = 0; i < count; i++) {
        const struct argp_option *o = options[i].option;
        const int length = snprintf(word, sizeof word, "[--%s%s%s]", o->name, o->arg ? "=" : "", o->arg ? o->arg : "");
        put_word(p, word, (size_t)length);
    }
}

static void put_options(page *p, const struct argp_option *table) {
    entry options[MOST];
    const int count = sorted(table, options);
    for (int i = 0; i < count; i++) {
        const struct argp_option *o = options[i].option;
        p->column = (size_t)(is_short(o) ? printf("  -%c, ", o->key) : printf("      "));
        p->column += (size_t)printf("--%s%s%s", o->name, o->arg ? "=" : "", o->arg ? o->arg : "");
        p->margin = TEXT_MARGIN;
        if (p->column > TEXT_MARGIN + 3)
            end_line(p);
        else if (p->column >= TEXT_MARGIN)
            move_to(p, p->margin = p->column + 3);
        else
            move_to(p, TEXT_MARGIN);
        const char *text = o->doc ? o->doc : "";
        const size_t first = strcspn(text, " \n");
        put_word(p, text, first);
        p->margin = TEXT_MARGIN;
        put_text(p, text + first, strlen(text + first));
        end_line(p);
    }
}

// ---- the whole ----

static void put_usage(page *p, const cli_syntax *syntax, const struct argp_option *own, const char *name) {
    p->column = (size_t)printf("Usage: %s", name);
    p->margin = USAGE_MARGIN;
    char word[] = "[-?]";
    for (const struct argp_option *o = own; o->name; o++)
        if (is_short(o)) word[2] = (char)o->key, put_word(p, word, 4);
    for (int i = 0; i < CLI_MAX_GROUPS && syntax->groups[i].argp; i++) put_usages(p, syntax->groups[i].argp->options);
    put_usages(p, own);
    const char *arguments = syntax->arguments ? syntax->arguments : "";
    size_t length = strcspn(arguments, "\n");
    put_text(p, arguments, length);
    end_line(p);
    for (; arguments[length] == '\n'; length = strcspn(arguments, "\n")) {  // other ways to call it
        arguments += length + 1;
        printf("  or:  %s [OPTION...] %.*s\n", name, (int)strcspn(arguments, "\n"), arguments);
    }
}

void cli_help(const cli_syntax *syntax, const struct argp_option *own, const char *name, bool in_short) {
    page p = {0};
    put_usage(&p, syntax, own, name);
    if (in_short) return;
    const char *doc = syntax->doc ? syntax->doc : "", *after = strchr(doc, '\v');
    p.margin = 0;
    put_text(&p, doc, after ? (size_t)(after - doc) : strlen(doc));
    end_line(&p);
    for (int i = 0; i < CLI_MAX_GROUPS && syntax->groups[i].argp; i++) {
        const cli_group *g = &syntax->groups[i];
        end_line(&p);
        if (g->header) printf(" %s\n", g->header);
        put_options(&p, g->argp->options);
    }
    end_line(&p);
    put_options(&p, own);
    if (!after) return;
    end_line(&p);
    p.margin = 0;
    put_text(&p, after + 1, strlen(after + 1));
    end_line(&p);
}
