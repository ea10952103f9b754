// SPDX-License-Identifier: MIT
// Auto-encoders of pictures: the encoder gives a normal distribution over codes (mean, log variance), the decoder the
// probability of each pixel. Sampling uses the means, standardised to mean 0 and deviation 1 over the training
// pictures, so that a denoiser finds them at the scale of its noise. Source: Kingma, Welling, arXiv 1312.6114.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sample/networks.h"

static dpcr_status check_options(const dpcr_autoencoder_options *o, dpcr_error *error) {
    const int64_t most = DPCRI_MOST_WIDTH;
    const int64_t channels = o->channels > 0 ? o->channels : 1;
    const bool picture = o->rows >= 1 && o->cols >= 1 && o->rows <= most && o->cols <= most / o->rows &&
                         o->channels >= 0 && channels <= most / (o->rows * o->cols) &&
                         (!o->convolutional || (o->depth >= 0 && o->depth <= 6 && o->hidden <= most >> o->depth));
    if (picture && o->latent >= 1 && o->latent <= most && o->hidden >= 1 && o->hidden <= most && o->depth >= 1 &&
        o->depth <= DPCRI_MOST_DEPTH)
        return DPCR_OK;
    return dpcri_fail(
        error, DPCR_ERROR_ARGUMENT,
        "autoencoder: pictures of %lld x %lld x %lld, latent %lld, hidden %lld, depth %lld; wanted at most "
        "%lld pixels and numbers, depth 1 to %d; of convolutions depth 1 to 6 and hidden times 2^depth at most that",
        (long long)channels, (long long)o->rows, (long long)o->cols, (long long)o->latent, (long long)o->hidden,
        (long long)o->depth, (long long)most, DPCRI_MOST_DEPTH);
}

static void add_layers(dpcr_autoencoder *a) {
    const dpcr_autoencoder_options *o = &a->options;
    char name[24];
    for (int way = 0; way < 2; way++) {
        const char *part = way ? "decoder" : "encoder";
        int64_t in = way ? o->latent : a->pixels;
        for (int64_t i = 0; i < o->depth; i++) {
            snprintf(name, sizeof name, "%s.%d", part, (int)i);
            dpcri_net_add(&a->net, name, in, o->hidden, DPCRI_ACT_SILU, false);
            in = o->hidden;
        }
        snprintf(name, sizeof name, "%s.%d", part, (int)o->depth);
        dpcri_net_add(&a->net, name, in, way ? a->pixels : 2 * o->latent, way ? DPCRI_ACT_SIGMOID : DPCRI_ACT_IDENTITY,
                      false);
        if (!way) a->encoder = a->net.count;
    }
}

// Stage i of the encoder: channels hidden 2^i of half the places of the stage before. The decoder's stages go back.
static dpcr_status add_convolutions(dpcr_autoencoder *a, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_autoencoder_options *o = &a->options;
    int64_t rows[8] = {o->rows}, cols[8] = {o->cols}, channels[8] = {a->channels};
    const int depth = (int)o->depth;
    char name[24];
    for (int i = 0; i < depth; i++) {
        rows[i + 1] = (rows[i] + 1) / 2, cols[i + 1] = (cols[i] + 1) / 2, channels[i + 1] = o->hidden << i;
        snprintf(name, sizeof name, "encoder.%d", i);
        DPCR_TRY(dpcri_conv_add(&a->net, name, false, rows[i], cols[i], channels[i], channels[i + 1], DPCRI_ACT_SILU,
                                error));
    }
    const int64_t inner = rows[depth] * cols[depth] * channels[depth];
    snprintf(name, sizeof name, "encoder.%d", depth);
    dpcri_net_add(&a->net, name, inner, 2 * o->latent, DPCRI_ACT_IDENTITY, false);
    a->encoder = a->net.count;
    dpcri_net_add(&a->net, "decoder.0", o->latent, inner, DPCRI_ACT_SILU, false);
    for (int i = depth - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "decoder.%d", depth - i);
        DPCR_TRY(dpcri_conv_add(&a->net, name, true, rows[i], cols[i], channels[i + 1], channels[i],
                                i ? DPCRI_ACT_SILU : DPCRI_ACT_SIGMOID, error));
    }
