/* Reports of the stand-in driver to tests, beyond the interface of the driver. Tests find the functions by
 * dlsym() in the loaded library. */
#pragma once

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

/* Followed by the device: the name of a mapping in every process that has a context. */
#define STANDIN_CONTEXT "standin-context-"

/* Objects that are open in this process now. */
struct standin_left {
    int handles, ranges, mappings, contexts, allocations, modules;
    int streams, graphs; /* graphs: with the executable ones */
    int pinned, events;  /* pinned: allocations in host memory */
    long launches;       /* of kernels since cuInit() */
};

struct standin_left standin_left(void);
typedef struct standin_left (*standin_left_call)(void);

/* Loads the library if this process has not loaded it. Counts begin anew when
 * no part of the process has it open. */
static inline struct standin_left standin_look(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
         *address = library ? dlsym(library, "standin_left") : NULL;
    struct standin_left left;
    standin_left_call call;

    assert(address);
    memcpy(&call, &address, sizeof(call));
    left = call();
    (void) dlclose(library);
    return left;
}
