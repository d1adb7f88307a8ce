/* Calls of the driver that the product does not make but its users do: capturing launches in a graph and
 * replaying it. Tests find them in the loaded library, the stand-in or the real one. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/cuda/abi.h"

typedef struct cu_graph *cu_graph;
typedef struct cu_graph_exec *cu_graph_exec;

enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };

/* X(member, symbol, arguments) */
#define GRAPH_CALLS(X)                                                                                       \
    X(begin_capture, cuStreamBeginCapture_v2, (cu_stream, int) )                                             \
    X(end_capture, cuStreamEndCapture, (cu_stream, cu_graph *) )                                             \
    X(instantiate, cuGraphInstantiateWithFlags, (cu_graph_exec *, cu_graph, unsigned long long) )            \
    X(launch, cuGraphLaunch, (cu_graph_exec, cu_stream))                                                     \
    X(destroy, cuGraphDestroy, (cu_graph))                                                                   \
    X(exec_destroy, cuGraphExecDestroy, (cu_graph_exec))

struct graph_calls {
#define GRAPH_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
    GRAPH_CALLS(GRAPH_MEMBER)
#undef GRAPH_MEMBER
};

/* @library: that of struct cuda_driver. False: one of the functions is missing. */
static inline bool graph_calls_find(void *library, struct graph_calls *ret)
{
    struct {
        const char *symbol;
        void *to;
    } calls[] = {
#define GRAPH_ENTRY(member, symbol, arguments) {#symbol, &ret->member},
        GRAPH_CALLS(GRAPH_ENTRY)
#undef GRAPH_ENTRY
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *address = dlsym(library, calls[i].symbol);

        if (!address)
            return false;
        memcpy(calls[i].to, &address, sizeof(address));
    }
    return true;
}
