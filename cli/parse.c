// SPDX-License-Identifier: MIT
// Arguments: argp with the groups of options that verbs share. argp's own messages take two lines and exit by
// themselves; ours are one line, so its error and help output is switched off here and done by hand.
#include <errno.h>
#include <string.h>

#include "cli.h"

enum { KEY_HELP = 'h', KEY_USAGE = 0x7001 };

typedef struct parsing {
    const cli_syntax *syntax;
    const char **positional;
    int given;
    bool helped;
    const struct argp *argp;
    char name[64];
} parsing;

static const struct argp_option help_options[] = {
    {"help", KEY_HELP, NULL, 0, "Print this and exit", -1},
    {"usage", KEY_USAGE, NULL, 0, "Print the options in short and exit", -1},
    {0},
};

static bool has_option(const struct argp *argp, const char *name, size_t length) {
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name && strlen(o->name) == length && !strncmp(o->name, name, length)) return true;
    return false;
}

// getopt has found the argument before state->next wrong, and says no more.
static void tell_bad_option(parsing *p, const struct argp_state *state) {
    const char *word = state->next > 0 && state->next <= state->argc ? state->argv[state->next - 1] : "";
    // Inside a cluster of short options getopt has not moved on yet.
    if (word[0] != '-' && state->next < state->argc) word = state->argv[state->next];
    const char *name = !strncmp(word, "--", 2) ? word + 2 : "";
    const size_t length = strcspn(name, "=");
    bool known = length && has_option(p->argp, name, length);
    for (int i = 0; length && i < CLI_MAX_GROUPS && p->syntax->groups[i].argp; i++)
        known = known || has_option(p->syntax->groups[i].argp, name, length);
    if (known && name[length] == '=')
        cli_fail(CLI_USAGE, "option '--%.*s' takes no value", (int)length, name);
    else if (known)
        cli_fail(CLI_USAGE, "option '%.80s' needs a value", word);
    else
        cli_fail(CLI_USAGE, "unknown option '%.80s'; '%s --help' lists them", word, p->name);
}

static error_t take_argument(parsing *p, const char *word) {
    if (p->given < p->syntax->most) {
        p->positional[p->given++] = word;
        return 0;
    }
    cli_fail(CLI_USAGE, "unexpected argument '%.80s'", word);
    return EINVAL;
}

static error_t parse_top(int key, char *arg, struct argp_state *state) {
    parsing *p = state->input;
    switch (key) {
        case ARGP_KEY_INIT:
            for (int i = 0; i < CLI_MAX_GROUPS && p->syntax->groups[i].argp; i++)
                state->child_inputs[i] = p->syntax->groups[i].input;
            return 0;
        case KEY_HELP:
        case KEY_USAGE:
            cli_help(p->syntax, help_options, p->name, key == KEY_USAGE);
            p->helped = true;
            return ECANCELED;
        case ARGP_KEY_ARG: return take_argument(p, arg);
        case ARGP_KEY_ERROR:
            if (!p->helped && !cli_failed()) tell_bad_option(p, state);
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

bool cli_parse(const cli_syntax *syntax, int argc, char **argv, const char *positional[CLI_MAX_POSITIONAL],
               int *status) {
    struct argp_child children[CLI_MAX_GROUPS + 1] = {{0}};
    int groups = 0;
    for (; groups < CLI_MAX_GROUPS && syntax->groups[groups].argp; groups++)
        children[groups] =
            (struct argp_child){syntax->groups[groups].argp, 0, syntax->groups[groups].header, groups + 1};
    const struct argp argp = {help_options, parse_top, syntax->arguments, syntax->doc, children, NULL, NULL};
    parsing p = {.syntax = syntax, .positional = positional, .argp = &argp};
    const char *verb = cli_get_verb(), *kind = argc > 0 && strcmp(argv[0], verb) != 0 ? argv[0] : "";
    snprintf(p.name, sizeof p.name, "deeppcr %s%s%s", verb, *kind ? " " : "", kind);
    for (int i = 0; i < CLI_MAX_POSITIONAL; i++) positional[i] = NULL;
    const error_t code = argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, &p);
    if (code == ENOMEM && !cli_failed()) cli_fail_memory("the options");  // argp's own is told by nobody
    *status = p.helped ? CLI_DONE : cli_failed() ? cli_failed() : CLI_USAGE;
    return code == 0 && !p.helped;
}

bool cli_name_first(int argc, char **argv, bool (*ours)(const char *word), bool (*other)(const char *word)) {
    int at = argc > 1 && ours(argv[1]) ? 1 : 0;
    for (int i = 1; i < argc && !at; i++)
        if (other(argv[i])) return false;
    for (int i = argc - 1; i > 0 && !at; i--)
        if (ours(argv[i])) at = i;
    if (!at) return false;
    char *name = argv[at];
    memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof *argv);
    argv[1] = name;
    return true;
}
