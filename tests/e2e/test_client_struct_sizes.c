/*
 * Structs and arrays of kvcobra-operator.h for callers of another version, with a daemon: a size that is too
 * small is refused before the daemon changes anything, and the rest of a larger struct is filled with zeros.
 * The structs of kvcobra.h are tested in tests/unit/client/connection/test_options.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-operator.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_struct_sizes";

enum { NEWER_BYTES = 16 }; /* bytes of members that this library does not have */

static void start(struct scene *sc)
{
    scene_start(sc, random_table_geometry(2, 4, 2, 64), 3, 1, NULL);
}

static void active_digest(struct scene *sc, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    kvc_table_info *tables = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_table_list(sc->control, sizeof(*tables), &tables, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, 1);
    memcpy(ret_digest, tables[0].digest, KVC_DIGEST_BYTES);
    free(tables);
}

/* Two tenants, a page and a report of its errors, so that every list has items. */
static void fill(struct scene *sc)
{
    struct embedded m = scene_client(sc);
    uint32_t *tokens = scene_tokens(0, 300);
    const kvc_report_options report = {.struct_bytes = sizeof(report), .share_ppm = 1000000};
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_quota_set(sc->control, "uid-1", 64 << 20, KVC_QUOTA_KEEP, NULL), 0);
    CU_ASSERT_EQUAL(kvc_model_report(m.model, &report), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, 300, 100, &n), 0);
    free(tokens);
    embedded_free(&m);
}

/* ---- one struct ---- */

typedef int (*get_fn)(struct scene *sc, void *ret);

/* Whether @get fills structs of @bytes, larger and smaller ones by the rule. */
static void check_output(struct scene *sc, get_fn get, size_t bytes)
{
    static const uint8_t zeros[NEWER_BYTES];
    uint8_t *same = malloc(bytes), *newer = malloc(bytes + NEWER_BYTES), *shorter = malloc(bytes - 8);
    const size_t newer_bytes = bytes + NEWER_BYTES, shorter_bytes = bytes - 8;

    CU_ASSERT_FATAL(same && newer && shorter);
    memset(newer, 0x5a, newer_bytes);
    memset(shorter, 0x5a, shorter_bytes);
    memcpy(same, &bytes, sizeof(bytes));
    memcpy(newer, &newer_bytes, sizeof(newer_bytes));
    memcpy(shorter, &shorter_bytes, sizeof(shorter_bytes));

    CU_ASSERT_EQUAL(get(sc, shorter), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc->control), "set it to sizeof(kvc_"));
    CU_ASSERT_EQUAL(shorter[8], 0x5a);
    CU_ASSERT_EQUAL(get(sc, same), 0);
    CU_ASSERT_EQUAL(get(sc, newer), 0);
    CU_ASSERT_EQUAL(*(size_t *) newer, newer_bytes);
    CU_ASSERT_EQUAL(memcmp(same + 8, newer + 8, bytes - 8), 0);
    CU_ASSERT_EQUAL(memcmp(newer + bytes, zeros, sizeof(zeros)), 0);
    free(same);
    free(newer);
    free(shorter);
}

static int get_quota(struct scene *sc, void *ret)
{
    return kvc_quota_set(sc->control, "uid-1", 64 << 20, KVC_QUOTA_KEEP, ret);
}

static int get_drain(struct scene *sc, void *ret)
{
    return kvc_drain(sc->control, KVC_DRAIN_ASK, ret);
}

static int get_fit(struct scene *sc, void *ret)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    kvc_layer_fit *layers = NULL;
    size_t n = 0;
    int r;

    active_digest(sc, digest);
    r = kvc_table_get_fit(sc->control, digest, ret, sizeof(*layers), &layers, &n);
    free(layers);
    return r;
}

static void test_structs(void)
{
    struct scene sc;

    start(&sc);
    fill(&sc);
    check_output(&sc, get_quota, sizeof(kvc_quota_state));
    check_output(&sc, get_drain, sizeof(kvc_drain_state));
    check_output(&sc, get_fit, sizeof(kvc_fit));
    scene_end(&sc);
}

