// SPDX-License-Identifier: MIT
// The cost model: seconds of the loop and of every candidate, from what the chain tells of its costs, what the machine
// reaches, and how soon the chain forgets. Each is  work / (rate threads) + dependent steps x latency + regions +
// bytes / bandwidth; docs/math/cost.md derives them.
#include <math.h>

#include "solve/planner.h"

// What part of the peak rate is reached by steps over a batch, and by Jacobians and their products, where the chain
// does not tell.
static const double step_efficiency = 0.5, jacobian_efficiency = 0.1;
static const double call_seconds = 0.5e-6;       // of one callback, with what the driver does around it
static const double solve_seconds = 0.08e-6;     // of a solve by the loop, beside its steps
static const double lanes_seconds = 0.25e-6;     // of one call of overlap's chunks
static const double window_seconds = 0.12e-6;    // of a sequence given to a method inside the callback
static const double strided_seconds = 5e-9;      // of a step whose numbers lie a cache line from the last one's
static const double check_seconds = 10e-9;       // of one boundary of the first sequence
static const double row_check_seconds = 1.5e-9;  // and of each other one
static const double span_seconds = 4e-9;         // of one small matrix in the general kernels, however few its flops

static double more(double a, double b) { return a > b ? a : b; }
static double less(double a, double b) { return a < b ? a : b; }

static double threads_of(const dpcri_outlook *o) { return o->steps->concurrent ? o->machine.threads : 1; }
static double length_of(const dpcri_outlook *o) { return (double)o->steps->length; }
static double batch_of(const dpcri_outlook *o) { return more(1, (double)o->steps->batch); }  // of none nothing is asked
static double state_bytes(const dpcri_outlook *o) {
    return (double)o->steps->width * (double)dpcr_dtype_size(o->steps->dtype);
}

// Handing so many tasks to as many threads, or to all: measured for those that we have, a tree beyond.
static double region_of_tasks(const dpcri_outlook *o, double tasks) {
    const double have = (double)dpcr_context_threads(o->context), t = less(threads_of(o), tasks);
    if (t <= 1) return 0;
    return o->machine.region * more(1, log2(t) / log2(more(2, have)));
}

static double region_seconds(const dpcri_outlook *o) { return region_of_tasks(o, threads_of(o)); }

// Bytes a second from beyond the caches.
static double far_bandwidth(const dpcr_machine *m, double threads) {
    const double one = m->thread_bandwidth > 0 ? m->thread_bandwidth : m->cache_bandwidth[2];
    return less(m->bandwidth, one * threads);
}

// Bytes through the level that holds them all, by as many threads as take part.
static double memory_seconds(const dpcri_outlook *o, double bytes, double threads) {
    const dpcr_machine *m = &o->machine;
    for (int i = 0; i < 3; i++)
        if (bytes <= m->cache_bytes[i]) return bytes / (m->cache_bandwidth[i] * threads);
    return bytes / far_bandwidth(m, threads);
}

// A pass over the chain: forward, or back, where gradients as large as the weights are added to as well.
typedef enum direction { FORWARD, BACK } direction;

// The weights of so many steps, or their gradients, from beyond the caches; 0 where the caches hold all of them: what
// steps tell of themselves counts them there.
static double weight_seconds(const dpcri_outlook *o, direction way, double steps, double threads) {
    const double each = o->steps->weight_bytes, held = way == BACK && o->steps->gradient ? 2 * each : each;
    if (!(each > 0) || length_of(o) * held <= o->machine.cache_bytes[2]) return 0;
    return steps * each / far_bandwidth(&o->machine, threads);
}

// Of a state of the chain, or of it and its adjoint, and over the weights of so many steps.
static double pass_seconds(const dpcri_outlook *o, direction way, double steps, double threads) {
    const double bytes = length_of(o) * batch_of(o) * (way == BACK ? 2 : 1) * state_bytes(o);
    return memory_seconds(o, bytes, threads) + weight_seconds(o, way, steps, threads);
}

static double block_rows(const dpcri_outlook *o) { return less(batch_of(o), (double)dpcri_row_block(o->steps)); }

double dpcri_cost_step(const dpcri_outlook *o) {
    if (o->costs.block > 0) return o->costs.block;
    if (o->steps->latency > 0) return o->steps->latency;
    return o->machine.latency * (4 + (double)o->steps->width);
}

