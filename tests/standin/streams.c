/* Streams of the stand-in driver (devices.c). Work runs when it is queued. While its stream captures, it is
 * recorded with a copy of its parameters, and runs each time the graph is launched. With STANDIN_LATE=1 work
 * of streams that the default stream does not wait for runs when a call waits for it, not earlier. */
#include <stdlib.h>
#include <string.h>

#include "tests/standin/standin.h"

enum { STREAMS_MAX = 256 };

struct cu_graph {
    struct work *works; /* [n] */
    size_t n;
};

struct cu_graph_exec {
    struct cu_graph graph;
};

struct stream {
    uintptr_t serial;  /* of the handle, never reused; 0: free */
    bool blocking;     /* the stream and the default stream wait for each other */
    int capture, mode; /* enum cu_capture_status; enum of tests/standin/graph.h */
    struct cu_graph graph;
    struct cu_graph late; /* work that has not run yet */
    uint64_t n_run;       /* work that was late and has run */
};

static struct stream streams[STREAMS_MAX];
static uintptr_t n_serials;
static int n_graphs;

/* Handles that are never dereferenced; no two streams of a process share one. */
static cu_stream handle_of(const struct stream *s)
{
    return (cu_stream) (s->serial << 12); // NOLINT: a handle
}

static struct stream *find_stream(cu_stream stream)
{
    for (int i = 0; stream && i < STREAMS_MAX; i++)
        if (streams[i].serial != 0 && handle_of(&streams[i]) == stream)
            return &streams[i];
    return NULL;
}

bool is_stream(cu_stream stream)
{
    return !stream || find_stream(stream);
}

bool is_capturing(cu_stream stream)
{
    const struct stream *s = find_stream(stream);

    return s && s->capture != CU_CAPTURE_NONE;
}

static void invalidate(struct stream *s)
{
    s->capture = CU_CAPTURE_INVALIDATED;
}

cu_result refuse_unsafe(void)
{
    cu_result r = CU_SUCCESS;

    for (int i = 0; i < STREAMS_MAX; i++)
        if (streams[i].capture == CU_CAPTURE_ACTIVE && streams[i].mode != CU_CAPTURE_RELAXED) {
            invalidate(&streams[i]);
            r = CU_CAPTURE_UNSUPPORTED;
        }
    return r;
}

cu_result refuse_waits(void)
{
    cu_result r = CU_SUCCESS;

    for (int i = 0; i < STREAMS_MAX; i++)
        if (streams[i].capture == CU_CAPTURE_ACTIVE && streams[i].blocking) {
            invalidate(&streams[i]);
            r = CU_CAPTURE_IMPLICIT;
        }
    return r == CU_SUCCESS ? refuse_unsafe() : r;
}

static cu_result record(struct cu_graph *g, const struct work *w)
{
    struct work *works = realloc(g->works, (g->n + 1) * sizeof(*works));

    if (!works)
        return CU_OUT_OF_MEMORY;

    works[g->n++] = *w;
    g->works = works;
    return CU_SUCCESS;
}

/* ---- late work ---- */

uint64_t last_ticket(cu_stream stream)
{
    const struct stream *s = find_stream(stream);

    return s ? s->n_run + s->late.n : 0;
}

size_t run_late(cu_stream stream, uint64_t ticket)
{
    struct stream *s = find_stream(stream);
    size_t n = s && ticket > s->n_run ? (size_t) (ticket - s->n_run) : 0;

    n = s && n > s->late.n ? s->late.n : n;
    for (size_t i = 0; i < n; i++) {
        cu_result r = check_ranges(&s->late.works[i]);

        if (r == CU_SUCCESS)
            r = run_now(&s->late.works[i]);
        if (r != CU_SUCCESS)
            state.lost_after = state.n_launches; /* the next call returns the fault */
    }
    if (n > 0) {
        s->late.n -= n;
        s->n_run += n;
        memmove(s->late.works, s->late.works + n, s->late.n * sizeof(*s->late.works));
    }
    return n;
}

void run_all_late(void)
{
    for (int i = 0; i < STREAMS_MAX; i++)
        if (streams[i].late.n > 0)
            (void) run_late(handle_of(&streams[i]), UINT64_MAX);
}

/* ---- streams ---- */

