/*
 * APPEND_RAW and READ_RAW without the library, for the small model of raw_service_fixture.h: 2 layers, 2 KV
 * heads, d = 32.
 */
#pragma once

#include <stdint.h>

#include "tests/e2e/raw_fixture.h"

enum { RAW_LAYERS = 2, RAW_LAYER_BYTES = 64 * 2 * 32 * 4, RAW_SIDE_BYTES = RAW_LAYERS * RAW_LAYER_BYTES };

/*
 * A message for the first chunk of a sequence, with tokens from @first_token on. Fills the first two sides of
 * the arena with vectors that depend on @first_token.
 */
Kvcobra__AppendRaw raw_append_of(struct raw_model *m, uint32_t first_token);

/* Return: errno of the reply; on success *ret_lease. */
int raw_append(struct raw_model *m, Kvcobra__AppendRaw *a, uint64_t *ret_lease);

/* Sends such a message and does not wait for the reply. */
void raw_send_append(struct raw_model *m, uint32_t first_token);

/* Return: errno. */
int raw_read(struct raw_model *m, uint64_t lease, uint32_t item, uint32_t layer, uint32_t side, int type,
             uint64_t offset);
