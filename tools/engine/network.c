/* Binding the tensors of a GGUF file to their places in the network; see network.h. */
#include "tools/engine/network.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* State of binding the tensors of the network. A tensor of the file that no step binds has no place in the
 * network. */
struct binder {
    struct network *m;
    const struct gguf *g;
    size_t n_bound;   /* tensors of the file that have a place */
    size_t n_vectors; /* numbers in the vectors so far */
    float *vectors;   /* NULL in the first pass, which only counts */
    struct errmsg *e;
};

static const struct gguf_tensor *network_find_tensor(struct binder *b, const char *name, int layer)
{
    char full[GGUF_NAME_MAX + 1];
    const struct gguf_tensor *t;

    if (layer < 0)
        (void) snprintf(full, sizeof(full), "%s", name);
    else
        (void) snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
    t = gguf_tensor_find(b->g, full);
    if (t)
        b->n_bound++;
    return t;
}

static int network_no_tensor(struct binder *b, const char *name, int layer)
{
    if (layer < 0)
        return fail(b->e, -EBADMSG, "%s: has no tensor \"%s\"", gguf_label(b->g), name);

    return fail(b->e, -EBADMSG, "%s: has no tensor \"blk.%d.%s\"", gguf_label(b->g), layer, name);
}

static int network_check_readable(struct binder *b, const struct gguf_tensor *t)
{
    if (!t->data)
        return fail(b->e, -EOPNOTSUPP, "%s: tensor \"%.*s\" is of type %s (%u), which is not supported",
                    gguf_label(b->g), (int) t->name_bytes, t->name, quant_type_name(t->type), t->type);

    return 0;
}

static int network_bind_matrix(struct binder *b, const char *name, int layer, size_t n_rows, size_t n_cols,
                               struct matrix *ret_w)
{
    const struct gguf_tensor *t = network_find_tensor(b, name, layer);
    const struct quant_type *type;
    int r;

    if (!t)
        return network_no_tensor(b, name, layer);

    r = network_check_readable(b, t);
    if (r < 0)
        return r;
    if (t->n_dims != 2 || t->dims[0] != n_cols || t->dims[1] != n_rows)
        return fail(b->e, -EBADMSG,
                    "%s: tensor \"%.*s\" is %" PRIu64 " x %" PRIu64 "; the network needs %zu x %zu",
                    gguf_label(b->g), (int) t->name_bytes, t->name, t->dims[1], t->dims[0], n_rows, n_cols);

    type = quant_type_of(t->type);
    *ret_w = (struct matrix){.type = type,
                             .data = t->data,
                             .n_rows = n_rows,
                             .n_cols = n_cols,
                             .row_bytes = n_cols / type->block_weights * type->block_bytes};
    return 0;
}

static int network_bind_vector(struct binder *b, const char *name, int layer, size_t n, bool optional,
                               const float **ret_v)
{
    const struct gguf_tensor *t = network_find_tensor(b, name, layer);
    int r;

    if (!t)
        return optional ? 0 : network_no_tensor(b, name, layer);

    r = network_check_readable(b, t);
    if (r < 0)
        return r;
    if (t->n_dims != 1 || t->dims[0] != n)
        return fail(b->e, -EBADMSG,
                    "%s: tensor \"%.*s\" does not have the %zu numbers that the network needs",
                    gguf_label(b->g), (int) t->name_bytes, t->name, n);
    if (b->vectors) {
        const struct quant_type *type = quant_type_of(t->type);

        type->decode(t->data, n / type->block_weights, b->vectors + b->n_vectors);
        *ret_v = b->vectors + b->n_vectors;
    }

    b->n_vectors += n;
    return 0;
}

static int network_bind_layer(struct binder *b, int i)
{
    const struct geometry *geo = &b->m->geometry;
    struct network_layer *l = &b->m->layers[i];
    size_t n_embd = b->m->n_embd, n_ff = b->m->n_ff;
    size_t n_q = (size_t) geo->n_heads * geo->d, n_kv = (size_t) geo->n_kv_heads * geo->d;
    bool needs_bias = b->m->family == NETWORK_QWEN2;
    const struct {
        const char *name;
        size_t rows, cols;
        struct matrix *w;
    } matrices[] = {
        {"attn_q.weight", n_q, n_embd, &l->q},       {"attn_k.weight", n_kv, n_embd, &l->k},
        {"attn_v.weight", n_kv, n_embd, &l->v},      {"attn_output.weight", n_embd, n_q, &l->o},
        {"ffn_gate.weight", n_ff, n_embd, &l->gate}, {"ffn_up.weight", n_ff, n_embd, &l->up},
        {"ffn_down.weight", n_embd, n_ff, &l->down},
    };
    const struct {
        const char *name;
        size_t n;
        bool optional;
        const float **v;
    } vectors[] = {
        {"attn_norm.weight", n_embd, false, &l->attn_norm}, {"ffn_norm.weight", n_embd, false, &l->ffn_norm},
        {"attn_q.bias", n_q, !needs_bias, &l->q_bias},      {"attn_k.bias", n_kv, !needs_bias, &l->k_bias},
        {"attn_v.bias", n_kv, !needs_bias, &l->v_bias},     {"attn_output.bias", n_embd, true, &l->o_bias},
        {"attn_q_norm.weight", geo->d, false, &l->q_norm},  {"attn_k_norm.weight", geo->d, false, &l->k_norm},
    };
    size_t n_vectors = sizeof(vectors) / sizeof(vectors[0]);
    int r;

    for (size_t k = 0; k < sizeof(matrices) / sizeof(matrices[0]); k++) {
        r = network_bind_matrix(b, matrices[k].name, i, matrices[k].rows, matrices[k].cols, matrices[k].w);
        if (r < 0)
            return r;
    }

    if (b->m->family != NETWORK_QWEN3)
        n_vectors -= 2; /* a norm in the file then has no place, and the file is refused */
    for (size_t k = 0; k < n_vectors; k++) {
        r = network_bind_vector(b, vectors[k].name, i, vectors[k].n, vectors[k].optional, vectors[k].v);
        if (r < 0)
            return r;
    }

    return 0;
}

