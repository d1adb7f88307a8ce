/* What doctor says of a unit that is loaded, missing, masked or failed, and of tiers. */
#include "tools/operate/doctor_check.h"

#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "doctor_check";

static void test_units(void)
{
    static const struct {
        const char *load, *active;
        enum doctor_result result;
        const char *words;
    } cases[] = {
        {"loaded", "active", DOCTOR_OK, "kvcobrad.service is active"},
        {"loaded", "inactive", DOCTOR_NOTE, "is inactive: 'systemctl enable --now"},
        {"loaded", "activating", DOCTOR_NOTE, "is activating"},
        {"loaded", "failed", DOCTOR_WRONG, "journalctl -u kvcobrad"},
        {"not-found", "inactive", DOCTOR_NOTE,
         "kvcobrad.service is not installed: the package kvcobrad has it"},
        {"masked", "inactive", DOCTOR_NOTE, "is masked: 'systemctl unmask"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct doctor d = {.n = 0};

        doctor_add_unit(&d, cases[i].load, cases[i].active);
        CU_ASSERT_EQUAL_FATAL(d.n, 1);
        CU_ASSERT_EQUAL(d.findings[0].result, cases[i].result);
        CU_ASSERT_PTR_NOT_NULL(strstr(d.findings[0].text, cases[i].words));
    }
}

static void test_tiers(void)
{
    static const struct {
        const char *state, *message;
        enum doctor_result result;
        const char *words;
    } cases[] = {
        {"ready", "", DOCTOR_OK, "ready"},
        {"ready", "the file system is full", DOCTOR_NOTE, "ready: the file system is full"},
        {"opening", "", DOCTOR_NOTE, "opening"},
        {"joining", "no such name", DOCTOR_NOTE, "joining: no such name"},
        {"degraded", "9 of 16384 slots", DOCTOR_WRONG, "degraded: 9 of 16384 slots"},
        {"absent", "kvcobra-cluster is not connected", DOCTOR_WRONG, "absent: kvcobra-cluster"},
        {"off", "no such folder", DOCTOR_WRONG, "off: no such folder"},
    };
    struct doctor none = {.n = 0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct doctor d = {.n = 0};

        doctor_add_tier(&d, "a tier", cases[i].state, cases[i].message);
        CU_ASSERT_EQUAL_FATAL(d.n, 1);
        CU_ASSERT_EQUAL(d.findings[0].result, cases[i].result);
        CU_ASSERT_PTR_NOT_NULL(strstr(d.findings[0].text, cases[i].words));
    }
    doctor_add_tier(&none, "a tier", "none", "");
    doctor_add_tier(&none, "a tier", "", "");
    CU_ASSERT_EQUAL(none.n, 0);
}

const struct test_case test_cases[] = {TEST(test_units), TEST(test_tiers), TEST_END};
