// SPDX-License-Identifier: MIT
// Quality of pictures on the features of a classifier that this project has trained: no FID, whose features are another
// network's.
#ifndef DEEPPCR_FRECHET_H
#define DEEPPCR_FRECHET_H

#include "cli.h"

typedef struct cli_quality {
    double frechet_distance;  // |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of the features
    double precision,
        recall;  // shares that lie within the 3rd-nearest-neighbour balls of the other set (at most 2000 each)
} cli_quality;

// pictures [n][rows cols] of 0..1 against the images of `data`. `classifier`: a file of 'train mlp|resnet'. Returns the
// exit code.
int cli_quality_measure(dpcr_context *context, const char *classifier, const dpcr_dataset *data, int64_t n,
                        const float *pictures, cli_quality *quality);

// What it refuses, before there are pictures.
int cli_quality_check(dpcr_context *context, const char *classifier, const dpcr_dataset *data, int64_t n);

#endif
