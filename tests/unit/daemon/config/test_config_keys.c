/* Settings by name: ranges, values that are refused, the file, reloading. */
#include "tests/lib/test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"

const char test_suite[] = "config_keys";

/* Each setting with a range, at the ends of its range and one beyond. */
static void test_limits_of_settings(void)
{
    static const struct {
        const char *name;
        uint64_t min, max;
    } cases[] = {
        {"lendable", 0, 100},
        {"guarantee-bytes", 0, UINT64_C(1) << 50},
        {"ghosts", 16, 1u << 24},
        {"lease-ms", 100, 86400000},
        {"handshake-ms", 100, 86400000},
        {"work-threads", 1, 64},
        {"work-queue", 1, 65536},
        {"work-inline-bytes", 0, UINT64_C(1) << 30},
        {"connections", 1, 1u << 20},
        {"connections-per-tenant", 1, 1u << 20},
        {"sessions-per-tenant", 1, 1u << 20},
        {"tenants", 1, 1u << 16},
        {"models-per-session", 1, 1u << 16},
        {"leases-per-session", 1, 1u << 20},
        {"reservations-per-session", 1, 1u << 24},
        {"tables", 1, 1u << 16},
        {"gpu-guarantee-bytes", 0, UINT64_C(1) << 50},
        {"gpu-spare-extents", 0, 16},
        {"spare-extents", 0, 16},
        {"arenas-bytes", 1, UINT64_MAX},
        {"gpu-reuse-ms", 0, 86400000},
    };
    struct config c;

    config_init(&c);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t good[] = {cases[i].min, cases[i].min + 1, cases[i].max - 1, cases[i].max};
        const uint64_t bad[] = {cases[i].max + 1, cases[i].min - 1}; /* the second wraps if 0 is allowed */
        struct errmsg e;
        char text[32];

        for (size_t k = 0; k < 4; k++) {
            (void) snprintf(text, sizeof(text), "%" PRIu64, good[k]);
            CU_ASSERT_EQUAL(config_set(&c, cases[i].name, text, &e), 0);
        }
        for (size_t k = 0; k < 2; k++) {
            (void) snprintf(text, sizeof(text), "%" PRIu64, bad[k]);
            CU_ASSERT_EQUAL(config_set(&c, cases[i].name, text, &e), -EINVAL);
            CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].name));
        }
    }
    config_deinit(&c);
}

static int set_key(const char *key, const char *value)
{
    struct config c;
    struct errmsg e = {""};
    int r;

    config_init(&c);
    r = config_set(&c, key, value, &e);
    CU_ASSERT(r == 0 || strstr(e.text, key) != NULL); /* the sentence names the setting */
    config_deinit(&c);
    return r;
}

