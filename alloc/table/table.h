/*
 * Allocation tables as gpu/, client/, daemon/ and tools/ share them: immutable, reference-counted, checked
 * before first use. alloc/table/table_types.h describes their contents. Needs libc and libsodium (SHA-256),
 * not BLAS. alloc/table/table_build.h builds tables; alloc/README.md draws the bytes of the file.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_types.h"

struct errmsg;

/**
 * table_parse() - check the bytes of a table file and make a view of them
 * @bytes:     borrowed; copied
 * @ret_table: one reference, table_unref() it
 *
 * Hostile input is safe: every offset and count is checked, matrices must be finite, levels ascending, bits
 * descending in 0..8, r consistent, digest right, golden codes decode to the stored vectors.
 *
 * Return: 0; -EBADMSG with a sentence saying what is wrong; -ENOMEM.
 */
int table_parse(const void *bytes, size_t n_bytes, struct table **ret_table, struct errmsg *e);

/**
 * table_map() - make a view of a table in shared memory, which another process verified by table_parse()
 * @fd:      a memory object of @n_bytes that no process can change: sealed WRITE, SHRINK and GROW; borrowed
 * @digest:  of the table
 *
 * All users of the object share its memory. The structure is checked, so that no read leaves the object; the
 * SHA-256 over all bytes, the numbers and the golden codes are not, since that takes most of the time of
 * table_parse(): only the digest that the object names is compared.
 *
 * Return: 0; -EBADMSG with a sentence; -EPERM: the object may change; the errno of mmap().
 */
int table_map(int fd, size_t n_bytes, const uint8_t digest[DIGEST_BYTES], struct table **ret_table,
              struct errmsg *e);

/* Reads a file and parses it. Return: as table_parse(); the errno of reading; the sentence names the path. */
int table_load(const char *path, struct table **ret_table, struct errmsg *e);

/* Thread-safe: a table never changes while it has references. table_unref() returns NULL and accepts NULL. */
struct table *table_ref(struct table *t);
struct table *table_unref(struct table *t);

static inline void table_unrefp(struct table **t)
{
    *t = table_unref(*t);
}

/* Index of the level for @z: the number of thresholds <= z. NaN gives 0; callers refuse NaN before. */
uint8_t levels_quantise(const struct levels *l, unsigned b, float z);
