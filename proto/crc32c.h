/*
 * CRC32C (Castagnoli): the checksum of page headers, payloads and the daemon's journal. It finds damage, not
 * forgery: a client that can write the bytes can write a matching checksum too.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t bytes);

/* Continues a checksum: @crc is that of the bytes before @data, 0 if there are none. */
uint32_t crc32c_continue(uint32_t crc, const void *data, size_t bytes);
