/* See keyring.h. */
#include "daemon/tier/keyring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

/* Input of the keyed hashes, which are named after their purpose. */
static const char keyring_fleet_text[] = "kvcobra fleet";
static const char keyring_seal_text[] = "kvcobra sealing key 1";

/* Memory of sodium_malloc(): between guard pages, and locked where that is allowed. */
struct keyring_secrets {
    uint8_t index[KEYRING_SECRET_BYTES];
    uint8_t seal[KEYRING_KEYS_MAX][KEYRING_SECRET_BYTES];
};

struct keyring {
    unsigned n_refs;
    bool of_host, has_index;
    uint32_t n_keys, newest; /* newest: id of the key that seals; 0: none yet */
    uint32_t ids[KEYRING_KEYS_MAX];
    uint8_t fleet[KEYRING_FLEET_BYTES];
    struct keyring_secrets *secrets; /* read-only when the ring is whole */
};

static int keyring_alloc(struct keyring **ret, struct errmsg *e)
{
    struct keyring *k = sodium_init() < 0 ? NULL : calloc(1, sizeof(*k));

    if (k)
        k->secrets = sodium_malloc(sizeof(*k->secrets));
    if (!k || !k->secrets) {
        free(k);
        return fail(e, -ENOMEM, "out of memory for a key ring");
    }

    k->n_refs = 1;
    *ret = k;
    return 0;
}

struct keyring *keyring_ref(struct keyring *k)
{
    (void) __atomic_add_fetch(&k->n_refs, 1, __ATOMIC_RELAXED);
    return k;
}

struct keyring *keyring_unref(struct keyring *k)
{
    /* the last thread sees what all others did with the ring */
    if (!k || __atomic_sub_fetch(&k->n_refs, 1, __ATOMIC_ACQ_REL) > 0)
        return NULL;

    /* sodium_free() writes over the secrets even if the kernel left them read-only: SIGSEGV. Then they stay
     * in this memory, which core files do not have. */
    if (sodium_mprotect_readwrite(k->secrets) == 0)
        sodium_free(k->secrets);
    free(k);
    return NULL;
}

/* The ring is whole: nothing writes to its secrets from here on. */
static void keyring_finish(struct keyring *k)
{
    (void) crypto_generichash(k->fleet, sizeof(k->fleet), (const uint8_t *) keyring_fleet_text,
                              sizeof(keyring_fleet_text) - 1, k->secrets->index, KEYRING_SECRET_BYTES);
    (void) sodium_mprotect_readonly(k->secrets);
}

/* ---- the text of a key ring ---- */

struct keyring_line {
    const char *path;
    unsigned number;
};

/* 64 hexadecimal digits and nothing else. */
static int keyring_parse_secret(const struct keyring_line *l, const char *text,
                                uint8_t ret[static KEYRING_SECRET_BYTES], struct errmsg *e)
{
    size_t n = strlen(text), n_bytes = 0;
    const char *end;

    if (n != 2 * (size_t) KEYRING_SECRET_BYTES ||
        sodium_hex2bin(ret, KEYRING_SECRET_BYTES, text, n, NULL, &n_bytes, &end) != 0 ||
        n_bytes != KEYRING_SECRET_BYTES || *end != '\0')
        return fail(e, -EBADMSG, "%s line %u: a secret has 64 hexadecimal digits (openssl rand -hex 32)",
                    l->path, l->number);
    if (sodium_is_zero(ret, KEYRING_SECRET_BYTES))
        return fail(e, -EBADMSG, "%s line %u: the secret is all zeros (make one: openssl rand -hex 32)",
                    l->path, l->number);
    return 0;
}

static int keyring_parse_index(struct keyring *k, const struct keyring_line *l, const char *secret,
                               struct errmsg *e)
{
    if (k->has_index)
        return fail(e, -EBADMSG, "%s line %u: a second index secret", l->path, l->number);

    k->has_index = true;
    return keyring_parse_secret(l, secret, k->secrets->index, e);
}