// A row of a batch is a lane too: the two are served alike.
static double row_seconds(const dpcri_outlook *o) {
    if (o->costs.lane > 0) return o->costs.lane;
    if (o->steps->lane_seconds > 0) return o->steps->lane_seconds;
    return o->steps->flops / (step_efficiency * o->machine.flops);
}

double dpcri_cost_lane(const dpcri_outlook *o) {
    const double alone = dpcri_cost_step(o);
    if (o->costs.lane > 0) return o->costs.lane;
    if (o->steps->lanes > 1) return less(alone, row_seconds(o));
    return more(alone / batch_of(o), row_seconds(o));  // lanes one after another, each with all its rows
}

// R rows step by step, blocks of the driver's size side by side: the thread with the most blocks decides.
// `timed`: seconds of a block's step as it was timed, 0: from latency and work.
static double rows_step(const dpcri_outlook *o, double timed, double latency, double row) {
    const double block = block_rows(o), blocks = ceil(batch_of(o) / more(1, block));
    const double rounds = ceil(blocks / more(1, less(blocks, threads_of(o))));
    return rounds * (timed > 0 ? timed : more(latency, block * row));
}

// The bytes of a loop that goes so many rows at a time, every block of them past all weights, and what it takes to hand
// those out.
static double rows_floor(const dpcri_outlook *o, double compute, double block, direction way) {
    const double blocks = ceil(batch_of(o) / more(1, block)), threads = less(threads_of(o), more(1, blocks));
    return more(compute, pass_seconds(o, way, blocks * length_of(o), threads)) + region_of_tasks(o, blocks) +
           solve_seconds;
}

double dpcri_cost_loop(const dpcri_outlook *o) {
    const double compute = length_of(o) * rows_step(o, o->costs.block, dpcri_cost_step(o), row_seconds(o));
    return rows_floor(o, compute, block_rows(o), FORWARD);
}

// K = L/n chunks, L + (K - 1) m steps of work side by side, n + m of them one after another. Of a call's lanes threads
// that would have none take a part.
static double overlap_seconds(const dpcri_outlook *o, double threads, double chunk, double warm_up, double latency,
                              double lane, direction way) {
    const double chunks = more(1, floor(length_of(o) / chunk)), full = more(1, (double)o->steps->lanes);
    const double width = full > 1 ? (double)dpcri_overlap_lanes(o->steps, (int64_t)chunks, (int64_t)threads) : full;
    const double calls = ceil(chunks / width);
    const double rounds = ceil(calls / threads);  // calls that one thread makes, each n + m steps long
    // Chunks of the thread that has the most: its last call may be the one that is not full.
    const double last = fmod(calls - 1, threads) == 0 ? chunks - (calls - 1) * width : width;
    const double share = more((rounds - 1) * width + last, chunks / less(threads, calls)) / chunks;
    const double work = (length_of(o) + (chunks - 1) * warm_up) * batch_of(o) * lane * share;
    // A call of all its lanes takes what its lanes take; one of a few takes no less than one alone, or, where lanes
    // fill vectors, what all take, and of one or two what they take in turn.
    const bool places = full > 1 && dpcri_overlap_fills(o->steps);
    const bool vectors =
        (width >= DPCRI_VECTOR_LANES || (places && width == full)) && o->steps->lane_seconds > 0 && o->costs.lane == 0;
    const double all = width * batch_of(o) * lane, in_turn = places ? width : 1;
    const double alone = width < full ? in_turn * latency : less(latency, all);
    const double depth =
        rounds * (chunk + warm_up) * (vectors ? all : more(alone, width < full ? all : batch_of(o) * lane));
    const double checks = chunks * (check_seconds + (batch_of(o) - 1) * row_check_seconds);
    const double side = less(threads, calls);
    const double memory = pass_seconds(o, way, length_of(o) + (chunks - 1) * warm_up, side);
    return more(more(work, depth), memory) + checks + rounds * 2 * lanes_seconds + region_of_tasks(o, side);
}

static double overlap_by(const dpcri_outlook *o, double threads, int64_t chunk, int64_t warm_up) {
    return overlap_seconds(o, threads, (double)chunk, (double)warm_up, dpcri_cost_step(o), dpcri_cost_lane(o), FORWARD);
}

double dpcri_cost_overlap(const dpcri_outlook *o, int64_t chunk, int64_t warm_up) {
    return overlap_by(o, threads_of(o), chunk, warm_up);
}

