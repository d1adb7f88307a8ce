/*
 * Takes the place of libsodium's SHA-256 in targets that libFuzzer runs and that correct the digest of every
 * input: SHA-256 took most of their time. Symbols of the program come before those of a library. The
 * suite replays the corpus with the real SHA-256, which the files of the corpus hold.
 */
#include <sodium.h>
#include <stdint.h>
#include <string.h>

struct quick_digest { /* in the place of libsodium's state */
    uint64_t lanes[4];
    uint64_t word; /* the bytes since the last whole word */
    uint64_t n_bytes;
};

_Static_assert(sizeof(struct quick_digest) <= sizeof(crypto_hash_sha256_state), "room for the state");

static void quick_digest_mix(struct quick_digest *q, uint64_t word)
{
    uint64_t *lane = &q->lanes[q->n_bytes / 8 % 4];

    *lane = (*lane ^ word) * 0x9e3779b97f4a7c15u;
    *lane ^= *lane >> 29;
}

static void quick_digest_add_part(struct quick_digest *q, const uint8_t *bytes, size_t n)
{
    memcpy((uint8_t *) &q->word + q->n_bytes % 8, bytes, n);
    q->n_bytes += n;
    if (q->n_bytes % 8 != 0)
        return;
    quick_digest_mix(q, q->word);
    q->word = 0;
}

/* The result does not depend on how the bytes are divided among calls. */
static void quick_digest_add(struct quick_digest *q, const uint8_t *bytes, size_t n)
{
    size_t first = -q->n_bytes % 8;

    first = first < n ? first : n;
    if (first > 0)
        quick_digest_add_part(q, bytes, first);
    for (bytes += first, n -= first; n >= 8; bytes += 8, n -= 8) {
        uint64_t word;

        memcpy(&word, bytes, sizeof(word));
        q->n_bytes += sizeof(word);
        quick_digest_mix(q, word);
    }
    if (n > 0)
        quick_digest_add_part(q, bytes, n);
}

int crypto_hash_sha256_init(crypto_hash_sha256_state *state)
{
    const struct quick_digest q = {.lanes = {1, 2, 3, 4}};

    memcpy(state, &q, sizeof(q));
    return 0;
}

int crypto_hash_sha256_update(crypto_hash_sha256_state *state, const unsigned char *in,
                              unsigned long long n_bytes)
{
    struct quick_digest q;

    memcpy(&q, state, sizeof(q));
    quick_digest_add(&q, in, n_bytes);
    memcpy(state, &q, sizeof(q));
    return 0;
}

int crypto_hash_sha256_final(crypto_hash_sha256_state *state, unsigned char *out)
{
    struct quick_digest q;

    memcpy(&q, state, sizeof(q));
    quick_digest_mix(&q, q.word);
    memcpy(out, q.lanes, crypto_hash_sha256_BYTES);
    return 0;
}

int crypto_hash_sha256(unsigned char *out, const unsigned char *in, unsigned long long n_bytes)
{
    crypto_hash_sha256_state state;

    (void) crypto_hash_sha256_init(&state);
    (void) crypto_hash_sha256_update(&state, in, n_bytes);
    return crypto_hash_sha256_final(&state, out);
}
