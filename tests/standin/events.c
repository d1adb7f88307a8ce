/* Events of the stand-in driver (devices.c), and waiting for them. */
#include <stdlib.h>
#include <time.h>

#include "tests/standin/standin.h"

struct cu_event {
    struct timespec time; /* when it was recorded */
    bool captured;        /* part of a graph: a wait for it or a read of its time is refused */
    bool untimed;
    cu_stream stream;
    uint64_t ticket; /* of the last work before it in its stream */
};

static int n_events;

API cu_result cuEventCreate(cu_event *ret, unsigned flags)
{
    struct cu_event *x;

    ENTER();
    if (flags & ~(unsigned) CU_EVENT_UNTIMED)
        return CU_INVALID_VALUE;
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;

    x = calloc(1, sizeof(*x));
    if (!x)
        return CU_OUT_OF_MEMORY;

    x->untimed = flags & CU_EVENT_UNTIMED;
    n_events++;
    *ret = x;
    return CU_SUCCESS;
}

API cu_result cuEventDestroy_v2(cu_event event)
{
    ENTER();
    if (!event)
        return CU_INVALID_HANDLE;

    n_events--;
    free(event);
    return CU_SUCCESS;
}

API cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    ENTER();
    if (!event || !is_stream(stream))
        return CU_INVALID_HANDLE;

    event->captured = is_capturing(stream);
    event->stream = stream;
    event->ticket = last_ticket(stream);
    return clock_gettime(CLOCK_MONOTONIC, &event->time) < 0 ? CU_INVALID_HANDLE : CU_SUCCESS;
}

API cu_result cuEventQuery(cu_event event)
{
    ENTER();
    if (!event)
        return CU_INVALID_HANDLE;
    if (event->captured)
        return CU_CAPTURED_EVENT;

    return run_late(event->stream, event->ticket) > 0 ? CU_NOT_READY
                                                      : CU_SUCCESS; /* it is by the next query */
}

API cu_result cuEventSynchronize(cu_event event)
{
    ENTER();
    if (!event)
        return CU_INVALID_HANDLE;
    if (event->captured)
        return CU_CAPTURED_EVENT;

    (void) run_late(event->stream, event->ticket);
    return enter("");
}

API cu_result cuEventElapsedTime(float *ret, cu_event from, cu_event to)
{
    ENTER();
    if (from->captured || to->captured || from->untimed || to->untimed)
        return CU_INVALID_HANDLE;

    *ret = (float) ((double) (to->time.tv_sec - from->time.tv_sec) * 1e3 +
                    (double) (to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return CU_SUCCESS;
}

API cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
    ENTER();
    if (!event || !is_stream(stream))
        return CU_INVALID_HANDLE;
    if (flags != 0)
        return CU_INVALID_VALUE;
    if (event->captured || is_capturing(stream))
        return CU_NOT_SUPPORTED; /* graphs of several streams: not needed here */

    (void) run_late(event->stream, event->ticket);
    return CU_SUCCESS;
}

void count_events(struct standin_left *left)
{
    left->events = n_events;
}
