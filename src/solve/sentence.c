// SPDX-License-Identifier: MIT
// The planner's words: what a list of candidates holds, and the sentence that says why one was chosen.
#include "solve/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool dpcri_is_loop(const dpcr_candidate *c) {
    return c->method == DPCR_METHOD_SEQUENTIAL && (!c->backward || c->scheme == DPCR_SCHEME_SEQUENTIAL);
}

const dpcr_candidate *dpcri_loop_of(const dpcri_list *l) {
    for (int64_t i = 0; i < l->count; i++)
        if (dpcri_is_loop(&l->at[i])) return &l->at[i];
    return &l->at[0];
}

const dpcr_candidate *dpcri_best_parallel(const dpcri_list *l) {
    for (int64_t i = 0; i < l->count; i++)
        if (!dpcri_is_loop(&l->at[i])) return &l->at[i];
    return NULL;
}

bool dpcri_wakes_in_time(const dpcri_outlook *o, const dpcri_list *l, const dpcr_candidate *c) {
    const dpcr_candidate *loop = dpcri_loop_of(l);
    return dpcri_cost_asleep(o, c) - dpcri_cost_asleep(o, loop) <= 0.5 * fmax(0, loop->seconds - c->seconds);
}

static const char *duration(double seconds, char *buffer, size_t bytes) {
    if (seconds < 1e-3)
        snprintf(buffer, bytes, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(buffer, bytes, "%.3g ms", seconds * 1e3);
    else
        snprintf(buffer, bytes, "%.3g s", seconds);
    return buffer;
}

double dpcri_candidate_seconds(const dpcr_candidate *c) { return c->measured > 0 ? c->measured : c->seconds; }

void dpcri_say(dpcr_solve_plan *plan, const char *text) {
    const size_t used = strlen(plan->sentence);
    if (used < sizeof plan->sentence) snprintf(plan->sentence + used, sizeof plan->sentence - used, "%s", text);
}

static const char *name_of(const dpcr_candidate *c, char *buffer, size_t bytes) {
    if (c->backward)
        snprintf(buffer, bytes, "%s", dpcr_scheme_name(c->scheme));
    else if (c->method == DPCR_METHOD_NEWTON)
        snprintf(buffer, bytes, "newton (%s)", c->scheme ? dpcr_scheme_name(c->scheme) : "windows");
    else
        snprintf(buffer, bytes, "%s", dpcr_method_name(c->method));
    return buffer;
}

static void describe(const dpcr_candidate *c, char *text, size_t bytes) {
    char name[48], a[32];
    const double seconds = dpcri_candidate_seconds(c);
    const char *takes = c->measured > 0 ? "takes" : "would take";
    name_of(c, name, sizeof name);
    if (c->sweeps > 1)
        snprintf(text, bytes, "%s %s about %.0f sweeps at %s", name, c->measured > 0 ? "takes" : "would need",
                 c->sweeps, duration(seconds / c->sweeps, a, sizeof a));
    else if (c->warm_up)
        snprintf(text, bytes, "%s %s %s with a warm-up of %lld", name, takes, duration(seconds, a, sizeof a),
                 (long long)c->warm_up);
    else
        snprintf(text, bytes, "%s %s %s", name, takes, duration(seconds, a, sizeof a));
}

// Is a forward candidate's figure no prediction, but what it takes at least?
static bool is_bound(const dpcri_outlook *o, const dpcr_candidate *c) {
    return o->costs.at_best && !c->backward && !dpcri_is_loop(c) && c->measured == 0;
}

static void describe_bound(const dpcri_list *l, const dpcr_candidate *c, char *text, size_t bytes) {
    char name[48], a[32];
    snprintf(text, bytes, "%s would take %s at best%s", name_of(c, name, sizeof name),
             duration(c->seconds, a, sizeof a),
             c->seconds < dpcri_loop_of(l)->seconds ? ", too little to gain for a closer look" : "");
}

// Why overlap is not among the candidates.
static void tell_memory(dpcr_solve_plan *plan, const dpcri_list *l) {
    const dpcri_contraction *c = &plan->contraction;
    char text[160] = "";
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].method == DPCR_METHOD_OVERLAP) return;
    if (c->memory == DPCRI_MEMORY_FORGETS)
        snprintf(text, sizeof text, "; overlap does not pay: the chain forgets in about %lld steps",
                 (long long)(c->to_bits ? c->to_bits : c->within));
    else if (c->memory != DPCRI_MEMORY_UNKNOWN)
        snprintf(text, sizeof text, "; overlap does not pay: the chain %s", dpcri_memory_name(c->memory));
    dpcri_say(plan, text);
}

