// SPDX-License-Identifier: MIT
// Of dpcr_steps_check: does f have the kinks that it says? As two states come closer J of a smooth f changes less and
// less between them, and beside a kink it jumps; J of an f that is affine between its kinks changes nowhere else.
#include <float.h>
#include <math.h>

#include "solve/check.h"

enum {
    CHECKED_SEQUENCES = 8,
    DIRECTIONS = 4,
    // How often a way is halved to find a jump, and what is halved so often that hardly a unit turns on it, but is more
    // than the states' roundings.
    HALVINGS_DOUBLE = 40,
    HALVINGS_FLOAT = 20,
    NEAR_DOUBLE = 21,
    NEAR_FLOAT = 12
};

// What is left of J's change along a way when that is halved so often: of one unit of hundreds more than this part, of
// a smooth f less; and beyond J's own rounding.
#define JUMP_PART 0x1p-10
#define JUMP_ROUNDINGS 256

typedef struct look {
    const dpcr_steps *steps;
    const dpcri_trajectory *t;
    int64_t step, sequence;
    int direction;
    double reach;  // how far a whole way leads
    dpcr_array x, f, j[3];
} look;

// J where this part of the way is gone. false: not for such a state, or not finite.
static bool linearise_at(const look *k, double part, const dpcr_array *j) {
    const dpcr_array in = dpcri_inputs(k->t, k->step, 1, k->sequence, 1);
    const dpcr_span span = dpcri_span(k->step, 1, 1, 1, k->sequence, 1);
    for (int64_t i = 0; i < k->steps->width; i++) {
        const double wave = sin(1.3 * (double)i + 0.7 * (double)k->sequence + 0.3 * (double)k->step + 2 * k->direction);
        dpcri_set_number(&k->x, 0, 0, i, dpcri_number(&in, 0, 0, i) + part * k->reach * wave);
    }
    if (k->steps->linearise(k->steps->user, &span, &k->x, &k->f, j) != 0) return false;
    for (int64_t i = 0; i < j->shape[2]; i++)
        if (!isfinite(dpcri_number(j, 0, 0, i))) return false;
    return true;
}

static double change(const dpcr_array *a, const dpcr_array *b) {
    double most = 0;
    for (int64_t i = 0; i < a->shape[2]; i++)
        most = fmax(most, fabs(dpcri_number(a, 0, 0, i) - dpcri_number(b, 0, 0, i)));
    return most;
}

static double largest(const dpcr_array *a) {
    double most = 0;
    for (int64_t i = 0; i < a->shape[2]; i++) most = fmax(most, fabs(dpcri_number(a, 0, 0, i)));
    return most;
}

// Does J jump on this way? It is halved, towards where J changes more.
static bool jumps(const look *k) {
    const bool is_double = k->steps->dtype == DPCR_F64;
    dpcr_array low = k->j[0], high = k->j[1], middle = k->j[2];
    double from = 0, to = 1;
    if (!linearise_at(k, from, &low) || !linearise_at(k, to, &high)) return false;
    const double roundings = JUMP_ROUNDINGS * (is_double ? DBL_EPSILON : FLT_EPSILON);
    double here = change(&low, &high), most = here;
    const double rounding = roundings * fmax(largest(&low), largest(&high));
    for (int n = 0; n < (is_double ? HALVINGS_DOUBLE : HALVINGS_FLOAT); n++) {
        const double at = (from + to) / 2;
        if (!(here > rounding) || !linearise_at(k, at, &middle)) return false;
        const double first = change(&low, &middle), second = change(&middle, &high);
        const dpcr_array left = first >= second ? high : low;
        if (first >= second)
            high = middle, to = at;
        else
            low = middle, from = at;
        middle = left;
        here = fmax(first, second);
        most = fmax(most, here);
    }
    return here > fmax(JUMP_PART * most, rounding);
}

// Does J change beside a state, and by another amount half as far from it? A unit that turns leaves the same or
// nothing.
static bool bends(const look *k) {
    const double near = ldexp(1, -(k->steps->dtype == DPCR_F64 ? NEAR_DOUBLE : NEAR_FLOAT));
    if (!linearise_at(k, 0, &k->j[0]) || !linearise_at(k, near, &k->j[1]) || !linearise_at(k, near / 2, &k->j[2]))
        return false;
    const double half = change(&k->j[0], &k->j[2]);
    return half != 0 && half != change(&k->j[0], &k->j[1]);
}

static dpcr_status look_around(look *k, dpcr_error *error) {
    const dpcr_steps *steps = k->steps;
    const dpcr_kinks said = steps->kinks;
    int64_t ways = 0, bent = 0;
    for (k->step = 0; k->step < k->t->z.shape[0]; k->step++)
        for (k->sequence = 0; k->sequence < steps->batch && k->sequence < CHECKED_SEQUENCES; k->sequence++) {
            const dpcr_array in = dpcri_inputs(k->t, k->step, 1, k->sequence, 1);
            k->reach = 2 * fmax(1, largest(&in));
            for (k->direction = 0; k->direction < DIRECTIONS; k->direction++) {
                if (said == DPCR_KINKS_NONE && jumps(k))
                    return dpcri_fail(
                        error, DPCR_ERROR_CALLBACK,
                        "steps_check: steps.kinks says none, but the Jacobian of step %lld, sequence %lld, "
                        "jumps: wanted DPCR_KINKS_AFFINE or DPCR_KINKS_CURVED",
                        (long long)k->step, (long long)k->sequence);
                ways++;
                if (said == DPCR_KINKS_AFFINE) bent += bends(k);
            }
        }
    if (bent > ways / 4)
        return dpcri_fail(
            error, DPCR_ERROR_CALLBACK,
            "steps_check: steps.kinks says affine, but the Jacobian changes between kinks too, beside %lld "
            "of %lld states: wanted DPCR_KINKS_CURVED",
            (long long)bent, (long long)ways);
    return DPCR_OK;
}

dpcr_status dpcri_check_kinks(dpcr_context *context, const dpcr_steps *steps, const dpcri_trajectory *t,
                              dpcr_error *error) {
    // Of a program that was built before there was such a field nothing is known, and what bends may jump too.
    if (steps->size <= offsetof(dpcr_steps, kinks) || steps->kinks == DPCR_KINKS_CURVED) return DPCR_OK;
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t values = dpcr_transition_values(&steps->jacobian);
    const int64_t state[3] = {1, 1, steps->width}, jacobian[3] = {1, 1, values};
    look k = {.steps = steps, .t = t};
    // Sizes of one row: those of all rows were found to fit.
    char *memory = dpcri_alloc_zero(context, (size_t)(2 * steps->width + 3 * values) * real);
    if (!memory) return dpcri_fail(error, DPCR_ERROR_MEMORY, "steps_check: no memory for Jacobians");
    k.x = dpcr_array_make(memory, steps->dtype, 3, state);
    k.f = dpcr_array_make(memory + (size_t)steps->width * real, steps->dtype, 3, state);
    for (int64_t i = 0; i < 3; i++)
        k.j[i] = dpcr_array_make(memory + (size_t)(2 * steps->width + i * values) * real, steps->dtype, 3, jacobian);
    const dpcr_status status = look_around(&k, error);
    dpcri_free(context, memory);
    return status;
}
