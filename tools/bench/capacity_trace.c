/* See capacity_trace.h. */
#include "tools/bench/capacity_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/command/json_large.h"

enum { BLOCKS_MAX = 1 << 26, LINE_BYTES_MAX = 1 << 28 };

/*
 * An id of a block, of which only equality counts: a number of 64 bits without a sign, or, with the first bit
 * of @high, the hash of another text. Programs write hashes of 64 bits as numbers above 2^63, longer ones as
 * hexadecimal digits.
 */
struct capacity_id {
    uint64_t high, low;
};

/* The file as it is read, with the numbers of the file. */
struct capacity_reader {
    const char *path;
    struct capacity_trace *trace;
    struct capacity_id *ids;
    size_t room, requests_room;
    uint32_t prompt_tokens;             /* of a block of a prompt */
    uint64_t least_tokens, most_tokens; /* of a block, by the lengths so far; least 0: no length was there */
};

static int capacity_trace_reserve(struct capacity_reader *x, size_t n_more, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;

    if (n_more > BLOCKS_MAX - t->n_blocks)
        return fail(e, -EFBIG, "%s has more than %d blocks: use --requests", x->path, BLOCKS_MAX);

    if (t->n_blocks + n_more > x->room) {
        size_t room = 2 * (t->n_blocks + n_more);
        struct capacity_id *ids = reallocarray(x->ids, room, sizeof(*ids));

        if (!ids)
            return fail(e, -ENOMEM, "out of memory");
        x->ids = ids;
        x->room = room;
    }

    if (t->n_requests + 2 > x->requests_room) {
        size_t room = 2 * x->requests_room + 1024;
        size_t *first = reallocarray(t->first, room, sizeof(*first));

        if (!first)
            return fail(e, -ENOMEM, "out of memory");
        first[0] = 0;
        t->first = first;
        x->requests_room = room;
    }
    return 0;
}

static struct capacity_id capacity_trace_id(const char *text)
{
    struct capacity_id id = {0};
    char *end;

    if (strspn(text, "0123456789") > 0 && (text[0] != '0' || text[1] == '\0')) {
        errno = 0;
        id.low = strtoull(text, &end, 10);
        if (*end == '\0' && errno == 0)
            return id;
    }

    (void) crypto_generichash((uint8_t *) &id, sizeof(id), (const uint8_t *) text, strlen(text), NULL, 0);
    id.high |= UINT64_C(1) << 63;
    return id;
}

/* n blocks have @length tokens, the last one perhaps not all of its own. */
static void capacity_trace_note_length(struct capacity_reader *x, uint64_t length, size_t n)
{
    uint64_t least = (length + n - 1) / n;

    if (least > x->least_tokens)
        x->least_tokens = least;
    if (n > 1 && (length - 1) / (n - 1) < x->most_tokens)
        x->most_tokens = (length - 1) / (n - 1);
}

static uint32_t capacity_trace_guess(const struct capacity_reader *x)
{
    uint64_t tokens = 1;

    while (tokens < x->least_tokens && tokens < CAPACITY_BLOCK_TOKENS_MAX)
        tokens *= 2;
    return x->least_tokens > 0 && tokens >= x->least_tokens && tokens <= x->most_tokens ? (uint32_t) tokens
                                                                                        : 0;
}

/* ---- requests with ids ---- */

static int capacity_trace_add_ids(struct capacity_reader *x, const json_t *request, const json_t *ids,
                                  uint32_t number, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    const json_t *length = json_object_get(request, "input_length"), *id;
    size_t i;
    int r = capacity_trace_reserve(x, json_array_size(ids), e);

    if (r < 0)
        return r;

    json_array_foreach(ids, i, id)
    {
        char digits[24];

        if (!json_is_string(id) && !json_is_integer(id))
            return fail(e, -EINVAL,
                        "%s, line %" PRIu32 ": \"hash_ids\" has something else than integers and texts",
                        x->path, number);
        (void) snprintf(digits, sizeof(digits), "%" JSON_INTEGER_FORMAT, json_integer_value(id));
        x->ids[t->n_blocks + i] = capacity_trace_id(json_is_string(id) ? json_string_value(id) : digits);
    }

    if (json_integer_value(length) > 0 && json_array_size(ids) > 0) /* 0: it is no integer */
        capacity_trace_note_length(x, (uint64_t) json_integer_value(length), json_array_size(ids));
    t->n_blocks += json_array_size(ids);
    return 0;
}

