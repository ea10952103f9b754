// SPDX-License-Identifier: MIT
#include "train_agree.h"

#include <string.h>

#include "ranks.h"

typedef struct list {
    cli_fact facts[CLI_RANKS_FACTS];
    int count;
} list;

static void add(list *l, const char *what, cli_fact_kind kind, uint64_t bits) {
    if (l->count < CLI_RANKS_FACTS) l->facts[l->count++] = (cli_fact){what, kind, bits};
}

static void add_whole(list *l, const char *what, int64_t value) { add(l, what, CLI_FACT_WHOLE, (uint64_t)value); }
static void add_other(list *l, const char *what, int64_t value) { add(l, what, CLI_FACT_OTHER, (uint64_t)value); }

static void add_real(list *l, const char *what, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add(l, what, CLI_FACT_REAL, bits);
}

static void add_kind(list *l, const cli_pipeline *p, const cli_workers *w) {
    add_other(l, "kind of training (--pipeline, --data-parallel, --swap)",
              p->given ? CLI_WORKERS_KINDS + (int64_t)p->schedule.kind : (int64_t)w->kind);
}

static void add_network(list *l, const dpcr_model *model) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    add_other(l, "network (mlp, resnet)", o->architecture);
    add_whole(l, "--layers", o->layers);
    add_whole(l, "--width", o->width);
    add_whole(l, "--hidden", o->hidden);
    add_other(l, "--activation", o->activation);
    add_other(l, "--branch", o->branch);
    add_other(l, "choice of --layer-norm", o->layer_norm);
    add_real(l, "--scale", o->scale);
    add_whole(l, "--tie", o->tie);
    add_other(l, "--dtype", o->dtype);
    add_whole(l, "number of pixels", o->inputs);
    add_whole(l, "number of classes", o->outputs);
}

static void add_data(list *l, const dpcr_dataset *data) {
    add_whole(l, "number of images (--limit)", data->count);
    add(l, "data (--data)", CLI_FACT_OTHER, cli_data_hash(data));
}

static int add_start(list *l, const dpcr_train_options *o, dpcr_model *model) {
    uint64_t file = 0, parameters = 0;
    int64_t count = 0;
    const int status = o->resume ? cli_hash_file("the checkpoint", o->resume, &file) : CLI_DONE;
    const void *vector = dpcr_model_vector(model, &count);
    if (!o->resume)
        parameters = cli_hash(CLI_HASH, vector, (size_t)count * dpcr_dtype_size(dpcr_model_get_options(model)->dtype));
    add(l, "checkpoint (--resume)", CLI_FACT_OTHER, file);
    add_whole(l, "--seed", (int64_t)o->seed);
    add(l, "initialisation (--init, --gain)", CLI_FACT_OTHER, parameters);
    return status;
}

static void add_training(list *l, const dpcr_train_options *o) {
    add_whole(l, "--epochs", o->epochs);
    add_whole(l, "--batch", o->batch);
    add_other(l, "--optimiser", o->optimiser.kind);
    add_real(l, "--rate", o->optimiser.rate);
    add_real(l, "--momentum", o->optimiser.momentum);
    add_real(l, "--weight-decay", o->optimiser.weight_decay);
    add_whole(l, "--warm-up", o->optimiser.warm_up);
    add_other(l, "choice of --constant-rate", o->optimiser.total);
    add_real(l, "--clip", o->clip);
    add_other(l, "choice of --denormals", cli_flushes_denormals());
}

// What is gathered, for a checkpoint or a trace, all ranks send.
static void add_pipeline(list *l, const cli_pipeline *p, const dpcr_train_options *o) {
    const bool saves = p->given && o->save, in_place = saves && o->resume && !strcmp(o->save, o->resume);
    add_whole(l, "--microbatches", p->schedule.microbatches);
    add_whole(l, "--chunks", p->schedule.chunks);
    add_whole(l, "--accumulate", p->schedule.accumulate);
    add_whole(l, "--stages", p->schedule.stages);
    add_other(l, "choice of --split", p->schedule.split_input);
    add_other(l, "choice of --reconstruct", p->options.reconstruct);
    add_other(l, "--compensate", p->options.compensation);
    add_whole(l, "--segment", p->options.segment);
    add_other(l, "choice of --trace", p->trace != NULL);
    add_other(l, "choice of --save (none, a new file, --resume's)", saves + in_place);
}

static void add_swap(list *l, const cli_workers *w, double rate) {
    add_real(l, "--enough", w->swap.accuracy);
    add_whole(l, "--apart-epochs", w->swap.epochs);
    add_whole(l, "--apart-batch", w->swap.batch);
    add_real(l, "--apart-rate", w->rate >= 0 ? w->rate : rate / 10);
}

int cli_train_agree(const cli_train_subject *s) {
    const double deadline = s->pipeline->options.deadline;
    cli_ranks rank = {.transport = s->pipeline->options.transport, .deadline = deadline > 0 ? deadline : 60};
    dpcr_error error = {0};
    list l = {0};
    add_kind(&l, s->pipeline, s->workers);
    add_network(&l, s->model);
    add_data(&l, s->data);
    const int status = add_start(&l, s->train, s->model);
    if (status) return status;
    add_training(&l, s->train);
    add_pipeline(&l, s->pipeline, s->train);
    add_swap(&l, s->workers, s->train->optimiser.rate);
    if (cli_ranks_agree_on_facts(&rank, l.facts, l.count, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail_error(&error, CLI_COMPUTING);
}
