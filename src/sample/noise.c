// SPDX-License-Identifier: MIT
// Noise schedules and the times that samplers visit. Sources: Ho, Jain, Abbeel (arXiv 2006.11239) for the linear
// schedule, Nichol, Dhariwal (2102.09672) for the cosine one, Lin et al. (2305.08891) for the names of the spacings,
// Karras et al. (2206.00364) for theirs. docs/diffusion.md.
#include <float.h>
#include <math.h>
#include <string.h>

#include "sample/sample.h"

static const char *const noise_names[] = {"linear", "cosine"};
static const char *const spacing_names[] = {"leading", "trailing", "linspace", "karras"};
static const char *const prediction_names[] = {"epsilon", "x0", "v"};
static const char *const sampler_names[] = {"ddpm", "ddim", "dpm-solver++", "euler", "heun"};
static_assert(sizeof noise_names / sizeof *noise_names == DPCR_NOISE_COUNT, "a name each");
static_assert(sizeof spacing_names / sizeof *spacing_names == DPCR_SPACING_COUNT, "a name each");
static_assert(sizeof prediction_names / sizeof *prediction_names == DPCR_PREDICTION_COUNT, "a name each");
static_assert(sizeof sampler_names / sizeof *sampler_names == DPCR_SAMPLER_COUNT, "a name each");

static const char *name_of(const char *const *names, int count, int index) {
    return index >= 0 && index < count ? names[index] : "unknown";
}

static dpcr_status find(const char *const *names, int count, const char *what, const char *name, int *index,
                        dpcr_error *error) {
    char wanted[96] = "";
    for (int i = 0; i < count; i++) {
        if (name && index && !strcmp(name, names[i])) {
            *index = i;
            return DPCR_OK;
        }
        if (i) strcat(wanted, i + 1 < count ? ", " : " or ");
        strcat(wanted, names[i]);
    }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s is \"%s\", wanted %s", what, name ? name : "", wanted);
}

const char *dpcr_noise_name(dpcr_noise_kind kind) { return name_of(noise_names, DPCR_NOISE_COUNT, (int)kind); }
const char *dpcr_spacing_name(dpcr_spacing s) { return name_of(spacing_names, DPCR_SPACING_COUNT, (int)s); }
const char *dpcr_prediction_name(dpcr_prediction p) { return name_of(prediction_names, DPCR_PREDICTION_COUNT, (int)p); }
const char *dpcr_sampler_name(dpcr_sampler_kind k) { return name_of(sampler_names, DPCR_SAMPLER_COUNT, (int)k); }

dpcr_status dpcr_noise_find(const char *name, dpcr_noise_kind *kind, dpcr_error *error) {
    int index = 0;
    const dpcr_status status = find(noise_names, DPCR_NOISE_COUNT, "noise schedule", name, kind ? &index : NULL, error);
    if (status == DPCR_OK) *kind = (dpcr_noise_kind)index;
    return status;
}

dpcr_status dpcr_spacing_find(const char *name, dpcr_spacing *spacing, dpcr_error *error) {
    int index = 0;
    const dpcr_status status = find(spacing_names, DPCR_SPACING_COUNT, "spacing", name, spacing ? &index : NULL, error);
    if (status == DPCR_OK) *spacing = (dpcr_spacing)index;
    return status;
}

dpcr_status dpcr_prediction_find(const char *name, dpcr_prediction *prediction, dpcr_error *error) {
    int index = 0;
    const dpcr_status status =
        find(prediction_names, DPCR_PREDICTION_COUNT, "prediction", name, prediction ? &index : NULL, error);
    if (status == DPCR_OK) *prediction = (dpcr_prediction)index;
    return status;
}

dpcr_status dpcr_sampler_find(const char *name, dpcr_sampler_kind *kind, dpcr_error *error) {
    int index = 0;
    const dpcr_status status = find(sampler_names, DPCR_SAMPLER_COUNT, "sampler", name, kind ? &index : NULL, error);
    if (status == DPCR_OK) *kind = (dpcr_sampler_kind)index;
    return status;
}

static double cosine_abar(double part) {
    const double c = cos((part + 0.008) / 1.008 * 1.57079632679489661923);
    return c * c;
}

static double beta_at(const dpcr_noise_options *o, int64_t t) {
    const double T = (double)o->steps;
    if (o->kind == DPCR_NOISE_COSINE)
        return fmin(1 - cosine_abar(((double)t + 1) / T) / cosine_abar((double)t / T), 0.999);
    return o->steps > 1 ? o->beta_first + (o->beta_last - o->beta_first) * (double)t / (T - 1) : o->beta_first;
}

void dpcri_noise_fill(const dpcr_noise_options *filled, double *beta, double *abar) {
    double product = 1;
    for (int64_t t = 0; t < filled->steps; t++) {
        const double b = beta_at(filled, t);
        product *= 1 - b;
        if (beta) beta[t] = b;
        if (abar) abar[t] = product;
    }
}

// Samplers divide by sigma of the first time and by alpha of the last.
static bool stays_inside(const dpcr_noise_options *filled) {
    double least = 1;
    for (int64_t t = 0; t < filled->steps; t++) least *= 1 - beta_at(filled, t);
    return beta_at(filled, 0) > DBL_EPSILON && least >= DBL_MIN;
}