static double compose_flops(const dpcr_transition *t) { return dpcr_transition_compose_flops(t); }

static double linear_rate(const dpcri_outlook *o) { return jacobian_efficiency * o->machine.flops * threads_of(o); }

static double apply_seconds(const dpcri_outlook *o, double least) {
    return more(least, dpcr_transition_apply_flops(&o->steps->jacobian) / linear_rate(o));
}

static double least_span(const dpcri_outlook *o) {
    return o->steps->jacobian.structure != DPCR_DENSE ? 0 : span_seconds / threads_of(o);
}

// An application a step, side by side.
static double look_seconds(const dpcri_outlook *o) {
    return length_of(o) * batch_of(o) * apply_seconds(o, least_span(o)) + region_seconds(o);
}

// Products of transitions wait for no latency but in the loop, whose width is that of what mixes.
static double linear_seconds(const dpcri_outlook *o, dpcr_scheme scheme) {
    const dpcr_transition *t = &o->steps->jacobian;
    const double rows = batch_of(o);
    const bool fused = rows == 1 && scheme == DPCR_SCHEME_CHUNKED && t->rows <= 4;  // src/chain/windows.c
    const double least = fused ? 0 : least_span(o), apply = apply_seconds(o, least),
                 compose = more(least, compose_flops(t) / linear_rate(o));
    const double n = length_of(o), levels = n > 1 ? ceil(log2(n)) : 1;
    const double region = region_seconds(o);
    const double mixed = t->structure == DPCR_DENSE   ? (double)t->rows
                         : t->structure == DPCR_BLOCK ? (double)t->block
                                                      : 1;
    // The least depth of each: a tree's levels, or two walks through a chunk and one over the chunks.
    const double hop = o->machine.latency * (1 + mixed);
    switch (scheme) {
        case DPCR_SCHEME_PCR: return n * rows * levels * (compose + apply) + levels * (region + hop);
        case DPCR_SCHEME_BLELLOCH: return n * rows * (compose + 2 * apply) + 2 * levels * (region + hop);
        case DPCR_SCHEME_CHUNKED: return more(n * rows * (compose + 2 * apply), 2 * sqrt(n) * hop * mixed) + 3 * region;
        case DPCR_SCHEME_OVERLAP: return n * rows * 1.25 * apply + 2 * region;
        default: return n * more(hop, rows * apply * threads_of(o) / less(threads_of(o), ceil(rows / 8)));
    }
}

// Values and Jacobians of all steps, written and read once. A chain whose lanes do not run side by side takes no less
// than the loop for the values and as much again for the Jacobians.
static double evaluation_seconds(const dpcri_outlook *o, direction way, double lane) {
    const dpcr_steps *s = o->steps;
    const double states = length_of(o) * batch_of(o), real = (double)dpcr_dtype_size(s->dtype);
    const double guessed = more(span_seconds, s->jacobian_flops / (jacobian_efficiency * o->machine.flops));
    const double jacobian = o->costs.jacobian > 0 ? o->costs.jacobian : guessed;
    const bool beside = s->lanes > 1 || o->costs.jacobian > 0;
    const double each = beside ? lane + jacobian : more(2 * lane, lane + jacobian);
    const double values = (double)dpcr_transition_values(&s->jacobian) + 4 * (double)s->width;
    const double memory = 2 * memory_seconds(o, states * values * real, threads_of(o));
    return more(states * each / threads_of(o), weight_seconds(o, way, length_of(o), threads_of(o))) + memory +
           dpcri_cost_step(o) + region_seconds(o);
}

double dpcri_cost_newton(const dpcri_outlook *o, dpcr_scheme scheme) {
    const double lane = dpcri_cost_lane(o), pieces = more(1, length_of(o) / 256);
    const double one = evaluation_seconds(o, FORWARD, lane) + linear_seconds(o, scheme) + region_seconds(o) +
                       2 * call_seconds * ceil(pieces / threads_of(o));
    return o->sweeps * one + length_of(o) * batch_of(o) * lane / threads_of(o);  // and the guess
}

