/*
 * Building a tokeniser from the keys tokenizer.ggml.* of a GGUF file.
 *
 * Byte-level vocabularies are written in an alphabet of 256 printable characters, one per byte: bytes that
 * are printable in Latin-1 stand for themselves, the other 68 are U+0100 and up in ascending order. Tokens
 * are converted to their bytes here; no other file uses the alphabet.
 */
#include "tools/engine/tokenizer.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/gguf.h"
#include "tools/engine/pretokenizer.h"
#include "tools/engine/tokenizer_data.h"

#include <errno.h>
#include <string.h>

enum {
    VOCAB_MAX = 1 << 24,
    ALPHABET_END = 256 + 68, /* code points of the alphabet are below this */
    SHOWN_MAX = 40,
};

enum token_type { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4 };

struct alphabet {
    int16_t byte_of[ALPHABET_END]; /* -1: not in the alphabet */
};

static void tokenizer_load_alphabet_init(struct alphabet *a)
{
    int16_t next = 256;

    for (size_t i = 0; i < ALPHABET_END; i++)
        a->byte_of[i] = -1;
    for (int16_t b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        a->byte_of[itself ? b : next++] = b;
    }
}

/* Converts @text to its bytes, at most as many. False: it has a character outside the alphabet. */
static bool tokenizer_load_to_bytes(const struct alphabet *a, const char *text, size_t n, char *dst,
                                    size_t *ret_n)
{
    const unsigned char *s = (const unsigned char *) text;
    size_t n_dst = 0;

    for (size_t i = 0; i < n;) {
        unsigned c = s[i++];

        if (c >= 0x80) { /* the alphabet ends below U+0800: at most two bytes */
            if (c < 0xc2 || c > 0xdf || i == n || (s[i] & 0xc0) != 0x80)
                return false;

            c = (c & 31) << 6 | (s[i++] & 63);
        }

        if (c >= ALPHABET_END || a->byte_of[c] < 0)
            return false;

        dst[n_dst++] = (char) a->byte_of[c];
    }

    *ret_n = n_dst;
    return true;
}

static int load_types(const struct gguf *g, uint32_t n_vocab, int32_t **ret_types, struct errmsg *e)
{
    _cleanup_(freep) int32_t *types = calloc(n_vocab, sizeof(*types));
    struct gguf_array a;
    int r;

    if (!types)
        return fail(e, -ENOMEM, "%s: no memory for its vocabulary", gguf_label(g));
    if (gguf_has(g, "tokenizer.ggml.token_type")) {
        r = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &a, NULL);
        if (r < 0) /* small numbers: the same bytes */
            r = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_U32, &a, e);
        if (r < 0)
            return r;
        if (a.n != n_vocab)
            return fail(e, -EBADMSG, "%s: tokenizer.ggml.token_type does not have one entry per token",
                        gguf_label(g));

        memcpy(types, a.data, n_vocab * sizeof(*types));
    } else {
        for (uint32_t i = 0; i < n_vocab; i++)
            types[i] = TOKEN_NORMAL;
    }

    *ret_types = take_ptr(types);
    return 0;
}

static int load_tokens(struct tokenizer *t, const struct gguf *g, const struct alphabet *alphabet,
                       const int32_t *types, struct gguf_array tokens, struct errmsg *e)
{
    size_t used = 0;

    t->pool = malloc(tokens.bytes + 1); /* texts and counts: at least the size of the converted texts */
    t->offsets = calloc((size_t) t->n_vocab + 1, sizeof(*t->offsets));
    t->sorted = calloc(t->n_vocab, sizeof(*t->sorted));
    t->specials = calloc(t->n_vocab, sizeof(*t->specials));
    t->special_lengths = calloc(t->n_vocab, sizeof(*t->special_lengths));
    if (!t->pool || !t->offsets || !t->sorted || !t->specials || !t->special_lengths)
        return fail(e, -ENOMEM, "%s: no memory for its vocabulary", gguf_label(g));

    for (uint32_t i = 0; i < t->n_vocab; i++) {
        const char *text;
        size_t bytes, n;

        if (!gguf_array_next_string(&tokens, &text, &bytes))
            return fail(e, -EBADMSG, "%s: tokenizer.ggml.tokens changed while it was read", gguf_label(g));
        if (types[i] != TOKEN_NORMAL || !tokenizer_load_to_bytes(alphabet, text, bytes, t->pool + used, &n)) {
            memcpy(t->pool + used, text, bytes);
            n = bytes;
        }

        used += n;
        t->offsets[i + 1] = used;
        if (types[i] == TOKEN_NORMAL && n > 0)
            t->sorted[t->n_sorted++] = i;
        if ((types[i] == TOKEN_CONTROL || types[i] == TOKEN_USER) && n > 0)
            t->specials[t->n_specials++] = (struct special_token){.id = i, .always = types[i] == TOKEN_USER};
    }

    return 0;
}

