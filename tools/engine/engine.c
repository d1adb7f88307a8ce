/* Opening and closing a model, and its information; see engine.h. */
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra.h"
#include "tools/engine/engine_internal.h"
#include "tools/engine/gguf.h"
#include "base/threads.h"
#include "tools/engine/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KVC_DIGEST_BYTES == DIGEST_BYTES, "one digest size everywhere");

static void engine_read_name(struct engine *en)
{
    const char *name = gguf_label(en->gguf), *slash = strrchr(name, '/');
    size_t n;

    if (slash)
        name = slash + 1;
    n = strlen(name);
    if (gguf_has(en->gguf, "general.name"))
        /* of another type: use the file's name */
        (void) gguf_get_string(en->gguf, "general.name", &name, &n, NULL);
    if (n >= sizeof(en->info.name))
        n = sizeof(en->info.name) - 1;
    for (size_t i = 0; i < n; i++) /* control characters must not reach terminals */
        en->info.name[i] = (unsigned char) name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    en->info.name[n] = '\0';
}

static int engine_read_special_token(struct engine *en, const char *key, uint32_t *ret_token,
                                     struct errmsg *e)
{
    uint32_t token;
    int r;

    r = gguf_get_id_or_none(en->gguf, key, &token, e);
    if (r < 0)
        return r;
    if (token != UINT32_MAX && token >= en->net.n_vocab)
        return fail(e, -EBADMSG, "%s: %s is %u, but the vocabulary has %u tokens", gguf_label(en->gguf), key,
                    token, en->net.n_vocab);

    *ret_token = token;
    return 0;
}

static int engine_read_info(struct engine *en, struct errmsg *e)
{
    struct engine_info *info = &en->info;
    int r;

    engine_read_name(en);
    (void) snprintf(info->architecture, sizeof(info->architecture), "%s", en->net.architecture);
    info->n_embd = en->net.n_embd;
    info->n_vocab = en->net.n_vocab;
    info->n_context = en->net.n_context;
    info->window_tokens = en->net.window_tokens;
    for (size_t i = 0; i < gguf_tensor_count(en->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(en->gguf, i);

        info->n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }

    r = engine_read_special_token(en, "tokenizer.ggml.bos_token_id", &info->token_bos, e);
    if (r < 0)
        return r;

    r = engine_read_special_token(en, "tokenizer.ggml.eos_token_id", &info->token_eos, e);
    if (r < 0)
        return r;

    r = gguf_get_bool_or(en->gguf, "tokenizer.ggml.add_bos_token", false, &info->add_bos, e);
    if (r < 0)
        return r;
    if (info->token_bos == UINT32_MAX)
        info->add_bos = false;
    return network_digest(&en->net, en->gguf, NULL, NULL, info->model_digest, e);
}

static int engine_load(struct engine *en, const char *path, const struct engine_options *o, struct errmsg *e)
{
    const struct network *net = &en->net;
    size_t max_cols;
    int r;

    r = gguf_open(path, &en->gguf, e);
    if (r < 0)
        return r;

    r = network_init(&en->net, en->gguf, e);
    if (r < 0)
        return r;

    r = tokenizer_new(en->gguf, &en->tokenizer, e);
    if (r < 0)
        return r;
    if (tokenizer_size(en->tokenizer) != net->n_vocab)
        return fail(e, -EBADMSG, "%s: has %u tokens but embeddings for %u", path,
                    tokenizer_size(en->tokenizer), net->n_vocab);

    r = engine_read_info(en, e);
    if (r < 0)
        return r;

    r = threads_new(o ? o->n_threads : 0, &en->threads, e);
    if (r < 0)
        return r;

    max_cols = (size_t) net->geometry.n_heads * net->geometry.d;
    if (max_cols < net->n_embd)
        max_cols = net->n_embd;
    if (max_cols < net->n_ff)
        max_cols = net->n_ff;
    return linear_init(&en->linear, en->threads, max_cols, e);
}

int engine_open(const char *path, const struct engine_options *o, struct engine **ret_engine,
                struct errmsg *e)
{
    _cleanup_(engine_freep) struct engine *en = calloc(1, sizeof(*en));
    int r;

    errmsg_clear(e);
    if (!en)
        return fail(e, -ENOMEM, "%s: no memory to open it", path);

    r = engine_load(en, path, o, e);
    if (r < 0)
        return r;

    *ret_engine = take_ptr(en);
    return 0;
}

struct engine *engine_free(struct engine *en)
{
    if (!en)
        return NULL;

    free(en->act.normed);
    free(en->act.q);
    free(en->act.mixed);
    free(en->act.k);
    free(en->act.v);
    free(en->act.gate);
    free(en->act.up);
    free(en->act.projected);
    linear_deinit(&en->linear);
    (void) threads_free(en->threads);
    (void) tokenizer_free(en->tokenizer);
    network_deinit(&en->net);
    (void) gguf_free(en->gguf);
    free(en);
    return NULL;
}

const struct engine_info *engine_info(const struct engine *en)
{
    return &en->info;
}

const struct geometry *engine_geometry(const struct engine *en)
{
    return &en->net.geometry;
}

const struct tokenizer *engine_tokenizer(const struct engine *en)
{
    return en->tokenizer;
}

void engine_set_tap(struct engine *en, engine_tap tap, void *ctx)
{
    en->tap = tap;
    en->tap_ctx = ctx;
}

void engine_model_id(const struct engine *en, struct kvc_model_id *ret_id)
{
    const struct geometry *g = &en->net.geometry;

    *ret_id = (struct kvc_model_id){
        .struct_bytes = sizeof(*ret_id),
        .geometry =
            {
                .struct_bytes = sizeof(ret_id->geometry),
                .n_layers = g->n_layers,
                .n_heads = g->n_heads,
                .n_kv_heads = g->n_kv_heads,
                .head_dim = g->d,
                .n_rot = g->n_rot,
                .attn_scale = g->attn_scale,
                .rope_freq = g->freq,
            },
    };
    memcpy(ret_id->model_digest, en->info.model_digest, sizeof(ret_id->model_digest));
}

int engine_output_projection(struct engine *en, uint32_t layer, float *ret_wo, struct errmsg *e)
{
    const struct matrix *w;

    if (layer >= en->net.geometry.n_layers)
        return fail(e, -EINVAL, "layer %u of a model with %u layers", layer, en->net.geometry.n_layers);

    w = &en->net.layers[layer].o;
    linear_rows(w, 0, w->n_rows, ret_wo);
    return 0;
}
