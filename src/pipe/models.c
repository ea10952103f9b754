// SPDX-License-Identifier: MIT
// Profiles from the shapes of published networks (224 x 224 images, 1000 classes, float32, one image): a layer is a
// convolution or a fully connected layer with
//     multiply-adds = out_height out_width out_channels kernel^2 in_channels / groups
// for F, the same for I (none for the first layer, whose input needs no gradient) and for W. Pooling, activations and
// normalisation count nothing; a pooling layer halves what its layer hands on. A ResNet block's shortcut convolution
// runs with the block's last layer.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipe/profile.h"

typedef struct layer {
    int kernel, in, out, side, groups;  // side: of the result; kernel 0: fully connected
    int pooled;                         // side of what it hands on
    int shortcut;                       // channels that a 1 x 1 convolution beside the block reads; 0: none
} layer;

static const layer vgg16[] = {{3, 3, 64, 224, 1, 224, 0},   {3, 64, 64, 224, 1, 112, 0},  {3, 64, 128, 112, 1, 112, 0},
                              {3, 128, 128, 112, 1, 56, 0}, {3, 128, 256, 56, 1, 56, 0},  {3, 256, 256, 56, 1, 56, 0},
                              {3, 256, 256, 56, 1, 28, 0},  {3, 256, 512, 28, 1, 28, 0},  {3, 512, 512, 28, 1, 28, 0},
                              {3, 512, 512, 28, 1, 14, 0},  {3, 512, 512, 14, 1, 14, 0},  {3, 512, 512, 14, 1, 14, 0},
                              {3, 512, 512, 14, 1, 7, 0},   {0, 25088, 4096, 1, 1, 1, 0}, {0, 4096, 4096, 1, 1, 1, 0},
                              {0, 4096, 1000, 1, 1, 1, 0}};

static const layer alexnet[] = {{11, 3, 64, 55, 1, 27, 0},   {5, 64, 192, 27, 1, 13, 0}, {3, 192, 384, 13, 1, 13, 0},
                                {3, 384, 256, 13, 1, 13, 0}, {3, 256, 256, 13, 1, 6, 0}, {0, 9216, 4096, 1, 1, 1, 0},
                                {0, 4096, 4096, 1, 1, 1, 0}, {0, 4096, 1000, 1, 1, 1, 0}};

static double multiply_adds(const layer *l) {
    const double pixels = (double)l->side * l->side, taps = l->kernel ? (double)l->kernel * l->kernel : 1;
    return pixels * l->out * (taps * l->in / l->groups + l->shortcut);
}

static void put(dpcr_profile *profile, int64_t at, const layer *l) {
    const double taps = l->kernel ? (double)l->kernel * l->kernel : 1, millions = multiply_adds(l) / 1e6;
    profile->forward[at] = profile->weight[at] = millions;
    profile->input[at] = at ? millions : 0;
    profile->activation_bytes[at] = 4.0 * l->pooled * l->pooled * l->out;
    profile->parameter_bytes[at] = 4.0 * l->out * (taps * l->in / l->groups + l->shortcut + 1);
}

static dpcr_status put_all(dpcr_context *context, const layer *layers, int64_t count, dpcr_profile *profile,
                           dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(dpcri_profile_alloc(context, count, profile, error));
    for (int64_t l = 0; l < count; l++) {
        char name[64];
        snprintf(name, sizeof name, "%s%lld %dx%d", layers[l].kernel ? "conv" : "fc", (long long)l + 1, layers[l].in,
                 layers[l].out);
        put(profile, l, &layers[l]);
        DPCR_TRY(dpcri_profile_set_name(context, profile, l, name, error));
    }
done:
    return status;
}

// Four groups of blocks; a block is two 3 x 3 layers, or 1 x 1, 3 x 3 and 1 x 1 to four times the width.
static dpcr_status put_resnet(dpcr_context *context, const int *blocks, bool bottleneck, dpcr_profile *profile,
                              dpcr_error *error) {
    layer layers[64] = {{7, 3, 64, 112, 1, 56, 0}};
    int count = 1, in = 64;
    for (int group = 0; group < 4; group++) {
        const int width = 64 << group, out = bottleneck ? 4 * width : width, side = 56 >> group;
        for (int b = 0; b < blocks[group]; b++) {
            const int shortcut = in != out || (b == 0 && group > 0) ? in : 0;
            const int before = b == 0 && group > 0 ? 2 * side : side;  // the stride is the 3 x 3 layer's
            if (bottleneck) layers[count++] = (layer){1, in, width, before, 1, before, 0};
            layers[count++] = (layer){3, bottleneck ? width : in, width, side, 1, side, 0};
            layers[count++] = (layer){bottleneck ? 1 : 3, width, out, side, 1, side, shortcut};
            in = out;
        }
    }
    layers[count - 1].pooled = 1;
    layers[count++] = (layer){0, in, 1000, 1, 1, 1, 0};
    return put_all(context, layers, count, profile, error);
}

static dpcr_status put_equal(dpcr_context *context, const char *count, dpcr_profile *profile, dpcr_error *error) {
    char *end;
    const long layers = strtol(count, &end, 10);
    if (*end || end == count || layers < 1 || layers > 100000)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model 'equal-%.20s': wanted 1 to 100000 layers", count);
    dpcr_status status;
    DPCR_TRY(dpcri_profile_alloc(context, layers, profile, error));
    for (int64_t l = 0; l < layers; l++) {
        char name[32];
        snprintf(name, sizeof name, "layer %lld", (long long)l);
        profile->forward[l] = profile->weight[l] = 1;
        profile->input[l] = l > 0;
        profile->activation_bytes[l] = profile->parameter_bytes[l] = 1;
        DPCR_TRY(dpcri_profile_set_name(context, profile, l, name, error));
    }
done:
    return status;
}

dpcr_status dpcr_profile_model(dpcr_context *context, const char *name, dpcr_profile *profile, dpcr_error *error) {
    static const int resnet18[] = {2, 2, 2, 2}, resnet50[] = {3, 4, 6, 3};
    if (profile) *profile = (dpcr_profile){0};
    if (!context || !name || !profile)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "profile_model: context, name or profile is NULL");
    dpcr_status status;
    if (!strcmp(name, "vgg16"))
        status = put_all(context, vgg16, sizeof vgg16 / sizeof *vgg16, profile, error);
    else if (!strcmp(name, "alexnet"))
        status = put_all(context, alexnet, sizeof alexnet / sizeof *alexnet, profile, error);
    else if (!strcmp(name, "resnet18"))
        status = put_resnet(context, resnet18, false, profile, error);
    else if (!strcmp(name, "resnet50"))
        status = put_resnet(context, resnet50, true, profile, error);
    else if (!strncmp(name, "equal-", 6))
        status = put_equal(context, name + 6, profile, error);
    else
        status = dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "no model '%.40s'; there are vgg16, resnet18, resnet50, alexnet, equal-N", name);
    if (status != DPCR_OK) dpcr_profile_free(context, profile);
    return status;
}