// A sweep runs every chunk, forms its product of n Jacobians, and solves a chain of L/n boundaries.
double dpcri_cost_shooting(const dpcri_outlook *o, int64_t chunk) {
    const double lane = dpcri_cost_lane(o), n = (double)chunk, states = length_of(o) * batch_of(o);
    const double compose = compose_flops(&o->steps->jacobian) / (jacobian_efficiency * o->machine.flops);
    const double apply = dpcr_transition_apply_flops(&o->steps->jacobian) / (jacobian_efficiency * o->machine.flops);
    const double chunks = length_of(o) / n, side = less(threads_of(o), chunks);
    const double one = evaluation_seconds(o, FORWARD, lane) + states * compose / side +
                       chunks * more(o->machine.latency * (1 + (double)o->steps->width), batch_of(o) * apply) +
                       3 * call_seconds * ceil(chunks / threads_of(o)) + region_seconds(o);
    return o->sweeps * one + states * lane / side;
}

// What part of the chain is left to evaluate in a sweep, over all sweeps: fronts move about evenly.
static const double part_of_sweep = 0.5, part_of_parareal = 0.75;

int64_t dpcri_parareal_chunk(const dpcr_steps *steps, const dpcr_solve_options *options) {
    const int64_t length = steps->length > 0 ? steps->length : 1;
    return options->chunk ? options->chunk : (int64_t)ceil(sqrt((double)length));
}

double dpcri_cost_parareal(const dpcri_outlook *o, int64_t n, double sweeps, double work) {
    const double chunks = ceil(length_of(o) / (double)n), own = chunks * batch_of(o) * dpcri_cost_lane(o);
    const double step = more(dpcri_cost_step(o), own / threads_of(o));
    const double coarse = o->steps->coarse ? chunks * dpcri_cost_step(o) : 0;
    const double part = work > 0 ? less(1, work / sweeps) : part_of_parareal;
    const double kept = more(dpcri_cost_step(o), part * step);
    return coarse + sweeps * ((double)n * (kept + call_seconds) + part * coarse + region_seconds(o));
}

// Cycles that confirm, and the coarse steps' Jacobians once or the steps in every one.
static double confirm_seconds(const dpcri_outlook *o, double one) {
    const double cycles = dpcri_confirm_cycles(o->options), chunks = ceil(sqrt(length_of(o))),
                 states = chunks * batch_of(o);
    const dpcr_steps *s = o->steps;
    if (o->options->confirm == 0) return 0;
    const double guessed = more(span_seconds, s->jacobian_flops / (jacobian_efficiency * o->machine.flops));
    const double each = dpcri_cost_lane(o) + (o->costs.jacobian > 0 ? o->costs.jacobian : guessed);
    const double coarse = dpcri_coarse_is_linear(s, o->options, (int64_t)chunks)
                              ? states * each / threads_of(o)
                              : cycles * chunks * (dpcri_cost_step(o) + call_seconds);
    return coarse + cycles * (one + call_seconds + region_seconds(o));
}

double dpcri_cost_evaluation(const dpcri_outlook *o) {
    const double lane = o->costs.sweep > 0 ? o->costs.sweep : dpcri_cost_lane(o);
    return more(dpcri_cost_step(o), length_of(o) * batch_of(o) * lane / threads_of(o));
}

double dpcri_cost_picard(const dpcri_outlook *o, double sweeps, double work) {
    const double all = dpcri_cost_evaluation(o), evaluations = work > 0 ? work : part_of_sweep * sweeps;
    return more(sweeps * dpcri_cost_step(o), evaluations * all) + sweeps * (call_seconds + region_seconds(o)) +
           confirm_seconds(o, all);
}

// Sequences that run one after the other, those of a cache line by one thread: the busiest thread's.
static double busiest_rows(const dpcri_outlook *o) {
    const double line = (double)dpcri_rows_of_line(o->steps), tasks = ceil(batch_of(o) / line);
    return less(batch_of(o), ceil(tasks / less(threads_of(o), tasks)) * line);
}

// Whether pieces of a chain that forgets share the threads.
static bool goes_in_pieces(const dpcri_outlook *o) {
    const bool idle = batch_of(o) <= (double)dpcri_rows_of_line(o->steps) * (threads_of(o) - 1);
    return dpcri_window_pieces(o->steps) > 1 && idle && o->contraction.within > 0 &&
           o->contraction.within <= DPCRI_WINDOW_RUN_UP;
}

// What several threads make of one sequence's windows, where there are too few sequences for the threads.
static double team_gain(const dpcri_outlook *o, dpcr_method method) {
    dpcr_solve_options options = *o->options;
    options.method = method;
    return dpcri_window_team_gain(o->steps, &options, (int64_t)threads_of(o));
}