dpcr_status dpcri_noise_options_fill(const dpcr_noise_options *options, dpcr_noise_options *filled, dpcr_error *error) {
    *filled = *options;
    filled->size = sizeof *filled;
    const dpcr_status room = dpcri_check_reserved("noise schedule", filled->reserved, sizeof filled->reserved, error);
    if (room != DPCR_OK) return room;
    if (filled->steps == 0) filled->steps = 1000;
    if (filled->beta_first == 0) filled->beta_first = 1e-4;
    if (filled->beta_last == 0) filled->beta_last = 0.02;
    if ((unsigned)filled->kind >= DPCR_NOISE_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "noise schedule: kind is %d, wanted a named one",
                          (int)filled->kind);
    if (filled->steps < 1 || filled->steps > DPCRI_MOST_TIMES)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "noise schedule: %lld steps, wanted 1 to %d",
                          (long long)filled->steps, DPCRI_MOST_TIMES);
    if (!(filled->beta_first > 0 && filled->beta_first <= filled->beta_last && filled->beta_last < 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "noise schedule: beta from %g to %g, wanted 0 < beta_first <= beta_last < 1",
                          filled->beta_first, filled->beta_last);
    if (!stays_inside(filled))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "noise schedule: beta from %g to %g in %lld steps, wanted more than 2.3e-16 at first, and a "
                          "product of 1 - beta of 2.3e-308 or more",
                          filled->beta_first, filled->beta_last, (long long)filled->steps);
    return DPCR_OK;
}

static dpcr_status take_options(const char *call, const dpcr_noise_options *options, dpcr_noise_options *filled,
                                dpcr_error *error) {
    dpcr_noise_options given = {0};
    if (options->size < offsetof(dpcr_noise_options, steps))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the noise's size is %zu, wanted sizeof(dpcr_noise_options)",
                          call, options->size);
    DPCRI_COPY_IN(given, options);
    return dpcri_noise_options_fill(&given, filled, error);
}

dpcr_status dpcr_noise_fill(const dpcr_noise_options *options, double *beta, double *abar, dpcr_error *error) {
    dpcr_noise_options filled;
    if (!options) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "noise_fill: options is NULL");
    const dpcr_status status = take_options("noise_fill", options, &filled, error);
    if (status == DPCR_OK) dpcri_noise_fill(&filled, beta, abar);
    return status;
}

// ---- times ----

double dpcri_log_ratio(const dpcr_noise_options *noise, const double *abar, double time) {
    const int64_t last = noise->steps - 1;
    int64_t t = (int64_t)time;
    t = t < 0 ? 0 : t > last ? last : t;
    const double here = 0.5 * log((1 - abar[t]) / abar[t]);
    const double part = time - (double)t;
    if (part <= 0 || t == last) return here;
    return here + part * (0.5 * log((1 - abar[t + 1]) / abar[t + 1]) - here);
}

// The time at which log(sigma / alpha), linear between the trained times, is `wanted`.
static double time_of(const dpcr_noise_options *noise, const double *abar, double wanted) {
    int64_t low = 0, high = noise->steps - 1;
    if (wanted <= dpcri_log_ratio(noise, abar, 0)) return 0;
    if (wanted >= dpcri_log_ratio(noise, abar, (double)high)) return (double)high;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (dpcri_log_ratio(noise, abar, (double)middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    const double a = dpcri_log_ratio(noise, abar, (double)low), b = dpcri_log_ratio(noise, abar, (double)high);
    return (double)low + (wanted - a) / (b - a);
}

void dpcri_spacing_fill(dpcr_spacing spacing, const dpcr_noise_options *noise, const double *abar, int64_t steps,
                        double *times) {
    const int64_t T = noise->steps;
    const double last = (double)(T - 1), parts = steps > 1 ? (double)(steps - 1) : 1;
    const double high = exp(dpcri_log_ratio(noise, abar, last) / 7), low = exp(dpcri_log_ratio(noise, abar, 0) / 7);
    for (int64_t i = 0; i < steps; i++) {
        switch (spacing) {
            case DPCR_SPACING_TRAILING: times[i] = rint((double)T - (double)i * (double)T / (double)steps) - 1; break;
            case DPCR_SPACING_LINSPACE: times[i] = steps > 1 ? rint(last * (double)(steps - 1 - i) / parts) : 0; break;
            case DPCR_SPACING_KARRAS:
                times[i] = i == 0           ? last
                           : i == steps - 1 ? 0
                                            : time_of(noise, abar, 7 * log(high + (double)i / parts * (low - high)));
                break;
            default: times[i] = (double)((steps - 1 - i) * (T / steps));
        }
    }
}

dpcr_status dpcr_spacing_fill(dpcr_spacing spacing, const dpcr_noise_options *noise, int64_t steps, double *times,
                              dpcr_error *error) {
    dpcr_noise_options filled;
    double abar[DPCRI_MOST_TIMES];
    if (!noise || !times) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "spacing_fill: noise or times is NULL");
    const dpcr_status status = take_options("spacing_fill", noise, &filled, error);
    if (status != DPCR_OK) return status;
    if ((unsigned)spacing >= DPCR_SPACING_COUNT || steps < 1 || steps > filled.steps)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "spacing_fill: spacing %d with %lld steps, wanted a named one with 1 to %lld", (int)spacing,
                          (long long)steps, (long long)filled.steps);
    dpcri_noise_fill(&filled, NULL, abar);
    dpcri_spacing_fill(spacing, &filled, abar, steps, times);
    return DPCR_OK;
}
