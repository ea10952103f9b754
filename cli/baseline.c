// SPDX-License-Identifier: MIT
// Multinomial logistic regression on mean features: Adam over all recordings at once until the gradient is small. The
// means are standardised, so that the convex problem is well conditioned.
#include <math.h>
#include <stdlib.h>

#include "recordings.h"

enum { MOST_UPDATES = 3000 };

typedef struct regression {
    const cli_recordings *r;
    int64_t inputs;  // and one more, always 1
    double *x[2];    // [recordings][inputs + 1]
    double *w, *g;   // [classes][inputs + 1]
    double *p;       // [classes]
} regression;

static double *means(const cli_recordings *r, const cli_part *part) {
    const int64_t n = r->width + 1;
    double *x = calloc((size_t)(part->count * n), sizeof *x);
    for (int64_t i = 0; x && i < part->count; i++) {
        for (int64_t t = 0; t < part->length[i]; t++)
            for (int64_t j = 0; j < r->width; j++)
                x[i * n + j] += r->rows[(part->first[i] + t) * r->width + j] / (double)part->length[i];
        x[i * n + r->width] = 1;
    }
    return x;
}

static void standardise(regression *l) {
    const int64_t n = l->inputs + 1, count = l->r->part[0].count;
    for (int64_t j = 0; j < l->inputs; j++) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < count; i++) mean += l->x[0][i * n + j] / (double)count;
        for (int64_t i = 0; i < count; i++) square += pow(l->x[0][i * n + j] - mean, 2) / (double)count;
        const double deviation = cli_deviation(mean, square);
        for (int p = 0; p < 2; p++)
            for (int64_t i = 0; i < l->r->part[p].count; i++)
                l->x[p][i * n + j] = (l->x[p][i * n + j] - mean) / deviation;
    }
}

// Loss, and its gradient where asked; *accuracy over the part.
static double evaluate(regression *l, int which, bool gradient, double *accuracy) {
    const cli_part *part = &l->r->part[which];
    const int64_t n = l->inputs + 1, C = l->r->classes;
    double loss = 0;
    int64_t right = 0;
    for (int64_t i = 0; gradient && i < C * n; i++) l->g[i] = 0;
    for (int64_t i = 0; i < part->count; i++) {
        const double *x = l->x[which] + i * n;
        double most = -HUGE_VAL, sum = 0;
        int64_t best = 0;
        for (int64_t c = 0; c < C; c++) {
            double z = 0;
            for (int64_t j = 0; j < n; j++) z += l->w[c * n + j] * x[j];
            l->p[c] = z;
            if (z > most) most = z, best = c;
        }
        for (int64_t c = 0; c < C; c++) sum += exp(l->p[c] - most);  // 1 or more: the largest gives 1
        loss += (most + log(fmax(sum, 1)) - l->p[part->label[i]]) / (double)part->count;
        right += best == part->label[i];
        for (int64_t c = 0; gradient && c < C; c++) {
            const double d = (exp(l->p[c] - most) / sum - (c == part->label[i])) / (double)part->count;
            for (int64_t j = 0; j < n; j++) l->g[c * n + j] += d * x[j];
        }
    }
    *accuracy = (double)right / (double)part->count;
    return loss;
}

static int fit(dpcr_context *context, regression *l, cli_baseline *b) {
    const int64_t count = l->r->classes * (l->inputs + 1);
    const dpcr_optimiser_options options = {
        .size = sizeof options, .kind = DPCR_ADAM, .rate = 0.1, .total = MOST_UPDATES};
    dpcr_optimiser *optimiser = NULL;
    dpcr_error error = {0};
    int status = CLI_DONE;
    if (dpcr_optimiser_create(context, &options, DPCR_F64, count, &optimiser, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    for (int64_t k = 0; !status && k < MOST_UPDATES; k++) {
        double steepest = 0;
        b->loss = evaluate(l, 0, true, &b->train_accuracy);
        for (int64_t i = 0; i < count; i++) steepest = fmax(steepest, fabs(l->g[i]));
        if (steepest < 1e-5) break;
        if (dpcr_optimiser_step(optimiser, l->w, l->g, &error) != DPCR_OK)
            status = cli_fail_error(&error, CLI_COMPUTING);
        if (cli_signal()) status = cli_fail_stopped();
    }
    dpcr_optimiser_destroy(optimiser);
    if (!status) b->loss = evaluate(l, 0, false, &b->train_accuracy);
    if (!status) evaluate(l, 1, false, &b->test_accuracy);
    return status;
}

int cli_baseline_of(dpcr_context *context, const cli_recordings *r, cli_baseline *b) {
    regression l = {.r = r, .inputs = r->width, .x = {means(r, &r->part[0]), means(r, &r->part[1])}};
    const size_t count = (size_t)(r->classes * (r->width + 1));
    l.w = calloc(count, sizeof *l.w);
    l.g = calloc(count, sizeof *l.g);
    l.p = calloc((size_t)r->classes, sizeof *l.p);
    int status = CLI_DONE;
    if (!l.x[0] || !l.x[1] || !l.w || !l.g || !l.p)
        status = cli_fail_memory("the logistic regression");
    else {
        standardise(&l);
        status = fit(context, &l, b);
    }
    free(l.x[0]), free(l.x[1]), free(l.w), free(l.g), free(l.p);
    return status;
}
