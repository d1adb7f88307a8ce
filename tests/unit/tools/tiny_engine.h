/* A small random model and texts for it, for tests of calibration and evaluation. */
#pragma once

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/calibrate/corpus.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"

static inline struct engine *open_tiny(void)
{
    char path[] = "/tmp/kvc-test-calibration-XXXXXX";
    const struct engine_options eo = {.n_threads = 2};
    struct tiny_gguf_options o = {.n_layers = 3};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    struct engine *en = NULL;
    struct errmsg e = {""};
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL(engine_open(path, &eo, &en, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    (void) unlink(path);
    assert(en);
    return en;
}

static inline struct progress silent(void)
{
    struct progress p;

    progress_start(&p, "testing", NULL, 1, true);
    return p;
}

/* A document of @n tokens that does not repeat itself, and has no part of a document with another @first. */
static inline struct document make_text(size_t n, uint32_t first)
{
    struct document d = {.n_tokens = n, .n_bytes = n, .tokens = calloc(n, sizeof(*d.tokens))};

    assert(d.tokens);
    for (size_t i = 0; i < n; i++)
        d.tokens[i] = (uint32_t) (splitmix64_seed(first, i) % 251);
    d.digest[0] = (uint8_t) first;
    return d;
}
