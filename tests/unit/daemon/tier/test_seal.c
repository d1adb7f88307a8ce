/* Tests of daemon/tier/seal.c. */
#include "daemon/tier/seal.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/tier/keyring.h"
#include "proto/seal_cipher.h"
#include "tests/lib/test.h"

const char test_suite[] = "seal";

enum { PAGE_BYTES = 1000, SEALED_BYTES = SEAL_HEAD_BYTES + PAGE_BYTES };

static const struct chunk_key key = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, other_key = {{9}};
static const struct seal_subject subject = {.tenant = "inference", .key = &key};

static uint8_t page[PAGE_BYTES], sealed[SEALED_BYTES], opened[PAGE_BYTES];
static struct keyring *ring;

static struct keyring *make_ring(uint8_t first)
{
    const uint8_t secret[KEYRING_SECRET_BYTES] = {first, 42};
    struct keyring *k = NULL;

    assert(keyring_of_host(secret, &k, NULL) == 0);
    return k;
}

static void seal_one(void)
{
    struct page_header h = {.format_version = PAGE_FORMAT_VERSION,
                            .codec_id = PAGE_CODEC_HALF_TILES,
                            .key = key,
                            .n_heads = 1,
                            .n_tokens = 64,
                            .payload_bytes = PAGE_BYTES - 128};

    ring = make_ring(1);
    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t) test_rand();
    page_header_store(&h, page);
    seal_page(ring, &subject, page, PAGE_BYTES, sealed);
}

typedef int (*open_call)(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                         size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);

static int open_by(open_call call)
{
    struct errmsg e = {""};
    int r;

    memset(opened, 0xaa, sizeof(opened));
    r = call(ring, &subject, sealed, SEALED_BYTES, opened, PAGE_BYTES, &e);
    CU_ASSERT_EQUAL(r == 0, e.text[0] == '\0');
    if (r < 0)
        for (size_t i = 0; i < PAGE_BYTES; i++) /* no byte of a page that does not open */
            CU_ASSERT_FATAL(opened[i] == 0 || opened[i] == 0xaa);
    return r;
}

static int open_one(void)
{
    int shared = open_by(seal_open_shared);
    uint8_t before[PAGE_BYTES];
    int r;

    memcpy(before, opened, sizeof(before));
    r = open_by(seal_open);
    CU_ASSERT_EQUAL(r, shared);
    if (r == 0)
        CU_ASSERT_EQUAL(memcmp(before, opened, sizeof(before)), 0);
    return r;
}

