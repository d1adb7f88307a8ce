/*
 * A client without the library (client/python/raw_client.py) and one with it, both on a GPU. Each finds and
 * reads what the other appended, with the bits that a session in host memory makes of the same vectors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_gpu_fixture.h"
#include "tests/e2e/raw_python_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_gpu_raw";

#define UUID "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0" /* of the stand-in's first device */

static float *decoded; /* decoded vectors that Python read */

/* Finds the pages that Python appended. Runs in a process that may open the driver. */
static bool finder(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    size_t layer_n = (size_t) KVC_CHUNK_TOKENS * m.n_heads * m.g.d, matched = 0;
    uint32_t *tokens = scene_tokens(0, RAW_TOKENS + 1);
    kvc_seq *s = NULL;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, raw_salt, strlen(raw_salt), &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, RAW_TOKENS + 1, &matched), 0);
    CU_ASSERT_EQUAL_FATAL(matched, RAW_TOKENS);
    for (uint32_t layer = 0; layer < m.g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *read = gpu_read_back(&m, s, layer, (enum kvc_side) side, RAW_TOKENS);

            for (size_t c = 0; c < RAW_CHUNKS; c++)
                CU_ASSERT_EQUAL(memcmp(decoded + ((c * 2 + side) * m.g.n_layers + layer) * layer_n,
                                       read + c * layer_n, layer_n * sizeof(*read)),
                                0);
            free(read);
        }
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_python(void)
{
    char mover[256];
    const char *path = getenv("KVC_MOVER");
    const char *const args[] = {
        "--pool-bytes=64M",      "--arena-bytes=8M",      "--gpu=" UUID, "--gpu-pool-bytes=4M",
        "--gpu-extent-bytes=1M", "--gpu-span-bytes=256K", mover,         NULL,
    };
    struct scene sc;
    struct embedded m;
    struct child child;
    float *on_host = NULL;
    size_t bytes;

    CU_ASSERT_PTR_NOT_NULL_FATAL(path);
    (void) snprintf(mover, sizeof(mover), "--mover=%s", path);
    scene_start(&sc, random_table_geometry(3, 6, 2, 64), 4.0, 1, args);
    m = scene_client(&sc); /* in host memory, since this process does not open the driver */
    bytes = (size_t) RAW_TOKENS * 2 * m.g.n_layers * m.n_heads * m.g.d * sizeof(float);
    CU_ASSERT_FATAL(raw_python(&sc, &m, &on_host));
    CU_ASSERT_EQUAL(setenv("KVC_RAW_DEVICE", UUID, 1), 0);
    CU_ASSERT_FATAL(raw_python(&sc, &m, &decoded));
    CU_ASSERT_EQUAL(memcmp(decoded, on_host, bytes), 0);
    child = child_start(finder, &sc);
    CU_ASSERT(child_end(&child));
    free(on_host);
    free(decoded);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {TEST(test_python), TEST_END};
