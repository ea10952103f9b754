// SPDX-License-Identifier: MIT
// PipeDream's graph.txt: node lines
//     node<id> -- <description> -- forward_compute_time=<ms>, backward_compute_time=<ms>, activation_size=<bytes>,
//     parameter_size=<bytes>      (one line; activation_size may be a list [a; b], which is summed; stage_id=.. may
//     follow)
// and edge lines <tab>node<a> -- node<b>. Layers are the nodes in topological order (of those that are ready the first
// in the file); nodes described as Input are dropped, for their time is that of loading data.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "pipe/profile.h"

enum { MOST_NODES = 1 << 13, MOST_ID = 1 << 30 };

typedef struct node {
    int64_t id;
    const char *name;
    int name_length;
    double forward, backward, activation, parameter;
    int64_t waits_for;  // edges that come in and are not done yet
    bool is_input, done;
} node;

typedef struct edge {
    int64_t from, to;  // indices of nodes
} edge;

typedef struct graph {
    const char *at, *end;
    int64_t line;
    node *nodes;
    edge *edges;
    int64_t node_count, edge_count;
    dpcr_error *error;
} graph;

static dpcr_status wrong(const graph *g, const char *wanted) {
    return dpcri_fail(g->error, DPCR_ERROR_FORMAT, "profile: line %lld: wanted %s", (long long)g->line, wanted);
}

static const char *line_end(const graph *g) {
    const char *end = memchr(g->at, '\n', (size_t)(g->end - g->at));
    return end ? end : g->end;
}

// node<digits> at *at; moves on behind it.
static bool take_id(const char **at, const char *end, int64_t *id) {
    if (end - *at < 5 || strncmp(*at, "node", 4) != 0) return false;
    const char *c = *at + 4;
    *id = 0;
    if (c == end || *c < '0' || *c > '9') return false;
    for (; c < end && *c >= '0' && *c <= '9'; c++) {
        *id = 10 * *id + (*c - '0');
        if (*id > MOST_ID) return false;
    }
    *at = c;
    return true;
}

static bool take_word(const char **at, const char *end, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(end - *at) < n || strncmp(*at, word, n) != 0) return false;
    *at += n;
    return true;
}

// A finite number of at least 0. The text is not ended by 0, so it is copied.
static bool take_number(const char **at, const char *end, double *value) {
    char copy[64];
    size_t n = 0;
    while (*at + n < end && n < sizeof copy - 1 && (*at)[n] && strchr("0123456789.eE+-", (*at)[n]))
        copy[n] = (*at)[n], n++;
    copy[n] = 0;
    if (!dpcri_number_parse(copy, value) || !isfinite(*value) || *value < 0) return false;
    *at += n;
    return true;
}

// A number, or [a; b; ..], which is summed.
static bool take_sizes(const char **at, const char *end, double *sum) {
    if (!take_word(at, end, "[")) return take_number(at, end, sum);
    double value;
    *sum = 0;
    do {
        while (*at < end && **at == ' ') (*at)++;
        if (!take_number(at, end, &value)) return false;
        *sum += value;
    } while (take_word(at, end, ";"));
    return isfinite(*sum) && take_word(at, end, "]");
}

static const char *find(const char *at, const char *end, const char *word) {
    const size_t n = strlen(word);
    for (; (size_t)(end - at) >= n; at++)
        if (strncmp(at, word, n) == 0) return at;
    return NULL;
}

static dpcr_status read_node(graph *g, const char *at, const char *end) {
    node n = {0};
    if (!take_id(&at, end, &n.id) || !take_word(&at, end, " -- ")) return wrong(g, "'nodeN -- description -- ..'");
    const char *figures = find(at, end, " -- forward_compute_time=");
    if (!figures) return wrong(g, "' -- forward_compute_time=..' after the description");
    n.name = at;
    n.name_length = (int)(figures - at < 60 ? figures - at : 60);
    n.is_input = n.name_length >= 5 && strncmp(at, "Input", 5) == 0;
    at = figures;
    if (!take_word(&at, end, " -- forward_compute_time=") || !take_number(&at, end, &n.forward) ||
        !take_word(&at, end, ", backward_compute_time=") || !take_number(&at, end, &n.backward) ||
        !take_word(&at, end, ", activation_size=") || !take_sizes(&at, end, &n.activation) ||
        !take_word(&at, end, ", parameter_size=") || !take_number(&at, end, &n.parameter))
        return wrong(g,
                     "forward_compute_time, backward_compute_time, activation_size and parameter_size, numbers of at "
                     "least 0");
    g->nodes[g->node_count++] = n;
    return DPCR_OK;
}

static int by_id(const void *a, const void *b) {
    const int64_t x = ((const node *)a)->id, y = ((const node *)b)->id;
    return (x > y) - (x < y);
}

