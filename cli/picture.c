// SPDX-License-Identifier: MIT
// Pictures as PNG (libpng): pictures of 0..1 side by side.
#include <math.h>
#include <string.h>
#include <strings.h>

#include "picture.h"

#ifdef DEEPPCR_PNG
#include <png.h>

int cli_png_write(const char *path, int64_t width, int64_t height, int64_t channels, const uint8_t *pixels) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY};
    png_alloc_size_t bytes = 0;
    void *file = NULL;
    int status = CLI_DONE;
    if (!png_image_write_to_memory(&image, NULL, &bytes, 0, pixels, 0, NULL) || !(file = cli_allocate(bytes)) ||
        !png_image_write_to_memory(&image, file, &bytes, 0, pixels, 0, NULL))
        status = cli_fail(CLI_RESOURCES, "cannot make the picture '%s': %s", path,
                          image.message[0] ? image.message : "no memory");
    if (!status) status = cli_write_file(path, file, bytes);
    cli_release(file);
    return status;
}

int cli_png_read(const char *path, int64_t rows, int64_t cols, int64_t channels, float *pixels) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_file(&image, path))
        return cli_fail(CLI_INPUT, "cannot read the picture '%s': %s", path, image.message);
    if (image.width != (png_uint_32)cols || image.height != (png_uint_32)rows) {
        png_image_free(&image);
        return cli_fail(CLI_INPUT, "'%s' is %u x %u, wanted %lld x %lld as the model's pictures", path, image.height,
                        image.width, (long long)rows, (long long)cols);
    }
    image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
    uint8_t *bytes = cli_allocate((size_t)(rows * cols * channels));
    int status = bytes ? CLI_DONE : cli_fail_memory("the picture");
    const png_color black = {0, 0, 0};
    if (!status && !png_image_finish_read(&image, &black, bytes, 0, NULL))
        status = cli_fail(CLI_INPUT, "cannot read the picture '%s': %s", path, image.message);
    png_image_free(&image);
    for (int64_t i = 0; !status && i < rows * cols * channels; i++)
        pixels[i % channels * rows * cols + i / channels] = (float)bytes[i] / 255.0F;
    cli_release(bytes);
    return status;
}

bool cli_png_served(void) { return true; }
#else
int cli_png_read(const char *path, int64_t rows, int64_t cols, int64_t channels, float *pixels) {
    (void)rows, (void)cols, (void)channels, (void)pixels;
    return cli_fail(CLI_USAGE, "cannot read '%s': this build has no libpng (Debian package libpng-dev); npy is read",
                    path);
}

int cli_png_write(const char *path, int64_t width, int64_t height, int64_t channels, const uint8_t *pixels) {
    (void)width, (void)height, (void)channels, (void)pixels;
    return cli_fail(CLI_USAGE,
                    "cannot write '%s': this build has no libpng (Debian package libpng-dev); --samples "
                    "writes npy",
                    path);
}

bool cli_png_served(void) { return false; }
#endif

bool cli_png_name(const char *option, const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
    const char *end = name && *name ? strrchr(name + 1, '.') : NULL;  // a leading dot is no ending's
    if (!end || !strcasecmp(end, ".png")) return true;
    cli_fail(CLI_USAGE, "%s '%s': what is written is PNG, wanted a name that does not end in %s", option, path, end);
    return false;
}

static uint8_t byte_of(float x) { return (uint8_t)lrintf(255 * (x > 0 ? x < 1 ? x : 1 : 0)); }

enum { GAP = 2, SCALE = 2, MOST = 1 << 26 };

int cli_png_grid_fits(const char *path, int64_t columns, int64_t count, int64_t rows, int64_t cols) {
    const int64_t lines = (count + columns - 1) / columns;
    const int64_t width = columns * (cols * SCALE + GAP) + GAP, height = lines * (rows * SCALE + GAP) + GAP;
    if (width <= MOST / height) return CLI_DONE;
    return cli_fail(CLI_USAGE, "a picture of %lld x %lld pixels is more than '%s' is to be; fewer of --count",
                    (long long)width, (long long)height, path);
}

int cli_png_grid(const char *path, int64_t columns, int64_t count, int64_t rows, int64_t cols, int64_t channels,
                 const float *pictures) {
    const int64_t lines = (count + columns - 1) / columns, cell_w = cols * SCALE + GAP, cell_h = rows * SCALE + GAP;
    const int64_t width = columns * cell_w + GAP, height = lines * cell_h + GAP, C = channels == 3 ? 3 : 1;
    const int fits = cli_png_grid_fits(path, columns, count, rows, cols);
    if (fits) return fits;
    uint8_t *pixels = cli_allocate((size_t)(width * height * C));
    if (!pixels) return cli_fail_memory("the picture");
    memset(pixels, 48, (size_t)(width * height * C));
    for (int64_t n = 0; n < count; n++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t y = 0; y < rows * SCALE; y++)
                for (int64_t x = 0; x < cols * SCALE; x++) {
                    const float value = pictures[((n * channels + c) * rows + y / SCALE) * cols + x / SCALE];
                    const int64_t at = (GAP + n / columns * cell_h + y) * width + GAP + n % columns * cell_w + x;
                    pixels[at * C + c] = byte_of(value);
                }
    const int status = cli_png_write(path, width, height, C, pixels);
    cli_release(pixels);
    return status;
}