/* @seals: else the key only opens. */
static int keyring_parse_seal(struct keyring *k, const struct keyring_line *l, const char *id_text,
                              const char *secret, bool seals, struct errmsg *e)
{
    char *end;
    unsigned long id;

    errno = 0;
    id = strtoul(id_text, &end, 10);
    if (id_text[0] < '0' || id_text[0] > '9' || *end != '\0' || errno != 0 || id == 0 || id > UINT32_MAX)
        return fail(e, -EBADMSG, "%s line %u: the id of a sealing key is a number from 1 to %" PRIu32,
                    l->path, l->number, UINT32_MAX);
    for (uint32_t i = 0; i < k->n_keys; i++)
        if (k->ids[i] == id)
            return fail(e, -EBADMSG, "%s line %u: a second sealing key with the id %lu", l->path, l->number,
                        id);
    if (k->n_keys == KEYRING_KEYS_MAX)
        return fail(e, -EBADMSG, "%s line %u: more than %d sealing keys: remove the oldest", l->path,
                    l->number, KEYRING_KEYS_MAX);

    k->ids[k->n_keys] = (uint32_t) id;
    if (seals && id > k->newest)
        k->newest = (uint32_t) id;
    return keyring_parse_secret(l, secret, k->secrets->seal[k->n_keys++], e);
}

static int keyring_parse_line(struct keyring *k, const struct keyring_line *l, char *text, struct errmsg *e)
{
    static const char blanks[] = " \t\r";
    char *words[4], *rest = NULL;
    unsigned n = 0;

    for (char *w = strtok_r(text, blanks, &rest); w && n < 4; w = strtok_r(NULL, blanks, &rest))
        words[n++] = w;
    if (n == 0 || words[0][0] == '#')
        return 0;
    if (n == 2 && strcmp(words[0], "index") == 0)
        return keyring_parse_index(k, l, words[1], e);
    if (n == 3 && (strcmp(words[0], "seal") == 0 || strcmp(words[0], "open") == 0))
        return keyring_parse_seal(k, l, words[1], words[2], words[0][0] == 's', e);

    return fail(e, -EBADMSG,
                "%s line %u: none of \"index SECRET\", \"seal ID SECRET\" and \"open ID SECRET\"", l->path,
                l->number);
}

/* A secret has one purpose: the same one twice is a mistake of copying. */
static int keyring_check_whole(const struct keyring *k, const char *path, struct errmsg *e)
{
    if (!k->has_index)
        return fail(e, -EBADMSG, "%s has no line \"index SECRET\"", path);
    if (k->newest == 0)
        return fail(e, -EBADMSG, "%s has no line \"seal ID SECRET\"", path);

    for (uint32_t i = 0; i < k->n_keys; i++) {
        if (sodium_memcmp(k->secrets->seal[i], k->secrets->index, KEYRING_SECRET_BYTES) == 0)
            return fail(e, -EBADMSG, "%s: sealing key %" PRIu32 " equals the index secret", path, k->ids[i]);
        for (uint32_t j = 0; j < i; j++)
            if (sodium_memcmp(k->secrets->seal[i], k->secrets->seal[j], KEYRING_SECRET_BYTES) == 0)
                return fail(e, -EBADMSG, "%s: sealing keys %" PRIu32 " and %" PRIu32 " are equal", path,
                            k->ids[j], k->ids[i]);
    }

    return 0;
}

/* @text: terminated; changed. */
static int keyring_parse(struct keyring *k, const char *path, char *text, size_t bytes, struct errmsg *e)
{
    struct keyring_line l = {.path = path};

    if (strlen(text) != bytes)
        return fail(e, -EBADMSG, "%s is not a text", path);

    for (char *at = text; at;) {
        char *end = strchr(at, '\n');
        int r;

        if (end)
            *end++ = '\0';
        l.number++;
        r = keyring_parse_line(k, &l, at, e);
        if (r < 0)
            return r;
        at = end;
    }

    return keyring_check_whole(k, path, e);
}

/* ---- files ---- */

/*
 * @others: the mode's bits that must be off. systemd gives the service's user access to a credential by an
 * access list, whose mask stands in the group's bits.
 */
static int keyring_check_file(int fd, const char *path, mode_t others, struct errmsg *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s is not a file", path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return fail(e, -EPERM, "%s belongs to user %lu: a key ring belongs to root or to kvcobrad's user",
                    path, (unsigned long) st.st_uid);
    if (st.st_mode & others)
        return fail(e, -EPERM, "other users may read or write %s (mode %04o): chmod 0400 it", path,
                    (unsigned) st.st_mode & 07777);
    if (st.st_size > KEYRING_FILE_BYTES_MAX)
        return fail(e, -EFBIG, "%s has more than %d bytes", path, KEYRING_FILE_BYTES_MAX);
    return 0;
}