static int64_t find_node(const graph *g, int64_t id) {
    const node key = {.id = id};
    const node *found = bsearch(&key, g->nodes, (size_t)g->node_count, sizeof *g->nodes, by_id);
    return found ? found - g->nodes : -1;
}

static dpcr_status read_edge(graph *g, const char *at, const char *end) {
    int64_t from, to;
    at++;
    if (!take_id(&at, end, &from) || !take_word(&at, end, " -- ") || !take_id(&at, end, &to))
        return wrong(g, "'<tab>nodeA -- nodeB'");
    const edge e = {find_node(g, from), find_node(g, to)};
    if (e.from < 0 || e.to < 0) return wrong(g, "nodes that have a line of their own");
    g->edges[g->edge_count++] = e;
    g->nodes[e.to].waits_for++;
    return DPCR_OK;
}

// All lines of one kind; the other kind is for the other pass.
static dpcr_status read_lines(graph *g, const char *text, bool edges) {
    g->at = text;
    g->line = 0;
    for (; g->at < g->end; g->at = line_end(g) + 1) {
        const char *end = line_end(g);
        g->line++;
        if (end > g->at && end[-1] == '\r') end--;
        if (end == g->at) {
            if (line_end(g) == g->end) break;
            continue;
        }
        const bool is_edge = *g->at == '\t';
        if (is_edge == edges) {
            const dpcr_status status = edges ? read_edge(g, g->at, end) : read_node(g, g->at, end);
            if (status != DPCR_OK) return status;
        }
        if (line_end(g) == g->end) break;
    }
    return DPCR_OK;
}

static dpcr_status check_ids(graph *g) {
    qsort(g->nodes, (size_t)g->node_count, sizeof *g->nodes, by_id);
    for (int64_t n = 1; n < g->node_count; n++)
        if (g->nodes[n].id == g->nodes[n - 1].id)
            return dpcri_fail(g->error, DPCR_ERROR_FORMAT, "profile: node%lld comes twice", (long long)g->nodes[n].id);
    return DPCR_OK;
}

// The node that is ready and has the least id, or -1.
static int64_t next_ready(const graph *g) {
    for (int64_t n = 0; n < g->node_count; n++)
        if (!g->nodes[n].done && g->nodes[n].waits_for == 0) return n;
    return -1;
}

static dpcr_status fill(dpcr_context *context, graph *g, dpcr_profile *profile) {
    int64_t layers = 0;
    for (int64_t n = 0; n < g->node_count; n++) layers += !g->nodes[n].is_input;
    dpcr_status status;
    DPCR_TRY(dpcri_profile_alloc(context, layers, profile, g->error));
    int64_t l = 0;
    for (int64_t k = 0; k < g->node_count; k++) {
        const int64_t at = next_ready(g);
        if (at < 0) DPCR_TRY(dpcri_fail(g->error, DPCR_ERROR_FORMAT, "profile: the edges make a circle"));
        node *n = &g->nodes[at];
        n->done = true;
        for (int64_t e = 0; e < g->edge_count; e++)
            if (g->edges[e].from == at) g->nodes[g->edges[e].to].waits_for--;
        if (n->is_input) continue;
        char name[64];
        memcpy(name, n->name, (size_t)n->name_length);
        name[n->name_length] = 0;
        for (char *c = name; *c; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f) *c = '?';
        profile->forward[l] = n->forward;
        profile->input[l] = profile->weight[l] = n->backward / 2;
        profile->activation_bytes[l] = n->activation;
        profile->parameter_bytes[l] = n->parameter;
        DPCR_TRY(dpcri_profile_set_name(context, profile, l++, name, g->error));
    }
done:
    return status;
}

dpcr_status dpcri_profile_read_graph(dpcr_context *context, const char *text, size_t bytes, dpcr_profile *profile,
                                     dpcr_error *error) {
    graph g = {.at = text, .end = text + bytes, .error = error};
    int64_t lines = 1;
    for (size_t n = 0; n < bytes; n++) lines += text[n] == '\n';
    if (lines > MOST_NODES)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: %lld lines; wanted at most %d", (long long)lines,
                          (int)MOST_NODES);
    dpcr_status status;
    g.nodes = dpcri_alloc_zero(context, (size_t)lines * sizeof *g.nodes);
    g.edges = dpcri_alloc_zero(context, (size_t)lines * sizeof *g.edges);
    if (!g.nodes || !g.edges) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory for its graph"));
    DPCR_TRY(read_lines(&g, text, false));
    if (g.node_count == 0) {
        g.line = 1;
        DPCR_TRY(wrong(&g, "JSON, or PipeDream's graph.txt with 'nodeN -- description -- ..'"));
    }
    DPCR_TRY(check_ids(&g));
    DPCR_TRY(read_lines(&g, text, true));
    DPCR_TRY(fill(context, &g, profile));
done:
    dpcri_free(context, g.nodes);
    dpcri_free(context, g.edges);
    return status;
}
