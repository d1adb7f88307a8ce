/* Exact and compressed runs side by side; see evaluation.h. */
#include "tools/eval/evaluation.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/eval/subject.h"

/* Positions whose logits are held at a time: two blocks of 64 x 49152 binary32 are 24 MiB, a whole window
 * would be hundreds. */
enum { LOGIT_ROWS = 64 };

struct evaluation_run {
    struct engine *en;
    struct subject *const *subjects;
    size_t n_subjects;
    const struct evaluation_options *o;
    struct progress *p;
    double done; /* tokens, as the progress line counts them */
    struct exact_cache *exact;
    uint32_t *tokens;        /* [window] with BOS if the model has one */
    float *hidden;           /* [1 + n_subjects, window, n_embd] the exact model's first */
    float *logits[2];        /* [LOGIT_ROWS, n_vocab] exact, compressed */
    struct evaluation *sums; /* [n_subjects] */
    double *kl_before;       /* [n_subjects] sums before the current window */
};

static void evaluation_run_deinit(struct evaluation_run *r)
{
    exact_cache_free(r->exact);
    free(r->tokens);
    free(r->hidden);
    for (int i = 0; i < 2; i++)
        free(r->logits[i]);
    free(r->sums);
    free(r->kl_before);
}

static float *evaluation_floats_new(size_t rows, size_t columns)
{
    size_t bytes;

    return checked_mul3(rows, columns, sizeof(float), &bytes) ? malloc(bytes) : NULL;
}

static int evaluation_run_init(struct evaluation_run *r, struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    size_t rows;

    r->tokens = calloc(r->o->window, sizeof(*r->tokens));
    r->sums = calloc(r->n_subjects, sizeof(*r->sums));
    r->kl_before = calloc(r->n_subjects, sizeof(*r->kl_before));
    if (checked_mul(r->o->window, 1 + r->n_subjects, &rows))
        r->hidden = evaluation_floats_new(rows, info->n_embd);
    for (int i = 0; i < 2; i++)
        r->logits[i] = evaluation_floats_new(LOGIT_ROWS, info->n_vocab);
    if (!r->tokens || !r->sums || !r->kl_before || !r->hidden || !r->logits[0] || !r->logits[1])
        return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", r->o->window);

    return exact_cache_new(engine_geometry(r->en), r->o->window, &r->exact, e);
}

/* Final hidden states of run @i: 0 the exact model, 1 + j subject j. */
static float *evaluation_hidden_of(const struct evaluation_run *r, size_t i)
{
    return r->hidden + i * r->o->window * engine_info(r->en)->n_embd;
}

/* Layer by layer, so that the progress line moves within a window. */
static int evaluation_run_model(struct evaluation_run *r, struct kv_cache *cache, size_t n, float *hidden,
                                struct errmsg *e)
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

static int evaluation_run_subject(struct evaluation_run *r, size_t i, size_t n, struct errmsg *e)
{
    struct subject *s = r->subjects[i];
    struct kv_cache cache;
    int err, ended;

    err = subject_begin(s, n, &cache, e);
    if (err < 0)
        return err;

    err = evaluation_run_model(r, &cache, n, evaluation_hidden_of(r, 1 + i), e);
    ended = subject_end(s, err == 0, e);
    return err < 0 ? err : ended;
}

/* Compares rows first .. first + rows - 1 of one subject with the exact model's, whose logits are in
 * logits[0]. */
static int evaluation_compare_rows(struct evaluation_run *r, size_t i, size_t first, size_t rows, size_t n,
                                   struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    struct evaluation *sum = &r->sums[i];
    int err =
        engine_logits(r->en, rows, evaluation_hidden_of(r, 1 + i) + first * info->n_embd, r->logits[1], e);

    for (size_t row = 0; err == 0 && row < rows; row++) {
        const float *exact = r->logits[0] + row * info->n_vocab, *packed = r->logits[1] + row * info->n_vocab;

        sum->kl += sampler_kl(exact, packed, info->n_vocab);
        if (first + row + 1 == n) /* the token after the window belongs to the next one */
            continue;

        sum->nll_exact += sampler_nll(exact, info->n_vocab, r->tokens[first + row + 1]);
        sum->nll += sampler_nll(packed, info->n_vocab, r->tokens[first + row + 1]);
    }

    return err;
}

