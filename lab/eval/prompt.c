/* See prompt.h. */
#include "lab/eval/prompt.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "tools/command/generation.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"
#include "tools/eval/subject.h"

int prompt_piece_init(struct prompt_piece *p, const struct engine *en, const char *text, struct errmsg *e)
{
    return tokenizer_encode(engine_tokenizer(en), text, strlen(text), false, &p->tokens, &p->n, e);
}

void prompt_piece_deinit(struct prompt_piece *p)
{
    free(p->tokens);
    *p = (struct prompt_piece){0};
}

int prompt_init(struct prompt *p, size_t room, struct errmsg *e)
{
    *p = (struct prompt){calloc(room, sizeof(*p->tokens)), 0, room};
    return p->tokens ? 0 : fail(e, -ENOMEM, "out of memory for texts of %zu tokens", room);
}

void prompt_deinit(struct prompt *p)
{
    free(p->tokens);
    *p = (struct prompt){0};
}

size_t prompt_bos(const struct engine *en)
{
    const struct engine_info *info = engine_info(en);

    return info->add_bos && info->token_bos < info->n_vocab;
}

void prompt_begin(struct prompt *p, const struct engine *en)
{
    p->n = 0;
    if (prompt_bos(en))
        prompt_put(p, &engine_info(en)->token_bos, 1);
}

void prompt_put(struct prompt *p, const uint32_t *tokens, size_t n)
{
    assert(n <= p->room - p->n);
    memcpy(p->tokens + p->n, tokens, n * sizeof(*tokens));
    p->n += n;
}

int prompt_read(struct engine *en, struct kv_cache *cache, const struct prompt *p, struct prompt_progress *pp,
                struct errmsg *e)
{
    for (size_t done = 0; done < p->n;) {
        size_t left = p->n - done, piece = left < GENERATION_PIECE_TOKENS ? left : GENERATION_PIECE_TOKENS;
        int r = engine_forward(en, cache, p->tokens + done, piece, NULL, e);

        if (r != 0)
            return r;

        done += piece;
        pp->done += (double) piece;
        progress_update(pp->p, pp->done);
    }

    return 0;
}

/* ---- answers ---- */

struct prompt_answer {
    const struct tokenizer *tokenizer;
    const struct prompt_progress *pp;
    char *text; /* [PROMPT_ANSWER_BYTES], terminated; a NUL byte that the model wrote ends it */
    size_t n;
};

static int prompt_take_token(void *ctx, uint32_t token)
{
    struct prompt_answer *a = ctx;
    size_t bytes;
    const char *piece = tokenizer_piece(a->tokenizer, token, &bytes);

    for (size_t i = 0; piece && i < bytes && a->n + 1 < PROMPT_ANSWER_BYTES; i++)
        a->text[a->n++] = piece[i];
    return 0;
}

static void prompt_note_progress(void *ctx, size_t n_done)
{
    const struct prompt_answer *a = ctx;

    progress_update(a->pp->p, a->pp->done + (double) n_done);
}

int prompt_ask(struct engine *en, struct subject *s, const struct prompt *p, size_t n_tokens,
               struct prompt_progress *pp, char ret_text[static PROMPT_ANSWER_BYTES], struct errmsg *e)
{
    struct prompt_answer a = {engine_tokenizer(en), pp, ret_text, 0};
    const struct generation_options go = {
        .n_tokens = n_tokens,
        .emit = prompt_take_token,
        .progress = prompt_note_progress,
        .ctx = &a,
    };
    struct generation g;
    struct kv_cache cache;
    int r = subject_begin(s, p->n + n_tokens, &cache, e), ended;

    if (r < 0)
        return r;

    memset(ret_text, 0, PROMPT_ANSWER_BYTES);
    r = generation_run(en, &cache, NULL, NULL, p->tokens, p->n, &go, &g, e);
    ended = subject_end(s, r == 0, e);
    pp->done += (double) p->n;
    return r < 0 ? r : ended;
}
