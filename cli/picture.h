// SPDX-License-Identifier: MIT
// Pictures out of numbers.
#ifndef DEEPPCR_PICTURE_H
#define DEEPPCR_PICTURE_H

#include "cli.h"

// Does a PNG fit its name, which ends in .png or has no ending? False: it said so.
bool cli_png_name(const char *option, const char *path);
bool cli_png_served(void);  // whether this build has libpng
// Grey, or channels 3: red, green, blue of each pixel together.
int cli_png_write(const char *path, int64_t width, int64_t height, int64_t channels, const uint8_t *pixels);
// The pixels of a PNG, grey or, channels 3, its planes one after another, as 0..1. Returns the exit code.
int cli_png_read(const char *path, int64_t rows, int64_t cols, int64_t channels, float *pixels);
// `count` pictures [channels][rows][cols] of 0..1, so many a line; channels 1 or 3. Returns the exit code.
int cli_png_grid(const char *path, int64_t columns, int64_t count, int64_t rows, int64_t cols, int64_t channels,
                 const float *pictures);
// Whether such a grid is not too large; CLI_DONE, or told, with the exit code.
int cli_png_grid_fits(const char *path, int64_t columns, int64_t count, int64_t rows, int64_t cols);

#endif