done:
    return status;
}

void dpcri_autoencoder_inner(const dpcr_autoencoder *a, const float *planes, float *inner) {
    const int64_t c = a->options.convolutional ? a->channels : 1, places = a->pixels / c;
    for (int64_t i = 0; i < a->pixels; i++) inner[i] = planes[i % c * places + i / c];
}

void dpcri_autoencoder_outer(const dpcr_autoencoder *a, const float *inner, float *planes) {
    const int64_t c = a->options.convolutional ? a->channels : 1, places = a->pixels / c;
    for (int64_t i = 0; i < a->pixels; i++) planes[i % c * places + i / c] = inner[i];
}

static dpcr_status make(dpcr_context *context, const dpcr_autoencoder_options *options, bool drawn,
                        dpcr_autoencoder **autoencoder, dpcr_error *error) {
    dpcr_status status;
    dpcr_autoencoder *a = NULL;
    const uint64_t seed = options->seed + 1;
    DPCR_TRY(check_options(options, error));
    a = dpcri_alloc_zero(context, sizeof *a);
    if (!a) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "autoencoder: no memory"));
    *a = (dpcr_autoencoder){
        .context = context, .options = *options, .channels = options->channels > 0 ? options->channels : 1};
    a->pixels = options->rows * options->cols * a->channels;
    a->options.size = sizeof a->options;
    a->options.channels = a->channels;
    a->net = dpcri_net_make(context);
    if (options->convolutional)
        DPCR_TRY(add_convolutions(a, error));
    else
        add_layers(a);
    int64_t widest = a->pixels > options->latent ? a->pixels : options->latent;
    for (int i = 0; i < a->net.count; i++) {
        const int64_t numbers = dpcri_layer_numbers(&a->net.layers[i]);
        widest = numbers > widest ? numbers : widest;
    }
    a->widest = widest;
    if (options->convolutional) {
        a->scratch = dpcri_alloc_zero(context, (size_t)(2 * dpcri_conv_scratch(&a->net)) * sizeof(float));
        if (!a->scratch) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "autoencoder: no memory for its work"));
    }
    a->mean = dpcri_alloc_zero(context, (size_t)options->latent * sizeof(float));
    a->deviation = dpcri_alloc_zero(context, (size_t)options->latent * sizeof(float));
    for (int i = 0; i < 2; i++)
        a->work[i] = dpcri_alloc_zero(context, (size_t)(DPCRI_NET_ROWS * widest) * sizeof(float));
    if (!a->mean || !a->deviation || !a->work[0] || !a->work[1])
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "autoencoder: no memory for its work"));
    for (int64_t i = 0; i < options->latent; i++) a->deviation[i] = 1;
    DPCR_TRY(dpcri_net_create(&a->net, drawn ? &seed : NULL, error));
    *autoencoder = a;
    a = NULL;
done:
    dpcr_autoencoder_destroy(a);
    return status;
}

dpcr_status dpcr_autoencoder_create(dpcr_context *context, const dpcr_autoencoder_options *options,
                                    dpcr_autoencoder **autoencoder, dpcr_error *error) {
    if (autoencoder) *autoencoder = NULL;
    if (!context || !options || !autoencoder || options->size < sizeof *options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "autoencoder_create: context, options or autoencoder is NULL, or options.size is short");
    return make(context, options, true, autoencoder, error);
}

void dpcr_autoencoder_destroy(dpcr_autoencoder *a) {
    if (!a) return;
    dpcri_net_destroy(&a->net);
    dpcri_free(a->context, a->scratch);
    dpcri_free(a->context, a->mean);
    dpcri_free(a->context, a->deviation);
    for (int i = 0; i < 2; i++) dpcri_free(a->context, a->work[i]);
    dpcri_free(a->context, a);
}

