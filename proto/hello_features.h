/*
 * Bits of HELLO's feature set: what a client can do beyond version 1 of the protocol. The daemon answers
 * with those that it knows too. A client of an earlier version has none, and is served all that needs none.
 */
#pragma once

#include <stdint.h>

/* The client reads tables of format 3. One that leaves encoding to the daemon fetches none. */
#define PROTO_FEATURE_TABLE_3 (UINT64_C(1) << 0)

#define PROTO_FEATURES PROTO_FEATURE_TABLE_3
