/*
 * kvc_client_set_gpu() without a driver, with an old one, without a device, or with one whose memory cannot
 * be shared: an error with a sentence, and the client stays usable on the CPU. Run with an empty library
 * path, an old libcuda, or the stand-in.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

static void test_goes_on_without(void)
{
    const kvc_gpu_options o = {.struct_bytes = sizeof(o)};
    const char *says = getenv("TEST_SAYS");
    struct embedded m = embedded_new(2, 4, 2, 64, 3, 0, 0), refused = m;
    kvc_model_id id = embedded_id(&m);
    size_t bytes = 300 * m.n_heads * m.g.d * sizeof(float);
    kvc_seq *s[2] = {NULL};
    float *x[2];
    int r;

    refused.client = NULL;
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&refused.client), 0);
    r = kvc_client_set_gpu(refused.client, &o);
    if (r == 0) { /* no library path can hide a driver that is really installed */
        kvc_client_free(refused.client);
        embedded_free(&m);
        test_skip("this machine has a driver");
        return;
    }
    CU_ASSERT(r == -EOPNOTSUPP || r == -ENODEV);
    CU_ASSERT_PTR_NOT_NULL_FATAL(says);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(refused.client), says));
    CU_ASSERT_PTR_NULL(refused.client->gpu);
    CU_ASSERT_EQUAL(kvc_client_synchronize(refused.client), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open_table(refused.client, &id, m.bytes, m.n_bytes, &refused.model), 0);
    for (size_t i = 0; i < 2; i++) {
        const struct embedded *e = i == 0 ? &m : &refused;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(e->model, NULL, 0, &s[i]), 0);
        CU_ASSERT_EQUAL(embedded_append(e, s[i], 0, 0, 299), 0);
        CU_ASSERT_EQUAL(embedded_append(e, s[i], 0, 299, 1), 0); /* packs the due chunk first */
        x[i] = embedded_read(e, s[i], 1, KVC_V, 300);
    }
    CU_ASSERT_EQUAL(memcmp(x[0], x[1], bytes), 0);
    free(x[0]);
    free(x[1]);
    kvc_client_free(refused.client);
    embedded_free(&m);
}

const char test_suite[] = "a client whose GPU cannot be opened";
const struct test_case test_cases[] = {TEST(test_goes_on_without), TEST_END};
