/*
 * A client without the library (client/python/raw_client.py) and one with it: each finds and reads what the
 * other published. Codes may differ in single values: the library encodes from a tail in binary16, the daemon
 * from the vectors of the message.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/raw_python_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_raw";

static const char *const pool[] = {"--pool-bytes=64M", "--arena-bytes=8M", NULL};

/* Decoded values of one layer and side, in the order of the file. */
static void compare(const struct embedded *m, kvc_seq *s, const float *decoded)
{
    size_t row = (size_t) m->n_heads * m->g.d, layer_n = KVC_CHUNK_TOKENS * row;
    double error = 0, energy = 0;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *read = calloc(RAW_TOKENS, row * sizeof(*read));
            float *x = embedded_input(m, 0, layer, (enum kvc_side) side, 0, RAW_TOKENS);

            assert(read);
            CU_ASSERT_EQUAL_FATAL(kvc_seq_read(s, layer, (enum kvc_side) side, 0, RAW_TOKENS, read), 0);
            for (size_t c = 0; c < RAW_CHUNKS; c++) {
                const float *theirs = decoded + ((c * 2 + side) * m->g.n_layers + layer) * layer_n;

                CU_ASSERT_EQUAL(memcmp(theirs, read + c * layer_n, layer_n * sizeof(*read)), 0);
            }
            for (size_t i = 0; i < RAW_TOKENS * row; i++) {
                error += (double) (read[i] - x[i]) * (read[i] - x[i]);
                energy += (double) x[i] * x[i];
            }
            free(read);
            free(x);
        }
    /*
     * 4 bits with Lloyd-Max levels leave about 1 % of a matching spectrum; these inputs have another spectrum
     * and leave more, but noise or a shifted layout would leave over 100 %
     */
    CU_ASSERT(error < 0.3 * energy);
}

static void test_python(void)
{
    struct scene sc;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, RAW_TOKENS + 1);
    size_t matched = 0;
    float *decoded = NULL;
    kvc_seq *s = NULL, *other = NULL;

    scene_start(&sc, random_table_geometry(3, 6, 2, 64), 4.0, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_FATAL(raw_python(&sc, &m, &decoded));

    /* same tokens, same salt: found; without the salt: not */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, raw_salt, strlen(raw_salt), &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, RAW_TOKENS + 1, &matched), 0);
    CU_ASSERT_EQUAL_FATAL(matched, RAW_TOKENS);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &other), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, RAW_TOKENS + 1, &matched), 0);
    CU_ASSERT_EQUAL(matched, 0);
    compare(&m, s, decoded);
    free(decoded);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {TEST(test_python), TEST_END};