static int tokenizer_load_compare_bytes(const struct tokenizer *t, uint32_t id, const char *text,
                                        size_t bytes)
{
    size_t n = t->offsets[id + 1] - t->offsets[id];
    int r = memcmp(t->pool + t->offsets[id], text, n < bytes ? n : bytes);

    return r ? r : (n > bytes) - (n < bytes);
}

static int tokenizer_load_by_text(uint32_t a, uint32_t b, const struct tokenizer *t)
{
    int r = tokenizer_load_compare_bytes(t, a, t->pool + t->offsets[b], t->offsets[b + 1] - t->offsets[b]);

    return r ? r : (a > b) - (a < b);
}

static int tokenizer_load_by_id_text(const void *a, const void *b, void *t)
{
    return tokenizer_load_by_text(*(const uint32_t *) a, *(const uint32_t *) b, t);
}

static int tokenizer_load_by_special_text(const void *a, const void *b, void *t)
{
    return tokenizer_load_by_text(((const struct special_token *) a)->id,
                                  ((const struct special_token *) b)->id, t);
}

static int tokenizer_load_longer_first(const void *a, const void *b)
{
    size_t x = *(const size_t *) a, y = *(const size_t *) b;

    return (x < y) - (x > y);
}

static void tokenizer_load_sort_tokens(struct tokenizer *t)
{
    size_t n = 0;

    qsort_r(t->sorted, t->n_sorted, sizeof(*t->sorted), tokenizer_load_by_id_text, t);
    qsort_r(t->specials, t->n_specials, sizeof(*t->specials), tokenizer_load_by_special_text, t);
    for (size_t i = 0; i < t->n_specials; i++)
        t->special_lengths[i] = t->offsets[t->specials[i].id + 1] - t->offsets[t->specials[i].id];
    qsort(t->special_lengths, t->n_specials, sizeof(*t->special_lengths), tokenizer_load_longer_first);
    for (size_t i = 0; i < t->n_specials; i++)
        if (n == 0 || t->special_lengths[n - 1] != t->special_lengths[i])
            t->special_lengths[n++] = t->special_lengths[i];
    t->n_special_lengths = n;
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t bytes)
{
    size_t low = 0, high = t->n_sorted;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (tokenizer_load_compare_bytes(t, t->sorted[mid], text, bytes) < 0)
            low = mid + 1;
        else
            high = mid;
    }

    return low < t->n_sorted && tokenizer_load_compare_bytes(t, t->sorted[low], text, bytes) == 0
               ? t->sorted[low]
               : TOKENIZER_NONE;
}

/* Bytes without a token (some vocabularies lack a few) become the unknown token. */
static int tokenizer_load_find_bytes(struct tokenizer *t, const struct gguf *g, struct errmsg *e)
{
    uint32_t unknown;
    int r;

    r = gguf_get_u32_or(g, "tokenizer.ggml.unknown_token_id", TOKENIZER_NONE, &unknown, e);
    if (r < 0)
        return r;

    for (unsigned b = 0; b < 256; b++) {
        char c = (char) b;

        t->byte_ids[b] = tokenizer_find(t, &c, 1);
        if (t->byte_ids[b] == TOKENIZER_NONE)
            t->byte_ids[b] = unknown;
        if (t->byte_ids[b] >= t->n_vocab)
            return fail(e, -EBADMSG, "%s: its vocabulary has no token for byte %u and no unknown token",
                        gguf_label(g), b);
    }

    return 0;
}

/* "left right": neither half has a space, which the alphabet writes as another character. */
static int tokenizer_load_parse_merge(const struct tokenizer *t, const struct alphabet *a, const char *text,
                                      size_t bytes, char *scratch, struct bpe_rule *ret_rule)
{
    const char *space = memchr(text, ' ', bytes);
    size_t n_left, n_right;
    struct bpe_rule rule;

    if (!space || !tokenizer_load_to_bytes(a, text, (size_t) (space - text), scratch, &n_left) ||
        !tokenizer_load_to_bytes(a, space + 1, bytes - (size_t) (space - text) - 1, scratch + n_left,
                                 &n_right))
        return -EBADMSG;

    rule = (struct bpe_rule){.left = tokenizer_find(t, scratch, n_left),
                             .right = tokenizer_find(t, scratch + n_left, n_right),
                             .merged = tokenizer_find(t, scratch, n_left + n_right)};
    if (rule.left == TOKENIZER_NONE || rule.right == TOKENIZER_NONE || rule.merged == TOKENIZER_NONE)
        return -EBADMSG;

    *ret_rule = rule;
    return 0;
}

