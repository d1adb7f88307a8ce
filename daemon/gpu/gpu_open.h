/*
 * GPUs become ready: kvcobra-mover opens them, at the start and, after that failed, when somebody asks for
 * one again. One that cannot be opened is in nobody's way: it says why, everything else is served.
 *
 *     OPENING --mover--> READY
 *         \--no driver, no such GPU, a size that it cannot have--> UNAVAILABLE --asked for, after a pause-->
 * OPENING
 */
#pragma once

struct device;
struct errmsg;
struct server;

enum { GPU_PAUSE_MS_MIN = 1000, GPU_PAUSE_MS_MAX = 60000 /* between two tries; doubles */ };

/* All GPUs of the configuration, once the loop is there; nothing is waited for. */
void gpu_open_all(struct server *s);

/* Whether sessions may begin on it. Return: 0; -EAGAIN: it is being opened, or will be: the mover ended just
 * now; -ENODEV: it cannot be, with the reason. */
int gpu_check(struct device *d, struct errmsg *e);
