/*
 * Copies a decoded message into one block of exactly the bytes that its fields need. kvcobrad keeps the copy
 * of a request that waits, and frees what the decoder made: the decoder allocates each item of a list apart,
 * and keeps fields that this version does not know.
 */
#pragma once

#include <stddef.h>

#include "proto/kvcobra.pb-c.h"

/* The bytes that a copy of @m needs. */
size_t wire_copy_bytes(const ProtobufCMessage *m);

/**
 * wire_copy() - copy @m and all that it points at, without unknown fields
 * @to:  caller-owned, wire_copy_bytes() bytes with the alignment of malloc()
 *
 * The copy ends with its block: it is not freed as a message. Return: @to.
 */
ProtobufCMessage *wire_copy(const ProtobufCMessage *m, void *to);