API cu_result cuStreamCreate(cu_stream *ret, unsigned flags)
{
    ENTER();
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (flags & ~(unsigned) CU_STREAM_UNORDERED)
        return CU_INVALID_VALUE;

    for (int i = 0; i < STREAMS_MAX; i++)
        if (streams[i].serial == 0) {
            streams[i] = (struct stream){.serial = ++n_serials, .blocking = !(flags & CU_STREAM_UNORDERED)};
            *ret = handle_of(&streams[i]);
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

API cu_result cuStreamDestroy_v2(cu_stream stream)
{
    struct stream *s = find_stream(stream);

    ENTER();
    if (!s)
        return CU_INVALID_HANDLE;

    (void) run_late(stream, last_ticket(stream));
    free(s->late.works);
    free(s->graph.works);
    *s = (struct stream){0};
    return CU_SUCCESS;
}

API cu_result cuStreamSynchronize(cu_stream stream)
{
    struct stream *s = find_stream(stream);

    ENTER();
    if (!stream) {
        all_arrived();
        return refuse_waits();
    }
    if (!s)
        return CU_INVALID_HANDLE;
    if (s->capture == CU_CAPTURE_NONE) {
        (void) run_late(stream, last_ticket(stream));
        return enter("");
    }

    invalidate(s);
    return CU_CAPTURE_UNSUPPORTED;
}

API cu_result cuStreamIsCapturing(cu_stream stream, int *ret_status)
{
    const struct stream *s = find_stream(stream);

    ENTER();
    if (!is_stream(stream))
        return CU_INVALID_HANDLE;

    for (int i = 0; !s && i < STREAMS_MAX; i++)
        if (streams[i].capture == CU_CAPTURE_ACTIVE && streams[i].blocking)
            return CU_CAPTURE_IMPLICIT;
    *ret_status = s ? s->capture : CU_CAPTURE_NONE;
    return CU_SUCCESS;
}

/* ---- work ---- */

cu_result submit(cu_stream stream, const struct work *w)
{
    struct stream *s = find_stream(stream);
    cu_result r = is_stream(stream) ? check_ranges(w) : CU_INVALID_HANDLE;

    if (r != CU_SUCCESS)
        return r;
    if (s && s->capture == CU_CAPTURE_INVALIDATED)
        return CU_CAPTURE_WAS_INVALIDATED;
    if (s && s->capture == CU_CAPTURE_ACTIVE)
        return record(&s->graph, w);
    if (s && state.late && !s->blocking)
        return record(&s->late, w);

    r = s ? CU_SUCCESS : refuse_waits();
    return r == CU_SUCCESS ? run_now(w) : r;
}

/* ---- graphs ---- */

API cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    struct stream *s = find_stream(stream);

    ENTER();
    if (!stream)
        return CU_CAPTURE_UNSUPPORTED; /* the default stream cannot capture */
    if (!s)
        return CU_INVALID_HANDLE;
    if (mode < CU_CAPTURE_GLOBAL || mode > CU_CAPTURE_RELAXED || s->capture != CU_CAPTURE_NONE)
        return CU_INVALID_VALUE;

    s->capture = CU_CAPTURE_ACTIVE;
    s->mode = mode;
    return CU_SUCCESS;
}

API cu_result cuStreamEndCapture(cu_stream stream, cu_graph *ret)
{
    struct stream *s = find_stream(stream);
    struct cu_graph *g = NULL;
    cu_result r;

    ENTER();
    if (!s)
        return CU_INVALID_HANDLE;
    if (s->capture == CU_CAPTURE_NONE)
        return CU_INVALID_VALUE;

    r = s->capture == CU_CAPTURE_INVALIDATED ? CU_CAPTURE_WAS_INVALIDATED : CU_SUCCESS;
    if (r == CU_SUCCESS) {
        g = malloc(sizeof(*g));
        r = g ? CU_SUCCESS : CU_OUT_OF_MEMORY;
    }
    if (g) {
        *g = s->graph;
        n_graphs++;
    } else {
        free(s->graph.works);
    }
    s->graph = (struct cu_graph){0};
    s->capture = CU_CAPTURE_NONE;
    *ret = g;
    return r;
}

/* Makes a copy: the graph may be destroyed before the executable graph. */
API cu_result cuGraphInstantiateWithFlags(cu_graph_exec *ret, cu_graph graph, unsigned long long flags)
{
    struct cu_graph_exec *x;

    ENTER();
    if (!graph || flags != 0)
        return CU_INVALID_VALUE;

    x = calloc(1, sizeof(*x));
    for (size_t i = 0; x && i < graph->n; i++)
        if (record(&x->graph, &graph->works[i]) != CU_SUCCESS)
            return CU_OUT_OF_MEMORY;
    if (!x)
        return CU_OUT_OF_MEMORY;

    n_graphs++;
    *ret = x;
    return CU_SUCCESS;
}

/* Memory that was freed since the capture makes the launch fault; the call itself succeeds. */
API cu_result cuGraphLaunch(cu_graph_exec x, cu_stream stream)
{
    ENTER();
    if (!is_stream(stream))
        return CU_INVALID_HANDLE;
    if (is_capturing(stream))
        return CU_NOT_SUPPORTED; /* graphs within graphs: not needed here */
    for (size_t i = 0; i < x->graph.n; i++) {
        cu_result r = check_ranges(&x->graph.works[i]);

        if (r == CU_SUCCESS)
            r = run_now(&x->graph.works[i]);
        if (r == CU_INVALID_VALUE || r == CU_ILLEGAL_ADDRESS) {
            state.lost_after = state.n_launches;
            return CU_SUCCESS; /* the next call returns the fault */
        }
        if (r != CU_SUCCESS)
            return r;
    }
    return CU_SUCCESS;
}

API cu_result cuGraphDestroy(cu_graph graph)
{
    ENTER();
    if (!graph)
        return CU_INVALID_VALUE;

    free(graph->works);
    free(graph);
    n_graphs--;
    return CU_SUCCESS;
}

API cu_result cuGraphExecDestroy(cu_graph_exec x)
{
    ENTER();
    if (!x)
        return CU_INVALID_VALUE;

    free(x->graph.works);
    free(x);
    n_graphs--;
    return CU_SUCCESS;
}

void count_streams(struct standin_left *left)
{
    for (int i = 0; i < STREAMS_MAX; i++)
        left->streams += streams[i].serial != 0;
    left->graphs = n_graphs;
}
