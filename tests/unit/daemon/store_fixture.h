/* A store with tenants and spaces but without tables, sessions or messages. */
#pragma once

#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "tests/unit/daemon/store_numbers.h"

enum { FIXTURE_TENANTS = 3, FIXTURE_SPACES = 3 };

struct store_fixture {
    struct device device;
    struct accounts accounts;
    struct pool_serials serials;
    struct tenant *tenants[FIXTURE_TENANTS];
    struct space spaces[FIXTURE_SPACES];
    struct pool_source source; /* makes memory of the host at once */
};

/* Slots of @slot_bytes[space][class]; class first may be larger. Asserts. */
void store_fixture_init(struct store_fixture *f, uint64_t pool_bytes, uint64_t extent_bytes,
                        uint64_t unit_bytes, uint64_t quota_bytes);

/* All holds and reservations must have ended. */
void store_fixture_deinit(struct store_fixture *f);

/*
 * Memory for a new extent. @gpu_fd: transferred; -1: memory of the host. For sources of pools. Return: 0;
 * errno.
 */
int store_fixture_memory(struct store_fixture *f, int gpu_fd, struct pool_memory *ret);

struct group *store_fixture_group(struct store_fixture *f, unsigned tenant, unsigned space,
                                  unsigned page_class);

struct chunk_key store_fixture_key(uint64_t n);

/* Reserve and publish @key: held once. Return: the slot, or SLOT_NONE with *ret_err. */
uint32_t store_fixture_publish(struct store_fixture *f, struct group *g, uint64_t key, int *ret_err);