/* What openssl.cnf says changes nothing: it is not read. The first case, since the cipher is chosen once. */
static void test_no_configuration(void)
{
    char path[] = "/tmp/kvcobra-openssl-XXXXXX", event[256];
    int file = mkstemp(path), watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    assert(file >= 0 && watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    CU_ASSERT_EQUAL(setenv("OPENSSL_CONF", path, 1), 0);
    seal_one();
    CU_ASSERT_EQUAL(open_one(), 0);
    CU_ASSERT(read(watch, event, sizeof(event)) < 0 && errno == EAGAIN);
    keyring_unref(ring);
    CU_ASSERT_EQUAL(unsetenv("OPENSSL_CONF"), 0);
    (void) close(watch);
    (void) close(file);
    (void) unlink(path);
}

static void test_round_trip(void)
{
    uint8_t again[SEALED_BYTES];

    seal_one();
    CU_ASSERT_EQUAL(open_one(), 0);
    CU_ASSERT_EQUAL(memcmp(opened, page, PAGE_BYTES), 0);
    seal_page(ring, &subject, page, PAGE_BYTES, again);
    CU_ASSERT_NOT_EQUAL(memcmp(again + 24, sealed + 24, 24), 0); /* a new nonce for each write */
    CU_ASSERT_NOT_EQUAL(memcmp(again + SEAL_HEAD_BYTES, sealed + SEAL_HEAD_BYTES, PAGE_BYTES), 0);
    keyring_unref(ring);
}

/* The bytes of a cipher do not depend on the library: pages of other hosts open. */
static void test_ciphers(void)
{
    static const size_t sizes[] = {1, 15, 16, 63, 64, 65, 127, 128, 255, 256, 1000, 4224, 276608};
    const struct seal_cipher *fast = seal_cipher_fastest(), *plain = &seal_cipher_sodium;
    enum { BYTES_MAX = 276608 };
    uint8_t secret[SEAL_CIPHER_SECRET_BYTES], nonce[SEAL_CIPHER_NONCE_BYTES], beside[80];
    uint8_t tags[2][SEAL_CIPHER_TAG_BYTES], *text = malloc(BYTES_MAX), *a = malloc(BYTES_MAX),
                                            *b = malloc(BYTES_MAX);

    assert(text && a && b);
    for (size_t i = 0; i < BYTES_MAX; i++)
        text[i] = (uint8_t) test_rand();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct seal_text besides = {beside, 1 + test_rand_below(sizeof(beside))};
        size_t n = sizes[i];

        randombytes_buf(secret, sizeof(secret));
        randombytes_buf(nonce, sizeof(nonce));
        randombytes_buf(beside, sizeof(beside));
        plain->encrypt(secret, nonce, &besides, text, n, a, tags[0]);
        fast->encrypt(secret, nonce, &besides, text, n, b, tags[1]);
        CU_ASSERT_EQUAL(memcmp(a, b, n), 0);
        CU_ASSERT_EQUAL(memcmp(tags[0], tags[1], sizeof(tags[0])), 0);
        memset(b, 0xaa, n);
        CU_ASSERT_TRUE(fast->decrypt(secret, nonce, &besides, a, n, tags[0], b));
        CU_ASSERT_EQUAL(memcmp(b, text, n), 0);
        for (unsigned k = 0; k < 2; k++) { /* in place */
            memcpy(b, a, n);
            CU_ASSERT_TRUE((k == 0 ? plain : fast)->decrypt(secret, nonce, &besides, b, n, tags[0], b));
            CU_ASSERT_EQUAL(memcmp(b, text, n), 0);
        }
        tags[0][n % sizeof(tags[0])] ^= 1;
        memset(b, 0xaa, n);
        CU_ASSERT_FALSE(fast->decrypt(secret, nonce, &besides, a, n, tags[0], b));
        for (size_t k = 0; k < n; k++)
            CU_ASSERT_FATAL(b[k] == 0 || b[k] == 0xaa);
    }
    printf("the fastest cipher is that of %s\n", fast->name);
    free(text);
    free(a);
    free(b);
}

/* Nothing of the page is to be seen, its key neither. */
static void test_ciphertext_only(void)
{
    seal_one();
    for (size_t i = 0; i + 8 <= SEALED_BYTES; i++) {
        CU_ASSERT_FATAL(memcmp(sealed + i, key.bytes, 8) != 0);
        CU_ASSERT_FATAL(memcmp(sealed + i, page + 500, 8) != 0);
        CU_ASSERT_FATAL(memcmp(sealed + i, subject.tenant, 8) != 0);
    }
    keyring_unref(ring);
}