/* ---- requests with prompts ---- */

/* Whole blocks of a prompt. The id of each is a hash of it and of the id before. */
static int capacity_trace_cut(struct capacity_reader *x, const uint8_t *prompt, size_t bytes,
                              size_t block_bytes, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    size_t n = bytes / block_bytes;
    struct capacity_id id = {0};
    int r = capacity_trace_reserve(x, n, e);

    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++) {
        (void) crypto_generichash((uint8_t *) &id, sizeof(id), prompt + i * block_bytes, block_bytes,
                                  (const uint8_t *) &id, sizeof(id));
        x->ids[t->n_blocks++] = id;
    }
    return 0;
}

static int capacity_trace_add_tokens(struct capacity_reader *x, const json_t *tokens, uint32_t number,
                                     struct errmsg *e)
{
    size_t n = json_array_size(tokens), i;
    _cleanup_(freep) uint64_t *ids = calloc(n + 1, sizeof(*ids));
    const json_t *token;

    if (!ids)
        return fail(e, -ENOMEM, "out of memory");

    json_array_foreach(tokens, i, token)
    {
        if (!json_is_integer(token))
            return fail(e, -EINVAL, "%s, line %" PRIu32 ": token ids that are no integers", x->path, number);
        ids[i] = (uint64_t) json_integer_value(token);
    }
    return capacity_trace_cut(x, (const uint8_t *) ids, n * sizeof(*ids), x->prompt_tokens * sizeof(*ids), e);
}

static int capacity_trace_add_prompt(struct capacity_reader *x, const json_t *prompt, uint32_t number,
                                     struct errmsg *e)
{
    if (json_is_array(prompt))
        return capacity_trace_add_tokens(x, prompt, number, e);

    x->trace->has_texts = true;
    return capacity_trace_cut(x, (const uint8_t *) json_string_value(prompt), json_string_length(prompt),
                              (size_t) x->prompt_tokens * CAPACITY_TEXT_BYTES, e);
}

/* ---- lines ---- */

static int capacity_trace_add(struct capacity_reader *x, const char *line, uint32_t number, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    json_error_t why = {.text = "out of memory"};
    _cleanup_(json_decrefp) json_t *request = json_large_load(line, &why);
    const json_t *ids = json_object_get(request, "hash_ids"), *prompt = json_object_get(request, "prompt");
    bool has_prompt;
    int r;

    if (!request)
        return fail(e, -EINVAL, "%s, line %" PRIu32 ": no JSON: %s", x->path, number, why.text);
    if (!prompt)
        prompt = json_object_get(request, "prompt_token_ids");
    has_prompt = !ids && (json_is_array(prompt) || json_is_string(prompt));
    if (!json_is_array(ids) && !has_prompt)
        return fail(e, -EINVAL,
                    "%s, line %" PRIu32 ": no array \"hash_ids\", and no \"prompt\" that is a text or an "
                    "array of token ids: a trace has one request per line with one of them",
                    x->path, number);
    if (t->n_requests > 0 && has_prompt != t->has_prompts)
        return fail(e, -EINVAL,
                    "%s, line %" PRIu32 ": requests with \"hash_ids\" and with prompts in one trace", x->path,
                    number);

    t->has_prompts = has_prompt;
    r = has_prompt ? capacity_trace_add_prompt(x, prompt, number, e)
                   : capacity_trace_add_ids(x, request, ids, number, e);
    if (r == 0)
        t->first[++t->n_requests] = t->n_blocks;
    return r;
}

/* ---- distinct blocks ---- */

static int capacity_trace_compare(const void *a, const void *b)
{
    const struct capacity_id *x = a, *y = b;

    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    return (x->low > y->low) - (x->low < y->low);
}

