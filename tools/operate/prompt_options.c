/* See prompt_options.h. */
#include "tools/operate/prompt_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/engine/engine.h"

enum { OPT_MODEL = 0x2101, OPT_PROMPT_FILE, OPT_TOKENS_FILE, OPT_SALT, OPT_HEADS };
enum { TOKENS_FILE_BYTES_MAX = 64 << 20 };

static const struct argp_option options[] = {
    {"model", OPT_MODEL, "MODEL", 0, "With --prompt-file: the GGUF file whose tokeniser reads it", 2},
    {"prompt-file", OPT_PROMPT_FILE, "FILE", 0, "The text of the prefix", 2},
    {"tokens-file", OPT_TOKENS_FILE, "FILE", 0, "The token ids of the prefix", 2},
    {"salt", OPT_SALT, "TEXT", 0, "The salt of the sequences (default: none)", 2},
    {"heads", OPT_HEADS, "FIRST,N", 0, "The KV heads of the clients' shard (default: all)", 2},
    {0},
};

static void prompt_options_set_heads(const struct argp_state *state, struct prompt_options *p,
                                     const char *arg)
{
    unsigned long long first, n;
    char end;

    if (sscanf(arg, "%5llu,%5llu%c", &first, &n, &end) != 2 || n == 0)
        argp_error(state, "--heads takes the first KV head and their number, such as 0,4, not '%s'", arg);
    p->first_head = (uint32_t) first;
    p->n_heads = (uint32_t) n;
}

static void prompt_options_check(const struct prompt_options *p, const struct argp_state *state)
{
    if (!p->prompt_file == !p->tokens_file)
        argp_error(state, "either --prompt-file or --tokens-file is needed");
    if (!p->prompt_file != !p->model)
        argp_error(state, "--prompt-file and --model belong together");
    if (p->salt && strlen(p->salt) > KVC_SALT_BYTES_MAX)
        argp_error(state, "--salt has %zu bytes, at most %d", strlen(p->salt), KVC_SALT_BYTES_MAX);
}

static error_t prompt_options_parse(int key, char *arg, struct argp_state *state)
{
    struct prompt_options *p = state->input;

    switch (key) {
    case OPT_MODEL:
        p->model = arg;
        return 0;
    case OPT_PROMPT_FILE:
        p->prompt_file = arg;
        return 0;
    case OPT_TOKENS_FILE:
        p->tokens_file = arg;
        return 0;
    case OPT_SALT:
        p->salt = arg;
        return 0;
    case OPT_HEADS:
        prompt_options_set_heads(state, p, arg);
        return 0;
    case ARGP_KEY_END:
        prompt_options_check(p, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

const struct argp prompt_options_argp = {options, prompt_options_parse, NULL, NULL, NULL, NULL, NULL};

/* ---- tokens ---- */

/* The numbers of @text, which is @n_bytes long, into @tokens with room for every second byte. */
static int prompt_options_parse_tokens(const char *text, size_t n_bytes, uint32_t *tokens, size_t *ret_n)
{
    uint64_t value = 0;
    size_t n = 0;
    bool is_in_number = false;

    for (size_t i = 0; i <= n_bytes; i++) {
        char c = '\n'; /* ends the last number */

        if (i < n_bytes)
            c = text[i];
        if (c >= '0' && c <= '9') {
            value = value * 10 + (uint64_t) (c - '0');
            is_in_number = true;
            if (value > UINT32_MAX)
                return -ERANGE;
        } else if (c == '\0' || !strchr(" \t\r\n,[]", c)) {
            return -EINVAL;
        } else if (is_in_number) {
            tokens[n++] = (uint32_t) value;
            value = 0;
            is_in_number = false;
        }
    }

    *ret_n = n;
    return 0;
}

static int prompt_options_load_tokens(struct prompt_options *p, struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    size_t n_bytes;
    int r = stream_file_read(p->tokens_file, TOKENS_FILE_BYTES_MAX, &text, &n_bytes, e);

    if (r < 0)
        return r;

    p->document.tokens = calloc(n_bytes / 2 + 1, sizeof(*p->document.tokens));
    if (!p->document.tokens)
        return fail(e, -ENOMEM, "out of memory for the tokens of %s", p->tokens_file);

    r = prompt_options_parse_tokens(text, n_bytes, p->document.tokens, &p->document.n_tokens);
    if (r == -ERANGE)
        return fail(e, r, "%s is not a list of token ids: it has a number above 4294967295", p->tokens_file);
    if (r < 0)
        return fail(
            e, r,
            "%s is not a list of token ids: it has other characters than digits, blanks, commas and brackets",
            p->tokens_file);
    return 0;
}

static int prompt_options_load_prompt(struct prompt_options *p, struct errmsg *e)
{
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    int r = engine_open(p->model, &eo, &en, e);

    if (r < 0)
        return r;

    memcpy(p->model_digest, engine_info(en)->model_digest, sizeof(p->model_digest));
    r = document_load(en, p->prompt_file, &p->document, e);
    return r < 0 ? r : document_add_bos(en, &p->document, e);
}

int prompt_options_load(struct prompt_options *p, struct errmsg *e)
{
    int r = p->tokens_file ? prompt_options_load_tokens(p, e) : prompt_options_load_prompt(p, e);

    if (r < 0)
        return r;
    if (p->document.n_tokens < KVC_CHUNK_TOKENS)
        return fail(e, -EINVAL, "the prefix has %zu tokens: pages have %d", p->document.n_tokens,
                    KVC_CHUNK_TOKENS);
    return 0;
}

void prompt_options_deinit(struct prompt_options *p)
{
    document_deinit(&p->document);
}
