/* Exact and compressed runs side by side; see evaluation.h. */
#include "tools/evaluation.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/handles.h"
#include "tools/progress.h"

/* Positions whose logits exist at one time: two blocks of 64 x 49152 binary32 are 24 MiB, a whole window would be
 * hundreds. */
enum { LOGIT_ROWS = 64 };

struct run {
    struct engine *en;
    const struct evaluation_options *o;
    struct progress *p;
    double done;                  /* tokens, as the progress line counts them */
    struct exact_cache *exact;
    uint32_t *tokens;             /* [window] with BOS if the model wants one */
    float *hidden[2];             /* [window, n_embd] exact, compressed */
    float *logits[2];             /* [LOGIT_ROWS, n_vocab] */
    struct evaluation sum;
};

static void run_deinit(struct run *r)
{
    exact_cache_free(r->exact);
    free(r->tokens);
    for (int i = 0; i < 2; i++) {
        free(r->hidden[i]);
        free(r->logits[i]);
    }
}

static float *floats_new(size_t rows, size_t columns)
{
    size_t bytes;

    return checked_mul3(rows, columns, sizeof(float), &bytes) ? malloc(bytes) : NULL;
}

static int run_init(struct run *r, struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);

    r->tokens = calloc(r->o->window, sizeof(*r->tokens));
    for (int i = 0; i < 2; i++) {
        r->hidden[i] = floats_new(r->o->window, info->n_embd);
        r->logits[i] = floats_new(LOGIT_ROWS, info->n_vocab);
    }
    if (!r->tokens || !r->hidden[0] || !r->hidden[1] || !r->logits[0] || !r->logits[1])
        return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", r->o->window);
    return exact_cache_new(engine_geometry(r->en), r->o->window, &r->exact, e);
}

/* Layer by layer, so that the progress line moves within a window. */
static int run_model(struct run *r, struct kv_cache *cache, size_t n, float *hidden, struct errmsg *e)
{
    uint32_t n_layers = engine_geometry(r->en)->n_layers;
    int err = engine_embed(r->en, r->tokens, n, hidden, e);

    for (uint32_t layer = 0; err == 0 && layer < n_layers; layer++) {
        err = engine_layers(r->en, cache, layer, layer + 1, n, hidden, e);
        progress_update(r->p, r->done + (double) n * (layer + 1) / n_layers);
    }
    r->done += (double) n;
    return err;
}

static void add_usage(kvc_usage *sum, const kvc_usage *u)
{
    sum->tokens += u->tokens;
    sum->numbers += u->numbers;
    sum->code_bytes += u->code_bytes;
    sum->padding_bytes += u->padding_bytes;
    sum->header_bytes += u->header_bytes;
    sum->sink_bytes += u->sink_bytes;
    sum->tail_bytes += u->tail_bytes;
    sum->shared_bytes += u->shared_bytes;
}

static int run_compressed(struct run *r, kvc_client *c, kvc_model *m, size_t n, struct errmsg *e)
{
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    kvc_usage usage = { .struct_bytes = sizeof(usage) };
    struct kv_cache cache;
    int err;

    err = kvc_seq_new_eval(m, &r->o->eval, &s);
    if (err < 0)
        return fail(e, err, "%s", kvc_last_error(c));
    cache = kvcobra_cache_ops(c, s);
    err = run_model(r, &cache, n, r->hidden[1], e);
    if (err < 0)
        return err;
    err = kvc_seq_get_usage(s, &usage);
    if (err < 0)
        return fail(e, err, "%s", kvc_last_error(c));
    add_usage(&r->sum.usage, &usage);
    return 0;
}

/* Distances between the two runs of a window of @n tokens. */
static int compare(struct run *r, size_t n, struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);

    for (size_t first = 0; first < n; first += LOGIT_ROWS) {
        size_t rows = n - first < LOGIT_ROWS ? n - first : LOGIT_ROWS;

        for (int i = 0; i < 2; i++) {
            int err = engine_logits(r->en, rows, r->hidden[i] + first * info->n_embd, r->logits[i], e);

            if (err < 0)
                return err;
        }
        for (size_t row = 0; row < rows; row++) {
            const float *exact = r->logits[0] + row * info->n_vocab, *packed = r->logits[1] + row * info->n_vocab;

            r->sum.kl += kl_of(exact, packed, info->n_vocab);
            if (first + row + 1 == n) /* the token after the window belongs to the next one */
                continue;
            r->sum.nll_exact += nll_of(exact, info->n_vocab, r->tokens[first + row + 1]);
            r->sum.nll += nll_of(packed, info->n_vocab, r->tokens[first + row + 1]);
        }
    }
    return 0;
}

static int run_window(struct run *r, kvc_client *c, kvc_model *m, size_t n, struct errmsg *e)
{
    struct kv_cache exact;
    int err;

    exact_cache_clear(r->exact);
    exact = exact_cache_ops(r->exact);
    err = run_model(r, &exact, n, r->hidden[0], e);
    if (err < 0)
        return err;
    err = run_compressed(r, c, m, n, e);
    if (err < 0)
        return err;
    err = compare(r, n, e);
    if (err < 0)
        return err;
    r->sum.n_tokens += n;
    r->sum.n_predictions += n - 1;
    r->sum.n_windows++;
    r->sum.last_window = n;
    return 0;
}

size_t evaluation_tokens(const struct evaluation_options *o, size_t available)
{
    size_t n = available < o->n_tokens ? available : o->n_tokens;

    return n % o->window == 1 ? n - 1 : n; /* one token alone predicts nothing */
}

/* Fills the window from @text; with a BOS the first token is not of the text and one fewer of it is taken. */
static void fill_window(const struct run *r, const uint32_t *text, size_t n)
{
    const struct engine_info *info = engine_info(r->en);
    size_t bos = info->add_bos && info->token_bos < info->n_vocab;

    if (bos)
        r->tokens[0] = info->token_bos;
    memcpy(r->tokens + bos, text, (n - bos) * sizeof(*text));
}

int evaluate(struct engine *en, kvc_client *c, kvc_model *m, const uint32_t *tokens, size_t n_tokens,
             const struct evaluation_options *o, struct progress *p, struct evaluation *ret, struct errmsg *e)
{
    _cleanup_(run_deinit) struct run r = { .en = en, .o = o, .p = p };
    size_t n = evaluation_tokens(o, n_tokens);
    int err;

    assert(o->window >= 2);
    if (n < 2)
        return fail(e, -EINVAL, "the text has fewer than two tokens: there is nothing to predict");
    err = run_init(&r, e);
    for (size_t first = 0; err == 0 && first < n; first += o->window) {
        size_t in_window = n - first < o->window ? n - first : o->window;

        fill_window(&r, tokens + first, in_window);
        err = run_window(&r, c, m, in_window, e);
    }
    if (err < 0)
        return err;
    *ret = r.sum;
    return 0;
}
