/*
 * A whole kvcobrad serves a random history of requests (daemon_history.h) while a model of its clients checks
 * every answer. libFuzzer can shorten a history that breaks a rule: -minimize_crash=1.
 */
#include "tests/fuzz/daemon_history.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS_MAX = 120 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned n = 0;

    history_begin(data, size, NULL);
    while (n < STEPS_MAX && history_step())
        n++;
    history_end();
    return 0;
}
