/* The table of settings: rows are complete; config_set() accepts each default and sets the same value. */
#include "tests/lib/test.h"

#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"

const char test_suite[] = "settings";

static void test_rows(void)
{
    for (size_t i = 0; i < settings_n; i++) {
        const struct setting *s = &settings[i];

        CU_ASSERT_PTR_EQUAL(settings_find(settings, settings_n, s->name), s); /* no name twice */
        CU_ASSERT(s->group < SETTINGS_N_GROUPS && settings_group_title(s->group) != NULL);
        CU_ASSERT(s->argument != NULL && s->help != NULL);
        CU_ASSERT(s->help[strlen(s->help) - 1] != '.'); /* users of the table add it */
        CU_ASSERT(!s->details || s->details[strlen(s->details) - 1] == '.');
        CU_ASSERT_EQUAL(s->kind == SETTING_CHOICE, s->choices != NULL);
        CU_ASSERT(!s->default_from || settings_find(settings, settings_n, s->default_from) != NULL);
        CU_ASSERT(s->offset + settings_value_bytes(s) <= sizeof(struct config));
        for (size_t k = 0; k < i; k++) /* two settings never share memory */
            CU_ASSERT(settings[k].offset + settings_value_bytes(&settings[k]) <= s->offset ||
                      s->offset + settings_value_bytes(s) <= settings[k].offset);
    }
    CU_ASSERT_PTR_NULL(settings_find(settings, settings_n, "nothing"));
}

static void test_defaults(void)
{
    struct config c, want;

    config_init(&c);
    config_init(&want);
    for (size_t i = 0; i < settings_n; i++) {
        const struct setting *s = &settings[i];
        const char *a = (const char *) &c + s->offset, *b = (const char *) &want + s->offset;
        char text[SETTINGS_VALUE_BYTES];
        struct errmsg e = {""};

        if (s->default_from)
            continue;
        CU_ASSERT_EQUAL(config_set(&c, s->name, settings_default(s, text), &e), 0);
        if (s->kind != SETTING_PATH && s->kind != SETTING_TEXT) {
            CU_ASSERT_EQUAL(memcmp(a, b, settings_value_bytes(s)), 0);
        } else if (s->text) {
            CU_ASSERT_STRING_EQUAL(*(const char *const *) a, s->text);
        } else {
            CU_ASSERT_PTR_NULL(*(const char *const *) a);
        }
    }
    config_deinit(&c);
}

static void test_texts(void)
{
    static const struct {
        const char *name, *text;
    } cases[] = {
        {"socket", "/run/kvcobra/kvcobra.sock"},
        {"metrics-socket", "none"},
        {"socket-mode", "0660"},
        {"pool-bytes", "4G"},
        {"span-bytes", "2M"},
        {"work-inline-bytes", "64K"},
        {"guarantee-bytes", "0"},
        {"quota-bytes", "pool-bytes"},
        {"lease-ms", "30000"},
        {"leases-per-session", "65536"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct setting *s = settings_find(settings, settings_n, cases[i].name);
        char text[SETTINGS_VALUE_BYTES];

        CU_ASSERT_PTR_NOT_NULL_FATAL(s);
        CU_ASSERT_STRING_EQUAL(settings_default(s, text), cases[i].text);
    }
}

const struct test_case test_cases[] = {TEST(test_rows), TEST(test_defaults), TEST(test_texts), TEST_END};
