/* What the stand-in driver tells tests beside the driver's own interface. Found by dlsym() in the loaded library. */
#pragma once

#define STANDIN_CONTEXT "standin-context-" /* and the device: the name of a mapping of every process that has a context */

/* Open in this process at this moment. */
struct standin_left {
    int handles, ranges, mappings, contexts, allocations, modules;
    int opened, streams, graphs; /* of other processes by cuIpc*(); graphs with those that were instantiated */
};

struct standin_left standin_left(void);
typedef struct standin_left (*standin_left_call)(void);
