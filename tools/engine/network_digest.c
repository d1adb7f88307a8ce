/*
 * The digest of a model: BLAKE2b-256 over a fixed encoding of everything that determines its keys and values.
 *
 * Geometry with frequencies, the sizes of the network, and the bytes of every tensor but the final norm and
 * an untied head. Names, vocabulary and templates are not included: two files with the same weights share
 * their caches. BLAKE2b rather than SHA-256 because it reads about a gigabyte per second in libsodium.
 */
#include "tools/engine/network.h"

#include "base/errmsg.h"
#include "tools/engine/gguf.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

_Static_assert(crypto_generichash_BYTES == DIGEST_BYTES, "libsodium's default size");

struct digest_encoding {
    char tag[16];
    uint32_t family, n_embd, n_ff, n_vocab, window_tokens, q_unrotated_scale;
    double norm_epsilon;
    uint8_t geometry[DIGEST_BYTES];
};
_Static_assert(sizeof(struct digest_encoding) == 16 + 6 * 4 + 8 + DIGEST_BYTES, "no padding is hashed");

static bool network_digest_is_output(const struct gguf_tensor *t)
{
    static const char *const names[] = {"output.weight", "output_norm.weight"};

    for (size_t i = 0; i < 2; i++)
        if (strlen(names[i]) == t->name_bytes && memcmp(names[i], t->name, t->name_bytes) == 0)
            return true;
    return false;
}

uint64_t network_digest_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        if (!network_digest_is_output(gguf_tensor_at(g, i)))
            bytes += gguf_tensor_at(g, i)->bytes;
    return bytes;
}

static void network_digest_hash_tensor(crypto_generichash_state *h, const struct gguf_tensor *t)
{
    uint64_t head[3 + GGUF_DIMS_MAX] = {t->name_bytes, t->type, t->bytes};

    memcpy(head + 3, t->dims, sizeof(t->dims));
    (void) crypto_generichash_update(h, (const uint8_t *) head, sizeof(head));
    (void) crypto_generichash_update(h, (const uint8_t *) t->name, t->name_bytes);
    (void) crypto_generichash_update(h, t->data, t->bytes);
}

int network_digest(const struct network *m, const struct gguf *g, network_progress_fn progress, void *ctx,
                   uint8_t ret_digest[static DIGEST_BYTES], struct errmsg *e)
{
    struct digest_encoding d = {.tag = "kvcobra-model-1",
                                .family = (uint32_t) m->family,
                                .n_embd = m->n_embd,
                                .n_ff = m->n_ff,
                                .n_vocab = m->n_vocab,
                                .window_tokens = m->window_tokens,
                                .norm_epsilon = m->norm_epsilon};
    crypto_generichash_state h;
    uint64_t bytes = 0;

    if (sodium_init() < 0)
        return fail(e, -EIO, "libsodium cannot be initialised");

    memcpy(&d.q_unrotated_scale, &m->q_unrotated_scale, sizeof(float));
    geometry_digest(&m->geometry, d.geometry);
    if (crypto_generichash_init(&h, NULL, 0, DIGEST_BYTES) != 0)
        return fail(e, -EIO, "libsodium cannot compute BLAKE2b");

    (void) crypto_generichash_update(&h, (const uint8_t *) &d, sizeof(d));
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        if (network_digest_is_output(t))
            continue;
        network_digest_hash_tensor(&h, t);
        bytes += t->bytes;
        if (progress)
            progress(ctx, bytes);
    }
    (void) crypto_generichash_final(&h, ret_digest, DIGEST_BYTES);
    return 0;
}
