/* client/python/raw_client.py as a process: what it appends, and what it read back. For test_client_raw.c and
 * test_client_gpu_raw.c. */
#pragma once

#include "tests/e2e/client_fixture.h"

enum { RAW_CHUNKS = 2, RAW_TOKENS = RAW_CHUNKS * KVC_CHUNK_TOKENS };

extern const char raw_salt[]; /* of its sequence */

/*
 * Appends the first chunks of text 0, with the vectors of embedded_input() for @m, reads them back and lets
 * them go.
 * @ret_decoded: [chunk][side][layer][64][heads][d]; free()
 *
 * Ends this process with 77 where there is no Python or no protobuf for it. False: it failed, and said why.
 */
bool raw_python(const struct scene *sc, const struct embedded *m, float **ret_decoded);
