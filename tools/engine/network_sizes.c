/* Reading the hyperparameters of a model from the keys of its GGUF file; see network.h. */
#include "tools/engine/network.h"

#include "base/errmsg.h"
#include "tools/engine/gguf.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Far above existing models; buffer sizes cannot overflow within them. */
enum { EMBD_MAX = 1 << 16, FF_MAX = 1 << 20, CONTEXT_MAX = 1 << 28 };

const char *network_key(const struct network *m, const char *suffix, char ret_key[static NETWORK_KEY_BYTES])
{
    (void) snprintf(ret_key, NETWORK_KEY_BYTES, "%s.%s", m->architecture, suffix);
    return ret_key;
}

/*
 * Files that are no whole model, by the keys that llama.cpp gives them. Without this check the sentence would
 * be about the first tensor or key that such a file lacks.
 */
static int network_sizes_refuse_parts(const struct gguf *g, struct errmsg *e)
{
    uint32_t count = 0, no = 0;
    int r = gguf_get_u32_or(g, "split.count", 0, &count, e);

    if (r == 0)
        r = gguf_get_u32_or(g, "split.no", 0, &no, e);
    if (r < 0 || count <= 1)
        return r;

    return fail(
        e, -EOPNOTSUPP,
        "%s: is part %u of %u of a split model: join the parts with 'llama-gguf-split --merge FIRST-PART "
        "FILE', and name that file",
        gguf_label(g), no + 1, count);
}

static int network_sizes_refuse_kinds(const struct gguf *g, struct errmsg *e)
{
    static const struct {
        const char *key, *value; /* NULL: any */
        const char *what;
    } kinds[] = {
        {"general.type", "adapter", "a LoRA adapter: merge it into its model with llama-export-lora"},
        {"adapter.type", NULL, "a LoRA adapter: merge it into its model with llama-export-lora"},
        {"general.type", "mmproj",
         "the projector of a multimodal model: name the file of its language model"},
        {"general.architecture", "clip",
         "the projector of a multimodal model: name the file of its language model"},
        {"general.type", "imatrix", "an importance matrix: name the model that it was computed for"},
        {"general.architecture", "imatrix", "an importance matrix: name the model that it was computed for"},
        {"imatrix.datasets", NULL, "an importance matrix: name the model that it was computed for"},
        {"general.type", "vocab", "a vocabulary without weights: name a whole model"},
        {"general.architecture", "controlvector",
         "a control vector: name the model that it was computed for"},
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const char *text;
        size_t n;

        if (!gguf_has(g, kinds[i].key))
            continue;
        if (kinds[i].value && (gguf_get_string(g, kinds[i].key, &text, &n, NULL) < 0 ||
                               n != strlen(kinds[i].value) || memcmp(text, kinds[i].value, n) != 0))
            continue;
        return fail(e, -EOPNOTSUPP, "%s: is no model but %s", gguf_label(g), kinds[i].what);
    }
    if (gguf_tensor_count(g) == 0)
        return fail(e, -EBADMSG,
                    "%s: has no tensors: a vocabulary, or another part of a model than its weights",
                    gguf_label(g));
    return 0;
}

static int network_sizes_read_architecture(struct network *m, const struct gguf *g, struct errmsg *e)
{
    static const struct {
        const char *name;
        enum network_family family;
    } known[] = {
        {"llama", NETWORK_LLAMA},
        {"qwen2", NETWORK_QWEN2},
        {"qwen3", NETWORK_QWEN3},
    };
    const char *name;
    size_t bytes;
    int r;

    r = gguf_get_string(g, "general.architecture", &name, &bytes, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].name) != bytes || memcmp(known[i].name, name, bytes) != 0)
            continue;

        m->family = known[i].family;
        (void) snprintf(m->architecture, sizeof(m->architecture), "%s", known[i].name);
        return 0;
    }

    return fail(e, -EOPNOTSUPP, "%s: is of architecture \"%.*s\"; supported are llama, qwen2 and qwen3",
                gguf_label(g), bytes < 40 ? (int) bytes : 40, name);
}

