// SPDX-License-Identifier: MIT
// Denoising steps as coefficients of x, x0, e, the former x0 and the noise. With s = sigma / alpha:
//
//   DDIM    v = (1 - abar') / (1 - abar) (1 - abar / abar')
//           x' = alpha' x0 + sqrt(sigma'^2 - eta^2 v) e + eta sqrt(v) xi
//   DDPM    a = abar / abar';   x' = alpha' (1 - a) / (1 - abar) x0 + sqrt(a) (1 - abar') / (1 - abar) x + sqrt(v) xi
//   DPM-Solver++ (2M)   lambda = -log s, h = lambda' - lambda, r = h_former / h
//           x' = sigma' / sigma x - alpha' (e^-h - 1) D,   D = (1 + 1/(2r)) x0 - 1/(2r) x0_former, at first and to
//           sigma' = 0 x0
//   Euler   d = (x / alpha - x0) / s;   x' = alpha' (x / alpha + (s' - s) d)
//   Heun    x1 by Euler, d1 = (x1 / alpha' - x0(x1)) / s';   x' = alpha' (x / alpha + (s' - s) (d + d1) / 2)
//
// Sources: docs/diffusion.md.
#include <math.h>

#include "sample/sample.h"

dpcri_place dpcri_place_at(const dpcr_noise_options *filled, const double *abar, double time) {
    const int64_t t = (int64_t)time;
    if ((double)t == time) return (dpcri_place){.time = time, .alpha = sqrt(abar[t]), .sigma = sqrt(1 - abar[t])};
    const double s = exp(dpcri_log_ratio(filled, abar, time)), alpha = 1 / sqrt(1 + s * s);
    return (dpcri_place){.time = time, .alpha = alpha, .sigma = s * alpha};
}

dpcri_reading dpcri_reading_make(dpcr_prediction prediction, dpcri_place at) {
    const double a = at.alpha, s = at.sigma;
    switch (prediction) {
        case DPCR_PREDICT_X0: return (dpcri_reading){at.time, 0, 1, 1 / s, -a / s};
        case DPCR_PREDICT_V: return (dpcri_reading){at.time, a, -s, s, a};
        default: return (dpcri_reading){at.time, 1 / a, -s / a, 0, 1};
    }
}

static void set_dpm_solver(dpcri_step *step, dpcri_place at, dpcri_place to, const dpcri_place *before) {
    if (to.sigma == 0) {  // h is infinite: x' = alpha' x0
        step->x0 = to.alpha;
        return;
    }
    const double lambda = log(at.alpha / at.sigma), h = log(to.alpha / to.sigma) - lambda;
    const double d = -to.alpha * expm1(-h);
    const double half = before ? h / (2 * (lambda - log(before->alpha / before->sigma))) : 0;  // 1 / (2 r)
    step->x = to.sigma / at.sigma;
    step->x0 = d * (1 + half);
    step->previous = -d * half;
}

static void set_euler(dpcri_step *step, dpcri_place at, dpcri_place to) {
    const double s = at.sigma / at.alpha, next = to.sigma / to.alpha;
    step->x = to.alpha / at.alpha * next / s;
    step->x0 = to.alpha * (1 - next / s);
}

static void set_heun(dpcri_step *step, dpcr_prediction prediction, dpcri_place at, dpcri_place to) {
    const double s = at.sigma / at.alpha, next = to.sigma / to.alpha, half = (next - s) / 2;
    set_euler(step, at, to);
    if (to.sigma == 0) return;
    step->twice = true;
    step->second = dpcri_reading_make(prediction, to);
    step->then_x = to.alpha / at.alpha * (1 + half / s);
    step->then_x0 = -to.alpha * half / s;
    step->then_x1 = half / next;
    step->then_x01 = -to.alpha * half / next;
}

dpcri_step dpcri_step_make(dpcr_sampler_kind kind, dpcr_prediction prediction, double eta, dpcri_place at,
                           dpcri_place to, const dpcri_place *before) {
    dpcri_step step = {.first = dpcri_reading_make(prediction, at), .alpha = to.alpha, .sigma = to.sigma};
    const double now = at.sigma * at.sigma, next = to.sigma * to.sigma;
    const double a = at.alpha * at.alpha / (to.alpha * to.alpha);
    step.variance = next / now * fmax(1 - a, 0);  // of times that lie within rounding of each other
    switch (kind) {
        case DPCR_SAMPLER_DDIM:
            step.x0 = to.alpha;
            step.e = sqrt(fmax(next - eta * eta * step.variance, 0));
            step.noise = eta * sqrt(step.variance);
            break;
        case DPCR_SAMPLER_DPM_SOLVER: set_dpm_solver(&step, at, to, before); break;
        case DPCR_SAMPLER_EULER: set_euler(&step, at, to); break;
        case DPCR_SAMPLER_HEUN: set_heun(&step, prediction, at, to); break;
        default:
            step.x = sqrt(a) * next / now;
            step.x0 = to.alpha * (1 - a) / now;
            step.noise = sqrt(step.variance);
    }
    return step;
}
