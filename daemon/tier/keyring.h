/*
 * The secrets of a fleet: hosts with the same key ring find and open each other's pages.
 *
 * The index secret derives chunk keys. It stays for as long as pages exist. Sealing keys encrypt pages that
 * leave memory (seal.h). Each has a number, its id: of the keys of "seal" lines the one with the highest id
 * seals, every key of the ring opens. A page that no key of a host opens is a miss there, so a new key first
 * comes to all hosts as an "open" line, and only then becomes the one that seals (docs/operations.md).
 *
 * A key ring is a file, or a credential of systemd:
 *
 *     # comment
 *     index 64 hexadecimal digits
 *     seal 8 64 hexadecimal digits
 *     open 7 64 hexadecimal digits
 *
 * Without one, a host makes a ring of its own from the secret of its state folder. keyring_is_of_host()
 * tells: no other host can open what such a ring seals.
 *
 * A ring never changes. Threads hold references while a reload replaces it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct keyring;

#define KEYRING_SECRET_BYTES 32
#define KEYRING_FLEET_BYTES 16
#define KEYRING_KEYS_MAX 16
#define KEYRING_FILE_BYTES_MAX 16384

/**
 * keyring_read() - read a key ring from a file
 *
 * The file belongs to root or to this process's user, and no other user may read it.
 *
 * Return: 0; -EPERM: its owner or mode; -EBADMSG with the number of the line; -EFBIG; errno of the file.
 */
int keyring_read(const char *path, struct keyring **ret, struct errmsg *e);

/*
 * The same from the credential @name in $CREDENTIALS_DIRECTORY. Return: also -EINVAL: not a name; -ENOENT:
 * the unit passes no credentials.
 */
int keyring_read_credential(const char *name, struct keyring **ret, struct errmsg *e);

/* From a credential if @name has no '/', else from the file. Return: as above. */
int keyring_read_named(const char *name, struct keyring **ret, struct errmsg *e);

/* The ring of this host alone. @secret: the index secret, from which the sealing key derives. */
int keyring_of_host(const uint8_t secret[static KEYRING_SECRET_BYTES], struct keyring **ret,
                    struct errmsg *e);

/*
 * Whether @next may replace @now while pages exist. Return: 0; -ESTALE with a sentence: another index secret.
 */
int keyring_check_successor(const struct keyring *now, const struct keyring *next, struct errmsg *e);

struct keyring *keyring_ref(struct keyring *k);
struct keyring *keyring_unref(struct keyring *k); /* NULL is allowed; returns NULL */
static inline void keyring_unrefp(struct keyring **k)
{
    *k = keyring_unref(*k);
}

bool keyring_is_of_host(const struct keyring *k);

/* [KEYRING_SECRET_BYTES], borrowed. */
const uint8_t *keyring_index_secret(const struct keyring *k);

/*
 * [KEYRING_FLEET_BYTES], borrowed: names the index secret without telling it. Equal on all hosts of a
 * fleet.
 */
const uint8_t *keyring_fleet(const struct keyring *k);

uint32_t keyring_newest(const struct keyring *k); /* id of the key that seals */

/* [KEYRING_SECRET_BYTES], borrowed. NULL: the ring has no key with this id. */
const uint8_t *keyring_find(const struct keyring *k, uint32_t id);
