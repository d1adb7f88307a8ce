/* What the stand-in driver tells tests beside the driver's own interface. Found by dlsym() in the loaded
 * library. */
#pragma once

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

#define STANDIN_CONTEXT                                                                                      \
    "standin-context-" /* and the device: the name of a mapping of every process that has a context */

/* Open in this process at this moment. */
struct standin_left {
    int handles, ranges, mappings, contexts, allocations, modules;
    int opened, streams,
        graphs;    /* of other processes by cuIpc*(); graphs with those that were instantiated */
    long launches; /* of kernels since cuInit() */
};

struct standin_left standin_left(void);
typedef struct standin_left (*standin_left_call)(void);

/* Of the library that this process has loaded, or loads: counts begin anew when nobody has it open. */
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