static int load_merges(struct tokenizer *t, const struct gguf *g, const struct alphabet *alphabet,
                       struct errmsg *e)
{
    _cleanup_(freep) char *scratch = NULL;
    struct gguf_array merges;
    int r;

    r = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_STRING, &merges, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;
    if (merges.n > VOCAB_MAX)
        return fail(e, -EBADMSG, "%s: has %llu merges, which is above the limit", gguf_label(g),
                    (unsigned long long) merges.n);

    scratch = malloc(merges.bytes + 1);
    t->rules = calloc((size_t) merges.n + 1, sizeof(*t->rules));
    if (!scratch || !t->rules)
        return fail(e, -ENOMEM, "%s: no memory for its merges", gguf_label(g));

    for (size_t n = (size_t) merges.n; t->n_rules < n; t->n_rules++) {
        const char *text;
        size_t bytes;

        if (!gguf_array_next_string(&merges, &text, &bytes))
            return fail(e, -EBADMSG, "%s: tokenizer.ggml.merges changed while it was read", gguf_label(g));
        if (tokenizer_load_parse_merge(t, alphabet, text, bytes, scratch, &t->rules[t->n_rules]) < 0)
            return fail(e, -EBADMSG, "%s: merge %zu does not join two tokens into a third", gguf_label(g),
                        t->n_rules);

        t->rules[t->n_rules].rank = (uint32_t) t->n_rules;
    }

    bpe_sort_rules(t->rules, t->n_rules);
    return 0;
}

static int load_pretokenizer(struct tokenizer *t, const struct gguf *g, struct errmsg *e)
{
    const char *model, *pre = "default";
    size_t model_bytes, pre_bytes = strlen(pre);
    int r;

    r = gguf_get_string(g, "tokenizer.ggml.model", &model, &model_bytes, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;
    if (model_bytes != 4 || memcmp(model, "gpt2", 4) != 0)
        return fail(e, -EOPNOTSUPP,
                    "%s: its tokeniser is of kind \"%.*s\"; only byte-level BPE (\"gpt2\") is supported%s",
                    gguf_label(g), model_bytes < SHOWN_MAX ? (int) model_bytes : SHOWN_MAX, model,
                    model_bytes == 5 && memcmp(model, "llama", 5) == 0 ? ", SentencePiece is not" : "");
    if (gguf_has(g, "tokenizer.ggml.pre")) {
        r = gguf_get_string(g, "tokenizer.ggml.pre", &pre, &pre_bytes, e);
        if (r < 0)
            return r;
    }

    return pretokenizer_new(pre, pre_bytes, &t->pre, e);
}

int tokenizer_new(const struct gguf *g, struct tokenizer **ret_tokenizer, struct errmsg *e)
{
    _cleanup_(tokenizer_freep) struct tokenizer *t = calloc(1, sizeof(*t));
    _cleanup_(freep) int32_t *types = NULL;
    struct alphabet alphabet;
    struct gguf_array tokens;
    int r;

    if (!t)
        return fail(e, -ENOMEM, "%s: no memory for its tokeniser", gguf_label(g));

    r = load_pretokenizer(t, g, e);
    if (r < 0)
        return r;

    r = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, e);
    if (r < 0)
        return r == -ENOENT ? -EBADMSG : r;
    if (tokens.n == 0 || tokens.n > VOCAB_MAX)
        return fail(e, -EBADMSG, "%s: has a vocabulary of %llu tokens, not 1 to %d", gguf_label(g),
                    (unsigned long long) tokens.n, VOCAB_MAX);

    t->n_vocab = (uint32_t) tokens.n;
    r = load_types(g, t->n_vocab, &types, e);
    if (r < 0)
        return r;

    tokenizer_load_alphabet_init(&alphabet);
    r = load_tokens(t, g, &alphabet, types, tokens, e);
    if (r < 0)
        return r;

    tokenizer_load_sort_tokens(t);
    r = tokenizer_load_find_bytes(t, g, e);
    if (r < 0)
        return r;

    r = load_merges(t, g, &alphabet, e);
    if (r < 0)
        return r;

    *ret_tokenizer = take_ptr(t);
    return 0;
}

struct tokenizer *tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return NULL;

    (void) pretokenizer_free(t->pre);
    free(t->rules);
    free(t->special_lengths);
    free(t->specials);
    free(t->sorted);
    free(t->offsets);
    free(t->pool);
    free(t);
    return NULL;
}
