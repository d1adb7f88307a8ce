/* Amounts for people, at the limits of their units. */
#include "tools/command/human.h"

#include "tests/lib/test.h"

static void test_bytes(void)
{
    static const struct {
        uint64_t bytes;
        const char *want;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1048575, "1.0 MiB"}, /* 1023.999 KiB: never "1024.0 KiB" */
        {1048576, "1.0 MiB"},
        {UINT64_C(1) << 40, "1.0 TiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    char text[HUMAN_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_STRING_EQUAL(human_bytes(cases[i].bytes, text), cases[i].want);
}

static void test_seconds(void)
{
    static const struct {
        double seconds;
        const char *want;
    } cases[] = {
        {0, "0.00 s"},        {-1, "0.00 s"},       {9.994, "9.99 s"},   {9.996, "10 s"},
        {59.4, "59 s"},       {59.6, "1 min 00 s"}, {185, "3 min 05 s"}, {3599.4, "59 min 59 s"},
        {3600, "1 h 00 min"}, {7800, "2 h 10 min"},
    };
    char text[HUMAN_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_STRING_EQUAL(human_seconds(cases[i].seconds, text), cases[i].want);
}

const char test_suite[] = "human";
const struct test_case test_cases[] = {
    TEST(test_bytes),
    TEST(test_seconds),
    TEST_END,
};
