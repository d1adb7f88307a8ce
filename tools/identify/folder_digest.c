/* See folder_digest.h. */
#include "tools/identify/folder_digest.h"

#include <errno.h>
#include <jansson.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "tools/identify/model_folder.h"

#define TITLE "kvcobra safetensors model 1\n"

enum { PIECE_BYTES = 1 << 20 };

_Static_assert(crypto_hash_sha256_BYTES == FOLDER_DIGEST_BYTES, "SHA-256");

/* Fields of config.json that do not change keys and values, wherever they stand. */
static const char *const left_out[] = {
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

/* ---- numbers and texts ---- */

static void folder_digest_put(crypto_hash_sha256_state *h, const void *bytes, size_t n)
{
    (void) crypto_hash_sha256_update(h, bytes, n);
}

static void folder_digest_put_u64(crypto_hash_sha256_state *h, uint64_t v)
{
    uint8_t le[8];

    for (unsigned i = 0; i < 8; i++)
        le[i] = (uint8_t) (v >> 8 * i);
    folder_digest_put(h, le, sizeof(le));
}

static void folder_digest_put_text(crypto_hash_sha256_state *h, const char *text, size_t n)
{
    folder_digest_put_u64(h, n);
    folder_digest_put(h, text, n);
}

/* ---- the configuration ---- */

static bool folder_digest_is_left_out(const char *key)
{
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
        if (strcmp(key, left_out[i]) == 0)
            return true;
    return false;
}

static void folder_digest_put_number(crypto_hash_sha256_state *h, double x)
{
    uint64_t bits;

    x = x == 0 ? 0 : x; /* -0 is 0 */
    memcpy(&bits, &x, sizeof(bits));
    folder_digest_put(h, "d", 1);
    folder_digest_put_u64(h, bits);
}

static int folder_digest_by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static int folder_digest_put_json(crypto_hash_sha256_state *h, const json_t *json);

static int folder_digest_put_object(crypto_hash_sha256_state *h, json_t *object)
{
    _cleanup_(freep) const char **keys = calloc(json_object_size(object) + 1, sizeof(*keys));
    const char *key;
    json_t *value;
    size_t n = 0;

    if (!keys)
        return -ENOMEM;

    json_object_foreach(object, key, value)
    {
        if (!folder_digest_is_left_out(key))
            keys[n++] = key;
    }
    qsort(keys, n, sizeof(*keys), folder_digest_by_text);

    folder_digest_put(h, "o", 1);
    folder_digest_put_u64(h, n);
    for (size_t i = 0; i < n; i++) {
        int r;

        folder_digest_put_text(h, keys[i], strlen(keys[i]));
        r = folder_digest_put_json(h, json_object_get(object, keys[i]));
        if (r < 0)
            return r;
    }
    return 0;
}

static int folder_digest_put_array(crypto_hash_sha256_state *h, const json_t *array)
{
    folder_digest_put(h, "a", 1);
    folder_digest_put_u64(h, json_array_size(array));
    for (size_t i = 0; i < json_array_size(array); i++) {
        int r = folder_digest_put_json(h, json_array_get(array, i));

        if (r < 0)
            return r;
    }
    return 0;
}

static int folder_digest_put_json(crypto_hash_sha256_state *h, const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return folder_digest_put_object(h, (json_t *) json);
    case JSON_ARRAY:
        return folder_digest_put_array(h, json);
    case JSON_STRING:
        folder_digest_put(h, "s", 1);
        folder_digest_put_text(h, json_string_value(json), json_string_length(json));
        return 0;
    case JSON_INTEGER:
    case JSON_REAL:
        folder_digest_put_number(h, json_number_value(json));
        return 0;
    case JSON_TRUE:
        folder_digest_put(h, "t", 1);
        return 0;
    case JSON_FALSE:
        folder_digest_put(h, "f", 1);
        return 0;
    case JSON_NULL:
        folder_digest_put(h, "n", 1);
        return 0;
    }

    return -EINVAL;
}

/* ---- the tensors ---- */

struct folder_digest_reader {
    uint8_t *piece; /* [PIECE_BYTES] */
    uint64_t done;
    folder_digest_progress_fn progress;
    void *ctx;
};

static int folder_digest_hash_bytes(const struct model_folder *f, const struct model_folder_tensor *t,
                                    struct folder_digest_reader *reader, uint8_t *ret, struct errmsg *e)
{
    crypto_hash_sha256_state h;

    (void) crypto_hash_sha256_init(&h);
    for (uint64_t at = 0; at < t->tensor->bytes;) {
        uint64_t left = t->tensor->bytes - at;
        size_t n = left < PIECE_BYTES ? (size_t) left : PIECE_BYTES;
        int r = fd_pread_all(t->file->fd, reader->piece, n, t->tensor->offset + at);

        if (r < 0)
            return fail(e, r, "cannot read tensor \"%.80s\" in %s/%s: %s", t->tensor->name, f->path,
                        t->file->name, strerror(-r));

        folder_digest_put(&h, reader->piece, n);
        at += n;
        reader->done += n;
        reader->progress(reader->ctx, reader->done);
    }

    (void) crypto_hash_sha256_final(&h, ret);
    return 0;
}

static int folder_digest_put_tensor(crypto_hash_sha256_state *h, const struct model_folder *f,
                                    const struct model_folder_tensor *t, struct folder_digest_reader *reader,
                                    struct errmsg *e)
{
    uint8_t digest[FOLDER_DIGEST_BYTES];
    int r = folder_digest_hash_bytes(f, t, reader, digest, e);

    if (r < 0)
        return r;

    folder_digest_put_text(h, t->tensor->name, strlen(t->tensor->name));
    folder_digest_put_text(h, t->tensor->type, strlen(t->tensor->type));
    folder_digest_put_u64(h, t->tensor->n_dims);
    for (uint32_t i = 0; i < t->tensor->n_dims; i++)
        folder_digest_put_u64(h, t->tensor->dims[i]);
    folder_digest_put(h, digest, sizeof(digest));
    return 0;
}

int folder_digest(const struct model_folder *f, folder_digest_progress_fn progress, void *ctx,
                  uint8_t ret_digest[static FOLDER_DIGEST_BYTES], struct errmsg *e)
{
    struct folder_digest_reader reader = {.progress = progress, .ctx = ctx};
    _cleanup_(freep) uint8_t *piece = malloc(PIECE_BYTES);
    crypto_hash_sha256_state h;

    if (sodium_init() < 0)
        return fail(e, -EIO, "libsodium cannot be initialised");

    reader.piece = piece;
    (void) crypto_hash_sha256_init(&h);
    folder_digest_put(&h, TITLE, strlen(TITLE));
    if (!piece || folder_digest_put_json(&h, f->config) < 0)
        return fail(e, -ENOMEM, "out of memory for the digest of %s", f->path);

    folder_digest_put_u64(&h, f->n_tensors);
    for (size_t i = 0; i < f->n_tensors; i++) {
        int r = folder_digest_put_tensor(&h, f, &f->tensors[i], &reader, e);

        if (r < 0)
            return r;
    }

    (void) crypto_hash_sha256_final(&h, ret_digest);
    return 0;
}
