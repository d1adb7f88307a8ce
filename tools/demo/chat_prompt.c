/* See chat_prompt.h. */
#include "tools/demo/chat_prompt.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"

/* What stands before the text, between text and question, and behind the question. */
struct chat_form {
    const char *token; /* a control token that models of this form have; NULL: any model */
    const char *begin, *middle, *end;
};

static const struct chat_form forms[] = {
    {"<|im_start|>", "<|im_start|>user\nRead this text:\n\n", "\n\n", "<|im_end|>\n<|im_start|>assistant\n"},
    {"<|start_header_id|>", "<|start_header_id|>user<|end_header_id|>\n\nRead this text:\n\n", "\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {NULL, "", "\n\nQuestion: ", "\nAnswer:"},
};

/* Appends the tokens of @text. @control: it is ours, and may have control tokens. */
static int chat_prompt_add(const struct engine *en, const char *text, bool control, struct document *d,
                           struct errmsg *e)
{
    _cleanup_(freep) uint32_t *tokens = NULL;
    uint32_t *all;
    size_t n;
    int r = tokenizer_encode(engine_tokenizer(en), text, strlen(text), control, &tokens, &n, e);

    if (r < 0 || n == 0)
        return r;

    all = realloc(d->tokens, (d->n_tokens + n) * sizeof(*all));
    if (!all)
        return fail(e, -ENOMEM, "out of memory for a prompt of %zu tokens", d->n_tokens + n);
    memcpy(all + d->n_tokens, tokens, n * sizeof(*all));
    d->tokens = all;
    d->n_tokens += n;
    return 0;
}

static bool chat_prompt_has(const struct engine *en, const char *token)
{
    _cleanup_(freep) uint32_t *ids = NULL;
    size_t n = 0;

    return tokenizer_encode(engine_tokenizer(en), token, strlen(token), true, &ids, &n, NULL) == 0 && n == 1;
}

static const struct chat_form *chat_prompt_form(const struct engine *en)
{
    const struct chat_form *f = forms;

    while (f->token && !chat_prompt_has(en, f->token))
        f++;
    return f;
}

int chat_prompt_make(const struct engine *en, const char *question, struct document *text, struct errmsg *e)
{
    const struct chat_form *f = chat_prompt_form(en);
    _cleanup_(document_deinit) struct document d = {.tokens = NULL};
    uint32_t *tokens;
    int r = chat_prompt_add(en, f->begin, true, &d, e);

    if (r < 0)
        return r;

    tokens = realloc(d.tokens, (d.n_tokens + text->n_tokens + 1) * sizeof(*tokens));
    if (!tokens)
        return fail(e, -ENOMEM, "out of memory for a prompt of %zu tokens", d.n_tokens + text->n_tokens);
    d.tokens = tokens;
    memcpy(tokens + d.n_tokens, text->tokens, text->n_tokens * sizeof(*tokens));
    d.n_tokens += text->n_tokens;

    r = chat_prompt_add(en, f->middle, true, &d, e);
    if (r == 0)
        r = chat_prompt_add(en, question, false, &d, e);
    if (r == 0)
        r = chat_prompt_add(en, f->end, true, &d, e);
    if (r < 0)
        return r;

    tokens = text->tokens;
    text->tokens = d.tokens;
    text->n_tokens = d.n_tokens;
    d.tokens = tokens; /* to be freed */
    return 0;
}