/* Distances between the runs of a window of @n tokens. */
static int evaluation_compare(struct evaluation_run *r, size_t n, struct errmsg *e)
{
    for (size_t first = 0; first < n; first += LOGIT_ROWS) {
        size_t rows = n - first < LOGIT_ROWS ? n - first : LOGIT_ROWS;
        int err = engine_logits(r->en, rows, evaluation_hidden_of(r, 0) + first * engine_info(r->en)->n_embd,
                                r->logits[0], e);

        for (size_t i = 0; err == 0 && i < r->n_subjects; i++)
            err = evaluation_compare_rows(r, i, first, rows, n, e);
        if (err < 0)
            return err;
    }

    return 0;
}

/* The KL of the window that was just compared: the sums grew by it. */
static void evaluation_note_window(struct evaluation_run *r, size_t n, size_t n_windows)
{
    for (size_t i = 0; i < r->n_subjects; i++) {
        size_t at = r->sums[i].n_windows;

        r->o->window_kl[i * n_windows + at] = (r->sums[i].kl - r->kl_before[i]) / (double) n;
        r->kl_before[i] = r->sums[i].kl;
    }
}

static int evaluation_run_window(struct evaluation_run *r, size_t n, size_t n_windows, struct errmsg *e)
{
    struct kv_cache exact;
    int err;

    exact_cache_clear(r->exact);
    exact = exact_cache_ops(r->exact);
    err = evaluation_run_model(r, &exact, n, evaluation_hidden_of(r, 0), e);
    for (size_t i = 0; err == 0 && i < r->n_subjects; i++)
        err = evaluation_run_subject(r, i, n, e);
    if (err == 0)
        err = evaluation_compare(r, n, e);
    if (err == 0 && r->o->window_kl)
        evaluation_note_window(r, n, n_windows);
    for (size_t i = 0; err == 0 && i < r->n_subjects; i++) {
        r->sums[i].n_tokens += n;
        r->sums[i].n_predictions += n - 1;
        r->sums[i].n_windows++;
        r->sums[i].last_window = n;
    }

    return err;
}

double evaluation_exact_perplexity(const struct evaluation *v)
{
    return exp(v->nll_exact / (double) v->n_predictions);
}

double evaluation_perplexity(const struct evaluation *v)
{
    return exp(v->nll / (double) v->n_predictions);
}

double evaluation_kl(const struct evaluation *v)
{
    return v->kl / (double) v->n_tokens;
}

size_t evaluation_tokens(const struct evaluation_options *o, size_t available)
{
    size_t n = available < o->n_tokens ? available : o->n_tokens;

    return n % o->window == 1 ? n - 1 : n; /* a window of one token has no prediction */
}

size_t evaluation_windows(const struct evaluation_options *o, size_t available)
{
    return (evaluation_tokens(o, available) + o->window - 1) / o->window;
}

/* Fills the window from @text: with a BOS, one token fewer of the text. */
static void evaluation_fill_window(const struct evaluation_run *r, const uint32_t *text, size_t n)
{
    const struct engine_info *info = engine_info(r->en);
    size_t bos = info->add_bos && info->token_bos < info->n_vocab;

    if (bos)
        r->tokens[0] = info->token_bos;
    memcpy(r->tokens + bos, text, (n - bos) * sizeof(*text));
}

int evaluation_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                   const uint32_t *tokens, size_t n_tokens, const struct evaluation_options *o,
                   struct progress *p, struct evaluation *ret, struct errmsg *e)
{
    _cleanup_(evaluation_run_deinit) struct evaluation_run r = {
        .en = en,
        .subjects = subjects,
        .n_subjects = n_subjects,
        .o = o,
        .p = p,
        .done = o->done,
    };
    size_t n = evaluation_tokens(o, n_tokens);
    int err;

    assert(o->window >= 2 && n_subjects > 0);
    if (n < 2)
        return fail(e, -EINVAL, "the text has fewer than two tokens, and nothing can be predicted");

    err = evaluation_run_init(&r, e);
    for (size_t first = 0; err == 0 && first < n; first += o->window) {
        size_t in_window = n - first < o->window ? n - first : o->window;

        evaluation_fill_window(&r, tokens + first, in_window);
        err = evaluation_run_window(&r, in_window, evaluation_windows(o, n_tokens), e);
    }

    if (err < 0)
        return err;

    memcpy(ret, r.sums, n_subjects * sizeof(*ret));
    return 0;
}
