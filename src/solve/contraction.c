// SPDX-License-Identifier: MIT
// The contraction estimate: two starts a and b of distance O(1), run by the chain's own advance at P places side by
// side,
//     d_t = |a_t - b_t| / max(1, |a_t|)       rate = (mean log d_t - mean log d_0) / t
// until they agree bit for bit at every place or the budget of steps is spent; from the worst place the steps to a
// tolerance. Where states go on growing, d falls while |a - b| stays as it is, and not as an exponential: where growth
// is most of the fall the rate is that of |a - b| itself. Where they have not met, a second pair, sqrt(eps) apart,
// gives the tangent's growth (the largest Lyapunov exponent over these steps), which tells a chain that keeps its past
// from a chaotic one.
//
// Scouts go first, a pair at a few places: where they see that the past stays longer than could be of use, the near
// pair follows at once, and if that shrinks no more than they did, all places are left alone.
//
// Work, in steps of one sequence: scouts 2 x 2 places x max(32, L/128), near pair 2 x max(2 x 64, L/16) at most, all
// places 2 x 16 x n.
// Source: Benettin et al. (Meccanica 15, 1980) for the exponent from two orbits; docs/math/cost.md.
#include "solve/contraction.h"

#include <math.h>
#include <string.h>

#include "solve/solve_internal.h"

enum {
    PLACES = 16,
    ROWS = 2,
    FEW_STEPS = 64,
    SETTLING = 16,      // steps in which the starts come to where the chain lives
    SCOUTS = 2,         // places of scouts,
    SCOUTS_PART = 128,  // part of the chain's steps that they go,
    LEAST_SCOUTED = 32,
    LITTLE = 4,      // and what they have to cost less than all places by
    NEAR_PART = 32,  // part of the chain's steps that a near pair goes at most,
    NEAR_WORK = 16,  // and that it makes at all its places together
    USEFUL_PART = 4  // a run-up of this part of the chain leaves overlap half the loop's time at best
};
static const double neutral_rate = 1.0 / 512;  // a smaller one is lost within the steps that are run

// One of two starts is zeros, which stay zeros where states shrink to them: beside the other's size they are 1 apart.
#define SHRUNK 0.5

typedef struct probe {
    const dpcr_steps *steps;
    dpcri_watch *watch;
    const dpcri_row_ops *ops;
    int64_t places, stride, row, rows;
    int64_t reach;    // steps from a place on that are followed at most
    dpcr_array a, b;  // [places][rows][w]
    bool bits;        // whether it matters when starts agree bit for bit, however late
    int64_t done;
    int64_t evaluations;
    int code;                   // negative: the callback aborted with it
    double mean, worst, least;  // of log d over places and rows
    double size;                // the mean of log max(1, |a|) over them
    double apart;               // the largest distance beside the states' own size
    bool equal, finite, grows;
} probe;

const char *dpcri_memory_name(dpcri_memory memory) {
    static const char *const names[] = {"unknown", "forgets", "keeps its past", "is chaotic"};
    return names[memory];
}

// Until when starts that are within the tolerance after so many steps agree bit for bit, if that is to be soon.
static int64_t soon(int64_t within) { return 2 * within + 16; }

bool dpcri_meets_soon(const dpcri_contraction *contraction) {
    return contraction->to_bits && contraction->to_bits <= soon(contraction->within);
}

static double epsilon(dpcr_dtype dtype) { return dtype == DPCR_F64 ? 0x1p-52 : 0x1p-23; }

static void *row_at(const dpcr_array *array, int64_t place, int64_t row) {
    const int64_t offset = place * array->strides[0] + row * array->strides[1];
    return (char *)array->data + offset * (int64_t)dpcr_dtype_size(array->dtype);
}

