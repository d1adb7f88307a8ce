/* splitmix64 against the numbers published with the reference implementation. */
#include "base/splitmix64.h"
#include "tests/lib/test.h"

/* The first five numbers from state 1234567. */
static void test_known(void)
{
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u};
    uint64_t state = 1234567;

    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        CU_ASSERT_EQUAL(splitmix64_next(&state), want[i]);
}

const struct test_case test_cases[] = {
    TEST(test_known),
    TEST_END,
};
const char test_suite[] = "splitmix64";
