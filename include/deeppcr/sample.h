// SPDX-License-Identifier: MIT
// Diffusion samplers as chains: the state of step l is the picture after l denoising steps, z_{-1} = x_T the first
// noise.
//
// All noise is drawn in advance, by sample and step, from the counter-based generator; so the chain is a function of
// its seed, and every method of solve.h computes the same pictures. Derivations and sources: docs/diffusion.md.
//
// Letters: T training steps, t in 0..T-1 a time, abar_t = prod_{s<=t} (1 - beta_s); alpha = sqrt(abar_t),
// sigma = sqrt(1 - abar_t), x = alpha x0 + sigma e. Primes are the time that a step goes to.
#ifndef DEEPPCR_SAMPLE_H
#define DEEPPCR_SAMPLE_H

#include "data.h"
#include "solve.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- noise schedules ----

typedef enum dpcr_noise_kind {
    DPCR_NOISE_LINEAR = 0,  // beta from beta_first to beta_last in equal steps
    DPCR_NOISE_COSINE,  // abar(t) = cos^2((t/T + 0.008) / 1.008 pi/2) / cos^2(0.008 / 1.008 pi/2), beta at most 0.999
    DPCR_NOISE_COUNT
} dpcr_noise_kind;

// "linear", "cosine".
DPCR_API const char *dpcr_noise_name(dpcr_noise_kind kind);
DPCR_API dpcr_status dpcr_noise_find(const char *name, dpcr_noise_kind *kind, dpcr_error *error);

typedef struct dpcr_noise_options {
    size_t size;  // sizeof(dpcr_noise_options) of the caller; zero in a field means the default
    dpcr_noise_kind kind;
    int64_t steps;                 // T, at most 16384; default 1000
    double beta_first, beta_last;  // linear; default 1e-4 and 0.02
    uint64_t reserved[4];          // 0: room of fields to come, for these options lie within others
} dpcr_noise_options;

// beta [T] and abar [T] of a schedule; either may be NULL. `options` with T filled in says how long they are.
DPCR_API dpcr_status dpcr_noise_fill(const dpcr_noise_options *options, double *beta, double *abar, dpcr_error *error);

// ---- which times a sampler visits ----

typedef enum dpcr_spacing {
    DPCR_SPACING_LEADING = 0,  // multiples of floor(T / N), from (N - 1) floor(T / N) down to 0
    DPCR_SPACING_TRAILING,     // T - 1 down by T / N, rounded
    DPCR_SPACING_LINSPACE,     // T - 1 to 0 in N equal parts, rounded
    DPCR_SPACING_KARRAS,       // sigma / alpha to the power 1/7 in equal parts (Karras et al., arXiv 2206.00364);
                               // times between the trained ones
    DPCR_SPACING_COUNT
} dpcr_spacing;

// "leading", "trailing", "linspace", "karras".
DPCR_API const char *dpcr_spacing_name(dpcr_spacing spacing);
DPCR_API dpcr_status dpcr_spacing_find(const char *name, dpcr_spacing *spacing, dpcr_error *error);

// times [N], falling. 1 <= N <= T.
DPCR_API dpcr_status dpcr_spacing_fill(dpcr_spacing spacing, const dpcr_noise_options *noise, int64_t steps,
                                       double *times, dpcr_error *error);

// ---- the denoiser, as the caller gives it ----

typedef enum dpcr_prediction {
    DPCR_PREDICT_EPSILON = 0,  // m = e                       x0 = (x - sigma m) / alpha
    DPCR_PREDICT_X0,           // m = x0                      e = (x - alpha m) / sigma
    DPCR_PREDICT_V,            // m = alpha e - sigma x0      x0 = alpha x - sigma m,  e = alpha m + sigma x
    DPCR_PREDICTION_COUNT
} dpcr_prediction;

// "epsilon", "x0", "v".
DPCR_API const char *dpcr_prediction_name(dpcr_prediction prediction);
DPCR_API dpcr_status dpcr_prediction_find(const char *name, dpcr_prediction *prediction, dpcr_error *error);