static int network_sizes_read_count(const struct network *m, const struct gguf *g, const char *suffix,
                                    uint32_t max, uint32_t *ret_n, struct errmsg *e)
{
    char key[NETWORK_KEY_BYTES];
    uint32_t n;
    int r;

    r = gguf_get_u32_of_all(g, network_key(m, suffix, key), m->geometry.n_layers, &n, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;
    if (n == 0 || n > max)
        return fail(e, -EBADMSG, "%s: %s is %u, not 1 to %u", gguf_label(g), key, n, max);

    *ret_n = n;
    return 0;
}

static int network_sizes_read_head_dimension(struct network *m, const struct gguf *g, struct errmsg *e)
{
    struct geometry *geo = &m->geometry;
    char key[NETWORK_KEY_BYTES];
    uint32_t d_v;
    int r;

    r = gguf_get_u32_or(g, network_key(m, "attention.key_length", key), m->n_embd / geo->n_heads, &geo->d, e);
    if (r < 0)
        return r;

    r = gguf_get_u32_or(g, network_key(m, "attention.value_length", key), m->n_embd / geo->n_heads, &d_v, e);
    if (r < 0)
        return r;
    if (geo->d != d_v)
        return fail(e, -EOPNOTSUPP, "%s: keys of %u and values of %u dimensions per head; they must be equal",
                    gguf_label(g), geo->d, d_v);
    if (geo->d < GEOMETRY_DIM_MIN || geo->d > GEOMETRY_DIM_MAX || geo->d % 2 != 0)
        return fail(e, -EOPNOTSUPP, "%s: heads of %u dimensions; supported are even numbers from %d to %d",
                    gguf_label(g), geo->d, GEOMETRY_DIM_MIN, GEOMETRY_DIM_MAX);

    r = gguf_get_f64_or(g, network_key(m, "attention.scale", key), 1.0 / sqrt((double) geo->d),
                        &geo->attn_scale, e);
    if (r < 0)
        return r;
    if (!(geo->attn_scale > 0.0))
        return fail(e, -EBADMSG, "%s: %s is not above 0", gguf_label(g), key);

    return 0;
}

static int read_sizes(struct network *m, const struct gguf *g, struct errmsg *e)
{
    struct geometry *geo = &m->geometry;
    char key[NETWORK_KEY_BYTES];
    int r;

    r = network_sizes_read_count(m, g, "block_count", GEOMETRY_LAYERS_MAX, &geo->n_layers, e);
    if (r < 0)
        return r;

    r = network_sizes_read_count(m, g, "embedding_length", EMBD_MAX, &m->n_embd, e);
    if (r < 0)
        return r;

    r = network_sizes_read_count(m, g, "feed_forward_length", FF_MAX, &m->n_ff, e);
    if (r < 0)
        return r;

    r = network_sizes_read_count(m, g, "context_length", CONTEXT_MAX, &m->n_context, e);
    if (r < 0)
        return r;

    r = network_sizes_read_count(m, g, "attention.head_count", GEOMETRY_HEADS_MAX, &geo->n_heads, e);
    if (r < 0)
        return r;

    geo->n_kv_heads = geo->n_heads;
    r = gguf_has(g, network_key(m, "attention.head_count_kv", key))
            ? gguf_get_u32_of_all(g, key, geo->n_layers, &geo->n_kv_heads, e)
            : 0;
    if (r < 0)
        return r;
    if (geo->n_kv_heads == 0 || geo->n_heads % geo->n_kv_heads != 0)
        return fail(e, -EBADMSG, "%s: %s is %u, which does not divide %u query heads", gguf_label(g), key,
                    geo->n_kv_heads, geo->n_heads);

    return network_sizes_read_head_dimension(m, g, e);
}

/* Keys that would change the arithmetic, which this runner refuses; 0 and 1 are the neutral values. */
static int network_sizes_refuse_other_arithmetic(const struct network *m, const struct gguf *g,
                                                 struct errmsg *e)
{
    static const char *const keys[] = {
        "expert_count",
        "logit_scale",
        "embedding_scale",
        "residual_scale",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention.max_alibi_bias",
        "attention.clamp_kqv",
    };
    char key[NETWORK_KEY_BYTES];
    bool causal, parallel;
    int r;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint32_t n = 1;
        double x = 1.0;

        if (!gguf_has(g, network_key(m, keys[i], key)))
            continue;
        if (i == 0)
            r = gguf_get_u32(g, key, &n, e);
        else
            r = gguf_get_f64(g, key, &x, e);
        if (r < 0)
            return r;
        if (i == 0 ? n != 0 : x != 0.0 && (i > 3 || x != 1.0))
            return fail(e, -EOPNOTSUPP, "%s: sets %s, which is not supported", gguf_label(g), key);
    }

    r = gguf_get_bool_or(g, network_key(m, "use_parallel_residual", key), false, &parallel, e);
    if (r < 0)
        return r;

    r = gguf_get_bool_or(g, network_key(m, "attention.causal", key), true, &causal, e);
    if (r < 0)
        return r;
    if (parallel || !causal)
        return fail(e, -EOPNOTSUPP, "%s: parallel residuals and non-causal attention are not supported",
                    gguf_label(g));

    return 0;
}

int network_read_sizes(struct network *m, const struct gguf *g, struct errmsg *e)
{
    char key[NETWORK_KEY_BYTES];
    int r;

    r = network_sizes_refuse_parts(g, e);
    if (r == 0)
        r = network_sizes_refuse_kinds(g, e);
    if (r < 0)
        return r;

    r = network_sizes_read_architecture(m, g, e);
    if (r < 0)
        return r;

    r = read_sizes(m, g, e);
    if (r < 0)
        return r;

    r = network_sizes_refuse_other_arithmetic(m, g, e);
    if (r < 0)
        return r;

    r = gguf_get_f64(g, network_key(m, "attention.layer_norm_rms_epsilon", key), &m->norm_epsilon, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;
    if (!(m->norm_epsilon >= 0.0 && m->norm_epsilon < 1.0))
        return fail(e, -EBADMSG, "%s: %s is not in 0 to 1", gguf_label(g), key);

    r = gguf_get_u32_or(g, network_key(m, "attention.sliding_window", key), 0, &m->window_tokens, e);
    if (r < 0)
        return r;
    if (m->window_tokens >= m->n_context) /* as long as the context */
        m->window_tokens = 0;
    return 0;
}