// A chain that forgets within the run-up goes in pieces where there are too few sequences for the threads.
double dpcri_cost_window(const dpcri_outlook *o, dpcr_method method, double step) {
    const double pieces = (double)dpcri_window_pieces(o->steps), all = length_of(o) * batch_of(o);
    if (goes_in_pieces(o)) {
        const double rounds = ceil(pieces / less(threads_of(o), pieces));
        return more(rounds / pieces * step * all, pass_seconds(o, FORWARD, all, less(threads_of(o), pieces))) +
               rounds * window_seconds + region_seconds(o);
    }
    const double gain = team_gain(o, method), rows = busiest_rows(o);
    if (gain > 1)
        return more(step * all / gain, pass_seconds(o, FORWARD, all, threads_of(o))) +
               batch_of(o) * (window_seconds + region_seconds(o));
    return more(rows * step * length_of(o), pass_seconds(o, FORWARD, all, ceil(batch_of(o) / rows))) +
           rows * window_seconds;
}

// ---- backward ----

static double adjoint_step(const dpcri_outlook *o) {
    if (o->costs.adjoint_block > 0) return o->costs.adjoint_block;
    return o->steps->adjoint_latency > 0 ? o->steps->adjoint_latency : dpcri_cost_step(o);
}

static double adjoint_row(const dpcri_outlook *o) {
    if (o->costs.adjoint_lane > 0) return o->costs.adjoint_lane;
    return o->steps->adjoint_lane_seconds > 0 ? o->steps->adjoint_lane_seconds : row_seconds(o);
}

static double backward_by(const dpcri_outlook *o, dpcr_scheme scheme) {
    if (scheme == DPCR_SCHEME_CHUNKED && o->steps->adjoint_window && o->steps->adjoint) {
        const double step = o->steps->adjoint_window_seconds > 0 ? o->steps->adjoint_window_seconds : adjoint_step(o);
        // Sequences of a batch lie apart: every one passes over the cache lines of all.
        const double apart = batch_of(o) > 1 ? strided_seconds : 0,
                     gain = dpcri_backward_team_gain(o->steps, (int64_t)threads_of(o));
        const double all = length_of(o) * batch_of(o), rows = busiest_rows(o);
        if (gain > 1)
            return more(step * length_of(o) / gain, pass_seconds(o, BACK, all, threads_of(o))) + window_seconds +
                   region_seconds(o);
        return more(rows * (step + apart) * length_of(o), pass_seconds(o, BACK, all, ceil(batch_of(o) / rows))) +
               rows * window_seconds;
    }
    // The states of pcr and blelloch are looked at once more (src/chain/recheck.h), those of a Newton sweep are not.
    const bool looks = scheme == DPCR_SCHEME_PCR || scheme == DPCR_SCHEME_BLELLOCH;
    return evaluation_seconds(o, BACK, dpcri_cost_lane(o)) + linear_seconds(o, scheme) + (looks ? look_seconds(o) : 0) +
           2 * call_seconds * ceil(more(1, length_of(o) / 256) / threads_of(o));
}

// Of the whole chain, on one thread; 0: not told.
static double gradient_seconds(const dpcri_outlook *o) {
    const dpcr_steps *s = o->steps;
    if (!s->gradient || s->gradient_whole) return 0;
    return more(length_of(o) * more(s->gradient_latency, batch_of(o) * s->gradient_lane_seconds),
                weight_seconds(o, BACK, 2 * length_of(o), 1));
}

// By tasks of a size (gradient_steps of backward.c): few small ones are no matter of many threads.
double dpcri_cost_shared_gradients(const dpcri_outlook *o) {
    const double tasks = floor(length_of(o) * batch_of(o) * o->steps->flops / 30000);
    const double side = more(1, less(threads_of(o), tasks)), all = gradient_seconds(o);
    return all > 0 ? more(all / side, weight_seconds(o, BACK, 2 * length_of(o), side)) : 0;
}

double dpcri_cost_with_gradients(const dpcri_outlook *o, bool loop, double seconds) {
    const double all = gradient_seconds(o), shared = dpcri_cost_shared_gradients(o), threads = threads_of(o);
    if (!loop || all == 0) return seconds + shared;
    switch (dpcri_gradients_go(o->steps, dpcri_loop_back_window(o->steps), (int64_t)threads)) {
        case DPCRI_GRADIENTS_ALONE: return seconds + all;
        case DPCRI_GRADIENTS_BESIDE:
            return more(more(seconds, (seconds + all) / threads), pass_seconds(o, BACK, 3 * length_of(o), threads));
        default: return seconds + shared;
    }
}

