/*
 * One connection to a daemon that sends single messages of the protocol (proto/): the public API cannot time
 * one message alone, and cannot have a thousand sessions without their caches. For `kvcobra-lab bench
 * service`. One thread at a time for all links of a process.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "gpu/page_layout.h"
#include "proto/page.h"

struct errmsg;
struct bench_device;

#define LINK_ITEMS_MAX 512 /* pages of one message */

struct link {
    int fd;
    struct bench_device
        *device; /* device of its pages; borrowed. NULL: the host's memory, and no page is read */
    uint32_t model;
    uint8_t table_digest[DIGEST_BYTES];
    uint8_t *arena;
    size_t arena_bytes;
    const uint8_t *index; /* the index at the time when the model was opened */
    size_t index_bytes;
};

struct link_page {
    uint32_t slot;
    uint64_t generation, extent, offset, bytes;
    uint32_t crc32c; /* of the payload, after it is written */
};

/* All return 0, or a negative errno with a sentence. */
int link_open(const char *path, struct bench_device *device, struct link *ret,
              struct errmsg *e); /* HELLO and CONFIRM; waits for a GPU */
int link_open_model(struct link *l, const struct geometry *g, const uint8_t *model_digest, struct errmsg *e);
void link_close(struct link *l);
int link_stage_and_activate(const char *operator_path, const void *bytes, size_t n_bytes, struct errmsg *e);

/* @keys, @pages: [n], 1 to LINK_ITEMS_MAX. Fails unless all pages succeed. */
int link_reserve(struct link *l, const struct chunk_key *keys, size_t n, unsigned page_class,
                 struct link_page *ret, struct errmsg *e);
/* Page i lies at i * @stride in the arena; on a GPU its payload is in the slot, and pages[i].crc32c is its
 * checksum. */
int link_commit(struct link *l, const struct chunk_key *keys, const struct link_page *pages, size_t n,
                size_t stride, uint64_t *ret_lease, struct errmsg *e);
int link_lease(struct link *l, const struct chunk_key *keys, const struct link_page *pages, size_t n,
               uint64_t *ret_lease, struct errmsg *e);
int link_release(struct link *l, uint64_t lease, struct errmsg *e);

/* @n bytes from @first of a page on, as in the pool. In slots of a GPU the bytes of the header are
 * undefined. */
int link_read_page(struct link *l, const struct link_page *page, size_t first, size_t n, void *to,
                   struct errmsg *e);

/* The n-th key: uniform like real keys in both halves, which select buckets. */
struct chunk_key link_key(uint64_t n);

/* Writes a valid page of class rest for @key at @to: [page_bytes]; its payload is a function of the key. */
void link_write_page(const struct page_layout *layout, const struct chunk_key *key, uint8_t *to);

/* Reserves, writes and commits the pages of keys first, first + 1 ...; @ret: [n]. */
int link_publish(struct link *l, const struct page_layout *layout, uint64_t first, size_t n,
                 struct link_page *ret, uint64_t *ret_lease, struct errmsg *e);