static void test_every_flipped_bit(void)
{
    seal_one();
    for (size_t bit = 0; bit < 8 * (size_t) SEALED_BYTES; bit++) {
        int r;

        sealed[bit / 8] ^= (uint8_t) (1u << bit % 8);
        r = open_one();
        CU_ASSERT_FATAL(r == -EBADMSG || (r == -ENOKEY && bit / 32 == 2)); /* ENOKEY: the id of the key */
        sealed[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    CU_ASSERT_EQUAL(open_one(), 0);
    keyring_unref(ring);
}

static void test_other_subjects(void)
{
    const struct seal_subject tenant = {.tenant = "inferencf", .key = &key},
                              shorter = {.tenant = "inferenc", .key = &key},
                              chunk = {.tenant = "inference", .key = &other_key};

    seal_one();
    CU_ASSERT_EQUAL(seal_open(ring, &tenant, sealed, SEALED_BYTES, opened, PAGE_BYTES, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(seal_open(ring, &shorter, sealed, SEALED_BYTES, opened, PAGE_BYTES, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(seal_open(ring, &chunk, sealed, SEALED_BYTES, opened, PAGE_BYTES, NULL), -EBADMSG);
    keyring_unref(ring);
}

/* A page whose header names another chunk than the one that it was sealed for. */
static void test_wrong_header(void)
{
    const struct seal_subject wrong = {.tenant = "inference", .key = &other_key};

    seal_one();
    seal_page(ring, &wrong, page, PAGE_BYTES, sealed);
    memset(opened, 0xaa, sizeof(opened));
    CU_ASSERT_EQUAL(seal_open(ring, &wrong, sealed, SEALED_BYTES, opened, PAGE_BYTES, NULL), -EBADMSG);
    for (size_t i = 0; i < PAGE_BYTES; i++)
        CU_ASSERT_FATAL(opened[i] == 0);
    page[20] ^= 1; /* the header's own checksum */
    seal_page(ring, &subject, page, PAGE_BYTES, sealed);
    CU_ASSERT_EQUAL(open_one(), -EBADMSG);
    keyring_unref(ring);
}

static void check_sizes(open_call open)
{
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, SEALED_BYTES - 1, opened, PAGE_BYTES - 1, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, SEALED_BYTES, opened, PAGE_BYTES - 1, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, 0, opened, PAGE_BYTES, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, SEAL_HEAD_BYTES, opened, 0, NULL), -EBADMSG);
    seal_page(ring, &subject, page, 100, sealed); /* less than a header */
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, SEAL_HEAD_BYTES + 100, opened, 100, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(open(ring, &subject, sealed, SIZE_MAX, opened, SIZE_MAX - SEAL_HEAD_BYTES, NULL),
                    -EBADMSG);
    seal_page(ring, &subject, page, PAGE_BYTES, sealed);
}

static void test_other_sizes(void)
{
    seal_one();
    check_sizes(seal_open);
    check_sizes(seal_open_shared);
    keyring_unref(ring);
}

static void test_other_secret(void)
{
    struct keyring *mine;

    seal_one();
    mine = ring;
    ring = make_ring(2);
    CU_ASSERT_EQUAL(open_one(), -EBADMSG); /* a key of the same id */
    keyring_unref(ring);
    keyring_unref(mine);
}

/* The bytes are those that seal.h draws: libsodium alone opens them. */
static void test_format(void)
{
    static const uint8_t head[24] = {'K', 'V', 'S', 'P', 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3};
    uint8_t beside[48 + CHUNK_KEY_BYTES + 1 + 9];

    seal_one();
    CU_ASSERT_EQUAL(memcmp(sealed, head, sizeof(head)), 0);
    memcpy(beside, sealed, 48);
    memcpy(beside + 48, key.bytes, CHUNK_KEY_BYTES);
    memcpy(beside + 48 + CHUNK_KEY_BYTES, "\tinference", 10); /* its length, 9, and the name */
    CU_ASSERT_EQUAL(crypto_aead_xchacha20poly1305_ietf_decrypt_detached(opened, NULL, sealed + 64, PAGE_BYTES,
                                                                        sealed + 48, beside, sizeof(beside),
                                                                        sealed + 24, keyring_find(ring, 1)),
                    0);
    CU_ASSERT_EQUAL(memcmp(opened, page, PAGE_BYTES), 0);
    keyring_unref(ring);
}

const struct test_case test_cases[] = {
    TEST(test_no_configuration),
    TEST(test_round_trip),
    TEST(test_ciphers),
    TEST(test_ciphertext_only),
    TEST(test_every_flipped_bit),
    TEST(test_other_subjects),
    TEST(test_wrong_header),
    TEST(test_other_sizes),
    TEST(test_other_secret),
    TEST(test_format),
    TEST_END,
};