// Callbacks return 0; a negative code aborts the solve (DPCR_ERROR_CALLBACK). They run on the thread that solves, one
// at a time, outside the context's tasks, so they may use the context's threads. A row's bits must not depend on its
// place or on how many rows go with it.
typedef struct dpcr_denoiser {
    size_t size;  // sizeof(dpcr_denoiser) of the caller
    void *user;
    int64_t width;     // 1..2^24
    dpcr_dtype dtype;  // float32 or float64
    dpcr_prediction prediction;
    double flops;  // of one row

    // for i < rows: m[i] = model(x[i], times[i]) for sequence sequences[i] of the batch (its class, its mask)
    //   x, m [rows][width], contiguous
    int (*predict)(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences, void *m);

    // The same and its Jacobian j[i][a][b] = dm[i][a] / dx[i][b], [rows][width][width]. NULL: methods that need one are
    // refused. `jacobian_flops`: beyond predict.
    int (*linearise)(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences, void *m,
                     void *j);
    double jacobian_flops;

    uint64_t identity;  // of the model: what is remembered of its chains is not taken for another's; 0: not told, then
                        // it is known by its addresses, predict and user, as long as the process lives

    dpcr_kinks kinks;  // of the model (ReLU, layer norm): methods that linearise go on until residuals are rounding
} dpcr_denoiser;

// ---- samplers ----

typedef enum dpcr_sampler_kind {
    DPCR_SAMPLER_DDPM = 0,    // Ho, Jain, Abbeel, arXiv 2006.11239: ancestral, on any subset of the times
    DPCR_SAMPLER_DDIM,        // Song, Meng, Ermon, arXiv 2010.02502; eta 0: no noise
    DPCR_SAMPLER_DPM_SOLVER,  // DPM-Solver++ (2M), Lu et al., arXiv 2211.01095: second order, state (x, previous x0)
    DPCR_SAMPLER_EULER,       // Karras et al., algorithm 1 without churn, first order
    DPCR_SAMPLER_HEUN,        // the same, second order: two evaluations a step but for the last
    DPCR_SAMPLER_COUNT
} dpcr_sampler_kind;

// "ddpm", "ddim", "dpm-solver++", "euler", "heun".
DPCR_API const char *dpcr_sampler_name(dpcr_sampler_kind kind);
DPCR_API dpcr_status dpcr_sampler_find(const char *name, dpcr_sampler_kind *kind, dpcr_error *error);

typedef struct dpcr_sampler_options {
    size_t size;  // sizeof(dpcr_sampler_options) of the caller; zero in a field means the default
    dpcr_sampler_kind kind;
    dpcr_noise_options noise;  // its size is not read
    dpcr_spacing spacing;      // default leading
    int64_t steps;             // N, at most T; default T
    int64_t skip;              // of them left out at the start: begins at a less noisy time (from a picture)
    double eta;                // DDIM: noise, 0 to 1 (1: as DDPM); 0 of the others
    double clip;               // >= 0; 0: none; else x0 is cut to [-clip, clip], heun's second one too
    int keep_last;             // non-zero: the last step goes to abar_0 instead of 1
    uint64_t seed;
    int64_t first_sample;  // number of the batch's first sample: sample i's noise follows from (seed, first_sample + i)
    // Inpainting, or NULL: where mask [width] is not 0, the picture is `known` [B][width], noised to each step's time.
    const dpcr_array *mask, *known;
    // The times to visit, [steps], falling from T - 1 at most to 0 at least, between the trained ones too; copied.
    // NULL: by the spacing.
    const double *times;
    // A CUDA device: noise, mask and the network's numbers as they are now are sent there, and dpcr_sampler_steps
    // serves plans of that device too, by the loop, picard and parataa: states from z0 to the last lie there, one
    // launch a layer and one or two a step, or a sweep's window. The denoiser has to be dpcr_diffusion_denoiser's, and
    // a z0 given; sweeps allocate host memory when they are enqueued. Bits are a host's that has fma.
    dpcr_device device;
} dpcr_sampler_options;

