/* The memory in which a test says which allocation of another process fails; see fault.h. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fault_page {
    _Atomic unsigned countdown; /* the allocation that fails, from 1; 0: none */
    _Atomic bool fired;
    _Atomic uintptr_t caller; /* its return address, as addr2line takes it */
};

/* Creates or opens the file @path and maps it; asserts. For fault_page_free(). */
struct fault_page *fault_page_new(const char *path);
struct fault_page *fault_page_free(struct fault_page *p);

static inline void fault_page_arm(struct fault_page *p, unsigned nth)
{
    atomic_store(&p->countdown, 0);
    atomic_store(&p->fired, false);
    atomic_store(&p->countdown, nth);
}