static int keyring_read_bytes(int fd, const char *path, char *to, size_t *ret_bytes, struct errmsg *e)
{
    size_t have = 0;

    for (;;) {
        ssize_t n = read(fd, to + have, KEYRING_FILE_BYTES_MAX + 1 - have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            break;
        have += (size_t) n;
        if (have > KEYRING_FILE_BYTES_MAX)
            return fail(e, -EFBIG, "%s has more than %d bytes", path, KEYRING_FILE_BYTES_MAX);
    }

    to[have] = '\0';
    *ret_bytes = have;
    return 0;
}

static int keyring_load(const char *path, mode_t others, struct keyring **ret, struct errmsg *e)
{
    _cleanup_(keyring_unrefp) struct keyring *k = NULL;
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t bytes = 0;
    char *text;
    int r;

    if (fd < 0)
        return fail(e, -errno, "cannot read the key ring %s: %s", path, strerror(errno));

    r = keyring_check_file(fd, path, others, e);
    if (r < 0)
        return r;

    r = keyring_alloc(&k, e);
    if (r < 0)
        return r;

    text = sodium_malloc(KEYRING_FILE_BYTES_MAX + 1);
    if (!text)
        return fail(e, -ENOMEM, "out of memory for the key ring %s", path);

    r = keyring_read_bytes(fd, path, text, &bytes, e);
    if (r == 0)
        r = keyring_parse(k, path, text, bytes, e);
    sodium_free(text);
    if (r < 0)
        return r;

    keyring_finish(k);
    *ret = take_ptr(k);
    return 0;
}

int keyring_read(const char *path, struct keyring **ret, struct errmsg *e)
{
    return keyring_load(path, 0077, ret, e);
}

int keyring_read_credential(const char *name, struct keyring **ret, struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;
    const char *folder = getenv("CREDENTIALS_DIRECTORY");

    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
        return fail(e, -EINVAL, "\"%s\" is not the name of a credential", name);
    if (!folder)
        return fail(e, -ENOENT, "the unit passes no credential %s: add LoadCredential=%s:PATH to it", name,
                    name);
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return fail(e, -ENOMEM, "out of memory for the path of a credential");
    }

    return keyring_load(path, 0037, ret, e);
}

int keyring_read_named(const char *name, struct keyring **ret, struct errmsg *e)
{
    return strchr(name, '/') ? keyring_read(name, ret, e) : keyring_read_credential(name, ret, e);
}

int keyring_of_host(const uint8_t secret[static KEYRING_SECRET_BYTES], struct keyring **ret, struct errmsg *e)
{
    struct keyring *k;
    int r = keyring_alloc(&k, e);

    if (r < 0)
        return r;

    memcpy(k->secrets->index, secret, KEYRING_SECRET_BYTES);
    (void) crypto_generichash(k->secrets->seal[0], KEYRING_SECRET_BYTES, (const uint8_t *) keyring_seal_text,
                              sizeof(keyring_seal_text) - 1, secret, KEYRING_SECRET_BYTES);
    k->of_host = true;
    k->ids[0] = k->newest = 1;
    k->n_keys = 1;
    keyring_finish(k);
    *ret = k;
    return 0;
}

int keyring_check_successor(const struct keyring *now, const struct keyring *next, struct errmsg *e)
{
    if (sodium_memcmp(now->secrets->index, next->secrets->index, KEYRING_SECRET_BYTES) == 0)
        return 0;

    return fail(
        e, -ESTALE,
        "the new key ring has another index secret, with which no page would be found: put the old one "
        "back, or drop all pages and restart kvcobrad");
}

bool keyring_is_of_host(const struct keyring *k)
{
    return k->of_host;
}

const uint8_t *keyring_index_secret(const struct keyring *k)
{
    return k->secrets->index;
}

const uint8_t *keyring_fleet(const struct keyring *k)
{
    return k->fleet;
}

uint32_t keyring_newest(const struct keyring *k)
{
    return k->newest;
}

const uint8_t *keyring_find(const struct keyring *k, uint32_t id)
{
    for (uint32_t i = 0; i < k->n_keys; i++)
        if (k->ids[i] == id)
            return k->secrets->seal[i];
    return NULL;
}