typedef struct dpcr_sampler dpcr_sampler;

// The sampler's chain for B samples, first_sample + B below 2^32, its noise drawn. What `denoiser` points to must
// outlive it; the struct is copied.
DPCR_API dpcr_status dpcr_sampler_create(dpcr_context *context, const dpcr_denoiser *denoiser,
                                         const dpcr_sampler_options *options, int64_t batch, dpcr_sampler **sampler,
                                         dpcr_error *error);
DPCR_API void dpcr_sampler_destroy(dpcr_sampler *sampler);

// The chain: length N - skip, width that of the picture (dpm-solver++: twice it, x then the previous x0). Its `coarse`
// is one step of the same sampler from where a span begins to where it ends, with the noise of the steps between as the
// slopes carry it; its slopes are the derivatives of the steps on data of deviation DPCR_SAMPLER_DEVIATION (not of
// dpm-solver++'s). It lives as long as
// the sampler, and serves one solve at a time.
#define DPCR_SAMPLER_DEVIATION 0.5
DPCR_API const dpcr_steps *dpcr_sampler_steps(const dpcr_sampler *sampler);

// z_{-1} [B][chain's width]: x [B][width] or, x NULL, standard normal noise of (seed, sample).
DPCR_API dpcr_status dpcr_sampler_start(const dpcr_sampler *sampler, const dpcr_array *x, const dpcr_array *z0,
                                        dpcr_error *error);
// x = alpha x + sigma noise at the first step's time, with the sampler's own noise: where `skip` begins.
DPCR_API dpcr_status dpcr_sampler_noise(const dpcr_sampler *sampler, const dpcr_array *x, dpcr_error *error);

// The time of chain step l, and the variance of the noise that it adds. Either may be NULL.
DPCR_API dpcr_status dpcr_sampler_step(const dpcr_sampler *sampler, int64_t step, double *time, double *variance,
                                       dpcr_error *error);

// scale [N - skip] for dpcr_solve_options.step_scale: the deviation of the noise that each step has, or would have with
// eta = 1 (ParaDiGMS's measure); a step without any takes the former's.
DPCR_API dpcr_status dpcr_sampler_scale(const dpcr_sampler *sampler, double *scale, dpcr_error *error);

// Rows given to the denoiser since the sampler was made (or since it was reset), those for Jacobians apart: a Jacobian
// counts `width` products besides its row. And calls of the denoiser, of at most 256 rows, or as many as the batch, to
// 4096 (fewer where their states would take more than 64 MB): of the several that a sweep over more takes none waits
// for another.
DPCR_API void dpcr_sampler_counts(const dpcr_sampler *sampler, int64_t *rows, int64_t *products, int64_t *calls);
DPCR_API void dpcr_sampler_counts_reset(dpcr_sampler *sampler);

// ---- networks, in float: pictures to a few numbers and back, and denoisers ----

// An auto-encoder of pictures (Kingma, Welling, arXiv 1312.6114), pixels in 0..1: multilayer perceptrons
//   encoder   pixels -> hidden -> ... -> hidden -> mean, log variance        decoder   latent -> hidden ... -> pixels
// or convolutions 3 x 3, every layer to half as many rows and columns and twice as many channels, and back; their
// weights in files are [out][3][3][in]. Pictures, codes and hidden layers have at most 16384 numbers (of convolutions
// the last layer as many channels); depth is 1..16, of convolutions 1..6.
typedef struct dpcr_autoencoder_options {
    size_t size;            // sizeof(dpcr_autoencoder_options) of the caller
    int64_t rows, cols;     // of a picture
    int64_t latent;         // numbers of its code
    int64_t hidden, depth;  // width (convolutional: channels of the first) and number of the hidden layers, each way
    uint64_t seed;
    int64_t channels;   // of a picture: planes one after another; 0: one
    int convolutional;  // non-zero: convolutions
} dpcr_autoencoder_options;

typedef struct dpcr_autoencoder dpcr_autoencoder;