// Without the callback adjoint the loop is the linear chain of Jacobians in order.
static double adjoint_loop(const dpcri_outlook *o) {
    if (!o->steps->adjoint && o->steps->linearise) return backward_by(o, DPCR_SCHEME_SEQUENTIAL);
    const double timed = length_of(o) * rows_step(o, o->costs.adjoint_block, adjoint_step(o), adjoint_row(o));
    // Timed in the loop's blocks; its own may be smaller, of which more threads find one.
    const double block = less(batch_of(o), (double)dpcri_back_block(o->steps)), blocks = ceil(batch_of(o) / block);
    const double share = ceil(blocks / less(blocks, threads_of(o))) * block / batch_of(o);
    const double compute = block < block_rows(o) && block_rows(o) >= batch_of(o) ? timed * less(1, share) : timed;
    return rows_floor(o, compute, block, BACK);
}

double dpcri_cost_adjoint_loop(const dpcri_outlook *o) { return dpcri_cost_with_gradients(o, true, adjoint_loop(o)); }

static double adjoint_overlap_by(const dpcri_outlook *o, double threads, int64_t chunk, int64_t warm_up) {
    const double lane = o->steps->lanes > 1 || o->costs.adjoint_lane > 0
                            ? less(adjoint_step(o), adjoint_row(o))
                            : more(adjoint_step(o) / batch_of(o), adjoint_row(o));
    return overlap_seconds(o, threads, (double)chunk, (double)warm_up, adjoint_step(o), lane, BACK);
}

double dpcri_cost_adjoint_overlap(const dpcri_outlook *o, int64_t chunk, int64_t warm_up) {
    return dpcri_cost_with_gradients(o, false, adjoint_overlap_by(o, threads_of(o), chunk, warm_up));
}

double dpcri_cost_backward(const dpcri_outlook *o, dpcr_scheme scheme) {
    return dpcri_cost_with_gradients(o, false, backward_by(o, scheme));
}

// ---- a caller who comes now and then ----

static double overlap_alone(const dpcri_outlook *o, const dpcr_candidate *c) {
    dpcr_solve_plan shape = {.steps = *o->steps, .options = *o->options};
    if (c->chunk) shape.options.chunk = c->chunk;
    shape.options.warm_up = c->warm_up;
    const int64_t n = dpcri_overlap_chunk(&shape);
    return c->backward ? adjoint_overlap_by(o, 1, n, c->warm_up) + gradient_seconds(o)
                       : overlap_by(o, 1, n, c->warm_up);
}

// Threads that a candidate shares its work among, at most.
static double shared_among(const dpcri_outlook *o, const dpcr_candidate *c) {
    const bool loop = c->backward ? c->scheme == DPCR_SCHEME_SEQUENTIAL : c->method == DPCR_METHOD_SEQUENTIAL;
    dpcr_solve_options options = *o->options;
    options.method = c->method;
    const bool window = c->backward ? c->scheme == DPCR_SCHEME_CHUNKED && o->steps->adjoint_window && o->steps->adjoint
                                    : c->scheme == DPCR_SCHEME_AUTO && dpcri_solve_has_windows(o->steps, &options);
    if (loop) return less(threads_of(o), ceil(batch_of(o) / more(1, block_rows(o))));
    if (!window || (goes_in_pieces(o) && !c->backward)) return threads_of(o);
    const double gain =
        c->backward ? dpcri_backward_team_gain(o->steps, (int64_t)threads_of(o)) : team_gain(o, c->method);
    return gain > 1 ? gain : batch_of(o) / busiest_rows(o);
}

double dpcri_cost_asleep(const dpcri_outlook *o, const dpcr_candidate *c) {
    const bool chunks = c->backward ? c->scheme == DPCR_SCHEME_OVERLAP && dpcri_backward_can_overlap(o->steps)
                                    : c->method == DPCR_METHOD_OVERLAP;
    const bool loop_back = c->backward && c->scheme == DPCR_SCHEME_SEQUENTIAL;
    const double alone = chunks      ? overlap_alone(o, c)
                         : loop_back ? adjoint_loop(o) * shared_among(o, c) + gradient_seconds(o)
                                     : c->seconds * shared_among(o, c);
    return less(c->seconds + o->machine.wake, more(alone, c->seconds));
}