static int network_bind_all(struct binder *b)
{
    struct network *m = b->m;
    int r;

    r = network_bind_matrix(b, "token_embd.weight", -1, m->n_vocab, m->n_embd, &m->embedding);
    if (r < 0)
        return r;

    m->tied = !gguf_tensor_find(b->g, "output.weight");
    m->output = m->embedding;
    if (!m->tied) {
        r = network_bind_matrix(b, "output.weight", -1, m->n_vocab, m->n_embd, &m->output);
        if (r < 0)
            return r;
    }

    r = network_bind_vector(b, "output_norm.weight", -1, m->n_embd, false, &m->output_norm);
    if (r < 0)
        return r;

    (void) network_find_tensor(b, "rope_freqs.weight", -1); /* network_rope.c has read it */
    for (uint32_t i = 0; i < m->geometry.n_layers; i++) {
        r = network_bind_layer(b, (int) i);
        if (r < 0)
            return r;
    }

    return 0;
}

/* Whether the network of this file has a place for the tensor. */
static bool network_is_bound(const struct network *m, const struct gguf_tensor *t)
{
    static const char *const in_layer[] = {
        "attn_norm.weight", "ffn_norm.weight",    "attn_q.weight",      "attn_k.weight",
        "attn_v.weight",    "attn_output.weight", "ffn_gate.weight",    "ffn_up.weight",
        "ffn_down.weight",  "attn_q.bias",        "attn_k.bias",        "attn_v.bias",
        "attn_output.bias", "attn_q_norm.weight", "attn_k_norm.weight",
    };
    static const char *const outside[] = {
        "token_embd.weight",
        "output.weight",
        "output_norm.weight",
        "rope_freqs.weight",
    };
    size_t n_in_layer = sizeof(in_layer) / sizeof(in_layer[0]) - (m->family == NETWORK_QWEN3 ? 0 : 2);
    char name[GGUF_NAME_MAX + 1];
    unsigned layer;
    int at = 0;

    memcpy(name, t->name, t->name_bytes);
    name[t->name_bytes] = '\0';
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        if (strcmp(name, outside[i]) == 0)
            return true;
    if (sscanf(name, "blk.%9u.%n", &layer, &at) != 1 || at == 0 || layer >= m->geometry.n_layers)
        return false;

    for (size_t i = 0; i < n_in_layer; i++)
        if (strcmp(name + at, in_layer[i]) == 0)
            return true;
    return false;
}

static int network_refuse_unbound(const struct binder *b)
{
    if (b->n_bound == gguf_tensor_count(b->g))
        return 0;

    for (size_t i = 0; i < gguf_tensor_count(b->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->g, i);

        if (!network_is_bound(b->m, t))
            return fail(b->e, -EOPNOTSUPP, "%s: tensor \"%.*s\" has no place in a %s network",
                        gguf_label(b->g), (int) t->name_bytes, t->name, b->m->architecture);
    }

    /* blk.0 and blk.00 */
    return fail(b->e, -EBADMSG, "%s: the tensors of a layer are named in two ways", gguf_label(b->g));
}

int network_init(struct network *ret_network, const struct gguf *g, struct errmsg *e)
{
    struct network *m = ret_network;
    struct binder count = {.m = m, .g = g, .e = e}, fill = count;
    const struct gguf_tensor *embedding = gguf_tensor_find(g, "token_embd.weight");
    int r;

    r = network_read_sizes(m, g, e);
    if (r < 0)
        return r;

    r = network_read_rope(m, g, e);
    if (r < 0)
        return r;
    if (!embedding || embedding->dims[1] > INT32_MAX)
        return fail(e, -EBADMSG, "%s: has no tensor \"token_embd.weight\" of a sensible size", gguf_label(g));

    m->n_vocab = (uint32_t) embedding->dims[1];

    m->layers = calloc(m->geometry.n_layers, sizeof(*m->layers));
    if (!m->layers)
        return fail(e, -ENOMEM, "%s: no memory for its layers", gguf_label(g));

    r = network_bind_all(&count);
    if (r < 0)
        return r;

    r = network_refuse_unbound(&count);
    if (r < 0)
        return r;

    m->vectors = fill.vectors = calloc(count.n_vectors, sizeof(float));
    if (!m->vectors)
        return fail(e, -ENOMEM, "%s: no memory for its norms and biases", gguf_label(g));

    return network_bind_all(&fill);
}

void network_deinit(struct network *m)
{
    free(m->layers);
    free(m->vectors);
    *m = (struct network){0};
}
