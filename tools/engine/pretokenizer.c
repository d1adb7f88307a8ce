/*
 * Pre-tokenisers on PCRE2; see pretokenizer.h.
 *
 * A pre-tokeniser is one or more patterns. Each cuts its input into matches and the text between them, and
 * works inside the pieces of the one before, whose ends it treats as the ends of the text, like the
 * originals.
 *
 * White space is spelled out as Unicode's White_Space property: PCRE2's own \s differs from it in U+180E. The
 * matcher runs with a step limit, so that hostile text causes an error instead of an endless search.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tools/engine/pretokenizer.h"

#include <errno.h>
#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/utf8.h"

enum {
    STAGES_MAX = 4,
    MATCH_LIMIT = 50 * 1000 * 1000, /* steps of one match; ordinary text needs tens */
    HEAP_LIMIT_KIB = 64 * 1024,
};

#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define SPACES_AT_END "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

/* GPT-2: contractions, then words, numbers and symbols with one leading space. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES_AT_END
/* GPT-4 and its descendants: any case, a word takes one leading symbol, symbols take the newlines after
 * them. */
#define GPT4(digits)                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE                       \
    "\\p{L}\\p{N}]+[\\r\\n]*|"                                                                               \
    "[" SPACE "]*[\\r\\n]+|" SPACES_AT_END

static const struct family {
    const char *name;
    const char *patterns[STAGES_MAX];
    bool ignores_merges;
} families[] = {
    {"gpt2", {GPT2}, false},
    {"gpt-2", {GPT2}, false},
    /* what llama.cpp uses for a file that names none: punctuation and three digits at a time stand alone */
    {"default", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false},
    /* Digits are isolated. The model's own tokeniser isolates every \p{N}; transformers reading the same GGUF
     * file, our golden reference, does not isolate at all. With \p{Nd} all decimal text is cut as both cut
     * it, and "½" or "²" as the reference does (one place in the 312144 tokens of WikiText-2 test,
     * 2026-11-21). */
    {"smollm", {"\\p{Nd}", GPT2}, false},
    {"llama-bpe", {GPT4("\\p{N}{1,3}")}, true},
    {"qwen2", {GPT4("\\p{N}")}, false},
};

struct pretokenizer {
    const struct family *family;
    unsigned n_stages;
    pcre2_code *codes[STAGES_MAX];
};

static void pretokenize_match_context_freep(pcre2_match_context **m)
{
    pcre2_match_context_free(*m);
}

static void pretokenize_freep(struct pretokenizer **p)
{
    *p = pretokenizer_free(*p);
}

struct pretokenizer *pretokenizer_free(struct pretokenizer *p)
{
    if (!p)
        return NULL;

    for (unsigned i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->codes[i]);
    free(p);
    return NULL;
}

static const struct family *pretokenize_find_family(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strlen(families[i].name) == bytes && memcmp(families[i].name, name, bytes) == 0)
            return &families[i];
    return NULL;
}

int pretokenizer_new(const char *name, size_t name_bytes, struct pretokenizer **ret_pre, struct errmsg *e)
{
    _cleanup_(pretokenize_freep) struct pretokenizer *p = NULL;
    const struct family *f = pretokenize_find_family(name, name_bytes);

    if (!f)
        return fail(e, -EOPNOTSUPP,
                    "the pre-tokeniser \"%.*s\" is not one of gpt2, default, smollm, llama-bpe, qwen2",
                    name_bytes < 64 ? (int) name_bytes : 64, name);

    p = calloc(1, sizeof(*p));
    if (!p)
        return fail(e, -ENOMEM, "no memory for the pre-tokeniser");

    p->family = f;
    for (unsigned i = 0; i < STAGES_MAX && f->patterns[i]; i++) {
        PCRE2_SIZE at;
        int error;

        p->codes[i] = pcre2_compile((PCRE2_SPTR) f->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &error, &at, NULL);
        if (!p->codes[i])
            return fail(e, -ENOMEM, "PCRE2 refused the pattern of the pre-tokeniser %s (error %d)", f->name,
                        error);

        p->n_stages++;
        /* without it, the interpreter matches */
        (void) pcre2_jit_compile(p->codes[i], PCRE2_JIT_COMPLETE);
    }

    *ret_pre = take_ptr(p);
    return 0;
}

