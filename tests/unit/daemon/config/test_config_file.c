/* Drop-in files: their order, what they override, what is refused; all errors; printing and reading again. */
#include "daemon/config/config_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "tests/lib/test.h"

const char test_suite[] = "config_file";

static char folder[32], file[64];

static void setup(void)
{
    (void) strcpy(folder, "/tmp/kvcobra-test-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(file, sizeof(file), "%s/k.conf", folder);
}

static void put(const char *name, const char *text)
{
    char path[128];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "we");
    CU_ASSERT_FATAL(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void put_folder(void)
{
    char path[128];

    (void) snprintf(path, sizeof(path), "%s/k.conf.d", folder);
    CU_ASSERT_EQUAL_FATAL(mkdir(path, 0700), 0);
}

static void teardown(void)
{
    char command[64];

    (void) snprintf(command, sizeof(command), "rm -r %s", folder);
    CU_ASSERT_EQUAL(system(command), 0);
}

static int load(struct config *c, bool must_exist, struct errmsg *e)
{
    config_init(c);
    return config_load_all(c, file, must_exist, NULL, e);
}

static void test_drop_ins(void)
{
    struct errmsg e = {""};
    struct config c;

    setup();
    put_folder();
    put("k.conf", "lease-ms = 100\nlog-level = 3\nconnections = 7\n");
    put("k.conf.d/20-b.conf", "lease-ms = 300\n");
    put("k.conf.d/10-a.conf", "lease-ms = 200\nlog-level = 5\n[tenant a]\nusers = 5\n");
    put("k.conf.d/.hidden.conf", "lease-ms = 1\n");
    put("k.conf.d/30-c.conf~", "lease-ms = 1\n");
    put("k.conf.d/.conf", "lease-ms = 1\n");
    CU_ASSERT_EQUAL(load(&c, true, &e), 0);
    CU_ASSERT(c.lease_ms == 300 && c.log_level == 5 && c.connections_max == 7 && c.tenants.n_sections == 1);
    CU_ASSERT_STRING_EQUAL(c.file, file);
    config_deinit(&c);

    put("k.conf.d/40-d.conf", "[tenant a]\nquota-bytes = 1G\n");
    CU_ASSERT_EQUAL(load(&c, true, &e), -EINVAL);
    CU_ASSERT(strstr(e.text, "40-d.conf, line 1") != NULL && strstr(e.text, "second section") != NULL);
    config_deinit(&c);
    teardown();
}

static void test_missing(void)
{
    struct errmsg e = {""};
    struct config c;

    setup();
    CU_ASSERT_EQUAL(load(&c, true, &e), -ENOENT);
    config_deinit(&c);
    CU_ASSERT_EQUAL(load(&c, false, &e), 0);
    CU_ASSERT_PTR_NULL(c.file);
    config_deinit(&c);

    put_folder();
    put("k.conf.d/a.conf", "lease-ms = 200\n");
    CU_ASSERT_EQUAL(load(&c, false, &e), 0);
    CU_ASSERT_EQUAL(c.lease_ms, 200);
    config_deinit(&c);
    teardown();
}

static void test_number_of_drop_ins(void)
{
    struct errmsg e = {""};
    struct config c;
    char name[32];

    setup();
    put_folder();
    put("k.conf", "");
    for (unsigned i = 0; i < CONFIG_DROP_INS_MAX; i++) {
        (void) snprintf(name, sizeof(name), "k.conf.d/%03u.conf", i);
        put(name, "");
    }
    CU_ASSERT_EQUAL(load(&c, true, &e), 0);
    config_deinit(&c);
    put("k.conf.d/more.conf", "");
    CU_ASSERT_EQUAL(load(&c, true, &e), -E2BIG);
    config_deinit(&c);
    teardown();
}

static void test_all_errors(void)
{
    struct errmsg e = {""};
    struct config c;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    setup();
    put("k.conf", "pool_bytes = 1G\nlease-ms = 500\nlease-ms = 600\nlog-level = 9\n");
    config_init(&c);
    CU_ASSERT_EQUAL(config_load(&c, file, f, &e), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(e.text, "line 1: there is no setting \"pool_bytes\"; did you mean pool-bytes?"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "2 more errors"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 1: there is no setting"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 3: lease-ms is set a second time"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 4: log-level"));
    free(text);
    config_deinit(&c);
    teardown();
}

/* Return: what --print-config prints; the caller frees. */
static char *printed(const struct config *c)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    config_print(c, f);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    return text;
}

/* Also long lists, and paths that need quotation marks. */
static void test_print_and_read_again(void)
{
    struct config c, again;
    struct errmsg e = {""};
    char users[512] = "", *first, *second;

    for (unsigned i = 0; i < 60; i++)
        (void) snprintf(users + strlen(users), sizeof(users) - strlen(users), "%u ", 100000 + 2 * i);
    setup();
    config_init(&c);
    c.extent_bytes = c.quota_bytes = 0;
    CU_ASSERT_EQUAL(config_set(&c, "operator-socket", "none", &e), 0);
    CU_ASSERT_EQUAL(config_set(&c, "socket-mode", "0604", &e), 0);
    CU_ASSERT_EQUAL(config_set(&c, "socket", "/run/a # \"b\"", &e), 0);
    CU_ASSERT_EQUAL(config_set(&c, "state-dir", " /run/x;y ", &e), 0);
    CU_ASSERT_EQUAL(config_set(&c, "log-level", "debug", &e), 0);
    CU_ASSERT_EQUAL(config_set(&c, "keep-pool", "no", &e), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant a", "users", users, &e), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant a", "users", "7-9", &e), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant a", "guarantee-bytes", "64M", &e), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant b", "groups", "8", &e), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant b", "gpu-quota-bytes", "1G", &e), 0);
    config_fill_derived(&c);
    first = printed(&c);
    put("k.conf", first);

    CU_ASSERT_EQUAL(load(&again, true, &e), 0);
    CU_ASSERT_EQUAL(again.tenants.n_users, 61);
    CU_ASSERT_STRING_EQUAL(again.socket_path, "/run/a # \"b\"");
    CU_ASSERT_STRING_EQUAL(again.state_dir, " /run/x;y ");
    CU_ASSERT_EQUAL(again.log_level, LOG_DEBUG);
    CU_ASSERT(again.socket_mode == 0604 && !again.operator_socket_path);
    second = printed(&again);
    CU_ASSERT_STRING_EQUAL(first, second);
    free(first);
    free(second);
    config_deinit(&again);
    config_deinit(&c);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_drop_ins),
    TEST(test_missing),
    TEST(test_number_of_drop_ins),
    TEST(test_all_errors),
    TEST(test_print_and_read_again),
    TEST_END,
};