// The other methods' best, of chains that are offered many.
static void tell_others(dpcr_solve_plan *plan, const dpcri_outlook *o, const dpcri_list *l,
                        const dpcr_candidate *told) {
    unsigned seen = 1u << DPCR_METHOD_SEQUENTIAL | (told ? 1u << told->method : 0);
    char text[96], a[32];
    for (int64_t i = 0; i < l->count; i++) {
        const dpcr_candidate *c = &l->at[i];
        if (seen & 1u << c->method) continue;
        seen |= 1u << c->method;
        snprintf(text, sizeof text, "; %s %s%s", dpcr_method_name(c->method),
                 duration(dpcri_candidate_seconds(c), a, sizeof a), is_bound(o, c) ? " at best" : "");
        dpcri_say(plan, text);
    }
}

// Where the second figure is what decides.
static const char *tell_waking(const dpcri_outlook *o, const dpcri_list *l, const dpcr_candidate *other, char *text,
                               size_t bytes) {
    char asleep[32];
    text[0] = 0;
    if (other->measured == 0 && other->seconds < dpcri_loop_of(l)->seconds && !dpcri_wakes_in_time(o, l, other))
        snprintf(text, bytes, " (%s where its threads wake first)",
                 duration(dpcri_cost_asleep(o, other), asleep, sizeof asleep));
    return text;
}

void dpcri_tell_choice(dpcr_solve_plan *plan, const dpcri_outlook *o, const dpcri_list *l, const dpcr_candidate *chosen,
                       bool backward) {
    char name[48], what[160], loop[32], waking[80], text[400];
    const dpcr_candidate *other = dpcri_is_loop(chosen) ? dpcri_best_parallel(l) : chosen;
    name_of(chosen, name, sizeof name);
    if (!other && o->filled > 0 && backward)
        snprintf(text, sizeof text, "; backward %s: as forward", name);
    else if (!other && o->filled > 0)
        snprintf(text, sizeof text,
                 "%s: its sequences fill the processor, overlap would take %s at best, the loop takes %s", name,
                 duration(o->filled, what, sizeof what), duration(dpcri_loop_of(l)->seconds, loop, sizeof loop));
    else if (!other)
        snprintf(text, sizeof text, "%s%s: %s", backward ? "; backward " : "", name,
                 plan->steps.length < DPCRI_LEAST_LENGTH || plan->steps.batch == 0 ? "too little to run side by side"
                                                                                   : "the only candidate");
    else {
        const bool bound = dpcri_is_loop(chosen) && is_bound(o, other);
        if (bound)
            describe_bound(l, other, what, sizeof what);
        else
            describe(other, what, sizeof what);
        snprintf(text, sizeof text, "%s%s: %s%s, the loop takes %s", backward ? "; backward " : "",
                 dpcri_is_loop(chosen) ? "sequential"
                 : backward            ? name
                                       : dpcr_method_name(chosen->method),
                 what, bound ? "" : tell_waking(o, l, other, waking, sizeof waking),
                 duration(dpcri_candidate_seconds(dpcri_loop_of(l)), loop, sizeof loop));
    }
    dpcri_say(plan, text);
    if (!backward) tell_memory(plan, l);
    if (!backward && dpcri_is_weighed(&plan->steps)) tell_others(plan, o, l, other);
}

void dpcri_tell_pair(dpcr_solve_plan *plan, const dpcr_candidate *forward, const dpcr_candidate *backward,
                     double seconds, double loops) {
    char text[200], there[48], back[48], a[32], b[32];
    snprintf(text, sizeof text, "; both passes: %s and %s take %s, the loops %s", name_of(forward, there, sizeof there),
             name_of(backward, back, sizeof back), duration(seconds, a, sizeof a), duration(loops, b, sizeof b));
    dpcri_say(plan, text);
}
