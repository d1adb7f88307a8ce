/*
 * The memory objects of a connection's session, shared by all its models: the arena that pages are encoded
 * into, and the session page, whose counter keeps grants alive.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "client/connection/arena.h"
#include "proto/shared.h"

struct errmsg;
struct extent;

struct session {
    struct extent *page_extent;  /* read-write; NULL before the first model was opened */
    struct extent *arena_extent; /* read-write */
    struct arena arena;
    size_t arena_allocated; /* its first bytes have memory */
};

/**
 * session_import() - map the two objects of an OPEN_MODEL reply
 * @page_fd, @arena_fd: transferred, also on failure
 *
 * A second reply on the same connection has the same objects: then the descriptors are only closed.
 */
int session_import(struct session *s, int page_fd, uint64_t page_bytes, int arena_fd, uint64_t arena_bytes,
                   struct errmsg *e);
void session_deinit(struct session *s);

/*
 * A place in the arena that is long enough, with memory: the arena is sparse, and this process allocates it
 * piece by piece. arena_give() ends it. Return: 0; -ENOSPC: no free range is long enough; -ENOMEM.
 */
int session_arena_take(struct session *s, size_t bytes, size_t *ret_off);

/* NULL before the first model was opened. */
struct session_page *session_page(const struct session *s);
