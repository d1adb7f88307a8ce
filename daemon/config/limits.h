/*
 * Limits of the formats: the bits of a slot number, the capacity of the journal, sizes on the wire. The
 * configuration is checked against them, and the rooms above build their structures from them. None of them
 * can be configured.
 */
#pragma once

#include <stdint.h>

#define SLOT_ALIGN 128    /* bytes; slots start at multiples, and the smallest slot has this size */
#define POOL_SLOT_BITS 14 /* of a slot number: the slot in its span, since 2 MiB / SLOT_ALIGN is 1 << 14 */
#define POOL_SLOTS_PER_SPAN_MAX (1u << POOL_SLOT_BITS)
#define POOL_SPANS_MAX ((UINT64_C(1) << (32 - POOL_SLOT_BITS)) - 1) /* UINT32_MAX is no slot */
#define POOL_SPAN_BYTES_MAX ((uint64_t) POOL_SLOTS_PER_SPAN_MAX * SLOT_ALIGN)
#define POOL_PAGE_BYTES 4096

#define JOURNAL_EXTENTS_MAX (1u << 18) /* POOL_SPANS_MAX, if every span is an extent */
#define JOURNAL_PLACES_MAX 17          /* the host's memory and CONFIG_GPUS_MAX GPUs */
#define JOURNAL_NAMES_MAX 1024 /* of accounts: those of the configuration, and earlier ones with pages */

#define ACCOUNT_NAME_BYTES 32
#define TENANT_SERIES_MAX 1023  /* tenants with metrics of their own at one time; the others are summed up */
#define TENANT_SECTIONS_MAX 512 /* of the configuration; half of JOURNAL_NAMES_MAX */
#define TENANT_MEMBERS_MAX                                                                                   \
    4096 /* users, ranges and groups of all sections, which every connection compares */
#define GUARANTEE_BYTES_MAX (UINT64_C(1) << 50)
#define DISK_BYTES_MAX (UINT64_C(1) << 44) /* of the disk tier: 65536 segments of 256 MiB */

#define LEASE_INDEX_BITS 20 /* of a lease's number: its place in the session's table */

/* Connections of operators: they are not among the clients' connections, which clients can use up. */
#define OPERATOR_CONNECTIONS_MAX 32

#define PREALLOCATED_MAX 16 /* extents of a GPU that exist before a tenant needs them */