DPCR_API dpcr_status dpcr_autoencoder_create(dpcr_context *context, const dpcr_autoencoder_options *options,
                                             dpcr_autoencoder **autoencoder, dpcr_error *error);
// Safetensors with their own description; anything else, or damaged: DPCR_ERROR_FORMAT, in one line.
DPCR_API dpcr_status dpcr_autoencoder_load(dpcr_context *context, const char *path, dpcr_autoencoder **autoencoder,
                                           dpcr_error *error);
DPCR_API dpcr_status dpcr_autoencoder_save(const dpcr_autoencoder *autoencoder, const char *path, dpcr_error *error);
DPCR_API void dpcr_autoencoder_destroy(dpcr_autoencoder *autoencoder);
DPCR_API const dpcr_autoencoder_options *dpcr_autoencoder_get_options(const dpcr_autoencoder *autoencoder);
// z [n][latent]: the codes' means, standardised over the training pictures. x [n][channels rows cols] in 0..1. One call
// at a time.
DPCR_API dpcr_status dpcr_autoencoder_encode(dpcr_autoencoder *autoencoder, int64_t n, const float *x, float *z,
                                             dpcr_error *error);
// x [n][channels rows cols] in 0..1 from standardised codes.
DPCR_API dpcr_status dpcr_autoencoder_decode(dpcr_autoencoder *autoencoder, int64_t n, const float *z, float *x,
                                             dpcr_error *error);

// A denoiser: what it denoises has `width` numbers - the pixels, scaled to -1..1, or the code of an auto-encoder.
//   s(t) = W_s silu(W_1 silu(W_0 sinusoids(t))) + class[y]                               a shift for each layer
//   h = silu(W_in x + s_1);  h += silu(W_l h + s_l), l = 2..depth;  m = W_out h
// Pictures, widths and depth as the auto-encoder's.
typedef struct dpcr_diffusion_options {
    size_t size;         // sizeof(dpcr_diffusion_options) of the caller
    int64_t rows, cols;  // of a picture
    int64_t width;       // a picture's numbers, or the auto-encoder's latent
    int64_t hidden, depth;
    int64_t classes;  // 0: without condition; else class 0..classes-1, and none; at most 256
    dpcr_prediction prediction;
    dpcr_noise_options noise;
    uint64_t seed;
    int64_t channels;  // of a picture; 0: one
} dpcr_diffusion_options;

// Numbers of a picture.
static inline int64_t dpcr_diffusion_pixels(const dpcr_diffusion_options *options) {
    return (options->channels > 0 ? options->channels : 1) * options->rows * options->cols;
}

typedef struct dpcr_diffusion dpcr_diffusion;

// With an auto-encoder, whose codes it denoises, or NULL: pixels. The auto-encoder is taken over, also on failure.
DPCR_API dpcr_status dpcr_diffusion_create(dpcr_context *context, const dpcr_diffusion_options *options,
                                           dpcr_autoencoder *autoencoder, dpcr_diffusion **model, dpcr_error *error);
DPCR_API dpcr_status dpcr_diffusion_load(dpcr_context *context, const char *path, dpcr_diffusion **model,
                                         dpcr_error *error);
// One file, the auto-encoder's decoder and encoder included.
DPCR_API dpcr_status dpcr_diffusion_save(const dpcr_diffusion *model, const char *path, dpcr_error *error);
DPCR_API void dpcr_diffusion_destroy(dpcr_diffusion *model);
DPCR_API const dpcr_diffusion_options *dpcr_diffusion_get_options(const dpcr_diffusion *model);
DPCR_API dpcr_autoencoder *dpcr_diffusion_autoencoder(const dpcr_diffusion *model);  // the model's, or NULL
DPCR_API int64_t dpcr_diffusion_parameters(const dpcr_diffusion *model);

