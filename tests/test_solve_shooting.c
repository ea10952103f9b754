// SPDX-License-Identifier: MIT
// Shooting on chains that magnify an error inside chunks, and take it back before the next one starts: what boundaries
// are off by is not what states are.
#include <stdbool.h>

#include "solving.h"

enum { PERIOD = 8 };

typedef struct wave {
    double rise, fall;  // gains of a period's halves
    int64_t late;       // not 0: they rise from that step on, and are mild before
    int64_t calm;       // so many sequences fall all the time
} wave;

// sin(g z + f)
static void step_wave(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const wave *p = (const wave *)(const void *)c->parameters;
    const bool first_half = l % PERIOD < PERIOD / 2;
    const double gain = b < p->calm ? 0.5 : p->late ? (l < p->late ? 1.3 : p->rise) : first_half ? p->rise : p->fall;
    for (int64_t i = 0; i < c->width; i++) {
        const double at = gain * in[i] + 0.7 * sin((double)(3 * l + 5 * b + i));
        out[i] = sin(at);
        for (int64_t k = 0; j && k < c->width; k++) j[i * c->width + k] = k == i ? gain * cos(at) : 0;
    }
}

typedef struct found {
    int converged;       // solves that said so
    int given_up;        // that went on in order
    double inside;       // the largest error of a state, over the tolerance, of those
    double at_boundary;  // and of a chunk's last
} found;

static void look(dpcr_context *context, const wave *p, chain *c, int64_t chunk, int64_t window, double tolerance,
                 found *f) {
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SHOOTING,
                                        .chunk = chunk,
                                        .window = window,
                                        .atol = tolerance / 2,
                                        .rtol = tolerance / 2};
    c->step = step_wave, c->dtype = DPCR_F64, c->parameters = (const double *)(const void *)p;
    void *z0 = starts(c);
    double *const loop = loop_of(c, z0);
    solved s = solve(context, c, z0, &options);
    const double *const z = s.z;
    f->given_up += s.report.reason == DPCR_REASON_FALLBACK;
    if (s.report.reason == DPCR_REASON_CONVERGED) {
        double inside = 0;
        for (int64_t i = 0; i < c->length * c->batch * c->width; i++) {
            const double error = fabs(z[i] - loop[i]) / tolerance;
            const bool boundary = (i / (c->batch * c->width) + 1) % chunk == 0;
            if (boundary) f->at_boundary = fmax(f->at_boundary, error);
            inside = fmax(inside, error);
        }
        if (!(inside * tolerance <= 1.5 * s.report.error_estimate + 1e-14))
            fail_msg("%d steps, chunk %d, tolerance %g: off by %g, told %g", (int)c->length, (int)chunk, tolerance,
                     inside * tolerance, s.report.error_estimate);
        f->inside = fmax(f->inside, inside);
        f->converged++;
    }
    solved_free(&s);
    free(loop), free(z0);
}

// Lengths with every remainder, in the window of all and in small ones.
static void inside_chunks_counts(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    found f = {0};
    int solves = 0;
    for (int64_t length = 32; length < 32 + PERIOD; length++)
        for (int kind = 0; kind < 480; kind++) {
            const int64_t chunk = kind % 4 == 3 ? PERIOD / 2 : PERIOD, batch = 1 + kind % 2;
            const wave p = {.rise = 3 + 0.0125 * kind,
                            .fall = 0.1,
                            .late = kind % 5 == 4 ? length / chunk * chunk : 0,
                            .calm = kind % 7 == 6 ? batch - 1 : 0};
            chain c = {.length = length, .batch = batch, .width = 1 + kind % 3};
            const double tolerance = 0.3 * pow(10, -0.5 * (kind % 5));
            look(context, &p, &c, chunk, kind % 6 == 5 ? 3 * PERIOD : 0, tolerance, &f);
            solves++;
        }
    // Else nothing would have been tried.
    if (f.converged < solves / 2 || f.at_boundary > 0.1 * f.inside)
        fail_msg("%d of %d converged, off by %g of the tolerance, at boundaries by %g", f.converged, solves, f.inside,
                 f.at_boundary);
    assert_true(f.inside <= 1);
    dpcr_context_destroy(context);
}

// A window does not lock a boundary for good before the next one's first chunk has said how many times it counts.
static void windows_wait_for_what_follows(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    found f = {0};
    int solves = 0;
    for (int kind = 0; kind < 640; kind++) {
        const wave p = {.rise = 1.5 + 0.005 * kind, .fall = 0.4};
        chain c = {.length = 60 + kind % 7, .batch = 1, .width = 1 + kind % 2};
        look(context, &p, &c, 6, 18, 0.3 * pow(10, -0.5 * (kind % 5)), &f);
        solves++;
    }
    if (f.given_up > 0) fail_msg("%d of %d went on in order, %d converged", f.given_up, solves, f.converged);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inside_chunks_counts),
        cmocka_unit_test(windows_wait_for_what_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
