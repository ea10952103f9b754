// SPDX-License-Identifier: MIT
// The group of options that every training shares: the optimiser and its learning rate.
#include <errno.h>
#include <math.h>

#include "cli.h"

// The man page names them.
#define DEFAULT_RATE_ADAM 3e-3
#define DEFAULT_RATE_SGD 0.1
#define DEFAULT_MOMENTUM 0.9
#define DEFAULT_WEIGHT_DECAY 0.01
enum { DEFAULT_WARM_UP = 100 };

enum { KEY_OPTIMISER = 0x7000, KEY_RATE, KEY_DECAY, KEY_MOMENTUM, KEY_WARM_UP, KEY_CONSTANT };

static const char *const names[] = {"sgd", "adam", "adamw"};  // in dpcr_optimiser_kind's order

static const struct argp_option optimiser_options[] = {
    {"optimiser", KEY_OPTIMISER, "NAME", 0, "sgd, adam, adamw (default)", 0},
    {"rate", KEY_RATE, "R", 0, "Peak learning rate (default 0.003, of vae and denoiser 0.001; sgd 0.1)", 0},
    {"weight-decay", KEY_DECAY, "D", 0,
     "Decoupled in adamw (default 0.01), added to the gradient in sgd and adam (default 0)", 0},
    {"momentum", KEY_MOMENTUM, "M", 0, "Of sgd (default 0.9)", 0},
    {"warm-up", KEY_WARM_UP, "N", 0,
     "Steps of linear warm-up (default 100, at most a tenth of all); then half a cosine down to 0", 0},
    {"constant-rate", KEY_CONSTANT, NULL, 0, "No cosine after the warm-up", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t read_kind(const char *arg, dpcr_optimiser_kind *kind) {
    int index = 0;
    if (!cli_read_word("--optimiser", arg, names, 3, &index)) return EINVAL;
    *kind = (dpcr_optimiser_kind)(DPCR_SGD + index);
    return 0;
}

static error_t parse_optimiser(int key, char *arg, struct argp_state *state) {
    cli_optimiser *t = state->input;
    dpcr_optimiser_options *o = &t->options;
    switch (key) {
        case KEY_OPTIMISER: return read_kind(arg, &o->kind);
        case KEY_RATE: t->rate_given = true; return taken(cli_read_double("--rate", arg, 0, HUGE_VAL, &o->rate));
        case KEY_DECAY:
            t->decay_given = true;
            return taken(cli_read_double("--weight-decay", arg, 0, HUGE_VAL, &o->weight_decay));
        case KEY_MOMENTUM:
            t->momentum_given = true;
            return taken(cli_read_double("--momentum", arg, 0, 1, &o->momentum));
        case KEY_WARM_UP:
            t->warm_up_given = true;
            return taken(cli_read_int64("--warm-up", arg, 0, INT64_MAX, &o->warm_up));
        case KEY_CONSTANT: o->total = 0; return 0;
        case ARGP_KEY_END:
            if (!t->momentum_given || o->kind == DPCR_SGD) return 0;
            cli_fail(CLI_USAGE, "--momentum: that is of sgd, not of %s; wanted with --optimiser sgd",
                     cli_optimiser_name(o->kind));
            return EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_optimiser_argp = {optimiser_options, parse_optimiser, NULL, NULL, NULL, NULL, NULL};

const char *cli_optimiser_name(dpcr_optimiser_kind kind) { return names[kind - DPCR_SGD]; }

void cli_optimiser_settle(cli_optimiser *optimiser, int64_t steps) {
    dpcr_optimiser_options *o = &optimiser->options;
    const bool sgd = o->kind == DPCR_SGD;
    if (!optimiser->rate_given) o->rate = sgd ? DEFAULT_RATE_SGD : DEFAULT_RATE_ADAM;
    if (!optimiser->decay_given) o->weight_decay = o->kind == DPCR_ADAMW ? DEFAULT_WEIGHT_DECAY : 0;
    if (!optimiser->momentum_given) o->momentum = sgd ? DEFAULT_MOMENTUM : 0;
    const int64_t tenth = steps / 10;
    if (!optimiser->warm_up_given) o->warm_up = tenth < DEFAULT_WARM_UP ? tenth : DEFAULT_WARM_UP;
}