static double get(const dpcr_array *array, int64_t place, int64_t row, int64_t i) {
    const void *values = row_at(array, place, row);
    return array->dtype == DPCR_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void put(const dpcr_array *array, int64_t place, int64_t row, int64_t i, double value) {
    void *values = row_at(array, place, row);
    if (array->dtype == DPCR_F64)
        ((double *)values)[i] = value;
    else
        ((float *)values)[i] = (float)value;
}

static double start_value(const dpcr_array *z0, int64_t row, int64_t i) {
    if (!z0) return 0.9 * sin(1.3 + 2.1 * (double)i);  // no fixed point of anything
    dpcr_array rows = *z0;
    rows.strides[1] = rows.strides[0], rows.strides[0] = 0;
    return get(&rows, 0, row, i);
}

// a from z0; b from zeros, or where z0 is zeros from ones; or, `near`, a little off a.
static void set_starts(const probe *p, const dpcr_array *z0, bool near) {
    const double little = sqrt(epsilon(p->steps->dtype));
    for (int64_t c = 0; c < p->places; c++)
        for (int64_t r = 0; r < p->rows; r++)
            for (int64_t i = 0; i < p->steps->width; i++) {
                const double value = start_value(z0, p->row + r, i);
                put(&p->a, c, r, i, value);
                put(&p->b, c, r, i, near ? value + little * (1 + fabs(value)) : value == 0 ? 1 : 0);
            }
}

static double size_of(const dpcr_array *array, int64_t place, int64_t row) {
    double size = 1;
    for (int64_t i = 0; i < array->shape[2]; i++) size = fmax(size, fabs(get(array, place, row, i)));
    return size;
}

// Whether a sequence that has ended by then only keeps what it has.
static bool is_past(const probe *p, int64_t place, int64_t row) {
    return p->steps->ends && place * p->stride + p->reach > p->steps->ends[p->row + row];
}

static void measure_distances(probe *p) {
    double sum = 0, sizes = 0;
    int64_t count = 0;
    p->worst = -HUGE_VAL, p->least = HUGE_VAL, p->apart = 0;
    p->equal = p->finite = true;
    for (int64_t c = 0; c < p->places; c++)
        for (int64_t r = 0; r < p->rows; r++) {
            if (is_past(p, c, r)) continue;
            const void *x = row_at(&p->b, c, r), *y = row_at(&p->a, c, r);
            const double distance = log(p->ops->distance(x, y, p->steps->width));
            p->finite = p->finite && distance < HUGE_VAL;  // a NaN is not
            p->equal = p->equal && p->ops->close(x, y, p->steps->width, 0, 0);
            sum += distance;
            sizes += log(size_of(&p->a, c, r));
            count++;
            p->worst = fmax(p->worst, distance);
            p->apart = fmax(p->apart, p->ops->apart(x, y, p->steps->width));
            p->least = fmin(p->least, distance);
        }
    p->finite = p->finite && count > 0;
    p->mean = sum / (double)(count > 0 ? count : 1);
    p->size = sizes / (double)(count > 0 ? count : 1);
}

// n more steps of all starts; false: the callback aborts, or somebody asked to stop.
static bool run(probe *p, int64_t n) {
    if (p->code < 0 || dpcri_watch_stopped(p->watch)) return false;
    const dpcr_span span = dpcri_span(p->done, p->places, p->stride, n, p->row, p->rows);
    p->code = dpcri_advance(p->steps, &span, &p->a, NULL, &p->a, NULL);
    if (p->code == 0) p->code = dpcri_advance(p->steps, &span, &p->b, NULL, &p->b, NULL);
    p->done += n;
    p->evaluations += 2 * n * p->places * p->rows;
    if (p->code == 0) measure_distances(p);
    return p->code == 0;
}

// Steps from `t` on until a distance of log d has come down to log wanted at this rate.
static int64_t steps_until(int64_t t, double distance, double wanted, double rate) {
    if (distance <= wanted) return t;
    return t + (int64_t)fmin(1e15, ceil((distance - wanted) / -rate));
}

static int64_t block_of(int64_t done) { return done < FEW_STEPS ? 4 : 16; }

// Whether starts that were within the tolerance after so many steps may still agree bit for bit so soon that it is of
// use to a chain that does not ask for bits.
static bool bits_are_near(const probe *p, int64_t within) { return p->bits || within == 0 || p->done < soon(within); }

// `grown`: the mean logarithm by which settled states grow a step. What they win beside a distance that stays is no
// forgetting, and what began elsewhere is as far off as they have grown.
static void allow_for_growth(probe *p, double grown, dpcri_contraction *c) {
    p->grows = c->rate < 0 && grown > -c->rate / 2;
    if (!p->grows) return;
    c->rate += grown;
    c->within = 0;
}

// Follows the pair that is O(1) apart. False: the callback aborts.
static bool follow(probe *p, double tolerance, int64_t most, dpcri_contraction *c) {
    measure_distances(p);
    const double floor = log(32 * epsilon(p->steps->dtype));
    double first = p->mean, first_at = 0, last = first, last_at = 0, sunk_at = 0, settled = 0, size = 0;
    while (p->done < most && !p->equal && bits_are_near(p, c->within)) {
        const int64_t block = block_of(p->done), left = most - p->done;
        if (!run(p, block < left ? block : left)) return false;
        if (!p->finite) return true;
        if (p->worst < floor && p->apart > SHRUNK) break;  // never nearer beside their size
        if (p->least > floor && sunk_at == 0) {            // above the rounding noise everywhere
            last = p->mean, last_at = (double)p->done, size = p->size;
            if (p->done == SETTLING) first = last, first_at = last_at, settled = size;
        } else if (sunk_at == 0) {
            sunk_at = (double)p->done;
        }
        if (c->within == 0 && p->worst <= log(tolerance) && p->apart <= SHRUNK) c->within = p->done;
    }
    c->steps = p->done;
    if (p->equal) c->to_bits = p->done;
    // So fast that too little was seen between the settling and the noise: what that took is the rate, at least.
    if (last_at > first_at)
        c->rate = (last - first) / (last_at - first_at);
    else if (sunk_at > first_at)
        c->rate = (floor - first) / (sunk_at - first_at);
    if (first_at > 0 && last_at > first_at) allow_for_growth(p, (size - settled) / (last_at - first_at), c);
    return true;
}

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

// As many places as leave room for n steps each without sharing many, at most `most`.
static int64_t places_for(const dpcr_steps *steps, int64_t n, int64_t most) {
    return at_most(1 + (steps->length - n) / FEW_STEPS, most);
}

static void set_places(probe *p, int64_t n, int64_t most) {
    const int64_t room = p->steps->length - n;
    p->reach = n;
    p->places = places_for(p->steps, n, most);
    p->stride = p->places > 1 ? room / (p->places - 1) : 1;
    p->a.shape[0] = p->b.shape[0] = p->places;
}

// `all`: the steps that starts are followed at most.
static bool follow_near(probe *p, const dpcr_array *z0, int64_t all, double *rate) {
    const int64_t length = p->steps->length, part = length / NEAR_PART;
    const int64_t most = at_most(part > 2 * LEAST_SCOUTED ? part : 2 * LEAST_SCOUTED, all);
    const int64_t places = at_most(length / (NEAR_WORK * most), PLACES);
    set_places(p, most, places > SCOUTS ? places : SCOUTS);
    set_starts(p, z0, true);
    p->done = 0;
    measure_distances(p);
    const double start = p->mean;
    double mean = start, from = 0;
    while (p->done < most && p->finite && p->worst < log(0.05) &&
           p->least > log(32 * epsilon(p->steps->dtype))) {  // while a tangent describes it
        mean = p->mean, from = (double)p->done;
        if (!run(p, most - p->done < 8 ? most - p->done : 8)) return false;
    }
    // Out of the tangent's reach within the first stretch: that stretch tells it.
    if (from == 0) mean = p->mean, from = (double)p->done;
    *rate = from > 0 && p->finite ? (mean - start) / from : HUGE_VAL;
    return true;
}

// Of a chain that was followed at all places.
static dpcri_memory judge(probe *p, const dpcr_array *z0, double tolerance, int64_t n, dpcri_contraction *c) {
    if (!p->finite) return DPCRI_MEMORY_UNKNOWN;
    if (c->within == 0 && p->equal) c->within = c->to_bits;
    if (c->within) return DPCRI_MEMORY_FORGETS;
    const double worst = p->worst, apart = p->apart;
    double tangent = 0;
    if (!follow_near(p, z0, n, &tangent)) return DPCRI_MEMORY_UNKNOWN;
    if (tangent > 2 * neutral_rate) {
        c->rate = tangent;
        return DPCRI_MEMORY_CHAOTIC;
    }
    // Near each other because both have shrunk, beside their size as far apart as ever (one began at zeros): neither
    // has forgotten what it began with.
    if (worst <= log(DPCRI_DOUBT) && apart > SHRUNK) {
        c->rate = tangent;
        return DPCRI_MEMORY_KEEPS;
    }
    // The worst place decides: one that has not come nearer (another basin) may never do.
    if (c->rate > -neutral_rate || worst > -0.5) {
        if (c->rate > -neutral_rate && !p->grows) c->rate = tangent;
        return DPCRI_MEMORY_KEEPS;
    }
    c->within = steps_until(c->steps, worst, log(tolerance), c->rate);
    return DPCRI_MEMORY_FORGETS;
}

// Whether a chain may forget soon enough to be of use, by what its first steps left of the distance.
static bool may_forget(const probe *p, double first, double tolerance) {
    if (!p->finite || p->equal || p->worst <= log(tolerance)) return true;
    const double rate = (p->mean - first) / (double)p->done;
    return rate < 0 && steps_until(p->done, p->mean, log(tolerance), rate) <= p->steps->length / USEFUL_PART;
}

// Sends scouts, and a near pair where they come back with nothing. KEEPS or CHAOTIC: all places can be left alone; else
// nothing is known yet, or the callback aborts.
static dpcri_memory scout(probe *p, const dpcr_array *z0, double tolerance, int64_t n, dpcri_contraction *c) {
    const int64_t part = p->steps->length / SCOUTS_PART, some = at_most(part > LEAST_SCOUTED ? part : LEAST_SCOUTED, n);
    double tangent = 0;
    if (LITTLE * SCOUTS * some > places_for(p->steps, n, PLACES) * n) return DPCRI_MEMORY_UNKNOWN;
    set_places(p, some, SCOUTS);
    set_starts(p, z0, false);
    measure_distances(p);
    const double first = p->mean;
    if (!follow(p, tolerance, some, c) || may_forget(p, first, tolerance)) return DPCRI_MEMORY_UNKNOWN;
    if (!follow_near(p, z0, n, &tangent) || !p->finite) return DPCRI_MEMORY_UNKNOWN;
    const bool shrinks = tangent < -neutral_rate || p->least <= log(32 * epsilon(p->steps->dtype));
    c->rate = tangent;
    if (shrinks) return DPCRI_MEMORY_UNKNOWN;
    return tangent > 2 * neutral_rate ? DPCRI_MEMORY_CHAOTIC : DPCRI_MEMORY_KEEPS;
}

static dpcri_memory explore(probe *p, const dpcr_array *z0, double tolerance, int64_t n, dpcri_contraction *c) {
    const dpcri_memory seen = scout(p, z0, tolerance, n, c);
    if (seen != DPCRI_MEMORY_UNKNOWN) return seen;
    *c = (dpcri_contraction){.memory = DPCRI_MEMORY_UNKNOWN};
    p->done = 0;
    set_places(p, n, PLACES);
    set_starts(p, z0, false);
    return follow(p, tolerance, n, c) ? judge(p, z0, tolerance, n, c) : DPCRI_MEMORY_UNKNOWN;
}

// The sequence with most steps of its own, and whoever comes after it.
static int64_t first_row(const dpcr_steps *steps, int64_t rows) {
    int64_t longest = 0;
    for (int64_t b = 1; steps->ends && b < steps->batch; b++)
        if (steps->ends[b] > steps->ends[longest]) longest = b;
    return at_most(longest, steps->batch - rows);
}

dpcri_contraction dpcri_contraction_of(dpcr_context *context, const dpcr_steps *steps, const dpcr_array *z0,
                                       double tolerance, bool bits, int64_t most, dpcri_watch *watch) {
    const double start = dpcri_seconds();
    dpcri_contraction found = {.memory = DPCRI_MEMORY_UNKNOWN};
    if (steps->length < 2 || steps->batch < 1 || most < 1) return found;
    const int64_t n = at_most(most, steps->length), places = places_for(steps, 0, PLACES);
    probe p = {.steps = steps,
               .ops = dpcri_row_ops_of(steps->dtype),
               .watch = watch,
               .bits = bits,
               .rows = steps->batch < ROWS ? steps->batch : ROWS};
    p.row = first_row(steps, p.rows);
    const int64_t shape[3] = {places, p.rows, steps->width};
    bool overflow = false;
    const size_t bytes =
        dpcri_bytes(2 * places * p.rows, steps->width, (int64_t)dpcr_dtype_size(steps->dtype), &overflow);
    char *memory = overflow ? NULL : dpcri_alloc(context, bytes);
    if (!memory) return found;
    p.a = dpcr_array_make(memory, steps->dtype, 3, shape);
    p.b = dpcr_array_make(memory + bytes / 2, steps->dtype, 3, shape);
    found.memory = explore(&p, z0, tolerance, n, &found);
    found.evaluations = p.evaluations;
    found.code = p.code;
    found.seconds = dpcri_seconds() - start;
    dpcri_free(context, memory);
    return found;
}
