/* Reading texts; see text_file.h. */
#include "tools/text_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"

#define TEXT_BYTES_MAX ((size_t) 1 << 30)

int document_load(const struct engine *en, const char *path, struct document *ret_document, struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    struct document d = { 0 };
    size_t bytes;
    int r;

    r = atomic_file_read(path, TEXT_BYTES_MAX, &text, &bytes, e);
    if (r < 0)
        return r;
    if (bytes >= 2 && memcmp(text, "\x1f\x8b", 2) == 0)
        return fail(e, -EINVAL, "%s is compressed; unpack it first (gunzip -c %s > TEXT)", path, path);
    r = tokenizer_encode(engine_tokenizer(en), text, bytes, false, &d.tokens, &d.n_tokens, e);
    if (r < 0)
        return r;
    if (d.n_tokens == 0) {
        document_deinit(&d);
        return fail(e, -EINVAL, "%s is empty", path);
    }
    *ret_document = d;
    return 0;
}

void document_deinit(struct document *d)
{
    free(d->tokens);
    *d = (struct document) { 0 };
}