const dpcr_autoencoder_options *dpcr_autoencoder_get_options(const dpcr_autoencoder *a) {
    return a ? &a->options : NULL;
}

// Layers first .. last-1 over rows; where the result lies: one of the work memories.
static const float *run(dpcr_autoencoder *a, int first, int last, int64_t rows, const float *x) {
    for (int i = first; i < last; i++) {
        float *y = a->work[x == a->work[0]];
        dpcri_conv_forward(&a->net, i, rows, x, a->scratch, y, NULL);
        x = y;
    }
    return x;
}

dpcr_status dpcr_autoencoder_encode(dpcr_autoencoder *a, int64_t n, const float *x, float *z, dpcr_error *error) {
    if (!a || n < 0 || (n && (!x || !z)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "autoencoder_encode: autoencoder, x or z is NULL");
    const int64_t latent = a->options.latent;
    for (int64_t i = 0; i < n; i += DPCRI_NET_ROWS) {
        const int64_t rows = n - i < DPCRI_NET_ROWS ? n - i : DPCRI_NET_ROWS;
        const float *from = x + i * a->pixels;
        for (int64_t r = 0; a->options.convolutional && r < rows; r++)
            dpcri_autoencoder_inner(a, from + r * a->pixels, a->work[0] + r * a->pixels);
        const float *y = run(a, 0, a->encoder, rows, a->options.convolutional ? a->work[0] : from);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < latent; k++)
                z[(i + r) * latent + k] = (y[r * 2 * latent + k] - a->mean[k]) / a->deviation[k];
    }
    return DPCR_OK;
}

dpcr_status dpcr_autoencoder_decode(dpcr_autoencoder *a, int64_t n, const float *z, float *x, dpcr_error *error) {
    if (!a || n < 0 || (n && (!x || !z)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "autoencoder_decode: autoencoder, z or x is NULL");
    const int64_t latent = a->options.latent;
    for (int64_t i = 0; i < n; i += DPCRI_NET_ROWS) {
        const int64_t rows = n - i < DPCRI_NET_ROWS ? n - i : DPCRI_NET_ROWS;
        float *code = a->work[0];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < latent; k++)
                code[r * latent + k] = z[(i + r) * latent + k] * a->deviation[k] + a->mean[k];
        const float *y = run(a, a->encoder, a->net.count, rows, code);
        for (int64_t r = 0; r < rows; r++) dpcri_autoencoder_outer(a, y + r * a->pixels, x + (i + r) * a->pixels);
    }
    return DPCR_OK;
}

// ---- files ----

dpcr_status dpcri_autoencoder_put(const dpcr_autoencoder *a, const float *values, dpcri_bundle *bundle,
                                  dpcr_error *error) {
    dpcr_status status;
    const dpcr_autoencoder_options *o = &a->options;
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.rows", o->rows, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.cols", o->cols, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.latent", o->latent, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.hidden", o->hidden, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.depth", o->depth, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.channels", a->channels, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.vae.convolutional", o->convolutional != 0, error));
    DPCR_TRY(dpcri_net_tensors(&a->net, values ? values : a->net.values, &bundle->tensors, error));
    DPCR_TRY(dpcri_bundle_array(bundle, "code.mean", DPCR_F32, o->latent, a->mean, error));
    DPCR_TRY(dpcri_bundle_array(bundle, "code.deviation", DPCR_F32, o->latent, a->deviation, error));
done:
    return status;
}