// The model as a sampler's denoiser, for one sampler at a time. labels [B] (-1: no class) or NULL: none of them has
// one; copied. With guidance g other than 1:  m = m(no class) + g (m(class) - m(no class)), two rows for one (Ho,
// Salimans, arXiv 2207.12598). Jacobians by forward mode, batched over steps, for widths up to DPCR_DIFFUSION_JACOBIAN.
// `denoiser` says its size.
#define DPCR_DIFFUSION_JACOBIAN 64
DPCR_API dpcr_status dpcr_diffusion_denoiser(dpcr_diffusion *model, const int32_t *labels, int64_t batch,
                                             double guidance, dpcr_denoiser *denoiser, dpcr_error *error);
// x [n][channels rows cols] in 0..1 of samples z [n][width]: the auto-encoder's decoder, or (z + 1) / 2, cut to 0..1.
DPCR_API dpcr_status dpcr_diffusion_pictures(dpcr_diffusion *model, int64_t n, const float *z, float *x,
                                             dpcr_error *error);

// ---- training ----

struct dpcr_learn_state;

// Whose convolutions an auto-encoder is trained with. Their roundings differ, so a checkpoint says whose they were; a
// trained model runs on gathered ones alone and gives the same bits wherever it runs.
typedef enum dpcr_convolution {
    DPCR_CONVOLUTION_AUTO,      // a resumed run's own (another library or level: DPCR_ERROR_UNSUPPORTED), else onednn
                                // where there is one and the batch fills two thirds of its pieces of 16, else gathered
    DPCR_CONVOLUTION_GATHERED,  // places around every place as rows of wide products
    DPCR_CONVOLUTION_ONEDNN     // oneDNN's (libdnnl 2, loaded at run time); without it DPCR_ERROR_UNSUPPORTED
} dpcr_convolution;

typedef struct dpcr_learn_options {
    size_t size;                       // sizeof(dpcr_learn_options) of the caller
    int64_t epochs, batch;             // >= 1; the pictures left over by an epoch's last batch wait for the next epoch
    dpcr_optimiser_options optimiser;  // total -1: all steps of the run; its size is not read
    uint64_t seed;                     // of shuffling, times, noise
    double average;             // decay of the averaged weights, which sampling uses; 0: 0.999, less in the first steps
    double drop;                // denoisers with classes: part of the pictures trained without; 0: 0.1
    double weight;              // auto-encoders: of the codes' divergence from the normal distribution; 0: 1
    const char *save;           // checkpoint, a model file as well, or NULL
    const char *resume;         // checkpoint to go on from, or NULL; may be `save`
    double checkpoint_seconds;  // 0: 30 s; every epoch's end writes one too
    int (*progress)(void *user, const struct dpcr_learn_state *state);  // after every step; non-zero: stop. May be NULL
    void *progress_user;
    dpcr_convolution convolution;  // of auto-encoders that have some
} dpcr_learn_options;

typedef struct dpcr_learn_state {
    int64_t epoch, epochs, step, steps;  // epoch counts from 1
    int epoch_ended;
    double loss;  // mean over the epoch's batches so far
    double images_per_second, seconds, seconds_left;
    const char *convolutions;  // "gathered", "onednn 2.6.3 avx512_core"; NULL: the model has none. Static
} dpcr_learn_state;

// Train on `data`, in place; afterwards the model has its averaged weights. Same model, data and options: same bits,
// for any number of threads. A run killed at any moment and resumed, with the same options, ends with the bits of the
// uninterrupted run. Errors as dpcr_train's, but that a loss or weights that are not finite are DPCR_ERROR_ARGUMENT.
//   autoencoder   per picture: sum of the pixels' cross-entropies + weight KL(code || normal)
//   denoiser      mean of (m - target)^2 at a random time, target by the prediction
DPCR_API dpcr_status dpcr_autoencoder_train(dpcr_autoencoder *autoencoder, const dpcr_dataset *data,
                                            const dpcr_learn_options *options, dpcr_learn_state *last,
                                            dpcr_error *error);
DPCR_API dpcr_status dpcr_diffusion_train(dpcr_diffusion *model, const dpcr_dataset *data,
                                          const dpcr_learn_options *options, dpcr_learn_state *last, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