static void test_refused_before_the_change(void)
{
    kvc_quota_state quota = {.struct_bytes = 8}, before = {.struct_bytes = sizeof(before)}, after = before;
    kvc_drain_state drain = {.struct_bytes = 8};
    struct scene sc;

    start(&sc);
    CU_ASSERT_EQUAL(kvc_quota_set(sc.control, "uid-1", 64 << 20, KVC_QUOTA_KEEP, &before), 0);
    CU_ASSERT_EQUAL(kvc_quota_set(sc.control, "uid-1", 32 << 20, KVC_QUOTA_KEEP, &quota), -EINVAL);
    CU_ASSERT_EQUAL(kvc_quota_set(sc.control, "uid-1", 64 << 20, KVC_QUOTA_KEEP, &after), 0);
    CU_ASSERT_EQUAL(after.previous_max_bytes, before.max_bytes);
    CU_ASSERT_EQUAL(kvc_drain(sc.control, KVC_DRAIN_ON, &drain), -EINVAL);
    drain.struct_bytes = sizeof(drain);
    CU_ASSERT_EQUAL(kvc_drain(sc.control, KVC_DRAIN_ASK, &drain), 0);
    CU_ASSERT_EQUAL(drain.draining, 0);
    scene_end(&sc);
}

/* ---- arrays ---- */

struct newer_table_info {
    kvc_table_info info;
    uint64_t newer[2];
};

struct newer_layer_fit {
    kvc_layer_fit fit;
    uint64_t newer[2];
};