static void test_values_that_are_refused(void)
{
    CU_ASSERT_EQUAL(set_key("socket-mode", "0777"), 0);
    CU_ASSERT_EQUAL(set_key("socket-mode", "1000"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("socket-mode", "8"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("keep-pool", "maybe"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("quota-bytes", "0"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("socket", "name"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("operator-socket", "none"), 0);
    CU_ASSERT_EQUAL(set_key("nothing", "1"), -ENOENT);
    CU_ASSERT_EQUAL(set_key("state-dir", ""), -EINVAL);
    CU_ASSERT_EQUAL(set_key("state-dir", "/a\nlease-ms = 1"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("state-dir", "~"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("log-level", "loud"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("log-level", "8"), -EINVAL);
    CU_ASSERT_EQUAL(set_key("log-level", "07"), -EINVAL);
}

/* By its name or its number, as in kvcobra-cluster's file. */
static void test_levels(void)
{
    struct errmsg e = {""};
    struct config c;

    config_init(&c);
    CU_ASSERT_EQUAL(c.log_level, LOG_INFO);
    CU_ASSERT_EQUAL(config_set(&c, "log-level", "emerg", &e), 0);
    CU_ASSERT_EQUAL(c.log_level, LOG_EMERG);
    CU_ASSERT_EQUAL(config_set(&c, "log-level", "3", &e), 0);
    CU_ASSERT_EQUAL(c.log_level, LOG_ERR);
    CU_ASSERT_EQUAL(config_set(&c, "log-level", "debug", &e), 0);
    CU_ASSERT_EQUAL(c.log_level, LOG_DEBUG);
    config_deinit(&c);
}

static int load_text(const char *text, struct config *c, struct errmsg *e)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX";
    int fd = mkstemp(path), r;

    assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
    config_init(c);
    r = config_load(c, path, NULL, e);
    (void) close(fd);
    (void) unlink(path);
    return r;
}

/* A list of users is whole, however long its line is. */
static void test_long_lines(void)
{
    for (unsigned n = 1; n < 2000; n += 97) {
        char text[16000] = "[tenant a]\nusers = ";
        size_t at = strlen(text);
        struct errmsg e;
        struct config c;

        for (unsigned i = 0; i < n; i++)
            at += (size_t) snprintf(text + at, sizeof(text) - at, "%u,", 1000 + i);
        (void) strcpy(text + at, "7 # the last\n");
        CU_ASSERT_EQUAL(load_text(text, &c, &e), 0);
        CU_ASSERT_EQUAL_FATAL(c.tenants.n_users, n + 1);
        for (uint32_t i = 0; i < n; i++)
            CU_ASSERT_EQUAL(c.tenants.users[i].first, 1000 + i);
        CU_ASSERT_EQUAL(c.tenants.users[n].first, 7);
        config_deinit(&c);
    }
}

static void test_file(void)
{
    static const struct {
        const char *text, *sentence;
    } wrong[] = {
        {"lease-ms = 1\n", "line 1: lease-ms"},
        {"# x\nlease-ms = 500\nlease-ms = 500\n", "line 3: lease-ms is set a second time"},
        {"lease = 5\n", "line 1: there is no setting \"lease\""},
        {"[daemon]\nlease-ms = 500\n", "line 1: [daemon]: sections are called [tenant NAME]"},
        {"[tenant a]\nusers = 1\nlease-ms = 500\n", "line 3: [tenant a] lease-ms: there is no such key"},
        {"[tenant a]\nuser = 1\n",
         "line 2: [tenant a] user: there is no such key in a section of a tenant; did "
         "you mean users?"},
        {"[tenant a]\ngpu-quota-byte = 1\n", "did you mean gpu-quota-bytes?"},
        {"[tenant a]\npool-bytes = 1G\n", "settings of kvcobrad itself stand before the first section"},
        {"[tenant a]\nusers = 1,\n  no-such-user\n",
         "lines 2 to 3: [tenant a] users: there is no user \"no-such-user\""},
        {"lease-ms\n", "line 1"},
        {"[tenant a]\n[tenant b]\nusers = 1\n[tenant a]\n", "line 4: [tenant a] has a second section"},
        {"[tenant a]\nusers =\n", "line 2: users has no value"},
        {"state-dir = ~/kv\n", "line 1: state-dir: \"~/kv\" begins with ~"},
        {"disk-buffer-bytes = 65M\n", "line 1: disk-buffer-bytes: \"65M\" is not a size from 1M to 64M"},
        {"[tenant a]\nquota-bytes = 0\n", "quota-bytes: \"0\" is not a size of at least 1"},
    };
    struct errmsg e = {""};
    struct config c;

    CU_ASSERT_EQUAL(load_text("# all\npool-bytes = 128M\nsocket = /run/x.sock\n\nlog-level=7\n", &c, &e), 0);
    CU_ASSERT(c.pool_bytes == 128u << 20 && c.log_level == 7 && strcmp(c.socket_path, "/run/x.sock") == 0);
    config_deinit(&c);
    CU_ASSERT_EQUAL(load_text("state-dir = /d/state # fast disk\nsocket = \"/run/a # b\" ; text\n", &c, &e),
                    0);
    CU_ASSERT_STRING_EQUAL(c.state_dir, "/d/state");
    CU_ASSERT_STRING_EQUAL(c.socket_path, "/run/a # b");
    config_deinit(&c);
    CU_ASSERT_EQUAL(load_text("log-level=7\n[tenant a]\nusers = 1, 2\n  3\ngroups = 4 ; text\n", &c, &e), 0);
    CU_ASSERT(c.log_level == 7 && c.tenants.n_users == 3 && c.tenants.n_groups == 1);
    CU_ASSERT_STRING_EQUAL(c.tenants.sections[0].name, "a");
    config_deinit(&c);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CU_ASSERT_EQUAL(load_text(wrong[i].text, &c, &e), -EINVAL);
        CU_ASSERT(strstr(e.text, wrong[i].sentence) != NULL);
        config_deinit(&c);
    }
    config_init(&c);
    CU_ASSERT_EQUAL(config_load(&c, "/nonexistent/kvcobrad.conf", NULL, &e), -ENOENT);
    config_deinit(&c);
}

/* Settings that SIGHUP may change do; a setting that needs a restart keeps its value. */
static void test_reload(void)
{
    struct config running, fresh;

    log_open(LOG_EMERG);
    config_init(&running);
    config_init(&fresh);
    CU_ASSERT_EQUAL(config_set(&fresh, "lease-ms", "500", NULL), 0);
    CU_ASSERT_EQUAL(config_set(&fresh, "pool-bytes", "1G", NULL), 0);
    CU_ASSERT_EQUAL(config_set(&fresh, "socket", "/run/other.sock", NULL), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&fresh.tenants, "tenant a", "users", "7", NULL), 0);
    config_reload(&running, &fresh);
    CU_ASSERT(running.tenants.n_sections == 1 && fresh.tenants.n_sections == 0);
    CU_ASSERT_EQUAL(running.lease_ms, 500);
    CU_ASSERT_EQUAL(running.pool_bytes, UINT64_C(4) << 30);
    CU_ASSERT_STRING_EQUAL(running.socket_path, "/run/kvcobra/kvcobra.sock");
    config_deinit(&fresh);
    config_deinit(&running);
}

const struct test_case test_cases[] = {
    TEST(test_limits_of_settings),
    TEST(test_values_that_are_refused),
    TEST(test_file),
    TEST(test_levels),
    TEST(test_long_lines),
    TEST(test_reload),
    TEST_END,
};