/* Numbers the distinct blocks from 0 on. */
static int capacity_trace_number(struct capacity_reader *x, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    _cleanup_(freep) struct capacity_id *sorted = calloc(t->n_blocks, sizeof(*sorted));

    t->blocks = calloc(t->n_blocks, sizeof(*t->blocks));
    if (!sorted || !t->blocks)
        return fail(e, -ENOMEM, "out of memory");

    memcpy(sorted, x->ids, t->n_blocks * sizeof(*sorted));
    qsort(sorted, t->n_blocks, sizeof(*sorted), capacity_trace_compare);
    for (size_t i = 0; i < t->n_blocks; i++)
        if (i == 0 || capacity_trace_compare(&sorted[i], &sorted[t->n_distinct - 1]) != 0)
            sorted[t->n_distinct++] = sorted[i];
    for (size_t i = 0; i < t->n_blocks; i++) {
        const struct capacity_id *at =
            bsearch(&x->ids[i], sorted, t->n_distinct, sizeof(*sorted), capacity_trace_compare);

        t->blocks[i] = (uint32_t) (at - sorted);
    }
    return 0;
}

/* ---- the file ---- */

/* The next line, without its end. Return: 1; 0: there is none; -EFBIG: it has no end; -ENOMEM. */
static int capacity_trace_next_line(FILE *f, char **line, size_t *room)
{
    size_t n = 0;
    int c;

    while ((c = getc_unlocked(f)) != EOF && c != '\n') {
        if (n + 1 >= *room) {
            size_t wanted = 2 * *room + 4096;
            char *grown = n < LINE_BYTES_MAX ? realloc(*line, wanted) : NULL;

            if (!grown)
                return n < LINE_BYTES_MAX ? -ENOMEM : -EFBIG;
            *line = grown;
            *room = wanted;
        }
        (*line)[n++] = (char) c;
    }
    if (*line)
        (*line)[n] = '\0';
    return c == '\n' || n > 0;
}

static int capacity_trace_read_lines(struct capacity_reader *x, FILE *f, uint32_t n_max, struct errmsg *e)
{
    _cleanup_(freep) char *line = NULL;
    size_t room = 0;
    int r = 0;

    for (uint32_t number = 1; r == 0 && x->trace->n_requests < n_max; number++) {
        const char *text;

        r = capacity_trace_next_line(f, &line, &room);
        if (r < 0)
            return fail(e, r, "%s, line %" PRIu32 ": %s", x->path, number,
                        r == -EFBIG ? "it is longer than a request can be: no trace" : "out of memory");
        if (r == 0)
            break;

        r = 0;
        text = line ? line : "";
        if (number == 1)
            text += stream_file_mark_bytes(text, strlen(text));
        if (text[strspn(text, " \t\r")] != '\0')
            r = capacity_trace_add(x, text, number, e);
    }

    if (r == 0 && ferror(f))
        return fail(e, -errno, "cannot read %s: %s", x->path, strerror(errno));
    if (r == 0 && x->trace->n_blocks == 0)
        return fail(e, -EINVAL, "%s has no request with a whole block of its prompt", x->path);
    return r;
}

int capacity_trace_read(const char *path, uint32_t n_max, uint32_t block_tokens, struct capacity_trace *ret,
                        struct errmsg *e)
{
    struct capacity_reader x = {.path = stream_file_name(path),
                                .trace = ret,
                                .prompt_tokens = block_tokens > 0 ? block_tokens : CAPACITY_PROMPT_TOKENS,
                                .most_tokens = UINT64_MAX};
    _cleanup_(closep) int fd = stream_file_open(path, e);
    _cleanup_(fclosep) FILE *f = NULL;
    int r;

    if (fd < 0)
        return fd;
    f = fdopen(fd, "r");
    if (!f)
        return fail(e, -errno, "cannot read %s: %s", x.path, strerror(errno));

    (void) take_fd(&fd); /* the stream has it */
    r = capacity_trace_read_lines(&x, f, n_max, e);
    if (r == 0)
        r = capacity_trace_number(&x, e);
    ret->block_tokens = ret->has_prompts ? x.prompt_tokens : capacity_trace_guess(&x);
    free(x.ids);
    return r;
}

void capacity_trace_deinit(struct capacity_trace *t)
{
    free(t->first);
    free(t->blocks);
    *t = (struct capacity_trace) CAPACITY_TRACE_INIT;
}