bool pretokenizer_ignores_merges(const struct pretokenizer *p)
{
    return p->family->ignores_merges;
}

/* Bytes of the run at @s of valid characters (@valid), or of invalid bytes. */
static size_t pretokenize_run_bytes(const char *s, size_t left, bool valid)
{
    size_t n = 0;

    while (n < left) {
        size_t c = utf8_length(s + n, left - n);

        if ((c > 0) != valid)
            break;

        n += c > 0 ? c : 1;
    }

    return n;
}

struct pretokenizer_split {
    const struct pretokenizer *p;
    pcre2_match_data *match[STAGES_MAX]; /* one per stage: they nest */
    pcre2_match_context *limits;
    pretokenizer_piece piece;
    void *ctx;
    struct errmsg *e;
};

static void pretokenize_split_deinit(struct pretokenizer_split *s)
{
    for (unsigned i = 0; i < STAGES_MAX; i++)
        pcre2_match_data_free(s->match[i]);
}

static int pretokenize_split_stage(struct pretokenizer_split *s, unsigned stage, const char *text,
                                   size_t bytes);

static int pretokenize_pass_piece(struct pretokenizer_split *s, unsigned stage, const char *text,
                                  size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (stage < s->p->n_stages)
        return pretokenize_split_stage(s, stage, text, bytes);

    return s->piece(s->ctx, text, bytes);
}

static int pretokenize_split_stage(struct pretokenizer_split *s, unsigned stage, const char *text,
                                   size_t bytes)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match[stage]);
    size_t at = 0;
    int r;

    while (at < bytes) {
        r = pcre2_match(s->p->codes[stage], (PCRE2_SPTR) text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                        s->match[stage], s->limits);
        if (r == PCRE2_ERROR_NOMATCH)
            break;
        if (r == PCRE2_ERROR_NOMEMORY)
            return fail(s->e, -ENOMEM, "no memory to split the text into words");
        if (r < 0)
            return fail(s->e, -E2BIG,
                        "splitting %zu bytes of text into words exceeds the step limit (PCRE2 error %d)",
                        bytes, r);

        r = pretokenize_pass_piece(s, stage + 1, text + at, range[0] - at);
        if (r == 0)
            r = pretokenize_pass_piece(s, stage + 1, text + range[0], range[1] - range[0]);
        if (r != 0)
            return r;

        at = range[1];
    }

    return pretokenize_pass_piece(s, stage + 1, text + at, bytes - at);
}

int pretokenizer_split(const struct pretokenizer *p, const char *text, size_t bytes, pretokenizer_piece piece,
                       void *ctx, struct errmsg *e)
{
    _cleanup_(pretokenize_match_context_freep) pcre2_match_context *limits = pcre2_match_context_create(NULL);
    _cleanup_(pretokenize_split_deinit) struct pretokenizer_split s = {
        .p = p, .limits = limits, .piece = piece, .ctx = ctx, .e = e};
    bool has_memory = limits;

    for (unsigned i = 0; i < p->n_stages; i++) {
        s.match[i] = pcre2_match_data_create(1, NULL);
        has_memory = has_memory && s.match[i];
    }
    if (!has_memory)
        return fail(e, -ENOMEM, "no memory to split the text into words");

    (void) pcre2_set_match_limit(limits, MATCH_LIMIT);
    (void) pcre2_set_heap_limit(limits, HEAP_LIMIT_KIB);

    for (size_t at = 0; at < bytes;) {
        size_t n = pretokenize_run_bytes(text + at, bytes - at, true);
        int r;

        if (n > 0) {
            r = pretokenize_split_stage(&s, 0, text + at, n);
        } else {
            n = pretokenize_run_bytes(text + at, bytes - at, false);
            r = piece(ctx, text + at, n);
        }

        if (r != 0)
            return r;

        at += n;
    }

    return 0;
}
