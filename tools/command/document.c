/* Reading and tokenising texts; see document.h. */
#include "tools/command/document.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"
#include "base/stream_file.h"
#include "base/utf8.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"

#define TEXT_BYTES_MAX ((size_t) 1 << 30)

static int document_read_text(const char *path, void **ret_text, size_t *ret_bytes, struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    size_t bytes, bad;
    int r = stream_file_read(path, TEXT_BYTES_MAX, &text, &bytes, e);

    if (r < 0)
        return r;

    bad = utf8_error(text, bytes);
    if (bad < bytes && file_kind_other_than_text(text, bytes))
        return fail(e, -EINVAL, "%s is no text but %s", stream_file_name(path),
                    file_kind_other_than_text(text, bytes));
    if (bad < bytes)
        return fail(e, -EINVAL,
                    "%s is not UTF-8 text: byte 0x%02x at offset %zu; if it is text in another encoding, "
                    "convert it first (iconv -f LATIN1 -t UTF-8 %s > TEXT)",
                    stream_file_name(path), ((const uint8_t *) text)[bad], bad, path);

    *ret_text = take_ptr(text);
    *ret_bytes = bytes;
    return 0;
}

/* Appends the tokens of @n bytes. @room: capacity of d->tokens. */
static int document_append_tokens(const struct engine *en, const char *text, size_t n, struct document *d,
                                  size_t *room, struct errmsg *e)
{
    _cleanup_(freep) uint32_t *tokens = NULL;
    size_t n_tokens = 0;
    int r = tokenizer_encode(engine_tokenizer(en), text, n, false, &tokens, &n_tokens, e);

    if (r < 0 || n_tokens == 0)
        return r;
    if (d->n_tokens + n_tokens > *room) {
        size_t wanted = 2 * (d->n_tokens + n_tokens);
        uint32_t *grown = reallocarray(d->tokens, wanted, sizeof(*grown));

        if (!grown)
            return fail(e, -ENOMEM, "out of memory for a text of %zu tokens", wanted);

        d->tokens = grown;
        *room = wanted;
    }

    memcpy(d->tokens + d->n_tokens, tokens, n_tokens * sizeof(*tokens));
    d->n_tokens += n_tokens;
    return 0;
}

static int document_split_lines(const struct engine *en, const char *text, size_t bytes, struct document *d,
                                struct errmsg *e)
{
    size_t room = 0, n_lines = 1;

    for (size_t i = 0; i < bytes; i++)
        n_lines += text[i] == '\n';
    d->ends = calloc(n_lines, sizeof(*d->ends));
    if (!d->ends)
        return fail(e, -ENOMEM, "out of memory for %zu lines", n_lines);

    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t end = newline ? (size_t) (newline - text) : bytes, length = end - at, before = d->n_tokens;
        int r;

        length -= length > 0 && text[end - 1] == '\r';
        r = document_append_tokens(en, text + at, length, d, &room, e);
        if (r < 0)
            return r;
        if (d->n_tokens > before)
            d->ends[d->n_parts++] = d->n_tokens;
        at = end + 1;
    }

    return 0;
}

static int document_load_any(const struct engine *en, const char *path, bool lines,
                             struct document *ret_document, struct errmsg *e)
{
    _cleanup_(document_deinit) struct document d = {0};
    _cleanup_(freep) void *text = NULL;
    size_t bytes = 0, room = 0;
    int r = document_read_text(path, &text, &bytes, e);

    if (r < 0)
        return r;

    d.n_bytes = bytes;
    (void) crypto_hash_sha256(d.digest, text, bytes);
    r = lines ? document_split_lines(en, text, bytes, &d, e)
              : document_append_tokens(en, text, bytes, &d, &room, e);
    if (r < 0)
        return r;
    if (d.n_tokens == 0)
        return fail(e, -EINVAL, "%s is empty", stream_file_name(path));

    *ret_document = d;
    d = (struct document){0};
    return 0;
}

int document_load(const struct engine *en, const char *path, struct document *ret_document, struct errmsg *e)
{
    return document_load_any(en, path, false, ret_document, e);
}

int document_load_lines(const struct engine *en, const char *path, struct document *ret_document,
                        struct errmsg *e)
{
    return document_load_any(en, path, true, ret_document, e);
}

int document_add_bos(const struct engine *en, struct document *d, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    uint32_t *tokens;

    if (!info->add_bos || info->token_bos >= info->n_vocab)
        return 0;

    tokens = realloc(d->tokens, (d->n_tokens + 1) * sizeof(*tokens));
    if (!tokens)
        return fail(e, -ENOMEM, "out of memory for a prompt of %zu tokens", d->n_tokens);

    memmove(tokens + 1, tokens, d->n_tokens * sizeof(*tokens));
    tokens[0] = info->token_bos;
    d->tokens = tokens;
    d->n_tokens++;
    return 0;
}

void document_deinit(struct document *d)
{
    free(d->tokens);
    free(d->ends);
    *d = (struct document){0};
}
