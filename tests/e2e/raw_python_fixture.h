/*
 * client/python/raw_client.py as a process, for test_client_raw.c and test_client_gpu_raw.c: the vectors that
 * it appends, and those that it reads back.
 */
#pragma once

#include "tests/e2e/client_fixture.h"

enum { RAW_CHUNKS = 2, RAW_TOKENS = RAW_CHUNKS * KVC_CHUNK_TOKENS };

extern const char raw_salt[]; /* salt of its sequence */

/*
 * Appends the first chunks of text 0, with the vectors of embedded_input() for @m, reads them back and
 * releases them.
 * @ret_decoded: [chunk][side][layer][64][heads][d]; free()
 *
 * Exits with 77 if Python or its protobuf is missing. False: the script failed and printed why.
 */
bool raw_python(const struct scene *sc, const struct embedded *m, float **ret_decoded);
