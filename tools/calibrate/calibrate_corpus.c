/* See calibrate_corpus.h. */
#include "tools/calibrate/calibrate_corpus.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/calibrate_arguments.h"
#include "tools/calibrate/corpus_openings.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"

/* ---- texts ---- */

static void calibrate_corpus_free_documents(struct document *d, size_t n)
{
    for (size_t i = 0; d && i < n; i++)
        document_deinit(&d[i]);
    free(d);
}

static void calibrate_corpus_note_text(const struct calibrate_arguments *a, const struct corpus *c, size_t i)
{
    size_t windows = 0, repeated = 0;

    for (size_t j = 0; j < c->n_sources; j++)
        if (c->text_of[j] == i) {
            windows += c->sources[j].windows;
            repeated += c->repeated[j];
        }
    if (windows == 0 && repeated > 0)
        command_note(&a->common,
                     "%s is not used: it repeats itself or another text, so that its %zu windows have "
                     "nothing new",
                     a->texts[i], repeated);
    else if (windows == 0)
        command_note(&a->common,
                     "%s is not used: it has no window of %s%zu tokens, or --tokens was reached before it",
                     a->texts[i], a->lines ? "16 to " : "", a->window);
    else if (repeated > 0)
        command_note(&a->common,
                     "%s repeats itself or another text: %zu of its windows have nothing new and are left "
                     "out, so that it weighs no more than its %zu others",
                     a->texts[i], repeated, windows);
}

static int calibrate_corpus_load(const struct engine *en, const struct calibrate_arguments *a,
                                 struct document *texts, struct errmsg *e)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < a->n_texts; i++)
        r = a->lines ? document_load_lines(en, a->texts[i], &texts[i], e)
                     : document_load(en, a->texts[i], &texts[i], e);
    return r;
}

int calibrate_corpus_read(const struct engine *en, const struct calibrate_arguments *a,
                          struct corpus *ret_texts, struct errmsg *e)
{
    const struct corpus_options o = {
        .n_tokens = a->n_tokens,
        .window = a->window,
        .want_held = calibrate_arguments_want_depth(a),
        /* kinds that the model writes are sources enough */
        .n_pieces = a->n_generate == 0 && a->own_share == 0 ? CORPUS_KINDS : 0,
    };
    struct document *texts;
    int r;

    if (a->n_texts == 0)
        return 0;

    texts = calloc(a->n_texts, sizeof(*texts));
    r = texts ? calibrate_corpus_load(en, a, texts, e)
              : fail(e, -ENOMEM, "out of memory for %zu texts", a->n_texts);
    if (r == 0)
        r = corpus_from_texts(en, texts, a->n_texts, &o, ret_texts, e);
    calibrate_corpus_free_documents(texts, a->n_texts);
    if (r < 0)
        return r;

    if (corpus_tokens(ret_texts) < a->n_tokens)
        command_note(&a->common, "the text is short: statistics of %zu tokens instead of %zu",
                     corpus_tokens(ret_texts), a->n_tokens);
    for (size_t i = 0; i < a->n_texts; i++)
        calibrate_corpus_note_text(a, ret_texts, i);
    return 0;
}

/* ---- text of the model ---- */

/* Whole windows, or a shorter one if the share is less than one window. */
static void calibrate_corpus_divide(size_t n, struct corpus_options *o)
{
    size_t n_windows = (n + o->window / 2) / o->window;

    o->n_tokens = n_windows * o->window;
    if (n_windows == 0 && n >= CALIBRATE_WINDOW_MIN)
        o->n_tokens = o->window = n;
}

struct corpus_options calibrate_corpus_own(const struct calibrate_arguments *a, const struct corpus *texts)
{
    struct corpus_options o = {
        .n_tokens = a->n_generate,
        .window = a->window,
        /* windows are held out of the texts, if there are texts */
        .want_held = calibrate_arguments_want_depth(a) && a->n_texts == 0,
        .seed = a->seed,
    };
    size_t n_used = 0;

    if (a->n_texts == 0)
        return o;

    for (size_t i = 0; i < texts->n_sources; i++)
        n_used += texts->sources[i].windows > 0;
    if (a->n_generate == 0) /* a share p of all tokens: p / (1 - p) of those of the texts */
        calibrate_corpus_divide(corpus_tokens(texts) * a->own_share / (100 - a->own_share), &o);
    o.seed = corpus_own_seed(texts, a->seed);
    o.one_source = n_used + CORPUS_KINDS > STATS_DOMAINS_MAX;
    return o;
}

int calibrate_corpus_write(struct engine *en, const struct calibrate_arguments *a,
                           const struct corpus_options *own, struct corpus *c, struct errmsg *e)
{
    _cleanup_(corpus_deinit) struct corpus written = {0};
    _cleanup_(progress_end) struct progress p = {0};
    size_t n = corpus_windows(own->n_tokens, own->window);
    int r;

    if (n == 0)
        return 0;
    if (a->n_texts == 0)
        command_note(&a->common, "no --text: the model writes text of six kinds; text like the model's later "
                                 "input is better for that input");
    else if (a->n_generate == 0)
        command_note(&a->common,
                     "the model writes %zu tokens beside the text, for input of other kinds (--own-share)",
                     n * own->window);
    n += own->want_held ? corpus_held(own->window) : 0;
    progress_start(&p, "generating text", "tokens", (double) (n * own->window), a->common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    r = corpus_from_model(en, own, &p, a->n_texts == 0 ? c : &written, e);
    return r < 0 || a->n_texts == 0 ? r : corpus_join(c, &written, e);
}
