/*
 * What `kvcobra bench service` measures: kvcobrad under load beside a bare exchange of packets under the same load, and the
 * prefix lookup. The protocol is spoken by hand (proto/): the public header cannot time one message alone.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table.h"
#include "gpu/layout.h"
#include "proto/index.h"
#include "proto/page.h"
#include "tools/timing.h"

struct errmsg;

#define SERVICE_LOOKUPS 512 /* chunks of one prefix */

/* ---- one connection (bench_service_link.c) ----------------------------------------------------------------------- */

struct link {
    int fd;
    uint32_t model;
    uint8_t table_digest[DIGEST_BYTES];
    uint8_t *arena;
    size_t arena_bytes;
    const uint8_t *index;
    size_t index_bytes;
};

struct link_page {
    uint32_t slot;
    uint64_t generation, lease;
};

/* Everything returns 0, or a negative errno with a sentence. */
int link_open(const char *path, struct link *ret, struct errmsg *e); /* hello, confirm */
int link_open_model(struct link *l, const struct geometry *g, const uint8_t *model_digest, struct errmsg *e);
void link_close(struct link *l);
int link_stage_and_activate(const char *operator_path, const void *bytes, size_t n_bytes, struct errmsg *e);
int link_reserve(struct link *l, const struct chunk_key *key, unsigned page_class, struct link_page *ret, struct errmsg *e);
int link_commit(struct link *l, const struct chunk_key *key, size_t offset, struct link_page *p, struct errmsg *e);
int link_lease(struct link *l, const struct chunk_key *key, const struct link_page *p, uint64_t *ret_lease,
               struct errmsg *e);
int link_release(struct link *l, uint64_t lease, struct errmsg *e);

/* A valid page of class rest for @key at the arena's beginning. */
void link_write_page(struct link *l, const struct page_layout *layout, const struct chunk_key *key);

/* ---- measuring (bench_service.c) --------------------------------------------------------------------------------- */

struct service_options {
    const char *socket, *operator_socket;
    unsigned n_clients, n_rounds; /* rounds of each client */
};

struct service_figures { /* seconds */
    struct timing ping, lease, commit, copy, lookup; /* copy: of a page, with its CRC; lookup: of one chunk */
    size_t page_bytes;
    unsigned n_samples;
};

/* A daemon serves; its table is made and activated here. */
int service_measure(const struct service_options *o, struct service_figures *ret, struct errmsg *e);
