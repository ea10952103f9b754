// SPDX-License-Identifier: MIT
// Convolutional networks for 'train vgg11': whole ones by dense products, pruned ones whose backward pass is a scan
// (BPPSA). float32.
#ifndef DEEPPCR_CLI_CONVNET_H
#define DEEPPCR_CLI_CONVNET_H

#include "cli.h"

enum { CONVNET_MOST_LAYERS = 24, CONVNET_CLASSES = 10, CONVNET_SIDE = 32 };
enum { CONVNET_CONV = 0, CONVNET_LINEAR, CONVNET_RELU, CONVNET_POOL };
// How the gradients of the activations are made: BPPSA's scan, the loop over the same sparse Jacobians, dense products.
enum { CONVNET_SCAN = 0, CONVNET_LOOP, CONVNET_DENSE, CONVNET_WAYS };
extern const char *const convnet_ways[CONVNET_WAYS];

typedef struct convnet_layer {
    int kind;
    dpcr_jacobian *jacobian;     // NULL: a whole convolution or linear layer
    dpcr_transition transition;  // A = (dz_out/dz_in)^T
    dpcr_array values;           // of A: [1][entries] or [B][entries]
    dpcr_conv2d conv;            // linear ones: a convolution of images of one number
    int64_t outputs, positions;  // channels, numbers of each
    float *weights;              // all of them, most zero
    int32_t *kept;               // which are not, ascending
    int64_t kept_count, weight_count;
    int64_t first, bias;  // in the vector of parameters
    dpcr_array out;       // [1][B][w]
} convnet_layer;

typedef struct convnet {
    dpcr_context *context;
    int64_t rows;  // of the batch that count: convnet_create sets all
    bool whole;    // nothing is pruned: dense products, the way CONVNET_DENSE alone
    int64_t batch, channels, count, parameters;
    convnet_layer layers[CONVNET_MOST_LAYERS];
    float *vector, *gradient;  // weights that are kept, and biases
    dpcr_array input;          // [1][B][channels side side]
    uint8_t *labels;           // [B]
    // The chain is layers 1..count-1: nobody wants the images' gradient. Its step l is layer l + 1.
    int64_t steps;
    dpcr_array last;                                          // [B][10]: gradient of the loss by the logits
    dpcr_array gradients[CONVNET_WAYS][CONVNET_MOST_LAYERS];  // by way and step: g of the step's input
    dpcr_array values[CONVNET_MOST_LAYERS];
    dpcr_bppsa_plan *plan[2];  // scan, loop
    void *workspace[2];
    double plan_seconds[2];
    double dense_flops;  // of an image
} convnet;

// VGG-11 as CIFAR-10 has it: 8 convolutions of 3 x 3, channels divided by `divisor`, 5 max-pools, a linear layer. Of
// each layer's weights the fraction `prune`, the smallest, is taken out for good, of the first and the last layer's
// none (negative: a whole network). Plans the patterns of all products.
typedef struct convnet_shape {
    int64_t channels, batch, divisor;
    double prune;
    int levels;
    bool forward_only;    // nothing for going back is planned
    uint64_t seed;        // of the weights drawn, where there is no
    const convnet *from;  // network whose numbers are taken over: the same shape, batch apart
    const int32_t *const
        *kept;  // [layers] with kept_count: the weights to keep, where `from` is pruned or to be by them
    const int64_t *kept_count;
} convnet_shape;
int convnet_create(dpcr_context *context, const convnet_shape *shape, convnet *net);
void convnet_destroy(convnet *net);
// The mean loss of the batch in input and labels, and correct rows; leaves what backward needs.
int convnet_forward(convnet *net, double *loss, int64_t *correct);
// Gradients of all activations, by one way.
int convnet_backward(convnet *net, int way);
// Gradients of the parameters from those of the activations.
int convnet_parameters(convnet *net, int way);
// After the vector of parameters changed.
int convnet_refill(convnet *net);
// Of a whole network: takes the fraction of the weights out, as there, that is smallest, for now: they are zero, and
// stay so while convnet_keep_zeros is called between the vector's change and convnet_refill.
int convnet_thin(convnet *net, double fraction);
void convnet_keep_zeros(convnet *net);
// Largest difference of the activations' gradients of two ways, relative to the largest of that layer.
double convnet_difference(const convnet *net, int way, int other);

// ---- the verb's part ----

int cli_train_vgg(int argc, char **argv);  // train vgg11; argv[0] is "vgg11"
bool cli_names_vgg(const char *word);

#endif