static void test_tables(void)
{
    kvc_table_info *same = NULL, *items = NULL;
    struct newer_table_info *newer;
    uint8_t second[KVC_DIGEST_BYTES];
    struct scene sc;
    size_t n = 0, n_newer = 0;

    start(&sc);
    scene_activate(&sc, 2, 2, second);
    CU_ASSERT_EQUAL(kvc_table_list(sc.control, sizeof(*same) - 8, &same, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_list(sc.control, SIZE_MAX, &same, &n), -EINVAL);
    CU_ASSERT_PTR_NULL(same);
    CU_ASSERT_EQUAL_FATAL(kvc_table_list(sc.control, sizeof(*same), &same, &n), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_table_list(sc.control, sizeof(*newer), &items, &n_newer), 0);
    newer = (struct newer_table_info *) items;
    CU_ASSERT_EQUAL_FATAL(n, 2);
    CU_ASSERT_EQUAL_FATAL(n_newer, 2);
    for (size_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(same[i].struct_bytes, sizeof(*same));
        CU_ASSERT_EQUAL(same[i].fit.struct_bytes, sizeof(kvc_fit));
        CU_ASSERT_EQUAL(newer[i].info.struct_bytes, sizeof(*newer));
        CU_ASSERT_EQUAL(memcmp(newer[i].info.digest, same[i].digest, KVC_DIGEST_BYTES), 0);
        CU_ASSERT_EQUAL(newer[i].info.state, same[i].state);
        CU_ASSERT(newer[i].newer[0] == 0 && newer[i].newer[1] == 0);
    }
    free(same);
    free(items);
    scene_end(&sc);
}

static void test_layers(void)
{
    kvc_fit fit = {.struct_bytes = sizeof(fit)};
    kvc_layer_fit *items = NULL;
    struct newer_layer_fit *newer;
    uint8_t digest[KVC_DIGEST_BYTES];
    struct scene sc;
    size_t n = 0;

    start(&sc);
    fill(&sc);
    active_digest(&sc, digest);
    CU_ASSERT_EQUAL(kvc_table_get_fit(sc.control, digest, &fit, sizeof(*items) - 8, &items, &n), -EINVAL);
    CU_ASSERT_PTR_NULL(items);
    CU_ASSERT_EQUAL_FATAL(kvc_table_get_fit(sc.control, digest, &fit, sizeof(*newer), &items, &n), 0);
    newer = (struct newer_layer_fit *) items;
    CU_ASSERT_EQUAL_FATAL(n, sc.g.n_layers);
    for (size_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(newer[i].fit.struct_bytes, sizeof(*newer));
        CU_ASSERT(newer[i].fit.error[0] > 0 && newer[i].fit.error[1] > 0);
        CU_ASSERT(newer[i].newer[0] == 0 && newer[i].newer[1] == 0);
    }
    free(items);
    scene_end(&sc);
}

/* ---- the status ---- */

struct newer_status {
    kvc_status status;
    uint64_t newer[2];
};

struct newer_device_status {
    kvc_device_status device;
    uint64_t newer[2];
};

struct newer_tenant_status {
    kvc_tenant_status tenant;
    uint64_t newer[2];
};

struct newer_space_status {
    kvc_space_status space;
    uint64_t newer[2];
};

static void check_newer_lists(const kvc_status *s, const kvc_status *same)
{
    const struct newer_device_status *devices = (const void *) s->devices;
    const struct newer_tenant_status *tenants = (const void *) s->tenants;
    const struct newer_space_status *spaces = (const void *) s->spaces;

    CU_ASSERT_EQUAL_FATAL(s->n_devices, same->n_devices);
    CU_ASSERT_EQUAL_FATAL(s->n_tenants, same->n_tenants);
    CU_ASSERT_EQUAL_FATAL(s->n_spaces, same->n_spaces);
    for (size_t i = 0; i < s->n_devices; i++) {
        CU_ASSERT_EQUAL(devices[i].device.struct_bytes, sizeof(devices[i]));
        CU_ASSERT_STRING_EQUAL(devices[i].device.name, same->devices[i].name);
        CU_ASSERT(devices[i].newer[0] == 0 && devices[i].newer[1] == 0);
    }
    for (size_t i = 0; i < s->n_tenants; i++) {
        CU_ASSERT_EQUAL(tenants[i].tenant.struct_bytes, sizeof(tenants[i]));
        CU_ASSERT_STRING_EQUAL(tenants[i].tenant.name, same->tenants[i].name);
        CU_ASSERT(tenants[i].newer[0] == 0 && tenants[i].newer[1] == 0);
    }
    for (size_t i = 0; i < s->n_spaces; i++) {
        CU_ASSERT_EQUAL(spaces[i].space.struct_bytes, sizeof(spaces[i]));
        CU_ASSERT_EQUAL(spaces[i].space.page_bytes, same->spaces[i].page_bytes);
        CU_ASSERT(spaces[i].newer[0] == 0 && spaces[i].newer[1] == 0);
    }
}

static void test_status(void)
{
    const kvc_status_sizes sizes = KVC_STATUS_SIZES;
    const kvc_status_sizes newer_sizes = {
        sizeof(newer_sizes), sizeof(struct newer_status), sizeof(struct newer_tenant_status),
        sizeof(struct newer_space_status), sizeof(struct newer_device_status)};
    kvc_status *same = NULL, *s = NULL;
    struct scene sc;

    start(&sc);
    fill(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_status_get(sc.control, &sizes, &same), 0);
    CU_ASSERT_EQUAL(same->struct_bytes, sizeof(*same));
    CU_ASSERT(same->n_devices == 1 && same->n_tenants >= 2 && same->n_spaces == 1);
    CU_ASSERT_EQUAL_FATAL(kvc_status_get(sc.control, &newer_sizes, &s), 0);
    CU_ASSERT_EQUAL(s->struct_bytes, sizeof(struct newer_status));
    CU_ASSERT(((struct newer_status *) s)->newer[0] == 0 && ((struct newer_status *) s)->newer[1] == 0);
    CU_ASSERT_EQUAL(s->pid, same->pid);
    check_newer_lists(s, same);
    kvc_status_free(s);
    kvc_status_free(same);
    scene_end(&sc);
}

static void test_status_sizes(void)
{
    static const kvc_status_sizes wrong[] = {
        {8, sizeof(kvc_status), sizeof(kvc_tenant_status), sizeof(kvc_space_status),
         sizeof(kvc_device_status)},
        {sizeof(wrong[0]), 8, sizeof(kvc_tenant_status), sizeof(kvc_space_status), sizeof(kvc_device_status)},
        {sizeof(wrong[0]), sizeof(kvc_status), 8, sizeof(kvc_space_status), sizeof(kvc_device_status)},
        {sizeof(wrong[0]), sizeof(kvc_status), sizeof(kvc_tenant_status), 8, sizeof(kvc_device_status)},
        {sizeof(wrong[0]), sizeof(kvc_status), sizeof(kvc_tenant_status), sizeof(kvc_space_status), 8},
    };
    const kvc_status_sizes no_lists = {sizeof(no_lists), sizeof(kvc_status), 0, 0, 0};
    kvc_status *s = NULL;
    struct scene sc;

    start(&sc);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        CU_ASSERT_EQUAL(kvc_status_get(sc.control, &wrong[i], &s), -EINVAL);
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_EQUAL_FATAL(kvc_status_get(sc.control, &no_lists, &s), 0);
    CU_ASSERT(s->n_tenants == 0 && s->n_spaces == 0 && s->n_devices == 0);
    CU_ASSERT(!s->tenants && !s->spaces && !s->devices);
    CU_ASSERT_NOT_EQUAL(s->pid, 0);
    kvc_status_free(s);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_structs), TEST(test_refused_before_the_change),
    TEST(test_tables),  TEST(test_layers),
    TEST(test_status),  TEST(test_status_sizes),
    TEST_END,
};
