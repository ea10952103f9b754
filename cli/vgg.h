// SPDX-License-Identifier: MIT
// What 'train vgg11' and 'eval' of its models share: images in batches, and files.
#ifndef DEEPPCR_CLI_VGG_H
#define DEEPPCR_CLI_VGG_H

#include "convnet.h"

// Of the training images, over all pixels; the network takes (pixel - mean) / deviation.
typedef struct vgg_scale {
    double mean, deviation;
} vgg_scale;
vgg_scale vgg_measure(const dpcr_dataset *images);
// Image `index` into row b of the batch, in the middle of 32 x 32, black around it; its label.
void vgg_put_image(convnet *net, const dpcr_dataset *images, vgg_scale scale, int64_t index, int64_t b);

// A string of a model's file.
typedef struct vgg_note {
    const char *key;
    char value[40];
} vgg_note;
enum { VGG_MOST_NOTES = 48 };
typedef struct vgg_notes {
    vgg_note items[VGG_MOST_NOTES];
    int count;
} vgg_notes;
void vgg_note_int(vgg_notes *notes, const char *key, int64_t value);
void vgg_note_real(vgg_notes *notes, const char *key, double value);
void vgg_note_text(vgg_notes *notes, const char *key, const char *value);

// Writes the network, weights that are not kept as zeros beside lists of those that are, the notes, and, where there is
// one, the optimiser's state. Names are torchvision's of a VGG-11. Atomic. Returns the exit code.
int vgg_save(const char *path, const convnet *net, dpcr_optimiser *optimiser, const vgg_notes *notes);

bool vgg_is(const dpcr_tensors *file);  // a VGG-11's?
// Numbers among its strings, else told, exit code 5.
int vgg_get_int(const dpcr_tensors *file, const char *path, const char *key, int64_t low, int64_t high, int64_t *value);
int vgg_get_real(const dpcr_tensors *file, const char *path, const char *key, double *value);
// The file's network, as far as it was trained; `forward_only`: nothing for going back is planned.
int vgg_load(dpcr_context *context, const dpcr_tensors *file, const char *path, int64_t batch, int levels,
             bool forward_only, convnet *net);
// The optimiser's state, after `updates`.
int vgg_load_optimiser(const dpcr_tensors *file, const char *path, int64_t updates, dpcr_optimiser *optimiser);

// eval of a model; `split` is test or t10k's name as cli_data_read takes it. batch: images at once.
int vgg_eval(dpcr_context *context, const cli_common *common, const char *path, const char *data, const char *split,
             int64_t batch, int64_t limit);

#endif