static dpcr_status read_scale(dpcr_autoencoder *a, const dpcr_tensors *tensors, const char *path, dpcr_error *error) {
    const int64_t latent = a->options.latent;
    const dpcr_tensor *mean = dpcri_bundle_find(tensors, "code.mean", latent);
    const dpcr_tensor *deviation = dpcri_bundle_find(tensors, "code.deviation", latent);
    bool good = mean && deviation;
    for (int64_t i = 0; good && i < latent; i++) {
        a->mean[i] = ((const float *)mean->array.data)[i];
        a->deviation[i] = ((const float *)deviation->array.data)[i];
        good = isfinite(a->mean[i]) && isfinite(a->deviation[i]) && a->deviation[i] > 0;
    }
    if (good) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: code.mean or code.deviation is missing or no scale", path);
}

dpcr_status dpcri_autoencoder_get(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                  dpcr_autoencoder **autoencoder, dpcr_error *error) {
    dpcr_status status;
    dpcr_autoencoder *a = NULL;
    dpcr_autoencoder_options o = {.size = sizeof o};
    dpcr_error own = {0};
    const int64_t most = DPCRI_MOST_WIDTH;
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.rows", 1, most, &o.rows, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.cols", 1, most / o.rows, &o.cols, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.latent", 1, most, &o.latent, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.hidden", 1, most, &o.hidden, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.depth", 1, DPCRI_MOST_DEPTH, &o.depth, error));
    int64_t convolutional = 0;  // files of before have neither
    if (dpcr_tensors_metadata(tensors, "deeppcr.vae.channels"))
        DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.channels", 1, most, &o.channels, error));
    if (dpcr_tensors_metadata(tensors, "deeppcr.vae.convolutional"))
        DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.vae.convolutional", 0, 1, &convolutional, error));
    o.convolutional = (int)convolutional;
    status = make(context, &o, false, &a, &own);
    if (status != DPCR_OK)
        DPCR_TRY(
            dpcri_fail(error, status == DPCR_ERROR_ARGUMENT ? DPCR_ERROR_FORMAT : status, "%s: %s", path, own.text));
    DPCR_TRY(dpcri_net_read(&a->net, tensors, path, error));
    DPCR_TRY(read_scale(a, tensors, path, error));
    *autoencoder = a;
    a = NULL;
done:
    dpcr_autoencoder_destroy(a);
    return status;
}

dpcr_status dpcr_autoencoder_load(dpcr_context *context, const char *path, dpcr_autoencoder **autoencoder,
                                  dpcr_error *error) {
    dpcr_status status;
    dpcr_tensors tensors = {0};
    if (autoencoder) *autoencoder = NULL;
    if (!context || !path || !autoencoder)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "autoencoder_load: context, path or autoencoder is NULL");
    DPCR_TRY(dpcri_bundle_read(context, path, &tensors, error));
    const char *kind = dpcr_tensors_metadata(&tensors, "deeppcr.kind");
    if (!kind || strcmp(kind, "vae") != 0)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: no auto-encoder ('deeppcr.kind' is %.40s, wanted vae)", path,
                            kind ? kind : "missing"));
    if (dpcr_tensors_find(&tensors, "learn.values") && !dpcr_tensors_metadata(&tensors, "deeppcr.learn.ended"))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT,
                            "%s: the checkpoint of an auto-encoder whose training has not ended; resume it", path));
    DPCR_TRY(dpcri_autoencoder_get(context, &tensors, path, autoencoder, error));
done:
    dpcr_tensors_free(context, &tensors);
    return status;
}

dpcr_status dpcr_autoencoder_save(const dpcr_autoencoder *a, const char *path, dpcr_error *error) {
    dpcr_status status;
    dpcri_bundle bundle = {0};
    if (!a || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "autoencoder_save: autoencoder or path is NULL");
    DPCR_TRY(dpcri_bundle_create(&bundle, a->context, error));
    DPCR_TRY(dpcri_bundle_text(&bundle, "deeppcr.kind", "vae", error));
    DPCR_TRY(dpcri_autoencoder_put(a, NULL, &bundle, error));
    DPCR_TRY(dpcr_safetensors_write_summed(path, &bundle.tensors, error));
done:
    dpcri_bundle_destroy(&bundle);
    return status;
}
