/*
 * Checks the sizes inside a packet before it is unpacked; internal to proto/: wire.c calls it, so that no
 * caller can forget it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/kvcobra.pb-c.h"

/**
 * wire_limits_check() - walk @packet as a message of @type without allocating
 * Return: 0; -EBADMSG: not the wire format, or a form that no encoder of ours writes; -E2BIG: too many items
 * or too long a string; -EOPNOTSUPP: too many fields that @type does not have.
 */
int wire_limits_check(const ProtobufCMessageDescriptor *type, const uint8_t *packet, size_t bytes);
